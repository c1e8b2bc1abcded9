"""What the tuned defaults learn, over seeds: the table of docs/results.md.

    python benchmarks/learning.py cartpole acrobot pendulum mountain_car mountain_car_continuous --seeds 10

Returns are of the greedy policy at the end of each run, on 100 episodes that nothing was selected on. A run ends when
its preset's rule says so; with --full it trains for its whole budget.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

# Gymnasium's own thresholds; Pendulum has none, Acrobot's is below what is asked of us
THRESHOLDS = {"pendulum": -200.0, "acrobot": -90.0}
HEAD = ["env", "steps", "seeds", "final greedy return", "IQM (95% interval)", "best checkpoint"]
HEAD += ["solved", "steps to solved", "wall s"]


def learn(env: str, seeds: int, total_steps: int | None, full: bool, folder: Path, **settings: Any) -> list[str]:
    """One row of the table."""
    import numpy as np

    import regimen
    from regimen.envs import registry
    from regimen.statistics import bootstrap_interval, iqm

    if total_steps is not None:
        settings["total_steps"] = total_steps
    if full:
        settings |= {"stop.metric": None, "stop.above": None}
    start = time.monotonic()
    result = regimen.train(env, seeds=seeds, out=str(folder), **({"track.enabled": False} | settings))
    seconds = time.monotonic() - start
    name = env.removeprefix("gym:").removesuffix("-v1").lower()
    threshold = THRESHOLDS.get(name, registry.resolve(env).return_threshold)
    final = np.array([run.summary["final_return_mean"] for run in result.runs])
    best = np.array([run.summary["eval_return_mean"] for run in result.runs])
    steps = np.array([run.summary["env_steps"] for run in result.runs])
    reached = [first_at(run.history, threshold) for run in result.runs] if threshold is not None else []
    solved = [n for n in reached if n is not None]
    low, high = bootstrap_interval(final, iqm)
    used = f"{steps[0]:,}" if np.ptp(steps) == 0 else f"{np.median(steps):,.0f} ({steps.min():,} to {steps.max():,})"
    return [
        env,
        used,
        str(len(final)),
        f"{final.mean():.1f} ± {final.std():.1f}",
        f"{iqm(final):.1f} ({low:.1f} to {high:.1f})",
        f"{best.mean():.1f} ± {best.std():.1f}",
        f"{len(solved)} of {len(final)} (>= {threshold:g})" if threshold is not None else "no threshold",
        f"{np.median(solved):,.0f} ({min(solved):,} to {max(solved):,})" if solved else "never",
        f"{seconds:.0f}",
    ]


def first_at(history: list[dict[str, Any]], threshold: float) -> int | None:
    """Env steps at the first evaluation at or above the threshold."""
    return next((row["env_steps"] for row in history if row.get("eval/return_mean", -float("inf")) >= threshold), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("envs", nargs="+", metavar="ENV")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--total-steps", type=lambda x: int(float(x)), help="another budget than the tuned one")
    parser.add_argument("--full", action="store_true", help="train for the whole budget, without the stopping rule")
    parser.add_argument("--keep", type=Path, help="write the run directories here instead of to a temporary folder")
    args = parser.parse_args()
    import jax

    print(
        f"jax {jax.__version__}, {jax.default_backend()}, {os.cpu_count()} cores; {args.seeds} seeds in one program\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for env in args.envs:
            out = (args.keep or Path(folder)) / env.replace(":", "-")
            rows.append(learn(env, args.seeds, args.total_steps, args.full, out))
            print(harness.table(HEAD, rows[-1:]).splitlines()[-1], flush=True)  # a first look; the table follows
    print("\n" + harness.table(HEAD, rows))
    print("\nfinal greedy return: mean ± std over seeds; steps and steps to solved: median (range).")


if __name__ == "__main__":
    main()
