"""What PPO learns on network defence over seeds, red agents and modes, and how well one policy follows every order.

    python benchmarks/network_defense.py                                     # plain PPO: 2 reds x 2 modes x 5 seeds
    python benchmarks/network_defense.py --conditioned [--compliance repaired]    # one policy for all orders
    python benchmarks/network_defense.py --conditioned --run DIR             # of a run that exists

Policies are greedy, those at the end of each run (nothing selected) and those of the best checkpoint (selected by the
evaluations during training, judged here on other episodes). Asked of plain PPO at 100 steps: B_line
better than -20 within 20,000 episodes and than -17 at the end, Meander better than -18; of one conditioned policy:
compliance with a lower bound of at least 95% on 15 of the 16 classes of orders that the published definition can tell
apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

WINDOW = 500  # episodes over which a return is averaged during training
GOALS = {"b_line": -17.0, "meander": -18.0}


def crossing(returns: Any, level: float) -> int | None:
    """Episodes until the mean of the last WINDOW first is above a level."""
    import numpy as np

    if len(returns) < WINDOW:
        return None
    means = np.convolve(returns, np.ones(WINDOW) / WINDOW, "valid")
    above = np.flatnonzero(means > level)
    return int(above[0]) + WINDOW if len(above) else None


def plain(red: str, mode: str, seeds: int, episodes: int, folder: Path, **settings: Any) -> list[list[str]]:
    """A row for each seed, and one for all."""
    import numpy as np

    import regimen
    from regimen.statistics import mean_interval

    args = {"red": red, "mode": mode}
    begun = time.monotonic()
    out = str(folder / f"{red}-{mode}")
    result = regimen.train("network_defense", seeds=seeds, out=out, track=False, env_args=args, **settings)
    seconds = time.monotonic() - begun
    rows, means, chosen = [], [], []
    for k, run in enumerate(result.runs):
        returns = np.asarray(run.episodes["env_return"], float)
        last = returns[-1000:]

        def play(checkpoint: str, run: Any = run, seed: int = 1000 + k) -> Any:
            policy = regimen.load_policy(run.run_dir, checkpoint)
            played = regimen.evaluate("network_defense", policy=policy, episodes=episodes, env_args=args, seed=seed)
            return played.returns

        final, best = play("final"), play("best")
        low, high = mean_interval(final)
        means.append(float(final.mean()))
        chosen.append(float(best.mean()))
        at = crossing(returns, -20.0)
        rows.append(
            [
                red,
                mode,
                str(k),
                f"{at:,}" if at else "never",
                f"{last.mean():.2f} ({last.std():.2f}, {last.min():.1f})",
                f"{means[-1]:.2f} ({low:.2f} to {high:.2f}), worst {final.min():.1f}",
                f"{chosen[-1]:.2f}",
                f"{run.summary['env_steps']:,}",
                f"{seconds / len(result.runs):.0f}",
            ]
        )

    def verdict(values: list[float]) -> str:
        low, high = mean_interval(values)
        beyond = sum(m > GOALS[red] for m in values)
        return f"{np.mean(values):.2f} ({low:.2f} to {high:.2f}), {beyond} above {GOALS[red]}"

    return [*rows, [red, mode, "all", "", "", verdict(means), verdict(chosen), "", f"{seconds:.0f}"]]


def by_class(policy: Any, red: str, compliance: str, episodes: int, min_fixes: int) -> list[list[str]]:
    """Compliance of one policy by class of orders: episodes with every order alike, and a one-sided 95% bound."""
    import numpy as np

    import regimen
    from regimen.domains.network_defense.workflow import classes_for
    from regimen.experiments.search.gate import lower_bound

    args = {"red": red, "workflow": "all", "compliance": compliance, "min_fixes": min_fixes}
    found = regimen.evaluate("network_defense", policy=policy, episodes=episodes, env_args=args, seed=2000)
    index, m = found.metrics["workflow"].astype(int), found.metrics
    rows, reached = [], 0
    classes = classes_for(red, compliance)

    def figures(mine: Any) -> list[str]:
        return [f"{m[name][mine].mean():{how}}" for name, how in columns.items()]

    columns = {"fixes": ".1f", "compliance_repaired": ".3f", "env_return": ".2f"}
    for c in classes:
        mine = np.isin(index, [w.index for w in c.members])
        counted = mine & (m["counted"] > 0) if compliance == "repaired" else mine
        values = m["compliance"][counted]
        low = lower_bound(values)
        reached += low >= 0.95
        share = f"{values.mean():.3f}" if len(values) else "none"
        number = f"{counted.sum():,} of {mine.sum():,}"
        rows.append([c.name, str(len(c.members)), number, share, f"{low:.3f}", *figures(mine)])
    everything = np.ones(len(index), bool)
    verdict = f"{reached} of {len(classes)} at 0.95"
    rows.append([verdict, "120", f"{len(index):,}", f"{m['compliance'].mean():.3f}", "", *figures(everything)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reds", nargs="+", default=["b_line", "meander"])
    parser.add_argument("--modes", nargs="+", default=["faithful", "fixed"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--total-steps", type=float)
    parser.add_argument("--episodes", type=int, default=1000, help="of the final evaluation; conditioned: 16 times it")
    parser.add_argument("--conditioned", action="store_true", help="one policy for all orders")
    parser.add_argument("--compliance", default="published", choices=["published", "repaired"])
    parser.add_argument("--red", default="mixed", help="conditioned: who attacks")
    parser.add_argument("--weight", type=float, help="conditioned: of the alignment reward")
    parser.add_argument("--min-fixes", type=int, default=1, help="conditioned: for an episode to count")
    parser.add_argument("--run", help="conditioned: judge this run instead of training one")
    parser.add_argument("--out", help="keep the runs here")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting")
    args = parser.parse_args()
    import regimen

    folder = Path(args.out or tempfile.mkdtemp(prefix="network-defense-"))
    settings: dict[str, Any] = dict(item.split("=", 1) for item in args.set)
    if args.total_steps:
        settings["total_steps"] = int(args.total_steps)
    load, rows = harness.OtherLoad(), []
    if not args.conditioned:
        for red in args.reds:
            for mode in args.modes:
                rows += plain(red, mode, args.seeds, args.episodes, folder, **settings)
                print(" | ".join(rows[-1]), flush=True)
        head = ["red", "mode", "seed", f"episodes to -20 ({WINDOW}-episode mean)", "last 1,000 (sd, worst)"]
        head += [f"greedy, {args.episodes:,} episodes (95%)", "best checkpoint", "env steps", "wall s"]
        print(f"\n{harness.table(head, rows)}\n\n{load}")
        return
    for seed in range(1 if args.run else args.seeds):
        run, begun = args.run, time.monotonic()
        if run is None:
            own = {"red": args.red, "compliance": args.compliance}
            own |= {} if args.weight is None else {"alignment_weight": args.weight}
            name = f"orders-{args.compliance}-{seed}"
            result = regimen.train(
                "network_defense/workflow", seed=seed, out=str(folder / name), track=False, env_args=own, **settings
            )
            run = result.run_dir
        policy = regimen.load_policy(run, "final")
        rows = by_class(policy, args.red, args.compliance, 16 * args.episodes, args.min_fixes)
        head = ["class (first to repair first)", "orders", "episodes that count", "compliance", "lower bound", "fixes"]
        head += ["repaired", "env return"]
        print(f"\nseed {seed}, {time.monotonic() - begun:.0f} s\n\n{harness.table(head, rows)}", flush=True)
    print(f"\n{load}")


if __name__ == "__main__":
    main()
