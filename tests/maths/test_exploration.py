"""Correlated noise: every value is standard normal, and neighbours are correlated as 1 / f noise is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from regimen.exploration import Pink

STEPS, STREAMS, LENGTH = 256, 4000, 128


@pytest.fixture(scope="module")
def streams():
    """[steps, streams], an episode that ends in the middle for half of them."""
    pink = Pink(1, LENGTH)

    def body(drift, x):
        t, white = x
        over = (t == STEPS // 2) & (jnp.arange(STREAMS) < STREAMS // 2)
        start = pink.start((STREAMS,))
        drift = jax.tree.map(lambda a, b: jnp.where(over.reshape(-1, *(1,) * (a.ndim - 1)), a, b), start, drift)
        value, drift = pink.step(drift, white)
        return drift, value[..., 0]

    white = jax.random.normal(jax.random.key(0), (STEPS, STREAMS, len(pink.rho), 1))
    return np.asarray(lax.scan(body, pink.start((STREAMS,)), (jnp.arange(STEPS), white))[1]), pink


def test_every_value_is_standard_normal(streams):
    values, _ = streams
    error = 5 / np.sqrt(STREAMS)
    for t in (0, 1, 10, STREAMS % STEPS, STEPS // 2, STEPS - 1):  # the first of an episode as well
        assert abs(values[t].mean()) < error and abs(values[t].var() - 1) < 1.5 * error
        assert abs((values[t] ** 4).mean() - 3) < 0.6


def test_autocorrelation_is_the_mean_over_the_bank(streams):
    values, pink = streams
    going = values[:, STREAMS // 2 :]
    for lag in (1, 4, 16, 64, 120):
        measured = (going[lag:] * going[:-lag]).mean()
        assert measured == pytest.approx((pink.rho**lag).mean(), abs=0.03)
    assert (pink.rho**LENGTH).mean() > 0.05 and (pink.rho**1).mean() > 0.7


def test_an_episode_begins_without_the_last_one(streams):
    values, _ = streams
    ended = values[:, : STREAMS // 2]
    before, after = ended[STEPS // 2 - 1], ended[STEPS // 2]
    assert abs((before * after).mean()) < 5 / np.sqrt(STREAMS // 2)


def test_power_falls_as_one_over_f(streams):
    values, _ = streams
    going = values[:, STREAMS // 2 :]
    power = (np.abs(np.fft.rfft(going, axis=0)) ** 2).mean(1)
    k = np.arange(4, 64)  # from the episode's length to a quarter of the sampling rate
    slope = np.polyfit(np.log(k), np.log(power[k]), 1)[0]
    assert slope == pytest.approx(-1.0, abs=0.1)


def test_the_bank_spans_the_episode():
    assert len(Pink(2, 8).rho) == 5 and len(Pink(2, 1000).rho) == 12 and len(Pink(1, 1).rho) == 2
    assert Pink(1, 0).rho[-1] == pytest.approx(np.exp(-1 / 1000))
    assert Pink(3, 10).start((2, 5)).state.shape == (2, 5, len(Pink(3, 10).rho), 3)
