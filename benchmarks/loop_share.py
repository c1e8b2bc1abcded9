"""What share of a native run's loop is the compiled program, and what rows, episodes and evaluations take.

    python benchmarks/loop_share.py

`regimen.train("cartpole")` with the preset's evaluations and without a tracker, 128 steps per environment and update,
4 minibatches. CPU time of the compiled program, and of all that the loop does after it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import harness

CASES = {2048: 3_000_000, 64: 400_000, 4: 50_000}  # environments: env steps


class Clock:
    """A method whose CPU time is counted."""

    def __init__(self, method: Callable[..., Any]):
        self.method, self.seconds = method, 0.0

    def __get__(self, owner: Any, kind: type) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.process_time()
            try:
                return self.method(owner, *args)
            finally:
                self.seconds += time.process_time() - start

        return timed


def measure(num_envs: int, steps: int) -> tuple[float, float]:
    """CPU seconds of the compiled program, and of the rest of the loop."""
    import regimen
    from regimen.engines.chunk import CompiledEngine
    from regimen.runs.session import Session

    program, compiling, rest = (Clock(f) for f in (CompiledEngine.run_chunk, CompiledEngine.compile, Session.turn))
    n = num_envs * harness.STEPS
    settings: dict[str, Any] = {
        "rollout.num_envs": num_envs,
        "rollout.steps": n,
        "algo.minibatch_size": n // harness.MINIBATCHES,
    }
    settings |= {"stop.target_return": None, "total_steps": steps, "track": False}
    patched = mock.patch.multiple(CompiledEngine, run_chunk=program, compile=compiling)
    with tempfile.TemporaryDirectory() as folder, patched, mock.patch.object(Session, "turn", rest):
        regimen.train("cartpole", out=str(Path(folder) / "run"), **settings)
    return program.seconds - compiling.seconds, rest.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    load, rows = harness.OtherLoad(), []
    for n in args.envs:
        program, rest = measure(n, CASES[n])
        rows.append([f"{n:,}", f"{CASES[n]:,}", f"{program:.2f}", f"{rest:.2f}", f"{program / (program + rest):.1%}"])
    head = ["environments", "env steps", "compiled program, CPU s", "rest of the loop, CPU s", "share of the program"]
    print(harness.table(head, rows) + f"\n\n{load}")


if __name__ == "__main__":
    main()
