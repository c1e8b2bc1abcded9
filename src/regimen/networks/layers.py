"""What every network is made of: its settings, its shape, initial weights, and a module as two pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym

from regimen import spaces
from regimen.schedule import Cost
from regimen.types import Array, PyTree

if TYPE_CHECKING:
    from flax import nnx

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "elu": jax.nn.elu}


class Settings(Protocol):
    """What a network is built from; `config.schema.NetworkConfig` is one."""

    @property
    def name(self) -> str: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> str: ...
    @property
    def memory(self) -> str: ...
    @property
    def memory_size(self) -> int: ...
    @property
    def layer_norm(self) -> bool: ...
    @property
    def residual(self) -> bool: ...
    @property
    def encoder(self) -> str: ...
    @property
    def encoder_size(self) -> int | None: ...
    @property
    def attention(self) -> bool: ...
    @property
    def channels(self) -> str: ...
    @property
    def embedding(self) -> str: ...


class Shape(NamedTuple):
    """What a network reads and puts out."""

    space: gym.Space  # of the observations, which arrive as vectors (`spaces.flatten`)
    heads: tuple[tuple[int, int], ...]  # (rows, columns) of each output; the outputs side by side are one vector

    @property
    def in_size(self) -> int:
        return spaces.flat_size(self.space)

    @property
    def out_size(self) -> int:
        return sum(rows * columns for rows, columns in self.heads)


class Net(NamedTuple):
    """A network as two pure functions."""

    init: Callable[[Array], PyTree]  # key -> params
    apply: Callable[..., Array]  # params, [..., in] -> [..., out]; `drop(layer, h)` changes hidden layers, see MLP
    cost: Callable[[Array], Cost] | None = None  # [..., in] -> [...], where inputs differ in what they cost


def orthogonal(scale: float):
    """Orthogonal weights (Saxe et al. 2014) made by numpy on the host: nothing to compile, and no batched QR inside a
    program, which deadlocks on two cores (jaxlib 0.10)."""

    def init(key: Array, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        rows, columns = math.prod(shape[:-1]), shape[-1]  # of a convolution, all that one filter reads are rows
        sizes = max(rows, columns), min(rows, columns)
        q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal(sizes))
        q = q * np.sign(np.diag(r))  # uniform over orthogonal matrices
        return jax.device_put((scale * (q if rows >= columns else q.T).reshape(shape)).astype(dtype))

    return init


def on_rows(layer: Callable[[Array], Array], x: Array) -> Array:
    """A layer [..., in] -> [..., out] as one product of two matrices. With more axes its gradient takes longer on a
    CPU."""
    return layer(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


def pure(build: Callable[[nnx.Rngs], nnx.Module]) -> tuple[Callable[[Array], PyTree], Callable[..., Array]]:
    """The module that `build` makes as two pure functions: `init(key)` and `apply(params, *inputs)`, of which an input
    that is None is not handed on. Imports flax."""
    from flax import nnx

    graph = nnx.graphdef(build(nnx.Rngs(0)))

    def init(key: Array) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

    def apply(params: PyTree, *inputs: Any) -> Array:
        return nnx.merge(graph, params)(*(x for x in inputs if x is not None))  # type: ignore[operator]

    return init, apply
