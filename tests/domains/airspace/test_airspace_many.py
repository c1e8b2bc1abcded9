"""Any number of aircraft, all of them observed as a set."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from airspace_rollouts import start, step

import regimen
from regimen.domains.airspace import generator, observe
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import load, parse
from regimen.domains.airspace.generator import START
from regimen.errors import ConfigError


def test_a_set_has_the_rows_of_all_others():
    """The clean observation shows three others of four: the same rows, by threat."""
    clean, whole = Airspace(scenario="mixed"), Airspace(scenario="mixed", observation="set")
    for name in ("cross_4all", "t_formation"):
        scenario = load(name).arrays(4)
        (state, rows), (_, seen) = start(clean, scenario), start(whole, scenario)
        for _ in range(3):
            own, others = np.asarray(rows)[:, :12], np.asarray(rows)[:, 12:].reshape(4, 17, 3).swapaxes(1, 2)
            assert np.allclose(own, seen["own"], atol=1e-4)
            for i in range(4):
                there = np.asarray(seen["others"])[i][np.asarray(seen["others_mask"][i]) > 0]
                shown = others[i][others[i][:, 0] > 0]
                by = [x[np.lexsort(np.round(x[:, 1:3], 3).T)] for x in (there, shown)]
                assert len(there) == len(shown) and np.allclose(*by, atol=1e-4)
            action = np.random.default_rng(1).uniform(-1, 1, (4, 2)).astype(np.float32)
            (after, a), (_, b) = step(clean, state, action), step(whole, state, action)
            state, rows, seen = after, a.obs, b.obs


def test_an_aircraft_is_not_in_its_own_set_nor_one_that_has_left():
    env = Airspace(scenario="mixed", observation="set")
    state, seen = start(env, load("t_formation").arrays(4))
    assert np.array_equal(seen["others_mask"], np.pad(1 - np.eye(3, dtype=int), (0, 1)))
    left = state.replace(reached=state.reached.at[0].set(True))
    mask = env.observe(left, env.relate(left), None, None)["others_mask"]
    assert not mask[:, 0].any() and mask[1, 2]


@pytest.mark.parametrize("family", ["any", "sector"])
def test_fifty_aircraft_start_apart_and_most_are_there(family):
    env = Airspace(scenario="random", aircraft=50, min_aircraft=50, family=family)
    scenarios = jax.vmap(lambda key: generator.draw(env, key))(jax.random.split(jax.random.key(0), 8))
    for i in range(8):
        there = np.asarray(scenarios.present[i])
        place = np.stack([scenarios.north[i], scenarios.east[i]], -1)[there]
        gaps = np.linalg.norm(place[:, None] - place, axis=-1) + 1e9 * np.eye(len(place))
        assert there.sum() >= 45 and gaps.min() >= START - 1e-3
    lost = jax.vmap(generator.loses_separation)(scenarios)
    assert lost.all()  # nobody gets through fifty others by luck


def test_the_loop_that_admits_aircraft_is_the_unrolled_one():
    rng = np.random.default_rng(0)
    north, east = rng.uniform(0, 30, (2, 13)).astype(np.float32)
    present = rng.random(13) < 0.9
    keep = np.asarray(generator.apart(*map(jnp.asarray, (north, east, present))))
    for i in range(13):
        free = all(not keep[j] or np.hypot(north[i] - north[j], east[i] - east[j]) >= START for j in range(i))
        assert keep[i] == (present[i] and free)


def test_a_file_may_have_more_than_twelve():
    data = load("head_on").to_dict()
    first = data["agents"][0]
    data["agents"] = [first | {"id": f"A{i}", "lat": first["lat"] + 0.1 * i} for i in range(20)]
    env = Airspace(scenario="head_on", observation="set")
    assert len(parse(data).agents) == 20 and env.observation_space["others"].shape == (2, len(observe.NEIGHBOUR))
    with pytest.raises(ConfigError, match="a merge has at most 12"):
        Airspace(scenario="random", aircraft=20, family="merge")


def test_traffic_is_observed_as_a_set():
    file, env = load("cross_4all"), Airspace(scenario="cross_4all", observation="set")
    _, seen = start(env, file.arrays())
    rows = [[getattr(a, key) for a in file.agents] for key in ("lat", "lon", "hdg_deg", "spd_kt", "waypoint")]
    flown = regimen.airspace.observe(*rows, like=env, center=file.center)
    assert all(np.allclose(flown[name], seen[name], atol=1e-3) for name in seen)
