"""Tiny runs, and what is compared between two of them."""

import csv
import hashlib
import json
import os
from pathlib import Path

import numpy as np

import regimen
from regimen.files.checkpoint import Checkpoints, read
from regimen.files.run_dir import read_metrics
from regimen.files.sealed import seal, unseal

BROKEN = Path(__file__).parent / "broken_envs.py"

TINY = {
    "network.hidden": (8,),
    "rollout.steps": 32,
    "rollout.num_envs": 4,
    "algo.minibatch_size": 16,
    "algo.epochs": 1,
    "eval.every": "never",
    "eval.episodes": 2,
    "checkpoint.every": "never",
    "track": False,
    "log.replay": False,
    "preset": "balanced",  # no stopping rule
}
UPDATE = TINY["rollout.steps"]  # env steps of one update

EPISODIC = {"rollout.steps": None, "rollout.episodes": 4, "rollout.num_envs": 2, "env_args": {"max_episode_steps": 20}}

# everything that a resume must carry over
EVERYTHING = {
    "algo.normalize_obs": True,
    "algo.normalize_reward": True,
    "algo.lr_schedule": "linear",
    "algo.clip_schedule": "cosine",
    "algo.ent_schedule": "linear",
    "algo.kl_coef": 0.5,
    "algo.target_kl": 0.05,
    "stop.target_return": 5,
    "stop.convergence_window": 5,
    "stop.patience": 100_000,
    "stop.no_improvement": 100,
    "log.every": "3",
    "checkpoint.every": "4",
    "checkpoint.keep": 10,
    "eval.every": "5",
}


# two programs that many tests share; the length of the schedules is part of a program
WHOLE = 16  # updates
STEPS = EVERYTHING | {"algo.horizon": f"{WHOLE * UPDATE} steps"}
EPISODES = (
    EVERYTHING
    | EPISODIC
    | {"algo.horizon": f"{WHOLE * 4} episodes", "total_steps": None, "total_episodes": WHOLE * 4}
    | {"eval.every": "20 episodes", "checkpoint.every": "16 episodes"}
)


def tiny(out, updates=4, env="cartpole", callback=None, **overrides):
    """A run of so many updates of 32 steps, in well under a second once it is compiled."""
    settings = {**TINY, "total_steps": updates * UPDATE, "out": str(out), **overrides}
    settings = {k: v for k, v in settings.items() if v is not None}
    return regimen.train(env, callback=callback, **settings)


def reseal(path: Path, **changes) -> None:
    """Change an object in a JSON file, and its digest with it: what the digest would hide is tested so."""
    path.write_text(json.dumps(seal(unseal(json.loads(path.read_text()), str(path)) | changes)))


def command_line(**settings) -> list[str]:
    """The settings of `TINY` and these as flags."""
    given = {k: v for k, v in {**TINY, **settings}.items() if v is not None and k != "track"}
    flags = ["--no-track"] if "track" not in settings else []
    for name, value in given.items():
        value = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        flags += [f"--{name.replace('_', '-')}", value]
    return flags


def final_state(run: Path, which: str = "latest") -> tuple[dict[str, np.ndarray], dict]:
    """Arrays and bookkeeping of a checkpoint."""
    arrays, meta = read(Checkpoints(Path(run) / "checkpoints").find(which))
    return arrays, meta["run"]


def comparable(rows: list[dict]) -> list[dict]:
    """Metrics without what differs between two runs of the same thing."""
    return [{k: v for k, v in row.items() if k != "wall_seconds" and not k.startswith("time/")} for row in rows]


def assert_same_run(a: Path, b: Path) -> None:
    """The same final state, bit for bit, and the same rows."""
    arrays, kept = final_state(a)
    others, kept_too = final_state(b)
    assert arrays.keys() == others.keys()
    for name, x in arrays.items():
        np.testing.assert_array_equal(x, others[name], err_msg=name)
    assert kept == kept_too
    assert comparable(read_metrics(a)) == comparable(read_metrics(b))
    assert progress(a) == progress(b)
    assert (Path(a) / "episodes.csv").read_bytes() == (Path(b) / "episodes.csv").read_bytes()


def progress(run: Path) -> list[dict]:
    with open(Path(run) / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    hidden = ("wall_seconds", "steps_per_second", "unix_time", "time/memory_mb")
    return [{k: v for k, v in row.items() if k not in hidden} for row in rows]


def digest_of(folder: Path) -> dict[str, str]:
    """Every file below a folder and what is in it."""

    def content(path: Path) -> bytes:
        return os.readlink(path).encode() if path.is_symlink() else path.read_bytes()

    files = [p for p in sorted(Path(folder).rglob("*")) if p.is_file() or p.is_symlink()]
    return {str(p.relative_to(folder)): hashlib.sha256(content(p)).hexdigest() for p in files}


def status(run: Path) -> dict:
    return json.loads((Path(run) / "status.json").read_text())
