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
from regimen.experiments.search.growth import Growth, Look, luck
from regimen.experiments.search.race import Race, RaceOptions, Seen, own_errors
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


def test_the_luck_of_training_is_measured_and_not_assumed():
    """Two policies, candidates of which each has a luck with; evaluations that are nearly exact."""
    rng = np.random.default_rng(0)
    for true in (0.0, 2.0):
        merit = rng.standard_normal((200, 1))
        shift = np.array([[0.0, 7.0]])  # one policy is better at everything: that is no candidate's luck
        value = merit + shift + true * rng.standard_normal((200, 2)) + 0.5 * rng.standard_normal((200, 2))
        look = Look(100, np.arange(200), value, np.full((200, 2), 0.5))
        assert luck([look], common=True)[0] == pytest.approx(true**2, rel=0.25, abs=0.1)
    few = Look(200, np.arange(2), np.zeros((2, 2)), np.full((2, 2), 0.5))  # agree by chance: the first look counts
    assert luck([look, few], common=True)[1] > 2.0


def test_what_all_candidates_have_in_common_is_no_error_of_one():
    rng = np.random.default_rng(0)
    together = 8 * rng.standard_normal(400)
    played = [Sample(together + 3 * rng.standard_normal(400)) for _ in range(10)]
    np.testing.assert_allclose(own_errors(played), 3 / 20, rtol=0.15)
    assert own_errors(played[:2])[0] == played[0].error > 0.35  # too few to tell


def test_the_posterior_is_that_of_the_formula():
    """Candidates that tell nothing of each other: each is shrunk by what its luck, its noise and the time to the end
    leave of it, and only differences within the look count."""
    far = spaces.Space("far", ("a", "b", "c", "d"), 1000.0 * (1 - np.eye(4))[None])
    value = np.array([[1.0, 3.0], [0.0, 0.0], [5.0, 3.0], [-1.0, -3.0]])
    look = Look(100, np.arange(4), value, np.full((4, 2), 0.4))
    growth = Growth.fit(far, [look], scale=2.0)
    stays, changes, speed = np.exp(growth.hyper[-5:-2])
    told = growth.posterior(1000)
    signal = stays + changes * np.exp(-speed * np.log(10))
    mean = value.mean(1)
    noise = (luck([look], True)[0] + 0.16) / 2 / 4.0
    shrunk = signal / (stays + changes + noise) * (mean - mean.mean())
    np.testing.assert_allclose(told.mean, shrunk, atol=1e-3)
    variance = (stays + changes - signal**2 / (stays + changes + noise)) * 4.0 * (1 - 1 / 4)
    np.testing.assert_allclose(told.std**2, variance, rtol=1e-3)
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
        last = max(s.training for s in one.looks if c in s.index)
        assert f"after {last:,} episodes" in why
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
        index = one.confirmed.index if number >= 1_000_000 else one.looks[number // 1000].index
        assert who == {(c, k) for c in index for k in (1, 2)}
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
    looks = [Seen(100 * (i + 1), [0, 1, 2], v, [[0.05] * 2] * 3, None, 10) for i, v in enumerate(values)]
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
    why = Ranking(values, None, 0.0).hopeless(1.0)  # the best is at least 1.5; the others at most 1.7, 1.4 and -1.5
    assert list(why) == [2, 3] and why[3] == "its upper bound of value is 3 below the best's lower bound"
    assert list(Ranking(values, None, 0.0).hopeless(2.0)) == [3]  # 1.0; 2.2, 1.9 and -0.5
    margins = Posterior(np.array([-1.0, 1.0, 1.0, 1.0]), 0.01 * np.eye(4))  # the best in value misses the gate
    assert list(Ranking(values, margins, 0.0).hopeless(1.0)) == [3, 0]


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
