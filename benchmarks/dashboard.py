"""How fast the live page answers, and what it costs training.

    python benchmarks/dashboard.py                     # 50 pages on a run of a million rows that goes on growing
    python benchmarks/dashboard.py --training 5        # and training with and without a page open, 5 times each
    python benchmarks/dashboard.py --runs 1000         # instead: seconds until a browser shows a folder of 1,000 runs

The server is `regimen dashboard` in a process of its own. A page is what the browser does: the page itself and its
scripts, the stream of events, and on every event the lines of its charts; every fifth page has zoomed to a range of its
own, which nobody else shares. Times are of whole answers, after the file was indexed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import harness
import numpy as np

TARGET_MS = 200
INDEX_SECONDS = 10.0  # of a million rows
OPEN_SECONDS = 1.0  # of a page on 1,000 runs
CHARTS = ("rollout/return_mean", "rollout/return_ma", "eval/return_mean", "eval/return_std", "eval/episodes")
CHARTS += ("train/loss", "train/policy_loss", "train/value_loss", "train/entropy", "train/approx_kl")
CHARTS += ("train/explained_variance", "rollout/length_mean", "time/steps_per_second")
ASSETS = (
    "/",
    "/style.css",
    "/app.js",
    "/chart.js",
    "/curves.js",
    "/panels.js",
    "/views.js",
    "/util.js",
    "/vendor/uPlot.iife.min.js",
    "/vendor/uPlot.min.css",
    "/api/runs",
)


def write_run(run: Path, rows: int) -> None:
    """A run of this process with so many rows of 18 metrics, evaluated every hundredth."""
    run.mkdir(parents=True)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    status = {"state": "running", "pid": os.getpid(), "host": socket.gethostname(), "started": now, "updated": now}
    (run / "status.json").write_text(json.dumps(status))
    (run / "config.yaml").write_text("env: cartpole\nalgorithm: ppo\nseed: 0\ntotal_steps: 1000000000\n")
    with open(run / "metrics.jsonl", "w") as file:
        for start in range(0, rows, 10_000):
            file.write("".join(row(i) for i in range(start, min(rows, start + 10_000))))


def row(i: int) -> str:
    noise = np.sin(i * 12.9898) * 43758.5453 % 1
    line = {"env_steps": 256 * i, "agent_steps": 256 * i, "updates": i, "episodes": i // 2, "wall_seconds": i / 50}
    line |= {name: round(i / 1e4 + float(noise), 6) for name in (*CHARTS[:2], *CHARTS[5:])}
    if i % 100 == 99:
        line |= {name: round(i / 1e4 + float(noise), 6) for name in CHARTS[2:5]}
    return json.dumps(line) + "\n"


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    """Port and process of a server."""
    command = [sys.executable, "-m", "regimen", "dashboard", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+) ", process.stdout.readline())
        assert found is not None
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.wait(10)


async def ask(port: int, path: str) -> tuple[float, bytes]:
    """Seconds from asking to the end of the answer, and its body."""
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read(-1)
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head[:100]
    return time.perf_counter() - start, body


def lines_of(run: str, width: int = 220, zoom: tuple[int, int] | None = None) -> str:
    query: dict[str, object] = {"run": run, "metric": CHARTS, "x": "env_steps", "width": width}
    if zoom is not None:
        query |= {"from": zoom[0], "to": zoom[1]}
    return f"/api/series?{urlencode(query, doseq=True)}"


async def page(port: int, run: str, number: int, rows: int, end: float, times: dict[str, list[float]]) -> None:
    """One open page until `end`."""
    for path in ASSETS:
        times["page"].append((await ask(port, path))[0])
    zoom = (rows * number, rows * number + 128 * rows) if number % 5 == 0 else None
    path = lines_of(run, zoom=zoom)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    while time.perf_counter() < end:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1 << 16), end - time.perf_counter())
        times["zoomed lines" if zoom else "lines"].append((await ask(port, path))[0])
        await asyncio.sleep(0.25)  # as the page waits for more news
    writer.close()


async def crowd(
    port: int, pid: int, clients: int, rows: int, seconds: float, metrics: Path
) -> tuple[dict[str, list[float]], float]:
    """Seconds of every answer by kind, and of the server's processor, while so many pages are open."""
    times: dict[str, list[float]] = {"page": [], "lines": [], "zoomed lines": []}
    run = json.loads((await ask(port, "/api/runs"))[1])["runs"][0]["id"]
    start, cpu = time.perf_counter(), cpu_seconds(pid)
    while json.loads((await ask(port, lines_of(run)))[1])[run]["indexing"] is not None:
        await asyncio.sleep(0.2)
    taken, target = time.perf_counter() - start, INDEX_SECONDS * rows / 1e6
    print(
        f"{rows:,} rows ({metrics.stat().st_size / 2**20:,.0f} MiB) indexed in {taken:.1f} s, "
        f"{cpu_seconds(pid) - cpu:.1f} s of the server's processor: "
        f"{'meets' if taken <= target else 'MISSES'} the target of {target:g} s"
    )
    if not clients:
        return times, 0.0
    end, cpu = time.perf_counter() + seconds, cpu_seconds(pid)

    async def train() -> None:
        i = rows
        with open(metrics, "a") as file:
            while time.perf_counter() < end:
                file.write(row(i))
                file.flush()
                i += 1
                await asyncio.sleep(0.1)

    await asyncio.gather(train(), *(page(port, run, k, rows, end, times) for k in range(clients)))
    return times, cpu_seconds(pid) - cpu


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers(clients: int, rows: int, seconds: float) -> None:
    """Measure the page under a crowd."""
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder) / "long", rows)
        with served(Path(folder)) as (port, pid):
            metrics = Path(folder) / "long" / "metrics.jsonl"
            times, cpu = asyncio.run(crowd(port, pid, clients, rows, seconds, metrics))
    if not clients:
        return
    shown = []
    for name, taken in times.items():
        ms = np.array(taken) * 1000
        p50, p95 = np.percentile(ms, [50, 95])
        verdict = f"{'meets' if p95 < TARGET_MS else 'MISSES'} the target of {TARGET_MS} ms"
        shown.append([name, str(len(ms)), f"{p50:.0f}", f"{p95:.0f}", f"{ms.max():.0f}", verdict])
    print(harness.table([f"{clients} pages open", "answers", "p50 ms", "p95 ms", "max ms", "p95"], shown))
    each = 1000 * cpu / sum(map(len, times.values()))
    print(f"the server's processor time: {each:.2f} ms per answer, {100 * cpu / seconds:.0f}% of one core", flush=True)


def speed(out: Path, steps: int) -> float:
    """Steps per second of a training run without its compilation."""
    command = [sys.executable, "-m", "regimen", "train", "cartpole", "--total-steps", str(steps), "--no-track"]
    command += ["--stop.above", "1e9", "--eval.every", "200", "--json", "--out", str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["steps_per_second"])


async def watch(port: int, stop: asyncio.Event) -> None:
    """A page that follows the newest run."""
    while not stop.is_set():
        runs = json.loads((await ask(port, "/api/runs"))[1])["runs"]
        for run in runs[-1:]:
            await ask(port, lines_of(run["id"]))
        await asyncio.sleep(0.5)


def training(repeats: int, steps: int) -> None:
    """Alternate training with and without a page, so that a machine that warms up or is shared harms both alike."""
    taken: dict[str, list[float]] = {"no page": [], "page open": []}

    async def with_page(port: int, out: Path) -> float:
        stop = asyncio.Event()
        watcher = asyncio.create_task(watch(port, stop))
        try:
            return await asyncio.to_thread(speed, out, steps)
        finally:
            stop.set()
            await watcher

    with tempfile.TemporaryDirectory() as folder:
        speed(Path(folder) / "warm", steps // 10)
        for i in range(repeats):
            taken["no page"].append(speed(Path(folder) / "plain" / str(i), steps))
            watched = Path(folder) / "watched"
            with served(watched) as (port, _):
                taken["page open"].append(asyncio.run(with_page(port, watched / str(i))))
    rows = [[name, harness.spread(values, ",.0f")] for name, values in taken.items()]
    print(harness.table([f"training cartpole, {repeats} times", "steps per second"], rows))
    ratios = [b / a for a, b in zip(taken["no page"], taken["page open"])]
    print(f"with / without: {median(ratios):.3f} (median of pairs; {min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def write_runs(folder: Path, count: int) -> None:
    """Copies of one real run, which began minute after minute; what the page never reads is left out."""
    out = folder / "run-0000"
    command = [sys.executable, "-m", "regimen", "train", "cartpole", "--total-steps", "20000", "--no-track"]
    subprocess.run([*command, "--stop.metric", "none", "--out", str(out)], check=True, capture_output=True)
    status = json.loads((out / "status.json").read_text())
    for i in range(1, count):
        copy = folder / f"run-{i:04}"
        shutil.copytree(out, copy, ignore=shutil.ignore_patterns("checkpoints", "policy", ".*"), copy_function=os.link)
        (copy / "status.json").unlink()
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1.8e9 + 60 * i))
        (copy / "status.json").write_text(json.dumps(status | {"started": started}))


SHOWN = """() => document.querySelector("#live.on") && document.querySelector("#focus dd")
  && document.querySelectorAll(".run").length >= %d && document.querySelectorAll(".u-over").length"""


def opening(count: int, rounds: int) -> None:
    """Seconds from the address to the list, the run in focus and its curves: in a server that has just begun, and in
    the same one again."""
    from playwright.sync_api import sync_playwright

    first, again, begun = [], [], []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as tool:
        write_runs(Path(name), count)
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = tool.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        for _ in range(rounds):
            start = time.perf_counter()
            with served(Path(name)) as (port, _):
                begun.append(time.perf_counter() - start)
                for seconds in (first, again):
                    page = browser.new_page(viewport={"width": 1280, "height": 860})
                    start = time.perf_counter()
                    page.goto(f"http://127.0.0.1:{port}")
                    page.wait_for_function(SHOWN % min(count, 200))  # the list grows by 200
                    seconds.append(time.perf_counter() - start)
                    page.close()
        browser.close()
    rows = [["until the command says its address", harness.spread(begun, ".2f"), ""]]
    for what, seconds in (("first page of a server", first), ("a page later", again)):
        word = "meets" if median(seconds) <= OPEN_SECONDS else "MISSES"
        rows.append([what, harness.spread(seconds, ".2f"), f"{word} the target of {OPEN_SECONDS:g} s"])
    print(harness.table([f"{count:,} runs", "seconds", ""], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--training", type=int, default=0, metavar="REPEATS")
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--runs", type=int, default=0, metavar="COUNT")
    parser.add_argument("--rounds", type=int, default=5, help="of --runs")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"this machine is busy (load {load:.1f} on {os.cpu_count()} cores): times are longer than they would be")
    if args.runs:
        return opening(args.runs, args.rounds)
    if args.rows:
        answers(args.clients, args.rows, args.seconds)
    if args.training:
        training(args.training, args.steps)


if __name__ == "__main__":
    main()
