"""A run and its mirror in a real SQLite store: the model loads, evaluates, and only a better one becomes champion."""

import json

import numpy as np
import pytest

from regimen.cli.main import main
from regimen.files.listing import find_runs
from regimen.files.run_dir import read_metrics
from regimen.files.storage import read_json
from regimen.files.stores import make_client
from support import BROKEN, comparable, tiny

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.usefixtures("compilation_cache")

# `gain` scales the reward, so it decides which run is evaluated best
GOAL = {"eval.every": "1", "stop.metric": "train/entropy", "stop.below": 5, "track.model_name": "luck"}


def test_from_training_to_the_champion(tmp_path, capsys, monkeypatch):
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    on = {"track": True, "tracking_uri": store, "experiment": "probes"} | GOAL

    def train(name, gain, **more):
        return tiny(tmp_path / name, env=f"{BROKEN}:Luck", env_args={"gain": gain}, **{**on, **more})

    first = train("first", 2.0)
    assert first.stop_reason == "metric" and first.summary["converged"]
    with monkeypatch.context() as patch:
        patch.setattr("regimen.runs.delivery.try_plot_run", lambda path: ([], None))
        train("worse", 1.0)
        train("unfinished", 9.0, **{"stop.metric": None, "stop.below": None})
        client = make_client(store)
        assert champion(client) == first.summary["eval_return_mean"], "neither worse nor unconverged takes the title"
        third = train("better", 3.0)
        assert champion(client) == third.summary["eval_return_mean"] > first.summary["eval_return_mean"]
        assert len(client.search_model_versions("name='luck'")) == 3
        alone = tiny(tmp_path / "alone", env=f"{BROKEN}:Luck", env_args={"gain": 2.0}, **GOAL)

    assert comparable(read_metrics(alone.run_dir)) == comparable(read_metrics(first.run_dir))
    found = {path.name for path in find_runs(tmp_path)}
    assert found == {"first", "worse", "unfinished", "better", "alone"}, "the store's copies are no runs"

    stored = client.get_run(read_json(first.run_dir / "mlflow.json")["run_id"])
    assert stored.info.status == "FINISHED" and client.get_experiment(stored.info.experiment_id).name == "probes"
    assert stored.data.params["algo.lr"] == "0.0003" and stored.data.tags["summary.stop_reason"] == "metric"
    assert stored.data.metrics["eval/return_mean"] == pytest.approx(first.history[-1]["eval/return_mean"])
    names = {a.path for a in client.list_artifacts(stored.info.run_id)}
    assert {"config.yaml", "summary.json", "report.html", "policy"} <= names and any("png" in n for n in names)

    mlflow.set_tracking_uri(store)
    model = mlflow.pyfunc.load_model("models:/luck@champion")
    obs = np.random.default_rng(0).uniform(size=(6, 2)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(obs), third.policy.act_batch(obs))

    capsys.readouterr()
    argv = ["evaluate", "models:/luck@champion", "--tracking-uri", store, "--episodes", "4", "--json"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["return_mean"] > 0
    assert main([*argv[:1], "models:/lucky@champion", *argv[2:]]) == 3
    assert "did you mean 'luck'" in capsys.readouterr().err


def champion(client) -> float:
    return float(client.get_model_version_by_alias("luck", "champion").tags["eval_return"])


@pytest.mark.long
def test_a_store_that_was_out_of_reach_gets_everything_later(tmp_path, capsys):
    """The run ends with a warning and is complete; one command sends the rest, once."""
    nowhere = {"track": True, "tracking_uri": "sqlite:////dev/null/mlflow.db", "experiment": "probes"} | GOAL
    run = tiny(tmp_path / "run", env=f"{BROKEN}:Luck", **nowhere).run_dir
    capsys.readouterr()
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert main(["track", str(run)]) == 6
    assert "/dev/null" in capsys.readouterr().err
    assert main(["track", str(run), "--tracking-uri", store]) == 0
    rows = len(read_metrics(run))
    said = capsys.readouterr().out
    assert f"{rows} rows sent" in said and "models:/luck/1" in said
    assert main(["track", str(run), "--tracking-uri", store]) == 0
    assert "everything was there" in capsys.readouterr().out
    client = make_client(store)
    record = read_json(run / "mlflow.json")
    assert len(client.get_metric_history(record["run_id"], "train/loss")) == rows
    assert len(client.search_model_versions("name='luck'")) == 1 and champion(client)
    assert client.get_run(record["run_id"]).info.status == "FINISHED"
    assert main(["track", str(tmp_path / "nothing")]) == 6
