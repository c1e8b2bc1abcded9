"""What a world of humans and robots is: a model with known laws, which solvers enumerate, and an environment, which the
loop steps.

A subclass is a `@native_env` and says what is in it: `robots`, `humans`, `actions`, `max_episode_steps`, `initial()`,
`attained(state)`, and its laws as `outcomes(state, actions)`, or only as a `sample(key, state, actions)`. Agents come
robots first. A state is an int32 vector with `sizes` (the number of values of each entry), without the time: the laws
must not depend on it, and an episode ends for good after `max_episode_steps` steps. A world that is only ever learned,
not solved, may have any array as its state: it has no `sizes`, and says what its states are by its own `state_space`.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.protocol import NativeEnv
from regimen.types import Array, Record, TimeStep, pytree_dataclass


@pytree_dataclass
class WorldState(Record):
    """Where a world is, and what its humans are after."""

    world: Array  # [n]
    time: Array  # int32, steps done
    goal: Array  # [H] int32


class World(NativeEnv):
    """Defaults of every world. `H` humans, `R` robots, `N = R + H` agents, `A` actions each, `G` goals, `K` outcomes.

    As an environment it is the robots': an action is the index of their joint action (little-endian, the first robot
    fastest), humans follow their prior, and the reward counts the humans' goals as they are attained. Empowerment does
    not use that reward; it says how well people get on. An action may also be a dict with `robot`, `human` (the humans'
    actions [H]) and `resample` (whether all goals are drawn anew after this step): what a learner that explores uses.
    """

    reward_components: ClassVar[tuple[str, ...]] = ("goals",)
    metric_reductions: ClassVar[dict[str, str]] = {"goals_attained": "sum"}
    render_fps: ClassVar[int] = 2  # steps are decisions, and worth a look each
    legend: ClassVar[str] = "Blue: robots. Amber: humans, with a line to the goal of each. The bar: time left."
    allowed: Callable[[Array], Array] | None = None  # [A^R] bool, where robots may not do everything
    max_episode_steps: int
    observation: str = "state"  # or "features": what a learner sees that maximises reward

    robots: int  # R
    humans: int  # H
    actions: Sequence[str]  # names of one agent's A actions
    still: int = 0  # the action that does nothing, or nearly so: what a human who is where it wants to be does

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values of each entry of a state: 0 <= state[i] < sizes[i]."""
        raise NotImplementedError

    @property
    def goal_weights(self) -> np.ndarray:
        """Weight of each goal of each human [H, G]; rows sum to 1, and 0 is for goals a human does not have."""
        raise NotImplementedError

    def initial(self) -> Array:
        """The state [n] that episodes start in."""
        raise NotImplementedError

    def outcomes(self, state: Array, actions: Array) -> tuple[Array, Array]:
        """Where joint actions [N] lead: probabilities [K], which sum to 1, and states [K, n]. The same state may be in
        it more than once, and what has probability 0 is any state of the world."""
        raise NotImplementedError

    def attained(self, state: Array) -> Array:
        """Which goals are attained in a state [H, G] bool."""
        raise NotImplementedError

    def prior(self, state: Array) -> Array:
        """How humans are believed to act for each of their goals [H, G, A]."""
        raise NotImplementedError

    def features(self, state: Array) -> Array:
        """A state as networks see it [F]."""
        raise NotImplementedError

    @property
    def goals_are_places(self) -> bool:
        """Whether goal g of everybody is the place g of a picture."""
        return False

    @property
    def feature_space(self) -> spaces.Dict | None:
        """What `features` are made of, as `spaces.flatten` joins it, for networks that read more than a vector."""
        return None

    def ended(self, state: Array) -> Array:
        """Whether the world ends in this state, before its time."""
        return jnp.zeros((), bool)

    def sample(self, key: Array, state: Array, actions: Array) -> Array:
        """One successor, drawn from `outcomes`."""
        p, states = self.outcomes(state, actions)
        return states[jax.random.categorical(key, jnp.log(p))]

    @property
    def modelled(self) -> bool:
        """Whether the laws are known as `outcomes`, not only as a sampler."""
        return type(self).outcomes is not World.outcomes

    @property
    def enumerable(self) -> bool:
        """Whether its states can be listed: `outcomes` lead from one to the next, and `sizes` number them."""
        return self.modelled and type(self).sizes is not World.sizes

    @property
    def num_agents(self) -> int:
        return self.robots + self.humans

    @property
    def num_actions(self) -> int:
        return len(self.actions)

    @property
    def num_goals(self) -> int:
        return self.goal_weights.shape[1]

    @property
    def goal_names(self) -> list[str]:
        """Goals as tables show them."""
        return [str(g) for g in range(self.num_goals)]

    @property
    def robot_choices(self) -> int:
        """Joint actions of the robots."""
        return self.num_actions**self.robots

    @property
    def state_space(self) -> spaces.Space:
        return spaces.MultiDiscrete(list(self.sizes), dtype=np.int32)

    @property
    def observation_space(self) -> spaces.Space:
        if self.observation == "features":
            return self.shown_space
        goal = spaces.MultiDiscrete([self.num_goals] * self.humans, dtype=np.int32)
        time = spaces.Discrete(self.max_episode_steps + 1, dtype=np.int32)
        return spaces.Dict({"state": self.state_space, "time": time, "goal": goal})

    @property
    def action_space(self) -> spaces.Space:
        return spaces.Discrete(self.robot_choices)

    def joint_actions(self, agents: int) -> np.ndarray:
        """All joint actions of so many agents [A^agents, agents], the first agent fastest."""
        number = np.arange(self.num_actions**agents, dtype=np.int32)[:, None]
        return number // self.num_actions ** np.arange(agents, dtype=np.int32) % self.num_actions

    def robot_actions(self, joint: Array) -> Array:
        """Split a joint action of the robots into the action of each robot [R]."""
        return joint // self.num_actions ** jnp.arange(self.robots) % self.num_actions

    @property
    def shown_space(self) -> spaces.Dict:
        """The space of `shown`."""
        time = {"time": spaces.Box(0, 1, (1,), np.float32)}
        if self.feature_space is not None:
            return spaces.Dict({**self.feature_space.spaces, **time})
        size = jax.eval_shape(self.features, jax.eval_shape(self.initial)).shape[-1]
        return spaces.Dict({"features": spaces.Box(-np.inf, np.inf, (size,), np.float32), **time})

    def shown(self, state: Array, time: Array) -> dict[str, Array]:
        """What a robot may know, as numbers: the features of a state and the time, but nobody's goal."""
        x, out, start = self.features(state).astype(jnp.float32), {}, 0
        for name, part in self.shown_space.spaces.items():
            if name != "time":
                size = int(np.prod(part.shape or ()))
                out[name], start = x[start : start + size].reshape(part.shape or ()), start + size
        return out | {"time": jnp.asarray(time, jnp.float32)[None] / self.max_episode_steps}

    def observe(self, state: WorldState) -> dict[str, Array]:
        if self.observation == "features":
            return self.shown(state.world, state.time)
        return {"state": state.world, "time": state.time, "goal": state.goal}

    def draw_goals(self, key: Array) -> Array:
        """A goal for each human [H], by weight."""
        return jax.random.categorical(key, jnp.log(jnp.asarray(self.goal_weights))).astype(jnp.int32)

    def draw_humans(self, key: Array, state: Array, goal: Array) -> Array:
        """The humans' actions [H], each by its prior for its goal."""
        p = self.prior(state)[jnp.arange(self.humans), goal]
        return jax.random.categorical(key, jnp.log(p)).astype(jnp.int32)

    def reset(self, key: Array) -> tuple[WorldState, dict[str, Array]]:
        state = WorldState(self.initial(), jnp.int32(0), self.draw_goals(key))
        return state, self.observe(state)

    def step(self, key: Array, state: WorldState, action: Array | dict[str, Array]) -> tuple[WorldState, TimeStep]:
        """Goals that are attained are drawn anew, all of them where `resample` says so."""
        keys = jax.random.split(key, 3)
        acts = action if isinstance(action, dict) else {"robot": action}
        human = acts.get("human")
        human = self.draw_humans(keys[0], state.world, state.goal) if human is None else human
        world = self.sample(keys[1], state.world, jnp.concatenate([self.robot_actions(acts["robot"]), human]))
        attained = self.attained(world)[jnp.arange(self.humans), state.goal]
        anew = attained | acts.get("resample", False)
        time = state.time + 1
        new = WorldState(world, time, jnp.where(anew, self.draw_goals(keys[2]), state.goal))
        count = attained.sum().astype(jnp.float32)
        ended = self.ended(world) | (time >= self.max_episode_steps)
        return new, TimeStep(self.observe(new), count, ended, metrics={"goals_attained": count})

    @property
    def action_mask(self) -> Callable[[WorldState], Array] | None:
        allowed = self.allowed
        return None if allowed is None else lambda state: allowed(state.world)
