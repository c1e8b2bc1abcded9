"""The registered environments: `named.head_on` is `Airspace(scenario="head_on")`, made when asked for."""

from __future__ import annotations

from regimen.envs.airspace.env import Airspace
from regimen.envs.airspace.files import NAMES


def __getattr__(name: str) -> Airspace:
    if name not in (*NAMES, "mixed", "random"):
        raise AttributeError(name)
    return Airspace(scenario=name)
