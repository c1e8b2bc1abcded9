"""A comparison as text, CSV, Markdown, HTML and a picture."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from regimen.errors import RegimenError
from regimen.files.console import aligned, clock, count, score
from regimen.files.storage import write_atomic, write_json
from regimen.reports import plots
from regimen.reports.comparison import FRACTIONS, Comparison, Estimate, Group, Task
from regimen.reports.page import figure as embedded
from regimen.reports.page import page, section
from regimen.statistics import bootstrap_band, iqm

MANY = 4  # with more environments the plot has only their curves

Table = tuple[str, list[str], list[list[str]]]  # title, head, rows


def number(value: float) -> str:
    """Three or four digits that matter, and no exponent for what people read."""
    if value == 0 or 0.001 <= abs(value) < 100:
        return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"
    return score(value) if abs(value) >= 1 else f"{value:.2e}"


def shown(e: Estimate | None) -> str:
    """`0.93 (0.85 to 1)`."""
    if e is None:
        return ""
    return number(e.value) + ("" if e.low is None or e.high is None else f" ({number(e.low)} to {number(e.high)})")


# --- tables ----------------------------------------------------------------------------------------------------------


def tables(c: Comparison, details: bool = True) -> list[Table]:
    """Everything that is said, as text."""
    out = [ranking(c)]
    if c.overall:
        out.append(("All environments (0: worst run, 1: best run)", ["group", "IQM"], overall_rows(c)))
        out.append(improvement_table("All environments", [o.label for o in c.overall], c.overall_better))
    out.append(metric_table(c, details))
    out += [improvement_table(t.env, [g.label for g in t.groups], t.better) for t in c.tasks if len(t.groups) > 1]
    return out


def overall_rows(c: Comparison) -> list[list[str]]:
    return [[row.label, shown(row.iqm)] for row in c.overall]


def ranking(c: Comparison) -> Table:
    head = ["environment", "rank", "group", "runs", f"IQM of {c.metric}", "mean", "area"]
    head += [f"steps to {f:.0%}" for f in FRACTIONS] + ["steps", "time"]
    rows = []
    for task in c.tasks:
        for g in task.groups:
            row = [task.env, str(task.rank(g)), g.label, str(len(g.runs)), shown(g.iqm), number(float(g.scores.mean()))]
            row += [shown(g.area), *(reach(g, f) for f in FRACTIONS), count(round(g.env_steps)), clock(g.wall_seconds)]
            rows.append(row)
    order = "smaller is better" if c.lower else "larger is better"
    return f"By {c.metric} ({order})", *without_env(c, head, rows)


def without_env(c: Comparison, head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The first column says nothing where there is one environment."""
    return (head[1:], [row[1:] for row in rows]) if len(c.tasks) == 1 else (head, rows)


def reach(g: Group, fraction: float) -> str:
    """`12.3k`, with how many runs got there where not all did."""
    steps = g.steps_to.get(fraction)
    if steps is None:
        return ""
    there, middle = int(np.isfinite(steps).sum()), float(np.median(steps))
    text = count(middle) if math.isfinite(middle) else "never"
    return text if there == len(steps) else f"{text} ({there} of {len(steps)})"


def metric_table(c: Comparison, details: bool = True) -> Table:
    """A row for each environment and metric, a column for each group. Without details: no reward components, nor what
    is numbered by agent."""
    labels = list(dict.fromkeys(g.label for t in c.tasks for g in t.groups))
    rows = []
    for task in c.tasks:
        groups = {g.label: g for g in task.groups}
        for name in dict.fromkeys(name for g in task.groups for name in g.metrics):
            if details or not (name.startswith("reward/") or name.rpartition("_")[2].isdigit()):
                found = [groups[label].metrics.get(name) if label in groups else None for label in labels]
                rows.append([task.env, name, *map(shown, found)])
    return "Evaluation: means and 95% intervals", *without_env(c, ["environment", "metric", *labels], rows)


def improvement_table(env: str, labels: Sequence[str], better: list[list[Estimate | None]]) -> Table:
    rows = [[label, *map(shown, row)] for label, row in zip(labels, better)]
    return f"{env}: probability that a run of the row beats one of the column", ["", *labels], rows


def lines(c: Comparison) -> list[str]:
    """Aligned columns for a terminal or a pipe."""
    out: list[str] = []
    for title, head, rows in tables(c, details=False):
        out += ["", title] if out else [title]
        out += [f"  {line}" for line in aligned(head, rows)]
    out += ["", *(f"note: {note}" for note in explanations(c))]
    return out


def explanations(c: Comparison) -> list[str]:
    goals = {t.goal_is for t in c.tasks if any(g.area is not None for g in t.groups)}
    said = "the environment's return threshold" if goals == {"threshold"} else "the best evaluation of any run"
    said = "the environment's return threshold, else the best evaluation of any run" if len(goals) > 1 else said
    way = [
        f"area and steps to a share: of the way from the first evaluation to {said}; area is its mean over all steps"
    ]
    return [*c.notes, "intervals are 95%: bootstrap over runs, within each environment", *(way if goals else [])]


def markdown(c: Comparison) -> str:
    def cells(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"

    parts = ["# Comparison", ""]
    for title, head, rows in tables(c):
        parts += [f"## {title}", "", cells(head), "|" + "---|" * len(head), *map(cells, rows), ""]
    return "\n".join([*parts, *(f"- {note}" for note in explanations(c)), ""])


def html(c: Comparison, picture: Path | None) -> str:
    def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
        style = "white-space:nowrap;font-size:.9rem"
        return f"<div style='overflow-x:auto'><table style='{style}'>\n<tr>{top}</tr>\n{body}</table></div>\n"

    sections = [section(title, table(head, rows)) for title, head, rows in tables(c)]
    if picture is not None:
        sections.insert(1, section("Curves", embedded(picture, f"Evaluation {c.metric} and its interquartile mean")))
    notes = "".join(f"<li>{escape(note)}</li>" for note in explanations(c))
    runs = sum(len(g.runs) for t in c.tasks for g in t.groups)
    below = f"{runs} runs, {len(c.tasks)} environment{'s' if len(c.tasks) > 1 else ''}, by {', '.join(c.by)}"
    return page("Comparison", below, [*sections, section("Notes", f"<ul>{notes}</ul>\n")])


def csv_text(c: Comparison) -> str:
    """One row per environment and group; every metric with the ends of its interval."""
    names = list(dict.fromkeys(name for t in c.tasks for g in t.groups for name in g.metrics))
    head = ["env", "group", "rank", "metric", "runs", "iqm", "iqm_low", "iqm_high", "mean", "std", "min", "max"]
    head += ["area", "area_low", "area_high", *(f"steps_to_{f:.0%}".rstrip("%") for f in FRACTIONS)]
    head += [*(f"seconds_to_{f:.0%}".rstrip("%") for f in FRACTIONS), "env_steps", "wall_seconds"]
    head += [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    for task in c.tasks:
        for g in task.groups:
            s = g.scores
            row: list[Any] = [task.env, g.label, task.rank(g), c.metric, len(g.runs), *ends(g.iqm)]
            row += [float(s.mean()), float(s.std()), float(s.min()), float(s.max()), *ends(g.area)]
            row += [middle(x.get(f)) for x in (g.steps_to, g.seconds_to) for f in FRACTIONS]
            row += [g.env_steps, g.wall_seconds, *(cell for name in names for cell in ends(g.metrics.get(name)))]
            writer.writerow(row)
    return file.getvalue()


def ends(e: Estimate | None) -> list[Any]:
    """An absent value is an empty cell."""
    return ["", "", ""] if e is None else [e.value, *("" if x is None else x for x in (e.low, e.high))]


def middle(x: np.ndarray | None) -> Any:
    return "" if x is None or not math.isfinite(float(np.median(x))) else float(np.median(x))


# --- the picture -----------------------------------------------------------------------------------------------------


def plot(c: Comparison, path: Path) -> Path:
    """Curves of every group with 95% bands and, with few environments, the interquartile means beside them."""
    tasks = c.tasks
    colors = dict(zip(dict.fromkeys(g.label for t in tasks for g in t.groups), plots.CYCLE * 99))
    with plots._matplotlib() as Figure:
        if len(tasks) <= MANY:
            figure = Figure(figsize=(12, 0.5 + 3.7 * len(tasks)), layout="constrained")
            grid = figure.subplots(len(tasks), 2, squeeze=False, width_ratios=(3, 2))
            for task, (left, right) in zip(tasks, grid):
                draw_curves(left, task, c, colors)
                draw_intervals(right, task, c, colors)
        else:
            across = 3 if len(tasks) <= 9 else 4
            rows = -(-(len(tasks) + bool(c.overall)) // across)
            figure = Figure(figsize=(4.6 * across, 3.3 * rows), layout="constrained")
            axes = list(figure.subplots(rows, across, squeeze=False).flat)
            for task, ax in zip(tasks, axes):
                draw_curves(ax, task, c, colors)
            if c.overall:
                marks = [(o.label, o.iqm, np.zeros(0)) for o in c.overall]
                draw_marks(axes[len(tasks)], marks, colors, "All environments", "scaled score (IQM, 95%)")
            for ax in axes[len(tasks) + bool(c.overall) :]:
                ax.set_axis_off()
        return plots._save(figure, path)


def draw_curves(ax: Any, task: Task, c: Comparison, colors: dict[str, str]) -> None:
    """Interquartile mean over the runs of a group; a run that ended keeps its last value."""
    found = {g.label: [run.series(f"eval/{c.metric}") for run in g.runs] for g in task.groups}
    found = {label: [s for s in series if len(s[0])] for label, series in found.items()}
    for label, series in found.items():
        if not series:
            continue
        grid = np.linspace(min(x[0] for x, _ in series), max(x[-1] for x, _ in series), 200)
        values = np.stack([np.interp(grid, x, y) for x, y in series])  # [runs, grid]
        if len(series) > 1:
            ax.fill_between(grid, *bootstrap_band(values, iqm), color=colors[label], alpha=0.18, linewidth=0)
        name = f"{label} ({len(series)})" if len(series) > 1 else label
        marker = "o" if max(len(x) for x, _ in series) == 1 else None
        ax.plot(grid, iqm(values, axis=0), color=colors[label], linewidth=2, label=name, marker=marker)
    if task.goal is not None:
        words = "threshold" if task.goal_is == "threshold" else "best"
        ax.axhline(task.goal, color=plots.GREY, linewidth=1, linestyle="--", label=f"{words} {number(task.goal)}")
    plots._finish(ax, task.env, c.metric.replace("_", " "), legend=True)


def draw_intervals(ax: Any, task: Task, c: Comparison, colors: dict[str, str]) -> None:
    """The final evaluation."""
    marks = [(g.label, g.iqm, g.scores) for g in task.groups]
    label = c.metric.replace("_", " ") + (" (smaller is better)" if c.lower else "")
    draw_marks(ax, marks, colors, "Final evaluation: interquartile mean, 95%", label)


def draw_marks(
    ax: Any, marks: Sequence[tuple[str, Estimate, np.ndarray]], colors: dict[str, str], title: str, label: str
) -> None:
    """A row for each group: a dot for each run, the interquartile mean and its interval."""
    for i, (name, e, scores) in enumerate(marks):
        spread = np.linspace(-0.12, 0.12, len(scores)) if len(scores) > 1 else np.zeros(len(scores))
        ax.scatter(scores, spread - i, s=22, color=colors[name], alpha=0.35, linewidths=0)
        if e.low is not None and e.high is not None:
            ax.plot([e.low, e.high], [-i, -i], color=colors[name], linewidth=7, alpha=0.3, solid_capstyle="butt")
        ax.plot(e.value, -i, marker="|", markersize=18, markeredgewidth=2.5, color=colors[name])
    ax.set_yticks([-i for i in range(len(marks))], [name for name, *_ in marks])
    ax.set_ylim(0.4 - len(marks), 0.6)
    ax.grid(axis="y", visible=False)
    ax.margins(x=0.08)
    ax.set_title(title)
    ax.set_xlabel(label)


def save(c: Comparison, folder: Path) -> list[Path]:
    """Every form of it in a folder; the picture needs matplotlib and is left out without it."""
    folder.mkdir(parents=True, exist_ok=True)
    picture: Path | None = None
    try:
        picture = plot(c, folder / "compare.png")
    except RegimenError as error:
        c.notes.append(f"no picture: {error}")
    texts = {"compare.csv": csv_text(c), "compare.md": markdown(c), "compare.html": html(c, picture)}
    for name, text in texts.items():
        write_atomic(folder / name, text)
    write_json(folder / "compare.json", c.to_dict())
    paths = [folder / name for name in (*texts, "compare.json")]
    return paths if picture is None else [*paths, picture]
