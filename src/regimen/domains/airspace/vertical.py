"""Climbing and descending (`env.vertical`): how altitudes follow commands, and when two are apart by them.

An altitude moves as BlueSky's autopilot moves it: at 1,500 ft/min, which is reached in steps of 300 ft/min each second,
and it takes the commanded value as soon as that is a second away.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from regimen.types import Array, Scalar

RATE = 1500.0  # ft/min
GAIN = 300.0  # ft/min that the rate changes by in a second
STEP = 250.0  # ft of a full action: what 1,500 ft/min make of a decision
DEADBAND = 50.0  # ft below which a command is none
MINUTE = 60.0  # s
AHEAD = 30.0  # s for which rates are believed to last
SCALE = 1000.0  # ft


class Level(NamedTuple):
    """Altitudes of an episode, [N] each."""

    altitude: Array  # ft
    rate: Array  # ft/min
    target: Array  # ft, commanded
    start: Array  # ft, the level that it should be at


def begin(altitude: Array) -> Level:
    """Level flight."""
    return Level(altitude, jnp.zeros_like(altitude), altitude, altitude)


def command(action: Array) -> Array:
    """The change of altitude in ft that a normalised action commands, small ones dropped."""
    change = STEP * action
    return jnp.where(jnp.abs(change) < DEADBAND, 0.0, change)


def aim(level: Level, change: Array, band: Scalar) -> Level:
    """The level with the altitude that a change commands; none is a command to hold the present one."""
    return level._replace(target=jnp.clip(level.altitude + change, level.start - band, level.start + band))


def second(level: Level) -> Level:
    """One second on."""
    away = level.target - level.altitude
    climbs = jnp.abs(away) > 1.05 * jnp.maximum(RATE, jnp.abs(level.rate)) / MINUTE
    wanted = jnp.where(climbs, jnp.sign(away) * RATE, 0.0)
    change = wanted - level.rate
    rate = jnp.where(jnp.abs(change) > GAIN, level.rate + jnp.sign(change) * GAIN, wanted)
    return level._replace(altitude=jnp.where(climbs, level.altitude + rate / MINUTE, level.target), rate=rate)


def separated(altitude: Array, feet: Scalar) -> Array:
    """Which pairs are at least `feet` apart in altitude: [N] -> [N, N]."""
    return jnp.abs(altitude[:, None] - altitude[None, :]) >= feet


def predicted(above: Array, rate: Array, time: Array) -> Array:
    """How far above the other one will be, ft, after `time` s at a difference of rates that lasts for AHEAD s."""
    return above + rate * jnp.minimum(time, AHEAD) / MINUTE


def closeness(above: Array, feet: Scalar) -> Array:
    """1 within half the vertical separation, 0 beyond one and a half."""
    return jnp.clip(1.5 - jnp.abs(above) / feet, 0.0, 1.0)
