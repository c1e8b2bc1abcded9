"""Equations (1) to (9) of soft human empowerment, as pure functions of arrays.

Every solver and the learner call these; docs/empowerment.md derives them. The last axes are named in each signature,
any axes may come before them, and results have the dtype of the inputs. H humans, G goals, A actions of one agent.

Values of the robot are negative and may be huge, so they are also known by `l = log(-value)`.
"""

import math
from types import ModuleType
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from regimen.types import Array

Number = float | Array  # a parameter, which may be traced
X = TypeVar("X", np.ndarray, Array)  # on the host, or inside a compiled program


def module_of(x: np.ndarray | Array) -> ModuleType:
    """Numpy or jax.numpy, whose functions take such arrays."""
    return np if isinstance(x, np.ndarray) else jnp


def attain_target(attained: Array, value: Array, terminal: Array, gamma_h: Number) -> Array:
    """What a successor is worth for a goal, in (1) and (6): 1 where it is attained there, also on arrival at the end of
    the world, else what is still to come. All three broadcast; `value` is V_h(s', g)."""
    later = jnp.where(terminal, jnp.zeros_like(value), value)
    return jnp.where(attained, jnp.ones_like(value), gamma_h * later)


def q_human(values: Array, robot: str, allowed: Array | None = None) -> Array:
    """(1) [..., A] from E_{s'}[target] of joint actions [..., A, others, robots]: the mean over what other humans may
    do, inside it the worst (`cautious`), best (`optimistic`) or mean choice of the robots among those `allowed`."""
    allowed = jnp.ones(values.shape[-1], bool) if allowed is None else allowed
    if robot == "mean":
        return jnp.mean(values, -1, where=allowed).mean(-1)
    extreme, initial = {"cautious": (jnp.min, jnp.inf), "optimistic": (jnp.max, -jnp.inf)}[robot]
    return extreme(values, -1, where=allowed, initial=initial).mean(-1)


def human_policy(q: Array, beta_h: Number, nu_h: Number = 0.0) -> Array:
    """(2) [..., A]: softmax of beta_h Q, uniform over the best for beta_h = inf; a share nu_h is uniform habit."""
    best = q.max(-1, keepdims=True)
    certain = isinstance(beta_h, float) and math.isinf(beta_h)
    equal = 4096 * jnp.finfo(q.dtype).eps  # 1e-12: what ways of summing the same value may differ by; Q is at most 1
    weight = (q >= best - equal).astype(q.dtype) if certain else jnp.exp(beta_h * (q - best))
    return with_habit(weight / weight.sum(-1, keepdims=True), nu_h)


def with_habit(policy: Array, nu_h: Number) -> Array:
    """A policy [..., A] of which a share nu_h is uniform."""
    return nu_h / policy.shape[-1] + (1 - nu_h) * policy


def v_human(policy: Array, q: Array) -> Array:
    """(3) and the last step of (6): the mean of Q [..., A] under a policy."""
    return (policy * q).sum(-1)


def together(marginal: X) -> X:
    """Joint probabilities [C, A^n] of n humans' actions [C, n, A], the first human fastest."""
    out = module_of(marginal).ones((marginal.shape[0], 1), marginal.dtype)
    for h in range(marginal.shape[1]):
        out = (marginal[:, h, :, None] * out[:, None, :]).reshape(out.shape[0], -1)
    return out


def q_robot(v_r: Array, terminal: Array, gamma_r: Number, terminal_v_r: Number) -> Array:
    """What a successor contributes to (4): discounted V_r(s'), or the fixed value of a world that has ended."""
    return gamma_r * jnp.where(terminal, jnp.asarray(terminal_v_r, v_r.dtype), v_r)


def power_log_policy(l: Array, beta_r: Number, allowed: Array | None = None) -> Array:  # noqa: E741
    """(5) log pi_r [..., actions] from l = log(-Q_r): proportional to (-Q_r)^(-beta_r). Depends on ratios of Q only."""
    return normalised(-beta_r * l, allowed)


def boltzmann_log_policy(q: Array, beta_r: Number, allowed: Array | None = None) -> Array:
    """The paper's alternative to (5): Boltzmann on Q_r over the range of Q_r among the actions."""
    allowed = jnp.ones(q.shape, bool) if allowed is None else allowed
    high = jnp.max(q, -1, where=allowed, initial=-jnp.inf, keepdims=True)
    low = jnp.min(q, -1, where=allowed, initial=jnp.inf, keepdims=True)
    spread = high - low
    return normalised(beta_r * (q - high) / jnp.where(spread > 0, spread, 1), allowed)


def best_log_policy(l: Array, allowed: Array | None = None) -> Array:  # noqa: E741
    """The limit of (5) for an infinite beta_r: uniform over the actions whose l = log(-Q_r) is smallest."""
    l = l if allowed is None else jnp.where(allowed, l, jnp.inf)  # noqa: E741
    equal = 4096 * jnp.finfo(l.dtype).eps  # 1e-12 of Q_r: what ways of summing the same value may differ by
    return normalised(jnp.zeros_like(l), l <= l.min(-1, keepdims=True) + equal)


def robot_log_policy(q: Array, beta_r: Number, kind: str = "power", allowed: Array | None = None) -> Array:
    """log pi_r from Q_r < 0 by the policy of that name; -inf where an action is not allowed."""
    if isinstance(beta_r, float) and math.isinf(beta_r):
        return best_log_policy(jnp.log(-q), allowed)
    if kind == "boltzmann":
        return boltzmann_log_policy(q, beta_r, allowed)
    return power_log_policy(jnp.log(-q), beta_r, allowed)


def normalised(logits: Array, allowed: Array | None) -> Array:
    if allowed is not None:
        logits = jnp.where(allowed, logits, -jnp.inf)
    return jax.nn.log_softmax(logits, -1)


def x_h(v_h_e: Array, weights: np.ndarray | Array, zeta: Number, form: str = "mean") -> Array:
    """(7) power of each human [..., H] from V_h^e [..., H, G] and goal weights [H, G], whose rows sum to 1. In the sum
    form weights are multiplied by the number of goals a human has, so that equal ones count 1 each."""
    weights = jnp.asarray(weights, v_h_e.dtype)
    if form == "sum":
        weights = weights * (weights > 0).sum(-1, keepdims=True)
    return (weights * v_h_e**zeta).sum(-1)


def log_neg_u_r(log_x: Array, xi: Number, eta: Number, form: str = "mean", serves: int | None = None) -> Array:
    """(8) log(-U_r) [...] from log X_h [..., H], or from that of the one human it `serves`; a human without any power
    makes it infinite."""
    log_x = log_x if serves is None else log_x[..., serves : serves + 1]
    y = jax.nn.logsumexp(-xi * log_x, -1)
    return eta * (y - math.log(log_x.shape[-1]) if form == "mean" else y)


def u_r(x: Array, xi: Number, eta: Number, form: str = "mean", serves: int | None = None) -> Array:
    """(8) U_r [...] from X_h [..., H]."""
    return -jnp.exp(log_neg_u_r(jnp.log(x), xi, eta, form, serves))


def v_r(u: Array, log_policy: Array, q: Array) -> Array:
    """(9) V_r [...] from U_r [...] and log pi_r, Q_r [..., actions]; actions of probability 0 do not count."""
    p = jnp.exp(log_policy)
    return u + jnp.where(p > 0, p * q, 0).sum(-1)


def log_neg_v_r(log_u: Array, log_policy: Array, log_q: Array) -> Array:
    """(9) in logarithms: log(-V_r) from log(-U_r), log pi_r and log(-Q_r)."""
    return jnp.logaddexp(log_u, jax.nn.logsumexp(log_policy + log_q, -1))


def duration_weight(gamma_r: float) -> float:
    """Factor on U_r where reward accrues during a step instead of at its start; it changes no policy."""
    return 1.0 if gamma_r == 1 else (1 - gamma_r) / -math.log(gamma_r)


def bits_of_robot(value: Array, xi: Number, eta: Number) -> Array:
    """The aggregate power of U_r, or the total of V_r, in bits: -log2(-value) / (xi eta)."""
    return -jnp.log2(-value) / (xi * eta)
