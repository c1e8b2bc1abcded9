"""Trajectories as CSV: one row for each aircraft at each decision until it reaches its waypoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regimen.domains.airspace.analysis import detector as detection
from regimen.domains.airspace.analysis.detector import Detector
from regimen.domains.airspace.analysis.flight import Flights
from regimen.domains.airspace.analysis.measure import separation, tracks_of
from regimen.domains.airspace.files import NAMES, Center, ScenarioFile, load
from regimen.domains.airspace.geodesy import to_latlon
from regimen.files.storage import cells_of, write_atomic
from regimen.reports.table import Table

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

REWARDS = ("act_cost", "progress", "drift", "time", "violate_entry", "violate_step", "reach", "terminal")


class Place(NamedTuple):
    """What the columns need of a scenario: who flies, and where its centre is."""

    ids: tuple[str, ...]
    center: Center


def place_of(env: Airspace) -> ScenarioFile | Place:
    """Return where an environment's own scenario is; drawn ones are put where most of the built-in ones are."""
    return env.file or Place(env.agents, load(NAMES[-1]).center)


def episode_alarms(flights: Flights, c: int, detector: Detector) -> tuple[detection.Alarms, np.ndarray]:
    """The alarms of one episode [..., T] (numpy), and its losses of separation by unit [U, T] after each decision."""
    one = flights.episode(c)
    tracks = tracks_of(one)
    alarms = detection.alarms(tracks, detector)
    return detection.Alarms(*(x[..., 0, :] for x in alarms)), separation(one, tracks, detector)[1][:, 0]


def latlon_of(center: Center, positions: np.ndarray) -> np.ndarray:
    """Positions (north, east) [..., 2] in NM as latitude and longitude in degrees."""
    return np.array([to_latlon(center, *map(float, x)) for x in positions]).reshape(-1, 2)


def trajectory(
    flights: Flights,
    c: int,
    scenario_file: ScenarioFile | Place,
    detector: Detector | None = None,
    *,
    components: Sequence[str] = (),
    episode: int | None = None,
    alerts: bool = True,
) -> dict[str, np.ndarray]:
    """Columns of episode `c`. Row t of an aircraft is its state after t decisions and what the decision that led there
    did and earned; detector columns are of the decision taken at the row, and empty in an aircraft's last one.

    `components` names the reward components of the flights; the columns of those that are not there are empty. Without
    a detector, or without `alerts`, its columns are absent.
    """
    rules, ids = detector or Detector(), scenario_file.ids
    one, n = flights.episode(c), len(ids)
    s, flying = one.single(n)
    t, i = np.nonzero(flying)  # by time, then aircraft
    row = {name: x[t, i] for name, x in s.items()}
    position = np.stack([s["north"], s["east"]], -1)
    latlon = latlon_of(scenario_file.center, position[t, i])
    goals = latlon_of(scenario_file.center, np.asarray(one.scenario.waypoint)[0, :n])
    apart = np.linalg.norm(position[:, :, None] - position[:, None], axis=-1)  # [T, N, N]
    counts = s["counts"]
    counted = np.concatenate([counts[:1], counts[:-1]])  # others had to stay away from it when it came to this row
    other = counted[:, :, None] & counted[:, None] & ~np.eye(n, dtype=bool)
    gaps = np.where(other, apart, np.inf)
    least = np.where(t > 0, row["min_sep"], gaps.min(-1, initial=np.inf)[t, i])
    lost = np.triu(other & (apart < rules.separation_nm)).sum((1, 2))

    out: dict[str, np.ndarray] = {
        "episode_id": np.full(len(t), c if episode is None else episode),
        "step_idx": t,
        "sim_time_s": t * rules.period_s,
        "agent_id": np.array(ids)[i],
        "lat_deg": latlon[:, 0],
        "lon_deg": latlon[:, 1],
        "alt_ft": np.asarray(one.scenario.altitude)[0, i],
        "hdg_deg": row["heading"],
        "tas_kt": row["tas"],
        "cas_kt": row["cas"],
        "ground_speed_kt": np.linalg.norm(row["ground"], axis=-1),
        "track_deg": np.degrees(np.arctan2(row["ground"][:, 1], row["ground"][:, 0])) % 360,
        "action_hdg_delta_deg": row["command"][:, 0],
        "action_spd_delta_kt": row["command"][:, 1],
    }
    empty = np.full(len(t), np.nan)
    parts = {name: row["parts"][:, k] for k, name in enumerate(components)}
    alone = np.sum([v for k, v in parts.items() if k != "team"], axis=0) if parts else empty
    out |= {
        "reward": alone + parts.get("team", 0.0),
        "min_separation_nm": least,
        "conflict_flag": least < rules.separation_nm,
        "collision_flag": least < rules.collision_nm,
        "wp_dist_nm": row["waypoint_distance"],
        "wp_lat_deg": goals[i, 0],
        "wp_lon_deg": goals[i, 1],
        "waypoint_reached": row["reached"],
        "waypoint_hits": row["reached"].astype(int),
        "conflict_pairs_count": lost[t],
    }
    for j, name in enumerate(ids):
        out[f"dist_to_{name}_nm"] = np.where((i != j) & counted[t, j], apart[t, i, j], np.nan)
    closest = gaps.min((1, 2), initial=np.inf)
    edge = rules.separation_nm
    phi = np.where(closest <= edge, 0.5 * closest / edge, 0.5 + 0.5 * np.minimum((closest - edge) / edge, 1))
    out |= {f"reward_{name}": parts.get(name, empty) for name in REWARDS}
    out |= {
        "reward_total": alone,  # before the team's share
        "reward_team": parts.get("team", empty),
        "team_phi": phi[t],
        "team_dphi": np.where(t > 0, phi[t] - phi[np.maximum(t - 1, 0)], 0.0),
    }
    if detector is not None and alerts:
        out |= detection_columns(flights, c, detector, t, i)
    return out


def detection_columns(
    flights: Flights, c: int, detector: Detector, t: np.ndarray, i: np.ndarray
) -> dict[str, np.ndarray]:
    """Columns of the detector in rows (t, i) of an episode; NaN where the aircraft takes no decision."""
    alarms, _ = episode_alarms(flights, c, detector)
    conflict = detection.of_aircraft(alarms.conflict, flights.scenario.present.shape[1])[i, t]
    alert, ungated = alarms.alert[:, i, t]
    nearest, soon = (np.where(np.isfinite(x), x, np.nan)[i, t] for x in (alarms.threat_nm, alarms.threat_s))
    columns = {
        "gt_conflict": conflict,
        "predicted_alert": alert,
        "predicted_alert_ungated": ungated,
        "tp": conflict & alert,
        "fp": ~conflict & alert,
        "fn": conflict & ~alert,
        "tn": ~conflict & ~alert,
        "threat_dcpa_nm": nearest,
        "threat_tcpa_s": soon,
    }
    decides = flights.episode(c).flying[t, 0, i]
    return {name: np.where(decides, x.astype(np.float64), np.nan) for name, x in columns.items()}


def rules_of(env: Airspace) -> Detector:
    """What the environment itself calls a loss of separation and a collision."""
    return Detector(separation_nm=float(env.separation_nm), collision_nm=float(env.collision_nm))


def write_evaluation(path: Path, env: Airspace, flights: Flights, alerts: bool) -> Path:
    """Write the episodes that an evaluation flew as one CSV; with the detector's columns if `alerts`."""
    place, names, rules = place_of(env), env.reward_components, rules_of(env)
    tables = [trajectory(flights, c, place, rules, components=names, alerts=alerts) for c in range(len(flights.length))]
    return write_columns(path, {name: np.concatenate([t[name] for t in tables]) for name in tables[0]})


def write_trajectory(
    path: Path,
    flights: Flights,
    c: int,
    scenario_file: ScenarioFile | Place,
    detector: Detector | None = None,
    *,
    components: Sequence[str] = (),
    episode: int | None = None,
) -> Path:
    """Write episode `c` as CSV; the columns are documented in docs/airspace_safety.md."""
    columns = trajectory(flights, c, scenario_file, detector or Detector(), components=components, episode=episode)
    return write_columns(Path(path), columns)


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> Path:
    """Write a CSV file of columns of equal length; what is not a number is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, Table(list(columns), list(zip(*map(_cells, columns.values())))).csv(), sync=False)
    return path


def _cells(values: np.ndarray) -> list[str]:
    """A column as text, numbers to six digits after the point and whole ones without it."""
    if values.dtype.kind == "f":
        return [text.removesuffix(".0") for text in cells_of(np.round(values.astype(np.float64), 6) + 0.0)]
    return values.tolist() if values.dtype.kind == "U" else cells_of(values)
