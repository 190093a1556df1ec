"""What the engines of `Consumer` and `ShareConsumer` have in common: connections, metadata, and the I/O thread.

    application thread ── commands (`call`) ──► I/O thread ── results, errors (`raise_in_poll`) ──► application thread

The application thread waits in `wait_until` only.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from headrace.client.concurrency import OneShotEvent
from headrace.client.metadata import Metadata, MetadataUpdater
from headrace.client.network import NetworkClient, NetworkObserver
from headrace.client.plugins import PluginLoader
from headrace.config import Config
from headrace.config.clock import Clock
from headrace.consumer.settings import ConsumerSettings, consumer_log
from headrace.errors import ClosedError, HeadraceError, IllegalStateError, IoThreadError

ERROR_PAUSE_SECONDS = 0.1
IDLE_MS = 60_000.0
JOIN_SECONDS_MIN = 1.0
"""How long `close` waits at least for the I/O thread, which has nothing more to wait for."""
ERRORS_MAX = 100
"""Errors that wait for `poll`; the oldest ones are dropped."""
MINUTE_MS = 60_000.0


class IoEngine(ABC):
    """The connections and the I/O thread of a consumer."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.log = consumer_log(config)
        self._pid = os.getpid()
        self._closed = False  # Application thread only.
        self.last_poll_ms = clock.monotonic_ms()  # Set by the application thread, read by the I/O thread.
        self._signal = OneShotEvent()  # Set by the I/O thread, to wake the application thread.
        self._woken = False  # `wakeup` was called.
        # Queues between the two threads.
        self._commands: deque[Callable[[], None]] = deque()
        self.errors: deque[HeadraceError] = deque(maxlen=ERRORS_MAX)
        # I/O thread.
        self._running = True
        self.failure: IoThreadError | None = None
        self.plugins = PluginLoader(config, self.log)
        with contextlib.ExitStack() as resources:
            resources.callback(self.plugins.close)
            self.settings = settings = ConsumerSettings.build(config, self.plugins)
            observer = self._observer(resources)
            self.metadata = Metadata(
                clock,
                max_age_ms=settings.metadata_max_age_ms,
                max_idle_ms=MINUTE_MS,
                retry_backoff_ms=settings.retry_backoff_ms,
                retry_backoff_max_ms=settings.retry_backoff_max_ms,
                is_lazy=True,
            )
            self.network = NetworkClient(settings.connection, settings.network, clock, observer, self.log)
            resources.callback(self.network.close)
            self.network.on_auth_failure = self.raise_in_poll
            self.network.on_failure = self._on_connection_failure
            self.updater = MetadataUpdater(
                self.metadata,
                self.network,
                settings.bootstrap_servers,
                request_timeout_ms=settings.request_timeout_ms,
                rebootstrap_trigger_ms=settings.rebootstrap_trigger_ms,
                allow_auto_topic_creation=settings.creates_topics,
                log=self.log,
            )
            self._build()
            self.thread = threading.Thread(target=self._run, name=f"headrace-{settings.client_id}", daemon=True)
            self._resources = resources.pop_all()

    def _observer(self, resources: contextlib.ExitStack) -> NetworkObserver | None:
        """Return the observer of the connections; `resources` closes what it needs, after the connections."""
        return None

    @abstractmethod
    def _build(self) -> None:
        """Make the other parts of the engine."""

    # -- I/O thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._running:
                self._turn()
            self._end_sessions()
            self._shut_down(ClosedError("the consumer was closed"))
        except BaseException as error:
            failure = IoThreadError(
                f"the I/O thread of the consumer died with {error!r}: close this consumer and create a new one"
            )
            failure.__cause__ = error
            self.failure = failure
            with contextlib.suppress(BaseException):
                self.log.critical("%s", failure, exc_info=error)
            with contextlib.suppress(BaseException):
                self._shut_down(failure)
        finally:
            self.notify()

    def _turn(self) -> None:
        try:
            while self._commands:
                self._commands.popleft()()
            self.run_once()
        except Exception:
            self.log.exception("an iteration of the I/O loop failed; continuing")
            time.sleep(ERROR_PAUSE_SECONDS)  # an error that persists must not use all CPU

    @abstractmethod
    def run_once(self) -> None:
        """Run one iteration of the loop."""

    def _end_sessions(self) -> None:  # noqa: B027 - optional
        """Tell the brokers that the consumer ends."""

    def _shut_down(self, error: HeadraceError) -> None:
        """Fail everything that is pending, and close the connections."""
        self.metadata.close(error)
        self._resources.close()

    def _on_connection_failure(self, node_id: int) -> None:
        self.metadata.request_update()

    def raise_in_poll(self, error: HeadraceError) -> None:
        """Raise an error in the application's current or next `poll`."""
        self.errors.append(error)
        self.notify()

    def notify(self) -> None:
        """Wake the application thread."""
        self._signal.set()

    # -- application thread --------------------------------------------------------------------

    def call(self, command: Callable[[], None]) -> None:
        """Run a function on the I/O thread."""
        self._commands.append(command)
        self.network.wakeup()

    def wait_until(self, condition: Callable[[], bool], timeout_ms: float) -> bool:
        """Wait until a condition that the I/O thread changes; False on timeout, or after `wakeup`."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._signal = signal = OneShotEvent()
            if condition():
                return True
            self.check_usable()
            left = deadline - time.monotonic()
            if left <= 0 or self._woken:
                return False
            signal.wait(left)

    def wakeup(self) -> None:
        """Interrupt the current or next wait. Any thread."""
        self._woken = True
        self.notify()

    def take_wakeup(self) -> bool:
        """Return whether `wakeup` was called since the last time."""
        was_woken, self._woken = self._woken, False
        return was_woken

    # -- checks and close ----------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise if the consumer is closed, was inherited by fork(), or its I/O thread is dead."""
        if self._closed:
            raise ClosedError("the consumer is closed")
        if os.getpid() != self._pid:
            raise IllegalStateError(
                "this consumer was created before fork(): its I/O thread is in the parent. Create one in the child"
            )
        if self.failure is not None:
            raise IoThreadError(*self.failure.args) from self.failure.__cause__

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self, timeout_ms: float) -> None:
        """Leave the group and stop the I/O thread."""
        if self._closed or os.getpid() != self._pid:
            return
        deadline = time.monotonic() + timeout_ms / 1000
        try:
            if self.failure is None and self.thread.is_alive():
                self._woken = False
                self._leave_group(timeout_ms)
        finally:
            self._closed = True
            self._running = False
            self.network.wakeup()
            if self.thread.ident is None:
                self._shut_down(ClosedError("the consumer could not be created"))
            else:
                self.thread.join(max(JOIN_SECONDS_MIN, deadline - time.monotonic()))

    @abstractmethod
    def _leave_group(self, timeout_ms: float) -> None:
        """End what the consumer has at the brokers; the I/O thread still runs."""
