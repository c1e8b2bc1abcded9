"""A sweep killed with SIGKILL at random moments and started again: every trial exactly once, nothing finished lost."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from regimen.experiments.sweep.space import SweepPlan
from regimen.experiments.sweep.trials import SweepFiles
from regimen.files.storage import read_json

COMMON = (
    "probe/action --total-episodes 20 --rollout.episodes 10 --eval.every never --eval.episodes 2 --network.hidden 8"
    " --checkpoint.every 1 --preset balanced"
)
ONE_BY_ONE = COMMON + " --grid algo.epochs=1,2 --random algo.lr=log:1e-3:1e-1 --trials {trials}"
TOGETHER = COMMON + " --random algo.lr=log:1e-3:1e-1 --trials {trials} --batch 4"


def start(text, folder):
    argv = [sys.executable, "-m", "regimen", "sweep", *text.split(), "--out", str(folder), "--quiet"]
    return subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finished(folder):
    """What each finished trial is: its result and its run's summary, byte by byte."""
    found = {}
    for path in (folder / "results").glob("*.json"):
        run = folder / f"trial-{path.stem}"
        found[path.stem] = (
            path.read_bytes(),
            (run / "summary.json").read_bytes(),
            (run / "metrics.jsonl").read_bytes(),
        )
    return found


def kill_and_resume(text, folder, kills, trials, seed, tell=lambda *_: None):
    rng, before, killed = random.Random(seed), {}, 0
    while killed < kills:
        process = start(text.format(trials=trials), folder)
        wanted = len(before) + rng.choice((0, 0, 1))
        deadline = time.monotonic() + 3000  # of a machine that is busy
        while process.poll() is None and len(list((folder / "results").glob("*.json"))) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if wanted > len(before):
            time.sleep(rng.uniform(0, 1.0))  # within the next trial
        else:
            time.sleep(rng.uniform(0, 4.0))  # while it starts, compiles, or trains the first
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        assert process.wait() in (0, -signal.SIGKILL), process.communicate()[0].decode()
        now = finished(folder)
        for name, files in before.items():
            assert now[name] == files, f"trial {name} was finished and has changed"
        before = now
        assert len(before) < trials, "give the sweep more trials: it was done before all kills"
        tell(killed, kills, 0)
    process = start(text.format(trials=trials), folder)
    try:
        output, _ = process.communicate(timeout=3000)
    finally:
        process.kill()
    assert process.returncode == 0, output.decode()
    now = finished(folder)
    assert all(now[name] == files for name, files in before.items())
    check(folder, trials)


def check(folder, trials):
    plan = SweepPlan.load(folder)
    files = SweepFiles(folder, plan)
    results = files.results()
    assert [r["trial"] for r in results] == list(range(trials)) and files.missing() == []
    assert {r["state"] for r in results} == {"finished"}
    assert sorted(p.name for p in folder.glob("trial-*")) == [f"trial-{n:04d}" for n in range(trials)]
    for n, result in enumerate(results):
        assert result["params"] == plan.draw(n)
        summary = read_json(files.trial(n) / "summary.json")
        assert summary["episodes"] == 20 and summary["updates"] == 2  # neither cut short nor trained on
    if (folder / "study.db").exists():
        from regimen.experiments.sweep.optuna_trials import OptunaStudy

        known = OptunaStudy(folder, plan).trials()
        assert sorted(known) == list(range(trials)) and {t.state.name for t in known.values()} == {"COMPLETE"}
        assert [known[n].value for n in range(trials)] == [r["value"] for r in results]
    assert len((folder / "sweep.csv").read_text().splitlines()) == trials + 1


@pytest.mark.long
def test_killed_three_times(tmp_path):
    pytest.importorskip("optuna")
    kill_and_resume(ONE_BY_ONE, tmp_path / "sweep", kills=3, trials=20, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "trials"), [(ONE_BY_ONE, 26), (TOGETHER, 80)], ids=["one by one", "one program"])
def test_killed_twenty_times(tmp_path, text, trials):
    pytest.importorskip("optuna")
    kill_and_resume(text, tmp_path / "sweep", kills=20, trials=trials, seed=7)
