"""Smooth shapes on an array: what an environment's `render` needs, without a plotting library.

A shape is its signed distance in pixels, from which the share of each pixel that it covers follows.
"""

from __future__ import annotations

import copy

import numpy as np

from regimen.types import Array

Color = tuple[int, int, int]
Point = tuple[float | Array, float | Array] | np.ndarray | Array  # x, y

PAPER: Color = (250, 250, 247)
INK: Color = (55, 60, 70)
PALE: Color = (214, 217, 222)
BLUE: Color = (45, 105, 190)
GREEN: Color = (60, 150, 90)
RED: Color = (205, 70, 60)
AMBER: Color = (232, 170, 60)


class Canvas:
    """A picture of the rectangle `view` = (left, right, bottom, top) of the plane, `width` pixels wide, y upwards."""

    def __init__(self, width: int, view: tuple[float, float, float, float], background: Color = PAPER):
        left, right, bottom, top = view
        self.scale = width / (right - left)  # pixels per unit
        height = round(self.scale * (top - bottom))
        self.x = (left + (np.arange(width) + 0.5) / self.scale).astype(np.float32)[None, :]
        self.y = (top - (np.arange(height) + 0.5) / self.scale).astype(np.float32)[:, None]
        self.pixels = np.full((height, width, 3), background, np.float32)

    def part(self, low: tuple[float, float] | np.ndarray, high: tuple[float, float] | np.ndarray) -> Canvas:
        """The canvas between two corners, so that a small shape does not touch every pixel."""
        out = copy.copy(self)
        columns = slice(*np.searchsorted(self.x[0], (low[0], high[0])))
        rows = slice(*np.searchsorted(-self.y[:, 0], (-high[1], -low[1])))
        out.x, out.y, out.pixels = self.x[:, columns], self.y[rows], self.pixels[rows, columns]
        return out

    def paint(self, distance: np.ndarray, color: Color, opacity: float = 1.0) -> Canvas:
        """Fill where `distance` [H, W] (in units of the plane, negative inside) is below zero."""
        cover = np.clip(0.5 - distance * self.scale, 0.0, 1.0)[..., None] * opacity
        self.pixels += cover * (np.array(color, np.float32) - self.pixels)
        return self

    def near(self, a: Point, b: Point, reach: float) -> Canvas:
        """The canvas around two points, as far as a shape about them reaches, and two pixels more: drawing a small
        shape on all of it takes ten times as long."""
        reach += 2 / self.scale
        xs, ys = sorted((float(a[0]), float(b[0]))), sorted((float(a[1]), float(b[1])))
        return self.part((xs[0] - reach, ys[0] - reach), (xs[1] + reach, ys[1] + reach))

    def disc(self, center: Point, radius: float, color: Color, opacity: float = 1.0) -> Canvas:
        part = self.near(center, center, radius)
        part.paint(np.hypot(part.x - center[0], part.y - center[1]) - radius, color, opacity)
        return self

    def ring(self, center: Point, radius: float, color: Color, width: float) -> Canvas:
        part = self.near(center, center, radius + width)
        distance = np.hypot(part.x - center[0], part.y - center[1]) - radius
        part.paint(np.abs(distance) - width / 2, color)
        return self

    def line(self, start: Point, end: Point, color: Color, width: float) -> Canvas:
        part, dx, dy = self.near(start, end, width), end[0] - start[0], end[1] - start[1]
        along = (part.x - start[0]) * dx + (part.y - start[1]) * dy
        t = np.clip(along / max(float(dx**2 + dy**2), 1e-12), 0.0, 1.0)
        part.paint(np.hypot(part.x - start[0] - t * dx, part.y - start[1] - t * dy) - width / 2, color)
        return self

    def rectangle(self, corner: Point, opposite: Point, color: Color, opacity: float = 1.0) -> Canvas:
        x, y = (corner[0] + opposite[0]) / 2, (corner[1] + opposite[1]) / 2
        outside_x = np.abs(self.x - x) - abs(opposite[0] - corner[0]) / 2
        outside_y = np.abs(self.y - y) - abs(opposite[1] - corner[1]) / 2
        return self.paint(np.maximum(outside_x, outside_y), color, opacity)

    def bar(self, share: float, color: Color = PALE, width: float = 5.0) -> Canvas:
        """A bar along the lower edge, `width` pixels thick: what is left of a budget, between 0 and 1."""
        left, bottom = self.x[0, 0] - 0.5 / self.scale, self.y[-1, 0] - 0.5 / self.scale
        length = float(np.clip(share, 0.0, 1.0)) * self.x.shape[1] / self.scale
        return self.rectangle((left, bottom), (left + length, bottom + width / self.scale), color)

    def image(self) -> np.ndarray:
        """The picture as pixels [H, W, 3] uint8."""
        return np.round(self.pixels).astype(np.uint8)
