"""What a batching study measures, and what all its trainings share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.engines import device as devices
from regimen.envs import registry
from regimen.errors import ConfigError, nearest
from regimen.experiments.studies.frame import check_names, tuples

PARTS = ("gradient", "target", "epochs", "rates", "outlier")
PRESETS = ("single_episode", "parallel_25", "big_batch")
SCHEDULES = ("lr_schedule", "clip_schedule", "ent_schedule")
BUDGET = 200_000  # env steps, where the environment's own settings do not say


@dataclass(frozen=True)
class BatchingOptions:
    """What is measured. The defaults are those of a full study, `QUICK` those of a quick one."""

    parts: tuple[str, ...] = PARTS
    sizes: tuple[int, ...] = (1, 5, 10, 20)  # episodes per update
    gradient_sizes: tuple[int, ...] = (1, 5, 10, 20, 50)
    presets: tuple[str, ...] = PRESETS
    seeds: int = 10
    seed: int = 0
    budget: int | None = None  # env steps of each training
    target: float | None = None  # evaluation return to reach
    repeats: int = 200  # rollouts per gradient estimate
    epochs: int = 4
    epochs_tried: tuple[int, ...] = (1, 2, 4, 6)
    epochs_at: int = 10  # episodes per update there
    minibatch_size: int = 64
    lr: float | None = None
    rates: tuple[float, ...] = (1 / 3, 1.0, 3.0)
    factor: float = 100.0  # of an outlier's rewards
    eval_episodes: int = 20
    checks: int = 40  # evaluations during a training

    def check(self) -> BatchingOptions:
        """Ordered and unique where that matters; a ConfigError, one line, for what cannot be measured."""
        for part in self.parts:
            if part not in PARTS:
                raise ConfigError(f"--parts: '{part}' is not a part{nearest(part, PARTS)}")
        if not self.parts:
            raise ConfigError(f"--parts: nothing to measure; choose from {', '.join(PARTS)}")
        for name in ("sizes", "gradient_sizes", "epochs_tried"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                flag = "--sizes" if name != "epochs_tried" else name
                raise ConfigError(f"{flag}: {list(values)} must hold whole numbers of at least 1")
        for name in ("seeds", "budget", "repeats", "epochs", "epochs_at", "minibatch_size", "eval_episodes", "checks"):
            value, low = getattr(self, name), {"repeats": 4, "checks": 2}.get(name, 1)
            if value is not None and value < low:
                raise ConfigError(f"--{name.replace('_', '-')}: {value} is out of range; it must be at least {low}")
        for name, value in (("--factor", self.factor), *(("rates", rate) for rate in self.rates)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}: {value} is out of range; it must be greater than 0")
        ordered = {n: tuple(sorted(set(getattr(self, n)))) for n in ("sizes", "gradient_sizes", "epochs_tried")}
        return dataclasses.replace(self, **ordered, parts=tuple(p for p in PARTS if p in self.parts))


QUICK = {
    "sizes": (1, 10),
    "gradient_sizes": (1, 10),
    "presets": ("single_episode",),
    "seeds": 3,
    "budget": 20_000,
    "repeats": 48,
    "epochs_tried": (1, 4),
    "eval_episodes": 10,
    "checks": 16,
}


def resolve_options(choices: Mapping[str, object], quick: bool) -> BatchingOptions:
    """Python keywords or flags over the defaults; None stands for what was not given."""
    changes = check_names(choices, [f.name for f in dataclasses.fields(BatchingOptions)])
    if isinstance(parts := changes.get("parts"), str):
        changes["parts"] = parts.replace(",", " ").split()
    if "sizes" in changes:
        changes.setdefault("gradient_sizes", changes["sizes"])
    return dataclasses.replace(BatchingOptions(), **((QUICK if quick else {}) | tuples(changes))).check()


def prepare(
    env: str,
    options: BatchingOptions,
    preset: str | None,
    env_args: dict[str, object],
    device: str,
    overrides: dict[str, object],
) -> tuple[TrainConfig, registry.EnvHandle, BatchingOptions]:
    """What all trainings share. Schedules are held constant and there is no curriculum: with them, the budget would
    decide the learning rate and the task."""
    settings = overrides | {"env_args": env_args, "device": device, "algo.epochs": options.epochs}
    settings |= {"algo.minibatch_size": options.minibatch_size} | {f"algo.{name}": "constant" for name in SCHEDULES}
    if options.lr is not None:
        settings["algo.lr"] = options.lr
    config = layers.build_config(env, preset=preset, overrides=settings).replace(curriculum={})
    devices.configure(config.device, registry.is_native(env))
    handle = registry.resolve(env, config.env_args)
    if handle.native is None:
        twin = next((n for n, e in registry.ENVS.items() if e.gym_id and f"gym:{e.gym_id}" == handle.id), None)
        hint = f"; did you mean '{twin}'?" if twin else "; `regimen envs` lists them"
        raise ConfigError(f"{handle.id}: the study compiles its trainings and needs a native environment{hint}")
    target = options.target if options.target is not None else handle.return_threshold
    if target is None and set(options.parts) - {"gradient"}:
        raise ConfigError(f"--target: {handle.id} has no return threshold; give the evaluation return to reach")
    budget = options.budget or config.total_steps or BUDGET
    return config, handle, dataclasses.replace(options, target=target, budget=budget)
