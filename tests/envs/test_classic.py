"""Native classic control against Gymnasium's: the same transitions, rewards, ends, starts and spaces."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen.envs.registry import ENVS, resolve

NAMES = ("cartpole", "acrobot", "mountain_car", "mountain_car_continuous", "pendulum")
PI = np.pi
# Where states are drawn: beyond what a random policy visits, so that every bound and every ending is met.
LOW = {
    "cartpole": (-2.6, -3.0, -0.25, -3.0),
    "acrobot": (-PI, -PI, -2 * PI, -3 * PI),
    "mountain_car": (-1.2, -0.07),
    "mountain_car_continuous": (-1.2, -0.07),
    "pendulum": (-PI, -8.0),
}
HIGH = {name: tuple(-x for x in low) for name, low in LOW.items()}
HIGH["mountain_car"] = HIGH["mountain_car_continuous"] = (0.6, 0.07)
ANGLES = {"acrobot": [0, 1], "pendulum": [0]}


def step(env, state, action):
    """One compiled call for all of them."""
    keys = jax.random.split(jax.random.key(0), len(state))
    return jax.jit(lambda env, *args: jax.vmap(env.step)(*args))(env, keys, state, action)


def transitions(name, n=1000, seed=0, stretch=1.0):
    rng = np.random.default_rng(seed)
    state = rng.uniform(LOW[name], HIGH[name], (n, len(LOW[name]))).astype(np.float32)
    state[:, 2:] *= stretch
    space = resolve(name).action_space
    space.seed(seed)
    action = np.stack([space.sample() for _ in range(n)])
    return state, action.astype(np.int32) if action.ndim == 1 else action


def gymnasium_steps(name, state, action):
    env = gymnasium.make(ENVS[name].gym_id, disable_env_checker=True)
    rows = []
    for s, a in zip(state, action):
        env.reset()
        env.unwrapped.state = s.astype(np.float64)
        obs, reward, terminated, _, _ = env.unwrapped.step(a)
        rows.append((np.asarray(env.unwrapped.state, np.float64), obs, reward, terminated))
    return [np.stack(column) for column in zip(*rows)]


def distance(name, a, b):
    difference = np.asarray(a) - b
    for i in ANGLES.get(name, []):
        difference[:, i] -= 2 * PI * np.round(difference[:, i] / (2 * PI))
    return np.max(np.abs(difference) / np.maximum(1.0, np.abs(b)))


@pytest.mark.parametrize("name", NAMES)
def test_transitions_equal_gymnasium(name):
    state, action = transitions(name)
    next_state, obs, reward, terminated = gymnasium_steps(name, state, action)
    mine, ts = step(resolve(name).native, state, action)
    close = 2e-5 if name == "acrobot" else 5e-7  # four Runge-Kutta stages add up
    assert distance(name, mine, next_state) < close
    np.testing.assert_allclose(ts.obs, obs, rtol=close, atol=close)
    np.testing.assert_allclose(ts.reward, reward, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ts.terminated, terminated)
    assert ts.obs.dtype == jnp.float32 and ts.reward.dtype == jnp.float32 and ts.terminated.dtype == bool
    if name != "pendulum":
        assert 0 < terminated.sum() < len(state)


@pytest.mark.parametrize("name", NAMES)
def test_in_float64_only_rounding_is_left(name):
    """At any speed: what differs in float32 is rounding, not the equations."""
    state, action = transitions(name, 200, stretch=3.0)
    next_state, _, _, terminated = gymnasium_steps(name, state, action)
    with jax.enable_x64(True):
        mine, ts = step(resolve(name).native, state.astype(np.float64), action)
        assert mine.dtype == jnp.float64
        # Gymnasium keeps the continuous car's state in float32 itself.
        assert distance(name, mine, next_state) < (1e-7 if name == "mountain_car_continuous" else 1e-10)
        np.testing.assert_array_equal(ts.terminated, terminated)


def test_actions_beyond_the_bounds_are_treated_as_gymnasium_does():
    for name in ("pendulum", "mountain_car_continuous"):
        state, action = transitions(name, 20)
        next_state, _, reward, _ = gymnasium_steps(name, state, 3 * action)
        mine, ts = step(resolve(name).native, state, 3 * action)
        np.testing.assert_allclose(ts.reward, reward, rtol=2e-6, atol=2e-6)
        assert distance(name, mine, next_state) < 5e-7


@pytest.mark.parametrize("name", NAMES)
def test_starts_are_distributed_as_gymnasium_says(name):
    env = resolve(name).native
    state, obs = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 2000))
    theirs = gymnasium.make(ENVS[name].gym_id, disable_env_checker=True)
    theirs.reset(seed=0)
    samples = []
    for _ in range(2000):
        theirs.reset()
        samples.append(np.asarray(theirs.unwrapped.state))
    theirs = np.stack(samples)
    assert np.asarray(obs).dtype == np.float32
    width = theirs.max(0) - theirs.min(0)
    for statistic in (np.min, np.max, np.mean, np.std):
        assert np.all(np.abs(statistic(np.asarray(state), 0) - statistic(theirs, 0)) <= 0.03 * width + 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_spaces_limits_and_thresholds_are_gymnasiums(name):
    handle, theirs = resolve(name), gymnasium.make(ENVS[name].gym_id, disable_env_checker=True)
    assert handle.observation_space == theirs.observation_space
    assert handle.action_space == theirs.action_space
    assert handle.max_episode_steps == theirs.spec.max_episode_steps
    assert handle.return_threshold == theirs.spec.reward_threshold


def test_an_episode_follows_gymnasiums():
    """Not one step but many: the same actions from the same start lead along the same path."""
    theirs = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    theirs.reset(seed=3)
    env = resolve("pendulum").native
    state = jnp.asarray(theirs.unwrapped.state, jnp.float32)
    rng = np.random.default_rng(0)
    one = jax.jit(lambda s, a: env.step(jax.random.key(0), s, a))
    for _ in range(50):
        action = rng.uniform(-2, 2, 1).astype(np.float32)
        obs, reward, *_ = theirs.step(action)
        state, ts = one(state, action)
    np.testing.assert_allclose(ts.obs, obs, atol=1e-3)
    np.testing.assert_allclose(ts.reward, reward, rtol=1e-3)


def test_parameters_are_data_and_do_not_recompile():
    traces = []

    @jax.jit
    def run(env, state):
        traces.append(1)
        return env.step(jax.random.key(0), state, jnp.int32(1))[0]

    state = jnp.array([0.0, 0.0, 0.1, 0.0])
    outcomes = {float(run(resolve("cartpole", {"gravity": g}).native, state)[3]) for g in (1.0, 9.8, 20.0)}
    assert len(outcomes) == 3 and len(traces) == 1


@pytest.mark.parametrize(
    ("name", "baseline", "at_least"),
    [
        ("cartpole", "heuristic", 475),
        ("acrobot", "heuristic", -120),
        ("mountain_car", "heuristic", -130),
        ("mountain_car_continuous", "heuristic", 85),
        ("pendulum", "heuristic", -250),
    ],
)
def test_heuristics_are_good(name, baseline, at_least):
    env = resolve(name).native

    @jax.jit
    def returns(keys):
        def body(carry, key):
            state, obs, done, total = carry
            state, ts = env.step(key, state, env.baselines[baseline](env, key, state, obs))
            return (state, ts.obs, done | ts.terminated, total + jnp.where(done, 0.0, ts.reward)), None

        def one(key):
            start = (*env.reset(key), jnp.bool_(False), jnp.float32(0.0))
            return jax.lax.scan(body, start, jax.random.split(key, env.max_episode_steps))[0][3]

        return jax.vmap(one)(keys)

    assert returns(jax.random.split(jax.random.key(0), 50)).mean() >= at_least
