"""Kinds of settings: a type together with the values that it takes, to be written on a field. Jax-free.

lr: Positive = 3e-4
vf_clip: Positive | None = None
lag: Annotated[int, Range(0, 1000)] = 0
every: Period = "10"
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from regimen.errors import ConfigError

UNITS = ("updates", "steps", "episodes")


@dataclass(frozen=True)
class Range:
    """An interval, its lower end open when `open` is set."""

    low: float
    high: float = math.inf
    open: bool = False

    def __contains__(self, value: float) -> bool:
        return (value > self.low if self.open else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"greater than {self.low:,}" if self.open else f"at least {self.low:,}"
        return f"greater than {self.low:,} and at most {self.high:,}" if self.open else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class Alias:
    """Another name of a setting. Where it is a section's, a plain value is meant: `engine="ray"` is `engine.name`."""

    name: str


@dataclass(frozen=True)
class Count:
    """A number of updates, env steps or episodes: `10 updates`, `5000 steps`, `1e5 steps`, `50 episodes`."""

    n: int
    unit: str

    def __str__(self) -> str:
        return f"{self.n} {self.unit}"

    @classmethod
    def parse(cls, text: str | int | float | None, where: str = "count") -> Count | None:
        """None for `never`, `0` and nothing; a bare number counts updates."""
        if text is None or str(text).strip().lower() in ("", "never", "none", "0"):
            return None
        match = re.fullmatch(r"\s*([0-9][0-9_.eE+]*)\s*([a-z]*)\s*", str(text))
        word = match.group(2) if match else ""
        stem = word.rstrip("s")  # of `s` alone, which may mean seconds, nothing is left
        unit = next((u for u in UNITS if stem and u.startswith(stem)), "updates" if word == "" else None)
        try:
            n = float(match.group(1).replace("_", "")) if match else math.nan
        except ValueError:
            n = math.nan
        if unit is None or not (n >= 1 and n == int(n)):
            raise ConfigError(
                f"{where}: '{text}' is not a count; write '10', '10 updates', '5000 steps' or '50 episodes' (a time in "
                "seconds is refused: results would depend on the speed of the machine)"
            )
        return cls(int(n), unit)


Positive = Annotated[float, Range(0, open=True)]
NotNegative = Annotated[float, Range(0)]
AtLeastOne = Annotated[float, Range(1)]
Fraction = Annotated[float, Range(0, 1)]
Discount = Annotated[float, Range(0, 1, open=True)]
Negative = Annotated[float, Range(-1e12, -1e-30)]
LogStd = Annotated[float, Range(-20, 5)]
Whole = Annotated[int, Range(0)]  # 0, 1, 2 ...
Natural = Annotated[int, Range(1)]  # 1, 2, 3 ...
Period = Annotated[str, Count]  # text that `Count.parse` reads
