"""Names of other trainers are answered with ours, everywhere a setting can be named."""

import re
from pathlib import Path

import pytest
import yaml

import regimen
from regimen.cli.train import read
from regimen.config import layers, names
from regimen.config.schema import ALGORITHMS
from regimen.errors import RegimenError

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
LEAVES = {algo: layers.leaf_types(algo) for algo in ALGORITHMS}


@pytest.mark.parametrize("name", list(names.names().values()), ids=lambda n: n.other)
def test_every_entry_leads_to_a_setting_and_from_a_name_that_is_none(name):
    for ours in name.ours:
        assert any(ours in leaves for leaves in LEAVES.values()), ours
    assert layers.resolve_key(name.other, "ppo") is None, "it is a setting already"


def test_names_are_listed_once():
    text = Path(names.__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    listed = re.findall(r"^(\w+):", text, re.MULTILINE)  # YAML takes the last of equal keys without a word
    assert sorted(listed) == sorted(names.names())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("clip_range", "algo.clip_eps"),
        ("clip_epsilon", "algo.clip_eps"),
        ("rollout_batch_size", "rollout.episodes"),
        ("epochs_per_update", "algo.epochs"),
        ("train_batch_size", "rollout.steps"),
        ("num_sgd_iter", "algo.epochs"),
        ("timesteps_total", "total_steps"),
        ("total_timesteps", "total_steps"),
        ("batch_size", "algo.minibatch_size"),
    ],
)
def test_flags_yaml_and_python(theirs, ours, tmp_path):
    with pytest.raises(RegimenError) as error:
        read(["cartpole", f"--{theirs.replace('_', '-')}", "3"])
    assert f"here it is {'--' if theirs != 'batch_size' else ''}" in str(error.value)
    assert ours.replace("_", "-") in str(error.value).replace("_", "-")
    file = tmp_path / "my.yaml"
    for content in ({theirs: 3}, {"algo": {theirs: 3}}):
        file.write_text(yaml.safe_dump({"env": "cartpole"} | content))
        with pytest.raises(RegimenError, match=rf"unknown setting '(algo\.)?{theirs}'; here it is {ours}"):
            layers.build_config(config_file=file)
    with pytest.raises(RegimenError, match=f"here it is {ours}"):
        regimen.train("cartpole", **{theirs: 3})


def test_the_algorithm_decides():
    assert layers.build_config("pendulum", algo="sac", overrides={"batch_size": 64}).algo.batch_size == 64
    with pytest.raises(RegimenError, match=r"here it is algo\.critic_lr"):
        layers.build_config("pendulum", algo="sac", overrides={"q_lr": 1e-3})


def test_a_note_says_what_is_counted_differently():
    with pytest.raises(RegimenError, match=r"rollout\.steps .*over all environments"):
        layers.build_config("cartpole", overrides={"n_steps": 128})


def test_other_unknown_names_still_get_the_nearest():
    with pytest.raises(RegimenError, match=r"did you mean 'algo\.clip_eps'"):
        layers.build_config("cartpole", overrides={"algo.clip_epss": 0.1})


def test_the_page_has_the_tables_of_the_code():
    text = PAGE.read_text()
    assert names.page(text) == text, "run `python -m regimen.config.names docs/migrating.md`"
    assert all(f"`{name.other}`" in text for name in names.names().values())
