"""Gates are scripts beside each other and use the machinery of other tests."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(path) for path in (TESTS / "faults", TESTS / "cli", TESTS / "experiments")]
