"""Climbing and descending: the motion, what keeps two apart, what is observed, paid and commanded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from airspace_rollouts import start, step

import regimen
from regimen.domains.airspace import vertical
from regimen.domains.airspace.analysis.pilots import make_airspace
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import load
from regimen.domains.airspace.geodesy import to_latlon
from regimen.errors import ConfigError


def autopilot(altitude, rate, target):
    """BlueSky's altitude capture and hold, one aircraft and one second."""
    away = target - altitude
    engaged = abs(away) > 1.05 * max(25.0, abs(rate) / 60)
    wanted = (1500.0 if away > 0 else -1500.0) if engaged else 0.0
    if abs(wanted - rate) > 300:
        rate += 300 if wanted > rate else -300
    else:
        rate = wanted
    return (altitude + rate / 60 if engaged else target), rate


def test_altitudes_follow_the_autopilot():
    rng = np.random.default_rng(0)
    level = vertical.begin(jnp.full(50, 10_000.0))
    plain = [(10_000.0, 0.0)] * 50
    for _ in range(20):
        target = 10_000 + rng.uniform(-600, 600, 50)
        level = level._replace(target=jnp.asarray(target, jnp.float32))
        for _ in range(10):
            level = vertical.second(level)
            plain = [autopilot(*state, aim) for state, aim in zip(plain, target)]
        assert np.allclose(level.altitude, [altitude for altitude, _ in plain], atol=0.05)
        assert np.allclose(level.rate, [rate for _, rate in plain], atol=0.05)
    assert np.ptp(level.altitude) > 500


def test_a_command_is_a_step_within_the_band():
    assert vertical.command(jnp.array([1.0, -1.0, 0.19, 0.21])).tolist() == [250.0, -250.0, 0.0, 52.5]
    level = vertical.begin(jnp.array([10_000.0, 10_000.0]))._replace(altitude=jnp.array([11_900.0, 10_100.0]))
    assert vertical.aim(level, jnp.array([250.0, 0.0]), 2000.0).target.tolist() == [12_000.0, 10_100.0]


def meeting(feet, **more):
    """Two aircraft that fly towards each other so many feet apart."""
    env = Airspace(scenario="head_on", vertical=True, **more)
    altitude = np.array([10_000.0, 10_000.0 + feet], np.float32)
    return env, start(env, load("head_on").arrays().replace(altitude=altitude))


@pytest.mark.parametrize(("feet", "lost"), [(0.0, True), (990.0, True), (1000.0, False)])
def test_a_thousand_feet_are_enough(feet, lost):
    env, (state, _) = meeting(feet)
    losses = 0.0
    for _ in range(30):
        state, ts = step(env, state, jnp.zeros((2, 3)))
        losses = max(losses, float(ts.metrics["los"]))
    assert bool(losses) == lost == (int(state.first_los) >= 0)
    assert float(ts.metrics["off_level"]) == 0.0


def test_climbing_out_of_the_way_costs_and_is_seen():
    """One climbs, the other descends: no loss of separation, a cost, and what they see of each other changes."""
    env, (state, obs) = meeting(0.0, level_cost=0.5)
    assert obs.shape == (2, 14 + 3 * 20) and env.action_space.shape == (3,)
    level = env.reward_components.index("level")
    for _ in range(10):
        state, ts = step(env, state, jnp.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]]))
        off = np.abs(np.asarray(state.level.altitude) - 10_000)
        assert np.allclose(ts.reward[:, level], -0.5 * off / 1000, atol=1e-5)
        assert np.allclose(ts.obs[:, 12], [off[0] / 1000, -off[1] / 1000], atol=1e-5)
        above = np.clip(off.sum() / 1000, -2, 2)  # of the first other one
        assert np.allclose(ts.obs[:, 14 + 17 * 3], [-above, above], atol=1e-5)
    assert off.min() > 1500 and float(ts.metrics["off_level"]) == pytest.approx(off.mean(), abs=0.1)
    seen = [float(state.danger.max())]
    for _ in range(20):
        state, ts = step(env, state, jnp.zeros((2, 3)))
        seen.append(float(state.danger.max()))
    assert max(seen) == 0.0 and int(state.first_los) < 0 and float(state.min_sep.min()) == 200.0


def test_danger_falls_with_the_vertical_distance():
    dangers = [float(meeting(feet)[1][0].danger.max()) for feet in (0.0, 500.0, 1000.0, 1500.0)]
    assert dangers[1] == pytest.approx(dangers[0], rel=0.05) and dangers[0] > 0.2 and dangers[3] == 0.0
    assert dangers[2] == pytest.approx(dangers[0] / 2, rel=0.05)


def test_speed_is_held_in_a_climb():
    """A calibrated airspeed is a higher true one further up; it lags a little behind in each decision."""
    env, (state, _) = meeting(0.0)
    before = np.asarray(state.tas)
    for _ in range(8):
        state, _ = step(env, state, jnp.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]))
    assert np.allclose(state.cas, 250.0, atol=1.0) and float(state.tas[0] - before[0]) > 5
    assert float(state.tas[1]) == pytest.approx(before[1], abs=0.01)


@pytest.mark.parametrize("observation", ["clean", "set"])
def test_traffic_is_observed_with_its_altitudes(observation):
    env, file = Airspace(scenario="cross_4all", vertical=True, observation=observation), load("cross_4all")
    state, _ = start(env, file.arrays())
    for _ in range(3):
        state, ts = step(env, state, jnp.tile(jnp.array([0.0, 0.0, 1.0]), (4, 1)) * jnp.array([[1], [-1], [0.4], [0]]))
    places = [to_latlon(file.center, float(n), float(e)) for n, e in zip(state.north, state.east)]
    seen = regimen.airspace.observe(
        *(np.array(x) for x in zip(*places)),
        state.heading,
        state.cas,
        [agent.waypoint for agent in file.agents],
        altitude=state.level.altitude,
        rate=state.level.rate,
        level=10_000.0,
        decision=3,
        like=env,
        center=file.center,
    )
    for a, b in zip(jax.tree.leaves(seen), jax.tree.leaves(ts.obs)):
        assert np.allclose(a, b, atol=2e-3)


def test_commands_have_altitudes_where_the_policy_climbs():
    heading, speed, altitude = regimen.airspace.commands(
        [0.0, 90.0], [250.0, 250.0], [[0, 0, 1], [1, 0, -1]], altitude=[11_900.0, 9_000.0], level=10_000.0
    )
    assert (
        heading.tolist() == [0.0, 108.0] and speed.tolist() == [250.0, 250.0] and altitude.tolist() == [12_000, 8_750]
    )
    with pytest.raises(ConfigError, match="given if and only if the policy climbs"):
        regimen.airspace.commands([0.0], [250.0], [[0, 0, 1]])
    with pytest.raises(ConfigError, match="shape"):
        regimen.airspace.commands([0.0], [250.0], [[0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"level_cost": 0.1}, "level_cost: without effect unless env.vertical"),
        ({"vertical": True, "reward": "compat"}, "compat knows no altitude"),
        ({"vertical": True, "separation_ft": 0.0}, "separation_ft: 0 is out of range"),
        ({"observation_range": 30.0}, "observation_range: without effect unless env.observation is set"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Airspace(scenario="head_on", **fields)


def test_others_beyond_the_range_are_not_observed():
    scenario = load("cross_4all").arrays()  # 15 NM from the centre: 21 NM to the neighbours, 30 across
    for reach, seen in ((20.0, 0), (25.0, 2), (35.0, 3)):
        env = Airspace(scenario="cross_4all", observation="set", observation_range=reach)
        _, obs = start(env, scenario)
        assert np.asarray(obs["others_mask"]).sum(1).tolist() == [seen] * 4
        assert (np.asarray(obs["others"])[np.asarray(obs["others_mask"]) == 0] == 0).all()


def test_the_analysis_of_one_level_refuses_altitude():
    with pytest.raises(ConfigError, match="one level only"):
        make_airspace("airspace/head_on", {"vertical": True})
    assert not make_airspace("airspace/head_on", {}).vertical
