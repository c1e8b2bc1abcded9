"""Evaluating a policy: episodes played without learning, summed up as metrics, JSON and lines for people."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.stages import Compiled

from regimen import randomness, spaces, words
from regimen.compiling import Compiling
from regimen.config.calls import answered
from regimen.config.trust import trustable
from regimen.envs import registry
from regimen.envs.metric import label_of
from regimen.envs.protocol import Env
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError, EnvError, StorageError, nearest
from regimen.files.run_dir import read_config
from regimen.files.storage import Json
from regimen.files.stores import resolve_model_uri
from regimen.policies.policy import Policy, load_policy, read_policy, require_match
from regimen.policies.target import environment, is_run
from regimen.schedule import Episodes
from regimen.sources import play
from regimen.sources.host import HostAction, HostSource, to_members
from regimen.sources.scan import EnvCarry
from regimen.statistics import mean_interval, sample_interval, wilson
from regimen.types import ActingAlgorithm, Array, PyTree


@dataclass
class Evaluation:
    """Episodes played by one policy."""

    env: str
    policy: str
    seed: int
    returns: np.ndarray  # [n]
    components: dict[str, np.ndarray]  # name -> [n] sums
    lengths: np.ndarray  # [n]
    terminated: np.ndarray  # [n]
    metrics: dict[str, np.ndarray] = field(default_factory=dict)  # name -> [n]
    success: np.ndarray | None = None
    checkpoint: str | None = None
    recording: play.Recording | None = field(default=None, repr=False, compare=False)
    labels: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)  # what people read of metrics

    def of_returns(self) -> dict[str, float]:
        return {f"return_{name}": float(getattr(self.returns, name)()) for name in ("mean", "std", "min", "max")}

    def point(self) -> dict[str, float]:
        """The metrics that a run logs."""
        out = self.of_returns() | {"length_mean": float(self.lengths.mean()), "episodes": len(self.returns)}
        if self.success is not None:
            out["success_rate"] = float(self.success.mean())
        if len(self.components) > 1:
            out |= {f"reward/{name}": mean for name, mean in means(self.components).items()}
        return {f"eval/{name}": value for name, value in (out | means(self.other_metrics)).items()}

    @property
    def other_metrics(self) -> dict[str, np.ndarray]:
        """The metrics but `success`, which has a place of its own."""
        return {name: x for name, x in self.metrics.items() if name != "success"}

    def to_dict(self) -> Json:
        out: Json = {
            "env": self.env,
            "policy": self.policy,
            "checkpoint": self.checkpoint,
            "seed": self.seed,
            "episodes": len(self.returns),
            **self.of_returns(),
            "return_ci95": interval(mean_interval(self.returns)),
            "length_mean": float(self.lengths.mean()),
        }
        if self.success is not None:
            out["success_rate"] = float(self.success.mean())
            out["success_ci95"] = interval(wilson(float(self.success.sum()), len(self.success)))
        out |= {"reward_components": means(self.components), "metrics": means(self.other_metrics)}
        return out | {"metrics_ci95": {name: interval(sample_interval(self.metrics[name])) for name in out["metrics"]}}

    def lines(self) -> list[str]:
        d = self.to_dict()
        between = "95% interval {:.2f} to {:.2f}; ".format(*d["return_ci95"]) if d["return_ci95"] else ""
        which = self.policy + (f" ({self.checkpoint})" if self.checkpoint else "")
        lines = [
            f"{self.env}, {which}: {d['episodes']} episodes, seed {self.seed}",
            f"return   {d['return_mean']:.2f} ± {d['return_std']:.2f}  ({between}"
            f"min {d['return_min']:.2f}, max {d['return_max']:.2f})",
            f"length   {d['length_mean']:.1f}",
        ]
        if self.success is not None:
            lines.append(f"success  {d['success_rate']:.3f} {words.interval(d['success_ci95'], '{:.3f}'.format)}")
        if len(self.components) > 1:
            lines += [f"reward/{name}  {x:.3f}" for name, x in d["reward_components"].items()]
        for name, x in d["metrics"].items():
            ends = d["metrics_ci95"][name]
            lines.append(
                f"{self.labels.get(name, name)}  {x:.4g}"
                + (f" {words.interval(ends)}" if ends and ends[0] < ends[1] else "")
            )
        return lines

    def _repr_html_(self) -> str:
        """What a notebook shows: the figures of `lines`."""
        d = self.to_dict()
        facts = {"return": f"{d['return_mean']:.2f} ± {d['return_std']:.2f}{words.interval(d['return_ci95'])}"}
        facts |= {"length": f"{d['length_mean']:.1f}", "episodes": d["episodes"], "seed": self.seed}
        if self.success is not None:
            facts["success"] = f"{d['success_rate']:.3f}{words.interval(d['success_ci95'], '{:.3f}'.format)}"
        for name, x in d["metrics"].items():
            facts[self.labels.get(name, name)] = f"{x:.4g}{words.interval(d['metrics_ci95'][name])}"
        return words.notebook_table(f"{self.env}, {self.policy}", facts)


def means(values: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The mean of each metric."""
    return {name: float(x.mean()) for name, x in values.items()}


def interval(bounds: tuple[float, float]) -> list[float] | None:
    """An interval as JSON can hold it: None where there are too few values for one."""
    return list(map(float, bounds)) if np.isfinite(bounds).all() else None


@partial(jax.jit, static_argnames=("actor", "episodes", "record"))
def evaluate_native(
    env: Env, actor: play.Actor, params: PyTree, key: Array, episodes: int, record: bool
) -> tuple[EnvCarry, Array, play.Recording | None]:
    """Play episodes and return their sums, which of them terminated, and what the environment records of them."""
    look = env.recorded if record else lambda state: {}  # type: ignore[attr-defined]
    carry, terminated, recording = play.play_resets(env, actor, params, key, episodes, look)
    return replace(carry, state=(), obs=(), memory=()), terminated, recording if record else None


class NativeEvaluator:
    """Evaluates on a native environment, with one compiled program for each number of episodes. With `record`,
    evaluations have a recording."""

    def __init__(self, handle: EnvHandle, actor: play.Actor, record: bool = False):
        self.handle, self.record = handle, record
        self.actor = actor
        self.programs: dict[int, Compiling] = {}
        self.compiling = False
        self.compile_seconds = 0.0  # spent waiting for it

    def prepare(self, params: PyTree, episodes: int) -> None:
        """Compile on another core, while the main thread compiles the training program."""
        if episodes not in self.programs:
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
            arguments = (self.handle.native, self.actor, shapes, randomness.key_of(0), episodes, self.record)
            self.programs[episodes] = Compiling(evaluate_native.lower(*arguments))

    def program(self, params: PyTree, episodes: int) -> Compiled:
        """The compiled program. The time it is waited for is counted, and a signal can end the process meanwhile."""
        self.prepare(params, episodes)
        if self.programs[episodes].running:
            self.compiling, start = True, time.monotonic()
            self.programs[episodes].future.exception()  # waits
            self.compile_seconds += time.monotonic() - start
            self.compiling = False
        return self.programs[episodes].result()

    def __call__(self, params: PyTree, seed: int, episodes: int, policy: str = "greedy") -> Evaluation:
        played = self.program(params, episodes)(self.handle.native, params, randomness.key_of(seed))
        carry, terminated, recording = jax.device_get(played)
        return replace(summarize(self.handle, policy, seed, carry, terminated), recording=recording)

    def close(self) -> None: ...


HostAct = Callable[[PyTree, PyTree, np.ndarray | None, PyTree], tuple[PyTree, PyTree]]


class HostEvaluator:
    """Evaluates on Gymnasium environments, several at a time; episode j starts from seed + j whatever their number.

    `act(params, obs, mask, memory) -> (actions, memory)` takes batches; None draws actions from the space. `algo` is
    what the memory belongs to.
    """

    compiling = False
    compile_seconds = 0.0

    def __init__(
        self,
        handle: EnvHandle,
        act: HostAct | None,
        num_envs: int = 8,
        stop_requested: Callable[[], bool] = lambda: False,
        algo: ActingAlgorithm | None = None,
    ):
        self.handle, self.act, self.num_envs, self.algo = handle, act, num_envs, algo
        self.stop_requested = stop_requested
        self.source: HostSource | None = None

    def prepare(self, params: PyTree, episodes: int) -> None: ...

    def __call__(self, params: PyTree, seed: int, episodes: int, policy: str = "greedy") -> Evaluation:
        source = self.open(min(self.num_envs, episodes, self.handle.copies or episodes))
        self.handle.action_space.seed(seed)
        ended: list[tuple] = [()] * episodes
        for moment in play.play_host(source, partial(self.actions, params), seed, episodes, self.stop_requested):
            for i, terminated, success in moment.ended:
                sums = source.reward[i].copy(), source.length[i], terminated, success, source.metrics[i]
                ended[moment.running[i]] = (0, *sums)
        rows: PyTree = source.finished(ended)
        return summarize(self.handle, policy, seed, rows, rows.terminated)

    def open(self, n: int) -> HostSource:
        """The source with `n` environments, which stays open between evaluations."""
        if self.source is None or self.source.num_envs != n:
            self.close()
            self.source = HostSource.of(self.handle, Episodes(n), n)
            if self.algo is not None:
                self.source.remember(self.algo)
        return self.source

    def actions(self, params: PyTree, source: HostSource) -> list[HostAction]:
        """The actions of all columns, as members of the space."""
        space = self.handle.action_space
        if self.act is None:
            rows = [None] * source.columns if source.mask is None else source.mask
            return [spaces.sample(space, row) for row in rows]
        actions, memory = self.act(params, source.obs, source.mask, source.memory)
        if source.remembers:
            source.memory = jax.tree.map(np.array, memory)
        out = spaces.split(space, actions).values()
        return to_members(space, np.concatenate([np.asarray(x).reshape(source.columns, -1) for x in out], axis=1))

    def close(self) -> None:
        if self.source is not None:
            self.source.close()


def summarize(handle: EnvHandle, policy: str, seed: int, sums: PyTree, ended: np.ndarray) -> Evaluation:
    """The evaluation of episodes with these sums [n, ...], of which some `ended` with a termination [n]."""
    reward = sums.reward.astype(np.float64)
    returns = reward.sum(-1)
    components = {name: reward[:, i] for i, name in enumerate(handle.reward_components)}
    success = success_of(handle, returns, sums.metrics)
    labels = {name: label_of(name, handle.metrics) for name in sums.metrics}
    played = Evaluation(handle.id, policy, seed, returns, components, sums.length, ended, sums.metrics, success)
    return replace(played, labels=labels)


def success_of(handle: EnvHandle, returns: np.ndarray, metrics: dict[str, np.ndarray]) -> np.ndarray | None:
    """Whether each episode was a success: by the environment's own `success`, else by its return threshold."""
    if "success" in metrics:
        return metrics["success"] > 0.5
    return returns >= handle.return_threshold if handle.return_threshold is not None else None


def make_evaluator(
    handle: EnvHandle, algo: ActingAlgorithm, stop_requested: Callable[[], bool] = lambda: False, record: bool = False
) -> NativeEvaluator | HostEvaluator:
    """The evaluator of a learned policy, called with (actor params, seed, episodes). `record` is for native
    environments."""
    if handle.native is not None:
        return NativeEvaluator(handle, play.greedy_actor(algo), record)
    return HostEvaluator(handle, jax.jit(partial(play.greedy, algo)), stop_requested=stop_requested, algo=algo)


def baseline_evaluator(handle: EnvHandle, name: str) -> NativeEvaluator | HostEvaluator:
    """The evaluator of `random`, or of a baseline that the environment registers, called with ((), seed, episodes)."""
    names = {"random", *handle.baselines}
    if name not in names:
        raise ConfigError(f"policy: '{name}' is not a baseline of {handle.id}{nearest(name, names)}")
    function = handle.baselines.get(name)
    if handle.native is not None:
        actor = play.baseline_actor(function) if function else play.random_actor(handle.action_space)
        return NativeEvaluator(handle, actor)
    if function is None:
        return HostEvaluator(handle, None)

    def act(_: PyTree, obs: PyTree, mask: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
        n = jax.tree.leaves(obs)[0].shape[0]
        actions = [function(jax.tree.map(lambda x, i=i: x[i], obs)) for i in range(n)]
        return jax.tree.map(lambda *x: np.stack(x), *actions), memory

    return HostEvaluator(handle, act)


@answered
@trustable
def evaluate(
    target: registry.EnvLike | Path,
    policy: str | Policy | None = None,
    episodes: int = 100,
    seed: int = 0,
    env_args: Mapping[str, object] | None = None,
    checkpoint: str = "best",
    tracking_uri: str | None = None,
    env: registry.EnvLike | None = None,
    trust: bool = False,
) -> Evaluation:
    """Play episodes of a policy, in which nothing is learned, and return their figures.

    Args:
        target: a run directory, a policy folder or a registered model (`models:/NAME@ALIAS`), whose policy plays; or an
            environment, on which `policy` plays.
        policy: `random`, the name of a baseline, or a `Policy`, in the place of the target's own.
        episodes: how many.
        seed: what the episodes are drawn from.
        env_args: other settings of the environment.
        checkpoint: `best`, `final` or an env step.
        tracking_uri: the MLflow store of a registered model.
        env: the environment itself, where the run was trained on an object.
        trust: whether code may run that the files name and that is not installed.
    """
    handle, learned, which = subject(target, policy, env_args or {}, checkpoint, tracking_uri, env)
    if learned is not None:
        return evaluate_policy(handle, learned, episodes, seed, which)
    if not isinstance(policy, str):
        names = ", ".join(["random", *handle.baselines])
        raise ConfigError(
            f"{handle.id} is an environment: name a policy with --policy ({names}) or give a run directory"
        )
    with contextlib.closing(baseline_evaluator(handle, policy)) as evaluator:
        return evaluator((), seed, episodes, policy=policy)


def subject(
    target: registry.EnvLike | Path,
    policy: str | Policy | None,
    env_args: Mapping[str, object],
    checkpoint: str,
    tracking_uri: str | None,
    env: registry.EnvLike | None,
) -> tuple[EnvHandle, Policy | None, str | None]:
    """The environment that is played, the trained policy that plays it (None: a baseline is to), and which of a run's
    policies that is."""
    learned = policy if isinstance(policy, Policy) else None
    origin, which = {}, None
    if isinstance(target, str) and target.startswith("models:/"):
        registered = read_policy(resolve_model_uri(target, tracking_uri))
        learned, origin = (registered if policy is None else learned), registered.meta
    elif is_run(target):
        learned = load_policy(target, checkpoint) if policy is None else learned
        of_run = (Path(target) / "config.yaml").exists()
        origin = read_config(Path(target)) if of_run else read_policy(Path(target)).meta
        which = checkpoint if of_run and policy is None else None
    return environment(target, origin, env, env_args, "evaluate"), learned, which


def evaluate_policy(
    handle: registry.EnvHandle, policy: Policy, episodes: int, seed: int, checkpoint: str | None = None
) -> Evaluation:
    """Greedy episodes of a trained policy on an environment with its spaces; of a set, there may be more entities."""
    policy = policy.for_entities(handle.observation_space, handle.agents)
    of_policy, of_env = (
        {"observation space": spaces.describe(x.observation_space), "action space": spaces.describe(x.action_space)}
        for x in (policy, handle)
    )
    try:
        require_match(of_policy, of_env, f"the policy on {handle.id}")
    except StorageError as e:
        raise EnvError(str(e).replace("this run's is", "the environment's is")) from e
    with contextlib.closing(make_evaluator(handle, policy.algo)) as evaluator:
        result = evaluator(policy.params, seed, episodes, policy=policy.meta.get("algorithm", "policy"))
    if checkpoint is not None and "env_steps" in policy.meta:
        result.checkpoint = f"{checkpoint}, step {policy.meta['env_steps']}"
    return result
