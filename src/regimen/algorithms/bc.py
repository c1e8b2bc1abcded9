"""Behaviour cloning: supervised learning of the actions in a dataset, by maximum likelihood.

The oldest form of imitation (Pomerleau 1989, "ALVINN"), and the baseline that offline reinforcement learning has to
beat. Any action space that has a distribution; continuous actions by a squashed Gaussian whose deviation depends on the
observation. Rewards are not looked at.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from regimen import distributions, spaces
from regimen.algorithms.base import Algorithm, register
from regimen.algorithms.shared import optimizer, scheduled
from regimen.config.algorithms.bc import BCConfig
from regimen.config.schema import NetworkConfig
from regimen.networks import Shape, make_net
from regimen.normalize import RunningStats
from regimen.sources.dataset import Data
from regimen.sources.replay import Sample
from regimen.types import Array, Clock, Model, PyTree, Spec, State

FREE = np.zeros(0, np.float32)  # deviations are outputs of the network


@register
class BC(Algorithm):
    """A policy alone."""

    config_class = BCConfig
    default_network = NetworkConfig(hidden=(256, 256), activation="relu")

    def build(self, spec: Spec) -> Parts:
        return Parts(spec, self.network)

    def init(self, key: Array) -> State:
        actor_key, root = jax.random.split(key)
        params = self.bound.actor.init(actor_key)
        norm = {"obs": RunningStats.zero((self.bound.obs_size,))} if self.config.normalize_obs else {}
        return State({"actor": Model(params, optimizer(self.config).init(params))}, norm, root, Clock.zero(), {})

    def actor_params(self, state: State) -> PyTree:
        out = {"actor": state.models["actor"].params}
        return out | ({"norm": state.norm["obs"]} if "obs" in state.norm else {})

    def initial_carry(self, lead: tuple[int, ...]) -> PyTree:
        return ()

    def noise(self, key: Array, shape: tuple[int, ...]) -> PyTree:
        return self.bound.dist.noise(key, shape)

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        """Actions [..., *shape] as sampled; `mask` is a `spaces.mask_row`."""
        dist = self.bound.dist
        out = self.distribution(params["actor"], self.features(obs, params.get("norm")), mask)
        return dist.mode(out) if greedy else dist.sample(out, noise), carry, {}

    def distribution(self, params: PyTree, x: Array, mask: Array | None) -> PyTree:
        return self.bound.dist.params(self.bound.actor.apply(params, x), FREE, mask)

    # --- losses ------------------------------------------------------------------------------------------------------

    def loss(self, params: PyTree, sample: Sample, norm: RunningStats | None) -> tuple[Array, dict[str, Array]]:
        """-E[log pi(a | s)] - ent_coef E[H(pi(. | s))], over the elements of the action that matter."""
        out = self.distribution(params, self.features(sample.obs, norm), sample.mask)
        elements, dist = self.bound.elements, self.bound.dist
        relevant = elements.relevance(sample.action, sample.mask)

        def total(x: PyTree) -> Array:
            flat = elements.flat(x)
            return (flat if relevant is None else jnp.where(relevant, flat, 0.0)).sum(-1).mean()

        log_prob, entropy = total(dist.log_prob(out, sample.action)), total(dist.entropy(out))
        loss = -log_prob - self.config.ent_coef * entropy
        return loss, {"loss": loss, "log_prob": log_prob, "entropy": entropy}

    # --- fit ---------------------------------------------------------------------------------------------------------

    def fit(self, state: State, data: Data, steps: int) -> tuple[State, dict[str, Array]]:
        """So many gradient steps on a dataset."""
        c, norm = self.config, state.norm.get("obs")
        lr = scheduled(c.lr, c.lr_end, c.lr_schedule, self.horizon, state.clock)
        root = jax.random.fold_in(state.key, state.clock.updates)

        def step(i: Array, carry):
            model, totals = carry
            sample = data.sample(jax.random.fold_in(root, i), c.batch_size)
            grads, metrics = jax.grad(self.loss, has_aux=True)(model.params, sample, norm)
            metrics["grad_norm"] = optax.global_norm(grads)
            updates, opt_state = optimizer(c).update(grads, model.opt_state)
            params = jax.tree.map(lambda p, u: p - lr * u, model.params, updates)
            return Model(params, opt_state), jax.tree.map(jnp.add, totals, metrics)

        zeros = {name: jnp.zeros(()) for name in ("loss", "log_prob", "entropy", "grad_norm")}
        model, totals = lax.fori_loop(0, steps, step, (state.models["actor"], zeros))
        metrics = {name: x / steps for name, x in totals.items()}
        metrics |= {"lr": lr, "gradient_steps": jnp.float32(steps)}
        return state.replace(models={"actor": model}), metrics


class Parts:
    """What an algorithm builds once for an environment. Compared by identity: part of the compiled program."""

    def __init__(self, spec: Spec, network: NetworkConfig):
        spaces.check_observation_space(spec.observation_space)
        self.spec = spec
        self.dist: Any = distributions.for_space(
            spec.action_space, bounded="tanh", state_std=True, conditions=spec.action_conditions
        )
        self.elements = distributions.Elements(self.dist, "joint")
        self.obs_size = spaces.flat_size(spec.observation_space)
        heads = tuple(d.head_shape for d in self.elements.leaves.values())
        self.actor = make_net(network, Shape(spec.observation_space, heads), 0.01)
