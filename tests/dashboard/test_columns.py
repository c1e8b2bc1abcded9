"""metrics.jsonl as columns: read on by offset, thinned without losing peaks."""

import json

import numpy as np
import pytest
from live_page import lines, points

from regimen.dashboard import columns as module
from regimen.dashboard.columns import Columns


def columns_of(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(text)
    made = Columns(tmp_path, "metrics.jsonl")
    made.advance()
    return made


def test_reads_on_where_it_ended(tmp_path):
    made = columns_of(tmp_path, lines(points(5)))
    path = tmp_path / "metrics.jsonl"
    assert made.rows == 5 and not made.advance()
    offset = made.offset
    more = lines(points(3, first=5))
    with path.open("a") as file:
        file.write(more[:40])  # a line that is being written
    made.advance()
    assert made.rows == 5
    with path.open("a") as file:
        file.write(more[40:])
    assert made.advance() and made.rows == 8 and made.offset == offset + len(more)
    line = made.line("rollout/return_mean", "env_steps", 100)
    assert line["y"].tolist() == list(range(8)) and line["x"].tolist() == [100.0 * i for i in range(1, 9)]


def test_a_file_rewritten_by_a_resume_is_read_anew(tmp_path):
    made = columns_of(tmp_path, lines(points(20)))
    new = tmp_path / "new"
    new.write_text(lines(points(12)))
    new.rename(tmp_path / "metrics.jsonl")
    assert made.advance()
    assert made.rows == 12 and made.generation == 1
    (tmp_path / "metrics.jsonl").unlink()
    assert made.advance() and made.rows == 0


def test_every_axis_and_rows_without_a_metric(tmp_path):
    made = columns_of(tmp_path, lines(points(30)))
    evaluated = made.line("eval/return_mean", "wall_seconds", 100)
    assert evaluated["x"].tolist() == [5.0, 10.0, 15.0] and evaluated["y"].tolist() == [10.0, 20.0, 30.0]
    assert made.line("no such", "env_steps", 10)["x"].size == 0
    assert made.line("eval/return_mean", "no such", 10)["x"].size == 0
    text = '{"rollout/return_mean": 1}\n{"env_steps": 5, "rollout/return_mean": 2}\n{"rollout/return_mean": 3}\n'
    (tmp_path / "b").mkdir()
    assert columns_of(tmp_path / "b", text).line("rollout/return_mean", "env_steps", 9)["x"].tolist() == [5, 5, 5]


def test_broken_lines_are_passed_over(tmp_path):
    odd = [
        b'{"env_steps": 1, "a": 1}',
        b"{broken",
        b"[1, 2]",
        b"\x00\x00\xff\xfe",
        b'{"env_steps": 2, "a": "text", "b": null, "c": {"d": 1}, "e": [1]}',
        b'{"env_steps": 3, "a": NaN, "b": Infinity, "f": 1e999, "g": ' + b"9" * 400 + b"}",
        b"[" * 100_000,
        b'{"env_steps": 4, "a": 4, "flag": true}',
    ]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(odd) + b"\n")
    made = Columns(tmp_path, "metrics.jsonl")
    made.advance()
    assert made.rows == 4 and made.bad_lines == 4
    assert made.line("a", "env_steps", 9)["y"].tolist() == [1, 4]
    assert set(made.catalogue()) == {"env_steps", "a", "flag"}


def test_a_line_without_end_is_skipped_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LINE", 1000)
    monkeypatch.setattr(module, "CHUNK", 300)
    long = json.dumps({"env_steps": 1, "a": "x" * 5000})
    made = columns_of(tmp_path, long + "\n" + lines(points(3)))
    assert made.rows == 3 and made.bad_lines == 1 and made.rest == b""


@pytest.mark.parametrize("n", [100, 3000, 50_000])
def test_thinning_keeps_peaks_ends_and_the_mean(tmp_path, n):
    values = np.random.default_rng(0).normal(size=n)
    values[n // 3] = 50.0
    made = columns_of(tmp_path, lines([{"env_steps": 2 * i, "y": float(v)} for i, v in enumerate(values)]))
    line = made.line("y", "env_steps", 120)
    assert len(line["x"]) <= 120 and int(line["n"]) == n
    assert line.get("high", line["y"]).max() == 50.0
    assert line.get("low", line["y"]).min() == pytest.approx(values.min())
    assert line["x"][-1] == 2 * (n - 1) and (np.diff(line["x"]) > 0).all()
    if n > 100:
        assert line["y"].mean() == pytest.approx(values.mean(), abs=0.02)
    zoomed = made.line("y", "env_steps", 480, n // 3 * 2 - 20, n // 3 * 2 + 20)
    assert zoomed.get("high", zoomed["y"]).max() == 50.0
    assert int(zoomed["n"]) == 23  # the range, and one point on each side so that the line goes on


def test_a_point_is_the_mean_of_all_that_it_stands_for():
    """Blocks of three values and of one, put together to one point."""
    y = np.array([1.0, 2.0, 3.0, 10.0])
    blocks = module.summaries(np.arange(4.0), y, 3)
    assert blocks.tolist() == [[2, 3], [2, 10], [1, 10], [3, 10], [3, 1]]
    point = module.thinned(blocks, 1)
    assert {name: x.tolist() for name, x in point.items()} == {"x": [3], "y": [4], "low": [1], "high": [10]}


def test_summaries_grow_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FINE", 200)
    made = columns_of(tmp_path, lines(points(900)))
    made.line("rollout/return_mean", "env_steps", 120)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(lines(points(777, first=900)))
    made.advance()
    line = made.line("rollout/return_mean", "env_steps", 120)
    assert line["x"][-1] == 100 * 1677 and line["high"][-1] == 1676 and int(line["n"]) == 1677
    means = np.interp(line["x"], np.arange(1, 1678) * 100, np.arange(1677))
    assert np.all(line["y"] <= means) and np.all(np.diff(line["y"]) > 0)


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_VALUES", 20_000)
    monkeypatch.setattr(module, "FINE", 500)
    monkeypatch.setattr(module, "CHUNK", 1 << 14)
    monkeypatch.setattr(module, "MOST_COLUMNS", 12)
    rows = [row | {f"odd/{i}": 1.0} for i, row in enumerate(points(6000))]
    made = columns_of(tmp_path, lines(rows))
    assert made.rows == 6000 and len(made.columns) == 12
    assert made.values < 25_000 and made.values == sum(made.catalogue().values())
    line = made.line("rollout/return_mean", "env_steps", 120)
    assert line["x"][-1] > 590_000 and np.all(np.diff(line["y"]) > 0)
