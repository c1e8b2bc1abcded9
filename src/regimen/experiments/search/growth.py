"""What more training would bring: a Gaussian process over (candidate, training time) in which luck is measured.

Several policies, trained alike but for their randomness, each learn all candidates. After t episodes of training each
of them is looked at; with u = log t, policy k values candidate c at

    y_ck(u) = g_k(u) + f_c(u) + e_ck(u) + noise

- f_c(u) is the merit of a candidate: cov[f_c(u), f_d(v)] = k(c, d) (a + b exp(-rho |u - v|)) with the kernel k of the
  space. a is what stays while training goes on, b what may still change; rho says how fast. What is asked for is f at
  the end of the search, which has not been seen yet.
- e_ck(u), the luck of one training with candidate c: cov[e_ck(u), e_dk(v)] = (s [c = d] + w k(c, d)) exp(-phi |u - v|),
  and policies are independent. s is what a candidate has for itself, w what those share that are alike: equal ones are
  no repeats of a training. A policy keeps its luck while it trains on, and phi says for how long.
- the noise of evaluation is known: its squared standard error.
- g_k(u), common to all candidates of one policy at a look (the policy grows, and all candidates play the same
  episodes), can be anything: its prior is so wide that only differences within a look count. Returned are merits above
  their mean.

The K policies of a look are turned by an orthonormal matrix into their mean, which has merit and 1/K of luck and noise,
and K - 1 contrasts between them, in which merit cancels: only luck and noise are left. Mean and contrasts are
independent, so the marginal likelihood is a product. s, w and phi are therefore not assumed: what the policies differ
by says what they are, and looks at the same policies again do not count as new ones.

Where levels count, as for a rate with a gate, g is a random walk in u from a level of its own: the prior mean is given,
and what all candidates have gained per e-fold of training is what more of it may bring them. What policies differ by
counts as luck then, also where it is common to all candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regimen.experiments.search.gp import JITTER, THETA, Posterior, climb
from regimen.experiments.search.space import Space

# log-normal priors (median, width in e-folds) and bounds, in units of the spread of the first look
STAYS = 1.0, 0.7, 1e-2, 25.0
CHANGES = 0.3, 1.0, 1e-3, 25.0
SPEED = 0.5, 1.0, 1e-2, 20.0  # per e-fold of training
ALONE = 0.3, 1.5, 1e-4, 100.0  # variance of one training that a candidate has for itself
ALIKE = 0.15, 1.5, 1e-4, 100.0  # and that candidates share as far as they are alike
FADES = 0.3, 1.0, 1e-2, 20.0  # speed at which a policy's luck changes
GAINS = 1.0, 1.0, 1e-2, 25.0  # variance of what all candidates gain per e-fold, where levels count
PRIORS = STAYS, CHANGES, SPEED, ALONE, ALIKE, FADES, GAINS
COMMON = 100.0  # variance of g where levels do not count
LEVEL = 4.0  # of g at the first look where they do


@dataclass(frozen=True)
class Look:
    """What was measured of some candidates after so much training."""

    training: int  # episodes that each policy had had
    index: np.ndarray  # [C] candidates
    value: np.ndarray  # [C, K] by policy
    error: np.ndarray  # [C, K] standard errors of evaluation

    @property
    def policies(self) -> int:
        return self.value.shape[1]

    @property
    def contrasts(self) -> np.ndarray:
        """Orthonormal contrasts between policies, in which merits cancel.  # [C, K - 1]"""
        k = self.policies
        return self.value @ np.linalg.qr(np.c_[np.ones(k), np.eye(k)[:, :-1]])[0][:, 1:]


@dataclass(frozen=True)
class GrowthParameters:
    """Variances in units of the spread; speeds per e-fold of training."""

    theta: np.ndarray  # of each distance of the space
    stays: float
    changes: float
    speed: float
    alone: float
    alike: float
    fades: float
    gains: float

    @classmethod
    def of_log(cls, x: np.ndarray) -> GrowthParameters:
        values = np.exp(x)
        return cls(values[: -len(PRIORS)], *values[-len(PRIORS) :].tolist())


@dataclass(frozen=True)
class Growth:
    """A model of learning curves fitted to looks; make one with `fit`."""

    space: Space
    policies: int
    index: np.ndarray  # [n] candidate of each observation
    look: np.ndarray  # [n]
    time: np.ndarray  # [n] log of training
    targets: np.ndarray  # [n] standardised means over the policies
    contrasts: np.ndarray  # [n, K - 1] standardised
    variance: np.ndarray  # [n] of the evaluation of one policy
    shift: float
    scale: float
    common: bool
    hyper: GrowthParameters

    @classmethod
    def fit(cls, space: Space, looks: Sequence[Look], mean: float | None = None, scale: float | None = None) -> Growth:
        """Fit to looks. `mean`: the prior mean, where levels count; None: only differences within a look count."""
        start = GrowthParameters.of_log(np.log([*[THETA[0]] * len(space.factors), *(prior[0] for prior in PRIORS)]))
        if not looks:
            looks = [Look(1, np.zeros(0, np.int64), *np.zeros((2, 0, 1)))]
        sizes = [len(look.index) for look in looks]
        values = np.concatenate([look.value.mean(1) for look in looks])
        shift = mean if mean is not None else float(values.mean()) if len(values) else 0.0
        if scale is None:
            scale = float(values[: sizes[0]].std()) if len(values) else 1.0
        scale = scale or 1.0
        blank = cls(
            space,
            looks[0].policies,
            np.concatenate([look.index for look in looks]),
            np.repeat(np.arange(len(looks)), sizes),
            np.repeat(np.log([max(look.training, 1) for look in looks]), sizes),
            (values - shift) / scale,
            np.concatenate([look.contrasts for look in looks]) / scale,
            np.concatenate([(look.error**2).mean(1) for look in looks]) / scale**2,
            shift,
            scale,
            mean is None,
            start,
        )
        return blank.optimised() if len(values) else blank

    @property
    def luck(self) -> float:
        """The standard deviation of the value of one training, in the units of the values."""
        return self.scale * (self.hyper.alone + self.hyper.alike) ** 0.5

    @property
    def spread(self) -> float:
        """The standard deviation of merits, in the units of the values."""
        return self.scale * (self.hyper.stays + self.hyper.changes) ** 0.5

    def shared(self, hyper: GrowthParameters, time: np.ndarray) -> np.ndarray:
        """Covariance of g at these times with g at those observed, where levels count.  # [m] -> [m, n]"""
        first = self.time.min()
        gained = np.minimum(time[:, None] - first, self.time - first)
        return LEVEL + hyper.gains * np.maximum(gained, 0.0)

    def grams(self, hyper: GrowthParameters) -> tuple[np.ndarray, np.ndarray]:
        """Covariance of the means over policies, and of one contrast between them.  # [n, n], [n, n]"""
        kernel = self.space.kernel(hyper.theta)[np.ix_(self.index, self.index)]
        apart = np.abs(self.time[:, None] - self.time)
        same = self.index[:, None] == self.index
        luck = (hyper.alone * same + hyper.alike * kernel) * np.exp(-hyper.fades * apart)
        noise = np.diag(self.variance)
        means = kernel * (hyper.stays + hyper.changes * np.exp(-hyper.speed * apart)) + (luck + noise) / self.policies
        contrasts = luck + noise
        at_once = COMMON * (self.look[:, None] == self.look)
        means = means + (at_once if self.common else self.shared(hyper, self.time))
        contrasts = contrasts + self.policies * at_once if self.common else contrasts
        jitter = (JITTER + 1e-6) * np.eye(len(same))
        return means + jitter, contrasts + jitter

    def log_likelihood(self) -> float:
        """The marginal likelihood of means and contrasts, but for a constant."""
        means, contrasts = self.grams(self.hyper)
        fit = log_density(means, self.targets[:, None])
        return fit + log_density(contrasts, self.contrasts) if self.policies > 1 else fit

    def optimised(self) -> Growth:
        """Fit the hyper-parameters by the highest marginal likelihood, with weak priors."""
        priors = [*[THETA] * len(self.space.factors), *PRIORS]
        centre, width = np.log([p[0] for p in priors]), np.array([p[1] for p in priors])
        low, high = np.log([p[2:] for p in priors]).T

        def score(x: np.ndarray) -> float:
            try:
                fit = dataclasses.replace(self, hyper=GrowthParameters.of_log(x)).log_likelihood()
            except np.linalg.LinAlgError:
                return -np.inf
            return fit - 0.5 * float((((x - centre) / width) ** 2).sum())

        return dataclasses.replace(self, hyper=GrowthParameters.of_log(climb(score, centre, low, high)))

    def posterior(self, training: int) -> Posterior:
        """The merit of every candidate after so much training; above the mean of all where only differences count."""
        hyper, n = self.hyper, len(self.space)
        kernel = self.space.kernel(hyper.theta)
        then = np.log(max(training, 1))
        mean, cov = np.zeros(n), kernel * (hyper.stays + hyper.changes)
        if len(self.index):
            fading = np.exp(-hyper.speed * np.abs(self.time - then))
            across = kernel[self.index] * (hyper.stays + hyper.changes * fading)[:, None]  # [n, N]
            if not self.common:
                across = across + self.shared(hyper, np.array([then])).T
                cov = cov + LEVEL + hyper.gains * max(float(then - self.time.min()), 0.0)
            lower = np.linalg.cholesky(self.grams(hyper)[0])
            half = np.linalg.solve(lower, across)
            mean = half.T @ np.linalg.solve(lower, self.targets)
            cov = cov - half.T @ half
        if self.common:
            mean = mean - mean.mean()
            cov = cov - cov.mean(0) - cov.mean(1)[:, None] + cov.mean()
        shift = 0.0 if self.common else self.shift
        return Posterior(shift + self.scale * mean, 0.5 * (cov + cov.T) * self.scale**2)


def log_density(cov: np.ndarray, columns: np.ndarray) -> float:
    """The log density of independent columns with one covariance, but for a constant.  # [n, n], [n, m]"""
    lower = np.linalg.cholesky(cov)
    half = np.linalg.solve(lower, columns)
    return float(-0.5 * (half**2).sum() - columns.shape[1] * np.log(np.diag(lower)).sum())
