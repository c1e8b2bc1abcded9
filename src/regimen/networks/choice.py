"""Which encoder reads which part of an observation, from its space and `network.encoder`, and the words for it."""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np
from gymnasium import spaces as gym

from regimen import spaces
from regimen.errors import ConfigError
from regimen.inputs import ChoicePart, ImagePart, Inputs, Part, SetPart
from regimen.networks.layers import Settings

PLAIN = ("mlp", "mlp_norm")  # networks that take any vector, and so what encoders put out
MASK = "_mask"  # NAME_mask says which rows of the set NAME are there
NATURE_SIDE = 36  # pixels: the least that three convolutions of 8, 4 and 3 pixels with strides 4, 2 and 1 can read
SMALL_SIDE = 3  # of one convolution of 3 pixels
ONE_HOT = 1024  # a choice of more options is embedded
SIZES = {"set": 64, "embedding": 32, "small": 128, "cnn": 512, "impala": 256}  # widths of their layers
CONVOLUTIONS = {
    "small": "one convolution of 16 filters",
    "cnn": "Nature convolution",
    "impala": "IMPALA's residual convolutions",
}
FITS = {
    "set": "a set of entities: a 2-D float Box, in a Dict beside NAME_mask where rows may be absent",
    "cnn": f"an image: a 3-D Box, or a 2-D one of bytes, with sides of at least {SMALL_SIDE}",
    "impala": f"an image: a 3-D Box, or a 2-D one of bytes, with sides of at least {SMALL_SIDE}",
}


def choose(config: Settings, space: gym.Space) -> Inputs:
    """The parts of an observation space with the encoder of each. Refused where a setting fits none of them."""
    if config.encoder == "mlp" or (config.encoder == "auto" and config.name not in PLAIN):
        parts: list[Part] = []
    elif config.name == "graph":
        raise ConfigError(f"network.encoder: the graph network reads its graph itself; '{config.encoder}' has no use")
    else:
        leaves = spaces.leaves(space)
        masks = {name + MASK for name, leaf in leaves.items() if is_set(leaf) and has_mask(name, leaves)}
        parts = [p for name in leaves if name not in masks and (p := part_of(config, name, leaves)) is not None]
    refuse_idle(config, parts, space)
    return Inputs(space, parts, words(config, space, parts))


def part_of(config: Settings, name: str, leaves: dict[str, gym.Space]) -> Part | None:
    """The part of this name with its encoder; None where it belongs to the vector."""
    leaf, shape = leaves[name], spaces.shape_of(leaves[name])
    if isinstance(leaf, (gym.Discrete, gym.MultiDiscrete)):
        return choice_part(config, name, leaf)
    if is_image(leaf):
        return image_part(config, name, leaf)
    if not is_set(leaf):
        return None
    if has_mask(name, leaves):
        return SetPart(name, (shape[0], shape[1]), name + MASK)
    return SetPart(name, (shape[0], shape[1]), None) if config.encoder == "set" else None


def choice_part(config: Settings, name: str, leaf: gym.Discrete | gym.MultiDiscrete) -> ChoicePart | None:
    sizes = tuple(spaces.choices(leaf))
    if config.embedding == "never" or (config.embedding == "auto" and max(sizes) <= ONE_HOT):
        return None
    return ChoicePart(name, spaces.shape_of(leaf), tuple(np.ravel(leaf.start).tolist()), sizes)


def image_part(config: Settings, name: str, leaf: gym.Box) -> ImagePart | None:
    shape = leaf.shape
    first = len(shape) == 3 and (shape[0] < shape[2] if config.channels == "auto" else config.channels == "first")
    high = float(leaf.high.max())
    highest = high if leaf.low.min() >= 0 and 1 < high < math.inf else 1.0
    part = ImagePart(name, shape, first, highest, "impala" if config.encoder == "impala" else "cnn")
    side = min(part.size[:2])
    if side < SMALL_SIDE:
        return None
    if part.encoder == "cnn" and side < NATURE_SIDE:
        return ImagePart(name, shape, first, highest, "small")
    return part


def is_set(leaf: gym.Space) -> TypeGuard[gym.Box]:
    """Two axes of floats."""
    return isinstance(leaf, gym.Box) and len(leaf.shape) == 2 and np.issubdtype(leaf.dtype, np.floating)


def has_mask(name: str, leaves: dict[str, gym.Space]) -> bool:
    """Whether a set has a companion that says which of its rows are there."""
    mask = leaves.get(name + MASK)
    return isinstance(mask, (gym.MultiBinary, gym.Box)) and mask.shape == spaces.shape_of(leaves[name])[:1]


def is_image(leaf: gym.Space) -> TypeGuard[gym.Box]:
    """Three axes, or two of bytes."""
    return isinstance(leaf, gym.Box) and (len(leaf.shape) == 3 or (len(leaf.shape) == 2 and spaces.is_image_like(leaf)))


def refuse_idle(config: Settings, parts: list[Part], space: gym.Space) -> None:
    """Refuse settings that no part of the observation has a use for."""
    of = {kind: any(isinstance(part, kind) for part in parts) for kind in (SetPart, ImagePart, ChoicePart)}
    wanted = {"set": SetPart, "cnn": ImagePart, "impala": ImagePart}.get(config.encoder)
    observed = f"the observation is {spaces.describe(space)}"
    if wanted is not None and not of[wanted]:
        raise ConfigError(f"network.encoder: '{config.encoder}' reads {FITS[config.encoder]}; {observed}")
    for setting, value, default, needs in (
        ("attention", config.attention, False, of[SetPart]),
        ("channels", config.channels, "auto", of[ImagePart]),
        ("encoder_size", config.encoder_size, None, bool(parts)),
    ):
        if value != default and not needs:
            raise ConfigError(f"network.{setting}: no part of the observation has an encoder for it; {observed}")
    if config.embedding == "always" and not of[ChoicePart]:
        raise ConfigError(f"network.embedding: no Discrete or MultiDiscrete part has an encoder; {observed}")


def words(config: Settings, space: gym.Space, parts: list[Part]) -> str:
    """One line about what reads the observation; empty for plain numbers."""
    if parts:
        names = dict.fromkeys("cnn" if part.encoder == "small" else part.encoder for part in parts)
        texts = [f"{part.name + ', ' if part.name else ''}{words_of(config, part)}" for part in parts]
        if numbers := Inputs(space, parts).vector_size:
            texts.append(f"the other {numbers} numbers as they are")
        return f"encoder {' and '.join(names)}: " + "; ".join(texts)
    for leaf in spaces.leaves(space).values():
        what = f"{shape_words(spaces.shape_of(leaf))} flattened to {math.prod(spaces.shape_of(leaf)):,} numbers"
        if is_image(leaf):
            return f"encoder mlp: image {what}"
        if is_set(leaf) and config.encoder == "auto" and config.name in PLAIN:
            return f"encoder mlp: rows {what} (--network.encoder set reads them as entities in no order)"
    return ""


def words_of(config: Settings, part: Part) -> str:
    """What one part is and what its encoder makes of it."""
    size = size_of(config, part)
    match part:
        case SetPart():
            there = "" if part.mask is None else f", those of {part.mask}"
            attention = ", attention" if config.attention else ""
            text = f"up to {part.shape[0]} entities of {part.shape[1]} numbers{there}"
            return f"{text} -> two layers of {size} for each{attention}, maximum and mean -> {2 * size}"
        case ImagePart():
            return f"image {shape_words(part.size)} -> {CONVOLUTIONS[part.encoder]} -> {size}"
        case ChoicePart():
            return f"{' and '.join(f'{n:,}' for n in part.sizes)} options -> embedding -> {size * len(part.sizes)}"


def size_of(config: Settings, part: Part) -> int:
    """Width of an encoder's layers."""
    return config.encoder_size or SIZES[part.encoder]


def shape_words(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
