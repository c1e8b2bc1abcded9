"""A function of small arrays as operations on one block per number.

A kernel of Triton knows blocks whose sizes are powers of two, and can neither slice nor join them. Here every number of
an array becomes a value of its own, for many rows at once: `spread` runs a function written for one row with blocks [R]
in the place of numbers. Moving numbers about (slices, reshapes, joins, transposes) then costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend import core
from jax.interpreters import partial_eval as pe

PyTree = Any  # kernels know nothing else of this package, not even its types
MOST = 4096  # operations on blocks that a kernel may consist of


class UnfitError(Exception):
    """The function has something that cannot be written as operations on single numbers."""


ONE_BY_ONE = """
abs acos acosh add and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp convert_element_type cos cosh
div eq erf_inv exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg nextafter
not or pow rem rsqrt select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan
tanh xor
"""
PLACES = "broadcast_in_dim concatenate expand_dims pad reshape rev slice split squeeze stack transpose unstack"
NOTHING = "copy copy_p optimization_barrier reshard sharding_constraint stop_gradient"
ELEMENTWISE, MOVES, SAME = (set(names.split()) for names in (ONE_BY_ONE, PLACES, NOTHING))
FOLDS: dict[str, Callable] = {
    "reduce_sum": jnp.add,
    "reduce_max": jnp.maximum,
    "reduce_min": jnp.minimum,
    "reduce_prod": jnp.multiply,
    "reduce_and": jnp.logical_and,
    "reduce_or": jnp.logical_or,
}
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
CALLS |= {
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat": "jaxpr",
    "checkpoint": "jaxpr",
}


class Numbers:
    """An array whose numbers are blocks, or numbers common to all rows."""

    def __init__(self, items: np.ndarray, dtype: Any):
        self.items, self.dtype = items, dtype  # items: object array of the shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self.items.shape


def numbers(values: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Numbers:
    """An array of these numbers, in row-major order."""
    items = np.empty(math.prod(shape), object)
    for i, value in enumerate(values):
        items[i] = value
    return Numbers(items.reshape(shape), jnp.dtype(dtype))


def constant(x: Any) -> Numbers:
    x = np.asarray(x)
    return numbers(list(x.reshape(-1)), x.shape, x.dtype)


class Function:
    """A traced function of small arrays, without the operations that no output needs. What it takes from the program
    around it (`captured`) are inputs of it as well, the first ones."""

    def __init__(self, function: Callable, examples: tuple[PyTree, ...]):
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), examples)
        closed, self.out = jax.make_jaxpr(function, return_shape=True)(*shapes)
        jaxpr = closed.jaxpr
        names = jaxpr.debug_info.with_unknown_names()
        jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars], debug_info=names)
        self.jaxpr, _ = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
        _, self.used = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
        self.consts = closed.consts
        self.captured = [c for c in closed.consts if isinstance(c, Tracer)]
        self.shapes = [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in self.captured] + jax.tree.leaves(shapes)

    def __call__(self, inputs: Sequence[Numbers]) -> list[Numbers]:
        given = iter(inputs)
        consts = [next(given) if isinstance(c, Tracer) else constant(c) for c in self.consts]
        return evaluate(self.jaxpr, [], [*consts, *given])

    def uses(self, leaf: int) -> bool:
        """Whether an output depends on this leaf of the examples."""
        return self.used[len(self.consts) + leaf]

    def fixed(self) -> list[np.ndarray | None]:
        """The value of each output that does not depend on the inputs, None of the others."""
        outs: list[list[Numbers]] = []
        self.abstractly(outs.append)
        return [np.array(x.items.tolist(), x.dtype).reshape(x.shape) if fixed(x) else None for x in outs[0]]

    def abstractly(self, look: Callable[[list[Numbers]], object]) -> int:
        """How many operations it takes on blocks. `look` is shown its outputs."""

        def run(*blocks: jax.Array) -> None:
            flat, inputs = iter(blocks), []
            for s in self.shapes:
                inputs.append(numbers([next(flat) for _ in range(math.prod(s.shape))], s.shape, s.dtype))
            look(self(inputs))

        blocks = [jax.ShapeDtypeStruct((16,), s.dtype) for s in self.shapes for _ in range(math.prod(s.shape))]
        return len(jax.make_jaxpr(run)(*blocks).eqns)


def trace(function: Callable, *examples: PyTree) -> Function:
    """A function of arrays with these shapes. Raises `UnfitError` where it is more than operations on blocks."""
    traced = Function(function, examples)
    avals: list[Any] = [v.aval for v in (*traced.jaxpr.invars, *traced.jaxpr.outvars)]
    for aval in avals:
        if aval.dtype not in (jnp.float32, jnp.int32, jnp.uint32, jnp.bool_):
            raise UnfitError(f"numbers of type {aval.dtype}")
    if traced.abstractly(lambda outputs: None) > MOST:
        raise UnfitError("too many operations")
    return traced


def evaluate(jaxpr: Any, consts: list[Numbers], inputs: list[Numbers]) -> list[Numbers]:
    values: dict[Any, Numbers] = {}

    def read(v: Any) -> Numbers:
        literal: Any = v
        return constant(np.asarray(v.val, literal.aval.dtype)) if isinstance(v, core.Literal) else values[v]

    for v, x in zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True):
        values[v] = x
    for eqn in jaxpr.eqns:
        out = operation(eqn, [read(v) for v in eqn.invars])
        for v, x in zip(eqn.outvars, out, strict=True):
            values[v] = x
    return [read(v) for v in jaxpr.outvars]


def operation(eqn: Any, args: list[Numbers]) -> list[Numbers]:
    """One operation of a traced function on arrays of blocks."""
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS:
        inner = params[CALLS[name]]
        jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "jaxpr") else (inner, [])
        return evaluate(jaxpr, [constant(c) for c in consts], args)
    if name in SAME:
        return args
    if name == "add_any":
        return [added(*args)]
    if name in MOVES or (name == "gather" and fixed(args[1])):
        return move(eqn, args)
    if name in ELEMENTWISE:
        return [elementwise(eqn, args)]
    if name == "iota":
        x = np.arange(params["shape"][params["dimension"]], dtype=params["dtype"])
        rest = [1] * len(params["shape"])
        rest[params["dimension"]] = -1
        return [constant(np.broadcast_to(x.reshape(rest), params["shape"]))]
    if name in FOLDS:
        return [fold(args[0], params["axes"], FOLDS[name])]
    if name in ("argmax", "argmin"):
        return [extreme(args[0], params["axes"][0], params["index_dtype"], name == "argmax")]
    if name == "round":
        return [numbers([rounded(v, params) for v in args[0].items.reshape(-1)], args[0].shape, args[0].dtype)]
    if name == "dot_general":
        return [product(args, params)]
    if name == "cumsum":
        return [running_sum(args[0], params["axis"], params["reverse"])]
    raise UnfitError(name)


def fixed(x: Numbers) -> bool:
    return all(isinstance(v, (np.generic, int, float, bool)) for v in x.items.reshape(-1))


def move(eqn: Any, args: list[Numbers]) -> list[Numbers]:
    """Where each number goes: the operation itself, on the numbers' places."""
    name = eqn.primitive.name
    moving = args[:1] if name == "gather" else args
    pool, places, start = [], [], 0
    for x in moving:
        size = x.items.size
        places.append(np.arange(start, start + size, dtype=np.int32).reshape(x.shape))
        pool.extend(x.items.reshape(-1))
        start += size
    if name == "gather":
        places.append(np.array(args[1].items.tolist(), args[1].dtype).reshape(args[1].shape))
    with jax.ensure_compile_time_eval():
        out = eqn.primitive.bind(*(jnp.asarray(p) for p in places), **eqn.params)
    outs = out if eqn.primitive.multiple_results else [out]
    return [
        numbers([pool[i] for i in np.asarray(o).reshape(-1)], v.aval.shape, v.aval.dtype)
        for o, v in zip(outs, eqn.outvars)
    ]


def align(values: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Values of one shape and of their types: a block where any is one."""
    shape = next((v.shape for v in values if getattr(v, "shape", ())), ())
    out = []
    for v, dtype in zip(values, dtypes):
        if isinstance(v, (np.generic, int, float, bool)) or getattr(v, "dtype", dtype) != dtype:
            v = jnp.asarray(v, dtype)
        out.append(v if v.shape == shape else jnp.broadcast_to(v, shape))
    return out


def elementwise(eqn: Any, args: list[Numbers]) -> Numbers:
    shape = eqn.outvars[0].aval.shape
    params = {k: v for k, v in eqn.params.items() if k != "sharding"}
    if "sharding" in eqn.params:
        params["sharding"] = None
    columns = [np.broadcast_to(x.items, shape).reshape(-1) for x in args]
    dtypes = [x.dtype for x in args]
    out = []
    for row in zip(*columns):
        if all(isinstance(v, (np.generic, int, float, bool)) for v in row):
            with jax.ensure_compile_time_eval():
                value = eqn.primitive.bind(*(jnp.asarray(v, d) for v, d in zip(row, dtypes)), **params)
            out.append(np.asarray(value)[()])
        else:
            out.append(eqn.primitive.bind(*align(row, dtypes), **params))
    return numbers(out, shape, eqn.outvars[0].aval.dtype)


def rounded(x: Any, params: Any) -> Any:
    """The nearest whole number, which Triton does not know; of two the even one, or the one away from zero."""
    low = jnp.floor(x)
    rest, up = x - low, low + 1.0
    even = jnp.where(0.5 * low == jnp.floor(0.5 * low), low, up)
    tie = even if params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN else jnp.where(x > 0, up, low)
    return jnp.where(rest > 0.5, up, jnp.where(rest < 0.5, low, tie))


def added(a: Numbers, b: Numbers) -> Numbers:
    """The sum of two gradients."""
    pairs = zip(a.items.reshape(-1), b.items.reshape(-1))
    return numbers([jnp.add(*align(pair, (a.dtype,) * 2)) for pair in pairs], a.shape, a.dtype)


def fold(x: Numbers, axes: Sequence[int], join: Callable) -> Numbers:
    rest = [i for i in range(len(x.shape)) if i not in axes]
    shape = tuple(x.shape[i] for i in rest)
    rows = x.items.transpose(*rest, *axes).reshape(math.prod(shape), -1)
    return numbers([reduce(lambda a, b: join(*align((a, b), (x.dtype,) * 2)), row) for row in rows], shape, x.dtype)


def extreme(x: Numbers, axis: int, dtype: Any, most: bool) -> Numbers:
    rest = [i for i in range(len(x.shape)) if i != axis]
    shape = tuple(x.shape[i] for i in rest)
    out = []
    for row in x.items.transpose(*rest, axis).reshape(math.prod(shape), -1):
        best, index = row[0], np.zeros((), dtype)[()]
        for i, value in enumerate(row[1:], 1):
            a, b = align((value, best), (x.dtype,) * 2)
            better = a > b if most else a < b
            best = jnp.where(better, a, b)
            index = jnp.where(better, *align((np.asarray(i, dtype)[()], index), (jnp.dtype(dtype),) * 2))
        out.append(index)
    return numbers(out, shape, dtype)


def product(args: list[Numbers], params: Any) -> Numbers:
    (ca, cb), (ba, bb) = params["dimension_numbers"]
    if ba or bb or len(ca) != 1:
        raise UnfitError("dot_general")
    a = np.moveaxis(args[0].items, ca[0], -1)
    b = np.moveaxis(args[1].items, cb[0], -1)
    shape = a.shape[:-1] + b.shape[:-1]
    dtype = args[0].dtype
    out = []
    for x in a.reshape(-1, a.shape[-1]):
        for y in b.reshape(-1, b.shape[-1]):
            terms = [jnp.multiply(*align(pair, (dtype, dtype))) for pair in zip(x, y)]
            out.append(reduce(lambda p, q: jnp.add(*align((p, q), (dtype, dtype))), terms))
    return numbers(out, shape, dtype)


def running_sum(x: Numbers, axis: int, reverse: bool) -> Numbers:
    items = np.moveaxis(x.items, axis, 0).copy()
    order = range(len(items) - 2, -1, -1) if reverse else range(1, len(items))
    flat = items.reshape(len(items), -1)
    for i in order:
        before = flat[i + 1] if reverse else flat[i - 1]
        for j in range(flat.shape[1]):
            flat[i, j] = jnp.add(*align((flat[i, j], before[j]), (x.dtype,) * 2))
    return Numbers(np.moveaxis(flat.reshape(items.shape), 0, axis), x.dtype)
