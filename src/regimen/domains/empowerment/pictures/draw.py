"""Everything that is drawn of a solved world: `plot_solution` writes it all to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.domains.empowerment.pictures.episodes import SolvedEpisode, bits, play
from regimen.domains.empowerment.pictures.scene import AgentMap, mean_by, scene_of, write_power
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.worlds.grid_map import STEPS
from regimen.reports.figure import CYCLE, GREY, INK, blank, headline, save, style
from regimen.reports.replay import write_gif

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

WALL, NEVER, FAINT = "#5c626e", "#edf0f4", 0.02
MARKS = {"still": "•", "pass": "•", "left": "↶", "right": "↷", "toggle": "T", "pickup": "P", "drop": "D"}
FRAMES_PER_SECOND = 2


def plot_solution(solution: Solution, folder: Path, name: str = "", seed: int = 0) -> list[Path]:
    """power.png, policy.png, views/power.json (for the live page), bits.png, episode.png and episode.gif, as far as the
    world has a map and can be drawn."""
    scene, episode = scene_of(solution.world), play(solution, seed)
    paths = []
    with style():
        if scene is not None:
            paths.append(save(power(solution, scene, name), folder / "power.png"))
            paths.append(save(policy(solution, scene, name), folder / "policy.png"))
            paths.append(write_power(folder, solution, scene, episode, name))
        paths.append(save(power_over_time(solution, episode, name), folder / "bits.png"))
        if hasattr(solution.world, "render"):
            frames = episode.frames()
            paths.append(save(film(episode, frames, name), folder / "episode.png"))
            write_gif(folder / "episode.gif", [*frames, frames[-1], frames[-1]], FRAMES_PER_SECOND)
            paths.append(folder / "episode.gif")
    return paths


def best_time(solution: Solution, scene: AgentMap) -> int:
    """The time at which agents can be in most cells, not in the last third: something can still be attained."""
    counts = []
    for t in range(max(1, 2 * len(solution.v_r) // 3)):
        places, _ = scene.power(solution, t)
        counts.append(sum(len(np.unique(column)) for column in places.T))
    return int(np.argmax(counts))


def power(solution: Solution, scene: AgentMap, name: str) -> Figure:
    """W_h by where that human stands, and by where the first robot does; means over all states that are possible."""
    world, time = solution.world, best_time(solution, scene)
    at, w = scene.power(solution, time)
    rows = [("its own", [world.robots + h for h in range(world.humans)]), ("the robot's", [0] * world.humans)]
    values = [[mean_by(at[:, a], w[:, h], len(scene.cells)) for h, a in enumerate(agents)] for _, agents in rows]
    low, high = np.nanmin(values), np.nanmax(values)
    (left, top), (right, bottom) = extent(scene)
    width, height = right - left, bottom - top
    shape = (2, world.humans) if width > 2 * height or world.humans > 1 else (1, 2)  # below each other, or side by side
    size = min(cell_size(width, shape[1]), 7.0 / (height * shape[0]))
    across = shape[1] * max(width * size + 0.5, 2.6) + 1.2
    figure = blank(across, shape[0] * (height * size + 0.6) + 0.4)
    axes = figure.subplots(*shape, squeeze=False).reshape(-1)
    images = []
    for ax, (what, h, cells) in zip(axes, [(rows[r][0], h, v) for r in range(2) for h, v in enumerate(values[r])]):
        base(ax, scene)
        images.append(paint(ax, scene, cells, low, high))
        start(ax, solution, scene)
        ax.set_title(f"Human {h}, by {what} cell" if world.humans > 1 else f"By {what} cell", fontsize=10)
    bar = figure.colorbar(images[-1], ax=list(axes), shrink=0.85, pad=0.02, aspect=30)
    bar.set_label("power, bits (log2 X)", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    when = "" if solution.stationary else f", time {time} of {len(solution.v_r)}"
    headline(figure, f"{name or 'Human power'}: mean over what is possible{when}", color="black")
    return figure


def cell_size(width: float, across: int) -> float:
    """Inches: small maps are drawn larger."""
    return float(np.clip(9.0 / (width * across), 0.45, 0.85))


def base(ax: Axes, scene: AgentMap) -> None:
    """Walls everywhere but on cells; y grows downwards."""
    (left, top), (right, bottom) = extent(scene)
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    ax.set_aspect("equal")
    ax.set_facecolor(WALL)
    ax.grid(False)
    ax.tick_params(length=0, labelsize=8)
    ax.set_xticks([x for x in range(scene.width) if left + 0.3 < x < right - 0.3])
    ax.set_yticks([y for y in range(scene.height) if top + 0.3 < y < bottom - 0.3])
    for side in ax.spines.values():
        side.set_visible(False)
    inside = {tuple(cell) for cell in scene.cells.tolist()}
    for x, y in inside:
        square(ax, x, y, NEVER)
    for (x, y), text in scene.labels.items():
        if (x, y) in inside:
            paper = {"boxstyle": "square,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.75}
            ax.text(x - 0.43, y - 0.4, text, ha="left", va="top", fontsize=6, color=INK, clip_on=True, bbox=paper)
        else:
            ax.text(x, y, text, ha="center", va="center", fontsize=7, color="white", clip_on=True)


def extent(scene: AgentMap) -> np.ndarray:
    """Upper left and lower right corner of what is drawn: the cells and a rim, not all of a wall around them."""
    points = np.concatenate([scene.cells, np.array(list(scene.labels)).reshape(-1, 2)])
    rim = np.array([(-0.7, -0.7), (0.7, 0.7)])
    whole = np.array([(-0.5, -0.5), (scene.width - 0.5, scene.height - 0.5)])
    corners = np.stack([points.min(0), points.max(0)]) + rim
    return np.clip(corners, whole[0], whole[1])


def square(ax: Axes, x: float, y: float, color: str | tuple[float, ...]) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, facecolor=color, edgecolor="none"))


def paint(ax: Axes, scene: AgentMap, values: np.ndarray, low: float, high: float) -> ScalarMappable:
    """A colour and a number in each cell that has a value."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    norm = Normalize(low, high if high > low else low + 1e-9)
    colors = matplotlib.colormaps["viridis"]
    for (x, y), value in zip(scene.cells, values):
        if np.isfinite(value):
            square(ax, x, y, colors(norm(value)))
            color = "white" if norm(value) < 0.6 else "black"
            ax.text(x, y + 0.27, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=color)
    return ScalarMappable(norm, colors)


def start(ax: Axes, solution: Solution, scene: AgentMap) -> None:
    """Who is where at the start: R and H with their numbers, where there are several."""
    world = solution.world
    for i, place in enumerate(scene.at(solution.table.states[0])):
        robot = i < world.robots
        several = (world.robots if robot else world.humans) > 1
        number = str(i if robot else i - world.robots) if several else ""
        x, y = scene.cells[place]
        color = "#2b6cb0" if robot else "#dd8a10"
        box = {"boxstyle": "square,pad=0.2" if robot else "circle,pad=0.2", "fc": color, "ec": "white", "lw": 0.8}
        label = ("R" if robot else "H") + number
        ax.text(x, y - 0.15, label, ha="center", va="center", fontsize=7, color="white", weight="bold", bbox=box)


def policy(solution: Solution, scene: AgentMap, name: str) -> Figure:
    """What each robot most likely does in each cell, and facing each way: states count as often as they occur in an
    episode. The rarer a place, the fainter its mark."""
    world = solution.world
    (left, top), (right, bottom) = extent(scene)
    size = cell_size(right - left, world.robots) * 1.2
    wide = world.robots * ((right - left) * size + 0.5) + 0.3
    figure = blank(max(wide, 5.5), (bottom - top) * size + 1.2)
    axes = figure.subplots(1, world.robots, squeeze=False)[0]
    does = usage(solution, scene)  # [R, P, 4, A]
    for r, ax in enumerate(axes):
        base(ax, scene)
        for (x, y), by_facing in zip(scene.cells, does[r]):
            for facing, mass in enumerate(by_facing):
                if mass.sum() > FAINT / 10:
                    mark(ax, (x, y), facing, mass, solution, scene)
        if not scene.faces:
            start(ax, solution, scene)
        ax.set_title(f"Robot {r}" if world.robots > 1 else "What the robot does")
    moves = [a for a in world.actions if MARKS.get(a)]
    key = ["arrow: forward" if scene.faces else "arrows: moves", *(f"{MARKS[a]} {a}" for a in moves)]
    where = "a mark lies on the side the robot faces" if scene.faces else "length and size: probability"
    figure.supxlabel(f"{',  '.join(key)}\n{where};  strong: often", fontsize=8, color=GREY)
    headline(figure, f"{name or 'Policy'}: over an episode", color="black")
    return figure


def usage(solution: Solution, scene: AgentMap) -> np.ndarray:
    """How often a robot in a place, facing a way, does something: expected times in an episode [R, P, 4, A]."""
    world, occupancy = solution.world, solution.occupancy()
    a = world.num_actions
    out = np.zeros((world.robots, len(scene.cells), 4, a))
    for t in range(len(occupancy) - 1):
        pi = np.nan_to_num(solution.pi_r[solution.layer(t)])
        states = solution.table.states[: len(pi)]
        at, facing = scene.at(states), scene.facing(states)
        mass = occupancy[t, : len(pi), None] * pi  # [S, A^R]
        for r in range(world.robots):
            by_action = mass.reshape(len(pi), a ** (world.robots - 1 - r), a, a**r).sum((1, 3))
            np.add.at(out[r], (at[:, r], facing[:, r]), by_action)
    return out


def mark(ax: Axes, cell: tuple[int, int], facing: int, mass: np.ndarray, solution: Solution, scene: AgentMap) -> None:
    """The most likely action of a robot that faces a way, or every move as long as it is likely."""
    actions = solution.world.actions
    often = float(np.clip(mass.sum() / 0.5, 0.18, 1.0))
    p, (x, y) = mass / mass.sum(), cell
    if not scene.faces:
        for name, (dx, dy) in scene.moves.items():
            length = 0.46 * p[actions.index(name)]
            arrow(ax, (x, y + 0.1), (x + dx * length, y + 0.1 + dy * length), often, head=length > 0.15)
        rest = p[actions.index("pass")]
        ax.scatter([x], [y + 0.1], s=140 * rest, color=INK, alpha=often, linewidths=0, zorder=5)
        return
    best = actions[int(p.argmax())]
    dx, dy = STEPS[facing]
    if best == "forward":
        arrow(ax, (x + 0.12 * dx, y + 0.12 * dy), (x + 0.46 * dx, y + 0.46 * dy), often)
    else:
        size = 8 if best in ("toggle", "pickup", "drop") else 11
        look = {"ha": "center", "va": "center", "fontsize": size, "color": INK, "alpha": often}
        ax.text(x + 0.31 * dx, y + 0.31 * dy, MARKS[best], **look)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], alpha: float, head: bool = True) -> None:
    kind = "-|>,head_width=0.18,head_length=0.32" if head else "-"
    look = {"arrowstyle": kind, "color": "#2b6cb0", "lw": 1.8, "alpha": alpha}
    ax.annotate("", end, start, arrowprops=look | {"shrinkA": 0, "shrinkB": 0})


def power_over_time(solution: Solution, episode: SolvedEpisode, name: str) -> Figure:
    """Bits over time: means over all that may happen with 10 to 90% of it, and those of one episode as dots."""
    figure = blank(9, 3.6)
    people, robot = figure.subplots(1, 2)
    occupancy, values = solution.occupancy(), bits(solution)
    steps = len(occupancy) - 1
    words = {"aggregate": "aggregate A (now)", "total": "total T (now and later)"}
    for (key, by_time), color in zip(values.items(), CYCLE[::-1] if len(values) > len(CYCLE) else CYCLE):
        ax = robot if key in words else people
        label = words.get(key, f"human {key[2:]}")
        rows = [by_time[solution.layer(t)] for t in range(steps)]
        chance = [occupancy[t, : len(row)] * ~solution.table.ended[: len(row)] for t, row in enumerate(rows)]
        spread = np.array([quantiles(row, p) for row, p in zip(rows, chance)])  # [T, 3] mean, 10%, 90%
        ax.fill_between(range(steps), spread[:, 1], spread[:, 2], color=color, alpha=0.15, linewidth=0)
        ax.plot(range(steps), spread[:, 0], color=color, linewidth=2, label=label)
        dots = [rows[t][s] for t, s in enumerate(episode.states[:-1])]
        ax.plot(range(len(dots)), dots, color=color, marker="o", markersize=3, linewidth=0.8, linestyle=":")
    for ax, title in ((people, "Power of each human"), (robot, "What the robot looks after")):
        ax.set_title(title)
        ax.set_xlabel("step")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(loc="best")
    people.set_ylabel("bits")
    note = "line: mean, band: 10 to 90%, dots: one episode"
    headline(figure, f"{name + ': ' if name else ''}{note}", size=9, color=GREY)
    return figure


def quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, float, float]:
    """Mean, 10% and 90% of a weighted sample; nan without any."""
    likely = weights > 0
    if not likely.any():
        return np.nan, np.nan, np.nan
    values, weights = values[likely], weights[likely] / weights[likely].sum()
    low, high = np.quantile(values, [0.1, 0.9], weights=weights, method="inverted_cdf")
    return float(values @ weights), float(low), float(high)


def film(episode: SolvedEpisode, frames: list[np.ndarray], name: str) -> Figure:
    """Pictures of an episode with what the robots did next, at most eighteen of them."""
    world = episode.solution.world
    keep = np.arange(0, len(frames), -(-len(frames) // 18))
    tall, wide = frames[0].shape[:2]
    across = int(np.clip(round(np.sqrt(len(keep) * tall / wide * 1.8)), 1, len(keep)))
    down = -(-len(keep) // across)
    size = float(np.clip(10 / across, 1.5, 2.2))
    figure = blank(across * size, down * (size * tall / wide + 0.35) + 0.3)
    axes = figure.subplots(down, across, squeeze=False).reshape(-1)
    for ax in axes:
        ax.set_axis_off()
    for ax, t in zip(axes, keep):
        ax.imshow(frames[t])
        acts = (
            [world.actions[int(a)] for a in episode.actions[t][: world.robots]] if t < len(episode.actions) else ["end"]
        )
        ax.set_title(f"{t}: {', '.join(acts)}", fontsize=8, weight="normal", pad=3)
    headline(figure, f"{name or 'Episode'}: the robot does what is most likely", color="black")
    return figure
