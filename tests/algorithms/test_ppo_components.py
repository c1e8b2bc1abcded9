"""PPO with component rewards: critics, advantages, scales and weights; and that learned weights do what they claim."""

import dataclasses
import json
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import kit
import regimen
from regimen import rewards
from regimen.algorithms.ppo import PPO
from regimen.algorithms.shared import explained
from regimen.config.algorithms.ppo import RewardConfig
from regimen.config.schema import NetworkConfig
from regimen.envs import probe
from regimen.envs.protocol import native_env
from regimen.files.sealed import unseal
from regimen.policies.policy import save_policy
from regimen.returns import gae
from regimen.schedule import Episodes, Steps
from regimen.sources.scan import ScanSource
from regimen.types import TimeStep

pytestmark = pytest.mark.usefixtures("compilation_cache")

TINY = NetworkConfig(hidden=(8,))
NAMES = ("goal", "fuel", "time")
GAMMA, LAMBDA = 0.99, 0.95


@native_env
class Mixed(probe.Probe):
    """Three components of very different scales, episodes that terminate and such that are cut short."""

    max_episode_steps: int = 6
    reward_components = NAMES

    def reset(self, key):
        obs = jax.random.uniform(key, (1,), minval=-1.0)
        return obs, obs

    def rewards(self, key, state, action):
        chosen = action.astype(jnp.float32)
        fuel = -20 * chosen * jax.random.uniform(key)
        return jnp.stack([chosen * state[0], fuel, jnp.float32(-0.3)])

    def step(self, key, state, action):
        pay, move, end = jax.random.split(key, 3)
        obs = jax.random.uniform(move, (1,), minval=-1.0)
        over = jax.random.bernoulli(end, 0.1)
        return obs, TimeStep(obs=obs, reward=self.rewards(pay, state, action), terminated=over)


@native_env
class Summed(Mixed):
    """The same with one reward: the components' weighted sum."""

    goal: float = 1.0
    fuel: float = 1.0
    reward_components = ("total",)

    def rewards(self, key, state, action):
        return jnp.sum(super().rewards(key, state, action) * jnp.stack([self.goal, self.fuel, 1.0]))


@native_env
class HybridParts(probe.Hybrid):
    """The hybrid probe with two components, one of them noise-free and one not."""

    reward_components = ("task", "noise")

    def step(self, key, state, action):
        state, ts = super().step(key, state, action)
        return state, ts.replace(reward=jnp.stack([ts.reward, jax.random.normal(key) * action["amount_0"][0]]))


bound = cache(partial(kit.bound, PPO, gamma=GAMMA, gae_lambda=LAMBDA))


collect = jax.jit(
    lambda source, env, algo, carry, params, key: source.next(env, algo, carry, params, key)[1], static_argnums=0
)


@cache
def collected(env, schedule, ratio="joint"):
    """A real batch of the first policy, which is the same whatever is done with rewards."""
    algo, source = bound(type(env)(), ratio=ratio), ScanSource(schedule, 4)
    carry = source.init(env, algo, jax.random.key(1))
    params = algo.actor_params(algo.init(jax.random.key(0)))
    return collect(source, env, algo, carry, params, jax.random.key(2))


def setup(env=None, schedule=None, **options):
    """A bound PPO, its state, and one real batch."""
    env, schedule = env or Mixed(), schedule or Steps(160)
    algo = bound(env, **options)
    return algo, algo.init(jax.random.key(0)), collected(env, schedule, algo.config.ratio)


def later(state, episodes=100):
    """The state when the warm-up is over."""
    return state.replace(clock=state.clock.advance(jnp.int32(0), jnp.int32(episodes)))


@jax.jit
def scaled(algo, state, batch):
    return algo.bound.components.rewards(algo.config, state, batch)


@jax.jit
def prepared(algo, state, batch):
    """(rows [T, B], weights, combined and normalised advantage [T, B], metrics), through the real `prepare`."""
    _, packed, knobs, metrics = algo.prepare(state, batch)
    rows = packed.unpack(packed.matrix)
    rows = jax.tree.map(lambda x: x.reshape(*batch.valid.shape, *x.shape[1:]), rows)
    return rows, knobs.weights, (rows.advantage @ knobs.weights - knobs.shift) / knobs.scale, metrics


@jax.jit
def gradient(algo, state, batch):
    """Of the actor's parameters, over the whole batch."""
    unravel = ravel_pytree(state.models["policy"].params)[1]
    return unravel(algo.gradient(state, batch))["actor"]


def values_of(algo, params, batch):
    """V [T, B, K] of the observations and of the true successors, 0 where the task ended."""

    def critic(obs):
        return np.asarray(algo.bound.critic.apply(params["critic"], obs))

    return critic(batch.obs), np.where(np.asarray(batch.terminated)[..., None], 0.0, critic(batch.next_obs))


# --- critics and advantages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [Steps(160), Episodes(12)], ids=["steps", "episodes"])
def test_every_head_has_the_advantages_of_its_own_component(schedule):
    algo, state, batch = setup(schedule=schedule, reward=RewardConfig(scale="none"))
    params, valid = state.models["policy"].params, np.asarray(batch.valid)
    rows, _, _, metrics = prepared(algo, state, batch)
    value, successor = values_of(algo, params, batch)
    done = np.asarray(batch.terminated | batch.truncated)
    assert value.shape[-1] == 3 and np.asarray(batch.truncated).any() and np.asarray(batch.terminated).any()
    reward = np.asarray(batch.reward)
    for k, name in enumerate(NAMES):
        alone = gae(reward[..., k], value[..., k], successor[..., k], done, GAMMA, LAMBDA, batch.length)
        got = np.asarray(rows.advantage)[..., k]
        np.testing.assert_allclose(got[valid], np.asarray(alone)[valid], rtol=1e-4, atol=1e-4)
        target = got[valid] + value[..., k][valid]
        fit = 1 - (target - value[..., k][valid]).var() / target.var()
        assert float(metrics[f"explained_variance/{name}"]) == pytest.approx(fit, abs=1e-3)
    whole = gae(reward.sum(-1), value.sum(-1), successor.sum(-1), done, GAMMA, LAMBDA, batch.length)
    np.testing.assert_allclose(
        np.asarray(rows.advantage.sum(-1))[valid], np.asarray(whole)[valid], rtol=1e-4, atol=1e-4
    )
    target = (rows.advantage + value).sum(-1)[valid]
    fit = 1 - (target - value.sum(-1)[valid]).var() / target.var()
    assert float(metrics["explained_variance"]) == pytest.approx(float(fit), abs=1e-3)


def test_a_constant_target_has_no_explained_variance():
    """Also where rounding makes it look like one that varies."""
    valid = jnp.ones((50, 8), bool)
    for value in (0.0, 1.7, -1e5):
        assert np.isnan(explained(jnp.full((50, 8), value), jnp.full((50, 8), 0.3), valid))
    assert float(explained(jnp.arange(400.0).reshape(50, 8) + 1e4, jnp.full((50, 8), 0.3), valid)) < 1e-6


def in_scaled_units(state, factors):
    """The state whose critic puts out the same values times the factors: its last layer is multiplied."""
    params = dict(state.models["policy"].params)
    head = {name: x * factors for name, x in params["critic"]["head"].items()}
    params["critic"] = params["critic"] | {"head": head}
    return state.replace(models={"policy": state.models["policy"].replace(params=params)})


@pytest.mark.parametrize(("scale", "weights"), [("return_std", "goal=2 fuel=0.1"), ("episode_sum", "")])
def test_fixed_weights_undo_the_scale(scale, weights):
    """Critics see like scales, the policy the reward itself: the same advantages and gradient as without."""
    plain, raw, batch = setup(reward=RewardConfig(scale="none", weights=weights))
    algo, state, _ = setup(reward=RewardConfig(scale=scale, weights=weights))
    state = later(state)
    factors = np.asarray(scaled(algo, state, batch)[1])
    assert factors.max() / factors.min() > 10, "or this would show nothing"
    state = in_scaled_units(state, factors)
    rows, _, combined, _ = prepared(algo, state, batch)
    raw_rows, _, raw_combined, _ = prepared(plain, raw, batch)
    np.testing.assert_allclose(rows.advantage, raw_rows.advantage * factors, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(combined, raw_combined, rtol=1e-3, atol=1e-3)
    if scale == "return_std":
        same, expected = gradient(algo, state, batch), gradient(plain, raw, batch)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), same, expected)
        assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(same)) > 1e-3


def test_without_heads_it_is_ppo_on_the_weighted_sum():
    one, state, batch = setup(reward=RewardConfig(heads=False, weights="goal=2 fuel=0.1"), normalize_reward=True)
    single, other, summed = setup(Summed(goal=2.0, fuel=0.1), normalize_reward=True)
    np.testing.assert_allclose(batch.reward @ jnp.asarray([2.0, 0.1, 1.0]), summed.reward[..., 0], rtol=1e-5)
    (a, _, x, m), (b, _, y, n) = prepared(one, state, batch), prepared(single, other, summed)
    np.testing.assert_allclose(a.target, b.target, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    assert m.keys() == n.keys() and not any(name.startswith("weight/") for name in m)
    plain, state, _ = setup(reward=RewardConfig(heads=False))
    assert (scaled(plain, state, batch)[0] == batch.reward.sum(-1, keepdims=True)).all()


def test_one_component_needs_no_weights():
    """Every option of components is without effect, bit for bit."""
    plain, state, batch = setup(Summed())
    options = RewardConfig(weighting="learned", norm="zscore", norm_over="episode", task="total", weights="total=1")
    algo, other, _ = setup(Summed(), reward=options)
    assert "weights" not in other.aux and algo.bound.components.weighting is None
    jax.tree.map(np.testing.assert_array_equal, prepared(plain, state, batch), prepared(algo, other, batch))


def test_z_scored_returns_keep_the_units_of_the_components():
    """`monte_carlo_z` z-scores the targets of each head; the policy must still learn from the reward itself."""
    algo, state, batch = setup(schedule=Episodes(12), returns="monte_carlo_z")
    params = state.models["policy"].params
    blind = jax.tree.map(jnp.zeros_like, params["critic"])
    state = state.replace(models={"policy": state.models["policy"].replace(params=params | {"critic": blind})})
    rows, _, combined, _ = prepared(algo, later(state), batch)
    valid, done = np.asarray(batch.valid), np.asarray(batch.terminated | batch.truncated)
    zeros = np.zeros(valid.shape)
    whole = np.asarray(gae(np.asarray(batch.reward).sum(-1), zeros, zeros, done, GAMMA, 1.0, batch.length))[valid]
    np.testing.assert_allclose(np.asarray(combined)[valid], (whole - whole.mean()) / whole.std(), atol=1e-2)
    target = np.asarray(rows.target)[valid]
    np.testing.assert_allclose(target[:, :2].std(0), 1.0, atol=1e-2)


# --- scale -----------------------------------------------------------------------------------------------------------


def deviations(batch, decay, start=0.0, ends=False):
    """Of the decayed sums of each component at every row, or at the end of each episode."""
    g, seen = np.full((batch.reward.shape[1], 3), start), []
    reward, done = np.asarray(batch.reward, np.float64), np.asarray(batch.terminated | batch.truncated)
    for t in range(len(reward)):
        g = decay * g + reward[t]
        seen += [g[b].copy() for b in range(len(g)) if done[t, b] or not ends]
        g[done[t]] = 0.0
    return np.std(seen, axis=0), np.std(np.sum(seen, axis=-1)), g


@pytest.mark.parametrize("scale", ["return_std", "episode_sum"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_scale_of_components_is_measured(scale, normalize):
    """Factors by the deviation of discounted returns or of episode sums; `normalize_reward` always by the former."""
    algo, state, batch = setup(reward=RewardConfig(scale=scale), normalize_reward=normalize)
    by_episode = scale == "episode_sum"
    sigma, _, last = deviations(batch, 1.0 if by_episode else GAMMA, ends=by_episode)
    reward, factors, new = scaled(algo, later(state), batch)
    np.testing.assert_allclose(new.norm["components"].std(eps=0.0), sigma, rtol=1e-3)
    np.testing.assert_allclose(factors, np.clip(np.median(sigma) / sigma, 0.1, 10), rtol=1e-3)
    np.testing.assert_allclose(new.aux["sum" if by_episode else "return"], last, rtol=1e-3, atol=1e-4)
    overall = deviations(batch, GAMMA)[1] if normalize else 1.0
    expected = np.clip(np.asarray(batch.reward) / overall, -10, 10) if normalize else np.asarray(batch.reward)
    np.testing.assert_allclose(reward, expected * np.asarray(factors), rtol=1e-3)


def test_the_scale_waits_for_the_warm_up():
    algo, state, batch = setup(reward=RewardConfig(warmup=10))
    for episodes, on in ((0, False), (9, False), (10, True)):
        reward, factors, new = scaled(algo, later(state, episodes), batch)
        assert (factors.tolist() != [1.0, 1.0, 1.0]) is on
        np.testing.assert_allclose(reward, batch.reward * factors, rtol=1e-6)
        assert float(new.norm["components"].count) == 160, "it measures from the start"


# --- weights ---------------------------------------------------------------------------------------------------------


def test_uniform_weights_are_of_the_scaled_advantages():
    algo, state, batch = setup(reward=RewardConfig(weighting="uniform", weights="goal=5"))
    rows, weights, combined, metrics = prepared(algo, later(state), batch)
    assert weights.tolist() == pytest.approx([1 / 3] * 3)
    assert [float(metrics[f"weight/{name}"]) for name in NAMES] == pytest.approx([1 / 3] * 3)
    mean = np.asarray(rows.advantage).mean(-1)
    np.testing.assert_allclose(combined, (mean - mean.mean()) / mean.std(), atol=1e-3)


def test_fixed_weights_weigh_standardised_components():
    algo, state, batch = setup(reward=RewardConfig(norm="zscore", weights="goal=3 fuel=0"))
    rows, weights, _, metrics = prepared(algo, later(state), batch)
    assert weights.tolist() == [3.0, 0.0, 1.0]
    assert [float(metrics[f"weight/{name}"]) for name in NAMES] == pytest.approx([0.75, 0.0, 0.25])
    flat = np.asarray(rows.advantage).reshape(-1, 3)
    np.testing.assert_allclose(flat.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(flat.std(0), 1.0, atol=1e-3)


@pytest.mark.parametrize(
    ("env", "norm", "options"),
    [(Mixed(), "zscore", {}), (HybridParts(), "none", {"ratio": "per_element"})],
    ids=["discrete", "hybrid"],
)
def test_weights_learn_from_gradients_of_the_real_loss(env, norm, options):
    """d from gradients of PPO's own loss, one backward pass for each component: the same step of the weights."""
    reward = RewardConfig(weighting="learned", task=env.reward_components[0], norm=norm, warmup=0)
    algo, state, batch = setup(env, reward=reward, **options)
    flat, unravel = ravel_pytree(state.models["policy"].params)
    weighting = algo.bound.components.weighting

    @jax.jit
    def both(state, batch):
        new, packed, knobs, _ = algo.prepare(state, batch)
        key = jax.random.fold_in(jax.random.fold_in(state.key, ~state.clock.updates), 1)
        train, held = rewards.two_halves(packed, key)

        def gradient(advantage, row):
            alone = knobs.replace(weights=jnp.ones(1), shift=advantage.mean(), scale=1.0)
            row = row.replace(advantage=advantage[:, None])

            def surrogate(flat):
                params = unravel(flat)
                head = algo.bound.actor.apply(params["actor"], row.obs)
                out = algo.bound.dist.params(head, params.get("log_std", jnp.zeros(0)), row.mask)
                return -algo.policy_loss(out, row, alone)[0].mean()

            return jax.grad(surrogate)(flat)

        d = jax.vmap(gradient, (1, None))(train.advantage, train) @ gradient(held.task, held)
        magnitude, covariance = rewards.moments(packed.unpack(packed.matrix).advantage, jnp.ones(160, bool))
        expected = weighting.update(state.aux["weights"], magnitude, d, covariance, reward.weight_lr, reward.weight_reg)
        return new.aux["weights"], knobs.weights, d, expected, magnitude

    got, weights, d, expected, magnitude = both(state, batch)
    assert d.shape == (len(env.reward_components),)
    assert float(jnp.abs(d).max()) > 1e-6
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-5), got, expected)
    np.testing.assert_allclose(weights, weighting.weights(got["params"], magnitude), rtol=1e-4)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-5)


def test_the_task_is_in_the_rewards_own_units():
    """Its advantage is neither scaled nor standardised, and only of the components that are named."""
    options = RewardConfig(weighting="learned", task="goal,time", norm="zscore", warmup=0)
    algo, state, batch = setup(reward=options)
    factors = np.asarray(scaled(algo, state, batch)[1])
    plain, raw, _ = setup(reward=RewardConfig(scale="none"))
    assert factors.max() / factors.min() > 10
    rows, _, _, _ = prepared(algo, in_scaled_units(state, factors), batch)
    expected, _, _, _ = prepared(plain, raw, batch)
    np.testing.assert_allclose(rows.task, expected.advantage[..., 0] + expected.advantage[..., 2], rtol=1e-3, atol=1e-3)


def test_rewards_standardised_within_episodes_have_no_scale():
    """Neither factor nor unit is left in them, so none is undone."""
    options = {"norm": "zscore", "norm_over": "episode", "warmup": 0}
    algo, state, batch = setup(reward=RewardConfig(weighting="learned", task="goal,time", **options))
    reward, factors, new = scaled(algo, state, batch)
    assert factors.tolist() == [1.0, 1.0, 1.0] and float(new.norm["components"].count) == 160
    np.testing.assert_allclose(reward, rewards.standardize_episodes(batch.reward, batch, "zscore"), atol=1e-5)
    rows, _, _, _ = prepared(algo, state, batch)
    np.testing.assert_allclose(rows.task, rows.advantage[..., 0] + rows.advantage[..., 2], rtol=1e-4, atol=1e-5)


def test_attention_can_be_left_out():
    assert "weights" not in setup(reward=RewardConfig())[1].aux
    for attention, names in ((True, {"beta", "attention", "bias"}), (False, {"beta"})):
        _, state, _ = setup(reward=RewardConfig(weighting="learned", attention=attention))
        assert set(state.aux["weights"]["params"]) == names


def test_settings_of_the_weights_are_data():
    """Another learning rate or pull does not compile anew."""
    compiled = jax.jit(lambda algo, state, batch: algo.prepare(state, batch)[0])
    algo, state, batch = setup(reward=RewardConfig(weighting="learned", weight_lr=0.01))
    found = []
    for change in ({}, {"weight_lr": 0.1}, {"weight_reg": 1.0}):
        other = PPO(dataclasses.replace(algo.config, reward=dataclasses.replace(algo.config.reward, **change)), TINY)
        other.binding = algo.binding
        found.append(np.asarray(compiled(other, state, batch).aux["weights"]["params"]["beta"]))
    assert compiled._cache_size() == 1
    np.testing.assert_allclose(found[1], 10 * found[0], rtol=1e-4)


# --- learning --------------------------------------------------------------------------------------------------------


def learn(env, reward, updates=150, seeds=3, network=kit.WIDE):
    """(weights of the first component, share of action 1 in the rollouts) of every update [seeds, updates]; all seeds
    in one program, as `--seeds` trains them."""
    defaults = {"lr": 1e-2, "minibatch_size": 64, "epochs": 4, "gamma": 0.9}
    algo = kit.bound(PPO, env, num_envs=8, network=network, reward=reward, **defaults)
    source = ScanSource(Steps(128), 8)
    keys = jax.random.split(jax.random.key(3), seeds)
    state = jax.tree.map(lambda *x: jnp.stack(x), *[algo.init(key) for key in keys])
    carry = jax.vmap(lambda key: source.init(env, algo, key))(keys)

    def run(state, carry):
        def body(x, _):
            state, carry = x
            key = jax.random.fold_in(state.key, state.clock.updates)
            carry, batch, rows, _ = source.next(env, algo, carry, algo.actor_params(state), key)
            new, metrics = algo.update(state, batch)
            new = new.replace(clock=state.clock.advance(128, rows.count))
            return (new, carry), (metrics[f"weight/{env.reward_components[0]}"], (batch.action == 1).mean())

        return jax.lax.scan(body, (state, carry), None, length=updates)[1]

    return [np.asarray(x) for x in jax.jit(jax.vmap(run, axis_name="seeds"))(state, carry)]


def test_learned_weights_find_the_task_behind_a_bait():
    """19,200 steps, three seeds. The sum of the components pays for the bait, and fixed weights learn that."""
    env = probe.Misleading()
    weights, success = learn(env, RewardConfig(weighting="learned", task="task"))
    assert (success[:, -10:].mean(1) > 0.9).all()
    assert (weights[:, -1] > 0.55).all()
    _, baited = learn(env, RewardConfig())
    assert (baited[:, -10:].mean(1) < 0.1).all()


@pytest.mark.long
def test_learned_weights_find_the_task_with_memory():
    """3,840 steps, two seeds; the gradients that weights are learned from go through the memory."""
    network = NetworkConfig(memory="gru", memory_size=8, hidden=(16,))
    settings = {"updates": 30, "seeds": 2, "network": network}
    weights, success = learn(probe.Misleading(), RewardConfig(weighting="learned", task="task"), **settings)
    assert (weights[:, -1] > 0.8).all() and (success[:, -5:].mean(1) > 0.8).all()
    _, baited = learn(probe.Misleading(), RewardConfig(), **settings)
    assert (baited[:, -5:].mean(1) < 0.2).all()


# --- policies --------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A policy folder whose settings name components."""
    algo, state, _ = setup(reward=RewardConfig(weights="goal=2", task="goal"))
    save_policy(tmp_path / "policy", "ppo", algo, algo.actor_params(state), {})
    return tmp_path / "policy"


def test_a_policy_is_read_back_with_its_components(saved):
    policy = regimen.load_policy(saved)
    assert policy.algo.bound.spec.reward_components == NAMES
    assert policy.algo.config.reward == RewardConfig(weights="goal=2", task="goal")


def test_a_policy_from_before_components_is_read_with_defaults(saved):
    policy = regimen.load_policy(saved)
    meta = unseal(json.loads((saved / "config.json").read_text()), "it") | {"schema": 1}
    since = ("reward", "ratio", "bounded", "state_std", "balance_gradients", "balance_warmup", "ent_floor_coef")
    meta["algo"] = {k: v for k, v in meta["algo"].items() if k not in since}
    del meta["reward_components"]
    (saved / "config.json").write_text(json.dumps(meta))
    old = regimen.load_policy(saved)
    assert old.algo.config.reward == RewardConfig() and old.algo.bound.heads == 1
    obs = np.linspace(-1, 1, 7, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(old.act_batch(obs), policy.act_batch(obs))
