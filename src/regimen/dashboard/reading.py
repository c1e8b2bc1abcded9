"""Reading files of run directories that may be huge, broken or hostile.

A file is opened step by step below the folder that was given, without following links, so nothing outside it can be
shown; devices and pipes are refused; everything has a size limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import yaml

from regimen.errors import StorageError
from regimen.files.run_dir import is_as_written
from regimen.files.sealed import unseal
from regimen.files.storage import dotted

SMALL = 4 << 20  # most bytes of a JSON or YAML file of a run
DEPTH, LEAVES = 40, 5_000  # most nesting of a configuration, and most values shown of it
Setting = None | bool | int | float | str
Settings = dict[str, Setting]  # a configuration by its dotted keys
NAME = 255  # most characters of a metric's or a value's name


class UnreadableError(Exception):
    """Why a file is not shown, in words for the page."""


@contextlib.contextmanager
def opened(root: Path, *parts: str) -> Iterator[BinaryIO]:
    """A regular file below `root`, or UnreadableError. `parts` are single names: none may be a link, '..' or a path."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not make us wait
    held: list[int] = []
    try:
        held.append(os.open(root, flags | os.O_DIRECTORY))
        for i, part in enumerate(parts):
            if part in ("", ".", "..") or "/" in part or "\0" in part:
                raise UnreadableError("not a plain file name")
            folder = os.O_DIRECTORY if i < len(parts) - 1 else 0
            held.append(os.open(part, flags | os.O_NOFOLLOW | folder, dir_fd=held[-1]))
        if not stat.S_ISREG(os.fstat(held[-1]).st_mode):
            raise UnreadableError("not a plain file")
        with os.fdopen(held.pop(), "rb") as file:
            yield file
    except OSError as error:
        raise UnreadableError(error.strerror or "cannot be read") from error
    finally:
        for descriptor in held:
            os.close(descriptor)


def read_bytes(limit: int, root: Path, *parts: str) -> bytes:
    """The whole file, if it is not larger than `limit`."""
    with opened(root, *parts) as file:
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > limit else file.read(limit + 1)
    if size > limit or len(data) > limit:
        raise UnreadableError(f"larger than {limit / 2**20:.0f} MiB")
    return data


def read_tail(limit: int, root: Path, *parts: str) -> bytes:
    """The last `limit` bytes, from the first whole line on."""
    with opened(root, *parts) as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - limit)
        file.seek(start)
        data = file.read(limit)
    return data.partition(b"\n")[2] if start else data


def parse_json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"not valid JSON: {str(error)[:120]}") from error


def read_object(root: Path, *parts: str, limit: int = SMALL) -> dict[str, object]:
    """The JSON object in a file; empty where there is none that can be read."""
    try:
        value = parse_json(read_bytes(limit, root, *parts))
    except UnreadableError:
        return {}
    return value if isinstance(value, dict) else {}


def read_own(root: Path, *parts: str) -> tuple[dict[str, object], str | None]:
    """The object in a file that Regimen reads back, as far as it can be read, and what is wrong with it."""
    if not os.path.lexists(root.joinpath(*parts)):
        return {}, None
    try:
        value = parse_json(read_bytes(SMALL, root, *parts))
        if isinstance(value, dict):
            unseal(value, parts[-1])
    except UnreadableError as error:
        return {}, f"{parts[-1]}: {error}"
    except StorageError as error:
        return read_object(root, *parts), str(error)
    return (value, None) if isinstance(value, dict) else ({}, f"{parts[-1]} holds no object")


def read_config(root: Path, *parts: str) -> Settings:
    """A configuration as {dotted key: value}. Aliases are refused: a few lines of them can stand for gigabytes."""
    text = read_bytes(SMALL // 4, root, *parts)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent))
            depth -= isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent))
            if isinstance(event, yaml.AliasEvent) or depth > DEPTH:
                raise UnreadableError("not a configuration: aliases, or nested too deeply")
        value = yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableError(f"not valid YAML: {' '.join(str(error).split())[:120]}") from error
    if not isinstance(value, dict):
        raise UnreadableError("does not hold a configuration")
    if not is_as_written(text.decode(errors="replace").replace("\r\n", "\n"), value, required=False):
        raise UnreadableError("has changed since Regimen wrote it")
    return {name[:NAME]: as_json(item) for name, item in islice(dotted(value), LEAVES)}


def as_json(value: object) -> Setting:
    """A setting as JSON can hold it, long ones cut."""
    if value is None or isinstance(value, (bool, int)):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)[:40]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 2_000 else text[:2_000] + "…"
