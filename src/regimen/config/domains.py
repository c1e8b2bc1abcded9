"""Domains: fields of application that bring environments, algorithms, presets and verbs of their own. Jax-free.

A domain is a package whose `__init__.py` holds a `DOMAIN = Domain(...)` and imports nothing heavy: what belongs to it
is named by import strings and loaded when it is used. Regimen's own domains are the folders of `regimen.domains`; an
installed package adds one with an entry point of the group `regimen.domains`:

    [project.entry-points."regimen.domains"]
    forest = "forest_package:DOMAIN"
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

TYPE_CHECKING = False  # as typing's, which takes a tenth of the time of `regimen --help` to import
if TYPE_CHECKING:
    from typing import Any

GROUP = "regimen.domains"  # the package of Regimen's own domains, and the group of entry points of others'


def load(target: str) -> Any:
    """The object that an import string `module:name` names, imported now."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class EnvEntry:
    """A registered environment."""

    target: Any  # "module:Class", "gym:ID", "gymnax:ID", "PREFIX:NAME" of `FILES`, or a class, factory or instance
    description: str = ""
    gym_id: str | None = None  # the Gymnasium environment whose transitions it equals


@dataclass(frozen=True)
class FileKind:
    """Files that environments are made from: `PREFIX:FILE`."""

    target: str  # "module:callable", which makes the environment from what follows the colon
    what: str  # such a file in words
    file: str  # how help writes it
    description: str
    tuned: bool = False  # whether presets of the family `PREFIX/NAME` fit these as well


@dataclass(frozen=True)
class AlgorithmEntry:
    """A registered algorithm: its hyper-parameters, and where its class is without importing it."""

    settings: str | type
    """Dataclass of its hyper-parameters, or `module:Class`; a `validate()` method on it may refuse combinations."""
    target: str | type
    """`module:Class`, imported when first used, or the class itself."""
    description: str = ""
    when: str = ""
    """When to use it, in one line."""
    offline: bool = False
    """Can learn from a dataset: its class has a method `fit`."""
    online: bool = True
    """Can learn from an environment: its class has a method `update`. Else data is collected first."""

    @cached_property
    def config(self) -> type:
        """The dataclass of its hyper-parameters."""
        return load(self.settings) if isinstance(self.settings, str) else self.settings

    def load(self) -> Any:
        """The algorithm's class, imported now."""
        return load(self.target) if isinstance(self.target, str) else self.target


@dataclass(frozen=True)
class Verb:
    """A verb of the command line: `regimen NAME ARGUMENTS`."""

    arguments: str  # how help writes them
    help: str  # one line
    target: str
    """`module:Class`, the dataclass of its flags, which does its work when called and returns the exit code, None for
    0; or a module with `run(argv) -> exit code`, which reads its arguments itself."""
    group: str = "Train"  # under which heading of `regimen --help`
    words: str = ""  # what completes its arguments: envs, presets, algorithms, shells or actions
    examples: tuple[str, ...] = ()  # at the end of its `--help`, where its description has none


@dataclass(frozen=True)
class Study:
    """A study of `regimen study NAME`."""

    help: str  # one line
    args: str  # "module:Class", the dataclass of its flags
    target: str  # the module with `run(env, **flags) -> study`
    example: str


@dataclass(frozen=True)
class ExportForm:
    """A form of `regimen export RUN --as NAME`: a policy as something that a tool of the field runs."""

    help: str  # one line
    target: str
    """`module:function`, which writes the files: (policy, folder) -> the file to begin with. It refuses what it cannot
    write, and what it has written does as the policy does."""


@dataclass(frozen=True)
class Domain:
    """What a domain brings. `regimen.NAME.FUNCTION` is a function of `functions`."""

    name: str
    description: str
    environments: Mapping[str, EnvEntry] = field(default_factory=dict)
    files: Mapping[str, FileKind] = field(default_factory=dict)
    algorithms: Mapping[str, AlgorithmEntry] = field(default_factory=dict)
    presets: str | None = None
    """A folder like `config/presets`: `NAME.yaml`, `envs/NAME.yaml`, `envs/ALGORITHM/NAME.yaml`."""
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    studies: Mapping[str, Study] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    """Name -> `module:function`, what `regimen.NAME` offers in Python."""
    hint: str = ""
    """What the page says of pictures to a run that has none, where there is more than `regimen replay`."""
    tables: str | None = None
    """`module:function`, which draws a table that a run left in `trajectories/` or `replays/` for the page: (file name,
    header, rows, configuration as dotted keys) -> a view of `files.views`, or None where it draws no such table."""
    exports: Mapping[str, ExportForm] = field(default_factory=dict)
    """Forms in which `regimen export RUN --as NAME` writes policies of its environments."""
    leaderboard: str | None = None
    """`module:function`, which plays a policy by the rules of the field's public leaderboard: (environment's handle,
    policy, episodes, seed, which policy of the run) -> a `policies.leaderboard.Board`."""
    names: str | None = None
    """A file like `config/names.yaml`: what its field's people call the settings of its environments and algorithms."""
    answers: str | None = None
    """A file like `config/answers.yaml`: what they call environments, verbs and functions."""
    discount: tuple[str, float] | None = None
    """The field of its environments whose value must be the learner's discount (that of shaping by a potential), and
    its default."""
    moot: Mapping[tuple[str, object], tuple[str, ...]] = field(default_factory=dict)
    """(Argument of its environments, value) -> arguments without effect there: presets then do not set them, and the
    environment refuses them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self.functions:
            raise AttributeError(f"regimen.{self.name} has no '{name}'")
        return load(self.functions[name])

    def __dir__(self) -> list[str]:
        return sorted(self.functions)

    def owns(self, env: str) -> bool:
        """Whether an environment's name or `PREFIX:FILE` is of this domain."""
        return env in self.environments or env.partition(":")[0] in self.files


def domain_of(env: str) -> Domain | None:
    """The domain that an environment's name or `PREFIX:FILE` is of, if it is of one."""
    return next((domain for domain in domains().values() if domain.owns(env)), None)


def effective(env: str, args: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an environment without those that have no effect beside what was `chosen` on top of them."""
    domain, both = domain_of(env), {**args, **chosen}
    moot = {} if domain is None else domain.moot
    without = {name for (key, value), names in moot.items() if both.get(key) == value for name in names}
    return {name: value for name, value in args.items() if name not in without}


@cache
def domains() -> dict[str, Domain]:
    """All domains by name: the folders of `regimen.domains`, then those of installed packages."""
    paths = [path for folder in importlib.import_module(GROUP).__path__ for path in os.scandir(folder)]
    packages = [path.name for path in paths if os.path.isfile(os.path.join(path, "__init__.py"))]
    every = [load(f"{GROUP}.{name}:DOMAIN") for name in sorted(packages)]
    for text in installed():
        try:
            domain = load(text)
            if not isinstance(domain, Domain):
                raise TypeError(f"a {type(domain).__name__} is no regimen.config.domains.Domain")
            every.append(domain)
        except Exception as error:  # whatever another package does, Regimen still runs
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"regimen: the domain '{text}' of an installed package is left out: {reason}", file=sys.stderr)
    return {domain.name: domain for domain in every}


def installed() -> list[str]:
    """The import strings of domains in installed packages. `importlib.metadata` is imported only where one announces a
    domain: it takes longer than all else before the first line of output."""
    if not any(map(announces, sys.path)):
        return []
    from importlib.metadata import entry_points

    return sorted(point.value for point in entry_points(group=GROUP))


def announces(folder: str) -> bool:
    """Whether a package installed in a folder of `sys.path` has an entry point of the group."""
    mark = f"[{GROUP}]".encode()
    folder = folder or "."
    packages = [name for name in os.listdir(folder) if name.endswith(".dist-info")] if os.path.isdir(folder) else []
    for name in packages:
        with contextlib.suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
            if mark in file.read():
                return True
    return False
