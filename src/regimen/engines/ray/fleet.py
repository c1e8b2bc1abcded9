"""The workers as the learner sees them: asking them for rollouts, watching them, replacing those that fail.

A rollout is taken whole or not at all. Whatever ends a worker (a kill, an environment that raises or hangs, a node that
leaves) drops what it was asked for; another takes its place with the current weights and environments of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray import exceptions

from regimen.config.schema import EngineConfig
from regimen.engines.base import WorkerRow
from regimen.engines.ray.worker import ONE_THREAD, Post, RolloutReport, Status, UnmakeableError, Worker
from regimen.errors import EnvError, RegimenError
from regimen.sources.host import Interrupted
from regimen.types import Batch

LOOK_SECONDS = 1.0  # between two questions to a worker how it is
STALL_SECONDS = 5.0  # of waiting, before it is said for whom; then after twice as long, and so on
START_SECONDS = 20.0  # likewise for a worker that is starting
AWAY_SECONDS = 5.0  # without a look: then it was the learner that was away, and no worker is blamed for it
LEAST_TIMEOUT = 60.0  # seconds; and
TIMES_THE_SLOWEST = (
    20  # rollouts delivered so far: how long a worker may be busy where `engine.step_timeout` is not set
)
STARTS = 3  # of one worker that hangs while it starts, before any worker has delivered anything
BLINK = 0.2  # seconds between looks for a signal


@dataclass(eq=False)
class RolloutRequest:
    """A rollout that a worker was asked for."""

    report: ray.ObjectRef
    batch: ray.ObjectRef


@dataclass(eq=False)
class WorkerHandle:
    """One worker."""

    index: int
    actor: Any = None
    requests: deque[RolloutRequest] = field(default_factory=deque)  # oldest first
    restarts: int = 0
    start_time: float = 0.0  # when it was started
    answer_time: float = 0.0  # when it last answered
    question: ray.ObjectRef | None = None  # the status asked for
    question_time: float = 0.0
    status: Status = field(default_factory=Status)  # when it last answered
    steps: int = 0  # env steps by its last answer, also of those whose place it took
    steps_before: int = 0  # of those
    collected: int = 0  # env steps delivered since it was started, which may be more
    speed: float = 0.0  # env steps per second between the last two answers

    @property
    def env_steps(self) -> int:
        return max(self.steps, self.steps_before + self.collected)

    @property
    def silent(self) -> float:
        """Seconds for which it has not answered a question."""
        return 0.0 if self.question is None else time.monotonic() - self.question_time

    def words(self) -> str:
        """What a worker is waiting for or busy with, in words."""
        what, env, seconds = self.status[:3]
        silent = self.silent
        seconds += time.monotonic() - self.answer_time
        if what == "start":
            return f"it has been starting for {time.monotonic() - self.start_time:.0f} s"
        if silent > 3 * LOOK_SECONDS:
            return f"it has not answered for {silent:.0f} s"
        if seconds < 1:
            return f"it is collecting, {self.speed:,.0f} env steps per second, {self.steps:,} so far"
        busy = {
            "step": f"its environment {env} has been in step()",
            "reset": f"its environment {env} has been in reset()",
            "collect": "its compiled environments have been running",
            "act": "it has been choosing actions",
        }
        return f"{busy.get(what, 'it has been waiting for the learner')} for {seconds:.0f} s"

    def row(self) -> WorkerRow:
        """The worker's line of `workers.csv`."""
        what, env = self.status[:2]
        states = {"start": "starting", "wait": "waiting"}
        waiting = {"wait": "learner", "step": f"environment {env}", "reset": f"environment {env}"}
        return {
            "worker": self.index,
            "state": states.get(what, "collecting"),
            "env_steps": self.env_steps,
            "steps_per_second": round(self.speed, 1),
            "heartbeat_age": round(time.monotonic() - self.answer_time, 2),
            "restarts": self.restarts,
            "waiting_for": waiting.get(what, ""),
            "pid": self.status.pid,
        }


class Fleet:
    """All workers. `post(worker, replaced)` says what one is to do; `order(member)` asks it for rollouts, also one
    that has taken another's place."""

    def __init__(
        self,
        config: EngineConfig,
        post: Callable[[int, int], Post],
        order: Callable[[WorkerHandle], None],
        stop_requested: Callable[[], bool],
    ):
        self.config, self.post, self.order, self.stop_requested = config, post, order, stop_requested
        self.require: Callable[[], None] = lambda: None  # before Ray is asked for anything that it could not survive
        self.tell: Callable[[str], None] = lambda text: None
        self.show: Callable[[list[WorkerRow]], None] = lambda rows: None
        self.members: list[WorkerHandle] = []
        self.restarts = 0
        self.proven = False  # a rollout has been delivered: what fails now may work again
        self.report_time = 0.0
        self.look_time = time.monotonic()
        self.slowest = 0.0  # seconds of the slowest rollout delivered

    def start(self) -> None:
        resources = {"num_cpus": self.config.cpus, "max_restarts": 0, "runtime_env": {"env_vars": ONE_THREAD}}
        make: Any = ray.remote(concurrency_groups={"watch": 1}, **resources)  # type: ignore[call-overload]
        self.actor = make(Worker)
        self.members = [WorkerHandle(i) for i in range(self.config.workers)]
        for member in self.members:
            self.staff(member)

    def staff(self, member: WorkerHandle) -> None:
        """Start a process for a worker, and ask it for what it is to deliver."""
        member.actor = self.actor.remote(self.post(member.index, member.restarts))
        member.start_time = member.answer_time = time.monotonic()
        member.status, member.question = Status(), None
        member.steps_before = member.steps = member.env_steps
        member.collected = 0
        member.requests.clear()
        self.order(member)

    def close(self) -> None:
        """End every worker, whatever it is doing."""
        members, self.members = self.members, []
        for member in members if ray.is_initialized() else ():
            self.end(member)

    def end(self, member: WorkerHandle) -> None:
        """End a worker. One that is stopped does not hear Ray; on this machine it is ended by its number."""
        with contextlib.suppress(Exception):
            ray.kill(member.actor)
        if self.config.address is None and member.status.pid not in (0, os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(member.status.pid, signal.SIGKILL)

    # --- rollouts ----------------------------------------------------------------------------------------------------

    def ask(self, member: WorkerHandle, key: np.ndarray, version: int, weights: ray.ObjectRef | None) -> None:
        """Ask a worker for one more rollout; `weights` is a reference to what `ray.put` was given."""
        self.require()
        member.requests.append(RolloutRequest(*member.actor.rollout.remote(key, version, weights)))

    def offer(self, version: int, weights: ray.ObjectRef | None) -> None:
        """Newer weights for whatever has not begun."""
        for member in self.members:
            member.actor.offer.remote(version, weights)

    def wait(self, members: list[WorkerHandle], enough: int) -> list[WorkerHandle]:
        """Wait for workers: those of `members` whose oldest rollout is finished, at least `enough` of them."""
        start, patience = time.monotonic(), STALL_SECONDS
        while True:
            self.look()
            heads = {m.requests[0].report: m for m in members}
            finished, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0, fetch_local=False)
            if len(finished) < enough:
                finished, _ = ray.wait(list(heads), num_returns=enough, timeout=BLINK, fetch_local=False)
            ready = [heads[ref] for ref in finished]
            if len(ready) >= enough:
                return ready
            if self.stop_requested():
                raise Interrupted
            waited = time.monotonic() - start
            if waited > patience and (late := self.latest([m for m in members if m not in ready])) is not None:
                self.tell(f"waiting for worker {late.index}: {late.words()}")
                patience = 2 * waited

    def latest(self, members: list[WorkerHandle]) -> WorkerHandle | None:
        """The worker to name in a stall; none while those that are missing have hardly been started."""
        now = time.monotonic()
        late = [m for m in members if m.collected or now - m.start_time > START_SECONDS]
        return max(late, key=lambda m: m.status.seconds + now - m.answer_time, default=None)

    def take(self, member: WorkerHandle) -> tuple[RolloutReport, ray.ObjectRef] | None:
        """What is said of its oldest finished rollout and a reference to the batch; None if it failed instead."""
        try:
            report: RolloutReport = ray.get(member.requests[0].report)
        except exceptions.RayError as error:
            self.replace(member, error)
            return None
        self.proven = True
        member.collected += report.steps
        self.slowest = max(self.slowest, report.seconds)
        return report, member.requests.popleft().batch

    def fetch(self, member: WorkerHandle, batch: ray.ObjectRef) -> Batch | None:
        """A batch by its reference; None if it was lost with the node that held it."""
        try:
            return ray.get(batch)
        except exceptions.RayError as error:
            self.replace(member, error)
            return None

    # --- faults ------------------------------------------------------------------------------------------------------

    def replace(self, member: WorkerHandle, fault: BaseException | str) -> None:
        """Put another in its place; EnvError once that has been done too often."""
        self.require()
        why = fault if isinstance(fault, str) else explain(fault, self.proven)
        self.end(member)
        budget = self.config.restarts
        if self.restarts >= budget:
            spent = f"engine.restarts: all {budget} are spent" if budget else "engine.restarts is 0"
            raise EnvError(f"worker {member.index}: {why}; {spent}")
        self.restarts += 1
        member.restarts += 1
        self.tell(f"worker {member.index}: {why}; replaced ({self.restarts} of {budget} restarts)")
        self.staff(member)
        self.report()

    def look(self) -> None:
        """Ask each worker how it is, take in the answers, and replace those that hang."""
        self.require()
        now, limit = time.monotonic(), self.timeout()
        away, self.look_time = now - self.look_time, now
        pause = min(LOOK_SECONDS, limit / 4) if limit else LOOK_SECONDS
        for member in self.members:
            if away > AWAY_SECONDS:
                member.start_time += away
                member.question_time += away if member.question is not None else 0.0
            if member.question is not None:
                self.hear(member)
            elif now - member.question_time >= pause:
                member.question, member.question_time = member.actor.status.remote(), now
            if (fault := self.fault(member, limit)) is not None:
                self.replace(member, fault)
        if now - self.report_time >= LOOK_SECONDS:
            self.report()

    def timeout(self) -> float:
        """Seconds for which a worker may be in one thing; 0: for ever."""
        if self.config.step_timeout is not None:
            return self.config.step_timeout
        return max(LEAST_TIMEOUT, TIMES_THE_SLOWEST * self.slowest)

    def fault(self, member: WorkerHandle, limit: float) -> str | None:
        """Why a worker is taken to hang, in words; None while it is not."""
        what, env, seconds = member.status[:3]
        start, starting = self.config.start_timeout, time.monotonic() - member.start_time
        if start and not member.collected and what in ("start", "collect") and starting > start:
            why = f"it has been starting for more than {start:g} s (engine.start_timeout)"
            if not self.proven and member.restarts + 1 >= STARTS:
                raise EnvError(f"worker {member.index}: {why}, {STARTS} times, and no worker has delivered anything")
            return why
        if not limit or what == "start":
            return None
        setting = " (engine.step_timeout)"
        if what in ("step", "reset") and seconds > limit:
            return f"its environment {env} has been in {what}() for more than {limit:g} s{setting}"
        if what == "collect" and self.config.step_timeout is None and member.collected and seconds > limit:
            return f"its compiled environments have been running for more than {limit:g} s{setting}"
        if member.silent > limit + 10 * LOOK_SECONDS:  # it holds the interpreter, or is stopped
            return f"it has not answered for {member.silent:.0f} s{setting}"
        return None

    def hear(self, member: WorkerHandle) -> None:
        """Take in an answer that has come. That a worker is dead shows in what was asked of it, too."""
        if member.question is None or not ray.wait([member.question], timeout=0)[0]:
            return
        with contextlib.suppress(exceptions.RayError):
            member.status, now = ray.get(member.question), time.monotonic()
            steps = member.steps_before + member.status.steps
            member.speed = (steps - member.steps) / max(now - member.answer_time, 1e-3)
            member.steps, member.answer_time = steps, now
        member.question = None

    def report(self) -> None:
        self.report_time = time.monotonic()
        self.show([member.row() for member in self.members])


def explain(error: BaseException, proven: bool) -> str:
    """A fault that another worker may not have, in words; any other is raised.

    An environment that cannot even be made, or a mistake in a program, would only come back.
    """
    cause = getattr(error, "cause", None)
    if isinstance(error, UnmakeableError) and not proven:
        raise EnvError(str(cause)) from error
    if isinstance(error, EnvError):
        return str(cause)
    if isinstance(error, exceptions.RayTaskError):
        if isinstance(cause, RegimenError):
            raise cause
        reason = " ".join(str(cause).split())
        raise RuntimeError(f"a worker failed: {type(cause).__name__}: {reason}") from error
    text = str(error)
    if "node" in text and ("died" in text or "dead" in text or "preempted" in text) and "worker process" not in text:
        return "its node left the cluster"
    if isinstance(error, exceptions.OutOfMemoryError):
        return "Ray ended it because its node ran out of memory"
    return "its process died"
