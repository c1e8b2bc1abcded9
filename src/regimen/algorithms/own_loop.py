"""PPO for people with a loop of their own: act on one observation, learn from rows of a `TrajectoryBuffer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen import spaces
from regimen.algorithms import balance
from regimen.algorithms.base import Algorithm
from regimen.algorithms.shared import adapt
from regimen.errors import ConfigError, nearest
from regimen.normalize import RunningStats
from regimen.schedule import pack
from regimen.types import Array, Batch, PyTree, State

if TYPE_CHECKING:
    from regimen.algorithms.ppo import PPO, PPORow
    from regimen.sources.trajectory_buffer import MinibatchRows, TrajectoryBuffer

Value = np.ndarray | dict[str, np.ndarray]  # of a state; by component where there are several critic heads
BLOCK = 64  # minibatches are padded to multiples of it, so that their sizes hardly ever compile anew


@jax.jit
def _sample(algo: OwnLoop, state: State, obs: PyTree, key: Array, mask: Array | None):
    noise = algo.noise(key, ())
    action, _, extras = algo.act(algo.actor_params(state), obs, algo.initial_carry(()), noise, mask=mask)
    return action, extras["log_prob"], _values(algo, state, obs)


@jax.jit
def _values(algo: OwnLoop, state: State, obs: PyTree) -> Array:
    params = state.models["policy"].params
    x = algo.embed(params, algo.features(obs, state.norm.get("obs")))
    return algo.bound.critic.apply(params["critic"], x)  # [K]


class OwnLoop(Algorithm):
    """What an actor-critic offers to a loop of somebody's own, as numpy."""

    def embed(self, params: PyTree, x: PyTree) -> Array:
        """The vector [..., D] that actor and critic read of features."""
        raise NotImplementedError

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


class OwnUpdate(OwnLoop):
    """What PPO offers beside: `begin_update`, epochs of `update_minibatch` and `end_update` are its `update`."""

    def begin_update(self: Any, state: State, buffer: TrajectoryBuffer) -> State:
        """Give a buffer of finished episodes the returns and advantages that `update` would learn from, in place of
        `compute_returns_and_advantages`: by these settings, components scaled and weighed, weights learned."""
        if self.bound.core is not None:
            raise ConfigError("begin_update: network.memory needs sequences, which a TrajectoryBuffer does not keep")
        buffer.compute_returns_and_advantages(self.gamma, 1.0)
        whole = buffer.rows()
        columns = rows_of(self, whole)
        last, final = buffer.ends()
        value = columns["value"]
        after = np.concatenate([value[1:], value[:1]])
        after[last] = by_head(self, "final values", final)
        done = np.zeros(len(whole), bool)
        done[last] = True
        columns |= {"reward": rewards_of(self, whole.rewards), "after": after, "done": done}
        columns, valid = pad(columns)
        state, rows, weights, metrics = _begin(self, state, columns, valid)
        advantage, target = (np.asarray(x)[: len(whole)] for x in (rows.advantage, rows.target))
        measured = {name: float(x) for name, x in metrics.items()}
        buffer.weigh(self.by_component(target), advantage, np.asarray(weights), measured)
        return state

    def update_minibatch(self: Any, state: State, minibatch: MinibatchRows) -> tuple[State, dict[str, float]]:
        """One gradient step on rows of a `TrajectoryBuffer`. After `begin_update` they are weighed as in `update`; else
        their advantages are taken as they are, and the step counts as one update of the schedules. With a `target_kl`
        `stop` says that the rows were past it, were not stepped on, and that the epochs should end."""
        rows, valid = pad(rows_of(self, minibatch))
        weights = None if minibatch.weights is None else np.asarray(minibatch.weights)[0]
        state, losses = _step(self, state, rows, valid, weights)
        return state, {name: float(x) for name, x in losses.items()}

    def end_update(self: Any, state: State, buffer: TrajectoryBuffer, losses: Sequence[Mapping] = ()) -> State:
        """What `update` does after its epochs: normaliser and clock, and from the steps' losses the KL penalty."""
        whole = buffer.rows()
        obs, valid = pad({"obs": spaces.cast(self.bound.spec.observation_space, whole.states)})
        kl = np.float32(np.mean([x["approx_kl"] for x in losses])) if losses else None
        return _end(self, state, obs["obs"], valid, np.int32(len(whole)), np.int32(buffer.num_episodes), kl)


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
        return by_head(algo, name, getattr(minibatch, name))

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


def by_head(algo: PPO, name: str, column: PyTree) -> np.ndarray:
    """Numbers of a buffer as one column for each critic head [n, K]."""
    components = algo.bound.spec.reward_components
    if algo.bound.heads == 1:
        if isinstance(column, dict):  # of advantages the buffer gives the sum as well
            column = column["total"] if "total" in column else sum(column.values())
        return np.asarray(column, np.float32)[:, None]
    if not isinstance(column, dict):
        names = ", ".join(components)
        raise ConfigError(f"update_minibatch: {name} must be by component ({names}), one for each critic head")
    for component in components:
        if component not in column:
            raise ConfigError(f"update_minibatch: {name} has no component '{component}'{nearest(component, column)}")
    return np.stack([column[c] for c in components], axis=-1).astype(np.float32)


def rewards_of(algo: PPO, rewards: PyTree) -> np.ndarray:
    """A buffer's rewards by component of the environment [n, C]; their sum as the first, where that is all there is."""
    components, fixed = algo.bound.spec.reward_components, algo.bound.components.fixed
    if isinstance(rewards, dict) and set(rewards) == set(components):
        return np.stack([rewards[c] for c in components], axis=-1).astype(np.float32)
    if algo.bound.heads > 1 or (fixed != 1).any():
        raise ConfigError(f"begin_update: rewards must be by component ({', '.join(components)})")
    total = sum(rewards.values()) if isinstance(rewards, dict) else rewards
    return np.stack([total, *[np.zeros_like(total)] * (len(components) - 1)], axis=-1).astype(np.float32)


def pad(rows: dict[str, PyTree]) -> tuple[dict[str, PyTree], np.ndarray]:
    """Rows up to a multiple of BLOCK by repeating the first, and which of them count."""
    n = len(jax.tree.leaves(rows)[0])
    total = -(-n // BLOCK) * BLOCK
    index = np.where(np.arange(total) < n, np.arange(total), 0)
    return jax.tree.map(lambda x: np.asarray(x)[index], rows), np.arange(total) < n


@jax.jit
def _begin(
    algo: PPO, state: State, columns: dict[str, PyTree], valid: Array
) -> tuple[State, PPORow, Array, dict[str, Array]]:
    """The state with statistics and weights brought up to date, rows in the buffer's order, their weights [K], and
    metrics of all this."""
    batch = as_batch(columns, valid)
    values = columns["value"][:, None], columns["after"][:, None]
    state, packed, knobs, metrics = algo.prepare(state, batch, values)
    rows = packed.take(jnp.arange(valid.size))
    if algo.config.normalize_advantage:
        mean = RunningStats.of(rows.advantage, valid).mean
        rows = rows.replace(advantage=(rows.advantage - mean) / knobs.scale)
    return state, rows, knobs.weights, metrics


def as_batch(columns: dict[str, PyTree], valid: Array) -> Batch:
    """Rows of a buffer as one column of time; where an episode ends, `after` knows what follows."""
    column = {name: jax.tree.map(lambda x: x[:, None], columns[name]) for name in ("obs", "action", "log_prob", "mask")}
    done = columns["done"][:, None]
    return Batch(
        obs=column["obs"],
        action=column["action"],
        reward=columns["reward"][:, None],
        terminated=jnp.zeros_like(done),
        truncated=done,
        next_obs=column["obs"],
        valid=valid[:, None],
        extras={name: column[name] for name in ("log_prob", "mask") if column[name] is not None},
        full=False,
    )


@jax.jit
def _end(algo: PPO, state: State, obs: PyTree, valid: Array, steps: Array, episodes: Array, kl: Array | None) -> State:
    norm, aux = state.norm, dict(state.aux)
    if "obs" in norm:
        norm = norm | {"obs": algo.observed(norm["obs"], obs, valid)}
    if "kl_coef" in aux and kl is not None:
        aux["kl_coef"] = adapt(aux["kl_coef"], kl, algo.config.kl_target)
    return state.replace(norm=norm, aux=aux, clock=state.clock.advance(steps, episodes))


@jax.jit
def _step(
    algo: PPO, state: State, rows: dict[str, PyTree], valid: Array, weights: Array | None
) -> tuple[State, dict[str, Array]]:
    row = algo.row(**(rows | {"obs": algo.features(rows["obs"], state.norm.get("obs"))}))
    alone = weights is None  # nobody has begun an update with these rows
    now = algo.bound.components.current_weights(state, row.advantage, valid) if weights is None else weights
    knobs, target = algo.knobs(state, now), algo.config.target_kl
    model, norms, metrics = algo.descend(
        state,
        pack(row, valid, all_valid=False, dense=True),
        lambda params, rows, _: algo.loss(params, rows, knobs),
        epochs=1,
        size=valid.size,
        target_kl=target,
        memory=state.aux.get("balance"),
        follow=balance.follow,
    )
    aux = state.aux if norms is None else state.aux | {"balance": norms}
    clock = state.clock.advance(jnp.int32(0), jnp.int32(0)) if alone else state.clock
    state = state.replace(models={"policy": model}, aux=aux, clock=clock)
    losses = {name: x for name, x in metrics.items() if name not in ("lr", "gradient_steps")}
    return state, losses if target is None else losses | {"stop": losses["approx_kl"] > 1.5 * target}
