"""Several processes, on one host or many, that learn as one: the same program on the devices of all of them.

Process 0 is in charge: it runs the session with its files, evaluations, rules and console. The others `follow`: they
hold their share of the environments and take part in what it tells them. So nothing but process 0 decides anything, and
nothing that differs between hosts (clocks, disks, signals) can make them disagree. A signal to any of them reaches
process 0 with the next message.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from regimen import errors, trees
from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.engines import device
from regimen.engines.base import Limits, NativeEngine, Progress
from regimen.engines.signals import Signals
from regimen.envs import registry
from regimen.errors import ConfigError, LostProcessError, RegimenError
from regimen.files.storage import plain
from regimen.runs.result import Result
from regimen.types import PyTree, State

HEARTBEAT_SECONDS = 30  # after which jax ends the processes that wait for one that is gone
JOIN_SECONDS = 300
LOST = ("gloo", "nccl", "heartbeat", "coordination", "connection", "unavailable", "aborted", "deadline")


def join(address: str, process_id: int, num_processes: int, device: str = "auto") -> None:
    """Make this process one of several, before anything is computed. Process 0 listens at `address` (HOST:PORT)."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--distributed: '{address}' is not HOST:PORT, for example 127.0.0.1:4321")
    if not 0 <= process_id < num_processes:
        raise ConfigError(f"--process-id: {process_id} is none of the {num_processes} processes; they count from 0")
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    try:
        jax.distributed.initialize(
            address,
            num_processes,
            process_id,
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            coordinator_bind_address=address if host in ("127.0.0.1", "localhost") else None,  # else every interface
        )
    except Exception as e:  # whatever the layers below raise
        raise LostProcessError(
            f"--distributed: cannot meet {num_processes - 1} others at {address}: {first_line(e)}"
        ) from e


# --- messages --------------------------------------------------------------------------------------------------------


def exchange(values: np.ndarray) -> np.ndarray:
    """What every process gives [N, ...], on all of them."""
    with blaming_the_lost():
        return np.asarray(multihost_utils.process_allgather(values)).reshape(jax.process_count(), *values.shape)


def tell(message: dict[str, Any] | None, signal_number: int = 0) -> tuple[dict[str, Any], int]:
    """Process 0's message, and the first signal that any other process has received. All processes call this."""
    data = np.frombuffer(json.dumps(message).encode(), np.uint8)
    heads = exchange(np.array([data.size, signal_number], np.int32))
    padded = np.zeros(heads[0, 0], np.uint8)
    padded[: data.size] = data[: padded.size]
    text = exchange(padded)[0].tobytes().decode()
    return json.loads(text), int(heads[1:, 1].max())


@contextlib.contextmanager
def blaming_the_lost() -> Iterator[None]:
    """An error in a collective is that another process is gone: say so, and do not wait for it at the exit."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        if not any(word in str(error).lower() for word in LOST):
            raise
        me = f"process {jax.process_index()} of {jax.process_count()}"
        raise LostProcessError(
            f"{me} has lost another ({first_line(error)[:160]}); start all of them again with `regimen resume`"
        ) from error


def leave(code: int) -> None:
    """End this process without waiting for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


# --- the engine ------------------------------------------------------------------------------------------------------


class SharedEngine(NativeEngine):
    """A native engine on the devices of several processes. Process 0 calls what an engine has, the others `obey`."""

    on_signal: Callable[[int], None] = staticmethod(lambda number: None)

    def tell(self, message: dict[str, Any]) -> None:
        _, number = tell(message)
        if number:
            self.on_signal(number)

    def obey(self, message: dict[str, Any]) -> None:
        match message["do"]:
            case "advance":
                self.run_chunk(Limits(*(np.array(x, np.int32) for x in message["limits"])))
            case "snapshot":
                self.whole()
            case "restore":
                blank = self.blank()
                self.place(blank["state"], blank["carry"])

    def advance(self, limits: list[Limits]) -> list[Progress]:
        chosen = self.device_limits(limits)
        fields = [chosen.updates, chosen.steps, chosen.episodes]
        self.tell({"do": "advance", "limits": [np.asarray(x).tolist() for x in fields]})
        return self.run_chunk(chosen)

    def run_chunk(self, limits: Limits) -> list[Progress]:
        with blaming_the_lost():
            return super().run_chunk(limits)

    def local(self, tree: PyTree) -> PyTree:
        """Arrays that are spread over processes as whole ones on this process's first device; all processes call it."""
        return jax.tree.map(lambda x: (x if x.is_fully_replicated else self.copy(x)).addressable_data(0), tree)

    @cached_property
    def copy(self) -> Callable[[Any], Any]:
        """One array, whole on every device."""
        return jax.jit(lambda x: x, out_shardings=NamedSharding(self.mesh, P()))

    def whole(self) -> PyTree:
        with blaming_the_lost():
            return self.local({"state": self.state, "carry": self.carry})

    def snapshot(self, k: int) -> PyTree:
        self.tell({"do": "snapshot"})
        return self.at(self.whole(), k)

    def restore(self, arrays: dict[str, np.ndarray], what: str) -> None:
        tree = trees.unflatten(self.snapshot(0), arrays, what)
        self.tell({"do": "restore"})
        self.place(tree["state"], tree["carry"])

    def blank(self) -> PyTree:
        """Zeros in place of a snapshot."""
        shapes = jax.eval_shape(lambda: jax.tree.map(words, {"state": self.state, "carry": self.carry}))
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.tree.map(as_was, zeros, {"state": self.state, "carry": self.carry})

    def place(self, state: State, carry: Any) -> None:
        """Take up process 0's state and carry; all processes call it, at the start and to restore."""
        given = state, carry
        with blaming_the_lost():
            sent = multihost_utils.broadcast_one_to_all(jax.tree.map(lambda x: np.asarray(words(x)), given))
        super().place(*jax.tree.map(as_was, sent, given))


def words(x: Any) -> Any:
    """A random key as its words; anything else as it is."""
    return jax.random.key_data(x) if trees.is_key(x) else x


def as_was(x: Any, like: Any) -> Any:
    """The key with these words, where `like` is a key."""
    return jax.random.wrap_key_data(jnp.asarray(x)) if trees.is_key(like) else x


# --- who does what ---------------------------------------------------------------------------------------------------


def begin(config: TrainConfig, seeds: list[int]) -> None:
    """Process 0: the others make the same engine."""
    if jax.process_count() > 1:
        tell({"do": "begin", "config": plain(layers.to_dict(config), finite=False), "seeds": seeds})


def together(function: Callable[..., Result]) -> Callable[..., Result]:
    """Where there are several processes, process 0 does it and the others follow it. All of them return what it
    returns, or raise what it raises."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Result:
        if not jax.distributed.is_initialized() or jax.process_count() == 1:
            return function(*args, **kwargs)
        given = inspect.signature(function).bind(*args, **kwargs).arguments
        try:
            if jax.process_index() > 0:
                return follow(given.get("handle") or given.get("env"))
            return lead(partial(function, *args, **kwargs))
        except BaseException as error:
            atexit.register(leave, getattr(error, "exit_code", 1))
            raise

    return run


def lead(run: Callable[[], Result]) -> Result:
    outcome: dict[str, Any] = {"do": "end"}
    try:
        result = run()
        outcome |= {"run_dir": str(result.run_dir), "summary": result.summary, "exit_code": result.exit_code}
        return result
    except BaseException as error:
        outcome |= {"error": str(error), "kind": type(error).__name__}
        raise
    finally:
        with contextlib.suppress(LostProcessError):
            tell(plain(outcome))


def follow(env: Any) -> Result:
    """Do as process 0 says, until it says how the run ended. `env` is the environment itself, where it has no name."""
    from regimen.runs.build import make_engine

    device.configure("auto", native=True)
    engine, failure = None, None
    with Signals() as signals:
        signals.busy = lambda: engine is None or engine.compiling
        while (message := tell(None, signals.requested)[0])["do"] != "end":
            if failure is not None:  # of this process alone, or process 0 would have ended the run
                raise failure
            if engine is not None:
                engine.obey(message)
                continue
            config = layers.from_dict(message["config"])
            try:
                handle = (
                    env if isinstance(env, registry.EnvHandle) else registry.resolve(env or config.env, config.env_args)
                )
                engine: Any = make_engine(config, handle, message["seeds"], signals.is_requested)
            except RegimenError as error:
                failure = error
    if "error" in message:
        raise getattr(errors, message["kind"], RegimenError)(f"process 0: {message['error']}")
    return Result(Path(message["run_dir"]), message["summary"], message["exit_code"])
