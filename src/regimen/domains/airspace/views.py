"""Aircraft of trajectory tables, for the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from regimen.files import views

MOST_EPISODES = 20  # of one table
SEPARATION_NM = 5.0


def draw_table(
    name: str, head: list[str], table: Iterator[list[str]], config: Mapping[str, bool | float | str | None]
) -> views.View | None:
    """The aircraft of a trajectory table on a plane, in nautical miles around the middle of what was flown; None where
    the table has no positions."""
    if "agent_id" not in head or "lat_deg" not in head:
        return None
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
        raise views.ViewError("this table is empty")

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

            mover: dict[str, object] = {
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
    return views.check(
        views.tracks(f"Aircraft, {views.table_title(name, 'flight')}", out, separation=SEPARATION_NM, unit="NM")
    )
