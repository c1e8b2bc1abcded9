"""Action distributions. Each is a static object for one action space that reads the policy's outputs.

`noise` is drawn outside and handed to `sample`, so that a rollout is a deterministic function of it and sources can be
compared. Log-probabilities and entropies have one number per element of the action [..., M]; the joint is their sum
(`joint`), over those elements that matter (`Joint.relevance`).
"""

import math
from collections.abc import Mapping
from functools import partialmethod

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym

from regimen import spaces
from regimen.errors import ConfigError, nearest
from regimen.types import Array, PyTree

MASKED = -1e9  # a logit no softmax gives weight to, yet finite, so that 0 * logit stays 0
INSIDE = 1.0 - 1e-5  # the largest tanh that `from_env` undoes: an action at its bound stays finite
LOG_STD_RANGE = (-5.0, 2.0)  # of a deviation that the network puts out
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(12)  # quadrature under the standard normal
WEIGHTS = WEIGHTS / WEIGHTS.sum()

Conditions = Mapping[str, tuple[str, tuple[int, ...]]]  # leaf -> (controlling leaf, choices for which it matters)


class Categorical:
    """One choice of n (Discrete). The action is the index, 0..n-1; `to_env` adds the space's start."""

    kind = "discrete"
    event_ndim = 0

    def __init__(self, n: int, start: int | np.ndarray = 0):
        self.n, self.start = n, start
        self.head_size, self.free_size = n, 0
        self.head_shape = (1, n)
        self.rows = self.size = 1

    def params(self, head: Array, free: Array, mask: Array | None = None) -> Array:
        """Normalised log-probabilities [..., n] from the policy head; `mask` is True where a choice is allowed."""
        logits = head if mask is None else jnp.where(mask, head, MASKED)
        return jax.nn.log_softmax(logits)

    def noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.gumbel(key, (*shape, self.n))

    def sample(self, params: Array, noise: Array) -> Array:
        return jnp.argmax(params + noise, axis=-1).astype(jnp.int32)

    def mode(self, params: Array) -> Array:
        return jnp.argmax(params, axis=-1).astype(jnp.int32)

    def log_prob(self, params: Array, action: Array) -> Array:
        return jnp.sum(params * jax.nn.one_hot(action, self.n), axis=-1)  # cheaper than a gather and its scatter

    def entropy(self, params: Array) -> Array:
        return -jnp.sum(jnp.exp(params) * params, axis=-1)

    def kl(self, p: Array, q: Array) -> Array:
        return jnp.sum(jnp.exp(p) * (p - q), axis=-1)

    def free_choice(self, mask: Array) -> Array:
        """Whether there is anything to choose: a forced choice has probability 1 and nothing to learn from."""
        return mask.sum(-1) > 1

    def zeros(self, lead: tuple[int, ...]) -> Array:
        return jnp.zeros(lead, jnp.int32)

    def to_env(self, action: Array) -> Array:
        return action + self.start

    def from_env(self, action: Array) -> Array:
        """The inverse of `to_env`: an action as it is stored."""
        return jnp.asarray(action - self.start, jnp.int32)


class MultiCategorical(Categorical):
    """Independent choices (MultiDiscrete, MultiBinary): rows of Categoricals over one concatenated head, padded to the
    widest, so that any number of them is one vectorised softmax."""

    event_ndim = 1

    def __init__(self, sizes: tuple[int, ...], starts: tuple[int, ...]):
        super().__init__(max(sizes))
        self.sizes, self.start = sizes, np.asarray(starts, np.int32)
        self.head_size = int(sum(sizes))
        self.rows = self.size = len(sizes)
        self.even = len(set(sizes)) == 1
        self.head_shape = (self.rows, self.n) if self.even else (1, self.head_size)
        self.real = np.arange(self.n) < np.asarray(sizes)[:, None]  # [rows, n]
        first = np.cumsum([0, *sizes[:-1]])
        self.index = np.where(self.real, first[:, None] + np.arange(self.n), 0)

    def split(self, x: Array) -> Array:
        """[..., head_size] to [..., rows, n]."""
        return x.reshape(*x.shape[:-1], self.rows, self.n) if self.even else x[..., self.index]

    def params(self, head: Array, free: Array, mask: Array | None = None) -> Array:
        logits = self.split(head if mask is None else jnp.where(mask, head, MASKED))
        return super().params(logits, free, None if self.even else jnp.asarray(self.real))

    def noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        return super().noise(key, (*shape, self.rows))

    def free_choice(self, mask: Array) -> Array:
        return (self.split(mask) & self.real).sum(-1) > 1

    def zeros(self, lead: tuple[int, ...]) -> Array:
        return super().zeros((*lead, self.rows))


class Normal:
    """A diagonal Gaussian (Box), its deviation a free parameter or, with `state_std`, an output of the network.

    Bounded dimensions are in units of half their range: -1 is `low`, +1 is `high`. The action stored is the one
    sampled. It meets the bounds only on its way to the environment (`to_env`): clipped, or with `squash` through tanh,
    whose change of variables is then part of the density: log p(tanh u) = log N(u) - log(1 - tanh(u)^2). A dimension
    with one bound keeps its own units and is clipped there.
    """

    kind = "continuous"
    event_ndim = 1

    def __init__(
        self,
        low: np.ndarray,
        high: np.ndarray,
        log_std_init: float = 0.0,
        squash: bool = False,
        state_std: bool = False,
    ):
        self.shape = low.shape
        low, high = low.ravel(), high.ravel()
        self.low, self.high = inside(low, high), inside(high, low)
        self.bounded = np.isfinite(low) & np.isfinite(high)
        self.squashed = self.bounded & squash
        low, high = np.where(self.bounded, low, -1.0), np.where(self.bounded, high, 1.0)
        self.center = ((low + high) / 2).astype(np.float32)
        self.scale = ((high - low) / 2).astype(np.float32)
        self.log_std_init, self.state_std = log_std_init, state_std
        self.size = math.prod(self.shape)
        self.rows = self.shape[0] if len(self.shape) > 1 else 1
        self.head_size, self.free_size = (2 * self.size, 0) if state_std else (self.size, self.size)
        self.head_shape = (self.rows, self.head_size // self.rows)

    def params(self, head: Array, free: Array, mask: Array | None = None) -> tuple[Array, Array]:
        """Mean and log deviation [..., size]."""
        if not self.state_std:
            return head, jnp.broadcast_to(free, head.shape)
        lead = head.shape[:-1]
        mean, log_std = jnp.split(head.reshape(*lead, *self.head_shape), 2, axis=-1)
        log_std = jnp.clip(self.log_std_init + log_std, *LOG_STD_RANGE)
        return mean.reshape(*lead, self.size), log_std.reshape(*lead, self.size)

    def noise(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, (*shape, self.size))

    def sample(self, params: tuple[Array, Array], noise: Array) -> Array:
        mean, log_std = params
        return mean + jnp.exp(log_std) * noise

    def mode(self, params: tuple[Array, Array]) -> Array:
        return params[0]

    def log_prob(self, params: tuple[Array, Array], action: Array) -> Array:
        mean, log_std = params
        gauss = -0.5 * jnp.square((action - mean) * jnp.exp(-log_std)) - log_std - 0.5 * math.log(2 * math.pi)
        return jnp.where(self.squashed, gauss - log_slope(action), gauss) if self.squashed.any() else gauss

    def entropy(self, params: tuple[Array, Array]) -> Array:
        """Differential entropy per dimension in units of half the range. Squashed, H(u) + E[log(1 - tanh(u)^2)] with
        the expectation by Gauss-Hermite quadrature: no noise, and a gradient for mean and deviation."""
        mean, log_std = params
        gauss = log_std + 0.5 * math.log(2 * math.pi * math.e)
        if not self.squashed.any():
            return gauss
        points = mean[..., None] + jnp.exp(log_std)[..., None] * NODES.astype(np.float32)
        return jnp.where(self.squashed, gauss + log_slope(points) @ WEIGHTS.astype(np.float32), gauss)

    def kl(self, p: tuple[Array, Array], q: tuple[Array, Array]) -> Array:
        """Squashing both does not change it: tanh is a bijection."""
        (m, s), (n, t) = p, q
        return t - s + 0.5 * (jnp.exp(2 * (s - t)) + jnp.square((m - n) * jnp.exp(-t))) - 0.5

    def zeros(self, lead: tuple[int, ...]) -> Array:
        return jnp.zeros((*lead, self.size))

    def to_env(self, action: Array) -> Array:
        squashed = jnp.where(self.squashed, jnp.tanh(action), action)
        member = jnp.clip(self.center + self.scale * squashed, self.low, self.high)  # rounding can pass a bound, too
        return member.reshape(*action.shape[:-1], *self.shape)

    def from_env(self, action: Array) -> Array:
        """The inverse of `to_env` [..., size]. What was clipped is at its bound; a squashed action there, just inside:
        it would be infinite before tanh."""
        lead = action.shape[: action.ndim - len(self.shape)]
        unit = (jnp.asarray(action, jnp.float32).reshape(*lead, self.size) - self.center) / self.scale
        return jnp.where(self.squashed, jnp.arctanh(jnp.clip(unit, -INSIDE, INSIDE)), unit)


def inside(bound: np.ndarray, other: np.ndarray) -> np.ndarray:
    """A bound in float32, the next number towards `other` where it would otherwise round to the outside."""
    near = bound.astype(np.float32)
    outside = np.where(other >= bound, near < bound, near > bound)
    return np.where(outside, np.nextafter(near, other.astype(np.float32)), near)


def log_slope(u: Array) -> Array:
    """log(1 - tanh(u)^2), without cancellation."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))


Leaf = Categorical | MultiCategorical | Normal


class Joint:
    """Independent leaves of a Dict or Tuple space: a hybrid action. Values are dicts by leaf name (`spaces.leaves`).

    `conditions` says which leaves only matter for some choices of another. What does not matter, and a choice that the
    mask forces, is left out of log-probability, entropy and ratio.
    """

    event_ndim = 1

    def __init__(self, space: gym.Space, leaves: dict[str, Leaf], conditions: Conditions):
        self.space, self.leaves, self.conditions = space, leaves, dict(conditions)
        self.head_size = sum(d.head_size for d in leaves.values())
        self.free_size = sum(d.free_size for d in leaves.values())
        check_conditions(leaves, self.conditions)

    def params(self, head: Array, free: Array, mask: Array | None = None) -> dict[str, PyTree]:
        masks, out, h, f = self.masks(mask), {}, 0, 0
        for name, d in self.leaves.items():
            out[name] = d.params(head[..., h : h + d.head_size], free[..., f : f + d.free_size], masks.get(name))
            h += d.head_size
            f += d.free_size
        return out

    def masks(self, mask: Array | None) -> dict[str, Array]:
        """The parts of a mask row (`spaces.mask_row`) by leaf name."""
        discrete = {n: d.head_size for n, d in self.leaves.items() if d.kind == "discrete"}
        if mask is None:
            return {}
        return dict(zip(discrete, jnp.split(mask, np.cumsum(list(discrete.values()))[:-1], axis=-1)))

    def noise(self, key: Array, shape: tuple[int, ...]) -> dict[str, Array]:
        keys = jax.random.split(key, len(self.leaves))
        return {name: d.noise(keys[i], shape) for i, (name, d) in enumerate(self.leaves.items())}

    def by_part(self, method: str, *trees: dict) -> dict[str, Array]:
        """A method of each leaf's distribution, given that leaf's entry of each tree."""
        return {name: getattr(d, method)(*(x[name] for x in trees)) for name, d in self.leaves.items()}

    sample = partialmethod(by_part, "sample")
    mode = partialmethod(by_part, "mode")
    log_prob = partialmethod(by_part, "log_prob")
    entropy = partialmethod(by_part, "entropy")
    kl = partialmethod(by_part, "kl")

    def zeros(self, lead: tuple[int, ...]) -> dict[str, Array]:
        return {name: d.zeros(lead) for name, d in self.leaves.items()}

    def to_env(self, action: dict) -> PyTree:
        return spaces.build(self.space, self.by_part("to_env", action))

    def from_env(self, action: PyTree) -> dict[str, Array]:
        return self.by_part("from_env", spaces.split(self.space, action))


Distribution = Leaf | Joint
ONLY = "action"  # the leaf's name where there is one


class Elements:
    """An action as rows of elements, the same for one leaf and for several: which of them matter, what they sum to, and
    how they are grouped into the ratios that PPO clips.

    joint: one ratio. per_leaf: one for each leaf. per_element: one for each element; the row of a leaf that is tied to
    a row of choices (`conditions`) belongs to that choice, so a node of a graph with all its parameters is one element.
    """

    def __init__(self, dist: Distribution, ratio: str):
        self.dist = dist
        self.hybrid = isinstance(dist, Joint)
        self.leaves: dict[str, Leaf] = dist.leaves if isinstance(dist, Joint) else {ONLY: dist}
        self.conditions = dist.conditions if isinstance(dist, Joint) else {}
        self.kinds = {name: d.kind for name, d in self.leaves.items()}
        self.size = sum(d.size for d in self.leaves.values())
        self.single = not self.hybrid and (ratio != "per_element" or self.size == 1)  # one ratio, kept as one number
        groups: dict[str, np.ndarray] = {}
        tied = {n for n, (c, _) in self.conditions.items() if ratio == "per_element" and self.leaves[c].rows > 1}
        start = 0
        for name, d in sorted(self.leaves.items(), key=lambda item: item[0] in tied):
            if name in tied:
                choices = groups[self.conditions[name][0]]
                groups[name] = np.repeat(choices, d.size // len(choices))
                continue
            groups[name] = start + (np.arange(d.size) if ratio == "per_element" else np.zeros(d.size, int))
            start = 0 if ratio == "joint" else int(groups[name].max()) + 1
        self.groups = np.concatenate([groups[name] for name in self.leaves])  # [M] group of each element
        self.count = int(self.groups.max()) + 1
        self.cuts = np.cumsum([d.size for d in self.leaves.values()])[:-1]

    def by_leaf(self, x: PyTree) -> dict[str, Array]:
        return x if self.hybrid else {ONLY: x}

    def flat(self, x: PyTree) -> Array:
        """Per-element values of all leaves side by side [..., M]."""
        leaves = self.by_leaf(x)
        parts = [leaves[n] if d.event_ndim else leaves[n][..., None] for n, d in self.leaves.items()]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)

    def split(self, flat: Array) -> dict[str, Array]:
        """The inverse of `flat`, every leaf [..., its size]."""
        return dict(zip(self.leaves, jnp.split(flat, self.cuts, axis=-1)))

    def relevance(self, action: PyTree, mask: Array | None) -> Array | None:
        """Elements that matter [..., M]; None where all do."""
        masks = self.dist.masks(mask) if isinstance(self.dist, Joint) else {} if mask is None else {ONLY: mask}
        if not masks and not self.conditions:
            return None
        actions = self.by_leaf(action)
        parts: dict[str, Array] = {}
        for name, d in self.leaves.items():
            lead = actions[name].shape[: actions[name].ndim - d.event_ndim]
            matters = jnp.ones((*lead, d.size), bool)
            if name in masks and d.kind == "discrete":
                matters &= d.free_choice(masks[name]).reshape(*lead, d.size)  # type: ignore[union-attr]
            if name in self.conditions:
                controller, choices = self.conditions[name]
                chosen = actions[controller] if self.leaves[controller].event_ndim else actions[controller][..., None]
                on = jnp.any(chosen[..., None] == jnp.asarray(choices), axis=-1)  # [..., rows of the controller]
                matters &= jnp.repeat(on, d.size // on.shape[-1], axis=-1)
            parts[name] = matters
        return jnp.concatenate([parts[n] for n in self.leaves], axis=-1)

    def grouped(self, flat: Array) -> Array:
        """Sums over the elements of each group: [..., M] to [..., groups]."""
        if self.count == 1:
            return flat.sum(-1, keepdims=True)
        if self.count == flat.shape[-1]:
            return flat
        member = np.zeros((len(self.groups), self.count), np.float32)
        member[np.arange(len(self.groups)), self.groups] = 1.0
        return jnp.matmul(flat, member, precision="highest")  # GPUs would round log-ratios to 10 bits


def for_space(
    space: gym.Space,
    log_std_init: float = 0.0,
    *,
    bounded: str = "auto",
    state_std: bool = False,
    conditions: Conditions | None = None,
) -> Distribution:
    """The distribution of an action space. `bounded`: `clip` or `tanh`; auto squashes in hybrid spaces only."""
    if isinstance(space, (gym.Dict, gym.Tuple)):
        leaves = {
            name: leaf_for(sub, log_std_init, bounded != "clip", state_std, f"action space['{name}']")
            for name, sub in spaces.leaves(space).items()
        }
        return Joint(space, leaves, conditions or {})
    return leaf_for(space, log_std_init, bounded == "tanh", state_std, "action space")


def leaf_for(space: gym.Space, log_std_init: float, squash: bool, state_std: bool, where: str) -> Leaf:
    match space:
        case gym.Discrete():
            return Categorical(int(space.n), int(space.start))
        case gym.MultiDiscrete() if len(space.shape) == 1:
            return MultiCategorical(tuple(space.nvec.tolist()), tuple(space.start.tolist()))
        case gym.MultiBinary() if len(space.shape) == 1:
            return MultiCategorical((2,) * int(space.shape[0]), (0,) * int(space.shape[0]))
        case gym.Box() if np.issubdtype(space.dtype, np.floating) and space.shape:
            low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
            return Normal(low, high, log_std_init, squash, state_std)
    raise ConfigError(
        f"{where} {space} is not supported; use Discrete, MultiDiscrete (one axis), MultiBinary, a float Box, or a "
        "Dict or Tuple of them"
    )


def check_conditions(leaves: Mapping[str, Leaf], conditions: Conditions) -> None:
    for name, (controller, choices) in conditions.items():
        for what in (name, controller):
            if what not in leaves:
                raise ConfigError(f"action_conditions: the action has no part '{what}'{nearest(what, leaves)}")
        d, c = leaves[name], leaves[controller]
        if c.kind != "discrete" or name == controller or controller in conditions:
            raise ConfigError(f"action_conditions['{name}']: '{controller}' is not a discrete part that always matters")
        if c.rows > 1 and d.rows != c.rows and d.size != c.rows:
            raise ConfigError(
                f"action_conditions['{name}']: it has {d.rows} rows and '{controller}' {c.rows}; they are tied row by "
                "row, so they must be equal"
            )
        if not choices or not all(0 <= int(i) < max(c.n, 1) for i in choices):  # type: ignore[union-attr]
            raise ConfigError(f"action_conditions['{name}']: {choices} are not choices of '{controller}'")


def joint(distribution: Distribution, x: Array) -> Array:
    """Sum of a per-element quantity over one leaf's elements: [..., *event] to [...]."""
    return jnp.sum(x, axis=-1) if distribution.event_ndim else x
