"""How the speed of training grows with environments, seeds and the width of the networks on one core, one plot each.

    python benchmarks/scale.py docs/images/scale

CartPole, PPO of `harness.py`, the product's engine. Speeds are env steps per second of CPU time, of a process kept to
one core, so that other work on the machine counts little. The line is what the products of the networks' matrices alone
would allow: the core's own speed on a product of two matrices of 1,024 x 1,024, over the operations of one env step.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import harness

ENVS = (64, 256, 1024, 4096, 16384)
WIDTHS = (64, 128, 256, 512, 1024)
SEEDS = (1, 2, 4, 8, 16)
INPUTS, ACTIONS = 4, 2  # of CartPole


def products_per_second(rounds: int = 5) -> float:
    """Floating-point operations per second of CPU time of a product of two matrices."""
    import jax
    import jax.numpy as jnp

    size = 1024
    a = jax.random.normal(jax.random.key(0), (size, size))
    product = jax.jit(jnp.dot)
    jax.block_until_ready(product(a, a))
    speeds = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(10):
            jax.block_until_ready(product(a, a))
        speeds.append(20 * size**3 / (time.process_time() - start))
    return max(speeds)


def operations(width: int) -> float:
    """Of the networks' products for one env step: acting, the value, and a forward and a backward pass an epoch."""
    actor, critic = (INPUTS * width + width * width + width * out for out in (ACTIONS, 1))
    return 2 * (actor + critic) * (1 + 3 * harness.EPOCHS)


def make(num_envs: int, width: int, seeds: int) -> Any:
    """The engine of `harness.py` with networks of another width, or several seeds."""
    from regimen.config.layers import build_config
    from regimen.envs import registry
    from regimen.runs.build import make_engine

    n = num_envs * harness.STEPS
    settings = {f"algo.{name}": value for name, value in harness.SETTINGS.items()}
    settings |= {"rollout": {"steps": n, "num_envs": num_envs}, "algo.minibatch_size": n // harness.MINIBATCHES}
    settings |= {"network.hidden": [width, width], "total_steps": 10**9}
    config = build_config("cartpole", overrides=settings)
    return make_engine(config, registry.resolve("cartpole"), list(range(seeds)), lambda: False)


def speed(num_envs: int, width: int, seeds: int, rounds: int, seconds: float) -> list[float]:
    """Env steps of all seeds per second of CPU time in each round."""
    from regimen.engines.base import Limits

    engine = make(num_envs, width, seeds)
    engine.advance([Limits(1)] * seeds)
    speeds = []
    for _ in range(rounds):
        steps, start = 0, time.process_time()
        while time.process_time() - start < seconds:
            steps += sum(int(p.steps.sum()) for p in engine.advance([Limits(4)] * seeds))
        speeds.append(steps / (time.process_time() - start))
    return speeds


def draw(path: Path, label: str, sizes: list[int], speeds: list[list[float]], limits: list[float]) -> None:
    """Draw measured speeds with their range and the limit, both axes logarithmic."""
    from regimen.reports.figure import BLUE, GREY, picture

    with picture(path, 5.2, 3.4) as figure:
        ax = figure.subplots()
        mid = [median(s) for s in speeds]
        below, above = [m - min(s) for m, s in zip(mid, speeds)], [max(s) - m for m, s in zip(mid, speeds)]
        ax.errorbar(sizes, mid, [below, above], color=BLUE, marker="o", capsize=3, label="training")
        ax.plot(sizes, limits, color=GREY, linestyle="--", label="limit of the matrix products")
        ax.set(xscale="log", yscale="log", xlabel=label, ylabel="env steps per second of one core")
        ax.set_ylim(min(min(mid), min(limits)) / 2, 2 * max(limits))
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
        ax.minorticks_off()
        ax.legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="a folder for the plots")
    parser.add_argument("--only", choices=["envs", "seeds", "width"], nargs="+", default=["envs", "seeds", "width"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of CPU time, of one round")
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    from regimen.engines import device

    print(f"regimen: device {device.configure('cpu', True)}, one core of them")
    load = harness.OtherLoad()
    peak = products_per_second()
    print(f"products of matrices: {peak / 1e9:.0f} GFLOP/s\n")
    cases = {  # label, sizes, and (environments, width, seeds) of one size
        "envs": ("environments", {n: (n, 64, 1) for n in ENVS}),
        "seeds": ("seeds in one program, 64 environments each", {n: (64, 64, n) for n in SEEDS}),
        "width": ("width of both hidden layers, 512 environments", {n: (512, n, 1) for n in WIDTHS}),
    }
    for name in args.only:
        label, sizes = cases[name]
        speeds = [speed(*case, args.rounds, args.seconds) for case in sizes.values()]
        limits = [peak / operations(width) for _, width, _ in sizes.values()]
        rows = [
            [f"{n:,}", harness.spread(s), f"{limit:,.0f}", f"{median(s) / limit:.0%}"]
            for n, s, limit in zip(sizes, speeds, limits)
        ]
        print(harness.table([label, "steps per CPU second", "limit", "share"], rows) + "\n", flush=True)
        if args.out is not None:
            draw(args.out / f"{name}.png", label, list(sizes), speeds, limits)
    print(load)


if __name__ == "__main__":
    main()
