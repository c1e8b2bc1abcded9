"""`Trainer.record`: a loop of somebody's own writes the run directory that `regimen train` writes."""

import numpy as np
import pytest

import regimen
from regimen.envs import registry
from regimen.errors import ConfigError, StorageError
from regimen.files.run_dir import read_config, read_status
from regimen.files.sealed import write_sealed
from regimen.runs.own_run import episode_rows

QUICK = {"hidden": (4,), "epochs": 1, "minibatch_size": 64, "total_episodes": 6, "track.enabled": False}
QUICK |= {"log.replay": False, "eval.every": "2 updates", "eval.episodes": 1}


def make(**more):
    return regimen.Trainer("gym:CartPole-v1", **QUICK | more)


def collect(trainer, buffer, lengths=(5, 3)):
    """Episodes of made-up observations: nothing here needs a world."""
    rng = np.random.default_rng(0)
    for length in lengths:
        buffer.start_episode()
        for _ in range(length):
            obs = rng.normal(size=4).astype(np.float32)
            action, log_prob, value = trainer.sample(obs)
            buffer.add_step(obs, action, 1.0, value, log_prob)
        buffer.finish_episode(terminated=length == 3)


def train(trainer, out, updates=99):
    """Updates until the rules say that it is enough, or a Ctrl+C after so many."""
    buffer = regimen.TrajectoryBuffer()
    with trainer.record(out) as run:
        for i in range(100):
            if run.stop_reason is not None:
                break
            if i == updates:
                raise KeyboardInterrupt
            collect(trainer, buffer)
            trainer.update(buffer)
            buffer.clear()
    return trainer.result


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    trainer = make()
    return trainer, train(trainer, tmp_path_factory.mktemp("own") / "run")


def test_its_rows_are_of_the_episodes_that_were_learned_from(finished):
    _, result = finished
    assert result.stop_reason == "max_episodes" and result.summary["episodes"] == 6
    assert [row["updates"] for row in result.history] == [1, 2, 3]
    assert [row["env_steps"] for row in result.history] == [8, 16, 24]
    first = result.history[0]
    assert (first["rollout/return_mean"], first["rollout/return_max"], first["rollout/episodes"]) == (4, 5, 2)
    assert {"train/policy_loss", "train/entropy", "train/explained_variance"} <= set(first)
    assert [i for i, row in enumerate(result.history) if "eval/return_mean" in row] == [1]
    episodes = result.episodes
    assert episodes["length"].tolist() == [5, 3] * 3 and episodes["env_steps"].tolist() == [5, 8, 13, 16, 21, 24]
    assert episodes["terminated"].tolist() == [0, 1] * 3


def test_other_commands_read_it(finished):
    trainer, result = finished
    path = result.run_dir
    assert read_status(path)["state"] == "finished" and read_status(path)["delivery"] == {"state": "done"}
    assert read_config(path)["algo"]["minibatch_size"] == 64
    assert (path / "report.html").is_file() and (path / "policy" / "README.md").is_file()
    assert regimen.evaluate(path, episodes=1).env == "gym:CartPole-v1"
    last = regimen.load_policy(path, "final")
    states = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    algo, state = trainer.begin()
    own = regimen.Policy(algo, algo.actor_params(state), {})
    assert [int(last.act(x)) for x in states] == [int(own.act(x)) for x in states]


def test_only_a_program_goes_on_with_it(finished):
    with pytest.raises(ConfigError, match=r"a loop of a program's own.*Trainer\.record"):
        regimen.resume(finished[1].run_dir)
    with pytest.raises(StorageError, match="has ended"), make().record(finished[1].run_dir):
        pass


def test_a_run_that_was_interrupted_is_continued(tmp_path):
    path, first = tmp_path / "run", make()
    with pytest.raises(KeyboardInterrupt):
        train(first, path, updates=2)
    assert read_status(path)["state"] == "interrupted"
    saved, obs = first.begin()[1], np.array([0.1, -0.2, 0.3, -0.4], np.float32)
    second = make(seed=0)
    with second.record(path) as run:
        assert (run.env_steps, run.stop_reason) == (16, None)
        assert float(second.value(obs)) == float(first.value(obs))
        assert int(run.state.clock.updates) == int(saved.clock.updates) == 2
        drawn = [int(first.sample(obs)[0]) for _ in range(30)]
        assert drawn == [int(second.sample(obs)[0]) for _ in range(30)]  # the draws go on as if nothing had happened
        buffer = regimen.TrajectoryBuffer()
        collect(second, buffer)
        second.update(buffer)
        assert run.stop_reason == "max_episodes"
    assert [row["updates"] for row in second.result.history] == [1, 2, 3]


def test_a_loop_that_ends_early_is_finished(tmp_path):
    trainer, buffer = make(), regimen.TrajectoryBuffer()
    with trainer.record(tmp_path / "run"):
        collect(trainer, buffer)
        trainer.update(buffer)
    assert trainer.result.stop_reason == "callback" and "own loop ended" in trainer.result.summary["stop_detail"]
    assert read_status(trainer.result.run_dir)["state"] == "finished"
    assert regimen.load_policy(trainer.result.run_dir, "final").meta["env_steps"] == 8


def test_an_update_that_is_not_finite_is_not_kept(tmp_path):
    trainer, buffer = make(lr=1e30), regimen.TrajectoryBuffer()
    obs = np.ones(4, np.float32)
    with trainer.record(tmp_path / "run") as run:
        before = float(trainer.value(obs))
        for _ in range(8):
            collect(trainer, buffer)
            trainer.update(buffer)
            if run.stop_reason is not None:
                break
            before = float(trainer.value(obs))
        assert run.stop_reason == "diverged" and float(trainer.value(obs)) == before
    assert read_status(tmp_path / "run")["state"] == "diverged"


def test_rewards_have_the_components_of_the_environment():
    handle, buffer = registry.resolve("platform"), regimen.TrajectoryBuffer()
    names = handle.reward_components
    if len(names) < 2:
        handle = registry.resolve("durotaxis")
        names = handle.reward_components
    buffer.add_episode([0, 1], [0, 0], [1.0, 2.0], [0.0, 0.0])
    with pytest.raises(ConfigError, match=f"have no '{names[0]}'"):
        episode_rows(buffer, handle)
    buffer.clear()
    for k in (1, 2):
        rewards = {name: [float(k * i), 1.0] for i, name in enumerate(names)}
        buffer.add_episode([0, 1], [0, 0], rewards, [0.0, 0.0], success=k == 2)
    rows = episode_rows(buffer, handle)
    assert rows.reward.tolist() == [[k * i + 1.0 for i in range(len(names))] for k in (1, 2)]
    assert rows.metrics["success"].tolist() == [0.0, 1.0] and rows.step.tolist() == [2, 4]


def test_a_run_of_the_command_is_not_taken_over(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(make(), path, updates=1)
    status = {name: value for name, value in read_status(path).items() if name not in ("loop", "digest")}
    write_sealed(path / "status.json", status)  # as `regimen train` leaves it
    with pytest.raises(StorageError, match="regimen resume"), make().record(path):
        pass


def test_what_has_no_effect_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="seeds: has no effect in a loop"), make(seeds=2).record(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
