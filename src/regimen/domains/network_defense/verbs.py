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
    """Search the order in which units are repaired: propose one, train it until the gate is met, evaluate, learn.

    A Gaussian process on the orders says which to try next. Every episode counts against the budget. Run the same
    command on the same --out to continue an interrupted search.

      regimen search network_defense
      regimen search network_defense --preset quick --budget 1000
      regimen search network_defense --classes --red b_line
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
    """Training episodes of one trial (3,000; quick: 50); 0 only evaluates the policy of --init-from."""
    check_every: Natural | None = None
    """Training episodes between looks at the gate (500; quick: 25)."""
    check_episodes: Natural | None = None
    """Episodes of one check of the gate (2.5 times the fewest that its bound needs; quick: 1.2)."""
    eval_episodes: Natural | None = None
    """Episodes of the evaluation that ends a trial (400; quick: 100)."""
    patience: Natural | None = None
    """Looks without an improvement of 0.01 after which training has come to a plateau (4; quick: 2)."""
    episodes_per_update: Natural | None = None
    """Episodes that one update learns from (100; quick: 25)."""
    warm_up: Whole | None = None
    """Episodes of training on all orders at once before the first trial (20,000; quick, or with --init-from: 0)."""
    inherit: Literal["nearest", "start"] | None = None
    """Where a new order begins: from the nearest trained one, or from the common start (start where there is one)."""
    method: Literal["gp", "random", "round_robin", "exhaustive"] | None = None
    """How workflows are proposed (gp)."""
    acquisition: Literal["ucb", "thompson"] | None = None
    """How the Gaussian process chooses (ucb)."""
    kappa: NotNegative | None = None
    """Deviations that UCB adds to the mean (2)."""
    compare: bool = False
    """All methods, one after the other, and their regret."""
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
