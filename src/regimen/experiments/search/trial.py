"""What a candidate goes through: training in stretches, checks of the gate, and a separate evaluation.

`Trial` is all that a search needs of it; `engine_trial.EngineTrial` does it with the engines of `regimen train`. A
search over anything else that can be trained and scored implements the same few methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from regimen.experiments.search.gate import Rate

Arrays = dict[str, np.ndarray]
Saved = dict[str, Any]  # what state.json holds, or a part of it


@dataclass(frozen=True)
class StretchResult:
    """Some training: the episodes it took, and what they showed (with the exploring policy that collected them)."""

    episodes: int
    value: float | None = None  # mean over its episodes
    rate: float | None = None  # of what the gate looks at, likewise
    rows: tuple[Mapping[str, float], ...] = ()  # one per update
    diverged: bool = False  # the last update was not finite and was not applied


@dataclass(frozen=True)
class Measurement:
    """Episodes that were played for nothing but measuring."""

    value: float
    se: float  # standard error of it
    episodes: int
    rate: Rate | None = None  # what the gate looks at, where there is one
    details: Mapping[str, float] = field(default_factory=dict)  # means to be written beside it

    def to_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Saved) -> Measurement:
        rate = data.get("rate")
        if rate is not None:  # JSON has no infinity
            rate = Rate(**{**rate, "events": np.inf if rate["events"] is None else rate["events"]})
        return cls(**{**data, "rate": rate})


class Trial(Protocol):
    """Trains and measures candidates of a space, one at a time, deterministically.

    `start(c, arrays, number)` makes candidate c the one that the other methods speak of; it begins from the policy in
    `arrays` (from nothing when None), and everything random about it follows from `number`. c is -1 for a warm-up on
    all candidates at once, where the trial can do that. `train(n)` takes at most n episodes; `unit` is the fewest it
    can take. `measure(n, number)` plays n episodes of its own, the same ones for every candidate, and touches nothing.
    """

    @property
    def unit(self) -> int: ...
    @property
    def compiling(self) -> bool: ...  # then a signal may end the process at once
    def start(self, candidate: int, arrays: Arrays | None, number: int) -> None: ...
    def train(self, episodes: int) -> StretchResult: ...
    def measure(self, episodes: int, number: int) -> Measurement: ...
    def arrays(self) -> Arrays: ...
    def identity(self) -> dict[str, object]: ...
