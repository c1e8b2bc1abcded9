"""`regimen dashboard [RUNS]`: a live page about runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from regimen.config.fields import Range
from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class DashboardArgs:
    """Show runs on a page in the browser: how they stand, their curves as points arrive, their settings and pictures.

    It only reads run directories and listens on this machine alone; start and end it whenever you like."""

    runs: str = positional("RUNS", default="runs")
    """Folder of runs, or one run directory."""
    port: Annotated[int, Range(0, 65535)] = 8765
    """Port of the page; 0 takes any that is free."""
    open: bool = False
    """Open the page in the browser."""


def run(argv: list[str]) -> int:
    args = parse(DashboardArgs, argv, "dashboard")

    from regimen.dashboard.server import serve

    return serve(args.runs, args.port, args.open)
