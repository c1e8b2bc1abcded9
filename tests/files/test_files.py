import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml

from regimen.errors import StorageError
from regimen.files.run_dir import PROGRESS_COLUMNS, RunFiles, read_episodes, read_metrics
from regimen.files.sealed import unseal
from regimen.files.storage import filling, plain, rows_up_to, write_json

CONFIG = {"env": "cartpole", "seed": 3, "network": {"hidden": (64, 64)}}


def make(path) -> RunFiles:
    return RunFiles.create(path, CONFIG, "regimen train cartpole --seed 3")


def rows(path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def point(updates: int, **more) -> dict:
    return {"env_steps": 100 * updates, "updates": updates, "episodes": 2 * updates, "train/loss": 0.5, **more}


def episode_rows(update: int, n: int = 2, **more) -> dict:
    first = (update - 1) * n
    return {
        "return": np.arange(n, dtype=np.float32) + 0.1,
        "episode": first + 1 + np.arange(n),
        "update": np.full(n, update),
        "env_steps": 100 * update - np.arange(n)[::-1],
        "length": np.full(n, 7),
        "terminated": np.arange(n) % 2 == 0,
        "truncated": np.arange(n) % 2 == 1,
        **more,
    }


def test_create_writes_the_contract(tmp_path):
    with make(tmp_path / "runs" / "a") as files:
        assert yaml.safe_load((files.path / "config.yaml").read_text()) == {**CONFIG, "network": {"hidden": [64, 64]}}
        assert list(files.config) == list(CONFIG), "the order of keys is kept"
        assert (files.path / "command.txt").read_text() == "regimen train cartpole --seed 3\n"
        status = json.loads((files.path / "status.json").read_text())
    assert status["state"] == "running" and status["pid"] == os.getpid() and status["versions"]["python"]
    assert {"stop_reason", "git_revision", "started", "updated"} <= set(status)


@pytest.mark.parametrize("kind", ["used run", "other files", "file", "below a file"])
def test_create_refuses_what_it_would_destroy_or_cannot_write(tmp_path, kind):
    path = tmp_path / "run"
    if kind == "used run":
        make(path).close()
    elif kind == "other files":
        path.mkdir()
        (path / "thesis.txt").write_text("do not touch")
    else:
        path.write_text("a file")
        path = path / "sub" if kind == "below a file" else path
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StorageError, match="choose another --out") as error:
        make(path)
    assert "\n" not in str(error.value)
    assert ("regimen resume" in str(error.value)) == (kind == "used run")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_directory_may_be_used(tmp_path):
    make(tmp_path).close()
    assert RunFiles.open(tmp_path).config["seed"] == 3


def test_open_says_why_it_is_no_run(tmp_path):
    (tmp_path / "group" / "seed-0").mkdir(parents=True)
    make(tmp_path / "group" / "seed-0").close()
    (tmp_path / "file").write_text("")
    for name, why in (("none", "no such directory"), ("file", "it is a file"), ("group", "in its sub-directories")):
        with pytest.raises(StorageError, match=why):
            RunFiles.open(tmp_path / name)
    (tmp_path / "group" / "seed-0" / "config.yaml").write_text("{")
    with pytest.raises(StorageError, match="not valid YAML"):
        _ = RunFiles.open(tmp_path / "group" / "seed-0").config


def test_a_second_process_is_refused_until_the_first_one_dies(tmp_path):
    files = make(tmp_path / "run")
    code = (
        "import sys, time; from pathlib import Path; from regimen.files.run_dir import RunFiles\n"
        "files = RunFiles.open(Path(sys.argv[1])); files.lock(); print('locked', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(files.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with pytest.raises(StorageError, match=f"in use by process {holder.pid}"):
            files.lock()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()
    files.lock()
    files.lock()  # its own lock is no obstacle
    with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
        RunFiles.open(files.path).lock()
    files.unlock()
    with RunFiles.open(files.path) as other:
        other.lock()


def test_status_merges_and_survives_a_damaged_file(tmp_path):
    files = make(tmp_path / "run")
    assert files.status(state="diverged", stop_reason="loss is nan")["pid"] == os.getpid()
    with pytest.raises(ValueError, match="state"):
        files.status(state="happy")
    (files.path / "status.json").write_text('{"state": "run')
    assert RunFiles.open(files.path).status(state="running")["state"] == "running"
    assert json.loads((files.path / "status.json").read_text())["state"] == "running"


def test_log_names_and_order_of_progress(tmp_path):
    files = make(tmp_path / "run")
    files.log(point(1, **{"rollout/return_mean": np.float32(0.1), "time/steps_per_second": 5e4, "note": "a,b\nc"}))
    header = (files.path / "progress.csv").read_text().splitlines()[0].split(",")
    assert tuple(header[: len(PROGRESS_COLUMNS)]) == PROGRESS_COLUMNS
    assert header[len(PROGRESS_COLUMNS) :] == ["train/loss", "note"]
    (row,) = rows(files.path / "progress.csv")
    assert (row["episode_return_mean"], row["steps_per_second"], row["note"]) == ("0.1", "50000.0", "a,b c")
    assert row["success_rate"] == "" and row["env_steps"] == "100"
    assert read_metrics(files.path)[0]["rollout/return_mean"] == 0.1


def test_what_is_not_finite_is_absent_not_nan(tmp_path):
    files = make(tmp_path / "run")
    files.log(point(1, **{"train/kl": float("nan"), "eval/return_mean": np.float32("inf"), "train/entropy": None}))
    text = (files.path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == point(1)
    assert rows(files.path / "progress.csv")[0].keys() == dict.fromkeys([*PROGRESS_COLUMNS, "train/loss"]).keys()
    files.summary({"score": float("nan"), "steps": np.int64(3), "path": files.path, "flag": np.bool_(True)})
    summary = unseal(json.loads((files.path / "summary.json").read_text(), parse_constant=pytest.fail), "it")
    assert summary == {"schema": 1} | {"score": None, "steps": 3, "path": str(files.path), "flag": True}


def test_a_new_column_rewrites_the_header_and_pads_old_rows(tmp_path):
    files = make(tmp_path / "run")
    files.log(point(1), point(2))
    files.log(point(3, **{"eval/return_mean": 9.5}))
    files.log(point(4))
    files.close()
    with RunFiles.open(files.path) as again:  # a resumed run goes on with the same header
        again.log(point(5, **{"eval/return_mean": 10.5, "train/new": 1}))
    table = rows(files.path / "progress.csv")
    assert [r["eval/return_mean"] for r in table] == ["", "", "9.5", "", "10.5"]
    assert [r["train/new"] for r in table] == ["", "", "", "", "1"]
    assert all(None not in r and None not in r.values() for r in table), "every row has as many cells as the header"
    assert len(read_metrics(files.path)) == 5


def test_episodes_round_trip(tmp_path):
    files = make(tmp_path / "run")
    assert read_episodes(files.path) == {}
    extra = {"distance": np.array([0.25, np.nan], np.float32), "reward/fuel": np.array([-1.0, -2.0])}
    files.episodes(episode_rows(1, **extra))
    files.episodes(episode_rows(2, n=0))
    files.episodes(episode_rows(2, **extra))
    header = (files.path / "episodes.csv").read_text().splitlines()[0]
    assert header == "episode,update,env_steps,return,length,terminated,truncated,reward/fuel,distance"
    table = read_episodes(files.path)
    assert table["episode"].tolist() == [1, 2, 3, 4] and table["episode"].dtype == np.int64
    assert table["terminated"].tolist() == [True, False, True, False]
    assert (table["return"].astype(np.float32) == np.tile(np.arange(2, dtype=np.float32) + 0.1, 2)).all()
    np.testing.assert_array_equal(table["distance"], [0.25, np.nan, 0.25, np.nan])
    assert "success" not in table


def test_episodes_with_success_keep_the_contract_order(tmp_path):
    files = make(tmp_path / "run")
    files.episodes(episode_rows(1, success=np.array([True, False])))
    assert (files.path / "episodes.csv").read_text().splitlines()[0].endswith("terminated,truncated,success")
    assert read_episodes(files.path)["success"].tolist() == [1.0, 0.0]


def test_many_episodes_cost_little(tmp_path):
    files = make(tmp_path / "run")
    n = 50_000
    table = episode_rows(1, n=n, **{"reward/a": np.random.default_rng(0).normal(size=n).astype(np.float32)})
    start = time.process_time()
    files.episodes(table)
    seconds = time.process_time() - start
    start = time.process_time()
    for _ in range(n):  # the same machine, now: one dict per row
        json.dumps({"a": 1, "b": 2.5})
    assert seconds < 8 * (time.process_time() - start)
    assert len(read_episodes(files.path)["return"]) == n


def test_a_half_written_last_line_is_dropped(tmp_path):
    files = make(tmp_path / "run")
    for update in (1, 2):
        files.log(point(update))
        files.episodes(episode_rows(update))
    files.close()
    for name in ("metrics.jsonl", "progress.csv", "episodes.csv"):
        with open(files.path / name, "r+b") as file:
            file.truncate(os.path.getsize(files.path / name) - 4)
    assert [p["updates"] for p in read_metrics(files.path)] == [1]
    assert read_episodes(files.path)["episode"].tolist() == [1, 2, 3]
    with RunFiles.open(files.path) as again:
        again.log(point(3))
        again.episodes(episode_rows(3))
    assert [p["updates"] for p in read_metrics(files.path)] == [1, 3]
    assert [r["updates"] for r in rows(files.path / "progress.csv")] == ["1", "3"]
    assert read_episodes(files.path)["episode"].tolist() == [1, 2, 3, 5, 6]


def test_damage_in_the_middle_loses_only_that_line(tmp_path):
    files = make(tmp_path / "run")
    for update in (1, 2, 3):
        files.log(point(update))
        files.episodes(episode_rows(update))
    files.close()
    for name in ("metrics.jsonl", "episodes.csv"):
        lines = (files.path / name).read_bytes().splitlines(keepends=True)
        lines[-2] = b"\0" * 20 + b"\n"
        (files.path / name).write_bytes(b"".join(lines))
    assert [p["updates"] for p in read_metrics(files.path)] == [1, 3]
    assert read_episodes(files.path)["episode"].tolist() == [1, 2, 3, 4, 6]


def test_rewind_forgets_what_came_after_the_checkpoint(tmp_path):
    files = make(tmp_path / "run")
    for update in range(1, 6):
        files.log(point(update, note='with "quotes", and comma'))
        files.episodes(episode_rows(update))
        files.workers(update, 1.5, [{"worker": w, "state": "collecting"} for w in range(2)])
    files.event("before")
    files._metrics.write(b'{"updates": 6, "tr')  # killed in the middle of a line
    files.rewind(3)
    files.log(point(4))
    files.episodes(episode_rows(4))
    assert [p["updates"] for p in read_metrics(files.path)] == [1, 2, 3, 4]
    assert [r["updates"] for r in rows(files.path / "progress.csv")] == ["1", "2", "3", "4"]
    assert read_episodes(files.path)["update"].tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    workers = rows(files.path / "workers.csv")
    assert [r["updates"] for r in workers] == ["1", "1", "2", "2", "3", "3"]
    assert workers[1] == {"updates": "1", "wall_seconds": "1.5", "worker": "1", "state": "collecting"}
    files.rewind(0)
    files.log(point(1))
    assert [p["updates"] for p in read_metrics(files.path)] == [1]
    assert read_episodes(files.path)["update"].tolist() == []
    assert "before" in (files.path / "log.txt").read_text()
    assert not [p for p in files.path.iterdir() if p.suffix == ".tmp"]


def test_rewind_of_a_run_that_logged_nothing(tmp_path):
    files = make(tmp_path / "run")
    (files.path / "progress.csv").write_text("env_st")  # killed while writing the header
    files.rewind(0)
    files.log(point(1))
    assert [r["updates"] for r in rows(files.path / "progress.csv")] == ["1"]


def test_events_are_one_timestamped_line_each(tmp_path):
    files = make(tmp_path / "run")
    files.event("checkpoint 10\nsaved")
    files.event("stopped")
    first, second = (files.path / "log.txt").read_text().splitlines()
    assert first.endswith("Z checkpoint 10 saved") and second.split(" ", 1)[1] == "stopped"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's always-full device")
@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.csv", "log.txt"])
def test_a_full_disk_is_one_line_that_names_the_file(tmp_path, name):
    files = make(tmp_path / "run")
    files.episodes(episode_rows(1))
    files.close()
    (files.path / name).unlink(missing_ok=True)
    (files.path / name).symlink_to("/dev/full")
    if name == "episodes.csv":
        files._episodes.columns = ["episode"]  # a header was written before the disk filled
    act = {
        "metrics.jsonl": lambda: files.log(point(1)),
        "episodes.csv": lambda: files.episodes({"episode": np.arange(3)}),
        "log.txt": lambda: files.event("x"),
    }
    with pytest.raises(StorageError, match="disk full") as error:
        act[name]()
    assert name in str(error.value) and "\n" not in str(error.value)


def test_a_name_that_is_no_text_is_refused_before_anything_is_made(tmp_path):
    strange = os.fsdecode(b"r\xffn")
    for name, command in {strange: "x", "run": f"regimen train --data {strange}"}.items():
        with pytest.raises(StorageError, match=r"xff.*is not UTF-8") as error:
            RunFiles.create(tmp_path / "new" / name, CONFIG, command)
        assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_a_full_disk_leaves_whole_lines(tmp_path):
    """A file-size limit stands in for the full disk: the write that hits it is cut off again."""
    code = f"""
import resource, signal, sys
sys.path.insert(0, {str(os.path.dirname(__file__))!r})
from pathlib import Path
from test_files import make, point
from regimen.errors import StorageError
files = make(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    for update in range(1, 1000):
        files.log(point(update))
except StorageError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert "cannot write" in done.stdout and "metrics.jsonl" in done.stdout
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes().endswith(b"}\n")


def test_failed_replacement_keeps_the_old_file(tmp_path):
    with pytest.raises(StorageError, match="cannot write"):
        write_json(tmp_path / "missing" / "x.json", {})
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(StorageError, match=r"folder\.json"):
        write_json(tmp_path / "folder.json", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.json"]


def test_an_interrupted_replacement_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write_json(tmp_path / "x.json", {"a": 1})

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "x.json", {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"] and json.loads((tmp_path / "x.json").read_text())[
        "a"
    ] == 1


def test_what_a_killed_process_had_begun_is_removed_by_the_next_one(tmp_path):
    files = make(tmp_path / "run")
    ended = subprocess.Popen(["true"])
    ended.wait()
    (files.path / "policy").mkdir()
    halves = [files.path / name for name in (f".status.json.{ended.pid}.tmp", f"policy/.curves.{ended.pid}.tmp.png")]
    others = [files.path / name for name in (f".status.json.{os.getppid()}.tmp", ".env", "notes.7.tmp", ".7.tmp")]
    for path in (*halves, *others):
        path.touch()
    files.lock()
    files.close()
    assert not any(path.exists() for path in halves) and all(path.exists() for path in others)


def test_a_folder_is_there_when_all_of_it_is(tmp_path):
    out, precious = tmp_path / "out", tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (tmp_path / ".out.tmp").symlink_to(precious)  # what is in the way
    with pytest.raises(KeyboardInterrupt), filling(out) as folder:
        (folder / "a").touch()
        raise KeyboardInterrupt
    assert not out.exists() and sorted(p.name for p in tmp_path.iterdir()) == ["precious"]
    (tmp_path / ".out.tmp").mkdir()  # of a process that was killed
    (tmp_path / ".out.tmp" / "half").touch()
    out.mkdir()  # an empty one may be there
    with filling(out) as folder:
        (folder / "a").touch()
        assert not any(out.iterdir())
    assert [p.name for p in out.iterdir()] == ["a"] and (precious / "file").exists()


def test_plain_values():
    values = {"a": np.float32(0.1), "b": np.arange(2), "c": (1, {"d": np.inf}), 3: {4}}
    assert plain(values) == {"a": 0.1, "b": [0, 1], "c": [1, {"d": None}], "3": [4]}
    assert plain(values, finite=False)["c"][1]["d"] == np.inf


def test_importing_tracking_does_not_import_jax():
    code = (
        "import sys, regimen.files.run_dir, regimen.files.console, regimen.files.mlflow\n"
        "import regimen.reports.plots, regimen.reports.run_report, regimen.statistics\n"
        "print([m for m in ('jax', 'mlflow', 'matplotlib', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_zeros_that_a_power_failure_leaves_are_cut_from_a_table():
    """They are one line, longer than a cell of a CSV may be."""
    data = b"env_steps,x\n1,2\n" + bytes(200_000) + b"\n3,4\n9,9\n"
    assert rows_up_to(data, "env_steps", 5) == b"env_steps,x\n1,2\n3,4\n"
