"""Gates of `make test-faults`: groups of seeds that are killed and go on. A group that was killed is the
group that was never interrupted: the same rows in every field but times, and the same state bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import numpy as np  # noqa: E402

from faults.kills import LONGEST, results  # noqa: E402
from faults.watch import tell  # noqa: E402
from regimen.files.run_dir import read_metrics  # noqa: E402
from support import command_line, comparable, final_state, progress  # noqa: E402

SEEDS = 3
PPO = {
    "total_steps": 60 * 32,
    "log.every": "1",
    "checkpoint.every": "3",
    "eval.every": "7",
    "algo.normalize_obs": True,
    "stop.target_return": 60,  # seeds end one after the other
    "stop.patience": 5,
}
SAC = {
    "algo": "sac",
    "total_steps": 40 * 16,
    "rollout.steps": 4,
    "rollout.num_envs": 4,
    "algo.minibatch_size": None,
    "algo.epochs": None,
    "algo.batch_size": 16,
    "algo.learning_starts": 64,
    "algo.buffer_size": 400,
    "env.max_episode_steps": 20,
    "log.every": "1",
    "checkpoint.every": "3",
}
KINDS = {"ppo": ("cartpole", PPO), "sac": ("pendulum", SAC)}


def start(*argv: str) -> subprocess.Popen[str]:
    """A command of Regimen, compiled as a user's: what is compared are the last digits of fused programs."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-m", "regimen", *argv]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], seconds: float = 3000) -> str:
    """What it printed; AssertionError where it failed."""
    out, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, out
    return out


def rows(group: Path) -> int:
    """Rows that all seeds have written."""
    texts = [path.read_bytes() for path in group.glob("seed-*/metrics.jsonl")]
    return sum(text.count(b"\n") for text in texts)


def train(kind: str, out: Path) -> subprocess.Popen[str]:
    env, settings = KINDS[kind]
    return start("train", env, "--seeds", str(SEEDS), "--quiet", *command_line(out=out, **settings))


def assert_same(a: Path, b: Path) -> None:
    """The same rows, episodes and final state, bit for bit. What lies at the cursor of a replay is not part of it: a
    seed that waits for the others writes there, and the next update writes it anew."""
    (arrays, counts), (others, counts_too) = final_state(a), final_state(b)
    assert counts == counts_too, "counters and rules differ"
    assert arrays.keys() == others.keys()
    for name, x in arrays.items():
        y = others[name]
        if name.startswith("state/replay/"):
            cursor = int(arrays["state/aux/ring/cursor"][0])
            unwritten = (cursor + np.arange(SAC["rollout.steps"])) % len(x)
            x, y = np.delete(x, unwritten, 0), np.delete(y, unwritten, 0)
        assert np.array_equal(x, y, equal_nan=True), f"{name} differs"
    assert comparable(read_metrics(a)) == comparable(read_metrics(b)), "rows differ"
    assert progress(a) == progress(b), "progress.csv differs"
    assert (a / "episodes.csv").read_bytes() == (b / "episodes.csv").read_bytes(), "episodes differ"
    assert results(a) == results(b), "summary, policy or checkpoints differ"


def kill_when(process: subprocess.Popen[str], ready: Callable[[], bool], delay: float) -> bool:
    """Kill it a little after something has come; False if it ended before."""
    end = time.monotonic() + LONGEST
    while not ready():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end, f"nothing within {LONGEST:g} s"
        time.sleep(0.005)
    time.sleep(delay)
    ended = process.poll() is not None
    process.kill()
    process.communicate()
    return not ended


def run_groups(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """Kill groups of seeds with SIGKILL at random places, several times each, and let them go on. A loss is a seed that
    is not the one of a group that was never interrupted."""
    draw, kinds, detail = random.Random(seed), list(KINDS), []
    kills = losses = groups = 0
    whole: dict[str, tuple[Path, int]] = {}
    while kills < tries and groups < 4 * tries:
        kind = kinds[groups % len(kinds)]
        if kind not in whole:
            reference = folder / f"{kind}-whole"
            finish(train(kind, reference))
            whole[kind] = reference, rows(reference)
        reference, most = whole[kind]
        path = folder / f"{kind}-{groups}"
        process = train(kind, path)
        groups += 1
        for _ in range(min(draw.randint(1, 3), tries - kills)):
            goal = draw.randrange(most)
            if not kill_when(process, lambda: path.is_dir() and rows(path) >= goal, draw.random() * 0.2):  # noqa: B023
                break
            kills += 1
            verb = ("resume", str(path), "--quiet")
            process = start(*verb) if any(path.glob("seed-*/config.yaml")) else train(kind, path)
        process.communicate(timeout=3000)
        if process.returncode:
            losses += SEEDS
            detail.append(f"{kind} group {groups}: exit {process.returncode}")
            continue
        for n in range(SEEDS):
            try:
                assert_same(reference / f"seed-{n}", path / f"seed-{n}")
            except (AssertionError, OSError) as error:
                losses += 1
                detail.append(f"{kind} group {groups} seed {n}: {str(error).strip().splitlines()[0][:120]}")
        if not detail:
            shutil.rmtree(path, ignore_errors=True)
        tell(kills, tries, losses)
    words = f"{groups} groups of {SEEDS} seeds killed {kills} times" + "".join(f"; {text}" for text in detail[:5])
    return {"gate": "groups of seeds", "tries": kills, "losses": losses, "executions": 0, "detail": words}


if __name__ == "__main__":
    print(run_groups(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
