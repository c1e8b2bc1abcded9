"""Training steps per second of the empowerment learner.

    python benchmarks/empowerment_speed.py
    python benchmarks/empowerment_speed.py --world world/corr5 --steps 20000

One env step for each training step, networks of two hidden layers of 16, batches of 32. `all` learns five networks from
experience, `swept` two from all reachable states.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

COMMON: dict[str, Any] = {
    "algo.batch_size": 32,
    "total_steps": 10**7,
    "rollout.steps": 1024,
    "algo.training_steps_per_env_step": 1.0,
    "algo.beta_r_rampup_steps": 500,
}
NETWORKS = {"algo.hidden_dim": 16}
TABLES = {"algo.use_lookup_tables": True}


def stages(*names: str) -> dict[str, Any]:
    return {f"algo.warmup_{name}_steps": 200 for name in names}


SWEPT = {"algo.source": "sweep", "algo.x_h_use_network": False} | stages("v_h_e", "q_r")
ALL = {"algo.u_r_use_network": True, "algo.v_r_use_network": True} | stages("v_h_e", "x_h", "u_r", "q_r", "v_r")
CASES = {
    "networks, swept": NETWORKS | SWEPT,
    "networks, all": NETWORKS | ALL,
    "tables, swept": TABLES | SWEPT,
    "tables, all": TABLES | ALL,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Training steps per second.")
    parser.add_argument("--world", default="world/bush1x7")
    parser.add_argument("--steps", type=int, default=20_480, help="training steps timed in each case")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"{args.world}: the best of {args.rounds} rounds of {args.steps:,} training steps")
    print(f"{'case':<20}{'steps/s':>10}{'compile s':>11}")
    for name, settings in CASES.items():
        speed, compiling = measure(args.world, COMMON | settings, args.steps, args.rounds)
        print(f"{name:<20}{speed:>10,.0f}{compiling:>11.1f}", flush=True)


def measure(world: str, settings: dict[str, Any], steps: int, rounds: int) -> tuple[float, float]:
    """Training steps per second without compilation, and the seconds that took."""
    from regimen.config.layers import build_config
    from regimen.engines.base import Limits
    from regimen.envs import registry
    from regimen.runs.build import make_engine

    config = build_config(world, algo="empowerment", overrides=settings)
    engine: Any = make_engine(config, registry.resolve(world), [0], lambda: False)
    per_update: Any = config.rollout.steps
    engine.advance([Limits(4)])
    best = 0.0
    for _ in range(rounds):
        begun, done = time.monotonic(), 0
        while done * per_update < steps:
            done += engine.advance([Limits(steps // per_update)])[0].updates
        best = max(best, done * per_update / (time.monotonic() - begun))
    return best, engine.compile_seconds


if __name__ == "__main__":
    main()
