"""Pictures of a batching study, in the style of a run's plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.experiments.studies.curves import Curve, Results, Row, final
from regimen.reports.figure import BLUE, CYCLE, GREEN, GREY, ORANGE, picture, signature, step_axis
from regimen.statistics import Estimate, bootstrap_band
from regimen.words import count, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from regimen.experiments.studies.rows import Outliers, Race


def draw(
    out: Path, results: Results, runs: Mapping[str, Race], outliers: Mapping[int, Outliers], parts: Sequence[str]
) -> list[Path]:
    """The pictures of these parts. `runs` are those of the target part by name, `outliers` by rollout size."""
    rows = results["parts"]
    made: dict[str, list[tuple[str, tuple[float, float], int, Callable[[Sequence[Axes]], None]]]] = {
        "gradient": [
            ("gradient_variance", (11, 4.4), 2, lambda axes: variance(axes, rows["gradient"])),
            ("gradient_signal", (11, 4.4), 2, lambda axes: signal(axes, rows["gradient"])),
        ],
        "target": [
            ("target", (11, 0.42 * len(runs) + 1.9), 2, lambda axes: race(axes, runs, results)),
            ("curves", (8, 4.4), 1, lambda axes: learning(axes[0], runs, results)),
            ("stability", (11, 4.4), 2, lambda axes: stability(axes, runs, results)),
            ("entropy", (8, 4.4), 1, lambda axes: entropy(axes[0], runs)),
        ],
        "epochs": [("epochs", (11, 4.2), 2, lambda axes: epochs(axes, rows["epochs"], results))],
        "rates": [("rates", (8, 4.4), 1, lambda axes: rates(axes[0], rows["rates"], results))],
        "outlier": [("outlier", (11, 4.4), 2, lambda axes: outlier(axes, outliers, rows["outlier"]))],
    }
    paths = []
    for part in parts:
        for name, size, columns, paint in made[part] if part in rows else []:
            paths.append(out / f"{name}.png")
            with picture(paths[-1], *size) as figure:
                sharey = name in ("target", "gradient_variance")
                paint(figure.subplots(1, columns, sharey=sharey, squeeze=False)[0])
                seeds = f"{len(results['seeds'])} seeds" if part != "gradient" else "95% intervals"
                signature(figure, f"{results['env']} · {seeds}")
    return paths


# --- gradient --------------------------------------------------------------------------------------------------------

LINES = {
    ("policy", "normalised"): ("policy, normalised advantages", BLUE, "o", "-"),
    ("policy", "raw"): ("policy, raw advantages", BLUE, "s", ":"),
    ("critic", "normalised"): ("critic", ORANGE, "^", "-"),
    ("all", "normalised"): ("whole gradient", GREEN, "D", "-"),
}


def variance(axes: Sequence[Axes], rows: list[Row]) -> None:
    """Noise relative to the smallest rollout, one panel per policy, beside the 1/n law."""
    for ax, policy in zip(axes, ("initial", "halfway")):
        members = [row for row in rows if row["policy"] == policy]
        sizes = sorted({row["size"] for row in members})
        if sizes:
            ax.plot(sizes, [sizes[0] / n for n in sizes], color=GREY, linestyle="--", linewidth=1.4, label="1/n")
        for shift, ((group, kind), style) in enumerate(LINES.items(), -1):
            band(ax, select(members, group, kind), "relative_noise", *style, shift)
        log_axis(ax, sizes)
        ax.set_yscale("log")
        ax.set_title(f"At the {policy} policy")
        ax.set_xlabel("episodes per rollout")
    axes[0].set_ylabel("variance of the gradient,\nrelative to the smallest rollout")
    axes[0].legend(loc="lower left")


def signal(axes: Sequence[Axes], rows: list[Row]) -> None:
    names = (
        ("signal_to_noise", "Signal to noise of the policy's gradient", "|mean|² / trace of the covariance"),
        ("cosine", "Direction of the policy's gradient", "cosine to that of a large sample"),
    )
    sizes = sorted({row["size"] for row in rows})
    for ax, (name, title, label) in zip(axes, names):
        for i, (policy, color) in enumerate((("initial", BLUE), ("halfway", ORANGE))):
            for j, (kind, marker, line) in enumerate((("normalised", "o", "-"), ("raw", "s", ":"))):
                group = "policy" if any(row["group"] == "policy" for row in rows) else "all"
                points = select([row for row in rows if row["policy"] == policy], group, kind)
                band(ax, points, name, f"{policy} policy, {kind} advantages", color, marker, line, 2 * i + j - 1)
        log_axis(ax, sizes)
        ax.set_title(title)
        ax.set_xlabel("episodes per rollout")
        ax.set_ylabel(label)
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
    value, low, high = (np.array([row[name][i] for row in rows]) for i in range(3))
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


# --- trainings -------------------------------------------------------------------------------------------------------


def race(axes: Sequence[Axes], runs: Mapping[str, Race], results: Results) -> None:
    """Steps and updates to the target: every seed a dot, the median and its interval; late ones at the right edge."""
    by_name = {row["name"]: row for row in results["parts"]["target"]}
    target, names = results["target"], list(runs)
    for ax, unit in zip(axes, ("steps", "updates")):
        values = {name: runs[name].reached(unit, target) for name in names}
        reached = np.concatenate([v[np.isfinite(v)] for v in values.values()])
        if unit == "updates":
            ax.set_xscale("log")
            edge = 1.6 * max([*reached, *(by_name[name]["updates"] for name in names)])
            ax.set_xlim(0.8, 1.15 * edge)
        else:
            edge = 1.06 * results["budget"]
        first = 1 if unit == "updates" else 0  # a logarithmic axis has no 0
        for y, name in enumerate(names):
            x = values[name]
            jitter = y + 0.22 * np.linspace(-1, 1, len(x)) if len(x) > 1 else np.array([y])
            there = np.isfinite(x)
            ax.scatter(np.maximum(x[there], first), jitter[there], s=12, color=BLUE, alpha=0.35, linewidths=0)
            ax.scatter(np.full((~there).sum(), edge), jitter[~there], s=22, color=ORANGE, marker=">", linewidths=0)
            e: Estimate = by_name[name][f"{unit}_to_target"]
            if math.isfinite(e.value):
                ends = [e.value if math.isnan(end) else min(max(end, first), edge) for end in (e.low, e.high)]
                ax.plot(ends, [y, y], color=BLUE, linewidth=2.4, alpha=0.8)
                ax.plot(max(e.value, first), y, "o", color=BLUE, markersize=8, markeredgecolor="white")
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.set_yticks(range(len(names)), names)
        ax.grid(axis="y", visible=False)
        ax.set_title(f"{unit.capitalize()} to {target:g}")
        ax.set_xlabel("env steps" if unit == "steps" else "updates")
        if unit == "steps":
            ax.set_xlim(0, edge * 1.02)
        step_axis(ax)
    shown = any(not math.isnan(row["steps_to_target"].low) for row in by_name.values())
    axes[0].plot([], [], "o", color=BLUE, label="median, 95% interval" if shown else "median")
    if any(np.isinf(run.reached("steps", target)).any() for run in runs.values()):
        axes[0].plot([], [], ">", color=ORANGE, label="seeds that never got there")
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def learning(ax: Axes, runs: Mapping[str, Race], results: Results) -> None:
    """Evaluation return over env steps, mean and 95% bootstrap band over seeds."""
    for (name, run), color in zip(runs.items(), CYCLE * 2):
        mean_curve(ax, run, "returns", name, color)
    ax.axhline(results["target"], color=GREY, linewidth=1.2, linestyle="--", label=f"target {results['target']:g}")
    over_steps(ax, "Evaluation during training", "greedy return")


def entropy(ax: Axes, runs: Mapping[str, Race]) -> None:
    for (name, run), color in zip(runs.items(), CYCLE * 2):
        mean_curve(ax, run, "entropy", name, color)
    over_steps(ax, "Entropy of the policy", "nats")


def mean_curve(ax: Axes, run: Race, field: str, label: str, color: str) -> None:
    """Rollout sizes as solid lines, presets as broken ones."""
    lines = []
    for curve in run.curves:
        x, y = np.array(curve.steps, float), np.array(getattr(curve, field), float)
        finite = np.isfinite(y)
        if finite.any():
            lines.append((x[finite], y[finite]))
    if not lines:
        return
    grid = np.linspace(min(x[0] for x, _ in lines), max(x[-1] for x, _ in lines), 120)
    values = np.stack([np.interp(grid, x, y) for x, y in lines])
    if len(lines) > 1:
        ax.fill_between(grid, *bootstrap_band(values), color=color, alpha=0.09, linewidth=0)
    style = "-" if label[:1].isdigit() else (0, (4, 1.5))
    ax.plot(grid, values.mean(0), color=color, linewidth=1.8, linestyle=style, label=label)


def over_steps(ax: Axes, title: str, label: str) -> None:
    ax.set_title(title)
    ax.set_xlabel("env steps")
    ax.set_ylabel(label)
    ax.set_xlim(left=0)
    step_axis(ax)
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def stability(axes: Sequence[Axes], runs: Mapping[str, Race], results: Results) -> None:
    """The final return of every seed, and how many lost what they had learnt."""
    rows = {row["name"]: row for row in results["parts"]["target"]}
    for x, (name, run) in enumerate(runs.items()):
        values = np.array([final(c) for c in run.curves])
        jitter = x + 0.16 * np.linspace(-1, 1, len(values)) if len(values) > 1 else np.array([x])
        axes[0].scatter(jitter, values, s=14, color=BLUE, alpha=0.45, linewidths=0)
        whisker(axes[0], x, rows[name]["final"], BLUE)
        whisker(axes[1], x, rows[name]["collapse_rate"], ORANGE)
    axes[0].set_title("Final return by seed, interquartile mean")
    axes[0].set_ylabel("greedy return")
    axes[1].set_title("Seeds that lost what they had learnt")
    axes[1].set_ylabel("share of those that had learnt it")
    axes[1].set_ylim(-0.03, 1.03)
    for ax in axes:
        ax.set_xticks(range(len(runs)), list(runs), rotation=30, ha="right")
        ax.set_xlim(-0.6, len(runs) - 0.4)
        ax.grid(axis="x", visible=False)


def whisker(ax: Axes, x: float, e: Estimate, color: str, label: str | None = None) -> None:
    """A value with its interval."""
    if not math.isfinite(e.value):
        return
    if math.isfinite(e.low) and math.isfinite(e.high):
        ax.plot([x, x], [e.low, e.high], color=color, linewidth=2.2, alpha=0.8)
    ax.plot(x, e.value, "o", color=color, markersize=7, markeredgecolor="white", label=label)


def note(ax: Axes, x: float, words: str) -> None:
    """Small words at the foot of a column."""
    ax.annotate(words, (x, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8, color=GREY)


def epochs(axes: Sequence[Axes], rows: list[Row], results: Results) -> None:
    for i, row in enumerate(rows):
        e: Estimate = row["steps_to_target"]
        if math.isfinite(e.value):
            whisker(axes[0], i, Estimate(e.value, e.low, min(e.high, results["budget"])), BLUE)
        else:
            axes[0].plot(i, results["budget"], "^", color=ORANGE, markersize=9)
            words = "not by half\nof the seeds"
            axes[0].annotate(words, (i, 0.95 * results["budget"]), ha="center", va="top", fontsize=8, color=ORANGE)
        note(axes[0], i, f"{row['reached']} of {row['seeds']}")
        whisker(axes[1], i, row["final"], BLUE)
    axes[0].set_ylim(0, 1.05 * results["budget"])
    axes[0].set_title(f"Env steps to {results['target']:g}")
    axes[0].set_ylabel("env steps")
    axes[0].yaxis.set_major_formatter(lambda value, _: count(value))
    axes[1].set_title("Final return, interquartile mean")
    axes[1].set_ylabel("greedy return")
    for ax in axes:
        ax.set_xticks(range(len(rows)), [str(row["epochs"]) for row in rows])
        ax.set_xlim(-0.5, len(rows) - 0.5)
        ax.set_xlabel(f"epochs over each batch of {rows[0]['episodes']} episodes")
        ax.grid(axis="x", visible=False)


def rates(ax: Axes, rows: list[Row], results: Results) -> None:
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    for size, color in zip(sizes, CYCLE * 2):
        members = sorted((row for row in rows if row["size"] == size), key=lambda row: row["lr"])
        shift = 1.03 ** (sizes.index(size) - (len(sizes) - 1) / 2)
        label = plural(size, "episode")
        x, y = [row["lr"] * shift for row in members], [row["final"].value for row in members]
        ax.plot(x, y, color=color, linewidth=1.6, label=label)
        for row in members:
            whisker(ax, row["lr"] * shift, row["final"], color)
    ax.axhline(results["target"], color=GREY, linewidth=1.2, linestyle="--", label=f"target {results['target']:g}")
    log_axis(ax, sorted({row["lr"] for row in rows}))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
    ax.set_title("Final return at a third, one and three times the learning rate")
    ax.set_xlabel("learning rate")
    ax.set_ylabel("greedy return, interquartile mean")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def outlier(axes: Sequence[Axes], outliers: Mapping[int, Outliers], rows: list[Row]) -> None:
    """The loss to the control over the updates after the outlier, and right after it."""
    for (size, arms), color in zip(outliers.items(), CYCLE):
        pairs = list(zip(arms.control, arms.outlier))
        looks = sorted({u for c, h in pairs for u in set(c.updates) & set(h.updates)})
        points = []
        for u in looks:
            gaps = [c.returns[c.updates.index(u)] - h.returns[h.updates.index(u)] for c, h in pairs if both(c, h, u)]
            if len(gaps) == len(pairs):
                points.append((u, float(np.mean(gaps))))
        label = plural(size, "episode")
        axes[0].plot(*zip(*points), color=color, marker="o", markersize=4, linewidth=1.8, label=label)
    axes[0].axhline(0, color=GREY, linewidth=1, linestyle=":")
    log_axis(axes[0], [1, 2, 5, 10, 20, 50])
    axes[0].set_title("Return lost to an outlier, against the same run without")
    axes[0].set_xlabel("updates since")
    axes[0].set_ylabel("loss of greedy return, mean over seeds")
    axes[0].legend(loc="best")
    for i, (row, color) in enumerate(zip(rows, CYCLE)):
        whisker(axes[1], i, row["drop"], color)
        after = row["recovery"].value
        words = "none fell" if not row["fell"] else f"{row['fell']} of {row['seeds']} fell"
        if row["fell"] and after:
            words += f"\nback after {after:.0f}" if math.isfinite(after) else "\nnot back"
        note(axes[1], i, words)
    axes[1].axhline(0, color=GREY, linewidth=1, linestyle=":")
    axes[1].margins(y=0.25)
    axes[1].set_xticks(range(len(rows)), [str(row["size"]) for row in rows])
    axes[1].set_xlim(-0.5, len(rows) - 0.5)
    axes[1].set_xlabel("episodes per update")
    axes[1].set_title("Right after it")
    axes[1].grid(axis="x", visible=False)


def both(a: Curve, b: Curve, updates: int) -> bool:
    return updates in a.updates and updates in b.updates
