"""What lets a policy remember."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from regimen.errors import ConfigError
from regimen.networks.layers import Settings, pure
from regimen.types import Array, PyTree


class Core(NamedTuple):
    """A recurrent network as pure functions. What it remembers is also what it puts out."""

    init: Callable[[Array], PyTree]  # key -> params
    apply: Callable[[PyTree, Array, Array], Array]  # params, [..., in], [..., size] -> [..., size]
    size: int

    def unroll(self, params: PyTree, x: Array, h: Array, fresh: Array) -> Array:
        """The outputs [T, B, size] for a sequence [T, B, in] that begins with `h` [B, size]; where `fresh` [T, B],
        an episode begins and the past is forgotten."""

        def step(h: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            x, fresh = row
            h = self.apply(params, x, jnp.where(fresh[:, None], 0.0, h))
            return h, h

        return lax.scan(step, h, (x, fresh))[1]


def make_core(config: Settings, in_size: int) -> Core | None:
    """The recurrent part in front of the actor and the critic, where `config` asks for one."""
    if config.memory == "none":
        return None
    if config.name == "graph":
        raise ConfigError("network.memory: the graph network has none; use network.name mlp")
    from regimen.networks.gru import GRU

    return Core(*pure(lambda rngs: GRU(in_size, config, rngs)), config.memory_size)
