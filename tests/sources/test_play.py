"""The player of whole episodes: where they start, what is drawn when, and what is recorded."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv, native_env
from regimen.envs.registry import resolve
from regimen.schedule import Episodes
from regimen.sources.host import HostSource
from regimen.sources.play import Actor, baseline_actor, play, play_host
from regimen.types import TimeStep

LIMIT = 5


@native_env
class Countdown(NativeEnv):
    """Ends when nothing is left of what it starts with; every step adds the action and takes one."""

    max_episode_steps: int = LIMIT
    observation_space = property(lambda self: spaces.Box(-np.inf, np.inf, (1,), np.float32))
    action_space = property(lambda self: spaces.Box(0, 1, (), np.float32))

    def reset(self, key):
        raise AssertionError("the starts are given")

    def step(self, key, state, action):
        after = {"left": state["left"] - 1, "sum": state["sum"] + action}
        return after, TimeStep(after["left"][None], action, after["left"] <= 0)


def start(left):
    state = {"left": jnp.asarray(left, jnp.float32), "sum": jnp.zeros(len(left))}
    return state, state["left"][:, None]


def same_key(t):
    return jax.random.key(0), jax.random.split(jax.random.key(0), 3)


def test_episodes_start_where_they_are_told_to_and_their_rows_stop_at_their_end():
    left = [2.0, 9.0, 4.0]
    actor = baseline_actor(lambda env, key, state, obs: obs[0] / 10)
    played = jax.jit(lambda env: play(env, actor, (), start(left), same_key, lambda state: state))(Countdown())
    np.testing.assert_array_equal(played.carry.length, [2, LIMIT, 4])
    np.testing.assert_array_equal(played.recording.length, [2, LIMIT, 4])
    np.testing.assert_array_equal(played.terminated, [True, False, True])
    np.testing.assert_array_equal(played.recording.start["left"], left)
    for e, steps in enumerate([2, LIMIT, 4]):
        rows = np.asarray(played.recording.rows["left"])[:, e]
        np.testing.assert_array_equal(rows[: steps + 1], left[e] - np.arange(steps + 1))
        np.testing.assert_array_equal(rows[steps:], left[e] - steps)
        total = sum(left[e] - t for t in range(steps)) / 10
        np.testing.assert_allclose(played.carry.state["sum"][e], total, rtol=1e-6)
        np.testing.assert_allclose(played.carry.reward[e, 0], total, rtol=1e-6)


def test_memory_starts_with_the_episode_and_each_environment_may_draw_from_its_own_key():
    """An actor that returns its memory, which counts from the parameter on, plus a draw."""

    def act(env, params, keys, state, obs, mask, memory):
        return memory + jax.vmap(jax.random.uniform)(keys), memory + 1

    actor = Actor(act, lambda params, rows: jnp.full(rows, params))

    def keys(t):
        now = jax.vmap(jax.random.fold_in, (0, None))(jax.random.split(jax.random.key(7), 3), t)
        return now, now

    played = play(Countdown(), actor, 100.0, start([1.0, 2.0, 3.0]), keys, lambda state: {"sum": state["sum"]})
    for e in range(3):
        own = jax.random.split(jax.random.key(7), 3)[e]
        draws = [float(jax.random.uniform(jax.random.fold_in(own, t))) for t in range(e + 1)]
        expected = np.cumsum([100 + t + draw for t, draw in enumerate(draws)])
        np.testing.assert_allclose(played.recording.rows["sum"][1 : e + 2, e], expected, rtol=1e-6)


class Seeded(gymnasium.Env):
    """As many steps as its seed, 1 to 4; it pays the action."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(50)

    def reset(self, *, seed=None, options=None):
        self.left = seed
        return np.full(1, seed, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.full(1, self.left, np.float32), float(action), self.left == 0, False, {}


def test_every_moment_of_episodes_on_the_host():
    source = HostSource.of(resolve(Seeded), Episodes(2), 2)
    moments = []
    for moment in play_host(source, lambda source: source.obs[:, 0].astype(int).tolist(), 1, 4):
        reward = np.where(moment.row["valid"][0], moment.row["reward"][0, :, 0], 0).tolist()
        moments.append((dict(moment.running), moment.actions, reward, [i for i, *_ in moment.ended]))
    source.close()
    assert moments == [
        ({0: 0, 1: 1}, [], [0, 0], []),  # episodes of 1 and 2 steps
        ({0: 0, 1: 1}, [1, 2], [1, 2], [0]),
        ({0: 2, 1: 1}, [3, 1], [3, 1], [1]),  # the third begins in the first environment
        ({0: 2, 1: 3}, [2, 4], [2, 4], []),
        ({0: 2, 1: 3}, [1, 3], [1, 3], [0]),
        ({1: 3}, [0, 2], [0, 2], []),  # nothing is left to play: the last goes on alone
        ({1: 3}, [0, 1], [0, 1], [1]),
    ]
