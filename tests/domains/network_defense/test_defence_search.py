"""Searches over workflows with real training on `network_defense`, tiny."""

import csv
import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

import regimen
from regimen.cli import main as cli
from regimen.config.flags import parse
from regimen.domains.network_defense.search import WORKFLOW_NAMES, prepare, workflows
from regimen.domains.network_defense.trials import DefenceTrial, make_config
from regimen.domains.network_defense.verbs import SearchArgs
from regimen.domains.network_defense.workflow import Workflow
from regimen.envs.registry import resolve
from regimen.errors import ConfigError, UsageError
from regimen.experiments.search import api
from regimen.experiments.search.gate import Gate
from regimen.experiments.search.loop import Options, Search
from regimen.experiments.search.race import Race, RaceOptions
from regimen.experiments.search.store import Store

TINY = {"max_episode_steps": 12}
SPACE = workflows("b_line", "published")


@pytest.fixture(scope="module")
def trial():
    """One compiled program for all tests here."""
    config = make_config("b_line", "published", 8, None, TINY, {"network.hidden": (16,), "algo.epochs": 1})
    return DefenceTrial(SPACE, config, seed=0)


OPTIONS = Options(
    budget=320, max_episodes=16, check_every=8, check_episodes=100, eval_episodes=40, gate=Gate(0.85), inherit="nearest"
)


def test_all_orders_share_one_program(trial):
    for candidate in (0, 3, -1):
        trial.start(candidate, None, 1)
        stretch = trial.train(16)
        assert stretch.episodes == 16 and len(stretch.rows) == 2 and stretch.rate is not None
        outcome = trial.measure(40, 0)
        assert outcome.episodes == 40 and outcome.rate is not None and 0 <= outcome.rate.bound <= outcome.rate.mean <= 1
    (program,) = trial.programs.values()
    assert program.engine.program is not None and len(program.evaluator.programs) == 1


def test_the_order_is_played_and_seen(trial):
    env = trial.env_of(2, trial.program(2).handle.native)
    state, obs = env.reset(jax.random.key(0))
    wanted = SPACE.values[2]
    assert int(state.workflow) == wanted.index
    np.testing.assert_array_equal(np.asarray(obs)[52:], wanted.one_hot())
    drawn = trial.env_of(-1, trial.program(-1).handle.native)
    orders = {int(drawn.reset(jax.random.key(i))[0].workflow) for i in range(12)}
    assert len(orders) > 6


def test_it_is_the_environment_with_that_order(trial):
    """The order as data plays what `--env.workflow NAME` plays."""
    args = trial.config.env_args | {"workflow": SPACE.values[1].name}
    plain: Any = resolve("network_defense", args).native
    ordered = trial.env_of(1, trial.program(1).handle.native)
    key = jax.random.key(3)
    a, b = plain.reset(key), ordered.reset(key)
    for t in range(5):
        action = np.int32(15 + 3 * t)
        a, b = (env.step(jax.random.fold_in(key, t), s[0], action) for env, s in ((plain, a), (ordered, b)))
        np.testing.assert_array_equal(a[1].obs, b[1].obs)
        np.testing.assert_array_equal(a[1].reward, b[1].reward)


def test_a_shared_policy_is_trained_on_its_candidates_only(trial):
    env = trial.env_of_all((1, 4), trial.program(-1).handle.native)
    drawn = [int(env.reset(jax.random.key(i))[0].workflow) for i in range(40)]
    wanted = {SPACE.values[c].index for c in (1, 4)}
    assert set(drawn) == wanted and 10 < drawn.count(min(wanted)) < 30
    key = jax.random.key(7)  # all orders meet the same chances
    one, other = (trial.env_of(c, trial.program(c).handle.native).reset(key)[0] for c in (1, 4))
    assert jax.tree.map(int, one.red) == jax.tree.map(int, other.red)


RACE = RaceOptions(
    budget=400,
    warm_up=16,
    check_every=8,
    check_episodes=4,
    eval_episodes=40,
    finalists=2,
    gate=Gate(0.01, min_events=0),
)


def test_policies_of_a_race_differ_and_go_on_exactly(trial, tmp_path):
    api.run(SPACE, trial, RACE, tmp_path / "whole", names=WORKFLOW_NAMES, plots=False)
    looks = iter(range(1000))
    part = Race(SPACE, trial, RACE, Store(tmp_path / "part", WORKFLOW_NAMES), stop_requested=lambda: next(looks) >= 9)
    assert not part.run()
    trial.start(4, None, 99)  # whatever the program did meanwhile
    done = api.run(SPACE, trial, RACE, tmp_path / "part", names=WORKFLOW_NAMES, plots=False)
    for name in ("search.csv", "spending.csv"):
        assert (tmp_path / "part" / name).read_text() == (tmp_path / "whole" / name).read_text()
    first, second = (done.search.store.policy(f"policy-{k}") for k in (0, 1))
    assert any((first[n] != second[n]).any() for n in first if "params" in n)
    assert done.search.looks[0].value[0][0] != done.search.looks[0].value[0][1]
    policy = regimen.load_policy(tmp_path / "part")
    assert policy.meta["env_args"]["workflow"] == done.best
    rows = list(csv.DictReader((tmp_path / "part" / "search.csv").read_text().splitlines()))
    assert {"workflow", "reward", "compliance", "policy_1", "policy_2"} <= set(rows[0])
    assert all(Workflow.parse(r["order"]).name == r["workflow"] for r in rows)


def test_training_follows_from_where_it_starts(trial):
    trial.start(0, None, 5)
    trial.train(16)
    first = trial.arrays()
    trial.start(1, first, 6)  # takes over the weights, with a clock and randomness of its own
    trial.train(8)
    moved = trial.arrays()
    trial.start(0, None, 5)
    trial.train(8)
    half = trial.arrays()
    trial.start(0, half, -1)  # goes on exactly
    trial.train(8)
    for name, value in trial.arrays().items():
        np.testing.assert_array_equal(value, first[name], err_msg=name)
    assert any((moved[n] != first[n]).any() for n in first if "params" in n)


def test_a_search_with_training_and_its_files(trial, tmp_path):
    found = api.run(SPACE, trial, OPTIONS, tmp_path / "s", names=WORKFLOW_NAMES, command="regimen search")
    rows = list(csv.DictReader((tmp_path / "s" / "search.csv").read_text().splitlines()))
    assert len(rows) == found.summary["trials"] >= 3
    wanted = "iteration workflow order acquisition mean std reward compliance compliance_bound episodes feasible cause"
    assert set(wanted.split()) <= set(rows[0])
    assert all(Workflow.parse(r["order"]).name == r["workflow"] for r in rows)
    training = list(csv.DictReader((tmp_path / "s" / "training.csv").read_text().splitlines()))
    wanted = "workflow order update episodes env_return alignment compliance fixes seconds"
    assert set(wanted.split()) <= set(training[0])
    assert sum(int(r["episodes"]) for r in training) == sum(int(r["episodes"]) for r in rows)
    assert found.summary["episodes"] == int(rows[-1]["total_episodes"]) <= 320
    assert len(found.summary["model"]["posterior"]) == 5
    for name in ("posterior", "progress", "compliance"):
        assert (tmp_path / "s" / "plots" / f"{name}.png").stat().st_size > 5000
    if found.summary["best"] is None:
        assert not any(int(r["feasible"]) for r in rows)


def test_interrupted_training_goes_on_exactly(trial, tmp_path):
    api.run(SPACE, trial, OPTIONS, tmp_path / "whole", plots=False)
    looks = iter(range(100))
    part = Search(SPACE, trial, OPTIONS, Store(tmp_path / "part"), stop_requested=lambda: next(looks) >= 6)
    assert not part.run() and part.running is not None
    trial.start(4, None, 99)  # whatever the program did meanwhile
    api.run(SPACE, trial, OPTIONS, tmp_path / "part", plots=False)
    for name in ("search.csv",):
        assert (tmp_path / "part" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_the_best_policy_can_be_loaded(trial, tmp_path):
    easy = dataclasses.replace(OPTIONS, gate=Gate(0.01, min_events=0), budget=160, check_episodes=20)
    found = api.run(SPACE, trial, easy, tmp_path / "s", names=WORKFLOW_NAMES, plots=False)
    assert found.best is not None
    policy = regimen.load_policy(tmp_path / "s")
    assert policy.meta["env_args"]["workflow"] == found.best
    assert 0 <= policy.act(np.zeros(77, np.float32)) < 145


def test_a_policy_that_was_only_evaluated_is_kept_too(trial, tmp_path):
    """And can be watched."""
    only = dataclasses.replace(OPTIONS, gate=Gate(0.01, min_events=0), budget=80, max_episodes=0)
    found = api.run(SPACE, trial, only, tmp_path / "s", names=WORKFLOW_NAMES, plots=False)
    policy = regimen.load_policy(tmp_path / "s")
    assert policy.meta["env_args"]["workflow"] == found.best
    for mine, first in zip(jax.tree.leaves(policy.params), jax.tree.leaves(first_params(trial))):
        np.testing.assert_array_equal(mine, first)
    assert cli.main(["replay", str(tmp_path / "s" / "policy"), "--no-gif"]) == 0
    rows = list(csv.DictReader((tmp_path / "s" / "policy" / "replays" / "seed-0.csv").read_text().splitlines()))
    assert 1 <= len(rows) <= 13


def first_params(trial):
    program = trial.program(0)
    return program.engine.algo.actor_params(program.first)


def test_methods_compared(trial, tmp_path):
    easy = dataclasses.replace(OPTIONS, gate=Gate(0.01, min_events=0), max_episodes=0, eval_episodes=40, budget=120)
    found = api.compare(SPACE, trial, easy, tmp_path / "c", names=WORKFLOW_NAMES, plots=False)
    assert set(found) == {"gp", "random", "round_robin", "exhaustive"}
    assert [v.candidate for v in found["exhaustive"].search.verdicts] == list(range(5))
    told = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert told["methods"]["exhaustive"]["regret"] == 0
    assert all(m["regret"] >= 0 for m in told["methods"].values())
    assert (tmp_path / "c" / "plots" / "regret.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--gate", "0"], 3, "gate: 0 is out of range"),
        (["--gate", "1.5"], 3, "gate: 1.5 is out of range"),
        (["--budget", "50", "--preset", "quick"], 3, "50 episodes are too few, the least is 560"),
        (["--budget", "50", "--preset", "quick", "--inherit", "start"], 3, "too few for one candidate"),
        (["--preset", "quick", "--check-every", "10"], 3, "at least one update (25 episodes)"),
        (["--preset", "quick", "--check-every", "10", "--inherit", "start"], 3, "less than one update (25 episodes)"),
        (["--preset", "quick", "--check-episodes", "10", "--inherit", "nearest"], 3, "can never meet a gate of 0.95"),
        (["--policies", "1"], 3, "--policies: 1 is too small"),
        (["--policies", "3", "--inherit", "start"], 2, "--policies is for orders that share their training"),
        (["--inherit", "shared", "--patience", "3"], 2, "--patience is for orders that are trained one by one"),
        (["--method", "race", "--inherit", "start"], 2, "leave out --inherit start"),
        (["--preset", "quick", "--eval-episodes", "50"], 3, "--eval-episodes: 50 can never meet a gate of 0.95"),
        (["--preset", "quick", "--warm-up", "10"], 3, "--warm-up: 10 is too small"),
        (["--preset", "quick", "--warm-up", "10", "--inherit", "start"], 3, "--warm-up: 10 is less than one update"),
        (["--compare", "--method", "gp"], 2, "leave out --method gp"),
        (["--preset", "quick", "--env.modee", "fixed"], 3, "modee"),
        (["--max-episodes-per-workflow", "0", "--preset", "quick"], 3, "name a policy with --init-from"),
        (["--env.workflow", "D,S,E,H,U"], 3, "the search chooses it"),
        (["--red", "bline"], 3, "--red"),
        (["--mehtod", "gp"], 2, "did you mean '--method'"),
        (["--init-from", "nowhere"], 6, "nowhere"),
    ],
)
def test_bad_commands(flags, code, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["search", "network_defense", *flags]) == code
    assert says in capsys.readouterr().err
    assert not (tmp_path / "searches").exists()


def test_only_what_can_be_searched(capsys):
    assert cli.main(["search", "cartpole"]) == 2
    assert "there is no search for 'cartpole'" in capsys.readouterr().err


FACTORY = """
from regimen.experiments.search import space
from regimen.experiments.search.loop import Options

class Quick:
    unit, compiling = 1, False

def make(seed=5):
    options = Options(40, 0, 1, 1, 4, method="random", acquisition="thompson", kappa=3.0, seed=seed)
    return space.permutations("abc"), Quick(), options
"""


def test_a_factory_keeps_its_options(tmp_path):
    """Only flags that were given change them."""
    file = tmp_path / "mine.py"
    file.write_text(FACTORY)

    def options(*flags):
        return prepare(parse(SearchArgs, [f"{file}:make", *flags], "search"))[2]

    mine = options()
    assert (mine.method, mine.acquisition, mine.kappa, mine.seed) == ("random", "thompson", 3.0, 5)
    changed = options("--method", "gp", "--seed", "7", "--budget", "80")
    assert changed == dataclasses.replace(mine, method="gp", seed=7, budget=80)
    for flags in ("--gate 0", "--gate 0.9", "--red b_line", "--preset quick", "--init-from x", "--orders all"):
        with pytest.raises(UsageError, match=f"{flags.split()[0]} is for network_defense"):
            options(*flags.split())
    for flags in ("--episodes-per-update 5", "--compliance repaired", "--env.mode fixed"):
        with pytest.raises(UsageError, match=f"{flags.split()[0]} is for network_defense"):
            options(*flags.split())


def test_classes_are_of_workflows(capsys):
    assert cli.main(["search", "cartpole", "--classes"]) == 2
    assert "there is no search for 'cartpole'" in capsys.readouterr().err


def test_classes_are_printed(capsys):
    assert cli.main(["search", "network_defense", "--classes"]) == 0
    assert "120 orders, 16 that can be told apart" in capsys.readouterr().out
    assert (
        cli.main(["search", "network_defense", "--classes", "--red", "b_line", "--compliance", "repaired", "--json"])
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["classes"] == 6 and sum(m["size"] for m in told["members"]) == 120


def test_policies_that_see_no_workflow_are_refused(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("env: network_defense\nenv_args: {red: b_line}\n")
    with pytest.raises(ConfigError, match="does not see a workflow"):
        make_config("b_line", "published", 8, run, {}, {})
    (run / "config.yaml").write_text("env: network_defense/workflow\nenv_args: {workflow: none, alignment: none}\n")
    with pytest.raises(ConfigError, match="does not see a workflow"):
        make_config("b_line", "published", 8, run, {}, {})
    (run / "config.yaml").write_text("env: cartpole\n")
    with pytest.raises(ConfigError, match="is a run on 'cartpole'"):
        make_config("b_line", "published", 8, run, {}, {})


def test_policies_that_see_a_workflow_are_taken_with_their_settings(tmp_path):
    """Whether the run says so, or its environment by default."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("env: network_defense/workflow\nenv_args: {alignment_weight: 150, mode: fixed}\n")
    config = make_config("b_line", "published", 8, run, {"mode": "faithful"}, {})
    assert config.env == "network_defense" and config.env_args == {
        "red": "b_line", "compliance": "published", "workflow": "all", "alignment": "published",
        "alignment_weight": 150, "mode": "faithful",
    }  # fmt: skip
    (run / "config.yaml").write_text("env: network_defense\nenv_args: {workflow: all, alignment: potential}\n")
    assert make_config("b_line", "published", 8, run, {}, {}).env_args["alignment"] == "potential"


@pytest.mark.slow  # compiles a training of its own
@pytest.mark.parametrize(
    ("env", "env_args"),
    [
        ("network_defense/workflow", {}),
        ("network_defense", {"red": "b_line", "workflow": "all", "alignment": "published"}),
    ],
)
def test_a_search_begins_from_a_trained_policy(tmp_path, env, env_args):
    """`--init-from RUN --max-episodes-per-workflow 0`: one conditioned policy, evaluated order by order."""
    regimen.train(
        env,
        env_args=TINY | env_args,
        out=str(tmp_path / "run"),
        track=False,
        total_episodes=16,
        **{
            "rollout.episodes": 8,
            "rollout.num_envs": 8,
            "network.hidden": (16,),
            "algo.epochs": 1,
            "eval.every": "never",
        },
    )
    flags = ["--red", "b_line", "--init-from", str(tmp_path / "run"), "--max-episodes-per-workflow", "0"]
    flags += ["--eval-episodes", "90", "--budget", "180", "--quiet"]
    code = cli.main(["search", "network_defense", *flags, "--out", str(tmp_path / "s")])
    summary = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert code == int(summary["best"] is None)  # by chance, some policies of a few updates meet the gate
    rows = list(csv.DictReader((tmp_path / "s" / "search.csv").read_text().splitlines()))
    assert len(rows) == 2 and {r["cause"] for r in rows} == {"no training"}
    state = json.loads((tmp_path / "s" / "state.json").read_text())
    assert state["identity"]["trial"]["config"]["env_args"]["max_episode_steps"] == 12
    assert state["identity"]["trial"]["config"]["network"]["hidden"] == [16]
    assert cli.main(["search", "network_defense", *flags, "--gate", "0.9", "--out", str(tmp_path / "s")]) == 6
