"""The flags of `regimen study empowerment`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from regimen.config.fields import Natural, Whole
from regimen.config.flags import positional


@dataclass(frozen=True)
class EmpowermentArgs:
    """Score each documented choice of learning human power against the exact values of a world.

    Parts: policy (power law or Boltzmann), ramp, clearing (of the replay), decay (of learning rates), loss (MSE or
    Huber), targets (copies on or off), dropout, model (model-based or sampled targets), x_h_batch. Results are written
    after each part; Ctrl+C keeps what is measured.

      regimen study empowerment world/corr5 --quick
      regimen study empowerment world/way1x5 --parts ramp,clearing --seeds 3
    """

    env: str = positional("ENV", default="world/asym1x7")
    """A world that can be solved exactly: a name of `regimen envs`, world:FILE, or module:factory."""
    parts: str | None = None
    """Which parts, separated by commas; all of them when not given."""
    quick: bool = False
    """A look in a minute or two: fewer seeds and steps, where they are not given."""
    seeds: Natural | None = None
    """Seeds of every training (5; with --quick 2)."""
    seed: Whole = 0
    """The first of them."""
    budget: Natural | None = None
    """Env steps of every training (32,768; with --quick 8,192)."""
    out: str | None = None
    """Folder to write to; by default `studies/empowerment-<world>-<time>`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    """Print the results as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""
