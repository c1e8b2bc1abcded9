"""Gate: processes that start together on a fresh MLflow store; one of them is killed while it makes the store. All
others, and one that comes later, have every row once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

from faults.watch import tell

ROWS = 100
TOGETHER = 8
CODE = """
import sys
from pathlib import Path
from regimen.files.mlflow import Mirror

run = Path(sys.argv[1])
print(Mirror(None, "faults", run.name, run, {}, delay=0.0, warn=print).finish({}, [], timeout=600).run_id)
"""


def start(run: Path) -> subprocess.Popen[str]:
    run.mkdir(parents=True)
    rows = ({"env_steps": i, "updates": i, "time/unix_time": i, "loss": i} for i in range(1, ROWS + 1))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-c", CODE, str(run)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lost(store: Path, said: list[tuple[str, str]]) -> list[str]:
    """What is wrong with the runs of a store, given what their processes said."""
    from regimen.files.stores import make_client

    client, detail = make_client(f"sqlite:///{store}"), []
    for out, err in said:
        try:
            values = sorted(m.value for m in client.get_metric_history(out.strip(), "loss"))
            assert values == list(range(1, ROWS + 1)), f"{len(values)} rows"
        except Exception as error:
            detail.append(" ".join(f"{error} {out} {err}".split())[:300])
    return detail


def run(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """`tries` processes."""
    draw, detail, done, rounds, kills = random.Random(seed), [], 0, 0, 0
    while done < tries:
        runs = folder / f"runs-{rounds}"
        processes = [start(runs / str(i)) for i in range(TOGETHER)]
        if rounds % 2:  # one that makes the store, or waits to
            victim = processes.pop()
            while not (runs / ".mlflow.db.lock").exists() and victim.poll() is None:
                time.sleep(0.01)
            time.sleep(3 * draw.random())
            victim.kill()
            victim.communicate()
            kills += 1
        said = [process.communicate(timeout=900) for process in processes]
        said.append(start(runs / "later").communicate(timeout=900))
        detail += lost(runs / "mlflow.db", said)
        done += len(said)
        rounds += 1
        tell(done, tries, len(detail))
    words = "; ".join([f"{rounds} fresh stores, {TOGETHER} processes together, {kills} killed", *detail[:5]])
    return {"tries": done, "losses": len(detail), "executions": 0, "detail": words}
