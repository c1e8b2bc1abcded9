"""When what happens in learning empowerment: stages, beta_r, epsilons, learning rates, and which rows are too old.

Everything is a function of the step `t`, which counts training steps or env steps (`schedule_unit`). All of it works on
numbers and on traced arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from regimen.algorithms.base import Horizon
from regimen.domains.empowerment.equations import Number
from regimen.domains.empowerment.hyperparameters import NETS, EmpowermentConfig
from regimen.types import Array, Spec

RAMP, FULL = 5, 6  # numbers of STAGES
NEVER = 1e12  # steps of a run without a budget
STEEPNESS = 6.0  # of the sigmoid over the ramp


class Plan(NamedTuple):
    """The first step of every stage."""

    starts: tuple[int, ...]  # [7]; equal to the next where a stage is skipped

    @classmethod
    def of(cls, c: EmpowermentConfig) -> Plan:
        lengths = [getattr(c, f"warmup_{name}_steps") if c.uses(name) else 0 for name in NETS]
        starts = [0]
        for length in (*lengths, c.beta_r_rampup_steps):
            starts.append(starts[-1] + length)
        return cls(tuple(starts))

    @property
    def warm(self) -> int:
        """W: the step at which the ramp begins."""
        return self.starts[RAMP]

    @property
    def full(self) -> int:
        """W + R: the step at which full training begins."""
        return self.starts[FULL]

    def stage(self, t: Array | int) -> Array:
        """Number of the stage at step t: the last that has begun."""
        return (jnp.asarray(t) >= jnp.array(self.starts)).sum() - 1

    def active(self, name: str, t: Array | int) -> Array:
        """Whether a network learns at step t."""
        return jnp.asarray(t) >= self.starts[NETS.index(name)]


def ratio(c: EmpowermentConfig, workers: int) -> Array:
    """Training steps per env step: what is asked for; with several workers no fewer than the throttle allows."""
    if workers == 1:
        return jnp.asarray(c.training_steps_per_env_step, jnp.float32)
    return jnp.maximum(c.training_steps_per_env_step, 1 / c.max_env_steps_per_training_step)


def total(c: EmpowermentConfig, horizon: Horizon | None, spec: Spec, episode_steps: int) -> Array:
    """Length of training in the unit of the schedules."""
    by_training = c.schedule_unit == "training_steps"
    per_env_step = ratio(c, spec.workers)
    if c.num_training_steps is not None:
        return jnp.float32(c.num_training_steps if by_training else c.num_training_steps / per_env_step)
    if horizon is None:
        return jnp.float32(NEVER)
    scale = {"steps": 1, "episodes": episode_steps, "updates": spec.rollout_rows * spec.num_envs}
    return jnp.asarray(horizon.length, jnp.float32) * scale[horizon.unit] * (per_env_step if by_training else 1.0)


def effective_beta(c: EmpowermentConfig, plan: Plan, t: Array) -> Array:
    """beta_r at step t: 0 in warm-up, beta_r after the ramp, and between them exactly these at both ends."""
    if plan.full == plan.warm:
        return jnp.where(t >= plan.warm, c.beta_r, 0.0)
    u = jnp.clip((t - plan.warm) / (plan.full - plan.warm), 0.0, 1.0)
    if c.beta_r_ramp == "linear":
        return c.beta_r * u

    def sigmoid(x: Number) -> Array:
        return 1 / (1 + jnp.exp(-STEEPNESS * (x - 0.5)))

    low, high = sigmoid(0.0), sigmoid(1.0)
    share = jnp.clip((sigmoid(u) - low) / (high - low), 0.0, 1.0)
    return c.beta_r * jnp.where(u >= 1, 1.0, jnp.where(u <= 0, 0.0, share))


def epsilon(start: Number, end: Number, steps: int, t: Array) -> Array:
    """Linear from `start` to `end` over so many steps; `end` at once where there are none."""
    if steps == 0:
        return jnp.asarray(end, jnp.float32)
    return start + (end - start) * jnp.clip(t / steps, 0.0, 1.0)


def rate(c: EmpowermentConfig, plan: Plan, t: Array, total: Array) -> Array:
    """Factor of all learning rates at step t of `total`."""
    t = jnp.asarray(t, jnp.float32)
    if c.lr_decay == "constant":
        return jnp.ones(())
    if c.lr_decay == "seed_sqrt":
        return jnp.where(t < plan.full, 1.0, 1 / jnp.sqrt(jnp.maximum(t - plan.full, 0.0) + 1))
    t0 = jnp.maximum(decay_start(c, plan, total), 1.0)
    if c.lr_decay == "cosine":
        share = jnp.clip((t - t0) / jnp.maximum(total - t0, 1.0), 0.0, 1.0)
        return 0.5 * (1 + jnp.cos(jnp.pi * share))
    factor = t0 / jnp.maximum(t, t0)
    return jnp.sqrt(factor) if c.lr_decay == "sqrt" else factor


def decay_start(c: EmpowermentConfig, plan: Plan, total: Array) -> Array:
    """t0: the later of the end of the ramp and the constant share of training."""
    return jnp.maximum(float(plan.full), jnp.floor(c.lr_constant_fraction * total))
