"""What every gate of the fault suite is held to: it says how far it is, ends in time, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "REGIMEN_GATE"  # in the environment of every process that a gate begins
TEMPORARY = "temporary.txt"  # names a folder elsewhere that goes with the gate
PATIENCE = 15.0  # seconds in which what a gate has begun may still end


def tell(done: int, tries: int, losses: int) -> None:
    """How far a gate is, for who waits for it."""
    print(f"  {done} of {tries}, {losses} losses", file=sys.stderr, flush=True)


def marked(mark: str) -> dict[int, str]:
    """Every process of a gate, with its command."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
    return found


def watched(command: list[str], folder: Path, seconds: float) -> list[str]:
    """Run the command of a gate that works in `folder`. What is wrong: it took too long, failed, or processes of it are
    still there. They are ended, and its disks and folders elsewhere removed."""
    mark, wrong = str(uuid.uuid4()), []
    process = subprocess.Popen(command, env=os.environ | {MARK: mark}, stdout=2, start_new_session=True)
    try:
        code = process.wait(timeout=seconds)
        wrong += [f"the gate itself ended with exit code {code}"] if code not in (0, 1) else []
        end = time.monotonic() + PATIENCE
        while marked(mark) and time.monotonic() < end:
            time.sleep(0.2)
        wrong += [f"left behind: {words[:60]}" for words in marked(mark).values()]
    except subprocess.TimeoutExpired:
        wrong.append(f"not finished within {seconds:g} s")
    finally:
        while left := marked(mark):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        clean(folder)
    return wrong


def clean(folder: Path) -> None:
    """Unmount what is mounted below a folder, and remove what was put elsewhere for it."""
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1]
        if Path(place).is_relative_to(folder):
            subprocess.run(["umount", "-l", place], check=False)
    for path in folder.rglob(TEMPORARY):
        shutil.rmtree(path.read_text(), ignore_errors=True)
