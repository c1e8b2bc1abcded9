"""The loop around an engine, written once and without a disk: advance the learners, evaluate them, stop each.

`Session` runs it by the rules of a configuration (`Ledger`) and adds files, console and mirror. Studies and searches
train towards goals of their own (`Loop.reach`).
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from regimen.engines.base import IDLE, Engine, Limits, Progress
from regimen.envs.registry import EnvHandle
from regimen.files.storage import Json
from regimen.policies.evaluate import Evaluation, HostEvaluator, NativeEvaluator
from regimen.runs.build import blaming_the_env
from regimen.runs.ledger import Counters
from regimen.types import PyTree

Evaluator = NativeEvaluator | HostEvaluator
Absorb = Callable[[Mapping[int, Progress]], None]  # what each learner that took part in an advance did


@dataclass(frozen=True)
class LoopGoal:
    """Where a learner is to get, counted from the beginning of its loop; whichever comes first."""

    updates: int | None = None
    steps: int | None = None
    episodes: int | None = None


@dataclass
class LoopCounters(Counters):
    """What a learner has done since its loop began."""

    diverged: bool = False  # its next update was not finite; it stays at its last good state

    def add(self, progress: Progress) -> None:
        self.updates += progress.updates
        self.steps += int(progress.steps.sum())
        self.episodes += len(progress.episodes.update)
        self.diverged |= progress.diverged

    def limits(self, goal: LoopGoal | None) -> Limits | None:
        """How far it is to the goal; None once it is reached, where there is none, or after a divergence."""
        if goal is None or self.diverged:
            return None
        rest = {unit: n - getattr(self, unit) for unit, n in asdict(goal).items() if n is not None}
        return Limits(**rest) if min(rest.values()) > 0 else None


class Loop:
    """The learners of one engine, advanced and evaluated without a disk."""

    def __init__(
        self,
        handle: EnvHandle,
        engine: Engine,
        seeds: Sequence[int],
        evaluator: Evaluator | None = None,
        episodes: int = 0,
    ):
        """`evaluator` plays `episodes` greedy episodes for each evaluation."""
        self.handle, self.engine, self.seeds = handle, engine, list(seeds)
        self.evaluator, self.episodes = evaluator, episodes
        self.begin()

    def begin(self) -> None:
        """Begin to count steps, episodes and seconds."""
        self.tallies = [LoopCounters() for _ in self.seeds]
        self.seconds = 0.0  # of training, all learners together

    def run(
        self,
        limits: Callable[[int], Limits | None],
        absorb: Absorb,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        """Advance every learner k as far as `limits(k)` and hand what it did to `absorb`, until all limits are None."""
        for _ in self.turns(limits, absorb, interrupted):
            pass

    def turns(
        self, limits: Callable[[int], Limits | None], absorb: Absorb, interrupted: Callable[[], bool]
    ) -> Iterator[None]:
        """The turns of `run` with a pause after each, in which the caller may look, or end it by not coming back."""
        while not interrupted():
            bounds = [limits(k) for k in range(len(self.seeds))]
            if all(x is None for x in bounds):
                return
            with blaming_the_env(self.handle):
                progress = self.engine.advance([IDLE if x is None else x for x in bounds])
            absorb({k: progress[k] for k, x in enumerate(bounds) if x is not None})
            yield

    def reach(self, goal: Callable[[int], LoopGoal | None], absorb: Absorb = lambda progress: None) -> None:
        """Train every learner k until it has reached `goal(k)` or diverged. `absorb` is called after each advance."""

        def count(progress: Mapping[int, Progress]) -> None:
            for k, one in progress.items():
                self.tallies[k].add(one)
            self.seconds += max(one.seconds for one in progress.values())
            absorb(progress)

        self.run(lambda k: self.tallies[k].limits(goal(k)), count)

    def evaluate(self, k: int, index: int, params: PyTree = None) -> Evaluation:
        """Greedy episodes of learner k, or of other parameters of its actor; the same ones for the same index."""
        assert self.evaluator is not None
        actor = self.engine.actor_params(k) if params is None else params
        return self.evaluator(actor, evaluation_seed(self.seeds[k], index), self.episodes)


def evaluation_seed(seed: int, index: int) -> int:
    """Starts that training never uses and that differ from one evaluation to the next."""
    return (1_000_003 * (seed + 1) + index) % 2**31


T = TypeVar("T")
Steps = Generator[Json, None, T]  # of what a callback is told after each update; only where somebody looks at them


def finish(steps: Steps[T]) -> T:
    """The outcome of a training, all of it."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
