"""What is reported of an episode in the airspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from regimen.domains.airspace import pairs
from regimen.domains.airspace.generator import FEW
from regimen.domains.airspace.state import AirspaceState
from regimen.domains.airspace.vertical import Level
from regimen.envs.metric import Metric
from regimen.types import Array

if TYPE_CHECKING:
    from regimen.domains.airspace.env import Airspace

METRICS = {
    "min_separation": Metric("min", "higher", label="least separation"),
    "los": Metric("max", "lower", "rate", violation=True, label="conflicts"),
    "los_steps": Metric("sum", "lower", "count", label="decisions in conflict"),
    "conflicts": Metric("sum", "lower", "count", label="pairs in conflict"),
    "reached": Metric("last", "higher", "rate", label="arrived"),
    "success": Metric("last", "higher", "rate"),
    "first_los": Metric("last", label="decision of the first conflict"),
    "path_ratio": Metric("last", "lower", label="way flown over the direct one"),
    "interventions": Metric("sum", "lower", "count", label="interventions"),
}
VERTICAL = {"off_level": Metric("mean", "lower", label="off level, ft")}


def measure(
    env: Airspace, state: AirspaceState, after: AirspaceState, separation: Array, alive: Array
) -> dict[str, Array]:
    """The metrics of one decision, which led from `state` to `after`."""
    present, scenario = after.scenario.present, after.scenario
    number = jnp.maximum(jnp.sum(present), 1)
    direct = pairs.distance(scenario.north, scenario.east, scenario.waypoint)
    detour = (after.flown + after.remaining) / jnp.maximum(direct, 1.0)
    lost = jnp.any(after.lost)
    moved = jnp.any(after.command != 0.0, axis=-1) & alive
    values = {
        "min_separation": jnp.min(after.min_sep),
        "los": lost,
        "los_steps": lost,
        "conflicts": jnp.sum(after.lost & ~state.lost) / 2,
        "reached": jnp.sum(after.reached & present) / number,
        "success": (after.first_los < 0) & jnp.all(after.reached | ~present),
        "first_los": after.first_los,
        "path_ratio": jnp.sum(jnp.where(present, detour, 0.0)) / number,
        "interventions": jnp.sum(moved),
    }
    if len(env.agents) <= FEW:
        values |= {f"reached_step_{i + 1}": after.reached_step[i] for i in range(len(env.agents))}
    if isinstance(level := after.level, Level):
        off = jnp.abs(level.altitude - level.start)
        values["off_level"] = jnp.sum(jnp.where(alive, off, 0.0)) / jnp.maximum(jnp.sum(alive), 1)
    return {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
