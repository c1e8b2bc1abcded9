"""The benchmark scripts run, at sizes that measure nothing. The peer is not needed."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from regimen.envs.registry import resolve

FOLDER = Path(__file__).parent.parent / "benchmarks"
CYBORG = {  # as much of it as is used: its reward is minus the action
    "__init__.py": "class CybORG:\n    def __init__(self, scenario, mode, agents):\n        assert scenario.endswith("
    "'Shared/Scenarios/Scenario2.yaml') and mode == 'sim' and list(agents) == ['Red']\n",
    "Agents/__init__.py": "class B_lineAgent: ...\nclass SleepAgent: ...\n",
    "Agents/SimpleAgents/__init__.py": "",
    "Agents/SimpleAgents/Meander.py": "class RedMeanderAgent: ...\n",
    "Agents/Wrappers/__init__.py": "class ChallengeWrapper:\n    def __init__(self, env, agent_name): ...\n"
    "    def reset(self): return [0] * 52\n    def get_action_space(self, agent): return 145\n"
    "    def step(self, action): return [0] * 52, -action, False, {}\n",
}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.mark.parametrize("env", ["cartpole", "gym:CartPole-v1"])
def test_steps_per_second_of_both_engines(script, env):
    harness = script("harness")
    engine = harness.make_engine(env, 2, steps=8)
    assert harness.steps_per_second(engine, 0, 2) > 0
    engine.close()


def test_schedules_are_compared_at_equal_batches(script):
    result = script("throughput").schedules(2, 16, 1, 0.0, None)
    assert result["per_update"] == pytest.approx(2 * result["length"])
    assert result["episodes"][0] > 0 and result["steps"][0] > 0


def test_compare_without_the_peer(script, capsys):
    throughput = script("throughput")
    throughput.compare([throughput.Case("tiny", "cartpole", 2, 1.0)], 1, 0.0, None)
    assert "| tiny |" in capsys.readouterr().out


PEER = """import json, sys
print("a library says something while it is imported")
print(json.dumps({"peer": "1.0"}), flush=True)
for line in sys.stdin:
    print(json.dumps({"steps_per_second": float(sys.argv[2])}), flush=True)
"""


def test_peers_in_one_run(script, tmp_path, capsys):
    """The better way of a peer counts in each round, and what a peer cannot do is left out."""
    peers = script("peers")
    (tmp_path / "peer.py").write_text(PEER)
    ways = {"SB3": {w: [sys.executable, str(tmp_path / "peer.py"), speed] for w, speed in (("1", "5"), ("2", "20"))}}
    ways["PureJaxRL"] = {"": [sys.executable, str(tmp_path / "peer.py"), "8"]}
    (case,) = peers.measure(ways, 2, 0.0, (8,))
    assert case["speeds"]["SB3, 1"] == [5.0, 5.0] and "PureJaxRL" not in case["speeds"]
    case["speeds"]["Regimen"] = [40.0, 80.0]
    assert peers.ratios(case["speeds"], "SB3") == [2.0, 4.0]
    peers.show([case], ways)
    shown = capsys.readouterr().out
    assert "peers: peer 1.0" in shown and "| 3.00 (2.00 to 4.00) | - |" in shown


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_a_browser_shows_a_folder_of_runs(script, capsys):
    pytest.importorskip("playwright.sync_api")
    script("dashboard").opening(3, 1)
    assert "| a page later |" in capsys.readouterr().out


def test_gpu_chunk(script):
    gpu = script("gpu")
    args = argparse.Namespace(env="cartpole", steps=8, seconds=0.0, repeats=1, peer=None, plain=True)
    with ThreadPoolExecutor(1) as pool:
        result = gpu.measure(args, 4, gpu.programs(args, 4, pool))
    assert set(result["rates"]) == {"chunk", "plain", "advance"} and result["compile"] > 0
    assert all(rate > 0 for rates in result["rates"].values() for rate in rates)


def test_learning_row(script, tmp_path):
    learning = script("learning")
    settings = {"rollout": {"steps": 64, "num_envs": 4}, "eval": {"every": "1", "episodes": 2}}
    row = learning.learn("cartpole", 2, 128, True, tmp_path / "runs", **settings)
    assert len(row) == len(learning.HEAD)
    assert row[:3] == ["cartpole", "128", "2"]


@pytest.mark.long
def test_a_cell_of_the_lag_table(script, tmp_path):
    """The variant with the mistake in it, which is put in for the length of one training."""
    from regimen.algorithms.impala import IMPALA
    from regimen.config.schema import ALGORITHMS

    lag = script("lag")
    settings = {"rollout": {"steps": 64, "num_envs": 4}, "eval": {"every": "1", "episodes": 2}, "network.hidden": (8,)}
    row = lag.train("impala", "inside", 1, tmp_path, "cartpole", seeds=2, total_steps=128, **settings)
    assert len(row) == len(lag.HEAD) and row[:3] == ["impala", "inside", "1"]
    with lag.weight_inside("impala"):
        assert issubclass(ALGORITHMS["impala"].load(), IMPALA) and ALGORITHMS["impala"].load() is not IMPALA
    assert ALGORITHMS["impala"].load() is IMPALA


def test_first_at():
    sys.path.insert(0, str(FOLDER))
    try:
        from learning import first_at
    finally:
        sys.path.remove(str(FOLDER))
    history = [{"env_steps": 1}, {"env_steps": 2, "eval/return_mean": 5.0}, {"env_steps": 3, "eval/return_mean": 9.0}]
    assert first_at(history, 6.0) == 3
    assert first_at(history, 10.0) is None


def test_watch_times_the_solved_line(script, tmp_path):
    watch = script("time_to_solve").watch
    solved = watch([sys.executable, "-c", "print('Eval'); print('Solved after 1,024 steps, 1 s')"], tmp_path)
    assert solved.steps == 1024 and solved.seconds is not None and solved.seconds <= solved.whole
    assert watch([sys.executable, "-c", "print('Not solved')"], tmp_path).seconds is None
    with pytest.raises(SystemExit):
        watch([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_a_run_that_never_solves_is_reported(script, capsys):
    module = script("time_to_solve")
    outcomes = {name: [module.Outcome(None, None, 2.0)] for name in module.RIVALS}
    outcomes |= {name: [module.Outcome(1.0, 512, 2.0)] for name in module.OURS}
    module.show(outcomes)
    assert "0 of 1" in capsys.readouterr().out


@pytest.mark.slow
def test_ray_scaling(script, monkeypatch, capsys):
    pytest.importorskip("ray")
    scaling = script("ray_scaling")
    monkeypatch.setattr(sys, "argv", ["ray_scaling.py", "--seconds", "0", "--rounds", "1", "--num-envs", "2"])
    scaling.main()
    assert capsys.readouterr().out.count("| 2 workers, ppo |") == len(scaling.ENVS)


def test_sac_is_compared_with_the_better_peer_of_each_round(script):
    against = script("sac_speed").against
    text = against([240.0, 200.0, 250.0], {"1 thread": [80.0, 50.0, 100.0], "default": [60.0, 100.0, 50.0]})
    assert text.startswith("2.50x, meets the target of 1.6x and the goal of 2x") and text.endswith("(2.00 to 3.00)")
    assert against([240.0], {}) == ""


def test_surprises(script, capsys):
    """Speeds take turns, and what differs between trainings are settings that exist."""
    from regimen.config.layers import build_config

    surprises = script("surprises")
    surprises.sac_seeds(1)
    out = capsys.readouterr().out
    assert "| batched |" in out and "batched / one by one: " in out
    for env, algo, cases in (("pendulum", "cql", surprises.CRITICS), ("mountain_car", "ppo", surprises.SETTLING)):
        made = [build_config(env, algo=algo, overrides=settings).algo for settings in cases.values()]
        assert len(set(made)) == len(cases)


def test_surprises_differ_in_settings_that_exist(script):
    from regimen.config.layers import build_config

    flights, ppo = script("surprises_airspace"), script("surprises_ppo")
    cases = [
        ("airspace/head_on", "cql", flights.CRITICS),
        ("airspace/merge_4all", "ppo", flights.RATES),
        ("airspace/cross_4all", "ppo", {n: s | {"total_steps": t * 1e5} for n, (t, s) in flights.SHARES.items()}),
        ("platform", "ppo", ppo.COLLAPSE),
    ]
    for env, algo, settings in cases:
        made = [build_config(env, algo=algo, overrides=given) for given in settings.values()]
        assert len({(str(c.algo), c.policy_map, c.total_steps) for c in made}) == len(settings)


@pytest.mark.long
def test_a_family_more(script):
    """It is drawn, its aircraft converge, and afterwards the generator is as it was."""
    import jax

    from regimen.domains.airspace import generator
    from regimen.envs import registry

    before = dict(generator.FAMILIES)
    with script("surprises_airspace").another_family("converging"):
        env = registry.resolve("airspace/random", {"family": "converging"}).native
        scenes = jax.vmap(lambda key: generator.draw(env, key))(jax.random.split(jax.random.key(0), 64))
        lost = jax.vmap(generator.loses_separation)(scenes)
    assert before == generator.FAMILIES
    assert np.asarray(lost).mean() > 0.5
    ends = np.asarray(scenes.waypoint)[np.asarray(scenes.present)]
    assert np.hypot(*ends.T).max() < 9  # 5 NM, in a scene that has grown


def test_every_surprise_of_a_world_can_be_asked_for(script, monkeypatch):
    """Options that an experiment reads exist: `main` calls each of them with its defaults."""
    worlds = script("surprises_worlds")
    called = []
    named = {"orders": "repaired_orders"}
    for name in worlds.EXPERIMENTS:
        function = named.get(name, name.replace("-", "_"))
        monkeypatch.setattr(worlds, function, lambda *args, name=name: called.append(name))
        monkeypatch.setattr(sys, "argv", ["surprises_worlds.py", name])
        worlds.main()
    assert called == worlds.EXPERIMENTS and len(called) == 10


def test_half_of_standardising_within_episodes(script):
    """A shift takes the sum of an episode away; a division keeps its sign. Both together are the z-scores."""
    import jax.numpy as jnp

    from regimen import rewards
    from regimen.types import Batch

    standardised = script("surprises_ppo").standardised
    done = jnp.array([0, 0, 0, 1, 0, 0, 0, 1], bool)[:, None]
    flags = {"terminated": done, "truncated": jnp.zeros_like(done), "valid": jnp.ones_like(done)}
    reward = jnp.array([1.0, 2, 3, 10, -1, -5, 0, -2])[:, None, None]
    blank = {f: None for f in Batch.__dataclass_fields__ if f not in flags}
    batch = Batch(**blank, **flags)
    with standardised("shifted only"):
        shifted = rewards.standardize_episodes(reward, batch, "zscore")
    with standardised("divided only"):
        divided = rewards.standardize_episodes(reward, batch, "zscore")
        both = rewards.standardize_episodes(shifted, batch, "zscore")
    assert np.allclose(np.asarray(shifted).reshape(2, 4).sum(1), 0, atol=1e-5)
    assert np.array_equal(np.sign(divided), np.sign(reward))
    assert np.allclose(both, rewards.standardize_episodes(reward, batch, "zscore"), atol=1e-5)


def test_lowest_later(script):
    """After the success rate was there: what was before it does not count."""
    lowest = script("ablation").lowest_later
    ended = [(i, float(ok)) for i, ok in enumerate([0, 0, 1, 1, 1, 1, 0, 0, 1, 1])]
    assert lowest(ended, 0.9, 2) == 0.0 and lowest(ended[:6], 0.9, 2) == 1.0
    assert lowest(ended[:2], 0.9, 2) is None


def test_startup_seconds(script):
    taken = script("startup").seconds([sys.executable, "-c", "pass"], 2)
    assert len(taken) == 2 and np.all(np.array(taken) > 0)


def test_dashboard_under_a_crowd(script, capsys):
    script("dashboard").answers(2, 3000, 1.0)
    out = capsys.readouterr().out
    assert "3,000 rows" in out and out.count("the target of 200 ms") == 3 and "ms per answer" in out


@pytest.mark.long
def test_offline_rows_and_verdicts(script, tmp_path):
    """From a set in a .npz file: both learners, the returns beside Q, and what is said of them."""
    import regimen

    offline = script("offline")
    folder = tmp_path / "sets"
    folder.mkdir()
    data = regimen.collect("cartpole", tmp_path / "cartpole-random", episodes=4)
    path = data.save_npz(folder / "cartpole-expert.npz")
    small = {"rollout.steps": 4, "algo.batch_size": 8, "network.hidden": (8,)}
    results = {("expert", name): offline.learn(path, name, 2, 8, 1, **small) for name in ("bc", "cql")}
    rows = [offline.row(*key[:1], r) for key, r in results.items()]
    assert all(len(row) == len(offline.HEAD) for row in rows)
    assert results["expert", "cql"]["policy_return"].shape == (2,) and results["expert", "cql"]["steps"] == 8
    assert any("Q on expert is at most" in line for line in offline.verdicts(results))


def test_offline_state_is_what_the_observation_shows(script):
    """The environment put into a row's state goes on as the data did."""
    import jax

    from regimen.envs.classic.pendulum import Pendulum

    env, offline = Pendulum(), script("offline")
    state, obs = env.reset(jax.random.key(0))
    again = offline.state_of("Pendulum", obs)
    action = np.ones(1, np.float32)
    a, b = (env.step(jax.random.key(1), s, action)[1] for s in (state, again))
    np.testing.assert_allclose(a.obs, b.obs, atol=1e-5)
    np.testing.assert_allclose(a.reward, b.reward, atol=1e-5)


def test_exact_empowerment(script, capsys):
    assert script("empowerment_exact").main(["--world", "world/tiny3", "--steps", "2", "--priors", "heuristic"]) == 0
    assert "too small to tell" in capsys.readouterr().out


def test_the_original_platform_is_told_what_the_policy_means(script, monkeypatch):
    """The game wants a tuple of all three parameters, by the number of the choice."""
    calls = []

    class Game:
        player = SimpleNamespace(position=(1035.0, 40.0))

        def reset(self, seed=None):
            return (np.full(9, 0.5), 0), {}

        def step(self, action):
            calls.append(action)
            return (np.array([1.02, *np.zeros(8)]), 7), 0.25, True, False, {}

    monkeypatch.setitem(sys.modules, "gym_platform.envs.platform_env", SimpleNamespace(PlatformEnv=Game))
    env = script("original_platform").make()
    native = resolve("platform")
    assert (env.observation_space, env.action_space) == (native.observation_space, native.action_space)
    first, _ = env.reset(seed=3)
    assert env.observation_space.contains(first)
    action = {"choice": 1, "run": np.array([5.0]), "hop": np.array([700.0]), "leap": np.array([400.0])}
    obs, reward, terminated, truncated, info = env.step(action)
    assert env.observation_space.contains(obs) and (reward, terminated, truncated) == (0.25, True, False)
    assert info == {"success": 1.0}
    number, parameters = calls[0]
    assert number == 1 and [float(p[0]) for p in parameters] == [5.0, 700.0, 400.0]


def test_the_reds_and_lengths_of_the_challenge(script, tmp_path, monkeypatch):
    """CybORG played by its own interpreter, which is this one with a game of three rewards: what is asked of it, what
    is kept, and that a second call plays only what is missing."""
    cage = script("cage_real")
    package = tmp_path / "CybORG" / "CybORG"
    for name, text in CYBORG.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    agent = (
        "class CageAgent:\n    def get_action(self, obs, space):\n        return 3\n    def end_episode(self): ...\n"
    )
    (tmp_path / "agent.py").write_text(agent)
    args = SimpleNamespace(out=tmp_path / "out.jsonl", cyborg=tmp_path, python=sys.executable, seed=0, episodes=1)
    cells = [(30, "b_line"), (50, "sleep")]
    assert {k: v.tolist() for k, v in cage.real_returns(args, tmp_path / "agent.py", cells).items()} == {
        (30, "b_line"): [-90.0],
        (50, "sleep"): [-150.0],
    }
    args.episodes = 2
    assert [len(x) for x in cage.real_returns(args, tmp_path / "agent.py", cells).values()] == [2, 2]
    rows = [json.loads(line) for line in args.out.read_text().splitlines()]
    assert [(row["steps"], row["red"], row["episode"]) for row in rows] == [(s, r, i) for i in (0, 1) for s, r in cells]


def test_network_defense_figures(script):
    defence = script("network_defense")
    rising = np.linspace(-100.0, 0.0, 2001)
    assert defence.crossing(rising, -20.0) == pytest.approx(1600 + 250, abs=2)  # the window's mean lags behind
    assert defence.crossing(rising, 1.0) is None and defence.crossing(rising[:10], -200.0) is None


def test_a_search_benchmark_takes_up_only_the_policy_it_would_train(script, tmp_path):
    """And one of a run never from the folder."""
    from regimen.experiments.search.trial import StretchResult

    class Fake:
        def __init__(self, weight):
            self.weight, self.trained = weight, 0

        def start(self, candidate, arrays, number):
            self.trained = 0

        def train(self, episodes):
            self.trained += episodes
            return StretchResult(episodes, 0.0, 0.0)

        def arrays(self):
            return {"policy": np.array([self.weight, self.trained])}

        def identity(self):
            return {"config": {"env_args": {"alignment_weight": self.weight}}}

    conditioned = script("workflow_search").conditioned
    for weight in (30, 150):
        assert conditioned(Fake(weight), 10, tmp_path)["policy"].tolist() == [weight, 10]
    again = Fake(30)
    assert conditioned(again, 10, tmp_path)["policy"].tolist() == [30, 10] and again.trained == 0
    assert conditioned(Fake(30), 0, tmp_path)["policy"].tolist() == [30, 0]
    assert len(list(tmp_path.iterdir())) == 2


def test_power_of_each_human_by_kind_of_robot(script):
    """Humans who are placed alike have the same, and more with a robot that helps than with one that acts at random."""
    bystanders = script("empowerment_bystanders")
    plain, _ = bystanders.robots(50.0)
    random, helped = bystanders.power("world/corr5", beta_r=0.0), bystanders.power("world/corr5", **plain)
    np.testing.assert_allclose([random[0], helped[0]], [random[1], helped[1]], rtol=1e-6)
    assert random[0] < helped[0] < 0
    assert bystanders.rows("world/corr5", 50.0)[0].startswith(
        f"| `world/corr5` | 0 | {random[0]:.2f} | {helped[0]:.2f} "
    )
