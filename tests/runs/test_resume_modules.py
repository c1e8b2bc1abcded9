"""Exact resume with every module of PPO on at once: a graph policy with hybrid actions, component rewards, balance,
floors, schedules and normalisers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import regimen
from regimen.envs.protocol import NativeEnv, native_env
from regimen.files.run_dir import read_metrics
from regimen.types import TimeStep
from support import UPDATE, assert_same_run, final_state, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")

SLOTS, NAMES = 16, ("gain", "cost", "luck")


@native_env
class Colony(NativeEnv):
    """Some of 16 nodes are alive; each pushes by an amount of its own, or rests. Components differ in scale."""

    max_episode_steps: int = 6
    reward_components = NAMES
    action_conditions = {"amount": ("choice", (0,))}  # noqa: RUF012

    @property
    def observation_space(self):
        parts = {
            "nodes": spaces.Box(-3.0, 3.0, (SLOTS, 2), np.float32),
            "mask": spaces.Box(0.0, 1.0, (SLOTS,), np.float32),
            "edges": spaces.Box(0, 2**16 - 1, (SLOTS, 1), np.int32),
            "graph": spaces.Box(-1.0, 1.0, (1,), np.float32),
        }
        return spaces.Dict(parts)

    @property
    def action_space(self):
        amount = spaces.Box(-1.0, 1.0, (SLOTS, 1), np.float32)
        return spaces.Dict({"choice": spaces.MultiDiscrete([2] * SLOTS), "amount": amount})

    def action_mask(self, state):
        alive = state["alive"]
        return {"choice": jnp.stack([alive, jnp.ones(SLOTS, bool)], axis=-1).reshape(-1)}

    def observe(self, state):
        alive = state["alive"].astype(jnp.float32)
        ring = 1 << ((jnp.arange(SLOTS) + 1) % SLOTS)
        return {
            "nodes": jnp.stack([state["x"], jnp.ones(SLOTS)], axis=-1) * alive[:, None],
            "mask": alive,
            "edges": jnp.where(state["alive"], ring, 0)[:, None].astype(jnp.int32),
            "graph": alive.mean(keepdims=True),
        }

    def reset(self, key):
        where, who = jax.random.split(key)
        x = jnp.clip(jax.random.normal(where, (SLOTS,)), -3.0, 3.0)
        state = {"x": x, "alive": jax.random.bernoulli(who, 0.5, (SLOTS,)).at[0].set(True)}
        return state, self.observe(state)

    def step(self, key, state, action):
        dies, luck, end = jax.random.split(key, 3)
        pushes = jnp.where((action["choice"] == 0) & state["alive"], action["amount"][:, 0], 0.0)
        reward = jnp.stack([pushes @ state["x"], -20 * jnp.mean(pushes**2), 0.05 * jax.random.normal(luck)])
        state = state | {"alive": (state["alive"] & jax.random.bernoulli(dies, 0.9, (SLOTS,))).at[0].set(True)}
        return state, TimeStep(obs=self.observe(state), reward=reward, terminated=jax.random.bernoulli(end, 0.1))


EVERYTHING = {
    "env": "test_resume_modules:Colony",
    "network.name": "graph",
    "algo.ratio": "per_element",
    "algo.state_std": True,
    "algo.balance_gradients": True,
    "algo.balance_warmup": 2,
    "algo.ent_floor_discrete": 1.0,  # more than two choices can have: always short of it
    "algo.ent_floor_continuous": 0.6,
    "algo.ent_discrete": 2.0,
    "algo.ent_schedule": "linear",
    "algo.lr_schedule": "cosine",
    "algo.kl_coef": 0.5,
    "algo.normalize_reward": True,
    "algo.reward.scale": "episode_sum",
    "algo.reward.warmup": 4,
    "algo.reward.norm": "zscore",
    "algo.reward.weighting": "learned",
    "algo.reward.weights": "gain=2 luck=0.5",
    "algo.reward.task": "gain,cost",
    "algo.reward.weight_reg": 0.1,
    "algo.horizon": f"{8 * UPDATE} steps",
    "log.every": "3",
    "checkpoint.every": "2",
    "checkpoint.keep": 10,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """8 updates in one go."""
    out = tmp_path_factory.mktemp("modules") / "whole"
    tiny(out, updates=8, **EVERYTHING)
    return out


@pytest.mark.long
def test_interrupted_and_resumed_is_uninterrupted(whole, tmp_path):
    """Parameters, optimisers, weights, statistics and rows, bit for bit."""
    half = tmp_path / "half"
    tiny(half, updates=4, **EVERYTHING)
    second = regimen.resume(half, total_steps=8 * UPDATE)
    assert second.summary["updates"] == 8
    assert_same_run(whole, half)


def test_every_module_has_moved(whole):
    """Or the comparison above would prove little."""
    (first, _), (last, run) = (final_state(whole, str(step)) for step in (2 * UPDATE, 8 * UPDATE))
    moved = {key.removeprefix("state/") for key in last if not np.array_equal(first[key], last[key])}
    assert {
        "norm/components/count",
        "norm/components/mean",
        "norm/components/m2",
        "norm/return/m2",
        "aux/return",
        "aux/sum",
        "aux/kl_coef",
        "aux/balance/norms",
        "aux/weights/params/beta",
        "aux/weights/params/attention",
        "aux/weights/params/bias",
        "aux/weights/opt/0/mu/beta",
    } <= moved
    assert float(last["state/norm/components/count"]) == run["counters"]["episodes"] > 20
    rows = [row for row in read_metrics(whole) if "train/loss" in row]
    weights = np.array([[row[f"train/weight/{name}"] for name in NAMES] for row in rows])
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-4)
    assert (weights[0] != weights[-1]).all()
    assert rows[-1]["train/entropy_shortfall"] > 0 and rows[-1]["train/balance_discrete"] != 1.0
    assert rows[0]["train/ent_coef"] > rows[-1]["train/ent_coef"]
    named = {f"train/explained_variance/{name}" for name in NAMES} | {f"rollout/reward/{name}_min" for name in NAMES}
    assert named | {"train/entropy/choice", "train/entropy/amount", "train/head_grad_discrete"} <= rows[-1].keys()
