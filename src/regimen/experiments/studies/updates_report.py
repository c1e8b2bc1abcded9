"""A study of update strategies as text and pictures: tables, sentences whose words depend on intervals, trade-offs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.experiments.studies.curves import Curve, Results, Row
from regimen.experiments.studies.report import numbers_of, short, shown, write_summary, write_tables
from regimen.reports.figure import BLUE, CYCLE, GREEN, GREY, ORANGE, panels, picture, signature
from regimen.reports.table import Table
from regimen.statistics import Estimate
from regimen.words import count, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Parts = Mapping[str, Sequence[Row]]

DEFINITIONS = {
    "steps, seconds to a return": "At the first evaluation (mean greedy return) at or above it; the median over seeds, "
    "where a seed that never got there counts as later than all others. Seconds are of training, without compilation "
    "and evaluation, of all seeds together divided by their number.",
    "memory": "Bytes of one batch as collected, and of the replay.",
    "signal to noise": "Of the policy's gradient over independent rollouts at one fixed policy: squared norm of its "
    "mean over the trace of its covariance, both unbiased. Each form of returns at policies trained with it.",
    "gain": "E[(pi_new / pi_old - 1) A] with standardised advantages after one whole update: on the batch that it was "
    "made on, and on a new batch of the same policy. What is lost between the two is fitted noise.",
    "bound": "Lower end of the one-sided 95% interval of the mean of the environment's gated metric over greedy "
    "episodes; `episodes` until it passes the gate.",
    "final": "Interquartile mean over seeds of the mean of each seed's last three evaluations.",
    "interval": "95% percentile bootstrap over seeds, rollouts or updates; none for fewer than five.",
}


def columns(part: str, rows: Sequence[Row]) -> dict[str, Callable[[Row], str]]:
    head: dict[str, Callable[[Row], str]] = {"update after": lambda r: r["strategy"], "returns": lambda r: r["returns"]}
    match part:
        case "race":
            targets = [k.removeprefix("steps_to_") for k in rows[0] if k.startswith("steps_to_")]
            for t in targets:
                head[f"steps to {t}"] = lambda r, t=t: shown(r[f"steps_to_{t}"])
                head[f"s to {t}"] = lambda r, t=t: short(r[f"seconds_to_{t}"].value)
                head[f"seeds at {t}"] = lambda r, t=t: str(r[f"reached_{t}"])
            return head | {
                "final return": lambda r: shown(r["final"]),
                "spread": lambda r: shown(r["spread"]),
                "steps": lambda r: count(r["budget"]),
                "updates": lambda r: short(r["updates"]),
                "s for each seed": lambda r: short(r["seconds"]),
                "memory": lambda r: size(r["memory"]),
            }
        case "gradient":
            return (
                {"at the policy": lambda r: r["policy"]}
                | head
                | {
                    "steps in an update": lambda r: count(r["rollout_steps"]),
                    "noise": lambda r: shown(r["noise"]),
                    "signal to noise": lambda r: shown(r["signal_to_noise"]),
                }
            )
        case "overfit":
            return head | {
                "gain on its own batch": lambda r: shown(r["own"]),
                "on a new batch": lambda r: shown(r["held_out"]),
                "lost": lambda r: percent(r["lost"]),
                "KL of an update": lambda r: f"{r['kl']:.2g}",
            }
    return head | {
        "seeds that complied": lambda r: f"{r['reached']} of {r['seeds']}",
        "episodes": lambda r: shown(r["episodes_to_gate"]),
        "final bound": lambda r: shown(r["final"]),
        "of episodes": lambda r: count(r["episodes"]),
    }


HEADINGS = {
    "race": "Steps and time to fixed returns",
    "gradient": "Noise of the gradient",
    "overfit": "What an update fits that is not there",
}


def heading(part: str) -> str:
    """The heading of a part; one that is not of every environment has the name of the metric that is gated."""
    return HEADINGS.get(part, f"Episodes to {part}")


def gated_part(parts: Parts) -> str | None:
    """The part that measures a gated metric."""
    return next((part for part in parts if part not in HEADINGS), None)


def percent(e: Estimate) -> str:
    text = f"{100 * e.value:.0f}%"
    return text + (f" ({100 * e.low:.0f} to {100 * e.high:.0f})" if e.has_interval else "")


# --- sentences -------------------------------------------------------------------------------------------------------


def sentences(parts: Parts, targets: Sequence[float], gate: float) -> list[str]:
    """What was measured, in words chosen by the numbers."""
    out = []
    race = list(parts.get("race", []))
    for target in targets:
        there = [r for r in race if math.isfinite(r[f"steps_to_{target:g}"].value)]
        if not there:
            out += [f"No strategy had half of its seeds at {target:g} within the budget."] if race else []
            continue
        first = min(there, key=lambda r: r[f"steps_to_{target:g}"].value)
        quick = min(there, key=lambda r: r[f"seconds_to_{target:g}"].value)
        out.append(
            f"{target:g}: fewest steps with {first['arm']}, {shown(first[f'steps_to_{target:g}'])}; least time with "
            f"{quick['arm']}, {short(quick[f'seconds_to_{target:g}'].value)} s; {len(there)} of {len(race)} strategies "
            "had half of their seeds there."
        )
    out += [form_sentence(pair) for pair in pairs(race)]
    for row in parts.get("overfit", []):
        if row["lost"].has_interval:
            out.append(
                f"{row['arm']}: on a new batch an update keeps {100 * (1 - row['lost'].value):.0f}% of what it claims "
                f"(lost {percent(row['lost'])})."
            )
    if gated := gated_part(parts):
        complied = [r for r in parts[gated] if math.isfinite(r["episodes_to_gate"].value)]
        words = "; ".join(f"{r['arm']} after {shown(r['episodes_to_gate'])} episodes" for r in complied)
        none = f"no strategy got the bound of {gated} to {gate:g} in half of its seeds"
        out.append(f"{gated.capitalize()} of {gate:g}: {words or none}.")
    return out


def pairs(race: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The rows of Monte Carlo and of GAE of the same strategy."""
    by_strategy: dict[str, list[Row]] = {}
    for row in race:
        by_strategy.setdefault(row["strategy"], []).append(row)
    return [(rows[0], rows[1]) for rows in by_strategy.values() if len(rows) == 2]


def form_sentence(pair: tuple[Row, Row]) -> str:
    a, b = pair
    x, y = a["final"], b["final"]
    apart = x.has_interval and y.has_interval and (x.low > y.high or y.low > x.high)
    better = a if x.value > y.value else b
    words = f"{better['returns']} ends higher" if apart else "no difference at the end can be told"
    return f"{a['strategy']}: {a['returns']} ends at {shown(x)}, {b['returns']} at {shown(y)}: {words}."


# --- files -----------------------------------------------------------------------------------------------------------


def write(out: Path, results: Results) -> None:
    """Write table.md, table.csv and summary.md."""
    parts, options, title = results["parts"], results["options"], f"Update strategies on {results['env']}"
    tables = {heading(part): Table.of(columns(part, rows), rows) for part, rows in parts.items()}
    write_tables(out, title, tables, "95% intervals in brackets; see summary.md.")
    lines: list[list[str]] = []
    for part, rows in parts.items():
        for row in rows:
            where = part + (f"/{row['policy']}" if "policy" in row else "")
            lines += [[where, row["arm"], name, *numbers] for name, numbers in numbers_of(row).items()]
    Table(["part", "arm", "measure", "value", "low", "high"], lines).write_csv(out / "table.csv")
    text = [
        f"{len(results['seeds'])} seeds, {results['budget']:,} env steps for each training (the replay a share of "
        f"{options['replay_share']:g} of it), evaluated on {options['eval_episodes']} greedy episodes.",
        "",
        *(f"- {line}" for line in results["sentences"]),
        "",
    ]
    write_summary(out, results, title, text, DEFINITIONS)


# --- pictures --------------------------------------------------------------------------------------------------------


def draw(out: Path, results: Results, curves: Mapping[str, list[Curve]]) -> None:
    parts = results["parts"]
    measures = trade_offs(parts)
    names = list(dict.fromkeys(row["arm"] for rows in parts.values() for row in rows))
    name = f"{results['env']} · {len(results['seeds'])} seeds"
    if measures:
        rows = -(-len(measures) // 3)
        with picture(out / "trade_offs.png", 13, rows * (0.34 * len(names) + 1.4)) as figure:
            axes = panels(figure, len(measures), min(3, len(measures)), sharey=True)
            for ax, (title, label, values, log) in zip(axes, measures):
                bars(ax, names, values, log)
                ax.set_title(title)
                ax.set_xlabel(label)
            axes[0].invert_yaxis()
            signature(figure, name)
    if curves:
        with picture(out / "curves.png", 9, 5) as figure:
            learning(figure.subplots(), curves, results["options"]["targets"])
            signature(figure, name)


def trade_offs(parts: Parts) -> list[tuple[str, str, dict[str, Estimate], bool]]:
    """(title, label of the axis, arm -> value, logarithmic) of what was measured."""
    panels: list[tuple[str, str, dict[str, Estimate], bool]] = []
    race = parts.get("race", [])
    if race:
        targets = [k.removeprefix("steps_to_") for k in race[0] if k.startswith("steps_to_")]
        best = max(targets, key=lambda t: (any(r[f"reached_{t}"] for r in race), float(t)))
        panels += [
            (f"Steps to a return of {best}", "env steps", {r["arm"]: r[f"steps_to_{best}"] for r in race}, True),
            (f"Time to a return of {best}", "s for each seed", {r["arm"]: r[f"seconds_to_{best}"] for r in race}, True),
            ("Return at the end", "greedy return", {r["arm"]: r["final"] for r in race}, False),
            ("Memory", "MB of a batch or replay", {r["arm"]: Estimate(r["memory"] / 1e6) for r in race}, True),
        ]
    halfway = [r for r in parts.get("gradient", []) if r["policy"] == "halfway"]
    if halfway:
        values = {r["arm"]: r["signal_to_noise"] for r in halfway}
        panels.append(("Signal to noise of the gradient", "half-trained policy", values, False))
    if parts.get("overfit"):
        values = {r["arm"]: Estimate(*(100 * x for x in r["lost"])) for r in parts["overfit"]}
        panels.append(("Gain lost on a new batch", "% of an update's claim", values, False))
    if gated := gated_part(parts):
        values = {r["arm"]: r["episodes_to_gate"] for r in parts[gated]}
        panels.append((heading(gated), "episodes", values, True))
    return panels


def bars(ax: Axes, names: list[str], values: Mapping[str, Estimate], log: bool) -> None:
    """A dot and its interval for each arm; `never` at the edge for what was not reached."""
    y = {name: i for i, name in enumerate(names)}
    finite = {n: e for n, e in values.items() if math.isfinite(e.value) and (not log or e.value > 0)}
    if log and finite:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda x, _: short(x))
        ax.xaxis.set_minor_formatter(lambda x, _: "")
    for name, e in finite.items():
        color = ORANGE if "Monte" in name else GREEN if name == "replay" else BLUE
        low, high = (x if math.isfinite(x) and (not log or x > 0) else e.value for x in (e.low, e.high))
        ax.plot([low, high], [y[name]] * 2, color=color, linewidth=2, alpha=0.5, solid_capstyle="round")
        ax.plot(e.value, y[name], "o", color=color, markersize=6)
    edge = ax.get_xlim()[1]
    for name in values:
        if name not in finite:
            ax.text(edge, y[name], "never ", color=GREY, fontsize=8, ha="right", va="center")
    ax.set_yticks(range(len(names)), names)
    ax.grid(axis="y", alpha=0.2)


def learning(ax: Axes, curves: Mapping[str, list[Curve]], targets: Sequence[float]) -> None:
    """Mean greedy return over seeds against env steps; dashed for Monte Carlo."""
    strategies = list(dict.fromkeys(name.split(", Monte")[0].split(", GAE")[0] for name in curves))
    for name, seeds in curves.items():
        strategy = name.split(", Monte")[0].split(", GAE")[0]
        color, line = CYCLE[strategies.index(strategy) % len(CYCLE)], "--" if "Monte" in name else "-"
        last = min(len(c.steps) for c in seeds)
        x = np.mean([c.steps[1:last] for c in seeds], axis=0)  # a logarithm has no place for the start
        ax.plot(x, np.mean([c.returns[1:last] for c in seeds], axis=0), color=color, linestyle=line, label=name)
    for target in targets:
        ax.axhline(target, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_xscale("log")
    if targets and max(targets) < 0:
        ax.set_yscale("symlog", linthresh=10)
        ax.set_ylim(top=max(np.max(line.get_ydata()) for line in ax.lines) / 1.3)
        ticks = [-1000, -500, -200, -100, -50, -20, -10]
        ax.set_yticks([y for y in ticks if ax.get_ylim()[0] <= y <= ax.get_ylim()[1]])
        ax.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    ax.set_xlabel("env steps")
    ax.set_ylabel("greedy return, mean over seeds")
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
