"""Comparisons against closed forms and scipy, and every form in which one is written."""

import csv
import io
import json

import numpy as np
import pytest
import scipy.stats

import regimen
from regimen.cli.main import main
from regimen.envs.metric import Metric, to_table
from regimen.errors import ConfigError, StorageError
from regimen.files.run_dir import RunFiles
from regimen.reports.comparison import area, compare, expand, first
from regimen.statistics import Estimate, bootstrap_interval, improvement, improvement_interval, iqm

STEPS = (1000, 2000, 3000, 4000)


def make(path, env="pendulum", algo="ppo", seed=0, curve=(0.0, 1.0, 2.0, 4.0), los=None, threshold=None, **more):
    """A finished run whose evaluations are `curve`, and whose final one is its last."""
    settings = {"env": env, "env_args": {}, "algorithm": algo, "seed": seed, "algo": {"lr": more.pop("lr", 1e-3)}}
    declared, intervals = more.pop("declared", True), more.pop("intervals", {"return_mean": [0.0, 9.0]})
    settings |= more
    with RunFiles.create(path, settings, "regimen train") as files:
        if declared:
            files.status(metrics=to_table({"los": Metric("max", "lower", "rate", violation=True, label="conflicts")}))
        for i, (steps, value) in enumerate(zip(STEPS, curve)):
            row = {"env_steps": steps, "updates": i + 1, "wall_seconds": 0.5 * (i + 1), "eval/return_mean": value}
            files.log(row | {"eval/episodes": 20} | ({} if los is None else {"eval/los": los}))
        if curve:
            metrics = {"return_mean": curve[-1]} | ({} if los is None else {"los": los})
            summary = {"eval_return_mean": curve[-1], "eval_return_std": 1.0, "eval_episodes": 20}
            summary |= {"eval_metrics": metrics, "eval_metrics_ci95": intervals}
            summary |= {"env_steps": STEPS[-1], "wall_seconds": 2.0, "return_threshold": threshold}
            files.summary(summary)
    return path


@pytest.fixture
def runs(tmp_path):
    """Two algorithms on two environments, four seeds each; SAC ends higher and PPO has fewer conflicts."""
    for env in ("pendulum", "cartpole"):
        for algo, end, los in (("ppo", 10.0, 0.0), ("sac", 20.0, 0.2)):
            for seed in range(4):
                curve = (0.0, 1.0, 0.5 * end, end + seed)
                make(tmp_path / "runs" / f"{env}-{algo}" / f"seed-{seed}", env, algo, seed, curve, los)
    return tmp_path / "runs"


# --- statistics ------------------------------------------------------------------------------------------------------


def test_the_probability_of_improvement_is_the_mann_whitney_statistic():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, 7).astype(float), rng.integers(0, 6, 9).astype(float)
    assert improvement(x, y) == pytest.approx(scipy.stats.mannwhitneyu(x, y).statistic / 63)
    assert improvement([1, 2], [0]) == 1 and improvement([1], [1]) == 0.5 and improvement(x, y) + improvement(y, x) == 1


def test_intervals_agree_with_scipys_bootstrap():
    rng = np.random.default_rng(1)
    x, y = rng.normal(1, 1, 12), rng.normal(0, 1, 10)
    options = {"n_resamples": 4000, "method": "percentile", "rng": np.random.default_rng(2)}
    theirs = scipy.stats.bootstrap((x,), lambda v, axis: iqm(v, axis=axis), **options).confidence_interval
    assert bootstrap_interval(x) == pytest.approx(theirs, abs=0.1)
    pairs = scipy.stats.bootstrap((x, y), lambda a, b: improvement(a, b), vectorized=False, **options)
    assert improvement_interval([(x, y)]) == pytest.approx(pairs.confidence_interval, abs=0.03)
    assert np.isnan(improvement_interval([([1.0], [2.0])])).all()


def test_tasks_are_strata():
    """Two tasks in which x wins all and loses all: the mean is 1/2 whatever is drawn."""
    high, low = np.array([3.0, 4.0]), np.array([1.0, 2.0])
    assert improvement_interval([(high, low), (low, high)]) == (0.5, 0.5)


def test_area_and_steps_have_closed_forms():
    x = np.array([0.0, 5.0, 10.0])
    assert area(x, x / 10, 10) == pytest.approx(0.5)
    assert area(x, x / 10, 20) == pytest.approx(0.75), "a run that ended keeps its value"
    assert area(np.array([5.0]), np.array([1.0]), 10) == 1.0
    assert (first(x, x / 10, 0.5), first(x, x / 10, 0.51), first(x, x / 10, 1.5)) == (5.0, 10.0, np.inf)


# --- groups ----------------------------------------------------------------------------------------------------------


def test_groups_are_ranked_within_each_environment(runs):
    found = compare(runs)
    assert [task.env for task in found.tasks] == ["cartpole", "pendulum"]
    task = found.tasks[1]
    assert [g.label for g in task.groups] == ["sac", "ppo"]
    sac, ppo = task.groups
    assert sac.scores.tolist() == [20, 21, 22, 23] and sac.iqm.value == 21.5
    assert 20 <= sac.iqm.low <= sac.iqm.value <= sac.iqm.high <= 23
    assert task.better[0][1] == Estimate(1.0, 1.0, 1.0) and task.better[1][0].value == 0.0 and task.better[0][0] is None
    assert (task.start, task.goal, task.goal_is) == (0.0, 23.0, "best")
    assert sac.steps_to[0.5].tolist() == [4000.0] * 4 and np.isinf(ppo.steps_to[0.9]).all()
    assert sac.seconds_to[0.5].tolist() == [2.0] * 4
    assert list(found.overall) == ["sac", "ppo"]
    assert found.overall["sac"].value == pytest.approx((21.5 - 10) / 13)
    assert any("2 environments" in note for note in found.notes)


def test_two_runs_that_are_named_are_compared(tmp_path):
    """Not pooled, though both are of one algorithm; nor are folders of seeds."""
    a = make(tmp_path / "first" / "run", curve=(0.0, 10.0), lr=1e-3, intervals={"return_mean": [9.0, 11.0]})
    b = make(tmp_path / "second" / "run", curve=(0.0, 13.0), lr=1e-4, intervals={"return_mean": [12.0, 14.0]})
    found = compare([a, b])
    assert [(g.label, g.scores.tolist()) for g in found.tasks[0].groups] == [("second/run", [13]), ("first/run", [10])]
    assert "second/run is better than first/run by 3 (1.586 to 4.414 over the episodes" in "\n".join(found.lines())
    near = make(tmp_path / "near", curve=(0.0, 12.5), intervals={"return_mean": [11.5, 13.5]})
    assert " is ahead of near by 0.5 (-0.91" in "\n".join(compare([near, b]).lines())
    assert [g.label for g in compare([a, b], by="lr").tasks[0].groups] == ["algo.lr 0.0001", "algo.lr 0.001"]
    assert [g.label for g in compare([a, b], by="algo").tasks[0].groups] == ["ppo"], "who asks for it"
    for seed in range(3):
        make(tmp_path / "a" / f"seed-{seed}", curve=(0.0, 1.0 + seed), seed=seed)
        make(tmp_path / "b" / f"seed-{seed}", curve=(0.0, 11.0 + seed), seed=seed)
    folders = compare([tmp_path / "a", tmp_path / "b"])
    assert [(g.label, len(g.runs)) for g in folders.tasks[0].groups] == [("b", 3), ("a", 3)]
    assert "b is best: a run of b beats one of a with probability 1 (1 to 1)" in "\n".join(folders.lines())
    assert [g.label for g in compare([tmp_path / "a", tmp_path / "b"], by="algo").tasks[0].groups] == ["ppo"]


def test_any_metric_ranks_and_conflicts_rank_downwards(runs):
    found = regimen.compare(runs / "pendulum-ppo", metric="eval/los")
    assert found.metric == "los" and found.lower
    found = compare([runs / "pendulum-ppo", runs / "pendulum-sac"], metric="los")
    assert [g.label for g in found.tasks[0].groups] == ["ppo", "sac"]
    assert found.tasks[0].better[0][1].value == 1.0
    rate = found.tasks[0].groups[0].metrics["los"]
    assert rate.low == 0.0 and rate.high == pytest.approx(0.0458, abs=1e-3), "80 episodes do not prove it"
    assert [g.label for g in compare(runs, metric="return", lower=True).tasks[0].groups] == ["ppo", "sac"]


def test_runs_that_do_not_say_what_is_better_are_read_with_larger_values_first(tmp_path):
    for seed, los in enumerate((0.1, 0.3)):
        make(tmp_path / str(seed), seed=seed, los=los, declared=False, lr=los)
    found = compare(tmp_path, metric="los", by="lr")
    assert not found.lower and [g.scores.tolist() for g in found.tasks[0].groups] == [[0.3], [0.1]]
    assert compare(tmp_path, metric="los", by="lr", lower=True).tasks[0].groups[0].scores.tolist() == [0.1]


def test_groups_by_any_key(tmp_path):
    for lr in (1e-3, 1e-4):
        for seed in range(2):
            make(tmp_path / f"{lr}-{seed}", seed=seed, curve=(0.0, 1e3 * lr + seed), lr=lr)
    mixed = compare(tmp_path)
    assert len(mixed.tasks[0].groups) == 1 and any("differ in algo.lr; --by algo.lr" in n for n in mixed.notes)
    for key in ("algo.lr", "lr", ["algo.lr"]):
        assert [g.label for g in compare(tmp_path, by=key).tasks[0].groups] == ["algo.lr 0.001", "algo.lr 0.0001"]
    assert compare(tmp_path, by="algorithm,lr").tasks[0].groups[0].label == "ppo, algo.lr 0.001"


def test_arguments_of_an_environment_make_another_task_unless_compared(tmp_path):
    for name in ("clean", "compat"):
        make(tmp_path / name, env_args={"reward": name})
    assert [t.env for t in compare(tmp_path).tasks] == ["pendulum (reward clean)", "pendulum (reward compat)"]
    assert [t.env for t in compare(tmp_path / "clean").tasks] == ["pendulum"], "the same in all: not worth saying"
    found = compare(tmp_path, by="env.reward")
    assert [t.env for t in found.tasks] == ["pendulum"] and len(found.tasks[0].groups) == 2


def test_a_return_threshold_is_the_goal(tmp_path):
    task = compare(make(tmp_path / "run", threshold=2.0)).tasks[0]
    assert (task.goal, task.goal_is) == (2.0, "threshold")
    assert task.groups[0].steps_to[0.9].tolist() == [3000.0]


def test_one_run_has_the_interval_of_its_episodes_and_a_running_one_its_last_evaluation(tmp_path):
    alone = compare(make(tmp_path / "run"))
    assert alone.tasks[0].groups[0].metrics["return_mean"] == Estimate(4.0, 0.0, 9.0)
    assert alone.tasks[0].groups[0].iqm == Estimate(4.0) and any("one run in each group" in n for n in alone.notes)
    (tmp_path / "run" / "summary.json").unlink()
    assert compare(tmp_path / "run").tasks[0].groups[0].scores.tolist() == [4.0]


def test_groups_are_equivalent_within_a_margin_over_runs(runs, capsys):
    """Scores 10 to 13 and 20 to 23: means 10 apart, both variances 5/3, Welch's error sqrt(5/6) with 6 degrees."""
    (pair,) = compare(runs, margin=12.0).tasks[0].equivalence
    assert (pair.first, pair.second, pair.over, pair.difference.value) == ("sac", "ppo", "runs", -10.0)
    assert pair.difference.p == pytest.approx(scipy.stats.t.cdf(-2.0 / np.sqrt(5 / 6), 6))
    assert compare(runs, margin=15.0).tasks[0].equivalence[0].difference.verdict == "equivalent"
    assert compare(runs, margin=9.0).tasks[0].equivalence[0].difference.verdict == "different"
    assert main(["compare", str(runs), "--margin", "15"]) == 0
    assert "pendulum: equivalent within 15? (two one-sided tests)" in capsys.readouterr().out
    assert main(["compare", str(runs), "--margin", "0"]) == 3
    assert not compare(runs).tasks[0].equivalence


def test_two_single_runs_are_equivalent_over_their_episodes(tmp_path):
    """20 episodes each, intervals of the mean 4 and 5 wide by half: the errors come from them."""
    ends = {"a": (4.0, [0.0, 8.0]), "b": (5.0, [0.0, 10.0])}
    paths = [make(tmp_path / n, curve=(0.0, v), intervals={"return_mean": ci}) for n, (v, ci) in ends.items()]
    (pair,) = compare(paths, margin=15.0).tasks[0].equivalence
    assert pair.over == "episodes" and pair.difference.value == -1.0
    error = np.hypot(4.0, 5.0) / scipy.stats.t.ppf(0.975, 19)
    df = (4.0**2 + 5.0**2) ** 2 / ((4.0**4 + 5.0**4) / 19)
    assert pair.difference.p == pytest.approx(scipy.stats.t.cdf(-14.0 / error, df))


def test_equal_groups_share_their_rank(tmp_path):
    for algo, end in (("ppo", 1.0), ("sac", 1.0), ("impala", 0.0)):
        make(tmp_path / algo, algo=algo, curve=(end, end))
    task = compare(tmp_path).tasks[0]
    assert [(g.label, task.rank(g)) for g in task.groups] == [("ppo", 1), ("sac", 1), ("impala", 3)]


def test_runs_are_found_once_and_data_runs_are_not_compared(runs):
    assert len(expand([runs])) == 16
    assert len(expand([runs, runs / "pendulum-ppo", runs / "pendulum-ppo" / "seed-0"])) == 16
    make(runs / "pendulum-ppo" / "cql-behaviour")
    assert len(expand([runs])) == 16


def test_what_cannot_be_compared_is_said(tmp_path):
    with pytest.raises(StorageError, match="no such directory"):
        compare(tmp_path / "nothing")
    with pytest.raises(StorageError, match=r"is not a run directory: it has no config\.yaml"):
        compare(tmp_path)
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare([])
    empty = make(tmp_path / "empty", curve=())
    with pytest.raises(StorageError, match="has no evaluation yet"):
        compare(empty)
    run = make(tmp_path / "run")
    assert any("empty has no evaluation yet" in n for n in compare([run, empty]).notes)
    with pytest.raises(ConfigError, match=r"metric: .* 'retrun_mean'; did you mean 'return_mean'"):
        compare(run, metric="retrun_mean")
    with pytest.raises(ConfigError, match=r"by: 'algo.rl' is no key .*; did you mean 'algo.lr'"):
        compare(run, by="algo.rl")


# --- written ---------------------------------------------------------------------------------------------------------


def test_every_form_is_written(runs, tmp_path):
    found = compare(runs)
    paths = {path.name: path for path in found.save(tmp_path / "out")}
    assert set(paths) == {"compare.csv", "compare.md", "compare.html", "compare.json", "compare.png"}
    rows = list(csv.DictReader(io.StringIO(paths["compare.csv"].read_text())))
    assert len(rows) == 4 and rows[0]["group"] == "sac" and float(rows[0]["iqm"]) == 21.5
    assert float(rows[1]["los_high"]) > 0 and rows[1]["steps_to_90"] == "", "never"
    page = paths["compare.html"].read_text()
    assert "data:image/png;base64," in page and "http" not in page.replace("http-equiv", "")
    assert json.loads(paths["compare.json"].read_text()) == json.loads(json.dumps(found.to_dict()))
    text = paths["compare.md"].read_text()
    assert "## By return (larger" in text and "| IQM of return |" in text and "| pendulum | conflicts | " in text
    assert "los" not in text and "los_high" in rows[0], "labels are for people, names for programs"
    assert "| pendulum | 1 | sac | 4 | 21.5 (" in text and text.count("|---|") >= 4
    assert paths["compare.png"].read_bytes()[:4] == b"\x89PNG"


def test_names_with_markup_are_escaped(tmp_path):
    found = compare(make(tmp_path / "run", env="<b>|x"))
    page, text = (found.save(tmp_path / "out")[i].read_text() for i in (2, 1))
    assert "<b>" not in page and "\\|x" not in text.partition("##")[0]


def test_the_command_line(runs, tmp_path, capsys):
    assert main(["compare", str(runs / "pendulum-ppo"), str(runs / "pendulum-sac"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [g["group"] for g in found["environments"][0]["groups"]] == ["sac", "ppo"]
    assert main(["compare", str(runs), "--metric", "los", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "By conflicts (smaller is better)" in out and "compare.html" in out
    assert main(["compare", str(tmp_path / "nothing")]) == 6 and main(["compare"]) == 2
