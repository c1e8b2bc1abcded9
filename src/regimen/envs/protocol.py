"""What an environment is. Native environments are pure functions of (key, state, action) on a frozen dataclass."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Protocol, Self, TypeVar, dataclass_transform, runtime_checkable

import gymnasium
import jax
import jax.numpy as jnp

from regimen import spaces
from regimen.envs.metric import Metric
from regimen.types import Array, PyTree, TimeStep

T = TypeVar("T")


@runtime_checkable
class Env(Protocol):
    """A native environment. It never resets itself and need not count time: the source does both."""

    @property
    def max_episode_steps(self) -> int: ...
    @property
    def reward_components(self) -> tuple[str, ...]: ...  # names; they partition the reward
    @property
    def metric_reductions(self) -> Mapping[str, str | Metric]: ...  # last, sum, min, max or mean over an episode
    @property
    def observation_space(self) -> gymnasium.Space: ...
    @property
    def action_space(self) -> gymnasium.Space: ...
    def reset(self, key: Array) -> tuple[PyTree, PyTree]: ...
    def step(self, key: Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]: ...


Baseline = Callable[[Env, Array, PyTree, PyTree], PyTree]  # (env, key, state, obs) -> action, of one environment


class NativeEnv:
    """The base class of an environment of your own in JAX; subclasses are decorated with `@native_env`.

    A subclass has `observation_space`, `action_space`, `max_episode_steps`, `reset(key) -> (state, obs)` and
    `step(key, state, action) -> (state, TimeStep)`. `docs/environments.md` has an example.

    Optional methods: `action_mask(state)` (True = allowed, shaped like the logits of the action space) and
    `render(state) -> [H, W, 3] uint8 array` (numpy, for pictures). `baselines` maps a policy's name to
    `fn(env, key, state, obs) -> action`, shown beside the learned policy by `regimen evaluate ENV --policy NAME`.

    An environment of several agents names them in `agents`. They share one observation and one action space (of one
    agent each), and lie in front of observations, actions, rewards, flags and masks [A, ...]; metrics are of the whole.
    `alive(state) -> [A]` says which of them act next, where not all do: an agent whose own task has terminated, or that
    is not there, does not. The episode is over when none is left.

    With a Dict or Tuple action space a mask has its structure, where a part may be missing or None (all allowed), and
    `action_conditions` says which parts matter when: part -> (the discrete part that decides, choices for which it
    matters). A part is named by its path, joined by '/'.
    """

    reward_components: ClassVar[tuple[str, ...]] = ("total",)
    metric_reductions: ClassVar[Mapping[str, str | Metric]] = {}
    return_threshold: ClassVar[float | None] = None  # an episode at or above it is a success
    return_targets: ClassVar[tuple[float, ...]] = ()  # returns that `regimen study updates` races to
    gated_metric: ClassVar[str] = ""  # a rate that it also trains up to a gate, with the arguments `gated_args(task)`
    baselines: ClassVar[Mapping[str, Baseline]] = {}
    action_conditions: ClassVar[dict[str, tuple[str, tuple[int, ...]]]] = {}
    render_fps: ClassVar[int] = 30  # pictures per second at which an episode is shown
    legend: ClassVar[str] = ""  # what the shapes and colours of `render` mean, in a sentence; the live page shows it
    recorded = None  # (state) -> dict of arrays: what `log.trajectories` keeps of a state of an evaluation
    write_evaluation = None  # (path, start, rows, length, alerts): writes it; see `evaluate.Recording`
    curricula: ClassVar[dict[str, dict[str, str]]] = {}  # name -> field -> schedule; `--curriculum NAME`
    agents: ClassVar[tuple[str, ...]] = ()  # names, where there are several
    action_mask = None
    alive = None
    max_episode_steps: int

    def replace(self, **changes: object) -> Self:
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def notes(self) -> list[str]:
        """What `regimen envs NAME` says beside the fields, a line each."""
        return []

    def settings(self) -> dict[str, object]:
        """What `--env.KEY` sets, and its values now."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]


def mask_row(env: Env, state: PyTree) -> Array | None:
    """The action mask of one state as a row over the options of every discrete part; None without one. Of several
    agents, a row for each."""
    mask = getattr(env, "action_mask", None)
    if not mask:
        return None
    row = partial(spaces.mask_row, env.action_space)
    return jax.vmap(row)(mask(state)) if agents_of(env) else row(mask(state))


def agents_of(env: Env) -> tuple[str, ...]:
    """Names of the agents; empty where there is one, without a name."""
    return tuple(getattr(env, "agents", ()))


def alive_in(env: Env, state: PyTree) -> Array:
    """Which agents act next [A]: all of them, unless the environment says otherwise."""
    alive = getattr(env, "alive", None)
    return alive(state) if alive else jnp.ones(len(agents_of(env)), bool)


@dataclass_transform(frozen_default=True)
def native_env(cls):
    """Make a class of environments a frozen dataclass and a pytree of JAX: `@native_env` above the class.

    Fields of type `float` are data: curricula and sweeps change them without recompiling. Every other field is part of
    the program."""
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)
    data = [f.name for f in fields if f.type in ("float", float)]
    meta = [f.name for f in fields if f.name not in data]

    # Not `register_dataclass`: in jax 0.10 two classes with equal static fields compare equal there, and a compiled
    # function may then be handed the program of another environment. Here the class is part of the comparison.
    def flatten(env):
        keyed = [(jax.tree_util.GetAttrKey(name), getattr(env, name)) for name in data]
        return keyed, (cls, tuple(getattr(env, name) for name in meta))

    def unflatten(static, leaves):
        env = object.__new__(cls)
        for name, value in zip((*data, *meta), (*leaves, *static[1])):
            object.__setattr__(env, name, value)
        return env

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls
