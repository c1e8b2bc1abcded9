"""The study of when to update: strategies that people use, side by side.

Each has its documented epochs and full batches: after every episode, 5 or 10 of them, 25 parallel ones, 20,000 steps;
with Monte-Carlo returns z-scored over the batch and with GAE; and from a replay. Everything else is held equal.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen.algorithms.ppo import PPO
from regimen.config.schema import TrainConfig
from regimen.engines.native import NativeEngine
from regimen.envs.protocol import Env
from regimen.experiments.search.gate import lower_bound
from regimen.experiments.studies import curves
from regimen.experiments.studies.bench import Bench, mean_return, native_engine
from regimen.experiments.studies.curves import Curve, Results, Row, estimate, median
from regimen.experiments.studies.frame import Frame, Job, Lines, Tick
from regimen.experiments.studies.gradients import GradientNoise, RolloutGradients, adopt, groups
from regimen.experiments.studies.report import numbers_of, read_texts
from regimen.experiments.studies.updates import plots
from regimen.experiments.studies.updates.options import GAE, Arm, UpdatesOptions, base_config, resolve_options
from regimen.experiments.studies.updates.sentences import sentences
from regimen.policies.evaluate import Evaluation
from regimen.reports.table import Table
from regimen.sources.scan import EnvCarry, ScanSource
from regimen.statistics import Estimate, iqm
from regimen.types import Array, Batch, State

COMPILE = 300_000  # env steps that compiling a program takes as long as, in about: only for the time left
REFERENCE = "10 episodes"  # whose half-trained policies gradients and overfitting are measured at


@dataclass
class UpdatesStudy(Frame):
    """When to update on one environment, strategy by strategy."""

    kind = "updates"
    texts = read_texts(Path(__file__).with_name("texts.yaml"))
    env_args: dict[str, object]
    device: str
    options: UpdatesOptions
    curves: dict[str, list[Curve]] = field(default_factory=dict)  # by arm
    gated: dict[str, list[Curve]] = field(default_factory=dict)  # of the bound of the gated metric
    memory: dict[str, int] = field(default_factory=dict)  # bytes of a batch, and of the replay
    noises: dict[tuple[str, str], GradientNoise] = field(default_factory=dict)  # policy, arm
    gains: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self):
        self.seeds = list(range(self.options.seed, self.options.seed + self.options.seeds))
        self.policies: dict[str, dict[str, State]] = {}  # form of the returns -> initial | halfway -> state

    def config(self, arm: Arm, **env_args: object) -> TrainConfig:
        return base_config(self.env, arm.algorithm, self.env_args | env_args, self.device)

    def bench(self, arm: Arm, score: Callable[[Evaluation], float], **env_args: object) -> Bench:
        o = self.options
        budget = max(1, round(o.budget * arm.share))
        checks = max(min(6, o.checks), round(o.checks * arm.share))  # the last three are the result
        config = self.config(arm, **env_args)
        return Bench(arm.regimen, config, self.seeds, budget, checks, o.eval_episodes, score=score)

    def engine(self, arm: Arm) -> NativeEngine:
        """A program of the arm with one learner, for rollouts at a fixed policy."""
        return native_engine(arm.regimen.apply(self.config(arm)), self.seeds[:1])

    def jobs(self) -> dict[str, list[Job]]:
        arms, on_policy = self.options.arms, [arm for arm in self.options.arms if arm.algorithm == "ppo"]
        by_part = {
            "race": [self.training(arm, partial(self.race, arm)) for arm in arms],
            "gradient": [self.noise(arm, policy) for arm in on_policy for policy in ("initial", "halfway")],
            "overfit": [self.overfitting(arm) for arm in on_policy],
            self.options.gated: [self.training(arm, partial(self.comply, arm)) for arm in arms],
        }
        return {part: by_part[part] for part in self.options.parts}

    def training(self, arm: Arm, work: Callable[[Tick], str]) -> Job:
        return Job(arm.name, self.options.budget * arm.share * len(self.seeds) * arm.cost + COMPILE, work)

    def race(self, arm: Arm, tick: Tick) -> str:
        bench = self.bench(arm, mean_return)
        seeds = bench.train(float(bench.config.algo.lr), tick)
        self.curves[arm.name] = seeds
        self.memory[arm.name] = memory_of(bench.engine)
        return f"final return {iqm(np.array([curves.final(c) for c in seeds])):.4g}"

    def comply(self, arm: Arm, tick: Tick) -> str:
        o = self.options
        bench = self.bench(arm, partial(bound_of, o.gated), **o.gated_args)
        seeds = bench.train(float(bench.config.algo.lr), tick)
        self.gated[arm.name] = seeds
        there = sum(np.isfinite([c.reached("episodes", o.gate) for c in seeds]))
        return f"{there} of {len(seeds)} seeds complied"

    def policies_of(self, form: str) -> dict[str, State]:
        """The initial policy and a half-trained one of the reference arm, whose critic knows this form of returns."""
        if form not in self.policies:
            arms = [arm for arm in self.options.arms if arm.form == form]
            arm = next((arm for arm in arms if arm.strategy == REFERENCE), arms[0])
            bench = self.bench(arm, mean_return)
            bench.train(float(bench.config.algo.lr), until=lambda seeds: 2 * seeds[0].steps[-1] >= self.options.budget)
            self.policies[form] = bench.policies()
        return self.policies[form]

    def noise(self, arm: Arm, policy: str) -> Job:
        o = self.options

        def work(tick: Tick) -> str:
            state = self.policies_of(arm.form)[policy]
            key = jax.random.fold_in(jax.random.key(o.seed), len(self.noises))
            vectors, _ = RolloutGradients(self.engine(arm)).gradients(state, key, o.repeats, tick)
            gradients = vectors["normalised" if arm.form == GAE else "raw"]  # as the form is documented
            gradients = gradients[:, groups(state, gradients.shape[1]).get("policy", slice(None))]
            noise = GradientNoise.of(gradients, gradients.mean(0))
            self.noises[policy, arm.name] = noise
            return f"signal to noise {noise.signal_to_noise().value:.3g}"

        return Job(f"{policy} policy, {o.repeats} rollouts, {arm.name}", o.repeats * arm.steps + COMPILE, work)

    def overfitting(self, arm: Arm) -> Job:
        o = self.options

        def work(tick: Tick) -> str:
            state = self.policies_of(arm.form)["halfway"]
            engine = self.engine(arm)
            keys = jax.random.split(jax.random.fold_in(jax.random.key(o.seed), 7), o.repeats)
            program = jax.jit(partial(gains, engine.source))
            measures = program(engine.algo, engine.env, adopt(engine.state, state), engine.carry, keys)
            self.gains[arm.name] = {name: np.asarray(x, np.float64) for name, x in measures.items()}
            old, new = (self.gains[arm.name][k].mean() for k in ("own", "held_out"))
            return f"gain {old:.3g} on its own batch, {new:.3g} on a new one"

        return Job(f"{o.repeats} updates, {arm.name}", 3 * o.repeats * arm.steps + COMPILE, work)

    def rows(self) -> dict[str, list[Row]]:
        arms = self.options.arms
        return {
            "race": [self.label(a) | self.race_row(a) for a in arms if a.name in self.curves],
            "gradient": [
                self.label(a) | self.noise_row(a, p)
                for p in ("initial", "halfway")
                for a in arms
                if (p, a.name) in self.noises
            ],
            "overfit": [self.label(a) | self.overfit_row(a) for a in arms if a.name in self.gains],
            self.options.gated: [self.label(a) | self.gated_row(a) for a in arms if a.name in self.gated],
        }

    def label(self, arm: Arm) -> Row:
        return {"arm": arm.name, "strategy": arm.strategy, "returns": arm.form}

    def race_row(self, arm: Arm) -> Row:
        seeds = self.curves[arm.name]
        final = [curves.final(c) for c in seeds]
        row: Row = {
            "budget": seeds[0].steps[-1],
            "updates": float(np.mean([c.updates[-1] for c in seeds])),
            "memory": self.memory[arm.name],
            "seconds": seeds[0].seconds[-1] / len(seeds),
            "final": estimate(final, iqm),
            "spread": estimate(final, curves.std),
            "diverged": sum(c.diverged for c in seeds),
        }
        for target in self.options.targets:
            steps = [c.reached("steps", target) for c in seeds]
            seconds = [c.reached("seconds", target) / len(seeds) for c in seeds]
            row[f"steps_to_{target:g}"] = estimate(steps, median)
            row[f"seconds_to_{target:g}"] = estimate(seconds, median)
            row[f"reached_{target:g}"] = int(np.isfinite(steps).sum())
        return row

    def noise_row(self, arm: Arm, policy: str) -> Row:
        noise = self.noises[policy, arm.name]
        return {
            "policy": policy,
            "rollout_steps": arm.steps,
            "noise": noise.noise(),
            "signal_to_noise": noise.signal_to_noise(),
        }

    def overfit_row(self, arm: Arm) -> Row:
        gain = self.gains[arm.name]
        picks = np.random.default_rng(0).integers(0, len(gain["own"]), (curves.RESAMPLES, len(gain["own"])))
        means = {name: gain[name][picks].mean(1) for name in ("own", "held_out")}
        row = {name: Estimate(float(gain[name].mean()), *curves.interval(means[name])) for name in means}
        with np.errstate(divide="ignore", invalid="ignore"):
            share = float(1 - gain["held_out"].mean() / gain["own"].mean())
            ends = curves.interval(1 - means["held_out"] / means["own"])
        return row | {"lost": Estimate(share, *ends), "kl": float(gain["kl"].mean())}

    def gated_row(self, arm: Arm) -> Row:
        seeds = self.gated[arm.name]
        episodes = [c.reached("episodes", self.options.gate) for c in seeds]
        return {
            "reached": int(np.isfinite(episodes).sum()),
            "seeds": len(seeds),
            "episodes_to_gate": estimate(episodes, median),
            "final": estimate([curves.final(c) for c in seeds], iqm),
            "episodes": seeds[0].episodes[-1],
        }

    def sentences(self, part: str, rows: Sequence[Row]) -> list[str]:
        return sentences(part, list(rows), self.options.targets, self.options.gate)

    def settings(self) -> Results:
        return {
            "env_args": self.env_args,
            "seeds": self.seeds,
            "budget": self.options.budget,
            "options": self.options.to_dict(),
        }

    def raw(self) -> Results:
        by_name = {"curves": self.curves} | ({self.options.gated: self.gated} if self.options.gated else {})
        return {
            name: {arm: [dataclasses.asdict(c) for c in seeds] for arm, seeds in by_arm.items()}
            for name, by_arm in by_name.items()
        }

    def heading(self, part: str) -> str:
        """The heading of a part; that of a gated metric has its name."""
        return self.texts["headings"].get(part, f"Episodes to {part}")

    def columns(self, part: str, rows: Sequence[Row]) -> Mapping[str, str]:
        fixed = self.texts["columns"].get(part, self.texts["columns"]["gated"])
        if part == "gradient":
            return fixed
        columns = {"update after": "{strategy}", "returns": "{returns}"}
        for t in plots.targets_of(rows):
            columns[f"steps to {t}"] = f"{{steps_to_{t}}}"
            columns[f"s to {t}"] = f"{{seconds_to_{t}:point}}"
            columns[f"seeds at {t}"] = f"{{reached_{t}}}"
        return columns | fixed

    def body(self) -> list[str]:
        o = self.options
        return [
            f"{len(self.seeds)} seeds, {o.budget:,} env steps for each training (the replay a share of "
            f"{o.replay_share:g} of it), evaluated on {o.eval_episodes} greedy episodes.",
            "",
            *(f"- {line}" for line in self.results["sentences"]),
            "",
        ]

    def long_table(self) -> Table:
        lines = []
        for part, rows in self.results["parts"].items():
            for row in rows:
                where = part + (f"/{row['policy']}" if "policy" in row else "")
                lines += [[where, row["arm"], name, *numbers] for name, numbers in numbers_of(row).items()]
        return Table(["part", "arm", "measure", "value", "low", "high"], lines)

    def draw(self, parts: Sequence[str]) -> None:
        """All pictures: each of them compares what several parts have measured."""
        plots.draw(self)


def bound_of(metric: str, evaluation: Evaluation) -> float:
    """Lower end of the one-sided 95% interval of a rate's mean over episodes, honest also where it is 1 in all."""
    return lower_bound(evaluation.metrics[metric])


def memory_of(engine: NativeEngine) -> int:
    """Bytes of one learner's batch and of its replay."""
    algo, state = engine.algo, engine.at(engine.state, 0)
    carry = engine.at(engine.carry, 0)
    params = algo.actor_params(state)
    shapes = jax.eval_shape(lambda: engine.source.next(engine.env, algo, carry, params, jax.random.key(0))[1])
    batch = sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    return batch + algo.bound.replay_bytes()


def gains(source: ScanSource, algo: PPO, env: Env, state: State, carry: EnvCarry, keys: Array) -> dict[str, Array]:
    """What updates from one policy promise [R]: by the batch they were made on, by another of the same policy, and how
    far they went."""

    def one(key: Array) -> dict[str, Array]:
        params = algo.actor_params(state)
        batch, other = (source.next(env, algo, carry, params, k)[1] for k in jax.random.split(key))
        new, metrics = algo.update(state, batch)
        promise = partial(gain, algo, state, new)
        return {"own": promise(batch), "held_out": promise(other), "kl": metrics["approx_kl"]}

    return lax.map(one, keys)


def gain(algo: PPO, old: State, new: State, batch: Batch) -> Array:
    """E[(pi_new / pi_old - 1) A] over a batch of the old policy, its advantages with mean 0 and deviation 1: the
    improvement that the surrogate objective claims."""
    reward, factors, _ = algo.bound.components.rewards(algo.config, old, batch)
    rows, _ = algo.advantages(old, batch, reward, factors)
    log_prob = algo.log_prob(new.models["policy"].params, rows)
    ratio = jnp.exp(jnp.minimum(log_prob - rows.log_prob, 20.0))
    weight = batch.valid / batch.valid.sum()
    advantage = rows.advantage.sum(-1)
    centred = advantage - (advantage * weight).sum()
    standard = centred / jnp.sqrt((jnp.square(centred) * weight).sum() + 1e-12)
    return ((ratio - 1) * standard * weight).sum()


def run(
    env: str,
    *,
    out: str | Path | None = None,
    quick: bool = False,
    env_args: Mapping[str, object] | None = None,
    device: str = "auto",
    command: str = "",
    console: Lines | None = None,
    **options: object,
) -> UpdatesStudy:
    """Measure what is asked for and write it to a folder; `options` are the fields of `UpdatesOptions`. Ctrl+C
    ends it early and keeps what is measured."""
    args = dict(env_args or {})
    settings = resolve_options(env, args, device, options, quick)
    study = UpdatesStudy(args, device, settings, env=env, out=UpdatesStudy.folder(env, out), command=command)
    study.measure(console or Lines(quiet=True), f"{settings.seeds} seeds, {settings.budget:,} steps for each training")
    return study
