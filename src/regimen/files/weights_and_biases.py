"""Weights & Biases: a run in files of its own below `wandb/`, sent nowhere unless `track.online` says so."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

from regimen.files.storage import Json, plain, read_json, write_json
from regimen.files.trackers import Follower, numbers

RECORD = "wandb.json"
LOCAL = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}


class WeightsAndBiases(Follower):
    """Rows with `env_steps` as their x. The id and the newest row that is there are in `wandb.json`, so that a run that
    goes on goes on there, too."""

    label, package, extra = "Weights & Biases", "wandb", "wandb"
    tracked: Any = None  # wandb.Run
    id: str = ""

    def where(self) -> str:
        folder = self.run.path / "wandb"
        return f"{self.run.project}, online" if self.run.online else f"{folder}   (wandb sync {folder}/offline-run-*)"

    def open(self) -> None:
        for name, value in LOCAL.items():  # its reports of errors would be sent to its makers, offline or not
            os.environ.setdefault(name, value)
        import wandb  # pyright: ignore[reportMissingImports]  # an extra that the lock leaves out

        record = read_json(self.run.path / RECORD)
        self.id = record["id"] if isinstance(record.get("id"), str) else uuid.uuid4().hex[:12]
        self.mark = record["updates"] if isinstance(record.get("updates"), (int, float)) else self.mark
        settings = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, quiet=True)
        self.tracked = wandb.init(
            id=self.id,
            resume="allow",
            mode="online" if self.run.online else "offline",
            project=self.run.project,
            name=self.run.name,
            dir=str(self.run.path),
            config=plain(self.run.settings, finite=False),
            settings=settings,
            reinit="create_new",
        )
        self.tracked.define_metric("*", step_metric="env_steps")

    def write(self, row: Json) -> None:
        self.tracked.log({"env_steps": row.get("env_steps", 0)} | numbers(row), step=int(row.get("updates", 0)))

    def flush(self) -> None:
        write_json(self.run.path / RECORD, {"id": self.id, "updates": max(self.mark, -1)}, sync=False)

    def close(self, summary: Mapping[str, object]) -> None:
        self.tracked.summary.update(plain(dict(summary), finite=False))
        self.tracked.finish(exit_code=0 if summary.get("state") in ("finished", "interrupted") else 1)
