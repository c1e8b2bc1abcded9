"""The process of some copies of an environment (see `processes.py`): it makes them, does what it is told, and ends with
the process that started it. Jax-free, so that it starts quickly and stays small.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from regimen.envs.copies import LocalCopies
from regimen.errors import RegimenError

READ = ("action_mask", "reward_components", "is_success", "success")  # what is always read of an info
Layout = Any  # of an array (shape, dtype, offset); else of parts, a dict or a list


@dataclass(frozen=True)
class Assignment:
    """What a worker is to do."""

    env: str  # an id that any process can resolve
    env_args: dict[str, Any]
    copies: tuple[int, ...]  # their numbers among all
    layout: Layout  # of the observations of all copies in shared memory
    n: int  # copies in all
    wanted: tuple[str, ...]  # of an info: `READ` and the environment's metrics


def main() -> None:
    """Serve until the connection or the pipe of life is closed. Arguments: their descriptors, and the memory's."""
    descriptor, life, memory = map(int, sys.argv[2:5])
    for number in (signal.SIGINT, signal.SIGTERM):  # the process that started this one decides when it ends
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=end_with, args=(life,), daemon=True).start()
    connection = Connection(descriptor)
    try:
        post: Assignment = connection.recv()
        try:
            worker = CopiesWorker(post, mmap.mmap(memory, 0))
        except RegimenError as error:
            connection.send(str(error))
            return
        connection.send(None)
        while True:
            what, orders = connection.recv()
            try:
                answer = worker.step(orders) if what == "step" else worker.reset(orders)
            except RegimenError as error:
                answer = str(error)
            reply(connection, answer)
    except (EOFError, OSError):
        worker.copies.close()


def reply(connection: Connection, answer: Any) -> None:
    """Send an answer, or why it cannot be sent."""
    try:
        connection.send(answer)
    except OSError:
        raise
    except Exception as error:
        connection.send(f"what the environment returned cannot be handed over: {type(error).__name__}: {error}")


def end_with(life: int) -> None:
    """End this process when the other end of the pipe is closed, whatever it is in the middle of."""
    os.read(life, 1)
    os._exit(0)


class CopiesWorker:
    """Copies of the environment, by their numbers among all, and the memory into which they observe."""

    def __init__(self, post: Assignment, memory: mmap.mmap):
        from regimen.config.trust import trusting
        from regimen.envs.registry import resolve

        with trusting():  # the process that trains has made the same and judged it
            handle = resolve(post.env, post.env_args)
            assert handle.make_host is not None
            self.copies = LocalCopies(handle.make_host, len(post.copies))
        self.place = {number: i for i, number in enumerate(post.copies)}
        self.wanted, self.obs = post.wanted, views(memory, post.layout, post.n)

    def step(self, actions: dict[int, Any]) -> dict[int, tuple]:
        by_place = {self.place[number]: action for number, action in actions.items()}
        row = [by_place.get(i) for i in range(len(self.place))]
        outcomes = self.copies.step(list(by_place), row)
        answers = {}
        for number, (obs, reward, terminated, truncated, info) in zip(actions, outcomes):
            answers[number] = (reward, bool(terminated), bool(truncated), self.read(info), self.note(number, obs))
        return answers

    def reset(self, seeds: dict[int, int | None]) -> dict[int, tuple]:
        starts = self.copies.reset({self.place[number]: seed for number, seed in seeds.items()})
        return {number: (self.read(info), self.note(number, obs)) for number, (obs, info) in zip(seeds, starts)}

    def read(self, info: dict[str, Any]) -> dict[str, Any]:
        """What is read of an info; all its names where one is missing, for the error that follows."""
        out = {name: info[name] for name in self.wanted if name in info}
        missing = any(name not in info for name in self.wanted[len(READ) :])
        return dict.fromkeys(info) | out if missing else out

    def note(self, number: int, obs: Any) -> Any:
        """Write an observation into its place; itself where it does not fit."""
        return None if write(self.obs, number, obs) else obs


def write(target: Any, i: int, value: Any) -> bool:
    """Write a value into row i of a tree of arrays, and return whether it has that structure and those shapes."""
    if isinstance(target, np.ndarray):
        try:
            if np.shape(value) != target.shape[1:]:
                return False
            target[i] = value
        except (ValueError, TypeError):
            return False
        return True
    try:
        items = target.items() if isinstance(target, dict) else enumerate(target)
        return all(write(part, i, value[name]) for name, part in items)
    except (KeyError, IndexError, TypeError):
        return False


def views(memory: mmap.mmap, layout: Layout, n: int) -> Any:
    """The arrays [n, ...] of a layout, in a block of memory."""
    if isinstance(layout, tuple):
        shape, dtype, start = layout
        count = n * int(np.prod(shape, dtype=int))
        return np.frombuffer(memory, dtype, count, start).reshape(n, *shape)
    if isinstance(layout, dict):
        return {name: views(memory, part, n) for name, part in layout.items()}
    return tuple(views(memory, part, n) for part in layout)
