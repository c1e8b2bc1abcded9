"""Env steps per second, learning included: environments in this process against Ray workers, at equal environments.

Run: python benchmarks/ray_scaling.py [--workers 2] [--num-envs 8] [--asynchronous impala]. All engines exist at once
and take turns, so that other load touches all of them. The learner needs a core too: on two cores it shares one with
a worker.
"""

from __future__ import annotations

import argparse
import os
from statistics import median
from typing import Any

from harness import HERE, MINIBATCHES, SETTINGS, STEPS, spread, table, verdict

SLOW = f"{HERE / 'slow_env.py'}:SlowCartPole"
ENVS = {
    "gym:CartPole-v1": ("gym:CartPole-v1", {}, 0.75),
    "1 ms of sleep per step": (SLOW, {"how": "sleep"}, 1.0),
    "1 ms of computing per step": (SLOW, {"how": "busy"}, 1.0),
}


def make(env: str, env_args: dict[str, Any], algo: str, num_envs: int, workers: int) -> Any:
    """The engine `regimen train` would make; workers 0: in this process."""
    from regimen.config import layers, lookup
    from regimen.envs import registry
    from regimen.runs.build import make_engine

    n = num_envs * STEPS
    given = {"rollout.steps": n, "rollout.num_envs": num_envs, "total_steps": 10**9, "engine": "ray"}
    known = lookup.leaf_types(algo)
    ours = {f"algo.{k}": v for k, v in (SETTINGS | {"minibatch_size": n // MINIBATCHES}).items()}
    given |= {"engine.cpus": 0}  # all engines exist at once
    given |= {"workers": workers, "env_args": env_args} | {k: v for k, v in ours.items() if k in known}
    config = layers.build_config(env, algo=algo, preset="balanced", overrides=given)
    handle = registry.resolve(config.env, config.env_args)
    return make_engine(config, handle, [0], lambda: False)


def drain(engine: Any) -> None:
    """Use up what asynchronous workers collected while others were measured."""
    from regimen.engines.base import Limits

    for _ in range(sum(len(m.asked) for m in engine.fleet.members)):
        engine.advance([Limits()])


def settle(engine: Any) -> None:
    """Let them get as far ahead as they may be, so that they are idle while others are measured."""
    import ray

    asked = [a.report for m in engine.fleet.members for a in m.asked]
    ray.wait(asked, num_returns=len(asked))


def measure(engine: Any, seconds: float) -> tuple[float, list[Any]]:
    """Env steps per second, and what each update said."""
    import time

    from regimen.engines.base import Limits

    ahead = getattr(engine, "asynchronous", False) and engine.started
    if ahead:
        drain(engine)
    total, told, start = 0, [], time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds or not told:
        (progress,) = engine.advance([Limits()])
        total += int(progress.steps.sum())
        told.append({name: float(v[-1]) for name, v in progress.metrics.items()})
    if ahead:
        settle(engine)
    return total / taken, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="per engine and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--asynchronous", default="", help="an asynchronous algorithm to add, for example impala")
    args = parser.parse_args()

    from regimen.engines import device

    device.configure("cpu", native=False)
    load, rows, verdicts = os.getloadavg()[0], [], []
    for name, (env, env_args, target) in ENVS.items():
        kinds = {"in process, ppo": ("ppo", 0), f"{args.workers} workers, ppo": ("ppo", args.workers)}
        if args.asynchronous:
            kinds[f"in process, {args.asynchronous}"] = (args.asynchronous, 0)
            kinds[f"{args.workers} workers, {args.asynchronous}"] = (args.asynchronous, args.workers)
        engines = {k: make(env, env_args, algo, args.num_envs, workers) for k, (algo, workers) in kinds.items()}
        speeds: dict[str, list[float]] = {k: [] for k in engines}
        told: dict[str, list[Any]] = {}
        try:
            for engine in engines.values():
                measure(engine, 1.0)  # starts and compiles
                measure(engine, 0.0)
            rounds = args.rounds if target < 1 else max(args.rounds // 4, 1)  # where a step takes 1 ms, little disturbs
            for _ in range(rounds):
                for kind, engine in engines.items():
                    speed, told[kind] = measure(engine, args.seconds)
                    speeds[kind].append(speed)
        finally:
            for engine in reversed(engines.values()):  # the first one that uses Ray is the one that ends it
                engine.close()
        for kind, (algo, workers) in kinds.items():
            base = speeds[f"in process, {algo}"]
            ratio = median(a / b for a, b in zip(speeds[kind], base))
            row = [name, kind, spread(speeds[kind]), f"{ratio:.2f}", f"{max(speeds[kind]) / max(base):.2f}"]
            for metric, form in (("time/learner_busy", ".0%"), ("time/bytes_per_step", ".0f"), ("lag_mean", ".1f")):
                found = [x[metric] for x in told[kind] if metric in x]
                row.append(format(sum(found) / len(found), form) if found else "")
            rows.append(row)
            if workers:
                verdicts.append(f"{name}, {kind}: {verdict(ratio, target)}")
    head = [
        "environment",
        "engine",
        "env steps/s",
        "ratio",
        "ratio of best rounds",
        "learner busy",
        "bytes per step",
        "mean lag",
    ]
    print(f"{args.num_envs} envs, {STEPS} steps each per update, {os.cpu_count()} cores\n")
    print(table(head, rows), "", *verdicts, f"load average before this run: {load:.1f}", sep="\n")


if __name__ == "__main__":
    main()
