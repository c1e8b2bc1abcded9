"""A solution as numbers to print, and as a file."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from regimen.domains.empowerment.reach import joint_actions
from regimen.domains.empowerment.solution import Solution
from regimen.domains.empowerment.worlds.world import World
from regimen.errors import ConfigError, StorageError
from regimen.files.storage import replacing
from regimen.reports.table import Table


def robot_actions(world: World) -> list[str]:
    """Names of the robots' joint actions, in their order: `east`, or `east+pass` of two robots."""
    names = itertools.product(world.actions, repeat=world.robots)
    return ["+".join(reversed(joint)) for joint in names]


def bits(value: float, scale: float = 1.0) -> float:
    """log2 over a scale; -inf for nothing."""
    return math.log2(value) / scale if value > 0 else -math.inf


def summary(solution: Solution, name: str = "") -> dict[str, Any]:
    """The values and the policy at the start, as plain data."""
    world, theory, point = solution.world, solution.theory, solution.at()
    actions, goals, scale = robot_actions(world), world.goal_names, -theory.xi * theory.eta
    humans = [
        {
            "x_h": float(point.x_h[h]),
            "bits": bits(point.x_h[h]),
            "v_h_e": {g: float(v) for g, v in zip(goals, point.v_h_e[h])},
            **({} if point.v_h_m is None else {"v_h_m": {g: float(v) for g, v in zip(goals, point.v_h_m[h])}}),
        }
        for h in range(world.humans)
    ]
    assumptions = dataclasses.asdict(theory)
    if theory.prior == "heuristic":
        assumptions["beta_h"] = getattr(world, "beta_h", None)
    return {
        "world": name,
        "states": len(solution.table.states),
        **({} if solution.stationary else {"states_with_time": solution.pairs}),
        "horizon": solution.table.horizon,
        "joint_actions": joint_actions(world),
        "theory": {k: "inf" if v == math.inf else v for k, v in assumptions.items()},
        "v_r": point.v_r,
        "u_r": point.u_r,
        "q_r": {a: None if math.isnan(q) else float(q) for a, q in zip(actions, point.q_r)},
        "policy": {a: float(p) for a, p in zip(actions, point.pi_r)},
        "humans": humans,
        "aggregate_bits": bits(-point.u_r, scale),
        "total_bits": bits(-point.v_r, scale),
        **({} if solution.report is None else {"stationary": solution.report}),
    }


def lines(summary: dict[str, Any]) -> list[str]:
    """A summary as text."""
    time = "" if "states_with_time" not in summary else f", {summary['states_with_time']:,} with time"
    end = "for ever" if summary["horizon"] is None else f"{summary['horizon']} steps"
    out = [f"{summary['world']}: {summary['states']:,} states{time}; {summary['joint_actions']:,} joint actions; {end}"]
    if "stationary" in summary:
        how = summary["stationary"]
        word = "converged" if how["converged"] else "NOT CONVERGED"
        out.append(f"  {word}: residual {how['residual']:.1e} after {how['sweeps']:,} sweeps")
    out.append(f"  V_r {summary['v_r']:.6f}   U_r {summary['u_r']:.6f}")
    out.append(f"  power in bits: aggregate {summary['aggregate_bits']:.4f}, total {summary['total_bits']:.4f}")
    out.append(f"  {'robot':<16} {'Q_r':>14} {'policy':>10}")
    for action, q in summary["q_r"].items():
        value = "not allowed" if q is None else f"{q:.6f}"
        out.append(f"  {action:<16} {value:>14} {summary['policy'][action]:>10.6f}")
    for h, human in enumerate(summary["humans"]):
        out.append(f"  human {h}: X_h {human['x_h']:.6f} ({human['bits']:.4f} bits); V_h^e by goal:")
        pairs = [f"{goal}: {value:.5f}" for goal, value in human["v_h_e"].items()]
        out += ["    " + "   ".join(pairs[i : i + 6]) for i in range(0, len(pairs), 6)]
    return out


def save(solution: Solution, path: str) -> Path:
    """Write every state at every time at which it can be reached: `.npz` (all arrays) or `.csv` (one row each)."""
    file = output_file(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as tmp:
            (save_npz if file.suffix == ".npz" else save_csv)(solution, tmp)
    except OSError as e:
        raise StorageError(f"--out {path}: cannot be written: {e.strerror or e}") from e
    return file


def output_file(path: str) -> Path:
    file = Path(path)
    if file.suffix not in (".npz", ".csv"):
        raise ConfigError(f"--out {path}: write a file that ends in .npz or .csv")
    return file


def save_npz(solution: Solution, file: Path) -> None:
    state, time = solution.moments()
    names = ("q_r", "pi_r", "v_h_e", "x_h", "u_r", "v_r", *(("v_h_m",) if solution.v_h_m is not None else ()))
    np.savez_compressed(
        file,
        allow_pickle=False,
        states=solution.table.states,
        state=state.astype(np.int32),
        time=time.astype(np.int32),
        goal_weights=solution.world.goal_weights,
        actions=np.array(robot_actions(solution.world)),
        goals=np.array(solution.world.goal_names),
        **{name: solution.column(name) for name in names},
    )


def save_csv(solution: Solution, file: Path) -> None:
    actions, humans = robot_actions(solution.world), range(solution.world.humans)
    head = ["time", "state", "v_r", "u_r", *(f"x_h_{h}" for h in humans)]
    head += [*(f"q_r_{a}" for a in actions), *(f"pi_r_{a}" for a in actions)]
    rows = []
    for s, t in zip(*solution.moments()):
        p = solution.at(s, t)
        state = " ".join(map(str, solution.table.states[s].tolist()))
        rows.append([t, state, p.v_r, p.u_r, *p.x_h.tolist(), *p.q_r.tolist(), *p.pi_r.tolist()])
    file.write_text(Table(head, rows).csv(), encoding="utf-8", newline="")
