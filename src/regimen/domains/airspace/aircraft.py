"""Aircraft types and their envelopes. Jax-free."""

import math
from typing import NamedTuple

from regimen.errors import ConfigError, nearest

KT = 1852 / 3600  # m/s
GRAVITY = 9.80665


class AircraftType(NamedTuple):
    """Speeds are calibrated (CAS), en route."""

    name: str
    cas_min: float  # kt
    cas_max: float  # kt
    max_accel: float = 1.0  # m/s^2
    bank: float = 25.0  # deg

    @property
    def turn(self) -> float:
        """Turn rate in deg/s times TAS in kt: g tan(bank) / TAS."""
        return math.degrees(GRAVITY * math.tan(math.radians(self.bank))) / KT


LIMITS = {"A320": (67, 163), "B737": (65, 164), "B744": (72, 180), "E190": (64, 159)}  # m/s of OpenAP WRAP
TYPES = tuple(AircraftType(name, low / KT, high / KT) for name, (low, high) in LIMITS.items())
ALIASES = {"B747": "B744", "CRJ9": "E190"}


def index_of(name: str, where: str = "type") -> int:
    """The place of a type in `TYPES`; an unknown one is an error with the nearest name."""
    names = [t.name for t in TYPES]
    kind = ALIASES.get(name, name)
    if kind not in names:
        raise ConfigError(f"{where}: unknown aircraft type '{name}'{nearest(str(name), [*names, *ALIASES])}")
    return names.index(kind)
