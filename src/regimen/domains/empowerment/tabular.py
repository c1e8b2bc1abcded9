"""Stationary solutions: a world that goes on for ever, or until it ends by itself, with the same policy at all times.

(1) to (9) are then a fixed point. For beta_r = 0 it is unique and sweeps converge to it. For larger beta_r they need
not contract, so the solution is followed from 0 up to beta_r in small steps, with smaller moves where a sweep makes
things worse, and Newton's method where the world is small. What is left of the equations is reported: the residual.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.empowerment.equations import Number, X, module_of
from regimen.domains.empowerment.exact import Backward, ChunkInputs, Forms, StateValues, step, targets
from regimen.domains.empowerment.reach import LIMIT, enumerate_states
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.theory import Theory
from regimen.domains.empowerment.worlds.world import World
from regimen.errors import ConfigError
from regimen.types import Array

BLOCK = 25  # sweeps between two looks at the residual
PATIENCE = 40  # blocks of sweeps before Newton's method is tried
UNKNOWNS = 1500  # most for which it is: its matrix is dense
SMALLEST = 1 / 256  # share of a sweep's change that is still made


class SweepInputs(NamedTuple, Generic[X]):
    """What sweeps need besides values; arrays of states are in chunks [P, C, ...] where `rows` are."""

    numbers: Mapping[str, Number]
    weights: X
    probabilities: X
    attained: X
    ended: X
    rows: ChunkInputs[X]


class Residual(NamedTuple):
    """The most that a sweep changes V_h^e and V_h^m (absolute) and V_r (relative)."""

    humans: float
    robot: float

    @property
    def worst(self) -> float:
        """The larger of the two; NaN where one of them is NaN, which is no convergence."""
        return float(np.max(self))


def solve(
    world: World,
    theory: Theory | None = None,
    limit: int = LIMIT,
    steps: int = 10,
    tolerance: float = 1e-9,
    max_sweeps: int = 20_000,
) -> Solution:
    """Follow the solution from beta_r = 0 in `steps` steps. `report` of the result says whether the residual got below
    `tolerance` within `max_sweeps` sweeps of each step, and how it went."""
    theory = theory or Theory()
    if theory.gamma_r == 1:
        raise ConfigError("gamma_r: 1 is out of range for a world without end; take a number below 1, such as 0.99")
    if theory.beta_r == math.inf:
        raise ConfigError(
            "beta_r: inf is for worlds that end; a stationary solution is followed from beta_r = 0 up to a finite one, "
            "such as 100"
        )
    table = enumerate_states(world, limit, horizon=None)
    with jax.enable_x64(True):
        return Continuation(Backward(table, theory), tolerance, max_sweeps).run(steps)


class Continuation:
    """Sweeps over all states at once, in compiled blocks."""

    def __init__(self, backward: Backward, tolerance: float, max_sweeps: int):
        self.backward, self.tolerance, self.max_sweeps = backward, tolerance, max_sweeps
        size, chunk = len(backward.table.states), backward.chunk
        self.rows = backward.rows(np.minimum(np.arange(-(-size // chunk) * chunk), size - 1).reshape(-1, chunk))
        self.sweeps = 0

    def run(self, steps: int) -> Solution:
        back, table, beta_r = self.backward, self.backward.table, float(self.backward.theory.beta_r)
        values = back.end()
        values = values._replace(v_r=values.v_r - 1.0)
        values, residual = self.settle(values, 0.0, self.tolerance, hold=True)  # humans first: U_r needs X_h > 0
        layer = back.sweep(values, table.ended, len(table.states))
        back.check_power(layer, None)
        ended = table.ended  # where nobody may have any power, so that U_r is minus infinity
        values = values._replace(v_r=np.where(ended, back.theory.terminal_v_r, layer.u_r / (1 - back.theory.gamma_r)))
        path = []
        for beta in np.linspace(0, beta_r, steps + 1) if beta_r else [0.0]:
            last = beta == beta_r
            values, residual = self.settle(values, float(beta), self.tolerance if last else max(self.tolerance, 1e-6))
            path.append({"beta_r": float(beta), "residual": residual.worst, "v_r": float(values.v_r[0])})
        back.numbers["beta_r"] = beta_r
        layer = back.sweep(values, table.ended, len(table.states))
        report = {
            "converged": residual.worst <= self.tolerance,
            "residual": residual.worst,
            "residual_humans": residual.humans,
            "residual_robot": residual.robot,
            "tolerance": self.tolerance,
            "sweeps": self.sweeps,
            "path": path,
        }
        return back.solution([back.masked(layer)], report)

    def settle(
        self, values: StateValues[np.ndarray], beta_r: float, tolerance: float, hold: bool = False
    ) -> tuple[StateValues[np.ndarray], Residual]:
        """Sweep until the residual is small. Every block is followed by a jump to where its last changes of V_r point;
        a jump that makes things worse is taken back."""
        back, table = self.backward, self.backward.table
        numbers = back.numbers | {"beta_r": beta_r}
        problem = SweepInputs(numbers, back.weights, table.values, table.attained, table.ended, self.rows)
        small = table.attained.size + len(table.states) <= UNKNOWNS
        share, best, residual = 1.0, np.inf, Residual(np.inf, np.inf)
        before_jump, wait, pause = None, 0, 1  # values before a jump, blocks until the next one, and after a failed one
        for i in range(-(-self.max_sweeps // BLOCK)):
            if small and i == PATIENCE and not hold:
                values, before_jump = newton(back.forms, problem, values, tolerance), None
                residual = leftover(back.forms, problem, values)
                if residual.worst <= tolerance:  # sweeps might lead away from it again
                    break
            new, change, before, after = block(back.forms, problem, values, share, hold)
            self.sweeps += BLOCK
            humans, robot = (float(c) for c in change)
            residual = Residual(humans, 0.0 if hold else robot)
            if before_jump is not None and not residual.worst < best:
                values, before_jump, wait, pause = before_jump, None, pause, 2 * pause
                continue
            values, before_jump = StateValues(*(np.asarray(x) for x in new)), None
            if residual.worst <= tolerance:
                break
            if not residual.worst < best:
                share = max(share / 2, SMALLEST)
            best = min(best, residual.worst)
            wait -= 1
            if not hold and wait < 0 and residual.robot > residual.humans:
                before_jump = values
                values = values._replace(v_r=jump(values.v_r, np.asarray(before), np.asarray(after)))
        return values, residual


def jump(v_r: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Where V_r is heading when its last two changes shrink by a common factor (Aitken)."""
    factor = np.abs(after).max() / max(np.abs(before).max(), 1e-300)
    if not 0 < factor < 0.99999:
        return v_r
    ahead = v_r + after * factor / (1 - factor)
    return np.where((ahead < 0) & np.isfinite(ahead), ahead, v_r)


def swept(forms: Forms, problem: SweepInputs[Array], values: StateValues[Array]) -> StateValues[Array]:
    """Solve (1) to (9) once for all states, from values of the sweep before."""
    aims = targets(values, problem.attained, problem.ended, problem.numbers)
    one = partial(step, forms, problem.numbers, problem.weights, problem.probabilities)
    layer = jax.lax.map(lambda rows: one(rows, aims), problem.rows)
    size = len(values.v_r)
    v_r, v_h_e, v_h_m = (
        x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])[:size] for x in (layer.v_r, layer.v_h_e, layer.v_h_m)
    )
    return StateValues(jnp.where(problem.ended, problem.numbers["terminal_v_r"], v_r), v_h_e, v_h_m)


def newton(
    forms: Forms, problem: SweepInputs[np.ndarray], values: StateValues[np.ndarray], tolerance: float, steps: int = 20
) -> StateValues[np.ndarray]:
    """Newton's method on log(-V_r) and V_h^e, from values that sweeps have brought near; the humans' computed priors do
    not depend on the robot and stay. A step is halved until the residual falls; if it does not, this is the end."""
    shape, z = values.v_h_e.shape, packed(values)
    for _ in range(steps):
        residual, jacobian = (np.asarray(x) for x in linearised(forms, problem, values))
        size = np.abs(residual).max()
        if not np.isfinite(jacobian).all() or size <= tolerance / 10:
            break
        move = np.linalg.lstsq(jacobian, -residual, rcond=None)[0]
        for halvings in range(8):
            trial = unpacked(z + move / 2**halvings, shape, values.v_h_m)
            if leftover(forms, problem, trial).worst < size:
                values, z = trial, packed(trial)
                break
        else:
            break
    return values


def leftover(forms: Forms, problem: SweepInputs[np.ndarray], values: StateValues[np.ndarray]) -> Residual:
    """The residual of values: what one sweep would change."""
    new = StateValues(*(np.asarray(x) for x in one_sweep(forms, problem, values)))
    humans = [np.abs(a - b).max(initial=0) for a, b in ((new.v_h_e, values.v_h_e), (new.v_h_m, values.v_h_m))]
    return Residual(float(np.max(humans)), float(np.abs(np.log(new.v_r / values.v_r)).max()))


def packed(values: StateValues[X]) -> X:
    np_or_jnp = module_of(values.v_r)
    return np_or_jnp.concatenate([np_or_jnp.log(-values.v_r), values.v_h_e.ravel()])


def unpacked(z: X, shape: tuple[int, ...], v_h_m: X) -> StateValues[X]:
    np_or_jnp = module_of(z)
    return StateValues(-np_or_jnp.exp(z[: shape[0]]), z[shape[0] :].reshape(shape), v_h_m)


Sweeps = tuple[StateValues[Array], tuple[Array, Array], Array, Array]
one_sweep = jax.jit(swept, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def linearised(forms: Forms, problem: SweepInputs[Array], values: StateValues[Array]) -> tuple[Array, Array]:
    """What a sweep changes [n], and its derivative [n, n]."""

    def change(z: Array) -> Array:
        return packed(swept(forms, problem, unpacked(z, values.v_h_e.shape, values.v_h_m))) - z

    residual, derivative = jax.linearize(change, packed(values))
    return residual, jax.lax.map(derivative, jnp.eye(len(residual))).T


@partial(jax.jit, static_argnums=0)
def block(forms: Forms, problem: SweepInputs[Array], values: StateValues[Array], share: Array, hold: Array) -> Sweeps:
    """BLOCK sweeps, making a share of each one's changes, with V_r on hold if so asked; with the last one's change of
    humans' values and of V_r, and the last two moves of V_r."""

    def once(_: Array, carry: Sweeps) -> Sweeps:
        values, last = carry[0], carry[3]
        new = swept(forms, problem, values)
        new = new._replace(v_r=jnp.where(hold, values.v_r, new.v_r))
        log_change = jnp.log(new.v_r / values.v_r)
        humans = jnp.abs(new.v_h_e - values.v_h_e).max()
        if new.v_h_m.size:
            humans = jnp.maximum(humans, jnp.abs(new.v_h_m - values.v_h_m).max())
        moved = StateValues(
            values.v_r * jnp.exp(share * log_change),
            *(old + share * (x - old) for x, old in ((new.v_h_e, values.v_h_e), (new.v_h_m, values.v_h_m))),
        )
        return moved, (humans, jnp.abs(log_change).max()), last, moved.v_r - values.v_r

    nothing = jnp.zeros_like(values.v_r)
    start = (values, (jnp.zeros(()), jnp.zeros(())), nothing, nothing)
    return jax.lax.fori_loop(0, BLOCK, once, start)
