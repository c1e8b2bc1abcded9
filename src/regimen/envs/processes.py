"""Copies of a Gymnasium environment in processes of their own, for environments whose step is slow: one process for
each core. Observations come back through shared memory; what a run learns is what it would learn in one process.

A worker makes its copies by itself, from the environment's id and arguments (`envs/process_worker.py`). It ends with
this process, however that ends: its life hangs on a pipe that only this process holds open.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np

from regimen import spaces
from regimen.envs.copies import Outcome, Start, unwatched
from regimen.envs.imports import portable_env
from regimen.envs.process_worker import READ, Assignment, Layout, views
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError, EnvError
from regimen.types import PyTree

BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from regimen.envs.process_worker import main; main()"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
PATIENCE = 2.0  # seconds until a worker that should end is killed


def in_processes(handle: EnvHandle, count: int | Literal["auto"], num_envs: int) -> EnvHandle:
    """The handle with its copies in `count` processes (`auto`: one for each core, at most one for each copy); refused
    where that cannot be or has no effect."""
    if count == 1:
        return handle
    if handle.native is not None:
        raise ConfigError(f"rollout.processes: {handle.id} is compiled into the training program; leave it at 1")
    if handle.make_copies is not None:
        raise ConfigError(f"rollout.processes: {handle.id} has threads of its own (--env.num_threads); leave it at 1")
    if handle.agents:
        raise ConfigError(f"rollout.processes: {handle.id} has several agents, which are stepped in this process")
    if count != "auto" and count > num_envs:
        raise ConfigError(f"rollout.processes: {count} is more than rollout.num_envs {num_envs}")
    most = cores() if count == "auto" else count
    if most == 1:  # one core
        return handle
    env = portable_env(handle.id, "rollout.processes: other processes")
    return dataclasses.replace(handle, make_copies=lambda n: ProcessCopies(handle, env, n, min(n, most)))


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessCopies:
    """Copies in worker processes, each of which steps its share one after the other."""

    def __init__(self, handle: EnvHandle, env: str, n: int, count: int):
        self.observation_space, self.action_space = handle.observation_space, handle.action_space
        self.watch, self.envs = unwatched, ()
        layout, size = layout_of(spaces.zeros(handle.observation_space, (n,)))
        file = tempfile.TemporaryFile(prefix="regimen-")  # it has no name, so nothing of it remains  # noqa: SIM115
        os.ftruncate(file.fileno(), max(size, 1))
        self.obs = views(mmap.mmap(file.fileno(), max(size, 1)), layout, n)
        shares = [part.tolist() for part in np.array_split(np.arange(n), count)]
        wanted = (*READ, *handle.metric_reductions)
        post = Assignment(env, dict(handle.env_args), (), layout, n, wanted)
        with file:
            self.workers = [WorkerProcess(dataclasses.replace(post, copies=tuple(s)), file.fileno()) for s in shares]
        self.worker_of = {i: worker for worker, share in zip(self.workers, shares) for i in share}

    def step(self, active: Sequence[int], actions: Sequence[Any]) -> Iterator[Outcome]:
        for i, (reward, terminated, truncated, info, obs) in self.ask("step", {i: actions[i] for i in active}):
            yield self.observed(i, obs), reward, terminated, truncated, info

    def reset(self, starts: Mapping[int, int | None]) -> Iterator[Start]:
        for i, (info, obs) in self.ask("reset", starts):
            yield self.observed(i, obs), info

    def ask(self, what: Literal["step", "reset"], orders: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
        """Let every worker do its part of the orders at the same time: answers by copy, in the order asked."""
        shares: dict[WorkerProcess, dict[int, Any]] = {}
        for i, order in orders.items():
            shares.setdefault(self.worker_of[i], {})[i] = order
        for worker, share in shares.items():
            worker.send((what, share))
        answers: dict[int, Any] = {}
        for i in orders:
            if i not in answers:
                self.watch(what, i)
                answers |= self.worker_of[i].answer()
            yield i, answers[i]

    def observed(self, i: int, obs: PyTree) -> PyTree:
        """What copy i observes: in shared memory, unless it does not fit there, which whoever asked will say."""
        return obs if obs is not None else row(self.obs, i)

    def close(self) -> None:
        for worker in self.workers:
            worker.leave()
        for worker in self.workers:
            worker.end()


class WorkerProcess:
    """One process and the connection to it."""

    def __init__(self, post: Assignment, memory: int):
        self.copies, self.ready = post.copies, False
        parent, child = socket_pair()
        life, self.life = os.pipe()  # the worker ends when the second end is closed, by us or with us
        command = [sys.executable, "-c", BOOT, json.dumps(sys.path), *map(str, (child, life, memory))]
        environment = {**ONE_THREAD, **os.environ}
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(child, life, memory),
                env=environment,
                process_group=0,  # Ctrl+C in a terminal is for this process alone
            )
        except OSError as error:
            raise EnvError(f"rollout.processes: cannot start a process: {error}") from error
        finally:
            os.close(child)
            os.close(life)
        self.connection = Connection(parent)
        self.send(post)

    def send(self, order: object) -> None:
        with contextlib.suppress(OSError):  # what it said last, or that it is gone, is found where the answer is read
            self.connection.send(order)

    def answer(self) -> Any:
        """Receive a worker's next answer; its failure is raised here as it would be in one process."""
        if not self.ready:
            self.ready = True
            self.answer()  # its copies are made
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self.death() from error
        if isinstance(answer, str):
            raise EnvError(answer)
        return answer

    def death(self) -> EnvError:
        code = self.process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        first, last = self.copies[0], self.copies[-1]
        which = f"environment {first}" if first == last else f"environments {first} to {last}"
        return EnvError(f"the process of {which} {how}")

    def leave(self) -> None:
        """Let it close its copies and end."""
        self.connection.close()

    def end(self) -> None:
        """Wait for it, or kill it."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.life >= 0:
            os.close(self.life)
            self.life = -1


def socket_pair() -> tuple[int, int]:
    """Descriptors of two ends that can both send and receive."""
    import socket

    parent, child = socket.socketpair()
    return parent.detach(), child.detach()


def layout_of(tree: PyTree, start: int = 0) -> tuple[Layout, int]:
    """Where the arrays of a tree lie in one block of memory, and the end of it; each at a multiple of 64 bytes."""
    if isinstance(tree, np.ndarray):
        return (tree.shape[1:], str(tree.dtype), start), start + math.ceil(tree.nbytes / 64) * 64
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    out: dict[Any, Layout] = {}
    for name, part in items:
        out[name], start = layout_of(part, start)
    return out if isinstance(tree, dict) else list(out.values()), start


def row(tree: PyTree, i: int) -> PyTree:
    if isinstance(tree, np.ndarray):
        return tree[i]
    return {k: row(x, i) for k, x in tree.items()} if isinstance(tree, dict) else tuple(row(x, i) for x in tree)
