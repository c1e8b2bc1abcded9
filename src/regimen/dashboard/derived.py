"""Views of what runs hold already: tables that their domain can draw, animations, what a search believes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from regimen.config import domains
from regimen.dashboard.index import WatchedRun, files_below, stamp_of
from regimen.dashboard.reading import UnreadableError, parse_json, read_bytes
from regimen.errors import RegimenError
from regimen.files import background, views
from regimen.files.listing import locked

LARGEST_TABLE = 24 << 20
MOST_COMPARED = 128 << 20  # bytes of metrics

Listed = dict[str, tuple[str, ...]]  # title -> the file's place in the run


def listing(run: WatchedRun) -> Listed:
    """What can be looked at, the newest evaluation first."""
    out: Listed = {}
    for name in files_below(run.root, (*run.parts, "views"), ".json"):
        out[name.removesuffix(".json")] = ("views", name)
    model = run.summary.get("model")
    if "posterior" not in out and isinstance(model, dict) and "posterior" in model:
        out["posterior over candidates"] = ("summary.json",)
    for name in reversed(files_below(run.root, (*run.parts, "trajectories"), ".csv", most=100)):
        out[views.table_title(name, "trajectories")] = ("trajectories", name)
    for name in files_below(run.root, (*run.parts, "replays"), ".csv", most=100) if drawing_domain(run) else ():
        out[views.table_title(name, "replay")] = ("replays", name)
    for name in files_below(run.root, (*run.parts, "replays"), ".gif", most=100):
        out[animation_title(name)] = ("replays", name)
    return out


def animation_title(name: str) -> str:
    """The title of an animation: that of the table of the same episode, and what it is."""
    return f"{views.table_title(name, 'replay')}, animated"


def hint(run: WatchedRun) -> list[str]:
    """How a run without pictures gets some, in its own environment."""
    domain = drawing_domain(run)
    path = run.root.joinpath(*run.parts)
    delivery = background.state_of(path, run.status, locked(path))
    if delivery == "drawing":
        lines = ["Its pictures are being drawn."]
    elif delivery in ("failed", "missing"):
        lines = [f"They were not finished: regimen report {path} makes what is missing."]
    elif run.state != "running" and not any((path / name).is_dir() for name in ("policy", "checkpoints")):
        return ["It ended before it had a policy whose episodes could be drawn."]
    elif run.config.get("log.replay") is True and run.state == "running":
        lines = [
            "A short replay of the best policy is written at the end of the run, where the environment can be drawn."
        ]
    else:
        lines = [f"regimen replay {path} writes an episode of its policy, as an animation where it can be drawn."]
    return [*lines, domain.hint] if domain is not None and domain.hint else lines


def compared(runs: list[WatchedRun], by: str | None) -> dict[str, object]:
    """What a comparison of runs says, as text: verdicts, tables, notes; or the error, in a line."""
    from regimen.reports.comparison import compare
    from regimen.reports.comparison_report import explanations, tables, verdicts

    sizes = [stamp[1] for run in runs if (stamp := stamp_of(run.root, *run.parts, "metrics.jsonl")) is not None]
    if sum(sizes) > MOST_COMPARED:
        return {"error": "these runs are too large to be compared here; `regimen compare` does it on the command line"}
    try:
        result = compare([run.root.joinpath(*run.parts) for run in runs], by=by or None)
    except RegimenError as error:
        return {"error": " ".join(str(error).split())[:400]}
    texts = [
        {
            "title": table.title[:200],
            "head": [str(cell) for cell in table.head],
            "rows": [["" if cell is None else str(cell) for cell in row] for row in table.rows],
        }
        for table in tables(result, details=False)
    ]
    return {"verdicts": verdicts(result), "tables": texts, "notes": explanations(result)}


def drawing_domain(run: WatchedRun) -> domains.Domain | None:
    """The domain that can draw tables of a run's environment."""
    env = str(run.config.get("env"))
    return next((domain for domain in domains.domains().values() if domain.tables and domain.owns(env)), None)


def load(run: WatchedRun, place: tuple[str, ...]) -> views.View:
    """The view in a file, checked; ViewError or UnreadableError with the reason where there is none."""
    folder, name = place[0], place[-1]
    if folder == "views":
        return views.check(parse_json(read_bytes(views.LARGEST, run.root, *run.parts, *place)))
    if name == "summary.json":
        return believed(run.summary)
    if name.endswith(".gif"):
        title = animation_title(name)
        legend = run.status.get("legend")
        note = legend[:1000] if isinstance(legend, str) else ""
        return views.image(title[0].upper() + title[1:], "/".join(place), note=note)
    text = read_bytes(LARGEST_TABLE, run.root, *run.parts, *place).decode("utf-8", "replace")
    table = csv.reader(io.StringIO(text))
    domain = drawing_domain(run)
    try:
        head = next(table, [])
        view = domains.load(domain.tables)(name, head, table, run.config) if domain and domain.tables else None
    except views.ViewError:
        raise
    except (csv.Error, ValueError, IndexError) as error:
        raise UnreadableError(f"not a table that can be drawn: {str(error)[:120]}") from error
    if view is None:
        raise UnreadableError("this table has no picture")
    return view


def believed(summary: Mapping[str, object]) -> views.View:
    """What a search (`regimen search`) believes of its candidates at its end: mean and two deviations."""
    model, best = summary["model"], summary.get("best")
    winner = best.get("candidate") if isinstance(best, dict) else None
    try:
        candidates = [
            {
                "name": str(c["candidate"]),
                "mean": float(c["mean"]),
                "low": float(c["mean"]) - 2 * float(c["std"]),
                "high": float(c["mean"]) + 2 * float(c["std"]),
                "chosen": c["candidate"] == winner,
            }
            for c in (model["posterior"] if isinstance(model, dict) else ())
        ]
    except (TypeError, KeyError, ValueError) as error:
        raise UnreadableError("model.posterior: not a list of candidates with mean and std") from error
    title = f"after {summary.get('trials')} trials; highlighted: the best that was found"
    return views.check(views.posterior("Posterior over candidates", [{"title": title, "candidates": candidates}]))
