"""A comparison as text, CSV, Markdown, HTML and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.envs.metric import label_of
from regimen.errors import RegimenError
from regimen.files.storage import write_atomic, write_json
from regimen.reports import figure as kit
from regimen.reports.comparison import FRACTIONS, Comparison, Group, Task, finite_median
from regimen.reports.figure import GREY, panels, picture
from regimen.reports.page import embed, page, section
from regimen.reports.plots import finish, on_a_grid
from regimen.reports.table import Table
from regimen.statistics import Estimate, bootstrap_band, iqm
from regimen.words import clock, count, plural, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY = 4  # with more environments the plot has only their curves


def number(value: float) -> str:
    """Three or four digits that matter, and no exponent for what people read."""
    if value == 0 or 0.001 <= abs(value) < 100:
        return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"
    return score(value) if abs(value) >= 1 else f"{value:.2e}"


def in_words(e: Estimate | None) -> str:
    """Write a value with its interval: `0.93 (0.85 to 1)`."""
    if e is None:
        return ""
    return number(e.value) + (f" ({number(e.low)} to {number(e.high)})" if e.has_interval else "")


def tables(c: Comparison, details: bool = True) -> list[Table]:
    """Everything that is said, as text."""
    out = [ranking(c)]
    if c.overall:
        rows = [[label, in_words(e)] for label, e in c.overall.items()]
        out.append(Table(["group", "IQM"], rows, "All environments (0: worst run, 1: best run)"))
        out.append(improvement_table("All environments", list(c.overall), c.overall_better))
    out.append(metric_table(c, details))
    out += [improvement_table(t.env, [g.label for g in t.groups], t.better) for t in c.tasks if len(t.groups) > 1]
    return out + [equivalence_table(t) for t in c.tasks if t.equivalence]


def ranking(c: Comparison) -> Table:
    head = ["environment", "rank", "group", "runs", f"IQM of {label(c)}", "mean", "area"]
    head += [f"steps to {f:.0%}" for f in FRACTIONS] + ["steps", "time"]
    rows = []
    for task, g in groups(c):
        row = [task.env, str(task.rank(g)), g.label, str(len(g.runs)), in_words(g.iqm), number(float(g.scores.mean()))]
        row += [in_words(g.area), *(reach(g, f) for f in FRACTIONS)]
        rows.append([*row, count(round(g.mean_total("env_steps"))), clock(g.mean_total("wall_seconds"))])
    order = "smaller is better" if c.lower else "larger is better"
    return without_env(c, Table(head, rows, f"By {label(c)} ({order})"))


def label(c: Comparison) -> str:
    """The metric compared, as people read it."""
    return label_of(c.metric, {k: m for _, g in groups(c) for run in g.runs for k, m in run.metrics.items()})


def groups(c: Comparison) -> list[tuple[Task, Group]]:
    """Every group with its task."""
    return [(task, group) for task in c.tasks for group in task.groups]


def without_env(c: Comparison, table: Table) -> Table:
    """Drop the first column where there is one environment: it says nothing."""
    return table if len(c.tasks) > 1 else Table(table.head[1:], [row[1:] for row in table.rows], table.title)


def reach(g: Group, fraction: float) -> str:
    """`12.3k`, with how many runs got there where not all did."""
    steps = g.steps_to.get(fraction)
    if steps is None:
        return ""
    there, middle = int(np.isfinite(steps).sum()), finite_median(steps)
    text = "never" if middle is None else count(middle)
    return text if there == len(steps) else f"{text} ({there} of {len(steps)})"


def metric_table(c: Comparison, details: bool = True) -> Table:
    """A row for each environment and metric, a column for each group. Without details: no reward components, nor what
    is numbered by agent."""
    labels = list(dict.fromkeys(g.label for _, g in groups(c)))
    rows = []
    for task in c.tasks:
        estimates = {g.label: g.metrics for g in task.groups}
        declared = {name: metric for g in task.groups for run in g.runs for name, metric in run.metrics.items()}
        for name in dict.fromkeys(name for g in task.groups for name in g.metrics):
            if details or not (name.startswith("reward/") or name.rpartition("_")[2].isdigit()):
                cells = (in_words(estimates.get(label, {}).get(name)) for label in labels)
                rows.append([task.env, label_of(name, declared), *cells])
    return without_env(c, Table(["environment", "metric", *labels], rows, "Evaluation: means and 95% intervals"))


def improvement_table(env: str, labels: Sequence[str], better: list[list[Estimate | None]]) -> Table:
    rows = [[label, *map(in_words, row)] for label, row in zip(labels, better)]
    return Table(["", *labels], rows, f"{env}: probability that a run of the row beats one of the column")


def equivalence_table(task: Task) -> Table:
    """A row for each pair of groups: how far their means are apart, and whether that is less than the margin."""
    rows = []
    for pair in task.equivalence:
        d = pair.difference
        estimate = in_words(Estimate.of(d.value, (d.low, d.high)))
        p = "" if np.isnan(d.p) else f"{d.p:.2g}"
        rows.append([f"{pair.second} less {pair.first}", estimate, pair.over, p, d.verdict])
    margin = task.equivalence[0].difference.margin
    head = ["means", "difference (95%)", "over", "p", "verdict"]
    return Table(head, rows, f"{task.env}: equivalent within {margin:g}? (two one-sided tests)")


def lines(c: Comparison) -> list[str]:
    """Aligned columns for a terminal or a pipe."""
    out: list[str] = []
    for table in tables(c, details=False):
        out += ["", table.title] if out else [table.title]
        out += [f"  {line}" for line in table.lines()]
    out += ["", *verdicts(c), *(f"note: {note}" for note in explanations(c))]
    return out


def verdicts(c: Comparison) -> list[str]:
    """Which group is best in each environment, and how sure that is."""
    return [verdict(c, task) for task in c.tasks if len(task.groups) > 1]


def verdict(c: Comparison, task: Task) -> str:
    """`a is ahead of b`, by how much, and whether that may be luck: over runs, or with one run each over episodes."""
    first, second, sure = *task.groups[:2], task.better[0][1]
    where = f"{task.env}: " if len(c.tasks) > 1 else ""
    if sure is not None and sure.has_interval:
        chance = f"a run of {first.label} beats one of {second.label} with probability {in_words(sure)}"
        return where + (f"{first.label} is best: {chance}" if sure.excludes(0.5) else f"not decided: {chance}")
    one, other = (group.metrics[c.metric] for group in (first, second))
    by = abs(first.iqm.value - second.iqm.value)
    if not (one.has_interval and other.has_interval):
        return f"{where}{first.label} is ahead of {second.label} by {number(by)}; how sure that is cannot be said"
    half = float(np.hypot(one.high - one.low, other.high - other.low)) / 2
    over = f"{number(by)} ({number(by - half)} to {number(by + half)} over the episodes evaluated)"
    words = f"{first.label} is better than {second.label} by {over}" if by > half else f"not decided: {over}"
    return f"{where}{words}; other seeds may differ by more"


def explanations(c: Comparison) -> list[str]:
    goals = {task.goal_is for task, g in groups(c) if g.area is not None}
    way = {"threshold": "the environment's return threshold", "best": "the best evaluation of any run"}
    to = ", else ".join(words for goal, words in way.items() if goal in goals)
    out = [*c.notes, "intervals are 95%: bootstrap over runs, within each environment"]
    if goals:
        note = f"of the way from the first evaluation to {to}; area is its mean over all steps"
        out.append(f"area and steps to a share: {note}")
    return out


def notebook(c: Comparison) -> str:
    """The ranking and the verdicts as the HTML that a notebook shows."""
    return ranking(c).html() + "".join(f"<p>{escape(text)}</p>" for text in verdicts(c))


def markdown(c: Comparison) -> str:
    parts = ["# Comparison", ""]
    for table in tables(c):
        parts += [f"## {table.title}", "", table.markdown(), ""]
    return "\n".join([*parts, *(f"- {note}" for note in [*verdicts(c), *explanations(c)]), ""])


def html(c: Comparison, curves: Path | None) -> str:
    sections = [section(table.title, table.html()) for table in tables(c)]
    if curves is not None:
        sections.insert(1, section("Curves", embed(curves, f"Evaluation {label(c)} and its interquartile mean")))
    notes = "".join(f"<li>{escape(note)}</li>" for note in [*verdicts(c), *explanations(c)])
    runs = sum(len(g.runs) for _, g in groups(c))
    below = f"{runs} runs, {plural(len(c.tasks), 'environment')}, by {', '.join(c.by)}"
    return page("Comparison", below, [*sections, section("Notes", f"<ul>{notes}</ul>\n")])


def csv_text(c: Comparison) -> str:
    """Write a CSV row per environment and group: every metric with the ends of its interval."""
    names = list(dict.fromkeys(name for _, g in groups(c) for name in g.metrics))
    head = ["env", "group", "rank", "metric", "runs", "iqm", "iqm_low", "iqm_high", "mean", "std", "min", "max"]
    head += [
        "area",
        "area_low",
        "area_high",
        *(f"{x}_to_{f * 100:.0f}" for x in ("steps", "seconds") for f in FRACTIONS),
    ]
    head += ["env_steps", "wall_seconds", *(f"{name}{end}" for name in names for end in ("", "_low", "_high"))]
    rows = []
    for task, g in groups(c):
        s = g.scores
        row: list[object] = [task.env, g.label, task.rank(g), c.metric, len(g.runs), *ends(g.iqm)]
        row += [float(s.mean()), float(s.std()), float(s.min()), float(s.max()), *ends(g.area)]
        row += [finite_median(x.get(f)) for x in (g.steps_to, g.seconds_to) for f in FRACTIONS]
        row += [g.mean_total("env_steps"), g.mean_total("wall_seconds")]
        rows.append([*row, *(cell for name in names for cell in ends(g.metrics.get(name)))])
    return Table(head, rows).csv()


def ends(e: Estimate | None) -> list[float | None]:
    """Return a value and its interval as three cells; what is absent is an empty one."""
    if e is None:
        return [None, None, None]
    return [e.value, e.low, e.high] if e.has_interval else [e.value, None, None]


def plot(c: Comparison, path: Path) -> Path:
    """Curves of every group with 95% bands and, with few environments, the interquartile means beside them."""
    tasks = c.tasks
    names = list(dict.fromkeys(g.label for _, g in groups(c)))
    strokes = dict(zip(names, kit.strokes(len(names))))
    colors = {name: color for name, (color, _) in strokes.items()}
    if len(tasks) <= MANY:
        with picture(path, 12, 0.5 + 3.7 * len(tasks)) as figure:
            grid = figure.subplots(len(tasks), 2, squeeze=False, width_ratios=(3, 2))
            for task, (left, right) in zip(tasks, grid):
                draw_curves(left, task, c, strokes)
                draw_intervals(right, task, c, colors)
        return path
    across, places = 3 if len(tasks) <= 9 else 4, len(tasks) + bool(c.overall)
    with picture(path, 4.6 * across, 3.3 * -(-places // across)) as figure:
        axes = panels(figure, places, across)
        for task, ax in zip(tasks, axes):
            draw_curves(ax, task, c, strokes)
        if c.overall:
            marks = [(label, e, np.zeros(0)) for label, e in c.overall.items()]
            draw_marks(axes[-1], marks, colors, "All environments", "scaled score (IQM, 95%)")
    return path


def draw_curves(ax: Axes, task: Task, c: Comparison, strokes: dict[str, tuple[str, str]]) -> None:
    """Interquartile mean over the runs of a group; a run that ended keeps its last value."""
    for g in task.groups:
        (color, dash), curves = strokes[g.label], [run.series(f"eval/{c.metric}") for run in g.runs]
        series = [(x, y) for x, y in curves if len(x)]
        if not series:
            continue
        grid, values = on_a_grid(series)
        if len(series) > 1:
            ax.fill_between(grid, *bootstrap_band(values, iqm), color=color, alpha=0.18, linewidth=0)
        name = f"{g.label} ({len(series)})" if len(series) > 1 else g.label
        marker = "o" if max(len(x) for x, _ in series) == 1 else None
        ax.plot(grid, iqm(values, axis=0), color=color, linestyle=dash, linewidth=2, label=name, marker=marker)
    if task.goal is not None:
        words = "threshold" if task.goal_is == "threshold" else "best"
        ax.axhline(task.goal, color=GREY, linewidth=1, linestyle="--", label=f"{words} {number(task.goal)}")
    finish(ax, task.env, label(c), legend=True)


def draw_intervals(ax: Axes, task: Task, c: Comparison, colors: dict[str, str]) -> None:
    """Draw the intervals of the final evaluation."""
    marks = [(g.label, g.iqm, g.scores) for g in task.groups]
    below = label(c) + (" (smaller is better)" if c.lower else "")
    draw_marks(ax, marks, colors, "Final evaluation (IQM, 95%)", below)


def draw_marks(
    ax: Axes, marks: Sequence[tuple[str, Estimate, np.ndarray]], colors: dict[str, str], title: str, label: str
) -> None:
    """A row for each group: a dot for each run, the interquartile mean and its interval."""
    for i, (name, e, scores) in enumerate(marks):
        spread = np.linspace(-0.12, 0.12, len(scores)) if len(scores) > 1 else np.zeros(len(scores))
        ax.scatter(scores, spread - i, s=22, color=colors[name], alpha=0.35, linewidths=0)
        if e.has_interval:
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
    curves: Path | None = None
    try:
        curves = plot(c, folder / "compare.png")
    except RegimenError as error:
        c.notes.append(f"no picture: {error}")
    texts = {"compare.csv": csv_text(c), "compare.md": markdown(c), "compare.html": html(c, curves)}
    for name, text in texts.items():
        write_atomic(folder / name, text)
    write_json(folder / "compare.json", c.to_dict())
    paths = [folder / name for name in (*texts, "compare.json")]
    return paths if curves is None else [*paths, curves]
