"""The rows of a `TrajectoryBuffer`, and the nested arrays that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from regimen.config.names import Answering, equivalent
from regimen.errors import ConfigError

PyTree = Any  # nested dicts and tuples of arrays; a list is an array

SCALAR = ("reward", "value", "final_value")
FINITE = (*SCALAR, "log_prob")
DTYPES = dict.fromkeys(SCALAR, np.float64) | {"log_prob": np.float32, "mask": np.bool_}


class TrajectoryError(ConfigError, ValueError):
    """The buffer was used in the wrong order, or was given what does not fit the steps before."""


@dataclass(frozen=True, eq=False)
class MinibatchRows(Answering):
    """Rows of a buffer. With values by component so are `returns` and `advantages`; the latter also have `total`, the
    sum over the components. Those made with `as_jax=True` are pytrees. `rows["states"]` is `rows.states`."""

    states: PyTree  # [M, ...]
    actions: PyTree  # [M, ...]
    log_probs: PyTree  # [M, ...] float32; None where no step had one
    values: PyTree  # [M] float32, or component -> [M]
    returns: PyTree  # [M] float32, or component -> [M]
    advantages: PyTree  # [M] float32, or component -> [M]
    masks: PyTree  # [M, ...] bool; None where no step had one
    extras: dict[str, PyTree]  # name -> [M, ...]
    rewards: PyTree = None  # [M] float32, or component -> [M]
    weights: PyTree = None  # [M, K] of the components' advantages, where an algorithm has weighed them (`begin_update`)

    def keys(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(x.name for x in fields(self))

    def __getitem__(self, name: str) -> PyTree:
        if name not in self.keys():
            hint = equivalent("MinibatchRows", name) if isinstance(name, str) else ""
            raise KeyError(f"{name!r}{hint or '; a column is one of ' + ', '.join(self.keys())}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(next(iter(self.returns.values())) if isinstance(self.returns, dict) else self.returns)

    def map(self, f: Callable[[np.ndarray], PyTree]) -> MinibatchRows:
        """Apply `f` to every array."""
        return MinibatchRows(
            **{x.name: map_tree(lambda _, array: f(array), getattr(self, x.name)) for x in fields(self)}
        )

    def to_jax(self) -> MinibatchRows:
        import jax.numpy as jnp

        register_pytree()
        return self.map(jnp.asarray)


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

    def put(path: str, x: PyTree) -> str:
        leaves[path] = x
        return path

    return map_tree(put, tree, path)


def map_tree(f: Callable[[str, PyTree], PyTree], tree: PyTree, path: str = "") -> PyTree:
    """`f(path, array)` of every array of a tree, in its place; None stays."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {name: map_tree(f, x, f"{path}[{name!r}]") for name, x in tree.items()}
    if isinstance(tree, tuple):
        items = [map_tree(f, x, f"{path}[{i}]") for i, x in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return f(path, tree)


@cache
def register_pytree() -> None:
    import jax

    jax.tree_util.register_dataclass(MinibatchRows, [x.name for x in fields(MinibatchRows)], [])
