"""The colours of lines are told apart by people with every kind of colour vision, on both themes."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

CSS = Path(__file__).parents[2] / "src/regimen/dashboard/static/style.css"
VISION = {  # Machado, Oliveira and Fernandes 2009, complete deficiency, on linear RGB
    "all cones": np.eye(3),
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no medium": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    x = TO_XYZ @ rgb / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_ten_colours_differ_and_are_seen(theme):
    text = CSS.read_text()
    colours = [linear(pair[theme]) for pair in re.findall(r"--c\d: light-dark\((#\w{6}), (#\w{6})\)", text)]
    card = linear(re.search(r"--card: light-dark\((#\w{6}), (#\w{6})\)", text)[theme + 1])
    assert len(colours) == 10
    for name, matrix in VISION.items():
        seen = [lab(np.clip(np.array(matrix) @ c, 0, 1)) for c in colours]
        nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
        assert nearest > 16, f"{name}: two colours are {nearest:.1f} apart; 2.3 is just noticed"
    bright = [float(TO_XYZ[1] @ c) + 0.05 for c in (card, *colours)]
    assert all(max(b, bright[0]) / min(b, bright[0]) >= 3 for b in bright[1:]), "contrast of graphics, WCAG 1.4.11"
