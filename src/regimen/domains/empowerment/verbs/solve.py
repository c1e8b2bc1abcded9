"""`regimen solve WORLD`: the exact values and policies of a world of humans and robots."""

import dataclasses
import json as json_lib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regimen.config.fields import Natural, Positive, Whole
from regimen.config.flags import parse, positional
from regimen.domains.empowerment.theory import Theory
from regimen.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class SolveArgs(Theory):
    """Solve a world exactly: how much power its humans have, and what a robot does that wants them to have it.

    WORLD is a name (`regimen envs` lists world/...) or a map file.

      regimen solve world/way1x5
      regimen solve world/way1x5 --beta-r 5 --gamma-h .95 --env.max_episode_steps 8
      regimen solve mymap.yaml --prior cautious --beta-h inf --json
      regimen solve world/bush1x7 --stationary --out solution.npz
      regimen solve world/trivial --beta-r 100 --plots pictures
    """

    world: str = positional("WORLD")
    """A name of `regimen envs`, a map file, or `module:factory`."""
    stationary: bool = False
    """Solve the world without its time limit, by continuation in beta_r."""
    steps: Natural = 10
    """stationary: steps in which beta_r grows from 0."""
    tolerance: Positive = 1e-9
    """stationary: residual at which it has converged."""
    max_sweeps: Natural = 20_000
    """stationary: sweeps of one step before it is given up."""
    limit: Natural = 50_000_000
    """Most states times joint actions."""
    out: str | None = None
    """Write the whole solution to a .npz or a .csv file."""
    plots: str | None = None
    """Write pictures to this folder: power over the map, the policy, bits over time, an episode."""
    plots_seed: Whole = 0
    """plots: which episode."""
    env_args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    """Print the summary as JSON, and nothing else."""


def run(argv: list[str]) -> int:
    args = parse(SolveArgs, argv, "solve")

    from regimen.domains.empowerment import exact, report, tabular
    from regimen.domains.empowerment.api import make_world
    from regimen.files.storage import plain

    for name in () if args.stationary else ("steps", "tolerance", "max_sweeps"):
        if getattr(args, name) != SolveArgs.__dataclass_fields__[name].default:
            raise UsageError(f"--{name.replace('_', '-')}: only a stationary solution has it; add --stationary")
    theory = Theory(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Theory)})
    if args.out is not None:
        report.output_file(args.out)
    world = make_world(args.world, args.env_args)
    if args.stationary:
        solution = tabular.solve(world, theory, args.limit, args.steps, args.tolerance, args.max_sweeps)
    else:
        solution = exact.solve(world, theory, args.limit)
    summary = report.summary(solution, args.world)
    print(json_lib.dumps(plain(summary), indent=2) if args.json else "\n".join(report.lines(summary)))
    if args.out is not None:
        file = report.save(solution, args.out)
        if not args.json:
            print(f"  written to {file}")
    if args.plots is not None:
        from regimen.domains.empowerment.pictures.draw import plot_solution

        paths = plot_solution(solution, Path(args.plots), args.world, args.plots_seed)
        if not args.json:
            print(f"  {', '.join(path.name for path in paths)} in {args.plots}")
    if solution.report is not None and not solution.report["converged"]:
        text = f"not converged: residual {solution.report['residual']:.1e} is above --tolerance {args.tolerance:g}"
        print(f"regimen: {text}; take smaller discounts, more --steps or more --max-sweeps", file=sys.stderr)
        return 1
    return 0
