"""`report.html`: one file that opens offline and says what a run was, what came of it, and how to repeat it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml

from regimen.errors import StorageError
from regimen.files.run_dir import RunFiles, read_metrics
from regimen.files.storage import read_json, write_atomic
from regimen.reports import diagnose, svg
from regimen.reports.plots import Run, moving_average, try_plot_run
from regimen.words import clock, count, score

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

PICTURES = {".png": "image/png", ".gif": "image/gif"}
LARGEST = 12_000_000  # bytes of one picture in a report
MOST = 24  # pictures of one folder
LEFT_OUT = ("eval_metrics", "eval_metrics_ci95", "stop_detail")  # shown elsewhere

_STYLE = """
:root { color-scheme: light dark; --text: #1a202c; --dim: #5a6778; --back: #ffffff; --card: #f7fafc; --line: #e2e8f0;
  --blue: #2b6cb0; --orange: #dd6b20; --green: #2f855a; --red: #c53030; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e2e8f0; --dim: #a0aec0; --back: #12161d; --card: #1c222c; --line: #2d3748; --blue: #63b3ed;
    --orange: #f6ad55; --green: #68d391; --red: #fc8181; }
  img.chart { filter: invert(0.9) hue-rotate(180deg); }
}
@media print { pre { white-space: pre-wrap; } details { break-inside: avoid; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 66rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.stop { color: var(--dim); margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); } th { font-weight: 500; color: var(--dim); } td { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .8rem; overflow-x: auto;
  font: 13px/1.45 ui-monospace, monospace; }
details > summary { cursor: pointer; color: var(--dim); margin-bottom: .4rem; }
figure { margin: 0 0 1.2rem; } figcaption { color: var(--dim); font-size: .9rem; }
img { max-width: 100%; height: auto; border-radius: 6px; }
svg { width: 100%; height: auto; background: var(--card); border-radius: 6px; }
svg text { font-size: 11px; fill: var(--dim); } svg .grid { stroke: var(--line); }
svg polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 1.2rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .7rem; margin: 1.2rem 0 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.25rem; font-weight: 600; overflow-wrap: anywhere; }
.tile span { color: var(--dim); font-size: .85rem; }
.finding { border-left: 4px solid var(--orange); background: var(--card); border-radius: 0 6px 6px 0; margin: 0 0 .8rem;
  padding: .6rem .9rem; } .finding.error { border-color: var(--red); } .finding p { margin: .2rem 0; }
.finding small { color: var(--dim); }
"""


def write_report(run_dir: Path, out: str | Path | None = None, draw: bool = False) -> Path:
    """Write `<run_dir>/report.html` (or `out`) from the run's files and the pictures in `plots/` and `replays/`, and
    return its path. Of a group of seeds: their statistics, its pictures and a row for each. `draw`: its curves first,
    where they are missing."""
    path = Path(run_dir)
    if draw and (path / "config.yaml").is_file() and not (path / "plots" / "overview.png").is_file():
        try_plot_run(path)
    if not (path / "config.yaml").is_file() and any(path.glob("seed-*/config.yaml")):
        text = group_page(path)
    else:
        text = run_page(RunFiles.open(path))
    out = path / "report.html" if out is None else Path(out)
    write_atomic(out, text)
    return out


def run_page(files: RunFiles) -> str:
    path = files.path
    config, status, summary = files.config, read_json(path / "status.json"), read_json(path / "summary.json")
    points = read_metrics(path)
    last = points[-1] if points else {}
    title = " · ".join(
        str(v) for v in (config.get("env"), config.get("algorithm"), f"seed {config.get('seed', 0)}") if v
    )
    stop = summary.get("stop_reason") or status.get("stop_reason") or "not finished"
    stop = f"Stopped: {stop}" + (f" ({summary['stop_detail']})" if summary.get("stop_detail") else "")
    counters = {k: last[k] for k in ("env_steps", "updates", "episodes", "wall_seconds") if k in last}
    shown = {**counters, **summary, "state": status.get("state", "unknown")}
    shown = {k: v for k, v in shown.items() if k not in ("stop_reason", *LEFT_OUT) and not k.startswith("eval_")}
    standard, own = _found(path / "plots")
    first = [p for p in standard if p.stem == "overview"]
    charts = _figures(first, path, chart=True) or _figures(standard, path, chart=True) or _drawn(path)
    sections = [
        _tiles(summary, last, status),
        section("Diagnosis", _findings(path, status)),
        section("Curves", charts),
        section("Pictures", _figures([*own, *_found(path / "replays")[1]], path)),
        section("Evaluation", _evaluation(summary, points)),
        section("Summary", _table(shown)),
        section("Each curve", _figures([p for p in standard if p not in first], path, chart=True) if first else ""),
        section("Command", _pre(_read(path / "command.txt"))),
        section("Configuration", _folded("every setting", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))),
        section("Versions", _table({**_mapping(status.get("versions")), "git revision": status.get("git_revision")})),
    ]
    return page(title, stop, sections)


def group_page(path: Path) -> str:
    """The seeds of one setting."""
    summary, runs = read_json(path / "summary.json"), sorted(path.glob("seed-*/config.yaml"))
    rows = []
    for run in (p.parent for p in runs):
        one, status = read_json(run / "summary.json"), read_json(run / "status.json")
        row = {"seed": one.get("seed", run.name), "state": status.get("state", "unknown")}
        row |= {k: one.get(k) for k in ("env_steps", "episodes", "eval_return_mean", "success_rate", "stop_reason")}
        row["findings"] = ", ".join(f.code for f in _diagnosed(run)) or "none"
        rows.append(row)
    title = " · ".join(str(v) for v in (summary.get("env"), summary.get("algo"), f"{len(rows)} seeds") if v)
    sections = [
        section("Curves", _figures([p for found in _found(path / "plots") for p in found], path, chart=True)),
        section("Seeds", _rows(rows)),
        section("Summary", _table(summary)),
        section("Configuration", _folded("of the first seed", _read(runs[0]))),
    ]
    return page(title or path.name, f"{len(rows)} seeds", sections)


def page(title: str, below: str, sections: Iterable[str]) -> str:
    """A page that needs nothing but itself."""
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p class='stop'>{escape(below)}</p>\n" + "".join(sections) + "</body>\n</html>\n"
    )


def section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}</section>\n" if body else ""


def _table(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(str(k).replace('_', ' '))}</th><td>{escape(_show(str(k), v))}</td></tr>\n"
        for k, v in values.items()
        if v is not None
    )
    return f"<table>\n{rows}</table>\n" if rows else ""


def _show(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if name == "seed" else f"{value:,}"
    if isinstance(value, float):
        if name == "wall_seconds" and value >= 60:
            return f"{clock(value)} ({value:,.0f} s)"
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.6g}"
    return str(value)


def _evaluation(summary: Mapping[str, Any], points: list[dict[str, Any]]) -> str:
    """The final evaluation, and the best and last ones during training."""
    final = {k.removeprefix("eval_"): v for k, v in summary.items() if k.startswith("eval_") and not _mapping(v)}
    between = _mapping(summary.get("eval_metrics_ci95"))
    for name, value in _mapping(summary.get("eval_metrics")).items():
        if name != "return_mean":
            ends = between.get(name)
            final[name] = _show(name, value) + (f" (95% interval {ends[0]:.4g} to {ends[1]:.4g})" if ends else "")
    during = [p for p in points if isinstance(p.get("eval/return_mean"), (int, float))]
    if during:
        best = max(during, key=lambda p: p["eval/return_mean"])
        for label, point in (("best during training", best), ("last during training", during[-1])):
            final[label] = f"{score(point['eval/return_mean'])} at {point.get('env_steps', 0):,} env steps"
    return _table(final)


def _tiles(summary: Mapping[str, Any], last: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """The figures to see first."""
    tiles: list[tuple[str, str]] = [(str(status.get("state", "unknown")), "state")]
    mean, between = summary.get("eval_return_mean"), _mapping(summary.get("eval_metrics_ci95")).get("return_mean")
    if isinstance(mean, (int, float)):
        interval = f", 95% {score(between[0])} to {score(between[1])}" if between else ""
        tiles.insert(0, (score(mean), f"evaluation return{interval}"))
    elif isinstance(last.get("rollout/return_mean"), (int, float)):
        tiles.insert(0, (score(last["rollout/return_mean"]), "last training return"))
    if isinstance(summary.get("success_rate"), (int, float)):
        tiles.append((f"{summary['success_rate']:.0%}", "success"))
    if summary.get("solved") is not None:
        known = summary.get("return_threshold")
        threshold = f" (threshold {known:g})" if isinstance(known, (int, float)) else ""
        tiles.append(("yes" if summary["solved"] else "no", "solved" + threshold))
    steps = summary.get("env_steps", last.get("env_steps"))
    if isinstance(steps, (int, float)):
        tiles.append((count(steps), "env steps"))
    seconds = summary.get("wall_seconds", last.get("wall_seconds"))
    if isinstance(seconds, (int, float)):
        tiles.append((clock(seconds), "wall time"))
    if isinstance(summary.get("steps_per_second"), (int, float)):
        tiles.append((count(round(summary["steps_per_second"])), "steps per second"))
    body = "".join(f"<div class='tile'><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in tiles)
    return f"<div class='tiles'>{body}</div>\n"


def _diagnosed(path: Path) -> list[diagnose.Finding]:
    """What is wrong with the run; a report is written whatever its files look like."""
    try:
        return diagnose.diagnose(path)
    except (StorageError, ValueError, TypeError, KeyError, ArithmeticError):
        return []


def _findings(path: Path, status: Mapping[str, Any]) -> str:
    found = _diagnosed(path)
    if not found:
        return "<p>Nothing was found to be wrong.</p>\n" if status.get("state") == "finished" else ""
    return "".join(
        f"<div class='finding {f.level}'><b>{escape(f.title)}</b> <small>{escape(f.code)}</small>"
        f"<p>{escape(f.evidence)}</p><p>Try: {escape(f.advice)}</p></div>\n"
        for f in found
    )


def _drawn(path: Path) -> str:
    """Curves of a run that has no pictures."""
    run = Run(path)
    x, y = run.series("rollout/return_mean")
    window = max(1, len(y) // 20)
    charts = [
        svg.chart("Return", {"training": (x, moving_average(y, window)), "evaluation": run.series("eval/return_mean")}),
        svg.chart("Entropy of the policy", {"entropy": run.series("train/entropy")}),
        svg.chart("How far each update moved the policy", {"approximate KL": run.series("train/approx_kl")}),
        svg.chart("Explained variance of the critic", {"explained": run.series("train/explained_variance")}),
    ]
    body = "".join(charts)
    return f"<div class='pictures'>\n{body}</div>\n" if body else ""


def _found(folder: Path) -> tuple[list[Path], list[Path]]:
    """PNG and GIF files below a folder: the curves that every run has, in their order, and the others."""
    every = (
        sorted(p for p in folder.rglob("*") if p.suffix.lower() in PICTURES and p.is_file()) if folder.is_dir() else []
    )
    known = {name: i for i, name in enumerate(CAPTIONS)}
    standard = sorted((p for p in every if p.stem in known and p.parent == folder), key=lambda p: known[p.stem])
    return standard, [p for p in every if p not in standard]


def _figures(paths: Iterable[Path], root: Path, chart: bool = False) -> str:
    """Pictures side by side, one alone at full width; what is too large for a page is named instead."""
    every = list(paths)
    shown = [p for p in every if p.stat().st_size <= LARGEST][:MOST]
    figures = [figure(p, CAPTIONS.get(p.stem) or _caption(p, root), chart and p.suffix == ".png") for p in shown]
    left = [p.name for p in every if p not in shown]
    note = f"<p class='stop'>Not in this page: {escape(', '.join(left[:10]))}</p>\n" if left else ""
    body = "".join(figures)
    return (f"<div class='pictures'>\n{body}</div>\n" if len(figures) > 1 else body) + note


def _caption(path: Path, root: Path) -> str:
    return path.relative_to(root).with_suffix("").as_posix().replace("_", " ").replace("/", ", ")


def figure(path: Path, caption: str, chart: bool = True) -> str:
    """A picture inside the page; a chart is drawn on white and is inverted in the dark."""
    try:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    text, kind = escape(caption), PICTURES.get(path.suffix.lower(), "image/png")
    mark = " class='chart'" if chart else ""
    return f"<figure><img{mark} alt='{text}' src='data:{kind};base64,{data}'><figcaption>{text}</figcaption></figure>\n"


def _rows(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row if any(r.get(name) is not None for r in rows)))
    head = "".join(f"<th>{escape(n.replace('_', ' '))}</th>" for n in names)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(_show(n, r[n])) if r.get(n) is not None else ''}</td>" for n in names)
        + "</tr>\n"
        for r in rows
    )
    return f"<div class='scroll'><table>\n<tr>{head}</tr>\n{body}</table></div>\n"


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{_pre(text)}</details>\n" if text.strip() else ""


def _pre(text: str) -> str:
    return f"<pre>{escape(text.strip())}</pre>\n" if text.strip() else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
