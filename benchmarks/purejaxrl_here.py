"""PureJaxRL's PPO from a checkout of it, as one compiled function: nothing of it is copied or changed.

Its `ppo.py` imports more than it runs. What is not installed of that is replaced by empty modules, and distrax (which
has no release for jax 0.11) by its one class that is used: a categorical distribution.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

UNUSED = ["brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix", "seaborn", "gym"]
URLS = ["six", "six.moves", "six.moves.urllib", "six.moves.urllib.request"]


class Empty(types.ModuleType):
    """A module that has every name."""

    __path__: list[str] = []  # noqa: RUF012 - so that modules below it are looked for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return object


class Categorical:
    """What `ppo.py` uses of distrax."""

    def __init__(self, logits: jax.Array):
        self.logits = jax.nn.log_softmax(logits)

    def sample(self, seed: jax.Array) -> jax.Array:
        return jax.random.categorical(seed, self.logits)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.take_along_axis(self.logits, action[..., None].astype(int), -1)[..., 0]

    def entropy(self) -> jax.Array:
        return -jnp.sum(jnp.exp(self.logits) * self.logits, -1)


def missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError, AttributeError):
        return True


def load(checkout: Path) -> Any:
    """The module `ppo` of a checkout. gymnax 0.0.8, which it was written for, may lie beside it."""
    folder = checkout / "purejaxrl" if (checkout / "purejaxrl" / "ppo.py").is_file() else checkout
    sys.path[:0] = [str(folder), str(checkout)]
    for names in (UNUSED, URLS):
        if missing(names[0]):
            for name in names:
                sys.modules[name] = Empty(name)
    for name in ("distrax", "chex", "seaborn", "gym"):
        if missing(name):
            sys.modules[name] = Empty(name)
    if missing("distrax"):
        sys.modules["distrax"].Categorical = Categorical  # type: ignore[attr-defined]
    if missing("chex"):
        sys.modules["chex"].Array = sys.modules["chex"].PRNGKey = jax.Array  # type: ignore[attr-defined]
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
    return importlib.import_module("ppo")


def compiled(checkout: Path, num_envs: int, updates: int, steps: int) -> tuple[Callable[[Any], Any], int]:
    """The training of so many updates, and its env steps: mean return of its episodes, and its parameters."""
    module = load(checkout)
    total = num_envs * steps * updates
    config = {"LR": 2.5e-4, "NUM_ENVS": num_envs, "NUM_STEPS": steps, "TOTAL_TIMESTEPS": total, "UPDATE_EPOCHS": 4}
    config |= {"NUM_MINIBATCHES": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01}
    config |= {"VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ENV_NAME": "CartPole-v1"}
    train = module.make_train(config | {"ANNEAL_LR": True, "DEBUG": False})

    def run(key: jax.Array) -> tuple[jax.Array, Any]:
        out = train(key)
        metrics = out["metrics"]
        ended = metrics["returned_episode"]
        mean = (metrics["returned_episode_returns"] * ended).sum() / jnp.maximum(ended.sum(), 1)
        return mean, out["runner_state"][0].params

    return jax.jit(run).lower(jax.random.PRNGKey(0)).compile(), total
