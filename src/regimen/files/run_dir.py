"""The run directory. Its files are the truth of a run; the console, MLflow, plots and the live page only read them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from array import array
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Self

import numpy as np
import yaml

from regimen.config import trust, yaml_files
from regimen.errors import StorageError
from regimen.files import background, sealed, storage, tally

SEAL = "# a run of regimen, as it was trained; digest "  # first line of config.yaml
WORDS = {str: "text", dict: "section"}
SECTIONS = ("env_args", "rollout", "algo", "network", "eval", "log", "checkpoint", "stop", "track", "engine")
KINDS = dict.fromkeys(("env", "algorithm"), str) | dict.fromkeys(SECTIONS, dict)
STATES = ("running", "finished", "interrupted", "failed", "diverged")
ENDED = ("finished", "diverged")  # their summary.json is written first

# progress.csv: contract columns that have another name in metrics.jsonl
PROGRESS_NAMES = {
    "rollout/return_mean": "episode_return_mean",
    "rollout/return_min": "episode_return_min",
    "rollout/return_max": "episode_return_max",
    "rollout/length_mean": "episode_length_mean",
    "rollout/success_rate": "success_rate",
    "time/steps_per_second": "steps_per_second",
    "time/unix_time": "unix_time",
}
COUNTERS = ("env_steps", "agent_steps", "updates", "episodes", "wall_seconds")
PROGRESS_COLUMNS = COUNTERS + tuple(PROGRESS_NAMES.values())
EPISODE_COLUMNS = ("episode", "update", "env_steps", "return", "length", "terminated", "truncated", "success")
_INTEGERS = ("episode", "update", "env_steps", "length")
_FLAGS = ("terminated", "truncated")
_PACKAGES = ("regimen", "jax", "jaxlib", "flax", "optax", "safetensors", "numpy", "gymnasium", "mlflow")


class RunFiles:
    """One run directory: see the contract in docs/run_directory.md."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self._lock = None
        self._attach()

    def _attach(self, counting: bool = False) -> None:
        """Open the files of a run to write on. `counting`: also what was written before counts in the tallies."""

        def tally(name: str) -> storage.Tally | None:
            return storage.Tally.of(self.path / name) if counting else None

        self._status: storage.Json | None = None
        self._metrics = storage.Appender(self.path / "metrics.jsonl", tally("metrics.jsonl"))
        self._log = storage.Appender(self.path / "log.txt")
        self._progress = storage.CsvLog(self.path / "progress.csv", PROGRESS_COLUMNS, tally("progress.csv"))
        self._episodes = storage.CsvLog(self.path / "episodes.csv", tally=tally("episodes.csv"))
        self._workers = storage.CsvLog(self.path / "workers.csv", tally=tally("workers.csv"))

    @classmethod
    def create(cls, path: Path, config: Mapping[str, object], command: str, **status: object) -> Self:
        """A new run directory. An existing one with anything in it is refused and left as it is. `status` is what its
        status.json says besides."""
        path = Path(path)
        storage.require_text(path, command)
        storage.check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            # 'x': of two processes that create the same directory at once, one is refused
            with open(path / "command.txt", "x", encoding="utf-8") as file:
                file.write(command.rstrip("\n") + "\n")
        except FileExistsError:
            raise storage.in_use(path) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(f"--out: cannot write to {path}: {reason}; choose another --out") from error
        files = cls(path)
        files.status(  # before config.yaml, which makes it a run
            state="running",
            stop_reason=None,
            pid=os.getpid(),
            host=socket.gethostname(),
            versions=versions(),
            git_revision=git_revision(),
            started=storage.utc_now(),
            **status,
        )
        write_config(path, config)
        return files

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run directory, to read or to continue."""
        path = Path(path)
        if not path.is_dir():
            reason = "it is a file" if path.exists() else "no such directory"
            raise StorageError(f"{path} is not a run directory: {reason}")
        if not (path / "config.yaml").is_file():
            hint = "; its runs are in its sub-directories" if any(path.glob("*/config.yaml")) else ""
            raise StorageError(f"{path} is not a run directory: it has no config.yaml{hint}")
        return cls(path)

    @property
    def config(self) -> storage.Json:
        return read_config(self.path)

    def lock(self) -> None:
        """Claim the directory for this process until `unlock`, or until the process dies however it dies."""
        import fcntl

        if self._lock is not None:
            return
        storage.require_own(self.path)
        path = self.path / ".lock"
        with storage.writing(path):
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - closing it gives the lock back
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                pid, _, host = file.read().strip().partition(" ")
                file.close()
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                        self.event("this file system has no locks: make sure that only one process uses this run")
                        return
                    raise
                where = f" on {host}" if host and host != socket.gethostname() else ""
                raise StorageError(
                    f"{self.path} is in use by process {pid or 'unknown'}{where}; stop it or choose another --out"
                ) from None
            background.sign(file, os.getpid())
        self._lock = file
        try:
            background.stop(self.path)
        except StorageError:
            self.unlock()
            raise
        storage.remove_halves(self.path)

    def unlock(self) -> None:
        file, self._lock = self._lock, None
        if file is not None:
            file.close()  # the file itself stays: removing it would let two processes lock two files of one name

    def status(self, **fields: object) -> storage.Json:
        """Merge `fields` into status.json and return the whole."""
        if fields.get("state", "running") not in STATES:
            raise ValueError(f"state: '{fields['state']}' is none of {', '.join(STATES)}")
        path = self.path / "status.json"
        if self._status is None:
            self._status = storage.read_json(path)
            for name in (sealed.SCHEMA, sealed.DIGEST):
                self._status.pop(name, None)
        self._status |= {**storage.plain(fields), "updated": storage.utc_now()}
        sealed.write_sealed(path, self._status, sync="state" in fields)
        return dict(self._status)

    def log(self, *points: Mapping[str, object]) -> None:
        """Append points in one write: lines of metrics.jsonl and rows of progress.csv. What is not finite is left
        out."""
        rows = [{k: v for k, raw in point.items() if (v := storage.plain(raw)) is not None} for point in points]
        if not rows:
            return
        self._metrics.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())
        names = dict.fromkeys(name for row in rows for name in row)
        cells = {name: [storage.cell(row[name]) if name in row else "" for row in rows] for name in names}
        self._progress.append({PROGRESS_NAMES.get(name, name): column for name, column in cells.items()})

    def episodes(self, rows: Mapping[str, np.ndarray]) -> None:
        """Finished episodes, one array per column. `update` counts from 1, as `updates` of the point that has them."""
        first = [name for name in EPISODE_COLUMNS if name in rows]
        first += [name for name in rows if name.startswith("reward/")]
        self._episodes.append({name: storage.cells_of(rows[name]) for name in dict.fromkeys([*first, *rows])})

    def workers(self, updates: int, seconds: float, rows: Sequence[Mapping[str, object]]) -> None:
        """The state of each worker at one moment."""
        stamped = [{"updates": updates, "wall_seconds": round(seconds, 2), **row} for row in rows]
        names = stamped[0] if stamped else ()
        self._workers.append({name: [storage.cell(row[name]) for row in stamped] for name in names})

    def event(self, text: str) -> None:
        self._log.write(f"{storage.utc_now()} {' '.join(text.splitlines())}\n".encode(errors="backslashreplace"))

    def summary(self, values: Mapping[str, object]) -> None:
        sealed.write_sealed(self.path / "summary.json", values)

    def rewind(self, updates: int) -> None:
        """Forget everything after that many updates, to continue from a checkpoint taken then."""

        def keep(count: object) -> bool:
            return not isinstance(count, (int, float)) or count <= updates

        path = self._metrics.path
        if path.exists():
            with storage.writing(path):
                lines = [line for line, row in storage.json_lines(path) if keep(row.get("updates"))]
            self._metrics.close()
            storage.write_atomic(path, b"".join(lines))
        for table, counter in ((self._progress, "updates"), (self._episodes, "update"), (self._workers, "updates")):
            if table.path.exists():
                table.close()
                with storage.writing(table.path):
                    data = storage.read_bytes(table.path)
                storage.write_atomic(table.path, storage.rows_up_to(data, counter, updates))
        self._attach(counting=True)

    def tallies(self) -> dict[str, storage.Json]:
        """What the files that grow have had so far, for a checkpoint."""
        tables = (self._progress, self._episodes, self._workers)
        return {"metrics.jsonl": self._metrics.tally.state()} | {table.path.name: table.tally for table in tables}

    def require_tallies(self, counted: Mapping[str, storage.Json]) -> None:
        """Refuse to go on where rows are missing that a checkpoint counts on."""
        for name in ("metrics.jsonl", "progress.csv", "episodes.csv", "workers.csv"):
            if name in counted:
                tally.check(self.path / name, counted[name])

    def close(self) -> None:
        for file in (self._metrics, self._log, self._progress, self._episodes, self._workers):
            file.close()
        self.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_summary(path: Path) -> storage.Json:
    """What summary.json of a run says; nothing while it trains, StorageError where it is gone from one that has
    ended."""
    file = Path(path) / "summary.json"
    if not file.exists() and storage.read_json(file.with_name("status.json")).get("state") in ENDED:
        raise StorageError(f"{file} is missing, though the run has ended; {sealed.ADVICE}")
    return sealed.read_sealed(file, required=is_sealed(path))


def read_status(path: Path) -> storage.Json:
    """What status.json of a run says; StorageError where it is gone: it is there before config.yaml is sealed."""
    file = Path(path) / "status.json"
    if not file.exists() and is_sealed(path):
        raise StorageError(f"{file} is missing; {sealed.ADVICE}")
    return sealed.read_sealed(file, required=is_sealed(path))


def is_sealed(path: Path) -> bool:
    """Whether a run was written since its files have digests, so that none of them may lack its own."""
    return storage.read_text(Path(path) / "config.yaml").startswith(SEAL)


def read_metrics(path: Path) -> list[storage.Json]:
    """The points of a run directory; empty when none was logged yet."""
    path = Path(path) / "metrics.jsonl"
    try:
        require_counted(path)
        if not path.exists():
            return []
        return [row for _, row in storage.json_lines(path)]
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def read_episodes(path: Path) -> dict[str, np.ndarray]:
    """The columns of a run directory's episodes.csv; an empty cell is NaN, flags are bool, counters int. A damaged or
    torn line is left out."""
    path = Path(path) / "episodes.csv"
    try:
        require_counted(path)
        if not path.exists():
            return {}
        header, *lines = storage.read_plain(path, "replace").split("\n")[:-1] or [""]
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    columns = storage.cells_in(header)
    values = array("d")
    for line in lines:
        cells = line.split(",")
        if len(cells) == len(columns):
            with contextlib.suppress(ValueError):
                values.extend([float(cell or "nan") for cell in cells])
    out: dict[str, np.ndarray] = {}
    for name, column in zip(columns, np.array(values).reshape(-1, len(columns) or 1).T):
        kind = np.int64 if name in _INTEGERS else bool if name in _FLAGS else np.float64
        out[name] = column.astype(kind) if np.isfinite(column).all() else column
    return out


def require_counted(path: Path) -> None:
    """Refuse a file that grows and that lacks what the newest checkpoint of its run has counted."""
    counted = tally_of(path)
    if counted is not None:
        tally.check(path, counted)


def require_length(path: Path) -> None:
    """Refuse a run whose files that grow are shorter than its newest checkpoint says: what a list of runs has the time
    for (see `require_counted`)."""
    for name, counted in tallies_of(path).items():
        file = path / name
        size = file.stat().st_size if file.is_file() else 0
        if size < counted["bytes"]:
            raise StorageError(f"{file} has {size:,} of the {counted['bytes']:,} bytes that it has at the checkpoint")


def tally_of(path: Path) -> storage.Json | None:
    """What the newest checkpoint of a run says of one of its files, where it does."""
    return tallies_of(path.parent).get(path.name)


def tallies_of(path: Path) -> dict[str, storage.Json]:
    """What the newest checkpoint of a run says of the files that grow; nothing where it cannot be read."""
    folder = newest(path / "checkpoints")
    if folder is None:
        return {}
    with contextlib.suppress(StorageError), sealed.reading(folder):
        return dict(sealed.unseal(sealed.load_object(folder / "meta.json"), str(folder))["tallies"])
    return {}


def newest(folder: Path) -> Path | None:
    """The newest checkpoint of a run."""
    steps = [path.name for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    return folder / max(steps, key=int) if steps else None


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory, or what is left of one: a run whose config.yaml is missing is not passed
    over, and reading it says so."""
    return os.path.lexists(path / "config.yaml") or (
        (path / "status.json").exists() and any((path / name).exists() for name in ("metrics.jsonl", "checkpoints"))
    )


def runs_below(folder: Path, depth: int = 2) -> list[Path]:
    """Run directories in a folder that is not one itself, at most so many levels deep."""
    return [path for pattern in ("*", "*/*")[:depth] for path in sorted(folder.glob(pattern)) if is_run(path)]


def write_config(path: Path, config: Mapping[str, object]) -> None:
    """Write config.yaml of a run directory, with its digest in the first line."""
    settings = storage.plain(config, finite=False)
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    storage.write_atomic(path / "config.yaml", f"{SEAL}{sealed.digest_of(settings)}\n{text}")


def read_config(path: Path) -> storage.Json:
    """config.yaml of a run directory, as Regimen wrote it."""
    path = Path(path) / "config.yaml"
    try:
        text = storage.read_plain(path)
        value = yaml_files.load(text)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise StorageError(f"{path} does not hold a configuration")
    for name, kind in KINDS.items():
        if not isinstance(value.get(name, kind()), kind):
            raise StorageError(f"{path} is damaged: {name} is {str(value[name])[:40]!r}, which is no {WORDS[kind]}")
    if not is_as_written(text, value, sealed.SCHEMA in storage.read_json(path.with_name("status.json"))):
        raise StorageError(
            f"{path} has changed since Regimen wrote it, and what it says is not what was trained; put it back as it "
            f"was. To train with these settings: `regimen train --config {path}`"
        )
    return trust.named(value, path)


def is_as_written(text: str, value: object, required: bool) -> bool:
    """Whether a config.yaml holds the `value` that its first line has the digest of; `required` where it must have
    one."""
    head = text.partition("\n")[0]
    if not required and not head.startswith("# a run"):
        return True
    try:
        return head == f"{SEAL}{sealed.digest_of(value)}"
    except (TypeError, ValueError, RecursionError):  # of what JSON cannot hold
        return False


def versions() -> dict[str, str]:
    """Python and the packages that decide a run's numbers, without importing them."""
    import platform

    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            out[name] = metadata.version(name)
    return out


def git_revision() -> str | None:
    """Commit of the repository around the working directory, `-dirty` when changed; None outside one."""
    import subprocess

    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None
