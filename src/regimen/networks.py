"""Networks. The only file that imports flax: everything else sees `Net(init, apply)` and plain-dict parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from regimen.config import NetworkConfig
from regimen.errors import ConfigError, nearest
from regimen.types import Array, PyTree

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "elu": jax.nn.elu}


class Net(NamedTuple):
    """A network as two pure functions."""

    init: Callable[[Array], PyTree]  # key -> params
    apply: Callable[[PyTree, Array], Array]  # params, [..., in] -> [..., out]


def orthogonal(scale: float):
    """Orthogonal weights (Saxe et al. 2014) made by numpy on the host: nothing to compile, and no batched QR inside a
    program, which deadlocks on two cores (jaxlib 0.10)."""

    def init(key: Array, shape: tuple[int, int], dtype=jnp.float32) -> Array:
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        rows, columns = shape
        normal = np.random.default_rng(seed).standard_normal((max(shape), min(shape)))
        q, r = np.linalg.qr(normal)
        q = q * np.sign(np.diag(r))  # uniform over orthogonal matrices
        return jnp.asarray(scale * (q if rows >= columns else q.T), dtype)

    return init


class MLP(nnx.Module):
    """Dense layers with one activation; orthogonal weights of gain sqrt(2), and of `final_scale` in the last layer."""

    def __init__(self, in_size: int, out_size: int, config: NetworkConfig, final_scale: float, rngs: nnx.Rngs):
        sizes = (in_size, *config.hidden)
        self.depth = len(config.hidden)
        self.activation = config.activation
        for i in range(self.depth):
            init = orthogonal(math.sqrt(2))
            setattr(self, f"dense_{i}", nnx.Linear(sizes[i], sizes[i + 1], kernel_init=init, rngs=rngs))
        init = orthogonal(final_scale)
        self.head = nnx.Linear(sizes[-1], out_size, kernel_init=init, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        for i in range(self.depth):
            x = ACTIVATIONS[self.activation](getattr(self, f"dense_{i}")(x))
        return self.head(x)


NetworkBuilder = Callable[..., nnx.Module]
NETWORKS: dict[str, NetworkBuilder] = {"mlp": MLP}


def register_network(name: str, builder: NetworkBuilder) -> None:
    """Make `builder(in_size, out_size, config, final_scale, rngs) -> nnx.Module` available as `--network.name NAME`."""
    NETWORKS[name] = builder


def make_net(config: NetworkConfig, in_size: int, out_size: int, final_scale: float) -> Net:
    """The network named in `config`, from vectors of `in_size` to vectors of `out_size`."""
    if config.name not in NETWORKS:
        raise ConfigError(f"network.name: unknown network '{config.name}'{nearest(config.name, NETWORKS)}")

    def build(rngs: nnx.Rngs) -> nnx.Module:
        return NETWORKS[config.name](in_size, out_size, config, final_scale, rngs)

    graph = nnx.graphdef(build(nnx.Rngs(0)))

    def init(key: Array) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

    def apply(params: PyTree, x: Array) -> Array:
        return nnx.merge(graph, params)(x)  # type: ignore[operator]

    return Net(init, apply)


def count_parameters(params: PyTree) -> int:
    return sum(int(np.prod(np.shape(x))) for x in jax.tree.leaves(params))
