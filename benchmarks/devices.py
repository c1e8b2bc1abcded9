"""What sharing the environments between devices costs: one device against 8 virtual ones of the same CPU.

    python benchmarks/devices.py

Virtual devices add no hardware: all of them share the cores, so at equal work the best possible ratio is about 1, and
what is missing from it is the cost of the split (collectives, smaller pieces, devices that wait for each other). Both
take turns in one process. Beside other load, eight threads get more of the cores than two; so steps per second of the
process's own CPU time are compared as well. On real devices the same script shows the speed-up (`--devices`).
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

import harness

TARGET = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--envs", type=int, nargs="+", default=[128, 512], help="per device")
    parser.add_argument("--env", default="cartpole")
    parser.add_argument("--steps", type=int, default=32, help="per environment and update")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="per measurement")
    args = parser.parse_args()
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:  # read when jax starts; other platforms do not care
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={args.devices}".strip()

    from regimen.engines import device

    print(f"device: {device.configure('auto', native=True)}")
    load, rows = harness.OtherLoad(), []
    for each in args.envs:
        counts = (1, args.devices)
        engines = {n: harness.make_engine(args.env, each * args.devices, steps=args.steps, devices=n) for n in counts}
        for engine in (*engines.values(), *engines.values()):
            harness.steps_per_second(engine, 0)  # compiles, then finds its speed
        speeds: dict[int, list[float]] = {n: [] for n in counts}
        work: dict[int, list[float]] = {n: [] for n in counts}
        for _ in range(args.rounds):
            for n, engine in engines.items():
                wall, cpu = time.perf_counter(), time.process_time()
                speeds[n].append(harness.steps_per_second(engine, args.seconds))
                share = (time.process_time() - cpu) / (time.perf_counter() - wall)
                work[n].append(speeds[n][-1] / share)
        verdicts = []
        for one, many in (speeds.values(), work.values()):
            ratios = [b / a for a, b in zip(one, many)]
            verdicts.append(f"{harness.verdict(median(ratios), TARGET)} ({min(ratios):.2f} to {max(ratios):.2f})")
        rows.append([each * args.devices, each, *map(harness.spread, speeds.values()), *verdicts])
        print(f"{each} environments per device: {verdicts[0]}; of CPU time: {verdicts[1]}", flush=True)
    head = ["envs", "per device", "1 device, steps/s", f"{args.devices} devices, steps/s", "ratio", "ratio of CPU time"]
    print(f"\n{harness.table(head, rows)}\n\n{load}")


if __name__ == "__main__":
    main()
