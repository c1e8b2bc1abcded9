"""Training a population: its members are the learners of one engine, and between two stretches some take over.

A round comes after the checkpoints of all members and before its own file. Started again, a population goes back to the
last round of which the file and all checkpoints are there, does again what the file says, and goes on: what is trained
is the same, bit for bit.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regimen.engines import device
from regimen.engines.base import Limits, Progress
from regimen.engines.chunk import CompiledEngine
from regimen.envs import registry
from regimen.errors import ConfigError, RegimenError, StorageError, nearest
from regimen.experiments.sweep.population import (
    END,
    ROUNDS,
    Round,
    decide,
    end_of,
    first_settings,
    member,
    round_path,
    rounds_of,
)
from regimen.experiments.sweep.report import brief
from regimen.experiments.sweep.space import SweepPlan
from regimen.experiments.sweep.together import finish
from regimen.experiments.sweep.trials import SweepFiles
from regimen.files.checkpoint import Checkpoints, verify
from regimen.files.console import Console
from regimen.files.storage import Json
from regimen.runs import api
from regimen.runs.build import resolve_horizon, with_config
from regimen.runs.session import Call, Session
from regimen.words import score

COLUMNS = {"return_mean": "return", "length_mean": "length", "success_rate": "success"}  # metric -> of episodes.csv


class PopulationSession(Session):
    """A session whose learners wait for each other at every round."""

    depend = True

    def __init__(self, call: Call, *args: Any):
        super().__init__(call, *args)
        self.plan = SweepPlan.load(call.path)
        self.sweep = SweepFiles(call.path, self.plan)
        self.windows: dict[int, list[float]] = {k: [] for k in self.active}  # of episodes since the last round
        rounds = rounds_of(call.path)
        self.last = rounds[-1] if rounds else None
        self.settings = first_settings(self.plan) if self.last is None else self.last.settings
        self.column = COLUMNS.get(self.plan.metric, self.plan.metric)

    @property
    def number(self) -> int:
        """The number of the next round."""
        return 1 if self.last is None else self.last.number + 1

    def train(self) -> Iterator[Json]:
        if self.last is not None:
            self.apply(self.last, copies=end_of(self.sweep.folder) is None)
        yield from super().train()
        if not self.signals.requested and end_of(self.sweep.folder) is None:
            self.decided(last=True).save(self.sweep.folder / ROUNDS / f"{END}.json")

    def limits(self, k: int) -> Limits | None:
        """A member that has come to the round waits there for the others: `turn` lets all of them go on."""
        learner = self.active.get(k)
        waits = learner is not None and learner.ledger.counters.updates >= self.number * (self.plan.every or 1)
        return None if waits else super().limits(k)

    def turn(self, progress: Mapping[int, Progress]) -> None:
        for k, one in progress.items():
            table = self.active[k].ledger.episode_table(one)
            if self.column not in table:
                raise ConfigError(f"--metric {self.plan.metric}: no column of episodes{nearest(self.column, table)}")
            self.windows[k] += np.asarray(table[self.column], float).tolist()
        super().turn(progress)
        living = [k for k, learner in self.active.items() if learner.stop is None]
        if living and all(self.limits(k) is None for k in living):
            now = self.decided()
            now.save(round_path(self.sweep.folder, now.number))
            self.last, self.settings = now, now.settings
            self.windows = {k: [] for k in self.active}
            self.apply(now, copies=True)
            self.report(now)

    def decided(self, last: bool = False) -> Round:
        """The next round, or the scores of the end, at which nobody takes over."""
        learners = [self.active[k] for k in range(self.plan.trials)]
        counters = [learner.ledger.counters for learner in learners]
        scores = [float(np.mean(self.windows[k])) if self.windows[k] else None for k in range(len(learners))]
        alive = [learner.stop is None for learner in learners]
        updates, steps = [c.updates for c in counters], [c.steps for c in counters]
        if last:
            alive = [not learner.diverged for learner in learners]
            return Round(self.number, updates, steps, scores, alive, list(range(len(learners))), self.settings)
        return decide(self.plan, self.number, updates, steps, scores, alive, self.settings)

    def apply(self, now: Round, copies: bool) -> None:
        """Copy learners on the device, and go on with the settings of the round."""
        engine = self.engine
        assert isinstance(engine, CompiledEngine)
        if copies and now.sources != list(range(len(now.sources))):
            engine.take_over(now.sources)
        names = [{key.partition(".")[2]: value for key, value in one.items()} for one in now.settings]
        configs = [dataclasses.replace(engine.algo_of(k).config, **one) for k, one in enumerate(names)]
        engine.set_variants([with_config(engine.algo, config) for config in configs])

    def report(self, now: Round) -> None:
        """A line for everyone, and one for each member that took over."""
        sign = 1 if self.plan.lower else -1
        scored = sorted((sign * s, k) for k, s in enumerate(now.scores) if s is not None and now.alive[k])
        text = f"round {now.number} (update {now.number * (self.plan.every or 1)}): "
        if scored:
            middle = scored[len(scored) // 2]
            text += f"best {score(sign * scored[0][0])} (trial {scored[0][1]}), median {score(sign * middle[0])}"
        copies = [f"{k} takes over from {s}" for k, s in enumerate(now.sources) if s != k]
        self.console.event(text + "".join(f"; {copy}" for copy in copies))
        self.sweep.event(text)
        for k, source in enumerate(now.sources):
            if source != k:
                settings = ", ".join(f"{key} {brief(value)}" for key, value in now.settings[k].items())
                self.active[k].files.event(f"round {now.number}: takes over from trial {source}, with {settings}")


def go_back(files: SweepFiles) -> int:
    """Let all members be where the last whole round left them; returns its number, 0 where they begin anew."""
    if end_of(files.folder) is not None:
        return len(rounds_of(files.folder))
    paths = [files.trial(n) for n in range(files.plan.trials)]
    rounds = rounds_of(files.folder)
    while rounds and not all(is_whole(path, steps) for path, steps in zip(paths, rounds[-1].steps)):
        round_path(files.folder, rounds.pop().number).unlink()
    for n, path in enumerate(paths):
        if rounds:
            Checkpoints(path / "checkpoints").forget_after(rounds[-1].steps[n])
        else:
            shutil.rmtree(path, ignore_errors=True)
    return len(rounds)


def is_whole(path: Path, steps: int) -> bool:
    """Whether a member's checkpoint is there as it was written."""
    try:
        verify(path / "checkpoints" / str(steps))
    except StorageError:
        return False
    return True


def train_population(files: SweepFiles, console: Console, command: str = "") -> int:
    """Train what is left of a population, and write down what came of its members; returns an exit code."""
    plan = files.plan
    with files.claim("sweep") as free:
        if not free:
            raise RegimenError(f"{files.folder} is being swept by another process")
        if not files.missing():
            return 0
        if number := go_back(files):
            console.event(f"goes on from round {number}")
        configs = [resolve_horizon(member(plan, n)) for n in range(plan.trials)]
        first = configs[0]
        where = device.configure(first.device, True)
        handle = registry.resolve(first.env, first.env_args)
        call = Call(handle, files.folder, where, command, None, console, time.monotonic())
        labels = {f"trial {n}": config for n, config in enumerate(configs)}
        seeds, paths = [config.seed for config in configs], [files.trial(n) for n in range(plan.trials)]
        results = api.train_runs(call, first, paths, seeds, labels, conduct=PopulationSession)
        code = max(result.exit_code for result in results)
        end = end_of(files.folder)
        if code == 0 and end is not None:
            for n in files.missing():
                more = {} if end.scores[n] is None or not end.alive[n] else {"score": end.scores[n]}
                finish(files, n, end.settings[n], console.event, **more)
        return code
