"""Curves, replay, report and MLflow at the end of a run: in this process, or in one that nobody waits for."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regimen.cli import train as train_verb
from regimen.cli.main import main
from regimen.errors import StorageError
from regimen.files import background
from regimen.files.run_dir import RunFiles
from regimen.reports.diagnose import diagnose
from regimen.runs import delivery
from support import command_line, reseal, status, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache")
HOLD = """
import sys, time
from pathlib import Path
from regimen.files import background
file = background.claim(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def run_command(*argv) -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-m", "regimen", *map(str, argv)], env=env, check=True, timeout=120)


def hold(run: Path) -> subprocess.Popen:
    """A process that draws a run for a minute."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "try_plot_run", lambda path: ([], None))
    return tiny(tmp_path / "run", updates=2).run_dir


def listed(run: Path, capsys) -> dict:
    capsys.readouterr()
    assert main(["runs", "list", str(run), "--json"]) == 0
    return json.loads(capsys.readouterr().out)[0]


@pytest.mark.long
def test_the_prompt_does_not_wait_for_the_pictures(tmp_path):
    """And the same run goes on, and is evaluated, right after it."""
    run = tmp_path / "run"
    settings = command_line(total_steps=64, **{"log.replay": None})
    run_command("train", "cartpole", "--out", run, *settings, "--no-wait")
    first = background.holder(run)
    assert first is not None and first[0] != os.getpid(), "it is drawn when the command has ended"
    run_command("evaluate", run, "--episodes", 1)
    run_command("resume", run, "--total-steps", 128, "--no-wait")
    assert background.holder(run) != first
    background.wait(run)
    assert status(run)["delivery"] == {"state": "done"}
    assert (run / "report.html").is_file() and (run / "plots" / "overview.png").is_file()
    assert (run / "replays" / "best.gif").is_file()
    assert "128 env steps" not in (run / "log.txt").read_text() and "not made" not in (run / "log.txt").read_text()
    assert not [path for path in run.rglob("*") if ".tmp" in path.name]


def test_a_run_that_goes_on_ends_the_process_that_draws_it(run):
    process = hold(run)
    assert background.holder(run) == (process.pid, os.uname().nodename)
    with RunFiles.open(run) as files:
        files.lock()
        assert process.wait(5) == -15
    assert background.holder(run) is None


def test_a_process_elsewhere_is_not_ended(run):
    process = hold(run)
    (run / background.LOCK).write_text("1 another-machine\n")
    with RunFiles.open(run) as files, pytest.raises(StorageError, match="process 1 on another-machine draws"):
        files.lock()
    assert process.poll() is None
    process.kill()
    process.wait()


@pytest.mark.parametrize("verb", ["report", "remove"])
def test_a_lock_that_is_a_link_is_not_followed(run, verb, tmp_path, capsys):
    """A stranger's run whose lock leads to the one of a run that trains: that one is neither written to nor ended."""
    process = hold(tmp_path)
    precious = tmp_path / background.LOCK
    (run / background.LOCK).unlink(missing_ok=True)
    (run / background.LOCK).symlink_to(precious)
    reseal(run / "status.json", delivery={"state": "pending"})
    said = precious.read_text()
    assert background.holder(run) is None
    assert main(["report", str(run)] if verb == "report" else ["runs", "remove", str(run), "--yes"]) == (
        6 if verb == "report" else 0
    )
    assert precious.read_text() == said and process.poll() is None
    process.kill()
    process.wait()


def test_a_lock_that_is_a_pipe_is_one_line(run, capsys):
    (run / background.LOCK).unlink(missing_ok=True)
    os.mkfifo(run / background.LOCK)
    reseal(run / "status.json", delivery={"state": "pending"})
    assert main(["report", str(run)]) == 6
    assert capsys.readouterr().err.count("error:") == 1


@pytest.mark.parametrize("said", ["x", 3, [], {"state": ["done"]}])
def test_a_crafted_delivery_says_nothing(run, said, capsys):
    reseal(run / "status.json", delivery=said)
    assert main(["report", str(run)]) == 0
    assert listed(run, capsys)["delivery"] is None


def test_what_fails_is_written_down_and_made_again(run, monkeypatch, capsys):
    reseal(run / "status.json", delivery={"state": "pending"})
    (run / "report.html").unlink()

    def fail(path, *more, **named):
        raise ValueError("no ink")

    with monkeypatch.context() as patch:
        patch.setattr(delivery, "write_report", fail)
        delivery.complete(run)
    assert status(run)["delivery"] == {"state": "failed", "error": "report: no ink"}
    assert f"not made: report: no ink; `regimen report {run}` tries again" in (run / "log.txt").read_text()
    assert listed(run, capsys)["delivery"] == "failed"
    assert main(["runs", str(run)]) == 0 and "finished, incomplete" in capsys.readouterr().out
    assert main(["runs", "show", str(run)]) == 0 and "no ink" in capsys.readouterr().out
    assert [(f.code, f.evidence) for f in diagnose(run) if f.code == "incomplete"] == [("incomplete", "report: no ink")]
    assert main(["report", str(run)]) == 0
    assert status(run)["delivery"] == {"state": "done"} and (run / "report.html").is_file()
    assert not [f for f in diagnose(run) if f.code == "incomplete"]


def test_what_was_killed_is_made_again(run, capsys):
    """While its process lives the run is drawn; when it has gone, something is missing."""
    reseal(run / "status.json", delivery={"state": "pending"})
    (run / "report.html").unlink()
    process = hold(run)
    assert listed(run, capsys)["delivery"] == "drawing"
    process.kill()
    process.wait()
    assert listed(run, capsys)["delivery"] == "missing"
    assert main(["report", str(run)]) == 0
    assert listed(run, capsys)["delivery"] == "done" and (run / "report.html").is_file()


def test_a_run_that_trains_is_not_drawn(run):
    """It has gone on since: the process that comes too late leaves it alone."""
    reseal(run / "status.json", delivery={"state": "pending"})
    (run / "report.html").unlink()
    with RunFiles.open(run) as files:
        files.lock()
        assert delivery.complete(run) == [] and not (run / "report.html").exists()


def test_who_waits(monkeypatch):
    """A pipe does, a terminal does not, a container has to; and as told."""
    flags = train_verb.TrainFlags()
    assert train_verb.waits(flags)
    monkeypatch.setattr("regimen.files.console.is_terminal", lambda stream: True)
    assert not train_verb.waits(flags)
    assert train_verb.waits(train_verb.TrainFlags(wait=True))
    assert train_verb.waits(train_verb.TrainFlags(wait=False, distributed="host:1"))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert train_verb.waits(flags) and not train_verb.waits(train_verb.TrainFlags(wait=False))


def test_a_group_is_drawn_as_one(tmp_path, monkeypatch):
    """By one process, each seed's report among the rest."""
    monkeypatch.setattr(delivery, "try_plot_run", lambda path: ([], None))
    group = tiny(tmp_path / "group", updates=2, seeds=2).run_dir
    files = [group / "report.html", *(group / f"seed-{n}" / "report.html" for n in (0, 1))]
    for path in files:
        path.unlink()
    for n in (0, 1):
        reseal(group / f"seed-{n}" / "status.json", delivery={"state": "pending"})
    with background.claim(group) as file:
        assert file is not None and background.holder(group / "seed-1") is not None
        delivery.complete(group)
    assert all(path.is_file() for path in files)
    assert main(["runs", "remove", str(group), "--yes"]) == 0 and not group.exists()


def test_a_mirror_that_is_released_asks_for_no_store(tmp_path):
    from regimen.files.mlflow import Mirror

    (tmp_path / "run").mkdir()
    mirror = Mirror(f"sqlite:///{tmp_path / 'mlflow.db'}", "x", "run", tmp_path / "run", {}, delay=30.0)
    begun = time.monotonic()
    mirror.release()
    assert mirror._thread is not None and not mirror._thread.is_alive() and time.monotonic() - begun < 10
    assert not (tmp_path / "mlflow.db").exists() and not (tmp_path / "run" / "mlflow.json").exists()
