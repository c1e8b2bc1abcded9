"""`analyse`: fly, measure, and write what was found."""

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from regimen.domains.airspace.analysis import pilots, safety
from regimen.domains.airspace.analysis.campaign import Campaign, Configuration, Jitter, SampleFlight, by_severity
from regimen.domains.airspace.analysis.detector import Detector
from regimen.domains.airspace.analysis.pilots import EnvArgs, Subject, Target
from regimen.domains.airspace.analysis.safety import Row
from regimen.domains.airspace.analysis.shifts import BASELINE, grid
from regimen.domains.airspace.analysis.trajectory import rules_of, write_columns, write_trajectory
from regimen.domains.airspace.files import NAMES, ScenarioFile, load
from regimen.engines import device
from regimen.errors import ConfigError, RegimenError
from regimen.files.storage import require_own, write_json, writing
from regimen.policies.policy import Policy

Names = str | Sequence[str] | None  # separated by commas, or one by one
MOST = 48  # episodes kept to look at besides the worst ones of shifts
OUTPUTS = (
    "shifts.csv",
    "matrix.csv",
    "plots/matrix.png",
    *(f"plots/{kind}_*.png" for kind in ("survival", "shifts", "separation", "aircraft")),
    "trajectories/*__ep[0-9]*.csv",
)


@dataclass
class Analysis(Campaign):
    """A campaign and what to write of it. `summary` and `shift_rows` are plain tables."""

    settings: Row = field(default_factory=dict)
    skipped: list[Row] = field(default_factory=list)  # shifts
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    out: Path | None = None

    @property
    def summary(self) -> list[Row]:
        return [c.row for c in self.cells]

    @property
    def shift_rows(self) -> list[Row]:
        return [s.row for s in self.shifts]

    @property
    def changes(self) -> list[Configuration]:
        """The shifts that change something: all but the baseline."""
        return [s for s in self.shifts if s.shift is not BASELINE]

    def to_dict(self) -> dict[str, object]:
        worst = sorted((s.row for s in self.changes), key=lambda r: -r["los_rate"])[:10]
        columns = ("policy", "scenario", "shift", "los_rate", "los_low", "los_high")
        return {
            "settings": self.settings,
            "notes": self.notes,
            "summary": self.summary,
            "transfer": self.transfer_rates() if self.settings["matrix"] else None,
            "risk_inputs": [
                {"policy": c.subject.name, "scenario": c.file.name} | safety.risk_inputs(c.measures) for c in self.cells
            ],
            "shifts": {
                "configurations": len(self.shifts),
                "skipped": self.skipped,
                "worst": [{k: r[k] for k in columns} for r in worst],
            },
            "seconds": self.seconds,
            "out": None if self.out is None else str(self.out),
        }

    def transfer_rates(self) -> dict[str, dict[str, float]]:
        """Policy -> loss-of-separation rate on its own scenario, and the mean over the others."""

        def rate(name: str, home: bool) -> float:
            rows = [r for r in self.summary if r["policy"] == name and r["own"] == home]
            return safety.mean(np.array([r["los_rate"] for r in rows]))

        names = dict.fromkeys(r["policy"] for r in self.summary)
        return {name: {"own_los_rate": rate(name, True), "other_los_rate": rate(name, False)} for name in names}

    def lines(self) -> list[str]:
        """The summary as text."""
        head = f"{'policy':<24} {'scenario':<19} {'LoS':>6}  {'95% interval':<15} "
        head += f"{'median NM':>10} {'reached':>8} {'extra':>7}"
        lines = [*self.notes, head]
        for r in self.summary:
            between = f"{r['los_low']:.3f} to {r['los_high']:.3f}"
            extra = "" if np.isnan(r["distance_overhead"]) else f"{100 * r['distance_overhead']:.1f}%"
            lines.append(
                f"{r['policy'][:24]:<24} {r['scenario'][:19]:<19} {r['los_rate']:>6.3f}  {between:<15} "
                f"{r['min_separation_p50_nm']:>10.2f} {r['reached_rate']:>8.3f} {extra:>7}"
            )
        if self.changes:
            lines.append(f"{len(self.changes)} shifts, {len(self.skipped)} left out; the worst:")
            for r in sorted((s.row for s in self.changes), key=by_severity)[:5]:
                change = f"{r['los_rate_change']:+.3f}"
                lines.append(f"  {r['scenario']} {r['shift']:<28} LoS {r['los_rate']:.3f} ({change})")
        return lines


def common_rules(subjects: Sequence[Subject]) -> Detector:
    """The distances that the environments of all subjects count by."""
    rules = {rules_of(subject.env) for subject in subjects}
    if len(rules) > 1:
        raise ConfigError("analyse: the policies were trained with different env.separation_nm or env.collision_nm")
    return rules.pop() if rules else Detector()


def analyse(
    target: Target | Sequence[Target],
    scenarios: Names = None,
    shifts: Names = None,
    episodes: int = 100,
    out: str | Path | None = None,
    *,
    targets: Names = None,
    shift_range: str | None = None,
    stochastic: bool = False,
    jitter: float | Jitter = 1.0,
    matrix: bool = False,
    baselines: bool = True,
    checkpoint: str = "best",
    seed: int = 0,
    env_args: EnvArgs = None,
    detector: Detector | None = None,
    quiet: bool = True,
    write: bool = True,
) -> Analysis:
    """Analyse the safety of airspace policies and return the tables, which are also written as files.

    Args:
        target: runs, folders of runs, `Policy` objects, or baselines by name.
        scenarios: names, JSON files, or `all` (the 14); by default what the policy was trained on.
        shifts: `all`, `none`, or names (position, heading, speed, waypoint, type, wind, delay, or one kind); by default
            all for a single policy on a single scenario, else none.
        episodes: how many of each configuration.
        out: the folder to write; by default `analysis/` in the run's directory.
        targets: which aircraft are shifted; by default one of each role.
        shift_range: `micro` or `macro`: small or large shifts; by default both.
        stochastic: whether actions are drawn instead of the most probable ones.
        jitter: a factor of the perturbation of starts (0.5 NM, 2 deg, 5 kt), or a `Jitter`.
        matrix: whether every policy flies every scenario.
        baselines: whether baselines fly, too.
        checkpoint: `best`, `final` or an env step.
        seed: what the episodes are drawn from.
        env_args: other settings of the environment.
        detector: the rules of alerts and conflicts.
        quiet: whether no progress is printed.
        write: whether files are written.
    """
    began = time.monotonic()
    device.configure("auto", native=True)
    sources = [target] if isinstance(target, (str, Path, Policy)) else list(target)
    subjects = find_subjects(sources, checkpoint, stochastic, env_args)
    detector = detector or common_rules(subjects)
    files = find_scenarios(scenarios, subjects, matrix)
    kinds = find_shifts(shifts, subjects, files)
    spread = jitter if isinstance(jitter, Jitter) else Jitter().scaled(float(jitter))
    analysis = Analysis(episodes, spread, seed, detector, ProgressLines(quiet))
    if not spread.any and not stochastic and episodes > 1:
        analysis.episodes = 1
        analysis.notes.append("without --jitter and --stochastic all episodes are the same: one is flown")
    differ = [f"starts perturbed ({spread})"] if spread.any else []
    differ += ["actions drawn from the policy"] if stochastic else []
    each = f"{analysis.episodes} episodes of each configuration"
    analysis.notes.append(f"{each} differ by: {' and '.join(differ) or 'nothing'}")
    analysis.settings = {
        "policies": [s.name for s in subjects],
        "scenarios": [f.name for f in files],
        "episodes": analysis.episodes,
        "stochastic": stochastic,
        "jitter": dataclasses.asdict(spread),
        "shifts": list(kinds),
        "targets": _names(targets),
        "range": shift_range,
        "matrix": matrix,
        "seed": seed,
        "checkpoint": checkpoint,
        "detector": dataclasses.asdict(detector),
    }

    seconds = analysis.seconds
    at = time.monotonic()
    if kinds:
        grids = [grid(f, kinds, _names(targets), shift_range) for f in files]
        for f, g in zip(files, grids):
            analysis.skipped += [{"scenario": f.name, "shift": s.name, "reason": why} for s, why in g.skipped]
        for subject in subjects:
            for file, g in zip(files, grids):
                analysis.shift(subject, file, g)
        seconds["shifts"] = time.monotonic() - at
    at = time.monotonic()
    others = [*([] if kinds else subjects), *(rule_pilots(subjects) if baselines else [])]
    analysis.transfer(others, files)  # what has shifts is flown above
    seconds["scenarios"] = time.monotonic() - at
    analysis.samples = choose_samples(analysis.samples) + analysis.worst
    if write:
        at = time.monotonic()
        analysis.out = default_out(subjects, sources) if out is None else Path(out)
        require_own(analysis.out, analysis.out.parent if out is None else None)
        write_analysis(analysis, analysis.out)
        seconds["files"] = time.monotonic() - at
    seconds["total"] = time.monotonic() - began
    if analysis.out is not None:
        write_json(analysis.out / "summary.json", analysis.to_dict())
    return analysis


def _names(value: Names) -> list[str] | None:
    if value is None:
        return None
    return [name for part in ([value] if isinstance(value, str) else value) for name in part.replace(",", " ").split()]


def find_subjects(sources: Sequence[Target], checkpoint: str, stochastic: bool, env_args: EnvArgs) -> list[Subject]:
    """The policies to analyse; those of one name get a number."""
    if not sources:
        raise ConfigError("regimen analyse needs a run directory or a baseline: no_op, waypoint, mvp")
    subjects: list[Subject] = []
    names: Counter[str] = Counter()
    for source in sources:
        for one in [source] if isinstance(source, Policy) else pilots.run_folders(Path(source)):
            subject = pilots.subject_of(one, checkpoint, stochastic, env_args)
            name = subject.name
            if isinstance(one, Path) and one != Path(str(source)):
                name = one.relative_to(str(source)).as_posix()
            names[name] += 1
            subjects.append(dataclasses.replace(subject, name=name if names[name] == 1 else f"{name}-{names[name]}"))
    return subjects


def find_scenarios(scenarios: Names, subjects: Sequence[Subject], matrix: bool) -> list[ScenarioFile]:
    """The scenarios to fly: those that are named, else those that the policies were trained on, else all."""
    texts = [scenarios] if isinstance(scenarios, (str, Path)) else scenarios or []
    names = [n for one in texts for n in str(one).split(",") if n]  # a path may hold spaces
    home = [s.scenario for s in subjects]
    if not names and not matrix and None not in home:
        names = list(dict.fromkeys(map(str, home)))
    if not names or "all" in names:
        names = [*NAMES, *(n for n in names if n != "all" and n not in NAMES)]
    files = [load(name) for name in names]
    again = next((n for n, times in Counter(f.name for f in files).items() if times > 1), None)
    if again is not None:
        raise ConfigError(f"scenario: two of them are called '{again}'; give each a scenario_name of its own")
    return files


def find_shifts(shifts: Names, subjects: Sequence[Subject], files: Sequence[ScenarioFile]) -> list[str]:
    """The kinds of shifts to fly, by their names."""
    names = _names(shifts)
    if names in (None, ["auto"]):
        names = ["all"] if len(subjects) == 1 and len(files) == 1 else ["none"]
    return [n for n in names or () if n != "none"]


def rule_pilots(subjects: Sequence[Subject]) -> list[Subject]:
    """The baselines that are not analysed anyway, in the environment of the first policy."""
    names = {s.name for s in subjects}
    return [pilots.baseline_subject(name, subjects[0].env) for name in pilots.BASELINES if name not in names]


def default_out(subjects: Sequence[Subject], sources: Sequence[Target]) -> Path:
    """`analysis/` in the run's directory, or in the folder that holds the runs, or here."""
    if len(subjects) == 1 and subjects[0].path is not None:
        return subjects[0].path / "analysis"
    if len(sources) == 1 and not isinstance(sources[0], Policy) and Path(sources[0]).is_dir():
        return Path(sources[0]) / "analysis"
    return Path("analysis")


def choose_samples(samples: Sequence[SampleFlight]) -> list[SampleFlight]:
    """Episodes of the table to look at: those of a policy on its own scenario, then the closest of all."""

    def order(i: int) -> tuple[bool, float]:
        configuration, _, flights = samples[i]
        return not configuration.row["own"], float(flights.state["min_sep"][flights.flying].min(initial=np.inf))

    return [samples[i] for i in sorted(sorted(range(len(samples)), key=order)[:MOST])]


def write_analysis(analysis: Analysis, out: Path) -> None:
    """Write summary.csv, shifts.csv, alerts.csv, episodes.csv, matrix.csv, trajectories/, plots/, airspace.html."""
    from regimen.domains.airspace.analysis import plots
    from regimen.domains.airspace.analysis.pages import write_page

    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for old in (path for pattern in OUTPUTS for path in out.glob(pattern)):
            old.unlink()  # of an earlier analysis: it would be taken for this one's
    detector, everything = analysis.detector, [*analysis.cells, *analysis.changes]
    write_rows(out / "summary.csv", analysis.summary)
    if analysis.settings["matrix"]:
        write_rows(out / "matrix.csv", analysis.summary)
    if analysis.shifts:
        write_rows(out / "shifts.csv", analysis.shift_rows)
    alerts = [c.names | row for c in everything for row in safety.alert_rows(c.measures, c.file.ids, detector)]
    write_rows(out / "alerts.csv", alerts)
    tables = []
    for c in everything:
        columns = {"episode": np.arange(analysis.episodes)} | safety.episode_columns(c.measures, detector)
        tables.append({name: np.full(len(columns["episode"]), text) for name, text in c.names.items()} | columns)
    write_columns(out / "episodes.csv", {name: np.concatenate([t[name] for t in tables]) for name in tables[0]})
    for c, episode, flights in analysis.samples:
        texts = [*c.names.values(), f"ep{episode:04d}"]
        name = "__".join("".join(ch if ch.isalnum() or ch in "+-._" else "_" for ch in text) for text in texts)
        path = out / "trajectories" / f"{name}.csv"
        write_trajectory(
            path, flights, 0, c.file, detector, components=c.subject.env.reward_components, episode=episode
        )
    analysis.say("pictures", 0, 1)
    try:
        plots.plot_all(analysis, out / "plots")
    except RegimenError as error:
        analysis.notes.append(str(error))
    write_page(out / "airspace.html", analysis)
    analysis.say("pictures", 1, 1)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a CSV file of rows that have the same columns."""
    write_columns(path, {name: np.array([row[name] for row in rows]) for name in rows[0]})


class ProgressLines:
    """Lines on standard error about work that takes long, at most one every two seconds."""

    def __init__(self, quiet: bool):
        self.quiet, self.last, self.began = quiet, 0.0, time.monotonic()

    def __call__(self, what: str, count: int, total: int) -> None:
        now = time.monotonic()
        if self.quiet or (now - self.last < 2.0 and count < total):
            return
        self.last = now
        print(f"[{now - self.began:5.0f} s] {what}: {count:,} of {total:,}", file=sys.stderr, flush=True)
