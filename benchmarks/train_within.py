"""Train seeds of one setting for a given time, choose a policy by many native episodes, and keep it with its figures.

    python benchmarks/train_within.py network_defense --seconds 400 --seeds 4 --board \
        --set env.red=mixed --set env.history=true --set network.hidden=256,256 --out results
    python benchmarks/train_within.py airspace/random --seconds 400 --at aircraft=20,min_aircraft=20 \
        --set env.observation=set --set env.family=sector --set env.aircraft=12 --out results

A machine that others use, too, has no speed that one knows: a short training measures it, and the budget of the long
one follows, so that schedules (the learning rate's) come to their end within `--seconds`. What is chosen is chosen on
episodes of its own: judge it again on others before you report it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

import regimen
from regimen.config.layers import build_config
from regimen.runs.api import train as run

JUDGED = 500_000  # seed of the episodes on which a policy is chosen
SHARE = 0.85  # of the time that is left, because others may come to use the machine


def train(env: str, out: Path, **settings: Any) -> Any:
    """Train, and leave curves and the report to a process that nobody waits for."""
    quick = {"track.enabled": False, "log.replay": False, "log.episodes": False}
    return run(build_config(env, overrides={"out": str(out)} | quick | settings), wait=False)


def judge(run: Path, checkpoint: str, policy: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of a policy by condition, and the one that it is chosen by."""
    if args.board:
        table = regimen.leaderboard(run, args.episodes, JUDGED, checkpoint=checkpoint)
        cells = {f"{steps} {red}": table.mean((steps, red)) for steps, red in table.returns}  # type: ignore[attr-defined]
        return {"chosen_by": table.total, "error": table.total_error, "cells": cells}  # type: ignore[attr-defined]
    out: dict[str, Any] = {}
    own = ",".join(item.removeprefix("env.") for item in args.set if item.startswith("env."))
    for text in args.at or [own]:
        env_args = fields(own) | fields(text)
        played = regimen.evaluate(args.env, policy, args.episodes, JUDGED, env_args=env_args)
        means = {name: round(float(values.mean()), 4) for name, values in played.metrics.items()}
        out[text] = {"return": round(float(played.returns.mean()), 3)} | means
    by = [value.get("success", value["return"]) for value in out.values()]
    return {"chosen_by": sum(by) / len(by), "at": out}


def fields(text: str) -> dict[str, Any]:
    """`aircraft=20,family=sector` as a dictionary."""
    pairs = (item.split("=", 1) for item in text.split(",") if item)
    return {key: yaml.safe_load(value) for key, value in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--seconds", type=float, required=True, help="for everything")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting")
    parser.add_argument("--rollout", type=int, required=True, help="env steps of an update (rollout.steps)")
    parser.add_argument("--most", type=float, default=1e12, help="env steps of each seed at most")
    parser.add_argument("--probe", type=int, default=24, help="updates of the training that measures the speed")
    parser.add_argument("--evaluations", type=int, default=20, help="during training, from which `best` is chosen")
    parser.add_argument("--board", action="store_true", help="judge by the field's leaderboard")
    parser.add_argument("--at", action="append", default=[], metavar="KEY=VALUE,...", help="judge with these fields")
    parser.add_argument("--episodes", type=int, default=2000, help="to judge a policy")
    parser.add_argument("--reserve", type=float, default=60.0, help="seconds to judge policies in")
    parser.add_argument("--later", action="store_true", help="keep the last policy of each seed, and judge none now")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    begun = time.monotonic()

    settings: dict[str, Any] = dict(item.split("=", 1) for item in args.set) | {"rollout.steps": args.rollout}
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        steps = args.probe * args.rollout
        settings |= {"seeds": args.seeds, "seed": args.seed}
        short = train(args.env, folder / "probe", **settings | {"total_steps": steps, "eval.every": "never"})
        rate = short.runs[0].summary["steps_per_second"]  # compilation is not counted
        left = max(args.seconds - args.reserve - (time.monotonic() - begun), 1.0)
        updates = max(int(min(SHARE * left * rate, args.most) / args.rollout), 1)
        print(f"{args.seeds} x {rate:,.0f} env steps/s, {updates} updates in {left:.0f} s", flush=True)
        every = f"{max(updates // args.evaluations, 1)} updates" if args.evaluations else "never"
        more = {"eval.every": every, "checkpoint.every": "never", "stop.max_seconds": left}
        result = train(args.env, folder / "run", **settings | more | {"total_steps": updates * args.rollout})
        for one in result.runs if args.later else ():
            regimen.load_policy(one.run_dir, "final").save(args.out / f"policy-{one.summary['seed']}")
            print(json.dumps({key: one.summary[key] for key in ("seed", "env_steps", "stop_reason")}), flush=True)
        found = []
        for one in () if args.later else result.runs:
            for checkpoint in ("best", "final"):
                if time.monotonic() - begun > args.seconds - 15 and found:
                    break
                policy = regimen.load_policy(one.run_dir, checkpoint)
                row = {"seed": one.summary.get("seed"), "checkpoint": checkpoint, "step": one.summary["env_steps"]}
                row |= judge(one.run_dir, checkpoint, policy, args) | {"stopped": one.stop_reason}
                print(json.dumps(row), flush=True)
                found.append((row["chosen_by"], len(found), one.run_dir, checkpoint))
                if found[-1] == max(found):
                    shutil.rmtree(args.out / "policy", ignore_errors=True)
                    policy.save(args.out / "policy")
                with (args.out / "figures.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
        best = max(found)[2] if found else result.runs[0].run_dir
        for file in ("config.yaml", "progress.csv"):
            shutil.copy(best / file, args.out / file)
    print(f"{time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
