"""Curves, replay, report and MLflow at the end of a run: in this process, or in one that nobody waits for."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

import regimen
from regimen.cli import train as train_verb
from regimen.cli.main import main
from regimen.config import layers
from regimen.errors import SpentError, StorageError
from regimen.files import background
from regimen.files.mlflow import MirrorResult
from regimen.files.run_dir import RunFiles, read_config, read_summary
from regimen.files.storage import read_json, write_json
from regimen.reports.diagnose import diagnose
from regimen.runs import delivery, directory
from regimen.runs.api import train_further
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


def claim(run: Path) -> TextIO:
    file = background.claim(run)
    assert file is not None
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run and a group of two seeds."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "try_plot_run", lambda path: ([], None))
        patch.setattr(delivery, "plot_group", lambda runs, out: None)
        tiny(folder / "run", updates=2)
        tiny(folder / "group", updates=2, seeds=2)
    return folder


def undrawn(run: Path) -> Path:
    """A run as the command leaves it to the process that draws it."""
    reseal(run / "status.json", delivery={"state": "pending"})
    (run / "report.html").unlink(missing_ok=True)
    return run


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "try_plot_run", lambda path: ([], None))
    monkeypatch.setattr("regimen.reports.run_report.try_plot_run", lambda path: ([], None))
    return undrawn(shutil.copytree(trained / "run", tmp_path / "run", symlinks=True))


@pytest.fixture
def group(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "try_plot_run", lambda path: ([], None))
    monkeypatch.setattr(delivery, "plot_group", lambda runs, out: None)
    group = shutil.copytree(trained / "group", tmp_path / "group", symlinks=True)
    (group / "report.html").unlink()
    for n in (0, 1):
        undrawn(group / f"seed-{n}")
    return group


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
    process = hold(run)
    assert listed(run, capsys)["delivery"] == "drawing"
    process.kill()
    process.wait()
    assert listed(run, capsys)["delivery"] == "missing"
    assert main(["report", str(run)]) == 0
    assert listed(run, capsys)["delivery"] == "done" and (run / "report.html").is_file()


@pytest.mark.parametrize("begin", [regimen.resume, train_further], ids=["resume", "the same command"])
def test_a_run_that_was_killed_while_it_was_drawn_is_complete_when_it_is_resumed(run, monkeypatch, begin):
    monkeypatch.setattr(delivery, "spawn", no_process)  # it is made here
    source = run if begin is regimen.resume else layers.from_dict(read_config(run)).replace(out=str(run))
    assert begin(source).summary == read_summary(run)
    assert status(run)["delivery"] == {"state": "done"} and (run / "report.html").is_file()
    with pytest.raises(SpentError, match="give a larger"):  # nothing of it is missing now
        regimen.resume(run)


def test_a_group_that_was_killed_while_it_was_drawn_is_complete_when_it_is_resumed(group, monkeypatch):
    monkeypatch.setattr(delivery, "spawn", no_process)
    regimen.resume(group)
    assert [status(group / f"seed-{n}")["delivery"] for n in (0, 1)] == [{"state": "done"}] * 2
    assert (group / "report.html").is_file()


def no_process(path: Path, lock: TextIO) -> int:
    raise OSError("no process can be begun")


def test_a_run_that_trains_is_not_drawn(run):
    """It has gone on since: the process that comes too late leaves it alone."""
    with RunFiles.open(run) as files:
        files.lock()
        assert delivery.complete(run) == [] and not (run / "report.html").exists()


def test_who_waits(monkeypatch):
    """The command does not, be it in a pipe; a batch job and a container have to, and so has a program of the user's;
    and as told."""
    flags = train_verb.TrainFlags()
    for name in train_verb.BATCH:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["/home/me/experiment.py"])
    assert train_verb.waits(flags)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/regimen"])
    assert not train_verb.waits(flags)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert train_verb.waits(flags) and not train_verb.waits(train_verb.TrainFlags(wait=False))
    monkeypatch.delenv("SLURM_JOB_ID")
    assert train_verb.waits(train_verb.TrainFlags(wait=True))
    assert train_verb.waits(train_verb.TrainFlags(wait=False, distributed="host:1"))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert train_verb.waits(flags) and not train_verb.waits(train_verb.TrainFlags(wait=False))


def test_a_group_is_drawn_as_one(group):
    """By one process, each seed's report among the rest."""
    with claim(group) as file:
        assert background.holder(group / "seed-1") is not None
        delivery.complete(group, file.fileno())
    assert all((folder / "report.html").is_file() for folder in (group, group / "seed-0", group / "seed-1"))
    assert [status(group / f"seed-{n}")["delivery"]["state"] for n in (0, 1)] == ["done", "done"]
    (group / "return.png").touch()
    assert main(["runs", "remove", str(group), "--yes"]) == 0 and not group.exists()


def test_a_group_is_complete_when_its_own_pictures_are(group, monkeypatch, capsys):
    """A process that is killed after the seeds, or that fails with what they have in common, leaves it incomplete."""

    def kill(runs, out):
        raise SystemExit

    def fail(runs, out):
        raise ValueError("no ink")

    monkeypatch.setattr(delivery, "plot_group", kill)
    with pytest.raises(SystemExit):
        delivery.complete(group)
    assert listed(group / "seed-0", capsys)["delivery"] == "missing" and (group / "seed-1" / "report.html").is_file()
    monkeypatch.setattr(delivery, "plot_group", fail)
    delivery.complete(group)
    for n in (0, 1):
        assert status(group / f"seed-{n}")["delivery"] == {"state": "failed", "error": "curves: no ink"}
    assert (group / "report.html").is_file(), "what does not fail is made"


def test_a_damaged_seed_leaves_the_others_theirs(group):
    text = (group / "seed-0" / "status.json").read_text()
    (group / "seed-0" / "status.json").write_text(text.replace('"finished"', '"diverged"'))
    before = (group / "seed-0" / "status.json").read_bytes()
    lines = delivery.complete(group)
    assert any(line.startswith("not made: ") and "seed-0/status.json is damaged" in line for line in lines)
    assert (group / "seed-0" / "status.json").read_bytes() == before, "it is not sealed anew"
    assert (group / "seed-1" / "report.html").is_file()


def test_a_report_waits_for_a_seed_that_was_resumed_by_itself(group):
    process, said = hold(group / "seed-1"), []

    def say(text: str) -> None:
        said.append(text)
        process.kill()

    delivery.report_again(group, None, say)
    process.wait()
    assert said[0] == f"process {process.pid} is drawing it: waiting"


def test_a_group_is_removed_with_what_draws_its_seeds(group):
    process = hold(group / "seed-1")
    assert main(["runs", "remove", str(group), "--yes"]) == 0
    assert process.wait(5) == -15 and not group.exists()


def test_the_group_of_a_seed_is_found_from_within_it(group, monkeypatch):
    monkeypatch.chdir(group / "seed-1")
    with claim(group):
        assert background.holder(Path(".")) is not None
    assert background.holder(Path(".")) is None


def test_a_run_that_is_looked_at_is_claimed(run):
    """Whoever looks whether it is drawn has the lock for a moment, too."""
    with open(run / background.LOCK, "w") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        threading.Timer(0.2, reader.close).start()
        with claim(run):
            assert background.claim(run) is None


def test_without_locks_nobody_draws_a_run(run, monkeypatch):
    (run / background.LOCK).touch()

    def flock(file, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    assert background.holder(run) is None
    background.wait(run)
    delivery.start(run)
    assert status(run)["delivery"] == {"state": "done"}, "it is made by the process that has trained"


def test_a_process_that_has_not_the_lock_is_not_ended(run, monkeypatch):
    """The number of one that is gone may be another's by now. Who cannot end it can try again."""
    monkeypatch.setattr(background, "PATIENCE", 0.2)
    process, bystander = hold(run), subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (run / background.LOCK).write_text(f"{bystander.pid} {os.uname().nodename}\n")
    with RunFiles.open(run) as files, RunFiles.open(run) as others:
        with pytest.raises(StorageError, match="cannot be stopped"):
            files.lock()
        assert bystander.poll() is None and process.poll() is None
        process.kill()
        process.wait()
        others.lock()
    bystander.kill()
    bystander.wait()


def test_a_run_that_is_removed_stays_so(run, tmp_path, monkeypatch):
    """Nor does the process that drew it write into the run that comes into its place."""
    other = shutil.copytree(run, tmp_path / "other", symlinks=True)
    with claim(run) as file:
        monkeypatch.setattr(delivery, "try_plot_run", lambda path: shutil.rmtree(path) or ([], None))
        delivery.complete(run, file.fileno())
        assert not run.exists()
        shutil.copytree(other, run)
        delivery.complete(run, file.fileno())
    assert not (run / "report.html").exists() and status(run)["delivery"] == {"state": "pending"}


def test_a_full_disk_fails_no_run(run, monkeypatch):
    """Neither the process nor anything else can be made: the results are there all the same."""

    def full(*more, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(files, **fields):
        raise StorageError("cannot write status.json: disk full")

    monkeypatch.setattr(background, "claim", full)
    monkeypatch.setattr(RunFiles, "status", refuse)
    monkeypatch.setattr(delivery, "write_report", full)
    assert delivery.start(run)[-1] == f"report   none: [Errno {errno.ENOSPC}] No space left on device"


def test_a_report_of_somebody_elses_run_is_written_elsewhere(run, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    before = (run / "status.json").read_bytes()
    monkeypatch.setattr(background, "claim", refuse)
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").is_file() and (run / "status.json").read_bytes() == before


def test_a_lock_that_leads_elsewhere_is_not_written_to(run, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("my words")
    (run / background.LOCK).unlink(missing_ok=True)
    (run / background.LOCK).symlink_to(tmp_path / "mine.txt")
    assert main(["report", str(run)]) != 0 and "is a link to" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "my words"


def test_followers_are_told_the_summary_of_the_run():
    told: list[object] = []
    learner: Any = SimpleNamespace(diverged=False, mirror=None)
    learner.trackers = {"W&B": SimpleNamespace()}
    learner.trackers["W&B"].finish = lambda summary, files: told.append(summary) or MirrorResult("there")
    delivery.hand_over(learner, {"compile_seconds": 2.5})
    assert told == [{"compile_seconds": 2.5, "state": "finished"}]


def test_what_mlflow_has_is_not_registered_again(run, monkeypatch):
    """The report is made again and sent; the policy is there. A run that has gone on since has another one."""
    ends = []

    class Mirror:
        def __init__(self, uri, *more, **named):
            self.uri = uri

        def finish(self, summary, artifacts, policy, **named):
            ends.append((artifacts, policy))
            return MirrorResult(self.uri)

    monkeypatch.setattr(delivery, "Mirror", Mirror)
    monkeypatch.setattr(delivery, "tracks_mlflow", lambda config: True)
    delivery.complete(run)
    write_json(run / "mlflow.json", {"run_id": "1", "uri": "sqlite:///x.db", "complete": True})
    undrawn(run)
    delivery.complete(run)
    delivery.track_again(run)
    assert [policy for _, policy in ends] == [run / "policy", None, None]
    assert run / "report.html" in ends[1][0] and ends[2][0] == []
    with RunFiles.open(run) as files:
        monkeypatch.setattr("regimen.runs.directory.write_config", lambda path, settings: None)
        monkeypatch.setattr("regimen.runs.directory.layers", SimpleNamespace(to_dict=lambda config: {}))
        learner: Any = SimpleNamespace(files=files, config=None)
        directory.say_running(learner, "")
    assert read_json(run / "mlflow.json")["complete"] is False


def test_a_program_goes_on_after_the_command(monkeypatch):
    """Only the command itself is left at once."""
    monkeypatch.setattr(background, "begun", [subprocess.Popen])
    monkeypatch.setattr(background, "leave", lambda code: pytest.fail("the program is ended"))
    monkeypatch.setattr(sys, "argv", ["experiment.py", "--version"])
    assert main() == 0


def test_a_mirror_that_is_released_asks_for_no_store(tmp_path):
    from regimen.files.mlflow import Mirror

    (tmp_path / "run").mkdir()
    mirror = Mirror(f"sqlite:///{tmp_path / 'mlflow.db'}", "x", "run", tmp_path / "run", {}, delay=30.0)
    begun = time.monotonic()
    mirror.release()
    assert mirror._thread is not None and not mirror._thread.is_alive() and time.monotonic() - begun < 10
    assert not (tmp_path / "mlflow.db").exists() and not (tmp_path / "run" / "mlflow.json").exists()
