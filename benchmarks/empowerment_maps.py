"""One network for many maps: trains on maps drawn at random, and tests the robot on maps that are in no training,
beside the exact robot of each, one that does nothing and one that acts at random, by paired episodes.

    python benchmarks/empowerment_maps.py --world world/niches --seeds 3
    python benchmarks/empowerment_maps.py --world world/locked --tests 40 --set env.maps=2000 algo.batch_size=256
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml
from power_training import devices, made, trained

from regimen.algorithms.bind import bind_algorithm
from regimen.config.regimen import resolve
from regimen.config.schema import TrainConfig
from regimen.domains.empowerment import exact, rollouts, validate
from regimen.engines import device
from regimen.envs import registry
from regimen.statistics import mean_interval

LIMIT = 50_000_000  # states times joint actions of one map


def main() -> None:
    parser = argparse.ArgumentParser(description="Maps not seen in training.")
    parser.add_argument("--world", default="world/niches")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--tests", type=int, default=30, help="maps to test on")
    parser.add_argument("--episodes", type=int, default=1000, help="on each map, by each robot")
    parser.add_argument("--steps", type=int, default=262_144, help="env steps, if the time lasts")
    parser.add_argument(
        "--seconds", type=float, default=float(os.environ.get("JOB_SECONDS") or 0), help="0: whole budget"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings, env.x, algo.x, ...")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--fit", action=argparse.BooleanOptionalAction, default=True, help="measure what fits first")
    parser.add_argument("--save", type=Path, help="a file for the networks; then nothing is tested")
    parser.add_argument("--load", type=Path, help="networks that were saved, instead of training")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device.configure(args.device, native=True)
    texts = dict(text.split("=", 1) for text in args.set)
    settings = {name: yaml.safe_load(value) for name, value in texts.items()}
    results = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        results.append(measure(args, settings, seed))
        if args.out:
            args.out.write_text(json.dumps(results, indent=1))


def measure(args: argparse.Namespace, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train with one seed, and test."""
    begun = time.monotonic()
    env_args = {name[4:]: value for name, value in settings.items() if name.startswith("env.")}
    others = {name: value for name, value in settings.items() if not name.startswith("env.")}
    learner = {"total_steps": args.steps} | others
    if args.load:
        config, engine = made(args.world, env_args, learner, seed, args.steps)
        about, params = {}, loaded(args.load, {n: m.params for n, m in engine.at(engine.state, 0).models.items()})
    else:
        share = 0.9 if args.save else 0.62
        run = trained(args.world, env_args, learner, seed, (share * args.seconds or inf) / args.seeds, args.fit)
        config, params, about = run.config, run.params, run.words() | devices()
    if args.save:
        flat = {jax.tree_util.keystr(path): np.float16(x) for path, x in jax.tree_util.tree_leaves_with_path(params)}
        np.savez_compressed(args.save, **flat)
        print(about, flush=True)
        return about
    found = test(config, params, args.tests, args.episodes)
    found |= {"seed": seed, "settings": settings, "in all": time.monotonic() - begun} | about
    print(json.dumps({k: v for k, v in found.items() if k != "maps"}, indent=1), flush=True)
    return found


def loaded(path: Path, like: Any) -> Any:
    """Networks that were saved, in the form of these."""
    arrays = np.load(path)
    return jax.tree_util.tree_map_with_path(lambda p, x: arrays[jax.tree_util.keystr(p)].astype(x.dtype), like)


def test(config: TrainConfig, params: Any, tests: int, episodes: int) -> dict[str, Any]:
    """The robot on maps that are in no training: beside others by episodes, and beside the exact policy."""
    config = replace(config, env_args=config.env_args | {"part": "tests", "maps": tests})
    handle = registry.resolve(config.env, config.env_args)
    family: Any = handle.native
    algo: Any = bind_algorithm(config, handle, resolve(config, native=True))
    rule = rollouts.learned(algo)
    solutions = [exact.solve(family.alone(m), algo.config.theory(), LIMIT) for m in range(tests)]
    size = max(len(s.table.states) for s in solutions)
    rows = []
    print(f"  {tests} maps solved", flush=True)
    for m, solution in enumerate(solutions):
        robots = {
            "learned": rollouts.Robot(rule, params),
            "exact": rollouts.exact_robot(solution, size),
            "idle": rollouts.Robot(rollouts.idle),
            "random": rollouts.Robot(rollouts.at_random),
        }
        start = np.asarray(family.initial_on(m))
        attained = {n: rollouts.play(family, r, 1000 + m, episodes, start).attained.mean() for n, r in robots.items()}
        pairs = validate.compare(algo, params, solution, number=m)
        errors = validate.measure(pairs, algo.config.beta_r)
        names = ("v_r_start_error", "tv_visits", "tv_mean", "argmax_agreement")
        rows.append({**attained, **{n: errors[n] for n in names}})
    table = {n: np.array([row[n] for row in rows]) for n in rows[0]}
    out: dict[str, Any] = {"maps": {n: x.tolist() for n, x in table.items()}}
    for name in ("idle", "random"):
        out[f"learned above {name}"] = interval(table["learned"] - table[name])
    out["means"] = {n: float(x.mean()) for n, x in table.items()}
    out["learned as a share of exact"] = float(table["learned"].sum() / table["exact"].sum())
    out["share of the exact robot's gain"] = float(
        (table["learned"] - table["random"]).sum() / (table["exact"] - table["random"]).sum()
    )
    out["share, interval over maps"] = bootstrap(table["learned"], table["exact"])
    return out


def interval(x: np.ndarray) -> list[float]:
    return [float(v) for v in (x.mean(), *mean_interval(x))]


def bootstrap(a: np.ndarray, b: np.ndarray) -> list[float]:
    """95 % interval of a ratio of sums over maps."""
    at = np.random.default_rng(0).integers(0, len(a), (4000, len(a)))
    return np.quantile(a[at].sum(1) / b[at].sum(1), [0.025, 0.975]).tolist()


if __name__ == "__main__":
    main()
