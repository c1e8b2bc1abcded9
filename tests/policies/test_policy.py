"""A saved policy is the one that was trained: the same actions for the same observations, whatever it acts on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym

import kit
from regimen import spaces
from regimen.algorithms.policy_map import PolicyMap
from regimen.algorithms.ppo import PPO
from regimen.config.schema import NetworkConfig
from regimen.envs import probe
from regimen.envs.registry import resolve
from regimen.errors import ConfigError, EnvError
from regimen.policies.evaluate import evaluate_policy, make_evaluator
from regimen.policies.export import export_policy
from regimen.policies.policy import Policy, read_policy, save_policy
from regimen.types import Spec

pytestmark = pytest.mark.usefixtures("compilation_cache")


def decided(params, key=2):
    """Parameters whose outputs differ from each other: those of a new network are all near 0."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(key), len(leaves))
    return jax.tree.unflatten(structure, [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves)])


def saved(path, algo):
    """The algorithm's policy, and the same from a file."""
    params = decided(algo.actor_params(algo.init(jax.random.key(0))))
    save_policy(path, "ppo", algo, params, {"env": "platform", "env_args": {}})
    return params, read_policy(path)


def test_a_hybrid_policy_through_its_file(tmp_path):
    """The parts of platform's action are choice, run, hop, leap: not in the order of the alphabet."""
    handle = resolve("platform")
    spec = Spec(handle.observation_space, handle.action_space, action_conditions=handle.action_conditions)
    algo = PPO(network=NetworkConfig(hidden=(8,))).bind(spec)
    params, policy = saved(tmp_path / "policy", algo)
    obs = np.random.default_rng(0).uniform(size=(16, 9)).astype(np.float32)
    wanted = algo.to_env(algo.act(params, obs, algo.initial_carry((16,)), None, greedy=True)[0])
    assert len(set(np.asarray(wanted["choice"]).tolist())) > 1
    exported = read_policy(export_policy(tmp_path / "policy", tmp_path / "exported"))
    policy.save(str(tmp_path / "again"))  # a name will do
    for one in (policy, exported, read_policy(tmp_path / "again")):
        assert list(one.action_space.spaces) == ["choice", "run", "hop", "leap"]
        found = one.act_batch(obs)
        for part in wanted:
            np.testing.assert_allclose(found[part], wanted[part], rtol=1e-3, err_msg=part)
        single = one.act(obs[3])
        assert single["choice"] == wanted["choice"][3]
        np.testing.assert_allclose(single["leap"], wanted["leap"][3], rtol=1e-3)
    ours = make_evaluator(handle, algo)(params, 2, 5).returns
    np.testing.assert_allclose(evaluate_policy(handle, policy, 5, 2).returns, ours, rtol=1e-3)


def test_a_policy_of_a_set_acts_on_other_numbers_of_entities(tmp_path):
    """Of eight rows, of which three are there, it makes what it makes of those three; and a run is evaluated with more
    entities than it was trained with. A policy that flattens its rows is refused."""
    small, large = (probe.SetProbe(capacity=n) for n in (3, 8))
    algo = kit.bound(PPO, small, network=NetworkConfig(hidden=(8,), encoder_size=4), normalize_obs=True)
    _, policy = saved(tmp_path / "policy", algo)
    rows = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    padded = np.full((8, 2), 7.0, np.float32)
    padded[[1, 4, 6]] = rows
    there = np.isin(np.arange(8), [1, 4, 6]).astype(np.int8)
    more = policy.for_entities(large.observation_space, ())
    alone, among = (
        one.algo.embed(one.params, one.algo.features(obs, one.params["norm"]))
        for one, obs in (
            (policy, {"entities": rows, "entities_mask": np.ones(3, np.int8)}),
            (more, {"entities": padded, "entities_mask": there}),
        )
    )
    np.testing.assert_allclose(alone, among, rtol=1e-5, atol=1e-6)
    evaluation = evaluate_policy(resolve("probe/set", {"capacity": 8}), policy, 3, 0)
    assert len(evaluation.returns) == 3
    flat = kit.bound(PPO, small, network=NetworkConfig(hidden=(8,), encoder="mlp"))
    _, policy = saved(tmp_path / "flat", flat)
    with pytest.raises(EnvError, match="does not fit"):
        evaluate_policy(resolve("probe/set", {"capacity": 8}), policy, 3, 0)


# --- several agents --------------------------------------------------------------------------------------------------

SEEN = gym.Dict([("place", gym.Box(-1, 1, (2,), np.float32)), ("load", gym.Discrete(3))])
AGENTS = ("one", "two", "three")


def view(x, load=0):
    return {"place": np.array([x, -x], np.float32), "load": load}


def row(views):
    return {k: np.stack([v[k] for v in views]) for k in ("place", "load")}


@pytest.mark.parametrize("policies", [{"shared": AGENTS}, {"a": ("one", "three"), "b": ("two",)}], ids=["one", "two"])
def test_acting_by_agent_where_observations_are_dictionaries(policies, tmp_path):
    """A dictionary of agents is not mistaken for an observation, nor the other way round."""
    spec = Spec(SEEN, gym.Discrete(4), agents=AGENTS)
    make = PPO(network=NetworkConfig(hidden=(8,)))
    algo = make.bind(spec) if len(policies) == 1 else PolicyMap.of(make, spec, policies, {})
    params, policy = saved(tmp_path / "policy", algo)
    views = {"one": view(0.9, 2), "two": view(-0.4, 1), "three": view(0.1)}
    together = algo.act(params, row(list(views.values())), algo.initial_carry((3,)), None, greedy=True)[0]
    wanted = dict(zip(AGENTS, np.asarray(algo.to_env(together)).tolist()))
    assert len(set(wanted.values())) > 1
    assert policy.act(views) == wanted
    assert policy.act({"three": views["three"], "one": views["one"]}) == {n: wanted[n] for n in ("three", "one")}
    forbidden = np.arange(4) != wanted["two"]
    assert policy.act(views, mask={"two": forbidden})["two"] != wanted["two"]
    if len(policies) == 1:
        assert policy.act(views["two"]) == wanted["two"], "one observation"
        assert policy.act({"stranger": views["two"]}) == {"stranger": wanted["two"]}
    else:
        with pytest.raises(ConfigError, match="act on a dictionary of one, two, three"):
            policy.act(views["two"])
        with pytest.raises(ConfigError, match="no agent 'tow'"):
            policy.act({"tow": views["two"]})


def test_a_recurrent_policy_remembers_until_it_is_reset():
    spec = Spec(gym.Box(-1, 1, (2,), np.float32), gym.Box(-1, 1, (1,), np.float32))
    algo = PPO(network=NetworkConfig(hidden=(8,), memory="gru")).bind(spec)
    params = decided(algo.actor_params(algo.init(jax.random.key(0))))
    policy, obs = Policy(algo, params, {}), np.array([[0.4, -0.2]], np.float32)
    carry, wanted = algo.initial_carry((1,)), []
    for _ in range(3):
        action, carry, _ = algo.act(params, obs, carry, None, greedy=True)
        wanted.append(float(algo.to_env(action)[0, 0]))
    assert len(set(wanted)) == 3
    for _ in range(2):
        policy.reset()
        np.testing.assert_allclose([policy.act(obs[0])[0] for _ in range(3)], wanted, rtol=1e-3)
    with pytest.raises(ConfigError, match="2 observations after another number of them"):
        policy.act_batch(np.zeros((2, 2), np.float32))


def test_predict_is_act_with_the_memory_handed_over():
    """As Stable-Baselines3 has it: (action, state), of one observation or of several, beginning anew where told."""
    spec = Spec(gym.Box(-1, 1, (2,), np.float32), gym.Box(-1, 1, (1,), np.float32))
    algo = PPO(network=NetworkConfig(hidden=(8,), memory="gru")).bind(spec)
    policy = Policy(algo, decided(algo.actor_params(algo.init(jax.random.key(0)))), {})
    obs = np.array([0.4, -0.2], np.float32)
    wanted = [policy.act(obs)[0] for _ in range(2)]
    remembered = np.asarray(policy.memory)
    first, state = policy.predict(obs, deterministic=True)
    second, later = policy.predict(obs, state)
    np.testing.assert_allclose([first[0], second[0]], wanted, rtol=1e-5)
    pair, _ = policy.predict(np.stack([obs, obs]), np.repeat(np.asarray(state), 2, 0), episode_start=np.array([1, 0]))
    np.testing.assert_allclose(pair[:, 0], wanted, rtol=1e-5)
    assert np.array_equal(policy.memory, remembered) and not np.array_equal(state, later)


def test_predict_and_act_draw_unless_they_are_deterministic(tmp_path):
    spec = Spec(gym.Box(-1, 1, (4,)), gym.Discrete(2))
    algo = PPO(network=NetworkConfig(hidden=(8,))).bind(spec)
    policy = Policy(algo, algo.actor_params(algo.init(jax.random.key(0))), {"env": "<b>"})
    rows = np.zeros((64, 4))
    assert len(set(policy.predict(rows)[0].tolist())) == 1 and policy.predict(rows)[1] is None
    assert set(policy.predict(rows, deterministic=False)[0].tolist()) == {0, 1}
    assert {policy.act(rows[0], deterministic=False) for _ in range(30)} == {0, 1}
    assert policy.predict(rows[0])[0] == policy.act(rows[0], deterministic=True)
    assert "&lt;b&gt;" in policy._repr_html_() and "Discrete(2)" in policy._repr_html_()


def test_a_frozen_policy_must_have_the_same_order_of_parts():
    turned = gym.Dict([("load", SEEN["load"]), ("place", SEEN["place"])])
    assert not spaces.same(turned, SEEN)
    x = view(0.5, 2)
    assert not jnp.array_equal(spaces.flatten(turned, x), spaces.flatten(SEEN, x)), "it would see something else"


def test_an_observation_of_another_shape_is_named(tmp_path):
    spec = Spec(gym.Box(-1, 1, (4,)), gym.Discrete(2))
    _, policy = saved(tmp_path / "policy", PPO(network=NetworkConfig(hidden=(8,))).bind(spec))
    for act, obs, words in (
        (policy.act, np.zeros(3), r"shape \(3,\); this policy expects \(4,\)"),
        (policy.act, np.zeros((1, 4)), r"shape \(1, 4\); this policy expects \(4,\)"),
        (policy.act_batch, np.zeros(4), r"shape \(4,\); this policy expects \(N, 4\)"),
        (policy.act, "abc", "not an observation of Box"),
        (policy.act, None, r"shape \(\); this policy expects \(4,\)"),
    ):
        with pytest.raises(EnvError, match=words):
            act(obs)
    assert policy.act(np.zeros(4)) in (0, 1)
    assert policy.act_batch(np.zeros((3, 4))).shape == (3,)
