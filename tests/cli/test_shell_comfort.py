"""Completion, examples, colours and pipes."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from regimen.cli import main as cli
from regimen.cli import shells, train
from regimen.config.examples import EXAMPLES
from regimen.style import coloured, painted
from synthetic_run import make_run

VERBS = list(cli.VERBS)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def complete(words: list[str]) -> list[str]:
    """What bash offers for the last of these words."""
    script = shells.script("bash") + (
        f"\nCOMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _regimen; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes():
    assert set(complete(["regimen", ""])) >= {*VERBS, "--help"}
    assert complete(["regimen", "swe"]) == ["sweep"]
    assert "cartpole" in complete(["regimen", "train", "cart"])
    assert "--algo.clip-eps" in complete(["regimen", "train", "cartpole", "--algo.c"])
    assert complete(["regimen", "train", "cartpole", "--algo", "im"]) == ["impala"]
    assert "fast" in complete(["regimen", "train", "cartpole", "--preset", ""])
    assert complete(["regimen", "train", "cartpole", "--device", ""]) == ["auto", "cpu", "gpu"]
    assert complete(["regimen", "runs", "re"]) == ["remove"]
    assert complete(["regimen", "sweep", "cartpole", "--gri"]) == ["--grid"]
    assert complete(["regimen", "study", "updates", "--strat"]) == ["--strategies"]  # of a domain's study


@pytest.mark.parametrize("shell", shells.SHELLS)
def test_scripts_name_everything_and_are_valid(shell, tmp_path):
    text = shells.script(shell)
    assert all(re.search(rf"\b{verb}\b", text) for verb in VERBS) and "clip-eps" in text and "head_on" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here: its script is not parsed")
    file = tmp_path / "script"
    file.write_text(text)
    subprocess.run([shell, "-n", str(file)], check=True)


def test_completion_command(capsys):
    assert cli.main(["completion", "bash"]) == 0
    assert "complete -o default -F _regimen regimen" in capsys.readouterr().out
    assert cli.main(["completion", "tcsh"]) == 2


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples(verb, capsys):
    cli.main([verb, "--help"])
    text = capsys.readouterr().out
    shown = re.findall(rf"^\s+(?:eval .*)?regimen {verb}\b", text, re.MULTILINE)
    assert shown, f"add examples of {verb} to config/examples.py or to its domain"
    assert not CONTROL.search(text)


@pytest.mark.parametrize("line", [x for lines in EXAMPLES.values() for x in lines])
def test_examples_can_be_read(line, tmp_path, monkeypatch):
    """By the parser of their verb; names of files that do not exist are none of its business."""
    from regimen.config.flags import parse

    monkeypatch.chdir(tmp_path)
    verb, *argv = shlex.split(line)[1:]
    if verb == "train":
        train.read(argv)
        return
    parse(shells.classes_of(verb)[0], argv, verb)


# --- colours and pipes -----------------------------------------------------------------------------------------------


class Terminal:
    def isatty(self):
        return True


def test_colours(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured(Terminal()) and not coloured(open(os.devnull))  # noqa: SIM115
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert coloured(open(os.devnull)) and painted("x", "red", open(os.devnull)) == "\x1b[31mx\x1b[0m"  # noqa: SIM115
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured(Terminal()) and painted("x", "red", Terminal()) == "x"
    monkeypatch.setenv("NO_COLOR", "")  # empty counts as not set
    assert coloured(Terminal())
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not coloured(Terminal())


def piped(argv, **env):
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")} | env
    done = subprocess.run(
        [sys.executable, "-m", "regimen", *argv], capture_output=True, text=True, env=environment, check=False
    )
    return done.stdout + done.stderr


def test_a_pipe_gets_plain_lines(tmp_path):
    run = make_run(tmp_path / "runs" / "first", updates=6)
    for argv in (
        ["--help"],
        ["train", "--help"],
        ["runs", str(tmp_path / "runs")],
        ["diagnose", str(run)],
        ["nonsense"],
    ):
        text = piped(argv)
        assert text and not CONTROL.search(text), argv
    assert "\x1b[31m" in piped(["nonsense"], FORCE_COLOR="1")
    assert "\x1b" not in piped(["nonsense"], FORCE_COLOR="1", NO_COLOR="1")


def test_training_in_a_pipe_has_no_panel(tmp_path):
    text = piped(["train", "probe/action", "--preset", "debug", "--no-track", "--out", str(tmp_path / "run")])
    assert "Batch" in text and not CONTROL.search(text)
