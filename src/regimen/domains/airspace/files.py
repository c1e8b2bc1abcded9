"""Scenario files: JSON that people copy and edit, read strictly. Jax-free.

Every error names the file, the place in it and the fix, before anything is compiled.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from regimen.domains.airspace import SCENARIOS, aircraft
from regimen.domains.airspace.geodesy import Center, convergence, from_latlon, haversine
from regimen.errors import ConfigError, nearest

if TYPE_CHECKING:
    from regimen.domains.airspace.state import Scenario

FOLDER = Path(__file__).parent / "scenarios"
NAMES = tuple(name for name in SCENARIOS if name not in ("mixed", "random"))
MAX_DELAY = 3  # decisions
SEPARATION = 5.0  # NM, below which separation is lost
SPEEDS = (100.0, 400.0)  # kt CAS, the clamp of commands for all types
REACH = 250.0  # NM from the centre beyond which the flat map is no longer true
TOP = ("scenario_name", "seed", "notes", "center", "sim_dt_s", "agents", "wind", "action_delay_steps")
WIND_MODES = ("uniform", "layered")
POINT = {"lat": (-85, 85), "lon": (-180, 180)}
AGENT = ("id", "type", "lat", "lon", "hdg_deg", "spd_kt", "alt_ft", "waypoint")


@dataclass(frozen=True)
class Agent:
    """One aircraft as it starts, and where it should go."""

    id: str
    type: str
    lat: float
    lon: float
    hdg_deg: float
    spd_kt: float  # CAS
    alt_ft: float
    waypoint: tuple[float, float]  # lat, lon


@dataclass(frozen=True)
class WindLayer:
    """Wind at an altitude: `dir_deg` is where it blows from."""

    alt_ft: float
    dir_deg: float
    kt: float


@dataclass(frozen=True)
class ScenarioFile:
    """A scenario as written in a file."""

    name: str
    center: Center
    agents: tuple[Agent, ...]
    seed: int = 42
    notes: str = ""
    sim_dt_s: float = 1.0
    wind: tuple[WindLayer, ...] = ()  # one layer: the same at every altitude
    action_delay_steps: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(agent.id for agent in self.agents)

    @property
    def start_separation(self) -> float:
        """NM between the two that start closest; infinite for one aircraft."""
        pairs = itertools.combinations(self.agents, 2)
        return min((haversine(a.lat, a.lon, b.lat, b.lon) for a, b in pairs), default=math.inf)

    def arrays(self, n: int | None = None) -> Scenario:
        """What an episode starts from, in numpy, padded to `n` aircraft; absent ones are far away and fly nowhere."""
        from regimen.domains.airspace.state import Scenario

        count = len(self.agents)
        n = count if n is None else n
        if n < count:
            raise ValueError(f"{self.name} has {count} aircraft, more than {n}")

        def padded(values: npt.ArrayLike, fill: float = 0.0, dtype: type = np.float32) -> Any:
            rows = np.array(values, dtype)
            return np.concatenate([rows, np.full((n - count, *rows.shape[1:]), fill, dtype)])

        array: Any = np.array  # which a `Scenario` declares as one of jax
        starts = np.array([from_latlon(self.center, a.lat, a.lon) for a in self.agents])
        return Scenario(
            present=padded([True] * count, False, bool),
            north=padded(starts[:, 0]),
            east=padded(starts[:, 1]),
            heading=padded([a.hdg_deg for a in self.agents]),
            cas=padded([a.spd_kt for a in self.agents], 250.0),
            altitude=padded([a.alt_ft for a in self.agents], 10_000.0),
            kind=padded([aircraft.index_of(a.type) for a in self.agents], 0, np.int32),
            waypoint=padded([from_latlon(self.center, *a.waypoint) for a in self.agents]),
            wind=padded([self.wind_at(a.alt_ft) for a in self.agents]),
            delay=array(self.action_delay_steps, np.int32),
            speed_bounds=array([1.0, 1.0], np.float32),
            convergence=array(convergence(self.center), np.float32),
        )

    def wind_at(self, alt_ft: float) -> tuple[float, float]:
        """Motion of the air (north, east) in kt: between layers by interpolation, beyond them as the nearest."""
        if not self.wind:
            return 0.0, 0.0
        heights = [layer.alt_ft for layer in self.wind]
        north = [-layer.kt * math.cos(math.radians(layer.dir_deg)) for layer in self.wind]
        east = [-layer.kt * math.sin(math.radians(layer.dir_deg)) for layer in self.wind]
        return float(np.interp(alt_ft, heights, north)), float(np.interp(alt_ft, heights, east))

    def to_dict(self) -> dict[str, object]:
        """The file's content."""
        out: dict[str, object] = {
            "scenario_name": self.name,
            "seed": self.seed,
            "notes": self.notes,
            "center": self.center._asdict(),
            "sim_dt_s": self.sim_dt_s,
            "agents": [asdict(a) | {"waypoint": dict(zip(("lat", "lon"), a.waypoint))} for a in self.agents],
        }
        if len(self.wind) == 1:
            out["wind"] = {"mode": "uniform", "dir_deg": self.wind[0].dir_deg, "kt": self.wind[0].kt}
        elif self.wind:
            out["wind"] = {"mode": "layered", "layers": [asdict(layer) for layer in self.wind]}
        if self.action_delay_steps:
            out["action_delay_steps"] = self.action_delay_steps
        return out

    def save(self, path: str | os.PathLike) -> Path:
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        return file


def load(name_or_path: str | os.PathLike) -> ScenarioFile:
    """A built-in scenario by its name, or a JSON file."""
    text = os.fspath(name_or_path)
    if text in NAMES:
        return _read(str(FOLDER / f"{text}.json"), 0)
    file = Path(text).expanduser()
    if not file.is_file():
        if file.suffix or os.sep in text:
            raise ConfigError(f"scenario file '{text}': no such file; `regimen scenario new` writes one")
        raise ConfigError(f"unknown scenario '{text}'{nearest(text, NAMES)} (or a path to a JSON file)")
    return _read(str(file), file.stat().st_mtime_ns)  # an edited file is read again


@functools.lru_cache(maxsize=64)
def _read(path: str, stamp: int) -> ScenarioFile:
    where = f"scenario file '{Path(path).name}'"

    def no_constant(text: str) -> float:
        raise ConfigError(f"{where}: {text} is not a number that a scenario can hold; write a finite one")

    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=no_constant)
    except json.JSONDecodeError as e:
        raise ConfigError(f"{where}: line {e.lineno}, column {e.colno}: not JSON: {e.msg}") from e
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(f"{where}: cannot be read: {e}") from e
    return parse(data, where)


class Fields:
    """An object of a file, whose values are checked as they are read; errors say where it is."""

    def __init__(self, data: object, where: str, names: tuple[str, ...]):
        if not isinstance(data, dict):
            raise ConfigError(f"{where}: {json.dumps(data)[:40]} is not an object with {', '.join(names)}")
        for key in data:
            if key not in names:
                raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, names)}")
        self.data: dict[str, object] = data
        self.where = where

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.where}: {text}")

    def get(self, key: str, default: object = None) -> object:
        """A value; without a default it must be there."""
        value = self.data.get(key, default)
        if value is None:
            raise self.error(f"no '{key}'; it is needed")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(f"{key}: {json.dumps(value)[:40]} is not a number")
        if not -1e300 < value < 1e300:  # of whole numbers, too
            raise self.error(f"{key}: {value} is not finite")
        if not low <= value <= high:
            raise self.error(f"{key}: {value:g} is out of range; it must be between {low:g} and {high:g}")
        return float(value)

    def numbers(self, **ranges: tuple[float, float]) -> tuple[float, ...]:
        return tuple(self.number(key, low, high) for key, (low, high) in ranges.items())

    def text(self, key: str, default: str) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str) or (not value and default):
            raise self.error(f"{key}: {json.dumps(value)[:40]} is not a text")
        return value


def parse(data: object, where: str = "scenario") -> ScenarioFile:
    """A file's content, checked."""
    top = Fields(data, where, TOP)
    middle = Fields(top.get("center"), f"{where}: center", ("lat", "lon", "alt_ft"))
    lat, lon = middle.numbers(lat=(-80, 80), lon=(-180, 180))
    center = Center(lat, lon, middle.number("alt_ft", 0, 50_000, 10_000.0))
    dt = top.number("sim_dt_s", 0, 10, 1.0)
    if dt != 1.0:
        raise top.error(f"sim_dt_s: {dt:g} is not supported; aircraft move in steps of 1 s")
    rows = top.get("agents")
    if not isinstance(rows, list):
        raise top.error("agents must be a list of aircraft")
    if not rows:
        raise top.error("agents is empty; a scenario has at least one aircraft")
    agents = tuple(_agent(row, i, center, where) for i, row in enumerate(rows))
    for a, b in itertools.combinations(agents, 2):
        if a.id == b.id:
            raise top.error(f"two aircraft are called '{a.id}'; give each an id of its own")
    for a, b in itertools.combinations(agents, 2):
        distance = haversine(a.lat, a.lon, b.lat, b.lon)
        if distance < SEPARATION:
            raise top.error(
                f"{a.id} and {b.id} start {distance:.2f} NM apart, within {SEPARATION:g} NM of each other; "
                "move one of them"
            )
    delay = top.number("action_delay_steps", 0, MAX_DELAY, 0)
    if delay != int(delay):
        raise top.error(f"action_delay_steps: {delay:g} is not a whole number")
    return ScenarioFile(
        name=top.text("scenario_name", "scenario"),
        center=center,
        agents=agents,
        seed=int(top.number("seed", 0, 2**31, 42)),
        notes=top.text("notes", ""),
        wind=_wind(top.data.get("wind"), f"{where}: wind"),
        action_delay_steps=int(delay),
    )


def _agent(data: object, index: int, center: Center, where: str) -> Agent:
    name = data.get("id") if isinstance(data, dict) else None
    where = f"{where}: agents[{index}]{f' ({name})' if isinstance(name, str) else ''}"
    row = Fields(data, where, AGENT)
    if row.data.get("waypoint") is None:
        raise row.error('no waypoint; add "waypoint": {"lat": ..., "lon": ...}')
    goal = Fields(row.data["waypoint"], f"{where}: waypoint", ("lat", "lon"))
    kind = row.text("type", "A320")
    aircraft.index_of(kind, f"{where}: type")
    lat, lon = row.numbers(**POINT)
    agent = Agent(
        id=row.text("id", f"A{index + 1}"),
        type=kind,
        lat=lat,
        lon=lon,
        hdg_deg=row.number("hdg_deg", -360, 360) % 360,
        spd_kt=row.number("spd_kt", *SPEEDS),
        alt_ft=row.number("alt_ft", 0, 50_000, center.alt_ft),
        waypoint=(goal.number("lat", *POINT["lat"]), goal.number("lon", *POINT["lon"])),
    )
    for what, point in (("start", (lat, lon)), ("waypoint", agent.waypoint)):
        away = haversine(center.lat, center.lon, *point)
        if away > REACH:
            raise row.error(f"its {what} is {away:.0f} NM from the centre; at most {REACH:.0f} NM")
    return agent


def _wind(data: object, where: str) -> tuple[WindLayer, ...]:
    if data is None:
        return ()
    wind = Fields(data, where, ("mode", "dir_deg", "kt", "layers"))
    mode = wind.text("mode", "uniform")
    if mode not in WIND_MODES:
        raise wind.error(f"mode: '{mode}' is not one of uniform, layered{nearest(mode, WIND_MODES)}")
    if mode == "uniform":
        return (WindLayer(0.0, *wind.numbers(dir_deg=(-360, 360), kt=(0, 150))),)
    rows = wind.data.get("layers")
    if not isinstance(rows, list) or not rows:
        raise wind.error('layers must be a list of {"alt_ft", "dir_deg", "kt"}')
    ranges = {"alt_ft": (0, 60_000), "dir_deg": (-360, 360), "kt": (0, 150)}
    read = [Fields(row, f"{where}: layers[{i}]", tuple(ranges)).numbers(**ranges) for i, row in enumerate(rows)]
    return tuple(sorted((WindLayer(*row) for row in read), key=lambda layer: layer.alt_ft))
