"""Counters that outgrow 32 bits: clock, schedules, rows, checkpoints and the normaliser go on past 2^31 and 2^40."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regimen
from kit import engine_of
from regimen import trees
from regimen.engines.base import Limits
from regimen.engines.native import swap
from regimen.files.run_dir import read_metrics
from regimen.normalize import RunningStats
from regimen.runs import ledger, session  # noqa: F401  # which makes another kind of counters of them
from regimen.types import Clock, hold
from support import UPDATE, assert_same_run, final_state, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")
FAR = {"updates": 2**31 - 3, "steps": 2**40 - 64, "episodes": 2**31 - 5}
NEAR = st.sampled_from([0, 2**30, 2**31, 2**32, 2**40]).flatmap(lambda n: st.integers(max(0, n - 5), n + 5))


def clock_at(updates=0, steps=0, episodes=0) -> Clock:
    words = updates % 2**31, steps >> 30, steps % 2**30, episodes % 2**30, updates >> 31, episodes >> 30
    return Clock(*map(jnp.int32, words))


@settings(deadline=None, max_examples=60)
@given(NEAR, NEAR, NEAR, st.lists(st.tuples(st.integers(0, 2**29), st.integers(0, 2**29)), min_size=1, max_size=8))
def test_a_clock_counts_as_integers_do(updates, steps, episodes, turns):
    clock = clock_at(updates, steps, episodes)
    for more, ended in turns:
        clock = clock.advance(jnp.int32(more), jnp.int32(ended))
        updates, steps, episodes = updates + 1, steps + more, episodes + ended
        for unit, exact in {"updates": updates, "steps": steps, "episodes": episodes}.items():
            assert clock.count(unit) == exact
            np.testing.assert_allclose(float(clock.read(unit)), exact, rtol=2**-22)
        assert [int(clock.updates_modulo(n)) for n in (1, 3, 10, 1000)] == [updates % n for n in (1, 3, 10, 1000)]


def test_an_older_policy_acts_also_where_the_counter_turns():
    lag, clock = 3, clock_at(updates=2**31 - 4)
    history = {"x": jnp.array([(2**31 - 7 + i) % 100 for i in range(3)])}  # of the updates before
    history = {"x": jnp.roll(history["x"], (2**31 - 7) % lag)}
    ages = []
    for _ in range(8):
        now = {"x": jnp.int32(clock.count("updates") % 100)}
        old, history, age = swap(history, now, clock, lag)
        ages.append((int(now["x"] - old["x"]) % 100, int(age)))
        clock = clock.advance(jnp.int32(1), jnp.int32(0))
    assert ages == [(3, 3)] * 8


def test_a_checkpoint_with_one_word_for_a_counter_is_read():
    old = {k: v for k, v in trees.flatten({"clock": clock_at()}).items() if not k.endswith("s_high")} | {
        "clock/steps_high": np.int32(7),
        "clock/updates": np.int32(2**31 - 1),
        "clock/episodes": np.int32(2**31 - 1),
    }
    clock = trees.unflatten({"clock": Clock.zero()}, old, "an old checkpoint")["clock"]
    assert [clock.count(unit) for unit in ("updates", "episodes", "steps")] == [2**31 - 1, 2**31 - 1, 7 * 2**30]


def test_a_run_goes_on_past_the_limits(tmp_path, monkeypatch):
    """Rows, schedules, checkpoints and a resume of a run that begins a few updates before them."""
    monkeypatch.setattr(Clock, "zero", lambda: clock_at(**FAR))
    monkeypatch.setattr(ledger, "Counters", partial(ledger.Counters, **FAR))
    schedules = {"algo.horizon": f"{2**32} updates", "algo.lr_schedule": "linear", "algo.normalize_obs": True}
    given = schedules | {"env_args": {"max_episode_steps": 8}, "log.every": "1", "checkpoint.every": "2"}
    whole = tiny(tmp_path / "whole", total_steps=FAR["steps"] + 8 * UPDATE, **given).run_dir
    half = tiny(tmp_path / "half", total_steps=FAR["steps"] + 4 * UPDATE, **given).run_dir
    regimen.resume(half, total_steps=FAR["steps"] + 8 * UPDATE)
    assert_same_run(whole, half)
    rows = read_metrics(whole)
    assert [row["updates"] for row in rows] == list(range(2**31 - 2, 2**31 + 6))
    assert [row["env_steps"] for row in rows] == [FAR["steps"] + UPDATE * n for n in range(1, 9)]
    assert rows[-1]["episodes"] > 2**31
    rates = [row["train/lr"] for row in rows]
    assert max(rates) - min(rates) < 1e-3 * rates[0], "half of the schedule is over, before and after"
    words = trees.unflatten(
        {"clock": Clock.zero()},
        {k.removeprefix("state/"): v for k, v in final_state(whole)[0].items() if "/clock/" in k},
        "it",
    )["clock"]
    assert words.count("updates") == rows[-1]["updates"] and words.count("episodes") == rows[-1]["episodes"]


@pytest.fixture
def far(monkeypatch):
    """Runs begin a few updates before the limits."""
    monkeypatch.setattr(Clock, "zero", lambda: clock_at(**FAR))
    monkeypatch.setattr(ledger, "Counters", partial(ledger.Counters, **FAR))


def assert_counted(run, updates):
    rows = read_metrics(run)
    assert [row["updates"] for row in rows] == [FAR["updates"] + n for n in range(1, updates + 1)]
    assert [row["env_steps"] for row in rows] == [FAR["steps"] + UPDATE * n for n in range(1, updates + 1)]
    assert rows[-1]["episodes"] > 2**31 and all(np.isfinite(row["train/loss"]) for row in rows if "train/loss" in row)
    arrays, kept = final_state(run)
    words = {k.removeprefix("state/"): v for k, v in arrays.items() if "/clock/" in k}
    clock = trees.unflatten({"clock": Clock.zero()}, words, "it")["clock"]
    for unit, name in {"updates": "updates", "steps": "env_steps", "episodes": "episodes"}.items():
        assert clock.count(unit) == rows[-1][name] == kept["counters"][unit]
    return rows


SHORT = {"env_args": {"max_episode_steps": 4}, "log.every": "1", "checkpoint.every": "2"}
LEARNER = {"algo.minibatch_size": None, "algo.epochs": None, "algo": "sac", "algo.batch_size": 8}
LEARNER |= {"algo.update_ratio": 0.25, "algo.buffer_size": 3 * UPDATE}  # a ring that comes round
LEARNT = {k: v for k, v in LEARNER.items() if k != "algo"} | {"algo.learning_starts": 0, "env_args": {}}


@pytest.mark.parametrize("learner", [{}, LEARNER], ids=["ppo", "sac"])
def test_a_run_of_a_gymnasium_environment_goes_on_past_the_limits(tmp_path, far, learner):
    env = {"env": "gym:CartPole-v1" if not learner else "gym:Pendulum-v1"}
    run = tiny(tmp_path / "run", total_steps=FAR["steps"] + 4 * UPDATE, **SHORT | learner | env).run_dir
    regimen.resume(run, total_steps=FAR["steps"] + 8 * UPDATE)
    assert_counted(run, 8)


@pytest.mark.parametrize("starts", [64, FAR["steps"] + 2 * UPDATE])
def test_a_replay_goes_on_past_the_limits(tmp_path, far, starts):
    """Its cursor, the warm-up, the slow critics and the temperature, whole and resumed."""
    given = SHORT | LEARNER | {"env": "pendulum", "algo.learning_starts": starts, "algo.policy_delay": 3}
    whole = tiny(tmp_path / "whole", total_steps=FAR["steps"] + 8 * UPDATE, **given).run_dir
    half = tiny(tmp_path / "half", total_steps=FAR["steps"] + 4 * UPDATE, **given).run_dir
    regimen.resume(half, total_steps=FAR["steps"] + 8 * UPDATE)
    assert_same_run(whole, half)
    rows = assert_counted(whole, 8)
    assert [row["train/replay_size"] for row in rows] == [UPDATE * min(n, 3) for n in range(1, 9)]
    if starts == 64:
        assert [row["train/gradient_steps"] for row in rows] == [8] * 8
        assert len({row["train/alpha"] for row in rows}) == 8


def test_several_seeds_in_one_program_go_on_past_the_limits(tmp_path, far):
    schedules = {"algo.horizon": f"{2**32} updates", "algo.lr_schedule": "linear", "algo.normalize_obs": True}
    given = SHORT | schedules | {"seeds": 2, "env": "cartpole"}
    whole = tiny(tmp_path / "whole", total_steps=FAR["steps"] + 8 * UPDATE, **given).run_dir
    half = tiny(tmp_path / "half", total_steps=FAR["steps"] + 4 * UPDATE, **given).run_dir
    regimen.resume(half, total_steps=FAR["steps"] + 8 * UPDATE)
    for seed in ("seed-0", "seed-1"):
        assert_same_run(whole / seed, half / seed)
        assert_counted(whole / seed, 8)


@pytest.mark.parametrize("period", [1, 3, 200, 2**28])
def test_a_count_with_a_period_is_held_below_32_bits(period):
    count, exact = jnp.int32(2**30 - 5), 2**30 - 5
    for more in (4, 1, 1, 2**29, 7, 2**29 - 1, 2**30 - 1, 0, 12345):
        count, exact = hold(count + more, period), exact + more
        assert int(count) % period == exact % period
        assert int(count) == exact if exact <= 2**30 else 2**30 - period < int(count) <= 2**30


@pytest.mark.parametrize("every", [2, 3, 7])
def test_the_policy_waits_for_as_many_gradient_steps_where_their_number_turns(every):
    """As from the number that leaves the same rest."""

    def actor(number):
        engine = engine_of("pendulum", algo="sac", **LEARNT, **{"algo.policy_delay": every})
        engine.state.aux["gradient_steps"] = jnp.int32(number)
        engine.advance([Limits(3)])
        assert 0 <= int(engine.state.aux["gradient_steps"]) <= 2**30 + 8
        return jax.tree.leaves(engine.state.models["actor"])

    far = 2**31 - 10
    jax.tree.map(np.testing.assert_array_equal, actor(far), actor(far % every))


def merged(count, mean, m2, batches):
    """The formula of `RunningStats.merge`, in float64."""
    for x in np.asarray(batches, np.float64):
        n = len(x)
        window = min(max(2.0**24, 2.0**10 * n), 2.0**20 * n)
        keep = min(1.0, (window - n) / max(count, 1))
        count, m2 = count * keep, m2 * keep
        delta, total = x.mean() - mean, count + n
        m2 += ((x - x.mean()) ** 2).sum() + delta**2 * count * n / total
        mean, count = mean + delta * n / total, total
    return count, mean, m2


@pytest.mark.parametrize("count", [0.0, 2.0**24 - 1000, 2.0**31, 2.0**40])
def test_a_normaliser_follows_however_much_it_has_counted(count):
    """What it sees has moved by two deviations and is three times as wide: it is there after a window or so."""
    batches = np.random.default_rng(0).normal(2.0, 3.0, (1500, 16384)).astype(np.float32)
    start = RunningStats(jnp.float32(count), jnp.float32(0.0), jnp.float32(count))

    @jax.jit
    def follow(stats, batches):
        return jax.lax.scan(lambda s, x: (s.merge(RunningStats.of(x)), None), stats, batches)[0]

    stats = follow(start, batches)
    total, mean, m2 = merged(count, 0.0, count, batches)
    np.testing.assert_allclose(float(stats.count), total, rtol=1e-6)
    np.testing.assert_allclose(float(stats.mean), mean, rtol=1e-3)
    np.testing.assert_allclose(float(stats.m2) / total, m2 / total, rtol=1e-3)
    assert mean > 1.4, "it moves"


def test_a_batch_without_rows_changes_nothing_and_a_small_count_is_exact():
    stats = RunningStats(jnp.float32(2.0**30), jnp.float32(1.5), jnp.float32(2.0**30))
    empty = RunningStats.of(jnp.zeros(4), jnp.zeros(4, bool))
    assert jax.tree.leaves(stats.merge(empty)) == jax.tree.leaves(stats)
    few, batch = RunningStats.of(jnp.arange(100.0)), RunningStats.of(jnp.arange(7.0) - 3)
    assert jax.tree.leaves(few.merge(batch)) == jax.tree.leaves(few.joined(batch))
