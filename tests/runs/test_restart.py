"""The same command again: begins, goes on, is finished, or refuses; with files for schedulers that can be read."""

import configparser
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

import regimen
from regimen.cli.main import main
from regimen.cli.train import read
from regimen.config.layers import build_config
from regimen.errors import DivergedError, StorageError, UsageError
from regimen.files.sealed import read_sealed, write_sealed
from regimen.runs.restart import train_again
from support import TINY, UPDATE, assert_same_run

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TWO = TINY | {"total_steps": 2 * UPDATE, "checkpoint.every": "1"}


def config(out, **settings):
    return build_config("cartpole", overrides=TWO | {"out": str(out)} | settings)


def test_an_interrupted_run_goes_on_to_the_same_end_and_a_finished_one_stays(tmp_path):
    whole = train_again(config(tmp_path / "whole"))
    for _ in regimen.Trainer("cartpole", **TWO, out=tmp_path / "run").updates():
        break  # leaves it as a signal would
    assert read_sealed(tmp_path / "run" / "status.json")["state"] == "interrupted"
    assert train_again(config(tmp_path / "run")).summary["updates"] == 2
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert train_again(config(tmp_path / "run")).summary["updates"] == whole.summary["updates"] == 2
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_seeds_go_on_as_a_group(tmp_path):
    first = train_again(config(tmp_path / "group", seeds=2))
    again = train_again(config(tmp_path / "group", seeds=2))
    assert [run.summary["seed"] for run in again.runs or (again.summary["seeds"] and first.runs)] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algo.lr": 0.5}, "algo.lr .*, and this command says 0.5"),
        ({"total_steps": 9 * UPDATE}, "`regimen resume .* --total-steps 288` extends it"),
        ({"env_args": {"max_episode_steps": 9}}, "env_args.max_episode_steps None, and this command says 9"),
    ],
)
def test_a_run_of_other_settings_is_refused(tmp_path, changes, words):
    run = tmp_path / "run"
    regimen.train("cartpole", **TWO, out=run)
    with pytest.raises(StorageError, match=words):
        train_again(config(run, **changes))


def test_a_run_that_diverged_says_so_again(tmp_path):
    run = tmp_path / "run"
    regimen.train("cartpole", **TWO, out=run)
    for name, more in (("status.json", {"state": "diverged"}), ("summary.json", {"stop_detail": "it diverged"})):
        write_sealed(run / name, read_sealed(run / name) | more)
    with pytest.raises(DivergedError, match="it diverged"):
        train_again(config(run))


@pytest.mark.parametrize("flags", [[], ["--out", "runs/x", "--hosts", "2"], ["--out", "x", "--distributed", "a:1"]])
def test_a_restart_needs_a_place_and_one_process(flags, capsys):
    assert main(["train", "cartpole", "--resume-if-exists", *flags]) == UsageError.exit_code
    assert "--resume-if-exists" in capsys.readouterr().err


def commands(text):
    """The `regimen` commands of a file, lines that go on joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [match[1] for match in re.finditer(r"(?:^|[\s/])regimen ((?:train|resume) [^\n]+)", joined)]


def test_the_recipes_for_schedulers_can_be_read():
    """What a linter would look at, and that every command in them is one."""
    every = {path.name: path.read_text() for path in DEPLOY.iterdir()}
    assert set(every) == {"Dockerfile", "slurm.sh", "regimen.service", "kuberay.yaml"}
    subprocess.run(["bash", "-n", DEPLOY / "slurm.sh"], check=True)
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(every["regimen.service"])
    assert {"Unit", "Service", "Install"} <= set(unit) and unit["Service"]["SuccessExitStatus"] == "143"
    job = yaml.safe_load(every["kuberay.yaml"])
    assert job["kind"] == "RayJob" and job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] > 0
    shown = [every["slurm.sh"], unit["Service"]["ExecStart"], job["spec"]["entrypoint"]]
    for text in shown:
        (command,) = commands(text)
        argv = shlex.split(re.sub(r"\$\{\w+:-(\w+)\}", r"\1", command))
        _, flags = read(argv[1:])
        assert argv[0] == "train" and flags.resume_if_exists
    page = (ROOT / "docs" / "deploying.md").read_text()
    assert all(text.strip() in page for text in every.values()), "docs/deploying.md shows the files as they are"


def test_the_job_of_slurm_comes_back_when_its_time_is_over(tmp_path):
    """At the limit SLURM sends SIGTERM to the step and to the shell of the script, which still requeues the job."""
    programs = {
        "srun": "trap 'exit 143' TERM; echo $$ > pid; while :; do sleep 0.05; done",
        "scontrol": "echo $* > told",
        "activate": "",
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    place = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "REGIMEN_ENVIRONMENT": str(tmp_path)}
    job = subprocess.Popen(["bash", DEPLOY / "slurm.sh"], cwd=tmp_path, env=os.environ | place | {"SLURM_JOB_ID": "7"})
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text().strip()):
        time.sleep(0.01)
    job.terminate()  # the shell first: it is not to end before its step
    time.sleep(0.2)
    os.kill(int(pid.read_text()), signal.SIGTERM)
    assert job.wait(60) == 143 and (tmp_path / "told").read_text() == "requeue 7\n"


def test_the_dockerfile_is_sound():
    """Instructions that there are, a pinned base, no root, no cache of pip, and every file that it copies."""
    joined = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    steps = [(line.split()[0], line.split()[1:]) for line in lines]
    names = [name for name, _ in steps]
    assert names[0] == "FROM" and re.fullmatch(r"python:3\.\d+\.\d+-\S+", steps[0][1][0])
    assert set(names) <= {"FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert names.index("USER") < names.index("ENTRYPOINT") and dict(steps)["USER"] != ["root"]
    assert all("--no-cache-dir" in words for name, words in steps if name == "RUN" and "install" in words[:2])
    for name, words in steps:
        assert name != "COPY" or all((ROOT / word).exists() for word in words[:-1]), words
    assert dict(steps)["ENTRYPOINT"] == ['["regimen"]']
