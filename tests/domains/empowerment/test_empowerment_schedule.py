"""Stages, ramp, decay and epsilons, each at its boundaries."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from regimen.domains.empowerment.hyperparameters import NETS, STAGES, EmpowermentConfig
from regimen.domains.empowerment.learner.schedule import Plan, decay_start, effective_beta, epsilon, rate

C = EmpowermentConfig(
    warmup_v_h_e_steps=10,
    warmup_x_h_steps=20,
    warmup_u_r_steps=5,
    warmup_q_r_steps=30,
    warmup_v_r_steps=7,
    beta_r_rampup_steps=100,
    u_r_use_network=True,
    v_r_use_network=True,
)
PLAN = Plan.of(C)


def test_every_stage_begins_when_the_one_before_ends():
    assert PLAN.starts == (0, 10, 30, 35, 65, 72, 172)
    for number, start in enumerate(PLAN.starts):
        assert int(PLAN.stage(start)) == number, STAGES[number]
        if start:
            assert int(PLAN.stage(start - 1)) == number - 1


@pytest.mark.parametrize("name", NETS)
def test_a_network_joins_at_its_stage(name):
    start = PLAN.starts[NETS.index(name)]
    assert bool(PLAN.active(name, start)) and (start == 0 or not bool(PLAN.active(name, start - 1)))


def test_a_network_that_is_not_used_has_no_stage():
    plan = Plan.of(replace(C, u_r_use_network=False, v_r_use_network=False, x_h_use_network=False))
    assert plan.starts == (0, 10, 10, 10, 40, 40, 140)
    assert int(plan.stage(10)) == 3 and int(plan.stage(40)) == 5  # straight to Q_r, straight to the ramp


@pytest.mark.parametrize("form", ["sigmoid", "linear"])
def test_beta_is_exact_at_both_ends_of_the_ramp(form):
    c = replace(C, beta_r_ramp=form)
    assert float(effective_beta(c, PLAN, PLAN.warm - 1)) == float(effective_beta(c, PLAN, PLAN.warm)) == 0.0
    assert float(effective_beta(c, PLAN, PLAN.full)) == float(effective_beta(c, PLAN, 10**6)) == c.beta_r
    assert float(effective_beta(c, PLAN, PLAN.warm + 50)) == pytest.approx(c.beta_r / 2, rel=1e-6)
    rising = [float(effective_beta(c, PLAN, t)) for t in range(PLAN.warm, PLAN.full + 1)]
    assert all(a < b for a, b in pairwise(rising))


def test_the_sigmoid_is_the_documented_one():
    def documented(u):
        low, high = 1 / (1 + math.exp(3)), 1 / (1 + math.exp(-3))
        return (1 / (1 + math.exp(-6 * (u - 0.5))) - low) / (high - low)

    for t in (PLAN.warm + 1, PLAN.warm + 25, PLAN.warm + 99):
        assert float(effective_beta(C, PLAN, t)) == pytest.approx(10 * documented((t - PLAN.warm) / 100), rel=1e-5)


def test_no_ramp_is_a_step():
    c = replace(C, beta_r_rampup_steps=0)
    plan = Plan.of(c)
    assert float(effective_beta(c, plan, plan.warm - 1)) == 0.0 and float(effective_beta(c, plan, plan.warm)) == 10.0
    assert int(plan.stage(plan.warm)) == 6


def test_epsilon_is_linear_and_stops():
    assert [float(epsilon(1.0, 0.1, 10, t)) for t in (0, 5, 10, 11)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert float(epsilon(1.0, 0.1, 0, 0)) == pytest.approx(0.1)


TOTAL = 1000.0


@pytest.mark.parametrize(
    ("form", "after"),
    [
        ("constant", lambda t: 1.0),
        ("seed_sqrt", lambda t: 1 / math.sqrt(t - 172 + 1)),
        ("sqrt", lambda t: math.sqrt(700 / t)),
        ("inverse", lambda t: 700 / t),
        ("cosine", lambda t: 0.5 * (1 + math.cos(math.pi * (t - 700) / 300))),
    ],
)
def test_learning_rates_decay_as_documented(form, after):
    c = replace(C, lr_decay=form, lr_constant_fraction=0.7)
    start = 172 if form == "seed_sqrt" else 700
    assert float(rate(c, PLAN, 0, TOTAL)) == float(rate(c, PLAN, start, TOTAL)) == 1.0
    for t in (start + 1, 800, 1000):
        assert float(rate(c, PLAN, t, TOTAL)) == pytest.approx(after(t), abs=1e-6)


def test_decay_never_begins_before_the_end_of_the_ramp():
    assert float(decay_start(replace(C, lr_constant_fraction=0.05), PLAN, TOTAL)) == 172


def test_unknown_names_of_the_prior_system_are_answered():
    assert "does not" in (EmpowermentConfig.unknown("use_rnd") or "")
    assert "does not" in (EmpowermentConfig.unknown("mcts_num_simulations") or "")
    assert "does not" in (EmpowermentConfig.unknown("gradual_buffer_clearing") or "")
    assert "algo.source" in (EmpowermentConfig.unknown("state_sweep") or "")
    assert EmpowermentConfig.unknown("nonsense") is None
    for name in vars(EmpowermentConfig()):
        assert EmpowermentConfig.unknown(name) is None or name == "use_lookup_tables", name
    assert np.isinf(EmpowermentConfig(beta_h="inf").inverse_temperature)
