"""A run directory with the files that a short training run leaves, made without training."""

from pathlib import Path

import numpy as np

from regimen.files.run_dir import RunFiles


def make_run(path: Path, updates: int = 60, seed: int = 0, components: bool = False, evaluate: bool = True) -> Path:
    """With `components`: also what hybrid actions, component rewards and a curriculum add."""
    rng = np.random.default_rng(seed)
    config = {
        "env": "cartpole",
        "algorithm": "ppo",
        "seed": seed,
        "algo": {"lr": 3e-4, "epochs": 4},
        "stop": {"target_return": 475.0, "convergence_window": 50},
    }
    with RunFiles.create(path, config, "regimen train cartpole") as files:
        episode = 0
        for update in range(1, updates + 1):
            level = 20 + 470 / (1 + np.exp(-(update - 0.5 * updates) / (0.08 * updates)))
            returns = np.clip(rng.normal(level, 0.2 * level, 8), 8, 500).round().astype(np.float32)
            env_steps = 1500 * update
            progress = update / updates
            point = {
                "env_steps": env_steps,
                "updates": update,
                "episodes": episode + 8,
                "wall_seconds": 0.2 * update,
                "rollout/return_mean": returns.mean(),
                "rollout/episodes": 8,
                "train/loss": 0.5 * (1 - progress) + rng.normal(0, 0.02),
                "train/policy_loss": -0.01 + rng.normal(0, 0.003),
                "train/value_loss": 60 * np.exp(-3 * progress) + rng.normal(0, 2),
                "train/entropy": 0.69 - 0.3 * progress + rng.normal(0, 0.01),
                "train/approx_kl": abs(0.008 + rng.normal(0, 0.003)),
                "train/clip_fraction": abs(0.1 + rng.normal(0, 0.02)),
                "train/explained_variance": 0.95 - np.exp(-6 * progress) + rng.normal(0, 0.02),
                "time/steps_per_second": 50_000.0,
            }
            if components:
                for name, mean, weight in (("goal", level, 0.4 + 0.3 * progress), ("fuel", -0.2 * level, 0.3)):
                    point |= {f"rollout/reward/{name}": mean, f"train/weight/{name}": weight}
                    point |= {f"rollout/reward/{name}{end}": mean + d for end, d in (("_min", -20.0), ("_max", 20.0))}
                    point[f"train/explained_variance/{name}"] = 0.9 * progress
                point |= {"train/entropy/choice": 0.6 - 0.3 * progress, "train/entropy/amount": 0.2 - progress}
                point |= {"train/curriculum/gravity": 5.0 + 4.8 * progress, "train/curriculum/level": update // 20}
            if evaluate and update % max(1, updates // 12) == 0:
                greedy = np.clip(rng.normal(level * 1.05, 0.1 * (510 - level), 10), 8, 500)
                point |= {"eval/return_mean": greedy.mean(), "eval/return_std": greedy.std(), "eval/episodes": 10}
                point |= {"eval/return_min": greedy.min(), "eval/return_max": greedy.max()}
            files.log(point)
            rows = {
                "episode": episode + np.arange(1, 9),
                "update": np.full(8, update),
                "env_steps": env_steps - 1500 + np.sort(rng.integers(1, 1501, 8)),
                "return": returns,
                "length": returns.astype(int),
                "terminated": returns < 500,
                "truncated": returns >= 500,
            }
            files.episodes(rows)
            episode += 8
        files.summary(
            {
                "env": "cartpole",
                "algo": "ppo",
                "seed": seed,
                "env_steps": 1500 * updates,
                "updates": updates,
                "wall_seconds": 12.3,
                "compile_seconds": 2.1,
                "steps_per_second": 50_000,
                "eval_return_mean": 498.25,
                "eval_return_std": 4.5,
                "eval_episodes": 100,
                "solved": True,
                "stop_reason": "converged: mean of 50 episodes at least 475",
                "best_checkpoint": "checkpoints/60",
            }
        )
        files.status(state="finished", stop_reason="converged: mean of 50 episodes at least 475")
    return path
