"""A random Ray worker is killed (SIGKILL) again and again while it trains: does training go on, and does it learn?

Run: python benchmarks/ray_faults.py [--algo ppo] [--workers 4] [--every 5] [--seconds 60]. The runs to compare with
have the same budget of env steps and no faults.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import table


def descendants() -> dict[int, str]:
    """Process id -> title of everything this process started, directly or not (Linux)."""
    parents, titles = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                status = (folder / "stat").read_text().rpartition(")")[2].split()
                titles[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:
                continue
            parents[int(folder.name)] = int(status[1]) if status[0] != "Z" else 0
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return {pid: titles[pid] for pid in mine - {os.getpid()}}


class Killer(threading.Thread):
    """Kills a random worker every so many seconds, from the first update on."""

    def __init__(self, every: float):
        super().__init__(daemon=True)
        self.every, self.ready, self.done, self.kills = every, threading.Event(), threading.Event(), 0

    def run(self) -> None:
        self.ready.wait()
        while not self.done.wait(self.every):
            workers = [pid for pid, title in descendants().items() if title.startswith("ray::Worker")]
            if workers:
                os.kill(random.choice(workers), signal.SIGKILL)
                self.kills += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="gym:CartPole-v1")
    parser.add_argument("--algo", default="ppo")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between kills")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training under fire")
    parser.add_argument("--compare", type=int, default=2, help="runs without faults, of other seeds")
    args = parser.parse_args()

    import regimen
    from regimen.statistics import mean_interval

    load, folder = os.getloadavg()[0], Path(tempfile.mkdtemp(prefix="ray-faults-"))
    common: dict[str, Any] = {"engine": "ray", "workers": args.workers, "restarts": 1000, "track": False}
    common |= {"rollout.steps": 512, "rollout.num_envs": 8, "preset": "balanced", "eval.every": "never"}
    killer, begun = Killer(args.every), 0.0

    def watch(info: dict[str, Any]) -> bool:
        nonlocal begun
        if not killer.ready.is_set():
            killer.ready.set()
            begun = time.monotonic()
        if time.monotonic() - begun > args.seconds:
            killer.done.set()
        return killer.done.is_set()

    killer.start()
    under_fire = regimen.train(
        args.env, algo=args.algo, out=str(folder / "faults"), callback=watch, total_steps=10**9, **common
    )
    steps = under_fire.summary["env_steps"]
    quiet = [
        regimen.train(args.env, algo=args.algo, out=str(folder / f"quiet-{i}"), total_steps=steps, seed=i, **common)
        for i in range(args.compare)
    ]
    rows = []
    for name, result in [("killed workers", under_fire), *((f"no faults, seed {i}", r) for i, r in enumerate(quiet))]:
        history = result.history
        pauses = [b["wall_seconds"] - a["wall_seconds"] for a, b in pairwise(history)]
        memory = [row["time/memory_mb"] for row in history]
        s = result.summary
        rows.append(
            [
                name,
                f"{s['env_steps']:,}",
                s["updates"],
                s["restarts"],
                f"{max(pauses):.1f} s",
                f"{s['final_return_mean']:.0f}",
                f"{memory[min(10, len(memory) - 1)]:.0f} to {memory[-1]:.0f} MB",
            ]
        )
    print(f"{args.env}, {args.algo}, {args.workers} workers; {killer.kills} kills in {args.seconds:.0f} s\n")
    print(table(["run", "env steps", "updates", "restarts", "longest pause", "final return", "learner memory"], rows))
    if len(quiet) > 1:
        returns = [r.summary["final_return_mean"] for r in quiet]
        low, high = mean_interval(returns)
        fired = under_fire.summary["final_return_mean"]
        inside = min(low, *returns) <= fired <= max(high, *returns)
        says = "within" if inside else "OUTSIDE"
        print(f"\nfinal return {fired:.0f}: {says} that of runs without faults, 95% interval {low:.0f} to {high:.0f}")
    left = {pid: title for pid, title in descendants().items() if "ray" in title}
    print(f"\nprocesses left: {left or 'none'}", f"load average before this run: {load:.1f}", sep="\n")


if __name__ == "__main__":
    main()
