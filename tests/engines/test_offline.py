"""Training from data: what a run has seen becomes a dataset, learning goes on online, a resume is exact across it."""

import shutil
import signal

import numpy as np
import pytest

import regimen
from regimen.config.layers import build_config
from regimen.errors import ConfigError, StorageError
from regimen.files.run_dir import read_config, read_metrics
from regimen.reports.replay import replay
from regimen.runs.api import behaviour_config
from regimen.runs.session import Session
from regimen.sources import dataset
from support import comparable, digest_of, final_state, status

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

SHORT = {"max_episode_steps": 20}
TINY = {
    "network.hidden": (8,),
    "rollout.steps": 8,
    "rollout.num_envs": 2,
    "algo.batch_size": 8,
    "algo.buffer_size": 256,
    "log.every": "1",
    "eval.every": "never",
    "eval.episodes": 2,
    "checkpoint.every": "never",
    "track": False,
}
CQL = TINY | {"algo.cql_samples": 2, "algo.min_q_weight": 5}


@pytest.fixture(scope="module")
def sac(tmp_path_factory):
    """A run of SAC whose replay holds its last 160 steps: 8 episodes, and two that are not over."""
    out = tmp_path_factory.mktemp("sac") / "run"
    settings = {**TINY, "algo.buffer_size": 160, "algo.learning_starts": 176, "total_steps": 184}
    return regimen.train("pendulum", "sac", out=str(out), env_args=SHORT, **settings).run_dir


@pytest.fixture(scope="module")
def data(sac, tmp_path_factory):
    return regimen.collect(sac, tmp_path_factory.mktemp("data") / "replay", "replay")


def test_a_replay_becomes_its_episodes(sac, data):
    """Every row of the ring is there once; whole episodes are 20 steps, those that the ring cuts are shorter."""
    arrays, _ = final_state(sac)
    assert data.steps == 160 and data.metadata["regimen"]["parts"][0]["source"] == "its replay buffer"
    np.testing.assert_allclose(np.sort(data.reward), np.sort(arrays["state/replay/reward"].ravel()), rtol=1e-6)
    lengths = np.diff([*data.starts, data.steps])
    assert lengths.max() == 20 and (lengths == 20).sum() == 6 and data.truncated.sum() == len(lengths)
    inner = np.setdiff1d(np.arange(160), np.append(data.starts[1:], 160) - 1)
    np.testing.assert_array_equal(data.next_obs[inner], data.obs[inner + 1])  # rows follow one another in time
    # actions are what the environment took: Pendulum's cost holds the torque
    angle = np.arctan2(data.obs[:, 1], data.obs[:, 0])
    cost = angle**2 + 0.1 * data.obs[:, 2] ** 2 + 0.001 * data.action[:, 0] ** 2
    np.testing.assert_allclose(data.reward, -cost, atol=2e-4)


def test_part_of_a_replay(sac, tmp_path):
    assert regimen.collect(sac, tmp_path / "part", "replay", episodes=3).episodes == 3


def cql(out, data, steps, **overrides):
    return regimen.train(str(data.path), "cql", out=str(out), total_steps=steps, **{**CQL, **overrides})


@pytest.fixture(scope="module")
def tuned(data, tmp_path_factory):
    """24 gradient steps offline, 24 env steps online."""
    return cql(tmp_path_factory.mktemp("cql") / "run", data, 48, **{"algo.online_steps": 24})


def test_learning_goes_on_online(tuned, data):
    rows = tuned.history
    assert [r["env_steps"] for r in rows] == [8, 16, 24, 32, 40, 48]
    assert all("train/q_data_mean" in r for r in rows[:3]) and not any("train/q_data_mean" in r for r in rows[3:])
    # data.steps // 2 columns, in whole rollouts of 4 rows: all of it; then 8 env steps at a time
    assert [r["train/replay_size"] for r in rows[3:]] == [168, 176, 184]
    assert rows[2]["train/min_q_weight"] == 5 and rows[3]["train/min_q_weight"] == 0  # plain SAC online
    arrays, _ = final_state(tuned.run_dir)
    assert int(arrays["state/aux/gradient_steps"]) == 48 and int(arrays["switch"]) == 24
    # the data lies in the replay, column by column
    np.testing.assert_array_equal(arrays["state/replay/reward"][:80].T.ravel(), data.reward)
    assert tuned.summary["data"]["sha256"] == data.digest()
    assert "after 24 steps it goes on online for 24" in (tuned.run_dir / "log.txt").read_text()


def test_resume_is_exact_in_both_phases(tuned, data, tmp_path):
    """Resumed online at its end, and resumed offline before the switch: the same state after 56 steps. The switch stays
    where it was; a larger budget lengthens the last phase."""
    regimen.resume(tuned.run_dir, out=tmp_path / "online", total_steps=56)
    settings = {**CQL, "algo.online_steps": 24, "total_steps": 48, "out": str(tmp_path / "offline")}
    regimen.train(str(data.path), "cql", callback=lambda info: info["env_steps"] >= 16, **settings)
    resumed = regimen.resume(tmp_path / "offline", total_steps=56)
    a, b = (final_state(tmp_path / name)[0] for name in ("online", "offline"))
    assert a.keys() == b.keys() and int(a["switch"]) == 24
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert comparable(read_metrics(tmp_path / "online")) == comparable(resumed.history)


@pytest.mark.slow
def test_seeds_share_the_data_and_nothing_else(tuned, data, tmp_path):
    group = cql(tmp_path / "group", data, 48, seeds=2, seed=0, **{"algo.online_steps": 24})
    for i in (2, 5):  # at the end of each phase; sums in another order
        mine, theirs = (r.history[i]["train/value_loss"] for r in (group.runs[0], tuned))
        assert mine == pytest.approx(theirs, rel=1e-3)
        assert group.runs[1].history[i]["train/value_loss"] != pytest.approx(theirs, rel=1e-3)


def test_a_run_is_data(sac, tmp_path):
    """`--data RUN` collects what the run has seen; the configuration of the new run names the dataset."""
    settings = {**CQL, "total_steps": 8, "out": str(tmp_path / "run"), "data": str(sac)}
    result = regimen.train("pendulum", "cql", env_args=SHORT, **settings)
    kept = tmp_path / "run-data"
    assert dataset.read(kept).steps == 160 and read_config(tmp_path / "run")["data"] == str(kept.resolve())
    assert result.summary["data"]["episodes"] == dataset.read(kept).episodes


def test_an_environment_alone_collects_first(tmp_path):
    """SAC acts for `behaviour_steps`, which are counted, before anything is learned from them."""
    settings = {k: v for k, v in TINY.items() if k != "algo.buffer_size"} | {"algo.behaviour_steps": 64}
    result = regimen.train("cartpole", "bc", total_steps=16, out=str(tmp_path / "run"), **settings)
    behaviour = regimen.load_policy(tmp_path / "run-behaviour")
    assert behaviour.meta["algorithm"] == "sac" and behaviour.meta["env_steps"] == 64
    about = result.summary["data"]
    assert about["steps"] == about["env_steps"] == 64 and result.summary["env_steps"] == 16


@pytest.mark.parametrize("gamma", [0.9, 0.995])
def test_data_comes_from_the_very_same_environment(tmp_path, gamma):
    """Shaping by a potential has the learner's discount: SAC, which collects, has a tuned one of its own."""
    config = build_config("airspace/head_on", algo="cql", overrides={"algo.gamma": gamma})
    behaviour = behaviour_config(config, tmp_path)
    assert behaviour.env_args == config.env_args and behaviour.common.gamma == gamma
    assert behaviour_config(build_config("pendulum", algo="cql"), tmp_path).common.gamma == 0.99, "SAC's own"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.long
def test_a_signal_while_data_is_collected_interrupts_everything(tmp_path, monkeypatch, number):
    """It was swallowed: SAC stopped, and the outer algorithm learned from what little there was."""
    settings = {k: v for k, v in TINY.items() if k != "algo.buffer_size"} | {"algo.behaviour_steps": 64}
    settings |= {"total_steps": 16, "seed": 3}
    turn = Session.turn

    def interrupted(session, progress):
        turn(session, progress)
        session.signals.ask(number)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "turn", interrupted)
        patch.setattr("regimen.runs.session.CHUNK", 2)
        stopped = regimen.train("cartpole", "bc", out=str(tmp_path / "run"), **settings)
    assert stopped.exit_code == 128 + number and stopped.run_dir == tmp_path / "run"
    assert status(tmp_path / "run-behaviour")["state"] == "interrupted"
    assert not (tmp_path / "run").exists() and not (tmp_path / "run-data").exists()
    with pytest.raises(StorageError, match="run-behaviour holds another run"):
        regimen.train("cartpole", "bc", out=str(tmp_path / "run"), **settings | {"seed": 4})
    resumed = regimen.train("cartpole", "bc", out=str(tmp_path / "run"), **settings)
    whole = regimen.train("cartpole", "bc", out=str(tmp_path / "whole"), **settings)
    assert resumed.exit_code == 0 and resumed.summary["data"]["steps"] == 64
    assert comparable(read_metrics(tmp_path / "run-behaviour")) == comparable(
        read_metrics(tmp_path / "whole-behaviour")
    )
    assert comparable(read_metrics(tmp_path / "run")) == comparable(read_metrics(whole.run_dir))


def test_data_collected_before_is_not_collected_again(tmp_path):
    """Killed between collecting and learning: the same command begins with the learning."""
    settings = {k: v for k, v in TINY.items() if k != "algo.buffer_size"} | {"algo.behaviour_steps": 64}
    settings |= {"total_steps": 16, "out": str(tmp_path / "run")}
    first = regimen.train("cartpole", "bc", **settings)
    before = digest_of(tmp_path / "run-data")
    shutil.rmtree(tmp_path / "run")
    assert regimen.train("cartpole", "bc", **settings).summary["data"] == first.summary["data"]
    assert digest_of(tmp_path / "run-data") == before


@pytest.mark.parametrize("algo", ["bc", "cql"])
def test_a_team_learns_from_data(algo, tmp_path):
    """One policy for all agents, from transitions of each; it acts on a dictionary of those that act, and so its
    episodes can be written down."""
    data = regimen.collect("probe/team", tmp_path / "data", episodes=8)
    assert data.episodes == 8 and data.steps < 8 * 3  # of single agents
    settings = {k: v for k, v in TINY.items() if k != "algo.buffer_size" or algo == "cql"} | {"data": str(data.path)}
    result = regimen.train("probe/team", algo, total_steps=8, out=str(tmp_path / "run"), **settings)
    policy = regimen.load_policy(result.run_dir)
    assert policy.agents == ("one", "two", "three")
    seen = {"one": np.array([1.0, 1 / 3], np.float32), "three": np.array([-1.0, 1.0], np.float32)}
    assert policy.act(seen) == {name: policy.act(obs) for name, obs in seen.items()}
    assert len(list(replay(result.run_dir, episodes=1))) == 1
    assert len((result.run_dir / "replays" / "seed-0.csv").read_text().splitlines()) > 3


def test_fine_tuning_needs_a_longer_budget(data, tmp_path):
    with pytest.raises(ConfigError, match="online_steps: 64 are the last of total_steps"):
        cql(tmp_path / "run", data, 64, **{"algo.online_steps": 64})
