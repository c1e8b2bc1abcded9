"""Several processes, on one host or many, that learn as one: the same program on the devices of all of them.

Process 0 is in charge, the others hold their share of the environments and take part in what it tells them. A signal to
any of them reaches process 0 with the next message. Who runs the session and who follows is `runs/processes.py`.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from regimen import trees
from regimen.engines.base import Limits, Progress
from regimen.engines.native import NativeEngine
from regimen.errors import ConfigError, LostProcessError
from regimen.types import Array, PyTree, State

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


def exchange(values: np.ndarray) -> np.ndarray:
    """What every process gives [N, ...], on all of them."""
    with blaming_the_lost():
        return np.asarray(multihost_utils.process_allgather(values)).reshape(jax.process_count(), *values.shape)


def tell(message: Mapping[str, object] | None, signal_number: int = 0) -> tuple[dict[str, Any], int]:
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


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class SharedEngine(NativeEngine):
    """A native engine on the devices of several processes. Process 0 calls what an engine has, the others `obey`."""

    on_signal: Callable[[int], None] = staticmethod(lambda number: None)

    def tell(self, message: Mapping[str, object]) -> None:
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
                self.place(*self.blank())

    def advance(self, limits: list[Limits]) -> list[Progress]:
        shares = self.device_limits(limits)
        fields = [shares.updates, shares.steps, shares.episodes]
        self.tell({"do": "advance", "limits": [np.asarray(x).tolist() for x in fields]})
        return self.run_chunk(shares)

    def run_chunk(self, limits: Limits) -> list[Progress]:
        with blaming_the_lost():
            return super().run_chunk(limits)

    def local(self, tree: PyTree) -> PyTree:
        """Arrays that are spread over processes as whole ones on this process's first device; all processes call it."""
        return jax.tree.map(lambda x: (x if x.is_fully_replicated else self.copy(x)).addressable_data(0), tree)

    @cached_property
    def copy(self) -> Callable[[Array], Array]:
        """One array, whole on every device."""
        return jax.jit(lambda x: x, out_shardings=NamedSharding(self.mesh, P()))

    def whole(self) -> PyTree:
        with blaming_the_lost():
            return self.local({"state": self.state, "carry": self.carry})

    def snapshot(self, k: int) -> PyTree:
        self.tell({"do": "snapshot"})
        return self.at(self.whole(), k)

    def restore(self, k: int, arrays: dict[str, np.ndarray], what: str) -> None:
        assert self.learners == 1, "several processes restore one learner"
        tree = trees.unflatten(self.snapshot(k), arrays, what)
        self.tell({"do": "restore"})
        self.place(tree["state"], tree["carry"])

    def blank(self) -> PyTree:
        """Zeros in place of a state and a carry."""
        shapes = jax.eval_shape(lambda: jax.tree.map(trees.plain, (self.state, self.carry)))
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.tree.map(trees.as_leaf, zeros, (self.state, self.carry))

    def place(self, state: State, carry: PyTree) -> None:
        """Take up process 0's state and carry; all processes call it, at the start and to restore."""
        with blaming_the_lost():
            plain = jax.tree.map(lambda x: np.asarray(trees.plain(x)), (state, carry))
            sent = multihost_utils.broadcast_one_to_all(plain)
        super().place(*jax.tree.map(trees.as_leaf, sent, (state, carry)))
