"""The airspace in BlueSky against the airspace itself. Without BlueSky only its absence is tested."""

import importlib.util

import jax
import numpy as np
import pytest

from regimen.domains.airspace import bluesky
from regimen.domains.airspace.env import Airspace
from regimen.envs.adapters.pettingzoo import ParallelNative
from regimen.envs.registry import resolve
from regimen.errors import ConfigError, EnvError

JITTER = {"position_jitter": 1.0, "heading_jitter": 5.0, "speed_jitter": 10.0}
needs_bluesky = pytest.mark.skipif(importlib.util.find_spec("bluesky") is None, reason="BlueSky is not installed")


def test_without_bluesky_the_extra_is_named(monkeypatch):
    pytest.importorskip("pettingzoo")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvError, match=r"BlueSky is not installed: pip install 'regimen\[bluesky\]'"):
        bluesky.make("head_on")


def test_seeds_start_as_the_episodes_of_a_native_evaluation():
    """`play.play_resets` splits the first half of its key by the number of episodes; a split does not depend on it."""
    start, _ = jax.random.split(jax.random.key(0))
    for j in (0, 7):
        words = [jax.random.key_data(key).tolist() for key in (jax.random.split(start, 20)[j], bluesky.start_key(j))]
        assert words[0] == words[1]


@pytest.fixture(params=[False, True], ids=["level", "vertical"])
def pair(request):
    """A scenario in BlueSky and natively, from the same start."""
    pytest.importorskip("pettingzoo")
    fields = JITTER | {"vertical": request.param}
    real = bluesky.make("cross_4all")(**fields)
    home = ParallelNative(Airspace(scenario="cross_4all", **fields))
    yield real, home
    real.close()


@needs_bluesky
@pytest.mark.long
def test_open_loop_flight_is_the_same(pair):
    """Forty random decisions: positions, speeds, observations, rewards and ends."""
    real, home = pair
    obs, _ = real.reset(seed=3)
    first, _, _ = home.begin(bluesky.Fixed(np.asarray(jax.random.key_data(bluesky.start_key(3)))))
    home.agents = list(home.possible_agents)
    assert np.allclose(np.stack([obs[agent] for agent in real.agents]), first)
    rng, shape = np.random.default_rng(0), real.native.action_space.shape
    while real.agents:
        actions = {agent: rng.uniform(-1, 1, shape).astype(np.float32) for agent in real.agents}
        one, other = real.step(actions), home.step(actions)
        a, b = jax.device_get(real.native_state), jax.device_get(home.native_state)
        assert np.hypot(a.north - b.north, a.east - b.east).max() < 0.02
        assert np.abs(a.cas - b.cas).max() < 0.02
        assert np.abs(a.min_sep - b.min_sep).max() < 0.02
        if a.level:
            assert np.abs(a.level.altitude - b.level.altitude).max() < 0.01
            assert np.abs(a.level.rate - b.level.rate).max() < 0.01
        assert real.agents == home.agents
        for agent in real.agents:
            assert np.abs(one[0][agent] - other[0][agent]).max() < 0.02
            assert one[1][agent] == pytest.approx(other[1][agent], abs=0.02)
        if real.native_state.time >= 40:
            break
    assert real.native_state.time >= 30


@needs_bluesky
@pytest.mark.long
def test_there_is_one_in_a_process(pair):
    real, _ = pair
    second = bluesky.make("head_on")()
    real.reset(seed=0)
    with pytest.raises(EnvError, match="bluesky:head_on: BlueSky is one simulator per process"):
        second.reset(seed=0)
    real.close()
    second.reset(seed=0)
    second.close()


@needs_bluesky
def test_the_handle_is_that_of_the_airspace():
    handle, home = resolve("bluesky:merge_2x2", {"neighbors": 2}), resolve("airspace/merge_2x2", {"neighbors": 2})
    assert handle.observation_space == home.observation_space and handle.agents == home.agents
    assert handle.copies == 1 and set(handle.metrics) == set(home.metrics)
    with pytest.raises(ConfigError, match="unknown scenario 'merge_2x3'; did you mean 'merge_2x2'"):
        resolve("bluesky:merge_2x3")
    with pytest.raises(ConfigError, match="no wind here"):
        resolve("bluesky:merge_2x2", {"wind": 10.0})
