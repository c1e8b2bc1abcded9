"""The compiled chunk: once per run, the same whatever its size, seeds that do not disturb each other."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
from regimen import trees
from regimen.engines import chunk as engine_module
from regimen.engines.base import IDLE, Limits
from regimen.engines.chunk import append, empty_rows
from regimen.types import EpisodeRows
from support import BROKEN

pytestmark = pytest.mark.usefixtures("compilation_cache")
LUCK = f"{BROKEN}:Luck"  # episodes of 4 steps, so 8 in an update of 32


engine_of = partial(kit.engine_of, LUCK)


@pytest.fixture(scope="module")
def single():
    return restartable(engine_of())


@pytest.fixture(scope="module")
def trio():
    return restartable(engine_of(seeds=(0, 1, 2)))


def restartable(engine):
    """An engine that is compiled once and set back to its start for each test."""
    start = jax.device_get(trees.flatten((engine.state, engine.carry)))
    engine.prepare()
    env = engine.env

    def restart():
        tree = trees.unflatten((engine.state, engine.carry), start, "the start")
        engine.state, engine.carry = jax.tree.map(jnp.copy, tree)
        engine.env, engine.speed = env, 1e9
        return engine

    return restart


def arrays_of(engine, k=0):
    return trees.flatten(engine.snapshot(k))


def params_of(engine, k=0):
    return trees.flatten(engine.snapshot(k)["state"].models["policy"].params)


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def differ(a, b):
    return any(not np.array_equal(a[name], b[name]) for name in a)


def taken_in_pieces(engine, *sizes):
    """The metrics and episodes of all updates."""
    parts, updates, steps = [], 0, 0
    for n in sizes:
        p = engine.advance([Limits(n)])[0]
        assert p.updates == n
        rows = {"update": p.episodes.update + updates, "step": p.episodes.step + steps, "reward": p.episodes.reward}
        parts.append(p.metrics | rows | {"steps": p.steps})
        updates, steps = updates + n, steps + int(p.steps.sum())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_results_do_not_depend_on_how_many_updates_a_chunk_covers(single):
    rows, states = [], []
    for sizes in ((9,), (1, 2, 6), (1,) * 9):
        engine = single()
        rows.append(taken_in_pieces(engine, *sizes))
        states.append(arrays_of(engine))
    for other in (1, 2):
        assert_equal(rows[0], rows[other])
        assert_equal(states[0], states[other])
    assert differ(states[0], arrays_of(single())), "a restart is a restart"


def test_limits_end_a_chunk_at_the_update_that_reaches_them(single):
    engine = single()
    assert engine.advance([Limits(200, steps=65)])[0].steps.tolist() == [32, 32, 32]
    assert engine.advance([Limits(200, episodes=17)])[0].episodes.update.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    before = arrays_of(engine)
    assert engine.advance([IDLE])[0].updates == 0
    assert_equal(before, arrays_of(engine))


def test_a_float_setting_or_env_field_changes_the_result_and_not_the_program(single):
    def after(lr=1e-3, gain=1.0):
        engine = single()
        algo = jax.tree.unflatten(jax.tree.structure(engine.algo), jax.tree.leaves(engine.algo))
        algo.config = dataclasses.replace(algo.config, lr=lr)
        limits = engine.device_limits([Limits(2)])
        state = engine.program.result()(algo, engine.env.replace(gain=gain), engine.state, engine.carry, limits).state
        return trees.flatten(state.models["policy"].params)

    assert_equal(after(), after())
    assert differ(after(), after(lr=1e-2)) and differ(after(), after(gain=2.0))


def test_a_run_compiles_its_chunk_once():
    engine, compiled = engine_of(), []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        engine.advance([Limits(3)])
        first = len(compiled)
        assert first >= 1 and engine.compile_seconds > 0 and not engine.compiling
        for limits in (Limits(1), Limits(5), Limits(2, steps=40)):
            engine.advance([limits])
        assert len(compiled) == first
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_the_host_update_is_compiled_once():
    engine = kit.engine_of("gym:CartPole-v1")
    engine.advance([Limits(1)])
    programs = engine.update._cache_size()  # of all engines of this process
    for _ in range(2):
        assert engine.advance([Limits(1)])[0].updates == 1
    engine.restore(0, arrays_of(engine), "itself")  # restored arrays must not look different to jax
    engine.advance([Limits(1)])
    assert engine.update._cache_size() == programs
    engine.close()


def test_a_seed_learns_as_it_would_alone(single, trio):
    alone, group = single(), trio()
    mine, together = alone.advance([Limits(3)])[0], group.advance([Limits(3)] * 3)
    np.testing.assert_array_equal(mine.episodes.reward[:8], together[0].episodes.reward[:8])
    for name, values in mine.metrics.items():
        np.testing.assert_allclose(together[0].metrics[name], values, rtol=2e-4, atol=2e-5, err_msg=name)
    for name, x in params_of(alone).items():
        np.testing.assert_allclose(params_of(group)[name], x, rtol=1e-3, atol=1e-4, err_msg=name)
    assert differ(params_of(group, 0), params_of(group, 1))


def test_a_seed_that_has_stopped_stays_as_it_is(trio):
    group = trio()
    frozen, going = arrays_of(group, 1), arrays_of(group, 2)
    assert [p.updates for p in group.advance([Limits(2), IDLE, Limits(1)])] == [2, 0, 1]
    assert_equal(frozen, arrays_of(group, 1))
    assert differ(going, arrays_of(group, 2))


def test_a_seed_that_diverges_is_stopped_alone(trio):
    group = trio()
    group.env = group.env.replace(threshold=0.995)
    progress = group.advance([Limits(20)] * 3)
    assert 0 < sum(p.diverged for p in progress) < 3, "some of the seeds meet a NaN within 160 episodes"
    for k, p in enumerate(progress):
        assert p.updates == 20 or p.diverged
        assert int(group.snapshot(k)["state"].clock.updates) == p.updates
        assert np.isfinite(p.metrics["loss"][: p.updates]).all() and len(p.metrics["loss"]) == p.updates + p.diverged
        assert len(p.episodes.update) == 8 * p.updates and np.isfinite(p.episodes.reward).all()
        if p.diverged:
            assert not np.isfinite(p.metrics["loss"][-1])
        assert all(np.isfinite(x).all() for x in arrays_of(group, k).values())


def test_a_chunk_ends_before_its_episode_rows_overflow(monkeypatch):
    monkeypatch.setattr(engine_module, "EPISODE_ROWS", 0)  # 4 * 32 rows
    engine = engine_of()
    engine.speed = 1e9
    first, second = engine.advance([Limits(20)])[0], engine.advance([Limits(20)])[0]
    assert first.updates == second.updates == 13  # 12 * 8 + 32 rows fit, 13 * 8 + 32 would not
    assert first.episodes.update.tolist() == np.repeat(np.arange(13), 8).tolist()


def test_a_waiting_seed_does_not_overwrite_its_last_rows():
    def rows(count, fill):
        return EpisodeRows(jnp.int32(count), *(jnp.full(3, fill) for _ in range(5)), {})

    buffer = empty_rows(jax.eval_shape(lambda: rows(3, 0)), capacity=6 + 3)
    for fill in (1, 2):
        buffer = append(buffer, rows(3, fill), jnp.bool_(True))
    assert int(buffer.count) == 6
    buffer = append(buffer, rows(3, 9), jnp.bool_(False))
    assert int(buffer.count) == 6 and buffer.length[:6].tolist() == [1, 1, 1, 2, 2, 2]


def test_eight_seeds_start_without_a_deadlock():
    engine = engine_of(seeds=range(8))
    weights = [params_of(engine, k)["actor/head/kernel"] for k in range(8)]
    assert all(not np.array_equal(weights[0], w) for w in weights[1:])
