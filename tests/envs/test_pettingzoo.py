"""PettingZoo's parallel environments, both ways."""

import csv

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test

import regimen
from regimen.domains.airspace.env import Airspace
from regimen.envs.adapters.pettingzoo import Team, to_pettingzoo
from regimen.envs.check import check_env
from regimen.envs.probe import Match
from regimen.envs.probe import TeamProbe as Probe
from regimen.envs.protocol import native_env
from regimen.envs.registry import resolve
from regimen.errors import EnvError
from regimen.reports.replay import replay
from support import TINY


class Uneven(ParallelEnv):
    """A cat that sees two numbers and chooses among two actions, a dog with three and three; the dog leaves first."""

    metadata = {"name": "uneven"}  # noqa: RUF012

    def __init__(self, length: int = 4):
        self.length, self.possible_agents, self.render_mode = length, ["cat_0", "dog_0"], None

    def observation_space(self, agent):
        return spaces.Box(1.0, 2.0, (2 if agent == "cat_0" else 3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2 if agent == "cat_0" else 3)

    def observe(self):
        return {a: np.full(self.observation_space(a).shape, 1.5, np.float32) for a in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self.observe(), {a: {} for a in self.agents}

    def step(self, actions):
        assert all(self.action_space(a).contains(x) for a, x in actions.items()) and set(actions) == set(self.agents)
        self.t += 1
        seen, acting = self.observe(), list(self.agents)
        done = {"cat_0": self.t >= self.length, "dog_0": self.t >= self.length // 2}
        self.agents = [a for a in acting if not done[a]]
        return seen, dict.fromkeys(acting, 1.0), {a: done[a] for a in acting}, dict.fromkeys(acting, False), {}


@pytest.mark.parametrize("env", [Probe(absent=0.5), Airspace("t_formation", position_jitter=1.0)], ids=["probe", "air"])
def test_native_environments_pass_pettingzoos_own_test(env):
    parallel_api_test(to_pettingzoo(env), num_cycles=60)


def test_the_parallel_form_steps_like_the_native_one():
    env = Probe()
    played = to_pettingzoo(env)
    observations, _ = played.reset(seed=3)
    assert {a: x.tolist() for a, x in observations.items()} == {
        a: x.tolist() for a, x in played.reset(seed=3)[0].items()
    }
    total, steps = 0.0, 0
    while played.agents:
        right = {a: int(x[0] > 0) for a, x in observations.items()}
        observations, rewards, _terminated, truncated, infos = played.step(right)
        total, steps = total + sum(rewards.values()), steps + 1
        assert not any(truncated.values()) and all("acting" in info for info in infos.values())
    assert (total, steps) == (6.0, 3)
    with pytest.raises(EnvError, match="one agent; use to_gymnasium"):
        to_pettingzoo(Match())


def test_unequal_agents_are_filled_up():
    team = Team(Uneven())
    assert team.observation_space.shape == (3,) and team.action_space == spaces.Discrete(3)
    obs, info = team.reset(seed=0)
    assert obs[0].tolist() == [1.5, 1.5, 0.0] and team.observation_space.contains(obs[0])
    assert info["action_mask"].tolist() == [[True, True, False], [True, True, True]]
    _, reward, terminated, _, _ = team.step([1, 2])
    assert reward.tolist() == [[1.0], [1.0]] and not terminated.any()
    terminated = team.step([1, 2])[2]
    assert terminated.tolist() == [False, True] and team.alive.tolist() == [True, False]


def test_spaces_that_cannot_be_shared_are_named():
    class Mixed(Uneven):
        def action_space(self, agent):
            return spaces.Discrete(2) if agent == "cat_0" else spaces.Box(-1, 1, (1,))

    with pytest.raises(EnvError, match=r"agents with the action spaces Discrete\(2\), Box"):
        resolve(Mixed)


def test_any_parallel_environment_trains(tmp_path):
    result = regimen.train(Uneven, total_steps=64, out=str(tmp_path / "run"), env_args={"length": 6}, **TINY)
    row = result.history[-1]
    # 4 environments of 16 steps each: two episodes of 6 + 3 transitions, and 4 steps of a third with 4 + 3
    assert (row["env_steps"], row["agent_steps"]) == (64, 4 * (2 * 9 + 7))
    policy = regimen.load_policy(result.run_dir)
    assert set(policy.act({"dog_0": np.full(3, 1.5, np.float32)})) == {"dog_0"}
    assert regimen.evaluate(result.run_dir, episodes=2).returns.tolist() == [9.0, 9.0]
    data = regimen.collect(result.run_dir, tmp_path / "data", episodes=4)
    assert data.returns.tolist() == [6.0, 3.0, 6.0, 3.0], "of each agent by itself"
    assert data.terminated.sum() == 4 and data.mask.shape == (18, 3)
    (said,) = replay(result.run_dir, seed=3)
    assert "return 9.00, 6 steps" in said
    with open(result.run_dir / "replays" / "seed-3.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["agent"] for row in rows] == ["cat_0", "dog_0"] * 3 + ["cat_0"] * 3
    assert [row["terminated"] for row in rows] == ["0"] * 5 + ["1"] + ["0"] * 2 + ["1"]


def test_a_policy_for_each_role_trains(tmp_path):
    result = regimen.train(Uneven, total_steps=64, policy_map="role", out=str(tmp_path / "run"), **TINY)
    assert result.summary["env_steps"] == 64
    played = regimen.load_policy(result.run_dir).act({name: np.full(3, 1.5, np.float32) for name in ("cat_0", "dog_0")})
    assert set(played) == {"cat_0", "dog_0"}


def test_simple_spread_trains_and_is_checked(tmp_path):
    """A real environment of the MPE family, through its module's name."""
    name = "pettingzoo:mpe2.simple_spread_v3"
    assert not check_env(name, steps=30)
    handle = resolve(name, {"N": 2, "max_cycles": 10})
    assert handle.agents == ("agent_0", "agent_1") and handle.max_episode_steps in (0, 10)
    settings = TINY | {"env_args": {"N": 2, "max_cycles": 10}, "eval.every": "2"}
    result = regimen.train(name, total_steps=96, out=str(tmp_path / "run"), **settings)
    assert result.history[-1]["agent_steps"] == 192 and result.summary["env_steps"] == 96
    (said,) = replay(result.run_dir, gif=False)
    assert "10 steps" in said
    with pytest.raises(EnvError, match="unexpected keyword argument 'max_cycle'"):
        resolve(name, {"max_cycle": 3})


def test_bad_names():
    with pytest.raises(EnvError, match=r"cannot import the environment module 'mpe3\.simple'"):
        resolve("pettingzoo:mpe3.simple")
    with pytest.raises(EnvError, match="has no 'paralel_env'"):
        resolve("pettingzoo:mpe2.simple_spread_v3:paralel_env")


@native_env
class Lost(Probe):
    """Says of two agents only whether they act."""

    def alive(self, state):
        return (state["left"] > 0)[:2]

    def observe(self, state):
        return jnp.stack([state["sign"], state["left"] / 3], axis=-1)


def test_the_checker_knows_agents():
    assert [p.message for p in check_env(Lost())] == ["alive(state) must be one bool for each of 3 agents"]
    assert not check_env(Probe())
