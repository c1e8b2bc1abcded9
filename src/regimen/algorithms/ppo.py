"""Proximal policy optimisation.

Schulman et al. 2017 (arXiv 1707.06347), whose equations are cited below, with generalised advantage estimation (arXiv
1506.02438), the details of Huang et al. 2022 ("The 37 implementation details of PPO"), and the adaptive KL penalty of
the paper's section 4 as an option beside clipping. Hybrid actions as in Fan et al. 2019 (arXiv 1903.01344), with a
choice of what is clipped. Rewards may have several components, each with a critic head of its own (`components.py`);
acting and the gradient steps are those of any actor-critic (`actor_critic.py: act, descend`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from regimen.algorithms import balance
from regimen.algorithms.actor_critic import FIXED, ActorCritic
from regimen.algorithms.base import register
from regimen.algorithms.components import ComponentBinding, Components
from regimen.algorithms.own_loop import OwnUpdate
from regimen.algorithms.shared import adapt, explained, scheduled
from regimen.config.algorithms.ppo import PPOConfig
from regimen.config.schema import NetworkConfig
from regimen.normalize import RunningStats
from regimen.returns import gae, monte_carlo, n_step
from regimen.schedule import Minibatch, RowMatrix, draw_words
from regimen.types import Array, Batch, PyTree, Record, Scalar, Spec, State, pytree_dataclass


@pytree_dataclass
class PPORow(Record):
    """One row of a minibatch. K is the number of critic heads."""

    obs: PyTree  # [D] normalised, or parts that an encoder makes it of
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

    clip_eps: Array
    ent_coef: Array
    kl_coef: Scalar
    weights: Array  # [K]
    shift: Scalar  # of the combined advantage, whose mean is made 0
    scale: Scalar  # and deviation 1
    balance: Array  # [2] factors of the gradients of discrete and of continuous heads

    def advantage(self, row: PPORow) -> Array:
        """A [W]: the advantages of the reward's components weighed, shifted and scaled."""
        return ((row.advantage * self.weights).sum(-1) - self.shift) / self.scale


@register
class PPO(ActorCritic, OwnUpdate):
    """PPO: clipped policy gradient on batches of the current policy."""

    config_class = PPOConfig
    row = PPORow
    by_env = Components.by_env
    varies_together = True
    shaping = ("kl_coef",)

    def build(self, spec: Spec) -> PPOBinding:
        return PPOBinding(spec, self.network, self.config)

    def init(self, key: Array) -> State:
        c, state = self.config, super().init(key)
        norm, aux = self.bound.components.init(c, self.bound.spec.columns)
        if c.kl_coef:
            aux["kl_coef"] = jnp.float32(c.kl_coef)
        if self.bound.head_kinds is not None:
            aux["balance"] = balance.zero()
        return state.replace(norm=state.norm | norm, aux=aux)

    def loss(self, params: PyTree, row: PPORow, knobs: Knobs) -> tuple[Array, dict[str, Array]]:
        """-(L_CLIP - vf_coef L_VF + ent_coef S) [W] (eq. 9, to be minimised) + kl_coef KL (eq. 8), and its parts."""
        c = self.config
        pi, norms = self.outputs(params, row, knobs)
        policy_loss, ratios = self.policy_loss(pi, row, knobs)  # -L_CLIP
        value_loss = self.value_loss(params, row)  # L_VF
        entropy, shortfall, entropies = self.entropy(pi, row)  # S
        loss = policy_loss + c.vf_coef * value_loss - knobs.ent_coef * entropy
        loss = loss + knobs.kl_coef * ratios["approx_kl"]
        if c.ent_floor_discrete is not None or c.ent_floor_continuous is not None:
            loss = loss + c.ent_floor_coef * shortfall
            entropies["entropy_shortfall"] = shortfall
        losses = {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss}
        return loss, losses | entropies | ratios | norms

    def policy_loss(self, pi: PyTree, row: PPORow, knobs: Knobs) -> tuple[Array, dict[str, Array]]:
        """-L_CLIP [W] (eq. 7), summed over the ratios of an action, and what the ratios say."""
        log_ratio, active, metrics = self.log_ratios(pi, row)  # [W, G], of one ratio [W, 1]
        # r(theta) = pi / pi_old; a joint ratio of many parts can overflow, and then its gradient is NaN
        ratio = jnp.exp(jnp.minimum(log_ratio, 20.0))
        clipped = jnp.clip(ratio, 1 - knobs.clip_eps, 1 + knobs.clip_eps)
        advantage = knobs.advantage(row)[:, None]
        loss = -jnp.minimum(ratio * advantage, clipped * advantage)
        kl = ratio - 1 - log_ratio  # Schulman's k3 estimate: unbiased and never negative
        outside = (jnp.abs(ratio - 1) > knobs.clip_eps).astype(jnp.float32)
        fraction = (outside * active).sum(-1) / jnp.maximum(active.sum(-1), 1.0)
        return (loss * active).sum(-1), {"approx_kl": (kl * active).sum(-1), "clip_fraction": fraction} | metrics

    def log_ratios(self, pi: PyTree, row: PPORow) -> tuple[Array, Array, dict[str, Array]]:
        """log r(theta) = log (pi / pi_old)(a | s) of every ratio that is clipped [W, G], 1 for ratios that matter and 0
        for others [W, G], and of a hybrid action KL(pi_old, pi) by part."""
        elements = self.bound.elements
        log_prob, relevant = self.log_probs(pi, row.action, row.mask)
        difference = log_prob - row.log_prob
        if elements.single:
            return difference[:, None], jnp.ones_like(difference)[:, None], {}
        relevant = jnp.ones_like(difference, bool) if relevant is None else relevant
        difference = jnp.where(relevant, difference, 0.0)
        active = (elements.grouped(relevant.astype(jnp.float32)) > 0).astype(jnp.float32)
        k3 = elements.split(jnp.exp(jnp.minimum(difference, 20.0)) - 1 - difference) if elements.hybrid else {}
        return elements.grouped(difference), active, {f"approx_kl/{name}": x.sum(-1) for name, x in k3.items()}

    def value_loss(self, params: PyTree, row: PPORow) -> Array:
        """L_VF = 0.5 (V - target)^2 [W], a mean over components."""
        c = self.config
        value = self.bound.critic.apply(params["critic"], row.obs)
        loss = jnp.square(value - row.target)
        if c.vf_clip is not None:
            clipped = row.value + jnp.clip(value - row.value, -c.vf_clip, c.vf_clip)
            loss = jnp.maximum(loss, jnp.square(clipped - row.target))
        return 0.5 * loss.mean(-1)

    def entropy(self, pi: PyTree, row: PPORow) -> tuple[Scalar, Array, dict[str, PyTree]]:
        """S [W], the sum of the entropies of an action's parts, weighted by kind; how far parts are below the floor of
        their kind [W]; and the entropies as metrics, by part the mean over its elements that matter."""
        c, dist, elements = self.config, self.bound.dist, self.bound.elements
        entropy = dist.entropy(pi)
        relevant = elements.relevance(row.action, row.mask)
        parts = elements.split(elements.flat(entropy))  # [W, M] of each
        matters = {} if relevant is None else elements.split(relevant.astype(jnp.float32))
        weight = {"discrete": c.ent_discrete, "continuous": c.ent_continuous}
        floor = {"discrete": c.ent_floor_discrete, "continuous": c.ent_floor_continuous}
        bonus, total = 0.0, 0.0
        shortfall = jnp.zeros(row.advantage.shape[0])
        metrics = {}
        for name, kind in elements.kinds.items():
            count = jnp.full(1, parts[name].shape[-1]) if relevant is None else matters[name].sum(-1)
            part = parts[name].sum(-1) if relevant is None else (parts[name] * matters[name]).sum(-1)
            mean = part / jnp.maximum(count, 1.0)
            bonus, total = bonus + weight[kind] * part, total + part
            if (least := floor[kind]) is not None:
                shortfall = shortfall + jnp.where(count > 0, jax.nn.relu(least - mean), 0.0)
            if elements.hybrid:
                metrics[f"entropy/{name}"] = mean
        return bonus, shortfall, metrics | {"entropy": total}

    def outputs(self, params: PyTree, row: PPORow, knobs: Knobs) -> tuple[PyTree, dict[str, Array]]:
        """The parameters of pi(. | s), with gradients between kinds of actions balanced where that is asked for, and
        the norms of those gradients."""
        head, kinds = self.bound.actor.apply(params["actor"], row.obs), self.bound.head_kinds
        log_std = params.get("log_std", FIXED)
        if kinds is None:
            return self.bound.dist.params(head, log_std, row.mask), {}
        fixed = jax.lax.stop_gradient(log_std)

        def surrogate(head: Array) -> Array:
            return self.policy_loss(self.bound.dist.params(head, fixed, row.mask), row, knobs)[0]

        metrics = balance.measure(surrogate, head, kinds)
        return self.bound.dist.params(balance.scale(head, kinds, knobs.balance), log_std, row.mask), metrics

    def update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """Algorithm 1 from its batch on: advantages over the whole of it, then epochs of minibatches."""
        c = self.config
        state, packed, knobs, metrics = self.prepare(state, batch)

        def loss(params: PyTree, rows: PPORow, norms: PyTree) -> tuple[Array, dict[str, Array]]:
            return self.loss(params, rows, knobs.replace(balance=balance.factors(norms, c.balance_warmup)))

        model, norms, means = self.descend(
            state,
            packed,
            loss,
            epochs=c.epochs,
            size=self.in_rows(c.minibatch_size, batch),
            micro=None if c.micro_batch_size is None else self.in_rows(c.micro_batch_size, batch),
            target_kl=c.target_kl,
            memory=state.aux.get("balance"),
            follow=balance.follow,
        )
        metrics |= means | {"clip_eps": knobs.clip_eps, "ent_coef": knobs.ent_coef}
        aux = dict(state.aux)
        if "kl_coef" in aux:
            metrics["kl_coef"] = aux["kl_coef"]
            aux["kl_coef"] = adapt(knobs.kl_coef, metrics["approx_kl"], c.kl_target)
        if "balance" in aux:
            aux["balance"] = norms
            metrics |= balance.report(norms, c.balance_warmup, metrics)
        norm = self.updated_norm(state, batch)  # after the epochs: log-probabilities use the rollout's statistics
        return state.replace(models={"policy": model}, norm=norm, aux=aux), metrics

    def prepare(
        self, state: State, batch: Batch, values: tuple[Array, Array] | None = None
    ) -> tuple[State, RowMatrix, Knobs, dict[str, Array]]:
        """What the epochs work on: the batch as rows with advantages, what the loss holds fixed, and the state with its
        reward statistics and component weights brought up to date. `values` [T, B, K] of rows and of their successors
        are those of the critics now, unless they are given."""
        c, components = self.config, self.bound.components
        reward, factors, state = components.rewards(c, state, batch)
        rows, metrics = self.advantages(state, batch, reward, factors, values)
        packed = self.pack(rows, batch)
        weights, state = components.weights(c.reward, state, packed, rows, batch.valid, factors, self.log_prob)
        knobs = self.knobs(state, weights)
        if c.normalize_advantage:
            stats = RunningStats.of(rows.advantage @ weights, batch.valid)
            knobs = knobs.replace(shift=stats.mean, scale=stats.std() + 1e-8)
        return state, packed, knobs, metrics | components.report(weights)

    def advantages(
        self, state: State, batch: Batch, reward: Array, factors: Array, values: tuple[Array, Array] | None = None
    ) -> tuple[PPORow, dict[str, Array]]:
        """The batch as rows to learn from, and how well the critics explain their targets. `reward` [T, B, K] and
        `factors` [K] as `Components.rewards` gives them."""
        c, components, params = self.config, self.bound.components, state.models["policy"].params
        value, next_value = values or self.values(params, state, batch, self.encode(params, state, batch))
        done = (batch.terminated | batch.truncated)[..., None]
        unit = 1.0  # of the critics' numbers in those of the advantages
        match c.returns:
            case "gae":  # eq. 11 and 12
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
        total_target, total_value = ((x * unit / factors).sum(-1) for x in (target, value))
        metrics = {"explained_variance": explained(total_target, total_value, batch.valid)}
        metrics |= components.explained(target, value, batch.valid)
        rows = PPORow(
            obs=self.features(batch.obs, state.norm.get("obs")),
            action=batch.action,
            log_prob=batch.extras["log_prob"],
            advantage=components.advantages(advantage, batch.valid),
            target=target,
            value=value,
            mask=batch.extras.get("mask"),
            task=components.task(advantage, factors),
        )
        return rows, metrics

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

    def log_prob(self, params: PyTree, row: PPORow) -> Array:
        """log pi(a | s) of whole actions [W], those of sequences side by side."""
        row = self.unrolled(params, row)[0]
        out = self.policy(params, row.obs, row.mask)
        return self.joint_log_prob(self.log_probs(out, row.action, row.mask)[0])

    def gradient(self, state: State, batch: Batch) -> Array:
        """The gradient of the loss over the whole batch, as one vector: what a full-batch update would begin with."""
        _, packed, knobs, _ = self.prepare(state, batch)
        flat, unravel = ravel_pytree(state.models["policy"].params)
        words = draw_words(jax.random.key(0))
        whole = Minibatch(packed, words, jnp.int32(0), jnp.asarray(packed.count), packed.matrix.shape[0], False, None)

        def loss(flat: Array, row: PyTree) -> tuple[Array, dict[str, Array]]:
            return self.row_loss(lambda params, rows: self.loss(params, rows, knobs), unravel(flat), row)

        return whole.gradient(loss, flat)[0]


class PPOBinding(ComponentBinding):
    """What PPO is bound to: also the kinds of the policy's outputs, where their gradients are balanced."""

    def __init__(self, spec: Spec, network: NetworkConfig, c: PPOConfig):
        super().__init__(spec, network, c, c.ratio)
        kinds = balance.head_kinds(self.elements)
        self.head_kinds = kinds if c.balance_gradients and len(set(kinds.tolist())) == 2 else None
