"""Env steps per second, learning included, of Gymnasium environments in this process, in several processes
(`rollout.processes`) and in EnvPool's threads.

Run: python benchmarks/host_processes.py [--processes 2] [--num-envs 16]. All engines exist at once and take turns, so
that other load touches all of them. A slow environment is compared with what it allows: processes / seconds of a step
that is timed alone in between. CPU seconds are those of this process, in which EnvPool's threads are.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from statistics import median
from typing import Any

from harness import HERE, MINIBATCHES, SETTINGS, STEPS, OtherLoad, spread, table, verdict

SLOW = f"{HERE / 'slow_env.py'}:SlowCartPole"


def make(env: str, env_args: dict[str, Any], num_envs: int, processes: int) -> Any:
    """The engine `regimen train` would make."""
    from regimen.config import layers
    from regimen.envs import registry
    from regimen.runs.build import make_engine

    n = num_envs * STEPS
    given = {"rollout.steps": n, "rollout.num_envs": num_envs, "rollout.processes": processes, "total_steps": 10**9}
    given |= {f"algo.{k}": v for k, v in (SETTINGS | {"minibatch_size": n // MINIBATCHES}).items()}
    config = layers.build_config(env, preset="balanced", overrides=given | {"env_args": env_args})
    return make_engine(config, registry.resolve(config.env, config.env_args), [0], lambda: False)


def measure(engine: Any, seconds: float) -> tuple[float, float]:
    """Env steps per second, and CPU seconds of this process per env step."""
    from regimen.engines.base import Limits

    total, start, cpu = 0, time.perf_counter(), time.process_time()
    while (taken := time.perf_counter() - start) < seconds or not total:
        (progress,) = engine.advance([Limits()])
        total += int(progress.steps.sum())
    return total / taken, (time.process_time() - cpu) / total


def seconds_of_a_step(env_args: dict[str, Any]) -> float:
    """Of the slow environment alone, in this process."""
    from slow_env import SlowCartPole

    env = SlowCartPole(**env_args)
    env.reset(seed=0)
    start = time.perf_counter()
    for _ in range(200):
        if env.step(0)[2]:
            env.reset()
    return (time.perf_counter() - start) / 200


def slow(args: argparse.Namespace) -> tuple[list[list[str]], list[str]]:
    rows, verdicts = [], []
    for how in ("sleep", "busy"):
        env_args = {"how": how}
        engines = {p: make(SLOW, env_args, args.num_envs, p) for p in (1, args.processes)}
        speeds: dict[int, list[float]] = {p: [] for p in engines}
        shares: dict[int, list[float]] = {p: [] for p in engines}
        try:
            for engine in engines.values():
                measure(engine, 0.0)  # compiles
            for _ in range(args.rounds):
                for p, engine in engines.items():
                    allowed = p / seconds_of_a_step(env_args)
                    speeds[p].append(measure(engine, args.seconds)[0])
                    shares[p].append(speeds[p][-1] / allowed)
        finally:
            for engine in engines.values():
                engine.close()
        for p in engines:
            rows.append([f"1 ms of {how} per step", f"{p}", spread(speeds[p]), spread(shares[p], ".0%")])
        share = median(shares[args.processes])
        verdicts.append(f"1 ms of {how}, {args.processes} processes: {verdict(share, 0.95)} of what a step allows")
    return rows, verdicts


def quick(args: argparse.Namespace) -> list[list[str]]:
    rows = []
    for num_envs in (8, 64):
        kinds = {"gym, in this process": ("gym:CartPole-v1", {}, 1)}
        kinds["gym, processes"] = ("gym:CartPole-v1", {}, args.processes)
        if importlib.util.find_spec("envpool") is not None:
            kinds["EnvPool"] = ("envpool:CartPole-v1", {}, 1)
            kinds["EnvPool, 1 thread"] = ("envpool:CartPole-v1", {"num_threads": 1}, 1)
        engines = {kind: make(env, env_args, num_envs, p) for kind, (env, env_args, p) in kinds.items()}
        results: dict[str, list[tuple[float, float]]] = {kind: [] for kind in engines}
        for engine in engines.values():
            measure(engine, 0.0)
        for _ in range(args.rounds):
            for kind, engine in engines.items():
                results[kind].append(measure(engine, args.seconds / 2))
        base = results["gym, in this process"]
        for kind, engine in engines.items():
            engine.close()
            wall = [a[0] / b[0] for a, b in zip(results[kind], base)]
            cpu = [b[1] / a[1] for a, b in zip(results[kind], base)]
            rows.append([f"CartPole, {num_envs} envs", kind, spread(wall, ".2f"), spread(cpu, ".2f")])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=4.0, help="per engine and round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    from regimen.engines import device

    device.configure("cpu", native=False)
    load = OtherLoad()
    rows, verdicts = slow(args)
    print(f"{args.num_envs} envs, {STEPS} steps each per update, {os.cpu_count()} cores\n")
    print(table(["environment", "processes", "env steps/s", "of what a step allows"], rows), *verdicts, "", sep="\n")
    head = ["environment", "copies", "env steps/s, to gym in this process", "the same per CPU second of this process"]
    print(table(head, quick(args)), str(load), sep="\n")


if __name__ == "__main__":
    main()
