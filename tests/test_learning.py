"""Learning curves over seeds, with the tuned defaults of each environment. Run by `make test-slow`."""

import numpy as np
import pytest

import regimen

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compilation_cache", "without_plots")]


def greedy_returns(env, seeds, out):
    """Evaluation return of each seed's best policy over 100 new episodes, and the group's summary."""
    result = regimen.train(env, seeds=seeds, track=False, out=str(out))
    assert all(r.summary["eval_episodes"] == 100 for r in result.runs)
    return np.array([r.summary["eval_return_mean"] for r in result.runs]), result


def test_cartpole_is_solved_by_nine_of_ten_seeds_within_100k_steps(tmp_path):
    returns, result = greedy_returns("cartpole", 10, tmp_path / "run")
    assert (returns >= 475).sum() >= 9
    assert max(r.summary["env_steps"] for r in result.runs) <= 100_352


def test_acrobot(tmp_path):
    assert greedy_returns("acrobot", 5, tmp_path / "run")[0].mean() >= -90


def test_pendulum(tmp_path):
    assert greedy_returns("pendulum", 5, tmp_path / "run")[0].mean() >= -200


def test_mountain_car(tmp_path):
    assert greedy_returns("mountain_car", 5, tmp_path / "run")[0].mean() >= -110


def test_mountain_car_continuous(tmp_path):
    assert greedy_returns("mountain_car_continuous", 5, tmp_path / "run")[0].mean() >= 90


def test_platform(tmp_path):
    assert greedy_returns("platform", 5, tmp_path / "run")[0].mean() >= 0.8


def test_moving(tmp_path):
    assert greedy_returns("moving", 5, tmp_path / "run")[0].mean() >= 1.8


def test_catch_point(tmp_path):
    _, result = greedy_returns("catch_point", 5, tmp_path / "run")
    assert np.mean([r.summary["success_rate"] for r in result.runs]) >= 0.65


def test_hybrid_identity_within_20k_steps(tmp_path):
    result = regimen.train("probe/hybrid", seeds=5, track=False, out=str(tmp_path / "run"))
    assert min(r.summary["final_return_mean"] for r in result.runs) >= 0.9  # 1 is perfect, 0 the amount unlearned
    assert max(r.summary["env_steps"] for r in result.runs) <= 20_480


def test_durotaxis_reaches_the_goal(tmp_path):
    """A smaller colony, for the time it takes; the full one is in docs/results.md."""
    settings = {"env_args": {"capacity": 32, "max_nodes": 24.0, "fail_nodes": 30.0}, "total_steps": 80_000}
    result = regimen.train("durotaxis", track=False, out=str(tmp_path / "run"), **settings)
    assert result.summary["success_rate"] >= 0.8


@pytest.mark.parametrize("mode", ["faithful", "fixed"])
def test_network_defense_passes_20_within_20_000_episodes(mode, tmp_path):
    """With 8% of the budget; the full one is in docs/network_defense.md."""
    settings = {"total_steps": 2_000_000, "env_args": {"mode": mode}}
    result = regimen.train("network_defense", track=False, out=str(tmp_path / "run"), **settings)
    assert np.mean(result.episodes["env_return"][-500:]) > -20


def test_gymnasium_cartpole_on_the_host(tmp_path):
    result = regimen.train("gym:CartPole-v1", track=False, out=str(tmp_path / "run"))
    assert result.summary["eval_return_mean"] >= 475


@pytest.mark.parametrize("preset", ["fast", "balanced", "per_episode_ppo", "parallel_25"])
def test_untuned_presets_improve_on_chance(preset, tmp_path):
    """On CartPole, chance is 22; these presets are starting points, not tuned for it."""
    result = regimen.train("cartpole", preset=preset, track=False, out=str(tmp_path / "run"))
    assert result.summary["eval_return_mean"] >= (40 if preset == "fast" else 100)
