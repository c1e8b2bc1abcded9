"""Every policy on every scenario: the transfer matrix. With one policy it is the summary of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from regimen.analysis.airspace.detector import Detector
from regimen.analysis.airspace.flight import BATCH
from regimen.analysis.airspace.measure import Measures, fly_and_measure
from regimen.analysis.airspace.pilots import Subject
from regimen.analysis.airspace.safety import summarise
from regimen.analysis.airspace.starts import Jitter, starts
from regimen.envs.airspace.files import ScenarioFile


@dataclass
class Cell:
    """One policy on one scenario."""

    policy: Subject
    file: ScenarioFile
    measures: Measures
    row: dict[str, Any]


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
    scenarios, numbers = starts(files, episodes, jitter, seed)
    total, cells = len(numbers), []
    for i, subject in enumerate(subjects):
        m = fly_and_measure(
            subject.env,
            subject.pilot,
            scenarios,
            jax.random.key(seed),
            episodes=numbers,
            batch=BATCH,
            detector=detector,
        )
        for k, file in enumerate(files):
            own = m.take(slice(k * episodes, (k + 1) * episodes))
            cells.append(Cell(subject, file, own, describe(subject, file) | summarise(own, detector, seed)))
        progress(subject.name, (i + 1) * total, len(subjects) * total)
    return cells


def describe(subject: Subject, file: ScenarioFile) -> dict[str, Any]:
    """The first columns of a row: who flew where, and whether it was trained there."""
    return {
        "policy": subject.name,
        "algorithm": subject.algorithm or "",
        "trained_on": subject.scenario or "",
        "scenario": file.name,
        "own": subject.scenario == file.name,
    }


def off_diagonal(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Policy -> loss-of-separation rate on its own scenario, and the mean over the others."""
    out: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(c.policy.name for c in cells):
        mine = [c.row for c in cells if c.policy.name == name]
        own = [r["los_rate"] for r in mine if r["own"]]
        other = [r["los_rate"] for r in mine if not r["own"]]
        out[name] = {
            "own_los_rate": float(np.mean(own)) if own else np.nan,
            "other_los_rate": float(np.mean(other)) if other else np.nan,
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
