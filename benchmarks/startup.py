"""How long the command line takes to answer, and what imports cost.

python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import harness

REGIMEN = str(Path(sys.executable).with_name("regimen"))
TARGET = 0.5
COMMANDS = {
    "regimen --help": [REGIMEN, "--help"],
    "regimen train cartpole --help": [REGIMEN, "train", "cartpole", "--help"],
    "regimen presets": [REGIMEN, "presets"],
    "python -c pass": [sys.executable, "-c", "pass"],
}
IMPORTS = ["regimen", "regimen.config.layers", "numpy", "gymnasium", "jax", "optax", "regimen.runs.api", "mlflow"]


def seconds(command: list[str], repeats: int) -> list[float]:
    """Wall seconds of each run, interpreter start included; a first one, which fills the disk cache, is dropped."""
    out = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        out.append(time.perf_counter() - start)
    return out[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rows = []
    for name, command in COMMANDS.items():
        taken = seconds(command, args.repeats)
        verdict = ""
        if name == "regimen --help":
            verdict = f"{'meets' if median(taken) < TARGET else 'MISSES'} the target of {TARGET} s"
        rows.append([f"`{name}`", harness.spread(taken, ".2f"), verdict])
    print(harness.table([f"command, median of {args.repeats}", "seconds", ""], rows) + "\n", flush=True)
    rows = []
    for name in IMPORTS:
        try:
            rows.append(
                [f"`{name}`", harness.spread(seconds([sys.executable, "-c", f"import {name}"], args.repeats), ".2f")]
            )
        except subprocess.CalledProcessError:
            rows.append([f"`{name}`", "not installed"])
    print(harness.table(["import, interpreter start included", "seconds"], rows))


if __name__ == "__main__":
    main()
