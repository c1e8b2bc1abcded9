"""Races of candidates that share their training, on a problem with a known truth and without a training program."""

import dataclasses
import json

import numpy as np
import pytest

from regimen.errors import ConfigError
from regimen.experiments.search import api, race_report
from regimen.experiments.search import space as spaces
from regimen.experiments.search.gate import Gate
from regimen.experiments.search.gp import Posterior
from regimen.experiments.search.growth import COMMON as LEVELS
from regimen.experiments.search.growth import Growth, GrowthParameters, Look
from regimen.experiments.search.race import Race, RaceLook, RaceOptions, own_errors
from regimen.experiments.search.ranking import Ranking, rank
from regimen.experiments.search.store import Store
from regimen.experiments.search.trial import Sample, StretchResult

SPACE = spaces.permutations("abcd")
LUCK, NOISE, COMMON = 1.0, 3.0, 8.0


class Toy:
    """A policy is a number of episodes. A candidate is worth its merit (known), less what training has still to bring,
    plus the policy's luck with this candidate, plus noise that all candidates share and noise of its own."""

    unit, compiling = 10, False

    def __init__(self, seed: int = 0, luck: float = LUCK, merit=None):
        self.seed, self.luck = seed, luck
        self.merit = -10.0 * SPACE.distance[3] if merit is None else merit
        self.policy, self.skill, self.sharing, self.plays = 0, 0.0, (), []

    def share(self, candidates, arrays, number):
        self.sharing = tuple(candidates)
        self.skill = 0.0 if arrays is None else float(arrays["skill"])
        self.policy = number if arrays is None else int(arrays["policy"])

    def train(self, episodes):
        updates = max(episodes // self.unit, 0)
        self.skill += updates * self.unit
        rows = tuple({"episodes": self.unit, "value": self.skill, "seconds": 0.1} for _ in range(updates))
        return StretchResult(updates * self.unit, self.skill, None, rows)

    def true(self, c):
        luck = self.luck * np.random.default_rng([self.seed, self.policy, c]).standard_normal()
        return self.merit[c] + luck - 2000.0 / (self.skill + 10)

    def play(self, candidate, episodes, number):
        self.plays.append((candidate, self.policy, episodes, number))
        together = COMMON * np.random.default_rng([self.seed, number]).standard_normal(episodes)
        own = NOISE * np.random.default_rng([self.seed, number, candidate, self.policy]).standard_normal(episodes)
        values = self.true(candidate) + together + own
        return Sample(values, np.full(episodes, self.rate(candidate)), 1e9)

    def rate(self, candidate):
        return 1.0 if candidate % 2 else 0.7

    def arrays(self):
        return {"skill": np.array(self.skill), "policy": np.array(self.policy)}

    def identity(self):
        return {"toy": self.seed}


BASE = RaceOptions(budget=8000, warm_up=200, check_every=100, check_episodes=20, eval_episodes=100)


def race(path, trial=None, **changes):
    return Race(SPACE, trial or Toy(), dataclasses.replace(BASE, **changes), Store(path))


def unrelated(n):
    return spaces.Space("unrelated", tuple(map(str, range(n))), 1000.0 * (1 - np.eye(n))[None])


@pytest.mark.parametrize("true", [0.0, 2.0])
def test_the_luck_of_training_is_measured_and_not_assumed(true):
    """Two policies, candidates of which each has a luck with; evaluations that are nearly exact."""
    rng = np.random.default_rng(0)
    merit = rng.standard_normal((100, 1))
    shift = np.array([[0.0, 7.0]])  # one policy is better at everything: that is no candidate's luck
    value = merit + shift + true * rng.standard_normal((100, 2)) + 0.5 * rng.standard_normal((100, 2))
    growth = Growth.fit(unrelated(100), [Look(100, np.arange(100), value, np.full((100, 2), 0.5))])
    assert growth.luck == pytest.approx(true, rel=0.15, abs=0.3)


def test_looks_at_the_same_policies_are_no_new_trainings():
    """Two policies that are apart by 2 on 20 candidates happen to agree on the last three, and go on agreeing."""
    rng = np.random.default_rng(1)
    luck = 2.0 * rng.standard_normal((20, 2))
    luck[-3:] = 0.0
    value = rng.standard_normal((20, 1)) + luck
    first, error = Look(100, np.arange(20), value, np.full((20, 2), 0.1)), np.full((3, 2), 0.1)
    again = [Look(100 + 5 * i, np.arange(17, 20), value[-3:], error) for i in range(1, 7)]
    alone, all_of_them = (Growth.fit(unrelated(20), looks).luck for looks in ([first], [first, *again]))
    assert 1.2 < alone < 2.5 and all_of_them == pytest.approx(alone, rel=0.1)


def test_what_all_candidates_have_in_common_is_no_error_of_one():
    rng = np.random.default_rng(0)
    together = 8 * rng.standard_normal(400)
    played = [Sample(together + 3 * rng.standard_normal(400)) for _ in range(10)]
    np.testing.assert_allclose(own_errors(played), 3 / 20, rtol=0.15)
    assert own_errors(played[:2])[0] == played[0].error > 0.35  # too few to tell


def test_mean_and_contrasts_say_what_all_policies_say():
    """The posterior and the likelihood are those of the model written down policy by policy: 24 candidates, three
    policies, two looks of which the second is at half of the candidates."""
    rng, hyper = np.random.default_rng(0), (1.5, 0.4, 0.7, 0.6, 0.3, 0.4, 1.0)
    sizes = ((100, np.arange(24)), (300, np.arange(0, 24, 2)))
    looks = [Look(t, index, rng.standard_normal((len(index), 3)), np.full((len(index), 3), 0.5)) for t, index in sizes]
    blank = Growth.fit(SPACE, looks, scale=1.0)
    one = dataclasses.replace(blank, hyper=GrowthParameters(np.array([1.0]), *hyper))
    other = dataclasses.replace(blank, hyper=GrowthParameters(np.array([2.0]), 0.7, 0.2, 0.2, 0.1, 0.9, 1.0, 1.0))
    rows = [(c, k, i, np.log(look.training)) for i, look in enumerate(looks) for c in look.index for k in range(3)]
    c, k, at, u = (np.array(column) for column in zip(*rows))
    y = np.concatenate([look.value.ravel() for look in looks]) - blank.shift

    def dense(h):
        kernel, apart = SPACE.kernel(h.theta), np.abs(u[:, None] - u)
        merit = kernel[np.ix_(c, c)] * (h.stays + h.changes * np.exp(-h.speed * apart))
        luck = h.alone * (c[:, None] == c) + h.alike * kernel[np.ix_(c, c)]
        same = k[:, None] == k
        level = 3 * LEVELS * (same & (at[:, None] == at))
        cov = merit + luck * same * np.exp(-h.fades * apart) + level + 0.25 * np.eye(len(y))
        ahead = kernel[c] * (h.stays + h.changes * np.exp(-h.speed * np.abs(u - np.log(1000))))[:, None]
        mean = ahead.T @ np.linalg.solve(cov, y)
        var = kernel * (h.stays + h.changes) - ahead.T @ np.linalg.solve(cov, ahead)
        over = np.eye(24) - 1 / 24
        fit = -0.5 * y @ np.linalg.solve(cov, y) - 0.5 * np.linalg.slogdet(cov)[1]
        return over @ mean, over @ var @ over, fit

    mean, cov, fit = dense(one.hyper)
    np.testing.assert_allclose(one.posterior(1000).mean, mean, atol=1e-5)
    np.testing.assert_allclose(one.posterior(1000).cov, cov, atol=1e-5)
    assert one.log_likelihood() - other.log_likelihood() == pytest.approx(fit - dense(other.hyper)[2], abs=1e-3)


def test_a_candidate_alone_is_shrunk_by_its_luck_and_noise():
    """By hand, for candidates that tell nothing of each other, at the look itself."""
    value = np.array([[1.0, 3.0], [0.0, 0.0], [5.0, 3.0], [-1.0, -3.0]])
    growth = Growth.fit(unrelated(4), [Look(100, np.arange(4), value, np.full((4, 2), 0.4))], scale=2.0)
    signal, noise = growth.hyper.stays + growth.hyper.changes, (growth.luck**2 + 0.16) / 2 / 4.0
    mean, told = value.mean(1), growth.posterior(100)
    np.testing.assert_allclose(told.mean, signal / (signal + noise) * (mean - mean.mean()), atol=1e-3)
    np.testing.assert_allclose(told.std**2, 0.75 * 4.0 * (signal - signal**2 / (signal + noise)), rtol=1e-3)
    assert told.std[0] < growth.posterior(100_000).std[0]  # the further the end, the less is known of it


def test_levels_may_still_rise_for_all():
    """Rates that miss a gate at the first look may reach it with ten times the training."""
    looks = [Look(n, np.arange(24), np.full((24, 2), -1.0), np.full((24, 2), 0.01)) for n in (100,)]
    growth = Growth.fit(SPACE, looks, mean=0.0, scale=1.0)
    assert growth.posterior(1000).std.min() > 3 * growth.posterior(100).std.max()


def raced(path, seeds, **changes):
    out = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 99])
        merit = -8.0 * SPACE.distance[seed % 24] + 0.3 * rng.standard_normal(24)
        one = race(path / f"{seed}-{len(out)}", Toy(seed, merit=merit), **changes)
        one.run()
        out.append((one, merit))
    return out


def regret(done):
    return [merit.max() - (merit.min() if one.best is None else merit[one.best[0]]) for one, merit in done]


def test_the_best_is_seldom_dropped(tmp_path):
    """The luck of a training is larger than the next candidate is worse. Bounds of two deviations."""
    done = raced(tmp_path, range(6), budget=5000)
    assert sum(int(merit.argmax()) in one.dropped for one, merit in done) <= 1
    assert np.mean([len(one.dropped) for one, _ in done]) > 8  # though most are


@pytest.mark.long  # thirty races
def test_a_race_is_better_than_the_plain_ways_at_the_same_cost(tmp_path):
    found = {}
    for method, more in (("race", {}), ("round_robin", {"policies": 1}), ("random", {"policies": 1})):
        found[method] = np.mean(regret(raced(tmp_path / method, range(10), method=method, budget=4000, **more)))
    assert found["race"] < 0.6 * found["round_robin"] and found["race"] < 0.6 * found["random"]


def test_the_budget_is_kept_and_accounted_for(tmp_path):
    one = race(tmp_path / "s")
    assert one.run() and one.spent <= BASE.budget
    assert one.spent == sum(one.trained) + sum(one.played)
    assert sum(one.share) == pytest.approx(sum(one.trained))
    table = race_report.spending(one)
    rows = [dict(zip(table.head, row)) for row in table.rows]
    assert sum(r["episodes"] for r in rows) == pytest.approx(one.spent, abs=24)
    assert sum(r["p_best"] for r in rows) == pytest.approx(1.0)
    by_name = {r["candidate"]: r["why"] for r in rows}
    assert by_name[SPACE.keys[one.best[0]]] == "recommended"
    for c in one.dropped:
        assert "below the best's lower bound" in by_name[SPACE.keys[c]] and " after " in by_name[SPACE.keys[c]]


def test_who_is_dropped_stays_out_and_costs_nothing_more(tmp_path):
    trial = Toy()
    one = race(tmp_path / "s", trial)
    one.run()
    for c, why in one.dropped.items():
        told = next(n for n, s in enumerate(one.looks) if f"after {s.training:,} episodes" in why)
        assert not any(c in s.index for s in one.looks[told + 1 :])
        assert c not in one.confirmed.index
    sizes = [len(s.index) for s in one.looks]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 24 and sizes[-1] == BASE.finalists
    assert [s.episodes for s in one.looks] == [20 * (24 // n) for n in sizes]  # a look costs the same


def test_episodes_are_common_within_a_look_and_never_played_again(tmp_path):
    trial = Toy()
    one = race(tmp_path / "s", trial)
    one.run()
    played = {}
    for candidate, policy, _, number in trial.plays:
        played.setdefault(number, set()).add((candidate, policy))
    for number, who in played.items():
        policy, number = divmod(number, 100_000_000)
        index = one.confirmed.index if number >= 1_000_000 else one.looks[number // 1000].index
        assert who == {(c, policy + 1) for c in index}  # no policy plays the episodes of another
    assert len(trial.plays) == sum(len(who) for who in played.values())


def test_only_what_meets_the_gate_is_recommended(tmp_path):
    trial = Toy(merit=-10.0 * SPACE.distance[2])  # the best misses the gate
    one = race(tmp_path / "s", trial, gate=Gate(0.9))
    one.run()
    assert one.best is not None and one.best[0] % 2 == 1
    assert "the upper bound of its rate is below the gate" in one.dropped[2]
    trial.rate = lambda candidate: 0.7
    none = race(tmp_path / "t", trial, gate=Gate(0.9))
    none.run()
    said = race_report.ending(none)
    assert none.best is None and said[0].startswith("no candidate met the gate") and "a lower --gate" in said[-1]


@pytest.mark.parametrize("stop_after", [1, 4, 40, 90])
def test_an_interrupted_race_goes_on_exactly(tmp_path, stop_after):
    whole = race(tmp_path / "whole", gate=Gate(0.9))
    assert whole.run()
    calls = iter(range(10_000))
    part = race(tmp_path / "part", gate=Gate(0.9))
    part.stop_requested = lambda: next(calls) >= stop_after
    assert not part.run()
    again = race(tmp_path / "part", gate=Gate(0.9))
    assert again.spent < whole.spent and again.run()
    assert again.best == whole.best and again.dropped == whole.dropped
    for name in ("search.csv", "spending.csv", "training.csv", "views/posterior.json"):
        assert (tmp_path / "part" / name).read_text() == (tmp_path / "whole" / name).read_text(), name


def test_a_larger_budget_goes_on(tmp_path):
    first = race(tmp_path / "s", budget=5000)
    first.run()
    said = []
    result = api.run(SPACE, Toy(), dataclasses.replace(BASE, budget=9000), tmp_path / "s", say=said.append, plots=False)
    assert len(result.search.looks) > len(first.looks) and first.spent < result.search.spent <= 9000
    assert said[0].startswith("continuing after ")
    again = [s.training for s in result.search.looks]
    assert again == sorted(set(again))


def test_what_is_written(tmp_path):
    said = []
    summary, code = api.start((SPACE, Toy(), BASE, api.Names()), str(tmp_path / "s"), False, "", said.append, str)
    assert code == 0 and summary["best"]["candidate"] == SPACE.keys[3] and summary["best"]["policy"] in (1, 2)
    assert summary["model"]["luck_of_training"] == pytest.approx(LUCK, rel=0.6)
    assert summary["recommendation"]["words"] in said
    assert any(line.startswith("the luck of one training is worth ") for line in said)
    for name in ("posterior", "progress"):
        assert (tmp_path / "s" / "plots" / f"{name}.png").stat().st_size > 5000
    view = json.loads((tmp_path / "s" / "views" / "posterior.json").read_text())
    assert len(view["frames"]) == summary["looks"]


def test_orders_known_to_be_equal_are_recommended_as_one():
    twins = spaces.Space("twins", ("a", "b", "c"), (1 - np.eye(3))[None], members=((0, 1), (0, 1), (2,)))
    values = [[[1.0, 1.2], [1.1, 1.0], [0.0, 0.1]], [[1.0, 1.1], [1.2, 1.0], [0.1, 0.0]]]
    looks = [RaceLook(100 * (i + 1), [0, 1, 2], v, [[0.05] * 2] * 3, None, 10) for i, v in enumerate(values)]
    ranking = rank(twins, None, looks, 200)
    assert ranking.values.mean[0] == pytest.approx(ranking.values.mean[1])
    assert ranking.probabilities(0)[:2].sum() > 0.9


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"policies": 1}, "--policies: 1 is too small; it must be at least 2: how far they are apart"),
        ({"warm_up": 5}, "--warm-up: 5 is too small; it must be at least one update (10 episodes)"),
        ({"budget": 1900}, "--budget: 1,900 episodes are too few, the least is 1,960"),
        ({"gate": Gate(0.95), "eval_episodes": 50}, "can never meet a gate of 0.95: its bound needs at least 83"),
        ({"method": "rase"}, "unknown 'rase'; did you mean 'race'"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, changes, says):
    with pytest.raises(ConfigError) as e:
        race(tmp_path / "s", **changes)
    assert says in str(e.value)
    assert not (tmp_path / "s").exists()


def test_who_is_dropped_has_an_upper_bound_below_the_best_s_lower_bound():
    values = Posterior(np.array([2.0, 1.2, 0.9, -2.5]), np.diag([0.25, 0.25, 0.25, 1.0]))
    why = Ranking(values, None, 0.0, 1.0).hopeless(1.0)  # the best is at least 1.5; others at most 1.7, 1.4 and -1.5
    assert list(why) == [2, 3] and why[3] == "its upper bound of value is 3 below the best's lower bound"
    assert list(Ranking(values, None, 0.0, 1.0).hopeless(2.0)) == [3]  # 1.0; 2.2, 1.9 and -0.5
    margins = Posterior(np.array([-1.0, 1.0, 1.0, 1.0]), 0.01 * np.eye(4))  # the best in value misses the gate
    assert list(Ranking(values, margins, 0.0, 1.0).hopeless(1.0)) == [3, 0]


def test_who_may_miss_the_gate_drops_nobody():
    """The best in value is ahead of the second by more than all bounds, and passes with probability 0.84."""
    values = Posterior(np.array([9.0, 1.0, 0.0]), 0.01 * np.eye(3))
    rates = np.array([0.1, 1.0, 1.0])
    unsure, sure = (Ranking(values, Posterior(rates, error**2 * np.eye(3)), 0.0, 1.0) for error in (0.1, 0.01))
    assert list(unsure.hopeless(2.0)) == [2]  # by the second, which is sure to pass
    assert list(sure.hopeless(2.0)) == [1, 2]
    nobody = Ranking(values, Posterior(rates - 0.9, np.eye(3)), 0.0, 1.0)
    assert not nobody.hopeless(2.0)


def test_how_many_policies_would_tell():
    """Luck of 3 against merits of 2: nine policies leave a luck of 1, whose square is a quarter of that of 2."""
    ranking = Ranking(Posterior(np.zeros(2), np.eye(2)), None, 3.0, 2.0)
    assert [ranking.policies_needed(k) for k in (2, 8, 9, 20)] == [9, 9, None, None]


def test_equal_candidates_are_no_repeats_of_a_training():
    """Five equal candidates of each of twelve kinds, two policies. What a policy does to a kind, it does to all five of
    it: then the five together are no surer than one; where it does it to each by itself, they are."""
    members = tuple(tuple(range(5 * (c // 5), 5 * (c // 5) + 5)) for c in range(60))
    space = spaces.Space("kinds", tuple(map(str, range(60))), 100.0 * (1 - np.eye(60))[None], members=members)
    rng = np.random.default_rng(3)
    merit = np.repeat(rng.standard_normal(12), 5)[:, None]
    of_kinds = np.repeat(rng.standard_normal((12, 2)), 5, axis=0)
    std = {}
    for name, e in (("kinds", of_kinds), ("each", rng.standard_normal((60, 2)))):
        look = Look(100, np.arange(60), merit + e + 0.05 * rng.standard_normal((60, 2)), np.full((60, 2), 0.05))
        std[name] = Growth.fit(space, [look]).posterior(100).std.mean()
    assert std["kinds"] > 1.25 * std["each"]
