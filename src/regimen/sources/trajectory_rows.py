"""Rows of a `TrajectoryBuffer`, and the nested dicts and tuples that its steps may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from regimen.errors import ConfigError

PyTree = Any  # nested dicts and tuples of arrays; a list is an array


class TrajectoryError(ConfigError, ValueError):
    """The buffer was used in the wrong order, or was given what does not fit the steps before."""


@dataclass(frozen=True, eq=False)
class MinibatchRows:
    """Rows of a buffer. With values by component so are `returns` and `advantages`; the latter also have `total`, the
    sum over the components. Those made with `as_jax=True` are pytrees."""

    states: PyTree  # [M, ...]
    actions: PyTree  # [M, ...]
    log_probs: PyTree  # [M, ...] float32; None where no step had one
    values: PyTree  # [M] float32, or component -> [M]
    returns: PyTree  # [M] float32, or component -> [M]
    advantages: PyTree  # [M] float32, or component -> [M]
    masks: PyTree  # [M, ...] bool; None where no step had one
    extras: dict[str, PyTree]  # name -> [M, ...]

    def __len__(self) -> int:
        returns = self.returns
        return len(next(iter(returns.values())) if isinstance(returns, dict) else returns)

    def map(self, f: Callable[[np.ndarray], PyTree]) -> MinibatchRows:
        """`f` of every array."""
        return MinibatchRows(**{field.name: map_arrays(f, getattr(self, field.name)) for field in fields(self)})

    def to_jax(self) -> MinibatchRows:
        import jax.numpy as jnp

        register_pytree()
        return self.map(jnp.asarray)


def total_of(columns: dict[str, np.ndarray], paths: list[str]) -> np.ndarray:
    return np.sum([columns[path] for path in paths], axis=0)


def paths_of(skeleton: PyTree) -> list[str]:
    return list(skeleton.values()) if isinstance(skeleton, dict) else [skeleton]


def check_components(reward: PyTree, value: PyTree) -> None:
    """Rewards and values are numbers or flat dicts, and dicts of values have the components of the rewards."""
    for field, x in (("reward", reward), ("value", value)):
        flat = isinstance(x, dict) and x and all(isinstance(path, str) for path in x.values())
        if not isinstance(x, str) and not flat:
            raise TrajectoryError(f"{field}: must be a number, or a dict from component to number")
    if isinstance(reward, dict) and len(reward) > 1 and "total" in reward:
        raise TrajectoryError("reward['total']: 'total' is the sum of all components; leave it out or rename it")
    if isinstance(value, dict):
        if not isinstance(reward, dict):
            raise TrajectoryError("value: by component, but reward is a number; give both by component")
        require_components("value", value, "reward", reward)


def require_components(field: str, skeleton: PyTree, other: str, expected: dict) -> None:
    names = skeleton if isinstance(skeleton, dict) else {}
    for name in expected:
        if not isinstance(names.get(name), str):
            raise TrajectoryError(f"{field}[{name!r}]: missing, but {other} has this component")
    for name in names:
        if name not in expected:
            raise TrajectoryError(f"{field}[{name!r}]: given, but {other} does not have this component")


def read_fraction(name: str, x: float) -> float:
    try:
        number = float(x)
    except (TypeError, ValueError):
        raise TrajectoryError(f"{name}: {x!r} is not a number") from None
    if not 0.0 <= number <= 1.0:
        raise TrajectoryError(f"{name}: {x} must be 0 to 1")
    return number


def read_generator(seed: int | np.random.Generator) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise TrajectoryError(f"seed: {seed!r} is neither a number of at least 0 nor a numpy Generator") from None


def flatten(tree: PyTree, path: str, leaves: dict[str, PyTree]) -> PyTree:
    """Put the arrays of a tree into `leaves`, by path, and return the tree with paths in their places."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {name: flatten(x, f"{path}[{name!r}]", leaves) for name, x in tree.items()}
    if isinstance(tree, tuple):
        items = [flatten(x, f"{path}[{i}]", leaves) for i, x in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    leaves[path] = tree
    return path


def map_arrays(f: Callable[[PyTree], PyTree], tree: PyTree) -> PyTree:
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {name: map_arrays(f, x) for name, x in tree.items()}
    if isinstance(tree, tuple):
        items = [map_arrays(f, x) for x in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return f(tree)


@cache
def register_pytree() -> None:
    import jax

    names = [field.name for field in fields(MinibatchRows)]
    jax.tree_util.register_dataclass(MinibatchRows, data_fields=names, meta_fields=[])
