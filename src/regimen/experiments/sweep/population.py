"""Population based training (Jaderberg et al. 2017, arXiv 1711.09846): who takes over from whom, with which settings.

Every `every` updates of a sweep with `--method pbt`, each member has a score: the mean of the metric over the episodes
that it ended in training since the last time. Exploit: a member among the worst `share` takes over what a member among
the best has learned (truncation selection). Explore: it goes on with that member's settings, each one step up or down
within its range. All of it is a function of the plan, the round and the scores. Jax-free.

A round is a file, `rounds/0003.json`, written after the checkpoints of all members; a member's settings at any time are
read from these files.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from regimen.config.fields import Count
from regimen.config.regimen import resolve
from regimen.config.schema import StopConfig, TrainConfig
from regimen.errors import ConfigError
from regimen.experiments.sweep.space import SweepPlan
from regimen.files.sealed import read_sealed, reading, write_sealed

ROUNDS, END = "rounds", "end"
SHARE = 0.25  # of the members that take over, unless --share says otherwise
PARTS = 20  # rounds of a training, unless --every says otherwise
KEEP = 3  # checkpoints of a member, at least: those of the last round and of the one before

Settings = dict[str, float]


@dataclass(frozen=True)
class Round:
    """What was decided between two stretches of training; lists are by member."""

    number: int
    updates: list[int]
    steps: list[int]
    scores: list[float | None]  # None: no episode has ended since the last round
    alive: list[bool]  # False: it had diverged, or was through with its budget
    sources: list[int]  # from whom each goes on: itself, unless it took over
    settings: list[Settings]  # with which it goes on

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        write_sealed(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> Round:
        with reading(path):
            return cls(**read_sealed(path))


def decide(
    plan: SweepPlan,
    number: int,
    updates: list[int],
    steps: list[int],
    scores: Sequence[float | None],
    alive: Sequence[bool],
    settings: Sequence[Mapping[str, float]],
) -> Round:
    """Exploit and explore. Only a member that is worse takes over; of equal ones the lower number counts as better."""
    sign = 1 if plan.lower else -1
    order = sorted((sign * s, k) for k, s in enumerate(scores) if s is not None and alive[k])
    group = min(max(1, math.floor((plan.share or SHARE) * len(order))), len(order) // 2)
    best, worst = order[:group], sorted(order[len(order) - group :], key=lambda one: one[1])
    rng = np.random.default_rng([plan.draw_seed, 0x9B7, number])
    sources, new = list(range(len(scores))), [dict(one) for one in settings]
    for score, k in worst:
        better, source = best[int(rng.integers(group))]
        ups = rng.random(len(plan.random)) < 0.5
        if better < score:
            sources[k] = source
            draws = zip(plan.random.items(), ups)
            new[k] = {key: draw.step(settings[source][key], bool(up)) for (key, draw), up in draws}
    return Round(number, list(updates), list(steps), list(scores), list(alive), sources, new)


def first_settings(plan: SweepPlan) -> list[Settings]:
    """What the members begin with."""
    return [plan.numbers(n) for n in range(plan.trials)]


def rounds_of(folder: Path) -> list[Round]:
    """The rounds of a population so far, in order, without the end."""
    return [Round.load(path) for path in sorted((folder / ROUNDS).glob("[0-9]*.json"))]


def round_path(folder: Path, number: int) -> Path:
    return folder / ROUNDS / f"{number:04d}.json"


def end_of(folder: Path) -> Round | None:
    """The last scores, where all members are through with their budget."""
    path = folder / ROUNDS / f"{END}.json"
    return Round.load(path) if path.is_file() else None


def member(plan: SweepPlan, n: int) -> TrainConfig:
    """The configuration of a member: a seed of its own, a checkpoint at every round, no rule that ends it alone."""
    config = plan.config(plan.draw(n))
    keep = max(KEEP, config.checkpoint.keep)
    checkpoint = dataclasses.replace(config.checkpoint, every=f"{plan.every} updates", keep=keep)
    evaluation = config.eval if "eval.every" in plan.named else dataclasses.replace(config.eval, every="never")
    seed = config.seed + n
    return config.replace(seed=seed, stop=StopConfig(), checkpoint=checkpoint, eval=evaluation)


def updates_of(config: TrainConfig) -> int:
    """Updates of a training by its budget; ConfigError where it has none."""
    regimen = resolve(config, native=True)
    budget = config.total_steps if regimen.kind == "steps" else config.total_episodes
    if budget is None:
        unit = "env steps (--total-steps)" if regimen.kind == "steps" else "episodes (--total-episodes)"
        raise ConfigError(f"--method: it shares out a budget, and updates of this run count in {unit}; give one")
    return -(-budget // regimen.n)


def with_every(plan: SweepPlan) -> SweepPlan:
    """The plan with the updates between two rounds."""
    if plan.every is not None:
        return plan
    return dataclasses.replace(plan, every=max(1, updates_of(plan.config(plan.draw(0))) // PARTS))


def require_population(plan: SweepPlan) -> None:
    """Refuse what a population cannot have, each in one line."""
    if plan.grid:
        raise ConfigError("--grid: pbt moves numbers within ranges; give --random KEY=log:LOW:HIGH")
    if plan.trials < 2:
        raise ConfigError("--trials: a population needs at least two members")
    if plan.seeds > 1:
        raise ConfigError("--seeds: every member of a population has a seed of its own, from --seed on; leave it out")
    reason = plan.in_one_program()
    if reason is not None:
        raise ConfigError(f"--method pbt: its members are one compiled program, but {reason}; use --method tpe")
    for key, draw in plan.random.items():
        if draw.kind not in ("uniform", "log"):
            raise ConfigError(f"--random {key}: pbt moves uniform and log ranges, not {draw.kind}")
    config = plan.config(plan.draw(0))
    for name in plan.named:
        if name.startswith(("stop.", "checkpoint.every")):
            raise ConfigError(f"{name}: has no effect in a population, whose members end together; leave it out")
    if config.rollout.lag or config.curriculum:
        raise ConfigError("--method pbt: members with a lag or a curriculum are not supported; leave it out")
    every = Count.parse(config.eval.every) if "eval.every" in plan.named else None
    if every is not None and (every.unit != "updates" or every.n % (plan.every or 1)):
        raise ConfigError(f"eval.every: members are evaluated between rounds; use a multiple of {plan.every} updates")
    updates = updates_of(config)
    if plan.every is None or plan.every >= updates:
        raise ConfigError(f"--every: {plan.every} updates leave no round; the budget is {updates} updates")
