"""Numbers of every episode, computed where it was flown: only sums and flags leave the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.airspace.analysis import detector as detection
from regimen.domains.airspace.analysis.detector import GATES, Detector
from regimen.domains.airspace.analysis.events import Counts, match
from regimen.domains.airspace.analysis.flight import Pilot, Rows, chunks, flying_rows
from regimen.domains.airspace.analysis.risk import encounter_sums
from regimen.domains.airspace.scenario import Scenario
from regimen.types import Array

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

CAPTURE_NM = 1.0  # an aircraft has reached its waypoint within this distance
TURN_FULL, SPEED_FULL = 18.0, 10.0  # deg and kt of a full command


class Numbers(NamedTuple):
    """Of a chunk of episodes, on the device."""

    episode: dict[str, Array]  # [C]
    aircraft: dict[str, Array]  # [C, N]
    flags: Array  # [4, U, C, T] conflict, gated alert, ungated alert, loss of separation; by unit


@dataclass
class Measures:
    """Of C episodes, in numpy. Units U: the scene, each aircraft, each pair."""

    episode: dict[str, np.ndarray]  # [C]
    aircraft: dict[str, np.ndarray]  # [C, N]
    present: np.ndarray  # [C, N]
    counts: dict[str, Counts]  # gate -> [C, U]

    def __len__(self) -> int:
        return len(self.present)

    def take(self, index: slice | np.ndarray) -> Measures:
        """Some of the episodes."""
        return Measures(
            {k: v[index] for k, v in self.episode.items()},
            {k: v[index] for k, v in self.aircraft.items()},
            self.present[index],
            {k: v[index] for k, v in self.counts.items()},
        )

    @staticmethod
    def concatenate(parts: list[Measures]) -> Measures:
        if len(parts) == 1:
            return parts[0]
        return Measures(
            {k: np.concatenate([p.episode[k] for p in parts]) for k in parts[0].episode},
            {k: np.concatenate([p.aircraft[k] for p in parts]) for k in parts[0].aircraft},
            np.concatenate([p.present for p in parts]),
            {k: Counts.concatenate([p.counts[k] for p in parts]) for k in parts[0].counts},
        )


def last_axis(x: Array) -> Array:
    """Rows [T, C, N] as [N, C, T]: aircraft first and time last, as the detector reads them."""
    return jnp.moveaxis(x, (0, 2), (2, 0))


def decided(x: Array) -> Array:
    """Values stored with the row a decision led to, moved to the row where it was taken; time is the last axis."""
    return jnp.concatenate([x[..., 1:], jnp.zeros_like(x[..., :1])], -1)


def tracks_of(rows: Rows) -> detection.Tracks:
    """What was flown, as the detector reads it."""
    s, goal = rows.state, rows.scenario.waypoint
    return detection.Tracks(
        north=last_axis(s["north"]),
        east=last_axis(s["east"]),
        v_north=last_axis(s["ground"][..., 0]),
        v_east=last_axis(s["ground"][..., 1]),
        turn=decided(last_axis(s["command"][..., 0])),
        speed=decided(last_axis(s["command"][..., 1])),
        flying=last_axis(flying_rows(rows)),
        goal_north=goal[..., 0].T[..., None],
        goal_east=goal[..., 1].T[..., None],
    )


@functools.partial(jax.jit, static_argnames=("detector",))
def numbers(rows: Rows, detector: Detector) -> Numbers:
    """Everything about each episode that a table may want."""
    s, scenario, n = rows.state, rows.scenario, rows.scenario.present.shape[-1]
    tracks = tracks_of(rows)
    flying = tracks.flying  # [N, C, T]
    signals = detection.signals(tracks, detector)
    truth = detection.units(detection.of_aircraft(signals.conflict, n), signals.conflict)
    alerts = [detection.units(signals.alert[g], signals.pair_alert[g]) for g in range(len(GATES))]
    going = jnp.arange(flying.shape[-1]) < rows.length[:, None]  # [C, T]
    counts = going & last_axis(s["counts"])
    own = jnp.where(counts, decided(last_axis(s["min_sep"])), jnp.inf)  # [N, C, T] within the decision
    pair = detection.closest_within(tracks) < detector.separation_nm
    los = detection.units(own < detector.separation_nm, pair)
    start = jnp.where(scenario.present, s["min_sep"][0], jnp.inf).min(-1)  # [C] at the start
    start = jnp.where(scenario.present.sum(-1) > 1, start, jnp.inf)
    closest = jnp.minimum(own.min((0, 2)), start)
    closest = jnp.where(scenario.present.sum(-1) > 1, closest, jnp.inf)
    lost = los[0]  # [C, T]

    # the way flown, against the straight one; where a finished aircraft flies on, until its waypoint
    reached = s["reached"].any(0) & scenario.present  # [C, N]
    at = jnp.where(reached, jnp.argmax(s["reached"], 0), rows.length[:, None])[None]
    end = jnp.take_along_axis(s["waypoint_distance"], at, 0)[0]
    flown = jnp.take_along_axis(s["flown"], at, 0)[0] - s["flown"][0]  # compat has flown before the first row
    to = scenario.waypoint - jnp.stack([s["north"][0], s["east"][0]], -1)
    direct = jnp.linalg.norm(to, axis=-1)
    head = (scenario.wind * to).sum(-1) / jnp.maximum(direct, 1e-6)
    side2 = (scenario.wind**2).sum(-1) - head * head
    airspeed2 = ((s["ground"][0] - scenario.wind) ** 2).sum(-1)
    speed = head + jnp.sqrt(jnp.maximum(airspeed2 - side2, 0.0))  # over the ground on the straight way, at first speed

    # commands
    turn, change = (jnp.where(flying, x, 0.0) for x in (tracks.turn, tracks.speed))
    following = flying & detection.earlier(flying, 1)
    before = detection.earlier(turn, 1)
    flip = following & (jnp.abs(turn) >= 2) & (jnp.abs(before) >= 2) & (turn * before < 0)
    varied = jnp.abs(turn - before) / TURN_FULL + jnp.abs(change - detection.earlier(change, 1)) / SPEED_FULL
    began = signals.manoeuvre & ~detection.earlier(signals.manoeuvre, 1)
    gated = signals.alert[0]

    aircraft = {
        "decisions": flying.sum(-1),
        "min_separation_nm": own.min(-1),
        "commands": ((turn != 0) | (change != 0)).sum(-1),
        "manoeuvres": began.sum(-1),
        "alert_decisions": gated.sum(-1),
        "alert_decisions_ungated": signals.alert[1].sum(-1),
        "flips": flip.sum(-1),
        "follows": following.sum(-1),
        "variation": jnp.where(following, 0.5 * varied, 0.0).sum(-1),
        "alert_threat_nm": jnp.where(gated, jnp.minimum(signals.threat_nm, 1e3), 0.0).sum(-1),
        "alert_threat_s": jnp.where(gated, jnp.minimum(signals.threat_s, 1e3), 0.0).sum(-1),
    }
    aircraft = {k: v.T for k, v in aircraft.items()} | {
        "reached": reached,
        "flown_nm": flown,
        "direct_nm": direct,
        "remaining_nm": end,
        "direct_s": jnp.maximum(direct - CAPTURE_NM, 0.0) / jnp.maximum(speed, 1.0) * 3600.0,
    }
    episode = {
        "length": rows.length,
        "start_separation_nm": start,
        "min_separation_nm": closest,
        "los": closest < detector.separation_nm,
        "los_decisions": lost.sum(-1),
        "los_events": (lost & ~detection.earlier(lost, 1)).sum(-1),
        "first_los": jnp.where(lost.any(-1), jnp.argmax(lost, -1), -1),
        "conflict_decisions": truth[0].sum(-1),
        "alert_decisions": alerts[0][0].sum(-1),
        "alert_decisions_ungated": alerts[1][0].sum(-1),
        "all_reached": (reached | ~scenario.present).all(-1),
    } | encounter_sums(tracks, detector.period_s)
    return Numbers(episode, aircraft, jnp.stack([truth, *alerts, los]))


def measure(rows: Rows, count: int, detector: Detector) -> Measures:
    """The measures of the first `count` episodes of a chunk."""
    values = jax.device_get(numbers(rows, detector))
    longest = int(values.episode["length"][:count].max())
    flags = values.flags[:, :, :count, :longest]  # [4, U, C, T]
    shape = flags.shape[1:3]
    truth, *alerts, los = (f.reshape(-1, f.shape[-1]) for f in flags)
    counts = match_gates(truth, alerts, los, detector)
    return Measures(
        {k: v[:count] for k, v in values.episode.items()},
        {k: v[:count] for k, v in values.aircraft.items()},
        np.asarray(rows.scenario.present)[:count],
        {gate: c.reshape(*shape).swapped() for gate, c in zip(GATES, counts)},
    )


def match_gates(truth: np.ndarray, alerts: list[np.ndarray], los: np.ndarray, detector: Detector) -> list[Counts]:
    """Counts of each kind of alerts, of streams [S, T]; most streams hold nothing and are not looked at."""
    total = len(truth)
    some = np.flatnonzero(truth.any(1) | alerts[-1].any(1))  # without the gate there are at least as many alerts
    truth, los, alerts = truth[some], los[some], [a[some] for a in alerts]
    margins = (detector.truth_margin, detector.alert_margin)
    after = round(detector.resolution_s / detector.period_s)
    return [match(truth, a, los, margins, detector.min_iou, after).spread(some, total) for a in alerts]


def fly_and_measure(
    env: Airspace,
    pilot: Pilot,
    scenarios: Scenario,
    key: Array,
    detector: Detector,
    *,
    episodes: np.ndarray | None = None,
    look: Callable[[slice, Rows, Measures], None] = lambda where, rows, measures: None,
) -> Measures:
    """Measures of one episode from each scenario [C, ...]; `look` sees every chunk while its rows are there."""
    parts = []
    for where, rows in chunks(env, pilot, scenarios, key, episodes=episodes):
        parts.append(measure(rows, where.stop - where.start, detector))
        look(where, rows, parts[-1])
    return Measures.concatenate(parts)
