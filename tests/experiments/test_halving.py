"""Halving: rungs by hand, what a trial that is out costs, kills between rungs; several objectives: who is beaten."""

import dataclasses
import itertools

import numpy as np
import pytest

from regimen.cli import sweep as cli
from regimen.errors import ConfigError, StorageError, UsageError
from regimen.experiments.sweep import halving, pareto
from regimen.experiments.sweep.report import write_all
from regimen.experiments.sweep.run import run_sweep
from regimen.experiments.sweep.space import SweepPlan, make_plan
from regimen.experiments.sweep.trials import SweepFiles, begin
from regimen.files.run_dir import read_metrics
from regimen.files.storage import read_json
from support import TINY, assert_same_run

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

SHORT = {k: v for k, v in TINY.items() if k != "track"} | {"track.enabled": False, "total_steps": 8 * 32}
ARMS = ["algo.lr=log:1e-7:1e-1"]


def plan_of(trials=4, **options):
    overrides = SHORT | options.pop("overrides", {})
    return make_plan("probe/action", [], ARMS, trials, overrides, method="halving", **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    files = begin(tmp_path_factory.mktemp("halving") / "out", plan_of(), "regimen sweep")
    assert run_sweep(files) == 0
    return files


def test_rungs_by_hand():
    assert halving.schedule(4, 8, 0.5) == [(4, 2), (2, 4), (1, 8)]
    assert halving.schedule(9, 90, 1 / 3) == [(9, 10), (3, 30), (1, 90)]
    assert halving.schedule(5, 80, 0.5) == [(5, 10), (3, 20), (2, 40), (1, 80)]
    assert halving.survivors([4, 5, 6, 7], [1.0, None, 3.0, 3.0], 2, lower=False) == [6, 7]
    assert halving.survivors([4, 5, 6, 7], [1.0, None, 3.0, 3.0], 2, lower=True) == [4, 6]


def test_a_trial_that_is_out_costs_nothing_more(whole):
    results = whole.results()
    assert sorted(r["env_steps"] for r in results) == [64, 64, 128, 256]
    rungs = halving.rungs_of(whole.folder)
    assert [len(r.trials) for r in rungs] == [4, 2, 1] and rungs[1].trials == rungs[0].best
    last = next(r for r in results if r["env_steps"] == 256)
    assert last["state"] == "finished" and {r["state"] for r in results if r is not last} == {"pruned"}
    assert read_json(whole.folder / "sweep.json")["best"]["trial"] == last["trial"] == rungs[2].trials[0]
    steps = [row["env_steps"] for row in read_metrics(whole.trial(last["trial"]))]
    assert steps == list(range(32, 257, 32)), "one training, not three"
    for number, rung in enumerate(rungs[:2]):
        order = sorted(rung.trials, key=lambda n: -rung.scores[rung.trials.index(n)])
        assert rung.best == sorted(order[: len(rungs[number + 1].trials)])


@pytest.mark.long
def test_interrupted_between_rungs_and_within_one_it_becomes_the_same(whole, tmp_path, monkeypatch):
    files = begin(tmp_path / "out", plan_of(), "regimen sweep")
    save = halving.Rung.save
    for number, late in ((0, False), (0, True), (1, False), (2, True)):

        def failing(self, folder, number=number, late=late):
            if self.number == number and not late:
                raise KeyboardInterrupt
            save(self, folder)
            if self.number == number:
                raise KeyboardInterrupt

        monkeypatch.setattr(halving.Rung, "save", failing)
        assert run_sweep(files) == 130
    monkeypatch.setattr(halving.Rung, "save", save)
    assert run_sweep(files) == 0
    for n in range(4):
        assert_same_run(whole.trial(n), files.trial(n))


def test_refused_in_one_line():
    with pytest.raises(ConfigError, match="4 rungs need a budget of"):
        plan_of(trials=8, overrides={"total_steps": 2 * 32})
    with pytest.raises(ConfigError, match="a rung is one compiled program, but network"):
        make_plan("probe/action", ["network.hidden=[8],[16]"], overrides=SHORT, method="halving")
    with pytest.raises(ConfigError, match="has no effect where rungs end"):
        plan_of(overrides={"stop.max_seconds": 5})
    with pytest.raises(ConfigError, match="--share: only"):
        make_plan("cartpole", ["algo.lr=1e-4,1e-3"], share=0.3)
    with pytest.raises(ConfigError, match="--method tpe: chooses what is drawn"):
        make_plan("cartpole", ["algo.lr=1e-4,1e-3"], method="tpe")
    assert make_plan("cartpole", random=ARMS, method="tpe").sampler == "tpe"


# --- a larger budget -------------------------------------------------------------------------------------------------


def test_a_larger_budget_trains_what_it_would_have_been(tmp_path):
    def plan(steps, **more):
        settings = SHORT | {"total_steps": steps, "algo.lr_schedule": "linear", **more}
        return make_plan("probe/action", [], ARMS, 2, settings)

    whole = begin(tmp_path / "whole", plan(128, **{"algo.horizon": "64 steps"}), "")
    assert run_sweep(whole) == 0
    assert run_sweep(begin(tmp_path / "out", plan(64), "")) == 0
    files = begin(tmp_path / "out", plan(128), "")
    assert files.missing() == [0, 1] and len(list((files.folder / "results-64").iterdir())) == 2
    assert run_sweep(files) == 0 and [r["env_steps"] for r in files.results()] == [128, 128]
    assert [r["value"] for r in files.results()] == [r["value"] for r in whole.results()]
    for n in range(2):
        assert_same_run(whole.trial(n), files.trial(n))
    before = [files.result_path(n).read_bytes() for n in range(2)]
    assert run_sweep(begin(tmp_path / "out", plan(128), "")) == 0
    assert before == [files.result_path(n).read_bytes() for n in range(2)], "done once"
    with pytest.raises(StorageError, match="can only grow"):
        begin(tmp_path / "out", plan(64), "")
    with pytest.raises(StorageError, match="holds another sweep"):
        begin(tmp_path / "out", make_plan("probe/action", [], ["algo.gamma=uniform:0.9:1"], 2, SHORT), "")


def test_a_method_that_selects_keeps_its_budget(whole):
    with pytest.raises(StorageError, match="without a method that selects"):
        begin(whole.folder, plan_of(overrides={"total_steps": 16 * 32}), "")


# --- several objectives ----------------------------------------------------------------------------------------------


def result(n, **values):
    return {"trial": n, "state": "finished", "params": {}, "value": next(iter(values.values())), "objectives": values}


def test_the_front_is_that_of_brute_force():
    rng = np.random.default_rng(1)
    objectives = {"a": False, "b": True, "c": False}
    rows = [result(n, **dict(zip("abc", rng.integers(0, 9, 3).tolist()))) for n in range(30)]
    rows[3]["state"] = "pruned"

    def beats(x, y):
        sign = {"a": 1, "b": -1, "c": 1}
        pairs = [(sign[k] * x["objectives"][k], sign[k] * y["objectives"][k]) for k in objectives]
        return all(p >= q for p, q in pairs) and any(p > q for p, q in pairs)

    alive = [r for r in rows if r["state"] == "finished"]
    expected = {r["trial"] for r in alive if not any(beats(other, r) for other in alive)}
    assert {r["trial"] for r in pareto.front(rows, objectives)} == expected and 2 < len(expected) < 20


def test_directions_come_from_the_environment():
    plan = make_plan("conflict_env:Crossing", ["algo.lr=1e-4,1e-3"], objectives=["return_mean", "eval/los"])
    assert plan.objectives == {"return_mean": False, "los": True} and plan.metric == "return_mean" and not plan.prune
    with pytest.raises(ConfigError, match="two metrics or more"):
        make_plan("cartpole", ["algo.lr=1e-4,1e-3"], objectives=["return_mean"])
    with pytest.raises(UsageError, match="--metric: --objective names the metrics"):
        argv = "cartpole --grid algo.lr=1e-4,1e-3 --objective return_mean,length_mean --metric length_mean"
        cli.read(argv.split(" "))


def test_a_sweep_with_two_objectives(tmp_path):
    plan = make_plan("cartpole", [], ARMS, 3, SHORT | {"total_steps": 64}, objectives=["return_mean", "length_mean"])
    plan.save(tmp_path)
    assert SweepPlan.load(tmp_path).objectives == plan.objectives
    files = SweepFiles(tmp_path, dataclasses.replace(plan, objectives={"return_mean": False, "length_mean": True}))
    points = [(3.0, 30.0), (2.0, 10.0), (1.0, 20.0)]
    for n, (a, b) in enumerate(points):
        values = {"value": a, "objectives": {"return_mean": a, "length_mean": b}}
        files.record(n, {"params": plan.draw(n), "state": "finished", "seeds": 1, **values})
    lines = "\n".join(write_all(files))
    assert "Trials that no other beats" in lines
    assert read_json(tmp_path / "sweep.json")["pareto"] == [0, 1]
    assert [row.split(",")[0] for row in (tmp_path / "pareto.csv").read_text().splitlines()] == ["trial", "0", "1"]


def test_tpe_takes_several_objectives(tmp_path):
    optuna_trials = pytest.importorskip("regimen.experiments.sweep.optuna_trials")
    pytest.importorskip("optuna")
    plan = make_plan("cartpole", [], ARMS, 3, SHORT, method="tpe", objectives=["return_mean", "length_mean"])
    files = begin(tmp_path / "out", plan, "regimen sweep")
    study = optuna_trials.OptunaStudy(files.folder, plan)
    for n, (a, b) in enumerate(itertools.product((1.0, 2.0), (3.0,))):
        study.point(study.take_up(study.ask().number))
        values = {"value": a, "objectives": {"return_mean": a, "length_mean": b}}
        study.tell(n, {"state": "finished", **values})
        assert study.trials()[n].values == [a, b]
