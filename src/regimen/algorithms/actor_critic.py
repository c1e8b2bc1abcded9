"""What PPO, IMPALA and APPO have in common: a policy and a value network, a recurrent core in front of them where one
is asked for, acting, and the gradient steps on minibatches of rows or of sequences of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from regimen import distributions, randomness, spaces
from regimen.algorithms.base import Binding
from regimen.algorithms.own_loop import OwnLoop
from regimen.algorithms.shared import first_moments, next_values, optimizer, scheduled, values
from regimen.config.schema import NetworkConfig
from regimen.errors import ConfigError
from regimen.networks import Shape, choose, make_core, make_encoder, make_net, vector_space
from regimen.schedule import RowMatrix, for_minibatches, pack
from regimen.types import Array, Batch, Clock, Model, PyTree, Scalar, Spec, State

if TYPE_CHECKING:
    from regimen.kernels.rollout import DensePolicy

FIXED = np.zeros(0, np.float32)  # no free deviation
Metrics = dict[str, Array]
Loss = Callable[..., tuple[Array, Metrics]]  # loss(params, rows[, memory]) -> ([W], {name: [W]})


class ActorCriticBinding(Binding):
    """The networks of an actor and of a critic with so many heads, and the distribution of the actions."""

    def __init__(self, spec: Spec, network: NetworkConfig, c: Any, heads: int = 1, ratio: str = "joint"):
        spaces.check_observation_space(spec.observation_space)
        dist = distributions.for_space(
            spec.action_space,
            float(c.log_std_init),
            bounded=c.bounded,
            state_std=c.state_std,
            conditions=spec.action_conditions,
        )
        super().__init__(spec, dist)
        self.heads = heads
        self.elements = distributions.Elements(self.dist, ratio)
        if network.name == "graph" and c.normalize_obs:
            raise ConfigError("algo.normalize_obs: the graph network reads masks and edges as they are; turn it off")
        if network.name == "graph" and self.dist.free_size > 1:
            raise ConfigError("algo.state_std: nodes of the graph network have no deviation of their own; set it true")
        self.inputs = choose(network, spec.observation_space)
        self.notes = [self.inputs.words] if self.inputs.words else []
        self.encoder = make_encoder(network, self.inputs)
        size = self.inputs.vector_size if self.encoder is None else self.encoder.size
        self.core = make_core(network, size)
        space = spec.observation_space if self.encoder is None else vector_space(size)
        if self.core is not None:
            space = vector_space(self.core.size)
        outputs = tuple(d.head_shape for d in self.elements.leaves.values())
        self.actor = make_net(network, Shape(space, outputs), 0.01)
        self.critic = make_net(network, Shape(space, ((1, heads),)), 1.0)

    def activation_bytes(self) -> int:
        return 0 if self.encoder is None else self.encoder.activation_bytes


class ActorCritic(OwnLoop):
    """A policy and a value network, and what is learned with them."""

    by_env = ()

    def build(self, spec: Spec) -> ActorCriticBinding:
        return ActorCriticBinding(spec, self.network, self.config)

    def init(self, key: Array) -> State:
        parts, c = self.bound, self.config
        actor_key, critic_key, root = randomness.split(key, 3)
        params = {"actor": parts.actor.init(actor_key), "critic": parts.critic.init(critic_key)}
        if parts.core is not None:
            params["core"] = parts.core.init(randomness.fold_in(actor_key, 1))
        if parts.encoder is not None:
            params["encoder"] = parts.encoder.init(randomness.fold_in(actor_key, 2))
        if parts.dist.free_size:
            params["log_std"] = jnp.full(parts.dist.free_size, c.log_std_init, jnp.float32)
        return State({"policy": Model(params, first_moments(c, params))}, self.first_norm(), root, Clock.zero(), {})

    def actor_params(self, state: State) -> PyTree:
        params = state.models["policy"].params
        out = {"actor": params["actor"], "log_std": params.get("log_std", FIXED)}
        out |= {name: params[name] for name in ("core", "encoder") if name in params}
        return out | ({"norm": state.norm["obs"]} if "obs" in state.norm else {})

    def initial_carry(self, lead: tuple[int, ...]) -> PyTree:
        core = self.bound.core
        return () if core is None else jnp.zeros((*lead, core.size))

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        """Actions [..., *shape] as sampled, the recurrent carry, and `log_prob`; `mask` is a `spaces.mask_row`."""
        parts, x = self.bound, self.embed(params, self.features(obs, params.get("norm")))
        before = {}
        if parts.core is not None:
            before = {"carry": carry}
            x = carry = parts.core.apply(params["core"], x, carry)
        out = self.policy(params, x, mask)
        action = parts.dist.mode(out) if greedy else parts.dist.sample(out, noise)
        return action, carry, {} if greedy else before | {"log_prob": self.log_probs(out, action, mask)[0]}

    def dense_policy(self, params: PyTree, greedy: bool = False) -> DensePolicy | None:
        """The policy as a kernel of a rollout can play it; None where it is not a small dense network alone."""
        parts = self.bound
        if any(getattr(type(self), name) is not getattr(ActorCritic, name) for name in ("act", "policy", "embed")):
            return None  # a class of somebody's own acts in its own way
        if parts.actor.dense is None or parts.core is not None or parts.encoder is not None:
            return None
        from regimen.kernels.dense import layers_of
        from regimen.kernels.rollout import DensePolicy

        def read(common: PyTree, obs: PyTree) -> Array:
            return self.features(obs, common.get("norm"))

        def choose(common: PyTree, head: Array, noise: PyTree) -> tuple[PyTree, dict[str, PyTree]]:
            out = parts.dist.params(head, common["log_std"], None)
            if greedy:
                return parts.dist.mode(out), {}
            action = parts.dist.sample(out, noise)
            return action, {"log_prob": self.log_probs(out, action, None)[0]}

        common = {name: params[name] for name in ("log_std", "norm") if name in params}
        return DensePolicy(parts.actor.dense, layers_of(params["actor"]), common, read, choose)

    def embed(self, params: PyTree, x: PyTree) -> Array:
        """The vector [..., D] that the encoder makes of features; they are one themselves where there is none."""
        encoder = self.bound.encoder
        return x if encoder is None else encoder.apply(params["encoder"], x)

    def policy(self, params: PyTree, x: Array, mask: Array | None) -> PyTree:
        """The distribution's parameters at vectors [..., D]."""
        return self.bound.dist.params(self.bound.actor.apply(params["actor"], x), params.get("log_std", FIXED), mask)

    def log_probs(self, out: PyTree, action: PyTree, mask: Array | None) -> tuple[Array, Array | None]:
        """Log-probability of the action, one number [...] or by element [..., M] with 0 for what does not matter; and
        which elements matter."""
        dist, elements = self.bound.dist, self.bound.elements
        log_prob = dist.log_prob(out, action)
        if elements.single:
            return distributions.joint(dist, log_prob), None
        relevant, flat = elements.relevance(action, mask), elements.flat(log_prob)
        return flat if relevant is None else jnp.where(relevant, flat, 0.0), relevant

    def joint_log_prob(self, log_prob: Array) -> Array:
        """The log-probability of whole actions [...], from what `log_probs` gives."""
        return log_prob if self.bound.elements.single else log_prob.sum(-1)

    def encode(self, params: PyTree, state: State, batch: Batch) -> Array:
        """What actor and critic see [T, B, D]. A recurrent core goes on from what the policy remembered, row by row."""
        x, core = self.features(batch.obs, state.norm.get("obs")), self.bound.core
        if self.bound.encoder is not None:  # row by row: what is between its layers would take much memory at once
            x = lax.map(lambda row: self.embed(params, row), x)
        return x if core is None else core.apply(params["core"], x, batch.extras["carry"])

    def values(self, params: PyTree, state: State, batch: Batch, x: Array) -> tuple[Array, Array]:
        """V of each row and of its true successor [T, B, K]; `x` is what `encode` gives."""
        parts = self.bound
        flat_obs = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), batch.next_obs)
        flat_x = x.reshape(-1, x.shape[-1])

        def critic(x: Array) -> Array:
            return parts.critic.apply(params["critic"], x)

        def successor(index: Array) -> Array:
            new = self.features(jax.tree.map(lambda a: a[index], flat_obs), state.norm.get("obs"))
            new = self.embed(params, new)
            return critic(new if parts.core is None else parts.core.apply(params["core"], new, flat_x[index]))

        value = values(critic, x, batch.length, parts.heads)
        return value, next_values(successor, batch, value)

    def descend(
        self,
        state: State,
        packed: RowMatrix,
        loss: Loss,
        *,
        epochs: int,
        size: int,
        micro: int | None = None,
        target_kl: Scalar | None = None,
        memory: PyTree = None,
        follow: Callable[[PyTree, Metrics], PyTree] = lambda memory, metrics: memory,
    ) -> tuple[Model, PyTree, Metrics]:
        """The policy's model after clipped Adam on `loss(params, rows, memory)` over epochs of minibatches of `size`
        rows, the memory that `follow(memory, metrics)` carried from one to the next, and means of the metrics. Past
        one and a half times `target_kl` it ends early."""
        c, model = self.config, state.models["policy"]
        flat, unravel = ravel_pytree(model.params)
        lr = scheduled(c.lr, c.lr_end, c.lr_schedule, self.horizon, state.clock)

        def row_loss(params: PyTree, rows: PyTree, memory: PyTree) -> tuple[Array, Metrics]:
            return self.row_loss(lambda params, rows: loss(params, rows, memory), params, rows)

        def step(carry, minibatch):
            flat, opt_state, memory, totals, _ = carry
            grads, metrics = minibatch.gradient(lambda params, rows: row_loss(params, rows, memory), flat, unravel)
            metrics["grad_norm"] = optax.global_norm(grads)
            updates: PyTree
            updates, moments = optimizer(c).update(grads, opt_state)
            stop = jnp.bool_(False) if target_kl is None else metrics["approx_kl"] > 1.5 * target_kl
            stay, move = (flat, opt_state), (flat - lr * updates, moments)
            # a minibatch already past the target is not stepped on, and leaves no trace in the optimiser
            flat, opt_state = jax.tree.map(lambda old, new: jnp.where(stop, old, new), stay, move)
            return flat, opt_state, follow(memory, metrics), jax.tree.map(jnp.add, totals, metrics), stop

        shapes = jax.eval_shape(lambda: row_loss(model.params, packed.take(jnp.arange(1)), memory)[1])
        zeros = {name: jnp.zeros(()) for name in (*shapes, "grad_norm")}
        (flat, opt_state, memory, totals, _), steps = for_minibatches(
            jax.random.fold_in(state.key, ~state.clock.updates),  # the rollout's is fold_in(key, updates)
            packed,
            epochs=epochs,
            size=size,
            micro=micro,
            step=step,
            carry=(flat, model.opt_state, memory, zeros, jnp.bool_(False)),
            stopped=None if target_kl is None else (lambda carry: carry[-1]),
        )
        metrics = {name: x / steps for name, x in totals.items()}
        metrics |= {"lr": lr, "gradient_steps": steps.astype(jnp.float32)}
        return model.replace(params=unravel(flat), opt_state=opt_state), memory, metrics

    def pack(self, rows: PyTree, batch: Batch) -> RowMatrix:
        """What minibatches are drawn from: rows, or with a recurrent core sequences of them, each with what the policy
        remembered at its start."""
        if self.bound.core is None:
            cost = self.bound.actor.cost
            of_rows = None if cost is None or self.bound.encoder is not None else cost(rows.obs)
            return pack(rows, batch.valid, all_valid=batch.full, dense=batch.length is None, cost=of_rows)
        length = min(self.config.sequence_length, batch.valid.shape[0])
        done = batch.terminated | batch.truncated
        fresh = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])
        whole = {"rows": rows, "fresh": fresh, "weight": batch.valid.astype(jnp.float32)}
        cut = jax.tree.map(lambda x: sequences(x, length), whole)
        valid = jnp.any(cut["weight"] > 0, axis=2)
        cut["weight"] *= valid.sum() / jnp.maximum(batch.valid.sum(), 1)  # a mean over sequences is one over rows
        cut["carry"] = sequences(batch.extras["carry"], length)[:, :, 0]
        full = batch.full and batch.valid.shape[0] % length == 0
        return pack(cut, valid, all_valid=full, dense=batch.length is None)

    def row_loss(self, loss: Loss, params: PyTree, row: PyTree) -> tuple[Array, Metrics]:
        """`loss(params, rows) -> ([W], {name: [W]})` on a minibatch of rows or of sequences, whose observations are
        replaced by what the encoder and the recurrent core make of them."""
        rows, weight = self.unrolled(params, row)
        per_row, metrics = loss(params, rows)
        if weight is None:
            return per_row, metrics

        def whole(a: Array) -> Array:
            return (a.reshape(weight.shape) * weight).sum(-1)

        return whole(per_row), jax.tree.map(whole, metrics)

    def unrolled(self, params: PyTree, row: PyTree) -> tuple[PyTree, Array | None]:
        """The rows of a minibatch, those of sequences side by side, whose observations are what the encoder and the
        recurrent core make of them; and of sequences the weights of their rows [C, L]."""
        core = self.bound.core
        if core is None:
            return row.replace(obs=self.embed(params, row.obs)), None
        rows = row["rows"]
        rows = rows.replace(obs=self.embed(params, rows.obs))
        x, fresh = jnp.swapaxes(rows.obs, 0, 1), jnp.swapaxes(row["fresh"], 0, 1)
        h = jnp.swapaxes(core.unroll(params["core"], x, row["carry"], fresh), 0, 1)  # [C, L, size]
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), rows.replace(obs=h)), row["weight"]

    def in_rows(self, steps: int, batch: Batch) -> int:
        """A number of env steps as a number of rows or of sequences."""
        if self.bound.core is None:
            return steps
        return max(1, steps // min(self.config.sequence_length, batch.valid.shape[0]))


def sequences(x: Array, length: int) -> Array:
    """[T, B, ...] as sequences [C, B, length, ...], the last ones padded with zeros."""
    pad = -x.shape[0] % length
    x = jnp.concatenate([x, jnp.zeros((pad, *x.shape[1:]), x.dtype)]) if pad else x
    return jnp.swapaxes(x.reshape(-1, length, *x.shape[1:]), 1, 2)
