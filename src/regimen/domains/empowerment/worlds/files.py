"""Worlds as files: a text map alone, or YAML with a `map` and the fields of its kind of world; and those that come with
Regimen, by name. Jax-free.

kind: bush            # may be left out: the tokens of the map tell
B: 10
max_episode_steps: 12
map: |
  Hu 1 Ro 1 Hu
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from regimen.config import domains, yaml_files
from regimen.errors import ConfigError, EnvError, nearest
from regimen.files.storage import read_plain

if TYPE_CHECKING:
    from regimen.domains.empowerment.worlds.world import World

KINDS = {
    "bush": "regimen.domains.empowerment.worlds.bush:BushWorld",
    "grid": "regimen.domains.empowerment.worlds.grid:GridWorld",
    "family": "regimen.domains.empowerment.worlds.family:GridFamily",
}
DRAWN = ("niches", "locked", "blocks")  # kinds of maps that are drawn at random: entries without a map
ALIASES = {"max_steps": "max_episode_steps", "actions": "action_set"}


@cache
def library() -> dict[str, dict[str, Any]]:
    """The worlds that come with Regimen by their names: map, kind and fields."""
    return yaml.safe_load(Path(__file__).with_name("library.yaml").read_text(encoding="utf-8"))


def load(path: str) -> World:
    """The world of that name in the library, or of a map file."""
    return build(library()[path], f"world/{path}") if path in library() else build(read(path), f"world:{path}")


def read(path: str) -> dict[str, object]:
    """What a map file says, not yet checked."""
    try:
        text = read_plain(Path(path).expanduser())
    except (OSError, UnicodeDecodeError) as e:
        raise EnvError(f"world:{path}: cannot be read: {getattr(e, 'strerror', None) or e}") from e
    if not any(line.startswith("map:") for line in text.splitlines()):
        return {"map": text}
    try:
        data = yaml_files.load(text)
    except yaml.YAMLError as e:
        raise EnvError(f"world:{path}: not YAML: {' '.join(str(e).split())}") from e
    if not isinstance(data, dict):
        raise EnvError(f"world:{path}: it holds no `map:`")
    return data


def build(data: Mapping[str, object], where: str) -> World:
    """The world that a file or an entry of the library describes."""
    from regimen.config.validation import coerce
    from regimen.envs.arguments import hint_of, hints_of

    data = {ALIASES.get(str(key), str(key)): value for key, value in data.items() if key != "description"}
    text = data.get("map")
    if isinstance(text, list):
        text = data["map"] = "\n".join(" ".join(map(str, row)) if isinstance(row, list) else str(row) for row in text)
    family = text is None and data.get("kind") in DRAWN
    if not family and (not isinstance(text, str) or not text.strip()):
        raise ConfigError(f"{where}: 'map' must be rows of tokens, as text")
    kind = "family" if family else str(data.pop("kind", None) or kind_of(str(text)))
    if kind not in KINDS:
        raise ConfigError(f"{where}: kind '{kind}' is unknown{nearest(kind, KINDS)}")
    cls = domains.load(KINDS[kind])
    hints, fields = hints_of(cls), {f.name: f for f in dataclasses.fields(cls)}
    for key, value in data.items():
        if key not in fields:
            raise ConfigError(f"{where}: a {kind} world has no '{key}'{nearest(key, fields)}")
        data[key] = coerce(value, hint_of(hints.get(key), fields[key].default), f"{where}: {key}")
    return cls(**data)


def kind_of(text: str) -> str:
    """The kind of world whose map this is. Bush maps have robots `Ro` and humans `Hu`; in others `Ro` is a rock."""
    tokens = [token.partition(":")[0] for token in text.replace("/", " ").split()]
    return "bush" if "Hu" in tokens or all(t in ("Ro", ".") or t.isdecimal() for t in tokens) else "grid"
