"""Milliseconds of a rollout and of an update with the kernels for GPUs, and without them.

    PYTHONPATH=src python benchmarks/kernels.py

CartPole at the benchmark's settings. A rollout includes its noise and its resets; an update is the epochs on one batch.
Where a kernel does not fit, both columns are of the same program, and the last one says why.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import harness


def milliseconds(call: Callable[[], Any], seconds: float) -> float:
    """Median of a call's times."""
    import jax
    import numpy as np

    jax.block_until_ready(call())
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def measure(env: str, num_envs: int, seconds: float) -> list[str]:
    import contextlib

    import jax

    from regimen import kernels

    engine = harness.make_engine(env, num_envs)
    algo, source, state, carry = engine.algo, engine.source, engine.state, engine.carry
    params, key = algo.actor_params(state), jax.random.key(1)
    found: dict[str, list[float]] = {"rollout": [], "update": []}
    batch = None
    kernels.UNFIT.clear()
    for context in (contextlib.nullcontext, kernels.without):
        with context():
            rollout = jax.jit(lambda c, p, k: source.next(engine.env, algo, c, p, k))
            batch = rollout(carry, params, key)[1] if batch is None else batch
            found["rollout"].append(milliseconds(lambda f=rollout: f(carry, params, key), seconds))
            update = jax.jit(lambda s, b: algo.update(s, b))
            found["update"].append(milliseconds(lambda f=update, b=batch: f(state, b), seconds))
    times = [x for pair in found.values() for x in pair]
    ratio, why = sum(times[1::2]) / sum(times[::2]), "; ".join(dict.fromkeys(kernels.UNFIT))
    return [f"{num_envs:,}", *(f"{x:.2f}" for x in times), f"{ratio:.2f}", why]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="cartpole")
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 2048, 16384])
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure, about")
    args = parser.parse_args()
    import jax

    print(f"jax {jax.__version__}, {jax.default_backend()}: {jax.devices()[0].device_kind}")
    head = ["envs", "rollout ms", "without", "update ms", "without", "times as fast", "no kernel because of"]
    print(harness.table(head, [measure(args.env, n, args.seconds) for n in args.envs]))


if __name__ == "__main__":
    main()
