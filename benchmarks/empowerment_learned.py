"""Learned against exact: trains worlds with several seeds and the settings of `world.any.yaml`, which learns from what
agents did, and prints the table of docs/results.md from what `regimen validate` says of the saved runs.

    python benchmarks/empowerment_learned.py                      # five seeds of every world
    python benchmarks/empowerment_learned.py --seeds 2 --worlds world/tiny3 world/corr5 --tables
    python benchmarks/empowerment_learned.py --sampled            # targets from observed transitions only
    python benchmarks/empowerment_learned.py --sweep              # the reference: rows from all reachable states
    python benchmarks/empowerment_learned.py --set batch_size=256 lr_q_r=0.005 --out seeds.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml

import regimen

WORLDS = (
    *("tiny3", "corr5", "way1x5", "two_robots", "free3x3", "unequal", "asym1x7"),
    *("trivial", "risky_crossing", "deactivate_destroy", "bush1x7"),
)
TABLES = {"use_lookup_tables": True, "lr_v_h_e": 1.0, "lr_x_h": 1.0, "lr_q_r": 1.0, "lr_decay": "constant"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Learned against exact.")
    parser.add_argument("--worlds", nargs="+", default=[f"world/{name}" for name in WORLDS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", action="store_true", help="lookup tables instead of networks")
    parser.add_argument("--sampled", action="store_true", help="targets from observed transitions, not from the model")
    parser.add_argument("--sweep", action="store_true", help="rows from all reachable states instead of experience")
    parser.add_argument("--steps", type=int, help="env steps instead of the preset's")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="other settings")
    parser.add_argument("--out", type=Path, help="a file for the figures of every seed")
    args = parser.parse_args()
    settings = TABLES if args.tables else {}
    settings |= {"use_model_based_targets": False} if args.sampled else {}
    settings |= {"source": "sweep"} if args.sweep else {}
    settings |= {"total_steps": args.steps} if args.steps else {}
    settings |= {name: yaml.safe_load(value) for name, value in (text.split("=", 1) for text in args.set)}
    figures = {}
    print("| world | pairs | V_r(s0) exact | its error | TV by visits | TV mean | TV max | best action | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for world in args.worlds:
        figures[world], seconds = measure(world, args.seeds, settings)
        print(row(world, figures[world], seconds), flush=True)
        if args.out:
            args.out.write_text(json.dumps(figures, indent=1))


def measure(world: str, seeds: int, settings: dict) -> tuple[list[dict], float]:
    """What `regimen validate` says of the run of every seed, and the seconds that training took."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        options = {"track": False, "eval": {"every": "never"}, "log": {"episodes": False}}
        result = regimen.train(world, algo="empowerment", seeds=seeds, out=f"{folder}/run", **options, **settings)
        seconds = time.monotonic() - begun
        runs = [Path(r.run_dir) for r in result.runs] or [Path(result.run_dir)]
        return [regimen.empowerment.validate(run, plots=False).to_dict() | {"run": ""} for run in runs], seconds


def row(world: str, found: list[dict], seconds: float) -> str:
    """One line of the table; each figure is the worst of all seeds."""
    worst = {name: np.max([one[name] for one in found]) for name in found[0] if name not in ("run", "env")}
    return (
        f"| `{world}` | {found[0]['pairs']:,} | {found[0]['v_r_start_exact']:.4f} | {worst['v_r_start_error']:.3%} "
        f"| {worst['tv_visits']:.4f} | {worst['tv_mean']:.4f} | {worst['tv_max']:.4f} "
        f"| {min(one['argmax_agreement'] for one in found):.1%} | {seconds:.0f} |"
    )


if __name__ == "__main__":
    main()
