"""Your own loop: Gymnasium's CartPole stepped by hand, a TrajectoryBuffer, and PPO only for the gradient steps.

python examples/own_loop.py                # 30 updates of 10 episodes: the pole stands longer and longer
python examples/own_loop.py --updates 2    # only to see that everything works
"""

from __future__ import annotations

import argparse

import gymnasium
import jax

from regimen import PPO, TrajectoryBuffer
from regimen.types import Spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--episodes", type=int, default=10, help="whole episodes per update")
    args = parser.parse_args()

    env = gymnasium.make("CartPole-v1")
    algo = PPO(lr=1e-3).bind(Spec(env.observation_space, env.action_space))
    state, key = algo.init(jax.random.key(0)), jax.random.key(1)
    buffer = TrajectoryBuffer(seed=0)
    env.reset(seed=0)
    for update in range(args.updates):
        for _ in range(args.episodes):
            obs, _ = env.reset()
            buffer.start_episode()
            over = False
            while not over:
                key, draw = jax.random.split(key)
                action, log_prob, value = algo.sample(state, obs, draw)
                next_obs, reward, terminated, truncated, _ = env.step(algo.to_env(action))
                buffer.add_step(obs, action, reward, value, log_prob)  # the action sampled, not the one sent
                obs, over = next_obs, terminated or truncated
            # `obs` is now the true final observation: a truncated episode goes on with its value
            buffer.finish_episode(algo.value(state, obs), terminated, success=not terminated)
        buffer.compute_returns_and_advantages(gamma=0.99, gae_lambda=0.95, normalize_advantage=True)
        for _ in range(4):  # epochs
            for minibatch in buffer.create_minibatches(64):
                state, losses = algo.update_minibatch(state, minibatch)
        stats = buffer.stats()
        print(f"update {update + 1}: return {stats['return_mean']:.1f}, loss {float(losses['loss']):.3f}")
        buffer.clear()


if __name__ == "__main__":
    main()
