"""Several runs from one command: `regimen train NAME/all` (every environment of a family) and `--algo all`.

They are trained one after the other, each in a run directory of its own below one folder. One that fails does not stop
the rest (`attempt`), a signal does (`in_turn`). Started again with the same folder, finished runs are kept and
unfinished ones continued (`train_further`). Sweeps go through their trials in the same way. Planning does not import
jax.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from regimen.config import datasets, layers, lookup
from regimen.config.catalogue import ENVS, folder_name
from regimen.config.schema import TrainConfig
from regimen.engines.signals import INTERRUPTED, code_of
from regimen.errors import ConfigError, RegimenError, StorageError, UntrustedError, nearest
from regimen.files.console import Console
from regimen.words import clock, count, score

if TYPE_CHECKING:
    from regimen.reports.table import Table
    from regimen.runs.result import Result
    from regimen.runs.session import Callback

T = TypeVar("T")
Row = dict[str, Any]  # what came of a run, as summary.json has it
ALL = "all"
ALGORITHMS = ("ppo", "sac", "impala", "appo", "cql")  # in this order: cql learns from what ppo has seen
MEANS = ("env_steps", "wall_seconds", "eval_return_mean", "success_rate")  # columns of a row, over the seeds
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


def is_several(env: object, algo: object) -> bool:
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
    if not is_several(env, algo):
        return RunsPlan((RunPlan("", layers.build_config(env, config_file=config_file, overrides=settings)),))
    rest = {k: v for k, v in settings.items() if k not in ("env", "out", "algorithm") and (k != "algo" or v != algo)}
    envs = family(env) if isinstance(env, str) and is_several(env, None) else [env]
    algorithms = ALGORITHMS if algo == ALL else (algo,)
    jobs = []
    for name in envs:
        shared: dict[str, object] = {}  # one environment for all algorithms: the first's preset may set arguments of it
        for algorithm in algorithms:
            keys = [k for k in rest if len(algorithms) == 1 or applies(k, algorithm)]
            of_run = {k: rest[k] for k in keys if not (shared and is_argument(k))} | shared
            of_run |= {} if algorithm is None else {"algorithm": algorithm}
            config = build(name, config_file, of_run, algorithm)
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
    return lookup.normalize_key(key).partition(".")[0] == "env_args"


def applies(key: str, algorithm: str | None) -> bool:
    """A hyper-parameter goes to the algorithms that have it; one that none has is refused by the first."""
    key = lookup.normalize_key(key)
    users = [a for a in ALGORITHMS if lookup.resolve_key(key, a) is not None] if key.startswith("algo.") else []
    return not users or algorithm in users


def build(env: str | None, config_file: str | None, overrides: dict[str, object], algorithm: str | None) -> TrainConfig:
    """Build one configuration; an error says which run it is of."""
    try:
        return layers.build_config(env, config_file=config_file, overrides=overrides)
    except lookup.UnknownSettingError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{env} with {algorithm}: {error}" if algorithm else f"{env}: {error}") from error


def in_turn(jobs: Iterable[T], train: Callable[[T], int]) -> int:
    """Train one after the other until a signal ends one; returns its exit code, else 0."""
    return next((code for job in jobs if (code := train(job)) in INTERRUPTED), 0)


def attempt(train: Callable[[], Row]) -> Row:
    """The row of a training whose failure stops no other: of a failure state, error and exit code."""
    try:
        return train()
    except KeyboardInterrupt as error:
        return {"state": "interrupted", "exit_code": code_of(error)}
    except UntrustedError:  # it can be allowed: nothing of it is a result
        raise
    except RegimenError as error:
        return failure(str(error), error.exit_code)


def failure(text: str, code: int) -> Row:
    """The row of a run that failed."""
    return {"state": "failed", "error": " ".join(text.split()), "exit_code": code}


def make_folder(folder: Path) -> None:
    """Make the folder of several runs, where it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"--out: cannot write to {folder}: {error.strerror or error}") from error


def train_all(
    plan: RunsPlan,
    command: str = "",
    console: Callable[[], Console] = lambda: Console(quiet=True),
    callback: Callback | None = None,
) -> Result:
    """Train every job of a plan; says what came of each, in a table and in `summary.json` of the folder."""
    from regimen.files.storage import require_own, write_atomic
    from regimen.runs.api import train_further
    from regimen.runs.directory import default_path
    from regimen.runs.result import Result

    folder = Path(plan.out) if plan.out else default_path(plan.jobs[0].config, plan.title)
    say = console()
    if (folder / "config.yaml").exists():
        raise StorageError(f"--out: {folder} is a run directory; choose a folder for {len(plan.jobs)} of them")
    make_folder(folder)
    require_own(folder)
    write_atomic(folder / "command.txt", command.rstrip("\n") + "\n")
    rows: dict[str, Row] = {job.name: blank(job) for job in plan.jobs}
    results: list[Result] = []
    say.event(f"{len(plan.jobs)} runs in {folder}")

    def train(job: RunPlan) -> int:
        path = folder / job.name
        number = list(rows).index(job.name) + 1
        say.event(f"[{number}/{len(plan.jobs)}] {job.config.env} with {job.config.algorithm}: {path}")

        def described() -> Row:
            config = with_data(job, folder, rows).replace(out=str(path))
            results.append(train_further(config, command, callback, console()))
            return description(results[-1], path)

        try:
            rows[job.name] |= attempt(described)
        except UntrustedError:
            raise
        except Exception as error:  # the others are trained all the same
            rows[job.name] |= failure(f"{type(error).__name__}: {error}", 1)
        if rows[job.name].get("error"):
            say.event(f"failed: {rows[job.name]['error']}")
        write_summary(folder, rows)
        return rows[job.name]["exit_code"]

    interrupted = in_turn(plan.jobs, train)
    for line in table(list(rows.values()), violations(results)).lines():
        say.event(line)
    if interrupted:
        say.event(f"interrupted; the same command with --out {folder} goes on from here")
    else:
        compare_algorithms(plan, folder, rows, say)
    summary = write_summary(folder, rows)
    return Result(folder, summary, summary["exit_code"], results)


def with_data(job: RunPlan, folder: Path, rows: Mapping[str, Row]) -> TrainConfig:
    """The configuration of a job, with what an earlier job has seen where it learns from that."""
    config = job.config
    if job.data_from is None:
        return config
    if rows[job.data_from]["state"] != "finished":
        raise ConfigError(f"{config.algorithm} learns from the data of {job.data_from}, which did not finish")
    source = folder / job.data_from / ("" if config.seeds is None else f"seed-{config.seed}")
    collected = folder / f"{job.name}-data"
    return config.replace(data=str(collected if datasets.locate(collected) else source))


def blank(job: RunPlan) -> Row:
    c = job.config
    return {"run": job.name, "env": c.env, "algo": c.algorithm, "state": "not started", "exit_code": 0}


def description(result: Result, path: Path) -> Row:
    """The row of a run, or of the mean of its seeds."""
    summaries = [run.summary for run in result.runs] or [result.summary]
    reasons = Counter(str(s.get("stop_reason")) for s in summaries).most_common()
    columns = {name: [s.get(name) for s in summaries] for name in MEANS}
    for name in violations([result]):
        columns[name] = [(s.get("eval_metrics") or {}).get(name) for s in summaries]
    numbers = {name: [float(v) for v in values if v is not None] for name, values in columns.items()}
    return {
        "state": "interrupted" if result.exit_code else "finished",
        "exit_code": result.exit_code,
        "run_dir": str(path),
        "seeds": len(summaries),
        "stop_reason": ", ".join(name if n == len(summaries) else f"{name} ({n})" for name, n in reasons),
    } | {name: sum(values) / len(values) for name, values in numbers.items() if values}


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


def table(rows: list[Row], labels: Mapping[str, str]) -> Table:
    """A line for each run; `labels` are of the metrics that only some environments report."""
    from regimen.reports.table import Table

    columns: dict[str, tuple[str, Callable[[Any], str]]] = {
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
    present = {name: column for name, column in columns.items() if any(name in row for row in rows)}
    cells = [[text(row[name]) if name in row else None for name, (_, text) in present.items()] for row in rows]
    return Table([title for title, _ in present.values()], cells)


def compare_algorithms(plan: RunsPlan, folder: Path, rows: Mapping[str, Row], say: Console) -> None:
    """Compare the algorithms, where several were trained. Never a reason to fail."""
    from regimen.reports.comparison import compare

    finished = [job for job in plan.jobs if rows[job.name]["state"] == "finished"]
    if len({job.config.algorithm for job in finished}) < 2:
        return
    try:
        comparison = compare([folder / job.name for job in finished])
        for line in ["", *comparison.lines()]:
            say.event(line)
        say.event(f"comparison {comparison.save(folder / 'compare')[2]}")
    except (RegimenError, OSError) as error:
        say.event(f"no comparison: {error}")
