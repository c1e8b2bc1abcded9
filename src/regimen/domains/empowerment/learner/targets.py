"""What the networks of empowerment are trained towards: equations (4) to (9) with the target networks on the right.

From the model, expectations are taken over all that the world knows (`modelled`). From observed transitions
(`observed`), one draw of everything is made unbiased by weights: what is wanted over what exploration did.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from regimen.axes import mean_over_devices
from regimen.domains.empowerment import equations
from regimen.domains.empowerment.equations import Number
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.learner.model import Moments, WorldModel
from regimen.domains.empowerment.learner.networks import Nets, log_policy
from regimen.types import Array, Batch, PyTree, Record, pytree_dataclass

BLOCK = 1024  # rows whose targets are computed together


@pytree_dataclass
class NetValues(Record):
    """Values of rows, as networks have learned them or as they follow from that."""

    v_h_e: Array  # [..., H, G]
    log_x: Array  # [..., H]
    log_y: Array  # [...]
    log_u: Array  # [...]
    log_q: Array  # [..., AR]
    log_pi: Array  # [..., AR]
    log_v: Array  # [...]


@pytree_dataclass
class Targets(Record):
    """What networks should say of rows, and how much each counts (0: not at all)."""

    v_h_e: Array  # [N, H, G]
    v_h_e_weight: Array  # [N, H, G]
    log_q: Array  # [N, AR]
    q_weight: Array  # [N, AR]
    x_h: Array  # [N, H]
    log_y: Array  # [N]
    log_v: Array  # [N]


def values(nets: Nets, c: EmpowermentConfig, params: PyTree, rows: Moments, beta_r: Number) -> NetValues:
    """Values of rows: what is learned, and what follows from it where it is not learned. `params` by network."""
    model = nets.model
    x = None if nets.tables else model.features(rows)
    v_h_e = nets.v_h_e(nets.raw("v_h_e", params, rows, x=x))
    log_x = nets.log_x(nets.raw("x_h", params, rows, x=x)) if "x_h" in nets.names else jnp.log(nets.power(v_h_e, c))
    if "u_r" in nets.names:
        log_y = nets.log_y(nets.raw("u_r", params, rows, x=x), c.form)
    else:
        log_y = log_y_of(log_x, c)
    log_u = c.eta * log_y
    log_q = nets.log_q(params, rows, c, x)
    log_pi = log_policy(log_q, beta_r, c.robot_policy, model.allowed(rows))
    if "v_r" in nets.names:
        log_v = nets.log_value(nets.raw("v_r", params, rows, x=x), c)[..., 0]
    else:
        log_v = equations.log_neg_v_r(log_u, log_pi, log_q)
    return NetValues(v_h_e, log_x, log_y, log_u, log_q, log_pi, log_v)


def human_power(model: WorldModel, c: EmpowermentConfig, values: Callable[[Moments], NetValues], batch: Batch) -> Array:
    """Aggregate power of humans in bits, as `values` have it: the mean over the states visited in which every human has
    some. The curve by which a run of this learner is judged; nan where there is no such state."""
    lead = batch.valid.ndim
    rows = model.rows(jax.tree.map(lambda x: x.reshape(-1, *x.shape[lead:]), batch.obs))
    bits = -values(rows).log_y / (jnp.log(2.0) * c.xi)
    counts = batch.valid.reshape(-1) & jnp.isfinite(bits)
    sums = {"bits": jnp.where(counts, bits, 0.0).sum(), "rows": counts.sum().astype(jnp.float32)}
    total = mean_over_devices(sums)
    return jnp.where(total["rows"] > 0, total["bits"] / jnp.maximum(total["rows"], 1e-9), jnp.nan)


def log_y_of(log_x: Array, c: EmpowermentConfig) -> Array:
    """log of the mean (or sum) over humans of X_h^-xi: (8) without its outer power."""
    return equations.log_neg_u_r(log_x, c.xi, 1.0, c.form, c.serves)


def modelled(
    model: WorldModel,
    c: EmpowermentConfig,
    rows: Moments,
    here: NetValues,
    there: Callable[[Moments], NetValues],
    key: Array,
) -> Targets:
    """Targets as expectations over robot and human actions, goals and outcomes. `there`: values of successors."""
    moves = model.moves(rows, key)
    new = there(moves.next)
    worth = equations.attain_target(moves.attained, new.v_h_e, moves.over[..., None, None], c.gamma_h)
    by_action = (moves.p_v * worth).sum(2)  # [N, AR, H, G]
    v_h_e = (jnp.exp(here.log_pi)[..., None, None] * by_action).sum(1)
    q = (moves.p_q * equations.q_robot(-jnp.exp(new.log_v), moves.over, c.gamma_r, c.terminal_v_r)).sum(2)
    weight = 1.0 - model.certain_end(rows).astype(jnp.float32)
    return Targets(v_h_e, jnp.ones_like(v_h_e), jnp.log(-q), weight, *same_state(model, c, here))


def same_state(model: WorldModel, c: EmpowermentConfig, here: NetValues) -> tuple[Array, Array, Array]:
    """X_h over all goals, y over all humans, and V_r: what follows from other values of the same row."""
    power = equations.x_h(here.v_h_e, model.weights, c.zeta, c.form)
    return power, log_y_of(here.log_x, c), equations.log_neg_v_r(here.log_u, here.log_pi, here.log_q)


@pytree_dataclass
class Transitions(Record):
    """Observed transitions, and how likely exploration made what was done."""

    rows: Moments  # [N]
    next: Moments  # [N]
    over: Array  # [N]
    attained: Array  # [N, H, G] in the successor
    robot: Array  # [N]
    human: Array  # [N, H]
    robot_p: Array  # [N] probability of the robot's action when it was taken
    human_p: Array  # [N, H] likewise


def observed(model: WorldModel, c: EmpowermentConfig, sample: Transitions, here: NetValues, new: NetValues) -> Targets:
    """Unbiased targets from one transition each: V_h^e of all goals, whatever humans were after, and Q_r of the action
    taken."""
    at, who = jnp.arange(len(sample.robot)), jnp.arange(sample.human.shape[1])
    prior = model.prior(sample.rows)  # [N, H, G, A]
    by_goal = prior[at[:, None], who, :, sample.human] / sample.human_p[..., None]  # [N, H, G]
    alone = model.marginals(prior)[at[:, None], who, sample.human] / sample.human_p  # [N, H]
    robot = jnp.exp(here.log_pi)[at, sample.robot] / sample.robot_p
    others = jnp.stack([jnp.delete(alone, h, axis=1, assume_unique_indices=True).prod(1) for h in range(len(who))], 1)
    worth = equations.attain_target(sample.attained, new.v_h_e, sample.over[:, None, None], c.gamma_h)
    q = equations.q_robot(-jnp.exp(new.log_v), sample.over, c.gamma_r, c.terminal_v_r)
    choice = sample.robot[:, None] == jnp.arange(here.log_q.shape[1])
    return Targets(
        worth,
        by_goal * (others * robot[:, None])[..., None],
        jnp.broadcast_to(jnp.log(-q)[:, None], choice.shape),
        choice * alone.prod(1)[:, None] * ~model.certain_end(sample.rows),
        *same_state(model, c, here),
    )


def of_sample(
    model: WorldModel,
    c: EmpowermentConfig,
    sample: Moments | Transitions,
    values: Callable[[Moments], NetValues],
    key: Array,
) -> tuple[Moments, Targets]:
    """Moments and their targets, from `values` of the target networks as they are now."""
    if isinstance(sample, Transitions):
        here, new = values(sample.rows), values(sample.next)
        return sample.rows, observed(model, c, sample, here, new)
    return sample, modelled(model, c, sample, values(sample), values, key)


def of_all_rows(model: WorldModel, c: EmpowermentConfig, values: Callable[[Moments], NetValues]) -> Targets:
    """Targets of all reachable rows, by place."""
    everywhere = in_blocks(lambda places: values(model.at(places)), model.places)

    def there(rows: Moments) -> NetValues:
        return jax.tree.map(lambda x: x[rows.place], everywhere)

    def block(places: Array) -> Targets:
        rows = model.at(places)
        return modelled(model, c, rows, there(rows), there, jax.random.key(0))

    return in_blocks(block, model.places)


def table_aims(rows: Moments, at: Targets) -> dict[str, tuple[Array, Array, Array]]:
    """Places [N], what each table should hold there [N, size], and weights."""
    n = len(rows.place)
    return {
        "v_h_e": (rows.place, at.v_h_e.reshape(n, -1), at.v_h_e_weight.reshape(n, -1)),
        "x_h": (rows.place, at.x_h, jnp.ones_like(at.x_h)),
        "u_r": (rows.place, jnp.exp(at.log_y)[:, None], jnp.ones((n, 1))),
        "q_r": (rows.place, -jnp.exp(at.log_q), at.q_weight),
        "v_r": (rows.place, -jnp.exp(at.log_v)[:, None], jnp.ones((n, 1))),
    }


def in_blocks(function: Callable[[Array], PyTree], count: int) -> PyTree:
    """`function(numbers [n]) -> tree [n, ...]` of 0..count-1, a block at a time: less memory."""
    if count <= BLOCK:
        return function(jnp.arange(count))
    blocks = -(-count // BLOCK)
    numbers = jnp.minimum(jnp.arange(blocks * BLOCK), count - 1).reshape(blocks, BLOCK)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], lax.map(function, numbers))
