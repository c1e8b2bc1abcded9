"""Airspace: every 10 s each aircraft may change its heading and its speed. It should reach its waypoint and stay 5 NM
away from the others. One policy is shared by all of them.

The task, its formulas and how `compat` and `clean` differ are in docs/airspace.md.
"""

from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.domains.airspace import dynamics, generator, metrics, observe, pairs, policies, vertical
from regimen.domains.airspace import reward as rewards
from regimen.domains.airspace.files import MAX_DELAY, NAMES, ScenarioFile, load
from regimen.domains.airspace.refusals import refuse
from regimen.domains.airspace.state import AirspaceState, Decision, Plan, Scenario, stack
from regimen.envs.metric import Metric
from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, PyTree, TimeStep

CAPTURE = 1.0  # NM
PREROLL = 2  # s that `compat` flies before the first observation
RECORDED = ("north", "east", "heading", "tas", "cas", "ground", "command", "action", "reached", "min_sep")
RECORDED += ("waypoint_distance", "flown", "parts")


@native_env
class Airspace(NativeEnv):
    """A scenario, or many of them, with two forms each of observation and reward."""

    scenario: str = "head_on"
    """One of the 14 names, a path to a JSON file, mixed (one of the 14 per episode), or random (generates one)."""
    observation: str = "clean"
    """clean; set, which observes all other aircraft instead of `neighbors` of them, each as a row; or compat, the 18
    values of an earlier system."""
    reward: str = "clean"
    """clean, or compat, under whose rules finished aircraft fly on and everything is checked only every 10 s."""
    neighbors: int = 3
    """How many other aircraft an aircraft observes: the most threatening ones (compat: the nearest)."""
    observation_range: float = 1000.0
    """set: others that are farther away than this, NM, are not observed."""
    max_episode_steps: int = 150
    """Decisions of 10 s before an episode is cut short."""
    fly_on: bool = False
    """clean: aircraft that have reached their waypoint can still lose separation, as they can in compat."""
    snap: bool = False
    """Treat an action that is too small to command anything as no action, so that it does not cost anything either."""
    action_delay: int = 0
    """Decisions between an action and its command, in addition to the delay of the scenario."""
    separation_nm: float = 5.0
    """NM that aircraft must stay apart: below it separation is lost."""
    vertical: bool = False
    """Let aircraft climb and descend: a third number of each action; `separation_ft` is then enough."""
    separation_ft: float = 1000.0
    """vertical: ft of altitude that keep two apart however close they are otherwise."""
    level_band: float = 2000.0
    """vertical: how far an aircraft may be above or below the altitude at which it started, ft."""
    level_cost: float = 0.05
    """vertical: paid per decision and 1,000 ft away from the altitude at which it started."""
    collision_nm: float = 3.0
    """NM below which the tables of episodes report a collision; the reward does not use it."""
    aircraft: int = 4
    """random: the largest number of aircraft in an episode, at least 2."""
    min_aircraft: int = 2
    """random: the smallest number of aircraft in an episode."""
    family: str = "any"
    """random: any, or one of chase, cross, streams, merge, head_on, free, sector."""
    spacing: float = 8.0
    """random, sector: distance between aircraft, NM: on average each has a disc of this radius."""
    rotate: bool = True
    """random: turn and mirror the whole scene."""
    types: bool = False
    """random: draw aircraft types; off: all are A320."""
    gamma: float = 0.995
    """Discount of the clean shaping. It must be the learner's, or the shaping changes which policy is best."""
    position_jitter: float = 0.0
    """Starts move north and east by up to this, NM; never to within 5.1 NM of another."""
    heading_jitter: float = 0.0
    """Initial headings turn by up to this, deg."""
    speed_jitter: float = 0.0
    """Initial speeds change by up to this, kt."""
    wind: float = 0.0
    """Strongest uniform wind of an episode, kt, added to the scenario's."""
    speed_spread: float = 25.0
    """random: speeds differ from 250 kt by at most this, kt."""
    angle_low: float = 20.0
    """random, free: smallest angle between the tracks of two in conflict, deg."""
    angle_high: float = 180.0
    """random, free: largest angle between the tracks of two in conflict, deg."""
    distance_low: float = 0.0
    """random, free: smallest distance at the closest approach, NM."""
    distance_high: float = 5.0
    """random, free: largest distance at the closest approach, NM."""
    time_low: float = 100.0
    """random, free: shortest time to the closest approach, s."""
    time_high: float = 400.0
    """random, free: longest time to the closest approach, s."""
    progress_reward: float = 0.1
    """progress: per NM closer to the waypoint."""
    reach_reward: float = 5.0
    """reach: paid once, at the waypoint."""
    entry_penalty: float = 5.0
    """violate_entry: paid when separation is lost."""
    depth_penalty: float = 2.0
    """violate_step: per decision, times the depth: 1 at 0 NM, 0 at 5 NM plus margin."""
    margin: float = 0.5
    """violate_step: NM beyond 5 at which it begins to be paid, so that a policy does not fly along the edge."""
    action_cost: float = 0.01
    """act_cost: per unit of heading and speed action."""
    time_cost: float = 0.01
    """time: per decision."""
    team_weight: float = 2.0
    """team: scale of the shaping, minus the danger of all own pairs."""

    baselines: ClassVar = {"no_op": policies.no_op, "waypoint": policies.waypoint, "mvp": policies.mvp}
    render_fps = 8
    legend = "Circles that touch: at the minimum; red: below it. Line: a minute of flight. Small ring: a waypoint."

    def __post_init__(self):
        refuse(self)

    @property
    def file(self) -> ScenarioFile | None:
        """The scenario's file, when there is one."""
        return None if self.scenario in ("mixed", "random") else load(self.scenario)

    @property
    def agents(self) -> tuple[str, ...]:
        file = self.file
        if file is not None:
            return file.ids
        return tuple(f"A{i + 1}" for i in range(self.aircraft if self.scenario == "random" else 4))

    @property
    def metric_reductions(self) -> dict[str, Metric]:  # type: ignore[override]
        names = [f"reached_step_{i + 1}" for i in range(len(self.agents))]
        more = metrics.VERTICAL if self.vertical else {}
        return metrics.METRICS | more | dict.fromkeys(names if len(names) <= generator.FEW else (), Metric("last"))

    @property
    def observation_space(self) -> spaces.Space:
        return observe.space(self)

    @property
    def action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (3 if self.vertical else 2,), np.float32)

    @property
    def reward_components(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*rewards.COMPONENTS, "level") if self.vertical else rewards.COMPONENTS

    def alive(self, state: AirspaceState) -> Array:
        """Aircraft of the problem: all present in compat, those that still fly to their waypoint in clean."""
        present = state.scenario.present
        return present if self.reward == "compat" else present & ~state.reached

    def counts(self, state: AirspaceState) -> Array:
        """Aircraft that others must stay away from."""
        return state.scenario.present if self.reward == "compat" or self.fly_on else self.alive(state)

    def reset(self, key: Array):
        return self.start(self.draw(key))

    def draw(self, key: Array) -> Scenario:
        """What an episode starts from."""
        key_scenario, key_jitter, key_wind = jax.random.split(key, 3)
        jitter = (self.position_jitter, self.heading_jitter, self.speed_jitter)
        scenario = generator.jitter(key_jitter, self.choose(key_scenario), *jitter)
        return scenario.replace(wind=scenario.wind + generator.wind(key_wind, self.wind))

    def choose(self, key: Array) -> Scenario:
        """The scenario of an episode, before its start is perturbed."""
        if self.scenario == "random":
            return generator.draw(self, key)
        if self.scenario != "mixed":
            return jax.tree.map(jnp.asarray, load(self.scenario).arrays())
        index = jax.random.randint(key, (), 0, len(NAMES))
        return jax.tree.map(lambda x: x[index], stack([load(name).arrays(4) for name in NAMES]))

    def start(self, scenario: Scenario) -> tuple[AirspaceState, PyTree]:
        """The first state and observation of a scenario."""
        scenario = jax.tree.map(jnp.asarray, scenario)
        compat = self.reward == "compat"
        n = scenario.north.shape[0]
        heading = jnp.mod(jnp.round(scenario.heading) if compat else scenario.heading, 360.0)
        cas = jnp.clip(scenario.cas, *dynamics.speed_limits(scenario.kind, scenario.speed_bounds))
        air = dynamics.air(scenario.altitude)
        tas = dynamics.to_tas(cas, air)
        north, east, flown = scenario.north, scenario.east, jnp.zeros(n)
        if compat:
            motion = dynamics.begin(north, east, heading, tas, jnp.zeros_like(heading), scenario.convergence)
            for _ in range(PREROLL):
                motion = dynamics.second(motion, tas, scenario.kind, scenario.wind)
            north, east, flown = motion.north, motion.east, motion.flown
        away = pairs.distance(north, east, scenario.waypoint)
        zero, nothing = jnp.zeros((), jnp.int32), jnp.zeros((n, *self.action_space.shape))
        state = AirspaceState(
            scenario=scenario,
            north=north,
            east=east,
            heading=heading,
            tas=tas,
            cas=cas,
            ground=dynamics.velocity(heading, tas, east, scenario.wind, scenario.convergence),
            target=jnp.stack([heading, cas], axis=-1),
            air=air,
            queue=jnp.zeros((MAX_DELAY, *nothing.shape)),
            reached=jnp.zeros(n, bool),
            reached_step=jnp.full(n, -1, jnp.int32),
            violating=jnp.zeros(n, bool),
            lost=jnp.zeros((n, n), bool),
            time=zero,
            command=nothing,
            action=nothing,
            min_sep=jnp.zeros(n),
            waypoint_distance=away,
            remaining=away,
            flown=flown,
            danger=jnp.zeros(n),
            team=jnp.zeros(2),
            drift=jnp.zeros(n),
            first_los=zero - 1,
            parts=jnp.zeros((n, len(self.reward_components))),
            level=vertical.begin(scenario.altitude) if self.vertical else (),
        )
        separation = pairs.separation(pairs.park(north, scenario.present), east)
        if self.vertical:
            separation = jnp.where(vertical.separated(scenario.altitude, self.separation_ft), jnp.inf, separation)
        near = pairs.nearest(separation)
        team = jnp.stack([rewards.team_potential(separation, scenario.present, self.separation_nm), jnp.zeros(())])
        state = state.replace(min_sep=near, team=team)
        all_pairs = self.relate(state)
        if all_pairs is not None:
            state = state.replace(danger=jnp.sum(all_pairs.danger, axis=-1))
        if not compat:  # an aircraft that starts in violation does not enter it
            state = state.replace(violating=near < self.separation_nm, lost=separation < self.separation_nm)
        return state, self.observe(state, all_pairs, jnp.zeros(n), jnp.zeros(n))

    def relate(self, state: AirspaceState) -> pairs.PairTable | None:
        """All pairs of a state, where they are observed or paid for."""
        if self.observation == "compat" and self.reward == "compat":
            return None
        level = (state.level.altitude, state.level.rate) if isinstance(state.level, vertical.Level) else None
        return pairs.relate(state.north, state.east, state.ground, self.counts(state), level, self.separation_ft)

    def observe(self, state: AirspaceState, all_pairs: pairs.PairTable | None, progress: Array, safety: Array):
        """[N, ...]; `progress` and `safety` are the changes that the compat observation shows."""
        left = (self.max_episode_steps - state.time).astype(jnp.float32)
        change = observe.Change(state.waypoint_distance, progress, safety)
        return observe.show(self, observe.view_of(state), all_pairs, left, change)

    def step(self, key: Array, state: AirspaceState, action: Array):
        plan = self.plan(state, action)
        return self.settle(state, plan, self.fly(state, plan))

    def plan(self, state: AirspaceState, action: Array) -> Plan:
        """What an action commands in a state."""
        scenario = state.scenario
        steered = scenario.present & ~state.reached
        action = jnp.clip(action, -1.0, 1.0)
        if self.snap:
            action = jnp.where(self.change(action) == 0.0, 0.0, action)
        applied, queue = dynamics.delay(action, state.queue, scenario.delay + self.action_delay)
        change = jnp.where(steered[:, None], self.change(applied), 0.0)

        aim = dynamics.aim(state.heading, state.cas, change, scenario.kind, scenario.speed_bounds)
        target = jnp.where(steered[:, None], aim, state.target)
        turn = jnp.where(steered, change[:, 0], dynamics.wrap(state.target[:, 0] - state.heading))
        level = state.level
        if isinstance(level, vertical.Level):
            level = vertical.aim(level, change[:, 2], self.level_band)
        return Plan(action, applied, queue, steered, change, target, turn, level)

    def change(self, action: Array) -> Array:
        """What an action changes of heading (deg), speed (kt) and, where there is one, altitude (ft)."""
        change = dynamics.command(action[:, :2])
        return jnp.column_stack([change, vertical.command(action[:, 2])]) if self.vertical else change

    def settle(self, state: AirspaceState, plan: Plan, end: Decision) -> tuple[AirspaceState, TimeStep]:
        """What a decision that was flown to its `end`, here or in another simulator, has led to."""
        scenario, compat = state.scenario, self.reward == "compat"
        present, alive = scenario.present, self.alive(state)
        motion, separation = end.motion, jnp.sqrt(end.squared)
        heading = jnp.mod(state.heading + plan.turn - motion.left, 360.0)
        reached = state.reached | end.captured
        remaining = jnp.where(state.reached, state.remaining, end.distance)
        away = end.distance if compat else remaining
        near = pairs.nearest(separation)
        lost = separation < self.separation_nm
        newly, now = reached & ~state.reached, state.time + 1
        air = dynamics.air(end.level.altitude) if isinstance(end.level, vertical.Level) else state.air
        any_lost = jnp.any(lost)

        after = state.replace(
            north=motion.north,
            east=motion.east,
            heading=heading,
            tas=motion.tas,
            cas=dynamics.to_cas(motion.tas, air),
            ground=dynamics.velocity(heading, motion.tas, motion.east, scenario.wind, scenario.convergence),
            target=plan.target,
            air=air,
            level=end.level,
            queue=plan.queue,
            reached=reached,
            reached_step=jnp.where(newly, now, state.reached_step),
            violating=near < self.separation_nm,
            lost=lost,
            time=now,
            command=plan.change,
            action=plan.action,
            min_sep=near,
            waypoint_distance=away,
            remaining=remaining,
            flown=state.flown + jnp.where(plan.steered, end.flown, 0.0),
            first_los=jnp.where(any_lost & (state.first_los < 0), now, state.first_los),
        )
        all_pairs = self.relate(after)
        if all_pairs is not None:
            after = after.replace(danger=jnp.where(present, jnp.sum(all_pairs.danger, axis=-1), 0.0))
        # The first decision has no distance to compare with: that of before the pre-roll was never taken.
        progress = jnp.where(compat & (state.time == 0), 0.0, state.waypoint_distance - away)
        if compat:
            after, parts = rewards.compat(self, state, after, separation, progress, plan.applied)
            terminated = jnp.broadcast_to(jnp.all(reached | ~present), present.shape)
        else:
            shaping = rewards.shaped(
                self.gamma, -self.team_weight * state.danger, -self.team_weight * after.danger, newly
            )
            level = after.level
            off_level = jnp.abs(level.altitude - level.start) if isinstance(level, vertical.Level) else None
            parts = rewards.clean(self, alive, progress, near, state.violating, plan.action, newly, shaping, off_level)
            terminated = newly
        after = after.replace(parts=parts)
        obs = self.observe(after, all_pairs, progress, near - state.min_sep)
        figures = metrics.measure(self, state, after, separation, alive)
        return after, TimeStep(obs, parts, terminated, metrics=figures)

    def fly(self, state: AirspaceState, plan: Plan) -> Decision:
        """The seconds of one decision. In `clean` separation and waypoints are checked each second, and an aircraft
        leaves in the second after it reached its waypoint; in `compat` only the last second matters."""
        scenario, compat = state.scenario, self.reward == "compat"
        present = scenario.present
        n, cruise = present.shape[0], dynamics.to_tas(plan.target[:, 1], state.air)

        def check(now: Decision, motion: dynamics.Motion) -> Decision:
            away = pairs.distance(motion.north, motion.east, scenario.waypoint)
            counted = present if compat or self.fly_on else present & ~(state.reached | now.captured)
            squared = pairs.squared(pairs.park(motion.north, counted), motion.east)
            if isinstance(now.level, vertical.Level):
                squared = jnp.where(vertical.separated(now.level.altitude, self.separation_ft), jnp.inf, squared)
            if compat:
                return Decision(motion, squared, present & (away <= CAPTURE), away, motion.flown)
            return Decision(
                motion,
                jnp.minimum(now.squared, squared),
                now.captured | (present & (away <= CAPTURE)),
                jnp.where(now.captured, now.distance, away),
                jnp.where(now.captured, now.flown, motion.flown),
                now.level,
            )

        def second(now: Decision, _) -> tuple[Decision, None]:
            target = cruise
            if isinstance(now.level, vertical.Level):  # a calibrated airspeed is another true one higher up
                target = dynamics.to_tas(plan.target[:, 1], dynamics.air(now.level.altitude))
                now = now._replace(level=vertical.second(now.level))
            motion = dynamics.second(now.motion, target, scenario.kind, scenario.wind)
            return (now._replace(motion=motion) if compat else check(now, motion)), None

        motion = dynamics.begin(state.north, state.east, state.heading, state.tas, plan.turn, scenario.convergence)
        still = jnp.zeros_like(state.north)
        start = Decision(motion, jnp.full((n, n), jnp.inf), jnp.zeros(n, bool), still, still, plan.level)
        end, _ = jax.lax.scan(second, start, None, length=dynamics.DECISION)
        return check(end, end.motion) if compat else end

    def recorded(self, state: AirspaceState) -> dict[str, Array]:
        """What a trajectory needs of a state."""
        return {name: getattr(state, name) for name in RECORDED} | {"counts": self.counts(state)}

    def write_evaluation(
        self, path: Path, start: AirspaceState, rows: dict[str, Array], length: Array, alerts: bool
    ) -> None:
        """Write the episodes of an evaluation as a table (`log.trajectories`), with the conflict detector's columns
        (`log.alerts`)."""
        from regimen.domains.airspace.analysis.flight import Flights
        from regimen.domains.airspace.analysis.trajectory import write_evaluation

        write_evaluation(path, self, Flights(rows, length, start.scenario), alerts)

    def write_states(self, path: Path, states: list[AirspaceState]) -> None:
        """Write one episode as a trajectory table, from its states."""
        from regimen.domains.airspace.analysis.flight import Flights
        from regimen.domains.airspace.analysis.trajectory import place_of, rules_of, write_trajectory

        stacked = jax.tree.map(lambda *x: np.stack(x), *states)
        rows = jax.tree.map(lambda x: np.asarray(x)[:, None], jax.jit(jax.vmap(self.recorded))(stacked))
        scenario = jax.tree.map(lambda x: np.asarray(x)[None], states[-1].scenario)
        flights = Flights(rows, np.array([len(states) - 1]), scenario)
        write_trajectory(path, flights, 0, place_of(self), rules_of(self), components=self.reward_components)

    def render(self, state: AirspaceState) -> np.ndarray:
        from regimen.domains.airspace.render import draw

        return draw(self, state)
