"""Returns and advantages against a plain numpy loop, with truncation, termination and unused rows."""

import jax.numpy as jnp
import numpy as np
import pytest

import vtrace_oracle
from regimen.returns import gae, monte_carlo, n_step, vtrace

T, B, GAMMA, LAMBDA = 12, 3, 0.9, 0.8


@pytest.fixture(scope="module")
def rollout():
    rng = np.random.default_rng(0)
    done = rng.random((T, B)) < 0.3
    terminated = done & (rng.random((T, B)) < 0.5)
    next_value = np.where(terminated, 0.0, rng.normal(size=(T, B)))
    return rng.normal(size=(T, B)), rng.normal(size=(T, B)), next_value, done


def by_hand(reward, next_value, done, step):
    out = np.zeros((T, B))
    for b in range(B):
        later = None
        for t in reversed(range(T)):
            out[t, b] = later = step(reward[t, b], next_value[t, b], done[t, b], later, t, b)
    return out


def test_gae_is_the_sum_of_discounted_errors(rollout):
    reward, value, next_value, done = rollout

    def step(r, nv, d, later, t, b):
        delta = r + GAMMA * nv - value[t, b]
        return delta + (0 if d or later is None else GAMMA * LAMBDA * later)

    expected = by_hand(reward, next_value, done, step)
    args = [jnp.asarray(x, jnp.float32) for x in (reward, value, next_value, done)]
    np.testing.assert_allclose(gae(*args, GAMMA, LAMBDA), expected, atol=1e-5)
    np.testing.assert_allclose(gae(*args, GAMMA, LAMBDA, jnp.int32(T)), expected, atol=1e-5)


def test_monte_carlo_bootstraps_only_where_it_is_cut(rollout):
    reward, _, next_value, done = rollout

    def step(r, nv, d, later, t, b):
        return r + GAMMA * (nv if d or later is None else later)

    args = [jnp.asarray(x, jnp.float32) for x in (reward, next_value, done)]
    np.testing.assert_allclose(monte_carlo(*args, GAMMA), by_hand(reward, next_value, done, step), atol=1e-5)
    args[2] = args[2].at[-1].set(1.0)  # whole episodes: each has ended by the last row in use, also by a time limit
    np.testing.assert_allclose(
        monte_carlo(*args, GAMMA, jnp.int32(T)), by_hand(reward, next_value, np.asarray(args[2]), step), atol=1e-5
    )


@pytest.mark.parametrize("n", [1, 3, 50])
def test_n_step_returns(rollout, n):
    reward, _, next_value, done = rollout
    expected = np.zeros((T, B))
    for b in range(B):
        for t in range(T):
            total, discount = 0.0, 1.0
            for k in range(t, min(t + n, T)):
                total += discount * reward[k, b]
                discount *= GAMMA
                if done[k, b] or k == t + n - 1 or k == T - 1:
                    total += discount * next_value[k, b]
                    break
            expected[t, b] = total
    args = [jnp.asarray(x, jnp.float32) for x in (reward, next_value, done)]
    np.testing.assert_allclose(n_step(*args, GAMMA, n), expected, atol=1e-4)


def test_rows_past_the_length_are_not_touched(rollout):
    reward, value, next_value, done = (jnp.asarray(x, jnp.float32) for x in rollout)
    done = done.at[6].set(1.0)
    short = gae(reward, value, next_value, done, GAMMA, LAMBDA, jnp.int32(7))
    full = gae(reward, value, next_value, done, GAMMA, LAMBDA)
    np.testing.assert_allclose(short[:7], full[:7], atol=1e-6)
    assert not np.asarray(short[7:]).any()


def test_lambda_one_is_monte_carlo_minus_value(rollout):
    reward, value, next_value, done = (jnp.asarray(x, jnp.float32) for x in rollout)
    following = jnp.concatenate([value[1:], next_value[-1:]])
    next_value = jnp.where(done > 0, next_value, following)  # V(s_{t+1}) is the next row's value within an episode
    np.testing.assert_allclose(
        gae(reward, value, next_value, done, GAMMA, 1.0) + value,
        monte_carlo(reward, next_value, done, GAMMA),
        atol=1e-4,
    )


CLIPS = {
    "none": (1.0, 50.0, 50.0, 50.0),
    "values": (0.7, 1.3, 50.0, 50.0),
    "traces": (0.7, 50.0, 0.8, 50.0),
    "gradient": (0.7, 50.0, 50.0, 1.7),
    "all": (0.6, 1.3, 0.8, 1.7),
}


@pytest.mark.parametrize("clips", CLIPS.values(), ids=CLIPS)
def test_vtrace_is_the_sum_of_weighted_errors(rollout, clips):
    """Weights between about 1/20 and 20, each clip and the trace decay on its own and all together; also of the first
    7 rows of a capacity, where every episode has ended."""
    reward, value, next_value, done = rollout
    log_rho = 1.5 * np.random.default_rng(1).normal(size=(T, B))
    done = done.copy()
    done[6] = True
    following = np.where(done[:-1], next_value[:-1], value[1:])  # a row's successor is the next row
    next_value = np.concatenate([following, next_value[-1:]])
    expected = vtrace_oracle.vtrace(log_rho, reward, value, next_value, done, GAMMA, *clips)
    args = [jnp.asarray(x, jnp.float32) for x in (log_rho, reward, value, next_value, done)]
    for found, right in zip(vtrace(*args, GAMMA, *clips), expected):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4)
    for found, right in zip(vtrace(*args, GAMMA, *clips, length=jnp.int32(7)), expected):
        np.testing.assert_allclose(found[:7], right[:7], rtol=1e-4, atol=1e-4)
