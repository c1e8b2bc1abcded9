"""An action as a critic sees it: every joint choice of its discrete parts is a branch, beside its continuous numbers.

With few branches, expectations over them are exact: the critic puts out one value for each branch, Q(s, k, x). Numbers
that do not matter in a branch (`action_conditions`) are 0 in its input, so they bring it neither noise nor gradient;
branches that see different numbers are passes of their own (Bester et al. 2019, arXiv 1905.04388). Beyond `limit`
branches, one is sampled: the critic reads the choices as one-hot, with straight-through gradients (Jang et al. 2017).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen.distributions import Distribution, Elements, MultiCategorical
from regimen.types import Array, PyTree, Record, pytree_dataclass

FREE = np.zeros(0, np.float32)  # deviations are outputs of the network: none is a free parameter


@pytree_dataclass
class BranchPolicy(Record):
    """What a policy would do in each state, ready for a critic. N is the number of branches, or 1 where it is sampled;
    M the number of elements, discrete rows before continuous dimensions."""

    weight: Array  # [..., N] probability of each branch
    log_prob: Array  # [..., N, M] of each element in it; 0 where it does not matter
    matters: np.ndarray | Array  # [N, M], or [..., 1, M] where the branch is sampled
    options: Array | None  # [..., R] log of the number of options of each discrete row
    numbers: Array  # [..., X] continuous elements in the critic's units, reparameterised
    choice: Array | None = None  # [..., O] one-hot of the sampled branch


class Branches:
    """Static tables of one action distribution."""

    def __init__(self, dist: Distribution, limit: int):
        self.elements = Elements(dist, "joint")
        self.leaves = self.elements.leaves
        self.discrete = {n: d for n, d in self.leaves.items() if d.kind == "discrete"}
        self.continuous: dict[str, Any] = {n: d for n, d in self.leaves.items() if d.kind != "discrete"}
        self.names = [*self.discrete, *self.continuous]
        self.owner = np.repeat(np.arange(len(self.names)), [self.leaves[n].size for n in self.names])  # [M] leaf
        self.row_sizes = [n for d in self.discrete.values() for n in row_sizes(d)]  # of the R rows
        self.rows = len(self.row_sizes)
        self.size = sum(d.size for d in self.continuous.values())  # X
        self.number = math.prod(self.row_sizes)
        self.exact = self.number <= limit
        if not self.exact:
            self.in_size, self.heads = self.size + sum(self.row_sizes), 1
            return
        self.in_size, self.heads = self.size, self.number
        self.table = np.indices(self.row_sizes).reshape(self.rows, -1).T if self.rows else np.zeros((1, 0), int)
        blank = np.zeros((self.number, self.size), np.float32)
        self.matters = np.broadcast_to(
            self.relevance(self.action(self.table, blank)), (self.number, len(self.owner))
        )  # [N, M]
        canonical = np.where(self.matters[:, : self.rows], self.table, 0)  # choices that do not matter are one branch
        self.head = self.index(canonical)  # [N] output of the critic
        self.passes, inverse = np.unique(self.matters[:, self.rows :], axis=0, return_inverse=True)  # [P, X]
        self.output = inverse.reshape(-1) * self.heads + self.head  # [N] among the outputs of all passes

    def action(self, choices: np.ndarray | Array, numbers: np.ndarray | Array) -> PyTree:
        """The action with these choices [..., R] and numbers [..., X]."""
        out, r, x = {}, 0, 0
        for name, d in self.discrete.items():
            leaves = choices[..., r : r + d.size]
            out[name], r = leaves if d.event_ndim else leaves[..., 0], r + d.size
        for name, d in self.continuous.items():
            out[name], x = numbers[..., x : x + d.size], x + d.size
        return out if self.elements.hybrid else next(iter(out.values()))

    def relevance(self, action: PyTree) -> np.ndarray | Array:
        """Which elements matter [..., M], or [M] where all always do; numpy from numpy."""
        relevant = self.elements.relevance(action, None)
        if relevant is None:
            return np.ones(len(self.owner), bool)
        by_leaf = self.elements.split(relevant)
        relevant = jnp.concatenate([by_leaf[n] for n in self.names], axis=-1)
        return np.asarray(relevant) if isinstance(jax.tree.leaves(action)[0], np.ndarray) else relevant

    def index(self, choices: np.ndarray | Array) -> np.ndarray | Array:
        """The branch of choices [..., R]."""
        strides = np.cumprod([1, *self.row_sizes[:0:-1]])[::-1][: self.rows]
        return (choices * strides.astype(np.int32)).sum(-1)

    def choices_and_numbers(self, action: PyTree) -> tuple[Array, Array]:
        """Choices [..., R] and numbers [..., X] of an action as sampled."""
        leaves = self.elements.by_leaf(action)
        rows = [leaves[n] if d.event_ndim else leaves[n][..., None] for n, d in self.discrete.items()]
        numbers = [leaves[n] for n in self.continuous]
        lead = (rows or numbers)[0].shape[:-1]
        choices = jnp.concatenate(rows, axis=-1) if rows else jnp.zeros((*lead, 0), jnp.int32)
        return choices, jnp.concatenate(numbers, axis=-1) if numbers else jnp.zeros((*lead, 0))

    def one_hot(self, choices: Array) -> Array:
        return jnp.concatenate([jax.nn.one_hot(choices[..., r], n) for r, n in enumerate(self.row_sizes)], axis=-1)

    def by_leaf(self, x: Array) -> Array:
        """Sums over the elements of each leaf: [..., M] to [..., leaves]."""
        member = np.zeros((len(self.owner), len(self.names)), np.float32)
        member[np.arange(len(self.owner)), self.owner] = 1.0
        return x if len(self.owner) == len(self.names) else jnp.matmul(x, member, precision="highest")

    def with_numbers(self, noise: PyTree, value: Array) -> PyTree:
        """The noise of an action with that of its continuous elements [..., X] replaced."""
        leaves, x = dict(self.elements.by_leaf(noise)), 0
        for name, d in self.continuous.items():
            leaves[name] = value[..., x : x + d.size]
            x += d.size
        return leaves if self.elements.hybrid else next(iter(leaves.values()))

    def uniform(self, noise: PyTree, mask: Array | None, lead: tuple[int, ...]) -> PyTree:
        """Actions uniform over what the space and the mask allow, as correlated as the noise; N(0, 1) without
        bounds."""
        dist: Any = self.elements.dist
        blank = dist.params(jnp.zeros((*lead, dist.head_size)), FREE, mask)
        leaves = dict(self.elements.by_leaf(dist.sample(blank, noise)))
        for name, d in self.continuous.items():
            spread = jnp.arctanh(jnp.clip(lax.erf(leaves[name] / math.sqrt(2)), -1 + 1e-6, 1 - 1e-6))
            leaves[name] = jnp.where(d.squashed, spread, leaves[name])
        return leaves if self.elements.hybrid else next(iter(leaves.values()))

    def policy(self, out: PyTree, noise: PyTree, mask: Array | None) -> BranchPolicy:
        """The policy whose distribution has the parameters `out`, its numbers sampled with `noise`."""
        out, noise = self.elements.by_leaf(out), self.elements.by_leaf(noise)
        logs, free = [], []  # of each discrete row: log-probabilities [..., n], Gumbel noise
        for name, d in self.discrete.items():
            rows = d.event_ndim > 0
            logs += [out[name][..., r, :n] if rows else out[name] for r, n in enumerate(row_sizes(d))]
            free += [noise[name][..., r, :n] if rows else noise[name] for r, n in enumerate(row_sizes(d))]
        samples = {n: d.sample(out[n], noise[n]) for n, d in self.continuous.items()}
        lead = (logs or list(samples.values()))[0].shape[:-1]
        empty = jnp.zeros((*lead, 0))
        parts = [d.log_prob(out[n], samples[n]) for n, d in self.continuous.items()]
        densities = jnp.concatenate(parts, axis=-1) if parts else empty
        numbers = jnp.concatenate([squash(d, samples[n]) for n, d in self.continuous.items()], -1) if parts else empty
        options = jnp.stack([jnp.log((x > -1e8).sum(-1)) for x in logs], axis=-1) if logs else None
        if not self.exact:
            return self.sampled(logs, free, densities, numbers, options)
        table = [x[..., self.table[:, r]] if self.rows > 1 else x for r, x in enumerate(logs)]  # [..., N] each
        discrete = jnp.stack(table, axis=-1) if table else jnp.zeros((*lead, 1, 0))
        weight = jnp.exp(discrete.sum(-1))
        spread = jnp.broadcast_to(densities[..., None, :], (*lead, self.number, self.size))
        log_prob = jnp.concatenate([discrete, spread], axis=-1) * self.matters
        return BranchPolicy(weight, log_prob, jnp.asarray(self.matters), options, numbers)

    def sampled(self, logs: list, free: list, densities: Array, numbers: Array, options: Array | None) -> BranchPolicy:
        """One branch, drawn by the Gumbel noise; the expected log-probability of its rows is exact."""
        hard = [jax.nn.one_hot(jnp.argmax(x + g, -1), x.shape[-1]) for x, g in zip(logs, free)]
        soft = [jax.nn.softmax(x + g) for x, g in zip(logs, free)]
        choices = jnp.stack([jnp.argmax(x, -1) for x in hard], axis=-1)
        matters = self.relevance(self.action(choices, numbers))
        expected = jnp.stack([(jnp.exp(x) * x).sum(-1) for x in logs], axis=-1)
        through = jnp.concatenate([h + s - lax.stop_gradient(s) for h, s in zip(hard, soft)], axis=-1)
        log_prob = jnp.concatenate([expected, densities], axis=-1) * matters
        through = through * jnp.repeat(matters[..., : self.rows], np.asarray(self.row_sizes), axis=-1)
        weight = jnp.ones((*choices.shape[:-1], 1))
        return BranchPolicy(weight, log_prob[..., None, :], matters[..., None, :], options, numbers, through)

    def values(self, critic: Callable[[Array], Array], obs: Array, policy: BranchPolicy) -> Array:
        """Q of every branch [..., N] from `critic(inputs)` -> [..., heads]."""
        if not self.exact:
            assert policy.choice is not None
            numbers = policy.numbers * policy.matters[..., 0, self.rows :]
            return critic(jnp.concatenate([obs, policy.choice, numbers], axis=-1))
        if len(self.passes) == 1:
            q = critic(jnp.concatenate([obs, policy.numbers * self.passes[0]], axis=-1))
            return q if self.trivial else q[..., self.head]
        numbers = policy.numbers[..., None, :] * self.passes
        repeated = jnp.broadcast_to(obs[..., None, :], (*numbers.shape[:-1], obs.shape[-1]))
        q = critic(jnp.concatenate([repeated, numbers], axis=-1))  # [..., P, heads]
        return q.reshape(*q.shape[:-2], -1)[..., self.output]

    @property
    def trivial(self) -> bool:
        return bool((self.head == np.arange(self.number)).all())

    def critic_inputs(self, action: PyTree) -> tuple[Array, Array | None]:
        """What the critic reads of an action that was taken beside the observation, and its output, one-hot."""
        choices, raw = self.choices_and_numbers(action)
        starts = np.cumsum([0, *(d.size for d in self.continuous.values())])
        parts = [squash(d, raw[..., a : a + d.size]) for d, a in zip(self.continuous.values(), starts)]
        numbers = jnp.concatenate(parts, axis=-1) if parts else raw
        if not self.exact:
            matters = self.relevance(action)
            one_hot = self.one_hot(choices) * jnp.repeat(matters[..., : self.rows], np.asarray(self.row_sizes), axis=-1)
            return jnp.concatenate([one_hot, numbers * matters[..., self.rows :]], axis=-1), None
        if self.number == 1:
            return numbers, None
        branch = jax.nn.one_hot(self.index(choices), self.number)
        if self.size:
            numbers = numbers * jnp.matmul(branch, self.matters[:, self.rows :].astype(np.float32))
        if self.trivial:
            return numbers, branch
        return numbers, jax.nn.one_hot(jnp.asarray(self.head)[self.index(choices)], self.heads)


def row_sizes(d: Any) -> tuple[int, ...]:
    return d.sizes if isinstance(d, MultiCategorical) else (d.n,)


def squash(d: Any, u: Array) -> Array:
    """Numbers in units of half their range, as the environment gets them."""
    return jnp.where(d.squashed, jnp.tanh(u), u)
