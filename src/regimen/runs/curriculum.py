"""Curricula: float fields of a native environment that follow a schedule in env steps, or the success rate.

The values of an update are computed inside the compiled program from the run's clock and from a level that moves with
the successes of the training episodes, so they depend neither on the host nor on other seeds. Jax is imported when a
program is made: settings are read and refused without it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from regimen.errors import ConfigError, nearest

if TYPE_CHECKING:
    from regimen.engines.base import Progress
    from regimen.types import Array, Clock, EpisodeRows

PRESET = "preset"  # the key of a curriculum that the environment declares; `--curriculum NAME` sets it
METRICS = "curriculum/"  # how the names of its metrics begin
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


# --- texts -----------------------------------------------------------------------------------------------------------


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
class Rule:
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


def parse(text: Any, field: str) -> Schedule:
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


def read(texts: Mapping[str, Any]) -> tuple[dict[str, Schedule], Rule | None]:
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
    return schedules, Rule(len(moved[first].values), **terms | window)  # type: ignore[arg-type]


def check_terms(terms: dict[str, float], where: str) -> None:
    up, down, window = terms.get("up", Rule.up), terms.get("down"), terms.get("window", Rule.window)
    if not 0 < up <= 1:
        raise ConfigError(f"{where}up {up:g} is out of range; it must be greater than 0 and at most 1")
    if down is not None and down < 0:
        raise ConfigError(f"{where}down {down:g} is out of range; it must be at least 0")
    if down is not None and up <= down:
        raise ConfigError(f"{where}up {up:g} must be greater than down {down:g}")
    if not 1 <= window <= 1_000_000 or window != int(window):
        raise ConfigError(f"{where}window {window:g} is not a whole number of episodes from 1 to 1,000,000")


# --- an environment's curriculum -------------------------------------------------------------------------------------


def expand(texts: Mapping[str, Any], handle: Any) -> dict[str, str]:
    """The texts with the curriculum that `preset` names in the environment's `curricula` below them."""
    if texts and handle.native is None:
        raise ConfigError(f"curriculum: {handle.id} is stepped in Python; curricula need a native environment")
    name, own = texts.get(PRESET), {field: str(text) for field, text in texts.items() if field != PRESET}
    if name is None:
        return own
    known = getattr(handle.native, "curricula", {})
    if name not in known:
        hint = nearest(name, known) if known else ", which declares none; write --curriculum.FIELD SCHEDULE"
        raise ConfigError(f"curriculum: '{name}' is not a curriculum of {handle.id}{hint}")
    return {**known[name], **own}


def make(texts: Mapping[str, Any], handle: Any) -> Curriculum | None:
    """The curriculum of a run on this environment; None where there is none. Refuses what the environment lacks."""
    schedules, rule = read(expand(texts, handle))
    if not schedules:
        return None
    fields = float_fields(handle.native)
    for field in schedules:
        if field in fields:
            continue
        if field in getattr(handle.native, "settings", dict)():
            raise ConfigError(
                f"curriculum.{field}: not a float field of {handle.id} but part of the compiled program; "
                f"{'float fields: ' + ', '.join(fields) if fields else 'it has no float field'}"
            )
        raise ConfigError(f"curriculum.{field}: {handle.id} has no such field{nearest(field, fields)}")
    if rule is not None and "success" not in handle.metrics and handle.return_threshold is None:
        field = next(field for field, s in schedules.items() if isinstance(s, Levels))
        raise ConfigError(
            f"curriculum.{field}: {handle.id} has neither a metric 'success' nor a return threshold, so nothing says "
            f"what a success is; give values by env steps"
        )
    return Curriculum(schedules, rule, None if "success" in handle.metrics else handle.return_threshold)


def float_fields(env: Any) -> list[str]:
    """Fields that are data of the compiled program: declared as float, or a float parameter of a gymnax environment."""
    import jax

    declared = {f.name for f in dataclasses.fields(env) if f.type in ("float", float)}
    leaves = [(field_name(path), x) for path, x in jax.tree_util.tree_flatten_with_path(env)[0]]
    return [name for name, x in leaves if name in declared or isinstance(x, float)]


def field_name(path: Any) -> str:
    return str(getattr(path[-1], "name", path[-1]))


@dataclass(frozen=True)
class Curriculum:
    """What an engine asks: `start`, then for every update `apply` before it and `after` behind it.

    `course` is what it carries: nothing without levels, else `level`, `seen` (episodes at this level, up to the window)
    and `recent` (the successes of the last `window` episodes, the newest last). An episode counts for the level at
    which it ended.
    """

    schedules: dict[str, Schedule]
    rule: Rule | None = None
    threshold: float | None = None  # return of a success; None: the environment's metric

    def start(self) -> dict[str, Array]:
        import jax.numpy as jnp

        if self.rule is None:
            return {}
        zero = jnp.zeros((), jnp.int32)
        return {LEVEL: zero, "seen": zero, "recent": jnp.zeros(self.rule.window, bool)}

    def apply(self, env: Any, clock: Clock, course: dict[str, Array]) -> tuple[Any, dict[str, Array]]:
        """The environment of the next update, and the values as metrics."""
        import jax

        values = {field: self.value(schedule, clock, course) for field, schedule in self.schedules.items()}
        env = jax.tree_util.tree_map_with_path(lambda path, x: values.get(field_name(path), x), env)
        metrics = {METRICS + field: value for field, value in values.items()}
        return env, metrics if self.rule is None else metrics | {METRICS + LEVEL: course[LEVEL] + 1}

    def value(self, schedule: Schedule, clock: Clock, course: dict[str, Array]) -> Array:
        import jax.numpy as jnp

        match schedule:
            case Ramp(start, end, steps):
                done = clock.read("steps") / float(steps)
                return jnp.where(done >= 1, jnp.float32(end), start + (end - start) * done)
            case Stairs(values, at):
                high, low = jnp.array([n >> 30 for n in at]), jnp.array([n & (2**30 - 1) for n in at])
                reached = (clock.steps_high > high) | ((clock.steps_high == high) & (clock.steps_low >= low))
                return jnp.array(values, jnp.float32)[reached.sum() - 1]
            case Levels(values):
                return jnp.array(values, jnp.float32)[course[LEVEL]]

    def after(self, course: dict[str, Array], rows: EpisodeRows) -> dict[str, Array]:
        """The course behind an update in which these episodes ended. The level moves by at most one, and the next
        episodes fill an empty window."""
        import jax.numpy as jnp
        from jax import lax

        rule = self.rule
        if rule is None:
            return course
        rows = newest(rows, rule.window)
        success = rows.metrics["success"] > 0.5 if self.threshold is None else rows.reward.sum(-1) >= self.threshold
        recent = lax.dynamic_slice_in_dim(jnp.concatenate([course["recent"], success]), rows.count, rule.window)
        seen = jnp.minimum(course["seen"] + rows.count, rule.window)
        full, wins, level = seen >= rule.window, recent.sum(dtype=jnp.int32), course[LEVEL]
        up = full & (wins >= rule.enough()) & (level < rule.levels - 1)
        down = full & (wins < rule.too_few()) & (level > 0)
        return {LEVEL: level + up - down, "seen": jnp.where(up | down, 0, seen), "recent": recent}

    # --- in words ----------------------------------------------------------------------------------------------------

    def words(self) -> str:
        parts = [s.words(field) for field, s in self.schedules.items() if not isinstance(s, Levels)]
        if self.rule is not None:
            moved = [s.words(field) for field, s in self.schedules.items() if isinstance(s, Levels)]
            parts.append(f"{' and '.join(moved)} {self.rule.words()}")
        return f"curriculum: {'; '.join(parts)}; evaluation plays the environment as configured"

    def moves(
        self, before: dict[str, float] | None, progress: Progress, steps: int
    ) -> tuple[list[str], dict[str, float] | None]:
        """What an advance that began at env step `steps` changed, in words, and the values of its last update. Ramps
        are not told. `before`: the values of the update before it, where there was one."""
        told = [field for field, schedule in self.schedules.items() if isinstance(schedule, Stairs)]
        told += [LEVEL] if self.rule is not None else []
        lines: list[str] = []
        last = before
        for j in range(progress.updates):
            now = {name: float(progress.metrics[METRICS + name][j]) for name in told}
            for name in told:
                if last is None or now[name] == last[name]:
                    continue
                by_success = self.rule is not None and name == LEVEL
                what = self.level_words(int(now[name]), int(last[name])) if by_success else f"{name} {now[name]:g}"
                lines.append(f"curriculum at step {steps:,}: {what}")
            last = now
            steps += int(progress.steps[j])
        return lines, last

    def level_words(self, level: int, before: int) -> str:
        assert self.rule is not None
        values = [f"{f} {s.values[level - 1]:g}" for f, s in self.schedules.items() if isinstance(s, Levels)]
        way = "up" if level > before else "down"
        return f"{way} to level {level} of {self.rule.levels}, {', '.join(values)}"


def newest(rows: EpisodeRows, most: int) -> EpisodeRows:
    """The rows of all devices in the order in which they finished, of each device at most its newest `most`."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from regimen.axes import device_count, gather_over_devices

    if device_count() == 1:
        return rows
    size = min(most, rows.step.shape[0])
    start, count = jnp.maximum(rows.count - size, 0), jnp.minimum(rows.count, size)
    last = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), dataclasses.replace(rows, count=rows.step))
    counts = gather_over_devices(count)
    every = jax.tree.map(lambda x: gather_over_devices(x).reshape(-1, *x.shape[1:]), last)
    real = (jnp.arange(size) < counts[:, None]).reshape(-1)
    order = jnp.argsort(jnp.where(real, every.step, jnp.iinfo(jnp.int32).max), stable=True)
    return dataclasses.replace(jax.tree.map(lambda x: x[order], every), count=counts.sum())
