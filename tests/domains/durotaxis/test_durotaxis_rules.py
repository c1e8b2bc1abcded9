"""The rules of durotaxis, each on colonies made for it: endings, masks, substrates and the reward."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from durotaxis_colonies import (
    COMPONENTS,
    KEY,
    RIGHT,
    C,
    act,
    heuristic,
    make_state,
    observed,
    parts,
    random_action,
    reset,
    slots_of,
    steady,
    step,
    survive,
)

from regimen.domains.durotaxis import features, policies
from regimen.domains.durotaxis import substrate as substrates
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

pytestmark = pytest.mark.usefixtures("compilation_cache")


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
        for _ in range(15):
            state, ts = jax.device_get(step(env, KEY, state, random_action(env, state, rng, 0.5)))
            assert not ts.terminated or int(state.outcome) == EXTINCT
            if ts.terminated:
                break
            total += parts(ts)["spawn"] + parts(ts)["delete"]
            rise = float(state.colony.level) - start
            assert total == pytest.approx(rise * env.delete_reward / env.delta_intensity, abs=1e-3)


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
    old, new = (state.colony.replace(frontier=jnp.float32(env.width * x)) for x in (0.25, 0.5))
    assert float(env.progress(old, new, jnp.bool_(False))) == pytest.approx(0.9 * -0.5 + 0.75)
    assert float(env.progress(old, new, jnp.bool_(True))) == pytest.approx(0.75)  # wherever it ends


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


def test_heuristics_succeed():
    assert all(play(DurotaxisRatio(), steady, seed)[1] for seed in range(3))
    assert all(play(Durotaxis(border="fail"), heuristic, seed)[1] for seed in range(3))
