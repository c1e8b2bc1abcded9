"""Training on the airspace: a short run learns to avoid, its evaluations and replays can be looked at."""

import csv

import jax
import numpy as np
import pytest
from airspace_rollouts import fly

import regimen
from regimen.domains.airspace.analysis.flight import Flights, Pilot
from regimen.domains.airspace.analysis.pilots import GREEDY
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.policies.evaluate import make_evaluator
from regimen.reports.replay import replay
from support import TINY

RUN = TINY | {"rollout.steps": 64, "rollout.num_envs": 4, "eval.every": "2", "eval.episodes": 3}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("airspace") / "run"
    settings = RUN | {"env_args": {"position_jitter": 1.0, "max_episode_steps": 20}, "log.alerts": True}
    return regimen.train("airspace/t_formation", total_steps=256, out=str(out), **settings)


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_streaks_and_safety_are_in_the_progress_file(run):
    last = rows_of(run.run_dir / "progress.csv")[-1]
    assert {"agent_steps", "zero_conflict_streak", "perfect_streak", "eval/los", "eval/min_separation"} <= set(last)
    assert int(last["agent_steps"]) <= 3 * int(last["env_steps"])


def test_each_evaluation_writes_what_it_saw(run):
    files = sorted((run.run_dir / "trajectories").iterdir())
    assert [f.name for f in files] == ["step-000000128.csv", "step-000000256.csv"]
    rows = rows_of(files[-1])
    assert {r["episode_id"] for r in rows} == {"0", "1", "2"} and {r["agent_id"] for r in rows} == {"A1", "A2", "A3"}
    assert {"gt_conflict", "predicted_alert", "tp", "min_separation_nm", "reward_progress"} <= set(rows[0])
    # the very episodes of the evaluation: the smallest separations agree
    logged = next(r for r in reversed(run.history) if "eval/min_separation" in r)["eval/min_separation"]
    flown = [r for r in rows if r["step_idx"] != "0"]
    seen = [min(float(r["min_separation_nm"]) for r in flown if r["episode_id"] == e) for e in "012"]
    np.testing.assert_allclose(np.mean(seen), logged, rtol=1e-4)


def test_an_evaluation_is_flown_once_and_its_table_is_that_of_a_second_flight(run):
    """The recording of the evaluation against the analysis' own loop, which flies the same scenarios anew."""
    policy = regimen.load_policy(run.run_dir, "final")
    handle = registry.resolve("airspace/t_formation", policy.meta["env_args"])
    played = make_evaluator(handle, policy.algo, record=True)(policy.params, 5, 3).recording
    env = handle.native
    keys = jax.random.split(jax.random.split(jax.random.key(5))[0], 3)
    pilot = Pilot(GREEDY, (policy.algo, policy.params))
    again = fly(env, pilot, jax.device_get(jax.vmap(env.draw)(keys)), jax.random.key(5))
    flights = Flights(played.rows, played.length, played.start.scenario)
    np.testing.assert_array_equal(flights.length, again.length)
    np.testing.assert_array_equal(flights.scenario.present, again.scenario.present)
    for c in range(3):
        one, other = flights.episode(c), again.episode(c)
        np.testing.assert_array_equal(one.flying, other.flying)
        for name in ("counts", "north", "heading", "command", "min_sep", "flown", "parts"):
            np.testing.assert_allclose(one.state[name], other.state[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_nothing_is_written_when_off_and_only_where_it_can_be(tmp_path):
    settings = RUN | {"env_args": {"max_episode_steps": 20}}
    quiet = regimen.train("airspace/t_formation", total_steps=128, out=str(tmp_path / "quiet"), **settings)
    assert not (quiet.run_dir / "trajectories").exists()
    with pytest.raises(ConfigError, match=r"log\.trajectories: cartpole does not write trajectories"):
        regimen.train("cartpole", total_steps=64, out=str(tmp_path / "no"), **TINY, **{"log.trajectories": True})


def test_replay_needs_no_pettingzoo(run, monkeypatch):
    def missing():
        raise AssertionError("asked for PettingZoo")

    monkeypatch.setattr("regimen.envs.adapters.pettingzoo.require_pettingzoo", missing)
    assert len(list(replay(run.run_dir, gif=False))) == 1


def test_replay_on_another_scenario(run):
    lines = list(replay(run.run_dir, scenario="converging", seed=3))
    assert lines[0].split()[0].endswith("converging-seed-3.gif")
    rows = rows_of(run.run_dir / "replays" / "converging-seed-3.csv")
    assert {r["agent_id"] for r in rows} == {"A1", "A2", "A3", "A4"} and "lat_deg" in rows[0]
    assert next(iter(replay(run.run_dir, gif=False))).split()[0].endswith("seed-0.csv")
    with pytest.raises(ConfigError, match="convergin"):
        list(replay(run.run_dir, scenario="convergin"))


@pytest.mark.long
def test_a_short_run_with_the_original_reward_learns_to_avoid(tmp_path):
    """Three aircraft that collide when they do nothing: within 82,000 steps no episode of an evaluation from perturbed
    starts loses separation (on other machines five seeds of five took 16,384 to 32,768)."""
    rule = {"stop.perfect_streak": None, "stop.zero_conflict_streak": None, "stop.metric": "eval/los", "stop.below": 0}
    settings = rule | {
        "eval.every": "1",
        "algo.horizon": "500000 steps",
        "env_args": {"reward": "compat"},
        "track": False,
    }
    run = regimen.train("airspace/t_formation", total_steps=81_920, out=str(tmp_path / "run"), **settings)
    assert run.stop_reason == "metric" and run.history[0]["eval/los"] > 0.5
    nothing = regimen.evaluate("airspace/t_formation", policy="no_op", episodes=1, env_args={"reward": "compat"})
    assert nothing.metrics["los"].max() == 1


SMALL = {"network.hidden": [8], "eval.episodes": 2, "checkpoint.every": "never", "track": False}
ON_POLICY = {"rollout.steps": 16, "rollout.num_envs": 4, "algo.minibatch_size": 16, "total_steps": 48}
REPLAY = {"algo.batch_size": 8, "rollout.steps": 16, "total_steps": 64, "eval.every": "16 steps"}
PRESETS = {
    **dict.fromkeys(("ppo", "appo", "impala"), ON_POLICY),
    "sac": REPLAY
    | {"rollout.num_envs": 4, "algo.learning_starts": 16, "algo.buffer_size": 500, "algo.update_ratio": 0.1},
    "cql": REPLAY | {"algo.behaviour_steps": 1100},
}


@pytest.mark.long
@pytest.mark.parametrize("algo", PRESETS)
def test_the_documents_presets_train_and_their_rules_fire(algo, tmp_path):
    """Two updates of each with the original reward, small; episodes of one step cannot have a conflict, so the streak
    of the preset, made shorter, ends the run before its budget."""
    settings = SMALL | PRESETS[algo] | {"env_args": {"reward": "compat", "max_episode_steps": 1}}
    settings |= {"stop.zero_conflict_streak": 2, "out": str(tmp_path / "run")}
    run = regimen.train("airspace/head_on", algo=algo, preset=f"atc_{algo}", **settings)
    assert run.stop_reason == "zero_conflict" and run.summary["updates"] == 2
    assert run.history[-1]["zero_conflict_streak"] == 2 and run.summary["algo"] == algo
