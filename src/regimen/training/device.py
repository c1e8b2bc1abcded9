"""Where to train, how much memory it takes, and the compilation cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from regimen import spaces
from regimen.errors import ConfigError, OutOfMemoryError
from regimen.types import PyTree

REDUCE = "reduce rollout.num_envs, rollout.steps or rollout.episodes, or set algo.micro_batch_size"


def configure(device: str, native: bool) -> str:
    """Choose the platform before anything is computed, and say which and why. The compilation cache goes on."""
    if device == "cpu" or (device == "auto" and not native):
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # a policy call per host step: 24 us against 41
    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    try:
        platform = jax.default_backend()
    except RuntimeError as e:
        raise ConfigError(f"device: no usable device: {str(e).splitlines()[0]}") from e
    if device == "gpu" and platform == "cpu":
        raise ConfigError("device: no GPU is visible to jax; install 'regimen[cuda]' or use --device cpu")
    name = jax.devices()[0].device_kind
    if platform == "cpu":
        why = "asked for" if device == "cpu" else "host environments feed small networks" if not native else "no GPU"
        return f"cpu, {os.cpu_count()} cores ({why})"
    return f"{platform}: {name}"


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "regimen" / "xla"


def tree_bytes(tree: PyTree) -> int:
    """Bytes of arrays or of their shapes."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree) if hasattr(x, "dtype"))


def batch_bytes(observation_space: Any, steps: int, episodes: int, copies: float) -> int:
    """About what the batches of one learner take. Nothing is allocated to know it.

    A row holds an observation and its successor as they are, the observation as network input, and a dozen numbers
    (action, reward, flags, advantage, target, value); `copies` of it exist at once. An episode row is 128 bytes.
    """
    row = 2 * tree_bytes(spaces.zeros(observation_space)) + 4 * (spaces.flat_size(observation_space) + 16)
    return int(steps * row * copies) + 128 * episodes


def available_memory(device: Any) -> int | None:
    """Bytes free on an accelerator, or on this machine."""
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0) if "bytes_limit" in stats else None
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def require_memory(needed: int) -> None:
    """Refuse before allocating what cannot fit."""
    free = available_memory(jax.devices()[0])
    if free is not None and needed > free:
        raise OutOfMemoryError(
            f"this schedule needs about {needed / 1e9:,.1f} GB and {free / 1e9:.1f} GB are free; {REDUCE}"
        )


def size(count: float) -> str:
    """Bytes in words: `1.5 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit != "MB" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
