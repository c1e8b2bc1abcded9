"""Training the trials of a sweep: as one program, one by one, in several processes, or by Ray workers.

Every way ends a trial with the same file in `results/`. Started again, done trials are kept, interrupted ones go on.
"""

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from regimen.config import trust
from regimen.config.schema import TrainConfig
from regimen.engines.signals import INTERRUPTED, Leaving, code_of
from regimen.envs import registry
from regimen.errors import ConfigError, RegimenError
from regimen.experiments.many import Row, attempt, in_turn
from regimen.experiments.sweep.halving import train_rungs
from regimen.experiments.sweep.members import train_population
from regimen.experiments.sweep.optuna_trials import OptunaStudy, Pruning, require_optuna
from regimen.experiments.sweep.report import write_all
from regimen.experiments.sweep.space import SweepPlan
from regimen.experiments.sweep.together import finish, standing, train_together
from regimen.experiments.sweep.trials import SweepFiles
from regimen.files.console import Console
from regimen.files.storage import require_own
from regimen.words import plural

WAYS = {"pbt": "a population in one compiled program", "halving": "by halving, each rung in one compiled program"}
BATCH = 64  # runs of one compiled program, unless --batch says otherwise


def run_sweep(
    files: SweepFiles,
    command: str = "",
    console: Console | None = None,
    workers: int = 1,
    engine: str = "local",
    batch: int | None = None,
) -> int:
    """Do what is missing of a sweep, then write its tables and plots; returns an exit code."""
    console = console or Console(quiet=True)
    require_own(files.folder)
    first = files.plan.config(files.plan.draw(0))
    if isinstance(first.env, trust.Named):  # a plan of another process: what is refused is refused before any trial
        registry.resolve(first.env, first.env_args)
    plan, reason = files.plan, files.plan.in_one_program()
    flags = {"--workers": workers > 1, "--engine": engine == "ray", "--batch": batch is not None}
    for flag, there in flags.items() if plan.method in WAYS else ():
        if there:
            raise ConfigError(f"{flag}: --method {plan.method} trains in one compiled program; leave it out")
    if workers > 1 or engine == "ray":
        reason = reason or "workers train one trial each"
    finished = plan.trials - len(files.missing())
    way = WAYS.get(plan.method) or ("in one compiled program" if reason is None else f"one by one ({reason})")
    console.event(f"{plan.trials} trials, {plural(plan.seeds, 'seed')} each, {way}: {files.folder}")
    if finished:
        console.event(f"{finished} trials were done before")
    try:
        if plan.method in WAYS:
            code = (train_population if plan.method == "pbt" else train_rungs)(files, console, command)
        elif reason is None:
            code = in_batches(files, console, command, batch or max(1, BATCH // plan.seeds))
        elif workers > 1 or engine == "ray":
            code = in_workers(files, workers, engine, console)
        else:
            code = work(files.folder, tell=console.event)
    except KeyboardInterrupt as error:  # between two trials
        code = code_of(error)
    for line in write_all(files):
        console.event(line)
    if code in INTERRUPTED:
        console.event(f"interrupted; `regimen sweep --out {files.folder}` goes on from here")
    return code


def in_batches(files: SweepFiles, console: Console, command: str, size: int) -> int:
    """Trials x seeds are the learners of one engine, as with `--seeds`, each with hyper-parameters of its own."""
    with files.claim("sweep") as free:
        if not free:
            raise RegimenError(f"{files.folder} is being swept by another process")
        missing = files.missing()

        def train(trials: list[int]) -> int:
            code = train_together(files, trials, console, command)
            for n in trials if code == 0 else ():
                finish(files, n, files.plan.draw(n), console.event)
            return code

        return in_turn((missing[i : i + size] for i in range(0, len(missing), size)), train)


def work(
    folder: Path | str,
    tell: Callable[[str], None] = lambda text: None,
    pledge: tuple[bool, frozenset[str]] = (False, frozenset()),
) -> int:
    """Take trials until none is left. Any number of processes may do this at once; `pledge` is what the one that began
    trusts."""
    folder = Path(folder)
    with trust.taking(pledge):
        files = SweepFiles(folder, SweepPlan.load(folder))
        with files.claim("study", wait=True):
            study = OptunaStudy(folder, files.plan)
        with contextlib.closing(claimed(files, study)) as trials:
            return in_turn(trials, lambda n: do_trial(files, study, n, tell))


def claimed(files: SweepFiles, study: OptunaStudy) -> Generator[int]:
    """Trials that nobody works on, each claimed until the next is asked for: those left behind, then new ones."""

    def unclaimed() -> Iterator[int]:
        trials = study.trials()
        yield from (n for n in trials if study.running(n) and n < files.plan.trials)
        if len(trials) < files.plan.trials:
            yield study.ask().number

    while True:
        with contextlib.ExitStack() as claims:
            with files.claim("study", wait=True):
                free = (n for n in unclaimed() if claims.enter_context(files.claim(f"{n:04d}")))
                n = next(free, None)
            if n is None:  # all are done or claimed by others
                return
            yield n


def do_trial(files: SweepFiles, study: OptunaStudy, n: int, tell: Callable[[str], None]) -> int:
    """Do one trial from wherever it is; returns an exit code, which is not 0 only where the sweep is to stop."""
    from regimen.runs.api import train_further

    result = files.result(n)
    if result is not None:  # killed between the file and the study
        study.tell(n, result)
        return 0
    trial = study.take_up(n)
    point = study.point(trial)
    config = files.plan.config(point)
    files.discard_torn(n)
    row: Row = {}
    if files.measured(n)["state"] not in ("finished", "diverged", "pruned"):
        callback = Pruning(trial, files.plan.metric, side_by_side(config)) if files.plan.prune else None
        command = f"trial {n} of {files.folder.name}"
        to = config.replace(out=str(files.trial(n)))
        row = attempt(lambda: {"exit_code": train_further(to, command, callback, Console(True)).exit_code})
        if (code := row.pop("exit_code")) in INTERRUPTED:
            return code
        if files.measured(n)["state"] == "diverged":
            row["state"] = "diverged"
    study.tell(n, finish(files, n, point, tell, **row))
    return 0


def side_by_side(config: TrainConfig) -> int:
    """How many seeds of a trial train at the same time."""
    native = registry.is_native(config.env) and not config.engine.distributed
    return (config.seeds or 1) if native else 1


def in_workers(files: SweepFiles, workers: int, engine: str, console: Console) -> int:
    """Workers that each take trials; this process only tells what they have done."""
    require_optuna()
    alive, codes, stop = (start_ray if engine == "ray" else start_processes)(files.folder, workers)
    open_trials = set(files.missing())
    try:
        while True:
            ended = not alive()
            for n in sorted(open_trials - set(files.missing())):
                open_trials.discard(n)
                console.event(standing(files, n, files.result(n) or {}, files.plan.trials - len(open_trials)))
            if ended:
                break
            time.sleep(0.2)
    finally:
        stop()
    return next(filter(None, codes()), 0)


def start_processes(folder: Path, workers: int):
    """Start worker processes on this machine. They end when this one does, however it does."""
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=child, args=(str(folder), os.getpid(), trust.pledge())) for _ in range(workers)]
    for process in running:
        process.start()

    def stop() -> None:
        for process in running:
            process.terminate()
        for process in running:
            process.join(30)

    return (
        lambda: any(p.is_alive() for p in running),
        lambda: [130 if p.exitcode in (-15, -2) else abs(p.exitcode or 0) for p in running],
        stop,
    )


def child(folder: str, parent: int, pledge: tuple[bool, frozenset[str]]) -> None:
    """Work on trials in a process that `start_processes` began."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.3)
        os._exit(1)  # the sweep was killed; what is on disk is enough to go on

    threading.Thread(target=watch, daemon=True).start()
    try:
        with Leaving():
            code = work(folder, pledge=pledge)
    except KeyboardInterrupt as error:
        code = code_of(error)
    raise SystemExit(code)


def start_ray(folder: Path, workers: int):
    """Tasks of a Ray cluster; the folder has to be on a disk that all of its machines see."""
    from regimen.engines.ray.cluster import Cluster, require_ray

    require_ray()
    import ray

    base = SweepPlan.load(folder)
    config = base.config(base.draw(0)).engine
    cluster = Cluster(config, 0)
    cluster.start()
    task: Any = ray.remote(num_cpus=max(config.cpus, 1), max_retries=0)(work)
    waiting: list[Any] = [task.remote(str(folder.resolve()), pledge=trust.pledge()) for _ in range(workers)]
    codes: list[int] = []

    def alive() -> bool:
        ready, waiting[:] = ray.wait(waiting, num_returns=len(waiting), timeout=0) if waiting else ([], [])
        for one in ready:
            try:
                codes.append(ray.get(one))
            except Exception:  # of the worker, or of Ray: what it was doing is taken up again by the next start
                codes.append(1)
        return bool(waiting)

    return alive, lambda: codes, cluster.stop
