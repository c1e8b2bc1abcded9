"""Population based training against random search at equal env steps: `python benchmarks/population.py`

Both begin with the same members (settings and seeds), train them in one program and choose one by the returns of its
last episodes of training; they differ in one thing: in the population, the worst quarter takes over from the best at
every round. What is compared is the greedy return of the chosen member on 50 episodes that nothing is selected by. A
folder that was begun is continued, so `--seeds` may grow.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import OtherLoad, table

from regimen.engines import device
from regimen.experiments.sweep.halving import trained_score
from regimen.experiments.sweep.report import best_of
from regimen.experiments.sweep.run import run_sweep
from regimen.experiments.sweep.space import make_plan
from regimen.experiments.sweep.trials import SweepFiles, begin
from regimen.statistics import Estimate, improvement, improvement_interval, mean_interval

SPACE = ["algo.lr=log:3e-5:3e-2", "algo.ent_coef=log:1e-4:1e-1", "algo.clip_eps=uniform:0.05:0.4"]
COMMON = {"track.enabled": False, "eval.every": "never", "eval.episodes": 50, "stop.metric": None, "stop.above": None}
TASKS: dict[str, tuple[int, int, dict[str, Any]]] = {  # updates, updates between rounds, settings
    "pendulum": (24, 3, {"rollout.steps": 1024, "rollout.num_envs": 8, "algo.minibatch_size": 128}),
    "acrobot": (32, 4, {"rollout.steps": 2048, "rollout.num_envs": 16, "algo.minibatch_size": 256}),
    "mountain_car_continuous": (32, 4, {"rollout.steps": 2048, "rollout.num_envs": 8}),
    "network_defense": (20, 2, {"rollout.steps": 3200, "rollout.num_envs": 32, "algo.minibatch_size": 800}),
}
METHODS = ("pbt", "random")


def trained(task: str, method: str, seed: int, members: int, folder: Path) -> dict[str, Any]:
    """What came of one population, or of as many trainings that do not know of each other."""
    out = folder / f"{task}-{method}-{seed}"
    result = out / "benchmark.json"
    if result.is_file():
        return json.loads(result.read_text())
    updates, every, settings = TASKS[task]
    overrides = COMMON | settings | {"total_steps": updates * settings["rollout.steps"], "seed": 1000 * seed}
    if method == "pbt":
        overrides = {k: v for k, v in overrides.items() if not k.startswith(("stop.", "eval.every"))}
        plan = make_plan(task, [], SPACE, members, overrides, method="pbt", every=every, draw_seed=seed)
    else:
        plan = make_plan(task, [], SPACE, members, overrides, draw_seed=seed)
    files = begin(out, plan, "benchmarks/population.py")
    code = run_sweep(files)
    if code:
        raise SystemExit(code)
    chosen = best_of(files.results(), False) if method == "pbt" else by_training(files, updates - 2 * every)
    values = [r["value"] for r in files.results() if r.get("value") is not None]
    record = {
        "value": None if chosen is None else chosen["value"],
        "mean": float(np.mean(values)),
        "settings": None if chosen is None else chosen["params"],
        "env_steps": sum(r["env_steps"] for r in files.results()),
    }
    result.write_text(json.dumps(record))
    return record


def by_training(files: SweepFiles, after: int) -> dict[str, Any] | None:
    """The member with the best last episodes: of the second half of the updates after `after`, as long as a round."""
    scored = [(trained_score(files, r["trial"], after), r) for r in files.results()]
    known = [(s, -r["trial"], r) for s, r in scored if s is not None]
    return max(known, key=lambda one: one[:2])[2] if known else None


def report(values: dict[str, dict[str, list[float]]]) -> None:
    rows, good = [], 0
    for task, of in values.items():
        pbt, random = (np.array(of[m]) for m in METHODS)
        better = Estimate.of(improvement(pbt, random), improvement_interval([(pbt, random)]))
        means = [Estimate.of(x.mean(), mean_interval(x)) for x in (pbt, random)]
        good += better.low > 0.5
        words = [f"{m.value:.1f} [{m.low:.1f}, {m.high:.1f}]" for m in means]
        verdict = "meets" if better.low > 0.5 else "MISSES"
        rows.append([task, len(pbt), *words, f"{better.value:.2f} [{better.low:.2f}, {better.high:.2f}]", verdict])
    print(table(["task", "seeds", "pbt", "random", "P(pbt better)", "above one half"], rows))
    pairs = [(np.array(of["pbt"]), np.array(of["random"])) for of in values.values()]
    low, high = improvement_interval(pairs)
    print(f"over tasks: {np.mean([improvement(*p) for p in pairs]):.2f} [{low:.2f}, {high:.2f}]")
    print(f"better on {good} of {len(values)} tasks: {'meets' if good >= 3 else 'MISSES'} the target of 3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further seed after so long")
    parser.add_argument("--out", type=Path, default=Path("runs/population-benchmark"))
    args = parser.parse_args()
    device.configure("cpu", True)
    load, begun = OtherLoad(), time.perf_counter()
    values: dict[str, dict[str, list[float]]] = {task: {m: [] for m in METHODS} for task in args.tasks}
    for seed in range(args.seeds):
        if time.perf_counter() - begun > 60 * args.minutes:
            break
        for task in args.tasks:
            both = {m: trained(task, m, seed, args.members, args.out) for m in METHODS}
            if all(one["value"] is not None for one in both.values()):
                for m in METHODS:
                    values[task][m].append(both[m]["value"])
            seconds = time.perf_counter() - begun
            line = ", ".join(f"{m} {one['value']} ({one['env_steps']:,} steps)" for m, one in both.items())
            print(f"seed {seed}, {task}: {line}; {seconds:.0f} s", flush=True)
    report({task: of for task, of in values.items() if len(of["pbt"]) > 1})
    print(load)


if __name__ == "__main__":
    main()
