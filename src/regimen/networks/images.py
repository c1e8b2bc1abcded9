"""Encoders of images: convolutions with rectified units, as published, and a dense layer."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from regimen.inputs import ImagePart
from regimen.networks.choice import size_of
from regimen.networks.layers import Settings, orthogonal
from regimen.types import Array

GAIN = math.sqrt(2)


def convolution(inputs: int, filters: int, side: int, stride: int, padding: str, rngs: nnx.Rngs) -> nnx.Conv:
    return nnx.Conv(
        inputs, filters, (side, side), strides=stride, padding=padding, kernel_init=orthogonal(GAIN), rngs=rngs
    )


class ImageEncoder(nnx.Module):
    """Pixels scaled to [0, 1], convolutions, and a dense layer of `out_size`."""

    def __init__(self, part: ImagePart, config: Settings, rngs: nnx.Rngs):
        self.size, self.highest = part.size, part.highest
        self.out_size = size_of(config, part)
        self.build(rngs)
        pixels = jax.eval_shape(lambda: self.convolve(jnp.zeros((1, *self.size)))).shape
        self.dense = nnx.Linear(math.prod(pixels), self.out_size, kernel_init=orthogonal(GAIN), rngs=rngs)

    def build(self, rngs: nnx.Rngs) -> None:
        """Make the convolutions."""
        raise NotImplementedError

    def convolve(self, x: Array) -> Array:
        """The last maps [B, h, w, c] of images [B, H, W, C]."""
        raise NotImplementedError

    def __call__(self, x: Array) -> Array:
        """[..., H, W, C] to [..., out_size]."""
        lead = x.shape[:-3]
        pixels = x.reshape(-1, *x.shape[-3:]).astype(jnp.float32) / self.highest
        maps = self.convolve(pixels)
        return jax.nn.relu(self.dense(maps.reshape(*lead, math.prod(maps.shape[1:]))))


class SmallConvolution(ImageEncoder):
    """One convolution, for images of a few pixels (Young and Tian 2019, "MinAtar")."""

    def build(self, rngs: nnx.Rngs) -> None:
        self.conv = convolution(self.size[2], 16, 3, 1, "VALID", rngs)

    def convolve(self, x: Array) -> Array:
        return jax.nn.relu(self.conv(x))


class NatureConvolution(ImageEncoder):
    """Three convolutions (Mnih et al. 2015, "Human-level control through deep reinforcement learning", methods)."""

    def build(self, rngs: nnx.Rngs) -> None:
        self.conv_0 = convolution(self.size[2], 32, 8, 4, "VALID", rngs)
        self.conv_1 = convolution(32, 64, 4, 2, "VALID", rngs)
        self.conv_2 = convolution(64, 64, 3, 1, "VALID", rngs)

    def convolve(self, x: Array) -> Array:
        for conv in (self.conv_0, self.conv_1, self.conv_2):
            x = jax.nn.relu(conv(x))
        return x


class ResidualConvolution(ImageEncoder):
    """Three sections of a convolution, a maximum over 3 x 3 pixels at every second one, and two residual blocks
    (Espeholt et al. 2018, "IMPALA", figure 3)."""

    sections = (16, 32, 32)

    def build(self, rngs: nnx.Rngs) -> None:
        channels = self.size[2]
        for i, filters in enumerate(self.sections):
            setattr(self, f"conv_{i}", convolution(channels, filters, 3, 1, "SAME", rngs))
            for block in range(4):
                setattr(self, f"block_{i}_{block}", convolution(filters, filters, 3, 1, "SAME", rngs))
            channels = filters

    def convolve(self, x: Array) -> Array:
        for i in range(len(self.sections)):
            x = nnx.max_pool(getattr(self, f"conv_{i}")(x), (3, 3), strides=(2, 2), padding="SAME")
            for block in (0, 2):
                h = getattr(self, f"block_{i}_{block}")(jax.nn.relu(x))
                x = x + getattr(self, f"block_{i}_{block + 1}")(jax.nn.relu(h))
        return jax.nn.relu(x)


IMAGES = {"small": SmallConvolution, "cnn": NatureConvolution, "impala": ResidualConvolution}
