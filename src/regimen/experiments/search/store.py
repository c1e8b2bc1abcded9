"""The directory of a search: its state as JSON, policies as safetensors, and the tables people read.

    state.json       everything needed to go on, replaced in one step; names the files of the policies that it counts on
    policies/        of each candidate, of the start, and the one in training
    training.csv     one row per update       search.csv   one row per trial
    views/posterior.json   what was believed after each of the last trials, for the live page

Files that a state does not name any more are removed only after the state that replaced it is on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.errors import StorageError
from regimen.experiments.search.gate import Gate
from regimen.experiments.search.methods import Belief, Evidence, current
from regimen.experiments.search.space import Space
from regimen.experiments.search.trial import Arrays, Saved
from regimen.files.sealed import load_object, reading, unseal, write_sealed
from regimen.files.storage import CsvLog, cell, plain, read_bytes, remove_halves, require_own, write_atomic, writing
from regimen.reports.table import Table

if TYPE_CHECKING:
    from regimen.experiments.search.loop import Verdict

SCHEMA = 2  # 1 had no digests
MOST = 30_000  # candidates in all frames together: what the page reads is bounded
BOOKS = ("files", "digests", "current", "rows", "serial", "updates")  # what a store keeps beside the search
TRAINING = ("trial", "candidate", "order", "update", "episodes", "total_episodes", "value", "rate", "seconds")


@dataclass(frozen=True)
class Names:
    """What value and rate are called, and columns of training.csv and search.csv instead of their plain names."""

    value: str = "value"
    rate: str = "rate"
    training: Mapping[str, str] = field(default_factory=dict)
    search: Mapping[str, str] = field(default_factory=dict)


class Store:
    """The files of one search."""

    def __init__(self, path: Path, names: Names | None = None):
        self.path, self.names = Path(path), names or Names()
        self.identity: Saved = {}
        self.files: dict[str, str] = {}  # name of a policy -> its file
        self.digests: dict[str, str] = {}  # of those files
        self.current: str | None = None  # of the policy in training
        self.rows = 0
        self.serial = 0
        self.updates: dict[int, int] = {}
        self.table: CsvLog | None = None

    def load(self, identity: Mapping[str, object]) -> Saved | None:
        """The state to go on from, or None in a new directory; another search's is refused."""
        self.identity = plain(identity)
        file = self.path / "state.json"
        require_own(self.path)
        remove_halves(self.path)
        if not file.exists():
            if self.path.exists() and any(not p.name.startswith(".") for p in self.path.iterdir()):
                raise StorageError(f"{self.path} is not empty and holds no search; name another directory with --out")
            with writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            return None
        with reading(file):
            saved = unseal(load_object(file), str(file), SCHEMA)
            identity_before, schema = saved["identity"], saved["schema"]
            if schema > SCHEMA:
                raise StorageError(f"{file} was written by a newer version (schema {schema} > {SCHEMA})")
            books = {name: saved.get(name, {}) if name == "digests" else saved[name] for name in BOOKS}
            books["updates"] = {int(trial): n for trial, n in books["updates"].items()}
        different = difference(identity_before, self.identity)
        if different is not None:
            name, old, new = different
            raise StorageError(
                f"{self.path} holds another search: its {name} is {short(old)}, this one's is {short(new)}; "
                "continue it with the settings it was begun with, or name another directory with --out"
            )
        for name, value in books.items():
            setattr(self, name, value)
        self.rewind()
        return saved

    def save(self, state: Mapping[str, object], arrays: Arrays | None = None) -> None:
        if state["running"] is None:
            self.current = None
        elif arrays is not None:
            self.current = self.write(arrays, "current")
        in_use = {*self.files.values(), self.current}
        self.digests = {file: digest for file, digest in self.digests.items() if file in in_use}
        books = {name: getattr(self, name) for name in BOOKS}
        write_sealed(self.path / "state.json", {"identity": self.identity, **books, **state}, SCHEMA)
        for file in (self.path / "policies").glob("*.safetensors"):
            if file.name not in in_use:
                file.unlink(missing_ok=True)

    def save_policy(self, name: str, arrays: Arrays) -> None:
        """Write a policy, which the state counts on from the next `save` on."""
        self.files[name] = self.write(arrays, name)

    def write(self, arrays: Arrays, name: str) -> str:
        from safetensors.numpy import save

        self.serial += 1
        file = f"{name}-{self.serial}.safetensors"
        with writing(self.path):
            (self.path / "policies").mkdir(exist_ok=True)
        data = save({k: np.asarray(v, order="C") for k, v in arrays.items()})
        write_atomic(self.path / "policies" / file, data)
        self.digests[file] = hashlib.sha256(data).hexdigest()
        return file

    def policy(self, name: str) -> Arrays:
        """Read a policy by the name it was saved as, or by its file."""
        from safetensors.numpy import load

        file = self.path / "policies" / self.files.get(name, name)
        try:
            data = read_bytes(file)
            if self.digests and hashlib.sha256(data).hexdigest() != self.digests.get(file.name):
                raise StorageError(f"the policy {file} is damaged: it has changed since it was written")
            return load(data)
        except StorageError:
            raise
        except Exception as e:  # safetensors has errors of its own
            raise StorageError(f"the policy {file} is missing or damaged: {e}") from e

    def add_row(self, row: Mapping[str, float | str]) -> None:
        """Append the row of one update to training.csv."""
        trial = int(row["trial"])
        self.updates[trial] = self.updates.get(trial, 0) + 1
        cells = {name: row.get(name) for name in TRAINING} | {k: v for k, v in row.items() if k not in TRAINING}
        cells["update"] = self.updates[trial]
        columns = {self.names.training.get(k, k): v for k, v in cells.items() if v is not None}
        if self.table is None:
            self.table = CsvLog(self.path / "training.csv", [self.names.training.get(k, k) for k in TRAINING])
        self.table.append({k: [cell(v)] for k, v in columns.items()})
        self.rows += 1

    def rewind(self) -> None:
        """Drop rows that were written after the state was."""
        file = self.path / "training.csv"
        try:
            lines = read_bytes(file).splitlines(keepends=True) if file.exists() else []
        except OSError as error:
            raise StorageError(f"cannot read {file}: {error.strerror or error}") from error
        whole = sum(line.endswith(b"\n") for line in lines)
        if self.rows and whole < self.rows + 1:
            there = max(whole - 1, 0)
            raise StorageError(f"{file} has {there} of the {self.rows} rows that the search has logged; put it back")
        if lines and len(lines) != self.rows + 1:
            write_atomic(file, b"".join(lines[: self.rows + 1]))

    def write_log(self, space: Space, verdicts: Sequence[Verdict]) -> None:
        """Write search.csv; numbers in full, yes and no as 1 and 0, what is not finite as an empty cell."""
        names = self.names.search
        rows: list[Saved] = [plain(log_row(space, v)) for v in verdicts]
        cells = [{names.get(k, k): int(v) if isinstance(v, bool) else v for k, v in row.items()} for row in rows]
        Table.of_records(cells).write_csv(self.path / "search.csv")


def log_row(space: Space, v: Verdict) -> dict[str, object]:
    """The row of one trial, for search.csv."""
    rate, choice = v.outcome.rate, v.choice
    row: dict[str, object] = {
        "iteration": v.number + 1,
        "candidate": space.keys[v.candidate],
        "order": space.text(v.candidate),
        "acquisition": choice.acquisition,
        "mean": choice.mean,
        "std": choice.std,
        "p_feasible": choice.feasible,
        "value": v.outcome.value,
        "value_se": v.outcome.se,
    }
    if rate is not None:
        row |= {"rate": rate.mean, "rate_se": rate.se, "rate_bound": rate.bound}
    return row | {
        "episodes": v.trained,
        "check_episodes": v.checks,
        "eval_episodes": v.outcome.episodes,
        "total_episodes": v.spent,
        "feasible": v.feasible,
        "cause": v.cause,
        "from": None if v.parent is None else space.keys[v.parent],
        "visit": v.visit + 1,
        "best": None if v.best is None else space.keys[v.best],
        **v.outcome.details,
    }


def most_frames(space: Space) -> int:
    """How many trials the page shows: the last ones, fewer of a large space."""
    return max(1, min(200, MOST // len(space)))


def frame(space: Space, gate: Gate | None, evidence: Sequence[Evidence], best: int | None) -> dict[str, object]:
    """The posterior after some trials: mean and two deviations, what was measured of the policies as they are, and the
    candidate that is recommended."""
    posterior = Belief.of(space, gate, evidence).values.posterior()
    observed: dict[int, list[float]] = {}
    for one in current(evidence):
        observed.setdefault(one.candidate, []).append(one.outcome.value)
    candidates = [
        {
            "name": key,
            "mean": round(float(mean), 5),
            "low": round(float(mean - 2 * std), 5),
            "high": round(float(mean + 2 * std), 5),
            "observed": observed.get(i),
            "chosen": i == best,
        }
        for i, (key, mean, std) in enumerate(zip(space.keys, posterior.mean, posterior.std))
    ]
    passed = "" if best is not None else "; none has passed the gate"
    title = f"after trial {len(evidence)}, {space.keys[evidence[-1].candidate]}{passed}"
    return {"title": title, "candidates": candidates}


def difference(old: object, new: object, name: str = "") -> tuple[str, object, object] | None:
    """The first setting in which two identities differ: (its name, theirs, ours)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*new, *(k for k in old if k not in new)]:
            inner = difference(old.get(key), new.get(key), f"{name}.{key}" if name else key)
            if inner is not None:
                return inner
        return None
    return None if old == new else (name.removeprefix("options.").removeprefix("trial."), old, new)


def short(value: object) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"[{', '.join(map(str, value[:3]))}, ... {len(value)} in all]"
    return str(value)
