"""The study of what collecting more episodes before an update buys.

Five parts, each on its own terms: the noise of the gradient at fixed policies, how fast regimens reach a target, passes
over a batch, sensitivity to the learning rate, and the damage one outlier episode does. Everything else is held equal.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import numpy as np

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.envs import registry
from regimen.experiments.studies import curves
from regimen.experiments.studies.batching import plots, rows
from regimen.experiments.studies.batching.options import BatchingOptions, prepare, resolve_options
from regimen.experiments.studies.batching.rows import POLICIES, Outliers, RegimenRuns
from regimen.experiments.studies.batching.sentences import sentences
from regimen.experiments.studies.bench import Bench, Recipe, copied, native_engine
from regimen.experiments.studies.curves import Curve, Results, Row
from regimen.experiments.studies.frame import Frame, Job, Lines, Tick
from regimen.experiments.studies.gradients import GradientNoise, Rollouts, groups
from regimen.experiments.studies.host_bench import HostBench
from regimen.experiments.studies.report import fill, numbers_of, read_texts
from regimen.reports.table import Table
from regimen.statistics import Estimate
from regimen.types import State
from regimen.words import plural

LOOKS = (1, 2, 3, 5, 8, 12, 20, 30, 50)  # updates after an outlier at which the policy is evaluated
COMPILE = 500_000  # env steps that compiling a program takes as long as, in about: only for the time left
LABELS = ("name", "policy", "advantages", "group", "size", "scale", "lr")  # of a row, what its numbers belong to


@dataclass
class BatchingStudy(Frame):
    """What larger rollouts buy on one environment."""

    kind = "batching"
    texts = read_texts(Path(__file__).with_name("texts.yaml"), curves=curves)
    absent = dict.fromkeys(("steps_ratio", "updates_ratio"), Estimate(1.0))  # of the first row, to itself
    config: TrainConfig
    handle: registry.EnvHandle
    options: BatchingOptions
    races: dict[tuple, RegimenRuns] = field(default_factory=dict)
    noises: dict[tuple[str, str, str, int], GradientNoise] = field(default_factory=dict)  # policy, kind, group, size
    rollout_steps: dict[tuple[str, int], float] = field(default_factory=dict)
    outliers: dict[int, Outliers] = field(default_factory=dict)

    def __post_init__(self):
        self.benches: dict[tuple, Bench] = {}
        self.policies: dict[str, State] = {}
        self.references: dict[tuple[str, str, str], np.ndarray] = {}  # of a policy's gradients, by kind and group
        self.programs: dict[int, Rollouts] = {}
        self.policy_notes: dict[str, dict[str, float]] = {}
        self.seeds = list(range(self.options.seed, self.options.seed + self.options.seeds))

    @property
    def lr(self) -> float:
        return float(self.config.algo.lr)

    @property
    def budget(self) -> int:
        assert self.options.budget is not None
        return self.options.budget

    @property
    def target(self) -> float:
        return math.inf if self.options.target is None else self.options.target

    def size(self, n: int) -> Recipe:
        return Recipe.episodes(n, self.options.epochs, self.options.minibatch_size)

    def regimens(self) -> list[Recipe]:
        """What races to the target: rollout sizes, then presets with the study's learning rate and with their own."""
        out = [self.size(n) for n in self.options.sizes]
        for name in self.options.presets:
            preset = Recipe.preset(name, self.handle.max_episode_steps, self.config.device)
            out.append(dataclasses.replace(preset, lr=None))
            if preset.lr not in (None, self.lr):
                out.append(dataclasses.replace(preset, name=f"{name}, lr {preset.lr:g}"))
        return out

    def epoch_regimens(self) -> list[Recipe]:
        base = self.size(self.options.epochs_at)
        return [dataclasses.replace(base, name=plural(n, "epoch"), epochs=n) for n in self.options.epochs_tried]

    def key(self, regimen: Recipe, scale: float = 1.0) -> tuple:
        return (*regimen.program, (regimen.lr or self.lr) * scale)

    def bench(self, regimen: Recipe) -> Bench:
        """The regimen's compiled training, kept for other learning rates and for outliers."""
        if regimen.program not in self.benches:
            o = self.options
            first = next(iter(self.benches.values()), None)  # one evaluator for all: policies have the same form
            evaluator = None if first is None else first.evaluator
            kind = Bench if self.handle.native is not None else HostBench
            self.benches[regimen.program] = kind(
                regimen, self.config, self.seeds, self.budget, o.checks, o.eval_episodes, evaluator
            )
        return self.benches[regimen.program]

    def jobs(self) -> dict[str, list[Job]]:
        """The trainings and measurements of each part. What an earlier part needs too is not repeated."""
        o = self.options
        planned: set[tuple] = set()
        by_part: dict[str, Callable[[], list[Job | None]]] = {
            "gradient": self.gradient_jobs,
            "target": lambda: [self.training(planned, r) for r in self.regimens()],
            "epochs": lambda: [self.training(planned, r) for r in self.epoch_regimens()],
            "rates": lambda: [self.training(planned, self.size(n), x) for n in o.sizes for x in o.rates],
            "outlier": lambda: [job for n in o.sizes for job in self.outlier_jobs(planned, n)],
        }
        return {part: [job for job in by_part[part]() if job is not None] for part in o.parts}

    def training(self, planned: set[tuple], regimen: Recipe, scale: float = 1.0) -> Job | None:
        """One training, unless another part has it already."""
        key = self.key(regimen, scale)
        if key in planned:
            return None
        has_program = any(regimen.program == k[:-1] for k in planned)
        planned.add(key)
        lr = (regimen.lr or self.lr) * scale

        def work(tick: Tick) -> str:
            race = RegimenRuns(regimen, lr, self.bench(regimen).train(lr, tick))
            self.races[key] = race
            steps = race.reached("steps", self.target)
            words = f"{np.isfinite(steps).sum()} of {len(steps)} seeds reached {self.target:g}"
            middle = float(np.median(steps))
            return words + (f", median {middle:,.0f} steps" if math.isfinite(middle) else "")

        label = regimen.name + (f", lr {lr:.2g}" if scale != 1.0 else "")
        return Job(label, self.budget * len(self.seeds) + (0 if has_program else COMPILE), work)

    def gradient_jobs(self) -> list[Job | None]:
        o = self.options
        looking = self.budget * len(self.seeds) + COMPILE
        jobs: list[Job | None] = [Job("three policies to measure at", looking, self.find_policies)]
        for n in sorted(o.gradient_sizes, reverse=True):  # the largest gives the reference
            for policy in POLICIES:
                label = f"{policy} policy, {o.repeats} rollouts of {self.size(n).name}"
                guess = o.repeats * n * min(self.handle.max_episode_steps, 200)
                work = partial(self.measure_gradient, policy, n)
                jobs.append(Job(label, guess + (COMPILE if policy == "initial" else 0), work))
        return jobs

    def find_policies(self, tick: Tick) -> str:
        """The initial policy, one half-way between its return and the target or, failing that, half-way through the
        budget, and the one at the end of it; of the first seed."""
        bench = self.bench(self.size(self.options.epochs_at))

        def note(name: str, curve: Curve) -> None:
            self.policies[name] = copied(bench.engine.at(bench.engine.state, 0))
            self.policy_notes[name] = {"steps": curve.steps[-1], "return": curve.returns[-1]}

        def look(seeds: list[Curve]) -> bool:
            curve = seeds[0]
            first, now = curve.returns[0], curve.returns[-1]
            enough = math.isfinite(self.target) and now >= first + 0.5 * (self.target - first)
            if "halfway" not in self.policies and (enough or 2 * curve.steps[-1] >= self.budget):
                note("halfway", curve)
            return False

        curve = bench.train(self.lr, tick, look)[0]
        for name in ("halfway", "late")["halfway" in self.policies :]:  # a training that diverged early has no middle
            note(name, curve)
        self.policies["initial"] = copied(bench.engine.at(bench.start[0], 0))
        self.policy_notes["initial"] = {"steps": 0, "return": curve.returns[0]}
        return "returns " + ", ".join(f"{self.policy_notes[name]['return']:.4g} ({name})" for name in POLICIES)

    def measure_gradient(self, policy: str, n: int, tick: Tick) -> str:
        if n not in self.programs:
            self.programs = {n: Rollouts(native_engine(self.size(n).apply(self.config), self.seeds[:1]))}
        o, state = self.options, self.policies[policy]
        largest = n == max(o.gradient_sizes)
        extra = max(4, o.repeats // 4) if largest else 0
        key = jax.random.fold_in(jax.random.key(o.seed), 1000 * n + POLICIES.index(policy))
        vectors, self.rollout_steps[policy, n] = self.programs[n].gradients(state, key, o.repeats + extra, tick)
        parts = groups(state, next(iter(vectors.values())).shape[1])
        for kind, rollouts in vectors.items():
            for name, columns in parts.items():
                if largest:  # of rollouts that are used for nothing else
                    self.references[policy, kind, name] = rollouts[o.repeats :, columns].mean(0)
                reference = self.references[policy, kind, name]
                self.noises[policy, kind, name, n] = GradientNoise.of(rollouts[: o.repeats, columns], reference)
        first = self.noises[policy, "normalised", next(iter(parts)), n]
        return f"noise {first.trace:.3g}, signal to noise {first.signal_to_noise().value:.3g}"

    def outlier_jobs(self, planned: set[tuple], n: int) -> list[Job | None]:
        regimen, factor = self.size(n), self.options.factor

        def work(tick: Tick) -> str:
            bench = self.bench(regimen)
            control = bench.after_outlier(self.lr, 1.0, LOOKS, lambda share: tick(share / 2))
            outlier = bench.after_outlier(self.lr, factor, LOOKS, lambda share: tick(0.5 + share / 2))
            assert bench.middle is not None
            floor = np.array([c.returns[0] for c in self.races[self.key(regimen)].curves])
            self.outliers[n] = Outliers(bench.middle.returns, floor, control, outlier)
            return f"the return fell by {rows.outlier_row(self.outliers[n])['drop'].value:.4g} right after"

        job = Job(f"{regimen.name}, one with rewards times {factor:g}", self.budget, work)
        return [self.training(planned, regimen), job]

    def rows(self) -> dict[str, list[Row]]:
        o = self.options
        by_part: dict[str, Callable[[], list[Row]]] = {
            "gradient": lambda: rows.gradient_rows(self.noises, self.rollout_steps, min(o.gradient_sizes)),
            "target": lambda: self.race_rows(self.regimens()),
            "epochs": lambda: self.race_rows(self.epoch_regimens()),
            "rates": lambda: [
                {"size": n, "scale": scale} | rows.race_row(race, None, self.target, self.budget)
                for n in o.sizes
                for scale in o.rates
                if (race := self.races.get(self.key(self.size(n), scale)))
            ],
            "outlier": lambda: [
                {"size": n, "factor": o.factor} | rows.outlier_row(self.outliers[n])
                for n in o.sizes
                if n in self.outliers
            ],
        }
        return {part: by_part[part]() for part in o.parts}

    def race_rows(self, regimens: list[Recipe]) -> list[Row]:
        """Ratios are to the first regimen."""
        base, limit = self.races.get(self.key(regimens[0])), self.handle.max_episode_steps
        return [
            {"name": regimen.name, "regimen": regimen.describe(self.config, limit, self.handle.native is not None)}
            | rows.race_row(race, base, self.target, self.budget)
            for regimen in regimens
            if (race := self.races.get(self.key(regimen)))
        ]

    def races_by_name(self) -> dict[str, RegimenRuns]:
        """What the target part compared, in its order."""
        return {r.name: race for r in self.regimens() if (race := self.races.get(self.key(r)))}

    def settings(self) -> Results:
        return {
            "env_args": self.handle.env_args,
            "target": self.options.target,
            "budget": self.budget,
            "seeds": self.seeds,
            "options": dataclasses.asdict(self.options),
            "settings": layers.to_dict(self.config),
            "definitions": self.texts["definitions"],
            "policies": self.policy_notes,
        }

    def raw(self) -> Results:
        races = [
            {"regimen": dataclasses.asdict(x.regimen), "lr": x.lr, "seeds": list(map(dataclasses.asdict, x.curves))}
            for x in self.races.values()
        ]
        gradient = [
            {"policy": p, "advantages": k, "group": g, "size": n, "norms": x.norms, "cosines": x.cosines}
            for (p, k, g, n), x in self.noises.items()
        ]
        outliers = {n: dataclasses.asdict(arms) for n, arms in self.outliers.items()}
        return {"runs": races, "gradient": gradient, "outlier": outliers}

    def sentences(self, part: str, rows: Sequence[Row]) -> list[str]:
        return sentences(part, list(rows), self.options.target, self.budget)

    def body(self) -> list[str]:
        options, parts = self.options, self.results["parts"]
        target = "" if options.target is None else f" The target is an evaluation return of {options.target:g}."
        text = [
            f"{len(self.seeds)} seeds, {self.budget:,} env steps for each training, evaluated {options.checks} times "
            f"on {options.eval_episodes} greedy episodes.{target}",
            "",
        ]
        missing = [part for part in options.parts if part not in self.finished]
        if missing and self.state == "interrupted":
            text += [f"Interrupted: {', '.join(missing)} not finished.", ""]
        for part, members in parts.items():
            text += [f"## {self.heading(part)}", "", *(f"- {line}" for line in self.sentences(part, members)), ""]
        regimens = parts.get("target", []) + parts.get("epochs", [])
        if regimens:
            text += ["## Regimens", "", *(fill("- {name}: {regimen}; lr {lr:g}", row) for row in regimens), ""]
        return text

    def long_table(self) -> Table:
        lines = []
        for part, members in self.results["parts"].items():
            for row in members:
                labels = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items() if k in LABELS]
                for name, numbers in numbers_of(row).items():
                    if name not in LABELS:
                        note = "never" if isinstance(row[name], Estimate) and row[name].value == math.inf else ""
                        lines.append([part, "; ".join(labels), name, *numbers, note])
        return Table(["part", "setting", "measure", "value", "low", "high", "note"], lines)

    def draw(self, parts: Sequence[str]) -> None:
        plots.draw(self, parts)


def run(
    env: str = "cartpole",
    *,
    out: str | Path | None = None,
    quick: bool = False,
    preset: str | None = None,
    env_args: Mapping[str, object] | None = None,
    device: str = "auto",
    command: str = "",
    console: Lines | None = None,
    overrides: Mapping[str, object] | None = None,
    **options: object,
) -> BatchingStudy:
    """Measure what is asked for and write it to a folder; `options` are the fields of `BatchingOptions`, `overrides`
    any settings of `regimen train` that hold for all trainings. Ctrl+C ends it early and keeps what is measured."""
    config, handle, settings = prepare(
        env, resolve_options(options, quick), preset, dict(env_args or {}), device, dict(overrides or {})
    )
    study = BatchingStudy(config, handle, settings, env=handle.id, out=BatchingStudy.folder(env, out), command=command)
    goal = "" if settings.target is None else f", target {settings.target:g}"
    study.measure(console or Lines(quiet=True), f"{settings.seeds} seeds, {study.budget:,} steps each{goal}")
    return study
