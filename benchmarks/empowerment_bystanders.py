"""Does empowering one human cost another? The power of each human beside a robot that maximises their aggregate, with
and without aversion to inequality, against one that acts at random: exact solutions of worlds with unequal humans.

    python benchmarks/empowerment_bystanders.py
    python benchmarks/empowerment_bystanders.py --worlds world/unequal --beta-r 50
    python benchmarks/empowerment_bystanders.py --learned --seeds 5      # learned robots beside the exact ones

Power is W_h = log2 X_h, each human's own under the robot in question, as a mean over the time and over what may happen.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
from power_training import trained

import regimen
from regimen.domains.empowerment import validate
from regimen.domains.empowerment.solution import Solution
from regimen.engines import device

WORLDS = ("unequal", "asym1x7", "rock_between", "small_one_or_three_chambers")
PLAIN, AVERSE = {"xi": 1.0, "eta": 1.0}, {"xi": 4.0, "eta": 1.1}


def main() -> None:
    parser = argparse.ArgumentParser(description="Power of each human, by kind of robot.")
    parser.add_argument("--worlds", nargs="+", default=[f"world/{name}" for name in WORLDS])
    parser.add_argument("--beta-r", type=float, default=100.0)
    parser.add_argument("--learned", action="store_true", help="train both robots, too")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=131_072, help="env steps of a training")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("JOB_SECONDS") or "inf"), help="in all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.learned:
        return learned_table(args)
    print("| world | human | at random | plain | averse | plain costs | averse costs |")
    print("|---|---|---|---|---|---|---|")
    for world in args.worlds:
        print("\n".join(rows(world, args.beta_r)), flush=True)


def rows(world: str, beta_r: float) -> list[str]:
    """One line for each human of a world."""
    random, plain, averse = (power(world, **given) for given in ({"beta_r": 0.0}, *robots(beta_r)))
    return [
        f"| `{world}` | {h} | {random[h]:.2f} | {plain[h]:.2f} | {averse[h]:.2f} | {max(0, random[h] - plain[h]):.2f} "
        f"| {max(0, random[h] - averse[h]):.2f} |"
        for h in range(len(random))
    ]


def robots(beta_r: float) -> tuple[dict[str, float], dict[str, float]]:
    """Parameters of the plain robot and of the one that is averse to inequality."""
    return PLAIN | {"beta_r": beta_r}, AVERSE | {"beta_r": beta_r}


def learned_table(args: argparse.Namespace) -> None:
    """What learned robots cost and give, seed by seed, beside the exact ones."""
    device.configure("cpu", native=True)
    figures, each = [], args.seconds * 0.95 / (len(args.worlds) * args.seeds * 2)
    print("| world | robot | seed | power of each human | exact | cost of each against chance | TV by visits |")
    print("|---|---|---|---|---|---|---|")
    for world in args.worlds:
        chance = power(world, beta_r=0.0)
        for seed in range(args.seeds):
            for name, theory in zip(("plain", "averse"), robots(args.beta_r)):
                settings = {"total_steps": args.steps} | {f"algo.{k}": v for k, v in theory.items()}
                run = trained(world, {}, settings, seed, each)
                solution = regimen.empowerment.solve(world, **theory)
                pairs = validate.compare(run.algo, run.params, solution)
                own, right = power_of(validate.learned_solution(solution, pairs)), power_of(solution)
                tv = validate.measure(pairs, args.beta_r)["tv_visits"]
                cells = [" ".join(f"{v:.2f}" for v in x) for x in (own, right, np.maximum(0, chance - own))]
                print(f"| `{world}` | {name} | {seed} | {' | '.join(cells)} | {tv:.4f} |", flush=True)
                figures.append({"world": world, "robot": name, "seed": seed, "power": own.tolist(), "tv": tv}
                               | {"exact": right.tolist(), "random": chance.tolist()} | run.words())  # fmt: skip
                if args.out:
                    args.out.write_text(json.dumps(figures, indent=1))


def power(world: str, **theory: float) -> np.ndarray:
    """The mean power of each human over the time, in bits [H], when the robot and the humans act as solved."""
    return power_of(regimen.empowerment.solve(world, **theory))


def power_of(found: Solution) -> np.ndarray:
    """The same of a solution, or of what was learned in its place."""
    bits = [np.log2(x) for x in found.x_h]  # nan where the world has ended, which earns nothing
    sums = [found.evaluate(lambda t, h=h: bits[t][:, h])[0][0] for h in range(found.world.humans)]
    return np.array(sums) / found.world.max_episode_steps


if __name__ == "__main__":
    main()
