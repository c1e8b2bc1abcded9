"""BushWorld's rules and the equations once more, slowly and in plain Python, to hold the compiled ones against."""

from __future__ import annotations

import itertools
import math

MOVES = [(0, -1), (-1, 0), (0, 1), (1, 0), (0, 0)]


def bush_outcomes(world, state, actions):
    """{state: probability} of one joint action; states are tuples."""
    agents, width, height = world.robots + world.humans, world.width, world.height
    places, density = list(state[:agents]), list(state[agents:])
    wants = []
    for place, action in zip(places, actions):
        x, y = place % width + MOVES[action][0], place // width + MOVES[action][1]
        inside = 0 <= x < width and 0 <= y < height
        wants.append(y * width + x if inside and action != 4 else None)
    tries = {}
    for agent, cell in enumerate(wants):
        if cell is not None and cell not in places and cell not in tries.values():
            tries[agent] = cell
    after, moved, coins = list(density), list(places), []
    for agent in range(agents):
        if agent < world.robots:
            touched = tries.get(agent, places[agent] if actions[agent] == 4 else None)
            if touched is not None:
                after[touched] = max(after[touched] - 1, 0)
            moved[agent] = tries.get(agent, places[agent])
        elif agent in tries:
            coins.append((agent, 1 - density[tries[agent]] / world.B))
    found = {}
    for luck in itertools.product((True, False), repeat=len(coins)):
        p, where = 1.0, list(moved)
        for (agent, chance), lucky in zip(coins, luck):
            p *= chance if lucky else 1 - chance
            where[agent] = tries[agent] if lucky else places[agent]
        if p > 0:
            key = (*where, *after)
            found[key] = found.get(key, 0.0) + p
    return found


def heading(world, cell, goal):
    """The shortest-path prior of a cell."""
    left, top, right, bottom = world.goals.boxes[goal]
    far = []
    for dx, dy in MOVES:
        x, y = cell % world.width + dx, cell // world.width + dy
        if not (0 <= x < world.width and 0 <= y < world.height):
            x, y = cell % world.width, cell // world.width
        far.append(max(left - x, x - right, 0) + max(top - y, y - bottom, 0))
    if math.isinf(world.beta_h):
        weights = [float(f == min(far)) for f in far]
    else:
        weights = [math.exp(-world.beta_h * (f - min(far))) for f in far]
    return [w / sum(weights) for w in weights]


def softmax(q, beta):
    if math.isinf(beta):
        weights = [float(v >= max(q) - 1e-12) for v in q]
    else:
        weights = [math.exp(beta * (v - max(q))) for v in q]
    return [w / sum(weights) for w in weights]


class SlowSolver:
    """Equations (1) to (9) by recursion over (state, time)."""

    def __init__(self, world, theory):
        self.world, self.theory, self.memo = world, theory, {}
        self.A, self.R, self.H = len(world.actions), world.robots, world.humans
        self.G = len(world.goals.boxes)

    def attained(self, state, h, g):
        cell = state[self.R + h]
        left, top, right, bottom = self.world.goals.boxes[g]
        x, y = cell % self.world.width, cell // self.world.width
        return left <= x <= right and top <= y <= bottom

    def expect(self, state, t, robot, human, value):
        """E of value(s', entry of s') over the outcomes of a joint action."""
        end = t + 1 == self.world.max_episode_steps
        total = 0.0
        for s, p in bush_outcomes(self.world, state, (*robot, *human)).items():
            total += p * value(s, None if end else self.at(s, t + 1))
        return total

    def at(self, state, t):
        if (state, t) not in self.memo:
            self.memo[state, t] = self.compute(state, t)
        return self.memo[state, t]

    def compute(self, state, t):
        th, weights = self.theory, self.world.goal_weights
        robots = [tuple(reversed(r)) for r in itertools.product(range(self.A), repeat=self.R)]
        humans = [tuple(reversed(a)) for a in itertools.product(range(self.A), repeat=self.H)]
        pi_h, v_m = self.phase_1(state, t, robots, humans)
        marginal = [
            [sum(weights[h][g] * pi_h[h][g][a] for g in range(self.G)) for a in range(self.A)] for h in range(self.H)
        ]

        def worth(s, later):
            return th.gamma_r * (th.terminal_v_r if later is None else later["v_r"])

        q_r = [
            sum(
                math.prod(marginal[h][a[h]] for h in range(self.H)) * self.expect(state, t, r, a, worth) for a in humans
            )
            for r in robots
        ]
        power = [(-q) ** -th.beta_r for q in q_r]
        pi_r = [p / sum(power) for p in power]
        v_e = [
            [self.v_e(state, t, h, g, pi_h, marginal, robots, humans, pi_r) for g in range(self.G)]
            for h in range(self.H)
        ]
        x = [sum(weights[h][g] * v_e[h][g] ** th.zeta for g in range(self.G)) for h in range(self.H)]
        u = -((sum(v**-th.xi for v in x) / self.H) ** th.eta)
        v_r = u + sum(p * q for p, q in zip(pi_r, q_r))
        return {"q_r": q_r, "pi_r": pi_r, "v_h_e": v_e, "x_h": x, "u_r": u, "v_r": v_r, "v_h_m": v_m, "pi_h": pi_h}

    def v_e(self, state, t, h, g, pi_h, marginal, robots, humans, pi_r):
        def worth(s, later):
            return (
                1.0 if self.attained(s, h, g) else 0.0 if later is None else self.theory.gamma_h * later["v_h_e"][h][g]
            )

        total = 0.0
        for a in humans:
            p = math.prod(pi_h[h][g][a[i]] if i == h else marginal[i][a[i]] for i in range(self.H))
            if p > 0:
                total += p * sum(w * self.expect(state, t, r, a, worth) for w, r in zip(pi_r, robots))
        return total

    def phase_1(self, state, t, robots, humans):
        th, H, G, A = self.theory, self.H, self.G, self.A
        if th.prior == "heuristic":
            prior = [[heading(self.world, state[self.R + h], g) for g in range(G)] for h in range(H)]
            return [[self.habit(p) for p in row] for row in prior], None
        choose = {"cautious": min, "optimistic": max, "mean": lambda v: sum(v) / len(v)}[th.prior]
        pi, v_m = [], []
        for h in range(H):
            pi.append([])
            v_m.append([])
            for g in range(G):

                def worth(s, later, h=h, g=g):
                    return (
                        1.0 if self.attained(s, h, g) else 0.0 if later is None else th.gamma_h * later["v_h_m"][h][g]
                    )

                if self.attained(state, h, g):
                    pi[h].append(self.habit([float(a == 4) for a in range(A)]))
                    v_m[h].append(0.0)
                    continue
                q = []
                for mine in range(A):
                    others = [a for a in humans if a[h] == mine]
                    q.append(
                        sum(choose([self.expect(state, t, r, a, worth) for r in robots]) for a in others) / len(others)
                    )
                policy = self.habit(softmax(q, th.beta_h))
                pi[h].append(policy)
                v_m[h].append(sum(p * v for p, v in zip(policy, q)))
        return pi, v_m

    def habit(self, policy):
        return [self.theory.nu_h / len(policy) + (1 - self.theory.nu_h) * p for p in policy]
