"""Run directories of a folder: what each is and how far it came, and removing them. Jax-free; reads little."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from regimen.errors import ConfigError, StorageError, nearest
from regimen.files import background
from regimen.files.rows import is_number
from regimen.files.run_dir import is_run, read_config, read_status, read_summary, require_length
from regimen.files.sealed import reading
from regimen.files.storage import Json, read_json, read_text, regular
from regimen.words import aligned, clock, count, score, size

DEEPEST = 4  # folders below the one asked for
SIGNS = ("status.json", "metrics.jsonl", "command.txt", "checkpoints")  # with config.yaml, one of them makes a run
GROUP = ("summary.json", "plots", "return.png", "report.html", background.LOCK)  # beside the seeds of a group
SORTS = {"started": "started", "return": "episode_return", "size": "size", "env": "env", "name": "path"}
DELIVERIES = {"drawing": ", drawing", "failed": ", incomplete", "missing": ", incomplete"}  # beside the state
TAIL = 1 << 16  # bytes of metrics.jsonl that are read for its last row


@dataclass(frozen=True)
class Listed:
    """One run in a list."""

    path: str
    env: str
    algo: str
    seed: int
    state: str  # of status.json; `killed` where it says running and no process is, `damaged` where a file is
    progress: float | None  # share of the budget
    env_steps: int
    episode_return: float | None  # of the final evaluation, else the last logged
    wall_seconds: float
    size: int  # bytes
    started: str
    delivery: str | None = None  # of its pictures and report, see `background.state_of`


def find_runs(folder: Path) -> Iterator[Path]:
    """Run directories in a folder, itself included; what lies within a run is not looked at. The artifacts that MLflow
    keeps of a run have its config.yaml and nothing of its life: they are no run."""

    def walk(path: Path, depth: int) -> Iterator[Path]:
        if is_run(path) and any((path / name).exists() for name in SIGNS):
            yield path
        elif depth:
            for child in sorted(path.iterdir()):
                if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                    yield from walk(child, depth - 1)

    if not folder.is_dir():
        raise StorageError(f"no such folder: {folder}")
    yield from walk(folder, DEEPEST)


def is_running(path: Path) -> bool:
    """Whether a process holds the run. On another machine its own word is taken."""
    status = read_json(path / "status.json")
    elsewhere = status.get("host") not in (None, socket.gethostname())
    return (status.get("state") == "running" and elsewhere) or locked(path)


def locked(path: Path) -> bool:
    import fcntl

    try:
        with open(path / ".lock", "rb", opener=regular) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return False


def last_row(path: Path) -> Json:
    """The last whole line of metrics.jsonl that holds a row."""
    lines: list[bytes] = []
    with contextlib.suppress(OSError), open(path / "metrics.jsonl", "rb", opener=regular) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        lines = file.read().split(b"\n")
    for line in reversed(lines[:-1]):
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict):
                return row
    return {}


def size_of(path: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def problem(path: Path) -> str | None:
    """What is wrong with the files that say what a run is, in one line."""
    try:
        read_config(path)
        read_status(path)
        read_summary(path)
        with reading(path):
            require_length(path)
    except (StorageError, OSError) as error:
        return " ".join(str(error).split())
    return None


def number(value: object) -> float | None:
    """What a file says, where it is a number that can be shown."""
    return float(value) if is_number(value) and math.isfinite(value) else None


def describe(path: Path) -> Listed:
    """A run as a row; a damaged one as far as it can be read."""
    wrong, config = problem(path), {}
    with contextlib.suppress(StorageError):
        config = read_config(path)
    status, summary, row = read_json(path / "status.json"), read_json(path / "summary.json"), last_row(path)
    state = "damaged" if wrong else str(status.get("state") or "unknown")
    if state == "running" and not is_running(path):
        state = "killed"
    budgets = (config.get("total_steps"), "env_steps"), (config.get("total_episodes"), "episodes")
    budgets = [(total, name) for value, name in budgets if (total := number(value))]
    returns = (summary.get("eval_return_mean"), row.get("eval/return_mean"), row.get("rollout/return_mean"))
    seed = config.get("seed")
    return Listed(
        path=str(path),
        env=str(config.get("env") or "?"),
        algo=str(config.get("algorithm") or "?"),
        seed=seed if is_number(seed) and isinstance(seed, int) else 0,
        state=state,
        progress=max((min(1.0, (number(row.get(name)) or 0) / total) for total, name in budgets), default=None),
        env_steps=int(number(row.get("env_steps")) or number(summary.get("env_steps")) or 0),
        episode_return=next((x for v in returns if (x := number(v)) is not None), None),
        wall_seconds=number(row.get("wall_seconds")) or number(summary.get("wall_seconds")) or 0.0,
        size=size_of(path),
        started=str(status.get("started") or ""),
        delivery=background.state_of(path, status, locked(path)),
    )


def listed(
    folders: Sequence[str | Path],
    state: str | None = None,
    env: str | None = None,
    algo: str | None = None,
    sort: str = "started",
) -> list[Listed]:
    """Runs that match, newest (best, largest) first."""
    if sort not in SORTS:
        raise ConfigError(f"--sort: unknown column '{sort}'{nearest(sort, SORTS)}")
    paths = {path.resolve(): path for folder in folders for path in find_runs(Path(folder))}
    rows = [
        r
        for r in map(describe, paths.values())
        if state in (None, r.state) and (env is None or env in r.env) and algo in (None, r.algo)
    ]

    def key(row: Listed) -> str | float:
        value = getattr(row, SORTS[sort])
        return float("-inf") if value is None else value

    return sorted(rows, key=key, reverse=sort in ("started", "return", "size"))


def table(rows: Sequence[Listed]) -> list[str]:
    head = ["run", "env", "algo", "seed", "state", "done", "steps", "return", "time", "size"]
    cells = []
    for r in rows:
        share = "" if r.progress is None else f"{r.progress:.0%}"
        end = "" if r.episode_return is None else score(r.episode_return)
        numbers = (share, count(r.env_steps), end, clock(r.wall_seconds), size(r.size))
        cells.append([r.path, r.env, r.algo, str(r.seed), r.state + DELIVERIES.get(r.delivery or "", ""), *numbers])
    return aligned(head, cells)


def show(path: Path) -> list[str]:
    """Everything short about one run."""
    if not is_run(path):
        raise StorageError(f"{path} is not a run directory: it has no config.yaml")
    row, status, summary = describe(path), read_json(path / "status.json"), read_json(path / "summary.json")
    facts = asdict(row) | {"size": size(row.size), "wall_seconds": clock(row.wall_seconds)}
    facts["progress"] = None if row.progress is None else f"{row.progress:.0%}"
    names = ("updates", "episodes", "solved", "solved_at", "success_rate", "best_checkpoint")
    facts |= {name: summary.get(name, status.get(name)) for name in (*names, "stop_reason", "stop_detail")}
    facts |= {name: status.get(name) for name in ("device", "host", "pid", "git_revision", "error")}
    checkpoints = [p.name for p in sorted((path / "checkpoints").glob("*")) if p.name.isdigit()]
    delivery = status.get("delivery")
    facts |= {"damaged": problem(path), "not made": delivery.get("error") if isinstance(delivery, dict) else None}
    facts |= {"checkpoints": ", ".join(checkpoints) or None, "command": read_text(path / "command.txt").strip() or None}
    return [f"{name.replace('_', ' '):<16} {value}" for name, value in facts.items() if value is not None]


# --- removing --------------------------------------------------------------------------------------------------------


def removable(path: Path) -> list[Path]:
    """The runs that removing `path` removes: itself, or the seeds of a group. Anything else is refused."""
    if path.is_symlink():
        raise StorageError(f"{path} is a link, not a run directory; remove the run it leads to")
    if not path.is_dir():
        raise StorageError(f"{path} is not a run directory: {'it is a file' if path.exists() else 'no such directory'}")
    if (path / "config.yaml").is_file() and (path / "status.json").is_file():
        runs = [path]
    else:
        runs = [p for p in sorted(path.glob("seed-*")) if (p / "config.yaml").is_file()]
        others = [p.name for p in path.iterdir() if p not in runs and p.name not in GROUP]
        if not runs or others:
            reason = "it has no config.yaml and status.json"
            raise StorageError(f"{path} is not a run directory ({reason}); nothing is removed")
    for run in runs:
        if is_running(run):
            pid = read_json(run / "status.json").get("pid", "unknown")
            raise StorageError(f"{run} is running (process {pid}); stop it first")
    return runs


def remove(path: Path) -> None:
    """Remove a run or a group: out of sight by one rename first, so that it is never half there."""
    runs = removable(path)
    away = path.with_name(f".removing-{path.name}-{os.getpid()}")
    try:
        for part in {path, *runs}:
            background.stop(part)
        os.rename(path, away)
        shutil.rmtree(away)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror or error}") from error
