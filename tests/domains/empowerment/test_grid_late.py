"""Grids: rocks that kill, agents that join late, and control buttons."""

import jax
import numpy as np
import pytest

import regimen
from regimen.domains.empowerment.worlds.grid import GridWorld
from regimen.errors import ConfigError


class Play:
    """A world that is stepped by names of actions, where what happens is certain."""

    def __init__(self, **settings):
        self.world = GridWorld(**settings)
        self.state = np.asarray(self.world.initial())
        self.outcomes = jax.jit(self.world.outcomes)

    def step(self, *names: str) -> "Play":
        actions = np.array([self.world.actions.index(name) for name in names])
        p, states = self.outcomes(self.state, actions)
        assert np.asarray(p).max() == pytest.approx(1)
        self.state = np.asarray(states)[int(np.argmax(p))]
        assert (self.state >= 0).all() and (self.state < np.array(self.world.sizes)).all()
        return self

    @property
    def now(self):
        return self.world.layout.unpack(self.state)

    def cell(self, agent: int) -> tuple[int, int]:
        return self.world.grid.cells[self.state[agent]]


# --- rocks that kill -------------------------------------------------------------------------------------------------

ROCK = {"map": "Ae Rk Ay .. .. / .. .. .. .. ..", "directions": "E, W"}


def test_a_deadly_rock_ends_whom_it_is_pushed_onto():
    play = Play(**ROCK).step("forward", "still")
    assert np.asarray(play.now.gone).tolist() == [False, True]
    assert play.cell(0) == (1, 0) and play.cell(1) == (2, 0)
    assert play.world.grid.cells[int(play.now.things[0])] == (2, 0)
    assert play.step("still", "left").now.facing[1] == 2  # who has ended does nothing
    assert play.step("forward", "still").cell(0) == (1, 0)  # and a rock that lies on somebody stays there


def test_who_steps_aside_is_not_hit_and_an_ordinary_rock_does_not_move():
    play = Play(**ROCK | {"directions": "E, E"}).step("forward", "forward")
    assert not np.asarray(play.now.gone).any()
    assert play.cell(1) == (3, 0) and play.world.grid.cells[int(play.now.things[0])] == (2, 0)
    other = Play(**ROCK | {"map": ROCK["map"].replace("Rk", "Ro")})
    assert other.step("forward", "still").cell(0) == (0, 0)
    chain = Play(map="Ae Rk Bl Ay ..", directions="E, W").step("forward", "still")
    assert chain.cell(0) == (0, 0) and not np.asarray(chain.now.gone).any()  # the block is the one that would land


def test_humans_push_no_deadly_rock():
    play = Play(map="Ay Rk .. Ae", directions="E, E").step("still", "forward")
    assert play.cell(1) == (0, 0)


# --- agents that join late -------------------------------------------------------------------------------------------


def test_who_joins_late_is_not_there_before():
    play = Play(map="Ae .. Ay .. ..", directions="E, W", joins="0, 3")
    human = play.world.layout.agents - 1
    assert not np.asarray(play.world.attained(play.state)).any()
    play.step("forward", "forward").step("forward", "forward")
    assert play.cell(0) == (1, 0) and play.cell(human) == (2, 0)  # its cell is kept free
    assert int(play.now.waits[1]) == 1 and not np.asarray(play.world.attained(play.state)).any()
    play.step("left", "forward")
    assert int(play.now.waits[1]) == 0 and play.cell(1) == (2, 0)
    assert np.asarray(play.world.attained(play.state)).sum() == 1
    assert play.step("left", "left").now.facing[1] == 1
    rock = Play(map="Ae Rk Ay ..", directions="E, W", joins="0, 2").step("forward", "still")
    assert rock.cell(0) == (0, 0)


def test_a_world_with_somebody_who_joins_late_is_solved():
    world = GridWorld(map="Ae .. Ay ..", directions="E, W", joins="0, 2", max_episode_steps=5)
    solution = regimen.empowerment.solve(world)
    together = regimen.empowerment.solve(GridWorld(map=world.map, directions="E, W", max_episode_steps=5))
    assert solution.at().x_h[0] < together.at().x_h[0]  # less can be attained in the time
    with pytest.raises(regimen.errors.EnvError, match="human 0 can attain none of its goals"):
        regimen.empowerment.solve(GridWorld(map=world.map, joins="0, 6", max_episode_steps=5))


# --- control buttons -------------------------------------------------------------------------------------------------

CONTROL = {"map": "We CB We / .. Ae .. / .. Ay ..", "directions": "N, E", "action_set": "full"}


def test_a_robot_teaches_a_button_and_a_human_makes_it_act():
    play = Play(map="We CB We .. / .. Ae .. .. / .. .. Ay ..", directions="N, N", action_set="full")
    play.step("toggle", "still")
    assert play.now.arming.tolist() == [1] and play.now.programs.tolist() == [0]
    play.step("right", "still")
    right = play.world.actions.index("right")
    assert play.now.programs.tolist() == [1 + right] and play.now.arming.tolist() == [0]
    play.step("forward", "left").step("forward", "forward")  # the robot makes room: 3,1; the human is at 1,2
    play.step("still", "right").step("still", "forward")
    assert play.cell(1) == (1, 1)
    before = int(play.now.facing[0])
    play.step("still", "toggle")
    assert play.now.forced.tolist() == [1 + right] and int(play.now.facing[0]) == before
    play.step("forward", "still")  # it turns, whatever it wants
    assert int(play.now.facing[0]) == (before + 1) % 4 and play.now.forced.tolist() == [0]
    play.step("still", "still")
    assert int(play.now.facing[0]) == (before + 1) % 4  # once


def test_an_untaught_button_and_one_out_of_use_do_nothing():
    play = Play(map="We CB We / .. Ay .. / .. Ae ..", directions="N, N", action_set="full").step("still", "toggle")
    assert play.now.forced.tolist() == [0]
    play = Play(map="We CB We / dC Ae .. / .. Ay ..", directions="N, N", action_set="full")
    play.step("toggle", "still").step("left", "still").step("toggle", "still")
    assert int(play.now.switches[3]) == 1 and play.now.programs.tolist() == [1 + play.world.actions.index("left")]


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="a switch disables control buttons, but there is none"):
        GridWorld(map="dC Ae Ay", action_set="full")
    with pytest.raises(ConfigError, match=r"env\.joins: '1' is not a number of steps for each of 2 agents"):
        GridWorld(map="Ae Ay", joins="1").initial()


def test_layouts_without_these_are_as_they_were():
    world = GridWorld(map="Ae Ro Ay")
    assert len(world.sizes) == 5 and world.layout.late == () and world.layout.control_sizes == ()
