"""What the benchmark scripts share: the product's engines at the benchmark's settings, the peer's process, tables.

Settings everywhere unless said otherwise: 64-64 tanh actor and critic, 128 steps per environment and update, 4 epochs,
4 minibatches, Adam at 2.5e-4, gamma 0.99, lambda 0.95, entropy bonus 0.01.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
SETTINGS = {"lr": 2.5e-4, "gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.01, "epochs": EPOCHS}
INSTALL = (
    "peer: not installed; `pip install torch==2.13.0 stable-baselines3`, or --peer-python PATH names a Python with it"
)


def make_engine(
    env: str,
    num_envs: int,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    devices: int = 1,
    **ppo: Any,
) -> Any:
    """The engine `regimen train` would make: PPO on `steps` per environment, or on `episodes`, per update."""
    import jax

    from regimen.algorithms.ppo import PPO
    from regimen.engines.host import HostEngine
    from regimen.engines.native import NativeEngine
    from regimen.envs import registry
    from regimen.schedule import Episodes, Steps
    from regimen.sources.host import HostSource
    from regimen.sources.scan import ScanSource
    from regimen.types import Spec

    handle = registry.resolve(env)
    n = num_envs * (STEPS if steps is None else steps)
    schedule = Steps(n) if episodes is None else Episodes(episodes)
    ppo = SETTINGS | {"minibatch_size": max(n // MINIBATCHES, 1)} | ppo
    spaces = handle.observation_space, handle.action_space, handle.reward_components
    spec = Spec(*spaces, agents=handle.agents, num_envs=num_envs, env=handle.native)
    algo = PPO(**ppo).bind(spec)
    if handle.native is not None:
        source = ScanSource(schedule, num_envs)
        return NativeEngine(
            handle.native, algo, source, [seed], lambda key, algo: algo.init(key), devices=jax.devices()[:devices]
        )
    assert handle.make_host is not None
    source = HostSource(handle.make_host, schedule, num_envs, max_episode_steps=handle.max_episode_steps)
    return HostEngine(algo, source, seed, algo.init)


def steps_per_second(engine: Any, seconds: float, most: int | None = None) -> float:
    """Env steps per second of `advance`, learning and the read-out of metrics and episodes included."""
    from regimen.engines.base import CHUNK, Limits

    total, start = 0, time.perf_counter()
    while True:
        (progress,) = engine.advance([Limits(most or CHUNK)])
        total += int(progress.steps.sum())
        taken = time.perf_counter() - start
        if taken >= seconds:
            return total / taken


class Peer:
    """Another trainer in a process of its own that answers requests one by one: Stable-Baselines3 unless a script of
    another peer is named."""

    def __init__(self, python: str, threads: int | None = None, script: str = "peer_sb3.py", *flags: str):
        """`threads` of torch; 0 leaves its default."""
        flags += () if threads is None else ("--threads", str(threads))
        command = [python, str(HERE / script), "serve", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # not what a library says while it is imported
                return json.loads(line)
        raise SystemExit(f"peer: the process ended with exit code {self.process.wait()}")

    def steps_per_second(self, num_envs: int, seconds: float, algo: str = "ppo") -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"num_envs": num_envs, "seconds": seconds, "algo": algo}) + "\n")
        self.process.stdin.flush()
        return self.read()["steps_per_second"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def peer_python(given: str | None) -> str | None:
    """The interpreter that has Stable-Baselines3, or None after saying how to get it."""
    if given is not None:
        return given
    if importlib.util.find_spec("stable_baselines3") is not None:
        return sys.executable
    print(INSTALL)
    return None


class OtherLoad:
    """How many cores other processes took from this one and its finished children (Linux; else unknown)."""

    def __init__(self) -> None:
        self.start = self.read()

    @staticmethod
    def read() -> tuple[float, float, float] | None:
        """Seconds: busy time of all cores, stolen time included; our own; wall."""
        try:
            user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        except (OSError, ValueError):
            return None
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy, sum(os.times()[:4]), time.perf_counter()

    def __str__(self) -> str:
        end = self.read()
        if self.start is None or end is None:
            return "other load: unknown"
        busy, own, wall = (b - a for a, b in zip(self.start, end))
        return f"other load during this run: {max(busy - own, 0) / wall:.2f} of {os.cpu_count()} cores"


def verdict(ratio: float, target: float, goal: float | None = None) -> str:
    word = "meets" if ratio >= target else "MISSES"
    text = f"{ratio:.2f}x, {word} the target of {target:g}x"
    if goal is None:
        return text
    return text + (f" and the goal of {goal:g}x" if ratio >= goal else f", below the goal of {goal:g}x")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [list(map(str, head)), ["---"] * len(head), *[list(map(str, row)) for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Median, and the range that it comes from."""
    if len(values) < 2:
        return format(values[0], form)
    return f"{format(median(values), form)} ({format(min(values), form)} to {format(max(values), form)})"
