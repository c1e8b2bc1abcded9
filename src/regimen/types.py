"""The nouns every part shares: one dataclass each, all of them pytrees. Shapes are in the trailing comments.

T time, E environments, A agents in each, B = E * A rows (the agents of one environment lie side by side), K reward
components. With one agent B is E.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    import gymnasium

PyTree = Any
Array = jax.Array
Scalar = Array | float  # a number that is data of the program
T = TypeVar("T")


def static(default=dataclasses.MISSING, **kwargs):
    """A field that is part of the program (hashed, a change recompiles) instead of its data."""
    return dataclasses.field(default=default, metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass whose fields are pytree children, except those marked `static()`."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    meta = [f.name for f in fields if f.metadata.get("static")]
    data = [f.name for f in fields if f.name not in meta]
    return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)


class Record:
    """Base of the pytree dataclasses: frozen, so that a change is a copy."""

    def replace(self, **changes: object) -> Self:
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


@pytree_dataclass
class TimeStep(Record):
    """What `step` of a native environment returns.

    With several agents `obs` and `reward` have them in front [A, ...], and flags may differ between them [A].

    Args:
        obs: the next observation.
        reward: its components [K], which sum to the reward; a scalar counts as K = 1.
        terminated: whether the task has ended.
        truncated: whether the episode was cut short. The two are never merged; a time limit is added by the system.
        metrics: numbers of this step by name, which the environment's `metric_reductions` sum up.
    """

    obs: PyTree
    reward: Array  # [K]
    terminated: Array  # bool
    truncated: Array = False  # type: ignore[assignment]  # bool
    metrics: dict[str, Array] = dataclasses.field(default_factory=dict)


@pytree_dataclass
class Batch(Record):
    """One rollout, time-major. Rows past an environment's share of episodes, and of agents that no longer act, are
    not `valid`."""

    obs: PyTree  # [T, B, ...]
    action: PyTree  # [T, B, ...] as sampled, before any clipping
    reward: Array  # [T, B, K]
    terminated: Array  # [T, B]
    truncated: Array  # [T, B]
    next_obs: PyTree  # [T, B, ...] the true successor, also where the environment was reset
    valid: Array  # [T, B]
    extras: dict[str, PyTree]  # what `act` says of its choice (log_prob, carry), and the action mask
    length: Array | None = None  # rows of T in use, after which every episode has ended; None: all of them
    lag: Array | None = None  # [B] int32, updates made since the policy that acted; None: none
    worker: Array | None = None  # int32, which of several workers collected it; None: there is one
    full: bool = static(default=True)  # every row is valid


@pytree_dataclass
class EpisodeRows(Record):
    """Episodes that finished during a rollout, in the order in which they finished: rows 0..count-1 are real."""

    count: Array  # int32
    update: Array  # [N] int32, index of the update whose rollout it ended in
    step: Array  # [N] int32, env steps into the chunk when it ended
    reward: Array  # [N, K] sum of each component
    length: Array  # [N] int32
    terminated: Array  # [N] bool
    metrics: dict[str, Array]  # [N]


@pytree_dataclass
class Clock(Record):
    """Counters that schedules read. Each is kept in two words, so that it does not end at 2^31; keys of updates are
    made with the low word, and so are those of 2^31 updates before."""

    updates: Array  # int32, what is left of multiples of 2^31
    steps_high: Array  # int32, multiples of 2^30
    steps_low: Array  # int32
    episodes: Array  # int32, what is left of multiples of 2^30
    updates_high: Array  # int32, multiples of 2^31
    episodes_high: Array  # int32, multiples of 2^30

    @classmethod
    def zero(cls) -> Clock:
        return cls(*(jax.device_put(np.int32(0)) for _ in range(6)))

    def advance(self, steps: Array, episodes: Array) -> Clock:
        updates, low, ended = self.updates + 1, self.steps_low + steps, self.episodes + episodes
        return Clock(
            updates=updates & (2**31 - 1),
            steps_high=self.steps_high + (low >> 30),
            steps_low=low & (2**30 - 1),
            episodes=ended & (2**30 - 1),
            updates_high=self.updates_high + (updates < 0),
            episodes_high=self.episodes_high + (ended >> 30),
        )

    def words(self, unit: str) -> tuple[Array, Array, int]:
        """The high and the low word of a counter, and the bits of the low one."""
        if unit == "steps":
            return self.steps_high, self.steps_low, 30
        return getattr(self, f"{unit}_high"), getattr(self, unit), 31 if unit == "updates" else 30

    def read(self, unit: str) -> Array:
        """A counter of the clock as float32: what a schedule divides by its horizon."""
        high, low, bits = self.words(unit)
        return high.astype(jnp.float32) * 2.0**bits + low.astype(jnp.float32)

    def count(self, unit: str) -> int:
        """The counter exactly, on the host."""
        high, low, bits = self.words(unit)
        return (int(high) << bits) + int(low)

    def updates_modulo(self, n: int | Array) -> Array:
        """What is left of the updates after dividing by `n` < 2^15."""
        return (self.updates % n + self.updates_high % n * (2**31 % n)) % n


def hold(count: Array, period: int) -> Array:
    """A count [int32] of what has a period and may outgrow 32 bits: beyond 2^30 it goes back by whole periods."""
    over = jnp.maximum(count - 2**30, 0)
    return count - (over + period - 1) // period * period


@pytree_dataclass
class Model(Record):
    """A network's parameters, its optimiser's state, and a target copy where the algorithm keeps one."""

    params: PyTree
    opt_state: PyTree = ()
    target: PyTree = ()


@pytree_dataclass
class State(Record):
    """Everything an algorithm learns or counts; with the source's carry it is what a checkpoint holds."""

    models: dict[str, Model]
    norm: dict[str, PyTree]
    key: Array  # root of this run's randomness: update i uses fold_in(key, i)
    clock: Clock
    aux: dict[str, PyTree]
    replay: PyTree = ()  # rows of earlier rollouts, written in place: also by an update that is then not applied


@dataclasses.dataclass(frozen=True)
class Spec:
    """What an algorithm may know of its environment: its spaces, its agents and the size of a rollout."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_components: tuple[str, ...] = ("total",)
    agents: tuple[str, ...] = ()  # of one environment, by name; empty: there is one, without a name
    num_envs: int = 1  # over all workers
    workers: int = 1
    rollout_rows: int = 0  # env steps of one update in each environment; 0: whole episodes, or nothing is collected
    max_episode_steps: int = 0  # 0: unknown (a host environment without a limit)
    env: Any = None  # the native environment, for model-based algorithms
    frames: Any = None  # what an observation is a stack of (`envs.frames.Frames`), so that a replay keeps each once
    action_conditions: Mapping[str, tuple[str, tuple[int, ...]]] | None = None
    """Part of a hybrid action -> (the discrete part that decides, its choices for which the part matters)."""

    @property
    def columns(self) -> int:
        """How many rows a batch has at one time (B): environments times agents."""
        return self.num_envs * max(1, len(self.agents))


class ActingAlgorithm(Protocol):
    """An algorithm as sources of experience and players of episodes see it: it acts, and does not learn."""

    def initial_carry(self, lead: tuple[int, ...]) -> PyTree:
        """What the policy remembers at the start of an episode [*lead, ...]."""
        ...

    def noise(self, key: Array, shape: tuple[int, ...]) -> PyTree:
        """The randomness of actions [*shape, ...], drawn beforehand."""
        ...

    def act(
        self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy: bool = False
    ) -> tuple[PyTree, PyTree, dict[str, PyTree]]:
        """The actions as sampled, the policy's carry for the next step, and what the batch keeps beside them."""
        ...

    def to_env(self, action: PyTree) -> PyTree:
        """Sampled actions in the environment's own form."""
        ...
