"""The fourteen scenarios as formulas: `make("head_on", approach_nm=12)` is a scenario, which `save` writes. Jax-free.

    python -m regimen.domains.airspace.library        # write scenarios/*.json again

Offsets are (north, east) in NM from the centre, at 60 NM to a degree.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from regimen.config.validation import coerce
from regimen.domains.airspace import aircraft, files
from regimen.domains.airspace.files import NAMES, Agent, ScenarioFile
from regimen.domains.airspace.geodesy import Center
from regimen.errors import ConfigError, nearest

SEA, LAND = Center(52.0, 4.0), Center(51.0, 13.7)
NUDGE, NUDGES = 1.06, 10  # starts that are too close are moved outwards by this factor, so often at most
START = 5.1  # NM between starts
Offset = tuple[float, float]


class Route(NamedTuple):
    """Where an aircraft starts, in which heading, and where to."""

    start: Offset
    goal: Offset
    heading: float


def north(start: Offset, goal: Offset) -> Route:
    return Route(start, goal, 0.0)


def inbound(heading: float, goal: Offset, distance: float) -> Route:
    """Flies straight at `goal` from `distance` NM."""
    h = math.radians(heading)
    return Route((goal[0] - distance * math.cos(h), goal[1] - distance * math.sin(h)), goal, heading)


def through(middle: Offset, heading: float, radius: float) -> Route:
    """A route from one side of a circle to the other."""
    h = math.radians(heading)
    away = radius * round(math.cos(h), 12), radius * round(math.sin(h), 12)
    return Route((middle[0] - away[0], middle[1] - away[1]), (middle[0] + away[0], middle[1] + away[1]), heading)


def head_on(approach_nm: float = 18.0) -> list[Route]:
    """Two aircraft towards each other."""
    return [through((0, 0), 0, approach_nm), through((0, 0), 180, approach_nm)]


def parallel(track_x_nm: float = 0.0, gaps_nm: float = 8.0, south_nm: float = 18.0) -> list[Route]:
    """Three in trail to one waypoint."""
    return [north((-south_nm + i * gaps_nm, track_x_nm), (12.0, track_x_nm)) for i in range(3)]


def t_formation(arm_nm: float = 20.0, stem_nm: float = 16.0, stem_x_nm: float = -6.0) -> list[Route]:
    """One along the arm of a T, two up its stem."""
    x, s = stem_x_nm, stem_nm
    return [through((0, 0), 90, arm_nm), north((-s, x), (s, x)), north((-0.6 * s, x), (0.8 * s, x))]


def canonical_crossing(radius_nm: float = 12.5) -> list[Route]:
    """Four across one point from the four winds."""
    return [through((0, 0), heading, radius_nm) for heading in (0, 90, 180, 270)]


def converging(inbound_nm: float = 12.0) -> list[Route]:
    """Four to waypoints close to each other."""
    goals = ((2.6, 2.2), (-2.4, 2.5), (2.3, -2.6), (-2.5, -2.3))
    flights = []
    for goal, bearing in zip(goals, (20, 140, 260, 320)):
        b = math.radians(bearing)
        lat_0, lat_goal = math.radians(SEA.lat), math.radians(SEA.lat + goal[0] / 60)
        start = (
            goal[0] - inbound_nm * math.cos(b),
            goal[1] - inbound_nm * math.sin(b) * math.cos(lat_0) / math.cos(lat_goal),
        )
        lat = math.radians(SEA.lat + start[0] / 60)
        east = (goal[1] - start[1]) * math.cos(lat) / math.cos(lat_0)
        heading = math.degrees(math.atan2(east, goal[0] - start[0])) % 360
        flights.append(Route(start, goal, round(heading, 3)))
    return flights


def chase_2x2(gap_nm: float = 6.0, south_nm: float = 18.0, lane_nm: float = 8.0) -> list[Route]:
    """Two lanes of two in trail."""
    return [north((-south_nm + i * gap_nm, x), (12.0, x)) for x in (-lane_nm, lane_nm) for i in range(2)]


def chase_3p1(gap_nm: float = 6.0, south_nm: float = 18.0, far_nm: float = 15.0) -> list[Route]:
    """Three in trail and one far away."""
    trail = [north((-south_nm + i * gap_nm, 0.0), (12.0, 0.0)) for i in range(3)]
    return [*trail, north((-south_nm, far_nm), (12.0, far_nm))]


def chase_4all(gap_nm: float = 6.0, south_nm: float = 18.0) -> list[Route]:
    """Four in trail."""
    return [north((-south_nm + i * gap_nm, 0.0), (12.0, 0.0)) for i in range(4)]


def cross_2x2(radius_nm: float = 15.0, sep_nm: float = 12.0) -> list[Route]:
    """Two crossings side by side."""
    return [through((0.0, x), heading, radius_nm) for x in (-sep_nm, sep_nm) for heading in (0, 90)]


def cross_3p1(radius_nm: float = 15.0, far_nm: float = 18.0) -> list[Route]:
    """Three through one point and one far away."""
    crossing = [through((0, 0), heading, radius_nm) for heading in (0, 90, 270)]
    return [*crossing, north((-radius_nm, far_nm), (12.0, far_nm))]


def cross_4all(radius_nm: float = 15.0) -> list[Route]:
    """Four across one point."""
    return canonical_crossing(radius_nm)


def merge_2x2(radius_nm: float = 50.0, sep_nm: float = 15.0) -> list[Route]:
    """Two pairs that merge, one from the south and one from the north."""
    south = [inbound(heading, (0.0, -sep_nm), radius_nm) for heading in (352.5, 7.5)]
    return [*south, *(inbound(heading, (0.0, sep_nm), radius_nm) for heading in (172.5, 187.5))]


def merge_3p1(radius_nm: float = 50.0, far_nm: float = 25.0) -> list[Route]:
    """Three that merge and one far away."""
    three = [inbound(heading, (0.0, 0.0), radius_nm) for heading in (345, 0, 15)]
    return [*three, inbound(0, (5.0, far_nm), radius_nm)]


def merge_4all(radius_nm: float = 50.0) -> list[Route]:
    """Four that merge."""
    return [inbound(heading, (0.0, 0.0), radius_nm) for heading in (340, 355, 5, 20)]


FAMILIES: dict[str, Callable[..., list[Route]]] = {name: globals()[name] for name in NAMES}
COMMON: dict[str, object] = {"speed_kt": 250.0, "alt_ft": 10_000.0, "type": "A320", "lat": None, "lon": None}


def parameters(family: str) -> dict[str, Any]:
    """What `make` takes for a family, with defaults."""
    if family not in FAMILIES:
        raise ConfigError(f"unknown scenario family '{family}'{nearest(family, FAMILIES)}")
    defaults = {name: p.default for name, p in inspect.signature(FAMILIES[family]).parameters.items()}
    center = LAND if family.startswith(("chase", "cross", "merge")) else SEA
    return defaults | COMMON | {"lat": center.lat, "lon": center.lon}


def make(family: str, **params: float | str) -> ScenarioFile:
    """A scenario of a family; its parameters are distances in NM, and `speed_kt`, `alt_ft`, `type`, `lat`, `lon`."""
    values = parameters(family)
    for key, value in params.items():
        if key not in values:
            raise ConfigError(f"{family} has no parameter '{key}'{nearest(key, values)}")
        values[key] = coerce(value, str if key == "type" else float, key)
    kind, speed, altitude = (values[key] for key in ("type", "speed_kt", "alt_ft"))
    aircraft.index_of(kind)
    routes = FAMILIES[family](**{k: values[k] for k in values if k not in COMMON})
    center = Center(values["lat"], values["lon"], altitude)
    first = 0 if family == "canonical_crossing" else 1
    agents = tuple(
        Agent(f"A{i + first}", kind, *at(center, r.start), r.heading % 360, speed, altitude, at(center, r.goal))
        for i, r in enumerate(spread(routes))
    )
    notes = (FAMILIES[family].__doc__ or "").strip()
    content = ScenarioFile(family, center, agents, notes=notes).to_dict()
    return replace(files.parse(content, family), name=family)  # the same checks as for a file


def at(center: Center, offset: Offset) -> tuple[float, float]:
    lat = center.lat + offset[0] / 60
    lon = center.lon + offset[1] / (60 * math.cos(math.radians(center.lat)))
    return round(lat, 8), round(lon, 8)


def spread(routes: list[Route]) -> list[Route]:
    """Starts moved outwards until all are `START` apart; those of the defaults are."""
    for _ in range(NUDGES):
        starts = [f.start for f in routes]
        if all(math.dist(a, b) >= START for i, a in enumerate(starts) for b in starts[:i]):
            break
        routes = [f._replace(start=(f.start[0] * NUDGE, f.start[1] * NUDGE)) for f in routes]
    return routes


def listing(family: str | None = None) -> list[str]:
    """The families with their parameters, or one's, as lines."""
    if family is not None:
        return [f"{key:<14} {value}" for key, value in parameters(family).items()]
    lines = []
    for name, function in FAMILIES.items():
        values = ", ".join(f"{k}={v:g}" for k, v in parameters(name).items() if k not in COMMON)
        lines.append(f"{name:<20} {(function.__doc__ or '').strip():<62} {values}")
    return [*lines, f"{'all of them':<20} {', '.join(COMMON)}"]


def main() -> None:
    for name in NAMES:
        print(make(name).save(files.FOLDER / f"{name}.json"))


if __name__ == "__main__":
    main()
