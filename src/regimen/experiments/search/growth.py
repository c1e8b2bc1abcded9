"""What more training would bring: a Gaussian process over (candidate, training time) in which luck is measured.

Several policies, trained alike but for their randomness, each learn all candidates. After t episodes of training each
of them is looked at; with u = log t the mean over the policies of candidate c is

    y_c(u) = g(u) + f_c(u) + mean over policies of e_c(u) + noise

- f_c(u) is the merit of a candidate: cov[f_c(u), f_d(v)] = k(c, d) (a + b exp(-rho |u - v|)) with the kernel k of the
  space. a is what stays while training goes on, b what may still change; rho says how fast. What is asked for is f at
  the end of the search, which has not been seen yet.
- e_c(u), the luck of one training with candidate c, has a variance that is not assumed: it is how far the K policies
  are apart on c beyond the error of their evaluation, a mean over all candidates looked at (`luck`). A policy keeps its
  luck while it trains on: exp(-rho |u - v|) again. Candidates that are alike share some of it, with the covariance
  (1 - w) [c = d] + w k(c, d): equal candidates are no repeats of a training. The differences between policies say how
  much: their likelihood is maximised together with that of the means.
- the noise of evaluation is known: its squared standard error, over K.
- g(u), common to all candidates at a look (the policy grows, and all candidates play the same episodes), can be
  anything: its prior is so wide that only differences within a look count. Returned are merits above their mean.

Where levels count, as for a rate with a gate, g is a random walk in u from a level of its own: the prior mean is given,
and what all candidates have gained per e-fold of training is what more of it may bring them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regimen.experiments.search.gp import JITTER, THETA, Posterior, climb
from regimen.experiments.search.space import Space

# log-normal priors (median, width in e-folds) and bounds, in units of the spread of the first look
STAYS = 1.0, 0.7, 1e-2, 25.0
CHANGES = 0.3, 1.0, 1e-3, 25.0
SPEED = 0.5, 1.0, 1e-2, 20.0  # per e-fold of training
GAINS = 1.0, 1.0, 1e-2, 25.0  # variance of what all candidates gain per e-fold, where levels count
ALIKE = 0.3, 1.0, 1e-3, 0.99  # share of the luck that candidates have in common as far as they are alike
COMMON = 100.0  # variance of g where they do not
LEVEL = 4.0  # of g at the first look where they do
WEIGHT = 8  # degrees of freedom that the luck measured before counts for


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


def luck(looks: Sequence[Look], common: bool) -> np.ndarray:
    """The variance between policies of one candidate that evaluation does not explain, by look. With `common`, what all
    candidates of a policy have in common is left out. A look at few candidates says little: it is averaged with what
    the looks before it have said.  # [L]"""
    out: list[float] = []
    for look in looks:
        c, k = look.value.shape
        residual = look.value - look.value.mean(1, keepdims=True)
        freedom = c * (k - 1)
        if common:
            residual = residual - residual.mean(0)
            freedom -= k - 1
        found = float((residual**2).sum()) / max(freedom, 1) - float((look.error**2).mean())
        before = WEIGHT if out else 0
        weight = freedom + before
        out.append(max((freedom * found + before * (out[-1] if out else 0.0)) / weight, 0.0) if weight else 0.0)
    return np.array(out)


@dataclass(frozen=True)
class Repeats:
    """How policies differ at a look: contrasts between them, in which merits cancel."""

    index: np.ndarray  # [C]
    contrasts: np.ndarray  # [C, K - 1] orthonormal, standardised
    variance: np.ndarray  # [C] of evaluation
    luck: float

    @classmethod
    def of(cls, look: Look, luck: float, scale: float) -> Repeats:
        k = look.policies
        between = np.linalg.qr(np.c_[np.ones(k), np.eye(k)[:, :-1]])[0][:, 1:]  # [K, K - 1]
        return cls(look.index, look.value @ between / scale, (look.error**2).mean(1) / scale**2, luck)

    def log_likelihood(self, kernel: np.ndarray, alike: float) -> float:
        """With a policy's own level, which all candidates share, left free."""
        alone = np.eye(len(self.index))
        cov = self.luck * ((1 - alike) * alone + alike * kernel[np.ix_(self.index, self.index)])
        lower = np.linalg.cholesky(cov + np.diag(self.variance + JITTER + 1e-6) + COMMON)
        half = np.linalg.solve(lower, self.contrasts)
        return float(-0.5 * (half**2).sum() - self.contrasts.shape[1] * np.log(np.diag(lower)).sum())


@dataclass(frozen=True)
class Growth:
    """Fitted to looks; make one with `fit`."""

    space: Space
    index: np.ndarray  # [n] candidate of each observation
    look: np.ndarray  # [n]
    time: np.ndarray  # [n] log of training
    targets: np.ndarray  # [n] standardised means over the policies
    variance: np.ndarray  # [n] of evaluation
    luck: np.ndarray  # [n] of training, of the mean over the policies
    repeats: tuple[Repeats, ...]  # by look
    shift: float
    scale: float
    common: bool
    hyper: np.ndarray  # log of theta of each distance, stays, changes, speed, alike, gains

    @classmethod
    def fit(cls, space: Space, looks: Sequence[Look], mean: float | None = None, scale: float | None = None) -> Growth:
        """`mean`: the prior mean, where levels count; None: only differences within a look count."""
        common = mean is None
        factors = len(space.factors)
        start = np.log([*[THETA[0]] * factors, STAYS[0], CHANGES[0], SPEED[0], ALIKE[0], GAINS[0]])
        parts = [np.concatenate(x) for x in zip(*(
            (look.index, np.full(len(look.index), i), np.full(len(look.index), np.log(max(look.training, 1))),
             look.value.mean(1), (look.error**2).mean(1) / look.policies)
            for i, look in enumerate(looks)
        ))] if looks else [np.zeros(0, int), np.zeros(0, int), *np.zeros((3, 0))]  # fmt: skip
        index, at, time, values, variance = parts
        shift = mean if mean is not None else float(values.mean()) if len(values) else 0.0
        if scale is None:
            scale = float(looks[0].value.mean(1).std()) if looks else 1.0
        scale = scale or 1.0
        of_look = luck(looks, common) / np.array([look.policies for look in looks] or [1.0])[: len(looks)]
        lucky = of_look[at] / scale**2 if len(at) else np.zeros(0)
        lucks = luck(looks, common) / scale**2
        repeats = tuple(Repeats.of(look, of, scale) for look, of in zip(looks, lucks) if look.policies > 1)
        blank = cls(
            space, index, at, time, (values - shift) / scale, variance / scale**2, lucky, repeats, shift, scale, common,
            start,
        )  # fmt: skip
        return blank.optimised() if len(index) else blank

    def shared(self, hyper: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Covariance of g at these times with g at those observed, where levels count.  # [m] -> [m, n]"""
        first = self.time.min()
        gained = np.minimum(time[:, None] - first, self.time - first)
        return LEVEL + np.exp(hyper[-1]) * np.maximum(gained, 0.0)

    def gram(self, hyper: np.ndarray) -> np.ndarray:
        """Covariance of the targets.  # [n, n]"""
        theta, (stays, changes, speed, alike) = np.exp(hyper[:-5]), np.exp(hyper[-5:-1])
        kernel = self.space.kernel(theta)[np.ix_(self.index, self.index)]
        fading = np.exp(-speed * np.abs(self.time[:, None] - self.time))
        out = kernel * (stays + changes * fading)
        same = self.index[:, None] == self.index
        out = out + ((1 - alike) * same + alike * kernel) * fading * np.sqrt(np.outer(self.luck, self.luck))
        out = out + (COMMON * (self.look[:, None] == self.look) if self.common else self.shared(hyper, self.time))
        return out + np.diag(self.variance + JITTER + 1e-6)

    def optimised(self) -> Growth:
        """Fit the hyper-parameters by the highest marginal likelihood, with weak priors."""
        priors = [THETA] * len(self.space.factors) + [STAYS, CHANGES, SPEED, ALIKE, GAINS]
        centre, width = np.log([p[0] for p in priors]), np.array([p[1] for p in priors])
        low, high = np.log([p[2:] for p in priors]).T

        def score(x: np.ndarray) -> float:
            try:
                lower = np.linalg.cholesky(self.gram(x))
            except np.linalg.LinAlgError:
                return -np.inf
            half = np.linalg.solve(lower, self.targets)
            fit = -0.5 * float(half @ half) - float(np.log(np.diag(lower)).sum())
            if self.repeats:
                kernel = self.space.kernel(np.exp(x[:-5]))
                fit += sum(one.log_likelihood(kernel, float(np.exp(x[-2]))) for one in self.repeats)
            return fit - 0.5 * float((((x - centre) / width) ** 2).sum())

        return type(self)(**{**vars(self), "hyper": climb(score, self.hyper, low, high)})

    def posterior(self, training: int) -> Posterior:
        """The merit of every candidate after so much training; above the mean of all where only differences count."""
        theta, (stays, changes, speed) = np.exp(self.hyper[:-5]), np.exp(self.hyper[-5:-2])
        kernel = self.space.kernel(theta)
        prior = kernel * (stays + changes)
        mean, cov = np.zeros(len(self.space)), prior
        if len(self.index):
            lower = np.linalg.cholesky(self.gram(self.hyper))
            fading = np.exp(-speed * np.abs(self.time - np.log(max(training, 1))))
            across = kernel[self.index] * (stays + changes * fading)[:, None]  # [n, N]
            if not self.common:
                then = np.array([np.log(max(training, 1))])
                across = across + self.shared(self.hyper, then).T
                prior = prior + LEVEL + np.exp(self.hyper[-1]) * max(float(then[0] - self.time.min()), 0.0)
                cov = prior
            half = np.linalg.solve(lower, across)
            mean = half.T @ np.linalg.solve(lower, self.targets)
            cov = prior - half.T @ half
        if self.common:
            mean = mean - mean.mean()
            cov = cov - cov.mean(0) - cov.mean(1)[:, None] + cov.mean()
        shift = 0.0 if self.common else self.shift
        return Posterior(shift + self.scale * mean, 0.5 * (cov + cov.T) * self.scale**2)
