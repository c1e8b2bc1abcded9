"""The verbs of the domain, `regimen solve WORLD` and `regimen validate RUN`, and the flags of its study. Jax-free."""

import dataclasses
import json as json_lib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regimen.config.fields import Natural, Positive, Whole
from regimen.config.flags import positional
from regimen.domains.empowerment.theory import Theory
from regimen.errors import UsageError
from regimen.experiments.studies.arguments import StudyArgs


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

    def __call__(self) -> int:
        from regimen.domains.empowerment import exact, report, tabular
        from regimen.domains.empowerment.api import make_world
        from regimen.files.storage import plain

        for name in () if self.stationary else ("steps", "tolerance", "max_sweeps"):
            if getattr(self, name) != SolveArgs.__dataclass_fields__[name].default:
                raise UsageError(f"--{name.replace('_', '-')}: only a stationary solution has it; add --stationary")
        theory = Theory(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Theory)})
        if self.out is not None:
            report.output_file(self.out)
        world = make_world(self.world, self.env_args)
        if self.stationary:
            solution = tabular.solve(world, theory, self.limit, self.steps, self.tolerance, self.max_sweeps)
        else:
            solution = exact.solve(world, theory, self.limit)
        summary = report.summary(solution, self.world)
        print(json_lib.dumps(plain(summary), indent=2) if self.json else "\n".join(report.lines(summary)))
        if self.out is not None:
            file = report.save(solution, self.out)
            if not self.json:
                print(f"  written to {file}")
        if self.plots is not None:
            from regimen.domains.empowerment.pictures.draw import plot_solution

            paths = plot_solution(solution, Path(self.plots), self.world, self.plots_seed)
            if not self.json:
                print(f"  {', '.join(path.name for path in paths)} in {self.plots}")
        if solution.report is not None and not solution.report["converged"]:
            text = f"not converged: residual {solution.report['residual']:.1e} is above --tolerance {self.tolerance:g}"
            print(f"regimen: {text}; take smaller discounts, more --steps or more --max-sweeps", file=sys.stderr)
            return 1
        return 0


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

    def __call__(self) -> int:
        from regimen.domains.empowerment.validate import validate

        validation = validate(self.run, checkpoint=self.checkpoint, limit=self.limit, out=self.out)
        if self.json:
            print(json_lib.dumps(validation.to_dict(), indent=2))
        else:
            print("\n".join([*validation.lines(), f"written to {validation.out}"]))
        return 0


@dataclass(frozen=True)
class RolloutsArgs:
    """Compare a robot that learned empowerment with others in worlds that are too large to solve: how many of their
    goals people attain beside it, beside one that does nothing, one that acts at random and those of other runs, in
    episodes with the same starts, goals and chances; and how far its values are from the equations where it comes to.
    Writes rollouts.json.

      regimen rollouts RUN
      regimen rollouts RUN --against PPO_RUN,ONE_HUMAN_RUN --episodes 5000
    """

    run: str = positional("RUN")
    """Run directory."""
    against: str = ""
    """Other runs on the same world, separated by commas: of empowerment, or of an algorithm that maximises reward
    (trained with --env.observation features)."""
    episodes: Natural = 1000
    """Episodes beside each robot."""
    seed: Whole = 0
    """Which episodes."""
    checkpoint: str = "final"
    """Which state of the run: `final`, `best` or a step."""
    exact: bool = False
    """Solve the world, and let the exact robot play, too."""
    limit: Natural = 50_000_000
    """exact: the largest world to solve, in states times joint actions."""
    out: str | None = None
    """File to write; by default `rollouts.json` in the run's directory."""
    json: bool = False
    """Print the numbers as JSON, and nothing else, on standard output."""

    def __call__(self) -> int:
        from regimen.domains.empowerment.beside import beside
        from regimen.files.storage import plain

        others = [text.strip() for text in self.against.split(",") if text.strip()]
        found = beside(self.run, others, self.episodes, self.seed, self.checkpoint, self.exact, self.limit, self.out)
        print(json_lib.dumps(plain(found.to_dict()), indent=2) if self.json else "\n".join(found.lines()))
        return 0


@dataclass(frozen=True)
class EmpowermentArgs(StudyArgs):
    """Score each documented choice of learning human power against the exact values of a world.

    Parts: policy (power law or Boltzmann), ramp, decay (of learning rates), loss (MSE or Huber), targets (copies on or
    off), dropout, model (model-based or sampled targets), source (experience or sweep), networks (which are learned),
    output (of Q_r), encoder, weight_decay, time (how networks see it), epsilon, goals (drawn anew). Results are written
    after each part; Ctrl+C keeps what is measured.

      regimen study empowerment world/corr5 --quick
      regimen study empowerment world/way1x5 --parts ramp,source --seeds 3
    """

    env: str = positional("ENV", default="world/asym1x7")
    """A world that can be solved exactly: a name of `regimen envs`, world:FILE, or module:factory."""
    seeds: Natural | None = None
    """Seeds of every training (5; with --quick 2)."""
    budget: Natural | None = None
    """Env steps of every training (32,768; with --quick 8,192)."""
