"""Environments stepped in several processes: the same as in one, faults and ends included."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import regimen
from regimen.envs.processes import in_processes
from regimen.envs.registry import resolve
from regimen.errors import ConfigError, EnvError

WALK = f"{Path(__file__).parents[1] / 'slow_envs.py'}:Walk"
SMALL = {"rollout.steps": 80, "rollout.num_envs": 5, "eval.every": 1, "eval.episodes": 3, "track": False, "quiet": True}
SMALL |= {"network.hidden": (8,), "algo.minibatch_size": 80, "algo.epochs": 1}


def trained(out: Path, processes: int, **settings):
    return regimen.train(WALK, total_steps=320, out=str(out), **SMALL | settings, **{"rollout.processes": processes})


def rows(run: Path) -> list[dict]:
    """What a run measured, without its times."""
    points = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in p.items() if not k.startswith("time/") and k != "wall_seconds"} for p in points]


def children(of: int) -> list[int]:
    """Processes that a process started and that still run (Linux)."""
    out = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == of and state != "Z":
            out.append(int(path.parent.name))
    return out


def test_a_run_is_the_same_in_several_processes(tmp_path):
    """5 copies on 2 processes: metrics, episodes, evaluations and the policy, with masks, parts and components."""
    before = children(os.getpid())
    one, two = trained(tmp_path / "one", 1), trained(tmp_path / "two", 2)
    assert rows(one.run_dir) == rows(two.run_dir)
    assert (one.run_dir / "episodes.csv").read_text() == (two.run_dir / "episodes.csv").read_text()
    assert one.summary["eval_return_mean"] == two.summary["eval_return_mean"]
    assert len(one.history) == 4 and "rollout/drift" in one.history[0]
    assert children(os.getpid()) == before  # and none is left


@pytest.mark.parametrize("fault", ["raises", "shape"])
def test_what_an_environment_does_wrong_is_told_in_the_same_words(tmp_path, fault):
    words = []
    for processes in (1, 2):
        with pytest.raises(EnvError) as error:
            trained(tmp_path / str(processes), processes, env_args={"fault": fault})
        words.append(str(error.value))
    assert words[0] == words[1] and "\n" not in words[0]


@pytest.mark.parametrize("fault, how", [("killed", "was killed by SIGKILL"), ("exits", "ended with exit code 3")])
def test_a_process_that_dies_is_named(tmp_path, fault, how):
    with pytest.raises(EnvError, match=f"^the process of environments 0 to 2 {how}$"):
        trained(tmp_path / "run", 2, env_args={"fault": fault})
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "failed"


def test_copies_of_a_process_that_is_in_the_middle_of_a_step_end_with_it():
    """However this process ends: it does not hear of it before its step is over."""
    program = (
        f"from regimen.envs.processes import *; from regimen.envs.registry import resolve\n"
        f"handle = in_processes(resolve({WALK!r}, {{'seconds': 60.0}}), 2, 2)\n"
        "copies = handle.make_copies(2); list(copies.reset({0: 1, 1: 2})); print('ready', flush=True)\n"
        "list(copies.step([0, 1], [0, 0]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    workers = children(process.pid)
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGINT)  # Ctrl+C and SIGTERM are for the process that trains
        os.kill(worker, signal.SIGTERM)
    time.sleep(0.2)
    assert children(process.pid) == workers
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}/stat").exists() for worker in workers):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.05)


def test_where_processes_cannot_be_or_have_no_effect_they_are_refused():
    class Local(type(resolve(WALK).make_host())):
        pass

    for env, words in ((resolve("cartpole"), "is compiled"), (resolve(Local), "lives in this program")):
        with pytest.raises(ConfigError, match=words):
            in_processes(env, 2, 4)
    with pytest.raises(ConfigError, match=r"more than rollout\.num_envs 4"):
        in_processes(resolve(WALK), 5, 4)
    assert in_processes(resolve(WALK), 1, 4).make_copies is None


def test_outcomes_of_a_part_of_the_copies_come_in_order():
    """Whole episodes: copies whose share is done are not stepped; seeds belong to copies, wherever they are."""
    handle = resolve(WALK)
    near, far = handle, in_processes(handle, 3, 7)
    from regimen.envs.copies import LocalCopies

    local, remote = LocalCopies(near.make_host, 7), far.make_copies(7)
    try:
        for starts in ({i: 10 + i for i in range(7)}, {5: 3, 1: None}):
            for (a, _), (b, _) in zip(local.reset(starts), remote.reset(starts), strict=True):
                assert (a["at"] == b["at"]).all() and a["side"] == b["side"]
        for active in ([0, 1, 2, 3, 4, 5, 6], [1, 4, 6], [6]):
            actions = np.arange(7) % 3
            for a, b in zip(local.step(active, actions), remote.step(active, actions), strict=True):
                assert a[1:4] == b[1:4] and (a[0]["at"] == b[0]["at"]).all()
                assert a[4]["drift"] == b[4]["drift"] and "other" not in b[4]
    finally:
        remote.close()
