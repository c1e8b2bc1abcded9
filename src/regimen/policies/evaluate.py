"""Playing episodes without learning: its own environments and keys, never the training state."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym
from jax import lax

from regimen import distributions, spaces
from regimen.engines import device
from regimen.envs import registry
from regimen.envs.protocol import agents_of
from regimen.errors import ConfigError, EnvError, StorageError, nearest
from regimen.files.mlflow import resolve_model_uri
from regimen.files.run_dir import read_config
from regimen.policies.policy import Policy, load_policy, read_policy, require_match
from regimen.policies.target import is_run, refuse_object
from regimen.schedule import Episodes
from regimen.sources import by_agent, side_by_side
from regimen.sources.host import HostSource, Interrupted, to_members
from regimen.sources.scan import EnvCarry, fresh, masks, select, step_all
from regimen.statistics import mean_interval, sample_interval, wilson
from regimen.types import Array, PyTree


class Recording(NamedTuple):
    """What the environment recorded of the episodes of an evaluation, E of them."""

    start: PyTree  # [E, ...] the states they began in
    rows: dict[str, Array]  # name -> [T + 1, E, ...] `recorded` of the start and of the state after each step
    length: Array  # [E] steps taken; later rows mean nothing


class Actor(NamedTuple):
    """A policy that plays: `act(env, params, key, state [E, ...], obs [B, ...], mask, memory [B, ...])` gives actions
    in the environment's own form and the memory for the next step; `start(B)` is the memory of a new episode."""

    act: Callable[..., tuple[PyTree, PyTree]]
    start: Callable[[int], PyTree] = lambda n: ()


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
    recording: Recording | None = field(default=None, repr=False, compare=False)

    def point(self) -> dict[str, float]:
        """As logged metrics."""
        out = {
            "eval/return_mean": float(self.returns.mean()),
            "eval/return_std": float(self.returns.std()),
            "eval/return_min": float(self.returns.min()),
            "eval/return_max": float(self.returns.max()),
            "eval/length_mean": float(self.lengths.mean()),
            "eval/episodes": len(self.returns),
        }
        if self.success is not None:
            out["eval/success_rate"] = float(self.success.mean())
        if len(self.components) > 1:
            out |= {f"eval/reward/{name}": float(x.mean()) for name, x in self.components.items()}
        return out | {f"eval/{name}": float(x.mean()) for name, x in self.metrics.items() if name != "success"}

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "env": self.env,
            "policy": self.policy,
            "checkpoint": self.checkpoint,
            "seed": self.seed,
            "episodes": len(self.returns),
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "return_min": float(self.returns.min()),
            "return_max": float(self.returns.max()),
            "return_ci95": interval(mean_interval(self.returns)),
            "length_mean": float(self.lengths.mean()),
        }
        if self.success is not None:
            out["success_rate"] = float(self.success.mean())
            out["success_ci95"] = interval(wilson(float(self.success.sum()), len(self.success)))
        out["reward_components"] = {name: float(x.mean()) for name, x in self.components.items()}
        out["metrics"] = {name: float(x.mean()) for name, x in self.metrics.items() if name != "success"}
        out["metrics_ci95"] = {name: interval(sample_interval(self.metrics[name])) for name in out["metrics"]}
        return out

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
            low, high = d["success_ci95"]
            lines.append(f"success  {d['success_rate']:.3f}  (95% interval {low:.3f} to {high:.3f})")
        if len(self.components) > 1:
            lines += [f"reward/{name}  {x:.3f}" for name, x in d["reward_components"].items()]
        for name, x in d["metrics"].items():
            within = d["metrics_ci95"][name]
            between = "  (95% interval {:.4g} to {:.4g})".format(*within) if within and within[0] < within[1] else ""
            lines.append(f"{name}  {x:.4g}{between}")
        return lines


def interval(bounds: tuple[float, float]) -> list[float] | None:
    """As JSON can hold it: None where there are too few values to tell."""
    return list(map(float, bounds)) if np.isfinite(bounds).all() else None


def play(
    env: Any, actor: Actor, params: PyTree, key: Array, episodes: int, record: bool = False
) -> tuple[EnvCarry, Array, Recording | None]:
    """One episode in each of `episodes` environments: their sums (an EnvCarry), which terminated, and what the
    environment recorded of them where it is asked to."""

    def seen(state: PyTree) -> dict[str, Array]:
        return jax.vmap(env.recorded)(state) if record else {}

    def kept_row(rows: PyTree, t: Array, row: PyTree) -> PyTree:
        return jax.tree.map(lambda all, x: lax.dynamic_update_index_in_dim(all, x, t, 0), rows, row)

    start_key, key = jax.random.split(key)
    state, obs = jax.vmap(env.reset)(jax.random.split(start_key, episodes))
    carry = fresh(env, state, obs, actor.start(episodes * max(1, len(agents_of(env)))))
    flags = jnp.zeros(episodes, bool)
    rows = jax.tree.map(lambda x: jnp.zeros((env.max_episode_steps + 1, *x.shape), x.dtype), seen(state))
    rows = kept_row(rows, jnp.int32(0), seen(state))

    def going(x):
        return jnp.any(~x[2])

    def body(x):
        t, carry, over, terminated, rows = x
        act_key, step_key = jax.random.split(jax.random.fold_in(key, t))
        mask = masks(env, carry.state)
        action, memory = actor.act(env, params, act_key, carry.state, carry.obs, mask, carry.memory)
        new = step_all(env, carry, action, memory, jax.random.split(step_key, episodes))
        kept = jax.tree.map(lambda a, b: select(over, b, a), new.going, carry)
        rows = kept_row(rows, t + 1, seen(kept.state))
        return t + 1, kept, over | new.over, terminated | (new.ended & ~over), rows

    _, carry, _, terminated, rows = lax.while_loop(going, body, (jnp.int32(0), carry, flags, flags, rows))
    recording = Recording(state, rows, carry.length) if record else None
    return replace(carry, state=(), obs=(), memory=()), terminated, recording


def greedy(algo: Any, params: PyTree, obs: PyTree, mask: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
    """The algorithm's own greedy policy, from `actor_params`: actions, and what it carries on."""
    action, memory, _ = algo.act(params, obs, memory, None, mask=mask, greedy=True)
    return algo.to_env(action), memory


def greedy_actor(algo: Any) -> Actor:
    def act(env, params, key, state, obs, mask, memory):
        return greedy(algo, params, obs, mask, memory)

    return Actor(act, lambda n: algo.initial_carry((n,)))


def random_actor(space: Any) -> Actor:
    """Uniform over what is allowed; unbounded dimensions are standard normal."""

    def leaf(key: Array, space: Any, n: int, mask: Array | None) -> Array:
        if not isinstance(space, gym.Box):
            dist: Any = distributions.for_space(space)
            params = dist.params(jnp.zeros((n, dist.head_size)), jnp.zeros(0), mask)
            return dist.to_env(dist.sample(params, dist.noise(key, (n,))))
        bounded = np.isfinite(space.low) & np.isfinite(space.high)
        low, high = np.where(bounded, space.low, 0.0), np.where(bounded, space.high, 1.0)
        uniform = low + (high - low) * jax.random.uniform(key, (n, *space.shape))
        return jnp.where(bounded, uniform, jax.random.normal(key, (n, *space.shape)))

    def act(env, params, key, state, obs, mask, memory):
        n, leaves, values, start = jax.tree.leaves(obs)[0].shape[0], spaces.leaves(space), {}, 0
        for own, (name, sub) in zip(jax.random.split(key, len(leaves)), leaves.items()):
            stop = start + spaces.logits(sub)
            values[name] = leaf(own, sub, n, None if mask is None else mask[..., start:stop])
            start = stop
        return spaces.build(space, values), memory

    return Actor(act)


def baseline_actor(function: Any) -> Actor:
    """A registered baseline: `fn(env, key, state, obs) -> action`, for one environment and all of its agents."""

    def act(env, params, key, state, obs, mask, memory):
        obs = by_agent(env, obs)
        keys = jax.random.split(key, jax.tree.leaves(obs)[0].shape[0])
        return side_by_side(env, jax.vmap(lambda k, s, o: function(env, k, s, o))(keys, state, obs)), memory

    return Actor(act)


class NativeEvaluator:
    """Plays on a native environment, compiled once per number of episodes; with `record`, evaluations have a
    recording."""

    def __init__(self, handle: Any, actor: Actor, record: bool = False):
        self.handle, self.record = handle, record
        self.play = jax.jit(play, static_argnames=("actor", "episodes", "record"))
        self.actor = actor
        self.programs: dict[int, Future] = {}
        self.compiling = False
        self.compile_seconds = 0.0  # spent waiting for it

    def prepare(self, params: PyTree, episodes: int) -> None:
        """Compile on another core, while the main thread compiles the training program."""
        if episodes not in self.programs:
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
            arguments = (self.handle.native, self.actor, shapes, jax.random.key(0), episodes, self.record)
            pool = ThreadPoolExecutor(1)
            self.programs[episodes] = pool.submit(lambda: self.play.lower(*arguments).compile())
            pool.shutdown(wait=False)

    def program(self, params: PyTree, episodes: int) -> Any:
        """Its time is known, and a signal can end the process while it is waited for."""
        self.prepare(params, episodes)
        if not self.programs[episodes].done():
            self.compiling, start = True, time.monotonic()
            self.programs[episodes].exception()  # waits
            self.compile_seconds += time.monotonic() - start
            self.compiling = False
        return self.programs[episodes].result()

    def __call__(self, params: PyTree, seed: int, episodes: int, policy: str = "greedy") -> Evaluation:
        played = self.program(params, episodes)(self.handle.native, params, jax.random.key(seed))
        carry, terminated, recording = jax.device_get(played)
        found = summarize(self.handle, policy, seed, carry.reward, carry.length, terminated, carry.metrics)
        return replace(found, recording=recording)

    def close(self) -> None: ...


class HostEvaluator:
    """Plays on Gymnasium environments, several at a time; episode j starts from seed + j whatever their number.

    `act(params, obs, mask, memory) -> (actions, memory)` takes batches; None draws actions from the space. `algo` is
    what the memory belongs to.
    """

    compiling = False
    compile_seconds = 0.0

    def __init__(
        self,
        handle: Any,
        act: Any,
        num_envs: int = 8,
        stop_requested: Callable[[], bool] = lambda: False,
        algo: Any = None,
    ):
        self.handle, self.act, self.num_envs, self.algo = handle, act, num_envs, algo
        self.stop_requested = stop_requested
        self.source: HostSource | None = None

    def prepare(self, params: PyTree, episodes: int) -> None: ...

    def __call__(self, params: PyTree, seed: int, episodes: int, policy: str = "greedy") -> Evaluation:
        h, n = self.handle, min(self.num_envs, episodes)
        src = self.open(n)
        h.action_space.seed(seed)
        queue = list(range(episodes))
        running = {i: queue.pop(0) for i in range(n)}  # environment -> episode
        for i, j in running.items():
            src.reset(i, seed + j)
        ended: list[Any] = [None] * episodes
        row = one_row(src)
        while running:
            if self.stop_requested():
                raise Interrupted
            row["terminated"][:] = row["truncated"][:] = False
            for i, terminated, ok in src.step(row, 0, self.actions(src, params), list(running)):
                ended[running.pop(i)] = (0, src.reward[i].copy(), src.length[i], terminated, ok, src.metrics[i])
                if queue:
                    running[i] = queue.pop(0)
                    src.reset(i, seed + running[i])
            running = dict(sorted(running.items()))
        rows: Any = src.finished(ended)
        return summarize(h, policy, seed, rows.reward, rows.length, rows.terminated, rows.metrics)

    def open(self, n: int) -> HostSource:
        """`n` environments, kept between evaluations."""
        if self.source is None or self.source.num_envs != n:
            self.close()
            h = self.handle
            args = (h.make_host, Episodes(n), n, h.reward_components, h.max_episode_steps)
            self.source = HostSource(*args, metric_reductions=h.metric_reductions)
            if self.algo is not None:
                self.source.remember(self.algo)
        return self.source

    def actions(self, src: HostSource, params: PyTree) -> list:
        space = self.handle.action_space
        if self.act is None:
            return [spaces.sample(space, None if src.mask is None else src.mask[i]) for i in range(src.columns)]
        actions, memory = self.act(params, src.obs, src.mask, src.memory)
        if src.remembers:
            src.memory = jax.tree.map(np.array, memory)
        out = spaces.split(space, actions).values()
        return to_members(space, np.concatenate([np.asarray(x).reshape(src.columns, -1) for x in out], axis=1))

    def close(self) -> None:
        if self.source is not None:
            self.source.close()


def one_row(src: HostSource) -> dict[str, Any]:
    """What `HostSource.step` writes into."""
    n = src.columns
    row: dict[str, Any] = {name: np.zeros((1, n), bool) for name in ("terminated", "truncated", "valid")}
    row["reward"] = np.zeros((1, n, len(src.components)), np.float32)
    row["next_obs"] = spaces.zeros(src.observation_space, (1, n))
    return row


def summarize(
    handle: Any,
    policy: str,
    seed: int,
    reward: np.ndarray,
    length: np.ndarray,
    terminated: np.ndarray,
    metrics: dict[str, np.ndarray],
) -> Evaluation:
    reward = reward.astype(np.float64)
    returns = reward.sum(-1)
    return Evaluation(
        env=handle.id,
        policy=policy,
        seed=seed,
        returns=returns,
        components={name: reward[:, i] for i, name in enumerate(handle.reward_components)},
        lengths=length,
        terminated=terminated,
        metrics=metrics,
        success=success_of(handle, returns, metrics),
    )


def success_of(handle: Any, returns: np.ndarray, metrics: dict[str, np.ndarray]) -> np.ndarray | None:
    """From the environment's own `success`, else its return threshold, else unknown."""
    if "success" in metrics:
        return metrics["success"] > 0.5
    return returns >= handle.return_threshold if handle.return_threshold is not None else None


def make_evaluator(
    handle: Any, algo: Any, stop_requested: Callable[[], bool] = lambda: False, record: bool = False
) -> NativeEvaluator | HostEvaluator:
    """For a learned policy: call with (actor params, seed, episodes). `record` is for native environments."""
    if handle.native is not None:
        return NativeEvaluator(handle, greedy_actor(algo), record)
    return HostEvaluator(handle, jax.jit(partial(greedy, algo)), stop_requested=stop_requested, algo=algo)


def baseline_evaluator(handle: Any, name: str) -> NativeEvaluator | HostEvaluator:
    """For `random`, or a baseline that the environment registers: call with ((), seed, episodes)."""
    known = {"random", *handle.baselines}
    if name not in known:
        raise ConfigError(f"policy: '{name}' is not a baseline of {handle.id}{nearest(name, known)}")
    function = handle.baselines.get(name)
    if handle.native is not None:
        return NativeEvaluator(handle, baseline_actor(function) if function else random_actor(handle.action_space))
    if function is None:
        return HostEvaluator(handle, None)

    def act(_: PyTree, obs: PyTree, mask: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
        n = jax.tree.leaves(obs)[0].shape[0]
        actions = [function(jax.tree.map(lambda x, i=i: x[i], obs)) for i in range(n)]
        return jax.tree.map(lambda *x: np.stack(x), *actions), memory

    return HostEvaluator(handle, act)


# --- the verb `evaluate` --------------------------------------------------------------------------------------------


def evaluate(
    target: Any,
    policy: str | Policy | None = None,
    episodes: int = 100,
    seed: int = 0,
    env_args: dict[str, Any] | None = None,
    checkpoint: str = "best",
    tracking_uri: str | None = None,
    env: Any = None,
) -> Evaluation:
    """Episodes by the policy of a run, of a registered model (`models:/NAME@ALIAS`) or of a policy folder; or, on the
    environment of one of these or on an environment itself, by `policy`: `random`, a baseline's name, or a Policy."""
    learned = policy if isinstance(policy, Policy) else None
    origin: Mapping[str, Any] = {}
    if isinstance(target, str) and target.startswith("models:/"):
        registered = read_policy(resolve_model_uri(target, tracking_uri))
        learned, origin = (registered if policy is None else learned), registered.meta
    elif is_run(target):
        learned = load_policy(target, checkpoint) if policy is None else learned
        has_config = (Path(target) / "config.yaml").exists()
        origin = read_config(Path(target)) if has_config else read_policy(Path(target)).meta
    stored, args = origin.get("env", target), dict(origin.get("env_args", {})) | (env_args or {})
    if isinstance(stored, str):
        refuse_object(stored, env, f"regimen.evaluate('{target}', env=...)")
    native = registry.is_native(stored if env is None else env)
    device.configure("auto" if native else "cpu", native)
    handle = registry.resolve(stored, args) if env is None else registry.resolve(env, env_args or {})
    if learned is not None:
        which = checkpoint if policy is None and is_run(target) and (Path(target) / "config.yaml").exists() else None
        return evaluate_policy(handle, learned, episodes, seed, which)
    if not isinstance(policy, str):
        names = ", ".join(["random", *handle.baselines])
        raise ConfigError(
            f"{handle.id} is an environment: name a policy with --policy ({names}) or give a run directory"
        )
    with contextlib.closing(baseline_evaluator(handle, policy)) as play:
        return play((), seed, episodes, policy=policy)


def evaluate_policy(
    handle: registry.EnvHandle, policy: Policy, episodes: int, seed: int, checkpoint: str | None = None
) -> Evaluation:
    """Greedy episodes of a trained policy on an environment with its spaces."""
    of_policy, of_env = (
        {"observation space": spaces.describe(x.observation_space), "action space": spaces.describe(x.action_space)}
        for x in (policy, handle)
    )
    try:
        require_match(of_policy, of_env, f"the policy on {handle.id}")
    except StorageError as e:
        raise EnvError(str(e).replace("this run's is", "the environment's is")) from e
    with contextlib.closing(make_evaluator(handle, policy.algo)) as play:
        result = play(policy.params, seed, episodes, policy=policy.meta.get("algorithm", "policy"))
    if checkpoint is not None and "env_steps" in policy.meta:
        result.checkpoint = f"{checkpoint}, step {policy.meta['env_steps']}"
    return result
