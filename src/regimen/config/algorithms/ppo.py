"""The hyper-parameters of PPO. Jax-free; the docstring under a field is its `--help` text."""

from dataclasses import dataclass, field
from typing import Literal

from regimen.config.domains import AlgorithmEntry
from regimen.config.fields import Fraction, LogStd, Natural, NotNegative, Period, Positive, Whole


@dataclass(frozen=True)
class RewardConfig:
    """Rewards with named components; without effect where there is one."""

    heads: bool = True
    """Give each component a critic output and advantages of its own; otherwise only their sum is learned from."""
    scale: Literal["none", "return_std", "episode_sum"] = "return_std"
    """Bring components to one scale by the running deviation of their discounted return, or of their episode sums,
    relative to the median component, by factors of 0.1 to 10. With fixed weights only the critics see it."""
    warmup: Whole = 10
    """Episodes before `scale` begins."""
    norm: Literal["none", "zscore", "minmax", "adaptive"] = "none"
    """How the advantages of each component are standardised. The weights then apply to standardised components."""
    norm_over: Literal["batch", "episode"] = "batch"
    """`batch` standardises advantages over the whole batch. `episode` standardises rewards within each episode, which
    removes what distinguishes good episodes from bad ones; it is for comparison."""
    weighting: Literal["fixed", "uniform", "learned"] = "fixed"
    """How components are weighed: by `weights` in the reward's own units, all alike after scaling, or learned."""
    weights: str = ""
    """Such as `goal=1 effort=0.2`; components that are not named have weight 1. Learned weights start there and are
    pulled towards it."""
    task: str = ""
    """Components that are the true task (`goal`, `goal,safety`), whose return learned weights should increase; by
    default all."""
    attention: bool = True
    """Let learned weights depend on the magnitudes of the components' advantages."""
    weight_lr: NotNegative = 0.05
    """Learning rate of learned weights."""
    weight_reg: NotNegative = 0.001
    """Strength of the pull of learned weights towards `weights`."""


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347)."""

    lr: Positive = 3e-4
    """Adam's learning rate at the start."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate moves to `lr_end` over `horizon`."""
    lr_end: NotNegative = 0.0
    """Learning rate at the end of the schedule."""
    clip_eps: Positive = 0.2
    """The policy ratio is clipped to [1 - clip_eps, 1 + clip_eps]."""
    clip_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `clip_eps` moves to `clip_end` over `horizon`."""
    clip_end: NotNegative = 0.0
    """Clip range at the end of the schedule."""
    ent_coef: NotNegative = 0.01
    """Weight of the entropy bonus at the start."""
    ent_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `ent_coef` moves to `ent_end` over `horizon`."""
    ent_end: NotNegative = 0.0
    """Weight of the entropy bonus at the end of the schedule."""
    ent_discrete: NotNegative = 1.0
    """Factor of the entropy bonus for discrete choices."""
    ent_continuous: NotNegative = 1.0
    """Factor of the entropy bonus for continuous dimensions."""
    ent_floor_discrete: float | None = None
    """If the mean entropy of a discrete part's choices in a state is below this many nats, the difference is added to
    the loss; off if not set."""
    ent_floor_continuous: float | None = None
    """The same for continuous dimensions, in nats per dimension, measured in units of half its range; a uniform number
    has 0.69."""
    ent_floor_coef: NotNegative = 1.0
    """Weight of the difference to the entropy floors in the loss."""
    horizon: Period | None = None
    """Length of the schedules (`100000 steps`, `500 updates`, `1000 episodes`); by default the budget at the first
    start. It is saved with the run and a resume with a larger budget does not change it."""
    gamma: Fraction = 0.99
    """Discount per step."""
    gae_lambda: Fraction = 0.95
    """Trace decay of generalised advantage estimation; 1 is Monte Carlo with a baseline, 0 is one-step TD."""
    returns: Literal["gae", "n_step", "monte_carlo", "monte_carlo_z"] = "gae"
    """What the critic is trained on and advantages are measured from: lambda-returns, n-step returns, discounted sums
    of rewards, or those sums z-scored over the batch."""
    n_step: Natural = 5
    """Steps before bootstrapping when `returns` is `n_step`."""
    epochs: Natural = 4
    """Passes over each batch."""
    minibatch_size: Natural = 64
    """Env steps per gradient step; more than the batch holds means the full batch."""
    micro_batch_size: Natural | None = None
    """Split each minibatch into pieces of this size and add up their gradients: the same step with less memory."""
    sequence_length: Natural = 16
    """With `network.memory`, the length of the sequences in a minibatch; gradients reach back that far."""
    vf_coef: NotNegative = 0.5
    """Weight of the value loss."""
    vf_clip: Positive | None = None
    """Largest distance between new and old values in the value loss; off if not set."""
    max_grad_norm: NotNegative = 0.5
    """Gradients are scaled down to this global norm; 0 turns it off."""
    target_kl: Positive | None = None
    """Skip the rest of an update's epochs once the approximate KL to the rollout policy passes 1.5 times this."""
    kl_coef: NotNegative = 0.0
    """Initial weight of a KL penalty in addition to clipping; it adapts to hold the KL near `kl_target`. 0 turns it
    off."""
    kl_target: Positive = 0.01
    """KL per update that the adaptive penalty aims at."""
    normalize_advantage: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 over the whole batch."""
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
    ratio: Literal["joint", "per_leaf", "per_element"] = "joint"
    """What is clipped if an action has several parts: one ratio of the whole action, one for each part, or one for each
    element (such as a node of a graph with all its parameters), so that their number does not matter."""
    balance_gradients: bool = False
    """In hybrid spaces, scale the gradients of the discrete and the continuous head to equal norms."""
    balance_warmup: Whole = 100
    """Gradient steps before the balance of gradients begins."""
    reward: RewardConfig = field(default_factory=RewardConfig)


ENTRY = AlgorithmEntry(
    PPOConfig,
    "regimen.algorithms.ppo:PPO",
    "Proximal policy optimisation: clipped policy gradient with a learned value function.",
    "The default, for discrete, continuous or hybrid actions and environments that can be stepped in parallel.",
)
