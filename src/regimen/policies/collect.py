"""`regimen collect`: play episodes with policies of a run, or at random, and write them as a Minari dataset."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from regimen import exploration, trees
from regimen.config.calls import answered
from regimen.config.trust import trustable
from regimen.envs import registry
from regimen.envs.frames import Frames
from regimen.errors import ConfigError, StorageError, nearest
from regimen.files.checkpoint import Checkpoints, read
from regimen.files.datasets import Writer
from regimen.files.run_dir import RunFiles, read_config, read_metrics
from regimen.policies.evaluate import baseline_evaluator, evaluate_policy
from regimen.policies.policy import Policy, load_policy, read_policy
from regimen.policies.target import environment, is_run
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
        uniform = exploration.uniform_actions(self.space, noise["uniform"], mask)
        if self.algo is None:
            return uniform, carry, {}
        action, carry, _ = self.algo.act(params, obs, carry, noise.get("policy"), mask=mask, greedy=self.greedy)
        astray = noise["coin"] < self.epsilon

        def either(uniform: Array, action: Array) -> Array:
            return jnp.where(astray.reshape(astray.shape + (1,) * (action.ndim - astray.ndim)), uniform, action)

        return jax.tree.map(either, uniform, self.algo.to_space(action)), carry, {}

    def to_env(self, action: PyTree) -> PyTree:
        return action


def play(handle: registry.EnvHandle, who: Behaviour, seed: int, most: int) -> Iterator[RecordedEpisode]:
    """Whole episodes without end, `most` or fewer at a time; in the order of their start, so that taking the first n
    does not favour short ones."""
    key = jax.random.key(seed)
    if handle.native is not None:
        n = min(NATIVE_ENVS, most)
        source = ScanSource(Episodes(n), n)
        rollout = jax.jit(lambda env, params, key: source.episodes(env, who, params, key)[1])
        for i in range(2**30):
            yield from split(jax.device_get(rollout(handle.native, who.params, jax.random.fold_in(key, i))), who)
    n = min(HOST_ENVS, most)
    host = HostSource.of(handle, Episodes(n), n)
    try:
        host.init(seed)
        for i in range(2**30):
            yield from split(host.next(who, who.params, jax.random.fold_in(key, i))[0], who)
    finally:
        host.close()


def split(batch: Batch, who: Behaviour) -> Iterator[RecordedEpisode]:
    """The episodes of a batch in which every environment played one; of several agents, one of each that took part."""
    masks = batch.extras.get("mask"), batch.extras.get("next_mask")
    flags = batch.terminated, batch.truncated
    rows = ReplayRows(batch.obs, batch.action, batch.reward.sum(-1), *flags, batch.next_obs, batch.valid, *masks)
    rows = jax.tree.map(np.asarray, rows)
    for i, steps in enumerate(rows.valid.sum(0)):
        if steps:
            yield episode_of(jax.tree.map(lambda x, i=i, steps=steps: x[:steps, i], rows), who)


@dataclass
class Part:
    """A share of a dataset: who plays it, and what came of it."""

    policy: str
    fraction: float = 1.0
    source: str = ""  # in words
    steps: int = 0
    returns: list[float] = field(default_factory=list)

    @property
    def episodes(self) -> int:
        return len(self.returns)

    def add(self, episode: RecordedEpisode) -> None:
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
class Players:
    """The policies of a run directory, or nobody where there is none, and how they act."""

    handle: registry.EnvHandle
    path: Path | None
    report: Report
    greedy: bool
    epsilon: float
    target_return: float | None
    everything: bool  # no size was asked for: a replay buffer is written whole

    @property
    def run(self) -> Path:
        assert self.path is not None
        return self.path

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.run / "checkpoints")

    def streams(self, part: Part, seed: int) -> list[Stream]:
        if part.policy == "random":
            return [self.acted_by(None, "uniform", seed)]
        if part.policy != "replay":
            return [self.acted_by(*self.policy(part.policy), seed)]
        stored = self.replay()
        if stored is not None:
            order = np.arange(len(stored)) if self.everything else np.random.default_rng(seed).permutation(len(stored))
            return [Stream("its replay buffer", lambda _: (stored[i] for i in order), everything=self.everything)]
        steps = self.checkpoints.steps()
        policies = [self.policy(str(step)) for step in steps]
        return [self.acted_by(*p, seed + i, 1 / len(steps)) for i, p in enumerate(policies)]

    def acted_by(self, policy: Policy | None, words: str, seed: int, fraction: float = 1.0) -> Stream:
        who = Behaviour(self.handle.action_space, policy, self.greedy, self.epsilon)
        return Stream(words, lambda most: play(self.handle, who, seed, most), fraction)

    def policy(self, name: str) -> tuple[Policy, str]:
        """The policy that a name stands for, and where it is from in words."""
        if name == "medium":
            step, score = self.nearest_checkpoint()
            return load_policy(self.run, str(step)), f"step {step}, evaluated at {score:.1f}"
        if name not in ("expert", "final") and not name.isdigit():
            raise ConfigError(f"policy: '{name}' is unknown{nearest(name, POLICIES)} (or a checkpoint's step)")
        policy = load_policy(self.run, "best" if name == "expert" else name)
        return policy, f"{'best, ' if name == 'expert' else ''}step {policy.meta.get('env_steps')}"

    def nearest_checkpoint(self) -> tuple[int, float]:
        """The checkpoint whose evaluation is nearest to the target, by default halfway between random and best."""
        steps, target = self.checkpoints.steps(), self.target_return
        if len(steps) < 2:
            raise StorageError(
                f"policy: {self.run} has {len(steps)} checkpoints, so none is medium; train with --checkpoint.every "
                "and --checkpoint.keep, or name a --policy"
            )
        scores = {step: self.score(step) for step in steps}
        if target is None:
            with contextlib.closing(baseline_evaluator(self.handle, "random")) as evaluator:
                low, high = float(evaluator((), 0, LOOK).returns.mean()), max(scores.values())
            target = (low + high) / 2
            self.report(f"halfway between random ({low:.1f}) and best ({high:.1f}) is {target:.1f}")
        step = min(scores, key=lambda s: abs(scores[s] - target))
        return step, scores[step]

    def score(self, step: int) -> float:
        """The run's own evaluation at a checkpoint, else one made now."""
        for row in read_metrics(self.run):
            if row.get("env_steps") == step and "eval/return_mean" in row:
                return row["eval/return_mean"]
        return float(evaluate_policy(self.handle, load_policy(self.run, str(step)), LOOK, 0).returns.mean())

    def replay(self) -> list[RecordedEpisode] | None:
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
        ring = (arrays["state/aux/ring/cursor"], arrays["state/aux/ring/count"])
        return episodes_of(rows, *ring, algo, self.handle.frames)


def episodes_of(
    rows: ReplayRows, cursor: np.ndarray, count: np.ndarray, algo: ActingAlgorithm, frames: Frames | None = None
) -> list[RecordedEpisode]:
    """The episodes of a ring of time rows [C, B, ...], column by column from the oldest row on. The first of a column
    may have lost its beginning, and the last is cut where the ring ends. `frames` says what observations are stacks of,
    of which a ring keeps the newest frame."""
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
                episode = jax.tree.map(lambda x, p=piece, b=b: x[p, b], rows)
                lost = piece[0] == order[0] and count[w] == capacity  # what came before its first row
                episode = episode if frames is None else stacked(episode, frames, lost)
                if len(episode.valid):
                    out.append(episode_of(episode, algo))
    return out


def stacked(rows: ReplayRows, frames: Frames, lost: bool) -> ReplayRows:
    """The rows [T, ...] of an episode with stacks of frames instead of the newest; without the first ones where what
    they were stacked on is lost."""
    steps = np.arange(len(rows.valid))
    parts = [rows.obs[np.maximum(steps - back, 0)] for back in reversed(range(frames.count))]
    rows = rows.replace(obs=frames.join(parts), next_obs=frames.join([*parts[1:], rows.next_obs]))
    return jax.tree.map(lambda x: x[frames.count - 1 :], rows) if lost else rows


def episode_of(rows: ReplayRows, algo: ActingAlgorithm) -> RecordedEpisode:
    """One episode from its rows [T, ...]."""

    def with_last(x: Array | np.ndarray, following: Array | np.ndarray) -> np.ndarray:
        return np.concatenate([x, following[-1:]])

    return RecordedEpisode(
        jax.tree.map(with_last, rows.obs, rows.next_obs),
        jax.tree.map(np.asarray, algo.to_env(rows.action)),
        np.asarray(rows.reward),
        bool(rows.terminated[-1]),
        None if rows.mask is None or rows.next_mask is None else with_last(rows.mask, rows.next_mask),
    )


@trustable
def collect(
    target: registry.EnvLike | Path,
    out: str | Path,
    policy: str | None = None,
    env_args: Mapping[str, object] | None = None,
    env: registry.EnvLike | None = None,
    trust: bool = False,
    **options: Any,
) -> Dataset:
    """Write a Minari dataset of a run's policies, or of random actions on an environment, and return it.

    Args:
        target: a run directory, or an environment.
        out: the folder to write, or `minari:NAME`.
        policy: what acts, in the place of the run's own: `random` or the name of a baseline.
        env_args: other settings of the environment.
        env: the environment itself, where the run was trained on an object.
        trust: whether code may run that the files name and that is not installed.
        **options: the flags of `regimen collect`: `episodes`, `steps`, `mix`, `checkpoint`, `target_return`, ...
    """
    path = Path(target) if is_run(target) else None
    origin = {} if path is None else RunFiles.open(path).config
    handle = environment(target, origin, env, env_args or {}, "collect")
    return gather(handle, path, out, policy, **options)


@partial(answered, name="collect")
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
    actors = [n for n, v in (("policy", policy), ("mix", mix), ("checkpoint", checkpoint)) if v is not None]
    if len(actors) > 1:
        raise ConfigError(f"{actors[0]} and {actors[1]} both say who acts; give one")
    if episodes is not None and steps is not None:
        raise ConfigError("episodes and steps both say how much; give one")
    if not 0 <= epsilon <= 1:
        raise ConfigError(f"epsilon: {epsilon} is out of range; it must be 0 to 1")
    single = policy or ("expert" if checkpoint == "best" else checkpoint) or ("random" if path is None else "expert")
    parts = parse_mix(mix) if mix is not None else [Part(single)]
    if path is None and any(p.policy != "random" for p in parts):
        raise ConfigError(f"policy: {handle.id} is an environment, so only 'random' can act; give a run directory")

    description = ", ".join(f"{p.fraction:.0%} {p.policy}" for p in parts) + f" on {handle.id}"
    writer = Writer(out, handle, description, "random" if path is None else str(read_config(path).get("algorithm")))
    unit, total = ("steps", steps) if steps is not None else ("episodes", episodes or DEFAULT_EPISODES)
    everything = episodes is None and steps is None
    players = Players(handle, path, report, greedy, epsilon, target_return, everything)
    try:
        for i, (part, share) in enumerate(zip(parts, shares([p.fraction for p in parts], total))):
            for stream in players.streams(part, seed + 1_000_003 * i):
                fill(writer, part, stream, unit, share, report)
            report(part.line())
        note = {"seed": seed, "env_steps": sum(p.steps for p in parts), "parts": [p.note() for p in parts]}
        folder = writer.finish(note | ({"run": path.name} if path is not None else {}))
    except BaseException:
        writer.discard()
        raise
    return dataset.read(folder)


def fill(writer: Writer, part: Part, stream: Stream, unit: str, share: int, report: Report) -> None:
    """Write the stream's own share of the part: so many episodes, or whole episodes until so many steps are reached."""
    begin, goal, waiting = getattr(part, unit), math.ceil(share * stream.fraction), []
    part.source = stream.words if not part.source else f"{part.source}; {stream.words}"
    for episode in stream.play(max(1, goal) if unit == "episodes" else NATIVE_ENVS):
        waiting.append(episode)
        part.add(episode)
        done = not stream.everything and getattr(part, unit) - begin >= goal
        if done or len(waiting) == BLOCK:
            writer.add(waiting)
            report(f"{part.policy}: {part.episodes:,} episodes, {part.steps:,} steps")
            waiting = []
        if done:
            return
    writer.add(waiting)
