"""Compiling on another core while this thread goes on: XLA does not hold Python's lock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from jax.stages import Compiled, Lowered


class Compiling:
    """A program that is being compiled by a thread of its own."""

    def __init__(self, lowered: Lowered):
        pool = ThreadPoolExecutor(1)
        self.future = pool.submit(lowered.compile)
        pool.shutdown(wait=False)

    @property
    def running(self) -> bool:
        """Whether `result` would wait."""
        return not self.future.done()

    def result(self) -> Compiled:
        """The compiled program; waits until it is ready."""
        return self.future.result()
