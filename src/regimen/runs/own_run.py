"""The run directory of a loop of somebody's own: `Trainer.record`. The files are those of `regimen train`, written by
the same session; what differs is who collects, so that every update is handed in instead of being asked for."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from regimen import trees
from regimen.algorithms.base import Algorithm
from regimen.config import layers
from regimen.config.regimen import Regimen
from regimen.config.schema import TrainConfig
from regimen.engines import device
from regimen.engines.base import Engine, Progress
from regimen.engines.signals import Signals
from regimen.envs.metric import to_table
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError, StorageError
from regimen.files.console import Console
from regimen.files.run_dir import ENDED, RunFiles, read_status
from regimen.files.storage import Json
from regimen.runs.api import run, take_up
from regimen.runs.directory import OWN, closing, default_path, path_state, say_running
from regimen.runs.result import Result
from regimen.runs.session import Call, Session
from regimen.runs.stopping import Stop, check_rules
from regimen.sources.trajectory_buffer import TrajectoryBuffer
from regimen.types import EpisodeRows, PyTree, State

ENDED_BY_LOOP = Stop("callback", "the program's own loop ended")


class OwnEngine(Engine):
    """The algorithm and the state that somebody's loop has come to. It advances nothing by itself."""

    def __init__(self, algo: Algorithm, state: State, regimen: Regimen):
        super().__init__(algo)
        self.state, self.regimen = state, regimen

    def snapshot(self, k: int) -> PyTree:
        return {"state": self.state}

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        self.state = jax.tree.map(jnp.copy, trees.unflatten(self.snapshot(k), arrays, what)["state"])

    def actor_params(self, k: int) -> PyTree:
        return self.algo.actor_params(self.state)


class OwnSession(Session):
    """A session whose updates are handed in. Ctrl+C is the program's own, and ends the run as a signal would."""

    depend = True  # no command can go on with it
    over = False

    def header(self) -> None:
        h, learner = self.handle, self.learners[0]
        lines = [
            f"{h.id} with {self.config.algorithm}, seed {learner.seed}: a loop of the program's own",
            f"device {self.call.where}",
            f"run directory {self.path}",
        ]
        self.console.header(lines)
        for line in lines:
            learner.files.event(line)
        metrics, labels = to_table(h.metrics), self.engine.algo.labels
        learner.files.status(device=self.call.where, metrics=metrics, labels=labels)

    def train(self) -> Iterator[Json]:
        """Wait, turn by turn, until the program says that its loop is over."""
        self.start_trackers()
        c = self.config
        total, unit = (c.total_steps, "steps") if c.total_steps is not None else (c.total_episodes, "episodes")
        self.console.start(total, unit)
        try:
            while not self.over:
                yield {}
            learner = self.learners[0]
            if learner.stop is None:
                learner.ledger.stop = ENDED_BY_LOOP
                learner.save()
        except KeyboardInterrupt:
            self.leave("SIGINT")
            raise
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self.console.stop()


class OwnRun:
    """A run directory that a loop of your own writes: see `Trainer.record`.

    Attributes:
        path: the run directory.
        result: what came of the run, once the `with` statement has ended.
    """

    def __init__(self, session: OwnSession, engine: OwnEngine):
        self.session, self.engine = session, engine
        self.learner = session.learners[0]
        self.result: Result | None = None
        self.since = time.monotonic()

    @property
    def path(self) -> Path:
        return self.session.path

    @property
    def state(self) -> State:
        """What the last update has come to; of a run that is continued, what its checkpoint holds."""
        return self.engine.state

    @property
    def env_steps(self) -> int:
        """Env steps of the updates so far."""
        return self.learner.ledger.counters.steps

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end now, by its budget or its stopping rules (such as `max_steps` or `converged`); None
        while it should go on. Ending is up to your loop."""
        return None if self.learner.stop is None else self.learner.stop.code

    def log(self, state: State, buffer: TrajectoryBuffer, losses: Mapping | Sequence[Mapping] = ()) -> None:
        """Note an update: the state after it, the finished episodes that it learned from, and its losses (of each
        minibatch, or their means). Rows, evaluations, checkpoints and stopping rules follow as in `regimen train`."""
        losses = [losses] if isinstance(losses, Mapping) else list(losses)
        names = [name for name in losses[0] if name != "stop"] if losses else []
        metrics = {name: np.array([np.mean([float(x[name]) for x in losses])]) for name in names}
        metrics |= {name: np.array([x]) for name, x in buffer.metrics.items()}
        rows = episode_rows(buffer, self.session.handle)
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        results = [metrics[name] for name in names] + floats(self.engine.algo.actor_params(state))
        if not all(np.isfinite(x).all() for x in results):  # the state stays what it was: what is saved can be used
            none = jax.tree.map(lambda x: x[:0], rows.replace(count=rows.update))
            progress = Progress(np.zeros(0, np.int64), metrics, none, seconds, True)
        else:
            self.engine.state = state
            progress = Progress(np.array([len(buffer)]), metrics, rows, seconds)
        self.session.turn({0: progress})


def floats(tree: PyTree) -> list[np.ndarray]:
    arrays = [np.asarray(x) for x in jax.tree.leaves(tree)]
    return [x for x in arrays if np.issubdtype(x.dtype, np.floating)]


def episode_rows(buffer: TrajectoryBuffer, handle: EnvHandle) -> EpisodeRows:
    """The finished episodes of a buffer as a source would report them."""
    names, columns = handle.reward_components, cast("dict[str, Any]", buffer.episodes())
    if not len(columns["length"]):
        raise ConfigError("log: the buffer is empty; log an update before buffer.clear()")
    if len(names) > 1:
        missing = next((name for name in names if f"reward/{name}" not in columns), None)
        if missing is not None:
            raise ConfigError(
                f"log: {handle.id} has the reward components {', '.join(names)}, and the buffer's rewards have no "
                f"'{missing}'; give add_step the reward as a dict by component"
            )
        reward: Any = np.stack([columns[f"reward/{name}"] for name in names], axis=-1)
    else:
        reward = columns["return"][:, None]
    success: dict[str, Any] = {"success": columns["success"].astype(np.float32)} if "success" in columns else {}
    number: Any = np.int32(len(reward))
    of_one_update: Any = np.zeros(len(reward), np.int32)
    ends: Any = np.cumsum(columns["length"])
    return EpisodeRows(
        count=number,
        update=of_one_update,
        step=ends,
        reward=reward,
        length=columns["length"],
        terminated=columns["terminated"],
        metrics=success,
    )


@contextlib.contextmanager
def recording(
    config: TrainConfig,
    handle: EnvHandle,
    algo: Algorithm,
    state: State,
    out: str | Path | None,
    console: Console,
    taken: Callable[[State], None],
) -> Iterator[OwnRun]:
    """A run directory for as long as the context lasts. One that is there and has not ended is continued from its last
    checkpoint, whose state is then `taken`; afterwards the run is evaluated, drawn and reported."""
    path = Path(out or config.out or default_path(config, f"own-{config.algorithm}"))
    begun_before = (path / "config.yaml").is_file()
    if begun_before and path_state(path) in ENDED:
        raise StorageError(f"{path} holds a run that has ended; record another one with another path")
    check_rules(config.stop, handle.id, handle.metrics)
    if begun_before and read_status(path).get("loop") != OWN["loop"]:
        raise StorageError(
            f"{path} is a run of `regimen train`: continue it with `regimen resume {path}`, or record with another path"
        )
    for name in ("init_from", "curriculum", "seeds", "data"):
        if getattr(config, name):
            raise ConfigError(f"{name}: has no effect in a loop of your own; leave it out")
    where = device.configure(config.device, handle.native is not None)
    command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
    call = Call(handle, path, where, command, None, console, time.monotonic())
    native = handle.native is not None
    engine = OwnEngine(algo, state, Regimen("episodes", 1, 1, native, max_episode_steps=handle.max_episode_steps or 0))
    new = layers.to_dict(config.replace(seeds=None, out=str(path)))
    files = RunFiles.open(path) if begun_before else RunFiles.create(path, new, command, **OWN)
    files.lock()
    with closing([files]):
        session = OwnSession(call, config, engine, {0: files}, [config.seed], Signals())  # not entered: it sees none
        if begun_before:
            take_up(session, session.learners[0], "latest", adopted=True)
            say_running(session.learners[0], command)
            taken(engine.state)
        turns = run(session, contextlib.ExitStack())
        next(turns)
        run_of_its_own = OwnRun(session, engine)
        try:
            yield run_of_its_own
        except BaseException as error:
            turns.throw(error)
            raise
        session.over = True
        try:
            next(turns)
        except StopIteration as end:
            run_of_its_own.result = end.value[0]
