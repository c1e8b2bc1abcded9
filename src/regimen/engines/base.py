"""The protocol of engines: `advance` the learners by some updates and hand over what happened.

The loop above does not know which engine it drives, and results never depend on how many updates one `advance` covers.
`chunk.py` compiles a loop of updates, `native.py` and `offline.py` say what an update is there; `host.py` steps
Gymnasium environments between compiled updates, `ray/` lets workers collect.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from regimen.algorithms.base import Algorithm
from regimen.types import Array, EpisodeRows, PyTree, Record, pytree_dataclass

if TYPE_CHECKING:
    from regimen.config.regimen import Regimen
    from regimen.engines.curriculum import Curriculum

FOREVER = 2**30  # steps or episodes: no limit; room above it, so that 32-bit counters of one advance cannot overflow
CHUNK = 256  # the most updates one compiled call runs
AGENT_STEPS = "agent_steps"  # a metric of several agents: transitions of each that acted


@pytree_dataclass
class Limits(Record):
    """End an advance at the first update that reaches any of these, counted from its start. 0 updates: do nothing."""

    updates: int | np.ndarray | Array = CHUNK
    steps: int | np.ndarray | Array = FOREVER
    episodes: int | np.ndarray | Array = FOREVER


IDLE = Limits(0, 0, 0)


class WorkerRow(TypedDict):
    """The state of one worker: a line of `workers.csv`."""

    worker: int
    state: str
    env_steps: int
    steps_per_second: float
    heartbeat_age: float  # seconds
    restarts: int
    waiting_for: str
    pid: int


@dataclass
class Progress:
    """What one advance did to one learner."""

    steps: np.ndarray  # [n] env steps of each update
    metrics: dict[str, np.ndarray]  # name -> [n]; one more when `diverged`: those of the update that was refused
    episodes: EpisodeRows  # of numpy arrays; `update` in 0..n-1, `step` from the advance's start
    seconds: float  # it took, without compilation
    diverged: bool = False  # the update after the last one was not finite and has not been applied
    ended: np.ndarray | None = None  # [n] episodes of each update, where `episodes` are a sample of them
    summary: dict[str, np.ndarray] | None = None  # then column -> [n, 4] mean, squares about it, least, most of all

    @property
    def updates(self) -> int:
        return len(self.steps)


LIVING: weakref.WeakSet[Engine] = weakref.WeakSet()  # engines whose states and programs are in memory


class Engine:
    """What the loop needs of any engine. Learners are numbered 0..K-1, one per seed."""

    regimen: Regimen
    curriculum: Curriculum | None = None
    notes: tuple[str, ...] = ()  # what the start of a run says of it
    about: Mapping[str, object] = {}
    compile_seconds: float = 0.0
    compiling: bool = False
    on_signal: Callable[[int], None]  # of one that another process of the run has received

    def __init__(self, algo: Algorithm, learners: int = 1):
        self.algo = algo
        self.learners = learners
        LIVING.add(self)

    def advance(self, limits: list[Limits]) -> list[Progress]:
        raise NotImplementedError

    def snapshot(self, k: int) -> PyTree:
        """State and carry of learner k, to be saved."""
        raise NotImplementedError

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        """Let learner k continue from a snapshot; `what` names it in errors."""
        raise NotImplementedError

    def actor_params(self, k: int) -> PyTree:
        raise NotImplementedError

    def algo_of(self, k: int) -> Algorithm:
        """The algorithm of learner k, whose hyper-parameters may be its own."""
        return self.algo

    def prepare(self) -> None:
        """Begin to compile on another core, where there is something to compile before the first advance."""

    def words(self) -> str:
        """How experience is collected, where that needs saying."""
        return ""

    def watch(self, tell: Callable[[str], None], show: Callable[[list[WorkerRow]], None]) -> None:
        """Say where to report what happens within an advance: events, and the state of each worker."""

    def summary(self) -> Mapping[str, object]:
        """What the engine adds to summary.json."""
        return self.about

    def abandon(self) -> None:
        """The process is about to end without `close`."""

    def close(self) -> None: ...

    @contextlib.contextmanager
    def compilation(self) -> Iterator[None]:
        """A context for compiling: its time is counted, and a signal can end the process within it."""
        self.compiling, start = True, time.monotonic()
        try:
            yield
        finally:
            self.compiling = False
            self.compile_seconds += time.monotonic() - start
