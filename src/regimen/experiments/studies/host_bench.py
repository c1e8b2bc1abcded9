"""Trainings of a study on environments that Python steps: one seed after the other, each with an engine of its own."""

import dataclasses
from collections.abc import Callable

from regimen.engines.base import Engine
from regimen.envs import registry
from regimen.experiments.studies.bench import Bench
from regimen.experiments.studies.curves import Curve
from regimen.policies.evaluate import make_evaluator
from regimen.runs.build import make_engine
from regimen.runs.loop import Loop, LoopGoal


class HostBench(Bench):
    """One regimen's training on a Gymnasium environment. It has no middle to go back to: such environments cannot be
    copied, so nothing is measured after an outlier."""

    def __post_init__(self):
        self.handle = registry.resolve(self.config.env, self.config.env_args)

    def train(
        self,
        lr: float,
        tick: Callable[[float], None] = lambda share: None,
        until: Callable[[list[Curve]], bool] = lambda curves: False,
    ) -> list[Curve]:
        config = self.regimen.apply(self.config)
        config = config.replace(algo=dataclasses.replace(config.algo, lr=float(lr)))
        handle, curves = registry.resolve(config.env, config.env_args), []
        for number, seed in enumerate(self.seeds):
            engine = make_engine(config, handle, [seed], lambda: False)
            try:
                curves.append(self.train_one(engine, seed, lambda share, n=number: tick((n + share) / len(self.seeds))))
            finally:
                engine.close()
        return curves

    def train_one(self, engine: Engine, seed: int, tick: Callable[[float], None]) -> Curve:
        """One seed for the whole budget."""
        evaluator = make_evaluator(self.handle, engine.algo)
        curve = Curve(seed)
        self.recent = [{"training": [], "entropy": []}]
        try:
            self.loop = Loop(self.handle, engine, [seed], evaluator, self.eval_episodes)
            self.look([curve], 0)
            for index in range(1, self.checks + 1):
                goal = LoopGoal(steps=round(self.budget * index / self.checks))
                self.loop.reach(lambda k, goal=goal: goal, self.absorb)
                self.look([curve], index)
                tick(index / self.checks)
        finally:
            evaluator.close()
        return curve
