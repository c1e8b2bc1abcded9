"""Calibrated and true airspeed in the International Standard Atmosphere."""

from __future__ import annotations

import jax.numpy as jnp

from regimen.domains.airspace.aircraft import KT
from regimen.types import Array

P0, RHO0, T0, GAS = 101_325.0, 1.225, 288.15, 287.05
LAPSE, TROPOPAUSE = 0.0065, 11_000.0  # K/m, m
FEET = 0.3048


def air(altitude: Array) -> Array:
    """Pressure (Pa) and density (kg/m^3) at an altitude in ft: [..., 2]."""
    h = jnp.asarray(altitude) * FEET
    t = T0 - LAPSE * jnp.minimum(h, TROPOPAUSE)
    above = jnp.exp(-9.80665 / (GAS * t) * jnp.maximum(h - TROPOPAUSE, 0.0))
    rho = RHO0 * (t / T0) ** 4.25685 * above
    return jnp.stack([rho * GAS * t, rho], axis=-1)


def to_tas(cas: Array, air: Array) -> Array:
    """True airspeed in kt from a calibrated one in kt."""
    p, rho = air[..., 0], air[..., 1]
    y = 1.0 + (RHO0 / (7 * P0)) * jnp.square(cas * KT)
    q = P0 * (y**3 * jnp.sqrt(y) - 1.0)
    return jnp.sqrt(7 * p / rho * jnp.expm1(2 / 7 * jnp.log1p(q / p))) / KT


def to_cas(tas: Array, air: Array) -> Array:
    """Calibrated airspeed in kt from a true one in kt."""
    p, rho = air[..., 0], air[..., 1]
    y = 1.0 + rho / (7 * p) * jnp.square(tas * KT)
    q = p * (y**3 * jnp.sqrt(y) - 1.0)
    return jnp.sqrt(7 * P0 / RHO0 * jnp.expm1(2 / 7 * jnp.log1p(q / P0))) / KT
