"""Steps per second of the compiled chunk on whatever backend jax has, beside PureJaxRL and the machine's limit.

    git clone https://github.com/luchris429/purejaxrl && pip install gymnax==0.0.8
    PYTHONPATH=src python benchmarks/gpu.py --peer purejaxrl

`chunk` is the compiled call alone, with the episode and metric buffers that it fills; `advance` adds copying them to
the host; `plain` is the chunk without the kernels of `regimen/kernels`, and `train` is `regimen train` with its files,
compilation left out. The peer takes turns with the chunk, round by round; its figure has no logging at all. `floor` is
the least time that an update can take: the floating-point operations of the networks at the rate measured for matrices
of 8,192 in TF32, or the bytes of the batch (each number written once and read once in every epoch) at the bandwidth
measured for a copy, whichever is longer. No compilation cache: the compile time is real.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import harness

TARGET = {64: 2.0, 2048: 2.0, 16384: 2.0}  # times the peer
SHARE = 0.9  # of the chunk, that `regimen train` is to reach


def run_chunk(engine: Any, updates: int) -> tuple[int, float]:
    """(env steps, seconds) of one compiled call of at most `updates` updates."""
    import jax
    import numpy as np

    from regimen.engines.base import FOREVER, Limits

    limits = Limits(np.int32(updates), np.int32(FOREVER), np.int32(FOREVER))
    start = time.perf_counter()
    out = jax.block_until_ready(engine.program.result()(engine.algo, engine.inputs, engine.state, engine.carry, limits))
    taken = time.perf_counter() - start
    engine.state, engine.carry = out.state, out.carry
    return int(out.updates) * engine.source.schedule.n, taken


def programs(args: argparse.Namespace, num_envs: int, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """What is to be measured at one number of environments, each compiled in a thread of its own."""
    from regimen import kernels

    def plain() -> Any:
        with kernels.without():
            engine = harness.make_engine(args.env, num_envs, steps=args.steps)
            engine.prepare()
        engine.program.result()
        return engine

    def chunk() -> Any:
        engine = harness.make_engine(args.env, num_envs, steps=args.steps)
        engine.prepare()
        engine.program.result()
        return engine

    def peer() -> Any:
        import purejaxrl_here

        updates = max(2, min(60, int(args.seconds * 8e7 / (num_envs * args.steps)) // 2))
        return purejaxrl_here.compiled(args.peer, num_envs, updates, args.steps)

    wanted = {"chunk": chunk} | ({"plain": plain} if args.plain else {})
    wanted |= {"peer": peer} if args.peer is not None and args.env == "cartpole" and num_envs in TARGET else {}
    return {name: pool.submit(make) for name, make in wanted.items()}


def measure(args: argparse.Namespace, num_envs: int, made: dict[str, Any]) -> dict[str, Any]:
    """Rates of everything at one number of environments, in turns."""
    import jax

    things = {name: future.result() for name, future in made.items()}
    engine = things["chunk"]
    rates: dict[str, list[float]] = {name: [] for name in things}
    updates: dict[str, int] = {}
    for name in things.keys() - {"peer"}:
        run_chunk(things[name], 2)
        total, taken = run_chunk(things[name], 4)
        updates[name] = max(1, min(256, int(args.seconds * 4 / taken)))
    for i in range(args.repeats + 1):
        for name, thing in things.items():
            if name == "peer":
                program, total = thing
                start = time.perf_counter()
                jax.block_until_ready(program(jax.random.PRNGKey(i)))
                rate = total / (time.perf_counter() - start)
            else:
                done, taken = run_chunk(thing, updates[name])
                rate = done / taken
            if i:  # the first round warms up
                rates[name].append(rate)
    rates["advance"] = [harness.steps_per_second(engine, 0, updates["chunk"]) for _ in range(args.repeats)]
    return {"envs": num_envs, "compile": engine.compile_seconds, "updates": updates["chunk"], "rates": rates}


def train(env: str, num_envs: int, total: int, steps: int) -> float:
    """Env steps per second of `regimen.train` with its files, without compilation and without what follows the last
    update."""
    import regimen

    n = num_envs * steps
    settings: dict[str, Any] = {"rollout.num_envs": num_envs, "rollout.steps": n, "total_steps": total, "track": False}
    settings |= {"algo.minibatch_size": n // harness.MINIBATCHES, "algo.epochs": harness.EPOCHS}
    settings |= {"stop.metric": None, "stop.above": None}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        regimen.train(env, out=str(out), **settings)
        summary = json.loads((out / "summary.json").read_text())
        last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return summary["env_steps"] / (last["wall_seconds"] - summary["compile_seconds"])


def ceilings() -> tuple[float, float]:
    """FLOP/s of a product of matrices in the default precision, and bytes/s of a copy."""
    import jax
    import jax.numpy as jnp

    n = 8192 if jax.default_backend() == "gpu" else 1024
    a, b = (jax.random.normal(jax.random.key(i), (n, n)) for i in range(2))
    flops = 2 * n**3 / best(jax.jit(lambda a, b: a @ b), a, b)
    x = jnp.ones(2**28 if jax.default_backend() == "gpu" else 2**24)
    return flops, 2 * x.nbytes / best(jax.jit(lambda x: x + 1), x)


def best(program: Any, *args: Any) -> float:
    import jax

    jax.block_until_ready(program(*args))
    times = []
    for _ in range(8):
        start = time.perf_counter()
        jax.block_until_ready(program(*args))
        times.append(time.perf_counter() - start)
    return min(times)


def floor(engine_rows: int, obs: int, heads: int, flops: float, bandwidth: float, width: int = 64) -> float:
    """Seconds that an update of so many rows takes at least."""
    actor = obs * width + width * width + width * heads
    critic = obs * width + width * width + width
    forward = 2 * actor  # of the rollout, and of the critic once
    gradients = harness.EPOCHS * 6 * (actor + critic)
    arithmetic = engine_rows * (forward + 2 * critic + gradients) / flops
    numbers = 2 * obs + 8  # both observations, action, log-probability, reward, flags, value, advantage, target
    return max(arithmetic, engine_rows * numbers * 4 * (1 + harness.EPOCHS) / bandwidth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="cartpole")
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 2048, 16384])
    parser.add_argument("--steps", type=int, default=harness.STEPS, help="per environment and update")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per repeat, about")
    parser.add_argument("--peer", type=Path, help="a checkout of PureJaxRL")
    parser.add_argument("--plain", action="store_true", help="also without the kernels")
    parser.add_argument("--train", type=float, default=0.0, help="also `regimen train`, for about so many seconds")
    parser.add_argument("--train-envs", type=int, nargs="+", default=[2048])
    parser.add_argument("--threads", type=int, default=6, help="that compile")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    import jax

    print(f"jax {jax.__version__}, {jax.default_backend()}: {jax.devices()[0].device_kind}")
    flops, bandwidth = ceilings()
    print(f"limits measured here: {flops / 1e12:.1f} TFLOP/s, {bandwidth / 1e9:,.0f} GB/s", flush=True)
    results, rows = [], []
    pool = ThreadPoolExecutor(args.threads)
    made = {num_envs: programs(args, num_envs, pool) for num_envs in args.envs}
    for num_envs in args.envs:
        r = measure(args, num_envs, made.pop(num_envs))
        rates = {name: median(x) for name, x in r["rates"].items()}
        engine_rows = num_envs * args.steps
        least = floor(engine_rows, 4, 2, flops, bandwidth)
        r |= {"medians": rates, "floor": least, "share": least * rates["chunk"] / engine_rows}
        results.append(r)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1))
        print(num_envs, {name: f"{x:,.0f}" for name, x in rates.items()}, flush=True)
        ratio = rates["chunk"] / rates["peer"] if "peer" in rates else None
        target = TARGET.get(num_envs)
        if ratio is not None:
            text = harness.verdict(ratio, target) if target else f"{ratio:.2f}x"
            print(f"{num_envs:,} envs: {text} PureJaxRL", flush=True)
        if args.train and num_envs in args.train_envs:
            r["train"] = train(args.env, num_envs, int(args.train * rates["chunk"]), args.steps)
            share = r["train"] / rates["chunk"]
            word = "meets" if share >= SHARE else "MISSES"
            print(f"{num_envs:,} envs: `regimen train` makes {share:.0%} of the chunk, {word} {SHARE:.0%}", flush=True)
        rows.append(
            [
                f"{num_envs:,}",
                f"{r['compile']:.1f}",
                harness.spread(r["rates"]["chunk"]),
                *(f"{rates[name]:,.0f}" if name in rates else "" for name in ("plain", "peer", "advance")),
                f"{r['train']:,.0f}" if "train" in r else "",
                "" if ratio is None else f"{ratio:.2f}",
                f"{1e3 * engine_rows / rates['chunk']:.2f}",
                f"{1e3 * least:.2f} ({r['share']:.0%})",
            ]
        )
    head = ["envs", "compile s", f"chunk steps/s, median of {args.repeats}", "plain", "PureJaxRL", "advance", "train"]
    print(harness.table([*head, "ratio to PureJaxRL", "ms per update", "floor ms (share)"], rows))


if __name__ == "__main__":
    main()
