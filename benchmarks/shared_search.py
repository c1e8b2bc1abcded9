"""Is a race of orders that share their training better than spending evenly or at random?

    python benchmarks/shared_search.py --out searches/shared

Network defence against one red agent, all 120 orders, the repaired definition. `--references` and `--starts` policies,
each with its own luck, are trained on all orders (`--start` episodes each; the same for all and not counted). Then

1. the truth: every reference goes on (`--reference-episodes`) on all orders, and every order is played by each of them
   on common episodes. Orders that ask for the same repairs are one task, so their mean counts. An order passes the gate
   if that mean of the rates does.
2. the searches: over seeds the race, a round robin (all orders alike to the end) and random allotments, each with the
   same number of policies and of episodes, training included, begin from starts drawn by the seed and recommend an
   order. No start is a reference: the luck of a search is not in the truth that judges it.

A recommendation is scored by the truth (regret; within 2% of the best; the regret of the worst order that passes where
none or one that does not pass is recommended) and by what its policy delivers on 2,000 episodes of its own. A line of
JSON for each search; `--read LOGS` makes the tables of such lines.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

WITHIN = 0.02
REFERENCE = 1000  # policies of the truth are numbered from here
METHODS = ("race", "round_robin", "random")


def make_trial(args: Any, starts: Any = ()) -> Any:
    """A trial whose policies begin from `starts`, drawn by the seed; the first of them are those of the truth."""
    from regimen.domains.network_defense.search import workflows
    from regimen.domains.network_defense.trials import DefenceTrial, make_config
    from regimen.engines import device

    class Begun(DefenceTrial):
        def share(self, candidates: Any, arrays: Any, number: int) -> None:
            if arrays is None and starts:
                drawn = args.references + np.random.default_rng([self.seed, 3]).permutation(args.starts)
                own = number - REFERENCE if number >= REFERENCE else drawn[(number - 1) % args.starts]
                arrays = starts[own]
            super().share(candidates, arrays, number)

    space = workflows(args.red, args.compliance, args.orders, equal=True)
    config = make_config(args.red, args.compliance, args.unit, None, {"alignment_weight": args.weight}, {}, args.device)
    device.configure(config.device, True)
    return space, Begun(space, config, 0)


def begin(args: Any) -> list[Any]:
    """The arrays of policies trained on all orders, kept in the folder."""
    from safetensors.numpy import load_file, save_file

    out = []
    for number in range(args.references + args.starts):
        file = Path(args.out) / f"start-{args.start}-{number}.safetensors"
        if not file.exists():
            space, trial = make_trial(args)
            trial.share(range(len(space)), None, number + 1)
            done = 0
            while done < args.start:
                stretch = trial.train(min(5000, args.start - done))
                done += stretch.episodes
                print(f"start {number}: {done:,} episodes, {stretch.value:.1f}, rate {stretch.rate:.3f}", flush=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({k: np.asarray(v, order="C") for k, v in trial.arrays().items()}, file)
        out.append(load_file(file))
    return out


def truth(args: Any, starts: Any) -> dict[str, Any]:
    """Value and rate of every order with every reference, by order and reference."""
    file = Path(args.out) / "truth.json"
    if file.exists():
        return json.loads(file.read_text())
    space, trial = make_trial(args, starts)
    tables = []
    for reference in range(args.references):
        trial.share(range(len(space)), None, REFERENCE + reference)
        done = 0
        while done < args.reference_episodes:
            done += trial.train(min(2000, args.reference_episodes - done)).episodes
        played = [trial.play(c, args.truth_episodes, 77) for c in range(len(space))]
        tables.append([[float(s.values.mean()), s.error, s.rate.mean, s.rate.bound] for s in played])
        print(f"reference {reference}: {np.mean(tables[-1], 0)}", flush=True)
    told = {"orders": list(space.keys), "tables": tables, "members": [list(m) for m in space.members]}
    file.write_text(json.dumps(told) + "\n")
    return told


class Truth:
    """The table in numbers: merit of each order, who passes, and what luck is worth."""

    def __init__(self, told: dict[str, Any], gate: float):
        tables = np.array(told["tables"])  # [R, N, 4]
        classes = np.array([min(m) for m in told["members"]])
        by_class = {c: tables[:, classes == c].mean((0, 1)) for c in np.unique(classes)}
        values = np.array([tables[:, classes == c, 0].mean(1) for c in by_class]).T  # [R, classes]
        values = values - values.mean(1, keepdims=True)
        interaction = ((values - values.mean(0)) ** 2).sum() / max((len(values) - 1) * (values.shape[1] - 1), 1)
        error = np.sqrt(interaction / len(values))  # of a class in the truth
        spread = np.sqrt(max(values.mean(0).var(ddof=1) - error**2, 0.0))
        self.merit = np.array([by_class[c][0] for c in classes])
        self.passes = np.array([by_class[c][2] for c in classes]) >= gate
        self.best, self.worst = (float(f(self.merit[self.passes])) for f in (np.max, np.min))
        within = np.mean([tables[:, classes == c, 0].var(1, ddof=1) for c in by_class if (classes == c).sum() > 1])
        luck = np.sqrt(max(within - (tables[:, :, 1] ** 2).mean(), 0.0))
        self.words = (
            f"{len(by_class)} classes, {len(tables)} policies, {tables[:, :, 0].mean():.2f} in the mean. "
            f"Standard deviations: classes {spread:.2f}, a class in one training {np.sqrt(interaction):.2f}, equal "
            f"orders in one training {luck:.2f}; error of a class in this truth {error:.2f}. {self.passes.sum()} of "
            f"{len(self.merit)} orders at the gate, the best {self.best:.2f}, the worst of them {self.worst:.2f}"
        )

    def regret(self, candidate: int | None) -> float:
        if candidate is None or not self.passes[candidate]:
            return self.best - self.worst
        return self.best - float(self.merit[candidate])


def search(args: Any, space: Any, trial: Any, method: str, seed: int) -> dict[str, Any]:
    from regimen.experiments.search.gate import Gate
    from regimen.experiments.search.race import Race, RaceOptions
    from regimen.experiments.search.race_report import recommended
    from regimen.experiments.search.store import Store

    trial.seed = seed
    trial.program(-1).loop.seeds = [seed]
    options = RaceOptions(
        budget=args.budget,
        warm_up=args.warm_up,
        check_every=args.check_every,
        check_episodes=args.check_episodes,
        eval_episodes=args.eval_episodes,
        policies=args.policies,
        gate=Gate(args.gate),
        method=method,
        seed=seed,
    )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        race = Race(space, trial, options, Store(Path(folder) / "s"))
        race.run()
        best = race.best
        told: dict[str, Any] = {"method": method, "seed": seed, "spent": race.spent, "training": race.trained}
        told |= {"looks": [len(s.index) for s in race.looks], "dropped": race.dropped}
        told |= {"best": None if best is None else best[0], "seconds": round(time.monotonic() - begun, 1)}
        told["luck"] = race.ranking().luck
        if best is not None:
            sure = recommended(race)
            told["probability"] = None if sure is None else sure.probability
            trial.share(race.active, race.arrays[best[1]], -1)
            trial.program(-1).loop.seeds = [12345]
            played = trial.play(best[0], 2000, 0)
            told |= {"delivered": float(played.values.mean()), "delivered_rate": played.rate.mean}
    return told


def tables(lines: list[dict[str, Any]], truth: Truth) -> None:
    from regimen.statistics import mean_interval, wilson

    print(truth.words)
    rows = []
    for method in METHODS:
        found = [one for one in lines if one["method"] == method]
        if len(found) < 2:
            continue
        regret = np.array([truth.regret(one["best"]) for one in found])
        within = int((regret <= WITHIN * abs(truth.best)).sum())
        low, high = mean_interval(regret)
        share = wilson(within, len(found))
        cells = [method, str(len(found)), f"{regret.mean():.2f} ({low:.2f} to {high:.2f})"]
        cells += [f"{within} ({share[0]:.0%} to {share[1]:.0%})"]
        delivered = [one["delivered"] for one in found if one["best"] is not None]
        between = mean_interval(delivered) if len(delivered) > 1 else (np.nan, np.nan)
        cells += [f"{np.mean(delivered):.2f} ({between[0]:.2f} to {between[1]:.2f})" if delivered else ""]
        cells += [str(sum(one["best"] is None for one in found)), f"{np.mean([one['spent'] for one in found]):,.0f}"]
        rows.append([*cells, f"{np.mean([np.mean(one['training']) for one in found]):,.0f}"])
    head = ["method", "seeds", "mean regret (95%)", "within 2%", "return delivered", "none passed", "episodes"]
    print(harness.table([*head, "training of a policy"], rows))
    race = [one for one in lines if one["method"] == "race"]
    if race:
        best = np.flatnonzero(truth.passes & (truth.merit >= truth.best - 1e-9))
        lost = sum(set(map(str, best)) <= set(map(str, one["dropped"])) for one in race)
        told = [one["probability"] for one in race if one.get("probability") is not None]
        right = [truth.regret(one["best"]) <= 1e-9 for one in race if one["best"] is not None]
        print(f"the best class was dropped in {lost} of {len(race)} races")
        print(f"probability told {np.mean(told):.2f} in the mean, races that were right {np.mean(right):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--red", default="meander")
    parser.add_argument("--compliance", default="repaired")
    parser.add_argument("--orders", default="all", help="classes, or all 120")
    parser.add_argument("--weight", type=float, default=150.0, help="of the alignment reward")
    parser.add_argument("--gate", type=float, default=0.9)
    parser.add_argument("--unit", type=int, default=100, help="episodes per update")
    parser.add_argument("--starts", type=int, default=8, help="policies that searches begin from")
    parser.add_argument("--references", type=int, default=8, help="other policies, whose mean is the truth")
    parser.add_argument("--start", type=int, default=15_000, help="episodes of training of each, on all orders")
    parser.add_argument("--reference-episodes", type=int, default=2000, help="further training of each for the truth")
    parser.add_argument("--truth-episodes", type=int, default=100, help="of every order and reference")
    parser.add_argument("--budget", type=int, default=9600, help="episodes of one search")
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--check-every", type=int, default=500)
    parser.add_argument("--check-episodes", type=int, default=5)
    parser.add_argument("--eval-episodes", type=int, default=300)
    parser.add_argument("--policies", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="searches/shared")
    parser.add_argument("--read", nargs="+", help="lines of searches made before, instead of searching")
    args = parser.parse_args()
    load = harness.OtherLoad()
    if args.read:
        lines = [
            json.loads(x) for f in args.read for x in Path(f).read_text().splitlines() if x.startswith('{"method"')
        ]
        tables(lines, Truth(json.loads((Path(args.out) / "truth.json").read_text()), args.gate))
        return
    if args.starts < args.policies:
        parser.error(f"--starts: {args.starts} are fewer than the --policies of one search ({args.policies})")
    starts = begin(args)
    told = Truth(truth(args, starts), args.gate)
    print(told.words, flush=True)
    space, trial = make_trial(args, starts)
    lines = []
    for seed in range(args.seed, args.seed + args.seeds):
        for method in args.methods:
            lines.append(search(args, space, trial, method, seed))
            lines[-1]["regret"] = told.regret(lines[-1]["best"])
            print(json.dumps(lines[-1]), flush=True)
    tables(lines, told)
    print(load)


if __name__ == "__main__":
    main()
