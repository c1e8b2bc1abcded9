"""A network that reads a grid as a picture: residual convolutions that keep the map's shape, so that what it learns of
one place it knows of all, and of maps it has not seen."""

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces as gym

from regimen.errors import ConfigError
from regimen.networks import Shape, register_network
from regimen.networks.layers import ACTIVATIONS, Settings, on_rows, orthogonal
from regimen.types import Array

GAIN = math.sqrt(2)
PARTS = ("at", "cells", "grid", "numbers")  # of a picture (`worlds/picture.py`); more may follow


class PictureNet(nnx.Module):
    """Convolutions of 3 x 3 cells with `hidden` filters, one block for each entry. Every block also adds what it sees
    on the whole map, and the numbers without a place, to every cell. Then `read`."""

    def __init__(self, shape: Shape, config: Settings, final_scale: float, rngs: nnx.Rngs):
        space = shape.space
        if not isinstance(space, gym.Dict) or not set(PARTS) <= set(space.spaces):
            raise ConfigError(f"network.name: '{config.name}' reads grids as pictures; set env.view to picture")
        sizes = {name: math.prod(part.shape or ()) for name, part in space.spaces.items()}
        self.ends = tuple(np.cumsum(list(sizes.values())).tolist())
        height, width, planes = space["grid"].shape or (0, 0, 0)
        self.grid = (height, width, planes)
        self.agents, self.activation, width = sizes["at"], config.activation, config.hidden[0]
        numbers = sum(size for name, size in sizes.items() if name not in PARTS[:3])
        self.first = conv(planes, width, 3, rngs)
        self.numbers = dense(numbers, width, GAIN, rngs)
        self.blocks = len(config.hidden)
        for i, (inputs, filters) in enumerate(zip((width, *config.hidden), config.hidden)):
            setattr(self, f"near_{i}", conv(inputs, filters, 3, rngs))
            setattr(self, f"far_{i}", dense(2 * inputs, filters, GAIN, rngs))
            setattr(self, f"skip_{i}", None if inputs == filters else conv(inputs, filters, 1, rngs))
        self.build(config.hidden[-1], shape, final_scale, rngs)

    def build(self, width: int, shape: Shape, final_scale: float, rngs: nnx.Rngs) -> None:
        """Make the layers of `read`: a hidden one on the means, the maxima and the cells of all agents."""
        self.hidden = dense((2 + self.agents) * width, 2 * width, GAIN, rngs)
        self.out = dense(2 * width, shape.out_size, final_scale, rngs)

    def read(self, h: Array, at: Array, cells: Array) -> Array:
        """Outputs [B, out] of the last maps [B, height * width, C]."""
        own = jnp.take_along_axis(h, at[..., None], 1).reshape(len(h), -1)
        code = jnp.concatenate([h.mean(1), h.max(1), own], -1)
        return self.out(ACTIVATIONS[self.activation](self.hidden(code)))

    def __call__(self, x: Array) -> Array:
        act, lead = ACTIVATIONS[self.activation], x.shape[:-1]
        at, cells, grid, *numbers = jnp.split(x.reshape(-1, x.shape[-1]), self.ends[:-1], -1)
        h = self.first(grid.reshape(-1, *self.grid)) + self.numbers(jnp.concatenate(numbers, -1))[:, None, None]
        for i in range(self.blocks):
            z = act(h)
            far = getattr(self, f"far_{i}")(jnp.concatenate([z.mean((1, 2)), z.max((1, 2))], -1))
            skip = getattr(self, f"skip_{i}")
            h = (h if skip is None else skip(h)) + act(getattr(self, f"near_{i}")(z) + far[:, None, None])
        h = h.reshape(len(h), -1, h.shape[-1])
        return self.read(h, at.astype(jnp.int32), cells.astype(jnp.int32)).reshape(*lead, -1)


class PlaceNet(PictureNet):
    """The same with one output for every place and row: abilities, whose goals are places."""

    def build(self, width: int, shape: Shape, final_scale: float, rngs: nnx.Rngs) -> None:
        self.each = dense(width, width, GAIN, rngs)
        self.out = dense(width, shape.heads[0][0], final_scale, rngs)

    def read(self, h: Array, at: Array, cells: Array) -> Array:
        there = jnp.take_along_axis(h, cells[..., None], 1)  # [B, P, C]
        rows = on_rows(self.out, ACTIVATIONS[self.activation](on_rows(self.each, there)))  # [B, P, H]
        return rows.swapaxes(1, 2).reshape(len(h), -1)


def conv(inputs: int, filters: int, side: int, rngs: nnx.Rngs) -> nnx.Conv:
    return nnx.Conv(inputs, filters, (side, side), padding="SAME", kernel_init=orthogonal(GAIN), rngs=rngs)


def dense(inputs: int, outputs: int, scale: float, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(inputs, outputs, kernel_init=orthogonal(scale), rngs=rngs)


register_network("picture", PictureNet)
register_network("places", PlaceNet)
