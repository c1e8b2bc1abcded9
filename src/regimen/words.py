"""Numbers, durations, plurals and tables as text for people; figures by every name that people have for them. Imports
nothing but the standard library."""

from collections.abc import Callable, Mapping, Sequence
from html import escape


def number(value: float, digits: int = 3) -> str:
    """Write a number with fixed digits, but never a small one as 0.000."""
    return f"{value:.1e}" if value and abs(value) < 10.0**-digits else f"{value:.{digits}f}"


def score(value: float) -> str:
    """Write a return: one digit after the point, three below 1."""
    return f"{value:.1f}" if value == 0 or abs(value) >= 1 else number(value)


def count(value: float) -> str:
    """Write 12,345 as `12.3k`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}" if value != int(value) else str(int(value))


def clock(seconds: float) -> str:
    """Write a duration as `1:02:03`, or `2:03` below an hour."""
    minutes, seconds = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def size(count: float) -> str:
    """Write a number of bytes: `44 kB`, `1.5 MB`, `12 MB`, `2.0 GB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit != "MB" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def plural(n: int, noun: str) -> str:
    """Write a count with its noun: `1 seed`, `2,000 seeds`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def interval(bounds: Sequence[float] | None, show: Callable[[float], str] = "{:.4g}".format) -> str:
    """Write the interval that follows a number: ` (95% interval 1.2 to 3.4)`; nothing where there is none."""
    return "" if not bounds else f" (95% interval {show(bounds[0])} to {show(bounds[1])})"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table as lines whose columns are equally wide."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in (head, *rows)]


def notebook_table(title: str, facts: Mapping[str, object]) -> str:
    """Write names and values as the HTML that a notebook shows of an object; what is None is left out."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
        if value is not None
    )
    return f"<div><b>{escape(title)}</b><table>{rows}</table></div>"


MEASURES = {"mean": "return_mean", "avg": "return_mean", "std": "return_std", "min": "return_min", "max": "return_max"}
FIGURES = {f"{short}_reward": name for short, name in MEASURES.items()}  # name of other trainers -> ours
FIGURES |= {f"episode_reward_{short}": FIGURES[f"{short}_reward"] for short in ("mean", "min", "max")}
FIGURES |= {"avg_length": "length_mean", "mean_length": "length_mean", "episode_len_mean": "length_mean"}
FIGURES |= {"ep_rew_mean": "return_mean", "ep_len_mean": "length_mean"}
FIGURES |= {"kl_divergence": "approx_kl", "clipfrac": "clip_fraction", "total_loss": "loss"}


class Figures(dict[str, float]):
    """Results by name, in our words: `return_mean`, `length_mean`. They are also found by the names that other trainers
    have for them (`avg_reward`), and those of training episodes without `rollout/` in front."""

    def place(self, name: object) -> str | None:
        """The name under which a figure is here, if it is."""
        name_here = FIGURES.get(str(name), str(name))
        return next((key for key in (name_here, f"rollout/{name_here}") if dict.__contains__(self, key)), None)

    def __missing__(self, name: str) -> float:
        place = self.place(name)
        if place is None:
            name_here = FIGURES.get(name)
            hint = (
                f" ({name_here}); no episode ended since the last one"
                if name_here
                else f"; there are {', '.join(self)}"
            )
            raise KeyError(f"{name}{hint}")
        return self[place]

    def __contains__(self, name: object) -> bool:
        return self.place(name) is not None

    def get(self, name: str, default=None):
        place = self.place(name)
        return default if place is None else self[place]
