"""Successive halving (Jamieson & Talwalkar 2016, arXiv 1502.07943): all trials a little, the best of them longer.

A rung trains the trials that are left up to its budget, in one compiled program as wide as they are many: a trial that
is out costs nothing more. The best `share` of them by training go on, from where they are. The last rung has one trial
and the whole budget. What a rung decided is a file, `rungs/0.json`; started again, a sweep goes on in the rung it was
in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from regimen.config.regimen import resolve
from regimen.config.schema import StopConfig, TrainConfig
from regimen.errors import ConfigError, RegimenError
from regimen.experiments.sweep.population import updates_of
from regimen.experiments.sweep.space import SweepPlan
from regimen.experiments.sweep.together import TrialStretch, finish, train_together
from regimen.experiments.sweep.trials import SweepFiles
from regimen.files.console import Console
from regimen.files.run_dir import read_metrics, read_summary
from regimen.files.sealed import read_sealed, reading, write_sealed
from regimen.runs.directory import path_state

SHARE = 0.5  # of the trials that go on, unless --share says otherwise


@dataclass(frozen=True)
class Rung:
    """What came of one rung of successive halving; lists are by trial of the rung."""

    number: int
    updates: int  # of its trials, since they began
    trials: list[int]
    scores: list[float | None]
    best: list[int]  # trials that go on

    def save(self, folder: Path) -> None:
        path = rung_path(folder, self.number)
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, asdict(self))


def rung_path(folder: Path, number: int) -> Path:
    return folder / "rungs" / f"{number}.json"


def rungs_of(folder: Path) -> list[Rung]:
    """The rungs that are done, in order."""
    out: list[Rung] = []
    while (path := rung_path(folder, len(out))).is_file():
        with reading(path):
            out.append(Rung(**read_sealed(path)))
    return out


def schedule(trials: int, updates: int, share: float) -> list[tuple[int, int]]:
    """(trials, updates) of every rung: from all trials to one, whose budget is the whole. A rung adds an update at
    least."""
    last = math.ceil(math.log(trials) / math.log(1 / share) - 1e-9)
    rungs: list[tuple[int, int]] = []
    for i in range(last + 1):
        many = max(1, math.ceil(trials * share**i - 1e-9))
        rungs.append((many, max(round(updates * share ** (last - i)), 1 + (rungs[-1][1] if rungs else 0))))
    return rungs


def survivors(trials: Sequence[int], scores: Sequence[float | None], many: int, lower: bool) -> list[int]:
    """The best of a rung, by number; of equal ones the first. What has no score is behind all that have."""
    sign = 1 if lower else -1
    order = sorted((s is None, sign * (s or 0.0), n) for n, s in zip(trials, scores))
    return sorted(n for _, _, n in order[:many])


def require_rungs(plan: SweepPlan) -> None:
    """Refuse what successive halving cannot have, each in one line."""
    reason = plan.in_one_program()
    if reason is not None:
        raise ConfigError(
            f"--method halving: a rung is one compiled program, but {reason}; use --method tpe, which stops hopeless "
            "trials early"
        )
    for name in plan.named:
        if name.startswith("stop."):
            raise ConfigError(f"{name}: has no effect where rungs end the trials; leave it out")
    if plan.trials < 2:
        raise ConfigError("--trials: halving needs at least two")
    updates = updates_of(plan.config(plan.draw(0)))
    rungs = schedule(plan.trials, updates, plan.share or SHARE)
    if rungs[-1][1] > updates:
        raise ConfigError(
            f"--trials: {len(rungs)} rungs need a budget of {rungs[-1][1]} updates, and there are {updates}; give "
            "fewer trials, a smaller --share or a larger budget"
        )


def of_rung(config: TrainConfig, updates: int) -> TrainConfig:
    """The configuration up to a rung's budget, without rules that end it before. Schedules keep their whole length."""
    regimen = resolve(config, native=True)
    unit = "total_steps" if regimen.kind == "steps" else "total_episodes"
    whole = getattr(config, unit)
    return config.replace(stop=StopConfig(), **{unit: min(updates * regimen.n, whole)})


def train_rungs(files: SweepFiles, console: Console, command: str = "") -> int:
    """Train what is left of a sweep by halving; returns an exit code."""
    plan = files.plan
    with files.claim("sweep") as free:
        if not free:
            raise RegimenError(f"{files.folder} is being swept by another process")
        whole = updates_of(plan.config(plan.draw(0)))
        rungs = schedule(plan.trials, whole, plan.share or SHARE)
        trials = list(range(plan.trials))
        done = rungs_of(files.folder)
        for number, (_, updates) in enumerate(rungs):
            if number < len(done):
                rung = done[number]
            else:
                stretch = TrialStretch(partial(of_rung, updates=updates), partial(has_trained, updates=updates))
                if code := train_together(files, trials, console, command, stretch):
                    return code
                scores = [trained_score(files, n, rungs[number - 1][1] if number else 0) for n in trials]
                many = rungs[number + 1][0] if number + 1 < len(rungs) else 0
                rung = Rung(number, updates, trials, scores, survivors(trials, scores, many, plan.lower))
                rung.save(files.folder)
                rest = f"{many} of {len(trials)} trials go on" if many else "the last"
                console.event(f"rung {number + 1} of {len(rungs)} (update {updates}): {rest}")
            for n, value in zip(rung.trials, rung.scores):
                if n not in rung.best and not files.result_path(n).is_file():
                    more = {} if value is None else {"score": value}
                    early = number + 1 < len(rungs) and files.measured(n)["state"] == "finished"
                    finish(files, n, plan.draw(n), console.event, **more, **({"state": "pruned"} if early else {}))
            trials = rung.best
        return 0


def has_trained(path: Path, updates: int) -> bool:
    """Whether a run has come to this update, or can come no further."""
    state = path_state(path)
    return state == "diverged" or (state == "finished" and read_summary(path)["updates"] >= updates)


def trained_score(files: SweepFiles, n: int, after: int) -> float | None:
    """The mean of the metric over the training episodes of the second half of a rung, and over seeds; None for a trial
    that diverged or has ended none."""
    metric = files.plan.metric
    name = f"rollout/{metric}"
    means: list[float] = []
    for path in files.runs(n):
        if path_state(path) == "diverged":
            return None
        rows = [row for row in read_metrics(path) if row["updates"] > after and name in row]
        if not rows:
            return None
        middle = (after + rows[-1]["updates"]) / 2
        late = [row for row in rows if row["updates"] > middle] or rows
        weights = [row["rollout/episodes"] for row in late]
        means.append(float(np.average([row[name] for row in late], weights=weights)))
    return sum(means) / len(means)
