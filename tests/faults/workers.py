"""Gates of `make test-faults`: Ray workers and Ray's own processes that are killed, stopped, hang, crash, leak or say
NaN. A run goes on without a missing or doubled row, or ends with one line, its exit code and its state on disk."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from faults.watch import TEMPORARY, tell  # noqa: E402
from support import command_line, status  # noqa: E402

IN_THE_ENV = ("raise", "hang", "exit", "crash", "leak", "nan")  # a file of that name calls the fault up
FAULTS = ("kill", "stop", "begin", *IN_THE_ENV)
PER_RUN = 9  # faults in one run, whose budget of restarts is larger
ENDS = {"raylet": (8, "failed"), "gcs_server": (8, "failed")}  # what ends a run, and how
SETTINGS = {"workers": 2, "total_steps": 10**7, "engine.restarts": 30, "log.every": "1", "checkpoint.every": "20"}
TIMEOUTS = {"engine.step_timeout": 3.0, "engine.start_timeout": 100.0}  # a start takes 40 s on a busy machine


class RayRun:
    """`regimen train --engine ray` in a temporary folder of its own, with an environment that fails when it is told."""

    def __init__(self, folder: Path, **settings: object):
        self.folder, self.run = folder, folder / "run"
        folder.mkdir(parents=True)
        self.mark = f"REGIMEN_FAULTS={uuid.uuid4()}"
        self.temporary = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))  # Ray's paths have to be short
        (folder / TEMPORARY).write_text(str(self.temporary))
        name, _, value = self.mark.partition("=")
        os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - with Ray's 15 they do not start on a busy machine
        paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        more = {name: value, "JAX_PLATFORMS": "cpu", "TMPDIR": str(self.temporary), "PYTHONPATH": paths}
        given = SETTINGS | TIMEOUTS | {"engine": "ray", "out": str(self.run), "env.folder": str(folder)}
        command = ["train", "ray_envs:Fragile", *command_line(**(given | {"env.pause": 0.002} | settings))]
        self.output = open(folder / "output.txt", "w")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "regimen", *command],
            env={**os.environ, **more},
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def text(self) -> str:
        return (self.folder / "output.txt").read_text()

    def restarts(self) -> int:
        log = self.run / "log.txt"
        return len(re.findall(r"replaced \(\d+ of", log.read_text())) if log.exists() else 0

    def rows(self) -> list[dict]:
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, ready: Callable[[], object], seconds: float = 600) -> bool:
        """Whether it came to that, before it ended or the time was over."""
        end = time.monotonic() + seconds
        while not ready():
            if self.process.poll() is not None or time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def worker_pids(self) -> list[int]:
        """Of the workers that answered last."""
        table = self.run / "workers.csv"
        with open(table, newline="") as file:
            newest = {row["worker"]: int(row["pid"]) for row in csv.DictReader(file)}
        return [pid for pid in newest.values() if pid]

    def pids(self) -> dict[int, str]:
        """Every process of it, with its command."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
        return found

    def strike(self, fault: str, draw: random.Random) -> bool:
        """Let one worker fail; whether another has taken its place and rows go on."""
        before = self.restarts()
        if fault in ("kill", "stop", "begin"):
            if not self.wait_for(lambda: (self.run / "workers.csv").exists() and self.worker_pids()):
                return False
            if fault == "begin":  # the next one hangs while it is made
                (self.folder / "begin").touch()
            try:
                os.kill(draw.choice(self.worker_pids()), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
            except ProcessLookupError:  # the table is some seconds old
                time.sleep(0.5)
                return self.strike(fault, draw)
        else:
            (self.folder / fault).touch()
        expected = before + (2 if fault == "begin" else 1)
        if not self.wait_for(lambda: self.restarts() >= expected and not (self.folder / fault).exists()):
            return False
        count = len(self.rows())
        return self.wait_for(lambda: len(self.rows()) >= count + 10)

    def finish(self, seconds: float = 60) -> int:
        """Its exit code; -1 where it had to be killed."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return -1

    def left(self) -> list[str]:
        """Processes and folders that are still there some seconds after it ended. They are removed."""
        end = time.monotonic() + 15
        while self.pids() and time.monotonic() < end:
            time.sleep(0.2)
        pids = self.pids()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        folders = [path.name for path in self.temporary.glob("regimen-*")]
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.output.close()
        return [*pids.values(), *folders]

    def mistakes(self, code: int, expected: int, state: str) -> list[str]:
        """What is not as it should be at the end of the run."""
        wrong = [] if code == expected else [f"exit {code} instead of {expected}"]
        said = status(self.run)["state"] if (self.run / "status.json").exists() else None
        wrong += [] if said == state else [f"status {said} instead of {state}"]
        updates = [row["updates"] for row in self.rows()]
        wrong += [] if updates == list(range(1, len(updates) + 1)) else ["rows are missing or doubled"]
        wrong += [] if list((self.run / "checkpoints").glob("*/meta.json")) else ["no checkpoint"]
        wrong += [] if "Traceback" not in self.text() else ["a traceback"]
        return wrong + [f"left behind: {thing[:60]}" for thing in self.left()]


def run_workers(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """Let workers fail in every way, several in one run, which goes on each time and is then asked to end."""
    draw, losses, detail, count = random.Random(seed), 0, [], dict.fromkeys(FAULTS, 0)
    queue = [FAULTS[i % len(FAULTS)] for i in range(tries)]
    runs = 0
    while queue:
        batch, queue = queue[:PER_RUN], queue[PER_RUN:]
        run = RayRun(folder / f"workers-{runs}")
        runs += 1
        if not run.wait_for(lambda: len(run.rows()) >= 3):  # noqa: B023
            losses += len(batch)
            detail.append(f"did not start: {run.text()[-200:]}")
            run.finish(0)
            run.left()
            continue
        for fault in batch:
            count[fault] += 1
            time.sleep(draw.random())
            if not run.strike(fault, draw):
                losses += 1
                detail.append(f"{fault}: the run did not go on: {run.text()[-200:]}")
                break
            tell(sum(count.values()), tries, losses)
        run.process.send_signal(signal.SIGTERM)
        wrong = run.mistakes(run.finish(), 143, "interrupted")
        losses += bool(wrong)
        detail += wrong
    words = ", ".join(f"{n} {fault}" for fault, n in count.items() if n)
    return report("Ray workers", tries, losses, f"{words}, in {runs} runs", detail)


def run_cluster(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """End Ray's own processes: the run ends at once, says why, and its state is on disk."""
    draw, losses, detail, kinds = random.Random(seed), 0, [], list(ENDS)
    for i in range(tries):
        kind = kinds[i % len(kinds)]
        code, state = ENDS[kind]
        run = RayRun(folder / f"{kind}-{i}")
        if run.wait_for(lambda: len(run.rows()) >= 3):  # noqa: B023
            time.sleep(draw.random())
            (pid,) = (pid for pid, words in run.pids().items() if re.search(rf"/{kind}(?= |$)", words.split(" ")[0]))
            os.kill(pid, signal.SIGKILL)
        wrong = run.mistakes(run.finish(), code, state)
        losses += bool(wrong)
        detail += [f"{kind}: {text}" for text in wrong]
        tell(i + 1, tries, losses)
    return report("Ray itself", tries, losses, f"{tries} runs: {', '.join(kinds)}", detail)


def report(gate: str, tries: int, losses: int, words: str, detail: list[str]) -> dict[str, object]:
    text = "; ".join([words, *detail[:5]])
    return {"gate": gate, "tries": tries, "losses": losses, "executions": 0, "detail": text}


if __name__ == "__main__":
    print(globals()[f"run_{sys.argv[1]}"](int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
