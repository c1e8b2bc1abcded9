"""Whether a file that only grows still begins with what was counted of it (`storage.Tally`). Jax-free.

Lines that came later do not matter, and neither do columns that a table was given later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from regimen.errors import StorageError
from regimen.files.storage import BLOCK, Json, cells_in, csv_line, regular

ADVICE = (
    "put it back as it was, resume from an earlier checkpoint (--checkpoint STEP) or train on from its policy "
    "(`regimen train --init-from`)"
)


def check(path: Path, counted: Json) -> None:
    """StorageError unless the file begins with what was counted."""
    lines, size, columns, expected = (counted[name] for name in ("lines", "bytes", "columns", "sha256"))
    if not lines:
        return
    if not path.is_file():
        raise StorageError(f"{path} is missing, which has {lines:,} lines at the checkpoint; {ADVICE}")
    try:
        sha = hashlib.sha256()
        for data in narrow(path, lines, columns) if columns else leading(path, size):
            sha.update(data)
        if sha.hexdigest() == expected:
            return
        with open(path, "rb", opener=regular) as file:
            there = sum(1 for line in file if line.endswith(b"\n"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    what = f"has {there:,} of the {lines:,} lines" if there < lines else f"has changed within the {lines:,} lines"
    raise StorageError(f"{path} {what} that it has at the checkpoint; {ADVICE}")


def leading(path: Path, size: int) -> Iterator[bytes]:
    """The first bytes of a file."""
    with open(path, "rb", opener=regular) as file:
        while size > 0 and (data := file.read(min(size, BLOCK))):
            size -= len(data)
            yield data


def narrow(path: Path, lines: int, columns: int) -> Iterator[bytes]:
    """The first lines of a table as they were when it had so many columns: what came later is empty there."""
    with open(path, "rb", opener=regular) as file:
        header = file.readline()
        names = cells_in(header.decode(errors="replace"))
        extra = b"," * (len(names) - columns)
        yield csv_line(names[:columns]).encode() if extra else header
        for _, line in zip(range(lines - 1), file):
            yield line.removesuffix(extra + b"\n") + b"\n" if extra else line
