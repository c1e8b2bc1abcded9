"""The folder of a sweep: one run directory per trial (or a group of seeds), and one small file per finished trial.

    plan.json  command.txt  log.txt  study.db (Optuna)  trial-0000/ ...  results/0000.json ...
    sweep.csv  sweep.json  sweep.md  plots/

A trial is done when its file in `results/` is there. That file is written by one rename, after everything else of the
trial, and is never written again: so a process can be killed at any moment.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from regimen.config import trust
from regimen.config.fields import Count
from regimen.envs.metric import from_table, label_of
from regimen.errors import StorageError
from regimen.experiments.many import make_folder
from regimen.experiments.sweep.space import PLAN, SweepPlan
from regimen.files.run_dir import is_run, read_status, read_summary
from regimen.files.sealed import ADVICE, read_sealed, write_sealed
from regimen.files.storage import Appender, plain, remove_halves, utc_now, write_atomic
from regimen.reports.comparison import Measured, resolve_metric

BUDGET = ("total_steps", "total_episodes")
TrialResult = dict[str, Any]  # a file of `results/`: trial, params, state, seeds, env_steps ..., value where it has one


class SweepFiles:
    """What is on disk of one sweep."""

    def __init__(self, folder: Path, plan: SweepPlan):
        self.folder, self.plan = Path(folder), plan

    def trial(self, n: int) -> Path:
        return self.folder / f"trial-{n:04d}"

    def result_path(self, n: int) -> Path:
        return self.folder / "results" / f"{n:04d}.json"

    @cached_property
    def seeds(self) -> range:
        """The seeds of every trial."""
        first = self.plan.config(self.plan.draw(0)).seed
        return range(first, first + self.plan.seeds)

    def runs(self, n: int) -> list[Path]:
        """Run directories of a trial, made or not; one for each seed."""
        path = self.trial(n)
        return [path] if len(self.seeds) == 1 else [path / f"seed-{seed}" for seed in self.seeds]

    def result(self, n: int) -> TrialResult | None:
        path = self.result_path(n)
        result = read_sealed(path)
        if path.exists() and "trial" not in result:
            raise StorageError(f"{path} is damaged: it holds no result; {ADVICE}")
        return result or None

    def results(self) -> list[TrialResult]:
        """The results of the trials that are done, by number."""
        return [result for n in range(self.plan.trials) if (result := self.result(n))]

    def label(self, metric: str) -> str:
        """What people read of a metric, as the first run there is tells it."""
        runs = (path for n in range(self.plan.trials) for path in self.runs(n) if is_run(path))
        first = next(runs, None)
        return label_of(metric, from_table(read_status(first).get("metrics")) if first else {})

    def missing(self) -> list[int]:
        return [n for n in range(self.plan.trials) if not self.result_path(n).is_file()]

    def event(self, text: str) -> None:
        log = Appender(self.folder / "log.txt")
        log.write(f"{utc_now()} {' '.join(text.split())}\n".encode())
        log.close()

    def record(self, n: int, values: TrialResult) -> TrialResult:
        """The last act of a trial."""
        path = self.result_path(n)
        if path.exists():
            raise StorageError(f"{path} exists: trial {n} was done before")
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"trial": n, **values, "finished": utc_now()}
        write_sealed(path, result)
        return result

    @contextlib.contextmanager
    def claim(self, name: str, wait: bool = False) -> Iterator[bool]:
        """Whether this process has the trial (or `sweep`) for itself; given back when it ends, however it ends."""
        import fcntl

        folder = self.folder / "claims"
        folder.mkdir(exist_ok=True)
        with open(folder / f"{name}.lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                yield False
                return
            yield True

    def discard_torn(self, n: int) -> None:
        """Remove what a kill left of a run directory before its configuration was written: it cannot be resumed."""
        for path in self.runs(n):
            if path.is_dir() and not is_run(path):
                shutil.rmtree(path)

    def measured(self, n: int) -> TrialResult:
        """What the runs of a trial say: its value is the mean of the metric over seeds."""
        paths = self.runs(n)
        states = [read_status(path).get("state", "missing") for path in paths]
        summaries = [read_summary(path) for path in paths]
        runs = [Measured(path) for path in paths if is_run(path)]
        evaluated = [run for run in runs if run.values]
        metric = self.plan.metric
        if evaluated:
            metric = resolve_metric(metric, evaluated)  # or says which there are
        values = [run.values[metric] for run in evaluated if metric in run.values]
        for name in self.plan.objectives if evaluated else ():
            resolve_metric(name, evaluated)
        state = "diverged" if "diverged" in states else states[0] if len(set(states)) == 1 else "failed"
        out: TrialResult = {"state": state, "seeds": len(states)}
        if state == "finished" and any(s.get("stop_reason") == "callback" for s in summaries):
            out["state"] = "pruned"
        if len(values) == len(states):
            out |= {"value": sum(values) / len(values), "values": values}
            names = self.plan.objectives
            if names and all(name in run.values for run in evaluated for name in names):
                out["objectives"] = {
                    name: sum(run.values[name] for run in evaluated) / len(evaluated) for name in names
                }
        out["env_steps"] = sum(s.get("env_steps") or 0 for s in summaries)
        out["wall_seconds"] = max(s.get("wall_seconds") or 0.0 for s in summaries)  # seeds train side by side
        return out


def begin(folder: Path, plan: SweepPlan, command: str) -> SweepFiles:
    """The folder of a plan: a new one, or that of the same plan begun earlier, whose trials may become more."""
    if (folder / PLAN).is_file():
        files = go_on(folder, plan)
        trust.vouch_file(folder / PLAN)
        return files
    if folder.is_dir() and any(p for p in folder.iterdir() if not p.name.startswith(".")):
        raise StorageError(f"--out: {folder} already exists and is not empty; choose another --out")
    make_folder(folder)
    plan.save(folder)
    trust.vouch_file(folder / PLAN)
    write_atomic(folder / "command.txt", command.rstrip("\n") + "\n")
    return SweepFiles(folder, plan)


def go_on(folder: Path, plan: SweepPlan) -> SweepFiles:
    """Continue the sweep of a folder, perhaps with more trials or a larger budget. Another plan than the one it was
    begun with is refused, naming the difference."""
    old = SweepPlan.load(folder)
    remove_halves(folder)
    now, before = (plain(asdict(p)) for p in (plan, old))
    for one in (now, before):
        one["overrides"] = {k: v for k, v in one["overrides"].items() if k not in BUDGET}
    for name, value in before.items():
        if name not in ("trials", "horizon") and now[name] != value:
            raise StorageError(
                f"--out: {folder} holds another sweep: its {name} is {value}, this one's is {now[name]}; "
                f"`regimen sweep --out {folder}` continues it as it was"
            )
    if plan.trials < old.trials:
        raise StorageError(f"--out: {folder} was begun with {old.trials} trials; --trials can only grow")
    plan = replace(plan, horizon=old.horizon)
    first, then = budget_of(old), budget_of(plan)
    if first != then:
        plan = replace(plan, horizon=old.horizon or str(first))
        extend(folder, plan, first, then)
    if plan != old:
        plan.save(folder)
    return SweepFiles(folder, plan)


def budget_of(plan: SweepPlan) -> Count | None:
    """How much a trial is trained."""
    config = plan.config(plan.draw(0))
    if config.total_steps is not None:
        return Count(config.total_steps, "steps")
    return None if config.total_episodes is None else Count(config.total_episodes, "episodes")


def extend(folder: Path, plan: SweepPlan, first: Count | None, then: Count | None) -> None:
    """Put aside the results of a smaller budget: its trials go on and have others. A kill before the plan is written
    leaves the sweep as it was, whose results are then made again."""
    if first is None or then is None or then.unit != first.unit or then.n < first.n:
        raise StorageError(f"--out: {folder} was begun with a budget of {first}; it can only grow")
    if plan.method != "random" or plan.in_one_program() is not None:
        raise StorageError(
            f"--out: {folder} has a budget of {first}; only trials of one compiled program, without a method that "
            "selects, go on with a larger one"
        )
    aside = folder / f"results-{first.n}"
    if (folder / "results").is_dir() and not aside.exists():
        os.replace(folder / "results", aside)
