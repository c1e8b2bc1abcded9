"""An exact Gaussian process over the candidates of a space (Rasmussen & Williams 2006, algorithm 2.1).

    f ~ GP(0, s2 k_theta),   y_i = f(x_i) + e_i,   e_i ~ N(0, v_i + n2)

v_i is known: the squared standard error of the evaluation. theta (one per distance of the space), the signal s2 and the
noise n2 that comes on top (training is random too) maximise the marginal likelihood times weak log-normal priors, which
keep it proper when there are two or three observations. Targets are standardised. Float64, own Cholesky; all candidates
at once, because they are few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from regimen.experiments.search.space import Space

JITTER = 1e-10
# log-normal priors (median, width in e-folds) and bounds: distances are 0..1, targets have deviation 1
THETA = 2.0, 1.0, 1e-2, 50.0
SIGNAL = 1.0, 0.7, 1e-2, 25.0
NOISE = 0.01, 1.5, 1e-6, 4.0
RESTARTS = (0.5, 2.0, 8.0)  # values of theta to start from
SMALLEST_STEP = 0.02  # of a logarithm


@dataclass(frozen=True)
class KernelParameters:
    """Parameters of the kernel: theta of each distance; variances in units of the standardised targets."""

    theta: np.ndarray  # [F]
    signal: float
    noise: float

    @classmethod
    def of_log(cls, x: np.ndarray) -> KernelParameters:
        values = np.exp(x)
        return cls(values[:-2], float(values[-2]), float(values[-1]))


@dataclass(frozen=True)
class Posterior:
    """Mean and covariance of the latent value of every candidate, in the units of the targets."""

    mean: np.ndarray  # [N]
    cov: np.ndarray  # [N, N]

    @property
    def std(self) -> np.ndarray:
        return np.sqrt(np.maximum(np.diag(self.cov), 0.0))

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw one function from the posterior.  # [N]"""
        noise, n = rng.standard_normal(len(self.mean)), len(self.mean)
        for jitter in (1e-10, 1e-8, 1e-6, 1e-4):  # observed candidates make it nearly singular
            try:
                lower = np.linalg.cholesky(self.cov + jitter * max(np.trace(self.cov) / n, 1e-300) * np.eye(n))
                return self.mean + lower @ noise
            except np.linalg.LinAlgError:
                continue
        return self.mean + self.std * noise


@dataclass(frozen=True)
class GP:
    """A Gaussian process fitted to observations; make one with `fit`."""

    space: Space
    index: np.ndarray  # [n] candidates observed, repeats allowed
    targets: np.ndarray  # [n] standardised
    variance: np.ndarray  # [n] known noise, standardised
    shift: float
    scale: float
    hyper: KernelParameters

    @classmethod
    def fit(
        cls,
        space: Space,
        index,
        y,
        se=None,
        *,
        mean: float | None = None,
        hyper: KernelParameters | None = None,
        scale: float | None = None,
    ) -> GP:
        """Fit to observations. `se`: standard errors of the targets. `mean`: the prior mean (that of the targets when
        not given). `hyper`: these instead of the most likely. Without observations the prior is returned."""
        index, y = np.asarray(index, np.int64), np.asarray(y, np.float64)
        se = np.zeros_like(y) if se is None else np.asarray(se, np.float64)
        shift = (float(y.mean()) if len(y) else 0.0) if mean is None else float(mean)
        spread = float(np.sqrt(np.mean((y - shift) ** 2))) if len(y) else 0.0
        if scale is None:  # a spread that is all noise, or none, says nothing of the scale
            scale = max(spread, float(se.mean()) if len(y) else 0.0, 1e-6 * abs(shift)) or 1.0
        targets, variance = (y - shift) / scale, (se / scale) ** 2
        start = hyper or KernelParameters(np.full(len(space.factors), THETA[0]), SIGNAL[0], NOISE[0])
        blank = cls(space, index, targets, variance, shift, float(scale), start)
        return blank if hyper is not None or not len(y) else blank.optimised()

    def gram(self, hyper: KernelParameters) -> np.ndarray:
        """Covariance of the targets.  # [n, n]"""
        k = hyper.signal * self.space.kernel(hyper.theta, self.index)
        return k + np.diag(self.variance + hyper.noise + JITTER)

    def log_likelihood(self, hyper: KernelParameters) -> float:
        """log p(y | hyper): the marginal likelihood of the standardised targets."""
        lower = np.linalg.cholesky(self.gram(hyper))
        half = np.linalg.solve(lower, self.targets)
        return float(-0.5 * half @ half - np.log(np.diag(lower)).sum() - 0.5 * len(half) * np.log(2 * np.pi))

    def optimised(self) -> GP:
        """Fit the hyper-parameters by the highest marginal likelihood, with weak priors."""
        factors = len(self.space.factors)
        priors = [THETA] * factors + [SIGNAL, NOISE]
        centre, width = np.log([p[0] for p in priors]), np.array([p[1] for p in priors])
        low, high = np.log([p[2:] for p in priors]).T

        def score(x: np.ndarray) -> float:
            try:
                fit = self.log_likelihood(KernelParameters.of_log(x))
            except np.linalg.LinAlgError:
                return -np.inf
            return fit - 0.5 * float((((x - centre) / width) ** 2).sum())

        starts = [np.r_[np.full(factors, np.log(theta)), centre[-2:]] for theta in RESTARTS]
        best = climb(score, max(starts, key=score), low, high)
        return dataclasses.replace(self, hyper=KernelParameters.of_log(best))

    def posterior(self) -> Posterior:
        """The posterior of every candidate."""
        prior = self.hyper.signal * self.space.kernel(self.hyper.theta)  # [N, N]
        if not len(self.index):
            return Posterior(np.full(len(self.space), self.shift), prior * self.scale**2)
        lower = np.linalg.cholesky(self.gram(self.hyper))
        across = prior[self.index]  # [n, N]
        half = np.linalg.solve(lower, across)
        mean = half.T @ np.linalg.solve(lower, self.targets)
        cov = prior - half.T @ half
        return Posterior(self.shift + self.scale * mean, 0.5 * (cov + cov.T) * self.scale**2)

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each observation, predicted from the others (R&W eq. 5.12), hyper-parameters kept."""
        inverse = np.linalg.inv(self.gram(self.hyper))
        variance = 1 / np.diag(inverse)
        mean = self.targets - inverse @ self.targets * variance
        return self.shift + self.scale * mean, self.scale * np.sqrt(variance)


def climb(score: Callable[[np.ndarray], float], x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The top of a smooth function of few variables, by steps along each that halve when none of them helps: small
    matrices are faster without an optimiser's own linear algebra, and the result is the same on every machine."""
    top, size = score(x), 1.0
    while size > SMALLEST_STEP:
        helped = False
        for i in range(len(x)):
            for step in (size, -size):
                point = x.copy()
                point[i] = min(max(x[i] + step, low[i]), high[i])
                height = score(point)
                if height > top + 1e-9:
                    x, top, helped = point, height, True
                    break
        size = size if helped else size / 2
    return x
