"""Each command that the documentation shows is run, with budgets cut: a few in every test run, all by `make test-docs`.

What a command names (RUN, DATASET, my.yaml, ...) is made once by a tiny real run (`docs_commands.Kitchen`). What cannot
be run here is listed there with its reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from docs_commands import REASONS, Kitchen, halves, reason_not_to_run, small
from test_docs import SHELL

COMMANDS = list(dict.fromkeys(line for _, line in SHELL))
QUICK = [
    "regimen --help",
    "regimen train --help",
    "regimen envs cartpole",
    "regimen algorithms bc",
    "regimen presets fast",
    "regimen scenario list",
    "regimen completion bash",
    "regimen solve world/way1x5",
    "regimen train cartpole --out runs/first",
    "regimen evaluate RUN --checkpoint final",
    "regimen runs show RUN",
    "regimen diagnose RUN",
    "regimen export RUN --out policies/first",
]
EXTRAS = {"onnx": "jax2onnx", "mlflow": "mlflow", "models:/": "mlflow", "--engine ray": "ray", "--hosts": "ray"}
EXTRAS |= {"bluesky:": "bluesky", "examples/atari.py": "ale_py"}
EXTRAS |= {"pettingzoo:": "mpe2", "DATASET": "minari", "sweep": "optuna", "stablehlo": "flatbuffers"}
LIMIT = 900  # seconds; the longest trains fourteen scenarios


def parameters():
    for command in COMMANDS:
        if reason_not_to_run(command) is None:
            yield pytest.param(command, marks=[] if command in QUICK else pytest.mark.slow, id=command)


@pytest.fixture(scope="session")
def kitchen(tmp_path_factory):
    return Kitchen(tmp_path_factory.mktemp("kitchen"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def start(argv: list[str], kitchen: Kitchen, cwd: Path) -> subprocess.Popen:
    words = {"regimen": ["-m", "regimen"], "python": [], "mlflow": ["-m", "mlflow"]}[argv[0]]
    return subprocess.Popen(
        [sys.executable, *words, *argv[1:]],
        cwd=cwd,
        env=kitchen.environ(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that what it starts can be ended with it
    )


def end(process: subprocess.Popen) -> None:
    """The process, and whatever it has started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


NOT_FOUND = {"search": 1}  # so short a search has no candidate that meets the gate


def finish(process: subprocess.Popen, other: int = 0) -> str:
    try:
        output, _ = process.communicate(timeout=LIMIT)
    finally:
        end(process)
    assert process.returncode in (0, other), output[-4000:]
    return output


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers(address: str, process: subprocess.Popen, seconds: float = 120) -> bool:
    """Whether a server that is starting gives its page."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5) as page:
                return page.status == 200
        except OSError:
            time.sleep(0.2)
    return False


@pytest.mark.parametrize("command", parameters())
def test_command(command, kitchen, folder):
    missing = [m for key, m in EXTRAS.items() if key in command and importlib.util.find_spec(m) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    argv = small(command)
    kitchen.lay(argv, folder)
    if argv[:2] == ["regimen", "dashboard"] or argv[0] == "mlflow":
        return serve(argv, kitchen, folder)
    if "--distributed" in argv:
        processes = [start(half, kitchen, folder) for half in halves(argv, free_port())]
        try:
            for process in processes:
                finish(process)
        finally:
            for process in processes:
                end(process)
        return None
    output = finish(start(argv, kitchen, folder), NOT_FOUND.get(argv[1], 0))
    check_outcome(argv, output, folder)
    return None


def serve(argv: list[str], kitchen: Kitchen, folder: Path) -> None:
    """A command that goes on until Ctrl+C: it gives its page, then it ends."""
    port = free_port()
    at = argv.index("--port") if "--port" in argv else len(argv)
    process = start([*argv[:at], "--port", str(port), *argv[at + 2 :]], kitchen, folder)
    try:
        assert answers(f"http://127.0.0.1:{port}/", process), "no page"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130, -signal.SIGINT)
    finally:
        end(process)


def check_outcome(argv: list[str], output: str, folder: Path) -> None:
    """What a command says it makes is there."""
    verb = argv[1] if argv[0] == "regimen" else ""
    if "--help" in argv or verb in ("envs", "algorithms", "presets", "completion", "doctor", "evaluate", "check-env"):
        assert output.strip()
    if "--out" in argv and "minari:" not in " ".join(argv):
        assert (folder / argv[argv.index("--out") + 1]).exists(), "nothing at --out"
    elif verb == "train" and "--help" not in argv:
        assert list(folder.glob("runs/**/summary.json")), "no run"
    if "--plots" in argv:
        assert list((folder / argv[argv.index("--plots") + 1]).glob("*.png"))


def test_what_is_not_run_is_shown_and_every_reason_is_needed():
    unused = [pattern for pattern in REASONS if not any(re.match(pattern, command) for command in COMMANDS)]
    assert unused == []
    known = ("regimen ", "python ", "mlflow ")
    assert [c for c in COMMANDS if reason_not_to_run(c) is None and not c.startswith(known)] == []


def test_quick_ones_are_of_the_documentation():
    assert [command for command in QUICK if command not in COMMANDS] == []
    assert all(reason_not_to_run(command) is None for command in QUICK)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("regimen evaluate RUN --episodes 100", "regimen evaluate RUN --episodes 2"),
        ("regimen collect RUN --out X --steps 10000", "regimen collect RUN --out X --steps 50"),
        ("python benchmarks/startup.py", "python benchmarks/startup.py --repeats 1"),
        ("regimen resume RUN", "regimen resume RUN"),
    ],
)
def test_budgets_are_cut(command, words):
    assert small(command) == words.split()
