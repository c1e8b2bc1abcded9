"""The process that draws a run's pictures while nobody waits (`runs/delivery.py`): whether there is one, waiting for
it, ending it. Jax-free.

It has the lock of `.delivery` in the directory of its run, or of its group of seeds, for as long as it lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from regimen.errors import StorageError
from regimen.files.storage import Json, regular, writing

LOCK = ".delivery"
HELD = (errno.EWOULDBLOCK, errno.EACCES)  # by another process; anything else is a file system without locks
PATIENCE = 5.0  # seconds between asking it to end and ending it
begun: list[subprocess.Popen[bytes]] = []  # the processes that this one has begun


def claim(path: Path) -> TextIO | None:
    """The lock of a run's or a group's delivery, held while the file is open; None where another process has it."""
    with writing(Path(path) / LOCK):
        file = open(Path(path) / LOCK, "a", encoding="utf-8", opener=open_regular)  # noqa: SIM115 - closing it gives the lock back
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in HELD:
                    raise
            if held(Path(path) / LOCK) is not None:
                file.close()
                return None  # else somebody has only looked whether it is held
        sign(file, os.getpid())
    except BaseException:
        file.close()
        raise
    return file


def open_regular(path: str, flags: int) -> int:
    """An `opener` of regular files that takes no link: through one, another run's process is taken for this run's."""
    return regular(path, flags | os.O_NOFOLLOW)


def sign(file: TextIO, pid: int) -> None:
    """Write whose lock it is."""
    file.truncate(0)
    file.write(f"{pid} {socket.gethostname()}\n")
    file.flush()


def is_current(path: Path, lock: int) -> bool:
    """Whether a lock that this process has is that of the directory: it was not moved, removed or made anew since."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(Path(path) / LOCK))
    except OSError:
        return False


def locks_of(path: Path) -> Iterator[Path]:
    """The lock of a run, and of the group that it may be a seed of."""
    path = Path(path).resolve()
    yield path / LOCK
    if path.name.startswith("seed-"):
        yield path.parent / LOCK


def held(lock: Path) -> tuple[int, str] | None:
    """The number and the machine of the process that has a lock; None where none has it."""
    try:
        file = open(lock, encoding="utf-8", opener=open_regular)  # noqa: SIM115
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                pid, _, host = file.read().strip().partition(" ")
                return int(pid) if pid.isdecimal() else 0, host
    return None


def holder(path: Path) -> tuple[int, str] | None:
    """The number and the machine of the process that draws a run or its group of seeds; None where there is none."""
    return next(filter(None, map(held, locks_of(path))), None)


def state_of(path: Path, status: Json, locked: bool) -> str | None:
    """What became of the pictures, the report and the trackers of a run that has ended: `done`, `drawing`, `failed`, or
    `missing` where their process is gone; None where the run says nothing of them. `locked`: a process has the run."""
    state = said(status)
    if state != "pending":
        return state if state in ("done", "failed") else None
    return "drawing" if locked or holder(path) else "missing"


def said(status: Json) -> object:
    """What status.json says became of them."""
    delivery = status.get("delivery")
    return delivery.get("state") if isinstance(delivery, dict) else None


def wait(path: Path) -> None:
    """Wait until nobody draws a run."""
    while holder(path):
        time.sleep(0.05)


def stop(path: Path) -> None:
    """End the process that draws a run, because the run is about to change; what it has written is whole."""
    for lock in locks_of(path):
        end(lock, path)


def end(lock: Path, path: Path) -> None:
    """End the process that has a lock. Another one may have its number: only one that has the file open is ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        asked, until = False, time.monotonic() + PATIENCE
        while (process := held(lock)) and time.monotonic() < until:
            pid, host = process
            if host and (host != socket.gethostname() or pid == os.getpid()):
                raise StorageError(f"{path}: process {pid} on {host} draws its pictures; wait for it or stop it")
            if not asked and has_open(pid, lock):  # else it has not signed yet
                asked = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            time.sleep(0.02)
        if process is None:
            for child in begun:  # one that ended is there until it is asked for, as if it still wrote its files
                child.poll()
            return
    raise StorageError(f"{path}: the process that draws its pictures cannot be stopped")


def has_open(pid: int, path: Path) -> bool:
    """Whether a process of this machine has a file open; True where the system does not tell."""
    if not os.path.isdir("/proc/self/fd"):
        return True
    try:
        return any(os.path.samefile(file, path) for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def leave(code: int) -> None:
    """End this process without waiting for its threads; files are closed by now."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there may be none, or nobody who reads it
            stream.flush()
    os._exit(code)
