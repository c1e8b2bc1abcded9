"""What Blue may remember of an episode: which hosts had alerts, when the last one was, and which decoys run there.

All of it follows from observations and Blue's own actions, so that a policy that observes it needs no memory of its own
and plays in any simulator that shows the 52 bits (`agent_template.py` keeps the same book).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from regimen.domains.network_defense import network as net
from regimen.types import Array, Record, pytree_dataclass

FEATURES = 3 + len(net.DECOYS)  # for each host


@pytree_dataclass
class History(Record):
    """Alerts of an episode so far."""

    last: Array  # [13] int32, step of the last scan or exploit activity; -1: none yet
    exploited: Array  # int32, hosts that ever had exploit activity

    @classmethod
    def start(cls) -> History:
        return cls(jnp.full(net.N, -1, jnp.int32), jnp.zeros((), jnp.int32))

    def after(self, time: Array, scans: Array, exploits: Array) -> History:
        """The history with the alerts of one more step."""
        alert = (((scans | exploits) >> np.arange(net.N)) & 1) > 0
        return History(jnp.where(alert, time, self.last), self.exploited | exploits)

    def observe(self, time: Array, decoys: Array) -> Array:
        """11 entries for each host: any alert yet, 1 / (1 + steps since the last), an exploit yet, the 8 decoys."""
        ever = self.last >= 0
        fresh = jnp.where(ever, 1.0 / (1.0 + (time - self.last)), 0.0)
        exploited = (self.exploited >> np.arange(net.N)) & 1
        running = (decoys[:, None] >> np.arange(len(net.DECOYS))) & 1
        rows = jnp.concatenate([jnp.stack([ever, fresh, exploited], -1), running], -1, dtype=jnp.float32)
        return rows.reshape(-1)
