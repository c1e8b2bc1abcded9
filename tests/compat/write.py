"""Writes a folder of `tests/compat/` with the version that is installed: `python tests/compat/write.py FOLDER`."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import regimen

SETTINGS = {
    "total_steps": 256,
    "seed": 3,
    "track": False,
    "preset": "balanced",
    "network.hidden": (8, 8),
    "rollout.steps": 64,
    "rollout.num_envs": 4,
    "algo.minibatch_size": 32,
    "algo.epochs": 1,
    "algo.normalize_obs": True,
    "eval.every": "2",
    "eval.episodes": 2,
    "checkpoint.every": "2",
    "checkpoint.keep": 1,
}
LEFT_OUT = ("plots", "report.html", "log.txt", ".lock")


def write(folder: Path) -> None:
    """A run, and what its policy does."""
    run = folder / "run"
    regimen.train("cartpole", out=str(run), **SETTINGS)
    policy = regimen.load_policy(run)
    observations = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    actions = [policy.act(obs) for obs in observations]
    (folder / "actions.json").write_text(json.dumps({"observations": observations.tolist(), "actions": actions}))
    (run / "command.txt").write_text("regimen train cartpole\n")
    for name in LEFT_OUT:
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
