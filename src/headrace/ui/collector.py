"""One thread that queries the cluster on behalf of all pages and browsers, and the history it keeps.

    page: feed.get() ─► wakes the thread ─► fetch(admin) ─► feed.value and feed.at, or feed.failure

A feed is one query. It is repeated at its rate while a page reads it, and rarely or not at all otherwise. Expensive
queries are repeated less often (`COST_FACTOR`). Values are replaced as a whole, so pages read them without a lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from headrace.client.admin import AdminClient
from headrace.client.blocking import ClientSettings
from headrace.errors import (
    AuthenticationError,
    ConfigError,
    ConnectionFailedError,
    HeadraceError,
    TimedOutError,
)

log = logging.getLogger("headrace.ui")

FETCH_MS_MAX = 4_000.0
"""Time-out of a query, retries included."""
ACTION_MS_MAX = 15_000.0
COST_FACTOR = 200
"""A feed pauses for this multiple of the CPU time that its last query took here, so each feed takes at most 0.5 % of a
processor. The broker's cost is taken to be about the same. Waiting for the network costs nothing."""
PAUSE_SECONDS_MAX = 60.0
WATCH_SECONDS = 5.0
"""A feed that no page has read for this long is not watched any more."""
RETRY_SECONDS = 1.0
EXPIRY_SECONDS = 120.0
FEEDS_MAX = 500
WAIT_SECONDS_MAX = 1.0
STOP_SECONDS_MAX = 0.5
"""A query that is still running after this ends with the process: the thread is a daemon."""
HISTORY_SECONDS = 15 * 60
POINTS_MAX = HISTORY_SECONDS
"""One point per second at most."""

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Point = tuple[float, float | None]
"""Seconds since 1970, and a value; None is a gap."""


# -- history -------------------------------------------------------------------------------------


class Series:
    """Values of the last 15 minutes. Written by one thread; readers get a copy."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)

    def add(self, at: float, value: float | None) -> None:
        self._points.append((at, value))
        while self._points and self._points[0][0] < at - HISTORY_SECONDS:
            self._points.popleft()

    def points(self) -> list[Point]:
        return list(self._points)

    @property
    def last(self) -> float | None:
        """The newest value; None if there is none or it is a gap."""
        return self._points[-1][1] if self._points else None


class Rate(Series, Generic[K]):
    """Growth per second of a set of counters.

    Each counter is compared with itself, so that a new, removed or reset one does not look like traffic.
    """

    def __init__(self) -> None:
        super().__init__()
        self._previous: tuple[float, Mapping[K, float]] | None = None

    def sample(self, at: float, counters: Mapping[K, float] | None) -> None:
        """Add the growth since the previous sample; None means that the counters could not be read."""
        previous, self._previous = self._previous, None if counters is None else (at, counters)
        if counters is None:
            self.add(at, None)
        elif previous is not None and at > previous[0]:
            growth = sum(max(0.0, value - previous[1].get(key, value)) for key, value in counters.items())
            self.add(at, growth / (at - previous[0]))


# -- feeds ---------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Failure:
    """An error that persists, and since when (seconds since 1970)."""

    text: str
    since: float


class Feed(Generic[T]):
    """A query and its last result. Written by the collector's thread."""

    def __init__(
        self,
        name: str,
        fetch: Callable[[AdminClient], T],
        *,
        every_s: float,
        idle_s: float | None,
        wake_event: threading.Event,
    ) -> None:
        self.name = name
        self.value: T | None = None
        self.at: float | None = None  # seconds since 1970
        self.failure: Failure | None = None
        self.fetch_count = 0
        self._fetch = fetch
        self._every_s = every_s
        self._idle_s = idle_s
        self._wake_event = wake_event
        self._last_read = float("-inf")
        self._last_attempt = float("-inf")
        self._pause_s = 0.0  # see COST_FACTOR

    def get(self) -> T | None:
        """Return the last result, None if there is none yet, and keep the feed watched."""
        was_idle = not self.is_watched
        self._last_read = time.monotonic()
        if was_idle:
            self._wake_event.set()
        return self.value

    def refresh_now(self) -> None:
        """Repeat the query at once, because something was changed."""
        self._last_read = time.monotonic()
        self._last_attempt, self._pause_s = float("-inf"), 0.0
        self._wake_event.set()

    @property
    def is_watched(self) -> bool:
        return time.monotonic() - self._last_read < WATCH_SECONDS

    @property
    def is_permanent(self) -> bool:
        """Whether the query is repeated even if no page reads the feed."""
        return self._idle_s is not None

    @property
    def is_expired(self) -> bool:
        return not self.is_permanent and time.monotonic() - self._last_read > EXPIRY_SECONDS

    @property
    def due(self) -> float:
        """When to query next, by the monotonic clock."""
        interval = self._every_s if self.is_watched else self._idle_s
        if interval is None:
            return float("inf")
        if self.failure is not None:
            interval = min(interval, RETRY_SECONDS)
        return self._last_attempt + max(interval, self._pause_s)

    def run(self, admin: AdminClient) -> HeadraceError | None:
        """Query the cluster; keep and return the error if that fails."""
        began = time.thread_time()
        self.fetch_count += 1
        try:
            value = self._fetch(admin)
        except HeadraceError as error:
            self.fail(str(error))
            return error
        self._last_attempt = time.monotonic()
        self._pause_s = min((time.thread_time() - began) * COST_FACTOR, PAUSE_SECONDS_MAX)
        self.value, self.at, self.failure = value, time.time(), None
        return None

    def fail(self, text: str) -> None:
        self.failure = Failure(text, self.failure.since if self.failure else time.time())
        self._last_attempt, self._pause_s = time.monotonic(), 0.0


class Collector:
    """Owner of the thread, its connection and the feeds."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._wake_event = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed[Any]] = {}  # Guarded by _lock.
        self._thread = threading.Thread(target=self._run, name="headrace-ui-collector", daemon=True)
        self._admin: AdminClient | None = None  # Collector thread only.
        self.failure: Failure | None = None
        """Why the cluster cannot be reached."""
        self.last_success_s: float | None = None
        """When the cluster last responded, in seconds since 1970."""

    @property
    def address(self) -> str:
        servers = self._settings.bootstrap_servers
        return servers if isinstance(servers, str) else ",".join(servers)

    def feed(
        self, name: str, fetch: Callable[[AdminClient], T], *, every_s: float, idle_s: float | None = None
    ) -> Feed[T]:
        """Return the feed of that name, created if needed: all pages share it.

        The query is repeated every `every_s` while a page reads the feed; otherwise every `idle_s`, or not at all. A
        feed without `idle_s` that is not read for a while is dropped, so call this each time a page is built.
        """
        with self._lock:
            feed = self._feeds.get(name)
            if feed is None:
                self._drop_expired()
                feed = Feed(name, fetch, every_s=every_s, idle_s=idle_s, wake_event=self._wake_event)
                self._feeds[name] = feed
            feed.get()  # keeps it until the page is built
        self._wake_event.set()
        return feed

    def connect(self, timeout_ms: float = ACTION_MS_MAX) -> AdminClient:
        """Open a separate connection for an action; use it in a `with` block."""
        settings = replace(self._settings, timeout_ms=timeout_ms, request_timeout_ms=min(timeout_ms, ACTION_MS_MAX))
        return AdminClient(**{field.name: getattr(settings, field.name) for field in fields(settings)})

    def refresh_now(self) -> None:
        """Repeat all queries that pages watch, because something was changed."""
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            if feed.is_watched:
                feed.refresh_now()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake_event.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)

    # -- collector thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake_event.clear()
            feed = self._next()
            wait_s = WAIT_SECONDS_MAX if feed is None else feed.due - time.monotonic()
            if feed is None or wait_s > 0:
                self._wake_event.wait(min(wait_s, WAIT_SECONDS_MAX))
                continue
            self._fetch(feed)
        if self._admin is not None:
            self._admin.close()

    def _next(self) -> Feed[Any] | None:
        with self._lock:
            return min(self._feeds.values(), key=lambda feed: feed.due, default=None)

    def _fetch(self, feed: Feed[Any]) -> None:
        error: Exception | None
        try:
            if self._admin is None:
                self._admin = self.connect(FETCH_MS_MAX)
            error = feed.run(self._admin)
        except HeadraceError as caught:  # from connect: an unresolvable address or invalid options
            error = caught
            feed.fail(str(caught))
        except Exception as caught:  # a bug in one feed must not end the thread
            log.exception("internal error while fetching %s", feed.name)
            error = caught
            feed.fail(f"{type(caught).__name__}: {caught}")
        if error is None and self.failure is not None:
            error = self._check_cluster()
        if error is None:
            self.failure, self.last_success_s = None, time.time()
        elif is_unreachable(error):
            since = self.failure.since if self.failure else time.time()
            self.failure = Failure(str(error), since)

    def _check_cluster(self) -> HeadraceError | None:
        """Return the error of a DescribeCluster request: some feeds succeed without the cluster."""
        assert self._admin is not None
        try:
            self._admin.describe_cluster()
        except HeadraceError as error:
            return error
        return None

    def _drop_expired(self) -> None:
        """Drop expired feeds, and the oldest non-permanent ones beyond FEEDS_MAX. Call with _lock held."""
        for name in [name for name, feed in self._feeds.items() if feed.is_expired]:
            del self._feeds[name]
        transient = [name for name, feed in self._feeds.items() if not feed.is_permanent]
        for name in transient[: max(0, len(transient) - FEEDS_MAX + 1)]:
            del self._feeds[name]


def is_unreachable(error: Exception) -> bool:
    """Return whether an error concerns the connection to the cluster, not one query."""
    return isinstance(error, ConnectionFailedError | TimedOutError | AuthenticationError | ConfigError)
