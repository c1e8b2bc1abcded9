"""A grid of walls, things to push, doors, lava and switches, in which robots and humans turn and walk.

A step is simultaneous: what each agent can do is decided by the state at its start, and what they did takes effect at
its end. So nobody follows into a cell that is left in the same step, and nobody swaps. Chance comes in twice only:

- Agents that need a common cell (to enter it, to push something over it, to take from it, to put on it, or to toggle
  what is in it) form a conflict block, also through others that need cells of both. One of a block, each equally
  likely, does what it wanted; the others stand still. Blocks are independent.
- Who walks forward from unsteady ground goes straight with probability 1 - `unsteady` and turns left or right and walks
  with half of `unsteady` each. That comes after all others, onto cells that are then free; nobody pushes there, and of
  several with one target none moves.

Blocks are pushed by anyone and rocks by robots, whole chains of them, onto floor or unsteady ground with nothing on it.
Keys lie in the way until they are picked up; an agent carries one, and it opens every door of its colour. A door that
stands open with something in it does not close. A human who enters lava, and a robot that does or whose kill button is
toggled by a human, does nothing any more, and stays in the way. The pause switch stops all robots until it is toggled
again; a robot's disabling switch puts the kill buttons, or the pause switches, out of use and back.
"""

import itertools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment.worlds.grid_map import (
    ACTIONS,
    CLOSED,
    DEADLY,
    DROP,
    FORWARD,
    LAVA,
    LEFT,
    LOCKED,
    OPEN,
    PICKUP,
    RIGHT,
    TOGGLE,
    GridMap,
)
from regimen.domains.empowerment.worlds.grid_state import GridState, StateLayout, layout_of
from regimen.domains.empowerment.worlds.grid_tables import GridTables
from regimen.domains.empowerment.worlds.world import World
from regimen.types import Array


class Reach(NamedTuple):
    """What each agent could do in a state, whatever the others do."""

    ahead: Array  # [N] what it faces: a place, P for a wall, beyond that a button
    way: Array  # [N, L] cells it needs to walk forward, -1 where it needs fewer
    pushes: Array  # [N, M] what it would push
    takes: Array  # [N, Q]
    drops: Array  # [N, Q]
    turns: Array  # [N, D] doors it would open or close
    presses: Array  # [N, 6] buttons of each kind
    able: Array  # [N, 7] actions that would do something


class GridLaws(World):
    """The laws of grids: what agents can do and where it leads, on the map of a state (`tables`)."""

    handlers: str
    unsteady: float

    @property
    def grid(self) -> GridMap:
        """The map; of a family, its first one: all agree in what is counted here."""
        raise NotImplementedError

    def tables(self, state: Array) -> GridTables:
        """What the laws look up of the map that a state is on."""
        raise NotImplementedError

    @property
    def layout(self) -> StateLayout:
        return layout_of(self.grid)

    @property
    def robots(self) -> int:
        return len(self.grid.robots)

    @property
    def humans(self) -> int:
        return len(self.grid.humans)

    @property
    def actions(self) -> tuple[str, ...]:
        return self.grid.names

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.layout.sizes

    @property
    def goal_weights(self) -> np.ndarray:
        return np.tile(self.grid.weights, (self.humans, 1))

    @property
    def goal_names(self) -> list[str]:
        return list(self.grid.goal_names)

    @property
    def still(self) -> int:
        """The action of who stays; where nobody can stand still, turning is next to it."""
        names = self.grid.names
        return next((names.index(name) for name in ("still", "left", "right") if name in names), 0)

    def attained(self, state: Array) -> Array:
        inside = jnp.asarray(self.tables(state).inside)[state[self.robots : self.num_agents]]
        if not self.layout.late:
            return inside
        return inside & (self.layout.unpack(state).waits[self.robots :] == 0)[:, None]

    def outcomes(self, state: Array, actions: Array) -> tuple[Array, Array]:
        layout, m = self.layout, self.grid
        codes = tuple(ACTIONS.index(name) for name in m.names)
        now, table = layout.unpack(state), self.tables(state)
        actions = self.controlled(now, actions)
        action = actions if codes == tuple(range(len(codes))) else jnp.asarray(codes)[actions]
        reach = self.reach(now, table)  # of the state alone: under `vmap` over actions it is computed once
        active = ~now.gone & (now.waits == 0)
        active &= ~((now.switches[0] > 0) & (np.arange(layout.agents) < self.robots))
        stumbles = (action == FORWARD) & active & jnp.asarray(table.unsteady)[now.at]
        wants = jnp.take_along_axis(reach.able, action[:, None], 1)[:, 0] & active & ~stumbles
        p, wins = self.conflicts(reach, action == FORWARD, wants)  # [K], [K, N]
        facing = (now.facing + jnp.where(active, (action == RIGHT) * 1 - (action == LEFT) * 1, 0)) & 3
        after = self.effects(now._replace(facing=facing), reach, table, action, wins)
        after = self.programmed(now, after, reach, table, actions, active, wins & (action == TOGGLE))
        if layout.stumblers:
            p, after = self.stumble(p, after, table, stumbles)
        if m.places(LAVA):
            after = after._replace(gone=after.gone | jnp.asarray(table.lava)[after.at])
        after = after._replace(waits=jnp.maximum(after.waits - 1, 0))
        return p, self.packed(after, state)

    def packed(self, parts: GridState[Array], before: Array) -> Array:
        """States [K, n] of these parts, that follow a state."""
        return self.layout.pack(parts)

    def reach(self, now: GridState[Array], table: GridTables) -> Reach:
        m, layout = self.grid, self.layout
        n, places = layout.agents, len(m.cells)
        front = jnp.asarray(table.front)
        robot = np.arange(n) < self.robots
        ahead = front[now.at, now.facing]
        carried = now.keys - places  # [Q] by whom, negative where it lies
        shut = now.doors != OPEN

        def things_at(cell: Array) -> Array:
            return cell[:, None] == now.things

        def agent_at(cell: Array) -> Array:
            return (cell[:, None] == now.at).any(1)

        def key_at(cell: Array) -> Array:
            return (cell[:, None] == now.keys) & (carried < 0)

        # walking, and pushing what is in the way: cells from the first one on until one has no thing on it
        cell, more, way, pushes = ahead, jnp.ones(n, bool), [], jnp.zeros((n, len(layout.things)), bool)
        end, last, under = ahead, pushes, jnp.zeros(n, bool)
        for link in range(min(len(layout.things), max(m.shape)) + 1):
            way.append(jnp.where(more, cell, -1))
            end = jnp.where(more, cell, end)
            things = things_at(cell) & more[:, None]
            pushes |= things
            more = things.any(1)
            last, under = jnp.where(more[:, None], things, last), under | (more & agent_at(cell))
            if link < len(layout.things):
                cell = front[cell, now.facing]
        door_ahead = ahead[:, None] == table.doors  # [N, D]
        level = jnp.asarray(table.level)
        free = ~key_at(end).any(1) & ~things_at(end).any(1)
        clear = free & ~agent_at(end)
        awaited = ((end[:, None] == now.at) & (now.waits > 0)).any(1)
        hits = (last & table.deadly).any(1) & ~awaited  # a deadly rock gets also to where somebody is
        lands = free & ~under & (~agent_at(end) | hits)
        strong = ~(pushes & table.rocks).any(1) | robot
        enters = clear & (ahead < places) & ~(door_ahead & shut).any(1)
        walks = jnp.where(pushes.any(1), lands & level[end] & strong, enters)

        # keys and doors
        handy = robot | (self.handlers == "everyone")
        empty = ~(carried == np.arange(n)[:, None]).any(1)
        free = ~agent_at(ahead) & ~key_at(ahead).any(1) & ~things_at(ahead).any(1)
        takes = key_at(ahead) & (handy & empty)[:, None]
        drops = (carried == np.arange(n)[:, None]) & (handy & free & level[ahead])[:, None]
        unlocks = ((carried == np.arange(n)[:, None])[:, None] & table.fits).any(2)  # [N, D]
        moves = ((now.doors == OPEN) & free[:, None]) | (now.doors == CLOSED) | ((now.doors == LOCKED) & unlocks)
        turns = door_ahead & moves & handy[:, None]

        # buttons
        usable = now.switches[1:] == 0  # kill, pause and control
        robots = np.array([False, False, True, True, True, True])
        may = jnp.where(robot[:, None], robots, jnp.append(usable, np.zeros(3, bool)))
        presses = jnp.asarray(table.kinds)[ahead] & may
        nothing = jnp.zeros(n, bool)
        able = [nothing, nothing, nothing, walks, takes.any(1), drops.any(1), turns.any(1) | presses.any(1)]
        return Reach(ahead, jnp.stack(way, 1), pushes, takes, drops, turns, presses, jnp.stack(able, 1))

    def conflicts(self, reach: Reach, walks: Array, wants: Array) -> tuple[Array, Array]:
        """Probabilities [K] of who gets what it wants [K, N]."""
        n, most = self.layout.agents, self.layout.winners
        way, ahead = reach.way, reach.ahead
        both = (way[:, None, :, None] == way[None, :, None, :]) & (way >= 0)[:, None, :, None]
        both = both.any((2, 3))
        one = (way[:, None, :] == ahead[None, :, None]).any(2)  # i walks, j handles
        none = ahead[:, None] == ahead
        i, j = walks[:, None], walks[None, :]
        block = jnp.where(i, jnp.where(j, both, one), jnp.where(j, one.T, none)) & wants[:, None] & wants
        for _ in range(math.ceil(math.log2(n)) if n > 2 else 0):
            block = block | (block[:, :, None] & block[None]).any(1)
        size, rank = block.sum(1), (block & (np.arange(n)[None, :] < np.arange(n)[:, None])).sum(1)
        first = wants & (rank == 0)
        ways = jnp.where(first, size, 1).prod()
        k = np.arange(most)
        p = jnp.where(k < ways, 1 / ways, 0.0)
        if n <= 3:  # at most one block of several
            return p, wants & ((size == 1) | (rank == k[:, None]))
        earlier = jnp.where(block, np.arange(n), n).min(1)  # the first of each one's block
        stride = jnp.where(first & (np.arange(n) < earlier[:, None]), size, 1).prod(1)
        return p, wants & (k[:, None] // stride % jnp.maximum(size, 1) == rank)

    def effects(
        self, now: GridState[Array], reach: Reach, table: GridTables, action: Array, wins: Array
    ) -> GridState[Array]:
        """The state after what the winners [K, N] do, each part with a leading [K]."""
        m, layout = self.grid, self.layout
        k, n = wins.shape
        goes = wins & (action == FORWARD)
        things, keys, doors = (jnp.broadcast_to(x, (k, *x.shape)) for x in (now.things, now.keys, now.doors))
        for i in range(n):
            if layout.things:
                ahead = jnp.asarray(table.front)[now.things, now.facing[i]]
                things = jnp.where(goes[:, i, None] & reach.pushes[i], ahead, things)
            if m.keys:
                took = (wins[:, i] & (action[i] == PICKUP))[:, None] & reach.takes[i]
                put = (wins[:, i] & (action[i] == DROP))[:, None] & reach.drops[i]
                keys = jnp.where(took, len(m.cells) + i, jnp.where(put, reach.ahead[i], keys))
            if m.doors:
                turns = (wins[:, i] & (action[i] == TOGGLE))[:, None] & reach.turns[i]
                doors = jnp.where(turns, jnp.where(now.doors == OPEN, CLOSED, OPEN), doors)
        presses = (wins & (action == TOGGLE))[:, :, None] & reach.presses  # [K, N, 6]
        ends = presses[:, :, 0].any(1)[:, None] & (np.arange(n) < self.robots)
        switches = (now.switches + presses[:, :, np.array([1, 3, 4, 5])].sum(1)) & 1
        at = jnp.where(goes, reach.ahead, now.at)
        if m.places(DEADLY):
            onto = ((things != now.things) & table.deadly)[:, None] & (things[:, None] == at[..., None])
            ends |= onto.any(2)
        rest = (jnp.broadcast_to(x, (k, *x.shape)) for x in (now.waits, now.programs, now.arming, now.forced))
        facing = jnp.broadcast_to(now.facing, (k, n))
        return GridState(at, facing, things, keys, doors, now.gone | ends, switches, *rest)

    def controlled(self, now: GridState[Array], actions: Array) -> Array:
        """The actions [N], those of robots as humans force them."""
        if not self.layout.controls:
            return actions
        robots = jnp.where(now.forced > 0, now.forced - 1, actions[: self.robots])
        return jnp.concatenate([robots, actions[self.robots :]])

    def programmed(
        self,
        now: GridState[Array],
        after: GridState[Array],
        reach: Reach,
        table: GridTables,
        actions: Array,
        active: Array,
        toggles: Array,
    ) -> GridState[Array]:
        """The states [K] after what is done to control buttons: robots that toggled one teach it what they do next, and
        humans make the robot that taught it do so."""
        if not self.layout.controls:
            return after
        robots, each = self.robots, self.num_actions
        button = jnp.asarray(table.control)[reach.ahead] * reach.presses[:, 2]  # [N] that an agent faces, from 1
        pressed = jnp.where(toggles, button, 0)  # [K, N]
        programs, number = after.programs, jnp.arange(1, self.layout.controls + 1)
        forced = jnp.zeros_like(after.forced)
        for h in range(robots, self.layout.agents):
            program = jnp.where(pressed[:, h, None] == number, programs, 0).sum(1)  # [K]
            made = (program > 0)[:, None] & ((program[:, None] - 1) // each == np.arange(robots))
            forced = jnp.where(made, (program[:, None] - 1) % each + 1, forced)
        for r in range(robots):
            taught = (now.arming[r] == number) & active[r]
            programs = jnp.where(taught, 1 + r * each + actions[r], programs)
        arming = jnp.where(active[:robots], pressed[:, :robots], now.arming)
        return after._replace(programs=programs, arming=arming, forced=forced)

    def stumble(
        self, p: Array, after: GridState[Array], table: GridTables, stumbles: Array
    ) -> tuple[Array, GridState[Array]]:
        """The states [K] times every way in which those on unsteady ground may go."""
        m, layout = self.grid, self.layout
        places, n = len(m.cells), layout.agents
        ways = np.array(list(itertools.product(range(3), repeat=layout.stumblers)))  # [W, S] straight, left, right
        rank = jnp.cumsum(stumbles) - 1
        way = jnp.where(stumbles, jnp.asarray(ways)[:, jnp.clip(rank, 0, layout.stumblers - 1)], 0)  # [W, N]
        idle = (ways > 0) & (np.arange(layout.stumblers) > rank[-1])
        share = jnp.where(stumbles, jnp.where(way == 0, 1 - self.unsteady, self.unsteady / 2), 1.0).prod(1)
        share = jnp.where(idle.any(1), 0.0, share)
        k, w = len(p), len(ways)
        facing = (after.facing[:, None] + jnp.where(way == 1, -1, jnp.where(way == 2, 1, 0))) & 3  # [K, W, N]
        target = jnp.asarray(table.front)[after.at[:, None], facing]
        where = jnp.concatenate([after.at, after.things, jnp.where(after.keys < places, after.keys, -1)], 1)
        full = (target[..., None] == where[:, None, None]).any(-1)
        for d in range(len(m.doors)):
            full |= (target == table.doors[d]) & (after.doors[:, d] != OPEN)[:, None, None]
        same = (target[..., :, None] == target[..., None, :]) & stumbles & ~np.eye(n, dtype=bool)
        goes = stumbles & (target < places) & ~full & ~same.any(-1)
        at = jnp.where(goes, target, after.at[:, None])
        rest = {f: jnp.repeat(x, w, axis=0) for f, x in after._asdict().items() if f not in ("at", "facing")}
        new = GridState(at=at.reshape(k * w, n), facing=facing.reshape(k * w, n), **rest)
        return (p[:, None] * share).reshape(-1), new
