"""Every setting of a run as a frozen, jax-free dataclass, and the registry of algorithms. The docstring under a field
is its `--help` text. The algorithms' own hyper-parameters are in `algorithms/`."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from regimen.config import algorithms
from regimen.config.algorithms.ppo import PPOConfig
from regimen.config.common import CommonHyperparameters
from regimen.config.domains import AlgorithmEntry, domains
from regimen.config.fields import Alias, Fraction, Natural, NotNegative, Period, Positive, Range, Whole
from regimen.errors import ConfigError


@dataclass(frozen=True)
class RolloutConfig:
    """When to collect: the regimen."""

    steps: Natural | None = None
    """Env steps per update, over all environments."""
    episodes: Natural | None = None
    """Whole episodes per update, never more or fewer; setting it clears `steps`. `num_envs` must divide it."""
    num_envs: Natural | None = None
    """Copies of the environment that are stepped in parallel; if not set, a number that fits is chosen."""
    processes: Annotated[int | Literal["auto"], Range(1, 1024)] = 1
    """Processes that step Gymnasium environments, which pays if a step takes 0.1 ms or more. `auto` means one for each
    core. What is learned does not depend on it."""
    lag: Annotated[int, Range(0, 1000)] = 0
    """Act with a policy that is this many updates old (native environments). It is the delay of asynchronous workers,
    made repeatable."""


@dataclass(frozen=True)
class NetworkConfig:
    """The policy and value networks."""

    name: str = "mlp"
    """A registered network (`regimen.register_network`)."""
    hidden: tuple[Natural, ...] = (64, 64)
    """Width of each hidden layer of the actor and of the critic."""
    activation: Literal["tanh", "relu", "gelu", "silu", "elu"] = "tanh"
    """Activation between layers."""
    memory: Literal["none", "gru"] = "none"
    """Let the policy remember what it has seen: a recurrent layer in front of the actor and the critic."""
    memory_size: Natural = 64
    """Width of the recurrent layer."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation (the networks mlp and mlp_norm)."""
    residual: bool = False
    """Add a residual connection around each hidden layer after the first; all must have the same width, such as
    `--hidden 256 256 256`."""
    encoder: Literal["auto", "mlp", "cnn", "impala", "set"] = "auto"
    """What reads the observation: `auto` chooses by its space (docs/encoders.md); `mlp` makes one vector of it, `cnn`
    and `impala` convolve images, `set` reads rows of entities in no order."""
    encoder_size: Natural | None = None
    """Width of the encoder's layers. If not set, it is 64 for a set, 32 for an embedding, and for an image 512
    (Nature's convolutions), 256 (IMPALA's) or 128 (a small one)."""
    attention: bool = False
    """Let each entity of a set attend to the others in one layer of attention."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Which axis of an image holds its channels; `auto` takes the first axis if it is shorter than the last."""
    embedding: Literal["auto", "always", "never"] = "auto"
    """Read choices (Discrete and MultiDiscrete) as learned vectors instead of one-hot ones; `auto` does so beyond 1,024
    options."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training: its own environments and keys, the greedy policy."""

    every: Period = "10"
    """How often to evaluate: `10` (updates), `5000 steps`, `50 episodes`, `never`."""
    episodes: Natural = 10
    """Episodes per evaluation."""


@dataclass(frozen=True)
class LogConfig:
    """What is written and how often."""

    every: Period = "1"
    """How often to write a row of metrics and check the stopping rules, in `updates`, `steps` or `episodes`."""
    episodes: bool = True
    """Write `episodes.csv`, one row per finished episode."""
    trace: bool = False
    """Also print a line for every update while the live panel is shown."""
    replay: bool = True
    """At the end, write a short replay of the best policy to `replays/`, if the environment can be drawn."""
    trajectories: bool = False
    """Write every step of each evaluation to `trajectories/step-<n>.csv` (environments that can write trajectories)."""
    alerts: bool = False
    """Add the columns of the environment's conflict detector to these trajectories."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Full states for exact resume."""

    every: Period = "100"
    """How often to save the state: `100` (updates), `50000 steps`, `200 episodes`, `never`. The last state is always
    kept."""
    keep: Natural = 3
    """How many periodic checkpoints are kept."""
    keep_best: Natural = 1
    """How many of the checkpoints with the best evaluations are kept."""


@dataclass(frozen=True)
class StopConfig:
    """Rules that end a run before its budget. `status.json` says which one did."""

    target_return: float | None = None
    """The run has converged when the mean return of the last `convergence_window` training episodes is at least this
    and no new best mean appears for `patience` further episodes."""
    convergence_window: Natural = 100
    """Training episodes in the mean that is compared with `target_return`."""
    patience: Whole = 10
    """Episodes without a new best after reaching the target."""
    metric: str | None = None
    """A logged metric, for example `eval/return_mean`: stop when it is `above` or `below` a value in `streak`
    evaluations in a row."""
    above: float | None = None
    """Stop when `metric` is at least this."""
    below: float | None = None
    """Stop when `metric` is at most this."""
    streak: Natural = 1
    """How many evaluations in a row `metric` must have reached its threshold."""
    zero_conflict_streak: Natural | None = None
    """Stop after this many evaluations in a row in which no episode had a conflict (the metric that the environment
    declares a violation)."""
    perfect_streak: Natural | None = None
    """Stop after this many evaluations in a row in which every episode succeeded and none had a conflict."""
    band_steps: Natural | None = None
    """Judge training in bands of this many env steps: a band is good if enough of its evaluation episodes have no
    conflict."""
    band_share: Fraction = 0.95
    """Share of a good band's evaluation episodes that must have no conflict."""
    bands: Natural = 2
    """Stop after this many good bands in a row."""
    min_bands: Natural = 3
    """Do not stop before this many bands have been judged."""
    no_improvement: Natural | None = None
    """Stop after this many evaluations without a new best evaluation return."""
    max_seconds: Positive | None = None
    """Stop after this many seconds, start-up included."""


TRACKERS = ("mlflow", "tensorboard", "wandb")


@dataclass(frozen=True)
class TrackConfig:
    """Trackers: mirrors of the run's files, written in the background."""

    enabled: bool = True
    """Send the run to trackers (`--no-track` turns it off)."""
    to: Annotated[str, Alias("track")] = "mlflow"
    """Which trackers: `mlflow`, `tensorboard`, `wandb`, or several with commas (`--track mlflow,tensorboard`)."""
    online: bool = False
    """Let Weights & Biases use the network; otherwise its files stay in the run directory until `wandb sync`."""
    uri: Annotated[str | None, Alias("tracking_uri")] = None
    """MLflow's store (`--tracking-uri`); by default MLFLOW_TRACKING_URI or, if that is not set, a SQLite file
    `mlflow.db` beside the run directories."""
    experiment: str | None = None
    """Name of the experiment, or project (`--experiment`); by default the environment's name."""
    model_name: str | None = None
    """Name in MLflow's model registry; by default `<env>-<algo>`."""
    all_rows: bool = False
    """Send every row of metrics.jsonl; by default a part of the rows of a long run is sent (docs/tracking.md)."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers in use."""
        return tuple(dict.fromkeys(name.strip().lower() for name in self.to.split(","))) if self.enabled else ()


@dataclass(frozen=True)
class EngineConfig:
    """Where experience is collected. All but `name` is about `ray`."""

    name: Annotated[Literal["local", "ray"], Alias("engine")] = "local"
    """`local` collects in this process, `ray` in worker processes, on this machine or on a Ray cluster (`--engine
    ray`)."""
    workers: Annotated[int, Range(0, 4096)] = 2
    """Number of worker processes; `rollout.num_envs` is shared equally among them. 0 means without Ray."""
    address: str | None = None
    """A running Ray cluster to join: `auto` or `host:port`; by default one is started and ended with this run."""
    step_timeout: NotNegative | None = None
    """A worker whose environment spends more than these seconds in one `step` or `reset` is replaced, and so is one
    that does not answer. If not set, it is a minute or 20 times the slowest rollout so far, whichever is longer. 0
    means never."""
    start_timeout: NotNegative = 300.0
    """A worker that has not begun to collect after these seconds is replaced. 0 means never."""
    restarts: Whole = 10
    """How often workers may be replaced, in all, before the run ends with an error."""
    queue: Natural = 2
    """How many rollouts a worker of an asynchronous algorithm may be ahead of the learner; then it waits."""
    cpus: NotNegative = 1.0
    """CPUs that Ray reserves for each worker, which uses one thread."""
    verbose: bool = False
    """Print the output of the workers, including their environments (`--verbose`)."""

    @property
    def distributed(self) -> bool:
        """Whether Ray workers collect."""
        return self.name == "ray" and self.workers > 0


@dataclass(frozen=True)
class TrainConfig:
    """One training run, fully resolved; `config.yaml` holds exactly this."""

    env: str = "cartpole"
    """Environment: a name of `regimen envs`, `gym:ID`, `gymnax:ID` or `module:factory`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    """What `--env.KEY VALUE` has set: fields of a native environment or arguments of `gym.make`."""
    curriculum: dict[str, str] = field(default_factory=dict)
    """Let a float field of a native environment change while it trains: `5 @ 0, 8 @ 20k steps`, `3 .. 9.8 over 100k
    steps` or `30, 40, 50 up 0.8 down 0.5 window 100` (levels by success rate). `--curriculum NAME` takes one that the
    environment declares."""
    algorithm: Annotated[str, Alias("algo")] = "ppo"
    """A name of `regimen algorithms` (`--algo`)."""
    preset: str | None = None
    """Starting point: a name of `regimen presets`, `tuned` (the environment's own settings) or a YAML file."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seed of everything random in the run."""
    seeds: Annotated[int, Range(1, 10_000)] | None = None
    """Train this many seeds (`seed`, `seed + 1`, ...) in one compiled program; each has a run directory."""
    total_steps: Natural | None = None
    """Budget in env steps."""
    total_episodes: Natural | None = None
    """Budget in episodes; setting only this one clears `total_steps`."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train. `auto` takes a GPU if there is one and the environment is native, otherwise the CPU."""
    devices: Natural | None = None
    """How many devices to train a native environment on, each with its share of `rollout.num_envs`; by default as many
    of the visible devices as divide that number."""
    out: str | None = None
    """Run directory; by default `runs/<env>-<algo>-s<seed>-<time>`."""
    data: str | None = None
    """Learn offline from this: a Minari dataset (a folder or `minari:ID`), or a run, whose experience is collected
    first. Steps are then gradient steps. `regimen train DATASET` sets it together with the environment of the
    dataset."""
    init_from: str | None = None
    """Start from this run's policy and normaliser, with fresh optimisers."""
    policy_map: str = "shared"
    """Which policy each of several agents has: `shared` (one for all), `independent` (one for each), `role` (one for
    all agents whose names differ only in their number), or by agent or role: `A1=lead,A2=wing,A3=wing`."""
    frozen: str | None = None
    """Policies of `policy_map` that do not learn, and the runs they are taken from: `wing=runs/first`."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algo: PPOConfig = field(default_factory=PPOConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    @property
    def common(self) -> CommonHyperparameters:
        """What every run asks of its algorithm's hyper-parameters."""
        return CommonHyperparameters.of(self.algo)

    def replace(self, **changes) -> TrainConfig:
        return dataclasses.replace(self, **changes)


ALGORITHMS: dict[str, AlgorithmEntry] = algorithms.entries(first=TrainConfig.algorithm) | {
    name: entry for domain in domains().values() for name, entry in domain.algorithms.items()
}


def register_algorithm(name: str, target: str | type, config: type, description: str = "", when: str = "") -> None:
    """Make an algorithm of yours known by a name, for `--algo NAME`.

    Args:
        name: lower-case letters, digits and underscores.
        target: the class, or where it is (`module:Class`).
        config: the dataclass of its hyper-parameters; each becomes a flag.
        description: a line for `regimen algorithms`.
        when: when to use it, in a line.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"algorithm name '{name}': use lower-case letters, digits and underscores")
    if not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise ConfigError(f"algorithm '{name}': config must be a dataclass, not {config!r}")
    if isinstance(target, str) and not re.fullmatch(r"[\w.]+:[\w.]+", target):
        raise ConfigError(f"algorithm '{name}': target '{target}' is not of the form module:Class")
    ALGORITHMS[name] = AlgorithmEntry(config, target, description, when)
