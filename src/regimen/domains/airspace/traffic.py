"""Acting outside the simulation: from what a radar or another simulator says of aircraft to the observations that a
policy was trained with, and from its actions to heading and speed commands.

    policy = regimen.load_policy("runs/first")
    obs = regimen.airspace.observe(lat, lon, heading, speed, waypoint, like=policy)  # [N, D]
    heading, speed = regimen.airspace.commands(heading, speed, policy.act_batch(obs))

The formulas are the environment's own (`observe.show`, `dynamics.aim`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from regimen.domains.airspace import aircraft, dynamics, observe, pairs, vertical
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.geodesy import Center, convergence, from_latlon
from regimen.domains.airspace.pairs import distance
from regimen.errors import ConfigError
from regimen.policies.policy import Policy
from regimen.types import Array, PyTree

Numbers = npt.ArrayLike
Kinds = str | Sequence[str]
PREFIX = "airspace"


def settings(like: Policy | Airspace | None) -> tuple[Airspace, int]:
    """The environment whose forms apply, and how many aircraft it has room for; 0 where any number is as good."""
    if like is None:
        return Airspace(scenario="random"), 0
    if isinstance(like, Airspace):
        return like, len(like.agents)
    name = str(like.meta.get("env", ""))
    if name.partition("/")[0].partition(":")[0] not in (PREFIX, "bluesky"):
        raise ConfigError(f"like: this policy was trained on {name or 'another environment'}, not in the airspace")
    names = {field.name for field in fields(Airspace)} - {"scenario", "aircraft", "min_aircraft"}
    args = {key: value for key, value in like.meta.get("env_args", {}).items() if key in names}
    return Airspace(scenario="random", **args), len(like.agents)


def view(
    env: Airspace,
    lat: Numbers,
    lon: Numbers,
    heading: Numbers,
    speed: Numbers,
    waypoint: Numbers,
    altitude: Numbers = 10_000.0,
    kind: Kinds = "A320",
    finished: Numbers = False,
    wind: Numbers = (0.0, 0.0),
    center: tuple[float, float] | None = None,
    room: int = 0,
    rate: Numbers = 0.0,
    level: Numbers | None = None,
) -> observe.View:
    """The aircraft in the map about `center`, followed by absent ones up to `room`."""
    lats, lons = np.atleast_1d(np.asarray(lat, np.float64)), np.atleast_1d(np.asarray(lon, np.float64))
    n = len(lats)
    size = max(n, room)

    def each(name: str, values: Numbers, shape: tuple[int, ...] = (), fill: float = 0.0) -> np.ndarray:
        array = np.asarray(values)
        if array.shape not in (shape, (n, *shape)):
            raise ConfigError(f"{name}: shape {array.shape} for {n} aircraft; it must be {(n, *shape)} or {shape}")
        array = np.broadcast_to(array, (n, *shape))
        if array.dtype.kind not in "OUSb" and not np.isfinite(array).all():
            raise ConfigError(f"{name}: {array[~np.isfinite(array)][0]} is not a finite number")
        return np.concatenate([array, np.full((size - n, *shape), fill)]) if size > n else np.array(array)

    each("lat", lats)
    each("lon", lons)
    goals = each("waypoint", waypoint, (2,))[:n]
    middle = Center(*((float(lats.mean()), mean_longitude(lons)) if center is None else center[:2]))
    places = np.array([from_latlon(middle, *map(float, x)) for x in zip(lats, lons)])
    goal = np.array([from_latlon(middle, *map(float, x)) for x in goals])
    kinds = [kind] * n if isinstance(kind, str) else list(kind)
    if len(kinds) != n:
        raise ConfigError(f"kind: {len(kinds)} types for {n} aircraft")
    index = np.array([aircraft.index_of(x, "kind") for x in kinds] + [0] * (size - n), np.int32)

    def padded(rows: np.ndarray) -> Array:
        return jnp.asarray(np.concatenate([rows, np.zeros((size - n, 2))]), jnp.float32)

    place, height = padded(places), jnp.asarray(each("altitude", altitude, fill=10_000.0), jnp.float32)
    air = dynamics.air(height)
    cleared = height if level is None else jnp.asarray(each("level", level, fill=10_000.0), jnp.float32)
    turned = jnp.asarray(each("heading", heading) % 360.0, jnp.float32)
    cas = jnp.asarray(each("speed", speed, fill=250.0), jnp.float32)
    tas, turning = dynamics.to_tas(cas, air), jnp.float32(convergence(middle))
    blowing = jnp.asarray(each("wind", wind, (2,)), jnp.float32)
    return observe.View(
        north=place[:, 0],
        east=place[:, 1],
        heading=turned,
        tas=tas,
        cas=cas,
        ground=dynamics.velocity(turned, tas, place[:, 1], blowing, turning),
        waypoint=padded(goal),
        finished=jnp.asarray(each("finished", finished).astype(bool)),
        present=jnp.arange(size) < n,
        kind=jnp.asarray(index),
        speed_bounds=jnp.ones(2),
        convergence=turning,
        altitude=height,
        rate=jnp.asarray(each("rate", rate), jnp.float32),
        level=cleared,
    )


def mean_longitude(lons: np.ndarray) -> float:
    """The mean of longitudes in degrees, also across the date line."""
    angle = np.radians(lons)
    return float(np.degrees(np.arctan2(np.sin(angle).mean(), np.cos(angle).mean())))


@jax.jit
def observation(env: Airspace, now: observe.View, before: observe.View | None, decision: Array) -> PyTree:
    """[N, D] of one moment, and of the decision before where there was one."""
    compat = env.reward == "compat"
    counts = now.present if compat or env.fly_on else now.present & ~now.finished
    away = distance(now.north, now.east, now.waypoint)
    still = jnp.zeros_like(away)
    change = observe.Change(away, still, still)
    if before is not None:
        near, nearer = (pairs.nearest(pairs.separation(pairs.park(x.north, x.present), x.east)) for x in (before, now))
        progress = distance(before.north, before.east, before.waypoint) - away
        change = observe.Change(away, jnp.where(decision > 1, progress, 0.0), nearer - near)
    heights = (now.altitude, now.rate) if env.vertical else None
    table = pairs.relate(now.north, now.east, now.ground, counts, heights, env.separation_ft)
    left = (env.max_episode_steps - decision).astype(jnp.float32)
    return observe.show(env, now, table, left, change)


def observe_traffic(
    lat: Numbers,
    lon: Numbers,
    heading: Numbers,
    speed: Numbers,
    waypoint: Numbers,
    *,
    altitude: Numbers = 10_000.0,
    kind: Kinds = "A320",
    finished: Numbers = False,
    wind: Numbers = (0.0, 0.0),
    decision: int = 0,
    like: Policy | Airspace | None = None,
    center: tuple[float, float] | None = None,
    before: tuple[Numbers, Numbers] | None = None,
    rate: Numbers = 0.0,
    level: Numbers | None = None,
) -> PyTree:
    """What each of N aircraft observes, for `policy.act_batch`: an array [N, D], or a dictionary for a set encoder.

    Args:
        lat: latitudes [N] in degrees.
        lon: longitudes [N] in degrees.
        heading: true headings [N] in degrees.
        speed: calibrated air speeds (CAS) [N] in kt.
        waypoint: latitudes and longitudes of the waypoints [N, 2].
        altitude: in ft.
        kind: a type of aircraft, or one for each.
        finished: who has reached its waypoint.
        wind: motion of the air (north, east) in kt.
        decision: how many decisions of 10 s were taken; policies know how much time is left.
        like: the policy that will act, or an environment.
        center: the middle of the map; by default that of the aircraft.
        before: latitudes and longitudes one decision earlier, which only the `compat` observation needs.
        rate: of climbs in ft/min, which only policies of `env.vertical` observe, as the next one.
        level: the altitude that each should be at, in ft; by default the present one.
    """
    env, room = settings(like)
    if not 0 <= decision <= env.max_episode_steps:
        raise ConfigError(f"decision: {decision} is out of range; it must be 0 to {env.max_episode_steps}")
    compat = env.observation == "compat"
    if compat and env.reward != "compat":
        raise ConfigError(
            "the compat observation with the clean reward shows the smallest separation within a decision, which "
            "positions do not tell; use a policy of env.observation clean, or of env.reward compat"
        )
    if compat and decision and before is None:
        raise ConfigError("before: needed from the first decision on; the compat observation shows what has changed")
    if before is not None and not compat:
        raise ConfigError("before: the clean observation does not look back; leave it out")
    middle = center or (float(np.asarray(lat, np.float64).mean()), mean_longitude(np.asarray(lon, np.float64)))
    rest = (heading, speed, waypoint, altitude, kind, finished, wind, middle, room, rate, level)
    now = view(env, lat, lon, *rest)
    earlier = None if before is None else view(env, *before, *rest)
    out = observation(env, now, earlier, jnp.int32(decision))
    return jax.tree.map(lambda x: np.asarray(x)[: np.size(lat)], out)


def commands(
    heading: Numbers,
    speed: Numbers,
    action: Numbers,
    *,
    kind: Kinds = "A320",
    altitude: Numbers | None = None,
    level: Numbers | None = None,
    band: float = 2000.0,
) -> tuple[np.ndarray, ...]:
    """The headings (deg, true) and speeds (kt CAS) that actions command: the way back from `observe`. Of a policy of
    `env.vertical` also the altitudes (ft), for which it has to know the present ones.

    A change below 3 deg, 3 kt or 50 ft commands nothing, and a speed stays in the type's envelope.

    Args:
        heading: the present true headings [N] in degrees.
        speed: the present calibrated air speeds [N] in kt.
        action: what the policy decided [N, 2], or [N, 3].
        kind: a type of aircraft, or one for each.
        altitude: the present altitudes in ft.
        level: the altitude that each should be at, in ft; by default the present one.
        band: how far in ft a command may lead away from it (`env.level_band`).
    """
    headings, speeds = np.atleast_1d(np.asarray(heading, np.float32)), np.atleast_1d(np.asarray(speed, np.float32))
    n, kinds = len(headings), [kind] * len(headings) if isinstance(kind, str) else list(kind)
    index = jnp.asarray([aircraft.index_of(x, "kind") for x in kinds], jnp.int32)
    moves = jnp.clip(jnp.asarray(action, jnp.float32).reshape(n, -1), -1.0, 1.0)
    if moves.shape[1] not in (2, 3):
        raise ConfigError(f"action: shape {np.shape(action)} for {n} aircraft; it must be {(n, 2)} or {(n, 3)}")
    if (moves.shape[1] == 3) != (altitude is not None):
        raise ConfigError("altitude: given if and only if the policy climbs and descends (env.vertical)")
    change = dynamics.command(moves[:, :2])
    aim = dynamics.aim(jnp.asarray(headings), jnp.asarray(speeds), change, index, jnp.ones(2))
    out = (np.asarray(aim[:, 0]), np.asarray(aim[:, 1]))
    if altitude is None:
        return out
    now = jnp.broadcast_to(jnp.asarray(altitude, jnp.float32), (n,))
    flying = vertical.begin(now)
    if level is not None:
        flying = flying._replace(start=jnp.broadcast_to(jnp.asarray(level, jnp.float32), (n,)))
    return *out, np.asarray(vertical.aim(flying, vertical.command(moves[:, 2]), band).target)
