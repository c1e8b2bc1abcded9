"""The hyper-parameters of behaviour cloning. Jax-free; the docstring under a field is its `--help` text."""

from dataclasses import dataclass
from typing import Literal

from regimen.config.domains import AlgorithmEntry
from regimen.config.fields import Natural, NotNegative, Period, Positive


@dataclass(frozen=True)
class BCConfig:
    """Behaviour cloning: the policy that makes the data most likely."""

    lr: Positive = 1e-3
    """Adam's learning rate at the start."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate moves to `lr_end` over `horizon`."""
    lr_end: NotNegative = 0.0
    """Learning rate at the end of the schedule."""
    horizon: Period | None = None
    """Length of the schedule (`100000 steps`, gradient steps offline); by default the budget at the first start."""
    batch_size: Natural = 256
    """Rows of the data per gradient step."""
    max_grad_norm: NotNegative = 0.0
    """Gradients are scaled down to this global norm; 0 turns it off."""
    ent_coef: NotNegative = 0.0
    """Weight of an entropy bonus, which keeps the policy from copying noise with certainty."""
    normalize_obs: bool = True
    """Shift and scale observations by the statistics of the data, saved with the policy."""
    behaviour_steps: Natural = 10000
    """Env steps of the run that collects data if none is given."""


ENTRY = AlgorithmEntry(
    BCConfig,
    "regimen.algorithms.bc:BC",
    "Behaviour cloning: supervised learning of the actions in a dataset.",
    "Use it as a baseline for CQL, or alone if the data comes from an expert.",
    offline=True,
    online=False,
)
