"""Importance-weighted actor-learner architecture.

Espeholt et al. 2018 (arXiv 1802.01561): an actor-critic whose batches may come from an older policy; V-trace
(`returns.vtrace`, eq. 1 and section 4.2) corrects values and policy gradient for the difference. On batches of the
current policy it is advantage actor-critic with lambda-returns.
"""

import jax
import jax.numpy as jnp

from regimen.algorithms.actor_critic import ActorCritic
from regimen.algorithms.base import register
from regimen.algorithms.components import ComponentBinding, Components
from regimen.algorithms.shared import explained, scheduled
from regimen.config.algorithms.impala import IMPALAConfig
from regimen.normalize import RunningStats
from regimen.returns import vtrace
from regimen.types import Array, Batch, Model, PyTree, Record, Spec, State, pytree_dataclass


@pytree_dataclass
class VTraceRow(Record):
    """One row of a minibatch. K is the number of critic heads."""

    obs: PyTree  # [D] normalised, or parts that an encoder makes it of
    action: PyTree
    behaviour: Array  # [] log-probability under the policy that acted
    corrected: Array  # [] and under the one V-trace evaluates
    advantage: Array  # [] normalised where that is asked for, times the clipped importance weight
    target: Array  # [K]
    mask: Array | None


@pytree_dataclass
class ComponentRow(Record):
    """One row that the weights of the reward's components are learned on."""

    obs: PyTree  # [D] normalised, or parts that an encoder makes it of
    action: PyTree
    weight: Array  # [] clipped importance weight
    advantage: Array  # [K]
    task: Array | None  # [] advantage of the task's own return, where weights are learned
    mask: Array | None


@register
class IMPALA(ActorCritic):
    """IMPALA: an actor-critic with V-trace, one pass over each batch, however old the policy that collected it."""

    config_class = IMPALAConfig
    asynchronous = True
    varies_together = True
    by_env = Components.by_env

    def build(self, spec: Spec) -> ComponentBinding:
        return ComponentBinding(spec, self.network, self.config)

    def init(self, key: Array) -> State:
        state = super().init(key)
        norm, aux = self.bound.components.init(self.config, self.bound.spec.columns)
        return state.replace(norm=state.norm | norm, aux=state.aux | aux)

    @property
    def max_lag(self) -> int | None:
        return self.config.max_lag

    def policy_loss(self, log_prob: Array, row: VTraceRow) -> tuple[Array, dict[str, Array]]:
        """-rho A log pi [W]; the importance weight is part of the advantage already."""
        return -log_prob * row.advantage, {}

    def entropy(self, out: PyTree, row: VTraceRow) -> Array:
        """The entropy of the elements of an action that matter [W]."""
        elements = self.bound.elements
        entropy, relevant = elements.flat(self.bound.dist.entropy(out)), elements.relevance(row.action, row.mask)
        return (entropy if relevant is None else entropy * relevant).sum(-1)

    def loss(self, params: PyTree, row: VTraceRow, ent_coef: Array) -> tuple[Array, dict[str, Array]]:
        """Policy loss + vf_coef (V - v_s)^2 / 2 - ent_coef H per row [W], and its parts."""
        out = self.policy(params, row.obs, row.mask)
        log_prob = self.joint_log_prob(self.log_probs(out, row.action, row.mask)[0])
        policy_loss, metrics = self.policy_loss(log_prob, row)
        value = self.bound.critic.apply(params["critic"], row.obs)
        value_loss = 0.5 * jnp.square(value - row.target).mean(-1)
        entropy = self.entropy(out, row)
        loss = policy_loss + self.config.vf_coef * value_loss - ent_coef * entropy
        log_ratio = log_prob - row.behaviour
        kl = jnp.exp(jnp.minimum(log_ratio, 20.0)) - 1 - log_ratio
        metrics |= {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss}
        return loss, metrics | {"entropy": entropy, "approx_kl": kl}

    def passes(self) -> int:
        """The number of passes over each batch."""
        return 1

    def target_policy(self, state: State) -> PyTree:
        """Parameters of the policy whose values V-trace estimates."""
        return state.models["policy"].params

    def weighted_log_prob(self, params: PyTree, row: ComponentRow) -> Array:
        """rho log pi(a | s) of whole actions [W], whose gradient is that of the current policy."""
        row = self.unrolled(params, row)[0]
        out = self.policy(params, row.obs, row.mask)
        return row.weight * self.joint_log_prob(self.log_probs(out, row.action, row.mask)[0])

    def rows(self, state: State, batch: Batch) -> tuple[VTraceRow, dict[str, Array], State]:
        """The batch as rows to learn from [T, B, ...], what the correction did, and the state with its reward
        statistics and component weights brought up to date."""
        c, params, mask = self.config, state.models["policy"].params, batch.extras.get("mask")
        components = self.bound.components
        reward, factors, state = components.rewards(c, state, batch)
        x = self.encode(params, state, batch)
        value, next_value = self.values(params, state, batch, x)
        policy = self.target_policy(state)
        out = self.policy(policy, x if policy is params else self.encode(policy, state, batch), mask)
        corrected = self.joint_log_prob(self.log_probs(out, batch.action, mask)[0])
        behaviour = self.joint_log_prob(batch.extras["log_prob"])
        log_rho = corrected - behaviour if c.correction == "vtrace" else jnp.zeros_like(corrected)
        clips = (c.trace_lambda, c.rho_clip, c.c_clip, c.pg_rho_clip)
        done = batch.terminated | batch.truncated

        def of_head(reward: Array, value: Array, next_value: Array) -> tuple[Array, Array, Array]:
            return vtrace(log_rho, reward, value, next_value, done, c.gamma, *clips, batch.length)

        target, advantages, weight = jax.vmap(of_head, -1, (-1, -1, None))(reward, value, next_value)
        task = components.task(advantages, factors)
        advantages = components.advantages(advantages, batch.valid)
        obs = self.features(batch.obs, state.norm.get("obs"))
        learned = ComponentRow(obs, batch.action, weight, advantages, task, mask)
        packed = self.pack(learned, batch)
        shares, state = components.weights(
            c.reward, state, packed, learned, batch.valid, factors, self.weighted_log_prob
        )
        advantage = advantages @ shares
        if c.normalize_advantage:  # before the weight: what is subtracted must be weighted too
            stats = RunningStats.of(advantage, batch.valid)
            advantage = (advantage - stats.mean) / (stats.std() + 1e-8)
        rho = RunningStats.of(jnp.exp(jnp.minimum(log_rho, 20.0)), batch.valid)
        clipped = RunningStats.of((log_rho > jnp.log(c.rho_clip)).astype(jnp.float32), batch.valid)
        total, guess = ((x / factors).sum(-1) for x in (target, value))
        metrics = {
            "explained_variance": explained(total, guess, batch.valid),
            "rho_mean": rho.mean,
            "rho_clipped": clipped.mean,
        }
        metrics |= components.explained(target, value, batch.valid) | components.report(shares)
        return VTraceRow(obs, batch.action, behaviour, corrected, weight * advantage, target, mask), metrics, state

    def update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """V-trace over the whole batch, then passes over minibatches."""
        c = self.config
        rows, metrics, state = self.rows(state, batch)
        ent_coef = scheduled(c.ent_coef, c.ent_end, c.ent_schedule, self.horizon, state.clock)
        model, _, means = self.descend(
            state,
            self.pack(rows, batch),
            lambda params, rows, _: self.loss(params, rows, ent_coef),
            epochs=self.passes(),
            size=self.in_rows(c.minibatch_size, batch),
        )
        models = {"policy": self.with_target(model, state)}
        state = state.replace(models=models, norm=self.updated_norm(state, batch))
        return state, metrics | means | {"ent_coef": ent_coef}

    def with_target(self, model: Model, state: State) -> Model:
        """The model after an update, its target copy brought up to date where there is one."""
        return model
