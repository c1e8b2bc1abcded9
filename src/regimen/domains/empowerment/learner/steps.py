"""One training step of the empowerment learner: of networks by their gradients, or of tables towards their targets."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax import lax

from regimen.axes import gather_over_devices
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.learner.model import Moments
from regimen.domains.empowerment.learner.networks import optimizer
from regimen.domains.empowerment.learner.targets import Targets
from regimen.types import Array, Model, PyTree


def descend(c: EmpowermentConfig, name: str, model: Model, grads: PyTree, lr: Array, active: Array) -> Model:
    """One step of a network, if it is its time."""
    updates, opt_state = optimizer(c, name).update(grads, model.opt_state, model.params)
    params = jax.tree.map(lambda p, u: p - jnp.where(active, lr, 0.0) * u, model.params, updates)
    opt_state = jax.tree.map(lambda a, b: jnp.where(active, a, b), opt_state, model.opt_state)
    return model.replace(params=params, opt_state=opt_state)


def move(
    c: EmpowermentConfig, model: Model, place: Array, target: Array, weight: Array, lr: Array, active: Array
) -> Model:
    """One step of a table: entries [N, size] towards their targets, which count by their weights [N, size]. By a share
    lr * weight, of at most 1, where an entry that occurs more than once counts once, by its mean; or to the weighted
    mean of all targets so far."""
    table, total = model.params["table"], model.opt_state["weight"]
    if c.lookup_use_adaptive_lr:
        total = jnp.where(active, total.at[place].add(weight), total)
        step = weight / jnp.maximum(total[place], 1e-30)
    else:
        same = (place[:, None] == place[None, :]).astype(jnp.float32)
        step = jnp.minimum(lr * weight, 1.0) / jnp.maximum(same @ (weight > 0).astype(jnp.float32), 1.0)
    change = jnp.where(active, step, 0.0) * (target - table[place])
    return model.replace(params={"table": table.at[place].add(change)}, opt_state={"weight": total})


def error_loss(c: EmpowermentConfig, error: Array) -> Array:
    """Of errors, elementwise: half their square, or Huber's."""
    if c.loss == "huber":
        return optax.huber_loss(error)
    return 0.5 * jnp.square(error)


def log_error(c: EmpowermentConfig, log_value: Array, log_target: Array, exact: bool) -> Array:
    """The error of a value known by l = log(-value). In logarithms, or relative to the value: the latter's gradient is
    zero where the value is the mean of noisy targets, the former's where the logarithm is the mean of logarithms."""
    if c.loss_space == "log" or (c.loss_space == "auto" and exact):
        return log_value - log_target
    size = lax.stop_gradient(log_value)
    return jnp.exp(log_value - size) - jnp.exp(jnp.clip(log_target - size, -30.0, 30.0))


def move_tables(
    c: EmpowermentConfig,
    models: dict[str, Model],
    aims: dict[str, tuple[Array, Array, Array]],
    lrs: dict[str, Array],
    active: dict[str, Array],
) -> tuple[dict[str, Model], dict[str, Array]]:
    """Tables one step on towards their `aims` (places [N], targets and weights [N, size]), and the loss of each."""
    new, losses = {}, {}
    for name, model in models.items():
        place, target, weight = of_all_devices(aims[name])  # tables stay the same on all
        error = weight * jnp.square(target - model.params["table"][place])
        losses[name] = 0.5 * error.sum(-1).mean()
        new[name] = move(c, model, place, target, weight, lrs[name], active[name])
    return new, losses


def table_aims(rows: Moments, at: Targets, x_rows: Moments, x_at: Targets) -> dict[str, tuple[Array, Array, Array]]:
    """Places [N], what each table should hold there [N, size], and weights."""
    n = len(rows.place)
    return {
        "v_h_e": (rows.place, at.v_h_e.reshape(n, -1), at.v_h_e_weight.reshape(n, -1)),
        "x_h": (x_rows.place, x_at.x_h, jnp.ones_like(x_at.x_h)),
        "u_r": (rows.place, jnp.exp(at.log_y)[:, None], jnp.ones((n, 1))),
        "q_r": (rows.place, -jnp.exp(at.log_q), at.q_weight),
        "v_r": (rows.place, -jnp.exp(at.log_v)[:, None], jnp.ones((n, 1))),
    }


def of_all_devices(tree: PyTree) -> PyTree:
    """Rows [N, ...] of every device below each other, on all of them."""
    place, *rest = tree
    place, rest = gather_over_devices(place), gather_over_devices(rest)  # leaves of one type travel together
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (place, *rest))
