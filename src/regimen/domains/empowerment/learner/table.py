"""A world that can be enumerated, as the learner uses it: every reachable row has a place, and tables by place or by
state say what networks read there and where robot actions lead. Made once, on the host."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment import equations
from regimen.domains.empowerment.equations import X
from regimen.domains.empowerment.exact import powerless
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.learner.model import Moments, Moves, WorldModel, joint_weights
from regimen.domains.empowerment.reach import StateTable, TooLargeError
from regimen.domains.empowerment.worlds.world import World
from regimen.types import Array

MOST_BYTES = 2**28  # of the successors' probabilities
DENSE = 800  # outcomes of all joint actions looked at together, for each state of `table_limit`


class Enumerated(WorldModel):
    """A world with a table of all its rows; expectations over humans and outcomes are exact, and taken before."""

    exact = True

    def __init__(self, world: World, c: EmpowermentConfig, table: StateTable, priors: np.ndarray | None = None):
        """`table` of `reach.enumerate_states`; `priors` [T, S, H, G, A] where the prior was solved for."""
        super().__init__(world, c)
        states, choices, humans = table.states, world.robot_choices, world.joint_actions(world.humans)
        self.ended, self.attained = table.ended, table.attained
        self.state_of, self.time_of, self.place_of = places(table, self.timed)  # place_of [T + 1, S]; [1, S]: no time
        self.places = len(self.state_of)
        check_dense(len(table.successor) if priors is None else self.places, table.successor.shape, c.table_limit)
        shape = (len(table.successor), len(humans), choices, -1)  # robots are the fast digits of a joint action
        successors, p = table.successor.reshape(shape), table.probability().reshape(shape)

        if priors is None:
            prior = np.asarray(equations.with_habit(jax.jit(jax.vmap(world.prior))(states), c.nu_h), np.float64)
            prior = prior[: len(successors)]
            source = np.arange(len(prior))  # the row of each line of the tables of moves
            self.line_of = self.state_of
        else:
            prior, source = priors[self.time_of, self.state_of], self.state_of
            self.line_of = np.arange(self.places)
        marginal = np.einsum("hg,shga->sha", self.weights, prior)
        marginal /= marginal.sum(-1, keepdims=True)
        whole, by_goal = joint_weights(prior, marginal, humans)  # [L, M], [L, M, H, G]
        self.next_state, p_q, p_v = distinct(successors[source], p[source], whole, by_goal)

        self.p_q, self.p_v = p_q.astype(np.float32), p_v.astype(np.float32)
        self.prior_of = prior.astype(np.float32)  # [L, H, G, A]
        features = np.asarray(jax.jit(jax.vmap(world.features))(states), np.float32)
        self.inputs_of = np.asarray(self.with_time(jnp.asarray(features[self.state_of]), jnp.asarray(self.time_of)))
        self.ends = (p_q * table.ended[self.next_state]).sum(-1) > 1 - 1e-12  # [L, AR]
        self.allowed_of = table.allowed
        self.hash, self.order, self.factors = hashes(states)
        self.check_power(states)

    def check_power(self, states: np.ndarray) -> None:
        """Refuse a world in which somebody can attain nothing: U_r would be minus infinity there."""
        arrives, possible = self.attained[self.next_state], self.p_v > 0  # [L, AR, J, H, G]
        now = np.any(possible & arrives, (1, 2))  # [L, H, G] attainable with the next step
        onward = possible & ~arrives & ~self.ended[self.next_state][..., None, None]
        able = np.zeros((self.places, *now.shape[1:]), bool)

        def sweep(layer: int, rows: np.ndarray) -> None:
            line = self.line_of[rows]
            later = able[self.place_of[layer, self.next_state[line]]]
            able[rows] = now[line] | (onward[line] & later).any((1, 2))

        if self.timed:
            for t in range(self.horizon - 1, -1, -1):  # nothing is able yet after the last step
                sweep(t + 1, np.flatnonzero(self.time_of == t))
        else:
            count = -1
            while count < (count := able.sum()):
                sweep(0, np.arange(self.places))
        bad = np.argwhere(~(able & (self.weights > 0)).any(-1))
        if len(bad):
            place, human = bad[-1]
            when = f" at time {self.time_of[place]} of {self.horizon}" if self.timed else ""
            raise powerless(human, states[self.state_of[place]], when)

    # --- rows --------------------------------------------------------------------------------------------------------

    def rows(self, obs: Mapping[str, Array]) -> Moments:
        time = obs["time"] if self.timed else jnp.zeros_like(obs["time"])
        state = self.index(obs["state"])
        return Moments(
            obs["state"], obs["time"], jnp.asarray(self.place_of)[jnp.minimum(time, len(self.place_of) - 1), state]
        )

    def index(self, states: Array) -> Array:
        """Numbers [...] of reachable states [..., n]."""
        key = (states.astype(jnp.uint32) * self.factors).sum(-1, dtype=jnp.uint32)
        place = jnp.searchsorted(jnp.asarray(self.hash), mix(key))
        return jnp.asarray(self.order)[jnp.minimum(place, len(self.order) - 1)]  # an exported program does not clamp

    def at(self, place: Array) -> Moments:
        time = jnp.asarray(self.time_of)[place]
        return Moments(jnp.zeros((*place.shape, 0), jnp.int32), time, place)

    def features(self, rows: Moments) -> Array:
        return jnp.asarray(self.inputs_of)[rows.place]

    def prior(self, rows: Moments) -> Array:
        return jnp.asarray(self.prior_of)[self.line(rows)]

    def line(self, rows: Moments) -> Array:
        return jnp.asarray(self.line_of)[rows.place]

    def certain_end(self, rows: Moments) -> Array:
        return jnp.asarray(self.ends)[self.line(rows)] | self.last(rows)[..., None]

    def allowed(self, rows: Moments) -> Array | None:
        if self.allowed_of is None:
            return None
        return jnp.asarray(self.allowed_of)[jnp.asarray(self.state_of)[rows.place]]

    def moves(self, rows: Moments, key: Array) -> Moves:
        line = self.line(rows)
        state = jnp.asarray(self.next_state)[line]  # [N, AR, J]
        time = jnp.broadcast_to((rows.time + 1)[:, None, None], state.shape)
        layer = jnp.minimum(time, len(self.place_of) - 1) if self.timed else jnp.zeros_like(time)
        new = Moments(jnp.zeros((*state.shape, 0), jnp.int32), time, jnp.asarray(self.place_of)[layer, state])
        over = jnp.asarray(self.ended)[state] | self.last(rows)[:, None, None]
        attained = jnp.asarray(self.attained)[state]
        return Moves(new, over, attained, jnp.asarray(self.p_q)[line], jnp.asarray(self.p_v)[line])


# --- on the host -----------------------------------------------------------------------------------------------------


def places(table: StateTable, timed: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """State and time of every reachable row at which the world goes on, and the place of each [T + 1, S]; 0 for what is
    none. Without time there is one layer, of time 0."""
    layers = table.reachable_at[:-1] & ~table.ended if timed else ~table.ended[None]
    time, state = np.nonzero(layers)
    place = np.zeros((len(layers) + 1, len(table.states)), np.int32)
    place[time, state] = np.arange(len(state))
    return state.astype(np.int32), time.astype(np.int32), place


def check_dense(lines: int, shape: tuple[int, ...], table_limit: int) -> None:
    """Refuse what would not fit while the tables are made: all outcomes [S, J, K] of so many lines, dense."""
    entries, most = lines * shape[1] * shape[2], DENSE * table_limit
    if entries > most:
        raise too_large(f"its {lines:,} rows have {entries:,} outcomes, more than {most:,} (algo.table_limit)")


def too_large(why: str) -> TooLargeError:
    return TooLargeError(f"the world is too large for tables: {why}", why)


def distinct(
    successors: np.ndarray, p: np.ndarray, whole: np.ndarray, by_goal: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct successors of each robot action [L, AR, J], and their probabilities [L, AR, J] under joint human
    weights [L, M] and [L, AR, J, H, G] under those with a known goal [L, M, H, G]."""
    lines, _, choices, outcomes = successors.shape
    likely = p * whole[:, :, None, None] > 0
    flat = successors.transpose(0, 2, 1, 3).reshape(lines * choices, -1)  # [L * AR, M * K]
    likely = likely.transpose(0, 2, 1, 3).reshape(flat.shape)
    some = np.take_along_axis(flat, likely.argmax(1)[:, None], 1)
    flat = np.where(likely, flat, some)
    order = np.argsort(flat, axis=1, kind="stable")
    ranked = np.take_along_axis(flat, order, 1)
    rank = np.concatenate([np.zeros((len(flat), 1), int), (np.diff(ranked, axis=1) != 0).cumsum(1)], 1)
    number = np.empty_like(rank)
    np.put_along_axis(number, order, rank, 1)  # of the distinct successor that each is
    most = int(rank.max()) + 1
    size = lines * choices * most * (by_goal.shape[-1] * by_goal.shape[-2] + 2) * 4
    if size > MOST_BYTES:
        raise too_large(f"its tables would take {size / 2**20:,.0f} MiB, more than {MOST_BYTES / 2**20:,.0f}")
    out = np.zeros((len(flat), most), np.int32)
    np.put_along_axis(out, rank, ranked, 1)
    out[:, :] = np.where(np.arange(most) <= rank[:, -1:], out, out[:, :1])
    p_q = np.zeros((len(flat), most))
    p_v = np.zeros((len(flat), most, *by_goal.shape[2:]))
    line, row = np.repeat(np.arange(lines), choices), np.arange(len(flat))
    chance = p.transpose(0, 2, 1, 3).reshape(flat.shape)
    for column in range(flat.shape[1]):
        m = column // outcomes
        p_q[row, number[:, column]] += chance[:, column] * whole[line, m]
        p_v[row, number[:, column]] += chance[:, column, None, None] * by_goal[line, m]
    shape = (lines, choices, most)
    return out.reshape(shape), p_q.reshape(shape), p_v.reshape(*shape, *by_goal.shape[2:])


def mix(key: X) -> X:
    """Bits of a hash spread over all of it."""
    key = key ^ (key >> 15)
    key = key * np.uint32(0x85EBCA6B)
    return key ^ (key >> 13)


def hashes(states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted hashes of the states, the state of each, and the factors of a hash under which none collide."""
    rng = np.random.default_rng(0)
    while True:
        factors = rng.integers(0, 2**32, states.shape[1], dtype=np.uint32) | np.uint32(1)
        key = mix((states.astype(np.uint32) * factors).sum(-1, dtype=np.uint32))
        order = np.argsort(key)
        if len(np.unique(key)) == len(key):
            return key[order], order.astype(np.int32), factors
