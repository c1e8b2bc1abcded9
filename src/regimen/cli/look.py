"""Verbs that look at runs: `dashboard`, `compare`, `runs`, `diagnose`, `plot`, `report`."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from regimen.config.fields import Range
from regimen.config.flags import positional
from regimen.errors import UsageError, nearest
from regimen.words import plural, size

ACTIONS = ("list", "show", "remove")  # of `regimen runs`


@dataclass(frozen=True)
class DashboardArgs:
    """Show runs on a page in the browser: how they stand, their curves as points arrive, their settings and pictures.

    It only reads run directories and listens on this machine alone; start and end it whenever you like."""

    runs: str = positional("RUNS", default="runs")
    """Folder of runs, or one run directory."""
    port: Annotated[int, Range(0, 65535)] = 8765
    """Port of the page; 0 takes any that is free."""
    open: bool = False
    """Open the page in the browser."""

    def __call__(self) -> int:
        from regimen.dashboard.server import serve

        return serve(self.runs, self.port, self.open)


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
    """Smaller values are better; by default the environment says which are."""
    margin: float | None = None
    """A difference of the metric that would not matter: two one-sided tests say which groups are equivalent."""
    out: str | None = None
    """Folder for compare.csv, compare.md, compare.html (self-contained), compare.json and compare.png."""
    json: bool = False
    """Print the comparison as JSON, and nothing else, on standard output."""

    def __call__(self) -> None:
        from regimen.reports.comparison import compare

        comparison = compare(self.runs, by=self.by, metric=self.metric, lower=self.lower or None, margin=self.margin)
        files = comparison.save(self.out) if self.out else []
        print(json.dumps(comparison.to_dict(), indent=2) if self.json else "\n".join(comparison.lines()))
        for path in files if not self.json else ():
            print(path)


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
    state: Literal["running", "finished", "interrupted", "failed", "diverged", "killed", "damaged"] | None = None
    """Only runs in this state. The process of a `killed` run has ended without a message; a `damaged` run has a damaged
    file, which `regimen runs show RUN` names."""
    env: str | None = None
    """Only runs whose environment's name contains this."""
    algo: str | None = None
    """Only runs of this algorithm."""
    sort: str = "started"
    """`started`, `return`, `size`, `env` or `name`."""
    yes: bool = False
    """Remove without asking."""
    json: bool = False
    """Print the list as JSON, and nothing else, on standard output."""

    def __call__(self) -> int:
        from regimen.files import listing

        action, targets = self.action, self.runs
        if action not in ACTIONS:
            if not Path(action).is_dir():
                raise UsageError(f"unknown action '{action}'{nearest(action, ACTIONS)}")
            action, targets = "list", (action, *targets)
        if action == "list":
            folders = targets or tuple(p for p in ("runs",) if Path(p).is_dir())
            rows = listing.listed(folders, self.state, self.env, self.algo, self.sort)
            if self.json:
                print(json.dumps([asdict(row) for row in rows], indent=2))
            else:
                print("\n".join(listing.table(rows)) if rows else "no runs; `regimen train ENV` makes one")
            return 0
        if not targets:
            raise UsageError(f"regimen runs {action} needs a run directory; `regimen runs` lists them")
        paths = [Path(path) for path in targets]
        if action == "show":
            for path in paths:
                print("\n".join(listing.show(path)))
            return 0
        number = sum(len(listing.removable(path)) for path in paths)
        if not self.yes and not confirmed(number, size(sum(map(listing.size_of, paths)))):
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


@dataclass(frozen=True)
class DiagnoseArgs:
    """Look for what is wrong with a run: plateaus, oscillation, collapsed entropy, too large updates, a critic that
    does not predict, divergence, lag, time lost. Each finding has its evidence and the setting to change. Also in the
    report.

      regimen diagnose runs/first
      regimen diagnose runs/first --json
    """

    runs: tuple[str, ...] = positional("RUN...")
    """Run directories, or folders of them."""
    json: bool = False
    """Print the findings as JSON, and nothing else, on standard output."""

    def __call__(self) -> None:
        from regimen.reports.comparison import expand
        from regimen.reports.diagnose import diagnose, to_dicts

        diagnoses = {str(path): diagnose(path) for path in expand(self.runs)}
        if self.json:
            print(json.dumps({path: to_dicts(findings) for path, findings in diagnoses.items()}, indent=2))
            return
        for path, findings in diagnoses.items():
            print(f"{path}: {len(findings) or 'nothing'} found")
            for line in (line for finding in findings for line in finding.lines()):
                print(f"  {line}")


@dataclass(frozen=True)
class PlotArgs:
    """Draw the curves of a run as PNG files under RUN/plots."""

    run: str = positional("RUN")
    """Run directory, or a group of seeds."""

    def __call__(self) -> None:
        from regimen.reports.plots import plot_run

        for path in plot_run(Path(self.run)):
            print(path)


@dataclass(frozen=True)
class ReportArgs:
    """Write RUN/report.html: results, diagnosis, curves, episodes, settings and versions on one page that needs nothing
    but itself. Every run writes one at its end; this waits for it, makes what is missing of curves, replay and MLflow,
    and writes it again, with what lies in plots/ and replays/ now."""

    run: str = positional("RUN")
    """Run directory, or a group of seeds."""
    out: str | None = None
    """File to write; by default report.html in the run."""

    def __call__(self) -> None:
        from regimen.runs.delivery import report_again

        print(report_again(Path(self.run), self.out, lambda text: print(text, file=sys.stderr, flush=True)))


@dataclass(frozen=True)
class TrackArgs:
    """Send MLflow what it does not have of a run: its store was out of reach, or the run was trained with --no-track.
    Rows that are there are not sent again.

      regimen track runs/first
      regimen track runs/first --tracking-uri http://127.0.0.1:5000
    """

    runs: tuple[str, ...] = positional("RUN...")
    """Run directories, or folders of them."""
    tracking_uri: str | None = None
    """MLflow tracking store; by default that of the run."""

    def __call__(self) -> None:
        from regimen.reports.comparison import expand
        from regimen.runs.delivery import track_again

        for path in expand(self.runs):
            print(track_again(Path(path), self.tracking_uri), flush=True)
