"""Making the engine that trains a configuration: what it needs, and what is refused before anything is made."""

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax

from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import bind_algorithm
from regimen.config.fields import Count
from regimen.config.regimen import Regimen, resolve
from regimen.config.schema import TrainConfig
from regimen.engines import curriculum, device, offline
from regimen.engines.base import LIVING, Engine
from regimen.engines.host import HostEngine
from regimen.engines.multihost import SharedEngine
from regimen.engines.native import NativeEngine
from regimen.engines.ray.cluster import require_ray
from regimen.envs.check import check_env
from regimen.envs.processes import in_processes
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError, EnvError, RegimenError
from regimen.policies.policy import load_frozen
from regimen.schedule import Episodes, Steps
from regimen.sources.host import HostSource
from regimen.sources.scan import Sample, ScanSource
from regimen.types import Array, State

SAMPLED_FROM = 65_536  # env steps of an update from which a GPU hands over a sample of its episodes,
SAMPLED_ROWS = 16  # of so many of each update


def make_engine(
    config: TrainConfig,
    handle: EnvHandle,
    seeds: list[int],
    stop_requested: Callable[[], bool],
    adopt: Callable[[State], State] = lambda state: state,
    variants: list[Any] | None = None,
    sampling: bool = False,
) -> Engine:
    """The engine of this configuration; refused when its batches cannot fit. `adopt` may replace parts of each fresh
    state (`--init-from`). `variants` are hyper-parameters of each learner, which differ from the configuration's only
    in numbers; a native environment is then given. With `sampling` a GPU may hand over a sample of the episodes."""
    if LIVING and gc.get_threshold()[0] > 10_000:  # of a training before, in cycles, which a command seldom looks for
        gc.collect()
    native = handle.native is not None
    recorded = next((name for name in ("trajectories", "alerts") if getattr(config.log, name)), None)
    if recorded and getattr(handle.native, "write_evaluation", None) is None:
        raise ConfigError(
            f"log.{recorded}: {handle.id} does not write trajectories; its class has no `write_evaluation`"
        )
    regimen = resolve(config, native, len(handle.agents), handle.max_episode_steps)
    if config.data is not None:
        make_online = partial(make_engine, stop_requested=stop_requested)
        return offline.make_engine(config, regimen, handle, seeds, make_online, adopt)
    course = curriculum.make(config.curriculum, handle)
    frozen = load_frozen(config, handle.agents)
    algo = bind_algorithm(config, handle, regimen, frozen)
    schedule = Steps(regimen.n) if regimen.kind == "steps" else Episodes(regimen.n)
    if not native and config.devices not in (None, 1):
        raise ConfigError(f"devices: {handle.id} is stepped in Python; several devices need a native environment")
    devices = device.choose(config.devices, regimen.num_envs, algo) if native else jax.local_devices()[:1]
    batches, gradient = memory_needed(config, regimen, handle, algo)
    count = len(seeds)
    device.require_memory(batches * count, gradient * count, replay_needed(algo) * count, devices)

    def init(key: Array, one: Algorithm = algo) -> State:
        return adopt(one.init(key))

    handle = in_processes(handle, config.rollout.processes, regimen.num_envs)
    if config.engine.distributed:
        if course is not None:
            raise ConfigError("curriculum: workers do not follow one; use --engine local")
        if config.rollout.lag:
            raise ConfigError("rollout.lag: workers have a lag of their own; set it to 0")
        require_ray()
        from regimen.engines.ray.engine import RayEngine

        bytes_ahead = (config.engine.queue + 2) * batches
        return RayEngine(config, regimen, handle, algo, seeds[0], init, stop_requested, bytes_ahead, frozen)
    with blaming_the_env(handle):
        if native:
            sample = sample_of(config, handle, regimen, len(devices)) if sampling else None
            source, lag = ScanSource(schedule, regimen.num_envs, sample), config.rollout.lag
            kind_of = SharedEngine if jax.process_count() > 1 else NativeEngine
            each = None if variants is None else [with_config(algo, c) for c in variants]
            engine = kind_of(handle.native, algo, source, seeds, init, course, lag, devices, each)
            engine.regimen = dataclasses.replace(regimen, devices=len(devices))
            if sample is not None:
                engine.notes = (
                    f"episodes.csv: of each update at most {sample.rows} episodes, evenly spaced (it has {regimen.n:,} "
                    "env steps); counts and the means, deviations and extremes of metrics.jsonl are of all episodes",
                )
            return engine
        if config.rollout.lag:
            raise ConfigError(f"rollout.lag: made up on native environments only, and {handle.id} is not; set it to 0")
        source = HostSource.of(handle, schedule, regimen.num_envs, stop_requested)
        engine = HostEngine(algo, source, seeds[0], init)
        engine.regimen = regimen
        return engine


def sample_of(config: TrainConfig, handle: EnvHandle, regimen: Regimen, devices: int) -> Sample | None:
    """Which episodes a GPU hands over: a sample, where more end than anybody reads and no rule needs each."""
    every = devices > 1 or config.curriculum or config.stop.target_return is not None or regimen.kind != "steps"
    if every or jax.default_backend() == "cpu" or regimen.n < SAMPLED_FROM:
        return None
    return Sample(SAMPLED_ROWS, handle.return_threshold)


def with_config(algo: Algorithm, config: Any) -> Algorithm:
    """A bound algorithm with other hyper-parameters, sharing its networks: those may not depend on what changed."""
    return type(algo)(config, algo.network).with_binding(algo.bound)


def memory_needed(config: TrainConfig, regimen: Regimen, handle: EnvHandle, algo: Algorithm) -> tuple[int, int]:
    """About how many bytes one learner's batches take, and what a gradient step keeps between layers of encoders."""
    episodes, c = 4 * regimen.n if regimen.native else regimen.n, config.common
    rows = c.batch_size or min(c.micro_batch_size or regimen.minibatch_size or regimen.most_rows, regimen.most_rows)
    batches = device.batch_bytes(handle.observation_space, algo.bound.inputs, regimen.most_rows, episodes, copies=2.5)
    return batches, rows * algo.bound.activation_bytes()


def replay_needed(algo: Algorithm) -> int:
    """Bytes of one learner's replay; 0 where it has none."""
    return algo.bound.replay_bytes()


@contextlib.contextmanager
def blaming_the_env(handle: EnvHandle) -> Iterator[None]:
    """An error deep in jax whose cause is a native environment that breaks its contract: say which part of it."""
    try:
        yield
    except RegimenError:
        raise
    except Exception as error:
        problems = check_env(handle, steps=8) if handle.native is not None else []
        errors = [p.message for p in problems if p.level == "error"]
        if not errors:
            raise
        raise EnvError(f"{handle.id}: {errors[0]}") from error


def resolve_horizon(config: TrainConfig) -> TrainConfig:
    """Give the schedules their length once; it is saved with the run and a resume does not touch it."""
    if config.common.horizon is not None:
        return config
    if config.total_steps is not None:
        horizon = Count(config.total_steps, "steps")
    elif config.total_episodes is not None:
        horizon = Count(config.total_episodes, "episodes")
    else:
        for name, shape in config.common.moving.items():
            raise ConfigError(f"algo.{name}: '{shape}' has no length; set algo.horizon or a budget")
        return config
    return config.replace(algo=dataclasses.replace(config.algo, horizon=str(horizon)))
