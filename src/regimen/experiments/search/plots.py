"""Pictures of a search: regret against the plain methods, the posterior, the gate's rate in training."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from regimen.experiments.search import loop
from regimen.experiments.search.loop import Search, Verdict
from regimen.experiments.search.methods import Belief
from regimen.reports.figure import BLUE, CYCLE, GREEN, GREY, ORANGE, PURPLE, RED, picture
from regimen.reports.plots import centred_average

LOOK = {"gp": BLUE, "random": ORANGE, "round_robin": GREEN, "exhaustive": GREY}
CAUSES = {
    loop.GATE_MET: GREEN,
    loop.PLATEAU: ORANGE,
    loop.CAP: RED,
    loop.BUDGET: PURPLE,
    loop.UNTRAINED: BLUE,
    loop.UNCONFIRMED: "#b7791f",
    loop.DIVERGED: CYCLE[-1],
}
MARKS = ((True, GREEN, "D", "gate met"), (False, RED, "X", "gate not met"))  # of feasible trials, and of others
MOST = 40  # candidates that can be told apart in a picture


def all_of(folder: Path, search: Search) -> None:
    """Draw the pictures that have data."""
    if search.verdicts:
        posterior(folder / "posterior.png", search)
        progress(folder / "progress.png", search)
    if search.options.gate is not None and search.store.rows:
        rates(folder / f"{search.store.names.rate}.png", search)


def posterior(path: Path, search: Search) -> None:
    """What is believed of every candidate, best first: mean and two deviations, what was measured, P(feasible)."""
    space, gate = search.space, search.options.gate
    belief = Belief.of(space, gate, search.evidence)
    values, likely = belief.values.posterior(), belief.likely()
    order = np.argsort(-values.mean, kind="stable")[:MOST]
    place = {int(c): i for i, c in enumerate(order)}
    y = np.arange(len(order))
    with picture(path, 8.5, 1.9 + 0.235 * len(order)) as figure:
        columns = 1 if likely is None else 2
        axes = figure.subplots(1, columns, sharey=True, squeeze=False, width_ratios=[3, 1][:columns])[0]
        ax, error = axes[0], 2 * values.std[order]
        style = {"fmt": "o", "color": BLUE, "markersize": 4, "linewidth": 1.3}
        ax.errorbar(values.mean[order], y, xerr=error, label="posterior mean ± 2 deviations", **style)
        for feasible, color, marker, text in MARKS:
            label: str | None = f"measured, {text}" if gate is not None else "measured"
            for old in (False, True):  # of a policy that was trained further since
                points = [v for v in search.verdicts if v.feasible == feasible and v.candidate in place]
                points = [v for v in points if superseded(search, v) == old]
                if points:
                    at = [v.outcome.value for v in points], [place[v.candidate] - 0.28 for v in points]
                    ax.scatter(*at, color=color, marker=marker, s=24, zorder=4, alpha=0.3 if old else 1.0, label=label)
                    label = None
        ax.set_yticks(y, [space.keys[c] for c in order], fontsize=8)
        ax.invert_yaxis()
        ax.set_xlabel(search.store.names.value)
        more = f" (best {MOST} of {len(space)})" if len(space) > MOST else ""
        ax.set_title(f"The posterior over candidates{more}")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=3)
        if likely is not None:
            axes[1].barh(y, likely[order], color=[GREEN if p >= 0.5 else RED for p in likely[order]], height=0.62)
            axes[1].set(xlim=(0, 1), xlabel="P(gate met)")
            axes[1].axvline(0.5, color=GREY, linewidth=0.8, linestyle="--")


def superseded(search: Search, verdict: Verdict) -> bool:
    """Whether the candidate was trained again after it."""
    later = search.verdicts[verdict.number + 1 :]
    return any(v.candidate == verdict.candidate and v.trained for v in later)


def rates(path: Path, search: Search) -> None:
    """The gate's rate in the training episodes of each trial, and where its own evaluation put it."""
    column = search.store.names.training.get("rate", "rate")
    with open(search.store.path / "training.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    gate = search.options.gate
    assert gate is not None
    with picture(path, 9.5, 4.8) as figure:
        ax = figure.subplots()
        colors = {0: GREY} if search.warmed else {}
        colors |= {v.number + 1: CAUSES[v.cause] for v in search.verdicts}
        lowest = gate.threshold
        for trial, color in colors.items():
            of_trial = [row for row in rows if int(row["trial"]) == trial]
            y = centred_average(np.array([float(row[column]) for row in of_trial]), window=5)
            if len(y):
                ax.plot([int(row["total_episodes"]) for row in of_trial], y, color=color, linewidth=1.5)
                lowest = min(lowest, float(y.min()))
        for v in search.verdicts:
            rate, color = v.outcome.rate, CAUSES[v.cause]
            if rate is not None:
                ax.plot([v.spent, v.spent], [rate.bound, rate.mean], color=color, linewidth=2.4, alpha=0.8)
                ax.plot(v.spent, rate.mean, "o" if v.feasible else "X", color=color, markersize=5)
                lowest = min(lowest, rate.bound)
            if len(search.verdicts) <= MOST:
                name, top = search.space.keys[v.candidate], ("data", "axes fraction")
                style = {"rotation": 60, "fontsize": 7, "color": "#4a5568", "ha": "left", "va": "bottom"}
                ax.annotate(name, (v.spent, 1.02), xycoords=top, **style)
        for cause in dict.fromkeys(v.cause for v in search.verdicts):
            ax.plot([], [], color=CAUSES[cause], linewidth=2, label=cause)
        if search.warmed:
            ax.plot([], [], color=GREY, linewidth=2, label="warm-up on all")
        ax.axhline(gate.threshold, color=RED, linewidth=1.1, linestyle="--")
        place = {"xycoords": ("axes fraction", "data"), "xytext": (2, 3), "textcoords": "offset points"}
        ax.annotate(f"gate {gate.threshold:g}", (0.002, gate.threshold), color=RED, fontsize=8, **place)
        name = search.store.names.rate
        ax.set(ylim=(max(0.0, lowest - 0.05), 1.02), xlabel="episodes spent", ylabel=name)
        figure.suptitle(f"{name.capitalize()}: training (lines), evaluation (dot) and its lower bound (bar)")
        figure.legend(loc="outside lower center", ncols=6, fontsize=8)


def progress(path: Path, search: Search) -> None:
    """Every trial's value, and the best feasible so far."""
    with picture(path, 7.5, 4.2) as figure:
        ax = figure.subplots()
        for feasible, color, marker, text in MARKS:
            points = [v for v in search.verdicts if v.feasible == feasible]
            if points:
                x, y = [v.spent for v in points], [v.outcome.value for v in points]
                style = {"fmt": marker, "color": color, "markersize": 5, "linewidth": 1}
                label = text if search.options.gate else "trial"
                ax.errorbar(x, y, [2 * v.outcome.se for v in points], label=label, **style)
        x, y = incumbents(search)
        if x:
            ax.step(x, y, where="post", color=BLUE, linewidth=1.8, label="best so far")
        ax.set(xlabel="episodes spent", ylabel=search.store.names.value)
        ax.set_title(f"{search.options.method}: {len(search.verdicts)} trials")
        ax.legend(loc="best")


def incumbents(search: Search, truth: Mapping[int, float] | None = None) -> tuple[list[int], list[float]]:
    """(episodes spent, value of the candidate recommended then), by `truth` where there is one."""
    spent, values = [], []
    latest: dict[int, float] = {}
    for v in search.verdicts:
        latest[v.candidate] = v.outcome.value
        if v.best is not None:
            spent.append(v.spent)
            values.append((truth or {}).get(v.best, latest[v.best]))
    return spent, values


def regret(path: Path, searches: Mapping[str, Search], truth: Mapping[int, float]) -> None:
    """How far the candidate recommended is below the best of `truth`, against the episodes spent."""
    top = max(truth.values(), default=0.0)
    with picture(path, 7.5, 4.2) as figure:
        ax = figure.subplots()
        for method, search in searches.items():
            x, y = incumbents(search, truth)
            if x:
                style = {"color": LOOK[method], "linewidth": 2 if method == "gp" else 1.5}
                ax.step(x, np.maximum(top - np.array(y), 0.0), where="post", label=method.replace("_", " "), **style)
        ax.set(xlabel="episodes spent", ylabel=f"regret in {searches['exhaustive'].store.names.value}")
        ax.set_title("Regret of the candidate recommended")
        if ax.get_legend_handles_labels()[0]:  # none where nothing was feasible
            ax.legend(loc="best")
