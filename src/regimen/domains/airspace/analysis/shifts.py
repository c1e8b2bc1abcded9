"""Shifts: one thing about a scenario changed by a known amount, for one aircraft or for all. Jax-free.

A shift maps a scenario file to a scenario file, so a shifted scenario can be saved, looked at and trained on. Which
shifts there are stands in shifts.yaml.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from regimen.domains.airspace.files import SPEEDS, Agent, ScenarioFile, WindLayer
from regimen.domains.airspace.geodesy import from_latlon, to_latlon
from regimen.errors import ConfigError, nearest

GUARD_NM = 6.0  # a shifted start closer than this is not flown: it would be lost before the first decision
ALL = "all"  # the target that is every aircraft

TABLES: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
AMOUNTS: dict[str, dict[str, Any]] = TABLES["kinds"]
PROFILES = {name: tuple(WindLayer(*row) for row in rows) for name, rows in TABLES["profiles"].items()}
COMPASS = {"N": 0, "NE": 45, "E": 90, "SE": 135, "S": 180, "SW": 225, "W": 270, "NW": 315}


@dataclass(frozen=True)
class Shift:
    """A change: what (`kind`), how much (`value` in `unit`, towards `direction` where there is one), and of whom."""

    kind: str
    value: float
    unit: str
    target: str = ALL  # an aircraft's id, or `all`
    range: str = "micro"  # or macro
    direction: str = ""  # a compass direction, a type's name, or the name of a profile

    @property
    def name(self) -> str:
        """A name for files and tables."""
        if self.kind == "baseline":
            return "baseline"
        amount = f"{self.value:g}" if self.kind == "delay" else f"{self.value:+g}"
        if self.direction:
            amount = self.direction if self.by_name else f"{self.direction}{self.value:g}"
        return f"{self.kind}_{amount}_{self.target}"

    @property
    def by_name(self) -> bool:
        """Whether its value is only the number of its name: of an aircraft type or a profile."""
        return self.unit in ("type", "profile")

    def columns(self) -> dict[str, str | float]:
        """The shift as columns of a table."""
        names = ("kind", "value", "unit", "direction", "target", "range")
        return {"shift": self.name} | {name: getattr(self, name) for name in names}


BASELINE = Shift("baseline", 0.0, "", ALL, "baseline")


def moved(file: ScenarioFile, agent: Agent, along: float, across: float) -> Agent:
    """Moved along its heading and to the right of it, in NM."""
    h = math.radians(agent.hdg_deg)
    north, east = from_latlon(file.center, agent.lat, agent.lon)
    north += along * math.cos(h) - across * math.sin(h)
    east += along * math.sin(h) + across * math.cos(h)
    lat, lon = to_latlon(file.center, north, east)
    return replace(agent, lat=lat, lon=lon)


def _waypoint(agent: Agent, degrees: float, direction: str) -> Agent:
    """The waypoint moved by degrees of latitude and of longitude; a diagonal moves both by the whole amount."""
    angle = math.radians(COMPASS[direction])
    signs = (round(math.cos(angle)), round(math.sin(angle)))
    lat, lon = agent.waypoint
    return replace(agent, waypoint=(lat + signs[0] * degrees, lon + signs[1] * degrees))


ONE: dict[str, Callable[[ScenarioFile, Agent, Shift], Agent]] = {
    "position_lat": lambda file, a, s: replace(a, lat=a.lat + s.value),
    "position_lon": lambda file, a, s: replace(a, lon=a.lon + s.value),
    "position_along": lambda file, a, s: moved(file, a, s.value, 0.0),
    "position_across": lambda file, a, s: moved(file, a, 0.0, s.value),
    "heading": lambda file, a, s: replace(a, hdg_deg=(a.hdg_deg + s.value) % 360),
    "speed": lambda file, a, s: replace(a, spd_kt=min(max(a.spd_kt + s.value, SPEEDS[0]), SPEEDS[1])),
    "type": lambda file, a, s: replace(a, type=s.direction),
    "waypoint": lambda file, a, s: _waypoint(a, s.value, s.direction),
}
WHOLE: dict[str, Callable[[ScenarioFile, Shift], ScenarioFile]] = {
    "wind": lambda file, s: replace(file, wind=(WindLayer(0.0, float(COMPASS[s.direction]), s.value),)),
    "wind_layered": lambda file, s: replace(file, wind=PROFILES[s.direction]),
    "delay": lambda file, s: replace(file, action_delay_steps=int(s.value)),
}
KINDS = (*ONE, *WHOLE)
GROUPS = {"position": tuple(k for k in ONE if k.startswith("position_")), "wind": ("wind", "wind_layered")}


def apply(file: ScenarioFile, shift: Shift) -> ScenarioFile:
    """The shifted scenario."""
    if shift.kind == "baseline":
        return file
    if shift.kind in WHOLE:
        return WHOLE[shift.kind](file, shift)
    change = ONE[shift.kind]
    agents = tuple(change(file, a, shift) if shift.target in (ALL, a.id) else a for a in file.agents)
    return replace(file, agents=agents)


def representatives(file: ScenarioFile) -> tuple[str, ...]:
    """The aircraft that are shifted one at a time: one of each role (quadrant of the heading, side of the centre)."""
    ids = TABLES["representatives"].get(file.name, ())
    if ids and set(ids) <= set(file.ids):
        return tuple(ids)
    roles: dict[tuple, str] = {}
    for a in file.agents:
        side = tuple(
            0 if abs(x) < 0.05 else math.copysign(1, x) for x in (a.lat - file.center.lat, a.lon - file.center.lon)
        )
        roles.setdefault((round(a.hdg_deg / 90) % 4, side), a.id)
    return tuple(roles.values())


def variants(kind: str, target: str, narrow: bool) -> list[Shift]:
    """All shifts of a kind for one target."""
    about = AMOUNTS[kind]
    macro = about["narrow"] if narrow and "narrow" in about else about["macro"]
    return [
        Shift(kind, -v if d == "-" else v, about["unit"], target, name, "" if d in "-+" else d)
        for name, groups in (("micro", about.get("micro", ())), ("macro", macro))
        for directions, values in groups
        for v in values
        for d in directions
    ]


class Grid(NamedTuple):
    """The shifts to fly, in order, the baseline first; and those left out, with the reason."""

    shifts: list[Shift]
    files: list[ScenarioFile]
    skipped: list[tuple[Shift, str]]


def parse_kinds(names: Iterable[str]) -> tuple[tuple[str, ...], set[str]]:
    """The kinds that names stand for, and those of them that were named themselves (not as `all` or as a group)."""
    groups = {ALL: KINDS} | GROUPS  # `wind` is a kind, too
    out: dict[str, None] = {}
    exact: set[str] = set()
    for name in names:
        if name not in (*groups, *KINDS):
            raise ConfigError(f"shifts: unknown shift '{name}'{nearest(name, [ALL, 'none', *GROUPS, *KINDS])}")
        out |= dict.fromkeys(groups.get(name, (name,)))
        if name not in groups:
            exact.add(name)
    return tuple(out), exact


def grid(
    file: ScenarioFile, kinds: Iterable[str] = (ALL,), targets: Iterable[str] | None = None, only: str | None = None
) -> Grid:
    """The shifts of a scenario: of its representative aircraft and of all together, or of the `targets` named (ids,
    `each`, `all`); `only` keeps the micro or the macro ones. A kind named by itself is tried on every target; else some
    are for single aircraft only and some for all together."""
    names, exact = parse_kinds(kinds)
    if only not in (None, "micro", "macro"):
        raise ConfigError(f"range: '{only}' is not one of micro, macro")
    ids = [*representatives(file), ALL] if targets is None else list(targets)
    for name in ids:
        if name not in (ALL, "each", *file.ids):
            raise ConfigError(f"targets: {file.name} has no aircraft '{name}'{nearest(name, [ALL, 'each', *file.ids])}")
    narrow = file.name.startswith(("merge", "chase"))
    one = [k for k in names if k in ONE and (AMOUNTS[k].get("alone") or k in exact)]
    together = [k for k in names if AMOUNTS[k].get("together") or k in exact]
    candidates = [s for i in file.ids if i in ids or "each" in ids for k in one for s in variants(k, i, narrow)]
    if ALL in ids:
        candidates += [s for k in together for s in variants(k, ALL, narrow)]
    out = Grid([BASELINE], [file], [])
    least = min(GUARD_NM, file.start_separation) - 1e-3  # a scenario that starts closer is held to its own
    for shift in candidates:
        if only not in (None, shift.range):
            continue
        result = apply(file, shift)
        apart = result.start_separation if shift.kind.startswith("position_") else math.inf
        if apart < least:
            out.skipped.append((shift, f"starts {apart:.2f} NM apart, less than {max(least, 0):.2f} NM"))
        elif result == file:
            out.skipped.append((shift, "changes nothing"))
        else:
            out.shifts.append(shift)
            out.files.append(result)
    return out
