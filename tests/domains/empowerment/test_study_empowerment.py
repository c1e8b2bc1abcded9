"""The study of empowerment: its choices are settings, and what it writes says what was measured."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from regimen.domains.empowerment import study as empowerment
from regimen.engines.base import Progress
from regimen.errors import UsageError
from regimen.experiments.studies.frame import Lines


@pytest.mark.parametrize("part", empowerment.CHOICES)
def test_every_choice_is_a_configuration_of_its_own(part):
    made = [
        empowerment.configured("world/corr5", None, settings, 1600).algo
        for settings in empowerment.CHOICES[part].values()
    ]
    assert len(set(made)) == len(made)
    for algo in made:
        assert algo.warmup_v_h_e_steps == 100 and algo.horizon == "6400 steps"
        assert (algo.source == "experience" and algo.x_h_use_network) or part in ("source", "networks")


def row(part, choice, seed, tv, diverged=False):
    told = {"part": part, "choice": choice, "seed": seed, "seconds": 1.0, "diverged": diverged, "updates": 10}
    return told | dict.fromkeys(empowerment.SCORES, tv)


class Engine:
    """Three seeds, of which the second diverges in its third update."""

    def __init__(self):
        self.algo, self.state, self.asked = None, None, []

    def advance(self, limits):
        self.asked.append([limit.updates for limit in limits])
        first = len(self.asked) == 1
        updates = [min(4, limit.updates) for limit in limits]
        updates[1] = 2 if first else 0
        ended = SimpleNamespace(update=np.zeros(0))
        return [Progress(np.ones(n), {}, ended, 0.1, first and k == 1) for k, n in enumerate(updates)]

    def at(self, tree, k):
        return SimpleNamespace(models={})


def test_a_seed_that_diverges_stops_alone_and_is_named(monkeypatch, tmp_path):
    engine = Engine()
    monkeypatch.setattr(empowerment, "make_engine", lambda *args: engine)
    monkeypatch.setattr(empowerment.validate, "solution_of", lambda *args: None)
    monkeypatch.setattr(empowerment.validate, "compare", lambda *args: None)
    monkeypatch.setattr(empowerment.validate, "measure", lambda *args: dict.fromkeys(empowerment.SCORES, 0.5))
    config = empowerment.configured("world/corr5", None, {}, 6 * 1024)
    rows = empowerment.train(config, range(3), lambda share: None)
    assert engine.asked == [[6, 6, 6], [2, 0, 2]]
    assert [(r["diverged"], r["updates"]) for r in rows] == [(False, 6), (True, 2), (False, 6)]
    rows = [row("ramp", "none", 0, 0.1), row("ramp", "none", 1, 9.0, True), row("ramp", "sigmoid", 0, 0.2)]
    study = empowerment.EmpowermentStudy(10, range(2), scores=rows, env="world/corr5", out=tmp_path)
    table = study.table()
    assert table[0]["tv_mean"] == 0.1 and table[0]["diverged"] == 1 and table[1]["diverged"] == 0
    assert "1 of 2 seeds diverged" in study.conclusions()[1] and "1 of 2 seeds diverged" in study.words()
    assert "- ramp: sigmoid" in study.words()


@pytest.mark.long
def test_a_real_study_of_a_tiny_world_comes_near_its_exact_values(tmp_path, monkeypatch, compilation_cache):
    """Nothing is replaced but the list of choices: one program is enough."""
    monkeypatch.setitem(empowerment.CHOICES, "targets", {"on": {}})
    monkeypatch.setattr(empowerment, "draw", lambda *args: None)
    quiet = Lines(quiet=True)
    study = empowerment.run("world/tiny3", out=tmp_path, parts="targets", seeds=2, budget=2048, console=quiet)
    assert [(r["part"], r["choice"], r["seed"]) for r in study.scores] == [("targets", "on", 0), ("targets", "on", 1)]
    assert all(r["updates"] == 2 and not r["diverged"] for r in study.scores)  # of 1,024 training steps each
    assert max(r["tv_mean"] for r in study.scores) < 0.02 and max(r["v_r_start_error"] for r in study.scores) < 0.01
    assert study.scores[0]["tv_mean"] != study.scores[1]["tv_mean"]  # two trainings, not one scored twice


def test_what_is_measured_is_written(tmp_path, monkeypatch):
    scores = {"sigmoid": 0.01, "linear": 0.02, "none": 0.04}

    def train(config, seeds, tick):
        kind = "none" if config.algo.beta_r_rampup_steps == 0 else config.algo.beta_r_ramp
        return [row("", "", seed, scores[kind] + 1e-4 * seed) for seed in seeds]

    monkeypatch.setattr(
        empowerment,
        "train",
        lambda *args: [{k: v for k, v in r.items() if k not in ("part", "choice")} for r in train(*args)],
    )
    study = empowerment.run("world/corr5", out=tmp_path, parts="ramp", seeds=3, budget=160, console=Lines(quiet=True))
    table = {r["choice"]: r for r in study.table()}
    assert [table[name]["tv_mean"] for name in scores] == pytest.approx([x + 1e-4 for x in scores.values()])
    assert (
        table["linear"]["seeds"] == 3
        and table["linear"]["tv_mean_ci95"][0] < 0.0201 < table["linear"]["tv_mean_ci95"][1]
    )
    text = (tmp_path / "summary.md").read_text()
    assert "- ramp: sigmoid\n" in text and "| ramp | none | 4.010% |" in text
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 1 + 9
    assert json.loads((tmp_path / "results.json").read_text())["scores"][0]["choice"] == "sigmoid"
    assert (tmp_path / "scores.png").stat().st_size > 1000


def test_one_seed_has_no_interval(tmp_path):
    rows = [row("ramp", "sigmoid", 0, 0.1), row("ramp", "none", 0, 0.2)]
    study = empowerment.EmpowermentStudy(10, range(1), scores=rows, env="world/corr5", out=tmp_path)
    study.write()
    assert study.table()[0]["tv_mean_ci95"] is None and "not to be told" in (tmp_path / "summary.md").read_text()


def test_choices_are_compared_seed_by_seed(tmp_path):
    """Seeds may differ by more than choices do; what counts is the difference within each seed."""
    base = [row("ramp", "sigmoid", k, 0.1 * k) for k in range(5)]
    study = empowerment.EmpowermentStudy(10, range(5), scores=[*base], env="world/corr5", out=tmp_path)
    study.scores += [row("ramp", "none", k, 0.1 * k + 0.01 + 0.001 * (k % 2)) for k in range(5)]
    study.scores += [row("ramp", "linear", k, 0.1 * k + 0.01 * (-1) ** k) for k in range(5)]
    assert study.apart("ramp", "sigmoid", "none") and not study.apart("ramp", "sigmoid", "linear")


def test_an_unknown_part_is_refused():
    with pytest.raises(UsageError, match="unknown part 'rampp'"):
        empowerment.chosen_parts("rampp")
