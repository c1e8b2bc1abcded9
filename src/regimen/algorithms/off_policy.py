"""What algorithms share that learn from transitions however they were collected: a squashed policy, the loop of
gradient steps, and what a dataset says beside what happened in it."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import lax

from regimen import distributions, spaces
from regimen.algorithms.base import Algorithm, Binding
from regimen.algorithms.branches import FREE
from regimen.config.schema import NetworkConfig
from regimen.errors import ConfigError
from regimen.networks import choose, make_encoded
from regimen.sources.replay import Replay
from regimen.types import Array, Model, PyTree, Scalar, Spec, State

Metrics = dict[str, Array]
M = TypeVar("M")


def learn(
    step: Callable[[Array, M], tuple[M, Metrics]],
    models: M,
    stop: Array | int,
    start: Array | int = 0,
    totals: Metrics | None = None,
) -> tuple[M, Metrics]:
    """`models, metrics = step(i, models)` for i = start .. stop - 1: the models, and sums of the metrics (from `totals`
    on, where there were steps before)."""

    def body(i: Array, carry: tuple[M, Metrics]) -> tuple[M, Metrics]:
        models, totals = carry
        models, metrics = step(i, models)
        return models, jax.tree.map(jnp.add, totals, metrics)

    if totals is None:
        totals = {name: jnp.zeros(()) for name in jax.eval_shape(lambda: step(jnp.int32(0), models)[1])}
    return lax.fori_loop(start, stop, body, (models, totals))


def move(model: Model, optimizer: optax.GradientTransformation, grads: PyTree, lr: Scalar) -> Model:
    """The model one step of its optimiser on."""
    updates, opt_state = optimizer.update(grads, model.opt_state)
    return model.replace(params=jax.tree.map(lambda p, u: p - lr * u, model.params, updates), opt_state=opt_state)


def mean(x: Array, weight: Array) -> Array:
    """Over rows [B, ...], leaving out those of weight 0."""
    return jnp.tensordot(weight, x, 1, precision="highest") / jnp.maximum(weight.sum(), 1.0)


class OffPolicyBinding(Binding):
    """The network of a policy whose numbers are squashed into their bounds, with deviations by state; its replay."""

    replay: Replay | None = None  # of an algorithm that acts
    options = 0  # of masks, which a replay keeps beside the observations

    def __init__(self, spec: Spec, network: NetworkConfig):
        spaces.check_observation_space(spec.observation_space)
        dist = distributions.for_space(
            spec.action_space, bounded="tanh", state_std=True, conditions=spec.action_conditions
        )
        super().__init__(spec, dist)
        self.elements = distributions.Elements(dist, "joint")
        if network.memory != "none":
            raise ConfigError(
                "network.memory: SAC, CQL and cloning learn from single transitions; use ppo, impala or appo"
            )
        self.inputs = choose(network, spec.observation_space)
        self.notes = [self.inputs.words] if self.inputs.words else []
        heads = tuple(d.head_shape for d in self.elements.leaves.values())
        self.actor = make_encoded(network, self.inputs, heads, 0.01)

    def empty_replay(self) -> PyTree:
        assert self.replay is not None
        return self.replay.zeros(self.spec.observation_space, self.dist.zeros(()), self.options)

    def replay_bytes(self) -> int:
        action = jax.eval_shape(lambda: self.dist.zeros(()))
        return self.replay.bytes(self.spec.observation_space, action, self.options) if self.replay else 0

    def replay_rows(self) -> int:
        return self.replay.capacity * self.replay.columns if self.replay else 0

    def activation_bytes(self) -> int:
        return 0 if self.actor.encoder is None else self.actor.encoder.activation_bytes


class OffPolicy(Algorithm):
    """A policy that learns also from a dataset."""

    default_network = NetworkConfig(hidden=(256, 256), activation="relu")
    offline = True

    def actor_params(self, state: State) -> PyTree:
        out = {"actor": state.models["actor"].params}
        return out | ({"norm": state.norm["obs"]} if "obs" in state.norm else {})

    @property
    def reward_scale(self) -> float:
        """Factor of the rewards that the critics learn."""
        return 1

    def distribution(self, params: PyTree, x: PyTree, mask: Array | None) -> PyTree:
        """Parameters of the policy's distribution at features [...]."""
        return self.bound.dist.params(self.bound.actor.apply(params, x), FREE, mask)

    def log_likelihood(self, out: PyTree, action: PyTree, mask: Array | None) -> Array:
        """log pi(a | s) [...] of actions that were taken, over their elements that matter."""
        return self.total(self.bound.dist.log_prob(out, action), action, mask)

    def total(self, x: PyTree, action: PyTree, mask: Array | None) -> Array:
        """Sums [...] over the elements of actions that matter."""
        elements = self.bound.elements
        flat, relevant = elements.flat(x), elements.relevance(action, mask)
        return (flat if relevant is None else jnp.where(relevant, flat, 0.0)).sum(-1)
