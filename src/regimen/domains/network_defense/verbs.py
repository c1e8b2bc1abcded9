"""`regimen search ENV`: which workflow is best, under a gate on compliance."""

import json as json_lib
import shlex
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from regimen.config.fields import Natural, NotNegative, Whole
from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class SearchArgs:
    """Search the order in which units are repaired: a few policies learn all orders at once, and orders that cannot be
    the best any more are dropped.

    A Gaussian process on orders and training time says what more training would bring. Every episode counts against the
    budget. Run the same command on the same --out to continue an interrupted search.

      regimen search network_defense
      regimen search network_defense --preset quick --budget 1000
      regimen search network_defense --classes --red b_line
      regimen search network_defense --inherit nearest
      regimen search network_defense --init-from RUN --max-episodes-per-workflow 0
      regimen search network_defense --compare --out searches/compared
    """

    env: str = positional("ENV")
    """`network_defense`, or `file.py:make` that returns a space and its trials (see docs/workflow_search.md)."""
    budget: Natural | None = None
    """All episodes: training, checks and evaluations (60,000; quick: 1,000)."""
    gate: float | None = None
    """Compliance whose lower confidence bound a workflow must reach, above 0 and at most 1 (0.95)."""
    preset: Literal["standard", "quick"] | None = None
    """Where the numbers below come from when they are not given (standard)."""
    max_episodes_per_workflow: Whole | None = None
    """One by one: training episodes of one trial (3,000; quick: 50); 0 only evaluates the policy of --init-from."""
    check_every: Natural | None = None
    """Training episodes of each policy between looks (1,500; one by one 500; quick: 50 and 25)."""
    check_episodes: Natural | None = None
    """Episodes of each order and policy at the first look (30; quick: 5); one by one: of one check of the gate."""
    eval_episodes: Natural | None = None
    """Episodes of the evaluation that confirms a finalist or ends a trial (400; quick: 100)."""
    patience: Natural | None = None
    """One by one: looks without a gain of 0.01 after which training has come to a plateau (4; quick: 2)."""
    policies: Natural | None = None
    """Policies that are trained alike; how far they are apart measures the luck of training (2)."""
    episodes_per_update: Natural | None = None
    """Episodes that one update learns from (100; quick: 25)."""
    warm_up: Whole | None = None
    """Training of each policy on all orders before the first look (8,000; quick: 100); one by one: before the first
    trial (20,000; quick, or with --init-from: 0)."""
    inherit: Literal["shared", "nearest", "start"] | None = None
    """What orders have in common: the policies (shared); or each is trained by itself, from the nearest trained one or
    from the common start (shared)."""
    method: Literal["race", "gp", "random", "round_robin", "exhaustive"] | None = None
    """How orders are chosen (race; one by one: gp)."""
    acquisition: Literal["ucb", "thompson"] | None = None
    """One by one: how the Gaussian process chooses (ucb)."""
    kappa: NotNegative | None = None
    """Deviations of the bounds (2)."""
    compare: bool = False
    """One by one: all methods, one after the other, and their regret."""
    orders: Literal["classes", "all"] | None = None
    """One order for each class of equal ones, or all 120 (classes)."""
    classes: bool = False
    """Print which orders are equal, and stop."""
    red: Literal["b_line", "meander", "mixed"] | None = None
    """Who attacks (meander)."""
    compliance: Literal["published", "repaired"] | None = None
    """Which definition of compliance (published)."""
    init_from: str | None = None
    """A run whose policy sees the workflow (of `network_defense/workflow`) to start from; `--from` for short."""
    seed: Whole | None = None
    """Of everything random (0)."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train."""
    out: str | None = None
    """Directory to write to, or to continue; by default `searches/workflows-<time>`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    """Print the summary as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""


def run(argv: list[str]) -> int:
    renamed = [
        "--init-from" + token[6:] if token == "--from" or token.startswith("--from=") else token for token in argv
    ]
    args = parse(SearchArgs, renamed, "search")
    from regimen.domains.network_defense.search import equal_orders, lines, prepare
    from regimen.experiments.search.api import start

    if args.classes:
        report = equal_orders(args)
        print(json_lib.dumps(report, indent=2) if args.json else "\n".join(lines(report)))
        return 0

    from regimen.experiments.studies.frame import Lines

    console = Lines(args.quiet, sys.stderr if args.json else None)
    command = shlex.join(["regimen", "search", *argv])
    summary, code = start(prepare(args), args.out, args.compare, command, console.line, console.same_line)
    if args.json:
        print(json_lib.dumps(summary, indent=2))
    return code
