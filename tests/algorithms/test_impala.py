"""IMPALA and APPO: V-trace on probes, learning from batches of an older policy, exact resume."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from jax.flatten_util import ravel_pytree

import kit
import regimen
import vtrace_oracle
from kit import WIDE, greedy, value
from regimen.algorithms.appo import APPO
from regimen.algorithms.impala import IMPALA, VTraceRow
from regimen.config.layers import build_config
from regimen.config.schema import NetworkConfig
from regimen.engines.base import Limits
from regimen.engines.native import swap
from regimen.envs import probe
from regimen.envs.registry import resolve
from regimen.errors import ConfigError
from regimen.files.run_dir import read_metrics
from regimen.returns import vtrace
from regimen.runs.build import make_engine
from regimen.schedule import Episodes, Steps
from regimen.sources.scan import ScanSource
from regimen.types import Batch, Clock, Spec
from support import TINY, assert_same_run

GAMMA = 0.9
BOTH = pytest.mark.parametrize("cls", [IMPALA, APPO], ids=["impala", "appo"])
DEFAULTS = {"lr": 1e-2, "gamma": GAMMA, "minibatch_size": 64, "ent_coef": 0.0}


bound = partial(kit.bound, num_envs=8, network=WIDE, **DEFAULTS)
learn = partial(kit.learn, num_envs=8, network=WIDE, **DEFAULTS)


EITHER = pytest.mark.parametrize(
    ("cls", "schedule"), [(IMPALA, Episodes(64)), (APPO, Steps(128))], ids=["impala-episodes", "appo-steps"]
)


@EITHER
def test_credit_reaches_the_first_of_two_steps(cls, schedule):
    algo, state = learn(cls, probe.Credit(), 150, schedule=schedule)
    assert greedy(algo, state, [0.0, 0.0]) == 1


@EITHER
def test_values_across_time(cls, schedule):
    algo, state = learn(cls, probe.TwoStep(), 150, schedule=schedule)
    assert value(algo, state, [0.0]) == pytest.approx(GAMMA, abs=0.1)
    assert value(algo, state, [1.0]) == pytest.approx(1.0, abs=0.1)


def test_truncation_bootstraps():
    algo, state = learn(IMPALA, probe.Truncation(), updates=300)
    assert value(algo, state, [0.0]) == pytest.approx(1 / (1 - GAMMA), rel=0.1)


@EITHER
def test_the_action_that_fits(cls, schedule):
    algo, state = learn(cls, probe.Match(), 150, schedule=schedule)
    assert (greedy(algo, state, [1.0]), greedy(algo, state, [-1.0])) == (1, 0)


def test_continuous_actions_and_a_normaliser():
    algo, state = learn(APPO, probe.MatchBox(), updates=200, normalize_obs=True)
    assert greedy(algo, state, [1.0]) == pytest.approx(0.5, abs=0.15)
    assert greedy(algo, state, [-1.0]) == pytest.approx(-0.5, abs=0.15)


def test_masked_actions_are_not_chosen():
    algo, state = learn(IMPALA, probe.Masked(), updates=200)
    obs = np.eye(3, dtype=np.float32)[1]
    assert greedy(algo, state, obs, obs == 0) == 2


def test_hybrid_actions():
    """The right choice, and its amount; amounts of the others do not matter and are left out of every weight."""
    env = probe.Hybrid()
    algo, state = learn(APPO, env, updates=300)
    start, obs = jax.vmap(env.reset)(jax.random.split(jax.random.key(5), 200))
    action = algo.to_env(algo.act(algo.actor_params(state), obs, (), None, greedy=True)[0])
    _, ts = jax.vmap(env.step)(jax.random.split(jax.random.key(6), 200), start, action)
    assert float(ts.reward.mean()) > 0.7


def test_the_critic_learns_the_value_that_the_clipped_weights_define():
    """Data of a uniform policy, the policy under evaluation chooses action 1 with probability p. Without correction the
    critic learns the reward of uniform actions; with weights clipped at rho it learns the value of the policy
    proportional to min(rho mu, pi) (the paper's eq. 3)."""
    p, mu = 0.9, 0.5
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, 4096)
    log_rho = np.log(np.where(action == 1, p, 1 - p) / mu)

    @jax.jit
    def target(log_rho, v, clip):
        rows = (log_rho[None], reward[None], jnp.full((1, 4096), v), jnp.zeros((1, 4096)), jnp.ones((1, 4096)))
        return vtrace(*rows, GAMMA, 1.0, clip)[0].mean()

    reward = jnp.asarray(action, jnp.float32)

    def fixed_point(log_rho, clip):
        v = 0.0
        for _ in range(100):
            v += 0.3 * (float(target(jnp.asarray(log_rho, jnp.float32), v, clip)) - v)
        return v

    def clipped_policy(clip):
        weights = np.minimum(clip * np.full(2, mu), [1 - p, p])
        return weights[1] / weights.sum()

    assert fixed_point(np.zeros(4096), 1.0) == pytest.approx(mu, abs=0.03)
    for clip in (1.0, 10.0):
        assert fixed_point(log_rho, clip) == pytest.approx(clipped_policy(clip), abs=0.03)
    assert clipped_policy(10.0) == pytest.approx(p) and clipped_policy(1.0) != pytest.approx(p, abs=0.05)


def test_correction_beats_none_when_batches_are_old():
    """All batches are of the first, uniform policy while the learner moves away from it. What the critic should say of
    the first step is gamma times the probability of the action that pays; uncorrected it says half of gamma."""
    env = probe.Credit()
    errors = {}
    for correction in ("vtrace", "none"):
        algo, state = learn(IMPALA, env, updates=64, first=True, correction=correction, rho_clip=4.0, pg_rho_clip=4.0)
        out = algo.policy(state.models["policy"].params, jnp.zeros((1, 2)), None)
        errors[correction] = abs(value(algo, state, [0.0, 0.0]) - GAMMA * float(jnp.exp(out[0, 1])))
    assert errors["vtrace"] < 0.1 and errors["none"] > 0.25, errors


@BOTH
def test_no_lag_is_on_policy(cls):
    """Of its own batch every weight is 1, and with trace_lambda 1 targets are the discounted sums, whatever the critic
    says: gamma at the first of two steps and 1 at the second."""
    env = probe.TwoStep()
    algo = bound(cls, env, trace_lambda=1.0, normalize_advantage=False)
    source = ScanSource(Steps(64), 8)
    state = algo.init(jax.random.key(0))
    carry = source.init(env, algo, jax.random.key(1))
    _, batch, *_ = jax.jit(source.next)(env, algo, carry, algo.actor_params(state), jax.random.key(2))
    rows, metrics, _ = jax.jit(algo.rows)(state, batch)
    np.testing.assert_allclose(rows.corrected, rows.behaviour, atol=1e-6)
    assert float(metrics["rho_mean"]) == pytest.approx(1.0, abs=1e-6) and float(metrics["rho_clipped"]) == 0
    right = np.where(np.asarray(batch.obs)[..., 0] == 0, GAMMA, 1.0)
    value = algo.bound.critic.apply(state.models["policy"].params["critic"], batch.obs)[..., 0]
    np.testing.assert_allclose(rows.target[..., 0], right, atol=1e-5)
    np.testing.assert_allclose(rows.advantage, right - value, atol=1e-5)


# --- formulas, on batches that no policy here has made ----------------------------------------------------------------

T, B, ACTIONS = 6, 3, 3
SPEC = Spec(Box(-1.0, 1.0, (2,)), Discrete(ACTIONS), num_envs=B)


def made(cls, spec=SPEC, **kwargs):
    """The algorithm and a state whose policy has moved away from its target copy, where it has one."""
    algo = cls(network=NetworkConfig(hidden=(8,)), **(DEFAULTS | kwargs)).bind(spec)
    state = algo.init(jax.random.key(0))
    model = state.models["policy"]
    moved = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), model.params)
    return algo, state.replace(models={"policy": model.replace(params=moved)})


def strange_batch(seed=0):
    """Episodes that terminate, are truncated and go on; actions of a policy far from ours; one column whose last two
    rows say nothing."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (T + 1, B, 2)).astype(np.float32)
    terminated, truncated, valid = np.zeros((T, B), bool), np.zeros((T, B), bool), np.ones((T, B), bool)
    terminated[2, 0] = truncated[1, 1] = truncated[3, 2] = True
    valid[4:, 2] = False
    next_obs = np.where((terminated | truncated)[..., None], rng.uniform(-1, 1, (T, B, 2)), obs[1:])
    action, reward = rng.integers(0, ACTIONS, (T, B)).astype(np.int32), rng.normal(size=(T, B, 1))
    log_prob = np.log(rng.uniform(0.05, 1.0, (T, B)))
    log_prob[~valid] = -12.0  # weights that would show in every statistic
    arrays = obs[:-1], action, reward, terminated, truncated, next_obs, valid
    return Batch(*map(jnp.asarray, arrays), {"log_prob": jnp.asarray(log_prob, jnp.float32)}, full=False)


def log_policy(algo, params, batch):
    out = algo.policy(params, batch.obs, None)  # log-probabilities of all actions
    return np.take_along_axis(np.asarray(out), np.asarray(batch.action)[..., None], -1)[..., 0]


@BOTH
@pytest.mark.parametrize("correction", ["vtrace", "none"])
def test_rows_match_numpy(cls, correction):
    """Targets, and advantages that are normalised over valid rows and then weighted; APPO's weights are of its target
    policy, its values of the current networks."""
    clips = {"trace_lambda": 0.7, "rho_clip": 1.3, "c_clip": 0.8, "pg_rho_clip": 1.7}
    algo, state = made(cls, correction=correction, **clips)
    batch, model = strange_batch(), state.models["policy"]
    rows, metrics, _ = jax.jit(algo.rows)(state, batch)
    evaluated = model.target if cls is APPO else model.params
    corrected, behaviour = log_policy(algo, evaluated, batch), np.asarray(batch.extras["log_prob"])
    np.testing.assert_allclose(rows.corrected, corrected, rtol=1e-5)
    np.testing.assert_array_equal(rows.behaviour, behaviour)
    log_rho = corrected - behaviour if correction == "vtrace" else np.zeros((T, B))

    def critic(obs):
        return np.asarray(algo.bound.critic.apply(model.params["critic"], obs)[..., 0])

    valid, done = np.asarray(batch.valid), np.asarray(batch.terminated | batch.truncated)
    next_value = np.where(batch.terminated, 0.0, critic(batch.next_obs))
    reward, value = np.asarray(batch.reward)[..., 0], critic(batch.obs)
    right = vtrace_oracle.vtrace(log_rho, reward, value, next_value, done, GAMMA, *clips.values())
    target, advantage, weight = right
    advantage = weight * (advantage - advantage[valid].mean()) / advantage[valid].std()
    np.testing.assert_allclose(np.asarray(rows.target)[valid][:, 0], target[valid], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(np.asarray(rows.advantage)[valid], advantage[valid], rtol=1e-3, atol=1e-3)
    assert float(metrics["rho_mean"]) == pytest.approx(np.exp(log_rho)[valid].mean(), rel=1e-4)
    assert float(metrics["rho_clipped"]) == pytest.approx((np.exp(log_rho) > 1.3)[valid].mean(), rel=1e-4)


@BOTH
def test_the_update_is_the_policy_gradient_of_a_bandit(cls):
    """One state, three arms, a batch of the older policy mu in exactly its proportions. The gradient of J = sum_a pi(a)
    r(a) with respect to the logits is pi (r - J); what is learned with is that, divided by the advantages' deviation,
    however far mu is from pi. Had the weight been normalised with the advantage, the update would go towards what has
    become likelier, which here is the worst arm."""
    mu, pi, reward = np.array([5, 4, 1]) / 10, np.array([0.1, 0.2, 0.7]), np.array([1.0, 3.0, 0.5])
    action = np.repeat(np.arange(3), [5, 4, 1])[None]
    clips = dict.fromkeys(("rho_clip", "pg_rho_clip", *(("is_clip",) if cls is APPO else ())), 100.0)
    algo, state = made(cls, Spec(Box(-1.0, 1.0, (1,)), Discrete(3), num_envs=10), **clips)
    params = state.models["policy"].params
    head = {"kernel": jnp.zeros_like(params["actor"]["head"]["kernel"]), "bias": jnp.log(jnp.asarray(pi, jnp.float32))}
    params = params | {"actor": params["actor"] | {"head": head}}
    state = state.replace(models={"policy": state.models["policy"].replace(params=params, target=params)})
    obs, no, yes = jnp.zeros((1, 10, 1)), jnp.zeros((1, 10), bool), jnp.ones((1, 10), bool)
    extras = {"log_prob": jnp.asarray(np.log(mu)[action], jnp.float32)}
    paid = jnp.asarray(reward[action], jnp.float32)[..., None]
    batch = Batch(obs, jnp.asarray(action), paid, yes, no, obs, yes, extras)

    @jax.jit
    def gradient(state, batch):
        rows = jax.tree.map(lambda x: x[0], algo.rows(state, batch)[0])

        def policy_loss(bias):
            moved = params | {"actor": params["actor"] | {"head": head | {"bias": bias}}}
            return algo.loss(moved, rows, 0.0)[1]["policy_loss"].mean()

        return -jax.grad(policy_loss)(head["bias"])

    deviation = np.sqrt(mu @ (reward - mu @ reward) ** 2)
    np.testing.assert_allclose(gradient(state, batch), pi * (reward - pi @ reward) / deviation, atol=1e-4)


@BOTH
def test_loss_matches_numpy(cls):
    """Policy loss + vf_coef (V - v)^2 / 2 - ent_coef H, and the KL from the policy that acted."""
    algo, state = made(cls, vf_coef=0.3)
    batch, params = strange_batch(), state.models["policy"].params
    rng = np.random.default_rng(3)
    behaviour, corrected, advantage, target = rng.normal(size=(4, T, B)).astype(np.float32)
    row = VTraceRow(batch.obs, batch.action, behaviour, corrected, advantage, target[..., None], None)
    loss, metrics = jax.jit(algo.loss)(params, row, 0.2)
    log_prob, every = log_policy(algo, params, batch), np.asarray(algo.policy(params, batch.obs, None))
    policy_loss = -log_prob * advantage
    if cls is APPO:
        policy_loss = np.asarray(algo.policy_loss(jnp.asarray(log_prob), row)[0])  # has a test of its own
    value = np.asarray(algo.bound.critic.apply(params["critic"], batch.obs)[..., 0])
    value_loss, entropy = 0.5 * (value - target) ** 2, -(np.exp(every) * every).sum(-1)
    np.testing.assert_allclose(metrics["policy_loss"], policy_loss, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, policy_loss + 0.3 * value_loss - 0.2 * entropy, rtol=1e-4, atol=1e-5)
    ratio = np.exp(log_prob - behaviour)
    np.testing.assert_allclose(metrics["approx_kl"], ratio - 1 - np.log(ratio), rtol=1e-3, atol=1e-4)


@BOTH
def test_the_first_step_is_a_clipped_one_of_adam(cls):
    """Three quarters through a linear schedule of the rate and a cosine of the entropy bonus, on one minibatch with the
    mean gradient of all valid rows."""
    options = {"epochs": 1} if cls is APPO else {}
    limit = 0.05
    rates = {"lr": 1e-2, "lr_end": 2e-3, "lr_schedule": "linear", "ent_schedule": "cosine", "horizon": "400 steps"}
    algo, state = made(cls, ent_coef=0.4, ent_end=0.2, max_grad_norm=limit, **rates, **options)
    state = state.replace(clock=state.clock.advance(300, 0))
    batch, params = strange_batch(), state.models["policy"].params
    new, metrics = jax.jit(algo.update)(state, batch)
    lr, ent_coef = 1e-2 - 0.75 * 8e-3, 0.2 + 0.2 * (1 + np.cos(0.75 * np.pi)) / 2
    assert float(metrics["lr"]) == pytest.approx(lr) and float(metrics["ent_coef"]) == pytest.approx(ent_coef)
    assert float(metrics["gradient_steps"]) == 1

    @jax.jit
    def gradient(params):
        rows = algo.rows(state, batch)[0]
        return jax.grad(lambda p: (algo.loss(p, rows, ent_coef)[0] * batch.valid).sum() / batch.valid.sum())(params)

    grads = ravel_pytree(gradient(params))[0]
    norm = float(np.linalg.norm(grads))
    assert norm > limit and float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-3)
    clipped = np.asarray(grads) * limit / norm
    step = lr * clipped / (np.abs(clipped) + 1e-5)
    after, before = ravel_pytree(new.models["policy"].params)[0], ravel_pytree(params)[0]
    np.testing.assert_allclose(after - before, -step, rtol=1e-2, atol=2e-5)


def test_appo_passes_several_times_over_minibatches():
    """16 valid rows in minibatches of at most 5 are four a pass."""
    algo, state = made(APPO, minibatch_size=5, epochs=3)
    new, metrics = jax.jit(algo.update)(state, strange_batch())
    assert float(metrics["gradient_steps"]) == 12 == int(new.models["policy"].opt_state[1].count)


# --- acting with an older policy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [1, 3])
def test_the_policy_that_acts_is_as_old_as_it_says(lag):
    """Policy i is the number i."""
    history, acted, ages = {"policy": jnp.zeros(lag)}, [], []
    for i in range(8):
        old, history, age = swap(history, {"policy": jnp.float32(i)}, Clock.zero().replace(updates=jnp.int32(i)), lag)
        acted.append(int(old["policy"]))
        ages.append(int(age))
    assert acted == [max(i - lag, 0) for i in range(8)]
    assert ages == [i - policy for i, policy in enumerate(acted)]


def test_a_lagged_run_equals_a_loop_that_keeps_every_policy():
    """The engine's own lag against a list of all policies: update i acts with policy i - 2, and learns from the
    current one."""
    lag, updates = 2, 5
    config = build_config("probe/match", algo="impala", overrides=RUN | {"rollout.lag": lag, "total_steps": 1000})
    handle = resolve("probe/match")
    engine = make_engine(config, handle, [7], lambda: False)
    algo, source, key = engine.algo, engine.source, jax.random.key(7)
    engine.advance([Limits(updates)])
    state = algo.init(jax.random.fold_in(key, 0))
    carry = source.init(handle.native, algo, jax.random.fold_in(key, 1))
    collect, update, policies = jax.jit(source.next), jax.jit(algo.update), []
    for i in range(updates):
        policies.append(algo.actor_params(state))
        acting = policies[max(i - lag, 0)]
        carry, batch, rows, steps = collect(handle.native, algo, carry, acting, jax.random.fold_in(state.key, i))
        state = update(state, batch)[0].replace(clock=state.clock.advance(steps, rows.count))
    found, right = engine.actor_params(0), algo.actor_params(state)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5), found, right)


def test_appo_clips_around_the_target_policy():
    env = probe.Match()
    algo = bound(APPO, env, clip_eps=0.2, is_clip=2.0)
    rng = np.random.default_rng(0)
    log_prob, behaviour, corrected, advantage = rng.normal(size=(4, 64)).astype(np.float32)
    rows = [None, None, behaviour, corrected, advantage, None, None]
    loss, metrics = algo.policy_loss(jnp.asarray(log_prob), VTraceRow(*rows))
    ratio = np.minimum(np.exp(behaviour - corrected), 2.0) * np.exp(log_prob - behaviour)
    expected = -np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["clip_fraction"], (np.abs(ratio - 1) > 0.2).astype(float))


def test_target_policy_follows_every_so_many_updates():
    env = probe.Match()
    algo = bound(APPO, env, target_every=3)
    source, state = ScanSource(Steps(32), 8), algo.init(jax.random.key(0))
    carry, same = source.init(env, algo, jax.random.key(1)), []
    update, collect = jax.jit(algo.update), jax.jit(source.next)
    for i in range(6):
        _, batch, *_ = collect(env, algo, carry, algo.actor_params(state), jax.random.key(i))
        state, _ = update(state, batch)
        state = state.replace(clock=state.clock.advance(32, 0))
        model = state.models["policy"]
        same.append(bool(jnp.all(model.params["actor"]["head"]["bias"] == model.target["actor"]["head"]["bias"])))
    assert same == [False, False, True, False, False, True]


RUN = {k: v for k, v in TINY.items() if k != "algo.epochs"} | {"rollout.lag": 3, "algo.lr_schedule": "linear"}


@pytest.mark.parametrize("name", ["impala", "appo"])
def test_exact_resume_with_lag(name, tmp_path):
    settings = RUN | {"algo.normalize_obs": True, "algo.horizon": "512 steps"}
    whole = regimen.train("cartpole", algo=name, total_steps=512, out=str(tmp_path / "whole"), **settings)
    part = regimen.train("cartpole", algo=name, total_steps=256, out=str(tmp_path / "part"), **settings)
    rest = regimen.resume(part.run_dir, total_steps=512)
    assert_same_run(rest.run_dir, whole.run_dir)


def test_lag_is_logged(tmp_path):
    result = regimen.train("cartpole", algo="impala", total_steps=256, out=str(tmp_path / "run"), **RUN)
    rows = [row for row in read_metrics(result.run_dir) if "train/lag_mean" in row]
    assert [row["train/lag_max"] for row in rows] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert all(row["train/lag_min"] <= row["train/lag_mean"] <= row["train/lag_max"] for row in rows)
    with pytest.raises(ConfigError, match=r"rollout\.lag: made up on native environments only"):
        regimen.train("gym:CartPole-v1", algo="impala", total_steps=64, out=str(tmp_path / "host"), **RUN)


def test_a_lag_beyond_the_largest_is_refused():
    assert build_config("cartpole", algo="impala", overrides={"rollout.lag": 16}).rollout.lag == 16
    with pytest.raises(ConfigError, match=r"rollout\.lag: 17 is more than algo\.max_lag 16: every batch"):
        build_config("cartpole", algo="impala", overrides={"rollout.lag": 17})


def test_seeds_equal_single_runs(tmp_path):
    several = regimen.train("cartpole", algo="impala", seeds=2, total_steps=192, out=str(tmp_path / "two"), **RUN)
    alone = regimen.train("cartpole", algo="impala", seed=1, total_steps=192, out=str(tmp_path / "one"), **RUN)
    a, b = regimen.load_policy(several.runs[1].run_dir), regimen.load_policy(alone.run_dir)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5), a.params, b.params)


def test_floats_are_data():
    """Another rate or clip is the same program."""
    algo = bound(IMPALA, probe.Match())
    other = dataclasses.replace(algo.config, lr=0.5, rho_clip=3.0)
    changed = IMPALA(other, algo.network)
    changed.binding = algo.binding
    assert jax.tree.structure(algo) == jax.tree.structure(changed)
    assert jax.tree.leaves(algo) != jax.tree.leaves(changed)
