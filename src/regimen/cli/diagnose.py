"""`regimen diagnose RUN`: what is wrong with a run, and what to change."""

from __future__ import annotations

import json as json_lib
from dataclasses import dataclass

from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class DiagnoseArgs:
    """Look for what is wrong with a run: plateaus, oscillation, collapsed entropy, too large updates, a critic that
    does not predict, divergence, lag, time lost. Each finding has its evidence and the setting to change. Also in the
    report.

      regimen diagnose runs/first
      regimen diagnose runs/first --json
    """

    runs: tuple[str, ...] = positional("RUN...")
    """Run directories, or folders of them."""
    json: bool = False
    """Print the findings as JSON, and nothing else, on standard output."""


def run(argv: list[str]) -> int:
    args = parse(DiagnoseArgs, argv, "diagnose")

    from regimen.reports.comparison import expand
    from regimen.reports.diagnose import diagnose, to_dicts

    diagnoses = {str(path): diagnose(path) for path in expand(args.runs)}
    if args.json:
        print(json_lib.dumps({path: to_dicts(findings) for path, findings in diagnoses.items()}, indent=2))
        return 0
    for path, findings in diagnoses.items():
        print(f"{path}: {len(findings) or 'nothing'} found")
        for line in (line for finding in findings for line in finding.lines()):
            print(f"  {line}")
    return 0
