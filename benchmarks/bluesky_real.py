"""Policies of the airspace flown by BlueSky, scenario by scenario, beside the same starts flown natively.

    pip install 'regimen[bluesky]'
    for NAME in head_on parallel ...; do regimen train airspace/$NAME --out runs/air/$NAME; done
    python benchmarks/bluesky_real.py runs/air --episodes 100

Each scenario has a process of its own, because BlueSky is one simulator per process, and does what
`regimen evaluate RUN --in bluesky:NAME --margin los=0.02` does. What has been flown is kept in `--out`, and a second
call goes on from there. The last row counts the starts of all scenarios together.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import numpy as np

from regimen.domains.airspace.files import NAMES
from regimen.statistics import rate_difference

MARGIN, METRICS = 0.02, ("los", "reached", "min_separation")


def worker(run: str, name: str, episodes: str, seed: str) -> None:
    """Both evaluations of one policy: the metrics of each episode."""
    import regimen

    found = regimen.evaluate_in(run, f"bluesky:{name}", episodes=int(episodes), seed=int(seed))
    sides = {"native": found.home, "bluesky": found.away}
    print(json.dumps({k: {m: v.metrics[m].tolist() for m in METRICS} for k, v in sides.items()}))


def fly(run: Path, name: str, episodes: int, seed: int) -> dict[str, Any] | None:
    """What a process of its own flew; None where it failed."""
    command = [sys.executable, __file__, "--worker", str(run), name, str(episodes), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: exit code {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def line(name: str, sides: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """One row: losses of separation and arrivals in both, and by how much the smallest separations differ."""
    home, away = sides["native"], sides["bluesky"]
    d = rate_difference(home["los"], away["los"], MARGIN)
    apart = np.abs(home["min_separation"] - away["min_separation"])
    return [
        name,
        str(len(home["los"])),
        *(f"{100 * x['los'].mean():.1f}%" for x in (home, away)),
        f"{100 * d.value:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})",
        f"{d.p:.2g}",
        d.verdict,
        *(f"{100 * x['reached'].mean():.1f}%" for x in (home, away)),
        f"{np.median(apart):.4f}, {apart.max():.3f}",
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each scenario, and one for all starts together."""
    sides = {row["name"]: {k: {m: np.array(v) for m, v in x.items()} for k, x in row["found"].items()} for row in rows}
    out = [line(name, sides[name]) for name in NAMES if name in sides]
    every = {k: {m: np.concatenate([x[k][m] for x in sides.values()]) for m in METRICS} for k in ("native", "bluesky")}
    head = ["scenario", "starts", "LoS native", "LoS BlueSky", "difference, points (95%)", "p", f"within {MARGIN:.0%}"]
    head += ["arrived native", "arrived BlueSky", "smallest separations differ by (median, most), NM"]
    return harness.table(head, [*out, line("all", every)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a folder with a run, or a policy's folder, for each scenario")
    parser.add_argument("--episodes", type=int, default=100, help="perturbed starts of each scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--names", nargs="+", default=list(NAMES))
    parser.add_argument("--out", type=Path, default=Path("bluesky_real.jsonl"), help="where results are kept")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(row["name"], row["episodes"], row["seed"]) for row in rows}
    for name in args.names:
        if (name, args.episodes, args.seed) not in done:
            found = fly(args.runs / name, name, args.episodes, args.seed)
            if found is not None:
                rows.append({"name": name, "episodes": args.episodes, "seed": args.seed, "found": found})
                with args.out.open("a") as out:
                    out.write(json.dumps(rows[-1]) + "\n")
    print(table([row for row in rows if row["episodes"] == args.episodes and row["seed"] == args.seed]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        main()
