"""Native environments as Gymnasium environments, and what Regimen reads from a Gymnasium environment's info."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from regimen.envs.protocol import Env, agents_of
from regimen.errors import EnvError
from regimen.types import Array, PyTree


def to_gymnasium(env: Env, seed: int | None = None, render_mode: str | None = None) -> GymnasiumEnv:
    """A native environment for tools that speak Gymnasium; `render_mode` may be "rgb_array" where it can draw."""
    return GymnasiumEnv(env, seed, render_mode=render_mode)


# Module-level, with the environment as an argument: copies, and other parameter values, share one compiled program.
# Unused arguments are kept because the environment's device decides where the program runs.
@partial(jax.jit, keep_unused=True)
def compiled_reset(env: Any, key: Array):
    state, obs = env.reset(jax.random.wrap_key_data(key, impl="threefry2x32"))
    return state, (obs, mask_of(env, state))


@partial(jax.jit, keep_unused=True)
def compiled_step(env: Any, key: Array, state: PyTree, action: PyTree, t: Array):
    key = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), t)
    state, ts = env.step(key, state, action)
    return state, (ts.obs, jnp.ravel(ts.reward), ts.terminated, ts.truncated, ts.metrics, mask_of(env, state))


def mask_of(env: Any, state: PyTree) -> PyTree:
    return env.action_mask(state) if getattr(env, "action_mask", None) else None


class GymnasiumEnv(gymnasium.Env):
    """One copy of a native environment, compiled for the CPU.

    `info` has the environment's metrics by name, `reward_components` where there is more than one, and `action_mask`
    where the environment has one: an array, or of the structure of a Dict or Tuple action space, None where all is
    allowed. `time_limit=False` leaves `max_episode_steps` to a wrapper.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, env: Env, seed: int | None = None, time_limit: bool = True, render_mode: str | None = None):
        if agents_of(env):
            raise EnvError(f"{type(env).__name__} has several agents; use to_pettingzoo")
        self.native = env
        if hasattr(env, "render"):
            self.metadata = {"render_modes": ["rgb_array"], "render_fps": getattr(env, "render_fps", 30)}
        if render_mode not in (None, *self.metadata["render_modes"]):
            modes = ", ".join(self.metadata["render_modes"]) or "none, because it has no method render"
            raise EnvError(f"render_mode '{render_mode}': {type(env).__name__} can do {modes}")
        self.render_mode = render_mode
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reward_components, self.metric_reductions = tuple(env.reward_components), dict(env.metric_reductions)
        self.return_threshold = getattr(env, "return_threshold", None)
        self.action_conditions = dict(getattr(env, "action_conditions", {}))
        self.max_episode_steps = env.max_episode_steps if time_limit else None
        self.state: PyTree = None
        if seed is not None:
            self._np_random, self._np_random_seed = seeding.np_random(seed)
        self._program = jax.device_put(env, jax.devices("cpu")[0])  # committed: pins the compiled functions to the CPU
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        # The seed of a key is drawn from np_random, so that it follows Gymnasium's rules for seeding.
        self._key = np.asarray(self.np_random.integers(2**32, size=2), np.uint32)
        self.state, out = compiled_reset(self._program, self._key)
        obs, mask = jax.device_get(out)
        self._t = 0
        return to_space(self.observation_space, obs), self._info({}, mask)

    def step(self, action: Any):
        if self.state is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        action = from_space(self.action_space, action)
        self.state, out = compiled_step(self._program, self._key, self.state, action, np.uint32(self._t))
        obs, reward, terminated, truncated, metrics, mask = jax.device_get(out)
        self._t += 1
        info = self._info(metrics, mask)
        if len(self.reward_components) > 1:
            info["reward_components"] = dict(zip(self.reward_components, reward.tolist()))
        late = self.max_episode_steps is not None and self._t >= self.max_episode_steps
        cut = (bool(truncated) or late) and not terminated
        return to_space(self.observation_space, obs), float(reward.sum()), bool(terminated), cut, info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        if self.render_mode is None:
            return None
        if self.state is None:
            raise gymnasium.error.ResetNeeded("call reset before render")
        return self.native.render(jax.device_get(self.state))  # type: ignore[attr-defined]

    def _info(self, metrics: dict[str, Any], mask: Any) -> dict[str, Any]:
        info = {name: np.asarray(value).item() for name, value in metrics.items()}
        return info if mask is None else info | {"action_mask": to_mask(self.action_space, mask)}


def to_space(space: Any, x: Any) -> Any:
    """Arrays from the device as members of a space, in exactly its types."""
    match space:
        case spaces.Dict():
            return {k: to_space(s, x[k]) for k, s in space.spaces.items()}
        case spaces.Tuple():
            return tuple(to_space(s, x[i]) for i, s in enumerate(space.spaces))
        case spaces.Discrete():
            return space.dtype.type(x)
    return np.array(x, space.dtype)


def to_mask(space: Any, mask: Any) -> Any:
    """A mask as int8 arrays in the structure of the action space, None where all is allowed."""
    if mask is None:
        return None
    match space:
        case spaces.Dict():
            return {k: to_mask(s, mask.get(k)) for k, s in space.spaces.items()}
        case spaces.Tuple():
            return tuple(to_mask(s, mask[i]) for i, s in enumerate(space.spaces))
    return np.asarray(mask, np.int8)


def from_space(space: Any, x: Any) -> Any:
    """An action as arrays for the device: float32 or int32, so that nothing recompiles."""
    match space:
        case spaces.Dict():
            return {k: from_space(s, x[k]) for k, s in space.spaces.items()}
        case spaces.Tuple():
            return tuple(from_space(s, x[i]) for i, s in enumerate(space.spaces))
    return np.asarray(x, np.float32 if np.issubdtype(space.dtype, np.floating) else np.int32)


def register_with_gymnasium() -> list[str]:
    """Register every native environment of one agent as `regimen/<name>`, a slash becoming a dot; returns the ids.

    After it `gymnasium.make("regimen/cartpole", gravity=3.7)`, `gymnasium.make("regimen/probe.action")` and
    `gymnasium.make("regimen/moving", render_mode="rgb_array")` work.
    """
    from regimen.envs.registry import ENVS, resolve

    handles = {"regimen/" + name.replace("/", "."): resolve(name) for name in ENVS}
    handles = {gym_id: h for gym_id, h in handles.items() if h.native is not None and not h.agents}
    for gym_id, handle in handles.items():
        if gym_id not in gymnasium.registry:
            gymnasium.register(
                id=gym_id,
                entry_point="regimen.envs.adapters.gymnasium:make_registered",
                reward_threshold=handle.return_threshold,
                max_episode_steps=handle.max_episode_steps,
                kwargs={"name": handle.id},
            )
    return list(handles)


def make_registered(name: str, render_mode: str | None = None, **fields: Any) -> GymnasiumEnv:
    """The entry point of `regimen/<name>`; `gymnasium.make` adds the time limit."""
    from regimen.envs.registry import resolve

    env = resolve(name, fields).native
    assert env is not None
    return GymnasiumEnv(env, time_limit=False, render_mode=render_mode)


# --- what a Gymnasium environment may put in its info ----------------------------------------------------------------


def read_components(reward: Any, info: dict[str, Any], names: tuple[str, ...]) -> np.ndarray:
    """The reward by component [K]: itself when there is one, else what info["reward_components"] says, where a part
    that is missing is 0."""
    if len(names) == 1:
        return np.array([reward], np.float64)
    parts = info.get("reward_components", None if reward else {})
    if not isinstance(parts, dict) or not set(parts) <= set(names):
        raise EnvError(f"info['reward_components'] is {parts!r}; it must be a dict with the keys {', '.join(names)}")
    row = np.array([parts.get(n, 0.0) for n in names], np.float64)
    if not abs(row.sum() - float(reward)) <= 1e-4 * max(1.0, abs(float(reward))):
        raise EnvError(f"info['reward_components'] {parts} sums to {row.sum():g}; the reward is {float(reward):g}")
    return row


def read_mask(info: dict[str, Any]) -> PyTree:
    """info["action_mask"] as one flat row of booleans, True = allowed; None when there is none.

    The mask of a hybrid action, which is or contains a dict or a tuple with a None, keeps its structure.
    """
    mask = info.get("action_mask")
    if mask is None:
        return None
    if is_nested(mask):
        return jax.tree.map(lambda part: np.asarray(part, bool), mask)
    parts = mask if isinstance(mask, (tuple, list)) and np.ndim(mask[0]) else [mask]
    return np.concatenate([np.ravel(np.asarray(p, bool)) for p in parts])


def is_nested(mask: Any) -> bool:
    return isinstance(mask, dict) or (isinstance(mask, tuple) and any(p is None or is_nested(p) for p in mask))


def read_success(info: dict[str, Any]) -> bool | None:
    """info["is_success"], or a metric `success`; None when the environment does not say."""
    said = info.get("is_success", info.get("success"))
    return None if said is None else bool(said)
