"""Aircraft of trajectory tables, for the page."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from regimen.files import views

MOST_EPISODES = 20  # of one table
SEPARATION_NM = 5.0
COLUMNS = ("episode_id", "sim_time_s", "agent_id", "lat_deg", "lon_deg", "wp_lat_deg", "wp_lon_deg", "conflict_flag")


def draw_table(
    name: str, head: list[str], table: Iterator[list[str]], config: Mapping[str, bool | float | str | None]
) -> views.View | None:
    """The aircraft of a trajectory table on a plane, in nautical miles around the middle of what was flown; None where
    the table has no positions."""
    if "agent_id" not in head or "lat_deg" not in head:
        return None
    places = {column: head.index(column) for column in COLUMNS if column in head}
    episodes: dict[str, dict[str, list[dict[str, str]]]] = {}
    for cells in table:
        if len(cells) != len(head):
            continue
        row = {column: cells[i] for column, i in places.items()}
        key = row.get("episode_id", "0")
        if key not in episodes and len(episodes) >= MOST_EPISODES:
            break
        episodes.setdefault(key, {}).setdefault(row["agent_id"], []).append(row)
    if not episodes:
        raise views.ViewError("this table is empty")

    def values(rows: list[dict[str, str]], column: str) -> np.ndarray:
        return np.array([float(row[column] or "nan") for row in rows])

    out = []
    for key, agents in episodes.items():
        everyone = [row for rows in agents.values() for row in rows]
        lat0, lon0 = (np.nanmean(values(everyone, column)) for column in ("lat_deg", "lon_deg"))
        east = 60 * math.cos(math.radians(lat0))
        times = np.unique(values(everyone, "sim_time_s"))

        def spread(rows: list[dict[str, str]], numbers: np.ndarray, times: np.ndarray = times) -> list[float | None]:
            """Numbers of an aircraft's rows at the times of the episode."""
            full = np.full(len(times), np.nan)
            full[np.searchsorted(times, values(rows, "sim_time_s"))] = numbers
            return [round(v, 4) if math.isfinite(v) else None for v in full.tolist()]

        movers = []
        for agent, rows in agents.items():
            mover: dict[str, object] = {
                "name": agent,
                "x": spread(rows, (values(rows, "lon_deg") - lon0) * east),
                "y": spread(rows, (values(rows, "lat_deg") - lat0) * 60),
            }
            if "wp_lat_deg" in places and "wp_lon_deg" in places:
                lat, lon = (float(rows[0][column]) for column in ("wp_lat_deg", "wp_lon_deg"))
                mover["goal"] = [round(float(v), 4) for v in ((lon - lon0) * east, (lat - lat0) * 60)]
            if "conflict_flag" in places:
                mover["alert"] = [bool(v) for v in spread(rows, values(rows, "conflict_flag"))]
            movers.append(mover)
        out.append(views.episode(f"episode {key}", times.tolist(), movers))
    return views.check(
        views.tracks(f"Aircraft, {views.table_title(name, 'flight')}", out, separation=SEPARATION_NM, unit="NM")
    )
