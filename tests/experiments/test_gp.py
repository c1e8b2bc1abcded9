"""The Gaussian process against scikit-learn's, and what it must do on permutations."""

import dataclasses
import itertools

import numpy as np
import pytest

from regimen.domains.network_defense.search import workflows
from regimen.domains.network_defense.workflow import Workflow, all_workflows
from regimen.errors import ConfigError
from regimen.experiments.search import space as spaces
from regimen.experiments.search.gp import GP, KernelParameters

ALL = workflows("meander", "published", "all")
HYPER = KernelParameters(np.array([1.7]), 1.3, 0.05)


def pair_values(seed: int = 0) -> np.ndarray:
    """A smooth function of orders: a weight for each pair of types that is in one order rather than the other."""
    ranks = np.array([w.ranks() for w in all_workflows()])
    i, j = np.triu_indices(5, 1)
    return (ranks[:, i] < ranks[:, j]) @ np.random.default_rng(seed).normal(size=10)


def observations(n: int = 25, seed: int = 0):
    rng = np.random.default_rng(seed)
    index = rng.choice(120, n, replace=False)
    se = rng.uniform(0.05, 0.3, n)
    return index, pair_values()[index] + se * rng.normal(size=n), se


@pytest.mark.parametrize("theta", [0.05, 0.5, 2.0, 20.0])
def test_the_kernel_is_positive_definite_over_all_120_permutations(theta):
    kernel = ALL.kernel(np.array([theta]))
    assert np.allclose(np.diag(kernel), 1) and np.allclose(kernel, kernel.T)
    assert np.linalg.eigvalsh(kernel)[0] > 0
    a, b = all_workflows()[3], all_workflows()[77]
    assert kernel[3, 77] == pytest.approx(
        np.exp(-theta * spaces.kendall_matrix(a.ranks()[None], b.ranks()[None])[0, 0])
    )


def test_posterior_and_likelihood_are_scikit_learns():
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    sk = pytest.importorskip("sklearn.gaussian_process")

    class Mallows(kernels.Kernel):
        """signal * exp(-theta * Kendall), on candidates given by their number."""

        def __init__(self):
            pass

        def __call__(self, X, Y=None, eval_gradient=False):
            Y = X if Y is None else Y
            d = ALL.distances[0][np.ix_(X[:, 0].astype(int), Y[:, 0].astype(int))]
            return HYPER.signal * np.exp(-HYPER.theta[0] * d)

        def diag(self, X):
            return np.full(len(X), HYPER.signal)

        def is_stationary(self):
            return False

    index, y, se = observations()
    ours = GP.fit(ALL, index, y, se, hyper=HYPER)
    alpha = (se / y.std()) ** 2 + HYPER.noise + 1e-10  # variances, in units of the standardised targets
    theirs = sk.GaussianProcessRegressor(Mallows(), alpha=alpha, optimizer=None).fit(index[:, None], ours.targets)
    mean, cov = theirs.predict(np.arange(120)[:, None], return_cov=True)
    posterior = ours.posterior()
    np.testing.assert_allclose((posterior.mean - ours.shift) / ours.scale, mean, atol=1e-9)
    np.testing.assert_allclose(posterior.cov / ours.scale**2, cov, atol=1e-9)
    assert ours.log_likelihood(HYPER) == pytest.approx(theirs.log_marginal_likelihood_value_)
    assert ours.targets.mean() == pytest.approx(0) and ours.targets.std() == pytest.approx(1)


def test_leave_one_out_is_what_leaving_one_out_gives():
    index, y, se = observations(12)
    whole = GP.fit(ALL, index, y, se, hyper=HYPER)
    mean, std = whole.leave_one_out()
    for i in range(12):
        rest = np.arange(12) != i
        part = GP.fit(ALL, index[rest], y[rest], se[rest], mean=whole.shift, scale=whole.scale, hyper=HYPER)
        one = part.posterior()
        assert one.mean[index[i]] == pytest.approx(mean[i])
        total = one.cov[index[i], index[i]] + se[i] ** 2 + whole.scale**2 * HYPER.noise
        assert np.sqrt(total) == pytest.approx(std[i], rel=1e-6)


def test_the_marginal_likelihood_is_at_its_top():
    index, y, se = observations(40)
    fitted = GP.fit(ALL, index, y, se)
    hyper = fitted.hyper
    x = np.log([*hyper.theta, hyper.signal, hyper.noise])
    for shift in np.vstack([np.eye(3), -np.eye(3)]) * 1.5:  # far enough for the weak priors not to matter
        assert fitted.log_likelihood(KernelParameters.of_log(x + shift)) < fitted.log_likelihood(fitted.hyper) + 0.5


def test_it_predicts_unseen_orders_and_knows_its_error():
    index, y, se = observations(40)
    fitted = GP.fit(ALL, index, y, se)
    unseen = np.setdiff1d(np.arange(120), index)
    truth, posterior = pair_values(), fitted.posterior()
    error = posterior.mean[unseen] - truth[unseen]
    assert np.std(error) < 0.5 * np.std(truth[unseen])
    assert 0.5 < np.sqrt(np.mean((error / posterior.std[unseen]) ** 2)) < 1.6
    mean, std = fitted.leave_one_out()
    assert 0.5 < np.sqrt(np.mean(((y - mean) / std) ** 2)) < 1.6


def test_noise_is_learned_on_top_of_what_is_known():
    rng = np.random.default_rng(3)
    index = np.repeat(np.arange(0, 120, 6), 3)
    exact = pair_values()[index]
    quiet = GP.fit(ALL, index, exact + 1e-3 * rng.normal(size=len(index)), np.full(len(index), 1e-3))
    noisy = GP.fit(ALL, index, exact + 0.8 * rng.normal(size=len(index)), np.full(len(index), 1e-3))
    told = GP.fit(ALL, index, exact + 0.8 * rng.normal(size=len(index)), np.full(len(index), 0.8))
    assert quiet.hyper.noise < 0.02
    assert noisy.hyper.noise * noisy.scale**2 == pytest.approx(0.64, rel=0.5)
    assert told.hyper.noise < 0.5 * noisy.hyper.noise


def test_the_posterior_depends_on_the_order():
    """A model fitted to anything but the orders (the published one saw only 0..n-1) would not notice the labels."""
    index, y, se = observations(20)
    labels = np.random.default_rng(5).permutation(120).tolist()
    ours = GP.fit(ALL, index, y, se, hyper=HYPER).posterior()
    relabelled = dataclasses.replace(ALL, distances=ALL.distances[:, labels][:, :, labels])
    other = GP.fit(relabelled, index, y, se, hyper=HYPER).posterior()
    unseen = np.setdiff1d(np.arange(120), index)
    assert np.abs(ours.mean - other.mean)[unseen].max() > 0.3 * np.std(y)
    one = GP.fit(ALL, [0], [1.0], [0.01], mean=0.0, scale=1.0, hyper=HYPER).posterior()
    by_distance = [one.mean[ALL.distance[0] == d].mean() for d in np.unique(ALL.distance[0])]
    assert all(a > b for a, b in itertools.pairwise(by_distance))  # falls with every discordant pair
    assert one.std[0] < one.std[1:].min()


def test_classes_are_averages_over_their_members():
    classes = workflows("meander", "published")
    assert len(classes) == 16 and "critical_first" in classes.keys
    theta = np.array([2.0])
    full, mine = np.exp(-2.0 * ALL.distances[0]), classes.kernel(theta)
    raw = np.array([[full[np.ix_(a, b)].mean() for b in classes.members] for a in classes.members])
    np.testing.assert_allclose(mine, raw / np.sqrt(np.outer(np.diag(raw), np.diag(raw))))
    assert np.linalg.eigvalsh(mine)[0] > 0
    alone = classes.index("critical_first")
    assert Workflow.parse("critical_first") in [all_workflows()[i] for i in classes.members[alone]]


def test_without_observations_and_with_equal_ones():
    prior = GP.fit(ALL, [], []).posterior()
    assert (prior.mean == 0).all() and np.allclose(prior.std, 1)
    flat = GP.fit(ALL, [0, 5, 9], [-3.0, -3.0, -3.0], [0.1, 0.1, 0.1]).posterior()
    assert np.isfinite(flat.std).all() and np.allclose(flat.mean, -3.0)


def test_grids_have_a_scale_for_each_choice():
    space = spaces.grid({"epochs": (1, 4, 10), "activation": ("tanh", "relu")}, ordered=("epochs",))
    assert len(space) == 6 and space.keys[0] == "epochs=1,activation=tanh"
    assert space.values[5] == {"epochs": 10, "activation": "relu"}
    kernel = space.kernel(np.array([1.0, 3.0]))
    assert kernel[0, space.index("epochs=4,activation=tanh")] == pytest.approx(np.exp(-0.5))
    assert kernel[0, space.index("epochs=10,activation=relu")] == pytest.approx(np.exp(-4.0))
    y = np.array([0.0, 1.0, 0.02, 1.0, 0.01, 1.02])  # only the activation matters
    fitted = GP.fit(space, np.arange(6), y, np.full(6, 0.01))
    assert fitted.hyper.theta[1] > 3 * fitted.hyper.theta[0]


def test_permutations_of_anything():
    space = spaces.permutations(("easy", "wind", "night"))
    assert len(space) == 6 and space.keys[0] == "easy>wind>night" and space.values[5] == ("night", "wind", "easy")
    assert space.distance[0, 5] == 1 and space.nearest(0, [5, 1, 3]) == 1
    some = spaces.permutations(range(8), sample=50, seed=1)
    assert len(some) == 50 and np.linalg.eigvalsh(some.kernel(np.array([1.0])))[0] > 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: spaces.permutations(range(8)), "40,320 orders"),
        (lambda: spaces.permutations(("a", "a")), "given twice"),
        (lambda: spaces.grid({"epochs": (1, 1)}), "options that differ"),
        (lambda: spaces.grid({"epochs": (1, 2)}, ordered=("epoch",)), "did you mean 'epochs'"),
        (lambda: spaces.Space("s", ("a",), np.zeros((1, 1, 1))), "nothing to search"),
        (lambda: spaces.Space("s", ("a", "b"), np.zeros((1, 3, 3))), "shape"),
        (lambda: spaces.Space("s", ("a", "a"), np.zeros((1, 2, 2))), "several candidates"),
        (lambda: spaces.Space("s", ("a", "b"), np.array([[[0, -1.0], [-1.0, 0]]])), "not negative"),
        (lambda: workflows(orders="clases"), "did you mean 'classes'"),
        (lambda: ALL.index("critical_frist"), "did you mean 'critical_first'"),
    ],
)
def test_spaces_that_cannot_be(make, says):
    with pytest.raises(ConfigError) as caught:
        make()
    assert says in str(caught.value)


def test_a_distance_without_a_kernel_is_refused():
    far = np.array([[0, 0, 5, 0], [0, 0, 0, 5], [5, 0, 0, 0], [0, 5, 0, 0.0]])  # equal to b and d, which are apart
    with pytest.raises(ConfigError, match="positive definite"):
        spaces.Space("s", ("a", "b", "c", "d"), far[None])
