"""Steps per second of the durotaxis environment alone, beside the same step written plainly in numpy.

    python benchmarks/durotaxis_env.py

Random allowed actions, observations and resets included, in one compiled scan over copies of the environment. The plain
implementation is the tests' oracle (`tests/domains/durotaxis/durotaxis_oracle.py`): one colony at a time, edges as a
set of pairs.
Both take turns within each round, so that other load on the machine touches both; steps per CPU second count only the
time this process ran.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import harness

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "domains" / "durotaxis"))

TARGET = 15_000  # steps/s on two cores
STEPS = 100  # of one compiled call


def random_action(env: Any, key: Any, state: Any) -> Any:
    """Every live node spawns or is deleted with equal probability, where it may."""
    import jax
    import jax.numpy as jnp

    key_choice, key_spawn = jax.random.split(key)
    space = env.action_space
    if env.action_mask is None:
        return jax.random.uniform(key_spawn, space.shape, minval=space.low, maxval=space.high)
    mask = env.action_mask(state)["choice"].reshape(-1, 2)
    delete = ~mask[:, 0] | (mask[:, 1] & jax.random.bernoulli(key_choice, 0.5, mask.shape[:1]))
    low, high = space["spawn"].low, space["spawn"].high
    return {
        "choice": delete.astype(jnp.int32),
        "spawn": jax.random.uniform(key_spawn, low.shape, minval=low, maxval=high),
    }


class Compiled:
    def __init__(self, env: Any, num_envs: int, steps: int):
        import jax

        self.env, self.num_envs, self.steps = env, num_envs, steps
        self.run = jax.jit(partial(scan, num_envs=num_envs, steps=steps))
        self.carry = jax.jit(lambda e, k: jax.vmap(e.reset)(jax.random.split(k, num_envs)))(env, jax.random.key(0))
        self.key = jax.random.key(1)
        self.per_cpu_second: list[float] = []
        self(0.0)  # compiles
        self.per_cpu_second.clear()

    def __call__(self, seconds: float) -> float:
        import jax

        total, start, cpu = 0, time.perf_counter(), time.process_time()
        while True:
            self.key, key = jax.random.split(self.key)
            self.carry = jax.block_until_ready(self.run(self.env, key, self.carry))
            total += self.num_envs * self.steps
            taken = time.perf_counter() - start
            if taken >= seconds:
                self.per_cpu_second.append(total / (time.process_time() - cpu))
                return total / taken


def scan(env: Any, key: Any, carry: Any, num_envs: int, steps: int) -> Any:
    """The observation is carried, so every one of them is computed."""
    import jax
    import jax.numpy as jnp

    from regimen.sources.scan import select

    def one(key, state):
        return env.step(key, state, random_action(env, key, state))

    def body(carry, key):
        keys = jax.random.split(key, num_envs)
        state, ts = jax.vmap(one)(keys, carry[0])
        over = ts.terminated

        def reset():
            fresh = jax.vmap(env.reset)(keys)
            return jax.tree.map(lambda a, b: select(over, a, b), fresh, (state, ts.obs))

        return jax.lax.cond(jnp.any(over), reset, lambda: (state, ts.obs)), ()

    return jax.lax.scan(body, carry, jax.random.split(key, steps))[0]


class Plain:
    """The oracle, with the same distribution of actions and starts drawn beforehand."""

    def __init__(self, env: Any, starts: int = 64):
        import jax
        import numpy as np
        from durotaxis_oracle import Oracle

        keys = jax.random.split(jax.random.key(2), starts)
        states, _ = jax.device_get(jax.jit(lambda e, k: jax.vmap(e.reset)(k))(env, keys))
        self.starts = [jax.tree.map(lambda x, i=i: x[i], states) for i in range(starts)]
        self.rng, self.space = np.random.default_rng(0), env.action_space
        self.ratio = env.action_mask is None
        self.colony, self.next = Oracle(env).load(self.starts[0]), 1

    def action(self) -> Any:
        rng, capacity = self.rng, self.colony.capacity
        if self.ratio:
            return self.colony.ratio(rng.uniform(self.space.low[0], self.space.high[0]), rng.normal(size=(3, capacity)))
        spawn = self.space["spawn"]
        return self.colony.choices(rng.random(capacity) < 0.5, rng.uniform(spawn.low, spawn.high))

    def __call__(self, seconds: float) -> float:
        total, start = 0, time.perf_counter()
        while True:
            self.colony.step(*self.action())
            self.colony.observe()
            if self.colony.outcome:
                self.colony.load(self.starts[self.next % len(self.starts)])
                self.next += 1
            total += 1
            taken = time.perf_counter() - start
            if taken >= seconds:
                return total / taken


def compare(names: list[str], sizes: list[int], rounds: int, seconds: float, **fields: Any) -> None:
    from regimen.envs.registry import resolve

    rows = []
    for name in names:
        env = resolve(name, fields).native
        plain = Plain(env)
        for num_envs in sizes:
            ours, theirs, compiled = [], [], Compiled(env, num_envs, STEPS)
            for _ in range(rounds):
                ours.append(compiled(seconds))
                theirs.append(plain(seconds))
            ratio = median(a / b for a, b in zip(ours, theirs))
            cells = [name, num_envs, *map(harness.spread, (ours, compiled.per_cpu_second, theirs)), f"{ratio:,.0f}x"]
            verdict = "meets" if max(ours) >= TARGET else "MISSES"
            rows.append([*cells, f"{verdict} {TARGET:,}"])
    head = ["environment", "envs", "steps/s", "steps per CPU second", "numpy steps/s", "ratio", "target"]
    print(harness.table(head, rows), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--capacity", type=int, default=64)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    args = parser.parse_args()
    from regimen.engines import device

    print(f"regimen: device {device.configure(args.device, True)}")
    load = harness.OtherLoad()
    compare(["durotaxis", "durotaxis/ratio"], args.envs, args.rounds, args.seconds, capacity=args.capacity)
    print(load)


if __name__ == "__main__":
    main()
