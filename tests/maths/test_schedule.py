"""The shuffle is a permutation, minibatches use each row once, and splitting them changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from regimen.axes import SEEDS
from regimen.schedule import NO_LIMIT, Cost, cost_limit, draw_words, for_minibatches, pack, shuffle

shuffled = jax.jit(lambda seed, n: shuffle(draw_words(jax.random.key(seed)), jnp.arange(2048), n))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 2048))
def test_shuffle_is_a_permutation(seed, n):
    assert sorted(np.asarray(shuffled(seed, n))[:n].tolist()) == list(range(n))


@pytest.mark.parametrize("n", [2, 3, 7, 24])
def test_small_shuffles_reach_every_position_evenly(n):
    keys = jax.random.split(jax.random.key(0), 4000)
    images = np.asarray(jax.vmap(lambda k: shuffle(draw_words(k), jnp.arange(n), n))(keys))
    for position in (0, n // 2, n - 1):
        counts = np.bincount(images[:, position], minlength=n)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_shuffle_leaves_no_order_behind():
    """Neighbours do not stay neighbours: rank correlation and lag-one differences look like a uniform permutation's."""
    images = np.asarray(
        jax.vmap(lambda k: shuffle(draw_words(k), jnp.arange(1000), 1000))(jax.random.split(jax.random.key(1), 200))
    )
    rho = np.array([stats.spearmanr(row, np.arange(1000)).statistic for row in images])
    assert abs(rho.mean()) < 0.01 and 0.8 < rho.std() * np.sqrt(999) < 1.25
    uniform = np.abs(np.diff(np.stack([np.random.default_rng(i).permutation(1000) for i in range(200)]))).mean()
    assert np.abs(np.diff(images)).mean() == pytest.approx(uniform, rel=0.02)


def used_rows(valid, size, epochs, micro=None, all_valid=False, cost=None):
    """How often each row was used, and the size of each minibatch, in a run of `for_minibatches`."""
    T, B = valid.shape
    data = {"row": jnp.arange(T * B).reshape(T, B), "x": jnp.ones((T, B, 3))}

    @jax.jit
    def run(valid):
        packed = pack(data, valid, all_valid, cost=cost)

        def loss(params, rows):
            one_hot = jax.nn.one_hot(rows["row"], T * B)
            return one_hot @ params, {"n": jnp.ones(len(rows["row"]))}

        def step(carry, minibatch):
            counts, sizes, i = carry
            count = (minibatch.stop - minibatch.start).astype(jnp.float32)
            grad, _ = minibatch.gradient(loss, jnp.zeros(T * B))  # the gradient counts the rows used
            return counts + grad * count, sizes.at[i].set(count), i + 1

        carry = (jnp.zeros(T * B), jnp.zeros(400), 0)
        key = jax.random.key(0)
        (counts, sizes, _), ran = for_minibatches(
            key, packed, epochs=epochs, size=size, micro=micro, step=step, carry=carry
        )
        return counts, sizes, ran

    counts, sizes, ran = run(valid)
    return np.asarray(counts), np.asarray(sizes)[: int(ran)], int(ran)


@pytest.mark.parametrize("size", [1, 7, 16, 24, 1000])
@pytest.mark.parametrize("all_valid", [True, False])
@pytest.mark.parametrize("micro", [None, 5, "by cost"])
def test_every_valid_row_once_per_epoch_in_balanced_minibatches(size, all_valid, micro):
    valid = jnp.ones((12, 4), bool) if all_valid else jax.random.bernoulli(jax.random.key(3), 0.6, (12, 4))
    cost = Cost(jax.random.randint(jax.random.key(4), (12, 4), 0, 9), (3, 8)) if micro == "by cost" else None
    micro = None if micro == "by cost" else micro
    counts, sizes, ran = used_rows(valid, size, epochs=3, micro=micro, all_valid=all_valid, cost=cost)
    rows = int(valid.sum())
    np.testing.assert_allclose(counts, 3.0 * np.asarray(valid).ravel(), atol=1e-4)
    assert ran == 3 * -(-rows // min(size, 48))
    assert sizes.max() - sizes.min() <= 1 and sizes.sum() == 3 * rows
    assert sizes.max() <= size


def test_pieces_hold_rows_of_like_cost():
    """A loss that costs what its limit says costs hardly more than its rows, and never less than one of them."""
    cost = jnp.arange(96).reshape(24, 4) % 3
    packed = pack({"cost": cost}, jnp.ones((24, 4), bool), True, cost=Cost(cost, (0, 1, 2)))

    def loss(params, rows):
        limit = cost_limit()
        assert limit is not None
        metrics = {"limit": jnp.full(len(rows["cost"]), float(limit)), "over": rows["cost"] > limit}
        return params * rows["cost"], metrics

    def step(carry, minibatch):
        return jax.tree.map(jnp.add, carry, minibatch.gradient(loss, jnp.float32(0.0))[1])

    carry = {"limit": jnp.float32(0.0), "over": jnp.float32(0.0)}
    key = jax.random.key(0)
    means, ran = for_minibatches(key, packed, epochs=1, size=96, micro=None, step=step, carry=carry)
    assert ran == 1 and cost_limit() is None
    assert means == {"limit": 1.0, "over": 0.0}  # the mean of 0, 1 and 2; in no order nearly every piece costs 2


def test_places_without_a_row_cost_what_a_row_does():
    """Most of a minibatch may be empty, where its size is only known at run time: a row that stands in its places is
    computed with all that it costs, for what comes of less may be no number."""
    cost, valid = jnp.full((24, 4), 2), jnp.arange(96).reshape(24, 4) < 5

    def loss(params, rows):
        limit = cost_limit()
        assert limit is not None
        value = jnp.where(rows["cost"] > limit, jnp.nan, 1.0)
        return params * value, {"value": value}

    def step(carry, minibatch):
        grad, metrics = minibatch.gradient(loss, jnp.float32(1.0))
        return jnp.stack([grad, metrics["value"]])

    @jax.jit
    def run(valid):
        packed = pack({"cost": cost}, valid, False, cost=Cost(cost, (0, 1, 2)))
        return for_minibatches(jax.random.key(0), packed, epochs=1, size=96, micro=None, step=step, carry=jnp.zeros(2))

    means, ran = run(valid)
    assert ran == 1 and means.tolist() == [1.0, 1.0]


def test_elsewhere_than_on_a_cpu_rows_are_not_told_apart(monkeypatch):
    """One gradient of the whole minibatch, without a limit: no sort, no branches, no small pieces."""
    cost = jnp.arange(96).reshape(24, 4) % 3
    limits = []

    def loss(params, rows):
        limits.append(cost_limit())
        return params * rows["cost"], {}

    def run():
        packed = pack({"cost": cost}, jnp.ones((24, 4), bool), True, cost=Cost(cost, (0, 1, 2)))
        return for_minibatches(
            jax.random.key(0),
            packed,
            epochs=1,
            size=24,
            micro=None,
            step=lambda total, batch: total + batch.gradient(loss, jnp.float32(0.0))[0],
            carry=jnp.float32(0.0),
        )[0]

    assert "cond[" in str(jax.make_jaxpr(lambda: run())()) and set(limits) == {0, 1, 2}
    limits.clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    text = str(jax.make_jaxpr(lambda: run())())  # another function: nothing is traced twice
    assert "cond[" not in text and "sort[" not in text and set(limits) == {NO_LIMIT}


def test_seeds_of_one_program_share_the_branch_of_a_piece():
    """The dearest seed decides: no row of any seed costs more than the limit, and only one branch is computed."""

    def run(key):
        cost = jax.random.randint(key, (12, 4), 0, 9)
        packed = pack({"cost": cost}, jnp.ones((12, 4), bool), True, cost=Cost(cost, (3, 8)))

        def loss(params, rows):
            limit = cost_limit()
            assert limit is not None
            return params * rows["cost"], {"over": 1.0 * (rows["cost"] > limit)}

        def step(over, minibatch):
            return over + minibatch.gradient(loss, jnp.float32(0.0))[1]["over"]

        return for_minibatches(key, packed, epochs=1, size=24, micro=None, step=step, carry=jnp.float32(0.0))[0]

    keys, together = jax.random.split(jax.random.key(0), 3), jax.vmap(run, axis_name=SEEDS)
    assert jax.jit(together)(keys).tolist() == [0.0, 0.0, 0.0]
    assert "cond[" in str(jax.make_jaxpr(together)(keys))


def test_minibatches_differ_between_epochs_and_keys():
    a, b = (np.asarray(shuffled(seed, 512))[:512] for seed in (0, 1))
    assert (a == b).mean() < 0.05
    packed = pack({"row": jnp.arange(64).reshape(16, 4)}, jnp.ones((16, 4), bool), True)

    def step(carry, minibatch):
        used, i = carry
        grad, _ = minibatch.gradient(lambda params, rows: (jax.nn.one_hot(rows["row"], 64) @ params, {}), jnp.zeros(64))
        return used.at[i].set(grad > 0), i + 1

    carry = (jnp.zeros((12, 64), bool), 0)
    (used, _), ran = for_minibatches(jax.random.key(0), packed, epochs=3, size=16, micro=None, step=step, carry=carry)
    assert int(ran) == 12 and (np.asarray(used).sum(-1) == 16).all()
    assert len({tuple(np.flatnonzero(first)) for first in np.asarray(used)[::4]}) == 3  # the first of each epoch


def test_pack_returns_every_leaf_unchanged():
    tree = {
        "f": jax.random.normal(jax.random.key(0), (3, 4, 2)),
        "i": jnp.arange(12, dtype=jnp.int32).reshape(3, 4) - 5,
        "b": jnp.arange(12).reshape(3, 4) % 2 == 0,
        "u": jnp.arange(24, dtype=jnp.uint8).reshape(3, 4, 2) + 230,
    }
    packed = pack(tree, jnp.ones((3, 4), bool), True)
    rows = packed.take(jnp.array([11, 0, 5]))
    for name, leaf in tree.items():
        flat = np.asarray(leaf).reshape(12, *leaf.shape[2:])
        np.testing.assert_array_equal(np.asarray(rows[name]), flat[[11, 0, 5]])
        assert rows[name].dtype == leaf.dtype
