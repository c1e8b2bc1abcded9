"""The Ray cluster of a run: one started for it on this machine, reachable from this machine only, or one to join.

The rest of the package sees `Cluster`; Ray is imported when one is made.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from regimen.config import trust
from regimen.config.schema import EngineConfig
from regimen.errors import ConfigError, LostProcessError

LEAST_STORE = 256 * 2**20  # bytes of shared memory; taken only as it is used
LONGEST = 40  # characters of a temporary folder: the path of a socket below it has to fit into 107
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # Ray's name for "not only on this machine's own address"
OWNER = ".regimen"  # in a temporary folder: locked by the process that made it, for as long as it lives
VITAL = ("raylet", "gcs_server")  # a call into one that is gone ends this process at once, without a word
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def require_ray() -> None:
    """Refuse where Ray is not installed, before anything is made."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("engine: Ray is not installed; `pip install 'regimen[ray]'`, or use --engine local")


class Cluster:
    """Ray for one run. `stop` ends what `start` started, and leaves alone what was there before."""

    def __init__(self, config: EngineConfig, store_bytes: int):
        self.config, self.store_bytes = config, max(store_bytes, LEAST_STORE)
        self.folder: TemporaryFolder | None = None  # of a cluster of our own
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {}  # of a cluster of our own, by their kind
        self.started = False
        self.undo_printing: Callable[[], None] = lambda: None

    def start(self) -> str:
        """Connect to the Ray cluster and return its address for the log."""
        import ray

        if ray.is_initialized():  # by the program around this run, which goes on using it
            return "the Ray cluster of this program"
        self.undo_printing = print_to_stderr(self.config.verbose)
        with kept_signals(), environment(QUIET), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # Ray's processes are other programs
            if self.config.address is None:
                self.start_own()
            else:
                self.join(self.config.address)
        self.started = True
        return "this machine" if self.config.address is None else f"the Ray cluster at {self.config.address}"

    def start_own(self) -> None:
        import ray

        self.folder = TemporaryFolder()
        cpus = max(os.cpu_count() or 1, self.config.workers * max(self.config.cpus, 1.0))
        with loopback():
            ray.init(
                address="local",
                num_cpus=int(cpus),
                num_gpus=0,  # they are the learner's
                include_dashboard=False,
                log_to_driver=self.config.verbose,
                logging_level=logging.ERROR,
                object_store_memory=self.store_bytes,
                _temp_dir=self.folder.path,
                _system_config={"prestart_worker_first_driver": False},
            )
        from ray._private import worker

        node: Any = worker._global_node
        self.processes = {kind: [p.process for p in parts] for kind, parts in node.all_processes.items()}

    def join(self, address: str) -> None:
        trust.require_address(address)
        import ray

        try:
            ray.init(address=address, log_to_driver=self.config.verbose, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as e:
            reason = " ".join(str(e).split())[:200]
            raise ConfigError(f"engine.address: no Ray cluster answers at '{address}': {reason}") from e

    def require(self) -> None:
        """Refuse to go on once a process that Ray cannot do without has ended."""
        if gone := self.gone():
            raise LostProcessError(
                f"engine: {gone} of Ray has ended, and every worker with it; it may have been killed for lack of memory"
            )

    def gone(self) -> str | None:
        return next((kind for kind in VITAL for p in self.processes.get(kind, ()) if p.poll() is not None), None)

    def kill(self) -> None:
        """End the processes of a cluster of our own, and those that they have started."""
        running = [p for parts in self.processes.values() for p in parts if p.poll() is None]
        for pid in [pid for p in running for pid in descendants(p.pid)]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for p in running:
            p.kill()
        for p in running:
            p.wait()

    def stop(self) -> None:
        if self.started:
            import ray

            if self.gone():  # asked to end by itself, Ray would wait for it, or end this process
                self.kill()
            with contextlib.suppress(Exception):
                ray.shutdown()
            self.started = False
        self.undo_printing()
        self.forget()

    def abandon(self) -> None:
        """End what `start` has started, in a process that is about to be ended."""
        self.kill()
        self.forget()

    def forget(self) -> None:
        """Remove the folder of a cluster of our own, whose processes have ended."""
        folder, self.folder, self.processes = self.folder, None, {}
        if folder is not None:
            folder.remove()


class TemporaryFolder:
    """A folder for Ray's sockets and logs. Whatever ends the process that made it, the next one removes it."""

    def __init__(self) -> None:
        base = tempfile.gettempdir()
        base = base if len(base) < LONGEST else "/tmp"
        for path in Path(base).glob("regimen-*"):
            remove_orphan(path)
        self.path = tempfile.mkdtemp(prefix="regimen-", dir=base)
        self.owner = claim(Path(self.path) / OWNER, "x")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self.owner is not None:
            self.owner.close()


def claim(path: Path, mode: str) -> IO[bytes] | None:
    """The file, locked until it is closed or the process ends; None where another process has it."""
    import fcntl

    file = open(path, mode + "b")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def remove_orphan(path: Path) -> None:
    """Remove a temporary folder whose process has ended."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or path.stat().st_uid != os.getuid() or not (path / OWNER).is_file():
            return
        owner = claim(path / OWNER, "r")
        if owner is not None:
            shutil.rmtree(path, ignore_errors=True)
            owner.close()


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have, as far as they can be seen."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    below = [pid]
    for one in below:
        below += [child for child, parent in parents.items() if parent == one]
    return below[1:]


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables that the processes started within inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def loopback() -> Iterator[None]:
    """Ray listens on 127.0.0.1 only. It reads the variable when it is imported, which may have been earlier."""
    from ray._private import ray_constants as constants

    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        with environment({LOOPBACK: "0"}):
            yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def kept_signals() -> Iterator[None]:
    """`ray.init` takes SIGTERM for itself; a run saves before it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_to_stderr(verbose: bool) -> Callable[[], None]:
    """What Ray prints of its workers goes to standard error, because `--json` owns standard output, and only where
    asked for: the fleet says itself that a worker died. Returns what undoes it; Ray has no setting for this."""
    from ray._private import worker

    original: Any = worker.print_to_stdstream

    def show(data: dict[str, str], ignore_prefix: bool = False) -> None:
        if verbose:
            original({**data, "is_err": True}, ignore_prefix)

    worker.print_to_stdstream = show
    return lambda: setattr(worker, "print_to_stdstream", original)
