"""Durotaxis. Each step every node of the colony spawns a child or is deleted; the goal is a node at the stiff edge.

The task, the formulas and how they differ from an earlier system are in docs/durotaxis.md.
"""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.domains.durotaxis import features, policies
from regimen.domains.durotaxis import graph as graphs
from regimen.domains.durotaxis import substrate as substrates
from regimen.domains.durotaxis.features import Colony
from regimen.domains.durotaxis.graph import Graph
from regimen.domains.durotaxis.substrate import Substrate
from regimen.envs.metric import Metric
from regimen.envs.protocol import NativeEnv, native_env
from regimen.errors import ConfigError
from regimen.types import Array, PyTree, Record, TimeStep, pytree_dataclass

GOING, SUCCESS, EXTINCT, TOO_MANY, OUT_OF_BOUNDS, DRIFT = range(6)
OUTCOMES = ("going", "success", "extinct", "too_many", "out_of_bounds", "drift")
BORDERS = ("clamp", "fail")
MOVED = 1e-3  # a centroid that moved less stood still


@pytree_dataclass
class ColonyState(Record):
    graph: Graph
    substrate: Substrate
    colony: Colony
    stagnation: Array  # [C] int32, steps in a row below the colony's mean level
    drift: Array  # int32, steps in a row in which the centroid moved left
    outcome: Array  # int32, one of OUTCOMES


@native_env
class Durotaxis(NativeEnv):
    """Every node chooses for itself: spawn at a Hill-law distance, or delete. Coefficients of the reward are fields."""

    capacity: int = 64
    """Slots for nodes, a multiple of 32; children for which there is no slot are not made."""
    max_episode_steps: int = 200
    """Steps before an episode is cut short."""
    substrate: str = "random"
    """Stiffness along x: linear, exponential (both with m and b), or random, drawn for every episode."""
    border: str = "clamp"
    """A child beyond the rim is put on it (clamp) or ends the episode (fail)."""
    width: float = 200.0
    """Length along which stiffness rises; the goal is its end."""
    height: float = 200.0
    """Length of the other side."""
    margin: float = 0.01
    """A child that would leave is put this share of the side away from the edge; the goal edge is excepted."""
    m: float = 0.05
    """Slope of a fixed substrate."""
    b: float = 1.0
    """Intensity of a fixed substrate at x = 0."""
    linear_m_low: float = 0.01
    """Random linear substrates: lowest slope."""
    linear_m_high: float = 0.1
    """Random linear substrates: highest slope."""
    linear_b_low: float = 0.5
    """Random linear substrates: lowest intensity at x = 0."""
    linear_b_high: float = 2.0
    """Random linear substrates: highest intensity at x = 0."""
    exponential_m_low: float = 0.01
    """Random exponential substrates: lowest rate."""
    exponential_m_high: float = 0.05
    """Random exponential substrates: highest rate."""
    exponential_b_low: float = 0.5
    """Random exponential substrates: lowest intensity at x = 0."""
    exponential_b_high: float = 1.5
    """Random exponential substrates: highest intensity at x = 0."""
    init_nodes: float = 4.0
    """Nodes at the start, joined from left to right."""
    init_width: float = 0.1
    """Share of the width in which the nodes start."""
    init_low: float = 0.0
    """Lowest start of a node, as a share of the height."""
    init_high: float = 1.0
    """Highest start of a node, as a share of the height."""
    max_nodes: float = 50.0
    """Population above which every step is penalised."""
    fail_nodes: float = 64.0
    """Population above which the episode fails; never more than the capacity."""
    drift_limit: float = 6.0
    """Steps in a row with the centroid moving left at which the episode fails."""
    penalty_multiplier: float = 1.0
    """Scales the penalties of graph and node."""
    survival_reward: float = 0.01
    """graph: per step with 2 to max_nodes nodes."""
    connectivity_penalty: float = 2.0
    """graph: per step with fewer than 2 nodes."""
    growth_penalty: float = 2.0
    """graph: per step above max_nodes, times N / max_nodes."""
    delta_intensity: float = 0.05
    """The rise of level (log stiffness, 0 to 1 over the width) that counts 1 in spawn and delete."""
    spawn_reward: float = 1.0
    """spawn: times the mean rise from parent to child."""
    delete_reward: float = 2.0
    """delete: times the rise of the mean level by deletions. Keep it at twice spawn_reward, or going back and forth
    pays."""
    edge_reward: float = 0.5
    """edge: score of an edge that leads right; the change of the mean score is paid."""
    edge_penalty: float = 0.05
    """edge: minus the score of an edge that leads left."""
    movement_reward: float = 0.1
    """node: per unit that the centroid moved right."""
    left_penalty: float = 0.2
    """node: times the share of nodes in the first tenth of the width."""
    border_penalty: float = 0.1
    """node: times the share of nodes within a tenth of the height of either side."""
    laggard_penalty: float = 0.2
    """node: times the share of nodes older than delta_time and below the mean level."""
    delta_time: float = 3.0
    """Steps after which a node can be a laggard."""
    shaping: float = 0.0
    """progress: scale of a potential, minus the distance of the frontier from the goal; 0 is off."""
    shaping_gamma: float = 0.99
    """Discount of that potential. It must be the learner's gamma, or the shaping changes which policy is best."""
    success_reward: float = 100.0
    """termination: a node reached the goal."""
    extinct_penalty: float = 30.0
    """termination: no node is left."""
    too_many_penalty: float = 25.0
    """termination: more nodes than fail_nodes."""
    out_of_bounds_penalty: float = 30.0
    """termination: a child left the rectangle (border fail)."""
    drift_penalty: float = 30.0
    """termination: the centroid kept moving left."""

    gamma_low: ClassVar[float] = 0.1
    gamma_high: ClassVar[float] = 10.0
    alpha_low: ClassVar[float] = 0.1
    alpha_high: ClassVar[float] = 5.0
    noise_low: ClassVar[float] = 0.0
    noise_high: ClassVar[float] = 2.0

    reward_components = ("graph", "spawn", "delete", "edge", "node", "progress", "termination")
    metric_reductions: ClassVar = {
        "success": Metric("last", "higher", "rate"),
        "nodes": Metric("mean", label="colony size (nodes)"),
        "max_x": Metric("max", "higher", label="colony frontier (furthest x)"),
        "blocked_spawns": Metric("sum", "lower", "count"),
        **dict.fromkeys(OUTCOMES[EXTINCT:], Metric("last", "lower")),
    }
    action_conditions: ClassVar = {"spawn": ("choice", (0,))}  # row i of spawn matters only where choice[i] is 0
    baselines: ClassVar = {"heuristic": policies.rightwards, "survive": policies.survive}
    curricula: ClassVar = {
        "stages": {
            "max_nodes": "30, 40, 50 up 0.8 window 100",
            "init_nodes": "8, 6, 4",
            "penalty_multiplier": "0.5, 0.75, 1",
        },
        "distance": {"width": "50, 100, 150, 200 up 0.8 down 0.3 window 100"},
    }
    render_fps = 8
    legend = (
        "Discs: cells, amber when just born, then darker with age. Ground: the darker, the stiffer. Green edge: the "
        "goal. The bar: the population, red when it is too large."
    )

    def __post_init__(self):
        if self.capacity < graphs.WORD or self.capacity % graphs.WORD:
            raise ConfigError(f"env.capacity: {self.capacity} is not a multiple of {graphs.WORD}; use 32, 64, 128")
        for name, choices in (("substrate", substrates.KINDS), ("border", BORDERS)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"env.{name}: '{getattr(self, name)}' is not one of {', '.join(choices)}")

    @property
    def observation_space(self) -> spaces.Dict:
        c, bound = self.capacity, features.BOUND
        parts = {
            "nodes": spaces.Box(-bound, bound, (c, features.NODE_FEATURES), np.float32),
            "mask": spaces.Box(0.0, 1.0, (c,), np.float32),
            "edges": spaces.Box(0, 2**16 - 1, (c, c // 16), np.int32),
            "graph": spaces.Box(-bound, bound, (features.GRAPH_FEATURES,), np.float32),
        }
        return spaces.Dict(parts)  # type: ignore[arg-type]

    @property
    def action_space(self) -> spaces.Space:
        low = np.array([self.gamma_low, self.alpha_low, self.noise_low, -math.pi], np.float32)
        high = np.array([self.gamma_high, self.alpha_high, self.noise_high, math.pi], np.float32)
        rows = (self.capacity, 4)
        spawn = spaces.Box(np.broadcast_to(low, rows).copy(), np.broadcast_to(high, rows).copy(), dtype=np.float32)
        return spaces.Dict({"choice": spaces.MultiDiscrete([2] * self.capacity), "spawn": spawn})

    def action_mask(self, state: ColonyState) -> dict[str, Array]:
        """(spawn, delete) of every slot. An empty one can only delete: a forced choice teaches nothing."""
        alive = state.graph.alive
        mask = jnp.stack([alive, ~alive | (state.colony.count > 2)], axis=-1)
        return {"choice": mask.reshape(-1)}

    def reset(self, key: Array):
        key_substrate, key_x, key_y = jax.random.split(key, 3)
        nodes = jnp.clip(jnp.floor(jnp.asarray(self.init_nodes)), 1, self.capacity).astype(jnp.int32)
        # Sums of exponentials over their total are sorted uniforms; a product is cheaper than a sort or a cumsum.
        gaps = jax.random.exponential(key_x, (self.capacity + 1,))
        gaps = jnp.where(jnp.arange(self.capacity + 1) <= nodes, gaps, 0.0)
        earlier = np.tri(self.capacity, self.capacity + 1, dtype=np.float32)
        x = jnp.dot(earlier, self.init_width * self.width * gaps / jnp.sum(gaps), precision="highest")
        y = jax.random.uniform(key_y, (self.capacity,), minval=self.init_low, maxval=self.init_high) * self.height
        graph = graphs.chain(x, y, nodes)
        substrate = self.draw_substrate(key_substrate)
        zero = jnp.zeros((), jnp.int32)
        stagnation = jnp.zeros(self.capacity, jnp.int32)
        state = ColonyState(graph, substrate, self.measure(graph, substrate), stagnation, drift=zero, outcome=zero)
        return state, self.observe(state)

    def draw_substrate(self, key: Array) -> Substrate:
        if self.substrate != "random":
            return substrates.make(jnp.bool_(self.substrate == "exponential"), self.m, self.b, self.width)
        ends = ("m_low", "m_high", "b_low", "b_high")
        linear, exponential = ([getattr(self, f"{kind}_{end}") for end in ends] for kind in ("linear", "exponential"))
        return substrates.draw(key, linear, exponential, self.width)

    def measure(self, graph: Graph, substrate: Substrate) -> Colony:
        number, alive = graph.count, graph.alive
        return Colony(
            count=number,
            center_x=features.mean(graph.x, alive, number),
            center_y=features.mean(graph.y, alive, number),
            frontier=jnp.max(graph.x),
            level=features.mean(substrate.level(graph.x), alive, number),
            edge_score=features.edge_score(graph, self.edge_reward, self.edge_penalty),
        )

    def observe(self, state: ColonyState) -> dict[str, Array]:
        return features.observe(self, state)

    def step(self, key: Array, state: ColonyState, action: PyTree):
        return self.advance(state, *self.decode(key, state, action))

    def decode(self, key: Array, state: ColonyState, action: PyTree) -> tuple[Array, Array, Array, Array]:
        """Who is deleted, who spawns, and where to: (delete [C], spawn [C], dx [C], dy [C])."""
        alive = state.graph.alive
        wish = alive & (action["choice"] == 1)
        gamma, alpha, noise, theta = jnp.moveaxis(action["spawn"], -1, 0)
        reach = self.hill(
            state,
            jnp.clip(gamma, self.gamma_low, self.gamma_high),
            jnp.clip(alpha, self.alpha_low, self.alpha_high),
        )
        reach = reach + jnp.clip(noise, self.noise_low, self.noise_high)
        return wish & (state.colony.count > 2), alive & ~wish, reach * jnp.cos(theta), reach * jnp.sin(theta)

    def hill(self, state: ColonyState, gamma: Array | float, alpha: Array | float) -> Array:
        """gamma / (1 + (alpha / I)^2): short hops where the substrate is soft."""
        return gamma / (1 + (alpha / state.substrate.intensity(state.graph.x)) ** 2)

    def advance(
        self, state: ColonyState, delete: Array, spawn: Array, dx: Array, dy: Array
    ) -> tuple[ColonyState, TimeStep]:
        """Spawns and deletions at once. A node that spawns stays and one that goes has no child, so they commute, and
        children can use the slots of nodes deleted in the same step."""
        substrate, old, graph = state.substrate, state.colony, state.graph
        wish_x, wish_y = graph.x + dx, graph.y + dy
        child_x, child_y, outside = self.fence(wish_x, wish_y)

        survivors = graphs.delete(graph, delete)
        size = survivors.count + jnp.sum(spawn, dtype=jnp.int32)
        survivors = survivors.replace(age=jnp.where(survivors.alive, survivors.age + 1, 0))
        graph, fertile = graphs.spawn(survivors, spawn, child_x, child_y)
        new = self.measure(graph, substrate)

        moved = jnp.where(new.count > 0, new.center_x - old.center_x, 0.0)
        drift = jnp.where(moved < -MOVED, state.drift + 1, 0)
        goal = self.width - 1
        reached = jnp.any(fertile & ~outside & (wish_x >= goal)) | jnp.any(survivors.alive & (survivors.x >= goal))
        # The first that holds, so that they exclude each other.
        checks = (
            (SUCCESS, reached),
            (EXTINCT, new.count == 0),
            (TOO_MANY, size > jnp.minimum(self.fail_nodes, self.capacity)),
            (OUT_OF_BOUNDS, jnp.any(fertile & outside)),
            (DRIFT, drift >= self.drift_limit),
        )
        outcome = jnp.select([holds for _, holds in checks], [jnp.int32(code) for code, _ in checks], jnp.int32(GOING))

        level = substrate.level(graph.x)
        below = features.below_mean(level, new, graph.alive)
        stagnation = jnp.where(below, jnp.where(graph.age > 0, state.stagnation, 0) + 1, 0)

        parent_level = substrate.level(state.graph.x)
        rise = features.mean(substrate.level(child_x) - parent_level, fertile, jnp.sum(fertile))
        rest = features.mean(parent_level, survivors.alive, survivors.count)
        lift = jnp.where(survivors.count > 0, rest - old.level, 0.0)
        n = jnp.maximum(new.count, 1).astype(jnp.float32)
        reward = {
            "graph": self.weigh(self.graph_reward(new.count)),
            "spawn": self.spawn_reward * rise / self.delta_intensity,
            "delete": self.delete_reward * lift / self.delta_intensity,
            "edge": new.edge_score - old.edge_score,
            "node": self.weigh(self.movement_reward * moved - self.node_penalty(graph, below) / n),
            "progress": self.shaping * self.progress(old, new, outcome != GOING),
            "termination": self.termination_reward(outcome),
        }
        state = ColonyState(graph, substrate, new, stagnation, drift, outcome)
        step = TimeStep(
            obs=self.observe(state),
            reward=jnp.stack([jnp.asarray(reward[name], jnp.float32) for name in self.reward_components]),
            terminated=outcome != GOING,
            metrics={
                "nodes": new.count.astype(jnp.float32),
                "max_x": new.frontier / self.width,
                "blocked_spawns": jnp.sum(spawn & ~fertile).astype(jnp.float32),
                **{name: outcome == code for code, name in enumerate(OUTCOMES) if code != GOING},
            },
        )
        return state, step

    def fence(self, x: Array, y: Array) -> tuple[Array, Array, Array]:
        """Children inside the rectangle, and which were not. The right side is the goal: passing it is reaching it."""
        if self.border == "clamp":
            low, high = self.margin * self.height, (1 - self.margin) * self.height
            return jnp.clip(x, self.margin * self.width, self.width), jnp.clip(y, low, high), jnp.zeros_like(x, bool)
        outside = (x < 0) | (y < 0) | (y >= self.height)
        return jnp.clip(x, 0.0, self.width), jnp.clip(y, 0.0, self.height), outside

    def weigh(self, reward: Array) -> Array:
        return jnp.where(reward < 0, self.penalty_multiplier * reward, reward)

    def graph_reward(self, number: Array) -> Array:
        crowded = -self.growth_penalty * number / self.max_nodes
        sparse = -jnp.asarray(self.connectivity_penalty, jnp.float32)
        return jnp.where(number > self.max_nodes, crowded, jnp.where(number < 2, sparse, self.survival_reward))

    def node_penalty(self, graph: Graph, below: Array) -> Array:
        """The penalty of nodes, summed over them."""
        x, y, h = graph.x, graph.y, self.height
        each = self.left_penalty * (x < 0.1 * self.width)
        each = each + self.border_penalty * ((y < 0.1 * h) | (y > 0.9 * h))
        each = each + self.laggard_penalty * (below & (graph.age >= self.delta_time))
        return jnp.sum(jnp.where(graph.alive, each, 0.0))

    def progress(self, old: Colony, new: Colony, over: Array) -> Array:
        """Potential-based (Ng, Harada and Russell 1999): the potential of an end is zero."""
        before, after = (c.frontier / self.width - 1 for c in (old, new))
        return self.shaping_gamma * jnp.where(over, 0.0, after) - before

    def termination_reward(self, outcome: Array) -> Array:
        penalties = [-getattr(self, f"{name}_penalty") for name in OUTCOMES[EXTINCT:]]
        table = [0.0, self.success_reward, *penalties]
        return jnp.stack([jnp.asarray(v, jnp.float32) for v in table])[outcome]

    def render(self, state: ColonyState) -> np.ndarray:
        """A picture of the colony [H, W, 3] uint8."""
        from regimen.domains.durotaxis.render import draw

        return draw(self, state)


@native_env
class DurotaxisRatio(Durotaxis):
    """One number for the whole colony: the share of nodes, from the left, that is deleted. The others spawn with fixed
    parameters in random directions."""

    init_nodes: float = 10.0
    """Nodes at the start, joined from left to right."""
    gamma: float = 5.0
    """Hill law of every spawn: longest hop."""
    alpha: float = 2.0
    """Intensity at which it is half as long."""
    noise: float = 0.5
    """Deviation of its length."""

    max_ratio: ClassVar[float] = 0.7
    action_conditions: ClassVar = {}
    action_mask = None  # type: ignore[assignment]
    baselines: ClassVar = {"heuristic": policies.steady}
    curricula: ClassVar = {"distance": Durotaxis.curricula["distance"]}

    @property
    def action_space(self) -> spaces.Space:
        return spaces.Box(0.0, self.max_ratio, (1,), np.float32)

    def decode(self, key: Array, state: ColonyState, action: PyTree) -> tuple[Array, Array, Array, Array]:
        alive, number = state.graph.alive, state.colony.count
        ratio = jnp.clip(action[0], 0.0, self.max_ratio)
        leaving = jnp.where(number > 2, jnp.floor(ratio * number), 0.0)
        delete = alive & (features.ranks(state.graph) < leaving)
        z_r, z_x, z_y = jax.random.normal(key, (3, self.capacity))
        reach = jnp.maximum(self.hill(state, self.gamma, self.alpha) + self.noise * z_r, 0.0)
        return delete, alive & ~delete, z_x * (1 + 2 * reach), z_y * (1 + 2 * reach)
