"""Pictures of an analysis: degradation under shifts, survival curves, and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.domains.airspace.analysis import safety
from regimen.domains.airspace.analysis.shifts import ALL, AMOUNTS, BASELINE
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


def plot_all(analysis: Analysis, folder: Path) -> list[Path]:
    """Every picture that has data."""
    paths = []
    cells = analysis.cells
    for name in dict.fromkeys(c.file.name for c in cells):
        here = [c for c in cells if c.file.name == name]
        shifted = [s for s in analysis.shifts if s.file.name == name]
        paths.append(survival(name, here, shifted, folder / f"survival_{name}.png"))
    for key in dict.fromkeys((s.subject.name, s.file.name) for s in analysis.shifts):
        results = [s for s in analysis.shifts if (s.subject.name, s.file.name) == key]
        end = key[1] if len({s.subject.name for s in analysis.shifts}) == 1 else f"{key[0]}_{key[1]}"
        paths.append(degradation(key, results, folder / f"shifts_{end}.png"))
        paths.append(degradation(key, results, folder / f"separation_{end}.png", SEPARATION))
        paths.append(by_aircraft(key, results, folder / f"aircraft_{end}.png"))
    if len({c.file.name for c in cells}) > 1:
        paths.append(heat_map(cells, folder / "matrix.png"))
    return paths


def _step(ax: Axes, values: np.ndarray, color: str, label: str, linestyle: str, band: bool = True) -> None:
    """The exact survival curve, drawn as the steps it is."""
    x, s = safety.survival(values)
    top = float(x[-1])
    ax.step([0.0, *x, top], [1.0, *s, 0.0], where="pre", color=color, label=label, linewidth=1.6, linestyle=linestyle)
    if band and len(values) > 1:
        points = np.linspace(0, top, 200)
        low, high = safety.survival_band(values, points)
        ax.fill_between(points, low, high, color=color, alpha=0.13, linewidth=0)


def survival(scenario: str, cells: Sequence[Configuration], shifted: Sequence[Configuration], path: Path) -> Path:
    """Pr(smallest separation of an episode >= x): policies on the scenario, and the first of them under shifts."""
    changed = [s for s in shifted if s.shift is not BASELINE]
    with picture(path, 14 if changed else 8, 4.2) as figure:
        axes = panels(figure, 2 if changed else 1, 2 if changed else 1, sharey=True)
        policies = cells[:10]
        for color, c in zip(CYCLE * 2, policies):
            rule = c.subject.path is None and c.subject.algorithm is None
            values = c.measures.episode["min_separation_nm"].astype(np.float64)
            if np.isfinite(values).all():
                style = "--" if rule else "-"
                _step(axes[0], values, color, f"{c.subject.name}: LoS {c.row['los_rate']:.2f}", style)
        axes[0].set_title(f"{scenario}: smallest separation")
        if changed:
            first = changed[0].subject
            shifts = [s for s in changed if s.subject is first]
            kinds = list(dict.fromkeys(s.shift.kind for s in shifts))
            for k, (color, kind) in enumerate(zip(CYCLE * 2, kinds)):
                rows = [s for s in shifts if s.shift.kind == kind]
                values = np.concatenate([s.measures.episode["min_separation_nm"] for s in rows]).astype(np.float64)
                rate = float((values < 5).mean())
                style = "-" if k < len(CYCLE) else "--"
                _step(axes[1], values, color, f"{kind}: {rate:.2f}", style, band=False)
            axes[1].set_title(f"{first.name} under shifts, all of a kind together")
        for ax in axes:
            ax.axvline(5, color=RED, linewidth=1, linestyle=":")
            ax.set_xlabel("x, NM")
            ax.set_xlim(left=0)
            ax.set_ylim(0, 1.02)
            ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        axes[0].set_ylabel("share of episodes with at least x")
    return path


def degradation(key: tuple[str, str], results: Sequence[Configuration], path: Path, columns: Columns = LOST) -> Path:
    """A value with its interval against the size of each kind of shift, a line per target (of winds, per direction)."""
    label, note = WORDS[columns]
    base = next(s for s in results if s.shift is BASELINE)
    kinds = list(dict.fromkeys(s.shift.kind for s in results if s.shift is not BASELINE))
    if not kinds:
        kinds = ["baseline"]
    across = min(3, len(kinds))
    rows = -(-len(kinds) // across)
    with picture(path, 4.6 * across, 0.5 + 3.1 * rows) as figure:
        axes = panels(figure, len(kinds), across, sharey=True)
        for ax, kind in zip(axes, kinds):
            _degradation_panel(ax, kind, [s for s in results if s.shift.kind == kind], base, columns)
        for ax in axes[::across]:
            ax.set_ylabel(label)
        if columns == LOST:
            axes[0].set_ylim(-0.03, 1.03)
        else:
            axes[0].set_ylim(0, min(axes[0].get_ylim()[1], 30))
        headline(figure, f"{key[0]} on {key[1]}: {note}", size=12)
    return path


def _degradation_panel(
    ax: Axes, kind: str, results: Sequence[Configuration], base: Configuration, columns: Columns
) -> None:
    ax.axhline(base.row[columns[0]], color=GREY, linewidth=1.2, linestyle=":")
    if columns != LOST:
        ax.axhline(5, color=RED, linewidth=1, linestyle=":")
    signed = kind not in ("waypoint", "wind", "type", "wind_layered", "delay")
    named = kind in ("type", "wind_layered")
    groups: dict[str, list[Configuration]] = {}
    for s in results:
        group = s.shift.direction if kind == "wind" else s.shift.target
        groups.setdefault(group, []).append(s)
    for k, ((group, rows), color) in enumerate(zip(groups.items(), CYCLE * 3)):
        if kind == "waypoint":  # the directions together: the mean over them at each distance, and the worst
            values = sorted({s.shift.value for s in rows})
            at = [[s.row[columns[0]] for s in rows if s.shift.value == v] for v in values]
            ax.plot(values, [np.mean(a) for a in at], color=color, marker="o", markersize=3, label=group)
            worst = max if columns == LOST else min
            ax.plot(values, [worst(a) for a in at], color=color, linewidth=0.9, linestyle="--")
            continue
        rows = sorted(rows, key=lambda s: s.shift.value)
        sizes = sorted({s.shift.value for s in results})  # a shift that was left out is a gap of the line
        x = np.array([s.shift.value for s in rows], float) + (0.12 * (k - len(groups) / 2 + 0.5) if named else 0.0)
        y, low, high = (np.array([s.row[c] for s in rows]) for c in columns)
        if signed:  # no shift is a point of the line
            at = int(np.searchsorted(x, 0.0))
            x = np.insert(x, at, 0.0)
            y, low, high = (np.insert(v, at, base.row[c]) for v, c in zip((y, low, high), columns))
            gaps = [v for v in sizes if v not in x]
            at = np.searchsorted(x, gaps)
            x, y, low, high = (np.insert(v, at, g) for v, g in ((x, gaps), (y, np.nan), (low, np.nan), (high, np.nan)))
        if named or kind in ("wind", "delay"):
            bars = [np.maximum(y - low, 0), np.maximum(high - y, 0)]
            line = "none" if named else "-"
            ax.errorbar(x, y, bars, color=color, marker="o", markersize=3.5, capsize=2, label=group, linestyle=line)
        else:
            ax.plot(x, y, color=color, marker="o", markersize=2.5, linewidth=1.3, label=group)
            ax.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
    if named:
        names = {s.shift.value: s.shift.direction for s in results}
        ax.set_xticks(list(names), list(names.values()))
        ax.set_xlim(-0.5, len(names) - 0.5)
    if kind == "delay":
        ax.set_xticks([1, 2, 3])
    ax.set_title(AMOUNTS[kind]["title"] if kind in AMOUNTS else kind)
    ax.legend(loc="best", fontsize=7, ncols=2 if len(groups) > 3 else 1)


def by_aircraft(key: tuple[str, str], results: Sequence[Configuration], path: Path) -> Path:
    """Which aircraft's shift hurts: the mean change of the loss-of-separation rate by kind, range and target."""
    changed = [s for s in results if s.shift is not BASELINE]
    rows = list(dict.fromkeys((s.shift.kind, s.shift.range) for s in changed))
    targets = list(dict.fromkeys(s.shift.target for s in changed))
    targets = [t for t in targets if t != ALL] + [t for t in targets if t == ALL]
    values = np.full((max(len(rows), 1), max(len(targets), 1)), np.nan)
    for i, row in enumerate(rows):
        for j, target in enumerate(targets):
            here = [s for s in changed if (s.shift.kind, s.shift.range, s.shift.target) == (*row, target)]
            values[i, j] = np.mean([s.row["los_rate_change"] for s in here]) if here else np.nan
    with picture(path, 3.4 + 0.85 * len(targets), 1.4 + 0.34 * len(rows)) as figure:
        ax = figure.subplots()
        _grid(ax, values, [f"{k} {r}" for k, r in rows], targets, "RdBu_r", (-1.0, 1.0), "{:+.2f}")
        figure.colorbar(ax.images[0], ax=ax, label="change of the LoS rate", fraction=0.06)
        ax.set_title(f"{key[0]} on {key[1]}")
        ax.set_xlabel("shifted aircraft")
    return path


def heat_map(cells: Sequence[Configuration], path: Path) -> Path:
    """Policies by scenarios: loss of separation, and waypoints reached. A frame marks what a policy was trained on."""
    policies = list(dict.fromkeys(c.subject.name for c in cells))
    scenarios = list(dict.fromkeys(c.file.name for c in cells))
    places = [(policies.index(c.subject.name), scenarios.index(c.file.name)) for c in cells]
    lost, reached = np.full((2, len(policies), len(scenarios)), np.nan)
    for place, c in zip(places, cells):
        lost[place], reached[place] = c.row["los_rate"], c.row["reached_rate"]
    wide = 2.6 + 0.55 * len(scenarios)
    with picture(path, 2 * wide, 2.1 + 0.34 * len(policies)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        shown = [name if len(name) <= 28 else name[:27] + "…" for name in policies]
        _grid(left, lost, shown, scenarios, "OrRd", (0.0, 1.0), "{:.2f}")
        _grid(right, reached, shown, scenarios, "GnBu", (0.0, 1.0), "{:.2f}")
        left.set_title("Episodes with a loss of separation")
        right.set_title("Waypoints reached")
        for ax in (left, right):
            for i, j in (place for place, c in zip(places, cells) if c.row["own"]):
                x, y = np.array([-0.5, 0.5, 0.5, -0.5, -0.5]) + j, np.array([-0.5, -0.5, 0.5, 0.5, -0.5]) + i
                ax.plot(x, y, color="#1a202c")
            figure.colorbar(ax.images[0], ax=ax, fraction=0.03)
    return path


def _grid(
    ax: Axes,
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    cmap: str,
    limits: tuple[float, float],
    text: str,
) -> None:
    """A heat map with its numbers."""
    import matplotlib

    colors = matplotlib.colormaps[cmap]
    ax.imshow(values, cmap=cmap, vmin=limits[0], vmax=limits[1], aspect="auto")
    turned = {"rotation": 40, "ha": "right"} if len(columns) > 5 else {}
    ax.set_xticks(range(len(columns)), columns, **turned)
    ax.set_yticks(range(len(rows)), rows)
    ax.grid(False)
    ax.tick_params(length=0)
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            if np.isfinite(values[i, j]):
                r, g, b, _ = colors((values[i, j] - limits[0]) / (limits[1] - limits[0]))
                dark = 0.3 * r + 0.59 * g + 0.11 * b < 0.5
                shown = text.format(values[i, j]).replace("-0.00", "0.00").replace("+0.00", "0")
                ax.text(j, i, shown, ha="center", va="center", fontsize=7.5, color="white" if dark else "#1a202c")
