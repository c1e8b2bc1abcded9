"""For the tests of the page: its server in a thread, requests as raw as they come, and run directories to show."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from regimen.dashboard.server import make_server


class Site:
    """A running server."""

    def __init__(self, port: int):
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """The path is sent exactly as it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in ({"Host": f"127.0.0.1:{self.port}"} | headers).items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, path: str, **query: Any) -> Any:
        status, _, body = self.get(path + (f"?{urlencode(query, doseq=True)}" if query else ""))
        assert status == 200, (status, body)
        return json.loads(body)

    def lines(self, run: str, *metrics: str, **query: Any) -> dict[str, Any]:
        """The answer about one run, its numbers unpacked."""
        found = self.json("/api/series", run=run, metric=metrics, **query)[run]
        axes = [np.frombuffer(base64.b64decode(text), "<f8").tolist() for text in found["axes"]]
        for line in found["lines"].values():
            line["x"] = axes[line["x"]]
            for name in {"y", "low", "high"} & set(line):
                line[name] = np.frombuffer(base64.b64decode(line[name]), "<f4").tolist()
        return found

    def runs(self) -> dict[str, dict[str, Any]]:
        return {run["name"]: run for run in self.json("/api/runs")["runs"]}

    def eventually(self, ask: Any, seconds: float = 15.0) -> Any:
        """The first true answer, within some seconds."""
        end = time.monotonic() + seconds
        while not (found := ask()):
            assert time.monotonic() < end, "it never came"
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def serving(root: Path) -> Iterator[Site]:
    server, listener = make_server(root, interval=0.05)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield Site(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def points(n: int, first: int = 0) -> list[dict[str, float]]:
    """Rows as a trainer logs them."""
    return [
        {
            "env_steps": 100 * (i + 1),
            "updates": i + 1,
            "episodes": 2 * (i + 1),
            "wall_seconds": 0.5 * (i + 1),
            "rollout/return_mean": float(i),
            "rollout/return_ma": float(i) / 2,
            "rollout/reward/progress": float(i),
            "rollout/reward/cost": -0.5 * i,
            "train/policy_loss": 1.0 / (i + 1),
            "train/entropy": 0.7 - 0.001 * i,
            "time/steps_per_second": 1000.0,
        }
        | ({"eval/return_mean": i + 1.0, "eval/return_std": 2.0, "eval/episodes": 4} if i % 10 == 9 else {})
        for i in range(first, first + n)
    ]


def lines(rows: list[dict[str, float]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_run(path: Path, rows: int = 30, state: str = "finished", **config: Any) -> Path:
    """A small run directory; one that runs is run by this process."""
    path.mkdir(parents=True)
    settings = {"env": "cartpole", "algorithm": "ppo", "seed": 0, "total_steps": 10_000, "algo": {"lr": 0.001}} | config
    (path / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    status = {"state": state, "pid": os.getpid(), "host": socket.gethostname(), "started": now, "updated": now}
    (path / "status.json").write_text(json.dumps(status))
    (path / "metrics.jsonl").write_text(lines(points(rows)))
    (path / "log.txt").write_text("2026-01-01T00:00:00Z started\n")
    (path / "command.txt").write_text("regimen train cartpole\n")
    return path
