"""What is wrong with a run, from its files: each finding with the numbers it rests on and the setting to change.

A rule yields findings; their titles and advice are in `findings.yaml`.
A rule speaks only where its evidence is plain. A run that reached its goal has no plateau, no low explained variance
and no entropy collapse, whatever its curves look like: they are what success looks like.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import yaml

from regimen.envs.metric import violation_of
from regimen.files import background
from regimen.files.listing import is_running
from regimen.files.sealed import reads
from regimen.reports.plots import LoggedRun, centred_average
from regimen.words import clock, score

FEW_ROWS = 12  # rows of a metric below which nothing is said of its course
FEW_EVALUATIONS = 8
SWING = 0.5  # share of the whole range that return has to fall, and rise again
SWINGS = 3
KL = 0.1  # an update that moves the policy further is large for any clip range in use
COLLAPSED = 0.05  # share of the first entropy
POOR_FIT = 0.1
BUDGETS = ("max_steps", "max_episodes", "max_seconds")  # why a run ended: nothing of it was left
LONG = 30.0  # seconds below which nothing is called slow


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    code: str
    level: str  # error | warning
    title: str
    evidence: str
    advice: str

    def lines(self) -> list[str]:
        return [f"{self.level}: {self.title} [{self.code}]", f"  seen  {self.evidence}", f"  try   {self.advice}"]


@cache
def texts() -> dict[str, dict[str, str]]:
    """Title and advice of every code."""
    return yaml.safe_load(Path(__file__).with_name("findings.yaml").read_text(encoding="utf-8"))


def finding(code: str, evidence: str, **names: object) -> Finding:
    """The finding of a code of `findings.yaml`, whose texts may mention `names`."""
    text = texts()[code]
    title, advice = text["title"].format(**names), text["advice"].format(**names)
    return Finding(code, text.get("level", "warning"), title, evidence, advice)


class TrainedRun(LoggedRun):
    """A run and the series that rules ask about."""

    @property
    def algo(self) -> dict[str, object]:
        settings = self.config.get("algo")
        return settings if isinstance(settings, dict) else {}

    def returns(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean returns of training by env steps."""
        return self.series("rollout/return_mean")

    @property
    def solved(self) -> bool:
        """Whether the run reached its goal: the environment's threshold, its target, or a rule of success."""
        s = self.summary
        if s.get("solved") or s.get("solved_at") is not None or s.get("converged"):
            return True
        goals = [g for g in (s.get("return_threshold"), self.target) if isinstance(g, (int, float))]
        best = max(self.series("eval/return_mean")[1], default=-math.inf)
        return bool(goals and best >= min(goals)) or (s.get("success_rate") or 0) >= 0.9

    def improvement(self) -> float:
        """Gain of the return from the first tenth to the last quarter, in units of the run's own noise and level."""
        _, y = self.returns()
        if len(y) < FEW_ROWS:
            return math.inf
        head, tail = y[: max(3, len(y) // 10)], y[-max(3, len(y) // 4) :]
        noise = max(float(np.std(np.diff(y))) / math.sqrt(2), 0.02 * abs(float(head.mean())), 1e-9)
        return float(tail.mean() - head.mean()) / noise


Rule = Callable[[TrainedRun], Iterator[Finding]]


@reads
def diagnose(run_dir: str | Path) -> list[Finding]:
    """What is wrong with a run, errors first; nothing where there is nothing, or too little to tell from."""
    run = TrainedRun(run_dir)
    return sorted((f for rule in RULES for f in rule(run)), key=lambda f: f.level != "error")


def to_dicts(findings: list[Finding]) -> list[dict[str, str]]:
    return [asdict(f) for f in findings]


def steps(x: float) -> str:
    return f"{int(x):,} env steps"


def not_finite(run: TrainedRun) -> Iterator[Finding]:
    if run.status.get("state") == "diverged" or run.summary.get("stop_reason") == "diverged":
        detail = run.summary.get("stop_detail") or run.status.get("stop_detail") or "an update was not finite"
        lr = run.algo.get("lr")
        rate = f"; algo.lr {lr:g}" if isinstance(lr, (int, float)) else ""
        yield finding("non_finite", f"{detail}{rate}", env=run.config.get("env"))


def no_end(run: TrainedRun) -> Iterator[Finding]:
    """Ended by an error, or by something that left it no time to say so."""
    state, at = run.status.get("state"), run.points[-1].get("env_steps", 0) if run.points else 0
    if state == "failed":
        error = run.status.get("error") or "an error that status.json does not name"
        yield finding("failed", f"{error}; {steps(at)} are logged", env=run.config.get("env"), run=run.path)
    elif state == "running" and not is_running(run.path):
        yield finding("killed", f"status.json says running, no process is; {steps(at)} are logged", run=run.path)


def incomplete(run: TrainedRun) -> Iterator[Finding]:
    """Curves, report or trackers that failed, or whose process is gone."""
    state = background.state_of(run.path, run.status, is_running(run.path))
    if state in ("failed", "missing"):
        why = (run.status.get("delivery") or {}).get("error") or "the process that was making them is gone"
        yield finding("incomplete", str(why), run=run.path)


def plateau(run: TrainedRun) -> Iterator[Finding]:
    """No better at the end than at the beginning, and flat."""
    x, y = run.returns()
    if len(y) < FEW_ROWS or run.solved or float(np.ptp(y)) == 0.0:
        return
    head, half = y[: max(3, len(y) // 10)], y[len(y) // 2 :]
    noise = max(float(np.std(np.diff(y))) / math.sqrt(2), 1e-9)
    slope = np.polyfit(np.linspace(0, 1, len(half)), half, 1)[0]
    flat = abs(slope) < max(2 * noise / math.sqrt(len(half)) * 2, 0.05 * abs(float(half.mean())))
    if not flat or run.improvement() > 1.0:
        return
    where = f"mean return {score(half.mean())} from {steps(x[len(y) // 2])} on, {score(head.mean())} at the beginning"
    code = "negative_plateau" if half.mean() < 0 else "plateau"
    yield finding(code, f"{where}; slope over the last half {slope:+.3g}")


def oscillation(run: TrainedRun) -> Iterator[Finding]:
    """Falls and rises by half of the range, again and again, also near the end."""
    x, y = run.series("eval/return_mean")
    what, noise = "evaluation return", evaluation_noise(run)
    if len(y) < FEW_EVALUATIONS:
        x, y = run.returns()
        what = "training return"
        if len(y) < 4 * FEW_ROWS:
            return
        noise, y = float(np.std(np.diff(y))), centred_average(y, max(3, len(y) // 20))
    span = float(np.ptp(y))
    if span < 0.25 * float(np.abs(y).max()):
        return
    turns = turning_points(y, max(SWING * span, 4 * noise))
    falls = [(a, b) for a, b in pairwise(turns) if y[b] < y[a]]
    if len(falls) < SWINGS or falls[-1][1] < 0.6 * len(y):
        return
    last = ", ".join(f"{score(y[a])} to {score(y[b])} at {steps(x[b])}" for a, b in falls[-3:])
    yield finding("oscillation", f"{len(falls)} falls of more than half of its range: {last}", what=what)


def evaluation_noise(run: TrainedRun) -> float:
    """Standard error of an evaluation's mean, as far as it is known."""
    std, episodes = run.series("eval/return_std")[1], run.series("eval/episodes")[1]
    return float(np.median(std) / math.sqrt(max(np.median(episodes), 1.0))) if len(std) and len(episodes) else 0.0


def turning_points(y: np.ndarray, size: float) -> list[int]:
    """Indices where a series turns after moving by at least `size`: highs and lows in turn."""
    if len(y) < 2 or size <= 0:
        return []
    high = low = 0
    turns: list[int] = []
    rising: bool | None = None
    for i in range(1, len(y)):
        high, low = (i if y[i] > y[high] else high), (i if y[i] < y[low] else low)
        if rising is not False and y[high] - y[i] >= size:
            turns.append(high)
            rising, low, high = False, i, i
        elif rising is not True and y[i] - y[low] >= size:
            turns.append(low)
            rising, high, low = True, i, i
    return turns + ([high] if rising else [low] if rising is False else [])


def streak_at_zero(run: TrainedRun) -> Iterator[Finding]:
    names = dict.fromkeys(k for p in run.points for k in p if k.endswith("_streak"))
    for name in names:
        x, y = run.series(name)
        short = name.rsplit("/", 1)[-1]
        goal = (run.config.get("stop") or {}).get(short)
        if len(y) >= FEW_EVALUATIONS and y.max() == 0 and goal:
            near = run.series(f"eval/{violation_of(run.metrics)}")[1]
            least = f"; conflicts per evaluation episode {score(near.min())} at best" if len(near) else ""
            evidence = f"0 in all {len(y)} evaluations up to {steps(x[-1])}, {goal} asked for{least}"
            yield finding("streak_at_zero", evidence, rule=short)


def entropy_collapse(run: TrainedRun) -> Iterator[Finding]:
    """Certain early, and no better for it."""
    x, y = run.series("train/entropy")
    if len(y) < FEW_ROWS or run.solved:
        return
    first = float(np.max(y[: max(2, len(y) // 20)]))
    smooth = centred_average(y, 3)
    low = smooth < COLLAPSED * first if first > 0 else smooth < first - 4.0
    if first <= 0.01 or not low[-max(2, len(y) // 10) :].all():
        return
    at = int(np.argmax(low))
    rx, ry = run.returns()
    after, before = ry[rx >= x[at]], ry[rx <= x[at]]
    if at > 0.6 * len(y) or not len(after) or not len(before):
        return
    span = max(float(np.ptp(ry)), 1e-9)
    if after[-max(1, len(after) // 4) :].mean() - before[-3:].mean() > 0.1 * span:
        return
    evidence = (
        f"entropy {first:.3g} at the start, {smooth[at]:.3g} at {steps(x[at])}, {y[-1]:.3g} at the end; return "
        f"{score(before[-3:].mean())} then, {score(after[-max(1, len(after) // 4) :].mean())} at the end"
    )
    yield finding("entropy_collapse", evidence)


def kl_spikes(run: TrainedRun) -> Iterator[Finding]:
    x, y = run.series("train/approx_kl")
    if len(y) < FEW_ROWS:
        return
    middle = float(np.median(y))
    spikes = np.flatnonzero(y > max(KL, 5 * middle))
    always = middle > KL
    if not always and len(spikes) < 3 and y.max() < 1.0:
        return
    worst = int(np.argmax(y))
    count = int((y > KL).sum()) if always else max(len(spikes), 1)
    evidence = (
        f"approximate KL above {max(KL, 0 if always else 5 * middle):.2g} in {count} of {len(y)} rows, median "
        f"{middle:.2g}, {y[worst]:.3g} at {steps(x[worst])}"
    )
    yield finding("kl_spikes", evidence)


def poor_critic(run: TrainedRun) -> Iterator[Finding]:
    x, y = run.series("train/explained_variance")
    if len(y) < FEW_ROWS or run.solved:
        return
    half = y[len(y) // 2 :]
    _, returns = run.returns()
    if float(np.median(half)) >= POOR_FIT or (len(returns) and float(np.ptp(returns[len(returns) // 2 :])) == 0.0):
        return
    since = f"median from {steps(x[len(y) // 2])} on; 1 is perfect, 0 no better than the mean"
    yield finding("low_explained_variance", f"explained variance {np.median(half):.2f} ({since})")


def budget_spent(run: TrainedRun) -> Iterator[Finding]:
    """Ended below the environment's threshold because the budget was spent, and not on a plateau."""
    s = run.summary
    if run.status.get("loop") == "own":  # its own program goes on with it
        return
    goal, reached, used = (s.get(name) for name in ("return_threshold", "eval_return_mean", "env_steps"))
    if not (isinstance(goal, (int, float)) and isinstance(reached, (int, float)) and isinstance(used, int)):
        return
    if s.get("stop_reason") not in BUDGETS or run.solved or any(plateau(run)):
        return
    evidence = f"evaluation return {score(reached)} of {goal:g}, at which the task is solved, after {steps(used)}"
    yield finding("budget_spent", evidence, run=run.path, more=4 * used)


def compile_bound(run: TrainedRun) -> Iterator[Finding]:
    total, compiling = run.summary.get("wall_seconds") or 0.0, run.summary.get("compile_seconds") or 0.0
    if total > LONG and compiling > 0.5 * total:
        yield finding("compile_bound", f"{clock(compiling)} of {clock(total)} compiling")


def slowing(run: TrainedRun) -> Iterator[Finding]:
    """Slower and slower, or memory that grows."""
    x, y = run.series("time/steps_per_second")
    wall = float(run.points[-1].get("wall_seconds") or 0.0) if run.points else 0.0
    if len(y) >= 4 * FEW_ROWS and wall > LONG:
        early, late = float(np.median(y[len(y) // 8 : len(y) // 2])), float(np.median(y[-len(y) // 6 :]))
        if late < 0.4 * early:
            since = f"{late:,.0f} from {steps(x[-len(y) // 6])} on"
            yield finding("slowing", f"{early:,.0f} steps/s in the first half, {since}")
    _, memory = run.series("time/memory_mb")
    if len(memory) >= 4 * FEW_ROWS:
        early, late = float(np.median(memory[len(memory) // 4 : len(memory) // 2])), float(memory[-3:].mean())
        grows = bool((np.diff(memory[:: max(1, len(memory) // 8)]) > 0).mean() > 0.8)
        if grows and late > 1.5 * early and late - early > 500:
            yield finding("memory_grows", f"{early:,.0f} MB in the second quarter, {late:,.0f} MB at the end")


def lag(run: TrainedRun) -> Iterator[Finding]:
    x, y = run.series("train/lag_mean")
    most = run.algo.get("max_lag")
    if len(y) < FEW_ROWS or not isinstance(most, (int, float)) or most <= 0:
        return
    _, dropped = run.series("train/dropped_batches")
    updates = float(run.points[-1].get("updates") or 1)
    share = float(dropped[-1]) / (updates + float(dropped[-1])) if len(dropped) else 0.0
    late = float(np.mean(y[len(y) // 2 :]))
    if share > 0.05 or late > 0.5 * most:
        dropout = f", {share:.0%} of the batches dropped" if share else ""
        evidence = f"mean lag {late:.1f} updates (algo.max_lag {most:g}){dropout} up to {steps(x[-1])}"
        yield finding("lag", evidence)


RULES: tuple[Rule, ...] = (
    not_finite,
    no_end,
    incomplete,
    plateau,
    oscillation,
    streak_at_zero,
    entropy_collapse,
    kl_spikes,
    poor_critic,
    budget_spent,
    compile_bound,
    slowing,
    lag,
)
