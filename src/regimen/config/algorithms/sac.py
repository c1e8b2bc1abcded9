"""The hyper-parameters of SAC. Jax-free; the docstring under a field is its `--help` text."""

from dataclasses import dataclass
from typing import Annotated, Literal

from regimen.config.domains import AlgorithmEntry
from regimen.config.fields import Fraction, Natural, NotNegative, Positive, Range, Whole


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905)."""

    lr: Positive = 3e-4
    """Adam's learning rate of the policy, and of critics and temperatures that have none of their own."""
    critic_lr: Positive | None = None
    """Learning rate of the critics; by default `lr`."""
    alpha_lr: Positive | None = None
    """Learning rate of the temperatures; by default `lr`."""
    gamma: Fraction = 0.99
    """Discount per step."""
    tau: Fraction = 0.005
    """Share by which the slow critics move towards the critics at each gradient step."""
    batch_size: Natural = 256
    """Transitions per gradient step."""
    buffer_size: Natural = 1_000_000
    """Transitions kept; rounded up to whole rollouts."""
    update_ratio: NotNegative = 1.0
    """Gradient steps per env step; fractions are carried over."""
    learning_starts: Whole = 1000
    """Env steps with uniformly random actions before learning begins; they are stored in the replay."""
    n_step: Natural = 1
    """Steps of reward before bootstrapping; fewer at the end of an episode and near the newest row."""
    policy_delay: Natural = 1
    """Gradient steps of the critics for each one of policy and temperatures."""
    alpha: Positive = 1.0
    """Temperature at the start, or always if `learn_alpha` is off."""
    learn_alpha: bool = True
    """Adapt the temperature of each part of an action so that its entropy stays at the target."""
    target_entropy_continuous: Annotated[float, Range(-20, 0.69)] = -1.0
    """Target entropy in nats per continuous dimension, in units of half its range; a uniform number has 0.69."""
    target_entropy_discrete: Fraction = 0.3
    """Target entropy as a share of that of a uniform choice among the allowed options."""
    exact_choices: Natural = 64
    """Number of joint discrete choices up to which expectations over them are exact; beyond it, one is sampled."""
    exploration: Literal["white", "pink"] = "white"
    """Noise of continuous actions in training: independent from step to step, or correlated with power 1 / f."""
    max_grad_norm: NotNegative = 0.0
    """Gradients of each network are scaled down to this norm; 0 turns it off."""
    layer_norm: bool = False
    """Normalise the critics' hidden layers (network `mlp_norm`)."""
    normalize_obs: bool = False
    """Shift and scale observations by running statistics, saved with the policy and frozen in evaluation."""


ENTRY = AlgorithmEntry(
    SACConfig,
    "regimen.algorithms.sac:SAC",
    "Soft actor-critic: off-policy, from a replay, with learned temperatures.",
    "Use it if env steps are expensive, for continuous, discrete or hybrid actions.",
    offline=True,
)
