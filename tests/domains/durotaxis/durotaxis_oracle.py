"""Durotaxis written a second time, the plain way: one colony, numpy in float64, edges as a set of pairs.

The tests compare the compiled environment with it, and `benchmarks/durotaxis_env.py` its speed.
"""

from __future__ import annotations

import math

import numpy as np

ANGLES = [2 * math.pi * k / 16 for k in range(16)]


class Oracle:
    """A colony in slots, stepped in place. `load` copies the state of the compiled environment."""

    def __init__(self, env):
        self.env = env
        self.settings = {k: float(v) if isinstance(v, float) else v for k, v in env.settings().items()}

    def __getattr__(self, name):
        return self.settings[name]

    def load(self, state):
        g, s = state.graph, state.substrate
        self.slots = {int(i): (float(g.x[i]), float(g.y[i])) for i in np.flatnonzero(g.alive)}
        self.idents = {i: int(g.ident[i]) for i in self.slots}
        self.ages = {i: int(g.age[i]) for i in self.slots}
        self.stagnation = {i: int(state.stagnation[i]) for i in self.slots}
        self.next_ident = int(g.next_ident)
        self.edges = edges_of(np.asarray(g.edges))
        self.exponential, self.slope, self.base = bool(s.exponential), float(s.m), float(s.b)
        self.drift, self.outcome = int(state.drift), int(state.outcome)
        return self

    # --- the substrate ---------------------------------------------------------------------------------------------

    def intensity(self, x):
        return self.base * math.exp(self.slope * x) if self.exponential else self.slope * x + self.base

    def level(self, x):
        first, last = self.intensity(0.0), self.intensity(self.width)
        return math.log(self.intensity(x) / first) / math.log(last / first)

    # --- one step: births and deaths, then what they are worth -------------------------------------------------------

    def step(self, delete, spawn, hop):
        """`delete` and `spawn` are sets of slots, `hop` maps a slot to (dx, dy)."""
        self.grow(delete, spawn, hop)
        return self.settle()

    def grow(self, delete, spawn, hop):
        self.before = {
            "x": self.mean(x for x, _ in self.slots.values()),
            "level": self.mean(self.level(x) for x, _ in self.slots.values()),
            "edge": self.edge_score(),
            "frontier": max(x for x, _ in self.slots.values()),
        }
        self.wanted = len(self.slots) + len(spawn) - len(delete)
        parents = [(i, *self.slots[i]) for i in sorted(spawn)]
        for d in delete:  # one after the other
            into = {a for a, b in self.edges if b == d}
            out = {b for a, b in self.edges if a == d}
            self.edges = {(a, b) for a, b in self.edges if d not in (a, b)} | {(a, b) for a in into for b in out}
            for table in (self.slots, self.idents, self.ages, self.stagnation):
                del table[d]
        self.kept = self.mean(self.level(x) for x, _ in self.slots.values()) if self.slots else None
        for i in self.ages:
            self.ages[i] += 1
        free = [j for j in range(self.capacity) if j not in self.slots]
        self.births, self.reached, self.outside = [], False, False
        self.reached = any(x >= self.width - 1 for x, _ in self.slots.values())
        self.blocked = max(len(parents) - len(free), 0)
        for (i, x, y), j in zip(parents, free):
            dx, dy = hop[i]
            x_new, y_new = x + dx, y + dy
            outside = self.border == "fail" and (x_new < 0 or not 0 <= y_new < self.height)
            self.outside |= outside
            self.reached |= x_new >= self.width - 1 and not outside
            low = self.margin if self.border == "clamp" else 0.0
            self.slots[j] = (
                min(max(x_new, low * self.width), self.width),
                min(max(y_new, low * self.height), (1 - low) * self.height),
            )
            self.idents[j], self.ages[j], self.stagnation[j] = self.next_ident, 0, 0
            self.next_ident += 1
            self.edges.add((i, j))
            self.births.append((i, j))

    def adopt(self, x, y):
        """Positions as another implementation rounded them, so that a comparison just at a threshold is the same."""
        self.slots = {i: (float(x[i]), float(y[i])) for i in self.slots}

    def settle(self):
        """The reward by component."""
        n = len(self.slots)
        level = {i: self.level(x) for i, (x, _) in self.slots.items()}
        mean_level = self.mean(level.values())
        moved = self.mean(x for x, _ in self.slots.values()) - self.before["x"] if n else 0.0
        self.drift = self.drift + 1 if moved < -1e-3 else 0
        checks = [self.reached, n == 0, self.wanted > min(self.fail_nodes, self.capacity), self.outside]
        checks.append(self.drift >= self.drift_limit)
        self.outcome = next((k + 1 for k, holds in enumerate(checks) if holds), 0)

        below = {i for i in level if level[i] < mean_level - 1e-4}
        self.stagnation = {i: self.stagnation[i] + 1 if i in below else 0 for i in self.slots}
        if n > self.max_nodes:
            graph = -self.growth_penalty * n / self.max_nodes
        else:
            graph = self.survival_reward if n >= 2 else -self.connectivity_penalty
        rises = [level[j] - self.level(self.slots[i][0]) for i, j in self.births]
        node = self.movement_reward * moved
        for i, (x, y) in self.slots.items():
            node -= self.left_penalty / n * (x < 0.1 * self.width)
            node -= self.border_penalty / n * (y < 0.1 * self.height or y > 0.9 * self.height)
            node -= self.laggard_penalty / n * (i in below and self.ages[i] >= self.delta_time)
        after = 0.0 if self.outcome else max(x for x, _ in self.slots.values()) / self.width - 1
        prizes = [0.0, self.success_reward, -self.extinct_penalty, -self.too_many_penalty]
        prizes += [-self.out_of_bounds_penalty, -self.drift_penalty]
        return {
            "graph": graph * (self.penalty_multiplier if graph < 0 else 1.0),
            "spawn": self.spawn_reward * self.mean(rises) / self.delta_intensity,
            "delete": self.delete_reward
            * (0.0 if self.kept is None else self.kept - self.before["level"])
            / self.delta_intensity,
            "edge": self.edge_score() - self.before["edge"],
            "node": node * (self.penalty_multiplier if node < 0 else 1.0),
            "progress": self.shaping * (self.shaping_gamma * after - (self.before["frontier"] / self.width - 1)),
            "termination": prizes[self.outcome],
        }

    def edge_score(self):
        steps = [self.slots[b][0] - self.slots[a][0] for a, b in self.edges]
        return self.mean(self.edge_reward * (s > 0.01) - self.edge_penalty * (s < -0.01) for s in steps)

    @staticmethod
    def mean(values):
        values = list(values)
        return sum(values) / len(values) if values else 0.0

    # --- the two interfaces ------------------------------------------------------------------------------------------

    def choices(self, choice, spawn):
        """(delete, spawn, hop) of per-node actions."""
        wish = {i for i in self.slots if choice[i] == 1}
        hop = {}
        for i in self.slots.keys() - wish:
            gamma, alpha, noise, theta = map(float, spawn[i])
            r = gamma / (1 + (alpha / self.intensity(self.slots[i][0])) ** 2) + noise
            hop[i] = (r * math.cos(theta), r * math.sin(theta))
        return (wish if len(self.slots) > 2 else set()), set(hop), hop

    def ratio(self, ratio, normals):
        """(delete, spawn, hop) of a share to delete; `normals` [3, C] are the draws for length, x and y."""
        n = len(self.slots)
        order = sorted(self.slots, key=lambda i: (self.slots[i][0], i))
        delete = set(order[: int(ratio * n)] if n > 2 else [])
        hop = {}
        for i in self.slots.keys() - delete:
            length = self.gamma / (1 + (self.alpha / self.intensity(self.slots[i][0])) ** 2)
            length = max(length + self.noise * float(normals[0][i]), 0.0)
            hop[i] = (float(normals[1][i]) * (1 + 2 * length), float(normals[2][i]) * (1 + 2 * length))
        return delete, set(hop), hop

    # --- the observation ---------------------------------------------------------------------------------------------

    def observe(self):
        c, w, h = self.capacity, self.width, self.height
        live = sorted(self.slots)
        n = len(live)
        nodes, mask, words = np.zeros((c, 13)), np.zeros(c), np.zeros((c, c // 16), np.int64)
        for a, b in self.edges:
            words[a, b // 16] |= 1 << (b % 16)
        mask[live] = 1
        if not n:
            return {"nodes": nodes, "mask": mask, "edges": words, "graph": None}
        x, y = (np.array(v) for v in zip(*(self.slots[i] for i in live)))
        log_i = np.log([self.intensity(v) for v in x])
        level = np.array([self.level(v) for v in x])
        ins, outs = (np.array([sum(e[k] == i for e in self.edges) for i in live]) for k in (1, 0))
        apart = np.hypot(x[:, None] - x, y[:, None] - y)
        reach = np.outer(x, np.cos(ANGLES)) + np.outer(y, np.sin(ANGLES))
        extreme = reach >= reach.max(0) - 1e-3
        corner_x, corner_y = (v @ extreme / extreme.sum(0) for v in (x, y))
        area = 0.5 * abs(np.sum(corner_x * np.roll(corner_y, -1) - np.roll(corner_x, -1) * corner_y))
        rank = np.empty(n)
        rank[np.lexsort((live, x))] = np.arange(n)
        age = np.array([self.ages[i] for i in live])
        columns = [
            x / w,
            y / h,
            log_i / 5,
            10 * (level - level.mean()),
            np.log1p(ins),
            np.log1p(outs),
            1 / (1 + 10 * apart.sum(0) / max(n - 1, 1) / w),
            4 * np.hypot(x - x.mean(), y - y.mean()) / w,
            extreme.any(1),
            age == 0,
            np.log1p(age) / 2,
            np.log1p([self.stagnation[i] for i in live]) / 2,
            rank / n,
        ]
        nodes[live] = np.stack(columns, axis=1)
        wide, tall, e = np.ptp(x) / w, np.ptp(y) / h, len(self.edges)
        steep = self.slope if self.exponential else self.slope / (self.slope * x.mean() + self.base)
        graph = [n / c, e / (2 * c), e / max(n * (n - 1), 1), x.mean() / w, y.mean() / h]
        graph += [x.min() / w, y.min() / h, x.max() / w, y.max() / h, wide, tall, wide * tall, area / (w * h), e / n]
        graph += [np.log1p((ins + outs).max()) / 2, log_i.mean() / 5, log_i.max() / 5, 20 * steep, 1 - x.max() / w]
        graph += [self.drift / self.drift_limit, self.max_nodes / c, self.fail_nodes / c]
        return {"nodes": nodes, "mask": mask, "edges": words, "graph": np.array(graph)}


def edges_of(words):
    """Pairs (i, j) of bit rows."""
    return {
        (int(i), 32 * int(w) + bit) for i, w in np.argwhere(words) for bit in range(32) if int(words[i, w]) >> bit & 1
    }
