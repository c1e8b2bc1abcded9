"""`regimen compare`: which settings do better, by how much, and how sure that is.

The statistics are those of Agarwal et al. 2021 (arXiv 2108.13264). Runs are grouped by configuration keys within each
task (environment); seeds are the sample. Nothing here draws or prints: see `comparison_report.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from regimen.config.calls import answered
from regimen.errors import ConfigError, StorageError, nearest
from regimen.files.run_dir import RunFiles, is_run, runs_below
from regimen.files.sealed import reads
from regimen.files.storage import dotted
from regimen.reports.equivalence import Pair, pairs_of
from regimen.reports.plots import LoggedRun, is_number
from regimen.statistics import (
    Estimate,
    bootstrap_interval,
    improvement,
    improvement_interval,
    iqm,
    stratified_bootstrap,
    wilson,
)

FRACTIONS = (0.5, 0.9)  # of the way from the first evaluation to the goal
BY = ("env", "algorithm")
ALIASES = {"algo": "algorithm", "return": "return_mean", "success": "success_rate", "length": "length_mean"}
SPREAD = ("return_std", "return_min", "return_max", "best_return", "episodes")  # evaluation columns that are no metric
NAME = "name"  # of a run: the run directory or the folder that was named, as far as it takes to tell it from the others
SAME = (NAME, "seed", "seeds", "out", "device", "devices", "init_from", "data", "track", "log", "checkpoint")
"""A group's runs may differ in these."""


class Measured(LoggedRun):
    """A run, and what its evaluations say."""

    name: str = ""

    @cached_property
    def flat(self) -> dict[str, object]:
        """The configuration as dotted keys, and the run's name."""
        return {NAME: self.name, **{key: value for key, value in dotted(self.config) if value != {}}}

    @cached_property
    def values(self) -> dict[str, float]:
        """The values of every evaluation metric: of the best policy at the end of the run, else of the last evaluation
        so far."""
        last = next((p for p in reversed(self.points) if "eval/return_mean" in p), {})
        values = {k.removeprefix("eval/"): v for k, v in last.items() if k.startswith("eval/")}
        if "eval_return_mean" in self.summary:
            values |= {"return_mean": self.summary["eval_return_mean"]} | self.summary.get("eval_metrics", {})
        return {k: float(v) for k, v in values.items() if k not in SPREAD and is_number(v)}

    @property
    def intervals(self) -> dict[str, list[float] | None]:
        """Over the episodes of that evaluation, where they are known."""
        return self.summary.get("eval_metrics_ci95", {})

    @property
    def episodes_evaluated(self) -> int:
        return int(self.summary.get("eval_episodes") or self.config.get("eval", {}).get("episodes") or 0)

    def total(self, counter: str) -> float:
        """`env_steps` or `wall_seconds` at its end, or so far."""
        return float(self.summary.get(counter) or (self.points or [{}])[-1].get(counter) or 0.0)


@dataclass
class Group:
    """The runs of one setting on one task."""

    label: str
    runs: list[Measured]
    scores: np.ndarray  # [runs] of the metric compared
    iqm: Estimate
    metrics: dict[str, Estimate]
    area: Estimate | None = None
    """Mean share of the way to the goal over all steps: 1 is there from the start."""
    steps_to: dict[float, np.ndarray] = field(default_factory=dict)  # fraction -> [runs] env steps, inf: never
    seconds_to: dict[float, np.ndarray] = field(default_factory=dict)

    def mean_total(self, counter: str) -> float:
        return float(np.mean([run.total(counter) for run in self.runs]))

    def to_dict(self) -> dict[str, object]:
        return {
            "group": self.label,
            "runs": [str(run.path) for run in self.runs],
            "seeds": [run.flat.get("seed") for run in self.runs],
            "scores": self.scores.tolist(),
            "iqm": self.iqm.to_dict(),
            **{name: float(getattr(self.scores, name)()) for name in ("mean", "std", "min", "max")},
            "metrics": {name: e.to_dict() for name, e in self.metrics.items()},
            "area": self.area and self.area.to_dict(),
            "steps_to": {f"{f:g}": finite_median(x) for f, x in self.steps_to.items()},
            "seconds_to": {f"{f:g}": finite_median(x) for f, x in self.seconds_to.items()},
            "reached": {f"{f:g}": int(np.isfinite(x).sum()) for f, x in self.steps_to.items()},
            **{counter: self.mean_total(counter) for counter in ("wall_seconds", "env_steps")},
        }


def finite_median(x: np.ndarray | None) -> float | None:
    """The median of some numbers; None where it is infinite, or there are none."""
    middle = math.inf if x is None else float(np.median(x))
    return middle if math.isfinite(middle) else None


@dataclass
class Task:
    """One environment and its groups, the best first."""

    env: str
    groups: list[Group]
    better: list[list[Estimate | None]]  # probability that a run of the row's group beats one of the column's
    start: float | None = None  # mean of the first evaluations
    goal: float | None = None  # what efficiency is measured against
    goal_is: str = "best"  # or the environment's return threshold
    equivalence: list[Pair] = field(default_factory=list)  # of every two groups, where a margin was asked for

    def rank(self, group: Group) -> int:
        """The rank of each group: 1 is best; equal groups have the same."""
        return 1 + [g.iqm.value for g in self.groups].index(group.iqm.value)

    def to_dict(self) -> dict[str, object]:
        out: dict[str, object] = {"env": self.env, "start": self.start, "goal": self.goal, "goal_is": self.goal_is}
        groups = [g.to_dict() for g in self.groups]
        out |= {"groups": groups, "probability_of_improvement": cells(self.better)}
        return out | ({"equivalence": [pair.to_dict() for pair in self.equivalence]} if self.equivalence else {})


def cells(better: list[list[Estimate | None]]) -> list[list[dict[str, object] | None]]:
    return [[e and e.to_dict() for e in row] for row in better]


@dataclass
class Comparison:
    """What `compare` found. `save(folder)` writes CSV, Markdown, HTML and the plot."""

    metric: str
    lower: bool  # smaller is better
    by: tuple[str, ...]
    tasks: list[Task]
    overall: dict[str, Estimate] = field(default_factory=dict)
    """Interquartile mean of each group over all tasks, the best first: a task's worst run is 0 and its best 1."""
    overall_better: list[list[Estimate | None]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        return {
            "metric": self.metric,
            "lower_is_better": self.lower,
            "by": list(self.by),
            "environments": [task.to_dict() for task in self.tasks],
            "overall": [{"group": label, "iqm": e.to_dict()} for label, e in self.overall.items()],
            "overall_probability_of_improvement": cells(self.overall_better),
            "notes": self.notes,
        }

    def lines(self) -> list[str]:
        """The tables as text."""
        from regimen.reports.comparison_report import lines

        return lines(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the ranking, and in words which is better."""
        from regimen.reports.comparison_report import notebook

        return notebook(self)

    def save(self, folder: str | Path) -> list[Path]:
        """`compare.csv`, `compare.md`, `compare.html`, `compare.json` and, with matplotlib, `compare.png`."""
        from regimen.reports.comparison_report import save

        return save(self, Path(folder))


@answered
@reads
def compare(
    runs: str | Path | Sequence[str | Path],
    by: str | Sequence[str] | None = None,
    metric: str = "return_mean",
    lower: bool | None = None,
    margin: float | None = None,
) -> Comparison:
    """Compare groups of runs and return which is better, with intervals over seeds.

    Args:
        runs: run directories, or folders of them (`--seeds` groups, `regimen train NAME/all`).
        by: settings that make the groups (`algo.lr`; `name` for what is named in `runs`); by default environment and
            algorithm, and where that leaves one group, what is named.
        metric: any evaluation metric.
        lower: whether smaller is better; by default what the environment declares.
        margin: a difference that would not matter: two one-sided tests say of every two groups whether they are
            equivalent within it.
    """
    if margin is not None and not 0.0 < margin < math.inf:
        raise ConfigError(f"margin: {margin:g} is out of range; it must be above 0")
    every = read_runs([runs] if isinstance(runs, (str, Path)) else runs)
    notes: list[str] = []
    evaluated = [run for run in every if run.values]
    if not evaluated:
        which = f"{every[0].path} has" if len(every) == 1 else f"none of the {len(every)} runs has"
        raise StorageError(f"nothing to compare: {which} no evaluation yet; see eval.every")
    notes += [f"left out: {run.path} has no evaluation yet" for run in every if not run.values]
    metric = resolve_metric(metric, evaluated)
    notes += [f"left out: {run.path} has no metric '{metric}'" for run in evaluated if metric not in run.values]
    measured = [run for run in evaluated if metric in run.values]
    keys = default_keys(measured) if by is None else resolve_keys(by, measured)
    if lower is None:
        lower = any(run.metrics[metric].better == "lower" for run in measured if metric in run.metrics)
    tasks = [make_task(env, runs, keys, metric, lower, notes) for env, runs in by_task(measured, keys).items()]
    if margin is not None:
        for task in tasks:
            task.equivalence = pairs_of(task.groups, metric, margin)
    result = Comparison(metric, lower, keys, tasks, notes=notes)
    if len(tasks) > 1:
        notes.append(f"{len(tasks)} environments: each is compared by itself")
        add_overall(result)
    if not any(len(g.runs) > 1 for t in tasks for g in t.groups):
        notes.append("one run in each group: no interval over seeds; train several with --seeds")
    return result


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Run directories, each once; a folder stands for the runs in it, two levels deep."""
    if not paths:
        raise ConfigError("nothing to compare: name run directories, or folders of them")
    out: dict[Path, Path] = {}
    for path in map(Path, paths):
        below = [path] if is_run(path) else runs_below(path)
        below = [p for p in below if p == path or not p.name.endswith("-behaviour")]  # made only to collect data
        if not below:
            RunFiles.open(path)  # says what is wrong
        for run in below:
            out.setdefault(run.resolve(), run)
    return list(out.values())


def read_runs(paths: Sequence[str | Path]) -> list[Measured]:
    """The runs of what is named, each under its name."""
    roots = {run.resolve(): Path(path) for path in reversed(paths) for run in expand([path])}
    short = dict(zip(roots.values(), tell_apart(list(roots.values()))))
    runs = [Measured(path) for path in expand(paths)]
    for run in runs:
        run.name = short[roots[run.path.resolve()]]
    return runs


def tell_apart(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that differ wherever the paths do."""
    parts = [path.resolve().parts for path in paths]
    length = 1
    while len({part[-length:] for part in parts}) < len(set(parts)):
        length += 1
    return ["/".join(part[-length:]) for part in parts]


def resolve_metric(name: str, runs: Sequence[Measured]) -> str:
    names = dict.fromkeys(metric for run in runs for metric in run.values)
    short = name.removeprefix("eval/")
    metric = next((n for n in (short, ALIASES.get(short)) if n in names), None)
    if metric is None:
        raise ConfigError(f"metric: no evaluation of these runs has '{name}'{nearest(short, names)}")
    return metric


def default_keys(runs: Sequence[Measured]) -> tuple[str, ...]:
    """The keys that groups are told apart by: the algorithm; the names where several are named and no environment has
    several algorithms."""
    algorithms = {(run.flat.get("env"), run.flat.get("algorithm")) for run in runs}
    alike = len(algorithms) == len({env for env, _ in algorithms})
    return ("env", NAME) if alike and len({run.name for run in runs}) > 1 else BY


def resolve_keys(by: str | Sequence[str], runs: Sequence[Measured]) -> tuple[str, ...]:
    """Dotted keys of the configuration; a name that occurs once may go without its section."""
    names = by.split(",") if isinstance(by, str) else list(by)
    keys = dict.fromkeys(key for run in runs for key in run.flat)
    out = []
    for name in (n.strip().replace("-", "_") for n in names):
        name = ALIASES.get(name, name)
        name = "env_args." + name.removeprefix("env.") if name.startswith("env.") else name
        tails = [key for key in keys if key.rsplit(".", 1)[-1] == name]
        if name not in keys and len(tails) != 1:
            hint = f"; write one of: {', '.join(tails)}" if tails else nearest(name, keys)
            raise ConfigError(f"by: '{name}' is no key of these runs' configurations{hint}")
        out.append(name if name in keys else tails[0])
    return tuple(out)


def by_task(runs: Sequence[Measured], keys: Sequence[str]) -> dict[str, list[Measured]]:
    """Runs by environment; one whose arguments differ is another task, unless it is they that are compared."""
    out: dict[str, list[Measured]] = {}
    for run in runs:
        peers = [other for other in runs if other.flat.get("env") == run.flat.get("env")]
        arguments = [key for key in differing(peers, keys, ()) if key.startswith("env_args.") and key in run.flat]
        text = ", ".join(f"{key.removeprefix('env_args.')} {in_words(run.flat[key])}" for key in arguments)
        out.setdefault(f"{run.flat.get('env')}" + (f" ({text})" if text else ""), []).append(run)
    return out


def make_task(env: str, runs: list[Measured], keys: Sequence[str], metric: str, lower: bool, notes: list[str]) -> Task:
    """Groups of one environment with everything that is said of them."""
    grouping = [key for key in keys if key != "env"] or ["algorithm"]
    members: dict[tuple[object, ...], list[Measured]] = {}
    for run in runs:
        values = [run.flat.get(key) for key in grouping]
        members.setdefault(tuple(tuple(v) if isinstance(v, list) else v for v in values), []).append(run)
    names = dict.fromkeys(name for run in runs for name in run.values)
    groups = []
    for key, group in members.items():
        scores = np.array([run.values[metric] for run in group])
        label = ", ".join(str(v) if k in ("algorithm", NAME) else f"{k} {in_words(v)}" for k, v in zip(grouping, key))
        middle = Estimate.of(iqm(scores), bootstrap_interval(scores))
        every = {name: measure(name, group) for name in names if any(name in run.values for run in group)}
        groups.append(Group(label, group, scores, middle, every))
        others = differing(group, grouping)
        if others:
            notes.append(f"{env}, {label}: its runs differ in {', '.join(others[:3])}; --by {others[0]} separates them")
    groups.sort(key=lambda g: (g.iqm.value if lower else -g.iqm.value, g.label))
    sign = -1.0 if lower else 1.0
    task = Task(env, groups, matrix([[sign * g.scores] for g in groups]))
    measure_efficiency(task, metric, sign, lower)
    offline = [g.label for g in groups if all(run.config.get("data") for run in g.runs)]
    if offline and len(offline) < len(groups):
        notes.append(f"{env}: {', '.join(offline)} learned from data; its steps are gradient steps, not env steps")
    return task


def in_words(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def differing(runs: Sequence[Measured], keys: Sequence[str], ignored: Sequence[str] = SAME) -> list[str]:
    """Settings that are not the same in all runs of a group, though nothing was grouped by them."""
    names = dict.fromkeys(key for run in runs for key in run.flat)
    names = [k for k in names if k not in keys and k.split(".")[0] not in ignored]
    return [k for k in names if len({str(run.flat.get(k)) for run in runs}) > 1]


def measure(name: str, runs: Sequence[Measured]) -> Estimate:
    """Mean of an evaluation metric over runs. With one run the interval is over its episodes; with several over runs,
    and for a rate at least as wide as all episodes together allow: five runs without a conflict do not prove none."""
    having = [run for run in runs if name in run.values]
    values = np.array([run.values[name] for run in having])
    if len(having) == 1:
        return Estimate.of(values[0], having[0].intervals.get(name))
    low, high = bootstrap_interval(values, np.mean)
    episodes = sum(run.episodes_evaluated for run in having)
    rate = name == "success_rate" or any(run.metrics[name].kind == "rate" for run in having if name in run.metrics)
    if rate and episodes:
        least, most = wilson(float(values.mean()) * episodes, episodes)
        low, high = min(low, least), max(high, most)
    return Estimate.of(values.mean(), (low, high))


def matrix(scores: Sequence[Sequence[np.ndarray]]) -> list[list[Estimate | None]]:
    """Probability of improvement of every group over every other; `scores[group][task]`, larger is better."""

    def beats(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> Estimate:
        pairs = list(zip(a, b))
        return Estimate.of(np.mean([improvement(x, y) for x, y in pairs]), improvement_interval(pairs))

    return [[None if a is b else beats(a, b) for b in scores] for a in scores]


def measure_efficiency(task: Task, metric: str, sign: float, lower: bool) -> None:
    """How fast each run gets how far. The way goes from the mean of the first evaluations to the environment's return
    threshold, or where there is none to the best evaluation of any run. A run that ended keeps its last value."""
    name = f"eval/{metric}"
    runs = [run for g in task.groups for run in g.runs]
    curves = {run.path: curve for run in runs if len((curve := run.series(name))[0])}
    if not curves:
        return
    start = float(np.mean([y[0] for _, y in curves.values()]))
    goal = sign * max(float((sign * y).max()) for _, y in curves.values())
    thresholds = {x for run in runs if (x := run.summary.get("return_threshold")) is not None}
    if metric == "return_mean" and not lower and len(thresholds) == 1 and min(thresholds) > start:
        goal, task.goal_is = float(thresholds.pop()), "threshold"
    task.start, task.goal = start, goal
    if goal == start:
        return
    end = max(float(x[-1]) for x, _ in curves.values())
    for group in task.groups:
        members = [run for run in group.runs if run.path in curves]
        if not members:
            continue
        way = [(x, (y - start) / (goal - start)) for x, y in (curves[run.path] for run in members)]
        areas = np.array([area(x, y, end) for x, y in way])
        group.area = Estimate.of(areas.mean(), bootstrap_interval(areas, np.mean))
        clocks = [run.series(name, "wall_seconds")[0] for run in members]
        timed = [(t, y) for t, (_, y) in zip(clocks, way) if len(t) == len(y)]
        for fraction in FRACTIONS:
            group.steps_to[fraction] = np.array([first(x, y, fraction) for x, y in way])
            group.seconds_to[fraction] = np.array([first(t, y, fraction) for t, y in timed] or [math.inf])


def first(x: np.ndarray, y: np.ndarray, level: float) -> float:
    """Where a curve first is at least `level`; inf if never."""
    there = np.flatnonzero(y >= level - 1e-9)
    return float(x[there[0]]) if len(there) else math.inf


def area(x: np.ndarray, y: np.ndarray, end: float) -> float:
    """Mean height over [0, end] of the curve through the points, level before the first and after the last."""
    if end <= 0:
        return float(y[-1])
    x, y = np.concatenate([[0.0], x, [max(end, float(x[-1]))]]), np.concatenate([y[:1], y, y[-1:]])
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / x[-1])


def add_overall(result: Comparison) -> None:
    """The groups that every environment has, over all of them, where there are at least two."""
    common = [g.label for g in result.tasks[0].groups]
    common = [label for label in common if all(label in [g.label for g in t.groups] for t in result.tasks)]
    if len(common) < 2:
        return
    shares: dict[str, list[np.ndarray]] = {label: [] for label in common}
    for task in result.tasks:
        every = np.concatenate([g.scores for g in task.groups])
        low, high = float(every.min()), float(every.max())
        for g in task.groups:
            if g.label in shares:
                share = (g.scores - low) / (high - low) if high > low else np.full(len(g.scores), 0.5)
                shares[g.label].append(1.0 - share if result.lower else share)
    estimates = {k: Estimate.of(iqm(np.concatenate(x)), stratified_bootstrap(x)) for k, x in shares.items()}
    result.overall = dict(sorted(estimates.items(), key=lambda item: -item[1].value))
    result.overall_better = matrix([shares[label] for label in result.overall])
