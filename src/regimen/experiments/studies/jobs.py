"""A study's work as a list of jobs, with a line for each: what is running, i of n, about how much time is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TextIO

from regimen.engines import device
from regimen.files.console import is_terminal
from regimen.words import clock

Tick = Callable[[float], None]  # share of a job that is done


@dataclass(frozen=True)
class Job:
    """One measurement. `weight` is about the env steps it takes, to tell the time left; `work` returns what came of it
    in a few words."""

    label: str
    weight: float
    work: Callable[[Tick], str]


class Console:
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


def run_jobs(parts: Mapping[str, list[Job]], console: Console, finished: Callable[[str], None]) -> None:
    """One after the other; `finished(part)` after the last job of each part."""
    jobs = [job for part in parts.values() for job in part]
    total, done, begun, number = sum(job.weight for job in jobs), 0.0, time.monotonic(), 0
    for part, mine in parts.items():
        for job in mine:
            number += 1
            head = f"[{number}/{len(jobs)}] {part}: {job.label}"
            start = time.monotonic()

            def tick(share: float, job: Job = job, head: str = head, done: float = done) -> None:
                console.same_line(f"{head}, {share:.0%}{left(begun, done + share * job.weight, total)}")

            console.same_line(head + left(begun, done, total))
            device.forget_programs()
            outcome = job.work(tick)
            done += job.weight
            took = f" ({time.monotonic() - start:.1f} s)"
            console.line(f"{head}: {outcome}{took}{left(begun, done, total)}")
        finished(part)


def left(begun: float, done: float, total: float) -> str:
    """`, about 1:20 left`, once a part of the work has shown its speed."""
    if done <= 0 or done >= total:
        return ""
    return f", about {clock((time.monotonic() - begun) * (total - done) / done)} left"
