"""Every rule fires when it should and not before."""

import json
import math

import pytest

from regimen.config.schema import StopConfig
from regimen.envs.metric import Metric
from regimen.errors import ConfigError
from regimen.runs.stopping import Bands, Budget, Condition, Convergence, NoImprovement, Rules, Streak, check_rules


def feed(rule: Convergence, *returns: float) -> Convergence:
    for value in returns:
        rule.episode(value)
    return rule


def test_convergence_needs_a_full_window_at_the_target_and_then_patience():
    rule = Convergence(target=10, window=3, patience=2)
    feed(rule, 50, 50)
    assert rule.fired is None, "two episodes are not a window"
    assert feed(Convergence(target=10, window=3, patience=1), 60, 0).fired is None, "nor is their sum a mean of three"
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
    rule = Streak([Condition("train/x", above, below)], streak=2)
    for value in values:
        rule.evaluation({} if value is None else {"train/x": value})
    assert (rule.fired is not None) == fires
    if rule.fired is not None:
        assert rule.fired.code == "metric" and "train/x" in rule.fired.reason and "2 evaluations" in rule.fired.reason


@pytest.mark.parametrize(
    ("stop", "value", "sentence"),
    [
        ({"metric": "eval/return_mean", "above": 475}, 499.5, "evaluation return reached 499.5 (at least 475)"),
        (
            {"metric": "eval/los", "below": 0.1, "streak": 2},
            0.05,
            "evaluation conflicts (los) fell to 0.05 (at most 0.1 for 2 evaluations in a row)",
        ),
        ({"metric": "train/loss", "below": 1}, 0.5, "train/loss fell to 0.5 (at most 1)"),
    ],
)
def test_the_reason_is_a_sentence_with_the_label_of_the_metric(stop, value, sentence):
    """One that others have too says which of them it is."""
    declared = {"los": Metric("max", label="conflicts"), "conflicts": Metric("sum", label="conflicts")}
    rules = Rules.of(StopConfig(**stop), None, None, declared)
    for _ in range(stop.get("streak", 1)):
        rules.evaluation({stop["metric"]: value})
    assert rules.fired().reason == sentence


def metrics(*names: str) -> dict[str, Metric]:
    """Metrics of an environment, of which `los` is a violation."""
    return {name: Metric("max", violation=name == "los") for name in names}


def streaks(**stop) -> Rules:
    return Rules.of(StopConfig(**stop), None, None, metrics("los", "reached", "success"))


def test_a_conflict_in_one_episode_ends_both_streaks_and_a_miss_only_the_perfect_one():
    rules = streaks(zero_conflict_streak=3, perfect_streak=2)
    seen = []
    for los, success in ((0.0, 1.0), (0.1, 0.9), (0.0, 0.9), (0.0, 1.0), (0.0, 0.9)):
        seen.append(rules.evaluation({"eval/los": los, "eval/success_rate": success}))
    assert [c["zero_conflict_streak"] for c in seen] == [1, 0, 1, 2, 3]
    assert [c["perfect_streak"] for c in seen] == [1, 0, 0, 1, 0]
    assert rules.fired().code == "zero_conflict" and rules.fired().converged
    assert "no evaluation episode had a conflict for 3 evaluations" in rules.fired().reason


def test_a_perfect_streak_fires_at_its_number():
    rules = streaks(perfect_streak=2)
    perfect = {"eval/los": 0.0, "eval/success_rate": 1.0}
    rules.evaluation(perfect)
    assert rules.fired() is None
    rules.evaluation(perfect)
    assert rules.fired().code == "perfect"


def test_streaks_are_counted_where_no_rule_is_set_and_absent_where_there_are_no_conflicts():
    rules = streaks()
    for _ in range(50):
        columns = rules.evaluation({"eval/los": 0.0, "eval/success_rate": 1.0})
    assert columns == {"zero_conflict_streak": 50, "perfect_streak": 50} and rules.fired() is None
    assert Rules.of(StopConfig(), None, None, metrics("chosen")).evaluation({"eval/return_mean": 1.0}) == {}


def judged(bands: Bands, *evaluations: tuple[int, float], episodes: int = 20) -> Bands:
    for steps, los in evaluations:
        bands.evaluation({"env_steps": steps, "eval/los": los, "eval/episodes": episodes})
    return bands


def test_a_band_is_judged_at_its_end_by_the_share_of_its_episodes():
    bands = judged(Bands("eval/los", 100, share=0.95, needed=2, least=3), (50, 0.05), (100, 0.05))
    assert (bands.band, bands.good, bands.judged) == (1, 1, 1), "38 of 40 are just enough"
    judged(bands, (150, 0.0), (200, 0.15))
    assert (bands.band, bands.good, bands.judged) == (2, 0, 2), "37 of 40 are too few"
    judged(bands, (300, 0.0))
    assert (bands.good, bands.judged, bands.fired) == (1, 3, None)
    judged(bands, (400, 0.0))
    assert bands.fired is not None and bands.fired.code == "bands" and "2 bands of 100 steps" in bands.fired.reason


def test_bands_wait_for_the_least_number_of_them():
    bands = judged(Bands("eval/los", 100, share=1.0, needed=1, least=3), (100, 0.0), (200, 0.0))
    assert bands.good == 2 and bands.fired is None
    assert judged(bands, (300, 0.0)).fired is not None


def test_bands_are_judged_late_where_no_evaluation_meets_their_end_and_passed_over_without_one():
    bands = judged(Bands("eval/los", 100, share=1.0, needed=2, least=2), (30, 0.0), (130, 0.0))
    assert (bands.band, bands.judged) == (2, 1)
    judged(bands, (730, 0.5))
    assert (bands.band, bands.judged, bands.good) == (8, 2, 2) and bands.fired is not None


def test_bands_can_fire_however_rarely_a_run_is_evaluated():
    assert judged(Bands("eval/los", 8_200, 0.95, 2, 3), *[(i * 50_000, 0.0) for i in range(1, 5)]).fired is not None


@pytest.mark.parametrize(
    ("stop", "names", "text"),
    [
        ({"zero_conflict_streak": 20}, (), "stop.zero_conflict_streak: cartpole does not report a metric of conflicts"),
        ({"perfect_streak": 5}, ("los",), "'success' (its metrics: los)"),
        ({"band_steps": 5}, ("chosen",), "--stop.band-steps none"),
    ],
)
def test_rules_about_conflicts_are_refused_where_there_are_none(stop, names, text):
    with pytest.raises(ConfigError) as error:
        check_rules(StopConfig(**stop), "cartpole", metrics(*names))
    assert text in str(error.value)
    check_rules(StopConfig(**stop), "airspace", metrics("los", "success"))


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
    assert Budget(4000).check(4000, 0).reason == "the budget of 4,000 steps is spent"
    assert Budget(4000).check(8192, 0).reason == "the budget of 4,000 steps is spent (8,192 were used)"


def make_rules() -> Rules:
    stop = StopConfig(
        target_return=1,
        convergence_window=2,
        patience=3,
        metric="eval/return_mean",
        above=9,
        streak=2,
        no_improvement=4,
        zero_conflict_streak=3,
        band_steps=30,
    )
    return Rules.of(stop, 10, None, metrics("los", "success"))


def test_rules_continue_where_they_were_saved():
    whole, first = make_rules(), make_rules()
    returns = [0.1 * i % 3 for i in range(12)]
    points = [
        {"eval/return_mean": v, "env_steps": 20 * (i + 1), "eval/los": 0.1 * (i == 1), "eval/episodes": 10}
        for i, v in enumerate((9.5, 1.0, 2.0, 9.1, 9.2))
    ]
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
    bands = whole.by_name["bands"]
    assert (whole.by_name["zero_conflict"].run, bands.judged, bands.good) == (3, 3, 3)
    assert whole.by_name["metric"].fired is not None and whole.fired() == second.fired()


def test_a_rule_that_fired_but_was_not_yet_asked_is_saved():
    rules, again = make_rules(), make_rules()
    rules.episodes([2.0] * 10)
    assert rules.fired().code == "converged"
    again.restore(rules.state(), stopped=False)
    assert again.fired() == rules.fired()


def test_a_run_that_a_rule_ended_goes_on_until_the_rule_holds_anew():
    rules, again = make_rules(), make_rules()
    rules.episodes([2.0] * 10)
    rules.evaluation({"eval/return_mean": 3.0, "env_steps": 10, "eval/los": 1.0, "eval/episodes": 10})
    again.restore(rules.state(), stopped=True)
    assert again.fired() is None
    assert again.by_name["no_improvement"].best == 3.0, "the others keep their waits"
    again.episodes([2.0] * 4)
    assert again.fired() is None
    again.episodes([2.0])
    assert again.fired().code == "converged"


def test_the_sum_of_the_window_does_not_drift():
    rule = feed(Convergence(target=math.inf, window=3, patience=0), *[1e9, -1e9, 0.1] * 1000, 1.0, 2.0, 3.0)
    assert rule.total == pytest.approx(6.0, abs=1e-4)
