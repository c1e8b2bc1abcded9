"""The regimen of a run: how much experience an update waits for, who collects it and how it is learned from.

`resolve` makes it once, from the settings and from what is asked of the environment; everything later reads it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from regimen.config.common import CommonHyperparameters
from regimen.config.schema import TrainConfig
from regimen.errors import ConfigError

EPISODES = 10  # of an update, where nothing else is said
MAX_NATIVE_ENVS = 64
MAX_HOST_ENVS = 8
STEP_ENVS = 8
UNKNOWN_LENGTH = 1000  # steps of an episode, for the memory estimate of an environment without a limit
LARGE = 1_000_000  # rows: a minibatch this large is the full batch of any episodes


@dataclass(frozen=True)
class Regimen:
    """What an update waits for, and what is done with it. Counts are over all environments, workers and devices."""

    kind: Literal["steps", "episodes"]
    n: int  # steps or episodes of an update; offline, its gradient steps
    num_envs: int
    native: bool
    workers: int = 1
    devices: int = 1  # that share the environments equally
    agents: int = 1  # in each environment
    max_episode_steps: int = 0  # 0: unknown
    epochs: int | None = None  # None: the algorithm does not go over a batch several times
    minibatch_size: int | None = None

    @property
    def rollout_rows(self) -> int:
        """Env steps of an update in each environment; 0 for whole episodes."""
        return self.n // self.num_envs if self.kind == "steps" else 0

    @property
    def most_rows(self) -> int:
        """Rows of an update's batch, at most; about, where the length of an episode has no limit."""
        steps = self.n if self.kind == "steps" else self.n * (self.max_episode_steps or UNKNOWN_LENGTH)
        return steps * self.agents

    def of_worker(self) -> Regimen:
        """The equal share of one worker."""
        return dataclasses.replace(self, n=self.n // self.workers, num_envs=self.num_envs // self.workers, workers=1)


def resolve(config: TrainConfig, native: bool, agents: int = 1, max_episode_steps: int | None = None) -> Regimen:
    """The regimen of these settings on an environment. `num_envs`, where it is not set, divides what an update waits
    for and is shared equally by the workers. ConfigError says what would fit."""
    rollout = config.rollout
    if rollout.steps is not None:
        kind, n = "steps", rollout.steps
    else:
        kind, n = "episodes", rollout.episodes if rollout.episodes is not None else EPISODES
    num_envs = rollout.num_envs
    if num_envs is None:
        limit = STEP_ENVS if kind == "steps" else MAX_NATIVE_ENVS if native else MAX_HOST_ENVS
        num_envs = max(d for d in divisors(n) if d <= limit)
    elif n % num_envs:
        raise ConfigError(
            f"rollout.{kind}: {n} cannot be shared equally by rollout.num_envs {num_envs}; "
            f"nearest valid: num_envs {neighbours(num_envs, divisors(n))}, or {kind} {multiples(n, num_envs)}"
        )
    workers = config.engine.workers if config.engine.distributed else 1
    if workers > 1:
        num_envs = envs_of_workers(config, kind, n, num_envs)
    common = config.common
    return Regimen(
        kind,
        n,
        num_envs,
        native,
        workers=workers,
        agents=max(1, agents),
        max_episode_steps=max_episode_steps or 0,
        epochs=common.epochs,
        minibatch_size=common.minibatch_size,
    )


def envs_of_workers(config: TrainConfig, kind: str, n: int, num_envs: int) -> int:
    """A number of environments near `num_envs` that the workers share equally; the one that is set, or an error."""
    workers = config.engine.workers
    valid = [d for d in divisors(n) if d % workers == 0]
    if not valid:
        raise ConfigError(
            f"rollout.{kind}: {n} cannot be shared equally by engine.workers {workers}; "
            f"nearest valid: workers {neighbours(workers, divisors(n))}, or {kind} {multiples(n, workers)}"
        )
    if config.rollout.num_envs is None:
        return max((d for d in valid if d <= max(num_envs, workers)), default=min(valid))
    if num_envs % workers:
        fewer = neighbours(workers, divisors(num_envs))
        raise ConfigError(
            f"rollout.num_envs: {num_envs} cannot be shared equally by engine.workers {workers}; "
            f"nearest valid: num_envs {neighbours(num_envs, valid)}, or workers {fewer}"
        )
    return num_envs


def share_rollout(config: TrainConfig, native: bool) -> TrainConfig:
    """The settings with the `num_envs` that workers share, so that config.yaml names it; unchanged without workers."""
    regimen = resolve(config, native)
    if not config.engine.distributed:
        return config
    return config.replace(rollout=dataclasses.replace(config.rollout, num_envs=regimen.num_envs))


def divisors(n: int) -> set[int]:
    return {d for i in range(1, math.isqrt(n) + 1) if n % i == 0 for d in (i, n // i)}


def multiples(n: int, divisor: int) -> str:
    """The multiples of a divisor next to a number that is not one: `8 or 12`."""
    below = n - n % divisor
    return f"{below} or {below + divisor}" if n > divisor else f"{divisor}"


def neighbours(value: int, valid: Iterable[int]) -> str:
    """The valid values next to one that is not: `8 or 12`."""
    valid = set(valid)
    near = [max((d for d in valid if d < value), default=None), min((d for d in valid if d > value), default=None)]
    return " or ".join(str(d) for d in near if d is not None)


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def describe(config: TrainConfig, regimen: Regimen) -> str:
    """The regimen in words: `update every 10 episodes, at most 5,000 steps; 4 epochs of minibatches of 64`."""
    n, num_envs = regimen.n, regimen.num_envs
    if config.data is not None:
        size = config.common.batch_size
        return f"{many(n, 'gradient step')} per update" + (f", batches of {size:,}" if size else "")
    if config.common.buffer_size is not None:
        return describe_replay(config.common, regimen)
    if regimen.kind == "episodes":
        most = n * regimen.max_episode_steps
        when = "update every episode" if n == 1 else f"update every {n:,} episodes"
        when += f", at most {most:,} steps" if most else ""
    else:
        most = n
        when = f"update every {many(n, 'step')}"
        when += f", {regimen.rollout_rows:,} in each of {num_envs:,} environments" if num_envs > 1 else ""
    size, epochs = regimen.minibatch_size, regimen.epochs
    if size is None or epochs is None:
        return when
    return f"{when}; {many(epochs, 'epoch')} of " + (
        "the full batch" if size >= (most or LARGE) else f"minibatches of {size:,}"
    )


def describe_replay(common: CommonHyperparameters, regimen: Regimen) -> str:
    """The regimen in words where an update learns from a replay."""
    n, num_envs = regimen.n, regimen.num_envs
    ratio = common.update_ratio * n
    each = f" in each of {num_envs:,} environments" if num_envs > 1 else ""
    often = many(int(ratio), "gradient step") if ratio == int(ratio) else f"{ratio:g} gradient steps on average"
    wait = common.learning_starts
    start = f"; the first {wait:,} steps are random" if wait else ""
    what = f"{often} of {common.batch_size:,} rows from a replay of {common.buffer_size:,}"
    return f"collect {many(n // num_envs, 'step')}{each}, then {what}{start}"


def describe_budget(config: TrainConfig, regimen: Regimen) -> str:
    """The budget in words: `100,000 steps`, `1,000 episodes`, or both; and what whole updates will make of it:
    `300 episodes, which whole updates of 512 overrun: 512 episodes will be used`."""
    parts = [f"{n:,} {unit}" for n, unit in ((config.total_steps, "steps"), (config.total_episodes, "episodes")) if n]
    whole = whole_updates(config, regimen)
    if whole is None or whole == getattr(config, f"total_{regimen.kind}"):
        return " or ".join(parts) or "no budget"
    most = "at most " if len(parts) > 1 else ""  # the other budget may end first
    used = f"{most}{whole:,} {regimen.kind} will be used"
    return f"{' or '.join(parts)}, which whole updates of {regimen.n:,} overrun: {used}"


def whole_updates(config: TrainConfig, regimen: Regimen) -> int | None:
    """The budget rounded up to whole updates; None where it is in the other unit, or of gradient steps."""
    budget = getattr(config, f"total_{regimen.kind}")
    return None if budget is None or config.data is not None else -(-budget // regimen.n) * regimen.n
