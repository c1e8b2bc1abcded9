"""The page's server: fixed assets, what the index knows as JSON, and one stream of changes for every open page.

Runs and files are addressed by ids of the index; no part of a URL is ever used as a path. Only GET is answered, only
for this machine's own names, and every answer forbids the browser to load anything from elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from pathlib import Path

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regimen.dashboard import derived
from regimen.dashboard.columns import X_AXES
from regimen.dashboard.index import Index, WatchedRun, files_below, key_of, stamp_of
from regimen.dashboard.reading import UnreadableError, read_bytes, read_tail
from regimen.files.views import IMAGES, ViewError

SCRIPTS = ("app.js", "chart.js", "curves.js", "panels.js", "util.js", "views.js", "vendor/uPlot.iife.min.js")
STYLES = ("style.css", "vendor/uPlot.min.css")
ASSETS = {"/": ("index.html", "text/html; charset=utf-8"), "/icon.svg": ("icon.svg", "image/svg+xml")}
ASSETS |= {f"/{name}": (name, "text/javascript; charset=utf-8") for name in SCRIPTS}
ASSETS |= {f"/{name}": (name, "text/css; charset=utf-8") for name in STYLES}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# a report is shown as a document of nowhere: it cannot ask this server, or any other, for anything
FILE_POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"
SCRIPT_POLICY = FILE_POLICY.replace("sandbox", "sandbox allow-scripts") + "; script-src 'unsafe-inline'"
TYPES = {".html": "text/html; charset=utf-8", ".png": "image/png", ".gif": "image/gif", ".jpg": "image/jpeg"}
TYPES |= {".webp": "image/webp"}
LARGEST_FILE = 128 << 20
LOG_TAIL = 1 << 16
MOST_RUNS, MOST_METRICS, MOST_CLIENTS = 24, 120, 400
WIDTHS = (120, 240, 480, 960, 1920)  # points per line that are made; a request gets the next one
FIRST_READ = 4 << 20  # bytes of metrics read before a first answer; the watcher reads the rest
CACHED, ANSWERS = 4096, 64  # lines and whole answers kept ready, for other pages that show the same
IDLE = 20.0  # seconds without a page after which nothing is watched
BREATH = (
    0.001  # seconds from page to page with news: all ask for lines when they hear it, and would wait for all others
)


class Dashboard:
    """The index, its watcher, and the open pages."""

    def __init__(self, root: Path, interval: float = 0.5):
        self.index = Index(root)
        self.interval = interval
        self.places: set[int] = set()  # of the open pages
        self.last_request = -math.inf
        self.events: list[tuple[int, bytes]] = []
        self.number = 0
        self.news = asyncio.Event()
        self.closing = False
        self.first = asyncio.Event()
        self.lines: OrderedDict[tuple[object, ...], tuple[bytes, bytes]] = OrderedDict()
        self.answers: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    @property
    def clients(self) -> int:
        return len(self.places)

    async def watch(self) -> None:
        """Keep the index up to date while a page is open."""
        while not self.closing:
            idle = not self.clients and asyncio.get_running_loop().time() - self.last_request > IDLE
            more = False
            if not idle or not self.first.is_set():
                changed, gone, more = await asyncio.to_thread(self.index.poll)
                self.first.set()
                if changed or gone:
                    self.publish(changed, gone)
            await asyncio.sleep(0.01 if more else self.interval)

    def publish(self, changed: list[str], gone: list[str]) -> None:
        """One event for all pages; written once."""
        runs = [run.entry | indexing(run) for key in changed if (run := self.index.runs.get(key)) is not None]
        self.number += 1
        data = json.dumps({"runs": runs, "gone": gone}, separators=(",", ":"))
        self.events.append((self.number, f"id: {self.number}\nevent: runs\ndata: {data}\n\n".encode()))
        del self.events[:-64]
        self.wake()

    def wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    def close(self) -> None:
        """End all streams."""
        self.closing = True
        self.wake()

    async def stream(self) -> AsyncIterator[bytes]:
        """A page's events, from the whole list on."""
        place = next(i for i in range(len(self.places) + 1) if i not in self.places)
        self.places.add(place)
        try:
            sent = self.number
            yield b"retry: 1000\nevent: hello\ndata: " + json.dumps(self.listing()).encode() + b"\n\n"
            while not self.closing:
                news = self.news
                fresh = [data for number, data in self.events if number > sent]
                if self.number - sent > len(fresh):  # it slept through some: start over
                    fresh = [b"event: hello\ndata: " + json.dumps(self.listing()).encode() + b"\n\n"]
                sent = self.number
                if fresh:
                    yield b"".join(fresh)
                    continue
                try:
                    await asyncio.wait_for(news.wait(), 15)
                    await asyncio.sleep(BREATH * place)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self.places.discard(place)

    def listing(self) -> dict[str, object]:
        runs = [run.entry | indexing(run) for run in list(self.index.runs.values()) if run.entry]
        return {"folder": self.index.root.name, "runs": runs}

    def run(self, key: str) -> WatchedRun:
        run = self.index.runs.get(key)
        if run is None:
            raise HTTPException(404, "no such run")
        return run

    async def measured(self, run: WatchedRun) -> None:
        """The run's metrics, at least the beginning of them."""
        run.used = asyncio.get_running_loop().time()
        if run.columns is None:
            await asyncio.to_thread(run.read_metrics, FIRST_READ)

    def line(
        self, run: WatchedRun, metric: str, axis: str, width: int, low: float | None, high: float | None
    ) -> tuple[bytes, bytes]:
        """One line as JSON, x and the rest apart; made once for every page that shows it."""
        columns = run.columns
        assert columns is not None
        key = (run.id, columns.generation, columns.version, metric, axis, width, low, high)
        if key in self.lines:
            self.lines.move_to_end(key)
            return self.lines[key]
        line = columns.line(metric, axis, width, low, high)
        rest = [b'"%s":%s' % (n.encode(), packed(line[n], "<f4")) for n in ("y", "low", "high") if n in line]
        self.lines[key] = packed(line["x"], "<f8"), b",".join([*rest, b'"n":%d' % int(line["n"])])
        while len(self.lines) > CACHED:
            self.lines.popitem(last=False)
        return self.lines[key]

    def lines_of(
        self, run: WatchedRun, metrics: list[str], axis: str, width: int, low: float | None, high: float | None
    ) -> bytes:
        """Some lines of a run as JSON: `x` of a line is a number into `axes`, which lines share (float64); `y`, and
        where points stand for several `low` and `high`, are float32."""
        columns = run.columns
        assert columns is not None
        head = {"rows": columns.rows, "bad_lines": columns.bad_lines, "metrics": columns.catalogue(), **indexing(run)}
        axes: dict[bytes, int] = {}
        lines = []
        for name in metrics:
            if name in columns.columns:
                x, rest = self.line(run, name, axis, width, low, high)
                place = axes.setdefault(x, len(axes))
                lines.append(b'%s:{"x":%d,%s}' % (json.dumps(name).encode(), place, rest))
        body = b'%s,"axes":[%s],"lines":{%s}}'
        return body % (json.dumps(head, separators=(",", ":"))[:-1].encode(), b",".join(axes), b",".join(lines))


def packed(values: np.ndarray, kind: str) -> bytes:
    """Numbers as base64 of their bytes: text would take twenty times as long to write."""
    return b'"%s"' % base64.b64encode(np.ascontiguousarray(values, kind).tobytes())


def indexing(run: WatchedRun) -> dict[str, float | None]:
    """How much of a long metrics file is read, where it is not all."""
    columns = run.columns
    done = columns is None or columns.complete
    return {"indexing": None if done or columns is None else round(columns.offset / max(columns.size, 1), 3)}


def artefacts(run: WatchedRun) -> list[tuple[str, ...]]:
    """Pages and pictures of a run that may be opened, by their place in it."""
    out: list[tuple[str, ...]] = []
    for folder, endings in (
        ((), (".html", ".png")),
        (("plots",), IMAGES),
        (("replays",), IMAGES),
        (("analysis",), (".html", *IMAGES)),
        (("analysis", "plots"), IMAGES),
    ):
        out += [(*folder, name) for name in files_below(run.root, (*run.parts, *folder), *endings)]
    return out


def answer(value: object) -> Response:
    return Response(json.dumps(value, separators=(",", ":")), media_type="application/json")


def finite(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(400, f"{name}: not a number")
    return value


def create_app(root: Path, port: int, interval: float = 0.5) -> FastAPI:
    """The application for one folder of runs, to be served on 127.0.0.1 at `port`."""
    static = resources.files("regimen.dashboard").joinpath("static")
    assets = {url: (static.joinpath(name).read_bytes(), kind) for url, (name, kind) in ASSETS.items()}
    board: Dashboard

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        nonlocal board
        board = app.state.board = Dashboard(root, interval)
        watcher = asyncio.create_task(board.watch())
        try:
            yield
        finally:
            board.close()
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    def asset(url: str) -> Callable[[Request], Awaitable[Response]]:
        body, kind = assets[url]
        tag = f'"{hashlib.blake2s(body, digest_size=12).hexdigest()}"'

        async def send(request: Request) -> Response:
            board.last_request = asyncio.get_running_loop().time()
            headers = {"ETag": tag, "Cache-Control": "no-cache"}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(body, media_type=kind, headers=headers)

        return send

    for url in assets:
        app.add_route(url, asset(url), methods=["GET", "HEAD"])

    @app.get("/api/events")
    async def events() -> Response:
        if board.clients >= MOST_CLIENTS:
            raise HTTPException(503, "too many open pages")
        await board.first.wait()
        return StreamingResponse(board.stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def runs(request: Request) -> Response:
        board.last_request = asyncio.get_running_loop().time()
        await board.first.wait()
        return answer(board.listing())

    app.add_route("/api/runs", runs, methods=["GET"])

    async def series(request: Request) -> Response:
        """Lines of metrics: `run` and `metric` may be repeated; `x`, `width`, and the range `from`, `to` of x."""
        query = request.query_params
        board.last_request = asyncio.get_running_loop().time()
        axis = query.get("x", X_AXES[0])
        keys, metrics = query.getlist("run"), query.getlist("metric")
        if axis not in X_AXES:
            raise HTTPException(400, "x: no such axis")
        if len(keys) > MOST_RUNS or len(metrics) > MOST_METRICS:
            raise HTTPException(400, f"more than {MOST_RUNS} runs or {MOST_METRICS} metrics")
        least = finite(request, "width") or 480
        width = next((w for w in WIDTHS if w >= least), WIDTHS[-1])
        how = axis, width, finite(request, "from"), finite(request, "to")
        runs = [run for key in dict.fromkeys(keys) if (run := board.index.runs.get(key)) is not None]
        for run in runs:
            await board.measured(run)
        runs = [run for run in runs if run.columns is not None]
        state = tuple((r.id, c.generation, c.version, c.complete) for r in runs if (c := r.columns) is not None)
        key = (state, tuple(metrics), how)
        body = board.answers.get(key)
        if body is None:
            parts = []
            for run in runs:
                parts.append(json.dumps(run.id).encode() + b":" + board.lines_of(run, metrics, *how))
                await asyncio.sleep(0)  # other pages get a turn
            body = board.answers[key] = b"{" + b",".join(parts) + b"}"
            while len(board.answers) > ANSWERS:
                board.answers.popitem(last=False)
        return Response(body, media_type="application/json")

    app.add_route("/api/series", series, methods=["GET"])

    @app.get("/api/runs/{key}")
    def detail(key: str) -> Response:
        run = board.run(key)
        files = [{"id": key_of(place), "name": "/".join(place)} for place in artefacts(run)]
        pictures = []
        for title, place in derived.listing(run).items():
            stamp = "-".join(f"{n:x}" for n in stamp_of(run.root, *run.parts, *place) or ())
            pictures.append({"id": key_of(place), "title": title, "stamp": stamp})
        command = None
        with contextlib.suppress(UnreadableError):
            command = read_bytes(1 << 16, run.root, *run.parts, "command.txt").decode("utf-8", "replace").strip()
        return answer(
            {
                "run": run.entry,
                "config": run.config,
                "config_error": run.config_error,
                "status": {k: v for k, v in run.status.items() if isinstance(v, (str, int, float, dict, type(None)))},
                "summary": run.summary,
                "command": command,
                "files": files,
                "views": pictures,
                "hint": derived.hint(run),
            }
        )

    async def compare(request: Request) -> Response:
        """What `regimen compare` says of the runs: `run` is repeated; `by` makes the groups."""
        board.last_request = asyncio.get_running_loop().time()
        keys = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(keys) > MOST_RUNS:
            raise HTTPException(400, f"more than {MOST_RUNS} runs")
        runs = [run for key in keys if (run := board.index.runs.get(key)) is not None]
        return answer(await asyncio.to_thread(derived.compared, runs, request.query_params.get("by")))

    app.add_route("/api/compare", compare, methods=["GET"])

    @app.get("/api/runs/{key}/log")
    def log(key: str) -> Response:
        run = board.run(key)
        try:
            text = read_tail(LOG_TAIL, run.root, *run.parts, "log.txt").decode("utf-8", "replace")
        except UnreadableError as error:
            return answer({"lines": [], "error": str(error)})
        return answer({"lines": [line[:2000] for line in text.splitlines()[-500:]]})

    @app.get("/api/runs/{key}/views/{name}")
    def view_of(key: str, name: str) -> Response:
        run = board.run(key)
        places = {key_of(place): place for place in derived.listing(run).values()}
        if name not in places:
            raise HTTPException(404, "no such view")
        try:
            view = derived.load(run, places[name])
            if view["kind"] == "image":
                place = tuple(view.pop("file").split("/"))
                if place not in artefacts(run):
                    raise ViewError("file: no such picture in plots/, replays/ or analysis/")
                view["id"] = key_of(place)
        except (ViewError, UnreadableError) as error:
            return answer({"error": f"{'/'.join(places[name])}: {error}"})
        return answer(view)

    @app.get("/api/runs/{key}/files/{name}")
    def file(key: str, name: str) -> Response:
        run = board.run(key)
        place = next((p for p in artefacts(run) if key_of(p) == name), None)
        if place is None:
            raise HTTPException(404, "no such file")
        try:
            body = read_bytes(LARGEST_FILE, run.root, *run.parts, *place)
        except UnreadableError as error:
            raise HTTPException(404, f"cannot be shown: {error}") from error
        ending = place[-1][place[-1].rfind(".") :].lower()
        policy = SCRIPT_POLICY if place[0] == "analysis" and ending == ".html" else FILE_POLICY
        return Response(body, media_type=TYPES[ending], headers={"Content-Security-Policy": policy})

    app.add_middleware(Guard, port=port)
    return app


class Guard:
    """Answers GET and HEAD for this machine's own names only, and tells browsers what they may do with an answer."""

    def __init__(self, app: ASGIApp, port: int):
        self.app = app
        ends = (f":{port}", "") if port == 80 else (f":{port}",)
        self.hosts = {f"{name}{end}".encode() for name in ("127.0.0.1", "localhost") for end in ends}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = scope["headers"]
        hosts = [value.lower() for name, value in headers if name == b"host"]
        site = next((value for name, value in headers if name == b"sec-fetch-site"), b"none")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                extra = {
                    b"content-security-policy": PAGE_POLICY.encode(),
                    b"x-content-type-options": b"nosniff",
                    b"referrer-policy": b"no-referrer",
                    b"cross-origin-resource-policy": b"same-origin",
                    b"cross-origin-opener-policy": b"same-origin",
                    b"x-frame-options": b"DENY",
                    b"cache-control": b"no-store",
                }
                message["headers"] = [*message["headers"], *((k, v) for k, v in extra.items() if k not in present)]
            await send(message)

        refused = None
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            refused = 421, "this page answers on 127.0.0.1 and localhost only"
        elif scope["method"] not in ("GET", "HEAD"):
            refused = 405, "nothing can be changed from here"
        elif site not in (b"none", b"same-origin") and scope["path"] != "/":
            refused = 403, "not for other sites"
        if refused is not None:
            await Response(refused[1] + "\n", refused[0], media_type="text/plain")(scope, receive, guarded)
            return
        await self.app(scope, receive, guarded)
