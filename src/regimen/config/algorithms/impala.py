"""The hyper-parameters of IMPALA. Jax-free; the docstring under a field is its `--help` text."""

from dataclasses import dataclass, field
from typing import Literal

from regimen.config.algorithms.ppo import RewardConfig
from regimen.config.domains import AlgorithmEntry
from regimen.config.fields import Fraction, LogStd, Natural, NotNegative, Period, Positive, Whole


@dataclass(frozen=True)
class IMPALAConfig:
    """Importance-weighted actor-learner (Espeholt et al. 2018, arXiv 1802.01561)."""

    lr: Positive = 6e-4
    """Adam's learning rate at the start."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate moves to `lr_end` over `horizon`."""
    lr_end: NotNegative = 0.0
    """Learning rate at the end of the schedule."""
    ent_coef: NotNegative = 0.01
    """Weight of the entropy bonus at the start."""
    ent_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `ent_coef` moves to `ent_end` over `horizon`."""
    ent_end: NotNegative = 0.0
    """Weight of the entropy bonus at the end of the schedule."""
    horizon: Period | None = None
    """Length of the schedules (`100000 steps`, `500 updates`, `1000 episodes`); by default the budget at the first
    start."""
    gamma: Fraction = 0.99
    """Discount per step."""
    trace_lambda: Fraction = 1.0
    """Trace decay of V-trace's targets, as `gae_lambda` is of PPO's."""
    correction: Literal["vtrace", "none"] = "vtrace"
    """How batches of an older policy are corrected; `none` learns as if they came from the current one, for
    comparison."""
    rho_clip: Positive = 1.0
    """Importance weights of the values are clipped at this: the critic converges to the value of a policy between the
    one that acted and the current one."""
    c_clip: Positive = 1.0
    """Importance weights along the trace are clipped at this: lower values give less variance and a slower
    correction."""
    pg_rho_clip: Positive = 1.0
    """Importance weights of the policy gradient are clipped at this. If that cuts off much, subtracting a mean from the
    advantages biases the gradient."""
    max_lag: Whole = 16
    """Batches whose policy is more updates old than this are dropped and counted."""
    minibatch_size: Natural = 512
    """Env steps per gradient step; more than the batch holds means the full batch."""
    sequence_length: Natural = 16
    """With `network.memory`, the length of the sequences in a minibatch; gradients reach back that far."""
    vf_coef: NotNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: NotNegative = 1.0
    """Gradients are scaled down to this global norm; 0 turns it off."""
    normalize_advantage: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 over the whole batch, before they are weighted."""
    normalize_obs: bool = False
    """Shift and scale observations by running statistics, saved with the policy and frozen in evaluation."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return (logged returns stay raw)."""
    log_std_init: LogStd = 0.0
    """Initial log standard deviation of continuous actions, in units of half the action range."""
    state_std: bool = False
    """Let the deviation of continuous actions depend on the observation."""
    bounded: Literal["auto", "clip", "tanh"] = "auto"
    """How continuous actions are kept within their bounds: clipped before they are sent to the environment, or squashed
    by tanh, which the density accounts for. auto is tanh in hybrid spaces and clip elsewhere."""
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(heads=False))


ENTRY = AlgorithmEntry(
    IMPALAConfig,
    "regimen.algorithms.impala:IMPALA",
    "Actor-critic with V-trace: learns from batches of a somewhat older policy.",
    "Use it with many workers that must not wait for the learner: --engine ray, slow environments.",
)
