"""PPO on CartPole beside every peer, all in one run: Stable-Baselines3, RLlib and PureJaxRL.

    python benchmarks/peers.py --sb3 SB3/bin/python --rllib RLLIB/bin/python --purejaxrl JAX/bin/python:CODE

Each peer is named by an interpreter that has it, and PureJaxRL, which is no package, by the folder of its code behind a
colon. A peer that is not named is left out. Everybody has the same networks, batches, epochs and hyper-parameters and
takes a turn within each round, so that other load on the machine touches all; ratios are those of a round. A peer
counts with the better of its ways to use the cores. `--whole` measures a command as a whole instead: from the shell to
the end of 100,000 env steps, with imports and compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import harness

NATIVE = ((4, "cartpole"), (64, "cartpole"))
HOST = ((8, "gym:CartPole-v1"),)
WHOLE_STEPS = 100_000
Ways = dict[str, list[str]]  # of one peer: how its process is started, by the name of a way to use the cores


def ways(args: argparse.Namespace) -> dict[str, Ways]:
    """Interpreter, script and flags of every peer that was named."""
    peers: dict[str, Ways] = {}
    if args.sb3:
        script = [args.sb3, "peer_sb3.py"]
        peers["SB3"] = {"1 thread": [*script, "--threads", "1"], "default threads": [*script, "--threads", "0"]}
    if args.rllib:
        script = [args.rllib, "peer_rllib.py", "--workers"]
        peers["RLlib"] = {f"{n} workers" if n else "1 process": [*script, str(n)] for n in args.rllib_workers}
    if args.purejaxrl:
        python, _, code = args.purejaxrl.partition(":")
        peers["PureJaxRL"] = {"": [python, "peer_purejaxrl.py", "--code", code]}
    return peers


def measure(peers: dict[str, Ways], rounds: int, seconds: float, sizes: tuple[int, ...]) -> list[dict]:
    """Steps per second of everybody in every round, learning included: one case per number of environments."""
    running = {
        (peer, way): harness.Peer(command[0], None, command[1], *command[2:])
        for peer, named in peers.items()
        for way, command in named.items()
    }
    versions = {name: version for peer in running.values() for name, version in peer.versions.items()}
    print("peers:", ", ".join(f"{name} {version}" for name, version in versions.items()), flush=True)
    cases = []
    for num_envs, env in (*NATIVE, *HOST):
        if num_envs not in sizes:
            continue
        engine = harness.make_engine(env, num_envs)
        for _ in range(2):
            harness.steps_per_second(engine, 0)  # compiles
        speeds: dict[str, list[float]] = {"Regimen": []}
        for _ in range(rounds):
            speeds["Regimen"].append(harness.steps_per_second(engine, seconds))
            for (peer, way), process in running.items():
                if peer == "PureJaxRL" and env != "cartpole":
                    continue  # it has environments in JAX only
                name = f"{peer}, {way}" if way else peer
                speeds.setdefault(name, []).append(process.steps_per_second(num_envs, seconds))
        engine.close()
        cases.append({"env": env, "num_envs": num_envs, "speeds": speeds})
        print(f"{env}, {num_envs} environments: { ({k: round(median(v)) for k, v in speeds.items()}) }", flush=True)
    for process in running.values():
        process.close()
    return cases


def best_of(speeds: dict[str, list[float]], peer: str, better: Callable = max) -> list[float]:
    """The better way of a peer in each round."""
    return [better(pair) for pair in zip(*(values for name, values in speeds.items() if name.split(",")[0] == peer))]


def ratios(speeds: dict[str, list[float]], peer: str, better: Callable = max) -> list[float]:
    return [ours / theirs for ours, theirs in zip(speeds["Regimen"], best_of(speeds, peer, better))]


def show(cases: list[dict], peers: dict[str, Ways]) -> None:
    ways_of_all = [f"{peer}, {way}" if way else peer for peer, named in peers.items() for way in named]
    rows, compared = [], []
    for case in cases:
        name, speeds = f"{case['env']}, {case['num_envs']} environments", case["speeds"]
        rows.append([name, *(harness.spread(speeds[w]) if w in speeds else "-" for w in ("Regimen", *ways_of_all))])
        compared.append([name, *(ratio_text(speeds, peer) for peer in peers)])
    print(harness.table(["PPO on CartPole, env steps/s", "Regimen", *ways_of_all], rows), end="\n\n")
    print(harness.table(["Regimen is so many times as fast", *peers], compared))


def ratio_text(speeds: dict[str, list[float]], peer: str) -> str:
    if not best_of(speeds, peer):
        return "-"
    values = ratios(speeds, peer)
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def whole(peers: dict[str, Ways], rounds: int) -> dict[str, list[float]]:
    """Seconds from the shell to the end of 100,000 env steps with 4 environments; nobody evaluates."""
    taken: dict[str, list[float]] = {}
    size = ["--rollout.num-envs", "4", "--rollout.steps", str(4 * harness.STEPS)]
    size += ["--algo.minibatch-size", str(4 * harness.STEPS // harness.MINIBATCHES), "--algo.epochs", "4"]
    ours = [sys.executable, "-m", "regimen", "train", "cartpole", "--total-steps", str(WHOLE_STEPS), *size]
    ours += ["--stop.metric", "none", "--eval.every", "never", "--no-track", "--out"]
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("Regimen, first run ever", "Regimen, compiled before"):
                env = os.environ | {"XDG_CACHE_HOME": f"{folder}/cache"}
                taken.setdefault(name, []).append(clock([*ours, f"{folder}/{name}"], env))
        for peer, named in peers.items():
            for way, (python, script, *flags) in named.items():
                budget = ["--budget" if peer == "SB3" else "--steps", str(WHOLE_STEPS)]
                command = [python, str(harness.HERE.resolve() / script), "train", *flags, "--envs", "4", *budget]
                taken.setdefault(f"{peer}, {way}" if way else peer, []).append(clock(command, dict(os.environ)))
    rows = [[name, harness.spread(values, ".1f")] for name, values in taken.items()]
    print(harness.table([f"{WHOLE_STEPS:,} env steps of PPO on CartPole, from the shell to the end", "seconds"], rows))
    return taken


def clock(command: list[str], env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, env=env, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3", help="an interpreter that has Stable-Baselines3")
    parser.add_argument("--rllib", help="an interpreter that has ray[rllib] and torch")
    parser.add_argument("--rllib-workers", type=int, nargs="*", default=[0], help="processes that collect; 0: none")
    parser.add_argument("--purejaxrl", help="INTERPRETER:FOLDER, the folder with ppo.py and wrappers.py")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--envs", type=int, nargs="*", default=[4, 64, 8], help="4 and 64 in JAX, 8 of Gymnasium")
    parser.add_argument("--whole", action="store_true", help="seconds of whole commands instead")
    parser.add_argument("--out", type=Path, help="the figures of every round, as JSON")
    args = parser.parse_args()
    from regimen.engines import device

    print(f"regimen: device {device.configure('cpu', True)}")
    load, peers = harness.OtherLoad(), ways(args)
    if args.whole:
        figures: object = whole(peers, args.rounds)
    else:
        figures = measure(peers, args.rounds, args.seconds, tuple(args.envs))
        show(figures, peers)
    print(f"\n{load}")
    if args.out:
        args.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
