"""Whether spaces are supported, and whether observations and masks belong to them."""

from collections.abc import Mapping

import jax
import numpy as np
from gymnasium import spaces as gym

from regimen import distributions, spaces
from regimen.envs.check.report import Report
from regimen.envs.registry import EnvHandle
from regimen.errors import RegimenError
from regimen.types import PyTree

LARGE = 50.0  # an observation beyond it needs normalising


def check_spaces(handle: EnvHandle, report: Report) -> None:
    for what, space in (("observation_space", handle.observation_space), ("action_space", handle.action_space)):
        if not isinstance(space, gym.Space):
            report.error(what, f"{what} is {space!r}; it must be a gymnasium.spaces space")
    if report.failed:
        return
    for check, space in (
        (spaces.check_observation_space, handle.observation_space),
        (distributions.for_space, handle.action_space),
    ):
        try:
            check(space)
        except RegimenError as e:
            report.error(str(e), str(e))
    action = handle.action_space
    if isinstance(action, gym.Box) and not (np.isfinite(action.low) & np.isfinite(action.high)).all():
        report.warn(
            "action bounds",
            f"the action space {action} is unbounded, so actions start around -1 to 1 and are never clipped; "
            "give it bounds, to which actions are scaled",
        )
    for name, metric in handle.metrics.items():
        if problem := metric.problem():
            report.error(name, f"metric_reductions['{name}'] is {problem}")
    violations = [name for name, metric in handle.metrics.items() if metric.violation]
    if len(violations) > 1:
        report.error("violation", f"{' and '.join(violations)} are violations; rules about conflicts read one metric")


def check_member(space: gym.Space, x: PyTree, where: str, report: Report, native: bool = False) -> None:
    """Whether `x` is in `space`: structure, shape, type, finite, bounds. A native `x` may have leading batch axes."""
    if isinstance(space, gym.Dict):
        if not isinstance(x, Mapping) or set(x) != set(space.spaces):
            keys = sorted(x) if isinstance(x, Mapping) else type(x).__name__
            return report.error(where, f"{where} has the keys {keys}; the space has {sorted(space.spaces)}")
        for k, s in space.spaces.items():
            check_member(s, x[k], f"{where}['{k}']", report, native)
        return None
    if isinstance(space, gym.Tuple):
        if not isinstance(x, tuple) or len(x) != len(space.spaces):
            return report.error(where, f"{where} is not a tuple of {len(space.spaces)} parts, as its space is")
        for i, s in enumerate(space.spaces):
            check_member(s, x[i], f"{where}[{i}]", report, native)
        return None

    assert space.shape is not None and space.dtype is not None  # of a space without parts
    try:
        value = np.asarray(x)
    except ValueError:
        return report.error(where, f"{where} is ragged; it must be one array of shape {space.shape}")
    shape = value.shape[value.ndim - len(space.shape) :] if native else value.shape
    if shape != space.shape:
        return report.error(where, f"{where} has shape {shape}; its space says {space.shape}")
    if value.dtype.kind not in "biuf":
        return report.error(where, f"{where} has dtype {value.dtype}; its space says {space.dtype}")
    integral = not np.issubdtype(space.dtype, np.floating)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        return report.error(where, f"{where} is not finite ({first_bad(value)}); look for a division by zero or a log")
    if integral and value.dtype.kind == "f":
        report.error(where, f"{where} has dtype {value.dtype}; its space says {space.dtype}: return integers")
    elif not native and not isinstance(space, gym.Discrete) and value.dtype != space.dtype:
        report.warn(
            f"{where} dtype", f"{where} has dtype {value.dtype}, its space {space.dtype}; convert it once there"
        )
    low, high = spaces.bounds(space)
    slack = 0.0 if integral else 1e-5 * np.maximum(1.0, np.maximum(abs(value), 1.0))
    if ((value < low - slack) | (value > high + slack)).any():
        worst = f"values from {value.min():g} to {value.max():g}"
        report.error(f"{where} bounds", f"{where} leaves its space, with {worst}; widen the space {space} or clip")
    if isinstance(space, gym.Box) and not integral and abs(value).max(initial=0.0) > LARGE:
        report.warn("large", f"{where} reaches {abs(value).max():.3g}; train with --algo.normalize_obs true")
    return None


def first_bad(value: np.ndarray) -> str:
    index = np.argwhere(~np.isfinite(value))[0]
    return f"{value[tuple(index)]} at index {', '.join(map(str, index))}" if index.size else str(value)


def check_mask(mask: np.ndarray, handle: EnvHandle, where: str, report: Report) -> bool:
    """Shape [..., options] and something allowed in every choice."""
    size = spaces.logits(handle.action_space)
    if isinstance(handle.action_space, gym.Box):
        report.error("mask", f"{where} masks a continuous action space; masks are for Discrete and MultiDiscrete")
    elif mask.shape[-1:] != (size,):
        report.error(
            "mask", f"{where} has shape {mask.shape}; the action space has {size} choices, so it must be ({size},)"
        )
    elif not spaces.allows(handle.action_space, mask):
        report.error("mask", f"{where} allows no action at all; at least one of every choice must be True")
    else:
        return True
    return False


def same(a: list[PyTree], b: list[PyTree]) -> bool:
    """Equal as far as both go."""
    n = min(len(a), len(b))
    x, y = jax.tree.leaves(a[:n]), jax.tree.leaves(b[:n])
    return len(x) == len(y) and all(np.array_equal(np.asarray(p), np.asarray(q)) for p, q in zip(x, y))
