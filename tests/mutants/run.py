"""Put known bugs into the code, one at a time, and see whether the tests notice: `make test-mutants`.

Each `[[mutant]]` of the TOML files beside this script is a small patch with the behaviour it breaks in words:

    name = "vtrace-c-not-clipped"
    breaks = "The trace coefficients may exceed 1, so corrections explode along the trajectory."
    file = "src/regimen/returns.py"
    old = '''exact text that occurs once in the file'''
    new = '''what the bug would have written'''
    tests = ["tests/maths/test_returns.py::test_vtrace_matches_numpy"]
    equal = "why no test can tell"  # only where the patched program behaves the same

A mutant is *killed* when one of its tests fails, *survived* when all of them pass, and *broken* when they did not run
as they should: a syntax error is no finding. The tests must pass without a patch, which is checked first. Every bug
that is found from outside gets a mutant, so that the next one like it is noticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / "build" / "jax-cache"  # most programs are the same with and without a patch
KILLED, SURVIVED, EQUAL, BROKEN = "killed", "survived", "equal", "broken"


@dataclass(frozen=True)
class Mutant:
    """One bug: in `file` the text `old` becomes `new`, and one of `tests` has to fail."""

    name: str
    area: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equal: str = ""

    def patched(self, text: str) -> str:
        """The file with the bug in it."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its text occurs {text.count(self.old)} times in {self.file}, not once")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, the last lines that pytest printed, and how long it took."""

    mutant: Mutant
    word: str
    output: str
    seconds: float


def load(folder: Path = HERE) -> list[Mutant]:
    """All mutants, in the order of the files."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text()).get("mutant", []):
            found.append(Mutant(area=path.stem, **{**entry, "tests": tuple(entry["tests"])}))
    return found


def choose(mutants: Iterable[Mutant], only: list[str]) -> list[Mutant]:
    """Those whose name, area or file is named; all of them when nothing is."""
    return [m for m in mutants if not only or any(word in (m.name, m.area) or word in m.file for word in only)]


def run_tests(tests: Iterable[str], source: Path, limit: float) -> tuple[int, str]:
    """Pytest's exit status and output on these tests, with the package imported from `source`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(source.parent / "hypothesis"),
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(CACHE)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *tests,
    ]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            status = 1  # a program that hangs has been noticed
        output.seek(0)
        return status, output.read()


def judge(mutant: Mutant, limit: float = 180.0) -> Verdict:
    """Run a mutant's tests on a copy of the sources that has the bug in it."""
    start = time.monotonic()
    if mutant.equal:
        return Verdict(mutant, EQUAL, mutant.equal, 0.0)
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        target = Path(folder) / mutant.file
        target.write_text(mutant.patched(target.read_text()))
        try:
            if target.suffix == ".py":  # not a script of the page
                compile(target.read_text(), mutant.file, "exec")
        except SyntaxError as error:
            return Verdict(mutant, BROKEN, str(error), time.monotonic() - start)
        status, output = run_tests(mutant.tests, Path(folder) / "src", limit)
    word = {0: SURVIVED, 1: KILLED}.get(status, BROKEN)
    if word == KILLED and "ImportError while" in output:
        word = BROKEN
    return Verdict(mutant, word, "\n".join(output.splitlines()[-12:]), time.monotonic() - start)


def main() -> int:
    """Judge the chosen mutants; the exit status is 1 when one survived or did not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="names, areas or source files")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for one mutant")
    parser.add_argument("--trust-tests", action="store_true", help="do not run the tests without a patch first")
    options = parser.parse_args()
    mutants = choose(load(), options.only)
    if not mutants:
        print("no mutant has that name, area or file")
        return 2
    start = time.monotonic()
    if not options.trust_tests:
        tests = sorted({test for m in mutants if not m.equal for test in m.tests})
        print(f"{len(tests)} tests without a patch", flush=True)
        for files in [tests[i : i + 60] for i in range(0, len(tests), 60)]:  # a process that compiles too much crashes
            status, output = run_tests(files, ROOT / "src", 3600.0)
            if status != 0:
                print(output[-6000:], "\nthe tests fail without any mutant", sep="")
                return 2
    counts: Counter[tuple[str, str]] = Counter()
    lost = []
    with ThreadPoolExecutor(options.workers) as pool:
        for verdict in pool.map(lambda m: judge(m, options.limit), mutants):
            mutant = verdict.mutant
            counts[mutant.area, verdict.word] += 1
            print(f"{verdict.word:9}{verdict.seconds:6.1f} s  {mutant.name}: {mutant.breaks}", flush=True)
            if verdict.word in (SURVIVED, BROKEN):
                lost.append(verdict)
    words = (KILLED, SURVIVED, EQUAL, BROKEN)
    print("\n| area | " + " | ".join(words) + " |\n|---|" + "---|" * len(words))
    for area in [*dict.fromkeys(m.area for m in mutants), None]:
        row = [sum(n for (a, w), n in counts.items() if w == word and area in (a, None)) for word in words]
        print(f"| {area or 'all'} | " + " | ".join(map(str, row)) + " |")
    print(f"\n{len(mutants)} mutants, {(time.monotonic() - start) / 60:.1f} minutes with {options.workers} at a time")
    for verdict in lost:
        print(f"\n{verdict.word}: {verdict.mutant.name} ({verdict.mutant.file})\n{verdict.output}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
