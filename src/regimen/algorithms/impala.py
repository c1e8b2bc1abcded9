"""Importance-weighted actor-learner architecture.

Espeholt et al. 2018 (arXiv 1802.01561): an actor-critic whose batches may come from an older policy; V-trace
(`returns.vtrace`, eq. 1 and section 4.2) corrects values and policy gradient for the difference. On batches of the
current policy it is advantage actor-critic with lambda-returns.
"""

from __future__ import annotations

import jax.numpy as jnp

from regimen.algorithms.actor_critic import ActorCritic
from regimen.algorithms.base import register
from regimen.algorithms.shared import explained, scheduled
from regimen.config.algorithms.impala import IMPALAConfig
from regimen.normalize import RunningStats
from regimen.returns import vtrace
from regimen.types import Array, Batch, Model, PyTree, Record, State, pytree_dataclass


@pytree_dataclass
class VTraceRow(Record):
    """One row of a minibatch."""

    obs: Array  # [D] normalised
    action: PyTree
    behaviour: Array  # [] log-probability under the policy that acted
    corrected: Array  # [] and under the one V-trace evaluates
    advantage: Array  # [] normalised where that is asked for, times the clipped importance weight
    target: Array  # []
    mask: Array | None


@register
class IMPALA(ActorCritic):
    """V-trace actor-critic: one pass over each batch, however old the policy that collected it."""

    config_class = IMPALAConfig
    asynchronous = True
    varies_together = True

    @property
    def max_lag(self) -> int | None:
        return self.config.max_lag

    # --- losses ------------------------------------------------------------------------------------------------------

    def policy_loss(self, log_prob: Array, row: VTraceRow) -> tuple[Array, dict[str, Array]]:
        """-rho A log pi [W]; the importance weight is part of the advantage already."""
        return -log_prob * row.advantage, {}

    def entropy(self, out: PyTree, row: VTraceRow) -> Array:
        """Of the elements that matter [W]."""
        elements = self.bound.elements
        entropy, relevant = elements.flat(self.bound.dist.entropy(out)), elements.relevance(row.action, row.mask)
        return (entropy if relevant is None else entropy * relevant).sum(-1)

    def loss(self, params: PyTree, row: VTraceRow, ent_coef: Array) -> tuple[Array, dict[str, Array]]:
        """Policy loss + vf_coef (V - v_s)^2 / 2 - ent_coef H per row [W], and its parts."""
        out = self.policy(params, row.obs, row.mask)
        log_prob = self.joint_log_prob(self.log_probs(out, row.action, row.mask)[0])
        policy_loss, metrics = self.policy_loss(log_prob, row)
        value = self.bound.critic.apply(params["critic"], row.obs)[..., 0]
        value_loss = 0.5 * jnp.square(value - row.target)
        entropy = self.entropy(out, row)
        loss = policy_loss + self.config.vf_coef * value_loss - ent_coef * entropy
        log_ratio = log_prob - row.behaviour
        kl = jnp.exp(jnp.minimum(log_ratio, 20.0)) - 1 - log_ratio
        metrics |= {"loss": loss, "policy_loss": policy_loss, "value_loss": value_loss}
        return loss, metrics | {"entropy": entropy, "approx_kl": kl}

    # --- update ------------------------------------------------------------------------------------------------------

    def passes(self) -> int:
        """The number of passes over each batch."""
        return 1

    def target_policy(self, state: State) -> PyTree:
        """Parameters of the policy whose values V-trace estimates."""
        return state.models["policy"].params

    def rows(self, state: State, batch: Batch) -> tuple[VTraceRow, dict[str, Array]]:
        """The batch as rows to learn from [T, B, ...], and what the correction did."""
        c, params, mask = self.config, state.models["policy"].params, batch.extras.get("mask")
        x = self.encode(params, state, batch)
        value, next_value = self.values(params, state, batch, x)
        policy = self.target_policy(state)
        out = self.policy(policy, x if policy is params else self.encode(policy, state, batch), mask)
        corrected = self.joint_log_prob(self.log_probs(out, batch.action, mask)[0])
        behaviour = self.joint_log_prob(batch.extras["log_prob"])
        log_rho = corrected - behaviour if c.correction == "vtrace" else jnp.zeros_like(corrected)
        target, advantage, weight = vtrace(
            log_rho,
            batch.reward.sum(-1),
            value[..., 0],
            next_value[..., 0],
            batch.terminated | batch.truncated,
            c.gamma,
            c.trace_lambda,
            c.rho_clip,
            c.c_clip,
            c.pg_rho_clip,
            batch.length,
        )
        if c.normalize_advantage:  # before the weight: what is subtracted must be weighted too
            stats = RunningStats.of(advantage, batch.valid)
            advantage = (advantage - stats.mean) / (stats.std() + 1e-8)
        rho = RunningStats.of(jnp.exp(jnp.minimum(log_rho, 20.0)), batch.valid)
        clipped = RunningStats.of((log_rho > jnp.log(c.rho_clip)).astype(jnp.float32), batch.valid)
        metrics = {
            "explained_variance": explained(target, value[..., 0], batch.valid),
            "rho_mean": rho.mean,
            "rho_clipped": clipped.mean,
        }
        obs = self.features(batch.obs, state.norm.get("obs"))
        return VTraceRow(obs, batch.action, behaviour, corrected, weight * advantage, target, mask), metrics

    def update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """V-trace over the whole batch, then passes over minibatches."""
        c = self.config
        rows, metrics = self.rows(state, batch)
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
