"""Collision risk of the flown traffic by a model of Reich's type, with every input measured. See
docs/airspace_safety.md for the formula and for what the number is not.

    N = sum over same and opposite direction of P_y P_z (lx / Sx) E (|dx| / 2 lx + |dy| / 2 ly + |dz| / 2 lz)

in accidents per flight hour, two for each collision.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from regimen.domains.airspace.analysis.detector import Array, Tracks, namespace

METRE = 1 / 1852  # NM


@dataclass(frozen=True)
class Reich:
    """Sizes of an aircraft (A320) and of the neighbourhood in which encounters are counted."""

    length_nm: float = 37.6 * METRE
    width_nm: float = 35.8 * METRE
    height_nm: float = 11.8 * METRE
    along_nm: float = 10.0  # Sx: pairs closer than this along the track are an encounter
    across_nm: float = 5.0  # Sy: within it, the density of cross-track distances is taken as even
    vertical: float = 1.0  # P_z: all fly at one level
    climb_kt: float = 0.0  # |dz|: nobody climbs


REICH = Reich()
DIRECTIONS = ("same", "opposite")
KINDS = ("encounter_h", "overlap_h", "along_nm", "across_nm")
ENCOUNTER_SUMS = ("flight_h", *(f"{what}_{d}" for d in DIRECTIONS for what in KINDS))


def encounter_sums(tracks: Tracks, period_s: float = 10.0, model: Reich = REICH) -> dict[str, Array]:
    """Sums over each episode from which the risk follows, sampled at every decision of tracks [N, ..., T].

    An encounter is counted in the frame of each of its two aircraft: x along the own ground track, y to the right of
    it. `encounter_h` is the time of |x| < Sx, `overlap_h` that of |x| < Sx and |y| < Sy, `along_nm` and `across_nm` the
    integrals of |dx/dt| and |dy/dt| over the latter.
    """
    xp = namespace(tracks.north)
    t, hours = tracks, period_s / 3600.0
    speed = xp.maximum(xp.sqrt(t.v_north * t.v_north + t.v_east * t.v_east), 1e-3)
    cos, sin = t.v_north / speed, t.v_east / speed
    out = {"flight_h": t.flying.sum((0, -1)) * hours}
    i, j = np.array(list(permutations(range(t.flying.shape[0]), 2)), np.int32).reshape(-1, 2).T
    north, east = t.north[j] - t.north[i], t.east[j] - t.east[i]
    vn, ve = t.v_north[j] - t.v_north[i], t.v_east[j] - t.v_east[i]
    c, s = cos[i], sin[i]
    near = t.flying[i] & t.flying[j] & (xp.abs(north * c + east * s) < model.along_nm)
    overlap = near & (xp.abs(east * c - north * s) < model.across_nm)
    along, across = xp.abs(vn * c + ve * s), xp.abs(ve * c - vn * s)
    same = t.v_north[j] * c + t.v_east[j] * s > 0

    def total(x: Array) -> Array:
        return x.sum((0, -1)) * hours

    for name, which in zip(DIRECTIONS, (same, ~same)):
        inside = overlap & which
        out[f"encounter_h_{name}"] = total(near & which)
        out[f"overlap_h_{name}"] = total(inside)
        out[f"along_nm_{name}"] = total(xp.where(inside, along, 0.0))
        out[f"across_nm_{name}"] = total(xp.where(inside, across, 0.0))
    return out


def risk(sums: Mapping[str, np.ndarray], model: Reich = REICH) -> dict[str, np.ndarray]:
    """The estimate and its inputs from sums (of one configuration, or of many resamples of it); NaN where nobody flew.

    The sums count each pair twice, once from each aircraft: that is the 2 of an accident for both of them.
    """
    hours = np.asarray(sums["flight_h"], np.float64)
    out: dict[str, np.ndarray] = {}
    total = np.zeros_like(hours)
    for d in DIRECTIONS:
        near, within, along, across = (np.asarray(sums[f"{what}_{d}"], np.float64) for what in KINDS)
        occupancy = ratio(near, hours)  # E
        lateral = ratio(within, near, empty=0.0) * model.width_nm / model.across_nm  # P_y
        dx, dy = ratio(along, within, empty=0.0), ratio(across, within, empty=0.0)  # kt
        kernel = dx / (2 * model.length_nm) + dy / (2 * model.width_nm) + model.climb_kt / (2 * model.height_nm)
        total = total + lateral * model.vertical * model.length_nm / model.along_nm * occupancy * kernel
        out |= {f"occupancy_{d}": occupancy, f"lateral_overlap_{d}": lateral, f"along_kt_{d}": dx, f"across_kt_{d}": dy}
    return out | {"collision_risk_per_h": np.where(hours > 0, total, np.nan)}


def ratio(over: np.ndarray, under: np.ndarray, empty: float = np.nan) -> np.ndarray:
    """over / under, and `empty` where there is nothing to divide by."""
    some = under > 0
    return np.where(some, over / np.where(some, under, 1.0), empty)
