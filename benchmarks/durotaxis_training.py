"""Env steps per second of training durotaxis with the tuned settings, beside the same network computed as a whole.

    python benchmarks/durotaxis_training.py

"Whole" is the graph network of `networks/graph.py` with all slots of all graphs of a minibatch at once, as it was
before it computed blocks of graphs of about one size: the same function. Both make the same number of updates, taking
turns, and are compared by CPU time, which other work on the machine disturbs less, and by the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from statistics import median
from typing import Any

import harness

TARGET = 10.0


def make(env: str, whole: bool, settings: dict[str, Any]) -> Any:
    """The engine `regimen train ENV` would make, compiled and past its first update."""
    from regimen.config.layers import build_config
    from regimen.engines.base import Limits
    from regimen.envs import registry
    from regimen.runs.build import make_engine
    from regimen.schedule import limited_cost

    config, handle = build_config(env, overrides=settings), registry.resolve(env)
    engine = make_engine(config, handle, [0], lambda: False)
    with limited_cost() if whole else contextlib.nullcontext():
        engine.advance([Limits(1)])  # compiles
    return engine


def update(engine: Any) -> tuple[float, float, float]:
    """Env steps per second of one update: by CPU time and by the clock; and the colony's mean size in it."""
    from regimen.engines.base import Limits

    cpu, wall = time.process_time(), time.perf_counter()
    (progress,) = engine.advance([Limits(1)])
    steps = int(progress.steps.sum())
    nodes = float(progress.episodes.metrics["nodes"].mean())
    return steps / (time.process_time() - cpu), steps / (time.perf_counter() - wall), nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="?", default="durotaxis", choices=["durotaxis", "durotaxis/ratio"])
    parser.add_argument("--updates", type=int, default=5, help="of each, after the first")
    parser.add_argument("--capacity", type=int, default=64)
    args = parser.parse_args()
    from regimen.engines import device

    print(f"regimen: device {device.configure('cpu', True)}")
    load = harness.OtherLoad()
    engines = {name: make(args.env, name == "whole", {"env.capacity": args.capacity}) for name in ("blocks", "whole")}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in engines}
    for _ in range(args.updates):
        for name, engine in engines.items():
            found[name].append(update(engine))
    rows = []
    for name, values in found.items():
        cpu, wall, nodes = zip(*values)
        row = [name, harness.spread(cpu), harness.spread(wall), f"{median(nodes):.0f}"]
        rows.append([*row, f"{engines[name].compile_seconds:.0f}"])
    head = [f"{args.env}, {args.capacity} slots", "steps per CPU second", "steps/s", "nodes", "compilation, s"]
    print(harness.table(head, rows))
    for k, what in enumerate(("CPU time", "the clock")):
        ratios = [a[k] / b[k] for a, b in zip(found["blocks"], found["whole"])]
        print(f"\nblocks / whole by {what}: {harness.spread(ratios, '.2f')}; {harness.verdict(median(ratios), TARGET)}")
    print(f"\n{load}")


if __name__ == "__main__":
    main()
