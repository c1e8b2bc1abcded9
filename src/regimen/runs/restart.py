"""The same command again and again, as a scheduler starts a job that it took the machine from: from nothing, from where
the last start left it, or to hear that it is finished."""

from pathlib import Path
from typing import Any

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.errors import DivergedError, StorageError
from regimen.files.console import Console
from regimen.files.run_dir import read_config, read_summary
from regimen.files.sealed import reading
from regimen.files.storage import dotted
from regimen.runs.api import train, train_further
from regimen.runs.directory import group_members, path_state
from regimen.runs.result import Result

# what a run settles for itself when it begins, and where it may go on differently
SETTLED = ("seed", "seeds", "out", "device", "devices", "data", "algo.horizon", "rollout.num_envs")


def train_again(config: TrainConfig, command: str = "", console: Console | None = None, wait: bool = True) -> Result:
    """Train in `out`: from nothing where there is no run yet, exactly on from where it was left where there is one, and
    not at all where it is finished. A run of other settings is refused; one that diverged says so again."""
    path = Path(str(config.out))
    runs = [path] if (path / "config.yaml").is_file() else group_members(path)
    for run in runs:
        require_same(config, run)
        if path_state(run) == "diverged":
            raise DivergedError(str(read_summary(run).get("stop_detail")))
    return (train_further if runs else train)(config, command, None, console, wait=wait)


def require_same(config: TrainConfig, run: Path) -> None:
    """Refuse a run directory that was begun with other settings, naming the first that differs."""
    with reading(run / "config.yaml"):
        stored = settings(layers.from_dict(read_config(run)))
    wanted = settings(config)
    for name, value in wanted.items():
        if name.split(".")[0] == "curriculum" or name in SETTLED or stored.get(name) == value:
            continue
        extends = f"; `regimen resume {run} --{name.replace('_', '-')} {value}` extends it" if "total" in name else ""
        differs = f"holds a run with {name} {stored.get(name)}, and this command says {value}"
        raise StorageError(f"--resume-if-exists: {run} {differs}{extends}")


def settings(config: TrainConfig) -> dict[str, Any]:
    """Every setting by its dotted name."""
    return dict(dotted(layers.to_dict(config)))
