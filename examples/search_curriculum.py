"""Search a space of your own: in which order should CartPole be taught?

python examples/search_curriculum.py
python examples/search_curriculum.py --quick     # two orders: half a minute
regimen search examples/search_curriculum.py:make --out searches/curriculum

Four lessons with poles of different length, and an exam on the longest. A candidate is an order of the lessons, trained
from nothing with an equal share of the episodes for each. A space and a trial are all that a search needs; the Kendall
kernel lets what was seen of one order speak for similar ones.
"""

from __future__ import annotations

import argparse
from typing import Any

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.experiments.search import api
from regimen.experiments.search.engine_trial import EngineTrial
from regimen.experiments.search.loop import Options
from regimen.experiments.search.space import Space, permutations
from regimen.experiments.search.trial import StretchResult

LESSONS = {"short": 0.25, "usual": 0.5, "long": 1.0, "longest": 2.0}  # of half the pole
EXAM = 2.0
UPDATE, LESSON = 10, 40  # episodes of an update, and of a lesson


class Curriculum(EngineTrial):
    """Trains an order of lessons. The pole's length is data, so that all of them share one compiled program."""

    def __init__(self, space: Space, seed: int = 0):
        super().__init__(seed)
        self.space = space
        rollout = {"rollout.episodes": UPDATE, "rollout.num_envs": UPDATE}
        self.config = layers.build_config("cartpole", overrides=rollout | {"algo.lr_schedule": "constant"})

    def config_of(self, candidate: int) -> TrainConfig:
        return self.config

    def env_of(self, candidate: int, env: Any) -> Any:
        return env.replace(half_length=EXAM)  # what is evaluated

    def train(self, episodes: int) -> StretchResult:
        """One lesson after the other. Which one it is follows from the episodes so far, so that it can be continued."""
        engine, parts = self.program(self.candidate).engine, []
        while episodes >= UPDATE:
            done = int(engine.state.clock.episodes)
            name = self.space.values[self.candidate][min(done // LESSON, len(LESSONS) - 1)]
            engine.env = engine.env.replace(half_length=LESSONS[name])
            stretch = super().train(min(episodes, LESSON - done % LESSON))
            episodes -= stretch.episodes
            parts.append(stretch)
        rows = tuple(row for part in parts for row in part.rows)
        return StretchResult(sum(p.episodes for p in parts), parts[-1].value, None, rows)


def make(seed: int = 0) -> tuple[Space, Curriculum, Options]:
    """For `regimen search examples/search_curriculum.py:make`."""
    space = permutations(tuple(LESSONS), "lessons")
    whole = LESSON * len(LESSONS)
    options = Options(
        budget=12 * (whole + 50),  # half of the 24 orders
        max_episodes=whole,
        check_every=whole,  # one look, at the end: the value is of the whole order
        check_episodes=1,
        eval_episodes=50,
        inherit="start",  # every order begins from nothing
        seed=seed,
    )
    return space, Curriculum(space, seed), options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", default="runs/curriculum_search")
    args = parser.parse_args()

    space, trial, options = make()
    if args.quick:
        options = Options(**{**vars(options), "budget": 2 * (options.max_episodes + 50)})
    found = api.run(space, trial, options, args.out, say=print, plots=not args.quick)
    best = found.search.best
    assert best is not None  # without a gate every order counts
    print(f"teach it {' then '.join(space.values[best.candidate])}: exam return {best.outcome.value:.0f}")


if __name__ == "__main__":
    main()
