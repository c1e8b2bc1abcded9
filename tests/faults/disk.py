"""Gate: a small file system that fills up while a run trains. The command ends with exit code 6 and one line; with room
again the run is resumed and is the run that was never interrupted."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from faults.kills import NATIVE, complete, same_run, start
from faults.watch import tell
from support import command_line

SETTINGS = NATIVE | {"checkpoint.every": "1", "checkpoint.keep": 100}


@contextlib.contextmanager
def small_disk(path: Path, kilobytes: int) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", path], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def run(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """`tries` disks of random sizes."""
    draw, detail, full = random.Random(seed), [], 0
    argv = ["train", "cartpole", *command_line(**SETTINGS), "--quiet", "--out"]
    complete(*argv, folder / "whole")
    size = sum(p.stat().st_size for p in (folder / "whole" / "checkpoints").rglob("*") if p.is_file()) // 1024
    for i in range(tries):
        disk = folder / f"disk-{i}"
        tell(i, tries, len(detail))
        try:
            with small_disk(disk, draw.randrange(64, size)):
                process = start(*argv, disk / "run")
                said, _ = process.communicate(timeout=3000)
                lines = said.strip().splitlines()
                assert process.returncode in (0, 6), f"exit {process.returncode}: {said[-200:]}"
                if process.returncode == 0:  # it was large enough after all
                    continue
                full += 1
                assert len(lines) == 1 and ("disk full" in lines[0] or "No space left" in lines[0]), said[-300:]
                subprocess.run(["mount", "-o", "remount,size=256m", disk], check=True)
                if (disk / "run" / "config.yaml").is_file():
                    complete("resume", disk / "run", "--quiet")
                else:
                    shutil.rmtree(disk / "run", ignore_errors=True)
                    complete(*argv, disk / "run")
                same_run(folder / "whole", disk / "run")
        except subprocess.CalledProcessError as error:
            if error.cmd[0] != "mount" or i:
                raise
            detail = (error.stderr or b"").decode().strip()
            return {"tries": 0, "losses": 0, "executions": 0, "detail": f"no file system can be mounted here: {detail}"}
        except AssertionError as error:
            detail.append(f"disk {i}: {' '.join(str(error).split())[:200]}")
    words = "; ".join([f"{full} of {tries} disks were full", *detail[:5]])
    return {"tries": full, "losses": len(detail), "executions": 0, "detail": words}
