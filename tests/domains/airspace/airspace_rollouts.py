"""Episodes of the airspace, compiled once per size for all tests: the scenario is data, not part of the program."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.airspace.analysis.flight import chunks
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import NAMES, load
from regimen.domains.airspace.state import stack

COMPAT = {"reward": "compat"}


@jax.jit
def start(env, scenario):
    return env.start(scenario)


@jax.jit
def step(env, state, action):
    return env.step(jax.random.key(0), state, action)


class Episode(NamedTuple):
    reward: np.ndarray  # [..., N, K]
    min_sep: np.ndarray  # [...]
    first_los: np.ndarray
    reached_step: np.ndarray  # [..., N]
    steps: np.ndarray
    reached: np.ndarray  # [...] share


@functools.partial(jax.jit, static_argnames="policy")
def play(env, scenarios, policy):
    """Whole episodes of stacked scenarios."""

    def one(scenario):
        state, obs = env.start(scenario)

        def body(carry, _):
            state, obs, over, paid, least = carry
            action = env.baselines[policy](env, jax.random.key(0), state, obs)
            after, ts = env.step(jax.random.key(0), state, action)
            ended = over | jnp.all(ts.terminated | ~env.alive(after))
            paid = paid + jnp.where(over, 0.0, ts.reward)
            least = jnp.where(over, least, jnp.minimum(least, ts.metrics["min_separation"]))
            after = jax.tree.map(lambda a, b: jnp.where(over, a, b), state, after)
            return (after, ts.obs, ended, paid, least), None

        start = (state, obs, jnp.bool_(False), jnp.zeros_like(state.parts), jnp.float32(200.0))
        (state, _, _, paid, least), _ = jax.lax.scan(body, start, None, length=env.max_episode_steps)
        share = jnp.sum(state.reached & scenario.present) / jnp.sum(scenario.present)
        return Episode(paid, least, state.first_los, state.reached_step, state.time, share)

    return jax.device_get(jax.vmap(one)(scenarios))


def fly(env, pilot, scenarios, key, episodes=None):
    """One episode from each of the scenarios, in numpy."""
    [(where, flights)] = chunks(env, pilot, scenarios, key, episodes=episodes)
    return flights.take(where)


def library(n=4):
    """All fourteen, padded to four aircraft."""
    return stack([load(name).arrays(n) for name in NAMES])


@functools.cache
def no_op_table():
    """name -> Episode without commands under compat."""
    out = play(Airspace(scenario="mixed", **COMPAT), library(), "no_op")
    return {name: Episode(*(x[i] for x in out)) for i, name in enumerate(NAMES)}
