"""Soft actor-critic.

Haarnoja et al. 2018 (arXiv 1812.05905): off-policy, twin critics with slow targets, the entropy of the policy held at a
target by learned temperatures. Discrete actions as in Christodoulou 2019 (arXiv 1910.07207), by exact expectations;
hybrid ones as in Delalleau et al. 2019 (arXiv 1912.11077), with one temperature for each part and a critic that sees
only what matters (`algorithms/branches.py`). The replay is `sources/replay.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax import lax

from regimen import randomness, spaces
from regimen.algorithms.base import register
from regimen.algorithms.branches import Branches, BranchPolicy
from regimen.algorithms.off_policy import OffPolicy, OffPolicyBinding, learn, mean, move
from regimen.algorithms.shared import optimizer
from regimen.axes import device_count, mean_over_devices, own_key, sync
from regimen.config.algorithms.sac import SACConfig
from regimen.config.schema import NetworkConfig
from regimen.errors import ConfigError
from regimen.exploration import Pink
from regimen.networks import make_encoded
from regimen.normalize import RunningStats
from regimen.sources.dataset import Data
from regimen.sources.replay import NStepTransitions, Replay
from regimen.types import Array, Batch, Clock, Model, PyTree, Spec, State, hold

Models = dict[str, Model]
Metrics = dict[str, Array]
Draw = Callable[[Array], NStepTransitions]


@register
class SAC(OffPolicy):
    """SAC: a policy, twin critics with slow copies, and a temperature for each part of an action."""

    config_class = SACConfig
    asynchronous = True
    by_env = ()  # several devices have a replay of their own environments each, and one policy
    varies_together = True
    counting = ("update_ratio",)

    def build(self, spec: Spec) -> SACBinding:
        return SACBinding(spec, self.network, self.config)

    def init(self, key: Array) -> State:
        bound, c = self.bound, self.config
        actor_key, root, *keys = randomness.split(key, 4)  # two critics
        actor = bound.actor.init(actor_key)
        critics = [bound.critic.init(k) for k in keys]  # one by one: QR under vmap deadlocks
        critic = jax.tree.map(lambda *x: jnp.stack(x), *critics)
        alpha = {"log": jnp.full(len(bound.branches.names), math.log(c.alpha), jnp.float32)}
        models = {
            "actor": Model(actor, self.optimizer().init(actor)),
            "critic": Model(critic, self.optimizer().init(critic), critic),
            "alpha": Model(alpha, self.optimizer().init(alpha)),
        }
        aux: dict[str, PyTree] = {"owed": jnp.zeros(()), "gradient_steps": jnp.int32(0)}
        replay = ()
        if bound.replay is not None:  # not where a policy is only loaded
            aux["ring"] = bound.replay.ring()
            replay = bound.empty_replay()
        return State(models, self.first_norm(), root, Clock.zero(), aux, replay)

    def optimizer(self) -> optax.GradientTransformation:
        return optimizer(self.config, eps=1e-8)

    def actor_params(self, state: State) -> PyTree:
        """The policy, its normaliser, and whether it is still warming up."""
        warming = state.clock.read("steps") < 1.0 * self.config.learning_starts  # it may have more than 32 bits
        return super().actor_params(state) | {"random": warming.astype(jnp.float32)}

    def initial_carry(self, lead: tuple[int, ...]) -> PyTree:
        """The state of correlated exploration at an episode's start; white noise has none."""
        return () if self.bound.pink is None else self.bound.pink.start(lead)

    def noise(self, key: Array, shape: tuple[int, ...]) -> PyTree:
        noise, pink = {"white": self.bound.dist.noise(key, shape)}, self.bound.pink
        if pink is not None:
            noise["pink"] = jax.random.normal(jax.random.fold_in(key, 1), (*shape, len(pink.rho), pink.size))
        return noise

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        """Actions [..., *shape] as sampled and the exploration's carry; while warming up, uniform over the space."""
        dist = self.bound.dist
        x = self.features(obs, params.get("norm"))
        out = self.distribution(params["actor"], x, mask)
        if greedy:
            return dist.mode(out), carry, {}
        white = noise["white"]
        if self.bound.pink is not None:
            value, carry = self.bound.pink.step(carry, noise["pink"])
            white = self.bound.branches.with_numbers(white, value)
        action, lead = dist.sample(out, white), self.bound.inputs.lead(x)
        anything = self.bound.branches.uniform(white, mask, lead)
        return jax.tree.map(lambda a, b: jnp.where(params["random"] > 0, a, b), anything, action), carry, {}

    def policy(self, params: PyTree, x: PyTree, key: Array, mask: Array | None) -> BranchPolicy:
        """What the policy would do in states x [B, ...]: every branch with its probability, numbers sampled."""
        noise = self.bound.dist.noise(key, self.bound.inputs.lead(x))
        return self.bound.branches.policy(self.distribution(params, x, mask), noise, mask)

    def values(self, params: PyTree, x: PyTree, policy: BranchPolicy) -> Array:
        """The smaller of the two critics' Q of every branch [..., N]."""
        return self.branch_values(params, x, policy).min(0)

    def branch_values(self, params: PyTree, x: PyTree, policy: BranchPolicy) -> Array:
        """Both critics' Q of every branch [2, ..., N] in states x [B, ...]; the policy may have more axes in front."""
        lead, critic = policy.numbers.shape[:-1], self.bound.critic

        def one(params: PyTree, x: PyTree) -> Array:
            z = critic.embed(params, x)
            z = jnp.broadcast_to(z, (*lead, z.shape[-1]))
            return self.bound.branches.values(partial(critic.read, params), z, policy)

        return jax.vmap(one, (0, None))(params, x)

    def soft(self, log_alpha: Array, policy: BranchPolicy, q: Array) -> Array:
        """V = E_k[Q - sum_l alpha_l log pi_l], over the parts l that matter in branch k (eq. 3) [B]."""
        alpha = jnp.exp(log_alpha)[self.bound.branches.owner]  # [M]
        return (policy.weight * (q - (policy.log_prob * alpha).sum(-1))).sum(-1)

    def target(self, models: Models, sample: NStepTransitions, x: PyTree, key: Array) -> Array:
        """r + gamma V(s') from the slow critics (in eq. 5), over the steps that the sample spans [B]."""
        policy = self.policy(models["actor"].params, x, key, sample.next_mask)
        q = self.values(models["critic"].target, x, policy)
        return sample.reward + sample.discount * self.soft(models["alpha"].params["log"], policy, q)

    def q_of(self, params: PyTree, x: PyTree, action: PyTree) -> Array:
        """Both critics' Q of actions that were taken [2, B]."""
        inputs, output = self.bound.branches.critic_inputs(action)
        q = jax.vmap(self.bound.critic.beside, (0, None, None))(params, x, inputs)
        return q[..., 0] if output is None else (q * output).sum(-1)

    def critic_loss(self, params: PyTree, sample: NStepTransitions, x: PyTree, target: Array) -> tuple[Array, Metrics]:
        """1/2 (Q_i(s, a) - target)^2 (eq. 5), summed over the two critics, a mean over rows; and what it says of Q."""
        q = self.q_of(params, x, sample.action)
        loss = 0.5 * mean(jnp.square(q - target).sum(0), sample.weight)
        return loss, {"value_loss": loss, "q_mean": mean(q.mean(0), sample.weight)}

    def policy_loss(self, params: PyTree, models: Models, sample: NStepTransitions, x: PyTree, key: Array):
        """E_k[sum_l alpha_l log pi_l - min_i Q_i] (eq. 7 and 9), and the policy it was taken of."""
        policy = self.policy(params, x, key, sample.mask)
        q = self.values(models["critic"].params, x, policy)
        return -mean(self.soft(models["alpha"].params["log"], policy, q), sample.weight), policy

    def entropies(self, policy: BranchPolicy) -> tuple[Array, Array]:
        """Entropy of each part, and its target, as far as it matters [B, L] both."""
        branches, c = self.bound.branches, self.config
        target = jnp.full(policy.numbers.shape, c.target_entropy_continuous)
        if policy.options is not None:
            target = jnp.concatenate([c.target_entropy_discrete * policy.options, target], axis=-1)
        entropy = -jnp.einsum("bn,bnm->bm", policy.weight, policy.log_prob)
        matters = jnp.broadcast_to(policy.matters, policy.log_prob.shape).astype(jnp.float32)
        target = target * jnp.einsum("bn,bnm->bm", policy.weight, matters)
        return branches.by_leaf(entropy), branches.by_leaf(target)

    def alpha_loss(self, log_alpha: Array, entropy: Array, target: Array) -> Array:
        """sum_l log alpha_l (H_l - target_l) (eq. 18, in the logarithm) from mean entropies and targets [L]."""
        return (log_alpha * lax.stop_gradient(entropy - target)).sum()

    def update(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Keep the batch, then take the gradient steps that are due: `update_ratio` for each env step."""
        c, bound = self.config, self.bound
        assert bound.replay is not None, "Spec.rollout_rows: not known to the algorithm"
        devices = device_count()
        replay, size = bound.replay.share(devices), max(1, c.batch_size // devices)
        steps = batch.valid.size * devices // max(1, len(bound.spec.agents))
        state = state.replace(norm=self.updated_norm(state, batch))
        ring, rows = replay.insert(state.aux["ring"], state.replay, batch)
        counted = jnp.clip(state.clock.read("steps") + steps - 1.0 * c.learning_starts, 0, steps)
        owed = state.aux["owed"] + c.update_ratio * counted
        due = jnp.floor(owed).astype(jnp.int32)
        root = jax.random.fold_in(state.key, ~state.clock.updates)  # the rollout's is fold_in(key, updates)

        def sample(key: Array) -> NStepTransitions:
            return replay.sample(ring, rows, key, size, c.n_step, c.gamma)

        # seeds that still run have taken equally many env steps, and owe equally many: no turn needs a gate
        state, metrics = self.learn(state, root, sample, due)
        metrics["replay_size"] = ring.count.sum() * jnp.float32(bound.replay.columns // replay.workers)
        metrics["env_steps_per_gradient"] = jnp.where(due > 0, steps / due, jnp.nan)
        return state.replace(aux=state.aux | {"ring": ring, "owed": owed - due}, replay=rows), metrics

    def fit(self, state: State, data: Data, steps: int) -> tuple[State, Metrics]:
        """The state after `steps` gradient steps on a dataset instead of the replay, and means of their metrics."""
        c = self.config
        root = jax.random.fold_in(state.key, state.clock.updates)
        state, metrics = self.learn(state, root, lambda key: data.sample(key, c.batch_size, c.n_step, c.gamma), steps)
        return state, metrics | self.overestimation(state, data)

    def learn(self, state: State, root: Array, sample: Draw, steps: Array | int) -> tuple[State, Metrics]:
        """The state after gradient steps on what `sample(key)` draws, and means of their metrics."""
        norm, done = state.norm.get("obs"), state.aux["gradient_steps"]

        def step(i: Array, models: Models) -> tuple[Models, Metrics]:
            keys = [own_key(key) for key in jax.random.split(jax.random.fold_in(root, i), 3)]
            return self.gradient_step(models, sample(keys[0]), norm, keys[1:], done + i)

        models, totals = learn(step, state.models, sync(steps))
        total = hold(done + steps, self.config.policy_delay)
        state = state.replace(models=models, aux=state.aux | {"gradient_steps": total})
        means = mean_over_devices({name: x / steps for name, x in totals.items()})  # not numbers where none was due
        return state, means | {"lr": jnp.float32(self.config.lr), "gradient_steps": jnp.asarray(steps, jnp.float32)}

    def overestimation(self, state: State, data: Data) -> Metrics:
        """Q of the data's own actions on evenly spaced rows, in the rewards' own units, beside the discounted return
        that followed them (`Dataset.monte_carlo`); a gap above 0 is over-estimation."""
        x = self.features(data.probe.obs, state.norm.get("obs"))
        q = self.q_of(state.models["critic"].params, x, data.probe.action).mean() / self.reward_scale
        happened = data.mc_return.mean()
        return {"q_data_mean": q, "mc_return_mean": happened, "q_gap": q - happened}

    def gradient_step(
        self, models: Models, sample: NStepTransitions, norm: RunningStats | None, keys: list[Array], number: Array
    ) -> tuple[Models, Metrics]:
        """Critics, then policy and temperatures, then the slow critics."""
        c = self.config
        x, next_x = self.features(sample.obs, norm), self.features(sample.next_obs, norm)
        target = self.target(models, sample, next_x, keys[0])
        critic = models["critic"]
        loss = jax.value_and_grad(self.critic_loss, has_aux=True)
        (critic_loss, says), grads = loss(critic.params, sample, x, target)
        grads = mean_over_devices(grads)
        critic_norm = optax.global_norm(grads)
        critic = move(critic, self.optimizer(), grads, c.lr if c.critic_lr is None else c.critic_lr)
        slow = jax.tree.map(lambda a, b: a + c.tau * (b - a), critic.target, critic.params)
        models = models | {"critic": critic.replace(target=slow)}
        improve = partial(self.improve, models, sample, x, keys[1])
        if c.policy_delay == 1:
            models, metrics = improve()
        else:
            wait = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(improve)[1])
            models, metrics = lax.cond(sync(number % c.policy_delay == 0), improve, lambda: (models, wait))
            metrics = {name: c.policy_delay * m for name, m in metrics.items()}  # they are summed over all steps
        metrics |= says | {
            "loss": critic_loss + metrics["policy_loss"] + metrics.pop("alpha_loss"),
            "grad_norm": jnp.hypot(critic_norm, metrics.pop("policy_norm")),
            "target_q_mean": mean(target, sample.weight),
        }
        return models, metrics

    def improve(self, models: Models, sample: NStepTransitions, x: Array, key: Array) -> tuple[Models, Metrics]:
        """A step of the policy and of the temperatures."""
        c, names = self.config, self.bound.branches.names
        actor, alpha = models["actor"], models["alpha"]
        loss = jax.value_and_grad(self.policy_loss, has_aux=True)
        (policy_loss, policy), grads = loss(actor.params, models, sample, x, key)
        grads = mean_over_devices(grads)
        entropy, target = mean_over_devices(tuple(mean(h, sample.weight) for h in self.entropies(policy)))
        log_alpha = alpha.params["log"]
        metrics = {
            "policy_loss": policy_loss,
            "policy_norm": optax.global_norm(grads),
            "alpha_loss": jnp.zeros(()),
            "entropy": entropy.sum(),
            "alpha": jnp.exp(log_alpha).mean(),
        }
        if len(names) > 1:
            metrics |= {f"entropy/{name}": entropy[i] for i, name in enumerate(names)}
            metrics |= {f"alpha/{name}": jnp.exp(log_alpha[i]) for i, name in enumerate(names)}
        models = models | {"actor": move(actor, self.optimizer(), grads, c.lr)}
        if c.learn_alpha:
            metrics["alpha_loss"], slope = jax.value_and_grad(self.alpha_loss)(log_alpha, entropy, target)
            models["alpha"] = move(alpha, self.optimizer(), {"log": slope}, c.lr if c.alpha_lr is None else c.alpha_lr)
        return models, metrics


class SACBinding(OffPolicyBinding):
    """What SAC is bound to: also the critics, the branches of an action, the replay and the exploration."""

    def __init__(self, spec: Spec, network: NetworkConfig, c: SACConfig):
        if network.name == "graph":
            raise ConfigError("network.name: the critic of SAC reads actions beside observations; 'graph' cannot")
        super().__init__(spec, network)
        self.branches = Branches(self.dist, c.exact_choices)
        critic = dataclasses.replace(network, name="mlp_norm") if c.layer_norm and network.name == "mlp" else network
        self.critic = make_encoded(critic, self.inputs, ((1, self.branches.heads),), 0.01, self.branches.in_size)
        drifts = c.exploration == "pink" and self.branches.size
        self.pink = Pink(self.branches.size, spec.max_episode_steps) if drifts else None
        rows = spec.rollout_rows
        self.replay = Replay(c.buffer_size, rows, spec.columns, spec.workers, spec.frames) if rows else None
        can_mask = spec.env is None or getattr(spec.env, "action_mask", None) is not None
        self.options = spaces.logits(spec.action_space) if can_mask else 0

    def activation_bytes(self) -> int:
        return 2 * super().activation_bytes()  # of two critics at once
