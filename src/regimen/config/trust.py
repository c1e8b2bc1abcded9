"""What a file may make Regimen import. One rule, for every verb, decided here and nowhere else. Jax-free.

A user's own words, on the command line or in Python, are trusted: `regimen train my_env.py:make`. Words read from a
file (the configuration of a run, a policy, a sweep or a dataset) may come from a stranger. They are `Named`, and while
what they name is imported and made, nothing is imported that is not installed, unless the user says `--trust` or has
named the same himself.
"""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache, wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from regimen.errors import UntrustedError

F = TypeVar("F", bound=Callable[..., Any])
FILE = "file of this process: "
_trusting: ContextVar[bool] = ContextVar("trusting", default=False)
_judged: ContextVar[Named | None] = ContextVar("judged", default=None)  # the word of a file that is being made
_vouched: set[str] = set()  # what the user has named, in this process
_makings: list[tuple[Named, frozenset[int]]] = []  # words that are judged just now, and the threads there were before
_helpers: WeakKeyDictionary[threading.Thread, Named] = WeakKeyDictionary()  # threads that were begun within


class Named(str):
    """A word from a file, and which file."""

    source: str = "a file"


def named(value: Any, source: str | Path) -> Any:
    """Data of a file, with every word in it that could name code marked as the file's."""
    if f"{FILE}{Path(source).resolve()}" in _vouched:
        return value
    if isinstance(value, dict):
        return {key: named(item, source) for key, item in value.items()}
    if isinstance(value, list):
        return [named(item, source) for item in value]
    if isinstance(value, str) and ":" in value:
        word = Named(value)
        word.source = str(source)
        return word
    return value


def vouch_file(path: Path) -> None:
    """Remember a file that this process has written: its words are the user's own."""
    _vouched.add(f"{FILE}{path.resolve()}")


def pledge() -> tuple[bool, frozenset[str]]:
    """What the user trusts here, to be taken over by a process of his own."""
    return is_trusting(), frozenset(_vouched)


@contextlib.contextmanager
def taking(pledged: tuple[bool, frozenset[str]]) -> Iterator[None]:
    """Trust within what another process of the same command trusts."""
    _vouched.update(pledged[1])
    with trusting(pledged[0]):
        yield


def alike(part: str, whole: object) -> str:
    """A part of a word, which is the file's where the whole is."""
    return named(part, whole.source) if isinstance(whole, Named) else part


def source_of(data: Any) -> str | None:
    """The file of a word of a file, where there is one in the data."""
    items = data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ()
    return data.source if isinstance(data, Named) else next(filter(None, map(source_of, items)), None)


def is_trusting() -> bool:
    """Whether the user trusts what files name."""
    return _trusting.get()


@contextlib.contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Whatever a file names may be imported within, if `trust`; else as it was."""
    token = _trusting.set(trust or _trusting.get())
    try:
        yield
    finally:
        _trusting.reset(token)


def trustable(function: F) -> F:
    """A function whose keyword `trust` says that what files name may be imported."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with trusting(bool(kwargs.get("trust", False))):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def vouch(name: object) -> None:
    """Remember what the user named himself; a file that names the same is trusted in this process."""
    if isinstance(name, str) and not isinstance(name, Named) and judged() is None:
        _vouched.add(anchored(name))


def anchored(name: str) -> str:
    """`file.py:factory` with the file's absolute path."""
    file, colon, attribute = name.rpartition(":")
    return f"{os.path.realpath(os.path.expanduser(file))}:{attribute}" if file.endswith(".py") and colon else name


@contextlib.contextmanager
def judging(name: object) -> Iterator[bool]:
    """Import and make what is named. Within, nothing is imported that is not installed where a file named it; True
    there. What is asked for within is judged alike: an environment may make another one by its name."""
    if isinstance(name, Named) and not is_trusting() and anchored(name) not in _vouched:
        if not any(isinstance(finder, ImportGuard) for finder in sys.meta_path):
            sys.meta_path.insert(0, ImportGuard())
        token, making = _judged.set(name), (name, frozenset(map(id, threading.enumerate())))
        _makings.append(making)
        try:
            yield True
        finally:
            _judged.reset(token)
            _makings.remove(making)
            _helpers.update({thread: name for thread in threading.enumerate() if id(thread) not in making[1]})
    else:
        yield _judged.get() is not None


def judged() -> Named | None:
    """The word of a file that is being made, if one is: here, or by what has begun this thread."""
    thread = threading.current_thread()
    begun = (name for name, before in _makings if id(thread) not in before)
    return _judged.get() or _helpers.get(thread) or next(begun, None)


def refused(what: str) -> UntrustedError:
    """The refusal of what is being made, in one line."""
    name = judged()
    source = "a file" if name is None else name.source
    return UntrustedError(
        f"{source} names the code '{name}', and {what}; a file may come from anybody: read that code, then allow it "
        "with --trust (trust=True in Python)"
    )


def require_module(name: str) -> None:
    """Refuse a module that a file names and that holds no environments: Python's own run commands and programs."""
    if judged() is None:
        return
    if name.partition(".")[0] in sys.stdlib_module_names or "__main__" in name.split("."):
        raise refused(f"'{name}' is Python's own and holds no environment")


def require_file(path: Path) -> None:
    """Refuse a Python file that a file names: what is installed is named as a module."""
    if judged() is not None:
        why = "is named as a file, not as a module" if is_installed(str(path)) else "is no part of an installed package"
        raise refused(f"{path} {why}")


def require_origin(module: ModuleType) -> None:
    """Refuse a module that a file names, is not installed and was imported before, by a call that was trusted."""
    origin = getattr(module, "__file__", None)
    if judged() is not None and origin is not None and not is_installed(origin):
        raise refused(f"{origin} is no part of an installed package")


def require_value(value: object) -> None:
    """Refuse what a file reaches through an installed module and that is Python's own, such as `os.system`."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if judged() is not None and str(home).partition(".")[0] in sys.stdlib_module_names:
        raise refused(f"'{home}' is Python's own and holds no environment")


def require_address(address: str) -> None:
    """Refuse to join the cluster whose address is a file's: what a cluster sends is code."""
    with judging(address) as strange:
        if strange:
            raise refused("a cluster sends code")


class ImportGuard:
    """Comes first when a module is looked for: refuses to find those that are not installed, before they run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if judged() is None:
            return None
        for finder in sys.meta_path:
            find = None if isinstance(finder, ImportGuard) else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.has_location and not is_installed(str(spec.origin)):
                    raise refused(f"{spec.origin} is no part of an installed package")
                return spec
        return None


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package, to Python or to Regimen. Never by the current directory."""
    paths = os.path.realpath(file), os.path.abspath(file)  # some installers link packages into their folder
    return any(path.startswith(folder + os.sep) for folder in installed() for path in paths)


@cache
def installed() -> tuple[str, ...]:
    """The folders of installed packages, Python's library and Regimen's own."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")] + site.getsitepackages()
    folders += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return tuple({os.path.realpath(folder) for folder in folders} | {str(Path(__file__).resolve().parents[1])})
