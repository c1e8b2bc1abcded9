"""The rows of metrics.jsonl that trackers get: read on from where the last reading ended, a part of a long run."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import TypeGuard

from regimen.files.storage import Json, regular

WHOLE = 320  # rows and evaluations up to here are all mirrored
PLACE = ("updates", "env_steps", "time/unix_time")
CHUNK = 1 << 18  # bytes that are read at once: what waits for a store lies in the file, not in memory
SCHEDULE = (
    f"trackers get every row of metrics.jsonl up to row {WHOLE} and from there on {WHOLE} each time the number of rows "
    "grows by a factor of e, evaluations likewise, and the last row; --track.all-rows mirrors all"
)


def is_due(number: int) -> bool:
    """Whether the schedule has the row (or evaluation) of this number, counted from 1."""
    if number <= WHOLE:
        return True
    return math.floor(WHOLE * math.log(number)) > math.floor(WHOLE * math.log(number - 1))


class Rows:
    """A metrics.jsonl that grows. `read` hands out its rows that are due, and `last` the newest one that was not."""

    def __init__(self, path: Path, all_rows: bool = False):
        self.path, self.all_rows = path, all_rows
        self.offset = 0
        self.rows = 0
        self.evaluations = 0
        self.passed: bytes | None = None  # the newest row, while it is not due

    def read(self) -> list[Json] | None:
        """Rows that are due among the next ones; None when the file has no more."""
        try:
            with open(self.path, "rb", opener=regular) as file:
                file.seek(self.offset)
                data = file.read(CHUNK)
                if b"\n" not in data:
                    data += file.readline()  # a row may be long
        except OSError:
            return None
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [row for line in whole.splitlines() if (row := self.due(line))] if whole else None

    def due(self, line: bytes) -> Json | None:
        """The row of a line that is due."""
        self.rows += 1
        due = self.all_rows or is_due(self.rows)
        if b'"eval/' in line:
            self.evaluations += 1
            due = due or is_due(self.evaluations)
        self.passed = None if due else line
        return parsed(line) if due else None

    def last(self) -> Json | None:
        """The newest row where it was not due: the end of a run is mirrored whatever its number."""
        line, self.passed = self.passed, None
        return None if line is None else parsed(line)


def parsed(line: bytes) -> Json | None:
    """The row in a line; None where there is none, or one whose place in the run is no number."""
    with contextlib.suppress(ValueError, RecursionError):
        row = json.loads(line)
        if isinstance(row, dict) and all(is_number(row.get(name, 0)) for name in PLACE):
            return row
    return None


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and abs(value) < 2**63
