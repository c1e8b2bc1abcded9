"""What the episodes of one configuration say: rates with intervals, quantiles, overheads. Numpy.

Every column is defined in docs/airspace_safety.md. What is undefined is NaN here, null in JSON and empty in CSV.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from regimen.domains.airspace.analysis.detector import GATES, Detector, pairs
from regimen.domains.airspace.analysis.events import Counts
from regimen.domains.airspace.analysis.measure import Measures
from regimen.domains.airspace.analysis.risk import ENCOUNTER_SUMS, ratio, risk
from regimen.statistics import wilson

Row = dict[str, Any]  # of a table: numbers, flags and texts by column
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95)
RESAMPLES = 1000
LEVEL = 0.95


def resamples(n: int, seed: int = 0, count: int = RESAMPLES) -> np.ndarray:
    """[count, n] how often each of n episodes is drawn in each bootstrap resample: multiply to get sums."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, n, (count, n))
    return np.stack([np.bincount(row, minlength=n) for row in picks]).astype(np.float64)


def bounds(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The middle `level` of bootstrap estimates; NaN where some of them are undefined."""
    values = values[np.isfinite(values)]
    if len(values) < RESAMPLES // 2:
        return (np.nan, np.nan)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return (float(low), float(high))


def summarise(m: Measures, detector: Detector, seed: int = 0) -> dict[str, float]:
    """One row for the episodes of one configuration."""
    e, a, here = m.episode, m.aircraft, m.present
    n = len(m)
    separation = e["min_separation_nm"].astype(np.float64)
    finite = separation[np.isfinite(separation)]  # one aircraft alone has no separation
    los = int(e["los"].sum())
    reached, flying = int(a["reached"].sum()), int(here.sum())
    hours = float(e["flight_h"].sum())
    row: dict[str, float] = {"episodes": n, "los_rate": los / n}
    row["los_low"], row["los_high"] = wilson(los, n)
    row["los_events_per_h"] = per(e["los_events"].sum(), hours)
    row["los_s"] = float(e["los_decisions"].mean()) * detector.period_s
    row["success_rate"] = float((e["all_reached"] & ~e["los"]).mean())
    row["success_low"], row["success_high"] = wilson(float((e["all_reached"] & ~e["los"]).sum()), n)
    row["reached_rate"] = reached / flying
    row["reached_low"], row["reached_high"] = wilson(n * reached / flying, n)  # those of an episode share its luck
    row["all_reached_rate"] = float(e["all_reached"].mean())
    row["min_separation_mean_nm"] = float(finite.mean()) if len(finite) else np.nan
    for q in QUANTILES:
        name = "min" if q == 0 else f"p{round(100 * q):02d}"
        row[f"min_separation_{name}_nm"] = float(np.quantile(finite, q)) if len(finite) else np.nan

    there = a["reached"].astype(bool) & here
    flown, direct = a["flown_nm"][there], np.maximum(a["direct_nm"][there] - a["remaining_nm"][there], 1e-6)
    seconds = a["decisions"][there] * detector.period_s
    row["flight_s"] = float(seconds.mean()) if len(seconds) else np.nan
    straight = np.maximum(a["direct_s"][there], 1e-6)
    row["time_overhead"] = float((seconds / straight).mean() - 1) if len(flown) else np.nan
    row["distance_overhead"] = float((flown / direct).mean() - 1) if len(flown) else np.nan
    row["path_efficiency"] = float((direct / np.maximum(flown, 1e-6)).mean()) if len(flown) else np.nan
    extra = (a["flown_nm"] - (a["direct_nm"] - a["remaining_nm"]))[here]
    row["extra_nm"] = float(extra.mean())

    decisions = a["decisions"].sum()
    row["flight_h"] = hours
    row["interventions_per_h"] = per(a["commands"].sum(), hours)
    row["manoeuvres_per_h"] = per(a["manoeuvres"].sum(), hours)
    row["alert_duty"] = per(a["alert_decisions"].sum(), decisions)
    row["alert_duty_ungated"] = per(a["alert_decisions_ungated"].sum(), decisions)
    row["alert_threat_nm"] = per(a["alert_threat_nm"].sum(), a["alert_decisions"].sum())
    row["alert_threat_s"] = per(a["alert_threat_s"].sum(), a["alert_decisions"].sum())
    follows = a["follows"].sum()
    row["oscillation"] = 0.5 * (per(a["flips"].sum(), follows) + per(a["variation"].sum(), follows))
    for gate in GATES:
        scene = m.counts[gate][:, 0].sum(0)
        end = "" if gate == "gated" else "_ungated"
        row |= {f"{k}{end}": int(getattr(scene, k)) for k in ("tp", "fp", "fn")}
        rates = scene.rates(detector.period_s)
        row |= {f"{k}{end}": float(rates[k]) for k in ("precision", "recall", "f1", "lead_s")}
    first = 1 + here.shape[1]
    all_pairs = m.counts["gated"][:, first:].sum(0).sum(0)
    rates = all_pairs.rates(detector.period_s)
    row["conflicts_per_h"] = per(all_pairs.conflicts, hours)
    row["resolution_failure"], row["unresolved"] = float(rates["resolution_failure"]), float(rates["unresolved"])

    sums = {name: np.asarray(e[name], np.float64) for name in ENCOUNTER_SUMS}
    row["collision_risk_per_h"] = float(risk({k: v.sum() for k, v in sums.items()})["collision_risk_per_h"])
    weights = _shared_resamples(n, seed)[: RESAMPLES if n > 1 else 0]  # one episode has no spread to show
    drawn = risk({k: weights @ v for k, v in sums.items()})["collision_risk_per_h"]
    row["collision_risk_low"], row["collision_risk_high"] = bounds(drawn)
    return row


def per(total: float | np.ndarray, units: float | np.ndarray) -> float:
    """total / units, NaN without any."""
    return float(ratio(np.asarray(total, np.float64), np.asarray(units, np.float64)))


def risk_inputs(m: Measures) -> dict[str, float]:
    """The measured inputs of the collision-risk estimate."""
    sums = {name: np.asarray(m.episode[name], np.float64).sum() for name in ENCOUNTER_SUMS}
    return {k: float(v) for k, v in risk(sums).items()}


def differences(m: Measures, base: Measures, seed: int = 0) -> dict[str, float]:
    """Of a configuration to the baseline flown from the same perturbations: means, and bootstrap intervals over the
    episodes, which are resampled together."""
    if len(m) != len(base):
        raise ValueError("differences are taken between episodes of equal numbers")
    out: dict[str, float] = {}
    weights = _shared_resamples(len(m), seed)
    columns = {
        "los_rate_change": (m.episode["los"], base.episode["los"]),
        "min_separation_change_nm": (m.episode["min_separation_nm"], base.episode["min_separation_nm"]),
        "reached_rate_change": (reached_share(m), reached_share(base)),
    }
    for name, (mine, theirs) in columns.items():
        change = np.asarray(mine, np.float64) - np.asarray(theirs, np.float64)
        change = np.where(np.isfinite(change), change, 0.0)
        out[name] = float(change.mean())
        low, high = bounds(weights @ change / len(m)) if len(m) > 1 else (np.nan, np.nan)
        short = name.replace("_nm", "")
        out |= {f"{short}_low": low, f"{short}_high": high}
    return out


_WEIGHTS: dict[tuple[int, int], np.ndarray] = {}


def _shared_resamples(n: int, seed: int) -> np.ndarray:
    """Drawn once: the same resamples for every configuration."""
    if (n, seed) not in _WEIGHTS:
        _WEIGHTS[n, seed] = resamples(n, seed)
    return _WEIGHTS[n, seed]


def reached_share(m: Measures) -> np.ndarray:
    """[C] share of the aircraft that reached their waypoints."""
    return m.aircraft["reached"].sum(1) / np.maximum(m.present.sum(1), 1)


def survival(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The exact curve S(x) = Pr(X >= x): it is S[k] for x[k-1] < x <= x[k], and 0 beyond the last."""
    x, counts = np.unique(np.sort(np.asarray(values, np.float64)), return_counts=True)
    left = counts[::-1].cumsum()[::-1]
    return x, left / max(len(values), 1)


def survival_band(values: np.ndarray, grid: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The middle 95 % of bootstrap curves at the points of a grid."""
    weights = _shared_resamples(len(values), seed)
    curves = weights @ (np.asarray(values)[:, None] >= grid).astype(np.float64) / len(values)
    low, high = np.quantile(curves, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return low, high


def unit_names(ids: Sequence[str]) -> list[tuple[str, str]]:
    """(level, name) of the units of `Counts`: the scene, each aircraft, each pair."""
    out = [("scene", "scene")] + [("aircraft", i) for i in ids]
    return out + [("pair", f"{ids[i]}-{ids[j]}") for i, j in pairs(len(ids))]


def alert_rows(counts: dict[str, Counts], ids: Sequence[str], detector: Detector) -> list[Row]:
    """One row for each unit and gate over the episodes of a configuration: counts of events and their rates."""
    rows = []
    for gate in GATES:
        total = counts[gate].sum(0)
        rates = total.rates(detector.period_s)
        for u, (level, name) in enumerate(unit_names(ids)):
            row: Row = {"level": level, "unit": name, "gate": gate}
            row |= {k: int(getattr(total, k)[u]) for k in ("conflicts", "alerts", "tp", "fp", "fn")}
            rows.append(row | {k: float(v[u]) for k, v in rates.items()})
    return rows


def episode_columns(m: Measures, detector: Detector) -> dict[str, np.ndarray]:
    """Column -> a value for each episode."""
    e, a, here = m.episode, m.aircraft, m.present
    period = detector.period_s
    out = {
        "decisions": e["length"],
        "start_separation_nm": e["start_separation_nm"],
        "min_separation_nm": e["min_separation_nm"],
        "los": e["los"],
        "los_events": e["los_events"],
        "los_s": e["los_decisions"] * period,
        "first_los_s": np.where(e["first_los"] >= 0, e["first_los"] * period, np.nan),
        "aircraft": here.sum(1),
        "reached": a["reached"].sum(1),
        "flown_nm": np.where(here, a["flown_nm"], 0).sum(1),
        "direct_nm": np.where(here, a["direct_nm"], 0).sum(1),
        "flight_s": a["decisions"].sum(1) * period,
        "interventions": a["commands"].sum(1),
        "manoeuvres": a["manoeuvres"].sum(1),
        "conflict_s": e["conflict_decisions"] * period,
        "alert_s": e["alert_decisions"] * period,
        "alert_s_ungated": e["alert_decisions_ungated"] * period,
    }
    for gate in GATES:
        suffix = "" if gate == "gated" else "_ungated"
        out |= {f"{k}{suffix}": getattr(m.counts[gate], k)[:, 0] for k in ("tp", "fp", "fn")}
    return out
