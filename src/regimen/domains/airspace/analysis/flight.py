"""Flying many episodes at once: every configuration is a row of one compiled program that stops when all are over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.airspace.scenario import Scenario
from regimen.domains.airspace.state import AirspaceState
from regimen.envs.protocol import Env
from regimen.sources.play import Actor, play
from regimen.types import Array, PyTree

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

BATCH = 1024  # episodes in the air at once: their states fit the processor's cache, their rows 25 MB
RECORDED = (
    "north",
    "east",
    "heading",
    "tas",
    "cas",
    "ground",
    "command",
    "action",
    "reached",
    "min_sep",
    "waypoint_distance",
    "flown",
    "parts",
)
STARTED = ("present", "waypoint", "altitude")


class Pilot(NamedTuple):
    """Who flies: an actor whose functions are shared by all pilots of its kind, and what is its own in `params`."""

    name: str
    actor: Actor
    params: PyTree = ()


class Rows(NamedTuple):
    """What was flown, as the compiled program leaves it: time first, T = the time limit + 1 rows, row 0 the start."""

    state: dict[str, Array]  # name -> [T, C, N, ...]; zeros after the longest episode
    length: Array  # [C] int32, decisions taken
    scenario: Scenario  # [C, ...] as started


@dataclass
class Flight:
    """Episodes in full detail. C episodes, T rows (the start and one after each decision), N aircraft. Numpy."""

    present: np.ndarray  # [C, N]
    waypoint: np.ndarray  # [C, N, 2] NM (north, east)
    altitude: np.ndarray  # [C, N] ft
    length: np.ndarray  # [C] decisions taken; rows after it repeat nothing and mean nothing
    north: np.ndarray  # [C, T, N] NM
    east: np.ndarray  # [C, T, N] NM
    heading: np.ndarray  # [C, T, N] deg from true north
    tas: np.ndarray  # [C, T, N] kt
    cas: np.ndarray  # [C, T, N] kt
    ground: np.ndarray  # [C, T, N, 2] kt over the ground (north, east)
    command: np.ndarray  # [C, T, N, 2] deg and kt, of the decision that led to this row; row 0 is zero
    action: np.ndarray  # [C, T, N, 2] as the policy gave it
    active: np.ndarray  # [C, T, N] flying at this row and taking a decision there
    reached: np.ndarray  # [C, T, N]
    counts: np.ndarray  # [C, T, N] others must stay away from it: those that fly, and in some settings the finished too
    min_sep: np.ndarray  # [C, T, N] NM, own smallest separation since the row before
    waypoint_distance: np.ndarray  # [C, T, N] NM
    flown: np.ndarray  # [C, T, N] NM over the ground, until the waypoint
    parts: np.ndarray  # [C, T, N, K] reward components of the decision that led to this row

    def episode(self, c: int) -> Flight:
        """One episode, without the rows after its end."""
        stop = int(self.length[c]) + 1
        values = {f.name: getattr(self, f.name)[c : c + 1] for f in fields(self)}
        return Flight(**{k: v if k in (*STARTED, "length") else v[:, :stop] for k, v in values.items()})


def record_of(env: Airspace, state: AirspaceState) -> dict[str, Array]:
    """What is kept of one state."""
    return {n: getattr(state, n) for n in RECORDED} | {"counts": env.counts(state)}


class Fleet:
    """An airspace with as many agents as its scenarios have aircraft, whatever the number in its own one. It has no
    metrics: they are measured from the rows."""

    def __init__(self, env: Airspace, aircraft: int):
        self.env = env
        self.agents = tuple(f"A{i + 1}" for i in range(aircraft))
        self.metric_reductions: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


@partial(jax.jit, static_argnames="actor")
def rollout(env: Airspace, actor: Actor, params: PyTree, scenarios: Scenario, keys: Array) -> Rows:
    """Fly one episode from each scenario [C, ...], with the randomness of its key."""

    def keys_at(t: Array) -> tuple[Array, Array]:
        now = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        return now, now

    fleet = cast(Env, Fleet(env, scenarios.present.shape[1]))  # by its `__getattr__`
    _, _, recording = play(fleet, actor, params, jax.vmap(env.start)(scenarios), keys_at, partial(record_of, env))
    return Rows(recording.rows, recording.length, scenarios)


def episode_keys(key: Array, episodes: np.ndarray) -> Array:
    """A key for each episode number: the same number draws the same noise in every configuration."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(episodes, jnp.uint32))


def chunks(
    env: Airspace,
    pilot: Pilot,
    scenarios: Scenario,
    key: Array,
    *,
    episodes: np.ndarray | None = None,
    size: int | None = None,
) -> Iterator[tuple[slice, Rows]]:
    """Which scenarios, and what was flown from them. All chunks have one size, so that one program serves: the last is
    filled up, and its slice says how many of its rows are real."""
    total = len(scenarios.present)
    episodes = np.arange(total) if episodes is None else np.asarray(episodes)
    size = chunk_size(total) if size is None else size
    for begin in range(0, total, size):
        index = np.minimum(np.arange(begin, begin + size), total - 1)
        part = jax.tree.map(lambda x, index=index: jnp.asarray(np.asarray(x)[index]), scenarios)
        keys = episode_keys(key, episodes[index])
        rows = rollout(env, pilot.actor, pilot.params, part, keys)
        yield slice(begin, min(begin + size, total)), rows


def chunk_size(total: int, batch: int = BATCH) -> int:
    """Episodes in the air at once when so many are flown: equal chunks of at most `batch`."""
    return -(-total // -(-total // batch))


def fly(
    env: Airspace,
    pilot: Pilot | Callable[[PyTree, Array], Array],
    scenarios: Scenario,
    key: Array,
    *,
    episodes: np.ndarray | None = None,
    batch: int = BATCH,
) -> Flight:
    """One episode from each of the stacked scenarios [C, ...], in full detail.

    `pilot` is a `Pilot`, or a function of observations and a key, `act(obs [R, D], key) -> actions [R, 2]`. `episodes`
    [C] numbers the episodes: equal numbers draw equal noise. `batch` episodes are in the air at once.
    """
    if not isinstance(pilot, Pilot):
        pilot = Pilot(getattr(pilot, "__name__", "policy"), rows_actor(pilot))
    size = chunk_size(len(scenarios.present), batch)
    parts = chunks(env, pilot, scenarios, key, episodes=episodes, size=size)
    return joined([flight_of(rows, np.arange(where.stop - where.start)) for where, rows in parts])


def joined(parts: Sequence[Flight]) -> Flight:
    """Flights of one number of aircraft as one, cut after the longest episode."""
    longest = max(int(p.length.max()) for p in parts) + 1

    def column(name: str) -> np.ndarray:
        arrays = [getattr(p, name) for p in parts]
        return np.concatenate([a if name in (*STARTED, "length") else a[:, :longest] for a in arrays])

    return Flight(**{f.name: column(f.name) for f in fields(Flight)})


def rows_actor(function: Callable[[PyTree, Array], Array]) -> Actor:
    """The actor of a function of observations [R, D] and one key."""
    return Actor(lambda env, params, keys, state, obs, mask, memory: (function(obs, keys[0]), memory))


def flight_of_states(env: Airspace, states: Sequence[AirspaceState]) -> Flight:
    """One episode from the state it started in and those after each decision."""
    last = states[-1]
    values = {name: np.stack([np.asarray(getattr(s, name)) for s in states])[None] for name in RECORDED}
    values["counts"] = np.stack([np.asarray(env.counts(s)) for s in states])[None]
    flying = np.asarray(last.scenario.present) & ~values["reached"]
    flying[:, -1] = False
    start = {name: np.asarray(getattr(last.scenario, name))[None] for name in STARTED}
    return Flight(length=np.array([len(states) - 1]), active=flying, **values, **start)


def flying_rows(rows: Rows) -> Array:
    """[T, C, N] whether the aircraft took a decision at the row: present, not at its waypoint, episode not over."""
    going = jnp.arange(rows.state["reached"].shape[0])[:, None] < rows.length
    return going[..., None] & rows.scenario.present & ~rows.state["reached"]


def flight_of(rows: Rows, index: np.ndarray) -> Flight:
    """Some of the episodes of a chunk."""
    values = {name: np.swapaxes(np.asarray(x)[:, index], 0, 1) for name, x in rows.state.items()}
    values["active"] = np.swapaxes(np.asarray(flying_rows(rows))[:, index], 0, 1)
    values |= {name: np.asarray(getattr(rows.scenario, name))[index] for name in STARTED}
    return Flight(length=np.asarray(rows.length)[index], **values)
