"""A directed graph of at most `capacity` nodes with positions, whose edges are rows of bits.

Slots are fixed: a node keeps its slot from birth to death, and a free one is used again. Nothing here loops over nodes
in Python or sorts; C is the capacity, W = C / 32 the words of a row. Edges lead from older to younger nodes or along
the first chain, so there are no cycles, and a set of bits holds no edge twice.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen.types import Array, Record, pytree_dataclass

WORD = 32  # bits
SHIFTS = np.arange(WORD, dtype=np.uint32)


@pytree_dataclass
class Graph(Record):
    alive: Array  # [C] bool
    x: Array  # [C], 0 in an empty slot, as everywhere below
    y: Array  # [C]
    ident: Array  # [C] int32, never used twice in an episode; -1 in an empty slot
    age: Array  # [C] int32, steps since birth
    edges: Array  # [C, W] uint32, bit j of row i is the edge i -> j
    next_ident: Array  # int32

    @property
    def count(self) -> Array:
        return count(pack(self.alive))


def pack(mask: Array) -> Array:
    """Booleans [..., C] as words [..., W]."""
    bits = mask.reshape(*mask.shape[:-1], -1, WORD).astype(jnp.uint32) << SHIFTS
    return jnp.sum(bits, axis=-1, dtype=jnp.uint32)


def unpack(words: Array) -> Array:
    """Words [..., W] as booleans [..., C]."""
    bits = (words[..., None] >> SHIFTS) & 1
    return bits.reshape(*words.shape[:-1], -1).astype(bool)


def count(words: Array) -> Array:
    """Bits set in [..., W], int32."""
    return jnp.sum(lax.population_count(words), axis=-1, dtype=jnp.uint32).astype(jnp.int32)


def place(words: Array, capacity: int) -> Array:
    """How many bits are set before each position, [C]: the rank of those that are set."""
    position = np.arange(capacity)
    before = (np.arange(capacity)[None, :] < position[:, None]).reshape(capacity, -1, WORD)
    before = (before.astype(np.uint64) << np.arange(WORD, dtype=np.uint64)).sum(-1).astype(np.uint32)  # [C, W]
    return count(words & before)


def nth(mask: Array, rank: Array) -> Array:
    """The position of the bit of each rank, [C] int32; what lies beyond the last one is 0."""
    capacity = mask.shape[-1]
    position = jnp.arange(capacity, dtype=jnp.int32)
    target = jnp.where(mask, rank, capacity)
    return jnp.zeros(capacity, jnp.int32).at[target].set(position, mode="drop")


def one_bit(position: Array, where: Array) -> Array:
    """Rows [C, W] with one bit each, at `position` [C]; none where `where` [C] is False."""
    bit = jnp.where(where, jnp.uint32(1) << (position % WORD).astype(jnp.uint32), 0)
    return jnp.where((position // WORD)[:, None] == np.arange(position.shape[-1] // WORD), bit[:, None], 0)


def chain(x: Array, y: Array, nodes: Array) -> Graph:
    """The first `nodes` slots, joined one after the other."""
    capacity = x.shape[-1]
    slot = jnp.arange(capacity, dtype=jnp.int32)
    alive = slot < nodes
    return Graph(
        alive=alive,
        x=jnp.where(alive, x, 0.0),
        y=jnp.where(alive, y, 0.0),
        ident=jnp.where(alive, slot, -1),
        age=jnp.zeros(capacity, jnp.int32),
        edges=one_bit(slot + 1, slot + 1 < nodes),
        next_ident=jnp.asarray(nodes, jnp.int32),
    )


def delete(graph: Graph, dead: Array) -> Graph:
    """Remove nodes and join every predecessor of each to every successor.

    Eliminating one node after the other leaves a -> b exactly where a path led from a to b through removed nodes only,
    whatever their order, so neighbours may go in the same step.
    """

    def eliminate(d: Array, words: Array) -> Array:
        row = lax.dynamic_index_in_dim(words, d, axis=1, keepdims=True)  # [W, 1] where d leads
        row = jnp.where(lax.dynamic_index_in_dim(dead, d, keepdims=False), row, 0)
        word = lax.dynamic_index_in_dim(words, d // WORD, axis=0, keepdims=True)  # [1, C]
        return words | row * ((word >> (d % WORD).astype(jnp.uint32)) & 1)  # to those that lead to d

    edges = lax.fori_loop(0, dead.shape[-1], eliminate, graph.edges.T).T  # words first: the long axis vectorises
    alive = graph.alive & ~dead
    return graph.replace(
        alive=alive,
        x=jnp.where(alive, graph.x, 0.0),
        y=jnp.where(alive, graph.y, 0.0),
        ident=jnp.where(alive, graph.ident, -1),
        age=jnp.where(alive, graph.age, 0),
        edges=jnp.where(alive[:, None], edges & pack(alive), 0),
    )


def spawn(graph: Graph, parents: Array, x: Array, y: Array) -> tuple[Graph, Array]:
    """One child at (x[i], y[i]) for each parent i, with the edge i -> child; also which parents got theirs.

    The k-th parent's child takes the k-th free slot. Parents beyond the last free slot get none.
    """
    capacity = parents.shape[-1]
    free = ~graph.alive
    free_words, parent_words = pack(free), pack(parents)
    slot_rank, rank = place(free_words, capacity), place(parent_words, capacity)
    fertile = parents & (rank < count(free_words))
    born = free & (slot_rank < count(parent_words))
    slot = jnp.take(nth(free, slot_rank), rank)  # of each parent's child
    parent = jnp.take(nth(fertile, rank), slot_rank)  # of the child in each slot
    grown = graph.replace(
        alive=graph.alive | born,
        x=jnp.where(born, jnp.take(x, parent), graph.x),
        y=jnp.where(born, jnp.take(y, parent), graph.y),
        ident=jnp.where(born, graph.next_ident + slot_rank, graph.ident),
        age=jnp.where(born, 0, graph.age),
        edges=graph.edges | one_bit(slot, fertile),
        next_ident=graph.next_ident + count(pack(fertile)),
    )
    return grown, fertile


def half_words(edges: Array) -> Array:
    """[C, W] rows as int32 [C, C / 16]: 16-bit words, which float32 holds exactly."""
    halves = jnp.stack([edges & 0xFFFF, edges >> 16], axis=-1)
    return halves.reshape(*edges.shape[:-1], -1).astype(jnp.int32)
