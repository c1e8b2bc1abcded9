"""Observations from latitude, longitude, heading and speed against those of the environment itself."""

import jax.numpy as jnp
import numpy as np
import pytest
from airspace_rollouts import start, step

import regimen
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import NAMES, load
from regimen.domains.airspace.geodesy import to_latlon
from regimen.errors import ConfigError

FORMS = [{}, {"observation": "compat", "reward": "compat"}]


def places(center, positions):
    return np.array([to_latlon(center, *map(float, x)) for x in positions]).T


@pytest.mark.parametrize("form", FORMS, ids=["clean", "compat"])
def test_observations_from_kinematics_are_the_environments_on_all_scenarios(form):
    """Over 14 random decisions; the track after one is that of its heading at its place."""
    rng = np.random.default_rng(0)
    env = Airspace(scenario="mixed", fly_on=not form, **form)  # one program for all
    for name in NAMES:
        file = load(name)
        n, center = len(file.agents), file.center
        scenario = file.arrays(4)  # moved, so that no two others are equally threatening
        scenario = scenario.replace(north=scenario.north + rng.uniform(-0.4, 0.4, 4).astype(np.float32))
        state, obs = start(env, scenario)
        goals = np.array([agent.waypoint for agent in file.agents])
        before = None
        for decision in range(15):
            if decision:
                state, ts = step(env, state, rng.uniform(-1, 1, (4, 2)).astype(np.float32))
                obs = ts.obs
            lat, lon = places(center, np.stack([state.north, state.east], -1)[:n])
            flown = regimen.airspace.observe(
                *(lat, lon, state.heading[:n], state.cas[:n], goals),
                finished=state.reached[:n],
                decision=decision,
                like=env,
                center=center,
                before=before if form else None,
            )
            off = np.abs(flown - obs[:n]).max()
            assert off < 1e-3, (name, decision, off)
            before = lat, lon


def test_observations_hardly_depend_on_the_centre_and_fill_the_room_of_the_policy():
    file, env = load("merge_4all"), Airspace(scenario="mixed", fly_on=True)
    agents = file.agents[:3]
    rows = [[getattr(a, key) for a in agents] for key in ("lat", "lon", "hdg_deg", "spd_kt", "waypoint")]
    here = regimen.airspace.observe(*rows, like=env, center=file.center)
    elsewhere = regimen.airspace.observe(*rows, like=env)
    assert here.shape == (3, env.observation_space.shape[0])
    assert np.abs(here - elsewhere).max() < 0.01
    rank = here[:, 9]
    assert np.allclose(rank, [-1, -1 / 3, 1 / 3])  # places of four, as the policy was trained
    assert not np.allclose(here, regimen.airspace.observe(*rows, like=env, wind=(0.0, 40.0)), atol=0.05)


def test_who_has_arrived_is_in_nobodys_way():
    file, env = load("head_on"), Airspace(scenario="head_on")
    rows = [[getattr(a, key) for a in file.agents] for key in ("lat", "lon", "hdg_deg", "spd_kt", "waypoint")]
    presence = [regimen.airspace.observe(*rows, finished=[False, f], like=env)[0, 12] for f in (False, True)]
    assert presence == [1, 0]


def test_commands_are_those_of_the_environment():
    file = load("cross_4all")
    env = Airspace(scenario="cross_4all")
    state, _ = start(env, file.arrays())
    action = np.array([[1.0, 1.0], [-1.0, -3.0], [0.1, 0.2], [0.5, -0.5]], np.float32)
    after, _ = step(env, state, jnp.asarray(action))
    heading, speed = regimen.airspace.commands(state.heading, state.cas, action)
    assert np.allclose(np.stack([heading, speed], -1), after.target, atol=1e-3)
    assert regimen.airspace.commands([359.0], [316.0], [[1.0, 1.0]], kind="A320")[0] == pytest.approx(17.0)
    assert regimen.airspace.commands([0.0], [316.0], [[0.0, 1.0]])[1] == pytest.approx(316.85, abs=0.01)  # the envelope


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lat": [52.0, float("nan")]}, r"lat: nan is not a finite number"),
        ({"speed": [250.0] * 3}, r"speed: shape \(3,\) for 2 aircraft; it must be \(2,\) or \(\)"),
        ({"kind": "A321"}, "kind: unknown aircraft type 'A321'"),
        ({"decision": 151}, "decision: 151 is out of range"),
        ({"before": ([52.0] * 2, [4.0] * 2)}, "before: the clean observation does not look back"),
        ({"like": Airspace(observation="compat")}, "compat observation with the clean reward"),
        ({"like": Airspace(observation="compat", reward="compat"), "decision": 1}, "before: needed"),
    ],
)
def test_what_cannot_be_observed_is_refused(changed, message):
    args = {"lat": [52.0, 52.2], "lon": [4.0, 4.0], "heading": [0.0, 180.0], "speed": 250.0, "waypoint": (53.0, 4.0)}
    with pytest.raises(ConfigError, match=message):
        regimen.airspace.observe(**(args | changed))
