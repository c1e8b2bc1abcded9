"""An exported policy acts as the run's does, and says what it is."""

import json

import numpy as np
import pytest

import regimen
from conflict_env import Crossing
from regimen.errors import StorageError
from regimen.policies import export
from regimen.policies.export import export_policy
from support import tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """With checkpoints of all three kinds."""
    out = tmp_path_factory.mktemp("export") / "run"
    often = {"eval.every": "2", "eval.episodes": 4, "checkpoint.every": "3", "stop.perfect_streak": 50}
    return tiny(out, 4, Crossing(), **often).run_dir


def test_the_folder_says_what_the_policy_is(run, tmp_path):
    path = export_policy(run, tmp_path / "policy")
    about = json.loads((path / "metadata.json").read_text())
    assert (about["algorithm"], about["env"], about["seed"], about["agents"]) == ("ppo", "conflict_env:Crossing", 0, 1)
    assert (about["env_steps"], about["episodes"], about["updates"]) == (128, 64, 4)
    assert (about["zero_conflict_streak"], about["perfect_streak"], about["stop_reason"]) == (2, 2, "max_steps")
    found = about["evaluation"]
    low, high = found["return_ci95"]
    assert found["episodes"] == 4 and low <= found["return_mean"] <= high
    assert found["metrics"]["los"] == 0.0 and found["metrics"]["success_rate"] == 1.0
    assert found["metrics_ci95"]["los"] == pytest.approx([0.0, 0.4899], abs=1e-4), "Wilson, 0 of 4"
    assert about["versions"]["jax"] and about["device"].startswith("cpu")
    text = (path / "README.md").read_text()
    for part in ("# PPO on conflict_env:Crossing", "128 env steps, 64 episodes", "perfect streak | 2", "load_policy"):
        assert part in text
    assert "None" not in text


def test_it_can_be_loaded_and_acts_alike(run, tmp_path):
    policy = regimen.load_policy(export_policy(run, tmp_path / "policy", "final"))
    obs = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    assert policy.act_batch(obs).tolist() == regimen.load_policy(run, "final").act_batch(obs).tolist()


def test_a_periodic_checkpoint_has_no_evaluation_of_its_own(run, tmp_path):
    about = json.loads((export_policy(run, tmp_path / "policy", "96") / "metadata.json").read_text())
    assert about["policy_env_steps"] == 96 and "evaluation" not in about
    assert "evaluation |" not in (tmp_path / "policy" / "README.md").read_text()


def test_a_policy_folder_can_be_exported_and_an_existing_one_is_left_alone(run, tmp_path):
    path = export_policy(run / "policy", tmp_path / "again")
    assert "# PPO on" in (path / "README.md").read_text()
    with pytest.raises(StorageError, match="already exists"):
        export_policy(run, path)


def test_one_that_is_killed_leaves_nothing_under_its_name(run, tmp_path, monkeypatch):
    """Everything is there in one step; the next one removes what was left beside it."""
    seen = []
    whole = export.write_json
    monkeypatch.setattr(export, "write_json", lambda *a: (seen.append((tmp_path / "policy").exists()), whole(*a)))
    path = export_policy(run, tmp_path / "policy")
    assert seen == [False] and sorted(p.name for p in tmp_path.iterdir()) == ["policy"]
    assert sorted(p.name for p in path.iterdir()) == ["README.md", "config.json", "metadata.json", "policy.safetensors"]
