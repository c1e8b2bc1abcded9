"""What a study of update strategies compares: the strategies with their documented settings, and what they share."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml

from regimen.config import layers
from regimen.config.fields import Natural, Range, Whole
from regimen.config.schema import RolloutConfig, TrainConfig
from regimen.envs import registry
from regimen.errors import ConfigError, nearest
from regimen.experiments.studies.bench import Recipe
from regimen.experiments.studies.frame import native_env, read_options

SETTINGS = yaml.safe_load(Path(__file__).with_name("strategies.yaml").read_text(encoding="utf-8"))
STRATEGIES: dict[str, dict[str, int]] = SETTINGS["strategies"]
FORMS: dict[str, dict[str, object]] = SETTINGS["forms"]
MONTE_CARLO, GAE = FORMS
REPLAY = "replay"
PARTS = ("race", "gradient", "overfit")  # and the metric that the environment gates, where there is one
WHOLE = 1_000_000_000  # a minibatch larger than any batch: the full batch
Share = Annotated[float, Range(0, 1, open=True)]


@dataclass(frozen=True)
class Arm:
    """One strategy with one form of returns."""

    strategy: str
    form: str
    regimen: Recipe
    algorithm: str = "ppo"
    share: float = 1.0  # of the budget
    cost: float = 1.0  # of an env step, in about: only for the time left
    steps: int = 0  # env steps of an update, in about

    @property
    def name(self) -> str:
        return self.strategy if self.form == REPLAY else f"{self.strategy}, {self.form}"


@dataclass(frozen=True)
class UpdatesOptions:
    """What is measured. The defaults are those of a full study, `QUICK` those of a quick one."""

    parts: tuple[str, ...] = PARTS
    strategies: tuple[str, ...] = (*STRATEGIES, REPLAY)
    targets: tuple[float, ...] = ()
    seeds: Natural = 5
    seed: Whole = 0
    budget: Natural = 1_000_000  # env steps of each training
    replay_share: Share = 0.03  # of the budget, for the replay: it takes a gradient step for every env step
    repeats: Annotated[int, Range(4)] = 64  # rollouts for each estimate of noise and of overfitting
    eval_episodes: Annotated[int, Range(2)] = 100
    checks: Annotated[int, Range(2)] = 40  # evaluations during a training
    gate: Share = 0.95  # what the lower bound of the gated metric must reach
    workflow: str = "critical_first"  # the task for which the gated metric is measured
    gated: str = ""  # that metric, which is also the name of its part; empty: the environment has none
    gated_args: Mapping[str, object] = field(default_factory=dict)  # arguments of the environment for that task
    arms: tuple[Arm, ...] = ()  # made from the strategies

    QUICK: ClassVar[Mapping[str, Any]] = {
        "strategies": ("1 episode", "25 parallel", REPLAY),
        "seeds": 2,
        "budget": 50_000,
        "repeats": 8,
        "checks": 8,
    }
    DERIVED: ClassVar = ("gated", "gated_args", "arms")

    def to_dict(self) -> Mapping[str, object]:
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in self.DERIVED}
        return settings | {"arms": [arm.name for arm in self.arms]}


def resolve_options(
    env: str, env_args: Mapping[str, object], device: str, choices: Mapping[str, object], quick: bool
) -> UpdatesOptions:
    """The options of Python keywords or flags, with what follows from them and the environment. A ConfigError for what
    cannot be measured."""
    changes = dict(choices)
    for name in ("parts", "strategies"):
        if isinstance(text := changes.get(name), str):
            changes[name] = [x.strip() for x in re.split(r";|,(?!\d{3})", text)]  # not the comma of 20,000
    o = read_options(UpdatesOptions, changes, UpdatesOptions.QUICK if quick else {}, UpdatesOptions.DERIVED)
    check_choice("strategies", o.strategies, (*STRATEGIES, REPLAY))
    handle = native_env(env, env_args, device)
    gated = getattr(handle.native, "gated_metric", "")
    every = (*PARTS, gated) if gated else PARTS
    parts = every if changes.get("parts") is None else o.parts
    check_choice("parts", parts, every)
    o = dataclasses.replace(o, parts=tuple(p for p in every if p in parts), gated=gated)
    if gated in o.parts:
        gated_args = handle.native.gated_args(o.workflow)  # type: ignore[attr-defined]
        registry.resolve(env, {**env_args, **gated_args})  # refuses what is no such task
        o = dataclasses.replace(o, gated_args=gated_args)
    if set(o.parts) & {"gradient", "overfit"} and set(o.strategies) == {REPLAY}:
        raise ConfigError(
            "--parts: gradient and overfit are measured on batches of the policy; name a strategy of them"
        )
    targets = o.targets or getattr(handle.native, "return_targets", ())
    if not targets and handle.return_threshold is not None:
        targets = (handle.return_threshold,)
    if not targets and "race" in o.parts:
        raise ConfigError(f"--targets: {handle.id} has no return threshold; give evaluation returns to reach")
    if any(not math.isfinite(t) for t in targets):
        raise ConfigError(f"--targets: {list(targets)} must be finite")
    return dataclasses.replace(o, targets=tuple(sorted(targets)), arms=arms_of(o, handle.max_episode_steps))


def check_choice(name: str, values: Sequence[str], choices: Sequence[str]) -> None:
    """Refuse an empty choice, and what is not among the choices."""
    for x in values:
        if x not in choices:
            raise ConfigError(f"--{name}: '{x}' is not one of {'; '.join(choices)}{nearest(x, choices)}")
    if not values:
        raise ConfigError(f"--{name}: nothing to measure; choose from {'; '.join(choices)}")


def arms_of(o: UpdatesOptions, limit: int) -> tuple[Arm, ...]:
    arms = []
    for name, settings in STRATEGIES.items():
        for form, algo in FORMS.items():
            if name not in o.strategies:
                continue
            rollout = RolloutConfig(**{k: n for k, n in settings.items() if k != "epochs"})
            steps = rollout.steps or (rollout.episodes or 1) * limit
            regimen = Recipe(f"{name}, {form}", rollout, settings["epochs"], WHOLE, algo=tuple(algo.items()))
            arms.append(Arm(name, form, regimen, steps=steps))
    if REPLAY in o.strategies:
        regimen = Recipe(REPLAY, RolloutConfig(steps=25, num_envs=25), None, None)
        arms.append(Arm(REPLAY, REPLAY, regimen, "sac", o.replay_share, 50.0, 25))
    return tuple(arms)


def base_config(env: str, algorithm: str, env_args: Mapping[str, object], device: str) -> TrainConfig:
    """What all arms of an algorithm share. Schedules are constant and there is no curriculum."""
    settings = SETTINGS[algorithm] | {"env_args": dict(env_args), "device": device}
    return layers.build_config(env, algo=algorithm, overrides=settings).replace(curriculum={})
