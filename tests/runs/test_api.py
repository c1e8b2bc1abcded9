"""From Python: train, Trainer, resume, evaluate, load_policy, on every kind of environment."""

import functools
import json
import shutil
import sys
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import yaml

import broken_envs
import regimen
from regimen.config.schema import NetworkConfig
from regimen.envs.classic.cartpole import CartPole
from regimen.envs.registry import ENVS
from regimen.errors import ConfigError, EnvError, StorageError
from support import BROKEN, TINY, UPDATE, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("api") / "run"
    tiny(out, updates=3, **{"eval.every": "1", "checkpoint.every": "1"})
    return out


@pytest.fixture
def small(tmp_path):
    """Settings of a Trainer whose run is in tmp_path / "run"."""
    return {**TINY, "total_steps": UPDATE, "out": str(tmp_path / "run")}


def test_train_returns_what_came_of_it(tmp_path):
    result = regimen.train("cartpole", algo="ppo", **{**TINY, "total_steps": 2 * UPDATE}, out=tmp_path / "run", lr=1e-3)
    assert result.run_dir == tmp_path / "run" and result.stop_reason == "max_steps" and result.exit_code == 0
    assert [row["updates"] for row in result.history] == [1, 2] and result.history[0]["train/lr"] == pytest.approx(1e-3)
    assert len(result.episodes["return"]) == result.summary["episodes"]
    assert result.policy.act(np.zeros(4)) in (0, 1)


def test_a_result_shows_itself_as_figure_table_and_notebook_cell(run, monkeypatch):
    result = regimen.Result(run, json.loads((run / "summary.json").read_text()))
    figure = result.plot()
    assert len([ax for ax in figure.axes if ax.lines or ax.collections]) > 3
    table = result.to_pandas()
    assert list(table["updates"]) == [1, 2, 3] and "rollout/return_mean" in table
    assert "cartpole with ppo" in result._repr_html_() and str(run) in result._repr_html_()
    assert "cartpole" in regimen.evaluate(run, episodes=2)._repr_html_()
    group = regimen.Result(run, {"env": "cartpole", "algo": "ppo"}, runs=[result, result])
    assert len(group.plot().axes) == 1 and len(group.to_pandas()) == 6
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pip install pandas"):
        result.to_pandas()


def test_a_trainer_trains_evaluates_saves_and_loads(small, tmp_path):
    algo = regimen.PPO(lr=2e-3, gamma=0.9, network=NetworkConfig(hidden=(9,)))
    trainer = regimen.Trainer(env="cartpole", algo=algo, gamma=0.95, **small)
    assert trainer.config.algo.lr == 2e-3, "as the object says"
    assert trainer.config.algo.gamma == 0.95 and trainer.config.network.hidden == (8,), "unless it is set beside it"
    with pytest.raises(ConfigError, match="no policy yet"):
        trainer.evaluate(1)
    seen = []
    result = trainer.train(callback=lambda info: seen.append(info["update"]))
    assert seen == [1] and trainer.result is result
    played = trainer.evaluate(num_episodes=3)
    assert set(played) == {"return_mean", "return_std", "return_min", "return_max", "length_mean"}
    assert played["return_min"] <= played["avg_reward"] <= played["return_max"] and played == trainer.evaluate(3)
    assert played["avg_length"] == played["length_mean"] and "avg_reward" in played and played.get("rewards") is None
    folder = trainer.save(tmp_path / "policy")
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "policy.safetensors"]
    other = regimen.Trainer("cartpole").load(folder)
    assert other.evaluate(3) == played
    assert regimen.evaluate(folder, episodes=3).returns.mean() == played["avg_reward"]
    obs = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(other.policy.act_batch(obs), [trainer.policy.act(o) for o in obs])


def cartpole_factory():
    return CartPole(gravity=5.0)


class Unregistered(broken_envs.Host):
    baselines: ClassVar = {"left": lambda obs: 0}


KINDS = {
    "native instance": (lambda: CartPole(gravity=5.0), "cartpole", {"gravity": 5.0}),
    "native class": (lambda: CartPole, "cartpole", {}),
    "factory": (lambda: cartpole_factory, "test_api:cartpole_factory", {}),
    "lambda": (lambda: lambda: CartPole(gravity=5.0), "python:<lambda>", {}),
    "partial": (lambda: functools.partial(CartPole, gravity=5.0), "python:partial", {}),
    "gym class": (lambda: broken_envs.Host, "broken_envs:Host", {}),
    "gym instance": (lambda: gymnasium.make("CartPole-v1"), "gym:CartPole-v1", {"max_episode_steps": 500}),
    "own instance": (lambda: broken_envs.Host(), "python:Host", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_object_of_any_kind(small, kind):
    make, name, args = KINDS[kind]
    trainer = regimen.Trainer(make(), **small)
    result = trainer.train()
    assert result.summary["updates"] == 1 and trainer.evaluate(1)["avg_length"] > 0
    config = yaml.safe_load((result.run_dir / "config.yaml").read_text())
    assert config["env"] == name and args.items() <= config["env_args"].items()
    if name.startswith("python:"):
        with pytest.raises(ConfigError, match=r"cannot be made from its name; call regimen.resume\(.*env=...\)"):
            regimen.resume(result.run_dir, total_steps=2 * UPDATE)
        with pytest.raises(ConfigError, match=r"call regimen.evaluate\(.*env=...\)"):
            regimen.evaluate(result.run_dir)
        assert regimen.evaluate(result.run_dir, episodes=1, env=make()).env
        resumed = regimen.resume(result.run_dir, total_steps=2 * UPDATE, env=make())
    else:
        resumed = regimen.resume(result.run_dir, total_steps=2 * UPDATE)
    assert resumed.summary["updates"] == 2 and resumed.summary["env"] == name


def test_a_registered_environment(small):
    regimen.register_env("mine", Unregistered)
    try:
        assert regimen.Trainer("mine", **small).train().summary["env"] == "mine"
        assert regimen.evaluate("mine", policy="left", episodes=2).returns.tolist() == [5.0, 5.0]
    finally:
        del ENVS["mine"]


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        ({}, "ppo"),
        ({"algorithm": "SAC"}, "sac"),
        ({"preset": "atc_sac"}, "sac"),
        ({"algo": "ppo", "preset": "atc_sac"}, "ppo"),
        ({"algo": regimen.SAC}, "sac"),
        ({"algo": {"normalize_obs": True}}, "ppo"),
        ({"algo": {"tau": 0.1}, "preset": "atc_sac"}, "sac"),
    ],
    ids=str,
)
def test_the_algorithm_may_be_named_in_every_way(settings, algorithm):
    """As on the command line, where a preset's algorithm is trained unless another one is named."""
    config = regimen.Trainer("head_on", **settings).config
    assert config.algorithm == algorithm
    if isinstance(settings.get("algo"), dict):
        assert all(getattr(config.algo, name) == value for name, value in settings["algo"].items())


def test_what_is_given_in_the_wrong_place_is_said():
    with pytest.raises(ConfigError, match=r"environment comes first: regimen.Trainer\('cartpole', algo=regimen.PPO"):
        regimen.Trainer(regimen.PPO(), "cartpole")
    with pytest.raises(ConfigError, match=r"1000 is no function; a budget is set before: Trainer\(total_steps"):
        regimen.Trainer("cartpole").train(1000)


def test_an_unregistered_algorithm_object_is_refused():
    with pytest.raises(ConfigError, match="algo: object is not registered"):
        regimen.Trainer("cartpole", algo=object())


# --- evaluate --------------------------------------------------------------------------------------------------------


def test_an_evaluation_is_complete_and_repeatable(run):
    first = regimen.evaluate(run, episodes=7, seed=3)
    values = first.to_dict()
    assert values == regimen.evaluate(run, episodes=7, seed=3).to_dict()
    assert not np.array_equal(first.returns, regimen.evaluate(run, episodes=7, seed=4).returns)
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["episodes"] == 7 and values["policy"] == "ppo" and values["seed"] == 3
    low, high = values["return_ci95"]
    assert low <= values["return_mean"] <= high and values["length_mean"] == values["return_mean"]
    assert values["reward_components"] == {"total": pytest.approx(values["return_mean"])}
    assert 0 <= values["success_rate"] <= 1 and values["metrics"] == {}


def test_one_episode_has_no_interval(run):
    assert regimen.evaluate(run, episodes=1).to_dict()["return_ci95"] is None
    assert "interval" not in regimen.evaluate(run, episodes=1).lines()[1]


def test_components_and_metrics_are_reported():
    values = regimen.evaluate("probe/components", policy="random", episodes=4).to_dict()
    handle = regimen.make_env("probe/components")
    assert values["reward_components"].keys() == set(handle.reward_components)
    assert values["metrics"].keys() | {"success"} == set(handle.metric_reductions) | {"success"}
    assert sum(values["reward_components"].values()) == pytest.approx(values["return_mean"], abs=1e-5)


def test_a_baseline_of_the_environment():
    assert regimen.evaluate("cartpole", policy="heuristic", episodes=5).returns.mean() > 40
    assert regimen.evaluate("acrobot", policy="no_op", episodes=2, env_args={"max_episode_steps": 9}).lengths.max() == 9


@pytest.mark.parametrize("env", ["cartpole", "gym:CartPole-v1"])
def test_the_random_policy(env):
    result = regimen.evaluate(env, policy="random", episodes=30)
    assert 10 < result.returns.mean() < 50 and result.to_dict()["policy"] == "random"
    np.testing.assert_array_equal(result.returns, regimen.evaluate(env, policy="random", episodes=30).returns)
    short = regimen.evaluate(env, policy="random", episodes=5, env_args={"max_episode_steps": 4})
    assert short.lengths.tolist() == [4] * 5 and not short.terminated.any()


def test_env_arguments_alike_in_train_evaluate_and_resume(tmp_path):
    run = tmp_path / "run"
    tiny(run, updates=1, env_args={"max_episode_steps": 4})
    assert regimen.evaluate(run, episodes=3).lengths.tolist() == [4] * 3
    assert regimen.evaluate(run, episodes=3, env_args={"max_episode_steps": 2}).lengths.tolist() == [2] * 3
    resumed = regimen.resume(run, total_steps=2 * UPDATE, env_args={"max_episode_steps": 3})
    assert set(resumed.episodes["length"][-3:].tolist()) == {3}
    assert regimen.evaluate(run, episodes=3).lengths.tolist() == [3] * 3


def test_another_policy_on_the_environment_of_a_run(run, tmp_path):
    assert regimen.evaluate(run, policy="random", episodes=2).policy == "random"
    policy = regimen.load_policy(run, "final")
    assert regimen.evaluate("cartpole", policy=policy, episodes=2).policy == "ppo"
    with pytest.raises(EnvError, match=r"its action space is Discrete\(2\), the environment's is Discrete\(3\)"):
        regimen.evaluate("mountain_car", policy=_same_observations(policy), episodes=1)


def _same_observations(policy):
    policy.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    return policy


@pytest.mark.parametrize(
    ("target", "more", "error", "message"),
    [
        ("cartpole", {}, ConfigError, "name a policy with --policy .random, heuristic"),
        ("cartpole", {"policy": "randm"}, ConfigError, "'randm' is not a baseline of cartpole; did you mean 'random'"),
        ("cartpoel", {"policy": "random"}, ConfigError, "unknown environment 'cartpoel'; did you mean 'cartpole'"),
        ("models:/nothing", {}, ConfigError, "write models:/NAME@champion"),
    ],
)
def test_what_cannot_be_evaluated(target, more, error, message):
    with pytest.raises(error, match=message):
        regimen.evaluate(target, **more)


def test_a_damaged_policy_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy", symlinks=True)
    weights = copy / "policy" / "policy.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    with pytest.raises(StorageError, match=r"policy\.safetensors has changed"):
        regimen.load_policy(copy)
    saved = copy / "checkpoints" / str(UPDATE) / "policy" / "policy.safetensors"
    saved.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(StorageError, match=r"checkpoint .*/32 is damaged: policy/policy.safetensors"):
        regimen.evaluate(copy, checkpoint="32")
    (copy / "policy" / "config.json").unlink()
    with pytest.raises(StorageError, match=r"no policy in .*: config\.json is missing"):
        regimen.evaluate(copy)


def test_a_native_env_that_breaks_its_contract_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(EnvError, match=r"the observation of step differs from that of reset"):
        tiny(tmp_path / "a", env=f"{BROKEN}:WrongShape")
    with pytest.raises(EnvError, match=r"it uses Python's if.*use jnp.where"):
        tiny(tmp_path / "b", env=f"{BROKEN}:PythonIf")
