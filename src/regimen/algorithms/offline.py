"""What learning from a dataset shares: gradient steps on it, how well its own actions are explained, and what the
critics say of it beside what happened."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from regimen.types import Array, PyTree, State


def log_likelihood(elements: Any, out: PyTree, action: PyTree, mask: Array | None) -> Array:
    """log pi(a | s) [...] of actions that were taken, over their elements that matter."""
    flat = elements.flat(elements.dist.log_prob(out, action))
    relevant = elements.relevance(action, mask)
    return (flat if relevant is None else jnp.where(relevant, flat, 0.0)).sum(-1)


def fit(algo: Any, state: State, data: Any, steps: int) -> tuple[State, dict[str, Array]]:
    """`steps` gradient steps of SAC, or of what is built on it, on a `sources.dataset.Data`."""
    c, norm = algo.config, state.norm.get("obs")
    root = jax.random.fold_in(state.key, state.clock.updates)
    done = state.aux["gradient_steps"]

    def step(i: Array, models: PyTree) -> tuple[PyTree, dict[str, Array]]:
        keys = jax.random.split(jax.random.fold_in(root, i), 3)
        sample = data.sample(keys[0], c.batch_size, c.n_step, c.gamma)
        return algo.gradient_step(models, sample, norm, keys[1:], done + i)

    def body(i: Array, carry):
        models, totals = carry
        models, metrics = step(i, models)
        return models, jax.tree.map(jnp.add, totals, metrics)

    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape), jax.eval_shape(lambda: step(jnp.int32(0), state.models)[1]))
    models, totals = lax.fori_loop(0, steps, body, (state.models, zeros))
    state = state.replace(models=models, aux=state.aux | {"gradient_steps": done + steps})
    metrics = {name: x / steps for name, x in totals.items()} | overestimation(algo, state, data)
    return state, metrics | {"lr": jnp.float32(c.lr), "gradient_steps": jnp.float32(steps)}


def overestimation(algo: Any, state: State, data: Any) -> dict[str, Array]:
    """Q of the data's own actions on evenly spaced rows, in the rewards' own units, beside the discounted return that
    followed them (`Dataset.monte_carlo`); a gap above 0 is over-estimation."""
    x = algo.features(data.probe.obs, state.norm.get("obs"))
    q = algo.taken(state.models["critic"].params, x, data.probe.action).mean() / getattr(algo.config, "reward_scale", 1)
    happened = data.mc_return.mean()
    return {"q_data_mean": q, "mc_return_mean": happened, "q_gap": q - happened}
