"""The loop, written once: `advance -> log -> evaluate -> checkpoint -> stop`.

`Session` runs it for K seeds on one engine; each seed is a `Run` with files of its own. What differs between native and
Gymnasium environments is in the engine.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from regimen import spaces
from regimen.config import Count, TrainConfig
from regimen.errors import ConfigError, DivergedError, StorageError, nearest
from regimen.schedule import Episodes, Steps
from regimen.settings import describe, describe_budget, resolve_rollout, to_dict
from regimen.sources.host import HostSource, Interrupted
from regimen.sources.scan import ScanSource
from regimen.tracking.console import Console
from regimen.tracking.files import RunFiles
from regimen.tracking.mlflow import Mirror
from regimen.training import device, trees
from regimen.training.checkpoint import Checkpoints
from regimen.training.engine import CHUNK, Engine, HostEngine, Limits, NativeEngine, Progress
from regimen.training.evaluate import Evaluation, make_evaluator
from regimen.training.policy import make_algorithm, save_policy
from regimen.training.run import Run
from regimen.training.signals import Signals
from regimen.training.stopping import Stop
from regimen.types import PyTree, Spec

Callback = Callable[[dict[str, Any]], Any]


class Session:
    """One program and its runs, from the first update to the summary."""

    def __init__(
        self,
        config: TrainConfig,
        handle: Any,
        files: list[RunFiles],
        seeds: list[int],
        console: Console,
        callback: Callback | None = None,
    ):
        self.config, self.handle, self.files, self.seeds = config, handle, files, seeds
        self.console, self.callback = console, callback
        self.signals = Signals(self.busy, self.last_words)
        self.runs = [Run(config, handle, seed) for seed in seeds]
        self.checkpoints = [
            Checkpoints(f.path / "checkpoints", config.checkpoint.keep, config.checkpoint.keep_best) for f in files
        ]
        self.kind, self.n, self.num_envs = resolve_rollout(config.rollout, handle.native is not None)
        self.engine = self.make_engine()
        self.algo = self.engine.algo
        self.evaluate = make_evaluator(handle, self.algo, lambda: bool(self.signals.requested))
        self.best_params: list[PyTree] = [None] * len(seeds)
        self.mirrors: list[Mirror | None] = [None] * len(seeds)
        self.evaluations: list[dict[str, Evaluation]] = [{} for _ in seeds]

    def make_engine(self) -> Engine:
        config, handle = self.config, self.handle
        spec = Spec(
            handle.observation_space,
            handle.action_space,
            handle.reward_components,
            num_envs=self.num_envs,
            max_episode_steps=handle.max_episode_steps,
            env=handle.native,
        )
        algo = make_algorithm(config.algorithm, config.algo, config.network).bind(spec)
        schedule = Steps(self.n) if self.kind == "steps" else Episodes(self.n)
        if handle.native is None:
            self.memory = self.host_memory(spec)
            device.require_memory(self.memory)
            source = HostSource(
                handle.make_host,
                schedule,
                self.num_envs,
                handle.reward_components,
                handle.max_episode_steps,
                lambda: bool(self.signals.requested),
            )
            return HostEngine(algo, source, self.seeds[0])
        source = ScanSource(schedule, self.num_envs)
        self.memory = native_memory(handle.native, source) * len(self.seeds)
        device.require_memory(self.memory)
        return NativeEngine(handle.native, algo, source, self.seeds)

    def host_memory(self, spec: Spec) -> int:
        rows = self.n if self.kind == "steps" else self.n * (self.handle.max_episode_steps or 1000)
        per_row = 2 * device.tree_bytes(spaces.zeros(spec.observation_space)) + 4 * spaces.flat_size(spec.observation_space)
        return 2 * rows * (per_row + 64)

    def busy(self) -> bool:
        return self.engine.compiling or self.evaluate.compiling

    def last_words(self, number: int) -> None:
        """The process is about to be ended from the signal thread: the last checkpoint stays as it is."""
        for files in self.files:
            files.status(state="interrupted", stop_reason=signal.Signals(number).name)
        self.console.stop()

    def header(self, where: str) -> None:
        c, h = self.config, self.handle
        kind = "native" if h.native is not None else "Gymnasium"
        seeds = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds from {self.seeds[0]}"
        lines = [
            f"{h.id} ({kind}) with {c.algorithm}, {seeds}, {self.num_envs} envs: {describe(c, self.kind, self.n, self.num_envs, h.max_episode_steps)}",
            f"budget {describe_budget(c)}; device {where}; about {device.size(self.memory)} for batches, "
            f"{device.size(1e6 * (self.process_mb() or 0))} in this process",
            f"run directory {self.group_path()}",
        ]
        self.console.header(lines)
        for files in self.files:
            for line in lines:
                files.event(line)

    @staticmethod
    def process_mb() -> float | None:
        from regimen.tracking.console import memory_mb

        return memory_mb()

    def group_path(self) -> Path:
        return self.files[0].path if len(self.files) == 1 else self.files[0].path.parent

    def start_mirrors(self) -> None:
        c = self.config
        if not c.track.enabled:
            return
        for k, (files, seed) in enumerate(zip(self.files, self.seeds)):
            params = to_dict(c) | {"seed": seed}

            def warn(text: str, files: RunFiles = files) -> None:
                files.event(text)
                if files is self.files[0]:
                    self.console.event(text)

            name = files.path.name if len(self.files) == 1 else f"{files.path.parent.name}/{files.path.name}"
            experiment = c.track.experiment or self.handle.id
            self.mirrors[k] = Mirror(c.track.uri, experiment, name, files.path, params, warn=warn)

    def loop(self) -> int:
        """Train until every run has stopped; the exit code. Files are complete whatever happens."""
        total, unit = self.budget()
        with self.signals:
            self.start_mirrors()
            self.console.start(total, unit)
            try:
                while any(run.stop is None for run in self.runs) and not self.signals.requested:
                    self.turn()
            except Interrupted:
                pass
            except KeyboardInterrupt:
                self.signals.requested = signal.SIGINT
            except BaseException as e:
                self.fail(e)
                raise
            if self.signals.requested:
                return self.interrupted()
        self.console.stop()
        return 0

    def budget(self) -> tuple[int | None, str]:
        c = self.config
        return (c.total_steps, "steps") if c.total_steps is not None else (c.total_episodes, "episodes")

    def turn(self) -> None:
        """One advance of every run that is still going, and everything that is due after it."""
        most = 1 if self.callback is not None else CHUNK
        idle = Limits(0, 0, 0)
        limits = [run.limits(most) if run.stop is None else idle for run in self.runs]
        for k, progress in enumerate(self.engine.advance(limits)):
            if self.runs[k].stop is None:
                self.absorb(k, progress)

    def absorb(self, k: int, progress: Progress) -> None:
        run, files = self.runs[k], self.files[k]
        rows, episodes, due = run.record(progress)
        if len(episodes["return"]) and self.config.log.episodes:
            files.episodes(episodes)
        extra: dict[str, Any] = {}
        if "eval" in due and progress.updates:
            extra = self.run_evaluation(k)
        if due & {"log", "eval"}:
            rows.append(run.close_row(extra))
        self.log(k, rows)
        if extra:
            run.rules.evaluation(rows[-1])
            self.note_unknown_metric(k, rows[-1])
        if progress.diverged:
            self.diverged(k, progress)
        c = run.counters
        stop = run.rules.check(c.steps, c.episodes, run.seconds)
        if self.callback is not None and progress.updates and self.call_back(k, progress, rows, extra):
            stop = Stop("callback", "the callback asked to stop")
        new_best = extra and (run.best is None or extra["eval/return_mean"] > run.best)
        if new_best:
            run.best, run.best_step = extra["eval/return_mean"], c.steps
            self.best_params[k] = jax.tree.map(np.asarray, self.engine.actor_params(k))
        if "checkpoint" in due or new_best or stop is not None:
            self.save(k, best=run.best if new_best else None, final=stop is not None)
        if stop is not None:
            run.stop = stop
            files.event(stop.reason)
            if len(self.runs) > 1:
                self.console.event(f"seed {run.seed}: {stop.reason}")

    def log(self, k: int, rows: list[dict[str, Any]]) -> None:
        self.files[k].log_many(rows)
        mirror = self.mirrors[k]
        for row in rows:
            if mirror is not None:
                mirror.log(row["env_steps"], row)
            if k == 0 or len(self.runs) == 1:
                self.console.update(row)

    def run_evaluation(self, k: int) -> dict[str, float]:
        run = self.runs[k]
        seed = evaluation_seed(run.seed, run.counters.updates)
        point = self.evaluate(self.engine.actor_params(k), seed, self.config.eval.episodes).point()
        best = point["eval/return_mean"] if run.best is None else max(run.best, point["eval/return_mean"])
        threshold = self.handle.return_threshold
        if run.solved_at is None and threshold is not None and point["eval/return_mean"] >= threshold:
            run.solved_at = run.counters.steps
            name = f"seed {run.seed}: " if len(self.runs) > 1 else ""
            text = (
                f"{name}Solved after {run.counters.steps:,} steps, {run.seconds:.1f} s: greedy mean "
                f"{point['eval/return_mean']:.1f} over {self.config.eval.episodes} episodes (threshold {threshold:g})"
            )
            self.files[k].event(text)
            self.console.event(text)
        return point | {"eval/best_return": best}

    def note_unknown_metric(self, k: int, row: dict[str, Any]) -> None:
        """A stopping rule on a metric that does not exist would silently never fire."""
        rule = self.runs[k].rules.metric
        if rule is not None and rule.metric not in row and not rule.warned:
            rule.warned = True
            text = f"stop.metric: '{rule.metric}' is not among the logged metrics{nearest(rule.metric, row)}"
            self.files[k].event(text)
            self.console.event(text)

    def call_back(self, k: int, progress: Progress, rows: list[dict[str, Any]], extra: dict[str, Any]) -> bool:
        assert self.callback is not None
        run = self.runs[k]
        row = rows[-1] if rows else {}
        info = {
            "seed": run.seed,
            "episode": run.counters.episodes,
            "update": run.counters.updates,
            "env_steps": run.counters.steps,
            "step_metrics": {name: float(v[-1]) for name, v in progress.metrics.items()}
            | {name: v for name, v in row.items() if name.startswith("rollout/")},
            "eval_metrics": {name.removeprefix("eval/"): v for name, v in extra.items()} or None,
        }
        return self.callback(info) is True

    def save(self, k: int, best: float | None = None, final: bool = False) -> None:
        run, files = self.runs[k], self.files[k]
        params = self.engine.actor_params(k)
        meta = {"wall_seconds": run.seconds, "identity": self.identity(), "run": run.state()}

        def write_policy(path: Path) -> None:
            info = {"env": self.handle.id, "env_args": self.config.env_args, "seed": run.seed, "env_steps": run.counters.steps}
            save_policy(path, self.config.algorithm, self.algo, params, info)

        self.checkpoints[k].save(
            run.counters.steps, self.engine.snapshot(k), meta, write_policy, best=best, final=final
        )
        if best is not None or run.best is None:  # the best by evaluation, or the newest while there is none
            write_policy(files.path / "policy")

    def identity(self) -> dict[str, str]:
        """What a state belongs to; a resume compares it."""
        return {
            "algorithm": self.config.algorithm,
            "observation space": spaces.describe(self.handle.observation_space),
            "action space": spaces.describe(self.handle.action_space),
            "network": f"{self.config.network.name} {list(self.config.network.hidden)}",
            "num_envs": str(self.num_envs),
        }

    def load(self, which: str) -> None:
        """Continue from a checkpoint: learner, counters, rules; files are rewound to it."""
        run, files, store = self.runs[0], self.files[0], self.checkpoints[0]

        def warn(text: str) -> None:
            files.event(text)
            self.console.event(text)

        arrays, meta, path = store.load(which, warn)
        compare_identity(meta["identity"], self.identity(), f"the checkpoint {path}")
        self.engine.restore(0, arrays, f"the checkpoint {path}")
        run.restore(meta["run"], meta["wall_seconds"])
        store.forget_after(run.counters.steps)
        files.rewind(run.counters.updates)
        if run.best is not None and (files.path / "policy" / "config.json").exists():
            from regimen.training.policy import read_policy

            self.best_params[0] = read_policy(files.path / "policy").params
        files.event(f"resumed from the checkpoint at step {run.counters.steps:,}")

    def init_from(self, source: Path) -> None:
        """Start from another run's networks and normaliser; optimisers and counters are fresh."""
        arrays, meta, path = Checkpoints(source / "checkpoints").load("best", self.console.event)
        mine = self.identity() | {"num_envs": ""}
        compare_identity(meta["identity"] | {"num_envs": ""}, mine, f"init_from: {path}")
        assert isinstance(self.engine, (NativeEngine, HostEngine))
        engine = self.engine
        if len(self.seeds) > 1:
            raise ConfigError("init_from: start one seed at a time; --seeds cannot be combined with --init-from")
        state = engine.state
        models = {}
        for name, model in state.models.items():
            chosen = {k: v for k, v in arrays.items() if k.startswith(f"state/models/{name}/params/")}
            short = {k.removeprefix(f"state/models/{name}/params/"): v for k, v in chosen.items()}
            models[name] = model.replace(params=trees.unflatten(model.params, short, f"init_from: {path}"))
        norm = {k.removeprefix("state/norm/"): v for k, v in arrays.items() if k.startswith("state/norm/")}
        norm = trees.unflatten(state.norm, norm, f"init_from: {path}")
        engine.state = jax.tree.map(jax.numpy.copy, state.replace(models=models, norm=norm))
        self.files[0].event(f"starts from the policy of {source} at step {path.name}")

    def diverged(self, k: int, progress: Progress) -> None:
        """The update that was not finite has not been applied: save the state before it and say what was seen."""
        bad = {name: float(v[-1]) for name, v in progress.metrics.items() if not np.isfinite(v[-1])}
        bad.pop("explained_variance", None)
        self.save(k)
        c = self.runs[k].counters
        what = ", ".join(f"{name} {value}" for name, value in bad.items()) or "the parameters are not finite"
        raise DivergedError(
            f"training diverged at update {c.updates + 1} (step {c.steps:,}): {what}; the last good state is saved in "
            f"{self.checkpoints[k].path / str(c.steps)}. Try a lower algo.lr or algo.normalize_reward"
        )

    def fail(self, error: BaseException) -> None:
        self.console.stop()
        state = "diverged" if isinstance(error, DivergedError) else "failed"
        for k, files in enumerate(self.files):
            try:
                files.event(f"{state}: {error}")
                files.status(state=state, stop_reason=state, error=str(error))
                if self.mirrors[k] is not None:
                    self.mirrors[k].finish({"stop_reason": state}, [], timeout=10)  # type: ignore[union-attr]
            except StorageError:
                pass  # the disk is what failed

    def interrupted(self) -> int:
        number = int(self.signals.requested)
        name = signal.Signals(number).name
        self.console.stop()
        for k, files in enumerate(self.files):
            self.save(k)
            files.status(state="interrupted", stop_reason=name)
            files.event(f"interrupted by {name}; state saved at step {self.runs[k].counters.steps:,}")
            files.summary(self.summary(k) | {"stop_reason": name})
        where = self.group_path()
        self.console.event(f"interrupted by {name}; state saved. Continue with: regimen resume {where}")
        return 128 + number

    def final_evaluation(self, k: int) -> None:
        """The best and the final policy, on episodes neither was selected on."""
        run = self.runs[k]
        seed = evaluation_seed(run.seed, 2**20)
        n = self.config.eval.episodes
        final = self.evaluate(self.engine.actor_params(k), seed, n)
        best = final
        if self.best_params[k] is not None and run.best_step != run.counters.steps:
            best = self.evaluate(self.best_params[k], seed, n)
        self.evaluations[k] = {"best": best, "final": final}

    def summary(self, k: int) -> dict[str, Any]:
        run, c = self.runs[k], self.runs[k].counters
        compiling = self.engine.compile_seconds + self.evaluate.compile_seconds
        busy = max(run.seconds - compiling, 1e-9)
        out: dict[str, Any] = {
            "env": self.handle.id,
            "env_args": self.config.env_args,
            "algo": self.config.algorithm,
            "seed": run.seed,
            "env_steps": c.steps,
            "updates": c.updates,
            "episodes": c.episodes,
            "wall_seconds": round(run.seconds, 3),
            "compile_seconds": round(compiling, 3),
            "steps_per_second": round(c.steps / busy, 1),
            "best_checkpoint": run.best_step,
            "stop_reason": run.stop.code if run.stop else None,
            "stop_detail": run.stop.reason if run.stop else None,
            "converged": bool(run.stop and run.stop.converged),
            "solved_at": run.solved_at,
        }
        results = self.evaluations[k]
        if results:
            best, final = results["best"], results["final"]
            out |= {
                "eval_return_mean": float(best.returns.mean()),
                "eval_return_std": float(best.returns.std()),
                "eval_episodes": len(best.returns),
                "final_return_mean": float(final.returns.mean()),
                "final_return_std": float(final.returns.std()),
            }
            if best.success is not None:
                out["success_rate"] = float(best.success.mean())
            threshold = self.handle.return_threshold
            out["solved"] = None if threshold is None else bool(best.returns.mean() >= threshold)
        return out


def evaluation_seed(seed: int, index: int) -> int:
    """Starts that training never uses and that differ from one evaluation to the next."""
    return (1_000_003 * (seed + 1) + index) % 2**31


def compare_identity(theirs: dict[str, str], mine: dict[str, str], what: str) -> None:
    for name, value in mine.items():
        if theirs.get(name) != value:
            raise StorageError(f"{what} does not fit: its {name} is {theirs.get(name)}, this run's is {value}")


def native_memory(env: Any, source: ScanSource) -> int:
    """Bytes of one learner's batch, its rows to learn from, and the buffers of a chunk; nothing is computed."""
    obs = spaces.zeros(env.observation_space)
    rows = source.rows(env) * source.num_envs
    per_row = 2 * device.tree_bytes(obs) + 4 * (spaces.flat_size(env.observation_space) + 12) + 16
    return int(rows * per_row * 2.5) + 4 * source.max_episodes(env) * 32


def resolve_horizon(config: TrainConfig) -> TrainConfig:
    """Give the schedules their length once; it is saved with the run and a resume does not touch it."""
    if getattr(config.algo, "horizon", None) is not None or not hasattr(config.algo, "horizon"):
        return config
    import dataclasses

    if config.total_steps is not None:
        horizon = Count(config.total_steps, "steps")
    elif config.total_episodes is not None:
        horizon = Count(config.total_episodes, "episodes")
    else:
        return config
    return config.replace(algo=dataclasses.replace(config.algo, horizon=str(horizon)))
