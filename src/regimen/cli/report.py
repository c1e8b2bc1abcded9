"""`regimen report RUN`: write a run's report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regimen.cli.flags import parse, positional


@dataclass(frozen=True)
class ReportArgs:
    """Write RUN/report.html: settings, curves and results on one page."""

    run: str = positional("RUN")
    """Run directory, or a group of seeds."""


def run(argv: list[str]) -> int:
    args = parse(ReportArgs, argv, "report")

    from regimen.analysis.report import write_report

    print(write_report(Path(args.run)))
    return 0
