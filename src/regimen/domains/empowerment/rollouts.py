"""How well people get on beside a robot, by episodes: for worlds that nobody can solve, and to compare robots.

All robots meet the same starts, goals and chances (`keys`), so that their differences are not luck of the draw.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen.domains.empowerment.learner.algorithm import Empowerment
from regimen.domains.empowerment.learner.table import hashes, mix
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.worlds.world import World, WorldState
from regimen.types import Array, PyTree

Rule = Callable[[World, PyTree, Array, Array, Array], Array]
"""`rule(world, params, key, states [E, n], time [])` returns the robots' joint actions [E]."""


class Robot(NamedTuple):
    """A robot by its rule, which is part of the compiled program, and its parameters, which are not."""

    rule: Rule
    params: PyTree = ()


class Rollouts(NamedTuple):
    """Episodes beside one robot."""

    attained: np.ndarray  # [E, H] goals that each human attained
    states: np.ndarray  # [T, E, n] before each step
    over: np.ndarray  # [T, E] the world had ended by itself


def idle(world: World, params: PyTree, key: Array, states: Array, time: Array) -> Array:
    """Do nothing, or what is next to it."""
    still = sum(world.still * world.num_actions**r for r in range(world.robots))
    return jnp.full(len(states), still, jnp.int32)


def at_random(world: World, params: PyTree, key: Array, states: Array, time: Array) -> Array:
    """Every joint action alike."""
    return jax.random.randint(key, (len(states),), 0, world.robot_choices)


def learned(algo: Empowerment) -> Rule:
    """The soft policy of networks; their parameters by name are the robot's."""

    def rule(world: World, params: PyTree, key: Array, states: Array, time: Array) -> Array:
        times = jnp.broadcast_to(time, len(states)).astype(jnp.int32)
        values = algo.values(params, algo.bound.model.rows({"state": states, "time": times}), algo.config.beta_r)
        return jax.random.categorical(key, values.log_pi)

    return rule


class Looked(NamedTuple):
    """An exact policy, to be looked up by states and time."""

    hash: Array  # [S] sorted
    order: Array  # [S] the state of each
    factors: Array  # [n]
    log_pi: Array  # [T, S, AR]


def looked_up(world: World, params: Looked, key: Array, states: Array, time: Array) -> Array:
    """The soft policy of an exact solution."""
    numbers = states[:, : len(params.factors)].astype(jnp.uint32)
    place = jnp.searchsorted(params.hash, mix((numbers * params.factors).sum(-1, dtype=jnp.uint32)))
    state = params.order[jnp.minimum(place, len(params.order) - 1)]
    return jax.random.categorical(key, params.log_pi[time, state])


def exact_robot(solution: Solution, size: int | None = None) -> Robot:
    """The robot of an exact solution; `size` makes room for so many states, so that one program serves several."""
    states = np.asarray(solution.table.states)
    key, order, factors = hashes(states)
    size = len(states) if size is None else size
    steps = solution.world.max_episode_steps
    log_pi = np.zeros((steps, size, solution.world.robot_choices), np.float32)
    with np.errstate(divide="ignore"):
        for t in range(steps):
            layer = np.log(np.maximum(np.nan_to_num(solution.pi_r[t]), 0.0))
            log_pi[t, : len(layer)] = layer
    rest = size - len(states)
    key = np.concatenate([key, np.full(rest, 2**32 - 1, np.uint32)])
    return Robot(looked_up, Looked(*map(jnp.asarray, (key, np.pad(order, (0, rest)), factors, log_pi))))


def play(world: World, robot: Robot, seed: int, episodes: int, start: np.ndarray | None = None) -> Rollouts:
    """Play episodes beside a robot, from the states in which they start, or from one state."""
    begin = None if start is None else jnp.asarray(start, jnp.int32)
    attained, states, over = rollouts(world, robot.rule, episodes, robot.params, jax.random.key(seed), begin)
    return Rollouts(np.asarray(attained), np.asarray(states), np.asarray(over))


@partial(jax.jit, static_argnums=(1, 2))
def rollouts(world: World, rule: Rule, episodes: int, params: PyTree, key: Array, start: Array | None):
    keys = jax.random.split(key, episodes)  # of the episodes: the same for every robot
    state, _ = jax.vmap(world.reset)(keys)
    if start is not None:
        state = state.replace(world=jnp.broadcast_to(start, (episodes, *start.shape)))

    def step(carry: tuple[WorldState, Array, Array], t: Array):
        state, over, attained = carry
        action = rule(world, params, jax.random.fold_in(key, t), state.world, t)
        step_keys = jax.vmap(lambda k: jax.random.fold_in(k, t))(keys)
        new, row = jax.vmap(world.step)(step_keys, state, action)
        here = jax.vmap(world.attained)(new.world)  # [E, H, G]
        hit = jnp.take_along_axis(here, state.goal[..., None], 2)[..., 0] & ~over[:, None]
        new = jax.tree.map(lambda a, b: jnp.where(over.reshape(-1, *(1,) * (a.ndim - 1)), b, a), new, state)
        return (new, over | row.terminated, attained + hit), (state.world, over)

    zero = jnp.zeros((episodes, world.humans), jnp.int32)
    carry = (state, jnp.zeros(episodes, bool), zero)
    (_, _, attained), (states, over) = lax.scan(step, carry, jnp.arange(world.max_episode_steps))
    return attained, states, over
