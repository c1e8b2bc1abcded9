"""Every rule of the grid world on a tiny map, and all of them at once against an independent simulator."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from grid_oracle import Board
from hypothesis import given, settings
from hypothesis import strategies as st

from regimen.domains.empowerment.worlds.grid import GridWorld
from regimen.domains.empowerment.worlds.grid_map import ACTIONS

FULL = "full"


@jax.jit
def laws(world, state, actions):
    return world.outcomes(state, actions)


@jax.jit
def many_laws(world, states, actions):
    return jax.vmap(world.outcomes)(states, actions)


def merged(p, states):
    """State -> probability, the same states together and impossible ones left out."""
    out = {}
    for share, state in zip(np.asarray(p, float), np.asarray(states)):
        if share > 0:
            out[tuple(state.tolist())] = out.get(tuple(state.tolist()), 0.0) + share
    return out


class Game:
    """A world played by hand: agents robots first, actions by name."""

    def __init__(self, map, directions="", action_set=FULL, **fields):
        self.world = GridWorld(map=map, directions=directions, action_set=action_set, **fields)
        self.board = Board(self.world)
        self.state = tuple(np.asarray(self.world.initial()).tolist())

    def after(self, *names):
        """What may come: state -> probability."""
        actions = np.array([self.world.actions.index(name) for name in names])
        return merged(*laws(self.world, np.array(self.state), actions))

    def play(self, *names):
        """The only thing that can come, as a dictionary."""
        found = self.after(*names)
        assert len(found) == 1, found
        self.state = next(iter(found))
        return self.board.read(self.state)


def test_turning_and_walking():
    game = Game("Ae .. .. We / We We Ay We", "E, N")
    assert game.play("left", "right")["facing"] == ["N", "E"]
    assert game.play("forward", "forward")["at"] == [(0, 0), (2, 1)]  # the edge and a wall stop them
    assert game.play("right", "still")["facing"] == ["E", "E"]
    assert game.play("forward", "still")["at"] == [(1, 0), (2, 1)]
    for facing in "SWNE":
        assert game.play("right", "left")["facing"][0] == facing


def test_nobody_follows_or_swaps():
    assert Game(".. Ae Ay ..", "E, W").play("forward", "forward")["at"] == [(1, 0), (2, 0)]
    assert Game(".. Ae Ay ..", "E, E").play("forward", "forward")["at"] == [(1, 0), (3, 0)]


def test_one_of_those_who_want_a_cell_gets_it():
    game = Game("Ae .. Ay", "E, W")
    found = game.after("forward", "forward")
    places = {tuple(game.board.read(s)["at"]): p for s, p in found.items()}
    assert places == {((1, 0), (2, 0)): 0.5, ((0, 0), (1, 0)): 0.5}
    three = Game("Ae .. Ay / We Ay We", "E, W, N")
    assert sorted(three.after("forward", "forward", "forward").values()) == pytest.approx([1 / 3] * 3)
    assert len(three.after("forward", "forward", "still")) == 2


def test_blocks_are_independent():
    game = Game("Ae .. Ay We Ae .. Ay", "E, E, W, W")
    assert list(game.after(*["forward"] * 4).values()) == [0.25] * 4
    assert len(game.after("forward", "still", "forward", "forward")) == 2


def test_pushes_that_touch_conflict():
    """Two blocks are pushed to one cell, and a walker wants the cell beside: all of a chain of claims is one block."""
    game = Game("Ae Bl .. Bl Ay", "E, W")
    ends = {tuple(game.board.read(s)["things"]): p for s, p in game.after("forward", "forward").items()}
    assert ends == {((2, 0), (3, 0)): 0.5, ((1, 0), (2, 0)): 0.5}
    chain = Game("Ae Bl .. Bl Ay / We We Ay We We", "E, W, N")
    assert sorted(chain.after("forward", "forward", "forward").values()) == pytest.approx([1 / 3] * 3)


def test_who_pushes_what():
    assert Game("Ay Bl .. We Ae", "S, E").play("still", "forward")["things"] == [(2, 0)]
    assert Game("Ay Ro .. We Ae", "S, E").play("still", "forward")["things"] == [(1, 0)]
    assert Game("Ae Ro .. We Ay", "E, S").play("forward", "still")["things"] == [(2, 0)]
    row = Game("Ae Ro Bl .. Ay", "E, S").play("forward", "still")
    assert (row["at"][0], row["things"]) == ((1, 0), [(2, 0), (3, 0)])


@pytest.mark.parametrize("behind", ["We", "Ay", "La", "Kr", "Cr", "Or", "Ki"])
def test_no_push_without_an_empty_floor_behind(behind):
    game = Game(f"Ae Ro {behind} .. Ay", "E, S" if behind != "Ay" else "E, S, S")
    assert game.play("forward", *["still"] * (len(game.board.read(game.state)["at"]) - 1))["things"] == [(1, 0)]


def test_pushed_onto_unsteady_ground():
    assert Game("Ae Ro Un Ay", "E, S").play("forward", "still")["things"] == [(2, 0)]


def test_keys_and_doors():
    game = Game("Kr Ae Lr .. Ay", "E, W")
    assert game.play("toggle", "still")["doors"] == [2]  # nothing in its hands
    game.play("left", "still")
    game.play("left", "still")
    assert game.play("forward", "still")["at"][0] == (1, 0)  # a key lies in the way
    assert game.play("pickup", "still")["keys"] == [0]
    game.play("left", "still")
    game.play("left", "still")
    assert game.play("forward", "still")["at"][0] == (1, 0)  # locked
    assert game.play("toggle", "still")["doors"] == [0]
    assert game.play("toggle", "still")["doors"] == [1]  # closed, no longer locked
    assert game.play("toggle", "still")["doors"] == [0]
    assert game.play("forward", "still")["at"][0] == (2, 0)
    assert game.play("still", "forward")["at"][1] == (3, 0)
    assert game.play("drop", "still")["keys"] == [0]  # the human is there
    game.play("left", "still")
    game.play("left", "still")
    assert game.play("drop", "toggle") == game.board.read(game.state)
    assert game.board.read(game.state)["keys"] == [(1, 0)]
    assert game.board.read(game.state)["doors"] == [0]  # the robot stands in it


def test_keys_fit_doors_of_their_colour():
    game = Game("Kg Ae Lr Ay", "W, S")
    game.play("pickup", "still")
    game.play("left", "still")
    game.play("left", "still")
    assert game.play("toggle", "still")["doors"] == [2]


def test_closed_doors_need_no_key():
    game = Game("Ae Cr .. Ay", "E, W")
    assert game.play("forward", "still")["at"][0] == (0, 0)
    assert game.play("toggle", "still")["doors"] == [0]
    assert game.play("forward", "still")["at"][0] == (1, 0)


def test_only_handlers_handle():
    game = Game("Ae Kr Ay Cg ..", "S, W", handlers="robots")
    assert game.play("still", "pickup")["keys"] == [(1, 0)]
    game.play("still", "left")
    game.play("still", "left")
    assert game.play("still", "toggle")["doors"] == [1]
    assert Game("Ae Kr Ay Cg ..", "S, W").play("still", "pickup")["keys"] == [1]


def test_one_key_at_a_time_and_one_taker():
    game = Game("Ae Kr Ay", "E, W")
    assert [game.board.read(s)["keys"] for s in game.after("pickup", "pickup")] == [[0], [1]]
    both = Game("Kr Ae Kg .. Ay", "W, S")
    both.play("pickup", "still")
    both.play("left", "still")
    both.play("left", "still")
    assert both.play("pickup", "still")["keys"] == [0, (2, 0)]


def test_walking_in_or_closing_the_door_conflict():
    game = Game("Ae Or Ay", "E, W")
    ends = [(s["at"][0], s["doors"]) for s in map(game.board.read, game.after("forward", "toggle"))]
    assert ends == [((1, 0), [0]), ((0, 0), [1])]


def test_lava_is_the_end():
    game = Game("Ae La .. / Ay .. ..", "E, E")
    assert game.play("forward", "forward")["gone"] == [True, False]
    assert game.play("forward", "left")["at"][0] == (1, 0)
    assert game.play("right", "forward")["at"] == [(1, 0), (1, 1)]  # what is left of it is in the way
    assert game.board.read(game.state)["facing"][0] == "E"


def test_kill_button():
    game = Game("Ae .. .. / Ay Ki ..", "E, E")
    assert game.play("toggle", "still")["gone"][0] is False  # robots cannot press it
    after = game.play("forward", "toggle")
    assert after["gone"] == [True, False]
    assert after["at"][0] == (1, 0)  # what was done in the same step still happens
    assert game.play("forward", "toggle")["at"][0] == (1, 0)
    assert game.board.read(game.state)["gone"][0] is True


def test_pause_switch():
    game = Game("Ae .. .. / Ay Ps ..", "E, E")
    assert game.play("forward", "toggle")["pause"] is True
    assert game.play("forward", "still")["at"][0] == (1, 0)
    assert game.play("left", "still")["facing"][0] == "E"
    assert game.play("forward", "toggle")["pause"] is False
    assert game.play("forward", "still")["at"][0] == (2, 0)


@pytest.mark.parametrize(("off", "button", "flag"), [("dK", "Ki", "no_kill"), ("dP", "Pa", "no_pause")])
def test_disabling_switches(off, button, flag):
    game = Game(f"{off} Ae .. / .. Ay {button}", "W, E")
    assert game.play("toggle", "still")[flag] is True
    after = game.play("still", "toggle")
    assert (after["gone"][0], after["pause"]) == (False, False)
    assert game.play("toggle", "left")[flag] is False  # in use again
    game.play("still", "right")
    after = game.play("still", "toggle")
    assert (after["gone"][0], after["pause"]) == ((True, False) if button == "Ki" else (False, True))


def test_humans_do_not_disable():
    assert Game("Ae .. Ki / Ay dK ..", "E, E").play("still", "toggle")["no_kill"] is False


def test_unsteady_ground():
    game = Game(".. .. .. / .. Un .. / Ae .. Ay", "N, S", unsteady=0.4)
    assert len(game.after("forward", "still")) == 1  # onto it, nobody goes astray
    game.play("forward", "still")
    game.play("right", "still")
    assert game.play("forward", "still")["at"][0] == (1, 1)
    found = game.after("forward", "still")
    ends = {(s["at"][0], s["facing"][0]): round(found[k], 6) for k in found for s in [game.board.read(k)]}
    assert ends == {((2, 1), "E"): 0.6, ((1, 0), "N"): 0.2, ((1, 2), "S"): 0.2}
    assert game.play("right", "still")["at"][0] == (1, 1)  # turning is safe


def test_no_footing_to_push_on_unsteady_ground():
    game = Game("Un Bl .. / Ae We Ay", "N, S", unsteady=0.0)
    game.play("forward", "still")
    game.play("right", "still")
    assert game.play("forward", "still")["things"] == [(1, 0)]


def test_states_hold_only_what_can_change():
    trivial = GridWorld()
    assert len(trivial.sizes) == 5  # two places, two directions, one rock
    assert GridWorld(map="Ae Ki Ay").sizes == (2, 2, 4, 4)  # nobody toggles with the small set
    assert GridWorld(map="Ae Ki Ay", action_set="full").sizes == (2, 2, 4, 4, 2)  # the robot can end
    assert GridWorld(map="Ae Lr Cr Ay").sizes == (4, 4, 4, 4, 3, 2)


def test_minimal_actions():
    game = Game("Ae .. Ay", "E, S", action_set="minimal")
    assert game.world.actions == ("forward", "left")
    assert game.play("forward", "left") == game.board.read((1, 2, 0, 0))


# --- all rules at once -----------------------------------------------------------------------------------------------

GROUND = [".."] * 6 + ["We", "Ro", "Bl", "Bl", "La", "Un", "Un", "Kr", "Lr", "Cg", "Or", "Ki", "Pa", "dK", "dP"]
AGENTS = [("Ae", "Ay"), ("Ae", "Ay", "Ay"), ("Ae", "Ae", "Ay"), ("Ae", "Ae", "Ay", "Ay")]


@st.composite
def worlds(draw):
    width, height = draw(st.sampled_from([(3, 3), (4, 3), (5, 2), (4, 4)]))
    codes = [draw(st.sampled_from(GROUND)) for _ in range(width * height)]
    who = draw(st.sampled_from(AGENTS))
    for code, place in zip(who, draw(st.permutations(range(width * height)))):
        codes[place] = code
    for off, button in (("dK", "Ki"), ("dP", "Pa")):  # nothing to disable without a button
        codes = [button if code == off and button not in codes else code for code in codes]
    rows = [" ".join(codes[i * width : (i + 1) * width]) for i in range(height)]
    handlers = draw(st.sampled_from(["everyone", "robots"]))
    facing = ", ".join(draw(st.sampled_from("ESWN")) for _ in who)
    return GridWorld(map=" / ".join(rows), action_set=FULL, directions=facing, handlers=handlers, unsteady=0.25)


@given(worlds(), st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_laws_are_the_oracle_s(world, seed):
    """Walks by the oracle, most actions being ones that do something; each step's outcomes are the same."""
    board, rng, batch = Board(world), np.random.default_rng(seed), 64
    n = world.robots + world.humans
    state, states, actions = tuple(np.asarray(world.initial()).tolist()), [], []
    for t in range(batch):
        if t % 16 == 0:
            state = tuple(np.asarray(world.initial()).tolist())
        choice = rng.choice(len(ACTIONS), n, p=[0.04, 0.12, 0.12, 0.4, 0.1, 0.07, 0.15])
        states.append(state)
        actions.append(choice)
        ends = list(board.successors(state, choice))
        state = ends[rng.integers(len(ends))]
    p, after = many_laws(world, np.array(states), np.array(actions))
    np.testing.assert_allclose(np.asarray(p).sum(-1), 1.0, rtol=1e-6)
    assert (np.asarray(after) >= 0).all() and (np.asarray(after) < np.array(world.sizes)).all()
    for i in range(batch):
        expected = board.successors(states[i], actions[i])
        found = merged(p[i], after[i])
        assert set(found) == set(expected), (world.map, states[i], actions[i])
        for key, share in expected.items():
            assert found[key] == pytest.approx(float(share), abs=1e-6)


def test_mirrored_maps_give_mirrored_outcomes():
    """West and east change places, and so do left and right."""
    here = Game("Ae Bl .. / .. Un Ay / Ro .. ..", "E, S", action_set="small")
    there = Game(".. Bl Ae / Ay Un .. / .. .. Ro", "W, S", action_set="small")

    def mirror(s):
        flip = {"E": "W", "W": "E", "N": "N", "S": "S"}
        at = [(2 - x, y) for x, y in s["at"]]
        return (tuple(at), tuple(flip[d] for d in s["facing"]), tuple((2 - x, y) for x, y in s["things"]))

    def flat(s):
        return (tuple(s["at"]), tuple(s["facing"]), tuple(s["things"]))

    swap = {"left": "right", "right": "left"}
    for names in itertools.product(("forward", "left", "right"), repeat=2):
        one = {mirror(here.board.read(k)): p for k, p in here.after(*names).items()}
        two = {flat(there.board.read(k)): p for k, p in there.after(*[swap.get(a, a) for a in names]).items()}
        assert one == pytest.approx(two)


def test_a_step_draws_from_the_outcomes():
    """Frequencies of 3,000 samples, within four standard errors."""
    game = Game("Ae .. Ay", "E, W")
    keys = jax.random.split(jax.random.PRNGKey(0), 3000)
    actions = np.array([3, 3])
    draw = jax.jit(jax.vmap(lambda k: game.world.sample(k, game.world.initial(), actions)))
    draws = np.asarray(draw(keys))
    assert abs((draws[:, 0] == 1).mean() - 0.5) < 4 * 0.5 / 3000**0.5
    assert {tuple(d) for d in draws.tolist()} == set(game.after("forward", "forward"))
