"""Goals of humans on a map: cells and rectangles, with weights. Jax-free.

As text: `x,y` or `x1,y1,x2,y2` (corners included), a weight after `=`, several separated by `;`:
`0,0; 2,0,3,1 = 2`. YAML may give a list of such texts, or a mapping from them to weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from regimen.errors import ConfigError


@dataclass(frozen=True)
class Goals:
    """Rectangles (left, top, right, bottom), y downwards, and their weights, which sum to 1."""

    boxes: tuple[tuple[int, int, int, int], ...]
    weights: tuple[float, ...]

    def inside(self, width: int, height: int) -> np.ndarray:
        """Whether a cell is in a goal [cells, G]; a cell is y * width + x."""
        return self.distance(width, height) == 0

    def distance(self, width: int, height: int) -> np.ndarray:
        """Steps from a cell to a goal, as if nothing were in the way [cells, G]."""
        x, y = np.arange(width * height) % width, np.arange(width * height) // width
        left, top, right, bottom = np.array(self.boxes).T
        across = np.maximum(np.maximum(left - x[:, None], x[:, None] - right), 0)
        along = np.maximum(np.maximum(top - y[:, None], y[:, None] - bottom), 0)
        return across + along

    def names(self) -> list[str]:
        """Each as it would be written, without its weight."""
        return [f"{a},{b}" if (a, b) == (c, d) else f"{a},{b},{c},{d}" for a, b, c, d in self.boxes]


def as_text(goals: object, where: str = "env.possible_goals") -> str:
    """Goals as the one text that a field holds, whatever form they were given in."""
    if goals is None:
        return ""
    if isinstance(goals, str):
        return "; ".join(part.strip() for part in goals.replace("\n", ";").split(";") if part.strip())
    if isinstance(goals, Mapping):
        return "; ".join(f"{name} = {weight}" for name, weight in goals.items())
    if isinstance(goals, Iterable):
        items = list(goals)
        if items and all(isinstance(i, int) for i in items):  # [0, 0] is one cell
            items = [items]
        return "; ".join(i.strip() if isinstance(i, str) else item_text(i, where) for i in items)
    raise ConfigError(f"{where}: {goals!r} are no goals; write 'x,y; x1,y1,x2,y2 = weight'")


def item_text(item: object, where: str) -> str:
    if isinstance(item, Mapping):
        return as_text(item)
    if isinstance(item, Iterable):
        return ",".join(str(i) for i in item)
    raise ConfigError(f"{where}: {item!r} is no goal; write 'x,y' or 'x1,y1,x2,y2'")


def parse(text: str, width: int, height: int, where: str = "env.possible_goals") -> Goals:
    """Goals of a map of this size; every cell alike where nothing is said."""
    if not text:
        cells = [(x, y, x, y) for y in range(height) for x in range(width)]
        return Goals(tuple(cells), (1 / len(cells),) * len(cells))
    boxes, weights = [], []
    for part in text.split(";"):
        place, _, weight = part.partition("=")
        boxes.append(box(place.strip(), width, height, where))
        weights.append(positive(weight.strip() or "1", part.strip(), where))
    if len(set(boxes)) < len(boxes):
        twice = next(b for i, b in enumerate(boxes) if b in boxes[:i])
        raise ConfigError(f"{where}: {','.join(map(str, twice))} is there twice; give it once, with a weight")
    total = math.fsum(weights)
    return Goals(tuple(boxes), tuple(w / total for w in weights))


def box(place: str, width: int, height: int, where: str) -> tuple[int, int, int, int]:
    try:
        numbers = [int(n) for n in place.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 4):
        raise ConfigError(f"{where}: '{place}' is no goal; write 'x,y' or 'x1,y1,x2,y2' in whole numbers")
    left, top, right, bottom = numbers * 2 if len(numbers) == 2 else numbers
    if right < left or bottom < top:
        raise ConfigError(f"{where}: '{place}': write the upper left corner first, then the lower right one")
    if left < 0 or top < 0 or right >= width or bottom >= height:
        raise ConfigError(
            f"{where}: '{place}' is outside the map; x goes from 0 to {width - 1} and y from 0 to {height - 1}"
        )
    return left, top, right, bottom


def positive(text: str, part: str, where: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (weight > 0 and math.isfinite(weight)):
        raise ConfigError(f"{where}: '{part}': the weight must be a number greater than 0")
    return weight
