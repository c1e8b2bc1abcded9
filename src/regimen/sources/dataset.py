"""Offline data: Minari datasets as arrays. Nothing is downloaded and nothing is unpickled.

A Minari episode has one observation more than steps, so that the true successor of every step is there, also of the
last one. Actions are kept as the environment took them; `on_device` brings them into the form an algorithm learns from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from regimen import spaces
from regimen.config import datasets
from regimen.config.datasets import INSTALL, OWN
from regimen.distributions import Distribution
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError, RegimenError, StorageError
from regimen.sources.replay import NStepTransitions, Replay, ReplayRows, Ring
from regimen.types import Array, PyTree, Record, pytree_dataclass

if TYPE_CHECKING:
    import minari

MASK = "action_mask"  # key of an episode's infos: rows over the options, as `spaces.mask_row` makes them
PROBE = 1024  # rows on which what a critic says is compared with what happened
TAIL = 50  # last rewards of a truncated episode, whose mean stands for all that would have followed


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode as it was played."""

    obs: PyTree  # [T + 1, ...]
    action: PyTree  # [T, ...] as the environment took it
    reward: np.ndarray  # [T]
    terminated: bool
    mask: np.ndarray | None = None  # [T + 1, L], True = allowed

    @property
    def steps(self) -> int:
        return len(self.reward)


@dataclass(frozen=True)
class Dataset:
    """All steps of a dataset, episode after episode."""

    path: Path
    name: str
    metadata: dict[str, Any]
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    obs: PyTree  # [N, ...]
    action: PyTree  # [N, ...] as the environment took it
    reward: np.ndarray  # [N] sum of the components
    terminated: np.ndarray  # [N]
    next_obs: PyTree  # [N, ...]
    starts: np.ndarray  # [episodes] first step of each
    mask: np.ndarray | None = None  # [N, L]
    next_mask: np.ndarray | None = None  # [N, L]

    @property
    def steps(self) -> int:
        return len(self.reward)

    @property
    def episodes(self) -> int:
        return len(self.starts)

    @property
    def truncated(self) -> np.ndarray:
        """[N] Whether an episode was cut short here, also where its collector just stopped."""
        ends = np.append(self.starts[1:], self.steps) - 1
        truncated = np.zeros_like(self.terminated)
        truncated[ends] = ~self.terminated[ends]
        return truncated

    @property
    def returns(self) -> np.ndarray:
        """Undiscounted returns by episode."""
        return np.add.reduceat(self.reward.astype(np.float64), self.starts)

    @property
    def bytes(self) -> int:
        files = [self.path] if self.path.is_file() else [p for p in self.path.rglob("*") if p.is_file()]
        return sum(p.stat().st_size for p in files)

    def describe(self) -> dict[str, Any]:
        """What a run keeps of the data it learned from; the digest is of what is learned from, not of the files."""
        out = {"path": str(self.path), "name": self.name, "sha256": self.digest()}
        out |= {"episodes": self.episodes, "steps": self.steps}
        out |= {f"return_{how}": float(getattr(self.returns, how)()) for how in ("mean", "min", "max")}
        return out | {k: v for k, v in self.metadata.get(OWN, {}).items() if k in ("env_steps", "parts")}

    def summary(self) -> str:
        r = self.returns
        return (
            f"{self.name}: {self.episodes:,} episodes, {self.steps:,} steps, return {r.mean():.2f} "
            f"(min {r.min():.2f}, max {r.max():.2f}), {self.bytes / 1e6:.1f} MB"
        )

    def digest(self) -> str:
        sha = hashlib.sha256()
        for x in jax.tree.leaves((self.obs, self.action, self.reward, self.terminated, self.truncated)):
            sha.update(np.ascontiguousarray(x).tobytes())
        return sha.hexdigest()

    def monte_carlo(self, gamma: float) -> np.ndarray:
        """The discounted return that followed each step [N].

        An episode that was cut short goes on in the estimate as it ended: with the mean of its last `TAIL` rewards
        for ever, worth mean / (1 - gamma) where it was cut. Nothing learned enters.
        """
        reward, truncated, out = self.reward.astype(np.float64), self.truncated, np.zeros(self.steps)
        for start, stop in zip(self.starts, [*self.starts[1:], self.steps]):
            after = 0.0
            if truncated[stop - 1] and gamma < 1:
                after = reward[max(start, stop - TAIL) : stop].mean() / (1 - gamma)
            for t in range(stop - 1, start - 1, -1):
                after = out[t] = reward[t] + gamma * after
        return out.astype(np.float32)

    def save_npz(self, path: Path) -> Path:
        """Write the dataset as one file that numpy alone can read."""
        arrays = {"reward": self.reward, "terminated": self.terminated, "starts": self.starts}
        for name, space in zip(("obs", "next_obs", "action"), (*[self.observation_space] * 2, self.action_space)):
            arrays |= {f"{name}/{k}": v for k, v in spaces.split(space, getattr(self, name)).items()}
        if self.mask is not None and self.next_mask is not None:
            arrays |= {"mask": self.mask, "next_mask": self.next_mask}
        metadata = {
            OWN: self.metadata.get(OWN, {}),
            "name": self.name,
            "observation_space": spaces.to_json(self.observation_space),
            "action_space": spaces.to_json(self.action_space),
        }
        with open(path, "wb") as file:
            np.savez_compressed(file, **{"metadata": np.array(json.dumps(metadata))} | arrays)  # type: ignore[arg-type]
        return Path(path)


@pytree_dataclass
class Data(Record):
    """A dataset on the device, the way a replay is: every learner reads the same rows."""

    rows: ReplayRows  # [N, 1, ...] actions as sampled, before squashing and scaling
    ring: Ring  # all of them count
    probe: ReplayRows  # [P, ...] evenly spaced ones, to measure on
    mc_return: Array  # [P] the discounted return that followed

    @property
    def steps(self) -> int:
        return self.rows.reward.shape[0]

    def sample(self, key: Array, size: int, n_step: int = 1, gamma: Array | float = 0.0) -> NStepTransitions:
        return Replay(self.steps, 1, 1).sample(self.ring, self.rows, key, size, n_step, gamma)


def on_device(data: Dataset, dist: Distribution, gamma: float, probe: int = PROBE) -> Data:
    """The dataset in the form that an algorithm with this action distribution learns from."""
    n = data.steps
    columns: tuple[PyTree, ...] = (
        data.obs,
        dist.from_env(data.action),
        data.reward,
        data.terminated,
        data.truncated,
        data.next_obs,
    )
    masks: tuple[PyTree, ...] = (data.mask, data.next_mask)
    table = jax.tree.map(jnp.asarray, ReplayRows(*columns, np.ones(n, bool), *masks))  # type: ignore[arg-type]
    some = np.unique(np.linspace(0, n - 1, min(probe, n)).astype(int))
    return Data(
        rows=jax.tree.map(lambda x: x[:, None], table),
        ring=Ring(jnp.zeros(1, jnp.int32), jnp.full(1, n, jnp.int32)),
        probe=jax.tree.map(lambda x: x[some], table),
        mc_return=jnp.asarray(data.monte_carlo(gamma)[some]),
    )


def read(name: str | Path | None) -> Dataset:
    """The dataset in a folder, in a `.npz` file, or of `minari:ID`."""
    path = datasets.locate(name)
    if path is None:
        where = Path(str(name))
        why = "no such folder" if not where.exists() else "there is no data/metadata.json in it"
        raise StorageError(f"{name} is not a Minari dataset: {why}")
    try:
        data = read_npz(path) if path.suffix == ".npz" else read_minari(path)
    except RegimenError:
        raise
    except Exception as e:  # whatever h5py, json or Minari raise on a damaged file
        raise StorageError(f"the dataset {path} cannot be read: {type(e).__name__}: {' '.join(str(e).split())}") from e
    return checked(data)


def read_minari(path: Path) -> Dataset:
    try:
        import minari
    except ImportError as e:
        raise ConfigError(INSTALL) from e
    data = minari.MinariDataset(str(path / "data"))
    if data.total_episodes == 0:
        raise StorageError(f"the dataset {path} is empty: it has no episodes")
    metadata = dict(data.storage.metadata)
    episodes = [
        from_minari(e, data.observation_space, f"{path}: episode {i}") for i, e in enumerate(data.iterate_episodes())
    ]
    return joined(path, data.id, metadata, data.observation_space, data.action_space, episodes)


def from_minari(data: minari.EpisodeData, space: gymnasium.Space, where: str) -> RecordedEpisode:
    """One episode, its lengths and flags checked."""
    steps, infos = len(data.rewards), data.infos or {}
    lengths = {len(x) for x in jax.tree.leaves(data.observations)}
    if steps == 0 or lengths != {steps + 1} or {len(x) for x in jax.tree.leaves(data.actions)} != {steps}:
        raise StorageError(
            f"{where} is broken: {max(lengths)} observations for {steps} rewards; there must be one more, and as many "
            "actions as rewards"
        )
    ended = np.asarray(data.terminations, bool) | np.asarray(data.truncations, bool)
    if ended[:-1].any():
        raise StorageError(f"{where} is broken: it ends at step {int(np.argmax(ended))} and has {steps} steps")
    mask = np.asarray(infos[MASK], bool) if MASK in infos and np.ndim(infos[MASK]) == 2 else None
    reward = np.asarray(data.rewards, np.float32)
    return RecordedEpisode(
        spaces.cast(space, data.observations), data.actions, reward, bool(data.terminations[-1]), mask
    )


def joined(
    path: Path,
    name: str,
    metadata: dict[str, Any],
    observation_space: gymnasium.Space,
    action_space: gymnasium.Space,
    episodes: list[RecordedEpisode],
) -> Dataset:
    """Episodes as one table of steps."""

    def rows(part: Callable[[RecordedEpisode], PyTree]) -> PyTree:
        return jax.tree.map(lambda *x: np.concatenate(x), *map(part, episodes))

    masked = episodes[0].mask is not None
    lengths = np.array([e.steps for e in episodes])
    ends = np.cumsum(lengths) - 1
    terminated = np.zeros(lengths.sum(), bool)
    terminated[ends] = [e.terminated for e in episodes]
    return Dataset(
        path,
        name,
        metadata,
        observation_space,
        action_space,
        obs=rows(lambda e: jax.tree.map(lambda x: x[:-1], e.obs)),
        action=rows(lambda e: spaces.cast(action_space, e.action)),
        reward=rows(lambda e: e.reward),
        terminated=terminated,
        next_obs=rows(lambda e: jax.tree.map(lambda x: x[1:], e.obs)),
        starts=ends - lengths + 1,
        mask=rows(lambda e: jax.tree.map(lambda x: x[:-1], e.mask)) if masked else None,
        next_mask=rows(lambda e: jax.tree.map(lambda x: x[1:], e.mask)) if masked else None,
    )


def read_npz(path: Path) -> Dataset:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    metadata = json.loads(str(arrays.pop("metadata")))
    observation_space, action_space = (spaces.from_json(metadata[k]) for k in ("observation_space", "action_space"))

    def part(prefix: str, space: gymnasium.Space) -> PyTree:
        values = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        return spaces.build(space, values)

    return Dataset(
        path,
        metadata["name"],
        metadata,
        observation_space,
        action_space,
        obs=part("obs/", observation_space),
        action=part("action/", action_space),
        reward=arrays["reward"],
        terminated=arrays["terminated"],
        next_obs=part("next_obs/", observation_space),
        starts=arrays["starts"],
        mask=arrays.get("mask"),
        next_mask=arrays.get("next_mask"),
    )


def checked(data: Dataset) -> Dataset:
    """The dataset, or an error that names what cannot be learned from."""
    parts = {"observations": data.obs, "actions": data.action, "rewards": data.reward, "successors": data.next_obs}
    for what, tree in parts.items():
        if not all(np.isfinite(x).all() for x in jax.tree.leaves(tree)):
            raise StorageError(f"the dataset {data.path} has {what} that are not finite")
    leaves, values = spaces.leaves(data.action_space), spaces.split(data.action_space, data.action)
    for name, space in leaves.items():
        x = values[name]
        if x.shape[1:] != space.shape:
            raise StorageError(f"the dataset {data.path} has actions of shape {x.shape[1:]}; its space is {space}")
        low, high = spaces.bounds(space)
        if (x < low - 1e-4 * np.abs(low)).any() or (x > high + 1e-4 * np.abs(high)).any():
            raise StorageError(f"the dataset {data.path} has actions outside its action space {space}")
    return data


def require_fit(data: Dataset, handle: EnvHandle) -> None:
    """Refuse data of another environment, naming both."""
    for what in ("observation_space", "action_space"):
        of_data, of_env = getattr(data, what), getattr(handle, what)
        if parts_of(of_data) != parts_of(of_env):
            raise ConfigError(
                f"data: {data.path} does not fit {handle.id}: its {what.replace('_', ' ')} is "
                f"{spaces.describe(of_data)}, the environment's is {spaces.describe(of_env)}"
            )


def parts_of(space: gymnasium.Space) -> dict[str, str]:
    """The parts of a space by name, in words: Minari does not keep the order of a Dict."""
    return {name: spaces.describe(leaf) for name, leaf in spaces.leaves(space).items()}
