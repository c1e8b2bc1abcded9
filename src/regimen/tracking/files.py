"""The run directory. Its files are the truth of a run; the console, MLflow, plots and the live page only read them.

Writes go straight to the operating system (no buffer of our own), so a reader sees every logged point at once and a
killed process loses at most the line it was writing; readers and `RunFiles.open` drop such a torn last line.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml

from regimen.errors import StorageError

STATES = ("running", "finished", "interrupted", "failed", "diverged")

# progress.csv: contract columns that have another name in metrics.jsonl
PROGRESS_NAMES = {
    "rollout/return_mean": "episode_return_mean",
    "rollout/return_min": "episode_return_min",
    "rollout/return_max": "episode_return_max",
    "rollout/length_mean": "episode_length_mean",
    "rollout/success_rate": "success_rate",
    "time/steps_per_second": "steps_per_second",
}
COUNTERS = ("env_steps", "agent_steps", "updates", "episodes", "wall_seconds")
PROGRESS_COLUMNS = COUNTERS + tuple(PROGRESS_NAMES.values())
EPISODE_COLUMNS = ("episode", "update", "env_steps", "return", "length", "terminated", "truncated", "success")
_INTEGERS = ("episode", "update", "env_steps", "length")
_FLAGS = ("terminated", "truncated")
_PACKAGES = ("regimen", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "gymnasium", "mlflow")


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def storage_error(path: Path, error: OSError) -> StorageError:
    """The one line for a failed write: which file, why, and what to do when the disk is full."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"cannot write {path}: disk full ({reason}); free some space, then `regimen resume` the run"
        )
    return StorageError(f"cannot write {path}: {reason}")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def plain(value: Any, finite: bool = True) -> Any:
    """`value` as JSON or YAML can hold it: arrays and scalars as Python numbers; with `finite`, NaN and inf as None."""
    if type(value) is not float and hasattr(value, "item"):  # numpy and jax arrays and scalars
        array = np.asarray(value)
        # str gives the shortest digits that are the same float32
        value = float(str(array)) if array.ndim == 0 and array.dtype == np.float32 else array.tolist()
    if isinstance(value, float):
        return value if not finite or math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v, finite) for k, v in value.items()}
    if isinstance(value, Iterable):
        return [plain(v, finite) for v in value]
    return str(value)


def write_atomic(path: Path, data: str | bytes, sync: bool = True) -> None:
    """Replace `path` in one step: a reader sees the old file or the new one, never a part."""
    path = Path(path)
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _writing(path):
        try:
            with open(tmp, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(tmp, path)
        except OSError:
            tmp.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any, sync: bool = True) -> None:
    write_atomic(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n", sync)


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when the file is missing or does not hold one."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


class _Appender:
    """A file that only grows, by whole lines. A line torn by a kill or a full disk is cut off again."""

    def __init__(self, path: Path):
        self.path = path
        self._file: io.FileIO | None = None

    def write(self, data: bytes) -> None:
        with _writing(self.path):
            file = self._file or self._open()
            start = file.tell()
            try:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            except OSError:
                with contextlib.suppress(OSError):  # /dev/full and pipes cannot be truncated
                    file.truncate(start)
                self.close()
                raise

    def _open(self) -> io.FileIO:
        file = open(self.path, "ab+", buffering=0)  # noqa: SIM115 - held open for the whole run
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            end = _last_line_end(file)
            if end < file.seek(0, os.SEEK_END):
                file.truncate(end)
            file.seek(0, os.SEEK_END)
        self._file = file
        return file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


def _last_line_end(file: io.FileIO, block: int = 1 << 16) -> int:
    """Offset just past the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


class _Table:
    """A CSV file whose header may grow: new columns go to the end and old rows get empty cells there."""

    def __init__(self, path: Path, first: Iterable[str] = ()):
        self.path = path
        self.columns: list[str] = []
        self._first = tuple(first)
        self._lines = _Appender(path)
        with contextlib.suppress(OSError), open(path, encoding="utf-8", newline="") as file:
            line = file.readline()
            if line.endswith("\n"):
                self.columns = next(csv.reader([line]))

    def append(self, cells: Mapping[str, list[str]]) -> None:
        """One list of already formatted cells per column, all of one length; a missing column is left empty."""
        rows = max((len(c) for c in cells.values()), default=0)
        if not rows:
            return
        if not self.columns:
            self._widen([*self._first, *(name for name in cells if name not in self._first)])
        new = [name for name in cells if name not in self.columns]
        if new:
            self._widen([*self.columns, *new])
        empty = [""] * rows
        columns = [cells.get(name, empty) for name in self.columns]
        self._lines.write(("\n".join(map(",".join, zip(*columns))) + "\n").encode())

    def _widen(self, columns: list[str]) -> None:
        pad = b"," * (len(columns) - len(self.columns)) + b"\n"
        with _writing(self.path):
            self._lines.close()
            if not self.columns:
                rows = b""  # a header torn by a kill has no rows
            else:
                with open(self.path, "rb") as file:
                    file.readline()
                    rows = b"".join(line[:-1] + pad for line in file if line.endswith(b"\n"))
        write_atomic(self.path, _csv_line(columns).encode() + rows)
        self.columns = columns

    def close(self) -> None:
        self._lines.close()


def _csv_line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float)):
        return repr(value)
    return _csv_line([" ".join(str(value).splitlines())])[:-1] if value else ""


def _cells(values: np.ndarray) -> list[str]:
    """A column as text, without a Python call per number where it can be avoided; a non-finite number is empty."""
    values = np.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"an episode column must be one-dimensional, not {values.shape}")
    if values.dtype == bool:
        values = values.astype(np.int8)
    if np.issubdtype(values.dtype, np.integer):
        return list(map(str, values.tolist()))
    finite = np.isfinite(values)
    if np.array_equal(values, np.rint(values)) or values.dtype == np.float64:
        text = list(map(repr, values.astype(np.float64).tolist()))
    else:
        text = values.astype(str).tolist()  # shortest digits that give the same float32 back
    for i in np.flatnonzero(~finite).tolist():
        text[i] = ""
    return text


class RunFiles:
    """One run directory: see the contract in docs/architecture.md."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self._lock = None
        self._attach()

    def _attach(self) -> None:
        self._status: dict[str, Any] | None = None
        self._metrics = _Appender(self.path / "metrics.jsonl")
        self._log = _Appender(self.path / "log.txt")
        self._progress = _Table(self.path / "progress.csv", PROGRESS_COLUMNS)
        self._episodes = _Table(self.path / "episodes.csv")

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], command: str) -> Self:
        """A new run directory. An existing one with anything in it is refused and left as it is."""
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise _in_use(path)
            # 'x': of two processes that create the same directory at once, one is refused
            with open(path / "command.txt", "x", encoding="utf-8") as file:
                file.write(command.rstrip("\n") + "\n")
        except FileExistsError as error:
            if path.is_dir():
                raise _in_use(path) from None
            raise StorageError(f"--out: {path} is a file, not a directory; choose another --out") from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(f"--out: cannot write to {path}: {reason}; choose another --out") from error
        write_atomic(
            path / "config.yaml", yaml.safe_dump(plain(config, finite=False), sort_keys=False, allow_unicode=True)
        )
        files = cls(path)
        files.status(
            state="running",
            stop_reason=None,
            pid=os.getpid(),
            host=socket.gethostname(),
            versions=versions(),
            git_revision=git_revision(),
            started=utc_now(),
        )
        return files

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run directory, to read or to continue."""
        path = Path(path)
        if not path.is_dir():
            raise StorageError(
                f"{path} is not a run directory: {'it is a file' if path.exists() else 'no such directory'}"
            )
        if not (path / "config.yaml").is_file():
            hint = "; its runs are in its sub-directories" if any(path.glob("*/config.yaml")) else ""
            raise StorageError(f"{path} is not a run directory: it has no config.yaml{hint}")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        return read_config(self.path)

    def lock(self) -> None:
        """Claim the directory for this process until `unlock`, or until the process dies however it dies."""
        import fcntl

        if self._lock is not None:
            return
        path = self.path / ".lock"
        with _writing(path):
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
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()}\n")
            file.flush()
        self._lock = file

    def unlock(self) -> None:
        file, self._lock = self._lock, None
        if file is not None:
            file.close()  # the file itself stays: removing it would let two processes lock two files of one name

    def status(self, **fields: Any) -> dict[str, Any]:
        """Merge `fields` into status.json and return the whole."""
        if fields.get("state", "running") not in STATES:
            raise ValueError(f"state: '{fields['state']}' is none of {', '.join(STATES)}")
        path = self.path / "status.json"
        if self._status is None:
            self._status = read_json(path)
        self._status |= {**plain(fields), "updated": utc_now()}
        write_json(path, self._status, sync="state" in fields)
        return dict(self._status)

    def log(self, point: Mapping[str, Any]) -> None:
        """One point: a line of metrics.jsonl and a row of progress.csv. What is not finite is left out."""
        self.log_many([point])

    def log_many(self, points: Iterable[Mapping[str, Any]]) -> None:
        """Several points in one write: what a compiled chunk of updates hands over."""
        rows = [{k: v for k, raw in point.items() if (v := plain(raw)) is not None} for point in points]
        if not rows:
            return
        self._metrics.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = {
            PROGRESS_NAMES.get(name, name): [_cell(row[name]) if name in row else "" for row in rows] for name in names
        }
        self._progress.append(cells)

    def episodes(self, rows: Mapping[str, np.ndarray]) -> None:
        """Finished episodes, one array per column. `update` counts from 1, as `updates` of the point that has them."""
        known = [name for name in EPISODE_COLUMNS if name in rows]
        rewards = [name for name in rows if name.startswith("reward/")]
        rest = [name for name in rows if name not in known and name not in rewards]
        self._episodes.append({name: _cells(rows[name]) for name in (*known, *rewards, *rest)})

    def event(self, text: str) -> None:
        self._log.write(f"{utc_now()} {' '.join(text.splitlines())}\n".encode())

    def summary(self, values: Mapping[str, Any]) -> None:
        write_json(self.path / "summary.json", values)

    def rewind(self, updates: int) -> None:
        """Forget everything after that many updates, to continue from a checkpoint taken then."""

        def keep(row: Mapping[str, Any], counter: str) -> bool:
            count = row.get(counter)
            return not isinstance(count, (int, float)) or count <= updates

        path = self.path / "metrics.jsonl"
        if path.exists():
            with _writing(path):
                lines = [line for line, row in _json_lines(path) if keep(row, "updates")]
            self._metrics.close()
            write_atomic(path, b"".join(lines))
        for table, counter in ((self._progress, "updates"), (self._episodes, "update")):
            if not table.path.exists():
                continue
            table.close()
            with _writing(table.path):
                data = table.path.read_bytes()
            write_atomic(table.path, _rows_up_to(data, counter, updates))
        self._attach()

    def close(self) -> None:
        for file in (self._metrics, self._log, self._progress, self._episodes):
            file.close()
        self.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _in_use(path: Path) -> StorageError:
    resume = f" or continue it with `regimen resume {path}`" if (path / "config.yaml").exists() else ""
    return StorageError(f"--out: {path} already exists and is not empty; choose another --out{resume}")


def _rows_up_to(data: bytes, counter: str, limit: int) -> bytes:
    """The header and the whole rows of a CSV whose `counter` is at most `limit`; nothing if the header is torn."""
    lines = data.splitlines(keepends=True)
    if not lines or not lines[0].endswith(b"\n"):
        return b""
    columns = next(csv.reader([lines[0].decode()]))
    if counter not in columns:
        return data
    index, width = columns.index(counter), len(columns)
    kept = [lines[0]]
    for line in lines[1:]:
        cells = line[:-1].split(b",") if b'"' not in line else [c.encode() for c in next(csv.reader([line.decode()]))]
        if line.endswith(b"\n") and len(cells) == width:
            with contextlib.suppress(ValueError):
                if not cells[index] or float(cells[index]) <= limit:
                    kept.append(line)
    return b"".join(kept)


def _json_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Whole lines that hold an object; a torn line, or the zeros a power failure leaves, are passed over."""
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                yield line, row


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The points of a run directory (or of a metrics.jsonl); empty when none was logged yet."""
    path = Path(path)
    path = path / "metrics.jsonl" if path.is_dir() else path
    if not path.exists():
        return []
    try:
        return [row for _, row in _json_lines(path)]
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


def read_episodes(path: Path) -> dict[str, np.ndarray]:
    """The columns of a run directory's (or one) episodes.csv; an empty cell is NaN, flags are bool, counters int."""
    path = Path(path)
    path = path / "episodes.csv" if path.is_dir() else path
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    text = text[: text.rfind("\n") + 1]
    header, _, body = text.partition("\n")
    columns = next(csv.reader([header]), [])
    if not columns:
        return {}
    for _ in range(2):  # ',,,' needs two passes
        body = body.replace(",,", ",nan,")
    body = ("\n" + body).replace(",\n", ",nan\n").replace("\n,", "\nnan,")[1:]
    try:
        table = _numbers(body, len(columns))
    except ValueError:  # a damaged line somewhere: keep the lines that can be read
        table = _numbers(
            "".join(line + "\n" for line in body.splitlines() if _readable(line, len(columns))), len(columns)
        )
    out: dict[str, np.ndarray] = {}
    for i, name in enumerate(columns):
        column = table[:, i]
        if name in _INTEGERS and np.isfinite(column).all():
            column = column.astype(np.int64)
        elif name in _FLAGS and np.isfinite(column).all():
            column = column.astype(bool)
        out[name] = column
    return out


def _numbers(body: str, width: int) -> np.ndarray:
    if not body.strip():
        return np.zeros((0, width))
    table = np.loadtxt(io.StringIO(body), delimiter=",", ndmin=2, comments=None)
    if table.shape[1] != width:
        raise ValueError("a row does not fit the header")
    return table


def _readable(line: str, width: int) -> bool:
    cells = line.split(",")
    try:
        return len(cells) == width and all(float(c) is not None for c in cells)
    except ValueError:
        return False


def read_config(path: Path) -> dict[str, Any]:
    """config.yaml of a run directory."""
    path = Path(path) / "config.yaml"
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise StorageError(f"{path} does not hold a configuration")
    return value


def versions() -> dict[str, str]:
    """Python and the packages that decide a run's numbers, without importing them."""
    import platform

    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def git_revision(path: Path | None = None) -> str | None:
    """Commit of the repository around `path` (the working directory), `-dirty` when changed; None outside one."""
    import subprocess

    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=path,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            timeout=2,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
