"""A fake live view: an HTTP server that keeps posted reports and responds as configured, or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.support.waiting import eventually


class ListeningView:
    """`with ListeningView() as view: … view.url`."""

    def __init__(self, port: int = 0, status: int = 204) -> None:
        self.reports: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.request_count = 0
        self.status = status
        self.may_respond = threading.Event()
        self.may_respond.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        view = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                view.request_count += 1
                view.may_respond.wait(30)
                if view.status < 300:
                    view.reports.append({"path": self.path, **json.loads(body)})
                    view.tokens.append(self.headers.get("Authorization"))
                self.send_response(view.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def until(self, what: str, matches: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Wait for the first report that matches."""
        return eventually(what, lambda: next((report for report in list(self.reports) if matches(report)), None))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.may_respond.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
