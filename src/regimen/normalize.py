"""Running mean and deviation: updated in batches, mergeable across workers, frozen in evaluation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from regimen.axes import device_count, gather_over_devices
from regimen.types import Array, Record, pytree_dataclass

MOST = 2.0**24  # rows, up to which float32 counts exactly


@pytree_dataclass
class RunningStats(Record):
    """Count, mean and sum of squared deviations of every value seen (Chan et al. 1983)."""

    count: Array  # []
    mean: Array  # [*shape]
    m2: Array  # [*shape]

    @classmethod
    def zero(cls, shape: tuple[int, ...] = ()) -> RunningStats:
        return cls(*(jax.device_put(np.zeros(s, np.float32)) for s in ((), shape, shape)))

    @classmethod
    def of(cls, x: Array, valid: Array | None = None) -> RunningStats:
        """Statistics of a batch [..., *shape], over the rows where `valid` [...] is True; of all devices' rows."""
        weight = jnp.ones(x.shape) if valid is None else jnp.broadcast_to(_expand(valid, x), x.shape).astype(x.dtype)
        lead = tuple(range(x.ndim if valid is None else valid.ndim))
        count = weight.sum(lead)
        mean = (x * weight).sum(lead) / jnp.maximum(count, 1)
        m2 = (jnp.square(x - mean) * weight).sum(lead)
        return cls(count.reshape(-1)[0], mean, m2).pooled()

    def pooled(self) -> RunningStats:
        """The statistics of all devices together, exactly."""
        if device_count() == 1:
            return self
        each = gather_over_devices(self)  # [D, ...]
        total = each.count.sum()
        count = each.count.reshape(-1, *(1,) * self.mean.ndim)
        mean = (count * each.mean).sum(0) / jnp.maximum(total, 1)
        return RunningStats(total, mean, (each.m2 + count * jnp.square(each.mean - mean)).sum(0))

    def merge(self, other: RunningStats) -> RunningStats:
        """Merge the statistics of two batches (Chan et al. 1983), and past a window of W rows, W = min(max(2^24, 2^10
        n), 2^20 n) with n those of `other`:

            c = min(c, W - n),  m2 = m2 * min(c, W - n) / c  first,

        so that a value d batches old counts (1 - n / W)^d. In float32 a count near 2^24 n no longer moves, and with it
        neither would the mean and the deviation."""
        n = other.count
        window = jnp.minimum(jnp.maximum(MOST, 2.0**10 * n), 2.0**20 * n)
        keep = jnp.where(n > 0, jnp.minimum(1.0, (window - n) / jnp.maximum(self.count, 1)), 1.0)
        return RunningStats(self.count * keep, self.mean, self.m2 * keep).joined(other)

    def joined(self, other: RunningStats) -> RunningStats:
        count = self.count + other.count
        safe = jnp.maximum(count, 1)
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / safe)
        m2 = self.m2 + other.m2 + jnp.square(delta) * (self.count * other.count / safe)
        return RunningStats(count, mean, m2)

    def std(self, eps: float = 1e-8) -> Array:
        """Deviation; 1 before any data, so that normalising is then the identity."""
        return jnp.where(self.count > 1, jnp.sqrt(self.m2 / jnp.maximum(self.count, 1) + eps), 1.0)

    def normalize(self, x: Array, clip: float = 10.0) -> Array:
        return jnp.clip((x - self.mean) / self.std(), -clip, clip)


def _expand(valid: Array, x: Array) -> Array:
    return valid.reshape(valid.shape + (1,) * (x.ndim - valid.ndim))
