"""Types and ranges: every setting is read by `coerce` and checked by `validate`. Jax-free."""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, Union

from regimen.config import curriculum
from regimen.config.fields import Alias, Count, Range
from regimen.config.schema import ALGORITHMS, TRACKERS, TrackConfig, TrainConfig
from regimen.errors import ConfigError, nearest

TRUE, FALSE, NONE = ("true", "yes", "on", "1"), ("false", "no", "off", "0"), ("none", "null", "")


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
        words_of = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a mapping"}
        words = words_of.get(typing.get_origin(inner) or inner, str(inner))
    return words + (" or none" if can_be_none else "")


def _number(value: object) -> float | int:
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


SYNONYMS = {"cuda": "gpu", "mps": "auto", "swish": "silu", "lstm": "gru"}  # words of others -> a choice of ours


def _coerce(value: object, hint: Any) -> Any:
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
            if value == choice or (isinstance(value, str) and value.replace("-", "_").lower() == str(choice).lower()):
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
        text = repr(value) if isinstance(value, str) else "none" if value is None else str(value)
        choices = typing.get_args(inner) if typing.get_origin(inner) is Literal else ()
        same = SYNONYMS.get(str(value).lower().partition(":")[0])
        hint_text = f"; here it is {same}" if same in choices else nearest(str(value), choices) if choices else ""
        raise ConfigError(f"{where}: {text} is not {type_name(hint)}{hint_text.split('; choose')[0]}") from None


@lru_cache(maxsize=64)
def field_marks(cls: type) -> dict[str, Range | type[Count]]:
    """Field name -> its `Range`, or `Count` for a period, where its type has one (`regimen.config.fields`)."""
    hints = typing.get_type_hints(cls, include_extras=True)
    marks = {f.name: _mark(hints[f.name]) for f in dataclasses.fields(cls)}
    return {name: mark for name, mark in marks.items() if mark is not None}


def _mark(hint: Any) -> Range | type[Count] | None:
    marks = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Range) or m is Count]
    return next(iter(marks), None) or next(filter(None, map(_mark, typing.get_args(hint))), None)


def aliases(cls: type, prefix: str = "") -> dict[str, str]:
    """Other name -> the dotted key that it stands for, of every setting below a dataclass."""
    out: dict[str, str] = {}
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        out |= {mark.name: prefix + name for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Alias)}
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            out |= aliases(hint, f"{prefix}{name}.")
    return out


def read_field(cls: type, name: str, value: Any, where: str) -> Any:
    """`value` as the type of a dataclass's field and within its range, or a ConfigError that begins with `where`."""
    value = coerce(value, field_types(cls)[name], where)
    mark = field_marks(cls).get(name)
    if mark is Count:
        Count.parse(value, where)
    elif isinstance(mark, Range):
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and number not in mark:
                text = f"{number:g}" if isinstance(number, float) else number
                raise ConfigError(f"{where}: {text} is out of range; it must be {mark}")
    return value


def _walk(config: Any, prefix: str = "") -> Iterator[tuple[str, type, str, Any]]:
    """(dotted key, owner, field name, value) of every leaf of a configuration."""
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from _walk(value, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name, type(config), f.name, value


def validate(config: TrainConfig) -> TrainConfig:
    """Check types, ranges and rules between fields; returns the configuration. Raises ConfigError, one line."""
    if config.algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm '{config.algorithm}'{nearest(config.algorithm, ALGORITHMS)}")
    for key, owner, name, value in _walk(config):
        read_field(owner, name, value, key)
    for message in contradictions(config):
        raise ConfigError(message)
    for section in (config.algo, config.network):
        check = getattr(section, "validate", None)
        if callable(check):
            check()
    return config


def contradictions(config: TrainConfig) -> Iterator[str]:
    """What is wrong with settings that are each right for themselves, in the order in which it is reported."""
    stop, rollout, common = config.stop, config.rollout, config.common
    if config.data is not None:
        yield from contradictions_of_data(config)
    curriculum.read(config.curriculum)
    if rollout.steps is not None and rollout.episodes is not None:
        yield f"rollout.steps ({rollout.steps}) and rollout.episodes ({rollout.episodes}) are both set; choose one"
    if common.max_lag is not None and rollout.lag > common.max_lag:
        yield f"rollout.lag: {rollout.lag} is more than algo.max_lag {common.max_lag}: every batch would be dropped"
    if common.buffer_size is not None and rollout.steps is None:
        learns = f"{config.algorithm} learns from a replay of steps, not from whole episodes"
        yield f"rollout.episodes: {learns}; set rollout.steps instead"
    if rollout.processes != 1 and config.engine.distributed:
        yield "rollout.processes: the workers of --engine ray are processes already; leave it at 1"
    if config.total_steps is None and config.total_episodes is None and stop.max_seconds is None:
        yield "no budget: set total_steps, total_episodes or stop.max_seconds"
    yield from contradictions_of_trackers(config.track)
    if Count.parse(config.log.every, "log.every") is None:
        yield f"log.every: '{config.log.every}' would never check a stopping rule; write '1' or '5000 steps'"
    thresholds = [n for n in ("above", "below") if getattr(stop, n) is not None]
    if stop.metric is None and thresholds:
        yield f"stop.{thresholds[0]}: {getattr(stop, thresholds[0])} needs stop.metric, a logged metric"
    if stop.metric is not None and len(thresholds) != 1:
        what = "both are" if thresholds else "neither is"
        yield f"stop.metric: '{stop.metric}' needs exactly one of stop.above and stop.below; {what} set"


def contradictions_of_trackers(track: TrackConfig) -> Iterator[str]:
    """Trackers that there are not, and settings of one that is not in use."""
    for name in track.names:
        if name not in TRACKERS:
            yield f"track: there is no tracker '{name}'{nearest(name, TRACKERS)} (there are {', '.join(TRACKERS)})"
    if not track.enabled:
        return
    if track.online and "wandb" not in track.names:
        yield "track.online: only wandb may be kept from the network; write track: wandb"
    for name in ("uri", "model_name"):
        if getattr(track, name) is not None and "mlflow" not in track.names:
            yield f"track.{name}: this is a setting of MLflow, and track is '{track.to}'; add mlflow"


def contradictions_of_data(config: TrainConfig) -> Iterator[str]:
    """What learning from a dataset cannot do."""
    if not ALGORITHMS[config.algorithm].offline:
        able = ", ".join(name for name, entry in ALGORITHMS.items() if entry.offline)
        yield f"data: {config.algorithm} learns from its own rollouts; these learn from a dataset: {able}"
    if config.curriculum:
        yield "curriculum: there is no environment to change while learning from a dataset"
    online = config.common.online_steps
    if online and (config.total_steps is None or config.total_steps <= online):
        yield f"algo.online_steps: {online} are the last of total_steps, which must be more"
    if config.total_episodes is not None:
        yield "total_episodes: a dataset has no new episodes; give total_steps, in gradient steps"
    if config.rollout.episodes is not None:
        yield "rollout.episodes: a dataset has no new episodes; give rollout.steps, in gradient steps"
