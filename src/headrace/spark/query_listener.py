"""A listener for streaming queries: one line in the log for each batch, metrics for Prometheus, and the live view.

    spark.streams.addListener(headrace.spark.listener())

    Spark's listener bus → QueryListener → QueryFigures → log, QueryCollector, QueryReporter
    processes that commit → CommitFeed ↗

Spark calls it after each batch, on a thread of its own: no batch waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.errors import ConfigError
from headrace.spark.commit_feed import CommitFeed
from headrace.spark.errors import explain
from headrace.spark.log_setup import show_info
from headrace.spark.query_figures import RUNNING, QueryFigures
from headrace.spark.query_metrics import QueryCollector, default_registry
from headrace.spark.query_view import QueryReporter
from headrace.telemetry.models import CommitReport
from headrace.telemetry.sender import check_url

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger("headrace.query")

QUERIES_MAX = 100
"""Queries whose figures are kept; beyond that, the one that ended longest ago is dropped."""
NAME_CHARACTERS = 8
"""Of the id of a query without a name."""


def listener(
    *,
    log_batches: bool = True,
    registry: CollectorRegistry | None = None,
    prometheus_port: int | None = None,
    prometheus_host: str = "127.0.0.1",
    view_url: str | None = None,
    view_token: str | None = None,
) -> QueryListener:
    """Return a listener for `spark.streams.addListener`, for all streaming queries of the session.

    `log_batches` logs a line for each batch to `headrace.query`. Metrics go to the `registry`, by default that of
    `prometheus_client` if the package is installed. `prometheus_port` serves it at `/metrics`, to this host only unless
    `prometheus_host` is another address. `view_url` is that of a live view (`headrace ui`).
    """
    if view_url is not None:
        check_url(view_url)
    if registry is None:
        registry = default_registry(is_required=prometheus_port is not None)
    if prometheus_port is not None and registry is not None:
        _serve(registry, prometheus_host, prometheus_port)
    if log_batches:
        show_info(log)
    return QueryListener(log_batches=log_batches, registry=registry, view_url=view_url, view_token=view_token)


def _serve(registry: CollectorRegistry, host: str, port: int) -> None:
    from prometheus_client import start_http_server

    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"cannot serve metrics on prometheus_port {port}: {error}; choose another port") from error


class QueryListener(StreamingQueryListener):
    """Follows all streaming queries of a session. Create it with `listener()`."""

    def __init__(
        self,
        *,
        log_batches: bool,
        registry: CollectorRegistry | None,
        view_url: str | None,
        view_token: str | None,
    ) -> None:
        self._log_batches = log_batches
        self._view_url, self._view_token = view_url, view_token
        self._collector = None if registry is None else QueryCollector.of(registry)
        # Held during an event: a start comes on the thread that starts the query, the rest on the listener bus.
        self._event_lock = threading.Lock()
        self._feeds: dict[str, CommitFeed | None] = {}  # Guarded by _event_lock. By run; None if it cannot be created.
        self._reporters: dict[str, QueryReporter] = {}  # Guarded by _event_lock. By run.
        self._logged_errors: set[type[Exception]] = set()  # Guarded by _event_lock.
        self._lock = threading.Lock()  # taken after _event_lock, for moments: scrapes wait for it
        self._queries: dict[str, QueryFigures] = {}  # Guarded by _lock. By name; the last one that started is last.
        if self._collector is not None:
            self._collector.add(self.queries)
        atexit.register(self.close)

    def queries(self) -> list[QueryFigures]:
        """Return copies of the figures of all queries."""
        with self._lock:
            return copy.deepcopy(list(self._queries.values()))

    def close(self) -> None:
        """Remove files and metrics, and end reports. Call `spark.streams.removeListener` first."""
        atexit.unregister(self.close)
        if self._collector is not None:
            self._collector.discard(self.queries)
        with self._event_lock:
            for run in [*self._feeds]:
                self._close_run(run)

    # -- Spark's listener bus ----------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Called before the first batch, which therefore finds the feed."""
        with self._event():
            self._follow(str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        with self._event():
            progress = json.loads(event.progress.json)
            figures = self._follow(progress["id"], progress["runId"], progress.get("name"))
            with self._lock:
                figures.add_progress(progress)
            self._update(figures)
            if self._log_batches:
                log.info("%s", figures.summary(time.time_ns() // 1_000_000))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        with self._event():
            run = str(event.runId)
            with self._lock:
                figures = next((query for query in self._queries.values() if query.run == run), None)
            if figures is None:  # another run has started
                self._close_run(run)
                return
            error = None if event.exception is None else explain(RuntimeError(event.exception))
            with self._lock:
                figures.end(error)
            self._update(figures)
            self._close_run(run)
            if self._log_batches:
                self._log_end(figures)

    @contextlib.contextmanager
    def _event(self) -> Iterator[None]:
        """Keep errors away from Spark's listener bus, which would log a Java stack trace for each event.

        An error that comes with every batch is one warning.
        """
        with self._event_lock:
            try:
                yield
            except Exception as error:
                level = logging.DEBUG if type(error) in self._logged_errors else logging.WARNING
                self._logged_errors.add(type(error))
                log.log(level, "cannot follow a streaming query; the query itself is not affected", exc_info=True)

    def _follow(self, id: str, run: str, name: str | None) -> QueryFigures:
        """Return the figures of a query, whose run may be new."""
        name = name or id[:NAME_CHARACTERS]
        with self._lock:
            figures = self._queries.get(name)
            if figures is None or figures.run != run:
                self._queries.pop(name, None)
                if figures is None:
                    self._drop_oldest()
                    figures = QueryFigures(id, run, name)
                else:
                    figures.restart(id, run)
                self._queries[name] = figures
        if run not in self._feeds:
            self._feeds[run] = _feed(name, run)
        return figures

    def _drop_oldest(self) -> None:
        ended = [name for name, query in self._queries.items() if query.state != RUNNING]
        if len(self._queries) >= QUERIES_MAX and ended:
            del self._queries[ended[0]]

    def _update(self, figures: QueryFigures) -> None:
        """Add the commits of the sink, and report to the view."""
        reports = self._read_feed(figures)
        with self._lock:
            commits = figures.add_commits(reports)
        if self._view_url is not None:
            if figures.run not in self._reporters:
                self._reporters[figures.run] = QueryReporter(self._view_url, self._view_token)
            self._reporters[figures.run].update(figures, commits)

    def _read_feed(self, figures: QueryFigures) -> list[CommitReport]:
        feed = self._feeds.get(figures.run)
        if feed is None:
            return []
        try:
            return feed.read()
        except OSError as error:
            log.warning("query %s: no more figures of its commits: %s", figures.name, error)
            self._feeds[figures.run] = None
            feed.close()
            return []

    def _close_run(self, run: str) -> None:
        if (feed := self._feeds.pop(run, None)) is not None:
            feed.close()
        if (reporter := self._reporters.pop(run, None)) is not None:
            reporter.close()

    def _log_end(self, figures: QueryFigures) -> None:
        last = figures.totals.last_batch
        after = "before its first batch" if last is None else f"after batch {last}"
        if figures.error:
            log.error("query %s has failed %s: %s", figures.name, after, figures.error)
        else:
            log.info("query %s has stopped %s", figures.name, after)


def _feed(name: str, run: str) -> CommitFeed | None:
    try:
        return CommitFeed(run)
    except OSError as error:
        log.warning("query %s: no figures of its commits: %s", name, error)
        return None
