"""`regimen runs`: list, show and remove run directories."""

from __future__ import annotations

import json as json_lib
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from regimen.config.flags import parse, positional
from regimen.errors import UsageError, nearest
from regimen.words import plural, size

ACTIONS = ("list", "show", "remove")


@dataclass(frozen=True)
class RunsArgs:
    """List run directories with their state, progress, return and size; show one; remove some.

    regimen runs
    regimen runs --state running
    regimen runs list runs/cartpole-ppo-sweep --sort return
    regimen runs show runs/first
    regimen runs remove runs/first runs/second --yes
    """

    action: str = positional("ACTION", default="list")
    """`list`, `show` or `remove`."""
    runs: tuple[str, ...] = positional("RUN...", default=())
    """Run directories; for `list`, folders to look into (runs/)."""
    state: Literal["running", "finished", "interrupted", "failed", "diverged", "killed"] | None = None
    """Only runs in this state; killed: its process is gone and it did not say why."""
    env: str | None = None
    """Only runs whose environment's name has this in it."""
    algo: str | None = None
    """Only runs of this algorithm."""
    sort: str = "started"
    """`started`, `return`, `size`, `env` or `name`."""
    yes: bool = False
    """Remove without asking."""
    json: bool = False
    """Print the list as JSON, and nothing else, on standard output."""


def run(argv: list[str]) -> int:
    args = parse(RunsArgs, argv, "runs")

    from regimen.files import listing

    action, targets = args.action, args.runs
    if action not in ACTIONS:
        if not Path(action).is_dir():
            raise UsageError(f"unknown action '{action}'{nearest(action, ACTIONS)}")
        action, targets = "list", (args.action, *args.runs)
    if action == "list":
        folders = targets or tuple(p for p in ("runs",) if Path(p).is_dir())
        rows = listing.listed(folders, args.state, args.env, args.algo, args.sort)
        if args.json:
            print(json_lib.dumps([asdict(row) for row in rows], indent=2))
        else:
            print("\n".join(listing.table(rows)) if rows else "no runs; `regimen train ENV` makes one")
        return 0
    if not targets:
        raise UsageError(f"regimen runs {action} needs a run directory; `regimen runs` lists them")
    if action == "show":
        for path in targets:
            print("\n".join(listing.show(Path(path))))
        return 0
    paths = [Path(path) for path in targets]
    runs = [run for path in paths for run in listing.removable(path)]
    if not args.yes and not confirmed(len(runs), size(sum(map(listing.size_of, paths)))):
        print("nothing removed")
        return 1
    for path in paths:
        listing.remove(path)
        print(f"removed {path}")
    return 0


def confirmed(number: int, size: str) -> bool:
    """Whether the user says yes; who cannot be asked has to say so beforehand."""
    if not sys.stdin.isatty():
        raise UsageError("regimen runs remove asks first, and there is no terminal to ask on; add --yes")
    answer = input(f"Remove {plural(number, 'run')} ({size})? They cannot be brought back. [y/N] ")
    return answer.strip().lower() in ("y", "yes")
