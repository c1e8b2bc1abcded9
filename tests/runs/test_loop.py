"""The loop alone, on a made-up engine: who is advanced how far, who waits, who is evaluated on which episodes."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import regimen
from regimen.engines.base import IDLE, Limits, Progress
from regimen.envs import registry
from regimen.runs.loop import Loop, LoopCounters, LoopGoal, evaluation_seed


class Engine:
    """Learners that take updates of ten steps, at most three at a time; the one in `lost` diverges after its third."""

    def __init__(self, learners, lost=None):
        self.learners, self.lost, self.asked = learners, lost, []

    def advance(self, limits):
        self.asked.append(limits)
        counts = [min(3, x.updates, -(-x.steps // 10)) for x in limits]
        return [
            Progress(np.full(n, 10), {}, SimpleNamespace(update=np.arange(n)), 0.5 + k, k == self.lost and n == 3)
            for k, n in enumerate(counts)
        ]

    def actor_params(self, k):
        return f"policy of {k}"


def make(learners=2, **more):
    engine = Engine(learners, **more)
    return Loop(registry.resolve("cartpole"), engine, range(5, 5 + learners), lambda *args: args, 4), engine


def test_every_learner_is_trained_to_its_goal_and_then_waits():
    loop, engine = make()
    seen = []
    loop.reach(lambda k: LoopGoal(updates=4 if k else 1), lambda progress: seen.append(set(progress)))
    assert [[x.updates for x in limits] for limits in engine.asked] == [[1, 4], [0, 1]]
    assert engine.asked[1][0] == IDLE and seen == [{0, 1}, {1}]
    assert [t.updates for t in loop.tallies] == [1, 4] and [t.steps for t in loop.tallies] == [10, 40]
    assert [t.episodes for t in loop.tallies] == [1, 4] and loop.seconds == 1.5 + 1.5


def test_goals_count_from_the_beginning_of_the_loop():
    loop, engine = make(1)
    for goal in (25, 25, 60):
        loop.reach(lambda k, goal=goal: LoopGoal(steps=goal))
    assert [limits[0].steps for limits in engine.asked] == [25, 30] and loop.tallies[0].steps == 60
    loop.begin()
    loop.reach(lambda k: LoopGoal(steps=60))
    assert loop.tallies[0].steps == 60 and len(engine.asked) == 4


def test_a_learner_that_diverged_is_not_advanced_again():
    loop, engine = make(2, lost=0)
    loop.reach(lambda k: LoopGoal(updates=5))
    assert [t.updates for t in loop.tallies] == [3, 5] and [t.diverged for t in loop.tallies] == [True, False]
    assert engine.asked[1] == [IDLE, Limits(2)]


def test_without_a_goal_nothing_is_advanced():
    loop, engine = make()
    loop.reach(lambda k: None)
    loop.run(lambda k: Limits(), lambda progress: None, interrupted=lambda: True)
    assert not engine.asked


def test_an_interruption_ends_the_loop_after_the_advance_is_absorbed():
    loop, engine = make(1)
    absorbed = []
    loop.run(lambda k: Limits(), absorbed.append, interrupted=lambda: len(absorbed) == 2)
    assert len(absorbed) == len(engine.asked) == 2


@pytest.mark.parametrize(
    ("goal", "left"),
    [
        (LoopGoal(updates=7), Limits(2)),
        (LoopGoal(updates=5), None),
        (LoopGoal(updates=7, steps=50), None),
        (LoopGoal(steps=51, episodes=9), Limits(steps=1, episodes=6)),
    ],
)
def test_what_is_left_of_a_goal(goal, left):
    assert LoopCounters(updates=5, steps=50, episodes=3).limits(goal) == left


def test_evaluations_have_episodes_by_seed_and_index():
    loop, _ = make()
    assert loop.evaluate(1, 7) == ("policy of 1", evaluation_seed(6, 7), 4)
    assert loop.evaluate(1, 7, "another") == ("another", evaluation_seed(6, 7), 4)


def test_nothing_else_drives_an_engine():
    """One `while` around `advance`; an engine that switches between two (offline, then online) hands it on."""
    source = Path(regimen.__file__).parent
    command = ["grep", "-rlE", r"(engine|now)\.advance\(", "--include=*.py", str(source)]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert sorted(Path(f).relative_to(source).as_posix() for f in files) == ["engines/offline.py", "runs/loop.py"]
