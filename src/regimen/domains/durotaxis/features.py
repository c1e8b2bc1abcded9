"""What is measured of a colony: for the observation, and for the reward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from regimen.domains.durotaxis import graph as graphs
from regimen.domains.durotaxis.graph import Graph
from regimen.types import Array, Record, pytree_dataclass

if TYPE_CHECKING:
    from regimen.domains.durotaxis.env import ColonyState, Durotaxis

NODE_FEATURES, GRAPH_FEATURES = 13, 22
BOUND = 10.0  # features are about one; none is ever further from zero

ANGLES = 2 * np.pi * np.arange(16) / 16
COS, SIN = np.cos(ANGLES).round(12).astype(np.float32), np.sin(ANGLES).round(12).astype(np.float32)
ON_HULL = 1e-3  # how far behind the furthest node another still counts as level with it
LEVEL = 1e-4  # differences of level below it are rounding


@pytree_dataclass
class Colony(Record):
    """Means and extremes over the nodes; zero where there are none. They are kept in the state: the reward is mostly
    made of their changes."""

    count: Array  # int32
    center_x: Array
    center_y: Array
    frontier: Array  # the largest x
    level: Array  # mean level (`Substrate.level`)
    edge_score: Array  # mean over edges, see `edge_score`


def mean(values: Array, of: Array, number: Array) -> Array:
    return jnp.sum(jnp.where(of, values, 0.0), axis=-1) / jnp.maximum(number, 1).astype(jnp.float32)


def below_mean(level: Array, colony: Colony, alive: Array) -> Array:
    return alive & (level < colony.level - LEVEL)


def edge_score(graph: Graph, reward: Array | float, penalty: Array | float) -> Array:
    """Mean over edges of `reward` for one that leads right and minus `penalty` for one that leads left."""
    linked = graphs.unpack(graph.edges)
    step = graph.x[None, :] - graph.x[:, None]  # [from, to]
    worth = jnp.where(step > 0.01, reward, jnp.where(step < -0.01, -penalty, 0.0))
    total = jnp.sum(jnp.sum(jnp.where(linked, worth, 0.0), axis=0))  # over the rows first: a loop that vectorises
    return total / jnp.maximum(jnp.sum(graphs.count(graph.edges)), 1).astype(jnp.float32)


def ranks(graph: Graph) -> Array:
    """How many nodes lie further left, [C] int32; of equals, the one in the lower slot."""
    slot = np.arange(graph.x.shape[-1])
    x, alive = graph.x, graph.alive
    left = (x[:, None] < x[None, :]) | ((x[:, None] == x[None, :]) & (slot[:, None] < slot[None, :]))
    return jnp.sum(left & alive[:, None], axis=0, dtype=jnp.int32)


def hull(graph: Graph) -> tuple[Array, Array]:
    """Which nodes are furthest in one of 16 directions, [C], and the area of the polygon they make.

    It lies inside the convex hull and touches it in every direction; nodes level with each other count as their mean.
    """
    alive, x, y = graph.alive[:, None], graph.x[:, None], graph.y[:, None]
    reach = jnp.where(alive, x * COS + y * SIN, -1e9)  # [C, 16]
    furthest = jnp.where(alive & (reach >= jnp.max(reach, axis=0) - ON_HULL), 1.0, 0.0)
    tied = jnp.maximum(jnp.sum(furthest, axis=0), 1.0)
    x, y = jnp.sum(furthest * x, axis=0) / tied, jnp.sum(furthest * y, axis=0) / tied  # [16]
    x, y = x - x[0], y - y[0]  # near the origin float32 loses less
    area = 0.5 * jnp.sum(x * jnp.roll(y, -1) - jnp.roll(x, -1) * y)
    return jnp.max(furthest, axis=1) > 0, jnp.maximum(area, 0.0)


def observe(env: Durotaxis, state: ColonyState) -> dict[str, Array]:
    """The observation: features of every node, of their graph and of the whole colony, all of about size one."""
    graph, colony, substrate, width, height = state.graph, state.colony, state.substrate, env.width, env.height
    capacity = graph.x.shape[-1]
    alive, x, y = graph.alive, graph.x, graph.y
    number = colony.count
    n = jnp.maximum(number, 1).astype(jnp.float32)
    some = number > 0

    linked = graphs.unpack(graph.edges)
    out_degree = graphs.count(graph.edges)
    in_degree = jnp.sum(linked, axis=0, dtype=jnp.int32)
    degree = in_degree + out_degree
    edges = jnp.sum(out_degree).astype(jnp.float32)

    between = jnp.sqrt((x[:, None] - x[None, :]) ** 2 + (y[:, None] - y[None, :]) ** 2)
    distance = jnp.sum(jnp.where(alive[:, None], between, 0.0), axis=0) / jnp.maximum(n - 1, 1)
    to_center = jnp.sqrt((x - colony.center_x) ** 2 + (y - colony.center_y) ** 2)
    log_intensity = substrate.log_intensity(x)
    on_hull, hull_area = hull(graph)

    of_nodes = {
        "x": x / width,
        "y": y / height,
        "log_intensity": log_intensity / 5,
        "level_above_mean": (substrate.level(x) - colony.level) * 10,
        "in_degree": jnp.log1p(in_degree.astype(jnp.float32)),
        "out_degree": jnp.log1p(out_degree.astype(jnp.float32)),
        "centrality": 1 / (1 + 10 * distance / width),
        "centroid_distance": 4 * to_center / width,
        "hull": on_hull,
        "new": graph.age == 0,
        "age": jnp.log1p(graph.age.astype(jnp.float32)) / 2,
        "stagnation": jnp.log1p(state.stagnation.astype(jnp.float32)) / 2,
        "rank": ranks(graph) / n,
    }
    nodes = jnp.stack([v.astype(jnp.float32) for v in of_nodes.values()], axis=-1)

    low_x, low_y = (jnp.where(some, jnp.min(jnp.where(alive, v, jnp.inf)), 0.0) for v in (x, y))
    high_x, high_y = (jnp.max(jnp.where(alive, v, 0.0)) for v in (x, y))
    wide, tall = (high_x - low_x) / width, (high_y - low_y) / height
    of_graph = {
        "nodes": number / capacity,
        "edges": edges / (2 * capacity),
        "density": edges / jnp.maximum(n * (n - 1), 1),
        "centroid_x": colony.center_x / width,
        "centroid_y": colony.center_y / height,
        "min_x": low_x / width,
        "min_y": low_y / height,
        "max_x": high_x / width,
        "max_y": high_y / height,
        "width": wide,
        "height": tall,
        "box_area": wide * tall,
        "hull_area": hull_area / (width * height),
        "mean_degree": edges / n,
        "max_degree": jnp.log1p(jnp.max(degree).astype(jnp.float32)) / 2,
        "mean_log_intensity": mean(log_intensity, alive, number) / 5,
        "max_log_intensity": jnp.where(some, substrate.log_intensity(high_x), 0.0) / 5,
        "steepness": 20 * substrate.steepness(colony.center_x),
        "goal_distance": 1 - high_x / width,
        "drift": state.drift / env.drift_limit,
        "max_nodes": env.max_nodes / capacity,
        "fail_nodes": env.fail_nodes / capacity,
    }
    features = jnp.stack([jnp.asarray(v, jnp.float32) for v in of_graph.values()])
    return {
        "nodes": jnp.clip(jnp.where(alive[:, None], nodes, 0.0), -BOUND, BOUND),
        "mask": alive.astype(jnp.float32),
        "edges": graphs.half_words(graph.edges),
        "graph": jnp.clip(features, -BOUND, BOUND),
    }
