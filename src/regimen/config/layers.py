"""From layers of settings to one `TrainConfig`: defaults < preset < config file < flags or Python keywords. Jax-free.

Each layer is flattened to dotted keys of the right type (`algo.lr`, `rollout.episodes`), then merged onto those below;
a few keys exclude each other, so setting one clears its rival in lower layers (`merge`).
"""

import dataclasses
import difflib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from regimen.config import datasets, presets, trust
from regimen.config import names as migrating
from regimen.config.catalogue import ENVS, FILES, OTHERS, anchored, full_name, suggestion
from regimen.config.curriculum import PRESET
from regimen.config.domains import domain_of, effective
from regimen.config.regimen import EPISODES, resolve
from regimen.config.schema import ALGORITHMS, TrainConfig
from regimen.config.validation import aliases, coerce, field_types, validate
from regimen.errors import ConfigError, nearest

BASE = {"rollout.episodes": EPISODES, "total_episodes": 1000}  # below every preset: what `balanced` has
ALIASES = aliases(TrainConfig)  # a section's name with a plain value among them: algo="ppo", track=False
FALSE_TRUE = ("false", "true")
OPEN = ("env_args.", "curriculum.")  # sections whose keys the environment decides


class UnknownSettingError(ConfigError):
    """Keys that name no setting of the chosen algorithm, with their values."""

    def __init__(self, items: Mapping[str, object], algorithm: str, where: str = ""):
        self.items, self.algorithm = items, algorithm
        key, value = next(iter(items.items()))
        if len(items) > 1:
            text = f"settings {', '.join(map(repr, items))}{explain_section(items, algorithm)}"
        elif isinstance(value, Mapping) and not migrating.is_mapping(key):
            text = f"setting '{key}'{explain_section(value, algorithm)}"
        else:
            text = f"setting '{key}'{suggest(key, algorithm, given=value)}"
        super().__init__(f"{where}unknown {text}")


def build_config(
    env: str | None = None,
    algo: str | None = None,
    preset: str | None = None,
    config_file: str | os.PathLike | None = None,
    overrides: Mapping[str, object] | None = None,
) -> TrainConfig:
    """The configuration of a run. `overrides` takes `algo.lr`, `algo__lr`, nested dicts, and names that occur once."""
    overrides = dict(overrides or {})
    file = presets.load_yaml(Path(config_file).expanduser(), "config file") if config_file is not None else {}
    file_where = f"config file '{config_file}': "

    env = coerce(env or _peek(overrides, "env") or _peek(file, "env"), str | None, "env")
    if not env:
        raise ConfigError("no environment named; see `regimen envs`")
    env, of_dataset = dataset_env(env, _peek(overrides, "data"))
    check_env_name(env)
    env = anchored(full_name(env) or env)
    trust.vouch(env)
    algorithm = algo or _peek_algorithm(overrides) or _peek_algorithm(file)
    algorithm = algorithm and check_algorithm(algorithm)
    device = _peek(overrides, "device") or _peek(file, "device") or "auto"
    device = coerce(device, field_types(TrainConfig)["device"], "device")
    start = preset or _peek(overrides, "preset")
    if start is None and not is_complete(file, algorithm):  # a run's own config.yaml needs no preset below it
        start = _peek(file, "preset") or presets.default_for(env, algorithm or "ppo")
    source = presets.load_preset(coerce(start, str, "preset"), env, algorithm or "ppo") if start is not None else None
    if source is not None:
        algorithm = algorithm or _peek_algorithm(source.settings)
    algorithm = check_algorithm(algorithm or "ppo")

    flat = dict(BASE)
    if source is not None:
        flat = merge(flat, preset_layer(source, algorithm, device, env), f"preset '{source.name}': ")
    flat = merge(flat, of_dataset)
    of_file, of_flags = flatten(file, algorithm, file_where), flatten(overrides, algorithm)
    flat = effective_layer(env, flat, of_file | of_flags)
    flat = merge(merge(flat, of_file, file_where), of_flags)
    flat |= {"env": env, "algorithm": algorithm}
    if source is not None:
        flat["preset"] = source.name
    config = share_discount(validate(_build(TrainConfig, flat, algorithm)))
    resolve(config, native=True)
    return config


def effective_layer(env: str, flat: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """A layer without the arguments of the environment that have no effect beside what is `chosen` above it."""

    def arguments(layer: Mapping[str, Any]) -> dict[str, Any]:
        return {k.removeprefix("env_args."): v for k, v in layer.items() if k.startswith("env_args.")}

    names = effective(env, arguments(flat), arguments(chosen))
    return {k: v for k, v in flat.items() if not k.startswith("env_args.") or k.removeprefix("env_args.") in names}


def share_discount(config: TrainConfig) -> TrainConfig:
    """The configuration with the learner's discount in an environment whose shaping must have the same."""
    domain = domain_of(config.env)
    gamma = config.common.gamma
    if domain is None or domain.discount is None or gamma is None:
        return config
    name, default = domain.discount
    value = config.env_args.get(name)
    if value is None:
        return config if gamma == default else config.replace(env_args=config.env_args | {name: gamma})
    if value != gamma:
        raise ConfigError(
            f"env.{name}: {value} is not algo.gamma {gamma:g}, and shaping with another discount changes the task; set "
            f"both alike, or leave env.{name} out: it follows algo.gamma"
        )
    return config


def tied_discount(config: TrainConfig) -> dict[str, Any]:
    """What another algorithm has to be given for the same environment, where that shares the learner's discount."""
    domain, gamma = domain_of(config.env), config.common.gamma
    return {} if domain is None or domain.discount is None or gamma is None else {"algo.gamma": gamma}


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain nested data for `config.yaml`. `out` is left out: where a run was written is not part of repeating it."""

    def plain(value: object) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, (tuple, list)) else value

    return {k: v for k, v in plain(config).items() if k != "out"}


def from_dict(data: Mapping[str, object]) -> TrainConfig:
    """The inverse of `to_dict`: no preset, no defaults but those of fields the data does not name."""
    algorithm = check_algorithm(_peek_algorithm(data) or "ppo")
    flat = flatten(data, algorithm, "config: ")
    flat = effective_layer(str(flat.get("env")), flat, {})
    return validate(_build(TrainConfig, flat, algorithm))


def from_preset(preset: presets.Preset, device: str = "cpu") -> TrainConfig:
    """A preset by itself, to be described."""
    algorithm = check_algorithm(_peek_algorithm(preset.settings) or "ppo")
    flat = merge(BASE, preset_layer(preset, algorithm, device), f"preset '{preset.name}': ")
    return validate(_build(TrainConfig, flat, algorithm))


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
    """The settings that the algorithm has a use for: one with a replay of steps collects no whole episodes."""
    leaves = set(leaf_types(algorithm))
    return leaves - {"rollout.episodes"} if "algo.buffer_size" in leaves else leaves


def normalize_key(key: object) -> str:
    """`algo__lr`, `stop.target-return` and `env.length` as dotted keys; env arguments live under `env_args`."""
    text = str(key).strip()
    for prefix in ("env_args.", "env_args__", "env-args.", "env.", "env__"):
        if text.startswith(prefix):
            return "env_args." + text.removeprefix(prefix).replace("-", "_")
    return text.replace("-", "_").replace("__", ".")


def resolve_key(key: str, algorithm: str) -> str | None:
    """The setting a key names: itself, an alias, or the one setting with that last part; None when there is none."""
    leaves = leaf_types(algorithm)
    if key in leaves or key.startswith(OPEN):
        return key
    if key in ALIASES:
        return ALIASES[key]
    matches = [leaf for leaf in leaves if leaf.rsplit(".", 1)[-1] == key] if "." not in key else []
    if len(matches) > 1:
        raise ConfigError(f"'{key}' is ambiguous; write one of: {', '.join(matches)}")
    return matches[0] if matches else None


def suggest(key: str, algorithm: str, extra: Iterable[str] = (), dash: str = "", given: object = None) -> str:
    """`; here it is algo.lr: 0.1` for a name of other trainers and a value, or what the algorithm says of a name that
    others use; else who has a setting of that name, or the nearest one: `; did you mean 'algo.lr'?`."""
    explain = getattr(ALGORITHMS[algorithm].config, "unknown", None)
    if explain is not None and (text := explain(key.rsplit(".", 1)[-1])) is not None:
        return f"; {text}"
    leaves = {name: usable(name) for name in ALGORITHMS}
    if (answer := migrating.answer(key, algorithm, leaves, dash, given)) is not None:
        return answer
    others = [name for name in ALGORITHMS if resolve_key(key, name) is not None]
    if others:
        return f"; {algorithm} has none: it is a setting of --algo {' or '.join(others)}"
    candidates = (*leaf_types(algorithm), *ALIASES, *extra)

    def closeness(name: str) -> float:
        tail = difflib.SequenceMatcher(None, key.rsplit(".", 1)[-1], name.rsplit(".", 1)[-1]).ratio()
        return max(difflib.SequenceMatcher(None, key, name).ratio(), 0.95 * tail)

    best = max(candidates, key=closeness)
    if closeness(best) < 0.6:
        return "; `regimen train --help-all` lists them"
    name_of_best = best.replace("_", "-") if dash else best
    return f"; did you mean '{dash}{name_of_best}'?"


def explain_section(items: Mapping[str, object], algorithm: str) -> str:
    """The end of an error about keys and sections of another trainer: what to write instead, where all of it means the
    same here; else an answer to each key."""
    same: dict[str, object] = {}
    answers: list[str] = []
    if not translate(items, algorithm, "", same, answers):
        return f", whose keys are: {'; '.join(answers)}"
    nested: dict[str, dict[str, str]] = {}
    for setting, value in same.items():
        head, _, tail = setting.rpartition(".")
        nested.setdefault(head, {})[tail] = f"{tail}: {migrating.plain(value)}"
    parts = list(nested.pop("", {}).values())
    parts += [f"{head}: {{{', '.join(texts.values())}}}" for head, texts in nested.items()]
    return f"; all of it in the words of this one: {{{', '.join(parts)}}}"


def translate(
    items: Mapping[str, object], algorithm: str, prefix: str, same: dict[str, object], answers: list[str]
) -> bool:
    """Read the keys of another trainer: settings that mean the same go into `same`, an answer to each key into
    `answers`. Returns whether all of it means the same here."""
    leaves = {name: usable(name) for name in ALGORITHMS}
    complete = True
    for raw, value in items.items():
        key = normalize_key(raw)
        if isinstance(value, Mapping) and key not in ALIASES and not migrating.is_mapping(key):
            complete &= translate(value, algorithm, f"{prefix}{raw}.", same, answers)
            continue
        try:
            setting, name = resolve_key(key, algorithm), migrating.name_of(key)
        except ConfigError as error:  # several settings end so
            answers.append(f"{prefix}{error}")
            complete = False
            continue
        text = value
        if setting is None and name is not None and (setting := migrating.setting_of(name, leaves[algorithm])):
            text = migrating.environment(name.value(setting, value)) if setting == "env" else name.value(setting, value)
        if setting is not None and text is not None and setting not in same:
            same[setting] = text
            answers.append(f"{prefix}{raw}: here it is {setting}: {migrating.plain(text)}")
        else:
            answers.append(f"{prefix}{raw}{suggest(key, algorithm, given=value).replace(';', ':', 1)}")
            complete = False
    return complete


def flatten(layer: Mapping[str, object], algorithm: str, where: str = "") -> dict[str, Any]:
    """A layer as dotted keys with values of the right type. `where` starts every error message."""
    leaves = leaf_types(algorithm)
    sections = {leaf.rpartition(".")[0] for leaf in leaves} - {""}
    flat: dict[str, Any] = {}
    unknown: dict[str, object] = {}

    def put(key: str, value: object) -> None:
        if key in flat:
            raise ConfigError(f"{where}{key}: set twice under different names")
        if key.startswith("env_args."):
            flat[key] = value
        elif key.startswith("curriculum."):
            flat[key] = coerce(value, str | None, where + key)
            if not key.removeprefix("curriculum.").isidentifier():
                raise ConfigError(f"{where}{key}: not the name of a field; write the schedule in quotes")
        else:
            flat[key] = coerce(value, leaves[key], where + key)

    def expand(items: Mapping[str, object], prefix: str) -> None:
        for raw, value in items.items():
            key = normalize_key(prefix + str(raw))
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            if key == "env_args":
                for name, argument in (coerce(value, dict[str, Any], where + key) if value is not None else {}).items():
                    put("env_args." + name, argument)
            elif key == "curriculum":
                is_preset = value is None or isinstance(value, str)  # none: without the one below
                texts = {PRESET: value} if is_preset else coerce(value, dict[str, Any], where + key)
                expand(texts, "curriculum.")
            elif key in sections and isinstance(value, Mapping):
                expand(value, key + ".")
            elif key in sections and key in ALIASES:
                switch = f"{key}.enabled"  # yes or no for a section that can be switched off: track=False
                put(switch if switch in leaves and str(value).lower() in FALSE_TRUE else ALIASES[key], value)
            elif key in sections and value is None:  # an empty section of a YAML file
                continue
            elif key in sections:
                names = ", ".join(n.removeprefix(key + ".") for n in leaves if n.startswith(key + "."))
                raise ConfigError(f"{where}{key}: '{value}' is not a section; it holds {names}")
            else:
                try:
                    setting = resolve_key(key, algorithm)
                except ConfigError as error:
                    raise ConfigError(f"{where}{error}") from None
                if setting is None:
                    unknown[key] = value
                else:
                    put(setting, value)

    expand(layer, "")
    if unknown:
        raise UnknownSettingError(unknown, algorithm, where)
    return flat


def _peek(layer: Mapping[str, object], name: str) -> Any:
    return next((v for k, v in layer.items() if normalize_key(k) == name), None)


def _peek_algorithm(layer: Mapping[str, object]) -> str | None:
    """The algorithm a layer names: `algorithm: ppo`, `algo: ppo`, or a hyper-parameter object `algo=PPOConfig(...)`."""
    name, algo = _peek(layer, "algorithm"), _peek(layer, "algo")
    if name is None and dataclasses.is_dataclass(algo) and not isinstance(algo, type):
        name = next((n for n, entry in ALGORITHMS.items() if entry.config is type(algo)), None)
        if name is None:
            raise ConfigError(f"algo: {type(algo).__name__} belongs to no registered algorithm")
    elif name is None and not isinstance(algo, Mapping):
        name = algo
    return None if name is None else coerce(name, str, "algorithm")


def is_complete(layer: Mapping[str, object], algorithm: str | None) -> bool:
    """Whether a layer names every setting, as a run's `config.yaml` does."""

    def names(items: Mapping, prefix: str = "") -> set[str]:
        out = set()
        for key, value in items.items():
            nested = isinstance(value, Mapping) and key not in ("env_args", "curriculum")
            out |= names(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}"}
        return out

    algorithm = algorithm or _peek_algorithm(layer) or "ppo"
    return algorithm in ALGORITHMS and set(leaf_types(algorithm)) - {"out", "curriculum"} <= names(layer)


def check_algorithm(name: str) -> str:
    """The algorithm's name; `PPO` is `ppo`."""
    if name.lower() not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm '{name}'{nearest(name.lower(), ALGORITHMS)}")
    return name.lower()


def dataset_env(env: str, data: object) -> tuple[str, Mapping[str, object]]:
    """The environment to train on and, where it was given by a dataset, the settings that come with it."""
    path = None if env in ENVS else datasets.locate(env)
    if path is None:
        return env, {}
    if data is not None:
        raise ConfigError(f"data: '{env}' is a dataset already; give one of them")
    name, args = datasets.environment(path)
    return name, {"data": env} | {f"env_args.{key}": value for key, value in args.items()}


def check_env_name(env: str) -> None:
    """Refuse an unknown registered name; ids with a colon (`gym:ID`, `module:factory`) are checked when made."""
    if ":" not in env and full_name(env) is None:
        hint = suggestion(env) if re.search(r"-v\d+$", env) else nearest(env, ENVS)  # the former loads Gymnasium
        if os.path.isdir(env):
            hint = ": a folder, but no Minari dataset (data/metadata.json is missing)"
        elif os.path.isfile(env):
            hint = ": a file; " + ", ".join(f"{kind.what} is written {p}:{env}" for p, kind in FILES.items())
        raise ConfigError(f"unknown environment '{env}'{hint} (or {OTHERS})")


def merge(low: Mapping[str, Any], high: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """`high` over `low`; what `high` sets clears the settings of `low` that would contradict it."""
    out, steps, episodes, num_envs = dict(low), "rollout.steps", "rollout.episodes", "rollout.num_envs"
    if high.get(steps) is not None and high.get(episodes) is not None:
        raise ConfigError(f"{where}rollout.steps and rollout.episodes are both set; choose one")
    for key, rival in ((steps, episodes), (episodes, steps)):
        n = high.get(key)
        if n is None:
            continue
        switched = out.pop(rival, None) is not None
        if switched or (out.get(num_envs) and n % out[num_envs]):  # num_envs was chosen for the schedule below
            out.pop(num_envs, None)
    for key, rival in (("total_steps", "total_episodes"), ("total_episodes", "total_steps")):
        if high.get(key) is not None:
            out.pop(rival, None)
    if f"curriculum.{PRESET}" in high:
        out = {k: v for k, v in out.items() if not k.startswith("curriculum.")}
    if "stop.metric" in high:
        for name in ("above", "below", "streak"):
            out.pop(f"stop.{name}", None)
    for key, rival in (("stop.above", "stop.below"), ("stop.below", "stop.above")):
        if high.get(key) is not None:
            out.pop(rival, None)
    return out | dict(high)


def preset_layer(preset: presets.Preset, algorithm: str, device: str = "auto", env: str = "") -> dict[str, Any]:
    """A preset's settings for a device; its `algo` section counts only with the algorithm it was written for."""
    written_for = _peek_algorithm(preset.settings) or "ppo"
    where = f"preset '{preset.name}': "
    layer = flatten(preset.settings, check_algorithm(written_for), where)
    column = preset.columns.get(guess_device(device, env))
    if column:
        layer = merge(layer, flatten(column, written_for, where), where)
    layer.pop("preset", None)
    return layer if algorithm == written_for else {k: v for k, v in layer.items() if not k.startswith("algo.")}


def guess_device(device: str, env: str = "") -> str:
    """`cpu` or `gpu` without importing jax, to choose a preset's column; the trainer makes the real choice."""
    if device != "auto":
        return device
    host = env.startswith("gym:") or os.environ.get("JAX_PLATFORMS", "") == "cpu"
    plugin = any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13))
    return "gpu" if not host and plugin and os.path.exists("/dev/nvidiactl") else "cpu"


def _build(cls: type, flat: Mapping[str, object], algorithm: str, prefix: str = "") -> Any:
    values = {}
    for name, hint in field_types(cls).items():
        key = prefix + name
        hint = ALGORITHMS[algorithm].config if key == "algo" else hint
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            values[name] = _build(hint, flat, algorithm, key + ".")
        elif key == "env_args":
            values[name] = {k.removeprefix("env_args."): v for k, v in flat.items() if k.startswith("env_args.")}
        elif key == "curriculum":
            texts = {k.removeprefix("curriculum."): v for k, v in flat.items() if k.startswith("curriculum.")}
            values[name] = {k: v for k, v in texts.items() if v is not None}
        elif key in flat:
            values[name] = flat[key]
    return cls(**values)
