"""Environments and an algorithm that Ray workers import: with faults that a test can call up, and without waiting."""

import dataclasses
import os
import resource
import signal
import time
from pathlib import Path

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from regimen.algorithms.ppo import PPO
from regimen.config.schema import PPOConfig


class Fragile(gymnasium.Env):
    """Episodes of 7 steps that say their number and time. It fails where a file in `folder` says how; whichever copy
    comes first takes the file away, so that it happens once. The fault `always` needs no file."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, folder: str = "", always: str = "", pause: float = 0.0, chatty: bool = False):
        self.folder, self.always, self.pause, self.chatty = Path(folder), always, pause, chatty
        self.episode = self.t = 0
        self.hoard: list[bytes] = []
        if self.asked_to("begin"):
            time.sleep(600)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.episode = seed % 1000 * 1000
        self.episode, self.t = self.episode + 1, 0
        if self.chatty:
            print("an episode begins", flush=True)
        return self.observe(), {}

    def observe(self):
        return np.array([self.episode, self.t], np.float32)

    def leak(self):
        """Take memory until there is no more, of what this process may have."""
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, resource.RLIM_INFINITY))
        while True:
            self.hoard.append(bytes(2**24))

    def asked_to(self, fault: str) -> bool:
        try:
            (self.folder / fault).unlink()
        except OSError:
            return self.always == fault
        return True

    def step(self, action):
        self.t += 1
        if self.t == 3:
            if self.asked_to("raise"):
                raise ValueError("the gripper broke")
            if self.asked_to("hang"):
                time.sleep(600)
            if self.asked_to("exit"):
                os._exit(1)
            if self.asked_to("crash"):
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.asked_to("leak"):
                self.leak()
            if self.asked_to("nan"):
                return np.full(2, np.nan, np.float32), 1.0, False, False, {}
        if self.pause:
            time.sleep(self.pause)
        return self.observe(), 1.0, self.t == 7, False, {}


@dataclasses.dataclass(frozen=True)
class EagerConfig(PPOConfig):
    """PPO that does not wait."""

    max_lag: int | None = None
    """Batches older than this are dropped."""


@jax.tree_util.register_static
class Eager(PPO):
    """PPO on each worker's batch as it comes."""

    asynchronous = True

    @property
    def max_lag(self):
        return self.config.max_lag

    def __init__(self, config=None, network=None):
        super().__init__(config or EagerConfig(), network)

    def bind(self, spec):
        bound = Eager(self.config, self.network)
        bound.binding = super().bind(spec).binding
        return bound
