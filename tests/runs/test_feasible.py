"""Rules that cannot fire are said at the start; no preset has one."""

from __future__ import annotations

import pytest

from regimen.config import presets
from regimen.config.fields import Count
from regimen.config.layers import build_config
from regimen.config.regimen import resolve
from regimen.config.schema import TrainConfig
from regimen.domains.airspace.metrics import METRICS
from regimen.runs.feasible import evaluations, unreachable
from regimen.runs.stopping import Rules


def lines(config: TrainConfig) -> list[str]:
    rules = Rules.of(config.stop, config.total_steps, config.total_episodes, METRICS)
    return unreachable(config, resolve(config, native=True), rules)


def of(**settings: object) -> list[str]:
    """The lines of a run of 10 updates of 100 steps, evaluated after every second one, that has other settings, too."""
    base = {"total_steps": 1000, "rollout.steps": 100, "rollout.num_envs": 10, "eval.every": "2"}
    return lines(build_config("probe/action", preset="balanced", overrides=base | settings))


@pytest.mark.parametrize(
    ("settings", "needed", "advice"),
    [
        ({"stop.perfect_streak": 6}, 6, "--eval.every '1 updates'"),
        ({"stop.zero_conflict_streak": 11}, 11, "--eval.every 1 --total-steps 1100"),
        ({"stop.no_improvement": 5}, 6, "--eval.every '1 updates'"),
        ({"stop.metric": "eval/return_mean", "stop.above": 1, "stop.streak": 6}, 6, "--eval.every '1 updates'"),
        ({"stop.perfect_streak": 3, "eval.every": "400 steps"}, 3, "--eval.every '3 updates'"),
        ({"stop.perfect_streak": 11, "eval.every": "1 steps"}, 11, "--total-steps 1100"),
    ],
)
def test_a_rule_that_needs_more_evaluations_than_there_are(settings, needed, advice):
    (line,) = of(**settings)
    assert f"needs {needed} evaluations" in line and advice in line and next(iter(settings)).split("_")[0] in line
    for word in advice.split("--")[1:]:  # and the advice is right
        name, _, value = word.strip().partition(" ")
        settings = settings | {name.replace("-", "_"): value.strip("'")}
    assert of(**settings) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"stop.perfect_streak": 5},
        {"stop.no_improvement": 4},
        {"stop.perfect_streak": 10, "eval.every": "100 steps"},
        {"stop.band_steps": 100, "eval.every": "1"},
        {"stop.zero_conflict_streak": 99, "eval.every": "3 episodes"},  # nobody knows how long an episode is
        {"stop.target_return": 1.0},  # 110 episodes may have a step each
    ],
)
def test_a_rule_that_can_fire(settings):
    assert of(**settings) == []


def test_bands_and_windows_longer_than_the_budget():
    (line,) = of(**{"stop.band_steps": 400, "eval.every": "1"})
    assert "stop.band_steps cannot fire: it needs 1,200 steps" in line
    episodes = {"rollout.episodes": 10, "total_episodes": 100, "total_steps": None, "rollout.steps": None}
    (line,) = of(**episodes, **{"stop.target_return": 1.0, "rollout.num_envs": None})
    assert "stop.target_return cannot fire: it needs 110 episodes, and the budget is 100 episodes" in line


def test_every_evaluation_follows_an_update():
    config = build_config("probe/action", preset="balanced", overrides={"rollout.steps": 100})
    regimen = resolve(config, native=True)
    for every in (1, 30, 100, 130, 250, 1000):
        due = sum((i * 100) // every > ((i - 1) * 100) // every for i in range(1, 11))  # as Counters.due says
        assert evaluations(10, Count(every, "steps"), regimen) == due, every


TUNED = [(algo, name) for algo in ("ppo", "sac", "appo", "impala", "cql", "bc") for name in presets.list_tuned(algo)]


@pytest.mark.parametrize(("algorithm", "name"), TUNED)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_tuned_presets_evaluate_often_enough_for_their_rules(algorithm, name, device):
    env = name.replace("/any", "/head_on" if name.startswith("airspace") else "/bush")
    env = {"lunar_lander": "gym:LunarLander-v3", "minatar": "gymnax:Breakout-MinAtar"}.get(env, env)
    assert lines(build_config(env, algo=algorithm, overrides={"device": device})) == []


@pytest.mark.parametrize("name", sorted(presets.list_presets()))
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_presets_for_any_environment_do_too(name, device):
    config = build_config("airspace/head_on", preset=name, overrides={"device": device})
    assert lines(config) == []
    if name.startswith("atc_"):
        assert config.stop.zero_conflict_streak == 20 and config.stop.perfect_streak == 5
