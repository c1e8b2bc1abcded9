"""Serving the page: one process of low priority, bound to 127.0.0.1, ended by Ctrl+C."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from regimen.errors import ConfigError, StorageError, UsageError

if TYPE_CHECKING:
    import asyncio

    import uvicorn

PORT = 8765
PATIENCE = 15.0  # seconds that a connection may be open without a request
GONE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}  # of a peer in silence


def serve(runs: str | Path, port: int = PORT, open_browser: bool = False) -> int:
    """Serve the page about the runs below a folder until interrupted. Port 0 takes any that is free."""
    root = Path(runs)
    if root.exists() and not root.is_dir():
        raise StorageError(f"{root} is a file; give a folder of runs, or a run directory")
    server, listener = make_server(root, port)
    with contextlib.suppress(OSError):
        os.nice(5)  # training comes first
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with contextlib.suppress(KeyboardInterrupt):  # also one that comes as soon as the line below is read
        print(f"{address} shows {root}{'' if root.is_dir() else ' as soon as it exists'}; Ctrl+C ends it", flush=True)
        if open_browser:
            import webbrowser

            threading.Timer(0.5, webbrowser.open, [address]).start()
        server.run(sockets=[listener])
    return 0


def make_server(root: Path, port: int = 0, interval: float = 0.5) -> tuple[uvicorn.Server, socket.socket]:
    """A server that is not running yet, and its socket: `server.run(sockets=[socket])`."""
    try:
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol

        from regimen.dashboard.app import create_app
    except ImportError as error:
        raise ConfigError(f"the page needs {error.name}: pip install 'regimen[dashboard]'") from error

    listener = bind(port)
    app = create_app(root, listener.getsockname()[1], interval)

    class Server(uvicorn.Server):
        """Ends open streams when it is asked to end; they would keep it waiting."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.board.close()
            await super().shutdown(sockets)

    class Connection(H11Protocol):
        """Closed when it asks for nothing: one that sent nothing, or half a request, would be open for ever."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.loop.call_later(PATIENCE, self.watch, None)

        def watch(self, before: object) -> None:
            """Look again and again whether there is a request, or was one since the last look."""
            if self.transport.is_closing():
                return
            if self.cycle is before and (before is None or self.cycle.response_complete):
                self.transport.close()
                return
            self.loop.call_later(PATIENCE, self.watch, self.cycle)

    settings = {"log_level": "warning", "access_log": False, "server_header": False, "timeout_graceful_shutdown": 2}
    return Server(uvicorn.Config(app, http=Connection, **settings)), listener


def bind(port: int) -> socket.socket:
    """A listening socket that only this machine can reach."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit these
        for name, value in GONE.items():
            if hasattr(socket, name):
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--port: {port} cannot be used: {reason}; choose another, or 0 for any free one") from error
    return listener
