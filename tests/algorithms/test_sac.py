"""SAC's formulas against numpy, its accounts, and what it shares with the loop: resume, seeds, sources, memory."""

import dataclasses
from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym
from scipy.special import logsumexp

import kit
import regimen
from regimen import trees
from regimen.algorithms.branches import Branches
from regimen.algorithms.sac import SAC
from regimen.config import layers
from regimen.config.regimen import Regimen, describe
from regimen.config.schema import NetworkConfig
from regimen.distributions import for_space
from regimen.engines import chunk as engine_module
from regimen.engines.base import Limits
from regimen.engines.host import HostEngine
from regimen.envs import probe
from regimen.envs.classic.pendulum import Pendulum
from regimen.envs.protocol import native_env
from regimen.errors import ConfigError, OutOfMemoryError
from regimen.schedule import Steps
from regimen.sources.host import HostSource
from regimen.sources.keys import RolloutKeys
from regimen.sources.replay import NStepTransitions
from regimen.sources.scan import ScanSource
from regimen.types import Batch, Spec, TimeStep
from support import assert_same_run, final_state, tiny

NETWORK = NetworkConfig(hidden=(8,), activation="relu")
T, E = 3, 4
BATCH = {"batch_size": 16, "buffer_size": 96, "learning_starts": 0}
CHOICES = gym.Dict({"amount_0": gym.Box(-1, 1, (1,)), "amount_1": gym.Box(0, 4, (2,)), "choice": gym.Discrete(3)})
CONDITIONS = {"amount_0": ("choice", (0,)), "amount_1": ("choice", (1, 2))}


def sac(obs_space=gym.Box(-1, 1, (2,)), action_space=gym.Box(-2, 2, (2,)), conditions=None, **kwargs):  # noqa: B008
    spec = Spec(obs_space, action_space, num_envs=E, rollout_rows=T, action_conditions=conditions)
    return SAC(network=NETWORK, **(BATCH | kwargs)).bind(spec)


def sample_of(algo, n=16, masked=0, seed=0):
    rng = np.random.default_rng(seed)
    leaves = {
        name: rng.integers(0, d.n, n).astype(np.int32) if d.kind == "discrete" else rng.normal(size=(n, d.size))
        for name, d in algo.bound.branches.leaves.items()
    }
    action = leaves if algo.bound.branches.elements.hybrid else next(iter(leaves.values()))
    masks = [None, None] if not masked else [with_one(rng.random((n, masked)) < 0.6) for _ in range(2)]
    obs, successor = rng.normal(size=(2, n, 2)).astype(np.float32)
    discount = np.where(rng.random(n) < 0.3, 0.0, 0.9).astype(np.float32)
    weight = (rng.random(n) < 0.8).astype(np.float32)
    return NStepTransitions(obs, action, rng.normal(size=n).astype(np.float32), discount, successor, weight, *masks)


def with_one(mask):
    mask[~mask.any(-1), 0] = True
    return mask


def moved(state, seed=1):
    """Weights away from their start, other targets, and a temperature of its own for each part."""
    rng = np.random.default_rng(seed)
    models = jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), state.models)
    return models


def mlp(params, x):
    hidden = np.maximum(x @ params["dense_0"]["kernel"] + params["dense_0"]["bias"], 0)
    return hidden @ params["head"]["kernel"] + params["head"]["bias"]


def member(params, i):
    return jax.tree.map(lambda x: np.asarray(x[i]), params)


# --- formulas --------------------------------------------------------------------------------------------------------


def gaussian(algo, models, obs, noise):
    """tanh(u) [B, D] and its log-density [B], by the change of variables."""
    head = mlp(jax.tree.map(np.asarray, models["actor"].params), obs)
    mean, log_std = np.split(head, 2, axis=-1)
    log_std = np.clip(log_std, -5, 2)
    u = mean + np.exp(log_std) * noise
    density = -0.5 * ((u - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(u), (density - np.log(1 - np.tanh(u) ** 2)).sum(-1)


def test_continuous_losses_match_numpy():
    algo = sac()
    models, sample, key = moved(algo.init(jax.random.key(0))), sample_of(algo), jax.random.key(3)
    noise = np.asarray(algo.bound.dist.noise(key, (16,)))
    alpha = float(np.exp(models["alpha"].params["log"][0]))
    weight = sample.weight / sample.weight.sum()

    def smallest(params, obs, a):
        return np.min([mlp(member(params, i), np.hstack([obs, a]))[:, 0] for i in range(2)], axis=0)

    a, log_prob = gaussian(algo, models, sample.next_obs, noise)
    value = smallest(models["critic"].target, sample.next_obs, a) - alpha * log_prob
    target = jax.jit(algo.target)(models, sample, sample.next_obs, key)
    np.testing.assert_allclose(target, sample.reward + sample.discount * value, rtol=2e-4, atol=2e-4)

    taken = np.hstack([sample.obs, np.tanh(sample.action)])
    q = np.array([mlp(member(models["critic"].params, i), taken)[:, 0] for i in range(2)])
    loss, _ = jax.jit(algo.critic_loss)(models["critic"].params, sample, sample.obs, target)
    both = algo.q_of(models["critic"].params, sample.obs, sample.action)
    np.testing.assert_allclose(both, q, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(loss, 0.5 * (((q - target) ** 2).sum(0) * weight).sum(), rtol=1e-4)

    a, log_prob = gaussian(algo, models, sample.obs, noise)
    expected = alpha * log_prob - smallest(models["critic"].params, sample.obs, a)
    loss, policy = jax.jit(algo.policy_loss)(models["actor"].params, models, sample, sample.obs, key)
    np.testing.assert_allclose(loss, (expected * weight).sum(), rtol=1e-3)

    entropy, wanted = (np.asarray(x) for x in algo.entropies(policy))
    np.testing.assert_allclose(entropy[:, 0], -log_prob, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(wanted, -2.0)  # two dimensions
    slope = jax.grad(algo.alpha_loss)(jnp.zeros(1), jnp.float32([-1.5]), jnp.float32([-2.0]))
    assert float(slope[0]) == pytest.approx(0.5)  # more entropy than wanted: the temperature falls


def test_discrete_expectations_are_exact():
    algo = sac(action_space=gym.Discrete(3), target_entropy_discrete=0.4)
    models, sample, key = moved(algo.init(jax.random.key(0))), sample_of(algo, masked=3), jax.random.key(3)
    alpha = float(np.exp(models["alpha"].params["log"][0]))
    actor = jax.tree.map(np.asarray, models["actor"].params)

    def policy(obs, mask):
        logits = np.where(mask, mlp(actor, obs), -np.inf)
        return logits - logsumexp(logits, axis=-1, keepdims=True)

    def value(params, obs, mask):
        log_p = policy(obs, mask)
        q = np.min([mlp(member(params, i), obs) for i in range(2)], axis=0)
        return np.where(mask, np.exp(log_p) * (q - alpha * np.where(mask, log_p, 0)), 0).sum(-1)

    expected = sample.reward + sample.discount * value(models["critic"].target, sample.next_obs, sample.next_mask)
    target = jax.jit(algo.target)
    np.testing.assert_allclose(target(models, sample, sample.next_obs, key), expected, rtol=1e-4, atol=1e-4)
    other = target(models, sample, sample.next_obs, jax.random.key(99))
    np.testing.assert_array_equal(other, target(models, sample, sample.next_obs, key))  # nothing is sampled
    loss, out = jax.jit(algo.policy_loss)(models["actor"].params, models, sample, sample.obs, key)
    weight = sample.weight / sample.weight.sum()
    expected = -(value(models["critic"].params, sample.obs, sample.mask) * weight).sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-3, atol=1e-4)
    q = algo.q_of(models["critic"].params, sample.obs, sample.action)
    by_hand = mlp(member(models["critic"].params, 1), sample.obs)[np.arange(16), sample.action]
    np.testing.assert_allclose(q[1], by_hand, rtol=1e-4, atol=1e-4)
    entropy, target = algo.entropies(out)
    np.testing.assert_allclose(target[:, 0], 0.4 * np.log(sample.mask.sum(-1)), atol=1e-6)
    log_p = np.where(sample.mask, policy(sample.obs, sample.mask), 0)
    np.testing.assert_allclose(entropy[:, 0], -np.where(sample.mask, np.exp(log_p) * log_p, 0).sum(-1), atol=1e-5)


# --- hybrid actions --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hybrid():
    algo = sac(action_space=CHOICES, conditions=CONDITIONS)
    return algo, moved(algo.init(jax.random.key(0))), sample_of(algo)


def test_hybrid_value_is_the_expectation_over_branches(hybrid):
    """By hand: for each choice, only its own amounts in the critic and in the entropy."""
    algo, models, sample = hybrid
    key, branches = jax.random.key(3), algo.bound.branches
    assert branches.names == ["choice", "amount_0", "amount_1"] and len(branches.passes) == 2
    out = algo.distribution(models["actor"].params, sample.next_obs, None)
    noise = algo.bound.dist.noise(key, (16,))
    action = algo.bound.dist.sample(out, noise)
    log_prob = {k: np.asarray(v).reshape(16, -1) for k, v in algo.bound.dist.log_prob(out, action).items()}
    alpha = np.exp(np.asarray(models["alpha"].params["log"]))
    expected = np.zeros(16)
    for k in range(3):
        numbers = np.zeros((16, 3))
        own = slice(0, 1) if k == 0 else slice(1, 3)
        name = "amount_0" if k == 0 else "amount_1"
        numbers[:, own] = np.tanh(action[name])
        inputs = np.hstack([sample.next_obs, numbers])
        q = np.min([mlp(member(models["critic"].target, i), inputs)[:, k] for i in range(2)], axis=0)
        log_k = np.asarray(out["choice"])[:, k]
        cost = alpha[0] * log_k + alpha[1 if k == 0 else 2] * log_prob[name].sum(-1)
        expected += np.exp(log_k) * (q - cost)
    target = jax.jit(algo.target)(models, sample, sample.next_obs, key)
    np.testing.assert_allclose(target, sample.reward + sample.discount * expected, rtol=2e-4, atol=2e-4)


def test_what_does_not_matter_is_not_seen(hybrid):
    algo, models, sample = hybrid
    changed = dict(sample.action)
    changed["amount_0"] = np.where(sample.action["choice"][:, None] == 0, changed["amount_0"], 9.0)
    changed["amount_1"] = np.where(sample.action["choice"][:, None] == 0, -9.0, changed["amount_1"])
    assert (changed["amount_0"] == 9.0).any() and (changed["amount_1"] == -9.0).any()

    def loss(params, action):
        return algo.critic_loss(params, sample.replace(action=action), sample.obs, sample.reward)[0]

    slope = jax.jit(jax.grad(loss))
    a, b = (slope(models["critic"].params, x) for x in (sample.action, changed))
    jax.tree.map(np.testing.assert_array_equal, a, b)

    def chosen(k):
        """The policy loss where choice k is certain, as a function of what the actor says of the amounts."""
        certain = jnp.zeros(9).at[6 + k].set(50.0)  # amounts first: 2 + 4 outputs, then the choice

        def loss(head):
            noise = algo.bound.dist.noise(jax.random.key(0), (1,))
            policy = algo.bound.branches.policy(
                algo.bound.dist.params((head + certain)[None], jnp.zeros(0)), noise, None
            )
            q = algo.values(models["critic"].params, sample.obs[:1], policy)
            return algo.soft(models["alpha"].params["log"], policy, q).sum()

        return np.asarray(jax.jit(jax.grad(loss))(0.1 * jnp.ones(9)))

    for k, own, others in ((0, slice(0, 2), slice(2, 6)), (1, slice(2, 6), slice(0, 2))):
        slopes = np.abs(chosen(k))
        assert (slopes[others] < 1e-12).all() and (slopes[own] > 1e-4).all()


def test_entropy_targets_follow_what_matters(hybrid):
    algo, models, sample = hybrid
    policy = jax.jit(algo.policy)(models["actor"].params, sample.obs, jax.random.key(0), None)
    entropy, target = (np.asarray(x) for x in algo.entropies(policy))
    share = np.asarray(policy.weight)
    np.testing.assert_allclose(target[:, 0], 0.3 * np.log(3), rtol=1e-5)
    np.testing.assert_allclose(target[:, 1], -share[:, 0], rtol=1e-4)
    np.testing.assert_allclose(target[:, 2], -2 * share[:, 1:].sum(-1), rtol=1e-4)
    np.testing.assert_allclose(entropy[:, 0], -(share * np.log(share)).sum(-1), rtol=1e-4)


def test_choices_that_do_not_matter_are_one_branch():
    """A second choice that counts only where the first is 1: its options share one output elsewhere."""
    space = gym.Dict({"a": gym.Discrete(2), "b": gym.Discrete(3), "x": gym.Box(-1, 1, (1,))})
    branches = Branches(for_space(space, bounded="tanh", state_std=True, conditions={"b": ("a", (1,))}), 64)
    assert branches.number == 6 and branches.head.tolist() == [0, 0, 0, 3, 4, 5]
    assert branches.matters[:3, 1].sum() == 0 and branches.matters[3:, 1].all() and branches.matters[:, 2].all()
    action = {"a": np.array([0, 1]), "b": np.array([2, 2]), "x": np.zeros((2, 1), np.float32)}
    _, output = branches.critic_inputs(action)
    assert np.argmax(output, -1).tolist() == [0, 5]


def test_multi_discrete_branches_in_order():
    branches = Branches(for_space(gym.MultiDiscrete([2, 3])), 64)
    np.testing.assert_array_equal(branches.index(branches.table), np.arange(6))
    out = for_space(gym.MultiDiscrete([2, 3])).params(jnp.arange(5.0)[None], jnp.zeros(0))
    policy = branches.policy(out, jnp.zeros((1, 2, 3)), None)
    by_hand = np.exp(np.add.outer(np.asarray(out)[0, 0, :2], np.asarray(out)[0, 1])).ravel()
    np.testing.assert_allclose(policy.weight[0], by_hand, rtol=1e-5)
    assert policy.weight.sum() == pytest.approx(1.0, abs=1e-5)


def test_many_choices_are_sampled():
    """Beyond the limit the critic reads one-hot choices: hard values, soft gradients, 0 where nothing matters."""
    algo = sac(action_space=CHOICES, conditions=CONDITIONS, exact_choices=2)
    models, sample = moved(algo.init(jax.random.key(0))), sample_of(algo)
    policy = jax.jit(algo.policy)(models["actor"].params, sample.obs, jax.random.key(1), None)
    assert policy.weight.shape == (16, 1) and policy.choice.shape == (16, 3)
    assert set(np.unique(np.round(np.asarray(policy.choice), 5))) == {0.0, 1.0}
    picked = np.argmax(policy.choice, -1)
    np.testing.assert_array_equal(policy.matters[:, 0, 1], picked == 0)
    loss = jax.jit(jax.grad(lambda p: algo.policy_loss(p, models, sample, sample.obs, jax.random.key(1))[0]))
    grads = loss(models["actor"].params)
    assert (np.abs(np.asarray(grads["head"]["kernel"])[:, 6:]) > 0).any()  # the choice's logits
    inputs, output = algo.bound.branches.critic_inputs(sample.action)
    assert output is None and inputs.shape == (16, 6)
    assert (np.asarray(inputs)[sample.action["choice"] != 0, 3] == 0).all()


# --- acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exploration", ["white", "pink"])
def test_warm_up_is_uniform_over_the_space(exploration):
    """Also where the noise is correlated, and only among what the mask allows."""
    algo = sac(action_space=CHOICES, conditions=CONDITIONS, learning_starts=10, exploration=exploration)
    state, n = algo.init(jax.random.key(0)), 4000
    mask = np.tile([True, False, True], (n, 1))
    carry, act = algo.initial_carry((n,)), jax.jit(algo.act)
    for i in range(2):
        noise = algo.noise(jax.random.key(i), (n,))
        action, carry, extras = act(algo.actor_params(state), np.zeros((n, 2), np.float32), carry, noise, mask=mask)
        sent = algo.to_env(action)
        assert extras == {} and set(np.unique(sent["choice"])) == {0, 2}
        for value, low, high in ((sent["amount_0"], -1, 1), (sent["amount_1"][:, 1], 0, 4)):
            share = np.histogram(value, 4, (low, high))[0] / n
            np.testing.assert_allclose(share, 0.25, atol=0.04)
    started = state.replace(clock=state.clock.advance(jnp.int32(10), jnp.int32(0)))
    noise = algo.noise(jax.random.key(5), (n,))
    for now, random in ((state, True), (started, False)):
        params = jax.tree.map(lambda x: x + 1.0 if x.shape == (9,) else x, algo.actor_params(now))
        action = act(params, np.zeros((n, 2), np.float32), carry, noise, mask=mask)[0]
        assert (abs(np.asarray(action["amount_0"]).mean()) < 0.2) == random  # the policy's own mean is 1


def test_greedy_is_the_mode_and_carries_nothing_on():
    algo = sac(exploration="pink")
    params = algo.actor_params(algo.init(jax.random.key(0)))
    obs = np.ones((3, 2), np.float32)
    carry = algo.initial_carry((3,))
    action, after, _ = algo.act(params, obs, carry, None, greedy=True)
    jax.tree.map(np.testing.assert_array_equal, carry, after)
    np.testing.assert_allclose(action, mlp(jax.tree.map(np.asarray, params["actor"]), obs)[:, :2], atol=1e-6)


# --- update ----------------------------------------------------------------------------------------------------------


def rollout(algo, seed=0, lead=(T, E)):
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(2, *lead, 2)).astype(np.float32)
    action = rng.normal(size=(*lead, 2)).astype(np.float32)
    ends = rng.random(lead) < 0.2
    reward = rng.normal(size=(*lead, 2)).astype(np.float32)
    return Batch(obs[0], action, reward, ends, np.zeros(lead, bool), obs[1], np.ones(lead, bool), {})


@jax.jit
def update(algo, state, batch):
    new, metrics = algo.update(state, batch)
    return new.replace(clock=state.clock.advance(jnp.int32(T * E), jnp.int32(0))), metrics


@pytest.fixture(scope="module")
def plain():
    return sac()


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, 6), (1.0, 12), (2.0, 24), (0.05, 0.6), (0.0, 0)])
def test_gradient_steps_are_what_the_ratio_says(plain, ratio, expected):
    algo = with_floats(plain, update_ratio=ratio)
    state, taken = algo.init(jax.random.key(0)), []
    for i in range(5):
        state, metrics = update(algo, state, rollout(algo, i))
        taken.append(float(metrics["gradient_steps"]))
        assert np.isfinite(metrics["loss"]) == (taken[-1] > 0) == np.isfinite(metrics["env_steps_per_gradient"])
    assert sum(taken) == pytest.approx(np.floor(5 * expected + 1e-3)) and max(taken) - min(taken) <= 1
    assert int(state.aux["gradient_steps"]) == sum(taken)
    assert float(metrics["replay_size"]) == 5 * T * E
    assert update._cache_size() == 1  # float settings are data


def with_floats(algo, **changes):
    """The same program with other numbers."""
    new = SAC(dataclasses.replace(algo.config, **changes), algo.network)
    new.binding = algo.binding
    return new


def test_slow_critics_follow_and_learning_rates_are_their_own(plain):
    algo = with_floats(plain, update_ratio=1 / 12, tau=0.25)
    state = algo.init(jax.random.key(0))
    new, metrics = update(algo, state, rollout(algo))
    assert float(metrics["gradient_steps"]) == 1
    before, after = state.models["critic"], new.models["critic"]
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(c, a + 0.25 * (b - a), atol=1e-6),
        before.target,
        after.params,
        after.target,
    )
    step = jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before.params, after.params))
    assert max(step) == pytest.approx(3e-4, rel=0.01)  # Adam's first step is its learning rate


def test_policy_delay_and_fixed_temperature():
    algo = sac(policy_delay=3, learn_alpha=False, alpha=0.2, update_ratio=1 / 12)
    state, moves = algo.init(jax.random.key(0)), []
    step = jax.jit(algo.update)
    for i in range(4):
        new, _ = step(state, rollout(algo, i))
        kernels = [s.models["actor"].params["head"]["kernel"] for s in (state, new)]
        moves.append(bool((kernels[0] != kernels[1]).any()))
        state = new.replace(clock=state.clock.advance(jnp.int32(T * E), jnp.int32(0)))
        np.testing.assert_array_equal(new.models["alpha"].params["log"], jnp.log(0.2))
    assert moves == [True, False, False, True]


def test_rows_of_agents_and_the_dead_among_them():
    """Two agents of two environments as four columns; what a dead one saw is never learned from."""
    spec = Spec(gym.Box(-1, 1, (2,)), gym.Box(-2, 2, (2,)), agents=("a", "b"), num_envs=2, rollout_rows=T)
    algo = SAC(network=NETWORK, normalize_obs=True, **BATCH).bind(spec)
    batch = rollout(algo, lead=(T, 4))
    dead = np.zeros((T, 4), bool)
    dead[:, 2] = True
    batch = batch.replace(valid=~dead, full=False)
    poisoned = batch.replace(reward=np.where(dead[..., None], 1e6, batch.reward))
    step = jax.jit(algo.update)
    a, b = (step(algo.init(jax.random.key(0)), x)[0] for x in (batch, poisoned))
    jax.tree.map(np.testing.assert_array_equal, a.models, b.models)
    assert a.replay.reward.shape == (algo.bound.replay.capacity, 4)
    live = batch.obs.reshape(-1, 2)[~dead.ravel()]
    np.testing.assert_allclose(a.norm["obs"].mean, live.mean(0), atol=1e-5)
    assert int(a.aux["gradient_steps"]) == T * 2  # of env steps, not of agents


def test_an_ensemble_is_made_twenty_times():
    algo = sac()
    kernels = []
    for i in range(20):
        state = algo.init(jax.random.key(i))
        kernels.append(np.asarray(state.models["critic"].params["dense_0"]["kernel"]))
    assert kernels[0].shape == (2, 4, 8) and not np.allclose(kernels[0][0], kernels[0][1])
    jax.tree.map(np.testing.assert_array_equal, state.models["critic"].params, state.models["critic"].target)


# --- in the loop -----------------------------------------------------------------------------------------------------

RUN = {
    "algo": "sac",
    "preset": "sac",
    "network.hidden": (8,),
    "algo.batch_size": 16,
    "algo.minibatch_size": None,
    "algo.epochs": None,
    "algo.buffer_size": 100,
    "algo.learning_starts": 40,
    "algo.update_ratio": 9.5 / 32,
    "algo.n_step": 3,
    "algo.exploration": "pink",
    "algo.normalize_obs": True,
    "log.every": "1",
    "env_args": {"max_episode_steps": 9},
}


@pytest.mark.usefixtures("compilation_cache", "without_plots")
def test_resume_is_exact_with_its_replay(tmp_path):
    tiny(tmp_path / "whole", updates=8, env="pendulum", **RUN)
    tiny(tmp_path / "half", updates=4, env="pendulum", **RUN)
    regimen.resume(tmp_path / "half", total_steps=8 * 32)
    assert_same_run(tmp_path / "whole", tmp_path / "half")
    arrays, _ = final_state(tmp_path / "whole")
    assert arrays["state/replay/valid"].all() and arrays["state/aux/ring/count"] == [32]
    assert any("memory" in name for name in arrays)
    policy = regimen.load_policy(tmp_path / "whole")  # without a replay of its own
    assert policy.act([0.1, 0.2, 0.3]).shape == (1,)


engine_of = partial(kit.engine_of, settings=RUN | {"rollout.steps": 32, "rollout.num_envs": 4})


@pytest.mark.usefixtures("compilation_cache")
@pytest.mark.long
def test_two_seeds_are_two_runs():
    together, alone = engine_of("pendulum", (3, 4)), engine_of("pendulum", (4,))
    for engine in (together, alone):
        engine.speed = 1e9
        progress = engine.advance([Limits(6)] * engine.learners)[-1]
        # of the first 64 steps, 24 come after the warm-up of 40; each update of 32 is worth 9.5 gradient steps
        assert progress.metrics["gradient_steps"].tolist() == [0, 7, 9, 10, 9, 10]
    a, b = (trees.flatten(e.snapshot(k)) for e, k in ((together, 1), (alone, 0)))
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=2e-3, atol=2e-3, err_msg=name)


KEY, START = jax.random.key(7), jax.random.key(3)


class Scripted(gymnasium.Env):
    """A native environment stepped from Python with the keys that the scan source would use."""

    def __init__(self, env, first_key, keys):
        self.env, self.keys, self.t = env, [first_key, *keys], 0
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed=None, options=None):
        self.state, obs = self.env.reset(self.keys[self.t])
        return np.asarray(obs), {}

    def step(self, action):
        self.t += 1
        self.state, ts = self.env.step(self.keys[self.t], self.state, jnp.asarray(action))
        return np.asarray(ts.obs), float(np.sum(ts.reward)), bool(ts.terminated), bool(ts.truncated), {}


def test_sources_fill_the_same_replay():
    env = Pendulum(max_episode_steps=4)
    spec = Spec(env.observation_space, env.action_space, num_envs=3, rollout_rows=8, max_episode_steps=4)
    algo = SAC(network=NETWORK, exploration="pink", **BATCH).bind(spec)
    state = algo.init(jax.random.key(0))
    scan = ScanSource(Steps(24), 3)
    _, native, *_ = jax.jit(scan.next)(env, algo, scan.init(env, algo, START), algo.actor_params(state), KEY)
    keys = RolloutKeys.of(KEY).env_keys(0, 8, 3)
    scripted = iter([Scripted(env, jax.random.split(START, 3)[i], keys[:, i]) for i in range(3)])
    host = HostSource(lambda: next(scripted), Steps(24), 3, max_episode_steps=4)
    host.init(0)
    batch, _, _ = host.next(algo, algo.actor_params(state), KEY)
    (ring, a), (_, b) = (algo.bound.replay.insert(state.aux["ring"], state.replay, x) for x in (native, batch))
    assert int(ring.count[0]) == 8 and native.truncated.sum() == 6
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), a, b)


@native_env
class Turning(probe.Masked):
    """Two steps, after each of which another action is not allowed."""

    max_episode_steps: int = 2

    def step(self, key, state, action):
        new = jnp.roll(state, 1)
        return new, TimeStep(obs=new, reward=jnp.float32(0.0), terminated=jnp.bool_(False))


@pytest.mark.usefixtures("compilation_cache")
def test_host_environments_compile_once_and_give_masks_of_both_states():
    engine = engine_of("gym:Pendulum-v1", **{"env_args": {}, "device": "cpu"})
    assert isinstance(engine, HostEngine)
    engine.advance([Limits(1)])
    programs = engine.update._cache_size()  # of every engine in this process
    for _ in range(2):
        engine.advance([Limits(1)])
    assert engine.update._cache_size() == programs and int(engine.state.aux["gradient_steps"]) == 16
    assert not engine.state.replay.truncated.any()
    resumed = engine_of("gym:Pendulum-v1", **{"env_args": {}, "device": "cpu"})
    resumed.restore(0, trees.flatten(engine.snapshot(0)), "the first")
    resumed.advance([Limits(1)])  # its environments start anew in the middle of their episodes
    np.testing.assert_array_equal(np.flatnonzero(resumed.state.replay.truncated.all(1)), [23])
    assert resumed.state.replay.truncated.sum() == 4
    for one in (engine, resumed):
        one.close()
    env = Turning()
    spec = Spec(env.observation_space, env.action_space, num_envs=4, rollout_rows=3, env=env)
    algo = SAC(network=NETWORK, **BATCH).bind(spec)
    source, state = ScanSource(Steps(12), 4), algo.init(jax.random.key(0))
    carry = source.init(env, algo, jax.random.key(1))
    _, batch, *_ = jax.jit(source.next)(env, algo, carry, algo.actor_params(state), jax.random.key(2))
    np.testing.assert_array_equal(batch.extras["mask"], batch.obs == 0)
    np.testing.assert_array_equal(batch.extras["next_mask"], batch.next_obs == 0)
    assert (batch.extras["mask"] != batch.extras["next_mask"]).any(-1).all() and batch.truncated.any()


def test_an_update_without_a_gradient_step_is_no_divergence(plain):
    state = plain.init(jax.random.key(0))
    nothing, loss = jnp.float32(0.0), jnp.float32(jnp.nan)
    assert engine_module.finite({"loss": loss, "gradient_steps": nothing}, state)
    assert not engine_module.finite({"loss": loss, "gradient_steps": nothing + 1}, state)
    assert not engine_module.finite({"loss": loss}, state)


def test_what_cannot_be_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"rollout\.episodes: sac learns from a replay .* set rollout\.steps"):
        layers.build_config("pendulum", algo="sac", overrides={"rollout.episodes": 4})
    with pytest.raises(OutOfMemoryError, match=r"this replay needs about .* reduce algo\.buffer_size"):
        engine_of("pendulum", **{"algo.buffer_size": 10**12})
    with pytest.raises(ConfigError, match="graph"):
        SAC(network=NetworkConfig(name="graph")).bind(Spec(gym.Box(-1, 1, (2,)), gym.Discrete(2)))


def test_the_regimen_in_words():
    config = layers.build_config("any:environment", algo="sac")
    assert (config.preset, config.network.hidden, config.network.activation) == ("sac", (256, 256), "relu")
    regimen = Regimen("steps", 32, 4, native=True)
    words = describe(config, regimen)
    assert words == (
        "collect 8 steps in each of 4 environments, then 32 gradient steps of 256 rows from a replay of 1,000,000; "
        "the first 1,000 steps are random"
    )
    config = layers.build_config("any:environment", algo="sac", overrides={"algo.update_ratio": 0.3})
    assert "9.6 gradient steps on average" in describe(config, regimen)
