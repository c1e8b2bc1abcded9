"""Network defence: its rules one by one, and as a whole against a plain second implementation."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from network_defense_oracle import HOSTS, Oracle
from network_defense_rollouts import rollout

from regimen.cli import main as cli
from regimen.domains.network_defense import network as net
from regimen.domains.network_defense import red as reds
from regimen.domains.network_defense.env import NetworkDefense
from regimen.envs.adapters.gymnasium import to_gymnasium
from regimen.envs.check import check_env
from regimen.envs.registry import resolve
from regimen.errors import ConfigError

ENV = NetworkDefense()
MEANDER = NetworkDefense(red="meander")
KEY = jax.random.key(0)
STEP = jax.jit(lambda env, key, state, action: env.step(key, state, action))
START = jax.jit(lambda env, key: env.reset(key))(ENV, KEY)[0]
MANY = jax.jit(jax.vmap(lambda env, key, state, action: env.step(key, state, action)[0], (None, 0, None, None)))


def bit(*names):
    return sum(1 << net.HOSTS.index(n) for n in names)


def action(verb, host):
    groups = ("Analyse", "Remove", *net.DECOYS, "Restore")
    return 2 + 13 * groups.index(verb) + net.HOSTS.index(host)


def at(stage, foothold=0, **changes):
    """A state of b_line's script; `decoys` and `ports` by host."""
    for name in ("decoys", "ports"):
        values = np.zeros(net.N, np.int32)
        for host, value in changes.pop(name, {}).items():
            values[net.HOSTS.index(host)] = value
        changes[name] = jnp.asarray(values)
    red = START.red.replace(stage=jnp.int32(stage), foothold=jnp.int32(foothold))
    flags = {k: jnp.bool_(v) if isinstance(v, bool) else jnp.int32(v) for k, v in changes.items() if np.isscalar(v)}
    return START.replace(red=red, **(changes | flags))


def bits_of(state, host):
    i = net.HOSTS.index(host)
    return tuple(int(x) >> i & 1 for x in (state.scans, state.exploits, state.unsure, state.believed))


# --- against the plain implementation --------------------------------------------------------------------------------


@pytest.mark.parametrize("red", ["b_line", "meander"])
@pytest.mark.parametrize(("policy", "mode"), [("random", "faithful"), ("some", "fixed")])
def test_equals_a_plain_implementation(red, policy, mode):
    out = rollout(policy, red=red, mode=mode)
    for e in range(12):
        oracle = Oracle(red, mode, int(out["before"].red.foothold[e, 0]))
        for t in range(100):
            reward = oracle.step(int(out["action"][e, t]), [int(w) for w in out["words"][e, t]])
            after = jax.tree.map(lambda x, i=(e, t): x[i], out["after"])
            target = oracle.last[1]
            index = reds.KINDS.index(oracle.last[0]), (HOSTS if target in HOSTS else list(net.SUBNETS)).index(target)
            assert (int(after.red_kind), int(after.red_target), bool(after.red_success)) == (*index, oracle.last[2])
            assert reward == pytest.approx(float(out["reward"][e, t].sum()), abs=1e-5)
            assert oracle.observation() == out["obs"][e, t].astype(int).tolist()
            held = bit(*[h for h in HOSTS if oracle.sessions[h]])
            assert held == int(after.root | after.visible | after.hidden)
            assert [int(d).bit_count() for d in after.decoys] == [len(set(oracle.decoys[h])) for h in HOSTS]
            assert oracle.running == bool(after.service)


# --- Blue ------------------------------------------------------------------------------------------------------------

ACCEPTED = {
    "Apache": "Defender Enterprise0 Op_Host0 Op_Host1 Op_Host2 Op_Server0 User0 User1 User2",
    "Femitter": "Enterprise1 Enterprise2 User2",
    "HarakaSMPT": "Defender Enterprise0 Op_Host0 Op_Host1 Op_Host2 Op_Server0",
    "Smss": "User0 User1",
    "SSHD": "User2 User3",
    "Svchost": "User0 User1",
    "Tomcat": "Defender Enterprise0 Op_Host0 Op_Host1 Op_Host2 Op_Server0 User0 User1 User2",
    "Vsftpd": "Defender Enterprise0 Op_Host0 Op_Host1 Op_Host2 Op_Server0 User3 User4",
}


def test_accepted_decoys():
    """All 104 on a fresh network, as enumerated with the reference."""
    after = jax.jit(jax.vmap(lambda a: ENV.step(KEY, START, a)))(jnp.arange(28, 132))
    deployed = np.asarray(after[0].decoys)
    found = {name: [] for name in net.DECOYS}
    for i, row in enumerate(deployed):
        name, host = net.DECOYS[i // 13], net.HOSTS[i % 13]
        if row.any():
            assert row[i % 13] == 1 << (i // 13)
            found[name].append(host)
    assert {name: " ".join(hosts) for name, hosts in found.items()} == ACCEPTED
    assert not np.asarray(after[1].reward).any()  # a refused one costs nothing either


def test_decoys_need_their_port():
    apache, vsftpd = 1 << net.DECOYS.index("Apache"), 1 << net.DECOYS.index("Vsftpd")
    host = net.HOSTS.index("Enterprise0")
    for first, verb, expected in ((apache, "Vsftpd", apache | vsftpd), (vsftpd, "Apache", vsftpd)):
        state = STEP(ENV, KEY, at(0, decoys={"Enterprise0": first}), action(verb, "Enterprise0"))[0]
        assert int(state.decoys[host]) == expected  # Vsftpd opens 80 and asks for 21


def test_restore_clears_a_host():
    held = bit("Enterprise1", "User0")
    decoys = {"Enterprise1": 2, "Enterprise2": 2}
    state = at(0, root=held, visible=held, hidden=held, files=held, unsure=held, believed=held, decoys=decoys)
    state, ts = STEP(ENV, KEY, state, action("Restore", "Enterprise1"))
    left = bit("User0")
    for name in ("root", "visible", "hidden", "files", "unsure", "believed"):
        assert int(getattr(state, name)) == left, name
    assert state.decoys.tolist() == [0, 0, 0, 2, *[0] * 9]
    assert ts.reward.tolist() == [0, 0, -1, 0]
    state, _ = STEP(ENV, KEY, state, action("Restore", "User0"))
    assert int(state.root) == left  # Red's own session stays
    assert int(state.visible | state.files | state.believed) == 0


def test_remove_ends_only_reported_user_sessions():
    hosts = ("Enterprise0", "Enterprise1", "Enterprise2")
    for name, ended in (("root", False), ("hidden", False), ("visible", True)):
        state = at(0, **{name: bit(*hosts), "believed": bit("Enterprise0", "Enterprise1"), "files": bit(*hosts)})
        state, ts = STEP(ENV, KEY, state, action("Remove", "Enterprise1"))
        assert (int(getattr(state, name)) == bit("Enterprise0", "Enterprise2")) == ended
        assert bits_of(state, "Enterprise1") == (0, 0, 1, 0)  # Unknown
        assert bits_of(state, "Enterprise0") == (0, 0, 0, 1)
        assert int(state.files) == bit(*hosts)
        assert float(ts.reward[2]) == 0
    clean, _ = STEP(ENV, KEY, at(0), action("Remove", "Enterprise1"))
    assert bits_of(clean, "Enterprise1") == (0, 0, 0, 0)  # No stays No


def test_analyse_finds_dropped_files():
    state = at(0, files=bit("User1"), believed=bit("User2"))
    found, _ = STEP(ENV, KEY, state, action("Analyse", "User1"))
    assert bits_of(found, "User1") == (0, 0, 1, 1)
    missed, _ = STEP(ENV, KEY, state, action("Analyse", "User2"))
    assert bits_of(missed, "User2") == (0, 0, 0, 1)


def test_analyse_has_the_last_word():
    """A file of before and a noticed exploit in one step: Privileged."""
    state = at(5, foothold=2, files=bit("Enterprise0"), ports={"Enterprise0": net.ports(22)})
    state, _ = STEP(ENV, KEY, state, action("Analyse", "Enterprise0"))
    assert bits_of(state, "Enterprise0") == (1, 1, 1, 1)


def test_sleep_and_monitor_do_nothing():
    state = at(0, visible=bit("User1"), believed=bit("User1"), decoys={"User1": 1})
    sleep, monitor = (STEP(ENV, KEY, state, a)[0].replace(blue_action=jnp.int32(0)) for a in (0, 1))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), sleep, monitor)))
    assert (int(sleep.visible), int(sleep.believed)) == (bit("User1"), bit("User1"))


# --- Red -------------------------------------------------------------------------------------------------------------


def test_jump_table():
    """Each stage fails where Red has nothing to build on, and leads where the script says."""
    fails = {2, 3, 5, 6, 9, 10, 12, 13, 14}
    for stage in range(15):
        state, _ = STEP(ENV, KEY, at(stage), 0)
        success = stage not in fails
        assert bool(state.red_success) == success
        back = [0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13]
        ahead = 1 if stage == 11 else min(stage + 1, 14)  # there is no way to the server yet: its scan finds nothing
        assert int(state.red.stage) == (ahead if success else back[stage])
    for stage in (12, 14):  # with sessions they succeed; 14 stays
        held = {"root": bit("Enterprise2", "Op_Server0"), "ports": {"Op_Server0": net.ports(22)}}
        state, _ = STEP(ENV, KEY, at(stage, **held), 0)
        assert int(state.red.stage) == min(stage + 1, 14)


def test_exploit_choice():
    """The preferred one with 0.75, each of the others alike; what comes of it on Enterprise2."""
    n = 8000
    state = at(9, ports={"Enterprise2": int(net.OPEN[3])})
    after = MANY(ENV, jax.random.split(KEY, n), state, jnp.int32(0))
    here = bit("Enterprise2")
    root, seen, unseen = (int(((np.asarray(x) & here) > 0).sum()) for x in (after.root, after.visible, after.hidden))
    shares = {"root": 1 / 16, "seen": 0.95 * 13 / 16, "unseen": 0.05 * 13 / 16 + 1 / 16, "failed": 1 / 16}
    counts = {"root": root, "seen": seen, "unseen": unseen, "failed": n - root - seen - unseen}
    for name, p in shares.items():
        assert abs(counts[name] - n * p) < 5 * np.sqrt(n * p * (1 - p)), name
    quiet = (np.asarray(after.exploits) == 0) & (np.asarray(after.red_success))
    assert abs(quiet.sum() - n * 0.05 * 14 / 16) < 5 * np.sqrt(n * 0.05)
    assert ((np.asarray(after.files) & here) > 0).mean() == pytest.approx(14 / 16, abs=0.02)  # SSH drops none


def test_decoys_catch_exploits():
    femitter = {"Enterprise2": 1 << net.DECOYS.index("Femitter")}
    found = {"Enterprise2": int(net.OPEN[3]) | net.ports(21)}
    keys = jax.random.split(KEY, 8000)
    caught = MANY(ENV, keys, at(9, ports=found, decoys=femitter), jnp.int32(0))
    failed = ~np.asarray(caught.red_success)
    assert failed.mean() == pytest.approx(0.75 + 0.05, abs=0.03)  # the decoy, or EternalBlue, one of five others
    shown = np.asarray(caught.scans)[failed] == bit("Enterprise2")
    assert shown.mean() == pytest.approx(0.75 / 0.8, abs=0.02)  # EternalBlue finds no service of its kind: no sign
    assert not np.asarray(caught.exploits)[failed].any()
    stale = MANY(ENV, keys, at(9, ports=found), jnp.int32(0))  # the decoy is gone: nothing answers
    silent = np.asarray(stale.scans) == 0
    assert silent.mean() == pytest.approx(0.75 + 0.05, abs=0.03)
    assert not np.asarray(stale.red_success)[silent].any()
    unaware = MANY(ENV, keys, at(9, ports={"Enterprise2": int(net.OPEN[3])}, decoys=femitter), jnp.int32(0))
    assert np.asarray(unaware.red_success).mean() == pytest.approx(15 / 16, abs=0.02)  # decoys after a scan do nothing


@pytest.mark.parametrize(
    ("stage", "host", "decoys", "stored", "verb", "expected"),
    [
        (8, "Enterprise2", [], [], "Femitter", (1, 0, 0, 0)),  # a scan of eight ports
        (4, "Enterprise0", [], [], "Apache", (0, 0, 0, 0)),  # of two: the new decoy's own entry hides it
        (4, "Enterprise0", ["Tomcat"], [], "Apache", (1, 0, 0, 0)),  # of three
        (4, "Enterprise0", ["Apache"], [], "Vsftpd", (0, 0, 0, 0)),  # of two, one of them with two decoys
        (4, "Enterprise0", [], [], "Femitter", (1, 0, 0, 0)),  # it was refused: there is no entry
        (4, "Enterprise0", ["Apache"], [], "Sleep", (1, 0, 0, 0)),  # a decoy of an earlier step
        (5, "Enterprise0", ["Apache"], [80], "Sleep", (1, 0, 0, 0)),  # a decoy is hit: two connections
        (5, "Enterprise0", ["Apache"], [80], "Tomcat", (1, 1, 0, 1)),  # and a third entry
        (5, "Enterprise0", [], [80], "Apache", (1, 1, 0, 1)),  # the new one itself
        (5, "Enterprise0", [], [80], "Tomcat", (0, 0, 0, 0)),  # nothing listens where Red exploits
        (5, "Enterprise0", [], [22], "Tomcat", (1, 1, 0, 1)),  # SSH is loud anyway
        (5, "Enterprise0", ["Apache"], [80], "Restore", (0, 0, 0, 0)),
    ],
)
def test_a_decoy_of_the_same_step_is_one_more_entry(stage, host, decoys, stored, verb, expected):
    state = at(
        stage,
        foothold=2,
        decoys={host: sum(1 << net.DECOYS.index(d) for d in decoys)},
        ports={host: net.ports(*stored)},
    )
    state, _ = STEP(ENV, KEY, state, 0 if verb == "Sleep" else action(verb, host))
    assert bits_of(state, host) == expected


def test_a_fresh_decoy_hides_an_unreported_callback():
    unseen = NetworkDefense(detection=0.0)
    for verb, expected in (("Svchost", (1, 0, 0, 0)), ("Femitter", (0, 0, 0, 0))):  # refused, accepted
        state, _ = STEP(unseen, KEY, at(9, ports={"Enterprise2": net.ports(443)}), action(verb, "Enterprise2"))
        assert int(state.hidden) == bit("Enterprise2")
        assert bits_of(state, "Enterprise2") == expected
    told, _ = STEP(NetworkDefense(detection=1.0), KEY, at(9, ports={"Enterprise2": net.ports(443)}), 43 + 1)
    assert bits_of(told, "Enterprise2") == (1, 1, 0, 1)


@pytest.mark.parametrize(("stage", "foothold", "host", "port"), [(9, 0, "Enterprise2", 139), (2, 2, "User3", 3389)])
def test_a_service_of_another_kind_shows_nothing(stage, foothold, host, port):
    state, _ = STEP(ENV, KEY, at(stage, foothold=foothold, ports={host: net.ports(port)}), 0)
    assert not bool(state.red_success)
    assert bits_of(state, host) == (0, 0, 0, 0)


def test_escalation_drops_a_file_once():
    """Red needs no tool where it is root already, as it is on User0 from the start."""
    for level, dropped in (("hidden", True), ("visible", True), ("root", False)):
        state, _ = STEP(ENV, KEY, at(10, **{level: bit("Enterprise2")}), 0)
        assert bool(state.red_success)
        assert int(state.files) == dropped * bit("Enterprise2")


def test_the_defender_has_three_open_ports():
    """A scan of it is never hidden."""
    red = START.red.replace(addresses=jnp.int32(bit("Defender")), scanned=jnp.int32(bit("User0")), swept=jnp.int32(7))
    state, _ = STEP(MEANDER, KEY, at(0).replace(red=red), action("Apache", "Defender"))
    assert bits_of(state, "Defender") == (1, 0, 0, 0)
    assert net.options(int(state.ports[0])) == 1 << net.EXPLOITS.index("HTTP RFI") | 1 << net.SSH


def test_ssh_is_always_noticed():
    """Also where it fails, as it does on the Defender; Remove cannot end what it gains."""
    red = START.red.replace(
        addresses=jnp.int32(bit("Defender")), scanned=jnp.int32(bit("Defender", "User0")), swept=jnp.int32(7)
    )
    red = red.replace(escalated=jnp.int32(bit("User0")))
    state = at(0, ports={"Defender": net.ports(22)}).replace(red=red)
    after, _ = STEP(MEANDER, KEY, state, 0)
    assert not bool(after.red_success)
    assert bits_of(after, "Defender") == (1, 1, 0, 1)
    gained, _ = STEP(ENV, KEY, at(5, foothold=2, ports={"Enterprise0": net.ports(22)}), 0)
    assert int(gained.hidden) == bit("Enterprise0")
    assert int(gained.files) == 0


def test_the_operational_subnet_needs_an_enterprise_session():
    ready = {"ports": {"Op_Server0": net.ports(22)}}
    for held, success in ((bit("User0"), False), (bit("User0", "Enterprise0"), True)):
        state, _ = STEP(ENV, KEY, at(12, root=held, **ready), 0)
        assert bool(state.red_success) == bool(state.scans) == success


@pytest.mark.parametrize(
    ("held", "stored", "stage"), [(("Enterprise0",), 0, 12), ((), 0, 1), (("Enterprise0",), 22, 12), ((), 22, 12)]
)
def test_a_scan_without_a_way_succeeds_and_finds_nothing(held, stored, stage):
    """As in the reference; b_line then begins again with its first scan, unless it knows the ports from before."""
    known = {"Op_Server0": net.ports(stored) if stored else 0}
    state, _ = STEP(ENV, KEY, at(11, root=bit("User0", *held), ports=known), 0)
    assert bool(state.red_success) and int(state.red.stage) == stage
    assert bool(state.scans) == bool(held)
    assert int(state.ports[net.OP_SERVER]) == (net.ports(22) if held or stored else 0)


def test_scan_stores_ports_with_decoys():
    state, _ = STEP(ENV, KEY, at(8), action("Femitter", "Enterprise2"))  # Blue comes first
    assert int(state.ports[3]) == int(net.OPEN[3]) | net.ports(21)
    assert bits_of(state, "Enterprise2") == (1, 0, 0, 0)


def test_sql_needs_a_web_server():
    assert net.options(net.ports(3390)) == 0
    for web in (80, 443):
        assert net.options(net.ports(3390, web)) & 1 << net.EXPLOITS.index("SQL injection")


@pytest.mark.parametrize("mode", ["faithful", "fixed"])
def test_impact_and_the_service(mode):
    env = NetworkDefense(mode=mode)
    held = bit("User0", "Enterprise2", "Op_Server0")
    state, ts = STEP(env, KEY, at(14, root=held), 0)
    assert not bool(state.service)
    assert ts.reward.tolist() == [-2, -10, 0, 0]
    assert float(ts.metrics["impacts"]) == 1
    state, ts = STEP(env, KEY, state, action("Restore", "Op_Server0"))  # comes back; Red's Impact then fails
    assert bool(state.service)
    assert ts.reward.tolist() == [-1, 0, -1, 0]
    state, ts = STEP(env, KEY, state.replace(root=jnp.int32(held), red=at(14).red), 0)
    assert bool(state.red_success)
    assert bool(state.service) == (mode == "faithful")


# --- the rest --------------------------------------------------------------------------------------------------------


def test_reward_table():
    for h, tenths in enumerate([1, 10, 10, 10, 1, 1, 1, 10, 0, 1, 1, 1, 1]):
        _, ts = STEP(ENV, KEY, at(0, root=1 << h, visible=net.ALL), 0)  # user sessions cost nothing
        assert float(ts.reward[0]) == pytest.approx(-tenths / 10)


def test_rewards_are_tenths():
    reward = rollout("random", red="meander", mode="faithful")["reward"].sum(-1).astype(np.float64)
    np.testing.assert_allclose(reward, np.round(reward, 1), atol=1e-5)
    assert len(np.unique(np.round(reward, 1))) > 20


@pytest.mark.parametrize("wrong", [-1, 145, 10_000])
def test_an_action_that_is_none(wrong):
    state, ts = STEP(ENV, KEY, at(0, visible=bit("User1")), wrong)
    assert ts.reward.tolist() == pytest.approx([0, 0, 0, -0.1])
    assert int(state.visible) == bit("User1")


@pytest.mark.parametrize("limit", [30, 50, 100])
def test_episodes_are_cut_short(limit):
    handle = resolve("network_defense", {"max_episode_steps": limit})
    env = to_gymnasium(handle.native)
    obs, _ = env.reset(seed=3)
    assert not obs.any()
    flags = [env.step(0)[2:4] for _ in range(limit)]
    assert flags == [(False, False)] * (limit - 1) + [(False, True)]


def test_both_checkers():
    check_env(resolve("network_defense", {"red": "mixed", "workflow": "all", "alignment": "published"}))
    gymnasium_check(to_gymnasium(NetworkDefense()), skip_render_check=True)


def test_mixed_draws_one_for_each_episode():
    out = rollout("sleep", 200, 40, red="mixed")
    meander = out["after"].red.meander
    assert (meander == meander[:, :1]).all()
    assert 70 < meander[:, 0].sum() < 130
    assert (out["metrics"]["meander"] == meander).all()
    scans = (out["after"].red_kind[:, 1:5] == reds.SCAN).sum(1)
    assert (scans[meander[:, 0]] == 4).all()  # meander scans the whole subnet first, b_line one host
    assert (scans[~meander[:, 0]] <= 2).all()


def test_same_seed_same_episode():
    one, same, other = (rollout.__wrapped__("random", seed=s, red="meander", mode="faithful") for s in (5, 5, 6))
    assert (one["obs"] == same["obs"]).all()
    assert (one["obs"] != other["obs"]).any()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"red": "b_lin"}, ["env.red", "b_line"]),
        ({"mode": "fixd"}, ["env.mode", "fixed"]),
        ({"alignment": "published"}, ["env.alignment", "env.workflow"]),
        ({"workflow": "D,S,E,H"}, ["env.workflow", "user"]),
        ({"workflow": "D,S,E,H,X"}, ["env.workflow", "X"]),
        ({"workflow": "critical_frist"}, ["env.workflow", "critical_first"]),
        ({"compliance": "publishd"}, ["env.compliance", "published"]),
        ({"min_fixes": -1}, ["env.min_fixes"]),
        ({"detect": 1}, ["env.detect", "detection"]),
    ],
)
def test_bad_settings(fields, words):
    with pytest.raises(ConfigError) as error:
        resolve("network_defense", fields)
    assert all(word in str(error.value) for word in words), error.value


def test_pictures_show_what_changed():
    env = NetworkDefense(workflow="reverse")
    quiet = START.replace(workflow=jnp.int32(119))
    changes = [{"root": bit("User0", "User1")}, {"believed": bit("User1")}, {"service": False}, {"scans": bit("User1")}]
    pictures = [env.render(quiet), *(env.render(at(0, **c)) for c in changes)]
    pictures.append(env.render(STEP(env, KEY, quiet, action("Restore", "User3"))[0]))
    assert {p.shape for p in pictures} == {(400, 640, 3)}
    assert {p.dtype for p in pictures} == {np.dtype(np.uint8)}
    for i, picture in enumerate(pictures):
        assert all((picture != other).any() for other in pictures[:i])


@pytest.mark.parametrize(
    ("policy", "low", "high"), [("sleep", -1160, -1100), ("greedy", -110, -85), ("oracle", -54, -50)]
)
def test_baselines_from_the_command_line(policy, low, high, capsys):
    argv = f"network_defense --policy {policy} --env.red b_line --env.mode faithful --episodes 200 --json"
    assert cli.main(["evaluate", *argv.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    assert low < result["return_mean"] < high
    assert result["metrics"]["env_return"] == pytest.approx(result["return_mean"], rel=1e-4)
    assert result["metrics_ci95"]["env_return"] == pytest.approx(result["return_ci95"], rel=1e-3)
