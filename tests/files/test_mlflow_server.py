"""An MLflow server on loopback as store and registry: metrics, artifacts and models go over HTTP."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import regimen
from regimen.files.storage import read_json
from regimen.files.stores import make_client, resolve_model_uri
from support import BROKEN, tiny

pytest.importorskip("mlflow")
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilation_cache")]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """Its address."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    env = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}"
        while not answers(f"{address}/health"):
            assert process.poll() is None, (folder / "log.txt").read_text()
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def test_from_training_to_the_champion_over_http(server, tmp_path):
    goal = {"eval.every": "1", "stop.metric": "train/entropy", "stop.below": 5, "track.model_name": "luck"}
    on = {"track": True, "tracking_uri": server, "experiment": "probes"} | goal

    def train(name: str, gain: float):
        return tiny(tmp_path / name, env=f"{BROKEN}:Luck", env_args={"gain": gain}, **on)

    client = make_client(server)
    for name, gain, champion in (("first", 2.0, "first"), ("worse", 1.0, "first"), ("better", 3.0, "better")):
        result = train(name, gain)
        record = read_json(result.run_dir / "mlflow.json")
        assert record["complete"] and record["uri"] == server
        model = client.get_model_version_by_alias("luck", "champion")
        assert model.run_id == read_json(tmp_path / champion / "mlflow.json")["run_id"], name
    stored = client.get_run(record["run_id"])
    assert stored.info.status == "FINISHED"
    assert stored.data.metrics["eval/return_mean"] == pytest.approx(result.history[-1]["eval/return_mean"])
    assert {"config.yaml", "summary.json", "policy"} <= {a.path for a in client.list_artifacts(record["run_id"])}
    steps = [m.step for m in client.get_metric_history(record["run_id"], "train/loss")]
    assert steps == [row["env_steps"] for row in result.history]

    folder = resolve_model_uri("models:/luck@champion", server)
    assert not Path(folder).is_relative_to(tmp_path), "it was downloaded"
    obs = np.random.default_rng(0).uniform(size=(6, 2)).astype(np.float32)
    expected = result.policy.act_batch(obs)
    np.testing.assert_array_equal(regimen.load_policy(folder).act_batch(obs), expected)
    assert regimen.evaluate("models:/luck@champion", episodes=2, tracking_uri=server, trust=True).returns.size == 2
