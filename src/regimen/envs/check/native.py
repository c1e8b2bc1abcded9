"""Checking a native environment: first abstractly (what compiling sees), then for one copy, then compiled."""

import copy

import jax
import jax.numpy as jnp
import numpy as np

from regimen import exploration
from regimen.envs.adapters.compiled import from_space
from regimen.envs.check.members import check_mask, check_member, first_bad, same
from regimen.envs.check.report import Report, attempt
from regimen.envs.protocol import Env, agents_of, alive_in, mask_row
from regimen.envs.registry import EnvHandle
from regimen.types import Array, PyTree, TimeStep

NUM_ENVS = 4  # copies that are stepped


def check_native(handle: EnvHandle, report: Report, steps: int, seed: int) -> None:
    """First abstractly (what compiling sees), then for one copy, then compiled and vmapped."""
    env = handle.native
    assert env is not None
    if not check_pytree(env, report):
        return
    key = jax.random.key(seed)
    shapes = attempt("reset", report, lambda: jax.eval_shape(lambda e, k: e.reset(k), env, key))
    if shapes is None or not check_reset(shapes, handle, report):
        return
    state, obs = shapes
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
    stepped = attempt("a compiled run of step", report, lambda: jax.device_get(rollout(env, key, rows)))
    if stepped is None:
        return
    start, obs, reward, mask = stepped
    check_member(handle.observation_space, start, "the observation of reset", report, native=True)
    check_member(handle.observation_space, obs, "the observation of step", report, native=True)
    if not np.isfinite(reward).all():
        report.error("reward", f"step returned a reward that is not finite ({first_bad(reward)})")
    if mask is not None:
        check_mask(mask, handle, "action_mask(state)", report)


def check_pytree(env: Env, report: Report) -> bool:
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


def check_reset(shapes: PyTree, handle: EnvHandle, report: Report) -> bool:
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
    for kind, problem in abstract.by_kind.items():
        if problem.level == "error" and not kind.endswith("bounds"):
            report.error(kind, problem.message)
    return not report.failed


def check_step(out: PyTree, state: PyTree, obs: PyTree, handle: EnvHandle, report: Report) -> bool:
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


def check_purity(env: Env, key: Array, action: PyTree, report: Report) -> None:
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


def rollout(env: Env, key: Array, rows: int) -> tuple[PyTree, PyTree, Array, Array | None]:
    """(first obs, obs, reward, mask) of random allowed actions in vmapped copies that are reset as they end: by
    themselves, at the time limit, or when no agent is left."""
    noise_key, key = jax.random.split(key)
    agents, space = agents_of(env), env.action_space  # read here: bounds may be fields, which are traced below
    lead = (rows, NUM_ENVS, len(agents)) if agents else (rows, NUM_ENVS)
    noise = exploration.uniform_noise(space, noise_key, lead)
    keys = jax.random.split(key, (rows + 1, NUM_ENVS))

    @jax.jit
    def run(env):
        def one(key, carry, noise):
            state, length = carry
            action = exploration.uniform_actions(space, noise, mask_row(env, state))
            after, ts = env.step(key, state, action)
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
