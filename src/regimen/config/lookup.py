"""Names of settings: which one a key stands for, and what to say of a key that stands for none. Jax-free."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from regimen.config import names as migrating
from regimen.config.catalogue import fields_of
from regimen.config.schema import ALGORITHMS, TrainConfig
from regimen.config.validation import aliases, coerce, field_types
from regimen.errors import ConfigError

ALIASES = aliases(TrainConfig)  # a section's name with a plain value among them: algo="ppo", track=False
OPEN = ("env_args.", "curriculum.")  # sections whose keys the environment decides


class UnknownSettingError(ConfigError):
    """Keys that name no setting of the chosen algorithm, with their values."""

    def __init__(self, items: Mapping[str, object], algorithm: str, where: str = "", env: str = ""):
        self.items, self.algorithm, self.env = items, algorithm, env
        key, value = next(iter(items.items()))
        if len(items) > 1:
            text = f"settings {', '.join(map(repr, items))}{explain(items, algorithm, env, ': ')}"
        elif isinstance(value, Mapping) and not migrating.is_mapping(key):
            text = f"setting '{key}'{explain(value, algorithm, env, ', whose keys are: ')}"
        else:
            text = f"setting '{key}'{suggest(key, algorithm, original=value, env=env)}"
        super().__init__(f"{where}unknown {text}")


def leaf_types(algorithm: str) -> dict[str, Any]:
    """Dotted key -> type of every setting with this algorithm."""

    def collect(cls: type, prefix: str) -> dict[str, Any]:
        out = {}
        for name, hint in field_types(cls).items():
            hint = ALGORITHMS[algorithm].config if prefix + name == "algo" else hint
            if dataclasses.is_dataclass(hint) and isinstance(hint, type):
                out |= collect(hint, f"{prefix}{name}.")
            else:
                out[prefix + name] = hint
        return out

    return collect(TrainConfig, "")


def usable(algorithm: str) -> set[str]:
    """The settings that the algorithm has a use for: one with a replay of steps collects no whole episodes, one that
    learns from a dataset has no workers."""
    leaves = set(leaf_types(algorithm))
    if not ALGORITHMS[algorithm].online:
        leaves = {leaf for leaf in leaves if not leaf.startswith("engine.")}
    return leaves - {"rollout.episodes"} if "algo.buffer_size" in leaves else leaves


def normalize_key(key: object) -> str:
    """`algo__lr`, `stop.target-return` and `env.length` as dotted keys; env arguments live under `env_args`."""
    text = str(key).strip()
    for prefix in ("env_args.", "env_args__", "env-args.", "env.", "env__"):
        if text.startswith(prefix):
            return "env_args." + text.removeprefix(prefix).replace("-", "_")
    return text.replace("-", "_").replace("__", ".")


def sections_of(algorithm: str) -> set[str]:
    """The sections of settings: `rollout`, `algo`, `algo.reward`."""
    return {leaf.rpartition(".")[0] for leaf in leaf_types(algorithm)} - {""}


def resolve_key(key: str, algorithm: str) -> str | None:
    """The setting that a key names, in any case: itself, an alias, or the one setting with that last part. None if
    there is none, or if others mean something else by it."""
    leaves = leaf_types(algorithm)
    if key.startswith(OPEN):
        return key
    key = key.lower()
    if key in leaves:
        return key
    if key in ALIASES:
        return ALIASES[key]
    matches = [leaf for leaf in leaves if leaf.rsplit(".", 1)[-1] == key] if "." not in key else []
    elsewhere = migrating.name_of(key)
    if elsewhere is not None and (elsewhere.command or len(matches) > 1):  # --verbose is not Ray's, --episodes a budget
        return None
    if len(matches) > 1:
        raise ConfigError(f"'{key}' is ambiguous; write one of: {', '.join(matches)}")
    return matches[0] if matches else None


def suggest(
    key: str, algorithm: str, extra: Iterable[str] = (), dash: str = "", original: object = None, env: str = ""
) -> str:
    """The end of an error about a key: `; here it is algo.lr: 0.1`, where another trainer or the environment has a name
    that means a setting, with the value where it means the same; else who has a setting of that name, or the nearest
    one: `; did you mean 'algo.lr'?`."""
    explain = getattr(ALGORITHMS[algorithm].config, "unknown", None)
    if explain is not None and (text := explain(key.rsplit(".", 1)[-1])) is not None:
        return f"; {text}"
    leaves = {name: usable(name) for name in ALGORITHMS}
    same = [leaf for leaf in leaves[algorithm] if "." in key and leaf.rpartition(".")[2] == key.rpartition(".")[2]]
    if near := difflib.get_close_matches(key, same, 1, 0.85):  # rolout.episodes
        return f"; did you mean '{dash}{near[0].replace('_', '-') if dash else near[0]}'?"
    original = original if is_readable(migrating.name_of(key), algorithm, original) else None
    answer = absent_argument(key, env) or migrating.answer(key, algorithm, leaves, dash, original)
    if answer is not None:
        return answer
    if key in sections_of(algorithm):
        names = [leaf.replace("_", "-") if dash else leaf for leaf in leaves[algorithm] if leaf.startswith(f"{key}.")]
        return f"; it is a section with the settings {', '.join(dash + name for name in sorted(names))}"
    value = None if isinstance(original, Mapping) else migrating.plain(original) if original is not None else None
    flat = {leaf.replace(".", "_"): leaf for leaf in leaves[algorithm]}
    if key in flat:  # eval_episodes
        return f"; here it is {migrating.written(flat[key], value, dash)}"
    others = [name for name in ALGORITHMS if resolve_key(key, name) is not None]
    if others:
        return f"; {algorithm} has none: it is a setting of --algo {' or '.join(others)}"
    fields = [f"env_args.{name}" for name in fields_of(env)]
    if f"env_args.{key}" in fields:
        return f"; here it is {migrating.written(f'env_args.{key}', value, dash)}"
    candidates = (*leaf_types(algorithm), *ALIASES, *extra, *fields)

    def closeness(name: str) -> float:
        tail = difflib.SequenceMatcher(None, key.rsplit(".", 1)[-1], name.rsplit(".", 1)[-1]).ratio()
        return max(difflib.SequenceMatcher(None, key, name).ratio(), 0.95 * tail)

    best = max(candidates, key=closeness)
    if closeness(best) < 0.6:
        return "; `regimen train --help-all` lists them"
    name_of_best = best.replace("env_args.", "env.").replace("_", "-") if dash else best
    return f"; did you mean '{dash}{name_of_best}'?"


def is_readable(name: migrating.Name | None, algorithm: str, original: object) -> bool:
    """Whether a value of another trainer can be read as one of the setting that is meant: `lin_0.001` is no number."""
    setting = migrating.setting_of(name, usable(algorithm))
    value = None if name is None or setting is None else name.value(setting, original)
    if value is None or setting is None or setting.startswith("env_args"):
        return True
    try:
        coerce(value, leaf_types(algorithm)[setting])
    except ConfigError:
        return False
    return True


def absent_argument(key: str, env: str) -> str | None:
    """The end of an error that an environment has no such argument, where a key of another trainer means one and this
    environment is known not to have it."""
    name = migrating.name_of(key)
    wanted = [setting.removeprefix("env_args.") for setting in name.ours if "env_args." in setting] if name else []
    fields = fields_of(env) if wanted else ()
    if not fields or {*wanted} & {*fields, "max_episode_steps"}:
        return None
    return f"; {env} has none: `regimen envs {env}` lists what --env.KEY sets"


def explain(items: Mapping[str, object], algorithm: str, env: str, opening: str) -> str:
    """The end of an error about keys and sections of another trainer: what to write instead, where all of it means the
    same here; else, after `opening`, an answer to each key."""
    same: dict[str, object] = {}
    answers: list[str] = []
    if not translate(items, algorithm, env, "", same, answers):
        return f"{opening}{'; '.join(answers)}"
    nested: dict[str, dict[str, str]] = {}
    for setting, value in same.items():
        head, _, tail = setting.rpartition(".")
        nested.setdefault(head, {})[tail] = f"{tail}: {migrating.plain(value)}"
    parts = list(nested.pop("", {}).values())
    parts += [f"{head}: {{{', '.join(texts.values())}}}" for head, texts in nested.items()]
    return f"; all of it in the words of this one: {{{', '.join(parts)}}}"


def translate(
    items: Mapping[str, object], algorithm: str, env: str, prefix: str, same: dict[str, object], answers: list[str]
) -> bool:
    """Read the keys of another trainer: settings that mean the same go into `same`, an answer to each key into
    `answers`. Returns whether all of it means the same here."""
    leaves = {name: usable(name) for name in ALGORITHMS}
    complete = True
    for raw, value in items.items():
        key = normalize_key(raw)
        if isinstance(value, Mapping) and key not in ALIASES and not migrating.is_mapping(key):
            complete &= translate(value, algorithm, env, f"{prefix}{raw}.", same, answers)
            continue
        try:
            setting, name = resolve_key(key, algorithm), migrating.name_of(key)
        except ConfigError as error:  # several settings end so
            answers.append(f"{prefix}{error}")
            complete = False
            continue
        text = value
        if setting is None and name is not None and (setting := migrating.setting_of(name, leaves[algorithm])):
            text = name.value(setting, value) if is_readable(name, algorithm, value) else None
        if setting == "env" and isinstance(text, str):
            text = migrating.environment(text)
        absent = setting is not None and setting.startswith("env_args.") and absent_argument(key, env)
        if setting is not None and text is not None and setting not in same and not absent:
            same |= {setting: text} | (
                {"engine.name": "ray"} if setting == "engine.workers" and str(text) != "0" else {}
            )
            answers.append(f"{prefix}{raw}: here it is {setting}: {migrating.plain(text)}")
        else:
            answers.append(f"{prefix}{raw}{suggest(key, algorithm, original=value, env=env).replace(';', ':', 1)}")
            complete = False
    return complete
