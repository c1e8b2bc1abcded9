"""Goals of humans on a map: cells and rectangles, with weights. Jax-free.

As text: `x,y` or `x1,y1,x2,y2` (corners included), a weight after `=`, several separated by `;`:
`0,0; 2,0,3,1 = 2`. YAML may give a list of such texts, or a mapping from them to weights.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
        """The goals as a list would write them, without their weights."""
        return [f"{a},{b}" if (a, b) == (c, d) else f"{a},{b},{c},{d}" for a, b, c, d in self.boxes]


def as_text(goals: object) -> str:
    """Goals as the one text that a field holds, whatever form they were given in."""
    if goals is None:
        return ""
    if isinstance(goals, str):
        return "; ".join(part.strip() for part in goals.replace("\n", ";").split(";") if part.strip())
    if isinstance(goals, Mapping):
        return "; ".join(f"{name} = {weight}" for name, weight in goals.items())
    if isinstance(goals, Iterable):
        items = list(goals)
        one = bool(items) and all(isinstance(i, int) for i in items)  # [0, 0] is one goal
        return "; ".join(map(goal_text, [items] if one else items))
    raise ConfigError(f"env.possible_goals: {goals!r} are no goals; write 'x,y; x1,y1,x2,y2 = weight'")


def goal_text(goal: object) -> str:
    """Write one goal of a list as text."""
    if isinstance(goal, str | Mapping) or not isinstance(goal, Iterable):
        return as_text(goal)
    return ",".join(map(str, goal))


def parse(text: str, width: int, height: int) -> Goals:
    """Goals of a map of this size; every cell alike where nothing is said."""
    if not text:
        cells = [(x, y, x, y) for y in range(height) for x in range(width)]
        return Goals(tuple(cells), (1 / len(cells),) * len(cells))
    boxes, weights = [], []
    for part in text.split(";"):
        place, _, weight = part.partition("=")
        boxes.append(box(place.strip(), width, height))
        weights.append(positive(weight.strip() or "1", part.strip()))
    if len(set(boxes)) < len(boxes):
        twice = next(b for i, b in enumerate(boxes) if b in boxes[:i])
        raise ConfigError(
            f"env.possible_goals: {','.join(map(str, twice))} is there twice; give it once, with a weight"
        )
    total = math.fsum(weights)
    return Goals(tuple(boxes), tuple(w / total for w in weights))


def box(place: str, width: int, height: int) -> tuple[int, int, int, int]:
    where = f"env.possible_goals: '{place}'"
    try:
        numbers = [int(n) for n in place.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 4):
        raise ConfigError(f"{where} is no goal; write 'x,y' or 'x1,y1,x2,y2' in whole numbers")
    left, top, right, bottom = numbers * 2 if len(numbers) == 2 else numbers
    if right < left or bottom < top:
        raise ConfigError(f"{where}: write the upper left corner first, then the lower right one")
    if left < 0 or top < 0 or right >= width or bottom >= height:
        raise ConfigError(f"{where} is outside the map; x goes from 0 to {width - 1} and y from 0 to {height - 1}")
    return left, top, right, bottom


def positive(text: str, part: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not (weight > 0 and math.isfinite(weight)):
        raise ConfigError(f"env.possible_goals: '{part}': the weight must be a number greater than 0")
    return weight


def inverse_temperature(value: str | float) -> float:
    """A number of at least 0, or inf, as the field `beta_h` of a world has it."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number >= 0:
        raise ConfigError(f"env.beta_h: {value!r} is not a number of at least 0, or inf")
    return number


def shortest_way(distance: Any, beta_h: float) -> Any:
    """Probabilities of actions, by the `distance` [..., A] to the goal after each; negative: it leads nowhere. Of numpy
    or of jax."""
    xp = distance.__array_namespace__()
    leads = distance >= 0
    detour = xp.where(leads, distance - xp.where(leads, distance, distance.max()).min(-1, keepdims=True), 0)
    weight = leads * ((detour == 0).astype(float) if math.isinf(beta_h) else xp.exp(-beta_h * detour))
    return weight / weight.sum(-1, keepdims=True)
