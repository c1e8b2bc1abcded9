"""A callback that watches training and stops it.

python examples/callback.py
python examples/callback.py --target 30    # an easy goal: a few seconds
"""

from __future__ import annotations

import argparse
from typing import Any

import regimen


class StopAt:
    """Stop once a training rollout averages `target`. Returning True ends the run, as a stopping rule would: the state
    is saved, the policy evaluated, and `status.json` says `callback`."""

    def __init__(self, target: float):
        self.target = target

    def __call__(self, info: dict[str, Any]) -> bool:
        # Called once per update, in order. An update in which no episode ended has no return.
        value = info["step_metrics"].get("rollout/return_mean")
        if value is None:
            return False
        if info["update"] % 10 == 0:
            print(
                f"update {info['update']}, {info['env_steps']:,} steps, episode {info['episode']}: return {value:.1f}"
            )
        return value >= self.target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=float, default=150.0)
    args = parser.parse_args()

    # With a callback a compiled call covers one update instead of up to 256, which costs some speed. The rules that
    # `regimen train` has (`--stop.target-return 150`, `--stop.metric eval/return_mean --stop.above 150`) do not.
    settings = {"total_steps": 50_000, "eval.every": "never", "track": False}
    result = regimen.train("cartpole", callback=StopAt(args.target), **settings)
    print(f"stopped by {result.stop_reason} after {result.summary['updates']} updates: {result.run_dir}")


if __name__ == "__main__":
    main()
