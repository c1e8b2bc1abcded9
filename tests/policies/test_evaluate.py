"""An evaluation against what its episodes must have been: written down by hand, or played one by one."""

import dataclasses
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from regimen.envs.classic.cartpole import CartPole
from regimen.envs.metric import Metric
from regimen.envs.protocol import NativeEnv, native_env
from regimen.envs.registry import resolve
from regimen.policies.evaluate import Evaluation, HostEvaluator, NativeEvaluator, make_evaluator, summarize
from regimen.sources.play import baseline_actor, random_actor
from regimen.types import TimeStep

LIMIT = 4


@native_env
class Countdown(NativeEnv):
    """Ends after as many steps as it has drawn, 1 to 6, but for its limit; who has drawn 3 is cut short one step
    before. It goes on paying after its end: the number of the step, less a half."""

    max_episode_steps: int = LIMIT
    reward_components = ("count", "cost")
    metric_reductions = {"last": "last", "sum": "sum", "least": "min", "most": "max", "mean": "mean"}  # noqa: RUF012

    @property
    def observation_space(self):
        return spaces.Box(-np.inf, np.inf, (1,), np.float32)

    @property
    def action_space(self):
        return spaces.Discrete(2)

    def reset(self, key):
        state = {"left": jax.random.randint(key, (), 1, 7), "t": jnp.int32(0)}
        return state, state["left"].astype(jnp.float32)[None]

    def step(self, key, state, action):
        left, t = state["left"] - 1, state["t"] + 1
        told = dict.fromkeys(self.metric_reductions, state["left"].astype(jnp.float32))
        reward = jnp.array([t, -0.5], jnp.float32)
        cut = (left == 1) & (t == 2)
        return {"left": left, "t": t}, TimeStep(left.astype(jnp.float32)[None], reward, left == 0, cut, told)


def test_episodes_that_have_ended_count_no_further():
    handle = resolve(Countdown())
    played = NativeEvaluator(handle, random_actor(handle.action_space))((), 3, 40)
    drawn = played.metrics["most"]  # as many steps as were left at the start
    assert set(drawn.tolist()) == {1, 2, 3, 4, 5, 6}
    length = np.where(drawn == 3, 2, np.minimum(drawn, LIMIT))
    np.testing.assert_array_equal(played.lengths, length)
    np.testing.assert_array_equal(played.terminated, length == drawn)
    np.testing.assert_allclose(played.components["count"], length * (length + 1) / 2)
    np.testing.assert_allclose(played.components["cost"], -length / 2)
    np.testing.assert_allclose(played.returns, length * (length + 1) / 2 - length / 2)
    np.testing.assert_allclose(played.metrics["last"], drawn - length + 1)
    np.testing.assert_allclose(played.metrics["least"], drawn - length + 1)
    np.testing.assert_allclose(played.metrics["sum"], length * (2 * drawn - length + 1) / 2)
    np.testing.assert_allclose(played.metrics["mean"], (2 * drawn - length + 1) / 2, rtol=1e-6)


def lean(env, key, state, obs):
    """Push to where the pole leans: it swings up and falls in the end."""
    return (obs[2] > 0).astype(jnp.int32)


def test_cartpole_against_episodes_played_one_by_one():
    handle, episodes, seed = resolve(CartPole(max_episode_steps=60)), 6, 11
    played = NativeEvaluator(handle, baseline_actor(lean))((), seed, episodes)
    step = jax.jit(handle.native.step)
    starts = jax.random.split(jax.random.split(jax.random.key(seed))[0], episodes)
    for j, key in enumerate(starts):
        (state, obs), total, over, t = handle.native.reset(key), 0.0, False, 0
        while not over and t < 60:
            state, ts = step(key, state, lean(None, None, None, obs))
            obs, over, total, t = ts.obs, bool(ts.terminated), total + float(ts.reward.sum()), t + 1
        assert (played.returns[j], played.lengths[j], played.terminated[j]) == (total, t, over)
    assert len(set(played.lengths.tolist())) > 1, "they end at different times"


@pytest.mark.parametrize("env", ["cartpole", "gym:CartPole-v1"])
def test_random_episodes_are_as_long_as_gymnasiums(env):
    """22.3 steps on the mean with a deviation of 12: of 200 episodes 99.99% of means lie between 19 and 26."""
    from regimen.policies.evaluate import evaluate

    played = evaluate(env, policy="random", episodes=200)
    assert 19 < played.returns.mean() < 26 and 8 < played.returns.std() < 17
    np.testing.assert_array_equal(played.returns, played.lengths)


# --- what the policy is given ----------------------------------------------------------------------------------------


class Wilful:
    """A policy that prefers the first option it is allowed, counts the steps of an episode, and says so."""

    def initial_carry(self, lead):
        return jnp.zeros(lead, jnp.int32)

    def act(self, params, obs, carry, noise, *, mask=None, greedy=False):
        assert greedy and noise is None
        rows = jax.tree.leaves(obs)[0].shape[0]
        mask = jnp.ones((rows, 3), bool) if mask is None else mask
        return jnp.argmax(mask, axis=-1) + 0 * carry, carry + 1, {}

    def to_env(self, action):
        return action


@native_env
class Forbidding(NativeEnv):
    """Two steps; only the last of three options is allowed, and any other costs a hundred."""

    max_episode_steps: int = 2
    observation_space = property(lambda self: spaces.Box(-1, 1, (1,), np.float32))
    action_space = property(lambda self: spaces.Discrete(3))

    def action_mask(self, state):
        return jnp.array([False, False, True])

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, key, state, action):
        return state, TimeStep(jnp.zeros(1), jnp.where(action == 2, 1.0, -100.0), jnp.bool_(False))


class HostForbidding(gymnasium.Env):
    """The same for Gymnasium."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)
    max_episode_steps = 2

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"action_mask": np.array([0, 0, 1])}

    def step(self, action):
        return (
            np.zeros(1, np.float32),
            1.0 if action == 2 else -100.0,
            False,
            False,
            {"action_mask": np.array([0, 0, 1])},
        )


@pytest.mark.parametrize("env", [Forbidding(), HostForbidding], ids=["native", "host"])
def test_no_policy_takes_what_a_mask_forbids(env):
    handle = resolve(env)
    assert make_evaluator(handle, Wilful())((), 0, 3).returns.tolist() == [2.0] * 3
    random = (
        NativeEvaluator(handle, random_actor(handle.action_space)) if handle.native else HostEvaluator(handle, None)
    )
    assert random((), 0, 20).returns.tolist() == [2.0] * 20


class Seeded(gymnasium.Env):
    """1 to 5 steps by its seed, each of which pays the action; the odd ones are cut short. `success` for the long."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(6)

    def reset(self, *, seed=None, options=None):
        self.left = self.length = 1 + seed % 5
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        over, odd = self.left == 0, self.length % 2 == 1
        return np.zeros(1, np.float32), float(action), over and not odd, over and odd, {"is_success": self.length > 3}


class Counter(Wilful):
    """Acts by the number of steps it remembers."""

    def act(self, params, obs, carry, noise, *, mask=None, greedy=False):
        return carry, carry + 1, {}


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_episode_j_starts_from_the_jth_seed_and_forgets(num_envs):
    """However many are played at a time: a policy's memory and an episode's sums begin anew."""
    handle = resolve(Seeded)
    evaluator = HostEvaluator(handle, lambda params, obs, mask, memory: (memory, memory + 1), num_envs, algo=Counter())
    for _ in range(2):  # environments are kept between evaluations
        played = evaluator((), 7, 8)
        length = 1 + (7 + np.arange(8)) % 5
        np.testing.assert_array_equal(played.lengths, length)
        np.testing.assert_array_equal(played.returns, length * (length - 1) / 2)
        np.testing.assert_array_equal(played.terminated, length % 2 == 0)
        np.testing.assert_array_equal(played.success, length > 3)
    evaluator.close()


def test_the_random_policy_keeps_to_bounds_and_covers_them():
    space = spaces.Dict([("size", spaces.Box(2.0, 5.0, (2,), np.float32)), ("free", spaces.Box(-np.inf, np.inf, (1,)))])
    actor = random_actor(space)
    drawn, _ = actor.act(None, (), jax.random.key(0), None, jnp.zeros((400, 1)), None, ())
    assert 2.0 <= drawn["size"].min() < 2.1 and 4.9 < drawn["size"].max() <= 5.0
    assert -0.3 < drawn["free"].mean() < 0.3 and 0.8 < drawn["free"].std() < 1.2, "standard normal without bounds"


def test_a_component_may_be_called_success():
    one = np.ones(2)
    played = Evaluation("x", "greedy", 0, one, {"success": one, "cost": one}, one, one > 0, {"success": one, "n": one})
    assert played.to_dict()["reward_components"] == {"success": 1.0, "cost": 1.0}
    assert played.to_dict()["metrics"] == {"n": 1.0} and played.point()["eval/reward/success"] == 1.0


def test_metrics_are_shown_by_their_labels_and_kept_under_their_names():
    handle = dataclasses.replace(resolve(Countdown()), metrics={"last": Metric("last", label="the last number")})
    ones = np.ones(3)
    sums = SimpleNamespace(reward=np.ones((3, 2)), length=ones, metrics={"last": 4 * ones, "sum": 2 * ones})
    played = summarize(handle, "greedy", 0, sums, ones > 0)
    assert played.to_dict()["metrics"] == {"last": 4.0, "sum": 2.0}
    assert {"the last number  4", "sum  2"} <= set(played.lines())
    assert "the last number</th>" in played._repr_html_()
