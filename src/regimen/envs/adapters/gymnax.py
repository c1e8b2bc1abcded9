"""gymnax environments as native ones: `gymnax:Breakout-MinAtar`."""

from __future__ import annotations

import dataclasses
import inspect
from functools import lru_cache
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.config.validation import coerce
from regimen.envs.protocol import NativeEnv
from regimen.errors import ConfigError, EnvError, nearest
from regimen.types import Array, PyTree, TimeStep, pytree_dataclass, static

HUGE = 1e30  # gymnax writes "unbounded" as the largest float


def from_gymnax(id: str, **kwargs: object) -> GymnaxEnv:
    """A gymnax environment; `kwargs` set its parameters (`max_episode_steps` too) or its constructor's arguments."""
    gymnax = import_gymnax()
    if id not in gymnax.registered_envs:
        hint = nearest(id, gymnax.registered_envs).replace("'", "'gymnax:", 1)
        raise ConfigError(f"gymnax:{id}: no such gymnax environment{hint}")
    renamed = {"max_steps_in_episode" if k == "max_episode_steps" else k: v for k, v in kwargs.items()}
    constructor = inspect.signature(gymnax.registration._registry[id]).parameters
    built = {k: v for k, v in renamed.items() if k in constructor}
    try:
        env = make(id, tuple(built.items()))
        defaults = env.default_params
    except Exception as e:
        raise EnvError(f"gymnax:{id}: cannot be made: {type(e).__name__}: {' '.join(str(e).split())}") from e

    fields = {f.name: getattr(defaults, f.name) for f in dataclasses.fields(defaults)}
    changes = {}
    for key, value in renamed.items():
        if key in built:
            continue
        if key not in fields:
            names = {*fields, *constructor, "max_episode_steps"}
            raise ConfigError(f"env.{key}: gymnax:{id} has no such parameter{nearest(key, names)}")
        plain = type(fields[key]) in (int, float, bool)
        changes[key] = coerce(value, type(fields[key]), f"env.{key}") if plain else value
    params = dataclasses.replace(defaults, **changes)
    dtype = np.dtype(env.observation_space(params).dtype)
    return GymnaxEnv(f"gymnax:{id}", env, dtype, int(params.max_steps_in_episode), params)


def import_gymnax() -> ModuleType:
    try:
        import gymnax
        import gymnax.registration
    except ImportError as e:
        raise EnvError(f"gymnax is not installed ({e}); pip install 'regimen[gymnax]'") from e
    return gymnax


@lru_cache
def make(id: str, kwargs: tuple[tuple[str, object], ...]) -> Any:
    """One gymnax object per id: it is part of the program, so a second one would compile everything again."""
    return import_gymnax().make(id, **dict(kwargs))[0]


@pytree_dataclass
class GymnaxEnv(NativeEnv):
    """The parameters are data. `step_env` leaves the reset to the source, so the true final observation survives."""

    id: str = static()
    env: Any = static()
    obs_dtype: np.dtype = static()  # gymnax observations are not always of the dtype their space claims
    max_episode_steps: int = static()
    params: PyTree = dataclasses.field(default=None)

    def __deepcopy__(self, memo: dict) -> GymnaxEnv:
        return self  # nothing in it changes, and a second gymnax object would be another program

    def settings(self) -> dict[str, object]:
        params = {f.name: getattr(self.params, f.name) for f in dataclasses.fields(self.params)}
        params.pop("max_steps_in_episode", None)
        return {"max_episode_steps": self.max_episode_steps, **params}

    @property
    def observation_space(self):
        return to_gymnasium_space(self.env.observation_space(self.params), self.id)

    @property
    def action_space(self):
        return to_gymnasium_space(self.env.action_space(self.params), self.id)

    def reset(self, key: Array):
        obs, state = self.env.reset_env(key, self.params)
        return jax.tree.map(strong, state), jnp.asarray(obs, self.obs_dtype)

    def step(self, key: Array, state: PyTree, action: Array):
        obs, new, reward, terminated, _ = self.env.step_env(key, state, action, self.params)
        new = jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, state)  # a scan's carry keeps its types
        truncated = self.env.is_truncated(new, self.params)
        step = TimeStep(
            obs=jnp.asarray(obs, self.obs_dtype),
            reward=jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(terminated, bool),
            truncated=jnp.asarray(truncated, bool),
        )
        return new, step


def strong(x: Array | float) -> Array:
    """Initial states hold Python numbers; as arrays of a definite dtype."""
    array = jnp.asarray(x)
    return array if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else jnp.asarray(x, array.dtype)


def to_gymnasium_space(space: Any, where: str) -> spaces.Space:
    from gymnax.environments import spaces as gymnax_spaces

    match space:
        case gymnax_spaces.Discrete():
            return spaces.Discrete(int(space.n))
        case gymnax_spaces.Box():
            dtype = np.dtype(space.dtype)
            low, high = (np.broadcast_to(np.asarray(b, np.float64), space.shape) for b in (space.low, space.high))
            if np.issubdtype(dtype, np.floating):
                low, high = np.where(low < -HUGE, -np.inf, low), np.where(high > HUGE, np.inf, high)
            return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
    raise EnvError(f"{where}: the space {space} is not supported; only Discrete and Box are")
