"""Conservative Q-learning.

Kumar et al. 2020 (arXiv 2006.04779): SAC on a fixed dataset, whose critics are pushed down where the data has no
actions, so that the policy cannot exploit what they have never seen. The conservative term of each critic is

    alpha (E_s[log int exp Q(s, a) da] - E_(s, a)[Q(s, a)])      (CQL(H), eq. 4)

beside 1/2 (Q - target)^2. Over discrete choices the integral is an exact sum; over numbers it is estimated from actions
drawn uniformly, from the policy at s and from the policy at s', each weighted by its density (appendix F). Optional:
a multiplier that holds the term at a threshold (Lagrange, section 3.2), a warm start of the policy by behaviour
cloning, and the largest of several Q in the target. Given an environment it goes on online (`engines/offline.py`).
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen.algorithms.base import register
from regimen.algorithms.branches import BranchPolicy
from regimen.algorithms.off_policy import mean, move
from regimen.algorithms.sac import SAC, Metrics, Models, SACBinding
from regimen.config.algorithms.cql import CQLConfig
from regimen.errors import ConfigError
from regimen.normalize import RunningStats
from regimen.sources.replay import NStepTransitions
from regimen.types import Array, Model, PyTree, Spec, State, pytree_dataclass

LARGEST = 1e6  # of the Lagrange multiplier


@pytree_dataclass
class CQLTransitions(NStepTransitions):
    """Transitions, and what the conservative term compares them with."""

    proposals: BranchPolicy | None = None  # [J, B, ...] actions that are not from the data
    weight_q: Array | None = None  # of the conservative term
    cloning: Array | None = None  # whether the policy is still being cloned


@register
class CQL(SAC):
    """CQL: SAC with a conservative critic, for learning from a dataset."""

    config_class = CQLConfig
    online = False
    asynchronous = False

    @property
    def reward_scale(self) -> float:
        return self.config.reward_scale

    def build(self, spec: Spec) -> SACBinding:
        binding = super().build(spec)
        if not binding.branches.exact:
            raise ConfigError(
                f"algo.exact_choices: the action has {binding.branches.number} joint choices, and the conservative "
                "term sums over them all; allow so many, or use another algorithm"
            )
        return binding

    def init(self, key: Array) -> State:
        state = super().init(key)
        if self.config.lagrange is None:
            return state
        log = {"log": jnp.log(jnp.full(1, self.config.min_q_weight, jnp.float32))}
        return state.replace(models=state.models | {"lagrange": Model(log, self.optimizer().init(log))})

    def draw(self, params: PyTree, x: PyTree, key: Array, mask: Array | None, n: int) -> BranchPolicy:
        """What the policy would do in states x [B, ...], `n` times over: numbers [n, B, X]."""
        lead = (n, *self.bound.inputs.lead(x))
        repeat = jax.tree.map(lambda a: jnp.broadcast_to(a, (n, *a.shape)), (self.distribution(params, x, mask), mask))
        return self.bound.branches.policy(repeat[0], self.bound.dist.noise(key, lead), repeat[1])

    def uniform(self, key: Array, like: BranchPolicy) -> BranchPolicy:
        """Actions with the same choices and with numbers from anywhere in the space; N(0, 1) where it has no bounds."""
        branches, key, other = self.bound.branches, *jax.random.split(key)
        leaves: list[Any] = list(branches.continuous.values())
        squashed = np.concatenate([d.squashed for d in leaves])
        normal = jax.random.normal(other, like.numbers.shape)
        numbers = jnp.where(squashed, jax.random.uniform(key, like.numbers.shape, minval=-1.0), normal)
        density = jnp.where(squashed, -math.log(2.0), -0.5 * jnp.square(numbers) - 0.5 * math.log(2 * math.pi))
        density = density[..., None, :] * branches.matters[:, branches.rows :]
        log_prob = jnp.concatenate([like.log_prob[..., : branches.rows], density], axis=-1)
        return like.replace(numbers=numbers, log_prob=log_prob)

    def proposals(
        self, params: PyTree, sample: NStepTransitions, x: PyTree, next_x: PyTree, key: Array
    ) -> BranchPolicy:
        """Actions at every state: uniform, of the policy there, and of the policy at the successor [J, B, ...]."""
        keys, n = jax.random.split(key, 3), self.config.cql_samples
        if not self.bound.branches.size:  # choices only: the sum over them is exact
            return self.draw(params, x, keys[0], sample.mask, 1)
        here = self.draw(params, x, keys[0], sample.mask, n)
        there = self.draw(params, next_x, keys[1], sample.next_mask, n)
        all_three = self.uniform(keys[2], here), here, there
        legal = here.log_prob[..., : self.bound.branches.rows]  # choices are judged where they are made: at x
        log_prob = [jnp.concatenate([legal, p.log_prob[..., self.bound.branches.rows :]], axis=-1) for p in all_three]
        numbers = jnp.concatenate([p.numbers for p in all_three])
        return here.replace(numbers=numbers, log_prob=jnp.concatenate(log_prob))

    def log_integral(self, params: PyTree, x: PyTree, proposals: BranchPolicy) -> Array:
        """log int exp Q_i(s, a) da of both critics [2, B]: a sum over choices, a weighted mean over drawn numbers."""
        rows, number = self.bound.branches.rows, proposals.numbers.shape[0]
        q = self.branch_values(params, x, proposals)  # [2, J, B, N]
        if self.config.importance_sampling:
            q = q - proposals.log_prob[..., rows:].sum(-1)
        legal = proposals.log_prob[..., :rows].sum(-1) > -1e8  # what a mask forbids has a logit of -1e9
        q = jnp.where(legal, q, -jnp.inf)
        return jax.nn.logsumexp(q, axis=(1, 3)) - math.log(number)

    def critic_loss(self, params: PyTree, sample: CQLTransitions, x: PyTree, target: Array) -> tuple[Array, Metrics]:
        """The critics' loss and alpha (log int exp Q - Q), summed over both (eq. 4)."""
        loss, metrics = super().critic_loss(params, sample, x, target)
        assert sample.proposals is not None and sample.weight_q is not None
        gap = self.log_integral(params, x, sample.proposals) - self.q_of(params, x, sample.action)  # [2, B]
        threshold = 0.0 if self.config.lagrange is None else self.config.lagrange
        conservative = sample.weight_q * (mean(gap.T, sample.weight) - threshold).sum()
        metrics |= {"cql_loss": conservative, "cql_gap": mean(gap.mean(0), sample.weight)}
        return loss + conservative, metrics

    def target(self, models: Models, sample: NStepTransitions, x: PyTree, key: Array) -> Array:
        """r + gamma V(s') [B]; V without the entropy of the policy unless `backup_entropy`, so that Q is a return."""
        c, alpha = self.config, models["alpha"].params["log"]
        if c.max_q_backup:
            policy = self.draw(models["actor"].params, x, key, sample.next_mask, c.cql_samples)
            q = self.values(models["critic"].target, x, policy)
            value = jnp.where(policy.weight > 0, q, -jnp.inf).max((0, 2))
        else:
            policy = self.policy(models["actor"].params, x, key, sample.next_mask)
            q = self.values(models["critic"].target, x, policy)
            value = self.soft(alpha if c.backup_entropy else jnp.full_like(alpha, -jnp.inf), policy, q)
        return sample.reward + sample.discount * value

    def policy_loss(self, params: PyTree, models: Models, sample: CQLTransitions, x: PyTree, key: Array):
        """SAC's; during the warm start with the likelihood of the data's actions in the place of Q."""
        loss, policy = super().policy_loss(params, models, sample, x, key)
        if not self.config.bc_steps or sample.cloning is None:
            return loss, policy
        out = self.distribution(params, x, sample.mask)
        likelihood = self.log_likelihood(out, sample.action, sample.mask)
        entropy_only = self.soft(models["alpha"].params["log"], policy, jnp.zeros(()))
        cloning = -mean(entropy_only + likelihood, sample.weight)
        return jnp.where(sample.cloning, cloning, loss), policy

    def gradient_step(
        self, models: Models, sample: NStepTransitions, norm: RunningStats | None, keys: list[Array], number: Array
    ) -> tuple[Models, Metrics]:
        """SAC's, on transitions that carry the actions to be conservative about; then the multiplier."""
        c = self.config
        x, next_x = self.features(sample.obs, norm), self.features(sample.next_obs, norm)
        proposals = self.proposals(models["actor"].params, sample, x, next_x, jax.random.fold_in(keys[0], 1))
        weight = jnp.asarray(c.min_q_weight, jnp.float32)
        if c.lagrange is not None:
            weight = jnp.exp(models["lagrange"].params["log"][0])
        fields = {f.name: getattr(sample, f.name) for f in dataclasses.fields(sample)}
        fields["reward"] = sample.reward * self.reward_scale
        sample = CQLTransitions(**fields, proposals=proposals, weight_q=weight, cloning=number < c.bc_steps)
        models, metrics = super().gradient_step(models, sample, norm, keys, number)
        metrics["min_q_weight"] = weight
        if c.lagrange is not None:  # up where the critics are less conservative than the threshold, down where more
            slope = -weight * (metrics["cql_gap"] - c.lagrange)
            lr = c.lr if c.critic_lr is None else c.critic_lr
            multiplier = move(models["lagrange"], self.optimizer(), {"log": slope[None]}, lr)
            capped = {"log": jnp.minimum(multiplier.params["log"], math.log(LARGEST))}
            models = models | {"lagrange": multiplier.replace(params=capped)}
        return models, metrics
