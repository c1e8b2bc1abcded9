"""Sweeps: what is tried, one program equals runs of their own, nothing is done twice, and what the tables say."""

import contextlib
import csv
import json

import numpy as np
import pytest

from regimen.cli import sweep as cli
from regimen.errors import ConfigError, RegimenError, StorageError, UsageError
from regimen.experiments.sweep.optuna_trials import OptunaStudy, Pruning
from regimen.experiments.sweep.report import explained, groups_of, importance, ranked, write_all
from regimen.experiments.sweep.run import claimed, do_trial, run_sweep, work
from regimen.experiments.sweep.space import Draw, SweepPlan, make_plan
from regimen.experiments.sweep.trials import SweepFiles, begin
from regimen.files.checkpoint import Checkpoints, read
from regimen.files.storage import read_json
from support import TINY, reseal, tiny
from synthetic_run import make_run

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

SHORT = {k: v for k, v in TINY.items() if k != "track"} | {"track.enabled": False, "total_steps": 64}


def plan_of(grid=(), random=(), trials=None, **options):
    return make_plan("cartpole", grid, random, trials, SHORT | options.pop("overrides", {}), **options)


# --- what is tried ---------------------------------------------------------------------------------------------------


def test_grid_is_every_combination_and_draws_depend_on_the_number_only():
    plan = plan_of(["lr=1e-4,1e-3", "algo.gamma=0.9,0.99"], ["algo.ent_coef=log:1e-4:1e-1"], 8)
    points = [plan.draw(n) for n in range(8)]
    assert {(p["algo.lr"], p["algo.gamma"]) for p in points} == {(a, b) for a in (1e-4, 1e-3) for b in (0.9, 0.99)}
    assert points[5] == plan_of(["lr=1e-4,1e-3", "algo.gamma=0.9,0.99"], ["ent_coef=log:1e-4:1e-1"], 99).draw(5)
    drawn = [p["algo.ent_coef"] for p in points]
    assert len(set(drawn)) == 8 and all(1e-4 <= x <= 1e-1 for x in drawn)
    two = plan_of([], ["algo.ent_coef=uniform:0:1", "algo.gamma=uniform:0:1"], 4).draw(3)
    assert two["algo.ent_coef"] != two["algo.gamma"], "each setting has its own draw"


def test_the_environment_says_whether_smaller_is_better():
    def lower(metric, given=None):
        return make_plan("conflict_env:Crossing", ["algo.lr=1e-4,1e-3"], metric=metric, lower=given).lower

    assert lower("eval/los") and not lower("los", False)
    assert not lower("reached") and not lower("return_mean") and lower("return_mean", True)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("log:1e-4:1e-1", lambda x: abs(np.median(np.log10(x)) + 2.5) < 0.2),
        ("uniform:-1:3", lambda x: abs(np.mean(x) - 1) < 0.1),
        ("int:1:4", lambda x: set(x) == {1, 2, 3, 4}),
        ("logint:8:64", lambda x: min(x) == 8 and max(x) == 64 and np.median(x) < 30),
        ("choice:relu:tanh", lambda x: set(x) == {"relu", "tanh"}),
    ],
)
def test_distributions(text, check):
    draw = Draw.parse("k", text)
    assert check([draw.at(u) for u in np.linspace(0, 1, 2001)[:-1]])


@pytest.mark.parametrize(
    ("grid", "random", "trials", "message"),
    [
        ([], [], None, "nothing to try"),
        (["algo.lr"], [], None, "not KEY=VALUES"),
        (["algo.learning=1,2"], [], None, "unknown setting 'algo.learning'"),
        (["algo.lr=1e-3,1e-3"], [], None, "named twice"),
        (["algo.lr=1e-3,1e-2"], [], 5, "nothing else differs"),
        (["algo.lr=1e-3,1e-2"], ["algo.gamma=uniform:0.9:1"], 1, "leave some of them out"),
        (["algo.lr=1e-3,-1"], [], None, "out of range"),
        ([], ["algo.lr=log:0:1"], None, "begins above 0"),
        ([], ["algo.lr=normal:0:1"], None, "unknown distribution 'normal'"),
        ([], ["algo.lr=log:1:0.1"], None, "lower end comes first"),
        (["seed=1,2"], [], None, "seeds are given by --seeds"),
    ],
)
def test_refused_in_one_line(grid, random, trials, message):
    with pytest.raises(RegimenError, match=message):
        plan_of(grid, random, trials)


def test_when_one_program_is_enough():
    assert plan_of(["algo.lr=1e-4,1e-3"]).in_one_program() is None
    assert "network.hidden" in plan_of(["network.hidden=[8,8],[16]"]).in_one_program()
    assert "switched off" in plan_of(["algo.kl_coef=0,0.5"]).in_one_program()
    assert "switched off" in plan_of(["algo.target_kl=none,0.01"]).in_one_program()
    sac = make_plan("pendulum", ["algo.update_ratio=0.5,1"], overrides={"algorithm": "sac"})
    assert "how many gradient steps" in sac.in_one_program()
    assert "one by one" in make_plan("pendulum", ["algo.lr=1e-3,1e-4"], overrides={"algorithm": "cql"}).in_one_program()
    assert "reward.weight_lr" in plan_of(["algo.reward.weight_lr=0.1,0.2"]).in_one_program()
    shaped = make_plan("airspace/head_on", ["algo.gamma=0.99,0.995"])
    assert "algo.gamma changes the environment too" in shaped.in_one_program()
    assert plan_of(["algo.gamma=0.99,0.995"]).in_one_program() is None
    assert plan_of(["algo.lr=1e-4,1e-3"], together=False).in_one_program() is not None


def test_flags():
    argv = "cartpole --grid algo.lr=1e-4,1e-3 algo.gamma=0.9,1 --grid network.hidden=[8],[16,16] --no-prune --seeds 2"
    args, plan = cli.read([*argv.split(), "--algo.ent-coef", "0.02", "--preset", "fast", "--engine.workers", "0"])
    assert plan.grid == {"algo.lr": (1e-4, 1e-3), "algo.gamma": (0.9, 1), "network.hidden": ([8], [16, 16])}
    assert (plan.trials, plan.seeds, args.prune) == (8, 2, False)
    config = plan.config(plan.draw(3))
    assert (config.algo.ent_coef, config.preset, config.seeds) == (0.02, "fast", 2)
    with pytest.raises(UsageError, match="--grid needs KEY=VALUES"):
        cli.read(["cartpole", "--grid"])
    with pytest.raises(UsageError, match="unknown flag '--grids'"):
        cli.read(["cartpole", "--grids", "a=1"])


# --- one program -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "out"
    plan = plan_of(["algo.lr=1e-4,1e-2"], ["algo.clip_eps=uniform:0.1:0.3"], 4, seeds=2)
    files = begin(folder, plan, "regimen sweep")
    assert run_sweep(files) == 0
    return files


def test_a_trial_in_one_program_is_the_run_it_would_be_alone(together, tmp_path):
    config = together.plan.config(together.plan.draw(3))
    mine = together.trial(3) / "seed-1"
    alone = tiny(tmp_path / "alone", 2, seed=1, **{"algo.lr": config.algo.lr, "algo.clip_eps": config.algo.clip_eps})
    a, b = (read(Checkpoints(p / "checkpoints").find("final"))[0] for p in (mine, alone.run_dir))
    assert set(a) == set(b)
    for name in a:
        if "params" in name:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-6)
    other = read(Checkpoints(together.trial(0) / "seed-1" / "checkpoints").find("final"))[0]
    assert any(not np.allclose(a[n], other[n], atol=1e-4) for n in a if "params" in n)
    assert json.loads((mine / "policy" / "config.json").read_text())["algo"]["lr"] == config.algo.lr


OTHERS = {
    "ppo": ("pendulum", ["algo.log_std_init=-1,0", "algo.max_grad_norm=0,0.5", "algo.gamma=0.9,0.99"]),
    "sac": ("pendulum", ["algo.lr=1e-4,1e-2", "algo.tau=0.01,0.2", "algo.target_entropy_continuous=-2,0"]),
    "impala": ("cartpole", ["algo.lr=1e-4,1e-2", "algo.rho_clip=0.5,1", "algo.ent_coef=0,0.1"]),
    "appo": ("cartpole", ["algo.lr=1e-4,1e-2", "algo.clip_eps=0.1,0.3", "algo.max_grad_norm=0,0.5"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("algo", OTHERS)
def test_the_same_for_other_algorithms(algo, tmp_path):
    env, grid = OTHERS[algo]
    given = {k: v for k, v in SHORT.items() if not k.startswith("algo.")} | {"algorithm": algo, "total_steps": 128}
    given |= {"algo.learning_starts": 32, "algo.buffer_size": 500, "algo.batch_size": 16} if algo == "sac" else {}
    plan = make_plan(env, grid, overrides=given)
    assert plan.in_one_program() is None
    files = begin(tmp_path / "sweep", plan, "")
    assert run_sweep(files) == 0
    from regimen.runs.api import train

    for n in (1, 6):
        alone = train(plan.config(plan.draw(n)).replace(out=str(tmp_path / f"alone-{n}"))).run_dir
        a, b = (read(Checkpoints(p / "checkpoints").find("final"))[0] for p in (files.trial(n), alone))
        for name in (name for name in a if "params" in name):
            np.testing.assert_allclose(a[name], b[name], rtol=1e-3, atol=1e-5, err_msg=f"trial {n}: {name}")


def test_its_folder(together):
    rows = list(csv.DictReader((together.folder / "sweep.csv").open()))
    assert [int(r["trial"]) for r in rows] == [0, 1, 2, 3] and {r["state"] for r in rows} == {"finished"}
    result = read_json(together.folder / "sweep.json")
    assert result["best"]["value"] == max(float(r["return_mean"]) for r in rows)
    assert set(result["importance"]) == {"algo.lr", "algo.clip_eps"}
    head = (together.folder / "sweep.md").read_text().splitlines()[2]
    assert head.startswith("| trial | algo.lr |") and "| return |" in head and "return_mean" not in head
    assert {p.stem for p in (together.folder / "plots").glob("*.png")} == {"trials", "importance", "parallel"}


def test_one_program_starts_from_a_policy_as_single_runs_do(together, tmp_path):
    """It was ignored there: trials began from nothing, although their configuration said otherwise."""
    first = together.trial(0) / "seed-0"
    plan = plan_of(["algo.lr=1e-12,1e-9"], overrides={"init_from": str(first)})  # what it starts with, it ends with
    assert plan.in_one_program() is None
    files = begin(tmp_path / "sweep", plan, "")
    assert run_sweep(files) == 0
    assert "starts from the policy of" in (files.trial(1) / "log.txt").read_text()
    a, b = (
        read(Checkpoints(path / "checkpoints").find(which))[0]
        for path, which in ((first, "best"), (files.trial(0), "final"))
    )
    for name in (name for name in a if "params" in name):
        np.testing.assert_allclose(a[name], b[name], atol=1e-6, err_msg=name)


def test_compare_reads_it(together):
    from regimen.reports.comparison import compare

    found = compare(together.folder, by="algo.lr")
    assert [len(g.runs) for g in found.tasks[0].groups] == [4, 4]


def test_started_again_it_does_nothing(together):
    before = {p: p.stat().st_mtime_ns for p in together.folder.rglob("*") if p.is_file() and "trial-" in str(p)}
    assert run_sweep(SweepFiles(together.folder, SweepPlan.load(together.folder))) == 0
    assert all(p.stat().st_mtime_ns == t for p, t in before.items())
    with pytest.raises(StorageError, match="holds another sweep: its grid is"):
        begin(together.folder, plan_of(["algo.lr=1e-3,1e-2"], ["clip_eps=uniform:0.1:0.3"], 4, seeds=2), "")
    with pytest.raises(StorageError, match="can only grow"):
        begin(together.folder, plan_of(["algo.lr=1e-4,1e-2"], ["clip_eps=uniform:0.1:0.3"], 3, seeds=2), "")


@pytest.mark.long
def test_interrupted_runs_of_a_program_go_on(tmp_path):
    """As a kill would leave it: some runs with a checkpoint, one without a configuration."""
    plan = plan_of(["algo.lr=1e-4,1e-2"], overrides={"total_steps": 128, "checkpoint.every": "2"})
    whole, torn = (begin(tmp_path / name, plan, "") for name in ("whole", "torn"))
    assert run_sweep(whole) == 0
    half = plan.config(plan.draw(0))
    from regimen.runs.api import train

    train(half.replace(total_steps=64, out=str(torn.trial(0)), algo=whole_algo(whole)))
    (torn.trial(0) / "config.yaml").write_text((whole.trial(0) / "config.yaml").read_text())
    reseal(torn.trial(0) / "status.json", state="running")
    torn.trial(1).mkdir()
    (torn.trial(1) / "command.txt").write_text("x\n")
    assert run_sweep(torn) == 0
    for n in (0, 1):
        a, b = (read(Checkpoints(f.trial(n) / "checkpoints").find("final"))[0] for f in (whole, torn))
        assert all(np.allclose(a[name], b[name], atol=1e-6) for name in a if "params" in name), n
    assert "resumed from step 64" in (torn.trial(0) / "log.txt").read_text()


def whole_algo(files):
    from regimen.config import layers
    from regimen.files.run_dir import read_config

    return layers.from_dict(read_config(files.trial(0))).algo


# --- one by one ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_one_by_one_in_optuna(tmp_path):
    pytest.importorskip("optuna")
    plan = plan_of(["algo.epochs=1,2"], ["algo.lr=log:1e-4:1e-2"], 4, sampler="tpe")
    files = begin(tmp_path / "sweep", plan, "")
    study = OptunaStudy(files.folder, plan)
    with contextlib.closing(claimed(files, study)) as trials:  # a process that takes trial 0 and dies
        first = study.point(study.take_up(next(trials)))
    with contextlib.closing(claimed(files, study)) as trials:  # one that dies between the result and the study
        assert next(trials) == 0 and study.point(study.take_up(0)) == first
        with contextlib.closing(claimed(files, study)) as others:
            assert next(others) == 1, "trial 0 is claimed"
        study.tell = lambda n, result: None
        do_trial(files, study, 0, lambda text: None)
    done = files.result_path(0).read_bytes()
    assert work(files.folder) == 0
    assert files.result_path(0).read_bytes() == done and files.missing() == []
    trials = OptunaStudy(files.folder, plan).trials()
    assert sorted(trials) == [0, 1, 2, 3] and {t.state.name for t in trials.values()} == {"COMPLETE"}
    assert [r["params"]["algo.epochs"] for r in files.results()] == [1, 2, 1, 2]
    assert trials[0].value == files.result(0)["value"]
    with pytest.raises(StorageError, match="was done before"):
        files.record(0, {})


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_points_are_the_plans_however_many_results_there_are(tmp_path, sampler):
    """Optuna's own sampler begins to choose after ten results; only what `tpe` draws is its to choose."""
    pytest.importorskip("optuna")
    plan = plan_of(["algo.epochs=1,2"], ["algo.lr=log:1e-4:1e-2"], 16, sampler=sampler)
    study = OptunaStudy(begin(tmp_path / "sweep", plan, "").folder, plan)
    for n in range(16):
        point, planned = study.point(study.ask()), plan.draw(n)
        assert point["algo.epochs"] == planned["algo.epochs"]
        assert sampler == "tpe" or point == planned
        study.tell(n, {"state": "finished", "value": float(n % 5)})


def test_a_damaged_trial_is_neither_done_anew_nor_left_out(tmp_path):
    """A run without its config.yaml is no leftover of a kill, and a result that says nothing is no missing trial."""
    files = begin(tmp_path / "sweep", plan_of(["algo.lr=1e-4,1e-2"]), "")
    run = make_run(files.trial(0), updates=3)
    (run / "config.yaml").unlink()
    files.trial(1).mkdir()
    (files.trial(1) / "status.json").write_text("{}")  # as a kill leaves it
    for n in (0, 1):
        files.discard_torn(n)
    assert (run / "metrics.jsonl").is_file() and not files.trial(1).exists()
    with pytest.raises(StorageError, match=r"config\.yaml"):
        files.measured(0)
    files.record(1, {"state": "finished", "seeds": 1})
    assert [r["trial"] for r in files.results()] == [1]
    files.result_path(1).write_text("{}")
    with pytest.raises(StorageError, match=r"0001\.json is damaged"):
        files.results()


def test_a_trial_that_fails_is_one_result(tmp_path):
    pytest.importorskip("optuna")
    plan = plan_of(["algo.epochs=1,2"], overrides={"env_args": {"max_episode_steps": -1}})
    files = begin(tmp_path / "sweep", plan, "")
    assert run_sweep(files) == 0
    assert [r["state"] for r in files.results()] == ["failed", "failed"] and "max_episode_steps" in files.result(0)[
        "error"
    ]


def test_a_metric_that_nothing_measures_is_told_after_the_first_trial(tmp_path):
    pytest.importorskip("optuna")
    files = begin(tmp_path / "sweep", plan_of(["algo.epochs=1,2"], metric="retrun_mean"), "")
    with pytest.raises(ConfigError, match="did you mean 'return_mean'"):
        run_sweep(files)
    assert len(files.missing()) == 2


def test_pruning_reports_the_mean_over_seeds_that_train_together():
    class Trial:
        def __init__(self):
            self.told = []

        def report(self, value, step):
            self.told.append((step, value))

        def should_prune(self):
            return self.told[-1][1] < 2

    def info(seed, update, value):
        return {"seed": seed, "update": update, "eval_metrics": None if value is None else {"return_mean": value}}

    trial = Trial()
    call = Pruning(trial, "return_mean", 2)
    assert [call(info(*x)) for x in [(0, 1, None), (0, 1, 1.0), (1, 1, 5.0), (0, 2, 1.0)]] == [False] * 4
    assert call(info(1, 2, 1.0)) is True and trial.told == [(1, 3.0), (2, 1.0)]
    alone = Pruning(trial := Trial(), "return_mean", 1)
    assert not alone(info(3, 1, 4.0)) and not alone(info(4, 1, 0.0)) and trial.told == [(1, 4.0)]


@pytest.mark.long
def test_hopeless_trials_are_pruned(tmp_path):
    """A learning rate of almost nothing against good ones, on a task that is solved in a few updates."""
    pytest.importorskip("optuna")
    rates = "0.05,0.04,0.06,0.03,0.05001,1e-9"
    plan = make_plan(
        "probe/match",
        [f"algo.lr={rates}"],
        overrides=SHORT | {"total_steps": 640, "eval.every": "2", "eval.episodes": 20},
        together=False,
    )
    files = begin(tmp_path / "sweep", plan, "")
    assert run_sweep(files) == 0
    states = [r["state"] for r in files.results()]
    assert states[-1] == "pruned" and set(states[:-1]) == {"finished"}
    assert files.results()[-1]["env_steps"] < files.results()[0]["env_steps"]


@pytest.mark.long
def test_workers(tmp_path):
    pytest.importorskip("optuna")
    files = begin(tmp_path / "sweep", plan_of(["algo.epochs=1,2"]), "")
    assert run_sweep(files, workers=2) == 0
    assert files.missing() == [] and {r["state"] for r in files.results()} == {"finished"}


@pytest.mark.slow
def test_ray_workers(tmp_path):
    pytest.importorskip("optuna")
    pytest.importorskip("ray")
    files = begin(tmp_path / "sweep", plan_of(["algo.epochs=1,2"]), "")
    assert run_sweep(files, workers=2, engine="ray") == 0
    assert files.missing() == [] and {r["state"] for r in files.results()} == {"finished"}


# --- what it says ----------------------------------------------------------------------------------------------------


def rows(values, **params):
    return [
        {"trial": i, "state": "finished", "value": float(v), "params": {k: x[i] for k, x in params.items()}}
        for i, v in enumerate(values)
    ]


def test_importance_finds_what_matters_and_nothing_in_noise():
    rng = np.random.default_rng(0)
    a, b, c = rng.uniform(size=(3, 200))
    found = importance(rows(10 * a + b, a=a.tolist(), b=b.tolist(), c=c.tolist()), ("a", "b", "c"))
    assert found["a"]["explained"] > 0.8 and found["a"]["rho"] > 0.9
    assert found["b"]["explained"] < 0.1 and found["c"]["explained"] < 0.1
    peak = importance(rows(-((a - 0.5) ** 2), a=a.tolist()), ("a",))["a"]  # not monotonic
    assert peak["explained"] > 0.7 and abs(peak["rho"]) < 0.3
    names = importance(rows([1, 1, 5, 5, 1, 5], n=list("xxyyxy")), ("n",))["n"]
    assert names == {"explained": 1.0, "rho": None}
    assert importance(rows([1, 2, 3], n=[1, 2, 3]), ("n",)) == {}
    assert explained(groups_of([1, 1, 2, 2]), np.ones(4)) == 0.0


def test_pruned_and_diverged_trials_are_not_ranked():
    results = rows([3, 9, 5], x=[1, 2, 3])
    results[1]["state"] = "pruned"
    assert [r["trial"] for r in ranked(results, lower=False)] == [2, 0]
    assert [r["trial"] for r in ranked(results, lower=True)] == [0, 2]


def test_nothing_done_yet(tmp_path):
    files = begin(tmp_path / "s", plan_of(["algo.lr=1e-4,1e-2"]), "")
    assert write_all(files) == ["no trial is done yet"]
    with pytest.raises(StorageError, match="is not a sweep"):
        SweepPlan.load(tmp_path)
    with pytest.raises(ConfigError, match="nothing to try"):
        cli.read(["cartpole", "--out", str(tmp_path / "s")])
