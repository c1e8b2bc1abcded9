"""Flying many episodes at once: every configuration is a row of one compiled program that stops when all are over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.airspace.analysis.detector import namespace
from regimen.domains.airspace.state import Scenario
from regimen.envs.protocol import Env
from regimen.sources.play import Actor, play
from regimen.types import Array, PyTree

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

BATCH = 1024  # episodes in the air at once: their states fit the processor's cache, their rows 25 MB


class Pilot(NamedTuple):
    """Who flies: an actor whose functions are shared by all pilots of its kind, and what is its own in `params`."""

    actor: Actor
    params: PyTree = ()


class Flights(NamedTuple):
    """C episodes in full detail: T rows (the start and one after each decision) of N aircraft. Arrays of jax, as the
    compiled program leaves them, or of numpy."""

    state: dict[str, Any]  # field of `AirspaceState` -> [T, C, N, ...]; rows after the end of an episode mean nothing
    length: Any  # [C] int32, decisions taken
    scenario: Scenario  # [C, ...] as started

    @property
    def flying(self) -> Any:
        """[T, C, N] whether an aircraft took a decision at the row: present, not at its waypoint, episode not over."""
        reached = self.state["reached"]
        going = namespace(reached).arange(reached.shape[0])[:, None] < self.length
        return going[..., None] & self.scenario.present & ~reached

    def take(self, index: slice | np.ndarray) -> Flights:
        """Some of the episodes, in numpy."""
        state = {name: np.asarray(x)[:, index] for name, x in self.state.items()}
        return Flights(state, *jax.tree.map(lambda x: np.asarray(x)[index], self[1:]))

    def episode(self, c: int) -> Flights:
        """One episode without the rows after its end, in numpy."""
        one = self.take(slice(c, c + 1))
        return one._replace(state={name: x[: one.length[0] + 1] for name, x in one.state.items()})

    def single(self, n: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The rows of the first episode and n aircraft [T, N, ...], and which of them are flown until the waypoint."""
        state = {name: x[:, 0, :n] for name, x in self.state.items()}
        before = np.concatenate([np.zeros_like(state["reached"][:1]), state["reached"][:-1]])
        return state, np.asarray(self.scenario.present)[0, :n] & ~before


class PaddedAirspace:
    """An airspace with as many agents as its scenarios have aircraft, whatever the number in its own one. It has no
    metrics: they are measured from the flights."""

    def __init__(self, env: Airspace, aircraft: int):
        self.env = env
        self.agents = tuple(f"A{i + 1}" for i in range(aircraft))
        self.metric_reductions: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


@partial(jax.jit, static_argnames="actor")
def rollout(env: Airspace, actor: Actor, params: PyTree, scenarios: Scenario, keys: Array) -> Flights:
    """Fly one episode from each scenario [C, ...], with the randomness of its key."""

    def keys_at(t: Array) -> tuple[Array, Array]:
        now = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        return now, now

    padded = cast(Env, PaddedAirspace(env, scenarios.present.shape[1]))  # by its `__getattr__`
    recording = play(padded, actor, params, jax.vmap(env.start)(scenarios), keys_at, env.recorded).recording
    return Flights(recording.rows, recording.length, scenarios)


def chunk_size(total: int) -> int:
    """Episodes in the air at once when so many are flown: equal chunks of at most `BATCH`."""
    return -(-total // -(-total // BATCH))


def chunks(
    env: Airspace,
    pilot: Pilot,
    scenarios: Scenario,
    key: Array,
    *,
    episodes: np.ndarray | None = None,
    size: int | None = None,
) -> Iterator[tuple[slice, Flights]]:
    """Fly one episode from each of the scenarios [C, ...]: which of them, and what was flown from them.

    `episodes` [C] numbers the episodes: equal numbers draw equal noise, in every configuration. All chunks have one
    size, so that one program serves: the last is filled up, and its slice says how many of its episodes are real.
    """
    total = len(scenarios.present)
    numbers = np.arange(total) if episodes is None else np.asarray(episodes)
    size = chunk_size(total) if size is None else size
    for begin in range(0, total, size):
        index = np.minimum(np.arange(begin, begin + size), total - 1)
        part = jax.tree.map(lambda x, index=index: jnp.asarray(np.asarray(x)[index]), scenarios)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(numbers[index], jnp.uint32))
        yield slice(begin, min(begin + size, total)), rollout(env, pilot.actor, pilot.params, part, keys)
