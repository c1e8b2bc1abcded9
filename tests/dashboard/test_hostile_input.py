"""Hostile input to the page is refused or shown as text: foreign names, paths in URLs, links, broken and huge files."""

import json
import os
import socket
import time

import pytest
from live_page import lines, points, serving, write_run

from regimen.dashboard import reading
from synthetic_run import make_run

MARKUP = '<img src=x onerror="document.title=1">'
SECRET = "the content of a file outside"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder where everything that can be wrong is."""
    base = tmp_path_factory.mktemp("hostile")
    (base / "secret").mkdir()
    for name in ("report.html", "secret.png", "log.txt", "config.yaml", "view.json"):
        (base / "secret" / name).write_text(SECRET)
    root = base / "runs"
    write_run(root / "good", 20)
    named = write_run(root / MARKUP.replace("/", ""), 5, env=MARKUP, algorithm="<script>alert(1)</script>")
    (named / "log.txt").write_text(f"{MARKUP}\n")
    (named / "metrics.jsonl").write_text(json.dumps({"env_steps": 1, f"rollout/{MARKUP}": 1.0}) + "\n")

    linked = root / "linked"
    linked.mkdir()
    (linked / "config.yaml").symlink_to(base / "secret" / "config.yaml")
    (linked / "log.txt").symlink_to(base / "secret" / "log.txt")
    (linked / "report.html").symlink_to(base / "secret" / "report.html")
    (linked / "plots").symlink_to(base / "secret")
    (linked / "views").mkdir()
    (linked / "views" / "away.json").symlink_to(base / "secret" / "view.json")
    (linked / "views" / "picture.json").write_text('{"kind": "image", "file": "plots/secret.png"}')
    (linked / "metrics.jsonl").write_text(lines(points(3)))
    (root / "outside").symlink_to(base / "secret")

    broken = root / "broken"
    broken.mkdir()
    (broken / "status.json").write_bytes(b"\xff\xfe{")
    (broken / "summary.json").write_text("[" * 200_000)
    (broken / "config.yaml").write_text("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    (broken / "metrics.jsonl").write_bytes(
        b"\x00" * 5000 + b"\n{]\n" + bytes(range(256)) * 10 + b"\n" + lines(points(4)).encode()
    )

    odd = root / "odd"
    odd.mkdir()
    os.mkfifo(odd / "metrics.jsonl")  # reading it would wait for ever
    os.mkfifo(odd / "config.yaml")
    (odd / "status.json").write_text('{"state": {"a": 1}, "pid": "x", "updated": 7, "host": []}')
    (odd / "log.txt").mkdir()

    huge = root / "huge"
    huge.mkdir()
    for name in ("config.yaml", "status.json", "summary.json", "log.txt", "report.html"):
        with (huge / name).open("wb") as file:
            file.truncate(1 << 33)  # 8 GiB of nothing, sparse
    (huge / "metrics.jsonl").write_bytes(b"x" * (3 << 20) + b"\n" + lines(points(6)).encode())
    with serving(root) as site:
        yield site, base


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "",
        "127.0.0.1:{port}@evil",
    ],
)
def test_foreign_hosts_are_refused(hostile, host):
    site, _ = hostile
    for path in ("/", "/api/runs", "/api/events", "/app.js"):
        status, _, body = site.get(path, Host=host.format(port=site.port))
        assert status == 421 and b"127.0.0.1 and localhost only" in body
    assert site.get("/", Host=f"localhost:{site.port}")[0] == 200
    assert site.get("/", Host=f"LOCALHOST:{site.port}")[0] == 200


def test_two_hosts_or_none_are_refused(hostile):
    site, _ = hostile
    for head in ("", f"Host: 127.0.0.1:{site.port}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", site.port), timeout=5) as stream:
            stream.sendall(f"GET /api/runs HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode())
            assert stream.recv(100).split()[1] in (b"400", b"421")


def test_it_listens_on_this_machine_only(hostile):
    site, _ = hostile
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in {*others, "127.0.0.2"}:
        with pytest.raises(OSError):
            socket.create_connection((address, site.port), timeout=2).close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(hostile, method):
    site, _ = hostile
    for path in ("/", "/api/runs", f"/api/runs/{site.runs()['good']['id']}"):
        assert site.get(path, method)[0] == 405


def test_other_sites_cannot_ask(hostile):
    site, _ = hostile
    assert site.get("/api/runs", Sec_Fetch_Site="cross-site")[0] == 403
    assert site.get("/api/runs", Sec_Fetch_Site="same-site")[0] == 403
    assert site.get("/api/runs", Sec_Fetch_Site="same-origin")[0] == 200
    assert "access-control-allow-origin" not in site.get("/api/runs", Origin="https://evil.example")[1]


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../app.py",
        "/app.js/../../app.py",
        "/api/runs/../../../etc/passwd",
        "/api/runs/%2e%2e%2f%2e%2e%2fsecret",
        "/api/runs/{id}/files/..%2f..%2f..%2fsecret%2freport.html",
        "/api/runs/{id}/files/report.html",
        "/api/runs/{id}/files/metrics.jsonl",
        "/api/runs/{id}/views/..%2f..%2fsecret%2fview.json",
        "/api/runs/good",
        "/api/runs//etc",
        "/api/runs/{id}%00",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_path_comes_from_a_url(hostile, path):
    site, _ = hostile
    status, _, body = site.get(path.format(id=site.runs()["linked"]["id"]))
    assert status == 404 and SECRET.encode() not in body and b"root:" not in body


def test_links_out_of_the_folder_are_not_followed(hostile):
    site, base = hostile
    runs = site.runs()
    assert "outside" not in runs and not any("secret" in name for name in runs)
    key = runs["linked"]["id"]
    detail = site.json(f"/api/runs/{key}")
    assert detail["files"] == [] and detail["config"] == {}
    assert site.json(f"/api/runs/{key}/log")["lines"] == []
    assert [view["title"] for view in detail["views"]] == ["picture"]
    assert "no such picture" in site.json(f"/api/runs/{key}/views/{detail['views'][0]['id']}")["error"]
    with pytest.raises(reading.UnreadableError):
        reading.read_bytes(1000, base / "runs", "linked", "plots", "secret.png")
    with pytest.raises(reading.UnreadableError):
        reading.read_bytes(1000, base / "runs", "linked", "..", "good", "log.txt")


def test_a_file_that_becomes_a_link_is_refused(tmp_path):
    (tmp_path / "secret.png").write_text(SECRET)
    run = write_run(tmp_path / "runs" / "one")
    (run / "plots").mkdir()
    picture = run / "plots" / "a.png"
    picture.write_bytes(b"\x89PNG")
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["files"]
        url = f"/api/runs/{key}/files/{listed['id']}"
        assert site.get(url)[2] == b"\x89PNG"
        picture.unlink()
        picture.symlink_to(tmp_path / "secret.png")
        assert site.get(url)[0] == 404


def test_markup_in_names_is_data(hostile):
    site, _ = hostile
    run = site.runs()[MARKUP]
    assert run["env"] == MARKUP
    for path in ("/api/runs", f"/api/runs/{run['id']}", f"/api/runs/{run['id']}/log"):
        status, headers, _ = site.get(path)
        assert status == 200 and headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"
    names = site.json("/api/series", run=run["id"])[run["id"]]["metrics"]
    assert f"rollout/{MARKUP}" in names


def test_every_answer_forbids_foreign_content(hostile):
    site, _ = hostile
    for path in ("/", "/app.js", "/api/runs", "/nothing"):
        policy = site.get(path)[1]["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'") and "unsafe" not in policy
    page = site.get("/")[2].decode()
    assert "http://" not in page and "https://" not in page and " onclick" not in page and "<style" not in page


def test_a_configuration_alone_is_no_run(tmp_path):
    """MLflow's artifacts hold a copy of it, and of the summary."""
    run = write_run(tmp_path / "runs" / "one")
    artifacts = tmp_path / "runs" / "mlartifacts" / "1" / "ab" / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    (artifacts / "summary.json").write_text("{}")
    with serving(tmp_path / "runs") as site:
        assert set(site.runs()) == {"one"}


def test_a_run_without_its_configuration_is_damaged(tmp_path):
    run = make_run(tmp_path / "runs" / "one", updates=3)
    (run / "config.yaml").unlink()
    with serving(tmp_path / "runs") as site:
        (entry,) = site.runs().values()
    assert entry["state"] == "damaged" and entry["detail"] == "config.yaml is missing"


def test_reports_are_shown_in_a_sandbox(tmp_path):
    run = write_run(tmp_path / "runs" / "one")
    (run / "report.html").write_text("<script>fetch('/api/runs')</script>")
    with serving(tmp_path / "runs") as site:
        key = site.runs()["one"]["id"]
        (listed,) = site.json(f"/api/runs/{key}")["files"]
        status, headers, body = site.get(f"/api/runs/{key}/files/{listed['id']}")
    assert status == 200 and b"fetch" in body
    policy = headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'") and "script-src" not in policy


@pytest.mark.parametrize("name", ["broken", "odd", "huge", "linked"])
def test_broken_and_huge_runs_are_shown_as_far_as_they_go(hostile, name):
    """Of 8 GiB of log its end is read: all of it would not fit into memory."""
    site, _ = hostile
    run = site.runs()[name]
    detail = site.json(f"/api/runs/{run['id']}")
    assert sum(map(len, site.json(f"/api/runs/{run['id']}/log")["lines"])) < 1 << 20
    found = site.lines(run["id"], "rollout/return_mean")
    expected = {"broken": 4, "odd": 0, "huge": 6, "linked": 3}[name]
    assert found["rows"] == expected
    if name != "odd":
        assert found["lines"]["rollout/return_mean"]["y"] == list(range(expected))
    assert detail["config"] == {}
    reason = {"broken": "aliases", "odd": "plain file", "huge": "larger than"}.get(name)
    assert reason is None or reason in detail["config_error"]
    assert site.runs()["good"]["return"] == 19  # the others are not harmed


def test_deep_and_wide_settings_are_cut(tmp_path):
    (tmp_path / "deep.yaml").write_text("[" * 300 + "]" * 300)
    with pytest.raises(reading.UnreadableError, match="too deeply"):
        reading.read_config(tmp_path, "deep.yaml")
    wide = {f"k{i}": {f"l{j}": j for j in range(100)} for i in range(200)}
    (tmp_path / "wide.yaml").write_text(json.dumps(wide))
    assert len(reading.read_config(tmp_path, "wide.yaml")) <= reading.LEAVES + 100
    (tmp_path / "long.yaml").write_text(json.dumps({"a": "x" * 100_000, "b": 10**40, "c": float("inf")}))
    found = reading.read_config(tmp_path, "long.yaml")
    assert len(found["a"]) == 2001 and json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_crowd_of_streams_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("regimen.dashboard.app.MOST_CLIENTS", 3)
    write_run(tmp_path / "runs" / "one")
    with serving(tmp_path / "runs") as site:
        streams = []
        for _ in range(3):
            stream = socket.create_connection(("127.0.0.1", site.port), timeout=5)
            stream.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
            assert b"200 OK" in stream.recv(64)
            streams.append(stream)
        assert site.get("/api/events")[0] == 503
        assert site.get("/api/runs")[0] == 200
        for stream in streams:
            stream.close()
        site.eventually(lambda: _opens(site))


def _opens(site) -> bool:
    with socket.create_connection(("127.0.0.1", site.port), timeout=5) as stream:
        stream.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        return b"200 OK" in stream.recv(64)


def test_connections_that_ask_for_nothing_are_closed(tmp_path, monkeypatch):
    """One that is silent, one with half a request, one that has its answer; a stream is not."""
    monkeypatch.setattr("regimen.dashboard.server.PATIENCE", 0.3)
    monkeypatch.setattr("regimen.dashboard.index.SLOW", 0.2)
    with serving(tmp_path) as site:
        host = f"Host: 127.0.0.1:{site.port}\r\n"
        said = ("", "GET / HTTP/1.1\r\n" + host, f"GET /icon.svg HTTP/1.1\r\n{host}\r\n")
        asking = [socket.create_connection(("127.0.0.1", site.port), timeout=20) for _ in said]
        stream = socket.create_connection(("127.0.0.1", site.port), timeout=20)
        stream.sendall(f"GET /api/events HTTP/1.1\r\n{host}\r\n".encode())
        for one, text in zip(asking, said):
            one.sendall(text.encode())
        for one, text in zip(asking, said):
            received = b""
            while part := one.recv(1 << 16):  # until the other end closes
                received += part
            assert bool(received) == text.endswith("\r\n\r\n")
            one.close()
        time.sleep(1.0)  # several looks
        write_run(tmp_path / "late")
        received = b""
        while b"late" not in received:
            part = stream.recv(1 << 16)
            assert part, "the stream was closed"
            received += part
        stream.close()
