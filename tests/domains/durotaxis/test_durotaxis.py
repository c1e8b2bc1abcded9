"""Durotaxis against a plain second implementation (`durotaxis_oracle.py`), its graph, observation and pictures."""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from durotaxis_colonies import (
    COMPONENTS,
    KEY,
    C,
    act,
    delete,
    edge_words,
    heuristic,
    make_graph,
    make_state,
    parts,
    random_action,
    reset,
    slots_of,
    spawn,
    step,
)
from durotaxis_oracle import Oracle, edges_of
from gymnasium.utils.env_checker import check_env as gymnasium_check
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from regimen.domains.durotaxis import features, graph
from regimen.domains.durotaxis.env import (
    DRIFT,
    EXTINCT,
    GOING,
    OUT_OF_BOUNDS,
    SUCCESS,
    TOO_MANY,
    Durotaxis,
    DurotaxisRatio,
)
from regimen.engines import curriculum
from regimen.envs.adapters.gymnasium import to_gymnasium
from regimen.envs.check import check_env
from regimen.envs.registry import resolve
from regimen.errors import ConfigError

pytestmark = pytest.mark.usefixtures("compilation_cache")


# --- against the oracle ----------------------------------------------------------------------------------------------


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


def test_hull_of_a_square_is_exact():
    """Its corners, and not the node inside."""
    on, area = jax.jit(features.hull)(make_graph([10.0, 90.0, 90.0, 10.0, 50.0], [10.0, 10.0, 90.0, 90.0, 40.0]))
    assert slots_of_mask(on) == [0, 1, 2, 3] and float(area) == pytest.approx(6400)


# --- pictures --------------------------------------------------------------------------------------------------------


def test_render_shows_the_colony():
    env = Durotaxis()
    picture = env.render(make_state(env, [20.0, 100.0], [50.0, 150.0]))
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    again = env.render(make_state(env, [20.0, 100.0], [50.0, 150.0], pairs=[]))
    bare = env.render(make_state(env, [20.0], [50.0]))
    link, node = (np.abs(picture.astype(int) - other).sum(-1) > 60 for other in (again, bare))
    assert 20 < link.sum() < node.sum()  # a line; with the line, a disc and a longer bar
    height, width = picture.shape[:2]
    columns = np.nonzero(link)[1]
    unit = width / (1.04 * env.width)
    assert columns.min() / unit > 0.02 * env.width + 20 and columns.max() / unit < 0.02 * env.width + 100
    assert picture[height // 4, width // 6].mean() > picture[height // 4, 3 * width // 4].mean()  # stiff is darker


def test_render_near_the_rim_and_of_no_nodes():
    env = Durotaxis()
    shape = env.render(make_state(env, [0.0, 200.0], [0.0, 200.0])).shape
    empty = step(env, KEY, make_state(env, [10.0, 20.0, 30.0]), act(deletes=[0, 1, 2]))[0]
    assert env.render(empty).shape == shape


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


@pytest.mark.parametrize("name", ["durotaxis", "durotaxis/ratio"])
def test_curricula_end_at_the_defaults(name):
    handle = resolve(name)
    for texts in handle.native.curricula.values():
        course = curriculum.make(texts, handle)
        for field, schedule in course.schedules.items():
            assert schedule.values[-1] == getattr(handle.native, field)


def test_benchmark_runs(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    benchmark = importlib.import_module("durotaxis_env")
    monkeypatch.setattr(benchmark, "STEPS", 2)
    benchmark.compare(["durotaxis"], [2], rounds=1, seconds=0.0)
    assert "| durotaxis | 2 |" in capsys.readouterr().out


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
