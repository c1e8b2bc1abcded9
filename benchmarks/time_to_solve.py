"""Seconds from a cold shell to a solved CartPole: `regimen train cartpole` against Stable-Baselines3.

    python benchmarks/time_to_solve.py --peer-python /path/to/venv/bin/python

Solved: 100 greedy episodes average at least 475, checked after every 2,560 env steps (our default cadence) on both
sides. The peer plays all 100 at once in Gymnasium's vectorised CartPole, the quickest way it has; one more row shows it
with its own `evaluate_policy`, which does not count for the ratio. The clock runs outside the processes, so interpreter
start, imports and compilation count.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import harness

EVERY = 2560  # 10 updates of 256 steps: the tuned default of cartpole
TARGET = 1 / 3
OURS = ("Regimen, cold", "Regimen, second run")
PEERS = {
    "SB3, rl-zoo3 settings": ("--hyper", "zoo"),
    "SB3, its defaults": ("--hyper", "default"),
    "SB3, rl-zoo3 settings, evaluate_policy": ("--hyper", "zoo", "--evaluate-policy"),
}
RIVALS = list(PEERS)[:2]


@dataclass(frozen=True)
class Outcome:
    seconds: float | None  # to the solved line; None: never solved
    steps: int | None
    whole: float  # to the end of the process


def watch(command: list[str], folder: Path, env: dict[str, str] | None = None) -> Outcome:
    """Run a command and note when a line starting with `Solved after N steps` appears."""
    start, solved, steps = time.perf_counter(), None, None
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.match(r"Solved after ([\d,]+) steps", line)
        if found and solved is None:
            solved, steps = time.perf_counter() - start, int(found.group(1).replace(",", ""))
    if process.wait():
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}:\n{''.join(lines[-20:])}")
    return Outcome(solved, steps, time.perf_counter() - start)


def ours(seed: int, folder: Path, name: str, *flags: str) -> Outcome:
    command = [str(Path(sys.executable).with_name("regimen")), "train", "cartpole", "--seed", str(seed)]
    outcome = watch([*command, "--out", name, *flags], folder, {"XDG_CACHE_HOME": str(folder / "cache")})
    settle([command[0]], folder / name)
    return outcome


def settle(regimen: list[str], run: Path) -> None:
    """Wait for the process that draws a run, so that whoever is timed next has the machine to itself."""
    subprocess.run([*regimen, "report", str(run)], stdout=subprocess.DEVNULL, check=True)


def peer(python: str, seed: int, folder: Path, threads: int, flags: tuple[str, ...]) -> Outcome:
    script = [python, str(harness.HERE.resolve() / "peer_sb3.py"), "solve", "--seed", str(seed), *flags]
    return watch([*script, "--every", str(EVERY), "--threads", str(threads)], folder)


def show(results: dict[str, list[Outcome]]) -> None:
    rows, medians = [], {}
    for name, outcomes in results.items():
        solved = [o for o in outcomes if o.seconds is not None]
        seconds = [o.seconds for o in solved if o.seconds is not None]
        steps = [o.steps for o in solved if o.steps is not None]
        # a run that never solved counts as slower than any that did
        order = sorted(seconds) + [float("inf")] * (len(outcomes) - len(solved))
        medians[name] = order[(len(order) - 1) // 2]
        rows.append(
            [
                name,
                f"{len(solved)} of {len(outcomes)}"
                + (" (the rest: not within the budget)" * (len(solved) < len(outcomes))),
                harness.spread(seconds, ".1f") if seconds else "never",
                f"{median(steps):,.0f}" if steps else "never",
                f"{median(o.whole for o in outcomes):.1f}",
            ]
        )
    print(harness.table(["", "solved", "seconds to solved", "env steps to solved", "seconds to the end"], rows))
    peers = {name: medians[name] for name in RIVALS if name in medians}
    if not peers:
        return
    best = min(peers, key=lambda name: peers[name])
    for name in OURS:
        ratio = medians[name] / peers[best]
        verdict = "meets" if ratio <= TARGET else "MISSES"
        print(f"{name}: {ratio:.2f} of the time of {best}, {verdict} the target of at most 1/3")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="an interpreter that has Stable-Baselines3")
    parser.add_argument("--peer-threads", type=int, default=1, help="of torch; 0: its default (slower here)")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    python = None if args.no_peer else harness.peer_python(args.peer_python)
    results: dict[str, list[Outcome]] = {name: [] for name in OURS}
    load = harness.OtherLoad()
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            results[OURS[0]].append(ours(seed, folder, "first"))
            for label, flags in PEERS.items() if python else ():
                results.setdefault(label, []).append(peer(python, seed, folder, args.peer_threads, flags))
            results[OURS[1]].append(ours(seed, folder, "second"))
        last = ", ".join(f"{k} {v[-1].seconds or float('nan'):.1f} s" for k, v in results.items())
        print(f"seed {seed}: {last}", flush=True)
    show(results)
    print(load)


if __name__ == "__main__":
    main()
