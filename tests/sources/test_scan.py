"""What the scan source promises of its rollouts: exact episode counts, truncation apart from termination, true
successors, sums."""

import jax
import numpy as np
import pytest

import kit
from regimen.algorithms.ppo import PPO
from regimen.envs.classic.cartpole import CartPole
from regimen.schedule import Episodes, Steps
from regimen.sources.scan import ScanSource


def rollouts(schedule, num_envs, env, n=3):
    algo = kit.bound(PPO, env, num_envs=num_envs)
    params = algo.actor_params(algo.init(jax.random.key(0)))
    source = ScanSource(schedule, num_envs)
    carry = source.init(env, algo, jax.random.key(1))
    step = jax.jit(source.next)
    for i in range(n):
        carry, batch, rows, _ = step(env, algo, carry, params, jax.random.key(i + 2))
        yield jax.tree.map(np.asarray, batch), jax.tree.map(np.asarray, rows)


@pytest.mark.parametrize(("n", "num_envs"), [(6, 1), (6, 2), (6, 6)])
def test_exactly_n_episodes_and_equal_shares(n, num_envs):
    for batch, rows in rollouts(Episodes(n), num_envs, CartPole(max_episode_steps=12)):
        done = (batch.terminated | batch.truncated) & batch.valid
        assert rows.count == n == done.sum()
        assert (done.sum(0) == n // num_envs).all()
        assert rows.length[:n].sum() == batch.valid.sum()
        lengths = batch.valid.sum(0)
        assert batch.length == lengths.max()
        for e in range(num_envs):  # valid rows are a prefix that ends with the last episode
            assert batch.valid[: lengths[e], e].all() and done[lengths[e] - 1, e]


def test_steps_are_exact_and_episodes_continue_across_rollouts():
    total, lengths = 0, 0
    for batch, rows in rollouts(Steps(40), 4, CartPole(max_episode_steps=500), n=6):
        assert batch.valid.shape == (10, 4) and batch.valid.all() and batch.length is None
        total += int(rows.count)
        lengths += int(rows.length[: rows.count].sum())
    assert total >= 4 and lengths > 10 * total  # episodes longer than a rollout are counted whole


def test_time_limit_truncates_and_keeps_the_true_successor():
    for batch, rows in rollouts(Steps(80), 2, CartPole(max_episode_steps=5), n=2):
        assert batch.truncated.any() and not (batch.truncated & batch.terminated).any()
        assert (rows.length[: rows.count] <= 5).all()
        t, e = np.argwhere(batch.truncated[:-1])[0]
        assert np.abs(batch.obs[t + 1, e]).max() <= 0.05  # the next row starts a new episode
        assert np.abs(batch.next_obs[t, e]).max() > 0.05  # this row's successor is where the old one was cut
        inside = ~(batch.truncated | batch.terminated)[:-1]
        np.testing.assert_array_equal(batch.next_obs[:-1][inside], batch.obs[1:][inside])


def test_episode_rows_are_in_order_and_sum_the_rewards():
    for _, rows in rollouts(Steps(200), 2, CartPole(max_episode_steps=20), n=1):
        n = int(rows.count)
        assert (np.diff(rows.step[:n]) >= 0).all() and rows.step[n - 1] <= 200
        np.testing.assert_allclose(rows.reward[:n, 0], rows.length[:n])
