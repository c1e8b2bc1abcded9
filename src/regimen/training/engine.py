"""Engines: `advance` the learners by some updates and hand over what happened. The loop above does not know which.

`NativeEngine` compiles source and update into one chunk: a loop of updates with buffers for their metrics and finished
episodes. `HostEngine` steps Gymnasium environments between compiled updates. Results never depend on how many updates
one `advance` covers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from regimen.loops import SEEDS, sync
from regimen.sources.host import HostSource
from regimen.sources.scan import ScanSource
from regimen.training import trees
from regimen.training.curriculum import Curriculum
from regimen.types import Array, EpisodeRows, PyTree, Record, State, pytree_dataclass

Carry = Any  # EnvCarry; with a curriculum {"envs": EnvCarry, "curriculum": its course}
FOREVER = 2**30  # steps or episodes: no limit; room above it, so that 32-bit counters of one advance cannot overflow
CHUNK = 256  # the most updates one compiled call runs
EPISODE_ROWS = 8192  # finished episodes a chunk can hold, at least
FIRST_LOOK = 8  # updates of the first call, which measures the speed


@pytree_dataclass
class Limits(Record):
    """End an advance at the first update that reaches any of these, counted from its start. 0 updates: do nothing."""

    updates: Any = CHUNK
    steps: Any = FOREVER
    episodes: Any = FOREVER


IDLE = Limits(0, 0, 0)


@dataclass
class Progress:
    """What one advance did to one learner."""

    steps: np.ndarray  # [n] env steps of each update
    metrics: dict[str, np.ndarray]  # name -> [n]; one more when `diverged`: those of the update that was refused
    episodes: Any  # EpisodeRows of numpy arrays; `update` in 0..n-1, `step` from the advance's start
    seconds: float  # it took, without compilation
    diverged: bool = False  # the update after the last one was not finite and has not been applied

    @property
    def updates(self) -> int:
        return len(self.steps)


@pytree_dataclass
class Buffers(Record):
    """What a chunk hands to the host."""

    steps: Array  # [CHUNK + 1]
    metrics: Any  # [CHUNK + 1, M] while running, one column per metric; in the end by name
    episodes: EpisodeRows


def finite(metrics: dict[str, Array], state: State) -> Array:
    """Whether an update can be trusted: its loss, its gradient, every parameter and every normaliser."""
    kept = ([m.params for m in state.models.values()], state.norm)
    checked = [metrics[name] for name in ("loss", "grad_norm") if name in metrics]
    return jnp.all(jnp.isfinite(ravel_pytree((checked, kept))[0]))


def where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def one_update(algo: Any, state: State, batch: Any, episodes: Array, steps: Array):
    """The state after an update, whether it is finite, and its metrics."""
    new, metrics = algo.update(state, batch)
    new = new.replace(clock=state.clock.advance(steps, episodes))
    return new, finite(metrics, new), metrics


def chunk(
    source: ScanSource, curriculum: Curriculum | None, algo: Any, env: Any, state: State, carry: Carry, limits: Limits
):
    """Updates until a limit: (state, carry, updates, diverged, Buffers). `limits` differ between seeds; a seed that has
    reached its own waits, unchanged, for the others."""
    most = source.max_episodes(env)
    capacity = max(EPISODE_ROWS, 4 * most)

    def collect(state: State, carry: Carry, key: Array):
        """The carry behind one rollout, its Batch and EpisodeRows, and what the curriculum says of it."""
        params = algo.actor_params(state)
        if curriculum is None:
            envs, batch, rows = source.next(env, algo, carry, params, key)
            return envs, batch, rows, {}
        played, values = curriculum.apply(env, state.clock, carry["curriculum"])
        envs, batch, rows = source.next(played, algo, carry["envs"], params, key)
        return {"envs": envs, "curriculum": curriculum.after(carry["curriculum"], rows)}, batch, rows, values

    def rollout_and_update(state: State, carry: Carry):
        key = jax.random.fold_in(state.key, state.clock.updates)
        new_carry, batch, rows, values = collect(state, carry, key)
        steps = jnp.int32(batch.valid.size) if batch.length is None else batch.valid.sum(dtype=jnp.int32)
        new, ok, metrics = one_update(algo, state, batch, rows.count, steps)
        return new, new_carry, ok, steps, metrics | values, rows

    def going(x) -> Array:
        i, steps, ok, _, _, buffers = x
        count = buffers.episodes.count
        reached = (i >= limits.updates) | (steps >= limits.steps) | (count >= limits.episodes)
        return ok & ~reached & (count + most <= capacity)

    def body(x):
        i, total, still_ok, state, carry, buffers = x
        active = going(x)
        new, new_carry, ok, steps, metrics, rows = rollout_and_update(state, carry)
        applied = active & ok  # an update that is not finite is not applied
        new, new_carry = where(applied, (new, new_carry), (state, carry))
        rows = replace(rows, update=rows.update + i, step=rows.step + total)
        kept = Buffers(
            steps=buffers.steps.at[i].set(steps),
            metrics=buffers.metrics.at[i].set(jnp.stack([metrics[k].astype(jnp.float32) for k in names])),
            episodes=append(buffers.episodes, rows, applied),
        )
        return i + applied, total + jnp.where(applied, steps, 0), still_ok & (ok | ~active), new, new_carry, kept

    metric_shapes, row_shapes = jax.eval_shape(lambda: rollout_and_update(state, carry)[4:])
    names = sorted(metric_shapes)
    buffers = Buffers(  # with room for a seed that waits: it writes behind its last row, and that is never read
        steps=jnp.zeros(CHUNK + 1, jnp.int32),
        metrics=jnp.zeros((CHUNK + 1, len(names))),
        episodes=empty_rows(row_shapes, capacity + most),
    )
    start = (jnp.int32(0), jnp.int32(0), jnp.bool_(True), state, carry, buffers)
    i, _, ok, state, carry, buffers = lax.while_loop(lambda x: sync(going(x)), body, start)
    return state, carry, i, ~ok, buffers.replace(metrics={k: buffers.metrics[:, j] for j, k in enumerate(names)})


def empty_rows(shapes: EpisodeRows, capacity: int) -> EpisodeRows:
    def zeros(s: Any) -> Array:
        return jnp.zeros((capacity, *s.shape[1:]), s.dtype)

    return replace(jax.tree.map(zeros, replace(shapes, count=())), count=jnp.int32(0))  # type: ignore[arg-type]


def append(buffer: EpisodeRows, rows: EpisodeRows, active: Array) -> EpisodeRows:
    """Write the rows behind those already there; what lies past `count` is overwritten by the next. The buffer has room
    for one write more than is ever counted, so that a waiting seed does not overwrite its own last rows."""

    def write(b: Array, r: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(b, r, buffer.count, 0)

    new = jax.tree.map(write, replace(buffer, count=()), replace(rows, count=()))  # type: ignore[arg-type]
    return replace(new, count=buffer.count + jnp.where(active, rows.count, 0))


class Engine:
    """What the trainer needs of either engine. Learners are numbered 0..K-1, one per seed."""

    algo: Any
    learners: int
    curriculum: Curriculum | None = None
    compile_seconds: float = 0.0
    compiling: bool = False

    def advance(self, limits: list[Limits]) -> list[Progress]:
        raise NotImplementedError

    def snapshot(self, k: int) -> PyTree:
        """State and carry of learner k, to be saved."""
        raise NotImplementedError

    def restore(self, arrays: dict[str, np.ndarray], what: str) -> None:
        """Continue from a snapshot; `what` names it in errors. Runs of a group resume one by one."""
        raise NotImplementedError

    def actor_params(self, k: int) -> PyTree:
        raise NotImplementedError

    def close(self) -> None: ...

    @contextlib.contextmanager
    def compilation(self) -> Iterator[None]:
        """Its time is known, and a signal can end the process within it."""
        self.compiling, start = True, time.monotonic()
        try:
            yield
        finally:
            self.compiling = False
            self.compile_seconds += time.monotonic() - start


class NativeEngine(Engine):
    """K learners on a native environment, in one program. `init(key)` makes a learner's first state."""

    def __init__(
        self,
        env: Any,
        algo: Any,
        source: ScanSource,
        seeds: list[int],
        init: Callable[[Array], State],
        curriculum: Curriculum | None = None,
    ):
        self.env, self.algo, self.source, self.curriculum = env, algo, source, curriculum
        self.learners = len(seeds)
        self.speed = 0.0  # updates per second, to size a host wake
        self.program: Callable[..., Any] | None = None
        reset = jax.jit(source.init)
        states, carries = [], []
        for seed in seeds:  # one by one: initialisation runs on the host
            key = jax.random.key(seed)
            states.append(init(jax.random.fold_in(key, 0)))
            if curriculum is None:
                carries.append(reset(env, jax.random.fold_in(key, 1)))
            else:
                course = curriculum.start()
                first, _ = curriculum.apply(env, states[-1].clock, course)
                carries.append({"envs": reset(first, jax.random.fold_in(key, 1)), "curriculum": course})
        self.state, self.carry = self.stack(states), self.stack(carries)

    def stack(self, items: list[PyTree]) -> PyTree:
        if self.learners == 1:
            return jax.tree.map(jnp.copy, items[0])  # no aliases: the buffers are donated
        return jax.tree.map(lambda *x: jnp.stack(x), *items)

    def at(self, tree: PyTree, k: int) -> PyTree:
        return tree if self.learners == 1 else jax.tree.map(lambda x: x[k], tree)

    def compile(self) -> Callable[..., Any]:
        run = partial(chunk, self.source, self.curriculum)
        if self.learners > 1:
            run = jax.vmap(run, in_axes=(None, None, 0, 0, 0), axis_name=SEEDS)
        limits = self.device_limits([Limits()] * self.learners)
        jitted = jax.jit(run, donate_argnums=(2, 3))
        with self.compilation():
            return jitted.lower(self.algo, self.env, self.state, self.carry, limits).compile()

    def device_limits(self, limits: list[Limits]) -> Limits:
        cap = int(self.speed) if self.speed else FIRST_LOOK  # about a second
        most = Limits(max(1, min(CHUNK, cap)), FOREVER, FOREVER)

        def field(name: str):
            values = [min(getattr(x, name), getattr(most, name)) for x in limits]
            return np.int32(values[0]) if self.learners == 1 else np.array(values, np.int32)

        return Limits(field("updates"), field("steps"), field("episodes"))

    def advance(self, limits: list[Limits]) -> list[Progress]:
        program = self.program = self.program or self.compile()
        start = time.monotonic()
        out = program(self.algo, self.env, self.state, self.carry, self.device_limits(limits))
        self.state, self.carry, updates, diverged, buffers = out
        updates, diverged = np.asarray(updates), np.asarray(diverged)
        seconds = max(time.monotonic() - start, 1e-6)
        self.speed = float(np.max(updates)) / seconds or self.speed
        return [
            self.read(self.at(buffers, k), int(self.at(updates, k)), bool(self.at(diverged, k)), seconds)
            for k in range(self.learners)
        ]

    def read(self, buffers: Buffers, updates: int, diverged: bool, seconds: float) -> Progress:
        count = int(buffers.episodes.count)
        episodes = replace(buffers.episodes, count=buffers.episodes.update)
        rows = jax.tree.map(lambda x: host_prefix(x, count), episodes)
        metrics = {k: np.asarray(v)[: updates + diverged] for k, v in buffers.metrics.items()}
        return Progress(np.asarray(buffers.steps)[:updates], metrics, rows, seconds, diverged)

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.at(self.state, k), "carry": self.at(self.carry, k)}

    def restore(self, arrays: dict[str, np.ndarray], what: str) -> None:
        assert self.learners == 1
        tree = trees.unflatten(self.snapshot(0), arrays, what)
        self.state, self.carry = jax.tree.map(jnp.copy, (tree["state"], tree["carry"]))

    def actor_params(self, k: int) -> PyTree:
        return self.algo.actor_params(self.at(self.state, k))


def host_prefix(x: Array, count: int) -> np.ndarray:
    """The first `count` rows on the host; from an accelerator, only a power of two that holds them travels."""
    if next(iter(x.devices())).platform != "cpu":
        x = x[: min(x.shape[0], 1 << max(count - 1, 0).bit_length())]
    return np.asarray(x)[:count]


def gated_update(algo: Any, state: State, *args: Any):
    """The update, applied only if it is finite; whether it was; and its metrics."""
    new, ok, metrics = one_update(algo, state, *args)
    return where(ok, new, state), ok, metrics


class HostEngine(Engine):
    """One learner on Gymnasium environments; every advance is one update."""

    learners = 1

    def __init__(self, algo: Any, source: HostSource, seed: int, init: Callable[[Array], State]):
        self.algo, self.source, self.seed = algo, source, seed
        self.state = jax.tree.map(jnp.copy, init(jax.random.fold_in(jax.random.key(seed), 0)))
        self.update = jax.jit(gated_update, donate_argnums=(1,))
        self.started = False

    def advance(self, limits: list[Limits]) -> list[Progress]:
        if self.started:
            return [self.collect_and_update()]
        # a resumed run goes on with other episodes than those it began with
        self.source.init((self.seed * 1_000_003 + int(self.state.clock.updates) * 8191) % 2**31)
        self.started = self.compiling = True  # the policy and the update; nothing is to be saved before the first
        try:
            return [self.collect_and_update()]
        finally:
            self.compiling = False

    def collect_and_update(self) -> Progress:
        start = time.monotonic()
        key = jax.random.fold_in(self.state.key, self.state.clock.updates)
        batch, rows, steps = self.source.next(self.algo, self.algo.actor_params(self.state), key)
        with self.compilation() if self.compiling else contextlib.nullcontext():
            counts = jnp.int32(rows.count), jnp.int32(steps)
            self.state, ok, metrics = self.update(self.algo, self.state, batch, *counts)
        metrics = {k: np.asarray(v)[None] for k, v in metrics.items()}
        if not ok:
            return Progress(np.zeros(0, np.int64), metrics, self.source.finished([]), time.monotonic() - start, True)
        return Progress(np.array([steps]), metrics, rows, time.monotonic() - start)

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.state}

    def restore(self, arrays: dict[str, np.ndarray], what: str) -> None:
        self.state = jax.tree.map(jnp.copy, trees.unflatten(self.snapshot(0), arrays, what)["state"])

    def actor_params(self, k: int) -> PyTree:
        return self.algo.actor_params(self.state)

    def close(self) -> None:
        self.source.close()
