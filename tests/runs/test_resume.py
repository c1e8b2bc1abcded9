"""N updates, resume, N more are 2N updates: the same state bit for bit, the same rows."""

import json
import shutil

import numpy as np
import pytest
import yaml

import regimen
from regimen.engines.native import NativeEngine
from regimen.errors import ConfigError, StorageError
from regimen.files.checkpoint import Checkpoints
from regimen.files.run_dir import RunFiles, read_metrics
from support import (
    EPISODES,
    EVERYTHING,
    STEPS,
    UPDATE,
    WHOLE,
    assert_same_run,
    comparable,
    digest_of,
    final_state,
    reseal,
    status,
    tiny,
)

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

KINDS = {"steps": STEPS, "episodes": EPISODES}


def budget(kind: str, updates: int) -> dict:
    return {"total_steps": updates * UPDATE} if kind == "steps" else {"total_episodes": updates * 4}


@pytest.fixture(scope="module", params=KINDS)
def whole(request, tmp_path_factory):
    """(kind, directory of 16 updates in one go, its settings)."""
    kind, out = request.param, tmp_path_factory.mktemp("whole") / request.param
    tiny(out, **{**KINDS[kind], **budget(kind, WHOLE)})
    return kind, out, KINDS[kind]


def test_half_and_half_is_the_whole(whole, tmp_path):
    kind, out, settings = whole
    half = tmp_path / "half"
    first = tiny(half, **{**settings, **budget(kind, WHOLE // 2)})
    assert first.summary["updates"] == 8 and first.summary["stop_reason"].startswith("max_")
    second = regimen.resume(half, **budget(kind, WHOLE))
    assert second.summary["updates"] == 16 and status(half)["state"] == "finished"
    assert_same_run(out, half)
    same = ("eval_return_mean", "final_return_mean", "best_checkpoint", "episodes", "stop_reason", "stop_detail")
    original = regimen.evaluate(out, episodes=3).to_dict()
    assert regimen.evaluate(half, episodes=3).to_dict() == original
    assert {k: second.summary[k] for k in same} == {k: summary_of(out)[k] for k in same}


def summary_of(run):
    return yaml.safe_load((run / "summary.json").read_text())


def test_a_copy_goes_on_from_any_checkpoint_and_the_run_is_left_as_it_is(whole, tmp_path):
    _kind, out, _ = whole
    steps = Checkpoints(out / "checkpoints").steps()
    before = digest_of(out)
    regimen.resume(out, checkpoint=str(steps[0]), out=tmp_path / "copy")
    assert digest_of(out) == before
    assert_same_run(out, tmp_path / "copy")


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(whole, tmp_path):
    """As kill -9 leaves it: a later checkpoint half written, rows beyond the last whole one, a torn line."""
    _kind, out, _ = whole
    run = shutil.copytree(out, tmp_path / "killed", symlinks=True)
    steps = Checkpoints(run / "checkpoints").steps()
    for later in steps[2:]:
        shutil.rmtree(run / "checkpoints" / str(later))
    (run / "checkpoints" / ".999.tmp").mkdir()
    (run / "summary.json").unlink()
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"env_steps": 99')
    regimen.resume(run)
    assert_same_run(out, run)


def test_schedules_and_normalisers_have_moved(whole):
    """Or the comparisons above would prove little."""
    kind, out, _ = whole
    rows = [r for r in read_metrics(out) if "train/lr" in r]
    assert rows[0]["train/lr"] > rows[-1]["train/lr"] and rows[0]["train/clip_eps"] > rows[-1]["train/clip_eps"]
    assert rows[0]["train/ent_coef"] > rows[-1]["train/ent_coef"] and len({r["train/kl_coef"] for r in rows}) > 2
    arrays, run = final_state(out)
    assert arrays["state/norm/obs/count"] == run["counters"]["steps"] >= rows[-1]["env_steps"]
    assert {r["updates"] for r in rows} >= {3, 5, 6, 9, 10, 12, 15} if kind == "steps" else len(rows) > 5
    assert run["rules"]["convergence"]["waited"] >= 0 and run["rules"]["no_improvement"]["best"] is not None


@pytest.mark.parametrize("most", [1, 3])
def test_the_machine_decides_nothing(whole, tmp_path, monkeypatch, most):
    """However few updates a compiled call covers, and so wherever a slow machine would end one."""
    kind, out, settings = whole
    limits = NativeEngine.device_limits

    def slow(self, asked):
        self.speed = most
        return limits(self, asked)

    monkeypatch.setattr(NativeEngine, "device_limits", slow)
    tiny(tmp_path / "slow", **{**settings, **budget(kind, WHOLE)})
    assert_same_run(out, tmp_path / "slow")


def test_a_rule_stops_at_the_same_update_on_a_slow_machine(tmp_path, monkeypatch):
    settings = {"stop.target_return": 5, "stop.convergence_window": 3, "stop.patience": 6, "log.every": "6"}
    fast = tiny(tmp_path / "fast", updates=40, **settings)
    limits = NativeEngine.device_limits

    def slow(self, asked):
        self.speed = 1
        return limits(self, asked)

    monkeypatch.setattr(NativeEngine, "device_limits", slow)
    tiny(tmp_path / "slow", updates=40, **settings)
    assert fast.stop_reason == "converged" and fast.summary["updates"] % 6 == 0 and fast.summary["updates"] < 40
    assert_same_run(tmp_path / "fast", tmp_path / "slow")


def test_the_horizon_is_that_of_the_first_start(tmp_path):
    run = tmp_path / "run"
    tiny(run, updates=2, **{"algo.lr_schedule": "linear"})
    regimen.resume(run, total_steps=4 * UPDATE)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["algo"]["horizon"] == f"{2 * UPDATE} steps" and config["total_steps"] == 4 * UPDATE
    rates = [row["train/lr"] for row in read_metrics(run)]
    assert rates == pytest.approx([3e-4, 1.5e-4, 0.0, 0.0])


def test_a_converged_run_can_go_on(tmp_path):
    settings = {"stop.target_return": 5, "stop.convergence_window": 3, "stop.patience": 2}
    first = tiny(tmp_path / "run", updates=40, **settings)
    assert first.stop_reason == "converged"
    second = regimen.resume(tmp_path / "run")
    assert second.stop_reason == "converged" and second.summary["updates"] > first.summary["updates"] + 1


@pytest.mark.parametrize("rule", ["converged", "callback", "no_improvement", "max_steps"])
def test_a_run_killed_after_a_rule_ended_it_finishes_and_trains_no_more(tmp_path, rule):
    """Between the last checkpoint and `finished` there is an evaluation, long enough to be killed in."""
    run, callback = tmp_path / "run", None
    settings = {"stop.target_return": 5, "stop.convergence_window": 3, "stop.patience": 2}
    if rule == "no_improvement":
        settings = {"stop.no_improvement": 1, "eval.every": "1", "eval.episodes": 1}
    if rule == "callback":
        settings, callback = {}, lambda info: info["update"] == 3
    if rule == "max_steps":
        settings = {}
    updates = 3 if rule == "max_steps" else 40
    done = tiny(run, updates=updates, callback=callback, **settings | {"checkpoint.keep": 1})
    assert done.stop_reason == rule and done.summary["updates"] < 40
    index, kept = json.loads((run / "checkpoints" / "index.json").read_text()), Checkpoints(run / "checkpoints").steps()
    shutil.copytree(run / "checkpoints" / str(kept[-1]), run / "checkpoints" / "1")  # killed before it was deleted
    (run / "summary.json").unlink()
    reseal(run / "status.json", state="running")
    again = regimen.resume(run)
    for name in ("updates", "env_steps", "stop_reason", "stop_detail", "converged", "eval_return_mean"):
        assert again.summary[name] == done.summary[name], name
    assert status(run)["state"] == "finished" and len(read_metrics(run)) == done.summary["updates"]
    assert json.loads((run / "checkpoints" / "index.json").read_text()) == index, "which is the final one"
    assert Checkpoints(run / "checkpoints").steps() == kept, "no more than are kept"
    longer = regimen.resume(run, total_steps=done.summary["env_steps"] + UPDATE)
    assert longer.summary["updates"] == done.summary["updates"] + 1, "a finished one can go on"


def test_nothing_is_lost_when_there_is_nothing_to_do(tmp_path):
    run = tmp_path / "run"
    tiny(run, updates=4, **{"checkpoint.every": "1"})
    before = digest_of(run)
    with pytest.raises(ConfigError, match=r"the budget of 128 steps is spent; give a larger --total-steps"):
        regimen.resume(run)
    with pytest.raises(ConfigError, match=r"the budget of 64 steps is spent \(96 were used\)"):
        regimen.resume(run, checkpoint="96", total_steps=64)
    with pytest.raises(StorageError, match="no checkpoint at step 100"):
        regimen.resume(run, checkpoint="100", total_steps=1000)
    with pytest.raises(ConfigError, match="128 steps is spent"):
        regimen.resume(run, out=tmp_path / "copy")
    after = digest_of(run)
    assert {k: v for k, v in after.items() if k != ".lock"} == {k: v for k, v in before.items() if k != ".lock"}
    assert not (tmp_path / "copy").exists()


def test_a_run_stopped_before_its_first_checkpoint_starts_again(tmp_path):
    settings = {"checkpoint.every": "2"}
    tiny(tmp_path / "whole", updates=4, **settings)
    run = shutil.copytree(tmp_path / "whole", tmp_path / "run", symlinks=True)
    for folder in ("checkpoints", "policy"):
        shutil.rmtree(run / folder)
    reseal(run / "status.json", state="interrupted")
    regimen.resume(run)
    assert_same_run(tmp_path / "whole", run)
    assert "starting from the beginning" in (run / "log.txt").read_text()


def test_a_run_that_only_lacks_its_last_evaluation_gets_it(tmp_path):
    run = tmp_path / "run"
    done = tiny(run, updates=2)
    (run / "summary.json").unlink()
    reseal(run / "status.json", state="interrupted")
    again = regimen.resume(run)
    assert again.summary["eval_return_mean"] == done.summary["eval_return_mean"] and again.summary["updates"] == 2
    assert again.stop_reason == "max_steps" and status(run)["state"] == "finished"


def test_the_best_policy_is_the_one_of_the_moment_resumed(tmp_path):
    """Going back to before the best was found: policy/ goes back too."""
    run = tmp_path / "run"
    tiny(
        run, updates=6, **{"eval.every": "1", "checkpoint.every": "1", "checkpoint.keep": 9, "checkpoint.keep_best": 9}
    )
    store = Checkpoints(run / "checkpoints")
    bests = sorted(map(int, store.index()["best"]))
    assert regimen.load_policy(run).meta["env_steps"] == int(store.find("best").name)
    regimen.resume(run, checkpoint=str(UPDATE), total_steps=UPDATE + 1, out=tmp_path / "early")
    assert bests[0] == UPDATE
    early = regimen.load_policy(tmp_path / "early").meta["env_steps"]
    assert early in (UPDATE, 2 * UPDATE)


def test_gymnasium_counters_schedules_and_normalisers_are_exact(tmp_path):
    settings = EVERYTHING | {"env": "gym:CartPole-v1", "log.every": "1", "eval.every": "4", "checkpoint.every": "2"}
    settings |= {"algo.horizon": f"{6 * UPDATE} steps"}
    tiny(tmp_path / "whole", updates=6, **settings)
    tiny(tmp_path / "half", updates=3, **settings)
    regimen.resume(tmp_path / "half", total_steps=6 * UPDATE)
    rows, others = (comparable(read_metrics(tmp_path / name)) for name in ("whole", "half"))
    assert rows[:3] == others[:3]
    exact = ("env_steps", "updates", "train/lr", "train/clip_eps", "train/ent_coef")
    assert [{k: r[k] for k in exact} for r in rows] == [{k: r[k] for k in exact} for r in others]
    arrays, run = final_state(tmp_path / "half")
    assert arrays["state/norm/obs/count"] == arrays["state/norm/return/count"] == 6 * UPDATE
    assert run["counters"]["updates"] == int(arrays["state/clock/updates"]) == 6
    assert int(arrays["state/clock/episodes"]) == run["counters"]["episodes"] == others[-1]["episodes"]
    assert np.isfinite(arrays["state/norm/obs/mean"]).all()


def test_one_process_at_a_time(tmp_path):
    run = tmp_path / "run"
    tiny(run, updates=1)
    holder = RunFiles.open(run)
    holder.lock()
    try:
        with pytest.raises(StorageError, match=r"is in use by process \d+"):
            regimen.resume(run, total_steps=1000)
        assert status(run)["state"] == "finished", "the refused process writes nothing"
    finally:
        holder.close()


def test_a_group_goes_on_bit_for_bit_together_and_one_alone(tmp_path):
    """In a program of the width in which it began: one of another width gives other last digits."""
    settings = {"seeds": 3, "checkpoint.every": "2", "algo.horizon": "256 steps", "network.hidden": (64, 64)}
    whole = tiny(tmp_path / "whole", 8, **settings)
    half = tiny(tmp_path / "half", 4, **settings)
    copy = tmp_path / "one"
    regimen.resume(half.run_dir / "seed-1", total_steps=8 * UPDATE, out=copy)
    assert_same_run(whole.run_dir / "seed-1", copy)
    assert "one of 3 runs in one program" in (copy / "log.txt").read_text()
    both = regimen.resume(half.run_dir, total_steps=8 * UPDATE)
    assert [r.summary["updates"] for r in both.runs] == [8, 8, 8] and both.summary["seeds"] == [0, 1, 2]
    for n in range(3):
        assert_same_run(whole.run_dir / f"seed-{n}", half.run_dir / f"seed-{n}")
    again = regimen.resume(half.run_dir)  # nothing is left to do
    assert again.summary == both.summary
    with pytest.raises(ConfigError, match=r"--out: .* is a group of seeds"):
        regimen.resume(half.run_dir, out=tmp_path / "other")


@pytest.mark.parametrize("changed", ["residual", "layer_norm"])
def test_another_network_is_refused_though_weights_of_its_shapes_are_there(whole, tmp_path, changed):
    """Hidden layers that add to their input have the weights of those that do not, and another policy."""
    _, out, settings = whole
    with pytest.raises(StorageError, match=f"does not fit: its network is mlp.*this run's is .*{changed} True"):
        tiny(tmp_path / "run", init_from=out, **{**settings, f"network.{changed}": True, **budget("steps", 2)})
