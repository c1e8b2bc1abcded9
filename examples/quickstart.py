"""Train PPO on CartPole, evaluate the policy, act with it.

python examples/quickstart.py           # until it is solved: some 20 seconds on two cores
python examples/quickstart.py --quick   # a few updates, only to see that everything works
"""

from __future__ import annotations

import argparse

import gymnasium

import regimen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few updates only")
    args = parser.parse_args()

    # The tuned settings of cartpole are the default; any setting of `regimen train` can be given by its name.
    settings = {"total_steps": 2_000, "eval.episodes": 10, "track": False} if args.quick else {}
    result = regimen.train("cartpole", **settings)
    print(f"{result.run_dir}: {result.summary['env_steps']:,} steps, stopped because: {result.stop_reason}")

    # New episodes, greedy policy. The same as `regimen evaluate RUN --episodes 20`.
    print("\n".join(regimen.evaluate(result.run_dir, episodes=20).lines()))

    # The policy needs neither the run nor the environment it was trained on: here it acts in Gymnasium's CartPole.
    policy = regimen.load_policy(result.run_dir)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    steps, over = 0, False
    while not over:
        obs, _, terminated, truncated, _ = env.step(policy.act(obs))
        steps, over = steps + 1, terminated or truncated
    print(f"Gymnasium's CartPole-v1: the pole stood for {steps} of 500 steps")


if __name__ == "__main__":
    main()
