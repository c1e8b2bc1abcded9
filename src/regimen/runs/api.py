"""What the command line and Python call to train: `train` and `resume`. No learning code here."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from regimen.config import datasets, layers
from regimen.config.calls import answered
from regimen.config.fields import Count
from regimen.config.regimen import share_rollout
from regimen.config.schema import ALGORITHMS, StopConfig, TrainConfig
from regimen.config.trust import trustable
from regimen.config.validation import validate
from regimen.engines import curriculum, device
from regimen.engines.signals import Signals, Terminated
from regimen.envs import registry
from regimen.envs.imports import OBJECT
from regimen.errors import ConfigError, DivergedError, SpentError, StorageError
from regimen.files.console import Console
from regimen.files.run_dir import ENDED, RunFiles, read_config, read_status, read_summary
from regimen.files.sealed import reading
from regimen.files.storage import check_free, require_own
from regimen.policies.target import refuse_object, stored_env
from regimen.runs import directory, processes
from regimen.runs.build import make_engine, resolve_horizon
from regimen.runs.delivery import deliver, hand_over, is_unfinished, make_missing
from regimen.runs.directory import (
    closing,
    copy_run,
    default_path,
    group_members,
    path_state,
    program_of,
    say_running,
)
from regimen.runs.learner import Learner, initial_from
from regimen.runs.loop import Steps, finish
from regimen.runs.result import Result, announce, group_result, settle
from regimen.runs.session import Call, Callback, Session
from regimen.runs.stopping import check_rules
from regimen.sources.host import Interrupted


@processes.together
def train(
    config: TrainConfig,
    command: str = "",
    callback: Callback | None = None,
    console: Console | None = None,
    handle: registry.EnvHandle | None = None,
    wait: bool = True,
) -> Result:
    """Train as configured. With `seeds`, one run directory per seed under a group. Without `wait`, a process
    that nobody waits for makes curves, replay and report, and ends the run in MLflow."""
    return finish(train_steps(config, command, callback, console, handle, wait=wait))


def train_steps(
    config: TrainConfig,
    command: str = "",
    callback: Callback | None = None,
    console: Console | None = None,
    handle: registry.EnvHandle | None = None,
    stepwise: bool = False,
    wait: bool = True,
) -> Steps[Result]:
    """Training as a generator of what a callback would be told. One that is closed early leaves the run as a signal
    would: saved, `interrupted`, and to be resumed."""
    begun = time.monotonic()
    config = resolve_horizon(config)
    path = Path(config.out) if config.out else default_path(config)
    check_free(path)
    where = device.configure(config.device, handle.native is not None if handle else registry.is_native(config.env))
    handle = handle or registry.resolve(config.env, config.env_args)
    config = share_rollout(config, handle.native is not None)
    config = config.replace(curriculum=curriculum.expand(config.curriculum, handle))
    check_rules(config.stop, handle.id, handle.metrics)
    console = console or Console(quiet=True)
    config, interrupted = provide_data(config, handle, path, console)
    if interrupted is not None:
        return interrupted
    call = Call(handle, path, where, command, callback, console, begun, stepwise, wait)
    if config.seeds is None:
        results = yield from steps_of_runs(call, config, [path], [config.seed])
        return accepted(results[0], call)
    results = yield from steps_of_seeds(call, config)
    return accepted(group_result(path, results, console, call.wait), call)


def steps_of_seeds(call: Call, config: TrainConfig) -> Steps[list[Result]]:
    """Train seeds: of a native environment in one program, else one after the other until one is interrupted."""
    seeds = list(range(config.seed, config.seed + (config.seeds or 1)))
    paths = [call.path / f"seed-{seed}" for seed in seeds]
    offline = config.data is not None and not config.common.online_steps
    if offline or (call.handle.native is not None and not config.engine.distributed):
        return (yield from steps_of_runs(call, config, paths, seeds))
    results: list[Result] = []
    for path, seed in zip(paths, seeds):
        results += yield from steps_of_runs(dataclasses.replace(call, path=path), config, [path], [seed])
        if results[-1].exit_code:
            break
        call = dataclasses.replace(call, begun=time.monotonic())
    return results


def train_runs(
    call: Call,
    config: TrainConfig,
    paths: list[Path],
    seeds: list[int],
    trials: dict[str, TrainConfig] | None = None,
    ended: list[int] | None = None,
    conduct: type[Session] = Session,
) -> list[Result]:
    """One session, all of it: see `steps_of_runs`."""
    return finish(steps_of_runs(call, config, paths, seeds, trials, ended, conduct))


def steps_of_runs(
    call: Call,
    config: TrainConfig,
    paths: list[Path],
    seeds: list[int],
    trials: dict[str, TrainConfig] | None = None,
    ended: list[int] | None = None,
    conduct: type[Session] = Session,
) -> Steps[list[Result]]:
    """Train several runs in one session. What can be refused is refused before a directory is made. `trials` are the
    configurations of the runs by label, where they differ in numbers of the algorithm. A run directory that is there
    already is continued; one that has ended (or is among `ended`) stays as it is, and has its place in the program,
    whose last digits depend on its width. `conduct` makes the session; one in which learners take over from each other
    says so by `depend`."""
    require_own(call.path)
    if ended is None:
        ended = [k for k, path in enumerate(paths) if path_state(path) in ENDED]
    if len(ended) == len(paths):
        return [Result(path, read_summary(path)) for path in paths]
    configs = list(trials.values()) if trials else [config.replace(seed=seed, seeds=None) for seed in seeds]
    with contextlib.ExitStack() as signalling:
        signals = signalling.enter_context(Signals())
        more: dict[str, Any] = {}
        if config.init_from:
            more["adopt"] = initial_from(Path(config.init_from), config, call.handle, call.console.event)
        if trials and len(trials) > 1:
            more["variants"] = [one.algo for one in configs]
        processes.begin(config, seeds)
        engine = make_engine(config, call.handle, seeds, signals.is_requested, sampling=not conduct.depend, **more)
        begun_before = [(path / "config.yaml").is_file() for path in paths]
        width = {"learners": len(seeds), "varied": "variants" in more}
        depend = {"depend": True} if conduct.depend else {}
        program = {"program": width | depend} if len(seeds) > 1 else {}
        files: dict[int, RunFiles] = {}
        for k, (path, one, old) in enumerate(zip(paths, configs, begun_before)):
            if k not in ended:
                new = partial(RunFiles.create, path, layers.to_dict(one), call.command, **program)
                files[k] = RunFiles.open(path) if old else new()
                files[k].lock()
        with closing(list(files.values())):
            session = conduct(call, config, engine, files, seeds, signals, trials)
            for k, learner in session.active.items():
                if begun_before[k]:
                    take_up(session, learner, "latest", adopted=True)
                elif config.init_from:
                    learner.files.event(f"starts from the policy of {config.init_from}")
            for k, learner in session.active.items():
                if begun_before[k]:
                    say_running(learner, call.command)
            results = {result.run_dir: result for result in (yield from run(session, signalling))}
    return [results.get(path) or Result(path, read_summary(path)) for path in paths]


def run(session: Session, signalling: contextlib.ExitStack) -> Steps[list[Result]]:
    """The loop, then evaluation, summary, plots and mirror; says where everything is. From the summary on everything is
    saved: a signal is then left to the command, in which it is an exception that cleans up after itself."""
    console = session.console
    try:
        session.header()
        yield from session.train()
        if not session.signals.requested:
            session.final_evaluation()
    except Interrupted:
        pass
    except GeneratorExit:
        session.leave("the caller")
        raise
    finally:
        session.close()
    code = session.interrupted() if session.signals.requested else 0
    results = [settle(learner, session.compile_seconds, code) for learner in session.learners]
    if code:
        return results
    signalling.close()
    if number := session.signals.requested:  # it came while the summaries were written
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated
    for learner, result in zip(session.learners, results):
        if not session.call.wait:
            hand_over(learner, result.summary)
        if session.group:  # it has one picture of all its seeds
            if session.call.wait:
                deliver(learner, result.summary, plots=False)
            continue
        if not learner.diverged:
            announce(result.summary, session.handle.return_threshold, console)
        console.event(f"policy   {learner.path / 'policy'}   (regimen evaluate {learner.path})")
        for line in deliver(learner, result.summary, plots=True) if session.call.wait else ():
            console.event(line)
        console.event(f"stopped: {result.summary['stop_detail']}")
    return results


def provide_data(
    config: TrainConfig, handle: registry.EnvHandle, path: Path, console: Console
) -> tuple[TrainConfig, Result | None]:
    """The configuration with a dataset to learn from, where the algorithm needs one: collected from the run that `data`
    names, or from a short run of SAC on the environment. It stays beside the run, as `<run>-data`. A signal during
    that run ends everything: its result is the second; the same command with the same `out` goes on from there."""
    if config.data is None and ALGORITHMS[config.algorithm].online:
        return config, None
    dataset = None if config.data is None else datasets.locate(config.data)
    if dataset is not None:
        if not str(config.data).startswith(datasets.PREFIX):  # the path as it is from anywhere
            config = config.replace(data=str(dataset.resolve()))
        return config, None
    from regimen.policies.collect import gather

    out = path.with_name(f"{path.name}-data")
    if config.data is None:
        steps, source = config.common.behaviour_steps, path.with_name(f"{path.name}-behaviour")
        console.event(f"no data given: SAC acts on {handle.id} for {steps:,} env steps first ({source})")
        result = act_first(behaviour_config(config, source), source, handle)
        if result.exit_code:
            console.event(f"interrupted; the same command with --out {path} goes on from here")
            return config, dataclasses.replace(result, run_dir=path)
    else:
        source = RunFiles.open(Path(config.data)).path
        console.event(f"collecting what {source} has seen into {out}")
    if config.data is not None or datasets.locate(out) is None:  # else it was collected before
        data = gather(handle, source, out, policy="replay", report=lambda text: None)
        console.event(data.summary())
    return validate(config.replace(data=str(out.resolve()))), None


def behaviour_config(config: TrainConfig, out: Path) -> TrainConfig:
    """The run of SAC that collects data for `config`, in the very same environment."""
    shared = {"env_args": config.env_args, "seed": config.seed, "device": config.device, "out": str(out)}
    quiet = {"track.enabled": False, "eval.every": "never", "checkpoint.every": "never"}
    budget = {"total_steps": config.common.behaviour_steps}
    overrides = shared | quiet | budget | layers.tied_discount(config)
    return layers.build_config(config.env, algo="sac", overrides=overrides).replace(stop=StopConfig())


def act_first(config: TrainConfig, path: Path, handle: registry.EnvHandle) -> Result:
    """The run that collects data: from nothing, from where a signal left it, or as it was finished."""
    stored = read_config(path) if (path / "config.yaml").is_file() else None
    names = ("env", "env_args", "algorithm", "seed", "total_steps")
    if stored is not None and any(stored.get(name) != getattr(config, name) for name in names):
        raise StorageError(f"--out: {path} holds another run; choose another --out")
    return train_further(config, handle=handle)


def train_further(
    config: TrainConfig,
    command: str = "",
    callback: Callback | None = None,
    console: Console | None = None,
    handle: registry.EnvHandle | None = None,
    wait: bool = True,
) -> Result:
    """Train in the directory `out`: from nothing, or from where an earlier call left it. What is finished stays as it
    is; of several seeds that were not trained in one program each is continued by itself, until one is interrupted."""
    path = Path(str(config.out))
    if not path.exists() or not any(path.iterdir()):
        return train(config, command, callback, console, handle, wait)
    console = console or Console(quiet=True)
    if config.seeds is not None and any(program_of(run)[0] > 1 for run in group_members(path)):
        env = given_env(config, handle)
        return resume(path, command=command, console=console, callback=callback, env=env, wait=wait)
    if config.seeds is not None:
        results: list[Result] = []
        for seed in range(config.seed, config.seed + config.seeds):
            one = config.replace(seed=seed, seeds=None, out=str(path / f"seed-{seed}"))
            results.append(train_further(one, command, callback, console, handle))
            if results[-1].exit_code:
                break
        return group_result(path, results, console)
    status = read_status(path)
    if status.get("state") == "finished":
        console.event(f"finished before: {path}")
        make_missing(path, wait, console.event)
        return Result(path, read_summary(path))
    env = given_env(config, handle)
    return resume(path, command=command, console=console, callback=callback, env=env, wait=wait)


def given_env(config: TrainConfig, handle: registry.EnvHandle | None) -> registry.EnvLike | None:
    """The environment itself, where it has no name."""
    return (handle.native or handle.make_host) if handle and config.env.startswith(OBJECT) else None


def accepted(result: Result, call: Call, ended: bool = False) -> Result:
    """The result, or the error of the seed that diverged: everything else has been written by now, or is being. A run
    that had `ended` before may have been killed while the rest was made."""
    if ended or not call.wait:
        make_missing(result.run_dir, call.wait, call.console.event, ("pending", "failed"))
    for one in result.runs or [result]:
        if one.stop_reason == "diverged":
            seed = f"seed {one.summary['seed']}: " if result.runs else ""
            raise DivergedError(seed + one.summary["stop_detail"])
    return result


@answered
@trustable
@processes.together
def resume(
    run_dir: str | Path,
    checkpoint: str = "latest",
    total_steps: int | None = None,
    total_episodes: int | None = None,
    out: str | Path | None = None,
    device_name: str | None = None,
    devices: int | None = None,
    env_args: dict[str, object] | None = None,
    command: str = "",
    console: Console | None = None,
    callback: Callback | None = None,
    env: registry.EnvLike | None = None,
    trust: bool = False,
    wait: bool = True,
) -> Result:
    """Continue a run exactly where a checkpoint left it, and return its result."""
    begun = time.monotonic()
    path, console = Path(run_dir), console or Console(quiet=True)
    directory.require_independent(path)
    members = group_members(path)
    if members:
        require_own(path)  # a seed that is a link is none of this group
    if members and (out is not None or checkpoint != "latest"):
        flag = "--out" if out is not None else "--checkpoint"
        raise ConfigError(f"{flag}: {path} is a group of seeds, which goes on as it is; name one, as {members[0]}")
    extended = total_steps is not None or total_episodes is not None

    def stored(run: Path) -> TrainConfig:
        source = RunFiles.open(run)
        require_own(source.path)
        with reading(source.path / "config.yaml"):
            config = layers.from_dict(read_config(source.path))
        if extended:
            config = config.replace(total_steps=total_steps, total_episodes=total_episodes)
        config = config.replace(device=device_name or config.device, devices=devices or config.devices)
        return validate(config.replace(env_args=config.env_args | (env_args or {})))

    configs = [stored(run) for run in members or [path]]
    config = configs[0]
    refuse_object(config.env, env, f"regimen.resume('{run_dir}', env=...)")
    where = device.configure(config.device, registry.is_native(config.env if env is None else env))
    handle = stored_env(config.env, config.env_args, env)
    check_rules(config.stop, handle.id, handle.metrics)
    call = Call(handle, path, where, command, callback, console, begun, wait=wait)
    if members:
        ended = not extended and all(path_state(member) in ENDED for member in members)
        results = resume_group(call, configs, members, extended)
        return accepted(group_result(path, results, console, wait), call, ended)
    files = RunFiles.open(path) if out is None else copy_run(RunFiles.open(path), Path(out))
    files.lock()
    call = dataclasses.replace(call, path=files.path)
    try:
        return accepted(resume_run(call, config, files, checkpoint, copied=out is not None), call)
    except SpentError:
        if out is not None or not is_unfinished(files.path):
            raise
        return accepted(Result(files.path, read_summary(files.path)), call, ended=True)


def resume_group(call: Call, configs: list[TrainConfig], members: list[Path], extended: bool) -> list[Result]:
    """Together where they were trained in one program and still have the same settings, else one after the other. With
    a budget that is `extended`, also those go on that have ended."""
    first, (learners, varied) = configs[0], program_of(members[0])
    if learners > 1 and not varied and all(config.replace(seed=first.seed) == first for config in configs):
        seeds = list(range(first.seed, first.seed + learners))
        return train_runs(call, first, [call.path / f"seed-{n}" for n in seeds], seeds, ended=[] if extended else None)
    results: list[Result] = []
    for path, config in zip(members, configs):
        if path_state(path) in ENDED and not extended:
            results.append(Result(path, read_summary(path)))
            continue
        files = RunFiles.open(path)
        files.lock()
        results.append(resume_run(dataclasses.replace(call, path=path), config, files, "latest", copied=False))
        if results[-1].exit_code:
            break
        call = dataclasses.replace(call, begun=time.monotonic())
    return results


def resume_run(call: Call, config: TrainConfig, files: RunFiles, checkpoint: str, copied: bool) -> Result:
    """One session, from a checkpoint. A copy that cannot be continued is removed again. One of several that were
    trained in one program has a program of that width to itself: another would differ in the last digits."""
    learners, varied = program_of(files.path)
    seeds = [config.seed] * learners
    with contextlib.ExitStack() as signalling, closing([files]):
        try:
            signals = signalling.enter_context(Signals())
            processes.begin(config, seeds)
            variants = [config.algo] * learners if varied else None
            engine = make_engine(config, call.handle, seeds, signals.is_requested, variants=variants, sampling=True)
            session = Session(call, config, engine, {0: files}, seeds, signals)
            take_up(session, session.learners[0], checkpoint)
        except BaseException:
            if copied:
                shutil.rmtree(files.path, ignore_errors=True)
            raise
        if learners > 1:
            words = f"one of {learners} runs in one program, which goes on alone and takes as long as all of them"
            session.tell(session.learners[0], words)
        say_running(session.learners[0], call.command)
        return finish(run(session, signalling))[0]


def take_up(session: Session, learner: Learner, checkpoint: str, adopted: bool = False) -> None:
    """Load the checkpoint, see that there is something left to do, and only then rewind the files to it. `adopted`: the
    engine already has the policy that the run starts from."""
    warnings: list[str] = []
    if checkpoint == "latest" and not learner.checkpoints.steps():
        if learner.config.init_from and not adopted:
            raise StorageError(f"{learner.path} has no checkpoint; start it again with `regimen train`")
        warnings.append(learner.begin_anew())
    else:
        learner.load(checkpoint, warnings.append)
    c = learner.ledger.counters
    spent = learner.ledger.rules.budget.check(c.steps, c.episodes)
    if spent is not None and path_state(learner.path) == "finished":
        raise SpentError(f"{learner.path}: {spent.reason}; give a larger --total-steps or --total-episodes")
    common = learner.config.common
    horizon = Count.parse(common.horizon)
    if common.moving and horizon is not None and getattr(c, horizon.unit) >= horizon.n:
        name = next(iter(common.moving))
        warnings.append(f"algo.{name} ended at algo.horizon ({common.horizon}) and stays at its end value")
    warnings += learner.ended_before()
    learner.ledger.stop = learner.ledger.stop or spent  # what remains is the last evaluation
    learner.rewind()
    for text in warnings:
        session.tell(learner, f"warning: {text}")
