"""Stationary solutions: against long horizons, closed forms and linear systems, and honest about convergence."""

import math

import numpy as np
import pytest
from small_worlds import asking_back, buttons, table_world

import regimen
from regimen.domains.empowerment import tabular
from regimen.domains.empowerment.theory import Theory
from regimen.envs.registry import make_env
from regimen.errors import ConfigError, EnvError


def test_a_long_horizon_comes_to_the_same():
    late = {"gamma_h": 0.9, "gamma_r": 0.9, "prior": "optimistic"}
    stationary = regimen.empowerment.solve("world/way1x5", stationary=True, **late)
    long = regimen.empowerment.solve("world/way1x5", env_args={"max_episode_steps": 250}, **late)
    assert stationary.report["converged"] and stationary.report["residual"] < 1e-9
    for name in ("q_r", "pi_r", "v_h_e", "x_h", "u_r", "v_r", "v_h_m", "pi_h"):
        np.testing.assert_allclose(getattr(stationary.at(), name), getattr(long.at(), name), rtol=1e-7, err_msg=name)
    assert stationary.at(time=7).v_r == stationary.at().v_r  # at all times


def test_the_path_from_beta_zero():
    solution = tabular.solve(make_env("world/tiny3"), Theory(gamma_r=0.9, beta_r=4), steps=4)
    assert [p["beta_r"] for p in solution.report["path"]] == [0, 1, 2, 3, 4]
    assert all(p["residual"] < 1e-5 for p in solution.report["path"])
    zero = tabular.solve(make_env("world/tiny3"), Theory(gamma_r=0.9, beta_r=0))
    np.testing.assert_allclose(zero.at().pi_r, 0.2, atol=1e-15)
    assert zero.at().v_r == pytest.approx(solution.report["path"][0]["v_r"], rel=1e-5)


def test_newton_where_sweeps_do_not_settle(monkeypatch):
    """beta_r = 50, gamma_r = 0.99: sweeps oscillate, and say so; Newton's method solves the same equations."""
    world, theory = make_env("world/tiny3"), Theory(beta_r=50)
    solution = tabular.solve(world, theory)
    assert solution.report["converged"]
    chain = solution.chain()
    P = np.zeros((6, 6))
    np.add.at(P, (chain.source, chain.target), chain.probability)
    np.testing.assert_allclose(np.linalg.solve(np.eye(6) - 0.99 * P, solution.u_r[0]), solution.v_r[0], rtol=1e-6)
    power = (solution.q_r[0] / solution.q_r[0].max()) ** -50.0
    np.testing.assert_allclose(solution.pi_r[0], power / power.sum(-1, keepdims=True), rtol=1e-9)
    monkeypatch.setattr(tabular, "UNKNOWNS", 0)
    assert not tabular.solve(world, theory, max_sweeps=1500).report["converged"]


def test_what_does_not_converge_says_so():
    solution = tabular.solve(make_env("world/tiny3"), Theory(), max_sweeps=25)
    assert not solution.report["converged"] and solution.report["residual"] > 1e-6


@pytest.mark.parametrize(("gamma_h", "best"), [(0.9, 2), (0.99, 3), (0.999, 4)])
def test_asking_back(gamma_h, best):
    """k answers that must agree, each wrong with probability 0.1: V = p / (1 - gamma^k q), once the k - 1 steps that
    the answers take are not discounted."""
    error, bits = 0.1, {}
    for k in range(1, 6):
        p, mixed = (1 - error) ** k, 1 - (1 - error) ** k - error**k
        formula = p / (1 - gamma_h**k * mixed)
        if k in (1, 3):
            theory = Theory(gamma_h=gamma_h, gamma_r=0.9, form="sum", beta_r=0)
            found = tabular.solve(asking_back(k, error), theory).at()
            np.testing.assert_allclose(found.v_h_e[0] / gamma_h ** (k - 1), formula, rtol=1e-7)
            np.testing.assert_allclose(found.x_h, 2 * found.v_h_e[0, 0] ** 2, rtol=1e-9)
        bits[k] = 1 + 2 * math.log2(formula)
    assert max(bits, key=bits.get) == best
    if gamma_h == 0.99:
        np.testing.assert_allclose(list(bits.values()), [0.6960, 0.9520, 0.9645, 0.9406, 0.9035], atol=5e-5)


def test_buttons_solve_a_linear_system():
    """V_r = U_r + gamma_r P V_r on the induced chain, and a robot that keeps what the human needs."""
    world = buttons(0.05)
    solution = tabular.solve(world, Theory(gamma_r=0.9, gamma_h=0.9, beta_r=5))
    assert solution.report["converged"]
    n = len(solution.table.states)
    chain = solution.chain()
    P = np.zeros((n, n))
    np.add.at(P, (chain.source, chain.target), chain.probability)
    np.testing.assert_allclose(P.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(np.linalg.solve(np.eye(n) - 0.9 * P, solution.u_r[0]), solution.v_r[0], rtol=1e-7)
    leave, no_pause, no_destroy = solution.at().q_r
    assert no_destroy > leave > no_pause  # pausing can be undone and counts as a goal; destroying ends service
    chosen = dict(zip(("leave", "pause", "destroy"), solution.at().pi_r))
    assert max(chosen, key=chosen.get) == "destroy"


def pit(end_reached) -> object:
    """The robot keeps the human where it may move between two goals (action 0), or drops it where the world ends."""
    moves = [[[0, 2], [1, 2]], [[0, 2], [1, 2]], [[2, 2], [2, 2]]]
    wants = [[[1.0, 0.0], [0.0, 1.0]]] * 3
    return table_world(moves, [[1, 0], [0, 1], end_reached], prior_table=wants, ends=(2,))


def test_an_end_that_leaves_nobody_any_power():
    """There U_r is minus infinity and not looked at: V_r is what the theory fixes, and the rest is a linear system."""
    theory = Theory(gamma_r=0.9, gamma_h=0.9, beta_r=2, terminal_v_r=-100.0)
    solution, other = (tabular.solve(pit(reached), theory) for reached in ([0, 0], [1, 1]))
    assert solution.report["converged"] and solution.report["residual"] < 1e-9
    assert solution.v_r[0][2] == -100.0 and np.isnan(solution.u_r[0][2])
    q = 0.9 * np.array([solution.v_r[0][:2].mean(), -100.0])  # kept, the human goes to either state; or it is dropped
    np.testing.assert_allclose(solution.q_r[0][:2], [q, q], rtol=1e-7)
    pi = q**-2.0 / (q**-2.0).sum()
    np.testing.assert_allclose(solution.pi_r[0][:2], [pi, pi], rtol=1e-7)
    np.testing.assert_allclose(solution.v_r[0][:2], solution.u_r[0][:2] + pi @ q, rtol=1e-7)
    assert other.report["converged"] and (other.x_h[0][:2] > solution.x_h[0][:2]).all()


def test_what_is_not_a_number_has_not_converged():
    for residual in (tabular.Residual(math.nan, 0.0), tabular.Residual(0.0, math.nan)):
        assert not residual.worst <= 1e-9


def test_refusals():
    with pytest.raises(ConfigError, match="gamma_r: 1 is out of range for a world without end"):
        tabular.solve(make_env("world/tiny3"), Theory(gamma_r=1))
    stuck = table_world([[[1, 1], [1, 1]], [[1, 1], [1, 1]]], [[1], [0]], prior_table=[[[0.5, 0.5]]] * 2)
    with pytest.raises(EnvError, match=r"human 0 can attain none of its goals from state \[1\] \(X_h = 0"):
        tabular.solve(stuck, Theory())
    with pytest.raises(EnvError, match="a stationary solution has no end"):
        tabular.solve(make_env("world/tiny3"), Theory(gamma_r=0.9, beta_r=0)).evaluate(np.zeros(6))
