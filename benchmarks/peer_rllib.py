"""The peer: PPO of RLlib. Runs in whichever interpreter has it; imports nothing of Regimen.

`serve` answers one JSON request per line with its steps/s; `train` trains so many env steps and ends.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
SAMPLED = "num_env_steps_sampled_lifetime"


def make(num_envs: int, workers: int) -> Any:
    """PPO with a 64-64 tanh actor and critic; 0 workers: everything in this process. Its own KL penalty is off."""
    batch = num_envs * STEPS
    runners = {"num_env_runners": workers, "num_envs_per_env_runner": max(num_envs // max(workers, 1), 1)}
    network = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = PPOConfig().environment("CartPole-v1").env_runners(**runners).learners(num_learners=0)
    config = config.rl_module(model_config=network).training(
        train_batch_size_per_learner=batch,
        minibatch_size=batch // MINIBATCHES,
        num_epochs=EPOCHS,
        lr=2.5e-4,
        gamma=0.99,
        lambda_=0.95,
        entropy_coeff=0.01,
        clip_param=0.2,
        vf_loss_coeff=0.5,
        grad_clip=0.5,
        use_kl_loss=False,
    )
    return config.build_algo()


def serve(workers: int) -> None:
    algorithms: dict[int, Any] = {}
    steps: dict[int, int] = {}  # sampled so far
    print(json.dumps({"ray[rllib]": ray.__version__, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        num_envs = request["num_envs"]
        if num_envs not in algorithms:
            algorithms[num_envs] = make(num_envs, workers)
            steps[num_envs] = algorithms[num_envs].train()[SAMPLED]  # warm up
        before, start = steps[num_envs], time.perf_counter()
        while steps[num_envs] == before or time.perf_counter() - start < request["seconds"]:
            steps[num_envs] = algorithms[num_envs].train()[SAMPLED]
        speed = (steps[num_envs] - before) / (time.perf_counter() - start)
        print(json.dumps({"steps_per_second": speed}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["serve", "train"])
    parser.add_argument("--workers", type=int, default=0, help="processes that collect; 0: none beside the learner")
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    ray.init(
        "local", num_cpus=max(2, args.workers + 1), include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    if args.what == "serve":
        serve(args.workers)
    else:
        algorithm = make(args.envs, args.workers)
        while algorithm.train()[SAMPLED] < args.steps:
            pass


if __name__ == "__main__":
    main()
