"""Run directories as the trainer takes them up: what state they are in, who belongs together, who writes to them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from regimen.config import layers
from regimen.config.catalogue import folder_name
from regimen.config.schema import TrainConfig
from regimen.errors import ConfigError, StorageError
from regimen.files.background import LOCK
from regimen.files.run_dir import RunFiles, is_run, read_status, write_config
from regimen.files.storage import check_free, read_json, write_json
from regimen.runs.learner import Learner

OWN = {"loop": "own"}  # what status.json says of a run that a loop of a program's own has written
MOST_LEARNERS = 10_000  # of one program: what a file says beyond it is a mistake


@contextlib.contextmanager
def closing(files: list[RunFiles]) -> Iterator[None]:
    """A run that ends with an error never says `running`."""
    try:
        yield
    except BaseException as error:
        for f in files:
            with contextlib.suppress(StorageError, OSError):
                if path_state(f.path) == "running":
                    state = "interrupted" if isinstance(error, (KeyboardInterrupt, GeneratorExit)) else "failed"
                    f.status(state=state, stop_reason=state, error=str(error))
        raise
    finally:
        for f in files:
            f.close()


def say_running(learner: Learner, command: str) -> None:
    """Let the files say that this process trains a run again, and with which settings."""
    files = learner.files
    write_config(files.path, layers.to_dict(learner.config))
    files.status(state="running", stop_reason=None, stop_detail=None, error=None, delivery=None, pid=os.getpid())
    record = read_json(files.path / "mlflow.json")
    if record.get("complete") is True:
        write_json(files.path / "mlflow.json", record | {"complete": False})
    if command:
        files.event(f"command: {command}")


def path_state(path: Path) -> str | None:
    return read_status(path).get("state")


def program_of(path: Path) -> tuple[int, bool]:
    """How many runs were trained in one program with this one, and whether their hyper-parameters differ."""
    program = read_status(path).get("program")
    if not isinstance(program, dict):
        return 1, False
    learners = program.get("learners")
    if not isinstance(learners, int) or not 1 < learners <= MOST_LEARNERS:
        return 1, False
    return learners, program.get("varied") is True


def require_independent(path: Path) -> None:
    """Refuse to continue alone a run that took over from others of its program, or that a program's own loop wrote."""
    status = read_status(path)
    if status.get("loop") == OWN["loop"]:
        raise ConfigError(
            f"{path} was written by a loop of a program's own, which no command has: the program goes on with it by "
            f"Trainer.record('{path}'), and `regimen train --init-from {path}` starts from its policy"
        )
    program = status.get("program")
    if isinstance(program, dict) and program.get("depend") is True:
        raise ConfigError(
            f"{path} is a member of a population and does not go on alone: `regimen sweep --out {path.parent}` "
            f"continues all of it, `regimen train --init-from {path}` starts from its policy"
        )


def group_members(path: Path) -> list[Path]:
    """The run directories of a group of seeds, by seed; none where it is something else."""
    if is_run(path):
        return []
    runs = {int(run.name[5:]): run for run in path.glob("seed-*") if run.name[5:].isdecimal()}
    return [run for _, run in sorted(runs.items()) if is_run(run)]


def default_path(config: TrainConfig, title: str | None = None) -> Path:
    name = title or f"{folder_name(config.env)}-{config.algorithm}"
    seeds = f"s{config.seed}" if config.seeds is None else f"{config.seeds}seeds"
    return new_path(f"{name}-{seeds}")


def new_path(name: str) -> Path:
    """A path below `runs/` that begins with a name and says when; nothing is there yet."""
    base = Path("runs") / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}"
    path, n = base, 1
    while path.exists():
        n += 1
        path = base.with_name(f"{base.name}-{n}")
    return path


def copy_run(source: RunFiles, target: Path) -> RunFiles:
    """A run directory to continue in, with RUN's history; RUN itself stays as it is."""
    check_free(target)
    leave = shutil.ignore_patterns(".lock", LOCK, ".*.tmp*", "mlflow.json", "report.html", "plots", "summary.json")
    try:
        shutil.copytree(source.path, target, symlinks=True, ignore=leave, dirs_exist_ok=True)
    except OSError as e:
        raise StorageError(f"--out: cannot write to {target}: {e.strerror or e}") from e
    return RunFiles.open(target)
