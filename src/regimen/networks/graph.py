"""Message passing over a graph."""

import math

import jax.numpy as jnp
from flax import nnx
from gymnasium import spaces as gym

from regimen import spaces
from regimen.errors import ConfigError
from regimen.networks.layers import ACTIVATIONS, Settings, Shape, on_rows, orthogonal
from regimen.types import Array


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
        act = ACTIVATIONS[self.activation]
        part = {name: x[..., lo:hi].reshape(*x.shape[:-1], *shape) for name, (lo, hi, shape) in self.parts.items()}
        mask, edges = part["mask"], unpack_bits(part["edges"], self.capacity)  # [..., N], [..., N, N]
        live, size = mask[..., None], jnp.maximum(mask.sum(-1)[..., None], 1.0)
        # Empty slots hold zeros, so they add nothing to a sum over neighbours; degrees count live neighbours only.
        successors = jnp.maximum(edges @ live, 1.0)  # [..., N, 1]
        predecessors = jnp.maximum(jnp.einsum("...ij,...id->...jd", edges, live), 1.0)

        def pool(h: Array) -> Array:
            most = jnp.max(jnp.where(live > 0, h, -jnp.inf), axis=-2)
            most = jnp.where(jnp.isfinite(most), most, 0.0)  # a graph without nodes
            return jnp.concatenate([(h * live).sum(-2) / size, most], axis=-1)

        h = act(on_rows(self.embed, part["nodes"]) + self.embed_graph(part["graph"])[..., None, :]) * live
        for i in range(self.rounds):
            layers = [getattr(self, f"{name}_{i}") for name in ("own", "successors", "predecessors")]
            kernel = jnp.concatenate([layer.kernel[...] for layer in layers], axis=-1)  # one product, not three
            nodes, after, before = jnp.split(on_rows(lambda rows, kernel=kernel: rows @ kernel, h), 3, axis=-1)
            new = nodes + layers[0].bias + (edges @ after) / successors
            new += jnp.einsum("...ij,...id->...jd", edges, before) / predecessors
            new = act(new + getattr(self, f"pooled_{i}")(pool(h))[..., None, :])
            h = (h + new if h.shape == new.shape else new) * live
        whole = act(self.mix(jnp.concatenate([pool(h), part["graph"]], axis=-1)))
        outs = []
        for i, (rows, _) in enumerate(self.heads):
            source = h + whole[..., None, :] if rows == self.capacity else whole
            outs.append(on_rows(getattr(self, f"head_{i}"), source).reshape(*x.shape[:-1], -1))
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


def unpack_bits(words: Array, n: int) -> Array:
    """[..., N, N / 16] words of 16 bits to [..., N, N] zeros and ones."""
    bits = (words.astype(jnp.int32)[..., None] >> jnp.arange(16)) & 1
    return bits.reshape(*words.shape[:-1], n).astype(jnp.float32)
