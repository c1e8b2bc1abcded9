"""Env steps per second on the airspace, PPO with 64-64 networks included; and of the environment alone.

    python benchmarks/airspace_speed.py [--envs 128 512]

An env step is one decision of all four aircraft. Asked: 30,000 on two cores, a million on one H200.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import harness


def env_only(name: str, num_envs: int, seconds: float) -> float:
    """Random actions, no learning; environments are reset as they end."""
    import jax

    from regimen.envs import registry
    from regimen.policies.evaluate import baseline_evaluator

    handle = registry.resolve(name)
    play: Any = baseline_evaluator(handle, "random")
    play((), 0, num_envs)
    total, start, k = 0, time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        k += 1
        total += int(play((), k, num_envs).lengths.sum())
    jax.effects_barrier()
    return total / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=["airspace/cross_4all", "airspace/random"])
    parser.add_argument("--envs", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=64, help="per environment and update")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--minibatches", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=8.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    from regimen.engines import device

    print(f"device: {device.configure('auto', native=True)}")
    load, rows = harness.OtherLoad(), []
    for env in args.env:
        for n in args.envs:
            size = n * args.steps * 4 // args.minibatches
            engine = harness.make_engine(env, n, steps=args.steps, epochs=args.epochs, minibatch_size=size)
            for _ in range(2):
                harness.steps_per_second(engine, 0)
            speeds = [harness.steps_per_second(engine, args.seconds) for _ in range(args.rounds)]
            rows.append([env, n, harness.spread(speeds), f"{env_only(env, n, args.seconds):,.0f}"])
            print(" | ".join(map(str, rows[-1])), flush=True)
    head = ["env", "environments", "steps/s with PPO", "steps/s of episodes with random actions"]
    print(f"\n{args.epochs} epochs of {args.minibatches} minibatches, 64-64 networks, 4 aircraft\n")
    print(harness.table(head, rows) + f"\n\n{load}")


if __name__ == "__main__":
    main()
