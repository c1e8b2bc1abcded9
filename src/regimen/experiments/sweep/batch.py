"""Trials that differ only in numbers, trained as one compiled program: trials x seeds are the learners of one engine.

The mechanism is that of `--seeds`; here each learner also has hyper-parameters of its own. What a kill interrupts is
continued from the checkpoints of each run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from regimen.engines import curriculum, device
from regimen.envs import registry
from regimen.experiments import many
from regimen.experiments.sweep.trials import SweepFiles
from regimen.files.console import Console
from regimen.files.storage import read_json
from regimen.runs import api
from regimen.runs.stopping import check_rules

DONE = ("finished", "diverged")


def unfinished(files: SweepFiles, trials: Sequence[int]) -> dict[str, many.RunPlan]:
    """Label -> run of some trials that is not done yet, one for each seed."""
    runs = {}
    for n in trials:
        config = api.resolve_horizon(files.plan.config(files.plan.draw(n)))
        files.discard_torn(n, config.seed)
        for seed, path in enumerate(files.runs(n, config.seed), config.seed):
            if read_json(path / "status.json").get("state") not in DONE:
                name = path.relative_to(files.folder).as_posix()
                runs[f"trial {n}, seed {seed}"] = many.RunPlan(name, config.replace(seed=seed, seeds=None))
    return runs


def train_together(files: SweepFiles, trials: Sequence[int], console: Console, command: str = "") -> int:
    """Train what is left of these trials; returns an exit code."""
    runs = unfinished(files, trials)
    if not runs:
        return 0
    base = next(iter(runs.values())).config
    where = device.configure(base.device, True)
    handle = registry.resolve(base.env, base.env_args)
    check_rules(base.stop, handle.id, handle.metrics)
    course = curriculum.expand(base.curriculum, handle)
    configs = [run.config.replace(curriculum=course) for run in runs.values()]
    paths = [files.folder / run.name for run in runs.values()]
    call = api.Call(handle, files.folder if len(runs) > 1 else paths[0], where, command, None, console)
    seeds = [config.seed for config in configs]
    results = api.train_runs(call, configs[0], paths, seeds, time.monotonic(), configs, list(runs))
    return max(result.exit_code for result in results)
