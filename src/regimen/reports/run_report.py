"""`report.html`: one file that opens offline and says what a run was, what came of it, and how to repeat it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from regimen.envs.metric import label_of
from regimen.errors import StorageError
from regimen.files.run_dir import is_run, read_config, read_status, read_summary
from regimen.files.sealed import read_sealed, reads
from regimen.files.storage import read_text, require_own, write_atomic
from regimen.reports import diagnose
from regimen.reports.page import PICTURES, embed, facts, folded, literal, page, section, tiles
from regimen.reports.plots import LoggedRun, is_number, try_plot_run
from regimen.reports.table import Table
from regimen.words import clock, count, interval, score

# order of the pictures and what each shows; others in plots/ follow by name
CAPTIONS = {
    "overview": "Overview",
    "return": "Episode return in training and evaluation",
    "evaluation": "Evaluation with the greedy policy",
    "losses": "Policy and value loss",
    "entropy": "Entropy of the policy",
    "kl": "How far each update moved the policy",
    "explained_variance": "How well the critic predicts returns",
    "components": "Reward components: sums per episode",
    "weights": "Weights of the reward components",
    "entropy_parts": "Entropy by part of the action",
    "curriculum": "Curriculum",
}

LARGEST = 12_000_000  # bytes of one picture in a report
MOST = 24  # pictures of one folder
LEFT_OUT = ("eval_metrics", "eval_metrics_ci95", "stop_detail")  # shown elsewhere


@reads
def write_report(run_dir: Path, out: str | Path | None = None, draw: bool = False) -> Path:
    """Write `<run_dir>/report.html` (or `out`) from the run's files and the pictures in `plots/` and `replays/`, and
    return its path. Of a group of seeds: their statistics, its pictures and a row for each. `draw`: its curves first,
    where they are missing."""
    path = Path(run_dir)
    require_own(path)  # a page is handed on: what a link shows would be, too
    if draw and (path / "config.yaml").is_file() and not (path / "plots" / "overview.png").is_file():
        try_plot_run(path)
    if not is_run(path) and any(map(is_run, path.glob("seed-*"))):
        text = group_page(path)
    else:
        text = run_page(LoggedRun(path))
    out = path / "report.html" if out is None else Path(out)
    write_atomic(out, text)
    return out


def run_page(run: LoggedRun) -> str:
    path, config, status, summary = run.path, run.config, run.status, run.summary
    last = run.points[-1] if run.points else {}
    title = _joined(config.get("env"), config.get("algorithm"), f"seed {config.get('seed', 0)}")
    stop = summary.get("stop_reason") or status.get("stop_reason") or "not finished"
    stop = f"Stopped: {summary.get('stop_detail') or stop}"
    counters = {k: last[k] for k in ("env_steps", "updates", "episodes", "wall_seconds") if k in last}
    facts = {**counters, **summary, "state": status.get("state", "unknown")}
    facts = {k: v for k, v in facts.items() if k not in ("stop_reason", *LEFT_OUT) and not k.startswith("eval_")}
    standard, others = _pictures(path / "plots")
    first = [p for p in standard if p.stem == "overview"]
    charts = _figures(first, path, chart=True) or _figures(standard, path, chart=True) or _no_curves(run)
    sections = [
        _tiles(summary, last, status),
        section("Diagnosis", _findings(path, status)),
        section("Curves", charts),
        section("Pictures", _figures([*others, *_pictures(path / "replays")[1]], path)),
        section("Evaluation", _evaluation(run)),
        section("Summary", _table(facts)),
        section("Each curve", _figures([p for p in standard if p not in first], path, chart=True) if first else ""),
        section("Command", literal(read_text(path / "command.txt"))),
        section("Configuration", folded("every setting", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))),
        section("Versions", _table({**_mapping(status.get("versions")), "git revision": status.get("git_revision")})),
    ]
    return page(title, stop, sections)


def group_page(path: Path) -> str:
    """The seeds of one setting."""
    summary, runs = read_sealed(path / "summary.json"), sorted(filter(is_run, path.glob("seed-*")))
    rows = []
    for run in runs:
        read_config(run)  # a seed that is damaged is no row among others
        one, status = read_summary(run), read_status(run)
        row = {"seed": one.get("seed", run.name), "state": status.get("state", "unknown")}
        row |= {k: one.get(k) for k in ("env_steps", "episodes", "eval_return_mean", "success_rate", "stop_reason")}
        row["findings"] = ", ".join(f.code for f in _diagnosed(run)) or "none"
        rows.append(row)
    title = _joined(summary.get("env"), summary.get("algo"), f"{len(rows)} seeds")
    sections = [
        section("Curves", _figures([p for p in [path / "return.png"] if p.is_file()], path, chart=True)),
        section("Seeds", _rows(rows)),
        section("Summary", _table(summary)),
        section("Configuration", folded("of the first seed", read_text(runs[0] / "config.yaml"))),
    ]
    return page(title, f"{len(rows)} seeds", sections)


def _joined(*parts: object) -> str:
    return " · ".join(str(part) for part in parts if part)


def _table(values: Mapping[str, object]) -> str:
    return facts({str(k).replace("_", " "): _show(str(k), v) for k, v in values.items() if v is not None})


def _show(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if name == "seed" else f"{value:,}"
    if isinstance(value, float):
        if name == "wall_seconds" and value >= 60:
            return f"{clock(value)} ({value:,.0f} s)"
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.6g}"
    return str(value)


def _evaluation(run: LoggedRun) -> str:
    """The final evaluation, and the best and last ones during training."""
    summary: Mapping[str, object] = run.summary
    final = {k.removeprefix("eval_"): v for k, v in summary.items() if k.startswith("eval_") and not _mapping(v)}
    intervals = _mapping(summary.get("eval_metrics_ci95"))
    for name, value in _mapping(summary.get("eval_metrics")).items():
        if name != "return_mean":
            final[label_of(name, run.metrics)] = _show(name, value) + interval(intervals.get(name))
    during = [p for p in run.points if isinstance(p.get("eval/return_mean"), (int, float))]
    if during:
        best = max(during, key=lambda p: p["eval/return_mean"])
        for label, point in (("best during training", best), ("last during training", during[-1])):
            final[label] = f"{score(point['eval/return_mean'])} at {point.get('env_steps', 0):,} env steps"
    return _table(final)


def _tiles(summary: Mapping[str, object], last: Mapping[str, float], status: Mapping[str, object]) -> str:
    """The figures to see first."""
    ends = _mapping(summary.get("eval_metrics_ci95")).get("return_mean")
    within = f", 95% {score(ends[0])} to {score(ends[1])}" if ends else ""
    threshold, solved = summary.get("return_threshold"), summary.get("solved")
    goal = f" (threshold {threshold:g})" if is_number(threshold) else ""
    evaluated = is_number(summary.get("eval_return_mean"))
    figures: list[tuple[object, str, Callable]] = [
        (summary.get("eval_return_mean"), f"evaluation return{within}", score),
        (None if evaluated else last.get("rollout/return_mean"), "last training return", score),
        (status.get("state", "unknown"), "state", str),
        (summary.get("success_rate"), "success", "{:.0%}".format),
        (None if solved is None else "yes" if solved else "no", f"solved{goal}", str),
        (summary.get("env_steps", last.get("env_steps")), "env steps", count),
        (summary.get("wall_seconds", last.get("wall_seconds")), "wall time", clock),
        (summary.get("steps_per_second"), "steps per second", lambda x: count(round(x))),
    ]
    return tiles((show(x), words) for x, words, show in figures if (show is str and x is not None) or is_number(x))


def _diagnosed(path: Path) -> list[diagnose.Finding]:
    """What is wrong with the run; a report is written whatever its files look like."""
    try:
        return diagnose.diagnose(path)
    except (StorageError, ValueError, TypeError, KeyError, ArithmeticError):
        return []


def _findings(path: Path, status: Mapping[str, object]) -> str:
    findings = _diagnosed(path)
    if not findings:
        return "<p>Nothing was found to be wrong.</p>\n" if status.get("state") == "finished" else ""
    return "".join(
        f"<div class='finding {f.level}'><b>{escape(f.title)}</b> <small>{escape(f.code)}</small>"
        f"<p>{escape(f.evidence)}</p><p>Try: {escape(f.advice)}</p></div>\n"
        for f in findings
    )


def _no_curves(run: LoggedRun) -> str:
    """Say how curves are drawn, where there is something to draw."""
    say = f"This run has no pictures; `regimen plot {run.path}` draws its curves (with matplotlib: regimen[plots])."
    return f"<p class='stop'>{escape(say)}</p>\n" if run.points else ""


def _pictures(folder: Path) -> tuple[list[Path], list[Path]]:
    """PNG and GIF files below a folder: the curves that every run has, in their order, and the others."""
    every = sorted(p for p in folder.rglob("*") if p.suffix.lower() in PICTURES and p.is_file())
    place = {name: i for i, name in enumerate(CAPTIONS)}
    standard = sorted((p for p in every if p.stem in place and p.parent == folder), key=lambda p: place[p.stem])
    return standard, [p for p in every if p not in standard]


def _figures(paths: Iterable[Path], root: Path, chart: bool = False) -> str:
    """Pictures side by side, one alone at full width; what is too large for a page is named instead."""
    every = list(paths)
    small = [p for p in every if p.stat().st_size <= LARGEST][:MOST]
    figures = [embed(p, CAPTIONS.get(p.stem) or _caption(p, root), chart and p.suffix == ".png") for p in small]
    large = [p.name for p in every if p not in small]
    note = f"<p class='stop'>Not in this page: {escape(', '.join(large[:10]))}</p>\n" if large else ""
    body = "".join(figures)
    return (f"<div class='pictures'>\n{body}</div>\n" if len(figures) > 1 else body) + note


def _caption(path: Path, root: Path) -> str:
    return path.relative_to(root).with_suffix("").as_posix().replace("_", " ").replace("/", ", ")


def _rows(rows: Sequence[Mapping[str, object]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row if any(r.get(name) is not None for r in rows)))
    cells = [[None if r.get(n) is None else _show(n, r[n]) for n in names] for r in rows]
    return Table([name.replace("_", " ") for name in names], cells).html()


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
