"""What the empowerment learner builds once for a world: its model, its networks, its stages and its replay."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen.algorithms.base import Binding
from regimen.axes import device_count
from regimen.config.schema import NetworkConfig
from regimen.domains.empowerment import exact, reach, tabular
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.learner.model import Imagined, WorldModel
from regimen.domains.empowerment.learner.networks import Nets
from regimen.domains.empowerment.learner.schedule import Plan
from regimen.domains.empowerment.learner.table import Enumerated
from regimen.domains.empowerment.learner.targets import Seen
from regimen.domains.empowerment.worlds.world import World
from regimen.errors import ConfigError
from regimen.sources.replay import Replay, Ring
from regimen.sources.replay import Rows as Kept
from regimen.types import Array, Batch, PyTree, Spec

JOINT = 200  # joint actions allowed for each state of `table_limit`
CACHE = (
    8  # all reachable rows are aimed at together where they are at most so many times those drawn between two copies
)


class EmpowermentBinding(Binding):
    """The model of a world, the networks, the stages and the replay."""

    def __init__(self, spec: Spec, network: NetworkConfig, c: EmpowermentConfig):
        world = spec.env
        if not isinstance(world, World):
            what = "an environment outside the program" if world is None else type(world).__name__
            raise ConfigError(f"algorithm: empowerment needs a world of humans and robots (`World`), not {what}")
        check(world, spec, c)
        super().__init__(spec)
        self.plan = Plan.of(c)
        self.observes = not (world.modelled and c.use_model_based_targets)
        self.model = make_model(world, c)
        self.nets = Nets(self.model, c, network)
        self.exact = self.model.exact and not self.observes
        intervals = [getattr(c, f"{name}_target_update_interval") for name in self.nets.names]
        interval, self.interval = min(intervals), math.gcd(*intervals)  # of training steps between any two copies
        small = 0 < self.model.places <= CACHE * c.batch_size * interval
        self.cached = small and interval > 1 and not self.observes
        self.notes: list[str] = []  # for the head of the log
        self.sweep = c.state_sweep
        if self.sweep and self.observes and world.enumerable:
            raise ConfigError("algo.state_sweep: targets are observed, not modelled, and only those of the model can "
                              "be swept; set it to 0, or algo.use_model_based_targets to true")  # fmt: skip
        if self.sweep and not self.model.places:
            self.sweep = 0.0
            self.notes.append(
                f"algo.state_sweep {c.state_sweep:g}: nothing to sweep, the world is not enumerated "
                f"({self.model.why}; algo.table_limit is {c.table_limit:,}); all rows are drawn from the replay"
            )
        rows = spec.rollout_rows
        self.replay = Replay(c.buffer_size, rows, spec.columns, spec.workers) if rows else None

    # --- the replay --------------------------------------------------------------------------------------------------

    def example(self) -> tuple[PyTree, PyTree, PyTree]:
        """What is kept of an observation, an action and a successor."""
        world = self.model.world
        time, state = jnp.int32(0), jax.eval_shape(world.initial)
        state = jnp.zeros(state.shape, state.dtype)
        if not self.observes:
            return ({"place": time} if self.model.places else {"state": state, "time": time}), (), ()
        goal, p = jnp.zeros(world.humans, jnp.int32), jnp.zeros(world.humans)
        action = {"robot": time, "human": goal, "robot_p": jnp.zeros(()), "human_p": p}
        return {"state": state, "time": time, "goal": goal}, action, {"state": state, "time": time}

    def empty_replay(self) -> Kept:
        assert self.replay is not None
        lead = (self.replay.capacity, self.replay.columns)
        obs, action, new = jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape), x.dtype), self.example())
        flags = [jnp.zeros(lead, bool) for _ in range(3)]
        return Kept(obs, action, jnp.zeros(lead), flags[0], flags[1], new, flags[2])

    def replay_bytes(self) -> int:
        if self.replay is None:
            return 0
        shapes = jax.eval_shape(self.empty_replay)
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))

    def kept(self, batch: Batch) -> Batch:
        """The part of a batch that goes into the replay."""
        obs, action, new = self.example()
        if "place" in obs:
            lead = batch.valid.shape
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.obs)
            return batch.replace(obs={"place": self.model.rows(flat).place.reshape(lead)}, action=(), next_obs=())
        return batch.replace(
            obs={name: batch.obs[name] for name in obs},
            action={name: batch.action[name] for name in action} if action else (),
            next_obs={name: batch.next_obs[name] for name in new} if new else (),
        )

    def no_stamps(self) -> Array:
        """When each time row was written, by worker [W, C]; -1: never."""
        assert self.replay is not None
        return jnp.full((self.replay.workers, self.replay.capacity), -1.0)

    def stamped(self, stamp: Array, ring: Ring, batch: Batch, t: Array) -> Array:
        """With the rows of a batch that is about to be written."""
        worker = jnp.int32(0) if batch.worker is None else batch.worker
        new = jnp.full((1, batch.valid.shape[0]), jnp.asarray(t, jnp.float32))
        return jax.lax.dynamic_update_slice(stamp, new, (worker, ring.cursor[worker]))

    def fresh(self, ring: Ring, stamp: Array, limit: Array) -> Ring:
        """The ring without rows that were written before step `limit`; as it is where nothing would be left."""
        young = (stamp >= limit).sum(1).astype(jnp.int32)
        count = jnp.minimum(ring.count, young)
        return ring.replace(count=jnp.where(count.sum() > 0, count, ring.count))

    def sample(self, ring: Ring, kept: Kept, key: Array, size: int) -> Any:
        """Rows [size], a share of them swept from all that are reachable; or observed transitions."""
        assert self.replay is not None
        swept = max(1, round(self.sweep * size)) if self.sweep else 0
        keys = jax.random.split(key)
        place = jax.random.randint(keys[0], (swept,), 0, max(1, self.model.places)) if swept else None
        if place is not None and swept == size:
            return self.model.at(place)  # type: ignore[attr-defined]
        found = self.replay.share(device_count()).sample(ring, kept, keys[1], size - swept, 1, 1.0)
        if self.observes:
            return self.seen(found)
        if "place" in found.obs:
            both = found.obs["place"] if place is None else jnp.concatenate([place, found.obs["place"]])
            return self.model.at(both)  # type: ignore[attr-defined]
        return self.model.rows(found.obs)

    def seen(self, found: Any) -> Seen:
        """Transitions as targets need them."""
        model, world = self.model, self.model.world
        new, goal = found.next_obs["state"], found.obs["goal"]
        rows = model.rows(found.obs)
        over = jax.vmap(world.ended)(new) | model.last(rows)
        attained = jax.vmap(world.attained)(new)
        own = jnp.take_along_axis(attained, goal[..., None], 2)[..., 0]
        a = found.action
        return Seen(
            rows, model.rows(found.next_obs), over, own, goal, a["robot"], a["human"], a["robot_p"], a["human_p"]
        )


def check(world: World, spec: Spec, c: EmpowermentConfig) -> None:
    """What fits neither the world nor the run."""
    steps = world.max_episode_steps
    if c.steps_per_episode is not None and c.steps_per_episode != steps:
        raise ConfigError(
            f"algo.steps_per_episode: {c.steps_per_episode} is not the world's env.max_episode_steps {steps}; values "
            "would be of another world"
        )
    if c.num_actors is not None and spec.workers != c.num_actors:
        raise ConfigError(
            f"algo.num_actors: {c.num_actors}, but it has {spec.workers} workers; set engine.workers (--engine ray)"
        )
    for field in ("u_r_sample_humans", "x_h_sample_humans"):
        count = getattr(c, field)
        if count is not None and count > world.humans:
            raise ConfigError(f"algo.{field}: {count} is more than the {world.humans} humans of this world")
    if spec.workers > 1 and spec.rollout_rows % steps:
        rows = max(1, round(spec.rollout_rows / steps)) * steps
        raise ConfigError(
            f"rollout.steps: actors take up new weights between episodes of {steps} steps; set it to "
            f"{rows * spec.num_envs}, whole episodes of all {spec.num_envs} environments"
        )
    weights = np.asarray(world.goal_weights)
    if weights.shape[0] != world.humans or not np.allclose(weights.sum(1), 1, atol=1e-5) or (weights < 0).any():
        raise ConfigError(f"goal_weights: a row for each of {world.humans} humans, at least 0, summing to 1")


def table_limit(c: EmpowermentConfig) -> int:
    """Most states times joint actions of a world that is enumerated for learning."""
    return JOINT * c.table_limit


def make_model(world: World, c: EmpowermentConfig) -> WorldModel:
    """The world enumerated if it is small enough; what needs that says so otherwise."""
    why, fix = "it is only a sampler", ""
    if world.enumerable:
        try:
            horizon = world.max_episode_steps if c.include_step_count else None
            table = reach.enumerate_states(world, table_limit(c), horizon, c.table_limit)
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


def solved_prior(world: World, c: EmpowermentConfig, table: Any) -> np.ndarray | None:
    """How humans act by phase 1 [T, S, H, G, A], one layer where there is no time; None for the world's own prior."""
    if c.human_prior == "heuristic":
        return None
    solve = exact.solve if c.include_step_count else tabular.solve
    layers = solve(world, c.theory(), limit=table_limit(c)).pi_h
    out = np.zeros((len(layers), len(table.states), *layers[0].shape[1:]))
    for t, layer in enumerate(layers):
        out[t, : len(layer)] = layer
    return out
