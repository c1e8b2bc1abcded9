"""SAC's env steps per second on Pendulum, learning included, beside Stable-Baselines3's in the same run.

    python benchmarks/sac_speed.py --peer-python /path/to/venv/bin/python

Both: one environment, networks 256-256 with relu, batches of 256, one gradient step for each env step, the same number
of cores and threads (`--threads`). They take turns within each round, so that other load touches both. Then 8 seeds in
one program against one seed: what a seed costs beside others.
"""

from __future__ import annotations

import argparse
import os
from statistics import median
from typing import Any

import harness

SETTINGS: dict[str, Any] = {
    "preset": "sac",
    "rollout": {"steps": 8, "num_envs": 1},
    "network": {"hidden": [256, 256], "activation": "relu"},
    "algo.batch_size": 256,
    "algo.update_ratio": 1.0,
    "algo.learning_starts": 100,
    "total_steps": 10**6,
}


def make_engine(seeds: int, **settings: Any) -> Any:
    """The engine `regimen train pendulum --algo sac` would make, warmed up."""
    from regimen.envs import registry
    from regimen.settings import build_config
    from regimen.training.engine import Limits
    from regimen.training.trainer import make_engine

    config = build_config("pendulum", algo="sac", overrides=SETTINGS | settings)
    engine = make_engine(config, registry.resolve("pendulum"), list(range(seeds)), lambda: False)
    for _ in range(4):
        engine.advance([Limits(8)] * seeds)
    return engine


def speed(engine: Any, seconds: float) -> float:
    """Env steps per second, summed over the engine's seeds."""
    import time

    from regimen.training.engine import Limits

    total, start = 0, time.perf_counter()
    while True:
        total += sum(int(p.steps.sum()) for p in engine.advance([Limits(16)] * engine.learners))
        taken = time.perf_counter() - start
        if taken >= seconds:
            return total / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="an interpreter that has Stable-Baselines3")
    parser.add_argument("--no-peer", action="store_true", help="measure only Regimen")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="cores and threads of either")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])  # of both: the peer is a child
    from regimen.training import device

    print(f"regimen: device {device.configure('cpu', True)}; {args.threads} threads each")
    python = None if args.no_peer else harness.peer_python(args.peer_python)
    load = harness.OtherLoad()
    one, many = make_engine(1), make_engine(args.seeds)
    peer = harness.Peer(python, args.threads) if python else None
    ours, theirs, together = [], [], []
    for _ in range(args.rounds):
        ours.append(speed(one, args.seconds))
        if peer is not None:
            theirs.append(peer.steps_per_second(1, args.seconds, "sac"))
        together.append(speed(many, args.seconds))
    rows = [["Regimen, 1 seed", harness.spread(ours), ""]]
    if peer is not None:
        print("peer:", ", ".join(f"{name} {version}" for name, version in peer.versions.items()))
        peer.close()
        ratios = [a / b for a, b in zip(ours, theirs)]
        shown = f"{harness.verdict(median(ratios), 1.6, 2.0)} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows = [["Regimen, 1 seed", harness.spread(ours), shown], ["Stable-Baselines3", harness.spread(theirs), "1"]]
    gain = median(a / b for a, b in zip(together, ours))
    rows.append([f"Regimen, {args.seeds} seeds in one program", harness.spread(together), f"{gain:.2f}x one seed's"])
    print(harness.table(["SAC on Pendulum", "steps/s", "ratio"], rows) + f"\n\n{load}")


if __name__ == "__main__":
    main()
