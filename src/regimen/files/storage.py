"""Writing and reading files that outlive their process: atomic replacement, appended lines, tables that grow columns.

Writes go straight to the operating system (no buffer of our own), so a reader sees every line at once and a killed
process loses at most the line it was writing; readers drop such a torn last line.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from regimen.config.trust import is_trusting
from regimen.errors import StorageError

BLOCK = 1 << 20  # bytes that are read at once
HALF = re.compile(r"\..+\.(\d+)\.tmp(?:\.\w+)?")  # what `replacing` writes to, and the process that does
Json = dict[str, Any]  # an object of a JSON or YAML file


def utc_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def require_text(path: Path, command: str = "") -> None:
    """Refuse a path, or a command that names one, that is no UTF-8: it could not be written into files of text."""
    for what, text in (("--out", str(path.absolute())), ("the command", command)):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            name = text.encode(errors="surrogateescape")
            raise StorageError(f"{what}: {name!r} is not UTF-8; choose another name") from error


def check_free(path: Path) -> None:
    """Refuse to write where something lies already, unless it is an empty folder."""
    try:
        free = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    except OSError as error:
        raise StorageError(f"--out: cannot read {path}: {error.strerror or error}") from error
    if not free:
        raise in_use(path)


def in_use(path: Path) -> StorageError:
    hint = f", or continue it with `regimen resume {path}`" if (path / "config.yaml").exists() else ""
    why = "already exists and is not empty" if path.is_dir() else "is a file, not a directory"
    return StorageError(f"--out: {path} {why}; choose another --out{hint}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say in one line which file cannot be written, why, and what to do when the disk is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason = f"disk full ({reason}); free some space, then `regimen resume` the run"
        raise StorageError(f"cannot write {path}: {reason}") from error


def plain(value: object, finite: bool = True) -> Any:
    """`value` as JSON or YAML can hold it: arrays and scalars as Python numbers; with `finite`, NaN and inf as None."""
    if type(value) is not float and hasattr(value, "item"):  # numpy and jax arrays and scalars
        array = np.asarray(value)
        # str gives the shortest digits that are the same float32
        value = float(str(array)) if array.ndim == 0 and array.dtype == np.float32 else array.tolist()
    if isinstance(value, float):
        return value if not finite or math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return str(value) if isinstance(value, str) else value  # of a file's word (`config/trust.py`) the plain text
    if isinstance(value, Mapping):
        return {str(k): plain(v, finite) for k, v in value.items()}
    if isinstance(value, Iterable):
        return [plain(v, finite) for v in value]
    return str(value)


@contextlib.contextmanager
def replacing(path: Path, alike: bool = True) -> Iterator[Path]:
    """A path to write to in the place of `path`, which it becomes in one step when all is written; nothing is left of
    it when that is interrupted or fails. It ends `alike` for those who tell the format by that."""
    number = os.getpid()
    tmp = path.with_name(f".{path.stem}.{number}.tmp{path.suffix}" if alike else f".{path.name}.{number}.tmp")
    try:
        tmp.unlink(missing_ok=True)  # it might be a link to elsewhere
        yield tmp
        os.replace(tmp, path)
    except BaseException:  # Ctrl+C too leaves no half-written file behind
        tmp.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def filling(path: Path) -> Iterator[Path]:
    """A folder to write to in the place of `path`, an empty folder or none, which it becomes in one step when all is
    written: one that is killed half-way leaves nothing under the final name."""
    tmp = path.with_name(f".{path.resolve().name}.tmp")
    with writing(path):
        if tmp.is_symlink():
            tmp.unlink()
        shutil.rmtree(tmp, ignore_errors=True)  # of a process that was killed
        tmp.mkdir(parents=True)
    try:
        yield tmp
        with writing(path):
            os.rename(tmp, path)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise


def write_atomic(path: Path, data: str | bytes, sync: bool = True) -> None:
    """Replace `path` in one step: a reader sees the old file or the new one, never a part."""
    path = Path(path)
    with writing(path), replacing(path, alike=False) as tmp, open(tmp, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def write_json(path: Path, value: object, sync: bool = True) -> None:
    write_atomic(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n", sync)


def regular(path: str, flags: int) -> int:
    """An `opener` that takes regular files only: opening a pipe would wait for its other end."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_bytes(path: Path) -> bytes:
    """What is in a regular file."""
    with open(path, "rb", opener=regular) as file:
        return file.read()


def read_plain(path: Path, errors: str = "strict") -> str:
    """The text in a regular file."""
    return read_bytes(path).decode(errors=errors).replace("\r\n", "\n")


def require_own(folder: Path, within: Path | None = None) -> None:
    """Refuse to write into a folder, or to show what is in it, with links that lead out of it: what they lead to is not
    the run's. `within`: what it has to be a part of, where nobody named it."""
    home = (within or folder).resolve()
    for place, folders, names in [("", [str(folder)] if within else [], []), *os.walk(folder)]:
        for path in (Path(place, name) for name in (*folders, *names)):
            if path.is_symlink() and not (target := path.resolve()).is_relative_to(home) and not is_trusting():
                raise StorageError(
                    f"{path} is a link to {target}, outside of the run, and would be written to or shown; put a copy "
                    "in its place, or allow it with --trust (trust=True in Python)"
                )


def remove_halves(folder: Path) -> None:
    """Remove what `replacing` wrote for a process that is gone: one that was killed could not."""
    for place, _, names in os.walk(folder):
        for name in names:
            match = HALF.fullmatch(name)
            if match and not os.path.exists(f"/proc/{match[1]}") and os.path.isdir("/proc/self"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(place, name))


def read_json(path: Path) -> Json:
    """The object in `path`; empty when the file is missing or does not hold one."""
    try:
        value = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_text(path: Path) -> str:
    """The text in `path`; empty when the file is missing or cannot be read."""
    try:
        return read_plain(path, "replace")
    except OSError:
        return ""


def dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested settings: `algo.lr`, 0.0003. A list is one value, and so is an empty section."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class Tally:
    """What a file that only grows has had so far: a checkpoint keeps it, and a reader can tell what is missing."""

    def __init__(self) -> None:
        self.lines, self.bytes, self.sha = 0, 0, hashlib.sha256()

    def add(self, data: bytes) -> None:
        self.lines += data.count(b"\n")
        self.bytes += len(data)
        self.sha.update(data)

    def state(self, columns: int = 0) -> Json:
        return {"lines": self.lines, "bytes": self.bytes, "columns": columns, "sha256": self.sha.hexdigest()}

    @classmethod
    def of(cls, path: Path) -> Tally:
        """The tally of a whole file; of nothing where there is none."""
        tally = cls()
        if path.exists():
            with open(path, "rb", opener=regular) as file:
                while data := file.read(BLOCK):
                    tally.add(data)
        return tally


class Appender:
    """A file that only grows, by whole lines. A line torn by a kill or a full disk is cut off again."""

    def __init__(self, path: Path, tally: Tally | None = None):
        self.path, self.tally = path, tally or Tally()
        self._file: io.FileIO | None = None

    def write(self, data: bytes) -> None:
        with writing(self.path):
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
            self.tally.add(data)

    def _open(self) -> io.FileIO:
        file = open(self.path, "ab+", buffering=0)  # noqa: SIM115 - held open for the whole run
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            end = last_line_end(file)
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


def last_line_end(file: io.FileIO, block: int = 1 << 16) -> int:
    """Offset just past the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0


class CsvLog:
    """A CSV file whose header may grow: new columns go to the end and old rows get empty cells there."""

    def __init__(self, path: Path, first: Iterable[str] = (), tally: Tally | None = None):
        self.path = path
        self.columns: list[str] = []
        self._first = tuple(first)
        self._lines = Appender(path, tally)
        with (
            contextlib.suppress(OSError),
            open(path, encoding="utf-8", errors="replace", newline="", opener=regular) as file,
        ):
            line = file.readline()
            if line.endswith("\n"):
                self.columns = cells_in(line)

    def append(self, cells: Mapping[str, list[str]]) -> None:
        """One list of already formatted cells per column, all of one length; a missing column is left empty."""
        rows = max((len(c) for c in cells.values()), default=0)
        if not rows:
            return
        names = dict.fromkeys([*(self.columns or self._first), *cells])
        if len(names) > len(self.columns):
            self._widen(list(names))
        columns = [cells.get(name, [""] * rows) for name in self.columns]
        self._lines.write(("\n".join(map(",".join, zip(*columns))) + "\n").encode())

    def _widen(self, columns: list[str]) -> None:
        pad = b"," * (len(columns) - len(self.columns)) + b"\n"
        rows = b""  # a header torn by a kill has none
        self._lines.close()
        if self.columns:
            with writing(self.path), open(self.path, "rb", opener=regular) as file:
                file.readline()
                rows = b"".join(line[:-1] + pad for line in file if line.endswith(b"\n"))
        data = csv_line(columns).encode() + rows
        write_atomic(self.path, data)
        self._lines.tally = Tally()
        self._lines.tally.add(data)
        self.columns = columns

    @property
    def tally(self) -> Json:
        return self._lines.tally.state(len(self.columns))

    def close(self) -> None:
        self._lines.close()


def csv_line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def cells_in(line: str) -> list[str]:
    """The cells of a line; none where one is longer than a cell may be, as the zeros a power failure leaves."""
    with contextlib.suppress(csv.Error):
        return next(csv.reader([line]), [])
    return []


def cell(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (int, float)):
        return repr(value)
    return csv_line([" ".join(str(value).splitlines())])[:-1] if value else ""


def cells_of(values: np.ndarray) -> list[str]:
    """A column as text, without a Python call per number where it can be avoided; a non-finite number is empty."""
    values = np.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"an episode column must be one-dimensional, not {values.shape}")
    if values.dtype == bool:
        values = values.astype(np.int8)
    if np.issubdtype(values.dtype, np.integer):
        return list(map(str, values.tolist()))
    if np.array_equal(values, np.rint(values)) or values.dtype == np.float64:
        text = list(map(repr, values.astype(np.float64).tolist()))
    else:
        text = values.astype(str).tolist()  # shortest digits that give the same float32 back
    for i in np.flatnonzero(~np.isfinite(values)).tolist():
        text[i] = ""
    return text


def rows_up_to(data: bytes, counter: str, limit: int) -> bytes:
    """The header and the whole rows of a CSV whose `counter` is at most `limit`; nothing if the header is torn."""
    lines = data.splitlines(keepends=True)
    if not lines or not lines[0].endswith(b"\n"):
        return b""
    columns = cells_in(lines[0].decode(errors="replace"))
    if counter not in columns:
        return data
    index, out = columns.index(counter), lines[:1]
    for line in lines[1:]:
        with contextlib.suppress(ValueError):
            cells = cells_in(line.decode(errors="replace"))
            if line.endswith(b"\n") and len(cells) == len(columns):
                out += [line] if float(cells[index] or limit) <= limit else []
    return b"".join(out)


def json_lines(path: Path) -> Iterator[tuple[bytes, Json]]:
    """Whole lines that hold an object; a torn line, or the zeros a power failure leaves, are passed over."""
    with open(path, "rb", opener=regular) as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            row = None
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
            if isinstance(row, dict):
                yield line, row
