"""TensorBoard event files of a run, in its folder `tensorboard/`: `tensorboard --logdir runs`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from regimen.files.storage import Json, dotted, plain
from regimen.files.trackers import Follower, numbers

FOLDER = "tensorboard"
EVENTS = "events.out.tfevents.*"


class TensorBoard(Follower):
    """A run in TensorBoard: scalars by env steps. The events are written anew from the run's rows each time a run goes
    on, so that no point is there twice whatever ended the process before."""

    label, package, extra = "TensorBoard", "tensorboardX", "tensorboard"
    writer: Any = None  # tensorboardX.SummaryWriter

    def where(self) -> str:
        return f"{self.run.path / FOLDER}   (tensorboard --logdir {self.run.path.parent})"

    def open(self) -> None:
        from tensorboardX import SummaryWriter

        folder = self.run.path / FOLDER
        for old in folder.glob(EVENTS) if folder.is_dir() and not folder.is_symlink() else ():
            old.unlink()
        self.writer = SummaryWriter(str(folder), write_to_disk=True, flush_secs=3600)
        lines = [f"    {name}: {plain(value, finite=False)}" for name, value in dotted(self.run.settings)]
        self.writer.add_text("settings", "\n".join(lines), 0)

    def write(self, row: Json) -> None:
        step, stamp = int(row.get("env_steps", 0)), float(row.get("time/unix_time", time.time()))
        for name, value in numbers(row).items():
            self.writer.add_scalar(name, value, step, stamp)

    def flush(self) -> None:
        self.writer.flush()

    def close(self, summary: Mapping[str, object]) -> None:
        lines = [f"    {name}: {plain(value, finite=False)}" for name, value in dotted(summary)]
        self.writer.add_text("summary", "\n".join(lines), int(str(summary.get("env_steps") or 0)))
        self.writer.close()
