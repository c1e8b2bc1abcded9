"""What a solver found: values and policies of every state at every time, and the Markov chain they induce."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from regimen.domains.empowerment import equations
from regimen.domains.empowerment.reach import StateTable
from regimen.domains.empowerment.theory import Theory
from regimen.domains.empowerment.worlds.world import World
from regimen.errors import EnvError


class Point(NamedTuple):
    """A solution in one state at one time; H humans, G goals, A actions of one agent."""

    pi_h: np.ndarray  # [H, G, A]
    q_r: np.ndarray  # [A^R], nan where an action is not allowed
    pi_r: np.ndarray  # [A^R]
    v_h_e: np.ndarray  # [H, G]
    x_h: np.ndarray  # [H]
    u_r: float
    v_r: float
    v_h_m: np.ndarray | None  # [H, G], where the prior was computed


class Chain(NamedTuple):
    """Transitions of one step, each pair of states once."""

    source: np.ndarray  # int32
    target: np.ndarray  # int32
    probability: np.ndarray


@dataclass(frozen=True, eq=False)
class Solution:
    """Values and policies as lists by time: entry t has the states that can be reached within t steps,
    `table.states[:S_t]`. A stationary solution has one entry, for all times. Where the world has ended there are no
    values: V_r is `terminal_v_r`, V_h^e is 0 and the rest nan."""

    world: World
    theory: Theory
    table: StateTable
    pi_h: list[np.ndarray]  # [S_t, H, G, A]; a prior that the world gives is the same at all times
    q_r: list[np.ndarray]  # [S_t, A^R]
    pi_r: list[np.ndarray]  # [S_t, A^R]
    v_h_e: list[np.ndarray]  # [S_t, H, G]
    x_h: list[np.ndarray]  # [S_t, H]
    u_r: list[np.ndarray]  # [S_t]
    v_r: list[np.ndarray]  # [S_t]
    v_h_m: list[np.ndarray] | None  # [S_t, H, G]
    report: dict[str, Any] | None = None  # how a stationary solution converged

    @property
    def stationary(self) -> bool:
        return self.table.horizon is None

    @property
    def pairs(self) -> int:
        """States with time, those at the end included; of a stationary solution, states."""
        return len(self.table.states) if self.stationary else self.table.pairs

    def layer(self, time: int) -> int:
        """The entry of the lists for a time."""
        if self.stationary:
            return 0
        if not 0 <= time < len(self.v_r):
            raise EnvError(f"time {time} is outside this world; it goes from 0 to {len(self.v_r) - 1}")
        return time

    def live(self, time: int = 0) -> np.ndarray:
        """Which states can be the one at this time, and have values [S_t] bool."""
        t = self.layer(time)
        n = len(self.v_r[t])
        there = np.ones(n, bool) if self.stationary else self.table.reachable_at[t, :n]
        return there & ~self.table.ended[:n]

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """State and time [P] of all that has values."""
        live = [np.flatnonzero(self.live(t)) for t in range(len(self.v_r))]
        return np.concatenate(live), np.repeat(np.arange(len(live)), [len(states) for states in live])

    def column(self, quantity: str) -> np.ndarray:
        """A quantity such as `q_r` at all `moments` [P, ...]."""
        return np.concatenate([layer[self.live(t)] for t, layer in enumerate(getattr(self, quantity))])

    def at(self, state: ArrayLike | None = None, time: int = 0) -> Point:
        """Everything in a state (an array, its number, or the start) at a time."""
        t = self.layer(time)
        s = 0 if state is None else self.table.index(state) if np.ndim(state) else int(np.asarray(state))
        if s >= len(self.v_r[t]):
            raise EnvError(f"state {self.table.states[s].tolist()} cannot be reached by time {time}")
        v_h_m = None if self.v_h_m is None else self.v_h_m[t][s]
        pi_h, q_r, pi_r = self.pi_h[t][s], self.q_r[t][s], self.pi_r[t][s]
        u_r, v_r = float(self.u_r[t][s]), float(self.v_r[t][s])
        return Point(pi_h, q_r, pi_r, self.v_h_e[t][s], self.x_h[t][s], u_r, v_r, v_h_m)

    def marginals(self, time: int, rows: slice = slice(None)) -> np.ndarray:
        """How humans act when their goals are not known [S_t, H, A]."""
        return np.einsum("hg,shga->sha", self.world.goal_weights, self.pi_h[self.layer(time)][rows])

    def chain(self, time: int = 0) -> Chain:
        """The Markov chain of robots and humans in the step after `time`, out of states in which the world goes on."""
        states, successor, parts = len(self.table.states), self.table.successor, []
        size, n = max(1, 1_000_000 // successor[0].size), len(self.v_r[self.layer(time)])
        for at in range(0, n, size):
            rows = slice(at, min(at + size, n))
            p = self.step_probability(time, rows)
            possible = np.nonzero(p)
            pair = (at + possible[0]) * states + successor[rows].reshape(p.shape)[possible]
            unique, inverse = np.unique(pair, return_inverse=True)
            parts.append((unique, np.bincount(inverse, p[possible], len(unique))))
        pair = np.concatenate([u for u, _ in parts])
        source, target = (x.astype(np.int32) for x in divmod(pair, states))
        return Chain(source, target, np.concatenate([p for _, p in parts]))

    def occupancy(self) -> np.ndarray:
        """How likely each state is at each time, from the start [T + 1, S]; what has ended is where it ended."""
        steps = self.table.horizon if self.table.horizon is not None else self.world.max_episode_steps
        out = np.zeros((steps + 1, len(self.table.states)))
        out[0, 0] = 1.0
        chain = self.chain(0)
        for t in range(steps):
            if t and not self.stationary:
                chain = self.chain(t)
            n = len(self.v_r[self.layer(t)])
            np.add.at(out[t + 1], chain.target, out[t, chain.source] * chain.probability)
            out[t + 1, :n] += np.where(self.table.ended[:n], out[t, :n], 0)
        return out

    def evaluate(
        self, reward: np.ndarray | Callable[[int], np.ndarray], gamma: float = 1.0, terminal: float = 0.0
    ) -> list[np.ndarray]:
        """The expected discounted sum of a reward of states, by time [S_t], when humans and robots act as solved.

        `reward` is an array [S], or gives one for a time. It is earned in states that are left again; where the world
        has ended, or its time is up, `terminal` is earned instead."""
        if self.stationary:
            raise EnvError("evaluate: a stationary solution has no end; sum `chain(0)` to the discount you need")
        value = np.full(len(self.table.states), float(terminal))
        out: list[np.ndarray] = []
        for t in range(len(self.v_r) - 1, -1, -1):
            n, chain = len(self.v_r[t]), self.chain(t)
            gain = np.asarray(reward(t) if callable(reward) else reward, float)[:n]
            later = np.bincount(chain.source, chain.probability * value[chain.target], n)
            value = np.full(len(self.table.states), float(terminal))
            value[:n] = np.where(self.table.ended[:n], terminal, gain + gamma * later)
            out.append(value[:n])
        return out[::-1]

    def step_probability(self, time: int, rows: slice) -> np.ndarray:
        """How likely each joint action with each outcome is [rows, J K]; 0 where the world has ended."""
        marginal, pi_r = self.marginals(time, rows), self.pi_r[self.layer(time)][rows]
        joint = (equations.together(marginal)[:, :, None] * np.nan_to_num(pi_r)[:, None, :]).reshape(len(pi_r), -1, 1)
        p = (joint * self.table.probability(rows)).reshape(len(pi_r), -1)
        return np.where(self.table.ended[rows, None], 0, p)
