"""What PPO learns on the airspace scenarios, over seeds, beside doing nothing: tables of docs/results.md.

    python benchmarks/airspace.py                      # one policy per scenario, 5 seeds
    python benchmarks/airspace.py --generic            # one policy for all, trained on the generator
    python benchmarks/airspace.py --policies           # one policy for all aircraft against one for each
    python benchmarks/airspace.py --baselines          # the policies written by hand: the table of docs/airspace.md

Policies are the greedy ones at the end of each run, nothing was selected. They are judged from the scenario's own start
by the `clean` rules with finished aircraft still in the way, and by the `compat` reward, whose returns can be compared
with those of doing nothing (`snap`: an action that commands nothing is none, so that it costs nothing). The generic
policy is judged on perturbed starts, 100 of each scenario, beside MVP.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

HEAD = ["scenario", "seeds without loss of separation", "all reached", "min separation, NM"]
HEAD += ["compat return (lowest, median)", "compat losses", "no-op", "env steps", "wall s"]
NOMINAL = {"position_jitter": 0.0, "heading_jitter": 0.0, "speed_jitter": 0.0}
PERTURBED = {"position_jitter": 1.0, "heading_jitter": 5.0, "speed_jitter": 10.0}


def judge(handle_args: dict[str, Any], name: str, policy: Any, episodes: int) -> Any:
    import regimen

    return regimen.evaluate(f"airspace/{name}", policy=policy, episodes=episodes, env_args=handle_args)


def learn(name: str, seeds: int, folder: Path, **settings: Any) -> list[str]:
    """One row of the table."""
    import numpy as np

    import regimen

    start = time.monotonic()
    result = regimen.train(f"airspace/{name}", seeds=seeds, out=str(folder / name), track=False, **settings)
    seconds = time.monotonic() - start
    clean, compat = [], []
    for run in result.runs:
        policy = regimen.load_policy(run.run_dir, "final")
        clean.append(judge({"fly_on": True, "snap": True, **NOMINAL}, name, policy, 1))
        compat.append(judge({"reward": "compat", "snap": True, **NOMINAL}, name, policy, 1))
    nothing = judge({"reward": "compat", **NOMINAL}, name, "no_op", 1)
    safe = sum(1 for e in clean if e.metrics["los"].max() == 0)
    reached = sum(1 for e in clean if e.metrics["reached"].min() == 1)
    returns = np.array([e.returns[0] for e in compat])
    steps = [run.summary["env_steps"] for run in result.runs]
    return [
        name,
        f"{safe} of {len(clean)}",
        f"{reached} of {len(clean)}",
        f"{min(e.metrics['min_separation'].min() for e in clean):.2f}",
        f"{returns.min():.1f}, {np.median(returns):.1f}",
        f"{sum(int(e.metrics['los'].max() > 0) for e in compat)} of {len(compat)}",
        f"{nothing.returns[0]:.1f}" + (" (loses separation)" if nothing.metrics["los"].max() else ""),
        f"{min(steps):,} to {max(steps):,}" if min(steps) < max(steps) else f"{steps[0]:,}",
        f"{seconds:.0f}",
    ]


def generic(seeds: int, episodes: int, folder: Path, **settings: Any) -> list[list]:
    """Perturbed starts of every scenario: policies of the generator, and the baselines on the same starts."""
    import regimen
    from regimen.domains.airspace.analysis.analysis import analyse
    from regimen.statistics import wilson

    result = regimen.train("airspace/random", seeds=seeds, out=str(folder / "generic"), track=False, **settings)
    cells: dict[str, dict[str, list[float]]] = {}
    for k, run in enumerate(result.runs):
        given: dict[str, Any] = {"scenarios": "all", "shifts": "none", "episodes": episodes, "seed": 11}
        found = analyse(run.run_dir, **given, baselines=k == 0, checkpoint="final", write=False)
        for row in found.summary:
            who = "policy" if row["policy"] not in ("no_op", "waypoint", "mvp") else row["policy"]
            cell = cells.setdefault(row["scenario"], {}).setdefault(who, [0.0, 0.0, 0.0])
            for i, x in enumerate((row["los_rate"], row["reached_rate"], 1.0)):
                cell[i] += x
    total = {who: [sum(c[who][i] for c in cells.values()) for i in range(3)] for who in next(iter(cells.values()))}
    rows = []
    for name, cell in [*cells.items(), ("all", total)]:
        row, starts = [name], episodes * (len(cells) if name == "all" else 1)
        for who in ("policy", "mvp", "no_op"):
            lost, reached, n = cell[who]
            low, high = wilson(starts * lost / n, starts)  # a start counts once, however many policies fly it
            row += [f"{lost / n:.1%} ({low:.1%} to {high:.1%})", f"{reached / n:.1%}"]
        rows.append(row)
    return rows


def baselines(names: list[str], episodes: int) -> list[list]:
    """Share of perturbed starts with a loss of separation by each baseline, and the aircraft that arrive with MVP."""
    import jax
    import numpy as np

    from regimen.domains.airspace.analysis.detector import Detector
    from regimen.domains.airspace.analysis.flight import Pilot
    from regimen.domains.airspace.analysis.measure import fly_and_measure
    from regimen.domains.airspace.env import Airspace
    from regimen.domains.airspace.files import load
    from regimen.domains.airspace.generator import jitter
    from regimen.sources.play import baseline_actor

    env, key = Airspace(scenario="mixed"), jax.random.key(0)
    shake = jax.jit(jax.vmap(lambda key, start: jitter(key, start, *PERTURBED.values()), (0, None)))
    drawn = [shake(jax.random.split(key, episodes), load(name).arrays(4)) for name in names]
    starts = jax.tree.map(lambda *x: np.concatenate(x), *drawn)
    found = {}
    for who in ("no_op", "waypoint", "mvp"):
        pilot = Pilot(baseline_actor(env.baselines[who]))
        found[who] = fly_and_measure(env, pilot, starts, key, Detector())
    rows = []
    for k, name in enumerate(names):
        own = {who: m.take(slice(k * episodes, (k + 1) * episodes)) for who, m in found.items()}
        arrived = own["mvp"].aircraft["reached"].sum() / own["mvp"].present.sum()
        rows.append([name, *(f"{m.episode['los'].mean():.0%}" for m in own.values()), f"{arrived:.1%}"])
    return rows


def policies(names: list[str], unseen: str, seeds: int, episodes: int, folder: Path, **settings: Any) -> list[list]:
    """One policy for all aircraft against one for each, on perturbed starts of their scenario and of an unseen one."""
    import regimen
    from regimen.statistics import mean_interval

    rows = []
    for name in names:
        for kind in ("shared", "independent"):
            out = str(folder / f"{name}-{kind}")
            result = regimen.train(f"airspace/{name}", seeds=seeds, out=out, track=False, policy_map=kind, **settings)
            found = [regimen.load_policy(run.run_dir, "final") for run in result.runs]
            row = [name, kind]
            for where in (name, unseen):
                played = [judge({"snap": True, **PERTURBED}, where, p, episodes) for p in found]
                for metric in ("los", "reached"):
                    values = [float(e.metrics[metric].mean()) for e in played]
                    low, high = mean_interval(values)
                    row.append(f"{sum(values) / len(values):.1%} ({max(low, 0):.1%} to {min(high, 1):.1%})")
            rows.append(row)
            print(" | ".join(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="default: all 14")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--total-steps", type=float)
    parser.add_argument("--generic", action="store_true", help="one policy for all, trained on the generator")
    parser.add_argument("--policies", action="store_true", help="one policy for all aircraft against one for each")
    parser.add_argument("--baselines", action="store_true", help="the policies written by hand")
    parser.add_argument("--unseen", default="canonical_crossing", help="the scenario that --policies also tests on")
    parser.add_argument("--episodes", type=int, default=100, help="of each scenario, where starts are perturbed")
    parser.add_argument("--full", action="store_true", help="train for the whole budget, whatever the streaks say")
    parser.add_argument("--out", help="keep the runs here")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting")
    args = parser.parse_args()
    from regimen.domains.airspace.files import NAMES

    folder = Path(args.out or tempfile.mkdtemp(prefix="airspace-"))
    settings: dict[str, Any] = dict(item.split("=", 1) for item in args.set)
    if args.total_steps:
        settings["total_steps"] = int(args.total_steps)
    if args.full:
        settings |= {"stop.perfect_streak": None, "stop.zero_conflict_streak": None}
    load = harness.OtherLoad()
    if args.generic:
        rows = generic(args.seeds, args.episodes, folder, **settings)
        head = ["scenario"] + [f"{who}, {what}" for who in ("policy", "MVP", "no-op") for what in ("LoS", "reached")]
        print(f"\n{harness.table(head, rows)}\n\n{load}")
        return
    if args.baselines:
        head = ["scenario", "no_op", "waypoint", "mvp", "arrived with mvp"]
        print(f"\n{harness.table(head, baselines(args.scenarios or list(NAMES), args.episodes))}\n\n{load}")
        return
    if args.policies:
        names = args.scenarios or ["cross_4all", "cross_3p1", "merge_2x2"]
        rows = policies(names, args.unseen, args.seeds, args.episodes, folder, **settings)
        head = ["trained on", "policies"] + [
            f"{where}, {what}" for where in ("its own", args.unseen) for what in ("LoS", "reached")
        ]
        print(f"\n{harness.table(head, rows)}\n\n{load}")
        return
    rows = []
    for name in args.scenarios or NAMES:
        rows.append(learn(name, args.seeds, folder, **settings))
        print(" | ".join(map(str, rows[-1])), flush=True)
    print(f"\n{harness.table(HEAD, rows)}\n\n{load}")


if __name__ == "__main__":
    main()
