"""Pictures of a study of update strategies: trade-offs and learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regimen.experiments.studies.curves import Curve, Row
from regimen.experiments.studies.report import short
from regimen.reports.figure import BLUE, CYCLE, GREEN, GREY, ORANGE, panels, picture, signature
from regimen.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from regimen.experiments.studies.updates.study import UpdatesStudy


class TradeOff(NamedTuple):
    """A panel of a picture: a measure by arm."""

    title: str
    label: str
    values: dict[str, Estimate]
    log: bool = True


def draw(study: UpdatesStudy) -> None:
    parts = study.results["parts"]
    measures = trade_offs(study)
    arms = list(dict.fromkeys(row["arm"] for rows in parts.values() for row in rows))
    name = f"{study.env} · {len(study.seeds)} seeds"
    if measures:
        rows = -(-len(measures) // 3)
        with picture(study.out / "trade_offs.png", 13, rows * (0.34 * len(arms) + 1.4)) as figure:
            axes = panels(figure, len(measures), min(3, len(measures)), sharey=True)
            for ax, measure in zip(axes, measures):
                bars(ax, arms, measure.values, measure.log)
                ax.set(title=measure.title, xlabel=measure.label)
            axes[0].invert_yaxis()
            signature(figure, name)
    if study.curves:
        with picture(study.out / "curves.png", 9, 5) as figure:
            learning(figure.subplots(), study.curves, study.options.targets)
            signature(figure, name)


def targets_of(race: Sequence[Row]) -> list[str]:
    """The returns whose times a race has measured; none of the rows of another part."""
    return [name.removeprefix("steps_to_") for name in race[0] if name.startswith("steps_to_")]


def trade_offs(study: UpdatesStudy) -> list[TradeOff]:
    """What was measured, by arm."""
    parts = study.results["parts"]
    out = []

    def by_arm(rows: Sequence[Row], name: str) -> dict[str, Estimate]:
        return {row["arm"]: row[name] for row in rows}

    if race := parts.get("race"):
        best = max(targets_of(race), key=lambda t: (any(row[f"reached_{t}"] for row in race), float(t)))
        memory = {row["arm"]: Estimate(row["memory"] / 1e6) for row in race}
        out += [
            TradeOff(f"Steps to a return of {best}", "env steps", by_arm(race, f"steps_to_{best}")),
            TradeOff(f"Time to a return of {best}", "s for each seed", by_arm(race, f"seconds_to_{best}")),
            TradeOff("Return at the end", "greedy return", by_arm(race, "final"), False),
            TradeOff("Memory", "MB of a batch or replay", memory),
        ]
    if halfway := [row for row in parts.get("gradient", []) if row["policy"] == "halfway"]:
        values = by_arm(halfway, "signal_to_noise")
        out.append(TradeOff("Signal to noise of the gradient", "half-trained policy", values, False))
    if overfit := parts.get("overfit"):
        values = {row["arm"]: Estimate(*(100 * x for x in row["lost"])) for row in overfit}
        out.append(TradeOff("Gain lost on a new batch", "% of an update's claim", values, False))
    if gated := parts.get(study.options.gated):
        out.append(TradeOff(study.heading(study.options.gated), "episodes", by_arm(gated, "episodes_to_gate")))
    return out


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
    strategies = {name: name.split(", Monte")[0].split(", GAE")[0] for name in curves}
    order = list(dict.fromkeys(strategies.values()))
    for name, seeds in curves.items():
        color, line = CYCLE[order.index(strategies[name]) % len(CYCLE)], "--" if "Monte" in name else "-"
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
    ax.set(xlabel="env steps", ylabel="greedy return, mean over seeds")
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
