"""Pictures of an analysis: degradation under shifts, survival curves, and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.domains.airspace.analysis import safety
from regimen.domains.airspace.analysis.shifts import ALL, AMOUNTS
from regimen.reports.figure import CYCLE, GREY, RED, headline, panels, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from regimen.domains.airspace.analysis.analysis import Analysis
    from regimen.domains.airspace.analysis.campaign import Configuration

Columns = tuple[str, str, str]  # a value and the ends of its interval
LOST = ("los_rate", "los_low", "los_high")
SEPARATION = ("min_separation_p50_nm", "min_separation_p05_nm", "min_separation_p95_nm")
WORDS = {
    LOST: ("episodes with a loss of separation", "95% Wilson intervals; dotted: no shift"),
    SEPARATION: ("smallest separation, NM", "median and 5 to 95% of episodes; dotted: no shift, red: 5 NM"),
}


def plot_all(analysis: Analysis, folder: Path) -> None:
    """Draw every picture that has data."""
    cells, shifts = analysis.cells, analysis.shifts
    scenarios = list(dict.fromkeys(c.file.name for c in cells))
    for name in scenarios:
        here = [c for c in cells if c.file.name == name]
        changes = [s for s in analysis.changes if s.file.name == name]
        survival(name, here, changes, folder / f"survival_{name}.png")
    for policy, scenario in dict.fromkeys((s.subject.name, s.file.name) for s in shifts):
        results = [s for s in shifts if (s.subject.name, s.file.name) == (policy, scenario)]
        title = f"{policy} on {scenario}"
        end = scenario if len({s.subject.name for s in shifts}) == 1 else f"{policy}_{scenario}"
        degradation(title, results, folder / f"shifts_{end}.png", LOST)
        degradation(title, results, folder / f"separation_{end}.png", SEPARATION)
        by_aircraft(title, results[1:], folder / f"aircraft_{end}.png")
    if len(scenarios) > 1:
        heat_map(cells, scenarios, folder / "matrix.png")


def _step(ax: Axes, values: np.ndarray, color: str, label: str, linestyle: str, band: bool) -> None:
    """Draw the exact survival curve, as the steps it is."""
    x, s = safety.survival(values)
    top = float(x[-1])
    ax.step([0.0, *x, top], [1.0, *s, 0.0], where="pre", color=color, label=label, linewidth=1.6, linestyle=linestyle)
    if band and len(values) > 1:
        points = np.linspace(0, top, 200)
        low, high = safety.survival_band(values, points)
        ax.fill_between(points, low, high, color=color, alpha=0.13, linewidth=0)


def survival(scenario: str, cells: Sequence[Configuration], changes: Sequence[Configuration], path: Path) -> None:
    """Draw Pr(smallest separation of an episode >= x): of policies on the scenario, and of the first under shifts."""
    with picture(path, 14 if changes else 8, 4.2) as figure:
        axes = panels(figure, 2 if changes else 1, 2 if changes else 1, sharey=True)
        for color, c in zip(CYCLE * 2, cells[:10]):
            values = c.measures.episode["min_separation_nm"].astype(np.float64)
            if np.isfinite(values).all():
                style = "--" if c.subject.path is None and c.subject.algorithm is None else "-"
                _step(axes[0], values, color, f"{c.subject.name}: LoS {c.row['los_rate']:.2f}", style, True)
        axes[0].set_title(f"{scenario}: smallest separation")
        axes[0].set_ylabel("share of episodes with at least x")
        if changes:
            first = changes[0].subject
            by_kind: dict[str, list[np.ndarray]] = {}
            for s in changes:
                if s.subject is first:
                    by_kind.setdefault(s.shift.kind, []).append(s.measures.episode["min_separation_nm"])
            for k, (color, (kind, parts)) in enumerate(zip(CYCLE * 2, by_kind.items())):
                values = np.concatenate(parts).astype(np.float64)
                style = "-" if k < len(CYCLE) else "--"
                _step(axes[1], values, color, f"{kind}: {float((values < 5).mean()):.2f}", style, False)
            axes[1].set_title(f"{first.name} under shifts, all of a kind together")
        for ax in axes:
            ax.axvline(5, color=RED, linewidth=1, linestyle=":")
            ax.set_xlabel("x, NM")
            ax.set_xlim(left=0)
            ax.set_ylim(0, 1.02)
            ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)


def degradation(title: str, results: Sequence[Configuration], path: Path, columns: Columns) -> None:
    """Draw a value with its interval against the size of each kind of shift, a line per target (of winds, per
    direction)."""
    label, note = WORDS[columns]
    base = results[0]
    kinds = list(dict.fromkeys(s.shift.kind for s in results[1:])) or ["baseline"]
    across = min(3, len(kinds))
    with picture(path, 4.6 * across, 0.5 + 3.1 * -(-len(kinds) // across)) as figure:
        axes = panels(figure, len(kinds), across, sharey=True)
        for ax, kind in zip(axes, kinds):
            _degradation_panel(ax, kind, [s for s in results if s.shift.kind == kind], base, columns)
        for ax in axes[::across]:
            ax.set_ylabel(label)
        axes[0].set_ylim(*((-0.03, 1.03) if columns == LOST else (0, min(axes[0].get_ylim()[1], 30))))
        headline(figure, f"{title}: {note}", size=12)


def _degradation_panel(
    ax: Axes, kind: str, results: Sequence[Configuration], base: Configuration, columns: Columns
) -> None:
    ax.axhline(base.row[columns[0]], color=GREY, linewidth=1.2, linestyle=":")
    if columns != LOST:
        ax.axhline(5, color=RED, linewidth=1, linestyle=":")
    by_name = results[0].shift.by_name
    signed = not by_name and kind not in ("waypoint", "wind", "delay")
    groups: dict[str, list[Configuration]] = {}
    for s in results:
        groups.setdefault(s.shift.direction if kind == "wind" else s.shift.target, []).append(s)
    for k, ((group, rows), color) in enumerate(zip(groups.items(), CYCLE * 3)):
        if kind == "waypoint":  # the directions together: the mean over them at each distance, and the worst
            sizes = sorted({s.shift.value for s in rows})
            values = [[s.row[columns[0]] for s in rows if s.shift.value == v] for v in sizes]
            ax.plot(sizes, [np.mean(v) for v in values], color=color, marker="o", markersize=3, label=group)
            worst = max if columns == LOST else min
            ax.plot(sizes, [worst(v) for v in values], color=color, linewidth=0.9, linestyle="--")
            continue
        points: dict[float, list[float]] = {}
        if signed:  # no shift is a point of the line, and a shift that was left out is a gap
            points = {s.shift.value: [np.nan] * 3 for s in results} | {0.0: [base.row[c] for c in columns]}
        points |= {s.shift.value: [s.row[c] for c in columns] for s in rows}
        x = np.array(sorted(points), float)
        y, low, high = np.array([points[v] for v in x]).T
        if by_name or kind in ("wind", "delay"):
            x += 0.12 * (k - len(groups) / 2 + 0.5) if by_name else 0.0
            bars = [np.maximum(y - low, 0), np.maximum(high - y, 0)]
            line = "none" if by_name else "-"
            ax.errorbar(x, y, bars, color=color, marker="o", markersize=3.5, capsize=2, label=group, linestyle=line)
        else:
            ax.plot(x, y, color=color, marker="o", markersize=2.5, linewidth=1.3, label=group)
            ax.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
    if by_name:
        names = {s.shift.value: s.shift.direction for s in results}
        ax.set_xticks(list(names), list(names.values()))
        ax.set_xlim(-0.5, len(names) - 0.5)
    if kind == "delay":
        ax.set_xticks([1, 2, 3])
    ax.set_title(AMOUNTS[kind]["title"] if kind in AMOUNTS else kind)
    ax.legend(loc="best", fontsize=7, ncols=2 if len(groups) > 3 else 1)


def by_aircraft(title: str, changes: Sequence[Configuration], path: Path) -> None:
    """Draw which aircraft's shift hurts: the mean change of the loss-of-separation rate by kind, range and target."""
    parts: dict[tuple[str, str], list[float]] = {}
    for s in changes:
        parts.setdefault((f"{s.shift.kind} {s.shift.range}", s.shift.target), []).append(s.row["los_rate_change"])
    rows = list(dict.fromkeys(row for row, _ in parts))
    targets = sorted(dict.fromkeys(target for _, target in parts), key=lambda target: target == ALL)
    values = np.array([[np.mean(parts.get((r, t), np.nan)) for t in targets] for r in rows] or [[np.nan]])
    with picture(path, 3.4 + 0.85 * len(targets), 1.4 + 0.34 * len(rows)) as figure:
        ax = figure.subplots()
        _heat(ax, values, rows, targets, "RdBu_r", (-1.0, 1.0), "{:+.2f}")
        figure.colorbar(ax.images[0], ax=ax, label="change of the LoS rate", fraction=0.06)
        ax.set_title(title)
        ax.set_xlabel("shifted aircraft")


def heat_map(cells: Sequence[Configuration], scenarios: list[str], path: Path) -> None:
    """Draw policies by scenarios: losses of separation, and waypoints reached. A frame marks what a policy was trained
    on."""
    policies = list(dict.fromkeys(c.subject.name for c in cells))
    names = [name if len(name) <= 28 else name[:27] + "…" for name in policies]
    wide = 2.6 + 0.55 * len(scenarios)
    maps = {"los_rate": ("Episodes with a loss of separation", "OrRd"), "reached_rate": ("Waypoints reached", "GnBu")}
    with picture(path, 2 * wide, 2.1 + 0.34 * len(policies)) as figure:
        for ax, (column, (title, colors)) in zip(figure.subplots(1, 2, sharey=True), maps.items()):
            values = np.full((len(policies), len(scenarios)), np.nan)
            for c in cells:
                i, j = policies.index(c.subject.name), scenarios.index(c.file.name)
                values[i, j] = c.row[column]
                if c.row["own"]:
                    x, y = np.array([-0.5, 0.5, 0.5, -0.5, -0.5]) + j, np.array([-0.5, -0.5, 0.5, 0.5, -0.5]) + i
                    ax.plot(x, y, color="#1a202c")
            _heat(ax, values, names, scenarios, colors, (0.0, 1.0), "{:.2f}")
            ax.set_title(title)
            figure.colorbar(ax.images[0], ax=ax, fraction=0.03)


def _heat(
    ax: Axes,
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    colors: str,
    limits: tuple[float, float],
    text: str,
) -> None:
    """Draw a heat map with its numbers."""
    image = ax.imshow(values, cmap=colors, vmin=limits[0], vmax=limits[1], aspect="auto")
    ax.set_xticks(range(len(columns)), columns, **({"rotation": 40, "ha": "right"} if len(columns) > 5 else {}))
    ax.set_yticks(range(len(rows)), rows)
    ax.grid(False)
    ax.tick_params(length=0)
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            r, g, b, _ = image.to_rgba(value)
            dark = 0.3 * r + 0.59 * g + 0.11 * b < 0.5
            number = text.format(value).replace("-0.00", "0.00").replace("+0.00", "0")
            ax.text(j, i, number, ha="center", va="center", fontsize=7.5, color="white" if dark else "#1a202c")
