"""What can be searched: finitely many candidates, with names and with distances that a kernel is made of.

The kernel of every space is exp(-sum_f theta_f d_f(a, b)). With Kendall's distance on permutations it is the Mallows
kernel, with one 0/1 distance per choice of a grid a product of Hamming kernels, with |i - j| on ordered choices a
product of Laplace kernels: all positive definite for every theta > 0. Candidates that are known to be equal are one
candidate, whose kernel is the mean over its members (the covariance of a function that is averaged over them).
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from regimen.errors import ConfigError, nearest
from regimen.words import plural

MOST = 3000  # candidates: the kernel has the square of it


@dataclass(frozen=True, eq=False)
class Space:
    """Candidates 0..N-1. Build one with `permutations` or `grid`, or from distances of your own."""

    name: str
    keys: tuple[str, ...]  # the name of each candidate, in files and on the command line
    distances: np.ndarray  # [F, M, M] between M points, each 0 (equal) to 1
    values: tuple[Any, ...] = ()  # what each candidate is; its key when not given
    factors: tuple[str, ...] = ()  # names of the F distances
    members: tuple[tuple[int, ...], ...] = ()  # points of each candidate; candidate i is point i when not given
    details: Mapping[str, object] = field(default_factory=dict)  # what else makes it another space

    def __post_init__(self) -> None:
        n, d = len(self.keys), np.asarray(self.distances, np.float64)
        object.__setattr__(self, "distances", d)
        object.__setattr__(self, "values", tuple(self.values) or self.keys)
        object.__setattr__(self, "members", tuple(self.members) or tuple((i,) for i in range(n)))
        object.__setattr__(self, "factors", tuple(self.factors) or tuple(f"d{f}" for f in range(len(d))))
        if n < 2:
            raise refused(self.name, f"{plural(n, 'candidate')}; there is nothing to search")
        if n > MOST:
            raise refused(self.name, f"{n:,} candidates are too many; search at most {MOST:,} of them")
        if len(set(self.keys)) < n:
            twice = next(key for key in self.keys if self.keys.count(key) > 1)
            raise refused(self.name, f"the name '{twice}' is given to several candidates")
        points = 1 + max(max(m) for m in self.members)
        if d.ndim != 3 or d.shape[1:] != (points, points) or not len(d):
            raise refused(self.name, f"distances must have the shape [factors, {points}, {points}], not {d.shape}")
        if len(self.values) != n or len(self.members) != n or len(self.factors) != len(d):
            raise refused(self.name, "values, members and factors must fit keys and distances")
        if not np.isfinite(d).all() or (d < 0).any() or not np.allclose(d, d.transpose(0, 2, 1)):
            raise refused(self.name, "distances must be finite, not negative and symmetric")
        if np.abs(np.diagonal(d, axis1=1, axis2=2)).max() > 0:
            raise refused(self.name, "a candidate must have distance 0 to itself")
        smallest = np.linalg.eigvalsh(self.kernel(np.ones(len(d))))[0]
        if smallest < -1e-8 * n:
            raise refused(
                self.name,
                f"exp(-distance) is not positive definite (smallest eigenvalue {smallest:.2g}); "
                "use distances of negative type, such as Kendall's, Hamming's or |i - j|",
            )

    @cached_property
    def distance(self) -> np.ndarray:
        """The distance of candidates, the mean over factors: from whom to inherit.  # [N, N]"""
        return self.over_members(self.distances.mean(0))

    @cached_property
    def single(self) -> bool:
        """Candidate i is point i."""
        return all(m == (i,) for i, m in enumerate(self.members))

    @cached_property
    def levels(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The values [V] of one distance with few of them, between candidates of several points, and which share of the
        pairs of points has each [V, N, N]. It spares the kernel all of the points."""
        if self.single or len(self.distances) > 1:
            return None
        values = np.unique(self.distances)
        if len(values) > 50:
            return None
        return values, np.stack([self.over_members((self.distances[0] == v).astype(np.float64)) for v in values])

    def __len__(self) -> int:
        return len(self.keys)

    def over_members(self, between: np.ndarray) -> np.ndarray:
        """Means over the points of each candidate.  # [M, M] -> [N, N]"""
        if self.single:
            return between
        share = np.zeros((len(self), between.shape[0]))
        for i, points in enumerate(self.members):
            share[i, list(points)] = 1 / len(points)
        return share @ between @ share.T

    def kernel(self, theta: np.ndarray, some: np.ndarray | None = None) -> np.ndarray:
        """Correlations between all candidates, or some of them.  # [F] -> [N, N], ones on the diagonal"""
        if some is not None:
            if not self.single:
                return self.kernel(theta)[np.ix_(some, some)]
            return np.exp(-np.einsum("f,fij->ij", theta, self.distances[:, some[:, None], some]))
        if self.levels is not None:
            values, shares = self.levels
            raw = np.einsum("v,vij->ij", np.exp(-theta[0] * values), shares)
        else:
            raw = self.over_members(np.exp(-np.einsum("f,fij->ij", theta, self.distances)))
        scale = np.sqrt(np.diag(raw))
        return raw / np.outer(scale, scale)

    def text(self, candidate: int) -> str:
        """The candidate in full, where its name is short for something."""
        value = self.values[candidate]
        return self.keys[candidate] if isinstance(value, (tuple, dict, list)) else str(value)

    def index(self, key: str) -> int:
        """The candidate of that name."""
        if key not in self.keys:
            raise refused(self.name, f"no candidate '{key}'{nearest(key, self.keys)}")
        return self.keys.index(key)

    def nearest(self, candidate: int, among: Sequence[int]) -> int | None:
        """The closest of some candidates; of equally close ones the first in the list."""
        return min(among, key=lambda other: self.distance[candidate, other]) if among else None

    def signature(self) -> dict[str, object]:
        """What a directory must have been begun with to be continued."""
        candidates = {"candidates": list(self.keys), "factors": list(self.factors)}
        return {"space": self.name, **self.details, **candidates}  # the details say why the candidates are others


def refused(name: str, text: str) -> ConfigError:
    """The error of a space that cannot be searched."""
    return ConfigError(f"space '{name}': {text}")


def kendall_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Kendall distances (0..1) between rank vectors of any length.  # [N, n], [M, n] -> [N, M]"""
    i, j = np.triu_indices(a.shape[1], 1)
    if not len(i):
        return np.zeros((len(a), len(b)))
    before_a = a[:, i] < a[:, j]  # [N, pairs]
    before_b = b[:, i] < b[:, j]
    return (before_a[:, None, :] != before_b[None, :, :]).mean(-1)


def permutations(
    items: Sequence[Hashable], name: str = "permutations", sample: int | None = None, seed: int = 0
) -> Space:
    """Every order of some items, or `sample` of them drawn at random where they are too many; values are tuples."""
    if len(set(items)) < len(items):
        raise refused(name, f"items are given twice: {', '.join(map(str, items))}")
    total = math.factorial(len(items))
    if sample is None or sample >= total:
        if total > MOST:
            raise refused(name, f"{len(items)} items have {total:,} orders, more than {MOST:,}; give `sample`")
        orders = list(itertools.permutations(range(len(items))))
    else:
        rng, shuffles = np.random.default_rng(seed), {}
        while len(shuffles) < sample:
            shuffles[tuple(rng.permutation(len(items)).tolist())] = None
        orders = list(shuffles)
    ranks = np.argsort(np.array(orders), axis=1)  # position of each item
    values = tuple(tuple(items[i] for i in order) for order in orders)
    keys = tuple(">".join(map(str, value)) for value in values)
    return Space(name, keys, kendall_matrix(ranks, ranks)[None], values, ("kendall",))


def grid(choices: Mapping[str, Sequence[object]], name: str = "grid", ordered: Sequence[str] = ()) -> Space:
    """Every combination of some choices; values are dicts. `ordered` names those whose neighbours are alike."""
    for choice in ordered:
        if choice not in choices:
            raise refused(name, f"ordered: no choice '{choice}'{nearest(choice, choices)}")
    for choice, options in choices.items():
        if not options or len(set(map(str, options))) < len(options):
            raise refused(name, f"'{choice}' needs options that differ, not {list(options)}")
    places = list(itertools.product(*(range(len(options)) for options in choices.values())))
    where = np.array(places)  # [N, F]
    gaps = np.abs(where[:, None, :] - where[None, :, :]).transpose(2, 0, 1).astype(np.float64)
    for f, (choice, options) in enumerate(choices.items()):
        gaps[f] = gaps[f] / max(len(options) - 1, 1) if choice in ordered else gaps[f] > 0
    values = tuple({c: options[i] for (c, options), i in zip(choices.items(), place)} for place in places)
    keys = tuple(",".join(f"{c}={v}" for c, v in value.items()) for value in values)
    factors = [f for f, options in enumerate(choices.values()) if len(options) > 1]
    return Space(name, keys, gaps[factors], values, tuple(list(choices)[f] for f in factors))
