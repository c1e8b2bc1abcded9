"""Counters, cadence and rows, fed with made-up progress: no learner is needed to know when something is due."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from regimen.config.fields import Count
from regimen.config.schema import CheckpointConfig as Saves
from regimen.config.schema import EvalConfig, LogConfig, StopConfig, TrainConfig
from regimen.engines.base import AGENT_STEPS, FOREVER, Limits, Progress
from regimen.runs.learner import Learner
from regimen.runs.ledger import Counters, Ledger
from regimen.runs.stopping import Stop

HANDLE = SimpleNamespace(reward_components=("total",), return_threshold=20.0, metrics={}, agents=())


def make_ledger(log="1", evaluate="never", checkpoint="never", **more) -> Ledger:
    config = TrainConfig(
        log=LogConfig(every=log), eval=EvalConfig(every=evaluate), checkpoint=Saves(every=checkpoint), **more
    )
    return Ledger(config, HANDLE, 0)


def progress(updates: list[tuple[int, list[float]]], loss: float = 1.0) -> Progress:
    """Updates as (env steps, returns of the episodes that ended)."""
    owner = np.array([i for i, (_, returns) in enumerate(updates) for _ in returns], np.int32)
    returns = np.array([r for _, ended in updates for r in ended], np.float32).reshape(-1, 1)
    n = len(returns)
    rows = SimpleNamespace(
        update=owner, step=np.arange(n), reward=returns, length=np.full(n, 3), terminated=np.ones(n, bool), metrics={}
    )
    losses = np.arange(len(updates), dtype=np.float32) + loss
    return Progress(np.array([s for s, _ in updates]), {"loss": losses}, rows, seconds=0.1)


@pytest.mark.parametrize(
    ("every", "before", "after", "due"),
    [
        ("2", (1, 0, 0), (2, 0, 0), True),
        ("2", (2, 0, 0), (3, 0, 0), False),
        ("100 steps", (0, 90, 0), (1, 99, 0), False),
        ("100 steps", (0, 90, 0), (1, 100, 0), True),
        ("100 steps", (0, 100, 0), (1, 190, 0), False),
        ("100 steps", (0, 10, 0), (1, 350, 0), True),
        ("10 episodes", (0, 0, 9), (1, 0, 12), True),
        ("10 episodes", (0, 0, 12), (1, 0, 19), False),
        ("never", (0, 0, 0), (100, 100, 100), False),
    ],
)
def test_due_when_a_multiple_was_passed(every, before, after, due):
    assert Counters(*after).due(Counters(*before), Count.parse(every)) == due


def test_an_advance_ends_at_the_next_thing_that_is_due():
    ledger = make_ledger(evaluate="10", checkpoint="1000 steps", total_episodes=50)
    assert ledger.limits(256) == Limits(10, 1000, 50)
    ledger.counters = Counters(updates=7, steps=940, episodes=45)
    assert ledger.limits(256) == Limits(3, 60, 5)
    assert ledger.limits(1) == Limits(1, 60, 5)
    ledger = make_ledger(total_steps=500)
    assert ledger.limits(256) == Limits(256, 500, FOREVER)


def test_logging_ends_an_advance_only_where_a_rule_is_checked_there():
    assert make_ledger(log="2", total_steps=500).limits(256).updates == 256
    assert make_ledger(log="2", total_steps=500, stop=StopConfig(target_return=1)).limits(256).updates == 2


def test_rows_are_means_since_the_last_row():
    ledger = make_ledger(log="2")
    rows, table, due = ledger.record(progress([(10, [1.0, 3.0]), (10, []), (10, [5.0]), (10, [])]))
    assert due == {"log"} and len(rows) == 1
    row, last = rows[0], ledger.close_row()
    assert (row["updates"], row["env_steps"], row["episodes"]) == (2, 20, 2)
    assert row["rollout/return_mean"] == 2.0 and row["rollout/return_max"] == 3.0 and row["rollout/episodes"] == 2
    assert row["train/loss"] == 1.5 and row["rollout/success_rate"] == 0.0
    assert last["train/loss"] == 3.5 and last["rollout/return_mean"] == 5.0 and last["rollout/return_ma"] == 3.0
    assert table["episode"].tolist() == [1, 2, 3] and table["update"].tolist() == [1, 1, 3]
    assert row["wall_seconds"] <= last["wall_seconds"]


def test_rows_keep_extremes_and_counts():
    ledger = make_ledger(log="3")
    done = progress([(10, []), (10, []), (10, [])])
    done.metrics |= {name: np.array([2.0, 5.0, 3.0]) for name in ("lag_min", "lag_max", "lag_mean", "restarts")}
    done.metrics["time/waiting"] = np.array([1.0, 2.0, 3.0])
    ledger.record(done)
    row = ledger.close_row()
    assert [row[f"train/{name}"] for name in ("lag_min", "lag_max", "restarts")] == [2.0, 5.0, 3.0]
    assert row["train/lag_mean"] == pytest.approx(10 / 3)
    assert row["time/waiting"] == 2.0


def test_steps_of_all_agents_are_counted():
    ledger, done = make_ledger(), progress([(10, []), (10, [])])
    ledger.record(done)
    assert ledger.close_row()["agent_steps"] == 20
    done.metrics[AGENT_STEPS] = np.array([40, 35])
    ledger.record(done)
    row = ledger.close_row()
    assert row["agent_steps"] == 95 and f"train/{AGENT_STEPS}" not in row
    old = ledger.state()
    del old["counters"]["agent_steps"]
    ledger.restore(old, 0.0)
    assert ledger.counters.agent_steps == 40, "a checkpoint of one agent"


def test_what_has_no_data_is_absent():
    ledger = make_ledger()
    ledger.record(progress([(10, [])], loss=np.nan))
    row = ledger.close_row()
    assert not [name for name in row if name.startswith(("rollout/", "train/"))]


def test_rows_do_not_depend_on_how_updates_are_grouped():
    updates = [(10 + i, [float(i)] * (i % 3)) for i in range(12)]

    def rows_of(*sizes):
        ledger, rows, start = make_ledger(log="5 episodes"), [], 0
        for size in sizes:
            part = progress(updates[start : start + size], loss=start + 1.0)
            new, _, due = ledger.record(part)
            rows += new + ([ledger.close_row()] if "log" in due else [])
            start += size
        return [{k: v for k, v in r.items() if k != "wall_seconds" and not k.startswith("time/")} for r in rows]

    assert rows_of(12) == rows_of(1, 4, 7) == rows_of(*[1] * 12)
    assert len(rows_of(12)) == 2


def test_rules_are_asked_only_where_a_row_is_due():
    ledger = make_ledger(
        log="10", total_steps=10**6, stop=StopConfig(target_return=1, convergence_window=1, patience=0)
    )
    _, _, due = ledger.record(progress([(10, [2.0])]))
    assert due == set() and ledger.rules.fired() is not None
    assert ledger.check(row_due=False) is None
    assert ledger.check(row_due=True).code == "converged"


def test_the_goal_comes_before_the_budget():
    ledger = make_ledger(log="10", total_steps=10, stop=StopConfig(target_return=1, convergence_window=1, patience=0))
    ledger.record(progress([(10, [2.0])]))
    assert ledger.check(row_due=False).code == "converged"


def test_seconds_count_from_when_this_process_took_the_run_up():
    ledger = make_ledger(stop=StopConfig(max_seconds=50))
    ledger.restore(json.loads(json.dumps(ledger.state())), seconds=100.0)
    assert ledger.seconds >= 100 and ledger.check(row_due=True) is None
    ledger.started -= 51
    assert ledger.check(row_due=True).code == "max_seconds"


def test_all_of_it_can_be_saved_between_two_rows():
    whole, first = make_ledger(log="3", total_steps=10**6), make_ledger(log="3", total_steps=10**6)
    updates = [(10, [float(i), 2.0]) for i in range(4)]
    for ledger in (whole, first):
        ledger.record(progress(updates))
        ledger.best, ledger.best_step = 1.5, 40
    second = make_ledger(log="3", total_steps=10**6)
    second.restore(json.loads(json.dumps(first.state())), seconds=1.0)
    for ledger in (whole, second):
        ledger.record(progress([(10, [7.0]), (10, [])], loss=9.0))
    assert dataclasses.asdict(whole.counters) == dataclasses.asdict(second.counters)
    assert whole.state() == second.state()


@pytest.mark.parametrize(
    ("code", "kept"), [("converged", True), ("callback", True), ("diverged", True), ("max_steps", False)]
)
def test_a_stop_is_kept_unless_a_budget_lifts_it(code, kept):
    """Saved with its stop and killed before it could say `finished`: it has ended, unless there is more to spend. One
    that is finished goes on, and the rule that ended it begins anew."""
    stop = StopConfig(target_return=5.0, convergence_window=1, patience=0)
    ledger = make_ledger(stop=stop)
    ledger.record(progress([(10, [6.0])]))
    assert ledger.rules.by_name["convergence"].fired is not None
    ledger.stop = Stop(code, "why", converged=code == "converged")
    saved = json.loads(json.dumps(ledger.state()))
    killed, finished = make_ledger(stop=stop), make_ledger(stop=stop)
    killed.restore(saved, seconds=1.0)
    assert killed.stop == (ledger.stop if kept else None)
    assert (killed.rules.by_name["convergence"].fired is not None) == kept
    finished.restore(saved, seconds=1.0, finished=True)
    assert finished.stop is None and finished.rules.by_name["convergence"].fired is None


def test_an_equal_evaluation_is_no_new_best():
    learner = object.__new__(Learner)
    learner.ledger, learner.actor_params = make_ledger(), lambda: np.zeros(1)
    found = []
    for steps, score in ((10, 1.0), (20, 1.0), (30, 0.5), (40, 2.0)):
        learner.ledger.counters.steps = steps
        found.append(learner.note_best({"eval/return_mean": score}))
    assert found == [True, False, False, True] and (learner.ledger.best, learner.ledger.best_step) == (2.0, 40)
    assert not learner.note_best({})


def test_summaries_of_updates_make_the_row_of_all_their_episodes():
    """A GPU hands over a sample and a summary: counts and figures are of all, also when saved in between."""
    rng = np.random.default_rng(0)
    every = [rng.normal(10, 3, 40), np.zeros(0), rng.normal(40, 1, 200)]
    ledger = make_ledger(log="3")
    for returns in every:
        taken = returns[np.arange(min(4, len(returns))) * len(returns) // 4]
        one = progress([(500, list(taken))])
        one.ended = np.array([len(returns)])
        squares = ((returns - returns.mean()) ** 2).sum() if len(returns) else 0.0
        figures = [returns.mean(), squares, returns.min(), returns.max()] if len(returns) else [0.0] * 4
        one.summary = {"return": np.array([figures]), "length": np.array([[3.0, 0.0, 3.0, 3.0]])}
        rows, table, due = ledger.record(one)
        ledger.close(rows, due, None)
        if not rows:
            saved = json.loads(json.dumps(ledger.state()))
            ledger = make_ledger(log="3")
            ledger.restore(saved, 1.0)
    together = np.concatenate(every)
    assert ledger.counters.episodes == 240 and rows[0]["rollout/episodes"] == 240
    assert rows[0]["rollout/return_mean"] == pytest.approx(together.mean())
    assert rows[0]["rollout/return_std"] == pytest.approx(together.std())
    assert rows[0]["rollout/return_max"] == together.max() and rows[0]["rollout/length_mean"] == 3
    assert table["episode"].tolist() == [41, 91, 141, 191]
