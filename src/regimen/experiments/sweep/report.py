"""What came of a sweep: a table of its trials, how much each setting matters, and pictures. Reads the folder only.

The importance of a setting is the share of the variance of the trials' values that its value explains: trials are
grouped by it (a drawn number by quartiles), and epsilon squared is eta squared less what as many groups would explain
by chance. 1: it decides everything; 0: no more than noise. Interactions count for none of them. `rho`, Spearman's rank
correlation, says which way a number points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from regimen.errors import ConfigError
from regimen.experiments.sweep import pareto
from regimen.experiments.sweep.trials import SweepFiles, TrialResult
from regimen.files.storage import write_atomic, write_json
from regimen.reports.figure import BLUE, GREY, INK, ORANGE, picture
from regimen.reports.table import Table
from regimen.words import clock, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 4  # groups of a number with many values
LEAST = 4  # trials that importance is told from
SHOWN = 10  # trials of the table on the console

Rows = Sequence[TrialResult]


class Share(TypedDict):
    """How much of the variance a setting explains, and which way its numbers point."""

    explained: float
    rho: float | None


def comparable(results: Rows) -> list[TrialResult]:
    """Trials that were trained to the end and have a value."""
    return [r for r in results if r["state"] == "finished" and r.get("value") is not None]


def ranked(results: Rows, lower: bool) -> list[TrialResult]:
    """Sort trials, the best first: by the score of training that a method has selected by, where there is one. The
    value of a trial comes from an evaluation that nothing is selected by."""
    rows = comparable(results)
    name = "score" if any("score" in r for r in rows) else "value"
    rows = [r for r in rows if r.get(name) is not None]
    return sorted(rows, key=lambda r: r[name] if lower else -r[name])


def best_of(results: Rows, lower: bool) -> TrialResult | None:
    return next(iter(ranked(results, lower)), None)


def numbers_in(values: Sequence[object]) -> np.ndarray | None:
    """The values as numbers; None where one of them is no number."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return np.array(numbers, float) if len(numbers) == len(values) else None


def groups_of(values: Sequence[object]) -> np.ndarray:
    """The group of each trial by its value: equal values, or quartiles where there are many numbers."""
    numbers, names = numbers_in(values), sorted({str(v) for v in values})
    if numbers is not None and len(names) > BINS:
        ranks = np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
        return ranks * BINS // len(values)
    return np.array([names.index(str(v)) for v in values])


def squares(y: np.ndarray) -> float:
    """The sum of squared deviations from the mean."""
    return float(((y - y.mean()) ** 2).sum())


def explained(groups: np.ndarray, y: np.ndarray) -> float:
    """Epsilon squared of `y` by group; 0 where that cannot be told."""
    n, k = len(y), len(np.unique(groups))
    total = squares(y)
    if k < 2 or n <= k or total <= 1e-24 * max(1.0, float((y**2).sum())):
        return 0.0
    within = sum(squares(y[groups == g]) for g in np.unique(groups))
    return float(np.clip(1.0 - (within / (n - k)) / (total / (n - 1)), 0.0, 1.0))


def rank_correlation(x: Sequence[object], y: np.ndarray) -> float | None:
    """Spearman's correlation; None where `x` is not numbers or one of the two never changes."""
    numbers = numbers_in(x)
    if numbers is None or len(np.unique(numbers)) < 2 or len(np.unique(y)) < 2:
        return None
    from scipy.stats import spearmanr  # takes a second to import: only for a report

    return float(np.asarray(spearmanr(numbers, y))[0])


def importance(results: Rows, keys: Sequence[str]) -> dict[str, Share]:
    """Setting -> {share of variance explained, rank correlation}; nothing from too few trials."""
    rows = comparable(results)
    if len(rows) < LEAST:
        return {}
    y = np.array([r["value"] for r in rows], float)
    columns = {key: [r["params"].get(key) for r in rows] for key in keys}
    return {k: {"explained": explained(groups_of(x), y), "rho": rank_correlation(x, y)} for k, x in columns.items()}


def write_all(files: SweepFiles) -> list[str]:
    """sweep.csv, sweep.json, sweep.md and the plots; returns lines that say what came of it."""
    plan, results = files.plan, files.results()
    if not results:
        return ["no trial is done yet"]
    alone = plan.method not in ("pbt", "halving")  # settings of a trial that explain its value
    shares = importance(results, plan.keys) if alone else {}
    order = ranked(results, plan.lower)
    every_number(files, results).write_csv(files.folder / "sweep.csv")
    summary = {
        "env": plan.env,
        "metric": plan.metric,
        "lower": plan.lower,
        "trials": plan.trials,
        "done": len(results),
        "seeds": plan.seeds,
        "best": order[0] if order else None,
        "importance": shares,
        "results": results,
    }
    best = pareto.front(results, plan.objectives) if plan.objectives else []
    if plan.objectives:
        summary |= {"objectives": plan.objectives, "pareto": [r["trial"] for r in best]}
    write_json(files.folder / "sweep.json", summary)
    trials = table(files, [*order, *(r for r in results if r not in order)])
    write_atomic(files.folder / "sweep.md", markdown(files, trials, shares))
    more = [f"and {len(results) - SHOWN} more in {files.folder / 'sweep.csv'}"] if len(results) > SHOWN else []
    lines = ["", *trials.first(SHOWN).lines(), *more, *(importance_lines(shares) if alone else [])]
    if plan.method == "pbt":
        from regimen.experiments.sweep import lineage  # it draws with what is above

        lines += lineage.write(files, order[0] if order else None)
    if best:
        front = pareto.table(best, plan.objectives, plan.keys, files.label)
        front.write_csv(files.folder / "pareto.csv")
        lines += ["", front.title, *front.lines()]
    try:
        lines += draw(files, results, shares)
    except ConfigError as error:  # no matplotlib
        lines.append(f"plots    none: {error}")
    if order:
        top = files.trial(order[0]["trial"])
        by = f"regimen compare {files.folder} --by {','.join(plan.grid or plan.keys)}"
        lines.append(f"best     {top}   ({by if alone else f'regimen evaluate {top}'})")
    return lines


def importance_lines(shares: Mapping[str, Share]) -> list[str]:
    if not shares:
        return [f"importance: told from {LEAST} trials on"]
    order = sorted(shares, key=lambda key: -shares[key]["explained"])
    rho = {key: "" if shares[key]["rho"] is None else f" (rho {signed(shares[key]['rho'])})" for key in order}
    return ["variance explained: " + ", ".join(f"{key} {shares[key]['explained']:.0%}{rho[key]}" for key in order)]


def signed(rho: float | None) -> str:
    return "" if rho is None else f"{rho:+.2f}"


def table(files: SweepFiles, results: Rows) -> Table:
    """The table of the console and of `sweep.md`."""
    keys, rows = files.plan.keys, []
    others = [name for name in files.plan.objectives if name != files.plan.metric]
    scored = any("score" in r for r in results)
    for r in results:
        value = score(r["value"]) if r.get("value") is not None else None
        more = [score_or_none(r.get("objectives", {}).get(name)) for name in others] + [
            score_or_none(r.get("score"))
        ] * scored
        row = [r["trial"], *(brief(r["params"].get(k)) for k in keys), value, *more, r["state"]]
        rows.append([*row, f"{r.get('env_steps') or 0:,}", clock(r.get("wall_seconds") or 0.0)])
    head = ["trial", *keys, *map(files.label, [files.plan.metric, *others]), *["in training"] * scored]
    return Table([*head, "state", "steps", "time"], rows)


def score_or_none(value: float | None) -> str | None:
    return None if value is None else score(value)


def brief(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def every_number(files: SweepFiles, results: Rows) -> Table:
    """The table of `sweep.csv`: all trials in their order, numbers unrounded."""
    keys = files.plan.keys
    others = [name for name in files.plan.objectives if name != files.plan.metric]
    head = ["trial", "state", *keys, files.plan.metric, *others, "score"]
    head += ["seeds", "env_steps", "wall_seconds", "run", "error"]
    rows = []
    for r in results:
        more = [r.get("objectives", {}).get(name) for name in others] + [r.get("score")]
        row = [r["trial"], r["state"], *(r["params"].get(k) for k in keys), r.get("value"), *more, r.get("seeds")]
        rows.append([*row, r.get("env_steps"), r.get("wall_seconds"), files.trial(r["trial"]).name, r.get("error")])
    return Table(head, rows)


def markdown(files: SweepFiles, trials: Table, shares: Mapping[str, Share]) -> str:
    parts = [f"# Sweep of {files.plan.env or files.folder.name}", "", trials.markdown(), ""]
    if shares:
        columns: dict[str, Callable[[str], str]] = {
            "setting": lambda key: f"`{key}`",
            "variance explained": lambda key: f"{shares[key]['explained']:.1%}",
            "rho": lambda key: signed(shares[key]["rho"]),
        }
        parts += ["## Importance", "", Table.of(columns, shares).markdown(), ""]
    for name in ("importance", "parallel", "trials"):
        if (files.folder / "plots" / f"{name}.png").exists() or shares:
            parts += [f"![{name}](plots/{name}.png)", ""]
    return "\n".join(parts)


def draw(files: SweepFiles, results: Rows, shares: Mapping[str, Share]) -> list[str]:
    """Draw trials.png, and from enough trials importance.png and parallel.png; returns a line that says where."""
    folder, plan = files.folder / "plots", files.plan
    rows = comparable(results)
    if len(pareto.comparable(results, plan.objectives)) > 1 and plan.objectives:
        pareto.draw(results, plan.objectives, folder / "pareto.png", files.label)
    if rows:
        with picture(folder / "trials.png", 8, 3.8) as figure:
            draw_trials(figure.subplots(), rows, files.label(plan.metric), plan.lower)
    if shares:
        with picture(folder / "importance.png", 8, 0.45 * len(shares) + 1.3) as figure:
            draw_importance(figure.subplots(), shares, len(rows))
    if len(rows) > 1 and plan.method not in ("pbt", "halving"):
        logarithmic = {key for key, draws in plan.random.items() if draws.logarithmic}
        with picture(folder / "parallel.png", max(6.0, 2.2 * (len(plan.keys) + 1)), 4.6) as figure:
            draw_parallel(figure.subplots(), rows, plan.keys, files.label(plan.metric), plan.lower, logarithmic)
    return [f"plots    {folder}"] if rows else []


def draw_trials(ax: Axes, rows: Rows, metric: str, lower: bool) -> None:
    x, y = [r["trial"] for r in rows], np.array([r["value"] for r in rows], float)
    best = np.minimum.accumulate(y) if lower else np.maximum.accumulate(y)
    for r in rows:
        if len(r.get("values", ())) > 1:
            ax.plot([r["trial"]] * 2, [min(r["values"]), max(r["values"])], color=BLUE, alpha=0.35, linewidth=2)
    ax.scatter(x, y, s=22, color=BLUE, zorder=3, label="trial")
    ax.step(x, best, where="post", color=ORANGE, linewidth=2, label="best so far")
    ax.set(title="Trials", xlabel="trial", ylabel=metric)
    ax.legend()


def draw_importance(ax: Axes, shares: Mapping[str, Share], n: int) -> None:
    order = sorted(shares, key=lambda k: shares[k]["explained"])
    ax.barh(order, [shares[k]["explained"] for k in order], color=BLUE, height=0.6)
    for i, key in enumerate(order):
        rho = shares[key]["rho"]
        text = f" {shares[key]['explained']:.0%}" + ("" if rho is None else f", rho {signed(rho)}")
        ax.text(shares[key]["explained"], i, text, va="center", fontsize=9, color="#4a5568")
    ax.grid(axis="y", visible=False)
    label = f"share of the variance of {n} trials that a setting explains"
    ax.set(xlim=(0, 1.18), title="What matters", xlabel=label)


def draw_parallel(ax: Axes, rows: Rows, keys: Sequence[str], metric: str, lower: bool, logarithmic: set[str]) -> None:
    """Draw a line per trial across its settings to its value; darker is better."""
    from matplotlib import colormaps

    columns = {key: [r["params"].get(key) for r in rows] for key in keys} | {metric: [r["value"] for r in rows]}
    names = list(columns)
    positions, ticks = zip(*(positions_of(values, name in logarithmic) for name, values in columns.items()))
    y = np.array(positions)  # [axes, trials]
    goodness = 1 - y[-1] if lower else y[-1]
    for i in np.argsort(goodness):
        colour = colormaps["viridis_r"](0.05 + 0.9 * goodness[i])
        ax.plot(range(len(names)), y[:, i], color=colour, linewidth=1.6, alpha=0.85)
    box = {"fc": "white", "ec": "none", "alpha": 0.75, "pad": 1}
    for i, marks in enumerate(ticks):
        ax.axvline(i, color=GREY, linewidth=1)
        for at, text in marks:
            ax.text(i + 0.02, at, text, fontsize=8, color=INK, va="center", bbox=box)
    ax.set_xticks(range(len(names)), names)
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.set(yticks=[], xlim=(-0.1, len(names) - 0.65), title="Trials across settings (dark: better)")


def positions_of(values: Sequence[object], logarithmic: bool) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Positions in 0..1 and labels of an axis; names are spaced evenly, numbers of a wide range by their logarithm."""
    x = numbers_in(values)
    if x is None:
        names = list(dict.fromkeys(str(v) for v in values))
        at = {n: i / max(len(names) - 1, 1) for i, n in enumerate(names)}
        return np.array([at[str(v)] for v in values]), [(p, n) for n, p in at.items()]
    wide = (x > 0).all() and x.max() / max(x.min(), 1e-300) >= 10
    z = np.log(x) if wide or (logarithmic and (x > 0).all()) else x
    span = np.ptp(z)
    position = (z - z.min()) / span if span > 0 else np.full(len(z), 0.5)
    marks = sorted(set(zip(position.tolist(), x.tolist())))
    if len(marks) > 5:
        at = np.array([p for p, _ in marks])
        marks = [marks[i] for i in sorted({int(np.argmin(np.abs(at - share))) for share in np.linspace(0, 1, 5)})]
    return position, [(p, f"{v:.3g}") for p, v in marks]
