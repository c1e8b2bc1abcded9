"""The hyper-parameters of `--algo empowerment`, jax-free. The docstring under a field is its `--help` text;
docs/algorithms/empowerment.md has the glossary and says where defaults differ from the prior system's, and why."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from regimen.config.fields import Fraction, Natural, Negative, NotNegative, Period, Positive, Range, Whole
from regimen.config.presets import load_yaml
from regimen.config.trust import alike
from regimen.domains.empowerment.theory import Equations, Theory
from regimen.errors import ConfigError

NETS = ("v_h_e", "x_h", "u_r", "q_r", "v_r")
"""The networks, in the order in which they begin to learn."""
STAGES = (*NETS, "ramp", "full")
"""Stages by number: what joins in it, the ramp of beta_r, full training."""


@dataclass(frozen=True)
class EmpowermentConfig(Equations):
    """A robot that softly maximises human power (Heitzig and Potham 2025, arXiv 2508.00159)."""

    # theory, beside that of `Equations`
    human_prior: Literal["heuristic", "cautious", "optimistic", "mean"] = "heuristic"
    """How humans are believed to act: as the world's own `prior` says, or solved for first (phase 1) against the worst,
    the best or the average robot. The latter needs a world that can be enumerated."""
    beta_h: str = "10"
    """Inverse temperature of a prior that is solved for; a number or `inf`. The heuristic prior has the world's
    (`env.beta_h`)."""

    # exploration
    epsilon_r_start: Fraction = 1.0
    """Share of uniformly random robot actions at the start."""
    epsilon_r_end: Fraction = 0.3
    """Share of uniformly random robot actions at the end of `epsilon_r_decay_steps`, and after it."""
    epsilon_r_decay_steps: Whole = 10_000
    """Steps over which the share of random robot actions falls, linearly."""
    epsilon_h_start: Fraction = 1.0
    """Share of uniformly random human actions at the start. What is learned does not depend on it."""
    epsilon_h_end: Fraction = 0.3
    """Share of uniformly random human actions at the end of `epsilon_h_decay_steps`, and after it."""
    epsilon_h_decay_steps: Whole = 10_000
    """Steps over which the share of random human actions falls, linearly."""
    goal_resample_prob: Fraction = 0.01
    """Chance per step that all goals are drawn again; a goal that is attained always is."""
    source: Literal["experience", "sweep"] = "experience"
    """Where the rows come from: from what agents have visited, or uniformly from all reachable states and times of a
    world that can be enumerated (`table_limit`)."""

    # learning rates
    lr_v_h_e: Positive = 2e-3
    """Adam's learning rate of V_h^e; of a lookup table, the step towards its target."""
    lr_x_h: Positive = 2e-3
    """Adam's learning rate of X_h; of a lookup table, the step towards its target."""
    lr_u_r: Positive = 2e-3
    """Adam's learning rate of U_r; of a lookup table, the step towards its target."""
    lr_q_r: Positive = 2e-3
    """Adam's learning rate of Q_r; of a lookup table, the step towards its target."""
    lr_v_r: Positive = 2e-3
    """Adam's learning rate of V_r; of a lookup table, the step towards its target."""
    lr_decay: Literal["constant", "seed_sqrt", "sqrt", "inverse", "cosine"] = "inverse"
    """After the ramp and `lr_constant_fraction` of training, whose end is t0: none, 1 / sqrt(t - t1 + 1) with t1 the
    end of the ramp, sqrt(t0 / t), t0 / t, or half a cosine down to 0."""
    lr_constant_fraction: Fraction = 0.7
    """Share of all steps before the decay begins (not of `seed_sqrt`, which begins at the end of the ramp)."""

    # stages
    warmup_v_h_e_steps: Whole = 2_000
    """Steps of stage 0, in which only V_h^e learns."""
    warmup_x_h_steps: Whole = 2_000
    """Steps of stage 1, in which X_h joins. A network that is not used has no stage."""
    warmup_u_r_steps: Whole = 2_000
    """Steps of stage 2, in which U_r joins."""
    warmup_q_r_steps: Whole = 2_000
    """Steps of stage 3, in which Q_r joins."""
    warmup_v_r_steps: Whole = 2_000
    """Steps of stage 4, in which V_r joins."""
    beta_r_rampup_steps: Whole = 4_000
    """Steps of stage 5, in which the effective beta_r rises from 0; then comes stage 6, full training."""
    beta_r_ramp: Literal["sigmoid", "linear"] = "sigmoid"
    """Shape of the rise of beta_r; each is exactly 0 at the start of the ramp and beta_r at its end."""
    schedule_unit: Literal["training_steps", "env_steps"] = "training_steps"
    """What stages, epsilons, the ramp and decays count."""
    num_training_steps: Natural | None = None
    """Length of training, which decays refer to; by default the budget."""
    horizon: Period | None = None
    """The budget at the first start; saved with the run."""

    # target copies
    v_h_e_target_update_interval: Natural = 100
    """Training steps between copies of V_h^e to its target network; 1 is as good as no target network."""
    x_h_target_update_interval: Natural = 100
    """Training steps between copies of X_h to its target network; 1 is as good as no target network."""
    u_r_target_update_interval: Natural = 100
    """Training steps between copies of U_r to its target network; 1 is as good as no target network."""
    q_r_target_update_interval: Natural = 100
    """Training steps between copies of Q_r to its target network, which acting uses as well."""
    v_r_target_update_interval: Natural = 100
    """Training steps between copies of V_r to its target network; 1 is as good as no target network."""

    # replay and batches
    buffer_size: Natural = 100_000
    """Visited states with time that are kept, each once; or, if targets are observed, transitions, rounded up to whole
    rollouts."""
    batch_size: Natural = 64
    """Rows per training step."""
    training_steps_per_env_step: Positive = 1.0
    """Training steps for each env step; fractions add up."""

    # targets
    use_model_based_targets: bool = True
    """Expectations over actions, outcomes and goals by the world's `outcomes`; else from the transitions observed, with
    weights for what exploration did. A world that is only a sampler always does the latter."""
    exact_limit: Natural = 4096
    """Joint human actions times outcomes up to which expectations are exact; beyond, others' actions are drawn."""
    human_samples: Natural = 4
    """How often the other humans' actions, or whole transitions, are drawn where not all are enumerated."""
    draws: Literal["actions", "transitions"] = "actions"
    """What is drawn beyond `exact_limit`: the other humans' actions, beside all of one's own and all outcomes; or whole
    transitions after each robot action, which need far fewer successors and are noisier."""
    table_limit: Natural = 20_000
    """Reachable states up to which a world is enumerated before training: targets are then looked up. Fewer where
    there are more than 200 joint actions."""
    loss: Literal["mse", "huber"] = "mse"
    """Loss of every network. Huber's loss is not minimal at the mean, so it biases sampled targets."""
    loss_space: Literal["auto", "log", "value"] = "auto"
    """Errors of X_h, U_r, Q_r and V_r: of their logarithms, which is right for exact targets, or relative to their
    size, which is right for all. auto: log where targets are exact."""
    q_r_output: Literal["log", "softplus", "z"] = "log"
    """How Q_r and V_r come out of a network with output o: -exp(o), -softplus(o), or -sigmoid(o)^(-eta xi)."""

    # regularisation
    v_h_e_weight_decay: NotNegative = 0.0
    """L2 penalty of V_h^e, in its gradient."""
    x_h_weight_decay: NotNegative = 0.0
    """L2 penalty of X_h, in its gradient."""
    u_r_weight_decay: NotNegative = 0.0
    """L2 penalty of U_r, in its gradient."""
    q_r_weight_decay: NotNegative = 0.0
    """L2 penalty of Q_r, in its gradient."""
    v_r_weight_decay: NotNegative = 0.0
    """L2 penalty of V_r, in its gradient."""
    v_h_e_grad_clip: NotNegative = 10.0
    """Gradients of V_h^e are scaled down to this norm; 0 turns it off."""
    x_h_grad_clip: NotNegative = 10.0
    """Gradients of X_h are scaled down to this norm; 0 turns it off."""
    u_r_grad_clip: NotNegative = 10.0
    """Gradients of U_r are scaled down to this norm; 0 turns it off."""
    q_r_grad_clip: NotNegative = 10.0
    """Gradients of Q_r are scaled down to this norm; 0 turns it off."""
    v_r_grad_clip: NotNegative = 10.0
    """Gradients of V_r are scaled down to this norm; 0 turns it off."""
    v_h_e_dropout: Annotated[float, Range(0, 0.99)] = 0.0
    """Share of hidden units that are dropped in training V_h^e."""
    x_h_dropout: Annotated[float, Range(0, 0.99)] = 0.0
    """Share of hidden units that are dropped in training X_h."""
    u_r_dropout: Annotated[float, Range(0, 0.99)] = 0.0
    """Share of hidden units that are dropped in training U_r."""
    q_r_dropout: Annotated[float, Range(0, 0.99)] = 0.0
    """Share of hidden units that are dropped in training Q_r."""
    v_r_dropout: Annotated[float, Range(0, 0.99)] = 0.0
    """Share of hidden units that are dropped in training V_r."""

    # networks
    x_h_use_network: bool = True
    """Learn X_h with a network; otherwise it is computed from V_h^e."""
    u_r_use_network: bool = False
    """Learn U_r with a network; otherwise it is computed from X_h."""
    v_r_use_network: bool = False
    """Learn V_r with a network; otherwise it is computed from U_r and Q_r."""
    include_step_count: bool = True
    """Let networks see the time, and values end with it. Else a stationary solution is learned, as if the world went on
    for ever; episodes are then only cut short."""
    time_features: Literal["one_hot", "scaled"] = "one_hot"
    """How the networks are given the time."""
    use_encoders: bool = False
    """Give the other networks, beside the state, what V_h^e's first layers make of it; only V_h^e trains those."""
    hidden_dim: Natural | None = None
    """Width of two hidden layers of every network; by default they are `network.hidden`."""
    networks: str = ""
    """Other networks for some: `q_r=NAME,v_h_e=module:factory` with names of `register_network`, or factories like
    those."""
    use_lookup_tables: bool = False
    """Tables over all reachable states (and times) instead of networks."""
    lookup_use_adaptive_lr: bool = False
    """Let a table's entry be the mean of its targets so far, by weight (1 / n where all weigh alike), instead of steps
    of lr_*."""
    lookup_default_q_r: Negative = -1.0
    """Q_r of a table at the start."""
    lookup_default_v_r: Negative = -1.0
    """V_r of a table at the start."""
    lookup_default_v_h_e: Fraction = 0.0
    """V_h^e of a table at the start."""
    lookup_default_x_h: Positive = 1e-10
    """X_h of a table at the start."""
    lookup_default_y: Positive = 2.0
    """The mean of X_h^-xi of a table of U_r at the start."""

    # asynchrony (--engine ray)
    actor_sync_freq: Natural = 100
    """Training steps between updates of the actors' weights; actors take new weights between whole episodes."""
    max_env_steps_per_training_step: Positive = 10.0
    """With several workers the learner makes at least one training step for this many env steps."""

    @classmethod
    def unknown(cls, name: str) -> str | None:
        """What to say of a setting of the prior system that is none here; None for one that nobody knows."""
        names = load_yaml(Path(__file__).with_name("prior_names.yaml"), "names of the prior system")
        if name in names["replaced"]:
            return f"that is named otherwise here: {names['replaced'][name]}"
        if name.startswith(tuple(names["not_built"])):
            return "the prior system has it, this one does not (docs/algorithms/empowerment.md says why)"
        return None

    def uses(self, name: str) -> bool:
        """Whether a network is learned."""
        return getattr(self, f"{name}_use_network", True)

    @property
    def update_ratio(self) -> float:
        """Gradient steps per env step, by the name that other algorithms have for it."""
        return self.training_steps_per_env_step

    @property
    def inverse_temperature(self) -> float:
        """beta_h as a number."""
        try:
            return float(self.beta_h)
        except ValueError:
            return math.nan

    def theory(self) -> Theory:
        """The parameters of the equations alone, as the exact solvers take them."""
        same = {f.name: getattr(self, f.name) for f in dataclasses.fields(Equations)}
        return Theory(**same, beta_h=self.inverse_temperature, prior=self.human_prior)

    def validate(self) -> None:
        if math.isinf(self.beta_r):
            raise ConfigError(
                "algo.beta_r: inf is for `regimen solve`; a learner ramps it up to a finite value, such as 100, and "
                "its greedy policy takes the best action anyway"
            )
        if not self.inverse_temperature > 0:
            raise ConfigError(f"algo.beta_h: '{self.beta_h}' is not a number greater than 0, or inf")
        if self.human_prior == "heuristic" and self.beta_h != EmpowermentConfig.beta_h:
            raise ConfigError(
                f"algo.beta_h: {self.beta_h} would change nothing, the heuristic prior is the world's own; set "
                "env.beta_h, or algo.human_prior to one that is solved for"
            )
        if self.use_encoders and self.use_lookup_tables:
            raise ConfigError("algo.use_encoders: lookup tables have no layers to share; turn one of the two off")
        self.check_kind()
        self.check_source()
        self.check_unused()
        self.check_idle()
        self.named_networks()

    def changed(self, *names: str) -> str | None:
        """The first of these settings that is not as it is by default."""
        return next((n for n in names if getattr(self, n) != getattr(type(self), n)), None)

    def check_source(self) -> None:
        """Refuse settings of experience where rows are swept: what is learned would not depend on them."""
        if self.source == "experience":
            return
        if not self.use_model_based_targets:
            raise ConfigError(
                "algo.source: 'sweep' has no transitions to observe, only targets of the model can be swept; set it to "
                "experience, or algo.use_model_based_targets to true"
            )
        exploring = [f.name for f in dataclasses.fields(self) if f.name.startswith("epsilon_")]
        if name := self.changed(*exploring, "goal_resample_prob", "buffer_size"):
            raise ConfigError(
                f"algo.{name}: no effect on what is learned where algo.source is sweep; leave it at "
                f"{getattr(type(self), name)!r}, or set algo.source to experience"
            )

    def check_unused(self) -> None:
        """Refuse settings of networks that are not learned."""
        for net in (n for n in NETS if not self.uses(n)):
            ends = ("target_update_interval", "weight_decay", "grad_clip", "dropout")
            of_net = [f"lr_{net}", f"warmup_{net}_steps", *(f"{net}_{end}" for end in ends)]
            table = f"lookup_default_{'y' if net == 'u_r' else net}"
            if name := self.changed(*of_net, table):
                raise ConfigError(
                    f"algo.{name}: {net} is computed, not learned; leave it at {getattr(type(self), name)!r}, or set "
                    f"algo.{net}_use_network"
                )

    def check_idle(self) -> None:
        """Refuse settings that another one puts out of use."""
        steps = [f"lr_{net}" for net in NETS]
        idle = [  # settings, whether they are idle, and by what
            (["beta_r_ramp"], not self.beta_r_rampup_steps, "algo.beta_r_rampup_steps is 0"),
            (["epsilon_r_start"], not self.epsilon_r_decay_steps, "algo.epsilon_r_decay_steps is 0"),
            (["epsilon_h_start"], not self.epsilon_h_decay_steps, "algo.epsilon_h_decay_steps is 0"),
            (["time_features"], not self.include_step_count, "algo.include_step_count is off"),
            (["num_training_steps"], self.lr_decay in ("constant", "seed_sqrt"), f"algo.lr_decay is {self.lr_decay}"),
            (steps, self.lookup_use_adaptive_lr, "algo.lookup_use_adaptive_lr is on"),
        ]
        for names, is_idle, why in idle:
            if is_idle and (name := self.changed(*names)):
                raise ConfigError(f"algo.{name}: no effect, {why}; leave it at {getattr(type(self), name)!r}")

    def check_kind(self) -> None:
        """Refuse settings of networks for tables, and of tables for networks: they would change nothing."""
        ends = ("_dropout", "_weight_decay", "_grad_clip")
        others = (
            "networks",
            "hidden_dim",
            "time_features",
            "loss",
            "loss_space",
            "q_r_output",
        )
        for f in dataclasses.fields(self):
            of_network, of_table = f.name.endswith(ends) or f.name in others, f.name.startswith("lookup_")
            if getattr(self, f.name) == f.default or not (of_network if self.use_lookup_tables else of_table):
                continue
            what = "lookup tables have" if self.use_lookup_tables else "networks have"
            raise ConfigError(
                f"algo.{f.name}: {what} none; leave it at {f.default!r}, or turn algo.use_lookup_tables "
                f"{'off' if self.use_lookup_tables else 'on'}"
            )

    def named_networks(self) -> dict[str, str]:
        """Network -> name or factory, as `networks` says."""
        out = {}
        for part in filter(None, (p.strip() for p in self.networks.split(","))):
            name, equals, builder = (x.strip() for x in part.partition("="))
            if not equals or not builder or name not in NETS:
                raise ConfigError(f"algo.networks: '{part}' is not NETWORK=NAME; networks are {', '.join(NETS)}")
            if not self.uses(name):
                raise ConfigError(f"algo.networks: {name} is computed, not learned; set algo.{name}_use_network")
            out[name] = alike(builder, self.networks)
        return out
