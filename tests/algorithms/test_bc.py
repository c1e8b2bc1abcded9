"""Behaviour cloning recovers policies that are known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scipy import stats

from regimen.algorithms.bc import BC
from regimen.config.schema import NetworkConfig
from regimen.sources.dataset import Data
from regimen.sources.replay import ReplayRows, Ring
from regimen.types import Spec

OBS = spaces.Box(-1, 1, (1,), np.float32)


def as_data(obs, action, reward=None, mask=None) -> Data:
    """One-step episodes that terminate."""
    n = len(obs)
    reward = jnp.zeros(n) if reward is None else jnp.asarray(reward, jnp.float32)
    yes = jnp.ones(n, bool)
    table = ReplayRows(jnp.asarray(obs), jnp.asarray(action), reward, yes, ~yes, jnp.asarray(obs), yes, mask, mask)
    rows = jax.tree.map(lambda x: x[:, None], table)
    return Data(rows, Ring(jnp.zeros(1, jnp.int32), jnp.full(1, n, jnp.int32)), table, reward)


ROWS = 2000
CHOICE, BOX = spaces.Discrete(2), spaces.Box(-2, 2, (1,), np.float32)
FIT = jax.jit(partial(BC.fit, steps=400))  # compiled once for each space, with and without a mask
PARTS = {}


def cloned(space, obs, action, mask=None, **kwargs):
    settings = {"lr": 1e-2, "batch_size": 128, "normalize_obs": False} | kwargs
    algo = BC(network=NetworkConfig(hidden=(32,)), **settings)
    algo.binding = PARTS.setdefault(str(space), algo.bind(Spec(OBS, space)).bound)
    state, metrics = FIT(algo, algo.init(jax.random.key(0)), as_data(obs, action, mask=mask))
    return algo, state, metrics


def test_choices_by_observation():
    """The probabilities of the data, where the observation decides between two mixes."""
    rng = np.random.default_rng(0)
    obs = rng.choice([-1.0, 1.0], (ROWS, 1)).astype(np.float32)
    action = np.where(rng.random(ROWS) < np.where(obs[:, 0] > 0, 0.9, 0.3), 1, 0)
    algo, state, metrics = cloned(CHOICE, obs, action)
    log_probs = algo.distribution(state.models["actor"].params, jnp.array([[-1.0], [1.0]]), None)
    np.testing.assert_allclose(np.exp(log_probs)[:, 1], [0.3, 0.9], atol=0.05)
    expected = np.mean([stats.bernoulli(p).entropy() for p in (0.3, 0.9)])
    assert float(metrics["loss"]) == pytest.approx(expected, abs=0.05)  # a perfect clone's is the data's entropy


def test_squashed_gaussian_by_observation():
    rng = np.random.default_rng(1)
    obs = rng.uniform(-1, 1, (ROWS, 1)).astype(np.float32)
    u = 0.8 * obs + 0.3 * rng.normal(size=(ROWS, 1))  # before tanh
    algo, state, _ = cloned(BOX, obs, u.astype(np.float32))
    mean, log_std = algo.distribution(state.models["actor"].params, jnp.array([[-0.5], [0.0], [0.5]]), None)
    np.testing.assert_allclose(mean[:, 0], [-0.4, 0.0, 0.4], atol=0.08)
    np.testing.assert_allclose(np.exp(log_std)[:, 0], 0.3, atol=0.06)
    greedy = algo.to_env(algo.act(algo.actor_params(state), jnp.array([[0.5]]), (), None, greedy=True)[0])
    assert float(greedy[0, 0]) == pytest.approx(2 * np.tanh(0.4), abs=0.15)


def test_masked_choices_cost_nothing():
    """Where the mask leaves one choice, its probability is 1 whatever the data says elsewhere."""
    obs = np.repeat([[-1.0], [1.0]], ROWS // 2, axis=0).astype(np.float32)
    mask = np.where(obs > 0, [[False, True]], [[True, True]])
    action = np.where(obs[:, 0] > 0, 1, 0)
    algo, state, metrics = cloned(CHOICE, obs, action, mask=jnp.asarray(mask))
    assert float(metrics["log_prob"]) > -0.2
    forced = algo.distribution(state.models["actor"].params, jnp.array([[1.0]]), jnp.array([[False, True]]))
    assert float(jnp.exp(forced)[0, 1]) == pytest.approx(1.0)


def test_entropy_bonus_keeps_the_policy_broad_without_compiling_anew():
    obs, action = np.zeros((ROWS, 1), np.float32), np.ones(ROWS, int)
    sure = float(cloned(CHOICE, obs, action, ent_coef=0.0)[2]["entropy"])
    programs = FIT._cache_size()
    broad = float(cloned(CHOICE, obs, action, ent_coef=1.0, lr=5e-3)[2]["entropy"])
    assert sure < 0.2 < broad and FIT._cache_size() == programs
