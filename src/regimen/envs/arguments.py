"""Arguments of environments: `--env.KEY VALUE` as what a field, a class or a factory takes."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from regimen.config.validation import coerce, optional
from regimen.errors import ConfigError, nearest

T = TypeVar("T")
Arguments = dict[str, Any]  # what `--env.KEY` sets, or a call: values of the types that an environment declares
LIMIT = "max_episode_steps"  # what every environment takes


def bind(function: Callable, args: Mapping[str, object], name: str) -> tuple[Arguments, Arguments]:
    """Split `args` into those `function` takes, as the types it declares, and the rest."""
    try:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built in
        return dict(args), {}
    hints = hints_of(function)
    parameters = parameters_of(function)
    bound, rest = {}, {}
    for key, value in args.items():
        if key in parameters:
            bound[key] = coerce(value, hint_of(hints.get(key), parameters[key].default), f"env.{key}")
        else:
            (bound if takes_any else rest)[key] = value
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in bound]
    if missing:
        raise ConfigError(f"{name}: the argument '{missing[0]}' has no default; give --env.{missing[0]} VALUE")
    return bound, rest


def parameters_of(function: Callable) -> dict[str, inspect.Parameter]:
    """Arguments that can be given by name."""
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def hints_of(function: Callable) -> dict[str, object]:
    """The types that a function or a class declares for its arguments, where they can be read."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except Exception:  # names only a type checker sees
        return {}


def hint_of(hint: object, default: object) -> object:
    """The type an argument is read as: the one declared when it is plain, else its default's, else anything."""
    plain = (int, float, bool, str)

    def is_plain(h: object) -> bool:
        return h in (*plain, type(None), ...) or (bool(typing.get_args(h)) and all(map(is_plain, typing.get_args(h))))

    if hint is not None and (is_plain(hint) or typing.get_origin(optional(hint)[0]) is Literal):
        return hint
    if hint is None and type(default) in plain:
        return int | float if type(default) is int else type(default)  # `goal_velocity=0` may be a fraction
    return Any


def set_fields(env: T, args: Mapping[str, object], name: str, others: Iterable[str] = ()) -> T:
    """A native environment with these fields; `others` are further names that an error may suggest."""
    fields = {f.name: f for f in dataclasses.fields(env) if f.init} if dataclasses.is_dataclass(env) else {}
    hints = hints_of(type(env))
    for key in args:
        if key not in fields:
            raise unknown_argument(key, name, {*fields, *others})
    kinds = {k: hint_of(hints.get(k), fields[k].default) for k in args}
    texts = {k: "none" if v is None and kinds[k] is str else v for k, v in args.items()}  # as flags and YAML read it
    values = {k: coerce(v, kinds[k], f"env.{k}") for k, v in texts.items()}
    return dataclasses.replace(env, **values) if values else env  # type: ignore[type-var]


def changed_fields(env: object) -> Arguments:
    """Plain fields of an instance that differ from their defaults."""
    fields = dataclasses.fields(env) if dataclasses.is_dataclass(env) else ()
    values = {f.name: (getattr(env, f.name), f.default) for f in fields if f.default is not dataclasses.MISSING}
    return {k: v for k, (v, default) in values.items() if isinstance(v, (int, float, str, bool)) and v != default}


def unknown_argument(key: str, name: str, others: Iterable[str]) -> ConfigError:
    return ConfigError(f"env.{key}: {name} has no such argument{nearest(key, others)}")
