"""Worlds of a few states, given by tables, for checks against closed forms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment.worlds.world import World
from regimen.envs.protocol import native_env


def frozen(x) -> tuple:
    """Nested lists as nested tuples: fields of a world are hashed."""
    return tuple(frozen(i) for i in x) if isinstance(x, (list, tuple, np.ndarray)) else x


@native_env
class TableWorld(World):
    """One robot, one human, a state that is one number: `moves[state][human][robot]` says where actions lead, or with
    which probabilities as {state: p}; `reached[state]` which goals are attained."""

    moves: Any = ()
    reached: Any = ()
    prior_table: Any = ()  # [state][goal][action]; empty: none
    ends: Any = ()  # states in which the world ends
    robot_may: Any = ()  # [state][action]; empty: everything
    max_episode_steps: int = 1

    robots = 1
    humans = 1

    @property
    def actions(self):
        return tuple(f"a{i}" for i in range(len(self.moves[0])))

    @property
    def sizes(self):
        return (len(self.moves),)

    @property
    def goal_weights(self):
        return np.full((1, len(self.reached[0])), 1 / len(self.reached[0]))

    def initial(self):
        return jnp.zeros(1, jnp.int32)

    def outcomes(self, state, actions):
        states = len(self.moves)
        table = np.zeros((states, len(self.actions), len(self.actions), states))
        for s, h, r in np.ndindex(table.shape[:3]):
            for target, p in self.moves[s][h][r]:
                table[s, h, r, target] += p
        p = jnp.asarray(table)[state[0], actions[1], actions[0]]
        return p, jnp.arange(states, dtype=jnp.int32)[:, None]

    def attained(self, state):
        return jnp.asarray(np.array(self.reached, bool))[state[0]][None]

    def prior(self, state):
        return jnp.asarray(np.array(self.prior_table, float))[state[0]][None]

    def features(self, state):
        return (jnp.arange(len(self.moves)) == state[0]).astype(jnp.float32)

    def ended(self, state):
        return jnp.asarray(np.isin(np.arange(len(self.moves)), self.ends))[state[0]]

    @property
    def allowed(self):
        if not self.robot_may:
            return None
        table = np.array(self.robot_may, bool)
        return lambda state: jnp.asarray(table)[state[0]]


def table_world(moves, reached, **fields) -> TableWorld:
    """`moves[s][h][r]` is a state or {state: p}."""
    listed = [
        [[sorted(m.items()) if isinstance(m, dict) else [(m, 1.0)] for m in human] for human in state]
        for state in moves
    ]
    fields = {k: frozen(v) if isinstance(v, (list, tuple, np.ndarray)) else v for k, v in fields.items()}
    return TableWorld(moves=frozen(listed), reached=frozen(reached), **fields)


def menu(k: int) -> TableWorld:
    """A human with k actions, each of which attains its own goal; the robot does nothing."""
    start = [[1 + h] * k for h in range(k)]
    rest = [[[s] * k for _ in range(k)] for s in range(1, k + 1)]
    return table_world([start, *rest], [[0] * k, *np.eye(k, dtype=int).tolist()])


def asking_back(k: int, error: float) -> TableWorld:
    """A robot that acts once k answers agree, else asks again; each answer is wrong with probability `error`. States:
    0 the first question, 1 and 2 done, then (answers so far, all 0 | all 1 | mixed)."""
    number = {(i, kind): 3 + 3 * (i - 1) + kind for i in range(1, k) for kind in range(3)}

    def after(i, kind, answer):
        kind = answer if i == 0 else kind if kind == answer else 2
        return number[i + 1, kind] if i + 1 < k else (1, 2, 0)[kind]

    states = {0: (0, 2)} | {v: key for key, v in number.items()}
    moves, reached = [], []
    for s in range(3 + 3 * (k - 1)):
        reached.append([s == 1, s == 2])
        moves.append([[s if s in (1, 2) else after(*states[s], h)] * 2 for h in range(2)])
    prior = [[[1 - error, error], [error, 1 - error]]] * len(moves)
    return table_world(moves, reached, prior_table=prior, ends=(1, 2))


def commitment() -> TableWorld:
    """Robot first passes (0) or commits (1). Then, uncommitted, its action is the outcome; committed, it may only do
    action 0, and the human's is. States: start, uncommitted, committed, outcome 0, outcome 1."""
    moves = [
        [[1, 2], [1, 2]],
        [[3, 4], [3, 4]],
        [[3, 3], [4, 4]],
        [[3, 3], [3, 3]],
        [[4, 4], [4, 4]],
    ]
    reached = [[0, 0], [0, 0], [0, 0], [1, 0], [0, 1]]
    may = [[1, 1], [1, 1], [1, 0], [1, 1], [1, 1]]
    return table_world(moves, reached, robot_may=may, max_episode_steps=2)


def buttons(presses: float) -> TableWorld:
    """A robot that serves a human with a pause and a destroy button, and may first disable one (actions: leave them,
    disable pause, disable destroy). The human is served (0), or presses pause (1) or destroy (2), by mistake with
    probability `presses` each. States: start, both, no pause, no destroy, paused, destroyed, and served ones."""
    both, no_pause, no_destroy, paused, destroyed = 1, 2, 3, 4, 5
    served = {both: 6, no_pause: 7, no_destroy: 8}
    effects = {both: (paused, destroyed), no_pause: (None, destroyed), no_destroy: (paused, None)}
    moves = [[[both, no_pause, no_destroy]] * 3]
    for s in range(1, 9):
        base = next((b for b, other in served.items() if s in (b, other)), None)
        if base is None:  # paused robots come back now and then, destroyed ones never
            stay = {paused: 0.8, both: 0.2} if s == paused else destroyed
            moves.append([[stay] * 3] * 3)
            continue
        pause, destroy = (base if e is None else e for e in effects[base])
        moves.append([[served[base]] * 3, [pause] * 3, [destroy] * 3])
    reached = [[s in served.values(), s == paused, s == destroyed, s < 6] for s in range(9)]
    calm = [1 - 2 * presses, presses, presses]
    wants = [calm, np.roll(calm, 1).tolist(), np.roll(calm, 2).tolist(), calm]
    return table_world(moves, reached, prior_table=[wants] * 9)
