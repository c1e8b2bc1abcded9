"""`regimen doctor`: what is installed here and what is missing."""

from __future__ import annotations

import json as json_lib
from dataclasses import asdict, dataclass

from regimen.config.fields import Positive
from regimen.config.flags import parse
from regimen.style import painted


@dataclass(frozen=True)
class DoctorArgs:
    """Look at this installation: versions, devices, extras, compilation cache, disk, memory, browser; what is missing,
    and the command that gets it. The exit code is 1 where training cannot work here.

      regimen doctor
      regimen doctor --json
    """

    json: bool = False
    """Print the checks as JSON, and nothing else, on standard output."""
    timeout: Positive = 120.0
    """Seconds that jax has to find its devices."""


COLOURS = {"ok": "green", "missing": "dim", "warning": "yellow", "error": "red"}


def run(argv: list[str]) -> int:
    args = parse(DoctorArgs, argv, "doctor")

    from regimen.reports import doctor

    findings = doctor.examine(args.timeout)
    if args.json:
        print(json_lib.dumps([asdict(check) for check in findings], indent=2))
    else:
        for line in doctor.lines(findings):
            state = line.partition(" ")[0]
            print(painted(state, COLOURS[state]) + line[len(state) :] if state in COLOURS else line)
    return doctor.exit_code(findings)
