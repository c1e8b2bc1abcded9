"""What a run does between its first and its last update: cadence, rules, callbacks, checkpoints, groups."""

import dataclasses
import io
import json
import os
import re
import signal
import threading

import jax
import numpy as np
import pytest

import regimen
from regimen.config import layers
from regimen.engines import device
from regimen.engines.signals import Leaving, Signals, Terminated
from regimen.errors import ConfigError, DivergedError, EnvError, StorageError
from regimen.files.checkpoint import Checkpoints
from regimen.files.console import Console
from regimen.files.run_dir import read_episodes, read_metrics
from regimen.files.storage import replacing
from regimen.runs.api import train
from regimen.runs.loop import evaluation_seed
from regimen.runs.session import mean_row
from regimen.words import Figures
from support import BROKEN, EPISODES, EPISODIC, STEPS, TINY, UPDATE, comparable, final_state, status, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")


def evaluated(run):
    return [row["updates"] for row in read_metrics(run) if "eval/return_mean" in row]


def printed(out, **overrides) -> list[str]:
    """The lines a user reads."""
    given = {**TINY, "total_steps": 4 * UPDATE, "out": str(out), **overrides}
    text = io.StringIO()
    config = layers.build_config("cartpole", overrides={k: v for k, v in given.items() if v is not None})
    train(config, console=Console(file=text, live=False))
    return text.getvalue().splitlines()


def test_cadence_in_updates_and_steps(tmp_path):
    run = tmp_path / "run"
    every = {"log.every": "2", "eval.every": f"{3 * UPDATE - 5} steps", "checkpoint.every": "4", "checkpoint.keep": 9}
    tiny(run, updates=12, **every)
    # steps 91, 182, 273, 364 are passed by updates 3, 6, 9 and 12
    assert evaluated(run) == [3, 6, 9, 12]
    assert [r["updates"] for r in read_metrics(run)] == [2, 3, 4, 6, 8, 9, 10, 12]
    assert {4 * UPDATE, 8 * UPDATE, 12 * UPDATE} <= set(Checkpoints(run / "checkpoints").steps())


def test_cadence_in_episodes_and_exactly_n_episodes_per_update(tmp_path):
    run = tmp_path / "run"
    every = {"log.every": "8 episodes", "eval.every": "10 episodes", "checkpoint.every": "12 episodes"}
    result = tiny(run, **{**EPISODES, **every, "total_episodes": 22})
    episodes = read_episodes(run)
    assert result.summary["episodes"] == len(episodes["episode"]) == 24, "whole updates: the first 24 >= 22"
    assert np.bincount(episodes["update"])[1:].tolist() == [4] * 6
    assert episodes["episode"].tolist() == list(range(1, 25)) and (np.diff(episodes["env_steps"]) >= 0).all()
    assert result.summary["env_steps"] == episodes["length"].sum()
    assert evaluated(run) == [3, 5] and [r["updates"] for r in read_metrics(run)] == [2, 3, 4, 5, 6]
    steps = [int(np.cumsum(episodes["length"])[n - 1]) for n in (12, 24)]
    assert set(steps) <= set(Checkpoints(run / "checkpoints").steps())
    assert result.stop_reason == "max_episodes"


def test_episodes_on_gymnasium_are_exactly_n_too(tmp_path):
    result = tiny(tmp_path / "run", env="gym:CartPole-v1", **EPISODIC, total_steps=None, total_episodes=8)
    assert np.bincount(result.episodes["update"])[1:].tolist() == [4, 4] and result.summary["episodes"] == 8


def test_a_budget_in_steps_with_episodic_updates(tmp_path):
    result = tiny(tmp_path / "run", **{**EPISODES, "total_steps": 100, "total_episodes": None})
    before = result.summary["env_steps"] - result.episodes["length"][-4:].sum()
    assert before < 100 <= result.summary["env_steps"] and result.stop_reason == "max_steps"


@pytest.mark.parametrize(
    ("reason", "rules"),
    [
        ("max_steps", {}),
        ("converged", {"stop.target_return": 5, "stop.convergence_window": 2, "stop.patience": 1}),
        ("metric", {"eval.every": "1", "stop.metric": "train/entropy", "stop.below": 5, "stop.streak": 2}),
        ("no_improvement", {"eval.every": "1", "stop.no_improvement": 1, "algo.lr": 1e-12}),
        ("max_seconds", {"stop.max_seconds": 1e-3}),
    ],
)
def test_files_and_the_last_line_say_which_rule_ended_the_run(tmp_path, reason, rules):
    lines = printed(tmp_path / "run", total_steps=20 * UPDATE, **rules)
    said = status(tmp_path / "run")
    assert said["state"] == "finished" and said["stop_reason"] == reason
    assert lines[-1] == f"stopped: {said['stop_detail']}"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stop_reason"] == reason and (summary["updates"] == 20) == (reason == "max_steps")


def test_a_rule_that_can_never_fire_is_pointed_out(tmp_path):
    rule = {"eval.every": "2", "stop.metric": "eval/retrun_mean", "stop.above": 1}
    lines = printed(tmp_path / "run", **rule)
    warnings = [line for line in lines if "stop.metric" in line]
    assert len(warnings) == 1 and "'eval/retrun_mean' is not among" in warnings[0]
    assert "did you mean 'eval/return_mean'" in warnings[0]
    assert "retrun" in (tmp_path / "run" / "log.txt").read_text()
    lines = printed(tmp_path / "blind", **{"stop.metric": "eval/return_mean", "stop.above": 1})
    assert any("checked at evaluations, and eval.every is 'never'" in line for line in lines)


def test_the_first_lines_say_what_will_happen(tmp_path):
    lines = printed(tmp_path / "run")
    assert lines[0].startswith("cartpole (native) with ppo, seed 0, 4 envs: update every 32 steps, 8 in each of 4")
    assert "budget 128 steps; device cpu" in lines[1] and "memory about" in lines[1] and "in this process" in lines[1]
    assert lines[2] == f"run directory {tmp_path / 'run'}"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["compile_seconds"] > 0 and summary["steps_per_second"] > 0


def test_the_callback_is_called_once_per_update_in_order_and_may_stop(tmp_path):
    seen = []

    def callback(info):
        seen.append(info)
        return info["update"] == 5

    result = tiny(tmp_path / "run", updates=20, callback=callback, **{"eval.every": "2"})
    assert [info["update"] for info in seen] == [1, 2, 3, 4, 5]
    assert [info["env_steps"] for info in seen] == [UPDATE * i for i in range(1, 6)]
    assert [info["eval_metrics"] is not None for info in seen] == [False, True, False, True, False]
    assert {"return_mean", "return_std", "length_mean"} <= seen[1]["eval_metrics"].keys()
    assert {"loss", "entropy", "approx_kl"} <= seen[0]["step_metrics"].keys()
    assert any("rollout/return_mean" in info["step_metrics"] for info in seen)
    assert [info["episode"] for info in seen] == [row["episodes"] for row in result.history]
    assert result.stop_reason == "callback" and status(result.run_dir)["stop_reason"] == "callback"


def test_a_callback_changes_nothing(tmp_path):
    tiny(tmp_path / "a", updates=5)
    tiny(tmp_path / "b", updates=5, callback=lambda info: None)
    assert comparable(read_metrics(tmp_path / "a")) == comparable(read_metrics(tmp_path / "b"))


def test_a_callback_that_raises_loses_nothing(tmp_path):
    def callback(info):
        if info["update"] == 3:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tiny(tmp_path / "run", updates=9, callback=callback)
    assert status(tmp_path / "run")["state"] == "failed" and "mine" in status(tmp_path / "run")["error"]
    resumed = regimen.resume(tmp_path / "run")
    tiny(tmp_path / "whole", updates=9)
    assert resumed.summary["updates"] == 9
    assert comparable(resumed.history) == comparable(read_metrics(tmp_path / "whole"))


def test_policy_is_the_best_by_evaluation_and_every_checkpoint_can_be_played(tmp_path):
    run = tmp_path / "run"
    result = tiny(run, updates=8, **{"eval.every": "1", "checkpoint.every": "2", "checkpoint.keep": 9, "algo.lr": 0.05})
    scores = {row["env_steps"]: row["eval/return_mean"] for row in result.history}
    best = max(scores, key=lambda s: (scores[s], -s))
    assert result.summary["best_checkpoint"] == best == int(os.readlink(run / "checkpoints" / "best"))
    assert regimen.load_policy(run).meta["env_steps"] == best
    assert regimen.load_policy(run, "final").meta["env_steps"] == 8 * UPDATE
    assert regimen.load_policy(run, str(4 * UPDATE)).meta["env_steps"] == 4 * UPDATE
    assert [row["eval/best_return"] for row in result.history] == np.maximum.accumulate(list(scores.values())).tolist()

    seed, n = evaluation_seed(0, best // UPDATE), 2
    again = regimen.evaluate(run, episodes=n, seed=seed)
    assert again.returns.mean() == pytest.approx(scores[best]) and again.checkpoint == f"best, step {best}"
    final = regimen.evaluate(run, episodes=n, seed=evaluation_seed(0, 8), checkpoint="final")
    assert final.returns.mean() == pytest.approx(scores[8 * UPDATE])
    assert {"eval_return_mean", "final_return_mean", "eval_episodes"} <= result.summary.keys()


def test_init_from_takes_networks_and_normaliser_and_nothing_else(tmp_path):
    tiny(tmp_path / "a", updates=3, **STEPS)
    tiny(tmp_path / "b", updates=1, init_from=str(tmp_path / "a"), **STEPS, **{"algo.lr": 1e-30})
    (old, _), (new, run) = final_state(tmp_path / "a"), final_state(tmp_path / "b")
    params = [name for name in old if name.startswith("state/models/policy/params/")]
    for name in params:
        np.testing.assert_allclose(new[name], old[name], atol=1e-20, err_msg=name)
    assert params and new["state/norm/obs/count"] == old["state/norm/obs/count"] + UPDATE
    assert run["counters"]["updates"] == int(new["state/clock/updates"]) == 1
    moments = [name for name in old if "opt_state" in name and "count" in name]
    assert moments and all(new[name] < old[name] for name in moments), "the optimiser is fresh"
    assert str(tmp_path / "a") in (tmp_path / "b" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"env": "acrobot"}, r"its observation space is Box\(\[4\], float32\), this run's is Box\(\[6\], float32\)"),
        ({"network.hidden": (9,)}, r"its network is mlp \[8\] tanh, this run's is mlp \[9\] tanh"),
        ({"network.activation": "relu"}, "its network is mlp .8. tanh, this run's is mlp .8. relu"),
        ({"algo.normalize_obs": True}, "it lacks 'state/norm/obs/count'"),
    ],
)
def test_init_from_of_something_else_is_refused_before_a_directory_is_made(tmp_path, changed, message):
    tiny(tmp_path / "a", updates=1)
    with pytest.raises(StorageError, match=message):
        tiny(tmp_path / "b", init_from=str(tmp_path / "a"), **changed)
    with pytest.raises(StorageError, match="no such directory"):
        tiny(tmp_path / "b", init_from=str(tmp_path / "nowhere"), **changed)
    assert not (tmp_path / "b").exists()


def test_a_diverged_run_keeps_its_last_good_state(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"diverged at update (\d+) \(step (\d+)\): .*nan.*checkpoints/\2") as error:
        tiny(run, env=f"{BROKEN}:Luck", env_args={"threshold": 0.99}, updates=60)
    updates = int(re.findall(r"at update (\d+)", str(error.value))[0]) - 1
    assert updates > 0
    assert status(run)["state"] == status(run)["stop_reason"] == "diverged"
    arrays, kept = final_state(run)
    assert kept["counters"]["steps"] == updates * UPDATE and all(np.isfinite(x).all() for x in arrays.values())
    assert [row["updates"] for row in read_metrics(run)] == list(range(1, updates + 1))
    with pytest.raises(DivergedError, match=f"at update {updates + 1} "):
        regimen.resume(run)
    assert regimen.load_policy(run).act(np.zeros(2, np.float32)) in (0, 1)


def test_a_broken_env_costs_no_finished_update(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(EnvError, match="the simulator crashed"):
        tiny(run, env=f"{BROKEN}:host", env_args={"fault": "raises"}, updates=40)
    assert status(run)["state"] == "failed"
    _, kept = final_state(run)
    assert kept["counters"]["updates"] == len(read_metrics(run)) == 5  # 10 steps of 4 envs per update, 40 are whole


# --- groups ----------------------------------------------------------------------------------------------------------

SEEDS = {"eval.every": "3", "stop.target_return": 5, "stop.convergence_window": 3, "stop.patience": 5}


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    out = tmp_path_factory.mktemp("group") / "run"
    return tiny(out, updates=9, seed=4, seeds=3, **SEEDS)


def test_a_group_is_one_ordinary_run_per_seed(group):
    assert [r.run_dir.name for r in group.runs] == ["seed-4", "seed-5", "seed-6"]
    for seed, one in zip((4, 5, 6), group.runs):
        summary = json.loads((one.run_dir / "summary.json").read_text())
        assert summary["seed"] == seed and status(one.run_dir)["state"] == "finished"
        assert {"config.yaml", "metrics.jsonl", "episodes.csv", "policy", "checkpoints"} <= set(os.listdir(one.run_dir))
        played = regimen.evaluate(one.run_dir, episodes=2).to_dict()
        assert played["episodes"] == 2
    assert len({r.history[0]["train/loss"] for r in group.runs}) == 3


def test_each_seed_stops_by_its_own_rules(group):
    stopped = [r.summary["updates"] for r in group.runs]
    assert [r.stop_reason for r in group.runs].count("converged") >= 1 and len(set(stopped)) > 1
    for one in group.runs:
        arrays, kept = final_state(one.run_dir)
        assert int(arrays["state/clock/updates"]) == kept["counters"]["updates"] == one.summary["updates"]
        assert one.history[-1]["updates"] <= one.summary["updates"]


def test_a_group_reports_mean_iqm_and_interval(group):
    summary = json.loads((group.run_dir / "summary.json").read_text())
    scores = [r.summary["eval_return_mean"] for r in group.runs]
    assert summary["seeds"] == [4, 5, 6] and summary["eval_return_means"] == scores
    assert summary["eval_return_mean"] == pytest.approx(np.mean(scores))
    low, high = summary["eval_return_iqm_ci95"]
    assert min(scores) <= low <= summary["eval_return_iqm"] <= high <= max(scores)


def test_a_seed_of_a_group_resumes_alone(group, tmp_path):
    one = group.runs[-1]
    result = regimen.resume(one.run_dir, total_steps=12 * UPDATE, out=tmp_path / "on")
    assert result.summary["seed"] == 6 and result.summary["updates"] > one.summary["updates"]


def test_a_seed_of_a_group_is_the_run_of_that_seed(group, tmp_path):
    alone = tiny(tmp_path / "alone", updates=9, seed=5, **SEEDS)
    mine, theirs = alone.history[0], group.runs[1].history[0]
    assert mine.keys() - {"time/steps_per_second"} == theirs.keys() - {"time/steps_per_second"}
    for name in comparable([mine])[0]:
        assert theirs[name] == pytest.approx(mine[name], rel=1e-3, abs=1e-5), name


def test_the_console_of_a_group_shows_means(tmp_path):
    lines = printed(tmp_path / "run", seeds=3, **{"eval.every": "2", "total_steps": 2 * UPDATE})
    assert "3 seeds from 0" in lines[0] and any("means over the seeds" in line for line in lines)
    assert any(line.startswith("seed 1: the budget of ") for line in lines)
    assert any(line.startswith("3 seeds: evaluation return mean") for line in lines)
    assert lines[-1] == "stopped: budget of steps spent (3 seeds)"
    shown = [line for line in lines if line.startswith("Eval 2 | R ")]
    rows = [read_metrics(tmp_path / "run" / f"seed-{k}")[-1]["eval/return_mean"] for k in range(3)]
    assert len(shown) == 1 and f"R {np.mean(rows):.1f}" in shown[0]


def test_mean_row():
    rows = [{"updates": 3, "env_steps": 10, "a": 1.0}, {"updates": 4, "env_steps": 20, "a": 3.0, "b": 7.0}]
    assert mean_row(rows) == {"updates": 4, "env_steps": 15, "a": 2.0, "b": 7.0}


def test_seeds_of_a_gymnasium_env_run_in_sequence(tmp_path):
    result = tiny(tmp_path / "run", env="gym:CartPole-v1", updates=2, seeds=2)
    assert [r.summary["seed"] for r in result.runs] == [0, 1] and (tmp_path / "run" / "summary.json").exists()
    assert result.runs[0].history[0]["train/loss"] != result.runs[1].history[0]["train/loss"]


def test_a_seed_that_diverges_does_not_end_the_others(tmp_path):
    with pytest.raises(DivergedError, match=r"seed \d: training diverged"):
        tiny(tmp_path / "run", env=f"{BROKEN}:Luck", env_args={"threshold": 0.995}, updates=20, seeds=3)
    states = [status(tmp_path / "run" / f"seed-{k}")["state"] for k in range(3)]
    assert set(states) == {"diverged", "finished"}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["stop_reasons"].count("diverged") == states.count("diverged")
    assert len(summary["eval_return_means"]) == states.count("finished")


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="counts memory mappings as Linux tells them")
def test_a_process_that_compiled_much_forgets_its_programs(monkeypatch):
    """XLA crashes a process at 65,530 memory mappings; every verb begins with `configure`."""
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append("cleared"))
    with open("/proc/self/maps") as file:
        assert abs(device.mappings() - len(file.readlines())) < 1000
    for mappings, times in ((device.MOST_MAPPINGS, 0), (device.MOST_MAPPINGS + 1, 1)):
        monkeypatch.setattr(device, "mappings", lambda n=mappings: n)
        device.configure("cpu", native=True)
        assert len(cleared) == times
    assert device.MOST_MAPPINGS < 65_530 / 2, "one training may add thousands"


def test_ctrl_c_twice_leaves_without_saving(monkeypatch):
    monkeypatch.setattr("regimen.engines.signals.GRACE_SECONDS", 600.0)  # the test's own process is not to be ended
    with Signals() as signals:
        signals.busy = lambda: False
        os.kill(os.getpid(), signal.SIGINT)
        while not signals.requested:
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(20)


def test_a_signal_while_it_draws_leaves_no_half_picture(tmp_path, monkeypatch):
    """Everything is saved by then. The process was ended at once, with `.overview.PID.tmp.png` left behind."""

    def draw(run):
        path = run / "plots" / "overview.png"
        path.parent.mkdir()
        with replacing(path) as tmp:
            tmp.write_bytes(b"half a picture")
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(20)

    monkeypatch.setattr("regimen.engines.signals.GRACE_SECONDS", 600.0)
    monkeypatch.setattr("regimen.runs.delivery.try_plot_run", draw)
    with Leaving(), pytest.raises(Terminated):
        tiny(tmp_path / "run")
    assert status(tmp_path / "run")["state"] == "finished" and not list((tmp_path / "run" / "plots").iterdir())


def test_schedules_need_a_length(tmp_path):
    config = layers.build_config("cartpole", overrides={"stop.max_seconds": 1, "algo.lr_schedule": "linear"})
    config = dataclasses.replace(config, total_steps=None, total_episodes=None, out=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"algo.lr_schedule: 'linear' has no length; set algo.horizon or a budget"):
        train(config)


def test_a_callback_of_another_trainer_finds_its_figures(tmp_path):
    """`avg_reward` of one episode per update is its return, also where no row of the log is due."""
    seen = []

    def callback(info):
        seen.append((info["episode"], info["step_metrics"]["avg_reward"], info["step_metrics"]["avg_length"]))

    one = {"rollout.steps": None, "rollout.episodes": 1, "rollout.num_envs": 1, "log.every": "3"}
    result = regimen.train("cartpole", callback=callback, out=str(tmp_path / "run"), **TINY | one, total_episodes=6)
    returns = result.episodes["return"]
    assert [episode for episode, _, _ in seen] == [1, 2, 3, 4, 5, 6] and all(r == length for _, r, length in seen)
    since_row = [returns[i - i % 3 : i + 1].mean() for i in range(6)]
    assert [r for _, r, _ in seen] == pytest.approx(since_row)
    with pytest.raises(KeyError, match=r"avg_reward \(return_mean\); no episode ended since the last one"):
        Figures({"loss": 1.0})["avg_reward"]
