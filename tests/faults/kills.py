"""Gates: a command is killed with SIGKILL at a random moment, one to three times, and continued. The end is compared
with the same command left alone: on native environments bit for bit; elsewhere every row once and in order."""

from __future__ import annotations

import csv
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import test_population_kill  # its folder is on the path of `run.py`
import test_sweep_kill

import conftest  # noqa: F401 - how tests compile: quickly, and once for all processes
from faults.watch import tell
from regimen.errors import RegimenError
from regimen.files.checkpoint import Checkpoints
from regimen.files.run_dir import read_episodes, read_metrics, read_summary
from regimen.files.storage import read_json
from support import assert_same_run, command_line, progress

COMMON = {"log.every": "1", "checkpoint.every": "3", "eval.every": "7"}
NATIVE = {"total_steps": 80 * 32, "algo.normalize_obs": True, **COMMON}
SAC = {
    "algo": "sac",
    "total_steps": 60 * 16,
    "rollout.steps": 4,
    "algo.minibatch_size": None,
    "algo.epochs": None,
    "algo.batch_size": 16,
    "algo.learning_starts": 64,
    "algo.buffer_size": 400,
    "env.max_episode_steps": 20,
    **COMMON,
}
OFFLINE = {"algo": "cql", "total_steps": 80 * 16, "rollout.steps": 16, "rollout.num_envs": None}
OFFLINE |= {"algo.minibatch_size": None, "algo.epochs": None, "algo.batch_size": 16, **COMMON}
Check = Callable[[Path, Path], None]
LONGEST = 1800.0  # seconds until something has to come
TIMES = ("seconds", "per_second", "time", "date", "memory")  # in names of what differs between two runs of the same


def start(*argv: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "regimen", *map(str, argv)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def complete(*argv: object, other: int = 0) -> None:
    process = start(*argv)
    out, _ = process.communicate(timeout=3600)
    assert process.returncode in (0, other), out


def rows(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def killed(process: subprocess.Popen[str], ready: Callable[[], bool], delay: float) -> bool:
    """Kill it a little after something has come; False if it ended before."""
    end = time.monotonic() + LONGEST
    while process.poll() is None and not ready():
        assert time.monotonic() < end, f"nothing within {LONGEST:g} s"
        time.sleep(0.005)
    time.sleep(delay)
    alive = process.poll() is None
    if alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


def whole_rows(run: Path) -> None:
    """No row is torn, doubled or missing: updates and episodes count from 1, in both tables."""
    text = (run / "metrics.jsonl").read_bytes()
    metrics = read_metrics(run)
    updates = [row["updates"] for row in metrics]
    assert text.endswith(b"\n") and len(metrics) == text.count(b"\n"), "a torn row"
    assert updates == list(range(1, len(updates) + 1)), "rows doubled or missing"
    assert [int(row["updates"]) for row in progress(run)] == updates, "progress.csv differs"
    episodes = read_episodes(run)
    if episodes:
        assert episodes["episode"].tolist() == list(range(1, metrics[-1]["episodes"] + 1)), "episodes"
    assert read_json(run / "status.json")["state"] == "finished"
    halves = [path.name for path in run.rglob("*") if ".tmp" in path.name or path.name.endswith(".old")]
    assert not halves, f"left behind: {halves}"
    assert (run / "policy" / "policy.safetensors").is_file() and (run / "report.html").is_file()


def timeless(value: Any) -> Any:
    """Data without times."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if not any(word in k for word in TIMES)}
    return value


def results(run: Path) -> dict[str, Any]:
    """What a run is asked for when it has ended: its summary, the policy that it delivers, which checkpoints it has."""
    kept = Checkpoints(run / "checkpoints")
    weights = hashlib.sha256((run / "policy" / "policy.safetensors").read_bytes()).hexdigest()
    summary = timeless(read_summary(run))
    return {"summary": summary, "policy": weights, "checkpoints": kept.steps(), "index": kept.index()}


def same_length(reference: Path, run: Path) -> None:
    """A host environment begins new episodes after a resume: as many rows, each whole."""
    whole_rows(run)
    assert len(read_metrics(run)) == len(read_metrics(reference))


def same_run(reference: Path, run: Path) -> None:
    whole_rows(run)
    for path in (reference, run):
        (path / "episodes.csv").touch()  # learning from a dataset has none
    assert_same_run(reference, run)
    expected, found = results(reference), results(run)
    for name, value in expected.items():
        assert found[name] == value, f"{name}: {str(found[name])[:200]} instead of {str(value)[:200]}"


def kill_runs(argv: list[str], check: Check, tries: int, seed: int, folder: Path) -> dict[str, object]:
    """Train, kill, resume."""
    draw, detail, kills, runs = random.Random(seed), [], 0, 0
    reference = folder / "whole"
    complete("train", *argv, "--quiet", "--out", reference)
    most = rows(reference)
    while kills < tries and runs < 4 * tries:
        run = folder / f"run-{runs}"
        runs += 1
        process = start("train", *argv, "--quiet", "--out", run)
        for _ in range(min(draw.randint(1, 3), tries - kills)):
            goal = draw.randint(min(rows(run), most), most)
            if not killed(process, lambda run=run, goal=goal: rows(run) >= goal, draw.random() * 0.3):
                break
            kills += 1
            begun = (run / "config.yaml").is_file()
            if not begun:
                shutil.rmtree(run, ignore_errors=True)
            process = start("resume", run, "--quiet") if begun else start("train", *argv, "--quiet", "--out", run)
        try:
            said, _ = process.communicate(timeout=LONGEST)
            finished = read_json(run / "status.json").get("state") == "finished"
            assert finished or process.returncode == 0, said[-300:]
            check(reference, run)
        except (AssertionError, RegimenError, OSError, subprocess.TimeoutExpired) as error:
            detail.append(f"run {runs}: {' '.join(str(error).split())[:160]}")
        else:
            shutil.rmtree(run)
        tell(kills, tries, len(detail))
    words = "; ".join([f"{runs} runs", *detail[:5]])
    return {"tries": kills, "losses": len(detail), "executions": 0, "detail": words}


def train_gate(env: str, settings: dict[str, object], check: Check, tries: int, seed: int, folder: Path):
    return kill_runs([env, *command_line(**settings)], check, tries, seed, folder)


run_native = partial(train_gate, "cartpole", NATIVE, same_run)
run_sac = partial(train_gate, "pendulum", SAC, same_run)
run_host = partial(train_gate, "gym:CartPole-v1", NATIVE | {"rollout.num_envs": 2}, same_length)


def run_offline(tries: int, seed: int, folder: Path) -> dict[str, object]:
    data = folder / "data"
    complete("collect", "pendulum", "--policy", "random", "--episodes", 10, "--out", data)
    return kill_runs([str(data), *command_line(**OFFLINE)], same_run, tries, seed, folder)


def tables(folder: Path) -> dict[str, list[dict[str, str]]]:
    """Every table below a folder without its times."""
    out = {}
    for path in sorted(folder.rglob("*.csv")):
        with open(path, newline="") as file:
            out[str(path.relative_to(folder))] = [
                {k: v for k, v in row.items() if "second" not in k and "time" not in k} for row in csv.DictReader(file)
            ]
    return out


def run_search(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """The same command goes on with the trials that were done, and comes to the same end."""
    draw, detail, kills, searches = random.Random(seed), [], 0, 0
    argv = ["search", "network_defense", "--preset", "quick", "--budget", 600, "--quiet", "--out"]
    begun = time.monotonic()
    complete(*argv, folder / "whole", other=1)  # no candidate meets the gate so soon
    most, expected = time.monotonic() - begun, tables(folder / "whole")
    while kills < tries and searches < 4 * tries:
        out = folder / f"search-{searches}"
        searches += 1
        for _ in range(min(draw.randint(1, 3), tries - kills)):
            if not killed(start(*argv, out), lambda: True, draw.random() * most):
                break
            kills += 1
        try:
            complete(*argv, out, other=1)
            assert tables(out) == expected, "another end"
        except AssertionError as error:
            detail.append(f"search {searches}: {' '.join(str(error).split())[:160]}")
        tell(kills, tries, len(detail))
    words = "; ".join([f"{searches} searches", *detail[:5]])
    return {"tries": kills, "losses": len(detail), "executions": 0, "detail": words}


def run_sweep(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """Every trial once, and none that was done is touched: `tests/experiments/test_sweep_kill.py`."""
    trials, detail = tries + 6, []
    try:
        test_sweep_kill.kill_and_resume(test_sweep_kill.ONE_BY_ONE, folder / "sweep", tries, trials, seed, tell)
    except AssertionError as error:
        detail.append(" ".join(str(error).split())[:160])
    words = "; ".join([f"{trials} trials", *detail])
    return {"tries": tries, "losses": len(detail), "executions": 0, "detail": words}


def run_population(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """Members, rounds and results are those of a population that was never killed:
    `tests/experiments/test_population_kill.py`."""
    detail, killed = [], tries
    try:
        killed = test_population_kill.kill_and_resume(test_population_kill.TEXT, folder, tries, seed, tell)
    except AssertionError as error:
        detail.append(" ".join(str(error).split())[:160])
    return {"tries": killed, "losses": len(detail), "executions": 0, "detail": "; ".join(detail)}
