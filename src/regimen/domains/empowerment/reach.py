"""The states that a world can get into, and where every joint action leads: what the exact solvers work on.

The laws of a world do not depend on time, so a state is listed once, however often it comes back. States are in the
order of the first step at which they can be reached: those reachable within t steps are the first `reachable_by[t]`.
A joint action is numbered little-endian, the first agent fastest, robots before humans.
"""

import math
import time
from dataclasses import dataclass
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from regimen.domains.empowerment.worlds.world import World
from regimen.errors import ConfigError, EnvError
from regimen.types import Array

LIMIT = 50_000_000  # states times joint actions
OUTCOMES = 4  # kept for each unit of the limit; together about 1 GB
CHUNK_BYTES = 16_000_000  # successors looked at together


class TooLargeError(ConfigError):
    """A world has more states, joint actions or outcomes than fit; `why` says it in a few words."""

    def __init__(self, message: str, why: str):
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, eq=False)
class StateTable:
    """All S states of a world, the first `len(successor)` of them with successors: those reached in the last step have
    none. Where the world has ended a state only leads to itself."""

    world: World
    horizon: int | None  # steps; None: as many as one likes
    states: np.ndarray  # [S, n] int32
    reachable_by: tuple[int, ...]  # [T + 1]
    successor: np.ndarray  # [S', J, K] int32
    code: np.ndarray  # [S', J, K] which of `values` is the probability; few differ, so this is small and exact
    values: np.ndarray  # float64
    ended: np.ndarray  # [S] bool
    attained: np.ndarray  # [S, H, G] bool
    allowed: np.ndarray | None  # [S, A^R] bool

    @cached_property
    def numbers(self) -> dict[bytes, int]:
        return {row.tobytes(): i for i, row in enumerate(self.states)}

    def index(self, state: ArrayLike) -> int:
        """The number of a state [n]; an error when it cannot be reached."""
        number = self.numbers.get(np.asarray(state, np.int32).tobytes())
        if number is None:
            raise EnvError(f"the state {np.asarray(state).tolist()} is not reachable from the start of this world")
        return number

    def probability(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """The probability of each outcome of each joint action [..., J, K] in these states."""
        return self.values[self.code[rows]]

    @cached_property
    def reachable_at(self) -> np.ndarray:
        """Whether a state can be the one at step t [T + 1, S]; states in which the world has ended stay there once."""
        assert self.horizon is not None
        flags = np.zeros((self.horizon + 1, len(self.states)), bool)
        flags[0, 0] = True
        for t in range(self.horizon):
            now = np.flatnonzero(flags[t] & ~self.ended)
            for part in np.array_split(now, max(1, len(now) // 4096)):
                flags[t + 1, self.successor[part].ravel()] = True
        return flags

    @property
    def pairs(self) -> int:
        """States with time."""
        return int(self.reachable_at.sum())


def enumerate_states(world: World, limit: int = LIMIT, horizon: int | None = -1, most: int | None = None) -> StateTable:
    """All states that can be reached within the world's time, or `horizon` steps (None: any number). A
    `TooLargeError`, before memory is spent, where they are more than `most` or do not fit the limit."""
    horizon = world.max_episode_steps if horizon == -1 else horizon
    with jax.enable_x64(True):
        return StateSearch(world, limit, horizon, most).table()


def joint_actions(world: World) -> int:
    return world.num_actions**world.num_agents


class StateSearch:
    """A search of all states, breadth first, in compiled chunks of states with all their joint actions."""

    def __init__(self, world: World, limit: int, horizon: int | None, most: int | None = None):
        if not world.enumerable:
            what = "has no `sizes`" if world.modelled else "is only known by a sampler"
            raise ConfigError(
                f"{type(world).__name__} {what}, so that its states cannot be listed; the exact solvers need "
                "`outcomes` and `sizes` of states of whole numbers, or learn it: regimen train ... --algo empowerment"
            )
        self.world, self.limit, self.horizon, self.most = world, limit, horizon, most
        self.joint = joint_actions(world)
        self.by = [1]  # states within each number of steps, so far
        self.visited, self.began = 0, time.monotonic()
        self.width = 1  # outcomes of a joint action that are kept, at most, so far
        self.check(1)
        self.size = len(world.sizes)
        self.strides = strides(world.sizes)
        outcomes = self.check_outcomes()
        self.chunk = max(1, min(4096, CHUNK_BYTES // (self.joint * outcomes * (4 * self.size + 16))))
        start = np.asarray(world.initial(), np.int32)
        self.states = [start[None]]
        self.numbers = {int((start.astype(np.uint64) * self.strides).sum(dtype=np.uint64)): 0}  # of states, by key
        self.values: dict[float, int] = {0.0: 0}
        self.blocks: list[tuple[np.ndarray, np.ndarray]] = []

    def check_outcomes(self) -> int:
        """K, once it is known that the outcomes of one state fit: they are looked at together."""
        agents = self.world.num_agents
        shapes = [jax.ShapeDtypeStruct((size,), jnp.int32) for size in (self.size, agents)]
        outcomes = jax.eval_shape(self.world.outcomes, *shapes)[0].shape[0]
        if self.joint * outcomes * (self.size + agents) > self.limit:
            self.refuse(
                f"{self.joint:,} joint actions with {outcomes:,} outcomes each, of states of {self.size} numbers",
                f"a single state has {self.joint * outcomes:,} outcomes",
            )
        return outcomes

    def check(self, states: int) -> None:
        fits = states * self.joint <= self.limit and states * self.joint * self.width <= OUTCOMES * self.limit
        if not fits or (self.most is not None and states > self.most):
            steps = "" if self.horizon is None else f" in {self.horizon} steps"
            each = "" if self.width == 1 else f" with up to {self.width} outcomes"
            self.refuse(
                f"more than {states - 1:,} states{steps} times {self.joint:,} joint actions{each}",
                f"it has {f'more than {states - 1:,} states with ' * (states > 1)}{self.joint:,} joint actions{each}",
            )

    def refuse(self, what: str, why: str) -> None:
        raise TooLargeError(
            f"the world is too large to solve exactly: {what}, and the limit is {self.limit:,}{self.estimate()}; lower "
            "env.max_episode_steps, take a smaller map or fewer agents, raise the limit (--limit), or learn it "
            "(regimen train ... --algo empowerment)",
            why,
        )

    def estimate(self) -> str:
        """How large the world is in all, if its states go on growing as a power of the steps as they did so far."""
        most = float(math.prod(self.world.sizes))
        if len(self.by) < 4 or not self.visited:
            return f" (all states: at most {most:.2g})"
        steps, horizon = len(self.by) - 1, self.horizon or math.inf
        power = math.log(self.by[-1] / self.by[-2]) / math.log(steps / (steps - 1))
        states = most if math.isinf(horizon) and power else min(most, self.by[-1] * (horizon / steps) ** power)
        size = states * (self.joint * self.width * 5 + 4 * self.size) / 1e9
        minutes = (time.monotonic() - self.began) * states / self.visited / 60
        return f" (an estimate: {states:.2g} states, {size:.2g} GB, {minutes:.2g} minutes to list them)"

    def table(self) -> StateTable:
        by, self.began = self.by, time.monotonic()
        while self.visited < len(self.numbers) and (self.horizon is None or len(by) <= self.horizon):
            latest, first = np.concatenate(self.states)[self.visited :], self.visited
            for at in range(0, len(latest), self.chunk):
                self.visit(latest[at : at + self.chunk], first + at)
                self.visited = first + min(at + self.chunk, len(latest))
            by.append(len(self.numbers))
        by += [len(self.numbers)] * ((self.horizon or 0) + 1 - len(by))
        states = np.concatenate(self.states)
        width = max(block.shape[-1] for block, _ in self.blocks)
        small = np.min_scalar_type(len(self.values) - 1)
        return StateTable(
            world=self.world,
            horizon=self.horizon,
            states=states,
            reachable_by=tuple(by),
            successor=joined([block for block, _ in self.blocks], width, np.int32, repeat=True),
            code=joined([codes for _, codes in self.blocks], width, small, repeat=False),
            values=np.array(list(self.values)),
            ended=flags(self.world, states),
            attained=in_chunks("attained", self.world, states),
            allowed=None if self.world.allowed is None else permitted(self.world, states),
        )

    def visit(self, states: np.ndarray, first: int) -> None:
        """Add the successors of a chunk of states, which have numbers from `first`."""
        over, padded = flags(self.world, states), np.resize(states, (self.chunk, self.size))
        p, keys, reached = (np.asarray(x)[: len(states)] for x in expand(self.world, self.strides, padded))
        self.check_laws(states, p, reached)
        if self.world.allowed is not None:
            p, keys, reached = (only(permitted(self.world, states), x) for x in (p, keys, reached))
        p, keys, position = merged(p, keys)
        live = p > 0
        live[over] = False
        unique, where, inverse = np.unique(keys[live], return_index=True, return_inverse=True)
        before = len(self.numbers)
        numbers = np.array([self.numbers.setdefault(key, len(self.numbers)) for key in unique.tolist()], np.int32)
        fresh = where[numbers >= before]
        if len(fresh):
            s, j, k = (axis[fresh] for axis in np.nonzero(live))
            self.states.append(reached[s, j, position[s, j, k]])
            self.check(len(self.numbers))
        successor = np.zeros(p.shape, np.int32)
        successor[live] = numbers[inverse]
        successor = np.where(live, successor, successor[..., :1])  # padding leads where the first outcome does
        if over.any():
            successor[over] = (first + np.flatnonzero(over))[:, None, None]
            p[over] = np.eye(1, p.shape[-1])
        width = max(1, int((p > 0).sum(-1).max()))
        self.width = max(self.width, width)
        self.blocks.append((successor[..., :width], self.coded(p[..., :width])))

    def coded(self, p: np.ndarray) -> np.ndarray:
        """Numbers of probabilities in the list of those that occur."""
        unique, inverse = np.unique(p, return_inverse=True)
        numbers = np.array([self.values.setdefault(float(v), len(self.values)) for v in unique])
        return numbers.astype(np.min_scalar_type(len(self.values) - 1))[inverse.reshape(p.shape)]

    def check_laws(self, states: np.ndarray, p: np.ndarray, reached: np.ndarray) -> None:
        name = type(self.world).__name__
        if not np.allclose(p.sum(-1), 1, atol=1e-6) or (p < 0).any():
            s, j = np.argwhere((np.abs(p.sum(-1) - 1) > 1e-6) | (p < 0).any(-1))[0]
            raise EnvError(
                f"{name}.outcomes: the probabilities of joint action {j} in state {states[s].tolist()} are no "
                f"distribution: they sum to {p[s, j].sum():g}"
            )
        if (reached < 0).any() or (reached >= np.array(self.world.sizes)).any():
            raise EnvError(f"{name}.outcomes: a successor has an entry outside `sizes`, from {states[0].tolist()} on")


def only(allowed: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Robots' actions that are not allowed [C, A^R] replaced by the first that is, in [C, J, ...]: they lead nowhere
    else, and nothing becomes reachable by them."""
    choice = np.where(allowed, np.arange(allowed.shape[1]), allowed.argmax(-1)[:, None])
    split = x.reshape(len(x), -1, allowed.shape[1], *x.shape[2:])
    index = choice.reshape(len(x), 1, -1, *(1,) * (x.ndim - 2))
    return np.take_along_axis(split, index, 2).reshape(x.shape)


def merged(p: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Outcomes [..., K] sorted, each state once, impossible ones last; with where they were."""
    keys = np.where(p > 0, keys, np.iinfo(np.uint64).max)
    position = np.argsort(keys, -1, kind="stable")
    p, keys = np.take_along_axis(p, position, -1), np.take_along_axis(keys, position, -1)
    for k in range(p.shape[-1] - 1, 0, -1):
        same = (keys[..., k] == keys[..., k - 1]) & (p[..., k] > 0)
        p[..., k - 1] += np.where(same, p[..., k], 0)
        p[..., k] = np.where(same, 0, p[..., k])
    if p.shape[-1] > 1:  # those merged away last
        last = np.argsort(p == 0, -1, kind="stable")
        p, keys, position = (np.take_along_axis(x, last, -1) for x in (p, keys, position))
    return p, keys, position


def strides(sizes: tuple[int, ...]) -> np.ndarray:
    """Factors whose sum of products is the key of a state: its number where all fit into 64 bits, else a random hash,
    under which two of a million states are alike with probability 1e-7."""
    if math.prod(sizes) < 2**64 - 1:
        return np.array([math.prod(sizes[:i]) for i in range(len(sizes))], np.uint64)
    return np.random.default_rng(0).integers(1, 2**64 - 1, len(sizes), np.uint64) | np.uint64(1)


@jax.jit
def expand(world: World, factors: Array, states: Array) -> tuple[Array, Array, Array]:
    """Probabilities [C, J, K], keys and states of what every joint action leads to."""
    actions = jnp.asarray(world.joint_actions(world.num_agents))
    one = partial(jax.vmap, in_axes=(None, 0))(world.outcomes)
    p, reached = jax.vmap(one, in_axes=(0, None))(states, actions)
    return p.astype(jnp.float64), (reached.astype(jnp.uint64) * factors).sum(-1), reached.astype(jnp.int32)


@partial(jax.jit, static_argnums=0)
def of_states(method: str, world: World, states: Array) -> Array:
    """Call a method of the world for each state."""
    return jax.vmap(getattr(world, method))(states)


def flags(world: World, states: np.ndarray) -> np.ndarray:
    """Whether the world has ended in each state [S]."""
    if type(world).ended is World.ended:
        return np.zeros(len(states), bool)
    return in_chunks("ended", world, states).astype(bool)


def in_chunks(method: str, world: World, states: np.ndarray, size: int = 4096) -> np.ndarray:
    """Call a method of the world for all states, compiled for chunks of one shape."""
    size = min(size, 1 << max(0, len(states) - 1).bit_length())
    parts = []
    for at in range(0, len(states), size):
        part = states[at : at + size]
        parts.append(np.asarray(of_states(method, world, np.resize(part, (size, part.shape[1]))))[: len(part)])
    return np.concatenate(parts)


def permitted(world: World, states: np.ndarray) -> np.ndarray:
    """Which robot actions are allowed [S, A^R]; an error where none is."""
    allowed = in_chunks("allowed", world, states)
    if not allowed.any(-1).all():
        state = states[np.argmin(allowed.any(-1))].tolist()
        raise EnvError(f"`allowed` leaves the robots no action in state {state}; allow at least one")
    return allowed


def joined(blocks: list[np.ndarray], width: int, dtype: DTypeLike, repeat: bool) -> np.ndarray:
    """Join blocks [., J, k] below each other, each widened to `width` outcomes by its first one or by 0."""
    out = np.empty((sum(len(b) for b in blocks), blocks[0].shape[1], width), dtype)
    at = 0
    for block in blocks:
        rows = out[at : at + len(block)]
        rows[..., : block.shape[-1]] = block
        rows[..., block.shape[-1] :] = block[..., :1] if repeat else 0
        at += len(block)
    return out
