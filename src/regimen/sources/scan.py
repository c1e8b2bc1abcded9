"""Collecting from native environments inside the compiled program.

The source owns what every environment would otherwise repeat: the time limit, the reset (in one place, keeping the true
final observation), and the sums an episode is reported by. Agents of one environment are rows beside each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from regimen.axes import compact, device_count, env_numbers, sum_over_devices, sync
from regimen.envs.metric import reductions_of
from regimen.envs.protocol import Env, agents_of, alive_in, mask_row
from regimen.schedule import Episodes, Schedule, Steps
from regimen.sources.keys import NOISE_BLOCK, RolloutKeys, by_agent, numbered, side_by_side
from regimen.types import ActingAlgorithm, Array, Batch, EpisodeRows, PyTree, Record, pytree_dataclass

N = TypeVar("N", Array, float)
MANY_ENVS = 256  # from here on some environment ends almost every step: always compute the reset


@pytree_dataclass
class EnvCarry(Record):
    """Environments between two rollouts."""

    state: PyTree  # [E, ...]
    obs: PyTree  # [B, ...]
    reward: Array  # [E, K] sums over the running episode, and over agents
    length: Array  # [E] int32
    metrics: dict[str, Array]  # [E] reductions over the running episode
    memory: PyTree = ()  # [B, ...] what the policy carries from step to step


@pytree_dataclass
class Rollout(Record):
    """One time row: what the batch keeps, and the running sums an episode would be reported with."""

    batch: Batch
    reward: Array  # [E, K]
    length: Array  # [E]
    metrics: dict[str, Array]
    terminated: Array  # [E] the episode, which with several agents is over when none acts any more
    done: Array  # [E] terminated, or cut short
    counts: Array  # [E] whether the step is part of the rollout


RolloutResult = tuple[EnvCarry, Batch, EpisodeRows, Array]  # carry, rows [T, B, ...], episodes, env steps


@dataclass(frozen=True)
class ScanSource:
    """`Steps` or `Episodes` from `num_envs` copies of a native environment."""

    schedule: Schedule
    num_envs: int

    def share(self, devices: int) -> ScanSource:
        """What each of several devices collects."""
        schedule = replace(self.schedule, n=self.schedule.n // devices)
        return ScanSource(schedule, self.num_envs // devices)

    def init(self, env: Env, algo: ActingAlgorithm, key: Array) -> EnvCarry:
        state, obs = jax.vmap(env.reset)(numbered(key, env_numbers(self.num_envs)))
        return fresh(env, state, obs, algo.initial_carry((self.columns(env),)))

    def columns(self, env: Env) -> int:
        """Rows of a batch at one time, B."""
        return self.num_envs * max(1, len(agents_of(env)))

    def rows(self, env: Env) -> int:
        """Time rows of a batch."""
        if isinstance(self.schedule, Steps):
            return self.schedule.n // self.num_envs
        return self.schedule.n // self.num_envs * env.max_episode_steps

    def next(self, env: Env, algo: ActingAlgorithm, carry: EnvCarry, params: PyTree, key: Array) -> RolloutResult:
        """One rollout: (carry, Batch [T, B, ...], EpisodeRows, env steps). `key` is this update's own."""
        if isinstance(self.schedule, Steps):
            return self.steps(env, algo, carry, params, key)
        return self.episodes(env, algo, params, key)

    def steps(self, env: Env, algo: ActingAlgorithm, carry: EnvCarry, params: PyTree, key: Array) -> RolloutResult:
        noise, keys = self.draw(env, algo, RolloutKeys.of(key), 0, self.rows(env))

        def body(carry, x):
            row, carry = advance(env, algo, params, carry, *x)
            return carry, row

        carry, rollout = lax.scan(body, carry, (noise, keys))
        return carry, rollout.batch, finished(rollout, rollout.done.size), jnp.int32(rollout.done.size)

    def episodes(self, env: Env, algo: ActingAlgorithm, params: PyTree, key: Array) -> RolloutResult:
        """Each environment runs its share of whole episodes; the rollout lasts until the slowest is through."""
        assert isinstance(self.schedule, Episodes)
        share, capacity = self.schedule.n // self.num_envs, self.rows(env)
        block, random = NOISE_BLOCK, RolloutKeys.of(key)
        carry = self.init(env, algo, random.reset)
        noise, keys = self.draw(env, algo, random, 0, block)
        first = jax.eval_shape(lambda: advance(env, algo, params, carry, row_of(noise, 0), keys[0])[0])
        buffer = jax.tree.map(lambda s: jnp.zeros((capacity, *s.shape), s.dtype), first)
        remaining = jnp.full(self.num_envs, share, jnp.int32)

        def going(state):
            return sync(jnp.any(state[1] > 0))

        def body(state):
            t, remaining, carry, buffer, noise, keys = state
            noise, keys = lax.cond(
                (t % block == 0) & (t > 0),
                lambda: self.draw(env, algo, random, t, block),
                lambda: (noise, keys),
            )
            row, carry = advance(env, algo, params, carry, row_of(noise, t % block), keys[t % block])
            counts = remaining > 0
            valid = row.batch.valid & jnp.repeat(counts, row.batch.valid.size // counts.size)
            row = row.replace(batch=row.batch.replace(valid=valid), counts=counts, done=row.done & counts)
            buffer = jax.tree.map(lambda b, r: lax.dynamic_update_index_in_dim(b, r, t, 0), buffer, row)
            return t + 1, remaining - row.done, carry, buffer, noise, keys

        t, _, carry, rollout, _, _ = lax.while_loop(going, body, (jnp.int32(0), remaining, carry, buffer, noise, keys))
        batch = rollout.batch.replace(length=t, full=False)
        return carry, batch, finished(rollout, self.schedule.n), rollout.counts.sum(dtype=jnp.int32)

    def draw(
        self, env: Env, algo: ActingAlgorithm, keys: RolloutKeys, start: Array | int, steps: int
    ) -> tuple[PyTree, Array]:
        """Noise of the actions [steps, B, ...] and keys of the environments [steps, E] from time `start` on."""
        noise = keys.action_noise(algo, start, steps, self.columns(env))
        return noise, keys.env_keys(start, steps, self.num_envs)


def row_of(tree: PyTree, t: Array | int) -> PyTree:
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, t, keepdims=False), tree)


def fresh(env: Env, state: PyTree, obs: PyTree, memory: PyTree) -> EnvCarry:
    """Environments at the start of an episode; `obs` is as their `reset` gives it."""
    num_envs = jax.tree.leaves(obs)[0].shape[0]
    zero = jnp.zeros(num_envs)
    start = {"min": jnp.inf, "max": -jnp.inf}
    metrics = {name: zero + start.get(how, 0.0) for name, how in reductions_of(env.metric_reductions).items()}
    reward = jnp.zeros((num_envs, len(env.reward_components)))
    obs = side_by_side(env, obs)
    return EnvCarry(state, obs, reward, jnp.zeros(num_envs, jnp.int32), metrics, memory)


@pytree_dataclass
class StepResult(Record):
    """What one step of every environment did."""

    going: EnvCarry  # as if no episode had ended
    reward: Array  # [B, K] of the step
    terminated: Array  # [B]
    truncated: Array  # [B]
    valid: Array  # [B] the agent acted
    over: Array  # [E] the episode has ended
    ended: Array  # [E] by itself, not cut short


def step_all(env: Env, carry: EnvCarry, action: PyTree, memory: PyTree, keys: Array) -> StepResult:
    """One step of every environment with actions [B, ...] in its own form."""
    agents, lead = len(agents_of(env)), carry.length.shape
    shape = (*lead, agents) if agents else lead
    state, ts = jax.vmap(env.step)(keys, carry.state, by_agent(env, action))
    reward = jnp.reshape(ts.reward, (*shape, -1)).astype(jnp.float32)
    length = carry.length + 1

    def flags(x: Array) -> Array:
        x = jnp.asarray(x)
        return jnp.broadcast_to(x[:, None] if agents and x.ndim == 1 else x, shape)

    terminated, cut = flags(ts.terminated), flags(ts.truncated)
    truncated = (cut | flags(length >= env.max_episode_steps)) & ~terminated
    if agents:
        acted, stays = (jax.vmap(partial(alive_in, env))(s) for s in (carry.state, state))
        terminated = acted & (terminated | ~stays & ~cut)  # who leaves has ended, also in the last step
        truncated &= acted & ~terminated
        over = ~jnp.any(acted & ~terminated & ~truncated, axis=1)
        ended, total = over & ~jnp.any(truncated, axis=1), reward.sum(1)
    else:
        acted, over, ended, total = jnp.ones(shape, bool), terminated | truncated, terminated, reward
    how = reductions_of(env.metric_reductions)
    metrics = {
        name: reduce(how[name], carry.metrics[name], ts.metrics[name].astype(jnp.float32), length)
        for name in carry.metrics
    }
    going = EnvCarry(state, side_by_side(env, ts.obs), carry.reward + total, length, metrics, memory)
    reward, terminated, truncated, acted = side_by_side(env, (reward, terminated, truncated, acted))
    return StepResult(going, reward, terminated, truncated, acted, over, ended)


def advance(
    env: Env, algo: ActingAlgorithm, params: PyTree, carry: EnvCarry, noise: PyTree, keys: Array
) -> tuple[Rollout, EnvCarry]:
    """One step of every environment: the row to keep, and the carry with finished environments reset."""
    mask = masks(env, carry.state)
    action, memory, extras = algo.act(params, carry.obs, carry.memory, noise, mask=mask)
    new = step_all(env, carry, algo.to_env(action), memory, keys)
    going = new.going
    if mask is not None:
        extras = extras | {"mask": mask, "next_mask": masks(env, going.state)}
    batch = Batch(carry.obs, action, new.reward, new.terminated, new.truncated, going.obs, new.valid, extras)
    batch = batch.replace(full=getattr(env, "alive", None) is None)
    row = Rollout(batch, going.reward, going.length, going.metrics, new.ended, new.over, jnp.ones(new.over.shape, bool))

    def reset() -> EnvCarry:
        start, obs = jax.vmap(env.reset)(keys)
        first = fresh(env, start, obs, algo.initial_carry(new.valid.shape))
        return jax.tree.map(lambda a, b: select(new.over, a, b), first, going)

    if new.over.size >= MANY_ENVS:
        return row, reset()
    return row, lax.cond(sync(jnp.any(new.over)), reset, lambda: going)


def masks(env: Env, state: PyTree) -> Array | None:
    """Action masks [B, L] in states [E, ...]; None without any."""
    return side_by_side(env, jax.vmap(partial(mask_row, env))(state))


def select(mask: Array, a: Array, b: Array) -> Array:
    """Choose by environment: `mask` is [E], the others [E, ...] or [B, ...]."""
    mask = mask if mask.size == a.shape[0] else jnp.repeat(mask, a.shape[0] // mask.size)
    return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)


def reduce(how: str, old: N, new: N, length: N | int, least: Callable = jnp.minimum, most: Callable = jnp.maximum) -> N:
    """One more value of a metric: the reduction over the episode so far, of arrays or (`min`, `max`) of numbers."""
    match how:
        case "sum":
            return old + new
        case "min":
            return least(old, new)
        case "max":
            return most(old, new)
        case "mean":
            return old + (new - old) / length
    return new


def finished(rollout: Rollout, most: int) -> EpisodeRows:
    """The episodes that ended in a rollout, in order of their end. Their `step` counts those of all devices, as if they
    went in step."""
    num_envs = rollout.length.shape[1]
    done = rollout.done.reshape(-1)
    indices, count = compact(done)
    indices = indices[:most]

    def rows(x: Array) -> Array:
        return jnp.take(x.reshape(done.size, *x.shape[2:]), indices, axis=0)

    if most == done.size and rollout.batch.length is None:
        steps = (indices // num_envs + 1) * (num_envs * device_count())
    else:
        steps = jnp.cumsum(sum_over_devices(rollout.counts.sum(1)))[indices // num_envs]
    return EpisodeRows(
        count=count,
        update=jnp.zeros(most, jnp.int32),
        step=steps.astype(jnp.int32),
        reward=rows(rollout.reward),
        length=rows(rollout.length),
        terminated=rows(rollout.terminated),
        metrics={name: rows(x) for name, x in rollout.metrics.items()},
    )
