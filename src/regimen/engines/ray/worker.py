"""The worker of `--engine ray`: a source in a process of its own, as a Ray actor, and what it hands over.

It makes its environments and its policy from the run's settings, collects its share of every rollout with the newest
weights it was offered, and answers questions about what it is doing from a second thread.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import ray

from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import Frozen, bind_algorithm
from regimen.config import layers as settings
from regimen.config import schema as configuration
from regimen.config.regimen import Regimen
from regimen.config.trust import trusting
from regimen.engines import device
from regimen.engines.host import host_seed
from regimen.envs import registry
from regimen.envs.protocol import Env
from regimen.errors import EnvError
from regimen.schedule import Episodes, Steps
from regimen.sources.host import HostSource
from regimen.sources.scan import ScanSource
from regimen.types import Array, Batch, EpisodeRows, PyTree

ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Environment of a worker: with one process per core, more threads only get in each other's way."""


@dataclass(frozen=True)
class Post:
    """What a worker is to do, as plain data."""

    worker: int
    settings: dict[str, Any]  # of the run, see `settings.to_dict`
    regimen: Regimen  # of all workers together
    env: str  # an id that a worker can resolve
    algorithm: tuple[str, str]  # import strings of its class and of its hyper-parameters
    start: tuple[int, int]  # updates made when it was started, and how often it had been replaced
    frozen: Frozen = field(default_factory=dict)  # policies that act and do not learn
    path: tuple[str, ...] = ()  # where the program finds its modules


@dataclass(frozen=True)
class RolloutReport:
    """What is said of a rollout; its batch travels beside it, by reference."""

    worker: int
    version: int  # updates of the policy that acted
    steps: int
    rows: EpisodeRows  # of numpy arrays
    bytes: int
    seconds: float  # it took


class Status(NamedTuple):
    """What a worker is doing."""

    what: str = "start"  # start, wait, act, step, reset, or collect where that is compiled
    env: int = -1  # in which environment
    seconds: float = 0.0  # for how long
    steps: int = 0  # env steps so far
    pid: int = 0


class UnmakeableError(EnvError):
    """A worker cannot make its environment at all."""


class Worker:
    """The actor. Everything happens in one thread, from making the environments on; `offer` and `status` in another."""

    def __init__(self, post: Post):
        self.post = post
        self.source: HostSource | NativeSource | None = None
        self.algo: Algorithm
        self.newest: tuple[int, PyTree] = (-1, None)
        self.start_time = time.monotonic()

    @ray.method(num_returns=2)
    def rollout(self, key: np.ndarray, version: int, weights: PyTree) -> tuple[RolloutReport, Batch]:
        """One whole rollout with these weights, or newer ones that were offered meanwhile."""
        source = self.source = self.source or self.start()
        if self.newest[0] > version:
            version, weights = self.newest
        begin = time.monotonic()
        own_key = share_key(jax.random.wrap_key_data(jnp.asarray(key)), self.post.worker)
        batch, rows, steps = source.next(self.algo, weights, own_key)
        batch, rows = jax.tree.map(np.asarray, (batch, rows))
        seconds = time.monotonic() - begin
        return RolloutReport(self.post.worker, version, steps, rows, device.tree_bytes(batch), seconds), batch

    def start(self) -> HostSource | NativeSource:
        """Make the environments and the policy."""
        with trusting():  # the program that trains has made the same and judged it
            return self.make(self.post)

    def make(self, post: Post) -> HostSource | NativeSource:
        sys.path.extend(p for p in post.path if p not in sys.path)
        know_algorithm(post.settings["algorithm"], post.algorithm)
        config = settings.from_dict(post.settings)
        try:
            handle = registry.resolve(post.env, config.env_args)
        except EnvError as e:
            raise UnmakeableError(str(e)) from e
        device.configure("cpu", handle.native is not None)
        self.algo = bind_algorithm(config, handle, post.regimen, post.frozen)
        share = post.regimen.of_worker()
        schedule = Steps(share.n) if share.kind == "steps" else Episodes(share.n)
        first = post.worker * share.num_envs
        if handle.native is not None:
            return NativeSource(handle.native, schedule, share.num_envs, self.algo, native_key(config.seed, post))
        source = self.source = HostSource.of(handle, schedule, share.num_envs)  # what it is doing shows from here on
        source.init(host_seed(config.seed, *post.start) + first)
        return source

    @ray.method(concurrency_group="watch")
    def offer(self, version: int, weights: PyTree) -> None:
        """Weights for the rollouts that have not begun."""
        if version > self.newest[0]:
            self.newest = version, weights

    @ray.method(concurrency_group="watch")
    def status(self) -> Status:
        source = self.source
        what, env, since = ("start", -1, self.start_time) if source is None else source.doing
        steps = 0 if source is None else source.steps_taken
        return Status(what, env, time.monotonic() - since, steps, os.getpid())


class NativeSource:
    """A native environment compiled for this process: `ScanSource` as `HostSource` looks from outside."""

    def __init__(self, env: Env, schedule: Steps | Episodes, num_envs: int, algo: Algorithm, key: Array):
        self.env, self.source = env, ScanSource(schedule, num_envs)
        self.carry = jax.jit(self.source.init)(env, algo, key)
        self.collect = jax.jit(self.source.next, donate_argnums=(2,))
        self.doing = ("wait", -1, time.monotonic())
        self.steps_taken = 0

    def next(self, algo: Algorithm, params: PyTree, key: Array) -> tuple[Batch, EpisodeRows, int]:
        self.doing = ("collect", -1, time.monotonic())
        self.carry, batch, rows, steps = self.collect(self.env, algo, self.carry, params, key)
        steps, count = int(steps), int(rows.count)
        self.steps_taken += steps
        self.doing = ("wait", -1, time.monotonic())
        return batch, jax.tree.map(lambda x: np.asarray(x)[:count] if x.ndim else x, rows), steps


def share_key(key: Array, worker: int) -> Array:
    """A worker's part of an update's randomness. The first has the key itself: alone, it is the local engine."""
    return jax.random.fold_in(key, 2**31 - worker) if worker else key


def native_key(seed: int, post: Post) -> Array:
    """The random key of a worker's rollout of native environments."""
    key = share_key(jax.random.fold_in(jax.random.key(seed), 1), post.worker)
    return key if post.start == (0, 0) else jax.random.fold_in(key, host_seed(seed, *post.start))


# --- from the program to its workers ---------------------------------------------------------------------------------


def know_algorithm(name: str, where: tuple[str, str]) -> None:
    """An algorithm that the program registered is registered here too."""
    if name not in configuration.ALGORITHMS:
        configuration.register_algorithm(name, *(registry.load(path) for path in where))


# --- several batches as one ------------------------------------------------------------------------------------------


def join(batches: list[Batch]) -> Batch:
    """Batches [T, B, ...] of all workers as one [T, W * B, ...]; of whole episodes, T is the largest of theirs."""
    if len(batches) == 1:
        return batches[0]
    most = max(b.valid.shape[0] for b in batches)
    lengths = [b.length for b in batches if b.length is not None]
    parts = [jax.tree.map(lambda x: padded(x, most), b.replace(length=None)) for b in batches]
    whole = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *parts)
    return whole.replace(length=np.max(lengths) if lengths else None)


def padded(x: np.ndarray, rows: int) -> np.ndarray:
    """With rows of zeros at the end, which are not valid."""
    short = rows - len(x)
    return np.concatenate([x, np.zeros((short, *x.shape[1:]), x.dtype)]) if short else x


def join_rows(parts: list[EpisodeRows], total: int) -> EpisodeRows:
    """Episodes of all workers in the order in which they ended, workers taken to be equally fast. `total` env steps
    are those of all."""
    if len(parts) == 1:
        return parts[0]
    some = [p for p in parts if len(p.length)] or parts[:1]
    shared = set.intersection(*(set(p.metrics) for p in some))
    some = [dataclasses.replace(p, metrics={k: v for k, v in p.metrics.items() if k in shared}) for p in some]
    rows = jax.tree.map(lambda *x: np.concatenate(x), *(dataclasses.replace(p, count=p.update) for p in some))
    step = np.minimum(rows.step * len(parts), total)
    order = np.argsort(step, kind="stable")
    rows = jax.tree.map(lambda x: x[order], dataclasses.replace(rows, step=step))
    return dataclasses.replace(rows, count=np.int32(len(step)))
