"""Random scenarios, drawn inside the compiled program: `airspace/random`, and the jitter of any start.

Families: `chase` (in trail, in one or two lanes), `cross` (through one or two points), `streams` (two lines in trail
that cross), `merge` (to one or two waypoints), `head_on` (pairs that face each other), `free` (all in conflict with the
first, by the angle of the tracks, and distance and time at the closest approach); `sector` (any number, spread evenly,
each on a route of its own), which is what more than 12 aircraft fly in. Which aircraft has which place
changes from episode to episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from regimen.domains.airspace import dynamics, pairs
from regimen.domains.airspace.aircraft import TYPES
from regimen.domains.airspace.files import SEPARATION
from regimen.domains.airspace.library import START
from regimen.domains.airspace.state import Scenario
from regimen.types import Array

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

SPEED, ALTITUDE = 250.0, 10_000.0
FEW = 12  # aircraft for which the other families are made; more of them fly in a sector
WIDEN = 1.6  # a scene whose starts are too close grows by up to this factor; who is then still too close is left out
SHRINK = (1.0, 0.6, 0.3, 0.0)  # a jitter that brings starts too close is taken back in these steps


class Routes(NamedTuple):
    """Starts and goals of N aircraft, NM: [N] each."""

    north: Array
    east: Array
    goal_north: Array
    goal_east: Array


def draw(env: Airspace, key: Array) -> Scenario:
    """A scenario of `env.family`, turned, mirrored, with between `env.min_aircraft` and `env.aircraft` aircraft."""
    n = env.aircraft
    key_scene, key_each, key_kind = jax.random.split(key, 3)
    u = jax.random.uniform(key_scene, (16,))  # of the scene
    w = jax.random.uniform(key_each, (6, n))  # of each aircraft
    number = env.min_aircraft + jnp.floor(u[0] * (n - env.min_aircraft + 1)).astype(jnp.int32)
    index = jnp.arange(n)
    flip = jnp.where(u[1] < 0.5, -1, 1)
    place = jnp.where(index < number, jnp.mod(flip * index + jnp.floor(u[2] * number).astype(jnp.int32), number), index)
    cas = SPEED + env.speed_spread * (2 * w[0] - 1)
    altitude = jnp.full(n, ALTITUDE)
    tas = dynamics.to_tas(cas, dynamics.air(altitude))

    if env.family == "any":
        scenes = [make(env, u, w, place, number, tas) for make in FAMILIES.values()]
        which = jnp.floor(u[3] * len(scenes)).astype(jnp.int32)
        if n > FEW:
            scenes.append(sector(env, u, w, place, number, tas))
            which = jnp.where(number > FEW, len(FAMILIES), which)
        scene = Routes(*(jnp.stack(rows)[which] for rows in zip(*scenes)))
    else:
        scene = (FAMILIES | {"sector": sector})[env.family](env, u, w, place, number, tas)
    if env.rotate:
        scene = turn(scene, 2 * jnp.pi * u[4], jnp.where(u[5] < 0.5, -1.0, 1.0))

    present = index < number
    gaps = pairs.separation(pairs.park(scene.north, present), scene.east)
    grow = jnp.clip(1.01 * START / jnp.min(gaps), 1.0, WIDEN)
    scene = Routes(*(grow * x for x in scene))
    present = present & apart(scene.north, scene.east, present)
    heading = jnp.arctan2(scene.goal_east - scene.east, scene.goal_north - scene.north) / dynamics.DEGREE
    kind = jax.random.randint(key_kind, (n,), 0, len(TYPES)) if env.types else jnp.zeros(n, jnp.int32)
    return Scenario(
        present=present,
        north=scene.north,
        east=scene.east,
        heading=jnp.mod(heading, 360.0),
        cas=cas,
        altitude=altitude,
        kind=kind,
        waypoint=jnp.stack([scene.goal_north, scene.goal_east], axis=-1),
        wind=jnp.zeros((n, 2)),
        delay=jnp.zeros((), jnp.int32),
        speed_bounds=jnp.ones(2),
        convergence=jnp.zeros(()),
    )


def between(u: Array, low: float, high: float) -> Array:
    return low + (high - low) * u


def along(north: Array, east: Array, angle: Array, back: Array, on: Array) -> Routes:
    """Routes from `back` NM before a point to `on` NM beyond it, in the direction of `angle` (rad)."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    return Routes(north - back * c, east - back * s, north + on * c, east + on * s)


def groups(u: Array, place: Array, number: Array) -> tuple[Array, Array, Array]:
    """Split aircraft into one or two groups: (which one, -1 or 1; 0 when there is one; place in it; its size)."""
    two = (u < 0.4) & (number > 2)
    side = jnp.where(two, 2.0 * (place % 2) - 1.0, 0.0)
    return side, jnp.where(two, place // 2, place), jnp.where(two, (number + 1) // 2, number)


def chase(env: Airspace, u: Array, w: Array, place: Array, number: Array, tas: Array) -> Routes:
    side, row, _ = groups(u[6], place, number)
    east = side * between(u[7], 5.0, 10.0)
    start = row * between(u[8], 5.6, 9.0) + between(w[1], 0.0, 0.8) - 6.0
    return Routes(-start, east, jnp.full_like(start, 1.0) * between(u[9], 14.0, 24.0), east)


def cross(env: Airspace, u: Array, w: Array, place: Array, number: Array, tas: Array) -> Routes:
    side, member, size = groups(u[6], place, number)
    even = jnp.where(u[7] < 0.5, 2 * jnp.pi / size, jnp.pi / 2)
    angle = member * even + between(w[1], -0.35, 0.35)
    back = between(u[8], 9.0, 20.0) + between(w[2], -1.5, 1.5) + 7.0 * (member // 4)
    off = between(w[3], -1.0, 1.0) * between(u[10], 0.5, 3.0)
    east = side * between(u[9], 9.0, 14.0)
    on = 2.0 + between(w[4], 0.0, 18.0) * u[11]
    return along(-off * jnp.sin(angle), east + off * jnp.cos(angle), angle, back, on)


def streams(env: Airspace, u: Array, w: Array, place: Array, number: Array, tas: Array) -> Routes:
    """Two lines of aircraft in trail whose tracks cross."""
    line, row = place % 2, place // 2
    angle = line * between(u[6], 0.5, 2.6)
    back = between(u[7], 9.0, 18.0) + line * between(u[8], -4.0, 4.0) + row * between(u[9], 5.6, 9.0)
    off = between(w[1], -0.5, 0.5)
    back, on = back + between(w[2], 0.0, 0.8), between(w[3], 8.0, 22.0)
    return along(-off * jnp.sin(angle), off * jnp.cos(angle), angle, back, on)


def merge(env: Airspace, u: Array, w: Array, place: Array, number: Array, tas: Array) -> Routes:
    side, member, size = groups(u[6], place, number)
    step = jnp.minimum(between(u[7], 8.0, 30.0), 150.0 / size) * dynamics.DEGREE
    angle = (member - (size - 1) / 2) * step + jnp.where((side > 0) & (u[8] < 0.6), jnp.pi, 0.0)
    back = jnp.maximum(between(u[9], 18.0, 50.0), 1.1 * START / (2 * jnp.sin(step / 2)) + 1.0)
    back = back + between(w[1], -1.0, 1.0) * between(u[10], 0.0, 4.0)
    return along(between(w[2], -0.3, 0.3), side * between(u[11], 10.0, 16.0), angle, back, 0.0 * w[3])


def head_on(env: Airspace, u: Array, w: Array, place: Array, number: Array, tas: Array) -> Routes:
    pair, way = place // 2, place % 2
    lanes = (number + 1) // 2
    lane = (pair - (lanes - 1) / 2) * between(u[6], 6.0, 14.0) + between(w[1], -1.5, 1.5)
    back = between(u[7], 9.0, 20.0) + between(w[2], -1.0, 1.0)
    return along(jnp.zeros_like(lane), lane, jnp.pi * way, back, between(w[3], 9.0, 20.0))


def free(env: Airspace, u: Array, w: Array, place: Array, number: Array, tas: Array) -> Routes:
    """The aircraft at place 0 flies north through the origin; each other one meets it at its own time."""
    v = tas / dynamics.HOUR  # NM/s
    first = place == 0
    lead = jnp.sum(jnp.where(first, v, 0.0))
    side = jnp.where(w[1] < 0.5, -1.0, 1.0)
    angle = jnp.where(first, 0.0, side * between(w[2], env.angle_low, env.angle_high) * dynamics.DEGREE)
    vn, ve = v * jnp.cos(angle) - lead, v * jnp.sin(angle)  # relative to the first
    speed = jnp.maximum(jnp.sqrt(vn * vn + ve * ve), 1e-3)
    time = jnp.maximum(between(w[3], env.time_low, env.time_high), 1.1 * START / speed)
    time = jnp.where(first, between(u[6], 0.3, 0.7) * env.time_high, time)
    away = between(w[4], env.distance_low, env.distance_high) * jnp.where(w[1] < 0.25, -1.0, 1.0)
    away = jnp.where(first, 0.0, jnp.where(w[1] > 0.75, -away, away))
    began = jnp.sum(jnp.where(first, time, 0.0))  # when the first one is at the origin
    north = lead * (time - began) - away * ve / speed  # where each is at its closest approach
    east = away * vn / speed
    return along(jnp.where(first, 0.0, north), jnp.where(first, 0.0, east), angle, v * time, between(w[5], 8.0, 20.0))


def sector(env: Airspace, u: Array, w: Array, place: Array, number: Array, tas: Array) -> Routes:
    """Traffic of a whole sector: starts spread over a disc whose area grows with the number of aircraft, each with a
    route of 25 to 45 NM in a direction of its own."""
    radius = env.spacing * jnp.sqrt(place + w[2])  # the disc of all has an area of `spacing`^2 pi for each
    bearing = 2.399963 * place + 2 * jnp.pi * u[6] + between(w[1], -0.4, 0.4)  # golden angle: evenly spread
    course = 2 * jnp.pi * w[3]
    north, east = radius * jnp.cos(bearing), radius * jnp.sin(bearing)
    return along(north, east, course, jnp.zeros_like(radius), between(w[4], 25.0, 45.0))


FAMILIES = {make.__name__: make for make in (chase, cross, streams, merge, head_on, free)}


def turn(scene: Routes, angle: Array, mirror: Array) -> Routes:
    """The scene mirrored and then turned about its centre."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    ends = ((scene.north, scene.east), (scene.goal_north, scene.goal_east))
    return Routes(*(x for n, e in ends for x in (n * c - mirror * e * s, n * s + mirror * e * c)))


def apart(north: Array, east: Array, present: Array) -> Array:
    """Which aircraft may start: each that is `START` away from all earlier ones that may."""
    gaps = pairs.separation(north, east)
    keep, n = jnp.zeros_like(present), north.shape[0]

    def admit(i: int | Array, keep: Array) -> Array:
        return keep.at[i].set(present[i] & jnp.all(~keep | (gaps[i] >= START)))

    if n > FEW:  # a loop that is not unrolled: its program does not grow
        return jax.lax.fori_loop(0, n, admit, keep)
    for i in range(n):
        keep = admit(i, keep)
    return keep


def wind(key: Array, strongest: Array | float) -> Array:
    """A uniform wind of any direction and at most so strong, kt (north, east)."""
    direction, strength = jax.random.uniform(key, (2,))
    angle = 2 * jnp.pi * direction
    return strongest * strength * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def jitter(key: Array, scenario: Scenario, position: float, heading: float, speed: float) -> Scenario:
    """Starts moved, turned and sped up by up to so many NM, deg and kt; never to within 5.1 NM of each other."""
    n = scenario.north.shape[0]
    noise = jax.random.uniform(key, (4, n), minval=-1.0, maxval=1.0)
    share = jnp.array(SHRINK)[:, None]
    norths, easts = scenario.north + share * position * noise[0], scenario.east + share * position * noise[1]
    parked = pairs.park(norths, scenario.present)
    gaps = jax.vmap(lambda a, b: jnp.min(pairs.separation(a, b)))(parked, easts)
    good = (gaps >= START).at[-1].set(True)
    chosen = jnp.argmax(good)  # the largest share that keeps them apart
    return scenario.replace(
        north=norths[chosen],
        east=easts[chosen],
        heading=jnp.mod(scenario.heading + heading * noise[2], 360.0),
        cas=scenario.cas + speed * noise[3],
    )


def no_op_separation(scenario: Scenario) -> Array:
    """Smallest separation in NM if everybody flies straight on, until one of a pair reaches its waypoint; []"""
    heading, air = scenario.heading, dynamics.air(scenario.altitude)
    cas = jnp.clip(scenario.cas, *dynamics.speed_limits(scenario.kind, scenario.speed_bounds))
    tas = dynamics.to_tas(cas, air)
    ground = dynamics.velocity(heading, tas, scenario.east, scenario.wind, scenario.convergence) / dynamics.HOUR  # NM/s
    gap = scenario.waypoint - jnp.stack([scenario.north, scenario.east], axis=-1)
    until = jnp.sum(gap * ground, axis=-1) / jnp.sum(ground * ground, axis=-1)  # abeam of the waypoint
    until = jnp.maximum(jnp.minimum(until[:, None], until[None, :]), 0.0)
    dn, de = scenario.north[None, :] - scenario.north[:, None], scenario.east[None, :] - scenario.east[:, None]
    v = ground[None, :, :] - ground[:, None, :]
    t = -(dn * v[..., 0] + de * v[..., 1]) / jnp.maximum(jnp.sum(v * v, axis=-1), 1e-9)
    t = jnp.clip(t, 0.0, until)
    miss = jnp.hypot(dn + v[..., 0] * t, de + v[..., 1] * t)
    both = scenario.present[None, :] & scenario.present[:, None] & ~jnp.eye(miss.shape[0], dtype=bool)
    return jnp.min(jnp.where(both, miss, pairs.FAR))


def loses_separation(scenario: Scenario) -> Array:
    """Whether doing nothing leads to a loss of separation: the label of a drawn scenario."""
    return no_op_separation(scenario) < SEPARATION
