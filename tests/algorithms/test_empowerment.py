"""The empowerment learner: each formula against numpy, targets and copies, exact values in small worlds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen.algorithms import empowerment_targets as aims
from regimen.algorithms.empowerment import Empowerment, some_humans
from regimen.algorithms.empowerment_model import Imagined
from regimen.algorithms.empowerment_nets import log_error, move, soft_clamp
from regimen.empowerment import exact, validate
from regimen.empowerment.hyperparameters import EmpowermentConfig
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.schedule import Steps
from regimen.sources.scan import ScanSource
from regimen.training.engine import Limits, NativeEngine
from regimen.types import Batch, Model, Spec

QUICK = {
    "warmup_v_h_e_steps": 200,
    "warmup_x_h_steps": 200,
    "warmup_u_r_steps": 200,
    "warmup_q_r_steps": 200,
    "warmup_v_r_steps": 200,
    "beta_r_rampup_steps": 400,
    "horizon": "4096 steps",
}
TABLES = QUICK | {
    "use_lookup_tables": True,
    "x_h_use_network": False,
    "lr_decay": "constant",
    "lr_v_h_e": 1.0,
    "lr_x_h": 1.0,
    "lr_u_r": 1.0,
    "lr_q_r": 1.0,
    "lr_v_r": 1.0,
    "v_h_e_target_update_interval": 16,
    "x_h_target_update_interval": 16,
    "u_r_target_update_interval": 16,
    "q_r_target_update_interval": 16,
    "v_r_target_update_interval": 16,
}


def bound(env="world/corr5", steps=256, num_envs=16, env_args=None, **settings):
    handle = registry.resolve(env, env_args or {})
    spec = Spec(
        handle.observation_space,
        handle.action_space,
        handle.reward_components,
        num_envs=num_envs,
        rollout_rows=steps // num_envs,
        max_episode_steps=handle.max_episode_steps,
        env=handle.native,
    )
    return Empowerment(EmpowermentConfig(**settings)).bind(spec)


def engine(algo, steps=256, num_envs=16, seed=0):
    return NativeEngine(algo.bound.spec.env, algo, ScanSource(Steps(steps), num_envs), [seed], algo.init)


def train(algo, updates, **kwargs):
    made, told = engine(algo, **kwargs), []
    while sum(len(t["loss"]) for t in told) < updates:
        left = updates - sum(len(t["loss"]) for t in told)
        progress = made.advance([Limits(left)])[0]
        assert not progress.diverged
        told.append(progress.metrics)
    return made, {name: np.concatenate([t[name] for t in told]) for name in told[0]}


def numbers(algo, state, solution=None):
    c = algo.config
    solution = solution or exact.solve(algo.bound.spec.env, c.theory())
    return validate.measure(validate.compare(algo, {n: m.params for n, m in state.models.items()}, solution), c.beta_r)


# --- formulas --------------------------------------------------------------------------------------------------------


def test_soft_clamp_is_the_identity_inside_and_levels_off_outside():
    x = np.array([-5.0, -1.0, 0.0, 0.3, 1.0, 2.0, 9.0])
    low, high = -1e-6, 1 + 1e-6
    size = high - low
    expected = np.where(x > high, high + size * (1 - np.exp(-(x - high) / size)), x)
    expected = np.where(x < low, low - size * (1 - np.exp(-(low - x) / size)), expected)
    np.testing.assert_allclose(soft_clamp(jnp.asarray(x), 0.0, 1.0), expected, rtol=1e-5, atol=1e-6)
    slope = jax.vmap(jax.grad(lambda v: soft_clamp(v, 0.0, 1.0)))(jnp.array([-2.0, 0.5, 3.0]))
    assert (np.asarray(slope) > 0.01).all()


def test_relative_errors_vanish_at_the_mean_of_noisy_targets_and_logs_at_the_geometric_mean():
    c = EmpowermentConfig(loss_space="value")
    targets = jnp.log(jnp.array([1.0, 9.0]))

    def slope(l, c):  # noqa: E741
        return jax.grad(lambda v: 0.5 * jnp.square(log_error(c, v, targets, True)).sum())(l)

    assert float(slope(jnp.log(5.0), c)) == pytest.approx(0.0, abs=1e-5)
    assert float(slope(jnp.log(3.0), replace(c, loss_space="log"))) == pytest.approx(0.0, abs=1e-5)
    assert abs(float(slope(jnp.log(3.0), c))) > 0.1


def test_an_entry_is_the_mean_of_its_targets_or_moves_by_a_share():
    c, place = EmpowermentConfig(lookup_use_adaptive_lr=True), jnp.array([0, 0, 2])
    model = Model({"table": jnp.full((3, 1), 7.0)}, {"count": jnp.zeros(3, jnp.int32)})
    ones, on = jnp.ones((3, 1)), jnp.bool_(True)
    model = move(c, model, place, jnp.array([[1.0], [2.0], [4.0]]), ones, 0.1, on)
    np.testing.assert_allclose(model.params["table"][:, 0], [1.5, 7.0, 4.0])
    model = move(c, model, place, jnp.array([[6.0], [7.0], [0.0]]), ones, 0.1, on)
    np.testing.assert_allclose(model.params["table"][:, 0], [4.0, 7.0, 2.0], rtol=1e-6)  # true means of 4 and of 2
    fixed = move(replace(c, lookup_use_adaptive_lr=False), model, place, jnp.zeros((3, 1)), ones, 0.5, on)
    np.testing.assert_allclose(fixed.params["table"][:, 0], [2.0, 7.0, 1.0], rtol=1e-6)  # twice in a batch counts once
    still = move(c, model, place, jnp.zeros((3, 1)), ones, 0.5, jnp.bool_(False))
    np.testing.assert_array_equal(still.params["table"], model.params["table"])
    np.testing.assert_array_equal(still.opt_state["count"], model.opt_state["count"])


def test_some_humans_count_as_all_on_average():
    weights = some_humans(jax.random.key(0), jnp.zeros((4000, 3)), 2)
    assert set(np.unique(weights).round(4)) == {0.0, 1.5} and (np.asarray(weights > 0).sum(1) == 2).all()
    np.testing.assert_allclose(weights.mean(0), 1.0, atol=0.05)


def test_targets_are_the_equations_by_enumeration():
    """Of one row of corr5, with values from a formula, by plain loops over humans, robots and outcomes."""
    algo = bound()
    model, world, c = algo.bound.model, algo.bound.spec.env, algo.config
    rows = model.every()
    pick = int(np.flatnonzero(np.asarray(rows.time) == 1)[1])
    rows = jax.tree.map(lambda x: x[pick : pick + 1], rows)
    state = algo.init(jax.random.key(3))
    params = {name: m.params for name, m in state.models.items()}
    here = algo.values(params, rows, 4.0)
    found = aims.modelled(model, c, rows, here, lambda r: algo.values(params, r, 4.0), jax.random.key(0))
    table = exact.enumerate_states(world)
    s, prior = int(model.state_of[pick]), np.asarray(world.prior(table.states[int(model.state_of[pick])]))
    marginal = np.einsum("hg,hga->ha", world.goal_weights, prior)
    pi = np.exp(np.asarray(here.log_pi))[0]
    q, v = np.zeros(5), np.zeros(found.v_h_e.shape[1:])
    for a_r in range(5):
        for a_1 in range(5):
            for a_2 in range(5):
                joint = a_r + 5 * a_1 + 25 * a_2
                for k, p in enumerate(table.probability(s)[joint]):
                    new = int(table.successor[s, joint, k])
                    there = {"state": table.states[new][None], "time": np.array([2], np.int32)}
                    if p == 0:
                        continue
                    value = algo.values(params, model.rows(there), 4.0)
                    weight = marginal[0, a_1] * marginal[1, a_2] * p
                    q[a_r] += weight * c.gamma_r * -np.exp(float(value.log_v[0]))
                    for h, (mine, other, o) in enumerate([(a_1, a_2, 1), (a_2, a_1, 0)]):
                        for g in range(5):
                            worth = 1.0 if table.attained[new, h, g] else c.gamma_h * float(value.v_h_e[0, h, g])
                            v[h, g] += pi[a_r] * p * prior[h, g, mine] * marginal[o, other] * worth
    np.testing.assert_allclose(-np.exp(found.log_q[0]), q, rtol=2e-4)
    np.testing.assert_allclose(found.v_h_e[0], v, rtol=2e-4, atol=1e-5)


def test_attainment_on_arrival_at_the_end_counts_and_nothing_after_it_does():
    algo = bound("world/tiny3")
    model, c = algo.bound.model, algo.config
    rows = model.every()
    last = jax.tree.map(lambda x: x[np.asarray(rows.time) == 2], rows)
    params = {n: jax.tree.map(lambda x: x + 3.0, m.params) for n, m in algo.init(jax.random.key(0)).models.items()}
    here = algo.values(params, last, 1.0)  # networks that say anything but 0
    found = aims.modelled(model, c, last, here, lambda r: algo.values(params, r, 1.0), jax.random.key(0))
    np.testing.assert_allclose(-np.exp(found.log_q), c.gamma_r * c.terminal_v_r, rtol=1e-5)
    np.testing.assert_allclose(here.log_q, np.log(-c.gamma_r * c.terminal_v_r), rtol=1e-5)  # known, not learned
    solution = exact.solve(algo.bound.spec.env, c.theory())
    there = solution.live(2)
    uniform = np.full(5, 0.2)
    np.testing.assert_allclose(np.exp(here.log_pi), np.broadcast_to(uniform, here.log_pi.shape), rtol=1e-5)
    np.testing.assert_allclose(found.v_h_e, solution.v_h_e[2][there], atol=1e-6)
    assert float(found.v_h_e.max()) == pytest.approx(1.0)


def test_sampled_human_actions_are_right_on_average():
    """Other humans' actions drawn, own ones enumerated: the expectation is that of all."""
    whole, some = (Imagined(bound().bound.spec.env, EmpowermentConfig(exact_limit=n)) for n in (4096, 1))
    assert whole.exact and not some.exact
    obs = {"state": whole.world.initial()[None], "time": jnp.zeros(1, jnp.int32)}
    row = whole.rows(obs)

    def expectation(model, key):
        moves = model.moves(row, key)
        worth = moves.next.state[..., 1].astype(jnp.float32)  # where the first human is
        return (moves.p_q * worth).sum(2), (moves.p_v * moves.attained).sum(2), moves.p_q.sum(2), moves.p_v.sum(2)

    exactly = expectation(whole, jax.random.key(0))
    drawn = jax.vmap(lambda key: expectation(some, key))(jax.random.split(jax.random.key(1), 400))
    for right, mine in zip(exactly, drawn):
        np.testing.assert_allclose(mine.mean(0), right, atol=0.06)
    np.testing.assert_allclose(exactly[2], 1.0, rtol=1e-5)
    np.testing.assert_allclose(drawn[3], 1.0, rtol=1e-5)


# --- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "v_r"), [("world/corr5", -19.857438), ("world/way1x5", -10.945960)], ids=["corr5", "way1x5"]
)
def test_tables_reach_the_documented_values(env, v_r):
    args = {"env_args": {}} if env == "world/corr5" else {"gamma_r": 0.99}
    algo = bound(env, state_sweep=1.0, **TABLES | {k: v for k, v in args.items() if k != "env_args"})
    made, told = train(algo, 8)
    found = numbers(algo, made.state)
    assert found["v_r_start_error"] < 1e-4 and found["tv_mean"] < 1e-4 and found["argmax_agreement"] == 1.0
    if env == "world/corr5":
        assert found["v_r_start"] == pytest.approx(v_r, rel=1e-4)
    assert told["stage"][-1] == 6 and told["beta_r"][-1] == 10.0
