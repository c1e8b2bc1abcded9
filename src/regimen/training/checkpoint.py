"""Checkpoints: the full state for exact resume, in `checkpoints/<env step>/`.

Each holds `state/` (orbax), `policy/` (the policy at that moment) and `meta.json` (counters, stopping rules, what the
state belongs to, and a digest of every file). A checkpoint appears by one rename, so a killed process leaves the
previous one. `index.json` says which are periodic, best or final; `best` links to the best by evaluation.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from regimen.errors import StorageError
from regimen.tracking.files import write_json
from regimen.training.trees import flatten
from regimen.types import PyTree

SCHEMA = 1


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, path: Path, keep: int = 3, keep_best: int = 1):
        self.path, self.keep, self.keep_best = Path(path), keep, keep_best

    def entries(self) -> dict[int, dict[str, Any]]:
        """Step -> what its meta.json says, for every finished checkpoint, in order of steps."""
        found = {}
        for folder in self.path.iterdir() if self.path.is_dir() else ():
            if folder.name.isdigit() and (folder / "meta.json").exists():
                with contextlib.suppress(OSError, ValueError):
                    found[int(folder.name)] = json.loads((folder / "meta.json").read_text())
        return dict(sorted(found.items()))

    def index(self) -> dict[str, Any]:
        try:
            return json.loads((self.path / "index.json").read_text())
        except (OSError, ValueError):
            return {"best": {}, "final": None}

    def save(
        self,
        step: int,
        tree: PyTree,
        meta: dict[str, Any],
        write_policy: Callable[[Path], None],
        *,
        best: float | None = None,
        final: bool = False,
    ) -> Path:
        """Write a checkpoint; `best` is its evaluation return when it is a new best. Older ones are retired."""
        target = self.path / str(step)
        tmp = self.path / f".{step}.tmp"
        try:
            if not self.is_current(target, meta):
                shutil.rmtree(tmp, ignore_errors=True)
                tmp.mkdir(parents=True)
                checkpointer().save((tmp / "state").absolute(), storable(flatten(tree)))
                write_policy(tmp / "policy")
                files = {str(p.relative_to(tmp)): digest(p) for p in sorted(tmp.rglob("*")) if p.is_file()}
                write_json(tmp / "meta.json", {"schema": SCHEMA, **meta, "files": files})
                if target.exists():
                    shutil.rmtree(target)
                os.rename(tmp, target)
            self.retire(step, best, final)
        except OSError as e:
            shutil.rmtree(tmp, ignore_errors=True)
            raise StorageError(f"cannot write the checkpoint {target}: {e}") from e
        return target

    def is_current(self, target: Path, meta: dict[str, Any]) -> bool:
        """Whether this very moment is on disk already (a best and a periodic checkpoint may coincide)."""
        try:
            saved = json.loads((target / "meta.json").read_text())
        except (OSError, ValueError):
            return False
        return saved["run"] == json.loads(json.dumps(meta["run"]))

    def retire(self, step: int, best: float | None, final: bool) -> None:
        index = self.index()
        if best is not None:
            index["best"][str(step)] = best
            for old in sorted(index["best"], key=lambda s: index["best"][s])[: -self.keep_best]:
                del index["best"][old]
        if final:
            index["final"] = step
        write_json(self.path / "index.json", index)
        link = self.path / "best"
        if index["best"]:
            top = max(index["best"], key=lambda s: (index["best"][s], int(s)))
            spare = self.path / ".best.tmp"
            spare.unlink(missing_ok=True)
            spare.symlink_to(top)
            os.replace(spare, link)
        kept = {*map(int, index["best"]), index["final"], step}
        others = [s for s in self.entries() if s not in kept]
        periodic = max(self.keep - 1, 0)
        for old in others[: len(others) - periodic]:
            shutil.rmtree(self.path / str(old), ignore_errors=True)

    def find(self, which: str) -> Path:
        """The folder of `best`, `final`, `latest` or a step."""
        entries, index = self.entries(), self.index()
        if not entries:
            raise StorageError(f"{self.path.parent} has no checkpoint")
        if which == "latest":
            step = max(entries)
        elif which == "final":
            step = index["final"] if index["final"] in entries else max(entries)
        elif which == "best":
            scores = {int(s): v for s, v in index["best"].items() if int(s) in entries}
            step = max(scores, key=lambda s: (scores[s], s)) if scores else max(entries)
        elif which.isdigit():
            step = int(which)
        else:
            raise StorageError(f"--checkpoint: '{which}' is none of best, final, latest or a step")
        if step not in entries:
            near = min(entries, key=lambda s: abs(s - step))
            raise StorageError(
                f"--checkpoint: there is no checkpoint at step {step}; nearest: {near}; "
                f"there are: {', '.join(map(str, entries))}"
            )
        return self.path / str(step)

    def load(self, which: str, warn: Callable[[str], None]) -> tuple[dict[str, np.ndarray], dict[str, Any], Path]:
        """Arrays and meta of a checkpoint. A damaged `latest` falls back to the one before it, with a warning."""
        path = self.find(which)
        while True:
            try:
                arrays, meta = read(path)
                return arrays, meta, path
            except StorageError as e:
                older = [s for s in self.entries() if s < int(path.name)]
                if which != "latest" or not older:
                    raise
                warn(f"{e}; using the checkpoint at step {older[-1]} instead")
                path = self.path / str(older[-1])

    def forget_after(self, step: int) -> None:
        """Drop checkpoints later than `step`: the run is about to write them anew."""
        index = self.index()
        index["best"] = {s: v for s, v in index["best"].items() if int(s) <= step}
        index["final"] = None
        for later in [s for s in self.entries() if s > step]:
            shutil.rmtree(self.path / str(later), ignore_errors=True)
        link = self.path / "best"
        if link.is_symlink() and not link.exists():
            link.unlink()
        write_json(self.path / "index.json", index)


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """One checkpoint, verified against its digests."""
    try:
        meta = json.loads((path / "meta.json").read_text())
    except (OSError, ValueError) as e:
        raise StorageError(f"the checkpoint {path} is damaged: meta.json: {e}") from e
    if meta.get("schema", 0) > SCHEMA:
        raise StorageError(
            f"the checkpoint {path} was written by a newer version of regimen (schema {meta['schema']}, this version "
            f"reads up to {SCHEMA}); upgrade regimen"
        )
    for name, expected in meta["files"].items():
        if not (path / name).exists() or digest(path / name) != expected:
            raise StorageError(f"the checkpoint {path} is damaged: {name} is missing or has changed")
    try:
        arrays = checkpointer().restore((path / "state").absolute())
    except Exception as e:
        raise StorageError(f"the checkpoint {path} is damaged: {type(e).__name__}: {str(e)[:200]}") from e
    return {k.replace("|", "/"): np.asarray(v) for k, v in arrays.items()}, meta


def storable(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k.replace("/", "|"): v for k, v in arrays.items() if v.size}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


_checkpointer: Any = None


def checkpointer() -> Any:
    global _checkpointer
    if _checkpointer is None:
        import logging

        logging.getLogger("absl").setLevel(logging.ERROR)
        import orbax.checkpoint as ocp

        _checkpointer = ocp.PyTreeCheckpointer()
    return _checkpointer
