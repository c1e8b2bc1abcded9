"""Several devices, and several processes, learn what one does: 8 virtual devices in a process of their own, and two
processes (`device_checks.py`)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from regimen.errors import LostProcessError
from support import command_line, final_state, status

CHECKS = Path(__file__).with_name("device_checks.py")


def start(*arguments, devices=1):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = os.environ | {"XLA_FLAGS": flags}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def results(process, whole=False):
    """What a process printed as JSON, on its last line or as a whole."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out if whole else out.splitlines()[-1])


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("devices")


@pytest.fixture(scope="module")
def checks(folder):
    return results(start(CHECKS, "quick", folder, devices=8))


@pytest.fixture(scope="module")
def pair(folder):
    address = free_address()
    return [results(p) for p in [start(CHECKS, "pair", folder, i, address) for i in (0, 1)]]


def test_running_statistics_are_those_of_all_rows(checks):
    found = checks["pooled"]
    assert found["count"] == 56
    assert found["mean"] < 1e-5 and found["std"] < 1e-5


def test_components_are_standardised_over_all_rows(checks):
    assert checks["standardized"]["advantages"] < 1e-5
    assert checks["standardized"]["covariance"] < 1e-4


def test_sac_has_one_replay_and_one_policy(checks):
    found = checks["sac"]
    assert found["off"] < 1e-6 and found["rows"] == 6
    assert found["moved"] > 1e-4 and found["alike"]
    assert found["exact"], "a snapshot holds the replay of every device"


@pytest.mark.parametrize("kind", ["empowerment", "empowerment_tables"])
def test_empowerment_learns_one_thing_from_the_replays_of_two(checks, kind):
    assert checks[kind]["alike"] and checks[kind]["moved"] > 1e-4


@pytest.mark.parametrize("case", [f"minibatches_{name}" for name in ("even", "uneven", "tiny", "cost")])
def test_every_row_is_used_once_an_epoch(checks, case):
    found = checks[case]
    assert found["used"] == [3] and found["padding"] == 0
    assert found["error"] < 1e-6  # gradients are means over the rows of all devices


def test_minibatches_are_balanced_over_all_devices(checks):
    even, uneven, tiny = (checks[f"minibatches_{name}"] for name in ("even", "uneven", "tiny"))
    assert even["ran"] == 3 * 6 and max(even["sizes"]) - min(even["sizes"]) <= 3  # 128 rows, 24 in a minibatch
    assert uneven["ran"] == 3 * 3 and sum(uneven["sizes"]) == 3 * 64
    assert tiny["ran"] == 3 * 15 and min(tiny["sizes"]) >= 1  # the device with most rows has 15


def test_episodes_of_all_devices_are_told_in_the_order_of_their_end(checks):
    found = checks["ordered"]
    assert found["same"] and found["count"] == found["expected"]


@pytest.mark.parametrize("schedule", ["steps", "episodes"])
def test_eight_devices_learn_what_one_learns(checks, schedule):
    """The full batch as one minibatch: parameters, optimiser, normalisers, clock, metrics and every episode."""
    found = checks[schedule]
    assert found["off"] < 1e-5 and found["metrics"] < 1e-4
    assert found["moved"] > 1e-2  # or there was nothing to compare
    assert found["same_episodes"] and found["episodes"] >= 40
    assert found["counted"] and found["steps"]
    assert found["split"] == 8


def test_resume_is_exact_and_the_number_of_devices_may_change(checks):
    found = checks["resumed"]
    assert found["exact"]
    assert found["two"] < 1e-5 and found["same_episodes"]


def test_environments_that_cannot_be_shared_are_refused_with_what_can(checks):
    assert checks["not_shared"] == (
        "devices: 12 environments cannot be shared equally by 8 devices; nearest valid: rollout.num_envs 8 or 16, "
        "or devices 6"
    )
    assert checks["too_many"] == "devices: 9 are asked for and 8 are visible"
    assert checks["by_default"] == 6


def test_a_run_says_how_its_environments_are_shared(checks):
    assert "2 devices, 8 environments each" in checks["header"]
    assert checks["summary"]["env_steps"] == 2048 and checks["summary"]["stop_reason"] == "max_steps"


@pytest.mark.slow
def test_small_minibatches_learn_alike_and_seeds_share_the_devices(tmp_path):
    found = results(start(CHECKS, "slow", tmp_path, devices=8))
    assert min(found["learned"].values()) > 100
    assert found["seeds"] < 1e-5


@pytest.mark.long
def test_two_processes_train_and_resume_as_one(checks, pair, folder):
    """What one process with two devices learned in one go."""
    zero, one = pair
    assert zero["trained"] == one["trained"] == zero["resumed"] == one["resumed"] == 0
    assert zero["params"] == one["params"]
    assert zero["envs"] == one["envs"] == [8]
    arrays, _ = final_state(folder / "pair")
    others, _ = final_state(folder / "run")
    assert arrays.keys() == others.keys()
    for name, x in arrays.items():
        np.testing.assert_allclose(x, others[name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert (folder / "pair/episodes.csv").read_bytes() == (folder / "run/episodes.csv").read_bytes()
    assert status(folder / "pair")["state"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("number, sent", [(1, signal.SIGTERM), (0, signal.SIGINT), (1, signal.SIGKILL)])
def test_a_signal_to_one_process_ends_both(tmp_path, number, sent):
    run = tmp_path / "run"
    flags = command_line(**{"total_steps": 10**9, "out": run, "checkpoint.every": "5"})
    others = ["--distributed", free_address(), "--num-processes", "2"]
    both = [start("-m", "regimen", "train", "cartpole", *flags, *others, "--process-id", i) for i in (0, 1)]
    while not list(run.glob("checkpoints/[0-9]*")):
        assert all(p.poll() is None for p in both)
        time.sleep(0.2)
    both[number].send_signal(sent)
    errors = [p.communicate(timeout=120)[1] for p in both]
    codes = [p.returncode for p in both]
    if sent != signal.SIGKILL:
        assert codes == [128 + sent] * 2
        assert status(run)["state"] == "interrupted"
        assert final_state(run)[1]["counters"]["steps"] > 0
    else:  # a process that is gone is an error of the other, not a wait
        assert codes == [LostProcessError.exit_code, -signal.SIGKILL]
        assert "process 0 of 2 has lost another" in errors[0]
        assert status(run)["state"] == "failed"


@pytest.mark.slow
def test_two_workers_of_a_ray_cluster_train_as_one(tmp_path):
    """Ray Train's JaxTrainer, on CPU workers."""
    pytest.importorskip("ray.train")
    flags = command_line(**{"total_steps": 96, "out": tmp_path / "run", "devices": 2})
    done = start("-m", "regimen", "train", "cartpole", "--hosts", 2, "--device", "cpu", "--json", *flags)
    assert results(done, whole=True)["env_steps"] == 96
    assert "2 devices, 2 environments each" in (tmp_path / "run/log.txt").read_text()
    assert status(tmp_path / "run")["state"] == "finished"
