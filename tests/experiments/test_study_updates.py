"""The study of update strategies: its measures against known cases, its options, and a tiny study end to end."""

import csv
import dataclasses
import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from regimen.cli.main import main
from regimen.errors import ConfigError
from regimen.experiments.studies import updates
from regimen.experiments.studies.updates import sentences
from regimen.experiments.studies.updates.options import (
    FORMS,
    GAE,
    MONTE_CARLO,
    REPLAY,
    STRATEGIES,
    UpdatesOptions,
    arms_of,
    resolve_options,
)
from regimen.experiments.studies.updates.study import bound_of, gain
from regimen.statistics import Estimate

pytestmark = pytest.mark.usefixtures("compilation_cache")
TINY = {"seeds": 1, "budget": 64, "repeats": 4, "eval_episodes": 4, "checks": 2, "targets": (0.5,)}


@pytest.fixture(scope="module")
def study(tmp_path_factory, compilation_cache):
    out = tmp_path_factory.mktemp("updates") / "study"
    return updates.run("probe/match", out=out, strategies=("5 episodes",), **TINY)


# --- measures --------------------------------------------------------------------------------------------------------


def test_an_update_that_changes_nothing_gains_nothing(study):
    arm = study.options.arms[1]
    engine = study.engine(arm)
    state, carry = engine.at(engine.state, 0), engine.at(engine.carry, 0)
    batch = engine.source.next(engine.env, engine.algo, carry, engine.algo.actor_params(state), jax.random.key(0))[1]
    assert float(gain(engine.algo, state, state, batch)) == pytest.approx(0.0, abs=1e-6)
    new, _ = engine.algo.update(state, batch)
    assert float(gain(engine.algo, state, new, batch)) > 0  # what it was made on


def test_the_gain_is_the_mean_of_ratio_less_one_times_standard_advantage(study):
    arm = study.options.arms[1]
    engine = study.engine(arm)
    algo, state, carry = engine.algo, engine.at(engine.state, 0), engine.at(engine.carry, 0)
    batch = engine.source.next(engine.env, algo, carry, algo.actor_params(state), jax.random.key(1))[1]
    new, _ = algo.update(state, batch)
    reward, factors, _ = algo.bound.components.rewards(algo.config, state, batch)
    rows, _ = algo.advantages(state, batch, reward, factors)
    valid = np.asarray(batch.valid)
    out = algo.policy(new.models["policy"].params, rows.obs, rows.mask)
    log_prob = algo.joint_log_prob(algo.log_probs(out, rows.action, rows.mask)[0])
    ratio = np.exp(np.asarray(log_prob - rows.log_prob, np.float64))[valid]
    a = np.asarray(rows.advantage, np.float64).sum(-1)[valid]
    expected = ((ratio - 1) * (a - a.mean()) / a.std()).mean()
    assert float(gain(algo, state, new, batch)) == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_the_bound_of_a_rate_needs_enough_episodes():
    few, many = (
        bound_of("rate", SimpleNamespace(metrics={"rate": np.ones(n)}))  # type: ignore[arg-type]
        for n in (20, 200)
    )
    assert few < 0.95 <= many < 1


@pytest.mark.long
def test_compliance_is_measured_in_the_asked_workflow(tmp_path):
    """The part that only network defence has, with one arm, short episodes and a gate that any policy passes."""
    given = {"parts": "compliance", "strategies": "1 episode", "seeds": 1, "budget": 80, "checks": 2, "gate": 0.01}
    short = {"max_episode_steps": 20}
    options = resolve_options(
        "network_defense", short, "cpu", given | {"eval_episodes": 8, "workflow": "U,E,H,S,D"}, False
    )
    options = dataclasses.replace(options, arms=options.arms[1:])
    study = updates.UpdatesStudy(short, "cpu", options, env="network_defense", out=tmp_path)
    assert study.config(options.arms[0]).env_args == short  # the other parts reward no order
    (job,) = study.jobs()["compliance"]
    configs, bench = [], study.bench

    def record(*args, **kwargs):
        made = bench(*args, **kwargs)
        configs.append(made.config)
        return made

    study.bench = record
    assert job.work(lambda share: None) == "1 of 1 seeds complied"
    study.write()
    (row,) = study.results["parts"]["compliance"]
    (curve,) = study.gated["1 episode, GAE"]
    assert curve.episodes == [0, 2, 4] and all(0.01 < bound < 1 for bound in curve.returns)
    assert (row["episodes_to_gate"].value, row["episodes"]) == (0, 4)  # passed at the first look
    assert row["final"].value == pytest.approx(np.mean(curve.returns))
    (config,) = configs
    assert (config.env_args["workflow"], config.env_args["alignment"]) == ("U,E,H,S,D", "published")


def test_memory_counts_the_batch(study):
    row = study.results["parts"]["race"][0]
    assert row["memory"] > 5 * 4  # five one-step episodes of at least a float each
    assert row["memory"] < 100_000


# --- a study ---------------------------------------------------------------------------------------------------------


def test_every_part_is_measured_and_written(study):
    parts = study.results["parts"]
    assert list(parts) == ["race", "gradient", "overfit"]  # a probe has no workflows
    assert [r["arm"] for r in parts["race"]] == [f"5 episodes, {form}" for form in (MONTE_CARLO, GAE)]
    assert all(0 < r["budget"] <= 70 for r in parts["race"])
    assert len(parts["gradient"]) == 4 and len(parts["overfit"]) == 2
    assert study.state == "finished" and study.exit_code == 0
    for name in ("table.md", "table.csv", "summary.md", "results.json", "trade_offs.png", "curves.png"):
        assert (study.out / name).stat().st_size > 100
    rows = list(csv.DictReader((study.out / "table.csv").open()))
    final = next(r for r in rows if r["measure"] == "final" and r["arm"] == "5 episodes, GAE")
    assert float(final["value"]) == pytest.approx(parts["race"][1]["final"].value, rel=1e-4)
    saved = json.loads((study.out / "results.json").read_text())
    assert saved["raw"]["curves"]["5 episodes, GAE"][0]["steps"][-1] == parts["race"][1]["budget"]


def test_strategies_have_their_documented_settings():
    arms = arms_of(UpdatesOptions(), 100)
    by_name = {arm.name: arm for arm in arms}
    assert len(arms) == len(STRATEGIES) * len(FORMS) + 1
    steps = by_name["20,000 steps, Monte Carlo"]
    assert (steps.regimen.rollout.steps, steps.regimen.epochs, steps.steps) == (20_000, 6, 20_000)
    assert dict(steps.regimen.algo)["returns"] == "monte_carlo_z"
    assert by_name["1 episode, GAE"].regimen.epochs == 4
    assert by_name[REPLAY].algorithm == "sac" and by_name[REPLAY].share == 0.03


def row(strategy, form, value, low=math.nan, high=math.nan):
    estimates = {"steps_to_1": Estimate(value), "seconds_to_1": Estimate(value), "final": Estimate(value, low, high)}
    return {"arm": f"{strategy}, {form}", "strategy": strategy, "returns": form, "reached_1": 1} | estimates


def test_words_follow_the_intervals():
    near = sentences.form_sentence(row("5", MONTE_CARLO, 1.0, 0.5, 1.5), row("5", GAE, 1.2, 0.9, 1.6))
    assert "no difference" in near
    apart = sentences.form_sentence(row("5", MONTE_CARLO, 1.0, 0.5, 1.1), row("5", GAE, 2.0, 1.5, 2.2))
    assert "GAE ends higher" in apart
    nobody = sentences.sentences("race", [row("5", GAE, math.inf)], (1.0,), 0.95)
    assert "No strategy" in nobody[0]


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ("probe/match", {"strategies": "6 episodes", "targets": (1,)}, "did you mean '5 episodes'"),
        ("probe/match", {"parts": "compliance", "targets": (1,)}, "'compliance' is not one of race; gradient; overfit"),
        ("probe/match", {"parts": "rase"}, "did you mean 'race'"),
        ("pendulum", {}, "--targets"),
        ("probe/match", {"gate": 1.5, "targets": (1,)}, "at most 1"),
        ("network_defense", {"workflow": "D,E,S"}, "workflow"),
        ("probe/match", {"seeds": 0, "targets": (1,)}, "at least 1"),
        ("probe/match", {"strategies": "replay", "parts": "gradient"}, "gradient and overfit"),
        ("probe/match", {"repeatz": 3}, "did you mean 'repeats'"),
    ],
)
def test_bad_input_is_one_line(env, options, words):
    with pytest.raises(ConfigError) as error:
        resolve_options(env, {}, "cpu", options, False)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_commas_separate_strategies_but_not_thousands():
    o = resolve_options(
        "probe/match", {}, "cpu", {"strategies": "1 episode,20,000 steps, replay", "targets": (1,)}, False
    )
    assert o.strategies == ("1 episode", "20,000 steps", "replay")


@pytest.mark.long
def test_command_line(tmp_path, capsys):
    flags = "--seeds 1 --budget 32 --repeats 4 --eval-episodes 4 --targets 0.5 --parts race --json --quiet"
    words = ["study", "updates", "probe/match", "--strategies", "5 episodes", "--out", str(tmp_path / "s")]
    assert main([*words, *flags.split()]) == 0
    assert json.loads(capsys.readouterr().out)["study"] == "updates"
    assert main(["study", "updatez"]) == 2
    assert "did you mean 'updates'" in capsys.readouterr().err
    assert main(["study", "--help"]) == 0
    assert "updates" in capsys.readouterr().out
