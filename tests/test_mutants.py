"""The list of mutants itself: every patch applies, and every test that should notice it exists."""

import ast
from pathlib import Path

import pytest

from mutants import run

MUTANTS = run.load()


def functions(path: Path) -> set[str]:
    """Names of test functions in a file, those in classes as Class::name."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {node.name} | {f"{node.name}::{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return found


def test_names_differ_and_every_mutant_says_what_it_breaks():
    names = [m.name for m in MUTANTS]
    assert len(names) == len(set(names))
    assert all(len(m.breaks.split()) >= 4 for m in MUTANTS)


@pytest.mark.parametrize("area", sorted({m.area for m in MUTANTS}))
def test_every_patch_applies_and_every_test_exists(area):
    for mutant in (m for m in MUTANTS if m.area == area):
        patched = mutant.patched((run.ROOT / mutant.file).read_text())
        if mutant.file.endswith(".py"):
            compile(patched, mutant.file, "exec")
        assert mutant.tests or mutant.equal, mutant.name
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert (run.ROOT / file).exists(), f"{mutant.name}: {file}"
            assert not name or name.partition("[")[0] in functions(run.ROOT / file), f"{mutant.name}: {test}"


def toy(old: str, new: str, tests: str) -> run.Mutant:
    """A mutant of one file with a test of its own."""
    return run.Mutant("toy", "toy", "nothing that matters here", "src/regimen/schedule.py", old, new, (tests,))


def test_the_runner_tells_killed_from_survived_and_broken(tmp_path):
    """A patch that its test sees, one that it does not, and one that is no program."""
    (tmp_path / "test_toy.py").write_text(
        "import pathlib, regimen\n"
        "text = (pathlib.Path(regimen.__file__).parent / 'schedule.py').read_text()\n"
        "def test_sees():\n    assert 'a toy bug' not in text\n"
        "def test_blind():\n    pass\n"
    )
    first = (run.ROOT / "src/regimen/schedule.py").read_text().splitlines()[0]
    test = str(tmp_path / "test_toy.py")
    assert run.judge(toy(first, "# a toy bug\n" + first, test + "::test_sees")).word == run.KILLED
    assert run.judge(toy(first, "# a toy bug\n" + first, test + "::test_blind")).word == run.SURVIVED
    assert run.judge(toy(first, "(\n" + first, test + "::test_blind")).word == run.BROKEN
    assert run.judge(toy(first, "# a toy bug\n" + first, test + "::test_missing")).word == run.BROKEN
