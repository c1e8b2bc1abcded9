"""The curriculum of an environment: float fields that follow a schedule in env steps, or the success rate.

The values of an update are computed inside the compiled program from the run's clock and from a level that moves with
the successes of the training episodes, so they depend neither on the host nor on other seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from regimen.axes import device_count, gather_over_devices
from regimen.config.curriculum import LEVEL, PRESET, LevelRule, Levels, Ramp, Schedule, Stairs, read
from regimen.engines.base import Progress
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError, nearest
from regimen.types import Array, Clock, EpisodeRows, PyTree

METRICS = "curriculum/"  # how the names of its metrics begin


def expand(texts: Mapping[str, object], handle: EnvHandle) -> dict[str, str]:
    """Return the texts, laid over those of the curriculum that `preset` names in the environment's `curricula`."""
    if texts and handle.native is None:
        raise ConfigError(f"curriculum: {handle.id} is stepped in Python; curricula need a native environment")
    name = texts.get(PRESET)
    fields = {field: str(text) for field, text in texts.items() if field != PRESET}
    if name is None:
        return fields
    curricula: dict[str, dict[str, str]] = getattr(handle.native, "curricula", {})
    if not isinstance(name, str) or name not in curricula:
        hint = ", which declares none; write --curriculum.FIELD SCHEDULE"
        if curricula:
            hint = nearest(str(name), curricula)
        raise ConfigError(f"curriculum: '{name}' is not a curriculum of {handle.id}{hint}")
    return {**curricula[name], **fields}


def make(texts: Mapping[str, object], handle: EnvHandle) -> Curriculum | None:
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


def float_fields(env: PyTree) -> list[str]:
    """Fields that are data of the compiled program: declared as float, or a float parameter of a gymnax environment."""
    declared = {f.name for f in dataclasses.fields(env) if f.type in ("float", float)}
    leaves = [(field_name(path), x) for path, x in jax.tree_util.tree_flatten_with_path(env)[0]]
    return [name for name, x in leaves if name in declared or isinstance(x, float)]


def field_name(path: jax.tree_util.KeyPath) -> str:
    return str(getattr(path[-1], "name", path[-1]))


@dataclass(frozen=True)
class Curriculum:
    """What an engine asks: `start`, then for every update `apply` before it and `after` behind it.

    `course` is what it carries: nothing without levels, else `level`, `seen` (episodes at this level, up to the window)
    and `recent` (the successes of the last `window` episodes, the newest last). An episode counts for the level at
    which it ended.
    """

    schedules: dict[str, Schedule]
    rule: LevelRule | None = None
    threshold: float | None = None  # return of a success; None: the environment's metric

    def start(self) -> dict[str, Array]:
        if self.rule is None:
            return {}
        zero = jnp.zeros((), jnp.int32)
        return {LEVEL: zero, "seen": zero, "recent": jnp.zeros(self.rule.window, bool)}

    def apply(self, env: PyTree, clock: Clock, course: dict[str, Array]) -> tuple[PyTree, dict[str, Array]]:
        """The environment of the next update, and the values as metrics."""
        values = {field: self.value(schedule, clock, course) for field, schedule in self.schedules.items()}
        env = jax.tree_util.tree_map_with_path(lambda path, x: values.get(field_name(path), x), env)
        metrics = {METRICS + field: value for field, value in values.items()}
        return env, metrics if self.rule is None else metrics | {METRICS + LEVEL: course[LEVEL] + 1}

    def value(self, schedule: Schedule, clock: Clock, course: dict[str, Array]) -> Array:
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
        rule = self.rule
        if rule is None:
            return course
        rows = newest(rows, rule.window)
        success = rows.metrics["success"] > 0.5 if self.threshold is None else rows.reward.sum(-1) >= self.threshold
        recent = lax.dynamic_slice_in_dim(jnp.concatenate([course["recent"], success]), rows.count, rule.window)
        count = jnp.minimum(course["seen"] + rows.count, rule.window)
        full, wins, level = count >= rule.window, recent.sum(dtype=jnp.int32), course[LEVEL]
        up = full & (wins >= rule.enough()) & (level < rule.levels - 1)
        down = full & (wins < rule.too_few()) & (level > 0)
        return {LEVEL: level + up - down, "seen": jnp.where(up | down, 0, count), "recent": recent}

    def words(self) -> str:
        parts = [s.words(field) for field, s in self.schedules.items() if not isinstance(s, Levels)]
        if self.rule is not None:
            by_success = [s.words(field) for field, s in self.schedules.items() if isinstance(s, Levels)]
            parts.append(f"{' and '.join(by_success)} {self.rule.words()}")
        return f"curriculum: {'; '.join(parts)}; evaluation plays the environment as configured"

    def moves(
        self, before: dict[str, float] | None, progress: Progress, steps: int
    ) -> tuple[list[str], dict[str, float] | None]:
        """What an advance that began at env step `steps` changed, in words, and the values of its last update. Ramps
        are not told. `before`: the values of the update before it, where there was one."""
        names = [field for field, schedule in self.schedules.items() if isinstance(schedule, Stairs)]
        names += [LEVEL] if self.rule is not None else []
        lines: list[str] = []
        last = before
        for j in range(progress.updates):
            now = {name: float(progress.metrics[METRICS + name][j]) for name in names}
            for name in names:
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
