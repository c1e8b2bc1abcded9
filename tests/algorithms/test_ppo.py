"""PPO's formulas against numpy, and the invariants that most implementations break somewhere."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym
from jax.flatten_util import ravel_pytree

import kit
from regimen.algorithms.base import Horizon
from regimen.algorithms.ppo import PPO, Knobs
from regimen.algorithms.shared import adapt, optimizer, scheduled
from regimen.config.schema import NetworkConfig
from regimen.envs.classic.cartpole import CartPole
from regimen.envs.classic.pendulum import Pendulum
from regimen.schedule import Episodes, Steps
from regimen.sources.scan import ScanSource
from regimen.types import Clock, Spec

TINY = NetworkConfig(hidden=(8,))


def setup(env=None, schedule=None, num_envs=4, **kwargs):
    """A bound PPO, its state, and one real batch."""
    env = env or CartPole(max_episode_steps=20)
    algo = kit.bound(PPO, env, num_envs=num_envs, **kwargs)
    state, _, batch, *_ = kit.rollout(algo, env, schedule or Steps(128))
    return algo, state, batch


def update(algo, state, batch):
    return jax.jit(lambda algo, state, batch: algo.update(state, batch))(algo, state, batch)


@pytest.mark.parametrize(
    "env", [CartPole(max_episode_steps=20), Pendulum(max_episode_steps=20)], ids=["discrete", "box"]
)
@pytest.mark.parametrize("normalize", [False, True])
def test_first_epoch_ratio_is_one(env, normalize):
    """Log-probabilities in the loss equal those of the rollout, so that the first ratio is 1 and the KL 0; also in a
    second update, when the observation statistics have moved."""
    algo, state, batch = setup(env, epochs=1, minibatch_size=10_000, normalize_obs=normalize)
    for i in range(2):
        rows, _ = algo.advantages(state, batch, batch.reward, jnp.ones(1))
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        dist, params = algo.bound.dist, state.models["policy"].params
        out = dist.params(algo.bound.actor.apply(params["actor"], flat.obs), params.get("log_std"))
        log_prob = dist.log_prob(out, flat.action)
        ratio = np.exp(np.asarray((log_prob.sum(-1) if log_prob.ndim > 1 else log_prob) - flat.log_prob))
        np.testing.assert_allclose(ratio, 1.0, atol=1e-5)
        new, metrics = update(algo, state, batch)
        assert abs(float(metrics["approx_kl"])) < 1e-6 and float(metrics["clip_fraction"]) == 0.0
        if i == 0:  # collect again with the new parameters and statistics
            state = new.replace(clock=state.clock.advance(128, 0))
            source = ScanSource(Steps(128), 4)
            carry = source.init(env, algo, jax.random.key(5))
            _, batch, *_ = jax.jit(source.next)(env, algo, carry, algo.actor_params(state), jax.random.key(6))


def test_loss_matches_numpy():
    algo, state, batch = setup(vf_clip=0.1)
    flat, unravel = ravel_pytree(state.models["policy"].params)
    params = unravel(flat + 0.5 * jax.random.normal(jax.random.key(3), flat.shape))  # ratios leave the clip range
    rows, _ = algo.advantages(state, batch, batch.reward, jnp.ones(1))
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
    shift = float(rows.advantage.mean())
    knobs = Knobs(0.2, 0.01, 0.5, weights=jnp.ones(1), shift=shift, scale=2.0, balance=jnp.ones(2))
    loss, metrics = algo.loss(params, rows, knobs)

    def mlp(p, x):
        return np.tanh(x @ p["dense_0"]["kernel"] + p["dense_0"]["bias"]) @ p["head"]["kernel"] + p["head"]["bias"]

    p, r = jax.tree.map(np.asarray, params), jax.tree.map(np.asarray, rows)
    logits = mlp(p["actor"], r.obs)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    log_ratio = log_p[np.arange(len(r.action)), r.action] - r.log_prob
    ratio = np.exp(log_ratio)
    advantage = (r.advantage[:, 0] - shift) / 2.0
    for better in (advantage > 0, advantage < 0):  # of both signs, ratios below, inside and above
        assert {-1, 0, 1} == set(np.sign(np.round(np.clip(ratio[better], 0.8, 1.2) - ratio[better], 6)))
    policy = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    r = r.replace(value=r.value[:, 0], target=r.target[:, 0])
    value = mlp(p["critic"], r.obs)[:, 0]
    near = r.value + np.clip(value - r.value, -0.1, 0.1)
    value_loss = 0.5 * np.maximum((value - r.target) ** 2, (near - r.target) ** 2)
    entropy = -(np.exp(log_p) * log_p).sum(-1)
    kl = ratio - 1 - log_ratio
    np.testing.assert_allclose(loss, policy + 0.5 * value_loss - 0.01 * entropy + 0.5 * kl, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(metrics["clip_fraction"], np.abs(ratio - 1) > 0.2)


def test_advantages_bootstrap_from_the_true_final_observation():
    """Truncated rows and the last row use V(next_obs); terminated rows use nothing."""
    algo, state, batch = setup(normalize_advantage=False, gae_lambda=0.0, schedule=Steps(400))
    params = state.models["policy"].params

    def critic(obs):
        return np.asarray(algo.bound.critic.apply(params["critic"], obs)[..., 0])

    rows, _ = algo.advantages(state, batch, batch.reward, jnp.ones(1))
    successor = np.where(batch.terminated, 0.0, critic(batch.next_obs))
    expected = np.asarray(batch.reward.sum(-1)) + 0.99 * successor - critic(batch.obs)
    assert batch.truncated.any() and batch.terminated.any()
    np.testing.assert_allclose(rows.advantage[..., 0], expected, atol=1e-5)


def test_advantages_are_normalised_over_the_whole_batch_and_only_valid_rows():
    algo, state, batch = setup(schedule=Episodes(8))
    _, packed, knobs, _ = algo.prepare(state, batch)
    valid = np.asarray(batch.valid)
    assert not valid.all()
    rows = packed.take(jnp.arange(int(packed.count)))
    assert len(rows.advantage) == valid.sum()
    advantage = np.asarray((rows.advantage @ knobs.weights - knobs.shift) / knobs.scale)
    assert abs(advantage.mean()) < 1e-4 and advantage.std() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("schedule", [Steps(128), Episodes(4)], ids=["steps", "episodes"])
@pytest.mark.parametrize("micro", [1, 7, 32])
def test_micro_batches_change_nothing(schedule, micro):
    algo, state, batch = setup(schedule=schedule, minibatch_size=48, epochs=2)
    split = PPO(dataclasses.replace(algo.config, micro_batch_size=micro), algo.network)
    split.binding = algo.binding
    (one, m1), (two, m2) = update(algo, state, batch), update(split, state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), one.models, two.models)
    assert float(m1["loss"]) == pytest.approx(float(m2["loss"]), rel=1e-3)


def test_padding_is_never_learned_from():
    """Garbage in rows that are not valid changes nothing."""
    algo, state, batch = setup(schedule=Episodes(4), normalize_obs=True, normalize_reward=True)
    junk = ~np.asarray(batch.valid)
    spoiled = batch.replace(
        obs=jnp.where(junk[..., None], 1e3, batch.obs),
        next_obs=jnp.where(junk[..., None], 1e3, batch.next_obs),
        reward=jnp.where(junk[..., None], -77.0, batch.reward),
        terminated=batch.terminated | junk,
    )
    (a, _), (b, _) = update(algo, state, batch), update(algo, state, spoiled)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a.models, b.models)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a.norm, b.norm)


def test_minibatch_above_the_batch_means_the_full_batch():
    algo, state, batch = setup(minibatch_size=10_000, epochs=3)
    _, metrics = update(algo, state, batch)
    assert int(metrics["gradient_steps"]) == 3


def test_target_kl_ends_the_epochs():
    """At the first minibatch whose KL is above 1.5 times the target, which is counted and changes nothing: parameters
    and Adam's moments are those of a plain loop over the minibatches before it."""
    algo, state, batch = setup(lr=0.02, epochs=8, minibatch_size=10_000, target_kl=1.0)  # a minibatch is the batch
    _, packed, knobs, _ = algo.prepare(state, batch)
    rows, model = packed.take(jnp.arange(128)), state.models["policy"]
    flat, unravel = ravel_pytree(model.params)

    @jax.jit
    def slope(flat):
        def mean(flat):
            loss, parts = algo.loss(unravel(flat), rows, knobs)
            return loss.mean(), parts["approx_kl"].mean()

        return jax.grad(mean, has_aux=True)(flat)

    seen, opt_state = [], model.opt_state
    for _ in range(8):
        grads, kl = slope(flat)
        seen.append((flat, opt_state, float(kl)))
        updates, opt_state = optimizer(algo.config).update(grads, opt_state)
        flat = flat - 0.02 * updates
    first, (want, moments, kl) = next((i, s) for i, s in enumerate(seen) if s[2] > 0.01)
    assert 1 < first < 5 and kl < 3 * seen[first - 1][2], "neighbours well within a factor of four"
    between = float(np.sqrt(kl * seen[first - 1][2]))
    strict = PPO(dataclasses.replace(algo.config, target_kl=between / 1.5), algo.network)
    strict.binding = algo.binding
    new, metrics = update(strict, state, batch)
    assert int(metrics["gradient_steps"]) == first + 1
    assert float(metrics["approx_kl"]) == pytest.approx(np.mean([s[2] for s in seen[: first + 1]]), rel=1e-3)
    held = new.models["policy"]
    np.testing.assert_allclose(ravel_pytree(held.params)[0], want, rtol=1e-3, atol=1e-5)
    assert int(held.opt_state[1].count) == first
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-6), held.opt_state, moments)


def test_adaptive_kl_penalty_holds_the_policy_back():
    free, state, batch = setup(lr=0.05, epochs=10, minibatch_size=128, max_grad_norm=0.0)
    held, with_penalty, _ = setup(lr=0.05, epochs=10, minibatch_size=128, max_grad_norm=0.0, kl_coef=50.0)
    kl_free = float(update(free, state, batch)[1]["approx_kl"])
    for target, factor in ((1e-4, 2.0), (1.0, 0.5)):
        other = PPO(dataclasses.replace(held.config, kl_target=target), held.network)
        other.binding = held.binding
        new, metrics = update(other, with_penalty, batch)
        assert 1.5e-4 < float(metrics["approx_kl"]) < 0.5 * kl_free < 0.5
        assert float(metrics["kl_coef"]) == 50.0 and float(new.aux["kl_coef"]) == 50.0 * factor


@pytest.mark.parametrize(("kl", "factor"), [(0.0151, 2.0), (0.0149, 1.0), (0.0067, 1.0), (0.0066, 0.5)])
def test_the_penalty_doubles_above_and_halves_below_one_and_a_half_times_its_target(kl, factor):
    assert float(adapt(jnp.float32(3.0), jnp.float32(kl), 0.01)) == 3.0 * factor


def test_entropy_bonus_raises_entropy():
    """From a confident policy, a heavy bonus leaves more entropy behind than none."""
    without, state, batch = setup(lr=0.03, epochs=10, ent_coef=0.0)
    heavy, _, _ = setup(lr=0.03, epochs=10, ent_coef=10.0)
    params = dict(state.models["policy"].params)
    params["actor"] = jax.tree.map(lambda x: x * 100, params["actor"])
    state = state.replace(models={"policy": state.models["policy"].replace(params=params)})

    def entropy_after(algo):
        new = update(algo, state, batch)[0].models["policy"].params
        dist = algo.bound.dist
        return float(dist.entropy(dist.params(algo.bound.actor.apply(new["actor"], batch.obs), jnp.zeros(0))).mean())

    assert entropy_after(heavy) > entropy_after(without) + 0.005


def test_gradients_are_clipped_by_global_norm():
    algo, state, batch = setup(max_grad_norm=1e-3, epochs=1, minibatch_size=128)
    off, _, _ = setup(max_grad_norm=0.0, epochs=1, minibatch_size=128)
    # Adam is invariant to the scale of its first gradient, so compare its first moment instead
    moments = [update(a, state, batch)[0].models["policy"].opt_state[1].mu for a in (algo, off)]
    assert float(jnp.linalg.norm(moments[0])) == pytest.approx(1e-3 * 0.1, rel=1e-3)
    assert float(jnp.linalg.norm(moments[1])) > 1e-3


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_schedules_follow_the_clock(shape):
    def at(steps):
        clock = Clock.zero().advance(jnp.int32(steps), jnp.int32(0))
        return float(scheduled(1.0, 0.2, shape, Horizon(1000.0, "steps"), clock))

    assert at(0) == 1.0 and at(1000) == pytest.approx(0.2) and at(5000) == pytest.approx(0.2)
    assert at(500) == pytest.approx(0.6)
    assert float(scheduled(1.0, 0.0, shape, None, Clock.zero())) == 1.0


def test_clock_counts_past_thirty_two_bits():
    clock = Clock.zero()
    for _ in range(5):
        clock = clock.advance(jnp.int32(2**30), jnp.int32(1))
    assert float(clock.read("steps")) == 5 * 2**30 and int(clock.episodes) == 5


def test_reward_normalisation_divides_by_the_running_return_deviation():
    algo, state, batch = setup(normalize_reward=True, schedule=Steps(400))
    scaled, factors, new = algo.bound.components.rewards(algo.config, state, batch)
    assert factors.tolist() == [1.0]
    g, seen = np.zeros(4), []
    done = np.asarray(batch.terminated | batch.truncated)
    for t in range(100):
        g = 0.99 * g + np.asarray(batch.reward)[t].sum(-1)
        seen.append(g.copy())
        g = np.where(done[t], 0.0, g)
    std = np.concatenate(seen).std()
    np.testing.assert_allclose(scaled, np.asarray(batch.reward) / std, rtol=1e-3)
    np.testing.assert_allclose(new.aux["return"][:, 0], g, rtol=1e-4)


def test_z_scored_monte_carlo_targets():
    algo, state, batch = setup(returns="monte_carlo_z", schedule=Episodes(4), normalize_advantage=False)
    rows, _ = algo.advantages(state, batch, batch.reward, jnp.ones(1))
    target = np.asarray(rows.target)[np.asarray(batch.valid)]
    assert abs(target.mean()) < 1e-4 and target.std() == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize(
    "space",
    [
        gym.Box(-1, 1, (2, 3), np.float32),
        gym.Box(0, 255, (4, 4), np.uint8),
        gym.Discrete(5, start=2),
        gym.MultiBinary(3),
        gym.MultiDiscrete([2, 3]),
        gym.Dict({"a": gym.Box(-1, 1, (2,), np.float32), "b": gym.Discrete(3)}),
    ],
    ids=str,
)
def test_acts_on_every_kind_of_observation(space):
    algo = PPO(network=TINY).bind(Spec(space, gym.Discrete(2)))
    params = algo.actor_params(algo.init(jax.random.key(0)))
    obs = jax.tree.map(lambda *x: np.stack(x), *[space.sample() for _ in range(3)])
    action, _, extras = algo.act(params, obs, (), algo.noise(jax.random.key(0), (3,)))
    assert action.shape == (3,) and np.isfinite(np.asarray(extras["log_prob"])).all()


def test_float_hyper_parameters_are_data():
    """A change of a learning rate or coefficient does not compile anew; None stays part of the program."""
    compiled = jax.jit(lambda algo, state, batch: algo.update(state, batch))
    algo, state, batch = setup()
    for change in ({"horizon": "9 steps"}, {"horizon": "5 steps"}, {"horizon": "5 steps", "lr": 1e-4}):
        other = PPO(dataclasses.replace(algo.config, **change), algo.network)
        other.binding = algo.binding
        compiled(other, state, batch)
    assert compiled._cache_size() == 1, "the length of the schedules"
    compiled.clear_cache()
    for change in ({}, {"lr": 1e-4}, {"gamma": 0.9}, {"clip_eps": 0.1}, {"ent_coef": 0.5}, {"max_grad_norm": 2.0}):
        other = PPO(dataclasses.replace(algo.config, **change), algo.network)
        other.binding = algo.binding
        compiled(other, state, batch)
    assert compiled._cache_size() == 1
    a, b = jax.tree.flatten(algo)[1], jax.tree.flatten(PPO(algo.config, algo.network))[1]
    assert a != b  # another binding is another program
