"""PPO for people with a loop of their own: act on one observation, learn from rows of a `TrajectoryBuffer`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from regimen import rewards, spaces
from regimen.algorithms import balance
from regimen.algorithms.shared import optimizer, scheduled
from regimen.errors import ConfigError, nearest
from regimen.types import Array, Model, PyTree, State

BLOCK = 64  # minibatches are padded to multiples of it, so that their sizes hardly ever compile anew


@jax.jit
def _sample(algo: Any, state: State, obs: PyTree, key: Array, mask: Array | None):
    noise = algo.noise(key, ())
    action, _, extras = algo.act(algo.actor_params(state), obs, algo.initial_carry(()), noise, mask=mask)
    return action, extras["log_prob"], _values(algo, state, obs)


@jax.jit
def _values(algo: Any, state: State, obs: PyTree) -> Array:
    x = algo.features(obs, state.norm.get("obs"))
    return algo.bound.critic.apply(state.models["policy"].params["critic"], x)  # [K]


def sample(algo: Any, state: State, obs: PyTree, key: Array, mask: PyTree = None) -> tuple[Any, Any, Any]:
    spec = algo.bound.spec
    row = None if mask is None else spaces.mask_row(spec.action_space, mask)
    out = _sample(algo, state, spaces.cast(spec.observation_space, obs), key, row)
    action, log_prob, values = jax.tree.map(np.asarray, out)
    return action, log_prob, by_component(algo, values)


def value(algo: Any, state: State, obs: PyTree) -> Any:
    return by_component(algo, np.asarray(_values(algo, state, spaces.cast(algo.bound.spec.observation_space, obs))))


def by_component(algo: Any, values: np.ndarray) -> Any:
    """One number, or a dict where there are several critic heads."""
    if algo.bound.heads == 1:
        return values[..., 0]
    return {name: values[..., k] for k, name in enumerate(algo.bound.spec.reward_components)}


def update_minibatch(algo: Any, state: State, minibatch: Any) -> tuple[State, dict[str, float]]:
    rows, weight = pad(rows_of(algo, minibatch))
    state, losses = _step(algo, state, rows, weight)
    return state, {name: float(x) for name, x in losses.items()}


def rows_of(algo: Any, minibatch: Any) -> dict[str, Any]:
    """A buffer's rows as arrays that the loss reads."""
    spec, parts = algo.bound.spec, algo.bound
    if minibatch.log_probs is None:
        raise ConfigError("update_minibatch: the rows have no log_probs; give them to TrajectoryBuffer.add_step")
    n, elements = len(minibatch), parts.elements
    for name, found, expected in (
        ("actions", minibatch.actions, parts.dist.zeros((n,))),
        ("log_probs", minibatch.log_probs, np.zeros(n if elements.single else (n, elements.size))),
    ):
        shapes, wanted = (jax.tree.map(np.shape, x) for x in (found, expected))
        if shapes != wanted:
            raise ConfigError(f"update_minibatch: {name} of shape {shapes}; as `sample` gives them it is {wanted}")

    def heads(name: str) -> np.ndarray:
        found = getattr(minibatch, name)
        if parts.heads == 1:
            if isinstance(found, dict):  # of advantages the buffer gives the sum as well
                found = found["total"] if "total" in found else sum(found.values())
            return np.asarray(found, np.float32)[:, None]
        if not isinstance(found, dict):
            known = ", ".join(spec.reward_components)
            raise ConfigError(f"update_minibatch: {name} must be by component ({known}), one for each critic head")
        for component in spec.reward_components:
            if component not in found:
                raise ConfigError(f"update_minibatch: {name} has no component '{component}'{nearest(component, found)}")
        return np.stack([found[c] for c in spec.reward_components], axis=-1).astype(np.float32)

    mask = minibatch.masks
    return {
        "obs": spaces.cast(spec.observation_space, minibatch.states),
        "action": minibatch.actions,
        "log_prob": np.asarray(minibatch.log_probs, np.float32),
        "advantage": heads("advantages"),
        "target": heads("returns"),
        "value": heads("values"),
        "mask": None if mask is None else np.asarray(spaces.mask_row(spec.action_space, mask, (n,))),
    }


def pad(rows: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """Rows up to a multiple of BLOCK by repeating the first, and the weight of each."""
    n = len(rows["advantage"])
    total = -(-n // BLOCK) * BLOCK
    index = np.where(np.arange(total) < n, np.arange(total), 0)
    return jax.tree.map(lambda x: np.asarray(x)[index], rows), (np.arange(total) < n).astype(np.float32) / n


@jax.jit
def _step(algo: Any, state: State, rows: dict[str, Any], weight: Array) -> tuple[State, dict[str, Array]]:
    c, model = algo.config, state.models["policy"]
    flat, unravel = ravel_pytree(model.params)
    row = algo.row(**(rows | {"obs": algo.features(rows["obs"], state.norm.get("obs"))}))
    weighting = algo.bound.weighting
    if weighting is None:
        weights = algo.given_weights(1.0)
    else:  # as they are: a whole batch is needed to learn them
        magnitude, _ = rewards.moments(row.advantage, weight > 0)
        weights = weighting.weights(state.aux["weights"]["params"], magnitude)
    knobs = algo.knobs(state, weights)

    def loss(flat: Array) -> tuple[Array, dict[str, Array]]:
        per_row, metrics = algo.loss(unravel(flat), row, knobs)
        return per_row @ weight, {name: x @ weight for name, x in metrics.items()}

    grads, metrics = jax.grad(loss, has_aux=True)(flat)
    metrics["grad_norm"] = optax.global_norm(grads)
    updates: Any
    updates, opt_state = optimizer(c).update(grads, model.opt_state)
    lr = scheduled(c.lr, c.lr_end, c.lr_schedule, algo.horizon, state.clock)
    aux = dict(state.aux)
    if "balance" in aux:
        aux["balance"] = balance.follow(aux["balance"], metrics)
    models = {"policy": Model(unravel(flat - lr * updates), opt_state)}
    zero = jnp.int32(0)
    return state.replace(models=models, aux=aux, clock=state.clock.advance(zero, zero)), metrics
