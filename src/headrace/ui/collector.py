"""One thread asks the cluster, for every page of every browser.

    page: feed.look() ─► wakes the thread ─► ask(admin) ─► feed.value, feed.at; or feed.trouble

A feed is one question. It is put at its rate while somebody looks, and rarely or not at all otherwise. What is much
work is asked less often, so that the view never is a burden: see `COST_FACTOR`. Values are replaced as a whole, so
pages read them without a lock.
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

ASK_MS_MAX = 4_000.0
"""For a question with all its attempts. Who does not answer for so long is in trouble, and the page says so."""
ACTION_MS_MAX = 15_000.0
COST_FACTOR = 200
"""A question is about as much work to answer as its answer is to read, and that is what we can measure. So each may
take half a percent of a processor. Waiting is no work: a slow network is asked as often as a fast one."""
PAUSE_SECONDS_MAX = 60.0
"""However much work it is, somebody waits for it."""
LOOK_SECONDS = 5.0
"""Who has looked so long ago is taken to be gone."""
RETRY_SECONDS = 1.0
FORGET_SECONDS = 120.0
FEEDS_MAX = 500
TURN_SECONDS_MAX = 1.0
STOP_SECONDS_MAX = 0.5
"""The thread may be in the middle of a question; it ends with the process then."""

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Trouble:
    """What is wrong, in words, and since when (seconds since 1970)."""

    text: str
    since: float


class Feed(Generic[T]):
    """A question, and the last answer. Written by the collector's thread."""

    def __init__(
        self, name: str, ask: Callable[[AdminClient], T], every_s: float, idle_s: float | None, woken: threading.Event
    ) -> None:
        self.name = name
        self.value: T | None = None
        self.at: float | None = None  # seconds since 1970
        self.trouble: Trouble | None = None
        self.asked = 0
        self._ask = ask
        self._every_s = every_s
        self._idle_s = idle_s
        self._woken = woken
        self._looked = float("-inf")
        self._ended = float("-inf")  # the last attempt
        self._pause_s = 0.0  # for its cost

    def look(self) -> T | None:
        """The last answer, None if there is none yet; and say that somebody wants to know."""
        was_idle = not self.is_looked_at
        self._looked = time.monotonic()
        if was_idle:
            self._woken.set()
        return self.value

    def hurry(self) -> None:
        """Ask again at once: something was changed."""
        self._looked = time.monotonic()
        self._ended, self._pause_s = float("-inf"), 0.0
        self._woken.set()

    @property
    def is_looked_at(self) -> bool:
        return time.monotonic() - self._looked < LOOK_SECONDS

    @property
    def is_permanent(self) -> bool:
        """Whether it is asked even if nobody looks."""
        return self._idle_s is not None

    @property
    def is_forgotten(self) -> bool:
        return not self.is_permanent and time.monotonic() - self._looked > FORGET_SECONDS

    @property
    def due(self) -> float:
        """When to ask next, by the monotonic clock."""
        interval = self._every_s if self.is_looked_at else self._idle_s
        if interval is None:
            return float("inf")
        if self.trouble is not None:
            interval = min(interval, RETRY_SECONDS)
        return self._ended + max(interval, self._pause_s)

    def run(self, admin: AdminClient) -> HeadraceError | None:
        """Ask. What goes wrong is kept, to be shown, and returned."""
        began = time.thread_time()
        self.asked += 1
        try:
            value = self._ask(admin)
        except HeadraceError as error:
            self.fail(str(error))
            return error
        self._ended = time.monotonic()
        self._pause_s = min((time.thread_time() - began) * COST_FACTOR, PAUSE_SECONDS_MAX)
        self.value, self.at, self.trouble = value, time.time(), None
        return None

    def fail(self, text: str) -> None:
        self.trouble = Trouble(text, self.trouble.since if self.trouble else time.time())
        self._ended, self._pause_s = time.monotonic(), 0.0


class Collector:
    """Owns the thread, the connection and the feeds."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed[Any]] = {}  # Guarded by _lock.
        self._thread = threading.Thread(target=self._run, name="headrace-ui-collector", daemon=True)
        self._admin: AdminClient | None = None  # The thread's.
        self.trouble: Trouble | None = None
        self.good_at: float | None = None
        """When the cluster last answered, in seconds since 1970."""

    @property
    def address(self) -> str:
        servers = self._settings.bootstrap_servers
        return servers if isinstance(servers, str) else ",".join(servers)

    def feed(
        self, name: str, ask: Callable[[AdminClient], T], *, every_s: float, idle_s: float | None = None
    ) -> Feed[T]:
        """The feed of that name, made if there is none: all pages share it.

        While somebody looks it is asked every `every_s`; otherwise every `idle_s`, or not at all. One that nobody has
        looked at for a while is forgotten, so ask for it again each time a page is built.
        """
        with self._lock:
            found = self._feeds.get(name)
            if found is None:
                self._forget()
                found = self._feeds[name] = Feed(name, ask, every_s, idle_s, self._woken)
            found.look()  # so that nobody forgets it before the page is there
        self._woken.set()
        return found

    def connect(self, timeout_ms: float = ACTION_MS_MAX) -> AdminClient:
        """A connection of its own, for an action: to be used in a `with` block."""
        own = replace(self._settings, timeout_ms=timeout_ms, request_timeout_ms=min(timeout_ms, ACTION_MS_MAX))
        return AdminClient(**{field.name: getattr(own, field.name) for field in fields(own)})

    def hurry(self) -> None:
        """Something was changed: ask everything anew that somebody looks at."""
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            if feed.is_looked_at:
                feed.hurry()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            feed = self._next()
            wait_s = TURN_SECONDS_MAX if feed is None else feed.due - time.monotonic()
            if feed is None or wait_s > 0:
                self._woken.wait(min(wait_s, TURN_SECONDS_MAX))
                continue
            self._ask(feed)
        if self._admin is not None:
            self._admin.close()

    def _next(self) -> Feed[Any] | None:
        with self._lock:
            return min(self._feeds.values(), key=lambda feed: feed.due, default=None)

    def _ask(self, feed: Feed[Any]) -> None:
        try:
            if self._admin is None:
                self._admin = self.connect(ASK_MS_MAX)
            error: Exception | None = feed.run(self._admin)
        except HeadraceError as wrong:  # an address that cannot be resolved, options that make no sense
            error = wrong
            feed.fail(str(wrong))
        except Exception as wrong:  # a mistake of ours must not end the thread
            log.exception("asking for %s failed", feed.name)
            error = wrong
            feed.fail(f"{type(wrong).__name__}: {wrong}")
        if error is None and self.trouble is not None:
            error = self._still_wrong()
        if error is None:
            self.trouble, self.good_at = None, time.time()
        elif is_unreachable(error):
            since = self.trouble.since if self.trouble else time.time()
            self.trouble = Trouble(str(error), since)

    def _still_wrong(self) -> HeadraceError | None:
        """Not every feed needs the cluster: that it is back, it has to say itself."""
        assert self._admin is not None
        try:
            self._admin.describe_cluster()
        except HeadraceError as error:
            return error
        return None

    def _forget(self) -> None:
        """Drop what nobody wants any more, and in a flood the oldest of what somebody does. With _lock."""
        for name in [name for name, feed in self._feeds.items() if feed.is_forgotten]:
            del self._feeds[name]
        passing = [name for name, feed in self._feeds.items() if not feed.is_permanent]
        for name in passing[: max(0, len(passing) - FEEDS_MAX + 1)]:
            del self._feeds[name]


def is_unreachable(error: Exception) -> bool:
    """Whether the cluster, not the question, is what is wrong."""
    return isinstance(error, ConnectionFailedError | TimedOutError | AuthenticationError | ConfigError)


HISTORY_SECONDS = 15 * 60
POINTS_MAX = HISTORY_SECONDS
"""One a second at most."""

K = TypeVar("K", bound=Hashable)

Point = tuple[float, float | None]
"""Seconds since 1970, and a value; None: a gap, where nothing is known."""


class Series:
    """Values over time. Written by one thread; read by all, as a copy."""

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
        """The newest value; None if there is none, or it is not known."""
        return self._points[-1][1] if self._points else None


class Rate(Series, Generic[K]):
    """How fast counters grow, from one reading to the next.

    Several counters are compared one by one, so that one that is new, or gone, or back at zero after a restart, does
    not look like traffic.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: tuple[float, Mapping[K, float]] | None = None

    def read(self, at: float, counters: Mapping[K, float] | None) -> None:
        """Add what the counters have grown since they were read last; None: they could not be read."""
        before, self._before = self._before, None if counters is None else (at, counters)
        if counters is None:
            self.add(at, None)
        elif before is not None and at > before[0]:
            grown = sum(max(0.0, value - before[1].get(key, value)) for key, value in counters.items())
            self.add(at, grown / (at - before[0]))
