"""Seconds and memory of the exact empowerment solver on a world of about 70,000 states with time and 64 or more joint
actions.

    .venv/bin/python benchmarks/empowerment_exact.py
    .venv/bin/python benchmarks/empowerment_exact.py --world world/asymmetric_freeing --steps 15

Targets: 20 s and 1 GB on 2 cores, compilation and the interpreter included. A system before this one needed 10 minutes
and 19 to 25 GB for 70,333 states with time and 64 joint actions. Each prior runs in a process of its own, so that the
peak of its memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

SECONDS, GIGABYTES, PAIRS, JOINT = 20.0, 1.0, 70_000, 64
MAP, DENSITY, STEPS = "Hu 1 1 / 1 Ro 1 / 1 1 Hu", 2, 12  # 112,000 states with time, 125 joint actions, 4 outcomes


def measure(world: str | None, steps: int, prior: str) -> dict[str, float]:
    """Solve once in this process."""
    start = time.perf_counter()
    import regimen
    from regimen.domains.empowerment.reach import joint_actions
    from regimen.domains.empowerment.worlds.bush import BushWorld

    imported = time.perf_counter()
    given = BushWorld(map=MAP, B=DENSITY) if world is None else world
    solution = regimen.empowerment.solve(given, env_args={"max_episode_steps": steps}, prior=prior)
    return {
        "states": len(solution.table.states),
        "pairs": solution.pairs,
        "joint": joint_actions(solution.world),
        "outcomes": solution.table.successor.shape[-1],
        "import_seconds": imported - start,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time(),
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,  # Linux counts kilobytes
        "v_r": solution.at().v_r,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", help="a name or a map file; a 3 x 3 BushWorld when not given")
    parser.add_argument("--steps", type=int, default=STEPS, help="time limit of the world")
    parser.add_argument("--priors", default="heuristic,cautious", help="separated by commas")
    parser.add_argument("--one", action="store_true", help="solve in this process and print JSON")
    args = parser.parse_args(argv)
    priors = args.priors.split(",")
    if args.one:
        print(json.dumps(measure(args.world, args.steps, priors[0])))
        return 0
    print("| prior | states | with time | joint actions | outcomes | seconds | CPU s | peak GB | target |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for prior in priors:
        command = [sys.executable, __file__, "--one", "--priors", prior, "--steps", str(args.steps)]
        command += ["--world", args.world] if args.world else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
            return 1
        r = json.loads(done.stdout)
        small = r["pairs"] < PAIRS or r["joint"] < JOINT
        met = r["seconds"] < SECONDS and r["gigabytes"] < GIGABYTES
        verdict = "too small to tell" if small else "meets" if met else "MISSES"
        print(
            f"| {prior} | {r['states']:,} | {r['pairs']:,} | {r['joint']} | {r['outcomes']} | {r['seconds']:.1f} | "
            f"{r['cpu_seconds']:.1f} | {r['gigabytes']:.2f} | {verdict} {SECONDS:g} s, {GIGABYTES:g} GB |"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
