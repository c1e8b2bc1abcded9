"""Whether repairs follow a workflow, by the definition published before and by a repaired one, and the reward for it.

A fix is a Remove or a Restore. It is judged by the true state before the action:

- published: the type of the fixed host is the first compromised type of the order (or nothing is compromised). Only the
  type matters: fixing a clean host of the right type counts. Red's permanent session on User0 counts, so that `user` is
  compromised all the time.
- repaired: the fixed host itself is compromised and of the first compromised type. User0 is left out: it does not make
  `user` compromised, and fixing it is a fix of a host that was not.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from regimen.domains.network_defense import network as net
from regimen.domains.network_defense.workflow import TYPES, all_workflows
from regimen.types import Array, Record, pytree_dataclass

DEFINITIONS = ("published", "repaired")
ALIGNMENTS = ("none", "published", "potential")
NO_FIX = 0.5  # compliance of an episode without a fix
NO_FIX_PENALTY = 0.2  # of the weight, at the end of such an episode (published alignment)

NO_TYPE = len(TYPES)
ONE_HOT = np.stack([w.one_hot() for w in all_workflows()])  # [120, 25]
SETS = [[unit for t, unit in enumerate(TYPES) if (s >> t) & 1] for s in range(1 << NO_TYPE)]
# [120, 2^5] the first type of a set
FIRST = np.array([[(*TYPES, None).index(w.first(units)) for units in SETS] for w in all_workflows()], np.int32)


@pytree_dataclass
class Fixes(Record):
    """Fixes of an episode so far."""

    fixes: Array  # int32
    useful: Array  # int32, of hosts that were compromised, User0 not counted
    published: Array  # int32, compliant by this definition
    repaired: Array  # int32

    @classmethod
    def zero(cls) -> Fixes:
        return cls(*(jnp.zeros((), jnp.int32) for _ in range(4)))

    def share(self, definition: str, without: float = NO_FIX) -> Array:
        """Compliant fixes over fixes; `without` where there was none."""
        share = getattr(self, definition) / jnp.maximum(self.fixes, 1)
        return jnp.where(self.fixes > 0, share, without).astype(jnp.float32)


def types_in(hosts: Array) -> Array:
    """The set of types of a set of hosts."""
    return sum(jnp.where((hosts & int(mask)) > 0, 1 << t, 0) for t, mask in enumerate(net.TYPE_HOSTS))  # type: ignore[return-value]


def judge(workflow: Array, compromised: Array, host: Array) -> tuple[Array, Array, Array]:
    """A fix of `host` while a set of hosts is compromised: compliant as published, as repaired, and of use at all."""
    first, kind = jnp.asarray(FIRST)[workflow], jnp.asarray(net.TYPE_OF)[host]
    due = first[types_in(compromised)]
    others = compromised & ~(1 << net.USER0)
    useful = ((others >> host) & 1) > 0
    return (due == kind) | (due == NO_TYPE), useful & (first[types_in(others)] == kind), useful


def count(tally: Fixes, workflow: Array, compromised: Array, host: Array, is_fix: Array) -> Fixes:
    published, repaired, useful = judge(workflow, compromised, host)
    return Fixes(
        fixes=tally.fixes + is_fix,
        useful=tally.useful + (is_fix & useful),
        published=tally.published + (is_fix & published),
        repaired=tally.repaired + (is_fix & repaired),
    )


def alignment(form: str, definition: str, weight: Array, gamma: Array, old: Fixes, new: Fixes, last: Array) -> Array:
    """The reward for complying.

    published: the change of weight * compliance so far, which sums to weight * final compliance; an episode that ends
    without a fix costs 0.2 weight. It changes which policy is best, on purpose.

    potential: gamma * phi' - phi with phi = weight * compliance so far (0 before the first fix). Its discounted sum
    over T steps is gamma^T * weight * final compliance, whatever happened on the way, so that at a horizon without end
    it changes no policy's rank (Ng, Harada and Russell 1999): it guides, and does not ask for compliance.
    """
    before, after = (weight * t.share(definition, 0.0) for t in (old, new))
    if form == "potential":
        return gamma * after - before
    return after - before - jnp.where(last & (new.fixes == 0), NO_FIX_PENALTY * weight, 0.0)
