"""Gymnasium environments: rollouts are collected in Python, the update alone is compiled; every advance is one."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from regimen import randomness, trees
from regimen.algorithms.base import Algorithm
from regimen.axes import applied_state
from regimen.engines.base import Engine, Limits, Progress
from regimen.engines.chunk import Update, one_update
from regimen.sources.host import HostSource
from regimen.types import Array, Batch, EpisodeRows, PyTree, State


def gated_update(algo: Algorithm, state: State, batch: Batch, episodes: Array, steps: Array) -> Update:
    """The update, applied only if it is finite."""
    update = one_update(algo, state, batch, episodes, steps)
    return update.replace(state=applied_state(update.finite, update.state, state))


def host_seed(seed: int, updates: int, replaced: int = 0) -> int:
    """Seed of the first environment. A resumed run, and a worker in another's place, play other episodes."""
    return (seed * 1_000_003 + updates * 8191 + replaced * 104_729) % 2**31


class UpdateEngine(Engine):
    """One learner whose batches are collected outside the compiled program."""

    def __init__(self, algo: Algorithm, seed: int, init: Callable[[Array], State]):
        super().__init__(algo)
        self.seed = seed
        self.state = jax.device_put(init(randomness.fold_in(randomness.key_of(seed), 0)), may_alias=False)
        self.update = jax.jit(gated_update, donate_argnums=(1,))
        self.started = False

    def learn(self, start: float, batch: Batch, rows: EpisodeRows, steps: int) -> Progress:
        """One update on a batch whose collection began at `start`."""
        with self.compilation() if self.compiling else contextlib.nullcontext():
            counts = jnp.int32(rows.count), jnp.int32(steps)
            update = self.update(self.algo, self.state, batch, *counts)
            self.state = update.state
        metrics = {k: np.asarray(v)[None] for k, v in update.metrics.items()}
        if not update.finite:
            none = jax.tree.map(lambda x: x[:0], replace(rows, count=rows.update))
            return Progress(np.zeros(0, np.int64), metrics, none, time.monotonic() - start, True)
        return Progress(np.array([steps]), metrics, rows, time.monotonic() - start)

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.state}

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        self.state = jax.device_put(trees.unflatten(self.snapshot(k), arrays, what)["state"], may_alias=False)

    def actor_params(self, k: int) -> PyTree:
        return self.algo.actor_params(self.state)


class HostEngine(UpdateEngine):
    """One learner on Gymnasium environments of this process."""

    def __init__(self, algo: Algorithm, source: HostSource, seed: int, init: Callable[[Array], State]):
        super().__init__(algo, seed, init)
        self.source = source

    def advance(self, limits: list[Limits]) -> list[Progress]:
        if self.started:
            return [self.collect_and_update()]
        # a resumed run goes on with other episodes than those it began with
        self.source.init(host_seed(self.seed, self.state.clock.count("updates")))
        self.started = self.compiling = True  # the policy and the update; nothing is to be saved before the first
        try:
            return [self.collect_and_update()]
        finally:
            self.compiling = False

    def collect_and_update(self) -> Progress:
        start = time.monotonic()
        key = jax.random.fold_in(self.state.key, self.state.clock.updates)
        return self.learn(start, *self.source.next(self.algo, self.algo.actor_params(self.state), key))

    def close(self) -> None:
        self.source.close()
