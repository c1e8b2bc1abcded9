import subprocess
import sys

import pytest

from regimen.words import aligned, clock, count, number, plural, score, size


def test_numbers_for_people():
    assert [number(x) for x in (0.1234, 0.00002, 0.0, -3.0)] == ["0.123", "2.0e-05", "0.000", "-3.000"]
    assert [score(x) for x in (187.43, -0.25, 0.0, 0.00002)] == ["187.4", "-0.250", "0.0", "2.0e-05"]
    assert [count(x) for x in (999, 12_345, 2.5e6, 0.25)] == ["999", "12.3k", "2.5M", "0.25"]
    sizes = [size(x) for x in (12, 44_000, 1.5e6, 12e6, 2e9, 3.2e12)]
    assert sizes == ["12 B", "44 kB", "1.5 MB", "12 MB", "2.0 GB", "3200.0 GB"]
    assert [clock(x) for x in (61, 3723, -5)] == ["1:01", "1:02:03", "0:00"]


@pytest.mark.parametrize(("n", "text"), [(0, "0 seeds"), (1, "1 seed"), (2, "2 seeds")])
def test_plural(n, text):
    assert plural(n, "seed") == text


def test_columns_are_as_wide_as_their_widest_cell():
    assert aligned(["run", "return"], [["first-one", "1"], ["b", "200.5"]]) == [
        "run        return",
        "first-one  1",
        "b          200.5",
    ]


def test_words_import_nothing_heavy():
    code = "import sys, regimen.words; print(sorted({'jax', 'numpy', 'rich'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
