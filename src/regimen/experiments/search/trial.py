"""What a candidate goes through: training in stretches, checks of the gate, and a separate evaluation.

`Trial` is all that a search needs of it; `engine_trial.EngineTrial` does it with the engines of `regimen train`. A
search over anything else that can be trained and scored implements the same few methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Sample:
    """Episodes that were played for nothing but measuring, one by one."""

    values: np.ndarray  # [n]
    rates: np.ndarray | None = None  # [m] of the episodes in which there was one
    events: float = np.inf  # of what the rates are, in all

    @classmethod
    def joined(cls, samples: Sequence[Sample]) -> Sample:
        rates = None if samples[0].rates is None else np.concatenate([s.rates for s in samples if s.rates is not None])
        return cls(np.concatenate([s.values for s in samples]), rates, sum(s.events for s in samples))

    @property
    def error(self) -> float:
        """The standard error of the mean value."""
        n = len(self.values)
        return float(self.values.std(ddof=1)) / n**0.5 if n > 1 else abs(float(self.values.mean()))

    @property
    def rate(self) -> Rate | None:
        return None if self.rates is None else Rate.of(self.rates, self.events)


class SharedTrial(Protocol):
    """Trains policies that learn several candidates of a space at once, and plays single candidates with them.

    `share(candidates, arrays, number)` makes the policy in `arrays` (a new one when None) the one that the other
    methods speak of; from now on it trains on these candidates. Everything random about a new policy follows from
    `number`; -1 goes on exactly where `arrays` were taken. `train(n)` takes at most n episodes; `unit` is the fewest it
    can take.
    `play(c, n, number)` plays n episodes of candidate c, the same ones for every candidate, and touches nothing.
    """

    @property
    def unit(self) -> int: ...
    @property
    def compiling(self) -> bool: ...
    def share(self, candidates: Sequence[int], arrays: Arrays | None, number: int) -> None: ...
    def train(self, episodes: int) -> StretchResult: ...
    def play(self, candidate: int, episodes: int, number: int) -> Sample: ...
    def arrays(self) -> Arrays: ...
    def identity(self) -> dict[str, object]: ...


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
