"""Asynchronous proximal policy optimisation.

PPO's clipped surrogate on batches of older policies, with V-trace values and a target policy in between (Luo et al.
2020, "IMPACT", arXiv 1912.00167): mu acted, pi_target is a recent copy of the learner's policy, and what is clipped is
the ratio pi / pi_target, reached as min(mu / pi_target, is_clip) * pi / mu. Several passes over a batch then start near
ratio 1 even when mu is old.
"""

import jax
import jax.numpy as jnp

from regimen.algorithms.base import register
from regimen.algorithms.impala import IMPALA, VTraceRow
from regimen.config.algorithms.appo import APPOConfig
from regimen.types import Array, Model, PyTree, State


@register
class APPO(IMPALA):
    """APPO: clipped policy gradient with V-trace and a target policy."""

    config_class = APPOConfig
    varies_together = True

    def init(self, key: Array) -> State:
        state = super().init(key)
        model = state.models["policy"]
        return state.replace(models={"policy": model.replace(target=jax.tree.map(jnp.copy, model.params))})

    def passes(self) -> int:
        return self.config.epochs

    def target_policy(self, state: State) -> PyTree:
        return state.models["policy"].target

    def policy_loss(self, log_prob: Array, row: VTraceRow) -> tuple[Array, dict[str, Array]]:
        """-min(r A, clip(r) A) [W], r = min(mu / pi_target, is_clip) pi / mu."""
        c = self.config
        weight = jnp.minimum(jnp.exp(jnp.minimum(row.behaviour - row.corrected, 20.0)), c.is_clip)
        ratio = weight * jnp.exp(jnp.minimum(log_prob - row.behaviour, 20.0))
        clipped = jnp.clip(ratio, 1 - c.clip_eps, 1 + c.clip_eps)
        loss = -jnp.minimum(ratio * row.advantage, clipped * row.advantage)
        return loss, {"clip_fraction": (jnp.abs(ratio - 1) > c.clip_eps).astype(jnp.float32)}

    def with_target(self, model: Model, state: State) -> Model:
        """Every `target_every` updates the target policy becomes the current one."""
        due = state.clock.updates_modulo(self.config.target_every) == self.config.target_every - 1
        return model.replace(target=jax.tree.map(lambda a, b: jnp.where(due, a, b), model.params, model.target))
