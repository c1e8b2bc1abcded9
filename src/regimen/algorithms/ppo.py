"""Proximal policy optimisation.

Schulman et al. 2017 (arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438), the details of
Huang et al. 2022 ("The 37 implementation details of PPO"), and the adaptive KL penalty of the paper's section 4 as an
option beside clipping.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from regimen import distributions, spaces
from regimen.config import Count, NetworkConfig, PPOConfig
from regimen.loops import compact, sync
from regimen.networks import make_net
from regimen.normalize import RunningStats
from regimen.returns import gae, monte_carlo, n_step
from regimen.schedule import for_minibatches, pack
from regimen.types import Array, Batch, Clock, Model, PyTree, Record, Spec, State, pytree_dataclass

METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
FLOATS = tuple(f.name for f in dataclasses.fields(PPOConfig) if "float" in str(f.type))


@pytree_dataclass
class Sample(Record):
    """One row of a minibatch."""

    obs: Array  # [D] normalised
    action: Array
    log_prob: Array  # [] of the rollout policy
    advantage: Array  # []
    target: Array  # []
    value: Array  # [] before the update
    mask: PyTree


class Horizon(NamedTuple):
    """The length of the schedules, in a unit of the clock."""

    length: Any
    unit: str

    @classmethod
    def parse(cls, text: str | None) -> Horizon | None:
        count = Count.parse(text, "algo.horizon")
        return None if count is None else cls(float(count.n), count.unit)


class PPO:
    """Holds its hyper-parameters and, once bound to a `Spec`, its networks. Methods are pure."""

    def __init__(self, config: PPOConfig | None = None, network: NetworkConfig | None = None, **overrides):
        self.config = dataclasses.replace(config or PPOConfig(), **overrides)
        self.network = network or NetworkConfig()
        self.horizon = Horizon.parse(self.config.horizon)
        self.parts: Parts | None = None

    def bind(self, spec: Spec) -> PPO:
        """This algorithm for one environment's spaces."""
        bound = PPO(self.config, self.network)
        bound.parts = Parts(spec, self.network, float(self.config.log_std_init))
        return bound

    @property
    def bound(self) -> Parts:
        assert self.parts is not None, "call bind(spec) first"
        return self.parts

    def init(self, key: Array) -> State:
        parts, c = self.bound, self.config
        actor_key, critic_key, root = jax.random.split(key, 3)
        params = {"actor": parts.actor.init(actor_key), "critic": parts.critic.init(critic_key)}
        if parts.dist.free_size:
            params["log_std"] = jnp.full(parts.dist.free_size, c.log_std_init, jnp.float32)
        opt_state = optimizer(c).init(ravel_pytree(params)[0])
        norm = {}
        if c.normalize_obs:
            norm["obs"] = RunningStats.zero((parts.obs_size,))
        if c.normalize_reward:
            norm["return"] = RunningStats.zero()
        aux: dict[str, PyTree] = {}
        if c.kl_coef:
            aux["kl_coef"] = jnp.float32(c.kl_coef)
        if c.normalize_reward:
            aux["return"] = jnp.zeros(parts.spec.num_envs * parts.spec.num_agents)
        return State({"policy": Model(params, opt_state)}, norm, root, Clock.zero(), aux)

    def actor_params(self, state: State) -> PyTree:
        """What acting needs and nothing more: the policy and its normaliser."""
        params = state.models["policy"].params
        out = {"actor": params["actor"], "log_std": params.get("log_std", jnp.zeros(0))}
        return out | ({"norm": state.norm["obs"]} if "obs" in state.norm else {})

    def noise(self, key: Array, shape: tuple[int, ...]) -> PyTree:
        """The randomness of a rollout's actions, drawn at once: `act` is deterministic given it."""
        return self.bound.dist.noise(key, shape)

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        """Actions [..., *shape] as sampled, the recurrent carry, and `log_prob`."""
        dist = self.bound.dist
        x = self.features(obs, params.get("norm"))
        out = dist.params(self.bound.actor.apply(params["actor"], x), params["log_std"], mask)
        action = dist.mode(out) if greedy else dist.sample(out, noise)
        extras = {} if greedy else {"log_prob": distributions.joint(dist, dist.log_prob(out, action))}
        return action, carry, extras

    def to_env(self, action: PyTree) -> PyTree:
        return self.bound.dist.to_env(action)

    def features(self, obs: PyTree, norm: RunningStats | None) -> Array:
        x = spaces.flatten(self.bound.spec.observation_space, obs)
        return x if norm is None else norm.normalize(x)

    def loss(self, params: PyTree, row: Sample, clip_eps, ent_coef, kl_coef) -> tuple[Array, dict[str, Array]]:
        """-L_CLIP + vf_coef L_VF - ent_coef H + kl_coef KL per row [W] (eq. 9, to minimise), and its parts."""
        c, dist = self.config, self.bound.dist
        out = dist.params(self.bound.actor.apply(params["actor"], row.obs), params.get("log_std"), row.mask)
        log_ratio = distributions.joint(dist, dist.log_prob(out, row.action)) - row.log_prob
        ratio = jnp.exp(log_ratio)
        clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)
        policy_loss = -jnp.minimum(ratio * row.advantage, clipped * row.advantage)

        value = self.bound.critic.apply(params["critic"], row.obs)[..., 0]
        value_loss = jnp.square(value - row.target)
        if c.vf_clip is not None:
            near = row.value + jnp.clip(value - row.value, -c.vf_clip, c.vf_clip)
            value_loss = jnp.maximum(value_loss, jnp.square(near - row.target))
        value_loss = 0.5 * value_loss

        entropy = distributions.joint(dist, dist.entropy(out))
        approx_kl = ratio - 1 - log_ratio  # Schulman's k3 estimate: unbiased and never negative
        loss = policy_loss + c.vf_coef * value_loss - ent_coef * entropy + kl_coef * approx_kl
        clip_fraction = (jnp.abs(ratio - 1) > clip_eps).astype(jnp.float32)
        return loss, dict(zip(METRICS, (loss, policy_loss, value_loss, entropy, approx_kl, clip_fraction)))

    def update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """One regimen's worth of learning: advantages over the whole batch, then epochs of minibatches."""
        c = self.config
        batch = batch.rows()
        all_valid = batch.length is None
        model = state.models["policy"]
        flat, unravel = ravel_pytree(model.params)
        lr = scheduled(c.lr, c.lr_end, c.lr_schedule, self.horizon, state.clock)
        clip_eps = scheduled(c.clip_eps, c.clip_end, c.clip_schedule, self.horizon, state.clock)
        ent_coef = scheduled(c.ent_coef, c.ent_end, c.ent_schedule, self.horizon, state.clock)
        kl_coef = state.aux.get("kl_coef", 0.0)

        reward, state = self.scaled_reward(state, batch)
        rows, metrics = self.advantages(model.params, state, batch, reward)
        packed = pack(rows, batch.valid, all_valid)
        opt = optimizer(c)

        def loss(flat, row):
            return self.loss(unravel(flat), row, clip_eps, ent_coef, kl_coef)

        def step(carry, minibatch):
            flat, opt_state, totals, _ = carry
            grads, parts = minibatch.gradient(loss, flat)
            parts["grad_norm"] = optax.global_norm(grads)
            updates: Any
            updates, opt_state = opt.update(grads, opt_state)
            stop = jnp.bool_(False) if c.target_kl is None else parts["approx_kl"] > 1.5 * c.target_kl
            flat = jnp.where(stop, flat, flat - lr * updates)  # a minibatch already past the target is not stepped on
            totals = jax.tree.map(jnp.add, totals, parts)
            return flat, opt_state, totals, stop

        zeros = {name: jnp.zeros(()) for name in (*METRICS, "grad_norm")}
        key = jax.random.fold_in(state.key, ~state.clock.updates)  # the rollout's is fold_in(key, updates)
        (flat, opt_state, totals, _), ran = for_minibatches(
            key,
            packed,
            epochs=c.epochs,
            size=c.minibatch_size,
            micro=c.micro_batch_size,
            step=step,
            carry=(flat, model.opt_state, zeros, jnp.bool_(False)),
            stopped=(lambda carry: carry[3]) if c.target_kl is not None else None,
        )
        metrics |= {name: x / ran for name, x in totals.items()}
        metrics |= {"lr": lr, "clip_eps": clip_eps, "ent_coef": ent_coef, "gradient_steps": ran.astype(jnp.float32)}
        aux = dict(state.aux)
        if "kl_coef" in aux:
            metrics["kl_coef"] = kl_coef
            aux["kl_coef"] = adapt(kl_coef, metrics["approx_kl"], c.kl_target)
        norm = dict(state.norm)
        if "obs" in norm:  # after the epochs: log-probabilities above used the rollout's statistics
            x = spaces.flatten(self.bound.spec.observation_space, batch.obs)
            norm["obs"] = norm["obs"].merge(RunningStats.of(x, batch.valid))
        models = {"policy": Model(unravel(flat), opt_state)}
        return state.replace(models=models, norm=norm, aux=aux), metrics

    def scaled_reward(self, state: State, batch: Batch) -> tuple[Array, State]:
        """Rewards [T, B] divided by the running deviation of the discounted return, where that is on."""
        reward = batch.reward.sum(-1)
        if "return" not in state.norm:
            return reward, state
        done = batch.terminated | batch.truncated

        def forward(g, row):
            r, d, v = row
            new = self.config.gamma * g + r
            return jnp.where(v, jnp.where(d, 0.0, new), g), new

        start = state.aux["return"] if batch.length is None else jnp.zeros_like(state.aux["return"])
        last, returns = lax.scan(forward, start, (reward, done, batch.valid), unroll=8)
        stats = state.norm["return"].merge(RunningStats.of(returns, batch.valid))
        state = state.replace(norm=state.norm | {"return": stats}, aux=state.aux | {"return": last})
        return jnp.clip(reward / stats.std(), -10.0, 10.0), state

    def advantages(self, params: PyTree, state: State, batch: Batch, reward: Array) -> tuple[Sample, dict[str, Array]]:
        """The batch as rows to learn from, and how well the critic explains its targets."""
        c = self.config
        obs = self.features(batch.obs, state.norm.get("obs"))
        value = self.values(params, obs, batch.length)
        next_value = self.next_values(params, state, batch, value)
        done = batch.terminated | batch.truncated
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
                advantage = target - value
        if c.normalize_advantage:
            stats = RunningStats.of(advantage, batch.valid)
            advantage = (advantage - stats.mean) / (stats.std() + 1e-8)
        residual, spread = RunningStats.of(target - value, batch.valid), RunningStats.of(target, batch.valid)
        explained = jnp.where(spread.m2 > 0, 1 - residual.m2 / jnp.maximum(spread.m2, 1e-12), jnp.nan)
        rows = Sample(obs, batch.action, batch.extras["log_prob"], advantage, target, value, batch.extras.get("mask"))
        return rows, {"explained_variance": explained}

    def values(self, params: PyTree, obs: Array, length: Array | None) -> Array:
        """V [T, B]; with a capacity, only the blocks of rows in use are computed."""

        def critic(x: Array) -> Array:
            return self.bound.critic.apply(params["critic"], x)[..., 0]

        if length is None:
            return critic(obs)
        block = min(32, obs.shape[0])

        def body(i, out):
            start = jnp.minimum(i * block, obs.shape[0] - block)
            return lax.dynamic_update_slice_in_dim(out, critic(lax.dynamic_slice_in_dim(obs, start, block)), start, 0)

        return lax.fori_loop(0, sync((length + block - 1) // block), body, jnp.zeros(obs.shape[:2]))

    def next_values(self, params: PyTree, state: State, batch: Batch, value: Array) -> Array:
        """V of each row's true successor [T, B]: the next row's value, or the critic's on `next_obs` where the row was
        truncated or is the last; 0 where it terminated."""
        shifted = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
        cut = batch.truncated & batch.valid
        if batch.length is None:
            cut = cut.at[-1].set(True)
        cut = (cut & ~batch.terminated).reshape(-1)
        indices, count = compact(cut)
        width = min(max(64, batch.valid.shape[1]), cut.size)
        flat_obs = jax.tree.map(lambda x: x.reshape(cut.size, *x.shape[2:]), batch.next_obs)

        def body(i, out):
            start = jnp.minimum(i * width, cut.size - width)
            index = lax.dynamic_slice_in_dim(indices, start, width)
            obs = self.features(jax.tree.map(lambda x: x[index], flat_obs), state.norm.get("obs"))
            v = self.bound.critic.apply(params["critic"], obs)[..., 0]
            index = jnp.where(start + jnp.arange(width) < count, index, cut.size)
            return out.at[index].set(v, mode="drop")

        blocks = sync((count + width - 1) // width)
        out = lax.fori_loop(0, blocks, body, shifted.reshape(-1)).reshape(value.shape)
        return jnp.where(batch.terminated, 0.0, out)


class Parts:
    """What an algorithm builds once for an environment. Compared by identity: part of the compiled program."""

    def __init__(self, spec: Spec, network: NetworkConfig, log_std_init: float):
        spaces.check_observation_space(spec.observation_space)
        self.spec = spec
        self.dist: Any = distributions.for_space(spec.action_space, log_std_init)
        self.obs_size = spaces.flat_size(spec.observation_space)
        self.actor = make_net(network, self.obs_size, self.dist.head_size, 0.01)
        self.critic = make_net(network, self.obs_size, 1, 1.0)


def optimizer(c: PPOConfig) -> optax.GradientTransformation:
    """Clipped Adam on the parameters as one vector; the learning rate is applied outside, where its schedule is."""
    limit = jnp.where(jnp.asarray(c.max_grad_norm) > 0, c.max_grad_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optax.scale_by_adam(eps=1e-5))  # type: ignore[arg-type]


def scheduled(start, end, shape: str, horizon: Horizon | None, clock: Clock) -> Array:
    """A hyper-parameter between `start` and `end`, by the run's own clock."""
    if shape == "constant" or horizon is None:
        return jnp.asarray(start, jnp.float32)
    done = jnp.clip(clock.read(horizon.unit) / horizon.length, 0.0, 1.0)
    weight = 1 - done if shape == "linear" else 0.5 * (1 + jnp.cos(jnp.pi * done))
    return end + (start - end) * weight


def adapt(kl_coef: Array, kl: Array, target) -> Array:
    """Section 4 of the paper: halve the penalty when the KL is well below its target, double it when well above."""
    factor = jnp.where(kl > 1.5 * target, 2.0, jnp.where(kl < target / 1.5, 0.5, 1.0))
    return jnp.clip(kl_coef * factor, 1e-6, 1e6)


def _flatten(algo: PPO):
    leaves = tuple(getattr(algo.config, name) for name in FLOATS)
    blank = {name: None if getattr(algo.config, name) is None else 0.0 for name in FLOATS}
    length, unit = algo.horizon or (None, None)
    static = (dataclasses.replace(algo.config, **blank, horizon=None), algo.network, algo.parts, unit)
    return (leaves, length), static


def _unflatten(static, children) -> PPO:
    (config, network, parts, unit), (leaves, length) = static, children
    algo = PPO(dataclasses.replace(config, **dict(zip(FLOATS, leaves))), network)
    algo.horizon, algo.parts = None if unit is None else Horizon(length, unit), parts
    return algo


# Float hyper-parameters and the length of the schedules are data: another value does not compile anew.
jax.tree_util.register_pytree_node(PPO, _flatten, _unflatten)
