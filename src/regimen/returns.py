"""Returns and advantages over time-major arrays [T, B].

Everywhere: `next_value` is V of the true successor (of the final observation where an episode was truncated), already 0
where the episode terminated; `done` (terminated or truncated) cuts the trace. `length` limits the work to the rows in
use when T is a capacity.
"""

import jax.numpy as jnp
from jax import lax

from regimen.axes import sync
from regimen.types import Array, Scalar


def _backward(step, init: Array, rows: tuple[Array, ...], length: Array | None) -> Array:
    """x_t = step(x_{t+1}, rows_t) from the last row down, stacked [T, B]."""
    if length is None:

        def scanned(x, row):
            x = step(x, *row)
            return x, x

        return lax.scan(scanned, init, rows, reverse=True, unroll=8)[1]
    out = jnp.zeros_like(rows[0])
    last = sync(length)

    def body(i, carry):
        x, out = carry
        t = last - 1 - i
        x = step(x, *(lax.dynamic_index_in_dim(r, t, keepdims=False) for r in rows))
        return x, lax.dynamic_update_index_in_dim(out, x, t, 0)

    return lax.fori_loop(0, last, body, (init, out))[1]


def gae(
    reward: Array, value: Array, next_value: Array, done: Array, gamma, gae_lambda, length: Array | None = None
) -> Array:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16):
    A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}, delta_t = r_t + gamma V(s_{t+1}) - V(s_t)."""
    delta = reward + gamma * next_value - value
    decay = gamma * gae_lambda * (1.0 - done)
    return _backward(lambda a, d, c: d + c * a, jnp.zeros_like(delta[0]), (delta, decay), length)


def monte_carlo(reward: Array, next_value: Array, done: Array, gamma, length: Array | None = None) -> Array:
    """Discounted sums of rewards to the end of the episode, or of the rollout: G_t = r_t + gamma G_{t+1}. Where the
    rollout or a time limit cuts an episode short, the sum goes on with `next_value` (pass zeros for raw sums)."""
    done = done.astype(reward.dtype)
    done = done.at[-1].set(1.0) if length is None else done  # the rollout's end cuts every trace
    tail = reward + gamma * next_value * done
    decay = gamma * (1.0 - done)
    return _backward(lambda g, r, c: r + c * g, jnp.zeros_like(tail[0]), (tail, decay), length)


def n_step(reward: Array, next_value: Array, done: Array, gamma, n: int) -> Array:
    """G_t = r_t + ... + gamma^(n-1) r_{t+n-1} + gamma^n V(s_{t+n}), cut by the end of the episode or the rollout."""
    done = done.astype(bool).at[-1].set(True)
    g = reward + gamma * next_value
    for _ in range(n - 1):
        later = jnp.concatenate([g[1:], g[-1:]])
        g = reward + gamma * jnp.where(done, next_value, later)
    return g


def vtrace(
    log_rho: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    done: Array,
    gamma: Scalar,
    trace_lambda: Scalar = 1.0,
    rho_clip: Scalar = 1.0,
    c_clip: Scalar = 1.0,
    pg_rho_clip: Scalar = 1.0,
    length: Array | None = None,
) -> tuple[Array, Array, Array]:
    """V-trace (Espeholt et al. 2018, eq. 1 and section 4.2) from batches of another policy: its targets, advantages,
    and the weights of the policy gradient. `log_rho` is the log-ratio of the policy to be evaluated over the one that
    acted.

    v_t = V_t + rho_t delta_t + gamma c_t (v_{t+1} - V_{t+1}), rho_t = min(rho, rho_clip), c_t = lambda min(rho, c_clip)
    and A_t = r_t + gamma v_{t+1} - V_t, to be weighted by w_t = min(rho, pg_rho_clip). Where rho is 1 the targets are
    lambda-returns. The weight is not part of the advantage, because a mean may be subtracted from A_t alone: the
    gradient w_t grad log pi has mean 0 under the policy that acted, grad log pi has not.
    """
    rho, done = jnp.exp(jnp.minimum(log_rho, 20.0)), done.astype(reward.dtype)
    delta = jnp.minimum(rho, rho_clip) * (reward + gamma * next_value - value)
    decay = gamma * trace_lambda * jnp.minimum(rho, c_clip) * (1.0 - done)
    excess = _backward(lambda x, d, c: d + c * x, jnp.zeros_like(delta[0]), (delta, decay), length)  # v_t - V_t
    later = jnp.concatenate([excess[1:], jnp.zeros_like(excess[:1])]) * (1.0 - done)
    advantage = reward + gamma * (next_value + later) - value
    return value + excess, advantage, jnp.minimum(rho, pg_rho_clip)
