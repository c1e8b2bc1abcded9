"""`report.html`: one file that opens offline and says what a run was, what came of it, and how to repeat it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

import yaml

from regimen.errors import StorageError
from regimen.tracking.console import clock, score
from regimen.tracking.files import RunFiles, read_metrics
from regimen.tracking.storage import read_json, write_atomic

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

_STYLE = """
:root { color-scheme: light dark; --text: #1a202c; --dim: #5a6778; --back: #ffffff; --card: #f7fafc; --line: #e2e8f0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e2e8f0; --dim: #a0aec0; --back: #12161d; --card: #1c222c; --line: #2d3748; }
  img { filter: invert(0.9) hue-rotate(180deg); }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 62rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.stop { color: var(--dim); margin: 0; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); } th { font-weight: 500; color: var(--dim); } td { overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .8rem; overflow-x: auto;
  font: 13px/1.45 ui-monospace, monospace; }
figure { margin: 0 0 1.2rem; } figcaption { color: var(--dim); font-size: .9rem; }
img { max-width: 100%; height: auto; border-radius: 6px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 1.2rem; }
"""


def write_report(run_dir: Path) -> Path:
    """Write `<run_dir>/report.html` from the run's files and the pictures in `plots/`, and return its path."""
    files = RunFiles.open(Path(run_dir))
    path = files.path
    config, status, summary = files.config, read_json(path / "status.json"), read_json(path / "summary.json")
    points = read_metrics(path)
    last = points[-1] if points else {}
    title = " · ".join(
        str(v) for v in (config.get("env"), config.get("algorithm"), f"seed {config.get('seed', 0)}") if v
    )
    stop = summary.get("stop_reason") or status.get("stop_reason") or "not finished"
    counters = {k: last[k] for k in ("env_steps", "updates", "episodes", "wall_seconds") if k in last}
    shown = {**counters, **summary, "state": status.get("state", "unknown")}
    shown = {k: v for k, v in shown.items() if k != "stop_reason" and not k.startswith("eval_")}
    sections = [
        section("Summary", _table(shown)),
        section("Evaluation", _evaluation(summary, points)),
        section("Curves", _pictures(path / "plots")),
        section("Command", _pre(_read(path / "command.txt"))),
        section("Configuration", _pre(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))),
        section("Versions", _table({**_mapping(status.get("versions")), "git revision": status.get("git_revision")})),
    ]
    out = path / "report.html"
    write_atomic(out, page(title, f"Stopped: {stop}", sections))
    return out


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


def _pictures(folder: Path) -> str:
    found = {p.stem: p for p in sorted(folder.glob("*.png"))} if folder.is_dir() else {}
    names = [n for n in CAPTIONS if n in found] + [n for n in found if n not in CAPTIONS]
    figures = [figure(found[name], CAPTIONS.get(name, name.replace("_", " "))) for name in names]
    if not figures:
        return ""
    first = figures.pop(0) if names[0] == "overview" else ""
    return first + (f"<div class='pictures'>\n{''.join(figures)}</div>\n" if figures else "")


def figure(path: Path, caption: str) -> str:
    """A picture inside the page."""
    try:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    text = escape(caption)
    return f"<figure><img alt='{text}' src='data:image/png;base64,{data}'><figcaption>{text}</figcaption></figure>\n"


def _pre(text: str) -> str:
    return f"<pre>{escape(text.strip())}</pre>\n" if text.strip() else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
