"""Stacks of frames and grey images: what is observed, and what a replay keeps of it."""

from collections import deque
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym

import regimen
from regimen.envs.adapters.gymnasium import to_gymnasium
from regimen.envs.check import check_env
from regimen.envs.frames import FramedEnv, FramedHostEnv, Frames
from regimen.envs.protocol import NativeEnv, native_env
from regimen.envs.registry import resolve
from regimen.errors import ConfigError
from regimen.policies.collect import episodes_of
from regimen.schedule import Steps
from regimen.sources.replay import Replay
from regimen.sources.scan import ScanSource
from regimen.types import TimeStep


@native_env
class Film(NativeEnv):
    """Coloured pictures that tell the number of the film and of the frame; a film ends at random."""

    max_episode_steps: int = 9
    side: int = 6
    ends: float = 0.2

    observation_space = property(lambda self: gym.Box(0, 255, (self.side, self.side, 3), np.uint8))
    action_space = property(lambda self: gym.Discrete(2))

    def image(self, state):
        x = jnp.zeros((self.side, self.side, 3), jnp.uint8).at[0, 0].set(state["film"]).at[1, 1].set(state["frame"])
        return x.at[2, 2, 1].set(state["frame"])

    def reset(self, key):
        state = {"film": jax.random.randint(key, (), 1, 255).astype(jnp.uint8), "frame": jnp.uint8(1)}
        return state, self.image(state)

    def step(self, key, state, action):
        state = state | {"frame": state["frame"] + jnp.uint8(1)}
        over = jax.random.bernoulli(key, self.ends)
        reward = jnp.where(action == state["frame"] % 2, 1.0, 0.0)
        return state, TimeStep(obs=self.image(state), reward=reward, terminated=over)

    def action_mask(self, state):
        return jnp.array([True, True]) & (state["frame"] > 0)


def film(**args):
    return resolve(Film(), args)


# --- what is observed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 4, 3), (3, 5, 4), (5, 4)])
@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_stack_is_the_last_frames_oldest_first(shape, grey, dtype):
    frames = Frames(3, grey and len(shape) == 3, shape)
    rng = np.random.default_rng(0)
    images = [(rng.random(shape) * 255).astype(dtype) for _ in range(6)]
    axis = 0 if shape[0] == 3 else -1

    def one(image):
        if image.ndim == 2:
            return image[..., None]
        if not grey:
            return image
        red, green, blue = (np.take(image.astype(np.float64), c, axis) for c in range(3))
        x = np.expand_dims(0.299 * red + 0.587 * green + 0.114 * blue, axis)
        return np.round(x).astype(dtype) if dtype == np.uint8 else x.astype(dtype)

    for xp in (np.asarray, jnp.asarray):
        seen = deque([one(images[0])] * 3, maxlen=3)
        stack = frames.start(frames.frame(xp(images[0])))
        for image in images[1:]:
            np.testing.assert_allclose(stack, np.concatenate(seen, axis), atol=1e-3)
            np.testing.assert_allclose(frames.newest(stack), seen[-1], atol=1e-3)
            seen.append(one(image))
            stack = frames.after(stack, frames.frame(xp(image)))
    space = frames.space(gym.Box(0, 255, shape, dtype))
    assert space.shape == stack.shape and space.dtype == dtype and np.asarray(stack) in space


@pytest.mark.parametrize("args", [{"frame_stack": 4}, {"frame_stack": 2, "grey_scale": True}, {"grey_scale": True}])
def test_native_and_stepped_environments_observe_the_same(args):
    """The compiled environment against Gymnasium's wrapper around the plain one, over several films."""
    native = film(**args).native
    assert isinstance(native, FramedEnv) and native.observation_space.dtype == np.uint8
    frames = native.frames
    one, other = to_gymnasium(native), FramedHostEnv(to_gymnasium(Film()), frames)
    for seed in range(3):
        (a, info), (b, _) = one.reset(seed=seed), other.reset(seed=seed)
        assert info["action_mask"].all()
        for _ in range(5):
            np.testing.assert_array_equal(a, b)
            (a, *rest), (b, *same) = one.step(0), other.step(0)
            assert rest[:3] == same[:3]
    assert check_env(film(**args)) == []


def test_settings_that_change_nothing_leave_the_environment_as_it_is():
    plain = Film()
    handle = resolve(plain, {"frame_stack": 1, "grey_scale": False})
    assert isinstance(handle.native, Film) and handle.frames is None


@pytest.mark.parametrize(
    ("env", "args", "message"),
    [
        ("cartpole", {"frame_stack": 4}, "env.frame_stack: only a single image"),
        ("probe/set", {"grey_scale": True}, "env.grey_scale: only a single image"),
        ("probe/image", {"grey_scale": True}, "env.grey_scale: an image of three colours is needed"),
        ("probe/image", {"frame_stack": 0}, "env.frame_stack: 0 is out of range"),
        ("probe/image", {"frame_stack": "many"}, "env.frame_stack"),
    ],
)
def test_what_cannot_be_stacked_is_refused_in_one_line(env, args, message):
    with pytest.raises(ConfigError) as error:
        resolve(env, args)
    assert message in str(error.value) and "\n" not in str(error.value)


# --- what a replay keeps ---------------------------------------------------------------------------------------------


@jax.tree_util.register_static
class Idle:
    """Whoever acts here does nothing."""

    def initial_carry(self, lead):
        return ()

    def noise(self, key, lead):
        return jnp.zeros(lead)

    def act(self, params, obs, carry, noise, *, mask=None, greedy=False):
        return jnp.zeros(noise.shape, jnp.int32), (), {}

    def to_env(self, action):
        return action


def rollouts(env, number, columns=3, rows=4):
    """Batches of an environment, one after the other."""
    source = ScanSource(Steps(rows * columns), columns)
    collect = jax.jit(lambda carry, key: source.next(env, Idle(), carry, {}, key)[:2])
    carry = source.init(env, Idle(), jax.random.key(0))
    for i in range(number):
        carry, batch = collect(carry, jax.random.key(i + 1))
        yield batch


def moments(obs):
    """Stacks [N, H, W, 3 k] as what they tell: film and frames."""
    obs = np.asarray(obs)
    return [(*map(int, x[0, 0]), *map(int, x[1, 1])) for x in obs.reshape(-1, *obs.shape[-3:])]


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_replay_keeps_each_frame_once_and_gives_whole_stacks(n_step):
    """Against what was observed, before the ring is full and after it has gone round: each sample is a row that a
    replay of whole stacks gives too, and all of those come but the oldest rows of a full ring."""
    handle = film(frame_stack=4)
    small = Replay(48, 4, 3, frames=handle.frames)
    large = Replay(48, 4, 3)
    likes = [r.zeros(handle.observation_space, np.zeros((), np.int32)) for r in (small, large)]
    assert likes[0].obs.nbytes * 4 == likes[1].obs.nbytes and likes[0].next_obs.shape == likes[0].obs.shape
    states = [(r.ring(), like) for r, like in zip((small, large), likes)]
    inserts = [jax.jit(r.insert) for r in (small, large)]
    samples = [jax.jit(partial(r.sample, size=2000, n_step=n_step, gamma=0.9)) for r in (small, large)]
    for i, batch in enumerate(rollouts(handle.native, 9)):
        states = [insert(*state, batch) for insert, state in zip(inserts, states)]
        seen = []
        for sample, state in zip(samples, states):
            x = sample(*state, jax.random.key(i))
            rows = zip(moments(x.obs), moments(x.next_obs), np.asarray(x.reward), np.asarray(x.discount))
            seen.append({row for row, weight in zip(rows, np.asarray(x.weight)) if weight > 0})
        few, all_of_them = seen
        assert few <= all_of_them
        missing = len(all_of_them - few)
        assert missing == 0 if i < 3 else missing <= 3 * 3
        assert len(few) >= 0.7 * len(all_of_them)


def test_episodes_of_a_replay_have_whole_stacks():
    """`regimen collect --policy replay`: what a ring that went round holds, column by column."""
    handle = film(frame_stack=3)
    replay = Replay(48, 4, 3, frames=handle.frames)
    ring, rows = replay.ring(), replay.zeros(handle.observation_space, np.zeros((), np.int32))
    observed = set()
    for batch in rollouts(handle.native, 6):
        ring, rows = replay.insert(ring, rows, batch)
        observed |= set(moments(batch.obs)) | set(moments(batch.next_obs))
    rows = jax.tree.map(np.asarray, rows)
    episodes = episodes_of(rows, np.asarray(ring.cursor), np.asarray(ring.count), Idle(), handle.frames)
    assert sum(len(e.reward) for e in episodes) >= 48 - 2 * 3
    for episode in episodes:
        assert set(moments(episode.obs)) <= observed


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "sac", "algo.batch_size": 8, "algo.buffer_size": 64, "algo.learning_starts": 8},
        {"algo": "ppo"},
    ],
)
def test_a_run_on_stacks_loads_and_goes_on(tmp_path, settings):
    settings = settings | {"rollout.steps": 16, "rollout.num_envs": 4, "network.encoder_size": 8}
    args = {"env_args": {"frame_stack": 3}, "track": False, "hidden": [8]}
    result = regimen.train("probe/image", total_steps=32, out=str(tmp_path / "run"), **args, **settings)
    policy = regimen.load_policy(result.run_dir)
    assert policy.observation_space.shape == (10, 10, 3)
    assert regimen.evaluate(result.run_dir, episodes=2).returns.shape == (2,)
    assert regimen.resume(result.run_dir, total_steps=48).summary["env_steps"] == 48
