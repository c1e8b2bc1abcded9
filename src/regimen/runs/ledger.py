"""One run's bookkeeping: counters, what is due when, the rows that are logged, the rules that end it.

All of it is plain data that a checkpoint saves, so that a resumed run logs and stops exactly like one never
interrupted.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import asdict, dataclass, replace

import numpy as np

from regimen.config.fields import Count
from regimen.config.schema import TrainConfig
from regimen.engines import curriculum
from regimen.engines.base import AGENT_STEPS, Limits, Progress
from regimen.envs.registry import EnvHandle
from regimen.files.console import memory_mb
from regimen.files.storage import Json
from regimen.policies.evaluate import Evaluation, success_of
from regimen.runs.stopping import Rules, Stop

Row = Json
KEYS = ("episode", "update", "env_steps")  # columns of an episode that say which it is
COUNTS = ("restarts", "dropped_batches")  # metrics that count since the beginning
BUDGETS = ("max_steps", "max_episodes")  # codes of stops that a larger budget lifts
PLAIN = ("pending", "pending_episodes", "best", "best_step", "last_row_steps", "solved_at")  # saved as they are
RETURNS = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}
UNLOGGED = ("return", "length", "terminated", "truncated")  # columns without a metric of their own name


@dataclass
class Counters:
    """Since the run began, resumes included."""

    updates: int = 0
    steps: int = 0
    episodes: int = 0
    agent_steps: int = 0  # transitions; with several agents, of each that acted

    def due(self, before: Counters, every: Count | None) -> bool:
        """Whether a multiple of `every` lies between `before` and here."""
        if every is None:
            return False
        return getattr(self, every.unit) // every.n > getattr(before, every.unit) // every.n

    def until(self, every: Count | None) -> tuple[str, int] | None:
        """How far the next multiple is."""
        if every is None:
            return None
        return every.unit, every.n - getattr(self, every.unit) % every.n


class Ledger:
    """The bookkeeping of one seed's run: it is told of `Progress` and evaluations, and hands back rows to log."""

    def __init__(self, config: TrainConfig, handle: EnvHandle, seed: int):
        self.config, self.handle, self.seed = config, handle, seed
        self.rules = Rules.of(config.stop, config.total_steps, config.total_episodes, handle.metrics)
        self.every = {
            "log": Count.parse(config.log.every, "log.every"),
            "eval": Count.parse(config.eval.every, "eval.every"),
            "checkpoint": Count.parse(config.checkpoint.every, "checkpoint.every"),
        }
        self.counters = Counters()
        self.pending: dict[str, list[float]] = {}  # train metrics since the last row
        self.pending_episodes: dict[str, list[float]] = {}  # column -> values of the episodes since the last row
        self.recent: deque[float] = deque(maxlen=config.stop.convergence_window)
        self.best: float | None = None
        self.best_step: int | None = None
        self.last_row_steps = 0
        self.last_row_seconds = 0.0
        self.seconds_before = 0.0  # of earlier sittings
        self.started = time.monotonic()
        self.stop: Stop | None = None
        self.solved_at: int | None = None

    @property
    def sitting(self) -> float:
        """Seconds since this process took the run up."""
        return time.monotonic() - self.started

    @property
    def seconds(self) -> float:
        return self.seconds_before + self.sitting

    def limits(self, most: int) -> Limits:
        """How far the learner may go before something is due."""
        bounds = [self.counters.until(self.every[name]) for name in ("eval", "checkpoint")]
        if "convergence" in self.rules.by_name:  # it is checked where rows are logged
            bounds.append(self.counters.until(self.every["log"]))
        budget = self.rules.budget
        if budget.steps is not None:
            bounds.append(("steps", budget.steps - self.counters.steps))
        if budget.episodes is not None:
            bounds.append(("episodes", budget.episodes - self.counters.episodes))
        limits = {"updates": most}
        for unit, n in filter(None, bounds):
            limits[unit] = min(limits.get(unit, n), n)
        return Limits(**limits)

    def check(self, row_due: bool) -> Stop | None:
        """The reason to stop now, if there is one. Rules are asked only where a row is due or the budget is spent,
        never where a chunk happens to end, so that results do not depend on the machine's speed. Reaching the goal
        comes before running out."""
        c = self.counters
        spent = self.rules.budget.check(c.steps, c.episodes, self.sitting)
        return (self.rules.fired() if row_due or spent else None) or spent

    def record(self, progress: Progress) -> tuple[list[Row], dict[str, np.ndarray], set[str]]:
        """Take in what an advance did: rows that are due (the last one apart: see `close_row`), finished episodes as
        columns, and what is due now (`log`, `eval`, `checkpoint`)."""
        rows: list[Row] = []
        n, start = progress.updates, self.seconds - progress.seconds
        table = self.episode_table(progress)
        columns = {name: values.tolist() for name, values in table.items() if name not in KEYS}
        bounds = np.searchsorted(progress.episodes.update, np.arange(n + 1))
        acted = progress.metrics.get(AGENT_STEPS, progress.steps)  # of one agent, and from a dataset: the same
        due: set[str] = set()
        for j in range(n):
            if "log" in due:  # the row of the update before
                rows.append(self.close_row(seconds=start + progress.seconds * j / n))
            before = replace(self.counters)
            ended = slice(bounds[j], bounds[j + 1])
            steps = int(progress.steps[j])
            self.count(steps, {name: values[ended] for name, values in columns.items()})
            self.counters.agent_steps += int(acted[j])
            for name, values in progress.metrics.items():
                if name != AGENT_STEPS and math.isfinite(values[j]):
                    self.pending.setdefault(name, []).append(float(values[j]))
            due = {name for name, every in self.every.items() if self.counters.due(before, every)}
        return rows, table, due

    def close(self, rows: list[Row], due: set[str], played: Evaluation | None) -> Row:
        """Close an advance: the last row, where one is due, with what was `played`; the rules; whether to stop.
        Returns the evaluation as metrics, nothing where there was none."""
        point = {} if played is None else self.evaluation(played)
        row_due = bool(due & {"log", "eval"})
        if row_due:
            rows.append(self.close_row(point))
        if point:
            rows[-1] |= self.rules.evaluation(rows[-1])
        self.stop = self.check(row_due)
        return point

    def evaluation(self, played: Evaluation) -> Row:
        """The metrics of an evaluation; notes when the environment was first solved."""
        point = played.point()
        mean, threshold = point["eval/return_mean"], self.handle.return_threshold
        if self.solved_at is None and threshold is not None and mean >= threshold:
            self.solved_at = self.counters.steps
        return point | {"eval/best_return": mean if self.best is None else max(self.best, mean)}

    def count(self, steps: int, episodes: dict[str, list[float]]) -> None:
        """One update more, and the episodes that ended in it."""
        self.counters.updates += 1
        self.counters.steps += steps
        self.counters.episodes += len(episodes["return"])
        self.recent.extend(episodes["return"])
        self.rules.episodes(episodes["return"])
        for name, values in episodes.items():
            self.pending_episodes.setdefault(name, []).extend(values)

    def episode_table(self, progress: Progress) -> dict[str, np.ndarray]:
        """Finished episodes as columns of episodes.csv."""
        e, h = progress.episodes, self.handle
        n = len(e.length)
        reward = np.asarray(e.reward, np.float64)
        returns = reward.sum(-1)
        metrics = {k: np.asarray(v) for k, v in e.metrics.items()}
        table = {
            "episode": self.counters.episodes + 1 + np.arange(n),
            "update": self.counters.updates + 1 + np.asarray(e.update, np.int64),
            "env_steps": self.counters.steps + np.asarray(e.step, np.int64),
            "return": returns,
            "length": np.asarray(e.length),
            "terminated": np.asarray(e.terminated, np.int32),
            "truncated": 1 - np.asarray(e.terminated, np.int32),
        }
        success = success_of(h, returns, metrics)
        if success is not None:
            table["success"] = success.astype(np.int32)
        if len(h.reward_components) > 1:
            table |= {f"reward/{name}": reward[:, i] for i, name in enumerate(h.reward_components)}
        return table | {name: x for name, x in metrics.items() if name != "success"}

    def close_row(self, extra: Row | None = None, seconds: float | None = None) -> Row:
        """The row since the last one, with what an evaluation added; what has no data is absent."""
        c = self.counters
        seconds = self.seconds if seconds is None else seconds
        row: Row = {
            "env_steps": c.steps,
            "agent_steps": c.agent_steps,
            "updates": c.updates,
            "episodes": c.episodes,
            "wall_seconds": round(seconds, 4),
        }
        row |= self.rollout_metrics()
        for name, values in self.pending.items():
            row[name if name.startswith("time/") else f"train/{name}"] = reduced(name, values)
        duration = seconds - self.last_row_seconds
        if duration > 0 and c.steps > self.last_row_steps:
            row["time/steps_per_second"] = (c.steps - self.last_row_steps) / duration
        if (memory := memory_mb()) is not None:
            row["time/memory_mb"] = memory
        row["time/unix_time"] = round(time.time() - (self.seconds - seconds), 3)
        self.pending, self.pending_episodes = {}, {}
        self.last_row_steps, self.last_row_seconds = c.steps, seconds
        return row | (extra or {})

    def rollout_metrics(self) -> Row:
        """What the episodes since the last row say."""
        columns = {name: np.array(values, np.float64) for name, values in self.pending_episodes.items()}
        returns = columns.get("return", np.zeros(0))
        if not len(returns):
            return {}
        row: Row = {
            **{f"rollout/return_{name}": float(of(returns)) for name, of in RETURNS.items()},
            "rollout/length_mean": float(columns["length"].mean()),
            "rollout/return_ma": sum(self.recent) / len(self.recent),
            "rollout/episodes": len(returns),
        }
        for name, values in columns.items():
            if name not in UNLOGGED:
                row["rollout/success_rate" if name == "success" else f"rollout/{name}"] = float(values.mean())
            if name.startswith("reward/"):
                row |= {f"rollout/{name}_min": float(values.min()), f"rollout/{name}_max": float(values.max())}
        return row

    def state(self) -> dict[str, object]:
        """All of this that a resume needs."""
        return {
            "counters": asdict(self.counters),
            "recent": list(self.recent),
            "rules": self.rules.state(),
            "stopped": self.stop is not None,
            "stop": None if self.stop is None else asdict(self.stop),
        } | {name: getattr(self, name) for name in PLAIN}

    def restore(self, saved: Json, seconds: float, finished: bool = False) -> None:
        """Take the bookkeeping up as it was saved. A run that had stopped and was ended before it could say `finished`
        has stopped for good, unless it was for a budget, which may be larger now; one that is finished goes on, and its
        rules begin anew."""
        ended = saved.get("stop")
        if ended is not None and not finished and ended["code"] not in BUDGETS:
            self.stop = Stop(**ended)
        self.counters = Counters(**({"agent_steps": saved["counters"]["steps"]} | saved["counters"]))
        self.recent.extend(saved["recent"])
        for name in PLAIN:
            setattr(self, name, saved[name])
        self.rules.restore(saved["rules"], saved["stopped"] and self.stop is None)
        self.seconds_before = self.last_row_seconds = seconds


def reduced(name: str, values: list[float]) -> float:
    """A metric of several updates as one number: their mean, unless its name says otherwise."""
    if name.startswith(curriculum.METRICS) or name in COUNTS:  # what holds now
        return values[-1]
    if name.endswith(("_min", "_max")):
        return min(values) if name.endswith("_min") else max(values)
    return sum(values) / len(values)
