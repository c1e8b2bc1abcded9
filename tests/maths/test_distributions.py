"""Each distribution against scipy: log-probability, entropy, KL, and samples that follow it; hybrid actions as rows of
elements, against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from regimen.distributions import LOG_STD_RANGE, MASKED, Elements, for_space, joint
from regimen.errors import ConfigError

rows = st.lists(st.floats(-5, 5), min_size=4, max_size=4)
sevenths = st.integers(-700, 700).map(lambda i: i / 7)  # most of them between two numbers of float32


@settings(max_examples=30, deadline=None, derandomize=True)
@given(rows, rows)
def test_categorical_matches_scipy(a, b):
    dist = for_space(spaces.Discrete(4))
    p, q = (dist.params(jnp.array(x), jnp.zeros(0)) for x in (a, b))
    pk, qk = (np.exp(np.array(x)) / np.exp(np.array(x)).sum() for x in (a, b))
    for action in range(4):
        assert float(dist.log_prob(p, jnp.int32(action))) == pytest.approx(np.log(pk[action]), abs=1e-4)
    assert float(dist.entropy(p)) == pytest.approx(stats.entropy(pk), abs=1e-4)
    assert float(dist.kl(p, q)) == pytest.approx(stats.entropy(pk, qk), abs=1e-3)


@settings(max_examples=30, deadline=None, derandomize=True)
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


INVERTED = {
    "discrete": spaces.Discrete(4, start=2),
    "multi discrete": spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "multi binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64),
    "matrix": spaces.Box(-1, 3, (2, 2), np.float32),
    "half bounded": spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, np.inf]), dtype=np.float32),
    "hybrid": spaces.Dict({"choice": spaces.Discrete(3), "arm": spaces.Tuple([spaces.Box(-3, 3, (2,), np.float32)])}),
}


@pytest.mark.parametrize("bounded", ["clip", "tanh"])
@pytest.mark.parametrize("space", INVERTED.values(), ids=INVERTED)
def test_from_env_undoes_to_env(space, bounded):
    dist = for_space(space, bounded=bounded, state_std=True)
    space.seed(0)
    members = [space.sample() for _ in range(50)]
    actions = jax.tree.map(lambda *x: np.stack(x), *members)
    stored = dist.from_env(actions)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), stored) == jax.tree.map(
        lambda x: (x.shape, x.dtype), dist.zeros((50,))
    )
    for a, b in zip(jax.tree.leaves(dist.to_env(stored)), jax.tree.leaves(actions)):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_squashed_actions_at_their_bounds_stay_finite():
    dist = for_space(spaces.Box(-2, 2, (1,), np.float32), bounded="tanh", state_std=True)
    stored = dist.from_env(np.array([[-2.0], [2.0], [1.9]], np.float32))
    assert np.isfinite(stored).all() and abs(float(stored[0, 0])) < 10
    assert float(stored[2, 0]) == pytest.approx(np.arctanh(0.95), abs=1e-4)


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


# --- tanh of a normal ------------------------------------------------------------------------------------------------

MEANS, LOG_STDS = np.linspace(-1.0, 3.0, 9), np.array([-4.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5])
# Gauss-Hermite with 12 nodes: what it is off by where the deviation is at most e^key
QUADRATURE = {-0.5: 2e-5, 0.0: 2e-4, 0.5: 5e-3, 1.0: 5e-2, 1.5: 0.2}


def squashed(size=1):
    return for_space(spaces.Box(-1, 1, (size,), np.float32), bounded="tanh")


def squashed_log_density(y, mean, std):
    """Of tanh(u), in float64, from scipy's distribution function alone: its slope by central differences."""
    step = 1e-5 * (1 - y**2)
    cdf = [stats.norm.cdf(np.arctanh(y + s), mean, std) for s in (-step, step)]
    return np.log((cdf[1] - cdf[0]) / (2 * step))


def exact_entropy(mean, log_std):
    """-E[log p(tanh u)] in float64 by a fine sum over the normal."""
    z = np.linspace(-12, 12, 24_001)
    weight = np.exp(-0.5 * z**2)
    u = mean + np.exp(log_std) * z
    slope = 2 * np.log(2) - 2 * np.logaddexp(u, -u)  # log(1 - tanh(u)^2)
    return log_std + 0.5 * np.log(2 * np.pi * np.e) + (slope * weight).sum() / weight.sum()


@pytest.mark.parametrize("log_std", [-2.0, -1.0, 0.0, 0.5])
@pytest.mark.parametrize("mean", [0.0, -0.7, 1.5])
def test_squashed_density_is_the_slope_of_its_distribution_function(mean, log_std):
    dist, std = squashed(), np.exp(log_std)
    params = dist.params(jnp.full(1, mean), jnp.full(1, log_std))
    y = np.tanh(mean + std * np.linspace(-2, 2, 21))
    got = dist.log_prob(params, jnp.asarray(np.arctanh(y)[:, None], jnp.float32))[:, 0]
    np.testing.assert_allclose(got, squashed_log_density(y, mean, std), atol=2e-3)
    y = np.tanh(np.linspace(-9, 9, 6001))
    density = np.exp(np.asarray(dist.log_prob(params, jnp.asarray(np.arctanh(y)[:, None], jnp.float32)))[:, 0])
    assert np.trapezoid(density, y) == pytest.approx(1.0, abs=1e-3)


def test_squashed_entropy_against_integration():
    """Twelve nodes are exact to rounding below a deviation of 0.6, and 0.2 nats off at 4.5."""
    dist = squashed(len(MEANS))
    for log_std in LOG_STDS:
        params = dist.params(jnp.asarray(MEANS), jnp.full(len(MEANS), log_std))
        exact = [exact_entropy(m, log_std) for m in MEANS]
        tolerance = min(v for k, v in QUADRATURE.items() if log_std <= k)
        np.testing.assert_allclose(dist.entropy(params), exact, atol=tolerance, err_msg=str(log_std))


def test_squashed_entropy_gradient_against_finite_differences():
    dist, h = squashed(len(MEANS)), 1e-4

    def total(mean, log_std):
        return dist.entropy(dist.params(mean, log_std)).sum()

    for log_std, tolerance in ((-3.0, 1e-4), (-1.0, 1e-4), (0.0, 2e-3), (0.5, 0.03)):
        at = jnp.asarray(MEANS), jnp.full(len(MEANS), log_std)
        by_mean, by_std = jax.grad(total, (0, 1))(*at)
        expected = [(exact_entropy(m + h, log_std) - exact_entropy(m - h, log_std)) / (2 * h) for m in MEANS]
        np.testing.assert_allclose(by_mean, expected, atol=tolerance)
        expected = [(exact_entropy(m, log_std + h) - exact_entropy(m, log_std - h)) / (2 * h) for m in MEANS]
        np.testing.assert_allclose(by_std, expected, atol=tolerance)


def test_squashed_kl_is_the_integral_over_actions():
    dist = squashed()
    p, q = (tuple(jnp.full(1, x) for x in pair) for pair in ((0.3, -0.7), (-0.4, -0.2)))
    u = np.linspace(-4.0, 4.5, 4001)
    log_p, log_q = (np.asarray(dist.log_prob(x, jnp.asarray(u[:, None], jnp.float32)))[:, 0] for x in (p, q))
    integral = np.trapezoid(np.exp(log_p) * (log_p - log_q), np.tanh(u))
    assert float(dist.kl(p, q)[0]) == pytest.approx(integral, abs=1e-3)


def test_squashed_log_probability_stays_finite_far_out():
    dist = squashed()
    value, slope = jax.value_and_grad(lambda u: dist.log_prob((jnp.zeros(1), jnp.zeros(1)), u).sum())(jnp.full(1, 40.0))
    assert np.isfinite(value) and np.isfinite(slope).all()
    assert float(value) == pytest.approx(-800 - 0.5 * np.log(2 * np.pi) - 2 * (np.log(2) - 40), rel=1e-5)


# --- bounds, deviations, several choices -----------------------------------------------------------------------------


def test_deviation_from_the_network():
    """The head's second half is the logarithm of the deviation, on top of its start, within a range."""
    dist = for_space(spaces.Box(-1, 1, (2,), np.float32), log_std_init=-1.0, state_std=True)
    assert (dist.head_size, dist.free_size, dist.head_shape) == (4, 0, (1, 4))
    mean, log_std = dist.params(jnp.array([[0.5, -0.5, 0.25, -99.0], [1.0, 2.0, 0.0, 99.0]]), jnp.zeros(0))
    np.testing.assert_allclose(mean, [[0.5, -0.5], [1.0, 2.0]])
    np.testing.assert_allclose(log_std, [[-0.75, LOG_STD_RANGE[0]], [-1.0, LOG_STD_RANGE[1]]])
    grid = for_space(spaces.Box(-1, 1, (3, 2), np.float32), state_std=True)
    assert grid.head_shape == (3, 4)
    mean, log_std = grid.params(jnp.arange(12.0) / 10, jnp.zeros(0))  # each row is (means, deviations) of its own
    np.testing.assert_allclose(mean, [0.0, 0.1, 0.4, 0.5, 0.8, 0.9], atol=1e-6)
    np.testing.assert_allclose(log_std, [0.2, 0.3, 0.6, 0.7, 1.0, 1.1], atol=1e-6)


def test_squashing_is_for_bounded_dimensions_only():
    low, high = np.array([0.0, -np.inf, 2.0, -np.inf]), np.array([10.0, np.inf, np.inf, -3.0])
    dist = for_space(spaces.Box(low, high, dtype=np.float64), bounded="tanh")
    assert dist.squashed.tolist() == [True, False, False, False]
    action = jnp.array([[0.7, 5.0, -4.0, 1.0], [-0.7, -5.0, 4.0, -9.0]])
    expected = [[5 + 5 * np.tanh(0.7), 5.0, 2.0, -3.0], [5 - 5 * np.tanh(0.7), -5.0, 4.0, -9.0]]
    np.testing.assert_allclose(dist.to_env(action), expected, rtol=1e-6)
    params = dist.params(jnp.zeros(4), jnp.zeros(4))
    gauss = stats.norm.logpdf(np.asarray(action))
    gauss[:, 0] -= np.log(1 - np.tanh(np.asarray(action)[:, 0]) ** 2)
    np.testing.assert_allclose(dist.log_prob(params, action), gauss, rtol=1e-5)
    np.testing.assert_allclose(dist.entropy(params)[1:], stats.norm.entropy(), rtol=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(sevenths, st.integers(1, 700), st.floats(-60, 60), st.sampled_from(["clip", "tanh"]), st.booleans())
def test_every_action_reaches_the_environment_inside_its_bounds(low, width, u, bounded, double):
    dtype = np.float64 if double else np.float32
    box = spaces.Box(dtype(low), dtype(low + width / 7), (1,), dtype)
    action = for_space(box, bounded=bounded).to_env(jnp.full((1, 1), u))
    assert box.contains(np.asarray(action)[0].astype(dtype)), (box, float(np.asarray(action)[0, 0]))
    half = spaces.Box(dtype(low), dtype(np.inf), (1,), dtype)
    assert half.contains(np.asarray(for_space(half, bounded=bounded).to_env(jnp.full(1, u))).astype(dtype))


def test_two_dimensional_box():
    low = np.array([[0.0, -1.0], [10.0, -4.0], [0.0, 0.0]], np.float32)
    dist = for_space(spaces.Box(low, low + 2, dtype=np.float32))
    assert (dist.size, dist.rows, dist.head_shape) == (6, 3, (3, 2))
    np.testing.assert_allclose(dist.to_env(jnp.zeros((5, 6))), np.broadcast_to(low + 1, (5, 3, 2)))
    one = dist.to_env(jnp.eye(6)[2])  # element 2 is row 1, column 0
    np.testing.assert_allclose(one, low + 1 + np.array([[0, 0], [1, 0], [0, 0]]))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.data())
def test_choices_of_unequal_sizes_are_categoricals_side_by_side(data):
    sizes = data.draw(st.sampled_from([(2, 5, 3), (1, 4), (3, 3), (4,)]))
    cuts = np.cumsum(sizes)[:-1]
    floats = st.lists(st.floats(-4, 4), min_size=sum(sizes), max_size=sum(sizes))
    head, other = (np.array(data.draw(floats), np.float32) for _ in range(2))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=sum(sizes), max_size=sum(sizes))))
    for start, size in zip([0, *cuts], sizes):
        mask[start + data.draw(st.integers(0, size - 1))] = True
    many = for_space(spaces.MultiDiscrete(sizes))
    for m in (None, mask):
        p, q = (many.params(jnp.asarray(x), jnp.zeros(0), None if m is None else jnp.asarray(m)) for x in (head, other))
        action = np.asarray(many.sample(p, many.noise(jax.random.key(0), ())))
        mode = np.asarray(many.mode(p))
        got = {"log_prob": many.log_prob(p, jnp.asarray(action)), "entropy": many.entropy(p), "kl": many.kl(p, q)}
        for i, size in enumerate(sizes):
            one = for_space(spaces.Discrete(size))
            part = [np.split(x, cuts)[i] for x in (head, other, mask)]
            own = None if m is None else jnp.asarray(part[2])
            a, b = (one.params(jnp.asarray(x), jnp.zeros(0), own) for x in part[:2])
            assert action[i] < size and (m is None or part[2][action[i]])
            want = {"log_prob": one.log_prob(a, action[i]), "entropy": one.entropy(a), "kl": one.kl(a, b)}
            assert mode[i] == one.mode(a)
            for name, x in want.items():
                assert float(got[name][i]) == pytest.approx(float(x), abs=1e-4), name
    free = np.asarray(many.free_choice(jnp.asarray(mask)))
    assert free.tolist() == [part.sum() > 1 for part in np.split(mask, cuts)]


# --- hybrid actions --------------------------------------------------------------------------------------------------


def graph_space(order=("choice", "spawn", "kind", "speed")):
    parts = {
        "choice": spaces.MultiDiscrete([2, 2, 2]),
        "spawn": spaces.Box(0, 1, (3, 2), np.float32),
        "kind": spaces.Discrete(3),
        "speed": spaces.Box(-1, 1, (2,), np.float32),
    }
    return spaces.Dict([(name, parts[name]) for name in order])


CONDITIONS = {"spawn": ("choice", (0,)), "speed": ("kind", (1, 2))}


def test_joint_is_its_leaves():
    """Parameters, samples and log-probabilities of each leaf are those of its own distribution on its own part."""
    space = graph_space()
    dist = for_space(space, log_std_init=-0.5, conditions=CONDITIONS)
    head = jnp.asarray(np.random.default_rng(0).normal(size=(4, dist.head_size)), jnp.float32)
    free = jnp.linspace(-1, 0, dist.free_size)
    mask = np.ones((4, 9), bool)
    mask[:, [1, 6]] = False
    params = dist.params(head, free, jnp.asarray(mask))
    noise = dist.noise(jax.random.key(0), (4,))
    action = dist.sample(params, noise)
    h = f = m = 0
    for name, sub in space.spaces.items():
        one = for_space(sub, bounded="tanh")
        own = None if one.kind == "continuous" else jnp.asarray(mask[:, m : m + one.head_size])
        p = one.params(head[:, h : h + one.head_size], free[f : f + one.free_size], own)
        jax.tree.map(np.testing.assert_array_equal, params[name], p)
        np.testing.assert_array_equal(action[name], one.sample(p, noise[name]))
        np.testing.assert_array_equal(dist.log_prob(params, action)[name], one.log_prob(p, action[name]))
        np.testing.assert_array_equal(dist.entropy(params)[name], one.entropy(p))
        np.testing.assert_array_equal(dist.kl(params, params)[name], np.zeros_like(one.kl(p, p)))
        np.testing.assert_array_equal(dist.mode(params)[name], one.mode(p))
        assert dist.zeros((4,))[name].shape == action[name].shape and dist.zeros((4,))[name].dtype == action[name].dtype
        h, f, m = h + one.head_size, f + one.free_size, m + (0 if own is None else one.head_size)
    assert (h, f, m) == (dist.head_size, dist.free_size, 9)
    sent = jax.tree.map(np.asarray, dist.to_env(action))
    for i in range(4):
        member = {k: x[i] if x[i].ndim else int(x[i]) for k, x in sent.items()}
        assert space.contains(member), member


@pytest.mark.parametrize("order", [("choice", "spawn", "kind", "speed"), ("speed", "spawn", "kind", "choice")])
def test_groups_of_the_ratio_modes(order):
    dist = for_space(graph_space(order), conditions=CONDITIONS)
    sizes = {"choice": 3, "spawn": 6, "kind": 1, "speed": 2}

    def groups(ratio):
        elements = Elements(dist, ratio)
        return elements.count, {n: x.tolist() for n, x in elements.split(jnp.asarray(elements.groups)).items()}

    assert groups("joint") == (1, {n: [0] * sizes[n] for n in order})
    assert groups("per_leaf") == (4, {n: [i] * sizes[n] for i, n in enumerate(order)})
    count, found = groups("per_element")
    assert found["spawn"] == [i for i in found["choice"] for _ in range(2)]  # a row of spawn belongs to its choice
    own = found["choice"] + found["kind"] + found["speed"]
    assert count == len(set(own)) == 6 and sorted(own) == list(range(6))


def test_one_leaf_is_one_ratio_unless_it_is_taken_apart():
    many = for_space(spaces.MultiDiscrete([2, 3, 2]))
    assert Elements(many, "joint").single and Elements(many, "per_leaf").single
    elements = Elements(many, "per_element")
    assert not elements.single and elements.groups.tolist() == [0, 1, 2]
    assert Elements(for_space(spaces.Discrete(3)), "per_element").single


def test_what_matters():
    """Row i of spawn where choice[i] is 0, speed where kind is 1 or 2, choices that the mask leaves open."""
    elements = Elements(for_space(graph_space(), conditions=CONDITIONS), "joint")
    action = {
        "choice": jnp.array([[0, 1, 0], [1, 1, 1]]),
        "spawn": jnp.zeros((2, 6)),
        "kind": jnp.array([0, 2]),
        "speed": jnp.zeros((2, 2)),
    }

    def matters(mask):
        return {k: v.astype(int).tolist() for k, v in elements.split(elements.relevance(action, mask)).items()}

    free = matters(None)
    assert free["choice"] == [[1, 1, 1], [1, 1, 1]] and free["kind"] == [[1], [1]]
    assert free["spawn"] == [[1, 1, 0, 0, 1, 1], [0] * 6] and free["speed"] == [[0, 0], [1, 1]]
    mask = np.ones((2, 9), bool)
    mask[0, [1, 7, 8]] = False  # the first row can only choose 0, and kind only 0
    forced = matters(jnp.asarray(mask))
    assert forced["choice"] == [[0, 1, 1], [1, 1, 1]] and forced["kind"] == [[0], [1]]
    assert forced["spawn"] == free["spawn"], "what a forced choice decides still matters"
    plain = Elements(for_space(graph_space()), "joint")
    assert plain.relevance(action, None) is None


LEAVES = {
    "one": spaces.Discrete(3),
    "rows": spaces.MultiDiscrete([3, 3]),
    "odd": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "grid": spaces.Box(-1, 1, (2, 3), np.float32),
    "free": spaces.Box(-np.inf, np.inf, (3,), np.float32),
}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_groups_and_relevance_against_a_loop(data):
    names = data.draw(st.permutations(sorted(LEAVES)))[: data.draw(st.integers(2, len(LEAVES)))]
    controllers = [n for n in names if n in ("one", "rows", "odd")]
    conditions = {}
    for name in names:
        deciders = [c for c in controllers if c == "one" or name in ("box", "grid")]
        if name not in ("one", "rows", "odd") and deciders and data.draw(st.booleans()):
            conditions[name] = (
                data.draw(st.sampled_from(deciders)),
                tuple(data.draw(st.sets(st.integers(0, 2), min_size=1))),
            )
    ratio = data.draw(st.sampled_from(["joint", "per_leaf", "per_element"]))
    dist = for_space(spaces.Dict([(n, LEAVES[n]) for n in names]), conditions=conditions)
    elements = Elements(dist, ratio)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    options = {"one": [3], "rows": [3, 3], "odd": [2, 3]}
    masks = {n: [rng.random(k) < 0.6 for k in options[n]] for n in controllers}
    for choice in [c for m in masks.values() for c in m]:
        choice[rng.integers(len(choice))] = True
    action = {n: rng.normal(size=dist.leaves[n].size) for n in names}
    action |= {n: np.array([rng.choice(np.flatnonzero(c)) for c in masks[n]]) for n in controllers}

    keys, relevant = [], []
    for name in names:
        for i in range(dist.leaves[name].size):
            row, matters = (name, i), True
            if name in masks:
                matters = masks[name][i].sum() > 1
            if name in conditions:
                controller, choices = conditions[name]
                tied = i * len(action[controller]) // dist.leaves[name].size
                matters = int(action[controller][tied]) in choices
                row = (controller, tied) if controller != "one" else row
            keys.append({"joint": "all", "per_leaf": name, "per_element": row}[ratio])
            relevant.append(matters)
    flat = rng.normal(size=len(keys)).astype(np.float32)
    got = np.asarray(elements.grouped(jnp.asarray(flat)))
    assert len(got) == elements.count == len(set(keys))
    for key, group in zip(keys, elements.groups):
        assert got[group] == pytest.approx(sum(x for x, k in zip(flat, keys) if k == key), abs=1e-5)

    row = np.concatenate([c for n in names if n in masks for c in masks[n]]) if masks else None
    given_action = {n: jnp.asarray(x[0] if n == "one" else x) for n, x in action.items()}
    found = elements.relevance(given_action, None if row is None else jnp.asarray(row))
    assert ([True] * len(keys) if found is None else np.asarray(found).tolist()) == relevant


@pytest.mark.parametrize(
    "conditions, message",
    [
        ({"spawns": ("choice", (0,))}, r"action_conditions: the action has no part 'spawns'.*spawn"),
        ({"spawn": ("choise", (0,))}, r"the action has no part 'choise'.*choice"),
        (
            {"spawn": ("speed", (0,))},
            r"action_conditions\['spawn'\]: 'speed' is not a discrete part that always matters",
        ),
        ({"kind": ("kind", (0,))}, r"'kind' is not a discrete part that always matters"),
        ({"choice": ("kind", (0,)), "spawn": ("choice", (0,))}, r"\['spawn'\]: 'choice' is not a discrete part"),
        ({"speed": ("choice", (0,))}, r"\['speed'\]: it has 1 rows and 'choice' 3; they are tied row by row"),
        ({"spawn": ("choice", (2,))}, r"\['spawn'\]: \(2,\) are not choices of 'choice'"),
        ({"spawn": ("choice", (-1,))}, r"\(-1,\) are not choices of 'choice'"),
        ({"spawn": ("choice", ())}, r"\(\) are not choices of 'choice'"),
    ],
)
def test_wrong_conditions_are_named(conditions, message):
    with pytest.raises(ConfigError, match=message):
        for_space(graph_space(), conditions=conditions)
