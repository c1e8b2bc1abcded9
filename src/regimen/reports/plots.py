"""PNG curves of a run, read from its files: `plot_run` for one run, `plot_group` for the seeds of one setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from regimen.envs.metric import Metric, from_table
from regimen.errors import RegimenError, StorageError
from regimen.files.console import component_sums
from regimen.files.run_dir import RunFiles, read_episodes, read_metrics, read_status, read_summary
from regimen.files.sealed import reads
from regimen.files.storage import require_own
from regimen.reports import figure as kit
from regimen.statistics import bootstrap_band
from regimen.words import count, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS, LINE = 4000, 1500  # most points drawn per scatter and per line: more cannot be seen
WEIGHT, CURRICULUM = "train/weight/", "train/curriculum/"
Curve = tuple[np.ndarray, np.ndarray]  # x and y


class LoggedRun:
    """What the plots read of one run directory."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.config = RunFiles.open(self.path).config
        self.points = read_metrics(self.path)
        self.summary = read_summary(self.path)
        self.status = read_status(self.path)

    @cached_property
    def episodes(self) -> dict[str, np.ndarray]:
        return read_episodes(self.path)

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """What the environment declares of its metrics; empty for a run of an older version."""
        return from_table(self.status.get("metrics"))

    def series(self, name: str, x: str = "env_steps") -> Curve:
        """x and y of every point that has the metric."""
        rows = [(p[x], p[name]) for p in self.points if is_number(p.get(name)) and is_number(p.get(x))]
        table = np.array(rows, np.float64).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def names_below(self, prefix: str) -> list[str]:
        """What follows `prefix` in the names of the metrics, in the order in which they were first logged."""
        names = dict.fromkeys(k for p in self.points for k in p if k.startswith(prefix))
        return [name.removeprefix(prefix) for name in names]

    @property
    def title(self) -> str:
        parts = [self.config.get("env"), str(self.config.get("algorithm") or "").upper()]
        return " · ".join([str(p) for p in parts if p] + [f"seed {self.config.get('seed', 0)}"])

    @property
    def target(self) -> float | None:
        value = (self.config.get("stop") or {}).get("target_return", self.summary.get("target_return"))
        return float(value) if is_number(value) else None

    @property
    def window(self) -> int:
        value = (self.config.get("stop") or {}).get("convergence_window")
        return int(value) if isinstance(value, int) and value > 0 else 100


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number, and no flag."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and bool(np.isfinite(value))


def moving_average(y: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` values at each position, of all of them where there are fewer."""
    return _averages(y, window - 1, 0)


def centred_average(y: np.ndarray, window: int) -> np.ndarray:
    """Mean of the values within half a window on both sides, so that a smooth curve does not lag."""
    return _averages(y, window // 2, window // 2)


def _averages(y: np.ndarray, before: int, after: int) -> np.ndarray:
    """Mean of each value with so many before and after it, as far as there are."""
    total, at = np.concatenate([[0.0], np.cumsum(y, dtype=np.float64)]), np.arange(len(y))
    start, end = np.maximum(0, at - before), np.minimum(len(y), at + after + 1)
    return (total[end] - total[start]) / (end - start)


def thin(limit: int, *arrays: np.ndarray) -> list[np.ndarray]:
    """At most about `limit` evenly spaced positions of every array, the last one always among them."""
    n = len(arrays[0])
    if n <= limit:
        return list(arrays)
    keep = np.unique(np.linspace(0, n - 1, limit).round().astype(int))
    return [a[keep] for a in arrays]


Draw = Callable[["Axes", LoggedRun], bool]  # draws one plot and says whether there was anything to draw


def draw_return(ax: Axes, run: LoggedRun) -> bool:
    x, y = run.series("rollout/return_mean")
    window, kind = min(10, max(1, len(y) // 10)), "updates"
    episodes = run.episodes
    if len(episodes.get("return", ())) and "env_steps" in episodes:
        finite = np.isfinite(episodes["return"])
        x, y = episodes["env_steps"][finite].astype(float), episodes["return"][finite]
        window, kind = min(run.window, max(1, len(y) // 5)), "episodes"
    if len(y):
        dots = thin(DOTS, x, y)
        few = len(dots[0]) < 1000
        ax.scatter(*dots, s=7 if few else 3, color=kit.BLUE, alpha=0.25 if few else 0.15, linewidths=0)
        label = f"training ({window} {kind})" if window > 1 else "training"
        ax.plot(*thin(LINE, x, moving_average(y, window)), color=kit.BLUE, linewidth=2, label=label)
    evaluations = _evaluations(ax, run, "evaluation ± std", 0.18)
    if not len(y) and not len(evaluations[1]):
        return False
    _target(ax, run)
    finish(ax, "Return", "episode return", legend=True)
    return True


def _evaluations(ax: Axes, run: LoggedRun, label: str, alpha: float, band: str | None = None) -> Curve:
    """Draw the mean of each evaluation with the deviation of its episodes, and return the means."""
    x, mean = run.series("eval/return_mean")
    at, std = run.series("eval/return_std")
    if len(mean) and np.array_equal(at, x):
        ax.fill_between(x, mean - std, mean + std, color=kit.ORANGE, alpha=alpha, linewidth=0, label=band)
    if len(mean):
        ax.plot(x, mean, color=kit.ORANGE, linewidth=2, marker="o", markersize=3.5, label=label)
    return x, mean


def _range(ax: Axes, run: LoggedRun, low: str, high: str, x: np.ndarray, color: str, alpha: float) -> None:
    """Fill what lies between two metrics, where they were logged whenever x was."""
    (at, lowest), (_, highest) = run.series(low), run.series(high)
    if np.array_equal(at, x) and len(highest) == len(x):
        at, lowest, highest = thin(LINE, x, lowest, highest)
        ax.fill_between(at, lowest, highest, color=color, alpha=alpha, linewidth=0, label="min to max")


def draw_evaluation(ax: Axes, run: LoggedRun) -> bool:
    x, mean = run.series("eval/return_mean")
    if not len(mean):
        return False
    _range(ax, run, "eval/return_min", "eval/return_max", x, kit.ORANGE, 0.1)
    _evaluations(ax, run, "mean", 0.22, "± std")
    best = int(np.argmax(mean))
    ax.plot(x[best], mean[best], marker="*", markersize=13, color=kit.ORANGE, markeredgecolor="white", linestyle="none")
    episodes = run.series("eval/episodes")[1]
    of = f" of {int(episodes[-1])} greedy episodes" if len(episodes) else ""
    _target(ax, run)
    finish(ax, f"Evaluation: best {score(mean[best])}", f"return{of}", legend=True)
    return True


def draw_explained_variance(ax: Axes, run: LoggedRun) -> bool:
    x, y = run.series("train/explained_variance")
    if not len(y):
        return False
    ax.axhline(1.0, color=kit.GREY, linewidth=1, linestyle=":")
    heads = run.names_below("train/explained_variance/")
    for name, (color, dash) in _colored(run, heads):
        at, fit = run.series(f"train/explained_variance/{name}")
        smooth = centred_average(fit, _window(fit))
        ax.plot(*thin(LINE, at, smooth), color=color, linestyle=dash, linewidth=1, alpha=0.6, label=name)
    _line(ax, x, y, kit.INK if heads else kit.GREEN, "-", "total" if heads else None)
    low = float(np.quantile(y, 0.02))
    ax.set_ylim(min(-0.05, max(low, -2.0)), 1.05)  # a bad first update may be far below; it would flatten the rest
    finish(ax, "Explained variance of the critic", "1 = perfect, 0 = the mean", legend=bool(heads))
    return True


def draw_component(ax: Axes, run: LoggedRun, name: str, color: str) -> None:
    """Draw one component in its own scale: the mean of the episodes, and their lowest and highest."""
    metric = f"rollout/reward/{name}"
    x, mean = run.series(metric)
    _range(ax, run, f"{metric}_min", f"{metric}_max", x, color, 0.15)
    _line(ax, x, mean, color, "-", "mean")
    finish(ax, name, "sum per episode")


def draw_components(ax: Axes, run: LoggedRun) -> bool:
    """Draw the mean episode sum of each reward component; nothing when there is only one."""
    names = _components(run)
    for name, stroke in _colored(run, names):
        _line(ax, *run.series(f"rollout/reward/{name}"), *stroke, name)
    if names:
        ax.axhline(0.0, color=kit.GREY, linewidth=1, linestyle=":")
        finish(ax, "Reward components", "sum per episode", legend=True)
    return bool(names)


def _named_lines(title: str, ylabel: str, prefix: str) -> Draw:
    """Return what draws a line for each metric of a prefix."""

    def draw(ax: Axes, run: LoggedRun) -> bool:
        names = run.names_below(prefix)
        for name, (color, dash) in _colored(run, names):
            x, y = run.series(prefix + name)
            if prefix == CURRICULUM:  # a setting jumps
                ax.step(*thin(LINE, x, y), color=color, linestyle=dash, linewidth=1.8, where="post", label=name)
            else:
                _line(ax, x, y, color, dash, name)
        if names and prefix == WEIGHT:
            ax.set_ylim(0.0, min(1.02, 1.25 * ax.get_ylim()[1]))
        if names:
            finish(ax, title, ylabel, legend=True)
        return bool(names)

    return draw


def _components(run: LoggedRun) -> list[str]:
    """Reward components with episode sums; none when there is only one."""
    names = list(component_sums({f"rollout/reward/{name}": 0.0 for name in run.names_below("rollout/reward/")}))
    return names if len(names) > 1 else []


def _colored(run: LoggedRun, names: Sequence[str]) -> list[tuple[str, tuple[str, str]]]:
    """Names with a colour and a line style; a reward component has the same ones in every plot."""
    order = [name for name in _components(run) if name in names]
    order += [name for name in names if name not in order]
    return list(zip(order, kit.strokes(len(order))))


def _window(y: np.ndarray) -> int:
    return max(1, min(len(y) // 20, 200))


def _line(ax: Axes, x: np.ndarray, y: np.ndarray, color: str, dash: str = "-", label: str | None = None) -> None:
    """The values faint, their average over neighbours strong."""
    window = _window(y)
    if window > 1:
        ax.plot(*thin(LINE, x, y), color=color, linewidth=0.8, alpha=0.25)
    marker = "o" if len(y) == 1 else None
    ax.plot(
        *thin(LINE, x, centred_average(y, window)),
        color=color,
        linestyle=dash,
        linewidth=1.8,
        label=label,
        marker=marker,
    )


def _axes_of(title: str, *lines: tuple[str, str, str]) -> Draw:
    """Return what draws one metric (name, label, colour) on the left axis and a second one on the right."""

    def draw(ax: Axes, run: LoggedRun) -> bool:
        curves = [(run.series(name), label, color) for name, label, color in lines]
        curves = [curve for curve in curves if len(curve[0][1])]
        for i, ((x, y), label, color) in enumerate(curves):
            axis = ax if i == 0 else ax.twinx()
            _line(axis, x, y, color)
            axis.set_ylabel(label, color=color)
            axis.tick_params(axis="y", labelcolor=color)
            if i:
                axis.grid(False)
                axis.spines["right"].set_visible(True)
            low, high = np.quantile(y, [0.005, 0.995])  # one spike must not hide the rest
            if len(y) >= 50 and high > low:
                margin = 0.08 * (high - low)
                axis.set_ylim(low - margin, high + margin)
        if curves:
            finish(ax, title)
        return bool(curves)

    return draw


_LOSSES = ("train/policy_loss", "policy loss", kit.BLUE), ("train/value_loss", "value loss", kit.ORANGE)
_CHANGES = ("train/approx_kl", "approximate KL", kit.PURPLE), ("train/clip_fraction", "clip fraction", kit.ORANGE)
PLOTS: dict[str, Draw] = {
    "return": draw_return,
    "evaluation": draw_evaluation,
    "losses": _axes_of("Losses", *_LOSSES),
    "entropy": _axes_of("Policy entropy", ("train/entropy", "entropy (nats)", kit.GREEN)),
    "kl": _axes_of("Policy change per update", *_CHANGES),
    "explained_variance": draw_explained_variance,
    "components": draw_components,
    "weights": _named_lines("Component weights", "weight (sum 1)", WEIGHT),
    "entropy_parts": _named_lines("Entropy by part of the action", "nats per element", "train/entropy/"),
    "curriculum": _named_lines("Curriculum", "value in use", CURRICULUM),
}


def _target(ax: Axes, run: LoggedRun) -> None:
    if run.target is not None:
        ax.axhline(run.target, color=kit.GREY, linewidth=1.2, linestyle="--", label=f"target {run.target:g}")


def finish(ax: Axes, title: str, ylabel: str | None = None, legend: bool = False) -> None:
    """Put title and labels on axes whose x are environment steps."""
    from matplotlib.ticker import MaxNLocator

    ax.set_title(title)
    ax.set_xlabel("env steps")
    ax.xaxis.set_major_locator(MaxNLocator(6))
    kit.step_axis(ax)
    ax.set_xlim(left=0)
    ax.margins(x=0.02)
    if ylabel:
        ax.set_ylabel(ylabel)
    if legend:
        kit.legend(ax)


@reads
def plot_run(run_dir: Path) -> list[Path]:
    """Every plot that has data, and a page of them (`overview.png`), in `<run_dir>/plots`."""
    require_own(Path(run_dir))
    run = LoggedRun(run_dir)
    folder = run.path / "plots"
    paths: list[Path] = []
    with kit.style():
        for name, draw in PLOTS.items():
            figure = kit.blank(7, 4)
            if draw(figure.subplots(), run):
                if name == "components":  # each in its own scale; the overview has them side by side
                    figure = component_grid(run)
                kit.signature(figure, run.title)
                paths.append(kit.save(figure, folder / f"{name}.png"))
        if paths:
            names = [name for name in PLOTS if folder / f"{name}.png" in paths]
            paths.append(kit.save(overview(run, names), folder / "overview.png"))
    return paths


def overview(run: LoggedRun, names: Sequence[str]) -> Figure:
    """Draw these plots side by side."""
    rows = max(2, -(-len(names) // 3))
    figure = kit.blank(14, 3.6 * rows)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1, hspace=0.06, wspace=0.04)
    for name, ax in zip(names, kit.panels(figure, len(names), 3, rows)):
        PLOTS[name](ax, run)
        if ax.get_legend() is not None:
            kit.legend(ax, 8)
            if len(ax.get_legend_handles_labels()[1]) >= kit.CROWDED:  # it stands beside its axes
                figure.set_figwidth(17)
    kit.headline(figure, describe(run), size=13)
    return figure


@reads
def figure_of(run_dir: Path) -> Figure:
    """Draw every plot of a run that has data as one figure, and write nothing."""
    run = LoggedRun(run_dir)
    with kit.style():
        names = [name for name, draw in PLOTS.items() if draw(kit.blank(7, 4).subplots(), run)]
        if not names:
            raise StorageError(f"nothing to plot: {run.path} has logged nothing")
        return overview(run, names)


def component_grid(run: LoggedRun) -> Figure:
    """Draw every reward component on axes of its own."""
    names = _components(run)
    across = min(3, len(names)) if len(names) != 4 else 2
    figure = kit.blank(max(7, 3.6 * across), 0.4 + 2.6 * -(-len(names) // across))
    axes = kit.panels(figure, len(names), across)
    for ax, (name, (color, _)) in zip(axes, _colored(run, names)):
        draw_component(ax, run, name, color)
    axes[0].legend(loc="best", fontsize=8)
    return figure


def describe(run: LoggedRun) -> str:
    """Say what a run was and what came of it, in a line."""
    text, summary = run.title, run.summary
    mean = summary.get("eval_return_mean")
    std = summary.get("eval_return_std")
    if is_number(mean):
        text += f":  evaluation {score(mean)}" + (f" ± {score(std)}" if is_number(std) else "")
        if is_number(summary.get("eval_episodes")):
            text += f" over {int(summary['eval_episodes'])} episodes"
    if is_number(summary.get("env_steps")) and is_number(summary.get("wall_seconds")):
        text += f",  {count(summary['env_steps'])} steps in {summary['wall_seconds']:.0f} s"
    return text


def plot_group(dirs: Sequence[Path], out: Path) -> Path:
    """Write the figure of a group as a PNG file `out` (or `return.png` in it)."""
    out = Path(out)
    with kit.style():
        return kit.save(group_figure(dirs), out if out.suffix.lower() == ".png" else out / "return.png")


def group_figure(dirs: Sequence[Path]) -> Figure:
    """Draw the mean return over the runs (seeds) with its 95% bootstrap band.

    The curves are the evaluations, or the training returns where a run has none. A run that stopped early keeps its
    last value, because a converged run is finished, not failed.
    """
    runs = [LoggedRun(d) for d in dirs]
    name = "eval/return_mean" if all(len(r.series("eval/return_mean")[0]) for r in runs) else "rollout/return_mean"
    curves = [curve for r in runs if len((curve := r.series(name))[0])]
    if not curves:
        raise StorageError(f"nothing to plot: none of the {len(runs)} runs has logged a return")
    grid, values = on_a_grid(curves)
    with kit.style():
        figure = kit.blank(7, 4)
        ax = figure.subplots()
        for x, y in curves:
            ax.plot(*thin(LINE, x, y), color=kit.BLUE, linewidth=0.9, alpha=0.25)
        if len(curves) > 1:
            low, high = bootstrap_band(values, n=1000)
            ax.fill_between(grid, low, high, color=kit.BLUE, alpha=0.2, linewidth=0, label="95% bootstrap interval")
        ax.plot(grid, values.mean(0), color=kit.BLUE, linewidth=2.2, label=f"mean of {len(curves)} seeds")
        _target(ax, runs[0])
        kind = "evaluation return" if name.startswith("eval/") else "training return"
        finish(ax, runs[0].title.rsplit(" · ", 1)[0], kind, legend=True)
    return figure


def on_a_grid(curves: Sequence[Curve]) -> Curve:
    """200 places from where the first curve begins to where the last one ends, and the curves there [curves, 200]. A
    curve that ends earlier keeps its last value."""
    grid = np.linspace(min(x[0] for x, _ in curves), max(x[-1] for x, _ in curves), 200)
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])


def try_plot_run(run_dir: Path) -> tuple[list[Path], str | None]:
    """`plot_run` for the end of a training run: a failure is a line to show, not the end of the run."""
    try:
        return plot_run(run_dir), None
    except RegimenError as error:
        return [], str(error)
