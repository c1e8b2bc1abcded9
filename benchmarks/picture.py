"""A picture of a native environment in the middle of an episode of one of its baselines, for the documentation.

    .venv/bin/python benchmarks/picture.py durotaxis docs/images/durotaxis.png --step 9 --seed 1
    .venv/bin/python benchmarks/picture.py network_defense docs/images/network_defense.png --policy greedy --step 22 \
        --env red=meander --env workflow=critical_first
"""

import argparse

import jax
from matplotlib import image

from regimen.envs import registry


def draw(env, policy: str, step: int, seed: int):
    """The environment after so many steps of a baseline [H, W, 3]."""
    advance = jax.jit(lambda e, k, s: e.step(k, s, e.baselines[policy](e, k, s, None))[0])
    state, _ = jax.jit(lambda e, k: e.reset(k))(env, jax.random.key(seed))
    for t in range(step):
        state = advance(env, jax.random.key(1000 * seed + t), state)
    return env.render(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env")
    parser.add_argument("path")
    parser.add_argument("--policy", default="heuristic")
    parser.add_argument("--step", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    env = registry.resolve(args.env, dict(pair.split("=", 1) for pair in args.settings)).native
    image.imsave(args.path, draw(env, args.policy, args.step, args.seed))


if __name__ == "__main__":
    main()
