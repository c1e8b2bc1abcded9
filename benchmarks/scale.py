"""How the speed of training grows: environments, seeds, width of the networks, devices, beside the machine's limit.

    PYTHONPATH=src python benchmarks/scale.py --axes envs seeds width --out scale.json
    PYTHONPATH=src python benchmarks/scale.py --plot scale.json --to docs/static

CartPole at the benchmark's settings; one axis is varied, the others stay at 2,048 environments (of a CPU 256), one
seed, 64 units. `devices` are virtual ones of a CPU. The limit is that of `gpu.py`: operations or bytes, and of launches
the rate at 64 environments times their number.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness

VALUES = {
    "envs": [64, 256, 1024, 4096, 16384, 65536, 262144],
    "seeds": [1, 2, 4, 8, 16, 32, 64, 128, 256],
    "width": [64, 128, 256, 512, 1024],
    "devices": [1, 2, 4, 8],
}
WORDS = {
    "envs": "environments",
    "seeds": "seeds in one program",
    "width": "units of each layer",
    "devices": "virtual devices",
}


def engine_of(envs: int, seeds: int = 1, width: int = 64, devices: int = 1, steps: int = harness.STEPS) -> Any:
    import jax

    from regimen.algorithms.ppo import PPO
    from regimen.config.schema import NetworkConfig
    from regimen.engines.native import NativeEngine
    from regimen.envs import registry
    from regimen.schedule import Steps
    from regimen.sources.scan import ScanSource
    from regimen.types import Spec

    handle = registry.resolve("cartpole")
    spec = Spec(handle.observation_space, handle.action_space, handle.reward_components, num_envs=envs)
    settings = harness.SETTINGS | {"minibatch_size": envs * steps // harness.MINIBATCHES}
    algo = PPO(network=NetworkConfig(hidden=(width, width)), **settings).bind(spec)
    source = ScanSource(Steps(envs * steps), envs)
    placed = jax.devices()[:devices]
    return NativeEngine(
        handle.native, algo, source, list(range(seeds)), lambda key, algo: algo.init(key), devices=placed
    )


def rate(engine: Any, learners: int, seconds: float) -> dict[str, float]:
    """Env steps per second of all learners together."""
    import jax
    import numpy as np

    from regimen.engines.base import FOREVER, Limits

    engine.prepare()
    start = time.perf_counter()
    program = engine.program.result()
    compiling = time.perf_counter() - start

    def run(updates: int) -> tuple[float, int]:
        many = [np.full(learners, x, np.int32) if learners > 1 else np.int32(x) for x in (updates, FOREVER, FOREVER)]
        start = time.perf_counter()
        out = jax.block_until_ready(program(engine.played, engine.inputs, engine.state, engine.carry, Limits(*many)))
        taken = time.perf_counter() - start
        engine.state, engine.carry = out.state, out.carry
        return taken, int(np.max(out.updates))

    run(1)
    taken, done = run(2)
    updates = max(2, min(128, int(seconds * done / taken)))
    runs = [run(updates) for _ in range(3)]
    best = max(done / taken for taken, done in runs)
    return {"rate": best * engine.source.schedule.n * learners, "compile": compiling, "updates": best}


def measure(args: argparse.Namespace) -> None:
    import gpu
    import jax

    on_gpu = jax.default_backend() == "gpu"
    base = {"envs": args.envs or (2048 if on_gpu else 256)}
    flops, bandwidth = gpu.ceilings()
    out: dict[str, Any] = {"device": jax.devices()[0].device_kind, "flops": flops, "bandwidth": bandwidth, "points": []}
    print(out, flush=True)
    for axis in args.axes:
        for value in VALUES[axis]:
            if args.most and value > args.most:
                continue
            setting = base | {axis: value}
            try:
                found = rate(engine_of(**setting), setting.get("seeds", 1), args.seconds)
            except Exception as error:
                print(axis, value, type(error).__name__, str(error)[:200], flush=True)
                continue
            rows = setting["envs"] * harness.STEPS * setting.get("seeds", 1)
            least = gpu.floor(rows, 4, 2, flops, bandwidth, setting.get("width", 64))
            out["points"].append({"axis": axis, "value": value, "limit": rows / least, **found})
            print(out["points"][-1], flush=True)
            if args.out:
                args.out.write_text(json.dumps(out, indent=1))


def virtual_devices(args: argparse.Namespace) -> None:
    """Each number of devices in a process of its own."""
    points = []
    for value in VALUES["devices"]:
        env = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={value}", "JAX_PLATFORMS": "cpu"}
        code = (
            f"import scale, json; e = scale.engine_of(512, devices={value}); print(json.dumps(scale.rate(e, 1, 1.0)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, cwd=Path(__file__).parent, capture_output=True, text=True
        )
        if done.returncode:
            print(value, done.stderr[-300:])
            continue
        points.append({"axis": "devices", "value": value, **json.loads(done.stdout.splitlines()[-1])})
        print(points[-1], flush=True)
    if args.out:
        args.out.write_text(json.dumps({"device": "CPU", "points": points}, indent=1))


def plot(files: list[Path], folder: Path) -> None:
    """One picture for each axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    data = [json.loads(f.read_text()) for f in files]
    for axis in VALUES:
        sets = [(d, [p for p in d["points"] if p["axis"] == axis]) for d in data]
        if not any(points for _, points in sets):
            continue
        figure, ax = pyplot.subplots(figsize=(5, 3.4))
        for d, points in sets:
            if points:
                x = [p["value"] for p in points]
                ax.plot(x, [p["rate"] for p in points], "o-", label=d["device"])
                if "limit" in points[0]:
                    ax.plot(x, [p["limit"] for p in points], "--", color="0.5", label="operations or bytes")
        ax.set(xscale="log", yscale="log", xlabel=WORDS[axis], ylabel="env steps per second, learning included")
        ax.grid(alpha=0.3)
        ax.legend()
        figure.tight_layout()
        figure.savefig(folder / f"scale_{axis}.png", dpi=110)
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=list(VALUES), default=["envs", "seeds", "width"])
    parser.add_argument("--envs", type=int, help="where another axis is varied")
    parser.add_argument("--most", type=int, help="leave out larger values")
    parser.add_argument("--seconds", type=float, default=1.0, help="per point, about")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path, nargs="+", help="only draw what was measured")
    parser.add_argument("--to", type=Path, default=Path("."))
    args = parser.parse_args()
    if args.plot:
        plot(args.plot, args.to)
    elif args.axes == ["devices"]:
        virtual_devices(args)
    else:
        measure(args)


if __name__ == "__main__":
    main()
