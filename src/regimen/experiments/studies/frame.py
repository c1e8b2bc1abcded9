"""The frame of every study: options, a list of jobs by part, a folder, and results that are written after each part.

A study subclasses `Frame` and says which jobs it has (`jobs`), what came of them (`rows`, `sentences`, `raw`) and what
is drawn (`draw`); its texts are in a YAML file. Each job has a line: what is running, i of n, and the time left.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

import jax

from regimen.config.catalogue import folder_name
from regimen.config.validation import read_field
from regimen.engines import device as devices
from regimen.engines.signals import code_of
from regimen.envs import registry
from regimen.errors import ConfigError, RegimenError, nearest
from regimen.experiments.studies.curves import Results, Row
from regimen.experiments.studies.report import Texts, encoded, write_summary, write_tables
from regimen.files.console import is_terminal
from regimen.files.run_dir import git_revision, versions
from regimen.files.storage import check_free, write_json
from regimen.reports.table import Table
from regimen.words import clock

PRINTED = ("study", "state", "env", "target", "budget", "seeds", "seconds", "finished", "parts", "sentences")
Tick = Callable[[float], None]  # share of a job that is done
Options = TypeVar("Options")


def read_options(
    cls: type[Options], choices: Mapping[str, object], defaults: Mapping[str, Any], derived: Sequence[str] = ()
) -> Options:
    """A study's options: Python keywords or flags over `defaults`. None stands for what was not given, and nobody
    gives what is `derived`."""
    names = [f.name for f in dataclasses.fields(cls) if f.name not in derived]  # type: ignore[arg-type]
    for name in choices:
        if name not in names:
            raise ConfigError(f"unknown option '{name}'{nearest(name, names)}")
    changes = {k: read_field(cls, k, v, flag(k)) for k, v in choices.items() if v is not None}
    return cls(**{**defaults, **changes})


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def native_env(env: str, env_args: Mapping[str, object], device: str) -> registry.EnvHandle:
    """The environment, on a configured device; a ConfigError where it cannot be compiled into a training."""
    devices.configure(device, registry.is_native(env))
    handle = registry.resolve(env, env_args)
    if handle.native is None:
        twin = next((n for n, e in registry.ENVS.items() if e.gym_id and f"gym:{e.gym_id}" == handle.id), None)
        hint = f"; did you mean '{twin}'?" if twin else "; `regimen envs` lists them"
        raise ConfigError(f"{handle.id}: the study compiles its trainings and needs a native environment{hint}")
    return handle


@dataclass(frozen=True)
class Job:
    """One measurement. `weight` is about the env steps it takes, to tell the time left; `work` returns what came of it
    in a few words."""

    label: str
    weight: float
    work: Callable[[Tick], str]


class Lines:
    """Print progress as plain lines; on a terminal the line of the running job also shows how far it is."""

    def __init__(self, quiet: bool = False, file: TextIO | None = None):
        self.file = file if file is not None else sys.stdout
        self.quiet = quiet
        self.live = not quiet and is_terminal(self.file)

    def line(self, text: str) -> None:
        if not self.quiet:
            print(("\r\033[K" if self.live else "") + text, file=self.file, flush=True)

    def same_line(self, text: str) -> None:
        if self.live:
            print(f"\r\033[K{text}", end="", file=self.file, flush=True)


def run_jobs(parts: Mapping[str, list[Job]], lines: Lines, finished: Callable[[str], None]) -> None:
    """Run jobs one after the other, and call `finished(part)` after the last job of each part."""
    jobs = [job for members in parts.values() for job in members]
    total = sum(job.weight for job in jobs)
    numbers = itertools.count(1)
    begun = time.monotonic()
    past = 0.0

    def remaining(weight: float) -> str:
        """`, about 1:20 left`, once a part of the work has shown its speed."""
        if weight <= 0 or weight >= total:
            return ""
        return f", about {clock((time.monotonic() - begun) * (total - weight) / weight)} left"

    for part, members in parts.items():
        for job in members:
            head = f"[{next(numbers)}/{len(jobs)}] {part}: {job.label}"
            start = time.monotonic()

            def tick(share: float, job: Job = job, head: str = head, past: float = past) -> None:
                lines.same_line(f"{head}, {share:.0%}{remaining(past + share * job.weight)}")

            lines.same_line(head + remaining(past))
            devices.forget_programs()
            outcome = job.work(tick)
            past += job.weight
            lines.line(f"{head}: {outcome} ({time.monotonic() - start:.1f} s){remaining(past)}")
        finished(part)


@dataclass(kw_only=True)
class Frame:
    """One study: its work, what has come of it, and the folder that it is written to."""

    kind: ClassVar[str]
    texts: ClassVar[Texts]
    absent: ClassVar[Row] = {}  # what tables show where a row has no such value
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
        """The measurements of the study, by part."""
        raise NotImplementedError

    def rows(self) -> dict[str, list[Row]]:
        """Every part as far as it is measured: rows of plain data and Estimates."""
        raise NotImplementedError

    def sentences(self, part: str, rows: Sequence[Row]) -> list[str]:
        """What was measured in a part, in words chosen by the numbers."""
        raise NotImplementedError

    def settings(self) -> Results:
        """What results.json says of how it was measured."""
        raise NotImplementedError

    def raw(self) -> Results:
        """Every number behind the estimates."""
        raise NotImplementedError

    def body(self) -> list[str]:
        """The lines of summary.md before the definitions."""
        raise NotImplementedError

    def heading(self, part: str) -> str:
        return self.texts["headings"][part]

    def columns(self, part: str, rows: Sequence[Row]) -> Mapping[str, str]:
        """The columns of a part's table: headings and templates for `report.fill`."""
        return self.texts["columns"][part]

    def long_table(self) -> Table:
        """table.csv: a line for each number."""
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
            self.state = "interrupted"
            self.exit_code = code_of(error)
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

    def write(self) -> None:
        """Write results.json, table.md, table.csv and summary.md."""
        parts = {name: rows for name, rows in self.rows().items() if rows}
        sentences = [text for part, rows in parts.items() for text in self.sentences(part, rows)]
        self.results = self.about() | self.settings() | {"parts": parts, "sentences": sentences}
        write_json(self.out / "results.json", encoded(self.results | {"raw": self.raw()}))
        title = f"{self.texts['title']} {self.env}"
        tables = {
            self.heading(part): (self.columns(part, rows), [self.absent | row for row in rows])
            for part, rows in parts.items()
        }
        write_tables(self.out / "table.md", title, tables, self.texts["footnote"])
        self.long_table().write_csv(self.out / "table.csv")
        write_summary(self.out / "summary.md", self.results, title, self.body(), self.texts)

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
