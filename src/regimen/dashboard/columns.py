"""metrics.jsonl in memory as columns, read on from where the last reading ended, and thinned for a screen.

A column keeps only the rows that have the metric. A request for a line of a million points looks at summaries of
blocks (least, greatest, mean), which are made once, so that its cost depends on the screen and not on the run.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import numpy as np

from regimen.dashboard.reading import NAME, UnreadableError, opened

CHUNK = 1 << 18  # bytes parsed at once: a few milliseconds, so that others get a turn
LINE = 1 << 20  # a longer line is not a row of metrics
MOST_COLUMNS = 2_000
MOST_VALUES = 48_000_000  # of one run, about 600 MB; then every second value of the long columns is dropped
BLOCK = 64  # values in one summary
FINE = 8_000  # up to so many points are thinned from the values themselves

X_AXES = ("env_steps", "wall_seconds", "episodes", "updates", "agent_steps")


class Column:
    """One metric: the rows that have it and its values. A reader takes `data` once and sees a consistent state."""

    def __init__(self) -> None:
        self.data: tuple[np.ndarray, np.ndarray, int] = (np.empty(64, np.int64), np.empty(64, np.float64), 0)
        self.summary: dict[str, tuple[int, np.ndarray]] = {}  # axis -> (values covered, blocks [5, B])
        self.places: dict[str, tuple[int, np.ndarray]] = {}  # axis -> (values covered, its value at each of them)

    def __len__(self) -> int:
        return self.data[2]

    def append(self, rows: np.ndarray, values: np.ndarray) -> None:
        at, had, n = self.data
        size = n + len(rows)
        if size > len(at):
            grown = max(size, 2 * len(at))
            at, had = _grown(at, n, grown), _grown(had, n, grown)
        at[n:size], had[n:size] = rows, values
        self.data = at, had, size

    def halve(self) -> None:
        """Keep every second value."""
        at, values, n = self.data
        self.data = at[:n:2].copy(), values[:n:2].copy(), (n + 1) // 2
        self.summary, self.places = {}, {}

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        at, values, n = self.data
        return at[:n], values[:n]


def _grown(array: np.ndarray, n: int, size: int) -> np.ndarray:
    out = np.empty(size, array.dtype)
    out[:n] = array[:n]
    return out


class Columns:
    """The metrics of one run. `advance` reads on; `version` changes with every new row."""

    def __init__(self, root: Path, *parts: str):
        self.root, self.parts = root, parts
        self.reset()

    def reset(self) -> None:
        self.columns: dict[str, Column] = {}
        self.rows = 0
        self.values = 0
        self.offset = 0
        self.rest = b""  # of a line that is not complete yet
        self.skipping = False  # in a line that is too long
        self.bad_lines = 0
        self.size = 0
        self.file_id: tuple[int, int] | None = None
        self.version = 0
        self.generation = getattr(self, "generation", -1) + 1

    @property
    def complete(self) -> bool:
        return self.offset >= self.size

    def advance(self, limit: int = 1 << 62) -> bool:
        """Read at most `limit` more bytes; whether anything is new. A file that was replaced is read anew."""
        before = (self.generation, self.version)
        try:
            with opened(self.root, *self.parts) as file:
                stat = os.fstat(file.fileno())
                file_id = (stat.st_dev, stat.st_ino)
                if self.file_id not in (None, file_id) or stat.st_size < self.offset:  # a resume rewrote it
                    self.reset()
                self.file_id, self.size = file_id, stat.st_size
                file.seek(self.offset)
                while limit > 0 and (data := file.read(min(CHUNK, limit))):
                    limit -= len(data)
                    self.take(data)
                    self.offset += len(data)  # last: `complete` is asked from other threads
        except UnreadableError:
            if self.file_id is not None:
                self.reset()
        return (self.generation, self.version) != before

    def take(self, data: bytes) -> None:
        """Add the lines of the next bytes of the file."""
        if self.skipping:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return
            self.skipping = False
        whole, newline, self.rest = (self.rest + data).rpartition(b"\n")
        if len(self.rest) > LINE:
            self.rest, self.skipping, self.bad_lines = b"", True, self.bad_lines + 1
        if newline:
            self.add(self.parse(whole))

    def parse(self, whole: bytes) -> list[dict[str, object]]:
        """Rows of some lines; all in one call where every line is sound, else line by line."""
        lines = [line for line in whole.split(b"\n") if line.strip() and len(line) <= LINE]
        with contextlib.suppress(ValueError, RecursionError):
            rows = json.loads(b"[" + b",".join(lines) + b"]")
            if len(rows) == len(lines) and all(type(row) is dict for row in rows):
                return rows
        rows = []
        for line in lines:
            row = None
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
            else:
                self.bad_lines += 1
        return rows

    def add(self, rows: list[dict[str, object]]) -> None:
        groups: dict[tuple[str, ...], list[int]] = {}  # rows with the same keys go together as one array
        for i, row in enumerate(rows):
            groups.setdefault(tuple(row), []).append(i)
        pieces_of: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for names, members in groups.items():
            table = _numbers([list(rows[i].values()) for i in members])
            at = self.rows + np.array(members, np.int64)
            for j, name in enumerate(names):
                pieces_of.setdefault(name, []).append((at, table[:, j]))
        for name, pieces in pieces_of.items():
            at, values = (np.concatenate(a) for a in zip(*pieces))
            good = np.isfinite(values)
            if not good.any():
                continue
            column = self.columns.get(name)
            if column is None:
                if len(self.columns) >= MOST_COLUMNS or len(name) > NAME:
                    continue
                column = self.columns[name] = Column()
            order = np.argsort(at[good], kind="stable") if len(pieces) > 1 else slice(None)
            column.append(at[good][order], values[good][order])
            self.values += int(good.sum())
        self.rows += len(rows)
        self.version += 1
        if self.values > MOST_VALUES:
            for column in list(self.columns.values()):
                if len(column) > FINE:
                    column.halve()
            self.values = sum(map(len, self.columns.values()))

    def catalogue(self) -> dict[str, int]:
        return {name: len(column) for name, column in list(self.columns.items())}

    def line(
        self, name: str, axis: str, width: int, low: float | None = None, high: float | None = None
    ) -> dict[str, np.ndarray]:
        """At most about `width` points of a metric over an axis between two values of it: `x`, `y`, and where points
        stand for several also their `low` and `high`; `n` points there are in all."""
        column, over = self.columns.get(name), self.columns.get(axis)
        if column is None or over is None or not len(column) or not len(over):
            return {"x": np.empty(0), "y": np.empty(0), "n": np.array(0)}
        at, y = column.arrays()
        x = positions(column, over, axis, at)
        first = 0 if low is None else max(0, int(np.searchsorted(x, low)) - 1)
        last = len(y) if high is None else min(len(y), int(np.searchsorted(x, high, "right")) + 1)
        n = max(0, last - first)
        if n <= width:
            return {"x": x[first:last], "y": y[first:last], "n": np.array(n)}
        if n <= FINE:
            blocks = summaries(x[first:last], y[first:last], 1)
        else:
            blocks = self.blocks(column, axis, x, y)[:, first // BLOCK : -(-last // BLOCK)]
        return {**thinned(blocks, width), "n": np.array(n)}

    def blocks(self, column: Column, axis: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Summaries of the column's blocks [5, B]; those of whole blocks are kept."""
        covered, blocks = column.summary.get(axis, (0, np.empty((5, 0))))
        whole = len(y) // BLOCK * BLOCK
        if whole > covered:
            blocks = np.concatenate([blocks, summaries(x[covered:whole], y[covered:whole], BLOCK)], 1)
            column.summary[axis] = whole, blocks
        return blocks if whole == len(y) else np.concatenate([blocks, summaries(x[whole:], y[whole:], BLOCK)], 1)


def _numbers(table: list[list[object]]) -> np.ndarray:
    """Values as float64; what is not a number is NaN."""
    try:
        return np.array(table, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([[_number(v) for v in row] for row in table], np.float64)


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else np.nan
    except OverflowError:
        return np.nan


def positions(column: Column, over: Column, axis: str, rows: np.ndarray) -> np.ndarray:
    """The axis' value at a column's rows; where a row has none, that of the last row before it that has. What was
    looked up stays: rows are only added."""
    at, values = over.arrays()
    if len(rows) == len(at) == at[-1] + 1:  # every row has both
        return values
    covered, cache = column.places.get(axis, (0, np.empty(0)))
    if covered > len(rows):
        covered, cache = 0, np.empty(0)
    new = rows[covered:]
    if len(cache) < len(rows):
        cache = _grown(cache, covered, max(len(rows), 2 * len(cache)))
    cache[covered : len(rows)] = values[np.maximum(np.searchsorted(at, new, "right") - 1, 0)]
    column.places[axis] = len(rows), cache
    return cache[: len(rows)]


def summaries(x: np.ndarray, y: np.ndarray, size: int) -> np.ndarray:
    """Statistics of blocks of `size` values [5, B]: last x, mean, least, greatest and number of each `size` values."""
    if size == 1:
        return np.stack([x, y, y, y, np.ones_like(y)])
    starts = np.arange(0, len(y), size)
    count = np.diff(np.append(starts, len(y)))
    total = np.add.reduceat(y, starts)
    ends = starts + count - 1
    return np.stack([x[ends], total / count, np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts), count])


def thinned(blocks: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """Blocks put together to at most `width` points."""
    x, mean, low, high, count = blocks
    starts = np.unique(np.linspace(0, len(x), width, endpoint=False).astype(np.int64))
    number = np.add.reduceat(count, starts)
    ends = np.append(starts[1:], len(x)) - 1
    return {
        "x": x[ends],
        "y": np.add.reduceat(mean * count, starts) / number,
        "low": np.minimum.reduceat(low, starts),
        "high": np.maximum.reduceat(high, starts),
    }
