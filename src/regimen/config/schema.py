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
    """Whole episodes per update, exactly; setting it clears `steps`. `num_envs` must divide it."""
    num_envs: Natural | None = None
    """Environments stepped in parallel; chosen to fit when not set."""
    processes: Annotated[int | Literal["auto"], Range(1, 1024)] = 1
    """Processes that step Gymnasium environments: worth it where a step takes 0.1 ms or more. `auto`: one for each
    core. What is learned does not depend on it."""
    lag: Annotated[int, Range(0, 1000)] = 0
    """Act with a policy this many updates old (native environments): what asynchronous workers do, made repeatable."""


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
    """Width of that layer."""
    layer_norm: bool = False
    """Normalise each hidden layer before its activation (the networks mlp and mlp_norm)."""
    residual: bool = False
    """Let each hidden layer after the first add to its input; they have one width, as `--hidden 256 256 256`."""
    encoder: Literal["auto", "mlp", "cnn", "impala", "set"] = "auto"
    """What reads the observation: `auto` chooses by its space (docs/encoders.md); `mlp` makes one vector of it, `cnn`
    and `impala` convolve images, `set` reads rows of entities in no order."""
    encoder_size: Natural | None = None
    """Width of the encoder's layers; when not set 64 of a set, 32 of an embedding, and of an image 512 (Nature's
    convolutions), 256 (IMPALA's) or 128 (a small one)."""
    attention: bool = False
    """Let each entity of a set take in the others, by one layer of attention."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Which axis of an image holds its channels; `auto`: the first where it is shorter than the last."""
    embedding: Literal["auto", "always", "never"] = "auto"
    """Read choices (Discrete and MultiDiscrete) as learned vectors instead of one-hot; `auto`: beyond 1,024 options."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation during training: its own environments and keys, the greedy policy."""

    every: Period = "10"
    """How often: `10` (updates), `5000 steps`, `50 episodes`, `never`."""
    episodes: Natural = 10
    """Episodes per evaluation."""


@dataclass(frozen=True)
class LogConfig:
    """What is written and how often."""

    every: Period = "1"
    """A row of metrics (and the check of every stopping rule) every so many `updates`, `steps` or `episodes`."""
    episodes: bool = True
    """Write `episodes.csv`, one row per finished episode."""
    trace: bool = False
    """Also print every batch line while the live panel is shown."""
    replay: bool = True
    """At the end, write a short replay of the best policy to `replays/`, where the environment can be drawn."""
    trajectories: bool = False
    """Write every step of each evaluation to `trajectories/step-<n>.csv` (environments that can write trajectories)."""
    alerts: bool = False
    """Write them with the columns of the environment's detector of conflicts."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Full states for exact resume."""

    every: Period = "100"
    """How often: `100` (updates), `50000 steps`, `200 episodes`, `never`. The last state is always kept."""
    keep: Natural = 3
    """Periodic checkpoints kept."""
    keep_best: Natural = 1
    """Best checkpoints by evaluation kept."""


@dataclass(frozen=True)
class StopConfig:
    """Rules that end a run before its budget. `status.json` says which one did."""

    target_return: float | None = None
    """Converged when the mean return of the last `convergence_window` training episodes is at least this, and then no
    new best window mean appears for `patience` further episodes."""
    convergence_window: Natural = 100
    """Training episodes in that mean."""
    patience: Whole = 10
    """Episodes without a new best after reaching the target."""
    metric: str | None = None
    """Any logged metric, for example `eval/return_mean`: stop once it is `above` or `below` a value `streak`
    evaluations in a row."""
    above: float | None = None
    """Threshold of `metric` from below (inclusive)."""
    below: float | None = None
    """Threshold of `metric` from above (inclusive)."""
    streak: Natural = 1
    """Evaluations in a row."""
    zero_conflict_streak: Natural | None = None
    """Stop after so many evaluations in a row in which no episode had a conflict (the environment's metric that is a
    violation)."""
    perfect_streak: Natural | None = None
    """Stop after so many evaluations in a row in which every episode succeeded and none had a conflict."""
    band_steps: Natural | None = None
    """Judge training in bands of so many env steps: good is one with enough evaluation episodes without conflict."""
    band_share: Fraction = 0.95
    """Share of a band's evaluation episodes that must be without conflict."""
    bands: Natural = 2
    """Stop after so many good bands in a row."""
    min_bands: Natural = 3
    """But not before so many bands have been judged."""
    no_improvement: Natural | None = None
    """Stop after so many evaluations without a new best evaluation return."""
    max_seconds: Positive | None = None
    """Stop after this much wall time, start-up included."""


TRACKERS = ("mlflow", "tensorboard", "wandb")


@dataclass(frozen=True)
class TrackConfig:
    """Trackers: mirrors of the run's files, written in the background."""

    enabled: bool = True
    """Mirror the run into trackers (`--no-track` turns it off)."""
    to: Annotated[str, Alias("track")] = "mlflow"
    """Into which: `mlflow`, `tensorboard`, `wandb`, or several with commas (`--track mlflow,tensorboard`)."""
    online: bool = False
    """Let Weights & Biases use the network; else its files stay in the run directory until `wandb sync`."""
    uri: Annotated[str | None, Alias("tracking_uri")] = None
    """MLflow's store (`--tracking-uri`); by default MLFLOW_TRACKING_URI, else a SQLite file `mlflow.db` beside the run
    directories."""
    experiment: str | None = None
    """Name of the experiment, or project (`--experiment`); by default the environment's name."""
    model_name: str | None = None
    """Name in MLflow's model registry; by default `<env>-<algo>`."""
    all_rows: bool = False
    """Mirror every row of metrics.jsonl; by default a long run is thinned (docs/tracking.md)."""

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers in use."""
        return tuple(dict.fromkeys(name.strip().lower() for name in self.to.split(","))) if self.enabled else ()


@dataclass(frozen=True)
class EngineConfig:
    """Where experience is collected. All but `name` is about `ray`."""

    name: Annotated[Literal["local", "ray"], Alias("engine")] = "local"
    """`local`: in this process. `ray`: in worker processes, on this machine or on a Ray cluster (`--engine ray`)."""
    workers: Annotated[int, Range(0, 4096)] = 2
    """Worker processes; `rollout.num_envs` is shared equally among them. 0: without Ray."""
    address: str | None = None
    """A running Ray cluster to join: `auto` or `host:port`; by default one is started and ended with this run."""
    step_timeout: NotNegative | None = None
    """A worker whose environment is in one `step` or `reset` for more than these seconds is replaced, as is one that
    does not answer; when not set, a minute or 20 times the slowest rollout so far, whichever is longer. 0: never."""
    start_timeout: NotNegative = 300.0
    """A worker that has not begun to collect after these seconds is replaced. 0: never."""
    restarts: Whole = 10
    """How many times in all a worker may be replaced before the run ends with an error."""
    queue: Natural = 2
    """How many rollouts a worker of an asynchronous algorithm may be ahead of the learner; then it waits."""
    cpus: NotNegative = 1.0
    """CPUs that Ray reserves for each worker, which uses one thread."""
    verbose: bool = False
    """Print what workers print, environments included (`--verbose`)."""

    @property
    def distributed(self) -> bool:
        """Whether there are workers."""
        return self.name == "ray" and self.workers > 0


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
    algorithm: Annotated[str, Alias("algo")] = "ppo"
    """A name of `regimen algorithms` (`--algo`)."""
    preset: str | None = None
    """Starting point: a name of `regimen presets`, `tuned` (the environment's own settings) or a YAML file."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seed of everything random in the run."""
    seeds: Annotated[int, Range(1, 10_000)] | None = None
    """Train this many seeds (`seed`, `seed + 1`, ...) in one compiled program; one run directory each."""
    total_steps: Natural | None = None
    """Budget in env steps."""
    total_episodes: Natural | None = None
    """Budget in episodes; setting it alone clears `total_steps`."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train. `auto`: a GPU when there is one and the environment is native, else the CPU."""
    devices: Natural | None = None
    """How many devices to train a native environment on, each with its share of `rollout.num_envs`; by default as many
    of the visible ones as divide it."""
    out: str | None = None
    """Run directory; by default `runs/<env>-<algo>-s<seed>-<time>`."""
    data: str | None = None
    """Learn offline from this: a Minari dataset (a folder or `minari:ID`), or a run, whose experience is collected
    first. Steps then are gradient steps. `regimen train DATASET` sets it with the dataset's own environment."""
    init_from: str | None = None
    """Start from this run's policy and normaliser, with fresh optimisers."""
    policy_map: str = "shared"
    """Which policy each of several agents has: `shared` (one for all), `independent` (one each), `role` (one for all
    whose names differ only in their number), or by agent or role: `A1=lead,A2=wing,A3=wing`."""
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
