"""`regimen validate RUN`: what an empowerment run learned, against the exact solution."""

import json as json_lib
from dataclasses import dataclass

from regimen.config.fields import Natural
from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class ValidateArgs:
    """Compare what a run of --algo empowerment believes with the exact values, in every reachable state at every time:
    relative errors of Q_r and V_r, beta_r times the error of log Q ratios, total variation of the policy, the best
    action where there is a gap, and V_r at the start. Writes validation.json, validation.csv, a plot, and pictures of
    what was learned: power over the world, the policy, an episode, power over time.

      regimen validate RUN
      regimen validate RUN --checkpoint best --json
    """

    run: str = positional("RUN")
    """Run directory."""
    checkpoint: str = "final"
    """Which state of the run: `final`, `best` or a step."""
    limit: Natural = 50_000_000
    """The largest world to solve, in states times joint actions."""
    out: str | None = None
    """Folder to write to; by default `validation` in the run's directory."""
    json: bool = False
    """Print the numbers as JSON, and nothing else, on standard output."""


def run(argv: list[str]) -> int:
    args = parse(ValidateArgs, argv, "validate")

    from regimen.domains.empowerment.validate import validate

    validation = validate(args.run, checkpoint=args.checkpoint, limit=args.limit, out=args.out)
    if args.json:
        print(json_lib.dumps(validation.to_dict(), indent=2))
    else:
        print("\n".join([*validation.lines(), f"written to {validation.out}"]))
    return 0
