"""PPO for people with a loop of their own: act on one observation, learn from rows of a `TrajectoryBuffer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from regimen import spaces
from regimen.algorithms import balance
from regimen.algorithms.base import Algorithm
from regimen.errors import ConfigError, nearest
from regimen.schedule import pack
from regimen.types import Array, PyTree, State

if TYPE_CHECKING:
    from regimen.algorithms.ppo import PPO
    from regimen.sources.trajectory_buffer import MinibatchRows

Value = np.ndarray | dict[str, np.ndarray]  # of a state; by component where there are several critic heads
BLOCK = 64  # minibatches are padded to multiples of it, so that their sizes hardly ever compile anew


@jax.jit
def _sample(algo: OwnLoop, state: State, obs: PyTree, key: Array, mask: Array | None):
    noise = algo.noise(key, ())
    action, _, extras = algo.act(algo.actor_params(state), obs, algo.initial_carry(()), noise, mask=mask)
    return action, extras["log_prob"], _values(algo, state, obs)


@jax.jit
def _values(algo: OwnLoop, state: State, obs: PyTree) -> Array:
    x = algo.features(obs, state.norm.get("obs"))
    return algo.bound.critic.apply(state.models["policy"].params["critic"], x)  # [K]


class OwnLoop(Algorithm):
    """What an actor-critic offers to a loop of somebody's own, as numpy."""

    def sample(self, state: State, obs: PyTree, key: Array, mask: PyTree = None) -> tuple[PyTree, np.ndarray, Value]:
        """(action, log-probability, value) for one observation. Store the action, send `to_env(action)` to the
        environment. Values are by component where there are several critic heads."""
        spec = self.bound.spec
        row = None if mask is None else spaces.mask_row(spec.action_space, mask)
        out = _sample(self, state, spaces.cast(spec.observation_space, obs), key, row)
        action, log_prob, values = jax.tree.map(np.asarray, out)
        return action, log_prob, self.by_component(values)

    def value(self, state: State, obs: PyTree) -> Value:
        """V of one observation, as `sample` gives it."""
        out = _values(self, state, spaces.cast(self.bound.spec.observation_space, obs))
        return self.by_component(np.asarray(out))

    def by_component(self, values: np.ndarray) -> Value:
        """One number, or a dict where there are several critic heads."""
        if self.bound.heads == 1:
            return values[..., 0]
        return {name: values[..., k] for k, name in enumerate(self.bound.spec.reward_components)}


def update_minibatch(algo: PPO, state: State, minibatch: MinibatchRows) -> tuple[State, dict[str, float]]:
    rows, valid = pad(rows_of(algo, minibatch))
    state, losses = _step(algo, state, rows, valid)
    return state, {name: float(x) for name, x in losses.items()}


def rows_of(algo: PPO, minibatch: MinibatchRows) -> dict[str, PyTree]:
    """A buffer's rows as arrays that the loss reads."""
    bound, spec = algo.bound, algo.bound.spec
    if minibatch.log_probs is None:
        raise ConfigError("update_minibatch: the rows have no log_probs; give them to TrajectoryBuffer.add_step")
    n, elements = len(minibatch), bound.elements
    for name, column, expected in (
        ("actions", minibatch.actions, bound.dist.zeros((n,))),
        ("log_probs", minibatch.log_probs, np.zeros(n if elements.single else (n, elements.size))),
    ):
        shapes, right = (jax.tree.map(np.shape, x) for x in (column, expected))
        if shapes != right:
            raise ConfigError(f"update_minibatch: {name} of shape {shapes}; as `sample` gives them it is {right}")

    def heads(name: str) -> np.ndarray:
        column = getattr(minibatch, name)
        if bound.heads == 1:
            if isinstance(column, dict):  # of advantages the buffer gives the sum as well
                column = column["total"] if "total" in column else sum(column.values())
            return np.asarray(column, np.float32)[:, None]
        if not isinstance(column, dict):
            names = ", ".join(spec.reward_components)
            raise ConfigError(f"update_minibatch: {name} must be by component ({names}), one for each critic head")
        for component in spec.reward_components:
            if component not in column:
                hint = nearest(component, column)
                raise ConfigError(f"update_minibatch: {name} has no component '{component}'{hint}")
        return np.stack([column[c] for c in spec.reward_components], axis=-1).astype(np.float32)

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


def pad(rows: dict[str, PyTree]) -> tuple[dict[str, PyTree], np.ndarray]:
    """Rows up to a multiple of BLOCK by repeating the first, and which of them count."""
    n = len(rows["advantage"])
    total = -(-n // BLOCK) * BLOCK
    index = np.where(np.arange(total) < n, np.arange(total), 0)
    return jax.tree.map(lambda x: np.asarray(x)[index], rows), np.arange(total) < n


@jax.jit
def _step(algo: PPO, state: State, rows: dict[str, PyTree], valid: Array) -> tuple[State, dict[str, Array]]:
    row = algo.row(**(rows | {"obs": algo.features(rows["obs"], state.norm.get("obs"))}))
    weights = algo.bound.components.current_weights(state, row.advantage, valid)
    knobs = algo.knobs(state, weights)
    model, norms, metrics = algo.descend(
        state,
        pack(row, valid, all_valid=False, dense=True),
        lambda params, rows, _: algo.loss(params, rows, knobs),
        epochs=1,
        size=valid.size,
        memory=state.aux.get("balance"),
        follow=balance.follow,
    )
    aux = state.aux if norms is None else state.aux | {"balance": norms}
    none = jnp.int32(0)
    state = state.replace(models={"policy": model}, aux=aux, clock=state.clock.advance(none, none))
    return state, {name: x for name, x in metrics.items() if name not in ("lr", "gradient_steps")}
