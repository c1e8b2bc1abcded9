"""The flags of `regimen study empowerment`."""

from dataclasses import dataclass

from regimen.config.fields import Natural
from regimen.config.flags import positional
from regimen.experiments.studies.arguments import StudyArgs


@dataclass(frozen=True)
class EmpowermentArgs(StudyArgs):
    """Score each documented choice of learning human power against the exact values of a world.

    Parts: policy (power law or Boltzmann), ramp, clearing (of the replay), decay (of learning rates), loss (MSE or
    Huber), targets (copies on or off), dropout, model (model-based or sampled targets), x_h_batch. Results are written
    after each part; Ctrl+C keeps what is measured.

      regimen study empowerment world/corr5 --quick
      regimen study empowerment world/way1x5 --parts ramp,clearing --seeds 3
    """

    env: str = positional("ENV", default="world/asym1x7")
    """A world that can be solved exactly: a name of `regimen envs`, world:FILE, or module:factory."""
    seeds: Natural | None = None
    """Seeds of every training (5; with --quick 2)."""
    budget: Natural | None = None
    """Env steps of every training (32,768; with --quick 8,192)."""
