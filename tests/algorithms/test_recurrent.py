"""A recurrent policy: what it carries, what it forgets, and that it learns what needs memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
import regimen
from regimen import rewards
from regimen.algorithms.appo import APPO
from regimen.algorithms.impala import IMPALA
from regimen.algorithms.ppo import PPO
from regimen.config.algorithms.ppo import RewardConfig
from regimen.config.schema import NetworkConfig
from regimen.envs import probe
from regimen.envs.classic.cartpole import CartPole, CartPolePositions
from regimen.errors import ConfigError
from regimen.schedule import Episodes, Steps
from regimen.sources.scan import ScanSource
from regimen.types import Spec
from support import TINY, assert_same_run

GRU = NetworkConfig(memory="gru", memory_size=8, hidden=(8,))


def rollout(env, schedule, cls=PPO, **settings):
    algo = kit.bound(cls, env, network=GRU, **settings)
    return algo, *kit.rollout(algo, env, schedule)[:3]


@pytest.fixture(scope="module")
def steps():
    return rollout(CartPolePositions(), Steps(4 * 40), sequence_length=8, minibatch_size=10**6, epochs=1)


def test_memory_goes_on_within_an_episode_and_ends_with_it(steps):
    algo, state, carry, batch = steps
    x = algo.features(batch.obs, None)
    h = algo.bound.core.apply(state.models["policy"].params["core"], x, batch.extras["carry"])
    done = np.asarray(batch.terminated | batch.truncated)
    assert done.any() and not done.all()
    after = np.concatenate([batch.extras["carry"][1:], np.asarray(carry.memory)[None]])
    np.testing.assert_allclose(after, np.where(done[..., None], 0.0, h), atol=1e-6)
    assert not np.asarray(batch.extras["carry"][0]).any()


@pytest.mark.parametrize("length", [7, 8])
def test_sequences_see_what_the_policy_saw(steps, length):
    """Whether or not their length divides the rollout: every ratio of the first epoch is 1, every row counts once, and
    the mean over sequences is the mean over rows."""
    algo, state, _, batch = steps
    algo = PPO(algo.config, algo.network, sequence_length=length).bind(algo.bound.spec)

    @jax.jit
    def first_epoch(state, batch):
        params = state.models["policy"].params
        rows, _ = algo.advantages(state, batch, batch.reward, jnp.ones(1))
        packed = algo.pack(rows, batch)
        row = packed.take(jnp.arange(packed.matrix.shape[0]))
        seen = {}

        def loss(params, rows):
            out = algo.policy(params, rows.obs, rows.mask)
            seen["ratio"] = jnp.exp(algo.log_probs(out, rows.action, rows.mask)[0] - rows.log_prob)
            return rows.target[:, 0], {}

        per_sequence, _ = algo.row_loss(loss, params, row)
        return seen["ratio"], row["weight"], per_sequence.sum() / packed.count, rows.target.mean()

    ratio, weight, mean, expected = first_epoch(state, batch)
    inside = np.asarray(weight).ravel() > 0
    np.testing.assert_allclose(np.asarray(ratio)[inside], 1.0, atol=1e-5)
    assert inside.sum() == batch.valid.size
    assert float(mean) == pytest.approx(float(expected), rel=1e-4)


def test_values_of_true_successors(steps):
    algo, state, _, batch = steps
    params = state.models["policy"].params
    value, next_value = jax.jit(lambda: algo.values(params, state, batch, algo.encode(params, state, batch)))()
    core = algo.bound.core
    h = core.apply(params["core"], algo.features(batch.obs, None), batch.extras["carry"])
    after = core.apply(params["core"], algo.features(batch.next_obs, None), h)
    expected = np.where(batch.terminated[..., None], 0.0, algo.bound.critic.apply(params["critic"], after))
    np.testing.assert_allclose(next_value, expected, atol=1e-5)
    np.testing.assert_allclose(value, algo.bound.critic.apply(params["critic"], h), atol=1e-6)


def test_gradients_reach_back_through_the_sequence():
    """The last action of Recall depends on the first observation, three steps before."""
    algo, state, _, batch = rollout(probe.Recall(), Steps(4 * 8), sequence_length=4)

    def log_prob(obs):
        fresh = jnp.zeros(obs.shape[:2], bool)
        params = state.models["policy"].params
        h = algo.bound.core.unroll(params["core"], obs, jnp.zeros((4, 8)), fresh)
        return algo.policy(params, h[-1], None)[:, 1].sum()

    obs = algo.features(batch.obs, None)[:4]
    assert float(jnp.abs(jax.grad(log_prob)(obs)[0]).max()) > 0


@pytest.mark.parametrize("cls", [PPO, IMPALA, APPO], ids=["ppo", "impala", "appo"])
def test_weights_of_components_learn_from_sequences(cls):
    """d by a backward pass for each component through memory that is unrolled step by step, padding left out: the same
    step of the weights. 20 rows in sequences of 8."""
    settings = {"sequence_length": 8, "reward": RewardConfig(weighting="learned", task="task", weight_lr=0.1, warmup=0)}
    algo, state, _, batch = rollout(probe.Misleading(), Steps(6 * 20), cls, **settings)
    model = state.models["policy"]
    moved = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), model.params)
    state = state.replace(models={"policy": model.replace(params=moved)})
    components, pieces = algo.bound.components, {}
    real = components.weights

    def spy(c, state, packed, rows, *rest):
        pieces.update(packed=packed, rows=rows)
        return real(c, state, packed, rows, *rest)

    components.weights = spy
    after = algo.prepare(state, batch)[0] if cls is PPO else algo.rows(state, batch)[2]
    key = jax.random.fold_in(jax.random.fold_in(state.key, ~state.clock.updates), 1)
    drawn = rewards.two_halves(pieces["packed"], key)
    flat, unravel = jax.flatten_util.ravel_pytree(moved)

    def gradient(sequences, advantage):
        """Of the mean of A log pi over rows that count; `advantage` [C, L]."""
        rows, weight = sequences["rows"], sequences["weight"]
        centred = advantage - (weight * advantage).sum() / weight.sum()

        def surrogate(flat):
            params, h, total = unravel(flat), sequences["carry"], 0.0
            for t in range(weight.shape[1]):
                x = algo.embed(params, jax.tree.map(lambda a, t=t: a[:, t], rows.obs))
                h = algo.bound.core.apply(params["core"], x, jnp.where(sequences["fresh"][:, t, None], 0.0, h))
                out = algo.policy(params, h, None)
                log_prob = algo.joint_log_prob(algo.log_probs(out, rows.action[:, t], None)[0])
                importance = 1.0 if cls is PPO else rows.weight[:, t]
                total = total + (weight[:, t] * importance * centred[:, t] * log_prob).sum()
            return total / weight.sum()

        return jax.grad(surrogate)(flat)

    train, held = drawn
    assert float(train["weight"].min()) == 0 or float(held["weight"].min()) == 0
    task = jax.jit(gradient)(held, held["rows"].task)
    d = jnp.stack([jax.jit(gradient)(train, train["rows"].advantage[..., k]) @ task for k in range(2)])
    assert float(jnp.abs(d).max()) > 1e-6
    magnitude, covariance = rewards.moments(pieces["rows"].advantage, batch.valid)
    c = algo.config.reward
    expected = components.weighting.update(state.aux["weights"], magnitude, d, covariance, c.weight_lr, c.weight_reg)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-5), after.aux["weights"], expected)
    assert float(jnp.abs(after.aux["weights"]["params"]["beta"] - state.aux["weights"]["params"]["beta"]).max()) > 0.01


def test_no_sequence_is_in_both_halves():
    algo, _, _, batch = rollout(probe.Misleading(), Steps(4 * 32), sequence_length=8)
    packed = algo.pack({"number": jnp.arange(batch.valid.size).reshape(batch.valid.shape)}, batch)
    train, held = ({*np.asarray(x["rows"]["number"]).ravel()} for x in rewards.two_halves(packed, jax.random.key(1)))
    assert not train & held and len(train) == len(held) == batch.valid.size // 2


def recall(cls, network, updates=120, **settings):
    """The mean return of an algorithm that was trained on a task of memory."""
    settings = {"lr": 1e-2, "ent_coef": 0.01, "minibatch_size": 256, "sequence_length": 4, **settings}
    env, schedule = probe.Recall(), Episodes(64)
    algo, state = kit.learn(cls, env, updates, schedule=schedule, num_envs=32, network=network, **settings)
    source = ScanSource(schedule, 32)
    return float(jax.jit(source.next)(env, algo, None, algo.actor_params(state), jax.random.key(2))[2].reward.mean())


def test_only_memory_recalls():
    feed_forward = NetworkConfig(hidden=(16,))
    assert recall(IMPALA, GRU) > 0.8
    assert abs(recall(PPO, feed_forward, updates=60)) < 0.5


RUN = TINY | {"network.memory": "gru", "network.memory_size": 8, "algo.sequence_length": 4, "algo.normalize_obs": True}


def test_exact_resume(tmp_path):
    """In the middle of episodes: what the policy remembers is in the checkpoint."""
    settings = RUN | {"algo.horizon": "512 steps"}
    whole = regimen.train("cartpole/positions", total_steps=512, out=str(tmp_path / "whole"), **settings)
    part = regimen.train("cartpole/positions", total_steps=256, out=str(tmp_path / "part"), **settings)
    rest = regimen.resume(part.run_dir, total_steps=512)
    assert_same_run(rest.run_dir, whole.run_dir)


def test_host_environments_and_a_policy_on_its_own(tmp_path):
    result = regimen.train("gym:CartPole-v1", total_steps=128, out=str(tmp_path / "run"), **RUN)
    policy, obs = result.policy, np.array([0.01, 0.02, -0.03, 0.1], np.float32)
    first, _ = policy.act(obs), policy.act(obs)
    assert np.asarray(policy.memory).shape == (1, 8) and np.asarray(policy.memory).any()
    remembered = np.asarray(policy.memory)
    policy.reset()
    assert policy.act(obs) == first and not np.array_equal(policy.memory, remembered)
    with pytest.raises(ConfigError, match=r"3 observations after another number.*reset\(\)"):
        policy.act_batch(np.stack([obs] * 3))
    assert regimen.evaluate(result.run_dir, episodes=3).returns.shape == (3,)


def test_what_cannot_be_combined():
    with pytest.raises(ConfigError, match=r"network\.memory: the graph network has none"):
        PPO(network=NetworkConfig(name="graph", memory="gru")).bind(Spec(*spaces_of(CartPole())))


def spaces_of(env):
    return env.observation_space, env.action_space


def test_positions_are_what_is_seen():
    env, full = CartPolePositions(), CartPole()
    state, obs = env.reset(jax.random.key(0))
    assert obs.shape == (2,) == env.observation_space.shape and full.observation_space.shape == (4,)
    new, ts = env.step(jax.random.key(1), state, jnp.int32(1))
    np.testing.assert_array_equal(ts.obs, new[::2])
