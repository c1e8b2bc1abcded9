"""Learning from a dataset: an engine without an environment, and where its data comes from.

Offline, an update is `rollout.steps` gradient steps, and they are what the clock's steps count. Everything above the
engine (evaluation on the real environment, checkpoints, stopping rules, files) is the same as online.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import make_algorithm, spec_of
from regimen.config.regimen import Regimen
from regimen.config.schema import TrainConfig
from regimen.engines.base import Engine, Limits, Progress
from regimen.engines.chunk import CompiledEngine, Turn, finite
from regimen.envs.registry import EnvHandle
from regimen.errors import StorageError
from regimen.sources import dataset
from regimen.sources.dataset import Data
from regimen.sources.replay import Replay, Ring
from regimen.types import Array, EpisodeRows, PyTree, State


def no_episodes(components: int) -> EpisodeRows:
    """The episodes of an update that plays none."""
    none = jnp.zeros(0, jnp.int32)
    return EpisodeRows(jnp.int32(0), none, none, jnp.zeros((0, components)), none, jnp.zeros(0, bool), {})


class OfflineEngine(CompiledEngine):
    """K learners on one dataset, in one program. The data is an argument of it, shared by all."""

    def __init__(
        self,
        algo: Algorithm,
        data: Data,
        steps: int,
        seeds: list[int],
        init: Callable[[Array], State],
        digest: str = "",
    ):
        super().__init__(algo, len(seeds))
        self.data = data
        self.steps = steps  # gradient steps of an update
        self.digest = np.frombuffer(bytes.fromhex(digest), np.uint8)  # of the data, saved with every state
        states = [init(jax.random.fold_in(jax.random.key(seed), 0)) for seed in seeds]
        self.place(self.stack([self.with_statistics(state) for state in states]), ())

    @property
    def inputs(self) -> PyTree:
        return self.data

    def turn(self, algo: Any, inputs: Data, state: State, carry: PyTree) -> Turn:
        """So many gradient steps on the data."""
        new, metrics = algo.fit(state, inputs, self.steps)
        steps, episodes = jnp.int32(self.steps), jnp.int32(0)
        new = new.replace(clock=state.clock.advance(steps, episodes))
        return Turn(
            state=new,
            carry=carry,
            finite=finite(metrics, new),
            steps=steps,
            ended=episodes[None],
            metrics=metrics,
            episodes=no_episodes(len(algo.bound.spec.reward_components)),
        )

    def with_statistics(self, state: State) -> State:
        """A normaliser of observations is that of the data, from the start."""
        if "obs" not in state.norm:
            return state
        rows = self.data.rows
        return state.replace(norm=state.norm | {"obs": self.algo.bound.inputs.statistics(rows.obs, rows.valid)})

    def snapshot(self, k: int) -> PyTree:
        return super().snapshot(k) | {"data": self.digest}

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        self.require_same_data(arrays, what)
        super().restore(k, arrays, what)

    def require_same_data(self, arrays: dict[str, np.ndarray], what: str) -> None:
        if not np.array_equal(arrays.get("data", ()), self.digest):
            raise StorageError(f"{what} was trained on other data: the dataset has changed since, or is another one")


def make_engine(
    config: TrainConfig,
    regimen: Regimen,
    handle: EnvHandle,
    seeds: list[int],
    make_online: Callable[..., Engine],
    adopt: Callable[[State], State],
) -> Engine:
    """The engine of a configuration with a dataset. `make_online` makes the one of the same configuration without."""
    data = dataset.read(config.data)
    dataset.require_fit(data, handle)
    algo = make_algorithm(config.algorithm, config.algo, config.network).bind(spec_of(handle))
    about = data.describe()
    rows = dataset.on_device(data, algo.bound.dist, algo.gamma)
    algo_config: Any = config.algo
    engine: Any = OfflineEngine(algo, rows, regimen.n, seeds, lambda key: adopt(algo.init(key)), about["sha256"])
    notes, online = [data.summary()], config.common.online_steps
    if online:
        assert config.total_steps is not None  # validation
        if algo_config.lagrange is None:
            algo_config = dataclasses.replace(algo_config, min_q_weight=algo_config.online_q_weight)
        bare = config.replace(data=None, algo=algo_config)
        engine = FineTuneEngine(engine, partial(make_online, bare, handle, seeds), config.total_steps - online)
        notes.append(f"after {engine.switch:,} steps it goes on online for {online:,}")
    engine.notes, engine.about, engine.regimen = tuple(notes), {"data": about}, regimen
    return engine


class FineTuneEngine(Engine):
    """Offline until `switch` steps, then online: from the offline state, with the data in the replay."""

    def __init__(self, offline: OfflineEngine, make_online: Callable[..., Engine], switch: int):
        super().__init__(offline.algo, offline.learners)
        self.offline = offline
        self.make_online = make_online
        self.switch = switch
        self.now: Engine = offline
        self.steps = [0] * self.learners

    @property
    def compiling(self) -> bool:
        return self.now.compiling

    @property
    def compile_seconds(self) -> float:
        return self.offline.compile_seconds + (0.0 if self.now is self.offline else self.now.compile_seconds)

    def advance(self, limits: list[Limits]) -> list[Progress]:
        if self.now is self.offline:
            rest = [self.switch - steps for steps in self.steps]
            if not any(n > 0 for n, limit in zip(rest, limits) if limit.updates):
                self.go_online([self.offline.at(self.offline.state, k) for k in range(self.learners)])
            else:
                limits = [x.replace(steps=min(x.steps, n)) for x, n in zip(limits, rest)]
        progress = self.now.advance(limits)
        self.steps = [steps + int(p.steps.sum()) for steps, p in zip(self.steps, progress)]
        return progress

    def go_online(self, states: list[State] | None = None) -> None:
        """Make the online engine; without states it waits to be restored."""
        online: Any = self.make_online()
        if states is not None:
            fresh = [online.at(online.state, k) if self.learners > 1 else online.state for k in range(self.learners)]
            replay, data = online.algo.bound.replay, self.offline.data
            states = [with_data(old, new, replay, data) for old, new in zip(states, fresh)]
            online.state = jax.device_put(self.offline.stack(states), may_alias=False)
        self.now = online

    def snapshot(self, k: int) -> PyTree:
        mark = {"data": self.offline.digest, "switch": np.int32(self.switch)}
        return self.now.snapshot(k) | mark

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        assert self.learners == 1, "learners that go on online resume one by one"
        rest = {name: x for name, x in arrays.items() if name != "switch"}
        self.switch = int(arrays["switch"])
        if "state/aux/ring/count" not in arrays:
            self.offline.restore(k, rest, what)
        else:
            self.offline.require_same_data(rest, what)
            self.go_online()
            del rest["data"]
            self.now.restore(k, rest, what)
        clock = self.now.state.clock  # type: ignore[attr-defined]
        self.steps = [(int(clock.steps_high) << 30) + int(clock.steps_low)]

    def actor_params(self, k: int) -> PyTree:
        return self.now.actor_params(k)

    def close(self) -> None:
        self.now.close()


def with_data(state: State, fresh: State, replay: Replay, data: Data) -> State:
    """The offline state with a replay that begins with the data: as many whole rollouts as fit, the newest. A column
    ends as if it were cut, because what is written behind it is another episode."""
    columns = replay.columns
    per = min(data.steps // columns // replay.rows * replay.rows, replay.capacity)

    def block(x: Array) -> Array:
        return x[data.steps - per * columns :, 0].reshape(columns, per, *x.shape[2:]).swapaxes(0, 1)

    rows = jax.tree.map(block, data.rows)
    if per:
        rows = rows.replace(truncated=rows.truncated.at[-1].set(~rows.terminated[-1]))
    if fresh.replay.mask is not None and rows.mask is None:
        everything = jnp.ones((per, columns, fresh.replay.mask.shape[-1]), bool)
        rows = rows.replace(mask=everything, next_mask=everything)
    written = jax.tree.map(lambda b, x: b.at[:per].set(x.astype(b.dtype)), fresh.replay, rows)
    place = jnp.full(replay.workers, per, jnp.int32)
    return state.replace(aux=state.aux | {"ring": Ring(place % replay.capacity, place)}, replay=written)
