"""Trials with the engines of `regimen train`: native training in whole episodes, greedy evaluation.

Candidates that differ only in data (the environment's fields, say) share one compiled program. A candidate may go on
from the policy of another: networks, optimiser and normaliser are taken over, counters and randomness begin anew.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.engines.base import Progress
from regimen.engines.native import NativeEngine
from regimen.envs import registry
from regimen.envs.protocol import Env
from regimen.errors import ConfigError
from regimen.experiments.search.gate import Rate
from regimen.experiments.search.trial import Arrays, Measurement, Sample, StretchResult
from regimen.policies.evaluate import Evaluation, make_evaluator, summarize
from regimen.policies.policy import save_policy
from regimen.runs.build import make_engine
from regimen.runs.loop import Evaluator, Loop, LoopGoal
from regimen.trees import flatten, unflatten
from regimen.types import Clock, EpisodeRows, State


@dataclass
class Program:
    """What candidates with one configuration share."""

    handle: registry.EnvHandle
    env: Env  # of the configuration, from which candidates' environments are made
    engine: NativeEngine
    evaluator: Evaluator
    loop: Loop
    first: State

    def state(self, arrays: Arrays | None) -> State:
        """The first state, or the one in `arrays`."""
        return self.first if arrays is None else unflatten(self.first, arrays, "a policy of the search")


class EngineTrial:
    """A subclass says which configuration a candidate is trained with (`config_of`), which environment it plays where
    they differ in data (`env_of`), and what is measured (`values`, `rates`, `row`)."""

    def __init__(self, seed: int = 0):
        self.seed = seed
        self.programs: dict[str, Program] = {}
        self.candidate = -1
        self.sharing: tuple[int, ...] = ()  # candidates that one policy is trained on at once

    def config_of(self, candidate: int) -> TrainConfig:
        """The settings that the candidate is trained with; -1: those of a warm-up."""
        raise NotImplementedError

    def env_of(self, candidate: int, env: Env) -> Env:
        """The environment it plays, made from that of its configuration; of one form for all that share a program."""
        return env

    def env_of_all(self, candidates: Sequence[int], env: Env) -> Env:
        """An environment that draws one of these candidates for every episode; of the same form."""
        raise ConfigError(f"{type(self).__name__}: candidates cannot share a policy; it has no `env_of_all`")

    def values(self, played: Evaluation) -> np.ndarray:
        """What is to be maximised, by episode.  # [n]"""
        return played.returns

    def rates(self, played: Evaluation) -> tuple[np.ndarray, float] | None:
        """What the gate looks at, by episode (0..1, [n]), and of how many events that is; None without a gate."""
        return None

    def row(self, played: Evaluation) -> dict[str, float]:
        """What the logs say beside value and rate."""
        return {}

    @property
    def adopts(self) -> bool:
        """Whether all policies begin from one."""
        return False

    def adopt(self, program: Program) -> State:
        """The state that candidates begin with: a fresh one, unless policies come from elsewhere."""
        return program.engine.state

    def identity(self) -> dict[str, object]:
        """What a directory must have been begun with to be continued."""
        return {"config": layers.to_dict(self.config_of(-1)), "seed": self.seed}

    @property
    def unit(self) -> int:
        return int(self.config_of(self.candidate).rollout.episodes or 1)

    @property
    def compiling(self) -> bool:
        return any(p.engine.compiling or p.evaluator.compiling for p in self.programs.values())

    def program(self, candidate: int) -> Program:
        config = self.config_of(candidate)
        key = repr(config)
        if key not in self.programs:
            if not config.rollout.episodes:
                raise ConfigError("rollout.episodes: a search counts whole episodes; set how many one update takes")
            plain = registry.resolve(config.env, config.env_args)
            if plain.native is None:
                raise ConfigError(f"{plain.id}: a search compiles its trainings and needs a native environment")
            handle = dataclasses.replace(plain, native=self.env_of(candidate, plain.native))
            engine = make_engine(config, handle, [self.seed], lambda: False)
            assert isinstance(engine, NativeEngine)
            evaluator = make_evaluator(handle, engine.algo)
            loop = Loop(handle, engine, [self.seed], evaluator)
            program = Program(plain, plain.native, engine, evaluator, loop, engine.state)
            program.first = jax.tree.map(jnp.copy, self.adopt(program))  # the engine donates its own
            self.programs[key] = program
        return self.programs[key]

    def start(self, candidate: int, arrays: Arrays | None, number: int) -> None:
        """`number` -1 goes on exactly where `arrays` were taken."""
        self.candidate, self.sharing, program = candidate, (), self.program(candidate)
        self.place(program, program.state(arrays), number, self.env_of(candidate, program.env))

    def place(self, program: Program, state: State, number: int, env: Env) -> None:
        if number >= 0:
            state = state.replace(key=jax.random.fold_in(jax.random.key(self.seed), number), clock=Clock.zero())
        program.engine.env = env
        program.engine.place(state, program.engine.carry)

    def share(self, candidates: Sequence[int], arrays: Arrays | None, number: int) -> None:
        """A new policy has networks of its own, unless all begin from a run."""
        self.candidate, self.sharing, program = -1, tuple(candidates), self.program(-1)
        state = program.state(arrays)
        if arrays is None and not self.adopts and number > 0:
            key = jax.random.fold_in(jax.random.key(self.seed), number)
            state = program.engine.algo.init(jax.random.fold_in(key, 0))
        self.place(program, state, number, self.env_of_all(candidates, program.env))

    def train(self, episodes: int) -> StretchResult:
        loop = self.program(self.candidate).loop
        rows: list[dict[str, float]] = []
        parts: list[EpisodeRows] = []

        def absorb(progress: Mapping[int, Progress]) -> None:
            advance = progress[0]
            parts.append(jax.tree.map(np.asarray, advance.episodes))
            for i in range(advance.updates):
                of_update = jax.tree.map(partial(np.compress, parts[-1].update == i, axis=0), parts[-1])
                rows.append(self.summary(of_update) | {"seconds": advance.seconds / advance.updates})

        loop.begin()
        loop.reach(lambda k: LoopGoal(episodes // self.unit), absorb)
        if not parts:
            return StretchResult(0)
        whole = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        means = self.summary(whole) if len(whole.length) else {}
        trained = loop.tallies[0].updates * self.unit
        return StretchResult(trained, means.get("value"), means.get("rate"), tuple(rows), loop.tallies[0].diverged)

    def played(self, candidate: int, episodes: int, number: int) -> Evaluation:
        """Greedy episodes of a candidate."""
        program = self.program(self.candidate)
        native = self.env_of(candidate, program.env)
        program.evaluator.handle = dataclasses.replace(program.evaluator.handle, native=native)
        program.loop.episodes = episodes
        return program.loop.evaluate(0, number)

    def play(self, candidate: int, episodes: int, number: int) -> Sample:
        played = self.played(candidate, episodes, number)
        rates = self.rates(played)
        values = np.asarray(self.values(played), np.float64)
        return Sample(values) if rates is None else Sample(values, *rates)

    def measure(self, episodes: int, number: int) -> Measurement:
        played = self.played(self.candidate, episodes, number)
        values = np.asarray(self.values(played), np.float64)
        rates = self.rates(played)
        rate = None if rates is None else Rate.of(rates[0], events=rates[1])
        error = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else abs(float(values.mean()))
        return Measurement(float(values.mean()), error, episodes, rate, self.row(played))

    def arrays(self) -> Arrays:
        return flatten(self.program(self.candidate).engine.state)

    def save(self, path: Path, candidate: int, arrays: Arrays | None) -> None:
        """The policy in `arrays`, or the first one, as a folder that `regimen.load_policy` reads."""
        program, config = self.program(candidate), self.config_of(candidate)
        meta = {"env": config.env, "env_args": self.env_args_of(candidate), "seed": self.seed}
        algo = program.engine.algo
        save_policy(path, config.algorithm, algo, algo.actor_params(program.state(arrays)), meta)

    def env_args_of(self, candidate: int) -> dict[str, object]:
        """What makes the candidate's environment again."""
        return dict(self.config_of(candidate).env_args)

    def summary(self, episodes: EpisodeRows) -> dict[str, float]:
        """Means of some episodes of training."""
        handle = self.program(self.candidate).handle
        played = summarize(handle, "training", self.seed, episodes, np.asarray(episodes.terminated))
        out = {"episodes": len(played.returns), "value": float(np.mean(self.values(played)))}
        rates = self.rates(played)
        if rates is not None:
            out["rate"] = float(rates[0].mean()) if len(rates[0]) else 0.0
        return out | self.row(played)
