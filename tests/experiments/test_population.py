"""Populations: decisions are those of a numpy replay, members take over what was learned, and kills change nothing."""

import csv
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen import trees
from regimen.cli import sweep as cli
from regimen.config.layers import build_config
from regimen.envs import registry
from regimen.errors import ConfigError, RegimenError
from regimen.experiments.sweep import members, population
from regimen.experiments.sweep.lineage import ancestors
from regimen.experiments.sweep.report import ranked
from regimen.experiments.sweep.run import run_sweep
from regimen.experiments.sweep.space import SweepPlan, make_plan
from regimen.experiments.sweep.trials import begin
from regimen.files.checkpoint import Checkpoints
from regimen.files.storage import read_json
from regimen.runs.api import resume
from regimen.runs.build import make_engine
from support import TINY, assert_same_run

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

# an arm of probe/action pays 1, the other 0: with the least learning rate nothing is learned, with the largest it is
SHORT = {k: v for k, v in TINY.items() if k not in ("track", "eval.every", "checkpoint.every")}
SHORT |= {"track.enabled": False, "total_steps": 12 * 32, "algo.normalize_obs": True}
ARMS = ["algo.lr=log:1e-7:1e-1", "algo.ent_coef=uniform:0:0.1"]


def plan_of(random=ARMS, trials=4, env="probe/action", every=2, **options):
    return make_plan(
        env, [], random, trials, SHORT | options.pop("overrides", {}), method="pbt", every=every, **options
    )


def numpy_replay(plan, number, scores, alive, settings):
    """What a round must decide, written a second time."""
    sign = 1 if plan.lower else -1
    order = sorted(
        (k for k in range(len(scores)) if alive[k] and scores[k] is not None), key=lambda k: sign * scores[k]
    )
    group = min(max(1, int((plan.share or 0.25) * len(order))), len(order) // 2)
    rng = np.random.default_rng([plan.draw_seed, 0x9B7, number])
    sources, new = list(range(len(scores))), [dict(s) for s in settings]
    for k in sorted(order[len(order) - group :]):
        source, up = order[rng.integers(group)], rng.random(len(plan.random)) < 0.5
        if scores[source] == scores[k]:
            continue
        sources[k] = source
        for j, (key, draw) in enumerate(plan.random.items()):
            x = settings[source][key]
            x = (
                x * 1.25 ** (1 if up[j] else -1)
                if draw.kind == "log"
                else x + (0.1 if up[j] else -0.1) * (draw.high - draw.low)
            )
            new[k][key] = float(np.clip(x, draw.low, draw.high))
    return sources, new


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    files = begin(tmp_path_factory.mktemp("population") / "out", plan_of(), "regimen sweep")
    assert run_sweep(files) == 0
    return files


def test_the_lineage_is_a_numpy_replay_of_the_decisions(whole):
    plan, rounds = whole.plan, population.rounds_of(whole.folder)
    assert [r.updates for r in rounds] == [[2 * i] * 4 for i in range(1, 6)]
    settings = [plan.draw(n) for n in range(4)]
    for r in rounds:
        sources, new = numpy_replay(plan, r.number, r.scores, r.alive, settings)
        assert r.sources == sources
        for mine, theirs in zip(r.settings, new):
            assert mine == pytest.approx(theirs, rel=1e-12)
        settings = new
    with open(whole.folder / "lineage.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 6 and {row["takes_over_from"] for row in rows[-4:]} == {""}
    for row in rows[:-4]:
        r, k = rounds[int(row["round"]) - 1], int(row["trial"])
        assert row["takes_over_from"] == ("" if r.sources[k] == k else str(r.sources[k]))
        assert float(row["algo.lr"]) == r.settings[k]["algo.lr"] and float(row["score"]) == r.scores[k]


def test_the_arm_that_does_not_learn_takes_over_from_one_that_does(whole):
    plan = whole.plan
    first = [plan.draw(n)["algo.lr"] for n in range(4)]
    end = population.end_of(whole.folder)
    alone = int(np.argmin(first))
    assert first[alone] < 1e-4 and end.scores[alone] > 0.8, "what does not learn alone has been given what does"
    best = read_json(whole.folder / "sweep.json")["best"]
    assert best["score"] == max(end.scores), "chosen by training, not by the evaluation that is reported"
    policy = json.loads((whole.trial(best["trial"]) / "policy" / "config.json").read_text())
    assert policy["algo"]["lr"] == pytest.approx(end.settings[best["trial"]]["algo.lr"])


def test_the_best_is_chosen_by_training():
    rows = [{"trial": n, "state": "finished", "value": v, "score": s} for n, v, s in ((0, 9.0, 1.0), (1, 2.0, 3.0))]
    assert [r["trial"] for r in ranked(rows, lower=False)] == [1, 0] and ranked(rows, lower=True)[0]["trial"] == 0


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_member_takes_over_all_that_was_learned_and_nothing_else(algo):
    tiny = {k: v for k, v in TINY.items() if k != "track"} | {"algo.normalize_obs": True, "algo.normalize_reward": True}
    small = {"network.hidden": (8,), "rollout.steps": 4, "rollout.num_envs": 4, "algo.buffer_size": 64}
    settings = tiny if algo == "ppo" else small
    config = build_config("pendulum", algo=algo, overrides=settings | {"total_steps": 64})
    handle = registry.resolve("pendulum")
    engine = make_engine(config, handle, [0, 1, 2], lambda: False, variants=[config.algo] * 3)

    def marked(x):
        """Every learner's numbers its own."""
        if trees.is_key(x) or x.dtype == bool:
            return x
        return x + jnp.arange(3).reshape(3, *[1] * (x.ndim - 1)).astype(x.dtype)

    engine.place(*(jax.tree.map(marked, tree) for tree in (engine.state, engine.carry)))
    before = [trees.flatten(engine.snapshot(k)) for k in range(3)]
    engine.take_over([0, 2, 2])
    after = [trees.flatten(engine.snapshot(k)) for k in range(3)]
    for k, name in itertools.product((0, 2), before[0]):
        np.testing.assert_array_equal(after[k][name], before[k][name], err_msg=name)
    learned = ("state/models/", "state/norm/", "state/replay/", "state/aux/ring/", "state/aux/gradient_steps")
    parts = {
        "ppo": ("/params/", "/opt_state/", "state/norm/"),
        "sac": ("/params/", "/opt_state/", "state/replay/", "ring"),
    }[algo]
    for part in parts:
        assert any(part in name for name in before[0]), f"nothing of {part} was compared"
    for name, x in after[1].items():
        if name != "state/aux/owed":
            source = 2 if name.startswith(learned) else 1
            np.testing.assert_array_equal(x, before[source][name], err_msg=name)
    assert not np.array_equal(after[1]["state/key"], after[2]["state/key"])
    if algo == "ppo":
        assert not np.array_equal(after[1]["state/aux/return"], after[2]["state/aux/return"]), "its own episodes' sums"


def test_explore_stays_in_its_ranges_and_depends_on_nothing_but_the_plan():
    plan = plan_of(trials=8, share=0.5)
    rng, settings, values = np.random.default_rng(0), population.first_settings(plan), set()
    for number in range(1, 100):
        scores = rng.random(8).tolist()
        a = population.decide(plan, number, [0] * 8, [0] * 8, scores, [True] * 8, settings)
        assert a == population.decide(plan, number, [0] * 8, [0] * 8, scores, [True] * 8, settings)
        worst = np.argsort(scores)[:4]
        assert {k for k in range(8) if a.sources[k] != k} == set(worst.tolist())
        settings = a.settings
        values |= {one["algo.ent_coef"] for one in settings}
        for key, draw in plan.random.items():
            assert all(draw.low <= one[key] <= draw.high for one in settings)
    assert values & {0.0, 0.1}, "an end of the range was reached"


def test_who_has_no_score_or_has_ended_neither_gives_nor_takes():
    plan = plan_of(share=0.5)
    first = population.first_settings(plan)
    r = population.decide(plan, 1, [0] * 4, [0] * 4, [None, 3.0, 9.0, 1.0], [True, True, False, True], first)
    assert r.sources == [0, 1, 2, 1]
    assert population.decide(plan, 1, [0] * 4, [0] * 4, [1.0] * 4, [True] * 4, first).sources == [0, 1, 2, 3]


def test_what_the_best_comes_from():
    def of(*sources):
        return population.Round(1, [], [], [], [], list(sources), [])

    assert ancestors([of(0, 0, 2), of(1, 1, 2), of(0, 1, 0)], 2) == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"random": ["algo.epochs=int:1:4"]}, "algo.epochs is not a number that one compiled program can vary"),
        ({"env": "gym:CartPole-v1", "random": ARMS[:1]}, "not a native environment; use --method tpe"),
        ({"trials": 1}, "at least two members"),
        ({"seeds": 2}, "a seed of its own"),
        ({"every": 12}, "leave no round"),
        ({"overrides": {"stop.target_return": 1}}, "stop.target_return: has no effect in a population"),
        ({"overrides": {"eval.every": "3"}}, "use a multiple of 2 updates"),
        ({"objectives": ["return_mean", "length_mean"]}, "selects by one metric"),
        ({"overrides": {"total_steps": None, "total_episodes": 10}}, "give one"),
    ],
)
def test_refused_in_one_line(options, message):
    with pytest.raises(RegimenError, match=message):
        plan_of(**options)


def test_flags_and_the_plan_on_disk(tmp_path):
    argv = "cartpole --method pbt --random algo.lr=log:1e-4:1e-2 --trials 4 --total-steps 41000"
    _, plan = cli.read([*argv.split(), "--share", "0.3", "--rollout.steps", "1024", "--rollout.num-envs", "8"])
    assert (plan.method, plan.every, plan.share, plan.trials) == ("pbt", 2, 0.3, 4)
    plan.save(tmp_path)
    assert SweepPlan.load(tmp_path) == plan
    with pytest.raises(ConfigError, match="--every: only --method pbt"):
        cli.read(["cartpole", "--random", "algo.lr=log:1e-4:1e-2", "--every", "3"])


def test_workers_have_nothing_to_do(whole):
    with pytest.raises(ConfigError, match="--workers: --method pbt trains in one compiled program"):
        run_sweep(whole, workers=2)


def test_a_member_does_not_go_on_alone(whole):
    with pytest.raises(ConfigError, match="member of a population"):
        resume(whole.trial(0), total_steps=1000)


def test_interrupted_anywhere_it_becomes_the_same(whole, tmp_path, monkeypatch):
    """An end before a round's file, after it, and one that damages the newest checkpoint."""
    files = begin(tmp_path / "out", plan_of(), "regimen sweep")
    save, faults = population.Round.save, iter(["before 2", "after 3", "before 4"])
    fault = [next(faults)]

    def failing(self, path):
        if fault[0] == f"before {self.number}":
            raise KeyboardInterrupt
        save(self, path)
        if fault[0] == f"after {self.number}":
            raise KeyboardInterrupt

    monkeypatch.setattr(members.Round, "save", failing)
    for name in ("before 2", "after 3", "before 4"):
        fault[0] = name
        assert run_sweep(files) == 130
        assert not files.results()
    newest = Checkpoints(files.trial(2) / "checkpoints")
    (newest.path / str(newest.steps()[-1]) / "state.safetensors").write_bytes(b"torn")
    fault[0] = ""
    assert run_sweep(files) == 0
    for n in range(4):
        assert_same_run(whole.trial(n), files.trial(n))
    for path in (whole.folder / "rounds").iterdir():
        assert path.read_bytes() == (files.folder / "rounds" / path.name).read_bytes()
    same = [{k: v for k, v in r.items() if k not in ("finished", "wall_seconds")} for r in files.results()]
    assert same == [{k: v for k, v in r.items() if k not in ("finished", "wall_seconds")} for r in whole.results()]
