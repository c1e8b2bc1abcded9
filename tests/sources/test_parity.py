"""The scan and host sources return the same batch on identical noise."""

from typing import ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen.algorithms.ppo import PPO
from regimen.config.schema import NetworkConfig
from regimen.envs.classic.cartpole import CartPole
from regimen.envs.classic.pendulum import Pendulum
from regimen.errors import EnvError
from regimen.schedule import Episodes, Steps
from regimen.sources.host import HostSource
from regimen.sources.keys import RolloutKeys
from regimen.sources.scan import ScanSource
from regimen.types import Spec

KEY, START = jax.random.key(7), jax.random.key(3)


class Scripted(gymnasium.Env):
    """A native environment stepped from Python with the keys that the scan source would use."""

    def __init__(self, env, first_key, keys):
        self.env, self.first_key, self.keys, self.t = env, first_key, keys, -1
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed=None, options=None):
        key = self.first_key if self.t < 0 else self.keys[self.t]
        self.state, obs = self.env.reset(key)
        return np.asarray(obs), {}

    def step(self, action):
        self.t += 1
        self.state, ts = self.env.step(self.keys[self.t], self.state, jnp.asarray(action))
        return np.asarray(ts.obs), float(np.sum(ts.reward)), bool(ts.terminated), bool(ts.truncated), {}


@pytest.mark.parametrize("schedule", [Steps(96), Episodes(6)], ids=["steps", "episodes"])
@pytest.mark.parametrize(
    "env", [CartPole(max_episode_steps=15), Pendulum(max_episode_steps=9)], ids=["cartpole", "pendulum"]
)
def test_same_batch_from_both_sources(env, schedule):
    num_envs = 3
    spec = Spec(env.observation_space, env.action_space, num_envs=num_envs)
    algo = PPO(network=NetworkConfig(hidden=(8,))).bind(spec)
    params = algo.actor_params(algo.init(jax.random.key(0)))

    scan = ScanSource(schedule, num_envs)
    carry = scan.init(env, algo, START)
    _, expected, rows, _ = jax.jit(scan.next)(env, algo, carry, params, KEY)

    first = jax.random.split(START if isinstance(schedule, Steps) else RolloutKeys.of(KEY).reset, num_envs)
    block = 32 if isinstance(schedule, Steps) else 64
    keys = RolloutKeys.of(KEY).env_keys(0, block, num_envs)
    scripted = iter([Scripted(env, first[i], keys[:, i]) for i in range(num_envs)])
    host = HostSource(lambda: next(scripted), schedule, num_envs, max_episode_steps=env.max_episode_steps)
    host.init(0)
    batch, ended, steps = host.next(algo, params, KEY)

    used = None if batch.length is None else int(batch.length)
    assert used == (None if expected.length is None else int(expected.length))
    valid = np.asarray(expected.valid)[:used]
    np.testing.assert_array_equal(np.asarray(batch.valid)[:used], valid)
    assert steps == valid.sum()
    for name in ("obs", "action", "reward", "terminated", "truncated", "next_obs"):
        have, want = (np.asarray(getattr(b, name))[:used][valid] for b in (batch, expected))
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5, err_msg=name)
        assert have.dtype == want.dtype
    have, want = (np.asarray(b.extras["log_prob"])[:used][valid] for b in (batch, expected))
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)

    n = int(rows.count)
    assert int(ended.count) == n and n >= 6
    for name in ("reward", "length", "terminated"):
        have, want = np.asarray(getattr(ended, name)), np.asarray(getattr(rows, name))[:n]
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4, err_msg=name)

    update = jax.jit(algo.update)
    state = algo.init(jax.random.key(0))
    new = [update(state, jax.tree.map(jnp.asarray, b))[0].models["policy"].params for b in (batch, expected)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *new)


class Measured(gymnasium.Env):
    """Three steps; declares metrics with every kind of reduction."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metric_reductions: ClassVar = {"last": "last", "sum": "sum", "min": "min", "max": "max", "mean": "mean"}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        info = dict.fromkeys(self.metric_reductions, (3.0, 1.0, 2.0)[self.t - 1])
        return np.zeros(1, np.float32), 1.0, self.t == 3, False, info


def test_metrics_of_a_host_env_are_reduced_over_the_episode():
    source = HostSource(Measured, Episodes(4), 2, metric_reductions=Measured.metric_reductions)
    source.init(0)
    algo = PPO(network=NetworkConfig(hidden=(4,))).bind(Spec(source.observation_space, source.action_space, num_envs=2))
    _, rows, _ = source.next(algo, algo.actor_params(algo.init(KEY)), KEY)
    expected = {"last": 2.0, "sum": 6.0, "min": 1.0, "max": 3.0, "mean": 2.0}
    assert {name: x.tolist() for name, x in rows.metrics.items()} == {k: [v] * 4 for k, v in expected.items()}


class LateMask(Measured):
    """Sends a mask from step but not from reset."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"action_mask": np.array([1, 0])}


def test_a_mask_must_come_from_reset_too():
    source = HostSource(LateMask, Episodes(2), 2)
    source.init(0)
    algo = PPO(network=NetworkConfig(hidden=(4,))).bind(Spec(source.observation_space, source.action_space, num_envs=2))
    with pytest.raises(EnvError, match="every reset and every step"):
        source.next(algo, algo.actor_params(algo.init(KEY)), KEY)
