"""Probe environments: tiny tasks whose right answer is known, so that a learner's fault shows and where it lies.

In the order in which to try them: the value of a constant, of an observation, across time; then what an action earns,
alone and given an observation; then the end of an episode, masks, and every kind of space.
"""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import Array, PyTree, TimeStep


def box(size: int, low: float = -1.0) -> spaces.Box:
    return spaces.Box(low, 1.0, (size,), np.float32)


def signs(key: Array, number: int) -> Array:
    return jax.random.rademacher(key, (number,), jnp.float32)


def over(obs: PyTree, reward: Array | float, **metrics: Array) -> TimeStep:
    return TimeStep(obs, jnp.asarray(reward, jnp.float32), terminated=jnp.bool_(True), metrics=metrics)


@native_env
class Probe(NativeEnv):
    """One step that pays `reward(state, action)`, two actions and an observation of one number in [-1, 1], which is 0
    and the whole state, unless a probe says otherwise."""

    max_episode_steps: int = 1

    observation_space = property(lambda self: box(1))
    action_space = property(lambda self: spaces.Discrete(2))

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        obs = self.first(key)
        return obs, obs

    def first(self, key: Array) -> PyTree:
        """The first observation, where it is the state as well."""
        return jnp.zeros(self.observation_space.shape)

    def step(self, key: Array, state: PyTree, action: PyTree) -> tuple[PyTree, TimeStep]:
        return state, over(state, self.reward(state, action))

    def reward(self, state: PyTree, action: PyTree) -> Array | float:
        raise NotImplementedError


class SignProbe(Probe):
    """A probe whose observation is -1 or 1."""

    def first(self, key: Array) -> Array:
        return signs(key, 1)


@native_env
class Constant(Probe):
    """Reward 1. The value is 1; nothing else can be right."""

    def reward(self, state: Array, action: Array):
        return 1.0


@native_env
class Observation(SignProbe):
    """The reward is the observation, -1 or 1, and so is the value."""

    def reward(self, state: Array, action: Array):
        return state[0]


@native_env
class TwoStep(Probe):
    """Reward 0, then 1. The value is gamma at observation 0 and 1 at observation 1."""

    max_episode_steps: int = 2

    def step(self, key: Array, state: Array, action: Array):
        last = state[0] == 1.0
        obs = jnp.ones(1)
        return obs, TimeStep(obs=obs, reward=jnp.where(last, 1.0, 0.0), terminated=last)


@native_env
class Credit(Probe):
    """The second step pays 1 if the first action was 1. The observation is (step, first action)."""

    max_episode_steps: int = 2

    observation_space = property(lambda self: box(2, low=0.0))

    def step(self, key: Array, state: Array, action: Array):
        last = state[0] == 1.0
        obs = jnp.where(last, state, jnp.stack([1.0, action.astype(jnp.float32)]))
        return obs, TimeStep(obs=obs, reward=jnp.where(last, state[1], 0.0), terminated=last)


@native_env
class Action(Probe):
    """Action 1 pays 1, action 0 costs 1."""

    def reward(self, state: Array, action: Array):
        return jnp.where(action == 1, 1.0, -1.0)


@native_env
class ActionBox(Probe):
    """Costs the squared distance to `target`."""

    target: float = 0.5
    """The best action."""

    action_space = property(lambda self: box(1))

    def reward(self, state: Array, action: Array):
        return -((action[0] - self.target) ** 2)


@native_env
class Match(SignProbe):
    """Pays 1 for action 1 where the observation is 1 and for action 0 where it is -1; costs 1 otherwise."""

    def reward(self, state: Array, action: Array):
        return jnp.where((action == 1) == (state[0] > 0), 1.0, -1.0)


@native_env
class MatchBox(SignProbe):
    """Costs the squared distance to half the observation."""

    action_space = property(lambda self: box(1))

    def reward(self, state: Array, action: Array):
        return -((action[0] - state[0] / 2) ** 2)


@native_env
class Recall(Probe):
    """The first observation is 1 or -1, later ones are 0; the last of four actions pays 1 where it is what Match asks
    for after the first observation, and costs 1 otherwise. Only a policy that remembers earns more than 0."""

    max_episode_steps: int = 4

    def reset(self, key: Array):
        cue = signs(key, 1)
        return {"cue": cue, "t": jnp.int32(0)}, cue

    def step(self, key: Array, state: dict[str, Array], action: Array):
        last = state["t"] == 3
        paid = jnp.where((action == 1) == (state["cue"][0] > 0), 1.0, -1.0)
        obs, reward = jnp.zeros(1), jnp.where(last, paid, 0.0)
        return {"cue": state["cue"], "t": state["t"] + 1}, TimeStep(obs=obs, reward=reward, terminated=last)


@native_env
class Truncation(Probe):
    """Reward 1 for ever, cut short by the time limit: the value is 1 / (1 - gamma), more than any episode returns."""

    max_episode_steps: int = 8

    def step(self, key: Array, state: Array, action: Array):
        return state, TimeStep(obs=state, reward=jnp.float32(1.0), terminated=jnp.bool_(False))


@native_env
class Termination(Probe):
    """Reward 1 for n steps. The observation is the time t / n, the value (1 - gamma^(n - t)) / (1 - gamma)."""

    max_episode_steps: int = 8

    def step(self, key: Array, state: Array, action: Array):
        obs = state + 1 / self.max_episode_steps
        last = obs[0] > 1 - 0.5 / self.max_episode_steps
        return obs, TimeStep(obs=jnp.minimum(obs, 1.0), reward=jnp.float32(1.0), terminated=last)


@native_env
class Masked(Probe):
    """One action of three, shown by the observation, would pay 10 but is not allowed; the one after it pays 1."""

    observation_space = property(lambda self: box(3, low=0.0))
    action_space = property(lambda self: spaces.Discrete(3))

    def action_mask(self, state: Array) -> Array:
        return state == 0

    def first(self, key: Array) -> Array:
        return jax.nn.one_hot(jax.random.randint(key, (), 0, 3), 3)  # barred

    def reward(self, state: Array, action: Array):
        return 10 * state[action] + jnp.roll(state, 1)[action]


@native_env
class TeamProbe(Probe):
    """Three agents, each of which sees a sign, drawn anew every step, and its own remaining time; repeating the sign
    pays 1. The first is through after one step, the second after two, the third after three; `absent` (a probability)
    leaves the first out altogether. The value is a geometric sum."""

    absent: float = 0.0
    max_episode_steps: int = 3
    agents = ("one", "two", "three")
    metric_reductions = {"acting": "sum"}  # noqa: RUF012

    observation_space = property(lambda self: box(2))

    def alive(self, state: dict[str, Array]) -> Array:
        return state["left"] > 0

    def observe(self, state: dict[str, Array]) -> Array:
        rows = jnp.stack([state["sign"], state["left"] / 3], axis=-1)  # [A, 2]
        return jnp.where(self.alive(state)[:, None], rows, 0.0)

    def reset(self, key: Array):
        one, other = jax.random.split(key)
        left = jnp.array([1, 2, 3]).at[0].multiply(jax.random.uniform(other) >= self.absent)
        state = {"sign": signs(one, 3), "left": left.astype(jnp.int32)}
        return state, self.observe(state)

    def step(self, key: Array, state: dict[str, Array], action: Array):
        acting = self.alive(state)
        reward = jnp.where(acting & ((action == 1) == (state["sign"] > 0)), 1.0, 0.0)
        new = {"sign": signs(key, 3), "left": jnp.maximum(state["left"] - 1, 0)}
        metrics = {"acting": acting.sum(dtype=jnp.float32)}
        return new, TimeStep(obs=self.observe(new), reward=reward, terminated=new["left"] == 0, metrics=metrics)


@native_env
class MultiDiscrete(Probe):
    """Two choices, of 2 and of 3; each pays 1/2 for its last option."""

    action_space = property(lambda self: spaces.MultiDiscrete([2, 3]))

    def reward(self, state: Array, action: Array):
        return jnp.mean(action == jnp.array([1, 2]))


@native_env
class Hybrid(Probe):
    """One of three choices, each with an amount of its own. The observation is the right choice, one-hot, and the right
    amount; the right choice pays 1 less the error of its amount, any other costs 1."""

    action_conditions = {f"amount_{i}": ("choice", (i,)) for i in range(3)}  # noqa: RUF012

    observation_space = property(lambda self: box(4))

    @property
    def action_space(self):
        return spaces.Dict({"choice": spaces.Discrete(3), **{f"amount_{i}": box(1) for i in range(3)}})

    def first(self, key: Array) -> Array:
        choice, amount = jax.random.split(key)
        right = jax.nn.one_hot(jax.random.randint(choice, (), 0, 3), 3)
        return jnp.append(right, jax.random.uniform(amount, minval=-0.8, maxval=0.8))

    def reward(self, state: Array, action: dict[str, Array]):
        amount = jnp.stack([action[f"amount_{i}"][0] for i in range(3)])[action["choice"]]
        return jnp.where(state[action["choice"]] == 1, 1 - jnp.abs(amount - state[3]), -1.0)


@native_env
class DictObservation(Probe):
    """Pays 1 for the right action: the first flag where `kind` is 0, the sign of the first position elsewhere."""

    @property
    def observation_space(self):
        return spaces.Dict({"flags": spaces.MultiBinary(2), "kind": spaces.Discrete(3), "position": box(2)})

    def first(self, key: Array) -> dict[str, Array]:
        flags, kind, position = jax.random.split(key, 3)
        return {
            "flags": jax.random.bernoulli(flags, 0.5, (2,)).astype(jnp.int32),
            "kind": jax.random.randint(kind, (), 0, 3),
            "position": jax.random.uniform(position, (2,), minval=-1.0),
        }

    def reward(self, state: dict[str, Array], action: Array):
        right = jnp.where(state["kind"] == 0, state["flags"][0], state["position"][0] > 0)
        return jnp.where(action == right, 1.0, 0.0)


@native_env
class SetProbe(Probe):
    """Up to `capacity` entities with a distance and a sign, in no order; absent rows hold what means nothing. Pays 1
    for the sign of the nearest one (action 1: positive), and for action 0 where there is none; costs 1 otherwise."""

    capacity: int = 6
    """The most entities."""

    @property
    def observation_space(self):
        rows = spaces.Box(-1.0, 1.0, (self.capacity, 2), np.float32)
        return spaces.Dict({"entities": rows, "entities_mask": spaces.MultiBinary(self.capacity)})

    def first(self, key: Array) -> dict[str, Array]:
        keys = jax.random.split(key, 4)
        distance = jax.random.uniform(keys[0], (self.capacity,))
        number = jax.random.randint(keys[1], (), 0, self.capacity + 1)
        there = jax.random.permutation(keys[2], self.capacity) < number
        rows = jnp.stack([distance, signs(keys[3], self.capacity)], axis=-1)
        return {"entities": rows, "entities_mask": there.astype(jnp.int32)}

    def reward(self, state: dict[str, Array], action: Array):
        there, distance, sign = state["entities_mask"] > 0, *state["entities"].T
        nearest = sign[jnp.argmin(jnp.where(there, distance, jnp.inf))]
        return jnp.where((action == 1) == (there.any() & (nearest > 0)), 1.0, -1.0)


@native_env
class ImageProbe(Probe):
    """Bytes of `side` x `side` pixels, noise and a bright bar of three pixels anywhere: action 1 pays 1 where it stands
    and action 0 where it lies; the other costs 1."""

    side: int = 10
    """Pixels."""

    observation_space = property(lambda self: spaces.Box(0, 255, (self.side, self.side, 1), np.uint8))

    def reset(self, key: Array):
        keys = jax.random.split(key, 4)
        upright = jax.random.bernoulli(keys[0])
        row, column = jax.random.randint(keys[1], (2,), 0, jnp.array([self.side, self.side - 2]))
        rows, columns = jnp.arange(self.side)[:, None], jnp.arange(self.side)
        bar = (rows == row) & (columns >= column) & (columns < column + 3)
        noise = jax.random.randint(keys[2], bar.shape, 0, 64)
        pixels = jnp.where(jnp.where(upright, bar.T, bar), 255, noise)
        obs = pixels[..., None].astype(jnp.uint8)
        return {"image": obs, "upright": upright}, obs

    def step(self, key: Array, state: dict[str, Array], action: Array):
        return state, over(state["image"], jnp.where((action == 1) == state["upright"], 1.0, -1.0))


@native_env
class ComponentsProbe(Probe):
    """Four steps; action 1 pays 1 in `progress` and costs 1/4 in `effort`. Success is having always chosen it."""

    max_episode_steps: int = 4

    reward_components = ("progress", "effort")
    metric_reductions = {"chosen": "sum", "success": "last"}  # noqa: RUF012

    def reset(self, key: Array):
        state = jnp.zeros(2)  # steps taken, actions 1 among them
        return state, state[:1]

    def step(self, key: Array, state: Array, action: Array):
        choice = action.astype(jnp.float32)
        state = state + jnp.stack([1.0, choice])
        step = TimeStep(
            obs=state[:1] / self.max_episode_steps,
            reward=jnp.stack([choice, -choice / 4]),
            terminated=state[0] >= self.max_episode_steps,
            metrics={"chosen": choice, "success": (state[0] == state[1]).astype(jnp.float32)},
        )
        return state, step


@native_env
class Misleading(Probe):
    """One step, three actions. Action 1 pays 1 in `task`, action 2 pays `lure` in `bait`, action 0 nothing. The sum of
    the two favours the bait; success is having done the task."""

    lure: float = 3.0
    """What the bait pays."""

    reward_components = ("task", "bait")
    metric_reductions = {"success": "last"}  # noqa: RUF012

    action_space = property(lambda self: spaces.Discrete(3))

    def step(self, key: Array, state: Array, action: Array):
        task = (action == 1).astype(jnp.float32)
        bait = jnp.where(action == 2, self.lure, 0.0)
        return state, over(state, jnp.stack([task, bait]), success=task)
