"""The hyper-parameters that a run reads whichever algorithm it has. Jax-free."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

SCHEDULES = ("lr_schedule", "clip_schedule", "ent_schedule")


@dataclass(frozen=True)
class CommonHyperparameters:
    """Hyper-parameters that mean the same in every algorithm. An algorithm has one by having a field, or a property,
    of that name; the defaults stand for those it does not have."""

    gamma: float | None = None
    epochs: int | None = None  # over each batch
    minibatch_size: int | None = None
    micro_batch_size: int | None = None  # pieces of a minibatch
    batch_size: int = 0  # rows of a gradient step, from a replay or a dataset
    buffer_size: int | None = None  # rows of its replay; None: it has none
    update_ratio: float = 1.0  # gradient steps per env step
    learning_starts: int = 0  # env steps with random actions
    max_lag: int | None = None  # updates; batches of older policies are dropped
    behaviour_steps: int = 10_000  # env steps of the run that collects data for it
    online_steps: int = 0  # the last of a budget that begins with a dataset
    horizon: str | None = ""  # of its schedules; None: not set yet, empty: it has no schedules
    lr_schedule: str = "constant"
    clip_schedule: str = "constant"
    ent_schedule: str = "constant"

    @classmethod
    def of(cls, hyperparameters: object) -> CommonHyperparameters:
        """The hyper-parameters of any object, usually a dataclass of `config.algorithms` or of a user."""
        names = [f.name for f in dataclasses.fields(cls) if hasattr(hyperparameters, f.name)]
        return cls(**{name: getattr(hyperparameters, name) for name in names})

    @property
    def moving(self) -> dict[str, str]:
        """The schedules that are not constant, by name: `{"lr_schedule": "linear"}`."""
        shapes = {name: getattr(self, name) for name in SCHEDULES}
        return {name: shape for name, shape in shapes.items() if shape != "constant"}
