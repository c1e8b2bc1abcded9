"""The graph network against a version that loops over nodes, and what must not change its outputs."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium import spaces as gym

from regimen import spaces
from regimen.algorithms.ppo import PPO
from regimen.config.schema import NetworkConfig
from regimen.domains.durotaxis import graph as graphs
from regimen.domains.durotaxis.env import Durotaxis
from regimen.errors import ConfigError
from regimen.networks import Shape, make_net
from regimen.networks.graph import BLOCK, graph_parts, unpack_bits
from regimen.networks.layers import orthogonal, pure
from regimen.schedule import limited_cost
from regimen.types import Spec

N, F, G = 32, 3, 2
HEADS = ((N, 2), (1, 4), (N, 3))
CONFIG = NetworkConfig(name="graph", hidden=(6, 6, 5))


def graph_space(**changes):
    parts = {
        "nodes": gym.Box(-9, 9, (N, F), np.float32),
        "mask": gym.Box(0, 1, (N,), np.float32),
        "edges": gym.Box(0, 2**16 - 1, (N, N // 16), np.int32),
        "graph": gym.Box(-9, 9, (G,), np.float32),
    }
    parts |= changes
    return gym.Dict([(name, part) for name, part in parts.items() if part is not None])


SPACE = graph_space()


def pack(edges):
    """[N, N] booleans as words of 16 bits, bit by bit."""
    words = np.zeros((N, N // 16), np.int32)
    for i, j in np.argwhere(edges):
        words[i, j // 16] |= 1 << (j % 16)
    return words


def graph(seed=0, live=11):
    """A random graph on some of the slots, as observed, and its edges [N, N]."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(N, bool)
    mask[rng.permutation(N)[:live]] = True
    edges = (rng.random((N, N)) < 0.3) & mask[:, None] & mask[None, :]
    nodes = np.where(mask[:, None], rng.normal(size=(N, F)), 0.0).astype(np.float32)
    obs = {"nodes": nodes, "mask": mask.astype(np.float32), "edges": pack(edges)}
    return obs | {"graph": rng.normal(size=G).astype(np.float32)}, edges


@pytest.fixture(scope="module")
def net():
    """Parameters with biases that are not 0, and observation -> outputs by head."""
    made = make_net(CONFIG, Shape(SPACE, HEADS), 1.0)
    params = made.init(jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    apply = jax.jit(lambda obs: made.apply(params, spaces.flatten(SPACE, obs)))

    def outputs(obs):
        out = np.asarray(apply(jax.tree.map(jnp.asarray, obs)))
        cuts = np.cumsum([rows * columns for rows, columns in HEADS])[:-1]
        return [x.reshape(shape) for x, shape in zip(np.split(out, cuts), HEADS)]

    return made, params, outputs


def by_hand(params, obs, edges):
    """The same network node by node, on live nodes only."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    live = [i for i in range(N) if obs["mask"][i]]

    def dense(name, x):
        return x @ p[name]["kernel"] + p[name].get("bias", 0.0)

    def pool(h):
        if not live:
            return np.zeros(2 * h.shape[1])
        return np.concatenate([np.mean(h[live], axis=0), np.max(h[live], axis=0)])

    def mean(h, indices):
        return np.mean([h[j] for j in indices], axis=0) if indices else np.zeros(h.shape[1])

    h = np.zeros((N, CONFIG.hidden[0]))
    for i in live:
        h[i] = np.tanh(dense("embed", obs["nodes"][i]) + dense("embed_graph", obs["graph"]))
    for r, width in enumerate(CONFIG.hidden):
        new, pooled = np.zeros((N, width)), dense(f"pooled_{r}", pool(h))
        for i in live:
            after = mean(h, [j for j in live if edges[i, j]])
            before = mean(h, [j for j in live if edges[j, i]])
            total = dense(f"own_{r}", h[i]) + dense(f"successors_{r}", after) + dense(f"predecessors_{r}", before)
            new[i] = np.tanh(total + pooled) + (h[i] if h.shape[1] == width else 0.0)
        h = new
    whole = np.tanh(dense("mix", np.concatenate([pool(h), obs["graph"]])))
    return [
        np.stack([dense(f"head_{k}", h[i] + whole) for i in range(N)])
        if rows == N
        else dense(f"head_{k}", whole).reshape(rows, columns)
        for k, (rows, columns) in enumerate(HEADS)
    ]


@pytest.mark.parametrize("live", [11, N, 1, 0])
def test_outputs_match_a_loop_over_nodes(net, live):
    _, params, outputs = net
    obs, edges = graph(live=live)
    for got, expected in zip(outputs(obs), by_hand(params, obs, edges)):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, expected, atol=2e-5)


def colonies(n):
    """`n` graphs whose nodes are in the first slots, all of another size and in no order; with edges [n, N, N]."""
    rng = np.random.default_rng(5)
    sizes, observed, linked = rng.permutation(np.resize([*range(9), 13, 16, 17, 20, 31, 32], n)), [], []
    for seed, size in enumerate(sizes):
        obs, edges = graph(seed, size)
        order = np.argsort(-obs["mask"], kind="stable")
        edges = edges[order][:, order]
        observed.append(obs | {"nodes": obs["nodes"][order], "mask": obs["mask"][order], "edges": pack(edges)})
        linked.append(edges)
    return observed, linked


def test_graphs_of_all_sizes_in_one_batch_match_the_loop(net):
    """More graphs than one block holds, in no order: each has the outputs that it has alone."""
    made, params, _ = net
    observed, linked = colonies(2 * BLOCK + 5)
    x = jnp.stack([spaces.flatten(SPACE, obs) for obs in observed]).reshape(1, len(observed), -1)
    got = np.asarray(jax.jit(made.apply)(params, x))[0]
    for out, obs, edges in zip(got, observed, linked):
        expected = np.concatenate([part.ravel() for part in by_hand(params, obs, edges)])
        np.testing.assert_allclose(out, expected, atol=2e-5)


def test_gradients_of_blocks_are_those_of_all_graphs_at_once(net):
    """The network in blocks of few slots against the same network with all slots and all graphs at once."""
    made, params, _ = net
    x = jnp.stack([spaces.flatten(SPACE, obs) for obs in colonies(BLOCK + 5)[0]])
    weight = jax.random.normal(jax.random.key(3), (len(x), sum(rows * columns for rows, columns in HEADS)))

    def gradient():
        return jax.jit(jax.grad(lambda p: (made.apply(p, x) * weight).sum()))(params)

    got = gradient()
    with limited_cost():
        whole = gradient()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, whole)


def test_without_telling_graphs_apart_the_network_is_plain_and_of_any_batch(net):
    """What is exported has one branch, no order of rows, and a batch of any size."""
    made, params, _ = net
    with limited_cost():
        (size,) = jax.export.symbolic_shape("B")
        shape = jax.ShapeDtypeStruct((size, spaces.flat_size(SPACE)), jnp.float32)
        text = str(jax.export.export(jax.jit(lambda x: made.apply(params, x)))(shape).mlir_module())
    assert "stablehlo.sort" not in text and "stablehlo.case" not in text and "stablehlo.while" not in text


def test_what_a_graph_costs_is_its_last_node():
    made = make_net(CONFIG, Shape(SPACE, HEADS), 1.0)
    obs, _ = graph(live=0)
    empty = spaces.flatten(SPACE, obs)
    mask = np.zeros(N, np.float32)
    mask[[2, 20]] = 1.0
    full = spaces.flatten(SPACE, obs | {"mask": mask})
    assert made.cost is not None
    cost = made.cost(jnp.stack([empty, full]))
    assert cost.of.tolist() == [0, 21] and cost.limits == (8, 12, 16, 32)


def test_a_permutation_of_the_nodes_permutes_their_outputs(net):
    """Node outputs follow their nodes; those of the whole graph stay."""
    _, _, outputs = net
    obs, edges = graph()
    order = np.random.default_rng(1).permutation(N)
    moved = obs | {"nodes": obs["nodes"][order], "mask": obs["mask"][order], "edges": pack(edges[order][:, order])}
    before, after = outputs(obs), outputs(moved)
    for k, (rows, _) in enumerate(HEADS):
        np.testing.assert_allclose(after[k], before[k][order] if rows == N else before[k], atol=2e-5)
    assert np.abs(before[0] - before[0][order]).max() > 1e-2, "the nodes differ"


def test_empty_slots_take_no_part(net):
    """Garbage in the features and edges of empty slots changes nothing for live nodes and the whole graph."""
    _, _, outputs = net
    obs, edges = graph()
    live, rng = obs["mask"] > 0, np.random.default_rng(2)
    garbage = np.where(live[:, None], obs["nodes"], 1e3 * rng.normal(size=(N, F))).astype(np.float32)
    wild = edges | ((rng.random((N, N)) < 0.5) & ~(live[:, None] & live[None, :]))
    assert wild.sum() > edges.sum() + 100
    before, after = outputs(obs), outputs(obs | {"nodes": garbage, "edges": pack(wild)})
    for k, (rows, _) in enumerate(HEADS):
        np.testing.assert_array_equal(*((x[k][live] if rows == N else x[k]) for x in (before, after)))


def test_edges_and_their_direction_matter(net):
    _, _, outputs = net
    obs, edges = graph()
    base = outputs(obs)[0][obs["mask"] > 0]
    for other in (edges.T, np.zeros_like(edges)):
        assert np.abs(outputs(obs | {"edges": pack(other)})[0][obs["mask"] > 0] - base).max() > 1e-2


def test_gradients_of_an_empty_graph_are_finite(net):
    made, params, _ = net
    obs, _ = graph(live=0)
    flat = spaces.flatten(SPACE, obs)
    grads = jax.jit(jax.grad(lambda p: jnp.square(made.apply(p, flat)).sum()))(params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))


def test_unpack_bits_against_a_loop():
    words = np.random.default_rng(0).integers(0, 2**16, (2, N, N // 16))
    words[0, 0], words[0, 1] = 2**16 - 1, 0
    expected = np.zeros((2, N, N))
    for b, i, j in np.ndindex(2, N, N):
        expected[b, i, j] = words[b, i, j // 16] >> (j % 16) & 1
    for dtype in (np.int32, np.float32):  # observations arrive as floats
        np.testing.assert_array_equal(unpack_bits(jnp.asarray(words.astype(dtype)), N), expected)


def test_edges_of_a_durotaxis_observation():
    """What the network unpacks is what the environment has, across the words' borders as well."""
    state, obs = jax.jit(Durotaxis(capacity=32, init_nodes=32.0).reset)(jax.random.key(0))
    wanted = np.asarray(graphs.unpack(state.graph.edges))
    assert wanted.sum() == 31 and wanted[15, 16]
    np.testing.assert_array_equal(unpack_bits(obs["edges"], 32), wanted)
    assert graph_parts(Durotaxis(capacity=32).observation_space).keys() == SPACE.spaces.keys()


def test_other_parts_of_the_observation_are_passed_over():
    space = graph_space()
    wide = gym.Dict([("before", gym.Discrete(3)), *space.spaces.items(), ("after", gym.MultiDiscrete([2, 2]))])
    plain, padded = graph_parts(space), graph_parts(wide)
    assert padded == {k: (lo + 3, hi + 3, shape) for k, (lo, hi, shape) in plain.items()}
    assert plain["edges"] == (N * F + N, N * F + N + N * N // 16, (N, N // 16))


@pytest.mark.parametrize(
    "space",
    [
        gym.Box(-1, 1, (4,), np.float32),
        gym.Dict(nodes=gym.Discrete(3)),
        graph_space(mask=None),
        graph_space(nodes=gym.Box(-1, 1, (N,), np.float32)),
        graph_space(nodes=gym.Box(-1, 1, (N, 2, 2), np.float32)),
        graph_space(nodes=gym.Box(-1, 1, (N - 1, F), np.float32)),
        graph_space(edges=gym.Box(0, 1, (N, N), np.float32)),
        graph_space(mask=gym.MultiDiscrete([2] * N)),
        graph_space(mask=gym.Box(0, 1, (N,), np.uint8)),
        graph_space(graph=gym.Box(-1, 1, (1, G), np.float32)),
        graph_space(graph=gym.Dict(a=gym.Discrete(2))),
    ],
    ids=["box", "choice", "no mask", "1-D", "3-D", "31", "dense edges", "one-hot mask", "byte mask", "2-D", "nested"],
)
def test_observations_that_are_no_graph_are_named(space):
    with pytest.raises(ConfigError, match=r"network.name: 'graph' needs observations of the form Dict\(nodes"):
        PPO(network=CONFIG, state_std=True).bind(Spec(space, gym.Discrete(2)))


def test_settings_that_do_not_suit_a_graph():
    env = Durotaxis(capacity=32)
    spec = Spec(env.observation_space, env.action_space, action_conditions=env.action_conditions)
    with pytest.raises(ConfigError, match=r"algo.normalize_obs: the graph network reads masks and edges"):
        PPO(network=CONFIG, state_std=True, normalize_obs=True).bind(spec)
    with pytest.raises(ConfigError, match=r"algo.state_std: .*set it true"):
        PPO(network=CONFIG).bind(spec)
    with pytest.raises(ConfigError, match=r"network.hidden: the graph network needs at least one layer"):
        PPO(network=NetworkConfig(name="graph", hidden=()), state_std=True).bind(spec)
    with pytest.raises(ConfigError, match=r"network.name: unknown network 'grph'.*graph"):
        PPO(network=NetworkConfig(name="grph")).bind(spec)


def test_shape_counts_what_goes_in_and_out():
    shape = Shape(SPACE, HEADS)
    assert shape.in_size == N * F + N + N * N // 16 + G == spaces.flatten(SPACE, graph()[0]).shape[-1]
    assert shape.out_size == 2 * N + 4 + 3 * N
    mlp = make_net(NetworkConfig(hidden=(4,)), shape, 0.01)
    assert mlp.apply(mlp.init(jax.random.key(0)), jnp.zeros((2, shape.in_size))).shape == (2, shape.out_size)


@pytest.mark.parametrize(
    "settings",
    [{}, {"layer_norm": True, "hidden": (16, 16)}, {"hidden": (8, 8), "residual": True}, {"hidden": ()}],
)
def test_dense_layers_are_those_of_flax(settings):
    """Weights, outputs and gradients to the last digit, so that policies of before act as they did."""
    config, shape = NetworkConfig(**settings), Shape(gym.Box(-1, 1, (5,), np.float32), ((1, 3),))
    net, key = make_net(config, shape, 0.01), jax.random.fold_in(jax.random.key(3), 1)

    class Flax(nnx.Module):
        def __init__(self, rngs):
            sizes = (5, *config.hidden)
            for i in range(len(config.hidden)):
                linear = nnx.Linear(sizes[i], sizes[i + 1], kernel_init=orthogonal(np.sqrt(2)), rngs=rngs)
                setattr(self, f"dense_{i}", linear)
                if config.layer_norm:
                    setattr(self, f"norm_{i}", nnx.LayerNorm(sizes[i + 1], rngs=rngs))
            self.head = nnx.Linear(sizes[-1], 3, kernel_init=orthogonal(0.01), rngs=rngs)

        def __call__(self, x):
            for i in range(len(config.hidden)):
                h = getattr(self, f"dense_{i}")(x)
                h = jnp.tanh(getattr(self, f"norm_{i}")(h) if config.layer_norm else h)
                x = x + h if config.residual and i else h
            return self.head(x)

    init, apply = pure(Flax)
    assert jax.tree.all(jax.tree.map(np.array_equal, net.init(key), init(key)))
    params, x = init(key), jax.random.normal(jax.random.key(1), (7, 11, 5))
    assert np.array_equal(jax.jit(net.apply)(params, x), jax.jit(apply)(params, x))
    ours, theirs = (jax.jit(jax.grad(lambda p, f=f: jnp.sin(f(p, x)).sum()))(params) for f in (net.apply, apply))
    assert jax.tree.all(jax.tree.map(np.array_equal, ours, theirs))
