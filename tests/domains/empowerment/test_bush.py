"""BushWorld: its rules against plain Python, its maps and files, and what it refuses."""

import dataclasses
import itertools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from empowerment_oracle import bush_outcomes, heading

from regimen.config.layers import build_config
from regimen.domains.empowerment.worlds import files, goals
from regimen.domains.empowerment.worlds.bush import PASS, BushWorld
from regimen.domains.empowerment.worlds.world import WorldState
from regimen.envs.check import check_env
from regimen.envs.registry import ENVS, make_env, resolve
from regimen.errors import ConfigError, EnvError

CROWD = BushWorld(map="Ro 2 Hu / 1 Ro . / Hu . 3", B=3, fill_density=1, max_episode_steps=5)


@jax.jit
def outcomes(world, states, actions):
    return jax.vmap(jax.vmap(world.outcomes, (None, 0)), (0, None))(states, actions)


def as_dict(p, states):
    found = {}
    for weight, state in zip(p.tolist(), states.tolist()):
        if weight > 0:
            found[tuple(state)] = found.get(tuple(state), 0.0) + weight
    return found


def test_every_joint_action_in_random_states_follows_the_rules():
    """Two robots and two humans on nine cells: blocked, contested and off-map moves all occur."""
    rng = np.random.default_rng(0)
    states = np.stack([np.r_[rng.permutation(9)[:4], rng.integers(0, 4, 9)] for _ in range(40)]).astype(np.int32)
    actions = np.array(list(itertools.product(range(5), repeat=4)), np.int32)[rng.permutation(625)[:120]]
    p, reached = (np.asarray(x) for x in outcomes(CROWD, states, actions))
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-6)
    for s, j in itertools.product(range(40), range(120)):
        expected = bush_outcomes(CROWD, tuple(states[s].tolist()), actions[j].tolist())
        mine = as_dict(p[s, j], reached[s, j])
        assert mine.keys() == expected.keys()
        assert all(mine[k] == pytest.approx(expected[k], abs=1e-6) for k in mine)


def step(world, **moves):
    """The only outcome of named moves from the start: positions of the agents, and densities."""
    order = [f"r{i}" for i in range(world.robots)] + [f"h{i}" for i in range(world.humans)]
    actions = jnp.array([world.actions.index(moves.get(who, "pass")) for who in order])
    p, states = world.outcomes(world.initial(), actions)
    (state,) = as_dict(np.asarray(p), np.asarray(states))
    agents = world.robots + world.humans
    return state[:agents], state[agents:]


def test_no_trains_no_swaps_and_the_lowest_number_goes_first():
    trains = BushWorld(map="Ro Hu . .")
    assert step(trains, r0="east", h0="east")[0] == (0, 2)  # the cell was taken at the start
    assert step(trains, r0="east", h0="west")[0] == (0, 1)
    assert step(BushWorld(map="Hu . Ro"), r0="west", h0="east")[0] == (1, 0)
    humans = BushWorld(map="Hu 1 Hu / Ro . .", B=1)
    assert step(humans, h0="east", h1="west")[0] == (3, 0, 2)  # the first fails, and nobody enters


def test_only_robots_change_densities():
    world = BushWorld(map="Ro 2 / Hu 1", B=2, fill_density=2)
    assert step(world, r0="east")[1] == (2, 1, 2, 1)
    assert step(world, r0="pass")[1] == (1, 2, 2, 1)
    assert step(world, r0="north")[1] == (2, 2, 2, 1)  # off the map: nothing
    assert step(world, r0="south")[1] == (2, 2, 2, 1)  # blocked: nothing
    p, states = world.outcomes(world.initial(), jnp.array([0, 3]))
    assert as_dict(np.asarray(p), np.asarray(states)) == {(0, 2, 2, 2, 2, 1): 0.5, (0, 3, 2, 2, 2, 1): 0.5}


@pytest.mark.parametrize("beta_h", [math.inf, 0.0, 1.5])
def test_prior_is_the_shortest_path(beta_h):
    world = BushWorld(map="Hu . . / . Ro .", possible_goals="2,0; 0,0,1,1 = 3", beta_h=beta_h)
    for cell in range(6):
        state = world.initial().at[1].set(cell)
        for goal, policy in enumerate(np.asarray(world.prior(state))[0]):
            np.testing.assert_allclose(policy, heading(world, cell, goal), atol=1e-6)


def test_goals_are_cells_and_rectangles_with_weights():
    world = BushWorld(map="Hu . . / . Ro .", possible_goals=["2,0", {"0,0,1,1": 3}])
    assert world.possible_goals == "2,0; 0,0,1,1 = 3" and world.goal_names == ["2,0", "0,0,1,1"]
    np.testing.assert_allclose(world.goal_weights, [[0.25, 0.75]])
    at = lambda cell: np.asarray(world.attained(world.initial().at[1].set(cell)))[0].tolist()  # noqa: E731
    assert [at(c) for c in (0, 1, 2, 3, 4, 5)] == [[False, True]] * 2 + [[True, False]] + [[False, True]] * 2 + [
        [False, False]
    ]
    assert goals.as_text({"0,0": 0.4, "1,0": 0.25}) == "0,0 = 0.4; 1,0 = 0.25"
    assert goals.as_text([[0, 0], [0, 0, 1, 1]]) == "0,0; 0,0,1,1" and goals.as_text([1, 2]) == "1,2"
    assert goals.as_text(np.array([[0, 0], [1, 1]])) == "0,0; 1,1" and goals.as_text([("0", "0")]) == "0,0"
    assert BushWorld().goal_weights.tolist() == [[0.2] * 5]


def test_features_tell_states_apart():
    a, b = CROWD.initial(), CROWD.initial().at[2].set(7)
    assert CROWD.features(a).shape == (9 * 5,) and not np.array_equal(CROWD.features(a), CROWD.features(b))


BAD = [
    ({"map": "Hu . ."}, "env.map: there is no robot; put Ro on a cell"),
    ({"map": "Ro . ."}, "env.map: there is no human; put Hu on a cell"),
    ({"map": ""}, "env.map: it is empty"),
    ({"map": "Hu Ro / ."}, "env.map: row 1 has 1 cells, row 0 has 2"),
    ({"map": "Hu Ro Xy"}, "env.map: 'Xy' at 2,0 is not Ro, Hu"),
    ({"map": "Hu Ro -1"}, "env.map: '-1' at 2,0"),
    ({"map": "Hu Ro 2"}, "density 2 is more than env.B 1"),
    ({"fill_density": 2}, "env.fill_density: 2 is more than env.B 1"),
    ({"fill_density": -1}, "env.fill_density: -1 is out of range; it must be at least 0"),
    ({"B": 0}, "env.B: 0 is out of range"),
    ({"max_episode_steps": -4}, "env.max_episode_steps: -4 is out of range; it must be at least 1"),
    ({"possible_goals": "5,0"}, "'5,0' is outside the map; x goes from 0 to 4 and y from 0 to 0"),
    ({"possible_goals": "0,0,4,1"}, "outside the map"),
    ({"possible_goals": "-1,0"}, "outside the map"),
    ({"possible_goals": "1"}, "'1' is no goal; write 'x,y'"),
    ({"possible_goals": "2,0,1,0"}, "upper left corner first"),
    ({"possible_goals": "0,0 = -1"}, "the weight must be a number greater than 0"),
    ({"possible_goals": "0,0; 0,0"}, "is there twice"),
    ({"possible_goals": 3}, "3 are no goals"),
    ({"beta_h": -1}, "env.beta_h: -1 is not a number of at least 0, or inf"),
    ({"beta_h": "fast"}, "env.beta_h: 'fast'"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_worlds_are_refused(fields, message):
    with pytest.raises(ConfigError) as error:
        BushWorld(**fields)
    assert message in str(error.value)


# --- files and names -------------------------------------------------------------------------------------------------


def test_map_files(tmp_path):
    bare = tmp_path / "bare.txt"
    bare.write_text("Hu . 1\n. Ro .\n")
    assert resolve(f"world:{bare}").native == BushWorld(map="Hu . 1 / . Ro .")
    full = tmp_path / "full.yaml"
    full.write_text("B: 3\nmax_steps: 7\npossible_goals: ['0,0', '1,0,2,0']\nmap: |\n  Hu 2 Ro\n")
    world = resolve(f"world:{full}", {"beta_h": 2}).native
    assert world == BushWorld(map="Hu 2 Ro", B=3, max_episode_steps=7, possible_goals="0,0; 1,0,2,0", beta_h=2.0)
    assert hash(jax.tree.structure(world)) == hash(jax.tree.structure(dataclasses.replace(world)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("map: |\n  Hu Ro\nhorizon: 3\n", "a bush world has no 'horizon'"),
        ("map: |\n  Hu Ro\nkind: bash\n", "kind 'bash' is unknown; did you mean 'bush'?"),
        ("map: 3\n", "'map' must be rows of tokens"),
        ("map: |\n  Hu Ro\nB: many\n", "B: 'many' is not a whole number"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        files.load(str(file))
    assert message in str(error.value) and str(file) in str(error.value)


def test_files_that_are_not_there_or_not_yaml(tmp_path):
    with pytest.raises(EnvError, match="cannot be read: No such file"):
        files.load(str(tmp_path / "none.txt"))
    (tmp_path / "x.yaml").write_text("map: |\n  Hu Ro\n [")
    with pytest.raises(EnvError, match="not YAML"):
        files.load(str(tmp_path / "x.yaml"))


def test_bush_maps_are_told_from_grid_maps():
    assert files.kind_of("Hu 1 Ro") == "bush" and files.kind_of("Ro . .") == "bush"
    assert files.kind_of("We Ae Ro .. .. We\nWe We Ay We We We") == "grid"


def test_named_worlds_are_listed_without_jax_and_without_reading_their_maps():
    code = "import sys; from regimen.config.catalogue import ENVS; print({'jax', 'yaml'} & {*sys.modules}, len(ENVS))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert out == ["set()", str(len(ENVS))]
    assert {name.removeprefix("world/") for name in ENVS if name.startswith("world/")} == set(files.library())


def test_as_an_environment():
    assert check_env("world/corr5", steps=20) == []
    env = make_env("world/tiny3", max_episode_steps=4)
    state, obs = env.reset(jax.random.key(0))
    assert int(obs["time"]) == 0 and obs["state"].tolist() == [2, 0, 1, 1, 1]
    both = {"robot": jnp.int32(1), "human": jnp.array([4])}
    state, ts = env.step(jax.random.key(1), state, both)
    assert ts.obs["state"].tolist() == [1, 0, 1, 0, 1] and not bool(ts.terminated)
    state, ts = env.step(jax.random.key(1), WorldState(state.world, jnp.int32(3), jnp.array([0])), both)
    assert bool(ts.terminated) and float(ts.reward) == 1.0  # it is still where it wants to be


def test_the_picture_shows_who_is_where():
    world = make_env("world/free3x3")
    state, _ = world.reset(jax.random.key(0))
    image = world.render(jax.device_get(state))
    assert image.dtype == np.uint8 and image.shape[2] == 3
    moved = state.replace(world=state.world.at[0].set(5))
    assert (world.render(jax.device_get(moved)) != image).any()


def test_rows_of_a_file_may_be_numbers(tmp_path):
    file = tmp_path / "numbers.yaml"
    file.write_text("map: [1, 2]\n")
    with pytest.raises(ConfigError, match="there is no robot"):
        resolve(f"world:{file}")


def test_a_file_without_its_prefix_is_answered(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("map: Hu Ro\n")
    with pytest.raises(ConfigError, match=f"a map of a world is written world:{file}"):
        build_config(str(file), algo="empowerment")
    with pytest.raises(ConfigError, match="world:FILE"):
        build_config("world/tini", algo="empowerment")


def test_each_agent_may_stand_in_a_bush_of_its_own():
    world = BushWorld(map="Hu:2 . Ro:1 / Hu 1 Ro", B=3, fill_density=3)
    assert world.layout.densities == (2, 0, 1, 3, 1, 3)
    assert world.layout.robots == (2, 5) and world.layout.humans == (0, 3)
    stays = world.outcomes(world.initial(), jnp.array([PASS, PASS, PASS, PASS]))[1][0]
    assert stays[4:].tolist() == [2, 0, 0, 3, 1, 2]  # robots that pass trample what is under them


@pytest.mark.parametrize("token", ["Hu:", "Hu:x", "Ro:-1", "We:1"])
def test_densities_that_are_none_are_refused(token):
    with pytest.raises(ConfigError, match=f"env.map: '{token}' at 0,0 is not Ro, Hu"):
        BushWorld(map=f"{token} Ro Hu")
