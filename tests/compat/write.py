"""Writes a folder of `tests/compat/` with the version that is installed: `python tests/compat/write.py FOLDER`."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import regimen
from regimen import spaces
from regimen.policies.policy import Policy

SETTINGS = {
    "total_steps": 256,
    "seed": 3,
    "track": False,
    "preset": "balanced",
    "network.hidden": (8, 8),
    "rollout.steps": 64,
    "rollout.num_envs": 4,
    "algo.minibatch_size": 32,
    "algo.epochs": 1,
    "algo.normalize_obs": True,
    "eval.every": "2",
    "eval.episodes": 2,
    "checkpoint.every": "2",
    "checkpoint.keep": 1,
}
SMALL = {"network.hidden": (8,), "preset": "balanced", "total_steps": 64, "track": False}
POLICIES = {  # one of every kind of network, as it is before training
    "sac": ("pendulum", "sac", {"rollout.steps": 4, "rollout.num_envs": 4}),
    "hybrid": ("catch_point", "ppo", {}),
    "memory": ("cartpole/positions", "ppo", {"network.memory": "gru", "network.memory_size": 4}),
    "set": ("probe/set", "ppo", {"network.encoder": "set", "network.encoder_size": 8}),
    "image": ("probe/image", "ppo", {"network.encoder": "cnn", "network.encoder_size": 8}),
    "graph": ("durotaxis", "ppo", {}),
    "apart": ("platform", "impala", {"network.layer_norm": True, "network.residual": True, "network.hidden": (8, 8)}),
}
LEFT_OUT = ("plots", "report.html", "log.txt", ".lock")


def write(folder: Path) -> None:
    """A run, and what its policy does."""
    run = folder / "run"
    regimen.train("cartpole", out=str(run), **SETTINGS)
    policy = regimen.load_policy(run)
    observations = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    actions = [policy.act(obs) for obs in observations]
    (folder / "actions.json").write_text(json.dumps({"observations": observations.tolist(), "actions": actions}))
    (run / "command.txt").write_text("regimen train cartpole\n")
    for name in LEFT_OUT:
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)


def written(space, value) -> dict[str, list]:
    """An observation or an action as JSON has it: its parts by name."""
    return {name: np.asarray(part).tolist() for name, part in spaces.split(space, value).items()}


def actions_of(policy, observations) -> list[dict[str, list]]:
    """What a policy does, one observation after the other."""
    policy.reset()
    given = [spaces.build(policy.observation_space, {k: np.array(v) for k, v in obs.items()}) for obs in observations]
    return [written(policy.action_space, policy.act(obs)) for obs in given]


def write_policies(folder: Path) -> None:
    """Policies of every kind, and what they do."""
    for name, (env, algo, settings) in POLICIES.items():
        algorithm, state = regimen.Trainer(env=env, algo=algo, **SMALL | settings).begin()
        meta = {"algorithm": algo, "env": env, "env_args": {}}
        Policy(algorithm, algorithm.actor_params(state), meta).save(folder / name / "policy")
        policy = regimen.load_policy(folder / name / "policy")
        policy.observation_space.seed(0)
        observations = [written(policy.observation_space, policy.observation_space.sample()) for _ in range(3)]
        kept = {"observations": observations, "actions": actions_of(policy, observations)}
        (folder / name / "actions.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    write_policies(Path(sys.argv[1]) / "policies")
