"""Component rewards: bringing their scales together, and weighing them.

An environment's reward is a vector of named components that sum to it. Each has a critic head and advantages of its
own, A_k; the policy learns from one number, A = sum_k w_k A_k. Here is what can happen in between, each part with an
off switch (`config.algorithms.ppo.RewardConfig`):

- across episodes: component k is multiplied by f_k = clip(reference / sigma_k, 0.1, 10), where sigma_k is the running
  deviation of its discounted return and the reference the median over components. Critics then see like scales. With
  fixed weights the policy does not: its weights are w_k / f_k, so the objective stays the reward itself.
- per batch: the advantages of each component are standardised over the batch (z-score, min-max, adaptive).
- weights: fixed, uniform, or learned (`Weighting`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from regimen.axes import device_count, max_over_devices, mean_over_devices, own_key, sum_over_devices
from regimen.errors import ConfigError, nearest
from regimen.normalize import RunningStats
from regimen.schedule import RowMatrix, draw_words, shuffle
from regimen.types import Array, Batch, PyTree, Scalar

SCALE_RANGE = (0.1, 10.0)
TINY = 1e-8
RIDGE = 0.1  # of each component's variance that is taken to be its own, where learned weights compare components
META_ROWS = 1024  # of a batch, at most, that learned weights' gradient is estimated on, and as many held out


def parse_weights(text: str, components: tuple[str, ...], where: str = "algo.reward.weights") -> tuple[float, ...]:
    """`goal=1 effort=0.2` as one number per component; those not named weigh 1."""
    weights = dict.fromkeys(components, 1.0)
    for item in text.replace(",", " ").split():
        name, equals, value = item.partition("=")
        if name not in weights:
            raise ConfigError(f"{where}: the reward has no component '{name}'{nearest(name, components)}")
        try:
            weights[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not 0 <= weights[name] < float("inf"):
            raise ConfigError(f"{where}: '{item}' is not name=weight with a weight of at least 0")
    if not any(weights.values()):
        raise ConfigError(f"{where}: every component has weight 0; at least one must be positive")
    return tuple(weights.values())


def parse_task(text: str, components: tuple[str, ...]) -> tuple[float, ...]:
    """The components named in `text` as a mask; all of them when none is."""
    names = text.replace(",", " ").split()
    for name in names:
        if name not in components:
            raise ConfigError(f"algo.reward.task: the reward has no component '{name}'{nearest(name, components)}")
    return tuple(float(not names or c in names) for c in components)


def running_returns(reward: Array, start: Array, batch: Batch, decay) -> tuple[Array, Array]:
    """Decayed sums of the rewards so far in each episode [T, B, K], and those the next batch goes on from [B, K]."""
    done = (batch.terminated | batch.truncated)[..., None]

    def forward(g, row):
        r, d, v = row
        new = decay * g + r
        return jnp.where(v, jnp.where(d, 0.0, new), g), new

    start = start if batch.length is None else jnp.zeros_like(start)
    last, returns = lax.scan(forward, start, (reward, done, batch.valid[..., None]), unroll=8)
    return returns, last


def scale_factors(stats: RunningStats, ready: Array) -> Array:
    """f_k [K] = clip(median sigma / sigma_k, 0.1, 10); 1 before the warm-up is over, and for what never varied."""
    sigma = stats.std(eps=0.0)
    varies = sigma > 1e-6
    reference = jnp.nanmedian(jnp.where(varies, sigma, jnp.nan))
    factor = jnp.clip(reference / jnp.where(varies, sigma, 1.0), *SCALE_RANGE)
    return jnp.where(varies & ready & jnp.isfinite(reference), factor, 1.0)


def standardize(x: Array, valid: Array, method: str) -> Array:
    """Each component of x [T, B, K] over the valid rows of the batch. Shifting advantages is harmless: the policy
    gradient of a constant is 0."""
    return _standardize(x, jnp.zeros(valid.shape, jnp.int32), valid, method, 1, least=1)


def standardize_episodes(reward: Array, batch: Batch, method: str) -> Array:
    """Rewards [T, B, K] within each episode, as some systems do: an episode of fewer than 3 steps is left alone. Every
    episode's z-scored rewards sum to 0, whether it went well or badly, so what tells good episodes from bad ones is
    gone. Offered for comparison."""
    done = (batch.terminated | batch.truncated) & batch.valid
    before = jnp.cumsum(done, axis=0) - done  # episodes that ended earlier in the column
    T, B = done.shape
    ids = before * B + jnp.arange(B)
    return _standardize(reward, ids, batch.valid, method, T * B, least=3)


def _standardize(x: Array, ids: Array, valid: Array, method: str, segments: int, least: int) -> Array:
    flat, ids, ok = x.reshape(-1, x.shape[-1]), ids.reshape(-1), valid.reshape(-1, 1)

    def total(v: Array) -> Array:
        v = jnp.where(ok, v, 0.0)
        return sum_over_devices(v.sum(0, keepdims=True)) if segments == 1 else jax.ops.segment_sum(v, ids, segments)

    def most(v: Array) -> Array:
        v = jnp.where(ok, v, -jnp.inf)
        return max_over_devices(v.max(0, keepdims=True)) if segments == 1 else jax.ops.segment_max(v, ids, segments)

    count = jnp.maximum(total(jnp.ones_like(flat)), 1.0)
    mean = total(flat) / count
    std = jnp.sqrt(total(jnp.square(flat - mean[ids])) / count)
    low, high = -most(-flat), most(flat)
    std = jnp.where(high > low, std, 0.0)  # of a constant it is rounding alone, which may be far above TINY
    std, low, width, mean = std[ids], low[ids], (high - low)[ids], mean[ids]
    z = jnp.where(std >= TINY, (flat - mean) / jnp.maximum(std, TINY), 0.0)
    unit = jnp.where(width >= TINY, (flat - low) / jnp.maximum(width, TINY), 0.0)
    match method:
        case "zscore":
            out = z
        case "minmax":
            out = unit
        case _:  # adaptive: z-scores, or min-max around 0 where the deviation is numerically 0
            out = jnp.where(std >= TINY, z, jnp.where(width >= TINY, unit - 0.5, 0.0))
    enough = (count >= least)[ids]
    return jnp.where(ok, jnp.where(enough, out, flat), 0.0).reshape(x.shape)


class Weighting:
    """Learned weights in three tiers: base weights softmax(beta), attention softmax(L m + c) on the magnitudes m_k of
    the advantages, and a pull towards the configured weights.

    The objective they are trained on is the task's own return, J (`task`: the components that are the task; the rest is
    shaping). One policy-gradient step on the combined, normalised advantage moves the policy by

        theta' = theta + eta * g(w),   g(w) = sum_k w_k g_k / std(sum_k w_k A_k),   g_k = E[grad log pi (A_k - E A_k)]

    with g_k from one set of rows. The surrogate of J on other, held-out rows then changes by eta * M(w) to first order,

        M(w) = sum_k w_k d_k / std(sum_k w_k A_k),   d_k = <grad J_held-out, g_k>,

    and M is what the weights ascend: a component is worth as much as a step along it helps the task on rows it has not
    seen. This is the exact meta-gradient of one small step; held-out rows keep noise that a component shares with the
    task's estimate from counting. d costs one gradient and one forward-mode derivative an update, whatever K is.
    Where components are collinear, M is flat: of A and -A only the sign of their sum is left. So a share RIDGE of each
    variance counts as the component's own, which leaves a slope towards the one that helps.
    """

    def __init__(self, base: Sequence[float], task: Sequence[float], attention: bool):
        """`base` weights and the mask of the `task`, one number for each component."""
        self.attention, self.K = attention, len(base)
        self.base = jnp.asarray(base)
        self.task = jnp.asarray(task)
        self.opt = optax.adam(1.0)  # the learning rate is data

    def init(self) -> dict[str, PyTree]:
        params = {"beta": jnp.log(jnp.maximum(self.base, 1e-3))}
        if self.attention:
            params |= {"attention": jnp.zeros((self.K, self.K)), "bias": jnp.zeros(self.K)}
        return {"params": params, "opt": self.opt.init(params)}

    def weights(self, params: PyTree, magnitude: Array) -> Array:
        """w [K], summing to 1."""
        w = jax.nn.softmax(params["beta"])
        if "attention" in params:
            w = w * jax.nn.softmax(params["attention"] @ magnitude + params["bias"])
        return w / w.sum()

    def objective(self, params: PyTree, magnitude: Array, d: Array, covariance: Array, reg) -> Array:
        """-M(w) + reg * KL(base || w), to minimise. `d` and `covariance` [K, K] are of the advantages."""
        w = self.weights(params, magnitude)
        spread = jnp.sqrt(jnp.maximum(w @ covariance @ w, 1e-12))
        base = self.base / self.base.sum()
        kl = jnp.sum(jnp.where(base > 0, base * (jnp.log(jnp.maximum(base, 1e-12)) - jnp.log(w + 1e-12)), 0.0))
        return -(w @ d) / spread + reg * kl

    def update(
        self, state: dict, magnitude: Array, d: Array, covariance: Array, lr: Scalar, reg: Scalar
    ) -> dict[str, PyTree]:
        """One step of the meta-objective, with a learning rate and a pull towards the base weights."""
        covariance = covariance + RIDGE * jnp.diag(jnp.diag(covariance))
        scale = jnp.sqrt(jnp.maximum(jnp.trace(covariance), 1e-12)) / jnp.maximum(jnp.linalg.norm(d), 1e-12)
        grads = jax.grad(self.objective)(state["params"], magnitude, d * scale, covariance, reg)
        updates, opt = self.opt.update(grads, state["opt"], state["params"])
        params = jax.tree.map(lambda p, u: p + lr * u, state["params"], updates)
        good = jnp.all(jnp.isfinite(d))
        return jax.tree.map(lambda a, b: jnp.where(good, a, b), {"params": params, "opt": opt}, state)


def alignments(log_prob: Callable, params: Array, train: PyTree, held: PyTree, rows: Scalar = 1.0) -> Array:
    """d [K] = <grad of the task's surrogate on `held`, g_k on `train`>. Rows have `advantage` [W, K] and `task` [W];
    `log_prob(params, rows) -> [W]`. Both are centred, as the loss does it: what critics have not learned yet would
    drown the difference between actions. A device counts by its `rows`, of which those given are a sample. Sequences
    (`ActorCritic.pack`) may stand for rows: `log_prob` is then of all their rows, side by side."""
    train_rows, held_rows = side_by_side(train), side_by_side(held)
    centre, centres = mean_over_devices((held_rows.mean(held_rows.task), train_rows.mean(train_rows.advantage)), rows)

    def task(params: Array) -> Array:
        return held_rows.mean(log_prob(params, held) * (held_rows.task - centre))

    def components(params: Array) -> Array:
        return train_rows.mean(log_prob(params, train)[:, None] * (train_rows.advantage - centres))

    gradient = mean_over_devices(jax.grad(task)(params), rows)
    return mean_over_devices(jax.jvp(components, (params,), (gradient,))[1], rows)


class SideBySide(NamedTuple):
    """The advantages of rows, and how much each counts: all alike, or those of sequences, whose padding does not."""

    advantage: Array  # [W, K]
    task: Array  # [W]
    weight: Array | None  # [W]

    def mean(self, x: Array) -> Array:
        """The mean over the rows of x [W, ...]."""
        if self.weight is None:
            return x.mean(0)
        return jnp.tensordot(self.weight, x, 1) / jnp.maximum(self.weight.sum(), TINY)


def side_by_side(drawn: PyTree) -> SideBySide:
    """What `alignments` reads of rows, or of sequences [C, L, ...] as rows [C * L, ...]."""
    if not isinstance(drawn, dict):
        return SideBySide(drawn.advantage, drawn.task, None)
    rows, weight = drawn["rows"], drawn["weight"].reshape(-1)
    return SideBySide(rows.advantage.reshape(weight.size, -1), rows.task.reshape(-1), weight)


def two_halves(packed: RowMatrix, key: Array) -> tuple[PyTree, PyTree]:
    """Rows to take the components' gradients on, and other rows to hold out; over all devices about META_ROWS each. Of
    sequences as many as have about so many rows, so that no sequence is in both."""
    one = jax.eval_shape(packed.take, jnp.arange(1))
    length = one["weight"].shape[1] if isinstance(one, dict) and "weight" in one else 1
    number = min(-(-META_ROWS // (length * device_count())), max(packed.matrix.shape[0] // 2, 1))
    words, count = draw_words(own_key(key)), jnp.asarray(packed.count)
    half = jnp.clip(count // 2, 1, number)  # where there are fewer rows, they are taken more than once
    positions = jnp.arange(number) % half
    return packed.take(shuffle(words, positions, count)), packed.take(shuffle(words, positions + half, count))


def moments(advantage: Array, valid: Array) -> tuple[Array, Array]:
    """Mean magnitudes [K] of the components' advantages, summing to 1, and their covariance [K, K]."""
    mean = RunningStats.of(jnp.abs(advantage), valid).mean
    centred = jnp.where(valid[..., None], advantage - RunningStats.of(advantage, valid).mean, 0.0)
    centred = centred.reshape(-1, centred.shape[-1])
    products, count = sum_over_devices((centred.T @ centred, valid.sum(dtype=jnp.float32)))
    return mean / jnp.maximum(mean.sum(), 1e-12), products / jnp.maximum(count, 1)
