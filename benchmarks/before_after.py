"""Env steps per second, learning included, of this checkout and of an earlier one, in turns within one run.

    git worktree add /tmp/before 191316c
    python benchmarks/before_after.py --before /tmp/before
    python benchmarks/before_after.py --before /tmp/before --start --rounds 3

Both run with this interpreter and its jax, each in a process of its own with its own code. They take turns,
and which of them comes first changes from round to round. The ratio is that of one round: this checkout to the other.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import harness
import time_to_solve

HERE = Path(__file__).resolve().parent.parent
CASES = {
    "native, 4 envs": ("cartpole", 4),
    "native, 64 envs": ("cartpole", 64),
    "native, 512 envs": ("cartpole", 512),
    "host, 8 envs": ("gym:CartPole-v1", 8),
}
REGIMEN = "import sys; sys.argv[0] = 'regimen'; from regimen.cli.main import main; sys.exit(main())"
NOISE = 0.95  # a median ratio below it is slower than before


def environment(root: Path) -> dict[str, str]:
    """That of a process with the code of a checkout."""
    return os.environ | {"PYTHONPATH": f"{root / 'src'}:{root / 'benchmarks'}:{os.environ.get('PYTHONPATH', '')}"}


class Checkout:
    """A process with the code of one checkout that answers requests one by one."""

    def __init__(self, root: Path):
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(root)]
        self.process = subprocess.Popen(
            command, env=environment(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process ended with exit code {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(root: Path) -> None:
    """Answer requests with the code of one checkout until there are no more."""
    sys.path[:0] = [str(root / "src"), str(root / "benchmarks")]
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE / "benchmarks" or root.resolve() == HERE]
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.modules.pop("harness")  # the other checkout has its own
    its_harness = importlib.import_module("harness")
    try:
        device = importlib.import_module("regimen.engines.device")
    except ImportError:  # before the rooms
        device = importlib.import_module("regimen.training.device")
    assert Path(str(its_harness.__file__)).resolve().parent.parent == root.resolve()
    assert Path(str(device.__file__)).resolve().is_relative_to(root.resolve())
    device.configure("cpu", True)
    by_processor = SimpleNamespace(perf_counter=time.process_time)
    engines = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["case"]
        if name not in engines:
            engines[name] = its_harness.make_engine(*CASES[name])
            its_harness.time = by_processor if request["processor"] else time
            for _ in range(2):  # compiles
                its_harness.steps_per_second(engines[name], 0)
        print(json.dumps(its_harness.steps_per_second(engines[name], request["seconds"])), file=answers, flush=True)


def compare_starts(sides: dict[str, Path], rounds: int) -> None:
    """Seconds from the shell to the solved line and to the prompt, with an empty compilation cache and once more."""
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for turn in range(rounds):
        for label in sorted(sides, reverse=turn % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                for cache in ("cold", "warm"):
                    command = [sys.executable, "-c", REGIMEN, "train", "cartpole", "--seed", str(turn), "--out", cache]
                    env = environment(sides[label]) | {"XDG_CACHE_HOME": folder}
                    outcome = time_to_solve.watch([*command, "--no-track"], Path(folder), env)
                    subprocess.run(
                        [*command[:3], "report", cache], cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True
                    )
                    times[label, cache, "the solved line"].append(outcome.seconds or float("nan"))
                    times[label, cache, "the prompt"].append(outcome.whole)
                    print(f"{label}, {cache}, seed {turn}: {outcome}", flush=True)
    rows = []
    for cache, moment in itertools.product(("cold", "warm"), ("the solved line", "the prompt")):
        columns = [times[label, cache, moment] for label in sides]
        ratios = [now / before for before, now in zip(*columns)]
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([f"{cache}, to {moment}", *(harness.spread(x, ".2f") for x in columns), ratio])
    print(harness.table(["`regimen train cartpole`", "seconds before", "seconds now", "ratio (range)"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--processor", action="store_true", help="per second of the processor: for a busy machine")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--start", action="store_true", help="instead: from the shell to a solved CartPole")
    parser.add_argument("--out", type=Path, help="a JSON file with every measurement")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        return serve(args.serve)
    if args.before is None:
        parser.error("--before PATH names another checkout")
    if args.start:
        return compare_starts({"before": args.before.resolve(), "now": HERE}, args.rounds)
    cases = [name for name in CASES if args.only in name]
    sides = {"before": Checkout(args.before.resolve()), "now": Checkout(HERE)}
    speeds: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in cases}
    load, start = harness.OtherLoad(), time.perf_counter()
    for side in sides.values():
        for name in cases:
            side.ask(case=name, seconds=0.0, processor=args.processor)
    rows = []
    for name in cases:
        for turn in range(args.rounds):
            for label in sorted(sides, reverse=turn % 2 == 1):
                speeds[name][label].append(sides[label].ask(case=name, seconds=args.seconds, processor=args.processor))
        ratios = [now / before for now, before in zip(speeds[name]["now"], speeds[name]["before"])]
        ratio = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        verdict = "slower" if median(ratios) < NOISE else "faster" if median(ratios) > 1 / NOISE else "the same"
        rows.append([name, *(harness.spread(speeds[name][label]) for label in sides), ratio, verdict])
        print(f"{name}: {ratio}, {verdict}", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(speeds))
    for side in sides.values():
        side.close()
    head = ["PPO on CartPole-v1", "steps/s before", "steps/s now", "median ratio of rounds (range)", ""]
    print(harness.table(head, rows) + f"\n\n{time.perf_counter() - start:.0f} s, {load}")


if __name__ == "__main__":
    main()
