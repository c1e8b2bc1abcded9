"""Which rows MLflow gets: the schedule, none lost and none twice, whatever happens in between."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from regimen.files.mlflow import Mirror, MirrorResult
from regimen.files.rows import CHUNK, WHOLE, Rows, is_due
from regimen.files.stores import make_client


def write(path: Path, first: int, last: int, late: float = 0.0, every: int = 0) -> None:
    """Rows as training writes them; every so often one with an evaluation."""
    with open(path, "a") as file:
        for i in range(first, last + 1):
            row = {"env_steps": 10 * i, "updates": i, "time/unix_time": 1.7e9 + i + late, "train/loss": 1 / i}
            row |= {"eval/return_mean": i} if every and i % every == 0 else {}
            file.write(json.dumps(row) + "\n")


def everything(rows: Rows) -> list[int]:
    out = []
    while (some := rows.read()) is not None:
        out += [row["updates"] for row in some]
    return out


def test_a_long_run_is_thinned_evenly_to_the_eye(tmp_path):
    """All of a short run; of a long one about as many again each time it is e times as long, without a large gap."""
    write(tmp_path / "metrics.jsonl", 1, 20_000)
    rows = Rows(tmp_path / "metrics.jsonl")
    due = everything(rows)
    assert due[:WHOLE] == list(range(1, WHOLE + 1)) and due == [i for i in range(1, 20_001) if is_due(i)]
    assert 0.9 < (len(due) - WHOLE) / (WHOLE * 4.135) < 1.1  # ln(20000 / 320)
    assert all(b - a <= max(1, b / WHOLE + 1) for a, b in pairwise(due))
    last = rows.last()
    assert last is not None and last["updates"] == 20_000 and rows.last() is None
    assert everything(Rows(tmp_path / "metrics.jsonl", all_rows=True)) == list(range(1, 20_001))


def test_rare_evaluations_are_all_mirrored(tmp_path):
    write(tmp_path / "metrics.jsonl", 1, 5_000, every=50)
    due = everything(Rows(tmp_path / "metrics.jsonl"))
    assert set(range(50, 5_001, 50)) <= set(due) and len(due) < 1_500


def test_what_waits_is_in_the_file(tmp_path):
    """One reading takes a bounded part, a torn line waits for its end, and strange lines are no rows."""
    path = tmp_path / "metrics.jsonl"
    rows = Rows(path, all_rows=True)
    assert rows.read() is None
    write(path, 1, 20_000)
    assert len(rows.read() or ()) < 20_000 and rows.offset <= CHUNK
    everything(rows)
    with open(path, "a") as file:
        file.write('{"updates": 20001')
    assert rows.read() is None
    with open(path, "a") as file:
        file.write('}\n[1]\nnot json\n{"updates": 20004, "note": "' + 2 * CHUNK * "x" + '"}\n')
    assert everything(rows) == [20_001, 20_004]


def test_no_row_is_lost_or_twice(tmp_path):
    """A kill, a rewind to a checkpoint, rows written anew with other times, a second sending of the same, and a store
    that never heard of the run."""
    run, uri = tmp_path / "run", f"sqlite:///{tmp_path / 'mlflow.db'}"
    run.mkdir()
    path = run / "metrics.jsonl"

    def send(uri: str) -> MirrorResult:
        end = Mirror(uri, "x", "x", run, {}, delay=0.0).finish({"state": "finished"}, [])
        assert end.warning is None
        return end

    write(path, 1, 699)
    first = send(uri)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:600]))  # of the checkpoint
    write(path, 601, 1_500, late=0.5)
    second = send(uri)
    assert second.run_id == first.run_id and send(uri).rows == 0
    expected = {10 * i for i in range(1, 1_501) if is_due(i)} | {6_990, 15_000}  # and what was last when it ended
    history = make_client(uri).get_metric_history(str(first.run_id), "train/loss")
    assert Counter(m.step for m in history) == Counter(expected)
    other = send(f"sqlite:///{tmp_path / 'other.db'}")
    assert other.run_id != first.run_id and other.rows == len(expected) - 1  # the file has 1,500 rows, 6,990 is no end


@pytest.mark.parametrize("text", ["", "\n\n", "[]\n"])
def test_a_file_without_rows(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(text)
    rows = Rows(tmp_path / "metrics.jsonl")
    assert everything(rows) == [] and rows.last() is None
