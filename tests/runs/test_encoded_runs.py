"""Runs whose observations are read by encoders: several seeds, several devices, policy maps, another network."""

import os
import shutil
import subprocess
import sys
from itertools import pairwise

import jax
import numpy as np
import pytest

import regimen
from regimen.errors import StorageError
from regimen.files.storage import read_json
from support import command_line, final_state, status, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

SMALL = {"network.encoder_size": 4, "network.hidden": (8, 8), "eval.every": "never"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Two seeds on images, trained in one program."""
    out = tmp_path_factory.mktemp("images") / "run"
    tiny(out, updates=2, env="probe/image", seeds=2, **SMALL)
    return out


def test_seeds_of_one_program_learn_what_each_learns_alone(images, tmp_path):
    tiny(tmp_path / "alone", updates=2, env="probe/image", seed=1, **SMALL)
    together, alone = (final_state(run)[0] for run in (images / "seed-1", tmp_path / "alone"))
    names = [name for name in alone if name.startswith("state/models/")]
    assert any("encoder" in name for name in names)
    for name in names:
        np.testing.assert_allclose(together[name], alone[name], atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("setting", "value"), [("residual", True), ("channels", "last")])
def test_a_run_does_not_begin_with_the_weights_of_another_network(images, tmp_path, setting, value):
    """They would fit, and mean something else."""
    changed = {**SMALL, f"network.{setting}": value}
    with pytest.raises(StorageError, match=f"does not fit: its network is mlp.*this run's is .*{setting}"):
        tiny(tmp_path / "run", updates=1, env="probe/image", init_from=str(images / "seed-0"), **changed)


def test_a_run_whose_network_was_changed_is_not_resumed(images, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(images / "seed-0", run)
    text = (run / "config.yaml").read_text()
    assert text.count("  channels: auto") == 1
    (run / "config.yaml").write_text(text.replace("  channels: auto", "  channels: last"))
    with pytest.raises(StorageError, match=r"config\.yaml has changed since Regimen wrote it"):
        regimen.resume(run, total_steps=128)


def test_two_devices_learn_what_one_learns(tmp_path):
    """In a process of its own, in which the processor is two devices; each shuffles its own rows, so one minibatch."""
    whole = {"algo.minibatch_size": 64, "algo.epochs": 1, "rollout.num_envs": 4, "total_steps": 64, **SMALL}
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    for devices in (1, 2):
        line = command_line(**whole, devices=devices, out=tmp_path / str(devices))
        command = [sys.executable, "-m", "regimen", "train", "probe/set", *line]
        done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert status(tmp_path / str(devices))["state"] == "finished"
    one, two = (final_state(tmp_path / str(devices))[0] for devices in (1, 2))
    for name in (name for name in one if name.startswith("state/models/")):
        np.testing.assert_allclose(one[name], two[name], atol=1e-4, err_msg=name)


def test_each_policy_of_a_map_has_an_encoder_of_its_own(tmp_path):
    """Aircraft that see the others as a set: four policies learn, load and act."""
    args = {"observation": "set", "max_episode_steps": 5}
    tiny(tmp_path / "run", updates=1, env="airspace/cross_4all", policy_map="independent", env_args=args, **SMALL)
    arrays = final_state(tmp_path / "run")[0]
    encoders = {name.split("encoder")[0] for name in arrays if "encoder" in name and "/params/" in name}
    assert len(encoders) == 4
    first = [
        x for name, x in sorted(arrays.items()) if "encoder" in name and "/params/" in name and "first/kernel" in name
    ]
    assert all(not np.array_equal(a, b) for a, b in pairwise(first))
    policy = regimen.load_policy(tmp_path / "run")
    assert regimen.evaluate(tmp_path / "run", episodes=1).returns.shape == (1,) and jax.tree.leaves(policy.params)
    assert read_json(tmp_path / "run" / "status.json")["state"] == "finished"
