"""Worlds of growing size, beyond what can be solved: trains a robot on each, one that serves a single human and
one that maximises the goals attained (PPO), and lets all of them play the same episodes.

    python benchmarks/empowerment_ladder.py                            # all worlds of the ladder
    python benchmarks/empowerment_ladder.py --worlds world/hall --seeds 3 --seconds 300
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import yaml
from power_training import devices, trained

from regimen.domains.empowerment import reach, validate
from regimen.domains.empowerment.api import make_world
from regimen.domains.empowerment.beside import greedy_of, residuals_of, summary
from regimen.domains.empowerment.learner.binding import solution_of
from regimen.domains.empowerment.rollouts import Robot, at_random, exact_robot, idle, learned, play
from regimen.engines import device

LADDER: dict[str, dict[str, Any]] = {
    "world/trivial": {},
    "world/asymmetric_freeing_simple": {"max_episode_steps": 15},
    "world/asymmetric_freeing": {"max_episode_steps": 15},
    "world/hall": {},
}
SOLVABLE = 60_000_000  # states times joint actions that are solved


def main() -> None:
    parser = argparse.ArgumentParser(description="Worlds of growing size.")
    parser.add_argument("--worlds", nargs="+", default=list(LADDER))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("JOB_SECONDS") or 3600), help="in all")
    parser.add_argument("--steps", type=int, default=131_072, help="env steps of each robot that learns power")
    parser.add_argument("--ppo-steps", type=int, default=2_000_000)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--beta-r", type=float, default=30.0)
    parser.add_argument(
        "--env", nargs="+", default=["view=picture"], metavar="NAME=VALUE", help="settings of the world"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of the learner")
    parser.add_argument("--serves", type=int, default=0, help="which human the robot of one human serves")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--fit", action=argparse.BooleanOptionalAction, default=True, help="measure what fits first")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device.configure(args.device, native=True)
    results, begun = [], time.monotonic()
    runs = [(world, seed) for world in args.worlds for seed in range(args.first_seed, args.first_seed + args.seeds)]
    for i, (world, seed) in enumerate(runs):
        left = args.seconds - (time.monotonic() - begun)
        results.append(measure(args, world, seed, left / (len(runs) - i)))
        if args.out:
            args.out.write_text(json.dumps(results, indent=1))


def read(texts: list[str]) -> dict[str, Any]:
    return {name: yaml.safe_load(value) for name, value in (text.split("=", 1) for text in texts)}


def measure(args: argparse.Namespace, world: str, seed: int, seconds: float) -> dict[str, Any]:
    """All robots of one world and seed."""
    env_args = LADDER.get(world, {}) | read(args.env)
    begun, (states, exact) = time.monotonic(), size_of(world, env_args)
    seconds -= time.monotonic() - begun
    shares = {"learned": 0.45, "one human's": 0.25, "PPO": 0.15}
    if make_world(world, env_args).humans < 2:
        shares.pop("one human's")
    learner = {"total_steps": args.steps, "algo.beta_r": args.beta_r} | read(args.set)
    settings = {"learned": learner, "one human's": learner | {"algo.serves": args.serves}}
    settings["PPO"] = {
        "algorithm": "ppo",
        "total_steps": args.ppo_steps,
        "rollout.steps": 32_768,
        "rollout.num_envs": 256,
    }
    out: dict[str, Any] = {"world": world, "seed": seed, "states with time": states, "beta_r": args.beta_r}
    robots, runs = {}, {}
    for name, share in shares.items():
        shown = {"observation": "features"} if name == "PPO" else {}
        run = trained(world, env_args | shown, settings[name], seed, share * seconds, args.fit)
        out[f"training: {name}"] = run.words() | devices()
        print(f"  {name}: {out[f'training: {name}']}", flush=True)
        rule = greedy_of(run.algo) if name == "PPO" else learned(run.algo)
        robots[name] = Robot(rule, run.algo.actor_params(run.state) if name == "PPO" else run.params)
        runs[name] = run
    robots |= {"idle": Robot(idle), "random": Robot(at_random)}
    ours, solution = runs["learned"], None
    if exact:
        solution = solution_of(make_world(world, env_args), ours.algo.config, SOLVABLE)
        robots["exact"] = exact_robot(solution)
    found = {name: play(make_world(world, env_args), robot, seed, args.episodes) for name, robot in robots.items()}
    result = summary("", world, found, residuals_of(ours.algo, ours.params, found["learned"], seed))
    out |= {name: x for name, x in result.to_dict().items() if name not in ("run", "env")}
    if solution is not None:
        out["validation"] = validate.measure(validate.compare(ours.algo, ours.params, solution), args.beta_r)
    print("\n".join(result.lines()))
    print(json.dumps({name: x for name, x in out.items() if name not in result.to_dict()}, indent=1), flush=True)
    return out


def size_of(world: str, env_args: dict[str, Any]) -> tuple[str, bool]:
    """How many states with time there are, listed or by an estimate, and whether the world is solved."""
    try:
        return f"{reach.enumerate_states(make_world(world, env_args), SOLVABLE).pairs:,}", True
    except reach.TooLargeError as error:
        return str(error).partition("(an estimate: ")[2].partition(" states")[0] + " (an estimate, without time)", False


if __name__ == "__main__":
    main()
