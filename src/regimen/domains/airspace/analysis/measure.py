"""Numbers of every episode, computed where it was flown: only sums and flags leave the device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.airspace.analysis import detector as detection
from regimen.domains.airspace.analysis.detector import GATES, Detector, namespace
from regimen.domains.airspace.analysis.events import Counts, match
from regimen.domains.airspace.analysis.flight import Flights, Pilot, chunks
from regimen.domains.airspace.analysis.risk import encounter_sums
from regimen.domains.airspace.dynamics import CHANGE, TURN
from regimen.domains.airspace.env import CAPTURE, Airspace
from regimen.domains.airspace.state import Scenario
from regimen.types import Array


class Measures(NamedTuple):
    """Measurements of C episodes, in numpy. Units U: the scene, each aircraft, each pair."""

    episode: dict[str, np.ndarray]  # [C]
    aircraft: dict[str, np.ndarray]  # [C, N]
    present: np.ndarray  # [C, N]
    counts: dict[str, Counts]  # gate -> [C, U]

    def take(self, index: slice | np.ndarray) -> Measures:
        """The measures of some of the episodes."""
        return jax.tree.map(lambda x: x[index], self)


def last_axis(x: Any) -> Any:
    """Rows [T, C, N] as [N, C, T]: aircraft first and time last, as the detector reads them."""
    return namespace(x).moveaxis(x, (0, 2), (2, 0))


def by_decision(x: Any) -> Any:
    """Values [T, C, N] stored with the row a decision led to, as [N, C, T] at the row where it was taken."""
    x = last_axis(x)
    xp = namespace(x)
    return xp.concatenate([x[..., 1:], xp.zeros_like(x[..., :1])], -1)


def tracks_of(flights: Flights) -> detection.Tracks:
    """What was flown, as the detector reads it."""
    s, goal = flights.state, flights.scenario.waypoint
    return detection.Tracks(
        north=last_axis(s["north"]),
        east=last_axis(s["east"]),
        v_north=last_axis(s["ground"][..., 0]),
        v_east=last_axis(s["ground"][..., 1]),
        turn=by_decision(s["command"][..., 0]),
        speed=by_decision(s["command"][..., 1]),
        flying=last_axis(flights.flying),
        goal_north=goal[..., 0].T[..., None],
        goal_east=goal[..., 1].T[..., None],
    )


def separation(flights: Flights, tracks: detection.Tracks, detector: Detector) -> tuple[Any, Any]:
    """The smallest separation of each aircraft within every decision [N, C, T], and losses by unit [U, C, T]."""
    xp, s = namespace(flights.length), flights.state
    going = xp.arange(len(s["counts"])) < flights.length[:, None]  # [C, T]
    counts = going & last_axis(s["counts"])
    apart = xp.where(counts, by_decision(s["min_sep"]), xp.inf)
    pair = detection.closest_within(tracks) < detector.separation_nm
    return apart, detection.units(apart < detector.separation_nm, pair)


@functools.partial(jax.jit, static_argnames=("detector",))
def numbers(flights: Flights, detector: Detector) -> tuple[dict[str, Array], dict[str, Array], Array]:
    """Everything about each episode that a table may want: of the episode [C], of its aircraft [C, N], and flags
    [4, U, C, T] by unit: conflict, gated alert, ungated alert, loss of separation."""
    s, scenario, n = flights.state, flights.scenario, flights.scenario.present.shape[-1]
    tracks = tracks_of(flights)
    flying = tracks.flying  # [N, C, T]
    alarms = detection.alarms(tracks, detector)
    truth = detection.units(detection.of_aircraft(alarms.conflict, n), alarms.conflict)
    alerts = [detection.units(alarms.alert[g], alarms.pair_alert[g]) for g in range(len(GATES))]
    apart, los = separation(flights, tracks, detector)
    start = jnp.where(scenario.present, s["min_sep"][0], jnp.inf).min(-1)  # [C] at the start
    start = jnp.where(scenario.present.sum(-1) > 1, start, jnp.inf)
    closest = jnp.minimum(apart.min((0, 2)), start)
    closest = jnp.where(scenario.present.sum(-1) > 1, closest, jnp.inf)
    lost = los[0]  # [C, T]

    # the way flown, against the straight one; where a finished aircraft flies on, until its waypoint
    reached = s["reached"].any(0) & scenario.present  # [C, N]
    at = jnp.where(reached, jnp.argmax(s["reached"], 0), flights.length[:, None])[None]
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
    varied = jnp.abs(turn - before) / TURN + jnp.abs(change - detection.earlier(change, 1)) / CHANGE
    began = alarms.manoeuvre & ~detection.earlier(alarms.manoeuvre, 1)
    gated = alarms.alert[0]

    aircraft = {
        "decisions": flying.sum(-1),
        "commands": ((turn != 0) | (change != 0)).sum(-1),
        "manoeuvres": began.sum(-1),
        "alert_decisions": gated.sum(-1),
        "alert_decisions_ungated": alarms.alert[1].sum(-1),
        "flips": flip.sum(-1),
        "follows": following.sum(-1),
        "variation": jnp.where(following, 0.5 * varied, 0.0).sum(-1),
        "alert_threat_nm": jnp.where(gated, jnp.minimum(alarms.threat_nm, 1e3), 0.0).sum(-1),
        "alert_threat_s": jnp.where(gated, jnp.minimum(alarms.threat_s, 1e3), 0.0).sum(-1),
    }
    aircraft = {k: v.T for k, v in aircraft.items()} | {
        "reached": reached,
        "flown_nm": flown,
        "direct_nm": direct,
        "remaining_nm": end,
        "direct_s": jnp.maximum(direct - CAPTURE, 0.0) / jnp.maximum(speed, 1.0) * 3600.0,
    }
    episode = {
        "length": flights.length,
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
    return episode, aircraft, jnp.stack([truth, *alerts, los])


def measure(flights: Flights, count: int, detector: Detector) -> Measures:
    """The measures of the first `count` episodes of a chunk."""
    *values, flags = jax.device_get(numbers(flights, detector))
    episode, aircraft = jax.tree.map(lambda x: x[:count], values)
    truth, *alerts, los = flags[:, :, :count, : episode["length"].max()].swapaxes(1, 2)  # [C, U, T] each
    margins = (detector.truth_margin, detector.alert_margin)
    after = round(detector.resolution_s / detector.period_s)
    counts = {g: match(truth, a, los, margins, detector.min_iou, after) for g, a in zip(GATES, alerts)}
    return Measures(episode, aircraft, np.asarray(flights.scenario.present)[:count], counts)


def fly_and_measure(
    env: Airspace,
    pilot: Pilot,
    scenarios: Scenario,
    key: Array,
    detector: Detector,
    *,
    episodes: np.ndarray | None = None,
    look: Callable[[slice, Flights, Measures], None] = lambda where, flights, measures: None,
) -> Measures:
    """Measures of one episode from each scenario [C, ...]; `look` sees every chunk while its flights are there."""
    parts = []
    for where, flights in chunks(env, pilot, scenarios, key, episodes=episodes):
        parts.append(measure(flights, where.stop - where.start, detector))
        look(where, flights, parts[-1])
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)
