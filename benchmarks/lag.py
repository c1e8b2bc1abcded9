"""What batches of an older policy do to IMPALA and APPO, by what is done about it: the lag table of docs/results.md.

    python benchmarks/lag.py impala --seeds 5 --steps 150000
    python benchmarks/lag.py appo --variants shipped none --lags 0 8 --seeds 5 --steps 150000
    python benchmarks/lag.py impala --env acrobot --variants shipped raw --lags 8 --seeds 3 --steps 300000

Each update acts with the policy of `lag` updates ago (`rollout.lag`). A cell is the mean over seeds of the greedy
return, with its 95% bootstrap interval: of the best policy by evaluation and of the last one, both on new episodes.
Variants:

  shipped  as `regimen train` does it: advantages are normalised, then weighted
  none     no correction: every weight is 1
  raw      weighted advantages that are not normalised
  inside   the mistake of normalising weighted advantages, which reinforces what has become likelier

`--set algo.lr=1e-3` changes all variants.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness

VARIANTS: dict[str, dict[str, Any]] = {
    "shipped": {},
    "none": {"algo.correction": "none"},
    "raw": {"algo.normalize_advantage": False},
    "inside": {"algo.normalize_advantage": False},  # `weight_inside` normalises afterwards
}
HEAD = ["algorithm", "variant", "lag", "best (95% interval)", "final (95% interval)", "finals by seed"]


@contextmanager
def weight_inside(name: str) -> Iterator[None]:
    """While it lasts, the algorithm normalises what is weighted already."""
    from regimen.algorithms.base import register
    from regimen.config.schema import ALGORITHMS, register_algorithm
    from regimen.normalize import RunningStats

    entry = ALGORITHMS[name]

    @register
    class Inside(entry.load()):
        def rows(self, state, batch):
            rows, metrics, state = super().rows(state, batch)
            stats = RunningStats.of(rows.advantage, batch.valid)
            return rows.replace(advantage=(rows.advantage - stats.mean) / (stats.std() + 1e-8)), metrics, state

    register_algorithm(name, Inside, entry.config)
    try:
        yield
    finally:
        ALGORITHMS[name] = entry


def train(algo: str, variant: str, lag: int, folder: Path, env: str, **settings: Any) -> list[str]:
    """One row of the table."""
    import regimen

    settings |= VARIANTS[variant] | {"rollout.lag": lag, "track.enabled": False}
    settings |= {"stop.metric": None, "stop.above": None}
    out = str(folder / f"{algo}-{variant}-{lag}")
    if variant == "inside":
        with weight_inside(algo):
            result = regimen.train(env, algo=algo, out=out, **settings)
    else:
        result = regimen.train(env, algo=algo, out=out, **settings)
    runs = result.runs or [result]
    best, final = ([run.summary[f"{name}_return_mean"] for run in runs] for name in ("eval", "final"))
    return [algo, variant, str(lag), interval(best), interval(final), " ".join(f"{x:.3g}" for x in final)]


def interval(values: list[float]) -> str:
    """Mean over seeds and its interval."""
    import numpy as np

    from regimen.statistics import bootstrap_interval

    low, high = bootstrap_interval(values, np.mean)
    return f"{np.mean(values):.4g} ({low:.4g} to {high:.4g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algos", nargs="+", choices=["impala", "appo"], metavar="ALGO")
    parser.add_argument("--env", default="cartpole")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--lags", nargs="+", type=int, default=[0, 1, 4, 8, 16])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=lambda x: int(float(x)), default=150_000)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all variants")
    args = parser.parse_args()
    common = dict(item.split("=", 1) for item in args.set)
    print(f"{args.env}, {args.steps:,} steps, {args.seeds} seeds in one program; {common}\n", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for algo in args.algos:
            for variant in args.variants:
                for lag in args.lags:
                    settings = common | {"seeds": args.seeds, "total_steps": args.steps}
                    rows.append(train(algo, variant, lag, Path(folder), args.env, **settings))
                    print(harness.table(HEAD, rows[-1:]).splitlines()[-1], flush=True)  # a first look
    print("\n" + harness.table(HEAD, rows))


if __name__ == "__main__":
    main()
