"""Which settings of the airspace cannot be, and what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regimen.domains.airspace import ONLY_CLEAN, generator
from regimen.domains.airspace.files import MAX_DELAY, load
from regimen.errors import ConfigError, nearest

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

FORMS = {"observation": ("clean", "compat", "set"), "reward": ("clean", "compat")}


def refuse(env: Airspace) -> None:
    """Raise an error about fields that cannot be."""
    for name, forms in FORMS.items():
        if (value := getattr(env, name)) not in forms:
            raise ConfigError(f"env.{name}: '{value}' is not one of {', '.join(forms)}{nearest(value, forms)}")
    if env.family not in (families := ("any", *generator.FAMILIES, "sector")):
        raise ConfigError(f"env.family: '{env.family}'{nearest(env.family, families)}")
    if env.aircraft < 2:
        raise ConfigError(f"env.aircraft: {env.aircraft} is out of range; it must be at least 2")
    if env.aircraft > generator.FEW and env.family in generator.FAMILIES:
        raise ConfigError(
            f"env.family: a {env.family} has at most {generator.FEW} aircraft, not env.aircraft {env.aircraft}; "
            "take sector, or any"
        )
    if not 2 <= env.min_aircraft <= env.aircraft:
        raise ConfigError(f"env.min_aircraft: {env.min_aircraft} is out of range; it must be 2 to env.aircraft")
    if env.neighbors < 1:
        raise ConfigError(f"env.neighbors: {env.neighbors} is out of range; it must be at least 1")
    if env.observation == "set" and env.neighbors != type(env).neighbors:
        raise ConfigError("env.neighbors: without effect with env.observation set, which shows all others")
    far = env.observation_range
    if isinstance(far, (int, float)) and env.observation != "set" and far != type(env).observation_range:
        raise ConfigError("env.observation_range: without effect unless env.observation is set")
    if not 0 <= env.action_delay <= MAX_DELAY:
        raise ConfigError(f"env.action_delay: {env.action_delay} is out of range; it must be 0 to {MAX_DELAY}")
    for name in ONLY_CLEAN if env.reward == "compat" else ():
        value = getattr(env, name)
        if isinstance(value, (int, float)) and value != type(env).__dataclass_fields__[name].default:
            raise ConfigError(
                f"env.{name}: {value:g} has no effect with env.reward compat, whose amounts are its own; leave it "
                "out, or use env.reward clean"
            )
    refuse_distances(env)
    refuse_levels(env)
    if env.scenario not in ("mixed", "random"):
        load(env.scenario)


def refuse_levels(env: Airspace) -> None:
    """Raise an error about settings of altitude that cannot be."""
    names = ("separation_ft", "level_band", "level_cost")
    if not env.vertical:
        for name in names:
            value = getattr(env, name)
            if isinstance(value, (int, float)) and value != type(env).__dataclass_fields__[name].default:
                raise ConfigError(f"env.{name}: without effect unless env.vertical is true")
    elif "compat" in (env.observation, env.reward):
        raise ConfigError("env.vertical: compat knows no altitude; take env.observation and env.reward clean")
    elif isinstance(env.separation_ft, (int, float)) and env.separation_ft <= 0:
        raise ConfigError(f"env.separation_ft: {env.separation_ft:g} is out of range; it must be above 0")


def refuse_distances(env: Airspace) -> None:
    """Raise an error about distances that cannot be; they may also be data of a compiled program."""
    if not all(isinstance(value, (int, float)) for value in (env.separation_nm, env.collision_nm)):
        return
    if env.separation_nm <= 0:
        raise ConfigError(f"env.separation_nm: {env.separation_nm:g} is out of range; it must be above 0")
    if not 0 <= env.collision_nm <= env.separation_nm:
        raise ConfigError(f"env.collision_nm: {env.collision_nm:g} is out of range; it must be 0 to env.separation_nm")
