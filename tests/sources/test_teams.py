"""Several agents: rows of the batch, natively and from PettingZoo, and what does not act does not count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import kit
from regimen.algorithms.ppo import PPO
from regimen.config.schema import NetworkConfig
from regimen.envs.adapters.pettingzoo import Team, to_pettingzoo
from regimen.envs.probe import TeamProbe as Probe
from regimen.envs.protocol import NativeEnv, native_env
from regimen.schedule import Episodes, Steps
from regimen.sources.host import HostSource
from regimen.sources.keys import RolloutKeys
from regimen.sources.scan import ScanSource
from regimen.types import Spec, TimeStep

KEY, START, ENVS = jax.random.key(3), jax.random.key(4), 4
NETWORK = NetworkConfig(hidden=(8,))


@pytest.fixture(scope="module", params=["steps", "episodes"])
def rollout(request):
    env = Probe(absent=0.5)
    schedule = Steps(48) if request.param == "steps" else Episodes(12)
    algo = kit.bound(PPO, env, num_envs=ENVS)
    state, _, *out = kit.rollout(algo, env, schedule, start=4, key=3)
    return env, algo, algo.actor_params(state), schedule, *jax.device_get(out)


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
    assert rows.terminated[: int(rows.count)].all(), "by themselves, though the last step is the limit"
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


# --- who leaves, and why ---------------------------------------------------------------------------------------------

LEAVERS = ("stays", "ends", "is_cut", "ends_last")
ENDED = {"ends": 2, "ends_last": 4}  # the step at which an agent's task is over; the episode is cut after four
FLAGS = {  # agent -> valid, terminated, truncated at each step
    "stays": ("1111", "0000", "0001"),
    "ends": ("1100", "0100", "0000"),
    "is_cut": ("1110", "0000", "0010"),
    "ends_last": ("1111", "0001", "0000"),
}


class Leavers(ParallelEnv):
    """Four agents that observe the number of the step: two end by themselves, one of them in the last step, and one is
    cut short in the third without a last observation."""

    metadata = {"name": "leavers"}  # noqa: RUF012
    possible_agents = LEAVERS
    render_mode = None

    def observation_space(self, agent):
        return spaces.Box(0, np.inf, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self):
        return {agent: np.array([self.t], np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(LEAVERS), 1
        return self.observe(), {}

    def step(self, actions):
        acting, ended, cut = list(self.agents), {}, {}
        for agent in acting:
            ended[agent], cut[agent] = self.t == ENDED.get(agent), agent == "is_cut" and self.t == 3
        self.t += 1
        self.agents = [a for a in acting if not cut[a]]
        seen = self.observe()
        self.agents = [a for a in self.agents if not ended[a]]
        return seen, dict.fromkeys(acting, 1.0), ended, cut, {}


@native_env
class NativeLeavers(NativeEnv):
    """The same; those that end say so by not being there any more."""

    max_episode_steps: int = 4
    agents = LEAVERS
    observation_space = property(lambda self: spaces.Box(0, np.inf, (1,), np.float32))
    action_space = property(lambda self: spaces.Discrete(2))

    def alive(self, t):
        return t <= jnp.array([9, 2, 3, 4])

    def reset(self, key):
        return jnp.int32(1), jnp.ones((4, 1))

    def step(self, key, t, action):
        cut = (t == 3) & (jnp.arange(4) == 2)
        return t + 1, TimeStep(jnp.full((4, 1), t + 1.0), 1.0 * self.alive(t), jnp.zeros(4, bool), cut)


def bits(text):
    return [x == "1" for x in text]


@pytest.mark.parametrize("kind", ["scan", "host", "native as host"])
def test_who_leaves_has_ended_and_who_is_cut_short_has_not(kind):
    """Only what was cut short is worth something after its last step, the value of what would have come."""
    env = NativeLeavers()
    algo = PPO(network=NETWORK).bind(Spec(env.observation_space, env.action_space, agents=LEAVERS, num_envs=1))
    params = algo.actor_params(algo.init(KEY))
    if kind == "scan":
        source = ScanSource(Episodes(1), 1)
        batch, rows = jax.device_get(source.next(env, algo, source.init(env, algo, START), params, KEY)[1:3])
    else:
        team = Team(Leavers() if kind == "host" else to_pettingzoo(env), 4)
        source = HostSource(lambda: team, Episodes(1), 1, max_episode_steps=4)
        source.init(0)
        batch, rows, _ = source.next(algo, params, KEY)
    for k, agent in enumerate(LEAVERS):
        for name, wanted in zip(("valid", "terminated", "truncated"), FLAGS[agent]):
            valid = np.asarray(batch.valid)[:4, k]
            found = np.asarray(getattr(batch, name))[:4, k] & valid
            assert found.tolist() == bits(wanted), (agent, name)
    successor = np.asarray(batch.next_obs)[:4, :, 0]
    assert successor[:, 0].tolist() == [2, 3, 4, 5], "what would have come"
    assert successor[2, 2] == (3 if kind == "host" else 4), "without a last observation, the one before it"
    assert not rows.terminated[0] and rows.length[0] == 4 and rows.reward[0, 0] == 4 + 2 + 3 + 4
