"""Colonies of replays, for the page."""

from collections.abc import Iterator, Mapping

import numpy as np

from regimen.files import views

NODE_FEATURES = 13  # of a node; the first two are its place in shares of the substrate
HALF_WORD = 16


def draw_table(
    name: str, head: list[str], table: Iterator[list[str]], config: Mapping[str, bool | float | str | None]
) -> views.View | None:
    """The colony at each step of a replay: its nodes on the substrate, new ones marked, and its edges; None where the
    table has no nodes."""
    if "obs/mask[0]" not in head or "obs/nodes[0]" not in head:
        return None
    where = {column: i for i, column in enumerate(head)}
    capacity = sum(column.startswith("obs/mask[") for column in head)
    words = capacity // HALF_WORD
    mask = [where[f"obs/mask[{i}]"] for i in range(capacity)]
    width, height = (float(config.get(f"env_args.{k}") or d) for k, d in (("width", 200.0), ("height", 200.0)))
    nodes = np.array([where[f"obs/nodes[{i}]"] for i in range(capacity * NODE_FEATURES)]).reshape(capacity, -1)
    edges = [where[f"obs/edges[{i}]"] for i in range(capacity * words)]
    step, reward = where.get("step", 0), where.get("reward")
    frames, total = [], 0.0
    for row in table:
        if len(row) != len(head):
            continue
        alive = np.array([float(row[i]) > 0.5 for i in mask])
        slots = np.flatnonzero(alive)
        bits = np.array([int(row[i]) for i in edges]).reshape(capacity, words)
        linked = (bits[:, :, None] >> np.arange(HALF_WORD)) & 1
        pairs = np.argwhere(linked.reshape(capacity, capacity)[np.ix_(slots, slots)])
        place = [(float(row[nodes[i, 0]]) * width, float(row[nodes[i, 1]]) * height) for i in slots]
        total += float(row[reward]) if reward is not None else 0.0
        frames.append(
            {
                "title": f"step {row[step]}: {len(slots)} nodes",
                "note": f"return so far {total:.4g}",
                "state": [int(float(row[nodes[i, 9]]) > 0.5) for i in slots],
                "nodes": [{"x": round(x, 5), "y": round(y, 5)} for x, y in place],
                "edges": pairs.tolist(),
            }
        )
    title = f"Colony, {views.table_title(name, 'replay')}; the goal is the right edge, where the ground is stiffest"
    return views.check(views.network(title, ["grown", "new"], [], [], frames, bounds=(0.0, 0.0, width, height)))
