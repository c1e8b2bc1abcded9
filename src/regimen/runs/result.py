"""The end of a run: its summary and the last word of its status; the statistics of a group; what Python is handed
back."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regimen import errors
from regimen.envs.metric import Metric, from_table
from regimen.errors import ConfigError, RegimenError
from regimen.files.console import Console
from regimen.files.run_dir import read_episodes, read_metrics, read_status
from regimen.files.sealed import write_sealed
from regimen.files.storage import Json
from regimen.policies.evaluate import interval
from regimen.policies.policy import Policy, load_policy
from regimen.reports.plots import figure_of, group_figure
from regimen.runs.delivery import PENDING, deliver_group
from regimen.runs.learner import Learner
from regimen.runs.stopping import WORDS
from regimen.statistics import bootstrap_interval, iqm
from regimen.words import count, notebook_table, plural, score

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclasses.dataclass
class Result:
    """What came of a run that has finished or was interrupted.

    Args:
        run_dir: the run directory, from which everything else is read.
        summary: the contents of its `summary.json`.
        exit_code: what the command line would exit with; 0 where all went well.
        runs: one result for each seed, where there are several.
    """

    run_dir: Path
    summary: Json
    exit_code: int = 0
    runs: list[Result] = dataclasses.field(default_factory=list)

    def message(self) -> Json:
        """What another process is told of it: see `of_message`."""
        return {"run_dir": str(self.run_dir), "summary": self.summary, "exit_code": self.exit_code}

    @classmethod
    def of_message(cls, message: Json, process: str = "") -> Result:
        """The result that another process tells of; an error that it had is raised here, too."""
        if "error" in message:
            raise getattr(errors, message["kind"], RegimenError)(process + message["error"])
        return cls(Path(message["run_dir"]), message["summary"], message["exit_code"])

    @property
    def stop_reason(self) -> str | None:
        """What ended the run, such as `max_steps` or `converged`."""
        return self.summary.get("stop_reason")

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """What the environment declares of its metrics, by name."""
        path = self.runs[0].run_dir if self.runs else self.run_dir
        return from_table(read_status(path).get("metrics"))

    @cached_property
    def history(self) -> list[Json]:
        """Every logged point, in order."""
        return read_metrics(self.run_dir)

    @cached_property
    def episodes(self) -> dict[str, np.ndarray]:
        """One entry per finished episode: columns of episodes.csv."""
        return read_episodes(self.run_dir)

    @cached_property
    def policy(self) -> Policy:
        """The best policy by evaluation."""
        return load_policy(self.run_dir)

    def plot(self) -> Figure:
        """The curves of the run as a matplotlib figure; of several seeds, their mean with its interval."""
        figure = group_figure([run.run_dir for run in self.runs]) if self.runs else figure_of(self.run_dir)
        show_in_notebooks(type(figure))
        return figure

    def to_pandas(self) -> DataFrame:
        """Every logged point as a row of a pandas table; of several seeds, with a column `seed`."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("to_pandas needs pandas: pip install pandas") from error
        if not self.runs:
            return pandas.DataFrame(self.history)
        rows = [{"seed": run.summary.get("seed")} | row for run in self.runs for row in run.history]
        return pandas.DataFrame(rows)

    def _repr_html_(self) -> str:
        """What a notebook shows: what came of the run, and where it is."""
        s = self.summary
        mean, std = s.get("eval_return_mean"), s.get("eval_return_std")
        steps = s.get("env_steps")
        facts = {
            "evaluation return": None if mean is None else score(mean) + ("" if std is None else f" ± {score(std)}"),
            "solved": s.get("solved"),
            "env steps": ", ".join(map(count, steps if isinstance(steps, list) else [steps or 0])),
            "seconds": s.get("wall_seconds"),
            "stopped": s.get("stop_detail") or s.get("stop_reason") or ", ".join(map(str, s.get("stop_reasons", ()))),
            "run directory": self.run_dir,
        }
        return notebook_table(f"{s.get('env')} with {s.get('algo')}", facts)


def show_in_notebooks(figure: type[Figure]) -> None:
    """Let a notebook draw figures, which it else does only once somebody has drawn one with pyplot."""
    interactive: Any = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is None:
        return
    formatters = shell.display_formatter.formatters
    if not any(figure in formatters[kind].type_printers for kind in ("image/png", "image/svg+xml")):
        importlib.import_module("IPython.core.pylabtools").select_figure_formats(shell, {"png"})


def settle(learner: Learner, compile_seconds: float, exit_code: int = 0) -> Result:
    """Write the summary and the last word of status.json."""
    summary = learner.summary(compile_seconds)
    learner.describe_policy(summary)
    if exit_code == 0:
        state = "diverged" if learner.diverged else "finished"
        learner.checkpoints.end(learner.ledger.counters.steps)
        learner.files.summary(summary)
        why = {"stop_reason": summary["stop_reason"], "stop_detail": summary["stop_detail"]}
        learner.files.status(state=state, **why, delivery=PENDING)
    return Result(learner.path, summary, exit_code)


def announce(summary: Json, threshold: float | None, console: Console) -> None:
    """What came of a run, in two lines."""
    best, final = summary["eval_return_mean"], summary["final_return_mean"]
    text = f"evaluation over {summary['eval_episodes']} new episodes: "
    text += f"best policy {best:.1f} ± {summary['eval_return_std']:.1f}"
    if summary["best_checkpoint"] not in (None, summary["env_steps"]):
        text += f" (from step {summary['best_checkpoint']:,}), "
        text += f"final policy {final:.1f} ± {summary['final_return_std']:.1f}"
    if threshold is not None:
        text += f"; {'solved' if summary['solved'] else 'not solved'} (threshold {threshold:g})"
    console.event(text)
    console.event(
        f"{summary['env_steps']:,} steps, {plural(summary['updates'], 'update')}, "
        f"{plural(summary['episodes'], 'episode')} in "
        f"{summary['wall_seconds']:.1f} s ({summary['compile_seconds']:.1f} s compiling); "
        f"{summary['steps_per_second']:,.0f} steps/s"
    )


def group_result(path: Path, results: list[Result], console: Console, wait: bool = True) -> Result:
    """Mean, interquartile mean and 95% bootstrap interval over seeds, in summary.json of the group. `wait`: with the
    group's picture and report."""
    code = max(r.exit_code for r in results)
    summary: Json = {name: results[0].summary[name] for name in ("env", "algo")}
    for name, of_run in (("seeds", "seed"), ("stop_reasons", "stop_reason"), ("env_steps", "env_steps")):
        summary[name] = [r.summary[of_run] for r in results]
    evaluated = [r.summary for r in results if "eval_return_mean" in r.summary]
    if evaluated:
        scores = np.array([s["eval_return_mean"] for s in evaluated])
        solved = [s["solved"] for s in evaluated]
        summary |= {
            "eval_return_means": scores.tolist(),
            "eval_return_mean": float(scores.mean()),
            "eval_return_mean_ci95": interval(bootstrap_interval(scores, np.mean)),
            "eval_return_std": float(scores.std()),
            "eval_return_iqm": float(iqm(scores)),
            "eval_return_iqm_ci95": interval(bootstrap_interval(scores, iqm)),
            "solved": None if solved[0] is None else sum(map(bool, solved)),
        }
    write_sealed(path / "summary.json", summary)
    if evaluated:
        between = summary["eval_return_iqm_ci95"]
        within = f" (95% interval {between[0]:.1f} to {between[1]:.1f})" if between else ""
        console.event(
            f"{len(evaluated)} seeds: evaluation return mean {summary['eval_return_mean']:.1f}, "
            f"IQM {summary['eval_return_iqm']:.1f}{within}"
            + ("" if summary["solved"] is None else f"; {summary['solved']} solved")
        )
        for line in deliver_group(path, [r.run_dir for r in results]).lines if wait else ():
            console.event(line)
    console.event(f"run directories {path}/seed-*")
    if code == 0:
        reasons = Counter(map(str, summary["stop_reasons"])).most_common()
        counted = (f"{WORDS.get(reason, reason)} ({plural(count, 'seed')})" for reason, count in reasons)
        console.event("stopped: " + ", ".join(counted))
    return Result(path, summary, code, results)
