"""`regimen doctor`: what is here, what is missing, and the command that gets it. Nothing is changed.

Jax is asked in a process of its own: a broken driver may crash or hang it.
"""

import contextlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from regimen.files.listing import size_of
from regimen.words import plural, size

CORE = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "gymnasium", "rich", "tyro", "pyyaml", "safetensors")
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {  # extra -> modules, what it is for
    "tracking": (("mlflow", "matplotlib"), "runs mirrored into MLflow, models registered"),
    "tensorboard": (("tensorboardX",), "runs as TensorBoard event files: --track tensorboard"),
    "wandb": (("wandb",), "runs in Weights & Biases: --track wandb"),
    "plots": (("matplotlib",), "curves and reports with pictures"),
    "gymnax": (("gymnax",), "environments gymnax:ID"),
    "envpool": (("envpool",), "environments envpool:ID"),
    "gym": (("Box2D",), "Gymnasium's Box2D environments"),
    "ray": (("ray",), "--engine ray: workers on this machine or a cluster"),
    "multi-agent": (("pettingzoo", "mpe2"), "environments pettingzoo:MODULE"),
    "offline": (("minari", "PIL"), "learning from datasets"),
    "atari": (("ale_py",), "Atari games: examples/atari.py"),
    "bluesky": (("bluesky",), "environments bluesky:SCENARIO"),
    "sweep": (("optuna",), "sweeps over settings that change the program"),
    "dashboard": (("fastapi", "uvicorn"), "regimen dashboard: the live page"),
    "export": (("flatbuffers",), "regimen export --format stablehlo"),
    "onnx": (("jax2onnx", "onnxruntime"), "regimen export --format onnx"),
    "docs": (("sphinx", "myst_parser", "furo"), "make docs: the documentation as a site"),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "firefox")
LEAST_DISK, LEAST_MEMORY = 2e9, 1e9
PROBE = """
import json, jax
names = [f"{d.platform}: {d.device_kind}" for d in jax.devices()]
print(json.dumps({"backend": jax.default_backend(), "devices": names}))
"""


@dataclass(frozen=True)
class Check:
    """One line: `ok`, `missing` (optional), `warning` or `error`."""

    name: str
    state: str
    detail: str
    fix: str = ""


def examine(timeout: float = 120.0) -> list[Check]:
    """Everything, in the order in which it is shown."""
    return [*versions(), *devices(timeout), *extras(), *places(), *browser()]


def exit_code(checks: list[Check]) -> int:
    """0 where training works here; what is only missing does not count."""
    return int(any(c.state == "error" for c in checks))


def version_of(name: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def versions() -> Iterator[Check]:
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check("regimen", "ok", version_of("regimen") or "not installed as a package")
    for name in CORE:
        version = version_of(name)
        yield Check(name, "ok", version) if version else Check(name, "error", "not installed", f"pip install {name}")


def devices(timeout: float) -> Iterator[Check]:
    """What jax computes on, and whether a GPU is left unused."""
    fix = "JAX_PLATFORMS=cpu uses the CPU only"
    try:
        process = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        yield Check("devices", "error", f"jax did not answer within {timeout:.0f} s", fix)
        return
    try:
        answer = json.loads(process.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        reason = (process.stderr.strip().splitlines() or ["no output"])[-1]
        fix += "; pip install --force-reinstall jax jaxlib"
        yield Check("devices", "error", f"jax does not start: {reason[:200]}", fix)
        return
    names = answer["devices"]
    text = f"{len(names)} x {names[0]}" if len(set(names)) == 1 else ", ".join(names)
    yield Check("devices", "ok", f"{text}; {os.cpu_count()} CPU cores")
    if answer["backend"] == "cpu" and os.path.exists("/dev/nvidiactl"):
        fix = "unset JAX_PLATFORMS" if os.environ.get("JAX_PLATFORMS") == "cpu" else "pip install 'regimen[cuda]'"
        yield Check("gpu", "warning", "there is an NVIDIA GPU, and jax does not use it", fix)


def extras() -> Iterator[Check]:
    for name, (modules, purpose) in EXTRAS.items():
        missing = [m for m in modules if importlib.util.find_spec(m) is None]
        if missing:
            detail = f"{purpose}; not here: {', '.join(missing)}"
            yield Check(f"extra {name}", "missing", detail, f"pip install 'regimen[{name}]'")
        else:
            yield Check(f"extra {name}", "ok", purpose)


def places() -> Iterator[Check]:
    """The compilation cache, the disk, memory, and whether runs can be written here."""
    cache = cache_dir()
    programs = size_of(cache) if cache.is_dir() else 0
    yield Check("cache", "ok", f"{cache}, {size(programs)} of compiled programs")
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    fix = "regimen runs --sort size, then regimen runs remove RUN"
    yield enough("disk", free, LEAST_DISK, f"{size(free)} free in {here}", fix)
    available = memory_available()
    if available is not None:
        fix = "fewer rollout.num_envs, a smaller algo.buffer_size"
        yield enough("memory", available, LEAST_MEMORY, f"{size(available)} available", fix)
    yield writable(here)


def enough(name: str, amount: float, least: float, detail: str, fix: str) -> Check:
    """The check of an amount that should be at least so large."""
    return Check(name, "ok", detail) if amount >= least else Check(name, "warning", detail, fix)


def cache_dir() -> Path:
    """Where compiled programs are kept; `engines/device.py` decides the same, with jax."""
    if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regimen" / "xla"


def memory_available() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    line = next((x for x in text.splitlines() if x.startswith("MemAvailable:")), None)
    return int(line.split()[1]) * 1024 if line else None


def writable(folder: Path) -> Check:
    """A run directory needs to be written and locked."""
    import fcntl

    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".regimen-doctor-") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                fix = "see to it that only one process writes a run"
                return Check("runs", "warning", f"{folder} is on a file system without locks", fix)
    except OSError as error:
        fix = "cd to a folder of yours, or use --out"
        return Check("runs", "error", f"cannot write in {folder}: {error.strerror}", fix)
    return Check("runs", "ok", f"run directories can be written in {folder / 'runs'}")


def browser() -> Iterator[Check]:
    if path := next(filter(None, map(shutil.which, BROWSERS)), None):
        yield Check("browser", "ok", path)
    else:
        detail = "no browser found; reports and the dashboard need one to be looked at"
        yield Check("browser", "missing", detail, "apt install chromium")


def lines(checks: list[Check]) -> list[str]:
    width = max(len(c.name) for c in checks)
    out = []
    for c in checks:
        out.append(f"{c.state:<8} {c.name:<{width}}  {c.detail}")
        if c.fix:
            out.append(f"{'':<8} {'':<{width}}  -> {c.fix}")
    errors, missing = (sum(c.state == state for c in checks) for state in ("error", "missing"))
    return [*out, f"{plural(errors, 'error')}, {plural(missing, 'optional part')} missing"]
