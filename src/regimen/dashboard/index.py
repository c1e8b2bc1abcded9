"""Which runs there are and how they stand. One index, kept up to date by one watcher, serves every open page."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import stat
import threading
import time
from datetime import datetime
from itertools import islice
from pathlib import Path

from regimen.dashboard.columns import MOST_VALUES, Columns
from regimen.dashboard.reading import NAME, Settings, UnreadableError, parse_json, read_config, read_own, read_tail
from regimen.envs.metric import from_table

SIGNS = ("status.json", "metrics.jsonl")  # with one it is a run; MLflow copies config.yaml and summary.json only
PICTURES = ("views", "trajectories", "replays")
INSIDE = ("checkpoints", "policy", "plots", "replays", "trajectories", "analysis", "export", "views")
DEEPEST, MOST_FOLDERS, MOST_RUNS = 6, 20_000, 5_000
MOST_METRICS = 200  # declared ones of a run that are shown
TAIL = 1 << 16  # bytes read for how a run stands
SLOW = 5.0  # seconds between looks at runs that have ended, and for new ones
AT_ONCE, SLICE = 100, 0.2  # new runs that are looked at before the page has them, and seconds for more of them
SILENT = 120.0  # seconds without a sign after which a run on another machine is not called running
COUNTERS = ("env_steps", "episodes", "updates", "wall_seconds")
BUDGETS = {"env_steps": "total_steps", "episodes": "total_episodes", "wall_seconds": "stop.max_seconds"}
LAST = {  # what the list shows of the last rows
    "return": "rollout/return_mean",
    "average": "rollout/return_ma",
    "eval": "eval/return_mean",
    "speed": "time/steps_per_second",
    "success": "rollout/success_rate",
    "eval_success": "eval/success_rate",
}


def key_of(parts: tuple[str, ...]) -> str:
    """Return a name for URLs that says nothing of the path and stays the same from start to start."""
    return hashlib.blake2s("/".join(parts).encode("utf-8", "surrogateescape"), digest_size=9).hexdigest()


class WatchedRun:
    """One folder: what its small files say, and its metrics once someone asked for them."""

    def __init__(self, root: Path, parts: tuple[str, ...], is_run: bool):
        self.root, self.parts, self.is_run = root, parts, is_run
        self.id = key_of(parts)
        self.stamps: dict[str, tuple[int, int, int] | None] = {}
        self.status: dict[str, object] = {}
        self.labels: dict[str, str] = {}  # of metrics, as the environment declares them
        self.summary: dict[str, object] = {}
        self.config: Settings = {}
        self.config_error: str | None = None
        self.errors: dict[str, str | None] = {}  # of the files that say what the run is
        self.last: dict[str, float] = {}
        self.columns: Columns | None = None
        self.used = 0.0
        self.lock = threading.Lock()
        self.looked = -SLOW
        self.entry: dict[str, object] = {}

    def newest(self) -> int:
        """When its status was written, which it was last when the run ended."""
        stamp = stamp_of(self.root, *self.parts, "status.json")
        return stamp[2] if stamp else 0

    def look(self) -> bool:
        """Read the small files of a run that changed; returns whether the list shows anything else than before."""
        self.looked = time.monotonic()
        if self.changed("config.yaml"):
            try:
                self.config, self.config_error = read_config(self.root, *self.parts, "config.yaml"), None
            except UnreadableError as error:
                self.config, self.config_error = {}, str(error)
            has_one = self.stamps["config.yaml"] is not None
            self.errors["config.yaml"] = f"config.yaml: {self.config_error}" if self.config_error and has_one else None
        if self.changed("status.json"):
            self.status, self.errors["status.json"] = read_own(self.root, *self.parts, "status.json")
            metrics = islice(from_table(self.status.get("metrics")).items(), MOST_METRICS)
            self.labels = {name[:NAME]: metric.label[:NAME] for name, metric in metrics if metric.label}
            declared = self.status.get("labels")
            for name, label in islice(declared.items(), MOST_METRICS) if isinstance(declared, dict) else ():
                self.labels[f"train/{name[:NAME]}"] = str(label)[:NAME]
        if self.stamps["config.yaml"] is None:  # of a run that has one, as one with sealed files does
            self.errors["config.yaml"] = "config.yaml is missing" if "schema" in self.status else None
        if self.changed("summary.json"):
            self.summary, self.errors["summary.json"] = read_own(self.root, *self.parts, "summary.json")
        if self.changed("metrics.jsonl"):
            self.last = self.last_values()
        for folder in PICTURES:  # a file that is replaced changes its folder
            self.changed(folder)
        entry = self.describe()
        changed, self.entry = entry != self.entry, entry
        return changed

    def changed(self, name: str) -> bool:
        stamp = stamp_of(self.root, *self.parts, name)
        new = name not in self.stamps or self.stamps[name] != stamp
        self.stamps[name] = stamp
        return new

    def last_values(self) -> dict[str, float]:
        """The newest value of what the list shows, from the end of metrics.jsonl."""
        lines, out = [], {}
        with contextlib.suppress(UnreadableError):
            lines = read_tail(TAIL, self.root, *self.parts, "metrics.jsonl").split(b"\n")[:-1]
        metrics = {name: name for name in COUNTERS} | LAST
        for line in reversed(lines):
            row: object = None
            with contextlib.suppress(UnreadableError):
                row = parse_json(line)
            if not isinstance(row, dict):
                continue
            for name, metric in metrics.items():
                if name not in out and (value := number(row.get(metric))) is not None:
                    out[name] = value
            if len(out) == len(metrics):
                break
        return out

    @property
    def state(self) -> str:
        """The state of a run, as status.json says, but `dead` for one that says running and whose process is gone, and
        `damaged` where a file is."""
        if any(self.errors.values()):
            return "damaged"
        state = str(self.status.get("state", "unknown" if self.is_run else "folder"))[:40]
        if state != "running":
            return state
        host, pid = self.status.get("host"), self.status.get("pid")
        if host in (None, socket.gethostname()):
            return state if alive(pid, seconds(self.status.get("updated"))) else "dead"
        stamp = self.stamps.get("metrics.jsonl") or self.stamps.get("status.json")
        return state if stamp and time.time() - stamp[2] / 1e9 < SILENT else "silent"

    @property
    def progress(self) -> float | None:
        """Share of the budget that is spent, whichever budget is nearest to its end."""
        budgets = {name: self.config.get(key) for name, key in BUDGETS.items() if name in self.last}
        shares = [self.last[n] / x for n, x in budgets.items() if isinstance(x, (int, float)) and x > 0]
        return min(1.0, max(shares)) if shares else None

    def describe(self) -> dict[str, object]:
        """What the list shows of it."""
        s, c, stamp = self.status, self.config, self.stamps.get("metrics.jsonl")
        return {
            "id": self.id,
            "name": "/".join(self.parts) or self.root.name,
            "folder": not self.is_run,
            "env": text(c.get("env", self.summary.get("env"))),
            "algo": text(c.get("algorithm", self.summary.get("algo"))),
            "seed": c.get("seed"),
            "state": self.state,
            "stop_reason": text(s.get("stop_reason")),
            "detail": text(next(filter(None, self.errors.values()), None) or s.get("error") or s.get("stop_detail")),
            "pid": s.get("pid") if isinstance(s.get("pid"), int) else None,
            "started": text(s.get("started")),
            "progress": self.progress,
            "total_steps": c.get("total_steps"),
            "final": number(self.summary.get("eval_return_mean")),
            "solved": self.summary.get("solved") if isinstance(self.summary.get("solved"), bool) else None,
            "labels": self.labels,
            "stamp": f"{stamp[0]}-{stamp[1]}" if stamp else "",
            "pictures": "-".join(f"{s[2]:x}" for name in PICTURES if (s := self.stamps.get(name))),
            **self.last,
        }

    def read_metrics(self, limit: int) -> bool:
        """Read on in metrics.jsonl; returns whether there is anything new."""
        with self.lock:
            if self.columns is None:
                self.columns = Columns(self.root, *self.parts, "metrics.jsonl")
            return self.columns.advance(limit)


class Index:
    """All runs below a folder (or that one run), by id."""

    def __init__(self, root: Path):
        self.root = Path(root).resolve()
        self.runs: dict[str, WatchedRun] = {}
        self.scanned = -SLOW

    def poll(self, limit: int = 1 << 23) -> tuple[list[str], list[str], bool]:
        """Ids that changed or are new, ids that are gone, and whether metrics remain to be read."""
        now = time.monotonic()
        gone: list[str] = []
        if now - self.scanned >= SLOW:
            self.scanned, gone = now, self.scan()
        changed, more = [], False
        runs = list(self.runs.values())
        fresh = [run for run in runs if not run.stamps]
        fresh.sort(key=WatchedRun.newest, reverse=True)
        for i, run in enumerate([run for run in runs if run.stamps] + fresh):
            if not run.stamps and i >= AT_ONCE and time.monotonic() - now > SLICE:
                more = True  # the page shows the newest, and the others as they come
                break
            busy = run.entry.get("state") == "running" or (run.columns is not None and not run.columns.complete)
            if not busy and now - run.looked < SLOW:
                continue
            new = run.look()
            if run.columns is not None and not (gone and run.id in gone):
                new |= run.read_metrics(limit)
                more |= not run.columns.complete
            if new:
                changed.append(run.id)
        self.forget()
        return changed, gone, more

    def scan(self) -> list[str]:
        """Find runs; returns the ids that are gone."""
        folders = {key_of(parts): (parts, is_run) for parts, is_run in find(self.root)}
        gone = [key for key in self.runs if key not in folders]
        runs = {}
        for key, (parts, is_run) in folders.items():
            run = self.runs.get(key)
            runs[key] = run if run is not None and run.is_run == is_run else WatchedRun(self.root, parts, is_run)
        self.runs = runs
        return gone

    def forget(self) -> None:
        """Give back the metrics that were not asked for the longest time, when there are too many."""
        held = sorted((r for r in list(self.runs.values()) if r.columns is not None), key=lambda r: r.used)
        total = sum(r.columns.values for r in held if r.columns is not None)
        while len(held) > 1 and total > 2 * MOST_VALUES:
            run = held.pop(0)
            total -= run.columns.values if run.columns is not None else 0
            run.columns = None


def find(root: Path) -> list[tuple[tuple[str, ...], bool]]:
    """(names below root, whether it is a run) of every run and of every other folder that holds views or a summary of
    runs below it. Links are not followed."""
    out: list[tuple[tuple[str, ...], bool]] = []
    waiting: list[tuple[str, ...]] = [()]
    folders = 0
    while waiting and folders < MOST_FOLDERS and len(out) < MOST_RUNS:
        parts = waiting.pop()
        folders += 1
        files, below = set(), []
        try:
            with os.scandir(root.joinpath(*parts)) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        files.add(entry.name)
        except OSError:
            continue
        is_run = any(sign in files for sign in SIGNS)
        if is_run or "views" in below or (parts and "summary.json" in files and "config.yaml" not in files):
            out.append((parts, is_run))
        if len(parts) < DEEPEST:
            deeper = [n for n in below if not n.startswith(".") and not (n in INSIDE and (is_run or "views" in below))]
            waiting += [(*parts, name) for name in deeper]
    return sorted(out, key=lambda item: natural(item[0]))


def natural(parts: tuple[str, ...]) -> list[list[tuple[int, str]]]:
    """A sort key that puts seed-2 before seed-10."""
    return [[(int(t), "") if t.isdigit() else (-1, t) for t in re.split(r"(\d{1,18})", part)] for part in parts]


def alive(pid: object, updated: float | None) -> bool:
    """Whether a process of that number runs that is not younger than what it is said to have written."""
    if not isinstance(pid, int) or isinstance(pid, bool) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)  # signal 0 asks and does nothing
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is someone else's
    begun = process_start(pid)
    return begun is None or updated is None or begun <= updated + 2


def process_start(pid: int) -> float | None:
    """When a process began, in seconds since 1970, where /proc says so. A zombie counts as ended: infinitely late."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        if fields[0] in "ZX":
            return float("inf")
        return int(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def seconds(stamp: object) -> float | None:
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None


def text(value: object) -> str | None:
    return None if value is None else str(value)[:400]


def number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e300 else None


def files_below(root: Path, parts: tuple[str, ...], *endings: str, most: int = 500) -> list[str]:
    """Names of plain files of a folder that end so, newest last by name; links are left out."""
    folder = root.joinpath(*parts)
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return []
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.endswith(endings) and e.is_file(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(names, key=lambda name: natural((name,)))[-most:]


def stamp_of(root: Path, *parts: str) -> tuple[int, int, int] | None:
    """What changes when a file does; None where there is none."""
    try:
        file = os.stat(root.joinpath(*parts), follow_symlinks=False)
    except OSError:
        return None
    return file.st_ino, file.st_size, file.st_mtime_ns
