"""The hyper-parameters of APPO. Jax-free; the docstring under a field is its `--help` text."""

from dataclasses import dataclass

from regimen.config.algorithms.impala import IMPALAConfig
from regimen.config.domains import AlgorithmEntry
from regimen.config.fields import AtLeastOne, Natural, Positive


@dataclass(frozen=True)
class APPOConfig(IMPALAConfig):
    """Asynchronous PPO: V-trace, a clipped loss and a target policy (Luo et al. 2020, arXiv 1912.00167)."""

    lr: Positive = 3e-4
    clip_eps: Positive = 0.2
    """The ratio to the target policy is clipped to [1 - clip_eps, 1 + clip_eps]."""
    is_clip: AtLeastOne = 2.0
    """Largest ratio of the policy that acted to the target policy."""
    target_every: Natural = 1
    """Updates between copies of the policy to the target policy."""
    epochs: Natural = 2
    """Passes over each batch."""


ENTRY = AlgorithmEntry(
    APPOConfig,
    "regimen.algorithms.appo:APPO",
    "PPO's clipped loss with V-trace and a target policy, on batches of a somewhat older policy.",
    "Use it like IMPALA, if steps are expensive and the learner has time for several passes over each batch.",
)
