"""Maps drawn at random: what they promise, and that a family's laws are those of each of its maps."""

import jax
import numpy as np
import pytest

from regimen.domains.empowerment.worlds import maps
from regimen.domains.empowerment.worlds.family import GridFamily
from regimen.domains.empowerment.worlds.grid_map import read_rows
from regimen.domains.empowerment.worlds.maps import KINDS, connected, draw_maps, grow, is_test
from regimen.errors import ConfigError


def family(kind: str, **settings) -> GridFamily:
    return GridFamily(**({"kind": kind, "maps": 6, "max_episode_steps": 8} | settings))


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_different_connected_and_of_one_size(kind):
    found = draw_maps(kind, 7, 6, 11, 1, 40, "training", 3)
    assert len({m.text for m in found}) == 40
    for m in found:
        rows = read_rows(m.text)
        cells = {(x, y) for y, row in enumerate(rows) for x, code in enumerate(row) if code != "We"}
        assert (len(rows[0]), len(rows), len(cells)) == (7, 6, 11)
        assert connected(cells, min(cells)) == cells


@pytest.mark.parametrize("kind", KINDS)
def test_no_map_is_both_in_training_and_in_tests(kind):
    training = {m.text for m in draw_maps(kind, 6, 6, 9, 1, 60, "training", 0)}
    tests = {m.text for m in draw_maps(kind, 6, 6, 9, 1, 20, "tests", 0)}
    assert not training & tests
    assert all(map(is_test, tests)) and not any(map(is_test, training))


def test_in_a_niche_the_human_is_shut_in_until_the_robot_pushes():
    for m in draw_maps("niches", 7, 7, 12, 1, 30, "training", 0):
        rows = read_rows(m.text)
        where = {code: (x, y) for y, row in enumerate(rows) for x, code in enumerate(row) if code != "We"}
        x, y = where["Ay"]
        free = [(x + dx, y + dy) for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1)) if rows[y + dy][x + dx] != "We"]
        assert free == [where["Ro"]]


@pytest.mark.parametrize("kind", KINDS)
def test_laws_priors_and_features_are_those_of_each_map(kind):
    world = family(kind)
    step = jax.jit(world.outcomes)
    rng = np.random.default_rng(0)
    for number in range(world.maps):
        alone = world.alone(number)
        one = jax.jit(alone.outcomes)
        state = np.asarray(world.initial_on(number))
        assert state.tolist() == [*np.asarray(alone.initial()), number]
        for _ in range(12):
            actions = rng.integers(world.num_actions, size=world.num_agents)
            p, states = step(state, actions)
            right_p, right = one(state[:-1], actions)
            np.testing.assert_allclose(p, right_p)
            np.testing.assert_array_equal(states[:, :-1], right)
            assert (np.asarray(states)[:, -1] == number).all()
            np.testing.assert_allclose(world.prior(state), alone.prior(state[:-1]), atol=1e-6)
            np.testing.assert_array_equal(world.attained(state), alone.attained(state[:-1]))
            state = np.asarray(states)[rng.choice(len(p), p=np.asarray(p, float) / np.asarray(p, float).sum())]


def test_a_picture_shows_where_everything_is():
    world = family("locked", maps=1)
    alone = world.alone(0)
    state = np.asarray(world.initial_on(0))
    x = np.asarray(world.features(state))
    space = world.feature_space
    sizes = {name: int(np.prod(part.shape)) for name, part in space.spaces.items()}
    assert len(x) == sum(sizes.values())
    grid = x[sizes["at"] + sizes["cells"] :][: sizes["grid"]].reshape(space["grid"].shape)
    rows = alone.grid.rows
    layers = {"We": 1 - grid[..., 0], "Kr": grid[..., 12], "Lr": grid[..., 15]}
    for code, layer in layers.items():
        np.testing.assert_array_equal(layer, [[float(c == code) for c in row] for row in rows])
    agents = grid[..., -8:].reshape(*grid.shape[:2], 2, 4)  # robot and human, by where they face
    for i, code in enumerate(("Ae", "Ay")):
        y, column = np.argwhere(np.array(rows) == code)[0]
        assert agents[y, column, i].tolist() == np.eye(4)[alone.grid.directions[i]].tolist()
    assert agents.sum() == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "nich"}, "is no kind of maps; did you mean 'niches'"),
        ({"places": 40}, "env.places: 40 is out of range"),
        ({"columns": 5, "rows": 5, "places": 6, "maps": 5000}, "env.maps: only"),
        ({"part": "test"}, "neither training nor tests"),
    ],
)
def test_what_no_maps_can_be_is_refused(settings, message, monkeypatch):
    monkeypatch.setattr("regimen.domains.empowerment.worlds.maps.TRIES", 1)
    with pytest.raises(ConfigError, match=message):
        GridFamily(**settings).initial()


def test_kinds_of_which_there_are_hardly_any_are_given_up_soon(monkeypatch):
    drawn = []
    monkeypatch.setattr(maps, "TRIES", 3)
    monkeypatch.setattr(maps, "grow", lambda *size: drawn.append(size) or grow(*size))
    draw_maps.cache_clear()
    with pytest.raises(ConfigError, match="different maps"):
        draw_maps("locked", 5, 5, 9, 1, 500, "training", 0)
    assert len(drawn) <= 40
