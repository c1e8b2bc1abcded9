"""Networks by name, and encoders in front of them, as pure functions."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym

from regimen import spaces
from regimen.errors import ConfigError, nearest
from regimen.inputs import Inputs
from regimen.networks.layers import Net, Settings, Shape, pure
from regimen.networks.mlp import MLP, NormedMLP
from regimen.types import Array, PyTree

if TYPE_CHECKING:
    from flax import nnx


NetworkBuilder = Callable[..., "nnx.Module"]
NETWORKS: dict[str, NetworkBuilder | type[MLP] | str] = {
    "mlp": MLP,
    "mlp_norm": NormedMLP,
    "graph": "regimen.networks.graph:GraphNet",  # imported when one is made, and flax with it
}


def register_network(name: str, builder: NetworkBuilder) -> None:
    """Make a network of yours known by a name, for `--network.name NAME`.

    Args:
        name: how it is called.
        builder: a function `builder(shape, config, final_scale, rngs) -> nnx.Module`, where `shape` says what the
            network reads and puts out.
    """
    NETWORKS[name] = builder


def make_net(config: Settings, shape: Shape, final_scale: float) -> Net:
    """The network named in `config`, from vectors of `shape.in_size` to vectors of `shape.out_size`."""
    if config.name not in NETWORKS:
        raise ConfigError(f"network.name: unknown network '{config.name}'{nearest(config.name, NETWORKS)}")

    builder = NETWORKS[config.name]
    if isinstance(builder, str):
        module, _, name = builder.partition(":")
        builder = getattr(importlib.import_module(module), name)
    if isinstance(builder, type) and issubclass(builder, MLP):
        net = builder(shape, config, final_scale)
        return Net(net.init, net.apply)
    cost = getattr(builder, "cost", None)
    init, apply = pure(lambda rngs: builder(shape, config, final_scale, rngs))
    return Net(init, apply, None if cost is None else partial(cost, shape))


class Encoder(NamedTuple):
    """The encoders of an observation as two pure functions."""

    init: Callable[[Array], PyTree]  # key -> params
    apply: Callable[[PyTree, PyTree], Array]  # params, `Features` -> [..., size]
    size: int
    activation_bytes: int  # of one observation, between the layers, while a gradient is computed: an estimate


def make_encoder(config: Settings, inputs: Inputs) -> Encoder | None:
    """What reads the parts of an observation; None where it is a vector alone."""
    if not inputs.parts:
        return None
    from flax import nnx

    from regimen.networks.encoders import Encoders

    init, apply = pure(lambda rngs: Encoders(inputs, config, rngs))
    encoders = Encoders(inputs, config, nnx.Rngs(0))
    return Encoder(init, apply, encoders.out_size, activation_bytes(encoders, inputs))


def activation_bytes(encoders: Callable[[PyTree], Array], inputs: Inputs) -> int:
    """About what a gradient through encoders keeps of one observation: three times what convolutions, products and
    maxima put out, as XLA needed for IMPALA's convolutions on a CPU (`temp_size_in_bytes`). Nothing is computed."""
    x = jax.eval_shape(lambda: inputs.read(spaces.zeros(inputs.space, (1,))))
    layers = ("conv_general_dilated", "dot_general", "reduce_window_max")
    outputs = [v.aval for e in jax.make_jaxpr(encoders)(x).eqns if e.primitive.name in layers for v in e.outvars]
    return 3 * sum(math.prod(a.shape) * a.dtype.itemsize for a in outputs)  # type: ignore[attr-defined]


class EncodedNet(NamedTuple):
    """A network, and the encoder of its own in front of it where the observation has parts that need one."""

    encoder: Encoder | None
    net: Net

    def init(self, key: Array) -> PyTree:
        if self.encoder is None:
            return self.net.init(key)
        return {"encoder": self.encoder.init(jax.random.fold_in(key, 1)), "net": self.net.init(key)}

    def embed(self, params: PyTree, x: PyTree) -> Array:
        """What the encoder makes of an observation: a vector [..., D]."""
        return x if self.encoder is None else self.encoder.apply(params["encoder"], x)

    def read(self, params: PyTree, vector: Array) -> Array:
        """What the network makes of that vector."""
        return self.net.apply(params if self.encoder is None else params["net"], vector)

    def beside(self, params: PyTree, x: PyTree, numbers: Array) -> Array:
        """What it makes of an observation and of further numbers."""
        return self.read(params, jnp.concatenate([self.embed(params, x), numbers], axis=-1))

    def apply(self, params: PyTree, x: PyTree) -> Array:
        return self.read(params, self.embed(params, x))


def make_encoded(
    config: Settings, inputs: Inputs, heads: tuple[tuple[int, int], ...], final_scale: float, beside: int = 0
) -> EncodedNet:
    """A network with an encoder of its own, that reads `beside` further numbers beside the observation."""
    encoder = make_encoder(config, inputs)
    if encoder is None and not beside:
        space = inputs.space
    else:
        size = inputs.vector_size if encoder is None else encoder.size
        space = vector_space(size + beside)
    return EncodedNet(encoder, make_net(config, Shape(space, heads), final_scale))


def vector_space(size: int) -> gym.Box:
    """The space of what an encoder puts out."""
    return gym.Box(-np.inf, np.inf, (size,), np.float32)
