"""A trained policy on its own: safetensors and a JSON file with all that inference needs. No pickle."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from regimen import spaces
from regimen.config import ALGORITHMS, NetworkConfig
from regimen.errors import StorageError, nearest
from regimen.training.trees import flatten, unflatten
from regimen.types import PyTree, Spec

SCHEMA = 1


def make_algorithm(name: str, config: Any, network: NetworkConfig) -> Any:
    """The algorithm registered as `name`, with its hyper-parameters."""
    return ALGORITHMS[name].load()(config, network)


class Policy:
    """Acts on observations, greedily by default. Made by `regimen.load_policy`."""

    def __init__(self, algo: Any, params: PyTree, meta: dict):
        self.algo, self.params, self.meta = algo, params, meta
        self.observation_space = algo.bound.spec.observation_space
        self.action_space = algo.bound.spec.action_space
        self.key = jax.random.key(0)
        self._greedy = jax.jit(lambda params, obs, mask: algo.to_env(algo.act(params, obs, (), None, mask=mask, greedy=True)[0]))
        self._sample = jax.jit(lambda params, obs, mask, noise: algo.to_env(algo.act(params, obs, (), noise, mask=mask)[0]))

    def act(self, obs: Any, *, greedy: bool = True, mask: Any = None) -> Any:
        """The action for one observation, in the environment's own form (an int, or an array)."""
        batch = jax.tree.map(lambda x: np.asarray(x)[None], spaces.cast(self.observation_space, obs))
        action = self.act_batch(batch, greedy=greedy, mask=None if mask is None else np.asarray(mask)[None])[0]
        return action.item() if np.ndim(action) == 0 else action

    def act_batch(self, obs: Any, *, greedy: bool = True, mask: Any = None) -> np.ndarray:
        """Actions [N, ...] for a batch of observations [N, ...]."""
        obs = spaces.cast(self.observation_space, obs)
        mask = None if mask is None else jnp.asarray(mask, bool)
        if greedy:
            action = self._greedy(self.params, obs, mask)
        else:
            self.key, key = jax.random.split(self.key)
            n = jax.tree.leaves(obs)[0].shape[0]
            action = self._sample(self.params, obs, mask, self.algo.noise(key, (n,)))
        return np.asarray(action).astype(self.action_space.dtype)


def save_policy(path: Path, algorithm: str, algo: Any, params: PyTree, meta: dict) -> None:
    """Write the policy folder: completely, or not at all."""
    import dataclasses

    spec = algo.bound.spec
    config = {
        "schema": SCHEMA,
        "algorithm": algorithm,
        "algo": dataclasses.asdict(algo.config),
        "network": dataclasses.asdict(algo.network),
        "observation_space": spaces.to_json(spec.observation_space),
        "action_space": spaces.to_json(spec.action_space),
        **meta,
    }
    tmp = path.with_name(path.name + ".tmp")
    try:
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        save_file(flatten(params), tmp / "policy.safetensors")
        (tmp / "config.json").write_text(json.dumps(config, indent=2, default=float) + "\n")
        if path.exists():
            old = path.with_name(path.name + ".old")
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)
            os.rename(tmp, path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(tmp, path)
    except OSError as e:
        raise StorageError(f"cannot write the policy {path}: {e}") from e


def load_policy(source: str | Path, checkpoint: str = "best") -> Policy:
    """The policy of a run directory (or of a policy folder). `checkpoint`: `best`, `final` or an env step."""
    path = Path(source)
    if not (path / "config.json").exists() and checkpoint != "best":
        from regimen.training.checkpoint import Checkpoints

        path = Checkpoints(path / "checkpoints").find(checkpoint) / "policy"
    elif (path / "policy" / "config.json").exists():
        path = path / "policy"
    return read_policy(path)


def read_policy(path: Path) -> Policy:
    try:
        meta = json.loads((path / "config.json").read_text())
        arrays = load_file(path / "policy.safetensors")
    except FileNotFoundError as e:
        raise StorageError(f"no policy in {path}: {Path(str(e.filename)).name} is missing") from e
    except Exception as e:
        raise StorageError(f"the policy in {path} is damaged: {type(e).__name__}: {e}") from e
    if meta.get("schema", 0) > SCHEMA:
        raise StorageError(f"the policy in {path} was written by a newer version (schema {meta['schema']} > {SCHEMA})")
    name = meta["algorithm"]
    if name not in ALGORITHMS:
        raise StorageError(f"the policy in {path} is of algorithm '{name}', unknown here{nearest(name, ALGORITHMS)}")
    entry = ALGORITHMS[name]
    network = NetworkConfig(**(meta["network"] | {"hidden": tuple(meta["network"]["hidden"])}))
    algo = entry.load()(entry.config(**meta["algo"]), network)
    algo = algo.bind(Spec(spaces.from_json(meta["observation_space"]), spaces.from_json(meta["action_space"])))
    like = algo.actor_params(algo.init(jax.random.key(0)))
    return Policy(algo, unflatten(like, arrays, f"the policy in {path}"), meta)
