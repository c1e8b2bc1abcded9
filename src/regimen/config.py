"""Every hyper-parameter as a frozen, jax-free dataclass. The docstring under a field is its `--help` text."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from regimen.errors import ConfigError

UNITS = ("updates", "steps", "episodes")


@dataclass(frozen=True)
class Count:
    """A number of updates, env steps or episodes: `10 updates`, `5000 steps`, `1e5 steps`, `50 episodes`."""

    n: int
    unit: str

    def __str__(self) -> str:
        return f"{self.n} {self.unit}"

    @classmethod
    def parse(cls, text: str | int | float | None, where: str = "count") -> Count | None:
        """None for `never`, `0` and nothing; a bare number counts updates."""
        if text is None or str(text).strip().lower() in ("", "never", "none", "0"):
            return None
        match = re.fullmatch(r"\s*([0-9][0-9_.eE+]*)\s*([a-z]*)\s*", str(text))
        unit = match.group(2) if match else ""
        unit = next((u for u in UNITS if unit and u.startswith(unit.rstrip("s"))), "updates" if unit == "" else None)
        try:
            n = float(match.group(1).replace("_", "")) if match else math.nan
        except ValueError:
            n = math.nan
        if unit is None or not (n >= 1 and n == int(n)):
            raise ConfigError(
                f"{where}: '{text}' is not a count; write '10', '10 updates', '5000 steps' or '50 episodes'"
            )
        return cls(int(n), unit)


@dataclass(frozen=True)
class RolloutConfig:
    """When to collect: the regimen."""

    steps: int | None = None
    """Env steps per update, over all environments."""
    episodes: int | None = None
    """Whole episodes per update, exactly; setting it clears `steps`. `num_envs` must divide it."""
    num_envs: int | None = None
    """Environments stepped in parallel; chosen to fit when not set."""


@dataclass(frozen=True)
class NetworkConfig:
    """The policy and value networks."""

    name: str = "mlp"
    """A registered network (`regimen.register_network`)."""
    hidden: tuple[int, ...] = (64, 64)
    """Width of each hidden layer of the actor and of the critic."""
    activation: Literal["tanh", "relu", "gelu", "silu", "elu"] = "tanh"
    """Activation between layers."""


@dataclass(frozen=True)
class RewardConfig:
    """Rewards with named components; without effect where there is one."""

    heads: bool = True
    """One critic head, and advantages of its own, for each component; else only their sum is learned from."""
    scale: Literal["none", "return_std", "episode_sum"] = "return_std"
    """Across episodes: bring components to a like scale by the running deviation of their discounted return, or of
    their episode sums, relative to the median component, within 0.1 to 10. With fixed weights only critics see it."""
    warmup: int = 10
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
    weight_lr: float = 0.05
    """Learning rate of learned weights."""
    weight_reg: float = 0.001
    """Pull of learned weights towards `weights`."""


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347)."""

    lr: float = 3e-4
    """Adam's learning rate at the start."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate moves to `lr_end` over `horizon`."""
    lr_end: float = 0.0
    """Learning rate at the end of the schedule."""
    clip_eps: float = 0.2
    """The policy ratio is clipped to [1 - clip_eps, 1 + clip_eps]."""
    clip_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `clip_eps` moves to `clip_end` over `horizon`."""
    clip_end: float = 0.0
    """Clip range at the end of the schedule."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus at the start."""
    ent_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How `ent_coef` moves to `ent_end` over `horizon`."""
    ent_end: float = 0.0
    """Weight of the entropy bonus at the end of the schedule."""
    ent_discrete: float = 1.0
    """Factor of the entropy bonus for discrete choices."""
    ent_continuous: float = 1.0
    """Factor of the entropy bonus for continuous dimensions."""
    ent_floor_discrete: float | None = None
    """In states where the mean entropy of a discrete part's choices is below this many nats, the shortfall is added to
    the loss; off when not set."""
    ent_floor_continuous: float | None = None
    """The same for continuous dimensions, in nats per dimension in units of half its range (uniform: 0.69)."""
    ent_floor_coef: float = 1.0
    """Weight of the shortfall."""
    horizon: str | None = None
    """Length of the schedules (`100000 steps`, `500 updates`, `1000 episodes`); by default the budget at the first
    start. It is saved with the run and a resume with a larger budget does not change it."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """Trace decay of generalised advantage estimation; 1 is Monte Carlo with a baseline, 0 is one-step TD."""
    returns: Literal["gae", "n_step", "monte_carlo", "monte_carlo_z"] = "gae"
    """What the critic is trained on and advantages are measured from: lambda-returns, n-step returns, discounted sums
    of rewards, or those sums z-scored over the batch."""
    n_step: int = 5
    """Steps before bootstrapping when `returns` is `n_step`."""
    epochs: int = 4
    """Passes over each batch."""
    minibatch_size: int = 64
    """Env steps per gradient step; more than the batch holds means the full batch."""
    micro_batch_size: int | None = None
    """Split each minibatch into pieces of this size and add up their gradients: less memory, the same step."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    vf_clip: float | None = None
    """Keep new values within this absolute distance of the old ones in the value loss; off when not set."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm; 0 turns it off."""
    target_kl: float | None = None
    """Skip the rest of an update's epochs once the approximate KL to the rollout policy passes 1.5 times this."""
    kl_coef: float = 0.0
    """Initial weight of a KL penalty beside clipping; it adapts to hold the KL near `kl_target`. 0 turns it off."""
    kl_target: float = 0.01
    """KL per update that the adaptive penalty aims at."""
    normalize_advantage: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 over the whole batch."""
    normalize_obs: bool = False
    """Shift and scale observations by running statistics, saved with the policy and frozen in evaluation."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return (logged returns stay raw)."""
    log_std_init: float = 0.0
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
    balance_warmup: int = 100
    """Gradient steps before that begins."""
    reward: RewardConfig = field(default_factory=RewardConfig)


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training: its own environments and keys, the greedy policy."""

    every: str = "10"
    """How often: `10` (updates), `5000 steps`, `50 episodes`, `never`."""
    episodes: int = 10
    """Episodes per evaluation."""


@dataclass(frozen=True)
class LogConfig:
    """What is written and how often."""

    every: str = "1"
    """A row of metrics (and the check of every stopping rule) every so many `updates`, `steps` or `episodes`."""
    episodes: bool = True
    """Write `episodes.csv`, one row per finished episode."""
    trace: bool = False
    """Also print every batch line while the live panel is shown."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Full states for exact resume."""

    every: str = "100"
    """How often: `100` (updates), `50000 steps`, `200 episodes`, `never`. The last state is always kept."""
    keep: int = 3
    """Periodic checkpoints kept."""
    keep_best: int = 1
    """Best checkpoints by evaluation kept."""


@dataclass(frozen=True)
class StopConfig:
    """Rules that end a run before its budget. `status.json` says which one did."""

    target_return: float | None = None
    """Converged when the mean return of the last `convergence_window` training episodes is at least this, and then no
    new best window mean appears for `patience` further episodes."""
    convergence_window: int = 100
    """Training episodes in that mean."""
    patience: int = 10
    """Episodes without a new best after reaching the target."""
    metric: str | None = None
    """Any logged metric, for example `eval/return_mean`: stop once it is `above` or `below` a value `streak`
    evaluations in a row."""
    above: float | None = None
    """Threshold of `metric` from below (inclusive)."""
    below: float | None = None
    """Threshold of `metric` from above (inclusive)."""
    streak: int = 1
    """Evaluations in a row."""
    no_improvement: int | None = None
    """Stop after so many evaluations without a new best evaluation return."""
    max_seconds: float | None = None
    """Stop after this much wall time, start-up included."""


@dataclass(frozen=True)
class TrackConfig:
    """MLflow: a mirror of the run's files, written in the background."""

    enabled: bool = True
    """Mirror the run into MLflow when it is installed (`--no-track` turns it off)."""
    uri: str | None = None
    """Tracking store (`--tracking-uri`); by default MLFLOW_TRACKING_URI, else a SQLite file `mlflow.db` beside the run
    directories."""
    experiment: str | None = None
    """Experiment name (`--experiment`); by default the environment's name."""
    model_name: str | None = None
    """Name in the model registry; by default `<env>-<algo>`."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run, fully resolved; `config.yaml` holds exactly this."""

    env: str = "cartpole"
    """Environment: a name of `regimen envs`, `gym:ID`, `gymnax:ID` or `module:factory`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    """What `--env.KEY VALUE` set: fields of a native environment or arguments of `gym.make`."""
    curriculum: dict[str, str] = field(default_factory=dict)
    """Let a float field of a native environment change while it trains: `5 @ 0, 8 @ 20k steps`, `3 .. 9.8 over 100k
    steps` or `30, 40, 50 up 0.8 down 0.5 window 100` (levels by success rate). `--curriculum NAME` takes one that the
    environment declares."""
    algorithm: str = "ppo"
    """A name of `regimen algorithms` (`--algo`)."""
    preset: str | None = None
    """Starting point: a name of `regimen presets`, `tuned` (the environment's own settings) or a YAML file."""
    seed: int = 0
    """Seed of everything random in the run."""
    seeds: int | None = None
    """Train this many seeds (`seed`, `seed + 1`, ...) in one compiled program; one run directory each."""
    total_steps: int | None = None
    """Budget in env steps."""
    total_episodes: int | None = None
    """Budget in episodes; setting it alone clears `total_steps`."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train. `auto`: a GPU when there is one and the environment is native, else the CPU."""
    out: str | None = None
    """Run directory; by default `runs/<env>-<algo>-s<seed>-<time>`."""
    init_from: str | None = None
    """Start from this run's policy and normaliser, with fresh optimisers."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: PPOConfig = field(default_factory=PPOConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    track: TrackConfig = field(default_factory=TrackConfig)

    def replace(self, **changes) -> TrainConfig:
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class AlgorithmEntry:
    """A registered algorithm: its hyper-parameters, and where its class is without importing it."""

    config: type
    """Dataclass of its hyper-parameters; a `validate()` method on it may refuse combinations."""
    target: str | type
    """`module:Class`, imported when first used, or the class itself."""
    description: str = ""
    when: str = ""
    """When to use it, in one line."""

    def load(self) -> type:
        """The algorithm's class, imported now."""
        if not isinstance(self.target, str):
            return self.target
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(module), name)


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "ppo": AlgorithmEntry(
        PPOConfig,
        "regimen.algorithms.ppo:PPO",
        "Proximal policy optimisation: clipped policy gradient with a learned value function.",
        "The default: discrete or continuous actions, an environment that can be stepped in parallel.",
    )
}


def register_algorithm(name: str, target: str | type, config: type, description: str = "", when: str = "") -> None:
    """Make `--algo name` train with the class at `target` (`module:Class`), its hyper-parameters in `config`."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"algorithm name '{name}': use lower-case letters, digits and underscores")
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise ConfigError(f"algorithm '{name}': config must be a dataclass, not {config!r}")
    if isinstance(target, str) and not re.fullmatch(r"[\w.]+:[\w.]+", target):
        raise ConfigError(f"algorithm '{name}': target '{target}' is not of the form module:Class")
    ALGORITHMS[name] = AlgorithmEntry(config, target, description, when)
