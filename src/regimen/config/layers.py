"""From layers of settings to one `TrainConfig`: defaults < preset < config file < flags or Python keywords. Jax-free.

Each layer is flattened to dotted keys of the right type (`algo.lr`, `rollout.episodes`), then merged onto those below;
a few keys exclude each other, so setting one clears its rival in lower layers (`merge`).
"""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regimen.config import datasets, presets, trust
from regimen.config import names as migrating
from regimen.config.catalogue import ENVS, FILES, OTHERS, anchored, full_name, suggestion
from regimen.config.curriculum import PRESET
from regimen.config.domains import domain_of, effective
from regimen.config.lookup import ALIASES, UnknownSettingError, leaf_types, normalize_key, resolve_key, sections_of
from regimen.config.regimen import EPISODES, resolve
from regimen.config.schema import ALGORITHMS, TrainConfig
from regimen.config.validation import coerce, field_types, validate
from regimen.errors import ConfigError, nearest

BASE = {"rollout.episodes": EPISODES, "total_episodes": 1000}  # below every preset: what `balanced` has
FALSE_TRUE = ("false", "true")
OPEN_SECTIONS = ("env_args", "curriculum")


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

    for layer in (overrides, file):
        refuse_section_of_env(_peek(layer, "env"))
    named = env or _peek(overrides, "env") or _peek(file, "env")
    env = coerce(named, str | None, "env")
    if not env:
        for layer, place in ((file, file_where), (overrides, "")):  # it may be named as elsewhere
            flatten(layer, check_algorithm(algo or _peek_algorithm(layer) or "ppo"), place)
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
    of_file, of_flags = flatten(file, algorithm, file_where, env), flatten(overrides, algorithm, "", env)
    flat = effective_layer(env, flat, of_file | of_flags)
    flat = merge(merge(flat, of_file, file_where), of_flags)
    flat |= {"env": env, "algorithm": algorithm}
    if source is not None:
        flat["preset"] = source.name
    config = share_discount(validate(_build(TrainConfig, flat, algorithm)))
    if of_flags.get("engine.workers") and config.engine.name == "local":
        raise ConfigError("engine.workers: there are workers only with --engine ray; without it, leave this out")
    resolve(config, native=True)
    return config


def algorithm_of(env: str, settings: Mapping[str, object]) -> str:
    """The algorithm that a command line means, as far as it can be told without its unknown flags."""
    file, preset = settings.get("config"), settings.get("preset")
    for layer in (settings, presets.load_yaml(Path(str(file)).expanduser(), "config file") if file else {}):
        name = _peek_algorithm(layer)
        if name is not None and name.lower() in ALGORITHMS:
            return name.lower()
    of_preset = presets.load_preset(str(preset), env, "ppo").settings if preset and env else {}
    return _peek_algorithm(of_preset) or "ppo"


def refuse_section_of_env(named: object) -> None:
    """Refuse a section `env` and say how its name and arguments are written."""
    if not isinstance(named, Mapping):
        return
    names = [key for key in named if (name := migrating.name_of(f"env.{key}")) and "env" in name.ours]
    arguments = {key: value for key, value in named.items() if key not in names}
    name = migrating.environment(str(named[names[0]])) if names else "NAME"
    args = migrating.written("env_args", migrating.plain(migrating.arguments(arguments)))
    raise ConfigError(f"env: the name of an environment; write env: {name}" + (f" and {args}" if arguments else ""))


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
    flat = {"network.encoder": "mlp"} | flatten(data, algorithm, "config: ")  # before there were any, all was a vector
    flat = effective_layer(str(flat.get("env")), flat, {})
    return validate(_build(TrainConfig, flat, algorithm))


def from_preset(preset: presets.Preset, device: str = "cpu") -> TrainConfig:
    """A preset by itself, to be described."""
    algorithm = check_algorithm(_peek_algorithm(preset.settings) or "ppo")
    flat = merge(BASE, preset_layer(preset, algorithm, device), f"preset '{preset.name}': ")
    return validate(_build(TrainConfig, flat, algorithm))


def flatten(layer: Mapping[str, object], algorithm: str, where: str = "", env: str = "") -> dict[str, Any]:
    """A layer as dotted keys with values of the right type. `where` starts every error message; `env` is the
    environment, of whose arguments an error may speak."""
    leaves, sections = leaf_types(algorithm), sections_of(algorithm)
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
            key = key.lower() if key.lower() in (*sections, *OPEN_SECTIONS) else key
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
            elif key == "algorithm" and isinstance(value, Mapping):  # a section of another trainer
                unknown[key] = value
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
        raise UnknownSettingError(unknown, algorithm, where, env)
    return flat


def _peek(layer: Mapping[str, object], name: str) -> Any:
    return next((v for k, v in layer.items() if normalize_key(k).lower() == name), None)


def _peek_algorithm(layer: Mapping[str, object]) -> str | None:
    """The algorithm a layer names: `algorithm: ppo`, `algo: ppo`, or a hyper-parameter object `algo=PPOConfig(...)`."""
    name, algo = _peek(layer, "algorithm"), _peek(layer, "algo")
    name = None if isinstance(name, Mapping) else name  # a section of another trainer, which `flatten` answers
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
    """Check the name of an algorithm and return it in lower case."""
    if name.lower() not in ALGORITHMS:
        hint = migrating.equivalent("algorithm", name.lower()) or nearest(name.lower(), ALGORITHMS)
        raise ConfigError(f"unknown algorithm '{name}'{hint}")
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
        elsewhere = migrating.equivalent("environment", env.lower())
        hint = elsewhere or (suggestion(env) if re.search(r"-[vV]\d+$", env) else nearest(env, ENVS))
        if os.path.isdir(env):
            hint = ": a folder, but no Minari dataset (data/metadata.json is missing)"
        elif os.path.isfile(env):
            hint = ": a file; " + ", ".join(f"{kind.what} is written {p}:{env}" for p, kind in FILES.items())
        raise ConfigError(f"unknown environment '{env}'{hint} (or {OTHERS})")


def merge(low: Mapping[str, Any], high: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Merge two layers of settings, `high` over `low`; what `high` sets clears the settings of `low` that would
    contradict it."""
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
