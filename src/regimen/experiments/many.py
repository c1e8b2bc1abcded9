"""Several runs from one command: `regimen train NAME/all` (every environment of a family) and `--algo all`.

They are trained one after the other, each in a run directory of its own below one folder. One that fails does not stop
the rest. Started again with the same folder, finished runs are kept and unfinished ones continued. Planning does
not import jax.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regimen.config import datasets, layers
from regimen.config.catalogue import ENVS, folder_name
from regimen.config.schema import TrainConfig
from regimen.engines.signals import INTERRUPTED, code_of
from regimen.errors import ConfigError, RegimenError, StorageError, nearest
from regimen.files.console import Console
from regimen.words import aligned, clock, count, score

if TYPE_CHECKING:
    from regimen.runs.result import Result
    from regimen.runs.session import Callback

Row = dict[str, Any]  # what came of a run, as summary.json has it
ALL = "all"
ALGORITHMS = ("ppo", "sac", "impala", "appo", "cql")  # in this order: cql learns from what ppo has seen
DRAWN = ("mixed", "random")  # members of a family that draw a scenario for each episode: not one of them


@dataclass(frozen=True)
class RunPlan:
    """One run: its directory's name and its configuration. `data_from` is the job whose experience it learns from."""

    name: str
    config: TrainConfig
    data_from: str | None = None


@dataclass(frozen=True)
class RunsPlan:
    """The runs that a command stands for; `title` is None where it is an ordinary one."""

    jobs: tuple[RunPlan, ...]
    title: str | None = None
    out: str | None = None


# --- planning --------------------------------------------------------------------------------------------------------


def asked(env: object, algo: object) -> bool:
    """Whether a command names several runs."""
    return algo == ALL or (isinstance(env, str) and env.endswith(f"/{ALL}") and env not in ENVS)


def family(env: str) -> list[str]:
    """The environments that `NAME/all` stands for: NAME itself and the fixed ones below it."""
    root = env.removesuffix(f"/{ALL}")
    names = [name for name in ENVS if name == root or name.startswith(f"{root}/")]
    names = [name for name in names if name.rsplit("/", 1)[-1] not in DRAWN]
    if not names:
        families = {f"{name.rpartition('/')[0]}/{ALL}" for name in ENVS if "/" in name}
        raise ConfigError(f"unknown environment '{env}': no name begins with '{root}/'{nearest(env, families)}")
    return names


def plan(env: str | None, config_file: str | None = None, overrides: Mapping[str, Any] | None = None) -> RunsPlan:
    """The jobs of a command; every one of them is checked before anything is trained."""
    settings = dict(overrides or {})
    env = env or settings.get("env")
    algo = settings.get("algorithm") or settings.get("algo")
    if not asked(env, algo):
        return RunsPlan((RunPlan("", layers.build_config(env, config_file=config_file, overrides=settings)),))
    rest = {k: v for k, v in settings.items() if k not in ("env", "out", "algorithm") and (k != "algo" or v != algo)}
    envs = family(env) if isinstance(env, str) and asked(env, None) else [env]
    algorithms = ALGORITHMS if algo == ALL else (algo,)
    jobs = []
    for name in envs:
        shared: dict[str, object] = {}  # one environment for all algorithms: the first's preset may set arguments of it
        for algorithm in algorithms:
            chosen = {k: v for k, v in rest.items() if len(algorithms) == 1 or applies(k, algorithm)}
            chosen = {k: v for k, v in chosen.items() if not (shared and is_argument(k))} | shared
            chosen |= {} if algorithm is None else {"algorithm": algorithm}
            config = build(name, config_file, chosen, algorithm)
            shared = {"env_args": config.env_args} if config.env_args else {}
            parts = [folder_name(name or config.env)] * (len(envs) > 1) + [config.algorithm] * (len(algorithms) > 1)
            learns = config.algorithm == "cql" and algo == ALL and config.data is None
            source = "-".join([*parts[:-1], "ppo"]) if learns else None
            jobs.append(RunPlan("-".join(parts) or folder_name(config.env), config, source))
    root = jobs[0].config.env if len(envs) == 1 else str(env).removesuffix(f"/{ALL}")
    title = f"{folder_name(root)}-{ALL if len(algorithms) > 1 else jobs[0].config.algorithm}"
    return RunsPlan(tuple(jobs), title, None if settings.get("out") is None else str(settings["out"]))


def is_argument(key: str) -> bool:
    """Whether a setting is an argument of the environment."""
    return layers.normalize_key(key).partition(".")[0] == "env_args"


def applies(key: str, algorithm: str | None) -> bool:
    """A hyper-parameter goes to the algorithms that have it; one that none has is refused by the first."""
    key = layers.normalize_key(key)
    users = [a for a in ALGORITHMS if layers.resolve_key(key, a) is not None] if key.startswith("algo.") else []
    return not users or algorithm in users


def build(env: str | None, config_file: str | None, overrides: dict[str, object], algorithm: str | None) -> TrainConfig:
    """One configuration; an error says which run it is of."""
    try:
        return layers.build_config(env, config_file=config_file, overrides=overrides)
    except layers.UnknownSettingError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{env} with {algorithm}: {error}" if algorithm else f"{env}: {error}") from error


# --- training --------------------------------------------------------------------------------------------------------


def train_all(
    plan: RunsPlan,
    command: str = "",
    console: Callable[[], Console] = lambda: Console(quiet=True),
    callback: Callback | None = None,
) -> Result:
    """Train every job of a plan; says what came of each, in a table and in `summary.json` of the folder."""
    from regimen.files.storage import write_atomic
    from regimen.runs.result import Result

    folder, say = parent(plan), console()
    write_atomic(folder / "command.txt", command.rstrip("\n") + "\n")
    rows: dict[str, Row] = {job.name: blank(job) for job in plan.jobs}
    results: list[Result] = []
    say.event(f"{len(plan.jobs)} runs in {folder}")
    for i, job in enumerate(plan.jobs, 1):
        say.event(f"[{i}/{len(plan.jobs)}] {job.config.env} with {job.config.algorithm}: {folder / job.name}")
        row = rows[job.name]
        try:
            result, failure = attempt(job, folder, rows, command, console(), callback)
            row |= failure
            if result is not None:
                row |= described(result, folder / job.name)
                results.append(result)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            row |= {"state": "failed", "error": text, "exit_code": 1}
        if row.get("error"):
            say.event(f"failed: {row['error']}")
        summary = write_summary(folder, rows)
        if row["exit_code"] in INTERRUPTED:
            break
    for line in table(list(rows.values()), violations(results)):
        say.event(line)
    if summary["exit_code"] in INTERRUPTED:
        say.event(f"interrupted; the same command with --out {folder} goes on from here")
    else:
        compared(plan, folder, rows, say)
    return Result(folder, summary, summary["exit_code"], results)


def parent(plan: RunsPlan) -> Path:
    """The folder of all runs: new, or one that this made earlier."""
    from regimen.runs.api import default_path

    first = plan.jobs[0].config
    folder = Path(plan.out) if plan.out else default_path(first, plan.title)
    if (folder / "config.yaml").exists():
        raise StorageError(f"--out: {folder} is a run directory; choose a folder for {len(plan.jobs)} of them")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"--out: cannot write to {folder}: {error.strerror or error}") from error
    return folder


def attempt(
    job: RunPlan, folder: Path, rows: Mapping[str, Row], command: str, console: Console, callback: Callback | None
) -> tuple[Result | None, Row]:
    """Train a run whose failure stops no other: its result, or what to note of it (state, error, exit code)."""
    try:
        return train_one(job, folder, rows, command, console, callback), {}
    except KeyboardInterrupt as error:
        return None, {"state": "interrupted", "exit_code": code_of(error)}
    except RegimenError as error:
        return None, {"state": "failed", "error": " ".join(str(error).split()), "exit_code": error.exit_code}


def train_one(
    job: RunPlan, folder: Path, rows: Mapping[str, Row], command: str, console: Console, callback: Callback | None
) -> Result:
    """Train a run from nothing or from where it was left, or return it as it was finished."""
    from regimen.runs.api import train
    from regimen.runs.result import group_result

    config, path = job.config, folder / job.name
    if job.data_from is not None:
        if rows[job.data_from]["state"] != "finished":
            raise ConfigError(f"{config.algorithm} learns from the data of {job.data_from}, which did not finish")
        source, collected = folder / job.data_from, path.with_name(f"{path.name}-data")
        source = source if config.seeds is None else source / f"seed-{config.seed}"
        config = config.replace(data=str(collected if datasets.locate(collected) else source))
    if not path.exists() or not any(path.iterdir()):
        return train(config.replace(out=str(path)), command, callback, console)
    if config.seeds is None:
        return go_on(path, config, command, console, callback)
    runs = []
    for seed in range(config.seed, config.seed + config.seeds):
        one = config.replace(seed=seed, seeds=None)
        runs.append(go_on(path / f"seed-{seed}", one, command, console, callback))
        if runs[-1].exit_code:
            break
    return group_result(path, runs, console)


def go_on(path: Path, config: TrainConfig, command: str, console: Console, callback: Callback | None) -> Result:
    """A run of an earlier call: kept if it is finished, else continued, or begun."""
    from regimen.files.storage import read_json
    from regimen.runs.api import resume, train
    from regimen.runs.result import Result

    if not path.exists():
        return train(config.replace(out=str(path)), command, callback, console)
    if read_json(path / "status.json").get("state") == "finished":
        console.event(f"finished before: {path}")
        return Result(path, read_json(path / "summary.json"))
    return resume(path, command=command, console=console, callback=callback)


# --- what came of it -------------------------------------------------------------------------------------------------


def blank(job: RunPlan) -> Row:
    c = job.config
    return {"run": job.name, "env": c.env, "algo": c.algorithm, "state": "not started", "exit_code": 0}


def described(result: Result, path: Path) -> Row:
    """The row of a run, or of the mean of its seeds."""
    ones = [r.summary for r in result.runs] or [result.summary]
    reasons = Counter(str(s.get("stop_reason")) for s in ones).most_common()
    row: Row = {
        "state": "interrupted" if result.exit_code else "finished",
        "exit_code": result.exit_code,
        "run_dir": str(path),
        "seeds": len(ones),
        "stop_reason": ", ".join(name if n == len(ones) else f"{name} ({n})" for name, n in reasons),
    }

    def mean(name: str, of: Callable[[Row], float | None]) -> None:
        values = [float(v) for s in ones if (v := of(s)) is not None]
        if values:
            row[name] = sum(values) / len(values)

    for name in ("env_steps", "wall_seconds", "eval_return_mean", "success_rate"):
        mean(name, lambda s, name=name: s.get(name))
    for name in violations([result]):
        mean(name, lambda s, name=name: (s.get("eval_metrics") or {}).get(name))
    return row


def violations(results: Sequence[Result]) -> dict[str, str]:
    """The metrics of these runs that are violations, each with its label."""
    return {name: m.label or name for r in results for name, m in r.metrics.items() if m.violation}


def write_summary(folder: Path, rows: Mapping[str, Row]) -> Row:
    from regimen.files.storage import write_json

    codes = [row["exit_code"] for row in rows.values()]
    signal = next((code for code in codes if code in INTERRUPTED), 0)
    summary = {
        "runs": list(rows.values()),
        "finished": sum(row["state"] == "finished" for row in rows.values()),
        "failed": sum(row["state"] == "failed" for row in rows.values()),
        "exit_code": signal or next((code for code in codes if code), 0),
    }
    write_json(folder / "summary.json", summary)
    return summary


def table(rows: list[Row], labels: Mapping[str, str]) -> list[str]:
    """A line for each run; `labels` are of the metrics that only some environments report."""
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "run": ("run", str),
        "env": ("environment", str),
        "algo": ("algorithm", str),
        "state": ("state", str),
        "env_steps": ("steps", lambda v: count(round(v))),
        "eval_return_mean": ("return", score),
        "success_rate": ("success", "{:.3f}".format),
        **{name: (label, "{:.3f}".format) for name, label in labels.items()},
        "wall_seconds": ("time", clock),
        "stop_reason": ("stopped by", str),
        "error": ("error", str),
    }
    names = [name for name in shown if any(name in row for row in rows)]
    cells = [[shown[n][1](row[n]) if n in row else "" for n in names] for row in rows]
    return aligned([shown[n][0] for n in names], cells)


def compared(plan: RunsPlan, folder: Path, rows: Mapping[str, Row], say: Console) -> None:
    """Where several algorithms were trained: which is better. Never a reason to fail."""
    from regimen.reports.comparison import compare

    done = [job for job in plan.jobs if rows[job.name]["state"] == "finished"]
    if len({job.config.algorithm for job in done}) < 2:
        return
    try:
        comparison = compare([folder / job.name for job in done])
        for line in ["", *comparison.lines()]:
            say.event(line)
        say.event(f"comparison {comparison.save(folder / 'compare')[2]}")
    except (RegimenError, OSError) as error:
        say.event(f"no comparison: {error}")
