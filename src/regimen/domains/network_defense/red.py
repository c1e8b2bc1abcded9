"""The two scripted intruders: which action each takes next, and what it makes of success and failure.

Both see only what Red knows. `b_line` goes straight for the operational server by a script of 15 stages; `meander`
takes one subnet after the other.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen.domains.network_defense import network as net
from regimen.types import Array, Record, pytree_dataclass

SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = range(5)
KINDS = ("sweep", "scan", "exploit", "escalate", "impact")
AGENTS = ("b_line", "meander")  # besides them Red may sleep

STAGES = np.array([0, 1, 2, 3, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3, 4], np.int32)  # [15] kind of each stage
ON_FAILURE = np.array([0, 1, 2, 2, 2, 2, 5, 5, 5, 5, 9, 9, 9, 12, 13], np.int32)  # [15] stage after a failure
FOOTHOLDS = np.array([9, 10, 11, 12], np.int32)  # user hosts that b_line may start with
STAGE_TARGET = np.zeros((4, 15), np.int32)  # [foothold, stage] host, or subnet of a sweep
for _i, _user in enumerate(FOOTHOLDS):
    _next = int(net.KNOWS[_user]).bit_length() - 1
    STAGE_TARGET[_i] = [net.USER_NET, *[_user] * 3, *[_next] * 3, net.ENTERPRISE_NET, *[3] * 3, *[7] * 4]

OP = int(net.SUBNET_HOSTS[net.OPERATIONAL_NET])
ENTERPRISE = net.ENTERPRISE_SESSIONS


@pytree_dataclass
class Intruder(Record):
    """What Red has done and knows. Sets of hosts are integers with a bit for each host."""

    meander: Array  # bool, which of the two it is
    stage: Array  # int32, b_line's
    foothold: Array  # int32, index into FOOTHOLDS
    addresses: Array  # int32, hosts whose address it has
    scanned: Array  # int32
    exploited: Array  # int32, believed to hold a session
    escalated: Array  # int32, believed to hold root
    subnets: Array  # int32, known subnets
    swept: Array  # int32, subnets swept


def start(meander: Array, foothold: Array) -> Intruder:
    zero = jnp.zeros((), jnp.int32)
    user0 = jnp.int32(1 << net.USER0)
    subnet = jnp.int32(1 << net.USER_NET)
    return Intruder(meander, zero, foothold, user0, zero, zero, zero, subnet, zero)


def member(number: Array, chance: Array) -> Array:
    """A uniform member of a set of up to 16, from 16 random bits; any where it is empty."""
    low, high = number & 0xFF, number >> 8
    below = lax.population_count(low)
    k = (chance * (below + lax.population_count(high))) >> 16
    table = jnp.asarray(net.NTH)
    return jnp.where(k < below, table[low, k & 7], table[high, (k - below) & 7] + 8)


def asleep() -> tuple[Array, Array]:
    """No action, and no host as its target."""
    return jnp.full((), -1, jnp.int32), jnp.zeros((), jnp.int32)


def b_line(red: Intruder) -> tuple[Array, Array]:
    """(kind, target) of the script."""
    return jnp.asarray(STAGES)[red.stage], jnp.asarray(STAGE_TARGET)[red.foothold, red.stage]


def meander(red: Intruder, chance: Array) -> tuple[Array, Array]:
    """(kind, target): the first of impact, sweep, scan, escalate, exploit for which there is a target, drawn among
    all of them. User0 needs no exploit before it is escalated: Red is there from the start."""
    subnets = red.subnets & ~red.swept
    scan = red.addresses & ~red.scanned
    escalate = (red.exploited | (1 << net.USER0)) & ~red.escalated
    exploit = red.addresses & ~red.exploited
    impact = (red.escalated >> net.OP_SERVER) & 1
    kind = jnp.where(scan > 0, SCAN, jnp.where(escalate > 0, ESCALATE, EXPLOIT))
    among = jnp.where(scan > 0, scan, jnp.where(escalate > 0, escalate, exploit))
    kind = jnp.where(subnets > 0, SWEEP, kind)
    among = jnp.where(subnets > 0, subnets, among)
    among = jnp.where(impact > 0, 1 << net.OP_SERVER, among)
    return jnp.where(impact > 0, IMPACT, kind), member(among, chance)


def b_line_after(red: Intruder, success: Array, nothing: Array) -> Intruder:
    """The next stage. After a scan that has told it `nothing` of its target, now or before, it does not know what to
    exploit and begins again with its first scan."""
    ahead = jnp.where(nothing, 1, jnp.minimum(red.stage + 1, len(STAGES) - 1))
    return red.replace(stage=jnp.where(success, ahead, jnp.asarray(ON_FAILURE)[red.stage]))


def meander_after(red: Intruder, kind: Array, target: Array, success: Array) -> Intruder:
    """A sweep and an escalation tell it addresses. A failed exploit is blamed on a lost way in: all escalated
    operational hosts are forgotten, or else all escalated enterprise ones."""
    at = jnp.left_shift(1, target)
    sweep, escalate = ((kind == which) & success for which in (SWEEP, ESCALATE))
    news = jnp.where(escalate, jnp.asarray(net.KNOWS)[target], 0)
    news = jnp.where(sweep, jnp.asarray(net.SUBNET_HOSTS)[target], news)
    subnet = jnp.left_shift(1, jnp.asarray(net.SUBNET_OF)[target])

    def when(which: int) -> Array:
        return jnp.where(kind == which, at, 0)

    exploited = red.exploited | when(EXPLOIT)
    escalated = red.escalated | when(ESCALATE)
    operational, enterprise = escalated & OP, escalated & ENTERPRISE
    stale = jnp.where(operational > 0, operational, enterprise)
    stale = jnp.where(kind == EXPLOIT, stale, jnp.where(kind >= ESCALATE, at, 0))
    stale = jnp.where(success, 0, stale)
    unmark = jnp.where(success | (kind != EXPLOIT), 0, at)
    return red.replace(
        addresses=red.addresses | news,
        scanned=red.scanned | when(SCAN),
        exploited=exploited & ~(stale | unmark),
        escalated=escalated & ~stale,
        subnets=red.subnets | jnp.where(escalate, subnet, 0),
        swept=red.swept | when(SWEEP),
    )
