"""What the episodes of one configuration say: rates with intervals, quantiles, overheads. Numpy.

Every column is defined in docs/airspace_safety.md. What is undefined is NaN here, null in JSON and empty in CSV.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from regimen.domains.airspace.analysis.detector import GATES, Detector, pairs
from regimen.domains.airspace.analysis.measure import Measures
from regimen.domains.airspace.analysis.risk import ENCOUNTER_SUMS, ratio, risk
from regimen.statistics import Interval, wilson

Row = dict[str, Any]  # of a table: numbers, flags and texts by column
QUANTILES = {"min": 0.0, "p05": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
RESAMPLES = 1000
LEVEL = 0.95
TAILS = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
SUFFIXES = dict(zip(GATES, ("", "_ungated")))  # of columns


@functools.cache  # the same resamples for every configuration
def resamples(n: int, seed: int = 0) -> np.ndarray:
    """[RESAMPLES, n] how often each of n episodes is drawn in each bootstrap resample: multiply to get sums."""
    picks = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    return np.stack([np.bincount(row, minlength=n) for row in picks]).astype(np.float64)


def bounds(values: np.ndarray) -> Interval:
    """The middle 95 % of bootstrap estimates; NaN where half of them are undefined."""
    values = values[np.isfinite(values)]
    if len(values) < RESAMPLES // 2:
        return (np.nan, np.nan)
    low, high = np.quantile(values, TAILS)
    return (float(low), float(high))


def per(total: float | np.ndarray, units: float | np.ndarray) -> float:
    """total / units, NaN without any."""
    return float(ratio(np.asarray(total, np.float64), np.asarray(units, np.float64)))


def mean(values: np.ndarray, minus: float = 0.0) -> float:
    """The mean of some values less a number, NaN of none."""
    return float(values.mean() - minus) if len(values) else np.nan


def rate(name: str, value: float, successes: float, trials: int) -> Row:
    """The columns of a share: its value and Wilson's interval."""
    low, high = wilson(successes, trials)
    return {f"{name}_rate": value, f"{name}_low": low, f"{name}_high": high}


def encounters(m: Measures) -> dict[str, np.ndarray]:
    """The sums of every episode from which the collision risk follows [C]."""
    return {name: np.asarray(m.episode[name], np.float64) for name in ENCOUNTER_SUMS}


def risk_inputs(m: Measures) -> dict[str, float]:
    """The collision-risk estimate and its measured inputs."""
    return {k: float(v) for k, v in risk({k: v.sum() for k, v in encounters(m).items()}).items()}


def summarise(m: Measures, detector: Detector, seed: int = 0) -> Row:
    """One row for the episodes of one configuration."""
    e, a, here = m.episode, m.aircraft, m.present
    n, period = len(here), detector.period_s
    separation = e["min_separation_nm"].astype(np.float64)
    separation = separation[np.isfinite(separation)]  # one aircraft alone has no separation
    hours = float(e["flight_h"].sum())
    los, reached, flying = int(e["los"].sum()), int(a["reached"].sum()), int(here.sum())
    success = e["all_reached"] & ~e["los"]
    row: Row = {"episodes": n} | rate("los", los / n, los, n)
    row["los_events_per_h"] = per(e["los_events"].sum(), hours)
    row["los_s"] = mean(e["los_decisions"]) * period
    row |= rate("success", mean(success), float(success.sum()), n)
    row |= rate("reached", reached / flying, n * reached / flying, n)  # those of an episode share its luck
    row["all_reached_rate"] = mean(e["all_reached"])
    row["min_separation_mean_nm"] = mean(separation)
    for name, q in QUANTILES.items():
        row[f"min_separation_{name}_nm"] = float(np.quantile(separation, q)) if len(separation) else np.nan

    there = a["reached"].astype(bool) & here
    flown, direct = a["flown_nm"][there], np.maximum(a["direct_nm"][there] - a["remaining_nm"][there], 1e-6)
    seconds = a["decisions"][there] * period
    row["flight_s"] = mean(seconds)
    row["time_overhead"] = mean(seconds / np.maximum(a["direct_s"][there], 1e-6), 1)
    row["distance_overhead"] = mean(flown / direct, 1)
    row["path_efficiency"] = mean(direct / np.maximum(flown, 1e-6))
    row["extra_nm"] = mean((a["flown_nm"] - (a["direct_nm"] - a["remaining_nm"]))[here])

    total = {name: values.sum() for name, values in a.items()}
    row["flight_h"] = hours
    row["interventions_per_h"] = per(total["commands"], hours)
    row["manoeuvres_per_h"] = per(total["manoeuvres"], hours)
    row["alert_duty"] = per(total["alert_decisions"], total["decisions"])
    row["alert_duty_ungated"] = per(total["alert_decisions_ungated"], total["decisions"])
    row["alert_threat_nm"] = per(total["alert_threat_nm"], total["alert_decisions"])
    row["alert_threat_s"] = per(total["alert_threat_s"], total["alert_decisions"])
    row["oscillation"] = 0.5 * (per(total["flips"], total["follows"]) + per(total["variation"], total["follows"]))
    for gate, end in SUFFIXES.items():
        scene = jax.tree.map(lambda x: x[:, 0].sum(), m.counts[gate])
        rates = scene.rates(period)
        row |= {f"{k}{end}": int(getattr(scene, k)) for k in ("tp", "fp", "fn")}
        row |= {f"{k}{end}": float(rates[k]) for k in ("precision", "recall", "f1", "lead_s")}
    by_pair = jax.tree.map(lambda x: x[:, 1 + here.shape[1] :].sum(), m.counts["gated"])
    rates = by_pair.rates(period)
    row["conflicts_per_h"] = per(by_pair.conflicts, hours)
    row |= {k: float(rates[k]) for k in ("resolution_failure", "unresolved")}

    row["collision_risk_per_h"] = risk_inputs(m)["collision_risk_per_h"]
    weights = resamples(n, seed)[: RESAMPLES if n > 1 else 0]  # one episode has no spread to show
    drawn = risk({k: weights @ v for k, v in encounters(m).items()})["collision_risk_per_h"]
    row["collision_risk_low"], row["collision_risk_high"] = bounds(drawn)
    return row


def differences(m: Measures, base: Measures, seed: int = 0) -> dict[str, float]:
    """Differences of a configuration to the baseline flown from the same perturbations: means, and bootstrap intervals
    over the episodes, which are resampled together."""
    n = len(m.present)
    out: dict[str, float] = {}
    columns = {
        "los_rate_change": (m.episode["los"], base.episode["los"]),
        "min_separation_change_nm": (m.episode["min_separation_nm"], base.episode["min_separation_nm"]),
        "reached_rate_change": (reached_share(m), reached_share(base)),
    }
    for name, (after, before) in columns.items():
        change = np.asarray(after, np.float64) - np.asarray(before, np.float64)
        change = np.where(np.isfinite(change), change, 0.0)
        out[name] = float(change.mean())
        low, high = bounds(resamples(n, seed) @ change / n) if n > 1 else (np.nan, np.nan)
        short = name.replace("_nm", "")
        out |= {f"{short}_low": low, f"{short}_high": high}
    return out


def reached_share(m: Measures) -> np.ndarray:
    """[C] share of the aircraft that reached their waypoints."""
    return m.aircraft["reached"].sum(1) / np.maximum(m.present.sum(1), 1)


def survival(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The exact curve S(x) = Pr(X >= x): it is S[k] for x[k-1] < x <= x[k], and 0 beyond the last."""
    x, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
    rest = counts[::-1].cumsum()[::-1]
    return x, rest / max(len(values), 1)


def survival_band(values: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The middle 95 % of bootstrap curves at the points of a grid."""
    curves = resamples(len(values)) @ (np.asarray(values)[:, None] >= grid).astype(np.float64) / len(values)
    low, high = np.quantile(curves, TAILS, axis=0)
    return low, high


def alert_rows(m: Measures, ids: Sequence[str], detector: Detector) -> list[Row]:
    """Rows of the scene, each aircraft and each pair, by gate: counts of events and their rates over all episodes."""
    n = m.present.shape[1]
    units = [("scene", "scene", 0), *(("aircraft", name, 1 + i) for i, name in enumerate(ids))]
    units += [("pair", f"{ids[i]}-{ids[j]}", 1 + n + k) for k, (i, j) in enumerate(pairs(n)) if j < len(ids)]
    rows = []
    for gate in GATES:
        total = jax.tree.map(lambda x: x.sum(0), m.counts[gate])
        rates = total.rates(detector.period_s)
        for level, name, u in units:
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
    for gate, suffix in SUFFIXES.items():
        out |= {f"{k}{suffix}": getattr(m.counts[gate], k)[:, 0] for k in ("tp", "fp", "fn")}
    return out
