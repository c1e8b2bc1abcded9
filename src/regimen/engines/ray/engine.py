"""The engine of `--engine ray`: the update in this process, the environments in workers.

Synchronous algorithms get every worker's share of a rollout, collected with the current weights, as one batch: two runs
with the same seed are the same. Asynchronous ones learn from each worker's batch as it comes, with its lag, while the
workers go on with the newest weights; `engine.queue` bounds how far ahead they get.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping

import jax
import numpy as np
import ray

from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import Frozen
from regimen.config import layers
from regimen.config.regimen import Regimen
from regimen.config.schema import ALGORITHMS, TrainConfig
from regimen.engines.base import Limits, Progress, WorkerRow
from regimen.engines.host import UpdateEngine
from regimen.engines.ray.cluster import Cluster
from regimen.engines.ray.fleet import Fleet, RolloutRequest, WorkerHandle
from regimen.engines.ray.worker import Post, RolloutReport, join, join_rows
from regimen.envs.imports import import_string, portable_env
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError
from regimen.types import Array, Batch, State


class RayEngine(UpdateEngine):
    """One learner, and workers that collect; every advance is one update."""

    def __init__(
        self,
        config: TrainConfig,
        regimen: Regimen,
        handle: EnvHandle,
        algo: Algorithm,
        seed: int,
        init: Callable[[Array], State],
        stop_requested: Callable[[], bool],
        store_bytes: int,
        frozen: Frozen,
    ):
        super().__init__(algo, seed, init)
        self.regimen = regimen
        self.frozen = frozen
        self.config, self.handle = config.replace(seed=seed, seeds=None), handle
        self.env, self.algorithm = portable_env(config.env, "engine: workers"), portable_algorithm(config.algorithm)
        self.asynchronous = algo.asynchronous
        self.max_lag = algo.max_lag
        self.cluster = Cluster(config.engine, store_bytes)
        self.fleet = Fleet(config.engine, self.post, self.order, stop_requested)
        self.fleet.require = self.cluster.require
        self.tell: Callable[[str], None] = lambda text: None
        self.weights: ray.ObjectRef | None = None  # reference to the newest
        self.version = -1  # updates they come from
        self.key = np.zeros(0)  # of the rollouts that are asked for now
        self.ready: deque[tuple[WorkerHandle, RolloutRequest]] = deque()  # finished rollouts, the oldest first
        self.rollouts = self.dropped = 0
        self.synced = 0  # training steps of the weights that workers have, where those are counted

    # --- the workers -------------------------------------------------------------------------------------------------

    def post(self, worker: int, replaced: int) -> Post:
        data = layers.to_dict(self.config)
        start = self.state.clock.count("updates"), replaced
        return Post(
            worker, data, self.regimen, self.env, self.algorithm, start, self.frozen, tuple(filter(None, sys.path))
        )

    def order(self, member: WorkerHandle) -> None:
        """Ask a worker for what it owes: its share of this update, or as many rollouts as it may get ahead."""
        for _ in range(self.config.engine.queue - len(member.requests) if self.asynchronous else 1):
            if self.asynchronous:  # updates and rollouts do not go together
                self.rollouts += 1
                self.key = rollout_key(self.state.key, self.rollouts)
            self.fleet.ask(member, self.key, self.version, self.weights)

    def broadcast(self) -> None:
        """Put the current weights where workers read them, once per version."""
        self.cluster.require()
        self.version = self.state.clock.count("updates")
        self.key = rollout_key(self.state.key, self.version)
        self.weights = ray.put(jax.device_get(self.algo.actor_params(self.state)))  # on one machine all read one copy

    def due(self) -> bool:
        """Whether workers get new weights now: after every update, or as often as the algorithm's `sync_every`
        says, in its training steps."""
        every = self.algo.sync_every
        if every is None:
            return True
        steps = self.algo.training_steps(self.state)
        if 0 <= steps - self.synced < every:  # a count that goes back has outgrown its bits
            return False
        self.synced = steps
        return True

    def start(self) -> None:
        self.started = True
        where = self.cluster.start()
        self.rollouts = self.state.clock.count("updates")  # a resumed run draws other noise
        self.broadcast()
        self.fleet.start()
        self.tell(f"{self.config.engine.workers} workers are starting on {where}")

    # --- learning ----------------------------------------------------------------------------------------------------

    def advance(self, limits: list[Limits]) -> list[Progress]:
        start = time.monotonic()
        first = not self.started
        if first:
            self.start()
        elif not self.asynchronous:
            self.broadcast()
            for member in self.fleet.members:
                member.requests.clear()  # of one that was replaced after the others had delivered
                self.order(member)
        reports, batch = self.collect_next() if self.asynchronous else self.collect_all()
        steps = sum(r.steps for r in reports)
        rows = join_rows([r.rows for r in reports], steps)
        collected = time.monotonic()
        progress = self.learn(start, batch, rows, steps)
        if first:
            self.compile_seconds += time.monotonic() - collected
        if self.asynchronous and self.due():
            self.broadcast()
            self.fleet.offer(self.version, self.weights)
        waited = collected - start
        metrics = {
            "time/waiting": waited,
            "time/learner_busy": 1 - waited / (time.monotonic() - start),
            "time/bytes_per_step": sum(r.bytes for r in reports) / max(steps, 1),
            "restarts": self.fleet.restarts,
        }
        if self.asynchronous:
            metrics |= {f"lag_{how}": getattr(np.asarray(batch.lag), how)() for how in ("min", "mean", "max")}
            metrics["dropped_batches"] = self.dropped
        progress.metrics |= {name: np.array([value], np.float64) for name, value in metrics.items()}
        return [progress]

    def collect_all(self) -> tuple[list[RolloutReport], Batch]:
        """The shares of all workers, in their order, as one batch."""
        members, shares = self.fleet.members, {}
        while missing := [m for m in members if m.index not in shares]:
            for member in self.fleet.wait(missing, enough=1):
                delivery = self.fleet.take(member)
                batch = self.fleet.fetch(member, delivery[1]) if delivery is not None else None
                if delivery is not None and batch is not None:
                    shares[member.index] = delivery[0], batch
        reports, batches = zip(*(shares[m.index] for m in members))
        return list(reports), join(list(batches))

    def collect_next(self) -> tuple[list[RolloutReport], Batch]:
        """The batch that has waited longest and is not too old to learn from."""
        while True:
            queue = [request for _, request in self.ready]
            if waiting := [m for m in self.fleet.members if m.requests[0] not in queue]:
                finished = self.fleet.wait(waiting, enough=0 if queue else 1)
                self.ready.extend((m, m.requests[0]) for m in finished)
            member, request = self.ready.popleft()
            if request is not member.requests[0]:  # it was replaced meanwhile
                continue
            delivery = self.fleet.take(member)
            if delivery is None:
                continue
            report, reference = delivery
            self.order(member)
            lag = self.state.clock.count("updates") - report.version
            if self.max_lag is not None and lag > self.max_lag:
                self.dropped += 1
                continue
            batch = self.fleet.fetch(member, reference)
            if batch is not None:
                envs = batch.valid.shape[1]
                return [report], batch.replace(lag=np.full(envs, lag, np.int32), worker=np.int32(report.worker))

    # --- what the loop asks ------------------------------------------------------------------------------------------

    def words(self) -> str:
        e = self.config.engine
        where = "on this machine" if e.address is None else f"of the Ray cluster at {e.address}"
        how = "an update when all have delivered their share"
        if self.asynchronous:
            how = f"an update for each share as it is delivered, at most {e.queue} ahead of the learner"
        return f"{e.workers} Ray workers {where}; {how}; up to {e.restarts} restarts"

    def watch(self, tell: Callable[[str], None], show: Callable[[list[WorkerRow]], None]) -> None:
        self.tell, self.fleet.tell, self.fleet.show = tell, tell, show

    def summary(self) -> Mapping[str, object]:
        counts = {"workers": self.config.engine.workers, "restarts": self.fleet.restarts}
        return counts | ({"dropped_batches": self.dropped} if self.asynchronous else {})

    def abandon(self) -> None:
        self.cluster.abandon()

    def close(self) -> None:
        if not self.started:
            return
        if self.fleet.members:
            self.fleet.report()
        self.fleet.close()
        self.cluster.stop()


@jax.jit
def key_words(key: Array, index: Array) -> Array:
    return jax.random.key_data(jax.random.fold_in(key, index))


def rollout_key(key: Array, index: int) -> np.ndarray:
    """The key of a rollout as plain numbers. The upper half of 32 bits makes the keys of updates."""
    return np.asarray(key_words(key, np.uint32(index % 2**31)))


def portable_algorithm(name: str) -> tuple[str, str]:
    """Import strings of an algorithm's class and of its hyper-parameters."""
    entry = ALGORITHMS[name]
    paths = import_string(entry.target), import_string(entry.config)
    if any(path.startswith("__main__:") or "<" in path for path in paths):
        raise ConfigError(f"engine: workers cannot import the algorithm '{name}'; put it into a module")
    return paths
