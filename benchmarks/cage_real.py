"""A policy trained natively, played in the real CybORG: the nine parts of the CAGE challenge 2, native and real.

    python benchmarks/cage_real.py RUN --cyborg cage-challenge-2 --python venv/bin/python --episodes 100

`--cyborg` is a checkout of github.com/cage-challenge/cage-challenge-2, and `--python` an interpreter that imports it,
of an environment of its own: numpy below 2, gym 0.26, networkx, prettytable, pyyaml, paramiko and pandas. There the
exported agent (`regimen export RUN --as cage-agent`) is played as CybORG/Evaluation/evaluation.py plays one: its
ChallengeWrapper, nothing told of the red agent or the length, `end_episode` after each episode. Real episodes are
appended to `--out` as they end, and a second call goes on from there.

Printed is each part with its standard error, the difference, and two one-sided tests of equivalence within `--margin`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

RED_CLASSES = {"b_line": "B_lineAgent", "meander": "RedMeanderAgent", "sleep": "SleepAgent"}


def play_real(
    checkout: Path, agent_file: Path, tasks: list[tuple[int, str, int]], seed: int
) -> Iterator[dict[str, Any]]:
    """Play (steps, red, episode) in CybORG with the exported agent. Runs in the interpreter of the checkout."""
    sys.path[:0] = [str(checkout / "CybORG"), str(agent_file.parent)]
    cyborg = importlib.import_module("CybORG")
    agents = importlib.import_module("CybORG.Agents")
    wrappers = importlib.import_module("CybORG.Agents.Wrappers")
    reds = vars(agents) | {
        "RedMeanderAgent": importlib.import_module("CybORG.Agents.SimpleAgents.Meander").RedMeanderAgent
    }
    scenario = str(Path(cyborg.__file__).parent / "Shared" / "Scenarios" / "Scenario2.yaml")
    agent = importlib.import_module("agent").CageAgent()
    envs: dict[str, Any] = {}
    for steps, red, episode in tasks:
        random.seed(f"{seed} {steps} {red} {episode}")
        np.random.seed(random.randrange(2**32))  # noqa: NPY002 (the reference draws from it)
        if red not in envs:
            simulator = cyborg.CybORG(scenario, "sim", agents={"Red": reds[RED_CLASSES[red]]})
            envs[red] = wrappers.ChallengeWrapper(env=simulator, agent_name="Blue")
        env = envs[red]
        observation, total = env.reset(), 0.0
        space = env.get_action_space("Blue")
        for _ in range(steps):
            observation, reward, _, _ = env.step(agent.get_action(observation, space))
            total += float(reward)
        agent.end_episode()
        yield {"steps": steps, "red": red, "episode": episode, "return": total}


def worker(arguments: list[str]) -> None:
    """The part that runs in the other interpreter: tasks from standard input, a line of JSON for each episode."""
    checkout, agent_file, seed = arguments
    tasks = [tuple(task) for task in json.load(sys.stdin)]
    for row in play_real(Path(checkout), Path(agent_file), tasks, int(seed)):
        print(json.dumps(row), flush=True)


def real_returns(args: argparse.Namespace, agent_file: Path, cells: list[tuple[int, str]]) -> dict[Any, np.ndarray]:
    """The returns of all episodes in CybORG by part, those of earlier calls included."""
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(row["steps"], row["red"], row["episode"]) for row in rows}
    wanted = [(steps, red, i) for i in range(args.episodes) for steps, red in cells]
    missing = [task for task in wanted if task not in done]
    command = [args.python, __file__, "--worker", str(args.cyborg.resolve()), str(agent_file.resolve()), str(args.seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(missing))
        process.stdin.close()
        with args.out.open("a") as out:
            for n, line in enumerate(process.stdout, start=1):
                rows.append(json.loads(line))
                out.write(line)
                out.flush()
                print(f"\r{n} of {len(missing)} real episodes", end="", file=sys.stderr, flush=True)
    if process.returncode:
        raise SystemExit(f"CybORG ended with exit code {process.returncode}; the episodes so far are in {args.out}")
    by_cell = defaultdict(list)
    for row in rows:
        if row["episode"] < args.episodes:
            by_cell[row["steps"], row["red"]].append(row["return"])
    return {cell: np.array(values) for cell, values in by_cell.items()}


def main() -> None:
    import harness

    import regimen
    from regimen.domains.network_defense.leaderboard import CELLS, PUBLISHED, TOTALS, LeaderboardTable
    from regimen.policies.export import export_policy
    from regimen.policies.leaderboard import leaderboard
    from regimen.statistics import unpaired_difference

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run of network_defense, or its policy's folder")
    parser.add_argument("--cyborg", type=Path, required=True, help="checkout of cage-challenge-2")
    parser.add_argument("--python", required=True, help="interpreter that can import its CybORG")
    parser.add_argument("--episodes", type=int, default=100, help="real episodes of each part")
    parser.add_argument("--native-episodes", type=int, default=1000, help="native episodes of each part")
    parser.add_argument("--margin", type=float, default=1.0, help="a difference that would not matter")
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("cage_real.jsonl"), help="where real episodes are kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = export_policy(args.run, Path(folder) / "agent", args.checkpoint, form="cage-agent")
        real = real_returns(args, out / "agent.py", list(CELLS))
    native = leaderboard(args.run, args.native_episodes, args.seed, checkpoint=args.checkpoint)
    assert isinstance(native, LeaderboardTable)
    table = LeaderboardTable(f"{args.run.name} in CybORG", args.seed, real)
    rows = []
    for i, cell in enumerate(CELLS):
        d = unpaired_difference(native.returns[cell], real[cell], args.margin)
        rows.append(
            [
                *map(str, cell),
                f"{native.mean(cell):.2f} ± {native.error(cell):.2f}",
                f"{table.mean(cell):.2f} ± {table.error(cell):.2f}",
                f"{d.value:+.2f} ({d.low:+.2f} to {d.high:+.2f})",
                f"{d.p:.2g}",
                d.verdict,
                f"{PUBLISHED['CardiffUni (first)'][i]:.2f}",
            ]
        )
    totals = [f"{t.total:.2f} ± {t.total_error:.2f}" for t in (native, table)]
    rows.append(["total", "", *totals, f"{table.total - native.total:+.2f}", "", "", f"{max(TOTALS.values()):.2f}"])
    head = ["steps", "red", "native", "CybORG", "difference (95%)", "p", f"within {args.margin:g}", "published best"]
    print(
        f"\nregimen {regimen.__version__}, {args.episodes} real and {args.native_episodes} native episodes of each part"
    )
    print(harness.table(head, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2:])
    else:
        main()
