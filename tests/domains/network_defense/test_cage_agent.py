"""The challenge's form of a policy: an agent of numpy that acts like it, what it may observe, and the table of nine."""

import json
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen.algorithms.bind import bind_algorithm
from regimen.cli.main import main
from regimen.config import layers
from regimen.config.regimen import resolve
from regimen.domains.network_defense import agent_export
from regimen.domains.network_defense import network as net
from regimen.domains.network_defense.env import NetworkDefense
from regimen.domains.network_defense.leaderboard import CELLS, PUBLISHED, TOTALS, LeaderboardTable
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.normalize import RunningStats
from regimen.policies.export import export_policy
from regimen.policies.policy import load_policy, save_policy

pytestmark = pytest.mark.usefixtures("compilation_cache")
SETTINGS = {
    "plain": {},
    "history": {"network.activation": "relu", "algo.normalize_obs": True, "network.name": "mlp_norm"},
    "gru": {"network.memory": "gru", "network.memory_size": 8, "network.activation": "elu"},
}


@pytest.fixture(autouse=True)
def fewer_observations(monkeypatch):
    """The export's own comparison is shorter: the first test has a thousand steps."""
    monkeypatch.setattr(agent_export, "OBSERVATIONS", 100)


def saved(folder, name, **env_args):
    """The folder of a fresh policy whose actions depend on what it sees: its last layer is large."""
    settings = {"network.hidden": (16, 8)} | SETTINGS.get(name, {})
    config = layers.build_config("network_defense", overrides=settings | {"env_args": env_args})
    handle = registry.resolve("network_defense", env_args)
    algo = bind_algorithm(config, handle, resolve(config, native=True))
    state = algo.init(jax.random.key(1))
    rows = np.random.default_rng(0).uniform(0, 1, (64, handle.native.observed)).astype("f4")
    norm = {k: RunningStats.of(rows, np.ones(64, bool)) for k in state.norm}
    params = algo.actor_params(state.replace(norm=norm) if norm else state)
    params = params | {"actor": params["actor"] | {"head": jax.tree.map(lambda x: 300.0 * x, params["actor"]["head"])}}
    save_policy(
        folder, "ppo", algo, params, {"env": "network_defense", "env_args": env_args, "seed": 0, "env_steps": 0}
    )
    return folder


@pytest.mark.parametrize(
    ("name", "env_args"), [("plain", {}), ("history", {"history": True}), ("gru", {"history": True})]
)
def test_the_agent_acts_like_the_policy_in_a_thousand_steps(tmp_path, name, env_args):
    out = export_policy(saved(tmp_path / "run", name, red="mixed", **env_args), tmp_path / "out", form="cage-agent")
    policy, agent = load_policy(out), agent_export.agent_module(out / "agent.py").CageAgent()
    env = NetworkDefense(red="mixed", **env_args)
    step, reset, actions = jax.jit(env.step), jax.jit(env.reset), set()
    for i in range(1000):
        key = jax.random.key(7000 + i)
        if i % 50 == 0:
            policy.reset()
            agent.end_episode()
            state, obs = reset(key)
        action = policy.act(obs)
        assert agent.get_action(np.asarray(obs)[:52], None) == action, i
        actions.add(action)
        state, timestep = step(key, state, jnp.int32(action))
        obs = timestep.obs
    assert len(actions) >= 5  # it is not one action for everything


def test_the_agent_keeps_the_same_book_as_the_environment(tmp_path):
    """Alerts and decoys of episodes of a random Blue, by the agent from 52 bits and its own actions."""
    out = export_policy(saved(tmp_path / "run", "plain", history=True), tmp_path / "out", form="cage-agent")
    agent = agent_export.agent_module(out / "agent.py").CageAgent()
    env, draws = NetworkDefense(red="meander", history=True), np.random.default_rng(1)
    step = jax.jit(env.step)
    state, obs = env.reset(jax.random.key(0))
    seen = np.zeros(143, bool)
    for i in range(300):
        if agent.time:
            agent.see(np.asarray(obs)[:52].reshape(13, 4))
        np.testing.assert_allclose(agent.history(), np.asarray(obs)[52:], atol=1e-6)
        seen |= agent.history() > 0
        # decoys more often than not: one in seven other actions of 145 is a Restore, which ends them
        action = int(draws.choice([draws.integers(28, 132), draws.integers(0, 145)]))
        agent.do(action)
        agent.time += 1
        state, timestep = step(jax.random.key(i), state, jnp.int32(action))
        obs = timestep.obs
    assert seen.sum() > 60


def test_it_needs_numpy_and_nothing_else(tmp_path):
    out = export_policy(saved(tmp_path / "run", "plain"), tmp_path / "out", form="cage-agent")
    code = (
        "import sys, agent, numpy\n"
        "a = agent.CageAgent()\n"
        "print([a.get_action(numpy.zeros(52), None) for _ in range(3)])\n"
        "assert not {'jax', 'regimen', 'flax'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=out, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "metadata.json").read_text())["form"] == "cage-agent"


def test_forms_that_do_not_fit(tmp_path, monkeypatch, capsys):
    run = saved(tmp_path / "run", "plain")
    assert main(["export", str(run), "--as", "cage-agnt", "--out", str(tmp_path / "a")]) == 3
    assert "did you mean 'cage-agent'" in capsys.readouterr().err
    graph = saved(tmp_path / "workflow", "plain", workflow="all")
    with pytest.raises(ConfigError, match="follows a workflow"):
        export_policy(graph, tmp_path / "b", form="cage-agent")
    monkeypatch.setattr(agent_export, "agreement", lambda *_: 0.998)
    with pytest.raises(ConfigError, match=r"acts like the policy in 99.8% of 100 steps"):
        export_policy(run, tmp_path / "c", form="cage-agent")
    assert not any((tmp_path / name).exists() for name in "abc")


def test_nobody_attacks_where_red_sleeps():
    env = NetworkDefense(red="sleep")
    _, obs = env.reset(jax.random.key(0))
    state, _ = env.reset(jax.random.key(0))
    for action in (0, 2, 30, 140):
        state, timestep = env.step(jax.random.key(action), state, jnp.int32(action))
        np.testing.assert_array_equal(timestep.obs, obs)
        assert float(timestep.reward.sum()) == (-1.0 if action == 140 else 0.0)
    assert int(state.red_kind) == -1 and int(state.root) == 1 << net.USER0


def test_the_total_is_the_sum_of_nine_means():
    returns = {cell: np.array([-1.0, -3.0]) * (i + 1) for i, cell in enumerate(CELLS)}
    table = LeaderboardTable("ppo", 0, returns)
    assert table.total == pytest.approx(-2.0 * 45)
    assert table.total_error == pytest.approx(math.sqrt(sum(i**2 for i in range(1, 10))))  # each error is 1 (i + 1)
    assert table.to_dict()["total"] == table.total
    assert "-90.00" in table.lines()[-2]
    assert "not to be told from CardiffUni's -54.57" in table.sentence()  # of two episodes


def test_the_published_rows_add_up():
    for name, values in PUBLISHED.items():
        assert sum(values) == pytest.approx(TOTALS[name], abs=0.01)


def test_the_leaderboard_from_the_command_line(tmp_path, capsys):
    run = saved(tmp_path / "run", "plain")
    assert main(["evaluate", str(run), "--leaderboard", "--episodes", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(c["steps"], c["red"]) for c in data["cells"]] == list(CELLS)
    assert data["total"] == pytest.approx(sum(c["mean"] for c in data["cells"]))
    assert len({c["mean"] for c in data["cells"] if c["red"] == "b_line"}) == 3  # three lengths
