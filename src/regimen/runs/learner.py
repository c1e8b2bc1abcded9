"""One seed of a session: its bookkeeping, its files, its checkpoints, its mirror, and the policy to keep."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from regimen import spaces, trees
from regimen.config.layers import to_dict
from regimen.config.schema import NetworkConfig, TrainConfig
from regimen.engines import curriculum
from regimen.engines.base import Engine, Progress
from regimen.envs.metric import Metric
from regimen.envs.registry import EnvHandle
from regimen.errors import StorageError
from regimen.files.checkpoint import SEALED, Checkpoints
from regimen.files.mlflow import Mirror
from regimen.files.rows import SCHEDULE
from regimen.files.run_dir import ENDED, RunFiles, read_status
from regimen.files.sealed import reading
from regimen.files.storage import Json, read_json, write_atomic
from regimen.files.tensorboard import TensorBoard
from regimen.files.trackers import Follower, TrackedRun, Tracker
from regimen.files.weights_and_biases import WeightsAndBiases
from regimen.policies.evaluate import Evaluation, interval
from regimen.policies.export import described
from regimen.policies.policy import read_files, read_policy, require_match, save_policy
from regimen.runs.ledger import BUDGETS, Ledger, Row
from regimen.runs.stopping import Stop
from regimen.statistics import mean_interval, sample_interval
from regimen.types import PyTree, State

FOLLOWERS: dict[str, type[Follower]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


class Learner:
    """Learner k of an engine, and everything that is kept of it."""

    def __init__(self, config: TrainConfig, handle: EnvHandle, engine: Engine, k: int, seed: int, files: RunFiles):
        self.config, self.handle, self.engine, self.k, self.seed, self.files = config, handle, engine, k, seed, files
        self.ledger = Ledger(config, handle, seed)
        c = config.checkpoint
        self.checkpoints = Checkpoints(files.path / "checkpoints", c.keep, c.keep_best)
        self.best_params: PyTree = None  # on the host
        self.lesson: dict[str, float] | None = None  # values of the curriculum in the last update
        self.stage: int | None = None  # of an algorithm that learns in stages
        self.mirror: Mirror | None = None  # in MLflow
        self.trackers: dict[str, Tracker] = {}  # all, MLflow among them
        self.evaluations: dict[str, Evaluation] = {}  # at the end: of the best and of the final policy

    @property
    def path(self) -> Path:
        return self.files.path

    @property
    def stop(self) -> Stop | None:
        return self.ledger.stop

    @property
    def diverged(self) -> bool:
        return self.stop is not None and self.stop.code == "diverged"

    def actor_params(self) -> PyTree:
        return self.engine.actor_params(self.k)

    def identity(self) -> dict[str, str]:
        """What a state belongs to; a resume compares it."""
        texts = curriculum.expand(self.config.curriculum, self.handle)
        course = "; ".join(f"{field} {text}" for field, text in texts.items())
        num_envs = str(self.engine.regimen.num_envs)
        return identity(self.config, self.handle) | {"num_envs": num_envs, "curriculum": course or "none"}

    def start_trackers(self, name: str, warn: Callable[[str], None], delay: float = 5.0) -> None:
        """Begin to mirror the run; in MLflow after so many seconds."""
        track = self.config.track
        params = to_dict(self.config) | {"seed": self.seed}
        experiment = track.experiment or self.handle.id
        if "mlflow" in track.names:
            self.mirror = Mirror(track.uri, experiment, name, self.path, params, delay, warn, track.all_rows)
            self.trackers["MLflow"] = self.mirror
        run = TrackedRun(self.path, name, experiment, params, track.all_rows, track.online)
        for tracker in (FOLLOWERS[one] for one in track.names if one in FOLLOWERS):
            self.trackers[tracker.label] = tracker(run, warn)
        if self.trackers and not track.all_rows:
            self.files.event(SCHEDULE)

    def moves(self, progress: Progress) -> list[str]:
        """What the curriculum changed in an advance that is not recorded yet, and stages that began, in words."""
        lines: list[str] = []
        if self.engine.curriculum is not None:
            lines, self.lesson = self.engine.curriculum.moves(self.lesson, progress, self.ledger.counters.steps)
        return [*lines, *self.stages(progress)]

    def stages(self, progress: Progress) -> list[str]:
        """Stages of the algorithm that an advance came to."""
        names, lines = self.engine.algo.stages, []
        numbers = progress.metrics.get("stage", ()) if names else ()
        for number, steps in zip(numbers, self.ledger.counters.steps + np.cumsum(progress.steps)):
            if int(number) != self.stage:
                self.stage = int(number)
                lines.append(f"stage {self.stage} ({names[self.stage]}) at step {int(steps):,}")
        return lines

    def note_best(self, point: Row) -> bool:
        """Whether an evaluation is a new best, whose policy is then kept."""
        score = point.get("eval/return_mean")
        if score is None or (self.ledger.best is not None and score <= self.ledger.best):
            return False
        self.ledger.best, self.ledger.best_step = score, self.ledger.counters.steps
        self.best_params = jax.device_get(self.actor_params())
        return True

    def save(self) -> None:
        """A checkpoint of this moment. `policy/` is the best by evaluation, or the newest while there is none."""
        ledger, params = self.ledger, self.actor_params()
        steps = ledger.counters.steps
        new_best = ledger.best_step == steps
        meta = {"wall_seconds": ledger.seconds, "identity": self.identity(), "run": ledger.state()}
        meta["tallies"] = self.files.tallies()
        meta |= {} if self.lesson is None else {"lesson": self.lesson}
        origin = {"env": self.handle.id, "env_args": self.config.env_args, "seed": self.seed, "env_steps": steps}

        def write_policy(path: Path, **more: Any) -> None:
            save_policy(path, self.config.algorithm, self.engine.algo_of(self.k), params, origin, **more)

        best = ledger.best if new_best else None
        snapshot, final = self.engine.snapshot(self.k), ledger.stop is not None
        self.checkpoints.save(steps, snapshot, meta, write_policy, best=best, final=final)
        if new_best or ledger.best is None:
            write_policy(self.path / "policy", beside=self.described)

    def described(self, meta: Json, summary: Json | None = None) -> dict[str, str]:
        """What stands beside the policy: what it is, where it comes from, and at the end how good it is."""
        return described(self.path, meta, summary or self.summary(0.0), self.ledger.best)

    def describe_policy(self, summary: Json) -> None:
        """Let the files beside the policy say what came of the run."""
        folder = self.path / "policy"
        if (folder / "config.json").is_file():
            for name, text in self.described(read_json(folder / "config.json"), summary).items():
                write_atomic(folder / name, text)

    def begin_anew(self) -> str:
        """Say that the run starts from the beginning. One that has had a checkpoint, which is gone, does not: its rows
        and its policy would be gone, too."""
        if (self.path / "policy").exists() or read_status(self.path).get("state") in ENDED:
            raise StorageError(
                f"{self.path} has no checkpoint any more: checkpoints/ is missing or empty; put it back as it was, or "
                "train anew with another --out"
            )
        return "there is no checkpoint yet: starting from the beginning"

    def load(self, which: str, warn: Callable[[str], None]) -> None:
        """Continue from a checkpoint. Nothing is written: see `rewind`."""
        arrays, meta, path = self.checkpoints.load(which, warn)
        status, what = self.path / "status.json", f"the checkpoint {path}"
        if meta["schema"] >= SEALED and not status.is_file():
            raise StorageError(f"{status} is missing, which says how the run was trained; put it back as it was")
        with reading(what):
            identity = {"curriculum": "none"} | meta["identity"]  # older ones do not say
            require_match(identity, self.identity(), what)
            self.files.require_tallies(meta.get("tallies", {}))
            self.engine.restore(self.k, arrays, what)
            finished = read_status(self.path).get("state") in ("finished", "diverged")
            self.ledger.restore(meta["run"], meta["wall_seconds"], finished)
            self.lesson = meta.get("lesson")

    def rewind(self) -> None:
        """Make the files those of the moment that was loaded: what came later is about to be written anew."""
        steps = self.ledger.counters.steps
        self.checkpoints.forget_after(steps)
        self.files.rewind(self.ledger.counters.updates)
        self.restore_policy(steps)
        self.files.event(f"resumed from step {steps:,}")

    def restore_policy(self, steps: int) -> None:
        """Put `policy/` back as it was: the best by evaluation, or that of this moment where the best is no longer
        kept."""
        folder, step = self.path / "policy", self.ledger.best_step if self.ledger.best is not None else steps
        if policy_step(folder) != step:
            copies = [self.checkpoints.path / str(s) / "policy" for s in (step, steps)]
            copy = next((path for path in copies if path.is_dir()), None)
            if copy is None:  # nothing was saved yet
                return
            read_policy(copy).save(folder)
        if self.ledger.best is not None:
            self.best_params = jax.device_get(read_policy(folder).params)

    def ended_before(self) -> list[str]:
        """What someone should know who resumes a run that a rule had ended, and perhaps wanted its pictures alone."""
        status = read_status(self.path)
        if status.get("state") != "finished" or status.get("stop_reason") in BUDGETS:
            return []
        why = status.get("stop_detail") or status.get("stop_reason")
        return [
            f"the run had ended ({why}); it trains on within its budget, and the rule begins anew. "
            f"`regimen report {self.path}` makes its pictures and its report alone"
        ]

    def divergence(self, progress: Progress) -> Stop:
        """What was seen in the update that was not finite, and where the state before it is: it was not applied."""
        bad = {name: v[-1] for name, v in progress.metrics.items() if not np.isfinite(v[-1])}
        bad.pop("explained_variance", None)  # has no value on a constant target
        first = sorted(bad, key=lambda name: name != "loss")[:3]
        what = ", ".join(f"{name} {bad[name]}" for name in first) or "the parameters are not finite"
        c = self.ledger.counters
        return Stop(
            "diverged",
            f"training diverged at update {c.updates + 1} (step {c.steps:,}): {what}; the last good state is saved in "
            f"{self.checkpoints.path / str(c.steps)}. Try a lower algo.lr, or `regimen check-env {self.handle.id}`",
        )

    def summary(self, compile_seconds: float) -> Json:
        ledger, c = self.ledger, self.ledger.counters
        out: Json = {
            "env": self.handle.id,
            "env_args": self.config.env_args,
            "algo": self.config.algorithm,
            "seed": self.seed,
            "agents": len(self.handle.agents) or 1,
            "env_steps": c.steps,
            "agent_steps": c.agent_steps,
            "updates": c.updates,
            "episodes": c.episodes,
            "wall_seconds": round(ledger.seconds, 3),
            "compile_seconds": round(compile_seconds, 3),
            "steps_per_second": round(c.steps / max(ledger.seconds - compile_seconds, 1e-9), 1),
            "best_checkpoint": ledger.best_step,
            "stop_reason": ledger.stop.code if ledger.stop else None,
            "stop_detail": ledger.stop.reason if ledger.stop else None,
            "converged": bool(ledger.stop and ledger.stop.converged),
            "solved_at": ledger.solved_at,
            "return_threshold": self.handle.return_threshold,
        }
        out |= {**self.engine.summary(), **ledger.rules.columns()}
        if not self.evaluations:
            return out
        best, final = self.evaluations["best"], self.evaluations["final"]
        threshold, mean = self.handle.return_threshold, float(best.returns.mean())
        out |= {
            "eval_return_mean": mean,
            "eval_return_std": float(best.returns.std()),
            "eval_episodes": len(best.returns),
            "final_return_mean": float(final.returns.mean()),
            "final_return_std": float(final.returns.std()),
            "solved": None if threshold is None else mean >= threshold,
        } | final_metrics(best, self.handle.metrics)
        return out if best.success is None else out | {"success_rate": float(best.success.mean())}


def policy_step(folder: Path) -> int | None:
    """The env step of a policy; None where it is damaged or not there."""
    try:
        return read_files(folder)[0].get("env_steps")
    except StorageError:
        return None


def final_metrics(played: Evaluation, metrics: Mapping[str, Metric]) -> Json:
    """Everything an evaluation measured, named as its `eval/` metrics: means over its episodes, and their intervals."""
    samples = {"return_mean": played.returns, "length_mean": played.lengths}
    if len(played.components) > 1:
        samples |= {f"reward/{name}": x for name, x in played.components.items()}
    shares = {} if played.success is None else {"success_rate": played.success}
    for name, x in played.metrics.items():
        if name != "success":
            (samples if metrics[name].kind == "count" else shares)[name] = x  # a count is no rate, though it be 0 or 1
    means = {name: float(np.mean(x)) for name, x in (samples | shares).items()}
    between = {name: mean_interval(x) for name, x in samples.items()}
    between |= {name: sample_interval(x) for name, x in shares.items()}
    return {"eval_metrics": means, "eval_metrics_ci95": {name: interval(x) for name, x in between.items()}}


def identity(config: TrainConfig, handle: EnvHandle) -> dict[str, str]:
    """What the networks of a state belong to."""
    return {
        "algorithm": config.algorithm,
        "observation space": spaces.describe(handle.observation_space),
        "action space": spaces.describe(handle.action_space),
        "network": network_words(config.network),
    } | ({} if config.policy_map == "shared" else {"policies": config.policy_map})


def network_words(net: NetworkConfig) -> str:
    """The settings of a network that its weights belong to; those of later versions only where they are set."""
    usual = NetworkConfig()
    text = f"{net.name} {list(net.hidden)} {net.activation}"
    if net.memory != usual.memory:
        text += f" {net.memory} {net.memory_size}"
    if net.encoder not in ("auto", "mlp"):
        text += f" {net.encoder}"
    for name in ("layer_norm", "residual", "encoder_size", "attention", "channels", "embedding"):
        if (value := getattr(net, name)) != getattr(usual, name):
            text += f" {name} {value}"
    return text


def initial_from(
    source: Path, config: TrainConfig, handle: EnvHandle, warn: Callable[[str], None]
) -> Callable[[State], State]:
    """Replaces the networks and normalisers of a fresh state by those of another run's best checkpoint."""
    arrays, meta, path = Checkpoints(RunFiles.open(source).path / "checkpoints").load("best", warn)
    what = f"init_from: {path}"
    require_match(meta["identity"], identity(config, handle), what)

    def adopt(fresh: State) -> State:
        parts = {"models": {name: {"params": m.params} for name, m in fresh.models.items()}, "norm": fresh.norm}
        prefixes = ("state/norm/", *(f"state/models/{name}/params/" for name in fresh.models))
        of_parts = {k: v for k, v in arrays.items() if k.startswith(prefixes)}
        new = trees.unflatten({"state": parts}, of_parts, what)["state"]
        models = {}
        for name, m in fresh.models.items():
            params = new["models"][name]["params"]
            models[name] = replace(m, params=params, target=() if m.target == () else params)
        return replace(fresh, models=models, norm=new["norm"])

    return adopt
