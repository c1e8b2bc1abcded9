"""Pictures of a batching study, in the style of a run's plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regimen.experiments.studies.batching.rows import POLICIES
from regimen.experiments.studies.curves import Row, final
from regimen.reports.figure import BLUE, CYCLE, GREEN, GREY, ORANGE, picture, signature, step_axis
from regimen.statistics import Estimate, bootstrap_band
from regimen.words import count, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from regimen.experiments.studies.batching.rows import RegimenRuns
    from regimen.experiments.studies.batching.study import BatchingStudy


def draw(study: BatchingStudy, parts: Sequence[str]) -> None:
    """The pictures of these parts, where they are measured."""
    rows, seeds = study.results["parts"], f"{len(study.seeds)} seeds"
    for part in parts:
        for name, paint, columns, height, sharey in PICTURES[part] if part in rows else ():
            tall = height or 0.42 * len(study.races_by_name()) + 1.9
            with picture(study.out / f"{name}.png", 11 if columns == 2 else 8, tall) as figure:
                paint(figure.subplots(1, columns, sharey=sharey, squeeze=False)[0], rows[part], study)
                signature(figure, f"{study.env} · {seeds if part != 'gradient' else '95% intervals'}")


LINES = {
    ("policy", "normalised"): ("policy, normalised advantages", BLUE, "o", "-"),
    ("policy", "raw"): ("policy, raw advantages", BLUE, "s", ":"),
    ("critic", "normalised"): ("critic", ORANGE, "^", "-"),
    ("all", "normalised"): ("whole gradient", GREEN, "D", "-"),
}


def variance(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    """Noise relative to the smallest rollout, one panel per policy, beside the 1/n law."""
    for ax, policy in zip(axes, POLICIES):
        members = [row for row in rows if row["policy"] == policy]
        sizes = sorted({row["size"] for row in members})
        if sizes:
            ax.plot(sizes, [sizes[0] / n for n in sizes], color=GREY, linestyle="--", linewidth=1.4, label="1/n")
        for shift, ((group, kind), style) in enumerate(LINES.items(), -1):
            band(ax, select(members, group, kind), "relative_noise", *style, shift)
        log_axis(ax, sizes)
        ax.set(yscale="log", title=f"At the {policy} policy", xlabel="episodes per rollout")
    axes[0].set_ylabel("variance of the gradient,\nrelative to the smallest rollout")
    axes[0].legend(loc="lower left")


def signal(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    names = (
        ("signal_to_noise", "Signal to noise of the policy's gradient", "|mean|² / trace of the covariance"),
        ("cosine", "Direction of the policy's gradient", "cosine to that of a large sample"),
    )
    group = "policy" if any(row["group"] == "policy" for row in rows) else "all"
    for ax, (name, title, label) in zip(axes, names):
        for i, (policy, color) in enumerate(zip(POLICIES, (BLUE, ORANGE, GREEN))):
            for j, (kind, marker, line) in enumerate((("normalised", "o", "-"), ("raw", "s", ":"))):
                points = select([row for row in rows if row["policy"] == policy], group, kind)
                band(ax, points, name, f"{policy} policy, {kind} advantages", color, marker, line, 2 * i + j - 1)
        log_axis(ax, sorted({row["size"] for row in rows}))
        ax.set(title=title, xlabel="episodes per rollout", ylabel=label)
    values = [row["signal_to_noise"].value for row in rows if not math.isnan(row["signal_to_noise"].value)]
    if values and min(values) > 0:
        axes[0].set_yscale("log")
    axes[1].set_ylim(top=1.0)
    axes[0].legend(loc="best")


def select(rows: list[Row], group: str, kind: str) -> list[Row]:
    members = [row for row in rows if row["group"] == group and row["advantages"] == kind]
    return sorted(members, key=lambda row: row["size"])


def band(ax: Axes, rows: list[Row], name: str, label: str, color: str, marker: str, line: str, shift: int = 0) -> None:
    """A line through the estimates with their intervals, moved a little aside where there are several lines."""
    rows = [row for row in rows if math.isfinite(row[name].value)]
    if not rows:
        return
    x = [row["size"] * 1.035**shift for row in rows]
    value, low, high = np.array([row[name] for row in rows]).T
    ends = [np.where(np.isfinite(end), np.abs(end - value), 0.0) for end in (low, high)]
    face = color if line == "-" else "white"
    ax.errorbar(
        x, value, ends, fmt=marker + line, color=color, label=label, mfc=face, ms=5, lw=1.6, capsize=2.5, elinewidth=1.4
    )


def log_axis(ax: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, an axis that is labelled at the values measured and nowhere else."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(FixedLocator(values))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def race(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    """Steps and updates to the target: every seed a dot, the median and its interval; late ones at the right edge."""
    races, target = study.races_by_name(), study.target
    for ax, unit in zip(axes, ("steps", "updates")):
        values = [races[row["name"]].reached(unit, target) for row in rows]
        if unit == "updates":
            first = 1  # a logarithmic axis has no 0
            edge = 1.6 * max(
                *(x for x in np.concatenate(values) if np.isfinite(x)), *(row["updates"] for row in rows), 0
            )
            ax.set(xscale="log", xlim=(0.8, 1.15 * edge), xlabel="updates")
        else:
            first = 0
            edge = 1.06 * study.budget
            ax.set(xlim=(0, edge * 1.02), xlabel="env steps")
        for y, (row, x) in enumerate(zip(rows, values)):
            beside, there = y + spread(x, 0.22), np.isfinite(x)
            ax.scatter(np.maximum(x[there], first), beside[there], s=12, color=BLUE, alpha=0.35, linewidths=0)
            ax.scatter(np.full((~there).sum(), edge), beside[~there], s=22, color=ORANGE, marker=">", linewidths=0)
            e: Estimate = row[f"{unit}_to_target"]
            if math.isfinite(e.value):
                ends = [e.value if math.isnan(end) else min(max(end, first), edge) for end in (e.low, e.high)]
                ax.plot(ends, [y, y], color=BLUE, linewidth=2.4, alpha=0.8)
                ax.plot(max(e.value, first), y, "o", color=BLUE, markersize=8, markeredgecolor="white")
        ax.set(ylim=(len(rows) - 0.5, -0.5), title=f"{unit.capitalize()} to {target:g}")
        ax.set_yticks(range(len(rows)), [row["name"] for row in rows])
        ax.grid(axis="y", visible=False)
        step_axis(ax)
    some = any(not math.isnan(row["steps_to_target"].low) for row in rows)
    axes[0].plot([], [], "o", color=BLUE, label="median, 95% interval" if some else "median")
    if any(np.isinf(race.reached("steps", target)).any() for race in races.values()):
        axes[0].plot([], [], ">", color=ORANGE, label="seeds that never got there")
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def spread(values: np.ndarray, width: float) -> np.ndarray:
    """Offsets that set dots of one place side by side; none for a single one."""
    return width * np.linspace(-1, 1, len(values)) if len(values) > 1 else np.zeros(1)


def learning(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    """Evaluation return over env steps, mean and 95% bootstrap band over seeds."""
    mean_curves(axes[0], study.races_by_name(), "returns")
    target_line(axes[0], study)
    over_steps(axes[0], "Evaluation during training", "greedy return")


def entropy(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    mean_curves(axes[0], study.races_by_name(), "entropy")
    over_steps(axes[0], "Entropy of the policy", "nats")


def mean_curves(ax: Axes, races: dict[str, RegimenRuns], field: str) -> None:
    """Rollout sizes as solid lines, presets as broken ones."""
    for (label, race), color in zip(races.items(), CYCLE * 2):
        lines = []
        for curve in race.curves:
            x, y = np.array(curve.steps, float), np.array(getattr(curve, field), float)
            finite = np.isfinite(y)
            if finite.any():
                lines.append((x[finite], y[finite]))
        if not lines:
            continue
        grid = np.linspace(min(x[0] for x, _ in lines), max(x[-1] for x, _ in lines), 120)
        values = np.stack([np.interp(grid, x, y) for x, y in lines])
        if len(lines) > 1:
            ax.fill_between(grid, *bootstrap_band(values), color=color, alpha=0.09, linewidth=0)
        style = "-" if label[:1].isdigit() else (0, (4, 1.5))
        ax.plot(grid, values.mean(0), color=color, linewidth=1.8, linestyle=style, label=label)


def target_line(ax: Axes, study: BatchingStudy) -> None:
    ax.axhline(study.target, color=GREY, linewidth=1.2, linestyle="--", label=f"target {study.target:g}")


def over_steps(ax: Axes, title: str, label: str) -> None:
    ax.set(title=title, xlabel="env steps", ylabel=label)
    ax.set_xlim(left=0)
    step_axis(ax)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def stability(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    """The final return of every seed, and how many lost what they had learnt."""
    races = study.races_by_name()
    for x, row in enumerate(rows):
        values = np.array([final(c) for c in races[row["name"]].curves])
        axes[0].scatter(x + spread(values, 0.16), values, s=14, color=BLUE, alpha=0.45, linewidths=0)
        whisker(axes[0], x, row["final"], BLUE)
        whisker(axes[1], x, row["collapse_rate"], ORANGE)
    axes[0].set(title="Final return by seed, interquartile mean", ylabel="greedy return")
    axes[1].set(title="Seeds that lost what they had learnt", ylabel="share of those that had learnt it")
    axes[1].set_ylim(-0.03, 1.03)
    for ax in axes:
        ax.set_xticks(range(len(rows)), [row["name"] for row in rows], rotation=30, ha="right")
        ax.set_xlim(-0.6, len(rows) - 0.4)
        ax.grid(axis="x", visible=False)


def whisker(ax: Axes, x: float, e: Estimate, color: str) -> None:
    """A value with its interval."""
    if not math.isfinite(e.value):
        return
    if math.isfinite(e.low) and math.isfinite(e.high):
        ax.plot([x, x], [e.low, e.high], color=color, linewidth=2.2, alpha=0.8)
    ax.plot(x, e.value, "o", color=color, markersize=7, markeredgecolor="white")


def note(ax: Axes, x: float, words: str) -> None:
    """Small words at the foot of a column."""
    ax.annotate(words, (x, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8, color=GREY)


def epochs(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    for i, row in enumerate(rows):
        e: Estimate = row["steps_to_target"]
        if math.isfinite(e.value):
            whisker(axes[0], i, Estimate(e.value, e.low, min(e.high, study.budget)), BLUE)
        else:
            axes[0].plot(i, study.budget, "^", color=ORANGE, markersize=9)
            words = "not by half\nof the seeds"
            axes[0].annotate(words, (i, 0.95 * study.budget), ha="center", va="top", fontsize=8, color=ORANGE)
        note(axes[0], i, f"{row['reached']} of {row['seeds']}")
        whisker(axes[1], i, row["final"], BLUE)
    axes[0].set(ylim=(0, 1.05 * study.budget), title=f"Env steps to {study.target:g}", ylabel="env steps")
    axes[0].yaxis.set_major_formatter(lambda value, _: count(value))
    axes[1].set(title="Final return, interquartile mean", ylabel="greedy return")
    for ax in axes:
        columns(ax, [row["epochs"] for row in rows], f"epochs over each batch of {rows[0]['episodes']} episodes")


def columns(ax: Axes, names: Sequence[object], label: str) -> None:
    """Label an x axis that has a column for each name."""
    ax.set_xticks(range(len(names)), list(map(str, names)))
    ax.set(xlim=(-0.5, len(names) - 0.5), xlabel=label)
    ax.grid(axis="x", visible=False)


def rates(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    ax, sizes = axes[0], list(dict.fromkeys(row["size"] for row in rows))
    for i, (size, color) in enumerate(zip(sizes, CYCLE * 2)):
        members = sorted((row for row in rows if row["size"] == size), key=lambda row: row["lr"])
        x = [row["lr"] * 1.03 ** (i - (len(sizes) - 1) / 2) for row in members]
        ax.plot(x, [row["final"].value for row in members], color=color, linewidth=1.6, label=plural(size, "episode"))
        for at, row in zip(x, members):
            whisker(ax, at, row["final"], color)
    target_line(ax, study)
    log_axis(ax, sorted({row["lr"] for row in rows}))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    title = "Final return at a third, one and three times the learning rate"
    ax.set(title=title, xlabel="learning rate", ylabel="greedy return, interquartile mean")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def outlier(axes: Sequence[Axes], rows: list[Row], study: BatchingStudy) -> None:
    """The loss to the control over the updates after the outlier, and right after it."""
    for (size, arms), color in zip(study.outliers.items(), CYCLE):
        returns = [[dict(zip(c.updates, c.returns)) for c in pair] for pair in zip(arms.control, arms.outlier)]
        looks = sorted(set.intersection(*(set(by_updates) for pair in returns for by_updates in pair)))
        losses = [float(np.mean([control[u] - hit[u] for control, hit in returns])) for u in looks]
        axes[0].plot(looks, losses, color=color, marker="o", markersize=4, linewidth=1.8, label=plural(size, "episode"))
    log_axis(axes[0], [1, 2, 5, 10, 20, 50])
    axes[0].set(title="Return lost to an outlier, against the same run without", xlabel="updates since")
    axes[0].set_ylabel("loss of greedy return, mean over seeds")
    axes[0].legend(loc="best")
    for i, (row, color) in enumerate(zip(rows, CYCLE)):
        whisker(axes[1], i, row["drop"], color)
        after = row["recovery"].value
        words = "none fell" if not row["fell"] else f"{row['fell']} of {row['seeds']} fell"
        if row["fell"] and after:
            words += f"\nback after {after:.0f}" if math.isfinite(after) else "\nnot back"
        note(axes[1], i, words)
    axes[1].margins(y=0.25)
    columns(axes[1], [row["size"] for row in rows], "episodes per update")
    axes[1].set_title("Right after it")
    for ax in axes:
        ax.axhline(0, color=GREY, linewidth=1, linestyle=":")


class Picture(NamedTuple):
    """A picture of a part: what paints its axes side by side; without a height it grows with the regimens."""

    name: str
    paint: Callable[[Sequence[Axes], list[Row], BatchingStudy], None]
    columns: int = 2
    height: float | None = 4.4
    sharey: bool = False


PICTURES = {
    "gradient": (
        Picture("gradient_variance", variance, columns=len(POLICIES), sharey=True),
        Picture("gradient_signal", signal),
    ),
    "target": (
        Picture("target", race, height=None, sharey=True),
        Picture("curves", learning, columns=1),
        Picture("stability", stability),
        Picture("entropy", entropy, columns=1),
    ),
    "epochs": (Picture("epochs", epochs, height=4.2),),
    "rates": (Picture("rates", rates, columns=1),),
    "outlier": (Picture("outlier", outlier),),
}
