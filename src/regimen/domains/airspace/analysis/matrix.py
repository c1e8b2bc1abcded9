"""Every policy on every scenario: the transfer matrix. With one policy it is the summary of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from regimen.domains.airspace.analysis.detector import Detector
from regimen.domains.airspace.analysis.flight import Flight, Rows, flight_of
from regimen.domains.airspace.analysis.measure import Measures, fly_and_measure
from regimen.domains.airspace.analysis.pilots import Subject, aircraft_for
from regimen.domains.airspace.analysis.safety import Row, summarise
from regimen.domains.airspace.analysis.starts import Jitter, starts
from regimen.domains.airspace.files import ScenarioFile


@dataclass
class Cell:
    """One policy on one scenario."""

    policy: Subject
    file: ScenarioFile
    measures: Measures
    row: Row
    samples: dict[int, Flight] = field(default_factory=dict)  # episode -> in full detail: the first and the closest


def transfer(
    subjects: Sequence[Subject],
    files: Sequence[ScenarioFile],
    episodes: int,
    jitter: Jitter,
    seed: int,
    detector: Detector,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Cell]:
    """Cells by policy, then scenario. All policies fly the same perturbed starts, all scenarios in one program."""
    if not subjects:
        return []
    scenarios, numbers = starts(files, episodes, jitter, seed, aircraft_for(subjects, files))
    total, cells = len(numbers), []
    for i, subject in enumerate(subjects):
        look = Look(episodes)
        m = fly_and_measure(
            subject.env, subject.pilot, scenarios, jax.random.key(seed), detector, episodes=numbers, look=look
        )
        for k, file in enumerate(files):
            part = m.take(slice(k * episodes, (k + 1) * episodes))
            cells.append(cell_of(subject, file, part, look.samples(k), detector, seed))
        progress(subject.name, (i + 1) * total, len(subjects) * total)
    return cells


def cell_of(
    subject: Subject, file: ScenarioFile, m: Measures, samples: dict[int, Flight], detector: Detector, seed: int
) -> Cell:
    """The cell of what was measured: who flew where, whether it was trained there, and the summary."""
    row: Row = {
        "policy": subject.name,
        "algorithm": subject.algorithm or "",
        "trained_on": subject.trained_on,
        "scenario": file.name,
        "own": subject.trained_on == file.name,
    }
    return Cell(subject, file, m, row | summarise(m, detector, seed), samples)


class Look:
    """Keeps the first episode of every group of `size` and the one with the smallest separation, as chunks go by."""

    def __init__(self, size: int):
        self.size = size
        self.first: dict[int, Flight] = {}
        self.closest: dict[int, tuple[float, int, Flight]] = {}

    def __call__(self, where: slice, rows: Rows, measures: Measures) -> None:
        index = np.arange(where.start, where.stop)
        apart = measures.episode["min_separation_nm"]
        for group in range(index[0] // self.size, index[-1] // self.size + 1):
            members = np.flatnonzero(index // self.size == group)
            if index[members[0]] % self.size == 0:
                self.first[group] = flight_of(rows, members[:1])
            at = members[np.argmin(apart[members])]
            if group not in self.closest or apart[at] < self.closest[group][0]:
                self.closest[group] = (float(apart[at]), int(index[at] % self.size), flight_of(rows, np.array([at])))

    def samples(self, group: int) -> dict[int, Flight]:
        _, episode, flight = self.closest[group]
        return {0: self.first[group], episode: flight}


def off_diagonal(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Policy -> loss-of-separation rate on its own scenario, and the mean over the others."""
    out: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(c.policy.name for c in cells):
        rows = [c.row for c in cells if c.policy.name == name]
        home = [r["los_rate"] for r in rows if r["own"]]
        away = [r["los_rate"] for r in rows if not r["own"]]
        out[name] = {
            "own_los_rate": float(np.mean(home)) if home else np.nan,
            "other_los_rate": float(np.mean(away)) if away else np.nan,
        }
    return out


def table(cells: Sequence[Cell], column: str = "los_rate") -> tuple[list[str], list[str], np.ndarray]:
    """(policies, scenarios, values [policies, scenarios])."""
    policies = list(dict.fromkeys(c.policy.name for c in cells))
    scenarios = list(dict.fromkeys(c.file.name for c in cells))
    values = np.full((len(policies), len(scenarios)), np.nan)
    for c in cells:
        values[policies.index(c.policy.name), scenarios.index(c.file.name)] = c.row[column]
    return policies, scenarios, values
