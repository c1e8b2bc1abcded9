"""Rules about conflicts end real runs, are logged, and survive a resume."""

import csv
import io

import pytest

import regimen
from conflict_env import Crossing
from regimen.errors import ConfigError
from regimen.files.console import Console
from support import UPDATE, assert_same_run, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")
EVERY = {"eval.every": "1", "eval.episodes": 4}


def columns(run, name):
    with open(run.run_dir / "progress.csv", newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def test_a_zero_conflict_streak_ends_a_run(tmp_path):
    run = tiny(tmp_path / "run", 8, Crossing(miss=1.0), **EVERY, **{"stop.zero_conflict_streak": 3})
    assert (run.stop_reason, run.summary["updates"], run.summary["converged"]) == ("zero_conflict", 3, True)
    assert columns(run, "zero_conflict_streak") == ["1", "2", "3"]
    assert columns(run, "perfect_streak") == ["0", "0", "0"], "no waypoint was reached"
    assert [row["zero_conflict_streak"] for row in run.history] == [1, 2, 3]
    assert float(columns(run, "unix_time")[0]) > 1.7e9
    assert columns(run, "agent_steps") == columns(run, "env_steps")


def test_a_perfect_streak_ends_a_run(tmp_path):
    run = tiny(tmp_path / "run", 8, Crossing(), **EVERY, **{"stop.perfect_streak": 2, "stop.zero_conflict_streak": 20})
    assert (run.stop_reason, run.summary["updates"]) == ("perfect", 2)


def test_good_bands_end_a_run(tmp_path):
    rules = {"stop.band_steps": 2 * UPDATE, "stop.bands": 2, "stop.min_bands": 3}
    run = tiny(tmp_path / "run", 9, Crossing(), **EVERY, **rules)
    assert (run.stop_reason, run.summary["updates"]) == ("bands", 6)
    assert columns(run, "band") == ["1", "1", "2", "2", "3", "3"]
    assert columns(run, "good_bands") == ["0", "1", "1", "2", "2", "3"]


def test_a_run_that_a_rule_ended_says_so_when_it_is_resumed(tmp_path):
    """Whoever wanted its pictures alone is surprised that it trains."""
    run = tmp_path / "run"
    tiny(run, 9, Crossing(), **EVERY, **{"stop.zero_conflict_streak": 2})
    out = io.StringIO()
    regimen.resume(run, env=Crossing(), console=Console(file=out))
    warning = "warning: the run had ended (no evaluation episode had a conflict"
    assert warning in out.getvalue() and f"`regimen report {run}` makes its pictures" in out.getvalue()
    tiny(tmp_path / "spent", 2, Crossing(), **EVERY)
    out = io.StringIO()
    regimen.resume(tmp_path / "spent", env=Crossing(), total_steps=3 * UPDATE, console=Console(file=out))
    assert "had ended" not in out.getvalue()


def test_conflicts_keep_every_rule_from_firing(tmp_path):
    rules = {"stop.zero_conflict_streak": 1, "stop.perfect_streak": 1, "stop.band_steps": UPDATE, "stop.min_bands": 1}
    run = tiny(tmp_path / "run", 4, Crossing(risk=1.0), **EVERY, **rules)
    assert run.stop_reason == "max_steps"
    assert set(columns(run, "zero_conflict_streak")) == set(columns(run, "good_bands")) == {"0"}


def test_rules_continue_exactly_after_a_resume(tmp_path):
    settings = EVERY | {"eval.episodes": 2, "stop.zero_conflict_streak": 50, "stop.band_steps": 3 * UPDATE}
    env = Crossing(risk=0.2)
    tiny(tmp_path / "whole", 8, env, **settings)
    tiny(tmp_path / "parts", 4, env, **settings)
    regimen.resume(tmp_path / "parts", total_steps=8 * UPDATE)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_an_environment_without_conflicts_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"stop.zero_conflict_streak: cartpole does not report a metric of conflicts"):
        tiny(tmp_path / "run", **{"stop.zero_conflict_streak": 20})
    assert not (tmp_path / "run").exists()
