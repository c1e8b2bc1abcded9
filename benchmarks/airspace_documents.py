"""Air traffic as its document has it, and with the tuned settings: every algorithm, both rewards, all 14 scenarios.

    python benchmarks/airspace_documents.py --gpu 6 --cpu 8 --seconds 450    # in order of importance, cut off there
    python benchmarks/airspace_documents.py --quick                          # seconds, measures nothing

A job is one algorithm with one set of settings (`tuned`, or the document's `atc_*` preset with its values for a GPU)
and one reward (`clean`, `compat`) on one scenario, all seeds in one program, in a process of its own. Stopping rules
are off, so that every job shows its whole budget. Each prints a line of JSON when it is done; the tables at the end
are of the jobs that are. An evaluation is conflict-free if no episode of it loses separation (20 episodes; from
perturbed starts with the tuned settings, from the scenario's own start, where all are alike, with the document's).
The final greedy policy is judged from the scenario's own start by the `compat` reward, beside doing nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import harness

ALGORITHMS = ("ppo", "sac", "impala", "appo", "cql")
FEW = ("head_on", "canonical_crossing", "cross_4all", "merge_2x2")  # where the other algorithms begin
KINDS = (("tuned", "compat"), ("tuned", "clean"), ("atc", "compat"), ("atc", "clean"))
STEPS = {"ppo": 500_000, "appo": 500_000, "impala": 500_000, "sac": 200_000, "cql": 10_000}  # cql: gradient steps
EVERY = {"ppo": 8192, "appo": 8192, "impala": 8192, "sac": 4000, "cql": 500}
RANGES = {2: (50_000, 100_000), 4: (150_000, 250_000)}  # env steps to convergence by aircraft, as published
RANGE_OF = {"sac": (100_000, 200_000), "impala": (150_000, 300_000)}
CONFLICT, SUCCESS = "eval/los", "eval/success_rate"  # shares of the evaluation's episodes
HEAD = ["scenario", "conflict-free evaluation at (env steps)", "seconds", "20 in a row at", "final without loss"]
HEAD += ["all reached", "compat return (lowest, median)", "doing nothing", "published"]


# --- one job, in a process of its own --------------------------------------------------------------------------------


def settings_of(job: dict[str, Any]) -> dict[str, Any]:
    """Everything that differs from `regimen train airspace/NAME --algo ALGO`."""
    from regimen.config import layers, presets

    algo, steps = job["algo"], job["steps"]
    settings: dict[str, Any] = {"total_steps": steps, "eval.every": f"{job['every']} steps", "eval.episodes": 20}
    settings |= {f"stop.{name}": None for name in ("zero_conflict_streak", "perfect_streak")}
    settings |= {"checkpoint.every": "never", "log.episodes": False}
    if job["preset"] == "atc":
        preset = presets.load_preset(f"atc_{algo}")
        settings |= layers.flatten(preset.columns["gpu"], algo) | {"preset": preset.name}
    if job["reward"] == "compat":
        settings["env_args"] = {"reward": "compat"}
    return settings | job.get("settings", {})


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Train all seeds; what came of them."""
    import regimen
    from regimen.envs import registry
    from regimen.policies.evaluate import baseline_evaluator, make_evaluator

    env, begun = f"airspace/{job['scenario']}", time.monotonic()
    settings, seeds = settings_of(job), job["seeds"]
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "runs")
        result = regimen.train(
            env, algo=job["algo"], seeds=seeds, out=out, track=False, device=job["device"], **settings
        )
        curves = [[row for row in run.history if CONFLICT in row] for run in result.runs]
        policies = [regimen.load_policy(run.run_dir, "final") for run in result.runs]
    handle = registry.resolve(env, {"reward": "compat", "snap": True})
    evaluate = make_evaluator(handle, policies[0].algo)
    finals = [evaluate(policy.params, 0, 1) for policy in policies]
    outcome: dict[str, Any] = {}
    if job["nothing"]:
        nothing = baseline_evaluator(registry.resolve(env, {"reward": "compat"}), "no_op")((), 0, 1)
        outcome = {"nothing": float(nothing.returns[0]), "nothing_los": float(nothing.metrics["los"].max())}
    return outcome | {
        "aircraft": len(handle.agents),
        "first": [first(c, lambda row: row[CONFLICT] == 0) for c in curves],
        "seconds": [first(c, lambda row: row[CONFLICT] == 0, "wall_seconds") for c in curves],
        "streak": [first(c, lambda row: row.get("zero_conflict_streak", 0) >= 20) for c in curves],
        "los": [float(e.metrics["los"].max()) for e in finals],
        "reached": [float(e.metrics["reached"].min()) for e in finals],
        "return": [float(e.returns[0]) for e in finals],
        "separation": [float(e.metrics["min_separation"].min()) for e in finals],
        "last_los_rate": [c[-1][CONFLICT] for c in curves],
        "last_success": [c[-1].get(SUCCESS) for c in curves],
        "wall": round(time.monotonic() - begun, 1),
    }


def first(curve: list[dict[str, float]], met: Any, column: str = "env_steps") -> float | None:
    return next((row[column] for row in curve if met(row)), None)


# --- all jobs --------------------------------------------------------------------------------------------------------


def plan(scenarios: list[str], algorithms: list[str], kinds: list[tuple[str, str]], args: Any) -> list[dict[str, Any]]:
    """Jobs in order of importance: PPO everywhere, the others on a few scenarios, then on the rest."""

    def jobs(algos: list[str], names: list[str]) -> list[dict[str, Any]]:
        return [
            {"algo": algo, "preset": preset, "reward": reward, "scenario": name}
            for preset, reward in kinds
            for algo in algos
            for name in names
        ]

    few = [name for name in FEW if name in scenarios]
    rest = [name for name in scenarios if name not in few]
    others = [algo for algo in algorithms if algo != "ppo"]
    ppo = jobs(["ppo"] if "ppo" in algorithms else [], few + rest)
    ordered = [*ppo[: 3 * len(scenarios)], *jobs(others, few), *ppo[3 * len(scenarios) :], *jobs(others, rest)]
    begun: set[str] = set()
    for job in ordered:
        job["nothing"] = job["scenario"] not in begun  # once for each scenario
        begun.add(job["scenario"])
        job |= {"seeds": args.seeds, "steps": STEPS[job["algo"]], "every": EVERY[job["algo"]]}
        if args.total_steps:
            job["steps"] = int(args.total_steps)
        if args.quick:
            job |= {"seeds": 2, "steps": 128, "every": 64, "settings": QUICK[job["algo"]]}
    return ordered


ONLINE = {"rollout.steps": 64, "rollout.num_envs": 4, "algo.minibatch_size": 64, "network.hidden": [8]}
REPLAY = {"network.hidden": [8], "algo.batch_size": 16, "algo.update_ratio": 0.1, "algo.learning_starts": 64}
QUICK: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("ppo", "appo", "impala"), ONLINE),
    "sac": REPLAY | {"rollout.steps": 64, "rollout.num_envs": 4, "algo.buffer_size": 1000},
    "cql": {"network.hidden": [8], "algo.batch_size": 16, "rollout.steps": 64, "algo.behaviour_steps": 1500},
}


def launch(job: dict[str, Any]) -> subprocess.Popen[str]:
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "OMP_NUM_THREADS": "1"}
    if job["device"] == "cpu":
        one_thread = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": one_thread}
    command = [sys.executable, __file__, "--job", json.dumps(job)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def consume(waiting: deque, device: str, deadline: float, done: list[dict[str, Any]], lock: threading.Lock) -> None:
    """Take jobs one after the other until there is none, or the time is up."""
    while time.monotonic() < deadline:
        with lock:
            fit = [job for job in waiting if device != "cpu" or job["algo"] not in ("sac", "cql")]
            if not fit:
                return
            job = fit[0]
            waiting.remove(job)
        job = job | {"device": device}
        process = launch(job)
        try:
            out, err = process.communicate(timeout=max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return
        lines = [line for line in out.splitlines() if line.startswith("{")]
        last = (err.strip().splitlines() or ["no word"])[-1]
        outcome = json.loads(lines[-1]) if process.returncode == 0 and lines else {"error": last}
        with lock:
            done.append({"job": job} | outcome)
            print(json.dumps(done[-1]), flush=True)


def published(algo: str, aircraft: int) -> tuple[int, int] | None:
    return RANGE_OF.get(algo) or (None if algo == "cql" else RANGES.get(aircraft))


def row(one: dict[str, Any], nothing: str) -> list[str]:
    job, seeds = one["job"], len(one["los"])
    reached = [x for x in one["first"] if x is not None]
    within = published(job["algo"], one["aircraft"])
    word = "none"
    if within is not None:
        early, inside = (sum(low <= x <= within[1] for x in reached) for low in (0, within[0]))
        word = (
            f"{within[0] // 1000}k to {within[1] // 1000}k: {early - inside} before, {inside} in, {seeds - early} after"
        )
    returns = sorted(one["return"])
    streaks = [x for x in one["streak"] if x is not None]
    seconds = [x for x in one["seconds"] if x is not None]
    return [
        job["scenario"],
        f"{span(reached)} ({len(reached)} of {seeds})",
        f"{span(seconds)} {job['device']}",
        f"{span(streaks)} ({len(streaks)} of {seeds})",
        f"{sum(x == 0 for x in one['los'])} of {seeds}",
        f"{sum(x == 1 for x in one['reached'])} of {seeds}",
        f"{returns[0]:.1f}, {returns[seeds // 2]:.1f}",
        nothing,
        word,
    ]


def span(values: list[float]) -> str:
    if not values:
        return "never"
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def report(done: list[dict[str, Any]]) -> None:
    """A table for each algorithm, settings and reward, of the jobs that were finished."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    words = {
        one["job"]["scenario"]: f"{one['nothing']:.1f}" + (" (loses)" if one["nothing_los"] else "")
        for one in done
        if "nothing" in one
    }
    for one in done:
        if "error" not in one:
            job = one["job"]
            groups.setdefault((job["algo"], job["preset"], job["reward"]), []).append(one)
    for (algo, preset, reward), members in groups.items():
        print(f"\n{algo}, {preset}, {reward}; {members[0]['job']['steps']:,} steps\n")
        print(harness.table(HEAD, [row(one, words.get(one["job"]["scenario"], "")) for one in members]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="default: all 14")
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument(
        "--kinds", nargs="+", default=["-".join(kind) for kind in KINDS], help="tuned-compat, atc-clean"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--total-steps", type=float)
    parser.add_argument("--gpu", type=int, default=0, help="jobs side by side on the GPU")
    parser.add_argument("--cpu", type=int, default=0, help="jobs side by side on the CPU, one thread each")
    parser.add_argument("--seconds", type=float, default=1e6, help="end after this long; what is unfinished is lost")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; measures nothing")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs="+", help="tables of the JSON lines in these files, without training")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(work(json.loads(args.job))), flush=True)
        return
    if args.read:
        lines = [line for path in args.read for line in Path(path).read_text().splitlines() if line.startswith("{")]
        report([json.loads(line) for line in lines if "job" in line])
        return
    from regimen.domains.airspace.files import NAMES

    kinds = [(kind.split("-")[0], kind.split("-")[1]) for kind in args.kinds]
    waiting = deque(plan(args.scenarios or list(NAMES), args.algos, kinds, args))
    deadline, done, lock = time.monotonic() + args.seconds, [], threading.Lock()
    devices = ["gpu"] * args.gpu + ["cpu"] * args.cpu or ["auto"]
    threads = [threading.Thread(target=consume, args=(waiting, x, deadline, done, lock)) for x in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report(done)
    print(f"\n{len(done)} jobs done, {len(waiting)} not begun")


if __name__ == "__main__":
    main()
