"""Trajectories as CSV: one row for each aircraft at each decision until it reaches its waypoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regimen.domains.airspace.analysis import detector as detection
from regimen.domains.airspace.analysis.detector import Detector
from regimen.domains.airspace.analysis.flight import Flight, Rows, flight_of
from regimen.domains.airspace.files import NAMES, Center, ScenarioFile, load
from regimen.domains.airspace.geodesy import to_latlon
from regimen.files.storage import cells_of, csv_line, write_atomic

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

COLLISION_NM = 3.0  # logged only
DETECTED = ("gt_conflict", "predicted_alert", "predicted_alert_ungated", "tp", "fp", "fn", "tn")
DETECTED += ("threat_dcpa_nm", "threat_tcpa_s")
REWARDS = ("act_cost", "progress", "drift", "time", "violate_entry", "violate_step", "reach", "terminal")


def episode_signals(flight: Flight, c: int, detector: Detector) -> tuple[detection.Signals, np.ndarray]:
    """The signals of one episode [..., T] (numpy), and its losses of separation by unit [U, T] after each decision."""
    one = flight.episode(c)

    def by_aircraft(x: np.ndarray) -> np.ndarray:  # [T, N] -> [N, T]
        return np.ascontiguousarray(x.T)

    def decided(x: np.ndarray, last: float = 0.0) -> np.ndarray:
        return np.concatenate([x[:, 1:], np.full_like(x[:, :1], last)], 1)

    tracks = detection.Tracks(
        north=by_aircraft(one.north[0]),
        east=by_aircraft(one.east[0]),
        v_north=by_aircraft(one.ground[0, ..., 0]),
        v_east=by_aircraft(one.ground[0, ..., 1]),
        turn=decided(by_aircraft(one.command[0, ..., 0])),
        speed=decided(by_aircraft(one.command[0, ..., 1])),
        flying=by_aircraft(one.active[0]),
        goal_north=one.waypoint[0, :, :1],
        goal_east=one.waypoint[0, :, 1:],
    )
    signals = detection.signals(tracks, detector)
    own = by_aircraft(one.counts[0]) & (decided(by_aircraft(one.min_sep[0]), np.inf) < detector.separation_nm)
    los = detection.units(own, detection.closest_within(tracks) < detector.separation_nm)
    return signals, los


def trajectory(
    flight: Flight,
    c: int,
    scenario_file: ScenarioFile | Place,
    detector: Detector | None = None,
    *,
    components: tuple[str, ...] = (),
    episode: int | None = None,
) -> dict[str, np.ndarray]:
    """Columns of episode `c`. Row t of an aircraft is its state after t decisions and what the decision that led there
    did and earned; detector columns are of the decision taken at the row, and empty in an aircraft's last one.

    `components` names the reward components of `flight.parts`; the columns of those that are not there are empty.
    """
    detector = detector or Detector()
    one, ids = flight.episode(c), scenario_file.ids
    n = len(ids)
    reached = one.reached[0][:, :n]
    before = np.concatenate([np.zeros_like(reached[:1]), reached[:-1]])
    t, i = np.nonzero(one.present[0, :n] & ~before)  # by time, then aircraft
    pick = (t, i)
    north, east = one.north[0][pick], one.east[0][pick]
    latlon = np.array([to_latlon(scenario_file.center, float(a), float(b)) for a, b in zip(north, east)]).reshape(-1, 2)
    goals = np.array([to_latlon(scenario_file.center, *map(float, w)) for w in one.waypoint[0, :n]]).reshape(-1, 2)
    position = np.stack([one.north[0], one.east[0]], -1)[:, :n]
    apart = np.linalg.norm(position[:, :, None] - position[:, None], axis=-1)  # [T, N, N]
    counts = one.counts[0][:, :n]
    counted = np.concatenate([counts[:1], counts[:-1]])  # others had to stay away from it when it came to this row
    other = counted[:, :, None] & counted[:, None] & ~np.eye(n, dtype=bool)
    separation = np.where(t > 0, one.min_sep[0][pick], np.where(other, apart, np.inf).min(-1, initial=np.inf)[pick])
    lost = np.triu(other & (apart < detector.separation_nm)).sum((1, 2))

    out: dict[str, np.ndarray] = {
        "episode_id": np.full(len(t), c if episode is None else episode),
        "step_idx": t,
        "sim_time_s": t * detector.period_s,
        "agent_id": np.array(ids)[i],
        "lat_deg": latlon[:, 0],
        "lon_deg": latlon[:, 1],
        "alt_ft": one.altitude[0][i],
        "hdg_deg": one.heading[0][pick],
        "tas_kt": one.tas[0][pick],
        "cas_kt": one.cas[0][pick],
        "ground_speed_kt": np.linalg.norm(one.ground[0][pick], axis=-1),
        "track_deg": np.degrees(np.arctan2(one.ground[0][pick][:, 1], one.ground[0][pick][:, 0])) % 360,
        "action_hdg_delta_deg": one.command[0][pick][:, 0],
        "action_spd_delta_kt": one.command[0][pick][:, 1],
    }
    parts = {name: one.parts[0][(*pick, k)] for k, name in enumerate(components)}
    own = np.sum([v for k, v in parts.items() if k != "team"], axis=0) if parts else np.full(len(t), np.nan)
    out["reward"] = own + parts.get("team", 0.0)
    out |= {
        "min_separation_nm": separation,
        "conflict_flag": separation < detector.separation_nm,
        "collision_flag": separation < COLLISION_NM,
        "wp_dist_nm": one.waypoint_distance[0][pick],
        "wp_lat_deg": goals[i, 0],
        "wp_lon_deg": goals[i, 1],
        "waypoint_reached": reached[pick],
        "waypoint_hits": reached[pick].astype(int),
        "conflict_pairs_count": lost[t],
    }
    for j, name in enumerate(ids):
        out[f"dist_to_{name}_nm"] = np.where((i != j) & counted[t, j], apart[t, i, j], np.nan)
    empty = np.full(len(t), np.nan)
    out |= {f"reward_{name}": parts.get(name, empty) for name in REWARDS}
    out["reward_total"] = own  # before the team's share
    out["reward_team"] = parts.get("team", empty)
    closest = np.where(other, apart, np.inf).min((1, 2), initial=np.inf)
    phi = np.where(closest <= 5, 0.1 * closest, 0.5 + 0.5 * np.minimum((closest - 5) / 5, 1))
    out["team_phi"] = phi[t]
    out["team_dphi"] = np.where(t > 0, phi[t] - phi[np.maximum(t - 1, 0)], 0.0)

    signals, _ = episode_signals(flight, c, detector)
    decides = one.active[0][pick]
    there = (i, t)
    conflict = detection.of_aircraft(signals.conflict, one.present.shape[1])[there]
    alert, free = signals.alert[0][there], signals.alert[1][there]
    nearest, soon = signals.threat_nm[there], signals.threat_s[there]

    def seen(x: np.ndarray) -> np.ndarray:
        return np.where(decides, x.astype(np.float64), np.nan)

    out |= {
        "gt_conflict": seen(conflict),
        "predicted_alert": seen(alert),
        "predicted_alert_ungated": seen(free),
        "tp": seen(conflict & alert),
        "fp": seen(~conflict & alert),
        "fn": seen(conflict & ~alert),
        "tn": seen(~conflict & ~alert),
        "threat_dcpa_nm": seen(np.where(np.isfinite(nearest), nearest, np.nan)),
        "threat_tcpa_s": seen(np.where(np.isfinite(soon), soon, np.nan)),
    }
    return out


class Place(NamedTuple):
    """What the columns need of a scenario: who flies, and where its centre is."""

    ids: tuple[str, ...]
    center: Center


def place_of(env: Airspace) -> ScenarioFile | Place:
    """Of an environment's own scenario; drawn ones are put where most of the built-in ones are."""
    return env.file or Place(env.agents, load(NAMES[-1]).center)


def write_evaluation(path: Path, env: Airspace, rows: Rows, detector: Detector | None) -> Path:
    """The episodes that an evaluation flew, as one CSV; with the detector's columns if one is given."""
    flight = flight_of(rows, np.arange(len(rows.length)))
    where, names = place_of(env), tuple(env.reward_components)
    tables = [trajectory(flight, c, where, detector, components=names) for c in range(len(rows.length))]
    shown = [name for name in tables[0] if detector is not None or name not in DETECTED]
    return write_columns(path, {name: np.concatenate([t[name] for t in tables]) for name in shown})


def write_trajectory(
    path: Path,
    flight: Flight,
    c: int,
    scenario_file: ScenarioFile | Place,
    detector: Detector | None = None,
    *,
    components: tuple[str, ...] = (),
    episode: int | None = None,
) -> Path:
    """Write episode `c` as CSV; the columns are documented in docs/airspace_safety.md."""
    return write_columns(
        Path(path), trajectory(flight, c, scenario_file, detector, components=components, episode=episode)
    )


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> Path:
    """A CSV file of columns of equal length; what is not a number is empty."""
    cells = [_cells(values) for values in columns.values()]
    text = csv_line(columns) + "".join(",".join(row) + "\n" for row in zip(*cells))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text, sync=False)
    return path


def _cells(values: np.ndarray) -> list[str]:
    if values.dtype.kind in "US" or values.dtype == object:
        quoted = {v: csv_line([v])[:-1] if v else "" for v in set(map(str, values))}
        return [quoted[str(v)] for v in values]
    if values.dtype.kind == "f":
        values = np.round(values.astype(np.float64), 6)
        whole = np.isfinite(values) & (values == np.rint(values)) & (np.abs(values) < 1e15)
        if whole.any():
            text = cells_of(values)
            for k in np.flatnonzero(whole):
                text[k] = str(int(values[k]))
            return text
    return cells_of(values)
