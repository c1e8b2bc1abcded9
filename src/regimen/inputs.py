"""How networks read an observation: numbers side by side as one vector, and parts that an encoder reads as they are.

An observation without such parts is the vector of `spaces.flatten`; `networks/choice.py` says which parts have
encoders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from gymnasium import spaces as gym

from regimen import spaces
from regimen.normalize import RunningStats
from regimen.types import Array, PyTree, Record, pytree_dataclass


@dataclass(frozen=True)
class SetPart:
    """Entities in no order: a row of numbers each [N, F]; the companion part `mask` says which rows are there."""

    name: str
    shape: tuple[int, int]
    mask: str | None
    encoder: ClassVar[str] = "set"

    def read(self, values: Mapping[str, PyTree]) -> PyTree:
        """The rows, 0 where none is, and which are there. What an absent row holds is seen by nobody."""
        rows = jnp.asarray(values[self.name], jnp.float32)
        if self.mask is None:
            return {"rows": rows, "mask": jnp.ones(rows.shape[:-1], bool)}
        there = jnp.asarray(values[self.mask]) > 0
        return {"rows": jnp.where(there[..., None], rows, 0.0), "mask": there}

    def lead(self, x: PyTree) -> tuple[int, ...]:
        return x["mask"].shape[:-1]


@dataclass(frozen=True)
class ImagePart:
    """Pixels [H, W, C], or [C, H, W], in the bytes or floats they come in; `highest` becomes 1 in the encoder."""

    name: str
    shape: tuple[int, ...]
    channels_first: bool
    highest: float
    encoder: str  # cnn, impala or small

    def read(self, values: Mapping[str, PyTree]) -> PyTree:
        """The image [..., H, W, C], bytes as bytes: a batch of floats would take four times the memory."""
        x = jnp.asarray(values[self.name])
        if len(self.shape) == 2:
            return x[..., None]
        return jnp.moveaxis(x, -3, -1) if self.channels_first else x

    def lead(self, x: PyTree) -> tuple[int, ...]:
        return x.shape[:-3]

    @property
    def size(self) -> tuple[int, int, int]:
        """The image's (height, width, channels)."""
        if len(self.shape) == 2:
            return *self.shape, 1
        a, b, c = self.shape
        return (b, c, a) if self.channels_first else (a, b, c)


@dataclass(frozen=True)
class ChoicePart:
    """One of many options, or several such choices."""

    name: str
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    encoder: ClassVar[str] = "embedding"

    def read(self, values: Mapping[str, PyTree]) -> PyTree:
        """The numbers of the options [..., K], counted from 0."""
        x = jnp.asarray(values[self.name], jnp.int32)
        lead = x.shape[: x.ndim - len(self.shape)]
        return x.reshape(*lead, len(self.sizes)) - jnp.asarray(self.starts, jnp.int32)

    def lead(self, x: PyTree) -> tuple[int, ...]:
        return x.shape[:-1]


Part = SetPart | ImagePart | ChoicePart


@pytree_dataclass
class Features(Record):
    """What networks read of an observation with parts that have encoders; or a normaliser of each."""

    vector: PyTree  # [..., D] the numbers of all other parts; None: there are none
    parts: dict[str, PyTree]


Norm = RunningStats | Features


class Inputs:
    """The parts of an observation space, as networks read them."""

    def __init__(self, space: gym.Space, parts: Sequence[Part] = (), words: str = ""):
        self.space, self.parts, self.words = space, tuple(parts), words
        encoded = {part.name for part in parts} | {part.mask for part in parts if isinstance(part, SetPart)}
        others = [(name, leaf) for name, leaf in spaces.leaves(space).items() if name not in encoded]
        self.others = gym.Dict(others) if parts else space
        self.vector_size = spaces.flat_size(self.others)

    def read(self, obs: PyTree) -> PyTree:
        """A vector [..., D], or `Features` where parts have encoders."""
        if not self.parts:
            return spaces.flatten(self.space, obs)
        values = spaces.split(self.space, obs)
        vector = None
        if self.vector_size:
            vector = spaces.flatten(self.others, {name: values[name] for name in spaces.leaves(self.others)})
        return Features(vector, {key_of(part): part.read(values) for part in self.parts})

    def lead(self, x: PyTree) -> tuple[int, ...]:
        """The leading axes of what `read` gives."""
        return self.parts[0].lead(x.parts[key_of(self.parts[0])]) if self.parts else x.shape[:-1]

    def zero_norm(self) -> Norm | None:
        """A normaliser before anything was observed: of the vector, and of what an entity of each set is described by.
        Images and choices are not normalised; None where there is nothing else."""
        vector = RunningStats.zero((self.vector_size,)) if self.vector_size else None
        if not self.parts:
            return vector
        sets = {key_of(part): RunningStats.zero(part.shape[1:]) for part in self.parts if isinstance(part, SetPart)}
        return Features(vector, sets) if vector is not None or sets else None

    def statistics(self, obs: PyTree, valid: Array) -> Norm:
        """The normaliser of these observations alone, over the rows where `valid`; of a set, over entities there."""
        x = self.read(obs)
        if not self.parts:
            return RunningStats.of(x, valid)
        sets = [key_of(part) for part in self.parts if isinstance(part, SetPart)]
        there = {name: x.parts[name]["mask"] & valid[..., None] for name in sets}
        stats = {name: RunningStats.of(x.parts[name]["rows"], there[name]) for name in sets}
        return Features(None if x.vector is None else RunningStats.of(x.vector, valid), stats)

    def merge(self, norm: Norm, new: Norm) -> Norm:
        """The observations of both normalisers."""

        def is_statistics(x: PyTree) -> bool:
            return isinstance(x, RunningStats)

        return jax.tree.map(lambda a, b: a.merge(b), norm, new, is_leaf=is_statistics)

    def normalize(self, x: PyTree, norm: Norm | None) -> PyTree:
        """What `read` gives in the units of a normaliser."""
        if norm is None:
            return x
        if isinstance(norm, RunningStats):
            return norm.normalize(x)
        sets = {name: x.parts[name] | {"rows": s.normalize(x.parts[name]["rows"])} for name, s in norm.parts.items()}
        vector = None if norm.vector is None else norm.vector.normalize(x.vector)
        return Features(vector, x.parts | sets)


def key_of(part: Part) -> str:
    """The name of a part where it must have one: an observation that is a single part has none."""
    return part.name or "observation"
