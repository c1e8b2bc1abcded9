"""Trackers beside MLflow: what they have is what the files say, a resume goes on with it, none disturbs a run, and
nothing is sent anywhere unasked."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading

import pytest

import regimen
from regimen.errors import ConfigError
from regimen.files.run_dir import read_metrics
from regimen.files.tensorboard import TensorBoard
from regimen.files.trackers import Follower, TrackedRun
from support import TINY, UPDATE

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")


def scalars(folder, name):
    """(step, value) of a tag, by TensorBoard's own reader."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def write_rows(folder, count):
    folder.mkdir(exist_ok=True)
    rows = [
        {"env_steps": 32 * i, "updates": i, "train/loss": 1 / i, "time/unix_time": 1e9 + i} for i in range(1, count + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [(row["env_steps"], pytest.approx(row["train/loss"])) for row in rows]


def test_a_run_and_its_resume_are_one_series_in_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    run = tmp_path / "run"
    settings = {**TINY, "track": "tensorboard", "total_steps": 2 * UPDATE, "out": str(run)}
    regimen.train("cartpole", **settings)
    assert [step for step, _ in scalars(run / "tensorboard", "train/loss")] == [UPDATE, 2 * UPDATE]
    regimen.resume(run, total_steps=4 * UPDATE)
    rows = [(row["env_steps"], pytest.approx(row["train/loss"])) for row in read_metrics(run)]
    assert len(rows) == 4 and scalars(run / "tensorboard", "train/loss") == rows
    assert not (run / "mlflow.json").exists(), "it was not asked for"


def test_what_a_killed_process_had_written_is_not_there_twice(tmp_path):
    pytest.importorskip("tensorboardX")
    wanted = write_rows(tmp_path / "run", 5)
    first = TensorBoard(TrackedRun(tmp_path / "run", "run", "env", {}), interval=0.01)
    first.finish({}, [])
    for file in (tmp_path / "run" / "tensorboard").iterdir():  # of an earlier second, which is all that names differ by
        file.rename(file.with_name("events.out.tfevents.1.elsewhere"))
    write_rows(tmp_path / "run", 3)  # rewound to a checkpoint: its rows come again
    again = TensorBoard(TrackedRun(tmp_path / "run", "run", "env", {}), interval=0.01)
    write_rows(tmp_path / "run", 5)
    again.finish({}, [])
    assert scalars(tmp_path / "run" / "tensorboard", "train/loss") == wanted


class Broken(Follower):
    label, package, extra = "Broken", "json", "none"

    def where(self):
        return "nowhere"

    def open(self): ...

    def write(self, row):
        raise OSError("disk\nfull")


class Absent(Broken):
    package = "no_such_package"


@pytest.mark.parametrize(
    ("kind", "words"), [(Broken, "Broken: disk full; training is not"), (Absent, "'regimen[none]'")]
)
def test_a_tracker_that_fails_says_so_once_and_ends_nothing(tmp_path, kind, words):
    write_rows(tmp_path / "run", 3)
    warnings = []
    tracker = kind(TrackedRun(tmp_path / "run", "run", "env", {}), warnings.append, interval=0.01)
    assert words in tracker.finish({}, [], timeout=20).warning
    assert len(warnings) == 1 and words in warnings[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"track": "tensorbord"}, "no tracker 'tensorbord'; did you mean 'tensorboard'"),
        ({"track": "tensorboard", "track.uri": "sqlite:///x.db"}, "track.uri: this is a setting of MLflow"),
        ({"track": "mlflow,tensorboard", "track.online": True}, "only wandb"),
    ],
)
def test_trackers_that_there_are_not_and_settings_without_effect(settings, words):
    with pytest.raises(ConfigError, match=words):
        regimen.Trainer("cartpole", **settings)


def test_names_of_trackers():
    def names(**settings):
        return regimen.Trainer("cartpole", **settings).config.track.names

    assert names() == ("mlflow",) and names(track=False) == names(track="wandb", **{"track.enabled": False}) == ()
    assert names(track="wandb, tensorboard") == ("wandb", "tensorboard")


def wandb_history(folder):
    """Rows of the offline files of Weights & Biases: records in blocks of 32 kB, as LevelDB writes its log."""
    from wandb.proto import wandb_internal_pb2 as proto

    for path in sorted(folder.glob("offline-run-*/*.wandb")):
        data, at, part = path.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if 32768 - at % 32768 < 7:
                at += 32768 - at % 32768
                continue
            _, size, kind = struct.unpack("<IHB", data[at : at + 7])
            part, at = part + data[at + 7 : at + 7 + size], at + 7 + size
            if kind in (1, 4):  # whole, or the last of several
                record = proto.Record()
                record.ParseFromString(part)
                part = b""
                if record.WhichOneof("record_type") == "history":
                    yield {
                        item.key or ".".join(item.nested_key): json.loads(item.value_json)
                        for item in record.history.item
                    }


WANDB = """
import sys
from pathlib import Path
from regimen.files.trackers import TrackedRun
from regimen.files.weights_and_biases import WeightsAndBiases
run = WeightsAndBiases(TrackedRun(Path(sys.argv[1]), "run", "env", {"a": {"b": 1}}), print, interval=0.01)
result = run.finish({"state": "finished", "env_steps": 3}, [], timeout=120)
print(result.rows, result.warning)
"""


@pytest.mark.long
def test_weights_and_biases_stays_on_this_machine_and_goes_on(tmp_path):
    """Its server and every proxy are a listener of ours, to which nothing may connect."""
    pytest.importorskip("wandb")
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def listen():
            while True:
                try:
                    calls.append(listener.accept()[1])
                except OSError:
                    return

        threading.Thread(target=listen, daemon=True).start()
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "WANDB_BASE_URL"), address)
        env = (
            {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
            | proxies
            | {"WANDB_API_KEY": "0" * 40}
        )
        for count, sent in ((3, 3), (5, 2)):
            write_rows(tmp_path / "run", count)
            command = [sys.executable, "-c", WANDB, str(tmp_path / "run")]
            out = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=True).stdout
            assert out.split("\n")[-2] == f"{sent} None"
    assert calls == []
    rows = [(row["env_steps"], row["updates"], row["train/loss"]) for row in wandb_history(tmp_path / "run" / "wandb")]
    assert rows == [(32 * i, i, pytest.approx(1 / i)) for i in range(1, 6)]
