"""A replay on the device: a ring of time rows [C, B, ...], written in place and sampled by index.

B columns are environments times agents, in equal blocks of one worker each; a worker writes its whole rollout of T rows
at its own cursor. C is a multiple of T, so a write never wraps. Cursors and counts are small and live apart from the
rows (`Ring`, in `State.aux`): rows behind a cursor that was not moved do not count, and are written again.

Successors are kept beside observations. That doubles their memory, and makes the end of an episode, a time limit and
the newest row all alike: what follows a row is always in it. It also shows where environments were started anew in the
middle of an episode, as those of a resumed run or of a replaced worker are: returns over several steps end there.

Of an observation that is a stack of frames (`envs/frames.py`) only the newest frame is kept. The others are those of
the rows before it, as far as its episode goes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen import spaces
from regimen.envs.frames import Frames
from regimen.types import Array, Batch, PyTree, Record, pytree_dataclass

TRIES = 8  # draws for each sample, of which the first valid row is taken


@pytree_dataclass
class ReplayRows(Record):
    """What is kept of a transition, in the dtypes it came in."""

    obs: PyTree  # [C, B, ...]
    action: PyTree  # [C, B, ...] as sampled
    reward: Array  # [C, B] sum of the components
    terminated: Array  # [C, B]
    truncated: Array  # [C, B]
    next_obs: PyTree  # [C, B, ...]
    valid: Array  # [C, B]
    mask: Array | None = None  # [C, B, L] options allowed where the action was chosen
    next_mask: Array | None = None  # [C, B, L] and in its successor


@pytree_dataclass
class Ring(Record):
    """How far each worker has written, and how many of its rows count."""

    cursor: Array  # [W] int32, where the next rollout goes
    count: Array  # [W] int32, time rows


@pytree_dataclass
class NStepTransitions(Record):
    """Transitions over up to n steps."""

    obs: PyTree  # [N, ...]
    action: PyTree  # [N, ...]
    reward: Array  # [N] discounted sum over the steps used
    discount: Array  # [N] of the value of `next_obs`: gamma^steps, 0 where the task terminated
    next_obs: PyTree  # [N, ...]
    weight: Array  # [N] 1; 0 where no valid row was found
    mask: Array | None = None  # [N, L]
    next_mask: Array | None = None  # [N, L]


@dataclass(frozen=True)
class Replay:
    """A ring of `size` transitions, or a few more: C is rounded up to whole rollouts of `rows` time rows."""

    size: int
    rows: int  # T
    columns: int  # B
    workers: int = 1
    frames: Frames | None = None  # what observations are stacks of

    @property
    def capacity(self) -> int:
        """The capacity in time rows, C."""
        return max(1, math.ceil(self.size / (self.columns * self.rows))) * self.rows

    def share(self, devices: int) -> Replay:
        """The share of one device: the ring of its own columns."""
        columns = self.columns // devices
        return replace(self, size=self.capacity * columns, columns=columns)

    def zeros(self, observation_space: gymnasium.Space, action: PyTree, options: int = 0) -> ReplayRows:
        """An empty ring. `action` is any array tree [...] of one action; `options` of its mask, 0: there is none."""
        lead = (self.capacity, self.columns)

        def zeros(x: Array) -> Array:
            return jnp.zeros((*lead, *x.shape), x.dtype)

        one = spaces.zeros(observation_space)
        obs = jax.tree.map(zeros, one if self.frames is None else self.frames.newest(one))
        flags = [jnp.zeros(lead, bool) for _ in range(3)]
        masks = [jnp.zeros((*lead, options), bool) for _ in range(2)] if options else [None, None]
        successor = jax.tree.map(jnp.zeros_like, obs)
        action = jax.tree.map(zeros, action)
        return ReplayRows(obs, action, jnp.zeros(lead), flags[0], flags[1], successor, flags[2], *masks)

    def bytes(self, observation_space: gymnasium.Space, action: PyTree, options: int = 0) -> int:
        """The bytes that `zeros` would allocate; nothing is allocated."""
        shapes = jax.eval_shape(lambda: self.zeros(observation_space, action, options))
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))

    def ring(self) -> Ring:
        return Ring(*(jnp.zeros(self.workers, jnp.int32) for _ in range(2)))

    def insert(self, ring: Ring, rows: ReplayRows, batch: Batch) -> tuple[Ring, ReplayRows]:
        """The batch of one worker [T, B / W, ...] written at its cursor. Its rollout must have the `rows` planned."""
        steps, width = batch.valid.shape
        assert self.capacity % steps == 0 and width * self.workers == self.columns, "not the rollout planned for"
        worker = jnp.int32(0) if batch.worker is None else batch.worker
        new = as_rows(batch, rows)
        if self.frames is not None:
            new = new.replace(obs=self.frames.newest(new.obs), next_obs=self.frames.newest(new.next_obs))
        at = (ring.cursor[worker], worker * width)

        def write(buffer: Array, x: Array) -> Array:
            start = (*at, *(0,) * (buffer.ndim - 2))
            return lax.dynamic_update_slice(buffer, x.astype(buffer.dtype), start)

        rows = self.cut(rows, new, *at)
        cursor = ring.cursor.at[worker].set((ring.cursor[worker] + steps) % self.capacity)
        count = ring.count.at[worker].set(jnp.minimum(ring.count[worker] + steps, self.capacity))
        return Ring(cursor, count), jax.tree.map(write, rows, new)

    def cut(self, rows: ReplayRows, new: ReplayRows, cursor: Array, column: Array) -> ReplayRows:
        """The rows kept so far, truncated before `new` ones in the columns that do not go on with the successor of the
        row at the cursor's back. Nothing to do where successors are not kept as observations are."""
        if jax.tree.structure(rows.obs) != jax.tree.structure(rows.next_obs):
            return rows
        at, width = ((cursor - 1) % self.capacity, column), new.valid.shape[1]

        def before(x: Array) -> Array:
            return lax.dynamic_slice(x, (*at, *(0,) * (x.ndim - 2)), (1, width, *x.shape[2:]))[0]

        def differs(old: Array, first: Array) -> Array:
            # a program may compute the same observation twice, with other rounding
            return ~jnp.isclose(before(old), first[0].astype(old.dtype), 1e-4, 1e-5).reshape(width, -1).all(-1)

        anew = jnp.stack(jax.tree.leaves(jax.tree.map(differs, rows.next_obs, new.obs))).any(0)
        truncated = before(rows.truncated) | (anew & before(rows.valid) & ~before(rows.terminated))
        return rows.replace(truncated=lax.dynamic_update_slice(rows.truncated, truncated[None], at))

    def sample(
        self, ring: Ring, rows: ReplayRows, key: Array, size: int, n_step: int, gamma: Array | float
    ) -> NStepTransitions:
        """`size` transitions, uniform over the valid rows that count, with replacement."""
        age, column = self.draw(ring, rows, key, size)
        count, cursor = (x[column // (self.columns // self.workers)] for x in (ring.count, ring.cursor))
        oldest = cursor - count

        def take(x: Array, age: Array) -> Array:
            index = (oldest + age) % self.capacity * self.columns + column
            flat = x.reshape(self.capacity * self.columns, *x.shape[2:])
            return flat.at[index].get(mode="promise_in_bounds")

        reward, terminated = take(rows.reward, age), take(rows.terminated, age)
        going = ~(terminated | take(rows.truncated, age))
        discount, last = jnp.full(size, gamma, jnp.float32), age
        for _ in range(n_step - 1):  # further rows of the same episode, as far as there are any
            ahead = jnp.minimum(last + 1, count - 1)
            going &= (last + 1 < count) & take(rows.valid, ahead)
            reward = reward + jnp.where(going, discount * take(rows.reward, ahead), 0.0)
            discount = jnp.where(going, discount * gamma, discount)
            last, ended = jnp.where(going, ahead, last), take(rows.terminated, ahead)
            terminated |= going & ended
            going &= ~(ended | take(rows.truncated, ahead))
        first, final = (jax.tree.map(lambda x, at=at: take(x, at), rows) for at in (age, last))
        if self.frames is not None:
            before = [self.stack(rows, take, at) for at in (age, last)]
            first = first.replace(obs=self.frames.join(before[0]))
            final = final.replace(next_obs=self.frames.join([*before[1][1:], final.next_obs]))
        return NStepTransitions(
            first.obs,
            first.action,
            reward,
            jnp.where(terminated, 0.0, discount),
            final.next_obs,
            (first.valid & self.whole(age, count)).astype(jnp.float32),
            first.mask,
            final.next_mask,
        )

    def whole(self, age: Array, count: Array) -> Array | bool:
        """Whether all frames of rows of these ages are there: a ring that is full has lost those before the oldest."""
        return True if self.frames is None else (age >= self.frames.count - 1) | (count < self.capacity)

    def stack(self, rows: ReplayRows, take: Callable[[Array, Array], Array], age: Array) -> list[Array]:
        """The frames [N, ...] that were observed at rows of these ages, the oldest first."""
        assert self.frames is not None
        out = [take(rows.obs, age)]
        for _ in range(self.frames.count - 1):
            before = jnp.maximum(age - 1, 0)
            over = take(rows.terminated, before) | take(rows.truncated, before)
            goes_on = (age > 0) & take(rows.valid, before) & ~over
            age = jnp.where(goes_on, before, age)
            out.append(take(rows.obs, age))
        return out[::-1]

    def draw(self, ring: Ring, rows: ReplayRows, key: Array, size: int) -> tuple[Array, Array]:
        """Draw age (0: the oldest that counts) and column of `size` rows: of several draws each, the first that is
        valid."""
        width = self.columns // self.workers
        lots = jax.random.bits(key, (2 * TRIES * size,), jnp.uint32).reshape(2, TRIES, size)  # flat: compiles sooner
        ends = jnp.cumsum(ring.count)
        row = (lots[0] % jnp.maximum(ends[-1], 1).astype(jnp.uint32)).astype(jnp.int32)
        worker = jnp.zeros_like(row) if self.workers == 1 else jnp.searchsorted(ends, row, side="right")
        age = row - (ends - ring.count)[worker]
        column = worker * width + (lots[1] % np.uint32(width)).astype(jnp.int32)
        position = (ring.cursor[worker] - ring.count[worker] + age) % self.capacity
        usable = rows.valid[position, column] & self.whole(age, ring.count[worker])
        first = jnp.argmax(usable, axis=0)  # [N]; the first where none is
        return age[first, jnp.arange(size)], column[first, jnp.arange(size)]


def as_rows(batch: Batch, like: ReplayRows) -> ReplayRows:
    """What is kept of a batch [T, B, ...]. Where the environment gives no masks though it may, all is allowed."""
    masks = (None, None)
    if like.mask is not None:
        everything = jnp.ones((*batch.valid.shape, like.mask.shape[-1]), bool)
        masks = (batch.extras.get("mask", everything), batch.extras.get("next_mask", everything))
    return ReplayRows(
        batch.obs,
        batch.action,
        batch.reward.sum(-1),
        batch.terminated,
        batch.truncated,
        batch.next_obs,
        batch.valid,
        *masks,
    )
