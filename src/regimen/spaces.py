"""Helpers over gymnasium.spaces: what a space's values look like, and observations as one flat vector."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym

from regimen.errors import ConfigError
from regimen.types import Array, PyTree


def describe(space: gym.Space) -> str:
    """A short, stable text of a space: stored with a policy and compared when one is loaded."""
    match space:
        case gym.Dict():
            return "Dict(" + ", ".join(f"{k}: {describe(s)}" for k, s in space.spaces.items()) + ")"
        case gym.Tuple():
            return "Tuple(" + ", ".join(describe(s) for s in space.spaces) + ")"
        case gym.Discrete():
            return f"Discrete({space.n})" if space.start == 0 else f"Discrete({space.n}, start={space.start})"
        case gym.MultiDiscrete():
            return f"MultiDiscrete({space.nvec.tolist()})"
        case gym.MultiBinary():
            return f"MultiBinary({space.n})"
        case gym.Box():
            return f"Box({list(space.shape)}, {np.dtype(space.dtype).name})"
    return repr(space)


def same(a: gym.Space, b: gym.Space) -> bool:
    """Whether two spaces have equal parts in the same order, which is the order of a policy's inputs and outputs."""
    return a == b and describe(a) == describe(b)


def check_observation_space(space: gym.Space) -> None:
    """Refuse parts that `flatten` cannot make numbers of."""
    for name, leaf in leaves(space).items():
        if not isinstance(leaf, (gym.Box, gym.Discrete, gym.MultiDiscrete, gym.MultiBinary)):
            where = f"observation space['{name}']" if name else "observation space"
            raise ConfigError(
                f"{where}: {leaf} is not supported; use Box, Discrete, MultiDiscrete, MultiBinary or Dict"
            )


def shape_of(space: gym.Space) -> tuple[int, ...]:
    """The shape of the values of a space that is not nested."""
    assert space.shape is not None
    return space.shape


def flat_size(space: gym.Space) -> int:
    """The length of `flatten(space, x)`."""
    one_hot = gym.Discrete, gym.MultiDiscrete
    return sum(logits(s) if isinstance(s, one_hot) else math.prod(shape_of(s)) for s in leaves(space).values())


def flatten(space: gym.Space, x: PyTree) -> Array:
    """Observations as vectors [..., flat_size]: integers one-hot, bytes scaled to [0, 1], parts concatenated."""
    parts = split(space, x)
    vectors = [as_vector(leaf, jnp.asarray(parts[name])) for name, leaf in leaves(space).items()]
    return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors, axis=-1)


def as_vector(space: gym.Space, x: Array) -> Array:
    """Observations of one part as vectors."""
    if isinstance(space, gym.Discrete):
        return jax.nn.one_hot(x - int(space.start), int(space.n))
    flat = x.reshape(*x.shape[: x.ndim - len(shape_of(space))], -1)
    if isinstance(space, gym.MultiDiscrete):
        options = zip(np.ravel(space.start).tolist(), choices(space))
        return jnp.concatenate([jax.nn.one_hot(flat[..., i] - low, n) for i, (low, n) in enumerate(options)], axis=-1)
    return flat.astype(jnp.float32) / 255.0 if is_image_like(space) else flat.astype(jnp.float32)


def leaves(space: gym.Space, name: str = "") -> dict[str, gym.Space]:
    """The parts of a nested space by name: `choice`, `1`, `arm/0`. A plain space is one part without a name."""
    if not isinstance(space, (gym.Dict, gym.Tuple)):
        return {name: space}
    return {k: v for _, sub, path in children(space, name) for k, v in leaves(sub, path).items()}


def build(space: gym.Space, values: dict[str, PyTree], name: str = "") -> PyTree:
    """Values by part name as the nested structure of the space."""
    match space:
        case gym.Dict():
            return {key: build(sub, values, path) for key, sub, path in children(space, name)}
        case gym.Tuple():
            return tuple(build(sub, values, path) for _, sub, path in children(space, name))
    return values[name]


def split(space: gym.Space, x: PyTree, name: str = "") -> dict[str, PyTree]:
    """The inverse of `build`."""
    if not isinstance(space, (gym.Dict, gym.Tuple)):
        return {name: x}
    return {k: v for key, sub, path in children(space, name) for k, v in split(sub, x[key], path).items()}


def children(space: gym.Dict | gym.Tuple, name: str) -> list[tuple[str | int, gym.Space, str]]:
    """(key, space, name) of the direct parts of a Dict or Tuple space called `name`."""
    parts = space.spaces.items() if isinstance(space, gym.Dict) else enumerate(space.spaces)
    return [(key, sub, f"{name}/{key}" if name else str(key)) for key, sub in parts]


def choices(space: gym.Space) -> list[int]:
    """The number of options of each choice, all discrete parts one after the other."""
    sizes: list[int] = []
    for leaf in leaves(space).values():
        match leaf:
            case gym.Discrete():
                sizes.append(int(leaf.n))
            case gym.MultiDiscrete():
                sizes += np.ravel(leaf.nvec).tolist()
            case gym.MultiBinary():
                sizes += [2] * math.prod(leaf.shape)
    return sizes


def logits(space: gym.Space) -> int:
    """Options of all choices side by side: the length of a mask row."""
    return sum(choices(space))


def mask_row(space: gym.Space, mask: PyTree, lead: tuple[int, ...] = ()) -> Any:
    """An action mask as one row [*lead, L] over the options of every discrete part, True = allowed. For a nested space
    it comes as a dict or tuple of the same structure, where a part may be None or missing (everything allowed), or as
    such a row already."""
    np_or_jnp = np if all(isinstance(x, np.ndarray) for x in jax.tree.leaves(mask)) else jnp

    def rows(space: gym.Space, mask: PyTree) -> list[np.ndarray | Array]:
        match space:
            case gym.Dict() if not hasattr(mask, "shape"):
                parts = {} if mask is None else mask
                if not isinstance(parts, Mapping):
                    raise ConfigError(f"action mask: {describe(space)} needs a dict of masks by part")
                if unknown := set(parts) - set(space.spaces):
                    raise ConfigError(f"action mask: the action has no part '{min(unknown)}'")
                return [r for k, s in space.spaces.items() for r in rows(s, parts.get(k))]
            case gym.Tuple() if not hasattr(mask, "shape"):
                parts = (None,) * len(space.spaces) if mask is None else mask
                if not isinstance(parts, (tuple, list)) or len(parts) != len(space.spaces):
                    raise ConfigError(f"action mask: {describe(space)} needs a tuple of masks, one for each part")
                return [r for s, m in zip(space.spaces, parts) for r in rows(s, m)]
        size = logits(space)
        if mask is None or not size:
            return [np_or_jnp.ones((*lead, size), bool)]
        if isinstance(mask, (tuple, list)):  # Gymnasium's form for MultiDiscrete: one array for each choice
            parts = [np_or_jnp.asarray(m, bool) for m in mask]
            mask = np_or_jnp.concatenate(parts, axis=-1) if parts and parts[0].ndim else np_or_jnp.asarray(parts)
        if math.prod(np.shape(mask)[len(lead) :]) != size:
            raise ConfigError(
                f"action mask of shape {np.shape(mask)[len(lead) :]}: {describe(space)} has {size} options"
            )
        return [np_or_jnp.asarray(mask, bool).reshape(*lead, size)]

    return np_or_jnp.concatenate(rows(space, mask), axis=-1)


def bounds(space: gym.Space) -> tuple[np.ndarray | np.integer | int, np.ndarray | np.integer | int]:
    """The least and the greatest values of a space that is not nested, by dimension; infinite where it has none."""
    match space:
        case gym.Discrete():
            return space.start, space.start + space.n - 1
        case gym.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case gym.MultiBinary():
            return 0, 1
    assert isinstance(space, gym.Box)
    return space.low, space.high


def sample(space: gym.Space, row: np.ndarray | None = None) -> PyTree:
    """A random member with the space's own generator, where a mask row allows it."""
    if row is None:
        return space.sample()
    values, start = {}, 0
    for name, leaf in leaves(space).items():
        mask = np.asarray(row[start : start + logits(leaf)], np.int8)
        start += logits(leaf)
        match leaf:
            case gym.Discrete():
                values[name] = leaf.sample(mask=mask)
            case gym.MultiDiscrete() if len(leaf.shape) == 1:
                values[name] = leaf.sample(mask=tuple(np.split(mask, np.cumsum(leaf.nvec)[:-1])))
            case gym.MultiBinary():
                zero, one = mask.reshape(*leaf.shape, 2).transpose(-1, *range(len(leaf.shape)))
                values[name] = leaf.sample(mask=np.where(zero & one, 2, one).astype(np.int8))  # 2: draw it
            case _:
                values[name] = leaf.sample()
    return build(space, values)


def allows(space: gym.Space, row: np.ndarray) -> bool:
    """Whether a mask row [..., L] leaves at least one option of every choice."""
    starts = np.cumsum([0, *choices(space)[:-1]])
    return bool(np.logical_or.reduceat(row, starts, axis=-1).all())


def is_image_like(space: gym.Space) -> bool:
    return isinstance(space, gym.Box) and space.dtype == np.uint8


def zeros(space: gym.Space, lead: tuple[int, ...] = ()) -> PyTree:
    """A value of the space, all zero, with leading axes: buffers and compilation use it."""
    parts = leaves(space).items()
    return build(space, {name: np.zeros((*lead, *shape_of(leaf)), device_dtype(leaf)) for name, leaf in parts})


def cast(space: gym.Space, x: PyTree) -> PyTree:
    """One observation in the dtypes that travel to the device."""
    parts = split(space, x)
    return build(space, {name: np.asarray(parts[name], device_dtype(leaf)) for name, leaf in leaves(space).items()})


def device_dtype(space: gym.Space) -> Any:
    """float32, int32 or uint8, for a space that is not nested."""
    if np.issubdtype(space.dtype, np.integer) and not is_image_like(space):
        return np.int32
    return np.float32 if space.dtype == np.float64 else space.dtype


def to_json(space: gym.Space) -> dict:
    """A space as plain data: saved with a policy, so that it loads without its environment."""
    match space:
        case gym.Dict():
            return {"type": "Dict", "spaces": {k: to_json(s) for k, s in space.spaces.items()}}
        case gym.Tuple():
            return {"type": "Tuple", "spaces": [to_json(s) for s in space.spaces]}
        case gym.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
        case gym.MultiDiscrete():
            return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case gym.MultiBinary():
            return {"type": "MultiBinary", "n": list(space.shape)}
        case gym.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            return {"type": "Box", "shape": list(space.shape), "dtype": np.dtype(space.dtype).name, **bounds}
    raise ConfigError(f"the space {space} cannot be saved")


def from_json(data: dict) -> gym.Space:
    match data["type"]:
        case "Dict":
            return gym.Dict([(k, from_json(s)) for k, s in data["spaces"].items()])  # of a dict it would sort the parts
        case "Tuple":
            return gym.Tuple([from_json(s) for s in data["spaces"]])
        case "Discrete":
            return gym.Discrete(data["n"], start=data["start"])
        case "MultiDiscrete":
            return gym.MultiDiscrete(np.array(data["nvec"]), start=np.array(data["start"]))
        case "MultiBinary":
            return gym.MultiBinary(data["n"] if len(data["n"]) > 1 else data["n"][0])
        case "Box":
            dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
            low, high = (np.broadcast_to(np.array(data[k], np.float64), shape) for k in ("low", "high"))
            low, high = (np.where(np.abs(x) >= 1e300, np.copysign(np.inf, x), x).astype(dtype) for x in (low, high))
            return gym.Box(low, high, shape, dtype.type)
    raise ConfigError(f"unknown space type '{data.get('type')}' in a saved policy")


def _bound(x: np.ndarray) -> float | list:
    """One number where all are equal (an image has the same bounds everywhere), else a nested list; strict JSON."""
    values = np.where(np.isinf(x.astype(np.float64)), np.sign(x.astype(np.float64)) * 1e300, x)
    return float(values.flat[0]) if values.size and np.all(values == values.flat[0]) else values.tolist()
