"""A population killed with SIGKILL at random moments and started again is the one that was never killed."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from regimen.experiments.sweep.space import SweepPlan
from regimen.experiments.sweep.trials import SweepFiles
from support import assert_same_run

TEXT = (
    "probe/action --method pbt --every 2 --trials 3 --random algo.lr=log:1e-6:1e-1 --total-steps 1920"
    " --rollout.steps 32 --rollout.num-envs 4 --algo.minibatch-size 16 --network.hidden 8 --eval.episodes 2"
    " --algo.normalize-obs true"
)
HALVING = TEXT.replace("--method pbt --every 2 --trials 3", "--method halving --trials 4")


def start(text, folder):
    argv = [sys.executable, "-m", "regimen", "sweep", *text.split(), "--out", str(folder), "--quiet"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    return subprocess.Popen(
        argv, start_new_session=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(process):
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output.decode()


def rows(folder):
    """Rows that all members have written: how far it is."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("trial-*/metrics.jsonl"))


def kill_and_resume(text, folder, kills, seed, tell=lambda *_: None):
    """Kill until there were so many; a sweep that is done before is compared, and another one begun. How many there
    were."""
    draw, killed, sweeps = random.Random(seed), 0, 0
    whole = folder / "whole"
    finish(start(text, whole))
    most = rows(whole)
    while killed < kills and sweeps < 4 * kills:
        path = folder / f"sweep-{sweeps}"
        sweeps += 1
        for _ in range(draw.randint(1, 3)):
            process, goal = start(text, path), draw.randrange(most)
            while process.poll() is None and rows(path) < goal:
                time.sleep(0.005)
            time.sleep(draw.random() * 0.2)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                killed += 1
            process.communicate()
        finish(start(text, path))
        compare(whole, path)
        tell(killed, kills, 0)
    return killed


def compare(whole, path):
    files, others = (SweepFiles(p, SweepPlan.load(p)) for p in (whole, path))
    assert files.missing() == others.missing() == []
    times = ("finished", "wall_seconds")
    one, two = ([{k: v for k, v in r.items() if k not in times} for r in f.results()] for f in (files, others))
    assert one == two
    for n in range(files.plan.trials):
        assert_same_run(files.trial(n), others.trial(n))
    for name in ("rounds", "rungs"):
        decisions = {p.name: p.read_bytes() for p in (whole / name).glob("*.json")}
        assert decisions == {p.name: p.read_bytes() for p in (path / name).glob("*.json")}


@pytest.mark.long
def test_killed_twice(tmp_path):
    kill_and_resume(TEXT, tmp_path, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("text", [TEXT, HALVING], ids=["pbt", "halving"])
def test_killed_twenty_times(tmp_path, text):
    kill_and_resume(text, tmp_path, kills=20, seed=7)
