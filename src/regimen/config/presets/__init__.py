"""Presets: named starting points as YAML. `NAME.yaml` fits any environment, `envs/NAME.yaml` is tuned for one with PPO,
`envs/FAMILY.any.yaml` for all of a family,
`envs/ALGORITHM/NAME.yaml` with another algorithm. `ALGORITHM.yaml` is where that algorithm starts from by default.

A file holds `description`, `settings` (the keys of `config.yaml`), and optionally `cpu` and `gpu`: settings on top for
that device. `extends: NAME` starts from another file beside it. A tuned file also lists `gym_ids`, the ids of the same
task in Gymnasium and gymnax.
"""

import errno
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from regimen.config import trust, yaml_files
from regimen.config.catalogue import FILES
from regimen.config.domains import domains
from regimen.errors import ConfigError, nearest

FOLDER = Path(__file__).parent
DEFAULT = "balanced"
TUNED = "tuned"
STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # what a shell makes of --config <(command)
KEYS = {"description": str, "extends": str, "settings": dict, "cpu": dict, "gpu": dict, "gym_ids": list}


@dataclass(frozen=True)
class Preset:
    """One preset file, its settings not yet checked against an algorithm."""

    name: str
    path: Path
    description: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`cpu` and `gpu`: settings on top of `settings` for that device."""
    gym_ids: tuple[str, ...] = ()


def load_yaml(path: Path, what: str) -> dict[str, Any]:
    """A YAML file that holds a mapping, or a ConfigError in one line."""
    try:
        if path.exists() and not path.is_file() and not str(path).startswith(STREAMS):
            raise OSError(errno.EINVAL, "not a regular file")  # a pipe in a run would be waited for
        content = yaml_files.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} '{path}' cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{what} '{path}':{line} not valid YAML: {reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{what} '{path}': expected `key: value` lines, found {type(content).__name__}")
    return trust.named(content, path)


@lru_cache(maxsize=64)
def _read(path: Path, name: str) -> Preset:
    content = read_content(path, name)
    return Preset(
        name,
        path,
        content.get("description", ""),
        content.get("settings", {}),
        {device: content[device] for device in ("cpu", "gpu") if device in content},
        tuple(content.get("gym_ids", ())),
    )


def read_content(path: Path, name: str) -> dict[str, Any]:
    """What a preset's file says, on top of what the file that it extends says."""
    content = load_yaml(path, "preset")
    for key, value in content.items():
        if key not in KEYS:
            raise ConfigError(
                f"preset '{name}': unknown key '{key}'{nearest(str(key), KEYS)} (hyper-parameters go under `settings`)"
            )
        if not isinstance(value, KEYS[key]):
            raise ConfigError(f"preset '{name}': {key} must be a {KEYS[key].__name__}, not {type(value).__name__}")
    if "extends" not in content:
        return content
    return merged(read_content(path.with_name(f"{content['extends']}.yaml"), name), content)


def merged(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Nested mappings, `high` over `low`."""
    both = {k: merged(low[k], v) for k, v in high.items() if isinstance(v, dict) and isinstance(low.get(k), dict)}
    return low | high | both


def files_below(folder: str) -> dict[str, Path]:
    """The YAML files of a folder beside this file and in those of domains, by their name without `.yaml`."""
    roots = [FOLDER, *(Path(domain.presets) for domain in domains().values() if domain.presets is not None)]
    files = {path.stem: path for root in roots for path in (root / folder).glob("*.yaml")}
    return {name: files[name] for name in sorted(files)}


def list_presets() -> dict[str, Preset]:
    """The presets that fit any environment, by name."""
    return {name: _read(path, name) for name, path in preset_files().items()}


def preset_files() -> dict[str, Path]:
    """The files of the presets that fit any environment, by name."""
    return files_below("")


def tuned_files(algorithm: str) -> dict[str, Path]:
    """The files of an algorithm's tuned presets by their name without `.yaml`."""
    return files_below("envs" if algorithm == "ppo" else f"envs/{algorithm}")


def list_tuned(algorithm: str = "ppo") -> dict[str, Preset]:
    """The tuned presets of an algorithm, by environment."""
    return {name.replace(".", "/"): _read(path, TUNED) for name, path in tuned_files(algorithm).items()}


def tuned_for(env: str, algorithm: str = "ppo") -> Preset | None:
    """The tuned preset of an environment (`cartpole`, or `gym:CartPole-v1` through `gym_ids`), if there is one; else
    that of its family (`FAMILY.any.yaml` for `FAMILY/NAME` and `FAMILY:FILE`)."""
    name = re.fullmatch(r"([a-z0-9_]+)(/[a-z0-9_]+)?", env)
    prefix = env.partition(":")[0]
    of_file = prefix in FILES and FILES[prefix].tuned
    family = prefix if of_file else name[1] if name and name[2] else None
    stems = [env.replace("/", ".")] if name else []
    files = tuned_files(algorithm)
    for stem in [*stems, *([f"{family}.any"] if family else [])]:
        if stem in files:
            return _read(files[stem], TUNED)
    library, _, task = env.partition(":")
    if library in ("gym", "gymnax"):
        return next((p for p in list_tuned(algorithm).values() if task in p.gym_ids), None)
    return None


def default_for(env: str, algorithm: str = "ppo") -> str:
    """The preset of a run that names none: the environment's own, else the algorithm's, else `balanced`."""
    if tuned_for(env, algorithm) is not None:
        return TUNED
    return algorithm if algorithm in preset_files() else DEFAULT


def load_preset(name: str, env: str = "", algorithm: str = "ppo") -> Preset:
    """A preset by name, `tuned` for the environment's own with this algorithm, or a path to a user's file."""
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name).expanduser(), name)
    name = name.replace("-", "_")
    if name == TUNED:
        preset = tuned_for(env, algorithm)
        if preset is None:
            tuned = ", ".join(list_tuned(algorithm)) or "none"
            raise ConfigError(f"preset 'tuned': '{env}' has no tuned settings for {algorithm}; these have: {tuned}")
        return preset
    files = preset_files()
    if name not in files:
        raise ConfigError(f"unknown preset '{name}'{nearest(name, [*files, TUNED])}")
    return _read(files[name], name)
