"""`regimen plot RUN`: draw the curves of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class PlotArgs:
    """Draw the curves of a run as PNG files under RUN/plots."""

    run: str = positional("RUN")
    """Run directory, or a group of seeds."""


def run(argv: list[str]) -> int:
    args = parse(PlotArgs, argv, "plot")

    from regimen.reports.plots import plot_run

    for path in plot_run(Path(args.run)):
        print(path)
    return 0
