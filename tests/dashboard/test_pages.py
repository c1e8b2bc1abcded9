"""The page's server: the list of runs, lines of metrics, events, views and files."""

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from live_page import Site, lines, points, serving, write_run

from regimen.cli import main as cli
from regimen.dashboard.index import alive, find
from regimen.dashboard.server import serve
from regimen.envs.metric import Metric, to_table
from regimen.errors import StorageError, UsageError
from regimen.files import views


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("site") / "runs"
    write_run(root / "first", 40)
    write_run(root / "second", 25, state="diverged", algo={"lr": 0.01})
    write_run(root / "group" / "seed-0")
    write_run(root / "group" / "seed-10")
    write_run(root / "group" / "seed-2")
    (root / "group" / "summary.json").write_text('{"env": "cartpole", "algo": "ppo", "eval_return_mean": 3.5}')
    with serving(root) as made:
        yield made


def events(site: Site, names: tuple[str, ...], act=lambda: None, seconds: float = 15.0) -> list[dict]:
    """The data of the first event of each name, in order; `act` is done after the first."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=seconds) as stream:
        stream.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        text, found = "", []
        while len(found) < len(names):
            text += stream.recv(1 << 16).decode()
            match = re.search(rf"event: {names[len(found)]}\r?\ndata: (.*)\n\n", text)
            if match:
                found.append(json.loads(match[1]))
                text = text[match.end() :]
                if len(found) == 1:
                    act()
        return found


def test_the_list(site):
    runs = site.runs()
    assert list(runs) == ["first", "group", "group/seed-0", "group/seed-2", "group/seed-10", "second"]
    first = runs["first"]
    assert (first["env"], first["algo"], first["state"], first["progress"]) == ("cartpole", "ppo", "finished", 0.4)
    assert (first["env_steps"], first["return"], first["eval"], first["speed"]) == (4000, 39, 40, 1000)
    assert runs["second"]["state"] == "diverged"
    assert runs["group"]["folder"] and runs["group"]["final"] == 3.5


def test_labels_of_metrics_are_the_environments(tmp_path):
    run = write_run(tmp_path / "runs" / "one")
    status = json.loads((run / "status.json").read_text())
    declared = to_table({"near": Metric("max", violation=True, label="near misses"), "effort": Metric("mean")})
    odd = {"a": {"reduce": "max", "label": 5}, "b": "x", "c": {"reduce": "max", "label": "y" * 10_000}}
    (run / "status.json").write_text(json.dumps(status | {"metrics": declared | odd}))
    write_run(tmp_path / "runs" / "older")
    with serving(tmp_path / "runs") as site:
        runs = site.runs()
    assert runs["one"]["labels"] == {"near": "near misses", "c": "y" * 255} and runs["older"]["labels"] == {}


def test_a_run_directory_itself_can_be_shown(tmp_path):
    write_run(tmp_path / "one")
    with serving(tmp_path / "one") as site:
        assert list(site.runs()) == ["one"]


def test_lines_of_several_runs(site):
    runs = site.runs()
    keys = [runs["first"]["id"], runs["second"]["id"]]
    found = site.json("/api/series", run=keys, metric=["train/entropy", "rollout/return_mean"], width=400)
    assert list(found) == keys and found[keys[1]]["rows"] == 25 and found[keys[1]]["metrics"]["train/entropy"] == 25
    assert len(found[keys[0]]["axes"]) == 1  # both lines have the same x
    first = site.lines(keys[0], "rollout/return_mean", "eval/return_mean", "nothing")["lines"]
    assert first["rollout/return_mean"]["y"] == list(range(40)) and "nothing" not in first
    assert first["eval/return_mean"]["x"] == [1000, 2000, 3000, 4000]
    timed = site.lines(keys[0], "train/entropy", x="wall_seconds", **{"from": 5, "to": 6})
    assert timed["lines"]["train/entropy"]["x"] == [4.5, 5, 5.5, 6, 6.5]


@pytest.mark.parametrize("query", ["x=password", "width=nan", "from=x", "to=inf", "run=a&" * 25])
def test_senseless_questions_are_refused(site, query):
    assert site.get(f"/api/series?{query}")[0] == 400


def test_details_settings_and_log(site):
    runs = site.runs()
    detail = site.json(f"/api/runs/{runs['second']['id']}")
    assert detail["config"]["algo.lr"] == 0.01 and detail["command"] == "regimen train cartpole"
    assert site.json(f"/api/runs/{runs['second']['id']}/log")["lines"] == ["2026-01-01T00:00:00Z started"]


def test_points_arrive_as_events(tmp_path):
    run = write_run(tmp_path / "runs" / "live", 5, state="running")
    with serving(tmp_path / "runs") as site:
        key = site.runs()["live"]["id"]
        assert site.json("/api/series", run=key)[key]["rows"] == 5

        def log():
            with (run / "metrics.jsonl").open("a") as file:
                file.write(lines(points(2, first=5)))

        hello, news = events(site, ("hello", "runs"), log)
        assert hello["runs"][0]["updates"] == 5
        assert news["runs"][0]["updates"] == 7 and news["gone"] == []
        found = site.lines(key, "rollout/return_mean")
        assert found["lines"]["rollout/return_mean"]["y"] == [0, 1, 2, 3, 4, 5, 6]


def test_pages_hear_news_one_after_the_other(tmp_path, monkeypatch):
    """All ask for lines when they hear it: at the same moment, each would wait for all others."""
    monkeypatch.setattr("regimen.dashboard.app.BREATH", 1.0)
    run = write_run(tmp_path / "run", state="running")
    with serving(tmp_path) as site:
        streams = []
        for _ in range(2):
            stream = socket.create_connection(("127.0.0.1", site.port), timeout=20)
            stream.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
            while b"hello" not in stream.recv(1 << 16):
                pass
            streams.append(stream)
        select.select(streams, [], [], 0.3)  # what belongs to the greeting
        for stream in streams:
            stream.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                stream.recv(1 << 20)
        with open(run / "metrics.jsonl", "a") as file:
            file.write(lines(points(3, first=30)))
        heard = select.select(streams, [], [], 20)[0]
        assert heard == streams[:1]
        assert select.select(streams[1:], [], [], 20)[0]
        for stream in streams:
            stream.close()


def test_runs_come_and_go(tmp_path, monkeypatch):
    monkeypatch.setattr("regimen.dashboard.index.SLOW", 0.1)
    root = tmp_path / "runs"
    with serving(root) as site:  # the folder does not exist yet
        assert site.runs() == {}
        write_run(root / "deep" / "er" / "run")
        site.eventually(lambda: "deep/er/run" in site.runs())
        for path in (root / "deep" / "er" / "run").iterdir():
            path.unlink()
        site.eventually(lambda: not site.runs())


def test_a_dead_process_is_shown_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr("regimen.dashboard.index.SLOW", 0.1)
    run = write_run(tmp_path / "runs" / "one", state="running")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = json.loads((run / "status.json").read_text()) | {"pid": child.pid}
    (run / "status.json").write_text(json.dumps(status))
    with serving(tmp_path / "runs") as site:
        assert site.runs()["one"]["state"] == "running"
        child.kill()  # and not waited for: a zombie does not train
        site.eventually(lambda: site.runs()["one"]["state"] == "dead")
        child.wait()
        other = {"host": "elsewhere", "pid": 1}
        (run / "status.json").write_text(json.dumps(status | other))
        site.eventually(lambda: site.runs()["one"]["state"] == "running")
        os.utime(run / "metrics.jsonl", (time.time() - 1000,) * 2)
        site.eventually(lambda: site.runs()["one"]["state"] == "silent")


def test_a_number_that_another_process_has_now_is_not_the_run():
    now = time.time()
    assert alive(os.getpid(), now)
    assert not alive(os.getpid(), now - 10 * 365 * 86400)  # written before this process began
    assert not any(alive(pid, None) for pid in ("1", None, True, -1, 0, 2**40))


def test_nothing_is_watched_without_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("regimen.dashboard.app.IDLE", 0.0)
    write_run(tmp_path / "runs" / "one", state="running")
    looked = []
    original = __import__("regimen.dashboard.index", fromlist=["Index"]).Index.poll
    monkeypatch.setattr("regimen.dashboard.index.Index.poll", lambda self: looked.append(1) or original(self))
    with serving(tmp_path / "runs") as site:
        site.runs()
        time.sleep(0.5)
        assert len(looked) <= 2


def test_a_long_file_is_read_in_parts_while_others_are_answered(tmp_path, monkeypatch):
    monkeypatch.setattr("regimen.dashboard.app.FIRST_READ", 20_000)
    write_run(tmp_path / "runs" / "long", 3000)
    with serving(tmp_path / "runs") as site:
        key = site.runs()["long"]["id"]
        first = site.json("/api/series", run=key)[key]
        assert 0 < first["indexing"] < 1 and 0 < first["rows"] < 3000
        done = site.eventually(lambda: (r := site.json("/api/series", run=key)[key])["indexing"] is None and r)
        assert done["rows"] == 3000


def test_it_never_writes(tmp_path):
    run = write_run(tmp_path / "runs" / "one", state="running")
    views.write(run, "picture", views.series("Line", [{"name": "a", "x": [1, 2], "y": [3, 4]}]))

    def state():
        paths = sorted((tmp_path / "runs").rglob("*"))
        return [(str(p), p.stat().st_mtime_ns, p.stat().st_size) for p in paths]

    before = state()
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        detail = site.json(f"/api/runs/{key}")
        site.json(f"/api/runs/{key}/views/{detail['views'][0]['id']}")
        site.json("/api/series", run=key, metric="rollout/return_mean")
        site.json(f"/api/runs/{key}/log")
    assert state() == before


# --- pictures --------------------------------------------------------------------------------------------------------

EXAMPLES = {
    "tracks": views.tracks(
        "Two",
        [views.episode("one", np.arange(2), [{"name": "A", "x": [0, 1], "y": [0, None], "goal": [3, 3]}])],
        separation=5,
    ),
    "grid": views.grid("Power", ["#.", ".."], [views.grid_frame(np.array([[np.nan, 1.0], [2.0, 3.0]]), title="start")]),
    "network": views.network("Net", ["clean", "lost"], [{"name": "a", "x": 0, "y": 0}], [], [{"state": [1]}]),
    "posterior": views.posterior("Belief", [{"candidates": [{"name": "a", "mean": 1, "low": 0, "high": 2}]}]),
    "series": views.series("Line", [{"name": "a", "x": [1, 2], "y": np.array([3.0, 4.0])}]),
    "image": views.image("Plot", "plots/a.png"),
}


@pytest.mark.parametrize("kind", views.KINDS)
def test_views_are_written_and_read_back(tmp_path, kind):
    run = write_run(tmp_path / "runs" / "one")
    (run / "plots").mkdir()
    (run / "plots" / "a.png").write_bytes(b"\x89PNG")
    path = views.write(run, "first", EXAMPLES[kind])
    assert path == run / "views" / "first.json"
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["views"]
        found = site.json(f"/api/runs/{key}/views/{listed['id']}")
    assert listed["title"] == "first" and found["kind"] == kind
    if kind == "grid":
        assert found["frames"][0]["values"] == [[None, 1.0], [2.0, 3.0]]
    if kind == "image":
        assert "file" not in found and re.fullmatch(r"[0-9a-f]{18}", found["id"])


@pytest.mark.parametrize(
    ("view", "where"),
    [
        ([], "not an object"),
        ({"kind": "film"}, "kind: 'film' is none of tracks, grid"),
        ({"kind": "grid", "rows": ["#", "##"], "frames": []}, "rows: not all of one length"),
        ({"kind": "grid", "rows": ["#"]}, "frames: missing"),
        ({"kind": "series", "lines": [{"name": "a", "x": [1], "y": [1, 2]}]}, "lines[0].y: 2 values for 1 of x"),
        ({"kind": "tracks", "episodes": [{"time": [0], "agents": [{"name": 3, "x": [], "y": []}]}]}, "agents[0].name"),
        ({"kind": "tracks", "episodes": [{"time": [0], "agents": [{"name": "a", "x": [], "y": []}]}]}, "for 1 of time"),
        ({"kind": "network", "frames": [{"state": [-1]}]}, "frames[0].state[0]: not a whole number"),
        ({"kind": "posterior", "frames": [{"candidates": [{"name": "a"}]}]}, "candidates[0].mean: missing"),
        ({"kind": "image", "file": "../../secret.png"}, "file: not a picture"),
        ({"kind": "image", "file": "/etc/passwd"}, "file: not a picture"),
    ],
)
def test_a_view_that_cannot_be_drawn_says_where(tmp_path, view, where):
    with pytest.raises(views.ViewError, match=re.escape(where)):
        views.check(view)
    run = write_run(tmp_path / "runs" / "one")
    (run / "views").mkdir()
    (run / "views" / "bad.json").write_text(json.dumps(view))
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["views"]
        assert where in site.json(f"/api/runs/{key}/views/{listed['id']}")["error"]


def test_views_are_checked_when_written(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "LARGEST", 1000)
    with pytest.raises(views.ViewError, match="not a plain file name"):
        views.write(tmp_path, "../other", EXAMPLES["series"])
    with pytest.raises(views.ViewError, match="the page reads"):
        views.write(tmp_path, "big", views.series("Big", [{"name": "a", "x": list(range(999)), "y": [0.5] * 999}]))
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(tmp_path))
    text = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "docs/dashboard.md", "exec"), {})
    assert json.loads((tmp_path / "views" / "power.json").read_text())["frames"][0]["values"] == [
        [None, 1.5],
        [0.2, 2.0],
    ]
    fields = {kind: [name.rstrip("?=") for name in views.FIELDS[kind]] for kind in views.KINDS}
    for row in re.findall(r"^\| `(\w+)` \| (`.*)\|$", text, re.MULTILINE):
        if row[0] in fields:
            assert [name for name in fields.pop(row[0]) if f"`{name}`" not in row[1]] == [], row[0]
    assert fields == {}


def test_aircraft_of_a_trajectory_table(tmp_path):
    run = write_run(tmp_path / "runs" / "one", env="airspace/head_on")
    (run / "trajectories").mkdir()
    head = "episode_id,step_idx,sim_time_s,agent_id,lat_deg,lon_deg,conflict_flag,wp_lat_deg,wp_lon_deg"
    rows = [
        "0,0,0,A1,52,4,0,52.1,4",
        "0,0,0,A2,52.1,4,0,52,4",
        "0,1,10,A1,52.05,4,1,52.1,4",
        "broken",
        "1,0,0,A1,50,5,0,51,5",
    ]
    (run / "trajectories" / "step-000001000.csv").write_text("\n".join([head, *rows]) + "\n")
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["views"]
        assert listed["title"] == "evaluation at step 1,000"
        found = site.json(f"/api/runs/{key}/views/{listed['id']}")
    assert found["kind"] == "tracks" and found["separation"] == 5 and len(found["episodes"]) == 2
    a1, a2 = found["episodes"][0]["agents"]
    assert found["episodes"][0]["time"] == [0, 10]
    assert a1["y"][1] - a1["y"][0] == pytest.approx(3.0, abs=1e-3)  # 0.05 degrees are 3 nautical miles
    assert a2["y"] == [pytest.approx(a1["y"][0] + 6, abs=1e-3), None] and a1["alert"] == [False, True]
    assert a1["goal"] == [pytest.approx(a2["x"][0], abs=1e-3), pytest.approx(a2["y"][0], abs=1e-3)]


def test_an_animation_has_a_title_in_words_and_says_what_it_shows(tmp_path):
    run = write_run(tmp_path / "runs" / "one", env="platform")
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"legend": "Blue: the agent."}))
    (run / "replays").mkdir()
    for name in ("best", "seed-3"):
        (run / "replays" / f"{name}.gif").write_bytes(b"GIF89a")
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        listed = site.json(f"/api/runs/{key}")["views"]
        assert [view["title"] for view in listed] == [
            "episode of the best policy, animated",
            "episode with seed 3, animated",
        ]
        found = site.json(f"/api/runs/{key}/views/{listed[0]['id']}")
    assert (found["title"], found["note"]) == ("Episode of the best policy, animated", "Blue: the agent.")


def test_a_colony_of_a_replay(tmp_path):
    run = write_run(tmp_path / "runs" / "one", env="durotaxis", env_args={"width": 10.0, "height": 20.0})
    (run / "replays").mkdir()
    capacity, features, words = 32, 13, 2
    edges, nodes, mask = np.zeros((capacity, words), int), np.zeros((capacity, features)), np.zeros(capacity)
    mask[[0, 20]] = 1
    nodes[0, :2], nodes[20, :2], nodes[20, 9] = (0.1, 0.5), (0.3, 0.25), 1
    edges[0, 1] = 1 << 4  # 0 -> 20
    cells = {"step": [0]}
    for name, values in (("edges", edges), ("mask", mask), ("nodes", nodes)):
        cells |= {f"obs/{name}[{i}]": [v] for i, v in enumerate(values.ravel())}
    cells["reward"] = [1.5]
    (run / "replays" / "seed-0.csv").write_text(
        ",".join(cells) + "\n" + ",".join(str(v[0]) for v in cells.values()) + "\n"
    )
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["views"]
        found = site.json(f"/api/runs/{key}/views/{listed['id']}")
    (frame,) = found["frames"]
    assert found["kind"] == "network" and found["bounds"] == [0, 0, 10, 20]
    assert [(n["x"], n["y"]) for n in frame["nodes"]] == [(1.0, 10.0), (3.0, 5.0)]
    assert frame["edges"] == [[0, 1]] and frame["state"] == [0, 1] and frame["title"] == "step 0: 2 nodes"


def test_a_network_of_a_replay(tmp_path):
    run = write_run(tmp_path / "runs" / "one", env="network_defense")
    (run / "replays").mkdir()
    bits = np.zeros((13, 4), int)
    bits[8], bits[1] = (1, 1, 1, 1), (0, 0, 1, 0)  # User0: exploit, privileged; Enterprise0: unknown
    cells = {"step": 0} | {f"obs[{i}]": v for i, v in enumerate(bits.ravel())}
    cells |= {"action": 2 + 10 * 13 + 8, "reward": -1.5}
    rows = [cells, cells | {"step": 1, "action": 0}]
    text = "\n".join([",".join(cells), *(",".join(map(str, row.values())) for row in rows)])
    (run / "replays" / "seed-0.csv").write_text(text + "\n")
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["views"]
        found = site.json(f"/api/runs/{key}/views/{listed['id']}")
    first, second = found["frames"]
    assert len(found["nodes"]) == 13 and all(0 <= i < 13 and 0 <= j < 13 for i, j in found["edges"])
    believed = {found["nodes"][i]["name"]: found["states"][s] for i, s in enumerate(first["state"]) if s}
    assert believed == {"Enterprise0": "unknown", "User0": "privileged"}
    assert first["title"] == "step 0: exploit at User0"
    assert first["note"] == "Blue: Restore User0; return so far 0" and "Sleep; return so far -1.5" in second["note"]
    assert "believed" not in first or first["believed"] is None
    assert "as Blue sees it" in found["title"]


def test_a_network_with_its_true_state(tmp_path):
    """Left half and right half of a host: Blue does not know of the root session on Enterprise1."""
    run = write_run(tmp_path / "runs" / "one", env="network_defense")
    (run / "replays").mkdir()
    bits = np.zeros((13, 4), int)
    bits[8] = (0, 0, 0, 1)
    cells = {"step": 0} | {f"obs[{i}]": v for i, v in enumerate(bits.ravel())}
    cells |= {f"level[{i}]": {8: 1, 2: 2}.get(i, 0) for i in range(13)} | {"action": 0, "reward": 0.0}
    text = "\n".join([",".join(cells), ",".join(map(str, cells.values()))])
    (run / "replays" / "seed-0.csv").write_text(text + "\n")
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["views"]
        found = site.json(f"/api/runs/{key}/views/{listed['id']}")
    (frame,) = found["frames"]
    names = [n["name"] for n in found["nodes"]]

    def told(which):
        return {names[i]: found["states"][s] for i, s in enumerate(frame[which]) if s}

    assert told("state") == {"User0": "user access", "Enterprise1": "privileged"}
    assert told("believed") == {"User0": "user access"} and "Blue" not in found["title"]


def test_what_a_search_believes(tmp_path):
    folder = tmp_path / "runs" / "search"
    folder.mkdir(parents=True)
    found = [{"candidate": "DESHU", "mean": 1.0, "std": 0.5}, {"candidate": "SDEHU", "mean": -1, "std": 0.25}]
    summary = {"trials": 7, "best": {"candidate": "DESHU"}, "model": {"posterior": found}}
    (folder / "summary.json").write_text(json.dumps(summary))
    with serving(tmp_path / "runs") as site:
        key = site.runs()["search"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["views"]
        view = site.json(f"/api/runs/{key}/views/{listed['id']}")
    best, other = view["frames"][0]["candidates"]
    assert (best["low"], best["high"], best["chosen"]) == (0.0, 2.0, True)
    assert (other["name"], other["low"], other["chosen"]) == ("SDEHU", -1.5, False)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    write_run(tmp_path / "runs" / "one")
    command = [sys.executable, "-m", "regimen", "dashboard", str(tmp_path / "runs"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+) ", line)[1])  # type: ignore[index]
        assert list(Site(port).runs()) == ["one"]
        with socket.create_connection(("127.0.0.1", port)) as stream:  # an open page does not hold it up
            stream.sendall(f"GET /api/events HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            assert b"200 OK" in stream.recv(1000)
            process.send_signal(2)
            _, errors = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode == 0 and errors == ""


def test_bad_arguments_are_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="is a file"):
        serve(tmp_path / "file")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=r"--port: \d+ cannot be used"):
            serve(tmp_path, taken.getsockname()[1])
    assert cli.main(["dashboard", "--port", "70000"]) == 3
    assert "port" in capsys.readouterr().err


def test_finding_runs_leaves_out_what_is_inside_them(tmp_path):
    run = write_run(tmp_path / "a")
    for name in ("checkpoints/100", "policy", "export"):
        (run / name).mkdir(parents=True)
        (run / name / "config.yaml").write_text("{}")
    write_run(run / "trials" / "0")
    (tmp_path / "search" / "views").mkdir(parents=True)
    assert find(tmp_path) == [(("a",), True), (("a", "trials", "0"), True), (("search",), False)]


def test_the_library_of_the_charts_comes_with_the_package_and_its_licence(site):
    status, headers, body = site.get("/vendor/uPlot.iife.min.js")
    assert status == 200 and headers["content-type"].startswith("text/javascript") and b"v1.6.32" in body[:80]
    vendor = resources.files("regimen.dashboard") / "static" / "vendor"
    assert body == (vendor / "uPlot.iife.min.js").read_bytes()
    assert "MIT License" in (vendor / "uPlot.LICENSE").read_text()
    page = site.get("/")[2].decode()
    for url in re.findall(r"(?:src|href)=\"(/[^\"]+)\"", page):
        assert site.get(url)[0] == 200, url
