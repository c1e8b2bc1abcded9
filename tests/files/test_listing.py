"""Lists of runs, and what may be removed."""

import json
import os
import subprocess
import sys

import pytest

from regimen.cli.main import main
from regimen.errors import StorageError
from regimen.files.listing import describe, find_runs, listed, remove
from regimen.files.run_dir import RunFiles
from synthetic_run import make_run


@pytest.fixture
def runs(tmp_path):
    """A finished run, a group of two seeds, and one whose process is gone."""
    make_run(tmp_path / "runs" / "first", updates=6)
    for seed in (0, 1):
        make_run(tmp_path / "runs" / "group" / f"seed-{seed}", updates=4, seed=seed)
    (tmp_path / "runs" / "group" / "summary.json").write_text("{}")
    config = {"env": "pendulum", "algorithm": "sac", "seed": 3, "total_steps": 4000}
    with RunFiles.create(tmp_path / "runs" / "dead", config, "regimen train pendulum") as files:
        files.log({"env_steps": 1000, "updates": 1, "wall_seconds": 2.0, "rollout/return_mean": -900.0})
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    return tmp_path / "runs"


def test_list(runs):
    rows = {r.path.removeprefix(f"{runs}/"): r for r in listed([runs])}
    assert set(rows) == {"first", "group/seed-0", "group/seed-1", "dead"}
    dead = rows["dead"]
    assert (dead.state, dead.progress, dead.episode_return, dead.env_steps) == ("killed", 0.25, -900.0, 1000)
    assert rows["first"].episode_return == 498.25 and rows["first"].size > 1000
    assert [r.algo for r in listed([runs], algo="sac")] == ["sac"]
    assert [r.env for r in listed([runs], env="pend")] == ["pendulum"]
    assert [r.state for r in listed([runs], state="killed")] == ["killed"]
    by_return = [r.episode_return for r in listed([runs], sort="return")]
    assert by_return == sorted(by_return, reverse=True)


def test_a_run_in_progress_is_running_and_cannot_be_removed(runs):
    files = RunFiles.open(runs / "dead")
    files.lock()
    try:
        assert describe(runs / "dead").state == "running"
        with pytest.raises(StorageError, match="is running"):
            remove(runs / "dead")
    finally:
        files.close()
    assert describe(runs / "dead").state == "killed" and (runs / "dead" / "config.yaml").exists()


def test_damaged_files_are_shown_as_far_as_they_go(runs):
    (runs / "dead" / "config.yaml").write_text("{: not yaml")
    (runs / "dead" / "metrics.jsonl").write_text('{"env_steps": 7}\nnot json\n{"half')
    row = describe(runs / "dead")
    assert (row.env, row.env_steps) == ("?", 7)
    assert main(["runs", "show", str(runs / "dead")]) == 0


def test_command(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs.parent)
    assert main(["runs"]) == 0
    text = capsys.readouterr().out
    assert "runs/first" in text and "killed" in text and "\x1b" not in text
    assert main(["runs", "runs/group"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["runs", "--json", "--sort", "size"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    assert main(["runs", "show", "runs/first"]) == 0
    assert "regimen train cartpole" in capsys.readouterr().out
    assert main(["runs", "lst"]) == 2
    assert main(["runs", "--sort", "colour"]) == 3
    assert main(["runs", "list", "nowhere"]) == 6


def test_remove(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs.parent)
    assert main(["runs", "remove", "runs/first"]) == 2  # nobody to ask
    assert "add --yes" in capsys.readouterr().err and (runs / "first").is_dir()
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: "n")
    assert main(["runs", "remove", "runs/first"]) == 1 and (runs / "first").is_dir()
    monkeypatch.setattr("builtins.input", lambda text: "y")
    assert main(["runs", "remove", "runs/first"]) == 0 and not (runs / "first").exists()
    assert main(["runs", "remove", "runs/group", "--yes"]) == 0 and not (runs / "group").exists()
    assert sorted(p.name for p in runs.iterdir()) == ["dead", "notes.txt"]


@pytest.mark.parametrize("what", ["runs", "runs/notes.txt", "runs/none", "elsewhere", "link"])
def test_nothing_but_runs_is_removed(runs, what, capsys, monkeypatch):
    monkeypatch.chdir(runs.parent)
    (runs.parent / "elsewhere").mkdir()
    (runs.parent / "elsewhere" / "thesis.tex").write_text("x")
    os.symlink(runs / "first", runs.parent / "link")
    before = sorted(str(p) for p in runs.parent.rglob("*"))
    assert main(["runs", "remove", "runs/first", what, "--yes"]) == 6
    assert sorted(str(p) for p in runs.parent.rglob("*")) == before, "one bad name, and nothing is removed"


def test_links_are_not_followed(runs):
    os.symlink("/", runs / "loop")
    assert len(list(find_runs(runs))) == 4


def test_artifacts_of_mlflow_are_no_runs(runs):
    """They hold a copy of the configuration, the summary and the report, and nothing else of a run's life."""
    artifacts = runs / "mlartifacts" / "1" / "ab12" / "artifacts"
    (artifacts / "policy").mkdir(parents=True)
    for name in ("config.yaml", "summary.json"):
        (artifacts / name).write_text((runs / "first" / name).read_text())
    assert len(list(find_runs(runs))) == 4 and not list(find_runs(artifacts))


def test_listing_needs_no_jax(runs):
    code = "import sys; from regimen.cli.main import main; main(['runs', sys.argv[1]]); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(runs)], check=True, capture_output=True)
