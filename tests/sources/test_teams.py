"""Several agents: rows of the batch, natively and from PettingZoo, and what does not act does not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pettingzoo import ParallelEnv

from regimen.algorithms.ppo import PPO
from regimen.config import NetworkConfig
from regimen.envs.adapters.pettingzoo import Team
from regimen.envs.probe import Team as Probe
from regimen.schedule import Episodes, Steps
from regimen.sources import RolloutKeys
from regimen.sources.host import HostSource
from regimen.sources.scan import ScanSource
from regimen.types import Spec

KEY, START, ENVS = jax.random.key(3), jax.random.key(4), 4
NETWORK = NetworkConfig(hidden=(8,))


def bound(env, **settings):
    spec = Spec(env.observation_space, env.action_space, agents=env.agents, num_envs=ENVS)
    return PPO(network=NETWORK, **settings).bind(spec)


@pytest.fixture(scope="module", params=["steps", "episodes"])
def rollout(request):
    env = Probe(absent=0.5)
    schedule = Steps(48) if request.param == "steps" else Episodes(12)
    algo, source = bound(env), ScanSource(schedule, ENVS)
    params = algo.actor_params(algo.init(jax.random.key(0)))
    carry = source.init(env, algo, START)
    out = jax.jit(source.next)(env, algo, carry, params, KEY)
    return env, algo, params, schedule, *jax.device_get(out[1:])


def test_rows_count_only_while_their_agent_acts(rollout):
    _env, _algo, _, schedule, batch, rows, steps = rollout
    assert batch.valid.shape[1] == ENVS * 3 and not batch.full
    used = int(batch.length) if batch.length is not None else len(batch.valid)
    left = np.rint(batch.obs[:used, :, 1] * 3).astype(int)  # of the agent, before the step
    valid = batch.valid[:used]
    if isinstance(schedule, Steps):
        assert steps == 48 and (valid == (left > 0)).all()
    else:
        assert rows.count == 12 and steps == rows.length[:12].sum() == 36  # the third agent is always there
    ended = batch.terminated[:used] & valid
    assert (ended == (valid & (left == 1))).all(), "each agent's own task ends at its own time"
    assert not batch.truncated[:used][valid].any()
    acting = rows.metrics["acting"][: int(rows.count)]
    assert set(acting.tolist()) == {5.0, 6.0}, "one is absent from some episodes"
    assert (rows.reward[: int(rows.count), 0] <= acting).all()


def test_values_are_right_and_poison_is_not_learned_from(rollout):
    """What the rows of idle agents hold changes nothing."""
    _env, algo, _, _schedule, batch, _rows, _steps = rollout
    state = algo.init(jax.random.key(1))
    poison = jnp.where(batch.valid[..., None], batch.reward, 1e6)
    nonsense = jnp.where(batch.valid[..., None], batch.obs, 7.0)
    update = jax.jit(algo.update)
    plain, found = update(state, batch)
    poisoned, other = update(state, batch.replace(reward=poison, obs=nonsense))
    jax.tree.map(np.testing.assert_array_equal, plain.models, poisoned.models)
    np.testing.assert_allclose(found["loss"], other["loss"])


class Scripted(ParallelEnv):
    """The native environment stepped from Python with the keys that the scan source would use."""

    metadata = {"name": "scripted"}  # noqa: RUF012
    reset_native, step_native = jax.jit(Probe.reset), jax.jit(Probe.step)

    def __init__(self, env, first, keys):
        self.env, self.first, self.keys, self.t = env, first, keys, -1
        self.possible_agents, self.metric_reductions = list(env.agents), env.metric_reductions
        self.observation_space = lambda agent: env.observation_space
        self.action_space = lambda agent: env.action_space

    def reset(self, seed=None, options=None):
        self.state, obs = Scripted.reset_native(self.env, self.first if self.t < 0 else self.keys[self.t])
        self.agents = [a for a, there in zip(self.env.agents, self.env.alive(self.state)) if there]
        return self.named(obs), {agent: {} for agent in self.agents}

    def named(self, values):
        return {agent: np.asarray(x) for agent, x in zip(self.env.agents, values) if agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), "only those who act are asked"
        self.t += 1
        given = jnp.array([actions.get(agent, 0) for agent in self.env.agents])
        self.state, ts = Scripted.step_native(self.env, self.keys[self.t], self.state, given)
        told = {name: float(x) for name, x in ts.metrics.items()}
        out = self.named(ts.obs), self.named(ts.reward), self.named(ts.terminated)
        cut, infos = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, told)
        self.agents = [a for a in self.agents if not out[2][a]]
        return *out, cut, infos


def test_same_batch_from_pettingzoo(rollout):
    """On identical noise, a native environment and a parallel one that does the same give the same batch."""
    env, algo, params, schedule, expected, rows, steps = rollout
    episodic = isinstance(schedule, Episodes)
    first = jax.random.split(RolloutKeys.of(KEY).reset if episodic else START, ENVS)
    keys = RolloutKeys.of(KEY).env_keys(0, 64 if episodic else 12, ENVS)
    copies = iter(Team(Scripted(env, first[i], keys[:, i])) for i in range(ENVS))
    host = HostSource(
        lambda: next(copies), schedule, ENVS, max_episode_steps=8, metric_reductions=env.metric_reductions
    )
    host.init(0)
    batch, ended, taken = host.next(algo, params, KEY)
    assert taken == steps and ended.count == rows.count
    used = None if batch.length is None else int(batch.length)
    assert used == (None if expected.length is None else int(expected.length)) and batch.full == expected.full
    valid = expected.valid[:used]
    np.testing.assert_array_equal(np.asarray(batch.valid)[:used], valid)
    for name in ("obs", "action", "reward", "terminated", "truncated", "next_obs"):
        mine, theirs = (np.asarray(getattr(b, name))[:used][valid] for b in (batch, expected))
        np.testing.assert_allclose(mine, theirs, atol=1e-6, err_msg=name)
    n = int(rows.count)
    np.testing.assert_allclose(ended.reward, rows.reward[:n])
    np.testing.assert_allclose(ended.metrics["acting"], rows.metrics["acting"][:n])
