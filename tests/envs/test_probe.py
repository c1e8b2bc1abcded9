"""The probes pay what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen.envs import probe
from regimen.envs.registry import ENVS, resolve

PROBES = [name for name in ENVS if name.startswith("probe/")]
KEY = jax.random.key(0)


def play(name, *actions, key=KEY):
    """(first observation, the time steps of these actions)."""
    env = resolve(name).native
    state, first = env.reset(key)
    steps = []
    for action in actions:
        state, ts = env.step(key, state, jax.tree.map(jnp.asarray, action, is_leaf=lambda x: isinstance(x, list)))
        steps.append(ts)
    return first, steps


@pytest.mark.parametrize("name", PROBES)
def test_they_end_within_their_limit_unless_they_test_truncation(name):
    env = resolve(name).native
    action = env.action_space.sample()
    _, steps = play(name, *[action] * env.max_episode_steps)
    ends = [bool(np.all(ts.terminated)) for ts in steps]
    assert ends == [False] * (len(ends) - 1) + [name != "probe/truncation"]


def test_values_across_time():
    assert [float(ts.reward) for ts in play("probe/two_step", 0, 0)[1]] == [0.0, 1.0]
    assert [[float(ts.reward) for ts in play("probe/credit", a, 0)[1]] for a in (0, 1)] == [[0, 0], [0, 1]]
    observed = [float(ts.obs[0]) for ts in play("probe/termination", *[0] * 8)[1]]
    np.testing.assert_allclose(observed, np.arange(1, 9) / 8)


def test_actions_earn():
    assert [float(play("probe/action", a)[1][0].reward) for a in (0, 1)] == [-1.0, 1.0]
    assert float(play("probe/action_box", [0.5])[1][0].reward) == 0.0
    assert [float(play("probe/multi_discrete", a)[1][0].reward) for a in ([0, 0], [1, 0], [1, 2])] == [0, 0.5, 1]
    for key in jax.random.split(KEY, 8):
        obs, (ts,) = play("probe/match", 1, key=key)
        assert float(ts.reward) == float(obs[0])
        obs, (ts,) = play("probe/match_box", [0.5], key=key)
        assert float(ts.reward) == (0.0 if obs[0] == 1 else -1.0)
        obs, (ts,) = play("probe/observation", 0, key=key)
        assert float(ts.reward) == float(obs[0])
        obs, (ts,) = play("probe/dict", 1, key=key)
        right = obs["flags"][0] if obs["kind"] == 0 else obs["position"][0] > 0
        assert float(ts.reward) == float(right)


def test_a_choice_and_its_amount():
    for key in jax.random.split(KEY, 8):
        obs, _ = play("probe/hybrid", key=key)
        right, amount = int(np.argmax(obs[:3])), float(obs[3])
        exact = {"choice": right} | {f"amount_{i}": [amount if i == right else -amount] for i in range(3)}
        off = exact | {f"amount_{right}": [amount + 0.1]}
        wrong = exact | {"choice": (right + 1) % 3}
        pay = [float(play("probe/hybrid", action, key=key)[1][0].reward) for action in (exact, off, wrong)]
        np.testing.assert_allclose(pay, [1.0, 0.9, -1.0], atol=1e-6)


def test_what_is_masked_would_pay_most():
    env = resolve("probe/masked").native
    for key in jax.random.split(KEY, 4):
        state, obs = env.reset(key)
        pay = [float(env.step(key, state, jnp.int32(a))[1].reward) for a in range(3)]
        mask = np.asarray(env.action_mask(state))
        assert sorted(pay) == [0.0, 1.0, 10.0] and mask.sum() == 2
        assert not mask[np.argmax(pay)] and obs[np.argmax(pay)] == 1


def test_components_and_metrics():
    _, steps = play("probe/components", 1, 0, 1, 1)
    np.testing.assert_allclose([ts.reward for ts in steps], [[1, -0.25], [0, 0], [1, -0.25], [1, -0.25]])
    assert [float(ts.metrics["success"]) for ts in steps] == [1, 0, 0, 0]
    assert float(play("probe/components", 1, 1, 1, 1)[1][-1].metrics["success"]) == 1


def test_the_bait_pays_more_than_the_task():
    paid = [play("probe/misleading", a)[1][0] for a in range(3)]
    np.testing.assert_allclose([ts.reward for ts in paid], [[0, 0], [1, 0], [0, 3]])
    assert [float(ts.metrics["success"]) for ts in paid] == [0, 1, 0]


def test_environments_of_different_classes_are_different_programs():
    """Without numbers of their own and with equal static fields, only their class tells them apart."""
    envs = [probe.Observation(), probe.Masked(), probe.Match(), probe.Constant()]
    structures = [jax.tree.structure(env) for env in envs]
    assert all(a != b for i, a in enumerate(structures) for b in structures[:i])
    assert jax.tree.structure(probe.Masked()) == structures[1]
    copied = jax.tree.map(lambda x: x, probe.ActionBox(target=0.25))
    assert copied == probe.ActionBox(target=0.25)
