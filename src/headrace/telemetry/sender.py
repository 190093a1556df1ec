"""Sends reports to a live view: one background thread per source, HTTP POST with JSON.

    notify(), or the interval → sender thread: source.create_report() → POST <view.url>/report → source.acknowledge()

No other thread ever waits for the view. A view that is unreachable, slow or refuses reports costs one line in the log
and is retried with back-off. What was not delivered is kept or dropped by the source.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar
from urllib.parse import urlsplit

from headrace.config import Log
from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import ConfigError
from headrace.telemetry.codec import encode
from headrace.telemetry.models import Report

if TYPE_CHECKING:
    from http.client import HTTPConnection

log = logging.getLogger("headrace.view")

REPORT_PATH = "/report"
POST_SECONDS_MAX = 2.0
"""Time-out of each socket operation: connect, send, receive."""
COLLECT_SECONDS = 0.1
"""Delay after `notify`: changes in quick succession are sent in one report."""
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX = 0.5, 10.0
"""Between attempts while the view is unreachable: doubled each time."""
EXIT_SECONDS_MAX = 0.5
"""For the final reports of all senders when the process exits."""
RESPONSE_BYTES_MAX = 1024

R = TypeVar("R", bound=Report)


class ReportSource(Protocol[R]):
    """Creates reports. Called by the sender's thread, and by the caller of `send_final_report`."""

    def create_report(self, *, is_last: bool) -> R: ...
    def acknowledge(self, report: R) -> None: ...


class Envelope(TypedDict):
    """The fields of `Report` that never change."""

    id: str
    host: str
    pid: int
    started_ms: int
    interval_ms: int


def new_envelope(interval_seconds: float) -> Envelope:
    """Identify a new source in this process."""
    return {
        "id": uuid.uuid4().hex,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_ms": SYSTEM_CLOCK.time_ms(),
        "interval_ms": int(interval_seconds * 1000),
    }


def check_url(url: str) -> str:
    """Return the URL of a view without a trailing slash; raise ConfigError if it is invalid."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f"invalid view.url: expected the URL of a live view such as http://127.0.0.1:9080, got {url!r}"
        )
    return url.rstrip("/")


class ReportSender:
    """Sends the reports of one source to one view: at an interval, and soon after `notify`."""

    def __init__(
        self, url: str, token: str | None, source: ReportSource[R], interval_seconds: float, log: Log = log
    ) -> None:
        self._log = log
        self._url = check_url(url)
        self._token = token
        self._source: ReportSource[Any] = source
        self._interval_seconds = interval_seconds
        self._path = urlsplit(self._url).path + REPORT_PATH
        self._notified = threading.Event()
        self._closing = threading.Event()
        self._resolved = threading.Event()
        self._address: tuple[str, int] | None = None  # Written before _resolved is set.
        self._is_final_sent = False  # Written before _closing is set.
        # Sender thread only.
        self._connection: HTTPConnection | None = None
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="headrace-view", daemon=True)
        self._thread.start()

    # -- any thread ----------------------------------------------------------------------------

    def notify(self) -> None:
        """Send a report soon. Costs a microsecond."""
        if not self._notified.is_set():
            self._notified.set()

    def close(self) -> None:
        """Send a final report and end the thread. Does not wait; the exit of the process does, for a moment."""
        _closing_threads.add(self._thread)
        self._closing.set()
        self._notified.set()

    def send_final_report(self, seconds_max: float) -> None:
        """Send the final report on the calling thread, without waiting for the response, and close.

        For a process that is about to be killed, with no time left for its threads. Takes microseconds, unless the host
        of the view is unreachable.
        """
        if not self._failures and self._resolved.wait(seconds_max) and self._address is not None:
            self._is_final_sent = self._send_without_response(self._address, seconds_max)
        self.close()

    def _send_without_response(self, address: tuple[str, int], seconds_max: float) -> bool:
        from http.client import HTTPConnection  # as in _connect

        headers = {**self._headers(), "Host": urlsplit(self._url).netloc, "Connection": "close"}
        try:
            body = encode(self._source.create_report(is_last=True))
            with contextlib.closing(HTTPConnection(*address, timeout=seconds_max)) as connection:
                connection.request("POST", self._path, body, headers)
        except Exception:  # as in _report
            self._log.debug("final report to %s lost", self._url, exc_info=True)
            return False
        return True

    # -- sender thread -------------------------------------------------------------------------

    def _run(self) -> None:
        self._resolve()
        is_last = False
        try:
            while not is_last:
                self._wait()
                is_last = self._closing.is_set()  # read once: after a close during a post, one more report follows
                self._report(is_last=is_last)
        finally:
            self._disconnect()
            _closing_threads.discard(self._thread)

    def _resolve(self) -> None:
        """Resolve the host for `send_final_report`, which has no time for DNS, nor for a TLS handshake."""
        parts = urlsplit(self._url)
        if parts.scheme == "http":
            with contextlib.suppress(OSError, UnicodeError):
                resolved = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
                host, port = resolved[0][4][:2]
                self._address = (str(host), int(port))
        self._resolved.set()

    def _wait(self) -> None:
        if self._failures:
            self._closing.wait(min(BACKOFF_SECONDS * 2.0**self._failures, BACKOFF_SECONDS_MAX))
        elif self._notified.wait(self._interval_seconds):
            self._closing.wait(COLLECT_SECONDS)
        self._notified.clear()

    def _report(self, *, is_last: bool) -> None:
        if is_last and (self._failures or self._is_final_sent):
            return  # the view was unreachable and exit should not wait for it; or it has the final report
        try:
            report = self._source.create_report(is_last=is_last)
            problem = self._post(encode(report))
            if problem is None:
                self._source.acknowledge(report)
        except Exception as error:  # must not affect the source
            problem = f"{type(error).__name__}: {error}"
        self._note(problem)

    def _note(self, problem: str | None) -> None:
        """Log one line when reports begin to fail, and one when they succeed again."""
        if problem is None:
            if self._failures:
                self._log.info("live view at %s is reachable again", self._url)
            self._failures = 0
            return
        self._disconnect()
        if not self._failures:
            self._log.warning("cannot report to the live view at %s, retrying: %s", self._url, problem)
        self._failures = min(self._failures + 1, 10)

    def _post(self, body: bytes) -> str | None:
        """Post a report; return the problem if it was refused."""
        try:
            return self._request(body)
        except OSError:
            # The view may have closed a kept-alive connection in the meantime: try a new one.
            if not self._failures and self._connection is not None:
                self._disconnect()
                return self._request(body)
            raise

    def _request(self, body: bytes) -> str | None:
        connection = self._connection = self._connection or self._connect()
        connection.request("POST", self._path, body, self._headers())
        response = connection.getresponse()
        text = response.read(RESPONSE_BYTES_MAX).decode(errors="replace").strip()
        if response.will_close or not response.isclosed():
            self._disconnect()
        if response.status in (HTTPStatus.OK, HTTPStatus.NO_CONTENT):
            return None
        status = f"HTTP status {response.status} {response.reason}"
        if response.status == HTTPStatus.UNAUTHORIZED:
            return f"{status}: set view.token to the token of the view"
        return f"{status}: {text}" if text else status

    def _headers(self) -> dict[str, str]:
        token = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        return {"Content-Type": "application/json", **token}

    def _connect(self) -> HTTPConnection:
        # Imported here: http.client loads the packages email and ssl, and few producers report.
        from http.client import HTTPConnection, HTTPSConnection

        parts = urlsplit(self._url)
        assert parts.hostname is not None
        connection_type = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return connection_type(parts.hostname, parts.port, timeout=POST_SECONDS_MAX)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_closing_threads: set[threading.Thread] = set()  # Single set operations are atomic: any thread.


@atexit.register
def _wait_for_final_reports() -> None:
    deadline = time.monotonic() + EXIT_SECONDS_MAX
    for thread in list(_closing_threads):
        thread.join(max(0.0, deadline - time.monotonic()))
