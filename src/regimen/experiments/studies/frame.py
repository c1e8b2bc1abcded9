"""What every study has: options, a list of jobs by part, a folder, and results that are written after each part.

A study subclasses `Frame` and says which jobs it has (`jobs`), what is written (`write`), drawn (`draw`) and said in
the end (`conclusions`). Each job has a line: what is running, i of n, about how much time is left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, TextIO

import jax

from regimen.config.catalogue import folder_name
from regimen.engines import device
from regimen.engines.signals import code_of
from regimen.errors import ConfigError, RegimenError, nearest
from regimen.experiments.studies.curves import Results
from regimen.files.console import is_terminal
from regimen.files.run_dir import git_revision, versions
from regimen.files.storage import check_free, plain
from regimen.statistics import Estimate
from regimen.words import clock

PRINTED = ("study", "state", "env", "target", "budget", "seeds", "seconds", "finished", "parts", "sentences")
Tick = Callable[[float], None]  # share of a job that is done


@dataclass(frozen=True)
class Job:
    """One measurement. `weight` is about the env steps it takes, to tell the time left; `work` returns what came of it
    in a few words."""

    label: str
    weight: float
    work: Callable[[Tick], str]


class Lines:
    """Plain lines; on a terminal the line of the running job also shows how far it is."""

    def __init__(self, quiet: bool = False, file: TextIO | None = None):
        self.file = file if file is not None else sys.stdout
        self.quiet, self.live = quiet, not quiet and is_terminal(self.file)

    def line(self, text: str) -> None:
        if not self.quiet:
            print(("\r\033[K" if self.live else "") + text, file=self.file, flush=True)

    def same_line(self, text: str) -> None:
        if self.live:
            print(f"\r\033[K{text}", end="", file=self.file, flush=True)


@dataclass(kw_only=True)
class Frame:
    """One study: its work, what has come of it, and the folder that it is written to."""

    kind: ClassVar[str]
    env: str
    out: Path
    command: str = ""
    state: str = "running"
    exit_code: int = 0
    begun: float = field(default_factory=time.monotonic)
    finished: list[str] = field(default_factory=list)  # parts
    results: Results = field(default_factory=dict)

    @classmethod
    def folder(cls, env: str, out: str | Path | None) -> Path:
        """`out`, or a new folder below `studies/`; refused where it holds something already."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        path = Path(out) if out else Path("studies") / f"{cls.kind}-{folder_name(env)}-{stamp}"
        check_free(path)
        return path

    def jobs(self) -> dict[str, list[Job]]:
        """Its measurements, by part."""
        raise NotImplementedError

    def write(self) -> None:
        """Write everything measured so far."""
        raise NotImplementedError

    def draw(self, parts: Sequence[str]) -> None:
        """Draw the pictures of some parts, where they are drawn apart from what is written."""

    def conclusions(self) -> list[str]:
        """What is said in the end."""
        return self.results["sentences"]

    def measure(self, lines: Lines, head: str = "") -> None:
        """Do all jobs. Results are written after each part; Ctrl+C ends it early and keeps what is measured."""
        jobs = self.jobs()
        if head:
            lines.line(f"{self.env}: {sum(map(len, jobs.values()))} measurements, {head}")
        self.out.mkdir(parents=True, exist_ok=True)

        def finish(part: str) -> None:
            self.finished.append(part)
            self.save(lines, (part,))

        try:
            run_jobs(jobs, lines, finish)
            self.state = "finished"
            self.save(lines, ())
        except KeyboardInterrupt as error:
            self.state, self.exit_code = "interrupted", code_of(error)
            lines.line("interrupted: keeping what is measured")
            self.save(lines, tuple(jobs))
        for text in self.conclusions():
            lines.line(text)
        lines.line(f"written to {self.out}")

    def save(self, lines: Lines, parts: Sequence[str]) -> None:
        """Write what is measured and draw these parts; matplotlib is an extra, and without it there are no pictures."""
        self.write()
        try:
            self.draw(parts)
        except RegimenError as error:
            lines.line(f"no plots: {error}")

    def about(self) -> Results:
        """What results.json says of the study itself."""
        return {
            "study": self.kind,
            "state": self.state,
            "command": self.command,
            "env": self.env,
            "device": jax.devices()[0].device_kind,
            "versions": versions(),
            "git_revision": git_revision(),
            "seconds": round(time.monotonic() - self.begun, 1),
            "finished": self.finished,
        }

    def summary(self) -> dict[str, object]:
        """What `--json` prints: everything but the raw numbers and the settings."""
        return {"out": str(self.out)} | {k: encoded(self.results[k]) for k in PRINTED if k in self.results}


def check_names(values: Mapping[str, object], names: Sequence[str]) -> dict[str, object]:
    """Options of a study without those left at their default (None); one that it does not have is refused."""
    for name in values:
        if name not in names:
            raise ConfigError(f"unknown option '{name}'{nearest(name, names)}")
    return {k: v for k, v in values.items() if v is not None}


def tuples(values: Mapping[str, object]) -> dict[str, object]:
    """Options with their lists as tuples, as a frozen dataclass holds them."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def encoded(value: object) -> object:
    """Estimates as objects, the rest as JSON can hold it; what is infinite (never) or unknown becomes null."""
    if isinstance(value, Estimate):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(k): encoded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(v) for v in value]
    return plain(value)


def run_jobs(parts: Mapping[str, list[Job]], lines: Lines, finished: Callable[[str], None]) -> None:
    """One after the other; `finished(part)` after the last job of each part."""
    jobs = [job for part in parts.values() for job in part]
    total, done, begun, number = sum(job.weight for job in jobs), 0.0, time.monotonic(), 0
    for part, members in parts.items():
        for job in members:
            number += 1
            head = f"[{number}/{len(jobs)}] {part}: {job.label}"
            start = time.monotonic()

            def tick(share: float, job: Job = job, head: str = head, done: float = done) -> None:
                lines.same_line(f"{head}, {share:.0%}{left(begun, done + share * job.weight, total)}")

            lines.same_line(head + left(begun, done, total))
            device.forget_programs()
            outcome = job.work(tick)
            done += job.weight
            took = f" ({time.monotonic() - start:.1f} s)"
            lines.line(f"{head}: {outcome}{took}{left(begun, done, total)}")
        finished(part)


def left(begun: float, done: float, total: float) -> str:
    """`, about 1:20 left`, once a part of the work has shown its speed."""
    if done <= 0 or done >= total:
        return ""
    return f", about {clock((time.monotonic() - begun) * (total - done) / done)} left"
