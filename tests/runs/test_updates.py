"""`for update in trainer.updates()`: the training of `train`, with a pause after each update."""

import contextlib
import json

import jax
import numpy as np
import pytest

import regimen
from regimen.errors import DivergedError
from regimen.policies.export import export_policy
from support import TINY

UPDATES = 6


def trainer(path, env="cartpole", **settings):
    budget = {"total_steps": UPDATES * TINY["rollout.steps"]}
    return regimen.Trainer(env, out=str(path), **(TINY | budget | {"eval.every": "2"} | settings))


def weights(run_dir, step="final"):
    params = regimen.load_policy(run_dir, step).params
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])


def state(path):
    return json.loads((path / "status.json").read_text())


def logged(result):
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "wall"))} for row in result.history]


@pytest.mark.parametrize("env", ["cartpole", "gym:CartPole-v1"])
def test_it_is_the_training_of_train(env, tmp_path):
    whole = trainer(tmp_path / "whole", env).train()
    stepwise, told = trainer(tmp_path / "stepwise", env), []
    for update in stepwise.updates():
        assert state(tmp_path / "stepwise")["state"] == "running"
        told.append(update)
    assert [update["update"] for update in told] == list(range(1, UPDATES + 1))
    assert [update["eval_metrics"] is not None for update in told] == [False, True] * (UPDATES // 2)
    assert told[1]["eval_metrics"]["avg_reward"] == whole.history[1]["eval/return_mean"]
    assert logged(stepwise.result) == logged(whole)
    np.testing.assert_array_equal(weights(tmp_path / "whole"), weights(tmp_path / "stepwise"))
    assert stepwise.result.summary["stop_reason"] == whole.summary["stop_reason"] == "max_steps"
    assert state(tmp_path / "stepwise")["state"] == "finished" and stepwise.policy is not None


def test_who_leaves_the_loop_can_go_on(tmp_path):
    """The run says `interrupted`, its lock is free, and a resume ends where an undisturbed run does."""
    whole = trainer(tmp_path / "whole").train()
    stepwise = trainer(tmp_path / "left")
    for update in stepwise.updates():
        if update["update"] == 3:
            break
    assert stepwise.result.run_dir == tmp_path / "left" and stepwise.result.summary["updates"] == 3
    assert (state(tmp_path / "left")["state"], state(tmp_path / "left")["stop_reason"]) == ("interrupted", "the caller")
    resumed = regimen.resume(tmp_path / "left")
    assert logged(resumed) == logged(whole)
    np.testing.assert_array_equal(weights(tmp_path / "whole"), weights(tmp_path / "left"))


def test_an_error_of_the_program_leaves_the_run_saved(tmp_path):
    with (
        pytest.raises(RuntimeError, match="mine"),
        contextlib.closing(trainer(tmp_path / "run").updates()) as updates,
    ):
        for update in updates:
            if update["update"] == 2:
                raise RuntimeError("mine")
    assert state(tmp_path / "run")["state"] == "interrupted"
    assert regimen.resume(tmp_path / "run").summary["updates"] == UPDATES


def test_several_seeds_are_told_one_by_one(tmp_path):
    several = trainer(tmp_path / "runs", seeds=2)
    told = [(update["update"], update["seed"]) for update in several.updates()]
    assert told == [(n, seed) for n in range(1, UPDATES + 1) for seed in (0, 1)]
    assert len(several.result.runs) == 2


def test_a_divergence_is_raised_where_the_program_waits(tmp_path):
    with pytest.raises(DivergedError, match="diverged"):
        for _ in trainer(tmp_path / "run", **{"algo.lr": 1e38, "algo.max_grad_norm": 1e38}).updates():
            pass
    assert state(tmp_path / "run")["state"] == "diverged"


FILES = ["README.md", "config.json", "metadata.json", "policy.safetensors"]
TIMES = ("exported", "finished", "wall_seconds", "versions", "device")


def test_a_policy_is_described_from_the_first_one_on(tmp_path):
    """Beside the policy stand metadata and README: in training what is known, at the end as `export` has them."""
    run, told = tmp_path / "run", []
    for _ in trainer(run).updates():
        if (run / "policy").is_dir():
            told.append(json.loads((run / "policy" / "metadata.json").read_text()))
            assert sorted(path.name for path in (run / "policy").iterdir()) == FILES
    assert told[0]["policy_env_steps"] == told[0]["env_steps"] == 2 * TINY["rollout.steps"]
    assert "evaluation" not in told[0] and told[0]["best_return"] > 0
    exported = json.loads((export_policy(run) / "metadata.json").read_text())
    last = json.loads((run / "policy" / "metadata.json").read_text())
    assert {k: v for k, v in last.items() if k not in TIMES} == {k: v for k, v in exported.items() if k not in TIMES}
    assert last["evaluation"]["episodes"] and "trained for" in (run / "policy" / "README.md").read_text()
    for name in ("metadata.json", "README.md"):  # as a policy of an older version, which has none
        (run / "policy" / name).unlink()
    assert regimen.load_policy(run).act([0.0] * 4) in (0, 1)
