"""Training within a time, for the benchmarks of empowerment: how many steps fit is measured first."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import jax

from regimen.config.layers import build_config
from regimen.config.schema import TrainConfig
from regimen.domains.empowerment.study import of_length
from regimen.engines.base import Limits
from regimen.envs import registry
from regimen.runs.build import make_engine

PILOT = 3  # updates, of which the last is timed
RESERVE = 1.15  # of the measured time of an update


@dataclass
class Trained:
    """What came of a training."""

    config: TrainConfig
    algo: Any
    state: Any
    env_steps: int
    training_steps: int
    seconds: float

    @property
    def params(self) -> Any:
        return {name: m.params for name, m in self.state.models.items()}

    def words(self) -> dict[str, float]:
        return {"env_steps": self.env_steps, "training_steps": self.training_steps, "seconds": round(self.seconds, 1)}


def trained(
    world: str, env_args: dict[str, Any], settings: dict[str, Any], seed: int, seconds: float, fit: bool = True
) -> Trained:
    """Train for `total_steps` of the settings, or as many as fit in these seconds; without `fit` it
    just ends then. Stages are shares of the length."""
    begun = time.monotonic()
    wanted = int(settings["total_steps"])
    per_update = engine_steps(world, env_args, settings, seed, wanted)
    steps = wanted
    if fit and math.isfinite(seconds):
        engine = made(world, env_args, settings, seed, wanted)[1]
        for _ in range(PILOT):
            before = time.monotonic()
            engine.advance([Limits(1)])
        each = (time.monotonic() - before) * RESERVE
        left = seconds - 2 * (time.monotonic() - begun)  # it is compiled again
        steps = min(wanted, max(PILOT, int(left / each)) * per_update)
        print(f"  {each:.3f} s for an update: {steps // per_update} updates of {wanted // per_update}", flush=True)
    config, engine = made(world, env_args, settings, seed, steps)
    updates, done = max(1, steps // per_update), 0
    while done < updates and time.monotonic() - begun < seconds:
        done += engine.advance([Limits(max(1, min(updates - done, updates // 8)))])[0].updates
    state = engine.at(engine.state, 0)
    training = int(state.aux["training_steps"]) if "training_steps" in state.aux else 0
    return Trained(config, engine.algo, state, done * per_update, training, time.monotonic() - begun)


def made(
    world: str, env_args: dict[str, Any], settings: dict[str, Any], seed: int, steps: int
) -> tuple[TrainConfig, Any]:
    """The configuration and the engine for so many env steps."""
    settings = dict(settings) | {"total_steps": steps}
    algo = settings.pop("algorithm", "empowerment")
    if algo == "empowerment":
        plain = {n[5:]: v for n, v in settings.items() if n.startswith("algo.")}
        ratio = plain.get("training_steps_per_env_step", 0.25)
        whole = of_length(max(64, int(steps * ratio)), plain) | plain | {"training_steps_per_env_step": ratio}
        whole["horizon"] = f"{steps} steps"
        settings |= {f"algo.{name}": value for name, value in whole.items()}
    config = build_config(world, algo=algo, overrides=settings | {"env_args": env_args})
    handle = registry.resolve(config.env, config.env_args)
    return config, make_engine(config, handle, [seed], lambda: False)


def engine_steps(world: str, env_args: dict[str, Any], settings: dict[str, Any], seed: int, steps: int) -> int:
    """Env steps of one update."""
    settings = {n: v for n, v in settings.items() if n != "algorithm" and not n.startswith("algo.")}
    config = build_config(world, algo="empowerment", overrides=settings | {"total_steps": steps})
    return int(settings.get("rollout.steps") or config.rollout.steps or 0)


def devices() -> dict[str, float]:
    """Most memory that this process had, on the host and on a GPU, in MiB."""
    import resource

    out = {"host_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    stats = jax.devices()[0].memory_stats()
    return out | ({"device_MiB": stats["peak_bytes_in_use"] / 2**20} if stats else {})
