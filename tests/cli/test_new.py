"""`regimen new`: what it writes is tested by the test that it writes."""

import subprocess
import sys

import pytest

from regimen.cli.main import main


@pytest.mark.long
def test_the_skeletons_pass_their_own_tests(tmp_path, capsys):
    assert main(["new", "env", "line_walk", "--out", str(tmp_path)]) == 0
    assert main(["new", "algorithm", "my_pg", "--out", str(tmp_path)]) == 0
    assert f"regimen train {tmp_path}/line_walk.py:LineWalk" in capsys.readouterr().out
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path)
    assert ran.returncode == 0 and "4 passed" in ran.stdout, ran.stdout


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["environment", "x"], 2, "is none of env, algorithm"),
        (["env", "Bad-Name"], 2, "write it as my_env"),
        (["env", "class"], 2, "no name of a module"),
    ],
)
def test_what_cannot_be_written(argv, code, words, capsys):
    assert main(["new", *argv]) == code
    assert words in capsys.readouterr().err


def test_nothing_is_written_over(tmp_path, capsys):
    (tmp_path / "test_mine.py").write_text("mine")
    assert main(["new", "env", "mine", "--out", str(tmp_path)]) == 6
    assert "is there already" in capsys.readouterr().err and not (tmp_path / "mine.py").exists()
