"""What every algorithm here is made of: its hyper-parameters as data of a pytree, its networks once it is bound to an
environment's spaces, and the way of observations in and of actions out."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Self, TypeVar

import jax
import numpy as np

from regimen import spaces
from regimen.algorithms.shared import Horizon
from regimen.config.schema import NetworkConfig
from regimen.config.validation import field_types
from regimen.normalize import RunningStats
from regimen.types import Array, PyTree, Spec


class Algorithm:
    """Holds its hyper-parameters and, once bound to a `Spec`, its networks. Methods are pure."""

    config_class: type
    default_network = NetworkConfig()
    asynchronous = False  # whether batches of an older policy can be learned from
    needs_env = False  # whether acting needs the native environment itself, not only its spaces
    stages: tuple[str, ...] = ()  # names of what its metric `stage` counts
    progress: tuple[str, ...] = ()  # metrics of `update` that the console shows beside loss and entropy

    def __init__(self, config: Any = None, network: NetworkConfig | None = None, **overrides):
        self.config = dataclasses.replace(config or self.config_class(), **overrides)
        self.network = network or self.default_network
        self.horizon = Horizon.parse(getattr(self.config, "horizon", None))
        self.parts: Any = None

    def bind(self, spec: Spec) -> Self:
        """This algorithm for one environment's spaces."""
        bound = type(self)(self.config, self.network)
        bound.parts = self.build(spec)
        return bound

    def build(self, spec: Spec) -> Any:
        """Networks and whatever else is made once for an environment; has `spec` and `dist`. Compared by identity, as
        part of the compiled program."""
        raise NotImplementedError

    @property
    def bound(self) -> Any:
        assert self.parts is not None, "call bind(spec) first"
        return self.parts

    def to_env(self, action: PyTree) -> PyTree:
        """Actions as the environment takes them; numpy from numpy."""
        out = self.bound.dist.to_env(action)
        on_host = isinstance(jax.tree.leaves(action)[0], (np.ndarray, np.generic))
        return jax.tree.map(np.asarray, out) if on_host else out

    def to_space(self, action: PyTree) -> PyTree:
        """Actions as elements of the action space, where `to_env` says more."""
        return self.to_env(action)

    def features(self, obs: PyTree, norm: RunningStats | None) -> Array:
        x = spaces.flatten(self.bound.spec.observation_space, obs)
        return x if norm is None else norm.normalize(x)


A = TypeVar("A", bound=type[Algorithm])


def register(cls: A) -> A:
    """Float hyper-parameters, also of sections within, and the length of the schedules are data of the pytree: another
    value does not compile anew."""
    jax.tree_util.register_pytree_node(cls, _flatten, lambda static, leaves: _unflatten(cls, static, leaves))
    return cls


def floats(config: Any) -> dict[str, Any]:
    """Field -> value of the float fields, those of nested sections as a dict."""
    out = {}
    for name, hint in field_types(type(config)).items():
        value = getattr(config, name)
        if float in (hint, *typing.get_args(hint)) and value is not None:
            out[name] = value
        elif dataclasses.is_dataclass(value):
            out[name] = floats(value)
    return out


def with_floats(config: Any, values: dict[str, Any]) -> Any:
    new = {k: with_floats(getattr(config, k), v) if isinstance(v, dict) else v for k, v in values.items()}
    return dataclasses.replace(config, **new)


def _flatten(algo: Algorithm):
    data = floats(algo.config)
    blank = with_floats(algo.config, jax.tree.map(lambda _: 0.0, data))
    if algo.horizon is not None:
        blank = dataclasses.replace(blank, horizon=None)
    length, unit = algo.horizon or (None, None)
    return (data, length), (blank, algo.network, algo.parts, unit)


def _unflatten(cls: type[Algorithm], static, children) -> Algorithm:
    (config, network, parts, unit), (data, length) = static, children
    algo = cls(with_floats(config, data), network)
    algo.horizon, algo.parts = None if unit is None else Horizon(length, unit), parts
    return algo
