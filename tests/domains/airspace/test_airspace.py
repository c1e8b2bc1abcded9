"""The airspace against published vectors, a simulation on the sphere in float64, and its own promises."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from airspace_rollouts import library, no_op_table, play, start, step
from gymnasium import spaces

from regimen.config.layers import build_config, from_dict, to_dict
from regimen.domains.airspace import ONLY_CLEAN, dynamics, observe, pairs, policies
from regimen.domains.airspace import reward as rewards
from regimen.domains.airspace.aircraft import KT, TYPES
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import NAMES, load
from regimen.domains.airspace.generator import jitter
from regimen.domains.airspace.geodesy import Center, convergence, from_latlon, haversine, to_latlon
from regimen.domains.airspace.metrics import METRICS
from regimen.domains.airspace.reward import team_potential
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.policies.target import environment

FL100 = dynamics.air(jnp.float32(10_000.0))

# CAS kt, TAS kt, TAS m/s, turn deg/s, NM per 10 s
SPEEDS = [
    (200, 231.6, 119.1, 2.20, 0.643),
    (240, 277.3, 142.7, 1.84, 0.770),
    (250, 288.7, 148.5, 1.76, 0.802),
    (260, 300.1, 154.4, 1.70, 0.834),
    (285, 328.4, 169.0, 1.55, 0.912),
    (300, 345.4, 177.7, 1.47, 0.959),
]

# start separation, minimum, first loss, steps at which each arrives, return
NO_OP = {
    "head_on": (36.02, 0.42, 20, (44, 44), -33.6),
    "parallel": (8.01, 8.01, -1, (36, 27, 17), 32.3),
    "canonical_crossing": (17.67, 0.45, 11, (30,) * 4, -76.6),
    "converging": (7.94, 0.61, 5, (14,) * 4, -69.8),
    "chase_2x2": (6.00, 6.00, -1, (36, 29, 36, 29), 45.9),
    "chase_4all": (6.00, 6.00, -1, (36, 29, 22, 14), 42.6),
    "cross_4all": (21.20, 0.55, 15, (36,) * 4, -75.3),
    "merge_2x2": (12.83, 0.03, 36, (62,) * 4, -134.1),
    "merge_4all": (8.88, 0.10, 28, (62, 61, 61, 62), -122.9),
}
RETURNS = {"chase_3p1": 45.1, "cross_2x2": -75.3, "cross_3p1": -45.0, "merge_3p1": -61.7}  # of the same table, later


# --- motion ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cas", "tas", "metres", "rate", "distance"), SPEEDS)
def test_speeds_at_flight_level_100(cas, tas, metres, rate, distance):
    assert float(dynamics.to_tas(jnp.float32(cas), FL100)) == pytest.approx(tas, abs=0.06)
    assert tas * KT == pytest.approx(metres, abs=0.06)
    assert TYPES[0].turn / tas == pytest.approx(rate, abs=0.01)
    assert tas * 10 / 3600 == pytest.approx(distance, abs=6e-4)


def test_airspeeds_are_inverse_at_every_height():
    height = jnp.array([0.0, 10_000.0, 25_000.0, 36_089.0, 45_000.0])
    cas = jnp.array([130.0, 250.0, 300.0, 280.0, 240.0])
    air = dynamics.air(height)
    tas = dynamics.to_tas(cas, air)
    assert np.allclose(dynamics.to_cas(tas, air), cas, atol=0.02)
    assert float(tas[0]) == pytest.approx(130.0, abs=0.01)
    assert np.allclose(air[3], [22_632.0, 0.3639], rtol=2e-3)  # the tropopause


def fly(heading, tas, turn, target, seconds=10, kind=0, wind=(0.0, 0.0)):
    one = [jnp.array([float(x)]) for x in (0, 0, heading, tas, turn)]
    motion = dynamics.begin(*one, jnp.float32(0.0))
    path = []
    for _ in range(seconds):
        motion = dynamics.second(motion, jnp.array([float(target)]), jnp.array([kind]), jnp.array([wind]))
        path.append([float(x[0]) for x in motion])
    return np.array(path)


def test_turns_are_limited_by_bank_and_snap():
    path = fly(0, 288.7, 18, 288.7)
    rate = TYPES[0].turn / 288.7
    assert np.allclose(path[:, 3], np.maximum(18 - rate * np.arange(1, 11), 0), atol=1e-3)
    path = fly(350, 288.7, 5, 288.7)
    assert path[1, 3] == pytest.approx(5 - 2 * rate, abs=1e-4) and path[2, 3] == 0.0  # snapped, then straight
    assert path[-1, 4:6] == pytest.approx([math.cos(math.radians(355)), math.sin(math.radians(355))], abs=1e-6)


def test_acceleration_is_limited_and_snaps():
    tas = fly(0, 280, 0, 288.7)[:, 2]
    assert np.allclose(np.diff(tas)[:3], 1.0 / KT, atol=1e-3)
    assert tas[0] == pytest.approx(280 + 1.0 / KT, abs=1e-3) and tas[4] == pytest.approx(288.7)
    assert fly(0, 300, 0, 288.7)[0, 2] == pytest.approx(300 - 1.0 / KT, abs=1e-3)


def test_wind_carries():
    still, west = fly(0, 288.7, 0, 288.7)[-1], fly(0, 288.7, 0, 288.7, wind=(0.0, 36.0))[-1]
    assert west[0] == pytest.approx(still[0]) and west[1] == pytest.approx(0.1)


def test_order_within_a_second():
    """Airspeed first, then the turn at the new airspeed, then the position along the new heading."""
    path = fly(0, 280, 18, 300, seconds=1)[0]
    tas = 280 + 1.0 / KT
    turned = TYPES[0].turn / tas
    assert path[3] == pytest.approx(18 - turned, abs=1e-4)
    assert path[:2] == pytest.approx(
        [tas / 3600 * math.cos(math.radians(turned)), tas / 3600 * math.sin(math.radians(turned))], rel=1e-5
    )


def test_envelopes_within_the_clamp():
    low, high = dynamics.speed_limits(jnp.arange(4), jnp.array([1.0, 1.0]))
    assert np.round(low).tolist() == [130, 126, 140, 124] and np.round(high).tolist() == [317, 319, 350, 309]
    low, high = dynamics.speed_limits(jnp.arange(4), jnp.array([1.5, 0.7]))
    assert np.allclose(low, 150) and np.allclose(high, 280)


# --- actions ---------------------------------------------------------------------------------------------------------


def test_dead_band():
    assert dynamics.command(jnp.array([[0.16, 0.29]])).tolist() == [[0.0, 0.0]]
    assert np.allclose(dynamics.command(jnp.array([[0.17, 0.31], [-1.0, 1.0]])), [[3.06, 3.1], [-18.0, 10.0]])


def test_delay_is_a_queue_of_zeros():
    queue = jnp.zeros((3, 1, 2))
    seen = []
    for i in range(1, 6):
        applied, queue = dynamics.delay(jnp.full((1, 2), float(i)), queue, jnp.int32(2))
        seen.append(float(applied[0, 0]))
    assert seen == [0, 0, 1, 2, 3]
    assert float(dynamics.delay(jnp.ones((1, 2)), queue, jnp.int32(0))[0][0, 0]) == 1.0


@pytest.fixture(scope="session")
def crossing():
    """An environment and its compiled reset."""
    return Airspace(scenario="cross_4all", position_jitter=1.0), jax.jit(lambda e, k: e.reset(k))


def test_delay_in_the_environment(crossing):
    env, _ = crossing
    scenario = load("cross_4all").arrays().replace(delay=np.int32(2))
    state, _ = start(env, scenario)
    turns = []
    for i in range(4):
        state, _ = step(env, state, jnp.full((4, 2), 1.0 if i == 0 else 0.0))
        turns.append(float(state.command[0, 0]))
    assert turns == [0.0, 0.0, 18.0, 0.0]


def test_a_command_of_zero_ends_a_turn(crossing):
    """At 17.6 degrees in 10 s a full turn is not done when the next command comes."""
    env, _ = crossing
    state, _ = start(env, load("cross_4all").arrays())
    for action in (1.0, 0.0):
        state, _ = step(env, state, jnp.full((4, 2), action) * jnp.array([1.0, 0.0]))
    assert float(state.heading[0]) == pytest.approx(17.6, abs=0.1)


# --- reward ----------------------------------------------------------------------------------------------------------


def test_violation_vectors():
    depth = [float(rewards.violate_step(jnp.float32(d))) for d in (1.0, 0.0, 0.5, 4.5, 5.0)]
    assert depth == pytest.approx([-0.8, -2.5, -1.575, -0.1, 0.0], abs=1e-6)


def test_progress_and_drift_vectors():
    assert abs(rewards.PROGRESS * rewards.NM * 0.802 - 0.0594) < 1e-4
    assert float(rewards.drift(jnp.float32(30), jnp.float32(15))) == pytest.approx(0.07)
    assert float(rewards.drift(jnp.float32(30), jnp.float32(22))) == 0.0


def test_team_vectors():
    phi = [float(rewards.potential(jnp.float32(s))) for s in (0, 2.5, 5, 7.5, 10, 12)]
    assert phi == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
    average, clipped = rewards.smoothed(jnp.float32(0), jnp.float32(1), jnp.float32(1))
    assert float(average) == pytest.approx(-0.01 * rewards.TEAM_EMA) and float(clipped) == float(average)
    gaps = jnp.array([[jnp.inf, 3.0, 9.0], [3.0, jnp.inf, 9.0], [9.0, 9.0, jnp.inf]])
    assert np.allclose(rewards.responsibility(gaps, jnp.ones(3, bool)), [1.2, 1.2, 0.6])
    assert float(team_potential(jnp.full((1, 1), jnp.inf), jnp.ones(1, bool))) == 1.0


def test_entry_is_paid_on_the_rising_edge_only():
    state, _ = start(Airspace(scenario="head_on", reward="compat"), load("head_on").arrays())

    def pay(violated):
        after = state.replace(min_sep=jnp.full(2, 4.5))
        alone, none = jnp.full((2, 2), jnp.inf), jnp.zeros(2)
        before = state.replace(violating=violated)
        return rewards.compat(Airspace(), before, after, alone, none, jnp.zeros((2, 2)))[1]

    first, second = pay(jnp.zeros(2, bool))[0], pay(jnp.ones(2, bool))[0]
    assert first[2:4].tolist() == pytest.approx([-25.0, -0.1]) and second[2:4].tolist() == pytest.approx([0.0, -0.1])

    def pay_clean(violated):
        ones, none = jnp.ones(1, bool), jnp.zeros(1)
        return rewards.clean(Airspace(), ones, none, jnp.array([4.4]), violated, jnp.zeros((1, 2)), ~ones, none)

    first, second = pay_clean(jnp.zeros(1, bool))[0], pay_clean(jnp.ones(1, bool))[0]
    depth = -2.0 * (1 - 4.4 / 5.5)
    assert first[2:4].tolist() == pytest.approx([-5.0, depth]) and second[2:4].tolist() == pytest.approx([0.0, depth])


@pytest.mark.parametrize("name", NO_OP)
def test_no_op_table(name):
    start, least, first_los, steps, total = NO_OP[name]
    episode = no_op_table()[name]
    assert load(name).start_separation == pytest.approx(start, abs=0.02)
    assert float(episode.min_sep) == pytest.approx(least, abs=0.1)
    assert abs(int(episode.first_los) - first_los) <= (1 if first_los >= 0 else 0)
    assert np.abs(episode.reached_step[: len(steps)] - np.array(steps)).max() <= 1
    assert float(episode.reward.sum()) == pytest.approx(total, abs=0.5)


@pytest.mark.parametrize("name", RETURNS)
def test_no_op_returns_of_the_others(name):
    assert float(no_op_table()[name].reward.sum()) == pytest.approx(RETURNS[name], abs=0.5)


def sphere(name):
    """(smallest separation at decisions, first loss, arrivals): straight flight in latitude and longitude, float64."""
    file = load(name)
    tas = 250.0 * 288.7 / 250.0
    lat, lon = np.array([a.lat for a in file.agents]), np.array([a.lon for a in file.agents])
    heading = np.radians([round(a.hdg_deg) for a in file.agents])
    radius, n = 3440.065, len(lat)
    least, first, arrived = 200.0, -1, np.full(n, -1)
    for t in range(1, 2 + 1500 + 1):
        lat = lat + np.degrees(tas / 3600 * np.cos(heading) / radius)
        lon = lon + np.degrees(tas / 3600 * np.sin(heading) / (radius * np.cos(np.radians(lat))))
        if t <= 2 or (t - 2) % 10:
            continue
        step = (t - 2) // 10
        gaps = [haversine(lat[i], lon[i], lat[j], lon[j]) for i in range(n) for j in range(i)]
        least = min(least, *gaps)
        first = step if first < 0 and min(gaps) < 5 else first
        away = np.array([haversine(lat[i], lon[i], *a.waypoint) for i, a in enumerate(file.agents)])
        arrived = np.where((arrived < 0) & (away <= 1.0), step, arrived)
        if (arrived >= 0).all():
            break
    return least, first, arrived


@pytest.mark.parametrize("name", NAMES)
def test_straight_flight_is_that_on_the_sphere(name):
    least, first, arrived = sphere(name)
    episode = no_op_table()[name]
    assert float(episode.min_sep) == pytest.approx(least, abs=0.02)
    assert int(episode.first_los) == first
    assert np.abs(episode.reached_step[: len(arrived)] - arrived).max() <= 1


# --- compat ----------------------------------------------------------------------------------------------------------


def test_compat_observation():
    env = Airspace(scenario="head_on", observation="compat", reward="compat")
    assert env.observation_space.shape == (18,)
    _, obs = start(env, load("head_on").arrays())
    speed, cos, progress, safety, sin = np.asarray(obs)[0, :5]
    assert (speed, cos, sin) == pytest.approx(((148.53 - 150) / 6, 1.0, 0.0), abs=2e-3) and progress == safety == 0.0
    v = 288.7 / 3600
    vx, vy, away, x, y = obs[0, 5:8], obs[0, 8:11], obs[0, 11], obs[0, 12:15], obs[0, 15:18]
    assert vx.tolist() == pytest.approx([-2 * v / 32, 0, 0], abs=1e-5) and np.allclose(vy, 0, atol=1e-6)
    gap = 36.024 - 2 * 2 * v  # both flew 2 s
    assert y.tolist() == pytest.approx([gap * 1.852 / 20, 0, 0], abs=1e-3) and np.allclose(x, 0, atol=1e-4)
    assert float(away) == pytest.approx(math.tanh((36.024 - 2 * v) / 20), abs=1e-4)


def test_compat_rates_begin_after_the_first_step():
    env = Airspace(scenario="head_on", observation="compat", reward="compat")
    state, _ = start(env, load("head_on").arrays())
    rows = []
    for _ in range(2):
        state, ts = step(env, state, jnp.zeros((2, 2)))
        rows.append(np.asarray(ts.obs)[0])
        assert float(ts.reward[0, 0]) == pytest.approx(0.0 if len(rows) == 1 else 0.0594, abs=1e-4)
    v = 288.7 / 360
    assert rows[0][2] == 0.0 and rows[0][3] == pytest.approx(math.tanh(-2 * v / 5), abs=1e-4)
    assert rows[1][2] == pytest.approx(math.tanh(v / 2), abs=1e-4)


def test_compat_rounds_headings_half_to_even():
    env = Airspace(scenario="merge_2x2", observation="compat", reward="compat")
    state, _ = start(env, load("merge_2x2").arrays())
    assert state.heading.tolist() == [352.0, 8.0, 172.0, 188.0]
    assert start(Airspace(scenario="merge_2x2"), load("merge_2x2").arrays())[0].heading.tolist()[0] == 352.5


def test_compat_pays_at_the_limit_and_ends_together():
    env = Airspace(scenario="head_on", observation="compat", reward="compat", max_episode_steps=2)
    state, _ = start(env, load("head_on").arrays())
    for t in range(2):
        state, ts = step(env, state, jnp.zeros((2, 2)))
        assert ts.reward[:, rewards.COMPONENTS.index("terminal")].tolist() == [-10.0 * t] * 2
    assert not ts.terminated.any() and not ts.truncated.any() and env.alive(state).all()


# --- clean -----------------------------------------------------------------------------------------------------------


def test_shaping_telescopes(crossing):
    """Its discounted sum is fixed by where an episode starts and ends: what is best stays so."""
    env, reset = crossing
    team = rewards.COMPONENTS.index("team")
    state, _ = reset(env, jax.random.key(3))
    start = -env.team_weight * np.asarray(state.danger)
    total, ended = np.zeros(4), np.full(4, np.nan)
    for t in range(60):
        alive = np.asarray(env.alive(state))
        action = jax.random.uniform(jax.random.key(t), (4, 2), minval=-1.0, maxval=1.0)
        action = jnp.where(jnp.arange(4)[:, None] < 2, jnp.zeros_like(action), action)  # two reach their waypoints
        state, ts = step(env, state, action)
        total += env.gamma**t * np.asarray(ts.reward[:, team])
        ended = np.where(alive & np.asarray(ts.terminated), 0.0, ended)
        assert (np.asarray(ts.reward)[~alive] == 0).all()
    assert (ended == 0).sum() == 2
    final = np.where(ended == 0, 0.0, -env.team_weight * np.asarray(state.danger) * env.gamma**60)
    assert np.allclose(total, final - start, atol=2e-4)
    assert np.abs(start).max() == 0 or np.abs(total).max() > 0.01


def test_the_end_has_no_potential():
    going, ended = (float(rewards.shaped(0.9, jnp.float32(-2.0), jnp.float32(-1.0), x)) for x in (False, True))
    assert going == pytest.approx(0.9 * -1.0 + 2.0) and ended == 2.0


def test_no_shaping_where_nobody_is_near():
    env = Airspace(scenario="cross_4all")
    state, _ = start(env, load("parallel").arrays(4))
    state, ts = step(env, state, jnp.zeros((4, 2)))
    assert np.allclose(ts.reward[:, rewards.COMPONENTS.index("team")], 0.0, atol=1e-5)


def test_finished_aircraft_leave():
    env = Airspace(scenario="head_on")
    scenario = load("head_on").arrays()
    near = scenario.replace(
        north=np.array([17.5, 24.0], np.float32), waypoint=np.array([[18.0, 0.0], [-18.0, 0.0]], np.float32)
    )
    state, _ = start(env, near)
    after, ts = step(env, state, jnp.zeros((2, 2)))
    assert ts.terminated.tolist() == [True, False] and env.alive(after).tolist() == [False, True]
    assert float(ts.reward[0, rewards.COMPONENTS.index("reach")]) == env.reach_reward
    assert not after.violating.any()  # it left before the other came within 5 NM
    after, ts = step(env, after, jnp.zeros((2, 2)))
    assert (np.asarray(ts.reward)[0] == 0).all() and not ts.terminated.any()
    assert float(after.min_sep[1]) == pairs.FAR and float(ts.metrics["reached"]) == 0.5
    on = env.replace(fly_on=True)
    after, ts = step(on, start(on, near)[0], jnp.zeros((2, 2)))
    assert after.violating.tolist() == [True, True] and on.alive(after).tolist() == [False, True]


def opposite(apart, abeam, waypoints=((60.0, 0.0), (-60.0, 0.0))):
    """Two on opposite courses, north and south at 0.0802 NM/s each, `apart` NM along them and `abeam` NM across."""
    return (
        load("head_on")
        .arrays()
        .replace(
            north=np.array([-apart / 2, apart / 2], np.float32),
            east=np.array([0.0, abeam], np.float32),
            heading=np.array([0.0, 180.0], np.float32),
            waypoint=np.array(waypoints, np.float32),
            convergence=np.float32(0.0),
        )
    )


def decide(env, scenario, decisions, commands=()):
    """The metrics of every decision, [T] each, and the last state; `commands` is (decision, aircraft, action)."""
    state, _ = start(env, scenario)
    rows = []
    for t in range(decisions):
        action = np.zeros((2, 2), np.float32)
        for when, who, what in commands:
            if when == t:
                action[who] = what
        state, ts = step(env, state, action)
        rows.append(jax.device_get(ts.metrics))
    return {name: [float(row[name]) for row in rows] for name in METRICS}, state


def test_separation_is_checked_within_the_step():
    """5.04 NM apart at the start of a decision, 4.98 NM after 5 s, 5.04 NM at its end: a loss in `clean`, which looks
    every second, and none in `compat`, which looks at the end."""
    scenario = opposite(0.8, 4.98)
    found, state = decide(Airspace(scenario="head_on"), scenario, 1)
    assert math.dist((state.north[0], state.east[0]), (state.north[1], state.east[1])) > 5.04
    assert math.hypot(0.8, 4.98) > 5.04 and state.violating.all()
    assert found["min_separation"] == pytest.approx([4.98], abs=1e-3)
    assert found["los"] == found["conflicts"] == found["los_steps"] == found["first_los"] == [1.0]
    found, _ = decide(Airspace(scenario="head_on", observation="compat", reward="compat"), scenario, 1)
    assert found["min_separation"][0] > 5.05 and found["los"] == found["conflicts"] == [0.0]


def test_the_metrics_of_a_loss_of_separation():
    """8 NM apart and 4 NM abeam, closing at 0.1604 NM/s: within 5 NM from second 31.2 to 68.5, which is in the
    decisions 4 to 7. Both have 9 NM to the circle about their waypoint and are there in decision 12."""
    scenario = opposite(8.0, 4.0, ((6.0, 0.0), (-6.0, 4.0)))
    found, _ = decide(Airspace(scenario="head_on"), scenario, 12)
    lost = [0.0] * 3 + [1.0] * 4 + [0.0] * 5
    assert found["los"] == found["los_steps"] == lost
    assert found["conflicts"] == [0.0] * 3 + [1.0] + [0.0] * 8  # one pair, counted when it begins
    assert found["first_los"] == [-1.0] * 3 + [4.0] * 9
    assert min(found["min_separation"]) == pytest.approx(4.0, abs=0.01)
    assert found["reached"] == [0.0] * 11 + [1.0] and found["success"] == [0.0] * 12  # there, but not safely
    found, _ = decide(Airspace(scenario="head_on"), opposite(8.0, 6.0, ((6.0, 0.0), (-6.0, 6.0))), 12)
    assert not any(found["los"] + found["los_steps"] + found["conflicts"]) and set(found["first_los"]) == {-1.0}
    assert found["success"] == [0.0] * 11 + [1.0] and min(found["min_separation"]) == pytest.approx(6.0, abs=0.01)


def test_interventions_are_commands_that_are_not_zero():
    """A turn of the first in decision 2, both in decision 3, one within the dead-band in decision 4; and what an
    aircraft asks for that has arrived, in decision 6, is none."""
    scenario = opposite(8.0, 20.0, ((0.0, 0.0), (-60.0, 20.0)))  # 3 NM to the first one's circle: 38 s
    full, weak = (1.0, 0.0), (0.1, 0.1)
    asked = [(1, 0, full), (2, 0, (-1.0, 0.0)), (2, 1, (0.0, 1.0)), (3, 1, weak), (5, 0, full)]
    found, state = decide(Airspace(scenario="head_on"), scenario, 7, asked)
    assert state.reached.tolist() == [True, False] and int(state.reached_step[0]) <= 5
    assert found["interventions"] == [0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0]


def test_metrics_are_words_that_differ():
    """Tables and charts showed `first_los`, `los_steps` and `path_ratio`, and two metrics called conflicts."""
    labels = [metric.label for name, metric in METRICS.items() if name != "success"]
    assert all(label and "_" not in label for label in labels) and len(labels) == len(set(labels))


@pytest.mark.parametrize("form", ["clean", "compat"])
def test_path_ratio_is_the_way_flown_over_the_direct_one(form):
    """Straight to the waypoint it is 1, on the way and ever after, also where a finished aircraft flies on; 10 NM past
    the side of its waypoint (4.01 + 10.77) / 10 after five decisions."""
    env = Airspace(scenario="head_on", observation=form, reward=form, fly_on=True)
    found, state = decide(env, opposite(8.0, 20.0, ((-1.0, 0.0), (-16.0, 20.0))), 12)
    assert state.reached.tolist() == [True, False] and float(state.north[0]) > 5.0
    assert found["path_ratio"] == pytest.approx([1.0] * 12, abs=2e-3)
    aside, _ = decide(env, opposite(8.0, 20.0, ((-4.0, -10.0), (-16.0, 20.0))), 5)
    flown = 50 * 288.7 / 3600 + 2 * 288.7 / 3600 * (form == "compat")
    assert 2 * aside["path_ratio"][-1] - 1 == pytest.approx((flown + math.hypot(flown, 10)) / 10, abs=2e-3)


def test_waypoints_are_captured_within_the_step():
    env = Airspace(scenario="head_on")
    scenario = load("head_on").arrays()
    scenario = scenario.replace(waypoint=np.array([[-17.6, 0.95], [-18.0, 0.0]], np.float32))
    state, _ = step(env, start(env, scenario)[0], jnp.zeros((2, 2)))
    assert state.reached.tolist() == [True, False] and float(state.waypoint_distance[0]) <= 1.0
    assert float(state.reached_step[0]) == 1


def test_clean_observation_in_the_own_frame():
    """Turning the whole scene changes nothing but what a flat earth does not have."""
    env = Airspace(scenario="cross_4all")
    scenario = load("cross_4all").arrays().replace(convergence=np.float32(0.0))
    angle = 0.7
    c, s = math.cos(angle), math.sin(angle)

    def turn(n, e):
        return n * c - e * s, n * s + e * c

    north, east = turn(scenario.north, scenario.east)
    goal = np.stack(turn(scenario.waypoint[:, 0], scenario.waypoint[:, 1]), axis=-1)
    turned = scenario.replace(north=north, east=east, waypoint=goal, heading=scenario.heading + math.degrees(angle))
    assert np.allclose(start(env, scenario)[1], start(env, turned)[1], atol=2e-4)


def names_of(env):
    return [*observe.OWN, *(f"{name}_{k}" for name in observe.NEIGHBOUR for k in range(env.neighbors))]


def test_clean_features():
    env = Airspace(scenario="head_on")
    _, obs = start(env, load("head_on").arrays())
    assert obs.shape == (2, len(names_of(env))) and env.observation_space.shape == obs.shape[1:]
    row = dict(zip(names_of(env), np.asarray(obs)[0].tolist()))
    assert row["cos_waypoint"] == pytest.approx(1, abs=1e-4) and row["time_left"] == 1.0 and row["rank"] == -1.0
    assert row["present_0"] == 1.0 and row["present_1"] == 0.0 and row["range_near_1"] == 0.0
    assert row["cos_bearing_0"] == pytest.approx(1, abs=1e-4)
    assert row["tcpa_0"] == pytest.approx(36.02 / 577.4 * 12, abs=1e-3) and row["dcpa_0"] == pytest.approx(-1, abs=1e-3)
    assert row["closing_0"] == pytest.approx(577.4 / 300, abs=1e-3)
    other = dict(zip(names_of(env), np.asarray(obs)[1].tolist()))
    assert row["priority_0"] == -other["priority_0"]  # twins can be told apart


def test_closest_approach_vectors():
    """Head-on from 36 NM: 224 s away, 16.75 NM apart after 120 s."""
    near = pairs.approach(*(jnp.float32(x) for x in (36.0, 0.0, -577.4, 0.0)))
    assert float(near.tcpa) == pytest.approx(36 / 577.4 * 3600, abs=0.1) and float(near.dcpa) == pytest.approx(
        0, abs=1e-3
    )
    assert abs(36 - float(near.speed) * 120 / 3600 - 16.75) < 0.01
    assert float(near.danger) == pytest.approx(1 - 36 / 577.4 * 3600 / 300, abs=1e-3)  # no miss, in 224 s of 300 s
    apart = pairs.approach(*(jnp.float32(x) for x in (4.0, 0.0, 577.4, 0.0)))
    assert float(apart.tcpa) == 0.0 and float(apart.dcpa) == 4.0 and float(apart.danger) == pytest.approx(3 / 7)
    still = pairs.approach(*(jnp.float32(x) for x in (6.0, 0.0, 0.0, 0.0)))
    assert float(still.dcpa) == 6.0 and np.isfinite(float(still.danger))


def test_order_of_neighbours():
    key = jnp.array([[9.0, 3.0, 1.0], [2.0, 9.0, 2.0], [5.0, 4.0, 9.0]])
    valid = ~jnp.eye(3, dtype=bool)
    chosen = pairs.order(key, valid, 3)
    assert np.argmax(chosen, axis=-1)[:, :2].tolist() == [[2, 1], [0, 2], [1, 0]]
    assert not chosen[:, 2].any()  # there are only two others
    assert pairs.pick(chosen, jnp.array([10.0, 20.0, 30.0]))[0].tolist() == [30.0, 20.0, 0.0]


# --- the environment as others see it --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["clean", "compat"])
def test_contract(form):
    env = Airspace(scenario="mixed", observation=form, reward=form)
    keys = jax.random.split(jax.random.key(0), 16)
    state, obs = jax.jit(jax.vmap(env.reset))(keys)
    n = len(env.agents)
    assert obs.shape == (16, n, *env.observation_space.shape) and len(env.agents) == n == 4
    advance = jax.jit(jax.vmap(env.step))
    for t in range(5):
        action = jax.random.uniform(jax.random.key(t), (16, n, 2), minval=-1.2, maxval=1.2)
        absent = ~np.asarray(env.alive(state))
        after, ts = advance(keys, state, action)
        assert jax.tree.structure(after) == jax.tree.structure(state)
        assert [x.dtype for x in jax.tree.leaves(after)] == [x.dtype for x in jax.tree.leaves(state)]
        assert ts.reward.shape == (16, n, len(env.reward_components)) and (np.asarray(ts.reward)[absent] == 0).all()
        assert ts.terminated.shape == (16, n) and ts.terminated.dtype == bool
        assert set(ts.metrics) == set(env.metric_reductions) and set(METRICS) < set(ts.metrics)
        space: spaces.Box = env.observation_space
        assert (np.asarray(ts.obs) >= space.low - 1e-5).all() and (np.asarray(ts.obs) <= space.high + 1e-5).all()
        state = after


def test_vmapped_is_the_same_as_single(crossing):
    env, reset = crossing
    keys = jax.random.split(jax.random.key(5), 3)
    many, _ = jax.jit(jax.vmap(env.reset))(keys)
    action = jax.random.uniform(jax.random.key(1), (3, 4, 2), minval=-1.0, maxval=1.0)
    both, ts = jax.jit(jax.vmap(env.step))(keys, many, action)
    for i in range(3):
        one, _ = reset(env, keys[i])
        one, single = step(env, one, action[i])
        assert np.allclose(single.obs, ts.obs[i], atol=1e-4) and np.allclose(single.reward, ts.reward[i], atol=1e-4)
        assert np.allclose(one.north, both.north[i], atol=1e-5)
    again, _ = reset(env, keys[0])
    assert np.array_equal(again.north, reset(env, keys[0])[0].north)


def test_registered():
    handle = registry.resolve("airspace/merge_3p1", {"reward": "compat"})
    assert handle.native.scenario == "merge_3p1" and handle.native.reward == "compat"  # type: ignore[union-attr]
    assert set(handle.baselines) == {"no_op", "waypoint", "mvp"}
    assert {f"airspace/{name}" for name in (*NAMES, "mixed", "random")} <= set(registry.ENVS)
    assert registry.resolve("airspace/canonical_crossing").native.agents == ("A0", "A1", "A2", "A3")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scenario": "head_onn"}, "did you mean 'head_on'"),
        ({"observation": "clen"}, "clean"),
        ({"reward": "x"}, "clean, compat"),
        ({"aircraft": 1}, "at least 2"),
        ({"aircraft": 13, "family": "chase"}, "a chase has at most 12 aircraft, not env.aircraft 13"),
        ({"observation": "set", "neighbors": 5}, "env.neighbors: without effect with env.observation set"),
        ({"min_aircraft": 5}, "env.aircraft"),
        ({"family": "merg"}, "did you mean 'merge'"),
        ({"neighbors": 0}, "at least 1"),
        ({"action_delay": 4}, "0 to 3"),
        ({"reward": "compat", "team_weight": 1.0}, "env.team_weight: 1 has no effect with env.reward compat"),
        ({"reward": "compat", "time_cost": 0.0}, "env.time_cost: 0 has no effect"),
    ],
)
def test_bad_fields(fields, words):
    with pytest.raises(ConfigError, match=words):
        Airspace(**fields)


def test_a_preset_leaves_out_what_has_no_effect_with_compat():
    """Of a preset and of an older run it is dropped, from a flag it is refused; what counts in both forms stays."""
    config = build_config("airspace/merge_4all", overrides={"env_args": {"reward": "compat"}})
    assert config.env_args["snap"] and config.env_args["position_jitter"] == 0.5
    assert not set(ONLY_CLEAN) & set(config.env_args)
    assert registry.resolve(config.env, config.env_args).native.reward == "compat"  # type: ignore[union-attr]
    clean = build_config("airspace/merge_4all")
    assert clean.env_args["reach_reward"] == 5
    older = to_dict(clean) | {"env_args": clean.env_args | {"reward": "compat"}}
    assert from_dict(older).env_args == config.env_args
    played = environment("run", older, None, {}, "evaluate")
    assert played.native.reward == "compat" and played.native.reach_reward == 5.0  # type: ignore[union-attr]
    assert environment("run", to_dict(clean), None, {"reward": "compat"}, "evaluate").native.snap  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="reach_reward: 1 has no effect"):
        registry.resolve("airspace/merge_4all", {"reward": "compat", "reach_reward": 1})


# --- geodesy, policies, pictures -------------------------------------------------------------------------------------


def test_the_map_keeps_distances():
    center = Center(51.0, 13.7)
    generator = np.random.default_rng(0)
    for _ in range(200):
        a, b = (tuple(p) for p in generator.uniform(-45, 45, (2, 2)))
        (lat_1, lon_1), (lat_2, lon_2) = to_latlon(center, *a), to_latlon(center, *b)
        assert math.dist(a, b) == pytest.approx(haversine(lat_1, lon_1, lat_2, lon_2), rel=2e-4, abs=1e-6)
        assert from_latlon(center, lat_1, lon_1) == pytest.approx(a, abs=1e-9)
    assert haversine(51.0, 13.7, 52.0, 13.7) == pytest.approx(60.04, abs=0.005)
    assert convergence(Center(0.0, 0.0)) == 0.0


def test_layered_and_uniform_wind(tmp_path):
    data = load("head_on").to_dict()
    data["wind"] = {"mode": "uniform", "dir_deg": 270, "kt": 20}  # from the west: the air moves east
    (tmp_path / "x.json").write_text(json.dumps(data))
    assert np.allclose(load(tmp_path / "x.json").arrays().wind, [[0, 20], [0, 20]], atol=1e-5)
    layers = [{"alt_ft": 20_000, "dir_deg": 0, "kt": 40}, {"alt_ft": 0, "dir_deg": 0, "kt": 0}]
    data["wind"] = {"mode": "layered", "layers": layers}
    data["agents"][1]["alt_ft"] = 30_000
    (tmp_path / "y.json").write_text(json.dumps(data))
    assert np.allclose(load(tmp_path / "y.json").arrays().wind, [[-20, 0], [-40, 0]], atol=1e-5)


@jax.jit
def shake(keys, scenario):
    return jax.vmap(lambda key: jitter(key, scenario, 1.0, 5.0, 10.0))(keys)


@pytest.fixture(scope="session")
def jittered():
    """Ten starts of each scenario."""
    env = Airspace(scenario="mixed")
    starts = []
    for name in ("head_on", "canonical_crossing", "cross_4all"):
        one = jax.tree.map(jnp.asarray, load(name).arrays(4))
        keys = jax.random.split(jax.random.key(0), 10)
        starts.append(shake(keys, one))
    return env, jax.tree.map(lambda *x: jnp.concatenate(x), *starts)


def test_mvp_resolves(jittered):
    episode = play(*jittered, "mvp")
    assert (episode.first_los < 0).mean() >= 0.95 and episode.reached.mean() >= 0.98


def test_who_has_the_right_of_way_flies_on(crossing):
    """Four through one point: with the right of way an aircraft does what it does without a conflict."""
    env, reset = crossing
    state, obs = reset(env, jax.random.key(0))
    rank = jnp.array([2, 0, 1, 3])
    action = policies.resolve(env, state, rank[:, None] > rank[None, :])
    straight, all_avoid = policies.resolve(env, state, jnp.zeros((4, 4), bool)), policies.mvp(env, None, state, obs)
    np.testing.assert_allclose(action[1], straight[1], atol=1e-5)
    np.testing.assert_allclose(action[3], all_avoid[3], atol=1e-5)
    assert np.abs(all_avoid - straight).max(1).min() > 0.01  # all of them are in conflict


def test_waypoint_policy_arrives_and_does_not_avoid(jittered):
    episode = play(*jittered, "waypoint")
    assert episode.reached.mean() == 1.0 and (episode.first_los > 0).mean() > 0.8


def test_clean_metrics_of_whole_episodes():
    episode = play(Airspace(scenario="mixed"), library(), "no_op")
    assert (episode.reached == 1.0).all()
    safe = {name for i, name in enumerate(NAMES) if episode.first_los[i] < 0}
    assert safe == {"parallel", "chase_2x2", "chase_3p1", "chase_4all"}
    assert (episode.steps < 66).all()


def test_render(crossing):
    env, reset = crossing
    state, _ = reset(env, jax.random.key(0))
    picture = env.render(state)
    assert picture.shape == (480, 480, 3) and picture.dtype == np.uint8
    for _ in range(16):
        state, _ = step(env, state, jnp.zeros((4, 2)))
    later = env.render(state)
    red = (np.abs(later.astype(int) - np.array([205, 70, 60])).sum(axis=-1) < 30).sum()
    assert red > 100 and state.violating.any()  # losses are red


@pytest.mark.parametrize("form", ["clean", "compat"])
def test_separation_is_a_field(form):
    """With another minimum the same flight loses separation at another step and pays for it; 7 NM are lost sooner."""

    def fly(**fields):
        env = Airspace("head_on", reward=form, observation="compat", **fields)
        state, _ = env.reset(jax.random.key(0))
        step, rows = jax.jit(env.step), []
        for _ in range(45):
            state, ts = step(jax.random.key(1), state, jnp.zeros((2, 2)))
            rows.append((float(ts.metrics["min_separation"]), bool(state.violating[0]), float(ts.reward[0, 2])))
        return rows

    near, far = fly(), fly(separation_nm=7.0)
    for rows, edge in ((near, 5.0), (far, 7.0)):
        assert [lost for _, lost, _ in rows] == [gap < edge for gap, _, _ in rows]
        assert sum(paid < 0 for _, _, paid in rows) == 1  # once, where it is entered
    assert sum(lost for _, lost, _ in far) > sum(lost for _, lost, _ in near) > 0
    for wrong in ({"separation_nm": 0.0}, {"collision_nm": 6.0}):
        with pytest.raises(ConfigError, match=f"env.{next(iter(wrong))}"):
            Airspace("head_on", reward=form, **wrong)
