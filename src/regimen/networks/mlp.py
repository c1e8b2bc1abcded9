"""Dense layers one after the other."""

import math
from collections.abc import Callable

from flax import nnx

from regimen.errors import ConfigError
from regimen.networks.layers import ACTIVATIONS, Settings, Shape, orthogonal
from regimen.types import Array


class MLP(nnx.Module):
    """Dense layers with one activation; orthogonal weights of gain sqrt(2), and of `final_scale` in the last layer.
    With `layer_norm` each is normalised before its activation; with `residual` each but the first adds to its input."""

    normed = False

    def __init__(self, shape: Shape, config: Settings, final_scale: float, rngs: nnx.Rngs):
        sizes = (shape.in_size, *config.hidden)
        self.depth, self.residual = len(config.hidden), config.residual
        self.activation = config.activation
        if config.residual and (len(config.hidden) < 2 or len(set(config.hidden)) > 1):
            raise ConfigError("network.residual: layers that add to their input are two or more of one width, as 64 64")
        for i in range(self.depth):
            init = orthogonal(math.sqrt(2))
            setattr(self, f"dense_{i}", nnx.Linear(sizes[i], sizes[i + 1], kernel_init=init, rngs=rngs))
            norm = nnx.LayerNorm(sizes[i + 1], rngs=rngs) if self.normed or config.layer_norm else None
            setattr(self, f"norm_{i}", norm)
        init = orthogonal(final_scale)
        self.head = nnx.Linear(sizes[-1], shape.out_size, kernel_init=init, rngs=rngs)

    def __call__(self, x: Array, drop: Callable[[int, Array], Array] | None = None) -> Array:
        for i in range(self.depth):
            h, norm = getattr(self, f"dense_{i}")(x), getattr(self, f"norm_{i}")
            h = ACTIVATIONS[self.activation](h if norm is None else norm(h))
            h = h if drop is None else drop(i, h)
            x = x + h if self.residual and i else h
        return self.head(x)


class NormedMLP(MLP):
    """Layer normalisation before each activation."""

    normed = True
