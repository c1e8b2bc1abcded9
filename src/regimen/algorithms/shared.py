"""What algorithms share: schedules of hyper-parameters, the optimiser, the adaptive penalty, how good a critic is."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from regimen.algorithms.base import Horizon
from regimen.axes import compact, sync
from regimen.normalize import RunningStats
from regimen.types import Array, Batch, Clock, PyTree, Scalar


def optimizer(c: Any, eps: float = 1e-5) -> optax.GradientTransformation:
    """Adam with gradients clipped to `max_grad_norm`; the learning rate is applied outside, where its schedule is."""
    limit = jnp.where(jnp.asarray(c.max_grad_norm) > 0, c.max_grad_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optax.scale_by_adam(eps=eps))  # type: ignore[arg-type]


def first_moments(c: Any, params: PyTree) -> PyTree:
    """The state of a new `optimizer` for parameters as one vector: zeros, made without a program for each of them."""
    size = sum(x.size for x in jax.tree.leaves(params))
    vector = jax.ShapeDtypeStruct((size,), jnp.float32)
    shapes = jax.eval_shape(lambda x: optimizer(c).init(x), vector)
    return jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype)), shapes)


def scheduled(start, end, shape: str, horizon: Horizon | None, clock: Clock) -> Array:
    """A hyper-parameter between `start` and `end`, by the run's own clock."""
    if shape == "constant" or horizon is None:
        return jnp.asarray(start, jnp.float32)
    done = jnp.clip(clock.read(horizon.unit) / horizon.length, 0.0, 1.0)
    weight = 1 - done if shape == "linear" else 0.5 * (1 + jnp.cos(jnp.pi * done))
    return end + (start - end) * weight


def adapt(kl_coef: Scalar, kl: Array, target) -> Array:
    """Section 4 of the paper: halve the penalty when the KL is well below its target, double it when well above."""
    factor = jnp.where(kl > 1.5 * target, 2.0, jnp.where(kl < target / 1.5, 0.5, 1.0))
    return jnp.clip(kl_coef * factor, 1e-6, 1e6)


def explained(target: Array, value: Array, valid: Array) -> Array:
    """Share of the targets' variance that the values explain; NaN where they do not vary beyond rounding."""
    residual, spread = RunningStats.of(target - value, valid), RunningStats.of(target, valid)
    varies = spread.m2 > 1e-12 * spread.count * jnp.square(spread.mean)
    return jnp.where(varies, 1 - residual.m2 / jnp.maximum(spread.m2, 1e-12), jnp.nan)


def values(critic: Callable[[Array], Array], obs: Array, length: Array | None, heads: int) -> Array:
    """V [T, B, K] of observations [T, B, D]; with a capacity, only the blocks of rows in use are computed."""
    if length is None:
        return critic(obs)
    block = min(32, obs.shape[0])

    def body(i, out):
        start = jnp.minimum(i * block, obs.shape[0] - block)
        return lax.dynamic_update_slice_in_dim(out, critic(lax.dynamic_slice_in_dim(obs, start, block)), start, 0)

    return lax.fori_loop(0, sync((length + block - 1) // block), body, jnp.zeros((*obs.shape[:2], heads)))


def next_values(at: Callable[[Array], Array], batch: Batch, value: Array) -> Array:
    """V of each row's true successor [T, B, K]: the next row's value, or that of `next_obs` where the row was truncated
    or is the last (`at(flat row indices)` gives it [n, K]); 0 where it terminated."""
    shifted = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    cut = batch.truncated if batch.length is not None else batch.truncated.at[-1].set(True)
    cut = (cut & batch.valid & ~batch.terminated).reshape(-1)
    indices, count = compact(cut)
    width = min(max(64, batch.valid.shape[1]), cut.size)

    def body(i, out):
        start = jnp.minimum(i * width, cut.size - width)
        index = lax.dynamic_slice_in_dim(indices, start, width)
        target = jnp.where(start + jnp.arange(width) < count, index, cut.size)
        return out.at[target].set(at(index), mode="drop")

    blocks = sync((count + width - 1) // width)
    out = lax.fori_loop(0, blocks, body, shifted.reshape(cut.size, -1)).reshape(value.shape)
    return jnp.where(batch.terminated[..., None], 0.0, out)
