"""IMPALA and APPO: V-trace on probes, learning from batches of an older policy, exact resume."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import regimen
from regimen.algorithms.appo import APPO
from regimen.algorithms.impala import IMPALA, Sample
from regimen.config import NetworkConfig
from regimen.envs import probe
from regimen.errors import ConfigError
from regimen.normalize import RunningStats
from regimen.returns import vtrace
from regimen.schedule import Episodes, Steps
from regimen.settings import build_config
from regimen.sources import lagged
from regimen.sources.scan import ScanSource
from regimen.tracking.files import read_metrics
from regimen.types import Spec
from support import TINY, assert_same_run

GAMMA = 0.9
BOTH = pytest.mark.parametrize("cls", [IMPALA, APPO], ids=["impala", "appo"])
DEFAULTS = {"lr": 1e-2, "gamma": GAMMA, "minibatch_size": 64, "ent_coef": 0.0}


def bound(cls, env, num_envs=8, network=None, **kwargs):
    network = network or NetworkConfig(hidden=(16,))
    spaces = env.observation_space, env.action_space, env.reward_components
    spec = Spec(*spaces, num_envs=num_envs, action_conditions=getattr(env, "action_conditions", None))
    return cls(network=network, **(DEFAULTS | kwargs)).bind(spec)


def learn(cls, env, updates=150, lag=0, schedule=None, num_envs=8, **kwargs):
    """The algorithm and its state after some updates on `env`, acting with a policy `lag` updates old."""
    algo = bound(cls, env, num_envs, **kwargs)
    source = ScanSource(schedule or Steps(128), num_envs)
    state, carry = algo.init(jax.random.key(0)), source.init(env, algo, jax.random.key(1))
    history = lagged.start(algo.actor_params(state), max(lag, 1))

    @jax.jit
    def run(state, carry, history):
        def body(_, x):
            state, carry, history = x
            params, updates = algo.actor_params(state), state.clock.updates
            if lag:
                params, history, _ = lagged.swap(history, params, updates, lag)
            carry, batch, rows, _ = source.next(env, algo, carry, params, jax.random.fold_in(state.key, updates))
            state, _ = algo.update(state, batch)
            return state.replace(clock=state.clock.advance(128, rows.count)), carry, history

        return jax.lax.fori_loop(0, updates, body, (state, carry, history))

    return algo, run(state, carry, history)[0]


def greedy(algo, state, obs, mask=None):
    mask = None if mask is None else jnp.asarray(mask)[None]
    params, obs = algo.actor_params(state), jnp.asarray(obs, jnp.float32)[None]
    action = algo.act(params, obs, algo.initial_carry((1,)), None, mask=mask, greedy=True)[0]
    return np.asarray(algo.to_env(action))[0]


def value(algo, state, obs):
    x = algo.features(jnp.asarray(obs, jnp.float32)[None], state.norm.get("obs"))
    return float(algo.bound.critic.apply(state.models["policy"].params["critic"], x)[0, 0])


EITHER = pytest.mark.parametrize(
    ("cls", "schedule"), [(IMPALA, Episodes(64)), (APPO, Steps(128))], ids=["impala-episodes", "appo-steps"]
)


@EITHER
def test_credit_reaches_the_first_of_two_steps(cls, schedule):
    algo, state = learn(cls, probe.Credit(), schedule=schedule)
    assert greedy(algo, state, [0.0, 0.0]) == 1


@EITHER
def test_values_across_time(cls, schedule):
    algo, state = learn(cls, probe.TwoStep(), schedule=schedule)
    assert value(algo, state, [0.0]) == pytest.approx(GAMMA, abs=0.1)
    assert value(algo, state, [1.0]) == pytest.approx(1.0, abs=0.1)


def test_truncation_bootstraps():
    algo, state = learn(IMPALA, probe.Truncation(), updates=300)
    assert value(algo, state, [0.0]) == pytest.approx(1 / (1 - GAMMA), rel=0.1)


@EITHER
def test_the_action_that_fits(cls, schedule):
    algo, state = learn(cls, probe.Match(), schedule=schedule)
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
    env, lag = probe.Credit(), 64
    errors = {}
    for correction in ("vtrace", "none"):
        algo, state = learn(IMPALA, env, updates=lag, lag=lag, correction=correction, rho_clip=4.0, pg_rho_clip=4.0)
        out = algo.policy(state.models["policy"].params, jnp.zeros((1, 2)), None)
        errors[correction] = abs(value(algo, state, [0.0, 0.0]) - GAMMA * float(jnp.exp(out[0, 1])))
    assert errors["vtrace"] < 0.1 and errors["none"] > 0.25, errors


@BOTH
def test_no_lag_is_on_policy(cls):
    """Of its own batch every weight is 1, whatever the clips; with trace_lambda 1 targets are discounted sums."""
    env = probe.TwoStep()
    algo = bound(cls, env, trace_lambda=0.7, normalize_advantage=False)
    source = ScanSource(Steps(64), 8)
    state = algo.init(jax.random.key(0))
    carry = source.init(env, algo, jax.random.key(1))
    _, batch, *_ = jax.jit(source.next)(env, algo, carry, algo.actor_params(state), jax.random.key(2))
    rows, metrics = jax.jit(algo.rows)(state, batch)
    np.testing.assert_allclose(rows.corrected, rows.behaviour, atol=1e-6)
    assert float(metrics["rho_mean"]) == pytest.approx(1.0, abs=1e-6)
    uncorrected = bound(cls, env, trace_lambda=0.7, normalize_advantage=False, correction="none")
    plain, _ = jax.jit(uncorrected.rows)(state, batch)
    np.testing.assert_allclose(rows.target, plain.target, atol=1e-5)
    np.testing.assert_allclose(rows.advantage, plain.advantage, atol=1e-5)


def test_appo_clips_around_the_target_policy():
    env = probe.Match()
    algo = bound(APPO, env, clip_eps=0.2, is_clip=2.0)
    rng = np.random.default_rng(0)
    log_prob, behaviour, corrected, advantage = rng.normal(size=(4, 64)).astype(np.float32)
    rows = [None, None, behaviour, corrected, advantage, None, None]
    loss, metrics = algo.policy_loss(jnp.asarray(log_prob), Sample(*rows))
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


def test_lag_is_logged_and_bounded(tmp_path):
    result = regimen.train("cartpole", algo="impala", total_steps=256, out=str(tmp_path / "run"), **RUN)
    rows = [row for row in read_metrics(result.run_dir) if "train/lag_mean" in row]
    assert [row["train/lag_max"] for row in rows] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert all(row["train/lag_min"] <= row["train/lag_mean"] <= row["train/lag_max"] for row in rows)
    with pytest.raises(ConfigError, match=r"rollout\.lag: 20 is more than algo\.max_lag 16: every batch"):
        build_config("cartpole", algo="impala", overrides={"rollout.lag": 20})
    with pytest.raises(ConfigError, match=r"rollout\.lag: made up on native environments only"):
        regimen.train("gym:CartPole-v1", algo="impala", total_steps=64, out=str(tmp_path / "host"), **RUN)


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
    changed.parts = algo.parts
    assert jax.tree.structure(algo) == jax.tree.structure(changed)
    assert jax.tree.leaves(algo) != jax.tree.leaves(changed)


def test_statistics_of_weights_count_valid_rows_only():
    """Rows past an episode's end hold zeros, whose weight is 1 and says nothing."""
    stats = RunningStats.of(jnp.asarray([[2.0], [1.0]]), jnp.asarray([[True], [False]]))
    assert float(stats.mean) == 2.0
