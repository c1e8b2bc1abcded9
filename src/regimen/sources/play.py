"""Playing whole episodes without learning: evaluations, replays, recorded flights.

Native environments are played inside one compiled program (`play`), Gymnasium and PettingZoo environments in this
process (`play_host`). Neither touches the training state. The caller says where episodes start and what is recorded.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen import exploration, kernels, spaces
from regimen.envs.protocol import Baseline, Env, agents_of
from regimen.sources.host import Ending, HostAction, HostRows, HostSource, Interrupted
from regimen.sources.keys import by_agent, side_by_side
from regimen.sources.scan import EnvCarry, fresh, masks, select, step_all
from regimen.types import ActingAlgorithm, Array, PyTree

MOST_STEPS = 4096  # of an episode that a kernel plays to the end, however soon it is over

Record = Callable[[PyTree], dict[str, Array]]  # of one state


def no_memory(params: PyTree, rows: int) -> PyTree:
    """The memory of an actor that has none."""
    return ()


class Actor(NamedTuple):
    """A policy that plays native environments.

    `act(env, params, key, state [E, ...], obs [B, ...], mask [B, L], memory [B, ...])` returns actions [B, ...] in the
    environment's own form and the memory for the next step. `key` is one for all, or one for each environment [E].
    `start(params, B)` is the memory at the start of an episode. Both functions are part of the compiled program; what
    differs between policies of one program is in `params`.
    """

    act: Callable[[Env, PyTree, Array, PyTree, PyTree, Array | None, PyTree], tuple[PyTree, PyTree]]
    start: Callable[[PyTree, int], PyTree] = no_memory
    dense: Callable[[PyTree], Any] | None = None  # the policy for a kernel of a GPU, see `kernels.rollout`


def greedy(
    algo: ActingAlgorithm, params: PyTree, obs: PyTree, mask: Array | None, memory: PyTree
) -> tuple[PyTree, PyTree]:
    """The greedy actions of an algorithm with these actor parameters, and its memory for the next step."""
    action, memory, _ = algo.act(params, obs, memory, None, mask=mask, greedy=True)
    return algo.to_env(action), memory


def greedy_actor(algo: ActingAlgorithm) -> Actor:
    """The actor that follows an algorithm's greedy policy."""

    def act(env, params, key, state, obs, mask, memory):
        return greedy(algo, params, obs, mask, memory)

    dense = getattr(algo, "dense_policy", None)
    return Actor(
        act,
        lambda params, rows: algo.initial_carry((rows,)),
        None if dense is None else (lambda params: (algo, dense(params, greedy=True))),
    )


def random_actor(space: gymnasium.Space) -> Actor:
    """The actor that draws uniformly among the actions that are allowed."""

    def act(env, params, key, state, obs, mask, memory):
        noise = exploration.uniform_noise(space, key, (jax.tree.leaves(obs)[0].shape[0],))
        return exploration.uniform_actions(space, noise, mask), memory

    return Actor(act)


@cache  # one function for each baseline, so that it is compiled once
def baseline_actor(function: Baseline) -> Actor:
    """The actor that follows a baseline `fn(env, key, state, obs) -> action` of one environment and all its agents."""
    return rule_actor(lambda env, params, key, state, obs: function(env, key, state, obs))


def rule_actor(rule: Callable[[Env, PyTree, Array, PyTree, PyTree], PyTree]) -> Actor:
    """The actor that follows `rule(env, params, key, state, obs) -> action`, a baseline with parameters."""

    def act(env, params, key, state, obs, mask, memory):
        obs = by_agent(env, obs)
        keys = key if key.ndim else jax.random.split(key, jax.tree.leaves(obs)[0].shape[0])
        return side_by_side(env, jax.vmap(lambda k, s, o: rule(env, params, k, s, o))(keys, state, obs)), memory

    return Actor(act)


class Recording(NamedTuple):
    """What was recorded of E episodes."""

    start: PyTree  # [E, ...] the states they began in
    rows: dict[str, Array]  # name -> [T + 1, E, ...] of the start and of the state after each step
    length: Array  # [E] steps taken; later rows mean nothing


class Playthrough(NamedTuple):
    """One episode of each of E environments."""

    carry: EnvCarry  # the state each ended in, and its sums
    terminated: Array  # [E] it ended by itself, and was not cut short
    recording: Recording


def play(
    env: Env,
    actor: Actor,
    params: PyTree,
    start: tuple[PyTree, PyTree],
    keys: Callable[[Array], tuple[Array, Array]],
    record: Record = lambda state: {},
) -> Playthrough:
    """Play one episode from each of the states and observations `start` [E, ...], to be called in a compiled function.

    `keys(t)` returns the actor's key and those of the environments' steps [E] at time t. `record` says what is kept of
    every state.
    """
    state, obs = start
    episodes = jax.tree.leaves(obs)[0].shape[0]
    look = jax.vmap(record)

    def write(rows: dict[str, Array], t: Array, state: PyTree) -> dict[str, Array]:
        return {name: lax.dynamic_update_index_in_dim(rows[name], x, t, 0) for name, x in look(state).items()}

    carry = fresh(env, state, obs, actor.start(params, episodes * max(1, len(agents_of(env)))))
    flags = jnp.zeros(episodes, bool)
    rows = {name: jnp.zeros((env.max_episode_steps + 1, *x.shape), x.dtype) for name, x in look(state).items()}
    rows = write(rows, jnp.int32(0), state)
    if not rows and (whole := as_kernel(env, actor, params, carry)) is not None:
        return Playthrough(*whole, Recording(state, rows, whole[0].length))

    def going(x):
        return jnp.any(~x[2])

    def body(x):
        t, carry, over, terminated, rows = x
        act_key, step_keys = keys(t)
        mask = masks(env, carry.state)
        action, memory = actor.act(env, params, act_key, carry.state, carry.obs, mask, carry.memory)
        new = step_all(env, carry, action, memory, step_keys)
        after = jax.tree.map(lambda a, b: select(over, b, a), new.going, carry)
        rows = write(rows, t + 1, after.state)
        return t + 1, after, over | new.over, terminated | (new.ended & ~over), rows

    _, carry, _, terminated, rows = lax.while_loop(going, body, (jnp.int32(0), carry, flags, flags, rows))
    return Playthrough(carry, terminated, Recording(state, rows, carry.length))


def as_kernel(env: Env, actor: Actor, params: PyTree, carry: EnvCarry) -> tuple[EnvCarry, Array] | None:
    """The episodes as one kernel of the GPU: the carry they end with, and which terminated; None without one."""
    how, steps = kernels.mode(), env.max_episode_steps
    plain = agents_of(env) or getattr(env, "action_mask", None) is not None or steps > MOST_STEPS
    if how == "off" or actor.dense is None or plain:
        return None
    algo, policy = actor.dense(params)
    if policy is None:
        return None
    from regimen.kernels.rollout import Rollout
    from regimen.kernels.scalars import UnfitError

    episodes = carry.length.shape[0]
    many = jnp.minimum(jnp.arange(-(-episodes // 16) * 16), episodes - 1)  # the last one several times
    leaves, tree = jax.tree.flatten(env)
    common = {"env": [jnp.asarray(x) for x in leaves], "policy": policy.common}
    flags = jnp.zeros(many.shape, bool)
    whole = {"envs": jax.tree.map(lambda x: x[many], carry), "over": flags, "terminated": flags}
    turns = jnp.zeros((steps, *many.shape), jnp.int32)

    def after(common: PyTree, now: PyTree, head: Array, turn: Array) -> tuple[PyTree, PyTree]:
        env = jax.tree.unflatten(tree, common["env"])
        action, _ = policy.choose(common["policy"], head, None)
        new = step_all(env, now["envs"], algo.to_env(action), now["envs"].memory, jax.random.key(0)[None])
        envs = jax.tree.map(lambda a, b: select(now["over"], b, a), new.going, now["envs"])
        terminated = now["terminated"] | (new.ended & ~now["over"])
        return (), {"envs": envs, "over": now["over"] | new.over, "terminated": terminated}

    try:
        rollout = Rollout.of(policy, after, common, whole, turns, lambda now: now["envs"].obs)
    except UnfitError:
        return None
    end, _ = rollout.run(common, whole, turns, interpret=how == "interpret")
    return jax.tree.map(lambda x: x[:episodes], end["envs"]), end["terminated"][:episodes]


def play_resets(
    env: Env, actor: Actor, params: PyTree, key: Array, episodes: int, record: Record = lambda state: {}
) -> Playthrough:
    """Play `episodes` episodes from as many resets, all drawn from one key."""
    start_key, key = jax.random.split(key)

    def keys(t: Array) -> tuple[Array, Array]:
        act_key, step_key = jax.random.split(jax.random.fold_in(key, t))
        return act_key, jax.random.split(step_key, episodes)

    return play(env, actor, params, jax.vmap(env.reset)(jax.random.split(start_key, episodes)), keys, record)


class HostMoment(NamedTuple):
    """The start of all episodes, or what one step of the environments did."""

    running: dict[int, int]  # environment -> number of the episode it plays
    actions: list[HostAction]  # [B] members of the action space; none at the start
    row: HostRows  # [1, B, ...] rewards and flags of the step
    ended: list[Ending]


def play_host(
    source: HostSource,
    act: Callable[[HostSource], list[HostAction]],
    seed: int,
    episodes: int,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Iterator[HostMoment]:
    """Play episodes in the environments of a source and yield every moment; episode j starts from `seed + j`, however
    many are played at a time. `act` returns the actions of all columns, given what the source has observed."""
    queue = list(range(episodes))
    running = {i: queue.pop(0) for i in range(min(source.num_envs, episodes))}
    source.reset({i: seed + j for i, j in running.items()})
    row = one_row(source)
    yield HostMoment(running, [], row, [])
    while running:
        if stop_requested():
            raise Interrupted
        for name in ("terminated", "truncated", "valid"):
            row[name][:] = False
        actions = act(source)
        ended = source.step(row, 0, actions, list(running))
        yield HostMoment(running, actions, row, ended)
        starts = {}
        for i, _, _ in ended:
            del running[i]
            if queue:
                running[i] = queue.pop(0)
                starts[i] = seed + running[i]
        source.reset(starts)
        running = dict(sorted(running.items()))


def one_row(source: HostSource) -> HostRows:
    """The arrays [1, B, ...] that `HostSource.step` writes into."""
    n = source.columns
    row: HostRows = {name: np.zeros((1, n), bool) for name in ("terminated", "truncated", "valid")}
    row["reward"] = np.zeros((1, n, len(source.components)), np.float32)
    row["next_obs"] = spaces.zeros(source.observation_space, (1, n))
    return row
