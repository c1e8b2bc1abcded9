"""Tracing once what is used twice, and compiling on another core: XLA does not hold Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
from jax.extend.core import jaxpr_as_fun
from jax.stages import Compiled, Lowered

T = TypeVar("T")


def traced(function: Callable[..., T], *arguments: Any) -> tuple[Callable[..., T], T]:
    """The function as it does with arguments of these shapes, without its Python running again; and the shapes of what
    it returns."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    run, structure = jaxpr_as_fun(program), jax.tree.structure(shapes)

    def replay(*arguments: Any) -> T:
        return jax.tree.unflatten(structure, run(*jax.tree.leaves(arguments)))

    return replay, shapes


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
