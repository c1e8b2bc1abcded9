"""One copy of a native environment, compiled for the CPU: what its Gymnasium and its PettingZoo form share."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces as gym

from regimen import spaces
from regimen.envs.protocol import Env, alive_in
from regimen.errors import EnvError
from regimen.types import Array, PyTree, TimeStep


# Module-level, with the environment as an argument: copies, and other parameter values, share one compiled program.
# Unused arguments are kept because the environment's device decides where the program runs.
@partial(jax.jit, keep_unused=True)
def compiled_reset(env: Env, key: Array) -> tuple[PyTree, tuple[PyTree, Array, PyTree]]:
    state, obs = env.reset(jax.random.wrap_key_data(key, impl="threefry2x32"))
    return state, (obs, alive_in(env, state), mask_of(env, state))


@partial(jax.jit, keep_unused=True)
def compiled_step(
    env: Env, key: Array, state: PyTree, action: PyTree, t: Array
) -> tuple[PyTree, tuple[TimeStep, Array, PyTree]]:
    key = jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), t)
    state, ts = env.step(key, state, action)
    return state, (ts, alive_in(env, state), mask_of(env, state))


def mask_of(env: Env, state: PyTree) -> PyTree:
    """The action mask as the environment gives it; None where it has none."""
    mask = getattr(env, "action_mask", None)
    return mask(state) if mask else None


class CompiledEnv:
    """A native environment that is stepped from Python, and what other tools read of it."""

    def __init__(self, env: Env, render_mode: str | None, time_limit: bool = True):
        name, modes = type(env).__name__, ["rgb_array"] if hasattr(env, "render") else []
        if render_mode not in (None, *modes):
            choices = ", ".join(modes) or "none, because it has no method render"
            raise EnvError(f"render_mode '{render_mode}': {name} can do {choices}")
        self.metadata = {"name": name, "render_modes": modes, "render_fps": getattr(env, "render_fps", 30)}
        self.native, self.render_mode = env, render_mode
        self.reward_components, self.metric_reductions = tuple(env.reward_components), dict(env.metric_reductions)
        self.return_threshold = getattr(env, "return_threshold", None)
        self.action_conditions = dict(getattr(env, "action_conditions", {}))
        self.max_episode_steps = env.max_episode_steps if time_limit else None
        self.native_state: PyTree = None
        self._program = jax.device_put(env, jax.devices("cpu")[0])  # committed: pins the compiled functions to the CPU
        self._t = 0

    def begin(self, random: np.random.Generator) -> tuple[PyTree, np.ndarray, PyTree]:
        """Start an episode and return the observation, which agents act [A], and the action mask."""
        self._key = np.asarray(random.integers(2**32, size=2), np.uint32)
        self.native_state, out = compiled_reset(self._program, self._key)
        self._t = 0
        return jax.device_get(out)

    def advance(self, action: PyTree) -> tuple[TimeStep, np.ndarray, PyTree]:
        """Step with actions as arrays and return what the step gave, which agents act next [A], and the action mask."""
        if self.native_state is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        self.native_state, out = compiled_step(self._program, self._key, self.native_state, action, np.uint32(self._t))
        self._t += 1
        return jax.device_get(out)

    @property
    def is_late(self) -> bool:
        """Whether the time limit is reached."""
        return self.max_episode_steps is not None and self._t >= self.max_episode_steps

    def make_info(self, metrics: PyTree, mask: PyTree, reward: np.ndarray | None = None) -> dict[str, object]:
        """The info of one agent, whose reward is [K]."""
        info = {name: np.asarray(value).item() for name, value in metrics.items()}
        if reward is not None and len(self.reward_components) > 1:
            info["reward_components"] = dict(zip(self.reward_components, reward.tolist()))
        if mask is not None:
            info["action_mask"] = to_mask(self.native.action_space, mask)
        return info

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        if self.native_state is None:
            raise gymnasium.error.ResetNeeded("call reset before render")
        return self.native.render(jax.device_get(self.native_state))  # type: ignore[attr-defined]

    def close(self) -> None: ...


def by_part(function: Callable[..., Any], space: gym.Space, *values: PyTree) -> PyTree:
    """The function of every part of a nested space, and of its values, in the structure of the space."""
    parts = [spaces.split(space, value) for value in values]
    results = {name: function(leaf, *(x[name] for x in parts)) for name, leaf in spaces.leaves(space).items()}
    return spaces.build(space, results)


def to_space(space: gym.Space, x: PyTree) -> PyTree:
    """Arrays from the device as members of a space, in exactly its types."""

    def member(leaf: gym.Space, part: np.ndarray) -> object:
        return leaf.dtype.type(part) if isinstance(leaf, gym.Discrete) else np.array(part, leaf.dtype)

    return by_part(member, space, x)


def from_space(space: gym.Space, x: PyTree) -> PyTree:
    """An action as arrays for the device: float32 or int32, so that nothing recompiles."""

    def array(leaf: gym.Space, part: object) -> np.ndarray:
        return np.asarray(part, np.float32 if np.issubdtype(leaf.dtype, np.floating) else np.int32)

    return by_part(array, space, x)


def zero_of(space: gym.Space) -> PyTree:
    """A filler in exactly the types of a space, all zero."""
    return by_part(lambda leaf: np.zeros(leaf.shape or (), leaf.dtype), space)


def to_mask(space: gym.Space, mask: PyTree) -> PyTree:
    """A mask as int8 arrays in the structure of the action space, None where all is allowed."""
    if mask is None:
        return None
    match space:
        case gym.Dict():
            return {k: to_mask(s, mask.get(k)) for k, s in space.spaces.items()}
        case gym.Tuple():
            return tuple(to_mask(s, mask[i]) for i, s in enumerate(space.spaces))
    return np.asarray(mask, np.int8)
