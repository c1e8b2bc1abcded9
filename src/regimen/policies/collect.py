"""`regimen collect`: play episodes with policies of a run, or at random, and write them as a Minari dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from regimen import exploration, trees
from regimen.engines import device
from regimen.envs import registry
from regimen.errors import ConfigError, StorageError, nearest
from regimen.files.checkpoint import Checkpoints, read
from regimen.files.datasets import Writer
from regimen.files.run_dir import RunFiles, read_config, read_metrics
from regimen.policies.evaluate import baseline_evaluator, evaluate_policy
from regimen.policies.policy import Policy, load_policy, read_policy
from regimen.policies.target import is_run, refuse_object, stored_env
from regimen.schedule import Episodes
from regimen.sources import dataset
from regimen.sources.dataset import Dataset, RecordedEpisode
from regimen.sources.host import HostSource
from regimen.sources.replay import Replay, ReplayRows
from regimen.sources.scan import ScanSource
from regimen.types import ActingAlgorithm, Array, Batch, PyTree

DEFAULT_EPISODES = 100
LOOK = 20  # episodes that measure a policy nobody has evaluated yet
NATIVE_ENVS, HOST_ENVS = 64, 8
BLOCK = 64  # episodes written at once
POLICIES = ("random", "expert", "medium", "replay", "final")
Report = Callable[[str], None]


# --- behaviour -------------------------------------------------------------------------------------------------------


@jax.tree_util.register_static
class Behaviour:
    """Who acts: nobody (uniform), or a policy that is replaced by uniform actions with probability `epsilon`. For a
    source it is an algorithm whose actions come in the environment's own form."""

    def __init__(
        self, space: gymnasium.Space, policy: Policy | None = None, greedy: bool = False, epsilon: float = 0.0
    ):
        self.space, self.greedy, self.epsilon = space, greedy, epsilon
        self.algo = None if policy is None else policy.algo
        self.params: PyTree = () if policy is None else policy.params

    def initial_carry(self, lead: tuple[int, ...]) -> PyTree:
        return () if self.algo is None else self.algo.initial_carry(lead)

    def noise(self, key: Array, shape: tuple[int, ...]) -> PyTree:
        keys = jax.random.split(key, 3)
        out = {
            "uniform": exploration.uniform_noise(self.space, keys[0], shape),
            "coin": jax.random.uniform(keys[1], shape),
        }
        return out if self.algo is None or self.greedy else out | {"policy": self.algo.noise(keys[2], shape)}

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        drawn = exploration.uniform_actions(self.space, noise["uniform"], mask)
        if self.algo is None:
            return drawn, carry, {}
        action, carry, _ = self.algo.act(params, obs, carry, noise.get("policy"), mask=mask, greedy=self.greedy)
        astray = noise["coin"] < self.epsilon

        def either(drawn: Array, chosen: Array) -> Array:
            return jnp.where(astray.reshape(astray.shape + (1,) * (chosen.ndim - astray.ndim)), drawn, chosen)

        return jax.tree.map(either, drawn, self.algo.to_space(action)), carry, {}

    def to_env(self, action: PyTree) -> PyTree:
        return action


# --- playing ---------------------------------------------------------------------------------------------------------


def play(handle: registry.EnvHandle, who: Behaviour, seed: int, most: int) -> Iterator[RecordedEpisode]:
    """Whole episodes without end, `most` or fewer at a time; in the order of their start, so that taking the first n
    does not favour short ones."""
    key = jax.random.key(seed)
    if handle.native is not None:
        n = min(NATIVE_ENVS, most)
        source = ScanSource(Episodes(n), n)
        rollout = jax.jit(lambda env, params, key: source.episodes(env, who, params, key)[1])
        for i in range(2**30):
            yield from split(jax.device_get(rollout(handle.native, who.params, jax.random.fold_in(key, i))))
    n = min(HOST_ENVS, most)
    host = HostSource.of(handle, Episodes(n), n)
    try:
        host.init(seed)
        for i in range(2**30):
            yield from split(host.next(who, who.params, jax.random.fold_in(key, i))[0])
    finally:
        host.close()


def split(batch: Batch) -> Iterator[RecordedEpisode]:
    """The episodes of a batch in which every environment played one; of several agents, one of each that took part."""
    for i, steps in enumerate(np.asarray(batch.valid).sum(0)):
        if not steps:
            continue

        def column(tree: PyTree, i: int = i, steps: int = steps) -> PyTree:
            return jax.tree.map(lambda x: np.asarray(x)[:steps, i], tree)

        reward, mask = column(batch.reward).sum(-1), batch.extras.get("mask")
        yield RecordedEpisode(
            jax.tree.map(with_last, column(batch.obs), column(batch.next_obs)),
            column(batch.action),
            reward,
            bool(column(batch.terminated)[-1]),
            None if mask is None else with_last(column(mask), column(batch.extras["next_mask"])),
        )


def with_last(x: np.ndarray | Array, following: np.ndarray | Array) -> np.ndarray:
    """Rows [T, ...] and the one after them."""
    return np.concatenate([x, following[-1:]])


# --- parts of a mix --------------------------------------------------------------------------------------------------


@dataclass
class Part:
    """A share of a dataset: who plays it, and what came of it."""

    policy: str
    fraction: float = 1.0
    source: str = ""  # in words
    episodes: int = 0
    steps: int = 0
    returns: list[float] = field(default_factory=list)

    def took(self, episode: RecordedEpisode) -> None:
        self.episodes += 1
        self.steps += episode.steps
        self.returns.append(float(episode.reward.sum(dtype=np.float64)))

    def line(self) -> str:
        r = np.array(self.returns)
        return (
            f"{self.policy} ({self.source}): {self.episodes:,} episodes, {self.steps:,} steps, return {r.mean():.2f} "
            f"(min {r.min():.2f}, max {r.max():.2f})"
        )

    def note(self) -> Mapping[str, object]:
        out = {"policy": self.policy, "source": self.source, "episodes": self.episodes, "steps": self.steps}
        return out | {"return_mean": float(np.mean(self.returns))}


def parse_mix(text: str) -> list[Part]:
    """`expert:0.5,random:0.5` as parts whose fractions sum to 1."""
    parts = []
    for item in text.replace(" ", "").split(","):
        name, _, share = item.partition(":")
        try:
            fraction = float(share)
        except ValueError:
            fraction = -1.0
        if not 0 < fraction <= 1:
            raise ConfigError(f"mix: '{item}' is not POLICY:FRACTION, for example expert:0.5,random:0.5")
        parts.append(Part(name, fraction))
    if not math.isclose(sum(p.fraction for p in parts), 1.0, abs_tol=1e-6):
        raise ConfigError(f"mix: the fractions of '{text}' sum to {sum(p.fraction for p in parts):g}; make it 1")
    return parts


def shares(fractions: list[float], total: int) -> list[int]:
    """`total` in proportion to the fractions, in whole numbers that sum to it."""
    exact = [f * total for f in fractions]
    out = [int(x + 1e-9) for x in exact]
    for i in sorted(range(len(out)), key=lambda i: out[i] - exact[i])[: total - sum(out)]:
        out[i] += 1
    return out


@dataclass(frozen=True)
class Stream:
    """Episodes of one policy, or of a buffer, for a fraction of a part."""

    words: str
    play: Callable[[int], Iterator[RecordedEpisode]]  # of how many at a time, at most
    fraction: float = 1.0
    everything: bool = False  # however much was asked for


@dataclass(frozen=True)
class Acting:
    """How the parts of a dataset are played."""

    handle: registry.EnvHandle
    run: Run | None
    greedy: bool
    epsilon: float
    target_return: float | None
    everything: bool  # no size was asked for: a replay buffer is written whole

    def streams(self, part: Part, seed: int) -> list[Stream]:
        if part.policy == "random":
            return [self.acted_by(None, "uniform", seed)]
        assert self.run is not None
        if part.policy != "replay":
            return [self.acted_by(*self.run.policy(part.policy, self.target_return), seed)]
        seen = self.run.replayed()
        if seen is not None:
            order = np.arange(len(seen)) if self.everything else np.random.default_rng(seed).permutation(len(seen))
            return [Stream("its replay buffer", lambda _: (seen[i] for i in order), everything=self.everything)]
        steps = self.run.checkpoints.steps()
        policies = [self.run.policy(str(step), None) for step in steps]
        return [self.acted_by(*p, seed + i, 1 / len(steps)) for i, p in enumerate(policies)]

    def acted_by(self, policy: Policy | None, words: str, seed: int, fraction: float = 1.0) -> Stream:
        who = Behaviour(self.handle.action_space, policy, self.greedy, self.epsilon)
        return Stream(words, lambda most: play(self.handle, who, seed, most), fraction)


class Run:
    """The policies of one run directory."""

    def __init__(self, path: Path, handle: registry.EnvHandle, report: Report):
        self.path, self.handle, self.report = path, handle, report
        self.checkpoints = Checkpoints(path / "checkpoints")

    def policy(self, name: str, target: float | None) -> tuple[Policy, str]:
        """The policy that a name stands for, and where it is from in words."""
        if name == "expert":
            found = load_policy(self.path, "best")
            return found, f"best, step {found.meta.get('env_steps')}"
        if name == "medium":
            step, score = self.nearest_checkpoint(target)
            return load_policy(self.path, str(step)), f"step {step}, evaluated at {score:.1f}"
        if name != "final" and not name.isdigit():
            raise ConfigError(f"policy: '{name}' is unknown{nearest(name, POLICIES)} (or a checkpoint's step)")
        found = load_policy(self.path, name)
        return found, f"step {found.meta.get('env_steps')}"

    def nearest_checkpoint(self, target: float | None) -> tuple[int, float]:
        """The checkpoint whose evaluation is nearest to `target`, by default halfway between random and best."""
        steps = self.checkpoints.steps()
        if len(steps) < 2:
            raise StorageError(
                f"policy: {self.path} has {len(steps)} checkpoints, so none is medium; train with --checkpoint.every "
                "and --checkpoint.keep, or name a --policy"
            )
        scores = {step: self.score(step) for step in steps}
        if target is None:
            with_random = baseline_evaluator(self.handle, "random")
            low, high = float(with_random((), 0, LOOK).returns.mean()), max(scores.values())
            with_random.close()
            target = (low + high) / 2
            self.report(f"halfway between random ({low:.1f}) and best ({high:.1f}) is {target:.1f}")
        step = min(scores, key=lambda s: abs(scores[s] - target))
        return step, scores[step]

    def replayed(self) -> list[RecordedEpisode] | None:
        """The episodes in the run's replay buffer as it was last saved; None where it has none."""
        folder = self.checkpoints.find("latest")
        arrays, _ = read(folder)
        if "state/aux/ring/count" not in arrays:
            return None
        algo, options = read_policy(folder / "policy").algo, arrays.get("state/replay/mask")
        like = Replay(1, 1, 1).zeros(
            self.handle.observation_space, algo.bound.dist.zeros(()), 0 if options is None else options.shape[-1]
        )
        names, structure = trees.flatten(like), jax.tree.structure(like)
        rows = jax.tree.unflatten(structure, [arrays[f"state/replay/{name}"] for name in names])
        return episodes_of(rows, arrays["state/aux/ring/cursor"], arrays["state/aux/ring/count"], algo)

    def score(self, step: int) -> float:
        """The run's own evaluation at a checkpoint, else one made now."""
        for row in read_metrics(self.path):
            if row["env_steps"] == step and "eval/return_mean" in row:
                return row["eval/return_mean"]
        return float(evaluate_policy(self.handle, load_policy(self.path, str(step)), LOOK, 0).returns.mean())


def episodes_of(
    rows: ReplayRows, cursor: np.ndarray, count: np.ndarray, algo: ActingAlgorithm
) -> list[RecordedEpisode]:
    """The episodes of a ring of time rows [C, B, ...], column by column from the oldest row on. The first of a column
    may have lost its beginning, and the last is cut where the ring ends."""
    capacity, columns = rows.valid.shape
    out = []
    for b in range(columns):
        w = b * len(count) // columns
        order = (int(cursor[w]) - int(count[w]) + np.arange(int(count[w]))) % capacity
        ends = (rows.terminated | rows.truncated | ~rows.valid)[order, b]
        cuts = np.flatnonzero(ends) + 1
        for piece in np.split(order, cuts[cuts < len(order)]):
            piece = piece[rows.valid[piece, b]]
            if len(piece):
                out.append(episode_of(jax.tree.map(lambda x, p=piece, b=b: x[p, b], rows), algo))
    return out


def episode_of(rows: ReplayRows, algo: ActingAlgorithm) -> RecordedEpisode:
    """One episode from its rows [T, ...]."""
    return RecordedEpisode(
        jax.tree.map(with_last, rows.obs, rows.next_obs),
        jax.tree.map(np.asarray, algo.to_env(rows.action)),
        np.asarray(rows.reward),
        bool(rows.terminated[-1]),
        None if rows.mask is None or rows.next_mask is None else with_last(rows.mask, rows.next_mask),
    )


# --- collect ---------------------------------------------------------------------------------------------------------


def collect(
    target: registry.EnvLike | Path,
    out: str | Path,
    policy: str | None = None,
    env_args: Mapping[str, object] | None = None,
    env: registry.EnvLike | None = None,
    **options: Any,
) -> Dataset:
    """Write a Minari dataset of a run's policies, or of random actions on an environment, and read it back. `env` is
    the environment itself, where the run was trained on an object; the other options are those of `gather`."""
    path = Path(target) if is_run(target) else None
    origin = read_config(RunFiles.open(path).path) if path is not None else {}
    name, args = origin.get("env", target), {**origin.get("env_args", {}), **(env_args or {})}
    if isinstance(name, str):
        refuse_object(name, env, f"regimen.collect('{target}', env=...)")
    native = registry.is_native(name if env is None else env)
    device.configure("auto" if native else "cpu", native)
    handle = stored_env(name, args, env) if path is not None else registry.resolve(name, args)
    return gather(handle, path, out, policy, **options)


def gather(
    handle: registry.EnvHandle,
    path: Path | None,
    out: str | Path,
    policy: str | None = None,
    *,
    episodes: int | None = None,
    steps: int | None = None,
    mix: str | None = None,
    checkpoint: str | None = None,
    target_return: float | None = None,
    epsilon: float = 0.0,
    greedy: bool = False,
    seed: int = 0,
    report: Report = lambda text: None,
) -> Dataset:
    """The dataset of a run directory, or of an environment alone.

    `policy`: `expert` (the run's best, the default), `medium` (the checkpoint nearest to `target_return`, by default
    halfway between random and best), `final`, a checkpoint's step, `random`, or `replay` (what the run itself has seen:
    its replay buffer, else episodes of each of its checkpoints in turn). `mix` shares the episodes out
    (`expert:0.5,random:0.5`). `steps` is reached by whole episodes.
    """
    given = [n for n, v in (("policy", policy), ("mix", mix), ("checkpoint", checkpoint)) if v is not None]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} both say who acts; give one")
    if episodes is not None and steps is not None:
        raise ConfigError("episodes and steps both say how much; give one")
    if not 0 <= epsilon <= 1:
        raise ConfigError(f"epsilon: {epsilon} is out of range; it must be 0 to 1")
    run = None if path is None else Run(path, handle, report)
    named = "expert" if checkpoint == "best" else checkpoint
    parts = parse_mix(mix) if mix is not None else [Part(policy or named or ("random" if run is None else "expert"))]
    if run is None and any(p.policy != "random" for p in parts):
        raise ConfigError(f"policy: {handle.id} is an environment, so only 'random' can act; give a run directory")

    description = ", ".join(f"{p.fraction:.0%} {p.policy}" for p in parts) + f" on {handle.id}"
    writer = Writer(out, handle, description, "random" if path is None else read_config(path)["algorithm"])
    unit, total = ("steps", steps) if steps is not None else ("episodes", episodes or DEFAULT_EPISODES)
    acting = Acting(handle, run, greedy, epsilon, target_return, everything=episodes is None and steps is None)
    try:
        for i, (part, share) in enumerate(zip(parts, shares([p.fraction for p in parts], total))):
            for stream in acting.streams(part, seed + 1_000_003 * i):
                fill(writer, part, stream, unit, share, report)
            report(part.line())
        note = {"seed": seed, "env_steps": sum(p.steps for p in parts), "parts": [p.note() for p in parts]}
        written = writer.finish(note | ({"run": path.name} if path is not None else {}))
    except BaseException:
        writer.discard()
        raise
    return dataset.read(written)


def fill(writer: Writer, part: Part, stream: Stream, unit: str, share: int, report: Report) -> None:
    """Write the stream's own share of the part: so many episodes, or whole episodes until so many steps are reached."""
    begin, goal, waiting = getattr(part, unit), math.ceil(share * stream.fraction), []
    part.source = stream.words if not part.source else f"{part.source}; {stream.words}"
    for episode in stream.play(max(1, goal) if unit == "episodes" else NATIVE_ENVS):
        waiting.append(episode)
        part.took(episode)
        done = not stream.everything and getattr(part, unit) - begin >= goal
        if done or len(waiting) == BLOCK:
            writer.add(waiting)
            report(f"{part.policy}: {part.episodes:,} episodes, {part.steps:,} steps")
            waiting = []
        if done:
            return
    writer.add(waiting)
