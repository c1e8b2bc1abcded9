"""Compiling on another core while this thread goes on: XLA does not hold Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from jax.stages import Compiled, Lowered

from regimen import kernels


class Compiling:
    """A program that is being compiled by a thread of its own."""

    def __init__(self, lowered: Lowered, otherwise: Callable[[], Lowered] | None = None):
        """`otherwise` is what to compile where the compiler refuses kernels of our own."""

        def compiled() -> Compiled:
            try:
                return lowered.compile()
            except Exception:
                if otherwise is None or kernels.mode() != "on":
                    raise
                return otherwise().compile()

        pool = ThreadPoolExecutor(1)
        self.future = pool.submit(compiled)
        pool.shutdown(wait=False)

    @property
    def running(self) -> bool:
        """Whether `result` would wait."""
        return not self.future.done()

    def result(self) -> Compiled:
        """The compiled program; waits until it is ready."""
        return self.future.result()
