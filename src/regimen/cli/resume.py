"""`regimen resume RUN`: continue a run."""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from regimen.cli.train import join_others, show, waits
from regimen.config.fields import Natural
from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class ResumeArgs:
    """Continue a run exactly where it stopped, or with a larger budget."""

    run: str = positional("RUN")
    """Run directory."""
    total_steps: Natural | None = None
    """New budget in env steps, counted from the run's beginning."""
    total_episodes: Natural | None = None
    """New budget in episodes, counted from the run's beginning."""
    out: str | None = None
    """Continue in this new run directory and leave RUN untouched."""
    checkpoint: str = "latest"
    """Where to continue from: `latest`, `best`, `final` or a step."""
    device: Literal["auto", "cpu", "gpu"] | None = None
    """Where to train; by default as in RUN."""
    env_args: dict[str, object] = field(default_factory=dict)
    wait: bool | None = None
    """Return when the curves, the replay, the report and MLflow are complete too (`--wait`), or before (`--no-wait`);
    by default before, but after in a batch job, in a container and in CI."""
    json: bool = False
    """Print the run's summary as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""
    devices: Natural | None = None
    """How many devices to train on; by default as in RUN."""
    distributed: str | None = None
    """Continue as one of several processes that meet at HOST:PORT, where process 0 listens and has RUN."""
    process_id: int = 0
    """The number of this process, from 0."""
    num_processes: int = 1
    """How many processes there are."""
    hosts: Natural | None = None
    """Continue as one on this many workers of a Ray cluster (Ray Train's JaxTrainer)."""
    address: str | None = None
    """The Ray cluster of `--hosts`: `auto` or HOST:PORT; by default one on this machine."""


def run(argv: list[str]) -> int:
    args = parse(ResumeArgs, argv, "resume")
    command = shlex.join(["regimen", "resume", *argv])
    names = ("checkpoint", "total_steps", "total_episodes", "out", "devices", "env_args")
    arguments = {name: getattr(args, name) for name in names} | {"device_name": args.device, "command": command}
    if args.hosts is not None:
        from regimen.runs.hosts import resume_on_hosts

        result = resume_on_hosts(args.run, args.hosts, args.address, args.quiet or args.json, **arguments)
    else:
        quiet = join_others(args, args.device or "auto") or args.quiet

        from regimen.files.console import Console
        from regimen.runs.api import resume

        console = Console(quiet=quiet, file=sys.stderr if args.json else None)
        result = resume(Path(args.run), console=console, wait=waits(args), **arguments)
    return show(result, args)
