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
import sys
import time
from pathlib import Path
from typing import TextIO

from regimen.errors import StorageError
from regimen.files.storage import Json, regular, writing

LOCK = ".delivery"
PATIENCE = 5.0  # seconds between asking it to end and ending it
begun = False  # whether this process has begun one


def claim(path: Path) -> TextIO | None:
    """The lock of a run's or a group's delivery, held while the file is open; None where another process has it."""
    with writing(Path(path) / LOCK):
        file = open(Path(path) / LOCK, "a", encoding="utf-8", opener=own)  # noqa: SIM115 - closing it gives the lock back
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    sign(file, os.getpid())
    return file


def own(path: str, flags: int) -> int:
    """An `opener` of regular files that takes no link: through one, another run's process is taken for this run's."""
    return regular(path, flags | os.O_NOFOLLOW)


def sign(file: TextIO, pid: int) -> None:
    """Write whose lock it is."""
    file.truncate(0)
    file.write(f"{pid} {socket.gethostname()}\n")
    file.flush()


def holder(path: Path) -> tuple[int, str] | None:
    """The number and the machine of the process that draws a run or its group of seeds; None where there is none."""
    path = Path(path)
    for folder in (path, path.parent) if path.name.startswith("seed-") else (path,):
        try:
            with open(folder / LOCK, encoding="utf-8", opener=own) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    pid, _, host = file.read().strip().partition(" ")
                    return int(pid) if pid.isdecimal() else 0, host
        except OSError:
            continue
    return None


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
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + PATIENCE
        process = holder(path)
        if process is None:
            return
        pid, host = process
        if host != socket.gethostname() or pid in (0, os.getpid()):
            raise StorageError(f"{path}: process {pid} on {host} draws its pictures; wait for it or stop it")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        while time.monotonic() < until:
            if holder(path) is None:
                return
            time.sleep(0.02)
    raise StorageError(f"{path}: the process that draws its pictures cannot be stopped")


def leave(code: int) -> None:
    """End this process without waiting for its threads; files are closed by now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
