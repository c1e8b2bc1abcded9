"""JSON objects that are read back and must be what was written: each has a digest of all that it says. Jax-free.

A digest is of the data, not of the bytes: with other white space it is the same object. `schema` says that there is
one, so an object that has lost its digest is refused like one with another. Those that were written before there were
digests have no schema, or an earlier one.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from regimen.errors import RegimenError, StorageError
from regimen.files.storage import Json, plain, read_plain, write_json

F = TypeVar("F", bound=Callable[..., Any])
SCHEMA, DIGEST = "schema", "digest"
ADVICE = "put it back as it was"


def digest_of(value: object) -> str:
    """SHA-256 of plain data; the order of keys counts, as it does in a space."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(value: Json, schema: int = 1) -> Json:
    """The object with its schema and the digest of all of it."""
    content = {SCHEMA: schema} | value
    return content | {DIGEST: digest_of(content)}


def unseal(value: Json, where: str, since: int = 1) -> Json:
    """The object without its digest, which must fit; of a schema before `since` it may have none."""
    content = {name: item for name, item in value.items() if name != DIGEST}
    schema = value.get(SCHEMA, 0)
    if DIGEST in value or not isinstance(schema, int) or schema >= since:
        with reading(where):
            if value.get(DIGEST) != digest_of(content):
                raise StorageError(f"{where} is damaged: it has changed since it was written; {ADVICE}")
    return content


def write_sealed(path: Path, value: Mapping[str, object], schema: int = 1, sync: bool = True) -> None:
    write_json(path, seal(plain(value), schema), sync)


def read_sealed(path: Path, required: bool = False) -> Json:
    """The object in a file of `write_sealed`, without what seals it; empty where there is no file, StorageError where
    it is not what was written. `required`: it is not of a time before there were digests."""
    if not path.exists():
        return {}
    content = unseal(load_object(path), str(path), since=0 if required else 1)
    return {name: item for name, item in content.items() if name != SCHEMA}


def load_object(path: Path) -> Json:
    """The object in a JSON file, or StorageError in one line."""
    value = load_json(path)
    if not isinstance(value, dict):
        raise StorageError(f"{path} is damaged: it holds no object; {ADVICE}")
    return value


def load_json(path: Path) -> Any:
    """What a JSON file holds, or StorageError in one line."""
    try:
        return json.loads(read_plain(path))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: it cannot be read as JSON ({brief(error)}); {ADVICE}") from error


@contextlib.contextmanager
def reading(what: object) -> Iterator[None]:
    """Where data of a file is taken apart: whatever is wrong with it is one line that names the file."""
    try:
        yield
    except RegimenError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        raise StorageError(f"{what} is damaged: {brief(error)}") from error
    except RecursionError as error:
        raise StorageError(f"{what} is damaged: it is nested too deeply") from error


def reads(function: F) -> F:
    """A function of run directories (its first argument) that runs nothing of the user's: see `reading`."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        source = inspect.signature(function).bind(*args, **kwargs).args[0]  # it may have been given by its name
        paths = [source] if isinstance(source, (str, Path)) else list(source)
        with reading(" or ".join(map(str, paths[:3])) + (" or another run" if len(paths) > 3 else "")):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def brief(error: BaseException) -> str:
    """An error in a few words: a missing key by its name."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text[:160]}"
