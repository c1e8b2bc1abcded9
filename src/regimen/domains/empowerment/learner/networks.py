"""The networks of empowerment, what comes out of them and how they learn; or tables of every reachable row.

Values of the robot are handled as l = log(-value): the policy is made of ratios, and values span many magnitudes.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces as gym
from jax import lax

from regimen.axes import gather_over_devices
from regimen.config.schema import NetworkConfig
from regimen.domains.empowerment import equations
from regimen.domains.empowerment.equations import Number
from regimen.domains.empowerment.hyperparameters import NETS, EmpowermentConfig
from regimen.domains.empowerment.learner import picture_net as picture_net  # registers its networks
from regimen.domains.empowerment.learner.model import Moments, WorldModel
from regimen.envs import registry
from regimen.errors import ConfigError, EnvError
from regimen.networks import NETWORKS, Shape, make_net, register_network
from regimen.types import Array, Model, PyTree

FLOOR = 1e-3  # the least X_h, in units of the least weight of a goal: what keeps X_h^-xi finite while V_h^e is learned
MARGIN = 1e-6  # of the soft clamp
Drop = Callable[[int, Array], Array]  # (layer, hidden units) -> hidden units


def soft_clamp(x: Array, low: float, high: float) -> Array:
    """The identity within [low, high]; beyond, it levels off at one more range, so that gradients never vanish."""
    low, high = low - MARGIN, high + MARGIN
    size = high - low
    above = high + size * (1 - jnp.exp(-jnp.maximum(x - high, 0.0) / size))
    below = low - size * (1 - jnp.exp(-jnp.maximum(low - x, 0.0) / size))
    return jnp.where(x > high, above, jnp.where(x < low, below, x))


def dropped(key: Array, share: Number) -> Drop:
    """A function that drops hidden units with this probability and scales the others up."""

    def drop(layer: int, h: Array) -> Array:
        stays = jax.random.uniform(jax.random.fold_in(key, layer), h.shape) >= share
        return jnp.where(stays, h / (1 - share), 0.0)

    return drop


class Nets:
    """The approximations of one run: those that are learned, by name, and their output maps."""

    def __init__(self, model: WorldModel, c: EmpowermentConfig, network: NetworkConfig):
        world = model.world
        self.model, self.humans, self.goals = model, world.humans, world.num_goals
        self.names = [name for name in NETS if c.uses(name)]
        self.sizes: dict[str, int] = dict(zip(NETS, (self.humans * self.goals, self.humans, 1, world.robot_choices, 1)))
        self.top = float((model.weights > 0).sum(1).max()) if c.form == "sum" else 1.0
        self.floor = FLOOR * float(model.weights[model.weights > 0].min()) * self.top
        self.drops = {name: getattr(c, f"{name}_dropout") > 0 for name in NETS}  # asked once: whether, not how much
        self.tables = c.use_lookup_tables
        self.shared = c.use_encoders
        if not self.tables:
            self.build(c, network)

    def build(self, c: EmpowermentConfig, network: NetworkConfig) -> None:
        if c.hidden_dim is not None:
            network = dataclasses.replace(network, hidden=(c.hidden_dim, c.hidden_dim))
        if network.memory != "none":
            raise ConfigError("network.memory: empowerment's networks see whole states and remember nothing")
        others, reads, space = c.named_networks(), self.model.inputs, self.model.space
        width = network.hidden[0] if network.hidden else reads
        if self.shared:
            front = dataclasses.replace(network, hidden=network.hidden[:1])
            self.encoder = make_net(front, Shape(box(reads), ((1, width),)), 1.0)
        self.nets = {}
        for name in self.names:
            size = reads if not self.shared else width if name == "v_h_e" else reads + width
            config = dataclasses.replace(network, name=network_name(others[name])) if name in others else network
            heads = ((self.humans, self.goals) if name == "v_h_e" else (1, self.sizes[name]),)
            if name == "v_h_e" and config.name == "picture" and self.model.world.goals_are_places:
                config = dataclasses.replace(config, name="places")
            self.nets[name] = make_net(config, Shape(box(size) if self.shared else space, heads), 0.01)
            if self.drops[name] and config.name not in ("mlp", "mlp_norm"):
                raise ConfigError(f"algo.{name}_dropout: only the networks mlp and mlp_norm can drop units")

    def init(self, name: str, key: Array, c: EmpowermentConfig) -> Model:
        if self.tables:
            start = getattr(c, f"lookup_default_{'y' if name == 'u_r' else name}")
            table = jnp.full((self.model.places, self.sizes[name]), start, jnp.float32)
            return Model({"table": table}, {"weight": jnp.zeros_like(table)}, {"table": table})
        params = self.nets[name].init(key)
        if self.shared and name == "v_h_e":
            params = {"encoder": self.encoder.init(jax.random.fold_in(key, 1)), "head": params}
        return Model(params, optimizer(c, name).init(params), params)

    # --- what comes out ----------------------------------------------------------------------------------------------

    def raw(self, name: str, params: PyTree, rows: Moments, drop: Drop | None = None, x: Array | None = None) -> Array:
        """The output [..., size] of a network, or the entry of a table. `params` are those of all networks by name."""
        if self.tables:
            return params[name]["table"][rows.place]
        x = self.model.features(rows) if x is None else x
        if not self.shared:
            return self.nets[name].apply(params[name], x, drop)
        code = jnp.tanh(self.encoder.apply(params["v_h_e"]["encoder"], x))
        if name == "v_h_e":
            return self.nets[name].apply(params[name]["head"], code, drop)
        return self.nets[name].apply(params[name], jnp.concatenate([x, lax.stop_gradient(code)], -1), drop)

    def v_h_e(self, raw: Array, train: bool = False) -> Array:
        """V_h^e [..., H, G] of a raw output: in [0, 1], in training only softly."""
        raw = raw.reshape(*raw.shape[:-1], self.humans, self.goals)
        return soft_clamp(raw, 0.0, 1.0) if train and not self.tables else jnp.clip(raw, 0.0, 1.0)

    def log_x(self, raw: Array) -> Array:
        """log X_h [..., H] of a raw output: not above the top. What networks have not seen stays in proportion."""
        if self.tables:
            return jnp.log(jnp.clip(raw, self.floor, self.top))
        return jnp.log(self.top) - jax.nn.softplus(raw)

    def log_y(self, raw: Array, form: str) -> Array:
        """log of y = (sum or mean over humans of X_h^-xi) [...], of which U_r is -y^eta. A mean is at least 1."""
        if self.tables:
            return jnp.log(jnp.maximum(raw[..., 0], 1e-30))
        return jax.nn.softplus(raw[..., 0]) if form == "mean" else raw[..., 0]

    def log_value(self, raw: Array, c: EmpowermentConfig) -> Array:
        """l = log(-value) [..., size] of Q_r or V_r."""
        if self.tables:
            return jnp.log(jnp.maximum(-raw, 1e-30))
        match c.q_r_output:
            case "softplus":
                return jnp.log(jax.nn.softplus(raw) + 1e-30)
            case "z":
                return c.eta * c.xi * jax.nn.softplus(-raw)  # z = sigmoid(raw), -Q = z^(-eta xi)
        return raw

    def log_q(self, params: PyTree, rows: Moments, c: EmpowermentConfig, x: Array | None = None) -> Array:
        """log(-Q_r) [..., AR]; exact where an action ends the world for sure."""
        return self.ending(self.log_value(self.raw("q_r", params, rows, x=x), c), rows, c)

    def ending(self, log_q: Array, rows: Moments, c: EmpowermentConfig) -> Array:
        return jnp.where(self.model.certain_end(rows), jnp.log(-c.gamma_r * c.terminal_v_r), log_q)

    def power(self, v_h_e: Array, c: EmpowermentConfig) -> Array:
        """(7) X_h [..., H] from V_h^e, not below the floor."""
        return jnp.maximum(equations.x_h(v_h_e, self.model.weights, c.zeta, c.form), self.floor)


def log_policy(log_q: Array, beta_r: Number, kind: str, allowed: Array | None) -> Array:
    """(5) log pi_r [..., AR]."""
    if kind == "boltzmann":
        return equations.boltzmann_log_policy(-jnp.exp(log_q), beta_r, allowed)
    return equations.power_log_policy(log_q, beta_r, allowed)


def box(size: int) -> gym.Box:
    return gym.Box(-np.inf, np.inf, (size,), np.float32)


def network_name(builder: str) -> str:
    """The name of a registered network; a `module:factory` is registered first."""
    if ":" in builder and builder not in NETWORKS:
        try:
            register_network(builder, registry.load(builder))
        except EnvError as error:
            raise ConfigError(f"algo.networks: {error}") from None
    return builder


def optimizer(c: EmpowermentConfig, name: str) -> optax.GradientTransformation:
    """Adam with a clip before it, and L2 in the gradient. The learning rate is applied outside."""
    clip, decay = getattr(c, f"{name}_grad_clip"), getattr(c, f"{name}_weight_decay")
    limit = jnp.where(jnp.asarray(clip) > 0, clip, jnp.inf)
    return optax.chain(
        optax.clip_by_global_norm(limit),  # type: ignore[arg-type]
        optax.add_decayed_weights(decay),
        optax.scale_by_adam(),
    )


# --- one training step ------------------------------------------------------------------------------------------------


def descend(c: EmpowermentConfig, name: str, model: Model, grads: PyTree, lr: Array, active: Array) -> Model:
    """Take one step of a network by its gradient, if it has joined."""
    updates, opt_state = optimizer(c, name).update(grads, model.opt_state, model.params)
    params = jax.tree.map(lambda p, u: p - jnp.where(active, lr, 0.0) * u, model.params, updates)
    opt_state = jax.tree.map(lambda a, b: jnp.where(active, a, b), opt_state, model.opt_state)
    return model.replace(params=params, opt_state=opt_state)


def move(
    c: EmpowermentConfig, model: Model, place: Array, target: Array, weight: Array, lr: Array, active: Array
) -> Model:
    """Take one step of a table: entries [N, size] towards their targets, which count by their weights [N, size]. By a
    share lr * weight, of at most 1, where an entry that occurs more than once counts once, by its mean; or to the
    weighted mean of all targets so far."""
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
    """The loss of each error: half its square, or Huber's."""
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
    """Move tables one step towards their `aims` (places [N], targets and weights [N, size]), and the loss of each."""
    new, losses = {}, {}
    for name, model in models.items():
        place, target, weight = of_all_devices(aims[name])  # tables stay the same on all
        error = weight * jnp.square(target - model.params["table"][place])
        losses[name] = 0.5 * error.sum(-1).mean()
        new[name] = move(c, model, place, target, weight, lrs[name], active[name])
    return new, losses


def of_all_devices(tree: PyTree) -> PyTree:
    """Gather the rows [N, ...] of every device below each other, on all of them."""
    place, *rest = tree
    place, rest = gather_over_devices(place), gather_over_devices(rest)  # leaves of one type travel together
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (place, *rest))
