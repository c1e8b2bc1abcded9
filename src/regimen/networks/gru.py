"""A recurrent network of flax."""

import math
from typing import Any

from flax import nnx

from regimen.networks.layers import ACTIVATIONS, Settings, orthogonal
from regimen.types import Array


class GRU(nnx.Module):
    """A layer, then a gated recurrent unit (Cho et al. 2014)."""

    def __init__(self, in_size: int, config: Settings, rngs: nnx.Rngs):
        size = config.memory_size
        self.activation = config.activation
        self.embed = nnx.Linear(in_size, size, kernel_init=orthogonal(math.sqrt(2)), rngs=rngs)
        init: Any = orthogonal(1.0)
        self.cell = nnx.GRUCell(size, size, kernel_init=init, recurrent_kernel_init=init, rngs=rngs)

    def __call__(self, x: Array, h: Array) -> Array:
        return self.cell(h, ACTIVATIONS[self.activation](self.embed(x)))[0]
