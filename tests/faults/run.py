"""The fault suite: `make test-faults` runs every gate, prints a table, and exits 1 where anything was lost.

    python tests/faults/run.py                       # all gates, an hour or more
    python tests/faults/run.py --only kills soak     # gates whose name has one of these words in it
    python tests/faults/run.py --scale 0.1           # a tenth of the tries
    python tests/faults/run.py --json table.json     # the table for programs, too

A gate is a function of a module beside this script, `run(tries, seed, folder) -> {gate, tries, losses, executions,
detail}`: it injures Regimen `tries` times, with what `seed` draws, in an empty `folder`. A loss is a row, a file or a
state that is not what it would have been without the fault, or an error that is not one clear line; an execution is
code that ran because a file said so. Gates need the extras of what they injure; without them they say what is not
installed. Each runs in a process of its own and has a time limit; one that is not done by then, or that leaves a
process behind, has lost (`watch.py`).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(path) for path in (TESTS, TESTS / "cli", TESTS / "experiments")]

from faults.watch import watched  # noqa: E402

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Gate:
    """One row of the table."""

    name: str
    target: str  # module:function beside this script
    tries: int
    needs: tuple[str, ...] = ()  # packages
    seconds: float = 200.0  # of one try at the most, on a machine that is busy


GATES = (
    Gate("kills: native", "kills:run_native", 40),
    Gate("kills: host", "kills:run_host", 30),
    Gate("kills: SAC", "kills:run_sac", 30),
    Gate("kills: offline", "kills:run_offline", 30, ("minari",)),
    Gate("kills: search", "kills:run_search", 20),
    Gate("kills: sweep", "kills:run_sweep", 20, ("optuna",)),
    Gate("kills: population", "kills:run_population", 20),
    Gate("kills: groups of seeds", "groups:run_groups", 30),
    Gate("signals: every long verb", "verbs:run", 33),
    Gate("corruptions", "corruptions:run", 2000, seconds=15),
    Gate("strangers' folders", "strangers:run", 900, seconds=30),
    Gate("Ray workers", "workers:run_workers", 20, ("ray",), 900),
    Gate("Ray itself", "workers:run_cluster", 6, ("ray",), 900),
    Gate("MLflow: concurrent starts", "stores:run", 40, ("mlflow",)),
    Gate("full disk", "disk:run", 20),
    Gate("soak, minutes", "soak:run", 10, ("mlflow",)),
)
START = 1200.0  # seconds beside the tries: imports, compiling, what is compared with
COLUMNS = ("gate", "tries", "losses", "executions", "seconds", "detail")


def chosen(words: list[str]) -> list[Gate]:
    return [gate for gate in GATES if not words or any(word.lower() in gate.name.lower() for word in words)]


def absent(gate: Gate) -> str:
    """Why a gate cannot run here; empty where it can."""
    missing = [name for name in gate.needs if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)}: not installed"
    module = gate.target.partition(":")[0]
    return "" if (HERE / f"{module}.py").is_file() else f"tests/faults/{module}.py: not there"


def tries_of(gate: Gate, scale: float) -> int:
    return max(1, round(scale * gate.tries))


def empty(gate: Gate) -> Outcome:
    return dict.fromkeys(COLUMNS, 0) | {"gate": gate.name, "detail": absent(gate)}


def apart(gate: Gate, scale: float, seed: int, folder: Path) -> Outcome:
    """What a gate measured in a process of its own."""
    row = empty(gate)
    if row["detail"]:
        return row
    table, start, limit = folder / "table.json", time.monotonic(), START + gate.seconds * tries_of(gate, scale)
    folder.mkdir(parents=True)
    options = ["--gate", gate.name, "--scale", str(scale), "--seed", str(seed), "--json", str(table)]
    wrong = watched([sys.executable, __file__, *options, "--here", str(folder / "work")], folder, limit)
    row |= {"seconds": round(time.monotonic() - start)} | (json.loads(table.read_text())[0] if table.exists() else {})
    return row | {"losses": row["losses"] + len(wrong), "detail": "; ".join(filter(None, [row["detail"], *wrong]))}


def outcome(gate: Gate, scale: float, seed: int, folder: Path) -> Outcome:
    """What a gate measures in this process. One that ends with an error of its own has lost, and says why."""
    row = empty(gate)
    if row["detail"]:
        return row
    folder.mkdir(parents=True)
    start = time.monotonic()
    try:
        module, _, name = gate.target.partition(":")
        tries = tries_of(gate, scale)
        row |= getattr(importlib.import_module(f"faults.{module}"), name)(tries, seed, folder) | {"gate": gate.name}
    except Exception as error:
        traceback.print_exc()
        row |= {"losses": 1, "detail": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return row | {"seconds": round(time.monotonic() - start)}


def table(rows: list[Outcome]) -> str:
    """The rows as Markdown."""
    cells = [COLUMNS, ["---"] * len(COLUMNS), *([str(row[name]) for name in COLUMNS] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="gates whose name has one of these in it")
    parser.add_argument("--scale", type=float, default=1.0, help="how many of the tries")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for the table")
    parser.add_argument("--gate", help=argparse.SUPPRESS)  # by its whole name, in this process
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)  # where it works
    options = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["PBS_JOBID"] = "gates"  # the command returns when a run's pictures are there, too
    if options.gate is not None:
        gate = next(gate for gate in GATES if gate.name == options.gate)
        rows = [outcome(gate, options.scale, options.seed, options.here)]
        options.json.write_text(json.dumps(rows))
        return failed(rows)
    gates = chosen(options.only)
    if not gates:
        parser.error(f"--only: no such gate; there are {', '.join(gate.name for gate in GATES)}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="regimen-faults-") as folder:
        for number, gate in enumerate(gates):
            print(f"{gate.name} ...", file=sys.stderr, flush=True)
            rows.append(apart(gate, options.scale, options.seed, Path(folder) / str(number)))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return failed(rows)


def failed(rows: list[Outcome]) -> int:
    return int(any(row["losses"] or row["executions"] for row in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as after Ctrl+C, nothing of a gate stays
    raise SystemExit(main())
