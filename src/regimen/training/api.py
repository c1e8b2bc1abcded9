"""What the command line and Python call: `train`, `resume`, `evaluate`, `Trainer`. No learning code here."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import time
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regimen import settings
from regimen.config import ALGORITHMS, TrainConfig
from regimen.envs import registry
from regimen.errors import ConfigError, StorageError
from regimen.tracking.console import Console
from regimen.tracking.files import RunFiles, read_config, read_episodes, read_metrics, write_json
from regimen.training import device
from regimen.training.evaluate import Evaluation, evaluate_baseline, make_evaluator
from regimen.training.policy import Policy, load_policy, read_policy
from regimen.training.trainer import Callback, Session, compare_identity, resolve_horizon


@dataclasses.dataclass
class Result:
    """A finished (or interrupted) run."""

    run_dir: Path
    summary: dict[str, Any]
    exit_code: int = 0
    runs: list[Result] = dataclasses.field(default_factory=list)  # one per seed, with --seeds

    @property
    def stop_reason(self) -> str | None:
        return self.summary.get("stop_reason")

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Every logged point, in order."""
        return read_metrics(self.run_dir)

    @cached_property
    def episodes(self) -> dict[str, np.ndarray]:
        """One entry per finished episode: columns of episodes.csv."""
        return read_episodes(self.run_dir)

    @cached_property
    def policy(self) -> Policy:
        """The best policy by evaluation."""
        return load_policy(self.run_dir)


def train(
    config: TrainConfig,
    command: str = "",
    callback: Callback | None = None,
    console: Console | None = None,
    handle: registry.EnvHandle | None = None,
) -> Result:
    """Train as configured. With `seeds`, one run directory per seed under a group."""
    console = console or Console(quiet=True)
    begun = time.monotonic()
    native = handle.native is not None if handle is not None else registry.is_native(config.env)
    where = device.configure(config.device, native)
    handle = handle or registry.resolve(config.env, config.env_args)
    config = resolve_horizon(config)
    if config.total_steps is None and config.total_episodes is None and config.stop.max_seconds is None:
        raise ConfigError("no budget: set total_steps, total_episodes or stop.max_seconds")
    settings.resolve_rollout(config.rollout, handle.native is not None)
    seeds = list(range(config.seed, config.seed + (config.seeds or 1)))
    path = Path(config.out) if config.out else default_path(config)
    if config.seeds is None:
        return train_runs(config, handle, [path], seeds, command, callback, console, where, begun)
    return train_group(config, handle, path, seeds, command, callback, console, where, begun)


def train_group(config, handle, path: Path, seeds, command, callback, console, where, begun) -> Result:
    """Native: all seeds in one program. Gymnasium: one after the other."""
    check_free(path)
    paths = [path / f"seed-{seed}" for seed in seeds]
    if handle.native is not None:
        return train_runs(config, handle, paths, seeds, command, callback, console, where, begun)
    results = []
    for sub, seed in zip(paths, seeds):
        one = config.replace(seed=seed, seeds=None)
        results.append(train_runs(one, handle, [sub], [seed], command, callback, console, where, time.monotonic()))
        if results[-1].exit_code:
            break
    return group_result(path, results, console)


def train_runs(config, handle, paths: list[Path], seeds, command, callback, console, where, begun) -> Result:
    files = []
    for path, seed in zip(paths, seeds):
        data = settings.to_dict(config.replace(seed=seed, seeds=None))
        files.append(RunFiles.create(path, data, command))
        files[-1].lock()
    try:
        session = Session(config, handle, files, seeds, console, callback)
        for run in session.runs:
            run.started = begun
        if config.init_from:
            session.init_from(Path(config.init_from))
        return conclude(session, where)
    except BaseException as e:
        for f in files:
            close_failed(f, e)
        raise
    finally:
        for f in files:
            f.close()


def conclude(session: Session, where: str) -> Result:
    """Run the loop, then evaluate, summarise, draw, mirror and say where everything is."""
    session.header(where)
    try:
        code = session.loop()
        if code == 0:
            for k in range(len(session.runs)):
                session.final_evaluation(k)
    finally:
        session.evaluate.close()
        session.engine.close()
    results = []
    for k, files in enumerate(session.files):
        summary = session.summary(k)
        if code == 0:
            files.summary(summary)
            files.status(state="finished", stop_reason=summary["stop_reason"], stop_detail=summary["stop_detail"])
        results.append(Result(files.path, summary, code))
    if code:
        return results[0] if len(results) == 1 else Result(session.group_path(), {}, code, results)
    if len(results) == 1:
        announce(session, results[0].summary)
    for k in range(len(results)):
        deliver(session, k, results[k].summary)
    if len(results) > 1:
        return group_result(session.group_path(), results, session.console)
    run = session.runs[0]
    assert run.stop is not None
    session.console.event(f"stopped: {run.stop.reason}")
    return results[0]


def announce(session: Session, summary: dict[str, Any]) -> None:
    console, c = session.console, session.config
    best, final = summary["eval_return_mean"], summary["final_return_mean"]
    text = f"evaluation over {summary['eval_episodes']} new episodes: best policy {best:.1f} ± {summary['eval_return_std']:.1f}"
    if summary["best_checkpoint"] not in (None, summary["env_steps"]):
        text += f" (from step {summary['best_checkpoint']:,}), final policy {final:.1f} ± {summary['final_return_std']:.1f}"
    if summary["solved"] is not None:
        text += f"; {'solved' if summary['solved'] else 'not solved'} (threshold {session.handle.return_threshold:g})"
    console.event(text)
    console.event(
        f"{summary['env_steps']:,} steps, {summary['updates']:,} updates, {summary['episodes']:,} episodes in "
        f"{summary['wall_seconds']:.1f} s ({summary['compile_seconds']:.1f} s compiling); "
        f"{summary['steps_per_second']:,.0f} steps/s"
    )
    del c


def deliver(session: Session, k: int, summary: dict[str, Any]) -> None:
    """Plots, report and MLflow: after the results are safe, and never a reason to fail."""
    from regimen.analysis.plots import try_plot_run
    from regimen.analysis.report import write_report
    from regimen.tracking.mlflow import registry_name

    files, console, path = session.files[k], session.console, session.files[k].path
    plots, warning = try_plot_run(path)
    if warning:
        files.event(warning)
    report = write_report(path)
    single = len(session.files) == 1
    mirror = session.mirrors[k]
    name = session.config.track.model_name or f"{session.handle.id}-{session.config.algorithm}"
    lines = [
        f"policy   {path / 'policy'}   (regimen evaluate {path})",
        f"report   {report}",
        f"curves   {path / 'plots' / 'overview.png'}" if plots else f"curves   not drawn: {warning}",
    ]
    if mirror is not None:
        artifacts = [path / "config.yaml", path / "summary.json", report, *plots]
        result = mirror.finish(
            summary | {"state": "finished"},
            artifacts,
            path / "policy",
            register=name,
            converged=summary["converged"],
            eval_return=summary["eval_return_mean"],
        )
        if result.run_id:
            lines.append(f"MLflow   {result.uri}   (mlflow ui --backend-store-uri {result.uri})")
        if result.model_version:
            alias = ", now @champion" if result.alias_moved else ""
            lines.append(f"model    models:/{registry_name(name)}/{result.model_version}{alias}")
    if single:
        for line in lines:
            console.event(line)


def group_result(path: Path, results: list[Result], console: Console) -> Result:
    """Mean, interquartile mean and 95% bootstrap interval over seeds."""
    from regimen.analysis.plots import plot_group
    from regimen.analysis.statistics import bootstrap_interval, iqm

    scores = np.array([r.summary["eval_return_mean"] for r in results if "eval_return_mean" in r.summary])
    code = max((r.exit_code for r in results), default=0)
    summary: dict[str, Any] = {
        "env": results[0].summary["env"],
        "algo": results[0].summary["algo"],
        "seeds": [r.summary["seed"] for r in results],
        "eval_return_means": scores.tolist(),
        "stop_reasons": [r.summary["stop_reason"] for r in results],
        "env_steps": [r.summary["env_steps"] for r in results],
    }
    if len(scores):
        low, high = bootstrap_interval(scores, iqm)
        summary |= {
            "eval_return_mean": float(scores.mean()),
            "eval_return_std": float(scores.std()),
            "eval_return_iqm": float(iqm(scores)),
            "eval_return_iqm_ci95": [float(low), float(high)],
            "solved": sum(bool(r.summary.get("solved")) for r in results),
        }
        write_json(path / "summary.json", summary)
        console.event(
            f"{len(scores)} seeds: evaluation return mean {scores.mean():.1f}, IQM {summary['eval_return_iqm']:.1f} "
            f"(95% interval {low:.1f} to {high:.1f}); {summary['solved']} solved"
        )
        try:
            plot_group([r.run_dir for r in results], path)
        except ConfigError as e:
            console.event(str(e))
    console.event(f"run directories {path}/seed-*")
    return Result(path, summary, code, results)


def resume(
    run: str | Path,
    checkpoint: str = "latest",
    total_steps: int | None = None,
    total_episodes: int | None = None,
    out: str | None = None,
    device_name: str | None = None,
    env_args: dict[str, Any] | None = None,
    command: str = "",
    console: Console | None = None,
    callback: Callback | None = None,
) -> Result:
    """Continue a run exactly where a checkpoint left it; with `out`, in a new directory."""
    console = console or Console(quiet=True)
    begun = time.monotonic()
    source = RunFiles.open(Path(run))
    config = settings.from_dict(read_config(source.path))
    if total_steps is not None or total_episodes is not None:
        config = config.replace(total_steps=total_steps, total_episodes=total_episodes)
    config = config.replace(device=device_name or config.device, env_args=config.env_args | (env_args or {}))
    where = device.configure(config.device, registry.is_native(config.env))
    handle = registry.resolve(config.env, config.env_args)
    files = source if out is None else copy_run(source, Path(out))
    files.lock()
    try:
        session = Session(config, handle, [files], [config.seed], console, callback)
        session.load(checkpoint)
        state = session.runs[0]
        state.started = begun
        spent = state.rules.budget.check(state.counters.steps, state.counters.episodes, 0.0)
        if spent is not None:
            raise ConfigError(f"{files.path}: {spent.reason}; give a larger --total-steps or --total-episodes")
        import os

        from regimen.tracking.files import write_atomic

        import yaml

        write_atomic(files.path / "config.yaml", yaml.safe_dump(settings.to_dict(config), sort_keys=False))
        files.status(state="running", stop_reason=None, stop_detail=None, pid=os.getpid())
        if command:
            files.event(f"command: {command}")
        return conclude(session, where)
    except BaseException as e:
        close_failed(files, e)
        raise
    finally:
        files.close()


def copy_run(source: RunFiles, target: Path) -> RunFiles:
    """A run directory to continue in, with RUN's history; RUN itself stays as it is."""
    check_free(target)
    leave = shutil.ignore_patterns(".lock", "mlflow.json", "report.html", "plots", "summary.json")
    try:
        if target.exists():
            target.rmdir()
        shutil.copytree(source.path, target, symlinks=True, ignore=leave)
    except OSError as e:
        raise StorageError(f"--out: cannot write to {target}: {e}") from e
    return RunFiles.open(target)


def check_free(path: Path) -> None:
    try:
        taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as e:
        raise StorageError(f"--out: cannot read {path}: {e}") from e
    if taken:
        raise StorageError(f"--out: {path} already exists and is not empty; choose another --out")


def close_failed(files: RunFiles, error: BaseException) -> None:
    """A run that ends with an error never says `running`."""
    try:
        if files.status().get("state") == "running":
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            files.status(state=state, stop_reason=state, error=str(error))
    except (StorageError, OSError):
        pass


def default_path(config: TrainConfig) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    name = "".join(c if c.isalnum() or c in "._" else "-" for c in config.env.rsplit("/", 1)[-1])
    seeds = f"s{config.seed}" if config.seeds is None else f"{config.seeds}seeds"
    base = Path("runs") / f"{name}-{config.algorithm}-{seeds}-{stamp}"
    path, n = base, 1
    while path.exists():
        n += 1
        path = base.with_name(f"{base.name}-{n}")
    return path


def evaluate(
    target: Any,
    policy: Any = None,
    episodes: int = 100,
    seed: int = 0,
    env_args: dict[str, Any] | None = None,
    checkpoint: str = "best",
    tracking_uri: str | None = None,
) -> Evaluation:
    """Episodes by a run's policy, a registered model's, or a named baseline on an environment."""
    learned, env, args = None, target, dict(env_args or {})
    if isinstance(target, str) and target.startswith("models:/"):
        from regimen.tracking.mlflow import resolve_model_uri

        learned = read_policy(resolve_model_uri(target, tracking_uri))
    elif is_run(target):
        path = Path(target)
        config = read_config(path) if (path / "config.yaml").exists() else None
        if policy is None:
            learned = load_policy(path, checkpoint)
        if config is not None:
            env, args = config["env"], dict(config["env_args"]) | args
    if isinstance(policy, Policy):
        learned, policy = policy, None
    if learned is not None and env is target and not isinstance(policy, Policy) and learned.meta and is_policy_source(target):
        env, args = learned.meta["env"], dict(learned.meta["env_args"]) | args
    native = registry.is_native(env) if isinstance(env, str) else True
    device.configure("cpu" if not native else "auto", native)
    handle = registry.resolve(env, args)
    if learned is None:
        if policy is None:
            names = ", ".join(["random", *handle.baselines])
            raise ConfigError(f"{handle.id} is an environment: name a policy with --policy ({names}) or give a run directory")
        return evaluate_baseline(handle, policy, episodes, seed)
    from regimen import spaces

    theirs = {
        "observation space": spaces.describe(learned.observation_space),
        "action space": spaces.describe(learned.action_space),
    }
    mine = {
        "observation space": spaces.describe(handle.observation_space),
        "action space": spaces.describe(handle.action_space),
    }
    compare_identity(theirs, mine, f"the policy on {handle.id}")
    evaluator = make_evaluator(handle, learned.algo)
    try:
        result = evaluator(learned.params, seed, episodes, policy=learned.meta.get("algorithm", "policy"))
    finally:
        evaluator.close()
    result.checkpoint = f"{checkpoint}, step {learned.meta['env_steps']}" if "env_steps" in learned.meta else None
    return result


def is_run(target: Any) -> bool:
    """A path that exists and holds a run or a policy."""
    if not isinstance(target, (str, Path)):
        return False
    path = Path(target)
    if path.is_dir() and ((path / "config.yaml").exists() or (path / "config.json").exists()):
        return True
    if path.is_dir() and any(path.glob("seed-*/config.yaml")):
        raise ConfigError(f"{path} holds several seeds; name one of them, for example {path}/seed-0")
    if path.exists() and not str(target).endswith(".py"):
        raise StorageError(f"{path} is not a run directory: it has no config.yaml")
    return False


def is_policy_source(target: Any) -> bool:
    return isinstance(target, Path) or (isinstance(target, str) and (target.startswith("models:/") or is_run(target)))


class Trainer:
    """Training as an object, for Python: `Trainer(env="cartpole", algo=PPO(lr=1e-3), total_steps=50_000).train()`.

    `env` is an id, a Gymnasium or native environment (instance, class or factory); `algo` a name or an algorithm object;
    `settings` any setting of `regimen train`, by dotted or unambiguous name.
    """

    def __init__(self, env: Any = "cartpole", algo: Any = "ppo", **overrides: Any):
        if not isinstance(algo, str):
            name = next((n for n, entry in ALGORITHMS.items() if entry.load() is type(algo)), None)
            if name is None:
                raise ConfigError(f"algo: {type(algo).__name__} is not registered; see regimen.register_algorithm")
            given = {"algo": dataclasses.asdict(algo.config), "network": dataclasses.asdict(algo.network)}
            overrides = given | overrides
            algo = name
        self.handle = None
        if not isinstance(env, str):
            self.handle = registry.resolve(env, overrides.pop("env_args", {}))
        identifier = env if isinstance(env, str) else self.handle.id  # type: ignore[union-attr]
        quiet = overrides.pop("quiet", True)
        self.console = Console(quiet=quiet)
        self.config = settings.build_config(identifier, algo=algo, overrides=overrides)
        self.result: Result | None = None
        self._policy: Policy | None = None

    def train(self, callback: Callback | None = None) -> Result:
        """Train to the end; `callback` is called once per update and may return True to stop."""
        command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
        self.result = train(self.config, command, callback, self.console, self.handle)
        self._policy = None
        return self.result

    @property
    def policy(self) -> Policy:
        if self._policy is None:
            if self.result is None:
                raise ConfigError("there is no policy yet: call train() or load(path) first")
            self._policy = self.result.policy
        return self._policy

    def evaluate(self, num_episodes: int = 10, seed: int = 0) -> dict[str, float]:
        """Greedy episodes of the best policy."""
        policy = self.policy
        handle = self.handle or registry.resolve(self.config.env, self.config.env_args)
        evaluator = make_evaluator(handle, policy.algo)
        try:
            e = evaluator(policy.params, seed, num_episodes)
        finally:
            evaluator.close()
        return {
            "avg_reward": float(e.returns.mean()),
            "std_reward": float(e.returns.std()),
            "min_reward": float(e.returns.min()),
            "max_reward": float(e.returns.max()),
            "avg_length": float(e.lengths.mean()),
        }

    def save(self, path: str | Path) -> Path:
        """Write the policy folder (safetensors and JSON)."""
        from regimen.training.policy import save_policy

        policy, path = self.policy, Path(path)
        meta = {k: policy.meta[k] for k in ("env", "env_args", "seed", "env_steps") if k in policy.meta}
        save_policy(path, policy.meta["algorithm"], policy.algo, policy.params, meta)
        return path

    def load(self, path: str | Path) -> Trainer:
        """Use the policy of a run directory or of a saved policy folder."""
        self._policy = load_policy(path)
        return self
