"""A study of update strategies in sentences whose words depend on what the intervals exclude."""

import math
from collections.abc import Sequence

from regimen.experiments.studies.curves import Row
from regimen.experiments.studies.report import fill, short, with_interval


def sentences(part: str, rows: Sequence[Row], targets: Sequence[float], gate: float) -> list[str]:
    """What was measured in a part, in words chosen by the numbers; a part of another name is a gated metric's."""
    match part:
        case "race":
            return [target_sentence(rows, f"{target:g}") for target in targets] + form_sentences(rows)
        case "gradient":
            return []
        case "overfit":
            return [
                fill(
                    "{arm}: on a new batch an update keeps {share:.0f}% of what it claims ",
                    row,
                    share=100 * (1 - row["lost"].value),
                )
                + fill("(lost {lost:percent}).", row)
                for row in rows
                if row["lost"].has_interval
            ]
    there = [row for row in rows if math.isfinite(row["episodes_to_gate"].value)]
    words = "; ".join(fill("{arm} after {episodes_to_gate} episodes", row) for row in there)
    none = f"no strategy got the bound of {part} to {gate:g} in half of its seeds"
    return [f"{part.capitalize()} of {gate:g}: {words or none}."]


def target_sentence(race: Sequence[Row], target: str) -> str:
    there = [row for row in race if math.isfinite(row[f"steps_to_{target}"].value)]
    if not there:
        return f"No strategy had half of its seeds at {target} within the budget."
    first, quick = (min(there, key=lambda row: row[f"{unit}_to_{target}"].value) for unit in ("steps", "seconds"))
    return (
        f"{target}: fewest steps with {first['arm']}, {with_interval(first[f'steps_to_{target}'])}; least time with "
        f"{quick['arm']}, {short(quick[f'seconds_to_{target}'].value)} s; {len(there)} of {len(race)} strategies "
        "had half of their seeds there."
    )


def form_sentences(race: Sequence[Row]) -> list[str]:
    """Monte Carlo beside GAE, for each strategy that has both."""
    by_strategy: dict[str, list[Row]] = {}
    for row in race:
        by_strategy.setdefault(row["strategy"], []).append(row)
    return [form_sentence(*rows) for rows in by_strategy.values() if len(rows) == 2]


def form_sentence(a: Row, b: Row) -> str:
    x, y = a["final"], b["final"]
    apart = x.has_interval and y.has_interval and (x.low > y.high or y.low > x.high)
    better = a if x.value > y.value else b
    words = f"{better['returns']} ends higher" if apart else "no difference at the end can be told"
    return fill("{strategy}: {returns} ends at {final}, ", a) + fill("{returns} at {final}: ", b) + f"{words}."
