"""Views of what runs hold already: aircraft from trajectory tables, colonies and networks from replays, animations."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import Any

import numpy as np

from regimen.dashboard.index import Run, files_below
from regimen.dashboard.reading import UnreadableError, parse_json, read_bytes
from regimen.files import views

LARGEST_TABLE = 24 << 20
MOST_EPISODES = 20  # of one table
SEPARATION_NM = 5.0
NODE_FEATURES = 13  # of a colony's node; the first two are its place in shares of the substrate
HALF_WORD = 16

DRAWN = ("airspace", "durotaxis", "network_defense")  # environments whose replays are drawn here

Listed = dict[str, tuple[str, ...]]  # title -> the file's place in the run


def listing(run: Run) -> Listed:
    """What can be looked at, the newest evaluation first."""
    out: Listed = {}
    for name in files_below(run.root, (*run.parts, "views"), ".json"):
        out[name.removesuffix(".json")] = ("views", name)
    if "posterior" not in out and isinstance(run.summary.get("model"), dict) and "posterior" in run.summary["model"]:
        out["posterior over candidates"] = ("summary.json",)
    for name in reversed(files_below(run.root, (*run.parts, "trajectories"), ".csv", most=100)):
        out[title_of(name, "trajectories")] = ("trajectories", name)
    for name in files_below(run.root, (*run.parts, "replays"), ".csv", most=100):
        if str(run.config.get("env")).startswith(DRAWN):
            out[title_of(name, "replay")] = ("replays", name)
    for name in files_below(run.root, (*run.parts, "replays"), ".gif", most=100):
        out[f"animation {name.removesuffix('.gif')}"] = ("replays", name)
    return out


def title_of(name: str, what: str) -> str:
    found = re.fullmatch(r"step-0*(\d{1,18})\.csv", name)
    return f"evaluation at step {int(found[1]):,}" if found else f"{what} {name.removesuffix('.csv')}"


def load(run: Run, place: tuple[str, ...]) -> dict[str, Any]:
    """The view in a file, checked; ViewError or UnreadableError with the reason where there is none."""
    folder, name = place[0], place[-1]
    if folder == "views":
        return views.check(parse_json(read_bytes(views.LARGEST, run.root, *run.parts, *place)))
    if name == "summary.json":
        return believed(run.summary)
    if name.endswith(".gif"):
        return views.image(name, "/".join(place))
    text = read_bytes(LARGEST_TABLE, run.root, *run.parts, *place).decode("utf-8", "replace")
    table = csv.reader(io.StringIO(text))
    try:
        head = next(table, [])
        if "agent_id" in head and "lat_deg" in head:
            return flights(name, head, table)
        if str(run.config.get("env")).startswith("network_defense") and "obs[51]" in head:
            return defence(name, head, table)
        if "obs/mask[0]" in head and "obs/nodes[0]" in head:
            return colony(name, head, table, run.config)
    except (csv.Error, ValueError, IndexError) as error:
        raise UnreadableError(f"not a table that can be drawn: {str(error)[:120]}") from error
    raise UnreadableError("this table has no picture")


def believed(summary: dict[str, Any]) -> dict[str, Any]:
    """What a search (`regimen search`) believes of its candidates at its end: mean and two deviations."""
    found = summary["model"]["posterior"]
    best = summary.get("best")
    chosen = best.get("candidate") if isinstance(best, dict) else None
    try:
        candidates = [
            {
                "name": str(c["candidate"]),
                "mean": float(c["mean"]),
                "low": float(c["mean"]) - 2 * float(c["std"]),
                "high": float(c["mean"]) + 2 * float(c["std"]),
                "chosen": c["candidate"] == chosen,
            }
            for c in found
        ]
    except (TypeError, KeyError, ValueError) as error:
        raise UnreadableError("model.posterior: not a list of candidates with mean and std") from error
    title = f"after {summary.get('trials')} trials; highlighted: the best that was found"
    return views.check(views.posterior("Posterior over candidates", [{"title": title, "candidates": candidates}]))


def flights(name: str, head: list[str], table: Any) -> dict[str, Any]:
    """Aircraft of a trajectory table on a plane, in nautical miles around the middle of what was flown."""
    at = {column: head.index(column) for column in ("sim_time_s", "agent_id", "lat_deg", "lon_deg")}
    extra = {c: head.index(c) for c in ("episode_id", "wp_lat_deg", "wp_lon_deg", "conflict_flag") if c in head}
    episodes: dict[str, dict[str, list[list[str]]]] = {}
    for row in table:
        if len(row) != len(head):
            continue
        key = row[extra["episode_id"]] if "episode_id" in extra else "0"
        if key not in episodes and len(episodes) >= MOST_EPISODES:
            break
        episodes.setdefault(key, {}).setdefault(row[at["agent_id"]], []).append(row)
    if not episodes:
        raise UnreadableError("this table is empty")

    def column(rows: list[list[str]], i: int) -> np.ndarray:
        return np.array([float(row[i] or "nan") for row in rows])

    out = []
    for key, agents in episodes.items():
        everyone = [row for rows in agents.values() for row in rows]
        lat0, lon0 = (np.nanmean(column(everyone, at[c])) for c in ("lat_deg", "lon_deg"))
        east = 60 * math.cos(math.radians(lat0))
        times = np.unique(column(everyone, at["sim_time_s"]))
        movers = []
        for agent, rows in agents.items():
            slot = np.searchsorted(times, column(rows, at["sim_time_s"]))

            def spread(values: np.ndarray, slot: np.ndarray = slot, n: int = len(times)) -> list[float | None]:
                full = np.full(n, np.nan)
                full[slot] = values
                return [round(v, 4) if math.isfinite(v) else None for v in full.tolist()]

            mover: dict[str, Any] = {
                "name": agent,
                "x": spread((column(rows, at["lon_deg"]) - lon0) * east),
                "y": spread((column(rows, at["lat_deg"]) - lat0) * 60),
            }
            if "wp_lat_deg" in extra and "wp_lon_deg" in extra:
                goal = [
                    (float(rows[0][extra["wp_lon_deg"]]) - lon0) * east,
                    (float(rows[0][extra["wp_lat_deg"]]) - lat0) * 60,
                ]
                mover["goal"] = [round(float(v), 4) for v in goal]
            if "conflict_flag" in extra:
                mover["alert"] = [bool(v) for v in spread(column(rows, extra["conflict_flag"]))]
            movers.append(mover)
        out.append(views.episode(f"episode {key}", times.tolist(), movers))
    return views.check(views.tracks(f"Aircraft, {title_of(name, 'flight')}", out, separation=SEPARATION_NM, unit="NM"))


def colony(name: str, head: list[str], table: Any, config: dict[str, Any]) -> dict[str, Any]:
    """A durotaxis colony at each step of a replay: its nodes on the substrate, new ones marked, and its edges."""
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
    title = f"Colony, {name.removesuffix('.csv')}"
    return views.check(views.network(title, ["grown", "new"], [], [], frames, bounds=(0.0, 0.0, width, height)))


def defence(name: str, head: list[str], table: Any) -> dict[str, Any]:
    """A defended network at each step of a replay: subnets are columns, the left half of a node is the host's true
    state, where the table has it, the right half what Blue believes; alerts and actions are named below."""
    from regimen.domains.network_defense import network as net

    nodes, edges, last = [], [], {}
    for host, title in enumerate(net.HOSTS):
        subnet = int(net.SUBNET_OF[host])
        row = sum(int(net.SUBNET_OF[h]) == subnet for h in range(host))
        nodes.append({"name": title, "x": 2.2 * subnet, "y": -float(row)})
        edges += [[last[subnet], host]] if subnet in last else []
        last[subnet] = host
    tops = [next(h for h in range(net.N) if net.SUBNET_OF[h] == subnet) for subnet in range(3)]
    edges += [[tops[0], tops[1]], [tops[1], tops[2]]]
    bits = [head.index(f"obs[{i}]") for i in range(4 * net.N)]
    truth = [head.index(f"level[{i}]") for i in range(net.N)] if "level[0]" in head else []
    does, earns = head.index("action"), head.index("reward")
    groups = ("Analyse", "Remove", *(f"Decoy {decoy} on" for decoy in net.DECOYS), "Restore")
    frames, total = [], 0.0
    for row in table:
        if len(row) != len(head):
            continue
        seen = np.array([float(row[i]) for i in bits]).reshape(net.N, 4) > 0.5
        action = int(float(row[does]))
        group, host = divmod(action - 2, net.N)
        did = ("Sleep", "Monitor")[action] if action < 2 else f"{groups[group]} {net.HOSTS[host]}"
        alerts = [
            f"{'exploit' if hit else 'scan'} at {net.HOSTS[h]}" for h, (scan, hit) in enumerate(seen[:, :2]) if scan
        ]
        believed = [int(unsure) if not sure else 2 + int(unsure) for unsure, sure in seen[:, 2:]]
        levels = [(0, 2, 3)[int(float(row[i]))] for i in truth]  # no session, user, root
        frames.append(
            {
                "title": f"step {row[head.index('step')]}: {', '.join(alerts) or 'no alert'}",
                "note": f"Blue: {did}; return so far {total:.4g}",
                "state": levels or believed,
                "believed": believed if levels else None,
            }
        )
        total += float(row[earns])
    states = ["clean", "unknown", "user access", "privileged"]
    halves = " (left: true, right: what Blue believes)" if truth else ", as Blue sees it"
    return views.check(views.network(f"Network, {title_of(name, 'replay')}{halves}", states, nodes, edges, frames))
