"""What a batching study measures, and what all its trainings share."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from regimen.config import layers
from regimen.config.fields import Natural, Positive, Range, Whole
from regimen.config.schema import TrainConfig
from regimen.engines import device as devices
from regimen.envs import registry
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError, nearest
from regimen.experiments.studies.frame import flag, read_options

PARTS = ("gradient", "target", "epochs", "rates", "outlier")
PRESETS = ("single_episode", "parallel_25", "big_batch")
COMPILED = ("gradient", "outlier")  # parts that begin again and again at one state, which takes a native environment
SCHEDULES = ("lr_schedule", "clip_schedule", "ent_schedule")
BUDGET = 200_000  # env steps, where the environment's own settings do not say


@dataclass(frozen=True)
class BatchingOptions:
    """What is measured. The defaults are those of a full study, `QUICK` those of a quick one."""

    parts: tuple[str, ...] = PARTS
    sizes: tuple[Natural, ...] = (1, 5, 10, 20)  # episodes per update
    gradient_sizes: tuple[Natural, ...] = (1, 5, 10, 20, 50)
    presets: tuple[str, ...] = PRESETS
    seeds: Natural = 10
    seed: Whole = 0
    budget: Natural | None = None  # env steps of each training
    target: float | None = None  # evaluation return to reach
    repeats: Annotated[int, Range(4)] = 200  # rollouts per gradient estimate
    epochs: Natural = 4
    epochs_tried: tuple[Natural, ...] = (1, 2, 4, 6)
    epochs_at: Natural = 10  # episodes per update there
    minibatch_size: Natural = 64
    lr: Positive | None = None
    rates: tuple[Positive, ...] = (1 / 3, 1.0, 3.0)
    factor: Positive = 100.0  # of an outlier's rewards
    eval_episodes: Natural = 20
    checks: Annotated[int, Range(2)] = 40  # evaluations during a training

    QUICK: ClassVar[Mapping[str, Any]] = {
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
    """The options of Python keywords or flags, ordered and unique where that matters."""
    changes = {name: value for name, value in choices.items() if value is not None}
    if "sizes" in changes:
        changes.setdefault("gradient_sizes", changes["sizes"])
    o = read_options(BatchingOptions, changes, BatchingOptions.QUICK if quick else {})
    for part in o.parts:
        if part not in PARTS:
            raise ConfigError(f"--parts: '{part}' is not a part{nearest(part, PARTS)}")
    ordered: dict[str, Any] = {
        n: tuple(sorted(set(getattr(o, n)))) for n in ("sizes", "gradient_sizes", "epochs_tried")
    }
    ordered["parts"] = tuple(part for part in PARTS if part in o.parts)
    for name, values in ordered.items():
        if not values:
            choose = f"; choose from {', '.join(PARTS)}" if name == "parts" else ""
            raise ConfigError(f"{flag(name)}: nothing to measure{choose}")
    return dataclasses.replace(o, **ordered)


def prepare(
    env: str,
    options: BatchingOptions,
    preset: str | None,
    env_args: dict[str, object],
    device: str,
    overrides: dict[str, object],
) -> tuple[TrainConfig, EnvHandle, BatchingOptions]:
    """The configuration that all trainings share. Schedules are held constant and there is no curriculum: with them,
    the budget would decide the learning rate and the task."""
    settings = overrides | {"env_args": env_args, "device": device, "algo.epochs": options.epochs}
    settings |= {"algo.minibatch_size": options.minibatch_size} | {f"algo.{name}": "constant" for name in SCHEDULES}
    if options.lr is not None:
        settings["algo.lr"] = options.lr
    config = layers.build_config(env, preset=preset, overrides=settings).replace(curriculum={})
    devices.configure(config.device, registry.is_native(env))
    handle = registry.resolve(env, config.env_args)
    if handle.native is None:
        options = dataclasses.replace(options, parts=parts_in_python(options.parts, handle.id))
    target = options.target if options.target is not None else handle.return_threshold
    if target is None and set(options.parts) - {"gradient"}:
        raise ConfigError(f"--target: {handle.id} has no return threshold; give the evaluation return to reach")
    budget = options.budget or config.total_steps or BUDGET
    return config, handle, dataclasses.replace(options, target=target, budget=budget)


def parts_in_python(parts: tuple[str, ...], env: str) -> tuple[str, ...]:
    """What can be measured on an environment that Python steps: of all parts those that only train; refused where only
    the others are asked for."""
    rest = tuple(part for part in parts if part not in COMPILED)
    if parts == PARTS or rest == parts:
        return rest
    wanted = ", ".join(part for part in parts if part in COMPILED)
    raise ConfigError(
        f"--parts: {wanted} begin many rollouts at one state, which takes a native environment; {env} is stepped in "
        f"Python, choose from {', '.join(part for part in PARTS if part not in COMPILED)}"
    )
