"""`regimen collect`, and training from what it writes: through the command line, from end to end."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest

import regimen
from kit import refused
from regimen.cli.main import main
from regimen.errors import ConfigError, StorageError
from regimen.files.run_dir import read_metrics
from regimen.policies import collect
from regimen.policies.collect import Part, parse_mix, shares
from regimen.sources import dataset
from support import comparable, final_state, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

OFFLINE = {
    "network.hidden": (8,),
    "rollout.steps": 16,
    "rollout.num_envs": 1,
    "algo.batch_size": 8,
    "eval.every": "never",
    "eval.episodes": 2,
    "checkpoint.every": "never",
    "track": False,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A PPO run with several checkpoints."""
    every = {"checkpoint.every": "2", "checkpoint.keep": 10, "eval.every": "2", "eval.episodes": 4}
    return tiny(tmp_path_factory.mktemp("ppo") / "run", updates=8, **every).run_dir


@pytest.fixture(scope="module")
def data(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "mixed"
    return regimen.collect(run, out, mix="expert:0.5,random:0.25,final:0.25", episodes=8, seed=3)


def command(capsys, *argv) -> str:
    capsys.readouterr()
    assert main([str(a) for a in argv]) == 0
    return capsys.readouterr().out


def test_mixes_are_shared_by_episodes(data):
    parts = data.metadata["regimen"]["parts"]
    assert [(p["policy"], p["episodes"]) for p in parts] == [("expert", 4), ("random", 2), ("final", 2)]
    assert sum(p["steps"] for p in parts) == data.steps == data.metadata["regimen"]["env_steps"]
    first = data.returns[:4].mean()
    assert parts[0]["return_mean"] == pytest.approx(first) and data.metadata["algorithm_name"] == "ppo"
    assert data.episodes == 8 and set(np.unique(data.action)) <= {0, 1}
    np.testing.assert_array_equal(data.reward, 1.0)  # cartpole


def test_a_run_on_gymnasium(tmp_path):
    """Greedy episodes are those of an evaluation from the same seeds; with epsilon 1 nothing is left of the policy."""
    path = tiny(tmp_path / "run", updates=1, env="gym:CartPole-v1").run_dir
    data = regimen.collect(path, tmp_path / "greedy", episodes=3, seed=5, greedy=True)
    np.testing.assert_array_equal(data.returns, regimen.evaluate(path, episodes=3, seed=5).returns)
    policy = regimen.load_policy(path)
    np.testing.assert_array_equal(data.action, policy.act_batch(data.obs))
    astray = regimen.collect(path, tmp_path / "astray", episodes=3, seed=5, greedy=True, epsilon=1.0)
    assert 0.2 < (astray.action == policy.act_batch(astray.obs)).mean() < 0.8


def test_whole_episodes_reach_the_steps(capsys, tmp_path):
    short = ["--env.max-episode-steps", 50]
    out = command(capsys, "collect", "pendulum", "--out", tmp_path / "set", "--steps", 250, *short)
    data = dataset.read(tmp_path / "set")
    assert data.steps == 250 and data.episodes == 5 and (np.diff(data.starts) == 50).all()
    assert data.truncated.sum() == 5 and not data.terminated.any()
    assert "5 episodes, 250 steps" in out and data.metadata["regimen"]["env_args"] == {"max_episode_steps": 50}


def test_the_same_seed_writes_the_same_episodes(run, tmp_path):
    a, b, c = (regimen.collect(run, tmp_path / str(i), episodes=2, seed=s).digest() for i, s in enumerate((0, 0, 1)))
    assert a == b != c


def test_native_and_gymnasium_collect_alike(tmp_path):
    data = regimen.collect("gym:CartPole-v1", tmp_path / "gym", episodes=10)
    assert data.episodes == 10 and data.terminated[np.append(data.starts[1:], data.steps) - 1].all()
    native = regimen.collect("cartpole", tmp_path / "native", episodes=50)
    assert native.returns.mean() == pytest.approx(data.returns.mean(), abs=12)  # random: about 22
    np.testing.assert_allclose(np.mean(native.action), 0.5, atol=0.06)


def test_epsilon_is_the_share_of_uniform_actions(run, tmp_path):
    """A greedy policy repeats itself; with epsilon 1 it is the random one."""
    handle = collect.registry.resolve("cartpole")
    policy = regimen.load_policy(run)
    obs = np.zeros((4000, 4), np.float32)

    def actions(epsilon):
        who = collect.Behaviour(handle.action_space, policy, greedy=True, epsilon=epsilon)
        noise = who.noise(collect.jax.random.key(0), (4000,))
        return np.asarray(who.act(who.params, obs, (), noise)[0])

    chosen = actions(0.0)[0]
    assert (actions(0.0) == chosen).all()
    assert (actions(0.4) != chosen).mean() == pytest.approx(0.2, abs=0.03)  # half of the uniform ones agree


def test_medium_is_the_checkpoint_nearest_to_a_return(run, tmp_path):
    words = []
    scores = {row["env_steps"]: row["eval/return_mean"] for row in read_metrics(run) if "eval/return_mean" in row}
    wanted = min(scores.values())
    found = regimen.collect(run, tmp_path / "low", "medium", episodes=2, target_return=wanted, report=words.append)
    step = int(re.search(r"step (\d+)", found.metadata["regimen"]["parts"][0]["source"]).group(1))
    assert scores[step] == wanted
    regimen.collect(run, tmp_path / "half", "medium", episodes=2, report=words.append)
    assert any("halfway between random" in w for w in words)


def test_replay_of_an_on_policy_run_is_all_its_checkpoints(run, tmp_path):
    data = regimen.collect(run, tmp_path / "set", "replay", episodes=8)
    steps = re.findall(r"step (\d+)", data.metadata["regimen"]["parts"][0]["source"])
    assert len(steps) >= 4 and data.episodes == pytest.approx(8, abs=len(steps))


def test_shares_sum_to_the_whole():
    assert shares([0.5, 0.25, 0.25], 9) == [5, 2, 2] and shares([1 / 3] * 3, 10) in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    assert [(p.policy, p.fraction) for p in parse_mix("expert:0.7, random:0.3")] == [("expert", 0.7), ("random", 0.3)]
    assert Part("random").fraction == 1.0


MISTAKES = {
    "no out": (["cartpole"], 2, "needs --out"),
    "no run": (["cartpole", "--policy", "expert"], 3, "is an environment, so only 'random' can act"),
    "both sizes": (["cartpole", "--steps", "5", "--episodes", "2"], 3, "episodes and steps both say how much"),
    "twice": (["RUN", "--policy", "expert", "--mix", "random:1"], 3, "policy and mix both say who acts"),
    "sum": (["RUN", "--mix", "expert:0.5,random:0.2"], 3, "sum to 0.7; make it 1"),
    "form": (["RUN", "--mix", "expert"], 3, "is not POLICY:FRACTION"),
    "policy": (["RUN", "--policy", "exprt"], 3, "'exprt' is unknown; did you mean 'expert'"),
    "checkpoint": (["RUN", "--checkpoint", "7"], 6, "there is no checkpoint at step 7"),
    "env": (["cartpoel"], 3, "did you mean 'cartpole'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(capsys, run, tmp_path, mistake):
    argv, code, message = MISTAKES[mistake]
    argv = [str(run) if a == "RUN" else a for a in argv]
    out = [] if mistake == "no out" else ["--out", tmp_path / "set"]
    refused(capsys, ["collect", *argv, *out], code, message)
    assert not list(tmp_path.iterdir())  # nothing half written


# --- training from a dataset -----------------------------------------------------------------------------------------


def clone(out, data, updates=4, **overrides):
    return regimen.train(str(data.path), "bc", **{**OFFLINE, "total_steps": updates * 16, "out": str(out), **overrides})


def test_a_dataset_is_trained_on(capsys, data, tmp_path):
    flags = ["--total-steps", 64, "--no-track", "--out", tmp_path / "run", "--network.hidden", 8, "--json"]
    flags += ["--rollout.steps", 16, "--algo.batch-size", 8, "--eval.every", "32 steps", "--eval.episodes", 2]
    summary = json.loads(command(capsys, "train", data.path, "--algo", "bc", *flags))
    assert (summary["env"], summary["algo"], summary["env_steps"], summary["updates"]) == ("cartpole", "bc", 64, 4)
    assert summary["data"]["sha256"] == data.digest() and summary["data"]["episodes"] == 8
    assert summary["episodes"] == 0 and summary["eval_episodes"] == 2
    assert json.loads(command(capsys, "evaluate", tmp_path / "run", "--episodes", 2, "--json"))["policy"] == "bc"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "offline: 16 gradient steps per update, batches of 8" in log and data.summary() in log
    rows = read_metrics(tmp_path / "run")
    assert "rollout/return_mean" not in rows[-1] and rows[-1]["train/gradient_steps"] == 16
    again = regimen.collect(tmp_path / "run", tmp_path / "again", episodes=2)  # a clone can be collected from, too
    assert again.episodes == 2


def test_resume_is_exact(data, tmp_path):
    whole = clone(tmp_path / "whole", data, updates=6, **{"algo.lr_schedule": "linear", "algo.horizon": "96 steps"})
    clone(tmp_path / "half", data, updates=3, **{"algo.lr_schedule": "linear", "algo.horizon": "96 steps"})
    regimen.resume(tmp_path / "half", total_steps=96)
    arrays_equal(whole.run_dir, tmp_path / "half")


def arrays_equal(a, b):
    x, y = final_state(a)[0], final_state(b)[0]
    assert x.keys() == y.keys()
    for name in x:
        np.testing.assert_array_equal(x[name], y[name], err_msg=name)
    assert comparable(read_metrics(a)) == comparable(read_metrics(b))


def test_seeds_are_the_single_runs(data, tmp_path):
    group = clone(tmp_path / "group", data, seeds=2)
    single = clone(tmp_path / "single", data, seed=1)
    a, b = (r.history[-1]["train/loss"] for r in (group.runs[1], single))
    assert a == pytest.approx(b, rel=1e-4) and group.runs[0].history[-1]["train/loss"] != a


def test_changed_data_is_not_resumed_on(data, tmp_path):
    copy = dataset.read(shutil.copytree(data.path, tmp_path / "copy"))
    clone(tmp_path / "run", copy, updates=2)
    shutil.rmtree(copy.path)
    with pytest.raises((StorageError, ConfigError), match="is not a Minari dataset"):
        regimen.resume(tmp_path / "run", total_steps=64)
    shutil.copytree(data.path, tmp_path / "copy")
    with h5py.File(tmp_path / "copy" / "data" / "main_data.hdf5", "a") as file:
        file["episode_0/rewards"][0] = 7.0
    with pytest.raises(StorageError, match="trained on other data"):
        regimen.resume(tmp_path / "run", total_steps=64)


OFFLINE_MISTAKES = {
    "on-policy": (["DATA", "--algo", "ppo"], 3, "ppo learns from its own rollouts"),
    "no dataset": (["FOLDER", "--algo", "bc"], 3, "a folder, but no Minari dataset"),
    "other env": (["pendulum", "--algo", "bc", "--data", "DATA"], 3, "does not fit pendulum"),
    "twice": (["DATA", "--algo", "bc", "--data", "DATA"], 3, "is a dataset already"),
    "episodes": (["DATA", "--algo", "bc", "--total-episodes", "5"], 3, "give total_steps, in gradient steps"),
    "nothing": (["cartpole", "--algo", "bc", "--data", "nowhere"], 6, "nowhere is not a run directory"),
}


@pytest.mark.parametrize("mistake", OFFLINE_MISTAKES)
def test_offline_mistakes_are_named(capsys, data, tmp_path, mistake):
    argv, code, message = OFFLINE_MISTAKES[mistake]
    argv = [{"DATA": str(data.path), "FOLDER": str(tmp_path)}.get(a, a) for a in argv]
    refused(capsys, ["train", *argv, "--no-track", "--out", tmp_path / "run"], code, message)
    assert not (tmp_path / "run").exists()
