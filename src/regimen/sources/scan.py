"""Collecting from native environments inside the compiled program.

The source owns what every environment would otherwise repeat: the time limit, the reset (in one place, keeping the true
final observation), and the sums an episode is reported by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from regimen.envs.protocol import mask_row
from regimen.loops import compact, device_count, env_numbers, sum_over_devices, sync
from regimen.schedule import Episodes, Schedule, Steps
from regimen.sources import NOISE_BLOCK, RolloutKeys, numbered
from regimen.types import Array, Batch, EpisodeRows, PyTree, Record, pytree_dataclass

MANY_ENVS = 256  # from here on some environment ends almost every step: always compute the reset


@pytree_dataclass
class EnvCarry(Record):
    """Environments between two rollouts."""

    state: PyTree  # [E, ...]
    obs: PyTree  # [E, ...]
    reward: Array  # [E, K] sums over the running episode
    length: Array  # [E] int32
    metrics: dict[str, Array]  # [E] reductions over the running episode
    memory: PyTree = ()  # [E, ...] what the policy carries from step to step


@pytree_dataclass
class Rollout(Record):
    """One time row: what the batch keeps, and the running sums an episode would be reported with."""

    batch: Batch
    reward: Array  # [E, K]
    length: Array  # [E]
    metrics: dict[str, Array]


@dataclass(frozen=True)
class ScanSource:
    """`Steps` or `Episodes` from `num_envs` copies of a native environment."""

    schedule: Schedule
    num_envs: int

    def share(self, devices: int) -> ScanSource:
        """What each of several devices collects."""
        schedule = replace(self.schedule, n=self.schedule.n // devices)
        return ScanSource(schedule, self.num_envs // devices)

    def init(self, env: Any, algo: Any, key: Array) -> EnvCarry:
        state, obs = jax.vmap(env.reset)(numbered(key, env_numbers(self.num_envs)))
        return fresh(env, state, obs, algo.initial_carry((self.num_envs,)))

    def rows(self, env: Any) -> int:
        """Time rows of a batch."""
        if isinstance(self.schedule, Steps):
            return self.schedule.n // self.num_envs
        return self.schedule.n // self.num_envs * env.max_episode_steps

    def max_episodes(self, env: Any) -> int:
        """The most episodes one update can finish."""
        return self.schedule.n

    def next(self, env: Any, algo: Any, carry: EnvCarry, params: PyTree, key: Array):
        """One rollout: (carry, Batch [T, E, ...], EpisodeRows). `key` is this update's own."""
        if isinstance(self.schedule, Steps):
            return self.steps(env, algo, carry, params, key)
        return self.episodes(env, algo, params, key)

    def steps(self, env: Any, algo: Any, carry: EnvCarry, params: PyTree, key: Array):
        noise, keys = draw(algo, RolloutKeys.of(key), 0, self.rows(env), self.num_envs)

        def body(carry, x):
            row, carry = advance(env, algo, params, carry, *x)
            return carry, row

        carry, rollout = lax.scan(body, carry, (noise, keys))
        done = (rollout.batch.terminated | rollout.batch.truncated).reshape(-1)
        return carry, rollout.batch, finished(rollout, done, done.size)

    def episodes(self, env: Any, algo: Any, params: PyTree, key: Array):
        """Each environment runs its share of whole episodes; the rollout lasts until the slowest is through."""
        assert isinstance(self.schedule, Episodes)
        share, capacity = self.schedule.n // self.num_envs, self.rows(env)
        block, random = NOISE_BLOCK, RolloutKeys.of(key)
        carry = self.init(env, algo, random.reset)
        noise, keys = draw(algo, random, 0, block, self.num_envs)
        first = jax.eval_shape(lambda: advance(env, algo, params, carry, row_of(noise, 0), keys[0])[0])
        buffer = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), first)
        left = jnp.full(self.num_envs, share, jnp.int32)

        def going(state):
            return sync(jnp.any(state[1] > 0))

        def body(state):
            t, left, carry, buffer, noise, keys = state
            noise, keys = lax.cond(
                (t % block == 0) & (t > 0),
                lambda: draw(algo, random, t, block, self.num_envs),
                lambda: (noise, keys),
            )
            row, carry = advance(env, algo, params, carry, row_of(noise, t % block), keys[t % block])
            valid = left > 0
            row = row.replace(batch=row.batch.replace(valid=valid))
            buffer = jax.tree.map(lambda b, r: lax.dynamic_update_index_in_dim(b, r, t, 0), buffer, row)
            done = row.batch.terminated | row.batch.truncated
            return t + 1, left - (done & valid), carry, buffer, noise, keys

        t, _, carry, rollout, _, _ = lax.while_loop(going, body, (jnp.int32(0), left, carry, buffer, noise, keys))
        batch = rollout.batch.replace(length=t)
        done = ((batch.terminated | batch.truncated) & batch.valid).reshape(-1)
        return carry, batch, finished(rollout, done, self.schedule.n)


def draw(algo: Any, keys: RolloutKeys, start: Array | int, steps: int, num_envs: int) -> tuple[PyTree, Array]:
    return keys.action_noise(algo, start, steps, num_envs), keys.env_keys(start, steps, num_envs)


def row_of(tree: PyTree, t: Array | int) -> PyTree:
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t, keepdims=False), tree)


def fresh(env: Any, state: PyTree, obs: PyTree, memory: PyTree) -> EnvCarry:
    num_envs = jax.tree.leaves(obs)[0].shape[0]
    zero = jnp.zeros(num_envs)
    start = {"min": jnp.inf, "max": -jnp.inf}
    metrics = {name: zero + start.get(how, 0.0) for name, how in env.metric_reductions.items()}
    reward = jnp.zeros((num_envs, len(env.reward_components)))
    return EnvCarry(state, obs, reward, jnp.zeros(num_envs, jnp.int32), metrics, memory)


def advance(env: Any, algo: Any, params: PyTree, carry: EnvCarry, noise: PyTree, keys: Array):
    """One step of every environment: the row to keep, and the carry with finished environments reset."""
    mask = jax.vmap(partial(mask_row, env))(carry.state)
    action, memory, extras = algo.act(params, carry.obs, carry.memory, noise, mask=mask)
    state, ts = jax.vmap(env.step)(keys, carry.state, algo.to_env(action))
    shape = carry.length.shape
    reward = jnp.reshape(ts.reward, carry.reward.shape).astype(jnp.float32)
    length = carry.length + 1
    terminated = jnp.broadcast_to(ts.terminated, shape)
    truncated = (jnp.broadcast_to(ts.truncated, shape) | (length >= env.max_episode_steps)) & ~terminated
    done = terminated | truncated
    totals = carry.reward + reward
    metrics = {
        name: reduce(env.metric_reductions[name], carry.metrics[name], ts.metrics[name].astype(jnp.float32), length)
        for name in carry.metrics
    }
    if mask is not None:
        extras = extras | {"mask": mask, "next_mask": jax.vmap(partial(mask_row, env))(state)}
    valid = jnp.ones(shape, bool)
    batch = Batch(carry.obs, action, reward, terminated, truncated, ts.obs, valid, extras)
    row = Rollout(batch, totals, length, metrics)
    going = EnvCarry(state, ts.obs, totals, length, metrics, memory)

    def reset() -> EnvCarry:
        start, obs = jax.vmap(env.reset)(keys)
        new = fresh(env, start, obs, algo.initial_carry(shape))
        return jax.tree.map(lambda a, b: select(done, a, b), new, going)

    if done.size >= MANY_ENVS:
        return row, reset()
    return row, lax.cond(sync(jnp.any(done)), reset, lambda: going)


def select(mask: Array, a: Array, b: Array) -> Array:
    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)


def reduce(how: str, old: Array, new: Array, length: Array) -> Array:
    """One more value of a metric: the reduction over the episode so far."""
    match how:
        case "sum":
            return old + new
        case "min":
            return jnp.minimum(old, new)
        case "max":
            return jnp.maximum(old, new)
        case "mean":
            return old + (new - old) / length
    return new


def finished(rollout: Rollout, done: Array, most: int) -> EpisodeRows:
    """The episodes that ended in a rollout, in order of their end. `done` is flat [T * E]. Their `step` counts those of
    all devices, as if they went in step."""
    indices, count = compact(done)
    indices = indices[:most]
    num_envs = rollout.length.shape[1]

    def rows(x: Array) -> Array:
        return jnp.take(x.reshape(done.size, *x.shape[2:]), indices, axis=0)

    valid = rollout.batch.valid
    if rollout.batch.length is None and most == done.size:
        steps = (indices // num_envs + 1) * (num_envs * device_count())
    else:
        steps = jnp.cumsum(sum_over_devices(valid.sum(1)))[indices // num_envs]
    return EpisodeRows(
        count=count,
        update=jnp.zeros(most, jnp.int32),
        step=steps.astype(jnp.int32),
        reward=rows(rollout.reward),
        length=rows(rollout.length),
        terminated=rows(rollout.batch.terminated),
        metrics={name: rows(x) for name, x in rollout.metrics.items()},
    )
