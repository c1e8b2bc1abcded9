"""The peer: PPO of PureJaxRL (github.com/luchris429/purejaxrl). Runs in an interpreter that has what it imports, and
imports nothing of Regimen. `--code` is the folder with its `ppo.py`, which is imported as it is.

`serve` answers one JSON request per line with its steps/s; `train` trains so many env steps and ends.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
AT_ONCE = {4: 200_000, 64: 1_000_000}  # env steps of one call, which runs to its end


def make(num_envs: int, total: int) -> Callable[[Any], Any]:
    """Its `make_train`, compiled: a 64-64 tanh actor and critic, the settings of its `ppo.py` without annealing."""
    settings = {
        "LR": 2.5e-4,
        "NUM_ENVS": num_envs,
        "NUM_STEPS": STEPS,
        "TOTAL_TIMESTEPS": total,
        "UPDATE_EPOCHS": EPOCHS,
        "NUM_MINIBATCHES": MINIBATCHES,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
        "ENV_NAME": "CartPole-v1",
        "ANNEAL_LR": False,
        "DEBUG": False,
    }
    return jax.jit(importlib.import_module("ppo").make_train(settings))


def serve() -> None:
    programs: dict[int, Callable[[Any], Any]] = {}
    print(json.dumps({"jax": jax.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        num_envs = request["num_envs"]
        total = AT_ONCE.get(num_envs, 1_000_000)
        if num_envs not in programs:
            programs[num_envs] = make(num_envs, total)
            jax.block_until_ready(programs[num_envs](jax.random.PRNGKey(0)))  # compiles
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < request["seconds"] or not steps:
            jax.block_until_ready(programs[num_envs](jax.random.PRNGKey(steps)))
            steps += total // (num_envs * STEPS) * num_envs * STEPS
        print(json.dumps({"steps_per_second": steps / (time.perf_counter() - start)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["serve", "train"])
    parser.add_argument("--code", required=True, help="the folder with ppo.py and wrappers.py")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    sys.path.insert(0, args.code)
    if args.what == "serve":
        serve()
    else:
        jax.block_until_ready(make(args.envs, args.steps)(jax.random.PRNGKey(0)))


if __name__ == "__main__":
    main()
