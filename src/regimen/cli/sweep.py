"""`regimen sweep ENV`: train many settings and say which do better."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from regimen.config.fields import Natural, Range, Whole
from regimen.config.flags import positional, print_help, rows_of, wants_help
from regimen.config.validation import field_types, read_field
from regimen.errors import UsageError

if TYPE_CHECKING:
    from regimen.experiments.sweep.space import SweepPlan
    from regimen.experiments.sweep.trials import SweepFiles

DESCRIPTION = """Train many settings and say which do better. `--grid` names values to try in all combinations,
`--random` distributions to draw from; any flag of `regimen train` applies to all trials. Numbers of the algorithm on a
native environment are trained in one compiled program, other settings one by one by Optuna, which stops hopeless ones.
The same command, or `regimen sweep --out DIR`, continues a sweep that was interrupted or killed.

  regimen sweep cartpole --grid algo.lr=1e-4,3e-4,1e-3 --seeds 3
  regimen sweep pendulum --random algo.lr=log:1e-4:1e-2 algo.gamma=uniform:0.9:1 --trials 30
  regimen sweep pendulum --method pbt --random algo.lr=log:1e-5:1e-2 algo.ent_coef=log:1e-4:1e-1 --trials 16
  regimen sweep pendulum --method halving --random algo.lr=log:1e-5:1e-2 --trials 16
  regimen sweep gym:Acrobot-v1 --grid algo.minibatch_size=64,256 --workers 2
  regimen compare runs/first-sweep --by algo.lr
"""


@dataclass(frozen=True)
class SweepArgs:
    """Flags of a sweep that are not settings of its runs."""

    env: str = positional("ENV", default="")
    """Environment, as for `regimen train`; with the --out of an earlier sweep it may be left out."""
    grid: str | None = None
    """KEY=A,B,C ...: values to try; may be given several times. Lists are written `network.hidden=[64,64],[128]`."""
    random: str | None = None
    """KEY=KIND:LOW:HIGH ...: draw from `log`, `uniform`, `int`, `logint` or `choice:A:B:C`."""
    trials: Natural | None = None
    """Number of trials; by default all points of the grid, or 20 if something is drawn. Draws are distributed over the
    grid."""
    seeds: Natural | None = None
    """Seeds of every trial, from --seed on; a trial's value is their mean."""
    out: str | None = None
    """Folder to write to, or to continue; by default runs/<env>-<algo>-sweep-<time>."""
    metric: str = "return_mean"
    """What to judge by: an evaluation metric, as for `regimen compare`."""
    objective: str | None = None
    """Several metrics at once, as in `return_mean,cost`: the trials that no other beats are listed and drawn. The
    environment says in which direction each is better."""
    lower: bool | None = None
    """Smaller values are better; by default the environment says which are."""
    method: Literal["random", "tpe", "halving", "pbt"] = "random"
    """`random` trains the grid and independent draws. `tpe` draws settings by Optuna's TPE from the results so far, one
    by one. `halving` trains all for a short time and the best for longer. `pbt` trains a population whose worst members
    copy the best ones while they train."""
    every: Natural | None = None
    """pbt: updates between two rounds; by default a twentieth of the budget."""
    share: Annotated[float, Range(0, 0.5, open=True)] | None = None
    """pbt: share of the members that copy another one in a round (0.25). halving: share of the trials that go on
    (0.5)."""
    sampler: Literal["random", "tpe"] = "random"
    """An older name: `--sampler tpe` is `--method tpe`."""
    prune: bool = True
    """Stop a trial whose evaluations are below the median of the trials before it; only if trials are trained one by
    one."""
    one_by_one: bool = False
    """Do not train trials in one compiled program."""
    batch: Natural | None = None
    """Most trials in one compiled program; by default as many as make 64 runs."""
    workers: Natural = 1
    """Train this many trials at once, each in a process of its own."""
    engine: Literal["local", "ray"] = "local"
    """Where the workers run: in processes of this machine, or as tasks of a Ray cluster (--engine.address)."""
    draw_seed: Whole = 0
    """Seed of the draws: another one draws other values."""
    json: bool = False
    """Print the result as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""


def run(argv: list[str]) -> int:
    if wants_help(argv):
        print_help("regimen sweep", DESCRIPTION, rows_of(SweepArgs))
        return 0
    args, files = prepared(argv)

    from regimen.experiments.sweep.run import run_sweep
    from regimen.files.console import Console
    from regimen.files.storage import read_json

    console = Console(quiet=args.quiet, file=sys.stderr if args.json else None)
    code = run_sweep(files, shlex.join(["regimen", "sweep", *argv]), console, args.workers, args.engine, args.batch)
    if args.json:
        print(json.dumps(read_json(files.folder / "sweep.json"), indent=2))
    return code


def prepared(argv: list[str]) -> tuple[SweepArgs, SweepFiles]:
    """The flags, and the sweep's folder: new, or the one to go on with."""
    from regimen.experiments.sweep.space import SweepPlan
    from regimen.experiments.sweep.trials import SweepFiles, begin

    args, plan = read(argv)
    if plan is None:
        folder = Path(str(args.out))
        return args, SweepFiles(folder, SweepPlan.load(folder))
    folder = Path(args.out) if args.out else default_folder(plan)
    return args, begin(folder, plan, shlex.join(["regimen", "sweep", *argv]))


def default_folder(plan: SweepPlan) -> Path:
    """A new folder below `runs/`, named after the environment and the algorithm."""
    from regimen.config.catalogue import folder_name
    from regimen.runs.directory import new_path

    config = plan.config(plan.draw(0))
    return new_path(f"{folder_name(config.env)}-{config.algorithm}-sweep")


def read(argv: list[str]) -> tuple[SweepArgs, SweepPlan | None]:
    """The flags, and the plan they describe; None where an earlier one is to be continued."""
    from regimen.cli import train
    from regimen.experiments.sweep.space import make_plan

    lists, rest = split_lists(argv)
    types = {name: hint for name, hint in field_types(SweepArgs).items() if name not in ("env", *lists)}
    tokens = train.tokenize(rest, types)
    values = {name: tokens.values.pop(name) for name in types if name in tokens.values}
    args = SweepArgs(**{n: read_field(SweepArgs, n, v, "--" + n.replace("_", "-")) for n, v in values.items()})
    if args.out and not (tokens.positionals or tokens.values or tokens.env_args or any(lists.values())):
        return args, None
    train.check_named(tokens)
    if args.objective and "metric" in values:
        raise UsageError("--metric: --objective names the metrics; the first is what trials are listed by")
    env = tokens.positionals[0] if tokens.positionals else tokens.values.get("env")
    if tokens.values.get("algorithm") == "all" or str(env).endswith("/all"):
        raise UsageError("a sweep has one environment and, unless --grid algo=A,B names several, one algorithm")
    overrides = {k: v for k, v in tokens.values.items() if k not in (*train.ONLY_FLAGS, "env")}
    overrides = {"track.enabled": False} | overrides  # many short runs; --track.enabled true mirrors them
    if tokens.env_args:
        overrides["env_args"] = tokens.env_args
    plan = make_plan(
        env,
        lists["grid"],
        lists["random"],
        args.trials,
        overrides,
        args.lower,
        seeds=args.seeds,
        config_file=tokens.values.get("config"),
        metric=args.metric,
        objectives=[name.strip() for name in (args.objective or "").split(",") if name.strip()],
        sampler=args.sampler,
        prune=args.prune,
        together=not args.one_by_one,
        draw_seed=args.draw_seed,
        method=args.method,
        every=args.every,
        share=args.share,
    )
    return args, plan


def split_lists(argv: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The KEY=VALUES of `--grid` and `--random`, which may come several times, and the other arguments."""
    lists: dict[str, list[str]] = {"grid": [], "random": []}
    rest, tokens = [], list(argv)
    while tokens:
        token = tokens.pop(0)
        name, equals, value = token.removeprefix("--").partition("=")
        if not token.startswith("--") or name not in lists:
            rest.append(token)
            continue
        pairs = [value] if equals else []
        while tokens and "=" in tokens[0] and not tokens[0].startswith("--"):
            pairs.append(tokens.pop(0))
        if not pairs:
            example = "algo.lr=1e-4,3e-4" if name == "grid" else "algo.lr=log:1e-4:1e-2"
            raise UsageError(f"--{name} needs KEY=VALUES, as in --{name} {example}")
        lists[name] += pairs
    return lists, rest
