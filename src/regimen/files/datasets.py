"""Writing Minari datasets: whole, or not at all."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from regimen import spaces
from regimen.config import datasets
from regimen.config.datasets import INSTALL, OWN, PREFIX
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError, StorageError
from regimen.files.storage import check_free
from regimen.sources.dataset import MASK, RecordedEpisode
from regimen.types import PyTree

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer


class Writer:
    """A dataset being written: whole, or not at all. `out` is a folder or `minari:ID`."""

    def __init__(self, out: str | Path, handle: EnvHandle, description: str, algorithm: str):
        try:
            from minari.dataset.minari_storage import MinariStorage
        except ImportError as e:
            raise ConfigError(INSTALL) from e
        self.handle = handle
        self.path, name = destination(out)
        self.tmp = self.path.with_name(f".{self.path.name}.tmp")
        with self.writing():
            shutil.rmtree(self.tmp, ignore_errors=True)
            self.tmp.mkdir(parents=True)
            self.storage: Any = MinariStorage.new(
                (self.tmp / "data").absolute(),  # Minari measures a relative one in the wrong place
                handle.observation_space,
                handle.action_space,
                env_spec_of(handle),
                jpeg_encoding=False,
            )
        about = {"dataset_id": name, "description": description, "algorithm_name": algorithm}
        self.storage.update_metadata(about | {"minari_version": metadata.version("minari")})

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StorageError(f"--out: cannot write to {self.path}: {e.strerror or e}") from e

    def add(self, episodes: Iterable[RecordedEpisode]) -> None:
        with self.writing():
            self.storage.update_episodes([to_minari(e, self.handle) for e in episodes])

    def finish(self, note: Mapping[str, object]) -> Path:
        """Put it in its place; `note` is what we keep about it beside Minari's own metadata."""
        with self.writing():
            self.storage.update_metadata({OWN: {"env": self.handle.id, "env_args": self.handle.env_args, **note}})
            self.tmp.rename(self.path)
        return self.path

    def discard(self) -> None:
        shutil.rmtree(self.tmp, ignore_errors=True)


def destination(out: str | Path) -> tuple[Path, str]:
    """Where a dataset is written, (folder, dataset id); what exists is left alone. Minari ids end in a version: `-v0`
    unless the name has one."""
    text = str(out)
    path = Path(text).expanduser()
    name = re.sub(r"[^\w-]+", "-", path.name) or "dataset"
    if text.startswith(PREFIX):
        name = text.removeprefix(PREFIX)
    name = name if re.search(r"-v\d+$", name) else f"{name}-v0"
    if text.startswith(PREFIX):
        from minari import namespace
        from minari.dataset.minari_dataset import parse_dataset_id

        try:
            space, _, _ = parse_dataset_id(name)
        except ValueError as e:
            raise ConfigError(f"--out: '{text}' is no Minari id; write minari:NAMESPACE/NAME-v0") from e
        path = datasets.in_root(PREFIX + name)
        if space is not None and space not in namespace.list_local_namespaces():
            namespace.create_namespace(space)
    check_free(path)
    if path.exists():
        path.rmdir()
    return path, name


def env_spec_of(handle: EnvHandle) -> EnvSpec | None:
    """What makes the environment again in Gymnasium, for Minari's `recover_environment`; None where nothing does."""
    if handle.agents:
        return None
    if handle.native is None:
        assert handle.make_host is not None
        env = handle.make_host()
        env.close()
        return env.spec
    name = "regimen/" + re.sub(r"[^\w.-]+", ".", handle.id)
    return EnvSpec(
        id=name,
        entry_point="regimen.envs.adapters.gymnasium:make_registered",
        max_episode_steps=handle.max_episode_steps,
        kwargs={"name": handle.id, **handle.env_args},
    )


def to_minari(episode: RecordedEpisode, handle: EnvHandle) -> EpisodeBuffer:
    """One episode as Minari stores it."""
    from minari.data_collector import EpisodeBuffer

    last = np.arange(episode.steps) == episode.steps - 1
    return EpisodeBuffer(
        observations=members(handle.observation_space, episode.obs),
        actions=members(handle.action_space, episode.action),
        rewards=episode.reward.astype(np.float64),  # type: ignore[arg-type]
        terminations=last & episode.terminated,  # type: ignore[arg-type]
        truncations=last & (not episode.terminated),  # type: ignore[arg-type]
        infos=None if episode.mask is None else {MASK: episode.mask},
    )


def members(space: gymnasium.Space, x: PyTree) -> PyTree:
    """Arrays in the space's own types."""
    leaves = spaces.leaves(space)
    return spaces.build(space, {k: np.asarray(v, leaves[k].dtype) for k, v in spaces.split(space, x).items()})
