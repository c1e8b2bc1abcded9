"""A process whose memory is limited says so before XLA would end it without a word."""

import resource
import subprocess
import sys

import pytest

from regimen.engines import device
from regimen.errors import OutOfMemoryError


def test_too_small_an_address_space_is_refused_with_exit_code_7(tmp_path):
    """With 1.2 GB (`ulimit -v 1200000`) the first compilation aborted the process."""
    command = [sys.executable, "-m", "regimen", "train", "cartpole", "--no-track", "--out", str(tmp_path / "run")]

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1_200_000_000, resource.RLIM_INFINITY))

    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("\n") == 1 and "(`ulimit -v`)" in done.stderr and "raise the limit" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("limit", "used", "refused"), [(4e9, 3.5e9, False), (4e9, 3.8e9, True), (2.4e9, 0.4e9, True)])
def test_what_is_left_to_compile_counts(monkeypatch, limit, used, refused):
    monkeypatch.setattr(device, "addresses", lambda: (int(limit), int(used)))
    if refused:
        with pytest.raises(OutOfMemoryError, match="raise the limit"):
            device.require_addresses()
    else:
        device.require_addresses()
        assert device.available_memory(device.jax.devices()[0]) <= limit - used, "batches have to fit into it, too"
