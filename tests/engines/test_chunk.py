"""The loop of a chunk with made-up turns: its limits, the update it refuses, and turns without episodes."""

import jax
import jax.numpy as jnp
import pytest

from regimen.engines.base import FOREVER, Limits
from regimen.engines.chunk import Turn, chunk
from regimen.engines.offline import no_episodes
from regimen.types import Clock, EpisodeRows, Model, State

STEPS = 5  # of every turn


def start():
    return State({"policy": Model(jnp.zeros(()))}, {}, jax.random.key(0), Clock.zero(), {})


def turn(state, carry, last=FOREVER, episodes=2):
    """Counts in `carry`; refused from `last` on."""
    clock = state.clock.advance(jnp.int32(STEPS), jnp.int32(episodes))
    row = jnp.zeros(episodes, jnp.int32)
    rows = EpisodeRows(
        jnp.int32(episodes), row, row + STEPS, jnp.ones((episodes, 1)), row + 1, jnp.zeros(episodes, bool), {}
    )
    return Turn(
        state=state.replace(clock=clock),
        carry=carry + 1,
        finite=state.clock.updates < last,
        steps=jnp.int32(STEPS),
        ended=jnp.array([episodes], jnp.int32),
        metrics={"loss": carry * 10.0, "entropy": jnp.float32(1.0)},
        episodes=rows if episodes else no_episodes(1),
    )


@jax.jit
def counted(limits):
    return chunk(turn, start(), jnp.int32(0), limits)


@pytest.mark.parametrize(
    ("limits", "updates"),
    [
        (Limits(3), 3),
        (Limits(100, steps=4 * STEPS), 4),
        (Limits(100, steps=4 * STEPS + 1), 5),  # the first update that reaches it
        (Limits(100, episodes=5), 3),
        (Limits(0, 0, 0), 0),
    ],
)
def test_a_chunk_ends_at_the_first_limit(limits, updates):
    end = counted(jax.tree.map(jnp.int32, limits))
    assert (int(end.updates), int(end.carry), int(end.state.clock.updates)) == (updates, updates, updates)
    assert (int(end.steps), int(end.ended.sum()), bool(end.finite)) == (STEPS * updates, 2 * updates, True)
    assert end.buffers.metrics["loss"][:updates].tolist() == [10.0 * i for i in range(updates)]
    rows = end.buffers.episodes
    assert rows.update[: 2 * updates].tolist() == [i for i in range(updates) for _ in range(2)]
    assert rows.step[: 2 * updates].tolist() == [STEPS * (i + 1) for i in range(updates) for _ in range(2)]


def test_a_turn_that_is_not_finite_is_told_and_not_applied():
    end = chunk(lambda state, carry: turn(state, carry, last=2), start(), jnp.int32(0), Limits(10))
    assert (int(end.updates), int(end.carry), int(end.steps)) == (2, 2, 2 * STEPS)
    assert not end.finite and end.buffers.episodes.count.tolist() == [4]
    assert end.buffers.metrics["loss"][:3].tolist() == [0.0, 10.0, 20.0]  # the last is that of the refused one


def test_turns_without_episodes_need_no_rows():
    end = chunk(lambda state, carry: turn(state, carry, episodes=0), start(), jnp.int32(0), Limits(200))
    assert int(end.updates) == 200 and end.buffers.episodes.count.tolist() == [0]
    assert end.buffers.episodes.update.shape == (0,)
