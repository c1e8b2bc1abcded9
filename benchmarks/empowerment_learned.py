"""Learned against exact: trains every small world with several seeds and the settings of `world.any.yaml`, and prints
the table of docs/results.md.

    python benchmarks/empowerment_learned.py                      # five seeds of every world
    python benchmarks/empowerment_learned.py --seeds 2 --worlds world/tiny3 world/corr5 --tables
    python benchmarks/empowerment_learned.py --replay             # only from what was collected, X_h learned too
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import regimen
from regimen.domains.empowerment.study import from_replay

WORLDS = ("tiny3", "corr5", "way1x5", "free3x3", "asym1x7", "unequal", "two_robots", "bush1x7")
TABLES = {"use_lookup_tables": True, "lr_v_h_e": 1.0, "lr_q_r": 1.0, "lr_decay": "constant"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Learned against exact.")
    parser.add_argument("--worlds", nargs="+", default=[f"world/{name}" for name in WORLDS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", action="store_true", help="lookup tables instead of networks")
    parser.add_argument("--replay", action="store_true", help="rows from the replay instead of all reachable states")
    parser.add_argument("--steps", type=int, default=131_072, help="with --replay")
    args = parser.parse_args()
    settings = (TABLES if args.tables else {}) | (from_replay(args.steps) if args.replay else {})
    print("| world | pairs | V_r(s0) exact | its error | TV mean | TV max | log ratios | best action | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for world in args.worlds:
        print(row(world, args.seeds, settings), flush=True)


def row(world: str, seeds: int, settings: dict) -> str:
    """One line of the table; each figure is the worst of all seeds."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        options = {"track": False, "eval": {"every": "never"}, "log": {"episodes": False}}
        result = regimen.train(world, algo="empowerment", seeds=seeds, out=f"{folder}/run", **options, **settings)
        seconds = time.monotonic() - begun
        runs = [Path(r.run_dir) for r in result.runs] or [Path(result.run_dir)]
        found = [regimen.empowerment.validate(run).to_dict() for run in runs]
    worst = {name: np.max([one[name] for one in found]) for name in found[0] if name not in ("run", "env")}
    return (
        f"| `{world}` | {found[0]['pairs']:,} | {found[0]['v_r_start_exact']:.4f} | {worst['v_r_start_error']:.3%} "
        f"| {worst['tv_mean']:.4f} | {worst['tv_max']:.4f} | {worst['log_ratio_rmse']:.4f} "
        f"| {min(one['argmax_agreement'] for one in found):.1%} | {seconds:.0f} |"
    )


if __name__ == "__main__":
    main()
