"""`regimen collect RUN|ENV`: write a Minari dataset."""

from __future__ import annotations

import json as json_lib
import sys
from dataclasses import dataclass, field

from regimen.config.fields import Fraction, Natural, Whole
from regimen.config.flags import parse, positional
from regimen.errors import UsageError


@dataclass(frozen=True)
class CollectArgs:
    """Play episodes with the policies of a run (RUN), or at random (ENV), and write them as a Minari dataset."""

    target: str = positional("RUN|ENV")
    """Run directory, or an environment for random actions."""
    out: str = ""
    """Folder to write, or `minari:ID` for a dataset in Minari's own root."""
    policy: str | None = None
    """Who acts: `expert` (the run's best policy), `medium` (the checkpoint halfway between random and best), `final`, a
    checkpoint's step, `random`, or `replay` (the run's replay buffer, else all its checkpoints in turn)."""
    mix: str | None = None
    """Several of these by fraction of the episodes: `expert:0.5,random:0.5`."""
    checkpoint: str | None = None
    """The same as --policy, by checkpoint: `best`, `final` or a step."""
    episodes: Natural | None = None
    """Episodes to write; 100, or all of a replay buffer, when neither this nor --steps is given."""
    steps: Natural | None = None
    """Steps to write, in whole episodes: at least so many."""
    target_return: float | None = None
    """`medium` is the checkpoint whose evaluation is nearest to this."""
    epsilon: Fraction = 0.0
    """Probability of a uniform action instead of the policy's, at every step."""
    greedy: bool = False
    """Act greedily; by default actions are sampled."""
    seed: Whole = 0
    """Seed of the episodes."""
    env_args: dict[str, object] = field(default_factory=dict)
    json: bool = False
    """Print what was written as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""


def run(argv: list[str]) -> int:
    args = parse(CollectArgs, argv, "collect")
    if not args.out:
        raise UsageError("regimen collect needs --out DATASET: a folder, or minari:ID")

    from regimen.policies.collect import collect

    def report(text: str) -> None:
        if not args.quiet:
            print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

    names = ("policy", "episodes", "steps", "mix", "checkpoint", "target_return", "epsilon", "greedy", "seed")
    chosen = {name: getattr(args, name) for name in names}
    data = collect(args.target, args.out, **chosen, env_args=args.env_args, report=report)
    print(json_lib.dumps(data.describe(), indent=2) if args.json else f"{data.summary()} in {data.path}")
    return 0
