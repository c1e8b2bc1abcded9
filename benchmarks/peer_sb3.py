"""The peer: PPO and SAC of Stable-Baselines3. Runs in whichever interpreter has it; imports nothing of Regimen.

`serve` answers one JSON request per line with its steps/s; `solve` trains until 100 greedy episodes average 475;
`train` trains its budget of env steps and ends.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger

THRESHOLD, EPISODES = 475.0, 100
STEPS, EPOCHS, MINIBATCHES = 128, 4, 4
SETTINGS = {"learning_rate": 2.5e-4, "gamma": 0.99, "gae_lambda": 0.95, "ent_coef": 0.01, "n_epochs": EPOCHS}


def make(num_envs: int, seed: int = 0, **settings: Any) -> PPO:
    """PPO with its default 64-64 tanh actor and critic; nothing is logged."""
    env = make_vec_env("CartPole-v1", n_envs=num_envs, seed=seed)
    model = PPO("MlpPolicy", env, device="cpu", seed=seed, verbose=0, **settings)
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def make_sac(seed: int = 0) -> SAC:
    """SAC on one Pendulum, 256-256, batches of 256, one gradient step for each env step: its defaults."""
    model = SAC("MlpPolicy", make_vec_env("Pendulum-v1", n_envs=1, seed=seed), device="cpu", seed=seed, verbose=0)
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def serve() -> None:
    models: dict[int, tuple[PPO, float]] = {}
    sac: SAC | None = None
    print(json.dumps({"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("algo") == "sac":
            if sac is None:
                sac = make_sac()
                sac.learn(400, log_interval=None)  # type: ignore[arg-type]  # random until 100; warm up
            steps = max(20, round(learn(sac, 50) * request["seconds"]))
            print(json.dumps({"steps_per_second": learn(sac, steps)}), flush=True)
            continue
        num_envs = request["num_envs"]
        batch = num_envs * STEPS
        if num_envs not in models:
            model = make(num_envs, n_steps=STEPS, batch_size=batch // MINIBATCHES, **SETTINGS)
            model.learn(batch)  # warm up
            models[num_envs] = model, learn(model, 2 * batch)
        model, speed = models[num_envs]
        updates = max(1, round(speed * request["seconds"] / batch))
        print(json.dumps({"steps_per_second": learn(model, updates * batch)}), flush=True)


def learn(model: Any, steps: int) -> float:
    before, start = model.num_timesteps, time.perf_counter()
    model.learn(steps, reset_num_timesteps=False, log_interval=None)  # type: ignore[arg-type]
    return (model.num_timesteps - before) / (time.perf_counter() - start)


class Greedy(BaseCallback):
    """After the update that reaches each multiple of `every` steps: 100 greedy episodes, all at once.

    `fast`: in Gymnasium's own vectorised CartPole (numpy), the quickest way there is on this side; else with SB3's
    `evaluate_policy` on a DummyVecEnv of 100.
    """

    def __init__(self, every: int, seed: int, fast: bool):
        super().__init__()
        self.every, self.next, self.solved, self.fast = every, every, False, fast
        self.seeds, self.seconds = 1_000_003 * (seed + 1), 0.0
        if fast:
            self.envs: Any = gymnasium.make_vec("CartPole-v1", EPISODES, vectorization_mode="vector_entry_point")
        else:
            self.envs = make_vec_env("CartPole-v1", EPISODES, seed=self.seeds)

    def _on_rollout_start(self) -> None:  # also right after every update
        if self.num_timesteps < self.next:
            return
        self.next = (self.num_timesteps // self.every + 1) * self.every
        start = time.perf_counter()
        mean = self.play() if self.fast else float(evaluate_policy(self.model, self.envs, EPISODES)[0])  # type: ignore[arg-type]
        self.seconds += time.perf_counter() - start
        self.solved = mean >= THRESHOLD
        word = "Solved after" if self.solved else "Eval after"
        note = f"{self.num_timesteps:,} steps: greedy mean {mean:.1f}; {self.seconds:.1f} s evaluating"
        print(word, note, flush=True)

    def play(self) -> float:
        obs, _ = self.envs.reset(seed=self.seeds + self.num_timesteps)
        returns, going = np.zeros(EPISODES), np.ones(EPISODES, bool)
        while going.any():
            action, _ = self.model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = self.envs.step(action)
            returns += reward * going
            going &= ~(terminated | truncated)
        return float(returns.mean())

    def _on_step(self) -> bool:
        return not self.solved


def solve(hyper: str, seed: int, every: int, budget: int, fast: bool) -> None:
    if hyper == "zoo":  # rl-zoo3, hyperparams/ppo.yml, CartPole-v1
        model = make(
            8, seed, n_steps=32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8, ent_coef=0.0,
            learning_rate=lambda left: left * 1e-3, clip_range=lambda left: left * 0.2,
        )  # fmt: skip
    else:
        model = make(1, seed)
    callback = Greedy(every, seed, fast)
    model.learn(budget, callback=callback, log_interval=None)  # type: ignore[arg-type]
    if not callback.solved:
        callback.next = model.num_timesteps
        callback._on_rollout_start()
    if not callback.solved:
        print(f"Not solved within {model.num_timesteps:,} steps", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["serve", "solve", "train"])
    parser.add_argument("--threads", type=int, default=1, help="of torch; 0: its default")
    parser.add_argument("--hyper", choices=["zoo", "default"], default="zoo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=2560)
    parser.add_argument("--budget", type=int, default=100_000)
    parser.add_argument("--envs", type=int, default=4, help="of train")
    parser.add_argument("--evaluate-policy", action="store_true", help="evaluate with SB3's own function")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.what == "serve":
        serve()
    elif args.what == "train":
        batch = args.envs * STEPS
        make(args.envs, args.seed, n_steps=STEPS, batch_size=batch // MINIBATCHES, **SETTINGS).learn(args.budget)
    else:
        solve(args.hyper, args.seed, args.every, args.budget, not args.evaluate_policy)


if __name__ == "__main__":
    main()
