"""`analyse`: fly, measure, and write what was analysis."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from regimen.domains.airspace.analysis import matrix as transfers
from regimen.domains.airspace.analysis import pilots, safety
from regimen.domains.airspace.analysis.detector import Detector
from regimen.domains.airspace.analysis.flight import Flight, Rows, chunk_size, chunks, flight_of, joined
from regimen.domains.airspace.analysis.matrix import Cell
from regimen.domains.airspace.analysis.measure import Measures, fly_and_measure
from regimen.domains.airspace.analysis.pilots import EnvArgs, Subject, Target
from regimen.domains.airspace.analysis.safety import Row
from regimen.domains.airspace.analysis.shifts import BASELINE, Grid, Shift, grid
from regimen.domains.airspace.analysis.starts import Jitter, starts
from regimen.domains.airspace.analysis.trajectory import write_columns, write_trajectory
from regimen.domains.airspace.files import NAMES, ScenarioFile, load
from regimen.engines import device
from regimen.errors import ConfigError, RegimenError
from regimen.files.storage import write_json, writing
from regimen.policies.policy import Policy

Targets = Target | Sequence[Target]
Names = str | Sequence[str] | None  # separated by commas, or one by one
Say = Callable[[str, int, int], None]  # what is done, how much of it, of how much
WORST = 12  # shifted configurations whose worst episode is kept to look at
MOST = 48  # other episodes kept to look at
OUTPUTS = (
    "shifts.csv",
    "matrix.csv",
    "plots/matrix.png",
    *(f"plots/{kind}_*.png" for kind in ("survival", "shifts", "separation", "aircraft")),
    "trajectories/*__ep[0-9]*.csv",
)


@dataclass
class ShiftResult:
    """One configuration of the shift grid."""

    subject: Subject
    file: ScenarioFile  # as shifted
    scenario: str
    shift: Shift
    measures: Measures
    row: Row


@dataclass
class Sample:
    """An episode in full detail."""

    subject: Subject
    file: ScenarioFile
    scenario: str
    shift: str
    episode: int
    flight: Flight  # of this episode alone


@dataclass
class Analysis:
    """What was analysis. `rows` are plain tables; `write` makes the files."""

    settings: Row
    cells: list[Cell]  # policies x scenarios as they are
    shifts: list[ShiftResult] = field(default_factory=list)
    skipped: list[Row] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    detector: Detector = field(default_factory=Detector)
    seconds: dict[str, float] = field(default_factory=dict)
    out: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def summary(self) -> list[Row]:
        return [c.row for c in self.cells]

    @property
    def shift_rows(self) -> list[Row]:
        return [s.row for s in self.shifts]

    @property
    def changed(self) -> list[ShiftResult]:
        """The shifts that change something: all but the baseline."""
        return [s for s in self.shifts if s.shift is not BASELINE]

    @property
    def configurations(self) -> list[tuple[dict[str, str], Measures, ScenarioFile]]:
        """Who flew where under which shift, what was measured, and the scenario."""
        groups = [(c.policy.name, c.file.name, "baseline", c.measures, c.file) for c in self.cells]
        groups += [(s.subject.name, s.scenario, s.shift.name, s.measures, s.file) for s in self.changed]
        return [({"policy": p, "scenario": name, "shift": shift}, m, file) for p, name, shift, m, file in groups]

    def to_dict(self) -> dict[str, object]:
        worst = sorted((s.row for s in self.changed), key=lambda r: -r["los_rate"])[:10]
        shown = ("policy", "scenario", "shift", "los_rate", "los_low", "los_high")
        return {
            "settings": self.settings,
            "notes": self.notes,
            "summary": self.summary,
            "transfer": transfers.off_diagonal(self.cells) if self.settings["matrix"] else None,
            "risk_inputs": [
                {"policy": c.policy.name, "scenario": c.file.name} | safety.risk_inputs(c.measures) for c in self.cells
            ],
            "shifts": {
                "configurations": len(self.shifts),
                "skipped": self.skipped,
                "worst": [{k: r[k] for k in shown} for r in worst],
            },
            "seconds": self.seconds,
            "out": None if self.out is None else str(self.out),
        }

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
        changed = [s.row for s in self.changed]
        if changed:
            lines.append(f"{len(changed)} shifts, {len(self.skipped)} left out; the worst:")
            for r in sorted(changed, key=lambda r: (-r["los_rate"], r["min_separation_p50_nm"]))[:5]:
                change = f"{r['los_rate_change']:+.3f}"
                lines.append(f"  {r['scenario']} {r['shift']:<28} LoS {r['los_rate']:.3f} ({change})")
        return lines


def analyse(
    target: Targets,
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
    """Analyse the safety of airspace policies: runs, folders of runs, `Policy` objects, or baselines by name.

    `scenarios`: names, JSON files, or `all` (the 14); by default what the policy was trained on. `shifts`: `all`,
    `none`, or names (position, heading, speed, waypoint, type, wind, delay, or one kind); by default all for a single
    policy on a single scenario, else none. `jitter` scales the perturbation of starts (0.5 NM, 2 deg, 5 kt), or is a
    `Jitter`. Files go to `out`, by default `analysis/` in the run's directory; `write=False` writes none.
    """
    began = time.monotonic()
    device.configure("auto", native=True)
    say = Progress(quiet)
    detector = detector or Detector()
    subjects = find_subjects(target, checkpoint, stochastic, env_args)
    files = find_scenarios(scenarios, subjects, matrix)
    kinds = find_shifts(shifts, subjects, files)
    spread = jitter if isinstance(jitter, Jitter) else Jitter().scaled(float(jitter))
    notes: list[str] = []
    if not spread.any and not stochastic and episodes > 1:
        episodes, note = 1, "without --jitter and --stochastic all episodes are the same: one is flown"
        notes.append(note)
    differ = [f"starts perturbed ({spread})"] if spread.any else []
    differ += ["actions drawn from the policy"] if stochastic else []
    notes.append(f"{episodes} episodes of each configuration differ by: {' and '.join(differ) or 'nothing'}")

    at = time.monotonic()
    cells: list[Cell] = []
    results: list[ShiftResult] = []
    samples: list[Sample] = []
    grids = [grid(f, kinds, _names(targets), shift_range) for f in files] if kinds else []
    for subject in subjects if kinds else []:
        for file, g in zip(files, grids):
            shifted, cell, worst = fly_shifts(subject, file, g, episodes, spread, seed, detector, say)
            results += shifted
            cells.append(cell)
            samples += worst
    skipped = [
        {"scenario": f.name, "shift": s.name, "reason": why} for f, g in zip(files, grids) for s, why in g.skipped
    ]
    seconds = {"shifts": time.monotonic() - at} if kinds else {}

    at = time.monotonic()
    others = [*([] if kinds else subjects), *(rule_pilots(subjects) if baselines else [])]
    cells += transfers.transfer(others, files, episodes, spread, seed, detector, say)  # no shift: flown above if so
    seconds["scenarios"] = time.monotonic() - at
    samples = samples_of(cells) + samples
    settings = {
        "policies": [s.name for s in subjects],
        "scenarios": [f.name for f in files],
        "episodes": episodes,
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
    where = default_out(subjects, target) if out is None else Path(out)
    analysis = Analysis(settings, cells, results, skipped, samples, detector, seconds, where if write else None, notes)
    if write:
        at = time.monotonic()
        write_analysis(analysis, where, say)
        seconds["files"] = time.monotonic() - at
    seconds["total"] = time.monotonic() - began
    if write:
        write_json(where / "summary.json", analysis.to_dict())
    return analysis


# --- what is asked for -----------------------------------------------------------------------------------------------


def _names(value: Names) -> list[str] | None:
    if value is None:
        return None
    parts = [value] if isinstance(value, str) else list(value)
    return [name for part in parts for name in part.replace(",", " ").split()]


def find_subjects(target: Targets, checkpoint: str, stochastic: bool, env_args: EnvArgs) -> list[Subject]:
    """The policies to analyse; those of one name get a number."""
    targets = [target] if isinstance(target, (str, Path, Policy)) else list(target)
    if not targets:
        raise ConfigError("regimen analyse needs a run directory or a baseline: no_op, waypoint, mvp")
    subjects: list[Subject] = []
    for one in targets:
        if isinstance(one, Policy) or not Path(one).is_dir():
            subjects.append(pilots.subject_of(one, checkpoint, stochastic, env_args))
            continue
        for folder in pilots.run_folders(Path(one)):
            subject = pilots.subject_of(folder, checkpoint, stochastic, env_args)
            inside = "" if folder == Path(one) else folder.relative_to(one).as_posix()
            subjects.append(dataclasses.replace(subject, name=inside or subject.name))
    names: dict[str, int] = {}
    out = []
    for s in subjects:
        names[s.name] = names.get(s.name, 0) + 1
        out.append(s if names[s.name] == 1 else dataclasses.replace(s, name=f"{s.name}-{names[s.name]}"))
    return out


def find_scenarios(scenarios: Names, subjects: Sequence[Subject], matrix: bool) -> list[ScenarioFile]:
    texts = [] if scenarios is None else [scenarios] if isinstance(scenarios, (str, Path)) else list(scenarios)
    names: list[str] | None = [n for one in texts for n in str(one).split(",") if n] or None  # a path may hold spaces
    if names is None and not matrix:
        trained = [s.scenario for s in subjects]
        names = list(dict.fromkeys(str(s) for s in trained)) if all(s is not None for s in trained) else None
    if names is None or "all" in names:
        names = [*NAMES, *(n for n in names or () if n != "all" and n not in NAMES)]
    files = [load(name) for name in names]
    titles = [f.name for f in files]
    again = next((n for n in titles if titles.count(n) > 1), None)
    if again is not None:
        raise ConfigError(f"scenario: two of them are called '{again}'; give each a scenario_name of its own")
    return files


def find_shifts(shifts: Names, subjects: Sequence[Subject], files: Sequence[ScenarioFile]) -> list[str]:
    names = _names(shifts)
    if names in (None, ["auto"]):
        names = ["all"] if len(subjects) == 1 and len(files) == 1 else ["none"]
    return [n for n in names or () if n != "none"]


def rule_pilots(subjects: Sequence[Subject]) -> list[Subject]:
    """The baselines that are not analysed anyway, in the environment of the first policy."""
    taken = {s.name for s in subjects}
    return [pilots.baseline_subject(name, subjects[0].env) for name in pilots.BASELINES if name not in taken]


def default_out(subjects: Sequence[Subject], target: Targets) -> Path:
    """`analysis/` in the run's directory, or in the folder that holds the runs, or here."""
    if len(subjects) == 1 and subjects[0].path is not None:
        return subjects[0].path / "analysis"
    if isinstance(target, (str, Path)) and Path(target).is_dir():
        return Path(target) / "analysis"
    if len(subjects) > 1 and isinstance(target, Sequence) and len(target) == 1 and Path(str(target[0])).is_dir():
        return Path(str(target[0])) / "analysis"
    return Path("analysis")


# --- flying ----------------------------------------------------------------------------------------------------------


def fly_shifts(
    subject: Subject,
    file: ScenarioFile,
    g: Grid,
    episodes: int,
    jitter: Jitter,
    seed: int,
    detector: Detector,
    say: Say,
) -> tuple[list[ShiftResult], Cell, list[Sample]]:
    """Every shift of the grid and how it differs from the baseline flown from the same perturbations; the baseline as
    a cell of the table of scenarios; and the worst episodes of the worst shifts, flown again in full detail."""
    scenarios, numbers = starts(g.files, episodes, jitter, seed, pilots.aircraft_for([subject], [file]))
    key, what = jax.random.key(seed), f"shifts of {file.name}"
    first = transfers.Look(episodes)

    def look(where: slice, rows: Rows, measures: Measures) -> None:
        if where.start < episodes:
            first(where, rows, measures)
        say(what, where.stop, len(numbers))

    m = fly_and_measure(subject.env, subject.pilot, scenarios, key, detector, episodes=numbers, look=look)
    base, out = m.take(slice(0, episodes)), []
    for k, (shift, made) in enumerate(zip(g.shifts, g.files)):
        part = m.take(slice(k * episodes, (k + 1) * episodes))
        row: Row = {"policy": subject.name, "scenario": file.name} | shift.columns()
        row |= safety.summarise(part, detector, seed) | safety.differences(part, base, seed)
        out.append(ShiftResult(subject, made, file.name, shift, part, row))
    cell = transfers.cell_of(subject, file, base, first.samples(0), detector, seed)

    worst = sorted(range(1, len(out)), key=lambda k: (-out[k].row["los_rate"], out[k].row["min_separation_min_nm"]))
    chosen = [k * episodes + int(np.argmin(out[k].measures.episode["min_separation_nm"])) for k in worst[:WORST]]
    if not chosen:
        return out, cell, []
    some = jax.tree.map(lambda x: x[np.array(chosen)], scenarios)
    size = chunk_size(len(numbers))  # the program of the grid serves
    parts = chunks(subject.env, subject.pilot, some, key, episodes=numbers[chosen], size=size)
    flight = joined([flight_of(rows, np.arange(where.stop - where.start)) for where, rows in parts])
    samples = [
        Sample(subject, out[k].file, file.name, out[k].shift.name, index % episodes, flight.episode(c))
        for c, (k, index) in enumerate(zip(worst, chosen))
    ]
    return out, cell, samples


def samples_of(cells: Sequence[Cell], most: int = MOST) -> list[Sample]:
    """Episodes of the table to look at: those of a policy on its own scenario, then the closest of all."""
    every = [Sample(c.policy, c.file, c.file.name, "baseline", e, f) for c in cells for e, f in c.samples.items()]
    home = {(c.policy.name, c.file.name) for c in cells if c.row["own"]}
    closest = [float(s.flight.min_sep[s.flight.active].min(initial=np.inf)) for s in every]
    order = sorted(
        range(len(every)), key=lambda i: ((every[i].subject.name, every[i].scenario) not in home, closest[i])
    )
    chosen = set(order[:most])
    return [s for i, s in enumerate(every) if i in chosen]


# --- files -----------------------------------------------------------------------------------------------------------


def write_analysis(analysis: Analysis, out: Path, say: Say) -> None:
    """summary.csv, shifts.csv, alerts.csv, episodes.csv, matrix.csv, trajectories/, plots/, airspace.html."""
    from regimen.domains.airspace.analysis import plots
    from regimen.domains.airspace.analysis.pages import write_page

    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for old in (path for pattern in OUTPUTS for path in out.glob(pattern)):
            old.unlink()  # of an earlier analysis: it would be taken for this one's
    write_rows(out / "summary.csv", analysis.summary)
    if analysis.settings["matrix"]:
        write_rows(out / "matrix.csv", analysis.summary)
    if analysis.shifts:
        write_rows(out / "shifts.csv", analysis.shift_rows)
    write_rows(out / "alerts.csv", alert_rows(analysis))
    write_columns(out / "episodes.csv", episode_columns(analysis))
    for s in analysis.samples:
        name = f"{_safe(s.subject.name)}__{_safe(s.scenario)}__{_safe(s.shift)}__ep{s.episode:04d}.csv"
        parts = tuple(s.subject.env.reward_components)
        path = out / "trajectories" / name
        write_trajectory(path, s.flight, 0, s.file, analysis.detector, components=parts, episode=s.episode)
    say("pictures", 0, 1)
    try:
        plots.plot_all(analysis, out / "plots")
    except RegimenError as error:
        analysis.notes.append(str(error))
    write_page(out / "airspace.html", analysis)
    say("pictures", 1, 1)


def _safe(name: str) -> str:
    return "".join(ch if ch.isalnum() or ch in "+-._" else "_" for ch in name)


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    """A CSV file of rows; the columns are those of all rows, in the order in which they first appear."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return write_columns(path, {n: np.array([_value(row.get(n)) for row in rows]) for n in names})


def _value(value: str | float | None) -> str | float:
    return np.nan if value is None else int(value) if isinstance(value, (bool, np.bool_)) else value


def alert_rows(analysis: Analysis) -> list[Row]:
    """Detection by scene, by aircraft and by pair, with and without the gate, for every configuration."""
    rows = []
    for first, m, file in analysis.configurations:
        ids = [*file.ids, *("" for _ in range(m.present.shape[1] - len(file.ids)))]  # padding has no name
        units = safety.alert_rows(m.counts, ids, analysis.detector)
        rows += [first | r for r in units if r["unit"] and "" not in r["unit"].split("-")]
    return rows


def episode_columns(analysis: Analysis) -> dict[str, np.ndarray]:
    """One row for every episode of every configuration."""
    parts = []
    for names, m, _ in analysis.configurations:
        first = {column: np.full(len(m), name) for column, name in names.items()}
        parts.append(first | {"episode": np.arange(len(m))} | safety.episode_columns(m, analysis.detector))
    return {name: np.concatenate([np.asarray(p[name]) for p in parts]) for name in parts[0]}


class Progress:
    """Lines on standard error about work that takes long, at most one every two seconds."""

    def __init__(self, quiet: bool):
        self.quiet, self.last, self.began = quiet, 0.0, time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self.quiet or (now - self.last < 2.0 and done < total):
            return
        self.last = now
        print(f"[{now - self.began:5.0f} s] {what}: {done:,} of {total:,}", file=sys.stderr, flush=True)
