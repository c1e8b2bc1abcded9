"""Gate: a run that logs as fast as it can, with MLflow, for minutes. After the first minute memory, descriptors and
files stay as they are, and MLflow's database is at most twice metrics.jsonl."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from faults.kills import rows, start
from faults.watch import tell
from support import command_line

SETTINGS = {"total_steps": 10**12, "log.every": "1", "log.episodes": False, "checkpoint.every": "1000", "track": True}
EVERY = 5.0  # seconds between looks
GROWTH = 1.0  # megabytes a minute that are noise
RATIO = 2.0
ENOUGH = 6_000  # rows from which the ratio is meant: MLflow's empty tables are a megabyte


def look(pid: int, run: Path) -> tuple[float, int, int]:
    """Memory in megabytes, open descriptors, files of the run."""
    status = Path(f"/proc/{pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1000
    return memory, len(os.listdir(f"/proc/{pid}/fd")), sum(1 for path in run.rglob("*") if path.is_file())


def run(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """`tries` minutes."""
    path, detail, looks = folder / "run", [], []
    process = start("train", "cartpole", *command_line(**SETTINGS, seed=seed), "--quiet", "--out", path)
    begun = time.monotonic()
    try:
        while time.monotonic() - begun < 60 * tries:
            time.sleep(EVERY)
            assert process.poll() is None, process.communicate()[0]
            if len(looks) % 12 == 11:
                tell(len(looks) // 12 + 1, tries, 0)
            looks.append((time.monotonic() - begun, *look(process.pid, path)))
        ratio = (folder / "mlflow.db").stat().st_size / (path / "metrics.jsonl").stat().st_size
        count = rows(path)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=200)
    after = np.array(looks)
    after = after[after[:, 0] > min(60.0, 30.0 * tries)]
    slope = 60 * np.polyfit(after[:, 0], after[:, 1], 1)[0]
    if slope > GROWTH and tries > 1:
        detail.append(f"memory grows {slope:.1f} MB a minute")
    for name, column in (("descriptors", 2), ("files", 3)):
        early, late = after[: len(after) // 2, column], after[len(after) // 2 :, column]
        if late.min() > early.min() + 2:  # the fewest: for a moment there are those of one checkpoint more
            detail.append(f"{name}: at least {early.min():g}, then {late.min():g}")
    if ratio > RATIO and count >= ENOUGH:
        detail.append(f"the database is {ratio:.2f} times metrics.jsonl")
    if process.returncode != 130:
        detail.append(f"exit code {process.returncode}")
    words = f"{count:,} rows; memory {after[0, 1]:.0f} to {after[-1, 1]:.0f} MB, {slope:+.2f} MB a minute; "
    words += f"{after[-1, 2]:g} descriptors, {after[-1, 3]:g} files; database {ratio:.2f} times metrics.jsonl"
    return {"tries": tries, "losses": len(detail), "executions": 0, "detail": "; ".join([words, *detail])}
