"""Rewards with components under V-trace: a head for each, weights, and weights learned from old batches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from jax.flatten_util import ravel_pytree

import kit
import vtrace_oracle
from kit import WIDE, greedy
from regimen import rewards
from regimen.algorithms.appo import APPO
from regimen.algorithms.impala import IMPALA
from regimen.config.algorithms.ppo import RewardConfig
from regimen.config.schema import NetworkConfig
from regimen.envs import probe
from regimen.errors import ConfigError
from regimen.types import Batch, Spec

BOTH = pytest.mark.parametrize("cls", [IMPALA, APPO], ids=["impala", "appo"])
T, B, ACTIONS, GAMMA, LAMBDA = 6, 8, 3, 0.9, 0.7
NAMES = ("goal", "fuel")
SPEC = Spec(Box(-1.0, 1.0, (2,)), Discrete(ACTIONS), NAMES, num_envs=B)


def made(cls, **reward):
    """The algorithm, and a state whose policy has moved away from its target copy, where it has one."""
    config = RewardConfig(**({"warmup": 0, "scale": "none"} | reward))
    settings = {"gamma": GAMMA, "trace_lambda": LAMBDA, "minibatch_size": 64, "reward": config}
    algo = cls(network=NetworkConfig(hidden=(8,)), **settings).bind(SPEC)
    state = algo.init(jax.random.key(0))
    model = state.models["policy"]
    moved = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), model.params)
    return algo, state.replace(models={"policy": model.replace(params=moved)})


def strange_batch(seed=0):
    """Episodes that end and go on, rewards of two scales, actions of a policy far from ours, two rows to leave out."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (T + 1, B, 2)).astype(np.float32)
    terminated, valid = rng.random((T, B)) < 0.2, np.ones((T, B), bool)
    truncated = (rng.random((T, B)) < 0.1) & ~terminated
    valid[4:, 2] = False
    reward = rng.normal(size=(T, B, 2)) * [1.0, 20.0]
    action = rng.integers(0, ACTIONS, (T, B)).astype(np.int32)
    log_prob = jnp.asarray(np.log(rng.uniform(0.05, 1.0, (T, B))), jnp.float32)
    next_obs = np.where((terminated | truncated)[..., None], rng.uniform(-1, 1, (T, B, 2)), obs[1:])
    arrays = obs[:-1], action, reward.astype(np.float32), terminated, truncated, next_obs.astype(np.float32), valid
    return Batch(*map(jnp.asarray, arrays), {"log_prob": log_prob}, full=False)


def of_components(algo, state, batch, factors):
    """Targets and advantages [T, B, K] and weights [T, B] by the oracle, component by component."""
    model = state.models["policy"]
    params = model.target or model.params
    every = np.asarray(algo.policy(params, batch.obs, None))
    corrected = np.take_along_axis(every, np.asarray(batch.action)[..., None], -1)[..., 0]
    log_rho = corrected - np.asarray(batch.extras["log_prob"])
    value = np.asarray(algo.bound.critic.apply(model.params["critic"], batch.obs))
    successor = np.asarray(algo.bound.critic.apply(model.params["critic"], batch.next_obs))
    done = np.asarray(batch.terminated | batch.truncated)
    columns = []
    for k in range(2):
        after = np.where(batch.terminated, 0.0, successor[..., k])
        paid = np.asarray(batch.reward[..., k]) * factors[k]
        columns.append(vtrace_oracle.vtrace(log_rho, paid, value[..., k], after, done, GAMMA, LAMBDA, 1.0, 1.0, 1.0))
    targets, advantages, weights = zip(*columns)
    return np.stack(targets, -1), np.stack(advantages, -1), weights[0]


@BOTH
@pytest.mark.parametrize("scale", ["none", "return_std"])
def test_rows_of_two_components_match_numpy(cls, scale):
    """Each head has targets of its own component; fixed weights undo the scale that the critics see."""
    algo, state = made(cls, weights="goal=2 fuel=0.5", scale=scale)
    batch, valid = strange_batch(), np.asarray(strange_batch().valid)
    rows, metrics, after = jax.jit(algo.rows)(state, batch)
    factors = np.asarray(algo.bound.components.rewards(algo.config, state, batch)[1])
    assert (np.abs(factors[0] / factors[1]) > 5) == (scale == "return_std")
    target, advantages, weight = of_components(algo, state, batch, factors)
    np.testing.assert_allclose(np.asarray(rows.target)[valid], target[valid], rtol=1e-3, atol=1e-3)
    combined = advantages @ (np.array([2.0, 0.5]) / factors)
    combined = weight * (combined - combined[valid].mean()) / combined[valid].std()
    np.testing.assert_allclose(np.asarray(rows.advantage)[valid], combined[valid], rtol=1e-3, atol=1e-3)
    assert {"explained_variance/goal", "weight/fuel"} <= set(metrics)
    assert ("components" in after.norm) == (scale == "return_std")
    if scale == "return_std":
        assert float(after.norm["components"].count) == valid.sum()


@BOTH
def test_the_value_loss_is_a_mean_over_heads(cls):
    algo, state = made(cls)
    batch, params = strange_batch(), state.models["policy"].params
    rows = jax.jit(algo.rows)(state, batch)[0]
    value = np.asarray(algo.bound.critic.apply(params["critic"], batch.obs))
    loss = jax.jit(algo.loss)(params, rows, 0.0)[1]["value_loss"]
    np.testing.assert_allclose(loss, 0.5 * np.square(value - np.asarray(rows.target)).mean(-1), rtol=1e-4)


@BOTH
def test_weights_learn_from_gradients_weighted_for_the_older_policy(cls):
    """d by a backward pass of -rho A_k log pi for each component, on the rows that the product takes: the same step."""
    algo, state = made(cls, weighting="learned", task="goal", weight_lr=0.1)
    batch = strange_batch()
    flat, unravel = ravel_pytree(state.models["policy"].params)
    components = algo.bound.components
    pieces = {}
    real = components.weights

    def spy(c, state, packed, rows, *rest):
        pieces["rows"], pieces["packed"] = rows, packed
        return real(c, state, packed, rows, *rest)

    components.weights = spy
    after = algo.rows(state, batch)[2]
    key = jax.random.fold_in(jax.random.fold_in(state.key, ~state.clock.updates), 1)
    train, held = rewards.two_halves(pieces["packed"], key)

    def gradient(advantage, row):
        def surrogate(flat):
            every = algo.policy(unravel(flat), row.obs, None)
            chosen = jnp.take_along_axis(every, row.action[..., None], -1)[..., 0]
            return (row.weight * (advantage - advantage.mean()) * chosen).mean()

        return np.asarray(jax.grad(surrogate)(flat), np.float64)

    d = np.array([gradient(train.advantage[:, k], train) @ gradient(held.task, held) for k in range(2)])
    assert np.abs(d).max() > 1e-6 and float(jnp.abs(train.weight - 1).max()) > 0.1
    magnitude, covariance = rewards.moments(pieces["rows"].advantage, batch.valid)
    expected = components.weighting.update(
        state.aux["weights"], magnitude, jnp.asarray(d, jnp.float32), covariance, 0.1, algo.config.reward.weight_reg
    )
    got = after.aux["weights"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-5), got, expected)
    moved = got["params"]["beta"] - state.aux["weights"]["params"]["beta"]
    assert float(jnp.abs(moved).max()) > 0.01
    alone = np.asarray(of_components(algo, state, batch, np.ones(2))[1])[..., 0]
    valid = np.asarray(batch.valid)
    np.testing.assert_allclose(np.asarray(pieces["rows"].task)[valid], alone[valid], rtol=1e-3, atol=1e-3)


def test_a_batch_of_one_of_several_workers_starts_its_own_sums():
    """Its columns are a share of all, and the next batch is another worker's."""
    algo, state = made(IMPALA, scale="return_std")
    whole = strange_batch()
    part = jax.tree.map(lambda x: x[:, :3], whole).replace(worker=jnp.zeros(3, jnp.int32))
    after = jax.jit(algo.rows)(state.replace(aux={"return": state.aux["return"] + 100.0}), part)[2]
    assert float(after.norm["components"].mean.max()) < 50
    np.testing.assert_array_equal(after.aux["return"], 100.0)


@BOTH
def test_heads_are_asked_for_where_components_are_weighed(cls):
    for settings in ({"weighting": "learned"}, {"norm": "zscore"}):
        with pytest.raises(ConfigError, match=r"set algo\.reward\.heads true"):
            made(cls, heads=False, **settings)
    algo = cls(network=WIDE).bind(SPEC)
    assert algo.bound.heads == 1, "without being asked, it learns from the sum"
    assert dataclasses.replace(algo.config.reward, heads=True) == RewardConfig()


@BOTH
def test_learned_weights_find_the_task_behind_a_bait(cls):
    """The sum of the components pays for the bait, and fixed weights learn that."""
    settings = {"lr": 1e-2, "gamma": GAMMA, "minibatch_size": 64, "ent_coef": 0.01, "num_envs": 8, "network": WIDE}
    for reward, choice in ((RewardConfig(weighting="learned", task="task"), 1), (RewardConfig(), 2)):
        algo, state = kit.learn(cls, probe.Misleading(), 250, reward=reward, **settings)
        assert greedy(algo, state, np.zeros(algo.bound.spec.observation_space.shape, np.float32)) == choice
