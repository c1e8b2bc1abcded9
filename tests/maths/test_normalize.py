"""Running statistics equal numpy's over everything seen, however it was split."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from regimen.normalize import RunningStats


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 1000), st.floats(-50, 50))
def test_merging_equals_all_at_once(sizes, seed, offset):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(offset, 3, (n, 2)).astype(np.float32) for n in sizes]
    stats = RunningStats.zero((2,))
    for part in parts:
        stats = stats.merge(RunningStats.of(jnp.asarray(part), jnp.ones(len(part), bool)))
    everything = np.concatenate(parts)
    np.testing.assert_allclose(stats.mean, everything.mean(0), rtol=1e-4, atol=1e-3)
    if len(everything) > 1:
        np.testing.assert_allclose(stats.std(), everything.std(0), rtol=1e-2, atol=1e-3)


def test_invalid_rows_do_not_count():
    x = jnp.array([[1.0], [2.0], [1e9]])
    stats = RunningStats.of(x, jnp.array([True, True, False]))
    assert float(stats.count) == 2 and float(stats.mean[0]) == 1.5


def test_identity_before_any_data_and_clipped_after():
    empty = RunningStats.zero((1,))
    assert float(empty.normalize(jnp.array([3.0]))[0]) == 3.0
    full = RunningStats.of(jnp.array([[0.0], [1.0]]), jnp.ones(2, bool))
    assert float(full.normalize(jnp.array([1e6]))[0]) == 10.0
