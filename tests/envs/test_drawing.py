"""Shapes on a canvas: drawn on their own surroundings they are what they are on all of it."""

import numpy as np

from regimen.envs.drawing import BLUE, GREEN, RED, Canvas


def picture() -> np.ndarray:
    canvas, random = Canvas(160, (-10, 10, -5, 5)), np.random.default_rng(0)
    for _ in range(40):
        a, b = random.uniform(-12, 12, 2), random.uniform(-12, 12, 2)
        canvas.line(a, b, RED, 0.3).disc(a, random.uniform(0, 3), BLUE, 0.4).ring(b, random.uniform(0, 3), GREEN, 0.2)
    return canvas.image()


def test_a_shape_touches_only_what_is_near_it(monkeypatch):
    near = picture()
    monkeypatch.setattr(Canvas, "near", lambda self, *_: self)
    assert np.array_equal(near, picture())
