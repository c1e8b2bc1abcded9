"""Several policies in one environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import regimen
from regimen.algorithms import policy_map
from regimen.algorithms.base import Algorithm, Binding
from regimen.engines.chunk import finite
from regimen.errors import ConfigError
from regimen.types import Batch, Clock, Spec, State
from support import TINY, assert_same_run

AGENTS = ("lead_0", "wing_0", "wing_1")
RUN = TINY | {"rollout.steps": 64, "algo.lr": 1e-2, "algo.epochs": 4, "algo.minibatch_size": 64}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shared", {"shared": AGENTS}),
        ("independent", {a: (a,) for a in AGENTS}),
        ("role", {"lead": ("lead_0",), "wing": ("wing_0", "wing_1")}),
        ("lead=x, wing=y", {"x": ("lead_0",), "y": ("wing_0", "wing_1")}),
        ("wing=y,wing_1=x,lead_0=x", {"x": ("lead_0", "wing_1"), "y": ("wing_0",)}),
    ],
)
def test_who_has_which_policy(text, expected):
    assert {k: tuple(sorted(v)) for k, v in policy_map.parse(text, AGENTS).items()} == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lead=x", "the agent 'wing_0' has no policy; add wing_0=NAME"),
        ("lead=x,wngi=y", "'wngi' is neither an agent nor a role; did you mean 'wing"),
        ("everything", "'everything' is not an assignment"),
    ],
)
def test_bad_maps(text, message):
    with pytest.raises(ConfigError, match=message):
        policy_map.parse(text, AGENTS)


def test_one_agent_has_one_policy():
    with pytest.raises(ConfigError, match="'independent' needs an environment of several agents"):
        regimen.train("cartpole", total_steps=32, policy_map="independent", **TINY)


@pytest.fixture(scope="module")
def independent(tmp_path_factory):
    out = tmp_path_factory.mktemp("independent") / "run"
    return regimen.train("probe/team", total_steps=1024, out=str(out), policy_map="independent", **RUN)


def test_independent_policies_learn_each_their_own(independent):
    assert regimen.evaluate(independent.run_dir, episodes=32).returns.mean() > 5.5
    assert {"train/loss", "train/loss/one", "train/loss/two", "train/loss/three"} <= set(independent.history[-1])
    policy = regimen.load_policy(independent.run_dir)
    actions = policy.act({"three": np.array([1.0, 1.0]), "one": np.array([-1.0, 1 / 3])})
    assert actions == {"three": 1, "one": 0}
    with pytest.raises(ConfigError, match="policies of their own; act on a dictionary"):
        policy.act(np.zeros(2))
    with pytest.raises(ConfigError, match="no agent 'tow'; did you mean 'two'"):
        policy.act({"tow": np.zeros(2)})


def test_a_frozen_policy_acts_and_does_not_change(independent, tmp_path):
    shared = regimen.train("probe/team", total_steps=512, out=str(tmp_path / "shared"), **RUN)
    settings = {"policy_map": "one=old,two=new,three=new", "frozen": f"old={shared.run_dir}"}
    mixed = regimen.train("probe/team", total_steps=512, out=str(tmp_path / "mixed"), **RUN, **settings)
    before, after = regimen.load_policy(shared.run_dir).params, regimen.load_policy(mixed.run_dir).params
    np.testing.assert_array_equal(before["actor"]["head"]["bias"], after["old"]["actor"]["head"]["bias"])
    assert np.abs(after["new"]["actor"]["head"]["bias"] - before["actor"]["head"]["bias"]).max() > 0
    with pytest.raises(ConfigError, match="there is no policy 'odl'; did you mean 'old'"):
        regimen.train("probe/team", total_steps=64, **TINY, policy_map="one=old,two=b,three=b", frozen="odl=x")
    everything = {"policy_map": "one=a,two=a,three=a", "frozen": f"a={shared.run_dir}"}
    with pytest.raises(ConfigError, match="every policy is frozen"):
        regimen.train("probe/team", total_steps=64, **TINY, **everything)


class Tally(Algorithm):
    """An algorithm that adds up what its agents saw, and counts its updates; its loss is their mean."""

    def __init__(self):
        self.config = self.network = None
        self.binding = Binding(Spec(Box(-1.0, 1.0, (1,)), Discrete(2)))

    def init(self, key):
        return State({}, {}, key, Clock.zero(), {"sum": jnp.zeros(()), "updates": jnp.int32(0)})

    def update(self, state, batch):
        total = jnp.where(batch.valid, batch.obs, 0.0).sum()
        aux = {"sum": state.aux["sum"] + total, "updates": state.aux["updates"] + 1}
        return state.replace(aux=aux), {"loss": total / batch.valid.sum(), "gradient_steps": jnp.float32(1)}


def tallied(valid):
    """Two steps of two environments of three agents, each of which has a policy, where these act [T, E, A]."""
    spec = Spec(Box(-1.0, 1.0, (1,)), Discrete(2), agents=AGENTS)
    members = tuple(policy_map.Member(name, Tally(), (k,)) for k, name in enumerate(AGENTS))
    algo = policy_map.PolicyMap(members, policy_map.Members(spec, members))
    obs = jnp.arange(12.0).reshape(2, 6)
    valid = jnp.array(valid).reshape(2, 6)
    batch = Batch(obs, obs, obs[..., None], valid, valid, obs, valid, {}, full=False)
    state, metrics = algo.update(algo.init(jax.random.key(0)), batch)
    found = {name: (float(state.aux[f"{name}.sum"]), int(state.aux[f"{name}.updates"])) for name in AGENTS}
    return found, {k: float(x) for k, x in metrics.items()}, bool(finite(metrics, state))


def test_a_policy_whose_agents_are_absent_stays_as_it_is():
    """The first agent is never there: its policy learns nothing, the others from their own rows, and means are over
    those two."""
    there = [[[0, 1, 1], [0, 0, 1]], [[0, 1, 1], [0, 1, 1]]]
    found, metrics, fine = tallied(np.array(there, bool))
    assert found == {"lead_0": (0.0, 0), "wing_0": (1.0 + 7 + 10, 1), "wing_1": (2.0 + 5 + 8 + 11, 1)} and fine
    assert np.isnan(metrics["loss/lead_0"]) and metrics["gradient_steps"] == 1
    assert (metrics["loss/wing_0"], metrics["loss/wing_1"], metrics["loss"]) == (6.0, 6.5, 6.25)
    found, metrics, fine = tallied(np.zeros((2, 2, 3), bool))
    assert set(found.values()) == {(0.0, 0)} and fine, "nobody to learn from is no divergence"


def test_exact_resume_with_several_policies(tmp_path):
    settings = TINY | {"policy_map": "one=a,two=b,three=b", "algo.normalize_obs": True, "algo.horizon": "256 steps"}
    whole = regimen.train("probe/team", total_steps=256, out=str(tmp_path / "whole"), **settings)
    part = regimen.train("probe/team", total_steps=128, out=str(tmp_path / "part"), **settings)
    rest = regimen.resume(part.run_dir, total_steps=256)
    assert_same_run(rest.run_dir, whole.run_dir)


@pytest.mark.parametrize("algo", ["sac", "impala", "appo"])
def test_every_algorithm_with_several_agents(algo, tmp_path):
    """Under one policy and under several: runs, counts agents' steps, and keeps them through a resume."""
    settings = {k: v for k, v in TINY.items() if not (algo == "sac" and k in ("algo.minibatch_size", "algo.epochs"))}
    settings = {k: v for k, v in settings.items() if not (algo == "impala" and k == "algo.epochs")}
    if algo == "sac":
        settings |= {
            "algo.batch_size": 16,
            "algo.learning_starts": 32,
            "algo.buffer_size": 2000,
            "preset": "sac",
            "log.every": "1",
        }
    out = tmp_path / "run"
    run = regimen.train("probe/team", algo=algo, total_steps=96, out=str(out), policy_map="role", **settings)
    row = run.history[-1]
    assert row["env_steps"] == 96 and 0 < row["agent_steps"] <= 3 * 96
    assert regimen.resume(run.run_dir, total_steps=128).history[-1]["agent_steps"] > row["agent_steps"]
