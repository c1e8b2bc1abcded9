"""Trials that are the learners of one engine, and the end of a trial, however it was trained."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from regimen.config.schema import TrainConfig
from regimen.engines import curriculum, device
from regimen.envs import registry
from regimen.experiments.sweep.report import best_of, brief
from regimen.experiments.sweep.trials import SweepFiles, TrialResult
from regimen.files.console import Console
from regimen.files.run_dir import read_summary
from regimen.runs import api
from regimen.runs.build import resolve_horizon
from regimen.runs.directory import path_state
from regimen.runs.session import Call
from regimen.runs.stopping import check_rules
from regimen.words import score


@dataclass(frozen=True)
class TrialStretch:
    """A part of the training of some trials: their configuration in it, and whether a run has come to its end."""

    config: Callable[[TrainConfig], TrainConfig]
    through: Callable[[Path], bool]


def train_together(
    files: SweepFiles, trials: Sequence[int], console: Console, command: str = "", stretch: TrialStretch | None = None
) -> int:
    """Train what is left of these trials (or of a stretch), in the program in which they began; returns an exit
    code."""
    paths: list[Path] = []
    configs: dict[str, TrainConfig] = {}
    for n in trials:
        config = resolve_horizon(files.plan.config(files.plan.draw(n)))
        config = config if stretch is None else stretch.config(config)
        files.discard_torn(n)
        for seed, path in zip(files.seeds, files.runs(n)):
            paths.append(path)
            configs[f"trial {n}, seed {seed}"] = config.replace(seed=seed, seeds=None)
    first = next(iter(configs.values()))
    where = device.configure(first.device, True)
    handle = registry.resolve(first.env, first.env_args)
    check_rules(first.stop, handle.id, handle.metrics)
    course = curriculum.expand(first.curriculum, handle)
    configs = {label: config.replace(curriculum=course) for label, config in configs.items()}
    call = Call(handle, files.folder if len(paths) > 1 else paths[0], where, command, None, console, time.monotonic())
    seeds = [config.seed for config in configs.values()]
    base = first.replace(curriculum=course)
    through = partial(is_through, config=base) if stretch is None else stretch.through
    ended = [k for k, path in enumerate(paths) if through(path)]
    return max(result.exit_code for result in api.train_runs(call, base, paths, seeds, configs, ended))


def is_through(path: Path, config: TrainConfig) -> bool:
    """Whether nothing is left of a run: it has diverged, a rule has ended it, or all of this budget is spent."""
    state = path_state(path)
    if state != "finished":
        return state == "diverged"
    summary = read_summary(path)
    left = {"max_steps": (config.total_steps, "env_steps"), "max_episodes": (config.total_episodes, "episodes")}
    budget, unit = left.get(summary["stop_reason"], (None, ""))
    return budget is None or summary[unit] >= budget


def finish(
    files: SweepFiles, n: int, point: Mapping[str, object], tell: Callable[[str], None], **failure: object
) -> TrialResult:
    """Write down what came of a trial, and say it."""
    result = files.record(n, {"params": point, **files.measured(n), **failure})
    settings = ", ".join(f"{k} {brief(v)}" for k, v in point.items())
    pruned = " (pruned)" if result["state"] == "pruned" and "value" in result else ""
    finished = files.plan.trials - len(files.missing())
    text = standing(files, n, result, finished, f"{settings}: {files.label(files.plan.metric)} ", pruned)
    files.event(text)
    tell(text)
    return result


def standing(files: SweepFiles, n: int, result: TrialResult, finished: int, before: str = "", after: str = "") -> str:
    """The line of a trial that is done: how many are, its value or state, and the best so far."""
    best = best_of(files.results(), files.plan.lower)
    value = score(result["value"]) if "value" in result else result.get("state")
    top = "" if best is None else f"; best {score(best['value'])} (trial {best['trial']})"
    return f"[{finished}/{files.plan.trials}] trial {n}: {before}{value}{after}{top}"
