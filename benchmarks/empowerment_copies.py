"""A world of any size whose exact values are known: independent copies of a small one, each with its own robot and
humans, side by side. With eta 1 and beta_r 0 the abilities of each human are those of its copy, and V_r is the mean of
the copies'. Trains on 1, 2, ... copies and compares values on visited states, so that errors are seen to grow or not.

    python benchmarks/empowerment_copies.py --world world/trivial --copies 1 2 3 4
    python benchmarks/empowerment_copies.py --copies 4 --set algo.use_model_based_targets=false algo.batch_size=256
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from power_training import devices, trained

from regimen.domains.empowerment import exact, rollouts
from regimen.domains.empowerment.api import make_world
from regimen.domains.empowerment.beside import residuals_of
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.worlds.world import World
from regimen.engines import device
from regimen.envs import registry
from regimen.envs.protocol import native_env

MAKE = "empowerment_copies:make"
TRANSITIONS = {"algo.exact_limit": 1, "algo.draws": "transitions", "algo.human_samples": 2}
THEORY = {"beta_r": 0.0, "eta": 1.0}


@native_env
class Copies(World):
    """Copies of a world beside each other: nothing in one has an effect on another."""

    of: Any = None
    copies: int = 2
    max_episode_steps: int = 1

    @property
    def robots(self) -> int:
        return self.copies * self.of.robots

    @property
    def humans(self) -> int:
        return self.copies * self.of.humans

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(self.of.actions)

    @property
    def sizes(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def enumerable(self) -> bool:
        return False

    @property
    def state_space(self) -> Any:
        from gymnasium import spaces

        return spaces.MultiDiscrete(list(self.of.sizes) * self.copies, dtype=np.int32)

    @property
    def goal_weights(self) -> np.ndarray:
        return np.tile(self.of.goal_weights, (self.copies, 1))

    def initial(self) -> jax.Array:
        return jnp.tile(self.of.initial(), self.copies)

    def split(self, state: jax.Array) -> jax.Array:
        return state.reshape(self.copies, -1)

    def acts(self, actions: jax.Array) -> jax.Array:
        """Actions of the agents of each copy [copies, n]."""
        robots, humans = actions[: self.robots], actions[self.robots :]
        return jnp.concatenate([robots.reshape(self.copies, -1), humans.reshape(self.copies, -1)], 1)

    def outcomes(self, state: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
        p, states = jax.vmap(self.of.outcomes)(self.split(state), self.acts(actions))  # [C, K], [C, K, n]
        grid = np.indices((p.shape[1],) * self.copies).reshape(self.copies, -1)  # [C, K^C]
        who = np.arange(self.copies)[:, None]
        return p[who, grid].prod(0), jnp.moveaxis(states[who, grid], 0, 1).reshape(grid.shape[1], -1)

    def sample(self, key: jax.Array, state: jax.Array, actions: jax.Array) -> jax.Array:
        keys = jax.random.split(key, self.copies)
        return jax.vmap(self.of.sample)(keys, self.split(state), self.acts(actions)).reshape(-1)

    def attained(self, state: jax.Array) -> jax.Array:
        return jax.vmap(self.of.attained)(self.split(state)).reshape(self.humans, -1)

    def prior(self, state: jax.Array) -> jax.Array:
        prior = jax.vmap(self.of.prior)(self.split(state))
        return prior.reshape(self.humans, *prior.shape[2:])

    def features(self, state: jax.Array) -> jax.Array:
        return jax.vmap(self.of.features)(self.split(state)).reshape(-1)


def make(world: str = "world/trivial", copies: int = 2) -> Copies:
    """Copies of a world by its name."""
    base = make_world(world)
    return Copies(base, copies, base.max_episode_steps)


def main() -> None:
    parser = argparse.ArgumentParser(description="Independent copies of a solved world.")
    parser.add_argument("--world", default="world/trivial")
    parser.add_argument("--copies", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=131_072, help="env steps of a training")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("JOB_SECONDS") or "inf"), help="in all")
    parser.add_argument(
        "--observed", action="store_true", help="targets from observed transitions, not from drawn ones"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the learner")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device.configure(args.device, native=True)
    base = make_world(args.world)
    solution = exact.solve(base, exact.Theory(**THEORY))
    by_time = solution.table.reachable_at.sum(1)
    results = []
    for copies in args.copies:
        states = sum(int(n) ** copies for n in by_time)
        found = measure(args, {"world": args.world, "copies": copies}, solution)
        results.append({"copies": copies, "states with time": states} | found)
        print(json.dumps(results[-1]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1))


def measure(args: argparse.Namespace, env_args: dict[str, Any], solution: Solution) -> dict[str, Any]:
    """Errors of what was learned, on states that a random robot visits."""
    texts = dict(text.split("=", 1) for text in args.set)
    settings: dict[str, Any] = {"total_steps": args.steps, "rollout.steps": 4096, "rollout.num_envs": 16}
    settings |= {"network.hidden": [128, 128], "algo.lr_decay": "cosine", "algo.lr_constant_fraction": 0.3}
    settings |= {f"algo.{name}": value for name, value in THEORY.items()}
    settings |= {"algo.use_model_based_targets": False} if args.observed else TRANSITIONS
    settings |= {name: yaml.safe_load(value) for name, value in texts.items()}
    world: Any = registry.resolve(MAKE, env_args).native
    run = trained(MAKE, env_args, settings, args.seed, args.seconds * 0.9 / len(args.copies))
    played = rollouts.play(world, rollouts.Robot(rollouts.at_random), 7, 256)
    time, episode = np.divmod(np.arange(played.over.size), played.over.shape[1])
    states = played.states[time, episode]
    rows = run.algo.bound.model.rows({"state": jnp.asarray(states), "time": jnp.asarray(time, jnp.int32)})
    values = run.algo.values(run.params, rows, 0.0)
    index = np.array([solution.table.index(s) for s in states.reshape(-1, len(world.of.sizes))]).reshape(len(time), -1)
    at = [[solution.v_h_e[t][i] for i in row] for t, row in zip(time, index)]
    v_h_e = np.array(at).reshape(values.v_h_e.shape)
    v_r = np.array([np.mean([solution.v_r[t][i] for i in row]) for t, row in zip(time, index)])
    learned = -np.exp(np.asarray(values.log_v))
    return {
        "V_h^e, mean error": float(np.abs(np.asarray(values.v_h_e) - v_h_e).mean()),
        "V_r, mean relative error": float(np.abs(learned / v_r - 1).mean()),
        "V_r(s0), relative error": float(abs(learned[0] / v_r[0] - 1)),
        "residuals": residuals_of(run.algo, run.params, played, 0) if not args.observed else {},
    } | run.words() | devices()  # fmt: skip


if __name__ == "__main__":
    main()
