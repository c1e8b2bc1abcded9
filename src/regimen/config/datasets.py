"""Where offline data is and which environment it belongs to, without reading it. Jax-free: the command line asks.

A dataset is a Minari folder (`data/metadata.json` within), `minari:ID` in Minari's own root, or a `.npz` file with the
same arrays, for machines without Minari (`regimen.sources.dataset`).
"""

import json
import zipfile
from pathlib import Path
from typing import Any

from regimen.config import trust
from regimen.errors import ConfigError, StorageError

PREFIX = "minari:"
OWN = "regimen"  # the key of our own metadata
INSTALL = "datasets need Minari: pip install 'regimen[offline]'"


def locate(name: object) -> Path | None:
    """The dataset that a text names: its Minari folder or `.npz` file; None when it names something else."""
    if not isinstance(name, (str, Path)):
        return None
    if isinstance(name, str) and name.startswith(PREFIX):
        path = in_root(name)
        if not (path / "data").is_dir():
            raise StorageError(f"{name}: no such dataset in {path.parent}; datasets are never downloaded here")
        return path
    path = Path(name).expanduser()
    if path.suffix == ".npz" and path.is_file():
        return path
    return path if (path / "data" / "metadata.json").is_file() else None


def in_root(name: str) -> Path:
    """The folder of `minari:ID`."""
    try:
        from minari.storage import get_dataset_path
    except ImportError as e:
        raise ConfigError(INSTALL) from e
    return Path(get_dataset_path(name.removeprefix(PREFIX)))


def read_metadata(path: Path) -> dict[str, Any]:
    """The metadata of a dataset."""
    try:
        if path.suffix == ".npz":
            import numpy as np

            with np.load(path, allow_pickle=False) as file:
                metadata = json.loads(str(file["metadata"]))
        else:
            metadata = json.loads((path / "data" / "metadata.json").read_text(encoding="utf-8"))
        if not isinstance(metadata, dict):
            raise ValueError("no object")
        return metadata
    except (OSError, ValueError, LookupError, EOFError, RecursionError, zipfile.BadZipFile) as e:
        raise StorageError(f"the dataset {path} is damaged: its metadata cannot be read ({type(e).__name__})") from e


def environment(path: Path) -> tuple[str, dict[str, Any]]:
    """(id, arguments) of the environment that a dataset was collected on: our own note, else Gymnasium's."""
    metadata = read_metadata(path)
    note = metadata.get(OWN)
    if isinstance(note, dict) and note.get("env"):
        args = note.get("env_args") or {}
        if not isinstance(args, dict):
            raise StorageError(f"the dataset {path} is damaged: env_args is {str(args)[:40]!r}, which is no object")
        return trust.named(str(note["env"]), path), dict(args)
    try:
        spec = json.loads(metadata["env_spec"])
        limit = spec.get("max_episode_steps")
        args = dict(spec.get("kwargs") or {}) | ({"max_episode_steps": limit} if limit else {})
        return trust.named(f"gym:{spec['id']}", path), args
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        raise ConfigError(
            f"the dataset {path} does not say which environment it is of; name it: `regimen train ENV --data {path}`"
        ) from None
