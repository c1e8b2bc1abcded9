"""Durotaxis against a plain second implementation (`durotaxis_oracle.py`), and each rule on colonies made for it."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from durotaxis_oracle import Oracle, edges_of
from gymnasium.utils.env_checker import check_env as gymnasium_check
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull, Delaunay

from regimen.envs.adapters.gymnasium import to_gymnasium
from regimen.envs.check import check_env
from regimen.envs.durotaxis import Durotaxis, DurotaxisRatio, State, features, graph, policies
from regimen.envs.durotaxis import substrate as substrates
from regimen.envs.durotaxis.env import DRIFT, EXTINCT, GOING, OUT_OF_BOUNDS, SUCCESS, TOO_MANY
from regimen.errors import ConfigError

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
    state = State(make_graph(xs, ys, **kwargs), made, blank, np.zeros(C, np.int32), zero, zero)
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


# --- against the oracle ----------------------------------------------------------------------------------------------


def random_action(env, state, rng, p_delete):
    alive, n = np.asarray(state.graph.alive), int(state.colony.count)
    low, high = env.action_space["spawn"].low, env.action_space["spawn"].high
    choice = np.where(alive, (rng.random(C) < p_delete) & (n > 2), True)
    return {"choice": choice.astype(np.int32), "spawn": rng.uniform(low, high).astype(np.float32)}


def compare(oracle, rewards, state, ts):
    g = state.graph
    np.testing.assert_array_equal(slots_of(g), sorted(oracle.slots))
    for i in oracle.slots:
        assert (int(g.ident[i]), int(g.age[i])) == (oracle.idents[i], oracle.ages[i])
        assert int(state.stagnation[i]) == oracle.stagnation[i]
    assert edges_of(np.asarray(g.edges)) == oracle.edges
    assert int(g.next_ident) == oracle.next_ident
    assert (int(state.outcome), int(state.drift)) == (oracle.outcome, oracle.drift)
    assert bool(ts.terminated) == (oracle.outcome != GOING)
    for name, value in parts(ts).items():
        assert value == pytest.approx(rewards[name], rel=1e-4, abs=2e-4), name
    assert int(ts.metrics["blocked_spawns"]) == oracle.blocked
    expected = oracle.observe()
    np.testing.assert_array_equal(ts.obs["mask"], expected["mask"])
    np.testing.assert_array_equal(ts.obs["edges"], expected["edges"])
    np.testing.assert_allclose(ts.obs["nodes"], expected["nodes"], atol=2e-4)
    if expected["graph"] is not None:
        np.testing.assert_allclose(ts.obs["graph"], expected["graph"], atol=2e-4)


def follow(env, decide, decode, episodes, steps):
    """Play, redo every step with the oracle, and say how the episodes ended."""
    oracle, outcomes = Oracle(env), []
    for episode in range(episodes):
        key = jax.random.fold_in(KEY, episode)
        state, _ = jax.device_get(reset(env, key))
        for t in range(steps):
            key_t = jax.random.fold_in(key, t)
            action = decide(state, episode)
            oracle.load(state)
            oracle.grow(*decode(oracle, action, key_t))
            state, ts = jax.device_get(step(env, key_t, state, action))
            for i, (x, y) in oracle.slots.items():
                assert (state.graph.x[i], state.graph.y[i]) == pytest.approx((x, y), abs=1e-3)
            oracle.adopt(state.graph.x, state.graph.y)
            compare(oracle, oracle.settle(), state, ts)
            if ts.terminated:
                break
        outcomes.append(int(state.outcome))
    return outcomes


@pytest.mark.parametrize("border", ["clamp", "fail"])
def test_per_node_steps_equal_the_oracle(border):
    env = Durotaxis(border=border, shaping=3.0, penalty_multiplier=0.5, drift_limit=3.0, max_nodes=30.0, init_nodes=9.0)
    rng = np.random.default_rng(1)
    chances = [0.35, 0.45, 0.5, 0.65]
    outcomes = follow(
        env,
        lambda state, episode: random_action(env, state, rng, chances[episode % 4]),
        lambda oracle, action, key: oracle.choices(action["choice"], action["spawn"]),
        episodes=16,
        steps=30,
    )
    expected = {EXTINCT, TOO_MANY, DRIFT} if border == "clamp" else {OUT_OF_BOUNDS}
    assert expected <= set(outcomes)


def test_ratio_steps_equal_the_oracle():
    env = DurotaxisRatio(max_nodes=20.0)
    rng = np.random.default_rng(2)
    outcomes = follow(
        env,
        lambda state, episode: rng.uniform(0.3, 0.7, 1).astype(np.float32),
        lambda oracle, action, key: oracle.ratio(float(action[0]), np.asarray(jax.random.normal(key, (3, C)))),
        episodes=6,
        steps=30,
    )
    assert len(outcomes) == 6


def test_the_heuristic_equals_the_oracle_to_the_goal():
    env = Durotaxis()
    outcomes = follow(
        env,
        lambda state, episode: jax.device_get(heuristic(env, KEY, state, None)),
        lambda oracle, action, key: oracle.choices(action["choice"], action["spawn"]),
        episodes=3,
        steps=60,
    )
    assert outcomes == [SUCCESS] * 3


# --- the graph -------------------------------------------------------------------------------------------------------


def pairs_after(pairs, dead, nodes=12):
    dying = np.zeros(C, bool)
    dying[list(dead)] = True
    return edges_of(np.asarray(delete(make_graph(np.arange(nodes), pairs=pairs), dying).edges))


def test_deleting_from_a_chain_joins_its_ends():
    chain = [(i, i + 1) for i in range(5)]
    assert pairs_after(chain, [2]) == {(0, 1), (1, 3), (3, 4), (4, 5)}
    assert pairs_after(chain, [1, 2, 3]) == {(0, 4), (4, 5)}  # neighbours in one step
    assert pairs_after(chain, [0, 5]) == {(1, 2), (2, 3), (3, 4)}
    assert pairs_after(chain, range(6)) == set()


def test_deleting_the_centre_of_a_star_joins_all_through_it():
    star = [(i, 5) for i in range(3)] + [(5, j) for j in range(6, 9)]
    assert pairs_after(star, [5]) == {(i, j) for i in range(3) for j in range(6, 9)}
    assert pairs_after(star, [5, 0, 7]) == {(1, 6), (1, 8), (2, 6), (2, 8)}


def test_an_edge_that_is_there_already_stays_one():
    assert pairs_after([(0, 1), (1, 2), (0, 2)], [1]) == {(0, 2)}


def test_deletion_in_any_slot_order():
    """Paths through removed nodes against a search, in random graphs without cycles whose slots are shuffled."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        n = int(rng.integers(3, C + 1))
        order = rng.permutation(C)[:n]
        pairs = {(int(order[a]), int(order[b])) for a in range(n) for b in range(a + 1, n) if rng.random() < 2 / n}
        dead = {int(i) for i in order if rng.random() < 0.5}
        g = make_graph(np.zeros(n), pairs=pairs, slots=order)
        dying = np.isin(np.arange(C), list(dead))
        after = delete(g, dying)
        expected = set()
        for start in set(map(int, order)) - dead:
            front = [b for a, b in pairs if a == start]
            while front:
                node = front.pop()
                if node in dead:
                    front += [b for a, b in pairs if a == node]
                else:
                    expected.add((start, node))
        assert edges_of(np.asarray(after.edges)) == expected
        np.testing.assert_array_equal(after.alive, g.alive & ~dying)


def test_children_take_free_slots_in_order():
    g = make_graph([1.0, 2.0, 3.0], slots=[0, 2, 63], pairs=[])
    parents = np.isin(np.arange(C), [0, 63])
    after, made = jax.device_get(spawn(g, parents, g.x + 10, g.y + 1))
    assert slots_of(after).tolist() == [0, 1, 2, 3, 63]
    assert (after.x[1], after.x[3]) == (11.0, 13.0) and (after.y[1], after.y[3]) == (101.0, 101.0)
    assert edges_of(after.edges) == {(0, 1), (63, 3)}
    assert (after.ident[1], after.ident[3], after.next_ident) == (3, 4, 5)
    np.testing.assert_array_equal(made, parents)


def test_children_can_use_slots_freed_in_the_same_step():
    env = Durotaxis()
    state = make_state(env, np.linspace(10, 50, C), pairs=[])
    after, ts = step(env, KEY, state, act(deletes=range(C // 2)))
    assert int(after.outcome) == GOING and int(after.colony.count) == C
    assert int(ts.metrics["blocked_spawns"]) == 0
    assert int(after.graph.ident[slots_of(after.graph)].max()) == C + C // 2 - 1


def test_nodes_never_move():
    env = Durotaxis()
    state, _ = reset(env, KEY)
    for _ in range(10):
        seen = dict(zip(np.asarray(state.graph.ident).tolist(), np.asarray(state.graph.x).tolist()))
        state, _ = step(env, KEY, state, heuristic(env, KEY, state, None))
        for ident, x in zip(np.asarray(state.graph.ident).tolist(), np.asarray(state.graph.x).tolist()):
            assert ident < 0 or seen.get(ident, x) == x


actions = st.tuples(st.integers(0, 2**32 - 1), st.floats(0, 1), st.integers(1, C))


@settings(max_examples=25, deadline=None)
@given(st.lists(actions, min_size=1, max_size=6))
def test_after_any_actions_edges_join_live_nodes(steps):
    """Also after actions that the mask forbids."""
    env = Durotaxis()
    state = None
    for seed, p_delete, nodes in steps:
        rng = np.random.default_rng(seed)
        if state is None:
            state, _ = jax.device_get(reset(env.replace(init_nodes=float(nodes)), jax.random.key(seed)))
        choice = (rng.random(C) < p_delete).astype(np.int32)
        action = {"choice": choice, "spawn": rng.normal(0, 10, (C, 4)).astype(np.float32)}
        state, ts = jax.device_get(step(env, KEY, state, action))
        alive = set(slots_of(state.graph).tolist())
        pairs = edges_of(state.graph.edges)
        assert all(a in alive and b in alive and a != b for a, b in pairs)
        assert len(alive) == int(state.colony.count) == int(ts.obs["mask"].sum())
        idents = state.graph.ident[sorted(alive)]
        assert len(set(idents.tolist())) == len(alive) and (idents < state.graph.next_ident).all()
        assert np.isfinite(ts.reward).all() and all(np.isfinite(v).all() for v in ts.obs.values())
        assert env.observation_space.contains(
            {k: np.asarray(v, env.observation_space[k].dtype) for k, v in ts.obs.items()}
        )
        for name in ("nodes", "edges"):
            assert not ts.obs[name][~state.graph.alive].any()


# --- how an episode ends ---------------------------------------------------------------------------------------------


def outcome_of(env, state, action):
    state, ts = step(env, KEY, state, action)
    assert bool(ts.terminated) == (int(state.outcome) != GOING) and not bool(ts.truncated)
    assert float(ts.metrics["success"]) == (int(state.outcome) == SUCCESS)
    return int(state.outcome), parts(ts)["termination"], state


@pytest.mark.parametrize("border", ["clamp", "fail"])
def test_success_is_reaching_or_passing_the_right_edge(border):
    env = Durotaxis(border=border)
    code, prize, after = outcome_of(env, make_state(env, [50.0, 195.0, 10.0]), act())
    assert (code, prize) == (SUCCESS, 100.0)
    assert float(after.graph.x.max()) == env.width  # it passed it, and was put back
    assert outcome_of(env, make_state(env, [50.0, 185.0, 10.0]), act())[0] == GOING
    hop = (0.1, 5.0, 1.0, 0.0)  # just over 1
    assert outcome_of(env, make_state(env, [50.0, 198.0]), act(hop=hop))[0] == SUCCESS
    assert outcome_of(env, make_state(env, [50.0, 197.0]), act(hop=hop))[0] == GOING


def test_success_comes_before_every_failure():
    env = Durotaxis(border="fail", fail_nodes=5.0)
    state = make_state(env, [195.0, 1.0, 10.0, 11.0, 12.0, 13.0])
    left = {f"s{i}": (10.0, 0.1, 2.0, math.pi) for i in (1, 2)}
    code, prize, _ = outcome_of(env, state, act(**left))  # too many, and one out of bounds
    assert (code, prize) == (SUCCESS, 100.0)


def test_extinct():
    env = Durotaxis()
    code, prize, after = outcome_of(env, make_state(env, [10.0, 20.0, 30.0]), act(deletes=[0, 1, 2]))
    assert (code, prize) == (EXTINCT, -30.0)
    assert int(after.colony.count) == 0 and not np.asarray(observed(env, after)[1]["nodes"]).any()


def test_overflow_is_a_failure_and_spawns_beyond_the_capacity_are_counted():
    env = Durotaxis()
    state = make_state(env, np.linspace(20, 60, 33))
    after, ts = step(env, KEY, state, act())
    assert int(after.outcome) == TOO_MANY and parts(ts)["termination"] == -25.0
    assert int(after.colony.count) == C and int(ts.metrics["blocked_spawns"]) == 2
    assert outcome_of(env.replace(fail_nodes=500.0), state, act())[0] == TOO_MANY  # never silently clamped
    assert outcome_of(env.replace(fail_nodes=9.0), make_state(env, np.arange(20.0, 25.0)), act())[0] == TOO_MANY
    assert outcome_of(env.replace(fail_nodes=10.0), make_state(env, np.arange(20.0, 25.0)), act())[0] == GOING


def test_too_many_comes_before_out_of_bounds():
    env = Durotaxis(border="fail", fail_nodes=5.0)
    state = make_state(env, [1.0, 10.0, 20.0, 30.0])
    assert outcome_of(env, state, act(hop=(10.0, 0.1, 2.0, math.pi)))[0] == TOO_MANY


@pytest.mark.parametrize(
    ("theta", "x", "y"), [(math.pi, 1, 100), (math.pi / 2, 100, 199), (-math.pi / 2, 100, 1), (math.pi / 4, 198, 199)]
)
def test_out_of_bounds(theta, x, y):
    """Where the border fails. Passing the corner is not passing the right edge."""
    action = act(hop=(10.0, 0.1, 2.0, theta))
    env = Durotaxis(border="fail")
    code, prize, after = outcome_of(env, make_state(env, [x, 100.0], [y, 100.0]), action)
    assert (code, prize) == (OUT_OF_BOUNDS, -30.0)
    g = after.graph
    assert (g.x >= 0).all() and (g.x <= env.width).all() and (g.y >= 0).all() and (g.y <= env.height).all()
    clamp = Durotaxis(border="clamp")
    code, _, after = outcome_of(clamp, make_state(clamp, [x, 100.0], [y, 100.0]), action)
    assert code == (SUCCESS if x == 198 else GOING)
    live, children = slots_of(after.graph), slots_of(after.graph)[2:]
    assert len(live) == 4
    assert (after.graph.x[children] >= 2).all()
    assert (after.graph.y[children] >= 2).all() and (after.graph.y[children] <= 198).all()


def test_leftward_drift():
    """The right half goes and the left half spawns to the left: it ends at the sixth step in a row."""
    env = Durotaxis()
    state = make_state(env, [150.0, 151.0, 152.0, 153.0])
    left = (10.0, 0.1, 0.0, math.pi)
    for t in range(1, 7):
        live = slots_of(state.graph)
        order = live[np.argsort(np.asarray(state.graph.x)[live])]
        code, prize, state = outcome_of(env, state, act(deletes=order[2:], hop=left))
        assert (code, int(state.drift)) == ((DRIFT if t == 6 else GOING), t)
    assert prize == -30.0
    state = state.replace(outcome=np.int32(0))
    assert int(outcome_of(env, state, act())[2].drift) == 0  # one step to the right starts the count anew


def test_the_environment_never_ends_by_time():
    env = Durotaxis()
    state, _ = reset(env, KEY)
    for _ in range(env.max_episode_steps + 2):
        state, ts = step(env, KEY, state, survive(env, KEY, state, None))
        assert not bool(ts.terminated) and not bool(ts.truncated)


# --- masks -----------------------------------------------------------------------------------------------------------


def test_masks_allow_something_everywhere():
    env = Durotaxis()
    mask_of = jax.jit(lambda env, state: env.action_mask(state))
    for n in (1, 2, 3, 40, C):
        mask = np.asarray(mask_of(env, make_state(env, np.linspace(5, 100, n)))["choice"])
        assert mask.shape == (2 * C,) and mask.dtype == bool
        rows = mask.reshape(C, 2)
        assert rows.any(1).all()
        assert (rows[:n] == [True, n > 2]).all() and (rows[n:] == [False, True]).all()
    assert DurotaxisRatio.action_mask is None


def test_with_two_nodes_a_delete_is_not_done():
    env = Durotaxis()
    _, _, after = outcome_of(env, make_state(env, [10.0, 20.0]), act(deletes=[0]))
    assert slots_of(after.graph).tolist() == [0, 1, 2]  # node 0 stays, node 1 has a child


def test_an_action_beyond_its_bounds_is_clipped():
    env = Durotaxis()
    state = make_state(env, [50.0])
    far = step(env, KEY, state, act(hop=(99.0, 0.0, 99.0, 0.0)))[0]
    most = step(env, KEY, state, act(hop=RIGHT))[0]
    assert float(far.graph.x[1]) == float(most.graph.x[1])


# --- substrates ------------------------------------------------------------------------------------------------------


def test_substrate_formulas():
    x = np.linspace(0, 200, 9)
    for exponential, expected in ((False, 0.05 * x + 1.5), (True, 1.5 * np.exp(0.05 * x))):
        made = substrates.make(jnp.bool_(exponential), 0.05, 1.5, 200.0)
        np.testing.assert_allclose(made.intensity(x), expected, rtol=1e-5)
        np.testing.assert_allclose(made.log_intensity(x), np.log(expected), rtol=1e-5)
        np.testing.assert_allclose(
            made.steepness(x), np.broadcast_to(0.05 if exponential else 0.05 / expected, 9), rtol=1e-5
        )
        level = np.asarray(made.level(x))
        assert level[0] == pytest.approx(0) and level[-1] == pytest.approx(1) and (np.diff(level) > 0).all()


def test_random_substrates_fill_their_ranges():
    env = Durotaxis()
    drawn = jax.jit(jax.vmap(env.draw_substrate))(jax.random.split(KEY, 2000))
    kind, m, b = (np.asarray(v) for v in (drawn.exponential, drawn.m, drawn.b))
    assert 0.4 < kind.mean() < 0.6
    for which, (m_low, m_high), (b_low, b_high) in ((kind, (0.01, 0.05), (0.5, 1.5)), (~kind, (0.01, 0.1), (0.5, 2.0))):
        for values, low, high in ((m[which], m_low, m_high), (b[which], b_low, b_high)):
            assert low <= values.min() < low + 0.05 * (high - low)
            assert high - 0.05 * (high - low) < values.max() <= high * (1 + 1e-6)


@pytest.mark.parametrize("kind", ["linear", "exponential"])
def test_fixed_substrates(kind):
    drawn = Durotaxis(substrate=kind, m=0.02, b=0.8).draw_substrate(KEY)
    assert bool(drawn.exponential) == (kind == "exponential")
    assert (float(drawn.m), float(drawn.b)) == pytest.approx((0.02, 0.8))


@pytest.mark.parametrize("exponential", [False, True])
def test_hill_law(exponential):
    env = Durotaxis()
    after, _ = step(
        env, KEY, make_state(env, [60.0], exponential=exponential, m=0.02, b=0.8), act(hop=(6, 1.5, 0.5, 1))
    )
    intensity = 0.8 * math.exp(0.02 * 60) if exponential else 0.02 * 60 + 0.8
    r = 6 / (1 + (1.5 / intensity) ** 2) + 0.5
    assert float(after.graph.x[1]) == pytest.approx(60 + r * math.cos(1), rel=1e-5)
    assert float(after.graph.y[1]) == pytest.approx(100 + r * math.sin(1), rel=1e-5)


# --- the reward ------------------------------------------------------------------------------------------------------

COEFFICIENTS = {
    "graph": ("survival_reward", "connectivity_penalty", "growth_penalty"),
    "spawn": ("spawn_reward",),
    "delete": ("delete_reward",),
    "edge": ("edge_reward", "edge_penalty"),
    "node": ("movement_reward", "left_penalty", "border_penalty", "laggard_penalty"),
    "progress": ("shaping",),
    "termination": (
        "success_reward",
        "extinct_penalty",
        "too_many_penalty",
        "out_of_bounds_penalty",
        "drift_penalty",
    ),
}


def test_components_have_coefficients_of_their_own():
    """Without its coefficients a component is zero and the others are as they were: they partition the reward."""
    env = Durotaxis(shaping=2.0, edge_penalty=0.3)
    state = make_state(env, [190.0, 120.0, 60.0, 15.0], pairs=[(0, 1), (1, 2), (2, 3)])
    whole = parts(step(env, KEY, state, act(deletes=[3]))[1])
    assert all(abs(v) > 1e-3 for v in whole.values()), whole
    assert set(COEFFICIENTS) == set(COMPONENTS)
    for name, fields in COEFFICIENTS.items():
        without = env.replace(**dict.fromkeys(fields, 0.0))
        again = observed(without, state)[0]  # the edge score is kept in the state
        left = parts(step(without, KEY, again, act(deletes=[3]))[1])
        assert left.pop(name) == 0.0
        assert left == pytest.approx({k: v for k, v in whole.items() if k != name}, abs=1e-6)


def test_spawn_and_delete_add_up_to_the_rise_of_the_colony():
    """Whatever is done: so nothing can be earned by going back and forth."""
    env = Durotaxis(init_nodes=16.0, fail_nodes=1e9, drift_limit=1e9)
    rng = np.random.default_rng(3)
    for episode in range(4):
        state, _ = jax.device_get(reset(env, jax.random.fold_in(KEY, episode)))
        start, total = float(state.colony.level), 0.0
        for t in range(15):
            state, ts = jax.device_get(step(env, KEY, state, random_action(env, state, rng, 0.5)))
            if ts.terminated:
                break
            total += parts(ts)["spawn"] + parts(ts)["delete"]
            rise = float(state.colony.level) - start
            assert total == pytest.approx(rise * env.delete_reward / env.delta_intensity, abs=1e-3)
        assert t > 2


def test_a_deletion_pays_below_the_mean_and_costs_above_it():
    env = Durotaxis()
    state = make_state(env, [20.0, 60.0, 100.0])
    assert parts(step(env, KEY, state, act(deletes=[0]))[1])["delete"] > 0
    assert parts(step(env, KEY, state, act(deletes=[2]))[1])["delete"] < 0
    assert parts(step(env, KEY, state, act())[1])["delete"] == 0


@pytest.mark.parametrize("exponential", [False, True])
def test_every_substrate_can_pay_for_spawning(exponential):
    env = Durotaxis()
    for m, b in ((0.01, 0.5), (0.01, 2.0), (0.05, 1.5)):
        for x in (20.0, 100.0, 180.0):
            state = make_state(env, [x, x], exponential=exponential, m=m, b=b)
            assert parts(step(env, KEY, state, act())[1])["spawn"] > 0.3
            assert parts(step(env, KEY, state, act(hop=(10.0, 0.1, 2.0, math.pi)))[1])["spawn"] < 0


def test_growth_alone_does_not_pay():
    """A large colony that does nothing else than a small one earns the same."""
    env = Durotaxis()
    rewards = []
    for n in (4, 24):
        state = make_state(env, np.linspace(100, 110, n), np.full(n, 100.0))
        rewards.append(parts(step(env, KEY, state, act())[1]))
    assert sum(rewards[1].values()) == pytest.approx(sum(rewards[0].values()), rel=0.1)
    crowd = make_state(env, np.linspace(100, 110, 30), np.full(30, 100.0))
    assert parts(step(env, KEY, crowd, act())[1])["graph"] == pytest.approx(-2.0 * 60 / 50)


def test_shaping_is_a_difference_of_potentials():
    env = Durotaxis(shaping=10.0, shaping_gamma=0.9)
    state, _ = jax.device_get(reset(env, KEY))
    start = state.colony.frontier / env.width - 1
    total, discount = 0.0, 1.0
    while not int(state.outcome):
        state, ts = jax.device_get(step(env, KEY, state, jax.device_get(heuristic(env, KEY, state, None))))
        total += discount * parts(ts)["progress"]
        discount *= 0.9
    assert total == pytest.approx(-10.0 * float(start), abs=1e-3)  # the end has no potential


def play(env, policy, seed, steps=200):
    """(return, success) of one episode."""
    state, _ = reset(env, jax.random.key(seed))
    total = 0.0
    for t in range(steps):
        key = jax.random.fold_in(jax.random.key(seed), t)
        state, ts = step(env, key, state, policy(env, key, state, None))
        total += float(np.sum(ts.reward))
        if ts.terminated:
            break
    return total, int(state.outcome) == SUCCESS


@jax.jit
def to_and_fro(env, key, state, obs):
    """Spawn to the right while the centroid is left of a mark and back while it is right of it."""
    g = state.graph
    back = state.colony.center_x > 60.0
    rank = features.ranks(g)
    delete = jnp.where(back, rank >= policies.SURVIVORS, rank < g.count - policies.SURVIVORS)
    hop = jnp.stack([10.0, 0.1, 2.0, jnp.where(back, math.pi, 0.0)])
    return {"choice": (delete | ~g.alive).astype(jnp.int32), "spawn": jnp.broadcast_to(hop, (*g.x.shape, 4))}


def test_succeeding_pays_more_than_surviving_or_farming():
    env = Durotaxis(drift_limit=1e9)
    best = [play(env, heuristic, seed) for seed in range(3)]
    assert all(success for _, success in best)
    worst = min(value for value, _ in best)
    assert worst > 100
    for policy in (survive, to_and_fro):
        value, success = play(env, policy, 0)
        assert not success and value < worst / 4


def test_the_ratio_heuristic_succeeds():
    env = DurotaxisRatio()
    assert all(play(env, steady, seed)[1] for seed in range(3))


# --- the observation -------------------------------------------------------------------------------------------------


def test_edges_in_16_bit_words():
    pairs = {(0, 1), (0, 63), (3, 15), (3, 16), (40, 31), (40, 32)}
    words = np.asarray(graph.half_words(jnp.asarray(edge_words(pairs))))
    assert words.dtype == np.int32 and words.shape == (C, C // 16) and words.max() < 2**16
    found = {(i, 16 * w + b) for i, w in np.argwhere(words) for b in range(16) if words[i, w] >> b & 1}
    assert found == pairs
    assert (words.astype(np.float32).astype(np.int32) == words).all()


def test_hull_lies_inside_the_convex_hull_and_is_close_to_it():
    rng = np.random.default_rng(0)
    hull = jax.jit(features.hull)
    shares = []
    for _ in range(40):
        n = int(rng.integers(4, C + 1))
        points = rng.uniform(20, 180, (n, 2)).astype(np.float32)
        on, area = hull(make_graph(points[:, 0], points[:, 1]))
        exact = ConvexHull(points)
        assert set(slots_of_mask(on)) <= set(exact.vertices.tolist())
        assert float(area) <= exact.volume * (1 + 1e-4)
        shares.append(float(area) / exact.volume)
    assert min(shares) > 0.8 and np.mean(shares) > 0.95


def slots_of_mask(mask):
    return np.flatnonzero(np.asarray(mask)).tolist()


def test_hull_of_few_nodes_and_of_a_line():
    hull = jax.jit(features.hull)
    for xs, ys in (([50.0], [60.0]), ([50.0, 70.0], [60.0, 60.0])):
        on, area = hull(make_graph(xs, ys))
        assert slots_of_mask(on) == list(range(len(xs))) and float(area) == 0.0
    on, area = hull(make_graph([2.0, 2.0, 2.0, 30.0], [10.0, 20.0, 30.0, 20.0]))
    assert slots_of_mask(on) == [0, 1, 2, 3]  # the middle one is level with the left side
    assert float(area) == pytest.approx(0.5 * 20 * 28, rel=1e-4)


def test_extremes_contain_the_square_they_span():
    """A square's corners are found exactly."""
    on, area = jax.jit(features.hull)(make_graph([10.0, 90.0, 90.0, 10.0, 50.0], [10.0, 10.0, 90.0, 90.0, 40.0]))
    assert slots_of_mask(on) == [0, 1, 2, 3] and float(area) == pytest.approx(6400)
    assert Delaunay([[10, 10], [90, 10], [90, 90], [10, 90]]).find_simplex([[50, 40]]) >= 0


# --- as an environment of the package --------------------------------------------------------------------------------


def test_the_start():
    for n in (1, 7):
        state, obs = reset(Durotaxis(init_nodes=float(n)), KEY)
        x, y = np.asarray(state.graph.x)[:n], np.asarray(state.graph.y)[:n]
        assert slots_of(state.graph).tolist() == list(range(n)) and (np.diff(x) >= 0).all()
        assert x.min() >= 0 and x.max() <= 20 and y.min() >= 0 and y.max() <= 200
        assert edges_of(np.asarray(state.graph.edges)) == {(i, i + 1) for i in range(n - 1)}
        assert int(np.asarray(obs["mask"]).sum()) == n


def test_randomness_of_the_ratio_interface_comes_from_the_key():
    env = DurotaxisRatio()
    state, _ = reset(env, KEY)
    ratio = np.zeros(1, np.float32)
    first, again, other = (step(env, jax.random.key(s), state, ratio)[0].graph.x for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).sum() >= 5  # of 10 children; some are clamped


def test_changed_floats_do_not_recompile():
    env = Durotaxis()
    state, _ = reset(env, KEY)
    step(env, KEY, state, act())
    before = step._cache_size()
    for changes in ({"max_nodes": 20.0, "init_nodes": 2.0}, {"penalty_multiplier": 0.5, "width": 150.0}, {"m": 0.02}):
        changed = env.replace(**changes)
        step(changed, KEY, reset(changed, KEY)[0], act())
    assert step._cache_size() == before


def test_bad_settings_are_named():
    with pytest.raises(ConfigError, match=r"env\.capacity: 40"):
        Durotaxis(capacity=40)
    with pytest.raises(ConfigError, match=r"env\.border: 'wrap'"):
        Durotaxis(border="wrap")
    with pytest.raises(ConfigError, match=r"env\.substrate"):
        Durotaxis(substrate="lin")


@pytest.mark.parametrize("name", ["durotaxis", "durotaxis/ratio"])
def test_check_env_finds_nothing(name):
    assert [str(p) for p in check_env(name, steps=40)] == []


@pytest.mark.parametrize("cls", [Durotaxis, DurotaxisRatio])
def test_as_a_gymnasium_environment(cls):
    env = to_gymnasium(cls(max_episode_steps=8), seed=0)
    gymnasium_check(env, skip_render_check=True)
    _, info = env.reset(seed=3)
    total, names = 0.0, set()
    for _ in range(8):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        names |= set(info["reward_components"])
        assert reward == pytest.approx(sum(info["reward_components"].values()), abs=1e-4)
        total += reward
        if terminated or truncated:
            break
    assert names == set(COMPONENTS) and {"success", "nodes", "max_x", "blocked_spawns"} <= set(info)
