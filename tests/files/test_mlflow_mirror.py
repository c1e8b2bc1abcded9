"""Against a real SQLite store in a temporary directory; one store is shared, because creating one takes seconds."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from regimen.errors import ConfigError
from regimen.files import mlflow as mirror_module
from regimen.files.mlflow import Mirror, entity_key, flatten
from regimen.files.storage import read_json
from regimen.files.stores import (
    default_uri,
    lock,
    make_client,
    reason,
    registry_name,
    resolve_model_uri,
    without_password,
)

ALIASES = "flavors: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs of today")  # a space, as in many home directories


@pytest.fixture(scope="module")
def client(runs):
    return make_client(f"sqlite:///{runs / 'mlflow.db'}")


@pytest.fixture(autouse=True)
def no_uri(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def make_dir(runs: Path, name: str) -> Path:
    run = runs / name
    (run / "policy").mkdir(parents=True)
    (run / "policy" / "config.json").write_text('{"schema": 1}')
    (run / "plots").mkdir()
    (run / "plots" / "return.png").write_bytes(b"png")
    (run / "config.yaml").write_text("env: cartpole\n")
    return run


def log(run: Path, step: int, metrics: Mapping[str, object]) -> None:
    """A row, as training writes it."""
    row = {"env_steps": step, "updates": step, "time/unix_time": 1.7e9 + step, **metrics}
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")


def mirror(run: Path, warnings: list[str], **more) -> Mirror:
    params = {"env": "gym:CartPole-v1", "algo": {"lr": 3e-4, "hidden": (64, 64)}, "long": "x" * 9000}
    settings = {"uri": None, "experiment": "gym:CartPole-v1", "run_name": run.name, "run_dir": run, "params": params}
    return Mirror(**{**settings, **more}, warn=warnings.append)


def test_a_run_is_mirrored_resumed_and_registered(runs, client):
    run, warnings = make_dir(runs, "a"), []
    first = mirror(run, warnings)
    for step in range(1, 301):  # more than one batch of 1000
        metrics = {"train/loss": 1.0 / step, "rollout/return_mean": step, "note": "text"}
        log(run, step, metrics | {f"train/m{i}": float(i) for i in range(3)})
    artifacts = [run / "config.yaml", run / "plots", run / "report.html"]  # the last does not exist
    summary = {"state": "finished", "stop_reason": "converged", "solved": True, "eval_return_std": float("nan")}
    done = first.finish(summary, artifacts, run / "policy", "gym:CartPole-ppo", True, 100.0)
    assert (done.warning, warnings, done.model_version, done.alias_moved) == (None, [], "1", True)
    assert done.uri == default_uri(run) == f"sqlite:///{runs / 'mlflow.db'}"
    assert read_json(run / "mlflow.json")["run_id"] == done.run_id

    stored = client.get_run(done.run_id)
    assert stored.info.status == "FINISHED" and stored.info.experiment_id == done.experiment_id
    assert stored.data.params["algo.lr"] == "0.0003" and stored.data.params["algo.hidden"] == "[64, 64]"
    assert len(stored.data.params["long"]) == 6000
    assert stored.data.metrics["rollout/return_mean"] == 300.0 and "note" not in stored.data.metrics
    assert stored.data.tags["summary.stop_reason"] == "converged"
    history = client.get_metric_history(done.run_id, "train/loss")
    assert sorted(m.step for m in history) == list(range(1, 301))
    names = {f.path for f in client.list_artifacts(done.run_id)}
    assert names == {"config.yaml", "plots", "policy"}

    # a resumed run goes on in the same MLflow run; a setting that changed is a tag; a worse policy is no champion
    again = mirror(run, warnings, params={"algo": {"lr": 1e-3}, "total_steps": 5})
    log(run, 301, {"train/loss": 0.25})
    worse = again.finish({"state": "interrupted"}, [], run / "policy", "gym:CartPole-ppo", True, 90.0)
    assert (worse.run_id, worse.model_version, worse.alias_moved) == (done.run_id, "2", False)
    stored = client.get_run(done.run_id)
    assert stored.info.status == "KILLED" and stored.data.metrics["train/loss"] == 0.25
    assert stored.data.params["total_steps"] == "5" and stored.data.tags["resumed.algo.lr"] == "0.001"
    assert client.get_model_version_by_alias("gym-CartPole-ppo", "champion").version == 1

    # a better one is; without convergence nothing is registered; an unknown evaluation moves nothing
    run = make_dir(runs, "b")
    better = mirror(run, warnings).finish({}, [], run / "policy", "gym:CartPole-ppo", True, 110.5)
    assert (better.model_version, better.alias_moved) == ("3", True) and better.run_id != done.run_id
    champion = client.get_model_version_by_alias("gym-CartPole-ppo", "champion")
    assert champion.version == 3 and float(champion.tags["eval_return"]) == 110.5
    for converged, value, version in ((False, 999.0, None), (True, None, "4"), (True, float("nan"), "5")):
        end = mirror(run, warnings).finish({}, [], run / "policy", "gym:CartPole-ppo", converged, value)
        assert (end.model_version, end.alias_moved, end.warning) == (version, False, None)
    assert warnings == []

    # the registered model holds the policy folder and no pickle
    uri = better.uri
    folder = resolve_model_uri("models:/gym-CartPole-ppo@champion", uri)
    assert json.loads((folder / "config.json").read_text()) == {"schema": 1}
    assert resolve_model_uri("models:/gym-CartPole-ppo/1", uri) != folder
    files = [p.name for p in folder.parent.parent.rglob("*") if p.is_file()]
    assert "pyfunc_model.py" in files and not [f for f in files if f.endswith((".pkl", ".pickle", ".joblib"))]
    for wrong, message in (
        ("models:/gym-CartPole-pp@champion", "did you mean 'gym-CartPole-ppo'"),
        ("models:/gym-CartPole-ppo@best", "no alias 'best'"),
        ("models:/gym-CartPole-ppo/77", "no version 77"),
        ("models:/gym-CartPole-ppo", "write models:/NAME@champion"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_model_uri(wrong, uri)
    (description,) = [path / "MLmodel" for path in folder.parents if (path / "MLmodel").is_file()]
    for crafted in (ALIASES.encode(), b"\xff\xfe", b"[" * 9999):
        description.write_bytes(crafted)
        with pytest.raises(ConfigError, match="was not saved by regimen"):
            resolve_model_uri("models:/gym-CartPole-ppo@champion", uri)
    with pytest.raises(ConfigError, match="no MLflow store"):
        resolve_model_uri("models:/x@champion", f"sqlite:///{runs / 'other.db'}")
    assert not (runs / "other.db").exists()


def test_a_locked_database_is_one_warning_and_no_wait(runs, client, monkeypatch):
    """Training never asks the store itself, and `finish` comes back while the lock is still held."""
    run, heard, asking = make_dir(runs, "locked"), threading.Event(), []

    class Warnings(list):
        def append(self, text):
            super().append(text)
            heard.set()

    def noted(uri, check=mirror_module.check_unlocked):
        asking.append(threading.current_thread())
        check(uri)

    warnings = Warnings()
    monkeypatch.setattr(mirror_module, "check_unlocked", noted)
    client.search_experiments()  # the file exists
    holder = sqlite3.connect(runs / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        blocked = mirror(run, warnings, delay=0.0)
        log(run, 1, {"train/loss": 1.0})
        assert heard.wait(100)
        end = blocked.finish({}, [], run / "policy", "x", True, 1.0, timeout=0.5)
        assert holder.in_transaction, "it came back before the lock did"
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert asking and threading.current_thread() not in asking
    (warning,) = warnings
    assert "database is locked" in warning and "\n" not in warning
    assert end.run_id is None and "within 0.5 s (database is locked)" in end.warning and not end.alias_moved


def test_a_store_that_others_write_to_is_waited_for(runs, client, monkeypatch):
    """As long as `finish` may take: a lock is held by a process that lives, and on a busy machine our turn comes late.
    One that refuses is given up sooner."""
    client.search_experiments()
    asked = []

    def starved(uri, check=mirror_module.check_unlocked):
        if len(asked) < 4:
            asked.append(uri)
            time.sleep(0.2)
            raise sqlite3.OperationalError(why)
        check(uri)

    monkeypatch.setattr(mirror_module, "check_unlocked", starved)
    monkeypatch.setattr(mirror_module, "LAST_CHANCE", 0.6)  # each time asking and pausing take 0.7 s
    for why, sent in (("database is locked", 1), ("disk I/O error", 0)):
        asked.clear()
        run = make_dir(runs, why)
        log(run, 1, {"train/loss": 1.0})
        end = mirror(run, [], delay=0.0).finish({}, [], timeout=100)
        assert (end.warning is None, end.rows) == (sent == 1, sent), end


def test_the_lock_of_a_store_that_is_being_made_is_a_lock(tmp_path):
    with open(tmp_path / "held", "ab") as mine, open(tmp_path / "held", "ab") as other:
        lock(mine, time.monotonic() + 10)
        with pytest.raises(OSError, match="is locked") as caught:
            lock(other, time.monotonic() - 1)
    assert "locked" in reason(caught.value)


def test_a_lock_that_goes_away_loses_nothing(runs, client):
    run, warnings = make_dir(runs, "late"), []
    client.search_experiments()
    holder = sqlite3.connect(runs / "mlflow.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(1.5, holder.execute, ["ROLLBACK"])
    release.start()
    waiting = mirror(run, warnings, delay=0.0)
    log(run, 1, {"train/loss": 0.5})
    end = waiting.finish({}, [])
    release.join()
    holder.close()
    assert end.warning is None and len(warnings) <= 1
    assert client.get_run(end.run_id).data.metrics == {"train/loss": 0.5, "updates": 1.0}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["get_model_version_by_alias", "set_registered_model_alias"])
def test_a_registry_that_cannot_be_asked_is_asked_again(runs, client, monkeypatch, name, late):
    """There is one version in the end, and it has the alias: not a second one, and not one that nobody compared."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    ask, failures = getattr(MlflowClient, name), [MlflowException("busy", 5)]  # TEMPORARILY_UNAVAILABLE

    def asked(self, *args):
        if not failures:
            return ask(self, *args)
        if late:  # done, but the answer is lost
            with contextlib.suppress(MlflowException):  # there is no champion yet
                ask(self, *args)
        raise failures.pop()

    monkeypatch.setattr(MlflowClient, name, asked)
    model, warnings = f"{name}-{late}", []
    run = make_dir(runs, f"run of {model}")
    end = mirror(run, warnings, delay=0.0).finish({}, [], run / "policy", model, True, 1.0)
    assert not failures and end.warning is None and end.alias_moved
    assert [str(v.version) for v in client.search_model_versions(f"name='{model}'")] == [end.model_version]
    assert str(client.get_model_version_by_alias(model, "champion").version) == end.model_version


@pytest.mark.parametrize("uri", ["http://user:secret@127.0.0.1:9", "sqlite:////dev/null/mlflow.db"])
def test_an_unreachable_store_is_one_warning(runs, uri, tmp_path):
    warnings: list[str] = []
    lost = mirror(make_dir(tmp_path, "run"), warnings, uri=uri)
    end = lost.finish({}, [], timeout=1.0 if uri.startswith("http") else 30.0)
    (warning,) = warnings
    assert "training is not affected" in warning and "\n" not in warning and "secret" not in warning
    assert end.warning is not None and end.run_id is None


def test_without_mlflow_training_gets_one_warning(tmp_path):
    code = (
        "import sys; sys.modules['mlflow'] = None\n"  # as if it were not installed
        "from pathlib import Path; from regimen.files.mlflow import Mirror\n"
        "from regimen.files.stores import resolve_model_uri\n"
        "m = Mirror(None, 'x', 'x', Path(sys.argv[1]), {}, warn=print)\n"
        "print(m.finish({}, []).warning is not None)\n"
        "try: resolve_model_uri('models:/a@champion')\n"
        "except Exception as error: print(type(error).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    warning, warned, error = done.stdout.splitlines()
    assert "pip install 'regimen[tracking]'" in warning and (warned, error) == ("True", "ConfigError")
    assert os.listdir(tmp_path) == []


def test_names_and_parameters(monkeypatch, tmp_path):
    assert registry_name("gym:ALE/Pong-v5@x") == "gym-ALE-Pong-v5-x"
    assert entity_key("reward/a b*{}") == "reward/a b___"
    assert flatten({"a": {"b": {}, "c": [1]}, "d": None}) == {"a.b": "{}", "a.c": "[1]", "d": "None"}
    assert without_password("https://me:pw@host/x") == "https://host/x"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert default_uri(tmp_path) == "http://tracking:5000"


FIRST = """
import json, sys
from pathlib import Path
from regimen.files.mlflow import Mirror

run = Path(sys.argv[1])
run.mkdir()
(run / "metrics.jsonl").write_text("".join(
    json.dumps({"env_steps": i, "updates": i, "time/unix_time": i, "loss": i}) + "\\n" for i in range(1, 101)))
print(Mirror(None, "first", run.name, run, {}, delay=0.0, warn=print).finish({}, [run / "metrics.jsonl"]).run_id)
"""


@pytest.mark.parametrize("processes", [2, pytest.param(8, marks=pytest.mark.long)])
def test_processes_that_start_together_make_one_store(tmp_path, processes):
    """None fails, none loses a row, and what a process left half-made that was killed over it is in nobody's way."""
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / ".mlflow.db.4711.tmp").write_bytes(b"half")
    command, pipe = [sys.executable, "-c", FIRST], subprocess.PIPE
    started = [
        subprocess.Popen([*command, str(runs / str(i))], stdout=pipe, stderr=pipe, text=True) for i in range(processes)
    ]
    said = [process.communicate(timeout=250) for process in started]
    ids = [out.strip() for out, _ in said]
    assert len(set(ids)) == processes and all(re.fullmatch("[0-9a-f]{32}", x) for x in ids), said
    client = make_client(f"sqlite:///{runs / 'mlflow.db'}")
    for run_id in ids:
        assert sorted(m.value for m in client.get_metric_history(run_id, "loss")) == list(range(1, 101))
    assert [e.name for e in client.search_experiments()].count("first") == 1
    assert not list(runs.glob("*.tmp*")) and not list(runs.glob(".*.tmp*"))
