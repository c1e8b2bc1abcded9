"""Kernels for GPUs, written with Pallas for Triton: small dense networks whose activations stay on the chip
(`dense.py`), and whole rollouts of small environments (`rollout.py`, with `scalars.py`).

Each does what plain JAX does elsewhere, which is the reference, the way on a CPU, and the way where a shape, a network
or an environment does not fit. `REGIMEN_KERNELS=off` does without them everywhere, to compare; `interpret` has them
interpreted on a CPU, to test them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

WIDEST = 128  # units of a layer, above which a tile's layers no longer fit the registers
LEAST_ROWS = 1024  # of a gradient step; fewer do not fill a GPU
ALLOWED: ContextVar[bool] = ContextVar("kernels", default=True)
GRADIENT: ContextVar[bool] = ContextVar("gradient", default=False)
WATCH: ContextVar[Callable[..., Any] | None] = ContextVar("watch", default=None)  # is called instead of dense networks


UNFIT: list[str] = []  # why there was no kernel, newest last


def mode() -> str:
    """`on`, `off` or `interpret`."""
    asked = os.environ.get("REGIMEN_KERNELS", "on")
    if asked == "interpret":
        return asked
    return "on" if asked != "off" and ALLOWED.get() and on_tensor_cores() else "off"


def on_tensor_cores() -> bool:
    """Whether programs run on an NVIDIA GPU that Triton writes for."""
    if jax.default_backend() != "gpu":
        return False
    return float(getattr(jax.devices()[0], "compute_capability", "0") or 0) >= 8.0


@contextmanager
def without() -> Iterator[None]:
    """Trace what is inside as plain JAX."""
    token = ALLOWED.set(False)
    try:
        yield
    finally:
        ALLOWED.reset(token)


@contextmanager
def gradients() -> Iterator[None]:
    """Trace what is inside as the gradient of a loss by parameters, for which dense networks have kernels."""
    token = GRADIENT.set(True)
    try:
        yield
    finally:
        GRADIENT.reset(token)


def fits(activation: str, sizes: tuple[int, ...]) -> bool:
    """Whether a dense network with these sizes of its input, its layers and its output has kernels."""
    return activation in ("tanh", "relu") and 3 <= len(sizes) <= 5 and max(sizes) <= WIDEST


def in_gradient(activation: str, apply: Callable[..., Any], params: Any, x: Any, *more: Any) -> Any:
    """`apply(params, x, *more)` of a dense network: by a kernel where the gradient of many rows is being traced."""
    if (watching := WATCH.get()) is not None:
        return watching(activation, apply, params, x)
    how = mode() if GRADIENT.get() else "off"  # asked first: the rows of an exported program have no number
    if how == "off" or x.ndim != 2 or x.dtype != jnp.float32 or x.shape[0] < LEAST_ROWS:
        return apply(params, x, *more)
    if any(y is not None for y in more):
        return apply(params, x, *more)
    from regimen.kernels import dense  # pallas takes a while to import, and a CPU has no use for it

    layers = dense.layers_of(params)
    return dense.dense(dense.Tiling.of(activation, layers, how == "interpret"), layers, x)


def loss_gradient(loss: Any, params: Any, matrix: Any, unpack: Any, index: Any, count: Any) -> Any:
    """Sums over rows of the gradient of a loss and of its metrics by one kernel for each network; None where there is
    none. See `kernels.loss`."""
    how = mode()
    if how == "off":
        return None
    from regimen.kernels.loss import Loss
    from regimen.kernels.scalars import UnfitError

    try:
        whole = Loss(loss, params, matrix, unpack)
    except UnfitError as reason:
        UNFIT.append(str(reason))
        return None
    return whole.gradient(params, matrix, index, count, how == "interpret")
