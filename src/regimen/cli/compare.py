"""`regimen compare RUN...`: which settings do better."""

from __future__ import annotations

import json as json_lib
from dataclasses import dataclass

from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class CompareArgs:
    """Rank settings by their runs: interquartile means with bootstrap intervals, probability of improvement, sample
    efficiency, wall time, and every evaluation metric with its interval."""

    runs: tuple[str, ...] = positional("RUN...")
    """Run directories, or folders of them: a group of seeds, or what `regimen train NAME/all` wrote."""
    by: str | None = None
    """Configuration keys that make the groups, for example `algo.lr` or `algo,rollout.steps`; by default the algorithm.
    Environments are always compared one by one."""
    metric: str = "return_mean"
    """Rank by this evaluation metric: `return_mean`, `success_rate`, `length_mean` or one of the environment's."""
    lower: bool = False
    """Smaller is better; by default what the environment declares of the metric."""
    out: str | None = None
    """Folder for compare.csv, compare.md, compare.html (self-contained), compare.json and compare.png."""
    json: bool = False
    """Print the comparison as JSON, and nothing else, on standard output."""


def run(argv: list[str]) -> int:
    args = parse(CompareArgs, argv, "compare")

    from regimen.reports.comparison import compare

    comparison = compare(args.runs, by=args.by, metric=args.metric, lower=args.lower or None)
    written = comparison.save(args.out) if args.out else []
    print(json_lib.dumps(comparison.to_dict(), indent=2) if args.json else "\n".join(comparison.lines()))
    for path in written if not args.json else ():
        print(path)
    return 0
