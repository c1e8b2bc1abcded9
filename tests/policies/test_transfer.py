"""A policy in two environments: the same episodes where they are the same, and what is refused where they are not."""

import json

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import regimen
from regimen.cli.main import main
from regimen.envs.protocol import NativeEnv, native_env
from regimen.errors import ConfigError, EnvError
from regimen.policies.policy import load_policy
from regimen.policies.transfer import evaluate_in, parse_margins
from regimen.types import TimeStep

pytestmark = pytest.mark.usefixtures("compilation_cache")


@native_env
class Drawn(NativeEnv):
    """One step pays what was drawn at the start, and a toll."""

    max_episode_steps: int = 1
    toll: float = 0.0
    metric_reductions = {"draw": "last", "success": "last"}  # noqa: RUF012

    @property
    def observation_space(self):
        return spaces.Box(-np.inf, np.inf, (2,), np.float32)

    @property
    def action_space(self):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, key):
        draw = jax.random.normal(key)
        return draw, jnp.stack([draw, 0.0])

    def step(self, key, state, action):
        metrics = {"draw": state, "success": (state > 0).astype(jnp.float32)}
        return state, TimeStep(jnp.stack([state, 1.0]), state - self.toll, jnp.bool_(True), metrics=metrics)


class Host(gymnasium.Env):
    """The same from numpy's draws, in this process."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    metric_reductions = {"draw": "last"}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.draw = float(self.np_random.normal())
        return np.array([self.draw, 0.0], np.float32), {}

    def step(self, action):
        return np.array([self.draw, 1.0], np.float32), self.draw, True, False, {"draw": self.draw}


class Wide(Host):
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)


class Other(Host):
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    settings = {"rollout": {"steps": 4, "num_envs": 4}, "eval.every": "never", "hidden": [4], "quiet": True}
    return load_policy(regimen.train(Drawn, total_steps=4, out=out, track=False, **settings).run_dir)


def test_both_play_the_same_episodes_and_a_toll_is_found_exactly(policy):
    result = evaluate_in(Drawn(), Drawn(toll=0.25), 0.3, episodes=20, seed=3, policy=policy)
    np.testing.assert_allclose(result.away.returns, result.home.returns - 0.25, atol=1e-6)
    assert result.home.returns.std() > 0.5
    d = result.differences["return"]
    assert (d.value, d.low, d.high) == pytest.approx((-0.25, -0.25, -0.25), abs=1e-5)
    assert result.verdict == "equivalent"
    assert result.differences["draw"].value == 0.0
    assert evaluate_in(Drawn(), Drawn(toll=0.25), 0.2, episodes=20, policy=policy).verdict == "different"


def test_another_simulator_with_other_draws(policy):
    """Means of independent draws: too few episodes do not tell, and the sentence says how many would."""
    result = evaluate_in(Drawn(), Host, {"return": 0.5, "draw": 5.0}, episodes=20, policy=policy)
    assert list(result.differences) == ["return", "length", "draw"]  # what both report
    assert result.differences["draw"].verdict == "equivalent"
    assert result.verdict == "cannot be told"
    assert "would show it of equal environments" in result.sentence()
    assert "\n".join(result.lines()).count("equivalent") == 1


class Imitator(Host):
    """The simulator of `Drawn`, which has its settings: it takes the same toll."""

    imitates = f"{__name__}:Drawn"

    def __init__(self, toll: float = 0.0):
        self.toll = toll

    def step(self, action):
        seen, draw, *rest, metrics = super().step(action)
        return seen, draw - self.toll, *rest, metrics


def test_a_simulator_of_an_environment_has_its_settings(policy):
    """Draws are means of 0; the toll of 50 is that of the run's environment, unless another one is named."""
    at_home = {"episodes": 20, "env_args": {"toll": 50.0}, "policy": policy}
    returns = [
        evaluate_in(Drawn, Imitator, in_args=args, **at_home).away.returns.mean() for args in ({}, {"toll": 7.0})
    ]
    np.testing.assert_allclose(returns, [-50, -7], atol=2)
    assert abs(evaluate_in(Drawn, Host, **at_home).away.returns.mean()) < 2


def test_spaces_that_differ_are_refused_with_what_differs(policy):
    with pytest.raises(EnvError, match=r"observation Box\(\[2\], float32\) here, Box\(\[3\], float32\) there; action "):
        evaluate_in(Drawn(), Other, policy=policy)
    with pytest.raises(EnvError, match=r"action between \[-1.0\] and \[1.0\] here, between \[-2.0\] and \[2.0\] there"):
        evaluate_in(Drawn(), Wide, policy=policy)


@pytest.mark.parametrize(
    ("margin", "message"),
    [
        ("x", "not a number"),
        ("0", "must be above 0"),
        ({"retrun": 1.0}, "did you mean 'return'"),
        ("inf", "out of range"),
    ],
)
def test_margins_that_are_none(policy, margin, message):
    with pytest.raises(ConfigError, match=message):
        evaluate_in(Drawn(), Drawn(), margin, episodes=2, policy=policy)


def test_margins_are_read():
    assert parse_margins("return=1, draw=0.5") == {"return": 1.0, "draw": 0.5}
    assert parse_margins("2") == parse_margins(2) == {"return": 2.0}


def test_from_the_command_line(tmp_path, capsys):
    run = str(tmp_path / "run")
    settings = {"rollout": {"steps": 8, "num_envs": 4}, "eval.every": "never", "hidden": [4], "quiet": True}
    regimen.train("cartpole", total_steps=8, out=run, track=False, env_args={"max_episode_steps": 20}, **settings)
    capsys.readouterr()
    command = ["evaluate", run, "--episodes", "6", "--in", "cartpole", "--in.max_episode_steps", "20"]
    assert main([*command, "--margin", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == data["differences"]["return"]["verdict"] == "equivalent"
    assert data["in"]["return_mean"] == data["return_mean"] and data["in"]["episodes"] == 6
    assert main(["evaluate", run, "--in", "pendulum"]) == 4
    assert "observation Box([4], float32) here, Box([3], float32) there" in capsys.readouterr().err
    for flags, code in (
        (["--margin", "1"], 2),
        (["--in.gravity", "3"], 2),
        (["--in", "cartpole", "--policy", "random"], 2),
        (["--leaderboard", "--margin", "1"], 2),
        (["--leaderboard"], 3),
    ):
        assert main(["evaluate", run, *flags]) == code, flags
    assert "environments that have one: " in capsys.readouterr().err
    assert main(["evaluate", "cartpole", "--in", "cartpole"]) == 3
