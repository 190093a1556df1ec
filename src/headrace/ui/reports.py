"""Reports from producers, consumers and pipelines: received, checked, kept for 15 minutes.

    POST /report → telemetry.codec.decode → ReportStore.add → ReportedClient or ReportedPipeline, which pages read

Reports are refused if they are too large, invalid, or from one sender too many. Everything here runs on the server's
event loop.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response

from headrace.telemetry.codec import ReportError, decode
from headrace.telemetry.models import (
    BatchReport,
    BatchTotals,
    CommitReport,
    ConsumerReport,
    CurrentBatch,
    PipelineReport,
    ProducerReport,
    Report,
)
from headrace.ui import formatting
from headrace.ui.collector import HISTORY_SECONDS, Rate, Series

if TYPE_CHECKING:
    from headrace.ui.view import View

R = TypeVar("R", bound=Report)

REPORT_BYTES_MAX = 256 * 1024
PRODUCERS_MAX = CONSUMERS_MAX = 100
PIPELINES_MAX = 50
EVICTION_SECONDS = 10.0
"""A sender that reported more recently than this is not evicted to make room for another."""
FRESH_SECONDS = 3.0
INTERVAL_MS_MIN = 100
CLIENT_SILENT_INTERVALS = 5
"""A client that has missed this many reports is gone, or cannot reach the view."""
PIPELINE_SILENT_INTERVALS = 4
PIPELINE_SILENT_SECONDS_MIN = 5.0
BATCHES_MAX = 500
RUNS_MAX = 8
"""Committing processes that are kept for a pipeline: a restarted driver has new ones."""
_FINAL_STATES = frozenset({"finished", "stopped", "cancelled", "failed"})


class StoreFullError(ReportError):
    """The store has no room for another sender."""


def last_report_text(at: float) -> str:
    """just now, or 12 s ago"""
    return "just now" if time.time() - at < FRESH_SECONDS else formatting.ago(at)


# -- producers and consumers ---------------------------------------------------------------------


class ReportedClient(Generic[R]):
    """A client that reports, and its last report."""

    def __init__(self, report: R) -> None:
        self.id = report.id
        self.report = report
        self.last_report_s = 0.0  # since 1970, by the clock of the view

    def update(self, report: R) -> None:
        self.last_report_s = time.time()
        self.report = report

    @property
    def is_silent(self) -> bool:
        """Whether reports are overdue although the client was not closed."""
        interval_s = max(INTERVAL_MS_MIN, self.report.interval_ms) / 1000
        return not self.report.is_closed and time.time() - self.last_report_s > CLIENT_SILENT_INTERVALS * interval_s

    @property
    def is_live(self) -> bool:
        return not self.report.is_closed and not self.is_silent

    def state_cells(self) -> dict[str, str]:
        """Return live, silent or closed for a table, with mark and tone."""
        if self.report.is_closed:
            return {"state": "closed", "state_mark": "■", "state_tone": ""}
        if self.is_silent:
            return {"state": "silent", "state_mark": "?", "state_tone": "warn"}
        return {"state": "live", "state_mark": "●", "state_tone": "good"}


class ReportedProducer(ReportedClient[ProducerReport]):
    """A producer that reports, and its history."""

    def __init__(self, report: ProducerReport) -> None:
        super().__init__(report)
        self.records = Rate[str]()
        self.sent = Rate[str]()
        self.used_percent = Series()
        self.p50_ms = Series()
        self.p99_ms = Series()

    def update(self, report: ProducerReport) -> None:
        super().update(report)
        now = self.last_report_s
        self.records.sample(now, {"records": report.totals.records})
        self.sent.sample(now, {"bytes": report.totals.sent_bytes})
        pool, delivery = report.pool, report.latency.delivery
        self.used_percent.add(now, 100 * pool.used_bytes / pool.total_bytes if pool.total_bytes else 0.0)
        self.p50_ms.add(now, delivery.p50 if delivery else None)
        self.p99_ms.add(now, delivery.p99 if delivery else None)


class ReportedConsumer(ReportedClient[ConsumerReport]):
    """A consumer that reports, and its history."""

    def __init__(self, report: ConsumerReport) -> None:
        super().__init__(report)
        self.records = Rate[str]()
        self.received = Rate[str]()
        self.lag = Series()

    def update(self, report: ConsumerReport) -> None:
        super().update(report)
        now, totals = self.last_report_s, report.totals
        self.records.sample(now, {"records": totals.records})
        self.received.sample(now, {"bytes": totals.bytes})
        self.lag.add(now, report.lag)

    @property
    def group(self) -> str:
        """The group, or nothing."""
        return "" if self.report.member is None else self.report.member.group


# -- pipelines -----------------------------------------------------------------------------------


@dataclass(slots=True)
class CommitRun:
    """A process that commits for a run of a sink."""

    report: CommitReport
    last_report_s: float = 0.0
    last_sequence: int = 0

    @property
    def current(self) -> CurrentBatch | None:
        return self.report.now

    @property
    def is_live(self) -> bool:
        return not self.report.is_closed and not _is_silent(self.last_report_s, self.report.interval_ms)


class ReportedPipeline:
    """All runs of one name. A sink outside a pipeline has its own name, and reports commits only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.driver: PipelineReport | None = None
        self.runs: dict[str, CommitRun] = {}  # the most recent report last
        self.batches: deque[BatchReport] = deque(maxlen=BATCHES_MAX)
        self.totals = BatchTotals()
        self.lag = Series()
        self._driver_report_s = 0.0

    def update_driver(self, report: PipelineReport) -> None:
        self.driver, self._driver_report_s = report, time.time()
        self.lag.add(self._driver_report_s, report.totals.behind)

    def update_commits(self, report: CommitReport) -> None:
        run = self.runs.pop(report.id, None) or CommitRun(report)
        self.runs[report.id] = run
        while len(self.runs) > RUNS_MAX:
            del self.runs[next(iter(self.runs))]
        run.report, run.last_report_s = report, time.time()
        for batch in report.batches:
            if batch.sequence > run.last_sequence:  # otherwise it is sent again because the response was lost
                run.last_sequence = batch.sequence
                self.batches.append(batch)
                self.totals.add(batch)

    @property
    def run(self) -> CommitRun | None:
        """The process that is committing; otherwise the live one that reported last."""
        newest_first = reversed(self.runs.values())
        return min(newest_first, key=lambda run: (not run.is_live, run.current is None), default=None)

    @property
    def last_report_s(self) -> float:
        return max([*(run.last_report_s for run in self.runs.values()), self._driver_report_s])

    @property
    def state(self) -> str:
        """running, finished, stopped, cancelled, failed, closed or silent."""
        driver, run = self.driver, self.run
        if driver is not None:
            is_over = driver.is_closed or driver.state in _FINAL_STATES
            is_silent = not is_over and _is_silent(self._driver_report_s, driver.interval_ms)
            return "silent" if is_silent else driver.state
        if run is None or run.report.is_closed:
            return "closed"
        return "running" if run.is_live else "silent"


def _is_silent(last_report_s: float, interval_ms: int) -> bool:
    allowed_s = max(PIPELINE_SILENT_SECONDS_MIN, PIPELINE_SILENT_INTERVALS * interval_ms / 1000)
    return time.time() - last_report_s > allowed_s


Senders = dict[str, ReportedProducer] | dict[str, ReportedConsumer] | dict[str, ReportedPipeline]

# -- the store -----------------------------------------------------------------------------------


class ReportStore:
    """All senders that have reported in the last 15 minutes."""

    def __init__(self) -> None:
        self._producers: dict[str, ReportedProducer] = {}
        self._consumers: dict[str, ReportedConsumer] = {}
        self._pipelines: dict[str, ReportedPipeline] = {}

    def add(self, body: bytes) -> None:
        """Decode and apply a report; raise ReportError if it is invalid."""
        report = decode(body)
        if isinstance(report, ProducerReport):
            self._producer_of(report).update(report)
        elif isinstance(report, ConsumerReport):
            self._consumer_of(report).update(report)
        elif isinstance(report, CommitReport):
            self._pipeline_of(report.name).update_commits(report)
        else:
            self._pipeline_of(report.name).update_driver(report)

    def _producer_of(self, report: ProducerReport) -> ReportedProducer:
        producer = self._producers.get(report.id)
        if producer is None:
            _make_room(self._producers, PRODUCERS_MAX, "producers")
            producer = self._producers[report.id] = ReportedProducer(report)
        return producer

    def _consumer_of(self, report: ConsumerReport) -> ReportedConsumer:
        consumer = self._consumers.get(report.id)
        if consumer is None:
            _make_room(self._consumers, CONSUMERS_MAX, "consumers")
            consumer = self._consumers[report.id] = ReportedConsumer(report)
        return consumer

    def _pipeline_of(self, name: str) -> ReportedPipeline:
        pipeline = self._pipelines.get(name)
        if pipeline is None:
            _make_room(self._pipelines, PIPELINES_MAX, "pipelines")
            pipeline = self._pipelines[name] = ReportedPipeline(name)
        return pipeline

    def producers(self) -> list[ReportedProducer]:
        """Live producers first, then by start time, the newest first."""
        _drop_silent(self._producers)
        return sorted(self._producers.values(), key=_live_first)

    def producer(self, id: str) -> ReportedProducer | None:
        return self._producers.get(id)

    def consumers(self) -> list[ReportedConsumer]:
        """Live consumers first, then by start time, the newest first."""
        _drop_silent(self._consumers)
        return sorted(self._consumers.values(), key=_live_first)

    def consumer(self, id: str) -> ReportedConsumer | None:
        return self._consumers.get(id)

    def pipelines(self) -> list[ReportedPipeline]:
        """The most recent report first."""
        _drop_silent(self._pipelines)
        return sorted(self._pipelines.values(), key=lambda pipeline: -pipeline.last_report_s)

    def pipeline(self, name: str) -> ReportedPipeline | None:
        return self._pipelines.get(name)


def _live_first(client: ReportedClient[Any]) -> tuple[bool, int]:
    return not client.is_live, -client.report.started_ms


def _drop_silent(senders: Senders) -> None:
    now = time.time()
    for id in [id for id, sender in senders.items() if now - sender.last_report_s > HISTORY_SECONDS]:
        del senders[id]


def _make_room(senders: Senders, count_max: int, plural: str) -> None:
    _drop_silent(senders)
    if len(senders) < count_max:
        return
    oldest = min(senders, key=lambda id: senders[id].last_report_s)
    if time.time() - senders[oldest].last_report_s < EVICTION_SECONDS:
        raise StoreFullError(f"report refused: {count_max} {plural} report to this view already, the maximum")
    del senders[oldest]


def mount(app: FastAPI, view: View) -> None:
    """Add the endpoint POST /report."""

    @app.post("/report")
    async def report(request: Request) -> Response:
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > REPORT_BYTES_MAX:
                    return PlainTextResponse(f"report too large: at most {REPORT_BYTES_MAX} bytes\n", 413)
            view.reports.add(bytes(body))
        except ClientDisconnect:  # the sender was killed
            return Response(status_code=400)
        except StoreFullError as error:
            return PlainTextResponse(f"{error}\n", 503)
        except ReportError as error:
            return PlainTextResponse(f"{error}\n", 400)
        return Response(status_code=204)
