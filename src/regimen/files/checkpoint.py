"""Checkpoints: the full state for exact resume, in `checkpoints/<env step>/`.

Each holds `state.safetensors` (every array by its path), `policy/` (the policy at that moment) and `meta.json`
(counters, stopping rules, what the state belongs to, and a digest of every file). A checkpoint appears by one rename,
so a killed process leaves the previous one. `index.json` says which are best or final (the rest are periodic); `best`
links to the best by evaluation.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from regimen.errors import StorageError
from regimen.files.sealed import brief, load_object, read_sealed, reading, seal, unseal, write_sealed
from regimen.files.storage import Json, plain, read_json, regular, write_json
from regimen.trees import flatten
from regimen.types import PyTree

SCHEMA = 3  # 1 had its arrays in a folder of orbax, 2 no digest of meta.json
SEALED = 3  # the first whose meta.json has a digest of itself
OLDER_READERS = {1: "regimen 0.1"}  # the last version that reads a schema which this one does not


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, path: Path, keep: int = 3, keep_best: int = 1):
        self.path, self.keep, self.keep_best = Path(path), keep, keep_best

    def steps(self) -> list[int]:
        """Env steps of every checkpoint, in order; a damaged one counts until something reads it."""
        folders = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(int(f.name) for f in folders if f.name.isdigit())

    def index(self) -> Json:
        """What index.json says: {"best": {step: evaluation return}, "final": step or None}; StorageError where the file
        has changed."""
        path = self.path / "index.json"
        if not path.exists():
            return self.remade_index()
        try:
            with reading(path):
                saved = read_sealed(path)
                best = {str(int(step)): float(score) for step, score in saved["best"].items()}
                return {"best": best, "final": None if saved["final"] is None else int(saved["final"])}
        except StorageError as e:
            raise StorageError(f"{path} is damaged; remove it: it is made again from the checkpoints") from e

    def remade_index(self) -> Json:
        """What the checkpoints themselves say of it, where the file is gone."""
        index: Json = {"best": {}, "final": None}
        for step in self.steps():
            with contextlib.suppress(StorageError, LookupError, TypeError):
                state = read_meta(self.path / str(step))["run"]
                if state["best_step"] == step and state["best"] is not None:
                    index["best"][str(step)] = state["best"]
                if state["stopped"]:
                    index["final"] = step
        return index

    def save(
        self,
        step: int,
        tree: PyTree,
        meta: Mapping[str, object],
        write_policy: Callable[[Path], None],
        *,
        best: float | None = None,
        final: bool = False,
    ) -> Path:
        """Write a checkpoint; `best` is its evaluation return when it is a new best. Older ones are retired."""
        target = self.path / str(step)
        tmp = self.path / f".{step}.tmp"
        try:
            if not is_current(target, meta):
                shutil.rmtree(tmp, ignore_errors=True)
                tmp.mkdir(parents=True)
                save_file(flatten(tree), tmp / "state.safetensors")
                write_policy(tmp / "policy")
                files = {str(p.relative_to(tmp)): digest(p) for p in sorted(tmp.rglob("*")) if p.is_file()}
                write_json(tmp / "meta.json", seal(plain({**meta, "files": files}), SCHEMA))
                shutil.rmtree(target, ignore_errors=True)
                os.rename(tmp, target)
            self.retire(step, best, final)
        except (OSError, SafetensorError) as e:
            reason = getattr(e, "strerror", None) or e
            raise StorageError(f"cannot write the checkpoint {target}: {reason}") from e
        finally:
            shutil.rmtree(tmp, ignore_errors=True)
        return target

    def retire(self, step: int, best: float | None, final: bool) -> None:
        """Note what the newest checkpoint is, and delete those that need not be kept any longer."""
        index = self.index()
        if best is not None:
            index["best"][str(step)] = best
            for old in sorted(index["best"], key=lambda s: (index["best"][s], int(s)))[: -self.keep_best]:
                del index["best"][old]
        if final:
            index["final"] = step
        write_sealed(self.path / "index.json", index)
        self.link_best()
        needed = {*map(int, index["best"]), index["final"], step}
        others = [s for s in self.steps() if s not in needed]
        for old in others[: max(len(others) - (self.keep - 1), 0)]:
            shutil.rmtree(self.path / str(old), ignore_errors=True)

    def end(self, step: int) -> None:
        """Note that the checkpoint of `step` is the last of a run that has ended. One that was killed just before has
        forgotten it when it is resumed, and may have left an older one to delete."""
        if step in self.steps():
            self.retire(step, None, final=True)

    def link_best(self) -> None:
        """Let `best` point to the best by evaluation, or be gone when there is none."""
        link, step = self.path / "best", self.best()
        if step is None:
            link.unlink(missing_ok=True)
            return
        spare = self.path / ".best.tmp"
        spare.unlink(missing_ok=True)
        spare.symlink_to(str(step))
        os.replace(spare, link)

    def best(self) -> int | None:
        """The step of the best by evaluation that still exists."""
        existing = self.steps()
        scores = {int(s): score for s, score in self.index()["best"].items() if int(s) in existing}
        return max(scores, key=lambda s: (scores[s], s)) if scores else None

    def find(self, which: str) -> Path:
        """The folder of `best`, `final`, `latest` or a step. Best without an evaluation, and final of an unfinished
        run, are the latest."""
        steps = self.steps()
        if not steps:
            raise StorageError(f"{self.path.parent} has no checkpoint")
        names = {"best": self.best(), "final": self.index()["final"], "latest": steps[-1]}
        if which in names:
            return self.path / str(names[which] if names[which] in steps else steps[-1])
        if not which.isdigit():
            raise StorageError(f"--checkpoint: '{which}' is none of best, final, latest or a step")
        if int(which) not in steps:
            near, others = min(steps, key=lambda s: abs(s - int(which))), ", ".join(map(str, steps))
            raise StorageError(
                f"--checkpoint: there is no checkpoint at step {int(which)}; nearest: {near}; there are: {others}"
            )
        return self.path / str(int(which))

    def load(self, which: str, warn: Callable[[str], None]) -> tuple[dict[str, np.ndarray], Json, Path]:
        """Arrays and meta of a checkpoint. A damaged `latest` falls back to the one before it, with a warning."""
        path = self.find(which)
        while True:
            try:
                return *read(path), path
            except OldSchemaError:
                raise
            except StorageError as e:
                older = [s for s in self.steps() if s < int(path.name)]
                if which != "latest" or not older:
                    raise
                warn(f"{e}; using the checkpoint at step {older[-1]} instead")
                path = self.path / str(older[-1])

    def forget_after(self, step: int) -> None:
        """Drop checkpoints later than `step`: the run is about to write them anew."""
        if not self.steps():
            return
        index = self.index()
        index["best"] = {s: score for s, score in index["best"].items() if int(s) <= step}
        index["final"] = None
        write_sealed(self.path / "index.json", index)
        for later in [s for s in self.steps() if s > step]:
            shutil.rmtree(self.path / str(later), ignore_errors=True)
        self.link_best()


def is_current(target: Path, meta: Mapping[str, object]) -> bool:
    """Whether this very moment is on disk already (a best and a periodic checkpoint may coincide)."""
    return read_json(target / "meta.json").get("run") == json.loads(json.dumps(meta["run"]))


class OldSchemaError(StorageError):
    """A checkpoint whose state only an earlier version can read; those before it are no newer."""


def read(path: Path) -> tuple[dict[str, np.ndarray], Json]:
    """Read one checkpoint: its arrays and meta.json, verified."""
    meta = verify(path)
    if reader := OLDER_READERS.get(meta["schema"]):
        raise OldSchemaError(
            f"the checkpoint {path} was written by an earlier version of regimen; {reader} reads it (schema "
            f"{meta['schema']}, this version reads {SCHEMA}). Its policy can still be loaded"
        )
    try:
        return load_file(path / "state.safetensors"), meta
    except (OSError, SafetensorError) as e:
        raise StorageError(f"the checkpoint {path} is damaged: {type(e).__name__}: {str(e)[:200]}") from e


def verify(path: Path) -> Json:
    """The meta.json of a checkpoint whose files are those that were written, by this version or an earlier one."""
    meta = read_meta(path)
    for name, expected in meta["files"].items():
        if not (path / name).is_file() or digest(path / name) != expected:
            raise StorageError(f"the checkpoint {path} is damaged: {name} is missing or has changed")
    return meta


def read_meta(path: Path) -> Json:
    """The meta.json of a checkpoint, as it was written."""
    try:
        meta = unseal(load_object(path / "meta.json"), "meta.json", SEALED)
        schema, files = int(meta["schema"]), {str(name): str(digest) for name, digest in meta["files"].items()}
    except (StorageError, ValueError, LookupError, TypeError, AttributeError) as e:
        why = e if isinstance(e, StorageError) else f"meta.json cannot be read ({brief(e)})"
        raise StorageError(f"the checkpoint {path} is damaged: {why}") from e
    if schema > SCHEMA:
        raise StorageError(
            f"the checkpoint {path} was written by a newer version of regimen (schema {schema}, this version "
            f"reads up to {SCHEMA}); upgrade regimen"
        )
    return meta | {"files": files}


def digest(path: Path) -> str:
    """SHA-256 of a file, read in pieces: a replay may be larger than the memory that is free."""
    with open(path, "rb", opener=regular) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
