"""Encoders of the parts of an observation: of sets, images and choices. Each makes one vector of its part."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from regimen.inputs import ChoicePart, Features, ImagePart, Inputs, Part, SetPart, key_of
from regimen.networks.choice import size_of
from regimen.networks.images import IMAGES, ImageEncoder
from regimen.networks.layers import ACTIVATIONS, Settings, on_rows, orthogonal
from regimen.types import Array, PyTree

GAIN = math.sqrt(2)
HEADS = 4  # of attention


class SetEncoder(nnx.Module):
    """Deep sets (Zaheer et al. 2017): the same two layers for every entity, then the maximum and the mean over those
    that are there. No parameter depends on how many there may be, and the order does not matter."""

    def __init__(self, part: SetPart, config: Settings, rngs: nnx.Rngs):
        width = size_of(config, part)
        self.activation, self.out_size = config.activation, 2 * width
        self.first = nnx.Linear(part.shape[1], width, kernel_init=orthogonal(GAIN), rngs=rngs)
        self.second = nnx.Linear(width, width, kernel_init=orthogonal(GAIN), rngs=rngs)
        self.attention = Attention(width, rngs) if config.attention else None

    def __call__(self, x: PyTree) -> Array:
        act, there = ACTIVATIONS[self.activation], x["mask"][..., None]  # [..., N, 1]
        h = act(on_rows(self.first, x["rows"]))
        h = act(on_rows(self.second, h))
        h = h if self.attention is None else h + self.attention(h, x["mask"])
        most = jnp.where(there, h, -jnp.inf).max(-2)
        most = jnp.where(there.any(-2), most, 0.0)
        mean = jnp.where(there, h, 0.0).sum(-2) / jnp.maximum(there.sum(-2), 1)
        return jnp.concatenate([most, mean], axis=-1)


class Attention(nnx.Module):
    """What every entity takes in of those that are there (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, width: int, rngs: nnx.Rngs):
        self.heads = HEADS if width % HEADS == 0 else 1
        self.query, self.key, self.value, self.out = (
            nnx.Linear(width, width, kernel_init=orthogonal(1.0), rngs=rngs) for _ in range(4)
        )

    def __call__(self, h: Array, mask: Array) -> Array:
        def split(layer: nnx.Linear) -> Array:
            return on_rows(layer, h).reshape(*h.shape[:-1], self.heads, -1)  # [..., N, heads, D]

        query, key, value = split(self.query), split(self.key), split(self.value)
        score = jnp.einsum("...ihd,...jhd->...hij", query, key) / math.sqrt(query.shape[-1])
        share = jax.nn.softmax(jnp.where(mask[..., None, None, :], score, -1e9), axis=-1)
        mixed = jnp.einsum("...hij,...jhd->...ihd", share, value).reshape(h.shape)
        return on_rows(self.out, mixed)


class ChoiceEncoder(nnx.Module):
    """A learned vector for each option."""

    def __init__(self, part: ChoicePart, config: Settings, rngs: nnx.Rngs):
        size = size_of(config, part)
        self.starts = tuple(np.cumsum([0, *part.sizes[:-1]]).tolist())
        self.out_size = size * len(part.sizes)
        self.table = nnx.Embed(sum(part.sizes), size, embedding_init=normal(1 / math.sqrt(size)), rngs=rngs)

    def __call__(self, x: Array) -> Array:
        rows = self.table(x + jnp.asarray(self.starts, jnp.int32))  # [..., K, size]
        return rows.reshape(*rows.shape[:-2], -1)


def normal(scale: float):
    """Independent weights made by numpy on the host, as `orthogonal` makes its own."""

    def init(key: Array, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape), dtype)

    return init


class Encoders(nnx.Module):
    """The encoders of an observation's parts; what they make of it and the numbers of the others, side by side."""

    def __init__(self, inputs: Inputs, config: Settings, rngs: nnx.Rngs):
        self.names = tuple(key_of(part) for part in inputs.parts)
        self.out_size = inputs.vector_size
        for i, part in enumerate(inputs.parts):
            encoder = encoder_of(part, config, rngs)
            setattr(self, f"part_{i}", encoder)
            self.out_size += encoder.out_size

    def __call__(self, x: Features) -> Array:
        parts = [] if x.vector is None else [x.vector]
        parts += [getattr(self, f"part_{i}")(x.parts[name]) for i, name in enumerate(self.names)]
        return jnp.concatenate(parts, axis=-1)


def encoder_of(part: Part, config: Settings, rngs: nnx.Rngs) -> SetEncoder | ImageEncoder | ChoiceEncoder:
    match part:
        case SetPart():
            return SetEncoder(part, config, rngs)
        case ImagePart():
            return IMAGES[part.encoder](part, config, rngs)
        case ChoicePart():
            return ChoiceEncoder(part, config, rngs)
