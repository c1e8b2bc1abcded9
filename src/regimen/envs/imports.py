"""Objects by import string: `module:attribute` or `path/to/file.py:attribute`."""

import difflib
import importlib
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from regimen.config import trust
from regimen.config.catalogue import ENVS
from regimen.errors import ConfigError, EnvError, UntrustedError, nearest

OBJECT = "python:"  # begins the id of an environment that only the user's program can make


def import_string(thing: Any) -> str:
    """`module:name` of a class or function; a string as it is."""
    return thing if isinstance(thing, str) else f"{thing.__module__}:{thing.__qualname__}"


def portable_env(env: str, who: str) -> str:
    """An id that makes the environment in any process; refused where there is none. `who` cannot make it."""
    target = ENVS[env].target if env in ENVS else env
    name = env if isinstance(target, str) and env not in ENVS else import_string(target)
    if name.startswith((OBJECT, "__main__:")) or "<" in name:
        raise ConfigError(
            f"{who} make the environment by themselves and cannot make {env}, which lives in this program; "
            "put it into a module and name it as module:factory"
        )
    return name


def load(target: str) -> Any:
    """The object an import string names: `module:attribute` or `path/to/file.py:attribute`."""
    where, _, attribute = target.rpartition(":")
    if not where or not attribute:
        raise ConfigError(f"environment '{target}': write module:factory or path/to/file.py:factory")
    with trust.judging(target):
        value: Any = import_file(where) if where.endswith(".py") else import_module(where)
        for part in attribute.split("."):
            if not hasattr(value, part):
                public = [n for n in vars(value) if not n.startswith("_")]
                raise EnvError(f"environment '{target}': {where} has no '{part}'{nearest(part, public)}")
            value = getattr(value, part)
            trust.require_value(value)
    return value


def import_module(name: str) -> ModuleType:
    trust.require_module(name)
    if trust.judged() is None and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a user's file never hides an installed package
    try:
        module = importlib.import_module(name)
        trust.require_origin(module)
        return module
    except UntrustedError:
        raise
    except (Exception, SystemExit) as e:
        close = difflib.get_close_matches(name, ["gym", "gymnax", "pettingzoo"], n=1)
        hint = f"; did you mean '{close[0]}:...'?" if close else ""
        if isinstance(e, ModuleNotFoundError) and e.name == name.split(".")[0] and not hint:
            hint = "; run from the directory that holds it, or write path/to/file.py:factory"
        raise EnvError(f"cannot import the environment module '{name}': {one_line(e)}{hint}") from e


def import_file(path: str) -> ModuleType:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise EnvError(f"cannot import the environment file '{path}': no such file")
    trust.require_file(file)
    name = f"regimen_user_{file.stem}_{zlib.crc32(str(file).encode()):08x}"  # one module per file, imported once
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # its neighbours can be imported
    try:
        spec.loader.exec_module(module)
    except UntrustedError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise EnvError(f"cannot import the environment file '{path}': {one_line(e)}") from e
    return module


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
