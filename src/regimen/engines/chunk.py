"""One compiled chunk: a loop of updates with buffers for their metrics and finished episodes, whatever an update is.

`chunk` repeats a `turn`, which says what one update does; `CompiledEngine` runs it for K learners in one program.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.stages import Lowered

from regimen import kernels, trees
from regimen.algorithms.base import Algorithm
from regimen.axes import SEEDS, applied_state, device_count, sum_over_devices, sync, where
from regimen.compiling import Compiling, traced
from regimen.engines.base import AGENT_STEPS, CHUNK, FOREVER, Engine, Limits, Progress
from regimen.types import Array, Batch, EpisodeRows, PyTree, Record, State, pytree_dataclass

EPISODE_ROWS = 8192  # finished episodes a chunk can hold, at least
FIRST_LOOK = 8  # updates of the first call, which measures the speed


@pytree_dataclass
class Update(Record):
    """What an algorithm's update gives."""

    state: State
    finite: Array  # bool, of this device
    metrics: dict[str, Array]


@pytree_dataclass
class Turn(Record):
    """What one update of a chunk did. Counts and `finite` are over all devices, which go on and end together."""

    state: State
    carry: PyTree
    finite: Array  # bool
    steps: Array  # int32
    ended: Array  # [D] int32, episodes that ended on each device
    metrics: dict[str, Array]
    episodes: EpisodeRows  # of this device


def finite(metrics: dict[str, Array], state: State) -> Array:
    """Whether an update can be trusted: its loss, its gradient, every parameter and every normaliser."""
    params = ([m.params for m in state.models.values()], state.norm)
    learned = metrics.get("gradient_steps", 1.0) > 0  # an update without a gradient step has no loss
    losses = [jnp.where(learned, metrics[name], 0.0) for name in ("loss", "grad_norm") if name in metrics]
    return jnp.all(jnp.isfinite(ravel_pytree((losses, params))[0]))


def one_update(algo: Algorithm, state: State, batch: Batch, episodes: Array, steps: Array) -> Update:
    """Learn from a batch in which so many episodes ended, and advance the clock."""
    new, metrics = algo.update(state, batch)
    if batch.lag is not None:
        metrics |= {"lag_min": batch.lag.min(), "lag_mean": batch.lag.mean(), "lag_max": batch.lag.max()}
    if algo.bound.spec.agents:
        metrics[AGENT_STEPS] = sum_over_devices(batch.valid.sum(dtype=jnp.float32))
    new = new.replace(clock=state.clock.advance(steps, episodes))
    return Update(new, finite(metrics, new), metrics)


@pytree_dataclass
class Buffers(Record):
    """What a chunk hands to the host, with room for a seed that waits: it writes behind its last row, unread."""

    steps: Array  # [CHUNK + 1]
    metrics: PyTree  # [CHUNK + 1, M] while running, one column per metric; in the end by name
    episodes: EpisodeRows  # of each device
    summary: PyTree = ()  # [CHUNK + 1, ...] by update, where the rows are a sample: episodes, and what `summary` says


@pytree_dataclass
class Stretch(Record):
    """The updates of a chunk so far. XLA fuses the loop by the order of these fields: another order gives other last
    digits."""

    updates: Array  # int32
    steps: Array  # int32
    ended: Array  # [D] int32
    finite: Array  # bool; an update that is not is the last one and has not been applied
    state: State
    carry: PyTree
    buffers: Buffers


def chunk(turn: Callable[[State, PyTree], Turn], state: State, carry: PyTree, limits: Limits) -> Stretch:
    """Updates until a limit. `limits` differ between seeds; a seed that has reached its own waits, unchanged, for the
    others. `carry` is one device's."""
    turn, shapes = traced(turn, state, carry)
    names = sorted(shapes.metrics)
    most = shapes.episodes.update.shape[0]  # episodes of one update
    capacity = max(EPISODE_ROWS // device_count(), 4 * most) if most else 0
    sampled = shapes.episodes.total is not None

    def going(x: Stretch) -> Array:
        reached = (x.updates >= limits.updates) | (x.steps >= limits.steps) | (x.ended.sum() >= limits.episodes)
        rows = x.updates * most if sampled else x.ended.max()
        return x.finite & ~reached & (rows + most <= capacity)

    def body(x: Stretch) -> Stretch:
        active = going(x)
        new = turn(x.state, x.carry)
        applied = active & new.finite  # an update that is not finite is not applied
        rows = replace(new.episodes, update=new.episodes.update + x.updates, step=new.episodes.step + x.steps)
        summary = (rows.total, rows.summary) if sampled else ()
        rows = replace(rows, total=None, summary=None)
        metrics = jnp.stack([new.metrics[name].astype(jnp.float32) for name in names])
        return Stretch(
            state=applied_state(applied, new.state, x.state),
            carry=where(applied, new.carry, x.carry),
            updates=x.updates + applied,
            steps=x.steps + jnp.where(applied, new.steps, 0),
            ended=x.ended + jnp.where(applied, new.ended, 0),
            finite=x.finite & (new.finite | ~active),
            buffers=Buffers(
                steps=x.buffers.steps.at[x.updates].set(new.steps),
                metrics=x.buffers.metrics.at[x.updates].set(metrics),
                episodes=append(x.buffers.episodes, rows, applied),
                summary=jax.tree.map(lambda b, new: b.at[x.updates].set(new), x.buffers.summary, summary),
            ),
        )

    buffers = Buffers(
        steps=jnp.zeros(CHUNK + 1, jnp.int32),
        metrics=jnp.zeros((CHUNK + 1, len(names))),
        episodes=empty_rows(replace(shapes.episodes, total=None, summary=None), capacity + most),
        summary=by_update((shapes.episodes.total, shapes.episodes.summary)) if sampled else (),
    )
    none = jnp.zeros(device_count(), jnp.int32)
    start = Stretch(jnp.int32(0), jnp.int32(0), none, jnp.bool_(True), state, carry, buffers)
    end: Stretch = lax.while_loop(lambda x: sync(going(x)), body, start)
    metrics = {name: end.buffers.metrics[:, j] for j, name in enumerate(names)}
    rows = replace(end.buffers.episodes, count=end.buffers.episodes.count[None])
    return end.replace(buffers=end.buffers.replace(metrics=metrics, episodes=rows))


def by_update(shapes: PyTree) -> PyTree:
    """Room for something of each update."""
    return jax.tree.map(lambda s: jnp.zeros((CHUNK + 1, *s.shape), s.dtype), shapes)


def empty_rows(shapes: EpisodeRows, capacity: int) -> EpisodeRows:
    """Room for that many episodes, none of them there yet."""

    def zeros(s: jax.ShapeDtypeStruct) -> Array:
        return jnp.zeros((capacity, *s.shape[1:]), s.dtype)

    return replace(jax.tree.map(zeros, replace(shapes, count=())), count=jnp.int32(0))  # type: ignore[arg-type]


def append(buffer: EpisodeRows, rows: EpisodeRows, active: Array) -> EpisodeRows:
    """Write the rows behind those already there; what lies past `count` is overwritten by the next. The buffer has room
    for one write more than is ever counted, so that a waiting seed does not overwrite its own last rows."""

    def write(b: Array, r: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(b, r, buffer.count, 0)

    new = jax.tree.map(write, replace(buffer, count=()), replace(rows, count=()))  # type: ignore[arg-type]
    return replace(new, count=buffer.count + jnp.where(active, rows.count, 0))


class CompiledEngine(Engine):
    """K learners whose updates are one compiled chunk. An engine says what a `turn` is and what its `inputs` are. With
    `variants`, learner k has an algorithm of its own: all are `algo` but for their float hyper-parameters."""

    def __init__(self, algo: Algorithm, learners: int, variants: list[Algorithm] | None = None):
        super().__init__(algo, learners)
        self.variants = variants if learners > 1 else None
        self.stacked = None if self.variants is None else self.stack(self.variants)  # as one pytree
        self.speed = 0.0  # updates per second, to size a host wake
        self.program: Compiling | None = None
        self.say: Callable[[str], None] = lambda text: None
        self.state: State
        self.carry: PyTree

    @property
    def inputs(self) -> PyTree:
        """What the program is given besides the algorithm and the state, and does not change."""
        raise NotImplementedError

    def turn(self, algo: Algorithm, inputs: PyTree, state: State, carry: PyTree) -> Turn:
        """One update of one learner."""
        raise NotImplementedError

    def over_devices(self, run: Callable[..., Stretch]) -> Callable[..., Stretch]:
        """The program of all learners, on every device that takes part."""
        return run

    def place(self, state: State, carry: PyTree) -> None:
        """Take up a state and a carry, as copies: the buffers are donated, and aliases among them would be refused."""
        self.state, self.carry = jax.device_put((state, carry), may_alias=False)

    @property
    def played(self) -> Algorithm:
        """What the program is given as the algorithm."""
        return self.algo if self.stacked is None else self.stacked

    def stack(self, items: list[PyTree]) -> PyTree:
        if self.learners == 1:
            return items[0]
        return jax.tree.map(lambda *x: jnp.stack(x), *items)

    def at(self, tree: PyTree, k: int) -> PyTree:
        return tree if self.learners == 1 else jax.tree.map(lambda x: x[k], tree)

    def prepare(self) -> None:
        """Begin to compile the program on another core; `run_chunk` waits for it."""
        if self.program is None:
            self.program = Compiling(self.lower(), self.lower_plain)

    def lower(self) -> Lowered:
        """The program before XLA compiles it."""

        def run(algo: Algorithm, inputs: PyTree, state: State, carry: PyTree, limits: Limits) -> Stretch:
            return chunk(partial(self.turn, algo, inputs), state, carry, limits)

        if self.learners > 1:
            run = jax.vmap(run, in_axes=(None if self.variants is None else 0, None, 0, 0, 0), axis_name=SEEDS)
        jitted = jax.jit(self.over_devices(run), donate_argnums=(2, 3))
        limits = self.device_limits([Limits()] * self.learners)
        arguments = self.played, self.inputs, self.state, self.carry, limits
        with self.compilation():
            try:
                return jitted.lower(*arguments)
            except Exception:
                if kernels.mode() != "on":
                    raise
                return self.lower_plain()

    def lower_plain(self) -> Lowered:
        """The same without kernels of our own, where the GPU's compiler refuses one."""
        with kernels.without():
            lowered = self.lower()
        self.say("the GPU's compiler refuses a kernel: going on without kernels")
        return lowered

    def watch(self, tell: Callable[[str], None], show: Callable[..., None]) -> None:
        self.say = tell

    def device_limits(self, limits: list[Limits]) -> Limits:
        cap = int(self.speed) if self.speed else FIRST_LOOK  # about a second
        most = Limits(max(1, min(CHUNK, cap)), FOREVER, FOREVER)

        def field(name: str) -> np.ndarray | np.int32:
            values = [min(getattr(x, name), getattr(most, name)) for x in limits]
            return np.int32(values[0]) if self.learners == 1 else np.array(values, np.int32)

        return Limits(field("updates"), field("steps"), field("episodes"))  # type: ignore[arg-type]

    def advance(self, limits: list[Limits]) -> list[Progress]:
        return self.run_chunk(self.device_limits(limits))

    def run_chunk(self, limits: Limits) -> list[Progress]:
        self.prepare()
        assert self.program is not None
        with self.compilation() if self.program.running else contextlib.nullcontext():
            program = self.program.result()
        start = time.monotonic()
        end = program(self.played, self.inputs, self.state, self.carry, limits)
        self.state, self.carry = end.state, end.carry
        counts = self.local({"updates": end.updates, "finite": end.finite, "buffers": end.buffers})
        if end.buffers.summary != ():  # few rows: all that there is in one go
            counts = jax.device_get(counts)
        updates, finite = np.asarray(counts["updates"]), np.asarray(counts["finite"])
        seconds = max(time.monotonic() - start, 1e-6)
        self.speed = float(np.max(updates)) / seconds or self.speed
        return [
            self.read(self.at(counts["buffers"], k), int(self.at(updates, k)), not self.at(finite, k), seconds)
            for k in range(self.learners)
        ]

    def local(self, tree: PyTree) -> PyTree:
        """Arrays that this process can read: all of them, where it is alone."""
        return tree

    def read(self, buffers: Buffers, updates: int, diverged: bool, seconds: float) -> Progress:
        rows = in_order(buffers.episodes)
        metrics = {k: np.asarray(v)[: updates + diverged] for k, v in buffers.metrics.items()}
        progress = Progress(np.asarray(buffers.steps)[:updates], metrics, rows, seconds, diverged)
        if buffers.summary != ():
            ended, summary = buffers.summary
            progress.ended = np.asarray(ended)[:updates]
            progress.summary = {name: np.asarray(x)[:updates] for name, x in summary.items()}
        return progress

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.at(self.state, k), "carry": self.at(self.carry, k)}

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        tree = trees.unflatten(self.snapshot(k), arrays, what)
        learner = tree["state"], tree["carry"]
        if self.learners > 1:
            learner = jax.tree.map(lambda group, x: group.at[k].set(x), (self.state, self.carry), learner)
        self.place(*learner)

    def algo_of(self, k: int) -> Algorithm:
        return self.algo if self.variants is None else self.variants[k]

    def set_variants(self, variants: list[Algorithm]) -> None:
        """Go on with other float hyper-parameters of each learner; the program stays the same."""
        self.variants, self.stacked = variants, self.stack(variants)

    def take_over(self, sources: list[int]) -> None:
        """Let learner k go on with what learner `sources[k]` has learned: networks, optimiser, normalisers, replay. Its
        random key, its clock and its environments with their running sums stay its own."""
        rows = np.asarray(sources)

        def taken(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: x[rows], tree)

        state, own = self.state, self.algo.by_env or ()
        aux = {name: x if name in own else taken(x) for name, x in state.aux.items()}
        new = state.replace(models=taken(state.models), norm=taken(state.norm), aux=aux, replay=taken(state.replay))
        self.place(new, self.carry)

    def actor_params(self, k: int) -> PyTree:
        """The parameters that learner k acts with, on the one device where policies are evaluated."""
        return self.algo.actor_params(self.at(jax.tree.map(lambda x: x.addressable_data(0), self.state), k))


def in_order(rows: EpisodeRows) -> EpisodeRows:
    """The rows of all devices on the host, by update and by the env step at which they ended."""
    counts = np.asarray(rows.count)
    columns = replace(rows, count=rows.update)
    if len(counts) == 1:
        return jax.tree.map(lambda x: host_prefix(x, int(counts[0])), columns)

    def real(x: Array) -> np.ndarray:
        return np.concatenate([part[:n] for part, n in zip(np.split(np.asarray(x), len(counts)), counts)])

    columns = jax.tree.map(real, columns)
    order = np.lexsort((columns.step, columns.update))
    return jax.tree.map(lambda x: x[order], columns)


def host_prefix(x: Array, count: int) -> np.ndarray:
    """The first `count` rows on the host; from an accelerator, only a power of two that holds them travels."""
    if isinstance(x, jax.Array) and next(iter(x.devices())).platform != "cpu":
        x = x[: min(x.shape[0], 1 << max(count - 1, 0).bit_length())]
    return np.asarray(x)[:count]
