"""What is wrong with an environment, before training finds out: `regimen check-env ENV`.

Every message says what is wrong, where, and how to mend it. An error would stop or spoil training; a warning may.
"""

from __future__ import annotations

import contextlib
import copy
import io
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym

from regimen import distributions, spaces
from regimen.envs.adapters.gymnasium import from_space, read_components, read_mask
from regimen.envs.protocol import agents_of, alive_in, mask_row
from regimen.envs.registry import EnvHandle, one_line, resolve
from regimen.errors import EnvError, RegimenError
from regimen.types import Array, PyTree, TimeStep

LARGE = 50.0  # an observation beyond it needs normalising
NUM_ENVS = 4  # copies a native environment is stepped in


@dataclass(frozen=True)
class Problem:
    level: Literal["error", "warning"]
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.message}"


class Report:
    """Problems found so far, each kind once."""

    def __init__(self):
        self.found: dict[str, Problem] = {}

    def error(self, kind: str, message: str) -> None:
        self.found.setdefault(kind, Problem("error", message))

    def warn(self, kind: str, message: str) -> None:
        self.found.setdefault(kind, Problem("warning", message))

    @property
    def problems(self) -> list[Problem]:
        return sorted(self.found.values(), key=lambda p: p.level)

    @property
    def failed(self) -> bool:
        return any(p.level == "error" for p in self.found.values())


def check_env(env: Any, env_args: Mapping[str, Any] | None = None, steps: int = 300, seed: int = 0) -> list[Problem]:
    """Step an environment (a handle, or anything `resolve` takes) at random; errors first, then warnings."""
    report = Report()
    if isinstance(env, EnvHandle):
        handle = env
    else:
        try:
            handle = resolve(env, env_args)
        except EnvError as e:
            return [Problem("error", str(e))]
    check_spaces(handle, report)
    if not report.failed:
        (check_native if handle.native is not None else check_host)(handle, report, steps, seed)
    return report.problems


# --- both ------------------------------------------------------------------------------------------------------------


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


def check_member(space: Any, x: Any, where: str, report: Report, native: bool = False) -> None:
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
    low, high = bounds(space)
    slack = 0.0 if integral else 1e-5 * np.maximum(1.0, np.maximum(abs(value), 1.0))
    if ((value < low - slack) | (value > high + slack)).any():
        worst = f"values from {value.min():g} to {value.max():g}"
        report.error(f"{where} bounds", f"{where} leaves its space, with {worst}; widen the space {space} or clip")
    if isinstance(space, gym.Box) and not integral and abs(value).max(initial=0.0) > LARGE:
        report.warn("large", f"{where} reaches {abs(value).max():.3g}; train with --algo.normalize_obs true")
    return None


def bounds(space: Any) -> tuple[Any, Any]:
    match space:
        case gym.Discrete():
            return space.start, space.start + space.n - 1
        case gym.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
        case gym.MultiBinary():
            return 0, 1
    return space.low, space.high


def first_bad(value: np.ndarray) -> str:
    index = np.argwhere(~np.isfinite(value))[0]
    return f"{value[tuple(index)]} at index {', '.join(map(str, index))}" if index.size else str(value)


def check_mask(mask: np.ndarray, handle: EnvHandle, where: str, report: Report) -> bool:
    """Shape [..., options] and something allowed in every choice."""
    size = sum(spaces.logits(s) for s in spaces.leaves(handle.action_space).values())
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


# --- host ------------------------------------------------------------------------------------------------------------


def check_host(handle: EnvHandle, report: Report, steps: int, seed: int) -> None:
    assert handle.make_host is not None
    try:
        env = handle.make_host()
    except EnvError as e:
        return report.error("make", str(e))
    if handle.agents:
        return check_team(env, report, steps)
    try:
        first = play(env, handle, report, steps, seed)
        if not report.failed and not same(first, play(env, handle, Report(), min(steps, 50), seed)):
            report.warn(
                "seeding",
                f"two runs from reset(seed={seed}) with equal actions differ; call super().reset(seed=seed) and draw "
                "from self.np_random, or results cannot be repeated",
            )
    finally:
        env.close()
    return None


def check_team(team: Any, report: Report, steps: int) -> None:
    """PettingZoo's own test of a parallel environment."""
    from pettingzoo.test import parallel_api_test

    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with contextlib.redirect_stdout(io.StringIO()):
                parallel_api_test(team.env, num_cycles=steps)
        for each in dict.fromkeys(str(w.message) for w in told):
            report.warn(each, f"PettingZoo's test warns: {each}")
    except Exception as e:
        report.error("parallel_api_test", f"PettingZoo's test fails: {one_line(e)}{location(e)}")
    finally:
        team.close()


def play(env: Any, handle: EnvHandle, report: Report, steps: int, seed: int) -> list[Any]:
    """Random steps; what was observed, to compare a second play with."""
    seen, ended = [], False
    handle.action_space.seed(seed)
    mask = begin(env, handle, report, seen, seed)
    for _ in range(steps):
        if report.failed:
            return seen
        action = spaces.sample(handle.action_space, mask)
        try:
            out = env.step(action)
        except Exception as e:
            report.error("step", f"step({action!r}) raised {one_line(e)}{location(e)}")
            return seen
        if not isinstance(out, tuple) or len(out) != 5:
            size = f" of {len(out)}" if isinstance(out, tuple) else ""
            got = f"{type(out).__name__}{size}"
            report.error("step", f"step returned a {got}; it must be (obs, reward, terminated, truncated, info)")
            return seen
        obs, reward, terminated, truncated, info = out
        seen.append((obs, reward))
        check_member(handle.observation_space, obs, "the observation of step", report)
        check_reward(reward, report)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_)):
                report.error(name, f"step returned {name} = {flag!r} ({type(flag).__name__}); it must be a bool")
        mask = check_info(info, handle, "step", report)
        if isinstance(info, dict) and not report.failed:
            try:
                read_components(reward, info, handle.reward_components)
            except EnvError as e:
                report.error("components", str(e))
        if not report.failed and (terminated or truncated):
            ended = True
            mask = begin(env, handle, report, seen)
    if not ended and not handle.max_episode_steps:
        report.warn(
            "endless",
            f"no episode ended in {steps} random steps and no time limit is known; set --env.max_episode_steps N, or "
            "rollout.episodes may wait for ever",
        )
    return seen


def begin(env: Any, handle: EnvHandle, report: Report, seen: list, seed: int | None = None) -> np.ndarray | None:
    try:
        out = env.reset(seed=seed)
    except Exception as e:
        hint = "; give reset the keyword arguments seed and options" if isinstance(e, TypeError) else ""
        return report.error("reset", f"reset(seed={seed}) raised {one_line(e)}{location(e)}{hint}")
    if not isinstance(out, tuple) or len(out) != 2:
        return report.error("reset", f"reset returned a {type(out).__name__}; it must be (obs, info)")
    obs, info = out
    seen.append(obs)
    check_member(handle.observation_space, obs, "the observation of reset", report)
    return check_info(info, handle, "reset", report)


def check_reward(reward: Any, report: Report) -> None:
    try:
        value = np.asarray(reward, np.float64)
    except (TypeError, ValueError):
        return report.error("reward", f"step returned the reward {reward!r}; it must be a number")
    if value.size != 1:
        return report.error("reward", f"step returned a reward of shape {value.shape}; it must be one number")
    if not np.isfinite(value).all():
        return report.error("reward", f"step returned the reward {value}; it must be finite")
    if value.ndim:
        report.warn("reward", f"step returned the reward as an array of shape {value.shape}; return float(reward)")
    return None


def check_info(info: Any, handle: EnvHandle, where: str, report: Report) -> np.ndarray | None:
    """The action mask in `info`, if any."""
    if not isinstance(info, dict):
        return report.error("info", f"{where} returned info = {info!r}; it must be a dict, empty or not")
    mask, where = read_mask(info), f"info['action_mask'] of {where}"
    if mask is None:
        return None
    try:
        row = spaces.mask_row(handle.action_space, mask) if isinstance(mask, (dict, tuple)) else mask
    except (RegimenError, ValueError) as e:
        return report.error("mask", f"{where}: {e}")
    return row if check_mask(row, handle, where, report) else None


def same(a: list[Any], b: list[Any]) -> bool:
    """Equal as far as both go."""
    n = min(len(a), len(b))
    x, y = jax.tree.leaves(a[:n]), jax.tree.leaves(b[:n])
    return len(x) == len(y) and all(np.array_equal(np.asarray(p), np.asarray(q)) for p, q in zip(x, y))


# --- native ----------------------------------------------------------------------------------------------------------


def check_native(handle: EnvHandle, report: Report, steps: int, seed: int) -> None:
    """First abstractly (what compiling sees), then for one copy, then compiled and vmapped."""
    env: Any = handle.native
    if not check_pytree(env, report):
        return
    key = jax.random.key(seed)
    shapes = attempt("reset", report, lambda: jax.eval_shape(lambda e, k: e.reset(k), env, key))
    if shapes is None or not check_reset(shapes, handle, report):
        return
    state, obs = shapes
    dist = distributions.for_space(handle.action_space)
    mask = None
    if getattr(env, "action_mask", None):
        mask = attempt("action_mask", report, lambda: jax.eval_shape(mask_row, env, state))
        if mask is None or not check_mask(np.ones(mask.shape, bool), handle, "action_mask(state)", report):
            return
    one = from_space(handle.action_space, handle.action_space.sample())
    if handle.agents:
        one = jax.tree.map(lambda x: np.stack([x] * len(handle.agents)), one)
        if getattr(env, "alive", None):
            alive = attempt("alive", report, lambda: jax.eval_shape(lambda e, s: e.alive(s), env, state))
            if alive is None or (alive.shape, alive.dtype) != ((len(handle.agents),), bool):
                return report.error("alive", f"alive(state) must be one bool for each of {len(handle.agents)} agents")
    out = attempt("step", report, lambda: jax.eval_shape(lambda e, k, s, a: e.step(k, s, a), env, key, state, one))
    if out is None or not check_step(out, state, obs, handle, report):
        return
    check_purity(env, key, one, report)

    rows = -(-steps // NUM_ENVS)
    seen = attempt("a compiled run of step", report, lambda: jax.device_get(rollout(env, dist, key, rows)))
    if seen is None:
        return
    start, obs, reward, mask = seen
    check_member(handle.observation_space, start, "the observation of reset", report, native=True)
    check_member(handle.observation_space, obs, "the observation of step", report, native=True)
    if not np.isfinite(reward).all():
        report.error("reward", f"step returned a reward that is not finite ({first_bad(reward)})")
    if mask is not None:
        check_mask(mask, handle, "action_mask(state)", report)


def check_pytree(env: Any, report: Report) -> bool:
    name = type(env).__name__
    leaves, structure = jax.tree.flatten(env)
    if len(leaves) == 1 and leaves[0] is env:
        report.error("pytree", f"{name} is not a pytree; decorate the class with @regimen.envs.protocol.native_env")
        return False
    try:
        alike = structure == jax.tree.structure(copy.deepcopy(env))
    except ValueError:  # the truth of an array
        alike = False
    if not alike:
        report.error(
            "pytree",
            f"a copy of {name} is not equal to it, so every call would compile again; use only numbers, text, tuples "
            "in fields that are not annotated float",
        )
    return not report.failed


def check_reset(shapes: Any, handle: EnvHandle, report: Report) -> bool:
    if not isinstance(shapes, tuple) or len(shapes) != 2:
        report.error("reset", f"reset(key) returned a {type(shapes).__name__}; it must be (state, obs)")
        return False
    zeros, count = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes[1]), len(handle.agents)
    if count:
        if any(x.shape[:1] != (count,) for x in jax.tree.leaves(zeros)):
            report.error("agents", f"the observation of reset must have its {count} agents in front, [A, ...]")
            return False
        zeros = jax.tree.map(lambda x: x[0], zeros)
    abstract = Report()  # only structure, shape and type are known yet: zeros may well be out of bounds
    check_member(handle.observation_space, zeros, "the observation of reset", abstract, native=False)
    for kind, problem in abstract.found.items():
        if problem.level == "error" and not kind.endswith("bounds"):
            report.error(kind, problem.message)
    return not report.failed


def check_step(out: Any, state: PyTree, obs: PyTree, handle: EnvHandle, report: Report) -> bool:
    if not isinstance(out, tuple) or len(out) != 2 or not isinstance(out[1], TimeStep):
        report.error("step", "step(key, state, action) must return (state, TimeStep(obs, reward, terminated, ...))")
        return False
    after, ts = out
    for what, old, new in (("state", state, after), ("observation", obs, ts.obs)):
        difference = first_difference(old, new)
        if difference:
            report.error(what, f"the {what} of step differs from that of reset: {difference}; they must be alike")
    k, lead = len(handle.reward_components), (len(handle.agents),) if handle.agents else ()
    if ts.reward.shape not in ([(*lead, k), lead] if k == 1 else [(*lead, k)]):
        names = ", ".join(handle.reward_components)
        report.error(
            "reward",
            f"step's reward has shape {ts.reward.shape}; its components are {names}, so it must be {(*lead, k)}",
        )
    for name in ("terminated", "truncated"):
        flag = getattr(ts, name)
        if flag.shape not in ((), lead) or flag.dtype != bool:
            each = " or one for each agent" if lead else ""
            report.error(name, f"step's {name} is {flag.dtype}{list(flag.shape)}; it must be one bool{each}")
    if set(ts.metrics) != set(handle.metrics):
        both = f"{sorted(ts.metrics)}; metric_reductions names {sorted(handle.metrics)}"
        report.error("metrics", f"step's metrics are {both}: they must be the same")
    for name, value in ts.metrics.items():
        if value.shape != ():
            report.error("metrics", f"the metric '{name}' has shape {value.shape}; it must be one number")
    return not report.failed


def first_difference(old: PyTree, new: PyTree) -> str:
    """Where two trees of shapes differ, in words; a scan needs its carry to keep structure, shapes and types."""
    a, b = (dict(jax.tree_util.tree_leaves_with_path(t)) for t in (old, new))
    if jax.tree.structure(old) != jax.tree.structure(new):
        return f"{jax.tree.structure(old)} became {jax.tree.structure(new)}"
    for path, x in a.items():
        y = b[path]
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            where = jax.tree_util.keystr(path) or "it"
            return f"{where} was {x.dtype}{list(x.shape)} and became {y.dtype}{list(y.shape)}"
    return ""


def check_purity(env: Any, key: Array, action: PyTree, report: Report) -> None:
    """Outside jit Python runs every time, so randomness that does not come from the key shows as a difference."""

    def once():
        state, obs = env.reset(key)
        return obs, env.step(key, state, action)

    first, second = attempt("reset and step", report, once), attempt("reset and step", report, once)
    if first is not None and not same([first], [second]):
        report.error(
            "purity",
            "reset or step gave two results for one key; draw from the key with jax.random, not from numpy or random, "
            "and keep everything that changes in the state",
        )


def rollout(env: Any, dist: Any, key: Array, rows: int):
    """(first obs, obs, reward, mask) of random allowed actions in vmapped copies that are reset as they end: by
    themselves, at the time limit, or when no agent is left."""
    noise_key, key = jax.random.split(key)
    agents = agents_of(env)
    noise = dist.noise(noise_key, (rows, NUM_ENVS, len(agents)) if agents else (rows, NUM_ENVS))
    keys = jax.random.split(key, (rows + 1, NUM_ENVS))

    @jax.jit
    def run(env):
        def one(key, carry, noise):
            state, length = carry
            head = jnp.zeros((len(agents), dist.head_size) if agents else dist.head_size)
            params = dist.params(head, jnp.zeros(dist.free_size), mask_row(env, state))
            after, ts = env.step(key, state, dist.to_env(dist.sample(params, noise)))
            ended = ts.terminated | ts.truncated
            if agents:
                ended = ended | ~alive_in(env, state) | ~alive_in(env, after)
            done = jnp.all(ended) | (length + 1 >= env.max_episode_steps)
            fresh, _ = env.reset(key)
            carry = jax.tree.map(lambda a, b: jnp.where(done, a, b), (fresh, 0), (after, length + 1))
            return carry, (ts.obs, jnp.sum(ts.reward), mask_row(env, after))

        def body(carry, xs):
            return jax.vmap(one)(xs[0], carry, xs[1])

        state, obs = jax.vmap(env.reset)(keys[0])
        start = state, jnp.zeros(NUM_ENVS, jnp.int32)
        return obs, *jax.lax.scan(body, start, (keys[1:], noise))[1]

    return run(env)


def attempt(what: str, report: Report, call: Any) -> Any:
    """`call()`, or None and an error that says what about it cannot be compiled."""
    try:
        return call()
    except RegimenError as e:
        report.error(what, f"{what}: {e}")
        return None
    except Exception as e:
        report.error(what, f"{what} failed: {trace_hint(e)}{location(e)}")
        return None


def trace_hint(error: Exception) -> str:
    """jax's tracing errors in one line with the usual remedy."""
    known = {
        jax.errors.TracerBoolConversionError: "it uses Python's if, and, or, or not on a traced value; use jnp.where, "
        "lax.cond, &, | and ~",
        jax.errors.TracerArrayConversionError: "it hands a traced value to numpy; use jax.numpy",
        jax.errors.TracerIntegerConversionError: "it uses a traced value as a Python index or size; use jnp indexing",
        jax.errors.UnexpectedTracerError: "it keeps a traced value outside its return values; put it in the state",
        jax.errors.ConcretizationTypeError: "it needs the value of a traced array (float(), int(), a shape); use jnp",
    }
    for kind, words in known.items():
        if isinstance(error, kind):
            return words
    return one_line(error)[:300]


def location(error: BaseException) -> str:
    """The last line of the user's own code that the error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    frames = [f for f in frames if f.filename != __file__]
    return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
