"""The rules of the grid world once more, as plain Python on dictionaries: what the compiled laws are held against.

Written from the rules (docs/worlds.md), not from the code: agents make claims on cells, claims that touch form blocks,
and every choice of one winner per block is played out by itself.
"""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from fractions import Fraction

MOVE = {"E": (1, 0), "S": (0, 1), "W": (-1, 0), "N": (0, -1)}
ORDER = "ESWN"
ROLES = {"Ki": "kill", "Kb": "kill", "Pa": "pause", "Ps": "pause", "dK": "no_kill", "dP": "no_pause"}
FLAT = ("..", "Un", "Ae", "Ay", "Ro", "Bl")


class Board:
    """The fixed part of a world, and its rules."""

    def __init__(self, world):
        self.world = world
        self.codes = {(x, y): c for y, r in enumerate(world.map.split("/")) for x, c in enumerate(r.split())}
        self.cells = [xy for xy, c in self.codes.items() if c != "We" and c not in ROLES]
        self.door_at = [xy for xy in self.cells if self.codes[xy][0] in "LCO" and self.codes[xy] != "La"]
        self.key_colours = [self.codes[xy][1] for xy in self.cells if self.codes[xy][0] == "K"]
        self.rocks = [self.codes[xy] == "Ro" for xy in self.cells if self.codes[xy] in ("Ro", "Bl")]
        self.can_toggle = "toggle" in world.actions

    def buttons(self, role):
        return [xy for xy, c in self.codes.items() if ROLES.get(c) == role] if self.can_toggle else []

    def mortal(self, i):
        lava = any(c == "La" for c in self.codes.values())
        return lava or (i < self.world.robots and bool(self.buttons("kill")))

    def read(self, vector):
        """A state vector as a dictionary; its order is that of docs/worlds.md."""
        v = iter(int(x) for x in vector)
        n = self.world.robots + self.world.humans
        at, facing = [self.cells[next(v)] for _ in range(n)], [ORDER[next(v)] for _ in range(n)]
        things = [self.cells[next(v)] for _ in self.rocks]
        keys = [next(v) for _ in self.key_colours]
        keys = [self.cells[k] if k < len(self.cells) else k - len(self.cells) for k in keys]
        doors = [next(v) for _ in self.door_at]
        gone = [bool(next(v)) if self.mortal(i) else False for i in range(n)]
        flags = {r: bool(next(v)) if self.buttons(r) else False for r in ("pause", "no_kill", "no_pause")}
        assert next(v, None) is None
        return {"at": at, "facing": facing, "things": things, "keys": keys, "doors": doors, "gone": gone, **flags}

    def write(self, s):
        n = len(s["at"])
        out = [self.cells.index(xy) for xy in s["at"]] + [ORDER.index(d) for d in s["facing"]]
        out += [self.cells.index(xy) for xy in s["things"]]
        out += [len(self.cells) + k if isinstance(k, int) else self.cells.index(k) for k in s["keys"]]
        out += s["doors"] + [int(s["gone"][i]) for i in range(n) if self.mortal(i)]
        return (*out, *(int(s[r]) for r in ("pause", "no_kill", "no_pause") if self.buttons(r)))

    # --- what is where -----------------------------------------------------------------------------------------------

    def ahead(self, s, i, turn=0):
        dx, dy = MOVE[ORDER[(ORDER.index(s["facing"][i]) + turn) % 4]]
        return s["at"][i][0] + dx, s["at"][i][1] + dy

    def occupied(self, s, xy):
        return xy in s["at"] or xy in s["things"] or xy in s["keys"]

    def open(self, s, xy):
        return xy in self.cells and not (xy in self.door_at and s["doors"][self.door_at.index(xy)] != 0)

    # --- one agent ---------------------------------------------------------------------------------------------------

    def claim(self, s, i, action):
        """Cells an agent needs, and what it changes in a state: None where it can do nothing."""
        robot = i < self.world.robots
        front = self.ahead(s, i)
        hands = robot or self.world.handlers == "everyone"
        if action == "forward":
            if front in s["things"]:
                return self.push(s, i, front, robot)
            if self.open(s, front) and not self.occupied(s, front):
                return {front}, lambda t: t["at"].__setitem__(i, front)
        if action == "pickup" and hands and i not in s["keys"] and front in s["keys"]:
            return {front}, lambda t: t["keys"].__setitem__(s["keys"].index(front), i)
        if action == "drop" and hands and i in s["keys"] and self.flat(front) and not self.occupied(s, front):
            return {front}, lambda t: t["keys"].__setitem__(s["keys"].index(i), front)
        if action == "toggle":
            if front in self.door_at and hands:
                return self.turn_door(s, i, front)
            return self.press(s, front, robot)
        return None

    def flat(self, xy):
        code = self.codes.get(xy, "We")
        return code in FLAT or (code[0] == "K" and code not in ROLES)

    def push(self, s, i, front, robot):
        dx, dy = MOVE[s["facing"][i]]
        chain, xy = [], front
        while xy in s["things"]:
            chain.append(s["things"].index(xy))
            xy = (xy[0] + dx, xy[1] + dy)
        if any(self.rocks[m] for m in chain) and not robot:
            return None
        if not self.flat(xy) or self.occupied(s, xy):
            return None

        def apply(t):
            t["at"][i] = front
            for m in chain:
                t["things"][m] = (s["things"][m][0] + dx, s["things"][m][1] + dy)

        return {s["things"][m] for m in chain} | {xy}, apply

    def turn_door(self, s, i, front):
        d = self.door_at.index(front)
        if s["doors"][d] == 0 and self.occupied(s, front):
            return None
        carried = [self.key_colours[q] for q, k in enumerate(s["keys"]) if k == i and isinstance(k, int)]
        if s["doors"][d] == 2 and self.codes[front][1] not in carried:
            return None
        return {front}, lambda t: t["doors"].__setitem__(d, 1 if s["doors"][d] == 0 else 0)

    def press(self, s, front, robot):
        role = ROLES.get(self.codes.get(front, ""))
        if role is None or (role in ("kill", "pause")) == robot or s.get(f"no_{role}", False):
            return None

        def apply(t):
            if role == "kill":
                t["gone"] = [gone or j < self.world.robots for j, gone in enumerate(t["gone"])]
            else:
                t[role] = not t[role]

        return {front}, apply

    # --- all of them -------------------------------------------------------------------------------------------------

    def successors(self, vector, actions):
        """State vector -> probability, as a fraction."""
        s = self.read(vector)
        names = [self.world.actions[a] for a in actions]
        n = len(names)
        active = [not s["gone"][i] and not (s["pause"] and i < self.world.robots) for i in range(n)]
        after = copy.deepcopy(s)
        stumbling, claims = [], {}
        for i, name in enumerate(names):
            if not active[i]:
                continue
            if name in ("left", "right"):
                turn = -1 if name == "left" else 1
                after["facing"][i] = ORDER[(ORDER.index(s["facing"][i]) + turn) % 4]
            elif name == "forward" and self.codes[s["at"][i]] == "Un":
                stumbling.append(i)
            elif claim := self.claim(s, i, name):
                claims[i] = claim
        total = defaultdict(Fraction)
        blocks = self.blocks(claims)
        for winners in itertools.product(*blocks):
            t = copy.deepcopy(after)
            for i in winners:
                claims[i][1](t)
            share = Fraction(1)
            for block in blocks:
                share /= len(block)
            for chance, end in self.stumbles(t, stumbling):
                end["gone"] = [g or self.codes[xy] == "La" for g, xy in zip(end["gone"], end["at"])]
                total[self.write(end)] += share * chance
        return {k: p for k, p in total.items() if p}

    @staticmethod
    def blocks(claims):
        blocks = []
        for i, (cells, _) in claims.items():
            touching = [b for b in blocks if any(claims[j][0] & cells for j in b)]
            blocks = [b for b in blocks if b not in touching] + [sorted([i, *itertools.chain(*touching)])]
        return blocks

    def stumbles(self, t, agents):
        slip = Fraction(self.world.unsteady).limit_denominator(1000)
        chances = {0: 1 - slip, -1: slip / 2, 1: slip / 2}
        for turns in itertools.product(chances, repeat=len(agents)):
            end, p = copy.deepcopy(t), Fraction(1)
            targets = []
            for i, turn in zip(agents, turns):
                p *= chances[turn]
                targets.append(self.ahead(t, i, turn))
                end["facing"][i] = ORDER[(ORDER.index(t["facing"][i]) + turn) % 4]
            for i, xy in zip(agents, targets):
                if targets.count(xy) == 1 and self.open(t, xy) and not self.occupied(t, xy):
                    end["at"][i] = xy
            yield p, end
