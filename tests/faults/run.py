"""The fault suite: `make test-faults` runs every gate, prints a table, and exits 1 where anything was lost.

    python tests/faults/run.py                       # all gates, an hour or more
    python tests/faults/run.py --only kills soak     # gates whose name has one of these words in it
    python tests/faults/run.py --scale 0.1           # a tenth of the tries
    python tests/faults/run.py --json table.json     # the table for programs, too

A gate is a function of a module beside this script, `run(tries, seed, folder) -> {gate, tries, losses, executions,
detail}`: it injures Regimen `tries` times, with what `seed` draws, in an empty `folder`. A loss is a row, a file or a
state that is not what it would have been without the fault, or an error that is not one clear line; an execution is
code that ran because a file said so. Gates need the extras of what they injure; without them they say what is not
installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
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

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Gate:
    """One row of the table."""

    name: str
    target: str  # module:function beside this script
    tries: int
    needs: tuple[str, ...] = ()  # packages


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
    Gate("corruptions", "corruptions:run", 2000),
    Gate("strangers' folders", "strangers:run", 900),
    Gate("Ray workers", "workers:run_workers", 20, ("ray",)),
    Gate("Ray itself", "workers:run_cluster", 6, ("ray",)),
    Gate("MLflow: concurrent starts", "stores:run", 40, ("mlflow",)),
    Gate("full disk", "disk:run", 20),
    Gate("soak, minutes", "soak:run", 10, ("mlflow",)),
)
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


def outcome(gate: Gate, scale: float, seed: int, folder: Path) -> Outcome:
    """What a gate measured. One that ends with an error of its own has lost, and says why."""
    row: Outcome = dict.fromkeys(COLUMNS, 0) | {"gate": gate.name, "detail": absent(gate)}
    if row["detail"]:
        return row
    folder.mkdir(parents=True)
    start = time.monotonic()
    try:
        module, _, name = gate.target.partition(":")
        tries = max(1, round(scale * gate.tries))
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
    options = parser.parse_args(argv)
    gates = chosen(options.only)
    if not gates:
        parser.error(f"--only: no such gate; there are {', '.join(gate.name for gate in GATES)}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    rows = []
    with tempfile.TemporaryDirectory(prefix="regimen-faults-") as folder:
        for number, gate in enumerate(gates):
            print(f"{gate.name} ...", file=sys.stderr, flush=True)
            rows.append(outcome(gate, options.scale, options.seed, Path(folder) / str(number)))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(any(row["losses"] or row["executions"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
