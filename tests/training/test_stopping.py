"""Every rule fires when it should and not before."""

import json
import math

import pytest

from regimen.config import StopConfig
from regimen.training.stopping import Budget, Convergence, MetricStreak, NoImprovement, Rules


def feed(rule: Convergence, *returns: float) -> Convergence:
    for value in returns:
        rule.episode(value)
    return rule


def test_convergence_needs_a_full_window_at_the_target_and_then_patience():
    rule = Convergence(target=10, window=3, patience=2)
    feed(rule, 50, 50)
    assert rule.fired is None, "two episodes are not a window"
    feed(rule, 10)  # mean 36.7: the first best
    feed(rule, 10)  # 23.3: no new best, 1
    assert rule.fired is None
    feed(rule, 10)
    assert rule.fired is not None and rule.fired.code == "converged" and rule.fired.converged
    assert "at least 10" in rule.fired.reason and "2 episodes" in rule.fired.reason


def test_a_new_best_starts_the_wait_anew():
    rule = feed(Convergence(target=10, window=1, patience=2), 10, 10, 11, 11)
    assert rule.fired is None
    assert feed(rule, 11).fired is not None


def test_falling_below_the_target_starts_the_wait_anew():
    rule = feed(Convergence(target=10, window=1, patience=2), 12, 11, 9, 11, 11)
    assert rule.fired is None
    assert feed(rule, 11).fired is not None


def test_convergence_without_patience_fires_at_the_target():
    assert feed(Convergence(target=10, window=2, patience=0), 9, 10).fired is None
    assert feed(Convergence(target=10, window=2, patience=0), 10, 10).fired is not None


@pytest.mark.parametrize(
    ("above", "below", "values", "fires"),
    [
        (5, None, [5, 6], True),
        (5, None, [5, 4, 6], False),
        (5, None, [6, None, 6], False),
        (5, None, [4, 5, 7], True),
        (None, 5, [5, 4], True),
        (None, 5, [6, 5], False),
        (None, 0, [0, -1], True),
    ],
)
def test_metric_streak(above, below, values, fires):
    rule = MetricStreak("train/x", above, below, streak=2)
    for value in values:
        rule.evaluation({} if value is None else {"train/x": value})
    assert (rule.fired is not None) == fires
    if rule.fired is not None:
        assert rule.fired.code == "metric" and "train/x" in rule.fired.reason and "2 evaluations" in rule.fired.reason


def test_no_improvement_counts_evaluations_since_the_best():
    rule = NoImprovement(2)
    for value in (1.0, 1.0, 2.0, 2.0):
        rule.evaluation({"eval/return_mean": value})
    assert rule.fired is None
    rule.evaluation({"eval/return_mean": 1.5})
    assert rule.fired is not None and rule.fired.code == "no_improvement" and not rule.fired.converged


def test_budgets():
    assert Budget(100, None, None).check(99, 10**9, 10**9) is None
    assert Budget(100, None, None).check(100, 0, 0).code == "max_steps"
    assert Budget(None, 5, None).check(10**9, 4) is None
    assert Budget(None, 5, None).check(0, 5).code == "max_episodes"
    assert Budget(None, None, 2.5).check(10**9, 10**9, 2.4) is None
    assert Budget(None, None, 2.5).check(0, 0, 2.5).code == "max_seconds"
    assert Budget(100, 5, None).check(100, 5).code == "max_steps"
    assert Budget().check(10**12, 10**12, 10**12) is None


def make_rules() -> Rules:
    stop = StopConfig(
        target_return=1,
        convergence_window=2,
        patience=3,
        metric="eval/return_mean",
        above=9,
        streak=2,
        no_improvement=4,
    )
    return Rules.of(stop, 10, None)


def test_rules_continue_where_they_were_saved():
    whole, first = make_rules(), make_rules()
    returns = [0.1 * i % 3 for i in range(12)]
    points = [{"eval/return_mean": v} for v in (9.5, 1.0, 2.0, 9.1, 9.2)]
    for rules in (whole, first):
        rules.episodes(returns[:7])
        for point in points[:4]:
            rules.evaluation(point)
    second = make_rules()
    second.restore(json.loads(json.dumps(first.state())), stopped=False)
    for rules in (whole, second):
        rules.episodes(returns[7:])
        rules.evaluation(points[4])
    assert whole.state() == second.state()
    assert whole.metric.fired is not None and whole.fired() == second.fired()


def test_a_rule_that_fired_but_was_not_yet_asked_is_saved():
    rules, again = make_rules(), make_rules()
    rules.episodes([2.0] * 10)
    assert rules.fired().code == "converged"
    again.restore(rules.state(), stopped=False)
    assert again.fired() == rules.fired()


def test_a_run_that_a_rule_ended_goes_on_until_the_rule_holds_anew():
    rules, again = make_rules(), make_rules()
    rules.episodes([2.0] * 10)
    rules.evaluation({"eval/return_mean": 3.0})
    again.restore(rules.state(), stopped=True)
    assert again.fired() is None
    assert again.no_improvement.best == 3.0, "the others keep their waits"
    again.episodes([2.0] * 4)
    assert again.fired() is None
    again.episodes([2.0])
    assert again.fired().code == "converged"


def test_the_sum_of_the_window_does_not_drift():
    rule = feed(Convergence(target=math.inf, window=3, patience=0), *[1e9, -1e9, 0.1] * 1000, 1.0, 2.0, 3.0)
    assert rule.total == pytest.approx(6.0, abs=1e-4)
