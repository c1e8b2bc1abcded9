"""What is wrong with a run, from its files: each finding with the numbers it rests on and the setting to change.

A rule speaks only where its evidence is plain. A run that reached its goal has no plateau, no low explained variance
and no entropy collapse, whatever its curves look like: they are what success looks like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from regimen.envs.metric import violation_of
from regimen.files.storage import read_json
from regimen.reports.plots import Run, centred_average
from regimen.words import clock, score

FEW_ROWS = 12  # rows of a metric below which nothing is said of its course
FEW_EVALUATIONS = 8
SWING = 0.5  # share of the whole range that return has to fall, and rise again
SWINGS = 3
KL = 0.1  # an update that moves the policy further is large for any clip range in use
COLLAPSED = 0.05  # share of the first entropy
POOR_FIT = 0.1
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


class Record(Run):
    """A run and the series that rules ask about."""

    def __post_init__(self):
        super().__post_init__()
        self.status = read_json(self.path / "status.json")

    @property
    def algo(self) -> dict[str, object]:
        settings = self.config.get("algo")
        return settings if isinstance(settings, dict) else {}

    def returns(self) -> tuple[np.ndarray, np.ndarray]:
        """Of training, by env steps."""
        return self.series("rollout/return_mean")

    @property
    def solved(self) -> bool:
        """It reached what it was to reach: the environment's threshold, its target, or a rule of success."""
        s = self.summary
        if s.get("solved") or s.get("solved_at") is not None or s.get("converged"):
            return True
        goals = [g for g in (s.get("return_threshold"), self.target) if isinstance(g, (int, float))]
        best = [p["eval/return_mean"] for p in self.points if isinstance(p.get("eval/return_mean"), (int, float))]
        return bool(goals and best and max(best) >= min(goals)) or (s.get("success_rate") or 0) >= 0.9

    def improved(self) -> float:
        """Gain of the return from the first tenth to the last quarter, in units of the run's own noise and level."""
        _, y = self.returns()
        if len(y) < FEW_ROWS:
            return math.inf
        head, tail = y[: max(3, len(y) // 10)], y[-max(3, len(y) // 4) :]
        noise = max(float(np.std(np.diff(y))) / math.sqrt(2), 0.02 * abs(float(head.mean())), 1e-9)
        return float(tail.mean() - head.mean()) / noise


Rule = Callable[[Record], Iterator[Finding]]


def diagnose(run_dir: str | Path) -> list[Finding]:
    """What is wrong with a run, errors first; nothing where there is nothing, or too little to tell from."""
    run = Record(Path(run_dir))
    findings = [finding for rule in RULES for finding in rule(run)]
    return sorted(findings, key=lambda f: f.level != "error")


def to_dicts(findings: list[Finding]) -> list[dict[str, str]]:
    return [asdict(f) for f in findings]


def steps(x: float) -> str:
    return f"{int(x):,} env steps"


# --- rules -----------------------------------------------------------------------------------------------------------


def not_finite(run: Record) -> Iterator[Finding]:
    if run.status.get("state") == "diverged" or run.summary.get("stop_reason") == "diverged":
        detail = run.summary.get("stop_detail") or run.status.get("stop_detail") or "an update was not finite"
        lr = run.algo.get("lr")
        yield Finding(
            "non_finite",
            "error",
            "training diverged",
            f"{detail}" + (f"; algo.lr {lr:g}" if isinstance(lr, (int, float)) else ""),
            "a lower algo.lr (a third of it), a lower algo.max_grad_norm, algo.normalize_obs; "
            f"`regimen check-env {run.config.get('env')}` finds observations that are not finite",
        )


def plateau(run: Record) -> Iterator[Finding]:
    """No better at the end than at the beginning, and flat."""
    x, y = run.returns()
    if len(y) < FEW_ROWS or run.solved or float(np.ptp(y)) == 0.0:
        return
    head, half = y[: max(3, len(y) // 10)], y[len(y) // 2 :]
    noise = max(float(np.std(np.diff(y))) / math.sqrt(2), 1e-9)
    slope = np.polyfit(np.linspace(0, 1, len(half)), half, 1)[0]
    flat = abs(slope) < max(2 * noise / math.sqrt(len(half)) * 2, 0.05 * abs(float(half.mean())))
    if not flat or run.improved() > 1.0:
        return
    negative = half.mean() < 0
    where = f"mean return {score(half.mean())} from {steps(x[len(y) // 2])} on, {score(head.mean())} at the beginning"
    yield Finding(
        "negative_plateau" if negative else "plateau",
        "warning",
        "the return stays negative and does not improve" if negative else "the return does not improve",
        f"{where}; slope over the last half {slope:+.3g}",
        "more exploration (algo.ent_coef times 3), another algo.lr (a third, or three times), more experience per "
        "update (rollout.episodes or rollout.steps); where a penalty outweighs the goal (rollout/reward/*), "
        "algo.reward.weights",
    )


def oscillation(run: Record) -> Iterator[Finding]:
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
    shown = ", ".join(f"{score(y[a])} to {score(y[b])} at {steps(x[b])}" for a, b in falls[-3:])
    yield Finding(
        "oscillation",
        "warning",
        f"the {what} swings",
        f"{len(falls)} falls of more than half of its range: {shown}",
        "a lower algo.lr or algo.lr_schedule linear, more experience per update (rollout.episodes), fewer algo.epochs "
        "or a smaller algo.clip_eps; policy/ keeps the best one meanwhile",
    )


def evaluation_noise(run: Record) -> float:
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


def streak_at_zero(run: Record) -> Iterator[Finding]:
    names = dict.fromkeys(k for p in run.points for k in p if k.endswith("_streak"))
    for name in names:
        x, y = run.series(name)
        short = name.rsplit("/", 1)[-1]
        asked = (run.config.get("stop") or {}).get(short)
        if len(y) >= FEW_EVALUATIONS and y.max() == 0 and asked:
            near = run.series(f"eval/{violation_of(run.metrics)}")[1]
            least = f"; conflicts per evaluation episode {score(near.min())} at best" if len(near) else ""
            yield Finding(
                "streak_at_zero",
                "warning",
                f"{short} never left 0",
                f"0 in all {len(y)} evaluations up to {steps(x[-1])}, {asked} asked for{least}",
                f"stop.{short} asks for all evaluation episodes at once: fewer eval.episodes, stop.band_steps with "
                "stop.band_share, or a larger budget; for fewer conflicts weigh them more (algo.reward.weights)",
            )


def entropy_collapse(run: Record) -> Iterator[Finding]:
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
    yield Finding(
        "entropy_collapse",
        "warning",
        "the policy became certain early and stopped improving",
        f"entropy {first:.3g} at the start, {smooth[at]:.3g} at {steps(x[at])}, {y[-1]:.3g} at the end; return "
        f"{score(before[-3:].mean())} then, {score(after[-max(1, len(after) // 4) :].mean())} at the end",
        "a larger algo.ent_coef, algo.ent_floor_discrete or algo.ent_floor_continuous, a lower algo.lr, fewer "
        "algo.epochs",
    )


def kl_spikes(run: Record) -> Iterator[Finding]:
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
    yield Finding(
        "kl_spikes",
        "warning",
        "updates move the policy too far",
        f"approximate KL above {max(KL, 0 if always else 5 * middle):.2g} in {count} of {len(y)} rows, median "
        f"{middle:.2g}, {y[worst]:.3g} at {steps(x[worst])}",
        "a lower algo.lr, algo.target_kl 0.02 (ends an update early), fewer algo.epochs, larger algo.minibatch_size, a "
        "smaller algo.max_grad_norm",
    )


def poor_critic(run: Record) -> Iterator[Finding]:
    x, y = run.series("train/explained_variance")
    if len(y) < FEW_ROWS or run.solved:
        return
    half = y[len(y) // 2 :]
    _, returns = run.returns()
    if float(np.median(half)) >= POOR_FIT or (len(returns) and float(np.ptp(returns[len(returns) // 2 :])) == 0.0):
        return
    yield Finding(
        "low_explained_variance",
        "warning",
        "the critic does not predict returns",
        f"explained variance {np.median(half):.2f} (median from {steps(x[len(y) // 2])} on; 1 is perfect, 0 no better "
        "than the mean)",
        "more experience per update (rollout.episodes or rollout.steps), a wider network.hidden, "
        "algo.normalize_reward, algo.normalize_obs, a lower algo.gamma; rewards that depend on what is "
        "not observed need network.memory gru",
    )


def compile_bound(run: Record) -> Iterator[Finding]:
    total, compiling = run.summary.get("wall_seconds") or 0.0, run.summary.get("compile_seconds") or 0.0
    if total > LONG and compiling > 0.5 * total:
        yield Finding(
            "compile_bound",
            "warning",
            "most of the time went into compiling",
            f"{clock(compiling)} of {clock(total)} compiling",
            "run it again (the compilation cache keeps programs; `regimen doctor` says where), a longer budget, fewer "
            "different shapes: the same rollout and network settings from run to run",
        )


def slowing(run: Record) -> Iterator[Finding]:
    """Slower and slower, or memory that grows."""
    x, y = run.series("time/steps_per_second")
    wall = float(run.points[-1].get("wall_seconds") or 0.0) if run.points else 0.0
    if len(y) >= 4 * FEW_ROWS and wall > LONG:
        early, late = float(np.median(y[len(y) // 8 : len(y) // 2])), float(np.median(y[-len(y) // 6 :]))
        if late < 0.4 * early:
            yield Finding(
                "slowing",
                "warning",
                "training became slower",
                f"{early:,.0f} steps/s in the first half, {late:,.0f} from {steps(x[-len(y) // 6])} on",
                "longer episodes cost more per update with rollout.episodes: use rollout.steps; another process on "
                "this machine; an environment that keeps more and more (time/memory_mb)",
            )
    _, memory = run.series("time/memory_mb")
    if len(memory) >= 4 * FEW_ROWS:
        early, late = float(np.median(memory[len(memory) // 4 : len(memory) // 2])), float(memory[-3:].mean())
        grows = bool((np.diff(memory[:: max(1, len(memory) // 8)]) > 0).mean() > 0.8)
        if grows and late > 1.5 * early and late - early > 500:
            yield Finding(
                "memory_grows",
                "warning",
                "memory grows while it trains",
                f"{early:,.0f} MB in the second quarter, {late:,.0f} MB at the end",
                "an environment that keeps what it saw: look at its reset; a smaller algo.buffer_size or "
                "rollout.num_envs",
            )


def lag(run: Record) -> Iterator[Finding]:
    x, y = run.series("train/lag_mean")
    most = run.algo.get("max_lag")
    if len(y) < FEW_ROWS or not isinstance(most, (int, float)) or most <= 0:
        return
    _, dropped = run.series("train/dropped_batches")
    updates = float(run.points[-1].get("updates") or 1)
    share = float(dropped[-1]) / (updates + float(dropped[-1])) if len(dropped) else 0.0
    late = float(np.mean(y[len(y) // 2 :]))
    if share > 0.05 or late > 0.5 * most:
        yield Finding(
            "lag",
            "warning",
            "the policy that acts is far behind the one that learns",
            f"mean lag {late:.1f} updates (algo.max_lag {most:g})"
            + (f", {share:.0%} of the batches dropped" if share else "")
            + f" up to {steps(x[-1])}",
            "fewer engine.workers or a shorter engine.queue, larger algo.minibatch_size or fewer algo.epochs (a faster "
            "learner), a larger rollout.steps; algo.correction vtrace where it is off",
        )


RULES: tuple[Rule, ...] = (
    not_finite,
    plateau,
    oscillation,
    streak_at_zero,
    entropy_collapse,
    kl_spikes,
    poor_critic,
    compile_bound,
    slowing,
    lag,
)
CODES = (
    "non_finite",
    "negative_plateau",
    "plateau",
    "oscillation",
    "streak_at_zero",
    "entropy_collapse",
    "kl_spikes",
    "low_explained_variance",
    "compile_bound",
    "slowing",
    "memory_grows",
    "lag",
)
