"""Policies written by hand, for `regimen evaluate network_defense --policy NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.network_defense import compliance as fixing
from regimen.domains.network_defense import network as net
from regimen.domains.network_defense.workflow import Workflow
from regimen.types import Array

if TYPE_CHECKING:
    from regimen.domains.network_defense.env import NetworkDefense, NetworkState

REMOVE_AT = 2 + net.N * net.REMOVE
RESTORE_AT = 2 + net.N * net.RESTORE
DEFAULT = Workflow.parse("critical_first").index  # the order where the environment has none


def sleep(env: NetworkDefense, key: Array, state: NetworkState, obs: Array) -> Array:
    return jnp.int32(net.SLEEP)


def random(env: NetworkDefense, key: Array, state: NetworkState, obs: Array) -> Array:
    """Uniform: one draw, where the general random policy makes one for each of the 145 actions."""
    return jax.random.randint(key, (), 0, net.BLUE_ACTIONS)


def greedy(env: NetworkDefense, key: Array, state: NetworkState, obs: Array) -> Array:
    """Repair by order, from Blue's beliefs: the first host not believed clean of the first such type. Restore where it
    is believed privileged, or Unknown (Remove was tried, and Blue is not told whether it helped); else Remove."""
    suspect = state.believed | state.unsure
    host = first_host(env, state, suspect)
    restore = ((state.unsure >> host) & 1) > 0
    return jnp.where(suspect > 0, jnp.where(restore, RESTORE_AT, REMOVE_AT) + host, net.SLEEP)


def oracle(env: NetworkDefense, key: Array, state: NetworkState, obs: Array) -> Array:
    """Repair by order, from the true state: restore the first host that is compromised."""
    compromised = state.sessions & ~(1 << net.USER0)
    return jnp.where(compromised > 0, RESTORE_AT + first_host(env, state, compromised), net.SLEEP)


def first_host(env: NetworkDefense, state: NetworkState, hosts: Array) -> Array:
    """The first host of the first type, by the workflow, of a set."""
    workflow = state.workflow if env.workflow != "none" else DEFAULT
    kind = jnp.asarray(fixing.FIRST)[workflow, fixing.types_in(hosts)]
    candidates = hosts & jnp.asarray(np.append(net.TYPE_HOSTS, 0), jnp.int32)[kind]
    lowest = candidates & -candidates
    return sum(jnp.where(lowest == 1 << h, h, 0) for h in range(net.N))  # type: ignore[return-value]
