"""`regimen train ENV`: train a policy."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from regimen.config import layers, lookup
from regimen.config.catalogue import full_name
from regimen.config.flags import (
    Row,
    Tokens,
    field_docs,
    positional,
    print_help,
    read_tokens,
    rows_of,
    unknown_flags,
    wants_help,
)
from regimen.config.schema import ALGORITHMS, TrainConfig
from regimen.config.validation import coerce, field_types
from regimen.errors import RegimenError, UsageError
from regimen.experiments import many

if TYPE_CHECKING:
    from regimen.cli.resume import ResumeArgs
    from regimen.runs.result import Result

DESCRIPTION = """Train a policy. The defaults shown are those of this environment, preset and configuration file;
`regimen presets` lists the presets. Precedence: defaults < preset < --config < flags.

  regimen train cartpole
  regimen train gym:Acrobot-v1 --rollout.episodes 10 --algo.lr 1e-3 --eval.every "5000 steps"
"""
COMMON = (  # what `--help` shows of all that `--help-all` explains
    *("ENV", "algo", "env.KEY", "preset", "config", "seed", "seeds", "total-steps", "total-episodes", "device", "out"),
    *("resume-if-exists", "init-from", "data", "engine", "track", "no-track", "quiet", "json"),
    *("rollout.steps", "rollout.episodes", "rollout.num-envs", "algo.lr", "algo.gamma", "algo.gae-lambda"),
    *("algo.epochs", "algo.minibatch-size", "algo.clip-eps", "algo.ent-coef", "algo.normalize-obs", "algo.batch-size"),
    *("algo.buffer-size", "algo.update-ratio", "algo.tau", "network.name", "network.hidden", "network.memory"),
    *("eval.every", "eval.episodes", "checkpoint.every", "stop.target-return", "stop.max-seconds", "stop.patience"),
)
UNTUNED = "any:environment"  # what `regimen train --help` shows the defaults of


@dataclass(frozen=True)
class TrainFlags:
    """Flags of the command line that are not settings of the run, or short for one."""

    env: str = positional("ENV", default="")
    """A name of `regimen envs`, `gym:ID`, `gymnax:ID` or `module:factory`; or a Minari dataset to learn from; or
    NAME/all, which trains a run for every environment of a family."""
    algo: str = "ppo"
    """A name of `regimen algorithms`; or `all`, which trains a run for each of ppo, sac, impala, appo and cql and
    compares them."""
    engine: Literal["local", "ray"] = "local"
    """Collect in this process, or in Ray workers: `--engine ray --workers 4` (`--engine.name`)."""
    config: str | None = None
    """YAML file of settings, for example the config.yaml of another run."""
    no_track: bool = False
    """Do not send the run to any tracker."""
    tracking_uri: str | None = None
    """MLflow tracking store (`--track.uri`)."""
    experiment: str | None = None
    """MLflow experiment (`--track.experiment`)."""
    resume_if_exists: bool = False
    """If `--out` already holds this run, continue it, or say that it is finished; otherwise begin it. A scheduler can
    then restart a job with the same command."""
    wait: bool | None = None
    """Return only when the curves, the replay, the report and MLflow are complete (`--wait`), or earlier, while another
    process makes them (`--no-wait`). By default the command returns earlier, and waits only in a batch job, in a
    container and in CI, where nothing goes on when it ends."""
    json: bool = False
    """Print the run's summary as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""
    distributed: str | None = None
    """Train as one of several processes that meet at HOST:PORT, where process 0 listens; for native environments."""
    process_id: int = 0
    """The number of this process, from 0; process 0 writes the run."""
    num_processes: int = 1
    """How many processes there are."""
    hosts: int | None = None
    """Train as one on this many workers of the Ray cluster at `--address` (Ray Train's JaxTrainer)."""


OTHERS = ("distributed", "process_id", "num_processes", "hosts")
BATCH = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "KUBERNETES_SERVICE_HOST", "CI")  # variables of those that end so
ONLY_FLAGS = ("config", "json", "quiet", "wait", "no_track", "resume_if_exists", *OTHERS)


def run(argv: list[str]) -> int:
    if wants_help(argv) or "--help-all" in argv:
        show_help([token for token in argv if token not in ("-h", "--help", "--help-all")], "--help-all" in argv)
        return 0
    plan, flags = planned(checked(argv))
    command = shlex.join(["regimen", "train", *argv])
    if plan.title is not None:
        return run_several(plan, flags, command)
    config = plan.jobs[0].config
    if flags.resume_if_exists:
        refuse_restart(config, flags)
    if flags.hosts is not None:
        from regimen.runs.hosts import train_on_hosts

        result = train_on_hosts(config, flags.hosts, config.engine.address, command, flags.quiet or flags.json)
        return show(result, flags)
    quiet = join_others(flags, config.device) or flags.quiet

    from regimen.files.console import Console
    from regimen.runs.api import train

    console = Console(quiet=quiet, trace=config.log.trace, file=sys.stderr if flags.json else None)
    start = train
    if flags.resume_if_exists:
        from regimen.runs.restart import train_again as start
    return show(start(config, command=command, console=console, wait=waits(flags)), flags)


def waits(flags: TrainFlags | ResumeArgs) -> bool:
    """Whether the end of a run waits until its pictures are there: as told, and else where they would never be made. A
    batch job, and a container, end with their first process and end all others; a program of the user's goes on with
    what it has registered."""
    if flags.distributed is not None or flags.wait is not None:
        return flags.distributed is not None or bool(flags.wait)
    from regimen.cli.main import is_command

    return not is_command() or 1 in (os.getpid(), os.getppid()) or any(map(os.environ.get, BATCH))


def refuse_restart(config: TrainConfig, flags: TrainFlags) -> None:
    """A restart needs to know where the run is, and is of one process."""
    if config.out is None:
        raise UsageError("--resume-if-exists needs --out DIR, where the run is looked for")
    if flags.hosts is not None or flags.distributed is not None:
        raise UsageError("--resume-if-exists starts one process; with --hosts and --distributed use `regimen resume`")


def join_others(flags: TrainFlags | ResumeArgs, device: str) -> bool:
    """Meet the other processes of `--distributed` and return whether one of them speaks for this one."""
    if flags.distributed is None:
        if flags.process_id or flags.num_processes != 1:
            raise UsageError("--process-id and --num-processes need --distributed HOST:PORT, where process 0 listens")
        return False

    from regimen.engines import multihost

    multihost.join(flags.distributed, flags.process_id, flags.num_processes, device)
    return flags.process_id > 0


def run_several(plan: many.RunsPlan, flags: TrainFlags, command: str) -> int:
    if flags.hosts is not None or flags.distributed is not None:
        raise UsageError("--hosts and --distributed train one run; name one environment and one algorithm")
    if flags.resume_if_exists:
        raise UsageError("--resume-if-exists: several runs from one command go on by themselves; leave it out")

    from regimen.files.console import Console

    trace, file = plan.jobs[0].config.log.trace, sys.stderr if flags.json else None
    return show(many.train_all(plan, command, lambda: Console(flags.quiet, trace=trace, file=file)), flags)


def show(result: Result, flags: TrainFlags | ResumeArgs) -> int:
    """The summary, if asked for; the exit code."""
    if flags.json and not flags.process_id:
        print(json.dumps(result.summary, indent=2))
    return result.exit_code


def read(argv: list[str]) -> tuple[TrainConfig, TrainFlags]:
    """The run's configuration (of many, the first's), and the flags that are not part of it."""
    return build(checked(argv))


def checked(argv: list[str]) -> Tokens:
    tokens = tokenize(argv)
    check_named(tokens)
    return tokens


def check_named(tokens: Tokens) -> None:
    """Refuse a command line that names no environment, nor a file that does."""
    if not tokens.positionals and "config" not in tokens.values and "env" not in tokens.values:
        raise UsageError("regimen train needs an environment: `regimen train ENV`; `regimen envs` lists them")


def tokenize(argv: list[str], others: Mapping[str, Any] | None = None) -> Tokens:
    """Sort a command line into positionals, flags and environment arguments; `others` are the types of flags of another
    verb, which come first."""
    only = {name: field_types(TrainFlags)[name] for name in ONLY_FLAGS} | dict(others or {})
    choices = [b for a, b in pairwise(argv) if a == "--algo"] + [a[7:] for a in argv if a.startswith("--algo=")]
    algorithms = [a for a in (*map(str.lower, choices), "ppo", *ALGORITHMS) if a in ALGORITHMS]

    def find(key: str) -> tuple[str, object] | None:
        if key in only:
            return key, only[key]
        for algorithm in algorithms:  # a flag of another algorithm is refused later, by its name
            setting = lookup.resolve_key(key, algorithm)
            if setting is not None:
                return setting, lookup.leaf_types(algorithm).get(setting, str)
        return None

    tokens = read_tokens(argv, find)
    if tokens.unknown:
        raise unknown_flags(answers(tokens, (*only,)))
    if len(tokens.positionals) > 1:
        raise UsageError(f"unexpected argument '{tokens.positionals[1]}'; see `regimen train --help`")
    return tokens


def answers(tokens: Tokens, only: Sequence[str]) -> list[tuple[str, str]]:
    """What to say of each flag that there is not, and of those that the algorithm has not."""
    env = (full_name(tokens.positionals[0]) if tokens.positionals else None) or ""
    algorithm = layers.algorithm_of(env, tokens.values)
    unknown: list[tuple[str, object]] = [*tokens.unknown]
    for key, value in tokens.values.items():
        if key not in only and lookup.resolve_key(key, algorithm) is None:
            unknown.append((f"--{key.replace('_', '-')}", value))

    def hint(flag: str, value: object) -> str:
        key = lookup.normalize_key(flag.lstrip("-"))
        return lookup.suggest(key, algorithm, extra=ONLY_FLAGS, dash="--", original=value, env=env)

    return [(flag, hint(flag, value)) for flag, value in unknown]


def build(tokens: Tokens) -> tuple[TrainConfig, TrainFlags]:
    plan, flags = planned(tokens)
    return plan.jobs[0].config, flags


def planned(tokens: Tokens) -> tuple[many.RunsPlan, TrainFlags]:
    """The runs that a command stands for, mostly one."""
    types = field_types(TrainFlags)
    only = {n: coerce(tokens.values[n], types[n], "--" + n) for n in ONLY_FLAGS if n in tokens.values}
    overrides = {k: v for k, v in tokens.values.items() if k not in ONLY_FLAGS}
    if only.get("no_track"):
        overrides["track.enabled"] = False
    if tokens.env_args:
        overrides["env_args"] = tokens.env_args
    env = tokens.positionals[0] if tokens.positionals else None
    if env is not None and "env" in overrides:
        raise UsageError(f"the environment is named twice: '{env}' and --env {overrides['env']}")
    try:
        plan = many.plan(env, only.get("config"), overrides)
    except lookup.UnknownSettingError as error:
        if not error.items.keys() <= overrides.keys():
            raise
        hints = [(k, lookup.suggest(k, error.algorithm, (), "--", v, error.env)) for k, v in error.items.items()]
        raise unknown_flags([(f"--{key.replace('_', '-')}", hint) for key, hint in hints]) from None
    return plan, TrainFlags(**only)


def show_help(argv: list[str], everything: bool) -> None:
    """The hyper-parameters most asked for, or `everything`, with the defaults after preset, file and flags."""
    try:
        tokens = tokenize(argv)
        if not tokens.positionals and "env" not in tokens.values and "config" not in tokens.values:
            tokens.positionals.append(UNTUNED)
        config, _ = build(tokens)
    except RegimenError as error:
        print(f"regimen: {error}\n", file=sys.stderr)
        config = layers.build_config(UNTUNED)
    flags = rows_of(TrainFlags)
    at = {row.name: row for row in flags}
    at["algo"] = dataclasses.replace(at["algo"], default=config.algorithm)
    at["engine"] = dataclasses.replace(at["engine"], default=config.engine.name)
    docs = field_docs(TrainConfig)
    top, sections = [at["ENV"], at["algo"], at["engine"]], {}
    for name, hint in field_types(TrainConfig).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            doc = " ".join((type(value).__doc__ or "").split())
            sections[name] = (doc, rows_of(type(value), value, name + "."))
        elif name == "env_args":
            top.append(next(row for row in rows_of(TrainConfig, config) if row.name == "env.KEY"))
        elif name == "curriculum":
            top.append(Row("curriculum.FIELD", str, docs[name], metavar="SCHEDULE"))
        elif name not in ("env", "algorithm"):
            top.append(Row(name.replace("_", "-"), hint, docs.get(name, ""), value))
    top += [row for row in flags if row.name not in ("ENV", "algo", "engine")]
    if everything:
        return print_help("regimen train", DESCRIPTION, top, sections)
    rows = [*top, *(row for _, part in sections.values() for row in part)]
    short = [dataclasses.replace(row, help=first_clause(row.help)) for row in rows if row.name in COMMON]
    print_help("regimen train", DESCRIPTION, short)
    env = " ".join(argv) or "ENV"
    print(f"{len(rows) - len(short)} more settings: `regimen train {env} --help-all` explains every one")


def first_clause(text: str) -> str:
    """What a setting is, without the particulars."""
    return re.split(r"(?<=[^.])[.;] ", text + " ", maxsplit=1)[0].strip().rstrip(".") + "."
