"""The trajectory buffer against sums written out in Python, and against `returns.gae`."""

import subprocess
import sys
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regimen
from regimen.normalize import RunningStats
from regimen.returns import gae
from regimen.sources.trajectory_buffer import TrajectoryBuffer, TrajectoryError

GAMMA, LAMBDA = 0.9, 0.8

number = st.floats(-10, 10, allow_nan=False, width=32)
fraction = st.floats(0, 1)
checked = settings(max_examples=50, deadline=None, derandomize=True)


@st.composite
def episodes(draw, at_least=1):
    """(rewards, values, final value, terminated) of some episodes."""
    out = []
    for _ in range(draw(st.integers(at_least, 4))):
        length = draw(st.integers(1, 7))
        lists = st.lists(number, min_size=length, max_size=length)
        out.append((draw(lists), draw(lists), draw(number), draw(st.booleans())))
    return out


def oracle(rewards, values, final, terminated, gamma, gae_lambda):
    """Advantages as the double sum of their definition: A_t = sum_l (gamma lambda)^l delta_{t+l}."""
    after = [*values[1:], 0.0 if terminated else final]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, after)]
    return [sum((gamma * gae_lambda) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def filled(data, seed=0):
    """A buffer whose states number the rows."""
    buffer, row = TrajectoryBuffer(seed), 0
    for rewards, values, final, terminated in data:
        buffer.start_episode()
        for reward, value in zip(rewards, values):
            buffer.add_step(np.array([row, -row]), row % 3, reward, value, log_prob=-0.1 * row)
            row += 1
        buffer.finish_episode(final, terminated)
    return buffer


def computed(data, gamma=GAMMA, gae_lambda=LAMBDA, **options):
    buffer = filled(data)
    buffer.compute_returns_and_advantages(gamma, gae_lambda, **options)
    return buffer.rows()


def assert_trees_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        np.testing.assert_array_equal(x, y)
        assert np.asarray(x).dtype == np.asarray(y).dtype


# --- returns and advantages ------------------------------------------------------------------------------------------


def test_three_steps_by_hand():
    """gamma 1/2, lambda 1/2: deltas are 1 + 1 - 1 = 1, 2 + 2 - 2 = 2 and 3 + final/2 - 4."""
    rows = computed([([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], 8.0, False)], 0.5, 0.5)
    np.testing.assert_array_equal(rows.advantages, [1 + 2 / 4 + 3 / 16, 2 + 3 / 4, 3.0])
    np.testing.assert_array_equal(rows.returns, [2.6875, 4.75, 7.0])
    rows = computed([([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], 8.0, True)], 0.5, 0.5)
    np.testing.assert_array_equal(rows.advantages, [1 + 2 / 4 - 1 / 16, 2 - 1 / 4, -1.0])


@checked
@given(episodes(), fraction, fraction)
def test_advantages_are_the_sums_of_their_definition(data, gamma, gae_lambda):
    rows = computed(data, gamma, gae_lambda)
    expected = [a for episode in data for a in oracle(*episode, gamma, gae_lambda)]
    values = [v for episode in data for v in episode[1]]
    np.testing.assert_allclose(rows.advantages, expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(rows.returns, np.add(expected, values), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(rows.values, values, rtol=1e-6)
    assert {x.dtype for x in (rows.advantages, rows.returns, rows.values, rows.log_probs)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_the_gae_of_compiled_training(seed):
    rng = np.random.default_rng(seed)
    data = [(rng.normal(size=n), rng.normal(size=n), rng.normal(), i % 2 == 0) for i, n in enumerate((1, 5, 8, 2))]
    reward, value = (np.concatenate([e[i] for e in data]) for i in (0, 1))
    following = np.concatenate([[*e[1][1:], 0.0 if e[3] else e[2]] for e in data])
    done = np.concatenate([[*[False] * (len(e[0]) - 1), True] for e in data])
    columns = [jnp.asarray(x, jnp.float32)[:, None] for x in (reward, value, following, done)]
    expected = gae(*columns, GAMMA, LAMBDA)[:, 0]
    np.testing.assert_allclose(computed(data).advantages, expected, atol=1e-5)


@checked
@given(episodes(), fraction)
def test_lambda_one_is_the_discounted_sum_minus_the_value(data, gamma):
    rows = computed(data, gamma, 1.0)
    sums = []
    for rewards, _, final, terminated in data:
        tail = [*rewards, 0.0 if terminated else final]
        sums += [sum(gamma ** (k - t) * tail[k] for k in range(t, len(tail))) for t in range(len(rewards))]
    np.testing.assert_allclose(rows.returns, sums, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rows.advantages, sums - rows.values, rtol=1e-5, atol=1e-4)


@checked
@given(episodes(), fraction)
def test_lambda_zero_is_the_temporal_difference(data, gamma):
    expected = []
    for rewards, values, final, terminated in data:
        after = [*values[1:], 0.0 if terminated else final]
        expected += [r + gamma * n - v for r, v, n in zip(rewards, values, after)]
    np.testing.assert_allclose(computed(data, gamma, 0.0).advantages, expected, rtol=1e-6, atol=1e-6)


@checked
@given(episodes(at_least=2), st.randoms(use_true_random=False))
def test_the_order_of_episodes_does_not_matter(data, random):
    shuffled = random.sample(data, len(data))
    rows = [computed(x) for x in (data, shuffled)]
    keys = [sorted(zip(r.values.tolist(), r.returns.tolist(), r.advantages.tolist())) for r in rows]
    assert keys[0] == keys[1]


@pytest.mark.parametrize("final", [0.0, 5.0, float("nan"), {"of": "another kind"}])
def test_nothing_follows_a_termination(final):
    rows = computed([([1.0, 1.0], [0.0, 0.0], final, True)], 1.0, 1.0)
    np.testing.assert_array_equal(rows.returns, [2.0, 1.0])


def test_a_truncated_episode_goes_on_with_its_final_value():
    rows = computed([([1.0, 1.0], [0.0, 0.0], 5.0, False)], 0.5, 1.0)
    np.testing.assert_array_equal(rows.returns, [1 + 0.5 + 0.25 * 5, 1 + 0.5 * 5])


@pytest.mark.parametrize("seed", range(3))
def test_normalised_as_ppo_does_over_the_whole_buffer(seed):
    rng = np.random.default_rng(seed)
    data = [(rng.normal(2, 3, n), rng.normal(size=n), 1.0, False) for n in (1, 6, 4)]
    raw, rows = computed(data), computed(data, normalize_advantage=True)
    stats = RunningStats.of(jnp.asarray(raw.advantages))
    expected = (raw.advantages - stats.mean) / (stats.std() + 1e-8)
    np.testing.assert_allclose(rows.advantages, expected, atol=1e-5)
    np.testing.assert_array_equal(rows.returns, raw.returns)


def test_normalised_advantages_have_mean_zero_and_deviation_one():
    rng = np.random.default_rng(0)
    rows = computed([(rng.normal(3, 4, 50), rng.normal(size=50), 0.0, True)], normalize_advantage=True)
    assert rows.advantages.mean() == pytest.approx(0, abs=1e-6)
    assert rows.advantages.std() == pytest.approx(1, abs=1e-5)
    assert computed([([2.0], [0.0], 0.0, True)], normalize_advantage=True).advantages.tolist() == [0.0]


# --- components ------------------------------------------------------------------------------------------------------

NAMES = ("goal", "time")


def by_component(data, values_too=True, **options):
    """`data`: per episode, a dict of components to what `episodes` draws."""
    buffer = TrajectoryBuffer()
    for episode in data:
        buffer.start_episode()
        for t in range(len(episode["goal"][0])):
            reward, value = ({name: episode[name][i][t] for name in NAMES} for i in (0, 1))
            value = value if values_too else sum(value.values())
            buffer.add_step(t, 0, reward, value)
        final = {name: episode[name][2] for name in NAMES}
        buffer.finish_episode(final if values_too else sum(final.values()), episode["goal"][3])
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA, **options)
    return buffer.rows()


@pytest.fixture(scope="module")
def two_components():
    rng = np.random.default_rng(5)
    make = lambda n, end: (rng.normal(size=n), rng.normal(size=n), rng.normal(), end)  # noqa: E731
    return [{name: make(n, end) for name in NAMES} for n, end in ((4, True), (3, False), (1, False))]


def test_each_component_has_its_own_returns_and_advantages(two_components):
    rows = by_component(two_components)
    assert (list(rows.values), list(rows.returns), list(rows.advantages)) == ([*NAMES], [*NAMES], [*NAMES, "total"])
    for name in NAMES:
        alone = computed([episode[name] for episode in two_components])
        np.testing.assert_array_equal(rows.advantages[name], alone.advantages)
        np.testing.assert_array_equal(rows.returns[name], alone.returns)
    np.testing.assert_allclose(rows.advantages["total"], rows.advantages["goal"] + rows.advantages["time"], atol=1e-6)
    assert len(rows) == 8


def test_with_one_value_the_components_are_added_up(two_components):
    """GAE is linear: the advantage of the sum is the sum of the advantages."""
    rows = by_component(two_components, values_too=False)
    assert rows.returns.shape == rows.advantages.shape == (8,)
    np.testing.assert_allclose(rows.advantages, by_component(two_components).advantages["total"], atol=1e-6)


def test_normalised_components_still_add_up(two_components):
    rows = by_component(two_components, normalize_advantage=True)
    total, alone = rows.advantages["total"], by_component(two_components, values_too=False, normalize_advantage=True)
    np.testing.assert_allclose(total, alone.advantages, atol=1e-5)
    np.testing.assert_allclose(total, rows.advantages["goal"] + rows.advantages["time"], atol=1e-6)
    raw = by_component(two_components).advantages
    ratio = [raw[name].std() / rows.advantages[name].std() for name in NAMES]
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-5)  # no component gains weight


def test_final_value_by_component():
    def returns(final, terminated):
        buffer = TrajectoryBuffer()
        buffer.add_episode([0], [0], [{"a": 1.0, "b": 2.0}], [{"a": 0.0, "b": 0.0}], final, terminated)
        buffer.compute_returns_and_advantages(0.5, 1.0)
        return {name: float(x[0]) for name, x in buffer.rows().returns.items()}

    assert returns({"b": 8.0, "a": 4.0}, False) == {"a": 3.0, "b": 6.0}
    assert returns({"b": 8.0, "a": 4.0}, True) == {"a": 1.0, "b": 2.0}
    assert returns(0.0, False) == {"a": 1.0, "b": 2.0}
    with pytest.raises(TrajectoryError, match="final_value: a number, but values are by component: a, b"):
        returns(1.0, False)
    with pytest.raises(TrajectoryError, match=r"final_value\['b'\]: missing"):
        returns({"a": 1.0}, False)
    with pytest.raises(TrajectoryError, match=r"final_value\['c'\]: given"):
        returns({"a": 1.0, "b": 1.0, "c": 1.0}, False)


def test_a_single_component_may_be_called_total():
    buffer = TrajectoryBuffer()
    buffer.add_episode([0], [0], [{"total": 1.0}], [{"total": 0.25}], terminated=True)
    buffer.compute_returns_and_advantages(1.0, 1.0)
    assert {name: x.tolist() for name, x in buffer.rows().advantages.items()} == {"total": [0.75]}


# --- what goes in comes out ------------------------------------------------------------------------------------------

Point = namedtuple("Point", "x y")


def nested_step(t):
    return {
        "state": {"image": np.full((2, 2), t, np.uint8), "pair": (np.float32(t), Point(t, np.array([t, -t])))},
        "action": (t % 2, np.array([0.5 * t], np.float32)),
        "reward": float(t),
        "value": 0.1 * t,
        "log_prob": {"choice": -0.1, "amount": np.array([-0.2])},
        "mask": np.array([1, t % 2], np.int8),
        "mu": np.array([t, t + 1.0]),
        "index": t,
    }


def stack(steps):
    return jax.tree.map(lambda *x: np.stack([np.asarray(i) for i in x]), *steps)


@pytest.fixture(scope="module")
def nested():
    buffer = TrajectoryBuffer()
    buffer.start_episode()
    for t in range(5):
        buffer.add_step(**nested_step(t))
    buffer.finish_episode(1.0)
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    return buffer


def test_nested_steps_keep_their_structure_and_dtypes(nested):
    rows = nested.rows()
    steps = [nested_step(t) for t in range(5)]
    assert_trees_equal(rows.states, stack([s["state"] for s in steps]))
    assert_trees_equal(rows.actions, stack([s["action"] for s in steps]))
    assert_trees_equal(rows.extras, stack([{"mu": s["mu"], "index": s["index"]} for s in steps]))
    assert isinstance(rows.states["pair"][1], Point)
    np.testing.assert_array_equal(rows.masks, [[True, t % 2 == 1] for t in range(5)])
    assert rows.masks.dtype == bool
    assert rows.log_probs["amount"].shape == (5, 1) and rows.log_probs["amount"].dtype == np.float32


@pytest.mark.parametrize("form", ["lists", "arrays"])
def test_a_whole_episode_is_the_same_as_its_steps(nested, form):
    steps = [nested_step(t) for t in range(5)]
    names = dict(zip(steps[0], ["states", "actions", "rewards", "values", "log_probs", "masks", "mu", "index"]))
    columns = {plural: [s[name] for s in steps] for name, plural in names.items()}
    if form == "arrays":
        columns = {plural: stack(x) for plural, x in columns.items()}
    buffer = TrajectoryBuffer()
    buffer.add_episode(**columns, final_value=1.0)
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    for name in ("states", "actions", "values", "returns", "advantages", "log_probs", "masks", "extras"):
        assert_trees_equal(getattr(buffer.rows(), name), getattr(nested.rows(), name))
    assert (len(buffer), buffer.num_episodes) == (5, 1)


def test_components_of_a_whole_episode(two_components):
    buffer = TrajectoryBuffer()
    for i, episode in enumerate(two_components):
        length = len(episode["goal"][0])
        rewards, values = ({name: episode[name][k] for name in NAMES} for k in (0, 1))
        if i == 0:  # the same, as one dict per step
            rewards, values = ([{n: x[n][t] for n in NAMES} for t in range(length)] for x in (rewards, values))
        final = {name: episode[name][2] for name in NAMES}
        buffer.add_episode(np.arange(length), [0] * length, rewards, values, final, episode["goal"][3])
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    assert_trees_equal(buffer.rows().advantages, by_component(two_components).advantages)


def test_a_step_is_copied():
    """Environments may write the next observation into the array they returned."""
    buffer, state = TrajectoryBuffer(), np.zeros(2)
    buffer.start_episode()
    for t in range(3):
        state[:] = t
        buffer.add_step(state, 0, 1.0, 0.0)
    buffer.finish_episode()
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    assert buffer.rows().states[:, 0].tolist() == [0, 1, 2]
    buffer.rows().states[:] = 7
    assert buffer.rows().states[:, 0].tolist() == [0, 1, 2]


def test_what_was_not_given_is_none(nested):
    rows = computed([([1.0], [0.0], 0.0, True)])
    assert rows.masks is None and rows.extras == {}
    buffer = TrajectoryBuffer()
    buffer.add_episode([0], [0], [1.0], [0.0])
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    assert buffer.rows().log_probs is None


def test_jax_arrays_come_in_and_go_out(nested):
    buffer = TrajectoryBuffer()
    buffer.start_episode()
    buffer.add_step(jnp.ones(3), jnp.int32(1), jnp.float32(2.0), jnp.float32(0.5), log_prob=jnp.float32(-1.0))
    buffer.finish_episode(jnp.float32(4.0))
    buffer.compute_returns_and_advantages(0.5, 1.0)
    assert buffer.rows().returns.tolist() == [4.0] and isinstance(buffer.rows().states, np.ndarray)

    for seed, batch in enumerate(nested.create_minibatches(2, seed=0, as_jax=True)):
        assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(batch))
        plain = nested.create_minibatches(2, seed=0)[seed]
        np.testing.assert_array_equal(batch.states["image"], plain.states["image"])
    rows = nested.rows(as_jax=True)
    assert float(jax.jit(lambda b: b.returns.sum())(rows)) == pytest.approx(nested.rows().returns.sum(), rel=1e-6)
    assert len(rows) == 5 and isinstance(rows.states["pair"][1], Point)


def test_jax_is_imported_only_when_asked_for():
    program = """
import sys, regimen
buffer = regimen.TrajectoryBuffer()
buffer.add_episode([0.0, 1.0], [0, 1], [1.0, 1.0], [0.0, 0.0], terminated=True, success=True)
buffer.compute_returns_and_advantages(0.9, 0.8)
buffer.create_minibatches(1), buffer.stats()
assert not {'jax', 'gymnasium', 'flax'} & set(sys.modules), 'too much imported'
assert type(buffer.rows(as_jax=True).returns).__module__.startswith('jax')
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_order_of_names_is_not_a_difference():
    buffer = TrajectoryBuffer()
    buffer.start_episode()
    buffer.add_step({"x": 0.0, "y": 1.0}, 0, {"a": 1.0, "b": 2.0}, {"b": 0.0, "a": 0.0})
    buffer.add_step({"y": 3.0, "x": 2.0}, 0, {"b": 4.0, "a": 3.0}, {"a": 0.0, "b": 0.0})
    buffer.finish_episode(terminated=True)
    buffer.compute_returns_and_advantages(1.0, 1.0)
    rows = buffer.rows()
    assert rows.states["x"].tolist() == [0, 2] and rows.states["y"].tolist() == [1, 3]
    assert rows.returns["a"].tolist() == [4, 3] and rows.returns["b"].tolist() == [6, 4]


def test_computing_again_replaces_the_results():
    buffer = filled([([1.0, 1.0], [0.0, 0.0], 1.0, False)] * 2)
    buffer.compute_returns_and_advantages(0.0, 0.0, normalize_advantage=True)
    buffer.compute_returns_and_advantages(0.5, 1.0)
    assert buffer.rows().returns.tolist() == [1.75, 1.5] * 2


def test_public():
    assert regimen.TrajectoryBuffer is TrajectoryBuffer


# --- minibatches -----------------------------------------------------------------------------------------------------


@checked
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 60), st.booleans(), st.integers(0, 99))
def test_every_row_exactly_once_in_balanced_minibatches(lengths, size, shuffle, seed):
    buffer = filled([([1.0] * n, [0.5] * n, 0.0, True) for n in lengths])
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    batches = buffer.create_minibatches(size, seed=seed, shuffle=shuffle)
    rows = [int(row) for batch in batches for row in batch.states[:, 0]]
    count, sizes = sum(lengths), [len(batch) for batch in batches]
    assert sorted(rows) == list(range(count))
    assert len(batches) == -(-count // size) and max(sizes) - min(sizes) <= 1 and max(sizes) <= size
    assert shuffle or rows == list(range(count))
    whole = buffer.rows()
    for batch in batches:  # the fields of a row stay together
        row = batch.states[:, 0]
        np.testing.assert_array_equal(batch.actions, row % 3)
        np.testing.assert_array_equal(batch.log_probs, whole.log_probs[row])
        np.testing.assert_array_equal(batch.advantages, whole.advantages[row])
        np.testing.assert_array_equal(batch.returns, whole.returns[row])


def test_a_size_above_the_buffer_is_one_full_batch():
    buffer = filled([([1.0] * 5, [0.0] * 5, 0.0, True)] * 2)
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    assert [len(batch) for batch in buffer.create_minibatches(999_999)] == [10]
    assert [len(batch) for batch in buffer.create_minibatches(np.int64(4))] == [4, 3, 3]


def test_the_seed_decides_the_order():
    def orders(buffer, *seeds):
        buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
        return [buffer.create_minibatches(1000, seed=seed)[0].states[:, 0].tolist() for seed in seeds]

    data = [([1.0] * 100, [0.0] * 100, 0.0, True)]
    a, b, c = orders(filled(data), 3, 3, 4)
    assert a == b != c
    first, second = orders(filled(data), None, None)
    assert first != second  # every epoch another order
    assert [first, second] == orders(filled(data), None, None)  # and the same in another run
    assert orders(filled(data, seed=1), None) != [first]
    assert orders(filled(data), np.random.default_rng(3)) == [a]


# --- statistics ------------------------------------------------------------------------------------------------------


def test_stats_of_finished_episodes():
    buffer = TrajectoryBuffer()
    assert buffer.stats() == {"num_episodes": 0, "total_steps": 0}
    buffer.add_episode([0, 0], [0, 0], {"goal": [1.0, 2.0], "time": [-0.5, -0.5]}, [0.0, 0.0], success=True)
    buffer.add_episode([0] * 4, [0] * 4, {"goal": [0.0] * 4, "time": [-0.5] * 4}, [0.0] * 4, success=False)
    buffer.add_episode([0] * 3, [0] * 3, {"goal": [2.0] * 3, "time": [-1.0] * 3}, [0.0] * 3)
    buffer.start_episode()
    buffer.add_step(0, 0, {"goal": 100.0, "time": 0.0}, 0.0)
    stats = buffer.stats()  # returns are 2, -2 and 3; the open episode has no part
    assert stats == pytest.approx(
        {
            "num_episodes": 3,
            "total_steps": 9,
            "return_mean": 1.0,
            "return_std": np.std([2, -2, 3]),
            "return_min": -2.0,
            "return_max": 3.0,
            "length_mean": 3.0,
            "success_rate": 0.5,
            "reward/goal": 3.0,
            "reward/goal_min": 0.0,
            "reward/goal_max": 6.0,
            "reward/time": -2.0,
            "reward/time_min": -3.0,
            "reward/time_max": -1.0,
        }
    )
    assert {type(x) for x in stats.values()} == {int, float}
    assert (len(buffer), buffer.num_episodes, repr(buffer)) == (10, 3, "TrajectoryBuffer(3 episodes, 10 steps)")


def test_stats_without_success_or_components():
    assert "success_rate" not in filled([([1.0], [0.0], 0.0, True)]).stats()
    assert not [name for name in filled([([1.0], [0.0], 0.0, True)]).stats() if name.startswith("reward/")]


def test_clear_forgets_everything():
    buffer = filled([([1.0], [0.0], 0.0, True)])
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    buffer.start_episode()
    buffer.clear()
    assert (len(buffer), buffer.num_episodes) == (0, 0)
    with pytest.raises(TrajectoryError, match="no advantages yet"):
        buffer.create_minibatches(1)
    buffer.add_episode({"of": [0.0]}, (np.zeros((1, 3)),), [{"a": 1.0}], [0.0])  # a step may look different now
    buffer.compute_returns_and_advantages(GAMMA, LAMBDA)
    assert len(buffer.rows()) == 1


# --- the words of others ---------------------------------------------------------------------------------------------

EPISODE = {"states": [[0.0], [1.0]], "actions": [0, 1], "rewards": [1.0, 2.0], "values": [0.5, 0.25]}
END = {"log_probs": [-0.7, -0.6], "final_values": 4.0, "terminated": False, "success": True}


def test_the_words_of_other_buffers():
    """An episode by the names that a reader of others' code has, or as one dict, is the episode it is by ours."""
    ours = TrajectoryBuffer()
    ours.add_episode(*EPISODE.values(), 4.0, False, [-0.7, -0.6], success=True)
    by_name, as_dict, by_step = TrajectoryBuffer(), TrajectoryBuffer(), TrajectoryBuffer()
    by_name.add_episode(**EPISODE, **END)
    as_dict.add_episode(EPISODE | END)
    by_step.start_episode()
    for t in range(2):
        by_step.add_step(*(column[t] for column in EPISODE.values()), END["log_probs"][t])
    by_step.finish_episode(final_values=4.0, terminated=False, success=True)
    ours.compute_returns_and_advantages(0.5, 1.0)
    expected = ours.rows()
    assert expected.returns.tolist() == [3.0, 4.0]
    for buffer in (by_name, as_dict, by_step):
        buffer.compute_returns_and_advantages_for_all_episodes(0.5, 1.0)
        (minibatch,) = buffer.create_minibatches(minibatch_size=2, shuffle=False)
        for name in ("states", "actions", "rewards", "values", "log_probs", "returns", "advantages"):
            np.testing.assert_array_equal(minibatch[name], getattr(expected, name))
        assert minibatch["rewards"].tolist() == [1.0, 2.0] and set(minibatch) == set(minibatch.keys())
        assert buffer.stats()["avg_reward"] == buffer.stats()["return_mean"] == 3.0
        assert buffer.stats()["avg_length"] == 2.0 and "avg_reward" not in list(buffer.stats())


def test_rewards_of_a_minibatch_are_by_component_where_they_came_so():
    buffer = TrajectoryBuffer()
    buffer.add_episode([0, 1], [0, 0], {"a": [1.0, 2.0], "b": [0.0, -1.0]}, [0.0, 0.0], terminated=True)
    buffer.compute_returns_and_advantages(0.9, 0.9)
    assert {name: x.tolist() for name, x in buffer.rows()["rewards"].items()} == {"a": [1.0, 2.0], "b": [0.0, -1.0]}


def test_what_is_nothing_here_is_answered():
    buffer = TrajectoryBuffer()
    for use, words in (
        (
            lambda: buffer.add_episode(*EPISODE.values(), [-0.7, -0.6], 4.0, False),
            "give log_probs, final_value",
        ),
        (lambda: buffer.add_episode(*EPISODE.values(), 4.0, [False, True]), "one value each, after values"),
        (lambda: buffer.add_episode([0.0], [1]), "add_episode: no rewards; give states, actions, rewards and values"),
    ):
        with pytest.raises(TrajectoryError, match=words):
            use()
        assert len(buffer) == 0
    with pytest.raises(AttributeError, match=r"here it is `buffer.clear\(\)`"):
        buffer.clear_memory()
    buffer.add_episode(**EPISODE)
    buffer.compute_returns_and_advantages(0.9, 0.9)
    with pytest.raises(KeyError, match=r"old_log_probs.*here it is `minibatch.log_probs`"):
        buffer.rows()["old_log_probs"]
    with pytest.raises(KeyError, match="'state'; a column is one of states, actions"):
        buffer.rows()["state"]
