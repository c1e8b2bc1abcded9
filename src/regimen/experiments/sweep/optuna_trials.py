"""The Optuna study of a sweep: an SQLite file that numbers the trials, keeps their settings and prunes hopeless ones.

Trial n of the study is trial n of the sweep. A trial that a kill left in the state RUNNING is taken up again under its
own number; none is ever added in its place.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regimen.errors import ConfigError
from regimen.experiments.sweep.space import DATABASE, Draw, Scalar, SweepPlan
from regimen.experiments.sweep.trials import TrialResult

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

NAME = "sweep"
STARTUP = 5  # trials that are never pruned


def require_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "sweep: Optuna is not installed; `pip install 'regimen[sweep]'`, or sweep numbers of algo on a native "
            "environment only, which needs nothing"
        )


class OptunaStudy:
    """Optuna behind a small face."""

    def __init__(self, folder: Path, plan: SweepPlan):
        require_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna, self.plan, path = optuna, plan, folder / DATABASE
        lower = plan.objectives.values() or [plan.lower]
        ways = optuna.study.StudyDirection
        directions = [ways.MINIMIZE if one else ways.MAXIMIZE for one in lower]
        if not path.exists():  # made completely or not at all
            fresh = path.with_name(f".{DATABASE}.{os.getpid()}.tmp")
            fresh.unlink(missing_ok=True)
            optuna.create_study(storage=url(fresh), study_name=NAME, directions=directions)
            os.replace(fresh, path)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP) if plan.prune else optuna.pruners.NopPruner()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = make_sampler(plan)
        self.study = optuna.load_study(study_name=NAME, storage=url(path), sampler=sampler, pruner=pruner)

    def trials(self) -> dict[int, FrozenTrial]:
        """Number -> frozen trial, of all that were begun."""
        return {t.number: t for t in self.study.get_trials(deepcopy=False)}

    def running(self, n: int) -> bool:
        return self.trials()[n].state == self.optuna.trial.TrialState.RUNNING

    def ask(self) -> Trial:
        """A new trial; its number is the next."""
        return self.study.ask()

    def take_up(self, n: int) -> Trial:
        """A trial that was begun and not told."""
        return self.optuna.trial.Trial(self.study, self.trials()[n]._trial_id)

    def point(self, trial: Trial) -> dict[str, object]:
        """The settings of a trial; one that is taken up again keeps those it had."""
        grid = self.plan.grid.items()
        point = {key: values[trial.suggest_categorical(key, list(range(len(values))))] for key, values in grid}
        return point | {key: suggest(trial, key, draw) for key, draw in self.plan.random.items()}

    def tell(self, n: int, result: TrialResult) -> None:
        """The result of a trial, once."""
        if not self.running(n):
            return
        states, value = self.optuna.trial.TrialState, result.get("value")
        values = list(result.get("objectives", {}).values()) if self.plan.objectives else value
        if result["state"] == "finished" and value is not None and values != []:
            self.study.tell(n, values)
        else:
            self.study.tell(n, state=states.PRUNED if result["state"] == "pruned" else states.FAIL)


class Pruning:
    """A callback that reports evaluations and stops a trial that does worse than the median of the others: True ends
    the run. `together` seeds train side by side and are reported as their mean; of others, the first is."""

    evaluations_only = True

    def __init__(self, trial: Trial, metric: str, together: int):
        self.trial, self.metric, self.together = trial, metric, together
        self.values: dict[int, dict[int, float]] = {}  # update -> seed -> value
        self.first: int | None = None
        self.pruned = False

    def __call__(self, info: dict[str, Any]) -> bool:
        value = (info["eval_metrics"] or {}).get(self.metric)
        self.first = info["seed"] if self.first is None else self.first
        if self.pruned or value is None or (self.together == 1 and info["seed"] != self.first):
            return self.pruned
        values = self.values.setdefault(info["update"], {})
        values[info["seed"]] = value
        if len(values) == self.together:
            self.trial.report(sum(values.values()) / len(values), info["update"])
            self.pruned = bool(self.trial.should_prune())
        return self.pruned


def make_sampler(plan: SweepPlan) -> BaseSampler:
    """Points of the plan by the trial's number; with `tpe`, what is drawn is chosen by the results so far."""
    import optuna

    class PlanSampler(optuna.samplers.TPESampler):
        def infer_relative_search_space(self, study, trial):
            space = super().infer_relative_search_space(study, trial) if plan.sampler == "tpe" else {}
            return {name: distribution for name, distribution in space.items() if name not in plan.grid}

        def sample_independent(self, study, trial, param_name, param_distribution):
            if plan.sampler == "tpe" and param_name not in plan.grid:
                return super().sample_independent(study, trial, param_name, param_distribution)
            value = plan.draw(trial.number)[param_name]
            return plan.grid[param_name].index(value) if param_name in plan.grid else value

    return PlanSampler(seed=plan.draw_seed)


def suggest(trial: Trial, key: str, draw: Draw) -> Scalar:
    if draw.kind == "choice":
        return trial.suggest_categorical(key, list(draw.choices))
    if draw.kind in ("int", "logint"):
        return trial.suggest_int(key, int(-(-draw.low // 1)), int(draw.high), log=draw.logarithmic)
    return trial.suggest_float(key, draw.low, draw.high, log=draw.logarithmic)


def url(path: Path) -> str:
    return f"sqlite:///{path.resolve()}"
