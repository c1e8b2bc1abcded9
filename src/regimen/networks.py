"""Networks. The only file that imports flax: everything else sees `Net(init, apply)` and plain-dict parameters."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces as gym
from jax import lax

from regimen import spaces
from regimen.errors import ConfigError, nearest
from regimen.types import Array, PyTree

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "elu": jax.nn.elu}


class Settings(Protocol):
    """What a network is built from; `config.schema.NetworkConfig` is one."""

    @property
    def name(self) -> str: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> str: ...
    @property
    def memory(self) -> str: ...
    @property
    def memory_size(self) -> int: ...


class Shape(NamedTuple):
    """What a network reads and puts out."""

    space: gym.Space  # of the observations, which arrive as vectors (`spaces.flatten`)
    heads: tuple[tuple[int, int], ...]  # (rows, columns) of each output; the outputs side by side are one vector

    @property
    def in_size(self) -> int:
        return spaces.flat_size(self.space)

    @property
    def out_size(self) -> int:
        return sum(rows * columns for rows, columns in self.heads)


class Net(NamedTuple):
    """A network as two pure functions."""

    init: Callable[[Array], PyTree]  # key -> params
    apply: Callable[..., Array]  # params, [..., in] -> [..., out]; `drop(layer, h)` changes hidden layers, see MLP


def orthogonal(scale: float):
    """Orthogonal weights (Saxe et al. 2014) made by numpy on the host: nothing to compile, and no batched QR inside a
    program, which deadlocks on two cores (jaxlib 0.10)."""

    def init(key: Array, shape: tuple[int, int], dtype=jnp.float32) -> Array:
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        rows, columns = shape
        normal = np.random.default_rng(seed).standard_normal((max(shape), min(shape)))
        q, r = np.linalg.qr(normal)
        q = q * np.sign(np.diag(r))  # uniform over orthogonal matrices
        return jnp.asarray(scale * (q if rows >= columns else q.T), dtype)

    return init


class MLP(nnx.Module):
    """Dense layers with one activation; orthogonal weights of gain sqrt(2), and of `final_scale` in the last layer."""

    def __init__(self, shape: Shape, config: Settings, final_scale: float, rngs: nnx.Rngs):
        sizes = (shape.in_size, *config.hidden)
        self.depth = len(config.hidden)
        self.activation = config.activation
        for i in range(self.depth):
            init = orthogonal(math.sqrt(2))
            setattr(self, f"dense_{i}", nnx.Linear(sizes[i], sizes[i + 1], kernel_init=init, rngs=rngs))
            setattr(self, f"norm_{i}", self.normalizer(sizes[i + 1], rngs))
        init = orthogonal(final_scale)
        self.head = nnx.Linear(sizes[-1], shape.out_size, kernel_init=init, rngs=rngs)

    def normalizer(self, size: int, rngs: nnx.Rngs) -> nnx.LayerNorm | None:
        return None

    def __call__(self, x: Array, drop: Callable[[int, Array], Array] | None = None) -> Array:
        for i in range(self.depth):
            x, norm = getattr(self, f"dense_{i}")(x), getattr(self, f"norm_{i}")
            x = ACTIVATIONS[self.activation](x if norm is None else norm(x))
            x = x if drop is None else drop(i, x)
        return self.head(x)


class NormedMLP(MLP):
    """Layer normalisation before each activation."""

    def normalizer(self, size: int, rngs: nnx.Rngs) -> nnx.LayerNorm:
        return nnx.LayerNorm(size, rngs=rngs)


class GraphNet(nnx.Module):
    """Message passing over a graph of fixed capacity, for Dict observations with `nodes` [N, F], `mask` [N], `edges`
    [N, N / 16] (rows of bits in 16-bit words, bit j of row i is an edge from i to j) and `graph` [G].

    Every round, a node takes in itself, the means of its successors and of its predecessors, and the mean and maximum
    over all nodes; empty slots take no part. Outputs with N rows are read from the nodes, others from the whole graph.
    """

    def __init__(self, shape: Shape, config: Settings, final_scale: float, rngs: nnx.Rngs):
        self.parts = graph_parts(shape.space)
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


def on_rows(layer: Callable[[Array], Array], x: Array) -> Array:
    """A layer [..., in] -> [..., out] as one product of two matrices. With more axes the gradient takes a third longer
    on a CPU (`python benchmarks/surprises.py graph-layers`)."""
    return layer(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)


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


class GRU(nnx.Module):
    """A layer, then a gated recurrent unit (Cho et al. 2014)."""

    def __init__(self, in_size: int, config: Settings, rngs: nnx.Rngs):
        size = config.memory_size
        self.activation = config.activation
        self.embed = nnx.Linear(in_size, size, kernel_init=orthogonal(math.sqrt(2)), rngs=rngs)
        init: Any = orthogonal(1.0)
        self.cell = nnx.GRUCell(size, size, kernel_init=init, recurrent_kernel_init=init, rngs=rngs)

    def __call__(self, x: Array, h: Array) -> Array:
        return self.cell(h, ACTIVATIONS[self.activation](self.embed(x)))[0]


class Core(NamedTuple):
    """A recurrent network as pure functions. What it remembers is also what it puts out."""

    init: Callable[[Array], PyTree]  # key -> params
    apply: Callable[[PyTree, Array, Array], Array]  # params, [..., in], [..., size] -> [..., size]
    size: int

    def unroll(self, params: PyTree, x: Array, h: Array, fresh: Array) -> Array:
        """What it puts out [T, B, size] for a sequence [T, B, in] that begins with `h` [B, size]; where `fresh` [T, B],
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

    return Core(*pure(lambda rngs: GRU(in_size, config, rngs)), config.memory_size)


NetworkBuilder = Callable[..., nnx.Module]
NETWORKS: dict[str, NetworkBuilder] = {"mlp": MLP, "mlp_norm": NormedMLP, "graph": GraphNet}


def register_network(name: str, builder: NetworkBuilder) -> None:
    """Make `builder(shape, config, final_scale, rngs) -> nnx.Module` available as `--network.name NAME`; `shape` says
    what it reads and puts out (`Shape`)."""
    NETWORKS[name] = builder


def make_net(config: Settings, shape: Shape, final_scale: float) -> Net:
    """The network named in `config`, from vectors of `shape.in_size` to vectors of `shape.out_size`."""
    if config.name not in NETWORKS:
        raise ConfigError(f"network.name: unknown network '{config.name}'{nearest(config.name, NETWORKS)}")

    return Net(*pure(lambda rngs: NETWORKS[config.name](shape, config, final_scale, rngs)))


def pure(build: Callable[[nnx.Rngs], nnx.Module]) -> tuple[Callable[[Array], PyTree], Callable[..., Array]]:
    """The module that `build` makes as two pure functions: `init(key)` and `apply(params, *inputs)`, of which an input
    that is None is not handed on."""
    graph = nnx.graphdef(build(nnx.Rngs(0)))

    def init(key: Array) -> PyTree:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

    def apply(params: PyTree, *inputs: Any) -> Array:
        return nnx.merge(graph, params)(*(x for x in inputs if x is not None))  # type: ignore[operator]

    return init, apply
