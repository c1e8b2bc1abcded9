"""How noisy an update's gradient is: independent rollouts at one fixed policy, and the spread of what they ask for.

The gradient g is that of PPO's loss over the whole batch at the policy that collected it (first epoch, ratio 1). Its
noise is the trace of its covariance over rollouts, its signal the squared norm of its mean. Both are estimated without
bias from the products g_i . g_j of R rollouts, and both intervals come from resampling the rollouts.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from regimen.algorithms.base import Algorithm
from regimen.algorithms.ppo import PPO
from regimen.engines.native import NativeEngine
from regimen.envs.protocol import Env
from regimen.experiments.studies.curves import RESAMPLES, interval
from regimen.sources.scan import EnvCarry, ScanSource
from regimen.statistics import Estimate, bootstrap
from regimen.types import Array, PyTree, State

A = TypeVar("A", bound=Algorithm)
CRITIC = ("critic", "value")  # how the names of the value function's parameters begin


@dataclass(frozen=True)
class GradientNoise:
    """What R independent gradients have in common and how they differ; bootstrap values beside each estimate."""

    trace: float  # of the covariance
    signal: float  # squared norm of the mean; unbiased, so it may be slightly negative
    cosines: np.ndarray  # [R] with the reference
    norms: np.ndarray  # [R]
    traces: np.ndarray  # [RESAMPLES]
    signals: np.ndarray  # [RESAMPLES]

    @classmethod
    def of(cls, vectors: np.ndarray, reference: np.ndarray, seed: int = 0) -> GradientNoise:
        """Estimate the noise from gradients [R, P] and a reference [P]."""
        x = np.asarray(vectors, np.float64)
        gram, count = x @ x.T, len(x)
        picks = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), RESAMPLES)
        (trace,), (signal,) = moments(gram, np.ones((1, count)))
        norms = np.sqrt(np.diag(gram))
        scale = norms * np.linalg.norm(reference)
        cosines = np.divide(x @ np.asarray(reference, np.float64), scale, out=np.zeros(count), where=scale > 0)
        return cls(float(trace), float(signal), cosines, norms, *moments(gram, picks))

    def noise(self) -> Estimate:
        return Estimate(self.trace, *interval(self.traces))

    def relative_noise(self, base: GradientNoise) -> Estimate:
        """The noise over that of another sample, drawn independently."""
        return quotient(self.trace, base.trace, self.traces, base.traces)

    def signal_to_noise(self) -> Estimate:
        return quotient(self.signal, self.trace, self.signals, self.traces)

    def cosine(self) -> Estimate:
        return Estimate(float(self.cosines.mean()), *interval(bootstrap(self.cosines, np.mean, RESAMPLES, seed=1)))


def moments(gram: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(trace of the covariance, squared norm of the mean) [B] from products [R, R], vector i taken counts[b, i] times.

    A vector taken twice is not paired with itself: that pair would pass noise off as signal.
    """
    squares = np.diag(gram)
    pairs = counts.sum(1) ** 2 - (counts**2).sum(1)
    signal = (((counts @ gram) * counts).sum(1) - (counts**2) @ squares) / np.maximum(pairs, 1)
    return counts @ squares / counts.sum(1) - signal, signal


def quotient(x: float, y: float, xs: np.ndarray, ys: np.ndarray) -> Estimate:
    """nan where there is no noise to divide by, as with a single row, which normalisation makes 0."""
    if y <= 1e-6 * x:
        return Estimate(np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Estimate(x / y, *interval(np.where(ys > 0, xs / ys, np.nan)))


def draw(
    source: ScanSource, algos: tuple[PPO, ...], env: Env, state: State, carry: EnvCarry, keys: Array
) -> tuple[tuple[Array, ...], Array]:
    """Collect a rollout per key; returns a gradient [R, P] of it per algorithm, and the env steps [R] it took."""

    def one(key: Array):
        _, batch, *_ = source.next(env, algos[0], carry, algos[0].actor_params(state), key)
        return tuple(algo.gradient(state, batch) for algo in algos), batch.valid.sum(dtype=jnp.int32)

    return lax.map(one, keys)


class RolloutGradients:
    """Gradients of rollouts of one size, with advantages normalised over the batch and as they are.

    `engine` is that of the size; its learner's parameters give way to those of the policy asked about.
    """

    KINDS: ClassVar = {"normalised": True, "raw": False}

    def __init__(self, engine: NativeEngine):
        self.engine = engine
        self.algos = tuple(changed(engine.algo, normalize_advantage=on) for on in self.KINDS.values())
        self.program = jax.jit(partial(draw, engine.source))

    def gradients(
        self, policy: State, key: Array, repeats: int, tick: Callable[[float], None] = lambda share: None
    ) -> tuple[dict[str, np.ndarray], float]:
        """kind -> [repeats, P], and the mean env steps of a rollout. A call covers some rollouts, so that there is
        news between calls."""
        state, block = adopt(self.engine.state, policy), min(repeats, 16)
        keys = jax.random.split(key, -(-repeats // block) * block)
        calls = []
        for start in range(0, len(keys), block):
            some = keys[start : start + block]
            calls.append(jax.device_get(self.program(self.algos, self.engine.env, state, self.engine.carry, some)))
            tick(min(1.0, (start + block) / repeats))
        gradients, steps = jax.tree.map(lambda *blocks: np.concatenate(blocks), *calls)
        return {kind: x[:repeats] for kind, x in zip(self.KINDS, gradients)}, float(steps.mean())


def changed(algo: A, **settings: object) -> A:
    """The same bound algorithm with other hyper-parameters; numbers may change without compiling anew."""
    other = copy.copy(algo)
    other.config = dataclasses.replace(algo.config, **settings)
    return other


def adopt(fresh: State, policy: State) -> State:
    """A policy's networks, normalisers and clock in a state made for another number of environments."""

    def fitting(name: str, value: PyTree) -> PyTree:
        other = policy.aux.get(name, value)
        same = jax.tree.map(jnp.shape, value) == jax.tree.map(jnp.shape, other)
        return other if same else value

    aux = {name: fitting(name, value) for name, value in fresh.aux.items()}
    return fresh.replace(models=policy.models, norm=policy.norm, clock=policy.clock, aux=aux)


def groups(state: State, size: int) -> dict[str, np.ndarray]:
    """Which entries of the gradient [P] belong to the policy, to the critic, and all of them."""
    everything = {"all": np.ones(size, bool)}
    params = next(iter(state.models.values())).params
    if len(state.models) > 1 or not isinstance(params, dict):
        return everything
    marked = {k: jax.tree.map(lambda x, k=k: np.full(np.shape(x), k.startswith(CRITIC)), v) for k, v in params.items()}
    critic = np.asarray(ravel_pytree(marked)[0]).astype(bool)
    if len(critic) != size or critic.all() or not critic.any():
        return everything
    return {"policy": ~critic, "critic": critic} | everything
