"""Line charts as text inside a page: for runs without matplotlib, and seeds whose group has the pictures."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from regimen.words import count, score

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 30
COLOURS = ("var(--blue)", "var(--orange)", "var(--green)")
MOST = 400  # points of a line


def chart(title: str, series: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """An SVG of lines by name; nothing where no line has two points."""
    lines = {name: thinned(x, y) for name, (x, y) in series.items() if len(y) > 1}
    if not lines:
        return ""
    xs, ys = (np.concatenate([line[i] for line in lines.values()]) for i in (0, 1))
    x0, x1 = float(xs.min()), float(xs.max())
    y0, y1 = float(ys.min()), float(ys.max())
    pad = 0.05 * (y1 - y0) or max(abs(y1), 1.0) * 0.05
    y0, y1 = y0 - pad, y1 + pad

    def at(x: np.ndarray, y: np.ndarray) -> str:
        px = LEFT + (x - x0) / max(x1 - x0, 1e-12) * (WIDTH - LEFT - RIGHT)
        py = TOP + (y1 - y) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px, py))

    parts = [f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(title, quote=True)}'>"]
    for level in np.linspace(y0 + pad, y1 - pad, 4):
        height = TOP + (y1 - level) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{height:.1f}' y2='{height:.1f}' class='grid'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{height + 4:.1f}' text-anchor='end'>{score(float(level))}</text>")
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        label = count(round(x0 + share * (x1 - x0)))
        parts.append(f"<text x='{x:.1f}' y='{HEIGHT - 10}' text-anchor='{anchor}'>{label}</text>")
    for colour, (x, y) in zip(COLOURS, lines.values()):
        parts.append(f"<polyline points='{at(x, y)}' style='stroke:{colour}'/>")
    legend = " ".join(f"<span style='color:{c}'>&#9473; {escape(n)}</span>" for c, n in zip(COLOURS, lines))
    caption = f"<figcaption>{escape(title)} by env steps {legend if len(lines) > 1 else ''}</figcaption>"
    return f"<figure>{''.join(parts)}</svg>{caption}</figure>\n"


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keep = np.unique(np.linspace(0, len(y) - 1, MOST).round().astype(int)) if len(y) > MOST else np.arange(len(y))
    return x[keep], y[keep]
