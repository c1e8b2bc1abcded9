"""What a population did: who took over from whom, and the schedule of settings that the best member comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regimen.errors import ConfigError
from regimen.experiments.sweep.population import Round, end_of, first_settings, rounds_of
from regimen.experiments.sweep.trials import SweepFiles, TrialResult
from regimen.reports.figure import BLUE, GREY, ORANGE, panels, picture
from regimen.reports.table import Table
from regimen.words import plural


def history(files: SweepFiles) -> list[Round]:
    """The rounds so far, and the scores of the end where there are any."""
    end = end_of(files.folder)
    return rounds_of(files.folder) + ([] if end is None else [end])


def lineage(rounds: Sequence[Round], keys: Sequence[str]) -> Table:
    """A row for each member at each round: its score, from whom it goes on, and with which settings."""
    rows = []
    for r in rounds:
        for k, source in enumerate(r.sources):
            settings = [r.settings[k][key] for key in keys]
            taken = source if source != k else None
            rows.append([r.number, r.updates[k], r.steps[k], k, r.scores[k], r.alive[k], taken, *settings])
    return Table(["round", "update", "env_steps", "trial", "score", "alive", "takes_over_from", *keys], rows)


def ancestors(rounds: Sequence[Round], k: int) -> list[int]:
    """The member in which what member `k` has learned was trained before each round, and at the end.  # [rounds + 1]"""
    path = [k]
    for r in reversed(rounds):
        path.append(r.sources[path[-1]])
    return path[::-1]


def schedule(rounds: Sequence[Round], first: Sequence[dict[str, float]], k: int, keys: Sequence[str]) -> Table:
    """The settings of member `k` and of those that it comes from, from update to update."""
    path = ancestors(rounds, k)
    rows: list[list[object]] = []
    for i, n in enumerate(path):
        settings = first[n] if i == 0 else rounds[i - 1].settings[n]
        start = 0 if i == 0 else rounds[i - 1].updates[n]
        rows.append([start, n, *(settings[key] for key in keys)])
    return Table(["from_update", "trial", *keys], rows)


def write(files: SweepFiles, best: TrialResult | None) -> list[str]:
    """lineage.csv, schedule.csv and plots/population.png; returns lines that say what came of it."""
    plan, rounds = files.plan, rounds_of(files.folder)
    if not rounds:
        return []
    lineage(history(files), plan.keys).write_csv(files.folder / "lineage.csv")
    copies = sum(s != k for r in rounds for k, s in enumerate(r.sources))
    lines = [f"lineage  {files.folder / 'lineage.csv'}   ({plural(len(rounds), 'round')}, {copies} took over)"]
    if best is not None:
        table = schedule(rounds, first_settings(plan), best["trial"], plan.keys)
        table.write_csv(files.folder / "schedule.csv")
        came = " < ".join(str(n) for n in dict.fromkeys(reversed(ancestors(rounds, best["trial"]))))
        lines.append(f"schedule {files.folder / 'schedule.csv'}   (trial {came}: what it comes from)")
    with contextlib.suppress(ConfigError):  # no matplotlib, which the line of the plots says
        draw(files, best, files.folder / "plots" / "population.png")
    return lines


def draw(files: SweepFiles, best: TrialResult | None, path: Path) -> None:
    """Scores and settings of all members over updates; the best and what it comes from in colour."""
    plan, rounds = files.plan, history(files)
    decided = rounds_of(files.folder)
    if not rounds:
        return
    updates = [max(r.updates) for r in rounds]
    way = None if best is None else ancestors(decided, best["trial"])
    with picture(path, 4.6 * min(1 + len(plan.keys), 3), 3.6 * -(-(1 + len(plan.keys)) // 3)) as figure:
        axes = panels(figure, 1 + len(plan.keys), min(1 + len(plan.keys), 3))
        scores = np.array([[np.nan if s is None else s for s in r.scores] for r in rounds])  # [rounds, members]
        axes[0].plot(updates, scores, color=GREY, alpha=0.45, linewidth=1)
        if way is not None:
            trained = [scores[i, way[i]] for i in range(len(rounds))]
            axes[0].plot(updates, trained, color=ORANGE, linewidth=2.2, label="the best and what it comes from")
            axes[0].legend()
        axes[0].set(title="Score in training", xlabel="update", ylabel=files.label(plan.metric))
        edges = np.array([0, *(max(r.updates) for r in decided), updates[-1]])
        first = first_settings(plan)
        for ax, key in zip(axes[1:], plan.keys):
            values = np.array([[one[key] for one in s] for s in [first, *(r.settings for r in decided)]])
            for k in range(plan.trials):
                ax.stairs(values[:, k], edges, baseline=None, color=GREY, alpha=0.45, linewidth=1)
            if way is not None:
                chosen = [values[i, way[i]] for i in range(len(values))]
                ax.stairs(chosen, edges, baseline=None, color=BLUE, linewidth=2.2)
            ax.set(title=key, xlabel="update", yscale="log" if plan.random[key].logarithmic else "linear")
