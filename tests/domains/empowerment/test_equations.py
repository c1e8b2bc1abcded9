"""The equations: closed forms, invariances, both precisions, and parameters that are refused."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regimen.domains.empowerment import equations as eq
from regimen.domains.empowerment.theory import Theory
from regimen.errors import ConfigError

PRECISIONS = [("float32", False, 2e-5), ("float64", True, 1e-12)]
POWERS = st.lists(st.floats(0.01, 100), min_size=3, max_size=3)
QUICK = settings(max_examples=30, deadline=None, derandomize=True)


def everything(V, Q, X, log_q, attained, terminal, weights):
    pi, U = eq.power_log_policy(log_q, 10.0), eq.u_r(X, 1.5, 1.1)
    return {
        "attain_target": eq.attain_target(attained, V, terminal[:, None, None], 0.9),
        "q_robot": eq.q_robot(Q[:, 0], terminal, 0.99, -1e-10),
        "log_pi": pi,
        "x_h": eq.x_h(V, weights, 2.0),
        "x_sum": eq.x_h(V, weights, 2.0, "sum"),
        "u_r": U,
        "u_sum": eq.u_r(X, 1.5, 1.1, "sum"),
        "v_r": eq.v_r(U, pi, Q),
        "log_v_r": eq.log_neg_v_r(eq.log_neg_u_r(jnp.log(X), 1.5, 1.1), pi, log_q),
        "bits_robot": eq.bits_of_robot(U, 1.5, 1.1),
        "boltzmann": jnp.exp(eq.robot_log_policy(Q, 3.0, "boltzmann")).sum(-1),
        "human": eq.human_policy(Q, 2.0, 0.1).sum(-1),
    }


@pytest.mark.parametrize(("dtype", "x64", "tolerance"), PRECISIONS)
def test_dtype_follows_the_inputs(dtype, x64, tolerance):
    """Every function, against numpy in float64."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(x64):
        as_dtype = lambda x: jnp.asarray(np.asarray(x), dtype)  # noqa: E731
        v, q = rng.uniform(0.01, 1, (3, 2, 4)), -rng.uniform(1, 900, (3, 5))
        weights = np.array([[0.25] * 4, [0.5, 0.5, 0, 0]])
        attained, terminal = rng.random((3, 2, 4)) < 0.3, np.array([True, False, False])
        log_q, log_pi = np.log(-q), -10 * np.log(-q)
        log_pi -= np.log(np.exp(log_pi - log_pi.max(-1, keepdims=True)).sum(-1, keepdims=True)) + log_pi.max(
            -1, keepdims=True
        )
        x = (weights * v**2).sum(-1)
        u = -(((x**-1.5).mean(-1)) ** 1.1)
        expected = {
            "attain_target": np.where(attained, 1, np.where(terminal[:, None, None], 0, 0.9 * v)),
            "q_robot": 0.99 * np.where(terminal, -1e-10, q[:, 0]),
            "log_pi": log_pi,
            "x_h": x,
            "x_sum": x * [4, 2],
            "u_r": u,
            "u_sum": u * 2**1.1,
            "v_r": u + (np.exp(log_pi) * q).sum(-1),
            "log_v_r": np.log(-(u + (np.exp(log_pi) * q).sum(-1))),
            "bits_robot": -np.log2(-u) / 1.65,
            "boltzmann": np.ones(3),
            "human": np.ones(3),
        }
        mine = jax.jit(everything)(as_dtype(v), as_dtype(q), as_dtype(x), as_dtype(log_q), attained, terminal, weights)
        for name, value in mine.items():
            assert value.dtype == dtype, name
            np.testing.assert_allclose(np.asarray(value), expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_huge_and_tiny_values_keep_their_ratios():
    """float32: Q of 1e30 and 1e-30, far beyond where (-Q)^-50 could be computed."""
    for scale in (1e-30, 1.0, 1e30):
        log_pi = eq.robot_log_policy(jnp.array([-1.0, -1.1, -2.0]) * scale, 50.0)
        wanted = np.array([1.0, 1.1, 2.0]) ** -50
        np.testing.assert_allclose(jnp.exp(log_pi), wanted / wanted.sum(), rtol=1e-3, atol=1e-7)


def test_arriving_at_the_end_still_attains():
    """The corrected convention: 1 where the goal is attained on arrival, 0 otherwise, and no V_r of the end."""
    value = jnp.array([0.7, 0.7])
    np.testing.assert_allclose(eq.attain_target(jnp.array([True, False]), value, jnp.array([True, True]), 0.9), [1, 0])
    q = eq.q_robot(jnp.array([-5.0, -5.0]), jnp.array([True, False]), 0.9, -1e-10)
    np.testing.assert_allclose(q, [-9e-11, -4.5], rtol=1e-6)


def test_robots_in_the_human_model():
    values = jnp.array([[[1.0, 2.0], [5.0, 3.0]]])  # one action, two of others, two of robots
    assert [float(eq.q_human(values, how)[0]) for how in ("cautious", "optimistic", "mean")] == [2.0, 3.5, 2.75]
    only = jnp.array([True, False])
    assert [float(eq.q_human(values, how, only)[0]) for how in ("cautious", "optimistic", "mean")] == [3.0] * 3


def test_infinite_beta_h_is_uniform_over_the_best():
    q = jnp.array([0.5, 1.0, 1.0, 0.0])
    assert eq.human_policy(q, math.inf).tolist() == [0, 0.5, 0.5, 0]
    np.testing.assert_allclose(eq.human_policy(q, math.inf, 0.2), [0.05, 0.45, 0.45, 0.05], rtol=1e-6)
    np.testing.assert_allclose(eq.human_policy(q, 500.0), [0, 0.5, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(eq.human_policy(q, 0.0), [0.25] * 4, rtol=1e-6)


def test_boltzmann_divides_by_the_range_of_q():
    """pi proportional to exp(beta_r (Q - max) / (max - min)): the same whatever the scale of Q."""
    wanted = np.exp([0.0, -1.0, -2.0]) / np.exp([0.0, -1.0, -2.0]).sum()
    for scale in (1.0, 100.0):
        log_pi = eq.robot_log_policy(scale * jnp.array([-1.0, -3.0, -5.0]), 2.0, "boltzmann")
        np.testing.assert_allclose(np.exp(log_pi), wanted, rtol=1e-5)


def test_masked_actions_are_never_taken():
    for kind in ("power", "boltzmann"):
        p = jnp.exp(eq.robot_log_policy(jnp.array([-1.0, -9.0, -4.0]), 2.0, kind, jnp.array([False, True, True])))
        assert p[0] == 0 and float(p.sum()) == pytest.approx(1) and p[2] > p[1]
    assert float(eq.v_r(jnp.array(-1.0), jnp.log(p), jnp.array([-jnp.inf, -2.0, -2.0]))) == pytest.approx(-3)


# --- invariances -----------------------------------------------------------------------------------------------------


@QUICK
@given(st.lists(st.floats(1e-3, 1e6), min_size=5, max_size=5), st.floats(0, 60))
def test_policies_are_distributions_that_prefer_less_loss(losses, beta_r):
    q = -jnp.array(losses)
    for kind in ("power", "boltzmann"):
        p = np.exp(np.asarray(eq.robot_log_policy(q, beta_r, kind)))
        assert p.sum() == pytest.approx(1, abs=1e-4)
        assert p[int(np.argmin(losses))] >= p.max() - 1e-4
        if beta_r == 0:
            np.testing.assert_allclose(p, 1 / len(losses), rtol=1e-5)


@QUICK
@given(POWERS, st.floats(1, 2), st.floats(1, 2), st.floats(0.05, 20), st.floats(1, 3))
def test_scale_of_abilities_cancels(powers, xi, eta, scale, zeta):
    """All V_h^e times b multiply U_r by b^(-zeta xi eta): ratios, and so the policy, stay."""
    x = np.array(powers)
    u = [float(eq.u_r(jnp.array(v), xi, eta)) for v in (x, x * scale**zeta)]
    assert u[0] < 0 and u[1] / u[0] == pytest.approx(scale ** (-zeta * xi * eta), rel=1e-3)


@QUICK
@given(POWERS, st.floats(1, 2), st.floats(1, 2))
def test_sum_and_mean_differ_by_a_constant(powers, xi, eta):
    x = jnp.array(powers)
    ratio = float(eq.u_r(x, xi, eta, "sum")) / float(eq.u_r(x, xi, eta))
    assert ratio == pytest.approx(len(powers) ** eta, rel=1e-4)


@QUICK
@given(st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3), st.floats(1, 2), st.floats(1, 2))
def test_power_of_at_most_one_costs_at_least_one(powers, xi, eta):
    assert float(eq.u_r(jnp.array(powers), xi, eta)) <= -1 + 1e-5


# --- closed forms ----------------------------------------------------------------------------------------------------


def split(f, total=1.0, parts=201):
    """How a robot would split a resource between two humans who get f(m) bits of m."""
    m = np.linspace(0, total, parts)
    with jax.enable_x64(True):
        u = np.asarray(eq.u_r(jnp.asarray(2.0 ** np.stack([f(m), f(total - m)], -1)), 1.0, 1.0, "sum"))
    return m[np.flatnonzero(np.isclose(u, u.max(), rtol=1e-12))]


def test_resources_are_split_equally_unless_returns_increase():
    for concave in (np.sqrt, np.log1p, lambda m: m):
        np.testing.assert_allclose(split(concave), [0.5], atol=1e-9)
    np.testing.assert_allclose(split(np.square), [0, 1], atol=1e-9)


@QUICK
@given(st.floats(1, 20), st.floats(0, 20))
def test_nobodys_last_bit_is_taken(other, gain):
    """xi = 1: from 1 bit to 0 for one human is worse, whatever another with at least 1 bit gains."""
    with jax.enable_x64(True):
        u = eq.u_r(jnp.array([[2.0, 2.0**other], [1.0, 2.0 ** (other + gain)]]), 1.0, 1.0, "sum")
        assert float(u[1]) < float(u[0])


def test_coma_pill():
    """A pill adds v to a power of x, and with probability p a step leaves nothing for ever: when is it worth it?"""
    gamma, x, v = 0.99, 100.0, 0.5

    def gain(p):
        with jax.enable_x64(True):
            plain, better, coma = (float(eq.u_r(jnp.array([power]), 1.0, 1.0)) for power in (x, x + v, 1.0))
        with_pill = (better + gamma * p * coma / (1 - gamma)) / (1 - gamma * (1 - p))
        return with_pill - plain / (1 - gamma)

    low, high = 0.0, 1e-3
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) > 0 else (low, middle)
    assert low == pytest.approx(5.076e-7, rel=1e-3)
    a = -1
    left = (x**a - (x + v) ** a) / (1 - (x + v) ** a)
    assert left == pytest.approx(low * gamma / (1 - (1 - low) * gamma), rel=1e-9)
    assert (1 - gamma) / gamma * v / x**2 == pytest.approx(5.05e-7, rel=1e-3)


# --- parameters ------------------------------------------------------------------------------------------------------

BAD = [
    ({"zeta": 0.5}, "zeta: 0.5 is out of range; it must be at least 1"),
    ({"xi": 0.99}, "xi: 0.99 is out of range; it must be at least 1"),
    ({"eta": 0}, "eta: 0 is out of range; it must be at least 1"),
    ({"gamma_h": 0}, "gamma_h: 0 is out of range; it must be greater than 0 and at most 1"),
    ({"gamma_r": 1.01}, "gamma_r: 1.01 is out of range"),
    ({"beta_r": -1}, "beta_r: -1 is out of range; it must be at least 0"),
    ({"beta_r": "high"}, "beta_r: 'high' is not a number or inf"),
    ({"beta_h": -2}, "beta_h: -2 is out of range"),
    ({"beta_h": 3}, "beta_h: 3 would change nothing, the heuristic prior is the world's own; set env.beta_h"),
    ({"beta_h": "high"}, "beta_h: 'high' is not a number or inf"),
    ({"nu_h": 1.5}, "nu_h: 1.5 is out of range; it must be 0 to 1"),
    ({"terminal_v_r": 0}, "terminal_v_r: 0 is out of range; it must be below 0"),
    ({"form": "total"}, "form: 'total' is not one of mean, sum"),
    ({"prior": "optimist"}, "did you mean 'optimistic'?"),
    ({"robot_policy": "greedy"}, "robot_policy: 'greedy' is not one of power, boltzmann"),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_parameters_are_refused(fields, message):
    with pytest.raises(ConfigError) as error:
        Theory(**fields)
    assert message in str(error.value)


def test_documented_defaults():
    assert Theory(beta_h="inf", prior="mean").beta_h == math.inf
    theory = Theory()
    assert (theory.gamma_h, theory.gamma_r, theory.zeta, theory.xi, theory.eta) == (0.99, 0.99, 2, 1, 1.1)
    assert (theory.beta_r, theory.terminal_v_r, theory.form, theory.prior) == (10, -1e-10, "mean", "heuristic")


def test_certain_humans_do_not_choose_by_rounding():
    """0.1 + 0.2 is not 0.3 in floating point, and yet as good."""
    with jax.enable_x64(True):
        policy = eq.human_policy(jnp.array([0.3, 0.1 + 0.2, 0.1]), math.inf)
    np.testing.assert_allclose(policy, [0.5, 0.5, 0.0])
