"""Env steps per second on network defence: of the environment alone under random actions, and with PPO (64-64).

    python benchmarks/network_defense_speed.py [--envs 1024 4096 16384]

Asked: 500,000 with a random policy on two cores, 5 million on one H200. A prior system reached 7,430 with 100 worker
processes. `steps` counts the compiled step alone; `episodes` is `regimen evaluate --policy random`, with resets, sums
and metrics of every episode.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import harness


def steps_alone(env: Any, num_envs: int, seconds: float) -> float:
    """Random actions in a compiled loop that uses every output."""
    import jax
    import jax.numpy as jnp

    @partial(jax.jit, static_argnames="n")
    def run(env: Any, key: Any, n: int) -> Any:
        state, _ = jax.vmap(env.reset)(jax.random.split(key, n))

        def body(carry, key):
            state, total = carry
            act_key, step_key = jax.random.split(key)
            action = jax.random.randint(act_key, (n,), 0, env.action_space.n)
            state, ts = jax.vmap(env.step)(jax.random.split(step_key, n), state, action)
            return (state, total + ts.reward.sum() + ts.obs.sum()), None

        return jax.lax.scan(body, (state, jnp.float32(0)), jax.random.split(key, env.max_episode_steps))[0][1]

    run(env, jax.random.key(0), num_envs).block_until_ready()
    total, start, k = 0, time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        k += 1
        run(env, jax.random.key(k), num_envs).block_until_ready()
        total += num_envs * env.max_episode_steps
    return total / (time.perf_counter() - start)


def episodes(handle: Any, num_envs: int, seconds: float) -> float:
    """The random baseline as `regimen evaluate` plays it."""
    from regimen.policies.evaluate import baseline_evaluator

    play: Any = baseline_evaluator(handle, "random")
    play((), 0, num_envs)
    total, start, k = 0, time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        k += 1
        total += int(play((), k, num_envs).lengths.sum())
    return total / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--train-envs", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    args = parser.parse_args()
    from regimen.engines import device
    from regimen.envs import registry

    print(f"device: {device.configure('auto', native=True)}")
    load, rows = harness.OtherLoad(), []
    settings: list[dict[str, Any]] = [{"red": "b_line"}, {"red": "meander"}]
    settings.append({"red": "mixed", "workflow": "all", "alignment": "published"})
    for fields in settings:
        handle = registry.resolve("network_defense", fields)
        name = fields["red"] + (", all orders" if "workflow" in fields else "")
        for n in args.envs:
            alone, whole = steps_alone(handle.native, n, args.seconds), episodes(handle, n, args.seconds)
            rows.append([name, n, f"{alone:,.0f}", f"{whole:,.0f}"])
            print(" | ".join(map(str, rows[-1])), flush=True)
    print("\n" + harness.table(["red", "environments", "steps/s, steps alone", "steps/s, episodes"], rows))
    rows = []
    for n in args.train_envs:
        engine = harness.make_engine("network_defense", n, steps=100, epochs=4, minibatch_size=n * 25)
        for _ in range(2):
            harness.steps_per_second(engine, 0)
        rows.append([n, harness.spread([harness.steps_per_second(engine, args.seconds) for _ in range(3)])])
    if rows:
        print("\n" + harness.table(["environments", "steps/s with PPO (4 epochs of 4 minibatches)"], rows))
    print(f"\n{load}")


if __name__ == "__main__":
    main()
