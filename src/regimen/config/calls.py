"""Calls of other trainers, answered with ours: `PPO("MlpPolicy", env, learning_rate=3e-4)` of a constructor, and
`trainer.train(total_timesteps=50_000)` of everything that is `answered`. Jax-free."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from regimen.config import lookup, names
from regimen.config.schema import ALGORITHMS
from regimen.errors import ArgumentError, ConfigError

F = TypeVar("F", bound=Callable[..., Any])
SHOWN = (str, int, float, bool, list, tuple, type(None))  # values that a line to write repeats


def is_call(config: object, arguments: Mapping[str, object]) -> bool:
    """Whether an algorithm is made as another trainer makes it."""
    return isinstance(config, (str, Mapping)) or not arguments.keys().isdisjoint(("policy", "env"))


def answer_call(cls: str, config: object, env: object, arguments: Mapping[str, object]) -> str:
    """What `PPO("MlpPolicy", env, n_steps=64)` of another trainer is here: one line with what means the same, and the
    other arguments answered one by one."""
    arguments = {**(config if isinstance(config, Mapping) else {}), **arguments}
    _, env = arguments.pop("policy", None), arguments.pop("env", env)
    if env is None and isinstance(config, str) and not config.endswith("Policy"):  # PPO("CartPole-v1")
        env = config
    algorithm = cls.lower() if cls.lower() in ALGORITHMS else "ppo"
    leaves, inside, outside, others = lookup.usable(algorithm), [], [], []
    for name, value in arguments.items():
        setting = name if name in leaves else same_setting(name, algorithm, value)
        if setting is None:
            others.append(unknown_argument(cls, name, value))
        else:
            (inside if setting.startswith("algo.") else outside).append((setting, value))
    settings = ", ".join(f"{setting.removeprefix('algo.')}={value!r}" for setting, value in inside)
    name = repr(names.environment(env)) if isinstance(env, str) else "env" if env is not None else "ENV"
    more = ", **" + repr(dict(outside)) if outside else ""
    text = f"a policy network and an environment are not arguments of {cls}; here it is regimen.Trainer({name}, "
    text += f"algo=regimen.{cls}({settings}), total_steps=100_000{more}).train(), with the network in hidden=(64, 64)"
    return "; ".join([text, *others])


def unknown_argument(cls: str, name: str, value: object) -> str:
    """The error that an algorithm has no such setting, and which one is meant."""
    algorithm = cls.lower()
    if algorithm not in ALGORITHMS:
        return f"{cls} has no setting '{name}'"
    setting = same_setting(name, algorithm, value) or ""
    same = setting.startswith("algo.") and f"; here it is {setting.removeprefix('algo.')}={value!r}"
    return f"{cls} has no setting '{name}'{same or lookup.suggest(name, algorithm, original=value)}"


def same_setting(name: str, algorithm: str, value: object) -> str | None:
    """The setting in which a value means the same as under another trainer's name, or under ours without a section."""
    leaves = lookup.usable(algorithm)
    entry = names.name_of(name)
    setting = None if entry is None else names.setting_of(entry, leaves)
    if entry is None or setting is None:
        return f"algo.{name}" if f"algo.{name}" in leaves else None
    return setting if entry.value(setting, value) is not None else None


# --- functions and methods -------------------------------------------------------------------------------------------


def answered(what: F, name: str = "") -> F:
    """A function, or a class with its methods, that answers an argument which it has not and another trainer's has; as
    the function of the package called `name`, where it is behind that one."""
    if inspect.isclass(what):
        for method, member in list(vars(what).items()):
            if inspect.isfunction(member) and (method == "__init__" or not method.startswith("_")):
                setattr(what, method, answered(member))
        return what  # type: ignore[return-value]
    parameters = inspect.signature(what).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):  # it answers by itself
        return what  # type: ignore[return-value]
    taken = {name for name, p in parameters.items() if p.kind is not p.POSITIONAL_ONLY}

    @functools.wraps(what)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= taken:
            unknown = {name: value for name, value in kwargs.items() if name not in taken}
            algorithm = getattr(getattr(args[0] if args else None, "config", None), "algorithm", "ppo")
            raise ArgumentError(answer_arguments(name or what.__qualname__, list(parameters), unknown, algorithm))
        return what(*args, **kwargs)

    return call  # type: ignore[return-value]


def answer_arguments(qualname: str, parameters: Iterable[str], unknown: Mapping[str, object], algorithm: str) -> str:
    """The error that a function has no such arguments, and what to write instead of each."""
    name = qualname.removesuffix(".__init__") if "." in qualname else f"regimen.{qualname}"
    taken = [parameter for parameter in parameters if parameter != "self"]
    ends = [f"'{key}'{answer_argument(name, taken, key, value, algorithm)}" for key, value in unknown.items()]
    return f"{name} has no argument {'; no argument '.join(ends)}"


def answer_argument(function: str, taken: list[str], key: str, value: object, algorithm: str) -> str:
    """The end of an error about one argument: the answer for this function, else its own argument of that meaning, else
    the setting of a training, else what it takes."""
    if answer := names.equivalent(function, key):
        return answer
    entry, words = names.name_of(key), names.load_answers()["argument"].get(key, "").split()
    meant = {word: word for word in words} | {s.rpartition(".")[2]: s for s in (entry.ours if entry else ())}
    for word, setting in meant.items():
        if word in taken:
            same = word in words or (entry is not None and entry.value(setting, value) is not None)
            return f"; here it is {written(word, value if same else ...)}"
    if entry is not None and entry.command:
        return f"; here it is {entry.command}" + (f" ({entry.note})" if entry.note else "")
    if setting := setting_argument(key, algorithm, value):
        note = entry.ours[names.setting_of(entry, lookup.usable(algorithm)) or ""] if entry and "..." in setting else ""
        head = "regimen.Trainer" if function.startswith("Trainer") else "regimen.train"
        return f"; here it is `{head}(env, {setting})`" + (f" ({note})" if note else "")
    close = difflib.get_close_matches(key, taken, 1, 0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; it takes {', '.join(taken) or 'none'}"


def setting_argument(key: str, algorithm: str, value: object) -> str | None:
    """The setting that an argument is, as a keyword of `regimen.train`: `total_steps=50000`, `eval={'every': 10}`."""
    entry, leaves = names.name_of(key), lookup.usable(algorithm)
    setting = None if entry is None else names.setting_of(entry, leaves)
    same = entry is not None and setting is not None and names.plain(value) == entry.value(setting, value)
    if setting is None:
        try:
            setting, same = lookup.resolve_key(key, algorithm), True
        except ConfigError:  # several settings end so
            return None
    if setting is None:
        return None
    section, _, last = setting.rpartition(".")
    if not section:
        return written(last, value if same else ...)
    text = repr(value) if same and isinstance(value, SHOWN) else "..."
    return f"{section}={{'{last}': {text}}}" if "." not in section else f"**{{'{setting}': {text}}}"


def written(word: str, value: object) -> str:
    """A keyword with its value, where that can be written."""
    return f"{word}={value!r}" if isinstance(value, SHOWN) else f"{word}=..."
