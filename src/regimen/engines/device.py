"""Where to train, how much memory it takes, and the compilation cache."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from regimen import spaces
from regimen.errors import ConfigError, OutOfMemoryError
from regimen.types import PyTree
from regimen.words import size

if TYPE_CHECKING:
    import gymnasium

    from regimen.algorithms.base import Algorithm
    from regimen.inputs import Inputs

Device = Any  # jax.Device, which is a variable to type checkers

REDUCE = "reduce rollout.num_envs, rollout.steps or rollout.episodes, or set algo.micro_batch_size"
REDUCE_STEP = "reduce algo.minibatch_size (or algo.batch_size), set algo.micro_batch_size, or use smaller images"
LEAST_ADDRESSES = 3e9  # bytes of address space of a process that compiles; with 2.1e9 XLA aborts or crashes
ROOM_TO_COMPILE = 3e8  # bytes of it that are to be free
MOST_MAPPINGS = 25_000  # of memory; Linux allows a process 65,530, and each compiled program takes some


def configure(device: str, native: bool) -> str:
    """Choose the platform before anything is computed, and say which and why. The compilation cache goes on."""
    require_addresses()
    forget_programs()
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


def forget_programs(most: int = MOST_MAPPINGS) -> bool:
    """Forget compiled programs when there are many, and say whether: a process that runs out of memory mappings, after
    some 550 trainings, crashes within XLA. What is needed again is read from the compilation cache."""
    if mappings() <= most:
        return False
    jax.clear_caches()
    gc.collect()
    return True


def mappings() -> int:
    """Memory mappings of this process; 0 where they cannot be counted."""
    try:
        with open("/proc/self/maps", "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def addresses() -> tuple[int, int] | None:
    """Bytes of address space that this process may have (`ulimit -v`) and has; None where it is not limited."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        return limit, int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):
        return None


def require_addresses() -> None:
    """Refuse a process whose address space is too small before it compiles: there, running out of it is a crash."""
    if (space := addresses()) is None:
        return
    limit, used = space
    if limit < LEAST_ADDRESSES or limit - used < ROOM_TO_COMPILE:
        raise OutOfMemoryError(
            f"this process may have {limit / 1e9:.1f} GB of address space (`ulimit -v`), has {used / 1e9:.1f} GB and "
            f"needs {max(LEAST_ADDRESSES, used + ROOM_TO_COMPILE) / 1e9:.1f} GB to compile; raise the limit"
        )


def choose(number: int | None, num_envs: int, algo: Algorithm) -> list[Device]:
    """The devices to train on, each with an equal share of the environments: `number`, or all that can share them."""
    visible = jax.devices()
    if jax.process_count() > 1:
        if number not in (None, len(visible)):
            raise ConfigError(f"devices: {number}, but all {len(visible)} of the processes take part; leave it unset")
        number = len(visible)
    if algo.by_env is None:
        if number not in (None, 1):
            raise ConfigError(f"devices: {type(algo).__name__} learns on one device only (it has no `by_env`); set 1")
        return visible[:1]
    count = number or next(d for d in range(len(visible), 0, -1) if num_envs % d == 0)
    if count > len(visible):
        raise ConfigError(f"devices: {count} are asked for and {len(visible)} are visible")
    if num_envs % count:
        envs = [n for n in (num_envs - num_envs % count, num_envs - num_envs % count + count) if n]
        below = max(d for d in range(1, count) if num_envs % d == 0)
        raise ConfigError(
            f"devices: {num_envs} environments cannot be shared equally by {count} devices; nearest valid: "
            f"rollout.num_envs {' or '.join(map(str, envs))}, or devices {below}"
        )
    return visible[:count]


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "regimen" / "xla"


def tree_bytes(tree: PyTree) -> int:
    """Bytes of arrays or of their shapes."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree) if hasattr(x, "dtype"))


def batch_bytes(space: gymnasium.Space, inputs: Inputs, steps: int, episodes: int, copies: float) -> int:
    """About what the batches of one learner take. Nothing is allocated to know it.

    A row holds an observation and its successor as they are, the observation as network input, and a dozen numbers
    (action, reward, flags, advantage, target, value); `copies` of it exist at once. An episode row is 128 bytes.
    """
    one = spaces.zeros(space)
    row = 2 * tree_bytes(one) + tree_bytes(jax.eval_shape(inputs.read, one)) + 4 * 16
    return int(steps * row * copies) + 128 * episodes


def available_memory(device: Device) -> int | None:
    """Bytes free on an accelerator, or on this machine and within the limit of this process."""
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0) if "bytes_limit" in stats else None
    free = [] if (space := addresses()) is None else [space[0] - space[1]]
    with contextlib.suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(free, default=None)


def require_memory(batches: float, gradient: float, replay: float, devices: list[Device]) -> None:
    """Refuse before allocating what cannot fit, each device with its share: batches, what encoders keep for a gradient,
    and a replay of which two copies exist while it is made. The devices of a CPU have one memory."""
    shares = jax.process_count() if devices[0].platform == "cpu" else len(devices)
    batches, gradient, replay = (x / shares for x in (batches, gradient, replay))
    free = available_memory(jax.local_devices()[0])
    if free is None or batches + gradient + 2 * replay <= free:
        return
    there = f"{free / 1e9:.1f} GB are free"
    if batches + gradient <= free:
        raise OutOfMemoryError(
            f"this replay needs about {size(replay)}, twice that while it is made, and {there}; reduce algo.buffer_size"
        )
    if gradient > batches:
        raise OutOfMemoryError(
            f"a gradient step through the observation's encoders needs about {gradient / 1e9:,.1f} GB and {there}; "
            f"{REDUCE_STEP}"
        )
    raise OutOfMemoryError(f"this schedule needs about {(batches + gradient) / 1e9:,.1f} GB and {there}; {REDUCE}")
