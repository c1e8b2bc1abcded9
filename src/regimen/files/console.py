"""What a person sees while a run trains: a live panel on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from regimen.words import clock, count, number, plural, score

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import ConsoleOptions, RenderableType, RenderResult
    from rich.live import Live
    from rich.table import Table as RichTable

    from regimen.engines.base import WorkerRow

Point = Mapping[str, float]  # a logged row
LINE_SECONDS = 0.5  # a pipe gets at most one batch line in this time
WORKERS_SECONDS = 30.0  # and one line about its workers in this
MANY_WORKERS = 16  # the panel shows so many, those in trouble first
TWO_DIGITS, IN_A_ROW = "{:.2f}".format, "{:g} in a row".format
LOSSES = ("loss", "train/loss", number), ("entropy", "train/entropy", TWO_DIGITS)
_WEIGHT, _SUM = "train/weight/", "rollout/reward/"
_COUNTER = {"steps": "env_steps", "episodes": "episodes", "updates": "updates"}


def focus(point: Point) -> str | None:
    """The reward component that weighs most: `goal(0.43)`; `all(0.25)` where they weigh alike."""
    weights = {name: w for name, w in point.items() if name.startswith(_WEIGHT)}
    if not weights:
        return None
    if len(weights) > 1 and max(weights.values()) - min(weights.values()) < 1e-6:
        return f"all({max(weights.values()):.2f})"
    name = max(weights, key=lambda n: weights[n])
    return f"{name.removeprefix(_WEIGHT)}({weights[name]:.2f})"


def component_sums(point: Point) -> dict[str, float]:
    """Mean episode sum of every reward component, by its name."""
    sums = {name.removeprefix(_SUM): x for name, x in point.items() if name.startswith(_SUM)}
    bands = {f"{name}{end}" for name in sums for end in ("_min", "_max")}
    return {name: x for name, x in sums.items() if name not in bands}


def whole(value: float) -> str:
    return str(int(value))


def texts(point: Point, *figures: tuple[str, str, Callable[[float], str]]) -> list[tuple[str, str]]:
    """Label and text of each of (label, metric, how to write it) that the point has."""
    return [(label, write(point[name])) for label, name, write in figures if name in point]


def batch_line(
    point: Point, ma: float | None, best: float | None, stages: Sequence[str] = (), progress: Sequence[str] = ()
) -> str:
    """`Batch 12 | R 187.4 (MA 150.2, best 201.0) | loss 0.123 | entropy 0.56 | episodes 10 | success 0.60`, and
    `| focus goal(0.43)` where the reward has components.

    `ma` and `best` are the moving average and the best of R so far; `stages` and `progress` are the algorithm's, see
    `learning`. What the point lacks is left out.
    """
    parts = [("Batch", str(point.get("updates", 0)))]
    if "rollout/return_mean" in point:
        R = point["rollout/return_mean"]
        so_far = f"MA {score(R if ma is None else ma)}, best {score(R if best is None else best)}"
        parts.append(("R", f"{score(R)} ({so_far})"))
    parts += texts(point, *LOSSES) + learning(point, stages, progress)
    parts += texts(point, ("episodes", "rollout/episodes", whole), ("success", "rollout/success_rate", TWO_DIGITS))
    parts += [("focus", component)] if (component := focus(point)) else []
    return " | ".join(map(" ".join, parts))


def learning(point: Point, stages: Sequence[str], progress: Sequence[str]) -> list[tuple[str, str]]:
    """What only some algorithms log, as labels and texts: the stage with its name in `stages`, such as `5 (ramp)`, and
    the metrics named by `progress`."""
    out = []
    if "train/stage" in point:
        now = int(point["train/stage"])
        out.append(("stage", f"{now} ({stages[now]})" if 0 <= now < len(stages) else str(now)))
    return out + [(name, number(point[f"train/{name}"])) for name in progress if f"train/{name}" in point]


def eval_line(point: Point) -> str:
    """`Eval 12 | R 480.1 ± 5.2 | length 480 | episodes 10`, and the success rate when there is one."""
    spread = f" ± {score(point['eval/return_std'])}" if "eval/return_std" in point else ""
    parts = [("Eval", str(point.get("updates", 0))), ("R", score(point["eval/return_mean"]) + spread)]
    parts += texts(
        point,
        ("length", "eval/length_mean", "{:.0f}".format),
        ("episodes", "eval/episodes", whole),
        ("success", "eval/success_rate", TWO_DIGITS),
        ("no conflict", "zero_conflict_streak", IN_A_ROW),
        ("perfect", "perfect_streak", IN_A_ROW),
        ("good bands", "good_bands", IN_A_ROW),
    )
    return " | ".join(map(" ".join, parts))


def worker_text(row: WorkerRow) -> str:
    """`0 collecting 1.2k/s`, its restarts where there were any, and how long it has been silent."""
    parts = [f"{row['worker']} {row['state']} {count(round(row['steps_per_second']))}/s"]
    if row["restarts"]:
        parts.append(plural(row["restarts"], "restart"))
    if row["heartbeat_age"] >= 5:
        parts.append(f"silent {row['heartbeat_age']:.0f} s")
    return ", ".join(parts)


def memory_mb() -> float:
    """Memory this process holds now (its peak where there is no /proc)."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


class Console:
    """`quiet` prints nothing; `live` forces the panel on or off (by default: on a terminal); `trace` prints every batch
    line; `ma` is how many R's the moving average covers."""

    def __init__(
        self,
        quiet: bool = False,
        live: bool | None = None,
        trace: bool = False,
        ma: int = 20,
        file: TextIO | None = None,
    ):
        self._file = file
        self.quiet = quiet
        self.trace = trace
        self.live = is_terminal(self._stream()) if live is None else live
        self._returns: deque[float] = deque(maxlen=max(1, ma))
        self._best: float | None = None
        self._ma: float | None = None  # as of the last row in which an episode ended
        self._pending: str | None = None  # the last batch line that the pipe's pace held back
        self._last_line = float("-inf")
        self._last_workers = time.monotonic()
        self._stages: Sequence[str] = ()
        self._progress: Sequence[str] = ()
        self._panel: _Panel | None = None
        self._display: Live | None = None

    def _stream(self) -> TextIO:
        return self._file or sys.stdout

    def header(self, lines: list[str]) -> None:
        for line in lines:
            self._print(line)

    def start(self, total: int | None, unit: str, stages: Sequence[str] = (), progress: Sequence[str] = ()) -> None:
        """Begin a run; `total` counts `steps`, `episodes` or `updates`, None when there is no such budget. `stages` and
        `progress` are the algorithm's, see `learning`."""
        self._stages, self._progress = stages, progress
        if not self.live or self.quiet:
            return
        try:
            from rich.console import Console as RichConsole
            from rich.live import Live

            self._panel = _Panel(total, unit, stages, progress)
            console = RichConsole(file=self._file, highlight=False)
            self._display = Live(self._panel, console=console, refresh_per_second=4)
            self._display.start()
        except (OSError, ValueError):
            self._broken()

    def update(self, point: Point) -> None:
        """A logged point: its batch line, and its evaluation line when it has one."""
        if self.quiet:
            return
        if "rollout/return_mean" in point:
            R = float(point["rollout/return_mean"])
            self._returns.append(R)
            self._best = R if self._best is None else max(R, self._best)
            self._ma = point.get("rollout/return_ma", sum(self._returns) / len(self._returns))
        if self._panel is not None:
            self._panel.update(point, self._ma, self._best)
        if self._panel is None or self.trace:
            self._pending = batch_line(point, self._ma, self._best, self._stages, self._progress)
            if self.trace or time.monotonic() - self._last_line >= LINE_SECONDS:
                self._flush()
        if "eval/return_mean" in point:
            self._print(eval_line(point))

    def workers(self, rows: list[WorkerRow]) -> None:
        """The state of each worker: rows of the panel, or a line from time to time."""
        now = time.monotonic()
        if self._panel is not None:
            self._panel.workers = rows
        elif now - self._last_workers >= WORKERS_SECONDS:
            self._last_workers = now
            self._print("Workers | " + " | ".join(map(worker_text, rows)))

    def event(self, text: str) -> None:
        self._print(text)

    def stop(self) -> None:
        """End the panel of a run that is over: it stays with its last values, a line held back is printed."""
        self._flush()
        self._close_panel()

    def _close_panel(self) -> None:
        display, self._display, self._panel = self._display, None, None
        if display is not None:
            with contextlib.suppress(OSError, ValueError):
                display.stop()

    def _flush(self) -> None:
        line, self._pending = self._pending, None
        if line is not None:
            self._last_line = time.monotonic()
            self._print(line)

    def _print(self, text: str) -> None:
        if self.quiet:
            return
        try:
            if self._display is not None:
                self._display.console.print(text, markup=False, highlight=False)
                return
            stream = self._stream()
            try:
                stream.write(text + "\n")
            except UnicodeEncodeError:
                stream.write(text.replace("±", "+/-").encode("ascii", "replace").decode() + "\n")
            stream.flush()
        except (OSError, ValueError):  # the reader has gone (`| head`), or the stream was closed
            self._broken()

    def _broken(self) -> None:
        """Print no more; training goes on. What Python would flush at exit goes nowhere instead of failing."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):
            if self._file is None:
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, sys.stdout.fileno())
                os.close(devnull)
        self._close_panel()


class _Panel:
    """The live panel; rich renders it four times a second, so its clock moves also while an update compiles."""

    def __init__(self, total: int | None, unit: str, stages: Sequence[str] = (), progress: Sequence[str] = ()):
        self.total = total
        self.unit = unit
        self.stages = stages
        self.progress_names = progress
        self.started = time.monotonic()
        self.point: dict[str, float] = {}  # the last value of everything logged
        self.ma: float | None = None
        self.best: float | None = None
        self.evaluated = 0  # the update of the last evaluation
        self.returns: deque[float] = deque(maxlen=40)
        self.workers: list[WorkerRow] = []
        self._marks: deque[tuple[float, float]] = deque(maxlen=60)  # (time, done) of recent points, for the time left

    def update(self, point: Point, ma: float | None, best: float | None) -> None:
        self.ma, self.best = ma, best
        self.point = {**self.point, **point}
        if "eval/return_mean" in point:
            self.evaluated = point.get("updates", 0)
        if "rollout/return_mean" in point:
            self.returns.append(float(point["rollout/return_mean"]))
        now = time.monotonic()
        if not self._marks or now - self._marks[-1][0] >= 1:
            self._marks.append((now, self.done()))

    def done(self) -> float:
        return float(self.point.get(_COUNTER.get(self.unit, self.unit), 0))

    def seconds_left(self) -> float | None:
        if self.total is None or not self._marks:
            return None
        since, first = self._marks[0]
        rate = (self.done() - first) / max(time.monotonic() - since, 1e-9)
        return (self.total - self.done()) / rate if rate > 0 else None

    def figures(self) -> list[tuple[str, str]]:
        """Label and value, four to a row; what was never logged is not shown."""
        values: dict[str, Any] = {"average": self.ma, "best": self.best, "focus": focus(self.point)}
        values |= self.point | {"memory": self.point.get("time/memory_mb") or memory_mb()}
        values = {name: value for name, value in values.items() if value is not None}
        return [
            *texts(values, ("return", "rollout/return_mean", score), ("average", "average", score)),
            *texts(values, ("best", "best", score), ("success", "rollout/success_rate", TWO_DIGITS), *LOSSES),
            *learning(values, self.stages, self.progress_names),
            *texts(
                values,
                ("KL", "train/approx_kl", partial(number, digits=4)),
                ("expl. var.", "train/explained_variance", TWO_DIGITS),
                ("steps/s", "time/steps_per_second", count),
                ("updates", "updates", count),
                ("episodes", "episodes", count),
                ("memory", "memory", "{:,.0f} MB".format),
                ("focus", "focus", str),
            ),
        ]

    def progress(self) -> str:
        done, seconds = self.done(), self.seconds_left()
        text = f"{count(done)} {self.unit}"
        if self.total:
            text = f"{min(1.0, done / self.total):.0%}  {count(done)} / {count(self.total)} {self.unit}"
        text += f"  {clock(time.monotonic() - self.started)}"
        if not self.point:
            return text + "  compiling"
        return text if seconds is None else f"{text}  {clock(seconds)} left"

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Column, Table
        from rich.text import Text

        done = self.done()
        progress = Table.grid(Column(ratio=1), Column(justify="right", no_wrap=True), padding=(0, 2), expand=True)
        pulse = not (self.total and done)
        bar = ProgressBar(total=self.total or 100, completed=min(done, self.total or 0), pulse=pulse)
        progress.add_row(bar, self.progress())
        across = 4 if options.max_width >= 80 else 2
        pair = {"style": "dim", "no_wrap": True}, {"min_width": 9, "no_wrap": True}
        figures = Table.grid(*(Column(**style) for style in pair * across), padding=(0, 1))
        cells = self.figures()
        for i in range(0, len(cells), across):
            figures.add_row(*(text for pair in cells[i : i + across] for text in pair))
        parts: list[RenderableType] = [progress, figures]
        if "eval/return_mean" in self.point:
            evaluation = eval_line({**self.point, "updates": self.evaluated}).removeprefix("Eval ")
            parts.append(Text.assemble(("evaluation at update ", "dim"), evaluation))
        if sums := component_sums(self.point):
            text = ", ".join(f"{name} {score(x)}" for name, x in sums.items())
            parts.append(Text.assemble(("components ", "dim"), text, no_wrap=True, overflow="ellipsis"))
        if len(self.returns) > 1:
            parts.append(Text.assemble(("returns ", "dim"), (sparkline(self.returns), "green")))
        if self.workers:
            parts.append(self.worker_table())
        yield Panel(Group(*parts), title="training", title_align="left", border_style="dim")

    def worker_table(self) -> RichTable:
        from rich.table import Column, Table

        names = ("worker", "state", "steps", "steps/s", "heartbeat", "restarts", "waiting for")
        sides = [Column(justify="left" if n in ("state", "waiting for") else "right", no_wrap=True) for n in names]
        table = Table.grid(*sides, padding=(0, 2))
        table.add_row(*names, style="dim")
        rows = sorted(self.workers, key=lambda r: (-r["heartbeat_age"] // 5, -r["restarts"], r["worker"]))
        for row in sorted(rows[:MANY_WORKERS], key=lambda r: r["worker"]):
            steps, speed = count(row["env_steps"]), count(round(row["steps_per_second"]))
            age, restarts = f"{row['heartbeat_age']:.0f} s ago", str(row["restarts"])
            table.add_row(str(row["worker"]), row["state"], steps, speed, age, restarts, row["waiting_for"])
        return table


def sparkline(values) -> str:
    """Values as a row of block characters, lowest to highest."""
    values = list(values)
    low, high = min(values), max(values)
    scale = 7 / (high - low) if high > low else 0.0
    return "".join("▁▂▃▄▅▆▇█"[round((v - low) * scale)] for v in values)
