"""What a scenario is and what happens if nobody does anything: `regimen scenario show`."""

from pathlib import Path

import jax
import numpy as np

from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import SEPARATION, ScenarioFile
from regimen.domains.airspace.state import AirspaceState
from regimen.errors import ConfigError
from regimen.sources.play import Playthrough, baseline_actor, play
from regimen.types import Array


def no_op(env: Airspace) -> tuple[AirspaceState, dict[str, np.ndarray]]:
    """Fly straight on until all have reached their waypoints, or to the limit: the last state, and the rows [T, N, ...]
    of the start and after each decision."""
    keys = jax.random.key(0)[None]

    @jax.jit
    def fly(env: Airspace) -> Playthrough:
        actor = baseline_actor(env.baselines["no_op"])
        return play(env, actor, (), jax.vmap(env.reset)(keys), lambda t: (keys, keys), env.recorded)

    carry, _, recording = jax.device_get(fly(env))
    rows = {name: x[: int(recording.length[0]) + 1, 0] for name, x in recording.rows.items()}
    return jax.tree.map(lambda x: x[0], carry.state), rows


def report(file: ScenarioFile, state: AirspaceState, rows: dict[str, np.ndarray]) -> list[str]:
    """Lines about a scenario and an episode of it without commands."""

    def when(step: Array) -> str:
        return f"step {int(step)}" if step >= 0 else "never"

    rewards = rows["parts"][1:].sum(-1).sum(0)
    lines = [f"{file.name}: {len(file.agents)} aircraft, centre {file.center.lat:g} N {file.center.lon:g} E"]
    lines += [file.notes] if file.notes else []
    lines += ["", "  id    type   heading   speed   altitude   to waypoint   closest   reaches it   return"]
    start = file.arrays()
    for i, agent in enumerate(file.agents):
        direct = float(np.hypot(*(start.waypoint[i] - np.array([start.north[i], start.east[i]]))))
        nearest = f"{rows['min_sep'][:, i].min():.2f} NM" if len(file.agents) > 1 else "alone"
        lines.append(
            f"  {agent.id:<5} {agent.type:<6} {agent.hdg_deg:7.1f} {agent.spd_kt:7.0f} {agent.alt_ft:10.0f} "
            f"{direct:10.1f} NM {nearest:>9} {when(state.reached_step[i]):>12} {rewards[i]:8.1f}"
        )
    return [
        *lines,
        "",
        "Without any command (compat reward, steps of 10 s):",
        f"  start separation      {file.start_separation:.2f} NM",
        f"  minimum separation    {rows['min_sep'].min():.2f} NM",
        f"  below {SEPARATION:g} NM first    {when(state.first_los)}",
        f"  return                {rewards.sum():.1f}",
    ]


def picture(env: Airspace, state: AirspaceState, rows: dict[str, np.ndarray], path: Path) -> Path:
    """Write the starts, and the tracks flown, as a PNG file."""
    try:
        from PIL import Image
    except ImportError as e:
        raise ConfigError("a picture needs pillow; pip install 'regimen[plots]'") from e
    from regimen.domains.airspace.render import draw

    start, _ = env.start(state.scenario)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw(env, start, (rows["north"], rows["east"]))).save(path)
    return path
