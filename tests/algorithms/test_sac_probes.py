"""SAC on probe environments, where the right value and the right action are known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
from regimen.algorithms.sac import SAC
from regimen.config.schema import NetworkConfig
from regimen.envs import probe
from regimen.schedule import Steps

pytestmark = pytest.mark.usefixtures("compilation_cache")
GAMMA, E, T = 0.9, 8, 4


def learn(env, updates=120, **settings):
    """A SAC trained on `env`: functions for its greedy action and for Q of the smaller critic."""
    defaults = {"lr": 1e-2, "gamma": GAMMA, "tau": 0.05, "batch_size": 64, "buffer_size": 4000, "learning_starts": 128}
    fixed = {"alpha": 1e-3, "learn_alpha": False, "update_ratio": 0.25, "network": NetworkConfig(hidden=(16,))}
    settings = defaults | fixed | settings
    algo, state = kit.learn(SAC, env, updates, schedule=Steps(T * E), num_envs=E, rows=T, **settings)

    def value(obs):
        """The greedy branch's Q, with the policy's numbers."""
        x = jnp.asarray(obs, jnp.float32)[None]
        policy = algo.policy(state.models["actor"].params, x, jax.random.key(0), None)
        return float((policy.weight * algo.values(state.models["critic"].params, x, policy)).sum())

    return partial(kit.greedy, algo, state), value, algo, state


def test_a_time_limit_is_not_the_end():
    """Reward 1 for ever, cut every 8 steps: 1 / (1 - gamma), with returns over one and over several steps."""
    _, value, *_ = learn(probe.Truncation(), updates=200, n_step=3)
    assert value([0.0]) == pytest.approx(1 / (1 - GAMMA), rel=0.07)


def test_the_end_is_the_end():
    _, value, *_ = learn(probe.Termination(max_episode_steps=4), updates=200)
    for t in range(4):
        assert value([t / 4]) == pytest.approx((1 - GAMMA ** (4 - t)) / (1 - GAMMA), abs=0.25)


@pytest.mark.long
def test_a_box_action_follows_the_observation():
    act, value, *_ = learn(probe.MatchBox(), updates=250)
    for sign in (-1.0, 1.0):
        assert act([sign])[0] == pytest.approx(sign / 2, abs=0.15)
    assert value([1.0]) == pytest.approx(0.0, abs=0.15)


@pytest.mark.long
def test_masks_of_both_states():
    act, *_ = learn(probe.Masked())
    for barred in range(3):
        obs = np.eye(3, dtype=np.float32)[barred]
        assert act(obs, obs == 0) == (barred + 1) % 3


@pytest.mark.parametrize("exact", [64, 1], ids=["exact", "sampled"])
@pytest.mark.long
def test_a_choice_with_the_amount_that_goes_with_it(exact):
    act, *_ = learn(probe.Hybrid(), updates=300, exact_choices=exact, alpha=0.2)  # sampled gradients are biased
    for right, amount in ((0, -0.5), (1, 0.0), (2, 0.5)):
        action = act([*np.eye(3)[right], amount])
        assert action["choice"] == right
        assert action[f"amount_{right}"][0] == pytest.approx(amount, abs=0.25)


def test_temperature_holds_the_entropy():
    """One action pays more than the other for ever: only the temperature can keep the policy from it."""
    _, _, algo, state = learn(probe.Action(), learn_alpha=True, alpha=1.0, updates=250, target_entropy_discrete=0.6)
    policy = algo.policy(state.models["actor"].params, jnp.zeros((1, 1)), jax.random.key(0), None)
    entropy = float(algo.entropies(policy)[0][0, 0])
    assert entropy == pytest.approx(0.6 * np.log(2), abs=0.06)
    assert 0.3 < float(jnp.exp(state.models["alpha"].params["log"][0])) < 3.0  # at which 2 / alpha has that entropy
