"""What a sweep tries: points of a grid and random draws, numbered, so that trial n is always the same.

Jax-free. `SweepPlan` is written to the sweep's folder; how its trials are trained is in `run.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regimen.config import layers, lookup, trust
from regimen.config.flags import parse_scalar
from regimen.config.regimen import resolve
from regimen.config.schema import ALGORITHMS, TrainConfig
from regimen.config.validation import field_types, optional
from regimen.envs import registry
from regimen.errors import ConfigError, StorageError, nearest
from regimen.files.sealed import load_object, reading, unseal, write_sealed

SCHEMA = 3  # 1 had no digest, 2 no method
SEALED = 2  # the first with a digest
DRAWS = 20  # trials of a random sweep that does not say how many
METHODS = ("random", "tpe", "halving", "pbt")
FACTOR, STRIDE = 1.25, 0.1  # one step of a setting: of its value, where its range is logarithmic, or of its range
KINDS = ("uniform", "log", "int", "logint", "choice")
PLAN, DATABASE = "plan.json", "study.db"
Scalar = None | bool | int | float | str
OF_EVERY_ENV = ("return_mean", "length_mean", "success_rate")  # evaluation metrics that no environment declares


@dataclass(frozen=True)
class Draw:
    """A distribution of one setting."""

    kind: str
    low: float = 0.0
    high: float = 1.0
    choices: tuple[Scalar, ...] = ()

    @classmethod
    def parse(cls, key: str, text: str) -> Draw:
        """`log:1e-4:1e-1`, `uniform:0:1`, `int:1:8`, `logint:16:1024` or `choice:relu:tanh`."""
        kind, *rest = text.split(":")
        if kind not in KINDS:
            raise ConfigError(f"--random {key}: unknown distribution '{kind}'{nearest(kind, KINDS)}")
        if kind == "choice":
            if len(rest) < 2:
                raise ConfigError(f"--random {key}: a choice needs at least two options, as in choice:relu:tanh")
            return cls(kind, choices=tuple(parse_scalar(item) for item in rest))
        try:
            low, high = (float(item) for item in rest)
        except ValueError:
            raise ConfigError(f"--random {key}: '{text}' is not {kind}:LOW:HIGH, as in {kind}:1:10") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"--random {key}: {low:g} to {high:g} is not a range; the lower end comes first")
        if kind in ("log", "logint") and low <= 0:
            raise ConfigError(f"--random {key}: a logarithmic range begins above 0, not at {low:g}; use uniform")
        return cls(kind, low, high)

    def at(self, u: float) -> Scalar:
        """The value at a share `u` in [0, 1) of the distribution."""
        if self.kind == "choice":
            return self.choices[int(u * len(self.choices))]
        if self.kind == "uniform":
            return self.low + u * (self.high - self.low)
        if self.kind == "log":
            return self.low * (self.high / self.low) ** u
        low, high = math.ceil(self.low), math.floor(self.high)
        if self.kind == "int":
            return low + int(u * (high - low + 1))
        return min(high, math.floor(low * ((high + 1) / low) ** u))

    def step(self, value: float, up: bool) -> float:
        """A value one step up or down, within the range."""
        if self.logarithmic:
            value = value * FACTOR if up else value / FACTOR
        else:
            value += (self.high - self.low) * (STRIDE if up else -STRIDE)
        return min(max(value, self.low), self.high)

    @property
    def logarithmic(self) -> bool:
        return self.kind in ("log", "logint")


@dataclass(frozen=True)
class SweepPlan:
    """Everything that decides a sweep's trials."""

    env: str | None
    overrides: dict[str, object]  # settings that all trials share
    grid: dict[str, tuple[object, ...]]
    random: dict[str, Draw]
    trials: int
    seeds: int = 1
    config_file: str | None = None
    metric: str = "return_mean"
    lower: bool = False
    sampler: str = "random"
    prune: bool = True
    together: bool = True  # one compiled program where that is possible
    draw_seed: int = 0
    method: str = "random"  # or of METHODS
    every: int | None = None  # updates between two rounds of a population
    share: float | None = None  # pbt: of the members that take over; halving: of the trials that go on
    objectives: dict[str, bool] = dataclasses.field(default_factory=dict)  # several metrics: whether smaller is better
    horizon: str | None = None  # length of the schedules, where the budget has grown since they were begun
    schema: int = SCHEMA

    @property
    def keys(self) -> tuple[str, ...]:
        return (*self.grid, *self.random)

    @property
    def named(self) -> set[str]:
        """Full names of the settings that all trials share by the command."""
        return set(layers.flatten(self.overrides, self.config(self.draw(0)).algorithm))

    def numbers(self, n: int) -> dict[str, float]:
        """The settings of trial n that are numbers."""
        return {key: float(v) for key, v in self.draw(n).items() if isinstance(v, (int, float))}

    def draw(self, n: int) -> dict[str, object]:
        """The settings of trial n: the grid's points in turn, and draws that depend on nothing but n."""
        points = list(itertools.product(*self.grid.values()))
        out = dict(zip(self.grid, points[n % len(points)]))
        for key, one in self.random.items():
            u = np.random.default_rng([self.draw_seed, n, zlib.crc32(key.encode())]).random()
            out[key] = one.at(float(u))
        return out

    def config(self, point: Mapping[str, object]) -> TrainConfig:
        """The configuration of a trial, without a place to write to."""
        settings = self.overrides | dict(point) | ({} if self.seeds == 1 else {"seeds": self.seeds})
        trial = ", ".join(f"{k} {v}" for k, v in point.items())
        try:
            config = layers.build_config(self.env, config_file=self.config_file, overrides=settings)
            if self.horizon is None or config.common.horizon is not None:
                return config
            return config.replace(algo=dataclasses.replace(config.algo, horizon=self.horizon))
        except lookup.UnknownSettingError:
            raise
        except ConfigError as error:
            raise ConfigError(f"{error} (trial with {trial})") from error

    def in_one_program(self) -> str | None:
        """None where the trials differ only in numbers of one program on a native environment, else why they do not."""
        from regimen.config.catalogue import ENVS

        if not self.together:
            return "--one-by-one"
        if self.sampler != "random":
            return f"--sampler {self.sampler} learns from one trial what to try next"
        first = self.config(self.draw(0))
        if first.env not in ENVS and not first.env.startswith("gymnax:"):
            return f"{first.env} is not a native environment"
        algorithm = ALGORITHMS[first.algorithm].load()
        if first.data is not None or not algorithm.varies_together:
            return f"{first.algorithm} is trained one by one"
        if first.engine.distributed or first.policy_map != "shared" or first.frozen:
            return "workers and several policies are trained one by one"
        types = field_types(type(first.algo))
        for key in self.keys:
            section, _, name = key.rpartition(".")
            if section != "algo" or optional(types.get(name))[0] is not float:
                return f"{key} is not a number that one compiled program can vary"
            if name in algorithm.counting:
                return f"{key} changes how many gradient steps there are"
            values = [v for n in range(self.trials) if isinstance(v := self.draw(n)[key], (int, float))]
            sometimes_zero = name in algorithm.shaping and len({v == 0 for v in values}) > 1
            if len(values) < self.trials or sometimes_zero:
                return f"{key} is switched off in some trials"
            ends = [self.config({**self.draw(0), key: value}) for value in (min(values), max(values))]
            if ends[0].env_args != ends[1].env_args:  # where shaping has the learner's discount
                return f"{key} changes the environment too"
        return None

    def save(self, folder: Path) -> None:
        write_sealed(folder / PLAN, asdict(self), SCHEMA)

    @classmethod
    def load(cls, folder: Path) -> SweepPlan:
        path = folder / PLAN
        if not path.exists():
            raise StorageError(f"{folder} is not a sweep: it has no {PLAN}; name an environment to begin one")
        with reading(path):
            data = trust.named(unseal(load_object(path), str(path), SEALED), path)
            if data["schema"] > SCHEMA:
                raise StorageError(f"{folder} was written by a newer version (schema {data['schema']} > {SCHEMA})")
            data["grid"] = {k: tuple(v) for k, v in data["grid"].items()}
            data["random"] = {k: Draw(**(v | {"choices": tuple(v["choices"])})) for k, v in data["random"].items()}
            return cls(**data | {"schema": SCHEMA})


def make_plan(
    env: str | None,
    grid: Sequence[str] = (),
    random: Sequence[str] = (),
    trials: int | None = None,
    overrides: Mapping[str, object] | None = None,
    lower: bool | None = None,
    *,
    seeds: int | None = None,
    metric: str = "return_mean",
    objectives: Sequence[str] = (),
    **more: Any,
) -> SweepPlan:
    """A plan from texts such as `algo.lr=1e-4,3e-4`; every trial that is known now is checked. `more` are other fields
    of the plan."""
    shared = {k: v for k, v in (overrides or {}).items() if k != "out"}
    algorithm = str(shared.get("algorithm") or "ppo")
    texts = read_pairs(grid, "--grid", algorithm)
    lists = {k: tuple(parse_scalar(v) for v in split(text)) for k, text in texts.items()}
    draws = {k: Draw.parse(k, text) for k, text in read_pairs(random, "--random", algorithm).items()}
    if not lists and not draws:
        raise ConfigError("nothing to try: give --grid KEY=A,B,... or --random KEY=log:LOW:HIGH")
    for key in lists:
        if key in draws:
            raise ConfigError(f"{key}: named by --grid and by --random; choose one")
        if len(set(map(str, lists[key]))) < len(lists[key]):
            raise ConfigError(f"--grid {key}: a value is named twice")
    points = math.prod(len(v) for v in lists.values())
    if trials is None:
        trials = max(points, DRAWS) if draws else points
    if trials < points:
        raise ConfigError(f"--trials: the grid has {points} points; {trials} trials would leave some of them out")
    if trials > points and not draws:
        raise ConfigError(f"--trials: the grid has {points} points, and nothing else differs; use --seeds for repeats")
    metrics = [name.removeprefix("eval/") for name in objectives or [metric]]
    metric = metrics[0]
    plan = SweepPlan(env, shared, lists, draws, trials, seeds or 1, metric=metric, lower=bool(lower), **more)
    for n in range(trials):
        config = plan.config(plan.draw(n))
        resolve(config, native=True)
    if lower is None and not set(metrics) <= set(OF_EVERY_ENV):
        declared = registry.resolve(config.env, config.env_args).metrics
        better = {name: name in declared and declared[name].better == "lower" for name in metrics}
        plan = dataclasses.replace(plan, lower=better[metric])
    else:
        better = dict.fromkeys(metrics, bool(lower))
    if objectives:
        plan = dataclasses.replace(plan, objectives=require_objectives(better, metrics, lower), prune=False)
    return with_method(plan)


def require_objectives(better: dict[str, bool], metrics: list[str], lower: bool | None) -> dict[str, bool]:
    """Several objectives, each with whether smaller is better; refused where they are not several."""
    if len(better) < len(metrics) or len(metrics) < 2:
        raise ConfigError(f"--objective: {', '.join(metrics)}: name two metrics or more, each once; one is --metric")
    if lower is not None:
        raise ConfigError("--lower: the environment says it of each objective; leave it out")
    return better


def with_method(plan: SweepPlan) -> SweepPlan:
    """The plan with what its method leaves open; refused where the method cannot do it."""
    from regimen.experiments.sweep import halving, population  # they are told a plan

    if plan.every is not None and plan.method != "pbt":
        raise ConfigError("--every: only --method pbt has rounds; leave it out")
    if plan.share is not None and plan.method not in ("pbt", "halving"):
        raise ConfigError("--share: only --method pbt and halving have one; leave it out")
    if plan.method == "tpe":
        if not plan.random:
            raise ConfigError("--method tpe: chooses what is drawn; give --random KEY=log:LOW:HIGH")
        return dataclasses.replace(plan, sampler="tpe")
    if plan.method in ("pbt", "halving") and plan.sampler != "random":
        raise ConfigError(f"--sampler {plan.sampler}: --method {plan.method} draws by itself; leave it out")
    if plan.objectives and plan.method in ("pbt", "halving"):
        raise ConfigError(f"--objective: --method {plan.method} selects by one metric; use --metric, or --method tpe")
    if plan.method == "pbt":
        plan = population.with_every(plan)
        population.require_population(plan)
    elif plan.method == "halving":
        halving.require_rungs(plan)
    return plan


def read_pairs(texts: Sequence[str], flag: str, algorithm: str) -> dict[str, str]:
    """`KEY=TEXT` by the full name of the setting."""
    out: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise ConfigError(f"{flag}: '{text}' is not KEY=VALUES")
        key = lookup.normalize_key(name)
        algorithms = [a for a in (algorithm, *ALGORITHMS) if a in ALGORITHMS]
        setting = next((k for a in algorithms if (k := lookup.resolve_key(key, a)) is not None), None)
        if setting is None:
            raise lookup.UnknownSettingError({key: None}, algorithms[0], f"{flag}: ")
        if setting in ("seed", "seeds", "out", "env", "preset"):
            raise ConfigError(f"{flag} {setting}: not a setting to sweep over; seeds are given by --seeds")
        if setting in out:
            raise ConfigError(f"{flag} {setting}: given twice")
        out[setting] = value
    return out


def split(text: str) -> list[str]:
    """Values separated by commas, those within brackets apart: `[64,64],[128]` are two."""
    return [item.strip() for item in re.split(r",(?![^\[]*\])", text) if item.strip()]
