"""Signals and kills, with real processes: what was learned is kept, and a run directory has one holder."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import regimen
from regimen.cli.main import main
from regimen.files.checkpoint import Checkpoints
from regimen.files.run_dir import read_metrics
from support import TINY, UPDATE, assert_same_run, command_line, digest_of, final_state, status, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")
PAUSING = str(Path(__file__).with_name("pausing.py"))
ENDLESS = {"total_steps": 10**12, "log.every": "20", "log.episodes": False, "checkpoint.every": "100"}


def start(*argv, at=None) -> subprocess.Popen:
    """`regimen ...` in another process, its output in a pipe; with `at`, stopped in that function (`pausing.py`)."""
    command = [sys.executable, *(["-m", "regimen"] if at is None else [PAUSING, at]), *map(str, argv)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process):
    """Until it holds; a process that ends before is told, one that never gets there by the test's own time limit."""
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def send(process, number) -> tuple[int, str]:
    """(exit code, standard output) after a signal."""
    process.send_signal(number)
    out, err = process.communicate(timeout=200)
    assert "Traceback" not in err, err
    return process.returncode, out


@pytest.mark.parametrize(
    ("env", "number", "code"), [("cartpole", signal.SIGINT, 130), ("gym:CartPole-v1", signal.SIGTERM, 143)]
)
def test_a_signal_saves_and_ends_the_run(tmp_path, env, number, code):
    run = tmp_path / "run"
    process = start("train", env, *command_line(**ENDLESS), "--out", run)
    wait_for(lambda: read_metrics(run), process)
    returned, out = send(process, number)
    assert returned == code and out.splitlines()[-1].startswith(f"interrupted by {number.name}; state saved.")
    assert status(run)["state"] == "interrupted" and status(run)["stop_reason"] == number.name
    _, kept = final_state(run)
    done = kept["counters"]
    assert done["updates"] >= read_metrics(run)[-1]["updates"] and (run / "policy" / "config.json").exists()
    resumed = regimen.resume(run, total_steps=done["steps"] + 2 * UPDATE)
    assert resumed.summary["updates"] == done["updates"] + 2 and status(run)["state"] == "finished"


@pytest.mark.long
def test_a_warning_saves_and_the_same_command_goes_on_to_the_same_end(tmp_path):
    """As a scheduler does it: SIGUSR1, a kill, the command again, and once more when it is done."""
    settings = {"total_steps": 1000 * UPDATE, "log.every": "20"}
    run, whole = tmp_path / "run", tmp_path / "whole"
    argv = ["train", "cartpole", *command_line(**settings), "--out", run, "--resume-if-exists"]
    process = start(*argv)
    wait_for(lambda: read_metrics(run), process)
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: Checkpoints(run / "checkpoints").steps(), process)
    process.kill()
    process.communicate()
    saved = Checkpoints(run / "checkpoints").steps()[0]
    assert 0 < saved < 1000 * UPDATE and status(run)["state"] == "running"
    for words in ("resumed from step", "finished before"):
        again = start(*argv)
        out, err = again.communicate(timeout=200)
        assert again.returncode == 0 and words in out + (run / "log.txt").read_text(), err
    regimen.train("cartpole", **{**TINY, **settings}, out=whole)
    assert_same_run(run, whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_during_compilation_a_signal_ends_the_process_at_once(tmp_path, number, code):
    """A compilation that never ends, and no grace: only what ends the process at once ends it. The checkpoint to
    continue from stays as it is."""
    run, at = tmp_path / "run", "regimen.engines.chunk:chunk"
    if number == signal.SIGINT:
        process = start("train", "cartpole", *command_line(**ENDLESS), "--out", run, at=at)
    else:
        tiny(run, updates=2)
        before = digest_of(run / "checkpoints" / str(2 * UPDATE))
        process = start("resume", run, "--total-steps", 10**12, at=at)
    for line in process.stdout:
        if line == "reached\n":
            break
    returned, out = send(process, number)
    assert returned == code and out.splitlines()[-1].startswith(f"interrupted by {number.name}")
    assert status(run)["state"] == "interrupted"
    if number == signal.SIGTERM:
        assert digest_of(run / "checkpoints" / str(2 * UPDATE)) == before
        assert regimen.resume(run, total_steps=3 * UPDATE).summary["updates"] == 3
    else:
        again = regimen.resume(run, total_steps=3 * UPDATE)
        assert again.summary["updates"] == 3, "there was no checkpoint yet: it starts again"


def test_kill_and_resume_is_an_uninterrupted_run(tmp_path):
    settings = {"total_steps": 400 * UPDATE, "checkpoint.every": "20", "log.every": "7"}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = start("train", "cartpole", *command_line(**settings), "--out", killed)
    store = Checkpoints(killed / "checkpoints")
    wait_for(lambda: len(store.steps()) >= 2, process)
    process.kill()
    process.communicate()
    assert status(killed)["state"] == "running" and not (killed / "summary.json").exists()
    assert regimen.resume(killed).summary["updates"] == 400
    tiny(whole, **settings)
    assert_same_run(whole, killed)


def test_a_second_process_is_refused_and_told_who_is_there(tmp_path, capsys):
    run = tmp_path / "run"
    process = start("train", "cartpole", *command_line(**ENDLESS), "--out", run)
    try:
        wait_for(lambda: Checkpoints(run / "checkpoints").steps(), process)
        assert main(["resume", str(run), "--total-steps", "1e13"]) == 6
        assert f"is in use by process {process.pid}" in capsys.readouterr().err
        assert main(["train", "cartpole", "--out", str(run)]) == 6
        assert "already exists" in capsys.readouterr().err
        copy = tmp_path / "copy"
        shutil.copytree(run / "policy", copy)  # reading is allowed while it trains
        assert regimen.evaluate(copy, episodes=1).returns.size == 1
        assert status(run)["state"] == "running" and process.poll() is None
    finally:
        assert send(process, signal.SIGINT)[0] == 130
