"""The way to a live view: reports in JSON, posted by a thread of its own.

    whoever has something to tell: wake(), or nothing → the thread: report() → POST <view.url>/report → delivered()

Nobody ever waits for the view. One that is away, slow or wrong costs a line of the log, and is tried again after
pauses that grow. What could not be told is the source's to keep or to forget.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from headrace.config import Log
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from http.client import HTTPConnection

log = logging.getLogger("headrace.view")

REPORT_PATH = "/report"
POST_SECONDS_MAX = 2.0
"""For each step of a post: connecting, sending, the answer."""
COLLECT_SECONDS = 0.1
"""After `wake`, before it is told: what comes in quick succession goes in one report."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.5, 10.0
"""Between two attempts while the view is away: twice as long each time."""
LAST_SECONDS_MAX = 0.5
"""For all last words together, when the process ends."""
ANSWER_BYTES_MAX = 1024

HTTP_PORT = 80

Report = dict[str, Any]
Address = tuple[Any, ...]
"""Of a socket: an IP address, a port, and what IPv6 has besides."""


class Source(Protocol):
    """Who has something to tell. Called by the link's thread, and by who closes the link in person."""

    def report(self, *, is_last: bool) -> Report: ...
    def delivered(self, report: Report) -> None: ...


def check_url(url: str) -> str:
    """The address of a view, or a ConfigError that says what is wrong with it."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(f"view.url is {url!r}; it may be the address of a live view, as http://127.0.0.1:9080")
    return url.rstrip("/")


class ViewLink:
    """Tells one view of one source: every so many seconds, and soon after `wake`."""

    def __init__(self, url: str, token: str | None, source: Source, interval_seconds: float, log: Log = log) -> None:
        self._log = log
        self._url = check_url(url)
        self._token = token
        self._source = source
        self._interval_seconds = interval_seconds
        self._path = urlsplit(self._url).path + REPORT_PATH
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._resolved = threading.Event()
        self._address: Address | None = None  # Written before _resolved is set.
        self._is_said = False  # Written before _closing is set.
        # The thread's own.
        self._connection: HTTPConnection | None = None
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="headrace-view", daemon=True)
        self._thread.start()

    # -- any thread ----------------------------------------------------------------------------

    def wake(self) -> None:
        """There is something to tell. Costs a microsecond."""
        if not self._woken.is_set():
            self._woken.set()

    def close(self) -> None:
        """One last report, and the thread ends. Nobody waits for that but the end of the process, and not for long."""
        _leaving.add(self._thread)
        self._closing.set()
        self._woken.set()

    def close_in_person(self, seconds_max: float) -> None:
        """The same for a process that is ended from outside, without a moment for its threads.

        The caller puts the last report on its way, and does not wait for an answer: a matter of microseconds, unless
        the machine of the view cannot be reached at all.
        """
        if not self._failures and self._resolved.wait(seconds_max) and self._address is not None:
            self._is_said = self._send_only(self._address, seconds_max)
        self.close()

    def _send_only(self, address: Address, seconds_max: float) -> bool:
        try:
            body = _json(self._source.report(is_last=True))
            lines = [f"POST {self._path} HTTP/1.1", f"Host: {urlsplit(self._url).netloc}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in self._headers().items()]
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
            with socket.create_connection(address[:2], seconds_max) as connection:
                connection.sendall(head.encode() + body)
        except Exception:  # as in _tell
            self._log.debug("the last report to %s is lost", self._url, exc_info=True)
            return False
        return True

    # -- its thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        self._resolve()
        is_last = False
        try:
            while not is_last:
                self._wait()
                is_last = self._closing.is_set()  # asked once: a close during a post has its last report still to come
                self._tell(is_last=is_last)
        finally:
            self._disconnect()
            _leaving.discard(self._thread)

    def _resolve(self) -> None:
        """For `close_in_person`, which has no time for the name service. TLS takes too long for it in any case."""
        parts = urlsplit(self._url)
        if parts.scheme == "http":
            with contextlib.suppress(OSError, UnicodeError):
                found = socket.getaddrinfo(parts.hostname, parts.port or HTTP_PORT, type=socket.SOCK_STREAM)
                self._address = found[0][4]
        self._resolved.set()

    def _wait(self) -> None:
        if self._failures:
            self._closing.wait(min(PAUSE_SECONDS * 2.0**self._failures, PAUSE_SECONDS_MAX))
        elif self._woken.wait(self._interval_seconds):
            self._closing.wait(COLLECT_SECONDS)
        self._woken.clear()

    def _tell(self, *, is_last: bool) -> None:
        if is_last and (self._failures or self._is_said):
            return  # it was away, and nobody has the time to find out whether it is back; or it knows
        try:
            report = self._source.report(is_last=is_last)
            problem = self._post(_json(report))
            if problem is None:
                self._source.delivered(report)
        except Exception as error:  # whatever it is, it must not reach whoever is reported on
            problem = f"{type(error).__name__}: {error}"
        self._note(problem)

    def _note(self, problem: str | None) -> None:
        """One line when it begins to fail, one when it works again."""
        if problem is None:
            if self._failures:
                self._log.info("the live view at %s answers again", self._url)
            self._failures = 0
            return
        self._disconnect()
        if not self._failures:
            self._log.warning(
                "the live view at %s is told nothing for now: %s. It will be tried again; nothing else is affected",
                self._url,
                problem,
            )
        self._failures = min(self._failures + 1, 10)

    def _post(self, body: bytes) -> str | None:
        """What is wrong, or None."""
        try:
            return self._request(body)
        except OSError:
            # A connection that was kept may have been closed meanwhile: that says nothing yet.
            if not self._failures and self._connection is not None:
                self._disconnect()
                return self._request(body)
            raise

    def _request(self, body: bytes) -> str | None:
        connection = self._connection = self._connection or self._connect()
        connection.request("POST", self._path, body, self._headers())
        answer = connection.getresponse()
        text = answer.read(ANSWER_BYTES_MAX).decode(errors="replace")
        if answer.will_close or not answer.isclosed():
            self._disconnect()
        if answer.status in (HTTPStatus.OK, HTTPStatus.NO_CONTENT):
            return None
        said = f"it answered {answer.status} {answer.reason}"
        if answer.status == HTTPStatus.UNAUTHORIZED:
            return f"{said}: set view.token to the view's"
        return f"{said}: {text.strip()}" if text.strip() else said

    def _headers(self) -> dict[str, str]:
        token = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        return {"Content-Type": "application/json", **token}

    def _connect(self) -> HTTPConnection:
        from http.client import HTTPConnection, HTTPSConnection

        parts = urlsplit(self._url)
        assert parts.hostname is not None
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname, parts.port, timeout=POST_SECONDS_MAX)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _json(report: Report) -> bytes:
    return json.dumps(report, separators=(",", ":"), allow_nan=False).encode()


_leaving: set[threading.Thread] = set()  # Each change is one step: any thread.


@atexit.register
def _let_last_words_out() -> None:
    deadline = time.monotonic() + LAST_SECONDS_MAX
    for thread in list(_leaving):
        thread.join(max(0.0, deadline - time.monotonic()))


def identity() -> Mapping[str, Any]:
    """Who tells: the machine and the process."""
    return {"host": socket.gethostname(), "pid": os.getpid()}
