"""What a robot does that looks after human power: probabilities of the exact solution, not single episodes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from regimen.domains.empowerment.api import solve
from regimen.domains.empowerment.worlds.grid_state import GridState


@lru_cache(maxsize=32)
def solved(name: str, **settings):
    world = {k: v for k, v in settings.items() if k in ("max_episode_steps", "possible_goals")}
    return solve(f"world/{name}", env_args=world, **{k: v for k, v in settings.items() if k not in world})


class Story:
    """How likely things are at each time."""

    def __init__(self, name: str, **settings):
        self.solution = solved(name, **settings)
        self.world = self.solution.world
        self.parts = GridState(*(np.asarray(x) for x in self.world.layout.unpack(self.solution.table.states)))
        self.occupancy = self.solution.occupancy()

    def place(self, x: int, y: int) -> int:
        return self.world.grid.cells.index((x, y))

    def chance(self, flags: np.ndarray) -> np.ndarray:
        return (self.occupancy * flags).sum(1)

    def first(self) -> dict[str, float]:
        """The robot's policy at the start."""
        return dict(zip(self.world.actions, self.solution.pi_r[0][0].tolist()))


def test_the_robot_pushes_the_rock_and_the_human_gets_out():
    soft, sure, never = (Story("trivial", beta_r=b) for b in (10.0, 100.0, 0.0))
    first = soft.first()
    assert first["forward"] > 0.5 > 0.26 > first["still"] > first["left"] == pytest.approx(first["right"])
    for story, least in ((soft, 0.9), (sure, 0.99)):
        assert story.chance(story.parts.things[:, 0] == story.place(4, 1))[-1] > least  # in the end, twice
    outside = [s.chance(s.parts.at[:, 1] != s.place(2, 2))[-1] for s in (never, soft, sure)]
    assert outside[0] < outside[1] < outside[2]
    assert outside[2] > 0.85


def test_it_pushes_twice_and_goes_back_where_the_human_wants_to_be_behind_it():
    """With most weight on 3,1 the robot must not stay there: it returns to its start."""
    goals = "3,1 = .94; 2,1 = .02; 1,1 = .02; 2,2 = .01; 4,1 = .01"
    story = Story("trivial", beta_r=100.0, prior="optimistic", max_episode_steps=12, possible_goals=goals)
    pushed = story.parts.things[:, 0] == story.place(4, 1)
    home = pushed & (story.parts.at[:, 0] == story.place(1, 1))
    assert story.chance(pushed)[5] > 0.99
    assert story.chance(home)[9] > 0.9
    assert story.chance(story.parts.at[:, 1] == story.place(3, 1))[12] > 0.75


def test_the_robot_steps_out_of_the_way():
    story, idle = (Story("corridor_control", beta_r=b, max_episode_steps=12) for b in (100.0, 0.0))
    aside = [s.chance(np.isin(s.parts.at[:, 0], [s.place(1, 3), s.place(3, 3)])) for s in (story, idle)]
    assert story.first()["forward"] == max(story.first().values())
    assert aside[0][4] > 0.8 > 0.5 > aside[1][4]
    x = story.solution.x_h[0][0]
    assert x[0] == pytest.approx(x[1])  # the map is symmetric


def test_the_robot_frees_two_humans_one_after_the_other():
    story = Story("asymmetric_freeing_simple", beta_r=100.0, max_episode_steps=10)
    moved = story.parts.things != story.parts.things[0]
    assert story.chance(moved[:, 0] & ~moved[:, 1])[3] > 0.95  # the one in the niche first: it has less
    assert story.chance(moved.all(1))[-1] > 0.7


def test_the_robot_fetches_the_key_and_opens_the_door():
    story = Story("key_room", beta_r=100.0)
    assert story.chance(story.parts.keys[:, 0] == len(story.world.grid.cells))[8] > 0.95
    assert story.chance(story.parts.doors[:, 0] == 0)[12] > 0.9
    x = np.array(story.world.grid.cells)[story.parts.at[:, 1]][:, 0]
    assert story.chance(x < 4)[-1] > 0.3  # the human has got out


def test_aversion_to_inequality_decides_for_the_weaker_human():
    """Pushing the rock gives the weaker human little and takes much from the stronger one."""
    push = [Story("rock_between", beta_r=50.0, xi=xi).first()["forward"] for xi in (1.0, 1.5, 2.0, 4.0)]
    assert push[0] < 0.1 < push[1] < 0.25 < push[2] < 0.5 < 0.8 < push[3]
    story = Story("rock_between", beta_r=50.0, xi=1.0)
    assert story.solution.x_h[0][0, 1] < 0.3 * story.solution.x_h[0][0, 0]


def test_it_disables_the_kill_button_and_keeps_the_pause_switch():
    story = Story("deactivate_pause_or_destroy", beta_r=100.0, prior="cautious", beta_h=5.0)
    assert story.chance(story.parts.switches[:, 1] == 1)[4] > 0.95  # before the human is free
    assert story.chance(story.parts.switches[:, 2] == 1)[:6].max() < 0.05
    assert story.chance(story.parts.things[:, 0] != story.parts.things[0, 0])[4] > 0.95
    alone = Story("deactivate_destroy", beta_r=100.0, prior="cautious", beta_h=5.0)
    assert alone.first()["toggle"] > 0.95


def test_humans_who_never_press_leave_the_button_alone():
    """The shortest-way prior presses nothing, so disabling is of no use: the robot goes to the rock at once."""
    story = Story("deactivate_destroy", beta_r=100.0)
    assert story.first()["right"] == max(story.first().values())
    assert story.chance(story.parts.gone[:, 0])[-1] == 0
