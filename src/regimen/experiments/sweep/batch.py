"""Trials that differ only in numbers, trained as one compiled program: trials x seeds are the learners of one engine.

The mechanism is that of `--seeds`; here each learner also has hyper-parameters of its own. What a kill interrupts is
continued from the checkpoints of each run.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.engines import curriculum, device
from regimen.engines.signals import Signals
from regimen.envs import registry
from regimen.experiments.sweep.trials import SweepFiles
from regimen.files.console import Console
from regimen.files.run_dir import RunFiles
from regimen.files.storage import read_json
from regimen.runs import api
from regimen.runs.build import make_engine
from regimen.runs.session import Session
from regimen.runs.stopping import check_rules

DONE = ("finished", "diverged")


@dataclasses.dataclass(frozen=True)
class Member:
    """One learner: a trial's configuration with one seed, and its run directory."""

    trial: int
    seed: int
    config: TrainConfig
    path: Path

    @property
    def label(self) -> str:
        return f"trial {self.trial}, seed {self.seed}"


def members(files: SweepFiles, trials: Sequence[int]) -> list[Member]:
    """The learners of some trials that are not done yet."""
    out = []
    for n in trials:
        config = api.resolve_horizon(files.plan.config(files.plan.draw(n)))
        files.discard_torn(n, config.seed)
        for i, path in enumerate(files.runs(n, config.seed)):
            if read_json(path / "status.json").get("state") not in DONE:
                one = config.replace(seed=config.seed + i, seeds=None)
                out.append(Member(n, one.seed, one, path))
    return out


def train_together(files: SweepFiles, trials: Sequence[int], console: Console, command: str = "") -> int:
    """Train what is left of these trials; returns an exit code."""
    chosen = members(files, trials)
    if not chosen:
        return 0
    base = chosen[0].config
    where = device.configure(base.device, True)
    handle = registry.resolve(base.env, base.env_args)
    course = curriculum.expand(base.curriculum, handle)
    chosen = [dataclasses.replace(m, config=m.config.replace(curriculum=course)) for m in chosen]
    check_rules(base.stop, handle.id, handle.metrics)
    configs, seeds = [m.config for m in chosen], [m.seed for m in chosen]
    begun = time.monotonic()
    with Signals() as signals:
        engine = make_engine(
            configs[0],
            handle,
            seeds,
            signals.is_requested,
            variants=[c.algo for c in configs] if len(seeds) > 1 else None,
        )
        opened = [open_or_create(m, command) for m in chosen]
        runs = [run for run, _ in opened]
        with api.closing(runs):
            for run in runs:
                run.lock()
            session: Any = Session(
                configs[0],
                handle,
                engine,
                runs,
                seeds,
                files.folder if len(seeds) > 1 else chosen[0].path,
                console,
                None,
                signals,
                configs=configs,
                labels=[m.label for m in chosen],
            )
            for learner, (run, old) in zip(session.learners, opened):
                learner.ledger.started = begun
                if old:
                    api.take_up(session, learner, "latest")
                    run.status(state="running", stop_reason=None, stop_detail=None, error=None, pid=os.getpid())
            results = api.run(session, where)
    return max(result.exit_code for result in results)


def open_or_create(member: Member, command: str) -> tuple[RunFiles, bool]:
    """The run directory of a learner, and whether there was one."""
    if (member.path / "config.yaml").is_file():
        return RunFiles.open(member.path), True
    return RunFiles.create(member.path, layers.to_dict(member.config), command), False
