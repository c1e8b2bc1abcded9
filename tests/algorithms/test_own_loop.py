"""PPO in a loop of one's own: acting on single observations, and gradient steps on rows of a buffer."""

import dataclasses

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces as gym
from jax.flatten_util import ravel_pytree

from regimen import spaces
from regimen.algorithms import own_loop
from regimen.algorithms.ppo import PPO, PPORow
from regimen.config.algorithms.ppo import RewardConfig
from regimen.config.schema import NetworkConfig
from regimen.envs.adapters.gymnasium import to_gymnasium
from regimen.envs.registry import make_env
from regimen.errors import ConfigError
from regimen.sources.trajectory_buffer import TrajectoryBuffer
from regimen.types import Batch, Spec

TINY = NetworkConfig(hidden=(8,))
BOX = gym.Box(-1, 1, (3,), np.float32)
HYBRID = gym.Dict(
    [("kind", gym.Discrete(3, start=2)), ("speed", gym.Box(-2, 2, (2,), np.float32)), ("turn", gym.MultiBinary(2))]
)


def bound(observation_space, action_space, components=("total",), conditions=None, **settings):
    spec = Spec(observation_space, action_space, components, action_conditions=conditions)
    return PPO(network=TINY, **settings).bind(spec)


@pytest.fixture(scope="module")
def hybrid():
    algo = bound(BOX, HYBRID, conditions={"speed": ("kind", (1,))}, lr=0.01, balance_gradients=True, balance_warmup=0)
    state = algo.init(jax.random.key(0))
    aux = state.aux | {"balance": {"norms": jnp.array([2.0, 0.5]), "steps": jnp.int32(3)}}
    return algo, state.replace(aux=aux)


def play(env, algo, state, episodes, by_component=False, seed=0):
    """Episodes as a user would collect them; the mask is the environment's where it sends one."""
    buffer, key = TrajectoryBuffer(seed=0), jax.random.key(seed)
    for i in range(episodes):
        obs, info = env.reset(seed=seed + i)
        buffer.start_episode()
        over = terminated = False
        while not over:
            key, draw = jax.random.split(key)
            mask = info.get("action_mask")
            action, log_prob, value = algo.sample(state, obs, draw, mask)
            assert env.action_space.contains(algo.to_env(action))
            new, reward, terminated, truncated, info = env.step(algo.to_env(action))
            reward = info["reward_components"] if by_component else reward
            buffer.add_step(obs, action, reward, value, log_prob, mask)
            obs, over = new, terminated or truncated
        buffer.finish_episode(algo.value(state, obs), terminated)
    buffer.compute_returns_and_advantages(0.9, 0.95, normalize_advantage=True)
    return buffer


def hybrid_rows(algo, state, n, seed=0):
    """A buffer's rows from random observations under random masks, some of them forcing a choice."""
    buffer, rng = TrajectoryBuffer(), np.random.default_rng(seed)
    buffer.start_episode()
    for i in range(n):
        obs = rng.uniform(-1, 1, 3).astype(np.float32)
        mask = {"kind": rng.random(3) < 0.5, "turn": np.ones((2, 2), bool)}
        mask["kind"][rng.integers(3)] = True
        action, log_prob, value = algo.sample(state, obs, jax.random.key(100 * seed + i), mask)
        buffer.add_step(obs, action, rng.normal(), value, log_prob, mask)
    buffer.finish_episode(terminated=True)
    buffer.compute_returns_and_advantages(0.9, 0.9)
    return buffer.rows()


def test_sample_is_the_policy_and_value_the_critic(hybrid):
    algo, state = hybrid
    params = state.models["policy"].params
    obs, mask = np.array([0.3, -0.2, 0.9]), {"kind": np.array([1, 1, 0])}
    action, log_prob, value = algo.sample(state, obs, jax.random.key(3), mask)
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves((action, log_prob)))
    x, row = jnp.asarray(obs, jnp.float32), spaces.mask_row(HYBRID, mask)
    out = algo.bound.dist.params(algo.bound.actor.apply(params["actor"], x), params["log_std"], jnp.asarray(row))
    expected = algo.log_probs(out, action, jnp.asarray(row))[0]
    np.testing.assert_allclose(log_prob, expected, atol=1e-5)
    assert log_prob.shape == (5,) and value.shape == () and action["kind"] in (0, 1)
    np.testing.assert_allclose(value, algo.bound.critic.apply(params["critic"], x)[0], atol=1e-5)
    np.testing.assert_array_equal(value, algo.value(state, obs))
    again = algo.sample(state, obs, jax.random.key(3), mask)
    jax.tree.map(np.testing.assert_array_equal, (action, log_prob, value), again)
    seen = {int(algo.sample(state, obs, jax.random.key(i), mask)[0]["kind"]) for i in range(40)}
    assert seen == {0, 1}, "another key is another action, the masked one never"
    sent = algo.to_env(action)
    assert HYBRID.contains(sent) and sent["kind"] == action["kind"] + 2


@pytest.mark.parametrize("n", [37, 70])
def test_padding_does_not_change_the_step(hybrid, n):
    """One step on n rows is Adam on the gradient of the mean over exactly those rows, with the balance of the state."""
    algo, state = hybrid
    rows = hybrid_rows(algo, state, n)
    new, losses = algo.update_minibatch(state, rows)

    mask = spaces.mask_row(HYBRID, rows.masks, (n,))
    columns = [jnp.asarray(x)[:, None] for x in (rows.advantages, rows.returns, rows.values)]
    row = PPORow(rows.states, rows.actions, rows.log_probs, *columns, mask)
    knobs = algo.knobs(state, jnp.ones(1))
    assert knobs.balance[0] < 0.5, "the gradients of the two kinds are scaled"
    flat, unravel = ravel_pytree(state.models["policy"].params)

    def loss(flat):
        per_row, metrics = algo.loss(unravel(flat), row, knobs)
        return per_row.mean(), metrics

    grads, metrics = jax.jit(jax.grad(loss, has_aux=True))(flat)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(0.01, eps=1e-5))
    updates, _ = optimizer.update(grads, optimizer.init(flat))
    got = ravel_pytree(new.models["policy"].params)[0]
    assert float(jnp.abs(got - flat).max()) > 0.005
    np.testing.assert_allclose(got, optax.apply_updates(flat, updates), atol=2e-5)
    for name, x in metrics.items():
        assert losses[name] == pytest.approx(float(x.mean()), rel=1e-3, abs=1e-5), name
    assert losses["grad_norm"] == pytest.approx(float(optax.global_norm(grads)), rel=1e-3)
    assert abs(losses["approx_kl"]) < 1e-6 and losses["clip_fraction"] == 0, "the rows are of this very policy"
    assert int(new.clock.updates) == 1 and int(new.aux["balance"]["steps"]) == 4


def test_sizes_of_minibatches_do_not_compile_anew(hybrid):
    algo, state = hybrid
    rows = hybrid_rows(algo, state, 64)
    algo.update_minibatch(state, rows)
    before = own_loop._step._cache_size()
    for n in range(60, 65):
        state, _ = algo.update_minibatch(state, rows.map(lambda x, n=n: x[:n]))
    assert own_loop._step._cache_size() == before
    other = PPO(dataclasses.replace(algo.config, lr=0.1), algo.network)
    other.binding = algo.binding
    other.update_minibatch(state, rows)
    assert own_loop._step._cache_size() == before, "nor does another learning rate"


def test_learns_on_a_gymnasium_environment():
    """CartPole: rows of whole episodes, several epochs; what is rewarded becomes likelier."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=30)
    algo = bound(env.observation_space, env.action_space, lr=0.01)
    state = algo.init(jax.random.key(0))
    buffer = play(env, algo, state, 3)
    rows = buffer.rows()
    good = rows.map(lambda x: x[rows.advantages > 0])
    assert 0 < len(good) < len(rows) and good.actions.shape == good.log_probs.shape == (len(good),)
    losses = []
    for _ in range(4):
        for minibatch in buffer.create_minibatches(32):
            state, found = algo.update_minibatch(state, minibatch)
            losses.append(found)
    assert all(isinstance(x, float) and np.isfinite(x) for one in losses for x in one.values())
    assert np.mean([x["value_loss"] for x in losses[-2:]]) < np.mean([x["value_loss"] for x in losses[:2]])
    params = state.models["policy"].params
    out = algo.bound.dist.params(algo.bound.actor.apply(params["actor"], good.states), jnp.zeros(0))
    assert float((algo.bound.dist.log_prob(out, good.actions) - good.log_probs).mean()) > 0.01
    assert int(state.clock.updates) == len(losses)


@pytest.fixture(scope="module")
def components():
    env = to_gymnasium(make_env("probe/components"))
    algo = bound(env.observation_space, env.action_space, env.reward_components, lr=0.03)
    return env, algo, algo.init(jax.random.key(0))


def test_learns_from_rewards_by_component(components):
    """Values come by component, each has its critic, and the policy learns what their sum asks for."""
    env, algo, state = components
    value = algo.value(state, np.zeros(1, np.float32))
    assert (
        value.keys() == {"progress", "effort"}
        and value.keys() == algo.sample(state, np.zeros(1), jax.random.key(0))[2].keys()
    )
    for i in range(40):
        buffer = play(env, algo, state, 8, by_component=True, seed=100 * i)
        for _ in range(3):
            for minibatch in buffer.create_minibatches(32):
                state, _ = algo.update_minibatch(state, minibatch)
    chosen = [int(algo.sample(state, np.zeros(1), jax.random.key(i))[0]) for i in range(50)]
    assert np.mean(chosen) > 0.8
    last = algo.value(state, np.full(1, 0.75, np.float32))  # one step to go: 1 in progress, -1/4 in effort
    assert last["progress"] == pytest.approx(1.0, abs=0.2) and last["effort"] == pytest.approx(-0.25, abs=0.1)


def test_one_critic_takes_components_by_their_sum(components):
    """Rows by component for a policy with one critic head: returns and values are sums, as the advantages are."""
    env, several, state = components
    rows = play(env, several, state, 2, by_component=True).rows()
    algo = bound(env.observation_space, env.action_space, env.reward_components, reward=RewardConfig(heads=False))
    found = own_loop.rows_of(algo, rows)
    for name, column in (("target", rows.returns), ("value", rows.values), ("advantage", rows.advantages)):
        np.testing.assert_allclose(found[name][:, 0], column["progress"] + column["effort"], atol=1e-6)


def test_rows_that_do_not_fit_are_named(hybrid, components):
    algo, state = hybrid
    rows = hybrid_rows(algo, state, 6)

    def refuse(message, algo=algo, rows=rows, **changes):
        with pytest.raises(ConfigError, match=message):
            algo.update_minibatch(state, dataclasses.replace(rows, **changes))

    refuse(r"update_minibatch: the rows have no log_probs; give them to TrajectoryBuffer.add_step", log_probs=None)
    refuse(r"log_probs of shape \(6,\); as `sample` gives them it is \(6, 5\)", log_probs=rows.log_probs.sum(-1))
    refuse(r"actions of shape \(6,\); as `sample` gives them it is \{", actions=rows.actions["kind"])
    refuse(r"actions of shape \{", actions=rows.actions | {"speed": rows.actions["speed"][:, :1]})
    refuse(r"action mask: the action has no part 'kinds'", masks={"kinds": np.ones((6, 3), bool)})
    refuse(r"action mask of shape \(2,\): Discrete\(3, start=2\) has 3 options", masks={"kind": np.ones((6, 2), bool)})

    env, several, start = components
    rows = play(env, several, start, 1, by_component=True).rows()
    refuse(r"advantages must be by component \(progress, effort\), one for each", several, rows, advantages=np.ones(4))
    refuse(
        r"returns has no component 'effort'.*efort",
        several,
        rows,
        returns={"progress": np.ones(4), "efort": np.ones(4)},
    )
    with pytest.raises(ConfigError, match=r"action mask: Dict\(.*\) needs a dict of masks"):
        algo.sample(state, np.zeros(3), jax.random.key(0), mask=5)


# --- a whole update --------------------------------------------------------------------------------------------------

COMPONENTS = ("goal", "time", "shape")
ENDS = {9: True, 29: False, 63: False}  # row of an episode's last step -> whether it terminated
LEARNED = RewardConfig(weighting="learned", scale="episode_sum", warmup=1, weight_lr=0.1, task="goal")
CASES = {
    "learned": {"reward": LEARNED, "normalize_reward": True},
    "attention": {"reward": dataclasses.replace(LEARNED, attention=True, norm="zscore"), "normalize_obs": True},
    "fixed": {"reward": RewardConfig(weights="goal=1 time=0.5 shape=0.1", scale="return_std", warmup=0)},
    "one head": {"reward": RewardConfig(heads=False, weights="time=0.5"), "normalize_reward": True, "gamma": 0.9},
    "monte carlo": {"returns": "monte_carlo", "kl_coef": 0.5, "kl_target": 1e-5, "normalize_advantage": False},
    "target_kl": {"reward": LEARNED, "target_kl": 1e-4, "lr": 0.1},
}


def collected(algo, state, seed):
    """The same 64 steps as a buffer and as the batch of a source."""
    rng, buffer, rows = np.random.default_rng(seed), TrajectoryBuffer(), []
    after = rng.uniform(-1, 1, 3).astype(np.float32)
    for t in range(64):
        obs, after = after, rng.uniform(-1, 1, 3).astype(np.float32)
        action, log_prob, value = algo.sample(state, obs, jax.random.key(1000 * seed + t))
        reward = np.array([action - 0.5, -0.1, 5 * rng.normal()], np.float32)
        rows.append((obs, action, log_prob, reward, after))
        if t == 0 or t - 1 in ENDS:
            buffer.start_episode()
        buffer.add_step(obs, action, dict(zip(COMPONENTS, reward)), value, log_prob)
        if t in ENDS:
            buffer.finish_episode(algo.value(state, after), ENDS[t])
            after = rng.uniform(-1, 1, 3).astype(np.float32)
    obs, action, log_prob, reward, successor = (np.stack(x)[:, None] for x in zip(*rows))
    ends = {end: np.array([[t in ENDS and ENDS[t] == end] for t in range(64)]) for end in (True, False)}
    valid, extras = np.ones((64, 1), bool), {"log_prob": log_prob}
    return buffer, Batch(obs, action, reward, ends[True], ends[False], successor, valid, extras)


QUICK = ("learned", "target_kl")


@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.long) for c in CASES])
def test_a_loop_of_ones_own_is_the_update_of_ppo(case):
    """Three updates of three epochs: parameters, weights, statistics and the clock are those of `update` on the same
    data, with the components scaled, their weights learned, and the epochs ended by the target."""
    settings = {"lr": 0.01, "epochs": 3, "minibatch_size": 64} | CASES[case]
    algo = bound(BOX, gym.Discrete(2), COMPONENTS, **settings)
    ours = theirs = algo.init(jax.random.key(0))
    update = jax.jit(lambda algo, state, batch: algo.update(state, batch))
    stops = 0
    for i in range(3):
        buffer, batch = collected(algo, theirs, i)
        theirs, metrics = update(algo, theirs, batch)
        theirs = theirs.replace(clock=theirs.clock.advance(np.int32(64), np.int32(3)))
        ours, losses = algo.begin_update(ours, buffer), []
        for _ in range(3):
            for minibatch in buffer.create_minibatches(64):
                ours, of_minibatch = algo.update_minibatch(ours, minibatch)
                losses.append(of_minibatch)
            if of_minibatch.get("stop"):
                stops += 1
                break
        assert len(losses) == metrics["gradient_steps"]
        ours = algo.end_update(ours, buffer, losses)
        for name in ("loss", "approx_kl", "value_loss"):
            assert np.mean([x[name] for x in losses]) == pytest.approx(float(metrics[name]), rel=1e-4, abs=1e-6)
        data = [dataclasses.replace(x, key=jax.random.key_data(x.key)) for x in (ours, theirs)]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), *data)
    if "reward" in settings and settings["reward"].weighting == "learned":
        beta = ours.aux["weights"]["params"]["beta"]
        assert float(jnp.abs(beta - beta[0]).max()) > 0.05, "weights were learned"
    assert (stops > 0) == (case == "target_kl")


def test_rewards_that_an_update_cannot_split_are_named():
    algo = bound(BOX, gym.Discrete(2), COMPONENTS)
    state = algo.init(jax.random.key(0))
    buffer = TrajectoryBuffer()
    buffer.add_episode(np.zeros((2, 3)), [0, 1], [1.0, 1.0], [0.0, 0.0], log_probs=[-0.7, -0.7])
    with pytest.raises(ConfigError, match=r"must be by component \(goal, time, shape\)"):
        algo.begin_update(state, buffer)
