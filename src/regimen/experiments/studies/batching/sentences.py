"""A batching study in sentences whose words depend on what the intervals exclude."""

import math
from collections.abc import Iterator, Sequence

from regimen.experiments.studies.curves import Row
from regimen.experiments.studies.report import between, fill, short, verdict
from regimen.statistics import Estimate
from regimen.words import plural


def sentences(part: str, rows: Sequence[Row], target: float | None, budget: int) -> list[str]:
    """What was measured in a part, in words chosen by the numbers."""
    goal = "" if target is None else f"{target:g}"
    match part:
        case "gradient":
            return list(gradient_sentences(rows))
        case "target":
            sizes = [row for row in rows if row["name"].startswith(f"{row['episodes']} episode")]
            return race_sentences(rows, goal, budget) + stability_sentences(sizes)
        case "epochs":
            return race_sentences(rows, goal, budget)
        case "rates":
            return list(rate_sentences(rows))
    return [outlier_sentence(row) for row in rows]


def gradient_sentences(rows: Sequence[Row]) -> Iterator[str]:
    """Sentences for each policy: how the noise fell with the rollout's size, beside the 1/n law."""
    for policy, group, kind in dict.fromkeys((row["policy"], row["group"], row["advantages"]) for row in rows):
        first, *others = (r for r in rows if (r["policy"], r["group"], r["advantages"]) == (policy, group, kind))
        later = [r for r in (first, *others) if r["expected"] < 1 and not math.isnan(r["relative_noise"].value)]
        if not later or group == "critic" or (group == "all" and kind == "raw"):
            continue
        whose = "the whole gradient" if group == "all" else f"the policy's gradient ({kind} advantages)"
        yield (
            f"At the {policy} policy, more episodes than {first['size']} changed the noise of {whose}: "
            + "; ".join(f"with {row['size']} {reduction(row)}" for row in later)
            + fill(". Signal to noise went from {signal_to_noise}", first)
            + fill(" to {signal_to_noise}", later[-1])
            + fill(", the cosine to the reference from {cosine}", first)
            + fill(" to {cosine}.", later[-1])
        )


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


def race_sentences(rows: Sequence[Row], goal: str, budget: int) -> list[str]:
    out = []
    for row in rows:
        there = fill("{name}: {reached} of {seeds} seeds reached ", row) + f"{goal} within {budget:,} steps"
        if math.isfinite(row["steps_to_target"].value):
            there += fill(", at the median after {steps_to_target} steps and {updates_to_target} updates", row)
        out.append(there + compared(row, rows[0], budget) + fill(". Final return {final}.", row))
    return out


def compared(row: Row, base: Row, budget: int) -> str:
    """A regimen beside the first one. Where a median lies past the budget, only a bound on the steps is known."""
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


def stability_sentences(rows: Sequence[Row]) -> list[str]:
    if len(rows) < 2:
        return []
    spread = ", ".join(fill("{spread} with {name}", row) for row in rows)
    lost = ", ".join(fill("{collapsed} of {at_risk} with {name}", row) for row in rows)
    first, last = rows[0]["spread"], rows[-1]["spread"]
    if not (first.has_interval and last.has_interval):
        words = "too few seeds to compare them"
    elif last.high < first.low:
        words = f"less with {rows[-1]['name']}"
    else:
        words = f"more with {rows[-1]['name']}" if last.low > first.high else "their intervals overlap"
    return [
        f"Deviation of the final return over seeds: {spread}; {words}.",
        f"Seeds that lost what they had learnt: {lost}.",
    ]


def rate_sentences(rows: Sequence[Row]) -> Iterator[str]:
    for size in dict.fromkeys(row["size"] for row in rows):
        of_size = [row for row in rows if row["size"] == size]
        text = ", ".join(fill("{final} at {scale} times", row) for row in of_size)
        values = [row["final"] for row in of_size]
        best, worst = max(values, key=lambda e: e.value), min(values, key=lambda e: e.value)
        if not (best.has_interval and worst.has_interval):
            words = "too few seeds to compare them"
        else:
            words = "the rate matters" if worst.high < best.low else "intervals overlap, no effect can be told"
        yield f"{plural(size, 'episode')} per update, final return {text} the learning rate: {words}."


def outlier_sentence(row: Row) -> str:
    effect = verdict(row["drop"], "the return rose", "a loss", 0.0)
    text = fill(
        "{episodes} per update: one episode with rewards times {factor:g} cost {drop} of return right after ({effect})"
        "; {fell} of {seeds} seeds fell (without it {fell_control})",
        row,
        episodes=plural(row["size"], "episode"),
        effect=effect.replace("no difference can be told", "no loss can be told"),
    )
    if row["fell"]:
        text += fill(", back after {recovery} updates at the median over all seeds", row)
    return text + (f", {row['never']} did not recover" if row["never"] else "") + "."
