"""`regimen report RUN`: write a run's report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class ReportArgs:
    """Write RUN/report.html: results, diagnosis, curves, episodes, settings and versions on one page that needs nothing
    but itself. Every run writes one at its end; this writes it again, with what lies in plots/ and replays/ now."""

    run: str = positional("RUN")
    """Run directory, or a group of seeds."""
    out: str | None = None
    """File to write instead."""


def run(argv: list[str]) -> int:
    args = parse(ReportArgs, argv, "report")

    from regimen.reports.run_report import write_report

    print(write_report(Path(args.run), args.out, draw=True))
    return 0
