"""Dense layers one after the other. Plain functions of plain dicts: flax takes longer to import than a policy for
CartPole to learn, and nothing here needs it."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen import randomness
from regimen.errors import ConfigError
from regimen.networks.layers import ACTIVATIONS, Settings, Shape, orthogonal
from regimen.types import Array, PyTree

EPSILON = 1e-6  # of layer normalisation


class MLP:
    """Dense layers with one activation; orthogonal weights of gain sqrt(2), and of `final_scale` in the last layer.
    With `layer_norm` each is normalised before its activation; with `residual` each but the first adds to its input."""

    normed = False

    def __init__(self, shape: Shape, config: Settings, final_scale: float):
        self.sizes = (shape.in_size, *config.hidden, shape.out_size)
        self.depth, self.residual, self.final_scale = len(config.hidden), config.residual, final_scale
        self.activation, self.normalises = ACTIVATIONS[config.activation], self.normed or config.layer_norm
        if config.residual and (len(config.hidden) < 2 or len(set(config.hidden)) > 1):
            raise ConfigError("network.residual: layers that add to their input are two or more of one width, as 64 64")

    def init(self, key: Array) -> PyTree:
        """The weights. Every array has a key of its own by its place, also those that are constant at first."""
        params, place = {}, 0
        for i in range(self.depth + 1):
            last = i == self.depth
            kernel = orthogonal(self.final_scale if last else math.sqrt(2))
            name, shape = "head" if last else f"dense_{i}", self.sizes[i : i + 2]
            params[name] = {"kernel": kernel(randomness.fold_in(key, place), shape), "bias": constant(0.0, shape[1])}
            place += 2
            if self.normalises and not last:
                params[f"norm_{i}"] = {"scale": constant(1.0, shape[1]), "bias": constant(0.0, shape[1])}
                place += 2
        return params

    def apply(self, params: PyTree, x: Array, drop: Callable[[int, Array], Array] | None = None) -> Array:
        """Outputs [..., out] for inputs [..., in]; `drop(layer, h)` changes hidden layers."""
        for i in range(self.depth):
            h = dense(params[f"dense_{i}"], x)
            h = self.activation(normalised(params[f"norm_{i}"], h) if self.normalises else h)
            h = h if drop is None else drop(i, h)
            x = x + h if self.residual and i else h
        return dense(params["head"], x)


class NormedMLP(MLP):
    """Layer normalisation before each activation."""

    normed = True


def constant(value: float, size: int) -> Array:
    """An array of one value, made on the host."""
    return jax.device_put(np.full(size, value, np.float32))


def dense(params: PyTree, x: Array) -> Array:
    """A layer: x W + b."""
    y = lax.dot_general(x, params["kernel"], (((x.ndim - 1,), (0,)), ((), ())))
    return y + params["bias"].reshape((1,) * (y.ndim - 1) + (-1,))


def normalised(params: PyTree, x: Array) -> Array:
    """Layer normalisation (Ba et al. 2016) over the last axis, the variance as E[x^2] - E[x]^2 in one pass."""
    square = lax.square(x)  # before the means: a gradient adds up in the order of these lines, to the last digit
    mean, square = x.mean(-1), square.mean(-1)
    variance = jnp.maximum(0.0, square - lax.square(mean))
    mean, variance = mean.reshape(*x.shape[:-1], 1), variance.reshape(*x.shape[:-1], 1)
    axes = (1,) * (x.ndim - 1) + (-1,)
    centred = x - mean
    return centred * (lax.rsqrt(variance + EPSILON) * params["scale"].reshape(axes)) + params["bias"].reshape(axes)
