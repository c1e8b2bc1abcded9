"""What a study of update strategies compares: the strategies with their documented settings, and what they share."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regimen.config import layers
from regimen.config.schema import RolloutConfig, TrainConfig
from regimen.engines import device as devices
from regimen.envs import registry
from regimen.errors import ConfigError, nearest
from regimen.experiments.studies.bench import Recipe
from regimen.experiments.studies.frame import check_names, tuples

PARTS = ("race", "gradient", "overfit")  # and the metric that the environment gates, where there is one
MONTE_CARLO, GAE, REPLAY = "Monte Carlo", "GAE", "replay"
WHOLE = 1_000_000_000  # a minibatch larger than any batch: the full batch

# strategy -> (rollout, epochs): one episode at a time with 4 passes and 20,000 steps with 6 as in published trainers
# for this environment, 25 episodes side by side with 4, and 5 and 10 episodes with the 4 of batch training
STRATEGIES: dict[str, tuple[RolloutConfig, int]] = {
    "1 episode": (RolloutConfig(episodes=1), 4),
    "5 episodes": (RolloutConfig(episodes=5), 4),
    "10 episodes": (RolloutConfig(episodes=10), 4),
    "25 parallel": (RolloutConfig(episodes=25, num_envs=25), 4),
    "20,000 steps": (RolloutConfig(steps=20_000, num_envs=200), 6),
}
FORMS: dict[str, dict[str, object]] = {
    MONTE_CARLO: {"returns": "monte_carlo_z", "normalize_advantage": False},
    GAE: {"returns": "gae", "gae_lambda": 0.95, "normalize_advantage": True},
}
PPO = {
    "lr": 2e-3,
    "clip_eps": 0.2,
    "gamma": 0.99,
    "vf_coef": 0.5,
    "ent_coef": 0.01,
    "max_grad_norm": 0.5,
    "reward.heads": False,
    "lr_schedule": "constant",
    "clip_schedule": "constant",
    "ent_schedule": "constant",
}
SAC = {
    "lr": 3e-4,
    "tau": 0.005,
    "gamma": 0.99,
    "alpha": 0.2,
    "learn_alpha": False,
    "buffer_size": 100_000,
    "batch_size": 256,
    "update_ratio": 1.0,
    "learning_starts": 1000,
}
SHARED = {"network.hidden": (64, 64), "network.activation": "tanh"}


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
    seeds: int = 5
    seed: int = 0
    budget: int = 1_000_000  # env steps of each training
    replay_share: float = 0.03  # of the budget, for the replay: it takes a gradient step for every env step
    repeats: int = 64  # rollouts for each estimate of noise and of overfitting
    eval_episodes: int = 100
    checks: int = 40  # evaluations during a training
    gate: float = 0.95  # what the lower bound of the gated metric must reach
    workflow: str = "critical_first"  # the task for which the gated metric is measured
    gated: str = ""  # that metric, which is also the name of its part; empty: the environment has none
    gated_args: Mapping[str, object] = field(default_factory=dict)  # arguments of the environment for that task
    arms: tuple[Arm, ...] = ()  # made from the strategies

    def to_dict(self) -> Mapping[str, object]:
        return {name: getattr(self, name) for name in SETTINGS} | {"arms": [arm.name for arm in self.arms]}


SETTINGS = tuple(f.name for f in dataclasses.fields(UpdatesOptions) if f.name not in ("arms", "gated", "gated_args"))


QUICK: dict[str, object] = {
    "strategies": ("1 episode", "25 parallel", REPLAY),
    "seeds": 2,
    "budget": 50_000,
    "repeats": 8,
    "checks": 8,
}


def resolve_options(
    env: str, env_args: Mapping[str, object], device: str, choices: Mapping[str, object], quick: bool
) -> UpdatesOptions:
    """Python keywords or flags over the defaults; None stands for what was not given. A ConfigError for what cannot be
    measured."""
    changes = check_names(choices, SETTINGS)
    for name in ("parts", "strategies"):
        if isinstance(text := changes.get(name), str):
            changes[name] = [x.strip() for x in re.split(r";|,(?!\d{3})", text)]  # not the comma of 20,000
    o = dataclasses.replace(UpdatesOptions(), **((QUICK if quick else {}) | tuples(changes)))
    check_choice("strategies", o.strategies, (*STRATEGIES, REPLAY))
    for name, low in (("seeds", 1), ("budget", 1), ("repeats", 4), ("eval_episodes", 2), ("checks", 2)):
        if getattr(o, name) < low:
            value = getattr(o, name)
            raise ConfigError(f"--{name.replace('_', '-')}: {value} is out of range; it must be at least {low}")
    for name in ("gate", "replay_share"):
        if not 0 < getattr(o, name) <= 1:
            value = getattr(o, name)
            raise ConfigError(f"--{name.replace('_', '-')}: {value} is out of range; it must be above 0 and at most 1")
    devices.configure(device, registry.is_native(env))
    handle = registry.resolve(env, env_args)
    if handle.native is None:
        raise ConfigError(f"{handle.id}: the study compiles its trainings and needs a native environment")
    gated = getattr(handle.native, "gated_metric", "")
    every = (*PARTS, gated) if gated else PARTS
    parts = o.parts if "parts" in changes else every
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


def check_choice(flag: str, chosen: Sequence[str], choices: Sequence[str]) -> None:
    """Refuse an empty choice, and what is not among the choices."""
    for x in chosen:
        if x not in choices:
            raise ConfigError(f"--{flag}: '{x}' is not one of {'; '.join(choices)}{nearest(x, choices)}")
    if not chosen:
        raise ConfigError(f"--{flag}: nothing to measure; choose from {'; '.join(choices)}")


def arms_of(o: UpdatesOptions, limit: int) -> tuple[Arm, ...]:
    arms = []
    for name, (rollout, epochs) in STRATEGIES.items():
        for form, algo in FORMS.items():
            if name not in o.strategies:
                continue
            steps = rollout.steps or (rollout.episodes or 1) * limit
            regimen = Recipe(f"{name}, {form}", rollout, epochs, WHOLE, algo=tuple(algo.items()))
            arms.append(Arm(name, form, regimen, steps=steps))
    if REPLAY in o.strategies:
        regimen = Recipe(REPLAY, RolloutConfig(steps=25, num_envs=25), None, None)
        arms.append(Arm(REPLAY, REPLAY, regimen, "sac", o.replay_share, 50.0, 25))
    return tuple(arms)


def base_config(env: str, algorithm: str, env_args: dict[str, object], device: str) -> TrainConfig:
    """What all arms of an algorithm share. Schedules are constant and there is no curriculum."""
    algo = {f"algo.{name}": value for name, value in (PPO if algorithm == "ppo" else SAC).items()}
    settings = algo | SHARED | {"env_args": env_args, "device": device}
    return layers.build_config(env, algo=algorithm, overrides=settings).replace(curriculum={})
