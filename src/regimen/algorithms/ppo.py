"""Proximal policy optimisation.

Schulman et al. 2017 (arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438), the details of
Huang et al. 2022 ("The 37 implementation details of PPO"), and the adaptive KL penalty of the paper's section 4 as an
option beside clipping. Hybrid actions as in Fan et al. 2019 (arXiv 1903.01344), with a choice of what is clipped; one
critic head and one advantage per reward component (`regimen.rewards`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from regimen import rewards
from regimen.algorithms import balance, own_loop
from regimen.algorithms.actor_critic import FIXED, ActorCritic, Parts
from regimen.algorithms.base import register
from regimen.algorithms.shared import adapt, explained, optimizer, scheduled
from regimen.config.algorithms.ppo import PPOConfig
from regimen.config.schema import NetworkConfig
from regimen.errors import ConfigError
from regimen.normalize import RunningStats
from regimen.returns import gae, monte_carlo, n_step
from regimen.schedule import Minibatch, Packed, draw_words, for_minibatches
from regimen.types import Array, Batch, Model, PyTree, Record, Spec, State, pytree_dataclass


@pytree_dataclass
class Sample(Record):
    """One row of a minibatch. K is the number of critic heads."""

    obs: Array  # [D] normalised
    action: PyTree
    log_prob: Array  # [] of the rollout policy, or [M] by element
    advantage: Array  # [K]
    target: Array  # [K]
    value: Array  # [K] before the update
    mask: Array | None
    task: Array | None = None  # [] advantage of the task's own return, where weights are learned


@pytree_dataclass
class Knobs(Record):
    """What one update holds fixed in its loss."""

    clip_eps: Any
    ent_coef: Any
    kl_coef: Any
    weights: Array  # [K]
    shift: Any  # of the combined advantage, whose mean is made 0
    scale: Any  # and deviation 1
    balance: Array  # [2] factors of the gradients of discrete and of continuous heads


@register
class PPO(ActorCritic):
    """Clipped policy gradient on batches of the current policy."""

    config_class = PPOConfig
    row = Sample
    by_env = ("return", "sum")

    def build(self, spec: Spec) -> PPOParts:
        return PPOParts(spec, self.network, self.config)

    def init(self, key: Array) -> State:
        parts, c, state = self.bound, self.config, super().init(key)
        norm, aux = dict(state.norm), {}
        if c.normalize_reward:
            norm["return"] = RunningStats.zero()
        sums = jnp.zeros((parts.spec.columns, parts.heads))
        if parts.scaled:
            norm["components"] = RunningStats.zero((parts.heads,))
        if parts.scaled and c.reward.scale == "episode_sum":
            aux["sum"] = jnp.zeros_like(sums)
        if c.normalize_reward or parts.scaled:
            aux["return"] = sums
        if c.kl_coef:
            aux["kl_coef"] = jnp.float32(c.kl_coef)
        if parts.balanced:
            aux["balance"] = balance.zero()
        if parts.weighting is not None:
            aux["weights"] = parts.weighting.init()
        return state.replace(norm=norm, aux=aux)

    def update_minibatch(self, state: State, minibatch: Any) -> tuple[State, dict[str, float]]:
        """One gradient step on rows of a `TrajectoryBuffer`, whose advantages are taken as they are; counts as one
        update of the schedules."""
        return own_loop.update_minibatch(self, state, minibatch)

    # --- losses ------------------------------------------------------------------------------------------------------

    def policy_loss(self, out: PyTree, row: Sample, knobs: Knobs) -> tuple[Array, dict[str, Array]]:
        """-L_CLIP [W] (eq. 7), summed over the ratios that are clipped, and what the ratios say."""
        elements = self.bound.elements
        log_prob, relevant = self.log_probs(out, row.action, row.mask)
        difference = jnp.where(True if relevant is None else relevant, log_prob - row.log_prob, 0.0)
        log_ratio = difference[..., None] if elements.single else elements.grouped(difference)  # [W, G]
        ratio = jnp.exp(jnp.minimum(log_ratio, 20.0))  # a joint ratio of many parts can overflow: its gradient is NaN
        clipped = jnp.clip(ratio, 1 - knobs.clip_eps, 1 + knobs.clip_eps)
        advantage = (((row.advantage * knobs.weights).sum(-1) - knobs.shift) / knobs.scale)[:, None]
        loss = -jnp.minimum(ratio * advantage, clipped * advantage)
        kl = ratio - 1 - log_ratio  # Schulman's k3 estimate: unbiased and never negative
        outside = (jnp.abs(ratio - 1) > knobs.clip_eps).astype(jnp.float32)
        if relevant is None:
            active, number = 1.0, ratio.shape[-1]
        else:
            active = (elements.grouped(relevant.astype(jnp.float32)) > 0).astype(jnp.float32)
            number = jnp.maximum(active.sum(-1), 1.0)
        metrics = {"approx_kl": (kl * active).sum(-1), "clip_fraction": (outside * active).sum(-1) / number}
        if elements.hybrid:
            k3 = elements.split(jnp.exp(jnp.minimum(difference, 20.0)) - 1 - difference)
            metrics |= {f"approx_kl/{name}": x.sum(-1) for name, x in k3.items()}
        return (loss * active).sum(-1), metrics

    def entropies(self, out: PyTree, row: Sample) -> tuple[Any, Array, dict[str, Any]]:
        """The weighted entropy of the policy [W], its shortfall below the floors [W], and the entropies by part."""
        c, dist, elements = self.config, self.bound.dist, self.bound.elements
        entropy = dist.entropy(out)
        relevant = elements.relevance(row.action, row.mask)
        parts = elements.split(elements.flat(entropy))
        matters = {} if relevant is None else elements.split(relevant.astype(jnp.float32))
        weight = {"discrete": c.ent_discrete, "continuous": c.ent_continuous}
        floor = {"discrete": c.ent_floor_discrete, "continuous": c.ent_floor_continuous}
        bonus, total, shortfall, metrics = 0.0, 0.0, jnp.zeros(row.advantage.shape[0]), {}
        for name, kind in elements.kinds.items():
            number = jnp.full(1, parts[name].shape[-1]) if relevant is None else matters[name].sum(-1)
            summed = parts[name].sum(-1) if relevant is None else (parts[name] * matters[name]).sum(-1)
            mean = summed / jnp.maximum(number, 1.0)
            bonus, total = bonus + weight[kind] * summed, total + summed
            if (least := floor[kind]) is not None:
                shortfall = shortfall + jnp.where(number > 0, jax.nn.relu(least - mean), 0.0)
            if elements.hybrid:
                metrics[f"entropy/{name}"] = mean
        return bonus, shortfall, metrics | {"entropy": total}

    def value_loss(self, params: PyTree, row: Sample) -> Array:
        """0.5 (V - target)^2 [W], a mean over components."""
        c = self.config
        value = self.bound.critic.apply(params["critic"], row.obs)
        loss = jnp.square(value - row.target)
        if c.vf_clip is not None:
            near = row.value + jnp.clip(value - row.value, -c.vf_clip, c.vf_clip)
            loss = jnp.maximum(loss, jnp.square(near - row.target))
        return 0.5 * loss.mean(-1)

    def loss(self, params: PyTree, row: Sample, knobs: Knobs) -> tuple[Array, dict[str, Array]]:
        """-L_CLIP + vf_coef L_VF - ent_coef H + kl_coef KL per row [W] (eq. 9, to minimise), and its parts."""
        c, parts = self.config, self.bound
        head = parts.actor.apply(params["actor"], row.obs)
        measured = {}
        if parts.balanced:
            measured = self.head_gradients(params, head, row, knobs)
            fixed = lax.stop_gradient(head)
            head = fixed + knobs.balance[parts.head_kinds] * (head - fixed)  # the same value, its gradient scaled
        out = parts.dist.params(head, params.get("log_std", FIXED), row.mask)
        policy_loss, ratios = self.policy_loss(out, row, knobs)
        value_loss = self.value_loss(params, row)
        bonus, shortfall, entropies = self.entropies(out, row)
        loss = policy_loss + c.vf_coef * value_loss - knobs.ent_coef * bonus + knobs.kl_coef * ratios["approx_kl"]
        if c.ent_floor_discrete is not None or c.ent_floor_continuous is not None:
            loss = loss + c.ent_floor_coef * shortfall
            entropies["entropy_shortfall"] = shortfall
        metrics = {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss}
        return loss, metrics | entropies | ratios | measured

    def head_gradients(self, params: PyTree, head: Array, row: Sample, knobs: Knobs) -> dict[str, Array]:
        """Squared norms of the policy loss's gradient at the discrete and the continuous outputs [W]: the price of the
        distribution's own backward pass, not of the network's."""
        log_std = lax.stop_gradient(params.get("log_std", FIXED))

        def surrogate(head: Array) -> Array:
            return self.policy_loss(self.bound.dist.params(head, log_std, row.mask), row, knobs)[0].sum()

        squares = jnp.square(jax.grad(surrogate)(lax.stop_gradient(head)))
        kinds = self.bound.head_kinds
        return {name: squares @ (kinds == i) for i, name in enumerate(balance.METRICS)}

    # --- update ------------------------------------------------------------------------------------------------------

    def update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """One regimen's worth of learning: advantages over the whole batch, then epochs of minibatches."""
        c = self.config
        model = state.models["policy"]
        state, packed, knobs, metrics = self.prepare(state, batch)
        flat, unravel = ravel_pytree(model.params)
        lr = scheduled(c.lr, c.lr_end, c.lr_schedule, self.horizon, state.clock)

        def step(carry, minibatch):
            flat, opt_state, norms, totals, _ = carry
            knobs_now = knobs.replace(balance=balance.factors(norms, c.balance_warmup))
            loss = partial(self.loss, knobs=knobs_now)
            grads, parts = minibatch.gradient(lambda flat, row: self.row_loss(loss, unravel(flat), row), flat)
            parts["grad_norm"] = optax.global_norm(grads)
            updates: Any
            updates, moments = optimizer(c).update(grads, opt_state)
            stop = jnp.bool_(False) if c.target_kl is None else parts["approx_kl"] > 1.5 * c.target_kl
            stay, move = (flat, opt_state), (flat - lr * updates, moments)
            # a minibatch already past the target is not stepped on, and leaves no trace in the optimiser
            flat, opt_state = jax.tree.map(lambda old, new: jnp.where(stop, old, new), stay, move)
            norms = balance.follow(norms, parts)
            totals = jax.tree.map(jnp.add, totals, parts)
            return flat, opt_state, norms, totals, stop

        first, loss = packed.take(jnp.arange(1)), partial(self.loss, knobs=knobs)
        shapes = jax.eval_shape(lambda: self.row_loss(loss, model.params, first)[1])
        zeros = {name: jnp.zeros(()) for name in (*shapes, "grad_norm")}
        key = jax.random.fold_in(state.key, ~state.clock.updates)  # the rollout's is fold_in(key, updates)
        (flat, opt_state, norms, totals, _), ran = for_minibatches(
            key,
            packed,
            epochs=c.epochs,
            size=self.in_rows(c.minibatch_size, batch),
            micro=None if c.micro_batch_size is None else self.in_rows(c.micro_batch_size, batch),
            step=step,
            carry=(flat, model.opt_state, state.aux.get("balance"), zeros, jnp.bool_(False)),
            stopped=(lambda carry: carry[-1]) if c.target_kl is not None else None,
        )
        metrics |= {name: x / ran for name, x in totals.items()}
        metrics |= {"lr": lr, "clip_eps": knobs.clip_eps, "ent_coef": knobs.ent_coef}
        metrics["gradient_steps"] = ran.astype(jnp.float32)
        aux = dict(state.aux)
        if "kl_coef" in aux:
            metrics["kl_coef"] = knobs.kl_coef
            aux["kl_coef"] = adapt(knobs.kl_coef, metrics["approx_kl"], c.kl_target)
        if norms is not None:
            aux["balance"], factors = norms, balance.factors(norms, c.balance_warmup)
            metrics |= {"balance_discrete": factors[0], "balance_continuous": factors[1]}
            metrics |= {name: jnp.sqrt(metrics[name]) for name in balance.METRICS}
        models = {"policy": Model(unravel(flat), opt_state)}
        return state.replace(models=models, norm=self.updated_norm(state, batch), aux=aux), metrics

    def gradient(self, state: State, batch: Batch) -> Array:
        """The gradient of the loss over the whole batch, as one vector: what a full-batch update would begin with."""
        _, packed, knobs, _ = self.prepare(state, batch)
        flat, unravel = ravel_pytree(state.models["policy"].params)
        words = draw_words(jax.random.key(0))
        whole = Minibatch(packed, words, jnp.int32(0), jnp.asarray(packed.count), packed.matrix.shape[0], False, None)
        loss = partial(self.loss, knobs=knobs)
        return whole.gradient(lambda flat, row: self.row_loss(loss, unravel(flat), row), flat)[0]

    def prepare(self, state: State, batch: Batch) -> tuple[State, Packed, Knobs, dict[str, Array]]:
        """What the epochs work on: the batch as rows with advantages, what the loss holds fixed, and the state with its
        reward statistics and component weights brought up to date."""
        c, parts = self.config, self.bound
        params = state.models["policy"].params
        reward, factors, state = self.scaled_reward(state, batch)
        rows, metrics = self.advantages(params, state, batch, reward, factors)
        packed = self.pack(rows, batch)
        weights, state = self.component_weights(state, packed, rows, batch.valid, factors)
        if parts.heads > 1:
            shown = weights if parts.weighting is not None else self.given_weights(1.0)
            metrics |= {f"weight/{k}": w for k, w in zip(parts.spec.reward_components, shown / shown.sum())}
        knobs = self.knobs(state, weights)
        if c.normalize_advantage:
            stats = RunningStats.of(rows.advantage @ weights, batch.valid)
            knobs = knobs.replace(shift=stats.mean, scale=stats.std() + 1e-8)
        return state, packed, knobs, metrics

    def knobs(self, state: State, weights: Array) -> Knobs:
        c, clock = self.config, state.clock
        return Knobs(
            clip_eps=scheduled(c.clip_eps, c.clip_end, c.clip_schedule, self.horizon, clock),
            ent_coef=scheduled(c.ent_coef, c.ent_end, c.ent_schedule, self.horizon, clock),
            kl_coef=state.aux.get("kl_coef", 0.0),
            weights=weights,
            shift=0.0,
            scale=1.0,
            balance=balance.factors(state.aux.get("balance"), c.balance_warmup),
        )

    def component_weights(
        self, state: State, packed: Packed, rows: Sample, valid: Array, factors: Array
    ) -> tuple[Array, State]:
        """w [K] of the advantages as they are in `rows`, and the state with learned weights one step on."""
        c, parts = self.config.reward, self.bound
        if parts.weighting is None:
            return self.given_weights(1.0 if parts.norm_over else factors), state
        flat, unravel = ravel_pytree(state.models["policy"].params)

        def log_prob(flat: Array, row: Sample) -> Array:
            out = self.policy(unravel(flat), row.obs, row.mask)
            return self.joint_log_prob(self.log_probs(out, row.action, row.mask)[0])

        key = jax.random.fold_in(jax.random.fold_in(state.key, ~state.clock.updates), 1)
        d = rewards.alignments(log_prob, flat, *rewards.two_halves(packed, key), packed.count)
        magnitude, covariance = rewards.moments(rows.advantage, valid)
        learned = parts.weighting.update(state.aux["weights"], magnitude, d, covariance, c)
        state = state.replace(aux=state.aux | {"weights": learned})
        return parts.weighting.weights(learned["params"], magnitude), state

    def given_weights(self, factors: Any) -> Array:
        """w [K] where they are not learned: fixed ones are in the reward's own units."""
        c, parts = self.config.reward, self.bound
        if parts.heads > 1 and c.weighting == "uniform":
            return jnp.full(parts.heads, 1 / parts.heads)
        return (parts.given_weights if parts.heads > 1 else jnp.ones(1)) / factors

    def scaled_reward(self, state: State, batch: Batch) -> tuple[Array, Array, State]:
        """Rewards [T, B, K] as the critics learn them, the factors [K] between components in them, and the state with
        the statistics of this batch."""
        c, parts = self.config, self.bound
        reward = batch.reward if parts.heads > 1 else (batch.reward * parts.given_weights).sum(-1, keepdims=True)
        norm, aux, factors = dict(state.norm), dict(state.aux), jnp.ones(parts.heads)
        if "return" in aux:
            returns, aux["return"] = rewards.running_returns(reward, aux["return"], batch, c.gamma)
        if "components" in norm:
            spread, seen = returns, batch.valid
            if "sum" in aux:
                spread, aux["sum"] = rewards.running_returns(reward, aux["sum"], batch, 1.0)
                seen = batch.valid & (batch.terminated | batch.truncated)
            norm["components"] = norm["components"].merge(RunningStats.of(spread, seen))
            factors = rewards.scale_factors(norm["components"], state.clock.episodes >= c.reward.warmup)
        if "return" in norm:
            norm["return"] = norm["return"].merge(RunningStats.of(returns.sum(-1), batch.valid))
            reward = jnp.clip(reward / norm["return"].std(), -10.0, 10.0)
        state = state.replace(norm=norm, aux=aux)
        if parts.norm_over == "episode":  # which leaves no scale to bring together, and none to undo
            return rewards.standardize_episodes(reward, batch, c.reward.norm), jnp.ones(parts.heads), state
        return reward * factors, factors, state

    def advantages(
        self, params: PyTree, state: State, batch: Batch, reward: Array, factors: Array
    ) -> tuple[Sample, dict[str, Array]]:
        """The batch as rows to learn from, and how well the critics explain their targets."""
        c, parts = self.config, self.bound
        value, next_value = self.values(params, state, batch, self.encode(params, state, batch))
        done, unit = (batch.terminated | batch.truncated)[..., None], 1.0
        match c.returns:
            case "gae":
                advantage = gae(reward, value, next_value, done, c.gamma, c.gae_lambda, batch.length)
                target = advantage + value
            case "n_step":
                target = n_step(reward, next_value, done, c.gamma, c.n_step)
                advantage = target - value
            case "monte_carlo":
                target = monte_carlo(reward, next_value, done, c.gamma, batch.length)
                advantage = target - value
            case _:  # monte_carlo_z: raw sums, z-scored; the critic learns z-scores, so it cannot bootstrap rewards
                raw = monte_carlo(reward, jnp.zeros_like(next_value), done, c.gamma, batch.length)
                stats = RunningStats.of(raw, batch.valid)
                target = (raw - stats.mean) / stats.std()
                unit = stats.std() / stats.std().mean()  # between components the advantages keep the rewards' units
                advantage = (target - value) * unit
        task = None if parts.weighting is None else advantage / factors @ parts.weighting.task
        total, guess = (target * unit / factors).sum(-1), (value * unit / factors).sum(-1)
        metrics = {"explained_variance": explained(total, guess, batch.valid)}
        if parts.heads > 1:
            for k, name in enumerate(parts.spec.reward_components):
                metrics[f"explained_variance/{name}"] = explained(target[..., k], value[..., k], batch.valid)
            if parts.norm_over == "batch":
                advantage = rewards.standardize(advantage, batch.valid, c.reward.norm)
        obs, mask = self.features(batch.obs, state.norm.get("obs")), batch.extras.get("mask")
        return Sample(obs, batch.action, batch.extras["log_prob"], advantage, target, value, mask, task), metrics


class PPOParts(Parts):
    """With what component rewards and the balance of gradients need."""

    def __init__(self, spec: Spec, network: NetworkConfig, c: PPOConfig):
        names = spec.reward_components
        super().__init__(spec, network, c, len(names) if c.reward.heads else 1, c.ratio)
        kinds = [(0 if d.kind == "discrete" else 1, d.head_size) for d in self.elements.leaves.values()]
        self.head_kinds = np.concatenate([np.full(size, kind) for kind, size in kinds])
        self.balanced = c.balance_gradients and len(set(self.head_kinds.tolist())) == 2
        self.given_weights = np.asarray(rewards.parse_weights(c.reward.weights, names), np.float32)
        rewards.parse_task(c.reward.task, names)
        self.norm_over = c.reward.norm_over if self.heads > 1 and c.reward.norm != "none" else None
        self.scaled = self.heads > 1 and c.reward.scale != "none"
        learned = self.heads > 1 and c.reward.weighting == "learned"
        self.weighting = rewards.Weighting(c.reward, names) if learned else None
        if learned and self.core is not None:
            raise ConfigError("algo.reward.weighting: weights cannot be learned with network.memory; use fixed")
