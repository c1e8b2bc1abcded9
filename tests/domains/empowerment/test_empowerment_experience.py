"""What the empowerment learner keeps of what agents came to: every moment once, whatever its state is made of."""

from collections import deque
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen.domains.empowerment.learner.experience import Visits
from regimen.domains.empowerment.learner.model import Moments
from regimen.types import Batch

WORLDS = ("places", "states")


class Model:
    """Moments of a world of 30 states and 2 times, with a place for each or as they are."""

    timed, why = True, ""

    def __init__(self, kind, state=None):
        self.places = 60 if kind == "places" else 0
        self.world = SimpleNamespace(initial=lambda: jnp.zeros(1, jnp.int32) if state is None else state)

    def rows(self, obs):
        place = 2 * obs["state"][..., 0] + obs["time"] if self.places else jnp.zeros_like(obs["time"])
        return Moments(obs["state"], obs["time"], place)

    def at(self, place):
        return Moments((place // 2)[..., None], place % 2, place)


def moments(states, times, valid):
    """A batch of moments [T, B]."""
    zero = jnp.zeros(valid.shape, bool)
    obs = {"state": jnp.asarray(states), "time": jnp.asarray(times), "goal": zero}
    return Batch(obs, (), jnp.zeros((*valid.shape, 1)), zero, zero, (), jnp.asarray(valid), {})


def drawn(experience, marks):
    """All that can be drawn, as (first entry of the state, time)."""
    rows = experience.sample(marks, (), jax.random.key(0), 4000)
    return set(zip(np.asarray(rows.state)[:, 0].tolist(), np.asarray(rows.time).tolist()))


@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("capacity", [7, 16, 100])
def test_what_is_kept_is_a_queue_of_what_was_new(kind, capacity):
    """Against a queue in plain Python: new is what is not in it when a batch comes, and has not come before in it. What
    shares a slot counts as the same."""
    rng, experience = np.random.default_rng(capacity), Visits(Model(kind), capacity)
    insert = jax.jit(lambda marks, batch: experience.insert(marks, (), batch)[0])
    marks, queue = experience.init()[0], deque(maxlen=capacity)
    all_states, all_times = np.repeat(np.arange(30), 2)[:, None], np.tile([0, 1], 30)
    slots = np.arange(60) if kind == "places" else experience.hash({"state": all_states, "time": all_times})
    slot = {(int(s[0]), int(t)): int(k) for s, t, k in zip(all_states, all_times, np.asarray(slots))}
    for _ in range(60):
        states, times = rng.integers(0, 30, (5, 3, 1), np.int32), rng.integers(0, 2, (5, 3), np.int32)
        valid = rng.random((5, 3)) < 0.7
        marks = insert(marks, moments(states, times, valid))
        first, held = {}, {slot[m] for m in queue}
        for state, time in zip(states[valid][:, 0].tolist(), times[valid].tolist()):
            first.setdefault(slot[state, time], (state, time))
        queue.extend([m for k, m in first.items() if k not in held][:capacity])
        assert int(experience.size(marks)) == len(queue)
        assert int(marks["count"]) < 2 * experience.capacity + 15  # it never gets near the end of its type
    assert drawn(experience, marks) == set(queue)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "float16", "float32"])
@pytest.mark.parametrize("most", [1, 30])
def test_different_states_have_different_slots(dtype, most):
    """Nearly all of them, whatever they are made of: states that share a slot would be kept one for all."""
    rng = np.random.default_rng(0)
    unit = 64 if dtype == "float16" else 1  # fractions, all below 1
    states = rng.integers(0, most + 1, (4000, 14 if most == 1 else 4)) / unit
    states = np.unique(states.astype(dtype), axis=0)
    experience = Visits(Model("states", jnp.asarray(states[0])), 100_000)
    n = len(states)
    slots = experience.hash({"state": jnp.asarray(states), "time": jnp.zeros(n, jnp.int32)})
    assert slots.min() >= 0 and slots.max() < experience.slots
    assert len(np.unique(slots)) > 0.99 * n
    later = experience.hash({"state": jnp.asarray(states), "time": jnp.ones(n, jnp.int32)})
    assert np.mean(np.asarray(slots) == np.asarray(later)) < 0.01
