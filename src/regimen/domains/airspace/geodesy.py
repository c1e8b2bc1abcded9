"""Latitude and longitude to a local plane and back. Jax-free, float64.

The plane is an azimuthal equidistant map about the scenario's centre: distances in it agree with the haversine's to
1 part in 10,000 within 60 NM. True north is not the map's north away from the centre's meridian: at `east` NM it is
turned by `convergence(center) * east`, which the dynamics add to a heading.
"""

import math
from typing import NamedTuple

RADIUS = 3440.065  # NM


class Center(NamedTuple):
    lat: float  # deg
    lon: float
    alt_ft: float = 10_000.0


def from_latlon(center: Center, lat: float, lon: float) -> tuple[float, float]:
    """Convert latitude and longitude to (north, east) in NM."""
    a, b, d = math.radians(center.lat), math.radians(lat), math.radians(lon - center.lon)
    x = math.cos(b) * math.sin(d)
    y = math.cos(a) * math.sin(b) - math.sin(a) * math.cos(b) * math.cos(d)
    z = math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(d)
    side = math.hypot(x, y)
    scale = RADIUS * (math.atan2(side, z) / side if side > 0 else 1.0)
    return scale * y, scale * x


def to_latlon(center: Center, north: float, east: float) -> tuple[float, float]:
    """Convert (north, east) in NM to (lat, lon) in degrees."""
    a, c = math.radians(center.lat), math.hypot(north, east) / RADIUS
    if c == 0.0:
        return center.lat, center.lon
    cos_b, sin_b = north / (RADIUS * c), east / (RADIUS * c)
    lat = math.asin(math.cos(c) * math.sin(a) + math.sin(c) * math.cos(a) * cos_b)
    lon = math.atan2(math.sin(c) * sin_b, math.cos(c) * math.cos(a) - math.sin(c) * math.sin(a) * cos_b)
    return math.degrees(lat), center.lon + math.degrees(lon)


def convergence(center: Center) -> float:
    """How far true north turns per NM to the east, in degrees; to the west of the map's north where positive."""
    return math.degrees(math.tan(math.radians(center.lat)) / RADIUS)


def haversine(lat_1: float, lon_1: float, lat_2: float, lon_2: float) -> float:
    """Great-circle distance in NM."""
    a, b = math.radians(lat_1), math.radians(lat_2)
    h = math.sin((b - a) / 2) ** 2
    h += math.cos(a) * math.cos(b) * math.sin(math.radians(lon_2 - lon_1) / 2) ** 2
    return 2 * RADIUS * math.asin(math.sqrt(min(h, 1.0)))
