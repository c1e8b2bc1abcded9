"""What collecting more episodes before an update buys, measured: `run(env="cartpole")`, or `regimen study batching`.

Five parts, each on its own terms: the noise of the gradient at fixed policies, how fast regimens reach a target, passes
over a batch, sensitivity to the learning rate, and the damage one outlier episode does. Everything else is held equal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.engines.native import NativeEngine
from regimen.envs import registry
from regimen.experiments.studies import plots, report, rows
from regimen.experiments.studies.bench import Bench, Recipe
from regimen.experiments.studies.curves import Curve, Row
from regimen.experiments.studies.frame import Frame, Job, Lines, Tick, encoded
from regimen.experiments.studies.gradients import Rollouts, Sample, groups
from regimen.experiments.studies.options import BatchingOptions, prepare, resolve_options
from regimen.experiments.studies.rows import Outliers, Race
from regimen.files.storage import write_json
from regimen.runs.build import make_engine
from regimen.types import State

LOOKS = (1, 2, 3, 5, 8, 12, 20, 30, 50)  # updates after an outlier at which the policy is evaluated
COMPILE = 500_000  # env steps that compiling a program takes as long as, in about: only for the time left


@dataclass
class BatchingStudy(Frame):
    """What larger rollouts buy on one environment."""

    kind = "batching"
    config: TrainConfig
    handle: registry.EnvHandle
    options: BatchingOptions
    runs: dict[tuple, Race] = field(default_factory=dict)
    samples: dict[tuple[str, str, str, int], Sample] = field(default_factory=dict)  # policy, kind, group, size
    rollout_steps: dict[tuple[str, int], float] = field(default_factory=dict)
    outliers: dict[int, Outliers] = field(default_factory=dict)

    def __post_init__(self):
        self.benches: dict[tuple, Bench] = {}
        self.policies: dict[str, State] = {}
        self.references: dict[tuple[str, str, str], np.ndarray] = {}  # of a policy's gradients, by kind and group
        self.programs: dict[int, Rollouts] = {}
        self.policy_notes: dict[str, dict[str, float]] = {}
        self.seeds = list(range(self.options.seed, self.options.seed + self.options.seeds))

    # --- regimens ----------------------------------------------------------------------------------------------------

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
        o = self.options
        base = Recipe.episodes(o.epochs_at, o.epochs, o.minibatch_size)
        return [
            dataclasses.replace(base, name=f"{n} epoch" + ("" if n == 1 else "s"), epochs=n) for n in o.epochs_tried
        ]

    def key(self, regimen: Recipe, scale: float = 1.0) -> tuple:
        return (*regimen.program, (regimen.lr or self.lr) * scale)

    def bench(self, regimen: Recipe) -> Bench:
        """The regimen's compiled training, kept for other learning rates and for outliers."""
        if regimen.program not in self.benches:
            o = self.options
            first = next(iter(self.benches.values()), None)  # one evaluator for all: policies have the same form
            evaluator = None if first is None else first.evaluator
            self.benches[regimen.program] = Bench(
                regimen, self.config, self.seeds, self.budget, o.checks, o.eval_episodes, evaluator
            )
        return self.benches[regimen.program]

    # --- work --------------------------------------------------------------------------------------------------------

    def jobs(self) -> dict[str, list[Job]]:
        """By part. A training that an earlier part needs too is not repeated."""
        o, planned = self.options, set()
        sizes = [self.size(n) for n in o.sizes]
        by_part: dict[str, Callable[[], list[Job | None]]] = {
            "gradient": self.gradient_jobs,
            "target": lambda: [self.training(planned, r) for r in self.regimens()],
            "epochs": lambda: [self.training(planned, r) for r in self.epoch_regimens()],
            "rates": lambda: [self.training(planned, r, scale) for r in sizes for scale in o.rates],
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
            self.runs[key] = Race(regimen, lr, self.bench(regimen).train(lr, tick))
            return self.outcome(self.runs[key])

        label = regimen.name + (f", lr {lr:.2g}" if scale != 1.0 else "")
        weight = self.budget * len(self.seeds) + (0 if has_program else COMPILE)
        return Job(label, weight, work)

    def outcome(self, run: Race) -> str:
        steps = run.reached("steps", self.target)
        there = int(np.isfinite(steps).sum())
        words = f"{there} of {len(steps)} seeds reached {self.target:g}"
        middle = float(np.median(steps))
        return words + (f", median {middle:,.0f} steps" if math.isfinite(middle) else "")

    def gradient_jobs(self) -> list[Job | None]:
        o = self.options
        looking = self.budget * len(self.seeds) / 4 + COMPILE
        jobs: list[Job | None] = [Job("two policies to measure at", looking, self.find_policies)]
        for n in sorted(o.gradient_sizes, reverse=True):  # the largest gives the reference
            for policy in ("initial", "halfway"):

                def work(tick: Tick, n: int = n, policy: str = policy) -> str:
                    return self.measure_gradient(policy, n, tick)

                label = f"{policy} policy, {o.repeats} rollouts of {self.size(n).name}"
                guess = o.repeats * n * min(self.handle.max_episode_steps, 200)
                jobs.append(Job(label, guess + (COMPILE if policy == "initial" else 0), work))
        return jobs

    def find_policies(self, tick: Tick) -> str:
        """The initial policy, and one half-way between its return and the target or, failing that, half-way through
        the budget; of the first seed."""
        bench = self.bench(self.size(self.options.epochs_at))

        def halfway(seeds: list[Curve]) -> bool:
            first, now = seeds[0].returns[0], seeds[0].returns[-1]
            enough = math.isfinite(self.target) and now >= first + 0.5 * (self.target - first)
            return enough or 2 * seeds[0].steps[-1] >= self.budget

        curve = bench.train(self.lr, tick, halfway)[0]
        engine = bench.engine
        self.policies = {"initial": engine.at(bench.start[0], 0), "halfway": engine.at(engine.state, 0)}
        self.policy_notes = {
            "initial": {"steps": 0, "return": curve.returns[0]},
            "halfway": {"steps": curve.steps[-1], "return": curve.returns[-1]},
        }
        return f"returns {curve.returns[0]:.4g} and, after {curve.steps[-1]:,} steps, {curve.returns[-1]:.4g}"

    def measure_gradient(self, policy: str, n: int, tick: Tick) -> str:
        if n not in self.programs:
            self.programs.clear()  # the size before is through
            engine = make_engine(self.size(n).apply(self.config), self.handle, self.seeds[:1], lambda: False)
            assert isinstance(engine, NativeEngine)
            self.programs[n] = Rollouts(engine)
        o, state = self.options, self.policies[policy]
        largest = n == max(o.gradient_sizes)
        extra = max(4, o.repeats // 4) if largest else 0
        key = jax.random.fold_in(jax.random.key(o.seed), 1000 * n + (policy == "halfway"))
        vectors, steps = self.programs[n].gradients(state, key, o.repeats + extra, tick)
        self.rollout_steps[policy, n] = steps
        parts = groups(state, next(iter(vectors.values())).shape[1])
        for kind, rollouts in vectors.items():
            for name, columns in parts.items():
                if largest:  # of rollouts that are used for nothing else
                    self.references[policy, kind, name] = rollouts[o.repeats :, columns].mean(0)
                sample = Sample.of(rollouts[: o.repeats, columns], self.references[policy, kind, name])
                self.samples[policy, kind, name, n] = sample
        first = self.samples[policy, "normalised", next(iter(parts)), n]
        return f"noise {first.trace:.3g}, signal to noise {first.signal_to_noise().value:.3g}"

    def outlier_jobs(self, planned: set[tuple], n: int) -> list[Job | None]:
        regimen = self.size(n)

        def work(tick: Tick) -> str:
            bench, factor = self.bench(regimen), self.options.factor
            control = bench.after_outlier(self.lr, 1.0, LOOKS, lambda share: tick(share / 2))
            outlier = bench.after_outlier(self.lr, factor, LOOKS, lambda share: tick(0.5 + share / 2))
            assert bench.middle is not None
            floor = np.array([c.returns[0] for c in self.runs[self.key(regimen)].curves])
            self.outliers[n] = Outliers(bench.middle.returns, floor, control, outlier)
            drop = self.outlier_row(n)["drop"]
            return f"the return fell by {drop.value:.4g} right after"

        job = Job(f"{regimen.name}, one with rewards times {self.options.factor:g}", self.budget, work)
        return [self.training(planned, regimen), job]

    # --- what came of it ---------------------------------------------------------------------------------------------

    def summarise(self) -> dict[str, list[Row]]:
        """Every part as far as it is measured: rows of plain data and Estimates."""
        parts: dict[str, list[Row]] = {}
        if "gradient" in self.options.parts and self.samples:
            parts["gradient"] = rows.gradient_rows(self.samples, self.rollout_steps, min(self.options.gradient_sizes))
        if "target" in self.options.parts:
            parts["target"] = self.regimen_rows(self.regimens())
        if "epochs" in self.options.parts:
            parts["epochs"] = self.regimen_rows(self.epoch_regimens())
        if "rates" in self.options.parts:
            parts["rates"] = self.rate_rows()
        if "outlier" in self.options.parts:
            parts["outlier"] = [self.outlier_row(n) for n in self.options.sizes if n in self.outliers]
        return {name: lines for name, lines in parts.items() if lines}

    def regimen_rows(self, regimens: list[Recipe]) -> list[Row]:
        """Ratios are to the first regimen."""
        races = [(r, self.runs.get(self.key(r))) for r in regimens]
        base, limit = races[0][1], self.handle.max_episode_steps
        return [
            {"name": regimen.name, "regimen": regimen.describe(self.config, limit)}
            | rows.race_row(run, base, self.target, self.budget)
            for regimen, run in races
            if run is not None
        ]

    def rate_rows(self) -> list[Row]:
        races = [
            (n, x, self.runs.get(self.key(self.size(n), x))) for n in self.options.sizes for x in self.options.rates
        ]
        return [
            {"size": n, "scale": scale} | rows.race_row(run, None, self.target, self.budget)
            for n, scale, run in races
            if run is not None
        ]

    def outlier_row(self, n: int) -> Row:
        return {"size": n, "factor": self.options.factor} | rows.outlier_row(self.outliers[n])

    # --- files -------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """results.json, the tables and the summary."""
        parts = self.summarise()
        self.results = self.about() | {
            "env_args": self.handle.env_args,
            "target": self.options.target,
            "budget": self.budget,
            "seeds": self.seeds,
            "options": dataclasses.asdict(self.options),
            "settings": layers.to_dict(self.config),
            "definitions": report.DEFINITIONS,
            "policies": self.policy_notes,
            "parts": parts,
            "sentences": report.sentences(parts, self.options.target, self.budget),
        }
        write_json(self.out / "results.json", encoded(self.results | {"raw": self.raw()}))
        report.write(self.out, self.results)

    def draw(self, parts: Sequence[str]) -> None:
        plots.draw(self.out, self.results, self.runs_by_name(), self.outliers, parts)

    def raw(self) -> dict[str, object]:
        """Every number behind the estimates."""
        gradient = [
            {"policy": p, "advantages": k, "group": g, "size": n, "norms": s.norms, "cosines": s.cosines}
            for (p, k, g, n), s in self.samples.items()
        ]
        outliers = {n: dataclasses.asdict(arms) for n, arms in self.outliers.items()}
        return {"runs": [r.to_dict() for r in self.runs.values()], "gradient": gradient, "outlier": outliers}

    def runs_by_name(self) -> dict[str, Race]:
        """What the target part compared, in its order."""
        races = {r.name: self.runs.get(self.key(r)) for r in self.regimens()}
        return {name: run for name, run in races.items() if run is not None}


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
    chosen = resolve_options(options, quick)
    config, handle, chosen = prepare(env, chosen, preset, dict(env_args or {}), device, dict(overrides or {}))
    path = BatchingStudy.folder(env, out)
    study = BatchingStudy(config, handle, chosen, env=handle.id, out=path, command=command)
    goal = "" if chosen.target is None else f", target {chosen.target:g}"
    study.measure(console or Lines(quiet=True), f"{chosen.seeds} seeds, {study.budget:,} steps each{goal}")
    return study
