"""Learned against exact: what a run of `--algo empowerment` believes of every reachable state and time, beside the
solution of the equations."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from regimen import trees
from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import bind_algorithm
from regimen.config import layers as settings
from regimen.config.regimen import resolve
from regimen.config.schema import TrainConfig
from regimen.domains.empowerment import reach
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.learner.algorithm import Empowerment
from regimen.domains.empowerment.learner.binding import solution_of
from regimen.domains.empowerment.learner.targets import NetValues
from regimen.domains.empowerment.pictures.draw import plot_solution
from regimen.domains.empowerment.solution import Solution
from regimen.envs import registry
from regimen.errors import UsageError
from regimen.files.checkpoint import Checkpoints
from regimen.files.run_dir import read_config
from regimen.files.sealed import reading
from regimen.files.storage import require_own, write_json
from regimen.reports.figure import GREY, picture
from regimen.reports.table import Table
from regimen.types import Array, PyTree

GAP = 0.01  # of log(-Q_r), from which on the best action counts as better than the others
CSV_COLUMNS = ("state", "time", "quantity", "of", "learned", "exact")


@dataclass(frozen=True)
class LearnedAndExact:
    """Learned and exact values of the same P pairs of state and time."""

    state: np.ndarray  # [P] numbers of states
    time: np.ndarray  # [P]
    learned: dict[str, np.ndarray]  # v_h_e [P, H, G], x_h [P, H], u_r [P], q_r [P, AR], pi_r [P, AR], v_r [P]
    exact: dict[str, np.ndarray]
    visits: np.ndarray  # [P] how likely the exact robot and its humans come there


@dataclass(frozen=True)
class Validation:
    """The comparison of a run with the exact solution: both sides, and how far apart they are."""

    run: str
    env: str
    beta_r: float
    pairs: LearnedAndExact
    numbers: dict[str, float]
    out: Path
    report: dict[str, Any] | None = None  # how far the exact side converged, where it is a stationary solution

    def to_dict(self) -> dict[str, object]:
        exact = {} if self.report is None else {f"exact_{k}": self.report[k] for k in ("converged", "residual")}
        return {"run": self.run, "env": self.env, "pairs": len(self.pairs.time), **exact, **self.numbers}

    def lines(self) -> list[str]:
        """The table that `regimen validate` prints."""
        n = self.numbers
        rows = [
            ("V_r at the start", f"{n['v_r_start']:.6g}", f"exact {n['v_r_start_exact']:.6g}"),
            ("  relative error", f"{n['v_r_start_error']:.3%}", ""),
            ("V_r, relative error", f"{n['v_r_error_mean']:.3%}", f"most {n['v_r_error_max']:.3%}"),
            ("Q_r, relative error", f"{n['q_r_error_mean']:.3%}", f"most {n['q_r_error_max']:.3%}"),
            ("beta_r x error of log Q ratios", f"{n['log_ratio_rmse']:.4f}", f"most {n['log_ratio_max']:.4f}"),
            ("total variation of pi_r", f"{n['tv_mean']:.4f}", f"most {n['tv_max']:.4f}"),
            ("  weighted by visits", f"{n['tv_visits']:.4f}", "of the exact robot and its humans"),
            ("same best action", f"{n['argmax_agreement']:.1%}", f"of {n['argmax_rows']:.0f} with a gap"),
            ("V_h^e, error", f"{n['v_h_e_error_mean']:.2g}", f"most {n['v_h_e_error_max']:.2g}"),
            ("X_h, relative error", f"{n['x_h_error_mean']:.3%}", f"most {n['x_h_error_max']:.3%}"),
        ]
        if self.report is not None:
            word = "converged" if self.report["converged"] else "NOT CONVERGED: what follows compares with no solution"
            rows.insert(0, ("exact side, residual", f"{self.report['residual']:.1e}", word))
        what = "reachable states" if self.report is not None else "reachable states with time, the final time left out"
        head = f"{self.env}: {len(self.pairs.time):,} {what}; beta_r {self.beta_r:g}"
        return [head, *(f"  {a:<32}{b:>12}  {c}" for a, b, c in rows)]


@jax.jit
def look(algo: Empowerment, params: PyTree, states: Array, times: Array) -> NetValues:
    """What networks say of states at times."""
    rows = algo.bound.model.rows({"state": states, "time": times})
    return algo.values(params, rows, algo.config.beta_r)


def compare(algo: Empowerment, params: PyTree, solution: Solution, number: int | None = None) -> LearnedAndExact:
    """What networks with these parameters (by network) say where the solution has values. `number`: which map of a
    family the solution is of."""
    state, time = solution.moments()
    states = solution.table.states
    if number is not None:
        states = np.concatenate([states, np.full((len(states), 1), number, states.dtype)], 1)

    values = in_pieces(lambda at: look(algo, params, states[state[at]], time[at].astype(np.int32)), len(state))
    learned = {
        "v_h_e": values.v_h_e,
        "x_h": np.exp(values.log_x),
        "u_r": -np.exp(values.log_u),
        "q_r": -np.exp(values.log_q),
        "pi_r": np.exp(values.log_pi),
        "v_r": -np.exp(values.log_v),
    }
    learned = {name: np.asarray(x, np.float64) for name, x in learned.items()}
    there = solution.occupancy()
    visits = there[:-1].sum(0)[state] if solution.stationary else there[time, state]
    return LearnedAndExact(state, time, learned, {name: solution.column(name) for name in learned}, visits)


def in_pieces(look: Callable[[np.ndarray], NetValues], count: int, size: int = 4096) -> NetValues:
    """Look at many rows, a piece of one shape at a time, in float64 on the host."""
    size = min(size, 1 << (count - 1).bit_length())
    parts = []
    for start in range(0, count, size):
        at = np.minimum(np.arange(start, start + size), count - 1)
        rows = min(size, count - start)
        parts.append(jax.tree.map(lambda x, n=rows: np.asarray(x, np.float64)[:n], look(at)))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def measure(pairs: LearnedAndExact, beta_r: float) -> dict[str, float]:
    """The numbers of a comparison. Q_r next to a certain end is the same for all; it counts as any other."""
    learned, right = pairs.learned, pairs.exact

    def relative(name: str) -> np.ndarray:
        return np.abs(learned[name] - right[name]) / np.abs(right[name])

    possible = np.isfinite(right["q_r"])  # actions that are allowed
    log_error = np.where(possible, np.log(learned["q_r"] / np.where(possible, right["q_r"], -1.0)), np.nan)
    ratio = beta_r * (log_error[:, :, None] - log_error[:, None, :])
    ratio = ratio[:, ~np.eye(ratio.shape[1], dtype=bool)] if ratio.shape[1] > 1 else ratio.reshape(len(ratio), -1)
    tv = 0.5 * np.abs(learned["pi_r"] - right["pi_r"]).sum(1)
    agree, rows = agreement(learned["q_r"], right["q_r"])
    start = int(np.flatnonzero((pairs.time == 0) & (pairs.state == 0))[0])
    errors = {
        "v_r": relative("v_r"),
        "q_r": relative("q_r")[possible],
        "v_h_e": np.abs(learned["v_h_e"] - right["v_h_e"]),
        "x_h": relative("x_h"),
    }
    numbers = {
        "v_r_start": learned["v_r"][start],
        "v_r_start_exact": right["v_r"][start],
        "v_r_start_error": relative("v_r")[start],
        **{f"{name}_error_{kind}": getattr(x, kind)() for name, x in errors.items() for kind in ("mean", "max")},
        "u_r_error_mean": relative("u_r").mean(),
        "log_ratio_rmse": np.sqrt(np.nanmean(np.square(ratio))),
        "log_ratio_max": np.nanmax(np.abs(ratio)),
        "tv_mean": tv.mean(),
        "tv_visits": (tv * pairs.visits).sum() / pairs.visits.sum(),
        "tv_max": tv.max(),
        "argmax_agreement": agree,
        "argmax_rows": rows,
    }
    return {name: float(x) for name, x in numbers.items()}


def agreement(learned: np.ndarray, right: np.ndarray) -> tuple[float, int]:
    """Share of rows whose learned best action is one of the exact best ones, where these are better than all others by
    at least GAP; and how many such rows there are."""
    size = np.where(np.isfinite(right), np.log(-np.where(np.isfinite(right), right, -1.0)), np.inf)
    least = size.min(1, keepdims=True)
    best = size <= least + 1e-6
    others = np.where(best, np.inf, size).min(1)
    gap = (others - least[:, 0] >= GAP) & np.isfinite(others)
    choice = np.argmin(np.where(np.isfinite(right), -learned, np.inf), 1)
    hits = best[np.arange(len(best)), choice]
    return (float(hits[gap].mean()) if gap.any() else 1.0), int(gap.sum())


def validate(
    run: str | Path,
    checkpoint: str = "final",
    limit: int = reach.LIMIT,
    out: str | Path | None = None,
    plots: bool = True,
) -> Validation:
    """Compare what a run has learned with the exact solution of its world, state by state.

    Writes validation.json and validation.csv; with `plots` also validation.png and, to `learned/`, the pictures that
    `regimen solve --plots` draws, of what was learned.

    Args:
        run: the run directory.
        checkpoint: `final`, `best` or an env step.
        limit: the largest number of states that is enumerated.
        out: the folder to write; by default `validation/` in the run directory.
        plots: whether to draw pictures.
    """
    config, path = run_config(run)
    handle = registry.resolve(config.env, config.env_args)
    algo = bind_algorithm(config, handle, resolve(config, native=True))
    params = load_params(algo, path, checkpoint)
    c = config.algo
    assert isinstance(algo, Empowerment) and isinstance(c, EmpowermentConfig)
    solution = solution_of(handle.native, c, limit)
    pairs = compare(algo, params, solution)
    folder = Path(out) if out is not None else path / "validation"
    require_own(path)
    validation = Validation(str(path), config.env, c.beta_r, pairs, measure(pairs, c.beta_r), folder, solution.report)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "validation.json", validation.to_dict())
    write_csv(folder / "validation.csv", validation, solution)
    if plots:
        draw(folder / "validation.png", validation)
        plot_solution(learned_solution(solution, pairs), folder / "learned", f"{config.env}, learned")
    return validation


def learned_solution(solution: Solution, pairs: LearnedAndExact) -> Solution:
    """The solution with what was learned in place of what is exact, wherever a state can be at a time."""
    lists = {name: [layer.copy() for layer in getattr(solution, name)] for name in pairs.learned}
    for name, layers in lists.items():
        for t, layer in enumerate(layers):
            now = pairs.time == t
            layer[pairs.state[now]] = pairs.learned[name][now]
    return replace(solution, **lists)


def run_config(run: str | Path) -> tuple[TrainConfig, Path]:
    """The settings of a run that can be validated."""
    path = Path(run)
    if not (path / "config.yaml").is_file():
        inside = sorted(p.parent.name for p in path.glob("*/config.yaml"))
        hint = f"; it holds the runs {', '.join(inside[:5])}: name one" if inside else ""
        raise UsageError(f"RUN: {path} is not a run directory{hint}")
    with reading(path / "config.yaml"):
        config = settings.from_dict(read_config(path))
    if config.algorithm != "empowerment":
        raise UsageError(
            f"RUN: {path} is a run of {config.algorithm}; only runs of empowerment have values to validate"
        )
    return config, path


def load_params(algo: Algorithm, path: Path, checkpoint: str) -> PyTree:
    """Parameters of every network, from a checkpoint of a run."""
    arrays, _, where = Checkpoints(path / "checkpoints").load(checkpoint, warn=lambda text: None)

    def params(name: str, like: PyTree) -> PyTree:
        prefix = f"state/models/{name}/params/"
        values = {path.removeprefix(prefix): x for path, x in arrays.items() if path.startswith(prefix)}
        return trees.unflatten(like, values, f"the network {name} of the checkpoint {where}")

    return {name: params(name, model.params) for name, model in algo.init(jax.random.key(0)).models.items()}


def write_csv(path: Path, validation: Validation, solution: Solution) -> None:
    """A row for every value of every state and time."""
    pairs = validation.pairs
    rows = []
    for i, (state, time) in enumerate(zip(pairs.state, pairs.time)):
        where = " ".join(map(str, solution.table.states[state]))
        for name, learned in pairs.learned.items():
            for of in np.ndindex(learned.shape[1:]):
                values = (learned[(i, *of)], pairs.exact[name][(i, *of)])
                rows.append([where, time, name, "/".join(map(str, of)), *(f"{v:.9g}" for v in values)])
    Table(CSV_COLUMNS, rows).write_csv(path)


def draw(path: Path, validation: Validation) -> None:
    """Learned against exact: Q_r and V_r, the policy, V_h^e."""
    with picture(path, 12, 3.8) as figure:
        axes = figure.subplots(1, 3)
        both = {
            "log(-Q_r), log(-V_r)": [("q_r", lambda x: np.log(-x)), ("v_r", lambda x: np.log(-x))],
            "pi_r": [("pi_r", lambda x: x)],
            "V_h^e": [("v_h_e", lambda x: x)],
        }
        for axis, (title, quantities) in zip(axes, both.items()):
            for name, view in quantities:
                right, learned = (
                    view(side[name].reshape(-1)) for side in (validation.pairs.exact, validation.pairs.learned)
                )
                dots = np.isfinite(right) & (right > -20)  # next to the end Q_r is the same for all
                axis.scatter(right[dots], learned[dots], s=8, alpha=0.5, label=name)
            low, high = axis.get_xlim()
            axis.plot([low, high], [low, high], color=GREY, linewidth=0.8)
            axis.set(title=title, xlabel="exact", ylabel="learned")
            axis.legend(fontsize=8)
        figure.suptitle(f"{validation.env}: V_r(start) off by {validation.numbers['v_r_start_error']:.2%}, "
                        f"total variation {validation.numbers['tv_mean']:.4f}")  # fmt: skip
