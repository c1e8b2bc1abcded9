"""Steps per second of the compiled chunk on whatever backend jax has: the H200 figure.

    PYTHONPATH=src:.device-site python benchmarks/gpu.py

`chunk` is the compiled call alone, with the episode and metric buffers that it fills; `advance` adds copying them to
the host. Nothing is logged. No compilation cache: the compile time is real.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import harness

TARGET, GOAL, AT = 24e6, 30e6, 2048


def run_chunk(engine: Any, updates: int) -> tuple[int, float]:
    """(env steps, seconds) of one compiled call of at most `updates` updates."""
    import jax
    import numpy as np

    from regimen.engines.base import FOREVER, Limits

    limits = Limits(np.int32(updates), np.int32(FOREVER), np.int32(FOREVER))
    start = time.perf_counter()
    out = jax.block_until_ready(engine.program.result()(engine.algo, engine.env, engine.state, engine.carry, limits))
    taken = time.perf_counter() - start
    engine.state, engine.carry = out.state, out.carry
    return int(out.updates) * engine.source.schedule.n, taken


def measure(num_envs: int, repeats: int, seconds: float, steps: int = harness.STEPS) -> dict[str, float]:
    from regimen.engines.base import Limits

    start = time.perf_counter()
    engine = harness.make_engine("cartpole", num_envs, steps=steps)
    init = time.perf_counter() - start
    engine.advance([Limits(1)])  # compiles
    total, taken = run_chunk(engine, 4)
    updates = max(1, min(256, int(seconds * total / taken / engine.source.schedule.n)))
    chunks = [a / b for a, b in (run_chunk(engine, updates) for _ in range(repeats))]
    advances = [harness.steps_per_second(engine, 0, updates) for _ in range(repeats)]
    return {
        "init": init,
        "compile": engine.compile_seconds,
        "chunk": median(chunks),
        "low": min(chunks),
        "high": max(chunks),
        "advance": median(advances),
        "updates": updates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 2048, 16384])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per repeat, about")
    args = parser.parse_args()
    import jax

    print(f"jax {jax.__version__}, {jax.default_backend()}: {jax.devices()[0].device_kind}")
    rows = []
    for num_envs in args.envs:
        r = measure(num_envs, args.repeats, args.seconds)
        rows.append(
            [
                f"{num_envs:,}",
                f"{r['compile']:.1f}",
                f"{r['chunk']:,.0f} ({r['low']:,.0f} to {r['high']:,.0f})",
                f"{r['advance']:,.0f}",
                f"{r['updates']:.0f}",
            ]
        )
        if num_envs == AT:
            met = "meets" if r["chunk"] >= TARGET else "MISSES"
            goal = "meets" if r["chunk"] >= GOAL else "below"
            print(f"{AT:,} envs: {r['chunk'] / 1e6:.1f}M steps/s {met} the H200 target of 24M, {goal} the goal of 30M")
    head = ["envs", "compile s", f"chunk steps/s, median of {args.repeats}", "advance steps/s", "updates per chunk"]
    print(harness.table(head, rows))


if __name__ == "__main__":
    main()
