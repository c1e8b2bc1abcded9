"""A process whose memory is limited says so before XLA would end it without a word."""

import resource
import subprocess
import sys

import pytest

from regimen.algorithms.bind import bind_algorithm
from regimen.config import layers
from regimen.config.regimen import resolve
from regimen.engines import device
from regimen.envs import registry
from regimen.errors import OutOfMemoryError
from regimen.runs.build import make_engine


def test_too_small_an_address_space_is_refused_with_exit_code_7(tmp_path):
    """With 1.2 GB (`ulimit -v 1200000`) the first compilation aborted the process."""
    command = [sys.executable, "-m", "regimen", "train", "cartpole", "--no-track", "--out", str(tmp_path / "run")]

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1_200_000_000, resource.RLIM_INFINITY))

    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("\n") == 1 and "(`ulimit -v`)" in done.stderr and "raise the limit" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("limit", "used", "refused"), [(4e9, 3.5e9, False), (4e9, 3.8e9, True), (2.4e9, 0.4e9, True)])
def test_what_is_left_to_compile_counts(monkeypatch, limit, used, refused):
    monkeypatch.setattr(device, "addresses", lambda: (int(limit), int(used)))
    if refused:
        with pytest.raises(OutOfMemoryError, match="raise the limit"):
            device.require_addresses()
    else:
        device.require_addresses()
        assert device.available_memory(device.jax.devices()[0]) <= limit - used, "batches have to fit into it, too"


def build(env, algo="ppo", env_args=None, **overrides):
    """A configuration and its algorithm, for one environment."""
    config = layers.build_config(env, algo, overrides=overrides).replace(env_args=env_args or {})
    handle = registry.resolve(env, env_args)
    return config, bind_algorithm(config, handle, resolve(config, True, 1, handle.max_episode_steps))


def test_what_layers_of_encoders_keep_is_counted():
    """One convolution of 3 pixels and 16 filters over 10 x 10, a dense layer of 128: three times both, in floats."""
    assert build("probe/image")[1].bound.activation_bytes() == 3 * 4 * (8 * 8 * 16 + 128)
    assert build("probe/match")[1].bound.activation_bytes() == 0


@pytest.mark.parametrize(
    ("algo", "overrides", "message"),
    [
        ("sac", {"algo.buffer_size": 1_000_000}, r"this replay needs about 14\.1 GB, .*reduce algo\.buffer_size"),
        (
            "ppo",
            {"network.encoder": "impala", "rollout.steps": 16_384, "algo.minibatch_size": 16_384},
            r"a gradient step through the observation's encoders needs about .* GB .*algo\.minibatch_size",
        ),
        (
            "ppo",
            {"rollout.steps": 1_048_576, "algo.minibatch_size": 64},
            r"this schedule needs about .* GB .*rollout\.num_envs",
        ),
    ],
)
def test_images_that_do_not_fit_are_refused_before_anything_is_made(monkeypatch, algo, overrides, message):
    """With 16 GB, of 84 x 84 pixels in stacks of four: the number, and the setting to lower."""
    monkeypatch.setattr(device, "available_memory", lambda device: int(16e9))
    env_args = {"side": 84, "frame_stack": 4}
    config, bound = build("probe/image", algo, env_args, **overrides)
    monkeypatch.setattr(type(bound), "init", None)
    with pytest.raises(OutOfMemoryError, match=message) as error:
        make_engine(config, registry.resolve("probe/image", env_args), [0], lambda: False)
    assert "\n" not in str(error.value)
