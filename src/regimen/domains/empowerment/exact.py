"""The exact solution of a world that ends: backward over time, all states of a time in compiled chunks, in float64.

pi_r of a state depends only on values at its successors, one step later, so that one pass solves (1) to (9): for each
time first the humans' policies where they are computed (phase 1), then the robot's and what follows (phase 2).
"""

import dataclasses
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment import equations
from regimen.domains.empowerment.equations import Number, X
from regimen.domains.empowerment.reach import LIMIT, StateTable, TooLargeError, enumerate_states, in_chunks
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.theory import Theory
from regimen.domains.empowerment.worlds.world import World
from regimen.errors import ConfigError, EnvError
from regimen.types import Array

CHUNK_BYTES = 8_000_000  # of successors' values looked at together
FLOATS = 4  # of the solution, allowed for each unit of the limit


class StateValues(NamedTuple, Generic[X]):
    """Values of the robot and of humans in some states."""

    v_r: X  # [S]
    v_h_e: X  # [S, H, G]
    v_h_m: X  # [S, H, G], or [S, 0, 0] where no prior is computed


class SolvedChunk(NamedTuple, Generic[X]):
    """Policies and values of a chunk of states: what phases 1 and 2 give."""

    pi_h: X  # [C, H, G, A]
    v_h_m: X  # [C, H, G]
    q_r: X  # [C, A^R]
    pi_r: X  # [C, A^R]
    v_h_e: X  # [C, H, G]
    x_h: X  # [C, H]
    u_r: X  # [C]
    v_r: X  # [C]


class ChunkInputs(NamedTuple, Generic[X]):
    """Where a chunk of states leads, which goals it attains and how its humans act: what phases 1 and 2 need."""

    successor: X  # [C, J, K]
    code: X  # [C, J, K]
    attained: X  # [C, H, G]
    allowed: X | None  # [C, A^R]
    prior: X | None  # [C, H, G, A]; None: computed


def solve(world: World, theory: Theory | None = None, limit: int = LIMIT, weigh_duration: bool = False) -> Solution:
    """Solve a world. `weigh_duration` lets U_r accrue during a step instead of at its start (it changes no policy)."""
    theory = theory or Theory()
    table = enumerate_states(world, limit)
    check_size(table, theory, limit)
    with jax.enable_x64(True):
        return Backward(table, theory, weigh_duration).run()


def check_size(table: StateTable, theory: Theory, limit: int) -> None:
    world, pairs = table.world, sum(table.reachable_by[:-1])
    each = world.humans * world.num_goals * (1 if theory.prior == "heuristic" else 2 + world.num_actions)
    each += 2 * world.robot_choices + world.humans + 2  # q_r, pi_r, x_h, u_r, v_r
    if pairs * each > FLOATS * limit:
        raise TooLargeError(
            f"the solution is too large to keep: {pairs:,} states with time, {each:,} values of humans' goals and "
            f"robots' actions each, and the limit is {FLOATS * limit:,}; lower env.max_episode_steps, give fewer goals "
            "(env.possible_goals), or raise the limit (--limit)",
            f"its solution has {pairs * each:,} values",
        )


class Backward:
    """A solver that goes backward over time: numpy outside, compiled chunks of states inside."""

    def __init__(self, table: StateTable, theory: Theory, weigh_duration: bool = False):
        world = table.world
        self.table, self.theory, self.world = table, theory, world
        self.numbers = {name: x for name, x in dataclasses.asdict(theory).items() if isinstance(x, float)}
        self.numbers["weight"] = equations.duration_weight(theory.gamma_r) if weigh_duration else 1.0
        self.forms = Forms(
            *(world.num_actions, world.robots, world.humans, int(world.still)),
            *(theory.prior, theory.form, theory.robot_policy),
            *(math.isinf(float(theory.beta_h)), math.isinf(float(theory.beta_r))),
            serves=theory.serves,
        )
        theory.check_humans(world.humans)
        self.weights = np.asarray(world.goal_weights, float)
        check_weights(self.weights)
        self.prior = None
        if theory.prior == "heuristic":
            if type(world).prior is World.prior:
                name = type(world).__name__
                raise ConfigError(f"prior: {name} has none of its own; compute it with cautious, optimistic or mean")
            prior = in_chunks("prior", world, table.states[: len(table.successor)])
            self.prior = np.asarray(equations.with_habit(jnp.asarray(prior, jnp.float64), theory.nu_h))
        shape = table.successor.shape[1:]
        each = shape[0] * shape[1] * world.humans * world.num_goals * 8
        self.chunk = max(1, min(2048, CHUNK_BYTES // each, len(table.successor)))

    def run(self) -> Solution:
        table, horizon = self.table, self.table.horizon
        assert horizon is not None
        layers: list[SolvedChunk[np.ndarray]] = []
        values = self.end()
        for t in range(horizon - 1, -1, -1):
            terminal = np.ones(len(table.states), bool) if t == horizon - 1 else table.ended
            layer = self.sweep(values, terminal, table.reachable_by[t])
            self.check_power(layer, t)
            for old, new in zip(values, (layer.v_r, layer.v_h_e, layer.v_h_m)):
                old[: len(new)] = new
            layers.append(self.masked(layer))
        return self.solution(layers[::-1])

    def end(self) -> StateValues[np.ndarray]:
        """Zeros to begin with: values of all states after the last step."""
        size, goals = len(self.table.states), self.weights.shape
        computed = goals if self.prior is None else (0, 0)
        return StateValues(np.zeros(size), np.zeros((size, *goals)), np.zeros((size, *computed)))

    def sweep(self, values: StateValues[np.ndarray], terminal: np.ndarray, states: int) -> SolvedChunk[np.ndarray]:
        """Solve (1) to (9) for the first `states`, from values one step later."""
        aims = targets(values, self.table.attained, terminal, self.numbers)
        parts = [self.part(aims, at, min(at + self.chunk, states)) for at in range(0, states, self.chunk)]
        return SolvedChunk(*(np.concatenate(column) for column in zip(*parts)))

    def part(self, aims: StateValues[Array], start: int, stop: int) -> SolvedChunk[np.ndarray]:
        """Solve one chunk of states, padded to the shape that is compiled."""
        whole = stop == start + self.chunk
        index = slice(start, stop) if whole else np.minimum(np.arange(start, start + self.chunk), stop - 1)
        layer = step(self.forms, self.numbers, self.weights, self.table.values, self.rows(index), aims)
        layer = layer._replace(pi_h=np.zeros((self.chunk, 0))) if self.prior is not None else layer
        return SolvedChunk(*(np.asarray(x)[: stop - start] for x in layer))

    def rows(self, index: slice | np.ndarray) -> ChunkInputs[np.ndarray]:
        """The inputs of a step for these states."""
        table = self.table
        return ChunkInputs(
            table.successor[index],
            table.code[index],
            table.attained[index],
            None if table.allowed is None else table.allowed[index],
            None if self.prior is None else self.prior[index],
        )

    def masked(self, layer: SolvedChunk[np.ndarray]) -> SolvedChunk[np.ndarray]:
        """The chunk without values where the world has ended, and of actions that are not allowed."""
        n = len(layer.v_r)
        allowed = self.table.allowed
        if allowed is not None:
            layer = layer._replace(q_r=np.where(allowed[:n], layer.q_r, np.nan))
        fill = dict.fromkeys(("q_r", "pi_r", "x_h", "u_r"), np.nan)
        fill |= {"v_h_e": 0.0, "v_h_m": 0.0, "v_r": self.theory.terminal_v_r}
        for name, value in fill.items():
            getattr(layer, name)[self.table.ended[:n]] = value
        return layer

    def check_power(self, layer: SolvedChunk[np.ndarray], time: int | None) -> None:
        """Refuse a world in which somebody has no power at all: U_r would be minus infinity."""
        if layer.x_h.min() > 0:
            return
        table, n = self.table, len(layer.x_h)
        there = ~table.ended[:n]
        if time is not None:
            there &= table.reachable_at[time, :n]
        bad = np.argwhere(there[:, None] & ~(layer.x_h > 0))
        if len(bad):
            s, h = bad[-1]
            when = "" if time is None else f" at time {time} of {table.horizon}"
            raise powerless(h, table.states[s], when)

    def solution(self, layers: list[SolvedChunk[np.ndarray]], report: dict[str, Any] | None = None) -> Solution:
        names = [f.name for f in dataclasses.fields(Solution) if f.name in SolvedChunk._fields]
        lists: dict[str, Any] = {name: [getattr(layer, name) for layer in layers] for name in names}
        if self.prior is not None:
            lists["pi_h"] = [self.prior[: len(layer.v_r)] for layer in layers]
            lists["v_h_m"] = None
        return Solution(self.world, self.theory, self.table, report=report, **lists)


class Forms(NamedTuple):
    """Numbers of agents and kinds of equations, by which programs are compiled."""

    actions: int
    robots: int
    humans: int
    still: int
    prior: str = "mean"
    form: str = "mean"
    robot_policy: str = "power"
    certain: bool = False  # beta_h is infinite
    strict: bool = False  # beta_r is infinite
    serves: int | None = None


@jax.jit
def targets(
    values: StateValues[Array], attained: Array, terminal: Array, numbers: Mapping[str, Number]
) -> StateValues[Array]:
    """The value of each state as a successor, for the robot and for each goal of humans."""
    at_end, gamma_h = terminal[:, None, None], numbers["gamma_h"]
    return StateValues(
        equations.q_robot(values.v_r, terminal, numbers["gamma_r"], numbers["terminal_v_r"]),
        equations.attain_target(attained, values.v_h_e, at_end, gamma_h),
        equations.attain_target(attained, values.v_h_m, at_end, gamma_h) if values.v_h_m.size else values.v_h_m,
    )


@partial(jax.jit, static_argnums=0)
def step(
    forms: Forms,
    numbers: Mapping[str, Number],
    weights: Array,
    values: Array,
    rows: ChunkInputs[Array],
    aims: StateValues[Array],
) -> SolvedChunk[Array]:
    """Solve (1) to (9) in a chunk of states, from the values of successors."""
    p = values[rows.code]  # [C, J, K]
    chunk, joint = p.shape[:2]
    choices = forms.actions**forms.robots
    split = (chunk, joint // choices, choices)  # humans' joint actions, robots'

    if rows.prior is None:
        later = jnp.einsum("cjk,cjkhg->cjhg", p, aims.v_h_m[rows.successor])
        pi_h, v_h_m = phase_1(forms, numbers, later.reshape(*split, *later.shape[2:]), rows)
    else:
        pi_h, v_h_m = rows.prior, jnp.zeros((chunk, 0, 0))

    marginal = jnp.einsum("hg,chga->cha", weights, pi_h)
    v_next = jnp.einsum("cjk,cjk->cj", p, aims.v_r[rows.successor]).reshape(split)
    q_r = jnp.einsum("cm,cmr->cr", equations.together(marginal), v_next)  # (4)
    beta_r = math.inf if forms.strict else numbers["beta_r"]
    log_pi = equations.robot_log_policy(q_r, beta_r, forms.robot_policy, rows.allowed)  # (5)
    pi_r = jnp.exp(log_pi)

    reach = (p.reshape(*split, -1) * pi_r[:, None, :, None]).reshape(chunk, split[1], -1)
    e_next = aims.v_h_e[rows.successor].reshape(*reach.shape, -1)
    goals = jnp.einsum("cmi,cmix->cmx", reach, e_next).reshape(chunk, split[1], forms.humans, -1)
    v_h_e = jnp.stack([expected(h, goals[:, :, h], pi_h, marginal) for h in range(forms.humans)], 1)  # (6)

    x_h = equations.x_h(v_h_e, weights, numbers["zeta"], forms.form)  # (7)
    u_r = numbers["weight"] * equations.u_r(x_h, numbers["xi"], numbers["eta"], forms.form, forms.serves)  # (8)
    v_r = equations.v_r(u_r, log_pi, q_r)  # (9)
    return SolvedChunk(pi_h, v_h_m, q_r, pi_r, v_h_e, x_h, u_r, v_r)


def phase_1(forms: Forms, numbers: Mapping[str, Number], later: Array, rows: ChunkInputs[Array]) -> tuple[Array, Array]:
    """(1) to (3): policies [C, H, G, A] and V_h^m from what joint actions lead to [C, humans', robots', H, G]. Who is
    where it wants to be stays, and has nothing left to gain."""
    q = []
    for h in range(forms.humans):
        gains = of_human(h, later[..., h, :], forms.humans, forms.actions)  # [C, A, others, robots, G]
        gains = jnp.moveaxis(gains, -1, 1)  # [C, G, A, others, robots]
        allowed = None if rows.allowed is None else rows.allowed[:, None, None, None]
        q.append(equations.q_human(gains, forms.prior, allowed))
    q = jnp.stack(q, 1)  # [C, H, G, A]
    there = rows.attained[..., None]
    policy = equations.human_policy(q, math.inf if forms.certain else numbers["beta_h"])
    stays = jax.nn.one_hot(forms.still, forms.actions, dtype=q.dtype)
    policy = equations.with_habit(jnp.where(there, stays, policy), numbers["nu_h"])
    return policy, jnp.where(rows.attained, 0, equations.v_human(policy, q))


def of_human(h: int, values: Array, humans: int, a: int) -> Array:
    """Reorder [C, humans', ...] as [C, A, others', ...]: the actions of human h, and of the others together."""
    chunk, rest = values.shape[0], values.shape[2:]
    split = values.reshape(chunk, a ** (humans - 1 - h), a, a**h, *rest)
    return jnp.moveaxis(split, 2, 1).reshape(chunk, a, -1, *rest)


def expected(h: int, later: Array, pi_h: Array, marginal: Array) -> Array:
    """(6) for human h [C, G]: from what joint actions of humans lead to [C, humans', G], with its own policy for each
    goal and the others' marginals."""
    others = equations.together(jnp.delete(marginal, h, 1))
    q = jnp.einsum("caog,co->cga", of_human(h, later, *marginal.shape[1:]), others)
    return equations.v_human(pi_h[:, h], q)


def powerless(human: int, state: np.ndarray, when: str) -> EnvError:
    """The error about a world in which U_r would be minus infinity."""
    return EnvError(
        f"human {human} can attain none of its goals from state {state.tolist()}{when} (X_h = 0, so U_r would be minus "
        "infinity); give goals of which one can always be attained, such as every cell (no env.possible_goals), or a "
        "rectangle around the places where it may get stuck"
    )


def check_weights(weights: np.ndarray) -> None:
    if (weights < 0).any() or not np.allclose(weights.sum(-1), 1):
        h = int(np.argmax((weights < 0).any(-1) | ~np.isclose(weights.sum(-1), 1)))
        raise EnvError(f"goal_weights of human {h} sum to {weights[h].sum():g}; they must be at least 0 and sum to 1")
