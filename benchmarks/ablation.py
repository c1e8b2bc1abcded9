"""What each part of the batch-training system is worth: one environment, one part changed at a time, several seeds.

    python benchmarks/ablation.py durotaxis --seeds 5
    python benchmarks/ablation.py durotaxis --seeds 5 --total-steps 60000 --variants episodes_1 episodes_5 episodes_20
    python benchmarks/ablation.py platform --seeds 5 --variants tuned ratio_joint ratio_per_leaf balance_off

Every variant starts from the environment's tuned preset. Success and return are of the greedy policy at the end, on
episodes that nothing was selected on; success is the environment's own (its goal was reached), not a shaped return.
`--set algo.lr=1e-3` changes all variants.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import harness

VARIANTS: dict[str, dict[str, Any]] = {
    "tuned": {},
    "weights_fixed": {"algo.reward.weighting": "fixed"},
    "weights_uniform": {"algo.reward.weighting": "uniform"},
    "weights_learned": {"algo.reward.weighting": "learned"},
    "scale_off": {"algo.reward.scale": "none"},
    "normalisation_off": {"algo.reward.scale": "none", "algo.normalize_reward": False},
    "scale_return_std": {"algo.reward.scale": "return_std"},
    "norm_zscore": {"algo.reward.norm": "zscore", "algo.reward.norm_over": "batch"},
    "norm_episode": {"algo.reward.norm": "zscore", "algo.reward.norm_over": "episode"},
    "heads_off": {"algo.reward.heads": False},
    "floors_on": {"algo.ent_floor_discrete": 0.3, "algo.ent_floor_continuous": 0.0},
    "floors_off": {"algo.ent_floor_discrete": None, "algo.ent_floor_continuous": None},
    "balance_on": {"algo.balance_gradients": True},
    "balance_off": {"algo.balance_gradients": False},
    "ratio_joint": {"algo.ratio": "joint"},
    "ratio_per_leaf": {"algo.ratio": "per_leaf"},
    "ratio_per_element": {"algo.ratio": "per_element"},
    "clip_actions": {"algo.bounded": "clip"},
    **{
        f"episodes_{n}": {
            "rollout.episodes": n,
            "algo.epochs": 4,
            "algo.minibatch_size": 64,
            "algo.lr_schedule": "constant",
        }
        for n in (1, 5, 10, 20)
    },
}
HEAD = [
    "variant",
    "success (95% interval)",
    "by seed",
    "steps to 90% in training",
    "lowest share of 100 later",
    "success early, middle, late in training",
    "entropy early, middle, late",
    "return",
    "lowest expl. var.",
    "finite",
    "steps/s",
    "env steps",
]


def train(
    env: str,
    overrides: dict[str, Any],
    seeds: int,
    steps: int | None,
    episodes: int,
    first: int = 0,
    deadline: float = float("inf"),
) -> dict[str, Any]:
    """Train all seeds of one variant, until a deadline at most; what came of them, as plain data."""
    import numpy as np

    from regimen.config.layers import build_config
    from regimen.engines.base import IDLE, Limits
    from regimen.envs import registry
    from regimen.policies.evaluate import make_evaluator, success_of
    from regimen.runs.build import make_engine

    config = build_config(env, overrides=overrides | ({} if steps is None else {"total_steps": steps}))
    handle = registry.resolve(env, config.env_args)
    engine = make_engine(config, handle, list(range(first, first + seeds)), lambda: False)
    budget, start = config.total_steps, time.monotonic()
    done, broken = np.zeros(seeds, int), np.zeros(seeds, bool)
    curves: list[dict[str, list[float]]] = [{} for _ in range(seeds)]
    ended: list[list[tuple[int, float]]] = [[] for _ in range(seeds)]  # (env steps, success) of training episodes
    while (going := (done < budget) & ~broken).any() and time.monotonic() < deadline:
        limits = [Limits(256, int(budget - d)) if go else IDLE for d, go in zip(done, going)]
        for k, progress in enumerate(engine.advance(limits)):
            rows = progress.episodes
            success = success_of(handle, np.asarray(rows.reward).sum(-1), rows.metrics)
            if success is not None:
                ended[k] += zip((done[k] + np.asarray(rows.step)).tolist(), success.astype(float).tolist())
            done[k] += int(progress.steps.sum())
            broken[k] |= progress.diverged
            for name, values in progress.metrics.items():
                curves[k].setdefault(name, []).extend(np.asarray(values, float).tolist())
    seconds = time.monotonic() - start - engine.compile_seconds
    evaluate = make_evaluator(handle, engine.algo)
    played = [evaluate(engine.actor_params(k), 2**20 + first + k, episodes) for k in range(seeds)]
    fits = [np.array(c.get("explained_variance", [np.nan])) for c in curves]
    return {
        "success": [None if p.success is None else float(p.success.mean()) for p in played],
        "return": [float(p.returns.mean()) for p in played],
        "metrics": {name: [float(p.metrics[name].mean()) for p in played] for name in played[0].metrics},
        "explained_variance": [[float(np.nanmin(f)), float(np.nanmin(f[len(f) // 10 :]))] for f in fits],
        "finite": bool(not broken.any() and not any(np.isinf(c["loss"]).any() for c in curves)),
        "steps_per_second": float(done.sum() / seconds),
        "compile_seconds": engine.compile_seconds,
        "steps_to_90": [steps_to(e, 0.9) for e in ended],
        "lowest_later": [lowest_later(e, 0.9) for e in ended],
        "env_steps": done.tolist(),
        "thirds": [in_thirds(e, int(n)) for e, n in zip(ended, done)],
        "entropy_thirds": [
            [float(np.mean(part)) for part in np.array_split(c["entropy"], 3)] if "entropy" in c else [] for c in curves
        ],
        "last": {n: [float(np.mean(c[n][-10:])) for c in curves] for n in curves[0]},
        "curves": curves,
    }


def in_thirds(ended: list[tuple[int, float]], budget: int) -> list[float | None]:
    """Success rate of the training episodes that ended early, in the middle and late in the budget."""
    parts: list[list[float]] = [[], [], []]
    for steps, success in ended:
        parts[min(3 * steps // max(budget, 1), 2)].append(success)
    return [sum(part) / len(part) if part else None for part in parts]


def steps_to(ended: list[tuple[int, float]], rate: float, window: int = 100) -> int | None:
    """Env steps when the success rate of the last `window` training episodes first reached `rate`."""
    total = 0.0
    for i, (steps, success) in enumerate(ended):
        total += success - (ended[i - window][1] if i >= window else 0.0)
        if i + 1 >= window and total >= rate * window:
            return steps
    return None


def lowest_later(ended: list[tuple[int, float]], rate: float, window: int = 100) -> float | None:
    """Lowest success rate of `window` training episodes in a row after it first reached `rate`."""
    there = steps_to(ended, rate, window)
    later = [success for steps, success in ended if there is not None and steps >= there]
    totals = [0.0, *accumulate(later)]
    return min(((b - a) / window for a, b in zip(totals, totals[window:])), default=None)


def row(name: str, out: dict[str, Any]) -> list[str]:
    import numpy as np

    from regimen.statistics import mean_interval

    known = [s for s in out["success"] if s is not None]
    shown = "not defined"
    if known:
        low, high = mean_interval(np.array(known))
        shown = f"{np.mean(known):.3f} ({max(low, 0):.3f} to {min(high, 1):.3f})"
    fit = min(late for _, late in out["explained_variance"])
    returns = np.array(out["return"])
    return [
        name,
        shown,
        " ".join(f"{s:.2f}" for s in known),
        reached(out["steps_to_90"]),
        " ".join("-" if low is None else f"{low:.2f}" for low in out["lowest_later"]),
        thirds(out["thirds"]),
        thirds(out["entropy_thirds"]),
        f"{returns.mean():.3g} ± {returns.std():.2g}",
        f"{fit:.2f}",
        "yes" if out["finite"] else "NO",
        f"{out['steps_per_second']:,.0f}",
        f"{min(out['env_steps']):,}",
    ]


def thirds(by_seed: list[list[float | None]]) -> str:
    """The mean over seeds in each third."""
    columns = ([x for x in column if x is not None] for column in zip(*by_seed))
    return ", ".join(f"{sum(column) / len(column):.2f}" if column else "-" for column in columns)


def reached(steps: list[int | None]) -> str:
    found = sorted(s for s in steps if s is not None)
    if not found:
        return "never"
    text = f"{found[len(found) // 2]:,} ({found[0]:,} to {found[-1]:,})"
    return text if len(found) == len(steps) else f"{text}, {len(found)} of {len(steps)} seeds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--variants", nargs="+", default=["tuned"], choices=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--total-steps", type=lambda x: int(float(x)))
    parser.add_argument("--episodes", type=int, default=200, help="of the final evaluation of each seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end all training after this")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all variants")
    parser.add_argument("--baselines", nargs="*", default=[], help="policies written by hand to show beside, or random")
    parser.add_argument("--out", type=Path, help="write raw numbers here as JSON")
    args = parser.parse_args()
    import jax

    common = dict(item.split("=", 1) for item in args.set)
    print(f"jax {jax.__version__}, {jax.default_backend()}; {args.seeds} seeds in one program; {common}\n", flush=True)
    rows, raw, deadline = [], {}, time.monotonic() + args.seconds
    for name in args.baselines:
        rows.append(baseline(args.env, name, args.episodes * args.seeds))
        print(harness.table(HEAD, rows[-1:]).splitlines()[-1], flush=True)
    for name in args.variants:
        sizes = args.seeds, args.total_steps, args.episodes, args.first_seed
        out = train(args.env, common | VARIANTS[name], *sizes, deadline)
        rows.append(row(name, out))
        raw[name] = out
        print(harness.table(HEAD, rows[-1:]).splitlines()[-1], flush=True)
        if args.out:
            args.out.write_text(json.dumps(raw))
    print("\n" + harness.table(HEAD, rows))
    print("\nlowest expl. var.: of any update of any seed after the first tenth of the run.")


def baseline(env: str, name: str, episodes: int) -> list[str]:
    from regimen.envs import registry
    from regimen.policies.evaluate import baseline_evaluator

    played = baseline_evaluator(registry.resolve(env), name)((), 2**20, episodes, name)
    success = "not defined" if played.success is None else f"{played.success.mean():.3f}"
    returns = f"{played.returns.mean():.3g} ± {played.returns.std():.2g}"
    return [name, success, "", "", "", "", "", returns, "", "", "", ""]


if __name__ == "__main__":
    main()
