"""Ray runs as processes: what they start, what they print, and that nothing of it is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from support import command_line, status

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc"),
    pytest.mark.timeout(240),
]
TESTS = Path(__file__).parents[1]
LISTENING = "0A"


class Command:
    """Python in a process group of its own; its descendants are known by a variable they inherit."""

    def __init__(self, *argv: str):
        self.mark = f"REGIMEN_TEST={uuid.uuid4()}"
        self.folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # of its own: other tests start clusters, too
        name, _, value = self.mark.partition("=")
        environment = {**os.environ, name: value, "PYTHONUNBUFFERED": "1", "TMPDIR": str(self.folder)}
        environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def pids(self) -> set[int]:
        found = set()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    if self.mark.encode() in (folder / "environ").read_bytes():
                        found.add(int(folder.name))
                except OSError:
                    continue
        return found

    def wait_for(self, ready, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not ready():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end, "it did not get there"
            time.sleep(0.1)

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err

    def assert_nothing_left(self) -> None:
        end = time.monotonic() + 10
        while self.pids() and time.monotonic() < end:
            time.sleep(0.1)
        assert self.pids() == set()
        assert list(self.folder.glob("regimen-*")) == []
        shutil.rmtree(self.folder, ignore_errors=True)


def train(env: str, *flags: str, **settings) -> Command:
    return Command("-m", "regimen", "train", env, *flags, *command_line(engine="ray", **settings))


def addresses(pids: set[int]) -> set[str]:
    """Where these processes listen for connections, as hexadecimal addresses."""
    sockets = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(fd)
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == LISTENING and cells[9] in sockets:
                found.add(cells[1].partition(":")[0])
    return found


@pytest.mark.long
def test_a_run_from_the_command_line(tmp_path):
    """Only the summary on standard output, only this machine can connect, and everything is gone afterwards."""
    run = tmp_path / "run"
    settings = {"workers": 2, "total_steps": 4 * 32, "out": str(run), "env.pause": 0.02}
    command = train("ray_envs:Fragile", "--json", **settings)
    command.wait_for(lambda: (run / "workers.csv").exists())
    pids = command.pids()
    assert len(pids) > 3  # Ray's own, and a worker or two
    assert addresses(pids) <= {"0100007F", "0000000000000000FFFF00000100007F"}
    code, out, err = command.finish()
    assert code == 0, err
    assert json.loads(out)["restarts"] == 0 and json.loads(out)["workers"] == 2
    assert "2 Ray workers on this machine; an update when all have delivered their share" in err
    command.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(tmp_path, number, code):
    """Ctrl+C reaches the whole group, SIGTERM one process; the state is saved either way, also while one hangs."""
    run = tmp_path / "run"
    settings = {"workers": 2, "total_steps": 10**7, "out": str(run), "env.folder": str(tmp_path)}
    command = train("ray_envs:Fragile", **settings)
    command.wait_for(lambda: (run / "progress.csv").exists())
    (tmp_path / "hang").touch()
    command.wait_for(lambda: not (tmp_path / "hang").exists())
    (os.killpg if number == signal.SIGINT else os.kill)(command.process.pid, number)
    assert command.finish()[0] == code
    assert status(run)["state"] == "interrupted" and list((run / "checkpoints").glob("*/meta.json"))
    command.assert_nothing_left()


@pytest.mark.slow
def test_stall_and_verbose(tmp_path):
    """A stall names the worker and what it waits for; `--verbose` shows what environments print."""
    run = tmp_path / "run"
    settings = {"workers": 2, "total_steps": 10**7, "out": str(run), "env.folder": str(tmp_path)}
    settings |= {"engine.step_timeout": 9.0, "stop.max_seconds": 30}
    command = train("ray_envs:Fragile", "--verbose", "--env.chatty", "true", **settings)
    command.wait_for(lambda: (run / "progress.csv").exists())
    (tmp_path / "hang").touch()
    code, out, err = command.finish()
    assert code == 0, err
    assert "has been in step() for" in out and "waiting for worker" in out
    assert "replaced (1 of 10 restarts)" in out
    assert "(Worker pid=" in err and "(Worker pid=" not in out
    command.assert_nothing_left()


@pytest.mark.slow
def test_no_cluster_at_the_address(tmp_path):
    command = train("cartpole", address="auto", out=str(tmp_path / "run"))
    code, _, err = command.finish()
    assert code == 3 and "engine.address: no Ray cluster answers at 'auto'" in err
    assert status(tmp_path / "run")["state"] == "failed"


NODES = """
import os, sys
from ray.cluster_utils import Cluster
import regimen
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
other = cluster.add_node(num_cpus=1)
left = []
def leave(info):
    if info["update"] == 3:
        cluster.remove_node(other)
        cluster.add_node(num_cpus=1)
        left.append(1)
result = regimen.train("ray_envs:Fragile", engine="ray", workers=2, address=cluster.address, callback=leave,
    track=False, total_steps=20 * 32, out=sys.argv[1],
    **{"rollout.steps": 32, "rollout.num_envs": 4, "eval.every": "never", "eval.episodes": 2, "preset": "balanced"})
print(left, result.summary["restarts"], result.summary["updates"], (result.run_dir / "log.txt").read_text())
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_node_that_leaves(tmp_path):
    """Two nodes, and a third when the second leaves: its worker is replaced there."""
    command = Command("-c", NODES, str(tmp_path / "run"))
    code, out, err = command.finish()
    assert code == 0, err
    assert "[1] 1 20" in out and "replaced (1 of 10 restarts)" in out
    command.assert_nothing_left()
