"""The web server of the live view; runs in the foreground until it is stopped.

    run(options, announce)    bind, start the collector, serve; call announce when the server is ready

NiceGUI includes its own copies of all assets, so the view works without internet access.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from headrace.errors import ConfigError
from headrace.ui import reports
from headrace.ui.access import AccessControl, is_loopback
from headrace.ui.frame import head_html
from headrace.ui.pages import PAGES
from headrace.ui.view import View, ViewOptions

log = logging.getLogger("headrace.ui")

TOKEN_BYTES = 18
BACKLOG = 128
SHUTDOWN_SECONDS_MAX = 3
RECONNECT_SECONDS = 10.0
"""How long the state of a page is kept for a browser that has lost its connection."""
_SIGNALLED = 128  # exit code of a process ended by signal N: 128 + N
_GUARD_READ_BYTES = 4096


@dataclass(slots=True, frozen=True)
class ReadyView:
    """A view that accepts requests."""

    url: str
    token: str | None
    pid: int

    @property
    def login_url(self) -> str:
        """The URL to open in a browser, with the token if there is one."""
        return self.url if self.token is None else f"{self.url}/?token={self.token}"


def run(options: ViewOptions, announce: Callable[[ReadyView], None], *, guard_fd: int | None = None) -> None:
    """Serve until a signal arrives or `guard_fd` is closed. A second signal ends the process at once."""
    listener = _bind(options.host, options.port)
    port = listener.getsockname()[1]
    token = options.token
    if token is None and not is_loopback(options.host):
        token = secrets.token_urlsafe(TOKEN_BYTES)
    view = View(options)
    app = create_app(view, token=token, port=port)
    ready = ReadyView(f"http://{_shown_host(options.host)}:{port}", token, os.getpid())
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_SECONDS_MAX, server_header=False
    )
    server = _Server(config, lambda: announce(ready), guard_fd)
    view.cluster.start()
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        view.cluster.stop()


def create_app(view: View, *, token: str | None, port: int) -> AccessControl:
    """Create the ASGI application: pages, report endpoint, access control."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    reports.mount(app, view)
    ui.add_head_html(head_html(), shared=True)
    for page in PAGES:
        page.build(view)
    ui.run_with(
        app,
        title="headrace",
        dark=None,
        language="en-US",
        favicon=_ICON,
        tailwind=False,
        show_welcome_message=False,
        binding_refresh_interval=None,
        reconnect_timeout=RECONNECT_SECONDS,
    )
    return AccessControl(app, token=token, only_loopback=is_loopback(view.options.host), port=port)


class _Server(uvicorn.Server):
    """A server that announces when it is ready and handles signals as the broker does."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None], guard_fd: int | None) -> None:
        super().__init__(config)
        self._announce = announce
        self._guard_fd = guard_fd

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self._guard_fd is not None:
            loop.add_reader(self._guard_fd, self._on_guard, self._guard_fd)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    def _on_signal(self, number: signal.Signals) -> None:
        if self.should_exit:
            os._exit(_SIGNALLED + number)
        self.should_exit = True

    def _on_guard(self, fd: int) -> None:
        """Stop at end of file: the parent process is gone."""
        if not os.read(fd, _GUARD_READ_BYTES):
            asyncio.get_running_loop().remove_reader(fd)
            self.should_exit = True


def _bind(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
        )
    except OSError as error:
        hint = (
            "choose another port with --listen"
            if error.errno == errno.EADDRINUSE
            else "choose another address with --listen"
        )
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}; {hint}") from error


def _shown_host(host: str) -> str:
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="6" fill="#0072B2"/>'
    '<path d="M6 10h12l8 6-8 6H6l6-6z" fill="#fff"/></svg>'
)
