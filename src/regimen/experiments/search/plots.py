"""Pictures of a search: regret against the plain methods, the posterior, the gate's rate in training."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.experiments.search.loop import Search, Verdict
from regimen.experiments.search.methods import Model, recommend
from regimen.reports.figure import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, picture
from regimen.reports.plots import centred_average

if TYPE_CHECKING:
    from regimen.experiments.search.api import Names

LOOK = {"gp": BLUE, "random": ORANGE, "round_robin": GREEN, "exhaustive": GREY}
CAUSES = {
    "gate met": GREEN,
    "plateau": ORANGE,
    "episode cap": RED,
    "budget": PURPLE,
    "no training": BLUE,
    "gate met once, not confirmed": "#b7791f",
}
MOST = 40  # candidates that can be told apart in a picture


def all_of(folder: Path, search: Search, names: Names) -> list[Path]:
    """Those that have data."""
    made = []
    if search.verdicts:
        made += [posterior(folder / "posterior.png", search, names), progress(folder / "progress.png", search, names)]
    if search.options.gate is not None and search.store.rows:
        made.append(rates(folder / f"{names.rate}.png", search, names))
    return made


def posterior(path: Path, search: Search, names: Names) -> Path:
    """What is believed of every candidate, best first: mean and two deviations, what was measured, P(feasible)."""
    space, gate = search.space, search.options.gate
    model = Model.of(space, gate, [v.seen for v in search.verdicts])
    belief = model.values.posterior()
    order = np.argsort(-belief.mean, kind="stable")[:MOST]
    likely = None if model.feasibility is None else model.feasibility.probability()
    with picture(path, 8.5, 1.9 + 0.235 * len(order)) as figure:
        axes = figure.subplots(
            1,
            2 if likely is not None else 1,
            sharey=True,
            squeeze=False,
            width_ratios=[3, 1][: 1 + (likely is not None)],
        )[0]
        y = np.arange(len(order))
        ax = axes[0]
        ax.errorbar(
            belief.mean[order], y, xerr=2 * belief.std[order], fmt="o", color=BLUE, markersize=4, linewidth=1.3,
            label="posterior mean ± 2 deviations",
        )  # fmt: skip
        place = {int(c): i for i, c in enumerate(order)}
        for feasible, color, marker, text in (
            (True, GREEN, "D", "measured, gate met"),
            (False, RED, "X", "measured, gate not met"),
        ):
            label: str | None = text if gate is not None else "measured"
            for old in (False, True):  # of a policy that was trained further since
                mine = [v for v in search.verdicts if v.feasible == feasible and v.candidate in place]
                mine = [v for v in mine if superseded(search, v) == old]
                if mine:
                    at = [v.outcome.value for v in mine], [place[v.candidate] - 0.28 for v in mine]
                    ax.scatter(*at, color=color, marker=marker, s=24, zorder=4, alpha=0.3 if old else 1.0, label=label)
                    label = None
        ax.set_yticks(y, [space.keys[c] for c in order], fontsize=8)
        ax.invert_yaxis()
        ax.set_xlabel(names.value)
        more = f" (best {MOST} of {len(space)})" if len(space) > MOST else ""
        ax.set_title(f"The posterior over candidates{more}")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=3)
        if likely is not None:
            axes[1].barh(y, likely[order], color=[GREEN if p >= 0.5 else RED for p in likely[order]], height=0.62)
            axes[1].set_xlim(0, 1)
            axes[1].set_xlabel("P(gate met)")
            axes[1].axvline(0.5, color=GREY, linewidth=0.8, linestyle="--")
    return path


def superseded(search: Search, verdict: Verdict) -> bool:
    """Whether the candidate was trained again after it."""
    later = search.verdicts[verdict.number + 1 :]
    return any(v.candidate == verdict.candidate and v.trained for v in later)


def rates(path: Path, search: Search, names: Names) -> Path:
    """The gate's rate in the training episodes of each trial, and where its own evaluation put it."""
    labels = {"trial": "trial", "rate": search.store.training.get("rate", "rate"), "episodes": "episodes"}
    with open(search.store.path / "training.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    gate = search.options.gate
    assert gate is not None
    with picture(path, 9.5, 4.8) as figure:
        ax = figure.subplots()
        warm = [(0, GREY)] if search.warmed else []
        lines = warm + [(v.number + 1, CAUSES.get(v.cause, "#97266d")) for v in search.verdicts]
        lowest = 1.0
        for trial, color in lines:
            mine = [r for r in rows if int(r["trial"]) == trial and r.get(labels["rate"])]
            x = np.array([int(r["total_episodes"]) for r in mine])
            y = centred_average(np.array([float(r[labels["rate"]]) for r in mine]), window=5)
            if len(x):
                ax.plot(x, y, color=color, linewidth=1.5)
                lowest = min(lowest, float(y.min()))
        for v in search.verdicts:
            r, color = v.outcome.rate, CAUSES.get(v.cause, "#97266d")
            if r is not None:
                ax.plot([v.spent, v.spent], [r.bound, r.mean], color=color, linewidth=2.4, alpha=0.8)
                ax.plot(v.spent, r.mean, "o" if v.feasible else "X", color=color, markersize=5)
                lowest = min(lowest, r.bound)
            if len(search.verdicts) <= MOST:
                name = search.space.keys[v.candidate]
                place, top = (v.spent, 1.02), ("data", "axes fraction")
                ax.annotate(name, place, xycoords=top, rotation=60, fontsize=7, color="#4a5568", ha="left", va="bottom")
        for cause in dict.fromkeys(v.cause for v in search.verdicts):
            ax.plot([], [], color=CAUSES.get(cause, "#97266d"), linewidth=2, label=cause)
        if search.warmed:
            ax.plot([], [], color=GREY, linewidth=2, label="warm-up on all")
        ax.axhline(gate.threshold, color=RED, linewidth=1.1, linestyle="--")
        ax.annotate(
            f"gate {gate.threshold:g}",
            (0.002, gate.threshold),
            xycoords=("axes fraction", "data"),
            xytext=(2, 3),
            textcoords="offset points",
            color=RED,
            fontsize=8,
        )
        ax.set_ylim(max(0.0, min(lowest, gate.threshold) - 0.05), 1.02)
        ax.set_xlabel("episodes spent")
        ax.set_ylabel(names.rate)
        figure.suptitle(f"{names.rate.capitalize()}: training (lines), evaluation (dot) and its lower bound (bar)")
        figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    return path


def progress(path: Path, search: Search, names: Names) -> Path:
    """Every trial's value, and the best feasible so far."""
    with picture(path, 7.5, 4.2) as figure:
        ax = figure.subplots()
        for feasible, color, marker, text in ((True, GREEN, "D", "gate met"), (False, RED, "X", "gate not met")):
            mine = [v for v in search.verdicts if v.feasible == feasible]
            if mine:
                ax.errorbar(
                    [v.spent for v in mine],
                    [v.outcome.value for v in mine],
                    [2 * v.outcome.se for v in mine],
                    fmt=marker,
                    color=color,
                    markersize=5,
                    linewidth=1,
                    label=text if search.options.gate else "trial",
                )
        x, y = incumbents(search)
        if len(x):
            ax.step(x, y, where="post", color=BLUE, linewidth=1.8, label="best so far")
        ax.set_xlabel("episodes spent")
        ax.set_ylabel(names.value)
        ax.set_title(f"{search.options.method}: {len(search.verdicts)} trials")
        ax.legend(loc="best")
    return path


def incumbents(search: Search, truth: Mapping[int, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(episodes spent, value of the candidate recommended then), by `truth` where it is given."""
    x, y = [], []
    for i, v in enumerate(search.verdicts):
        best = (
            v.best
            if v.best is not None
            else recommend(
                search.options.method, search.space, search.options.gate, [w.seen for w in search.verdicts[: i + 1]]
            )
        )
        if best is None:
            continue
        measured = next(w.outcome.value for w in reversed(search.verdicts[: i + 1]) if w.candidate == best)
        x.append(v.spent)
        y.append(measured if truth is None else truth.get(best, measured))
    return np.array(x), np.array(y)


def regret(path: Path, searches: Mapping[str, Search], names: Names) -> Path:
    """How far the candidate recommended is below the exhaustive best, against the episodes spent."""
    from regimen.experiments.search.api import reference

    truth = reference(searches)
    top = max(truth.values(), default=0.0)
    with picture(path, 7.5, 4.2) as figure:
        ax = figure.subplots()
        for method, search in searches.items():
            x, y = incumbents(search, truth)
            if len(x):
                ax.step(
                    x,
                    np.maximum(top - y, 0.0),
                    where="post",
                    color=LOOK[method],
                    linewidth=2 if method == "gp" else 1.5,
                    label=method.replace("_", " "),
                )
        ax.set_xlabel("episodes spent")
        ax.set_ylabel(f"regret in {names.value}")
        ax.set_title("Regret of the candidate recommended")
        if ax.get_legend_handles_labels()[0]:  # none where nothing was feasible
            ax.legend(loc="best")
    return path
