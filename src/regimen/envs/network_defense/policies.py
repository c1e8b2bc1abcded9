"""Policies written by hand, for `regimen evaluate network_defense --policy NAME`."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from regimen.envs.network_defense import compliance as fixing
from regimen.envs.network_defense import network as net
from regimen.search.workflow import Workflow
from regimen.types import Array

REMOVE_AT = 2 + net.N * net.REMOVE
RESTORE_AT = 2 + net.N * net.RESTORE
DEFAULT = Workflow.parse("critical_first").index  # the order where the environment has none


def sleep(env, key, state, obs) -> Array:
    return jnp.int32(net.SLEEP)


def greedy(env, key, state, obs) -> Array:
    """By order, from Blue's beliefs: the first host believed compromised of the first such type, Restore where it
    is believed privileged, else Remove."""
    host = first_host(env, state, state.believed)
    privileged = ((state.unsure >> host) & 1) > 0
    fix = jnp.where(privileged, RESTORE_AT, REMOVE_AT) + host
    return jnp.where(state.believed > 0, fix, net.SLEEP)


def oracle(env, key, state, obs) -> Array:
    """By order, from the true state: restores the first host that is compromised."""
    compromised = state.sessions & ~(1 << net.USER0)
    return jnp.where(compromised > 0, RESTORE_AT + first_host(env, state, compromised), net.SLEEP)


def first_host(env, state, hosts: Array) -> Array:
    """The first host of the first type, by the workflow, of a set."""
    workflow = state.workflow if env.workflow != "none" else DEFAULT
    kind = jnp.asarray(fixing.FIRST)[workflow, fixing.types_in(hosts)]
    mine = hosts & jnp.asarray(np.append(net.TYPE_HOSTS, 0), jnp.int32)[kind]
    lowest = mine & -mine
    return sum(jnp.where(lowest == 1 << h, h, 0) for h in range(net.N))  # type: ignore[return-value]
