"""Native environments through Gymnasium's own checker; gymnax environments as native ones."""

import copy
import warnings

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import regimen
from regimen.config.layers import build_config
from regimen.envs.adapters.compiled import compiled_step
from regimen.envs.adapters.gymnasium import (
    read_components,
    read_mask,
    read_success,
    register_with_gymnasium,
    to_gymnasium,
)
from regimen.envs.probe import Hybrid
from regimen.envs.protocol import native_env
from regimen.envs.registry import ENVS, make_env, resolve
from regimen.errors import ConfigError, EnvError
from regimen.networks import choose

TEAMS = ("airspace/", "probe/team")  # environments of several agents: PettingZoo's
ALIKE = {n for n in ENVS if n.startswith("world/")} - {"world/way1x5", "world/key_room"}  # one of each kind will do
BUILT_IN = [
    n for n, entry in ENVS.items() if isinstance(entry.target, str) and not n.startswith(TEAMS) and n not in ALIKE
]


@pytest.mark.parametrize("name", BUILT_IN)
def test_gymnasiums_own_checker_passes(name):
    env = to_gymnasium(resolve(name).native)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about infinite bounds, which Gymnasium's own CartPole has too
        check_env(env, skip_render_check=True)
    env.action_space.seed(0)
    for _ in range(5):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert obs in env.observation_space
        if terminated or truncated:
            env.reset()


def test_several_agents_are_not_gymnasiums():
    with pytest.raises(EnvError, match="TeamProbe has several agents; use to_pettingzoo"):
        to_gymnasium(resolve("probe/team").native)


def test_the_time_limit_truncates_and_termination_wins():
    env = to_gymnasium(resolve("probe/truncation", {"max_episode_steps": 3}).native)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    env = to_gymnasium(resolve("probe/two_step").native)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(2)] == [(False, False), (True, False)]


def test_info_has_components_metrics_and_mask():
    env = to_gymnasium(resolve("probe/components").native)
    _, info = env.reset(seed=0)
    assert info == {}
    _, reward, _, _, info = env.step(1)
    assert reward == 0.75 and info["reward_components"] == {"progress": 1.0, "effort": -0.25}
    assert info["chosen"] == 1.0 and read_success(info) is True
    np.testing.assert_allclose(read_components(reward, info, ("progress", "effort")), [1.0, -0.25])

    env = to_gymnasium(resolve("probe/masked").native)
    obs, info = env.reset(seed=0)
    assert info["action_mask"].dtype == np.int8
    np.testing.assert_array_equal(read_mask(info), obs == 0)


@native_env
class MaskedHybrid(Hybrid):
    """Only the right choice is allowed; amounts cannot be masked."""

    def action_mask(self, state):
        return {"choice": state[:3] == 1}


def test_a_hybrid_mask_has_the_structure_of_the_action():
    env = to_gymnasium(MaskedHybrid())
    obs, info = env.reset(seed=0)
    mask = info["action_mask"]
    assert mask["choice"].dtype == np.int8 and [mask[f"amount_{i}"] for i in range(3)] == [None] * 3
    np.testing.assert_array_equal(read_mask(info)["choice"], obs[:3] == 1)
    assert read_mask(info)["choice"].dtype == bool and read_mask(info)["amount_0"] is None
    env.action_space.seed(0)
    for _ in range(5):  # as Gymnasium itself reads it
        obs, info = env.reset()
        action = env.action_space.sample(mask=info["action_mask"])
        assert obs[action["choice"]] == 1
        assert "action_mask" in env.step(action)[4]
    assert (
        env.action_conditions == Hybrid.action_conditions
        and to_gymnasium(resolve("cartpole").native).action_conditions == {}
    )


def test_masks_of_tuples():
    choice, inner = np.array([1, 0]), np.array([0, 1, 1])
    kept = read_mask({"action_mask": (choice, None, {"inner": inner})})
    assert kept[0].tolist() == [True, False] and kept[1] is None and kept[2]["inner"].tolist() == [False, True, True]
    assert read_mask({"action_mask": ((1, 0), (0, 1, 1))}).tolist() == [True, False, False, True, True]


def test_pictures_only_where_the_environment_draws():
    register_with_gymnasium()
    env = gymnasium.make("regimen/moving", render_mode="rgb_array", penalty=0.01)
    assert env.unwrapped.native.penalty == 0.01 and env.unwrapped.render_mode == "rgb_array"
    env.reset(seed=0)
    assert env.render().shape == (320, 320, 3)
    silent = to_gymnasium(resolve("moving").native)
    silent.reset(seed=0)
    assert silent.render() is None
    with pytest.raises(gymnasium.error.ResetNeeded):
        to_gymnasium(resolve("moving").native, render_mode="rgb_array").render()
    with pytest.raises(EnvError, match="render_mode 'human': Moving can do rgb_array"):
        to_gymnasium(resolve("moving").native, render_mode="human")
    with pytest.raises(EnvError, match="CartPole can do none"):
        to_gymnasium(resolve("cartpole").native, render_mode="rgb_array")


def test_seeds_repeat_and_differ():
    first, second = (to_gymnasium(resolve("cartpole").native, seed=s).reset()[0] for s in (7, 7))
    np.testing.assert_array_equal(first, second)
    env = to_gymnasium(resolve("cartpole").native)
    a, b = env.reset(seed=1)[0], env.reset()[0]
    assert not np.array_equal(a, b) and not np.array_equal(a, env.reset(seed=2)[0])
    np.testing.assert_array_equal(a, env.reset(seed=1)[0])


def test_stepping_before_reset_is_refused_and_copies_go_their_own_way():
    env = to_gymnasium(resolve("cartpole").native)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    np.testing.assert_array_equal(env.step(1)[0], twin.step(1)[0])


def test_copies_and_other_parameters_share_one_program():
    before = compiled_step._cache_size()
    for gravity in (9.8, 3.7, 1.6):
        env = to_gymnasium(resolve("cartpole", {"gravity": gravity, "max_episode_steps": 77}).native)
        env.reset(seed=0)
        for action in (0, np.int64(1), np.int32(1)):
            env.step(action)
    assert compiled_step._cache_size() - before <= 1


def test_registered_with_gymnasium():
    ids = register_with_gymnasium()
    assert "regimen/cartpole" in ids and "regimen/probe.action" in ids
    assert register_with_gymnasium() == ids
    env = gymnasium.make("regimen/cartpole", gravity=3.7, max_episode_steps=2)
    assert env.unwrapped.native.gravity == 3.7 and env.spec.reward_threshold == 475.0
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    assert gymnasium.make("regimen/pendulum").spec.max_episode_steps == 200


def test_what_info_may_not_say():
    with pytest.raises(EnvError, match="keys a, b"):
        read_components(1.0, {}, ("a", "b"))
    with pytest.raises(EnvError, match="sums to 3"):
        read_components(1.0, {"reward_components": {"a": 1, "b": 2}}, ("a", "b"))
    with pytest.raises(EnvError, match="keys a, b"):
        read_components(1.0, {"reward_components": {"a": 1.0, "c": 0.0}}, ("a", "b"))
    assert read_components(1.0, {"reward_components": {"b": 1.0}}, ("a", "b")).tolist() == [0.0, 1.0]
    assert read_components(0.0, {}, ("a", "b")).tolist() == [0.0, 0.0]
    assert read_components(2.0, {}, ("total",)) == [2.0]
    assert read_mask({}) is None and read_success({}) is None
    assert read_success({"is_success": np.bool_(False)}) is False
    assert read_mask({"action_mask": (np.array([1, 0]), np.array([0, 1, 1]))}).tolist() == [
        True,
        False,
        False,
        True,
        True,
    ]


class Late(gymnasium.Env):
    """Two steps that pay nothing and say nothing, then one that pays for an advance, then one that costs."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        info = {3: {"reward_components": {"advance": 2.0}}, 4: {"reward_components": {"cost": -1.0}}}.get(self.t, {})
        return np.zeros(1, np.float32), {3: 2.0, 4: -1.0}.get(self.t, 0.0), self.t == 4, False, info


def test_components_are_found_when_they_come():
    assert resolve(Late).reward_components == ("advance", "cost")
    played = regimen.evaluate(Late, policy="random", episodes=2)
    assert played.to_dict()["reward_components"] == {"advance": 2.0, "cost": -1.0}
    assert resolve("gym:CartPole-v1").reward_components == ("total",)


def test_no_steps_are_wasted_where_a_reward_has_no_parts():
    class Plain(Late):
        taken = 0

        def step(self, action):
            Plain.taken += 1
            return np.zeros(1, np.float32), 1.0, False, False, {}

    assert resolve(Plain).reward_components == ("total",) and Plain.taken == 1


# --- gymnax ----------------------------------------------------------------------------------------------------------


def rollout(env, steps=4, num_envs=3):
    """Scanned and vmapped, as the scan source does it."""

    @jax.jit
    def run(env, key):
        def body(state, key):
            state, ts = jax.vmap(env.step)(jax.random.split(key, num_envs), state, actions)
            return state, ts

        state, _ = jax.vmap(env.reset)(jax.random.split(key, num_envs))
        return jax.lax.scan(body, state, jax.random.split(key, steps))[1]

    one = env.action_space.sample()
    actions = jnp.asarray(np.stack([one] * num_envs))
    return run(env, jax.random.key(0))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Catch-bsuite", "FourRooms-misc", "FrozenLake-misc"])
def test_gymnax_environments_are_native(name):
    pytest.importorskip("gymnax")
    handle = resolve(f"gymnax:{name}")
    assert handle.kind == "native" and handle.id == f"gymnax:{name}" and handle.max_episode_steps > 0
    ts = rollout(handle.native)
    space = handle.observation_space
    assert ts.obs.shape == (4, 3, *space.shape)
    assert np.issubdtype(ts.obs.dtype, np.integer) == np.issubdtype(space.dtype, np.integer)
    assert ts.reward.dtype == jnp.float32 and ts.terminated.dtype == bool and ts.truncated.dtype == bool


@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "SpaceInvaders"])
def test_minatar_is_read_by_a_small_convolution_and_has_settings_of_its_own(game):
    pytest.importorskip("gymnax")
    config = build_config(f"gymnax:{game}-MinAtar")
    assert config.preset == "tuned" and config.total_steps == 10_000_000
    parts = choose(config.network, resolve(f"gymnax:{game}-MinAtar").observation_space).parts
    assert [part.encoder for part in parts] == ["small"]


def test_minatar_trains_out_of_the_box(tmp_path):
    pytest.importorskip("gymnax")
    settings = {"rollout.steps": 64, "rollout.num_envs": 8, "eval.every": "never", "eval.episodes": 2}
    args = {"env_args": {"max_episode_steps": 50}, "out": str(tmp_path / "run"), "track": False}
    result = regimen.train("gymnax:Breakout-MinAtar", total_steps=128, **args, **settings)
    assert result.summary["updates"] == 2 and result.episodes["length"].max() <= 50
    assert "encoder cnn: image 10x10x4 -> one convolution of 16 filters" in (tmp_path / "run" / "log.txt").read_text()


def test_gymnax_keeps_the_final_observation_and_both_flags():
    pytest.importorskip("gymnax")
    env = make_env("gymnax:CartPole-v1", max_episode_steps=3)
    assert env.max_episode_steps == 3 and env.params.max_steps_in_episode == 3
    ts = rollout(env)
    assert np.asarray(ts.truncated)[:, 0].tolist() == [False, False, True, True]
    assert not np.asarray(ts.terminated).any()
    # A reset would put the state back within 0.05; the same push four times moves it on instead.
    assert np.all(np.diff(np.abs(np.asarray(ts.obs)[:, :, 1]), axis=0) > 0.1)
    high = env.observation_space.high
    assert np.isinf(high[1]) and np.isfinite(high[0])


def test_gymnax_parameters_are_data_and_transitions_equal_ours():
    pytest.importorskip("gymnax")
    trees = [jax.tree.structure(make_env("gymnax:CartPole-v1", gravity=g)) for g in (1, 9.8)]
    assert trees[0] == trees[1]
    theirs, mine = make_env("gymnax:Pendulum-v1"), make_env("pendulum")
    key, action = jax.random.key(3), jnp.array([0.7])
    state, obs = theirs.reset(key)
    _, ts = theirs.step(key, state, action)
    angle = jnp.arctan2(obs[1], obs[0])
    _, expected = mine.step(key, jnp.stack([angle, obs[2]]), action)
    np.testing.assert_allclose(ts.obs, expected.obs, atol=1e-5)
    np.testing.assert_allclose(ts.reward, expected.reward, atol=1e-5)


@pytest.mark.parametrize(
    ("env", "args", "words"),
    [
        ("gymnax:CartPol-v1", {}, "did you mean 'gymnax:CartPole-v1'"),
        ("gymnax:CartPole-v1", {"gravty": 1.0}, "env.gravty: .*did you mean 'gravity'"),
        ("gymnax:CartPole-v1", {"gravity": "heavy"}, "env.gravity: 'heavy' is not a number"),
        ("gymnax:CartPole-v1", {"max_episode_steps": 0.5}, "env.max_episode_steps"),
    ],
)
def test_gymnax_refuses(env, args, words):
    pytest.importorskip("gymnax")
    with pytest.raises(ConfigError, match=words):
        resolve(env, args)


def test_gymnax_constructor_arguments():
    pytest.importorskip("gymnax")
    assert make_env("gymnax:Catch-bsuite", rows=6, columns=4).observation_space.shape == (6, 4)
