"""Hybrid actions from both sources: the same batch on identical noise, and members of the space for the environment."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym

from regimen import spaces
from regimen.algorithms.ppo import PPO
from regimen.config.schema import NetworkConfig
from regimen.envs.adapters.compiled import compiled_reset, to_space
from regimen.envs.adapters.gymnasium import GymnasiumEnv, to_gymnasium
from regimen.envs.registry import make_env
from regimen.errors import EnvError
from regimen.schedule import Episodes, Steps
from regimen.sources.host import HostSource
from regimen.sources.keys import NOISE_BLOCK, RolloutKeys
from regimen.sources.scan import ScanSource
from regimen.types import Spec

pytestmark = pytest.mark.usefixtures("compilation_cache")

KEY, START, E = jax.random.key(7), jax.random.key(3), 3
TINY = NetworkConfig(hidden=(8,))
GRAPH = NetworkConfig(name="graph", hidden=(6,))


class Scripted(GymnasiumEnv):
    """A native environment as `to_gymnasium` gives it, reset with the keys that the scan source would use. The ones
    below use no randomness in a step."""

    def __init__(self, env, first_key, keys):
        super().__init__(env)
        self.first_key, self.keys, self.total = first_key, keys, 0

    def reset(self, *, seed=None, options=None):
        key = self.keys[self.total - 1] if self.total else self.first_key
        self._key, self._t = np.asarray(jax.random.key_data(key)), 0
        self.native_state, (obs, _, mask) = compiled_reset(self._program, self._key)
        return to_space(self.observation_space, obs), self.make_info({}, mask)

    def step(self, action):
        assert self.action_space.contains(action), action
        self.total += 1
        return super().step(action)


@pytest.mark.parametrize(
    "name, args, schedule, network, settings",
    [
        ("probe/hybrid", {}, Steps(24), TINY, {"ratio": "per_leaf"}),
        ("moving", {"max_episode_steps": 7}, Episodes(6), TINY, {}),
        ("durotaxis", {"capacity": 32, "max_episode_steps": 5}, Steps(24), GRAPH, {"state_std": True}),
    ],
    ids=["probe", "moving", "durotaxis"],
)
def test_same_batch_from_both_sources(name, args, schedule, network, settings):
    env = make_env(name, **args)
    adapter = to_gymnasium(env)
    spec = Spec(
        adapter.observation_space,
        adapter.action_space,
        adapter.reward_components,
        num_envs=E,
        action_conditions=adapter.action_conditions,
    )
    algo = PPO(network=network, **settings).bind(spec)
    params = algo.actor_params(algo.init(jax.random.key(0)))
    scan = ScanSource(schedule, E)
    _, expected, rows, _ = jax.jit(lambda env, params: scan.next(env, algo, scan.init(env, algo, START), params, KEY))(
        env, params
    )

    steps = isinstance(schedule, Steps)
    first = jax.random.split(START if steps else RolloutKeys.of(KEY).reset, E)
    keys = RolloutKeys.of(KEY).env_keys(0, schedule.n // E if steps else NOISE_BLOCK, E)
    made = iter([Scripted(env, first[i], keys[:, i]) for i in range(E)])
    host = HostSource(
        lambda: next(made),
        schedule,
        E,
        adapter.reward_components,
        max_episode_steps=env.max_episode_steps,
        metric_reductions=adapter.metric_reductions,
    )
    host.init(0)
    batch, ended, taken = host.next(algo, params, KEY)

    used = None if batch.length is None else int(batch.length)
    valid = np.asarray(expected.valid)[:used]
    np.testing.assert_array_equal(np.asarray(batch.valid)[:used], valid)
    assert taken == valid.sum()
    fields = ("obs", "action", "reward", "terminated", "truncated", "next_obs", "extras")

    def compare(path, have, want):
        have, want = (np.asarray(x)[:used][valid] for x in (have, want))
        assert have.dtype == want.dtype, path
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=2e-5, err_msg=jax.tree_util.keystr(path))

    for field in fields:
        jax.tree_util.tree_map_with_path(compare, getattr(batch, field), getattr(expected, field))
    assert ("mask" in batch.extras) == (name == "durotaxis")
    assert batch.extras["log_prob"].shape[2:] == (algo.bound.elements.size,)

    n = int(rows.count)
    assert int(ended.count) == n and n >= E
    for field in ("reward", "length", "terminated", "metrics"):
        have, want = getattr(ended, field), jax.tree.map(lambda x: np.asarray(x)[:n], getattr(rows, field))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), have, want)


NESTED = gym.Dict(
    [
        ("pick", gym.MultiDiscrete([2, 3], start=[1, 4])),
        ("arm", gym.Tuple([gym.Discrete(3, start=-5), gym.Box(-2, 6, (2, 2), np.float64)])),
        ("grip", gym.MultiBinary(2)),
    ]
)


class Recorder(gymnasium.Env):
    """Four steps; keeps what it was sent, and sends a mask of its own form."""

    observation_space = gym.Box(-1, 1, (2,), np.float32)
    action_space = NESTED

    def __init__(self, masked=True):
        self.sent, self.masked = [], masked

    def info(self):
        pick = [np.array([1, 1]), np.array([1, 0, int(self.t % 2)])]
        return {"action_mask": {"pick": tuple(pick), "arm": (np.array([0, 1, 1]), None)}} if self.masked else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), self.info()

    def step(self, action):
        self.t += 1
        self.sent.append(action)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, self.t == 4, False, self.info()


@pytest.mark.parametrize("masked", [False, True])
def test_nested_actions_reach_the_environment_as_members_of_its_space(masked):
    """What is sent is what was sampled, through one packed array, and its log-probability is the policy's."""
    source = HostSource(lambda: Recorder(masked), Steps(24), 2)
    source.init(0)
    conditions = {"arm/1": ("arm/0", (1,))}
    algo = PPO(network=TINY).bind(Spec(source.observation_space, NESTED, num_envs=2, action_conditions=conditions))
    params = algo.actor_params(algo.init(jax.random.key(0)))
    batch, _, _ = source.next(algo, params, KEY)

    out = algo.to_env(batch.action)
    for e, env in enumerate(source.envs):
        assert len(env.sent) == 12
        for t, action in enumerate(env.sent):
            assert NESTED.contains(action), action
            expected = spaces.split(NESTED, jax.tree.map(lambda x, at=(t, e): np.asarray(x)[at], out))
            for name, x in spaces.split(NESTED, action).items():
                np.testing.assert_allclose(x, expected[name], rtol=1e-6, err_msg=name)
    mask = jnp.asarray(batch.extras["mask"]) if masked else None
    head = algo.bound.actor.apply(params["actor"], batch.obs)
    dist = algo.bound.dist.params(head, params["log_std"], mask)
    log_prob, matters = algo.log_probs(dist, batch.action, mask)
    np.testing.assert_allclose(batch.extras["log_prob"], log_prob, atol=1e-5)
    assert {leaf: x.dtype.kind for leaf, x in batch.action.items()} == {
        "pick": "i",
        "arm/0": "i",
        "arm/1": "f",
        "grip": "i",
    }
    arm = algo.bound.elements.split(matters)["arm/1"]
    np.testing.assert_array_equal(arm, np.repeat(batch.action["arm/0"][..., None] == 1, 4, axis=-1))
    if masked:
        assert (batch.action["arm/0"] > 0).all() and (batch.action["pick"][..., 1] != 1).all()
        forced = ~np.asarray(algo.bound.elements.split(matters)["pick"])[..., 1]
        np.testing.assert_array_equal(forced, ~batch.extras["mask"][..., 4])
        assert forced.any() and not forced.all()


def test_a_mask_without_an_option_is_named():
    class Nothing(Recorder):
        def info(self):
            return {"action_mask": {"pick": (np.ones(2), np.zeros(3))}}

    source = HostSource(Nothing, Steps(8), 2)
    source.init(0)
    algo = PPO(network=TINY).bind(Spec(source.observation_space, NESTED, num_envs=2))
    with pytest.raises(EnvError, match="allows no action at all"):
        source.next(algo, algo.actor_params(algo.init(KEY)), KEY)


def test_a_mask_for_no_part_of_the_action_is_named():
    class Misnamed(Recorder):
        def info(self):
            return {"action_mask": {"picks": np.ones(5)}}

    with pytest.raises(EnvError, match=r"info\['action_mask'\]: action mask: the action has no part 'picks'"):
        HostSource(Misnamed, Steps(8), 2).init(0)
