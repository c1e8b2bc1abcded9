"""`airspace.html`: the kept flights on a plan view with a time slider, and the tables. One file, no internet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from regimen.domains.airspace.analysis.campaign import by_severity
from regimen.domains.airspace.analysis.detector import Detector, pairs
from regimen.domains.airspace.analysis.safety import Row
from regimen.domains.airspace.analysis.trajectory import episode_alarms
from regimen.files.storage import plain, write_atomic
from regimen.reports.page import embed, page, section
from regimen.reports.table import Table

if TYPE_CHECKING:
    from regimen.domains.airspace.analysis.analysis import Analysis
    from regimen.domains.airspace.analysis.campaign import SampleFlight

PICTURES = 12  # most pictures put into the page; all are in plots/


def write_page(path: Path, analysis: Analysis) -> Path:
    """Write the page of an analysis."""
    flights = [flight_data(s, analysis.detector) for s in analysis.samples]
    data = json.dumps(plain(flights), separators=(",", ":"), allow_nan=False)
    # a script element ends at the first "</", whatever its content means
    data = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policies = analysis.settings["policies"]
    names = ", ".join(policies) if len(policies) <= 3 else f"{len(policies)} policies"
    scenarios = analysis.settings["scenarios"]
    where = scenarios[0] if len(scenarios) == 1 else f"{len(scenarios)} scenarios"
    columns = yaml.safe_load(part("columns.yaml"))
    sections = [part("flights.html"), section("Summary", table(analysis.summary, columns["summary"]))]
    worst = sorted((s.row for s in analysis.changes), key=by_severity)[:20]
    sections.append(section("Worst shifts", table(worst, columns["shifts"]) if worst else ""))
    sections.append(section("Pictures", pictures(path.parent / "plots")))
    title = f"Airspace safety: {names} on {where}"
    script = f'<script type="application/json" id="data">{data}</script>\n<script>\n{part("flights.js")}</script>\n'
    text = page(title, ". ".join(analysis.notes), sections, part("flights.css"), script)
    write_atomic(path, text, sync=False)
    return path


def part(name: str) -> str:
    """Return a file of the page that lies beside this module."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def flight_data(sample: SampleFlight, detector: Detector) -> dict[str, object]:
    """What the page draws of one episode; lists by aircraft, then time."""
    one, ids = sample.flights.episode(0), sample.configuration.file.ids
    n = len(ids)
    s, flying = one.single(n)
    alarms, los = episode_alarms(one, 0, detector)
    reached = s["reached"]
    gap = np.where(flying, s["min_sep"], np.inf).min(1)
    couples = [(k, pair) for k, pair in enumerate(pairs(one.scenario.present.shape[1])) if max(pair) < n]

    def rounded(x: np.ndarray, digits: int) -> list:
        return np.round(x.astype(np.float64), digits).T.tolist()

    def flags(rows: np.ndarray) -> list:
        return rows.astype(int).tolist()

    return {
        **sample.configuration.names,
        "episode": sample.episode,
        "period": detector.period_s,
        "steps": int(one.length[0]),
        "ids": list(ids),
        "goal": np.round(one.scenario.waypoint[0, :n].astype(np.float64), 3).tolist(),
        "arrived": np.where(reached.any(0), reached.argmax(0), -1).tolist(),
        "north": rounded(s["north"], 3),
        "east": rounded(s["east"], 3),
        "track": rounded(np.degrees(np.arctan2(s["ground"][..., 1], s["ground"][..., 0])) % 360, 1),
        "speed": rounded(np.linalg.norm(s["ground"], axis=-1), 1),
        "togo": rounded(s["waypoint_distance"], 2),
        "gap": [round(float(v), 3) if v < 199 else None for v in gap],
        "smallest": round(float(gap.min()), 2) if gap.min() < 199 else None,
        "pairs": [list(pair) for _, pair in couples],
        "conflict": flags(alarms.conflict[[k for k, _ in couples]]),
        "alert": flags(alarms.alert[0][:n]),
        "ungated": flags(alarms.alert[1][:n]),
        "los": flags(los[1 : 1 + n]),
    }


def table(rows: Sequence[Row], columns: dict[str, tuple[str, str]]) -> str:
    """Return the columns of some rows, numbers as the columns' formats have them; an absent number is empty."""

    def cell(value: str | float | None, form: str) -> str:
        if isinstance(value, str) or not form:
            return str(value)
        return "" if value is None or not np.isfinite(value) else format(value, form)

    cells = [[cell(row[name], form) for name, (_, form) in columns.items()] for row in rows]
    texts = [heading for heading, form in columns.values() if not form]
    return Table([heading for heading, _ in columns.values()], cells).html(texts)


def pictures(folder: Path) -> str:
    """Return the first pictures of the analysis, the most telling kinds first."""
    kinds = ("matrix", "shifts", "aircraft", "separation", "survival")
    paths = [path for kind in kinds for path in sorted(folder.glob(f"{kind}*.png"))]
    return "".join(embed(path, path.stem.replace("_", " ")) for path in paths[:PICTURES])
