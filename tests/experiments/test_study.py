"""The batching study: estimators against known cases, definitions on synthetic curves, and a tiny study end to end."""

import csv
import dataclasses
import json
import math
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from regimen.cli.main import main
from regimen.cli.study import BatchingArgs
from regimen.config import layers
from regimen.config.schema import RolloutConfig
from regimen.envs import registry
from regimen.errors import ConfigError, StorageError
from regimen.experiments.studies import batching, bench, curves
from regimen.experiments.studies.batching import sentences
from regimen.experiments.studies.batching.options import PARTS, BatchingOptions, resolve_options
from regimen.experiments.studies.batching.rows import Outliers, outlier_row
from regimen.experiments.studies.bench import Injected, OutlierSource, Recipe
from regimen.experiments.studies.curves import Curve, collapsed, estimate, median, ratio, reached, recovery
from regimen.experiments.studies.frame import Lines
from regimen.experiments.studies.gradients import GradientNoise, groups
from regimen.experiments.studies.report import encoded
from regimen.runs.build import make_engine
from regimen.statistics import Estimate

pytestmark = pytest.mark.usefixtures("compilation_cache")
DEVIATION, MEAN = np.array([3.0, 2.0, 1.0, 0.5]), np.array([1.0, -1.0, 0.0, 2.0])
TRACE, SIGNAL = float((DEVIATION**2).sum()), float((MEAN**2).sum())  # 14.25 and 6


def vectors(rng, count, n=1):
    """Means of n vectors of known covariance, as the gradient of a rollout of n episodes would be."""
    return MEAN + DEVIATION * rng.normal(size=(count, n, 4)).mean(1)


# --- noise of a gradient ---------------------------------------------------------------------------------------------


def test_noise_and_signal_are_the_unbiased_estimates():
    x = vectors(np.random.default_rng(0), 50)
    sample = GradientNoise.of(x, MEAN)
    trace = np.trace(np.cov(x.T))
    assert sample.trace == pytest.approx(trace)
    assert sample.signal == pytest.approx((x.mean(0) ** 2).sum() - trace / 50)
    assert sample.signal_to_noise().value == pytest.approx(sample.signal / trace)
    expected = [v @ MEAN / np.linalg.norm(v) / np.linalg.norm(MEAN) for v in x]
    np.testing.assert_allclose(sample.cosines, expected)
    assert sample.cosine().contains(np.mean(expected))


def test_intervals_hold_the_known_noise_and_signal_about_as_often_as_they_say():
    noise, signal = [], []
    for i in range(60):
        sample = GradientNoise.of(vectors(np.random.default_rng(i), 60), MEAN)
        noise.append(sample.noise().contains(TRACE))
        signal.append(sample.signal_to_noise().contains(SIGNAL / TRACE))
    assert np.mean(noise) > 0.8 and np.mean(signal) > 0.8


def test_noise_of_independent_episodes_falls_as_one_over_n():
    rng = np.random.default_rng(3)
    base = GradientNoise.of(vectors(rng, 400), MEAN)
    values = []
    for n in (2, 5, 20):
        e = GradientNoise.of(vectors(rng, 400, n), MEAN).relative_noise(base)
        assert e.low < 1 / n < e.high and e.high < 1, n
        values.append(e.value)
    assert values == sorted(values, reverse=True)


def test_without_noise_there_is_no_ratio():
    still = GradientNoise.of(np.ones((8, 3)), np.ones(3))
    moving = GradientNoise.of(np.random.default_rng(0).normal(size=(8, 3)), np.ones(3))
    assert still.trace == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(moving.relative_noise(still).value)
    assert still.relative_noise(moving).value == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_array_equal(GradientNoise.of(np.zeros((4, 3)), np.ones(3)).cosines, np.zeros(4))


# --- curves ----------------------------------------------------------------------------------------------------------


def test_reached_is_the_first_time_and_never_is_infinite():
    assert reached([0, 10, 20, 30], [1, 5, 3, 6], 5) == 10
    assert reached([0, 10], [7, 1], 5) == 0
    assert reached([0, 10], [1, 4.9], 5) == math.inf


def test_medians_count_seeds_that_never_got_there_as_late():
    assert estimate([1, 2, 3, math.inf, math.inf], median).value == 3
    late = estimate([1, 2, math.inf, math.inf, math.inf], median)
    assert late.value == math.inf and late.high == math.inf and late.low in (1, 2, math.inf)
    few = estimate([4.0, 5.0, 6.0], median)
    assert few.value == 5 and math.isnan(few.low), "three values have no interval worth the name"


def test_ratios_of_medians_with_seeds_that_never_got_there():
    fast, slow, never = [10, 11, 12, 13, 14], [100, 110, 120, 130, 140], [math.inf] * 5
    e = ratio(fast, slow)
    assert e.value == pytest.approx(0.1) and e.excludes(1.0) and e.high < 0.2
    assert ratio(fast, fast).contains(1.0)
    assert ratio(fast, never).value == 0 and ratio(never, fast).value == math.inf
    assert math.isnan(ratio(never, never).value)
    some = ratio([10, 20, 30, math.inf, math.inf], [10, 20, 30, math.inf, math.inf])
    assert some.low < 1 < some.high == math.inf, "what is unknown widens the interval"


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([0, 20, 40, 40, 40], None),  # never half-way to 100
        ([0, 60, 80, 90, 100], False),
        ([0, 60, 80, 30, 20], True),
        ([0, 60, 80, 30, 20, 90, 95], False),  # came back
        ([0, 60, 80, 30, 60], False),  # only once below half of its best
        ([0, 60, 80, 50, 45], False),  # lower, but not below half
        ([0, 60, 20], False),  # one evaluation is not staying
    ],
)
def test_collapse(returns, expected):
    assert collapsed(returns, floor=0.0, target=100.0) is expected
    shifted = [10 * r - 1000 for r in returns]  # the same way in other units, as negative returns have
    assert collapsed(shifted, floor=-1000.0, target=0.0) is expected


def test_a_target_at_or_below_the_start_leaves_nothing_to_lose():
    assert collapsed([5, 5, 5], floor=5.0, target=5.0) is None


def test_recovery():
    updates = [1, 2, 3, 5, 8]
    assert recovery(updates, [99, 95, 98, 100, 91], before=100, floor=0) == 0
    assert recovery(updates, [40, 60, 91, 20, 99], before=100, floor=0) == 3
    assert recovery(updates, [99, 20, 60, 95, 99], before=100, floor=0) == 5, "damage may show later"
    assert recovery(updates, [10, 10, 10, 10, 89], before=100, floor=0) == math.inf
    assert recovery(updates, [-205, -400, -210, -200, -200], before=-200, floor=-1200) == 3


def test_an_outlier_row_is_the_loss_against_its_control():
    """Two seeds at 100 before: the outlier takes 60 and 40 more than the update without it did."""

    def arm(*returns):
        return [Curve(k, [0, 1], [1, 2], [0, 1], list(r), [], [], []) for k, r in enumerate(returns)]

    control, outlier = arm((90, 98), (90, 97)), arm((30, 95), (50, 20))
    row = outlier_row(Outliers(np.array([100.0, 100.0]), np.zeros(2), control, outlier))
    assert row["drop"].value == 50.0
    assert (row["deepest"].value, row["deepest_control"].value) == (75.0, 10.0)
    assert (row["fell"], row["never"], row["fell_control"]) == (2, 1, 0)


def test_average_and_final_return():
    curve = Curve(0, [0, 50, 100], [0, 1, 2], [0, 1, 2], [0.0, 10.0, 10.0], [], [], [])
    assert curves.average(curve, 100) == pytest.approx(7.5, abs=0.1)
    assert curves.final(curve, last=2) == 10.0


# --- words -----------------------------------------------------------------------------------------------------------


def race(name, steps, updates, **more):
    row = {"name": name, "episodes": None, "reached": 5, "seeds": 5, "final": Estimate(480.0, 470.0, 490.0)}
    return (
        row
        | {"steps_to_target": Estimate(100.0, 90.0, 110.0), "updates_to_target": Estimate(9.0, 8.0, 10.0)}
        | ({"steps_ratio": steps, "updates_ratio": updates} if steps else {})
    )


def test_words_follow_the_intervals():
    rows = [
        race("1 episode", None, None),
        race("10 episodes", Estimate(0.9, 0.7, 1.2), Estimate(0.1, 0.05, 0.2)),
        race("20 episodes", Estimate(1.5, 1.2, 1.9), Estimate(math.nan)),
        race("two seeds", Estimate(0.5), Estimate(0.5)),
    ]
    text = sentences.race_sentences(rows, "475", 1000)
    assert "0.9 times (0.7 to 1.2) the steps of 1 episode (no difference can be told)" in text[1]
    assert "0.1 times (0.05 to 0.2) the updates (fewer)" in text[1]
    assert "the steps of 1 episode (more)" in text[2]
    assert "too few values for an interval" in text[3] and "fewer" not in text[3]


def test_words_on_a_target_that_half_of_the_seeds_did_not_reach():
    never, there = Estimate(math.inf, 900.0, math.inf), Estimate(100.0, 90.0, 110.0)
    rows = [race("1 episode", None, None), race("late", Estimate(math.inf, 9.0, math.inf), Estimate(math.nan))]
    rows[1] |= {"steps_to_target": never, "reached": 2}
    assert "at least 10 times the steps of 1 episode (more)" in sentences.race_sentences(rows, "475", 1000)[1]
    rows = [race("late", None, None) | {"steps_to_target": never}, race("10 episodes", Estimate(0.0, 0.0, 0.2), None)]
    rows[1] |= {"steps_to_target": there, "updates_ratio": Estimate(math.nan)}
    assert "at most 0.1 times the steps of late (fewer)" in sentences.race_sentences(rows, "475", 1000)[1]


@pytest.mark.parametrize(
    ("relative", "words"),
    [
        (Estimate(0.1, 0.08, 0.12), "-90% (-92% to -88%), in agreement with 1/n (-90%)"),
        (Estimate(0.3, 0.2, 0.4), "less than 1/n"),
        (Estimate(0.05, 0.04, 0.06), "more than 1/n"),
        (Estimate(0.9, 0.7, 1.2), "no effect can be told"),
        (Estimate(0.3), "too few values"),
    ],
)
def test_words_on_noise(relative, words):
    assert words in sentences.reduction({"relative_noise": relative, "expected": 0.1})


def test_an_outlier_without_effect_is_not_called_a_loss():
    row = {"size": 1, "factor": 100.0, "seeds": 4, "fell": 0, "fell_control": 0, "never": 0, "recovery": Estimate(0.0)}
    assert "(a loss)" in sentences.outlier_sentence(row | {"drop": Estimate(50.0, 20.0, 80.0)})
    assert "(no loss can be told)" in sentences.outlier_sentence(row | {"drop": Estimate(5.0, -20.0, 30.0)})
    assert "(the return rose)" in sentences.outlier_sentence(row | {"drop": Estimate(-5.0, -7.0, -3.0)})


# --- regimens and the outlier ----------------------------------------------------------------------------------------


def test_presets_give_the_regimen_and_nothing_else():
    single, parallel = (Recipe.preset(name, 500, "cpu") for name in ("single_episode", "parallel_25"))
    assert (single.rollout.episodes, single.epochs) == (1, 1) and single.minibatch_size >= 500 and single.lr is None
    assert (parallel.rollout.episodes, parallel.rollout.num_envs, parallel.lr) == (25, 25, 2e-3)
    config = layers.build_config("cartpole")
    mine = parallel.apply(config)
    assert (mine.algo.gamma, mine.algo.lr, mine.algo.epochs) == (config.algo.gamma, config.algo.lr, 4)
    assert dict(Recipe.preset("big_batch", 500, "cpu").env_args) == {"max_episode_steps": 100}
    assert dict(Recipe.preset("big_batch", 50, "cpu").env_args) == {}, "episodes are never made longer"


def test_an_outlier_multiplies_one_episode_of_the_batch_only():
    overrides = {"rollout.episodes": 6, "rollout.num_envs": 2, "network.hidden": (4,)}
    config = layers.build_config("probe/components", overrides=overrides)
    engine = make_engine(config, registry.resolve("probe/components"), [0], lambda: False)
    source, params = OutlierSource(engine.source), engine.algo.actor_params(engine.state)

    @jax.jit
    def batch_of(factor):
        env = Injected(engine.env, factor)
        return source.next(
            env, engine.algo, source.init(env, engine.algo, jax.random.key(0)), params, jax.random.key(1)
        )[1:3]

    (plain, rows), (hit, hit_rows) = jax.device_get((batch_of(1.0), batch_of(50.0)))
    expected = plain.reward.copy()
    expected[:4, 0] *= 50  # episodes of 4 steps
    assert np.abs(plain.reward[:4, 0]).sum() > 0
    np.testing.assert_array_equal(hit.reward, expected)
    np.testing.assert_array_equal(hit.obs, plain.obs)
    np.testing.assert_array_equal(hit_rows.reward, rows.reward, err_msg="reported returns are those of the environment")


# --- a tiny study ----------------------------------------------------------------------------------------------------

TINY = {
    "sizes": (1, 4),
    "presets": (),
    "seeds": 2,
    "budget": 64,
    "target": 3.0,
    "repeats": 32,
    "epochs": 1,
    "epochs_tried": (1,),
    "epochs_at": 4,
    "rates": (1.0, 3.0),
    "eval_episodes": 2,
    "checks": 4,
    "overrides": {"network.hidden": (8,)},
}
ENV = "probe/components"  # four steps; action 1 pays 0.75 each


@pytest.fixture(scope="module")
def study(tmp_path_factory, compilation_cache):
    return batching.run(ENV, out=tmp_path_factory.mktemp("study"), command="regimen study batching", **TINY)


@pytest.mark.long
def test_every_part_is_measured_and_written(study):
    assert study.state == "finished" and study.exit_code == 0 and study.finished == list(PARTS)
    stored = json.loads((study.out / "results.json").read_text())
    assert (stored["command"], stored["seeds"], stored["target"]) == ("regimen study batching", [0, 1], 3.0)
    assert list(stored["parts"]) == list(PARTS) and stored["sentences"] == study.results["sentences"]
    assert len(stored["parts"]["gradient"]) == 3 * 2 * 3 * 2  # policies, advantages, groups, sizes
    assert [row["name"] for row in stored["parts"]["target"]] == ["1 episode", "4 episodes"]
    assert [(r["size"], r["scale"]) for r in stored["parts"]["rates"]] == [(1, 1), (1, 3), (4, 1), (4, 3)]
    assert len(stored["raw"]["runs"]) == 4 and len(stored["raw"]["gradient"][0]["norms"]) == TINY["repeats"]
    plots = {path.stem for path in study.out.glob("*.png")}
    assert plots == {"gradient_variance", "gradient_signal", "target", "curves", "stability", "entropy"} | {
        "epochs",
        "rates",
        "outlier",
    }
    assert all((study.out / f"{name}.png").stat().st_size > 5000 for name in plots)


@pytest.mark.long
def test_tables_and_summary_hold_the_numbers(study):
    with open(study.out / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["part"] for row in rows} == set(PARTS)
    cell = next(r for r in rows if r["setting"].startswith("name=4 episodes") and r["measure"] == "final")
    final = study.results["parts"]["target"][1]["final"]
    assert float(cell["value"]) == final.value and cell["low"] == "" and math.isnan(final.low)
    table, summary = (study.out / "table.md").read_text(), (study.out / "summary.md").read_text()
    assert all(f"## {heading}" in table for heading in study.texts["headings"].values())
    assert "regimen study batching" in summary and "update every 4 episodes" in summary
    assert all(sentence in summary for sentence in study.results["sentences"])


@pytest.mark.long
def test_noise_falls_with_the_rollout_on_a_probe(study):
    for policy in ("initial", "halfway", "late"):
        e = next(
            row["relative_noise"]
            for row in study.results["parts"]["gradient"]
            if (row["policy"], row["advantages"], row["group"], row["size"]) == (policy, "raw", "all", 4)
        )
        assert e.high < 1 and 0.05 < e.value < 0.6, policy


def test_groups_are_the_parameters_of_actor_and_critic():
    params = {"actor": np.zeros(2), "critic": np.zeros(3), "log_std": np.zeros(1)}
    state: Any = SimpleNamespace(models={"policy": SimpleNamespace(params=params)})
    parts = groups(state, 6)
    assert parts["policy"].tolist() == [True, True, False, False, False, True]
    assert parts["critic"].tolist() == [False, False, True, True, True, False]
    assert parts["all"].all()
    assert list(groups(state, 7)) == ["all"], "another layout of the vector is not guessed at"


@pytest.mark.long
def test_curves_begin_at_the_initial_policy_and_keep_to_the_budget(study):
    for race in study.races.values():
        for c in race.curves:
            assert c.steps[0] == c.updates[0] == 0 and math.isnan(c.entropy[0])
            assert c.steps == sorted(set(c.steps)) and 64 <= c.steps[-1] < 64 + 4 * race.regimen.rollout.episodes
            assert c.updates[-1] * race.regimen.rollout.episodes == c.episodes[-1] == c.steps[-1] / 4
            assert 0 < c.entropy[-1] <= math.log(2) + 1e-6 and -1e-6 <= c.training[-1] <= 3
    small, large = (study.races[study.key(study.size(n))].curves[0] for n in (1, 4))
    assert small.returns[0] == large.returns[0], "every regimen starts from the same policies"


@pytest.mark.long
def test_a_training_started_again_is_the_same_and_another_rate_is_not(study):
    regimen = study.size(4)
    again = study.bench(regimen).train(study.lr)
    first = study.races[study.key(regimen)].curves
    assert [c.entropy[1:] for c in again] == [c.entropy[1:] for c in first]
    assert [c.entropy[1:] for c in study.races[study.key(regimen, 3.0)].curves] != [c.entropy[1:] for c in first]


@pytest.mark.long
def test_the_control_of_an_outlier_goes_on_as_the_training_did(study):
    regimen = study.size(4)
    bench, curve = study.bench(regimen), study.races[study.key(regimen)].curves[0]
    control = bench.after_outlier(study.lr, 1.0, (1, 2))[0]
    at = curve.steps.index(int(bench.middle.steps[0]))
    assert control.updates == [1, 2]
    assert control.entropy[0] == pytest.approx(curve.entropy[at + 1]), "one evaluation later is one update later"
    hit = bench.after_outlier(study.lr, 1e4, (1, 2))[0]
    assert hit.entropy[1] != control.entropy[1]


def test_json_says_never_as_null():
    row = {"steps": Estimate(math.inf, 5.0, math.inf), "ratio": Estimate(math.nan)}
    assert encoded(row)["steps"] == {"value": None, "low": 5.0, "high": None}
    json.dumps(encoded(row), allow_nan=False)


class Impatient(Lines):
    """Interrupts once, when a line that begins so is printed."""

    def __init__(self, begins: str):
        super().__init__(quiet=True)
        self.begins, self.lines = begins, []

    def line(self, text):
        self.lines.append(text)
        if text.startswith(self.begins):
            self.begins = "\0"
            raise KeyboardInterrupt


def test_an_interrupted_study_keeps_what_is_measured(tmp_path):
    console = Impatient("[2/")  # the first of two further rates
    options = TINY | {"parts": ("target", "rates"), "sizes": (4,), "rates": (1.0, 2.0, 3.0)}
    study = batching.run(ENV, out=tmp_path, console=console, **options)
    assert study.state == "interrupted" and study.exit_code == 130 and study.finished == ["target"]
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["state"] == "interrupted" and len(stored["raw"]["runs"]) == 2
    assert len(stored["parts"]["target"]) == 1 and [row["scale"] for row in stored["parts"]["rates"]] == [1.0, 2.0]
    assert "Interrupted: rates not finished" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "target.png").exists() and (tmp_path / "rates.png").exists()
    heads = [line for line in console.lines if line.startswith("[")]
    assert [h.partition(" ")[0] for h in heads] == ["[1/3]", "[2/3]"] and "left" in heads[0]


# --- options and bad input -------------------------------------------------------------------------------------------


def test_quick_changes_only_what_was_not_asked_for():
    quick = resolve_options({"seeds": BatchingOptions().seeds, "sizes": [10, 1, 10], "budget": None}, quick=True)
    assert quick.seeds == BatchingOptions().seeds and quick.sizes == quick.gradient_sizes == (1, 10)
    assert quick.budget is not None and quick.repeats < BatchingOptions().repeats
    assert resolve_options({"parts": "rates,gradient"}, quick=False).parts == ("gradient", "rates")


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ("gym:CartPole-v1", {"parts": ("gradient", "target")}, "--parts: gradient begin.*choose from target, epochs"),
        ("cartpole", {"parts": ("gradiant",)}, "--parts: 'gradiant' is not a part; did you mean 'gradient'"),
        ("cartpole", {"parts": ()}, "--parts: nothing to measure"),
        ("cartpole", {"sizes": (0, 5)}, "--sizes"),
        ("cartpole", {"seeds": 0}, "--seeds: 0 is out of range"),
        ("cartpole", {"factor": -1.0}, "--factor"),
        ("cartpole", {"size": (1,)}, "unknown option 'size'; did you mean 'sizes'"),
        ("probe/match", {}, "--target: probe/match has no return threshold"),
        ("cartpol", {}, "unknown environment 'cartpol'; did you mean 'cartpole'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(env, options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        batching.run(env, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_gymnasium_environment_is_trained_seed_by_seed(tmp_path):
    """The parts that only train, on an environment that Python steps; a seed's curve is that of a run of its own."""
    settings = {"sizes": (1, 2), "presets": (), "budget": 200, "eval_episodes": 2, "checks": 2, "target": 20.0}
    settings |= {"epochs_tried": (1,), "epochs_at": 2, "rates": (1.0, 3.0), "overrides": {"network.hidden": (8,)}}
    study = batching.run("gym:CartPole-v1", out=tmp_path / "two", seeds=2, **settings)
    assert list(study.results["parts"]) == ["target", "epochs", "rates"] and study.exit_code == 0
    races = json.loads((study.out / "results.json").read_text())["raw"]["runs"]
    assert [len(race["seeds"]) for race in races] == [2] * len(races) and len(races) == 5
    for race in races:
        for curve in race["seeds"]:
            assert curve["steps"][0] == 0 and curve["steps"][-1] >= 200 and len(curve["returns"]) == len(curve["steps"])
    assert "2 episodes" in (study.out / "summary.md").read_text()
    alone = batching.run(
        "gym:CartPole-v1", out=tmp_path / "one", seeds=1, seed=1, **(settings | {"parts": ("target",)})
    )
    again = json.loads((alone.out / "results.json").read_text())["raw"]["runs"]
    for name in ("returns", "steps", "updates"):
        assert again[0]["seeds"][0][name] == races[0]["seeds"][1][name]


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(StorageError, match="--out"):
        batching.run(ENV, out=tmp_path, **TINY)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_command_line(monkeypatch, tmp_path, capsys):
    seen = {}

    def record(env, **kwargs):
        seen.update(kwargs, env=env)
        return dataclasses.replace(study_of(tmp_path), results={"sentences": ["x"]} | dict.fromkeys(KEPT))

    monkeypatch.setattr(batching, "run", record)
    argv = ["study", "batching", "pendulum", "--target", "-200", "--sizes", "1", "10", "--budget", "1e4", "--quick"]
    assert main([*argv, "--parts", "gradient,target", "--env.gravity", "9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == ["x"]
    assert (seen["env"], seen["target"], seen["sizes"], seen["budget"]) == ("pendulum", -200.0, (1, 10), 10_000)
    assert seen["quick"] and seen["parts"] == "gradient,target" and seen["env_args"] == {"gravity": 9}
    assert seen["command"].startswith("regimen study batching pendulum --target -200")
    assert {f.name for f in dataclasses.fields(BatchingArgs)} - {"study", "json", "quiet"} <= set(seen)


KEPT = ("study", "state", "env", "target", "budget", "seeds", "seconds", "finished", "parts")


def study_of(path):
    config, handle = layers.build_config("cartpole"), registry.resolve("cartpole")
    return batching.BatchingStudy(config, handle, BatchingOptions(budget=1), env=handle.id, out=path)


def test_command_line_errors(capsys):
    assert main(["study", "bathing"]) == 2
    assert "did you mean 'batching'" in capsys.readouterr().err
    assert main(["study"]) == 2 and "STUDY" in capsys.readouterr().err
    assert main(["study", "batching", "cartpole", "--parts", "all"]) == 3
    assert "--parts: 'all' is not a part" in capsys.readouterr().err


def test_a_regimen_that_shares_a_program_shares_a_bench():
    a, b = (Recipe(name, RolloutConfig(episodes=5), 4, 64, lr) for name, lr in (("a", None), ("b", 1e-2)))
    assert a.program == b.program and a != b
    assert bench.mean_of([]) != bench.mean_of([]), "nothing has no mean"
