"""Rows of all reachable states of a world, whether anybody has been there or not: the source of a learner that has a
model and needs no experience."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from regimen.types import Array


@dataclass(frozen=True)
class StateSweep:
    """A uniform draw from `places` reachable rows for a `share` of every batch."""

    places: int
    share: float

    @property
    def whole(self) -> bool:
        """Whether nothing else is drawn, so that nothing has to be kept."""
        return self.share == 1

    def count(self, size: int) -> int:
        """How many of a batch's rows are swept."""
        return max(1, round(self.share * size)) if self.share else 0

    def sample(self, key: Array, size: int) -> Array:
        """Places [count(size)]."""
        return jax.random.randint(key, (self.count(size),), 0, max(1, self.places))
