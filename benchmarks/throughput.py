"""Env steps per second, learning included, beside Stable-Baselines3's in the same run.

    python benchmarks/throughput.py --peer-python /path/to/venv/bin/python

Peer and ours take turns within each round, so that other load on the machine touches both.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import harness


@dataclass(frozen=True)
class Case:
    name: str
    env: str
    num_envs: int
    target: float | None = None
    goal: float | None = None


CASES = [
    Case("native, 4 envs", "cartpole", 4, 24, 29),
    Case("native, 64 envs", "cartpole", 64, 6, 7.5),
    Case("native, 512 envs", "cartpole", 512),
    Case("host, 8 envs", "gym:CartPole-v1", 8, 4),
]


def compare(cases: list[Case], rounds: int, seconds: float, python: str | None) -> None:
    """Ours against the better of the peer's two thread settings."""
    engines = {case: harness.make_engine(case.env, case.num_envs) for case in cases}
    for engine in engines.values():
        harness.steps_per_second(engine, 0)  # compiles
        harness.steps_per_second(engine, 0)
    peers = {"1 thread": harness.Peer(python, 1), "default threads": harness.Peer(python, 0)} if python else {}
    for peer in list(peers.values())[:1]:
        print("peer:", ", ".join(f"{name} {version}" for name, version in peer.versions.items()))
    speeds: dict[tuple[Case, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for case in cases:
            speeds[case, "ours"].append(harness.steps_per_second(engines[case], seconds))
            for name, peer in peers.items():
                speeds[case, name].append(peer.steps_per_second(case.num_envs, seconds))
    for closing in (*peers.values(), *engines.values()):
        closing.close()
    rows = []
    for case in cases:
        ours = speeds[case, "ours"]
        row = [case.name, harness.spread(ours)] + [harness.spread(speeds[case, name]) for name in peers]
        if peers:
            best = [max(pair) for pair in zip(*(speeds[case, name] for name in peers))]  # of each round
            ratios = [x / y for x, y in zip(ours, best)]
            ratio = median(ratios)
            text = harness.verdict(ratio, case.target, case.goal) if case.target else f"{ratio:.2f}x"
            top = max(ours) / max(best)
            row += [f"{text} ({min(ratios):.1f} to {max(ratios):.1f})", f"{top:.2f}x"]
        rows.append(row)
    head = ["PPO on CartPole-v1", "Regimen steps/s"] + [f"SB3 steps/s, {name}" for name in peers]
    print(
        harness.table(
            head + ["ratio to SB3's better, median of rounds", "of each one's best round"] * bool(peers), rows
        ),
        flush=True,
    )


def with_files(num_envs: int, total_steps: int) -> float:
    """Steps/s of `regimen train` itself after its first 8 updates: rows logged every update, episodes, checkpoints."""
    import regimen

    n = num_envs * harness.STEPS
    settings: dict[str, Any] = {
        "rollout": {"steps": n, "num_envs": num_envs},
        **{f"algo.{name}": value for name, value in harness.SETTINGS.items()},
        "algo.minibatch_size": n // harness.MINIBATCHES,
        "total_steps": total_steps,
        "eval.every": "never",
        "stop": {"metric": None, "above": None},
        "track.enabled": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        rows = regimen.train("cartpole", out=str(Path(folder) / "run"), **settings).history
    first = next(row for row in rows if row["updates"] == 8)  # the end of the first advance, which compiled
    return (rows[-1]["env_steps"] - first["env_steps"]) / (rows[-1]["wall_seconds"] - first["wall_seconds"])


def trained(seconds: float = 20.0) -> Any:
    """A policy whose sampled episodes last nearly 500 steps: the learner's models."""
    import time

    from regimen.engines.base import Limits

    engine = harness.make_engine("cartpole", 8, steps=32, minibatch_size=256, epochs=20, lr=1e-3, gae_lambda=0.8)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        (progress,) = engine.advance([Limits(64)])
        lengths = progress.episodes.length
        if len(lengths) and lengths.mean() > 495:
            break
    return engine.state.models


def schedules(episodes: int, minibatch: int, rounds: int, seconds: float, models: Any) -> dict[str, Any]:
    """`Episodes(n)` against `Steps` of as many steps, on one frozen policy (learning rate 0: every gradient is
    computed, the policy stays as it is)."""
    import jax
    import jax.numpy as jnp

    from regimen.engines.base import Limits

    def engine(**schedule: int) -> Any:
        made = harness.make_engine("cartpole", episodes, minibatch_size=minibatch, lr=0.0, **schedule)
        if models is not None:
            made.state = made.state.replace(models=jax.tree.map(jnp.copy, models))
        return made

    whole = engine(episodes=episodes)
    whole.advance([Limits(8)])
    (progress,) = whole.advance([Limits(32)])
    per_update = progress.steps.mean()
    even = engine(steps=max(1, round(per_update / episodes)))
    harness.steps_per_second(even, 0)
    a, b = [], []
    for _ in range(rounds):
        a.append(harness.steps_per_second(whole, seconds))
        b.append(harness.steps_per_second(even, seconds))
    length = per_update / episodes
    return {"length": length, "per_update": per_update, "episodes": a, "steps": b}


def compare_schedules(rounds: int, seconds: float) -> None:
    rows = []
    for name, models in (("early", None), ("late", trained())):
        r = schedules(10, 64, rounds, seconds, models)
        ratio = median(x / y for x, y in zip(r["episodes"], r["steps"]))
        rows.append(
            [
                f"{name}, episodes of {r['length']:.0f} steps",
                f"{r['per_update']:,.0f}",
                harness.spread(r["episodes"]),
                harness.spread(r["steps"]),
                harness.verdict(ratio, 0.5),
            ]
        )
    head = ["native, 10 envs, minibatch 64", "steps per update", "Episodes(10) steps/s", "Steps steps/s", "ratio"]
    print(harness.table(head, rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="an interpreter that has Stable-Baselines3")
    parser.add_argument("--no-peer", action="store_true", help="measure only Regimen")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--envs", type=int, nargs="*", help="only native cases with these numbers of environments")
    args = parser.parse_args()
    from regimen.engines import device

    print(f"regimen: device {device.configure('cpu', True)}")
    python = None if args.no_peer else harness.peer_python(args.peer_python)
    cases = [c for c in CASES if not args.envs or (c.env == "cartpole" and c.num_envs in args.envs)]
    load = harness.OtherLoad()
    compare(cases, args.rounds, args.seconds, python)
    print()
    compare_schedules(args.rounds, args.seconds)
    print(
        "\n`regimen train` as a whole (a row logged every update, episodes.csv, checkpoints; no evaluation, no MLflow):"
    )
    sizes = {4: 1_000_000, 64: 2_000_000}
    rows = [[f"native, {n} envs", f"{with_files(n, total):,.0f}"] for n, total in sizes.items()]
    print(harness.table(["", "steps/s"], rows) + f"\n\n{load}")


if __name__ == "__main__":
    main()
