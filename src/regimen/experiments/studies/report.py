"""A batching study as text: tables, and sentences whose words depend on what the intervals exclude."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from regimen.experiments.studies.curves import ENOUGH, REACH, STAY, TOLERANCE, Results, Row
from regimen.files.storage import cell, write_atomic
from regimen.reports.table import Table
from regimen.statistics import Estimate
from regimen.words import count, plural

DEFINITIONS = {
    "noise": "Trace of the covariance of the full-batch gradient over independent rollouts at one fixed policy (first "
    "epoch, ratio 1), unbiased. relative_noise divides it by that of the smallest rollout; `expected` is the 1/n law.",
    "signal_to_noise": "Squared norm of the mean gradient, unbiased, over the noise.",
    "cosine": "Mean cosine between a rollout's gradient and a reference: the mean over further rollouts of the largest "
    "size.",
    "group": "policy: the actor's parameters; critic: the value function's; all: both.",
    "advantages": "normalised: shifted and scaled over the batch, as normalize_advantage does; raw: as they are.",
    "to_target": "Count at the first evaluation (mean greedy return) at or above the target; the median over seeds, "
    "where a seed that never got there counts as later than all others. null: not reached by half of the seeds.",
    "ratio": "Median over the median of the first row, resampled independently.",
    "final": "Interquartile mean over seeds of the mean of each seed's last three evaluations.",
    "spread": "Standard deviation over seeds of the same.",
    "average": "Interquartile mean over seeds of the mean evaluation return over the budget.",
    "collapsed": f"Seeds that came at least {REACH:g} of the way from the initial return to the target (at_risk) and "
    f"at each of the last {STAY} evaluations, had less than half of their best way. The rate is of those at risk.",
    "drop": "Evaluation return after one update without the outlier minus after one with it: the same policy, rollout "
    "and evaluation episodes. The outlier is one episode of that update with its rewards multiplied in the batch.",
    "deepest": "Return before minus the lowest of the evaluations after; also for the control, which has noise too.",
    "recovery": f"Updates until the return is back within {TOLERANCE:g} of what had been learnt (before minus initial) "
    "once it has been below; 0 if it never was; null: not seen to come back.",
    "interval": "95% percentile bootstrap over rollouts or seeds (Wilson's for rates); none for fewer than "
    f"{ENOUGH} seeds.",
}

# --- numbers in words ------------------------------------------------------------------------------------------------


def short(x: float, infinite: str = "never") -> str:
    """Three digits, thousands as `12.3k`; a dash for what is unknown. What is infinite was never reached."""
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return infinite
    return count(x) if abs(x) >= 1000 else f"{x:.3g}"


def shown(e: Estimate, infinite: str = "never") -> str:
    """`0.12 (0.1 to 0.15)`."""
    same = e.low == e.value == e.high
    return short(e.value, infinite) + (f" ({between(e, infinite)})" if e.has_interval and not same else "")


def between(e: Estimate, infinite: str = "never") -> str:
    return f"{short(e.low, infinite)} to {short(e.high, infinite)}"


def verdict(e: Estimate, low: str, high: str, neutral: float = 1.0) -> str:
    """`low` or `high` when the interval lies on that side of `neutral`; else that no difference can be told."""
    if not e.has_interval:
        return "too few values for an interval"
    if e.high < neutral:
        return low
    if e.low > neutral:
        return high
    return "no difference can be told"


# --- sentences -------------------------------------------------------------------------------------------------------


def sentences(parts: Mapping[str, list[Row]], target: float | None, budget: int) -> list[str]:
    """What was measured, in words chosen by the numbers."""
    out: list[str] = []
    out += gradient_sentences(parts.get("gradient", []))
    goal = f"{target:g}" if target is not None else ""
    out += race_sentences(parts.get("target", []), goal, budget)
    out += stability_sentences([r for r in parts.get("target", []) if r["name"].startswith(f"{r['episodes']} episode")])
    out += race_sentences(parts.get("epochs", []), goal, budget)
    out += rate_sentences(parts.get("rates", []))
    out += [outlier_sentence(row) for row in parts.get("outlier", [])]
    return out


def gradient_sentences(rows: list[Row]) -> list[str]:
    """Per policy: how the noise fell with the rollout's size, beside the 1/n law."""
    out = []
    for key in dict.fromkeys((row["policy"], row["group"], row["advantages"]) for row in rows):
        policy, group, kind = key
        group_rows = [row for row in rows if (row["policy"], row["group"], row["advantages"]) == key]
        later = [row for row in group_rows if row["expected"] < 1 and not math.isnan(row["relative_noise"].value)]
        if not later or group == "critic" or (group == "all" and kind == "raw"):
            continue
        whose = "the whole gradient" if group == "all" else f"the policy's gradient ({kind} advantages)"
        text = f"At the {policy} policy, more episodes than {group_rows[0]['size']} changed the noise of {whose}: "
        text += "; ".join(f"with {row['size']} {reduction(row)}" for row in later)
        first, last = group_rows[0]["signal_to_noise"], later[-1]["signal_to_noise"]
        text += f". Signal to noise went from {shown(first)} to {shown(last)}"
        out.append(
            text
            + f", the cosine to the reference from {shown(group_rows[0]['cosine'])} to {shown(later[-1]['cosine'])}."
        )
    return out


def reduction(row: Row) -> str:
    """`-79% (-83% to -75%), in agreement with 1/n (-80%)`."""
    e, law = row["relative_noise"], row["expected"]

    def change(relative: float) -> str:
        return f"{100 * (relative - 1):+.{1 if e.value < 0.1 else 0}f}%"

    if not e.has_interval:
        return f"{change(e.value)}, too few values for an interval (1/n: {change(law)})"
    if e.contains(law):
        words = "in agreement with 1/n"
    elif e.high < law:
        words = "more than 1/n"
    else:
        words = "less than 1/n" if e.excludes(1.0) else "no effect can be told; 1/n"
    return f"{change(e.value)} ({change(e.low)} to {change(e.high)}), {words} ({change(law)})"


def race_sentences(rows: list[Row], goal: str, budget: int) -> list[str]:
    out = []
    for row in rows:
        there = f"{row['name']}: {row['reached']} of {row['seeds']} seeds reached {goal} within {budget:,} steps"
        steps, updates = row["steps_to_target"], row["updates_to_target"]
        if math.isfinite(steps.value):
            there += f", at the median after {shown(steps)} steps and {shown(updates)} updates"
        there += compared(row, rows[0], budget)
        out.append(there + f". Final return {shown(row['final'])}.")
    return out


def compared(row: Row, base: Row, budget: int) -> str:
    """To the first regimen. Where a median lies past the budget, only a bound on the steps is known."""
    if "steps_ratio" not in row:
        return ""
    steps, here, there = row["steps_ratio"], row["steps_to_target"].value, base["steps_to_target"].value
    words = verdict(steps, "fewer", "more")
    if math.isinf(here) and 0 < there < math.inf:
        return f"; at least {short(budget / there)} times the steps of {base['name']} ({words})"
    if math.isinf(there) and math.isfinite(here):
        return f"; at most {short(here / budget)} times the steps of {base['name']} ({words})"
    if math.isnan(steps.value):
        return ""
    text = f"; {times(steps)} the steps of {base['name']} ({words})"
    return text + f" and {times(row['updates_ratio'])} the updates ({verdict(row['updates_ratio'], 'fewer', 'more')})"


def times(e: Estimate) -> str:
    return f"{short(e.value)} times" + (f" ({between(e, '∞')})" if e.has_interval else "")


def stability_sentences(rows: list[Row]) -> list[str]:
    if len(rows) < 2:
        return []
    spread = ", ".join(f"{shown(row['spread'])} with {row['name']}" for row in rows)
    lost = ", ".join(f"{row['collapsed']} of {row['at_risk']} with {row['name']}" for row in rows)
    apart = rows[0]["spread"], rows[-1]["spread"]
    words = "too few seeds to compare them"
    if apart[0].has_interval and apart[1].has_interval:
        words = "their intervals overlap"
        if apart[1].high < apart[0].low:
            words = f"less with {rows[-1]['name']}"
        elif apart[1].low > apart[0].high:
            words = f"more with {rows[-1]['name']}"
    return [
        f"Deviation of the final return over seeds: {spread}; {words}.",
        f"Seeds that lost what they had learnt: {lost}.",
    ]


def rate_sentences(rows: list[Row]) -> list[str]:
    out = []
    for size in dict.fromkeys(row["size"] for row in rows):
        group_rows = [row for row in rows if row["size"] == size]
        values = [row["final"] for row in group_rows]
        text = ", ".join(f"{shown(row['final'])} at {short(row['scale'])} times" for row in group_rows)
        best, worst = max(values, key=lambda e: e.value), min(values, key=lambda e: e.value)
        if not (best.has_interval and worst.has_interval):
            words = "too few seeds to compare them"
        else:
            words = "the rate matters" if worst.high < best.low else "intervals overlap, no effect can be told"
        out.append(f"{plural(size, 'episode')} per update, final return {text} the learning rate: {words}.")
    return out


def outlier_sentence(row: Row) -> str:
    drop: Estimate = row["drop"]
    effect = verdict(drop, "the return rose", "a loss", 0.0).replace("no difference can be told", "no loss can be told")
    text = (
        f"{plural(row['size'], 'episode')} per update: one episode with rewards times {row['factor']:g} "
        f"cost {shown(drop)} of return right after ({effect}); {row['fell']} of {row['seeds']} seeds fell "
        f"(without it {row['fell_control']})"
    )
    if row["fell"]:
        text += f", back after {shown(row['recovery'])} updates at the median over all seeds"
    return text + (f", {row['never']} did not recover" if row["never"] else "") + "."


# --- files -----------------------------------------------------------------------------------------------------------


TABLES: dict[str, dict[str, Callable[[Row], str]]] = {  # part -> column -> cell
    "gradient": {
        "policy": lambda r: r["policy"],
        "advantages": lambda r: r["advantages"],
        "gradient of": lambda r: r["group"],
        "episodes": lambda r: str(r["size"]),
        "steps": lambda r: short(r["rollout_steps"]),
        "noise": lambda r: shown(r["noise"]),
        "relative": lambda r: shown(r["relative_noise"]),
        "1/n": lambda r: short(r["expected"]),
        "signal to noise": lambda r: shown(r["signal_to_noise"]),
        "cosine": lambda r: shown(r["cosine"]),
    },
    "target": {
        "regimen": lambda r: r["name"],
        "lr": lambda r: short(r["lr"]),
        "reached": lambda r: f"{r['reached']} of {r['seeds']}",
        "steps": lambda r: shown(r["steps_to_target"]),
        "updates": lambda r: shown(r["updates_to_target"]),
        "times the steps": lambda r: shown(r["steps_ratio"], "∞") if "steps_ratio" in r else "1",
        "times the updates": lambda r: shown(r["updates_ratio"], "∞") if "updates_ratio" in r else "1",
        "final return": lambda r: shown(r["final"]),
        "spread": lambda r: shown(r["spread"]),
        "mean over training": lambda r: shown(r["average"]),
        "collapsed": lambda r: f"{r['collapsed']} of {r['at_risk']}",
        "diverged": lambda r: str(r["diverged"]),
    },
    "rates": {
        "episodes": lambda r: str(r["size"]),
        "learning rate": lambda r: f"{short(r['lr'])} ({short(r['scale'])} times)",
        "reached": lambda r: f"{r['reached']} of {r['seeds']}",
        "steps": lambda r: shown(r["steps_to_target"]),
        "final return": lambda r: shown(r["final"]),
        "spread": lambda r: shown(r["spread"]),
        "mean over training": lambda r: shown(r["average"]),
        "collapsed": lambda r: f"{r['collapsed']} of {r['at_risk']}",
    },
    "outlier": {
        "episodes": lambda r: str(r["size"]),
        "return before": lambda r: shown(r["before"]),
        "drop right after": lambda r: shown(r["drop"]),
        "deepest": lambda r: shown(r["deepest"]),
        "without it": lambda r: shown(r["deepest_control"]),
        "seeds that fell": lambda r: f"{r['fell']} of {r['seeds']} (without it {r['fell_control']})",
        "updates to recover": lambda r: shown(r["recovery"]),
        "never": lambda r: str(r["never"]),
    },
}
TABLES["epochs"] = TABLES["target"]
HEADINGS = {
    "gradient": "Noise of the gradient",
    "target": "Steps and updates to the target",
    "epochs": "Passes over each batch",
    "rates": "Learning rate",
    "outlier": "One outlier episode",
}


LABELS = ("name", "policy", "advantages", "group", "size", "scale", "lr")


def long_rows(parts: Mapping[str, list[Row]]) -> list[list[str]]:
    """One line per number: part, what it belongs to, its name, value and interval; empty where never or unknown."""
    out = []
    for part, rows in parts.items():
        for row in rows:
            labels = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items() if k in LABELS]
            for name, numbers in numbers_of(row).items():
                if name not in (*LABELS, "regimen"):
                    note = "never" if isinstance(row[name], Estimate) and row[name].value == math.inf else ""
                    out.append([part, "; ".join(labels), name, *numbers, note])
    return out


def numbers_of(row: Row) -> dict[str, list[str]]:
    """The numbers of a row, each as the cells of its value and its interval; empty where never or unknown."""
    out = {}
    for name, value in row.items():
        if isinstance(value, Estimate):
            out[name] = [cell(x) if math.isfinite(x) else "" for x in value]
        elif isinstance(value, (int, float)):
            out[name] = [cell(value), "", ""]
    return out


def write(out: Path, results: Results) -> None:
    """Write table.md, table.csv and summary.md of a batching study."""
    parts, options, title = results["parts"], results["options"], f"Batching on {results['env']}"
    tables = {HEADINGS[part]: Table.of(TABLES[part], rows) for part, rows in parts.items()}
    write_tables(out, title, tables, "95% intervals in brackets. What each column means is in summary.md.")
    head = ["part", "setting", "measure", "value", "low", "high", "note"]
    Table(head, long_rows(parts)).write_csv(out / "table.csv")
    missing = [part for part in options["parts"] if part not in results["finished"]]
    target = "" if results["target"] is None else f" The target is an evaluation return of {results['target']:g}."
    text = [
        f"{len(results['seeds'])} seeds, {results['budget']:,} env steps for each training, evaluated "
        f"{options['checks']} times on {options['eval_episodes']} greedy episodes.{target}",
        "",
    ]
    if missing and results["state"] == "interrupted":
        text += [f"Interrupted: {', '.join(missing)} not finished.", ""]
    for part, rows in parts.items():
        lines = sentences({part: rows}, results["target"], results["budget"])
        text += [f"## {HEADINGS[part]}", "", *(f"- {line}" for line in lines), ""]
    regimens = parts.get("target", []) + parts.get("epochs", [])
    if regimens:
        text += ["## Regimens", "", *(f"- {row['name']}: {row['regimen']}; lr {row['lr']:g}" for row in regimens), ""]
    write_summary(out, results, title, text, DEFINITIONS)


def write_tables(out: Path, title: str, tables: Mapping[str, Table], footnote: str) -> None:
    """Write table.md: the tables of a study by heading."""
    text = [f"# {title}", ""]
    for heading, table in tables.items():
        text += [f"## {heading}", "", table.markdown(), ""]
    write_atomic(out / "table.md", "\n".join([*text, footnote, ""]))


def write_summary(out: Path, results: Results, title: str, text: Sequence[str], definitions: Mapping[str, str]) -> None:
    """Write summary.md: what a study says, how it was measured, and the exact command."""
    page = [f"# {title}", "", *text, "## Definitions", ""]
    page += [*(f"- `{name}`: {words}" for name, words in definitions.items()), ""]
    if results["command"]:
        page += ["## Command", "", "```bash", results["command"], "```", ""]
    versions = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    page += [f"{results['device']}, {results['seconds']:.0f} s, {versions}", ""]
    write_atomic(out / "summary.md", "\n".join(page))
