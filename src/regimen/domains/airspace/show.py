"""What a scenario is and what happens if nobody does anything: `regimen scenario show`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import SEPARATION, ScenarioFile, load
from regimen.domains.airspace.state import AirspaceState
from regimen.errors import ConfigError
from regimen.sources.play import Playthrough, baseline_actor, play


class Outcome(NamedTuple):
    """An episode without a command under the compat rules; T rows, of which the first is the start."""

    env: Airspace
    state: AirspaceState  # the last one, numpy
    north: np.ndarray  # [T, N] NM
    east: np.ndarray  # [T, N] NM
    separation: np.ndarray  # [T, N] NM, each aircraft's smallest
    reward: np.ndarray  # [N], of the whole episode

    @property
    def first_los(self) -> int:
        """Decision of the first loss of separation, -1 if there is none."""
        return int(self.state.first_los)


def no_op(scenario: str, reward: str = "compat") -> Outcome:
    """Fly a scenario straight on until all have reached their waypoints, or to the limit."""
    env = Airspace(scenario=scenario, reward=reward)
    keys = jax.random.key(0)[None]

    @jax.jit
    def fly(env: Airspace) -> Playthrough:
        actor = baseline_actor(env.baselines["no_op"])
        return play(env, actor, (), jax.vmap(env.reset)(keys), lambda t: (keys, keys), env.recorded)

    carry, _, recording = jax.device_get(fly(env))
    rows = {name: x[: int(recording.length[0]) + 1, 0] for name, x in recording.rows.items()}
    last = jax.tree.map(lambda x: x[0], carry.state)
    reward_sum = rows["parts"][1:].sum(-1).sum(0)
    return Outcome(env, last, rows["north"], rows["east"], rows["min_sep"], reward_sum)


def report(scenario: str) -> tuple[list[str], Outcome]:
    """(lines for people, the outcome)."""
    file = load(scenario)
    outcome = no_op(scenario)
    state = outcome.state
    lines = [f"{file.name}: {len(file.agents)} aircraft, centre {file.center.lat:g} N {file.center.lon:g} E"]
    if file.notes:
        lines.append(file.notes)
    lines += ["", "  id    type   heading   speed   altitude   to waypoint   closest   reaches it   return"]
    start = file.arrays()
    for i, agent in enumerate(file.agents):
        direct = float(np.hypot(*(start.waypoint[i] - np.array([start.north[i], start.east[i]]))))
        step = int(state.reached_step[i])
        when = f"step {step}" if step >= 0 else "never"
        nearest = f"{outcome.separation[:, i].min():.2f} NM" if len(file.agents) > 1 else "alone"
        lines.append(
            f"  {agent.id:<5} {agent.type:<6} {agent.hdg_deg:7.1f} {agent.spd_kt:7.0f} {agent.alt_ft:10.0f} "
            f"{direct:10.1f} NM {nearest:>9} {when:>12} {outcome.reward[i]:8.1f}"
        )
    lines += ["", "Without any command (compat reward, steps of 10 s):"]
    lines.append(f"  start separation      {closest(file):.2f} NM")
    lines.append(f"  minimum separation    {outcome.separation.min():.2f} NM")
    los = f"step {outcome.first_los}" if outcome.first_los >= 0 else "never"
    lines.append(f"  below {SEPARATION:g} NM first    {los}")
    lines.append(f"  return                {outcome.reward.sum():.1f}")
    return lines, outcome


def closest(file: ScenarioFile) -> float:
    """Smallest distance between two starts, NM; infinite for one aircraft."""
    start = file.arrays()
    points = np.stack([start.north, start.east], axis=-1)
    return min((float(np.hypot(*(a - b))) for a, b in itertools.combinations(points, 2)), default=float("inf"))


def picture(outcome: Outcome, path: str | Path) -> Path:
    """The starts, and the tracks flown, as a PNG file."""
    try:
        from PIL import Image
    except ImportError as e:
        raise ConfigError("a picture needs pillow; pip install 'regimen[plots]'") from e
    from regimen.domains.airspace.render import draw

    start, _ = outcome.env.start(outcome.state.scenario)
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw(outcome.env, start, (outcome.north, outcome.east))).save(file)
    return file
