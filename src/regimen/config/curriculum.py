"""The grammar of curricula: what `--curriculum.FIELD` may say. Jax-free; `engines.curriculum` follows what is said.

5 @ 0, 8 @ 20k steps                    values by env steps
3 .. 9.8 over 100k steps                a ramp
30, 40, 50 up 0.8 down 0.5 window 100   levels by success rate
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from regimen.errors import ConfigError

PRESET = "preset"  # the key of a curriculum that the environment declares; `--curriculum NAME` sets it
LEVEL = "level"
MOST_STEPS = 2**60  # the clock counts that far
LARGEST = 3e38  # of a float32
GRAMMAR = (
    "write '5 @ 0, 8 @ 20k steps' (values by env steps), '3 .. 9.8 over 100k steps' (a ramp) or "
    "'30, 40, 50 up 0.8 down 0.5 window 100' (levels by success rate)"
)

NUMBER = r"[-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
STEPS = rf"({NUMBER})\s*([kM]?)(?:\s*steps?)?"
STAIR = re.compile(rf"({NUMBER})\s*@\s*{STEPS}")
RAMP = re.compile(rf"({NUMBER})\s*(?<!\.)\.\.(?!\.)\s*({NUMBER})\s+over\s+{STEPS}")
LEVELS = re.compile(rf"({NUMBER}(?:\s*,\s*{NUMBER})+)((?:\s+(?:up|down|window)\s+{NUMBER})*)")
TERM = re.compile(rf"(up|down|window)\s+({NUMBER})")


@dataclass(frozen=True)
class Stairs:
    """`5 @ 0, 8 @ 20k steps`: each value holds from its step on."""

    values: tuple[float, ...]
    at: tuple[int, ...]  # env steps, increasing from 0

    def words(self, field: str) -> str:
        later = [f", then {value:g} from step {n:,}" for value, n in zip(self.values[1:], self.at[1:])]
        return f"{field} {self.values[0]:g}{''.join(later)}"


@dataclass(frozen=True)
class Ramp:
    """`3 .. 9.8 over 100k steps`: linear in env steps, then constant."""

    start: float
    end: float
    steps: int

    def words(self, field: str) -> str:
        return f"{field} from {self.start:g} to {self.end:g} over {self.steps:,} steps"


@dataclass(frozen=True)
class Levels:
    """`30, 40, 50 up 0.8 down 0.5 window 100`: one value per level; terms that the text leaves out are not there."""

    values: tuple[float, ...]
    terms: dict[str, float]

    def words(self, field: str) -> str:
        return f"{field} {', '.join(f'{value:g}' for value in self.values)}"


@dataclass(frozen=True)
class LevelRule:
    """When the level moves: after at least `window` episodes at it, by the success rate of the last `window`."""

    levels: int
    up: float = 0.8
    down: float | None = None  # never down
    window: int = 100

    def enough(self) -> int:
        """Successes in the window from which the level goes up; exact, so that 0.07 of 100 are 7."""
        return math.ceil(Fraction(str(self.up)) * self.window)

    def too_few(self) -> int:
        """Successes in the window below which it goes down."""
        return 0 if self.down is None else math.ceil(Fraction(str(self.down)) * self.window)

    def words(self) -> str:
        down = "" if self.down is None else f", down below {100 * self.down:g}%"
        return f"by success: up at {100 * self.up:g}% of the last {self.window:,} episodes{down}"


Schedule = Stairs | Ramp | Levels


def parse(text: object, field: str) -> Schedule:
    """The schedule a text spells; ConfigError names the field and shows what can be written."""
    where, text = f"curriculum.{field}: ", str(text).strip()
    if match := RAMP.fullmatch(text):
        start, end, steps, unit = match.groups()
        return Ramp(number(start, where), number(end, where), whole_steps(steps, unit, where, least=1))
    if match := LEVELS.fullmatch(text):
        terms = [(name, number(value, where)) for name, value in TERM.findall(match[2])]
        if len(dict(terms)) < len(terms):
            raise ConfigError(f"{where}'{match[2].strip()}' sets a term twice")
        return Levels(tuple(number(value, where) for value in match[1].split(",")), dict(terms))
    stairs = [STAIR.fullmatch(part.strip()) for part in text.split(",")]
    if not all(stairs):
        raise ConfigError(f"{where}'{text}' is not a schedule; {GRAMMAR}")
    values = tuple(number(match[1], where) for match in stairs if match)
    at = tuple(whole_steps(match[2], match[3], where) for match in stairs if match)
    if at[0] != 0:
        raise ConfigError(f"{where}the first value must be @ 0, not @ {at[0]:,}")
    for before, after in pairwise(at):
        if after <= before:
            raise ConfigError(f"{where}steps must increase; {after:,} comes after {before:,}")
    return Stairs(values, at)


def number(text: str, where: str) -> float:
    value = float(text)
    if not abs(value) <= LARGEST:
        raise ConfigError(f"{where}{text} is too large")
    return value


def whole_steps(text: str, unit: str, where: str, least: int = 0) -> int:
    n = float(text) * {"": 1, "k": 1_000, "M": 1_000_000}[unit]
    if not least <= n < MOST_STEPS or abs(n - round(n)) > 1e-6:
        raise ConfigError(f"{where}{text}{unit} is not a number of steps; it must be whole and at least {least}")
    return round(n)


def read(texts: Mapping[str, object]) -> tuple[dict[str, Schedule], LevelRule | None]:
    """The schedule of each field, and the rule that all fields with levels share."""
    schedules = {field: parse(text, field) for field, text in texts.items() if field != PRESET}
    moved = {field: s for field, s in schedules.items() if isinstance(s, Levels)}
    if not moved:
        return schedules, None
    terms: dict[str, float] = {}
    first = next(iter(moved))
    for field, schedule in moved.items():
        where, levels = f"curriculum.{field}: ", len(schedule.values)
        if levels != len(moved[first].values):
            raise ConfigError(
                f"{where}{levels} levels, but {len(moved[first].values)} for {first}; fields moved by success share "
                f"one level, so each needs as many values"
            )
        for name, value in schedule.terms.items():
            if terms.setdefault(name, value) != value:
                raise ConfigError(
                    f"{where}{name} {value:g}, but {name} {terms[name]:g} for another field; fields moved by success "
                    f"share one rule"
                )
    check_terms(terms, f"curriculum.{first}: ")
    if LEVEL in schedules:
        raise ConfigError(
            f"curriculum.{LEVEL}: no field of this name beside levels by success: train/curriculum/{LEVEL} is theirs"
        )
    window = {"window": int(terms["window"])} if "window" in terms else {}
    return schedules, LevelRule(len(moved[first].values), **terms | window)  # type: ignore[arg-type]


def check_terms(terms: dict[str, float], where: str) -> None:
    up, down, window = terms.get("up", LevelRule.up), terms.get("down"), terms.get("window", LevelRule.window)
    if not 0 < up <= 1:
        raise ConfigError(f"{where}up {up:g} is out of range; it must be greater than 0 and at most 1")
    if down is not None and down < 0:
        raise ConfigError(f"{where}down {down:g} is out of range; it must be at least 0")
    if down is not None and up <= down:
        raise ConfigError(f"{where}up {up:g} must be greater than down {down:g}")
    if not 1 <= window <= 1_000_000 or window != int(window):
        raise ConfigError(f"{where}window {window:g} is not a whole number of episodes from 1 to 1,000,000")
