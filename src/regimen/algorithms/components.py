"""The components of a reward between the environment and a policy gradient: rewards as the critics learn them, and the
weights with which the components' advantages become the one that the policy learns from. With one component it is the
identity, but for the reward normaliser."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen import rewards
from regimen.algorithms.actor_critic import ActorCriticBinding
from regimen.algorithms.shared import explained
from regimen.config.algorithms.ppo import RewardConfig
from regimen.config.schema import NetworkConfig
from regimen.errors import ConfigError
from regimen.normalize import RunningStats
from regimen.schedule import RowMatrix
from regimen.types import Array, Batch, PyTree, Scalar, Spec, State


class Components:
    """K critic heads, one for each of the reward's components or one for their sum, and how they are weighed.

    What it learns is in a state: `norm` has "return" (of all rewards) and "components", `aux` has the sums of the
    episodes that go on ("return", "sum") and learned "weights"."""

    by_env = ("return", "sum")  # entries of `aux` with a row for every environment

    def __init__(self, names: tuple[str, ...], c: RewardConfig):
        self.names = names
        self.heads = len(names) if c.heads else 1
        several = self.heads > 1
        for name, off in (("weighting", "fixed"), ("norm", "none")) if not c.heads and len(names) > 1 else ():
            if getattr(c, name) != off:
                raise ConfigError(
                    f"algo.reward.{name}: '{getattr(c, name)}' needs a critic head for each component; set "
                    "algo.reward.heads true"
                )
        self.fixed = np.asarray(rewards.parse_weights(c.weights, names), np.float32)
        task = rewards.parse_task(c.task, names)
        self.uniform = several and c.weighting == "uniform"
        self.norm = c.norm
        self.norm_over = c.norm_over if several and c.norm != "none" else None
        self.scaled = several and c.scale != "none"
        self.by_sum = self.scaled and c.scale == "episode_sum"
        learned = several and c.weighting == "learned"
        self.weighting = rewards.Weighting(self.fixed.tolist(), task, c.attention) if learned else None

    def init(self, c: Any, columns: int) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        """Normalisers and auxiliary state that component rewards add to `norm` and to `aux` of a first state."""
        norm, aux, sums = {}, {}, jax.device_put(np.zeros((columns, self.heads), np.float32))
        if c.normalize_reward:
            norm["return"] = RunningStats.zero()
        if self.scaled:
            norm["components"] = RunningStats.zero((self.heads,))
        if c.normalize_reward or self.scaled:
            aux["return"] = sums
        if self.by_sum:
            aux["sum"] = sums
        if self.weighting is not None:
            aux["weights"] = self.weighting.init()
        return norm, aux

    def rewards(self, c: Any, state: State, batch: Batch) -> tuple[Array, Array, State]:
        """Rewards [T, B, K] as the critics learn them, the factors [K] between components in them, and the state with
        the statistics of this batch."""
        reward = batch.reward if self.heads > 1 else (batch.reward * self.fixed).sum(-1, keepdims=True)
        norm, aux, factors = dict(state.norm), dict(state.aux), jnp.ones(self.heads)
        if "return" in aux:
            returns = self.running(aux, "return", reward, batch, c.gamma)
        if "components" in norm:
            spread, rows = returns, batch.valid
            if "sum" in aux:
                spread = self.running(aux, "sum", reward, batch, 1.0)
                rows = batch.valid & (batch.terminated | batch.truncated)
            norm["components"] = norm["components"].merge(RunningStats.of(spread, rows))
            factors = rewards.scale_factors(norm["components"], state.clock.read("episodes") >= c.reward.warmup)
        if "return" in norm:
            norm["return"] = norm["return"].merge(RunningStats.of(returns.sum(-1), batch.valid))
            reward = jnp.clip(reward / norm["return"].std(), -10.0, 10.0)
        state = state.replace(norm=norm, aux=aux)
        if self.norm_over == "episode":  # which leaves no scale to bring together, and none to undo
            return rewards.standardize_episodes(reward, batch, self.norm), jnp.ones(self.heads), state
        return reward * factors, factors, state

    @staticmethod
    def running(aux: dict[str, PyTree], name: str, reward: Array, batch: Batch, decay: Scalar) -> Array:
        """Decayed sums of the rewards so far in each episode [T, B, K], going on from the batch before. Batches of
        several workers take turns: there, sums begin with the batch."""
        if batch.worker is not None:
            return rewards.running_returns(reward, jnp.zeros_like(reward[0]), batch, decay)[0]
        returns, aux[name] = rewards.running_returns(reward, aux[name], batch, decay)
        return returns

    def advantages(self, advantage: Array, valid: Array) -> Array:
        """Advantages [T, B, K] as they are weighed: standardised over the batch where that is asked for."""
        return rewards.standardize(advantage, valid, self.norm) if self.norm_over == "batch" else advantage

    def task(self, advantage: Array, factors: Array) -> Array | None:
        """Advantages of the task's own return [T, B], which learned weights serve; None where there are none."""
        return None if self.weighting is None else advantage / factors @ self.weighting.task

    def explained(self, target: Array, value: Array, valid: Array) -> dict[str, Array]:
        """How well each head explains its targets, by component."""
        if self.heads == 1:
            return {}
        return {
            f"explained_variance/{name}": explained(target[..., k], value[..., k], valid)
            for k, name in enumerate(self.names)
        }

    def weights(
        self,
        c: RewardConfig,
        state: State,
        packed: RowMatrix,
        rows: PyTree,
        valid: Array,
        factors: Array,
        log_prob: Callable,
    ) -> tuple[Array, State]:
        """w [K] of the advantages as they are in `rows`, and the state with learned weights one step on. `packed` are
        the same rows, or sequences of them; `log_prob(params, rows)` [W] is of their actions."""
        if self.weighting is None:
            return self.fixed_weights(1.0 if self.norm_over else factors), state
        key = jax.random.fold_in(jax.random.fold_in(state.key, ~state.clock.updates), 1)
        params = state.models["policy"].params
        d = rewards.alignments(log_prob, params, *rewards.two_halves(packed, key), packed.count)
        magnitude, covariance = rewards.moments(rows.advantage, valid)
        new = self.weighting.update(state.aux["weights"], magnitude, d, covariance, c.weight_lr, c.weight_reg)
        return self.weighting.weights(new["params"], magnitude), state.replace(aux=state.aux | {"weights": new})

    def current_weights(self, state: State, advantage: Array, valid: Array) -> Array:
        """w [K] as they are, for rows [W, K] of a buffer: learning them takes a whole batch."""
        if self.weighting is None:
            return self.fixed_weights(1.0)
        return self.weighting.weights(state.aux["weights"]["params"], rewards.moments(advantage, valid)[0])

    def fixed_weights(self, factors: Any) -> Array:
        """w [K] where they are not learned: fixed ones are in the reward's own units."""
        if self.uniform:
            return jnp.full(self.heads, 1 / self.heads)
        return (self.fixed if self.heads > 1 else jnp.ones(1)) / factors

    def report(self, weights: Array) -> dict[str, Array]:
        """Metrics of the weights, as shares."""
        if self.heads == 1:
            return {}
        shares = weights if self.weighting is not None else self.fixed_weights(1.0)
        return {f"weight/{name}": w for name, w in zip(self.names, shares / shares.sum())}


class ComponentBinding(ActorCriticBinding):
    """An actor and a critic with the reward's components."""

    def __init__(self, spec: Spec, network: NetworkConfig, c: Any, ratio: str = "joint"):
        self.components = Components(spec.reward_components, c.reward)
        super().__init__(spec, network, c, self.components.heads, ratio)
