"""Trackers: where a run's rows also go, beside MLflow (`mlflow.py`). The files are the truth. A tracker reads them from
a thread of its own; it is never waited for while a run trains, and nothing that it raises reaches the run.

`Tracker` is all that a run asks of one. `Follower` has what those share that write rows one by one: a new one says how
it is opened, how a row is written, and how it is closed.
"""

from __future__ import annotations

import importlib.util
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

from regimen.files.rows import Rows
from regimen.files.storage import Json

INTERVAL = 5.0  # seconds between readings
UNAFFECTED = "; training is not affected and the run's files are complete"


class Delivery(Protocol):
    """What a tracker says at the end of a run."""

    @property
    def warning(self) -> str | None:
        """Why it does not have everything; None where it has."""
        ...

    @property
    def where(self) -> str:
        """Where the run is to be looked at."""
        ...


class Tracker(Protocol):
    """One run in a tracker. No method raises."""

    def finish(
        self,
        summary: Mapping[str, object],
        artifacts: list[Path],
        policy_dir: Path | None = None,
        register: str | None = None,
        converged: bool = False,
        eval_return: float | None = None,
        timeout: float = 60,
    ) -> Delivery:
        """Take the rest and the summary, within `timeout` seconds."""
        ...


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run when it begins."""

    path: Path
    name: str
    project: str
    settings: Mapping[str, object]
    all_rows: bool = False
    online: bool = False
    """Whether it may use the network."""


@dataclass(frozen=True)
class Delivered:
    """Where the run is, and how many rows were written by this process."""

    where: str
    rows: int = 0
    warning: str | None = None


class Follower:
    """Writes the rows of a growing metrics.jsonl, thinned as for MLflow, until `finish`."""

    label: ClassVar[str]
    package: ClassVar[str]
    extra: ClassVar[str]

    def __init__(self, run: TrackedRun, warn: Callable[[str], None] = lambda text: None, interval: float = INTERVAL):
        self.run, self.warn, self.interval = run, warn, interval
        self.rows = Rows(run.path / "metrics.jsonl", run.all_rows)
        self.mark = -math.inf  # `updates` of the newest row that the tracker has
        self.result = Delivered(self.where())
        self.summary: Mapping[str, object] | None = None
        self.wake = threading.Event()
        self.thread: threading.Thread | None = None
        if importlib.util.find_spec(self.package) is None:
            self.fail(f"it is not installed: pip install 'regimen[{self.extra}]'")
        else:
            self.thread = threading.Thread(target=self.work, name=self.label, daemon=True)
            self.thread.start()

    def where(self) -> str:
        """Where people look at it."""
        raise NotImplementedError

    def open(self) -> None:
        """Begin, or go on where `mark` says."""
        raise NotImplementedError

    def write(self, row: Json) -> None:
        """Write a row."""
        raise NotImplementedError

    def flush(self) -> None:
        """Everything written so far is safe."""

    def close(self, summary: Mapping[str, object]) -> None:
        """Write the summary and end."""
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        self.result = replace(self.result, warning=f"{self.label}: {reason}{UNAFFECTED}")
        self.warn(str(self.result.warning))

    def work(self) -> None:
        try:
            self.wake.wait(self.interval)  # a short run is not slowed by an import while it trains
            self.open()
            while True:
                self.wake.clear()
                summary = self.summary
                self.follow(last=summary is not None)
                self.flush()
                if summary is not None:
                    return self.close(summary)
                self.wake.wait(self.interval)
        except Exception as error:  # whatever a tracker raises must not reach training
            self.fail(" ".join(str(error).split())[:200] or type(error).__name__)

    def follow(self, last: bool) -> None:
        """Write the rows that are due; with `last`, also the newest one that is not."""
        while (rows := self.rows.read()) is not None:
            self.put(rows)
        row = self.rows.last() if last else None
        self.put([] if row is None else [row])

    def put(self, rows: list[Json]) -> None:
        for row in rows:
            place = row.get("updates", math.inf)
            if place > self.mark:
                self.write(row)
                self.mark = place
                self.result = replace(self.result, rows=self.result.rows + 1)

    def finish(
        self,
        summary: Mapping[str, object],
        artifacts: list[Path],
        policy_dir: Path | None = None,
        register: str | None = None,
        converged: bool = False,
        eval_return: float | None = None,
        timeout: float = 60,
    ) -> Delivered:
        """Write the rest and the summary. Pictures and policies stay in the run directory."""
        if self.thread is None:
            return self.result
        self.summary = dict(summary)
        self.wake.set()
        self.thread.join(timeout)
        if self.thread.is_alive():
            self.fail(f"it did not take everything within {timeout:g} s")
        return self.result


def numbers(row: Json) -> dict[str, float]:
    """The finite numbers of a row by name, its place in the run left out."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, (int, float)) and math.isfinite(value) and name not in ("env_steps", "time/unix_time")
    }
