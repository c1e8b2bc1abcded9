"""PPO after every episode, with the defaults that textbook implementations document, on CartPole: does it reach 195?

    python benchmarks/ppo_defaults.py                  # 10 seeds, the document's 1,000 episodes
    python benchmarks/ppo_defaults.py --episodes 3000

The preset `per_episode_ppo` (10 epochs, minibatches of 64, Adam at 3e-4). Reached: the mean return of 100 training
episodes in a row is at least 195. `--set algo.lr=1e-3` changes a setting.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import harness

TARGET, WINDOW = 195.0, 100
HEAD = ["episodes", "seeds that reach 195", "after episodes", "env steps", "best mean of 100", "mean of the last 100"]
HEAD += ["final greedy return"]
FREE = {"stop.target_return": None, "eval.every": "never", "checkpoint.every": "never", "track": False}


def means(returns: Any, window: int = WINDOW) -> Any:
    """Mean return of every `window` episodes in a row."""
    import numpy as np

    total = np.concatenate([[0.0], np.cumsum(np.asarray(returns, np.float64))])
    return (total[window:] - total[:-window]) / window


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting")
    parser.add_argument("--quick", action="store_true", help="110 episodes, two seeds")
    args = parser.parse_args()
    import numpy as np

    import regimen

    episodes, seeds = (110, 2) if args.quick else (args.episodes, args.seeds)
    settings: dict[str, Any] = FREE | {"total_episodes": episodes} | dict(item.split("=", 1) for item in args.set)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "runs")
        result = regimen.train("cartpole", preset="per_episode_ppo", seeds=seeds, out=out, **settings)
        outcomes = []
        for run in result.runs:
            window = means(run.episodes["return"])
            at = np.flatnonzero(window >= TARGET)
            reached = int(at[0]) + WINDOW if len(at) else None
            steps = int(run.episodes["env_steps"][reached - 1]) if reached else None
            outcome = {"seed": run.summary["seed"], "reached": reached, "steps": steps}
            outcome |= {"best": float(window.max()), "last": float(window[-1])}
            outcomes.append(outcome | {"final": run.summary["final_return_mean"]})
            print(json.dumps(outcomes[-1]), flush=True)
    there = [one for one in outcomes if one["reached"] is not None]
    row = [f"{episodes:,}", f"{len(there)} of {seeds}"]
    row += [harness.spread([one[name] for one in there]) if there else "never" for name in ("reached", "steps")]
    row += [harness.spread([one[name] for one in outcomes], ".0f") for name in ("best", "last")]
    row += [f"{median(one['final'] for one in outcomes):.0f}"]
    print("\n" + harness.table(HEAD, [row]))
    print(f"\n{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
