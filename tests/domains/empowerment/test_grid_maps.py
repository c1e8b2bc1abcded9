"""Maps of grid worlds: what is refused, what comes with Regimen, what humans are believed to do, and pictures."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from regimen.domains.empowerment.worlds import files
from regimen.domains.empowerment.worlds.grid import GridWorld
from regimen.domains.empowerment.worlds.world import WorldState
from regimen.envs import registry
from regimen.errors import ConfigError

ROOM = "We We We We We / We Ae .. Ay We / We .. .. .. We / We We We We We"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"map": "Ae Rx Ay"}, "'Rx' at 1,0 is no code; did you mean 'Ro'"),
        ({"map": "Ae dC Ay", "action_set": "full"}, "disables control buttons, but there is none"),
        ({"map": "Ae Bu Ay"}, "a grid has no bushes"),
        ({"map": "Ae .. Ay / .. .."}, "row 1 has 2 cells, row 0 has 3"),
        ({"map": "Ae .. .."}, "there is no human; put Ay"),
        ({"map": "Ay .. .."}, "there is no robot; put Ae"),
        ({"map": "  "}, "it is empty"),
        ({"map": "Ae dK Ay", "action_set": "full"}, "disables kill buttons, but there is none"),
        ({"map": ROOM, "possible_goals": "0,0"}, "'0,0' is a wall"),
        ({"map": ROOM, "possible_goals": "9,1"}, "outside the map"),
        ({"map": ROOM, "possible_goals": "1;2"}, "is no goal"),
        ({"map": ROOM, "max_episode_steps": -3}, "max_episode_steps: -3 is out of range"),
        ({"map": ROOM, "unsteady": 1.5}, "unsteady: 1.5 is out of range"),
        ({"map": ROOM, "beta_h": -1}, "beta_h"),
        ({"map": ROOM, "directions": "Q"}, "'Q' is not one of E, S, W, N"),
        ({"map": ROOM, "directions": "E, E, E"}, "3 for 2 agents"),
        ({"map": ROOM, "action_set": "foward, left"}, "did you mean 'forward'"),
        ({"map": ROOM, "action_set": "left, right"}, "with forward"),
        ({"map": ROOM, "handlers": "dogs"}, "neither everyone nor robots"),
    ],
)
def test_refused(fields, message):
    with pytest.raises(ConfigError, match=r"^env\.") as e:
        GridWorld(**fields)
    assert message in str(e.value)
    assert "\n" not in str(e.value)


def test_goals_that_leave_cells_out_are_a_warning():
    with pytest.warns(UserWarning, match=r"leaves out 2,1, 3,1, 2,2, 3,2: .*X_h = 0"):
        GridWorld(map=ROOM, possible_goals="1,1; 1,2")


def test_goals():
    world = GridWorld(map=ROOM, possible_goals={"1,1": 3, "0,0,4,3": 1})
    assert world.goal_names == ["1,1", "0,0,4,3"]
    np.testing.assert_allclose(world.goal_weights, [[0.75, 0.25]])
    start = np.asarray(world.initial())
    assert np.asarray(world.attained(start)).tolist() == [[False, True]]
    assert np.asarray(world.attained(np.array([2, 0, 0, 0]))).tolist() == [[True, True]]
    assert GridWorld(map=ROOM).goal_names == ["1,1", "2,1", "3,1", "1,2", "2,2", "3,2"]


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_told_from_a_bush_map(tmp_path):
    (tmp_path / "room.yaml").write_text(
        "max_steps: 7\nactions: full\npossible_goals: ['1,1', '0,0,4,3']\nmap: |\n  " + ROOM.replace(" / ", "\n  ")
    )
    world = registry.make_env(f"world:{tmp_path / 'room.yaml'}", beta_h="inf")
    assert isinstance(world, GridWorld)
    assert (world.max_episode_steps, world.num_actions, world.num_goals) == (7, 7, 2)
    (tmp_path / "plain.txt").write_text(ROOM.replace(" / ", "\n"))
    assert files.load(str(tmp_path / "plain.txt")).num_goals == 6
    (tmp_path / "bad.yaml").write_text("colour: red\nmap: |\n  Ae Ay\n")
    with pytest.raises(ConfigError, match="a grid world has no 'colour'"):
        files.load(str(tmp_path / "bad.yaml"))


@pytest.mark.parametrize(
    "name", [name for name, entry in files.library().items() if files.kind_of(entry.get("map", "Hu")) == "grid"]
)
def test_built_in(name):
    world = registry.resolve(f"world/{name}").native
    assert isinstance(world, GridWorld)
    p, states = jax.eval_shape(world.outcomes, world.initial(), np.zeros(world.robots + world.humans, np.int32))
    assert p.shape[0] <= 9
    assert states.shape == (p.shape[0], len(world.sizes))
    assert (world.layout.start < np.array(world.sizes)).all()
    prior = np.asarray(world.prior(world.initial()))
    np.testing.assert_allclose(prior.sum(-1), 1, rtol=1e-6)


def test_trivial_is_the_given_one():
    """16 configurations of robot, human and rock, and 256 states with directions, without time."""
    from regimen.domains.empowerment.reach import enumerate_states

    world = registry.make_env("world/trivial")
    table = enumerate_states(world, horizon=None)
    assert len(table.states) == 256
    assert len(np.unique(table.states[:, [0, 1, 4]], axis=0)) == 16
    assert table.successor.shape[1] == 16


def test_three_agents_have_64_joint_actions_and_three_outcomes():
    world = registry.make_env("world/asymmetric_freeing")
    assert world.num_actions ** (world.robots + world.humans) == 64
    assert world.layout.winners == 3
    assert 16 <= world.num_goals <= 18


# --- what humans are believed to do ----------------------------------------------------------------------------------


def actions_for(world, place, facing, goal):
    state = np.asarray(world.initial()).copy()
    state[1], state[3] = world.grid.cells.index(place), "ESWN".index(facing)
    row = np.asarray(world.prior(state))[0, world.goal_names.index(goal)]
    return {name: round(float(p), 6) for name, p in zip(world.actions, row) if p > 0}


def test_humans_turn_and_walk_on_a_shortest_way():
    world = GridWorld(map=ROOM, action_set="full")
    assert actions_for(world, (3, 1), "W", "1,1") == {"forward": 1}
    assert actions_for(world, (3, 1), "E", "1,1") == {"left": 0.5, "right": 0.5}
    assert actions_for(world, (3, 1), "S", "1,1") == {"right": 1}
    assert actions_for(world, (3, 1), "S", "1,2") == {"forward": 1}  # turning first takes a second turn
    there = actions_for(world, (1, 1), "W", "1,1")  # every action but a step away, and nothing with the hands
    assert there == {"still": 0.25, "left": 0.25, "right": 0.25, "forward": 0.25}
    assert actions_for(world, (1, 1), "E", "1,1") == pytest.approx(dict.fromkeys(("still", "left", "right"), 1 / 3))


def test_humans_see_neither_rocks_nor_doors_but_lava():
    assert actions_for(GridWorld(map="Ae We We / .. Ro Ay"), (2, 1), "W", "0,1") == {"forward": 1}
    assert actions_for(GridWorld(map="Ae We We / .. Lr Ay"), (2, 1), "W", "0,1") == {"forward": 1}
    pool = GridWorld(map="Ae .. .. / .. La Ay")
    assert actions_for(pool, (2, 1), "W", "0,1") == {"right": 1}  # the long way round
    assert actions_for(pool, (2, 1), "W", "1,1") == {"forward": 1}  # but into it where that is the goal


def test_finite_beta_h():
    soft = actions_for(GridWorld(map=ROOM, beta_h=2.0), (3, 1), "W", "1,1")
    weights = {"forward": 1, "still": math.exp(-2), "left": math.exp(-4), "right": math.exp(-4)}
    total = sum(weights.values())
    assert soft == pytest.approx({k: w / total for k, w in weights.items()}, abs=1e-5)


# --- as an environment -----------------------------------------------------------------------------------------------


def test_features_tell_states_apart():
    world = GridWorld()
    rng = np.random.default_rng(0)
    states = np.unique(rng.integers(0, np.array(world.sizes), (50, len(world.sizes))), axis=0)
    rows = np.asarray(jax.vmap(world.features)(states))
    assert len(np.unique(rows, axis=0)) == len(states)
    assert rows.min() >= 0 and rows.max() <= 1


def test_an_episode_of_the_environment():
    world = registry.make_env("world/trivial")
    state, obs = world.reset(jax.random.PRNGKey(0))
    step = jax.jit(world.step)
    for t in range(10):
        assert world.observation_space.contains({k: np.asarray(v) for k, v in obs.items()}), t
        state, out = step(jax.random.PRNGKey(t), state, np.int32(3))
        obs = out.obs
    assert bool(out.terminated)
    assert world.layout.unpack(np.asarray(state.world)).things.tolist() == [3]  # pushed twice, then the wall


def test_render_shows_who_is_where():
    """Colours in the middle of cells: the robot, the human, the rock and a wall differ, and follow the state."""
    world = registry.make_env("world/trivial")

    def pixels(state, *cells):
        picture = world.render(WorldState(np.array(state), np.int32(0), np.array([0])))
        size = picture.shape[1] / 6
        # off the middle: away from noses and the goal's ring
        return [
            tuple(picture[int((y + 0.5) * size + size * 0.2), int((x + 0.5) * size - size * 0.2)]) for x, y in cells
        ]

    start = np.asarray(world.initial())
    robot, rock, human, wall, floor = pixels(start, (1, 1), (2, 1), (2, 2), (3, 3), (3, 1))
    assert len({robot, rock, human, wall, floor}) == 5
    moved = start.copy()
    moved[[0, 4]] = [1, 2]  # one step on, with the rock
    assert pixels(moved, (1, 1), (2, 1), (3, 1)) == [floor, robot, rock]
