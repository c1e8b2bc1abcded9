"""A policy as a program: it acts like the policy, without it, on any number of observations."""

import json

import jax
import numpy as np
import pytest

import regimen
from regimen.algorithms.bind import bind_algorithm
from regimen.cli.main import main
from regimen.config import layers
from regimen.config.regimen import resolve
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.normalize import RunningStats
from regimen.policies import export_program
from regimen.policies.export import export_policy
from regimen.policies.policy import save_policy

pytestmark = pytest.mark.usefixtures("compilation_cache")


def saved(folder, env, **overrides):
    """The policy folder of a fresh policy: nothing has to be trained to be exported."""
    config = layers.build_config(env, overrides={"network.hidden": (8,)} | overrides)
    algo = bind_algorithm(config, registry.resolve(env), resolve(config, native=True))
    state = algo.init(jax.random.key(1))
    draws = np.random.default_rng(0)
    norm = {
        k: RunningStats.of(draws.normal(1, 2, (64, *s.mean.shape)).astype("f4"), np.ones(64, bool))
        for k, s in state.norm.items()
    }
    params = algo.actor_params(state.replace(norm=norm) if norm else state)
    save_policy(folder, "ppo", algo, params, {"env": env, "env_args": {}, "seed": 0, "env_steps": 0})
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Discrete, continuous with a normaliser, hybrid; read by encoders of a set and of an image."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "cartpole": saved(folder / "cartpole", "cartpole"),
        "pendulum": saved(folder / "pendulum", "pendulum", **{"algo.normalize_obs": True}),
        "platform": saved(folder / "platform", "platform"),
        "probe/set": saved(folder / "set", "probe/set"),
        "probe/image": saved(folder / "image", "probe/image"),
    }


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "platform", "probe/set", "probe/image"])
def test_stablehlo(runs, name, tmp_path):
    out = export_policy(runs[name], tmp_path / "out", program="stablehlo")
    signature = json.loads((out / "signature.json").read_text())
    policy = regimen.load_policy(out)
    act = jax.export.deserialize(bytearray((out / "policy.stablehlo").read_bytes())).call
    assert list(signature["inputs"]) == export_program.input_names(policy)
    for n in (1, 3, 17):
        parts = export_program.samples(policy, n, seed=5)
        if name == "cartpole":
            (action,) = act(*parts)
            np.testing.assert_array_equal(action, policy.act_batch(parts[0]))
        else:
            mine = jax.tree.leaves(export_program.greedy(policy)(*parts))
            assert len(mine) == len(signature["outputs"])
            for a, b in zip(mine, act(*parts)):
                np.testing.assert_allclose(a, b, atol=1e-5)
    assert "policy.stablehlo" in (out / "README.md").read_text()
    assert json.loads((out / "metadata.json").read_text())["program"] == "policy.stablehlo"


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_onnx(runs, name, tmp_path):
    pytest.importorskip("jax2onnx", reason="run by `make test-onnx` in an environment of its own")
    onnxruntime = pytest.importorskip("onnxruntime")
    out = export_policy(runs[name], tmp_path / "out", program="onnx")
    session = onnxruntime.InferenceSession(str(out / "policy.onnx"), providers=["CPUExecutionProvider"])
    policy = regimen.load_policy(out)
    for n in (1, 5, 200):
        (obs,) = export_program.samples(policy, n, seed=9)
        (action,) = session.run(None, {"observation": obs})
        np.testing.assert_allclose(action, policy.act_batch(obs), atol=1e-4)


def test_an_export_that_acts_otherwise_is_refused(runs, tmp_path, monkeypatch):
    right = export_program.greedy

    def wrong(policy):
        wrong.calls += 1
        act = right(policy)
        return act if wrong.calls > 2 else lambda *parts: tuple(1 - a for a in act(*parts))

    wrong.calls = 0
    monkeypatch.setattr(export_program, "greedy", wrong)
    with pytest.raises(ConfigError, match="does not act like the policy"):
        export_policy(runs["cartpole"], tmp_path / "out", program="stablehlo")
    assert not (tmp_path / "out").exists()


def test_a_recurrent_policy_is_refused(tmp_path):
    run = saved(tmp_path / "run", "cartpole", **{"network.memory": "gru", "network.memory_size": 4})
    with pytest.raises(ConfigError, match="recurrent"):
        export_policy(run, tmp_path / "out", program="stablehlo")


def test_command(runs, tmp_path, capsys, monkeypatch):
    assert main(["export", str(runs["cartpole"]), "--out", str(tmp_path / "a"), "--format", "stablehlo"]) == 0
    assert (tmp_path / "a" / "policy.stablehlo").is_file() and (tmp_path / "a" / "policy.safetensors").is_file()
    monkeypatch.setattr(export_program.importlib.util, "find_spec", lambda name: None)
    assert main(["export", str(runs["cartpole"]), "--out", str(tmp_path / "b"), "--format", "onnx"]) == 3
    assert "pip install 'regimen[onnx]'" in capsys.readouterr().err and not (tmp_path / "b").exists()
    assert main(["export", str(runs["cartpole"]), "--out", str(tmp_path / "b"), "--format", "torch"]) == 3
