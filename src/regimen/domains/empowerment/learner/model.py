"""What the learner knows of a world: what networks read of a row, and where a row's actions lead.

A row is a state at a time. Where a world can be enumerated (`Enumerated`), everything is computed once, on the host:
the distinct successors of every robot action, with their probabilities under the humans' marginals (for Q_r) and under
each goal of each human (for V_h^e). Else successors are made inside the program (`Imagined`), with all human actions
where they are few, and a sample of them where not.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.domains.empowerment import equations
from regimen.domains.empowerment.equations import X, module_of
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.worlds.world import World
from regimen.types import Array, Record, pytree_dataclass


@pytree_dataclass
class Moments(Record):
    """Rows to learn from: states at times. `place` is a row's number among the reachable ones, where they are known."""

    state: Array  # [..., n]
    time: Array  # [...] int32
    place: Array  # [...] int32

    @property
    def lead(self) -> tuple[int, ...]:
        return self.time.shape


@pytree_dataclass
class Moves(Record):
    """Where each robot action leads: J successors, and how likely they are. Probabilities of Q_r sum to 1 over J, and
    those of V_h^e for every goal."""

    next: Moments  # [N, AR, J]
    over: Array  # [N, AR, J] the world has ended there
    attained: Array  # [N, AR, J, H, G]
    p_q: Array  # [N, AR, J] under the humans' marginals
    p_v: Array  # [N, AR, J, H, G] with the own goal known


class WorldModel:
    """A world as the learner sees it: features, priors, ends; this much holds for any."""

    exact = False  # whether expectations are
    places = 0  # reachable rows, where they are known
    why = ""  # they are not known

    def __init__(self, world: World, c: EmpowermentConfig):
        self.world, self.timed, self.habit = world, c.include_step_count, c.nu_h
        self.horizon: int = world.max_episode_steps
        self.one_hot = c.time_features == "one_hot"
        self.weights = np.asarray(world.goal_weights, np.float32)  # [H, G]
        probe = jax.eval_shape(world.features, jax.eval_shape(world.initial))
        times = 0 if not self.timed else self.horizon if self.one_hot else 1
        self.inputs = probe.shape[-1] + times
        self.space = spaces.Box(-np.inf, np.inf, (self.inputs,), np.float32)
        if world.feature_space is not None:
            time = {"time": spaces.Box(0, 1, (times,), np.float32)} if times else {}
            self.space = spaces.Dict({**world.feature_space.spaces, **time})  # the time is last, also in the alphabet

    def rows(self, obs: Mapping[str, Array]) -> Moments:
        """Moments of observations [...]."""
        return Moments(obs["state"], obs["time"], jnp.zeros(obs["time"].shape, jnp.int32))

    def at(self, place: Array) -> Moments:
        """The rows with these places, where they are known; their states are left out."""
        raise NotImplementedError

    def features(self, rows: Moments) -> Array:
        """What networks read [..., F]: the world's features, and the time."""
        return self.with_time(self.each(self.world.features, rows).astype(jnp.float32), rows.time)

    def each(self, function: Callable[[Array], Array], rows: Moments) -> Array:
        """A vector [..., n] for the state of each row."""
        flat = rows.state.reshape(-1, *rows.state.shape[len(rows.lead) :])
        return jax.vmap(function)(flat).reshape(*rows.lead, -1)

    def with_time(self, x: Array, time: Array) -> Array:
        if not self.timed:
            return x
        now = time[..., None] == jnp.arange(self.horizon) if self.one_hot else time[..., None] / self.horizon
        return jnp.concatenate([x, now.astype(jnp.float32)], -1)

    def prior(self, rows: Moments) -> Array:
        """How humans are believed to act [N, H, G, A]."""
        return equations.with_habit(jax.vmap(self.world.prior)(rows.state), self.habit)

    def marginals(self, prior: Array) -> Array:
        """How humans act when their goals are not known [N, H, A]."""
        out = jnp.einsum("hg,...hga->...ha", self.weights, prior)
        return out / out.sum(-1, keepdims=True)

    def last(self, rows: Moments) -> Array:
        """Whether the world's time is over after one more step [...]."""
        return rows.time + 1 >= self.horizon if self.timed else jnp.zeros(rows.lead, bool)

    def certain_end(self, rows: Moments) -> Array:
        """Whether a robot action ends the world for sure [..., AR], as far as that is known."""
        return jnp.broadcast_to(self.last(rows)[..., None], (*rows.lead, self.world.robot_choices))

    def allowed(self, rows: Moments) -> Array | None:
        """Robot actions there are [..., AR]; None: all of them."""
        return None if self.world.allowed is None else self.each(self.world.allowed, rows)

    def moves(self, rows: Moments, key: Array) -> Moves:
        raise NotImplementedError


def product(factors: Sequence[X]) -> X:
    return reduce(lambda a, b: a * b, factors)


def joint_weights(prior: X, marginals: X, actions: np.ndarray) -> tuple[X, X]:
    """How likely joint human actions [M, H] are: under the marginals [..., H, A], and for each human and goal, with the
    prior [..., H, G, A] for its own action and the others' marginals: [..., M] and [..., M, H, G]. Numpy or jax."""
    humans = actions.shape[1]
    alone = [marginals[..., h, :][..., actions[:, h]] for h in range(humans)]  # of [..., M]
    by_goal = []
    for h in range(humans):
        p = prior[..., h, :, :][..., actions[:, h]]  # [..., G, M]
        if humans > 1:
            p = p * product(alone[:h] + alone[h + 1 :])[..., None, :]
        by_goal.append(p.swapaxes(-1, -2))
    return product(alone), module_of(prior).stack(by_goal, -2)


class Imagined(WorldModel):
    """A world whose successors are made inside the program from its `outcomes`."""

    def __init__(self, world: World, c: EmpowermentConfig):
        super().__init__(world, c)
        self.robot = world.joint_actions(world.robots)
        outcomes = jax.eval_shape(world.outcomes, jax.eval_shape(world.initial), jnp.zeros(world.num_agents, jnp.int32))
        self.exact = world.num_actions**world.humans * outcomes[0].shape[0] <= c.exact_limit
        self.samples, self.whole = c.human_samples, not self.exact and c.draws == "transitions"
        drawn = self.samples * (1 + world.humans * world.num_actions)
        humans = world.num_actions**world.humans if self.exact else drawn
        each = self.samples if self.whole else humans * outcomes[0].shape[0]
        self.branches = len(self.robot) * each  # successors of one row
        self.humans = world.joint_actions(world.humans) if self.exact else None

    def moves(self, rows: Moments, key: Array) -> Moves:
        prior = self.prior(rows)
        keys = jax.random.split(key, rows.time.shape[0])
        return jax.vmap(self.moves_of)(rows, prior, self.marginals(prior), keys)

    def moves_of(self, row: Moments, prior: Array, marginals: Array, key: Array) -> Moves:
        """The moves of one row, with successors of all human actions side by side [AR, M * K]."""
        if self.whole:
            return self.drawn(row, prior, marginals, key)
        if self.humans is not None:
            actions, (p_q, p_v) = jnp.asarray(self.humans), joint_weights(prior, marginals, self.humans)
        else:
            actions, p_q, p_v = self.sampled(prior, marginals, key)
        robot = jnp.asarray(self.robot)

        def lead(a_r: Array, a_h: Array) -> tuple[Array, Array]:
            return self.world.outcomes(row.state, jnp.concatenate([a_r, a_h]))

        p, states = jax.vmap(jax.vmap(lead, (None, 0)), (0, None))(robot, actions)  # [AR, M, K], [AR, M, K, n]
        p_q = (p * p_q[:, None]).reshape(len(self.robot), -1)
        p_v = (p[..., None, None] * p_v[:, None]).reshape(*p_q.shape, *p_v.shape[1:])
        return self.after(row, states.reshape(len(self.robot), -1, *row.state.shape), p_q, p_v)

    def after(self, row: Moments, states: Array, p_q: Array, p_v: Array) -> Moves:
        """The moves to these states [AR, J, n] with their probabilities."""

        def each(f: Callable[[Array], Array]) -> Array:
            return jax.vmap(jax.vmap(f))(states)

        time = jnp.broadcast_to(row.time + 1, p_q.shape)
        over = each(self.world.ended) | self.last(row)
        return Moves(Moments(states, time, jnp.zeros_like(time)), over, each(self.world.attained), p_q, p_v)

    def drawn(self, row: Moments, prior: Array, marginals: Array, key: Array) -> Moves:
        """Whole transitions [AR, D] drawn after each robot action, humans by their marginals: what they are worth for a
        goal counts by how much likelier that goal made the human's own action."""
        keys = jax.random.split(key)
        shape = (len(self.robot), self.samples, self.world.humans)
        human = jax.random.categorical(keys[0], jnp.log(marginals), shape=shape)
        robot = jnp.broadcast_to(jnp.asarray(self.robot)[:, None], (*shape[:2], self.world.robots))
        actions = jnp.concatenate([robot, human], -1).reshape(-1, self.world.num_agents)

        def successor(key: Array, actions: Array) -> Array:
            return self.world.sample(key, row.state, actions)

        states = jax.vmap(successor)(jax.random.split(keys[1], len(actions)), actions)
        who = jnp.arange(self.world.humans)
        likelier = prior[who, :, human] / marginals[who, human][..., None]  # [AR, D, H, G]
        share = 1 / self.samples
        return self.after(row, states.reshape(*shape[:2], -1), jnp.full(shape[:2], share), share * likelier)

    def sampled(self, prior: Array, marginals: Array, key: Array) -> tuple[Array, Array, Array]:
        """Joint human actions [M, H] and their weights, whose expectation is right: some drawn from the marginals, and
        for each human all its own actions, beside the others' of each draw."""
        humans, actions, draws = self.world.humans, self.world.num_actions, self.samples
        some = jax.random.categorical(key, jnp.log(marginals), shape=(draws, humans))  # [D, H]
        same = jnp.eye(humans, dtype=bool)[None, :, None]
        others = jnp.broadcast_to(some[:, None, None], (draws, humans, actions, humans))
        each = jnp.where(same, jnp.arange(actions)[None, None, :, None], others)  # [D, H, A, H]
        joint = jnp.concatenate([some, each.reshape(-1, humans)])
        p_q = jnp.concatenate([jnp.full(draws, 1 / draws), jnp.zeros(draws * humans * actions)])
        by_goal = jnp.broadcast_to(
            jnp.einsum("hk,hga->hakg", jnp.eye(humans), prior)[None] / draws, (draws, humans, actions, *prior.shape[:2])
        )
        p_v = jnp.concatenate([jnp.zeros((draws, *prior.shape[:2])), by_goal.reshape(-1, *prior.shape[:2])])
        return joint.astype(jnp.int32), p_q, p_v
