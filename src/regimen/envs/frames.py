"""The last frames of an image side by side, and grey ones: `--env.frame_stack 4 --env.grey_scale true`, which every
environment takes that observes one image. At the start of an episode its first frame stands in all places."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import jax.numpy as jnp
import numpy as np

from regimen import spaces
from regimen.config.validation import coerce
from regimen.envs.arguments import Arguments
from regimen.envs.protocol import Env, NativeEnv
from regimen.errors import ConfigError
from regimen.types import Array, PyTree, TimeStep, pytree_dataclass, static

if TYPE_CHECKING:
    from regimen.envs.registry import EnvHandle

STACK, GREY = "frame_stack", "grey_scale"
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue (ITU-R BT.601), as ALE and OpenCV have it
Pixels = Any  # Array or np.ndarray


@dataclasses.dataclass(frozen=True)
class Frames:
    """How images [H, W, C], [C, H, W] or [H, W] are observed: `count` of them side by side in the channels' axis."""

    count: int
    grey: bool
    shape: tuple[int, ...]  # of the environment's image

    @property
    def axis(self) -> int:
        """Which axis holds the channels: the first if it is shorter than the last."""
        return -3 if len(self.shape) == 3 and self.shape[0] < self.shape[2] else -1

    @property
    def channels(self) -> int:
        """Channels of one frame."""
        return 1 if self.grey or len(self.shape) == 2 else self.shape[self.axis]

    def frame(self, image: Pixels) -> Pixels:
        """One frame of an image of the environment."""
        xp = np if isinstance(image, np.ndarray) else jnp
        if len(self.shape) == 2:
            return image[..., None]
        if not self.grey:
            return image
        weights = LUMA if self.axis == -1 else LUMA[:, None, None]
        grey = (image.astype(xp.float32) * weights).sum(self.axis, keepdims=True)
        return (xp.round(grey) if np.issubdtype(image.dtype, np.integer) else grey).astype(image.dtype)

    def start(self, frame: Pixels) -> Pixels:
        """The stack at the start of an episode."""
        return self.join([frame] * self.count)

    def after(self, stack: Pixels, frame: Pixels) -> Pixels:
        """The stack with one more frame, the newest last, and without the oldest."""
        return self.join([self.part(stack, slice(self.channels, None)), frame])

    def newest(self, stack: Pixels) -> Pixels:
        """The last frame of stacks [..., H, W, count * C]."""
        return self.part(stack, slice(-self.channels, None))

    def part(self, stack: Pixels, channels: slice) -> Pixels:
        return stack[..., channels] if self.axis == -1 else stack[..., channels, :, :]

    def join(self, frames: list[Pixels]) -> Pixels:
        """Frames [..., H, W, C], the oldest first, as a stack."""
        xp = np if isinstance(frames[-1], np.ndarray) else jnp
        return xp.concatenate(frames, axis=self.axis)

    def space(self, space: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
        """What is observed instead of the environment's images."""
        frame = self.frame(np.zeros(self.shape, space.dtype))
        low, high = (getattr(np, how)(x) for how, x in (("min", space.low), ("max", space.high)))
        return gymnasium.spaces.Box(low, high, self.start(frame).shape, space.dtype.type)  # type: ignore[union-attr]


def split(env_args: Mapping[str, object] | None) -> tuple[Arguments, Arguments]:
    """The arguments of an environment itself, and those of how its images are observed."""
    args = dict(env_args or {})
    return args, {name: args.pop(name) for name in (STACK, GREY) if name in args}


def framed(handle: EnvHandle, args: Mapping[str, object]) -> EnvHandle:
    """The handle of an environment whose images are observed as `frame_stack` and `grey_scale` say."""
    count = coerce(args.get(STACK, 1), int, f"env.{STACK}")
    grey = coerce(args.get(GREY, False), bool, f"env.{GREY}")
    if not 1 <= count <= 64:
        raise ConfigError(f"env.{STACK}: {count} is out of range; it must be from 1 to 64")
    if count == 1 and not grey:
        return handle
    name, space = STACK if count > 1 else GREY, handle.observation_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) not in (2, 3):
        observed = f"{handle.id} observes {spaces.describe(space)}"
        raise ConfigError(f"env.{name}: only a single image (a Box of two or three axes) is stacked; {observed}")
    if handle.agents or handle.make_copies is not None:
        who = "has several agents" if handle.agents else "is stepped by EnvPool; use its own stack_num and gray_scale"
        raise ConfigError(f"env.{name}: {handle.id} {who}")
    frames = Frames(count, grey, space.shape)
    if grey and (len(space.shape) != 3 or space.shape[frames.axis] != len(LUMA)):
        raise ConfigError(
            f"env.{GREY}: an image of three colours is needed; {handle.id} observes {spaces.describe(space)}"
        )
    native, make_host = handle.native, handle.make_host
    return dataclasses.replace(
        handle,
        native=None if native is None else FramedEnv(native, frames),
        make_host=None if make_host is None else lambda: FramedHostEnv(make_host(), frames),
        observation_space=frames.space(space),
        frames=frames if count > 1 else None,
        baselines={},  # they would read the environment's own state and observation
        env_args=handle.env_args | {k: v for k, v in ((STACK, count), (GREY, grey)) if k in args},
    )


class FramedHostEnv(gymnasium.Wrapper):
    """A Gymnasium environment whose images are stacked."""

    def __init__(self, env: gymnasium.Env, frames: Frames):
        super().__init__(env)
        self.frames, self.stack = frames, None
        self.observation_space = frames.space(env.observation_space)  # type: ignore[arg-type]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        image, info = self.env.reset(seed=seed, options=options)
        self.stack = self.frames.start(self.frames.frame(np.asarray(image)))
        return self.stack, info

    def step(self, action: Any):
        image, reward, terminated, truncated, info = self.env.step(action)
        self.stack = self.frames.after(self.stack, self.frames.frame(np.asarray(image)))
        return self.stack, reward, terminated, truncated, info


@pytree_dataclass
class FramedEnv(NativeEnv):
    """A native environment whose images are stacked, on the device. Its state is that of the environment and the last
    observation."""

    env: Env
    frames: Frames = static()

    max_episode_steps = property(lambda self: self.env.max_episode_steps)  # type: ignore[assignment]
    reward_components = property(lambda self: self.env.reward_components)  # type: ignore[assignment]
    metric_reductions = property(lambda self: self.env.metric_reductions)  # type: ignore[assignment]
    return_threshold = property(lambda self: getattr(self.env, "return_threshold", None))  # type: ignore[assignment]
    action_conditions = property(lambda self: getattr(self.env, "action_conditions", {}))  # type: ignore[assignment]
    render_fps = property(lambda self: getattr(self.env, "render_fps", 30))  # type: ignore[assignment]
    action_space = property(lambda self: self.env.action_space)
    observation_space = property(lambda self: self.frames.space(self.env.observation_space))

    def settings(self) -> dict[str, object]:
        inner = getattr(self.env, "settings", dict)()
        return inner | {STACK: self.frames.count, GREY: self.frames.grey}

    @property
    def action_mask(self) -> Callable[[PyTree], PyTree] | None:  # type: ignore[override]
        mask = getattr(self.env, "action_mask", None)
        return mask and (lambda state: mask(state["env"]))

    @property
    def render(self) -> Callable[[PyTree], np.ndarray]:
        draw: Callable[[PyTree], np.ndarray] = self.env.render  # type: ignore[attr-defined]  # none: an AttributeError
        return lambda state: draw(state["env"])

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        state, image = self.env.reset(key)
        stack = self.frames.start(self.frames.frame(image))
        return {"env": state, "stack": stack}, stack

    def step(self, key: Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        inner, ts = self.env.step(key, state["env"], action)
        stack = self.frames.after(state["stack"], self.frames.frame(ts.obs))
        return {"env": inner, "stack": stack}, ts.replace(obs=stack)
