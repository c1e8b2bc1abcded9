"""Engines: `advance` the learners by some updates and hand over what happened. The loop above does not know which.

`NativeEngine` compiles source and update into one chunk: a loop of updates with buffers for their metrics and finished
episodes, run by every device on its share of the environments. `HostEngine` steps Gymnasium environments between
compiled updates. Results never depend on how many updates one `advance` covers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from regimen import trees
from regimen.axes import (
    DEVICES,
    SEEDS,
    all_devices,
    applied_state,
    device_count,
    gather_over_devices,
    sum_over_devices,
    sync,
    where,
)
from regimen.sources import lagged
from regimen.sources.host import HostSource
from regimen.sources.scan import ScanSource
from regimen.types import Array, Batch, EpisodeRows, PyTree, Record, State, pytree_dataclass

if TYPE_CHECKING:
    from regimen.config.regimen import Regimen
    from regimen.engines.curriculum import Curriculum

Carry = Any  # EnvCarry; with a curriculum or a lag {"envs": EnvCarry, "curriculum": its course, "history": policies}
FOREVER = 2**30  # steps or episodes: no limit; room above it, so that 32-bit counters of one advance cannot overflow
CHUNK = 256  # the most updates one compiled call runs
EPISODE_ROWS = 8192  # finished episodes a chunk can hold, at least
AGENT_STEPS = "agent_steps"  # a metric of several agents: transitions of each that acted
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
    episodes: EpisodeRows  # of each device


def finite(metrics: dict[str, Array], state: State) -> Array:
    """Whether an update can be trusted: its loss, its gradient, every parameter and every normaliser."""
    kept = ([m.params for m in state.models.values()], state.norm)
    learned = metrics.get("gradient_steps", 1.0) > 0  # an update without a gradient step has no loss
    checked = [jnp.where(learned, metrics[name], 0.0) for name in ("loss", "grad_norm") if name in metrics]
    return jnp.all(jnp.isfinite(ravel_pytree((checked, kept))[0]))


def one_update(algo: Any, state: State, batch: Any, episodes: Array, steps: Array):
    """The state after an update, whether it is finite, and its metrics."""
    new, metrics = algo.update(state, batch)
    if batch.lag is not None:
        metrics |= {"lag_min": batch.lag.min(), "lag_mean": batch.lag.mean(), "lag_max": batch.lag.max()}
    if algo.bound.spec.agents:
        metrics[AGENT_STEPS] = sum_over_devices(batch.valid.sum(dtype=jnp.float32))
    new = new.replace(clock=state.clock.advance(steps, episodes))
    return new, finite(metrics, new), metrics


def chunk(
    source: ScanSource,
    curriculum: Curriculum | None,
    lag: int,
    algo: Any,
    env: Any,
    state: State,
    carry: Carry,
    limits: Limits,
):
    """Updates until a limit: (state, carry, updates, diverged, Buffers). `limits` differ between seeds; a seed that has
    reached its own waits, unchanged, for the others. `source` and `carry` are one device's; everything is counted over
    all devices, which therefore go on and end together."""
    most = source.max_episodes(env)
    capacity = max(EPISODE_ROWS // device_count(), 4 * most)

    def collect(state: State, carry: Carry, key: Array):
        """The carry behind one rollout, its Batch, EpisodeRows and env steps, and what the curriculum says of it."""
        params, played, values, new, age = algo.actor_params(state), env, {}, {}, None
        if lag:
            params, new["history"], age = lagged.swap(carry["history"], params, state.clock.updates, lag)
        if curriculum is not None:
            played, values = curriculum.apply(env, state.clock, carry["curriculum"])
        plain = curriculum is None and not lag
        envs, batch, rows, steps = source.next(played, algo, carry if plain else carry["envs"], params, key)
        if age is not None:
            batch = batch.replace(lag=jnp.full(batch.valid.shape[1], age))
        if curriculum is not None:
            new["curriculum"] = curriculum.after(carry["curriculum"], rows)
        return envs if plain else new | {"envs": envs}, batch, rows, steps, values

    def rollout_and_update(state: State, carry: Carry):
        key = jax.random.fold_in(state.key, state.clock.updates)
        new_carry, batch, rows, steps, values = collect(state, carry, key)
        steps, ended = gather_over_devices((steps, rows.count))
        new, ok, metrics = one_update(algo, state, batch, ended.sum(), steps.sum())
        return new, new_carry, all_devices(ok), steps.sum(), ended, metrics | values, rows

    def going(x) -> Array:
        i, steps, ended, ok, _, _, _ = x
        reached = (i >= limits.updates) | (steps >= limits.steps) | (ended.sum() >= limits.episodes)
        return ok & ~reached & (ended.max() + most <= capacity)

    def body(x):
        i, total, all_ended, still_ok, state, carry, buffers = x
        active = going(x)
        new, new_carry, ok, steps, ended, metrics, rows = rollout_and_update(state, carry)
        applied = active & ok  # an update that is not finite is not applied
        new, new_carry = applied_state(applied, new, state), where(applied, new_carry, carry)
        rows = replace(rows, update=rows.update + i, step=rows.step + total)
        kept = Buffers(
            steps=buffers.steps.at[i].set(steps),
            metrics=buffers.metrics.at[i].set(jnp.stack([metrics[k].astype(jnp.float32) for k in names])),
            episodes=append(buffers.episodes, rows, applied),
        )
        counts = i + applied, total + jnp.where(applied, steps, 0), all_ended + jnp.where(applied, ended, 0)
        return *counts, still_ok & (ok | ~active), new, new_carry, kept

    metric_shapes, row_shapes = jax.eval_shape(lambda: rollout_and_update(state, carry)[5:])
    names = sorted(metric_shapes)
    buffers = Buffers(  # with room for a seed that waits: it writes behind its last row, and that is never read
        steps=jnp.zeros(CHUNK + 1, jnp.int32),
        metrics=jnp.zeros((CHUNK + 1, len(names))),
        episodes=empty_rows(row_shapes, capacity + most),
    )
    none = jnp.zeros(device_count(), jnp.int32)
    start = (jnp.int32(0), jnp.int32(0), none, jnp.bool_(True), state, carry, buffers)
    i, _, _, ok, state, carry, buffers = lax.while_loop(lambda x: sync(going(x)), body, start)
    metrics, rows = {k: buffers.metrics[:, j] for j, k in enumerate(names)}, buffers.episodes
    return state, carry, i, ~ok, buffers.replace(metrics=metrics, episodes=replace(rows, count=rows.count[None]))


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
    regimen: Regimen
    curriculum: Curriculum | None = None
    device_count: int = 1
    notes: tuple[str, ...] = ()  # what the start of a run says of it
    about: dict[str, Any] = {}  # noqa: RUF012 - what its summary says
    compile_seconds: float = 0.0
    compiling: bool = False
    on_signal: Callable[[int], None]  # of one that another process of the run has received

    def advance(self, limits: list[Limits]) -> list[Progress]:
        raise NotImplementedError

    def snapshot(self, k: int) -> PyTree:
        """State and carry of learner k, to be saved."""
        raise NotImplementedError

    def restore(self, arrays: dict[str, np.ndarray], what: str) -> None:
        """Continue from a snapshot; `what` names it in errors. Runs of a group resume one by one."""
        raise NotImplementedError

    def restore_one(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        """The same for one learner of several."""
        assert k == 0 and self.learners == 1, "this engine restores one learner"
        self.restore(arrays, what)

    def actor_params(self, k: int) -> PyTree:
        raise NotImplementedError

    def algo_of(self, k: int) -> Any:
        """The algorithm of learner k, whose hyper-parameters may be its own."""
        return self.algo

    def words(self) -> str:
        """How experience is collected, where that needs saying."""
        return ""

    def watch(self, tell: Callable[[str], None], show: Callable[[list[dict[str, Any]]], None]) -> None:
        """Where to say what happens within an advance: events, and the state of each worker."""

    def summary(self) -> dict[str, Any]:
        """What it adds to summary.json."""
        return self.about

    def abandon(self) -> None:
        """The process is about to end without `close`."""

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
    """K learners on a native environment, in one program over `devices`. `init(key, algo)` makes a learner's first
    state. With `variants`, learner k has an algorithm of its own: all are `algo` but for their float hyper-parameters.

    Environments are split over the devices along their axis; what is learned is the same on all of them. So a snapshot
    does not depend on their number, and another number can go on from it.
    """

    variants: list[Any] | None = None
    stacked: Any = None  # the variants as one pytree

    def __init__(
        self,
        env: Any,
        algo: Any,
        source: ScanSource,
        seeds: list[int],
        init: Callable[..., State],
        curriculum: Curriculum | None = None,
        lag: int = 0,
        devices: list[Any] | None = None,
        variants: list[Any] | None = None,
    ):
        self.env, self.algo, self.source, self.curriculum, self.lag = env, algo, source, curriculum, lag
        self.mesh = Mesh(np.array(devices or jax.local_devices()[:1]), (DEVICES,))
        self.device_count = self.mesh.size
        self.learners = len(seeds)
        self.variants = variants if self.learners > 1 else None
        self.stacked = None if self.variants is None else self.stack(self.variants)
        self.speed = 0.0  # updates per second, to size a host wake
        self.program: Callable[..., Any] | None = None
        reset = jax.jit(source.init)
        states, carries = [], []
        for k, seed in enumerate(seeds):  # one by one: initialisation runs on the host
            key, algo = jax.random.key(seed), self.algo_of(k)
            states.append(init(jax.random.fold_in(key, 0), algo))
            extra, first = {}, env
            if lag:
                extra["history"] = lagged.start(algo.actor_params(states[-1]), lag)
            if curriculum is not None:
                extra["curriculum"] = curriculum.start()
                first, _ = curriculum.apply(env, states[-1].clock, extra["curriculum"])
            envs = reset(first, algo, jax.random.fold_in(key, 1))
            carries.append(extra | {"envs": envs} if extra else envs)
        self.place(self.stack(states), self.stack(carries))

    @property
    def played(self) -> Any:
        """What the program is given as the algorithm."""
        return self.algo if self.stacked is None else self.stacked

    def stack(self, items: list[PyTree]) -> PyTree:
        if self.learners == 1:
            return items[0]
        return jax.tree.map(lambda *x: jnp.stack(x), *items)

    def at(self, tree: PyTree, k: int) -> PyTree:
        return tree if self.learners == 1 else jax.tree.map(lambda x: x[k], tree)

    def specs(self, state: State) -> tuple[Any, Any]:
        """How a state and a carry lie on the devices: rows of environments are split, the rest is on all of them."""
        everywhere, by_env = P(), P(DEVICES) if self.learners == 1 else P(None, DEVICES)
        split = self.algo.by_env or ()
        aux = {name: by_env if name in split else everywhere for name in state.aux}
        columns = P(None, DEVICES) if self.learners == 1 else P(None, None, DEVICES)  # a replay is [time, rows, ...]
        common = State(everywhere, everywhere, everywhere, everywhere, aux, columns)  # type: ignore[arg-type]
        if self.curriculum is None and not self.lag:
            return common, by_env
        extra = {"curriculum": self.curriculum is not None, "history": bool(self.lag)}
        return common, {"envs": by_env} | {name: everywhere for name, there in extra.items() if there}

    def place(self, state: State, carry: Carry) -> None:
        """Take up a state and a carry, as copies: the buffers are donated, and aliases among them would be refused."""
        specs = self.specs(state)
        self.state, self.carry = (on_mesh(tree, self.mesh, spec) for tree, spec in zip((state, carry), specs))

    def compile(self) -> Callable[..., Any]:
        run = partial(chunk, self.source.share(self.device_count), self.curriculum, self.lag)
        if self.learners > 1:
            run = jax.vmap(run, in_axes=(None if self.variants is None else 0, None, 0, 0, 0), axis_name=SEEDS)
        state, carry = self.specs(self.state)
        rows: Any = P(DEVICES) if self.learners == 1 else P(None, DEVICES)
        given, back = (P(), P(), state, carry, P()), (state, carry, P(), P(), Buffers(P(), P(), rows))  # type: ignore[arg-type]
        run = jax.shard_map(run, mesh=self.mesh, in_specs=given, out_specs=back, check_vma=False)
        limits = self.device_limits([Limits()] * self.learners)
        jitted = jax.jit(run, donate_argnums=(2, 3))
        with self.compilation():
            return jitted.lower(self.played, self.env, self.state, self.carry, limits).compile()

    def device_limits(self, limits: list[Limits]) -> Limits:
        cap = int(self.speed) if self.speed else FIRST_LOOK  # about a second
        most = Limits(max(1, min(CHUNK, cap)), FOREVER, FOREVER)

        def field(name: str):
            values = [min(getattr(x, name), getattr(most, name)) for x in limits]
            return np.int32(values[0]) if self.learners == 1 else np.array(values, np.int32)

        return Limits(field("updates"), field("steps"), field("episodes"))

    def advance(self, limits: list[Limits]) -> list[Progress]:
        return self.run_chunk(self.device_limits(limits))

    def run_chunk(self, limits: Limits) -> list[Progress]:
        program = self.program = self.program or self.compile()
        start = time.monotonic()
        self.state, self.carry, *told = program(self.played, self.env, self.state, self.carry, limits)
        updates, diverged, buffers = self.local(told)
        updates, diverged = np.asarray(updates), np.asarray(diverged)
        seconds = max(time.monotonic() - start, 1e-6)
        self.speed = float(np.max(updates)) / seconds or self.speed
        return [
            self.read(self.at(buffers, k), int(self.at(updates, k)), bool(self.at(diverged, k)), seconds)
            for k in range(self.learners)
        ]

    def local(self, tree: PyTree) -> PyTree:
        """Arrays that this process can read: all of them, where it is alone."""
        return tree

    def read(self, buffers: Buffers, updates: int, diverged: bool, seconds: float) -> Progress:
        rows = in_order(buffers.episodes)
        metrics = {k: np.asarray(v)[: updates + diverged] for k, v in buffers.metrics.items()}
        return Progress(np.asarray(buffers.steps)[:updates], metrics, rows, seconds, diverged)

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.at(self.state, k), "carry": self.at(self.carry, k)}

    def restore(self, arrays: dict[str, np.ndarray], what: str) -> None:
        assert self.learners == 1
        tree = trees.unflatten(self.snapshot(0), arrays, what)
        self.place(tree["state"], tree["carry"])

    def restore_one(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        if self.learners == 1:
            return self.restore(arrays, what)
        tree = trees.unflatten(self.snapshot(k), arrays, what)
        whole = {"state": self.state, "carry": self.carry}
        new = jax.tree.map(lambda all_of, one: all_of.at[k].set(one), whole, tree)
        self.place(new["state"], new["carry"])

    def algo_of(self, k: int) -> Any:
        return self.algo if self.variants is None else self.variants[k]

    def actor_params(self, k: int) -> PyTree:
        """On one device: that is where policies are evaluated."""
        return self.algo.actor_params(self.at(jax.tree.map(lambda x: x.addressable_data(0), self.state), k))


def on_mesh(tree: PyTree, mesh: Mesh, spec: Any) -> PyTree:
    """A copy of the tree on the devices of a mesh, by the specs of its parts."""

    def put(x: Array, sharding: NamedSharding) -> Array:
        if sharding.is_fully_addressable:
            return jax.device_put(jnp.copy(x), sharding)
        if trees.is_key(x):
            return jax.random.wrap_key_data(put(jax.random.key_data(x), sharding))
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    def place(spec: P, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: put(x, NamedSharding(mesh, spec)), part)

    return jax.tree.map(place, spec, tree, is_leaf=lambda x: isinstance(x, P))


def in_order(rows: EpisodeRows) -> Any:
    """The rows of all devices on the host, by update and by the env step at which they ended."""
    counts = np.asarray(rows.count)
    columns = replace(rows, count=rows.update)  # type: ignore[arg-type]
    if len(counts) == 1:
        return jax.tree.map(lambda x: host_prefix(x, int(counts[0])), columns)

    def real(x: Array) -> np.ndarray:
        return np.concatenate([part[:n] for part, n in zip(np.split(np.asarray(x), len(counts)), counts)])

    columns = jax.tree.map(real, columns)
    order = np.lexsort((columns.step, columns.update))
    return jax.tree.map(lambda x: x[order], columns)


def host_prefix(x: Array, count: int) -> np.ndarray:
    """The first `count` rows on the host; from an accelerator, only a power of two that holds them travels."""
    if next(iter(x.devices())).platform != "cpu":
        x = x[: min(x.shape[0], 1 << max(count - 1, 0).bit_length())]
    return np.asarray(x)[:count]


def gated_update(algo: Any, state: State, *args: Any):
    """The update, applied only if it is finite; whether it was; and its metrics."""
    new, ok, metrics = one_update(algo, state, *args)
    return applied_state(ok, new, state), ok, metrics


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
        return self.learn(start, *self.source.next(self.algo, self.algo.actor_params(self.state), key))

    def learn(self, start: float, batch: Batch, rows: EpisodeRows, steps: int) -> Progress:
        """One update on a batch whose collection began at `start`."""
        with self.compilation() if self.compiling else contextlib.nullcontext():
            counts = jnp.int32(rows.count), jnp.int32(steps)
            self.state, ok, metrics = self.update(self.algo, self.state, batch, *counts)
        metrics = {k: np.asarray(v)[None] for k, v in metrics.items()}
        if not ok:
            none: Any = jax.tree.map(lambda x: x[:0], replace(rows, count=rows.update))
            return Progress(np.zeros(0, np.int64), metrics, none, time.monotonic() - start, True)
        return Progress(np.array([steps]), metrics, rows, time.monotonic() - start)

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.state}

    def restore(self, arrays: dict[str, np.ndarray], what: str) -> None:
        self.state = jax.tree.map(jnp.copy, trees.unflatten(self.snapshot(0), arrays, what)["state"])

    def actor_params(self, k: int) -> PyTree:
        return self.algo.actor_params(self.state)

    def close(self) -> None:
        self.source.close()
