"""Each distribution against scipy: log-probability, entropy, KL, and samples that follow it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from regimen.distributions import MASKED, for_space, joint
from regimen.errors import ConfigError

rows = st.lists(st.floats(-5, 5), min_size=4, max_size=4)


@settings(max_examples=30, deadline=None)
@given(rows, rows)
def test_categorical_matches_scipy(a, b):
    dist = for_space(spaces.Discrete(4))
    p, q = (dist.params(jnp.array(x), jnp.zeros(0)) for x in (a, b))
    pk, qk = (np.exp(np.array(x)) / np.exp(np.array(x)).sum() for x in (a, b))
    for action in range(4):
        assert float(dist.log_prob(p, jnp.int32(action))) == pytest.approx(np.log(pk[action]), abs=1e-4)
    assert float(dist.entropy(p)) == pytest.approx(stats.entropy(pk), abs=1e-4)
    assert float(dist.kl(p, q)) == pytest.approx(stats.entropy(pk, qk), abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(rows, st.lists(st.floats(-2, 1), min_size=4, max_size=4), rows)
def test_normal_matches_scipy(mean, log_std, action):
    dist = for_space(spaces.Box(-1, 1, (4,), np.float32))
    p = dist.params(jnp.array(mean), jnp.array(log_std))
    q = (jnp.array(action), jnp.array(log_std) * 0.5)
    ref = stats.norm(np.array(mean), np.exp(log_std))
    np.testing.assert_allclose(dist.log_prob(p, jnp.array(action)), ref.logpdf(np.array(action)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(dist.entropy(p), ref.entropy(), rtol=1e-4, atol=1e-4)
    s, t = np.exp(log_std), np.exp(np.array(log_std) * 0.5)
    expected = np.log(t / s) + (s**2 + (np.array(mean) - np.array(action)) ** 2) / (2 * t**2) - 0.5
    np.testing.assert_allclose(dist.kl(p, q), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), spaces.Box(-2, 2, (2,), np.float32)],
)
def test_samples_follow_the_log_probability(space):
    """The mean log-probability of samples is minus the entropy, for the joint as for its elements."""
    dist = for_space(space)
    head = jnp.linspace(-1, 1, dist.head_size)
    params = dist.params(head, jnp.full(dist.free_size, -0.3))
    noise = dist.noise(jax.random.key(0), (20_000,))
    actions = jax.vmap(lambda n: dist.sample(params, n))(noise)
    log_prob = jax.vmap(lambda a: joint(dist, dist.log_prob(params, a)))(actions)
    assert float(log_prob.mean()) == pytest.approx(-float(joint(dist, dist.entropy(params))), abs=0.03)
    assert dist.zeros((5, 2)).shape == (5, 2, *actions.shape[1:]) and dist.zeros((1,)).dtype == actions.dtype


def test_actions_reach_the_environment_in_its_own_space():
    box = spaces.Box(np.array([0.0, -np.inf], np.float32), np.array([10.0, np.inf], np.float32))
    dist = for_space(box)
    np.testing.assert_allclose(dist.to_env(jnp.array([[-3.0, -3.0], [0.0, 0.5]])), [[0.0, -3.0], [5.0, 0.5]])
    shifted = for_space(spaces.Discrete(3, start=-1))
    assert int(shifted.to_env(jnp.int32(0))) == -1
    many = for_space(spaces.MultiDiscrete([2, 3], start=[1, 5]))
    assert many.to_env(jnp.array([1, 2])).tolist() == [2, 7]


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 2])])
def test_masked_choices_are_never_taken(space):
    dist = for_space(space)
    mask = jnp.array([True, False, True, False])
    params = dist.params(jnp.array([0.0, 9.0, 1.0, 9.0]), jnp.zeros(0), mask)
    noise = dist.noise(jax.random.key(0), (500,))
    actions = np.asarray(jax.vmap(lambda n: dist.sample(params, n))(noise))
    allowed = {0, 2} if actions.ndim == 1 else {0}
    assert set(actions.ravel().tolist()) <= allowed
    assert np.isfinite(np.asarray(dist.entropy(params))).all()
    grad = jax.grad(lambda h: joint(dist, dist.entropy(dist.params(h, jnp.zeros(0), mask))))(jnp.zeros(4))
    assert np.isfinite(np.asarray(grad)).all() and MASKED < -1e8


def test_unsupported_action_space_is_named():
    with pytest.raises(ConfigError, match=r"Text.*not supported"):
        for_space(spaces.Text(4))
