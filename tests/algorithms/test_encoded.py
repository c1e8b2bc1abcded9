"""Encoders in front of every algorithm: what acted is what learns, and updates stay finite."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
from regimen.algorithms.appo import APPO
from regimen.algorithms.impala import IMPALA
from regimen.algorithms.ppo import PPO
from regimen.algorithms.sac import SAC
from regimen.envs import probe
from regimen.schedule import Steps

SMALL = dataclasses.replace(kit.NET, encoder_size=4)
GRU = dataclasses.replace(SMALL, memory="gru", memory_size=4)


@pytest.mark.parametrize(
    ("cls", "env", "network"),
    [
        (PPO, probe.SetProbe(), SMALL),
        (PPO, probe.ImageProbe(), GRU),
        (IMPALA, probe.SetProbe(), GRU),
        (APPO, probe.ImageProbe(), SMALL),
    ],
)
def test_the_policy_that_learns_begins_as_the_one_that_acted(cls, env, network):
    """One pass over whole batches: every ratio is 1, and every parameter, those of the encoder too, has a gradient."""
    algo = kit.bound(cls, env, network=network, minibatch_size=10**6, **({"epochs": 1} if cls is not IMPALA else {}))
    state, _, batch, _, _ = kit.rollout(algo, env, Steps(32))
    new, metrics = jax.jit(algo.update)(state, batch)
    assert abs(float(metrics["approx_kl"])) < 1e-6
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), *(s.models["policy"].params for s in (state, new)))
    assert all(np.isfinite(jax.tree.leaves(moved))) and min(jax.tree.leaves(moved["encoder"])) > 0


def test_values_of_true_successors_go_through_the_encoder():
    env = probe.SetProbe()
    algo = kit.bound(PPO, env, network=SMALL)
    state, _, batch, _, _ = kit.rollout(algo, env, Steps(32))
    params = state.models["policy"].params
    batch = batch.replace(terminated=jnp.zeros_like(batch.terminated), truncated=jnp.ones_like(batch.truncated))
    value, after = algo.values(params, state, batch, algo.encode(params, state, batch))

    def critic(obs):
        return algo.bound.critic.apply(params["critic"], algo.embed(params, algo.features(obs, None)))

    np.testing.assert_allclose(value, critic(batch.obs), atol=1e-6)
    np.testing.assert_allclose(after, critic(batch.next_obs), atol=1e-6)


@pytest.mark.parametrize("env", [probe.SetProbe(), probe.ImageProbe()])
def test_critics_have_encoders_of_their_own(env):
    """SAC: the Q of an action taken is the branch's Q of it, and a step moves every encoder."""
    algo = kit.bound(SAC, env, network=SMALL, rows=8, learning_starts=0, batch_size=16)
    state, _, batch, _, _ = kit.rollout(algo, env, Steps(32))
    x = algo.features(jax.tree.map(lambda a: a[0], batch.obs), None)
    params = state.models["critic"].params
    policy = algo.policy(state.models["actor"].params, x, jax.random.key(0), None)
    branches, taken = algo.branch_values(params, x, policy), algo.q_of(params, x, batch.action[0])
    expected = np.take_along_axis(np.asarray(branches), np.asarray(batch.action[0])[None, :, None], -1)[..., 0]
    np.testing.assert_allclose(taken, expected, atol=1e-6)
    assert not np.allclose(branches[0], branches[1])
    new, metrics = jax.jit(algo.update)(state, batch)
    assert np.isfinite(float(metrics["loss"]))
    for name in ("actor", "critic"):
        old, now = (s.models[name].params["encoder"] for s in (state, new))
        moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), old, now)
        assert min(jax.tree.leaves(moved)) > 0
