"""Every policy on every scenario, and a policy under every shift of one: flown, measured and summarised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from regimen.domains.airspace.analysis import safety
from regimen.domains.airspace.analysis.detector import Detector
from regimen.domains.airspace.analysis.flight import Flights, chunk_size, chunks
from regimen.domains.airspace.analysis.measure import Measures, fly_and_measure
from regimen.domains.airspace.analysis.pilots import Subject, aircraft_for
from regimen.domains.airspace.analysis.safety import Row
from regimen.domains.airspace.analysis.shifts import BASELINE, Grid, Shift
from regimen.domains.airspace.files import SPEEDS, ScenarioFile
from regimen.domains.airspace.state import Scenario

WORST = 12  # shifted configurations whose worst episode is kept to look at


class Configuration(NamedTuple):
    """One policy on one scenario, as it is or shifted, and what its episodes say."""

    subject: Subject
    file: ScenarioFile  # as shifted
    shift: Shift
    measures: Measures
    row: Row

    @property
    def names(self) -> dict[str, str]:
        """The names of the policy, the scenario and the shift, as columns of a table."""
        return {"policy": self.subject.name, "scenario": self.file.name, "shift": self.shift.name}


class SampleFlight(NamedTuple):
    """An episode of a configuration in full detail."""

    configuration: Configuration
    episode: int
    flights: Flights  # of this episode alone


class SampleKeeper:
    """Keeps the first episode of every group of `size` and the one with the smallest separation, as chunks go by."""

    def __init__(self, size: int):
        self.size = size
        self.first: dict[int, Flights] = {}
        self.closest: dict[int, tuple[float, int, Flights]] = {}

    def __call__(self, where: slice, flights: Flights, measures: Measures) -> None:
        apart = measures.episode["min_separation_nm"]
        groups, episodes = np.divmod(np.arange(where.start, where.stop), self.size)
        for group in np.unique(groups).tolist():
            members = np.flatnonzero(groups == group)
            if episodes[members[0]] == 0:
                self.first[group] = flights.take(members[:1])
            at = members[np.argmin(apart[members])]
            if group not in self.closest or apart[at] < self.closest[group][0]:
                self.closest[group] = (float(apart[at]), int(episodes[at]), flights.take(np.array([at])))

    def samples(self, group: int, configuration: Configuration) -> list[SampleFlight]:
        _, episode, flights = self.closest[group]
        both = {0: self.first[group], episode: flights}
        return [SampleFlight(configuration, number, flights) for number, flights in both.items()]


@dataclass(frozen=True)
class Jitter:
    """How far a start may differ from the file, for each aircraft on its own: within a disc, and uniformly within
    these bounds. With a disc of 0.5 NM, starts 6 NM apart stay at least 5 NM apart."""

    position_nm: float = 0.5
    heading_deg: float = 2.0
    speed_kt: float = 5.0

    @property
    def any(self) -> bool:
        return bool(self.position_nm or self.heading_deg or self.speed_kt)

    def scaled(self, factor: float) -> Jitter:
        return Jitter(self.position_nm * factor, self.heading_deg * factor, self.speed_kt * factor)

    def draw(self, episodes: int, aircraft: int, seed: int) -> np.ndarray:
        """Draw perturbations [episodes, aircraft, 4]: north, east, heading, speed. Row e depends on the seed and e
        alone, and its first aircraft are the same for any number of them, so configurations can be compared episode by
        episode."""
        rng = np.random.default_rng([seed, 5])
        u = rng.random((episodes, 16, 4))[:, :aircraft]
        radius, angle = self.position_nm * np.sqrt(u[..., 0]), 2 * np.pi * u[..., 1]
        spread = 2 * u[..., 2:] - 1
        out = [radius * np.cos(angle), radius * np.sin(angle), self.heading_deg * spread[..., 0]]
        return np.stack([*out, self.speed_kt * spread[..., 1]], -1)

    def __str__(self) -> str:
        return f"within {self.position_nm:g} NM, {self.heading_deg:g} deg, {self.speed_kt:g} kt"


def starts(
    files: Sequence[ScenarioFile], episodes: int, jitter: Jitter, seed: int, aircraft: int | None = None
) -> tuple[Scenario, np.ndarray]:
    """Starts [len(files) * episodes, ...] in numpy, the episodes of a file next to each other, and the numbers of the
    episodes. Episode e of every file has the same perturbation, so that episodes are no copies and can be compared."""
    n = max(len(f.agents) for f in files) if aircraft is None else aircraft
    flat = jax.tree.map(lambda *rows: np.repeat(np.stack(rows), episodes, 0), *(f.arrays(n) for f in files))
    offsets = np.tile(jitter.draw(episodes, n, seed), (len(files), 1, 1))  # [C, N, 4]
    offsets = np.where(flat.present[..., None], offsets, 0.0)
    scenarios = flat.replace(
        north=(flat.north + offsets[..., 0]).astype(np.float32),
        east=(flat.east + offsets[..., 1]).astype(np.float32),
        heading=((flat.heading + offsets[..., 2]) % 360).astype(np.float32),
        cas=np.clip(flat.cas + offsets[..., 3], *SPEEDS).astype(np.float32),
    )
    return scenarios, np.tile(np.arange(episodes), len(files))


@dataclass
class Campaign:
    """How every configuration is flown, and what was flown: all from the same perturbed starts, many in one program."""

    episodes: int
    jitter: Jitter
    seed: int
    detector: Detector
    say: Callable[[str, int, int], None]  # what is done, how much of it, of how much
    cells: list[Configuration] = field(default_factory=list)  # policies x scenarios as they are
    shifts: list[Configuration] = field(default_factory=list)
    samples: list[SampleFlight] = field(default_factory=list)  # the first and the closest episode of each cell
    worst: list[SampleFlight] = field(default_factory=list)  # the worst episodes of the worst shifts

    def transfer(self, subjects: Sequence[Subject], files: Sequence[ScenarioFile]) -> None:
        """Fly every policy on every scenario, by policy, then scenario."""
        aircraft, total = aircraft_for(subjects, files), len(files) * self.episodes
        for i, subject in enumerate(subjects):
            keeper = SampleKeeper(self.episodes)
            for k, (file, m) in enumerate(zip(files, self.fly(subject, files, aircraft, keeper))):
                self.add_cell(subject, file, m, keeper, k)
            self.say(subject.name, (i + 1) * total, len(subjects) * total)

    def shift(self, subject: Subject, file: ScenarioFile, grid: Grid) -> None:
        """Fly every shift of the grid and tell how it differs from the baseline flown from the same perturbations; the
        baseline is a cell, too. The worst episodes of the worst shifts are flown again in full detail."""
        aircraft, total = aircraft_for([subject], [file]), len(grid.files) * self.episodes
        keeper = SampleKeeper(self.episodes)

        def look(where: slice, flights: Flights, measures: Measures) -> None:
            if where.start < self.episodes:
                keeper(where, flights, measures)
            self.say(f"shifts of {file.name}", where.stop, total)

        base, *_ = parts = self.fly(subject, grid.files, aircraft, look)
        results = []
        for shift, shifted, m in zip(grid.shifts, grid.files, parts):
            row: Row = {"policy": subject.name, "scenario": file.name} | shift.columns()
            row |= safety.summarise(m, self.detector, self.seed) | safety.differences(m, base, self.seed)
            results.append(Configuration(subject, shifted, shift, m, row))
        self.shifts += results
        self.add_cell(subject, file, base, keeper, 0)

        worst = sorted(results[1:], key=lambda r: by_severity(r.row, "min_separation_min_nm"))[:WORST]
        if not worst:
            return
        closest = [int(np.argmin(r.measures.episode["min_separation_nm"])) for r in worst]
        scenarios, numbers = starts([r.file for r in worst], self.episodes, self.jitter, self.seed, aircraft)
        index = np.arange(len(worst)) * self.episodes + closest
        some = jax.tree.map(lambda x: x[index], scenarios)
        key, size = jax.random.key(self.seed), chunk_size(total)  # the program of the grid serves
        [(_, flights)] = chunks(subject.env, subject.pilot, some, key, episodes=numbers[index], size=size)
        self.worst += [SampleFlight(r, e, flights.episode(c)) for c, (r, e) in enumerate(zip(worst, closest))]

    def fly(
        self,
        subject: Subject,
        files: Sequence[ScenarioFile],
        aircraft: int,
        look: Callable[[slice, Flights, Measures], None],
    ) -> list[Measures]:
        """The measures of every file, flown by one policy."""
        scenarios, numbers = starts(files, self.episodes, self.jitter, self.seed, aircraft)
        key = jax.random.key(self.seed)
        m = fly_and_measure(subject.env, subject.pilot, scenarios, key, self.detector, episodes=numbers, look=look)
        return [m.take(slice(k * self.episodes, (k + 1) * self.episodes)) for k in range(len(files))]

    def add_cell(self, subject: Subject, file: ScenarioFile, m: Measures, keeper: SampleKeeper, group: int) -> None:
        """Add a scenario as it is, with whether the policy was trained there, and its samples."""
        row: Row = {
            "policy": subject.name,
            "algorithm": subject.algorithm or "",
            "trained_on": subject.trained_on,
            "scenario": file.name,
            "own": subject.trained_on == file.name,
        }
        cell = Configuration(subject, file, BASELINE, m, row | safety.summarise(m, self.detector, self.seed))
        self.cells.append(cell)
        self.samples += keeper.samples(group, cell)


def by_severity(row: Row, separation: str = "min_separation_p50_nm") -> tuple[float, float]:
    """A key that sorts rows: the highest rate of losses first, of equal ones the smallest separation."""
    return -row["los_rate"], row[separation]
