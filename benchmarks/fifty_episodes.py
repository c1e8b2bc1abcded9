"""What each way of updating makes of fifty episodes on one workflow, the regime in which workflows are searched.

    python benchmarks/fifty_episodes.py                # 5 seeds, two workflows
    python benchmarks/fifty_episodes.py --quick

Every strategy of `regimen study updates` that fits into fifty episodes of 100 steps is trained on them with its
documented settings, on network defence that pays for keeping to an order. It starts from a new policy, and from one
that was trained on all orders at once (`--inherit` episodes). The greedy policy is judged before and after, on the
same 400 episodes: the environment's own return (without the pay for the order), the share of repairs that comply, and
the reward with that pay. A line of JSON for each job; the tables at the end are of those that were finished.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from typing import Any

import harness

ENV = "network_defense"
PAID = {"alignment": "published", "alignment_weight": 150.0}
STRATEGIES = ("1 episode", "5 episodes", "10 episodes", "25 parallel")
EPISODES, STEPS, PLAYED = 50, 100, 400
MEASURES = {"env_return": "own return", "compliance": "compliance", "return": "reward"}
HEAD = ["workflow", "update", "returns", "starts from", "updates", *MEASURES.values()]


def inherited(config: Any, seeds: list[int], episodes: int) -> Any:
    """The parameters [seed, ...] of policies trained on all orders."""
    from regimen.config.schema import RolloutConfig
    from regimen.experiments.studies.bench import Bench, Recipe

    recipe = Recipe("all orders", RolloutConfig(steps=256 * STEPS, num_envs=256), 4, 6400)
    bench = Bench(recipe, config, seeds, episodes * STEPS, 1, 2)
    bench.train(float(config.algo.lr))
    return bench.engine.state


def learn(arm: Any, config: Any, seeds: list[int], start: Any, episodes: int) -> dict[str, Any]:
    """Judge, train on so many episodes from `start` (a state; None: a new policy) with new optimisers, judge again."""
    from regimen.experiments.studies.bench import Bench

    bench = Bench(arm.regimen, config, seeds, episodes * STEPS, 1, PLAYED)
    state, carry = bench.start
    if start is not None:
        new, old = state.models["policy"], start.models["policy"]
        state = state.replace(models={"policy": dataclasses.replace(new, params=old.params)}, norm=start.norm)
        bench.start = state, carry
    played: list[dict[str, float]] = []

    def score(evaluation: Any) -> float:
        metrics = {name: float(values.mean()) for name, values in evaluation.metrics.items()}
        played.append(metrics | {"return": float(evaluation.returns.mean())})
        return played[-1]["return"]

    bench.score = score
    curves = bench.train(float(config.algo.lr))
    n = len(seeds)
    before, after = ({name: [one[name] for one in part] for name in MEASURES} for part in (played[:n], played[-n:]))
    return {"updates": curves[0].updates[-1], "episodes": curves[0].episodes[-1], "before": before, "after": after}


def cell(before: list[float], after: list[float]) -> str:
    from statistics import mean

    from regimen.statistics import mean_interval

    change = [b - a for a, b in zip(before, after)]
    low, high = mean_interval(change)
    return f"{mean(before):.3g} to {mean(after):.3g}: {mean(change):+.3g} ({low:+.3g} to {high:+.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workflows", nargs="+", default=["critical_first", "user_priority"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--inherit", type=int, default=20_480, help="episodes of the inherited policies")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; measures nothing")
    args = parser.parse_args()
    from regimen.experiments.studies.updates.options import base_config, resolve_options

    seeds = list(range(2 if args.quick else args.seeds))
    names = STRATEGIES[3:] if args.quick else STRATEGIES
    options = resolve_options(ENV, {}, "auto", {"strategies": tuple(names), "parts": ("race",)}, False)
    began, rows = time.monotonic(), []
    everyone = base_config(ENV, "ppo", PAID | {"workflow": "all"}, "auto")
    policies = inherited(everyone, seeds, 256 if args.quick else args.inherit)
    for workflow in args.workflows[: 1 if args.quick else None]:
        config = base_config(ENV, "ppo", PAID | {"workflow": workflow}, "auto")
        for arm in options.arms[: 1 if args.quick else None]:
            for words, start in (("scratch", None), ("inherited", policies)):
                outcome = learn(arm, config, seeds, start, EPISODES)
                label = {"workflow": workflow, "update": arm.strategy, "returns": arm.form, "start": words}
                seconds = round(time.monotonic() - began, 1)
                print(json.dumps(label | outcome | {"seconds": seconds}), flush=True)
                cells = [cell(outcome["before"][name], outcome["after"][name]) for name in MEASURES]
                rows.append([*label.values(), outcome["updates"], *cells])
    print("\n" + harness.table(HEAD, rows))


if __name__ == "__main__":
    main()
