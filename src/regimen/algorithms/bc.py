"""Behaviour cloning: supervised learning of the actions in a dataset, by maximum likelihood.

The oldest form of imitation (Pomerleau 1989, "ALVINN"), and the baseline that offline reinforcement learning has to
beat. Any action space that has a distribution; continuous actions by a squashed Gaussian whose deviation depends on the
observation. Rewards are not looked at.
"""

import jax
import jax.numpy as jnp
import optax

from regimen import randomness
from regimen.algorithms.base import register
from regimen.algorithms.off_policy import OffPolicy, OffPolicyBinding, learn, move
from regimen.algorithms.shared import optimizer, scheduled
from regimen.config.algorithms.bc import BCConfig
from regimen.normalize import RunningStats
from regimen.sources.dataset import Data
from regimen.sources.replay import NStepTransitions
from regimen.types import Array, Clock, Model, PyTree, Spec, State


@register
class BC(OffPolicy):
    """Behaviour cloning: a policy that imitates the actions of a dataset."""

    config_class = BCConfig
    online = False

    @property
    def gamma(self) -> float:
        return 0.99  # nothing is learned from rewards

    def build(self, spec: Spec) -> OffPolicyBinding:
        return OffPolicyBinding(spec, self.network)

    def init(self, key: Array) -> State:
        actor_key, root = randomness.split(key)
        params = self.bound.actor.init(actor_key)
        model = Model(params, optimizer(self.config).init(params))
        return State({"actor": model}, self.first_norm(), root, Clock.zero(), {})

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        dist = self.bound.dist
        out = self.distribution(params["actor"], self.features(obs, params.get("norm")), mask)
        return dist.mode(out) if greedy else dist.sample(out, noise), carry, {}

    def loss(
        self, params: PyTree, sample: NStepTransitions, norm: RunningStats | None
    ) -> tuple[Array, dict[str, Array]]:
        """-E[log pi(a | s)] - ent_coef E[H(pi(. | s))], over the elements of the action that matter."""
        out = self.distribution(params, self.features(sample.obs, norm), sample.mask)
        log_prob = self.log_likelihood(out, sample.action, sample.mask).mean()
        entropy = self.total(self.bound.dist.entropy(out), sample.action, sample.mask).mean()
        loss = -log_prob - self.config.ent_coef * entropy
        return loss, {"loss": loss, "log_prob": log_prob, "entropy": entropy}

    def fit(self, state: State, data: Data, steps: int) -> tuple[State, dict[str, Array]]:
        """The state after `steps` gradient steps on a dataset, and means of their metrics."""
        c, norm = self.config, state.norm.get("obs")
        lr = scheduled(c.lr, c.lr_end, c.lr_schedule, self.horizon, state.clock)
        root = jax.random.fold_in(state.key, state.clock.updates)

        def step(i: Array, model: Model) -> tuple[Model, dict[str, Array]]:
            sample = data.sample(jax.random.fold_in(root, i), c.batch_size)
            grads, metrics = jax.grad(self.loss, has_aux=True)(model.params, sample, norm)
            metrics["grad_norm"] = optax.global_norm(grads)
            return move(model, optimizer(c), grads, lr), metrics

        model, totals = learn(step, state.models["actor"], steps)
        metrics = {name: x / steps for name, x in totals.items()}
        metrics |= {"lr": lr, "gradient_steps": jnp.float32(steps)}
        return state.replace(models={"actor": model}), metrics
