"""The hyper-parameters of every algorithm, as frozen, jax-free dataclasses. The docstring under a field is its `--help`
text; `config.py` has the rest of a run's settings, and the registry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from regimen.config.fields import AtLeastOne, Fraction, LogStd, Natural, NotNegative, Period, Positive, Range, Whole
from regimen.errors import ConfigError


@dataclass(frozen=True)
class RewardConfig:
    """Rewards with named components; without effect where there is one."""

    heads: bool = True
    """One critic head, and advantages of its own, for each component; else only their sum is learned from."""
    scale: Literal["none", "return_std", "episode_sum"] = "return_std"
    """Across episodes: bring components to a like scale by the running deviation of their discounted return, or of
    their episode sums, relative to the median component, within 0.1 to 10. With fixed weights only critics see it."""
    warmup: Whole = 10
    """Episodes before `scale` begins."""
    norm: Literal["none", "zscore", "minmax", "adaptive"] = "none"
    """Standardise each component. Weights then weigh standardised components."""
    norm_over: Literal["batch", "episode"] = "batch"
    """`batch`: advantages over the whole batch. `episode`: rewards within each episode, which removes what tells good
    episodes from bad ones; for comparison."""
    weighting: Literal["fixed", "uniform", "learned"] = "fixed"
    """How components are weighed: by `weights` in the reward's own units, all alike after scaling, or learned."""
    weights: str = ""
    """`goal=1 effort=0.2`; components not named weigh 1. Where `weighting` is learned, its start and its anchor."""
    task: str = ""
    """Components that are the true task (`goal`, `goal,safety`), whose return learned weights serve; by default all."""
    attention: bool = True
    """Let learned weights depend on the magnitudes of the components' advantages."""
    weight_lr: NotNegative = 0.05
    """Learning rate of learned weights."""
    weight_reg: NotNegative = 0.001
    """Pull of learned weights towards `weights`."""


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
    """In states where the mean entropy of a discrete part's choices is below this many nats, the shortfall is added to
    the loss; off when not set."""
    ent_floor_continuous: float | None = None
    """The same for continuous dimensions, in nats per dimension in units of half its range (uniform: 0.69)."""
    ent_floor_coef: NotNegative = 1.0
    """Weight of the shortfall."""
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
    """Split each minibatch into pieces of this size and add up their gradients: less memory, the same step."""
    sequence_length: Natural = 16
    """With `network.memory`, steps of the sequences that minibatches consist of; gradients reach back that far."""
    vf_coef: NotNegative = 0.5
    """Weight of the value loss."""
    vf_clip: Positive | None = None
    """Keep new values within this absolute distance of the old ones in the value loss; off when not set."""
    max_grad_norm: NotNegative = 0.5
    """Gradients are scaled down to this global norm; 0 turns it off."""
    target_kl: Positive | None = None
    """Skip the rest of an update's epochs once the approximate KL to the rollout policy passes 1.5 times this."""
    kl_coef: NotNegative = 0.0
    """Initial weight of a KL penalty beside clipping; it adapts to hold the KL near `kl_target`. 0 turns it off."""
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
    """How continuous actions meet their bounds: clipped on their way to the environment, or squashed by tanh with its
    change of variables in the density. auto: tanh in hybrid spaces, clip elsewhere."""
    ratio: Literal["joint", "per_leaf", "per_element"] = "joint"
    """What is clipped in an action of several parts: one ratio of the whole action, one for each part, or one for each
    element (a node of a graph with all its parameters), whose number then does not matter."""
    balance_gradients: bool = False
    """In hybrid spaces, scale the gradients of discrete and continuous heads to like running norms."""
    balance_warmup: Whole = 100
    """Gradient steps before that begins."""
    reward: RewardConfig = field(default_factory=RewardConfig)


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
    """What is done about batches of an older policy; `none` learns as if they were of the current one, to compare."""
    rho_clip: Positive = 1.0
    """Importance weights of the values are clipped here: what the critic converges to is the value of a policy between
    the one that acted and the current one."""
    c_clip: Positive = 1.0
    """Importance weights along the trace are clipped here: less variance, slower correction."""
    pg_rho_clip: Positive = 1.0
    """Importance weights of the policy gradient are clipped here. Where that cuts off much, subtracting a mean from the
    advantages biases the gradient."""
    max_lag: Whole = 16
    """Batches of a policy more updates old than this are dropped, and counted."""
    minibatch_size: Natural = 512
    """Env steps per gradient step; more than the batch holds means the full batch."""
    sequence_length: Natural = 16
    """With `network.memory`, steps of the sequences that minibatches consist of; gradients reach back that far."""
    vf_coef: NotNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: NotNegative = 1.0
    """Gradients are scaled down to this global norm; 0 turns it off."""
    normalize_advantage: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 over the whole batch, before they are weighted."""
    normalize_obs: bool = False
    """Shift and scale observations by running statistics, saved with the policy and frozen in evaluation."""
    log_std_init: LogStd = 0.0
    """Initial log standard deviation of continuous actions, in units of half the action range."""
    state_std: bool = False
    """Let the deviation of continuous actions depend on the observation."""
    bounded: Literal["auto", "clip", "tanh"] = "auto"
    """How continuous actions meet their bounds: clipped on their way to the environment, or squashed by tanh with its
    change of variables in the density. auto: tanh in hybrid spaces, clip elsewhere."""


@dataclass(frozen=True)
class APPOConfig(IMPALAConfig):
    """Asynchronous PPO: V-trace, a clipped loss and a target policy (Luo et al. 2020, arXiv 1912.00167)."""

    lr: Positive = 3e-4
    clip_eps: Positive = 0.2
    """The ratio to the target policy is clipped to [1 - clip_eps, 1 + clip_eps]."""
    is_clip: AtLeastOne = 2.0
    """The ratio of the policy that acted over the target policy is clipped here."""
    target_every: Natural = 1
    """Updates between copies of the policy to the target policy."""
    epochs: Natural = 2
    """Passes over each batch."""


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905)."""

    lr: Positive = 3e-4
    """Adam's learning rate of the policy, and of what has none of its own."""
    critic_lr: Positive | None = None
    """Learning rate of the critics; by default `lr`."""
    alpha_lr: Positive | None = None
    """Learning rate of the temperatures; by default `lr`."""
    gamma: Fraction = 0.99
    """Discount per step."""
    tau: Fraction = 0.005
    """Share of the critics that goes into the slow ones at each gradient step."""
    batch_size: Natural = 256
    """Transitions per gradient step."""
    buffer_size: Natural = 1_000_000
    """Transitions kept; rounded up to whole rollouts."""
    update_ratio: NotNegative = 1.0
    """Gradient steps per env step; fractions add up."""
    learning_starts: Whole = 1000
    """Env steps with uniformly random actions before learning begins; they are kept."""
    n_step: Natural = 1
    """Steps of reward before bootstrapping; fewer at the end of an episode and near the newest row."""
    policy_delay: Natural = 1
    """Gradient steps of the critics for each one of policy and temperatures."""
    alpha: Positive = 1.0
    """Temperature at the start, or for ever where `learn_alpha` is off."""
    learn_alpha: bool = True
    """Let the temperature of each part of an action hold its entropy at the target."""
    target_entropy_continuous: Annotated[float, Range(-20, 0.69)] = -1.0
    """Nats per continuous dimension, in units of half its range (uniform: 0.69)."""
    target_entropy_discrete: Fraction = 0.3
    """Share of the entropy of a uniform choice among the options allowed."""
    exact_choices: Natural = 64
    """Joint discrete choices up to which expectations over them are exact; beyond, one is sampled."""
    exploration: Literal["white", "pink"] = "white"
    """Noise of continuous actions in training: independent from step to step, or correlated with power 1 / f."""
    max_grad_norm: NotNegative = 0.0
    """Gradients of each network are scaled down to this norm; 0 turns it off."""
    layer_norm: bool = False
    """Normalise the critics' hidden layers (network `mlp_norm`)."""
    normalize_obs: bool = False
    """Shift and scale observations by running statistics, saved with the policy and frozen in evaluation."""


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Conservative Q-learning (Kumar et al. 2020, arXiv 2006.04779): SAC's hyper-parameters and its own."""

    lr: Positive = 1e-4
    """Adam's learning rate of the policy, and of what has none of its own."""
    critic_lr: Positive | None = 3e-4
    """Learning rate of the critics, and of the multiplier; `lr` where not set."""
    alpha: Positive = 0.1
    """Temperature at the start, or for ever where `learn_alpha` is off."""
    learning_starts: Whole = 0
    """Env steps with uniformly random actions before learning begins, where it goes on online."""
    min_q_weight: NotNegative = 5.0
    """alpha: weight of the conservative term beside 1/2 of the squared error. With `lagrange`, where it starts."""
    cql_samples: Natural = 10
    """Actions drawn from each of three places (uniform, policy, policy at the successor) for continuous actions."""
    importance_sampling: bool = True
    """Weigh drawn actions by their density, which makes the term the logarithm of an integral."""
    lagrange: Annotated[float, Range(-1000000.0, 1000000.0)] | None = None
    """Hold the conservative gap at this threshold by learning its weight; off when not set."""
    backup_entropy: bool = False
    """Let the critics' targets include the entropy bonus, as SAC's do; without, Q is the return alone."""
    max_q_backup: bool = False
    """Take the largest Q of `cql_samples` actions of the policy in the target."""
    bc_steps: Whole = 0
    """Gradient steps in which the policy is cloned from the data before it follows the critics."""
    reward_scale: Positive = 1.0
    """Factor of the rewards in learning; logged returns and `q_data_mean` keep their own units."""
    behaviour_steps: Natural = 10000
    """Env steps of the run of SAC that collects data where none is given."""
    online_steps: Whole = 0
    """The last so many steps of the budget go on online, from the offline policy, with the data in the replay."""
    online_q_weight: NotNegative = 0.0
    """Weight of the conservative term then (not with `lagrange`)."""

    def validate(self) -> None:
        if self.lagrange is not None and self.min_q_weight == 0:
            raise ConfigError("algo.min_q_weight: the multiplier of algo.lagrange cannot start at 0")


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
    """Env steps of the run that collects data where none is given."""
