"""Sweeps with several objectives: which trials are beaten by none, as a table and a picture."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from regimen.experiments.sweep.trials import TrialResult
from regimen.reports.figure import GREY, ORANGE, panels, picture
from regimen.reports.table import Table
from regimen.words import score

SHOWN = 3  # objectives whose pairs are drawn


def comparable(results: Sequence[TrialResult], objectives: Mapping[str, bool]) -> list[TrialResult]:
    """Trials that were trained to the end and have a value of every objective."""
    return [r for r in results if r["state"] == "finished" and set(objectives) <= set(r.get("objectives", ()))]


def front(results: Sequence[TrialResult], objectives: Mapping[str, bool]) -> list[TrialResult]:
    """The trials that no other is at least as good as in every objective and better in one; `objectives` says of which
    smaller is better. The best in the first objective come first."""
    rows = comparable(results, objectives)
    sign = np.array([-1.0 if lower else 1.0 for lower in objectives.values()])
    points = np.array([[r["objectives"][name] for name in objectives] for r in rows]).reshape(-1, len(sign)) * sign
    beaten = [bool(((points >= p).all(1) & (points > p).any(1)).any()) for p in points]
    best = [i for i in range(len(rows)) if not beaten[i]]
    return [rows[i] for i in sorted(best, key=lambda i: (-points[i]).tolist())]


def table(
    rows: Sequence[TrialResult], objectives: Mapping[str, bool], keys: Sequence[str], label: Callable[[str], str] = str
) -> Table:
    """The trials of a front; `label` is what people read of a metric."""
    head = [
        "trial",
        *(f"{label(name)} ({'lower' if lower else 'higher'})" for name, lower in objectives.items()),
        *keys,
    ]
    cells = [
        [r["trial"], *(score(r["objectives"][name]) for name in objectives), *(text(r["params"].get(k)) for k in keys)]
        for r in rows
    ]
    return Table(head, cells, "Trials that no other beats")


def text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw(
    results: Sequence[TrialResult], objectives: Mapping[str, bool], path: Path, label: Callable[[str], str] = str
) -> None:
    """Draw a panel for each pair of the first three objectives; of two, the trials that no other beats are joined."""
    rows, best = comparable(results, objectives), front(results, objectives)
    pairs = list(itertools.combinations(list(objectives)[:SHOWN], 2))
    with picture(path, 5.2 * len(pairs), 4.2) as figure:
        for ax, (a, b) in zip(panels(figure, len(pairs), len(pairs)), pairs):
            ax.scatter([r["objectives"][a] for r in rows], [r["objectives"][b] for r in rows], s=22, color=GREY)
            line = sorted((r["objectives"][a], r["objectives"][b], r["trial"]) for r in best)
            ax.plot(
                [x for x, _, _ in line],
                [y for _, y, _ in line],
                "o-" if len(objectives) == 2 else "o",
                color=ORANGE,
                label="beaten by none",
            )
            for x, y, trial in line:
                ax.annotate(str(trial), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
            words = [f"{label(name)} ({'lower' if objectives[name] else 'higher'} is better)" for name in (a, b)]
            ax.set(xlabel=words[0], ylabel=words[1], title="Trials by objective")
            ax.legend()
