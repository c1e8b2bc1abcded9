"""Every step of 200 episodes recorded with the reference simulator: could the native environment have made it?

The episodes (`cage2_traces.npz` in this folder) come from CybORG 2.1, scenario 2, with its own BlueTableWrapper: 50 of
each red agent against a trained and against a random Blue. What was recorded of a step (both actions, Red's exploit and
its success, the level of Red's sessions, the service, the reward, Blue's 52 bits) leaves two things open: what Red drew
its target from, and whether a reverse shell was noticed. All of their outcomes are tried, from the state that the steps
before have led to, and one of them has to agree in everything.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.network_defense import network as net
from regimen.domains.network_defense import red as reds
from regimen.domains.network_defense.env import NetworkDefense

TRACES = Path(__file__).with_name("cage2_traces.npz")
KINDS = ("DiscoverRemoteSystems", "DiscoverNetworkServices", "ExploitRemoteService", "PrivilegeEscalate", "Impact")
EXPLOITS = (
    "FTPDirectoryTraversal",
    "HarakaRCE",
    "SQLInjection",
    "HTTPSRFI",
    "HTTPRFI",
    "EternalBlue",
    "BlueKeep",
    "SSHBruteForce",
)
PLACES = 26  # evenly spaced draws: at least one for each of up to 13 targets
ENV = NetworkDefense(red="mixed", mode="faithful")


def recorded():
    """The recordings, [episodes, steps, ...], by the numbers that the environment uses."""
    data = dict(np.load(TRACES))
    names = [str(name) for name in data["red_targets"]]
    subnets = [name.lower() for name in names]
    target = [net.HOSTS.index(n) if n in net.HOSTS else net.SUBNETS.index(s) for n, s in zip(names, subnets)]
    exploit = [EXPLOITS.index(n) if n in EXPLOITS else -1 for n in map(str, data["red_exploits"])]
    assert tuple(data["hosts"]) == net.HOSTS
    assert tuple(data["red_kinds"]) == KINDS
    bits = np.unpackbits(data["observation_bits"], axis=-1)[..., : 4 * net.N]
    return {
        "meander": data["red"] == "meander",
        "first": bits[:, 0],
        "action": data["blue_action"].astype(np.int32),
        "kind": data["red_kind"].astype(np.int32),
        "target": np.array(target, np.int32)[data["red_target"]],
        "exploit": np.array(exploit, np.int32)[data["red_exploit"]],
        "success": data["red_success"] == 1,
        "level": data["red_level"].astype(np.int32),
        "service": data["ot_service"] == 1,
        "reward": data["reward"],
        "obs": bits[:, 1:].astype(np.float32),
    }


def words(state, row):
    """[2 * PLACES, 2] random words: every draw of a target, a shell noticed or not, and the exploit that was recorded
    (its place among those that the stored ports offer)."""
    among = jnp.asarray(net.OPTIONS)[state.ports[jnp.minimum(row["target"], net.N - 1)]]
    before = jax.lax.population_count(among & (jnp.left_shift(1, jnp.maximum(row["exploit"], 0)) - 1))
    others = jnp.maximum(jax.lax.population_count(among) - 1, 1)
    chance = jnp.where(before > 0, net.PREFER + (1 - net.PREFER) * (before - 0.5) / others, 0.0)
    first = jnp.full((2 * PLACES,), (chance * 2**24).astype(jnp.uint32) << 8)
    pick = jnp.repeat(((jnp.arange(PLACES) + 0.5) / PLACES * 2**16).astype(jnp.uint32), 2)
    unnoticed = jnp.tile(jnp.array([0, 0xFFFF], jnp.uint32), PLACES)
    offered = ((among >> row["exploit"]) & 1) > 0
    return jnp.stack([first, pick << 16 | unnoticed], -1), (row["exploit"] < 0) | offered


def retrace(state, row):
    """The state after a recorded step and whether any draw leads to it. Where none does, the one that agrees most is
    followed and Blue's table is set to what was recorded, so that one difference is counted once. The recorded service
    is the flag that Impact lowers also after a Restore, when the process runs on."""
    draws, offered = words(state, row)
    after, steps = jax.vmap(lambda key: ENV.step(key, state, row["action"]))(draws)
    held = ((after.visible | after.hidden)[:, None] >> np.arange(net.N)) & 1
    root = (after.root[:, None] >> np.arange(net.N)) & 1
    agrees = [
        (after.red_kind == row["kind"]) & (after.red_target == row["target"]),
        (after.red_success == row["success"]) & (jnp.where(root > 0, 2, held) == row["level"]).all(-1),
        (after.service == (row["service"] | ~after.stoppable)) & (jnp.abs(steps.reward.sum(-1) - row["reward"]) < 1e-4),
        (steps.obs == row["obs"]).all(-1),
    ]
    score = sum(a * 2.0 ** (3 - i) for i, a in enumerate(agrees))
    best = jnp.argmax(score)
    state = jax.tree.map(lambda x: x[best], after)
    table = (row["obs"].reshape(net.N, 4).astype(jnp.int32) << np.arange(net.N)[:, None]).sum(0)
    state = state.replace(**dict(zip(("scans", "exploits", "unsure", "believed"), table)))
    return state, jnp.stack([a[best] for a in agrees] + [offered])


def test_every_recorded_step_is_possible(monkeypatch):
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: key)  # the words stand for themselves
    rows = recorded()
    meander, first = rows.pop("meander"), rows.pop("first")
    foothold = np.clip(rows["target"][:, 1] - reds.FOOTHOLDS[0], 0, 3)  # b_line scans it in its second step

    @jax.jit
    def episode(start, rows):
        return jax.lax.scan(retrace, ENV.reset(start)[0], rows)[1]

    starts = np.stack([foothold | meander << 2, 0 * foothold], -1).astype(np.uint32)
    agrees = np.asarray(jax.vmap(episode)(starts, rows))
    names = ("red's action", "success and sessions", "service and reward", "observation", "exploit")
    wrong = [f"{len(at)} {n}, first in {at[0]}" for i, n in enumerate(names) if len(at := np.argwhere(~agrees[..., i]))]
    assert agrees.shape[:2] == (200, 100)
    assert not first.any()
    assert agrees.all(), f"{(~agrees.all(-1)).sum()} of {agrees[..., 0].size} steps are impossible: {'; '.join(wrong)}"
