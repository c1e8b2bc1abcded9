"""Types and ranges: every hyper-parameter is read by `coerce` and checked by `validate`. Jax-free."""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Union

from regimen.config import (
    ALGORITHMS,
    CheckpointConfig,
    Count,
    EngineConfig,
    EvalConfig,
    LogConfig,
    NetworkConfig,
    RolloutConfig,
    StopConfig,
    TrainConfig,
)
from regimen.empowerment.hyperparameters import NETS, EmpowermentConfig
from regimen.errors import ConfigError, nearest
from regimen.hyperparameters import APPOConfig, BCConfig, CQLConfig, IMPALAConfig, PPOConfig, RewardConfig, SACConfig
from regimen.training import curriculum

TRUE, FALSE, NONE = ("true", "yes", "on", "1"), ("false", "no", "off", "0"), ("none", "null", "")


# --- types -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def field_types(cls: type) -> dict[str, Any]:
    """Field name -> resolved type hint of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def optional(hint: Any) -> tuple[Any, bool]:
    """(the type without None, whether None is allowed)."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        inner = [a for a in typing.get_args(hint) if a is not type(None)]
        return (inner[0] if len(inner) == 1 else hint), len(inner) < len(typing.get_args(hint))
    return hint, hint is Any


def type_name(hint: Any) -> str:
    """A type in the words of an error message."""
    inner, can_be_none = optional(hint)
    if typing.get_origin(inner) is Literal:
        words = "one of " + ", ".join(str(a) for a in typing.get_args(inner))
    elif typing.get_origin(inner) in (Union, types.UnionType):
        words = " or ".join(type_name(a).removeprefix("one of ") for a in typing.get_args(inner))
    elif typing.get_origin(inner) in (tuple, list):
        words = f"a list, each item {type_name(typing.get_args(inner)[0])}"
    else:
        named = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}
        words = named.get(typing.get_origin(inner) or inner, str(inner))
    return words + (" or none" if can_be_none else "")


def _number(value: Any) -> float | int:
    """The finite number that `value` is or spells (`1e6`, `1_000_000`); ValueError for anything else."""
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, str):
        text = value.strip()
        try:
            value = int(text)
        except ValueError:
            value = float(text)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError
    return value


def _coerce(value: Any, hint: Any) -> Any:
    """`value` as the type `hint`; ValueError when it is none."""
    if dataclasses.is_dataclass(hint) or hint is Any:
        return value
    if hint is bool:
        text = str(value).strip().lower()
        if not isinstance(value, (bool, int, str)) or text not in TRUE + FALSE:
            raise ValueError
        return text in TRUE
    if hint is int:
        number = _number(value)
        if number != int(number):
            raise ValueError
        return int(number)
    if hint is float:
        return float(_number(value))
    if hint is str:
        if isinstance(value, (os.PathLike, Count)):
            return str(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):  # `eval.every: 10` in YAML
            number = _number(value)
            return str(int(number)) if number == int(number) else str(number)
        if not isinstance(value, str):
            raise ValueError
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        for choice in args:
            if value == choice or (isinstance(value, str) and value.replace("-", "_") == str(choice)):
                return choice
        raise ValueError
    if origin in (tuple, list):
        if isinstance(value, str):
            value = value.strip().strip("[]()").replace(",", " ").split()
        elif isinstance(value, (int, float)):
            value = [value]
        if not isinstance(value, (tuple, list)):
            raise ValueError
        inner = [args[0]] * len(value) if origin is list or args[-1] is ... else list(args)
        if len(inner) != len(value):
            raise ValueError
        return origin(coerce(v, t) for v, t in zip(value, inner))
    if (origin or hint) is dict:
        if not isinstance(value, Mapping):
            raise ValueError
        return {str(k): v for k, v in value.items()}
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _coerce(value, option)
            except ValueError:
                continue
        raise ValueError
    if isinstance(value, hint):
        return value
    raise ValueError


def coerce(value: Any, hint: Any, where: str = "value") -> Any:
    """`value` as the type `hint`, or a ConfigError that names the key, the value and the type expected.

    >>> coerce("1e6", int), coerce([64, 64], tuple[int, ...]), coerce("none", float | None)
    (1000000, (64, 64), None)
    """
    inner, can_be_none = optional(hint)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        value = value.item()
    if can_be_none and (value is None or (isinstance(value, str) and value.strip().lower() in NONE)):
        return None
    try:
        return _coerce(value, inner)
    except (ValueError, OverflowError, TypeError, ConfigError):
        shown = repr(value) if isinstance(value, str) else "none" if value is None else str(value)
        hint_text = nearest(str(value), typing.get_args(inner)) if typing.get_origin(inner) is Literal else ""
        raise ConfigError(f"{where}: {shown} is not {type_name(hint)}{hint_text.split('; choose')[0]}") from None


# --- ranges ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """An interval, its lower end open when `open` is set."""

    low: float
    high: float = math.inf
    open: bool = False

    def __contains__(self, value: float) -> bool:
        return (value > self.low if self.open else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"greater than {self.low:,}" if self.open else f"at least {self.low:,}"
        return f"greater than {self.low:,} and at most {self.high:,}" if self.open else f"{self.low:,} to {self.high:,}"


POSITIVE, NOT_NEGATIVE, FRACTION, AT_LEAST_1 = Range(0, open=True), Range(0), Range(0, 1), Range(1)

IMPALA_RANGES = {
    "lr": POSITIVE,
    "lr_end": NOT_NEGATIVE,
    "ent_coef": NOT_NEGATIVE,
    "ent_end": NOT_NEGATIVE,
    "gamma": FRACTION,
    "trace_lambda": FRACTION,
    "rho_clip": POSITIVE,
    "c_clip": POSITIVE,
    "pg_rho_clip": POSITIVE,
    "max_lag": NOT_NEGATIVE,
    "minibatch_size": AT_LEAST_1,
    "sequence_length": AT_LEAST_1,
    "vf_coef": NOT_NEGATIVE,
    "max_grad_norm": NOT_NEGATIVE,
    "log_std_init": Range(-20, 5),
}

RANGES: dict[type, dict[str, Range]] = {
    TrainConfig: {
        "seed": Range(0, 2**31 - 1),
        "seeds": Range(1, 10_000),
        "total_steps": AT_LEAST_1,
        "total_episodes": AT_LEAST_1,
        "devices": AT_LEAST_1,
    },
    RolloutConfig: {"steps": AT_LEAST_1, "episodes": AT_LEAST_1, "num_envs": AT_LEAST_1, "lag": Range(0, 1000)},
    NetworkConfig: {"hidden": AT_LEAST_1, "memory_size": AT_LEAST_1},
    PPOConfig: {
        "lr": POSITIVE,
        "lr_end": NOT_NEGATIVE,
        "clip_eps": POSITIVE,
        "clip_end": NOT_NEGATIVE,
        "ent_coef": NOT_NEGATIVE,
        "ent_end": NOT_NEGATIVE,
        "gamma": FRACTION,
        "gae_lambda": FRACTION,
        "n_step": AT_LEAST_1,
        "epochs": AT_LEAST_1,
        "minibatch_size": AT_LEAST_1,
        "micro_batch_size": AT_LEAST_1,
        "sequence_length": AT_LEAST_1,
        "vf_coef": NOT_NEGATIVE,
        "vf_clip": POSITIVE,
        "max_grad_norm": NOT_NEGATIVE,
        "target_kl": POSITIVE,
        "kl_coef": NOT_NEGATIVE,
        "kl_target": POSITIVE,
        "log_std_init": Range(-20, 5),
        "ent_discrete": NOT_NEGATIVE,
        "ent_continuous": NOT_NEGATIVE,
        "ent_floor_coef": NOT_NEGATIVE,
        "balance_warmup": NOT_NEGATIVE,
    },
    IMPALAConfig: IMPALA_RANGES,
    APPOConfig: IMPALA_RANGES
    | {"clip_eps": POSITIVE, "is_clip": AT_LEAST_1, "target_every": AT_LEAST_1, "epochs": AT_LEAST_1},
    SACConfig: {
        "lr": POSITIVE,
        "critic_lr": POSITIVE,
        "alpha_lr": POSITIVE,
        "gamma": FRACTION,
        "tau": FRACTION,
        "batch_size": AT_LEAST_1,
        "buffer_size": AT_LEAST_1,
        "update_ratio": NOT_NEGATIVE,
        "learning_starts": NOT_NEGATIVE,
        "n_step": AT_LEAST_1,
        "policy_delay": AT_LEAST_1,
        "alpha": POSITIVE,
        "target_entropy_continuous": Range(-20, 0.69),
        "target_entropy_discrete": FRACTION,
        "exact_choices": AT_LEAST_1,
        "max_grad_norm": NOT_NEGATIVE,
    },
    RewardConfig: {"warmup": NOT_NEGATIVE, "weight_lr": NOT_NEGATIVE, "weight_reg": NOT_NEGATIVE},
    BCConfig: {
        "lr": POSITIVE,
        "lr_end": NOT_NEGATIVE,
        "batch_size": AT_LEAST_1,
        "max_grad_norm": NOT_NEGATIVE,
        "ent_coef": NOT_NEGATIVE,
        "behaviour_steps": AT_LEAST_1,
    },
    EvalConfig: {"episodes": AT_LEAST_1},
    CheckpointConfig: {"keep": AT_LEAST_1, "keep_best": AT_LEAST_1},
    StopConfig: {
        "convergence_window": AT_LEAST_1,
        "patience": NOT_NEGATIVE,
        "streak": AT_LEAST_1,
        "zero_conflict_streak": AT_LEAST_1,
        "perfect_streak": AT_LEAST_1,
        "band_steps": AT_LEAST_1,
        "band_share": FRACTION,
        "bands": AT_LEAST_1,
        "min_bands": AT_LEAST_1,
        "no_improvement": AT_LEAST_1,
        "max_seconds": POSITIVE,
    },
    EngineConfig: {
        "workers": Range(0, 4096),
        "step_timeout": NOT_NEGATIVE,
        "restarts": NOT_NEGATIVE,
        "queue": AT_LEAST_1,
        "cpus": NOT_NEGATIVE,
    },
}
RANGES[CQLConfig] = RANGES[SACConfig] | {
    "min_q_weight": NOT_NEGATIVE,
    "cql_samples": AT_LEAST_1,
    "lagrange": Range(-1e6, 1e6),
    "bc_steps": NOT_NEGATIVE,
    "reward_scale": POSITIVE,
    "behaviour_steps": AT_LEAST_1,
    "online_steps": NOT_NEGATIVE,
    "online_q_weight": NOT_NEGATIVE,
}
"""Ranges of the numbers, by dataclass; `register_algorithm` users add their own here or give a `validate` method."""

BELOW_0 = Range(-1e12, -1e-30)
_BY_NET = {
    "lr_{}": POSITIVE,
    "{}_target_update_interval": AT_LEAST_1,
    "{}_weight_decay": NOT_NEGATIVE,
    "{}_grad_clip": NOT_NEGATIVE,
    "{}_dropout": Range(0, 0.99),
    "warmup_{}_steps": NOT_NEGATIVE,
}
RANGES[EmpowermentConfig] = {pattern.format(net): r for net in NETS for pattern, r in _BY_NET.items()} | {
    "gamma_r": Range(0, 1, open=True),
    "gamma_h": Range(0, 1, open=True),
    "zeta": AT_LEAST_1,
    "xi": AT_LEAST_1,
    "eta": AT_LEAST_1,
    "beta_r": NOT_NEGATIVE,
    "terminal_v_r": BELOW_0,
    "lookup_default_q_r": BELOW_0,
    "lookup_default_v_r": BELOW_0,
    "nu_h": FRACTION,
    "epsilon_r_start": FRACTION,
    "epsilon_r_end": FRACTION,
    "epsilon_r_decay_steps": NOT_NEGATIVE,
    "epsilon_h_start": FRACTION,
    "epsilon_h_end": FRACTION,
    "epsilon_h_decay_steps": NOT_NEGATIVE,
    "goal_resample_prob": FRACTION,
    "state_sweep": FRACTION,
    "lr_constant_fraction": FRACTION,
    "beta_r_rampup_steps": NOT_NEGATIVE,
    "num_training_steps": AT_LEAST_1,
    "buffer_size": AT_LEAST_1,
    "batch_size": AT_LEAST_1,
    "x_h_batch_size": AT_LEAST_1,
    "training_steps_per_env_step": POSITIVE,
    "steps_per_episode": AT_LEAST_1,
    "u_r_sample_humans": AT_LEAST_1,
    "x_h_sample_humans": AT_LEAST_1,
    "exact_limit": AT_LEAST_1,
    "human_samples": AT_LEAST_1,
    "table_limit": AT_LEAST_1,
    "hidden_dim": AT_LEAST_1,
    "lookup_default_v_h_e": FRACTION,
    "lookup_default_x_h": POSITIVE,
    "lookup_default_y": POSITIVE,
    "num_actors": AT_LEAST_1,
    "actor_sync_freq": AT_LEAST_1,
    "max_env_steps_per_training_step": POSITIVE,
}

COUNTS: dict[type, tuple[str, ...]] = {
    EmpowermentConfig: ("horizon",),
    PPOConfig: ("horizon",),
    IMPALAConfig: ("horizon",),
    BCConfig: ("horizon",),
    EvalConfig: ("every",),
    LogConfig: ("every",),
    CheckpointConfig: ("every",),
}
"""Fields read by `Count.parse`."""


def _walk(config: Any, prefix: str = "") -> Iterator[tuple[str, type, str, Any]]:
    """(dotted key, owner, field name, value) of every leaf of a configuration."""
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _walk(value, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name, type(config), f.name, value


def _inherited(table: dict[type, Any], cls: type) -> Any:
    return next((table[c] for c in cls.__mro__ if c in table), ())


def validate(config: TrainConfig) -> TrainConfig:
    """Check types, ranges and rules between fields; returns the configuration. Raises ConfigError, one line."""
    if config.algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm '{config.algorithm}'{nearest(config.algorithm, ALGORITHMS)}")
    for key, owner, name, value in _walk(config):
        value = coerce(value, field_types(owner)[name], key)
        allowed = dict(_inherited(RANGES, owner)).get(name)
        for number in value if isinstance(value, tuple) else (value,):
            if allowed and number is not None and number not in allowed:
                raise ConfigError(f"{key}: {number} is out of range; it must be {allowed}")
        if name in _inherited(COUNTS, owner):
            Count.parse(value, key)  # type: ignore[arg-type]
    _validate_rules(config)
    for section in (config.algo, config.network):
        check = getattr(section, "validate", None)
        if callable(check):
            check()
    return config


def _validate_rules(config: TrainConfig) -> None:
    stop, rollout = config.stop, config.rollout
    _validate_data(config)
    curriculum.read(config.curriculum)
    if rollout.steps is not None and rollout.episodes is not None:
        raise ConfigError(
            f"rollout.steps ({rollout.steps}) and rollout.episodes ({rollout.episodes}) are both set; choose one"
        )
    most = getattr(config.algo, "max_lag", None)
    if most is not None and rollout.lag > most:
        raise ConfigError(f"rollout.lag: {rollout.lag} is more than algo.max_lag {most}: every batch would be dropped")
    if hasattr(config.algo, "buffer_size") and rollout.steps is None:
        raise ConfigError(
            f"rollout.episodes: {config.algorithm} learns from a replay of steps, not from whole episodes; set "
            "rollout.steps instead"
        )
    if config.total_steps is None and config.total_episodes is None and stop.max_seconds is None:
        raise ConfigError("no budget: set total_steps, total_episodes or stop.max_seconds")
    if Count.parse(config.log.every, "log.every") is None:
        raise ConfigError(
            f"log.every: '{config.log.every}' would never check a stopping rule; write '1' or '5000 steps'"
        )
    thresholds = [n for n in ("above", "below") if getattr(stop, n) is not None]
    if stop.metric is None and thresholds:
        raise ConfigError(f"stop.{thresholds[0]}: {getattr(stop, thresholds[0])} needs stop.metric, a logged metric")
    if stop.metric is not None and len(thresholds) != 1:
        what = "both are" if thresholds else "neither is"
        raise ConfigError(f"stop.metric: '{stop.metric}' needs exactly one of stop.above and stop.below; {what} set")


def _validate_data(config: TrainConfig) -> None:
    """What learning from a dataset cannot do."""
    if config.data is None:
        return
    if not ALGORITHMS[config.algorithm].offline:
        able = ", ".join(name for name, entry in ALGORITHMS.items() if entry.offline)
        raise ConfigError(f"data: {config.algorithm} learns from its own rollouts; these learn from a dataset: {able}")
    if config.curriculum:
        raise ConfigError("curriculum: there is no environment to change while learning from a dataset")
    online = getattr(config.algo, "online_steps", 0)
    if online and (config.total_steps is None or config.total_steps <= online):
        raise ConfigError(f"algo.online_steps: {online} are the last of total_steps, which must be more")
    if config.total_episodes is not None:
        raise ConfigError("total_episodes: a dataset has no new episodes; give total_steps, in gradient steps")
    if config.rollout.episodes is not None:
        raise ConfigError("rollout.episodes: a dataset has no new episodes; give rollout.steps, in gradient steps")
