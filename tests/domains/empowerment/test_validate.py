"""`regimen validate`: learned against exact, and what it refuses."""

import csv
import json

import numpy as np
import pytest

import regimen
from regimen.cli.main import main
from regimen.domains.empowerment.validate import LearnedAndExact, Validation, agreement, measure

pytestmark = pytest.mark.usefixtures("without_plots", "compilation_cache")


def test_the_numbers_by_hand():
    """Two states, three actions: errors that are known."""
    q = np.array([[-1.0, -2.0, -4.0], [-1.0, -1.0, -3.0]])
    learned_q = q * np.exp([[0.1, 0.1, 0.1], [0.0, 0.2, 0.0]])

    def policy(q):
        weight = (-q) ** -2.0
        return weight / weight.sum(1, keepdims=True)

    right = {"q_r": q, "pi_r": policy(q), "v_r": np.array([-4.0, -5.0]), "u_r": np.array([-2.0, -2.0])}
    right |= {"x_h": np.ones((2, 1)), "v_h_e": np.full((2, 1, 2), 0.5)}
    learned = {"q_r": learned_q, "pi_r": policy(learned_q), "v_r": np.array([-4.4, -5.0]), "u_r": right["u_r"]}
    learned |= {"x_h": np.full((2, 1), 1.1), "v_h_e": np.full((2, 1, 2), 0.4)}
    visits = np.array([3.0, 1.0])
    found = measure(LearnedAndExact(np.array([0, 1]), np.array([0, 1]), learned, right, visits), beta_r=2.0)
    assert found["v_r_start_error"] == pytest.approx(0.1) and found["v_r_error_mean"] == pytest.approx(0.05)
    assert found["q_r_error_max"] == pytest.approx(np.exp(0.2) - 1)
    assert found["log_ratio_max"] == pytest.approx(0.4)  # a common factor does not count, a ratio does
    assert found["log_ratio_rmse"] == pytest.approx(np.sqrt(4 * 0.4**2 / 12))
    tv = 0.5 * np.abs(learned["pi_r"] - right["pi_r"]).sum(1)
    assert tv[0] == pytest.approx(0) and found["tv_mean"] == pytest.approx(tv[1] / 2)
    assert found["tv_visits"] == pytest.approx(tv[1] / 4)
    assert found["v_h_e_error_max"] == pytest.approx(0.1) and found["x_h_error_mean"] == pytest.approx(0.1)


def test_agreement_counts_only_where_there_is_a_gap():
    right = np.array([[-1.0, -2.0, -3.0], [-1.0, -1.0, -3.0], [-2.0, -2.0, -2.0], [-1.0, -1.0005, -1.0007]])
    learned = np.array([[-1.0, -0.5, -3.0], [-2.0, -1.0, -3.0], [-1.0, -2.0, -3.0], [-3.0, -1.0, -2.0]])
    share, rows = agreement(learned, right)
    assert rows == 2 and share == 0.5  # the second has two best actions, the others none that is better


def test_a_run_is_validated(tmp_path, capsys):
    settings = {"use_lookup_tables": True, "lr_v_h_e": 1.0, "lr_x_h": 1.0, "lr_q_r": 1.0, "lr_decay": "constant"}
    settings |= {f"warmup_{name}_steps": 300 for name in ("v_h_e", "x_h", "q_r")} | {"beta_r_rampup_steps": 300}
    settings |= {"training_steps_per_env_step": 1.0}
    run = tmp_path / "run"
    options = {"eval": {"every": "never"}, "rollout": {"steps": 256, "num_envs": 16}, "track": False}
    regimen.train("world/tiny3", algo="empowerment", total_steps=2048, out=str(run), **options, **settings)
    log = (run / "log.txt").read_text()
    assert "stage 0 (v_h_e)" in log and "stage 6 (full)" in log
    assert main(["validate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["v_r_start_error"] < 1e-3 and found["tv_mean"] < 1e-3 and found["pairs"] == 9
    rows = list(csv.DictReader((run / "validation" / "validation.csv").open()))
    start = [r for r in rows if r["quantity"] == "v_r" and r["time"] == "0"]
    assert float(start[0]["exact"]) == pytest.approx(found["v_r_start_exact"], rel=1e-6)
    assert (run / "validation" / "validation.png").stat().st_size > 1000
    for name in ("power.png", "policy.png", "bits.png", "episode.gif"):
        assert (run / "validation" / "learned" / name).stat().st_size > 1000
    assert regimen.empowerment.validate(run, checkpoint="final").numbers["tv_mean"] == found["tv_mean"]
    assert main(["validate", str(run), "--limit", "5"]) == 3
    assert "too large" in capsys.readouterr().err
    policy = regimen.load_policy(run)
    obs = {"state": np.array([2, 0, 1, 1, 1], np.int32), "time": np.int32(0), "goal": np.zeros(1, np.int32)}
    assert policy.act(obs) == 1  # west, towards the human's bush
    assert {policy.act(obs, greedy=False) for _ in range(30)} <= set(range(5))


def test_an_exact_side_that_has_not_converged_is_named(tmp_path):
    numbers = dict.fromkeys(measure_names(), 0.0)
    pairs = LearnedAndExact(np.zeros(2, int), np.zeros(2, int), {}, {}, np.ones(2))
    found = Validation("run", "world/tiny3", 2.0, pairs, numbers, tmp_path, {"converged": False, "residual": 0.25})
    assert "NOT CONVERGED" in found.lines()[1] and "2.5e-01" in found.lines()[1]
    assert found.to_dict()["exact_converged"] is False and found.to_dict()["exact_residual"] == 0.25
    timed = Validation("run", "world/tiny3", 2.0, pairs, numbers, tmp_path)
    assert "the final time left out" in timed.lines()[0] and "exact_residual" not in timed.to_dict()


def measure_names():
    one = {"q_r": -np.ones((1, 2)), "pi_r": np.ones((1, 2)), "v_r": -np.ones(1), "u_r": -np.ones(1)}
    one |= {"x_h": np.ones((1, 1)), "v_h_e": np.ones((1, 1, 1))}
    return measure(LearnedAndExact(np.zeros(1, int), np.zeros(1, int), one, one, np.ones(1)), 1.0)


def test_other_runs_are_refused(tmp_path, capsys):
    assert main(["validate", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    (tmp_path / "config.yaml").write_text("algorithm: ppo\nenv: cartpole\ntotal_steps: 100\nrollout: {steps: 64}\n")
    assert main(["validate", str(tmp_path)]) == 2
    assert "only runs of empowerment" in capsys.readouterr().err
