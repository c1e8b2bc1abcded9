"""Scenario files: JSON that people copy and edit, read strictly. Jax-free.

Every error names the file, the place in it and the fix, before anything is compiled.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from regimen.domains.airspace import aircraft
from regimen.domains.airspace.geodesy import Center, haversine
from regimen.errors import ConfigError, nearest

if TYPE_CHECKING:
    from regimen.domains.airspace.state import Scenario

FOLDER = Path(__file__).parent / "scenarios"
NAMES = (
    "head_on",
    "parallel",
    "t_formation",
    "canonical_crossing",
    "converging",
    "chase_2x2",
    "chase_3p1",
    "chase_4all",
    "cross_2x2",
    "cross_3p1",
    "cross_4all",
    "merge_2x2",
    "merge_3p1",
    "merge_4all",
)
MAX_AIRCRAFT = 12
MAX_DELAY = 3  # decisions
SEPARATION = 5.0  # NM, below which separation is lost
SPEEDS = (100.0, 400.0)  # kt CAS, the clamp of commands for all types
REACH = 250.0  # NM from the centre beyond which the flat map is no longer true

JsonObject = dict[str, object]
TOP = ("scenario_name", "seed", "notes", "center", "sim_dt_s", "agents", "wind", "action_delay_steps")
WIND_MODES = ("uniform", "layered")
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
    wind: tuple[WindLayer, ...] = field(default=())  # one layer: the same at every altitude
    action_delay_steps: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(agent.id for agent in self.agents)

    def arrays(self, n: int | None = None) -> Scenario:
        """What an episode starts from, padded to `n` aircraft."""
        from regimen.domains.airspace.state import from_file

        return from_file(self, n)

    def to_dict(self) -> JsonObject:
        """The file's content."""
        agents = [
            {
                "id": a.id,
                "type": a.type,
                "lat": a.lat,
                "lon": a.lon,
                "hdg_deg": a.hdg_deg,
                "spd_kt": a.spd_kt,
                "alt_ft": a.alt_ft,
                "waypoint": {"lat": a.waypoint[0], "lon": a.waypoint[1]},
            }
            for a in self.agents
        ]
        out: JsonObject = {
            "scenario_name": self.name,
            "seed": self.seed,
            "notes": self.notes,
            "center": self.center._asdict(),
            "sim_dt_s": self.sim_dt_s,
            "agents": agents,
        }
        if len(self.wind) == 1:
            out["wind"] = {"mode": "uniform", "dir_deg": self.wind[0].dir_deg, "kt": self.wind[0].kt}
        elif self.wind:
            layers = [{"alt_ft": w.alt_ft, "dir_deg": w.dir_deg, "kt": w.kt} for w in self.wind]
            out["wind"] = {"mode": "layered", "layers": layers}
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
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{where}: cannot be read: {e}") from e
    return parse(data, where)


def parse(data: object, where: str = "scenario") -> ScenarioFile:
    """A file's content, checked."""
    top = _object(data, where, TOP)
    center = _object(_needed(top, "center", where), f"{where}: center", ("lat", "lon", "alt_ft"))
    middle = Center(
        _number(center, "lat", f"{where}: center", -80, 80),
        _number(center, "lon", f"{where}: center", -180, 180),
        _number(center, "alt_ft", f"{where}: center", 0, 50_000, 10_000.0),
    )
    dt = _number(top, "sim_dt_s", where, 0, 10, 1.0)
    if dt != 1.0:
        raise ConfigError(f"{where}: sim_dt_s: {dt:g} is not supported; aircraft move in steps of 1 s")
    rows = _needed(top, "agents", where)
    if not isinstance(rows, list):
        raise ConfigError(f"{where}: agents must be a list of aircraft")
    if not rows:
        raise ConfigError(f"{where}: agents is empty; a scenario has at least one aircraft")
    if len(rows) > MAX_AIRCRAFT:
        raise ConfigError(f"{where}: {len(rows)} aircraft; at most {MAX_AIRCRAFT} are supported")
    agents = tuple(_agent(row, i, middle, where) for i, row in enumerate(rows))
    _apart(agents, where)
    delay = _number(top, "action_delay_steps", where, 0, MAX_DELAY, 0)
    if delay != int(delay):
        raise ConfigError(f"{where}: action_delay_steps: {delay:g} is not a whole number")
    return ScenarioFile(
        name=_text(top, "scenario_name", where, "scenario"),
        center=middle,
        agents=agents,
        seed=int(_number(top, "seed", where, 0, 2**31, 42)),
        notes=_text(top, "notes", where, ""),
        wind=_wind(top.get("wind"), f"{where}: wind"),
        action_delay_steps=int(delay),
    )


def _agent(row: object, index: int, center: Center, where: str) -> Agent:
    name = row.get("id") if isinstance(row, Mapping) else None
    where = f"{where}: agents[{index}]{f' ({name})' if isinstance(name, str) else ''}"
    row = _object(row, where, AGENT)
    if row.get("waypoint") is None:
        raise ConfigError(f'{where}: no waypoint; add "waypoint": {{"lat": ..., "lon": ...}}')
    target = _object(row["waypoint"], f"{where}: waypoint", ("lat", "lon"))
    kind = _text(row, "type", where, "A320")
    aircraft.index_of(kind, f"{where}: type")
    agent = Agent(
        id=_text(row, "id", where, f"A{index + 1}"),
        type=kind,
        lat=_number(row, "lat", where, -85, 85),
        lon=_number(row, "lon", where, -180, 180),
        hdg_deg=_number(row, "hdg_deg", where, -360, 360) % 360,
        spd_kt=_number(row, "spd_kt", where, *SPEEDS),
        alt_ft=_number(row, "alt_ft", where, 0, 50_000, center.alt_ft),
        waypoint=(
            _number(target, "lat", f"{where}: waypoint", -85, 85),
            _number(target, "lon", f"{where}: waypoint", -180, 180),
        ),
    )
    for what, (lat, lon) in (("start", (agent.lat, agent.lon)), ("waypoint", agent.waypoint)):
        away = haversine(center.lat, center.lon, lat, lon)
        if away > REACH:
            raise ConfigError(f"{where}: its {what} is {away:.0f} NM from the centre; at most {REACH:.0f} NM")
    return agent


def _apart(agents: tuple[Agent, ...], where: str) -> None:
    for i, agent in enumerate(agents):
        if agent.id in (a.id for a in agents[:i]):
            raise ConfigError(f"{where}: two aircraft are called '{agent.id}'; give each an id of its own")
    for a, b in itertools.combinations(agents, 2):
        distance = haversine(a.lat, a.lon, b.lat, b.lon)
        if distance < SEPARATION:
            raise ConfigError(
                f"{where}: {a.id} and {b.id} start {distance:.2f} NM apart, within {SEPARATION:g} NM of each other; "
                "move one of them"
            )


def _wind(data: object, where: str) -> tuple[WindLayer, ...]:
    if data is None:
        return ()
    data = _object(data, where, ("mode", "dir_deg", "kt", "layers"))
    mode = _text(data, "mode", where, "uniform")
    if mode not in WIND_MODES:
        raise ConfigError(f"{where}: mode: '{mode}' is not one of uniform, layered{nearest(mode, WIND_MODES)}")
    if mode == "uniform":
        return (WindLayer(0.0, _number(data, "dir_deg", where, -360, 360), _number(data, "kt", where, 0, 150)),)
    rows = data.get("layers")
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f'{where}: layers must be a list of {{"alt_ft", "dir_deg", "kt"}}')
    layers = []
    for i, row in enumerate(rows):
        at = f"{where}: layers[{i}]"
        row = _object(row, at, ("alt_ft", "dir_deg", "kt"))
        alt, direction = _number(row, "alt_ft", at, 0, 60_000), _number(row, "dir_deg", at, -360, 360)
        layers.append(WindLayer(alt, direction, _number(row, "kt", at, 0, 150)))
    return tuple(sorted(layers, key=lambda layer: layer.alt_ft))


def _object(data: object, where: str, names: tuple[str, ...]) -> JsonObject:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: {json.dumps(data)[:40]} is not an object with {', '.join(names)}")
    for key in data:
        if key not in names:
            raise ConfigError(f"{where}: unknown key '{key}'{nearest(key, names)}")
    return data


def _needed(data: JsonObject, key: str, where: str) -> object:
    if key not in data:
        raise ConfigError(f"{where}: no '{key}'; it is needed")
    return data[key]


def _number(data: JsonObject, key: str, where: str, low: float, high: float, default: float | None = None) -> float:
    value = data.get(key, default)
    if value is None:
        raise ConfigError(f"{where}: no '{key}'; it is needed")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{where}: {key}: {json.dumps(value)[:40]} is not a number")
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {key}: {value} is not finite")
    if not low <= value <= high:
        raise ConfigError(f"{where}: {key}: {value:g} is out of range; it must be between {low:g} and {high:g}")
    return float(value)


def _text(data: JsonObject, key: str, where: str, default: str) -> str:
    value = data.get(key, default)
    if not isinstance(value, str) or (not value and default):
        raise ConfigError(f"{where}: {key}: {json.dumps(value)[:40]} is not a text")
    return value
