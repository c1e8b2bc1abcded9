"""Workflows in network defence: what complies, what is paid for it, and which orders it can tell apart."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_defense_rollouts import rollout

from regimen.cli import main as cli
from regimen.domains.network_defense import compliance, network
from regimen.domains.network_defense.compliance import Fixes
from regimen.domains.network_defense.env import NetworkDefense
from regimen.domains.network_defense.workflow import Workflow, all_workflows, classes_for
from regimen.envs.registry import resolve

JUDGE = jax.jit(compliance.judge)
TYPE_OF = dict(zip(network.HOSTS, (network.TYPES[t] for t in network.TYPE_OF)))


def bit(*names):
    return sum(1 << network.HOSTS.index(n) for n in names)


def judged(order, compromised, host):
    values = JUDGE(Workflow.parse(order).index, bit("User0", *compromised), network.HOSTS.index(host))
    return tuple(map(bool, values))  # published, repaired, useful


def test_observation_ends_with_the_order():
    env = NetworkDefense(workflow="operational_focus")
    state, obs = jax.jit(env.reset)(jax.random.key(0))
    assert obs.shape == (77,)
    np.testing.assert_array_equal(obs[52:], Workflow.parse("S,H,D,E,U").one_hot())
    _, ts = jax.jit(env.step)(jax.random.key(1), state, 0)
    np.testing.assert_array_equal(ts.obs[52:], obs[52:])


def test_all_draws_every_order():
    env = NetworkDefense(workflow="all")
    drawn = jax.vmap(lambda k: env.reset(k)[0].workflow)(jax.random.split(jax.random.key(0), 6000))
    counts = np.bincount(drawn, minlength=120)
    assert counts.size == 120
    assert 20 < counts.min() <= counts.max() < 90  # 50 each on average


def test_what_complies():
    # Type level: any enterprise host counts while one is compromised, also a clean one.
    assert judged("E,D,S,H,U", ["Enterprise1"], "Enterprise1") == (True, True, True)
    assert judged("E,D,S,H,U", ["Enterprise1"], "Enterprise0") == (True, False, False)
    # Only the first compromised type; User0 makes `user` compromised in the published definition.
    assert judged("E,D,S,H,U", ["Enterprise1", "User2"], "User2") == (False, False, True)
    assert judged("U,D,E,S,H", ["Enterprise1"], "Enterprise1") == (False, True, True)
    assert judged("U,D,E,S,H", ["Enterprise1"], "User3") == (True, False, False)
    assert judged("U,D,E,S,H", [], "User0") == (True, False, False)
    assert judged("D,S,E,H,U", ["Op_Host1", "Enterprise0"], "Enterprise0") == (True, True, True)
    assert judged("D,S,H,E,U", ["Op_Host1", "Enterprise0"], "Enterprise0") == (False, False, True)


def test_against_the_definitions():
    """Every combination on states that occur, from sets of names."""
    out = rollout("some", red="meander", mode="fixed")
    sessions = np.unique(out["before"].root | out["before"].visible | out["before"].hidden)[::40]
    orders = all_workflows()[::17]
    for order, held, host in itertools.product(orders, sessions.tolist(), network.HOSTS):
        hosts = {h for i, h in enumerate(network.HOSTS) if held >> i & 1}
        others = hosts - {"User0"}
        published, repaired, useful = map(bool, JUDGE(order.index, held, network.HOSTS.index(host)))
        assert published == (TYPE_OF[host] == order.first({TYPE_OF[h] for h in hosts}))
        assert useful == (host in others)
        assert repaired == (host in others and TYPE_OF[host] == order.first({TYPE_OF[h] for h in others}))


@pytest.mark.parametrize(("red", "published", "repaired"), [("b_line", 5, 6), ("meander", 16, 24)])
def test_classes_by_brute_force(red, published, repaired):
    """Which of the 120 orders judge any fix differently in any state that occurred in a thousand episodes."""
    out = rollout("some", red=red, mode="fixed")
    held = np.unique(out["before"].root | out["before"].visible | out["before"].hidden)
    every = jax.vmap(jax.vmap(jax.vmap(compliance.judge, (None, None, 0)), (None, 0, None)), (0, None, None))
    verdicts = every(jnp.arange(120), jnp.asarray(held), jnp.arange(network.N))  # [120, states, 13]
    for definition, expected, values in zip(compliance.DEFINITIONS, (published, repaired), verdicts):
        groups = {}
        for index, row in enumerate(np.asarray(values).reshape(120, -1)):
            groups.setdefault(row.tobytes(), set()).add(index)
        derived = [{w.index for w in c.members} for c in classes_for(red, definition)]
        assert len(groups) == expected
        assert sorted(map(sorted, groups.values())) == sorted(map(sorted, derived))


def test_tally_counts_fixes_only():
    out = rollout("random", 50, red="meander", workflow="all", alignment="published")
    action, metrics = out["action"], out["metrics"]
    fixes = ((action >= 15) & (action < 28)) | (action >= 132)
    np.testing.assert_array_equal(metrics["fixes"], fixes.cumsum(1))
    assert (metrics["fixes_repaired"] <= metrics["fixes"]).all()
    some = metrics["fixes"] > 0
    assert (metrics["compliance"][~some] == 0.5).all()
    share = metrics["compliant_fixes"][some] / metrics["fixes"][some]
    np.testing.assert_allclose(metrics["compliance_published"][some], share, rtol=1e-6)
    assert (metrics["counted"] == (metrics["fixes"] >= 1)).all()  # useless fixes too: they are violations


def test_published_alignment_telescopes():
    out = rollout("random", 50, red="meander", workflow="all", alignment="published")
    paid, final = out["reward"][..., 4].sum(1), out["metrics"]["compliance"][:, -1]
    fixes = out["metrics"]["fixes"][:, -1]
    assert (fixes > 0).any()
    np.testing.assert_allclose(paid[fixes > 0], 30 * final[fixes > 0], atol=1e-3)
    asleep = rollout("sleep", 3, red="meander", workflow="all", alignment="published")["reward"][..., 4]
    assert (asleep[:, :-1] == 0).all()
    np.testing.assert_allclose(asleep[:, -1], -6)  # a fifth of the weight, at the end


def test_potential_telescopes_to_the_end():
    """Its discounted sum depends on where the episode ends, and on nothing before."""
    gamma = 0.9
    fields = {
        "red": "b_line",
        "workflow": "all",
        "compliance": "repaired",
        "alignment": "potential",
        "alignment_gamma": gamma,
    }
    out = rollout("random", 50, 60, **fields, alignment_weight=7.0)
    paid = (out["reward"][..., 4] * gamma ** np.arange(60)).sum(1)
    tally = out["after"].tally
    final = tally.repaired[:, -1] / np.maximum(tally.fixes[:, -1], 1)
    np.testing.assert_allclose(paid, 7 * gamma**60 * final, atol=1e-4)


def test_alignment_leaves_the_task_alone():
    plain = rollout("random", 50, red="meander", workflow="all")
    paid = rollout("random", 50, red="meander", workflow="all", alignment="published")
    np.testing.assert_array_equal(plain["obs"], paid["obs"])
    np.testing.assert_array_equal(plain["reward"], paid["reward"][..., :4])
    np.testing.assert_allclose(plain["metrics"]["env_return"], plain["reward"].sum(-1), atol=1e-4)


def test_a_share_without_fixes():
    none = Fixes.zero()
    one = none.replace(fixes=jnp.int32(3), repaired=jnp.int32(1))
    assert (float(none.share("published")), float(none.share("published", 0.0))) == (0.5, 0.0)
    assert float(one.share("repaired")) == pytest.approx(1 / 3)


def test_components_and_metrics_by_setting():
    plain = resolve("network_defense")
    assert plain.reward_components == ("confidentiality", "availability", "restore", "invalid")
    assert "compliance" not in plain.metric_reductions
    aligned = resolve("network_defense", {"workflow": "D,S,E,H,U", "alignment": "potential"})
    assert aligned.reward_components[-1] == "alignment"
    assert {"compliance_published", "compliance_repaired", "workflow", "env_return"} <= set(aligned.metric_reductions)


def test_envs_shows_the_classes(capsys):
    assert cli.main(["envs", "network_defense", "--env.red", "meander"]) == 0
    out = capsys.readouterr().out
    assert "published, against meander: 16 of 120 orders" in out
    assert "repaired, against meander: 24 of 120 orders" in out
    assert "132+host Restore" in out
