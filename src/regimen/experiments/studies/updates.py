"""When to update, compared with numbers: `run("cartpole")`, or `regimen study updates`.

Strategies that people use, side by side, each with its documented epochs and as full batches: after every episode, 5 or
10 of them, 25 parallel ones, 20,000 steps; with Monte-Carlo returns z-scored over the batch and with GAE; and from a
replay. Everything else is held equal. `updates_options` says what they are, `updates_report` writes what was found.
"""

from __future__ import annotations

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
from regimen.envs import registry
from regimen.envs.protocol import Env
from regimen.experiments.search.gate import lower_bound
from regimen.experiments.studies import curves, updates_report
from regimen.experiments.studies.bench import Bench, mean_return
from regimen.experiments.studies.curves import Curve, Row, estimate, median
from regimen.experiments.studies.frame import Frame, Job, Lines, Tick, encoded
from regimen.experiments.studies.gradients import Rollouts, Sample, adopt, groups
from regimen.experiments.studies.updates_options import GAE, Arm, UpdatesOptions, base_config, resolve_options
from regimen.files.storage import write_json
from regimen.policies.evaluate import Evaluation
from regimen.runs.build import make_engine
from regimen.sources.scan import EnvCarry, ScanSource
from regimen.statistics import Estimate, iqm
from regimen.types import Array, Batch, State

COMPILE = 300_000  # env steps that compiling a program takes as long as, in about: only for the time left
REFERENCE = "10 episodes"  # whose half-trained policies gradients and overfitting are measured at


@dataclass
class UpdatesStudy(Frame):
    """When to update on one environment, strategy by strategy."""

    kind = "updates"
    env_args: dict[str, object]
    device: str
    options: UpdatesOptions
    curves: dict[str, list[Curve]] = field(default_factory=dict)  # by arm
    gated: dict[str, list[Curve]] = field(default_factory=dict)  # of the bound of the gated metric
    memory: dict[str, int] = field(default_factory=dict)  # bytes of a batch, and of the replay
    updates: dict[str, float] = field(default_factory=dict)
    samples: dict[tuple[str, str], Sample] = field(default_factory=dict)  # policy, arm
    gains: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self):
        self.seeds = list(range(self.options.seed, self.options.seed + self.options.seeds))
        self.configs: dict[tuple, TrainConfig] = {}
        self.policies: dict[str, dict[str, State]] = {}  # initial | halfway -> form of the returns -> state

    # --- programs ----------------------------------------------------------------------------------------------------

    def config(self, arm: Arm, **env_args: object) -> TrainConfig:
        key = (arm.algorithm, *sorted(env_args.items()))
        if key not in self.configs:
            self.configs[key] = base_config(self.env, arm.algorithm, self.env_args | env_args, self.device)
        return self.configs[key]

    def bench(self, arm: Arm, score: Callable[[Evaluation], float], **env_args: object) -> Bench:
        config, o = self.config(arm, **env_args), self.options
        budget = max(1, round(o.budget * arm.share))
        checks = max(min(6, o.checks), round(o.checks * arm.share))  # the last three are the result
        return Bench(arm.regimen, config, self.seeds, budget, checks, o.eval_episodes, score=score)

    # --- work --------------------------------------------------------------------------------------------------------

    def jobs(self) -> dict[str, list[Job]]:
        by_part = {
            "race": lambda: [self.racing(arm) for arm in self.options.arms],
            "gradient": lambda: [
                self.noise(arm, policy) for arm in self.on_policy() for policy in ("initial", "halfway")
            ],
            "overfit": lambda: [self.overfitting(arm) for arm in self.on_policy()],
            self.options.gated: lambda: [self.complying(arm) for arm in self.options.arms],
        }
        return {part: by_part[part]() for part in self.options.parts}

    def on_policy(self) -> list[Arm]:
        return [arm for arm in self.options.arms if arm.algorithm == "ppo"]

    def racing(self, arm: Arm) -> Job:
        def work(tick: Tick) -> str:
            bench = self.bench(arm, mean_return)
            seeds = bench.train(float(bench.config.algo.lr), tick)
            self.curves[arm.name] = seeds
            self.memory[arm.name] = memory_of(bench.engine)
            self.updates[arm.name] = float(np.mean([c.updates[-1] for c in seeds]))
            return f"final return {iqm(np.array([curves.final(c) for c in seeds])):.4g}"

        return Job(arm.name, self.options.budget * arm.share * len(self.seeds) * arm.cost + COMPILE, work)

    def find_policies(self, form: str) -> None:
        """The initial policy and a half-trained one of the reference arm, whose critic knows this form of returns."""
        if form in self.policies.get("halfway", {}):
            return
        arm = next((a for a in self.on_policy() if a.form == form and a.strategy == REFERENCE), None)
        arm = arm or next(a for a in self.on_policy() if a.form == form)
        o = self.options
        short = dataclasses.replace(arm, share=1.0)
        bench = self.bench(short, mean_return)
        bench.train(float(bench.config.algo.lr), until=lambda seeds: 2 * seeds[0].steps[-1] >= o.budget)
        engine = bench.engine
        for name, state in (("initial", bench.start[0]), ("halfway", engine.state)):
            self.policies.setdefault(name, {})[form] = engine.at(state, 0)

    def engine(self, arm: Arm) -> NativeEngine:
        """A program of the arm with one learner, for rollouts at a fixed policy."""
        config = arm.regimen.apply(self.config(arm))
        engine = make_engine(config, registry.resolve(self.env, config.env_args), self.seeds[:1], lambda: False)
        assert isinstance(engine, NativeEngine)
        return engine

    def noise(self, arm: Arm, policy: str) -> Job:
        o = self.options

        def work(tick: Tick) -> str:
            self.find_policies(arm.form)
            state = self.policies[policy][arm.form]
            key = jax.random.fold_in(jax.random.key(o.seed), len(self.samples))
            vectors, _ = Rollouts(self.engine(arm)).gradients(state, key, o.repeats, tick)
            gradients = vectors["normalised" if arm.form == GAE else "raw"]  # as the form is documented
            columns = groups(state, gradients.shape[1]).get("policy", slice(None))
            sample = Sample.of(gradients[:, columns], gradients[:, columns].mean(0))
            self.samples[policy, arm.name] = sample
            return f"signal to noise {sample.signal_to_noise().value:.3g}"

        return Job(f"{policy} policy, {o.repeats} rollouts, {arm.name}", o.repeats * arm.steps + COMPILE, work)

    def overfitting(self, arm: Arm) -> Job:
        o = self.options

        def work(tick: Tick) -> str:
            self.find_policies(arm.form)
            engine = self.engine(arm)
            state = adopt(engine.state, self.policies["halfway"][arm.form])
            keys = jax.random.split(jax.random.fold_in(jax.random.key(o.seed), 7), o.repeats)
            program = jax.jit(partial(gains, engine.source))
            measures = program(engine.algo, engine.env, state, engine.carry, keys)
            self.gains[arm.name] = {name: np.asarray(x, np.float64) for name, x in measures.items()}
            old, new = (self.gains[arm.name][k].mean() for k in ("own", "held_out"))
            return f"gain {old:.3g} on its own batch, {new:.3g} on a new one"

        return Job(f"{o.repeats} updates, {arm.name}", 3 * o.repeats * arm.steps + COMPILE, work)

    def complying(self, arm: Arm) -> Job:
        o = self.options

        def work(tick: Tick) -> str:
            bench = self.bench(arm, partial(bound_of, o.gated), **o.gated_args)
            seeds = bench.train(float(bench.config.algo.lr), tick)
            self.gated[arm.name] = seeds
            there = sum(np.isfinite([curves.reached(c.episodes, c.returns, o.gate) for c in seeds]))
            return f"{there} of {len(seeds)} seeds complied"

        return Job(arm.name, o.budget * arm.share * len(self.seeds) * arm.cost + COMPILE, work)

    # --- what came of it ---------------------------------------------------------------------------------------------

    def summarise(self) -> dict[str, list[Row]]:
        """Rows of plain data and Estimates, by part."""
        o = self.options
        parts = {
            "race": [self.race_row(a) for a in o.arms if a.name in self.curves],
            "gradient": [
                self.noise_row(a, p) for p in ("initial", "halfway") for a in o.arms if (p, a.name) in self.samples
            ],
            "overfit": [self.overfit_row(a) for a in o.arms if a.name in self.gains],
            o.gated: [self.gated_row(a) for a in o.arms if a.name in self.gated],
        }
        return {name: rows for name, rows in parts.items() if rows}

    def label(self, arm: Arm) -> Row:
        return {"arm": arm.name, "strategy": arm.strategy, "returns": arm.form}

    def race_row(self, arm: Arm) -> Row:
        seeds, o = self.curves[arm.name], self.options
        final = [curves.final(c) for c in seeds]
        row = self.label(arm) | {
            "budget": seeds[0].steps[-1],
            "updates": self.updates[arm.name],
            "memory": self.memory[arm.name],
            "seconds": seeds[0].seconds[-1] / len(seeds),
            "final": estimate(final, iqm),
            "spread": estimate(final, curves.std),
            "diverged": sum(c.diverged for c in seeds),
        }
        for target in o.targets:
            steps = [curves.reached(c.steps, c.returns, target) for c in seeds]
            wall = [curves.reached([s / len(seeds) for s in c.seconds], c.returns, target) for c in seeds]
            row |= {
                f"steps_to_{target:g}": estimate(steps, median),
                f"seconds_to_{target:g}": estimate(wall, median),
                f"reached_{target:g}": int(np.isfinite(steps).sum()),
            }
        return row

    def noise_row(self, arm: Arm, policy: str) -> Row:
        sample = self.samples[policy, arm.name]
        return self.label(arm) | {
            "policy": policy,
            "rollout_steps": arm.steps,
            "noise": sample.noise(),
            "signal_to_noise": sample.signal_to_noise(),
        }

    def overfit_row(self, arm: Arm) -> Row:
        gain = self.gains[arm.name]
        batch, new = gain["own"], gain["held_out"]
        picks = np.random.default_rng(0).integers(0, len(batch), (curves.RESAMPLES, len(batch)))
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = 1 - new[picks].mean(1) / batch[picks].mean(1)
            lost = Estimate(float(1 - new.mean() / batch.mean()), *curves.interval(shares))
        return self.label(arm) | {
            "own": Estimate(float(batch.mean()), *curves.interval(batch[picks].mean(1))),
            "held_out": Estimate(float(new.mean()), *curves.interval(new[picks].mean(1))),
            "lost": lost,
            "kl": float(gain["kl"].mean()),
        }

    def gated_row(self, arm: Arm) -> Row:
        seeds, gate = self.gated[arm.name], self.options.gate
        episodes = [curves.reached(c.episodes, c.returns, gate) for c in seeds]
        return self.label(arm) | {
            "reached": int(np.isfinite(episodes).sum()),
            "seeds": len(seeds),
            "episodes_to_gate": estimate(episodes, median),
            "final": estimate([curves.final(c) for c in seeds], iqm),
            "episodes": seeds[0].episodes[-1],
        }

    # --- files -------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """results.json, the tables and the summary."""
        parts = self.summarise()
        self.results = self.about() | {
            "env_args": self.env_args,
            "seeds": self.seeds,
            "budget": self.options.budget,
            "options": self.options.to_dict(),
            "parts": parts,
            "sentences": updates_report.sentences(parts, self.options.targets, self.options.gate),
        }
        raw = {"curves": self.curves} | ({self.options.gated: self.gated} if self.options.gated else {})
        dicts = {
            name: {arm: [c.to_dict() for c in curves] for arm, curves in by_arm.items()} for name, by_arm in raw.items()
        }
        write_json(self.out / "results.json", encoded(self.results | {"raw": dicts}))
        updates_report.write(self.out, self.results)

    def draw(self, parts: Sequence[str]) -> None:
        """All pictures: each of them compares what several parts have measured."""
        updates_report.draw(self.out, self.results, self.curves)


# --- measures --------------------------------------------------------------------------------------------------------


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
    out = algo.policy(new.models["policy"].params, rows.obs, rows.mask)
    log_prob = algo.joint_log_prob(algo.log_probs(out, rows.action, rows.mask)[0])
    ratio = jnp.exp(jnp.minimum(log_prob - rows.log_prob, 20.0))
    weight = batch.valid / batch.valid.sum()
    advantage = rows.advantage.sum(-1)
    centred = advantage - (advantage * weight).sum()
    scaled = centred / jnp.sqrt((jnp.square(centred) * weight).sum() + 1e-12)
    return ((ratio - 1) * scaled * weight).sum()


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
    chosen = resolve_options(env, args, device, options, quick)
    path = UpdatesStudy.folder(env, out)
    study = UpdatesStudy(args, device, chosen, env=env, out=path, command=command)
    study.measure(console or Lines(quiet=True), f"{chosen.seeds} seeds, {chosen.budget:,} steps for each training")
    return study
