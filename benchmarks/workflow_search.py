"""Does the search over workflows find the best order, sooner than random? `python benchmarks/workflow_search.py`

One policy that sees the order is trained on all orders at once (`--episodes`, or `--init-from RUN`). Then

1. the truth: every order is evaluated with it on the same 4,000 episodes;
2. the searches: over 10 seeds each method proposes, evaluates with real episodes of its own (the policy is not trained
   further, an order may be evaluated again), and recommends an order, on at most a third of the truth's episodes.

What a search recommends is scored by the truth: its regret, and whether it is within 2 % of the best order that meets
the gate. The truth is not known to the searches. It is another one for every policy: `--policy-seeds 0 1 2` trains
several and adds up. `shared_search.py` has the searches that train.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import OtherLoad, table

from regimen.domains.network_defense.search import workflows
from regimen.domains.network_defense.trials import DefenceTrial, make_config
from regimen.engines import device
from regimen.experiments.search.gate import Gate
from regimen.experiments.search.loop import WARM_UP, Options, Search
from regimen.experiments.search.methods import recommend
from regimen.experiments.search.space import Space
from regimen.experiments.search.store import Store
from regimen.experiments.search.trial import Arrays, Trial
from regimen.reports import figure as kit
from regimen.reports.figure import BLUE, GREY, ORANGE, PURPLE

ARMS = {"gp, ucb": ("gp", "ucb"), "gp, thompson": ("gp", "thompson"), "random": ("random", "ucb")}
COLORS = {"gp, ucb": BLUE, "gp, thompson": PURPLE, "random": ORANGE}
WITHIN = 0.02


def truth_table(trial: Trial, space: Space, arrays: Arrays | None, episodes: int, number: int = 0) -> np.ndarray:
    """(value, standard error, rate, bound) of every candidate with one policy, on common episodes.  # [N, 4]"""
    rows = []
    for candidate in range(len(space)):
        trial.start(candidate, arrays, 0)
        o = trial.measure(episodes, number)
        rows.append((o.value, o.se, o.rate.mean if o.rate else np.nan, o.rate.bound if o.rate else np.nan))
    return np.array(rows)


def main() -> None:
    args = arguments()
    load, out = OtherLoad(), Path(args.out)
    found = []
    for seed in args.policy_seeds:
        mine = out if len(args.policy_seeds) == 1 else out / f"policy-{seed}"
        mine.mkdir(parents=True, exist_ok=True)
        found.append(measure(args, seed, mine))
        (mine / "results.json").write_text(json.dumps(found[-1], indent=2) + "\n")
    if len(found) > 1:
        over_policies(found, args.eval_episodes, out / "within.png")
    print(f"\n{found[-1]['device']}; {load}; written to {out}")


def measure(args: Any, seed: int, out: Path) -> dict[str, Any]:
    """One policy: the truth and the searches."""
    space = workflows(args.red, args.compliance, args.orders)
    source = None if args.init_from is None else Path(args.init_from)
    env_args = {"mode": args.mode, "alignment_weight": args.weight}
    config = make_config(args.red, args.compliance, args.unit, source, env_args, {}, args.device)
    where = device.configure(config.device, True)
    trial = DefenceTrial(space, config, seed, source)
    arrays = conditioned(trial, 0 if source is not None else args.episodes, out)
    gate = Gate(args.gate)
    truth = truth_table(trial, space, arrays, args.truth_episodes, number=77)
    feasible = truth[:, 3] >= gate.threshold
    show_truth(space, truth, feasible, args)
    results: dict[str, Any] = {
        "red": args.red, "compliance": args.compliance, "mode": args.mode, "orders": args.orders, "gate": args.gate,
        "policy_seed": seed, "episodes": args.episodes, "truth_episodes": args.truth_episodes, "device": where,
        "truth": [dict(zip(("order", "value", "se", "rate", "bound", "feasible"), (k, *map(float, t), bool(f))))
                  for k, t, f in zip(space.keys, truth, feasible)],
    }  # fmt: skip
    if not feasible.any():
        print("no order meets the gate with this policy: train longer (--episodes), or lower the gate (--gate)")
    else:
        results["searches"] = searches(space, trial, arrays, truth, feasible, args, out)
    return results


def over_policies(found: list[dict[str, Any]], episodes: int, path: Path) -> None:
    """All policies' searches together; the search is compared with random by policy and seed, where both play the same
    episodes."""
    found = [one for one in found if "searches" in one]
    if not found:
        return
    rows = []
    for arm in ARMS:
        told = [one["searches"]["arms"][arm] for one in found]
        hits, last = np.concatenate([t["within"] for t in told]), np.concatenate([t["regret"] for t in told])
        area = np.concatenate([t["mean_regret"] for t in told])
        other = np.concatenate([one["searches"]["arms"]["random"]["mean_regret"] for one in found])
        by_policy = " ".join(str(int(np.sum(t["within"]))) for t in told)
        better = "" if arm == "random" else f"{(area < other).sum()} of {len(area)}"
        rows.append(
            (arm, f"{hits.sum()} of {len(hits)}", by_policy, f"{last.mean():.2f}", f"{area.mean():.2f}", better)
        )
    print(f"\n{len(found)} policies")
    head = ("method", "within 2 %", "by policy", "mean regret", "mean over the search", "searches better than random")
    print(table(head, rows), flush=True)
    shares = {}
    for arm in ARMS:
        within = [np.array(s["arms"][arm]["curves"]) <= WITHIN * abs(s["best"]) for s in (f["searches"] for f in found)]
        shares[arm] = np.concatenate(within).mean(0)
    with kit.picture(path, 7.5, 4.2) as figure:
        ax = figure.subplots()
        for arm, share in shares.items():
            ax.step(episodes * np.arange(1, len(share) + 1), share, where="post", color=COLORS[arm], lw=2, label=arm)
        ax.set(xlabel="evaluation episodes spent", ylabel="share of the searches", ylim=(0, 1.02))
        ax.set_title(f"Searches that recommend an order within 2 % of the best: {len(found)} policies")
        ax.legend(loc="lower right")


def conditioned(trial: DefenceTrial, episodes: int, out: Path) -> Any:
    """The arrays of a policy trained on all orders at once, kept in the folder for another run of this script with the
    same settings; those of a run are read anew."""
    from safetensors.numpy import load_file, save_file

    told = json.dumps(trial.identity(), sort_keys=True, default=str)
    file = out / f"conditioned-{episodes}-{hashlib.sha256(told.encode()).hexdigest()[:12]}.safetensors"
    if episodes and file.exists():
        return load_file(file)
    begun = time.perf_counter()
    trial.start(WARM_UP, None, 0)
    if not episodes:
        return trial.arrays()
    done = 0
    while done < episodes:
        stretch = trial.train(min(5000, episodes - done))
        done += stretch.episodes
        print(f"all orders: {done:,} episodes, return {stretch.value:.1f}, compliance {stretch.rate:.3f}", flush=True)
        if not stretch.episodes:
            break
    arrays = trial.arrays()
    save_file({k: np.asarray(v, order="C") for k, v in arrays.items()}, file)
    print(f"trained in {time.perf_counter() - begun:.0f} s")
    return arrays


def show_truth(space: Space, truth: np.ndarray, feasible: np.ndarray, args: Any) -> None:
    print(
        f"\n{args.truth_episodes:,} common episodes, one policy, greedy: {feasible.sum()} of {len(space)} meet the gate"
    )
    order = np.argsort(-truth[:, 0])
    rows = [
        (space.keys[i], f"{truth[i, 0]:.2f} ± {truth[i, 1]:.2f}", f"{truth[i, 2]:.4f}", f"{truth[i, 3]:.4f}",
         "yes" if feasible[i] else "no")
        for i in order[: args.show]
    ]  # fmt: skip
    print(table(("order", "return", "compliance", "lower bound", "gate met"), rows), flush=True)


def searches(space: Space, trial: Any, arrays: Any, truth: np.ndarray, feasible: np.ndarray, args: Any, out: Path):
    """Every arm over seeds, on at most a third of the exhaustive budget, without further training."""
    exhaustive = len(space) * args.truth_episodes
    budget = args.budget or exhaustive // 3
    top = truth[feasible, 0].max()
    worst = truth[feasible, 0].min()
    frozen = Frozen(trial, arrays)
    curves: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for arm, (method, acquisition) in ARMS.items():
        for seed in range(args.seeds):
            frozen.offset = 10_000 * (seed + 1)
            options = Options(
                budget, 0, 1, 1, args.eval_episodes, gate=Gate(args.gate), method=method, acquisition=acquisition,
                seed=seed, inherit="start",
            )  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                search = Search(space, frozen, options, Store(Path(folder) / "s"))
                search.run()
            curves[arm].append(regrets(search, truth, feasible, top, worst))
    rows, told = [], {}
    for arm, found in curves.items():
        last = np.array([c[-1] for c in found])
        hits = last <= WITHIN * abs(top)
        area = np.array([np.mean(c) for c in found])
        settled = np.array([args.eval_episodes * settles(c, WITHIN * abs(top)) for c in found])
        told[arm] = {"regret": last.tolist(), "within": hits.tolist(), "mean_regret": area.tolist()}
        told[arm] |= {"settled": settled.tolist(), "curves": found}
        middle = "never" if not np.isfinite(np.median(settled)) else f"{np.median(settled):,.0f}"
        cells = (f"{np.median(last):.2f}", f"{last.mean():.2f}", f"{last.max():.2f}", f"{area.mean():.2f}")
        rows.append((arm, f"{hits.sum()} of {len(hits)}", *cells, middle))
    print(f"\nbest order {space.keys[int(np.flatnonzero(feasible)[truth[feasible, 0].argmax()])]} at {top:.2f}; "
          f"{budget:,} of the {exhaustive:,} episodes of an exhaustive search, {args.seeds} seeds")  # fmt: skip
    head = (
        "method",
        "within 2 %",
        "median regret",
        "mean regret",
        "worst",
        "mean over the search",
        "episodes to stay within 2 %",
    )
    print(table(head, rows), flush=True)
    gp, plain = (np.array(told[arm]["mean_regret"]) for arm in ("gp, ucb", "random"))
    print(f"gp (ucb) has the lower regret over the search in {(gp < plain).sum()} of {len(gp)} seeds, "
          f"{(gp == plain).sum()} equal")  # fmt: skip
    picture(out / "regret.png", curves, args.eval_episodes, top)
    return {"budget": budget, "exhaustive": exhaustive, "best": float(top), "arms": told}


class Frozen:
    """Trials that only evaluate one policy. `offset`: which episodes a seed plays."""

    unit, compiling, offset = 1, False, 0

    def __init__(self, trial: DefenceTrial, arrays: Any):
        self.trial, self.policy = trial, arrays
        self.known: dict[tuple[int, int, int], Any] = {}

    def start(self, candidate: int, arrays: Any, number: int) -> None:
        self.trial.start(candidate, self.policy, 0)

    def train(self, episodes: int) -> Any:
        raise AssertionError("nothing is trained here")

    def measure(self, episodes: int, number: int) -> Any:
        key = (self.trial.candidate, episodes, self.offset + number)
        if key not in self.known:  # methods play the same episodes of a seed
            self.known[key] = self.trial.measure(episodes, self.offset + number)
        return self.known[key]

    def arrays(self) -> Any:
        return {}

    def identity(self) -> dict[str, Any]:
        return {"frozen": True}


def regrets(search: Search, truth: np.ndarray, feasible: np.ndarray, top: float, worst: float) -> list[float]:
    """True regret of what would be recommended after each trial; while nothing is, or an order that does not truly meet
    the gate, that of the worst feasible order."""
    out, o = [], search.options
    for i in range(len(search.verdicts)):
        best = recommend(o.method, search.space, search.evidence[: i + 1])
        ok = best is not None and feasible[best]
        out.append(float(top - (truth[best, 0] if ok else worst)))
    return out


def settles(curve: list[float], limit: float) -> float:
    """The trial after which the regret stays below the limit."""
    above = [i + 1 for i, regret in enumerate(curve) if regret > limit]
    last = max(above, default=0)
    return float("inf") if last == len(curve) else last + 1


def picture(path: Path, curves: dict[str, list[list[float]]], episodes: int, top: float) -> None:
    with kit.picture(path, 7.5, 4.2) as figure:
        ax = figure.subplots()
        for arm, found in curves.items():
            values = np.array(found)
            x = episodes * np.arange(1, values.shape[1] + 1)
            low, high = np.quantile(values, [0.25, 0.75], axis=0)
            ax.fill_between(x, low, high, step="post", color=COLORS[arm], alpha=0.13, linewidth=0)
            ax.step(x, values.mean(0), where="post", color=COLORS[arm], linewidth=2, label=arm)
        ax.axhline(WITHIN * abs(top), color=GREY, linestyle="--", linewidth=1, label="2 % of the best")
        ax.set_xlabel("evaluation episodes spent")
        ax.set_ylabel("regret in environment return")
        ax.set_title(
            f"Regret of the order recommended: mean and middle half of {len(next(iter(curves.values())))} seeds"
        )
        ax.set_ylim(bottom=0)
        ax.legend(loc="upper right")


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--red", default="meander")
    parser.add_argument("--compliance", default="published")
    parser.add_argument("--mode", default="faithful")
    parser.add_argument("--orders", default="classes", help="classes, or all 120")
    parser.add_argument("--weight", type=float, default=30.0, help="of the alignment reward")
    parser.add_argument("--gate", type=float, default=0.95)
    parser.add_argument("--episodes", type=int, default=60_000, help="to train the policy on all orders")
    parser.add_argument("--policy-seeds", type=int, nargs="+", default=[0], help="of that training, one or more")
    parser.add_argument("--unit", type=int, default=100, help="episodes per update")
    parser.add_argument("--init-from", default=None, help="a run trained with --env.workflow all, instead")
    parser.add_argument("--truth-episodes", type=int, default=4000)
    parser.add_argument("--eval-episodes", type=int, default=400)
    parser.add_argument("--budget", type=int, default=None, help="of one search; a third of the truth's episodes")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--show", type=int, default=24, help="orders in the table")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", default="searches/benchmark")
    return parser.parse_args()


if __name__ == "__main__":
    main()
