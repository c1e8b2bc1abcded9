"""Engines: `advance` the learner by some updates and hand over what happened. The loop above does not know which.

`NativeEngine` compiles source and update into one chunk: a loop of updates with buffers for their metrics and finished
episodes. `HostEngine` steps Gymnasium environments between compiled updates. Results never depend on how many updates
one `advance` covers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen.loops import SEEDS, sync
from regimen.sources.host import HostSource
from regimen.sources.scan import EnvCarry, ScanSource
from regimen.training import trees
from regimen.types import Array, EpisodeRows, PyTree, State, pytree_dataclass

FOREVER = 2**31 - 1
CHUNK = 256  # the most updates one compiled call runs


@pytree_dataclass
class Limits:
    """End an advance at the first update that reaches any of these, counted from its start. 0 updates: do nothing."""

    updates: Any = CHUNK
    steps: Any = FOREVER
    episodes: Any = FOREVER


@dataclass
class Progress:
    """What one advance did to one learner."""

    steps: np.ndarray  # [n] env steps of each update
    metrics: dict[str, np.ndarray]  # name -> [n]
    episodes: Any  # EpisodeRows of numpy arrays; `update` in 0..n-1, `step` from the advance's start
    diverged: bool = False  # the update after the last one was not finite and has not been applied

    @property
    def updates(self) -> int:
        return len(self.steps)


@pytree_dataclass
class Buffers:
    """What a chunk hands to the host."""

    steps: Array  # [CHUNK]
    metrics: dict[str, Array]  # [CHUNK]
    episodes: EpisodeRows


def finite(metrics: dict[str, Array], state: State) -> Array:
    """Whether an update can be trusted: its loss, its gradient and every parameter."""
    params = [m.params for m in state.models.values()]
    checks = [jnp.isfinite(metrics[name]) for name in ("loss", "grad_norm") if name in metrics]
    checks += [jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(checks))


def where(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def one_update(algo: Any, state: State, batch: Any, episodes: Array, steps: Array):
    """The update, applied only if it is finite; whether it was; and its metrics."""
    new, metrics = algo.update(state, batch)
    new = new.replace(clock=state.clock.advance(steps, episodes))
    ok = finite(metrics, new)
    return where(ok, new, state), ok, metrics


def chunk(source: ScanSource, algo: Any, env: Any, state: State, carry: EnvCarry, limits: Limits):
    """Updates until a limit: (state, carry, updates, diverged, Buffers). `limits` differ between seeds."""
    most = source.max_episodes(env)
    capacity = max(8192, 4 * most)

    def rollout_and_update(state: State, carry: EnvCarry):
        key = jax.random.fold_in(state.key, state.clock.updates)
        new_carry, batch, rows = source.next(env, algo, carry, algo.actor_params(state), key)
        steps = jnp.int32(batch.valid.size) if batch.length is None else batch.valid.sum(dtype=jnp.int32)
        new, ok, metrics = one_update(algo, state, batch, rows.count, steps)
        return new, where(ok, new_carry, carry), ok, steps, metrics, rows

    def mine(x) -> Array:
        i, steps, ok, buffers = x[0], x[1], x[2], x[5]
        count = buffers.episodes.count
        return (i < limits.updates) & (steps < limits.steps) & (count < limits.episodes) & (count + most <= capacity) & ok

    def body(x):
        i, total, _, state, carry, buffers = x
        active = mine(x)
        new, new_carry, ok, steps, metrics, rows = rollout_and_update(state, carry)
        wrote = active & ok
        new, new_carry = where(active, (new, new_carry), (state, carry))
        at = jnp.where(active, i, CHUNK)  # out of bounds is dropped
        kept = buffers.replace(
            steps=buffers.steps.at[at].set(steps, mode="drop"),
            metrics={k: buffers.metrics[k].at[at].set(v, mode="drop") for k, v in metrics.items()},
            episodes=append(buffers.episodes, rows.replace(update=rows.update + i, step=rows.step + total), wrote),
        )
        return i + wrote, total + jnp.where(wrote, steps, 0), ok | ~active, new, new_carry, kept

    shapes = jax.eval_shape(lambda: rollout_and_update(state, carry)[4:])
    metrics = {k: jnp.zeros(CHUNK, s.dtype) for k, s in shapes[0].items()}
    rows = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape[1:]), s.dtype), shapes[1].replace(count=shapes[1].update))
    buffers = Buffers(jnp.zeros(CHUNK, jnp.int32), metrics, rows.replace(count=jnp.int32(0)))
    start = (jnp.int32(0), jnp.int32(0), jnp.bool_(True), state, carry, buffers)
    i, _, ok, state, carry, buffers = lax.while_loop(lambda x: sync(mine(x)), body, start)
    return state, carry, i, ~ok, buffers


def append(buffer: EpisodeRows, rows: EpisodeRows, active: Array) -> EpisodeRows:
    """Write the rows behind those already there; what lies past `count` is overwritten by the next."""
    count = jnp.where(active, rows.count, 0)

    def write(b: Array, r: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(b, r, buffer.count, 0)

    new = jax.tree.map(write, buffer.replace(count=()), rows.replace(count=()))
    return new.replace(count=buffer.count + count)


class Engine:
    """What the trainer needs of either engine. Learners are numbered 0..K-1, one per seed."""

    algo: Any
    learners: int
    compile_seconds: float = 0.0
    compiling: bool = False

    def advance(self, limits: list[Limits]) -> list[Progress]:
        raise NotImplementedError

    def snapshot(self, k: int) -> PyTree:
        """State and carry of learner k, to be saved."""
        raise NotImplementedError

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        raise NotImplementedError

    def actor_params(self, k: int) -> PyTree:
        raise NotImplementedError

    def close(self) -> None: ...


class NativeEngine(Engine):
    """K learners on a native environment, in one program."""

    def __init__(self, env: Any, algo: Any, source: ScanSource, seeds: list[int]):
        self.env, self.algo, self.source = env, algo, source
        self.learners = len(seeds)
        self.speed = 0.0  # updates per second, to size a host wake
        self.program: Any = None
        reset = jax.jit(source.init)
        states, carries = [], []
        for seed in seeds:  # one by one: initialisation runs on the host
            key = jax.random.key(seed)
            states.append(algo.init(jax.random.fold_in(key, 0)))
            carries.append(reset(env, jax.random.fold_in(key, 1)))
        self.state, self.carry = self.stack(states), self.stack(carries)

    def stack(self, items: list[PyTree]) -> PyTree:
        if self.learners == 1:
            return jax.tree.map(jnp.copy, items[0])  # no aliases: the buffers are donated
        return jax.tree.map(lambda *x: jnp.stack(x), *items)

    def at(self, tree: PyTree, k: int) -> PyTree:
        return tree if self.learners == 1 else jax.tree.map(lambda x: x[k], tree)

    def compile(self) -> None:
        """Build the program; separate from running it, so that its time is known and a signal can end it."""
        self.compiling, start = True, time.monotonic()
        run = partial(chunk, self.source)
        if self.learners > 1:
            run = jax.vmap(run, in_axes=(None, None, 0, 0, 0), axis_name=SEEDS)
        limits = self.device_limits([Limits()] * self.learners)
        jitted = jax.jit(run, donate_argnums=(2, 3))
        self.program = jitted.lower(self.algo, self.env, self.state, self.carry, limits).compile()
        self.compile_seconds += time.monotonic() - start
        self.compiling = False

    def device_limits(self, limits: list[Limits]) -> Limits:
        cap = CHUNK if not self.speed else max(1, min(CHUNK, int(self.speed)))  # about a second

        def field(name: str, most: int):
            values = [min(getattr(x, name), most) for x in limits]
            return np.int32(values[0]) if self.learners == 1 else np.array(values, np.int32)

        return Limits(field("updates", cap), field("steps", FOREVER), field("episodes", FOREVER))

    def advance(self, limits: list[Limits]) -> list[Progress]:
        if self.program is None:
            self.compile()
            limits = [Limits(min(x.updates, 8), x.steps, x.episodes) for x in limits]  # a first look at the speed
        start = time.monotonic()
        out = self.program(self.algo, self.env, self.state, self.carry, self.device_limits(limits))
        self.state, self.carry, updates, diverged, buffers = out
        updates, diverged = np.asarray(updates), np.asarray(diverged)
        self.speed = float(np.max(updates)) / max(time.monotonic() - start, 1e-6) or self.speed
        return [self.read(self.at(buffers, k), self.at(updates, k), self.at(diverged, k)) for k in range(self.learners)]

    def read(self, buffers: Buffers, updates: np.ndarray, diverged: np.ndarray) -> Progress:
        n, count = int(updates), int(buffers.episodes.count)
        rows = jax.tree.map(lambda x: host_prefix(x, count), buffers.episodes.replace(count=buffers.episodes.update))
        shown = n + bool(diverged)  # the metrics of the refused update say what was wrong
        metrics = {k: np.asarray(v)[:shown] for k, v in buffers.metrics.items()}
        return Progress(np.asarray(buffers.steps)[:n], metrics, rows, bool(diverged))

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.at(self.state, k), "carry": self.at(self.carry, k)}

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        assert self.learners == 1, "runs of a group resume one by one"
        tree = trees.unflatten(self.snapshot(k), arrays, what)
        self.state, self.carry = jax.tree.map(jnp.copy, (tree["state"], tree["carry"]))

    def actor_params(self, k: int) -> PyTree:
        return self.algo.actor_params(self.at(self.state, k))


def host_prefix(x: Array, count: int) -> np.ndarray:
    """The first `count` rows on the host; from an accelerator, only a power of two that holds them travels."""
    if x.ndim and next(iter(x.devices())).platform != "cpu":
        x = x[: min(x.shape[0], 1 << max(count - 1, 0).bit_length())]
    return np.asarray(x)[:count] if x.ndim else np.asarray(x)


class HostEngine(Engine):
    """One learner on Gymnasium environments; every advance is one update."""

    learners = 1

    def __init__(self, algo: Any, source: HostSource, seed: int):
        self.algo, self.source, self.seed = algo, source, seed
        key = jax.random.key(seed)
        self.state = jax.tree.map(jnp.copy, algo.init(jax.random.fold_in(key, 0)))
        self.update = jax.jit(one_update, donate_argnums=(1,))
        self.started = False

    def advance(self, limits: list[Limits]) -> list[Progress]:
        if not self.started:
            # a resumed run goes on with other episodes than those it began with
            self.source.init(self.seed * 1_000_003 + int(self.state.clock.updates) * 8191)
            self.started = True
        key = jax.random.fold_in(self.state.key, self.state.clock.updates)
        batch, rows, steps = self.source.next(self.algo, self.algo.actor_params(self.state), key)
        first = self.compile_seconds == 0.0
        self.compiling, start = first, time.monotonic()
        self.state, ok, metrics = self.update(self.algo, self.state, batch, jnp.int32(rows.count), jnp.int32(steps))
        ok = bool(ok)
        self.compiling = False
        if first:
            self.compile_seconds = time.monotonic() - start
        metrics = {k: np.asarray(v)[None] for k, v in metrics.items()}
        done = np.array([steps]) if ok else np.zeros(0, np.int64)
        return [Progress(done, metrics, rows, not ok)]

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.state}

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        self.state = jax.tree.map(jnp.copy, trees.unflatten(self.snapshot(k), arrays, what)["state"])

    def actor_params(self, k: int) -> PyTree:
        return self.algo.actor_params(self.state)

    def close(self) -> None:
        self.source.close()

