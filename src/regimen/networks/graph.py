"""Message passing over a graph."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from gymnasium import spaces as gym
from jax import lax

from regimen import spaces
from regimen.axes import sync
from regimen.errors import ConfigError
from regimen.networks.layers import ACTIVATIONS, Settings, Shape, on_rows, orthogonal
from regimen.schedule import ALIKE, Cost, cost_limit
from regimen.types import Array

BLOCK = ALIKE  # graphs computed at once: what lies between layers stays in the cache
SHARES = (2, 3, 4, 8)  # eighths of the capacity for which there is a program


class GraphNet(nnx.Module):
    """Message passing over a graph of fixed capacity, for Dict observations with `nodes` [N, F], `mask` [N], `edges`
    [N, N / 16] (rows of bits in 16-bit words, bit j of row i is an edge from i to j) and `graph` [G].

    Every round, a node takes in itself, the means of its successors and of its predecessors, and the mean and maximum
    over all nodes; empty slots take no part. Outputs with N rows are read from the nodes, others from the whole graph.
    """

    def __init__(self, shape: Shape, config: Settings, final_scale: float, rngs: nnx.Rngs):
        self.parts = graph_parts(shape.space)
        idle = next((name for name in ("layer_norm", "residual") if getattr(config, name)), None)
        if idle is not None:
            raise ConfigError(f"network.{idle}: the graph network has none; use network.name mlp")
        if not config.hidden:
            raise ConfigError("network.hidden: the graph network needs at least one layer, a round of messages each")
        self.heads, self.activation, self.rounds = shape.heads, config.activation, len(config.hidden)
        n, features = self.parts["nodes"][2]
        self.capacity = n
        self.sizes = sizes_of(n)
        width, extra = config.hidden[0], self.parts["graph"][2][0]
        gain = orthogonal(math.sqrt(2))

        def linear(a: int, b: int, init=gain, bias: bool = True) -> nnx.Linear:
            return nnx.Linear(a, b, kernel_init=init, use_bias=bias, rngs=rngs)

        self.embed, self.embed_graph = linear(features, width), linear(extra, width, bias=False)
        for i, wide in enumerate(config.hidden):
            for name in ("own", "successors", "predecessors"):
                setattr(self, f"{name}_{i}", linear(width, wide, orthogonal(1.0), bias=name == "own"))
            setattr(self, f"pooled_{i}", linear(2 * width, wide, orthogonal(1.0), bias=False))
            width = wide
        self.mix = linear(2 * width + extra, width)
        last = orthogonal(final_scale)
        for i, (rows, columns) in enumerate(shape.heads):
            setattr(self, f"head_{i}", linear(width, columns if rows == n else rows * columns, last))

    def __call__(self, x: Array) -> Array:
        """Outputs [..., out] for observations [..., D]. They are computed in blocks of graphs that take about as many
        slots, each with no more slots than that: the same function as with all, and several times as fast on a CPU."""
        rows = x.reshape(-1, x.shape[-1])
        number, limit = rows.shape[0], cost_limit()
        if limit is not None:
            return self.outputs(rows, min(limit, self.capacity)).reshape(*x.shape[:-1], -1)
        if number <= BLOCK:
            return self.block(rows, jnp.max(self.slots(rows))).reshape(*x.shape[:-1], -1)
        slots = self.slots(rows)
        order = jnp.argsort(slots)
        padded = jnp.pad(order, (0, -number % BLOCK), mode="edge").reshape(-1, BLOCK)
        # A gradient that kept what lies between layers of every block would write it to memory and read it again.
        out = lax.map(jax.checkpoint(lambda of: self.block(rows[of], slots[of[-1]])), padded)
        return out.reshape(-1, out.shape[-1])[jnp.argsort(order)].reshape(*x.shape[:-1], -1)

    def slots(self, rows: Array) -> Array:
        return slots_in_use(self.parts, rows)

    @staticmethod
    def cost(shape: Shape, x: Array) -> Cost:
        """What observations [..., D] cost: the slots in use."""
        parts = graph_parts(shape.space)
        return Cost(slots_in_use(parts, x), sizes_of(parts["nodes"][2][0]))

    def block(self, rows: Array, slots: Array) -> Array:
        """Outputs [R, out] for observations [R, D] whose nodes are all in the first `slots` slots."""
        size = sync(sum((slots > n).astype(jnp.int32) for n in self.sizes[:-1]))
        return lax.switch(size, [partial(self.outputs, slots=n) for n in self.sizes], rows)

    def outputs(self, x: Array, slots: int) -> Array:
        """The same, of a number of slots that is part of the program."""
        act = ACTIVATIONS[self.activation]
        part = {name: x[:, lo:hi].reshape(-1, *shape) for name, (lo, hi, shape) in self.parts.items()}
        mask, words = part["mask"][:, :slots], part["edges"][:, :slots, : -(-slots // 16)]
        edges = unpack_bits(words, 16 * words.shape[-1])[..., :slots]  # [R, N, N]
        live, size = mask[..., None], jnp.maximum(mask.sum(-1)[..., None], 1.0)
        # Empty slots hold zeros, so they add nothing to a sum over neighbours; degrees count live neighbours only.
        successors = jnp.maximum(edges @ live, 1.0)  # [R, N, 1]
        predecessors = jnp.maximum(jnp.einsum("rij,rid->rjd", edges, live), 1.0)

        def pool(h: Array) -> Array:
            most = jnp.max(jnp.where(live > 0, h, -jnp.inf), axis=-2)
            most = jnp.where(jnp.isfinite(most), most, 0.0)  # a graph without nodes
            return jnp.concatenate([(h * live).sum(-2) / size, most], axis=-1)

        h = act(on_rows(self.embed, part["nodes"][:, :slots]) + self.embed_graph(part["graph"])[:, None, :]) * live
        for i in range(self.rounds):
            layers = [getattr(self, f"{name}_{i}") for name in ("own", "successors", "predecessors")]
            kernel = jnp.concatenate([layer.kernel[...] for layer in layers], axis=-1)  # one product, not three
            nodes, after, before = jnp.split(on_rows(lambda rows, kernel=kernel: rows @ kernel, h), 3, axis=-1)
            new = nodes + layers[0].bias + (edges @ after) / successors
            new += jnp.einsum("rij,rid->rjd", edges, before) / predecessors
            new = act(new + getattr(self, f"pooled_{i}")(pool(h))[:, None, :])
            h = (h + new if h.shape == new.shape else new) * live
        whole = act(self.mix(jnp.concatenate([pool(h), part["graph"]], axis=-1)))
        outs = []
        for i, (rows, _) in enumerate(self.heads):
            head = getattr(self, f"head_{i}")
            if rows != self.capacity:
                outs.append(head(whole))
                continue
            of_nodes = on_rows(head, h + whole[:, None, :])
            if slots < rows:  # an empty slot is a node of zeros
                empty = head(whole)
                rest = jnp.broadcast_to(empty[:, None, :], (x.shape[0], rows - slots, empty.shape[-1]))
                of_nodes = jnp.concatenate([of_nodes, rest], axis=1)
            outs.append(of_nodes.reshape(x.shape[0], -1))
        return outs[0] if len(outs) == 1 else jnp.concatenate(outs, axis=-1)


def graph_parts(space: gym.Space) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    """Where each part of a graph observation lies in its vector: (start, stop, shape)."""
    observed = dict(space.spaces) if isinstance(space, gym.Dict) else {}
    # Boxes, whose numbers arrive as they are: integers would be one-hot, bytes divided by 255
    shapes = {k: s.shape for k, s in observed.items() if isinstance(s, gym.Box) and not spaces.is_image_like(s)}
    n, features = shapes["nodes"] if len(shapes.get("nodes", ())) == 2 else (0, 0)
    required = {"nodes": (n, features), "mask": (n,), "edges": (n, n // 16)}
    if not n or n % 16 or any(shapes.get(k) != v for k, v in required.items()) or len(shapes.get("graph", ())) != 1:
        raise ConfigError(
            "network.name: 'graph' needs observations of the form Dict(nodes [N, F], mask [N], edges [N, N / 16], "
            f"graph [G]) with N a multiple of 16; these are {spaces.describe(space)}"
        )
    parts, start = {}, 0
    for name, part in observed.items():
        stop = start + spaces.flat_size(part)
        if name in (*required, "graph"):
            parts[name] = (start, stop, shapes[name])
        start = stop
    return parts


def sizes_of(capacity: int) -> tuple[int, ...]:
    """Numbers of slots for which there is a program."""
    return tuple(capacity * share // 8 for share in SHARES)


def slots_in_use(parts: dict[str, tuple[int, int, tuple[int, ...]]], x: Array) -> Array:
    """How many of the first slots hold all nodes of observations [..., D]."""
    lo, hi, _ = parts["mask"]
    return jnp.max(jnp.where(x[..., lo:hi] > 0, jnp.arange(1, hi - lo + 1), 0), axis=-1)


def unpack_bits(words: Array, n: int) -> Array:
    """[..., N, N / 16] words of 16 bits to [..., N, N] zeros and ones."""
    bits = (words.astype(jnp.int32)[..., None] >> jnp.arange(16)) & 1
    return bits.reshape(*words.shape[:-1], n).astype(jnp.float32)
