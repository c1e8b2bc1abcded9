"""The conservative term against numpy, and what it is for: critics that stay below the truth where data ends."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from test_bc import OBS, as_data

from regimen.algorithms.cql import CQL, CQLTransitions
from regimen.algorithms.sac import SAC
from regimen.config.algorithms.cql import CQLConfig
from regimen.config.schema import NetworkConfig
from regimen.errors import ConfigError
from regimen.sources.replay import NStepTransitions
from regimen.types import Spec

BOX = spaces.Box(-2, 2, (2,), np.float32)
HYBRID = spaces.Dict({"choice": spaces.Discrete(2), "how": spaces.Box(-1, 1, (1,), np.float32)})
NET = NetworkConfig(hidden=(16,), activation="relu")


def critics(algo, params, inputs):
    """Both critics' outputs [2, ..., heads] of vectors."""
    return jax.vmap(algo.bound.critic.read, (0, None))(params, jnp.asarray(inputs))


def bound(space, **kwargs) -> CQL:
    conditions = {"how": ("choice", (1,))} if space is HYBRID else None
    return CQL(network=NET, **kwargs).bind(Spec(OBS, space, action_conditions=conditions))


def sample_of(algo, n=6, mask=None, next_mask=None) -> NStepTransitions:
    rng = np.random.default_rng(0)
    obs, after = (jnp.asarray(rng.uniform(-1, 1, (n, 1)), jnp.float32) for _ in range(2))
    action = algo.bound.dist.sample(
        algo.distribution(algo.init(jax.random.key(1)).models["actor"].params, obs, mask),
        algo.bound.dist.noise(jax.random.key(2), (n,)),
    )
    reward = jnp.asarray(rng.normal(size=n), jnp.float32)
    return NStepTransitions(obs, action, reward, jnp.full(n, 0.9), after, jnp.ones(n), mask, next_mask)


@jax.jit
def conservative(algo, actor, critic, sample, key):
    """The actions drawn at a sample's states, and the log integral over them."""
    drawn = algo.proposals(actor, sample, sample.obs, sample.next_obs, key)
    return drawn, algo.log_integral(critic, sample.obs, drawn)


def q_of(algo, params, x, numbers, branch) -> np.ndarray:
    """Both critics [2, B] for numbers [B, X] in one branch, by the plain network."""
    inputs = np.concatenate([np.asarray(x), np.asarray(numbers)], -1)
    return np.asarray(critics(algo, params, jnp.asarray(inputs)))[..., branch]


# --- the term --------------------------------------------------------------------------------------------------------


def test_choices_are_summed_exactly():
    algo = bound(spaces.Discrete(3))
    state, sample = algo.init(jax.random.key(0)), sample_of(algo)
    actor, critic = (state.models[name].params for name in ("actor", "critic"))
    _, got = conservative(algo, actor, critic, sample, jax.random.key(3))
    q = np.asarray(critics(algo, critic, sample.obs), np.float64)
    np.testing.assert_allclose(got, np.log(np.exp(q).sum(-1)), rtol=1e-5)


def test_forbidden_choices_are_left_out():
    algo = bound(spaces.Discrete(3))
    mask = jnp.asarray(np.random.default_rng(4).random((6, 3)) < 0.5).at[:, 0].set(True)
    state, sample = algo.init(jax.random.key(0)), sample_of(algo, mask=mask, next_mask=mask)
    actor, critic = (state.models[name].params for name in ("actor", "critic"))
    _, got = conservative(algo, actor, critic, sample, jax.random.key(3))
    q = np.asarray(critics(algo, critic, sample.obs), np.float64)
    np.testing.assert_allclose(got, np.log((np.exp(q) * np.asarray(mask)).sum(-1)), rtol=1e-5)


@pytest.mark.parametrize("weighted", [True, False])
def test_drawn_numbers_against_a_loop(weighted):
    algo = bound(BOX, cql_samples=4, importance_sampling=weighted)
    state, sample = algo.init(jax.random.key(0)), sample_of(algo)
    actor, critic, x = state.models["actor"].params, state.models["critic"].params, sample.obs
    drawn, got = conservative(algo, actor, critic, sample, jax.random.key(3))
    assert drawn.numbers.shape == (12, 6, 2) and float(jnp.abs(drawn.numbers).max()) <= 1
    total = np.zeros((2, 6))
    for j in range(12):
        u = np.arctanh(np.clip(np.asarray(drawn.numbers[j], np.float64), -1 + 1e-9, 1 - 1e-9))
        if j < 4:
            density = np.full(6, 2 * math.log(0.5))  # uniform on [-1, 1]^2
        else:  # the density of the policy that drew it: at the state, or at its successor
            mean, log_std = algo.distribution(actor, x if j < 8 else sample.next_obs, None)
            gauss = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
            density = np.asarray(gauss - np.log1p(-(np.tanh(u) ** 2))).sum(-1)
        q = q_of(algo, critic, x, drawn.numbers[j], 0)
        total += np.exp(q - (density if weighted else 0.0)) / 12
    np.testing.assert_allclose(got, np.log(total), rtol=1e-3, atol=1e-3)


def test_importance_weights_estimate_the_integral():
    """Many draws come close to the integral of exp Q over the square, on a grid."""
    algo = bound(BOX, cql_samples=4000)
    state, sample = algo.init(jax.random.key(0)), sample_of(algo, n=2)
    critic = jax.tree.map(lambda p: 5 * p, state.models["critic"].params)  # far from constant
    _, got = conservative(algo, state.models["actor"].params, critic, sample, jax.random.key(3))
    axis = (np.arange(200) + 0.5) / 100 - 1
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    for b in range(2):
        q = q_of(algo, critic, np.repeat(sample.obs[b : b + 1], len(grid), 0), grid, 0).astype(np.float64)
        np.testing.assert_allclose(got[:, b], np.log(np.exp(q).mean(-1) * 4), atol=0.05)


def test_hybrid_branches_weigh_the_numbers_that_matter():
    """Branch 0 has no number: its exp Q counts once; branch 1 integrates over [-1, 1]."""
    algo = bound(HYBRID, cql_samples=4000)
    state, sample = algo.init(jax.random.key(0)), sample_of(algo, n=2)
    critic = jax.tree.map(lambda p: 5 * p, state.models["critic"].params)
    _, got = conservative(algo, state.models["actor"].params, critic, sample, jax.random.key(3))
    grid = (np.arange(400)[:, None] + 0.5) / 200 - 1
    for b in range(2):
        x = np.asarray(sample.obs[b : b + 1])
        still = np.exp(q_of(algo, critic, x, np.zeros((1, 1)), 0)[:, 0].astype(np.float64))
        moving = np.exp(q_of(algo, critic, np.repeat(x, 400, 0), grid, 1).astype(np.float64)).mean(-1) * 2
        np.testing.assert_allclose(got[:, b], np.log(still + moving), atol=0.05)


@pytest.mark.parametrize("threshold", [None, 0.7])
def test_gradient_pushes_the_data_up_and_the_rest_down(threshold):
    """The critics' loss is 1/2 (Q - target)^2 + w (log sum exp Q - Q - threshold) of both critics, a mean over rows
    that count. A bias of the last layer moves one Q everywhere: its slope is the softmax of Q, less 1 where the data
    has that action."""
    algo = bound(spaces.Discrete(3), lagrange=threshold)
    state, plain, w = algo.init(jax.random.key(0)), sample_of(algo), 2.5
    critic = jax.tree.map(lambda p: 5 * p, state.models["critic"].params)  # far from constant
    drawn, _ = conservative(algo, state.models["actor"].params, critic, plain, jax.random.key(3))
    fields = {f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)}
    weight = np.array([1, 1, 0, 1, 1, 1], np.float32)
    sample = CQLTransitions(**fields | {"weight": jnp.asarray(weight)}, proposals=drawn, weight_q=jnp.float32(w))
    target = np.random.default_rng(5).normal(size=6)
    loss = jax.value_and_grad(algo.critic_loss, has_aux=True)
    (got, metrics), slope = loss(critic, sample, sample.obs, jnp.asarray(target, jnp.float32))
    q = np.asarray(critics(algo, critic, sample.obs), np.float64)  # [2, B, 3]
    taken = np.eye(3)[np.asarray(sample.action)]
    error = (q * taken).sum(-1) - target
    gap = np.log(np.exp(q).sum(-1)) - (q * taken).sum(-1)
    held = w * (gap @ weight / 5 - (threshold or 0.0)).sum()
    assert float(got) == pytest.approx(0.5 * (error**2 @ weight / 5).sum() + held, rel=1e-4)
    assert float(metrics["cql_loss"]) == pytest.approx(held, rel=1e-4)
    assert float(metrics["cql_gap"]) == pytest.approx((gap @ weight / 5).mean(), rel=1e-4)
    softmax = np.exp(q) / np.exp(q).sum(-1, keepdims=True)
    rows = error[..., None] * taken + w * (softmax - taken)
    np.testing.assert_allclose(slope["head"]["bias"], np.einsum("b,cbk->ck", weight / 5, rows), rtol=1e-3, atol=1e-4)


# --- targets, multiplier, warm start ---------------------------------------------------------------------------------


STEP = jax.jit(CQL.gradient_step)


def one_step(algo, state, sample, number=0):
    return STEP(algo, state.models, sample, None, jax.random.split(jax.random.key(7), 2), jnp.int32(number))


def test_targets_without_entropy_are_returns():
    algo = bound(spaces.Discrete(3), reward_scale=2.0)
    state, sample = algo.init(jax.random.key(0)), sample_of(algo)
    q = np.asarray(critics(algo, state.models["critic"].target, sample.next_obs)).min(0)
    p = np.exp(algo.distribution(state.models["actor"].params, sample.next_obs, None))
    expected = np.asarray(sample.reward) + 0.9 * (p * q).sum(-1)
    np.testing.assert_allclose(
        algo.target(state.models, sample, sample.next_obs, jax.random.key(0)), expected, rtol=1e-5
    )
    largest = bound(spaces.Discrete(3), max_q_backup=True)
    largest = largest.target(state.models, sample, sample.next_obs, jax.random.key(0))
    np.testing.assert_allclose(largest, np.asarray(sample.reward) + 0.9 * q.max(-1), rtol=1e-5)
    _, metrics = one_step(algo, state, sample)
    assert float(metrics["target_q_mean"]) == pytest.approx(float(np.mean(expected + sample.reward)), rel=1e-4)
    assert float(metrics["cql_loss"]) == pytest.approx(2 * algo.config.min_q_weight * float(metrics["cql_gap"]))


def test_multiplier_moves_towards_the_threshold():
    algo = bound(spaces.Discrete(3), lagrange=0.0, min_q_weight=2.0, critic_lr=0.1)
    state, sample = algo.init(jax.random.key(0)), sample_of(algo)
    for threshold in (-100.0, 100.0):  # a gap above the threshold asks for more weight, one below it for less
        other = CQL(dataclasses.replace(algo.config, lagrange=threshold), NET)
        other.binding = algo.binding
        models, metrics = one_step(other, state, sample)
        assert float(metrics["min_q_weight"]) == pytest.approx(2.0)
        moved = float(jnp.exp(models["lagrange"].params["log"][0]))
        assert (moved > 2.0) == (float(metrics["cql_gap"]) > threshold) and moved != pytest.approx(2.0)
    with pytest.raises(ConfigError, match="cannot start at 0"):
        CQLConfig(lagrange=1.0, min_q_weight=0.0).validate()


def test_warm_start_clones_whatever_the_critics_say():
    """The data has only action 1 and nothing is paid for it: cloned first, the policy takes 1. Another weight of the
    conservative term is data, not another program."""
    data = as_data(np.zeros((64, 1), np.float32), np.ones(64, int))
    algo = bound(spaces.Discrete(2), bc_steps=150, lr=1e-2, batch_size=32, learn_alpha=False)
    fit = jax.jit(partial(CQL.fit, steps=150))
    for weight in (1.0, 5.0):
        other = CQL(dataclasses.replace(algo.config, min_q_weight=weight), NET)
        other.binding = algo.binding
        state, metrics = fit(other, other.init(jax.random.key(0)), data)
        assert np.exp(algo.distribution(state.models["actor"].params, jnp.zeros((1, 1)), None))[0, 1] > 0.8
        assert int(state.aux["gradient_steps"]) == 150 and float(metrics["min_q_weight"]) == weight
    assert fit._cache_size() == 1


def test_too_many_choices_are_refused():
    with pytest.raises(ConfigError, match="exact_choices: the action has 128 joint choices"):
        bound(spaces.MultiBinary(7))


# --- what it is for --------------------------------------------------------------------------------------------------


def bandit(algo_class, steps=800, **kwargs):
    """Actions between 0 and 1 pay what they are; nobody has seen the others, and all of them pay -1."""
    rng = np.random.default_rng(0)
    u = rng.uniform(0.0, 1.0, (2000, 1)).astype(np.float32)  # tanh of it: 0 to 0.76
    data = as_data(np.zeros((2000, 1), np.float32), u, np.tanh(u[:, 0]))
    settings = {"lr": 3e-3, "critic_lr": 3e-3, "batch_size": 64, "alpha": 0.05, "learn_alpha": False} | kwargs
    algo = algo_class(network=NET, **settings).bind(Spec(OBS, spaces.Box(-1, 1, (1,), np.float32)))
    state, metrics = jax.jit(partial(algo_class.fit, steps=steps))(algo, algo.init(jax.random.key(0)), data)
    numbers = np.linspace(-1, 1, 41)[:, None]
    q = q_of(algo, state.models["critic"].params, np.zeros((41, 1)), numbers, 0).mean(0)
    mean, _ = algo.distribution(state.models["actor"].params, jnp.zeros((1, 1)), None)
    return numbers[:, 0], q, float(jnp.tanh(mean[0, 0])), metrics


def test_conservative_where_sac_is_not():
    """SAC's critics go on rising beyond the data and its policy follows them out; CQL stays inside."""
    numbers, sac, sac_action, _ = bandit(SAC)
    _, cql, cql_action, metrics = bandit(CQL, min_q_weight=1.0, cql_samples=8)
    beyond = numbers > 0.9
    assert sac[beyond].max() > 0.8 and sac_action > 0.8  # nothing in the data paid more than 0.76
    assert cql[beyond].max() < sac[beyond].max() - 0.1 and cql_action < 0.78
    assert cql_action > 0.3  # and it is still better than the data's mean of 0.44, or near it
    assert float(metrics["cql_gap"]) < math.log(2) + 0.5
    paid = np.tanh(np.random.default_rng(0).uniform(0, 1, 2000)).mean()
    assert float(metrics["mc_return_mean"]) == pytest.approx(paid, rel=1e-3)
    assert float(metrics["q_gap"]) == pytest.approx(float(metrics["q_data_mean"] - metrics["mc_return_mean"]), abs=1e-5)
    assert {"cql_loss", "loss", "policy_loss", "value_loss", "entropy", "alpha", "grad_norm"} <= metrics.keys()
