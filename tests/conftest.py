"""Shared by all tests: the CPU, no MLflow store but those a test names, and the helpers of `support.py`."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs of tests are compiled more often than they are run: compile them quickly (2.5 times as fast) and
# keep them, for the other workers, for the processes that tests start and for the next time.
QUICKLY = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # later ones end the process at a flag that they no longer have
    QUICKLY += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICKLY)
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "regimen" / "tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ["PBS_JOBID"] = "tests"  # a command that a test runs returns when its pictures are there, too (`waits`)
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ.pop("MLFLOW_TRACKING_URI", None)
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def compilation_cache():
    """Programs are compiled once for all tests, as they are for a user's runs."""
    from regimen.engines import device

    device.configure("cpu", native=True)


LIMITS = {"long": 900, "slow": 7200}  # seconds, where a test says nothing else; the others' limit is in pyproject.toml


def pytest_collection_modifyitems(items):
    """Long and slow tests have a time limit too."""
    for item in items:
        for marker, seconds in LIMITS.items():
            if item.get_closest_marker(marker) and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(seconds))


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Forget compiled programs when there are many: a process that runs out of mappings crashes within XLA, and workers
    that keep gigabytes of programs leave no memory to the processes that tests start."""
    yield
    if "jax" in sys.modules:
        import jax

        from regimen.engines import device

        device.forget_programs()
        pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
        if pages * os.sysconf("SC_PAGE_SIZE") > 2.5e9:
            jax.clear_caches()


@pytest.fixture
def without_plots(monkeypatch):
    """A run's pictures take longer than a tiny run; tests/analysis and the end-to-end tests draw them."""
    monkeypatch.setattr("regimen.runs.delivery.try_plot_run", lambda path: ([], None))
    monkeypatch.setattr("regimen.runs.delivery.try_leave_replay", lambda path: ([], None))
