"""A run with its files: the loop of `loop.py`, and after each advance `log -> evaluate -> check -> checkpoint`.

`Session` runs it for K seeds on one engine; each is a `Learner` with files of its own. What differs between native and
Gymnasium environments is in the engine.
"""

import contextlib
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regimen.config.regimen import describe, describe_budget
from regimen.config.schema import TrainConfig
from regimen.engines.base import CHUNK, Engine, Limits, Progress, WorkerRow
from regimen.engines.signals import Signals
from regimen.envs.metric import to_table
from regimen.envs.processes import in_processes
from regimen.envs.registry import EnvHandle
from regimen.errors import OutOfMemoryError, StorageError, nearest
from regimen.files.console import Console, memory_mb
from regimen.files.run_dir import COUNTERS, RunFiles
from regimen.files.storage import Json, writing
from regimen.policies.evaluate import Evaluation, make_evaluator
from regimen.runs.build import blaming_the_env, memory_needed, replay_needed
from regimen.runs.feasible import unreachable
from regimen.runs.learner import Learner
from regimen.runs.ledger import Row
from regimen.runs.loop import Loop
from regimen.runs.stopping import Stop
from regimen.sources.host import Interrupted
from regimen.words import Figures, plural, size

Callback = Callable[[Json], object]
WORKERS_SECONDS = 5.0  # between two states of each worker in workers.csv
LATER = 30.0  # seconds until a run asks for MLflow whose end is not to wait for it
FINAL = 2**20  # index of the evaluations at the end: no update has it
NOT_EVERY_ROW = "rollout/"  # metrics that a row has only when an episode ended


@dataclass(frozen=True)
class Call:
    """What one call of `train` or `resume` shares between its sessions."""

    handle: EnvHandle
    path: Path  # the run directory, or the group's
    where: str  # the device, in words
    command: str
    callback: Callback | None
    console: Console
    begun: float  # by the monotonic clock
    stepwise: bool = False  # whether somebody looks at every update (`Trainer.updates`)
    wait: bool = True  # for curves, report and trackers; else `delivery.start` has them made when all is over


class Session:
    """One engine and its learners, from the first update to the last evaluation."""

    depend = False  # learners take over from each other: none goes on without the others

    def __init__(
        self,
        call: Call,
        config: TrainConfig,
        engine: Engine,
        files: Mapping[int, RunFiles],
        seeds: list[int],
        signals: Signals,
        trials: Mapping[str, TrainConfig] | None = None,
    ):
        """`files` by learner; a learner without is idle: its run has ended, and only the program still has it.
        `trials` are the learners' configurations by label, where they differ in more than the seed."""
        handle = call.handle
        self.call, self.config, self.handle, self.engine, self.signals = call, config, handle, engine, signals
        self.path, self.console, self.callback = call.path, call.console, call.callback
        configs = list(trials.values()) if trials else [config] * len(seeds)
        self.active = {k: Learner(configs[k], handle, engine, k, seeds[k], f) for k, f in files.items()}
        self.learners = list(self.active.values())
        for learner in self.learners:
            learner.ledger.started = call.begun
        self.labels = list(trials) if trials else [f"seed {seed}" for seed in seeds]
        self.varied = trials is not None
        self.recorded = config.log.trajectories or config.log.alerts
        placed = in_processes(handle, config.rollout.processes, engine.regimen.num_envs)
        self.evaluator = make_evaluator(placed, engine.algo, signals.is_requested, self.recorded)
        self.loop = Loop(handle, engine, seeds, self.evaluator, config.eval.episodes)
        self.warned_of: set[str] = set()
        self.looks: list[Json] = []  # of a stepwise call: updates still to be looked at
        self.workers_written = (-math.inf, 0)  # when, and their restarts then
        signals.busy, signals.last_words = self.busy, self.last_words
        engine.watch(lambda text: self.tell(self.learners[0], text), self.show_workers)
        engine.on_signal = signals.ask

    @property
    def group(self) -> bool:
        return len(self.learners) > 1

    @property
    def compile_seconds(self) -> float:
        return self.engine.compile_seconds + self.evaluator.compile_seconds

    def name(self, learner: Learner) -> str:
        """How an event for everyone begins."""
        return f"{self.labels[learner.k]}: " if self.group else ""

    def tell(self, learner: Learner, text: str) -> None:
        learner.files.event(text)
        self.console.event(self.name(learner) + text)

    def show_workers(self, rows: list[WorkerRow]) -> None:
        """The state of each worker: about once a second here, and more rarely in the files."""
        self.console.workers(rows)
        ledger, restarts = self.learners[0].ledger, sum(row["restarts"] for row in rows)
        written, before = self.workers_written
        if ledger.seconds - written >= WORKERS_SECONDS or restarts > before:
            self.workers_written = ledger.seconds, restarts
            self.learners[0].files.workers(ledger.counters.updates, ledger.seconds, rows)

    def header(self) -> None:
        c, h, where = self.config, self.handle, self.call.where
        regimen = self.engine.regimen
        world = "native" if regimen.native else "Gymnasium"
        first, count = self.learners[0].seed, len(self.learners)
        seeds = f"{count} seeds from {first}" if self.group else f"seed {first}"
        seeds = f"{count} runs in one program" if self.varied and self.group else seeds
        batches, gradient = (size(x * count) if x else "" for x in memory_needed(c, regimen, h, self.engine.algo))
        needed = f"{batches} for batches" + (f"; encoders' gradients {gradient}" if gradient else "")
        if replay := replay_needed(self.engine.algo):
            rows = self.engine.algo.bound.replay_rows() * count
            needed += f"; replay {plural(rows, 'row')}, {size(replay * count)}"
        envs, shared = regimen.num_envs, regimen.devices
        envs = f"{envs} envs" if shared == 1 else f"{shared} devices, {envs // shared} environments each"
        envs = "offline" if c.data is not None else envs
        course = self.engine.curriculum
        lines = [
            f"{h.id} ({world}) with {c.algorithm}, {seeds}, {envs}: " + describe(c, regimen),
            *filter(None, [self.engine.words(), course.words() if course is not None else ""]),
            *self.engine.notes,
            *self.engine.algo.bound.notes,
            f"budget {describe_budget(c, regimen)}; device {where}; memory about {needed}, "
            f"{size(1e6 * (memory_mb() or 0))} in this process",
            f"run directory {self.path}",
        ]
        if self.group:
            lines.append(f"the figures below are means over the {'runs' if self.varied else 'seeds'} still training")
        self.console.header(lines)
        for learner in self.learners:
            for line in lines:
                learner.files.event(line)
            learner.files.status(device=where, metrics=to_table(self.handle.metrics), labels=self.engine.algo.labels)
            if legend := getattr(self.handle.native, "legend", ""):
                learner.files.status(legend=str(legend))
            self.note_blind_rules(learner)

    def start_trackers(self) -> None:
        for learner in self.learners if self.config.track.enabled else ():

            def warn(text: str, learner: Learner = learner) -> None:
                learner.files.event(text)
                if learner.k == 0:
                    self.console.event(text)

            below = learner.path.relative_to(self.path).as_posix() if self.group else ""
            name = f"{self.path.name}/{below}" if self.group else self.path.name
            learner.start_trackers(name, warn, 5.0 if self.call.wait else LATER)

    def train(self) -> Iterator[Json]:
        """Train until every learner has stopped or a signal asks to. Files are complete whatever happens. A generator:
        where the call is stepwise, of what a callback would be told after each update."""
        c = self.config
        self.start_trackers()
        total, unit = (c.total_steps, "steps") if c.total_steps is not None else (c.total_episodes, "episodes")
        algo = self.engine.algo
        self.console.start(total, unit, algo.stages, algo.progress)
        try:
            with blaming_the_env(self.handle):
                if any(self.limits(k) is not None for k in range(len(self.learners))):
                    self.engine.prepare()  # first: its program is the larger one
                self.evaluator.prepare(self.learners[0].actor_params(), c.eval.episodes)
            import scipy.special  # noqa: F401 - intervals ask for it; while XLA compiles, its import takes no time

            for _ in self.loop.turns(self.limits, self.turn, self.signals.is_requested):
                yield from self.looks
                self.looks.clear()
        except Interrupted:
            pass
        except GeneratorExit:  # who looks at the updates has seen enough
            raise
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self.console.stop()

    def limits(self, k: int) -> Limits | None:
        """How far learner k may go before something is due; None once it has stopped."""
        called = self.callback is not None and not getattr(self.callback, "evaluations_only", False)
        every_update = called or self.call.stepwise
        learner = self.active.get(k)
        if learner is None or learner.stop is not None:
            return None
        return learner.ledger.limits(1 if every_update else CHUNK)

    def turn(self, progress: Mapping[int, Progress]) -> None:
        """Everything that is due after an advance, of every learner that took part in it."""
        rows = [self.absorb(self.active[k], one) for k, one in progress.items()]
        if not self.group:
            for row in rows[0]:
                self.console.update(row)
        elif any(rows):
            self.console.update(mean_row([r[-1] for r in rows if r]))
        if self.signals.take_warning():
            self.save_for_warning()

    def save_for_warning(self) -> None:
        """A checkpoint of every learner that is still going, because a scheduler has warned."""
        for learner in self.learners:
            if learner.stop is None:
                learner.save()
                self.tell(learner, f"SIGUSR1: state saved at step {learner.ledger.counters.steps:,}; training goes on")

    def absorb(self, learner: Learner, progress: Progress) -> list[Row]:
        """Log, evaluate, check the rules, save: what is due after an advance. Returns the rows logged."""
        ledger = learner.ledger
        for move in learner.moves(progress):
            self.tell(learner, move)
        rows, episodes, due = ledger.record(progress)
        if self.config.log.episodes:
            learner.files.episodes(episodes)
        solved_before = ledger.solved_at is not None
        point = ledger.close(rows, due, self.evaluation(learner) if "eval" in due else None)
        if point:
            if ledger.solved_at is not None and not solved_before:
                self.tell_solved(learner, point["eval/return_mean"])
            self.note_unknown_metric(learner, rows[-1])
        learner.files.log(*rows)
        new_best = learner.note_best(point)
        if progress.updates and self.called_back(learner, progress, rows, point):
            ledger.stop = Stop("callback", "the callback asked to stop")
        if progress.diverged:
            ledger.stop = learner.divergence(progress)
        stop = ledger.stop
        if "checkpoint" in due or new_best or stop is not None:
            learner.save()
        if stop is not None:
            learner.files.event(stop.reason)
            if self.group:
                self.console.event(self.name(learner) + stop.reason)
        return rows

    def evaluation(self, learner: Learner) -> Evaluation | None:
        """Evaluate the greedy policy as it is now; None when a signal interrupts it."""
        try:
            played = self.loop.evaluate(learner.k, learner.ledger.counters.updates)
        except Interrupted:
            return None
        if self.recorded:
            self.write_trajectories(learner, played)
        return played

    def tell_solved(self, learner: Learner, mean: float) -> None:
        ledger = learner.ledger
        self.tell(
            learner,
            f"Solved after {ledger.counters.steps:,} steps, {ledger.seconds:.1f} s: greedy mean {mean:.1f} over "
            f"{self.config.eval.episodes} episodes (threshold {self.handle.return_threshold:g})",
        )

    def write_trajectories(self, learner: Learner, played: Evaluation) -> None:
        """What the evaluation just made looked like, step by step."""
        assert played.recording is not None
        path = learner.path / "trajectories" / f"step-{learner.ledger.counters.steps:09d}.csv"
        native: Any = self.handle.native
        with writing(path):
            native.write_evaluation(path, *played.recording, self.config.log.alerts)

    def called_back(self, learner: Learner, progress: Progress, rows: list[Row], point: Row) -> bool:
        """Whether the user's callback asks to stop."""
        if self.callback is None and not self.call.stepwise:
            return False
        c, row = learner.ledger.counters, rows[-1] if rows else learner.ledger.rollout_metrics()
        metrics = {name: float(v[-1]) for name, v in progress.metrics.items()}
        info = {
            "run_dir": learner.path,
            "seed": learner.seed,
            "episode": c.episodes,
            "update": c.updates,
            "env_steps": c.steps,
            "step_metrics": Figures(metrics | {name: v for name, v in row.items() if name.startswith("rollout/")}),
            "eval_metrics": Figures({name.removeprefix("eval/"): v for name, v in point.items()}) or None,
        }
        if self.call.stepwise:
            self.looks.append(info)
        return self.callback is not None and self.callback(info) is True

    def note_blind_rules(self, learner: Learner) -> None:
        for text in unreachable(learner.config, self.engine.regimen, learner.ledger.rules):
            self.warn_once(learner, text)

    def note_unknown_metric(self, learner: Learner, row: Row) -> None:
        name = self.config.stop.metric
        if name is not None and name not in row and not name.startswith(NOT_EVERY_ROW):
            where = f"'{name}' is not among the logged metrics{nearest(name, row)}"
            self.warn_once(learner, f"stop.metric: {where}")

    def warn_once(self, learner: Learner, text: str) -> None:
        learner.files.event(text)
        if text not in self.warned_of:
            self.warned_of.add(text)
            self.console.event(f"warning: {text}")

    def final_evaluation(self) -> None:
        """The best and the final policy, on episodes neither was selected on."""
        for learner in self.learners:
            if learner.diverged:
                continue
            final = best = self.loop.evaluate(learner.k, FINAL)
            if learner.best_params is not None and learner.ledger.best_step != learner.ledger.counters.steps:
                best = self.loop.evaluate(learner.k, FINAL, learner.best_params)
            learner.evaluations = {"best": best, "final": final}

    def interrupted(self) -> int:
        """Save what is still going, after a signal; the exit code."""
        number = self.signals.requested
        self.leave(signal.Signals(number).name)
        return 128 + number

    def leave(self, name: str) -> None:
        """Save what is still going, so that a resume goes on from here; `name` says what ended it."""
        for learner in self.learners:
            if learner.stop is None:
                learner.save()
            steps = learner.ledger.counters.steps
            learner.files.event(f"interrupted by {name}; state saved at step {steps:,}")
            learner.files.status(state="interrupted", stop_reason=name)
            learner.files.summary(learner.summary(self.compile_seconds) | {"stop_reason": name})
        which = f"{self.learners[0].path} (and so on)" if self.group and self.varied else self.path
        how = "" if self.depend else f". Continue with: regimen resume {which}"
        self.console.event(f"interrupted by {name}; state saved{how}")
        self.end_trackers("interrupted")

    def fail(self, error: BaseException) -> None:
        """Keep what can be kept, and let the files say what happened."""
        if not isinstance(error, (StorageError, OutOfMemoryError, KeyboardInterrupt)):
            with contextlib.suppress(Exception):  # the engine's state may be gone with the program that failed
                for learner in self.learners:
                    if learner.stop is None and learner.ledger.counters.updates:
                        learner.save()
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        for learner in self.learners:
            with contextlib.suppress(StorageError):  # the disk may be what failed
                learner.files.event(f"{state}: {error}")
                learner.files.status(state=state, stop_reason=state, error=str(error))
        self.end_trackers(state)

    def end_trackers(self, state: str) -> None:
        for learner in self.learners:
            for tracker in learner.trackers.values():
                share = 4 / len(self.learners) / len(learner.trackers)
                tracker.finish({"state": state, "stop_reason": state}, [], timeout=share)

    def busy(self) -> bool:
        return self.engine.compiling or self.evaluator.compiling

    def last_words(self, number: int) -> None:
        """The process is about to be ended by the signal's thread: the last checkpoint stays as it is."""
        self.engine.abandon()
        name = signal.Signals(number).name
        for learner in self.learners:
            learner.files.status(state="interrupted", stop_reason=name)
        self.console.stop()
        self.console.event(f"interrupted by {name}; the last checkpoint in {self.path} is as it was")

    def close(self) -> None:
        self.workers_written = (-math.inf, 0)  # the last state is kept
        self.evaluator.close()
        self.engine.close()


def mean_row(rows: list[Row]) -> Row:
    """The mean over seeds of whatever each of them has."""
    names = dict.fromkeys(name for row in rows for name in row)
    means = {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}
    return means | {name: round(means[name]) for name in COUNTERS if name != "wall_seconds" and name in means}
