"""Colonies made for a test, and the compiled functions that all durotaxis tests share."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.durotaxis import features, graph, policies
from regimen.domains.durotaxis import substrate as substrates
from regimen.domains.durotaxis.env import ColonyState, Durotaxis

C = 64
COMPONENTS = Durotaxis.reward_components
KEY = jax.random.key(0)
RIGHT = (10.0, 0.1, 2.0, 0.0)  # the longest hop, 12 units

reset = jax.jit(lambda env, key: env.reset(key))
step = jax.jit(lambda env, key, state, action: env.step(key, state, action))
delete = jax.jit(graph.delete)
spawn = jax.jit(graph.spawn)
heuristic = jax.jit(policies.rightwards)
survive = jax.jit(policies.survive)
steady = jax.jit(policies.steady)


@jax.jit
def observed(env, state):
    """A state whose measures fit its graph, and its observation."""
    state = state.replace(colony=env.measure(state.graph, state.substrate))
    return state, env.observe(state)


def edge_words(pairs, capacity=C):
    words = np.zeros((capacity, capacity // 32), np.uint32)
    for a, b in pairs:
        words[a, b // 32] |= np.uint32(1) << np.uint32(b % 32)
    return words


def make_graph(xs, ys=None, pairs=None, slots=None):
    """Nodes in the first slots (or those named), joined as a chain unless `pairs` says how."""
    slots = list(range(len(xs))) if slots is None else list(slots)
    pairs = list(itertools.pairwise(slots)) if pairs is None else pairs
    x, y, alive = np.zeros(C, np.float32), np.zeros(C, np.float32), np.zeros(C, bool)
    ident = np.full(C, -1, np.int32)
    x[slots], y[slots], alive[slots], ident[slots] = xs, 100.0 if ys is None else ys, True, np.arange(len(slots))
    age = np.zeros(C, np.int32)
    return graph.Graph(alive, x, y, ident, age, edge_words(pairs), np.int32(len(slots)))


def make_state(env, xs, ys=None, exponential=False, m=0.05, b=1.0, **kwargs):
    made = substrates.make(jnp.bool_(exponential), m, b, env.width)
    zero = np.int32(0)
    blank = features.Colony(zero, *[np.float32(0)] * 5)
    state = ColonyState(make_graph(xs, ys, **kwargs), made, blank, np.zeros(C, np.int32), zero, zero)
    return observed(env, state)[0]


def act(deletes=(), hop=RIGHT, **hops):
    """Nodes in `deletes` go, the others spawn; `hops` names the slots that hop otherwise, as s3=(...)."""
    choice, rows = np.zeros(C, np.int32), np.tile(np.array(hop, np.float32), (C, 1))
    choice[list(deletes)] = 1
    for name, row in hops.items():
        rows[int(name[1:])] = row
    return {"choice": choice, "spawn": rows}


def parts(ts):
    return dict(zip(COMPONENTS, np.asarray(ts.reward).tolist()))


def slots_of(g):
    return np.flatnonzero(np.asarray(g.alive))


def random_action(env, state, rng, p_delete):
    alive, n = np.asarray(state.graph.alive), int(state.colony.count)
    low, high = env.action_space["spawn"].low, env.action_space["spawn"].high
    choice = np.where(alive, (rng.random(C) < p_delete) & (n > 2), True)
    return {"choice": choice.astype(np.int32), "spawn": rng.uniform(low, high).astype(np.float32)}
