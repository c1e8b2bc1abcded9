"""Defended networks of replays, for the page."""

from collections.abc import Iterator, Mapping

import numpy as np

from regimen.domains.network_defense import network as net
from regimen.files import views


def draw_table(
    name: str, head: list[str], table: Iterator[list[str]], config: Mapping[str, bool | float | str | None]
) -> views.View | None:
    """The network at each step of a replay: subnets are columns, the left half of a node is the host's true state,
    where the table has it, the right half what Blue believes; alerts and actions are named below. None where the table
    has no observation of every host."""
    if f"obs[{4 * net.N - 1}]" not in head:
        return None
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
    frames, total = [], 0.0
    for row in table:
        if len(row) != len(head):
            continue
        flags = np.array([float(row[i]) for i in bits]).reshape(net.N, 4) > 0.5
        alerts = [
            f"{'exploit' if hit else 'scan'} at {net.HOSTS[h]}" for h, (scan, hit) in enumerate(flags[:, :2]) if scan
        ]
        believed = [int(unsure) if not sure else 2 + int(unsure) for unsure, sure in flags[:, 2:]]
        levels = [(0, 2, 3)[int(float(row[i]))] for i in truth]  # no session, user, root
        frames.append(
            {
                "title": f"step {row[head.index('step')]}: {', '.join(alerts) or 'no alert'}",
                "note": f"Blue: {net.action_name(int(float(row[does])), ' on')}; return so far {total:.4g}",
                "state": levels or believed,
                "believed": believed if levels else None,
            }
        )
        total += float(row[earns])
    states = ["clean", "unknown", "user access", "privileged"]
    seen = "" if truth else ", as Blue sees it"
    return views.check(
        views.network(f"Network, {views.table_title(name, 'replay')}{seen}", states, nodes, edges, frames)
    )
