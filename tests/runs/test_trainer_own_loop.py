"""`Trainer` driven by a `TrajectoryBuffer` that a program fills itself."""

import gymnasium
import numpy as np
import pytest

import regimen
from regimen.errors import ConfigError


@pytest.fixture(scope="module")
def filled():
    """A trainer, and a buffer of three short CartPole episodes acted by it."""
    settings = {"lr": 1e-2, "epochs": 2, "minibatch_size": 32}
    trainer = regimen.Trainer("gym:CartPole-v1", algo=regimen.PPO(**settings), **{"network.hidden": (8,)})
    env, buffer = gymnasium.make("CartPole-v1", max_episode_steps=20), regimen.TrajectoryBuffer()
    for seed in range(3):
        obs, _ = env.reset(seed=seed)
        buffer.start_episode()
        over = False
        while not over:
            action, log_prob, value = trainer.sample(obs)
            next_obs, reward, terminated, truncated, _ = env.step(trainer.to_env(action))
            buffer.add_step(obs, action, reward, value, log_prob)
            obs, over = next_obs, terminated or truncated
        buffer.finish_episode(trainer.value(obs), terminated)
    return trainer, buffer, obs


def test_update_learns_from_the_buffer(filled):
    trainer, buffer, obs = filled
    before = float(trainer.value(obs))
    first = trainer.update(buffer)
    assert np.isfinite(list(first.values())).all() and first["grad_norm"] > 0
    assert float(trainer.value(obs)) != before
    later = [trainer.update(buffer)["value_loss"] for _ in range(5)][-1]  # the same episodes again and again
    assert later < first["value_loss"]


def test_policy_is_the_one_learned(filled, tmp_path):
    trainer, buffer, obs = filled
    trainer.update(buffer)
    path = trainer.save(tmp_path / "policy")
    loaded = regimen.load_policy(path)
    assert loaded.act(obs) == trainer.policy.act(obs) in (0, 1)


def test_actions_differ_and_repeat_with_the_seed(filled):
    obs = np.zeros(4, np.float32)
    draws = []
    for _ in range(2):
        trainer = regimen.Trainer("gym:CartPole-v1", **{"network.hidden": (8,), "seed": 3})
        draws.append([int(trainer.sample(obs)[0]) for _ in range(16)])
    assert draws[0] == draws[1] and len(set(draws[0])) == 2


def test_an_empty_buffer_is_refused(filled):
    with pytest.raises(ConfigError, match="the buffer is empty"):
        filled[0].update(regimen.TrajectoryBuffer())
