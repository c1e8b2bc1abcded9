"""Does empowering one human cost another? The power of each human beside a robot that maximises their aggregate, with
and without aversion to inequality, against one that acts at random: exact solutions of worlds with unequal humans.

    python benchmarks/empowerment_bystanders.py
    python benchmarks/empowerment_bystanders.py --worlds world/unequal --beta-r 50

Power is W_h = log2 X_h, each human's own under the robot in question, as a mean over the time and over what may happen.
"""

from __future__ import annotations

import argparse

import numpy as np

import regimen

WORLDS = ("unequal", "asym1x7", "rock_between", "small_one_or_three_chambers")
PLAIN, AVERSE = {"xi": 1.0, "eta": 1.0}, {"xi": 4.0, "eta": 1.1}


def main() -> None:
    parser = argparse.ArgumentParser(description="Power of each human, by kind of robot.")
    parser.add_argument("--worlds", nargs="+", default=[f"world/{name}" for name in WORLDS])
    parser.add_argument("--beta-r", type=float, default=100.0)
    args = parser.parse_args()
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


def power(world: str, **theory: float) -> np.ndarray:
    """The mean power of each human over the time, in bits [H], when the robot and the humans act as solved."""
    found = regimen.empowerment.solve(world, **theory)
    bits = [np.log2(x) for x in found.x_h]  # nan where the world has ended, which earns nothing
    sums = [found.evaluate(lambda t, h=h: bits[t][:, h])[0][0] for h in range(found.world.humans)]
    return np.array(sums) / found.world.max_episode_steps


if __name__ == "__main__":
    main()
