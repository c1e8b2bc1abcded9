"""Diagnoses: found where they are put, silent on good runs, and found in real bad runs."""

import json

import numpy as np
import pytest

import regimen
from regimen.cli.main import main
from regimen.envs.metric import Metric, to_table
from regimen.files.run_dir import RunFiles
from regimen.reports.diagnose import Finding, diagnose, texts, turning_points
from support import TINY
from synthetic_run import make_run

ROWS = 80
X = np.arange(1, ROWS + 1)
RNG = np.random.default_rng(0)


def noise(scale, n=ROWS):
    return np.random.default_rng(3).normal(0, scale, n)


LEARNING = 20 + 400 * X / ROWS + noise(5)
GOOD = {
    "rollout/return_mean": LEARNING,
    "train/entropy": 0.69 - 0.4 * X / ROWS + noise(0.005),
    "train/approx_kl": 0.01 + np.abs(noise(0.004)),
    "train/explained_variance": 0.2 + 0.7 * X / ROWS + noise(0.02),
    "time/steps_per_second": 50_000 + noise(4000),
    "time/memory_mb": 900 + X * 0.1,
}


def write(path, columns, evaluations=None, config=None, summary=None, state="finished"):
    """A run whose metrics are these; `evaluations` at every fifth row."""
    settings = {"env": "cartpole", "algorithm": "ppo", "seed": 0, "algo": {"lr": 3e-4}, "stop": {}} | (config or {})
    with RunFiles.create(path, settings, "regimen train") as files:
        for i in range(ROWS):
            row = {"env_steps": 1000 * (i + 1), "updates": i + 1, "episodes": 5 * i, "wall_seconds": 2.0 * (i + 1)}
            row |= {name: float(values[i]) for name, values in columns.items()}
            if evaluations and i % 5 == 4:
                row |= {name: float(values[i // 5]) for name, values in evaluations.items()}
            files.log(row)
        files.summary({"env": "cartpole", "wall_seconds": 160.0, "compile_seconds": 4.0} | (summary or {}))
        files.status(state=state, metrics=to_table({"near": Metric("max", violation=True)}))
    return path


def codes(path):
    return [f.code for f in diagnose(path)]


SWINGS = np.array([50, 400, 90, 380, 60, 420, 80, 400, 50, 410, 60, 400, 70, 390, 100, 60])
BAD = {
    "negative_plateau": ({"rollout/return_mean": -200 + noise(3)}, None, {}, {}),
    "plateau": ({"rollout/return_mean": 9.5 + noise(0.3)}, None, {}, {}),
    "oscillation": ({}, {"eval/return_mean": SWINGS}, {}, {}),
    "streak_at_zero": (
        {},
        {"eval/return_mean": 100 + X[:16], "zero_conflict_streak": np.zeros(16), "eval/near": 0.3 + X[:16] * 0},
        {"stop": {"zero_conflict_streak": 3}},
        {},
    ),
    "entropy_collapse": (
        {"train/entropy": 0.69 * np.exp(-X / 3), "rollout/return_mean": np.minimum(X, 10) * 12 + noise(2)},
        None,
        {},
        {},
    ),
    "kl_spikes": ({"train/approx_kl": np.where(X % 13 == 0, 0.4, 0.01)}, None, {}, {}),
    "low_explained_variance": ({"train/explained_variance": 0.02 + noise(0.01)}, None, {}, {}),
    "budget_spent": (
        {},
        {"eval/return_mean": 30 + 5 * X[:16]},
        {},
        {"return_threshold": 475.0, "eval_return_mean": 105.0, "env_steps": 80_000, "stop_reason": "max_steps"},
    ),
    "compile_bound": ({}, None, {}, {"wall_seconds": 100.0, "compile_seconds": 80.0}),
    "slowing": ({"time/steps_per_second": 50_000 * np.exp(-X / 20)}, None, {}, {}),
    "memory_grows": ({"time/memory_mb": 1000 + 40.0 * X}, None, {}, {}),
    "lag": (
        {"train/lag_mean": 12 + noise(1), "train/dropped_batches": X // 5},
        None,
        {"algorithm": "impala", "algo": {"lr": 1e-3, "max_lag": 16}},
        {},
    ),
}


@pytest.mark.parametrize("code", BAD)
def test_found_where_it_is_put_and_nothing_else(code, tmp_path):
    columns, evaluations, config, summary = BAD[code]
    path = write(tmp_path / "run", GOOD | columns, evaluations, config, summary)
    found = diagnose(path)
    assert [f.code for f in found] == [code]
    assert any(c.isdigit() for c in found[0].evidence), "evidence has numbers"
    assert any(name in found[0].advice for name in ("algo.", "rollout.", "stop.", "regimen doctor")), "names a setting"


def test_divergence(tmp_path):
    summary = {"stop_reason": "diverged", "stop_detail": "training diverged at update 7 (step 7,000): loss nan"}
    found = diagnose(write(tmp_path / "run", GOOD, summary=summary, state="diverged"))
    assert found[0].code == "non_finite" and found[0].level == "error" and "update 7" in found[0].evidence


def test_a_run_that_failed_or_was_killed(tmp_path):
    path = write(tmp_path / "run", GOOD, state="running")
    assert codes(path) == ["killed"], "no process holds it"
    with RunFiles.open(path) as files:
        files.status(state="failed", error="the environment's step failed: the motor is gone")
    found = diagnose(path)[0]
    assert (found.code, found.level) == ("failed", "error") and "the motor is gone; 80,000 env steps" in found.evidence
    assert f"regimen resume {path}" in found.advice and "regimen check-env cartpole" in found.advice


def test_every_code_is_tested():
    assert set(texts()) == {*BAD, "non_finite", "failed", "killed", "incomplete"}  # the last: runs/test_delivery.py


# --- no false alarms -------------------------------------------------------------------------------------------------


def test_good_runs_are_left_alone(tmp_path):
    assert codes(write(tmp_path / "a", GOOD, {"eval/return_mean": 30 + 25 * X[:16]})) == []
    for seed in range(4):
        assert codes(make_run(tmp_path / f"s{seed}", seed=seed)) == []


@pytest.mark.parametrize("pace", [4, 15])  # soon and then flat, or slowly
def test_a_negative_return_that_improves_is_no_plateau(tmp_path, pace):
    pendulum = -1200 + 1050 * (1 - np.exp(-X / pace)) + noise(40)
    assert codes(write(tmp_path / "run", GOOD | {"rollout/return_mean": pendulum})) == []


def test_a_solved_run_may_be_certain_and_flat(tmp_path):
    flat = {"rollout/return_mean": 499 + noise(0.5), "train/entropy": 0.69 * np.exp(-X / 3)}
    flat |= {"train/explained_variance": noise(0.01)}
    assert codes(write(tmp_path / "run", GOOD | flat, summary={"solved": True})) == []


def test_swings_that_have_ended_are_no_finding(tmp_path):
    settled = np.append(SWINGS[:8], 400 + X[:8])
    assert codes(write(tmp_path / "run", GOOD, {"eval/return_mean": settled})) == []


def test_certainty_that_pays_is_no_collapse(tmp_path):
    path = write(tmp_path / "run", GOOD | {"train/entropy": 0.69 * np.exp(-X / 3)})
    assert codes(path) == []


def test_too_little_to_tell_from(tmp_path):
    with RunFiles.create(tmp_path / "run", {"env": "cartpole", "algorithm": "ppo"}, "x") as files:
        files.summary({})
        files.status(state="finished")
        assert diagnose(tmp_path / "run") == []
        files.log({"env_steps": 1, "updates": 1, "rollout/return_mean": -5.0, "train/approx_kl": 9.0})
    assert diagnose(tmp_path / "run") == []


def test_noise_has_no_swings():
    assert len(turning_points(np.array([0, 10, 0, 10, 0.0]), 5)) == 5
    y = 100 * X / ROWS + noise(8)
    assert len(turning_points(y, 0.5 * np.ptp(y))) <= 2


# --- real runs -------------------------------------------------------------------------------------------------------

REAL = TINY | {"rollout.steps": 128, "rollout.num_envs": 8, "algo.minibatch_size": 64, "algo.epochs": 4}
REAL |= {"network.hidden": (32, 32)}


@pytest.mark.usefixtures("compilation_cache", "without_plots")
def test_real_runs(tmp_path):
    """The same program, with a learning rate that is far too large and with a good one."""
    bad = regimen.train("cartpole", out=str(tmp_path / "bad"), total_steps=128 * 60, **(REAL | {"algo.lr": 1.0}))
    found = codes(bad.run_dir)
    assert set(found) & {"kl_spikes", "entropy_collapse"} and set(found) & {"plateau", "low_explained_variance"}, found
    good = regimen.train("cartpole", out=str(tmp_path / "good"), total_steps=128 * 120, **(REAL | {"algo.lr": 2e-3}))
    assert set(codes(good.run_dir)) <= {"budget_spent"}, "15,360 steps are few"


def test_command(tmp_path, capsys):
    columns, *rest = BAD["kl_spikes"]
    path = write(tmp_path / "run", GOOD | columns, *rest)
    assert main(["diagnose", str(path)]) == 0
    text = capsys.readouterr().out
    assert "updates move the policy too far [kl_spikes]" in text and "algo.target_kl" in text and "\x1b" not in text
    assert main(["diagnose", str(path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert Finding(**data[str(path)][0]).code == "kl_spikes"
    assert main(["diagnose", str(tmp_path / "none")]) == 6
