"""The permutation model of `regimen search` on problems of the literature: `python benchmarks/permutations.py`

Minimise the cost of a permutation with few evaluations, as in Bayesian optimisation over permutation spaces (Deshwal et
al. 2022, arXiv 2112.01049): quadratic assignment (Nugent's 12 facilities with their published numbers; instances by
Taillard's recipe for `tai..a`: both matrices symmetric, whole numbers evenly from 0 to 99) and travelling salesmen
(cities evenly in the unit square, closed tours that begin at city 0).

Every method evaluates 20 random permutations first. Then

- `model`: the Gaussian process of `experiments/search/gp.py` on Kendall's distance, and its upper bound (`ucb` of
  `experiments/search/methods.py`), climbed over the exchanges of two places from the best permutations seen and from
  random ones: the spaces are too large to list;
- `places`: the same with the share of items that stand at another place (Hamming's distance) instead of Kendall's;
- `tpe`: Optuna's TPE on a number for every item, the order of which is the permutation (random keys);
- `local`: exchanges of two places of the best permutation in random order, the first that helps is taken; a new random
  start where none does;
- `random`: random permutations.

Simple regret: how far the best permutation so far is above the least cost, in percent of it. That is the published one
of `nug12`, exact for the salesmen (dynamic programming), and the best of 3,000 local searches for Taillard's recipe.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from harness import OtherLoad, table

from regimen.experiments.search.gp import GP, Hyper
from regimen.experiments.search.methods import ucb
from regimen.reports.figure import BLUE, GREEN, GREY, ORANGE, PURPLE, headline, panels, picture
from regimen.statistics import Estimate, mean_interval

FIRST = 20  # random permutations before a method begins
REFIT = 10  # evaluations between two fits of the model's hyper-parameters
POOL = 100  # random permutations that the acquisition is looked for among
CLIMBS = 3  # permutations whose exchanges are looked at in a round
ROUNDS = 4
COLORS = {"model": BLUE, "places": GREEN, "tpe": ORANGE, "local": PURPLE, "random": GREY}
NUG12 = """
0 5 2 4 1 0 0 6 2 1 1 1
5 0 3 0 2 2 2 0 4 5 0 0
2 3 0 0 0 0 0 5 5 2 2 2
4 0 0 0 5 2 2 10 0 0 5 5
1 2 0 5 0 10 0 0 0 5 1 1
0 2 0 2 10 0 5 1 1 5 4 0
0 2 0 2 0 5 0 10 5 2 3 3
6 0 5 10 0 1 10 0 0 0 5 0
2 4 5 0 0 1 5 0 0 0 10 10
1 5 2 0 5 5 2 0 0 0 5 0
1 0 2 5 1 4 3 5 10 5 0 2
1 0 2 5 1 0 3 0 10 0 2 0"""  # flows; distances are those of a grid of 3 by 4 (Nugent, Vollmann & Ruml 1968)
NUG12_BEST = 578, (12, 7, 9, 3, 4, 8, 11, 1, 5, 6, 10, 2)  # QAPLIB: the least cost, and a permutation that has it

Cost = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Problem:
    """A cost of permutations of `size` items, and the least there is."""

    name: str
    size: int
    cost: Cost
    least: float
    source: str


def assignment(a: np.ndarray, b: np.ndarray) -> Cost:
    """The cost of a quadratic assignment: sum_ij a_ij b_p(i)p(j)."""
    return lambda p: float((a * b[np.ix_(p, p)]).sum())


def nugent() -> Problem:
    flows = np.array(NUG12.split(), float).reshape(12, 12)
    places = np.array([divmod(i, 4) for i in range(12)])
    distances = np.abs(places[:, None] - places[None]).sum(-1).astype(float)
    least, best = NUG12_BEST
    cost = assignment(distances, flows)
    assert cost(np.array(best) - 1) == least, "the numbers of nug12 are not the published ones"
    return Problem("nug12", 12, cost, least, "published")


def taillard(n: int, seed: int) -> Problem:
    rng = np.random.default_rng([n, seed])

    def matrix() -> np.ndarray:
        upper = np.triu(rng.integers(0, 100, (n, n)), 1)
        return (upper + upper.T).astype(float)

    cost = assignment(matrix(), matrix())
    return Problem(f"tai{n}a-like", n, cost, least_by_descent(cost, n, 3000), "recipe")


def salesman(n: int, seed: int) -> Problem:
    cities = np.random.default_rng([n, seed, 1]).random((n, 2))
    distances = np.sqrt(((cities[:, None] - cities[None]) ** 2).sum(-1))

    def cost(p: np.ndarray) -> float:
        tour = np.concatenate([[0], p + 1, [0]])
        return float(distances[tour[:-1], tour[1:]].sum())

    return Problem(f"tsp{n}", n - 1, cost, shortest_tour(distances), "uniform cities")


def shortest_tour(distances: np.ndarray) -> float:
    """Held & Karp: the shortest path through every set of cities to each of its members."""
    n = len(distances) - 1  # city 0 is where it starts
    best = np.full((1 << n, n), np.inf)
    best[1 << np.arange(n), np.arange(n)] = distances[0, 1:]
    for members in range(1, 1 << n):
        for last in range(n):
            if members >> last & 1 and members != 1 << last:
                before = best[members ^ (1 << last)] + distances[1:, last + 1]
                best[members, last] = before.min()
    return float((best[-1] + distances[1:, 0]).min())


def least_by_descent(cost: Cost, n: int, starts: int) -> float:
    rng, least = np.random.default_rng(n), np.inf
    for _ in range(starts):
        p = rng.permutation(n)
        value, better = cost(p), True
        while better:
            better = False
            for q in exchanges(p):
                if (new := cost(q)) < value:
                    p, value, better = q, new, True
                    break
        least = min(least, value)
    return least


@cache
def pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(n, 1)


def exchanges(p: np.ndarray) -> np.ndarray:
    """Every permutation that has two places exchanged.  # [pairs, n]"""
    i, j = pairs(len(p))
    out = np.repeat(p[None], len(i), 0)
    rows = np.arange(len(i))
    out[rows, i], out[rows, j] = p[j], p[i]
    return out


class Pool:
    """Some permutations as the space of a Gaussian process: a `Space` of `experiments/search/space.py` checks that its
    kernel is positive definite, which is known of Kendall's and takes longer than the search."""

    factors = ("distance",)

    def __init__(self, orders: np.ndarray, by_place: bool = False):
        self.orders = orders
        if by_place:
            self.distances = (orders[:, None] != orders[None]).mean(-1)
            return
        i, j = pairs(orders.shape[1])
        ranks = np.argsort(orders, 1)
        sign = np.where(ranks[:, i] < ranks[:, j], 1.0, -1.0)
        self.distances = (1 - sign @ sign.T / len(i)) / 2  # share of pairs in another order

    def __len__(self) -> int:
        return len(self.orders)

    def kernel(self, theta: np.ndarray, some: np.ndarray | None = None) -> np.ndarray:
        d = self.distances if some is None else self.distances[np.ix_(some, some)]
        return np.exp(-theta[0] * d)


def start(n: int, seed: int) -> np.ndarray:
    """The permutations that all methods begin with.  # [FIRST, n]"""
    rng = np.random.default_rng([seed, 7])
    return np.array([rng.permutation(n) for _ in range(FIRST)])


def iter_of(orders: np.ndarray) -> Iterator[np.ndarray]:
    """The rows as a generator, which does not mind being sent what each costs."""
    return (p for p in orders)


def by_model(problem: Problem, seed: int, by_place: bool = False) -> Iterator[np.ndarray]:
    """Permutations to evaluate; the caller sends what each costs."""
    rng, n = np.random.default_rng([seed, 1]), problem.size
    orders, values = [], []
    for p in start(n, seed):
        orders.append(p)
        values.append(-(yield p))
    hyper: Hyper | None = None
    while True:
        if len(values) % REFIT == 0:
            hyper = None
        space = Pool(np.array(orders), by_place)
        hyper = GP.fit(space, range(len(values)), values, hyper=hyper).hyper  # type: ignore[arg-type]
        p = highest(orders, values, hyper, rng, n, by_place)
        orders.append(p)
        values.append(-(yield p))


def highest(
    orders: list[np.ndarray], values: list[float], hyper: Hyper, rng: np.random.Generator, n: int, by_place: bool
) -> np.ndarray:
    """A permutation with a high acquisition that has not been evaluated: the best of a pool, then of the exchanges of
    the best of it, until that helps no more."""
    known = {p.tobytes() for p in orders}
    best = np.argsort(values)[::-1][:CLIMBS]
    pool = [rng.permutation(n) for _ in range(POOL)] + [q for k in best for q in exchanges(orders[k])]
    top, choice = -np.inf, None
    for _ in range(ROUNDS):
        fresh = list({p.tobytes(): p for p in pool if p.tobytes() not in known}.values())
        space = Pool(np.array([*orders, *fresh]), by_place)
        gp = GP.fit(space, range(len(values)), values, hyper=hyper)  # type: ignore[arg-type]
        seen = np.arange(len(space)) < len(values)
        scores = ucb(gp.posterior(), None, seen, seen)[len(values) :]
        order = np.argsort(scores)[::-1]
        if scores[order[0]] <= top:
            break
        top, choice = scores[order[0]], fresh[order[0]]
        pool = [q for k in order[:CLIMBS] for q in exchanges(fresh[k])]
    assert choice is not None
    return choice


def by_descent(problem: Problem, seed: int) -> Iterator[np.ndarray]:
    rng, n = np.random.default_rng([seed, 2]), problem.size
    best, value = None, np.inf
    for p in start(n, seed):
        if (cost := (yield p)) < value:
            best, value = p, cost
    while True:
        assert best is not None
        for q in rng.permutation(exchanges(best)):
            if (cost := (yield q)) < value:
                best, value = q, cost
                break
        else:
            best = rng.permutation(n)
            value = yield best


def by_chance(problem: Problem, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng([seed, 3])
    yield from iter_of(start(problem.size, seed))
    while True:
        yield rng.permutation(problem.size)


def by_tpe(problem: Problem, seed: int, budget: int) -> list[float]:
    """What Optuna's TPE evaluates; the same first permutations, as keys that sort into them."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    n, costs = problem.size, []
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST))
    for p in start(n, seed):
        study.enqueue_trial({f"k{item}": (place + 0.5) / n for place, item in enumerate(p)})

    def objective(trial: optuna.Trial) -> float:
        costs.append(problem.cost(np.argsort([trial.suggest_float(f"k{i}", 0, 1) for i in range(n)])))
        return costs[-1]

    study.optimize(objective, n_trials=budget)
    return costs


METHODS = {"model": by_model, "places": partial(by_model, by_place=True), "local": by_descent, "random": by_chance}


def evaluated(method: str, problem: Problem, seed: int, budget: int) -> list[float]:
    """The costs of the permutations that a method tries."""
    if method == "tpe":
        return by_tpe(problem, seed, budget)
    proposals = METHODS[method](problem, seed)
    costs, p = [], next(proposals)
    for _ in range(budget):
        costs.append(problem.cost(p))
        p = proposals.send(costs[-1])  # type: ignore[attr-defined]
    return costs


def regret(problem: Problem, costs: list[float]) -> np.ndarray:
    """Simple regret after every evaluation, in percent of the least cost."""
    return 100 * (np.minimum.accumulate(costs) - problem.least) / problem.least


def estimate(x: np.ndarray) -> Estimate:
    return Estimate.of(float(np.mean(x)), mean_interval(x))


def words(e: Estimate) -> str:
    return f"{e.value:.1f} [{e.low:.1f}, {e.high:.1f}]"


def report(curves: dict[str, dict[str, np.ndarray]], at: list[int]) -> None:
    """The table, and a line for every problem and opponent."""
    rows = []
    for name, methods in curves.items():
        rows += [[name, method, *(words(estimate(x[:, n - 1])) for n in at)] for method, x in methods.items()]
    print(table(["problem", "method", *(f"regret after {n}, %" for n in at)], rows))
    for name, methods in curves.items():
        ours = estimate(methods["model"][:, -1]) if "model" in methods else None
        for method, x in methods.items():
            if ours is not None and method not in ("model", "places"):
                other = estimate(x[:, -1])
                verdict = "meets" if ours.high < other.low else "MISSES"
                print(f"{name}: model {words(ours)} below {method} {words(other)}, intervals apart: {verdict}")


def draw(curves: dict[str, dict[str, np.ndarray]], path: Path, seeds: int) -> None:
    with picture(path, 10, 6.2) as figure:
        headline(figure, f"Simple regret against evaluations: mean and 95 % interval of {seeds} seeds")
        for ax, (name, methods) in zip(panels(figure, len(curves), 2), curves.items()):
            for method, x in methods.items():
                steps = np.arange(1, x.shape[1] + 1)
                bands = np.array([mean_interval(column) for column in x.T])
                ax.fill_between(steps, bands[:, 0], bands[:, 1], color=COLORS[method], alpha=0.15, linewidth=0)
                ax.plot(steps, x.mean(0), color=COLORS[method], linewidth=1.8, label=method)
            ax.set(title=name, xlabel="evaluations", ylabel="regret, % of the least cost", ylim=(0, None))
            ax.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=150)
    parser.add_argument("--problems", nargs="*", default=["nug12", "tai12a-like", "tsp10", "tsp15"])
    parser.add_argument("--methods", nargs="*", default=list(COLORS))
    parser.add_argument("--out", type=Path, default=Path("searches/permutations"))
    args = parser.parse_args()
    makers = {"nug12": nugent, "tai12a-like": lambda: taillard(12, 0), "tai15a-like": lambda: taillard(15, 0)}
    makers |= {f"tsp{n}": (lambda n=n: salesman(n, 0)) for n in (10, 12, 15)}
    load, begun = OtherLoad(), time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    curves: dict[str, dict[str, list[np.ndarray]]] = {}
    problems = [makers[name]() for name in args.problems]
    for p in problems:
        print(f"{p.name} ({p.source}): least cost {p.least:g}", flush=True)
    for seed, problem in itertools.product(range(args.seeds), problems):
        for method in args.methods:
            curve = regret(problem, evaluated(method, problem, seed, args.budget))
            curves.setdefault(problem.name, {}).setdefault(method, []).append(curve)
        (args.out / "curves.json").write_text(
            json.dumps({name: {m: [c.tolist() for c in x] for m, x in of.items()} for name, of in curves.items()})
        )
        print(f"seed {seed}, {problem.name}: {time.perf_counter() - begun:.0f} s", flush=True)
    whole = {name: {m: np.array(x) for m, x in of.items()} for name, of in curves.items()}
    report(whole, [n for n in (50, 100, 150, 200) if n <= args.budget] or [args.budget])
    draw(whole, args.out / "regret.png", args.seeds)
    print(load)


if __name__ == "__main__":
    main()
