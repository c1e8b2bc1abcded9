"""Matplotlib figures of one style: open them with `picture`, put curves on their axes, and they are saved whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from regimen.errors import ConfigError
from regimen.files.storage import replacing, writing
from regimen.words import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#2b6cb0", "#dd6b20", "#2f855a", "#6b46c1", "#c53030", "#718096"
INK = "#2d3748"
CYCLE = [BLUE, ORANGE, GREEN, PURPLE, RED, "#0bc5ea", "#1a202c", "#d53f8c"]
DASHES = ("-", "--", ":", "-.")
CROWDED = 5  # entries from which a legend no longer lies over the curves


def strokes(number: int) -> list[tuple[str, str]]:
    """Colour and line style of so many curves: no two alike up to 32, and solid as long as colours last."""
    return [(CYCLE[k % len(CYCLE)], DASHES[k // len(CYCLE) % len(DASHES)]) for k in range(number)]


def legend(ax: Axes, size: float = 9) -> None:
    """Name the curves: where they leave room, or beside the axes where they are many."""
    names = ax.get_legend_handles_labels()[1]
    if len(names) < CROWDED:
        ax.legend(loc="best", fontsize=size)
    elif names:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=min(size, 8))


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw everything inside the block in the house style; without matplotlib, say which extra has it."""
    try:
        import matplotlib.style
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'regimen[plots]'") from error
    with matplotlib.style.context(Path(__file__).with_name("figure.mplstyle")):
        yield


def blank(width: float, height: float) -> Figure:
    """Make an empty figure of so many inches, without pyplot's global state. To be called inside `style`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@contextlib.contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """Open a figure in the house style and save it as the PNG file `path` when the block has ended."""
    with style():
        figure = blank(width, height)
        yield figure
        save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    """Write the PNG file whole or not at all, so that a reader never sees half a picture."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as tmp:
            figure.savefig(tmp, format="png", metadata={"Software": "regimen"})
    return path


def panels(figure: Figure, n: int, across: int, rows: int | None = None, sharey: bool = False) -> list[Axes]:
    """Return `n` axes in rows of `across`; the places that are left over stay empty."""
    rows = -(-n // across) if rows is None else rows
    axes = list(figure.subplots(rows, across, squeeze=False, sharey=sharey).flat)
    for ax in axes[n:]:
        ax.set_axis_off()
    return axes[:n]


def headline(figure: Figure, text: str, size: float = 10, color: str = INK) -> None:
    """Write a line at the upper left of the figure."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=size, color=color)


def signature(figure: Figure, text: str) -> None:
    """Write in small grey letters at the upper right what the figure is of."""
    figure.suptitle(text, x=0.99, ha="right", fontsize=9, color=GREY)


def step_axis(ax: Axes) -> None:
    """Label the x axis with counts such as `20k`."""
    from matplotlib.ticker import FuncFormatter

    def text(value: float, place: int | None) -> str:
        """Write a count on an axis; with all its digits where two ticks would read alike."""
        ticks = [tick for tick in ax.get_xticks() if tick == int(tick)]
        return count(value) if len({count(tick) for tick in ticks}) == len(ticks) else f"{value:,.0f}"

    ax.xaxis.set_major_formatter(FuncFormatter(text))
