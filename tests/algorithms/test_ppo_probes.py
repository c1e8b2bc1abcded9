"""PPO on probe environments, where the right value and the right action are known."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
from regimen.algorithms.ppo import PPO
from regimen.envs import probe
from regimen.schedule import Episodes, Steps

GAMMA = 0.9


def learn(env, updates=150, **settings):
    """A PPO trained on `env`: functions for its greedy action and its value."""
    defaults = {"lr": 1e-2, "gamma": GAMMA, "gae_lambda": 0.9, "minibatch_size": 64, "ent_coef": 0.0, "epochs": 4}
    trained = kit.learn(PPO, env, updates, num_envs=8, network=kit.WIDE, **(defaults | settings))
    return partial(kit.greedy, *trained), partial(kit.value, *trained)


@pytest.mark.parametrize("schedule", [Steps(128), Episodes(64)], ids=["steps", "episodes"])
def test_value_of_a_constant(schedule):
    _, value = learn(probe.Constant(), schedule=schedule)
    assert value([0.0]) == pytest.approx(1.0, abs=0.05)


def test_value_of_an_observation():
    _, value = learn(probe.Observation())
    assert value([1.0]) == pytest.approx(1.0, abs=0.1) and value([-1.0]) == pytest.approx(-1.0, abs=0.1)


@pytest.mark.parametrize("returns", ["gae", "n_step", "monte_carlo"])
def test_value_is_discounted(returns):
    _, value = learn(probe.TwoStep(), returns=returns)
    assert value([0.0]) == pytest.approx(GAMMA, abs=0.1) and value([1.0]) == pytest.approx(1.0, abs=0.1)


def test_credit_reaches_the_first_of_two_steps():
    act, _ = learn(probe.Credit())
    assert act([0.0, 0.0]) == 1


@pytest.mark.parametrize("schedule", [Steps(128), Episodes(64)], ids=["steps", "episodes"])
def test_the_paying_action(schedule):
    act, _ = learn(probe.Action(), schedule=schedule)
    assert act([0.0]) == 1


def test_the_best_continuous_action():
    """With a learning rate of 1e-2 four epochs overshoot once the deviation is below a step: see docs/surprises.md."""
    act, _ = learn(probe.ActionBox(), updates=300, lr=3e-3)
    assert act([0.0])[0] == pytest.approx(0.5, abs=0.05)


def test_the_action_that_fits_the_observation():
    act, _ = learn(probe.Match())
    assert act([1.0]) == 1 and act([-1.0]) == 0


def test_the_continuous_action_that_fits_the_observation():
    act, _ = learn(probe.MatchBox(), updates=300)
    assert act([1.0])[0] == pytest.approx(0.5, abs=0.1) and act([-1.0])[0] == pytest.approx(-0.5, abs=0.1)


@pytest.mark.parametrize("schedule", [Steps(128), Episodes(16)], ids=["steps", "episodes"])
def test_truncation_bootstraps(schedule):
    """A learner that takes the time limit for the end would learn about 5.7 (the mean return-to-go) instead of 10."""
    _, value = learn(probe.Truncation(), updates=400, schedule=schedule)
    assert value([0.0]) == pytest.approx(1 / (1 - GAMMA), rel=0.08)


def test_termination_does_not():
    _, value = learn(probe.Termination(), updates=400)
    for t in (0, 4, 7):
        assert value([t / 8]) == pytest.approx((1 - GAMMA ** (8 - t)) / (1 - GAMMA), abs=0.4)


def test_masked_actions_are_not_chosen():
    act, _ = learn(probe.Masked(), updates=200)
    for barred in range(3):
        obs = np.eye(3, dtype=np.float32)[barred]
        assert act(obs, mask=obs == 0) == (barred + 1) % 3


def test_several_choices_at_once():
    act, _ = learn(probe.MultiDiscrete())
    assert act([0.0]).tolist() == [1, 2]


def test_observations_in_parts():
    env = probe.DictObservation()
    act, _ = learn(env, updates=200)
    right = 0
    step = jax.jit(partial(env.step))
    for i in range(40):
        state, obs = env.reset(jax.random.key(i))
        right += float(np.sum(step(jax.random.key(0), state, jnp.asarray(act(obs)))[1].reward)) > 0.5
    assert right >= 38


def test_normalised_observations_and_rewards_still_learn():
    act, _ = learn(probe.Match(), normalize_obs=True, normalize_reward=True)
    assert act([1.0]) == 1 and act([-1.0]) == 0
