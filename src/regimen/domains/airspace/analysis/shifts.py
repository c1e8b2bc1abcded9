"""Shifts: one thing about a scenario changed by a known amount, for one aircraft or for all. Jax-free.

A shift maps a scenario file to a scenario file, so a shifted scenario can be saved, looked at and trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations

from regimen.domains.airspace.files import SPEEDS, Agent, Layer, ScenarioFile
from regimen.domains.airspace.geodesy import from_latlon, haversine, to_latlon
from regimen.errors import ConfigError, nearest

GUARD_NM = 6.0  # a shifted start closer than this is not flown: it would be lost before the first decision
ALL = "all"  # the target that is every aircraft

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
        amount = self.direction if self.kind == "type" else f"{self.value:g}"
        if self.kind in ("waypoint", "wind"):
            amount = f"{self.direction}{self.value:g}"
        elif self.kind == "wind_layered":
            amount = self.direction
        elif self.kind != "type" and self.kind != "delay" and self.value > 0:
            amount = f"+{self.value:g}"
        return f"{self.kind}_{amount}_{self.target}"

    def columns(self) -> dict[str, str | float]:
        """The shift as columns of a table."""
        names = ("kind", "value", "unit", "direction", "target", "range")
        return {"shift": self.name} | {name: getattr(self, name) for name in names}


BASELINE = Shift("baseline", 0.0, "", ALL, "baseline")


# --- what a shift does to an aircraft --------------------------------------------------------------------------------


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
PROFILES = {  # layered winds: speed grows with height; it veers with height
    "shear": (Layer(5_000, 270, 10), Layer(10_000, 270, 25), Layer(15_000, 270, 40)),
    "veer": (Layer(5_000, 180, 15), Layer(10_000, 240, 25), Layer(15_000, 300, 35)),
}
WHOLE: dict[str, Callable[[ScenarioFile, Shift], ScenarioFile]] = {
    "wind": lambda file, s: replace(file, wind=(Layer(0.0, float(COMPASS[s.direction]), s.value),)),
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


def start_separation(file: ScenarioFile) -> float:
    """NM between the two that start closest; infinite for one aircraft."""
    return min((haversine(a.lat, a.lon, b.lat, b.lon) for a, b in combinations(file.agents, 2)), default=math.inf)


# --- the grid --------------------------------------------------------------------------------------------------------

# kind -> unit, micro values, macro values (both signs unless the kind has directions)
SIGNED: dict[str, tuple[str, tuple[float, ...], tuple[float, ...]]] = {
    "speed": ("kt", (2, 5, 8, 10), (15, 20, 25, 30, 35)),
    "heading": ("deg", (2, 5, 8, 10), (15, 20, 25, 30, 35)),
    "position_lat": ("deg", (0.03, 0.05, 0.08, 0.10, 0.12, 0.15), (0.18, 0.20, 0.25, 0.30, 0.35)),
    "position_lon": ("deg", (0.03, 0.05, 0.08, 0.10, 0.12, 0.15), (0.20, 0.25, 0.30, 0.35, 0.40)),
    "position_along": ("NM", (1, 2, 3), (5, 8, 10)),
    "position_across": ("NM", (1, 2, 3), (5, 8, 10)),
}
NARROW_LON = (0.18, 0.20, 0.25)  # macro values for lanes that are close to each other: merge and chase
WAYPOINTS = {
    "micro": [(d, v) for v in (0.03, 0.05, 0.08) for d in ("N", "S", "E", "W")],
    "macro": [(d, v) for v in (0.15, 0.20, 0.25, 0.30) for d in ("N", "S", "E", "W")]
    + [(d, v) for v in (0.15, 0.20) for d in ("NE", "SW")]
    + [("NW", 0.15), ("SE", 0.15)],
}
WINDS = {
    "micro": [(d, v) for v in (10, 15) for d in ("N", "E", "S", "W")],
    "macro": [(d, v) for v in (25, 35) for d in ("N", "E", "S", "W")] + [(d, 30) for d in ("NE", "SE", "SW", "NW")],
}
TYPES = ("B737", "B747", "CRJ9")
BY_ONE = ("speed", "position_lat", "position_lon", "heading", "type", "waypoint")  # by default for one aircraft
BY_ALL = ("speed", "heading", "position_along", "type", "wind", "wind_layered", "delay")  # and for all together
REPRESENTATIVES = {
    "cross_2x2": ("A1", "A2"),
    "merge_2x2": ("A1", "A3"),
    "merge_3p1": ("A1", "A2", "A3"),
    "merge_4all": ("A2", "A3"),
    "chase_2x2": ("A1", "A3"),
    "chase_3p1": ("A1", "A3", "A4"),
    "chase_4all": ("A1", "A4"),
}


def representatives(file: ScenarioFile) -> tuple[str, ...]:
    """The aircraft that are shifted one at a time: one of each role (quadrant of the heading, side of the centre)."""
    ids = REPRESENTATIVES.get(file.name, ())
    if ids and set(ids) <= set(file.ids):
        return ids
    roles: dict[tuple, str] = {}
    for a in file.agents:
        side = tuple(
            0 if abs(x) < 0.05 else math.copysign(1, x) for x in (a.lat - file.center.lat, a.lon - file.center.lon)
        )
        roles.setdefault((round(a.hdg_deg / 90) % 4, side), a.id)
    return tuple(roles.values())


def variants(kind: str, target: str, narrow: bool) -> list[Shift]:
    """All shifts of a kind for one target."""
    out: list[Shift] = []
    if kind in SIGNED:
        unit, micro, macro = SIGNED[kind]
        macro = NARROW_LON if kind == "position_lon" and narrow else macro
        for name, values in (("micro", micro), ("macro", macro)):
            out += [Shift(kind, sign * v, unit, target, name) for v in values for sign in (-1, 1)]
    elif kind == "type":
        out = [Shift(kind, float(i), "type", target, "macro", name) for i, name in enumerate(TYPES)]
    elif kind in ("waypoint", "wind"):
        table, unit = (WAYPOINTS, "deg") if kind == "waypoint" else (WINDS, "kt")
        out = [Shift(kind, v, unit, target, name, d) for name, rows in table.items() for d, v in rows]
    elif kind == "wind_layered":
        out = [Shift(kind, float(i), "profile", target, "macro", name) for i, name in enumerate(PROFILES)]
    elif kind == "delay":
        out = [Shift(kind, float(d), "decisions", target, "micro" if d == 1 else "macro") for d in (1, 2, 3)]
    return out


@dataclass(frozen=True)
class Grid:
    """The shifts to fly, in order, the baseline first; and those left out, with the reason."""

    shifts: tuple[Shift, ...]
    files: tuple[ScenarioFile, ...]
    skipped: tuple[tuple[Shift, str], ...] = ()


def chosen_kinds(names: Iterable[str]) -> tuple[tuple[str, ...], set[str]]:
    """The kinds that names stand for, and those of them that were named themselves (not as `all` or as a group)."""
    out: list[str] = []
    exact: set[str] = set()
    for name in names:
        if name == ALL:
            out += KINDS
        elif name in GROUPS:  # `wind` is both
            out += GROUPS[name]
        elif name in KINDS:
            out.append(name)
            exact.add(name)
        else:
            raise ConfigError(f"shifts: unknown shift '{name}'{nearest(name, [ALL, 'none', *GROUPS, *KINDS])}")
    return tuple(dict.fromkeys(out)), exact


def grid(
    file: ScenarioFile,
    kinds: Iterable[str] = (ALL,),
    targets: Iterable[str] | None = None,
    only: str | None = None,
    guard_nm: float = GUARD_NM,
) -> Grid:
    """The shifts of a scenario: of its representative aircraft and of all together, or of the `targets` named (ids,
    `each`, `all`); `only` keeps the micro or the macro ones. A kind named by itself is tried on every target; else some
    are for single aircraft only and some for all together."""
    wanted, exact = chosen_kinds(kinds)
    if only not in (None, "micro", "macro"):
        raise ConfigError(f"range: '{only}' is not one of micro, macro")
    named = None if targets is None else list(targets)
    for name in named or ():
        if name not in (ALL, "each", *file.ids):
            raise ConfigError(f"targets: {file.name} has no aircraft '{name}'{nearest(name, [ALL, 'each', *file.ids])}")
    if named is None:
        one, together = representatives(file), True
    else:
        one = file.ids if "each" in named else tuple(i for i in file.ids if i in named)
        together = ALL in named
    narrow = file.name.startswith(("merge", "chase"))
    candidates: list[Shift] = []
    for target in one:
        candidates += [s for k in wanted if k in ONE and k in (*BY_ONE, *exact) for s in variants(k, target, narrow)]
    if together:
        candidates += [s for k in wanted if k in (*BY_ALL, *exact) for s in variants(k, ALL, narrow)]
    shifts, files, skipped = [BASELINE], [file], []
    least = min(guard_nm, start_separation(file)) - 1e-3  # a scenario that starts closer is held to its own
    for shift in candidates:
        if only is not None and shift.range != only:
            continue
        made = apply(file, shift)
        apart = start_separation(made) if shift.kind.startswith("position_") else math.inf
        if apart < least:
            skipped.append((shift, f"starts {apart:.2f} NM apart, less than {max(least, 0):.2f} NM"))
        elif made == file:
            skipped.append((shift, "changes nothing"))
        else:
            shifts.append(shift)
            files.append(made)
    return Grid(tuple(shifts), tuple(files), tuple(skipped))
