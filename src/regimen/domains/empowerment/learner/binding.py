"""What the empowerment learner makes once for a world: its model, its networks, its stages, and where rows come
from."""

import math

import jax
import numpy as np

from regimen.algorithms.base import Binding, Horizon
from regimen.config.schema import NetworkConfig
from regimen.domains.empowerment import exact, reach, tabular
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.learner.experience import Experience, Observations, Sweep, Visits
from regimen.domains.empowerment.learner.model import Imagined, WorldModel
from regimen.domains.empowerment.learner.networks import Nets
from regimen.domains.empowerment.learner.schedule import Plan, total
from regimen.domains.empowerment.learner.table import Enumerated
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.worlds.world import World
from regimen.envs.protocol import Env
from regimen.errors import ConfigError
from regimen.types import Spec

JOINT = 200  # joint actions allowed for each state of `table_limit`
SUCCESSORS = 1_000_000  # looked at in a second by two cores, with networks of 64 and 64 units
CACHE = 8  # targets of all reachable rows are computed together where they are at most so many times those drawn


IDLE = ("memory", "encoder", "encoder_size", "attention", "channels", "embedding")  # settings of a network


def refuse_idle(network: NetworkConfig) -> None:
    """Refuse settings of networks that empowerment's have no use for: they read a world's own features."""
    for name in IDLE:
        if (value := getattr(network, name)) != getattr(NetworkConfig, name):
            raise ConfigError(
                f"network.{name}: '{value}' has no effect: the networks of empowerment read features of a world"
            )


def refuse_limits(model: WorldModel, observes: bool, c: EmpowermentConfig) -> None:
    """Refuse limits of what this world's targets do not need: they would change nothing."""
    made = "targets are observed" if observes else "targets are looked up" if model.places else ""
    drawn = made or ("the humans' joint actions are enumerated (algo.exact_limit)" if model.exact else "")
    listed = "" if model.world.enumerable else f"the world cannot be enumerated: {model.why}"
    limits = (("exact_limit", made), ("human_samples", drawn), ("draws", drawn), ("table_limit", listed))
    for name, why in limits:
        if why and c.changed(name):
            default = getattr(EmpowermentConfig, name)
            raise ConfigError(f"algo.{name}: no effect, {why}; leave it at {format(default, ',' * (name != 'draws'))}")


class EmpowermentBinding(Binding):
    """What a learner is bound to: the model of a world, the networks, the stages and the experience."""

    def __init__(self, spec: Spec, network: NetworkConfig, c: EmpowermentConfig):
        world = spec.env
        if not isinstance(world, World):
            what = "an environment outside the program" if world is None else type(world).__name__
            raise ConfigError(f"algorithm: empowerment needs a world of humans and robots (`World`), not {what}")
        if world.observation != "state":
            raise ConfigError(
                f"env.observation: '{world.observation}' is for learners that maximise reward; leave it at state"
            )
        check(world, spec)
        c.check_humans(world.humans)
        refuse_idle(network)
        super().__init__(spec)
        self.plan = Plan.of(c)
        self.observes = not (world.modelled and c.use_model_based_targets)
        self.model = make_model(world, c)
        refuse_limits(self.model, self.observes, c)
        self.nets = Nets(self.model, c, network)
        self.exact = self.model.exact and not self.observes
        intervals = [getattr(c, f"{name}_target_update_interval") for name in self.nets.names]
        interval, self.interval = min(intervals), math.gcd(*intervals)  # of training steps between any two copies
        self.period = min(math.lcm(*intervals), 2**28)  # after which copies are due as before
        small = 0 < self.model.places <= CACHE * c.batch_size * interval
        self.cached = small and interval > 1 and not self.observes
        self.notes: list[str] = []  # for the head of the log
        if isinstance(self.model, Imagined) and not self.observes:
            self.notes += effort(self.model, spec, c)
        self.notes += too_short(self.plan, spec, c)
        self.experience = self.make_experience(spec, c)

    def make_experience(self, spec: Spec, c: EmpowermentConfig) -> Experience:
        """Where rows come from."""
        if c.source == "sweep":
            if not self.model.places:
                raise ConfigError(
                    f"algo.source: 'sweep' needs a world that can be enumerated, but {self.model.why} "
                    f"(algo.table_limit is {c.table_limit:,}); set it to experience"
                )
            self.notes.append(f"algo.source sweep: rows are drawn from all {self.model.places:,} reachable moments")
            return Sweep(self.model)
        if self.observes:
            return Observations(spec, self.model, c.buffer_size)
        return Visits(self.model, c.buffer_size)

    def replay_bytes(self) -> int:
        shapes = jax.tree.leaves(jax.eval_shape(self.experience.init))
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in shapes)

    def replay_rows(self) -> int:
        return self.experience.most


def too_short(plan: Plan, spec: Spec, c: EmpowermentConfig) -> list[str]:
    """A note where training ends before all networks learn at the full beta_r: values are of an earlier stage then."""
    length = float(total(c, Horizon.parse(c.horizon), spec, spec.max_episode_steps))
    if length >= plan.full:
        return []
    unit = c.schedule_unit.replace("_", " ")
    return [
        f"the budget is {length:,.0f} {unit}, and full training begins after {plan.full:,}: what is learned is of an "
        "earlier stage; lengthen it, or shorten algo.warmup_NETWORK_steps and algo.beta_r_rampup_steps"
    ]


def effort(model: Imagined, spec: Spec, c: EmpowermentConfig) -> list[str]:
    """A note where the first update takes minutes: it looks like a slow compiler and is the successors of all rows."""
    steps = spec.rollout_rows * spec.num_envs * c.training_steps_per_env_step
    each = c.batch_size * model.branches
    minutes = each * steps / SUCCESSORS / 60
    if minutes < 1:
        return []
    fewer = f", or algo.exact_limit (now {c.exact_limit:,}) so that humans' actions are drawn" if model.exact else ""
    return [
        f"an update takes {steps:,.0f} training steps of {each:,} successors each ({c.batch_size} rows times "
        f"{model.branches:,}), some {minutes:,.0f} minutes on two cores; lower algo.batch_size{fewer}"
    ]


def check(world: World, spec: Spec) -> None:
    """Refuse a rollout that does not fit the world, and a world whose goals have no weights."""
    steps = world.max_episode_steps
    if spec.workers > 1 and spec.rollout_rows % steps:
        rows = max(1, round(spec.rollout_rows / steps)) * steps
        raise ConfigError(
            f"rollout.steps: actors take up new weights between episodes of {steps} steps; set it to "
            f"{rows * spec.num_envs}, whole episodes of all {spec.num_envs} environments"
        )
    weights = np.asarray(world.goal_weights)
    if weights.shape[0] != world.humans or not np.allclose(weights.sum(1), 1, atol=1e-5) or (weights < 0).any():
        raise ConfigError(f"goal_weights: a row for each of {world.humans} humans, at least 0, summing to 1")


def make_model(world: World, c: EmpowermentConfig) -> WorldModel:
    """The model of a world, enumerated if that is small enough; settings that need it are refused otherwise."""
    why, fix = "it is only a sampler", ""
    if world.enumerable:
        try:
            horizon = world.max_episode_steps if c.include_step_count else None
            table = reach.enumerate_states(world, JOINT * c.table_limit, horizon, c.table_limit)
            return Enumerated(world, c, table, solved_prior(world, c, table))
        except reach.TooLargeError as error:
            why, fix = error.why, f", or raise algo.table_limit (now {c.table_limit:,})"
    elif world.modelled:
        why = "its states have no `sizes`"
    if c.use_lookup_tables:
        raise ConfigError(f"algo.use_lookup_tables: the world cannot be enumerated: {why}; turn it off{fix}")
    if c.human_prior != "heuristic":
        raise ConfigError(
            f"algo.human_prior: '{c.human_prior}' is solved for, but the world cannot be: {why}; set it to "
            f"heuristic{fix}"
        )
    model = Imagined(world, c) if world.modelled else WorldModel(world, c)
    model.why = why
    return model


def solved_prior(world: World, c: EmpowermentConfig, table: reach.StateTable) -> np.ndarray | None:
    """How humans act by phase 1 [T, S, H, G, A], one layer where there is no time; None for the world's own prior."""
    if c.human_prior == "heuristic":
        return None
    layers = solution_of(world, c, JOINT * c.table_limit).pi_h
    out = np.zeros((len(layers), len(table.states), *layers[0].shape[1:]))
    for t, layer in enumerate(layers):
        out[t, : len(layer)] = layer
    return out


def solution_of(world: Env | World | None, c: EmpowermentConfig, limit: int) -> Solution:
    """The solution that a run aims at: of the world that ends, or the stationary one."""
    assert isinstance(world, World)
    return (exact if c.include_step_count else tabular).solve(world, c.theory(), limit)
