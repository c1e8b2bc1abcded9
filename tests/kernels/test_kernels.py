"""Kernels, interpreted on a CPU, against plain JAX. On a GPU the same kernels are compiled."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx  # noqa: F401 - networks are loaded once for all

from regimen import kernels
from regimen.algorithms.ppo import PPO
from regimen.config.schema import NetworkConfig
from regimen.envs import registry
from regimen.envs.protocol import NativeEnv, native_env
from regimen.kernels import dense, scalars
from regimen.policies.evaluate import NativeEvaluator
from regimen.schedule import Steps
from regimen.sources import play
from regimen.sources.scan import Sample, ScanSource, advance, as_kernel, finished, sampled
from regimen.types import Spec, TimeStep

ENVS = 16


def bound(name: str, **settings):
    handle = registry.resolve(name) if isinstance(name, str) else name
    spec = Spec(handle.observation_space, handle.action_space, handle.reward_components, num_envs=ENVS)
    algo = PPO(**settings).bind(spec)
    return handle, algo, algo.init(jax.random.key(0))


def rolled(env, algo, state, steps=12, key=3):
    """A rollout as a kernel, and as a scan over `advance`."""
    source = ScanSource(Steps(ENVS * steps), ENVS)
    carry, params = source.init(env, algo, jax.random.key(1)), algo.actor_params(state)
    noise = jax.vmap(lambda k: algo.noise(k, (ENVS,)))(jax.random.split(jax.random.key(key), steps))
    keys = jax.random.split(jax.random.key(key + 1), (steps, ENVS))

    def plain(carry, params):
        def body(carry, x):
            row, carry = advance(env, algo, params, carry, *x)
            return carry, row

        return jax.lax.scan(body, carry, (noise, keys))

    return (lambda c, p: as_kernel(env, algo, p, c, noise, keys)), plain, carry, params


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setenv("REGIMEN_KERNELS", "interpret")


def close(a, b, tolerance=1e-5):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_a_rollout_as_a_kernel_is_the_rollout(interpreted, name):
    """Rows, resets, sums and the carry, also of environments that end within it."""
    handle, algo, state = bound(name)
    kernel, plain, carry, params = rolled(handle.native, algo, state)
    carry = carry.replace(length=carry.length.at[:3].set(handle.native.max_episode_steps - 5))
    got, expected = jax.jit(kernel)(carry, params), jax.jit(plain)(carry, params)
    assert np.asarray(expected[1].done).sum() >= 3
    close(got, expected)


def test_a_rollout_of_several_seeds_is_that_of_each(interpreted):
    handle, algo, state = bound("cartpole")
    kernel, plain, carry, params = rolled(handle.native, algo, state, steps=4)
    two = jax.tree.map(lambda x: jnp.stack([x, 1.5 * x]), params)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), carry)
    close(jax.jit(jax.vmap(kernel))(both, two), jax.jit(jax.vmap(plain))(both, two))


def test_normalised_observations_pass_through_the_kernel(interpreted):
    handle, algo, state = bound("cartpole", normalize_obs=True)
    norm = jax.tree.map(lambda x: x + 2.0, state.norm)
    kernel, plain, carry, params = rolled(handle.native, algo, state.replace(norm=norm), steps=3)
    close(jax.jit(kernel)(carry, params), jax.jit(plain)(carry, params))


@native_env
class Drawing(NativeEnv):
    """An environment that draws in its step."""

    observation_space = registry.resolve("cartpole").observation_space
    action_space = registry.resolve("cartpole").action_space
    max_episode_steps: int = 9

    def reset(self, key):
        return jnp.zeros(4), jnp.zeros(4)

    def step(self, key, state, action):
        state = state + jax.random.normal(key, (4,))
        return state, TimeStep(obs=state, reward=jnp.float32(1.0), terminated=jnp.bool_(False))


def test_an_environment_that_draws_in_its_step_has_no_kernel(interpreted):
    _, algo, state = bound("cartpole")
    kernel, _, carry, params = rolled(Drawing(), algo, state, steps=2)
    assert kernel(carry, params) is None


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("sizes", [(4, 64, 64, 2), (7, 20, 3)])
def test_a_dense_network_and_its_gradient(activation, sizes):
    rng = np.random.default_rng(0)

    def values(*shape):
        return jnp.asarray(rng.standard_normal(shape) * 0.4, jnp.float32)

    layers = tuple((values(a, b), values(b)) for a, b in itertools.pairwise(sizes))
    x = values(150, sizes[0])  # the last tile is not full
    tiling = dense.Tiling(activation, rows=32, programs=2, interpret=True)

    def loss(network, layers, x):
        return jnp.sin(network(layers, x)).sum()

    def fused(layers, x):
        return dense.dense(tiling, layers, x)

    def plain(layers, x):
        return dense.plain(activation, layers, x)

    close(fused(layers, x), plain(layers, x))
    close(jax.grad(loss, (1, 2))(fused, layers, x), jax.grad(loss, (1, 2))(plain, layers, x), 1e-4)


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_the_gradient_of_a_loss_as_kernels(monkeypatch, name):
    """PPO's, over discrete and continuous actions, whose deviation is a parameter outside of the networks."""
    handle, algo, state = bound(name, ent_coef=0.01, vf_clip=0.2)
    _, plain, carry, params = rolled(handle.native, algo, state, steps=9)
    batch = jax.jit(plain)(carry, params)[1].batch
    moved = jax.tree.map(lambda x: x + 0.01, state.models["policy"].params)  # ratios other than 1
    state = state.replace(models={"policy": state.models["policy"].replace(params=moved)})
    expected = jax.jit(algo.gradient)(state, batch)
    monkeypatch.setenv("REGIMEN_KERNELS", "interpret")
    kernels.UNFIT.clear()
    got = jax.jit(lambda *x: algo.gradient(*x))(state, batch)
    assert not kernels.UNFIT
    close(got, expected)


def test_a_network_behind_a_memory_has_no_kernel(monkeypatch):
    """Its gradient goes on through what it reads."""
    handle = registry.resolve("cartpole")
    spec = Spec(handle.observation_space, handle.action_space, handle.reward_components, num_envs=ENVS)
    algo = PPO(network=NetworkConfig(hidden=(16, 16), memory="gru"), sequence_length=1).bind(spec)
    state = algo.init(jax.random.key(0))
    _, plain, carry, params = rolled(handle.native, algo, state, steps=3)
    batch = jax.jit(plain)(carry, params)[1].batch
    monkeypatch.setenv("REGIMEN_KERNELS", "interpret")
    kernels.UNFIT.clear()
    jax.eval_shape(lambda *x: algo.gradient(*x), state, batch)
    assert kernels.UNFIT


def test_gradients_of_several_seeds(monkeypatch):
    handle, algo, state = bound("pendulum")
    _, plain, carry, params = rolled(handle.native, algo, state, steps=3)
    batch = jax.jit(plain)(carry, params)[1].batch
    models = state.models["policy"]
    params = jax.tree.map(lambda x: jnp.stack([x, 1.1 * x]), models.params)

    def gradient(params):
        return algo.gradient(state.replace(models={"policy": models.replace(params=params)}), batch)

    expected = jax.jit(jax.vmap(gradient))(params)
    monkeypatch.setenv("REGIMEN_KERNELS", "interpret")
    close(jax.jit(jax.vmap(lambda x: gradient(x)))(params), expected)


def test_an_evaluation_as_a_kernel(monkeypatch):
    handle, algo, state = bound("cartpole")
    params = algo.actor_params(state)
    evaluator = NativeEvaluator(handle, play.greedy_actor(algo))
    expected = evaluator(params, 5, 7)
    monkeypatch.setenv("REGIMEN_KERNELS", "interpret")
    got = NativeEvaluator(handle, play.greedy_actor(algo))(params, 5, 7)
    np.testing.assert_array_equal(got.returns, expected.returns)
    np.testing.assert_array_equal(got.lengths, expected.lengths)


def test_rounding_to_even_and_away_from_zero():
    x = jnp.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4, -2.6])
    for method in (jax.lax.RoundingMethod.TO_NEAREST_EVEN, jax.lax.RoundingMethod.AWAY_FROM_ZERO):
        got = scalars.rounded(x, {"rounding_method": method})
        np.testing.assert_array_equal(got, jax.lax.round(x, method))


def test_a_function_of_arrays_as_one_of_blocks():
    """Slices, joins, reductions, products and indices, each number a block of rows."""

    def function(x, m):
        joined = jnp.concatenate([x[::2], x[1:2] * 2.0])
        best = jnp.argmax(joined)
        return m @ joined, best, jnp.where(joined > 0, joined, -joined).sum(), jnp.cumsum(x)[::-1], jnp.any(x > 1)

    rng = np.random.default_rng(1)
    x, m = (jnp.asarray(rng.standard_normal((5, *shape)), jnp.float32) for shape in ((4,), (2, 3)))
    traced = scalars.trace(function, x[0], m[0])
    inputs = [scalars.numbers(list(v.reshape(5, -1).T), v.shape[1:], v.dtype) for v in (x, m)]
    expected = jax.vmap(function)(x, m)
    for got, like in zip(traced(inputs), expected, strict=True):
        blocks = np.stack([np.broadcast_to(b, 5) for b in got.items.reshape(-1)], axis=1)
        np.testing.assert_allclose(blocks.reshape(like.shape), like, rtol=1e-5)


def test_a_sample_of_episodes_and_the_summary_of_all():
    handle, algo, state = bound("cartpole")
    _, plain, carry, params = rolled(handle.native, algo, state, steps=60)
    rollout = jax.jit(plain)(carry, params)[1]
    every = finished(rollout, rollout.done.size)
    n = int(every.count)
    some = sampled(rollout, Sample(5, 20.0), handle.reward_components)
    taken = np.arange(5) * n // 5
    assert n > 5 and int(some.total) == n and int(some.count) == 5
    for name in ("step", "length", "reward", "terminated"):
        np.testing.assert_array_equal(getattr(some, name), np.asarray(getattr(every, name))[:n][taken])
    returns = np.asarray(every.reward)[:n, 0]
    mean, squares, least, most = some.summary["return"]
    np.testing.assert_allclose(
        [mean, squares / n, least, most], [returns.mean(), returns.var(), returns.min(), returns.max()], rtol=1e-5
    )
    np.testing.assert_allclose(some.summary["success"][0], (returns >= 20).mean(), rtol=1e-6)


def test_a_class_that_acts_in_its_own_way_has_no_kernel(interpreted):
    class Cautious(PPO):
        def policy(self, params, x, mask=None):
            return super().policy(params, x / 2, mask)

    handle, algo, state = bound("cartpole")
    spec = Spec(handle.observation_space, handle.action_space, handle.reward_components, num_envs=ENVS)
    params = algo.actor_params(state)
    assert algo.dense_policy(params) is not None and Cautious().bind(spec).dense_policy(params) is None
