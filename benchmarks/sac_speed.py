"""SAC's env steps per second on Pendulum, learning included, beside Stable-Baselines3's in the same run.

    python benchmarks/sac_speed.py --peer-python /path/to/venv/bin/python

Both: one environment, networks 256-256 with relu, batches of 256, one gradient step for each env step, the same number
of cores (`--threads`). The peer runs with 1 torch thread and with its default; the ratio is to the better one of each
round. They take turns within each round, so that other load touches all. Then 8 seeds in one program against one seed:
what a seed costs beside others.
"""

from __future__ import annotations

import argparse
import os
from statistics import median
from typing import Any

import harness

THREADS = {"1 thread": 1, "default threads": 0}  # of torch
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
    from regimen.config.layers import build_config
    from regimen.engines.base import Limits
    from regimen.envs import registry
    from regimen.runs.build import make_engine

    config = build_config("pendulum", algo="sac", overrides=SETTINGS | settings)
    engine = make_engine(config, registry.resolve("pendulum"), list(range(seeds)), lambda: False)
    for _ in range(4):
        engine.advance([Limits(8)] * seeds)
    return engine


def speed(engine: Any, seconds: float) -> float:
    """Env steps per second, summed over the engine's seeds."""
    import time

    from regimen.engines.base import Limits

    total, start = 0, time.perf_counter()
    while True:
        total += sum(int(p.steps.sum()) for p in engine.advance([Limits(16)] * engine.learners))
        taken = time.perf_counter() - start
        if taken >= seconds:
            return total / taken


def against(ours: list[float], theirs: dict[str, list[float]]) -> str:
    """The ratio to the peer's better setting of each round, median and range; nothing without a peer."""
    if not theirs:
        return ""
    ratios = [a / max(round_) for a, *round_ in zip(ours, *theirs.values())]
    return f"{harness.verdict(median(ratios), 1.6, 2.0)} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="an interpreter that has Stable-Baselines3")
    parser.add_argument("--no-peer", action="store_true", help="measure only Regimen")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="cores of all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="per measurement")
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])  # of both: the peer is a child
    from regimen.engines import device

    print(f"regimen: device {device.configure('cpu', True)}; {args.threads} cores")
    python = None if args.no_peer else harness.peer_python(args.peer_python)
    load = harness.OtherLoad()
    one, many = make_engine(1), make_engine(args.seeds)
    peers = {name: harness.Peer(python, n) for name, n in THREADS.items()} if python else {}
    ours, together, theirs = [], [], {name: [] for name in peers}
    for _ in range(args.rounds):
        ours.append(speed(one, args.seconds))
        for name, peer in peers.items():
            theirs[name].append(peer.steps_per_second(1, args.seconds, "sac"))
        together.append(speed(many, args.seconds))
    for peer in peers.values():
        peer.close()
    rows = [["Regimen, 1 seed", harness.spread(ours), against(ours, theirs)]]
    rows += [[f"Stable-Baselines3, {name}", harness.spread(found), ""] for name, found in theirs.items()]
    if peers:
        versions = next(iter(peers.values())).versions
        print("peer:", ", ".join(f"{name} {version}" for name, version in versions.items()))
    gain = median(a / b for a, b in zip(together, ours))
    rows.append([f"Regimen, {args.seeds} seeds in one program", harness.spread(together), f"{gain:.2f}x one seed's"])
    print(harness.table(["SAC on Pendulum", "steps/s", "ratio"], rows) + f"\n\n{load}")


if __name__ == "__main__":
    main()
