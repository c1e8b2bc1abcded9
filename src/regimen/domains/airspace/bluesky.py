"""The airspace flown by BlueSky (TU Delft's open air traffic simulator): `bluesky:SCENARIO`, extra `bluesky`.

Spaces, rewards, metrics and observations are those of `airspace/SCENARIO`, computed by the same code (`Airspace.plan`,
`Airspace.settle`); only the ten seconds between two decisions are flown by BlueSky, whose aircraft take HDG, SPD
and ALT commands. Its simulator is one for the whole process.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shutil
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.airspace.aircraft import KT, TYPES
from regimen.domains.airspace.analysis.trajectory import place_of
from regimen.domains.airspace.dynamics import DECISION, HOUR, Motion, wrap
from regimen.domains.airspace.env import CAPTURE, Airspace
from regimen.domains.airspace.geodesy import from_latlon, to_latlon
from regimen.domains.airspace.state import AirspaceState, Decision, Plan
from regimen.domains.airspace.vertical import MINUTE, Level
from regimen.envs.adapters.compiled import mask_of
from regimen.envs.adapters.pettingzoo import ParallelNative, require_pettingzoo
from regimen.envs.protocol import alive_in
from regimen.errors import ConfigError, EnvError
from regimen.types import Array, PyTree, TimeStep

FEET = 0.3048
PAIRED = 10_000  # seeds below it start as the episodes of a native evaluation with seed 0 do
SETUP = ("DT 1.0", "ASAS OFF", "CASMACHTHR 0")


class Simulator:
    """BlueSky in this process, headless and without a network. One owner at a time."""

    owner: BlueSky | None = None
    module: Any = None

    @classmethod
    def take(cls, owner: BlueSky) -> Any:
        """The `bluesky` module, initialised, for `owner`; an error where another copy has it."""
        if cls.owner is not None and cls.owner is not owner:
            raise EnvError(
                f"{owner.name}: BlueSky is one simulator per process, and a copy of {cls.owner.name} has it; take one "
                "environment per process (rollout.num_envs 1, or workers: --engine ray), and close the other copy"
            )
        if cls.module is None:
            cls.module = started()
        cls.owner = owner
        return cls.module

    @classmethod
    def release(cls, owner: BlueSky) -> None:
        if cls.owner is owner:
            cls.owner = None


def started() -> Any:
    """Import and initialise BlueSky. It writes to its working directory, which is a temporary one."""
    folder = tempfile.mkdtemp(prefix="regimen-bluesky-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    here = os.getcwd()
    with contextlib.redirect_stdout(io.StringIO()):
        import bluesky  # pyright: ignore[reportMissingImports]  # an extra that the lock leaves out

        bluesky.init(mode="sim", detached=True, workdir=folder)
        bluesky.navdb.reset = lambda: None  # a third of the time of an episode: nothing here changes what it would read
    os.chdir(here)
    return bluesky


def require_bluesky() -> None:
    import importlib.util

    require_pettingzoo()
    if importlib.util.find_spec("bluesky") is None:
        raise EnvError("BlueSky is not installed: pip install 'regimen[bluesky]'")


def make(scenario: str) -> type[BlueSky]:
    """The environment of `bluesky:SCENARIO`: one of the 14 names, a JSON file, mixed or random."""
    require_bluesky()
    Airspace(scenario=scenario)  # an unknown one is refused here
    return type("BlueSky", (BlueSky,), {"scenario": scenario, "name": f"bluesky:{scenario}"})


class BlueSky(ParallelNative):
    """A PettingZoo environment whose aircraft are BlueSky's. Arguments are the fields of `Airspace`."""

    copies = 1
    imitates = "airspace"
    scenario = "head_on"
    name = "bluesky:head_on"

    def __init__(self, render_mode: str | None = None, **args: Any):
        env = Airspace(scenario=self.scenario, **args)
        file = env.file
        if env.wind or (file is not None and file.wind):
            raise ConfigError(
                f"{self.name}: no wind here; BlueSky then holds the track that a heading command first leads to, and "
                "the airspace holds the heading"
            )
        super().__init__(env, render_mode)
        self.center = place_of(env).center

    def reset(self, seed: int | None = None, options: dict[str, object] | None = None):
        """Episodes of seeds 0, 1, 2 ... start as those of a native evaluation with seed 0."""
        self.paired = None if seed is None or seed >= PAIRED else seed
        return super().reset(seed, options)

    def begin(self, random: np.random.Generator) -> tuple[PyTree, np.ndarray, PyTree]:
        simulator = Simulator.take(self)
        if self.paired is not None:
            random = Fixed(np.asarray(jax.random.key_data(start_key(self.paired))))  # type: ignore[assignment]
        out = super().begin(random)
        self.paired = None
        with contextlib.redirect_stdout(io.StringIO()):
            simulator.sim.reset()
            for line in SETUP:
                simulator.stack.stack(line)
        self.create(simulator, jax.device_get(self.native_state))
        return out

    def create(self, simulator: Any, state: AirspaceState) -> None:
        """Put the aircraft of a state into BlueSky."""
        self.flying = np.flatnonzero(state.scenario.present)
        for i in self.flying:
            lat, lon = to_latlon(self.center, float(state.north[i]), float(state.east[i]))
            simulator.traf.cre(
                f"AC{i + 1}",
                TYPES[int(state.scenario.kind[i])].name,
                *(lat, lon, float(state.heading[i])),
                float(state.scenario.altitude[i]) * FEET,
                float(state.cas[i]) * KT,
            )

    def advance(self, action: PyTree) -> tuple[TimeStep, np.ndarray, PyTree]:
        if self.native_state is None:
            return super().advance(action)  # which says that it must be reset
        simulator = Simulator.take(self)
        plan = commanded(self._program, self.native_state, jnp.asarray(action))
        end = self.fly(simulator, jax.device_get(self.native_state), jax.device_get(plan))
        self.native_state, out = settled(self._program, self.native_state, plan, end)
        self._t += 1
        return jax.device_get(out)

    def fly(self, simulator: Any, state: AirspaceState, plan: Plan) -> Decision:
        """Ten seconds of BlueSky, looked at as `Airspace.fly` looks at its own."""
        env, scenario, traf = self.native, state.scenario, simulator.traf
        compat = env.reward == "compat"  # type: ignore[attr-defined]
        stays = compat or env.fly_on  # type: ignore[attr-defined]
        present, n = np.asarray(scenario.present), len(scenario.present)
        for i in self.flying[np.asarray(plan.steered)[self.flying]]:
            simulator.stack.stack(f"HDG AC{i + 1} {plan.target[i, 0]:.6f}")
            simulator.stack.stack(f"SPD AC{i + 1} {plan.target[i, 1]:.6f}")
            if isinstance(plan.level, Level):
                simulator.stack.stack(f"ALT AC{i + 1} {plan.level.target[i]:.3f}")
        index = [traf.id2idx(f"AC{i + 1}") for i in self.flying]
        north, east = np.array(state.north, np.float64), np.array(state.east, np.float64)
        captured, left = np.zeros(n, bool), np.zeros(n)
        squared = np.full((n, n), np.inf)
        away = np.hypot(north - scenario.waypoint[:, 0], east - scenario.waypoint[:, 1])
        path, flown = np.zeros(n), np.zeros(n)
        for second in range(DECISION):
            with contextlib.redirect_stdout(io.StringIO()):
                simulator.sim.step()
            places = np.array([from_latlon(self.center, traf.lat[k], traf.lon[k]) for k in index])
            north[self.flying], east[self.flying] = places[:, 0], places[:, 1]
            path[self.flying] += traf.gs[index] / KT / HOUR
            if compat and second < DECISION - 1:
                continue
            counted = present if stays else present & ~(np.asarray(state.reached) | captured)
            gaps = (north[:, None] - north) ** 2 + (east[:, None] - east) ** 2
            if isinstance(plan.level, Level):
                height = np.array(plan.level.altitude, np.float64)
                height[self.flying] = traf.alt[index] / FEET
                over = np.abs(height[:, None] - height) >= env.separation_ft  # type: ignore[attr-defined]
                gaps = np.where(over, np.inf, gaps)
            apart = np.where(counted[:, None] & counted & ~np.eye(n, dtype=bool), gaps, np.inf)
            squared = np.minimum(squared, apart)
            now = np.hypot(north - scenario.waypoint[:, 0], east - scenario.waypoint[:, 1])
            away, flown = np.where(captured, away, now), np.where(captured, flown, path)
            captured |= present & (now <= CAPTURE)
        tas, heading = np.array(state.tas, np.float64), np.array(state.heading, np.float64)
        tas[self.flying], heading[self.flying] = traf.tas[index] / KT, traf.hdg[index]
        left[self.flying] = np.asarray(wrap(state.heading + plan.turn - heading))[self.flying]
        still = np.zeros(n)
        motion = Motion(*map(single, (north, east, tas, left, still, still, path)))
        level = plan.level
        if isinstance(level, Level):
            altitude, rate = np.array(level.altitude, np.float64), np.array(level.rate, np.float64)
            altitude[self.flying], rate[self.flying] = traf.alt[index] / FEET, traf.vs[index] / FEET * MINUTE
            level = level._replace(altitude=single(altitude), rate=single(rate))
        return Decision(motion, single(squared), jnp.asarray(captured), single(away), single(flown), level)

    def close(self) -> None:
        Simulator.release(self)


def single(x: np.ndarray) -> Array:
    return jnp.asarray(x, jnp.float32)


class Fixed:
    """A generator that draws two given words: the key of a start."""

    def __init__(self, words: np.ndarray):
        self.words = words

    def integers(self, high: int, size: int) -> np.ndarray:
        return self.words


def start_key(seed: int) -> Array:
    """The key of the start of episode `seed` in a native evaluation with seed 0 (`play.play_resets`)."""
    return jax.random.split(jax.random.split(jax.random.key(0))[0], PAIRED)[seed]


@jax.jit
def commanded(env: Airspace, state: AirspaceState, action: Array) -> Plan:
    return env.plan(state, action)


@jax.jit
def settled(
    env: Airspace, state: AirspaceState, plan: Plan, end: Decision
) -> tuple[AirspaceState, tuple[TimeStep, Array, PyTree]]:
    after, ts = env.settle(state, plan, end)
    return after, (ts, alive_in(env, after), mask_of(env, after))
